"""Runs: their ids, where a live one stands, and how a finished one is kept.

A run id is the schedule's name, ``@``, the nominal time, and what tells apart runs of one nominal
time: ``!n`` for the n-th run that was triggered by hand, ``~k`` for the k-th repeat.
"""

import functools
import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from wheel.zones import exact

_ID: Final = re.compile(
    r"(?s)(?P<name>.+)@(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?Z)"
    r"(?P<tag>(?:![1-9]\d{0,9})?(?:~[1-9]\d{0,9})?)"
)
# Moments whose texts are remembered: many schedules have the same ones at the same time, and nobody
# has them later. Each cache of them grows to about 110 kB.
MOMENTS_MAX: Final = 512


@functools.lru_cache(maxsize=MOMENTS_MAX)
def time_text(nominal_ms: int) -> str:
    """Return a nominal time as run ids write it."""
    return exact(nominal_ms)


def run_id(name: str, nominal_ms: int, tag: str = "") -> str:
    """Return the id of a run."""
    return f"{name}@{time_text(nominal_ms)}{tag}"


class RunName(NamedTuple):
    """A run id in parts."""

    name: str
    nominal_ms: int
    tag: str


def parse_run_id(text: str) -> RunName:
    """Return a run id in parts.

    Raises:
        ValueError: it is none.
    """
    match = _ID.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a run id such as name@2026-11-01T06:00:00Z")
    return RunName(match["name"], _time_ms(match["time"]), match["tag"])


@functools.lru_cache(maxsize=MOMENTS_MAX)
def _time_ms(text: str) -> int:
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415

    since = datetime.fromisoformat(text) - datetime.fromtimestamp(0, UTC)
    return round(since / timedelta(milliseconds=1))


class Owner(NamedTuple):
    """What a run's job was made with."""

    name: str
    nominal_ms: int
    tag: str
    label: str


def parse_owner(data: bytes) -> Owner:
    """Return what a job was made with.

    Raises:
        ValueError: no run owns it.
    """
    run, _, rest = data.decode(errors="replace").partition("\n")
    _, _, label = rest.partition("\n")
    return Owner(*parse_run_id(run), label)


def tag_parts(tag: str) -> tuple[int, int]:
    """Return the n of ``!n`` and the k of ``~k``; 0 = has none."""
    manual, _, repeat = tag.partition("~")
    return int(manual[1:] or 0), int(repeat or 0)


class Stands(IntEnum):
    """Where a live run stands."""

    ACTIVE = 0  # in the queue or handed out
    WAITING = 1  # behind another run of its schedule
    HELD = 2  # for upstreams


class Run:
    """A run that has not ended.

    Attributes:
        name: its schedule's.
        nominal_ms: on the schedule's axis.
        tag: see the head of this file.
        due_ms: nominal and jitter.
        label: the date that it is for.
        job_id: 0 until it was submitted.
        stands: see Stands.
        alone: neither judged by OVERLAP nor counted: FORCE, or a backfill's.
    """

    __slots__ = (
        "alone", "due_ms", "job_id", "label", "name", "nominal_ms", "stands", "tag",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        nominal_ms: int,
        tag: str,
        due_ms: int,
        label: str,
        *,
        stands: Stands = Stands.ACTIVE,
        alone: bool = False,
        job_id: int = 0,
    ) -> None:
        self.name = name
        self.nominal_ms = nominal_ms
        self.tag = tag
        self.due_ms = due_ms
        self.label = label
        self.job_id = job_id
        self.stands = stands
        self.alone = alone

    @property
    def key(self) -> tuple[int, str]:
        """What tells it apart from others of its schedule."""
        return self.nominal_ms, self.tag

    @property
    def id(self) -> str:
        """Its run id."""
        return run_id(self.name, self.nominal_ms, self.tag)

    @property
    def owner(self) -> bytes:
        """What its job is made with: run id, nominal time, and the date that it is for."""
        nominal_ms = self.nominal_ms
        return f"{self.name}@{time_text(nominal_ms)}{self.tag}\n{nominal_ms}\n{self.label}".encode()

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.stands.name}>"


class Outcome(StrEnum):
    """What became of a run, or several that were dropped in a row."""

    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"  # by its overlap policy
    MISSED = "missed"  # by its catch-up policy
    UPSTREAM_FAILED = "upstream_failed"
    NO_UPSTREAM = "no_upstream"


OUTCOMES: Final = tuple(Outcome)
DROPPED: Final = frozenset({Outcome.SKIPPED, Outcome.MISSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run that ended or was dropped.

    Attributes:
        outcome: what became of it.
        reason: why; of dropped ones overlap, queue_full, down, paused, step, window, limit.
        first_ms: nominal time; of several the first one's.
        last_ms: and the last one's.
        count: how many it stands for.
        tag: of its run id.
        label: the date that it was for; of several the last one's.
        due_ms: when it was due, on the schedule's axis.
        started_ms: wall, when its last attempt began; 0 = never.
        ended_ms: wall, when it ended or was dropped.
        failures: of its attempts.
        lost: leases.
        job_id: 0 = no job was made.
        text: its error or result.
        by_hand: the outcome was set by a person.
        note: by that person.
        actor: who that was.
    """

    outcome: Outcome
    reason: str = ""
    first_ms: int
    last_ms: int
    count: int = 1
    tag: str = ""
    label: str = ""
    due_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    failures: int = 0
    lost: int = 0
    job_id: int = 0
    text: bytes = b""
    by_hand: bool = False
    note: str = ""
    actor: str = ""
