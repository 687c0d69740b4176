"""Whether a run may start: what the schedules that it waits for did on its date. Pure.

A run waits for each upstream's runs on the same label up to its own nominal time, or, if there is
none by then, for the first later one. The same facts give the same verdict, whenever asked: nothing
here is remembered, so a restart recomputes what the log has not.

What is not here: who is asked again when something changes (dependencies.py), which runs a rule has
(dates.py), overlap.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, Protocol

from wheel.engine.dates import APART_MS, Date, Dates, Schedule, label_of


class AfterRule(StrEnum):
    """What the runs of the upstreams must have come to."""

    ALL_SUCCESS = "all_success"
    ALL_DONE = "all_done"


class Phase(StrEnum):
    """Where a run stands, as those see it that wait for it."""

    PENDING = "pending"  # its time has not come, or nobody has decided on it yet
    RUNNING = "running"  # made and not ended: whether it was handed out or not
    HELD = "held"  # made, waits for its own upstreams
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"  # dropped by its overlap policy
    MISSED = "missed"  # dropped by its catch-up policy
    UPSTREAM_FAILED = "upstream_failed"  # waits for what can only be healed by a person
    NO_UPSTREAM = "no_upstream"  # the same


UNDECIDED: Final = frozenset({Phase.PENDING, Phase.RUNNING, Phase.HELD})
NOT_FAILED: Final = UNDECIDED | {Phase.SUCCEEDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFact:
    """A run that was made or dropped, or several dropped ones in a row.

    Attributes:
        first_ms: its nominal time; of several, the first one's.
        last_ms: of several, the last one's.
        phase: where its newest attempt stands. PENDING: a backfill is going to make it.
        cause: of UPSTREAM_FAILED, why: the phase of the run at the root.
        by_hand: somebody reran it or marked it, so it counts though the rule lacks its time.
        label: the one that a run without a rule was made for; "" = its nominal time tells.
        held: it can still start: UPSTREAM_FAILED and NO_UPSTREAM are also how a held run may end.
    """

    first_ms: int
    last_ms: int
    phase: Phase
    cause: str = ""
    by_hand: bool = False
    label: str = ""
    held: bool = False

    @property
    def is_over(self) -> bool:
        """Nothing of it is under way or still to come."""
        return not self.held and self.phase not in UNDECIDED


class Waiting(Schedule, Protocol):
    """A schedule, with what it demands of those that it waits for."""

    @property
    def after_rule(self) -> AfterRule:
        """What their runs must have come to."""
        ...

    @property
    def planned_ms(self) -> int | None:
        """The first nominal time that a backfill is still to make; None: there is none."""
        ...


class Facts(Protocol):
    """What is known of schedules and their runs."""

    def schedule(self, name: str) -> Waiting | None:
        """Return a schedule, None if there is none of that name."""
        ...

    def runs(self, name: str, from_ms: int, until_ms: int) -> Iterable[RunFact]:
        """Return the runs with a nominal time in [from, until), those by TRIGGER left out.

        Runs that succeeded may be missing: a time of the rule that is decided and has no run here
        is one that succeeded and was trimmed.
        """
        ...


class State(Enum):
    """What a verdict says."""

    RELEASE = "release"
    WAITING = "waiting"
    UPSTREAM_FAILED = "upstream_failed"
    NO_UPSTREAM = "no_upstream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a run may start, and if not, what holds it.

    Attributes:
        state: all but RELEASE hold the run.
        upstream: the schedule that holds it.
        nominal_ms: that schedule's run, None with NO_UPSTREAM.
        reason: WAITING: ``pending``, ``paused``, ``running`` or ``held``. UPSTREAM_FAILED: how the
            run at the root of it ended. NO_UPSTREAM: ``none`` on that date, or ``deleted``.
    """

    state: State
    upstream: str = ""
    nominal_ms: int | None = None
    reason: str = ""

    @property
    def is_stuck(self) -> bool:
        """Only a person can help: nothing that is still to come releases the run."""
        return self.state in {State.UPSTREAM_FAILED, State.NO_UPSTREAM}

    @property
    def phase(self) -> Phase:
        """The held run's phase."""
        return _HELD_PHASE[self.state]


RELEASE: Final = Verdict(state=State.RELEASE)
_HELD_PHASE: Final = {
    State.RELEASE: Phase.RUNNING,
    State.WAITING: Phase.HELD,
    State.UPSTREAM_FAILED: Phase.UPSTREAM_FAILED,
    State.NO_UPSTREAM: Phase.NO_UPSTREAM,
}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Seen:
    """One run of an upstream on the label."""

    nominal_ms: int
    phase: Phase
    cause: str = ""


class Judge:
    """Verdicts over facts that do not change while it is used."""

    def __init__(self, facts: Facts, dates: Dates) -> None:
        self._facts = facts
        self._dates = dates
        self._pending: dict[tuple[str, str, Date], int | None] = {}

    def verdict(self, schedule: Waiting, nominal_ms: int, own: str = "") -> Verdict:
        """Return whether a run may start.

        The first upstream for which only a person can help is named, else the first to wait for.

        Args:
            schedule: whose run it is.
            nominal_ms: its nominal time.
            own: the label that it was made for, if its schedule has no rule.
        """
        label = label_of(schedule, nominal_ms, own, schedule.date)
        waiting = RELEASE
        for name in schedule.after:
            upstream = self._facts.schedule(name)
            if upstream is None:
                return Verdict(state=State.NO_UPSTREAM, upstream=name, reason="deleted")
            if not upstream.has_zone:  # it is paused for that
                waiting = Verdict(state=State.WAITING, upstream=name, reason="paused")
                continue
            needed = self.needed(upstream, nominal_ms, label, schedule.date)
            one = _of_one(upstream, needed, schedule.after_rule)
            if one.is_stuck:
                return one
            if waiting is RELEASE:
                waiting = one
        return waiting

    def needed(self, upstream: Schedule, nominal_ms: int, label: str, date: Date) -> list[Seen]:
        """Return what a run waits for of one upstream, in the order of time.

        Of times that are still to come only the first is given, and of runs that were dropped in a
        row, or that succeeded and are gone from the history.
        """
        seen = sorted(self.seen(upstream, label, date), key=lambda run: run.nominal_ms)
        upto = [run for run in seen if run.nominal_ms <= nominal_ms]
        return upto or seen[:1]

    def seen(self, upstream: Schedule, label: str, date: Date) -> Iterator[Seen]:
        """Yield a schedule's runs on a label, as ``needed`` gives them."""
        if upstream.rule is None:
            return self._by_label(upstream, label, date)
        return self._by_time(upstream, label, date)

    def pending(self, schedule: Schedule, label: str, date: Date) -> int | None:
        """Return a schedule's first nominal time on a label that is still to be decided."""
        if schedule.rule is not None:
            return self._pending_by_rule(schedule, label, date)
        key = schedule.name, label, date
        if key not in self._pending:
            runs = self._by_label(schedule, label, date)
            self._pending[key] = next(
                (run.nominal_ms for run in runs if run.phase is Phase.PENDING), None
            )
        return self._pending[key]

    def _pending_by_rule(self, schedule: Schedule, label: str, date: Date) -> int | None:
        low_ms, high_ms = schedule.zone.span(label, date)
        made: set[int] = set()
        times: list[int] = []
        for fact in self._facts.runs(schedule.name, low_ms, high_ms):
            if fact.phase is not Phase.PENDING:
                made.add(fact.first_ms)  # or marked before its time
            elif schedule.zone.label(fact.first_ms, date) == label:
                times.append(fact.first_ms)
        if schedule.next_ms is not None:
            to_come = (schedule.next_ms, high_ms)
            found = self._first_new(schedule, label, date, to_come, made)
            times += [] if found is None else [found]
        return min(times, default=None)

    def _by_time(self, upstream: Schedule, label: str, date: Date) -> Iterator[Seen]:
        """Yield the runs of a rule."""
        low_ms, high_ms = upstream.zone.span(label, date)
        # Single ones first: one that was rerun or marked stands before the row it was dropped in.
        facts = sorted(
            self._facts.runs(upstream.name, low_ms, high_ms),
            key=lambda fact: fact.last_ms - fact.first_ms,
        )
        known: set[int] = set()
        for fact in facts:
            if _is_like_gone(fact, upstream):
                continue
            if fact.by_hand and upstream.zone.label(fact.first_ms, date) == label:
                found: int | None = fact.first_ms
            else:
                found = self._first_new(
                    upstream, label, date, (fact.first_ms, fact.last_ms + 1), known
                )
            if found is not None:
                known.add(found)
                yield Seen(nominal_ms=found, phase=fact.phase, cause=fact.cause)
        pending = self.pending(upstream, label, date)
        if pending is not None and pending not in known:
            yield Seen(nominal_ms=pending, phase=Phase.PENDING)
        decided_until_ms = high_ms if pending is None else pending
        found = self._gone(upstream, label, date, decided_until_ms, facts)
        if found is not None:
            yield Seen(nominal_ms=found, phase=Phase.SUCCEEDED)

    def _gone(
        self, upstream: Schedule, label: str, date: Date, until_ms: int, facts: Iterable[RunFact]
    ) -> int | None:
        """Return the first time of a rule on a label of which no fact says that it did not succeed.

        It is decided, and its run succeeded, whether that is still in the history or not.
        """
        single = {
            fact.first_ms
            for fact in facts
            if fact.first_ms == fact.last_ms and not _is_like_gone(fact, upstream)
        }
        rows = [(fact.first_ms, fact.last_ms) for fact in facts if fact.first_ms < fact.last_ms]
        from_ms = upstream.since_ms
        while True:
            found = self._first_new(upstream, label, date, (from_ms, until_ms), single)
            if found is None:
                return None
            ends = [last_ms for first_ms, last_ms in rows if first_ms <= found <= last_ms]
            if not ends:
                return found
            from_ms = max(ends) + 1

    def _first_new(
        self, upstream: Schedule, label: str, date: Date, between: tuple[int, int], known: set[int]
    ) -> int | None:
        """Return the first time that a rule has on a label in [from, until), but for these."""
        found = self._dates.first_on(upstream, label, date, *between)
        while found in known:
            found = self._dates.first_on(upstream, label, date, found + 1, between[1])
        return found

    def _by_label(self, upstream: Schedule, label: str, date: Date) -> Iterator[Seen]:
        """Yield the runs of a schedule without a rule."""
        low_ms, high_ms = upstream.zone.span(label, date)
        facts = self._facts.runs(upstream.name, low_ms - APART_MS, high_ms + APART_MS)
        made = {fact.label: fact for fact in facts}
        for own in self._dates.own_labels(upstream, label, date):
            fact = made.get(own)
            if fact is None:
                seen = self._not_made(upstream, own)
            else:
                seen = Seen(nominal_ms=fact.first_ms, phase=fact.phase, cause=fact.cause)
            if seen and label_of(upstream, seen.nominal_ms, own, date) == label:
                yield seen

    def _not_made(self, upstream: Schedule, own: str) -> Seen | None:
        """Return the run that a schedule without a rule has on its own label, if it has one."""
        nominal_ms = self._dates.nominal(upstream, own)
        if nominal_ms is None:
            return None
        if self._will_fire(upstream, own):
            return Seen(nominal_ms=nominal_ms, phase=Phase.PENDING)
        if nominal_ms < upstream.since_ms:
            return None
        # Without a run on a date that is over it either succeeded and is gone from the history, or
        # it was never called for.
        called = [
            run
            for up in self._dates.upstreams(upstream)
            for run in self.seen(up, own, upstream.date)
            if run.phase is not Phase.MISSED
        ]
        phase = Phase.SUCCEEDED if called else Phase.MISSED
        return Seen(nominal_ms=nominal_ms, phase=phase)

    def _will_fire(self, schedule: Schedule, own: str) -> bool:
        """Return whether something that a schedule without a rule waits for is still to come."""
        upstreams = self._dates.upstreams(schedule)
        return any(self.pending(up, own, schedule.date) is not None for up in upstreams)


def _is_like_gone(fact: RunFact, upstream: Schedule) -> bool:
    """Return whether a fact says no more than its absence would."""
    is_plain = fact.phase is Phase.SUCCEEDED and not fact.by_hand
    return is_plain and fact.first_ms >= upstream.since_ms


def _of_one(upstream: Schedule, needed: list[Seen], rule: AfterRule) -> Verdict:
    """Return what the runs of one upstream say."""
    if not needed:
        return Verdict(state=State.NO_UPSTREAM, upstream=upstream.name, reason="none")
    failed = next((run for run in needed if run.phase not in NOT_FAILED), None)
    if failed is not None and rule is AfterRule.ALL_SUCCESS:
        reason = failed.cause if failed.phase is Phase.UPSTREAM_FAILED else failed.phase.value
        return Verdict(
            state=State.UPSTREAM_FAILED,
            upstream=upstream.name,
            nominal_ms=failed.nominal_ms,
            reason=reason,
        )
    waiting = next((run for run in needed if run.phase in UNDECIDED), None)
    if waiting is None:
        return RELEASE
    paused = waiting.phase is Phase.PENDING and upstream.paused
    return Verdict(
        state=State.WAITING,
        upstream=upstream.name,
        nominal_ms=waiting.nominal_ms,
        reason="paused" if paused else waiting.phase.value,
    )


def refusal(schedule: Schedule, upstreams: Iterable[Schedule]) -> str | None:
    """Return why a schedule cannot wait for others by its DATE, None if it can.

    Args:
        schedule: who waits.
        upstreams: for whom.
    """
    if schedule.date is Date.EXACT:
        return None
    for up in upstreams:
        if up.rule is None and up.date is Date.EXACT:
            return (
                f"{schedule.name!r} waits by DATE {schedule.date} for {up.name!r}, which has no "
                f"rule and DATE exact: give {up.name!r} a rule, or both the same DATE"
            )
    return None
