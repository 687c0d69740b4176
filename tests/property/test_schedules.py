"""Random lives of schedules: edits, pauses, downtime, steps of the clock, full disks, crashes.

What is demanded is read from the frames alone, so it holds for what a restart would find: for each
schedule and nominal time of the rule that was in force exactly one run, or one record that says why
there is none; and no run id twice.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fed import WALL_MS
from tests.schedules import DAY_MS, HOUR_MS, MINUTE_MS, Clockwork, Hand
from wheel.cron import compile_rule
from wheel.engine import history
from wheel.engine.core import DiskRoom
from wheel.engine.definition import (
    CatchUp,
    Definition,
    Overlap,
    ScheduleError,
    SettingsPool,
    read_kept,
)
from wheel.engine.entries import Entry, read_plan
from wheel.engine.records import Kind, Record, decode
from wheel.engine.runs import Outcome, parse_owner
from wheel.errors import WheeldError

FRAME_HEADER_BYTES = 64
SEEDS = range(int(os.environ.get("WHEELD_LIVES", "6")))
NAMES = [f"s{i}" for i in range(6)]
RULES = [
    "* * * * *",
    "*/5 * * * *",
    "*/7 3-20 * * *",
    "0 * * * *",
    "30 2 * * *",
    "@every 45s",
    "@every 17m/3m",
    "0,30 9-17 * * 1-5",
]


def records_of(frame: bytes) -> Iterator[Record]:
    """Yield a frame's records; its padding is at most 7 zeros."""
    payload = frame[FRAME_HEADER_BYTES:]
    for cut in range(8):
        try:
            yield from list(decode(payload[: len(payload) - cut]))
        except ValueError:
            continue
        return
    raise AssertionError("no records")


class Account:
    """What the frames say of schedules: rules in force, runs made, times dropped."""

    def __init__(self, frames: list[bytes]) -> None:
        self.made: Counter[str] = Counter()
        self._pool = SettingsPool()
        self._now: dict[str, tuple[str, str, str, int]] = {}
        self._done: dict[str, int] = {}
        self._created: dict[str, set[int]] = {}
        self._dropped: dict[str, dict[int, int]] = {}
        self._planned: dict[str, set[int]] = {}
        self.checked = 0
        for frame in frames:
            # In the order in which a change is meant: what the old rule did stands before the new.
            for record in sorted(records_of(frame), key=_meant):
                self._take(record)
        for name in list(self._now):
            self._close(name)

    def _take(self, record: Record) -> None:
        if record.kind == Kind.CREATED and record.owner:
            owner = parse_owner(record.owner)
            self.made[record.owner.partition(b"\n")[0].decode()] += 1
            if not owner.tag:
                self._created.setdefault(owner.name, set()).add(owner.nominal_ms)
        elif record.kind in {Kind.PUT, Kind.DEL}:
            self._take_entry(record, record.name.decode(errors="replace"))

    def _take_entry(self, record: Record, name: str) -> None:
        if record.kind == Kind.DEL and record.reason == 1:
            self._close(name)
            for known in (self._now, self._created, self._dropped):
                known.pop(name, None)
        elif record.kind == Kind.PUT and record.reason == 1:
            self._take_definition(record.blob, name)
        elif record.kind == Kind.PUT and record.reason == 2 and name in self._now:
            entry = Entry(name, self._pool.get(b"{}"), version=1, since_ms=0)
            entry.read_state(record.blob)
            self._done[name] = entry.done_ms
        elif record.kind == Kind.PUT and record.reason == 3:
            self._take_history(record.blob, self._dropped.setdefault(name, {}))
        elif record.kind == Kind.PUT and record.reason == 4:
            self._planned.setdefault(name, set()).update(read_plan(record.blob))

    def _take_definition(self, blob: bytes, name: str) -> None:
        kept = read_kept(blob)
        settings = self._pool.get(kept.settings)
        now = (settings.rule, settings.tz, settings.dst, kept.since_ms)
        if name in self._now and self._now[name] != now:
            every = "@every" in self._now[name][0] or "@every" in settings.rule
            self._close(name, None if every else kept.since_ms - 1)
        if settings.has_rule:
            self._now[name] = now
        else:
            self._now.pop(name, None)

    @staticmethod
    def _take_history(blob: bytes, ranges: dict[int, int]) -> None:
        for item in history.split(blob):
            dropped = item.outcome in {Outcome.SKIPPED, Outcome.MISSED}
            found = history.decode(item)
            if dropped and not found.tag and not found.job_id:
                for first_ms, last_ms in list(ranges.items()):
                    if first_ms <= item.first_ms <= last_ms:  # it grew, or a time was taken out
                        del ranges[first_ms]
                ranges[item.first_ms] = item.last_ms

    def _close(self, name: str, until_ms: int | None = None) -> None:
        """Each time of the rule up to the last decision has one run or one reason."""
        if name not in self._now:
            return
        rule_text, tz, dst, since_ms = self._now[name]
        rule = compile_rule(rule_text, tz=tz, name=name, dst=dst)
        done_ms = self._done.get(name, since_ms - 1) if until_ms is None else until_ms
        created = self._created.get(name, set())
        ranges = self._dropped.get(name, {})
        for ms in rule.between(since_ms - 1, done_ms):
            found = (ms in created) + sum(a <= ms <= b for a, b in ranges.items())
            found -= found > 1 and ms in self._planned.get(name, ())
            assert found == 1, f"{name} {rule_text} at {ms}: {found} of {done_ms}"
            self.checked += 1


def _meant(record: Record) -> int:
    if record.kind not in {Kind.PUT, Kind.DEL}:
        return 0
    return {4: 0, 3: 1, 1: 2, 2: 3}.get(record.reason or 0, 4)


def definition(rng: random.Random, name: str) -> Definition:
    ups = [one for one in NAMES if one < name]
    count = rng.randrange(min(3, len(ups) + 1)) if rng.random() < 0.4 else 0
    after = tuple(rng.sample(ups, count))
    rule = "-" if after and rng.random() < 0.4 else rng.choice(RULES)
    return Definition(
        name=name,
        rule=rule,
        handler="h",
        tz=rng.choice(["UTC", "Europe/Rome", "America/New_York"]),
        overlap=rng.choice(list(Overlap)),
        catch_up=rng.choice(list(CatchUp)),
        window_ms=rng.choice([None, None, HOUR_MS, 3 * HOUR_MS]),
        catch_up_max=rng.choice([1, 5, 1000]),
        jitter_ms=rng.choice([0, 0, 10_000, HOUR_MS]),
        after=after,
        payload=rng.choice([b"", b"p"]),
    )


class Life:
    """One random life."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = Clockwork(jobs_max=100_000)
        self.hand = Hand(self.world)
        self.is_full = False

    def step(self) -> None:
        rng, world = self.rng, self.world
        name = rng.choice(NAMES)
        acts: dict[str, tuple[int, Any]] = {
            "set": (4, lambda: world.scheduler.set(definition(rng, name))),
            "delete": (1, lambda: world.scheduler.delete(name, force=rng.random() < 0.5)),
            "pause": (2, lambda: world.scheduler.pause(name)),
            "resume": (3, lambda: world.scheduler.resume(name)),
            "trigger": (2, lambda: self.trigger(name)),
            "go": (12, lambda: world.go(rng.choice([1_000, MINUTE_MS, 10 * MINUTE_MS, HOUR_MS]))),
            "work": (10, self.work),
            "forward": (1, lambda: world.step_wall(rng.choice([5_000, HOUR_MS, DAY_MS]))),
            "back": (1, lambda: world.step_wall(-rng.choice([900, MINUTE_MS, HOUR_MS]))),
            "suspend": (1, lambda: world.suspend(rng.choice([2_000, HOUR_MS]))),
            "disk": (2, self.disk),
            "crash": (2, self.crash),
            "cut": (1, self.cut),
            "rerun": (1, lambda: world.scheduler.rerun(name, self.day(), downstream=True)),
            "backfill": (1, lambda: self.backfill(name)),
        }
        act = rng.choices(list(acts), [weight for weight, _ in acts.values()])[0]
        try:
            acts[act][1]()
        except (ScheduleError, WheeldError) as error:
            assert not isinstance(error, AssertionError)
        world.settle()

    def day(self) -> str:
        return f"2027-01-{15 + (self.world.wall_ms - WALL_MS) // DAY_MS:02d}"

    def trigger(self, name: str) -> None:
        later = self.rng.choice([None, None, self.world.wall_ms + MINUTE_MS])
        self.world.scheduler.trigger(name, at_ms=later, force=self.rng.random() < 0.3)

    def backfill(self, name: str) -> None:
        now_ms = self.world.wall_ms
        self.world.scheduler.backfill(
            name, now_ms - 2 * HOUR_MS, now_ms, active=3, reverse=self.rng.random() < 0.5
        )

    def work(self) -> None:
        rng = self.rng
        if self.is_full:
            return
        self.hand.take_jobs(for_ms=rng.choice([1000, HOUR_MS]))
        for run in list(self.hand.got):
            if rng.random() < 0.6:
                if rng.random() < 0.8:
                    self.hand.done(run)
                else:
                    self.hand.fail(run, rng.choice(["", "DEAD"]))

    def disk(self) -> None:
        room = self.rng.choice([DiskRoom.OK, DiskRoom.OK, DiskRoom.TIGHT, DiskRoom.FULL])
        self.world.core.set_disk_room(room)
        self.world.tick()
        self.is_full = room is DiskRoom.FULL

    def crash(self) -> None:
        """The process dies; memory is made anew, and is the same."""
        world = self.world
        world.core.set_disk_room(DiskRoom.OK)
        world.tick()
        world.go(1_000)
        world.go(0)
        before = world.snapshot()
        world.crash()
        world.go(0)
        assert world.snapshot() == before
        world.crash(self.rng.choice([0, 700, MINUTE_MS, 5 * HOUR_MS]))
        self.again()

    def cut(self) -> None:
        """The machine dies: what was not durable yet is lost, and time does not go back."""
        frames = len(self.world.frames) - self.rng.randrange(4)
        self.world.crash(1000, frames=max(0, frames))
        self.again()

    def again(self) -> None:
        self.is_full = False
        old, self.hand = self.hand, Hand(self.world)
        self.hand.got = old.got

    def rest(self) -> None:
        """Let everything come to an end, and look at it."""
        self.world.core.set_disk_room(DiskRoom.OK)
        self.world.go(MINUTE_MS)
        self.world.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_nominal_time_has_one_run_or_one_reason_whatever_happens(seed: int) -> None:
    life = Life(seed)
    for _ in range(150):
        life.step()
        assert life.world.core.check() == 0
    life.rest()
    account = Account(life.world.frames)
    assert [run for run, count in account.made.items() if count > 1] == []
    assert account.checked > 20
