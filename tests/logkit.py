"""A small store to work on: open, append, crash, and what must be there afterwards."""

import random
from dataclasses import dataclass, field

from wal.disk import Disk
from wal.errors import DiskFullError, LogFailedError
from wal.frame import FsyncMode
from wal.log import FileLog, open_store

DATA = "/data"
SEGMENT_BYTES = 8192
UUID = bytes(range(16))
BOOT_ID = bytes(range(16, 32))


def open_(
    disk, *, fsync=FsyncMode.ALWAYS, path=DATA, segment_bytes=SEGMENT_BYTES, uuid=UUID, **options
):
    return open_store(
        path,
        disk=disk,
        fsync=fsync,
        wall_ms=1_000,
        new_uuid=uuid,
        segment_bytes=segment_bytes,
        **options,
    )


def frames_of(data):
    """Return (first lsn, records, payload) of each frame in whole frames, without the C code."""
    found, at = [], 0
    data = bytes(data)
    while at < len(data):
        size = int.from_bytes(data[at + 12 : at + 16], "little")
        records = int.from_bytes(data[at + 16 : at + 20], "little")
        first_lsn = int.from_bytes(data[at + 24 : at + 32], "little")
        found.append((first_lsn, records, data[at + 64 : at + 64 + size]))
        at += 64 + (size + 7) // 8 * 8
    return found


def replayed(store):
    """Return all frames of a store; its verdict is known then."""
    return [frame for chunk in store.replay() for frame in frames_of(chunk.data)]


def start(store, salt_seed=7):
    return store.start(wall_ms=2_000, rel_minus_boot_ms=500, boot_id=BOOT_ID, salt_seed=salt_seed)


def read_all(disk, **options):
    """Return (frames, verdict) of a store without starting it."""
    store = open_(disk, **options)
    try:
        return replayed(store), store.verdict
    finally:
        store.close()


@dataclass
class History:
    """What was asked of a log and what it confirmed. Frames are (first lsn, records, payload)."""

    attempted: list[tuple[int, int, bytes]] = field(default_factory=list)
    confirmed: int = 0  # frames that append() confirmed
    durable: int = 0  # frames that a sync, mode always included, covers for certain
    doing: str = ""  # the kind of call that is being made, for the count of what was cut

    @property
    def next_lsn(self):
        return 1 + sum(records for _, records, _ in self.attempted)

    def check(self, frames):
        """The log holds a prefix of what was attempted, with everything that was durable in it."""
        assert frames == self.attempted[: len(frames)], "invented or changed frames"
        assert len(frames) >= self.durable, f"lost {self.durable - len(frames)} durable frames"

    def settle(self, frames):
        """Go on from what a start found: it synced all of it."""
        self.check(frames)
        self.attempted = list(frames)
        self.confirmed = self.durable = len(frames)


@dataclass
class Server:
    """One life of a process on a store: every call notes its outcome in the history."""

    disk: Disk
    history: History
    fsync: FsyncMode = FsyncMode.ALWAYS
    salt_seed: int = 7
    log: FileLog = field(init=False)
    started: bool = False

    def start(self):
        store = open_(self.disk, fsync=self.fsync)
        frames = replayed(store)
        self.history.check(frames)
        self.log = start(store, self.salt_seed)
        self.started = True
        self.history.settle(frames)
        return store

    def append(self, payload, records=1):
        first_lsn = self.history.next_lsn
        self.history.attempted.append((first_lsn, records, payload))
        try:
            self.log.append(
                payload,
                first_lsn=first_lsn,
                records=records,
                wall_ms=3_000 + first_lsn,
                rel_ms=first_lsn,
            )
        except DiskFullError:
            self.history.attempted.pop()
            raise
        self.history.confirmed = len(self.history.attempted)
        if self.fsync is FsyncMode.ALWAYS:
            self.history.durable = self.history.confirmed

    def sync(self):
        self.log.sync()
        self.history.durable = self.history.confirmed

    def stop(self):
        self.sync()
        self.log.mark(clean=True)
        self.log.close()

    def stays_failed(self):
        """Every call says so again, and nothing is confirmed any more."""
        for call in (
            lambda: self.append(b"late"),
            self.log.sync,
            self.log.mark,
            self.log.prepare,
        ):
            try:
                call()
            except LogFailedError:
                continue
            raise AssertionError("a failed log answered a call")


def payload(rng: random.Random):
    """Return bytes of a size that fits a small segment; some hold sectors of zeros."""
    size = rng.choice((1, 8, 40, 300, 700, 1500, 3000))
    if rng.random() < 0.3:
        return bytes(size)
    return rng.randbytes(size)
