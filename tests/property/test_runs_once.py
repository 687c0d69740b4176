"""Random commands, clocks, crashes and workers over a few schedules that wait for each other.

Whatever the order: no run id has two live jobs, no job is lost sight of, nothing waits that could
go, and a start from what was logged knows what memory knew. The model of ``test_schedules_model``
knows each outcome and few commands; here are all commands, and only what must never be.
"""

import contextlib
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.schedules import DAY_MS, HOUR_MS, Clockwork, Hand
from wheel.engine.core import DiskRoom
from wheel.engine.dag import AfterRule
from wheel.engine.dates import Date
from wheel.engine.definition import CatchUp, Overlap
from wheel.engine.entries import Entry
from wheel.engine.records import State
from wheel.engine.runs import Stands
from wheel.engine.shown import RunRow
from wheel.errors import WheeldError

NAMES = "abcde"
ZONES = ["UTC", "America/New_York", "Europe/Rome", "Pacific/Kiritimati", "Australia/Lord_Howe"]
RULES = [
    *("0 9 * * *", "30 2 * * *", "15,45 2 * * *", "0 */6 * * *", "0 23 * * *", "0 12 * * 1"),
    *("@every 5h/1h", "-", "-", "-", "0 0 * * *"),
]
LIVE = {State.SCHEDULED, State.HELD, State.READY, State.LEASED}
# From the first on: the eve of the day on which New York leaves out an hour.
BEGINS = [0, 57 * DAY_MS]


class Walk:
    """One random walk."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = Clockwork()
        self.world.go(BEGINS[seed % len(BEGINS)])
        self.hand = Hand(self.world)
        self.deleted: set[tuple[str, str]] = set()  # a run that was live then may have a namesake

    def step(self) -> None:
        """Do one thing; what is refused is refused."""
        acts: list[Any] = (
            [self.set] * 4 + [self.go] * 4 + [self.work] * 3 + [self.rerun, self.mark] * 2
        )
        acts += [self.delete, self.pause, self.resume, self.trigger, self.backfill]
        acts += [self.crash, self.set_clock, self.cancel, self.fill_disk]
        name = self.rng.choice(NAMES)
        with contextlib.suppress(WheeldError):
            self.rng.choice(acts)(name)
        self.world.turns()

    # ---------------------------------------------------------------- what people do

    def set(self, name: str) -> None:
        rng, there = self.rng, [one for one in NAMES if one < name and self.exists(one)]
        after = tuple(rng.sample(there, k=min(len(there), rng.choice([0, 1, 1, 2]))))
        self.world.set(
            name,
            rng.choice(RULES),
            tz=rng.choice(ZONES),
            after=after,
            after_rule=rng.choice(list(AfterRule)),
            date=rng.choice([Date.DAY, Date.DAY, Date.HOUR, Date.EXACT]),
            overlap=rng.choice(list(Overlap)),
            catch_up=rng.choice(list(CatchUp)),
            max_runs=rng.choice([None] * 5 + [3]),
            jitter_ms=rng.choice([0, 0, HOUR_MS]),
            start_ms=rng.choice([None] * 5 + [self.world.wall_ms + rng.randrange(2 * DAY_MS)]),
            end_ms=rng.choice([None] * 5 + [self.world.wall_ms + rng.randrange(4 * DAY_MS)]),
            window_ms=rng.choice([None, None, 12 * HOUR_MS]),
            catch_up_max=rng.choice([1000, 1000, 2]),
        )

    def delete(self, name: str) -> None:
        if self.rng.random() < 0.5:
            self.deleted |= {(name, row.run_id) for row in self.runs(name)}
            self.world.scheduler.delete(name, force=True)

    def pause(self, name: str) -> None:
        self.world.scheduler.pause(name)

    def resume(self, _name: str) -> None:
        for name in filter(self.exists, NAMES):
            self.world.scheduler.resume(name)

    def trigger(self, name: str) -> None:
        later_ms = self.world.wall_ms + self.rng.randrange(10 * HOUR_MS)
        self.world.scheduler.trigger(
            name, at_ms=self.rng.choice([None, later_ms]), force=self.rng.random() < 0.3
        )

    def backfill(self, name: str) -> None:
        from_ms = self.world.wall_ms - self.rng.randrange(5 * DAY_MS)
        self.world.scheduler.backfill(
            name,
            from_ms,
            from_ms + self.rng.randrange(4 * DAY_MS),
            reverse=self.rng.random() < 0.5,
            active=self.rng.choice([None, 2]),
        )

    def rerun(self, name: str) -> None:
        entry = self.world.scheduler.planner.entry(name)
        at_ms = self.world.wall_ms - self.rng.randrange(2 * DAY_MS)
        label = entry.zone.label(at_ms, self.rng.choice([Date.DAY, Date.HOUR]))
        self.world.scheduler.rerun(name, label, downstream=self.rng.random() < 0.6)

    def mark(self, name: str) -> None:
        if rows := self.runs(name):
            self.world.scheduler.mark(
                self.rng.choice(rows).run_id, succeeded=self.rng.random() < 0.6
            )

    def cancel(self, name: str) -> None:
        if rows := [row for row in self.runs(name) if row.job_id and not row.ended_ms]:
            self.hand.say(f"CANCEL {self.rng.choice(rows).job_id}")

    # ---------------------------------------------------------------- what else happens

    def go(self, _name: str) -> None:
        self.world.go(self.rng.choice([1, 3, 8, 20]) * HOUR_MS)

    def work(self, _name: str) -> None:
        self.hand.take_jobs()
        for run in list(self.hand.got):
            fate = self.rng.random()
            if fate < 0.5:
                self.hand.done(run)
            elif fate < 0.75:
                self.hand.fail(run)

    def crash(self, _name: str) -> None:
        self.world.crash(self.rng.choice([0, 0, 1, 10]) * HOUR_MS)
        self.hand = Hand(self.world)

    def set_clock(self, _name: str) -> None:
        if self.rng.random() < 0.3:
            self.world.step_wall(self.rng.choice([2, -1]) * HOUR_MS)
            if self.rng.random() < 0.5:
                self.world.core.accept_clock()

    def fill_disk(self, name: str) -> None:
        """Have a full disk refuse what is done next, also what the turns do by themselves."""
        if self.rng.random() < 0.5:
            return
        self.world.core.set_disk_room(DiskRoom.FULL)
        with contextlib.suppress(WheeldError):
            self.rng.choice([self.set, self.resume, self.rerun, self.mark, self.trigger])(name)
        self.world.go(self.rng.choice([0, HOUR_MS]))
        self.world.core.set_disk_room(DiskRoom.OK)
        self.world.go(2_000)

    # ---------------------------------------------------------------- what must hold

    def exists(self, name: str) -> bool:
        return self.world.scheduler.exists(name)

    def runs(self, name: str) -> list[RunRow]:
        return self.world.runs(name) if self.exists(name) else []

    def check(self) -> None:
        planner = self.world.scheduler.planner
        owners: set[bytes] = set()
        for job in self.world.core.owned():
            if job is not None and State(job.state) in LIVE:
                run, _, _ = job.owner.partition(b"\n")
                assert run not in owners, f"two live jobs of {run}"
                owners.add(run)
                assert planner.store.jobs.get(job.id) is not None, f"{run} is lost sight of"
        for entry in planner.store.all():
            ids = [row.run_id for row in self.runs(entry.name) if row.job_id]
            twice = {run for run in ids if ids.count(run) > 1}
            assert not {run for run in twice if (entry.name, run) not in self.deleted}
            if not entry.paused:
                self.check_nothing_waits(entry)

    @staticmethod
    def check_nothing_waits(entry: Entry) -> None:
        waiting = entry.standing(Stands.WAITING)
        assert not waiting or entry.standing(Stands.ACTIVE), f"{waiting[0].id} could go"
        plan = entry.extra.plan
        if plan is not None:
            alone = [run.stands for run in entry.all_live() if run.alone]
            if Stands.WAITING in alone:
                assert alone.count(Stands.ACTIVE) >= plan.active, f"{entry} could backfill"

    def check_start(self) -> None:
        """A start knows what memory knew.

        A run that waits for its turn is judged again at that, and by a start at once. So if there
        is one, where those stand that are live, also those that wait for it, may differ.
        """
        before: list[Any] = self.world.snapshot()
        self.world.crash()
        self.world.turns()
        after: list[Any] = self.world.snapshot()
        if any(row.waiting for row, *_ in before):
            before, after = list(map(self.of_one, before)), list(map(self.of_one, after))
        assert after == before

    @staticmethod
    def of_one(told: Any) -> object:
        row, *more, live, rows = told
        return (
            replace(row, active=len(live), waiting=0, held=0),
            more,
            [(*run[:3], run[4]) for run in live],
            [one if one.ended_ms else replace(one, outcome="", reason="") for one in rows],
        )


def walk(seed: int, steps: int) -> None:
    made = Walk(seed)
    for _ in range(steps):
        made.step()
        made.check()
    made.check_start()
    made.world.check()


@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_events_makes_a_run_twice_or_leaves_one_behind(seed: int) -> None:
    walk(seed, 80)


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_no_order_of_events_in_thousands(block: int) -> None:
    for seed in range(100 + block * 100, 200 + block * 100):
        walk(seed, 120)
