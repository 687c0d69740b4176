"""Which runs CRON RERUN makes anew: those of a date, and those further down that asked for them.

A run is made anew if it is over, however it ended. One that is under way or held is left alone: it
sees by itself that what it waits for runs again. A date on which nothing ran, though the rule has
times there, gets those times; a date on which the rule has none, one run at its first moment, or
nobody could heal what waits for it there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from wheel.engine.dag import UNDECIDED, Facts, Judge, Phase
from wheel.engine.dates import APART_MS, Date, Dates, Schedule, label_of
from wheel.errors import Conflict, InvalidRequest, LimitError
from wheel.graph import Graph

RERUNS_MAX: Final = 1000  # that one command makes


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A run to be made anew.

    Attributes:
        name: its schedule.
        nominal_ms: its nominal time.
        own: the label that it was made for, if its schedule has no rule; else "".
    """

    name: str
    nominal_ms: int
    own: str = ""


class Reruns:
    """What one RERUN makes, over facts that do not change meanwhile."""

    def __init__(self, graph: Graph, facts: Facts, dates: Dates) -> None:
        self._graph = graph
        self._facts = facts
        self._dates = dates
        self._judge = Judge(facts, dates)

    def targets(self, name: str, label: str, date: Date, *, downstream: bool) -> list[Target]:
        """Return the runs to make, none before one that it waits for.

        Args:
            name: the schedule.
            label: the date.
            date: how fine it is.
            downstream: also the runs that ask for these, directly or not.

        Raises:
            KeyError: there is no schedule of that name.
            Conflict: its runs there are under way or still to come.
            InvalidRequest: its zone has no such date.
            LimitError: more than one command may make.
        """
        schedule = self._facts.schedule(name)
        if schedule is None:
            raise KeyError(name)
        found = self._of_one(schedule, label, date) or self._never_run(schedule, label, date)
        _limit(found)
        if not downstream:
            return found
        # By schedule: the labels, as fine as it waits by, on which something runs anew.
        labels: dict[str, set[str]] = {}
        self._spread(schedule, found, labels)
        for below in self._graph.downstream([name]):
            waiting = self._facts.schedule(below)
            if waiting is None:
                continue
            here: dict[int, Target] = {}
            for one in sorted(labels.get(below, ())):
                here |= {run.nominal_ms: run for run in self._of_one(waiting, one, waiting.date)}
            targets = [here[ms] for ms in sorted(here)]
            self._spread(waiting, targets, labels)
            found += targets
            _limit(found)
        return found

    def _spread(
        self, schedule: Schedule, targets: list[Target], labels: dict[str, set[str]]
    ) -> None:
        for below in self._graph.waiting(schedule.name):
            waiting = self._facts.schedule(below)
            if waiting is not None:
                reached = {
                    label_of(schedule, run.nominal_ms, run.own, waiting.date) for run in targets
                }
                labels.setdefault(below, set()).update(reached)

    def _of_one(self, schedule: Schedule, label: str, date: Date) -> list[Target]:
        """Return a schedule's runs on a label that are over."""
        runs = self._without_rule if schedule.rule is None else self._by_rule
        found: list[Target] = []
        for run in runs(schedule, label, date):
            found.append(run)
            _limit(found)
        return sorted(found, key=lambda run: run.nominal_ms)

    def _by_rule(self, schedule: Schedule, label: str, date: Date) -> Iterator[Target]:
        low_ms, high_ms = schedule.zone.span(label, date)
        facts = list(self._facts.runs(schedule.name, low_ms, high_ms))
        single = {fact.first_ms: fact for fact in facts if fact.first_ms == fact.last_ms}
        for at_ms, fact in single.items():
            if fact.is_over and schedule.zone.label(at_ms, date) == label:
                yield Target(name=schedule.name, nominal_ms=at_ms)
        until_ms = high_ms if schedule.next_ms is None else schedule.next_ms
        spans = [(fact.first_ms, fact.last_ms + 1) for fact in facts] + [
            (schedule.since_ms, until_ms)
        ]
        given = set(single)
        for from_ms, behind_ms in spans:
            ms = self._dates.first_on(schedule, label, date, from_ms, behind_ms)
            while ms is not None:
                if ms not in given:
                    given.add(ms)
                    yield Target(name=schedule.name, nominal_ms=ms)
                ms = self._dates.first_on(schedule, label, date, ms + 1, behind_ms)

    def _without_rule(self, schedule: Schedule, label: str, date: Date) -> Iterator[Target]:
        low_ms, high_ms = schedule.zone.span(label, date)
        facts = self._facts.runs(schedule.name, low_ms - APART_MS, high_ms + APART_MS)
        live = {fact.label for fact in facts if not fact.is_over}
        for own in self._dates.own_labels(schedule, label, date):
            if own in live:
                continue
            for run in self._judge.seen(schedule, own, schedule.date):
                if run.phase in UNDECIDED:
                    continue
                if label_of(schedule, run.nominal_ms, own, date) == label:
                    yield Target(name=schedule.name, nominal_ms=run.nominal_ms, own=own)

    def _never_run(self, schedule: Schedule, label: str, date: Date) -> list[Target]:
        """Return what to make on a label where no run is over.

        Raises:
            Conflict: because one is under way or still to come.
            InvalidRequest: because the schedule's zone leaves the label out.
        """
        seen = next(iter(self._judge.seen(schedule, label, date)), None)
        if seen is not None:
            if seen.phase is Phase.PENDING:
                what, advice = "still to come", "wait for it, or TRIGGER one"
            else:
                what, advice = "not over yet", "wait for its end, or MARK or CANCEL it"
            raise Conflict(
                f"the run of {schedule.name!r} on {label} is {what}, and only runs that are over "
                f"are made anew; {advice}"
            )
        low_ms, high_ms = schedule.zone.span(label, date)
        own = label if date is schedule.date else schedule.zone.label(low_ms, schedule.date)
        nominal_ms = self._dates.nominal(schedule, own) if schedule.rule is None else None
        if low_ms == high_ms and nominal_ms is None:
            raise InvalidRequest(
                f"{schedule.name!r} has no {label}: the clocks of its zone leave that out; "
                "write another date"
            )
        if schedule.rule is None:
            return [
                Target(
                    name=schedule.name,
                    nominal_ms=low_ms if nominal_ms is None else nominal_ms,
                    own=own,
                )
            ]
        found: list[Target] = []
        ms: int | None = self._dates.first_on(schedule, label, date, low_ms, high_ms)
        while ms is not None and len(found) <= RERUNS_MAX:
            found.append(Target(name=schedule.name, nominal_ms=ms))
            ms = self._dates.first_on(schedule, label, date, ms + 1, high_ms)
        return found or [Target(name=schedule.name, nominal_ms=low_ms)]


def own_label(facts: Facts, dates: Dates, schedule: Schedule, nominal_ms: int) -> str:
    """Return the label of the run that a schedule without a rule has at a nominal time.

    One that was made knows its label; else the label is asked for whose run would stand there.
    """
    for fact in facts.runs(schedule.name, nominal_ms, nominal_ms + 1):
        if fact.label:
            return fact.label
    moment = schedule.zone.label(nominal_ms, Date.EXACT)
    if schedule.date is not Date.EXACT:
        for own in dates.own_labels(schedule, moment, Date.EXACT):
            if dates.nominal(schedule, own) == nominal_ms:
                return own
    return schedule.zone.label(nominal_ms, schedule.date)


def _limit(found: list[Target]) -> None:
    if len(found) > RERUNS_MAX:
        raise LimitError(
            f"this makes more than {RERUNS_MAX} runs, as many are allowed in one command: name an "
            f"hour instead of a day, or rerun the schedules one by one"
        )
