"""Which missed times are made up for. Pure.

Missed is what passed while nobody could decide: the server was down, the schedule paused, or a step
of the clock or a suspend jumped over it. How many were missed changes nothing else: no number of
them disables a schedule.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from wheel.engine.definition import CatchUp, Settings


class Rule(Protocol):
    """What is asked of a compiled rule."""

    def next_ms(self, after_ms: int) -> int | None:
        """Return the first time after this one."""
        ...

    def latest_before(self, before_ms: int) -> int | None:
        """Return the last time before this one."""
        ...

    def newest(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """Return the last times in (after, until], oldest first."""
        ...

    def count(self, after_ms: int, until_ms: int) -> int:
        """Return how many times are in (after, until]."""
        ...


@dataclass(frozen=True, slots=True)
class Gap:
    """Times in a row that no run is made for."""

    first_ms: int
    last_ms: int
    count: int
    reason: str


class Picked(NamedTuple):
    """What becomes of missed times.

    Attributes:
        gaps: what is dropped, the oldest first.
        first_ms: the first time that is kept; None = none is.
        last_ms: the last missed time; those from ``first_ms`` on are kept.
    """

    gaps: list[Gap]
    first_ms: int | None
    last_ms: int


def pick(
    settings: Settings,
    rule: Rule,
    *,
    first_ms: int,
    last_ms: int,
    now_ms: int,
    reason: str,
) -> Picked:
    """Return which of a rule's times are made up for.

    Args:
        settings: with policy, window and cap.
        rule: whose times they are.
        first_ms: the first missed one.
        last_ms: and the last.
        now_ms: on the rule's axis.
        reason: why they were missed.
    """
    kept_ms = _kept(settings, rule, first_ms, last_ms, now_ms)
    begin_ms = first_ms if settings.window_ms is None else now_ms - settings.window_ms
    gaps: list[Gap] = []
    end_ms = last_ms + 1 if kept_ms is None else kept_ms
    if settings.catch_up is CatchUp.SKIP:
        gaps += _gap(rule, first_ms, end_ms, reason)
    elif settings.catch_up is CatchUp.LATEST:
        gaps += _gap(rule, first_ms, end_ms, "window" if kept_ms is None else reason)
    else:
        gaps += _gap(rule, first_ms, min(begin_ms, end_ms), "window")
        gaps += _gap(rule, max(first_ms, begin_ms), end_ms, "limit")
    return Picked(gaps, kept_ms, last_ms)


def _kept(settings: Settings, rule: Rule, first_ms: int, last_ms: int, now_ms: int) -> int | None:
    """Return the first time that is made up for; all behind it are too."""
    if settings.catch_up is CatchUp.SKIP:
        return None
    if settings.window_ms is not None:
        first_ms = max(first_ms, now_ms - settings.window_ms)
    if last_ms < first_ms:
        return None
    if settings.catch_up is CatchUp.LATEST:
        return last_ms
    found = rule.newest(first_ms - 1, last_ms, settings.catch_up_max)
    return found[0] if found else None


def _gap(rule: Rule, from_ms: int, until_ms: int, reason: str) -> Iterator[Gap]:
    """Yield the rule's times in [from, until) as a gap, if there are any."""
    if until_ms <= from_ms:
        return
    first_ms = rule.next_ms(from_ms - 1)
    last_ms = rule.latest_before(until_ms)
    if first_ms is None or last_ms is None or last_ms < first_ms:
        return
    yield Gap(first_ms, last_ms, rule.count(first_ms - 1, last_ms), reason)


def last_missed(
    rule: Rule, *, first_ms: int, until_ms: int, due_ms: Callable[[int], int]
) -> int | None:
    """Return the last time from ``first_ms`` on that was due up to ``until_ms``; None: none was.

    Args:
        rule: whose times they are.
        first_ms: the first that is not decided.
        until_ms: the end of what was missed.
        due_ms: when a nominal time is due; at most a period behind it.
    """
    found = rule.latest_before(until_ms + 1)
    while found is not None and found >= first_ms and due_ms(found) > until_ms:
        found = rule.latest_before(found)
    return None if found is None or found < first_ms else found
