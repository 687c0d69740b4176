"""Which of the times that passed unattended are made up for. Pure; nothing walks over all of them.

Times are missed while the server was down or the schedule paused, or when the clock jumped over
them. WINDOW bounds how long ago they may be, MAX how many are made up for; the newest are kept.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

WINDOW: Final = "window"  # reasons beside those why times were missed at all
MAX: Final = "max"


class CatchUp(StrEnum):
    """What is made up for."""

    LATEST = "latest"
    ALL = "all"
    SKIP = "skip"


class Rule(Protocol):
    """The times of a rule: wheel.cron.Rule."""

    def newest(self, after_ms: int, until_ms: int, limit: int, /) -> list[int]:
        """Return the last times in (after, until], at most so many, oldest first."""
        ...

    def count(self, after_ms: int, until_ms: int, /) -> int:
        """Return how many times are in (after, until]."""
        ...

    def next_ms(self, after_ms: int, /) -> int | None:
        """Return the first time behind after_ms."""
        ...

    def latest_before(self, before_ms: int, /) -> int | None:
        """Return the last time before before_ms."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Times in a row that are not made up for, for one reason."""

    first_ms: int
    last_ms: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catch:
    """What becomes of missed times; every one of them is in exactly one of the two.

    Attributes:
        runs: made up for, oldest first.
        dropped: the others, in the order of time; all before the oldest of ``runs``, if any.
    """

    runs: tuple[int, ...]
    dropped: tuple[Dropped, ...]


def pick(
    rule: Rule,
    policy: CatchUp,
    *,
    from_ms: int,
    until_ms: int,
    now_ms: int,
    window_ms: int | None,
    runs_max: int,
    why: str,
) -> Catch:
    """Return what becomes of the times in [from, until).

    Args:
        rule: whose times they are.
        policy: the schedule's.
        from_ms: the first that nobody attended to.
        until_ms: the first that is not missed.
        now_ms: now, on the rule's axis.
        window_ms: how long ago a time may be, None = any.
        runs_max: how many may be made up for under ``all``.
        why: the times were missed: ``down``, ``paused`` or ``step``.
    """
    young_ms = from_ms if window_ms is None else max(from_ms, now_ms - window_ms)
    most = {CatchUp.SKIP: 0, CatchUp.LATEST: 1, CatchUp.ALL: runs_max}[policy]
    runs = tuple(rule.newest(young_ms - 1, until_ms - 1, most)) if most else ()
    first_ms = runs[0] if runs else until_ms
    old = _dropped(rule, from_ms, min(young_ms, first_ms), WINDOW)
    rest = _dropped(rule, young_ms, first_ms, MAX if policy is CatchUp.ALL else why)
    return Catch(runs=runs, dropped=tuple(one for one in (old, rest) if one is not None))


def _dropped(rule: Rule, from_ms: int, until_ms: int, reason: str) -> Dropped | None:
    """Return the times in [from, until) as one, None if there are none."""
    if from_ms >= until_ms:
        return None
    first_ms, last_ms = rule.next_ms(from_ms - 1), rule.latest_before(until_ms)
    if first_ms is None or last_ms is None or not from_ms <= first_ms <= last_ms < until_ms:
        return None
    count = rule.count(from_ms - 1, until_ms - 1)
    return Dropped(first_ms=first_ms, last_ms=last_ms, count=count, reason=reason)
