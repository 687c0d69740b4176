"""Faults that other schedulers had, by name: each must stay impossible here."""

import pytest

from tests.fed import WALL_MS
from tests.schedules import DAY_MS, HOUR_MS, MINUTE_MS, Clockwork, Hand
from wheel.engine.change import Change
from wheel.engine.core import Core
from wheel.engine.definition import CatchUp, Overlap
from wheel.engine.facts import Times

YEAR_MS = 366 * DAY_MS
JUMP_2_31_MS = 1 << 31  # 24.8 days: where timers of 32 bits wrap round


@pytest.fixture
def world():
    made = Clockwork()
    yield made
    made.check()


def ids(world: Clockwork, name: str) -> list[str]:
    return [run for run, outcome, *_ in world.told(name) if outcome != "skipped"]


def test_14_no_second_run_of_one_time_whoever_decides_it_again(world: Clockwork) -> None:
    """As two hosts did: who decides behind a crash finds what was decided before it."""
    world.set("s", overlap=Overlap.ALLOW)
    for minute in range(1, 8):
        world.go(MINUTE_MS)
        world.crash()
        world.go(0)
        assert len(ids(world, "s")) == len(set(ids(world, "s"))) == minute
    assert world.core.engine_figures()["jobs_ready"] == 7


def test_16_a_crash_anywhere_leaves_a_next_time_and_no_half_decision(world: Clockwork) -> None:
    """The next time and the job of this one stand in one frame: a crash has both or neither."""
    hand = Hand(world)
    world.set("s", "@every 60s", overlap=Overlap.QUEUE_ONE)
    for _ in range(4):
        world.go(MINUTE_MS)
        for run in hand.take_jobs():
            hand.done(run)
    frames = list(world.frames)
    for cut in range(len(frames) + 1):
        other = Clockwork()
        other.frames, other.wall_ms, other.boot_ms = frames[:cut], world.wall_ms, world.boot_ms
        other.mono_ms = world.mono_ms
        other.crash(frames=cut)
        other.turns()
        if other.scheduler.exists("s"):
            next_ms = other.scheduler.get("s").next_ms
            assert next_ms == WALL_MS + 5 * MINUTE_MS
            assert other.scheduler.wakes().rel_ms == next_ms
        other.check()
        other.core.close()


def test_16_a_batch_that_never_reaches_the_log_leaves_the_time_to_be_decided(
    world: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.set("s")
    real = Core.submit
    fails = [True]

    def submit(core: Core, ops: bytes) -> list[int]:
        if fails:
            fails.pop()
            raise MemoryError
        return real(core, ops)

    monkeypatch.setattr(Core, "submit", submit)
    with pytest.raises(MemoryError):
        world.go(MINUTE_MS)
    world.go(0)
    assert ids(world, "s") == ["2027-01-15T08:01:00Z"]


@pytest.mark.parametrize("policy", list(CatchUp))
@pytest.mark.parametrize("missed", [99, 100, 101, 10_000, 5_000_000])
def test_34_no_number_of_missed_times_ends_a_schedule(
    world: Clockwork, policy: CatchUp, missed: int
) -> None:
    world.set("s", catch_up=policy, catch_up_max=50)
    world.crash(missed * MINUTE_MS + 1000)
    world.go(0)
    row = world.scheduler.get("s")
    assert row.state == "active"
    assert row.next_ms == WALL_MS + (missed + 1) * MINUTE_MS
    assert row.missed + row.runs == missed
    assert row.runs == {CatchUp.SKIP: 0, CatchUp.LATEST: 1, CatchUp.ALL: 50}[policy]
    if not row.runs:
        world.go(MINUTE_MS)
        assert world.scheduler.get("s").runs == 1


def test_35_a_change_of_the_clocks_gives_a_daily_schedule_one_run_a_day(
    world: Clockwork,
) -> None:
    """Half past two: it is not there in one night, and there twice in another."""
    world.set("gap", "30 2 * * *", tz="Europe/Rome", overlap=Overlap.ALLOW)
    world.set("new york", "30 1 * * *", tz="America/New_York", overlap=Overlap.ALLOW)
    hand = Hand(world)
    counts = dict.fromkeys(("gap", "new york"), 0)
    for _ in range(365):
        before = {name: world.scheduler.get(name).runs for name in counts}
        world.go(DAY_MS)
        for run in hand.take_jobs(for_ms=HOUR_MS):
            hand.done(run)
        world.go(0)
        for name in counts:
            assert world.scheduler.get(name).runs - before[name] == 1, name


@pytest.mark.parametrize("rule", ["0 0 1 * *", "0 0 1 1 *", "@every 1000h", "@every 720h/1h"])
def test_37_a_time_beyond_31_bits_of_milliseconds_is_waited_for_once(
    world: Clockwork, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.set("s", rule, overlap=Overlap.ALLOW)
    next_ms = world.scheduler.get("s").next_ms
    assert next_ms is not None
    turns = 0
    real = world.scheduler.turn

    def turn():
        nonlocal turns
        turns += 1
        return real()

    monkeypatch.setattr(world.scheduler, "turn", turn)
    world.go(next_ms - WALL_MS - 1)
    assert ids(world, "s") == []
    assert turns < 10, "it is slept through, not asked for over and over"
    world.go(1)
    assert len(ids(world, "s")) == 1
    later_ms = world.scheduler.get("s").next_ms
    assert later_ms is not None
    assert later_ms - next_ms > JUMP_2_31_MS or rule.startswith("@every 720h")
    assert turns < 20


def test_37_an_alarm_ten_years_ahead_does_not_ring(world: Clockwork) -> None:
    world.core.set_alarms(WALL_MS + 10 * YEAR_MS, WALL_MS + 10 * YEAR_MS)
    for _ in range(5):
        world.boot_ms += JUMP_2_31_MS + 1
        world.mono_ms += JUMP_2_31_MS + 1
        world.wall_ms += JUMP_2_31_MS + 1
        world.tick()
        assert not world.core.wants_python()


def test_every_exhibit_of_recurring_schedules_is_here() -> None:
    """The other ones stand in tests/test_museum.py."""
    numbers = {int(name.split("_")[1]) for name in globals() if name[5:7].isdigit()}
    assert numbers == {14, 16, 34, 35, 37}


def test_the_slices_of_a_change_are_whole_or_not_at_all(world: Clockwork) -> None:
    """A refused change leaves nothing that a later one could submit."""
    world.set("s")
    change = Change(world.core)
    entry = world.scheduler.planner.store.get("s")
    assert entry is not None
    change.edit(entry)
    entry.runs = 99
    change.undo()
    assert entry.runs == 0
    assert isinstance(world.scheduler.planner.look(), Times)
