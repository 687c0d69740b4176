"""Faults of the schedules' side, as replacements of one function each.

tests/sim/test_cron_world.py demands that the simulation with schedules finds every one of them.
"""

from tests.sim.pymutants import Patch, nothing
from wheel.engine.catchup import Picked
from wheel.engine.dag import RELEASE
from wheel.engine.runs import Outcome


def unaware(_begin):
    """What passed before the start passed while somebody could decide."""
    return lambda runner: runner.look() and None


def forgetful(take_in):
    """A start goes on with the next time from now."""

    def taken(scheduler, entry, prints):
        take_in(scheduler, entry, prints)
        if entry.settings.has_rule and not entry.settings.rel:
            now_ms = scheduler.planner.look().logical_ms
            scheduler.planner.set_next(entry, max(entry.done_ms, now_ms))

    return taken


def unmoved(state_blob):
    """The time that was planned last is recorded once, when a schedule is made or read."""
    first = {}

    def blob(entry):
        now = state_blob(entry)
        known = first.setdefault(id(entry), (entry, now))[1]
        # Counts, pauses and so on are as they are; next, due and done as they were.
        return now[:2] + known[2:26] + now[26:]

    return blob


def without_a_record(outcome):
    def make(drop):
        def dropped(ledger, change, entry, gap, how, **more):
            record = drop(ledger, change, entry, gap, how, **more)
            if how is outcome:
                change.history(entry.name).pop()
            return record

        return dropped

    return make


def torn(commit):
    """The jobs are made in one frame, what says so is written in the next."""

    def committed(change, *, gone=frozenset()):
        made = change._made
        rest = change._histories, change._saved, change._puts
        if not made or gone or rest[2]:
            return commit(change, gone=gone)
        change._histories, change._saved, change._puts = {}, {}, {}
        commit(change)
        change._core.commit()
        change._histories, change._saved, change._puts = rest
        change._made, change._closed, change._cancelled, change._released = [], [], [], {}
        commit(change, gone=gone)
        change._made = made
        return made

    return committed


def again(read_state):
    """A start takes the last time that was decided for one to come."""

    def read(entry, blob):
        read_state(entry, blob)
        if entry.settings.has_rule and entry.next_ms is not None and not entry.settings.rel:
            before = entry.compiled.latest_before(entry.next_ms)
            if before is not None and before > entry.since_ms:
                entry.next_ms = entry.fire_ms = before
                entry.done_ms = before - 1

    return read


def literal(compile_rule):
    return lambda text, *, dst, **more: compile_rule(text, dst="literal", **more)


def easy(catch_up):
    """What passed in a pause is forgotten."""

    def caught_up(planner, change, entry, span, now_ms):
        if span.reason != "paused":
            return catch_up(planner, change, entry, span, now_ms)
        change.edit(entry)
        entry.done_ms = now_ms
        planner.set_next(entry, now_ms)
        return True

    return caught_up


def unwindowed(kept):
    def all_kept(settings, rule, first_ms, last_ms, now_ms):
        return kept(settings, rule, first_ms, last_ms, min(now_ms, first_ms))

    return all_kept


def steady(look):
    """A clock that was set has passed all that it jumped over."""

    def looked(runner):
        times = look(runner)
        for spans in runner._spans:
            spans[:] = [span for span in spans if span.reason != "step"]
        return times

    return looked


def one_short(pick):
    """The first of what is dropped in a row is left out."""

    def picked(settings, rule, **more):
        found = pick(settings, rule, **more)
        return Picked(found.gaps[1:], found.first_ms, found.last_ms)

    return picked


def sure(_verdict):
    return lambda _judge, _entry, _nominal_ms, _own="": RELEASE


def unpaused(state_blob):
    """PAUSE is not recorded."""

    def blob(entry):
        paused, entry.paused = entry.paused, False
        try:
            return state_blob(entry)
        finally:
            entry.paused = paused

    return blob


def stretched(due_ms):
    """Jitter goes to twice what was said."""

    def due(runner, entry, nominal_ms):
        return 2 * due_ms(runner, entry, nominal_ms) - nominal_ms

    return due


def wordless(write):
    def written(runner, change, entry, record):
        if record.reason != "marked":
            write(runner, change, entry, record)

    return written


# Seeds that showed some of them the first time: a hunt begins there, to be short.
FIRST_SEEDS = {
    "the rule for changes of the clocks is dropped": 16,
    "WINDOW is not looked at": 11,
    "what a step of the clock jumps over is not missed": 16,
    "a backfill makes what was marked meanwhile": 359,
    "each RERUN of a time makes the same run": 78,
    "a schedule without a rule gives the ids of its old one out again": 370,
}
PATCHES = [
    Patch(
        name="a start does not know that it was down",
        target="wheel.engine.runner:Runner.begin",
        make=unaware,
    ),
    Patch(
        name="a start goes on from now",
        target="wheel.engine.scheduler:Scheduler._take_in",
        make=forgetful,
    ),
    Patch(
        name="the time that was planned last is not recorded",
        target="wheel.engine.entries:Entry.state_blob",
        make=unmoved,
    ),
    Patch(
        name="what OVERLAP skips leaves no record",
        target="wheel.engine.ledger:Ledger.drop",
        make=without_a_record(Outcome.SKIPPED),
    ),
    Patch(
        name="what was missed leaves no record",
        target="wheel.engine.ledger:Ledger.drop",
        make=without_a_record(Outcome.MISSED),
    ),
    Patch(
        name="a run is made before its record",
        target="wheel.engine.change:Change.commit",
        make=torn,
    ),
    Patch(
        name="a start plans the last time again",
        target="wheel.engine.entries:Entry.read_state",
        make=again,
    ),
    Patch(
        name="the rule for changes of the clocks is dropped",
        target="wheel.engine.entries:compile_rule",
        make=literal,
    ),
    Patch(
        name="RESUME forgets what passed",
        target="wheel.engine.planner:Planner.catch_up",
        make=easy,
    ),
    Patch(name="WINDOW is not looked at", target="wheel.engine.catchup:_kept", make=unwindowed),
    Patch(
        name="what a step of the clock jumps over is not missed",
        target="wheel.engine.runner:Runner.look",
        make=steady,
    ),
    Patch(name="the first gap is left out", target="wheel.engine.planner:pick", make=one_short),
    Patch(
        name="a run waits for no other",
        target="wheel.engine.dag:Judge.verdict",
        make=sure,
    ),
    Patch(
        name="PAUSE is not recorded",
        target="wheel.engine.entries:Entry.state_blob",
        make=unpaused,
    ),
    Patch(
        name="the word that a time was missed stays beside its run",
        target="wheel.engine.ledger:Ledger.take_out",
        make=nothing,
    ),
    Patch(
        name="a backfill makes what was marked meanwhile",
        target="wheel.engine.byhand:ByHand._unplan",
        make=nothing,
    ),
    Patch(
        name="a backfill is not gone on with",
        target="wheel.engine.planner:Planner.fill",
        make=nothing,
    ),
    Patch(
        name="jitter is twice what was said",
        target="wheel.engine.runner:Runner.due_ms",
        make=stretched,
    ),
    Patch(
        name="each RERUN of a time makes the same run",
        target="wheel.engine.byhand:ByHand._repeat_tag",
        make=lambda _tag: lambda *_args: "~1",
    ),
    Patch(name="MARK is not recorded", target="wheel.engine.runner:Runner.write", make=wordless),
    Patch(
        name="a schedule without a rule gives the ids of its old one out again",
        target="wheel.engine.entries:Entry.free_ms",
        make=lambda _free: lambda _entry, nominal_ms: nominal_ms,
    ),
]
