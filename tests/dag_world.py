"""Schedules and runs in plain lists, and a scheduler of the simplest kind over them.

Each nominal time is decided when the test says so; what a run comes to is said by the test. The
dependencies under test see the facts that a real history would have: what succeeded may be trimmed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from wheel.engine.dag import AfterRule, Phase, RunFact, State, Verdict
from wheel.engine.dates import Date, Dates
from wheel.engine.dependencies import Dependencies, Firing, HeldRun
from wheel.graph import Graph

FORMATS = {Date.DAY: "%Y-%m-%d", Date.HOUR: "%Y-%m-%dT%H"}
WIDE = timedelta(hours=3)  # a span may be wider than its label


def ms(text: str) -> int:
    """Return a moment, written in ISO 8601 with its offset."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


class Zone:
    """Labels as the standard library tells them."""

    def __init__(self, key: str) -> None:
        self._zone = ZoneInfo(key)

    def label(self, nominal_ms: int, date: Date) -> str:
        if date is Date.EXACT:
            return str(nominal_ms)
        return datetime.fromtimestamp(nominal_ms / 1000, self._zone).strftime(FORMATS[date])

    def span(self, label: str, date: Date) -> tuple[int, int]:
        if date is Date.EXACT:
            return int(label), int(label) + 1
        start = datetime.strptime(label, FORMATS[date]).replace(tzinfo=self._zone)
        length = timedelta(days=1) if date is Date.DAY else timedelta(hours=1)
        return int((start - WIDE).timestamp() * 1000), int(
            (start + length + WIDE).timestamp() * 1000
        )


class Times:
    """A rule whose times are a list."""

    def __init__(self, times: Iterable[int]) -> None:
        self.all = sorted(set(times))

    def next_ms(self, after_ms: int) -> int | None:
        at = bisect_right(self.all, after_ms)
        return self.all[at] if at < len(self.all) else None

    def latest_before(self, before_ms: int) -> int | None:
        at = bisect_left(self.all, before_ms)
        return self.all[at - 1] if at else None


@dataclass(slots=True, kw_only=True)
class Plan:
    """A schedule."""

    name: str
    after: tuple[str, ...] = ()
    after_rule: AfterRule = AfterRule.ALL_SUCCESS
    date: Date = Date.DAY
    rule: Times | None = None
    zone: Zone = field(default_factory=lambda: Zone("UTC"))
    since_ms: int = 0
    position_ms: int = 0  # times before it are decided
    start_ms: int | None = None
    until_ms: int | None = None
    paused: bool = False
    has_zone: bool = True
    planned: list[int] = field(default_factory=list)

    @property
    def next_ms(self) -> int | None:
        if self.rule is None:
            return None
        found = self.rule.next_ms(self.position_ms - 1)
        return None if found is None or (self.until_ms and found >= self.until_ms) else found

    @property
    def planned_ms(self) -> int | None:
        return min(self.planned, default=None)


@dataclass(slots=True, kw_only=True)
class Run:
    """A run; HELD is never its phase here: the dependencies know the verdict."""

    nominal_ms: int
    own: str = ""
    phase: Phase = Phase.RUNNING
    cause: str = ""
    by_hand: bool = False
    attempt: int = 0
    trimmed: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """Nominal times dropped in a row."""

    first_ms: int
    last_ms: int
    phase: Phase = Phase.MISSED


class World:
    """Everything that is known, and the dependencies that see it."""

    def __init__(self) -> None:
        self.plans: dict[str, Plan] = {}
        self.runs_of: dict[str, dict[int, Run]] = {}
        self.ranges: dict[str, list[Range]] = {}
        self.graph = Graph()
        self.released: list[tuple[str, int]] = []
        self.telling = 0
        self.start()

    def start(self) -> None:
        """Begin anew with what a log would have kept: all but the verdicts."""
        self.dependencies = Dependencies(self.graph, self, Dates(self.schedule))
        for name, runs in self.runs_of.items():
            for run in runs.values():
                if run.held:
                    held = HeldRun(name=name, nominal_ms=run.nominal_ms, own=run.own)
                    self.dependencies.hold(held)
        for name in self.plans:
            self.dependencies.note(name)
        self.settle()

    # ---------------------------------------------------------------- facts

    def schedule(self, name: str) -> Plan | None:
        return self.plans.get(name)

    def runs(self, name: str, from_ms: int, until_ms: int) -> Iterator[RunFact]:
        for run in self.runs_of.get(name, {}).values():
            if from_ms <= run.nominal_ms < until_ms and not run.trimmed:
                yield self.fact(name, run)
        for one in self.ranges.get(name, ()):
            if one.first_ms < until_ms and one.last_ms >= from_ms:
                yield RunFact(first_ms=one.first_ms, last_ms=one.last_ms, phase=one.phase)
        for planned in self.plans[name].planned:
            if from_ms <= planned < until_ms:
                yield RunFact(first_ms=planned, last_ms=planned, phase=Phase.PENDING)

    def fact(self, name: str, run: Run) -> RunFact:
        phase, cause = run.phase, run.cause
        held = self.dependencies.held_run(name, run.nominal_ms) if run.held else None
        if held is not None:
            phase = held.verdict.phase
            cause = held.verdict.reason
        return RunFact(
            first_ms=run.nominal_ms,
            last_ms=run.nominal_ms,
            phase=phase,
            cause=cause,
            by_hand=run.by_hand,
            label=run.own,
            held=run.held,
        )

    # ---------------------------------------------------------------- what happens

    def set(self, plan: Plan) -> None:
        self.graph.set(plan.name, plan.after, known=lambda name: name in self.plans)
        self.plans[plan.name] = plan
        self.runs_of.setdefault(plan.name, {})
        self.changed(plan.name)

    def delete(self, name: str) -> None:
        self.graph.remove(name, force=True)
        for run in self.runs_of.pop(name, {}).values():
            if run.held:
                self.dependencies.let_go(name, run.nominal_ms)
        self.ranges.pop(name, None)
        del self.plans[name]
        self.changed(name)

    def fire(self, name: str) -> None:
        """Decide on the next nominal time: a run is made."""
        plan = self.plans[name]
        nominal_ms = plan.next_ms
        assert nominal_ms is not None
        plan.position_ms = nominal_ms + 1
        self.make(name, Run(nominal_ms=nominal_ms))

    def skip(self, name: str) -> None:
        """Decide on the next nominal time: the overlap policy drops it."""
        plan = self.plans[name]
        nominal_ms = plan.next_ms
        assert nominal_ms is not None
        plan.position_ms = nominal_ms + 1
        run = Run(nominal_ms=nominal_ms, phase=Phase.SKIPPED)
        self.runs_of[name][nominal_ms] = run
        self.told(name, run)

    def miss(self, name: str, count: int) -> None:
        """Decide on the next nominal times: they are missed."""
        plan = self.plans[name]
        assert plan.rule is not None
        at = bisect_left(plan.rule.all, plan.position_ms)
        times = plan.rule.all[at : at + count]
        plan.position_ms = times[-1] + 1
        one = Range(times[0], times[-1])
        self.ranges.setdefault(name, []).append(one)
        fact = RunFact(first_ms=one.first_ms, last_ms=one.last_ms, phase=one.phase)
        self.dependencies.note(name, fact)
        self.settle()

    def make(self, name: str, run: Run) -> None:
        """Make a run: it is held until the verdict says RELEASE."""
        runs = self.runs_of[name]
        old = runs.get(run.nominal_ms)
        if old is not None:
            assert run.by_hand or old.phase is Phase.MISSED, f"{name} {old} was made twice"
            run.attempt = old.attempt + 1
            run.own = old.own
        runs[run.nominal_ms] = run
        held = HeldRun(name=name, nominal_ms=run.nominal_ms, own=run.own)
        if run.own:
            run.held = True
            self.dependencies.judge_later(held)
        else:
            verdict = self.dependencies.verdict(name, run.nominal_ms, run.own)
            if verdict.state is State.RELEASE:
                self.released.append((name, run.nominal_ms))
            else:
                run.held = True
                self.dependencies.hold(replace(held, verdict=verdict))
        self.told(name, run)

    def told(self, name: str, run: Run) -> None:
        """A run was made or skipped: what has no rule may be called for."""
        self.dependencies.note(name, self.fact(name, run))
        self.telling += 1
        for firing in self.dependencies.fires(name, run.nominal_ms, run.own):
            self.make_without_rule(firing)
        self.telling -= 1
        if not self.telling:
            self.settle()

    def make_without_rule(self, firing: Firing) -> None:
        plan = self.plans[firing.name]
        run = Run(nominal_ms=firing.nominal_ms, own=firing.own)
        if plan.paused:
            run.phase = Phase.MISSED
            self.runs_of[firing.name][run.nominal_ms] = run
            self.dependencies.note(firing.name, self.fact(firing.name, run))
        else:
            self.make(firing.name, run)

    def end(self, name: str, nominal_ms: int, phase: Phase) -> None:
        """A released run has ended, a dead one was requeued, or somebody marked one."""
        run = self.runs_of[name][nominal_ms]
        if run.held:
            self.dependencies.let_go(name, nominal_ms)
        run.held, run.phase, run.cause, run.trimmed = False, phase, "", False
        self.changed(name, run)

    def mark(self, name: str, nominal_ms: int, phase: Phase) -> None:
        """Somebody says how a run came out, whether it was there or not."""
        self.runs_of[name].setdefault(nominal_ms, Run(nominal_ms=nominal_ms))
        self.runs_of[name][nominal_ms].by_hand = True
        self.end(name, nominal_ms, phase)

    def rerun(self, name: str, nominal_ms: int, own: str = "") -> None:
        self.make(name, Run(nominal_ms=nominal_ms, own=own, by_hand=True))

    def changed(self, name: str, run: Run | None = None) -> None:
        self.dependencies.note(name, None if run is None else self.fact(name, run))
        self.settle()

    def settle(self) -> None:
        for held, _before in self.dependencies.settle():
            if held.verdict.state is State.RELEASE:
                self.dependencies.let_go(held.name, held.nominal_ms)
                self.runs_of[held.name][held.nominal_ms].held = False
                self.released.append((held.name, held.nominal_ms))

    def trim(self, name: str) -> None:
        """Forget what the history may forget."""
        keep_ms = self.dependencies.keep_from(name)
        plan = self.plans[name]
        for run in self.runs_of[name].values():
            old = keep_ms is None or run.nominal_ms < keep_ms
            fine = run.phase is Phase.SUCCEEDED and run.nominal_ms >= plan.since_ms
            fine = fine and plan.rule is not None
            if (
                not run.held
                and not run.by_hand
                and run.phase is not Phase.RUNNING
                and (old or fine)
            ):
                run.trimmed = True

    def verdict(self, name: str, nominal_ms: int) -> Verdict | None:
        held = self.dependencies.held_run(name, nominal_ms)
        return None if held is None else held.verdict
