"""Reading files again while the server runs: what is read, at which pace, and what is told."""

import errno
import random
import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest

from server.checkpoints import Damaged
from server.pace import SLICE_BYTES, PacedDisk
from server.scrub import Scrubber
from tests.docs import Stage
from tests.fakes import Lines, StandingClock
from tests.simdisk import SimDisk
from tests.store import Life, varied

DATA = "/data"
RATE = 1 << 20


class Tracked(SimDisk):
    """Notes which bytes of which file were read, and what was synced."""

    def __init__(self, handle=None):
        super().__init__(handle=handle)
        self.opened, self.seen, self.synced = {}, {}, 0
        self.cached = set()  # descriptors that may be read from the page cache, or left bytes in it

    def open(self, path, **options):
        fd = super().open(path, **options)
        self.opened[fd] = path
        self.cached.add(fd)
        return fd

    def drop_cache(self, fd):
        super().drop_cache(fd)
        self.cached.discard(fd)

    def pread(self, fd, size_bytes, offset):
        data = super().pread(fd, size_bytes, offset)
        self.seen.setdefault(self.opened[fd], set()).update(range(offset, offset + len(data)))
        return data

    def datasync(self, fd):
        self.synced += 1
        super().datasync(fd)


@pytest.fixture(scope="module")
def stopped():
    disk = SimDisk()
    varied(DATA, disk=disk)
    return disk


class Bench:
    """A server's store with two checkpoints and sealed segments, and what reads it again."""

    def __init__(self, stopped):
        self.disk = Tracked(stopped.lib.wd_simfs_clone(stopped.fs))
        self.life = Life(DATA, disk=self.disk)
        self.life.ask("SCHEDULE mail +1h new")
        self.clock, self.lines, self.asked = StandingClock(), Lines(), []
        self.slept_s, self.on_wait = 0.0, lambda: False
        self.scrubber = Scrubber(
            disk=self.disk,
            log=self.life.log,
            files=self.life.log.checkpoints,
            wal_path=f"{DATA}/wal",
            rate_bytes=RATE,
            clock=self.clock,
            logger=self.lines.logger,
            on_damage=self.asked.append,
            wait=self.wait,
        )
        self.disk.seen.clear()
        self.disk.synced = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.life.kill()

    def wait(self, seconds):
        self.slept_s += seconds
        self.clock.now_ns += round(seconds * 1e9)
        return self.on_wait()

    def files(self):
        """Return the files that a pass has to read."""
        segments = sorted(path for path in self.disk.files() if path.endswith(".wal"))
        manifest = self.life.log.checkpoints.manifest
        needed = [one for one in segments[:-1] if int(one[-37:-21], 16) >= manifest.oldest_seq]
        return [f"{DATA}/snap/{one.name}" for one in manifest.checkpoints] + needed

    def shown(self):
        return self.scrubber.section()


def test_a_pass_reads_every_byte_in_force_and_nothing_else_and_syncs_nothing(stopped):
    with Bench(stopped) as bench:
        files = bench.files()
        assert len(files) >= 4
        for passes in (1, 2):
            bench.disk.seen.clear()
            bench.scrubber.pass_once()
            assert {path: len(offsets) for path, offsets in bench.disk.seen.items()} == {
                path: len(bench.disk.read(path)) for path in files
            }
            assert bench.shown()["scrub_passes"] == passes
        assert (bench.shown()["scrub_errors"], bench.asked, bench.lines.all) == (0, [], [])
        assert bench.disk.synced == 0


def test_files_are_read_past_the_page_cache_and_leave_nothing_in_it(stopped):
    with Bench(stopped) as bench:
        honest, reads = bench.disk.pread, []

        def pread(fd, size_bytes, offset):
            reads.append((fd, fd in bench.disk.cached, size_bytes))
            return honest(fd, size_bytes, offset)

        dropped = []
        drop = bench.disk.drop_cache
        bench.disk.drop_cache = lambda fd: (dropped.append((fd, len(reads))), drop(fd))
        bench.disk.pread = pread
        bench.scrubber.pass_once()
        assert not any(cached for _, cached, _ in reads)
        assert max(size_bytes for _, _, size_bytes in reads) <= 256 << 10
        last = {fd: at for at, (fd, _, _) in enumerate(reads)}
        assert all(any(fd == d and n > at for d, n in dropped) for fd, at in last.items())


def test_a_pass_takes_as_long_as_its_rate_says(stopped):
    with Bench(stopped) as bench:
        bench.scrubber.pass_once()
        read = bench.shown()["scrub_bytes"]
        assert read >= sum(len(bench.disk.read(path)) for path in bench.files())
        # What follows a pause of any length gains one second at most, at its front.
        assert read / RATE - 0.001 <= bench.slept_s <= read / RATE + 0.001


def test_a_flipped_bit_in_any_file_is_told_with_its_place_and_asks_for_a_checkpoint(stopped):
    rng = random.Random(3)
    with Bench(stopped) as bench:
        for path in bench.files():
            size = len(bench.disk.read(path))
            for bit in [0, 8 * size - 1, *(rng.randrange(8 * size) for _ in range(12))]:
                bench.disk.flip(path, bit)
                bench.asked.clear()
                bench.scrubber._findings = {}
                before = bench.shown()["scrub_errors"]
                bench.scrubber.pass_once()
                bench.scrubber.pass_once()  # told once, asked for each time
                bench.disk.flip(path, bit)
                assert bench.shown()["scrub_errors"] == before + 1, (path, bit)
                told = bench.lines.all[-1]
                assert (told["event"], told["level"]) == ("scrub_damaged", "error")
                assert told["file"] == path, bit
                assert told["offset_bytes"] <= max(bit // 8, size - 1)
                assert told["rule"]
                assert "SAVE" in told["hint"]
                assert str(bench.shown()["scrub_last_error"]).startswith(f"{path} at offset ")
                assert bench.scrubber.damaged_files == 1
                assert len(bench.asked) == 2
                assert bench.asked[0].in_force(bench.life.log.checkpoints.manifest)


def test_damage_in_several_files_is_found_in_one_pass(stopped):
    with Bench(stopped) as bench:
        files = bench.files()
        for path in files:
            bench.disk.flip(path, 8 * 100)
        bench.scrubber.pass_once()
        assert {line["file"] for line in bench.lines.all} == set(files)
        assert bench.shown()["scrub_damaged_files"] == len(files)


def test_the_end_of_the_last_sealed_segment_that_reads_as_zeros_is_told(stopped):
    with Bench(stopped) as bench:
        path = bench.files()[-1]
        data = bench.disk.read(path)
        last = data.rindex(data[4096:4100])  # the magic of its last frame
        assert last > 4096
        bench.disk.poke(path, last, bytes(len(data) - last))
        bench.scrubber.pass_once()
        assert [(one["file"], one["rule"]) for one in bench.lines.all] == [(path, "gap")]


def test_a_bad_sector_is_damage_and_the_rest_is_read(stopped):
    with Bench(stopped) as bench:
        bench.scrubber.pass_once()
        bad = next(path for path in bench.files() if path.endswith(".wal"))
        honest = bench.disk.pread

        def pread(fd, size_bytes, offset):
            if bench.disk.opened[fd] == bad and offset >= 4096:
                raise OSError(errno.EIO, "Input/output error")
            return honest(fd, size_bytes, offset)

        bench.disk.pread = pread
        bench.disk.seen.clear()
        bench.scrubber.pass_once()
        (told,) = bench.lines.all
        assert (told["file"], told["offset_bytes"], told["rule"]) == (bad, 4096, "read")
        assert set(bench.disk.seen) == set(bench.files())


def test_what_a_checkpoint_deletes_meanwhile_is_no_alarm_at_whatever_moment(stopped):
    """A whole checkpoint is put in force at each wait of a pass in turn, and deletes the rest."""
    moments = 0
    while True:
        with Bench(stopped) as bench:
            at = 0

            def wait(bench=bench, moment=moments + 1):
                nonlocal at
                at += 1
                if at == moment:
                    bench.life.save(keep=1)
                return False

            bench.on_wait = wait
            before = bench.files()
            bench.scrubber.pass_once()
            assert bench.lines.all == [], moments
            if at <= moments:
                break
            assert bench.files() != before
            moments += 1
    assert moments > 4


@pytest.mark.parametrize("which", [0, 1, 2, -1])
def test_a_file_that_is_needed_and_gone_is_told(stopped, which):
    with Bench(stopped) as bench:
        path = bench.files()[which]
        bench.disk.unlink(path)
        bench.scrubber.pass_once()
        assert bench.shown()["scrub_errors"] >= 1
        assert bench.asked


def test_a_needed_segment_that_goes_behind_the_listing_is_told_and_all_others_are_read(stopped):
    with Bench(stopped) as bench:
        files = bench.files()
        gone = [path for path in files if path.endswith(".wal")][-1]

        def wait():
            if gone in bench.disk.files():
                bench.disk.unlink(gone)
            return False

        bench.on_wait = wait
        bench.scrubber.pass_once()
        assert [(one["file"], one["rule"]) for one in bench.lines.all] == [(gone, "read")]
        assert set(bench.disk.seen) == set(files) - {gone}


def test_a_checkpoint_that_is_put_in_force_while_the_folder_is_listed_is_no_alarm(stopped):
    with Bench(stopped) as bench:
        honest, late = bench.disk.names, [lambda: bench.life.save(keep=1)]

        def names(folder):
            if late:
                late.pop()()
            return honest(folder)

        bench.disk.names = names
        bench.scrubber.pass_once()
        assert bench.lines.all == []


def test_passes_follow_when_something_is_new_or_a_day_is_over(stopped):
    with Bench(stopped) as bench:
        seen, done = [], threading.Event()

        def wait():
            passes = bench.shown()["scrub_passes"]
            if bench.shown()["scrub_state"] == "reading":
                return False
            seen.append((bench.clock.now_ns // 3_600_000_000_000, passes))
            if len(seen) == 3:
                bench.life.save()
            if passes >= 2:
                bench.clock.now_ns += 3_600_000_000_000
            if passes >= 3:
                done.set()
            return passes >= 3

        bench.on_wait = wait
        bench.scrubber.start()
        assert done.wait(60)
        bench.scrubber.stop()
        assert [passes for _, passes in seen[:4]] == [1, 1, 1, 2]
        assert [hour for hour, passes in seen if passes == 2] == list(range(24))


def test_health_is_yellow_while_something_in_force_is_damaged():
    stage = Stage()
    assert stage.state.sections()["Server"]["health"] == "green"
    stage.state.scrubber = Mock(damaged_files=1, section=dict)
    assert stage.state.sections()["Server"]["health"] == "yellow"


def test_damage_is_in_force_as_long_as_a_start_may_need_the_file(stopped):
    with Bench(stopped) as bench:
        manifest = bench.life.log.checkpoints.manifest
        oldest, later = manifest.oldest_seq, replace(manifest, oldest_seq=manifest.oldest_seq + 1)
        assert Damaged(seq=oldest).in_force(manifest)
        assert not Damaged(seq=oldest).in_force(later)
        assert Damaged(start_lsn=manifest.checkpoints[0].start_lsn).in_force(manifest)
        assert not Damaged(start_lsn=10**9).in_force(manifest)


# ---- reading at a rate ----


@pytest.fixture
def paced():
    """Return a disk that is read at a rate, and what lies in its one file."""
    disk = SimDisk()
    content = random.Random(9).randbytes(3 * SLICE_BYTES + 100)
    disk.make_folder(DATA)
    disk.write_file(f"{DATA}/file", content)
    return PacedDisk(disk, rate_bytes=RATE, clock=StandingClock(), wait=lambda _: False), content


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, SLICE_BYTES - 1),
        (1, SLICE_BYTES),
        (7, SLICE_BYTES + 1),
        (0, 3 * SLICE_BYTES),
        (5, 4 * SLICE_BYTES),  # more than there is
        (3 * SLICE_BYTES + 99, 10),
        (3 * SLICE_BYTES + 100, 10),
    ],
)
def test_what_is_read_in_slices_is_what_lies_there(paced, offset, size):
    disk, content = paced
    fd = disk.open(f"{DATA}/file")
    for _ in range(2):
        read = disk.pread(fd, size, offset)
        assert read == content[offset : offset + size]
    assert disk.bytes == 2 * len(read)
    disk.close(fd)


def test_all_reads_share_a_buffer_which_grows_to_the_longest(paced):
    """To give it back takes the interpreter's lock, for which the event loop waits."""
    disk, content = paced
    fd = disk.open(f"{DATA}/file")
    shared = disk.pread(fd, 2 * SLICE_BYTES, 0).obj
    for size in (10, SLICE_BYTES, 2 * SLICE_BYTES):
        assert disk.pread(fd, size, 0).obj is shared
    longest = disk.pread(fd, 3 * SLICE_BYTES, 0)
    assert longest == content[: 3 * SLICE_BYTES]
    assert disk.pread(fd, 10, 0).obj is longest.obj
    disk.close(fd)
