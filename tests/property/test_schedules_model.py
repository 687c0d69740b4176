"""Schedules over the real engine: any order of edits, time, workers, clock steps and crashes."""

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.property.schedule_world import HANDLER, World
from wheel.engine.dates import Date
from wheel.engine.definition import CatchUp, Definition, Overlap, ScheduleError
from wheel.errors import Conflict, CronSyntaxError, WheeldError

NAMES = ("a", "b", "c", "d")
RULES = ("*/10 * * * *", "*/20 * * * *", "5 * * * *", "@every 7m", "@every 15m/1m")
MINUTE_MS = 60_000

names = st.sampled_from(NAMES)
index = st.integers(0, 1 << 12)


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    """A schedule that waits for others of a name before its own, or for nobody."""
    name = draw(names)
    earlier = [other for other in NAMES if other < name]
    after = draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)) if earlier else []
    ruled = not after or draw(st.booleans())
    return Definition(
        name=name,
        rule=draw(st.sampled_from(RULES)) if ruled else "-",
        handler=HANDLER,
        overlap=draw(st.sampled_from(Overlap)),
        catch_up=draw(st.sampled_from(CatchUp)),
        catch_up_max=draw(st.sampled_from([2, 1000])),
        window_ms=draw(st.sampled_from([None, None, 30 * MINUTE_MS])),
        after=tuple(after),
        after_rule=draw(st.sampled_from(["all_success", "all_success", "all_done"])),
        date="hour",
        max_runs=draw(st.sampled_from([None, None, None, 3])),
        payload=draw(st.sampled_from([b"", b"p"])),
    )


class Machine(RuleBasedStateMachine):
    """Everything that people, workers, clocks and crashes can do."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    def there(self, name: str) -> bool:
        return any(entry.name == name for entry in self.world.entries())

    @rule(definition=definitions())
    def set(self, definition: Definition) -> None:
        if not all(map(self.there, definition.after)):
            return
        try:
            self.world.set(definition)
        except CronSyntaxError as error:  # it has had all the runs that it may have
            assert error.reason.startswith("never_fires"), error
            assert definition.max_runs is not None
            assert self.world.entry(definition.name).runs >= definition.max_runs

    @rule(name=names)
    def delete(self, name: str) -> None:
        if self.there(name):
            waited_for = any(name in entry.after for entry in self.world.entries())
            if not waited_for:
                self.world.delete(name)

    @rule(name=names, pause=st.booleans())
    def pause_or_resume(self, name: str, pause: bool) -> None:
        if self.there(name):
            call = self.world.scheduler.pause if pause else self.world.scheduler.resume
            call(name)
            self.world.turn()

    @rule(name=names)
    def trigger(self, name: str) -> None:
        if self.there(name):
            self.world.trigger(name)

    @rule(name=names, ago=st.integers(0, 3), downstream=st.booleans())
    def rerun(self, name: str, ago: int, downstream: bool) -> None:
        if self.there(name):
            moment_ms = self.world.bench.core.times().logical_ms - ago * 60 * MINUTE_MS
            label = self.world.entry(name).zone.label(moment_ms, Date.HOUR)
            with suppress(Conflict):  # under way, or still to come
                self.world.rerun(name, label, downstream=downstream)

    @rule(name=names, ago=st.integers(0, 18), succeeded=st.booleans())
    def mark(self, name: str, ago: int, succeeded: bool) -> None:
        if self.there(name):
            now_ms = self.world.bench.core.times().logical_ms
            nominal_ms = now_ms // (10 * MINUTE_MS) * 10 * MINUTE_MS - ago * 10 * MINUTE_MS
            with suppress(ScheduleError):  # handed out, or still to come
                self.world.mark(name, nominal_ms, succeeded=succeeded)

    @rule(name=names, hours=st.integers(1, 5), active=st.integers(1, 3))
    def backfill(self, name: str, hours: int, active: int) -> None:
        if self.there(name):
            now_ms = self.world.bench.core.times().logical_ms
            with suppress(ScheduleError):  # without a rule, or one is under way
                self.world.backfill(name, now_ms - hours * 60 * MINUTE_MS, now_ms, active)

    @rule(minutes=st.sampled_from([1, 5, 10, 10, 60]))
    def pass_time(self, minutes: int) -> None:
        self.world.advance(minutes * MINUTE_MS)

    @rule(minutes=st.sampled_from([-120, -3, 3, 45]))
    def step_the_clock(self, minutes: int) -> None:
        self.world.advance(1000, step_ms=minutes * MINUTE_MS)

    @rule(count=st.integers(1, 4))
    def lease(self, count: int) -> None:
        self.world.lease(count)

    @rule(pick=index, how=st.sampled_from(["ack", "ack", "ack", "dead", "retry"]))
    def end(self, pick: int, how: str) -> None:
        self.world.end(pick, how)

    @rule(pick=index)
    def end_more(self, pick: int) -> None:
        self.world.lease(4)
        for _ in range(4):
            self.world.end(pick, "ack")

    @rule(minutes=st.sampled_from([0, 0, 1, 90]))
    def crash(self, minutes: int) -> None:
        self.world.crash(minutes * MINUTE_MS)

    @rule(pick=index, how=st.sampled_from(["ack", "dead"]), minutes=st.sampled_from([0, 0, 90]))
    def crash_behind_an_end(self, pick: int, how: str, minutes: int) -> None:
        """What the worker said is in the log; what follows from it is not."""
        self.world.lease(4)
        self.world.end(pick, how, turn=False)
        self.world.crash(minutes * MINUTE_MS, settled=False)

    @rule(minutes=st.sampled_from([1, 10]))
    def run_out_of_room(self, minutes: int) -> None:
        """What is refused changes nothing, and what was due then is late, not missed."""
        self.world.room(enough=False)
        before = self.world.picture()
        self.world.bench.advance(minutes * MINUTE_MS)
        self.world.scheduler.turn()
        try:
            self.world.scheduler.trigger(NAMES[0], at_ms=None, force=True)
        except WheeldError:
            assert self.world.picture().keys() == before.keys()
        else:
            raise AssertionError("a run was made though there is no room")
        self.world.room(enough=True)
        self.world.advance(2_000)

    @invariant()
    def all_promises_hold(self) -> None:
        self.world.check()


# `make fuzz` has fifty times as many.
Machine.TestCase.settings = settings(
    max_examples=25 * settings().max_examples // 100, stateful_step_count=40
)
TestSchedules = Machine.TestCase
