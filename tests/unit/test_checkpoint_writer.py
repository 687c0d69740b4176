"""What carries a checkpoint to its file: a thread at a rate, over disks that fail in odd ways."""

import errno
import os
import threading
from itertools import count

import pytest
from _wheeld import ffi as core_ffi
from _wheeld import lib
from cffi import FFI

from tests.asking import ask
from tests.fed import TERM
from tests.unit.test_checkpoint import PATH, SALT, Saved, chunks, rebuilt, scan, start
from wal.facts import CheckpointStop
from wheel.engine.core import Commit, Core, CoreOptions
from wheel.engine.facts import CheckpointPhase, Clocks, Sync
from wheel.errors import CoreError

OVER = (CheckpointPhase.DONE, CheckpointPhase.FAILED)
CALLS = {
    "open": "int(*)(void *, const char *, int, int)",
    "close": "int(*)(void *, int)",
    "pread": "int64_t(*)(void *, int, void *, size_t, int64_t)",
    "pwrite": "int64_t(*)(void *, int, const void *, size_t, int64_t)",
    "datasync": "int(*)(void *, int)",
    "dirsync": "int(*)(void *, const char *)",
    "rename": "int(*)(void *, const char *, const char *)",
    "unlink": "int(*)(void *, const char *)",
    "allocate": "int(*)(void *, int, int64_t)",
    "now_ns": "uint64_t(*)(void *)",
    "writeback": "int(*)(void *, int, int64_t, int64_t, int)",
    "forget": "int(*)(void *, int)",
}


class OddDisk:
    """One file in memory behind a table of file calls, each of which a test may replace.

    ``without`` names calls that the disk does not have.
    """

    def __init__(self, *, without=(), **instead):
        self.data = bytearray()
        self.there = False
        self.asked = []
        self.ffi = FFI()
        members = "".join(f"{kind.replace('(*)', f'(*{name})')};" for name, kind in CALLS.items())
        self.ffi.cdef(f"struct table {{ void *disk; {members} }};")
        self.table = self.ffi.new("struct table *")
        self.kept = []
        for name, kind in CALLS.items():
            if name in without:
                continue
            call = instead.get(name) or getattr(self, f"_{name}", lambda *_: -errno.ENOSYS)
            self.kept.append(self.ffi.callback(kind, self._noted(name, call)))
            setattr(self.table, name, self.kept[-1])

    def _noted(self, name, call):
        def noted(_disk, *arguments):
            self.asked.append((name, arguments))
            return call(*arguments)

        return noted

    @property
    def io(self):
        return int(self.ffi.cast("uintptr_t", self.table))

    def _open(self, path, flags, mode):
        assert flags & os.O_EXCL
        assert mode == 0o600
        self.there = True
        return 7

    def _close(self, fd):
        return 0

    def _unlink(self, path):
        self.data, was = bytearray(), self.there
        self.there = False
        return 0 if was else -errno.ENOENT

    def _pwrite(self, fd, p, size, offset):
        self.data[offset : offset + size] = self.ffi.buffer(p, size)[:]
        return size

    def _pread(self, fd, p, size, offset):
        part = bytes(self.data[offset : offset + size])
        self.ffi.memmove(p, part, len(part))
        return len(part)

    def _datasync(self, fd):
        return 0

    def _writeback(self, fd, offset, size, wait):
        return 0

    def _forget(self, fd):
        return 0


def big(jobs, **options):
    """Return a bench with so many jobs of 60 KB."""
    saved = Saved(jobs_max=jobs + 10, **options)
    for number in range(jobs):
        saved.conn.ask(f"SCHEDULE h +1h {number:060000}")
    return saved


PIECE_BYTES = {Sync.ALWAYS: 64 << 10, Sync.INTERVAL: 64 << 10, Sync.OFF: 1 << 20}


@pytest.mark.parametrize("sync", Sync)
def test_the_file_goes_to_the_disk_in_pieces_with_two_of_them_under_way_at_most(sync):
    """Small ones where a commit may wait for the disk, large ones where none does."""
    saved, disk, piece_bytes = big(200, sync=sync), OddDisk(), PIECE_BYTES[sync]
    saved.start(io=disk.io, slice_things=50)
    assert saved.finish().phase == CheckpointPhase.DONE
    written = under_way = 0
    for name, (_, *arguments) in disk.asked:
        if name == "pwrite":
            _, size, offset = arguments
            assert offset == written
            assert size <= piece_bytes
        elif name == "writeback":
            offset, size, wait = arguments
            assert offset == (written - under_way if wait else written)
            written += 0 if wait else size
            under_way += -size if wait else size
            assert under_way <= 2 * piece_bytes
    assert written == len(disk.data) > 10 << 20
    read = [a[2] for name, a in disk.asked if name == "pread"]
    assert max(read) == piece_bytes + 1, "where the file must end is looked at too"
    after = [name for name, _ in disk.asked if name in ("datasync", "forget", "pread")]
    assert after[:3] == ["datasync", "forget", "pread"]
    assert scan(bytes(disk.data)).stop is CheckpointStop.WHOLE


def test_a_disk_without_hints_does_as_well():
    saved, disk = Saved().fill(), OddDisk(without=("writeback", "forget"))
    saved.start(io=disk.io)
    assert saved.finish().phase == CheckpointPhase.DONE
    assert scan(bytes(disk.data)).stop is CheckpointStop.WHOLE


def nth(number, result, otherwise):
    """Return a call that gives a result at its nth time."""
    counter = count(1)
    return lambda *arguments: result if next(counter) == number else otherwise(*arguments)


ODD = {
    "begun writeback fails": ({"writeback": lambda *_: -errno.EIO}, "writeback", errno.EIO, 0),
    "awaited writeback fails": (
        {"writeback": lambda _fd, _offset, _size, wait: -errno.ENOSPC if wait else 0},
        "writeback",
        errno.ENOSPC,
        0,
    ),
    "a write makes no progress": ({"pwrite": lambda *_: 0}, "pwrite", errno.EIO, 0),
    "the cache cannot be dropped": ({"forget": lambda *_: -errno.EIO}, "forget", errno.EIO, 0),
    "the file is empty when read": ({"pread": lambda *_: 0}, "verify", 0, CheckpointStop.SHORT),
}


@pytest.mark.parametrize("what", ODD)
def test_an_odd_disk_fails_the_checkpoint_alone(what):
    instead, call, error, verdict = ODD[what]
    saved, disk = big(100), OddDisk(**instead)
    saved.start(io=disk.io, slice_things=50)
    state = saved.finish()
    assert (state.phase, state.call) == (CheckpointPhase.FAILED, call)
    assert (state.error, state.verdict) == (error, verdict)
    assert not disk.there
    saved.bench.check()


def test_a_file_that_grew_by_itself_is_refused():
    disk = OddDisk()

    def more(fd, p, size, offset):
        disk.data += b"?" if len(disk.data) == length[0] else b""
        return disk._pread(fd, p, size, offset)

    saved, length = Saved().fill(), [len(Saved().fill().save())]
    disk = OddDisk(pread=more)
    saved.start(io=disk.io)
    state = saved.finish()
    assert (state.call, state.verdict) == ("verify", CheckpointStop.TRAILING)


def test_what_cannot_be_begun_is_refused_and_changes_nothing():
    saved = Saved()
    c, start_of = saved.bench.core._core, core_ffi.new("wd_checkpoint_start *")
    io = lib.wd_io_real()
    begin = lib.wd_core_checkpoint_start
    assert begin(c, io, start_of) == lib.WD_EINVAL, "no path"
    assert begin(c, core_ffi.NULL, start_of) == lib.WD_EINVAL
    assert begin(c, io, core_ffi.NULL) == lib.WD_EINVAL
    long = core_ffi.new("char[]", b"/" * 1024)
    start_of.path = long
    assert begin(c, io, start_of) == lib.WD_EINVAL
    assert lib.wd_core_load(c, core_ffi.NULL, 0) == lib.WD_EINVAL
    assert saved.state.phase == CheckpointPhase.IDLE
    with Core(saved.bench.options) as loading, pytest.raises(CoreError, match="invalid"):
        loading.checkpoint_start(PATH, salt=SALT)
    saved.bench.core.checkpoint_abort()


# ---------------------------------------------------------------- by a thread


@pytest.fixture
def served(tmp_path):
    """Return a core with sockets and 3,000 jobs, in memory, whose loop is ours."""
    options = CoreOptions(commit=Commit.DRIVEN, jobs_max=10_000)
    with Core(options) as core:
        core.start(term=TERM, rel_ms=1 << 40, clocks=Clocks(wall_ms=1 << 40, boot_ms=1, mono_ms=1))
        handle = core.fed_open("filler")
        for _ in range(30):
            core.fed_input(handle, (b"SCHEDULE h +9h " + b"p" * 900 + b"\r\n") * 100)
            core.commit()
            while batch := core.take_batch():
                core.batch_durable(batch.lsn)
            core.fed_taken(handle, len(core.fed_output(handle).data))
        yield core, tmp_path / "next.tmp"


def run_until_over(core):
    """Return (state, rounds): each round waits for the core to have something to do."""
    rounds = 0
    while (state := core.checkpoint_state()).phase not in OVER:
        core.poll(60_000)
        rounds += 1
    return state, rounds


def test_an_idle_core_keeps_itself_awake_until_the_checkpoint_is_over(served):
    """Each wait would last a minute if nobody woke the loop."""
    core, path = served
    path.write_bytes(b"something else")
    core.checkpoint_start(str(path), salt=SALT)
    state, rounds = run_until_over(core)
    assert state.phase == CheckpointPhase.DONE, state
    assert (state.slots_done, state.jobs) == (3000, 3000)
    assert rounds < 500, "it wakes itself for work alone"
    assert state.slices <= rounds
    assert 0 < state.slice_cpu_ns_max <= state.scan_ns
    assert state.slice_ns_max > 0
    data = path.read_bytes()
    assert (len(data), path.stat().st_mode & 0o777) == (state.size_bytes, 0o600)
    with Core(CoreOptions(jobs_max=10_000)) as other:
        other.load(data)
        other.start(term=TERM, rel_ms=1 << 40, clocks=Clocks(wall_ms=1 << 40, boot_ms=1, mono_ms=1))
        assert other.state_hash() == core.state_hash()


def test_long_things_are_timed_too_and_a_slow_writer_holds_the_scan_back():
    """60 KB each, 12 MB in all: over ten times what the buffers hold."""
    disk = OddDisk()
    saved = big(200)
    saved.start(io=disk.io, slice_things=0)
    rounds = 0
    while (state := saved.state).phase not in OVER:
        saved.bench.settle()
        rounds += 1
    assert state.phase == CheckpointPhase.DONE
    assert rounds > 40, "a slice ends by the clock, or when all buffers are full"
    assert saved.state.slices > 40
    with rebuilt(saved, bytes(disk.data)) as core:
        start(core, saved.bench)
        assert core.state_hash() == saved.bench.core.state_hash()


def test_the_rate_is_kept_while_writing_and_reading_back(served):
    core, path = served
    core.checkpoint_start(str(path), salt=SALT, rate_bytes=40_000_000)
    state, _ = run_until_over(core)
    assert state.phase == CheckpointPhase.DONE
    assert state.took_ns >= 2 * state.size_bytes / 40e6 * 1e9 * 0.8


def test_what_is_written_within_the_rate_does_not_wait_for_it(tmp_path):
    """Small chunks behind a block: each comes before its time is up, and none sleeps."""
    saved = Saved().fill()
    saved.bench.settle()
    for number in range(20):
        path = tmp_path / f"{number}.tmp"
        saved.bench.core.checkpoint_start(str(path), salt=SALT, rate_bytes=42_000_000)
        while saved.state.phase not in (CheckpointPhase.DONE, CheckpointPhase.FAILED):
            saved.bench.settle()
        assert saved.state.phase == CheckpointPhase.DONE
        saved.bench.settle()  # takes it down


def test_within_rounds_nobody_waits_for_the_rate():
    saved = Saved().fill()
    saved.start(rate_bytes=1)  # at which it would take hours
    assert scan(saved.save_rest()).stop == CheckpointStop.WHOLE


def test_a_checkpoint_is_given_up_while_its_thread_waits_for_the_rate(served):
    core, path = served
    before = set(threading.enumerate())
    core.checkpoint_start(str(path), salt=SALT, rate_bytes=1000)
    while not core.checkpoint_state().written_bytes:
        core.poll(1000)
    core.checkpoint_abort()
    assert not path.exists()
    assert core.checkpoint_state().phase == CheckpointPhase.IDLE
    core.checkpoint_start(str(path), salt=SALT)
    assert run_until_over(core)[0].phase == CheckpointPhase.DONE
    assert set(threading.enumerate()) == before


def test_a_thread_that_cannot_make_its_file_says_so_and_takes_no_more(served):
    core, path = served
    core.checkpoint_start(str(path.parent / "nowhere" / "next.tmp"), salt=SALT)
    state, _ = run_until_over(core)
    assert (state.phase, state.call, state.error) == (CheckpointPhase.FAILED, "open", errno.ENOENT)


# ---------------------------------------------------------------- the scan


def test_a_gap_that_opens_in_a_ring_while_it_is_written_is_left_out():
    """Entries that were forgotten between two slices are in no chunk; nothing else is missing."""
    saved = Saved()
    for number in range(8):
        saved.conn.ask(f"SCHEDULE h +9h x KEY k{number} ONCE t{number}")
    for number in range(4):
        saved.conn.ask(f"CANCEL k{number}")
    saved.bench.advance(3_000_000)
    for number in range(4, 8):
        saved.conn.ask(f"CANCEL k{number}")
        saved.conn.ask(f"SCHEDULE h +9h x ONCE u{number}")
    saved.start(slice_things=1)
    while saved.state.slots_done < saved.state.slots:
        saved.bench.core.commit()
    saved.bench.advance(700_000)  # the older half is over when the next frame ends
    saved.conn.feed(b"SCHEDULE h +9h x\r\n")
    data = saved.save_rest()
    ended = [at for at, _, kind in chunks(data) if kind == 5]
    firsts = [int.from_bytes(data[at + 24 : at + 32], "little") for at in ended]
    counts = [int.from_bytes(data[at + 20 : at + 24], "little") for at in ended]
    assert firsts == [1, 5]
    assert counts[0] < 4, "or there is no gap"
    with rebuilt(saved, data) as core:
        start(core, saved.bench)
        assert core.state_hash() == saved.bench.core.state_hash()
        assert core.engine_figures()["ended_count"] == 4


def test_huge_things_stand_in_chunks_of_their_own():
    saved = Saved(payload_bytes_max=1 << 20)
    for number in range(6):
        payload = b"%d" % number * 900_000
        line = b"*4\r\n$8\r\nSCHEDULE\r\n$1\r\nh\r\n$3\r\n+1h\r\n$%d\r\n%s\r\n"
        saved.conn.feed(line % (len(payload), payload))
        saved.bench.settle()
        saved.conn.take()
    saved.conn.ask("SCHEDULE h +1h small")
    data = saved.save(slice_things=2)
    assert max(whole for _, whole, _ in chunks(data)) > 900_000
    with rebuilt(saved, data) as core:
        start(core, saved.bench)
        assert core.state_hash() == saved.bench.core.state_hash()
    assert len(ask(saved.conn, "JOBS COUNT 10")[1]) == 7
