"""A live core whose clock a test moves, and whose rounds are made when it asks for one, not before.

No timer runs, so what a round leaves undone without asking for another stays undone.
"""

import contextlib
import select
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.live import Live, clocks
from wheel.engine.core import Commit, Sync
from wheel.engine.facts import Clocks

QUIET_S = 2.0  # nothing has come and nothing is asked for: it never will be


class ByHand(Live):
    """A core whose rounds are made only as it asks for them."""

    def __init__(
        self,
        data: Path,
        commit: Commit = Commit.INLINE,
        sync: Sync = Sync.ALWAYS,
        **options: Any,
    ) -> None:
        super().__init__(data, commit, sync, hand_clock=True, **options)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("")  # a name of the kernel's choice, no file
        listener.listen()
        self.local_address: bytes = listener.getsockname()
        self.core.listen(listener.detach())
        self.now: Clocks = clocks()
        self.advance(0)

    def advance(self, ms: int) -> None:
        self.now = replace(
            self.now,
            wall_ms=self.now.wall_ms + ms,
            boot_ms=self.now.boot_ms + ms,
            mono_ms=self.now.mono_ms + ms,
        )
        self.core.tick(self.now)

    def read(self, client: socket.socket, until: bytes) -> bytes:
        data = b""
        while not data.endswith(until):
            ready = select.select([self.core.fileno(), client.fileno()], [], [], QUIET_S)[0]
            assert ready, f"no round is asked for, and only {data[-100:]!r} came"
            if self.core.fileno() in ready:
                self.core.poll(0)
            with contextlib.suppress(BlockingIOError):
                data += client.recv(1 << 20)
        return data

    def local(self) -> socket.socket:
        """Return a client over a unix socket, whose room is small and known."""
        client = socket.socket(socket.AF_UNIX)
        client.connect(self.local_address)
        client.setblocking(False)
        self.sockets.append(client)
        return client
