"""Lives of a process on a store with checkpoints on a simulated disk, held to what they said."""

from dataclasses import replace

from tests.ckptkit import write_checkpoint
from tests.logkit import BOOT_ID, DATA, SEGMENT_BYTES, UUID, History, frames_of, open_
from tests.simdisk import SimDisk
from wal import frame
from wal.errors import LogFailedError
from wal.frame import FRAME_HEADER_BYTES, FsyncMode
from wal.manifest import read_manifest

STOPS = (LogFailedError, OSError)


class Life:
    """One life of a process on a store, with checkpoints; a history says what it confirmed."""

    def __init__(
        self, disk, history, fsync=FsyncMode.ALWAYS, *, salt_seed=7, segment_bytes=SEGMENT_BYTES
    ):
        self.disk, self.history, self.fsync = disk, history, fsync
        self.segment_bytes = segment_bytes
        history.doing = "start"
        store = open_(disk, fsync=fsync, segment_bytes=segment_bytes)
        try:
            for _ in store.load():
                pass
            found = [one for chunk in store.replay() for one in frames_of(chunk.data)]
            self.store = store
            self.frames = self.check(found)
            self.log = store.start(
                wall_ms=2_000, rel_minus_boot_ms=500, boot_id=BOOT_ID, salt_seed=salt_seed
            )
        except BaseException:
            store.close()
            raise
        history.settle(self.frames)

    def check(self, found):
        """Return all frames that checkpoint and log stand for, checked against the history."""
        start_lsn = self.store.checkpoint.start_lsn if self.store.checkpoint else 0
        covered, lsn = [], 0
        for one in self.history.attempted:
            if lsn >= start_lsn:
                break
            covered.append(one)
            lsn = one[0] + one[1] - 1
        assert lsn == start_lsn, "the checkpoint covers what was never appended"
        frames = covered + [one for one in found if one[0] > start_lsn]
        self.history.check(frames)
        return frames

    def append(self, data, records=1):
        first_lsn = self.history.next_lsn
        self.history.attempted.append((first_lsn, records, data))
        whole = FRAME_HEADER_BYTES + (len(data) + 7) // 8 * 8
        rotates = self.log.stats().offset + whole > self.segment_bytes
        self.history.doing = "rotate" if rotates else "commit"
        self.log.append(
            data, first_lsn=first_lsn, records=records, wall_ms=3_000 + first_lsn, rel_ms=first_lsn
        )
        self.history.confirmed = len(self.history.attempted)
        if self.fsync is FsyncMode.ALWAYS:
            self.history.durable = self.history.confirmed

    def sync(self):
        self.history.doing = "sync"
        self.log.sync()
        self.history.durable = self.history.confirmed

    def checkpoint(self, keep=2, *, behind=()):
        """Make one and publish it as the server does; behind = what is appended while it is."""
        start_lsn = self.history.next_lsn - 1
        for data in behind:
            self.append(data)
        end_lsn = self.history.next_lsn - 1
        self.history.doing = "checkpoint"
        made = write_checkpoint(
            self.disk,
            self.log,
            uuid=UUID,
            term=self.log.term,
            start_lsn=start_lsn,
            end_lsn=end_lsn,
            payloads=(bytes(300), b"x" * 900),
        )
        self.sync()
        assert self.log.stats().synced_lsn >= end_lsn
        self.history.doing = "checkpoint"
        self.log.checkpoints.publish(made, keep=keep, wall_ms=5_000)
        self.history.doing = "truncate"
        self.log.checkpoints.drop()

    def trim(self):
        self.history.doing = "truncate"
        self.log.checkpoints.trim()

    def shrink(self):
        self.history.doing = "truncate"
        self.log.checkpoints.shrink(wall_ms=9)
        self.log.checkpoints.drop()

    def prepare(self):
        self.history.doing = "prepare"
        self.log.prepare()

    def mark(self):
        self.history.doing = "mark"
        self.log.mark()

    def stop(self):
        self.sync()
        self.history.doing = "stop"
        self.log.mark(clean=True)
        self.log.close()


def copied(history):
    return replace(history, attempted=list(history.attempted))


def names_what_is_there(disk):
    """MANIFEST, when there is a store at all, names files that are there with their size."""
    if f"{DATA}/IDENT" not in disk.files():
        return
    for one in read_manifest(disk, DATA, UUID).checkpoints:
        assert len(disk.read(f"{DATA}/snap/{one.name}")) == one.size_bytes


def segments(disk):
    return sorted(path for path in disk.files() if path.endswith(".wal"))


def place_of(disk, lsn):
    """Return (path, bit) in the middle of the payload of the frame that begins with lsn."""
    for path in segments(disk):
        data = disk.read(path)
        at = 4096
        while found := frame.find(data[at:], salt=None):
            at += found.offset
            if found.header.first_lsn == lsn:
                return path, (at + FRAME_HEADER_BYTES + 700) * 8
            at += found.frame_bytes
    raise AssertionError(f"no frame begins with lsn {lsn}")


def with_two_generations(fsync=FsyncMode.ALWAYS):
    """Return a store, its power on, with two checkpoints and log behind, and its history."""
    disk, history = SimDisk(), History()
    life = Life(disk, history, fsync)
    for size in (900, 2000, 1500):
        life.append(bytes([size % 251]) * size)
    life.checkpoint()
    for size in (900, 2000, 1500):
        life.append(bytes([size % 241]) * size, records=2)
    life.checkpoint()
    life.append(b"behind both")
    life.sync()
    life.log.mark()
    life.log.close()
    return disk, history


def snap(disk, generation):
    """Return the path of a checkpoint in force: -1 the newest, -2 the one before."""
    return f"{DATA}/snap/{read_manifest(disk, DATA, UUID).checkpoints[generation].name}"


def harm(disk, path, how):
    if how == "missing":
        disk.unlink(path)
    elif how == "short":
        disk.resize(path, len(disk.read(path)) - 512)
    elif how == "older":
        disk.write_file(path, disk.read(snap(disk, -2)))
    else:
        disk.flip(path, (len(disk.read(path)) // 2) * 8)
