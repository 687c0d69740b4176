"""A core over a log, real sockets and real clocks, whose rounds a test makes."""

import contextlib
import select
import socket
import time
from pathlib import Path

from tests.logkit import BOOT_ID, UUID
from wal.disk import Disk, RealDisk
from wal.frame import FsyncMode
from wal.log import open_store
from wheel.engine.core import Commit, Core, CoreOptions, Sync
from wheel.engine.facts import Clocks

PATIENCE_S = 20.0
SEGMENT_BYTES = 4 << 20


def clocks() -> Clocks:
    return Clocks(
        wall_ms=time.time_ns() // 1_000_000,
        boot_ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000,
        mono_ms=time.monotonic_ns() // 1_000_000,
    )


class Live:
    """One life of a core on a data directory."""

    def __init__(
        self,
        data: Path,
        commit: Commit,
        sync: Sync,
        *,
        started: bool = True,
        disk: Disk | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        own_sync_us: int = 0,
        hand_clock: bool = False,
    ) -> None:
        options = CoreOptions(
            commit=commit,
            sync=sync,
            store=UUID,
            jobs_max=100_000,
            own_sync_us=own_sync_us,
            hand_clock=hand_clock,
        )
        self.core = Core(options)
        self.store = open_store(
            str(data),
            disk=disk or RealDisk(),
            fsync=FsyncMode(sync),
            wall_ms=clocks().wall_ms,
            new_uuid=UUID,
            segment_bytes=segment_bytes,
        )
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: tuple[str, int] = listener.getsockname()
        self.core.listen(listener.detach())
        self.sockets: list[socket.socket] = []
        if started:
            self.start()

    def start(self) -> None:
        for chunk in self.store.replay():
            self.core.replay(chunk.data, term=chunk.term)
        now = clocks()
        self.log = self.store.start(
            wall_ms=now.wall_ms,
            rel_minus_boot_ms=now.wall_ms - now.boot_ms,
            boot_id=BOOT_ID,
            salt_seed=1,
        )
        self.core.attach_log(self.log.handle)
        self.core.start(term=self.log.term, rel_ms=now.wall_ms, clocks=now)

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.address)
        client.setblocking(False)
        self.sockets.append(client)
        return client

    def read(self, client: socket.socket, until: bytes) -> bytes:
        """Make rounds until the client's bytes end so, or its connection does."""
        data = b""
        deadline = time.monotonic() + PATIENCE_S
        while not data.endswith(until):
            assert time.monotonic() < deadline, f"only {data!r}"
            select.select([self.core.fileno(), client.fileno()], [], [], 1.0)
            self.core.poll(0)
            with contextlib.suppress(BlockingIOError):
                news = client.recv(1 << 16)
                if not news:
                    return data
                data += news
        return data

    def ask(self, client: socket.socket, data: bytes, until: bytes = b"\r\n") -> bytes:
        client.sendall(data)
        return self.read(client, until)

    def poll_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.core.poll(10)

    def close(self) -> None:
        """End without a clean stop, as far as one process can."""
        for client in self.sockets:
            client.close()
        self.core.close()
        self.log.close()
