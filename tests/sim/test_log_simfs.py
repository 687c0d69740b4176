"""The shipped log over a simulated disk: power cuts, errors and lies at every call.

What has to hold, whatever was lost of what no sync covered: a start is never refused after a crash;
it shows a prefix of what was appended, with everything confirmed (mode always) or synced (interval,
off) in it; and what one start has shown, every later start shows.
"""

import random
from collections import Counter
from contextlib import suppress

import pytest
from _wheeld import lib

from tests.logkit import SEGMENT_BYTES, History, Server, open_, payload, read_all, replayed, start
from tests.simdisk import SimDisk
from wal.errors import DiskFullError, LogFailedError, RefusedError, Rule
from wal.frame import FsyncMode
from wal.recover import Ending

MODES = list(FsyncMode)
CUT_SEEDS = 24
ENOSPC, EIO = 28, 5


def workload(disk, history, fsync):
    """First start, rotations with and without a segment made ahead, clean stop, second life."""
    rng = random.Random(5)
    server = Server(disk, history, fsync)
    server.start()
    server.log.prepare()
    for i in range(11):
        server.append(payload(rng), records=1 + i % 3)
        if i == 4:
            server.sync()
            server.log.mark()
        if i == 6:
            server.log.prepare()
    server.stop()
    server = Server(disk, history, fsync, salt_seed=8)
    server.start()
    for _ in range(4):
        server.append(payload(rng))
    server.sync()
    server.append(b"last")
    server.log.close()
    return server


def run_until_power_off(fsync, steps):
    """Return (disk, history) of the workload, cut after so many steps."""
    disk, history = SimDisk(seed=steps), History()
    disk.power_off_after(steps)
    with suppress(LogFailedError, OSError):
        workload(disk, history, fsync)
    return disk, history


def steps_of_workload(fsync):
    disk = SimDisk(seed=0)
    workload(disk, History(), fsync)
    return disk.steps


def recovered(disk, history, fsync, endings=None):
    """Start on a disk after a crash, append, and look again: nothing that was shown goes away."""
    server = Server(
        disk, History(list(history.attempted), history.confirmed, history.durable), fsync
    )
    store = server.start()
    if endings is not None:
        endings[store.verdict.ending] += 1
    server.append(b"after the crash")
    server.log.close()
    server.history.check(read_all(disk.crashed(0), fsync=fsync)[0])
    return server


@pytest.mark.parametrize("fsync", MODES)
def test_a_power_cut_at_any_step_loses_nothing_durable_and_is_never_refused(fsync):
    endings = Counter()
    for steps in range(1, steps_of_workload(fsync) + 1):
        disk, history = run_until_power_off(fsync, steps)
        for seed in range(CUT_SEEDS):
            cut = disk.crashed(seed if seed < 4 else seed + 100 * steps)
            recovered(cut, history, fsync, endings)
    always = fsync is FsyncMode.ALWAYS
    expected = {Ending.CLEAN, Ending.TORN} if always else {Ending.CLEAN, Ending.CUT}
    assert expected <= set(endings), "the sweep did not reach all it is there for"


@pytest.mark.parametrize("fsync", MODES)
def test_a_killed_process_loses_nothing_that_it_had_written(fsync):
    for steps in range(1, steps_of_workload(fsync) + 1, 3):
        disk, history = run_until_power_off(fsync, steps)
        disk.power_off_after(0)  # the machine goes on, only the process is gone
        history.durable = history.confirmed
        recovered(disk, history, fsync)


@pytest.mark.parametrize("fsync", MODES)
def test_a_power_cut_during_the_start_after_a_power_cut(fsync):
    rng = random.Random(11)
    total = steps_of_workload(fsync)
    for case in range(60):
        disk, history = run_until_power_off(fsync, rng.randrange(1, total))
        disk.crash(rng.randrange(4, 1 << 30))
        whole = disk.clone()
        before = whole.steps
        Server(whole, History(list(history.attempted)), fsync).start()
        start_steps = whole.steps - before
        for steps in range(1, start_steps + 1):
            second = disk.clone()
            second.power_off_after(steps)
            life = History(list(history.attempted), history.confirmed, history.durable)
            with pytest.raises((LogFailedError, OSError)):
                start_and_append(second, life, fsync)
            second.crash(case * 1000 + steps)
            recovered(second, life, fsync)


def start_and_append(disk, history, fsync):
    server = Server(disk, history, fsync)
    server.start()
    server.append(b"never")


def test_names_of_a_killed_server_are_durable_before_a_later_header_vouches_for_them():
    """Mode interval, killed: its segments are read, their names not synced. Then a power cut."""
    whole, history = SimDisk(), History()
    server = Server(whole, history, FsyncMode.INTERVAL)
    server.start()
    for i in range(4):
        server.append(bytes([i]) * 3000)
    server.log.close()
    steps = 0
    while True:
        steps += 1
        disk = whole.clone()
        disk.power_off_after(steps)
        life = History(list(history.attempted))
        server = Server(disk, life)
        with suppress(LogFailedError, OSError):
            server.start()
        for seed in range(30):
            recovered(disk.crashed(seed), life, FsyncMode.ALWAYS)
        if server.started:
            assert steps > 5
            return


def random_life(rng, disk, history, fsync):
    """One process with random calls until it stops, or the power goes."""
    server = Server(disk, history, fsync, salt_seed=rng.randrange(1 << 32))
    disk.power_off_after(rng.choice((0, rng.randrange(1, 120))))
    try:
        server.start()
        for _ in range(rng.randrange(40)):
            call = rng.choices(
                (
                    lambda: server.append(payload(rng), records=rng.randrange(1, 5)),
                    server.log.prepare,
                    server.log.mark,
                    server.sync,
                ),
                weights=(8, 1, 1, 1),
            )[0]
            call()
        if rng.random() < 0.5:
            server.stop()
    except (LogFailedError, OSError):
        return


def random_history(seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    disk, history = SimDisk(seed), History()
    for _ in range(4):
        random_life(rng, disk, history, rng.choice(MODES))
        if rng.random() < 0.2:
            disk.power_off_after(0)  # killed, not cut
        else:
            disk.crash(rng.randrange(4, 1 << 30))
    disk.power_off_after(0)
    recovered(disk, history, FsyncMode.ALWAYS)


@pytest.mark.parametrize("block", range(4))
def test_random_histories_of_processes_in_changing_modes(block):
    for seed in range(block * 200, block * 200 + 200):
        random_history(seed)


@pytest.mark.long
def test_many_random_histories():
    for seed in range(1_000, 40_000):
        random_history(seed)


# ---- errors ----


@pytest.mark.parametrize("fsync", MODES)
@pytest.mark.parametrize("call", ["pwrite", "datasync", "dirsync", "rename", "open"])
def test_an_io_error_at_any_call_ends_the_log_for_good(fsync, call):
    """Nothing is confirmed after it, and a restart shows only what is really on the device."""
    nth = 0
    while True:
        nth += 1
        disk, history = SimDisk(nth), History()
        disk.fault(call, nth, EIO)
        server = Server(disk, history, fsync)
        try:
            server.start()
            for i in range(9):
                server.append(bytes([i]) * 900)
                server.log.prepare()
            server.sync()
            server.log.mark()
        except (LogFailedError, OSError):
            assert disk.fault_done
            if server.started:
                confirmed = history.confirmed
                server.stays_failed()
                failure = server.log.error()  # noqa: TRY400 -- no logger
                assert failure.errno == EIO
                assert failure.lsn <= history.next_lsn
                assert history.confirmed == confirmed
                server.log.close()
        if not disk.fault_done:
            assert nth > 3  # the sweep passed the last call of this kind
            return
        if history.durable and fsync is FsyncMode.ALWAYS:
            assert history.durable == history.confirmed
        server = Server(disk, history, fsync)
        server.start()
        shown = len(history.attempted)
        server.log.close()
        assert len(read_all(disk.crashed(0), fsync=fsync)[0]) == shown


def test_a_failed_sync_is_not_hidden_by_the_page_cache_at_the_next_start():
    """The cache shows the frame, the device has not got it: the start must believe the device."""
    disk, history = SimDisk(), History()
    server = Server(disk, history)
    server.start()
    server.append(b"on the device")
    disk.fault("datasync", 1)
    with pytest.raises(LogFailedError):
        server.append(b"in the cache only")
    server.log.close()
    assert b"in the cache only" in disk.read(disk.files()[-1])
    assert [frame[2] for frame in read_all(disk)[0]] == [b"on the device"]


def test_a_short_write_is_continued():
    disk, history = SimDisk(), History()
    server = Server(disk, history)
    server.start()
    disk.fault("pwrite", 1, kind="SHORT")
    server.append(b"x" * 1000)
    assert disk.fault_done
    server.log.close()
    history.check(read_all(disk.crashed(0))[0])


@pytest.mark.parametrize("fsync", MODES)
def test_no_space_for_the_next_segment_is_not_the_end(fsync):
    disk, history = SimDisk(), History()
    server = Server(disk, history, fsync)
    server.start()
    server.append(b"a" * 3000)
    disk.fault("allocate" if fsync is FsyncMode.OFF else "pwrite", 1, ENOSPC)
    with pytest.raises(DiskFullError):
        server.log.prepare()
    assert not server.log.stats().prepared
    assert not [path for path in disk.files() if path.endswith(".tmp")]
    disk.fault("open", 1, ENOSPC)
    with pytest.raises(DiskFullError):  # the frame does not fit the segment any more
        server.append(b"b" * 3000)
    server.append(b"c" * 500)  # what still fits goes on
    server.append(b"b" * 3000)  # and with room again, rotation too
    assert server.log.stats().rotations == 1
    server.sync()
    server.log.close()
    history.check(read_all(disk.crashed(0), fsync=fsync)[0])


def test_only_opening_the_log_takes_memory():
    disk, history = SimDisk(), History()
    server = Server(disk, history)
    lib.wd_alloc_fail_at(1)
    with pytest.raises(LogFailedError, match="Cannot allocate memory"):
        server.start()
    lib.wd_alloc_fail_at(0)
    server.start()
    assert lib.wd_alloc_fail_at(0) == 1
    for i in range(8):
        server.append(bytes([i]) * 3000)
    server.log.prepare()
    server.stop()
    assert lib.wd_alloc_fail_at(0) == 0
    history.check(read_all(disk.crashed(0))[0])


@pytest.mark.parametrize("nth", range(1, 14))
def test_a_lying_sync_is_noticed_by_the_mark(nth):
    """The device loses what it said it had: a start never shows less than MARK without refusing."""
    disk, history = SimDisk(), History()
    server = Server(disk, history)
    server.start()
    disk.fault("datasync", nth, kind="LIE")
    for i in range(10):
        server.append(bytes([i + 1]) * 700)
    server.log.mark()
    marked = server.log.stats().marked_lsn
    server.log.close()
    disk.crash(0)
    try:
        frames, _ = read_all(disk)
    except RefusedError as refused:
        known = (Rule.LOST_TAIL, Rule.DAMAGED_DURABLE, Rule.SEGMENT_MISSING)
        assert refused.rule in known
        return
    # The lie hit MARK itself or nothing that mattered.
    assert len(frames) == marked == 10


def test_lies_about_a_frame_are_refused_and_not_only_survived():
    """The test above may not pass by lies that hit nothing: this one names the frame."""
    disk, history = SimDisk(), History()
    server = Server(disk, history)
    server.start()
    server.append(b"kept")
    disk.fault("datasync", 1, kind="LIE")
    server.append(b"lied about")
    server.log.mark()
    server.log.close()
    disk.crash(0)
    with pytest.raises(RefusedError, match="lsn 2 was known durable") as refused:
        read_all(disk)
    assert refused.value.rule is Rule.LOST_TAIL


# ---- what the modes promise ----


def test_mode_always_syncs_each_frame_before_it_says_so_and_rotation_syncs_header_and_name():
    disk, history = SimDisk(), History()
    server = Server(disk, history)
    server.start()
    before = len(disk.trace())
    server.append(b"x" * 3000)
    server.append(b"y" * 3000)
    calls = [(call, path.rpartition("/")[2]) for call, path, *_ in disk.trace()[before:]]
    first, second = "0000000000000001-0000000000000001.wal", "0000000000000002-0000000000000002.wal"
    assert calls == [
        ("pwrite", first),
        ("datasync", first),
        ("unlink", "next.tmp"),
        ("open", "next.tmp"),
        ("pwrite", "next.tmp"),
        ("datasync", "next.tmp"),
        ("pwrite", "next.tmp"),
        ("datasync", "next.tmp"),
        ("rename", second),
        ("dirsync", "wal"),
        ("pwrite", second),
        ("datasync", second),
    ]
    server.log.close()


@pytest.mark.parametrize("fsync", [FsyncMode.INTERVAL, FsyncMode.OFF])
def test_a_rotation_waits_for_no_sync_and_a_later_sync_covers_the_old_segment(fsync):
    disk, history = SimDisk(), History()
    server = Server(disk, history, fsync)
    server.start()
    server.log.prepare()
    before = len(disk.trace())
    server.append(b"x" * 3000)
    server.append(b"y" * 3000)
    assert [call for call, *_ in disk.trace()[before:]] == ["pwrite", "pwrite", "rename", "pwrite"]
    assert server.log.stats().unsynced_segments == 1
    assert server.log.stats().synced_lsn == 0
    server.sync()
    assert server.log.stats().unsynced_segments == 0
    assert server.log.stats().synced_lsn == 2
    server.log.close()
    history.check(read_all(disk.crashed(0), fsync=fsync)[0])


@pytest.mark.parametrize("fsync", [FsyncMode.INTERVAL, FsyncMode.OFF])
def test_sealed_segments_that_wait_for_a_sync_stay_few(fsync):
    """Mode off syncs in the background call, and in a rotation that is too far ahead of it."""
    disk, history = SimDisk(), History()
    server = Server(disk, history, fsync)
    server.start()
    seen = []
    for i in range(70):
        server.append(bytes([i]) * 3000)
        seen.append(server.log.stats().unsynced_segments)
    assert max(seen) == 32
    server.log.prepare()
    assert server.log.stats().unsynced_segments == 0
    server.log.close()


def test_mark_goes_around_its_ring_one_slot_a_write():
    disk, history = SimDisk(), History()
    server = Server(disk, history)
    server.start()
    server.append(b"x")
    for _ in range(9):
        server.log.mark()
    server.log.close()
    Server(disk, history).start()
    writes = [
        (offset, size)
        for call, path, offset, size, _ in disk.trace()
        if call == "pwrite" and path == "/data/MARK"
    ]
    assert writes[0] == (0, 4096)
    assert writes[1:] == [(count % 8 * 512, 512) for count in range(1, 12)]


def test_an_unsynced_tail_is_cut_moved_aside_and_counted():
    disk, history = SimDisk(), History()
    server = Server(disk, history, FsyncMode.OFF)
    server.start()
    server.append(b"kept", records=2)
    server.sync()
    for i in range(6):
        server.append(bytes([i + 1]) * 2000, records=3)
    server.log.close()
    first = next(path for path in disk.files() if path.endswith("1.wal"))
    disk.poke(first, 4096 + 72, bytes(512))  # the first unsynced frame's sector did not arrive
    store = open_(disk, fsync=FsyncMode.OFF)
    assert [frame[2] for frame in replayed(store)] == [b"kept"]
    log = start(store)
    assert store.verdict.ending is Ending.CUT
    assert store.verdict.cut_records == 18
    assert store.verdict.next_lsn == 3
    assert store.verdict.offset == 4096 + 72
    assert store.verdict.path == first
    assert all(path.endswith(".cut") and path in disk.files() for path in store.verdict.cut_files)
    assert len(store.verdict.cut_files) == 6  # the tail's copy and five later segments
    tail = disk.read(store.verdict.cut_files[0])
    assert tail[:4096] == disk.read(first)[:4096]
    assert b"\x01" * 1000 in tail
    log.close()
    cut = disk.crashed(0)
    assert all(cut.read(path) == disk.read(path) for path in store.verdict.cut_files)
    assert [frame[2] for frame in read_all(disk.crashed(0))[0]] == [b"kept"]


def test_the_same_damage_in_mode_always_is_refused():
    disk, history = SimDisk(), History()
    server = Server(disk, history, FsyncMode.ALWAYS)
    server.start()
    server.append(b"kept", records=2)
    for i in range(6):
        server.append(bytes([i + 1]) * 2000, records=3)
    server.log.close()
    first = next(path for path in disk.files() if path.endswith("1.wal"))
    disk.poke(first, 4096 + 72, bytes(512))
    files = {path: disk.read(path) for path in disk.files()}
    with pytest.raises(RefusedError) as refused:
        read_all(disk)
    assert refused.value.rule is Rule.DAMAGED_DURABLE
    assert (refused.value.path, refused.value.offset, refused.value.lsn) == (first, 4096 + 72, 3)
    assert {path: disk.read(path) for path in disk.files()} == files


@pytest.mark.parametrize(
    ("magic", "mode"), [(0x9123683E, FsyncMode.ALWAYS), (0xEF53, FsyncMode.OFF)]
)
def test_copy_on_write_disks_and_mode_off_get_allocated_segments_not_zeros(
    magic: int, mode: FsyncMode
):
    disk, history = SimDisk(), History()
    disk.magic = magic
    server = Server(disk, history, mode)
    server.start()
    server.append(b"x" * 3000)
    server.append(b"y" * 3000)
    server.log.close()
    calls = disk.trace()
    assert sum(call == "allocate" for call, *_ in calls) == 2
    assert not any(call == "pwrite" and size == SEGMENT_BYTES for call, _, _, size, _ in calls)
    history.check(read_all(disk.crashed(0))[0])
