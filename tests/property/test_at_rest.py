"""When the core asks for no further round there is nothing that it could do.

Clients send what they like, read some of it, close, half-close, are killed; the disk runs full and
has room again; time goes on. A round is made only when the core asks for one, and behind each step
it may not ask for ever. What rests then: all is durable, all that may leave has left, and nobody
waits for a job beside one that is ready.
"""

import contextlib
import errno
import random
import select
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.byhand import ByHand
from tests.simdisk import SimDisk
from wheel.engine.core import Commit, DiskRoom, Sync

MODES = {
    "inline": (Commit.INLINE, Sync.ALWAYS),
    "inline-interval": (Commit.INLINE, Sync.INTERVAL),
    "thread": (Commit.THREAD, Sync.ALWAYS),
    "thread-off": (Commit.THREAD, Sync.OFF),
}
STEPS = 200
CLIENTS = 4
SEGMENT_BYTES = 640 * 1024  # holds any batch of theirs
ROUNDS_MAX = 1000  # behind one step
SYNC_S = 5.0  # for what is with the commit thread
PAYLOAD_BYTES = (1, 100, 20_000, 60_000, 60_000)
LINE_BYTES = 60_100  # of the longest: a client may have sent the first part of one
GONE = (BlockingIOError, BrokenPipeError, ConnectionResetError)


class Restless:
    """Clients of one core, and what they do."""

    def __init__(self, live: ByHand, rng: random.Random, disk: SimDisk | None) -> None:
        self.live = live
        self.core = live.core
        self.rng = rng
        self.disk = disk
        self.clients: list[socket.socket] = []
        self.ids = [b"1"]
        self.receipts = [b"1.1.1"]
        self.steps = 0

    # ------------------------------------------------------------ steps

    def line(self) -> bytes:
        """Return a command."""
        rng = self.rng
        payload = b"x" * rng.choice(PAYLOAD_BYTES)
        bound = rng.choice([b"", b" BOUND"])
        return rng.choice(
            [
                b"SCHEDULE h now " + payload,
                b"SCHEDULE h +%d " % rng.choice([5, 500, 3000]) + payload,
                b"LEASE h COUNT %d" % rng.choice([1, 3, 9]) + bound,
                b"LEASE h COUNT 2 WAIT %d" % rng.choice([100, 60_000]) + bound,
                b"LEASE h,g* WAIT 60000",
                b"JOB " + rng.choice(self.ids),
                b"CANCEL " + rng.choice(self.ids),
                b"ACK " + rng.choice(self.receipts),
                b"PING",
                b"TIME",
            ]
        )

    def connect(self) -> None:
        self.clients.append(self.live.local())

    def send(self) -> None:
        lines = [self.line() for _ in range(self.rng.choice([1, 1, 2, 5, 30]))]
        with contextlib.suppress(*GONE):
            self.rng.choice(self.clients[-CLIENTS:]).send(b"\r\n".join([*lines, b""]))

    def receive(self) -> None:
        with contextlib.suppress(*GONE):
            data = self.rng.choice(self.clients).recv(self.rng.choice([100, 5000, 1 << 20]))
            words = data.split(b"\r\n")
            self.receipts += [word for word in words if word.count(b".") == 2]
            self.ids += [word for word in words if word.isdigit() and len(word) > 8]

    def close(self) -> None:
        client = self.clients.pop(self.rng.randrange(len(self.clients)))
        client.close()

    def half_close(self) -> None:
        with contextlib.suppress(OSError):
            self.rng.choice(self.clients).shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        if sessions := self.core.sessions():
            self.core.kill_session(self.rng.choice(sessions).handle)
            self.core.commit()

    def wait(self) -> None:
        self.live.advance(self.rng.choice([1, 10, 600, 1000, 2500, 61_000]))

    def lose_room(self) -> None:
        """The owner sees little room, for this step."""
        self.core.set_disk_room(self.rng.choice(list(DiskRoom)))

    def fill_disk(self) -> None:
        """The next segment finds no room, once."""
        if self.disk is not None:
            self.disk.fault("open", 1, error=errno.ENOSPC)

    def step(self) -> None:
        """Do something, come to rest, and look."""
        often: list[Callable[[], None]] = [self.send, self.send, self.receive, self.wait]
        seldom = [self.close, self.half_close, self.kill, self.lose_room, self.fill_disk]
        few = self.core.connections() < CLIENTS
        step = self.connect if few else self.rng.choice(4 * often + seldom)
        self.steps += 1
        step()
        self.rest()
        self.core.set_disk_room(DiskRoom.OK)
        self.rest()
        self.look()

    # ------------------------------------------------------------ rest

    def asks(self) -> bool:
        """Return whether the core asks for a round, or will when the commit thread is done."""
        stats = self.core.stats()
        flies = stats["commit_busy"] and not stats["commit_stalled"]
        return bool(select.select([self.core.fileno()], [], [], SYNC_S if flies else 0)[0])

    def answer(self) -> bool:
        """Answer what waits for Python, and end that round; False: nothing does."""
        command = self.core.slow_next()
        if command is None:
            return False
        self.core.slow_reply(command.handle, b"+told\r\n", gated=self.rng.random() < 0.5)
        self.core.commit()
        return True

    def rest(self) -> None:
        for _ in range(ROUNDS_MAX):
            if self.asks():
                self.core.poll(0)
            elif not self.answer():
                return
        raise AssertionError("it never comes to rest")

    def look(self) -> None:
        """Nothing is left that could be done."""
        assert self.core.check() == 0
        if self.core.stats()["commit_stalled"]:
            return
        assert self.core.durable_lsn() == self.core.lsn()
        able = [session for session in self.core.sessions() if not session.blocked]
        for session in able:
            assert session.output_bytes == 0, session
            assert session.waiting or session.input_bytes < LINE_BYTES, session
        if self.core.engine_figures()["jobs_ready"]:
            assert not [session for session in able if session.waiting]


@pytest.mark.parametrize("mode", MODES)
def test_what_asks_for_no_round_has_nothing_left_to_do(mode: str, tmp_path: Path) -> None:
    commit, sync = MODES[mode]
    for turn in range(2):
        seed = random.randrange(1 << 32)
        disk = SimDisk() if commit is Commit.INLINE else None
        data = Path("/data") if disk else tmp_path / str(turn)
        live = ByHand(data, commit, sync, disk=disk, segment_bytes=SEGMENT_BYTES)
        world = Restless(live, random.Random(seed), disk)
        try:
            for _ in range(STEPS):
                world.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {world.steps}: {error}") from error
        finally:
            live.close()
