"""One nominal time, one record, one id: what a person asks for does not stand beside what was."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.fed import WALL_MS
from tests.schedules import HOUR_MS, MINUTE_MS, Clockwork, Hand
from wheel.engine.dates import Date
from wheel.engine.definition import CatchUp, Overlap

FIRST_MS = WALL_MS + MINUTE_MS  # of ten times that were missed
LEFT = {0: [9], 1: [1, 8], 4: [4, 5], 9: [9]}  # how the others stand, by which one is taken out


@pytest.fixture
def world() -> Iterator[Clockwork]:
    world = Clockwork()
    yield world
    world.check()


def finish(world: Clockwork, handler: str = "h") -> list[str]:
    """Have a worker end well what is there for a handler; return the run ids."""
    hand = Hand(world)
    taken = hand.take_jobs(handler)
    for run in taken:
        hand.done(run)
    world.turns()
    return taken


def run_id(name: str, ms: int) -> str:
    return f"{name}@{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}Z"


def down_for_ten(world: Clockwork, **options: object) -> None:
    """Miss ten times in a row: one record."""
    world.set("n", "* * * * *", catch_up=CatchUp.SKIP, overlap=Overlap.ALLOW, **options)
    world.crash(10 * MINUTE_MS)
    world.turns()
    assert [(row.outcome, row.count) for row in world.runs("n")] == [("missed", 10)]


def every_time_once(world: Clockwork, name: str) -> None:
    times: Counter[int] = Counter()
    for row in world.runs(name):
        times.update(range(row.first_ms, row.last_ms + 1, MINUTE_MS))
    assert set(times.values()) == {1}, times


@pytest.mark.parametrize("number", LEFT)
def test_a_backfill_of_a_missed_time_leaves_the_others_missed(
    world: Clockwork, number: int
) -> None:
    """The run stood beside the word that there was none, and both were counted."""
    down_for_ten(world)
    ms = FIRST_MS + number * MINUTE_MS
    assert world.scheduler.backfill("n", ms, ms) == [run_id("n", ms)]
    for outcome in ("running", "succeeded"):
        world.turns()
        rows = world.runs("n")
        every_time_once(world, "n")
        assert [row.count for row in rows if row.outcome == "missed"] == LEFT[number]
        assert [row.first_ms for row in rows if row.outcome == outcome] == [ms]
        row = world.scheduler.get("n")
        assert (row.missed, row.runs) == (9, 1)
        finish(world)
    world.crash()
    every_time_once(world, "n")


def test_a_backfill_of_all_missed_times_leaves_none(world: Clockwork) -> None:
    down_for_ten(world)
    world.scheduler.backfill("n", FIRST_MS, FIRST_MS + 9 * MINUTE_MS, active=10)
    world.turns()
    assert len(finish(world)) == 10
    assert [row.outcome for row in world.runs("n")] == ["succeeded"] * 10
    assert world.scheduler.get("n").missed == 0


@pytest.mark.parametrize("number", LEFT)
def test_a_mark_of_a_missed_time_leaves_the_others_missed(world: Clockwork, number: int) -> None:
    down_for_ten(world)
    ms = FIRST_MS + number * MINUTE_MS
    world.scheduler.mark(run_id("n", ms), succeeded=True)
    every_time_once(world, "n")
    rows = world.runs("n")
    assert [row.count for row in rows if row.outcome == "missed"] == LEFT[number]
    assert [row.first_ms for row in rows if row.outcome == "succeeded"] == [ms]
    assert world.scheduler.get("n").missed == 9


def test_what_is_missed_next_is_no_part_of_a_record_that_a_time_was_taken_out_of(
    world: Clockwork,
) -> None:
    down_for_ten(world)
    world.scheduler.mark(run_id("n", FIRST_MS + 9 * MINUTE_MS), succeeded=True)
    world.crash(5 * MINUTE_MS)
    world.turns()
    every_time_once(world, "n")
    assert [row.count for row in world.runs("n")] == [9, 1, 5]


def test_of_a_rule_of_before_the_times_stay_together(world: Clockwork) -> None:
    """Which they were is not known any more; the word about one of them stands beside them."""
    down_for_ten(world)
    world.set("n", "*/7 * * * *", catch_up=CatchUp.SKIP, overlap=Overlap.ALLOW)
    world.scheduler.mark(run_id("n", FIRST_MS + 4 * MINUTE_MS), succeeded=True)
    found = sorted((row.outcome, row.count) for row in world.runs("n"))
    assert found == [("missed", 10), ("succeeded", 1)]


def test_a_backfill_leaves_out_what_somebody_has_marked_meanwhile(
    world: Clockwork,
) -> None:
    """It was made all the same, when its turn came, over the word."""
    down_for_ten(world)
    world.scheduler.backfill("n", FIRST_MS, FIRST_MS + 9 * MINUTE_MS)
    marked = [run_id("n", FIRST_MS + number * MINUTE_MS) for number in (3, 9)]
    for run in marked:
        world.scheduler.mark(run, succeeded=False)
    world.crash()
    done: list[str] = []
    world.turns()
    while taken := finish(world):
        done += taken
    assert len(done) == 8
    assert not set(done) & set(marked)
    every_time_once(world, "n")
    assert world.scheduler.backfill("n", FIRST_MS, FIRST_MS + 9 * MINUTE_MS) == []


@pytest.mark.parametrize("catch_up", [CatchUp.LATEST, CatchUp.ALL])
def test_a_date_that_fires_again_and_again_while_it_is_paused_is_missed_once(
    world: Clockwork, catch_up: CatchUp
) -> None:
    """Each run of an upstream on that date left a record, and ALL made a run of each."""
    world.set("backup", "0 * * * *", "b", overlap=Overlap.ALLOW)
    world.set("report", "-", "r", after=("backup",), catch_up=catch_up)
    world.scheduler.pause("report")
    world.go(3 * HOUR_MS)
    assert [row.outcome for row in world.runs("report")] == ["missed"]
    assert world.scheduler.get("report").missed == 1
    world.scheduler.resume("report")
    assert [row.outcome for row in world.runs("report")] == ["held"]
    assert world.scheduler.get("report").runs == 1


def test_a_schedule_that_has_no_rule_any_more_gives_no_id_of_it_out_again(
    world: Clockwork,
) -> None:
    """Its history forgets runs of the rule; an upstream's backfill of that time made another."""
    world.set("up", "* * * * *", "u", overlap=Overlap.ALLOW)
    world.set("n", "*/2 * * * *", overlap=Overlap.ALLOW)
    ids: list[str] = []
    for _ in range(60):
        world.go(MINUTE_MS)
        ids += finish(world)
        finish(world, "u")
    assert len(ids) == 30 > len(world.runs("n"))
    world.set("n", "-", after=("up",), date=Date.EXACT, overlap=Overlap.ALLOW)
    world.scheduler.rerun("up", ids[0].partition("@")[2])
    world.turns()
    finish(world, "u")
    again = finish(world)
    assert again
    assert not set(again) & set(ids)
