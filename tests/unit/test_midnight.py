"""Behaviour O14: fifty thousand schedules that are due at one midnight, counted in rounds."""

import gc
from collections.abc import Callable
from datetime import datetime
from itertools import count

import pytest

from server import collector
from tests.asking import leased, replies, text
from tests.fed import Bench, Fed
from wheel.engine.change import DEFINITION, STATE
from wheel.engine.definition import Definition
from wheel.engine.records import Kind, Record, encode
from wheel.engine.runner import SLICE_NS
from wheel.engine.scheduler import Scheduler
from wheel.wire import Reply

pytestmark = pytest.mark.slow

MANY = 50_000
ROUND_MS = 50  # of the hand-moved clock: the pass is to outlast a minute
STEP_NS = 10_000  # of the stopwatch, for each look at it
ZONE = "Europe/Rome"


def ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)


MIDNIGHT = ms("2027-03-28T00:00+01:00")  # a day of 23 hours
NEXT = ms("2027-03-29T00:00+02:00")


def stopwatch() -> Callable[[], int]:
    """Return a clock that goes on by the same step whenever somebody looks."""
    steps = count()
    return lambda: next(steps) * STEP_NS


def due_of(job: Reply) -> int:
    due_ms = leased([job])[5]
    assert isinstance(due_ms, int)
    return due_ms


def ready(worker: Fed, words: str) -> list[Reply]:
    """Return the jobs that a LEASE gets."""
    [jobs] = replies(worker.ask(f"LEASE {words}"))
    assert isinstance(jobs, list)
    return jobs


def names() -> list[str]:
    return [f"team-{i % 97:02d}.report-{i:06d}" for i in range(MANY)]


def filled(bench: Bench) -> Scheduler:
    """Return a scheduler that has started over fifty thousand schedules.

    One is set; the others are what the table would have of them, which takes a tenth of the time.
    """
    scheduler = Scheduler(bench.core, clock_ns=stopwatch())
    for _ in scheduler.load():
        pass
    first, *others = names()
    scheduler.set(Definition(name=first, rule="0 0 * * *", handler="h", tz=ZONE, start_ms=MIDNIGHT))
    kept = {kind: bench.core.table_get(kind, first.encode()) for kind in (DEFINITION, STATE)}
    for at in range(0, len(others), 500):
        ops = [
            encode(Record(kind=Kind.PUT, reason=kind, name=name.encode(), blob=blob or b""))
            for name in others[at : at + 500]
            for kind, blob in kept.items()
        ]
        bench.core.submit(b"".join(ops))
        bench.settle()
        bench.frames.clear()
    scheduler = Scheduler(bench.core, clock_ns=stopwatch())
    for _ in scheduler.load():
        pass
    assert len(scheduler.planner.store) == MANY
    return scheduler


def test_o14_all_of_fifty_thousand_runs_are_made_in_order_though_the_pass_outlasts_a_minute() -> (
    None
):
    bench = Bench(jobs_max=200_000)
    scheduler = filled(bench)
    worker = bench.open()
    until_ms = MIDNIGHT + 120_000 - bench.wall_ms
    for second in range(1, 61):
        worker.ask(f"SCHEDULE quiet +{until_ms - 120_000 + 1000 * second} x")
    bench.advance(MIDNIGHT - bench.wall_ms)
    assert scheduler.wakes().wall_ms == MIDNIGHT

    # The pass: a turn, then everybody else.
    rounds, most, made_before, quiet = 0, 0, 0, []
    while scheduler.turn().more:
        bench.settle()
        bench.frames.clear()
        made = scheduler.figures()["schedule_runs_runs_total"]
        most, made_before = max(most, made - made_before), made
        for job in ready(worker, "quiet COUNT 10"):
            quiet.append(bench.wall_ms - due_of(job))
            worker.ask(f"ACK {text(leased([job])[0])}")
        bench.advance(ROUND_MS)
        rounds += 1
    assert rounds * ROUND_MS > 60_000, "the pass outlasts a minute"
    assert most <= SLICE_NS // STEP_NS + 1, (
        "no slice is longer than its stopwatch says, whatever there is to do"
    )
    assert len(quiet) == 60
    assert max(quiet) < ROUND_MS, "who has another job due meanwhile gets it in the same round"

    # None lost, none twice, in the order of their names, and each for its midnight.
    figures = scheduler.figures()
    assert figures["schedule_runs_runs_total"] == MANY
    got: list[str] = []
    while jobs := ready(worker, "h COUNT 1000"):
        for job in jobs:
            run = leased([job])[11]
            assert isinstance(run, list)
            got.append(text(run[0]))
            assert (run[1], text(run[2])) == (MIDNIGHT, "2027-03-28")
        bench.frames.clear()
    assert got == [f"{name}@2027-03-27T23:00:00Z" for name in sorted(names())]
    assert {entry.next_ms for entry in scheduler.planner.store.all()} == {NEXT}
    assert figures["schedule_runs_missed_total"] == figures["schedule_runs_skipped_total"] == 0
    assert bench.core.check() == 0


def test_no_pass_of_the_collector_looks_at_more_than_a_slice_has_time_for() -> None:
    before = gc.get_threshold()
    try:
        collector.hold_back()
        young, middle, old = gc.get_threshold()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    assert young * (middle + 1) <= 3000, "0.2 us an object: half a millisecond"
    assert old >= 1_000_000_000, "a full pass never comes by itself"
