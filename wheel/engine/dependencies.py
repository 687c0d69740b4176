"""Runs that are held for upstreams: who is judged anew when something changes.

Whoever changes a fact says so with ``note``: a run was made, ended, dropped, rerun or marked; a
schedule was made, edited, paused, resumed or deleted. ``settle`` then judges anew the held runs
that wait for it, and those that wait for these, none before what it waits for. What it gives back
goes into one batch with the rest of what the change caused.

Nothing here is logged: after a replay the held runs are told with ``hold``, every change is noted,
and the same verdicts come from the same facts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Final

from wheel.engine.dag import Facts, Judge, Phase, RunFact, State, Verdict, Waiting
from wheel.engine.dates import APART_MS, DAY_MS, Dates, label_of
from wheel.graph import Graph

HELD_MAX: Final = 1000  # runs of one schedule that wait for upstreams

UNJUDGED: Final = Verdict(state=State.WAITING)  # of a run that is still to be judged

# Labels whose runs may have changed; None: any label.
_Labels = set[str] | None
# What is left to be judged.
Unsettled = tuple[dict[str, set[str] | None], dict[str, list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRun:
    """A run that waits for upstreams.

    Attributes:
        name: its schedule.
        nominal_ms: its nominal time.
        own: the label that it was made for, if its schedule has no rule; else "".
        verdict: what was last said.
    """

    name: str
    nominal_ms: int
    own: str = ""
    verdict: Verdict = UNJUDGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """A run to be made of a schedule without a rule."""

    name: str
    nominal_ms: int
    own: str


class Dependencies:
    """The held runs of all schedules.

    Invariant: once it ``is_settled``, every held run's verdict is what the facts say. Until then a
    held run may still wait that could go; but who asks for a verdict while one above may change
    is told to wait (``verdict``), so none goes that must wait.
    """

    def __init__(self, graph: Graph, facts: Facts, dates: Dates) -> None:
        self._graph = graph
        self._facts = facts
        self._dates = dates
        self._held: dict[str, dict[int, HeldRun]] = {}
        self._todo: dict[str, _Labels] = {}  # dependants to judge anew
        self._left: dict[str, list[int]] = {}  # of these: nominal times, the newest first

    # ---------------------------------------------------------------- held runs

    def verdict(self, name: str, nominal_ms: int, own: str = "") -> Verdict:
        """Return whether a run may start, from the facts as they are.

        UNJUDGED while held runs above it are left to be judged: its turn is then behind them, so
        who holds it has it judged by ``judge_later``.

        Raises:
            KeyError: there is no schedule of that name.
        """
        schedule = self._facts.schedule(name)
        if schedule is None:
            raise KeyError(name)
        level = self._graph.level(name)
        if any(self._graph.level(left) < level for left in self._todo.keys() | self._left.keys()):
            return UNJUDGED
        return Judge(self._facts, self._dates).verdict(schedule, nominal_ms, own)

    def hold(self, run: HeldRun) -> None:
        """Keep a run until its upstreams are done."""
        self._held.setdefault(run.name, {})[run.nominal_ms] = run

    def judge_later(self, run: HeldRun) -> None:
        """Keep a run that the next ``settle`` judges.

        For one without a rule: others that its upstreams call for may not be made yet, and would
        pass for runs that succeeded and are gone.
        """
        self.hold(run)
        schedule = self._facts.schedule(run.name)
        self._add(run.name, None if schedule is None else {_label(schedule, run)})

    def let_all_go(self, name: str) -> dict[int, HeldRun]:
        """Forget all held runs of a schedule; return them, for ``hold``."""
        return self._held.pop(name, {})

    def let_go(self, name: str, nominal_ms: int) -> None:
        """Forget a run: it was released, ended or dropped."""
        runs = self._held.get(name, {})
        runs.pop(nominal_ms, None)
        if not runs:
            self._held.pop(name, None)

    def held(self, name: str) -> list[HeldRun]:
        """Return a schedule's held runs, oldest first."""
        return sorted(self._held.get(name, {}).values(), key=lambda run: run.nominal_ms)

    def held_run(self, name: str, nominal_ms: int) -> HeldRun | None:
        """Return one held run."""
        return self._held.get(name, {}).get(nominal_ms)

    def surplus(self, name: str) -> HeldRun | None:
        """Return the run that must make room when a schedule holds too many, None if it does not.

        The oldest that only a person can help, else the oldest.
        """
        runs = self.held(name)
        if len(runs) <= HELD_MAX:
            return None
        stuck = (run for run in runs if run.verdict.is_stuck)
        return next(stuck, runs[0])

    # ---------------------------------------------------------------- changes

    def note(self, name: str, run: HeldRun | RunFact | None = None) -> None:
        """Note a change of a schedule, or of one of its runs.

        Args:
            name: the schedule; may be gone.
            run: what was made, ended, dropped or marked; None: the schedule itself.
        """
        if run is None:
            self._dates.forget()
            self._add(name, None)
            self._spread(name, None)
        elif isinstance(run, HeldRun):
            self._spread(name, {(run.nominal_ms, run.own)})
        elif run.first_ms == run.last_ms:
            self._spread(name, {(run.first_ms, run.label)})
        else:
            self._spread(name, None)

    @property
    def is_settled(self) -> bool:
        """Nothing is left to be judged of the changes that were noted."""
        return not self._todo and not self._left

    def settle(self, is_over: Callable[[], bool] = lambda: False) -> list[tuple[HeldRun, Verdict]]:
        """Judge anew what changes may have reached; at least one run, if any is left.

        Args:
            is_over: asked after each run; what is left then is for the next call.

        Returns:
            Held runs whose verdict is another now, each with the one before; none comes before what
            it waits for.
        """
        judge = Judge(self._facts, self._dates)
        changed: list[tuple[HeldRun, Verdict]] = []
        heap: list[tuple[int, str]] = []
        queued: set[str] = set()
        while True:
            for name in (self._todo.keys() | self._left.keys()) - queued:
                queued.add(name)
                heappush(heap, (self._graph.level(name), name))
            if not heap:
                return changed
            name = heappop(heap)[1]
            queued.discard(name)
            if name in self._todo:
                self._gather(name, self._todo.pop(name))
            if not self._judge_left(judge, name, changed, is_over):
                return changed

    def _gather(self, name: str, labels: _Labels) -> None:
        """Have one schedule's held runs on these labels judged."""
        schedule = self._facts.schedule(name)
        if schedule is None:
            self._left.pop(name, None)
            return
        if schedule.rule is None:
            self._spread_unmade(schedule, labels)
        left = set(self._left.get(name, ()))
        held = self._held.get(name, {})
        left.update(held if labels is None else _on(schedule, held, labels))
        if left:
            self._left[name] = sorted(left, reverse=True)

    def _judge_left(
        self,
        judge: Judge,
        name: str,
        changed: list[tuple[HeldRun, Verdict]],
        is_over: Callable[[], bool],
    ) -> bool:
        """Judge what is left of one schedule's held runs, the oldest first; False: it is over."""
        schedule = self._facts.schedule(name)
        left = self._left.get(name, [])
        while left:
            run = self.held_run(name, left.pop())
            if not left:
                del self._left[name]
            if schedule is None or run is None:
                continue
            verdict = judge.verdict(schedule, run.nominal_ms, run.own)
            if verdict != run.verdict:
                now = replace(run, verdict=verdict)
                self.hold(now)
                changed.append((now, run.verdict))
                self._spread(name, {(run.nominal_ms, run.own)})
            if is_over():
                return False
        return True

    def unsettled(self) -> Unsettled:
        """Return what is left to be judged, for ``take_back``."""
        return dict(self._todo), {name: list(left) for name, left in self._left.items()}

    def take_back(self, unsettled: Unsettled) -> None:
        """Judge all that anew which was left then: what came of it since was undone."""
        self._todo, self._left = unsettled

    def _spread_unmade(self, schedule: Waiting, labels: _Labels) -> None:
        """A run that a schedule without a rule has not made yet stands and falls with others."""
        if labels is None:
            self._spread(schedule.name, None)
            return
        times = {(self._dates.nominal(schedule, own), own) for own in labels}
        self._spread(schedule.name, {(ms, own) for ms, own in times if ms is not None})

    def _spread(self, name: str, moments: set[tuple[int, str]] | None) -> None:
        """Have those judged anew that wait for runs of a schedule; None: for any."""
        upstream = self._facts.schedule(name)
        for waiting in self._graph.waiting(name):
            schedule = self._facts.schedule(waiting)
            if schedule is None or (waiting not in self._held and schedule.rule is not None):
                continue
            if moments is None or upstream is None:
                self._add(waiting, None)
            else:
                date = schedule.date
                self._add(waiting, {label_of(upstream, ms, own, date) for ms, own in moments})

    def _add(self, name: str, labels: _Labels) -> None:
        known = self._todo.setdefault(name, set())
        self._todo[name] = None if known is None or labels is None else known | labels

    # ---------------------------------------------------------------- runs without a rule

    def fires(self, name: str, nominal_ms: int, own: str = "") -> Iterator[Firing]:
        """Yield the runs that a run which was made, or skipped, calls for; each only once.

        Each is to be made before the next one is asked for: what it calls for in turn may be that.
        """
        upstream = self._facts.schedule(name)
        if upstream is None:
            return
        for waiting in self._graph.dependants(name):
            schedule = self._facts.schedule(waiting)
            if schedule is None or schedule.rule is not None:
                continue
            label = label_of(upstream, nominal_ms, own, schedule.date)
            firing = self._firing(schedule, label, nominal_ms)
            if firing is not None:
                yield firing

    def _firing(self, schedule: Waiting, own: str, least_ms: int) -> Firing | None:
        """Return a schedule's run on its label, unless it was made before or may not be."""
        low_ms, high_ms = schedule.zone.span(own, schedule.date)
        facts = list(self._facts.runs(schedule.name, low_ms - APART_MS, high_ms + APART_MS))
        if any(fact.label == own and fact.phase is not Phase.MISSED for fact in facts):
            return None
        nominal_ms = max(self._dates.nominal(schedule, own) or least_ms, least_ms)
        taken = {fact.first_ms for fact in facts if fact.label != own}
        while nominal_ms in taken:  # two dates can end at one moment where zones differ
            nominal_ms += 1
        if schedule.start_ms is not None and nominal_ms < schedule.start_ms:
            return None
        if schedule.until_ms is not None and nominal_ms >= schedule.until_ms:
            return None
        return Firing(name=schedule.name, nominal_ms=nominal_ms, own=own)

    # ---------------------------------------------------------------- history

    def keep_from(self, name: str) -> int | None:
        """Return from when on a schedule's outcomes are still needed; None: nobody asks.

        Those that succeeded at a time of a rule since ``since_ms`` may go all the same.
        """
        upstream = self._facts.schedule(name)
        if upstream is None:
            return None
        starts: list[int] = []
        # The label of a run without a rule is one of another zone.
        todo, margin_ms = [name], 0 if upstream.rule is not None else APART_MS
        reached = {name}
        while todo:
            behind: list[str] = []
            for waiting in {one for up in todo for one in self._graph.waiting(up)} - reached:
                schedule = self._facts.schedule(waiting)
                if schedule is None:
                    continue
                labels = self._open_labels(schedule)
                starts += [
                    upstream.zone.span(label, schedule.date)[0] - margin_ms for label in labels
                ]
                if schedule.rule is None:  # what it has not made stands and falls with this one's
                    reached.add(waiting)
                    behind.append(waiting)
            todo, margin_ms = behind, margin_ms + APART_MS + DAY_MS
        return min(starts, default=None)

    def _open_labels(self, schedule: Waiting) -> set[str]:
        """Return labels of runs that still ask, or will; the oldest of each kind."""
        labels = {_label(schedule, run) for run in self.held(schedule.name)[:1]}
        sources: list[Waiting] = [schedule]
        if schedule.rule is None:  # its runs are called for by those that it waits for
            found = map(self._facts.schedule, self._graph.upstream([schedule.name]))
            sources = [up for up in found if up is not None]
        for source in sources:
            for ms in (source.next_ms, source.planned_ms):
                if ms is not None:
                    labels.add(source.zone.label(ms, schedule.date))
        return labels


def _on(schedule: Waiting, held: Mapping[int, HeldRun], labels: set[str]) -> Iterator[int]:
    """Yield the nominal times of those held runs that are for one of these labels.

    Of a thousand runs few are; to tell the label of each would take milliseconds.
    """
    if schedule.rule is None:
        yield from (ms for ms, run in held.items() if _label_of_own(schedule, run) in labels)
        return
    spans = [schedule.zone.span(label, schedule.date) for label in labels]
    first_ms = min((low_ms for low_ms, _ in spans), default=0)
    behind_ms = max((high_ms for _, high_ms in spans), default=0)
    for ms, run in held.items():
        if first_ms <= ms < behind_ms and _label(schedule, run) in labels:
            yield ms


def _label_of_own(schedule: Waiting, run: HeldRun) -> str:
    return run.own or _label(schedule, run)


def _label(schedule: Waiting, run: HeldRun) -> str:
    return label_of(schedule, run.nominal_ms, run.own, schedule.date)
