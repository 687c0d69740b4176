"""What a crash leaves on the disk, replayed, is the state that memory had at that lsn.

A core with sockets, the commit thread and a real log is under a random load; at random moments,
writes of the thread included, its data directory is copied as a crash would leave it. Another core
reads the copy.
"""

import contextlib
import os
import random
import select
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.logkit import BOOT_ID, UUID
from wal.disk import RealDisk
from wal.frame import FsyncMode
from wal.log import open_store
from wheel.engine.core import Commit, Core, CoreOptions, Sync
from wheel.engine.facts import Clocks
from wheel.wire import NOT_READY, ReplyReader, encode_command

SECTOR_BYTES = 512
SEGMENT_BYTES = 64 * 1024  # small frames, and a rotation every few hundred of them
CLIENTS = 6
HANDLERS = ("a", "b", "c")


def options(sync: Sync) -> CoreOptions:
    return CoreOptions(commit=Commit.THREAD, sync=sync, store=UUID, jobs_max=100_000)


def clocks() -> Clocks:
    return Clocks(
        wall_ms=time.time_ns() // 1_000_000,
        boot_ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000,
        mono_ms=time.monotonic_ns() // 1_000_000,
    )


class Client:
    """One connection that always has some commands on their way."""

    def __init__(self, address, rng: random.Random, jobs: list[bytes]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setblocking(False)
        self.receipts: list[bytes] = []
        self._rng = rng
        self._jobs = jobs
        self._reader = ReplyReader()
        self._asked: list[str] = []

    def send(self) -> None:
        """Send some commands, unless earlier ones have no reply yet."""
        if self._asked:
            return
        words = [self._command() for _ in range(self._rng.randrange(1, 12))]
        self._asked = [str(command[0]) for command in words]
        self.socket.sendall(b"".join(map(encode_command, words)))

    def read(self):
        """Take what has come."""
        with contextlib.suppress(BlockingIOError):
            self._reader.feed(self.socket.recv(1 << 16))
        while (reply := self._reader.gets()) is not NOT_READY:
            verb = self._asked.pop(0)
            if verb == "SCHEDULE":
                job = reply[0] if isinstance(reply, list) else reply
                self._jobs += [job] if isinstance(job, bytes) else []
            elif verb == "LEASE":
                self.receipts += [item[0] for item in reply]

    def _command(self):
        rng = self._rng
        kind = rng.random()
        job = rng.choice(self._jobs[-200:]) if self._jobs else b"1"
        receipt = self.receipts.pop(rng.randrange(len(self.receipts))) if self.receipts else None
        if kind < 0.4:
            return self._schedule()
        if kind < 0.55:
            lease_ms = rng.choice((1, 50, 60_000))
            return ("LEASE", "*", "COUNT", rng.randrange(1, 6), "FOR", lease_ms)
        if kind < 0.65:
            return rng.choice(
                (
                    ("CANCEL", job),
                    ("RESCHEDULE", job, f"+{rng.randrange(3000)}"),
                    ("RUN", job),
                    ("REQUEUE", job),
                    ("PURGE", job),
                    ("HANDLER", rng.choice(HANDLERS), "RETRIES", rng.randrange(4)),
                )
            )
        if receipt is None:
            return ("COUNT",)
        return rng.choice(
            (
                ("ACK", receipt),
                ("DONE", receipt, "done"),
                ("FAIL", receipt, "ERROR", "no luck", "IN", 5),
                ("FAIL", receipt),
                ("FAIL", receipt, "DEAD"),
                ("RELEASE", receipt),
                ("EXTEND", receipt, "FOR", 90_000),
            )
        )

    def _schedule(self):
        rng = self._rng
        when = f"+{rng.choice((0, 1, 20, 1000, 100_000))}"
        words = ["SCHEDULE", rng.choice(HANDLERS), when, rng.randbytes(rng.randrange(60))]
        if rng.random() < 0.4:
            words += ["KEY", f"k{rng.randrange(20)}", "ONDUP", rng.choice(("keep", "replace"))]
            words += ["WINDOW", rng.choice((0, 1000))]
        if rng.random() < 0.5:
            words += ["ONCE", f"t{rng.randrange(500)}"]
        if rng.random() < 0.1:
            words += ["EXPIRE", "+30"]
        if rng.random() < 0.2:
            words += ["TIMEOUT", 20, "RETRIES", 1, "META", "m", "GROUP", "g"]
        return tuple(words)


class Life:
    """A core that serves a data directory, and the hash that it had at each lsn."""

    def __init__(self, data: Path, sync: Sync, rng: random.Random) -> None:
        self.core = Core(options(sync))
        self.store = open_store(
            str(data),
            disk=RealDisk(),
            fsync=FsyncMode(sync),
            wall_ms=clocks().wall_ms,
            new_uuid=UUID,
            segment_bytes=SEGMENT_BYTES,
        )
        for chunk in self.store.replay():
            self.core.replay(chunk.data, term=chunk.term)
        self.hashes = {self.core.lsn(): self.core.state_hash()}
        now = clocks()
        self.log = self.store.start(
            wall_ms=now.wall_ms,
            rel_minus_boot_ms=now.wall_ms - now.boot_ms,
            boot_id=BOOT_ID,
            salt_seed=rng.getrandbits(32),
        )
        self.core.attach_log(self.log.handle)
        self.core.start(term=self.log.term, rel_ms=now.wall_ms, clocks=now)
        listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        address = listener.getsockname()
        self.core.listen(listener.detach())
        jobs: list[bytes] = []
        self.clients = [Client(address, rng, jobs) for _ in range(CLIENTS)]

    def round(self) -> None:
        """One round of everybody; the core's hash is noted behind it."""
        self.log.prepare()
        for client in self.clients:
            client.send()
        select.select([self.core.fileno()], [], [], 0.05)
        self.core.poll(0)
        self.hashes[self.core.lsn()] = self.core.state_hash()
        for client in self.clients:
            client.read()

    def close(self) -> None:
        """End as a crash does, as far as the log can tell."""
        for client in self.clients:
            client.socket.close()
        self.core.close()
        self.log.close()


def copy_store(data: Path, copy: Path) -> None:
    """Copy the directory as a crash would leave it, while the commit thread goes on writing.

    MARK is read first and the segments from the last byte of the newest to the first of the oldest,
    a sector at a time. So whatever is read had been written behind all that is read later, and the
    copy is what lay there at some moment, but for the end of the last write.
    """
    shutil.rmtree(copy, ignore_errors=True)
    for folder in ("wal", "snap"):
        (copy / folder).mkdir(parents=True)
    copy.chmod(0o700)
    for name in ("MARK", "IDENT", "MANIFEST"):
        shutil.copy(data / name, copy / name)
    for path in sorted((data / "wal").glob("*.wal"), reverse=True):
        with path.open("rb") as source, (copy / "wal" / path.name).open("wb") as target:
            for at in range(SEGMENT_BYTES - SECTOR_BYTES, -1, -SECTOR_BYTES):
                target.seek(at)
                target.write(os.pread(source.fileno(), SECTOR_BYTES, at))


def replay_copy(copy: Path, sync: Sync) -> Core:
    """Return a core that has read a data directory."""
    store = open_store(
        str(copy),
        disk=RealDisk(),
        fsync=FsyncMode(sync),
        wall_ms=clocks().wall_ms,
        new_uuid=UUID,
        segment_bytes=SEGMENT_BYTES,
    )
    other = Core(options(sync))
    try:
        for chunk in store.replay():
            other.replay(chunk.data, term=chunk.term)
        assert store.verdict.next_lsn == other.lsn() + 1
    finally:
        store.close()
    return other


def check_copy(life: Life, data: Path, copy: Path, sync: Sync) -> int:
    """Compare memory with a copy of the disk, made while it goes on; return the copy's lsn."""
    confirmed = life.core.durable_lsn()
    copier = threading.Thread(target=copy_store, args=(data, copy))
    copier.start()
    while copier.is_alive():
        life.round()
    with replay_copy(copy, sync) as other:
        assert other.check() == 0
        assert confirmed <= other.lsn() <= life.core.lsn()
        assert other.state_hash() == life.hashes[other.lsn()], f"other state at lsn {other.lsn()}"
        return other.lsn()


def play(tmp_path: Path, sync: Sync, seed: int, *, lives: int, copies: int) -> None:
    rng = random.Random(seed)
    data, copy = tmp_path / "data", tmp_path / "copy"
    behind = 0
    for _ in range(lives):
        life = Life(data, sync, rng)
        try:
            for _ in range(copies):
                for _ in range(rng.randrange(1, 60)):
                    life.round()
                if rng.random() < 0.5:
                    life.log.mark()
                behind += check_copy(life, data, copy, sync) < life.core.lsn()
            lsn = life.core.lsn()
            assert life.core.check() == 0
        finally:
            life.close()
        assert lsn > 100
    assert behind > 0, "no copy was made in the middle of the load"


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("sync", list(Sync), ids=lambda sync: sync.name.lower())
def test_a_copy_of_the_disk_replays_to_what_memory_was(tmp_path, sync, seed):
    play(tmp_path, sync, seed, lives=2, copies=12)


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.parametrize("sync", list(Sync), ids=lambda sync: sync.name.lower())
def test_many_copies_replay_to_what_memory_was(tmp_path, sync, seed):
    for turn in range(10):
        play(tmp_path / str(turn), sync, seed + turn, lives=3, copies=60)
