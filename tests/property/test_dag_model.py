"""Held runs against a model that recomputes everything from all that ever happened."""

from collections.abc import Callable
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.dag_world import Plan, Run, Times, World, Zone, ms
from tests.property.dag_model import held_by
from wheel.engine.dag import AfterRule, Phase, refusal
from wheel.engine.dates import Date

T = TypeVar("T")

NAMES = "abcde"
# Three days around the end of summer time in Rome; a clock there shows 02:30 twice.
START_MS = ms("2026-10-24T00:00:00Z")
HALF_HOUR_MS = 1_800_000
DAYS = 3
MOMENTS = [START_MS + i * HALF_HOUR_MS for i in range(DAYS * 48)]
ZONES = [
    Zone(key)
    for key in ("UTC", "Europe/Rome", "Asia/Kolkata", "Pacific/Kiritimati", "Pacific/Pago_Pago")
]
ENDS = [Phase.SUCCEEDED] * 3 + [Phase.DEAD, Phase.CANCELLED, Phase.EXPIRED]

moments = st.sampled_from(MOMENTS)
some = st.lists(moments, min_size=1, max_size=8).map(Times)
clock_times = st.lists(st.sampled_from(range(0, 48, 4)), min_size=1, max_size=3)
daily = clock_times.map(
    lambda halves: Times(
        START_MS + (48 * day + half) * HALF_HOUR_MS for day in range(DAYS) for half in halves
    )
)
times = some | daily | daily
zones = st.sampled_from(ZONES)
dates = st.sampled_from([*Date, Date.DAY, Date.DAY])
after_rules = st.sampled_from(AfterRule)
ends = st.sampled_from(ENDS)
picks = st.integers(0, 1_000_000)  # one of what there is, however much that is


class Machine(RuleBasedStateMachine):
    """Every order of everything that can happen to schedules and runs."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.now_ms = START_MS

    # ---------------------------------------------------------------- what there is

    def one(self, pick: int, of: list[T]) -> T | None:
        return of[pick % len(of)] if of else None

    def ruled(self, *, due: bool = False) -> list[Plan]:
        plans = [plan for plan in self.world.plans.values() if plan.rule is not None]
        return [p for p in plans if p.next_ms is not None and not p.paused] if due else plans

    def runs(self, fits: Callable[[Run], bool]) -> list[tuple[str, Run]]:
        return [
            (name, run)
            for name, runs in self.world.runs_of.items()
            for run in runs.values()
            if fits(run)
        ]

    def may_wait(self, plan: Plan) -> bool:
        """Return whether DATE allows these edges, to both sides."""
        plans = {**self.world.plans, plan.name: plan}
        behind = [p for p in plans.values() if plan.name in p.after]
        return not any(
            refusal(p, [plans[up] for up in p.after if up in plans]) for p in [plan, *behind]
        )

    def forget_trimmed(self) -> None:
        """Whoever asks for the first time finds that what is gone had succeeded.

        But for what was before the rule in force: that is not known to have been at all.
        """
        for name, runs in self.world.runs_of.items():
            for at, run in list(runs.items()):
                if run.trimmed and at < self.world.plans[name].since_ms:
                    del runs[at]
                elif run.trimmed:
                    run.phase = Phase.SUCCEEDED

    def set(self, plan: Plan) -> None:
        if self.may_wait(plan):
            self.forget_trimmed()
            old = self.world.plans.get(plan.name)
            if old is not None and plan.since_ms != old.since_ms:
                runs = self.world.runs_of[plan.name]
                gone = [at for at, run in runs.items() if run.trimmed]
                for at in gone:
                    del runs[at]
            self.world.set(plan)

    # ---------------------------------------------------------------- people

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        for name in NAMES:
            self.make(data, name)

    def make(self, data: st.DataObject, name: str) -> None:
        earlier = sorted(other for other in self.world.plans if other < name)
        after = (
            data.draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True))
            if earlier
            else []
        )
        has_rule = not after or data.draw(st.booleans())
        self.set(
            Plan(
                name=name,
                after=tuple(after),
                after_rule=data.draw(after_rules),
                date=data.draw(dates),
                rule=data.draw(times) if has_rule else None,
                zone=data.draw(zones),
                since_ms=self.now_ms + 1,
                position_ms=self.now_ms + 1,
            )
        )

    @rule(data=st.data(), pick=picks)
    def edit_edges(self, data: st.DataObject, pick: int) -> None:
        plan = self.one(pick, list(self.world.plans.values()))
        if plan is None:
            return
        earlier = sorted(other for other in self.world.plans if other < plan.name)
        if not earlier:
            return
        after = data.draw(
            st.lists(st.sampled_from(earlier), min_size=plan.rule is None, max_size=3, unique=True)
        )
        self.set(self.edited(plan, after=tuple(after), after_rule=data.draw(after_rules)))

    @rule(data=st.data(), pick=picks)
    def edit_rule(self, data: st.DataObject, pick: int) -> None:
        plan = self.one(pick, self.ruled())
        if plan is not None:
            self.set(
                self.edited(
                    plan,
                    rule=data.draw(times),
                    zone=data.draw(zones),
                    date=data.draw(dates),
                    since_ms=self.now_ms + 1,
                    position_ms=self.now_ms + 1,
                )
            )

    @rule(pick=picks, until_ms=moments)
    def edit_end(self, pick: int, until_ms: int) -> None:
        plan = self.one(pick, list(self.world.plans.values()))
        if plan is not None:
            self.set(self.edited(plan, until_ms=max(until_ms, self.now_ms)))

    def edited(self, plan: Plan, **changes: object) -> Plan:
        values = {name: getattr(plan, name) for name in Plan.__slots__}
        return Plan(**{**values, **changes})  # type: ignore[arg-type]

    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        plan = self.one(pick, list(self.world.plans.values()))
        if plan is not None:
            self.world.delete(plan.name)

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def make_again(self, data: st.DataObject, name: str) -> None:
        if name not in self.world.plans:
            self.make(data, name)

    @rule(pick=picks)
    def pause_or_resume(self, pick: int) -> None:
        plan = self.one(pick, list(self.world.plans.values()))
        if plan is not None:
            plan.paused = not plan.paused
            self.world.changed(plan.name)

    @rule(pick=picks, phase=st.sampled_from([Phase.SUCCEEDED, Phase.DEAD]))
    def mark(self, pick: int, phase: Phase) -> None:
        found = self.one(pick, self.runs(lambda run: run.held or run.phase is not Phase.RUNNING))
        if found is not None:
            self.forget_trimmed()
            self.world.mark(found[0], found[1].nominal_ms, phase)

    @rule(pick=picks, nominal_ms=moments)
    def mark_what_never_was(self, pick: int, nominal_ms: int) -> None:
        plan = self.one(pick, self.ruled())
        if plan is not None and nominal_ms not in self.world.runs_of[plan.name]:
            self.forget_trimmed()
            self.world.mark(plan.name, nominal_ms, Phase.SUCCEEDED)

    @rule(pick=picks)
    def rerun(self, pick: int) -> None:
        over = self.runs(lambda run: not run.held and run.phase is not Phase.RUNNING)
        found = self.one(pick, over)
        if found is not None:
            self.forget_trimmed()
            self.world.rerun(found[0], found[1].nominal_ms, found[1].own)

    @rule(pick=picks, nominal_ms=moments)
    def plan_a_backfill(self, pick: int, nominal_ms: int) -> None:
        plan = self.one(pick, self.ruled())
        if plan is None or plan.rule is None or nominal_ms not in plan.rule.all:
            return
        if nominal_ms < plan.position_ms and nominal_ms not in self.world.runs_of[plan.name]:
            self.forget_trimmed()
            plan.planned.append(nominal_ms)
            self.world.changed(plan.name)

    @rule(pick=picks)
    def make_a_backfilled_run(self, pick: int) -> None:
        plan = self.one(pick, [plan for plan in self.ruled() if plan.planned])
        if plan is not None:
            nominal_ms = plan.planned.pop()
            self.world.make(plan.name, Run(nominal_ms=nominal_ms))

    # ---------------------------------------------------------------- time and workers

    @rule(pick=picks)
    def fire(self, pick: int) -> None:
        self.decide(self.one(pick, self.ruled(due=True)), self.world.fire)

    @rule(count=st.integers(1, 3))
    def fire_in_time(self, count: int) -> None:
        for _ in range(count):
            due = self.ruled(due=True)
            first = min(due, key=lambda plan: plan.next_ms or 0, default=None)
            self.decide(first, self.world.fire)

    @rule(pick=picks)
    def skip(self, pick: int) -> None:
        self.decide(self.one(pick, self.ruled(due=True)), self.world.skip)

    def decide(self, plan: Plan | None, how: Callable[[str], None]) -> None:
        if plan is not None and plan.next_ms is not None:
            self.now_ms = max(self.now_ms, plan.next_ms)
            if plan.next_ms in self.world.runs_of[plan.name]:
                plan.position_ms = plan.next_ms + 1  # somebody marked it before its time
                self.world.changed(plan.name)
            else:
                how(plan.name)

    @rule(pick=picks, count=st.integers(1, 4))
    def miss(self, pick: int, count: int) -> None:
        plan = self.one(pick, self.ruled(due=True))
        if plan is not None and plan.until_ms is None:
            self.world.miss(plan.name, count)
            self.now_ms = max(self.now_ms, plan.position_ms - 1)

    @rule(pick=picks, phase=ends)
    def end(self, pick: int, phase: Phase) -> None:
        found = self.one(pick, self.runs(lambda run: not run.held and run.phase is Phase.RUNNING))
        if found is not None:
            self.world.end(found[0], found[1].nominal_ms, phase)

    end_more = rule(pick=picks, phase=ends)(lambda self, pick, phase: self.end(pick, phase))

    @rule(pick=picks)
    def requeue(self, pick: int) -> None:
        dead = self.runs(lambda run: run.phase is Phase.DEAD and not run.trimmed and not run.held)
        found = self.one(pick, dead)
        if found is not None:
            self.world.end(found[0], found[1].nominal_ms, Phase.RUNNING)

    @precondition(lambda self: self.world.plans)
    @rule(pick=picks)
    def trim(self, pick: int) -> None:
        plan = self.one(pick, list(self.world.plans.values()))
        if plan is not None:
            self.world.trim(plan.name)

    @rule()
    def restart(self) -> None:
        before = self.verdicts()
        self.world.start()
        assert self.verdicts() == before

    # ---------------------------------------------------------------- what must hold

    def verdicts(self) -> dict[tuple[str, int], object]:
        held = self.runs(lambda run: run.held)
        return {(n, run.nominal_ms): self.world.verdict(n, run.nominal_ms) for n, run in held}

    @invariant()
    def every_held_run_is_held_for_what_the_model_says(self) -> None:
        self.compare()

    def compare(self) -> None:
        for name, run in self.runs(lambda run: run.held):
            verdict = self.world.verdict(name, run.nominal_ms)
            told = (verdict.state.value, verdict.upstream, verdict.reason)
            true = held_by(self.world, name, run.nominal_ms, run.own)
            assert told == true, f"{name} {run}: {told} should be {true}"

    @invariant()
    def what_was_released_may_start(self) -> None:
        for name, nominal_ms in self.world.released:
            own = self.world.runs_of[name][nominal_ms].own
            assert held_by(self.world, name, nominal_ms, own)[0] == "release", (name, nominal_ms)
        self.world.released.clear()


# `make fuzz` has fifty times as many.
Machine.TestCase.settings = settings(
    max_examples=80 * settings().max_examples // 100, stateful_step_count=50
)
TestHeldRuns = Machine.TestCase
