"""When checkpoints are made, who waits for which, and what becomes of those that fail.

The log and its files are real, on a simulated disk; the core is a stand-in that writes its file at
once and says that it is done when the test lets it.
"""

import asyncio
from dataclasses import replace

import pytest

from server.checkpoints import (
    HOLDS_MAX,
    Checkpointer,
    CheckpointFailedError,
    Damaged,
    Policy,
)
from tests.ckptkit import write_checkpoint
from tests.fakes import Lines, StandingClock
from tests.logkit import DATA, UUID, open_, replayed, start
from tests.simdisk import SimDisk
from wal.manifest import Checkpoint
from wheel.engine.facts import CheckpointPhase, CheckpointState
from wheel.errors import CoreError

MIB = 1 << 20
POLICY = Policy(keep=2, log_bytes_min=64 * MIB, segment_bytes=64 * MIB)
LAST = Checkpoint(start_lsn=5, end_lsn=5, size_bytes=200 * MIB, digest=0, rows=1, seq=1, wall_ms=0)
IDLE = CheckpointState(**{name: "" if name == "call" else 0 for name in CheckpointState.__slots__})


# ---- the policy ----


def due(last, log_bytes, segments=1, policy=POLICY):
    return policy.is_due(last, log_bytes=log_bytes, segments=segments)


def test_the_first_is_due_by_the_fixed_size_and_later_ones_by_the_larger_of_it_and_three_quarters():
    assert not due(None, 64 * MIB)
    assert due(None, 64 * MIB + 1)
    assert not due(LAST, 150 * MIB)
    assert due(LAST, 150 * MIB + 1)
    assert not due(replace(LAST, size_bytes=MIB), 64 * MIB)
    assert POLICY.next_at_bytes(LAST) == 150 * MIB


def test_a_log_in_very_many_files_is_due_whatever_its_size():
    assert not due(None, 0, segments=66)
    assert due(None, 0, segments=67)
    assert not due(LAST, 0, segments=68)
    assert due(LAST, 0, segments=69)


# ---- making them ----


class StandIn:
    """A core that writes its file when it is told to begin, and ends when it is let."""

    def __init__(self, disk, log):
        self.disk, self.log = disk, log
        self.state = IDLE
        self.done_lsn = 0
        self.begun = []
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.refuses = self.fails = False
        self.mends = True
        self.corrupt = []  # jobs whose payloads it stands at

    def lsn(self):
        return self.done_lsn

    def append(self, data=b"record"):
        self.done_lsn += 1
        self.log.append(data, first_lsn=self.done_lsn, records=1, wall_ms=1, rel_ms=1)

    def checkpoint_start(self, path, *, salt, rate_bytes):
        assert path == f"{DATA}/snap/next.tmp"
        assert rate_bytes > 0
        del salt
        if self.refuses:
            raise CoreError("one is under way")
        made = write_checkpoint(
            self.disk, self.log, uuid=UUID, term=self.log.term, start_lsn=self.done_lsn
        )
        self.begun.append(self.done_lsn)
        self.state = replace(
            IDLE,
            phase=CheckpointPhase.DONE,
            start_lsn=made.start_lsn,
            end_lsn=made.end_lsn,
            size_bytes=made.size_bytes,
            crc=made.digest,
        )
        if self.fails:
            self.state = replace(IDLE, phase=CheckpointPhase.FAILED, error=28, call="pwrite")

    def checkpoint_state(self):
        if self.corrupt and self.state is not IDLE:
            return replace(self.state, phase=CheckpointPhase.SCANS, corrupt_id=self.corrupt[0])
        if self.let_go.is_set():
            return self.state
        return replace(self.state, phase=CheckpointPhase.SCANS)

    def checkpoint_abort(self):
        self.state = IDLE

    def checkpoint_go_on(self):
        if self.mends:
            self.corrupt.pop(0)


class Mends:
    """Puts payloads back, or says that it cannot."""

    def __init__(self):
        self.can, self.mended, self.asked, self.stopped = True, 0, [], False
        self.stopped = False

    def stop(self):
        self.stopped = True

    async def mend(self, job, in_thread):
        self.asked.append(job)
        await in_thread(lambda: None)
        self.mended += self.can
        return self.can


class Bench:
    def __init__(self, policy=POLICY):
        self.disk = SimDisk()
        store = open_(self.disk)
        replayed(store)
        self.log = start(store)
        self.core = StandIn(self.disk, self.log)
        self.clock, self.lines = StandingClock(), Lines()
        self.connected, self.mender = {1, 2}, Mends()
        self.made = Checkpointer(
            core=self.core,
            log=self.log,
            policy=policy,
            clock=self.clock,
            logger=self.lines.logger,
            mender=self.mender,
            is_connected=self.connected.__contains__,
        )

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self.made.run())
        return self

    async def __aexit__(self, *_):
        await self.made.stop()
        assert self.mender.stopped
        await self.task
        self.log.close()

    def snaps(self):
        return sorted(path[-21:-5] for path in self.disk.files() if path.endswith(".snap"))

    def segments(self):
        return sorted(path for path in self.disk.files() if path.endswith(".wal"))


async def until(condition):
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come about")


def run(test):
    asyncio.run(asyncio.wait_for(test, 30))


def test_save_answers_when_it_is_in_force_and_covers_what_was_there():
    async def test():
        async with Bench() as bench:
            for _ in range(3):
                bench.core.append()
            made = await bench.made.save()
            assert (made.start_lsn, bench.made.newest) == (3, made)
            assert bench.snaps() == [f"{3:016x}"]
            again = await bench.made.save()
            assert again == made, "nothing has changed, so nothing is written"
            assert bench.core.begun == [3]
            assert bench.lines.events == ["checkpoint_made"]

    run(test())


def test_who_asks_while_one_is_made_waits_for_the_next_and_all_for_the_same():
    async def test():
        async with Bench() as bench:
            bench.core.append()
            bench.core.let_go.clear()
            first = bench.made.save()
            await until(lambda: bench.core.begun)
            bench.core.append()
            second, third = bench.made.save(), bench.made.save()
            bench.core.let_go.set()
            assert (await first).start_lsn == 1
            assert (await second) == (await third)
            assert second.result().start_lsn == 2
            assert bench.core.begun == [1, 2]

    run(test())


def test_one_is_made_by_itself_when_the_log_is_long_enough():
    async def test():
        policy = replace(POLICY, log_bytes_min=5_000)
        async with Bench(policy) as bench:
            bench.core.append(b"x" * 3000)
            bench.core.append(b"x" * 3000)
            await until(lambda: bench.made.newest is not None)
            assert bench.made.newest.start_lsn == 2
            assert bench.made.section()["checkpoint_log_bytes"] == 0

    run(test())


def test_a_failed_one_is_told_and_tried_again_in_a_minute_and_the_log_is_left_alone():
    async def test():
        async with Bench(replace(POLICY, log_bytes_min=1)) as bench:
            bench.core.fails = True
            bench.core.append()
            with pytest.raises(CheckpointFailedError, match="No space left") as failed:
                await bench.made.save()
            assert failed.value.code == "ERR"
            section = bench.made.section()
            assert (section["checkpoint_alarm"], section["checkpoint_failures"]) == ("failed", 1)
            assert bench.made._is_due() is False
            bench.clock.now_ns += 61_000_000_000
            assert bench.made._is_due() is True
            bench.core.fails = False
            bench.core.append()
            assert (await bench.made.save()).start_lsn == 2
            assert bench.made.section()["checkpoint_alarm"] == ""
            assert bench.lines.events == ["checkpoint_failed", "checkpoint_made"]

    run(test())


def test_payloads_that_changed_in_memory_are_put_back_one_after_the_other():
    async def test():
        async with Bench() as bench:
            bench.core.append()
            bench.core.corrupt = [77, 78]
            made = await bench.made.save()
            assert made.start_lsn == 1
            assert (bench.mender.asked, bench.made.mended) == ([77, 78], 2)
            assert bench.made.section()["checkpoint_alarm"] == ""

    run(test())


@pytest.mark.parametrize("why", ["no copy", "memory that keeps nothing", "too many"])
def test_one_that_cannot_be_put_back_fails_the_checkpoint_and_says_what_to_do(why, monkeypatch):
    async def test():
        async with Bench() as bench:
            bench.core.append()
            bench.core.corrupt = [77, 78]
            bench.mender.can = why != "no copy"
            bench.core.mends = why != "memory that keeps nothing"
            monkeypatch.setattr("server.checkpoints.MENDS_MAX", 1 if why == "too many" else 9)
            job = 78 if why == "too many" else 77
            with pytest.raises(CheckpointFailedError, match=f"payload of job {job} changed in mem"):
                await bench.made.save()
            assert bench.mender.asked == [77]
            assert bench.core.state is IDLE
            assert "restart" in bench.made.section()["checkpoint_last_error"]
            assert bench.made.section()["checkpoint_alarm"] == "failed"
            assert bench.lines.events == ["checkpoint_failed"]

    run(test())


def test_a_grant_that_found_one_asks_for_one_checkpoint_which_puts_it_back():
    async def test():
        async with Bench() as bench:
            bench.core.append()
            bench.made.seek(0)
            bench.core.corrupt = [77]
            bench.made.seek(1)
            await until(lambda: bench.made.mended == 1 and bench.snaps() == ["0000000000000001"])
            bench.core.append()
            bench.made.seek(1)  # nothing new
            await bench.made.save()
            bench.made.seek(2)  # heard of late: the last one has put it back
            await until(lambda: not bench.made._is_due())
            assert bench.core.begun == [1, 2]

    run(test())


def test_a_core_that_refuses_is_a_failure_too():
    async def test():
        async with Bench() as bench:
            bench.core.refuses = True
            bench.core.append()
            with pytest.raises(CheckpointFailedError, match="under way"):
                await bench.made.save()

    run(test())


def test_an_error_of_the_disk_while_it_is_published_is_told_and_the_next_one_works():
    async def test():
        async with Bench() as bench:
            bench.core.append()
            bench.disk.fault("rename", 1, 5)
            with pytest.raises(CheckpointFailedError, match="Input/output error"):
                await bench.made.save()
            assert bench.made.newest is None
            assert (await bench.made.save()).start_lsn == 1

    run(test())


def test_for_lack_of_room_the_older_generation_goes_first_and_then_none_is_begun():
    async def test():
        async with Bench() as bench:
            for _ in range(2):
                bench.core.append(b"x" * 3000)
                await bench.made.save()
            assert len(bench.made._files.manifest.checkpoints) == 2
            bench.core.append()
            bench.disk.free = 100
            with pytest.raises(CheckpointFailedError) as refused:
                await bench.made.save()
            assert refused.value.code == "DISKFULL"
            assert bench.snaps() == [f"{2:016x}"], "the older generation makes room"
            section = bench.made.section()
            assert section["checkpoint_alarm"] == "skipped"
            assert "100 bytes are free" in section["checkpoint_skipped"]
            with pytest.raises(CheckpointFailedError):
                await bench.made.save()
            assert bench.lines.events.count("checkpoint_skipped") == 1
            bench.disk.free = 1 << 40
            assert (await bench.made.save()).start_lsn == 3
            assert bench.made.section()["checkpoint_alarm"] == ""

    run(test())


def test_with_less_room_than_one_takes_only_one_is_kept():
    async def test():
        async with Bench() as bench:
            bench.core.append()
            size = (await bench.made.save()).size_bytes
            bench.core.append()
            bench.disk.free = int(1.2 * size)
            bench.core.let_go.clear()
            future = bench.made.save()
            await until(lambda: len(bench.core.begun) == 2)
            bench.disk.free = size - 1  # it has taken its room
            bench.core.let_go.set()
            assert (await future).start_lsn == 2
            await until(lambda: bench.snaps() == [f"{2:016x}"])

    run(test())


def test_nothing_is_deleted_while_a_connection_holds_the_files():
    async def test():
        async with Bench(replace(POLICY, keep=1)) as bench:
            assert bench.made.hold(1)
            before = bench.segments()
            for _ in range(3):
                for _ in range(3):
                    bench.core.append(b"x" * 3000)
                await bench.made.save()
            assert len(bench.snaps()) == 3
            assert set(before) <= set(bench.segments())
            bench.connected.discard(1)  # it is gone without a word
            bench.made._wake.set()
            await until(lambda: len(bench.snaps()) == 1)
            assert not set(before) <= set(bench.segments())
            assert bench.made.release(1) is False

    run(test())


def test_holds_are_few():
    async def test():
        async with Bench() as bench:
            bench.connected.update(range(100))
            assert [bench.made.hold(i) for i in range(HOLDS_MAX + 1)] == [True] * HOLDS_MAX + [
                False
            ]
            assert bench.made.hold(0), "it holds already"
            assert bench.made.release(3)
            assert bench.made.hold(50)

    run(test())


def test_a_stop_ends_what_is_made_and_tells_those_who_wait():
    async def test():
        bench = Bench()
        async with bench:
            bench.core.append()
            bench.core.let_go.clear()
            future = bench.made.save()
            await until(lambda: bench.core.begun)
            later = bench.made.save()
        for one in (future, later):
            with pytest.raises(CheckpointFailedError) as refused:
                await one
            assert refused.value.code == "TRYAGAIN"
        assert bench.lines.events == []

    run(test())


# ---- what was found damaged ----


async def twice_saved(bench):
    for _ in range(2):
        bench.core.append()
        await bench.made.save()
    return [one.start_lsn for one in bench.log.checkpoints.manifest.checkpoints]


def in_force(bench):
    return [one.start_lsn for one in bench.log.checkpoints.manifest.checkpoints]


def test_damage_behind_the_newest_checkpoint_ends_the_older_generation_by_itself():
    async def test():
        async with Bench() as bench:
            assert await twice_saved(bench) == [1, 2]
            bench.made.heal(Damaged(start_lsn=1))
            await bench.made.save()
            assert in_force(bench) == [2]
            assert bench.lines.events.count("scrub_healed") == 1
            await until(lambda: bench.snaps() == [f"{2:016x}"])
            bench.core.append()
            await bench.made.save()
            assert in_force(bench) == [2, 3]  # two generations again

    run(test())


def test_a_damaged_newest_checkpoint_is_replaced_as_soon_as_anything_has_changed():
    async def test():
        async with Bench() as bench:
            assert await twice_saved(bench) == [1, 2]
            bench.made.heal(Damaged(start_lsn=2))
            with pytest.raises(CheckpointFailedError, match="nothing has changed") as caught:
                await bench.made.save()
            assert caught.value.code == "TRYAGAIN"
            assert in_force(bench) == [1, 2]
            writes = bench.log.checkpoints.manifest.count
            bench.core.append()
            bench.clock.now_ns += 60_000_000_000
            bench.made.moved()
            await until(lambda: in_force(bench) == [3])
            assert bench.log.checkpoints.manifest.count == writes + 1
            assert bench.lines.events.count("scrub_healed") == 1
            assert bench.core.begun == [1, 2, 3]

    run(test())


def test_a_damaged_newest_checkpoint_that_nobody_asks_about_waits_for_the_change_alone():
    async def test():
        async with Bench() as bench:
            await twice_saved(bench)
            bench.made.heal(Damaged(start_lsn=2))
            for _ in range(10):
                await asyncio.sleep(0)
            bench.core.append()
            bench.clock.now_ns += 20_000_000
            bench.made.moved()
            await until(lambda: in_force(bench) == [3])

    run(test())


def test_a_damaged_segment_is_replaced_by_a_checkpoint_without_being_asked():
    async def test():
        async with Bench() as bench:
            bench.core.append(bytes(3000))
            bench.core.append(bytes(3000))
            bench.core.append(bytes(3000))
            assert len(bench.segments()) >= 3
            bench.made.heal(Damaged(seq=1))
            await until(lambda: in_force(bench) == [3])
            assert bench.log.checkpoints.manifest.oldest_seq > 1
            await until(lambda: "scrub_healed" in bench.lines.events)

    run(test())
