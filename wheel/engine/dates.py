"""Which runs a schedule has on a date: asked of its rule, whether they were made or not.

A *label* is the date that a run is for: the calendar day of its nominal time in its schedule's own
zone, or the hour, or exactly that moment. Labels are text, and the same text means the same date
whatever the zones are: a nightly report in Rome waits for the nightly backup in New York.

A schedule without a rule has one run for each label on which it waits for anything, and its nominal
time is the latest of those that it waits for there. Asked for coarser or finer labels than its own,
such a run is where its nominal time is; where the labels nest, its own label decides. Exact labels
without a rule may only be waited for by exact labels (``refusal``): a day has too many of them.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

DAY_MS: Final = 86_400_000
APART_MS: Final = 2 * DAY_MS  # more than any two zones are apart: UTC-12 to UTC+14 is 26 h
HOUR_MS: Final = 3_600_000


class Date(StrEnum):
    """How fine the labels are by which a schedule waits."""

    DAY = "day"
    HOUR = "hour"
    EXACT = "exact"


class Rule(Protocol):
    """The nominal times of a schedule, whatever its START and END are."""

    def next_ms(self, after_ms: int, /) -> int | None:
        """Return the first nominal time behind after_ms; None: there is none."""
        ...

    def latest_before(self, ms: int, /) -> int | None:
        """Return the last nominal time before ms; None: there is none."""
        ...


class Zone(Protocol):
    """The labels of a zone."""

    def label(self, nominal_ms: int, date: Date) -> str:
        """Return the label of a moment."""
        ...

    def span(self, label: str, date: Date) -> tuple[int, int]:
        """Return the first moment that may have the label, and the first behind all that may."""
        ...


class Schedule(Protocol):
    """A schedule, as those see it that wait for it."""

    @property
    def name(self) -> str:
        """Its identity."""
        ...

    @property
    def after(self) -> tuple[str, ...]:
        """For whom it waits."""
        ...

    @property
    def date(self) -> Date:
        """By which labels it waits."""
        ...

    @property
    def rule(self) -> Rule | None:
        """None: it has none, and runs once for each label of those that it waits for."""
        ...

    @property
    def zone(self) -> Zone:
        """Where its labels are told."""
        ...

    @property
    def has_zone(self) -> bool:
        """Whether that zone is known: if not, nobody can tell which runs it has on a date."""
        ...

    @property
    def since_ms(self) -> int:
        """From when its rule, zone and DATE are in force; not before START."""
        ...

    @property
    def start_ms(self) -> int | None:
        """START: before it no run is made, not even by a backfill; None: none was said."""
        ...

    @property
    def until_ms(self) -> int | None:
        """From when on it has no runs: END, or what is behind the last of MAXRUNS; None: never."""
        ...

    @property
    def next_ms(self) -> int | None:
        """The first nominal time that is not decided yet, also while paused; None: no more come.

        Without a rule always None.
        """
        ...

    @property
    def paused(self) -> bool:
        """Nothing is decided until it is resumed."""
        ...


class Dates:
    """Answers from the rules of all schedules; remembers what stays true until one is edited."""

    def __init__(self, schedule: Callable[[str], Schedule | None]) -> None:
        self._schedule = schedule
        self._nominal: dict[tuple[str, str], int | None] = {}

    def __len__(self) -> int:
        return len(self._nominal)

    def forget(self) -> None:
        """A schedule was made, edited or deleted."""
        self._nominal.clear()

    def trim(self, most: int) -> None:
        """Forget all if more than ``most`` answers are remembered: every date adds one.

        Not in the middle of an answer: those of one graph are found from one another.
        """
        if len(self._nominal) > most:
            self._nominal.clear()

    def first_on(
        self, schedule: Schedule, label: str, date: Date, from_ms: int, until_ms: int
    ) -> int | None:
        """Return the first nominal time that a rule has on a label in [from, until)."""
        low_ms, high_ms = schedule.zone.span(label, date)
        high_ms = min(high_ms, until_ms)
        if schedule.until_ms is not None:
            high_ms = min(high_ms, schedule.until_ms)
        found = _next(schedule, max(low_ms, from_ms) - 1)
        while found is not None and found < high_ms:
            if schedule.zone.label(found, date) == label:
                return found
            found = _next(schedule, found)
        return None

    def last_on(self, schedule: Schedule, label: str, date: Date) -> int | None:
        """Return the last nominal time that a schedule has on a label, None: none."""
        if schedule.rule is None:
            return self._last_without_rule(schedule, label, date)
        low_ms, high_ms = schedule.zone.span(label, date)
        if schedule.until_ms is not None:
            high_ms = min(high_ms, schedule.until_ms)
        found = schedule.rule.latest_before(high_ms)
        while found is not None and found >= low_ms:
            if schedule.zone.label(found, date) == label:
                return found
            found = schedule.rule.latest_before(found)
        return None

    def _last_without_rule(self, schedule: Schedule, label: str, date: Date) -> int | None:
        found: list[int] = []
        for own in self.own_labels(schedule, label, date):
            nominal_ms = self.nominal(schedule, own)
            if nominal_ms is not None and label_of(schedule, nominal_ms, own, date) == label:
                found.append(nominal_ms)
        return max(found, default=None)

    def nominal(self, schedule: Schedule, own: str) -> int | None:
        """Return the nominal time of the one run that a schedule without a rule has on its label.

        None: nothing that it waits for has a run there.
        """
        key = schedule.name, own
        if key not in self._nominal:
            times = [self.last_on(up, own, schedule.date) for up in self.upstreams(schedule)]
            self._nominal[key] = max((ms for ms in times if ms is not None), default=None)
        found = self._nominal[key]
        over = found is None or (schedule.until_ms is not None and found >= schedule.until_ms)
        return None if over else found

    def own_labels(self, schedule: Schedule, label: str, date: Date) -> list[str]:
        """Return the labels of a schedule without a rule whose runs may stand on a label."""
        if date is schedule.date:
            return [label]
        if nests(schedule, date):
            return [f"{label}T{hour:02d}" for hour in range(24)]
        low_ms, high_ms = schedule.zone.span(label, date)
        # Every day has 12 hours in a row and every hour 30 minutes that are its own.
        step_ms = DAY_MS // 2 if schedule.date is Date.DAY else HOUR_MS // 2
        moments = range(low_ms - APART_MS, high_ms + APART_MS, step_ms)
        return list(dict.fromkeys(schedule.zone.label(ms, schedule.date) for ms in moments))

    def upstreams(self, schedule: Schedule) -> list[Schedule]:
        """Return those of its upstreams that are there."""
        found = map(self._schedule, schedule.after)
        return [up for up in found if up is not None]


def _next(schedule: Schedule, after_ms: int) -> int | None:
    return schedule.rule.next_ms(after_ms) if schedule.rule is not None else None


def nests(schedule: Schedule, date: Date) -> bool:
    """Return whether a label of date is made of whole labels of a schedule without a rule."""
    return date is schedule.date or (date is Date.DAY and schedule.date is Date.HOUR)


def label_of(schedule: Schedule, nominal_ms: int, own: str, date: Date) -> str:
    """Return the label of a run.

    Args:
        schedule: whose run it is.
        nominal_ms: its nominal time.
        own: the label that it was made for, if its schedule has no rule; else "".
        date: how fine a label is asked for.
    """
    if schedule.rule is None and own and nests(schedule, date):
        return own if date is schedule.date else own.partition("T")[0]
    return schedule.zone.label(nominal_ms, date)
