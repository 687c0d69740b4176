"""What holds a run, told from the full list of everything that ever happened.

Nothing is remembered, indexed, bounded or trimmed: labels are those of all times of all rules, and
what an upstream's run came to is asked by asking the same of it.
"""

from dataclasses import dataclass

from tests.dag_world import Plan, Run, World
from wheel.engine.dag import AfterRule, Phase
from wheel.engine.dates import Date

WAITS = {Phase.PENDING, Phase.RUNNING, Phase.HELD}
FINE = WAITS | {Phase.SUCCEEDED}


@dataclass(frozen=True)
class Known:
    """One run of a schedule, made or not."""

    nominal_ms: int
    own: str
    phase: Phase
    cause: str = ""


def label(plan: Plan, nominal_ms: int, own: str, date: Date) -> str:
    if plan.rule is None and own:
        if date == plan.date:
            return own
        if (plan.date, date) == (Date.HOUR, Date.DAY):
            return own[:10]
    return plan.zone.label(nominal_ms, date)


def happened(world: World, name: str, run: Run) -> Known:
    """Return a run as it stands; a held one as its own upstreams say."""
    if not run.held:
        return Known(run.nominal_ms, run.own, run.phase, run.cause)
    state, _upstream, reason = held_by(world, name, run.nominal_ms, run.own)
    phase = {"waiting": Phase.HELD, "release": Phase.RUNNING}.get(state) or Phase(state)
    return Known(run.nominal_ms, run.own, phase, reason)


def times(plan: Plan) -> list[int]:
    """Return the times of a rule inside its end."""
    assert plan.rule is not None
    return [ms for ms in plan.rule.all if plan.until_ms is None or ms < plan.until_ms]


def by_rule(world: World, name: str) -> list[Known]:
    """Return all runs of a schedule with a rule."""
    plan = world.plans[name]
    found = {ms: happened(world, name, run) for ms, run in world.runs_of[name].items()}
    found = {ms: one for ms, one in found.items() if world.runs_of[name][ms].by_hand}
    for ms in times(plan):
        run = world.runs_of[name].get(ms)
        dropped = [one for one in world.ranges.get(name, ()) if one.first_ms <= ms <= one.last_ms]
        if run is not None:
            found[ms] = happened(world, name, run)
        elif ms in plan.planned:
            found[ms] = Known(ms, "", Phase.PENDING)
        elif dropped:
            found[ms] = Known(ms, "", dropped[0].phase)
        elif ms >= plan.position_ms:
            found[ms] = Known(ms, "", Phase.PENDING)
    for ms in plan.planned:
        found.setdefault(ms, Known(ms, "", Phase.PENDING))
    return list(found.values())


def by_label(world: World, name: str) -> list[Known]:
    """Return all runs of a schedule without a rule."""
    plan = world.plans[name]
    found = {run.own: happened(world, name, run) for run in world.runs_of[name].values()}
    ups = [up for up in plan.after if up in world.plans]
    # What calls for its runs: everything that its upstreams have, by label.
    calls: dict[str, list[Known]] = {}
    for up in ups:
        for one in everything(world, up):
            calls.setdefault(label(world.plans[up], one.nominal_ms, one.own, plan.date), []).append(
                one
            )
    for own in nominals(world, name):
        nominal_ms = nominals(world, name)[own]
        if own in found:
            continue
        if any(one.phase is Phase.PENDING for one in calls.get(own, ())):
            found[own] = Known(nominal_ms, own, Phase.PENDING)
        elif nominal_ms >= plan.since_ms:
            missed = all(one.phase is Phase.MISSED for one in calls.get(own, ()))
            found[own] = Known(nominal_ms, own, Phase.MISSED if missed else Phase.SUCCEEDED)
    return list(found.values())


def nominals(world: World, name: str) -> dict[str, int]:
    """Return the labels on which a schedule has times by its rule, each with the last of them."""
    plan = world.plans[name]
    found: dict[str, int] = {}
    for up in plan.after:
        other = world.plans.get(up)
        if other is None:
            continue
        pairs = (
            [("", ms) for ms in times(other)]
            if other.rule is not None
            else list(nominals(world, up).items())
        )
        for own, ms in pairs:
            key = label(other, ms, own, plan.date)
            found[key] = max(found.get(key, ms), ms)
    return {own: ms for own, ms in found.items() if plan.until_ms is None or ms < plan.until_ms}


def everything(world: World, name: str) -> list[Known]:
    return by_label(world, name) if world.plans[name].rule is None else by_rule(world, name)


def held_by(world: World, name: str, nominal_ms: int, own: str) -> tuple[str, str, str]:
    """Return what a run's verdict should be: state, upstream, reason."""
    plan = world.plans[name]
    mine = label(plan, nominal_ms, own, plan.date)
    waiting = ("release", "", "")
    for up in plan.after:
        other = world.plans.get(up)
        if other is None:
            return "no_upstream", up, "deleted"
        there = sorted(
            (
                one
                for one in everything(world, up)
                if label(other, one.nominal_ms, one.own, plan.date) == mine
            ),
            key=lambda one: (one.nominal_ms, one.own),
        )
        needed = [one for one in there if one.nominal_ms <= nominal_ms] or there[:1]
        if not needed:
            return "no_upstream", up, "none"
        failed = [one for one in needed if one.phase not in FINE]
        if failed and plan.after_rule is AfterRule.ALL_SUCCESS:
            first = failed[0]
            chained = first.phase is Phase.UPSTREAM_FAILED
            return "upstream_failed", up, first.cause if chained else first.phase.value
        undone = [one for one in needed if one.phase in WAITS]
        if undone and waiting[0] == "release":
            paused = undone[0].phase is Phase.PENDING and other.paused
            waiting = ("waiting", up, "paused" if paused else undone[0].phase.value)
    return waiting
