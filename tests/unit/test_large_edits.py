"""Edits that reach hundreds of runs: slice by slice, and whole whatever happens in between."""

from collections.abc import Callable, Iterable, Iterator
from itertools import count

import pytest

from tests.schedules import HOUR_MS, Clockwork, Hand
from wheel.engine.change import GOING
from wheel.engine.definition import Definition, ScheduleError
from wheel.engine.entries import Entry
from wheel.engine.records import Record, decode
from wheel.engine.runs import Run
from wheel.engine.scheduler import Scheduler

pytestmark = pytest.mark.slow

RUNS = 60
STEP_NS = 30_000  # of the stopwatch, for each look: a slice has time for ten looks
A_TURN = 20  # runs that a turn may end, or judge, by that stopwatch


class Slow(Clockwork):
    """A scheduler whose stopwatch goes on whenever it is looked at."""

    def make(self) -> Scheduler:
        steps = count()
        scheduler = Scheduler(self.core, clock_ns=lambda: next(steps) * STEP_NS)
        for _ in scheduler.load():
            pass
        return scheduler


@pytest.fixture
def world() -> Slow:
    """Return a chain up -> down -> below, hourly, with many runs of each: none is taken."""
    made = Slow()
    made.set("up", "0 * * * *", "u", overlap="allow")
    made.set("down", "0 * * * *", "d", after=("up",), overlap="allow", date="hour")
    made.set("below", "-", "b", after=("down",), overlap="allow", date="hour")
    made.go(RUNS * HOUR_MS)
    assert live(made) == {"up": RUNS, "down": RUNS, "below": RUNS}
    return made


def live(world: Clockwork) -> dict[str, int]:
    return {entry.name: len(entry.live or {}) for entry in world.scheduler.planner.store.all()}


def held(world: Clockwork, name: str) -> dict[str, str]:
    return {row.run_id: row.reason for row in world.runs(name) if not row.ended_ms}


def edit_rule(world: Clockwork) -> None:
    world.scheduler.set(Definition(name="up", rule="30 * * * *", handler="u"))


def edit_after(world: Clockwork) -> None:
    world.scheduler.set(
        Definition(name="down", rule="0 * * * *", handler="d", overlap="allow", date="hour")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    )


def delete(world: Clockwork) -> None:
    world.scheduler.delete("up", force=True)


CHANGES = [edit_rule, edit_after, delete]


def turn(world: Clockwork) -> bool:
    lsn = world.core.lsn()
    more = world.scheduler.turn().more
    world.settle()
    return more or world.core.lsn() != lsn


def known(world: Clockwork) -> list[object]:
    """Return what is known in the end, but for when each run was ended."""
    rows = [
        row
        for name in ("up", "down", "below")
        if world.scheduler.exists(name)
        for row in world.runs(name)
    ]
    ended = [(row.run_id, row.outcome, row.reason, row.job_id) for row in rows]
    return [ended, live(world), dict(world.scheduler.planner.store.orphans)]


@pytest.mark.parametrize("change", CHANGES)
def test_a_turn_ends_or_judges_a_bounded_number_of_runs(
    world: Slow, change: Callable[[Clockwork], None]
) -> None:
    def left() -> tuple[int, int]:
        active = sum(
            world.scheduler.get(name).held for name in ("down", "below") if name in live(world)
        )
        return int(world.core.engine_figures()["cancelled"]), active

    before = left()
    change(world)
    world.settle()
    while True:
        now = left()
        assert now[0] - before[0] <= A_TURN
        assert before[1] - now[1] <= A_TURN
        before = now
        if not turn(world):
            break
    world.check()
    assert not world.scheduler.planner.store.going
    assert world.core.table_get(GOING, b"up") is None


def test_a_turn_reads_no_more_ended_runs_than_it_has_time_to_record(
    world: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(world)
    for run in hand.take_jobs("u"):
        hand.done(run)
    read: list[Record] = []

    def counted(data: bytes | memoryview) -> Iterator[Record]:
        for record in decode(data):
            read.append(record)
            yield record

    monkeypatch.setattr("wheel.engine.plane.decode", counted)
    more = True
    while more:
        read.clear()
        more = turn(world)
        assert len(read) <= A_TURN
    assert world.scheduler.get("up").succeeded == RUNS


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("turns", [0, 3, 12])
def test_a_crash_between_two_slices_changes_nothing_in_the_end(
    world: Slow, change: Callable[[Clockwork], None], turns: int
) -> None:
    change(world)
    world.settle()
    for _ in range(turns):
        turn(world)
    world.crash()
    while turn(world):
        pass
    after_crash = known(world)
    other = Clockwork()  # the same without slices
    other.set("up", "0 * * * *", "u", overlap="allow")
    other.set("down", "0 * * * *", "d", after=("up",), overlap="allow", date="hour")
    other.set("below", "-", "b", after=("down",), overlap="allow", date="hour")
    other.go(RUNS * HOUR_MS)
    change(other)
    other.turns()
    assert after_crash[:2] == known(other)[:2]
    world.check()


def test_nobody_gets_a_run_of_the_old_rule_once_the_edit_is_through(world: Slow) -> None:
    hand = Hand(world)
    first = hand.take_jobs("u")[0]
    edit_rule(world)
    world.turns()
    assert not [run for run in hand.take_jobs("u") if ":00:00Z" in run]
    hand.done(first)
    world.turns()
    assert ("succeeded", "") in {(row.outcome, row.reason) for row in world.runs("up")}


def test_a_refused_slice_changes_nothing_and_is_tried_again(
    world: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_rule(world)
    world.settle()
    before = known(world)

    def refuse(_self: object, **_more: object) -> None:
        raise ScheduleError("OOM", "no room")

    with monkeypatch.context() as patched:
        patched.setattr("wheel.engine.change.Change.commit", refuse)
        for _ in range(4):
            world.scheduler.turn()
    assert known(world) == before
    world.go(1_500)
    world.turns()
    assert {row.outcome for row in world.runs("up") if row.ended_ms} == {"cancelled"}
    assert not world.scheduler.planner.store.going
    world.check()


def test_releasing_a_slice_walks_all_runs_a_few_times_and_not_for_each_run(
    world: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a thousand held runs a walk for each of them took five milliseconds a slice."""
    walks = 0

    def counted(entry: Entry) -> Iterable[Run]:
        nonlocal walks
        walks += 1
        return () if entry.live is None else entry.live.values()

    monkeypatch.setattr(Entry, "all_live", counted)
    edit_after(world)
    world.settle()
    released = 0
    while world.scheduler.turn().more:
        world.settle()
        here = RUNS - world.scheduler.get("down").held - released
        released += here
        if here:  # later slices judge what is below, by its upstream's runs
            assert walks <= 8 < A_TURN, f"{walks} walks for {here} runs"
        walks = 0
    assert released == RUNS


def test_a_slice_does_something_however_slow_the_machine_is() -> None:
    """A backfill asked the clock before its first run, and came to no end where that was late."""

    class Slowest(Clockwork):
        def make(self) -> Scheduler:
            seconds = count()
            scheduler = Scheduler(self.core, clock_ns=lambda: next(seconds) * 1_000_000_000)
            for _ in scheduler.load():
                pass
            return scheduler

    world = Slowest()
    hand = Hand(world)
    world.set("up", "0 * * * *", "u", overlap="allow")
    world.set("below", "-", "b", after=("up",), overlap="allow", date="hour", catch_up="all")
    world.scheduler.pause("below")
    world.go(1_000)
    ids = world.scheduler.backfill("up", world.wall_ms - 30 * HOUR_MS, world.wall_ms, active=40)
    world.turns()
    assert live(world) == {"up": len(ids), "below": 0}
    world.scheduler.resume("below")
    world.turns()
    assert live(world) == {"up": len(ids), "below": len(ids)}
    for run in hand.take_jobs("u"):
        hand.done(run)
    world.turns()
    assert len(hand.take_jobs("b")) == len(ids)
    world.scheduler.delete("below")
    world.turns()
    world.check()
