"""Telling systemd how it goes (sd_notify): ready, still alive, stopping.

A datagram to the socket that $NOTIFY_SOCKET names; without one, nothing. What cannot be told is not
told: a supervisor that does not listen never stops the server.
"""

import contextlib
import os
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

START_AGAIN_S: Final = 30  # how much more time a start that gets on asks for


class Notifier:
    """Speaks to the supervisor, if there is one."""

    def __init__(self, address: str, *, watched: bool) -> None:
        """Make it.

        Args:
            address: path of the socket, or its name behind ``@``; empty = there is none.
            watched: whether the supervisor waits for signs of life.
        """
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watched = watched
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Return one that speaks to whoever started this process."""
        pid = environ.get("WATCHDOG_PID", str(os.getpid()))
        watched = "WATCHDOG_USEC" in environ and pid == str(os.getpid())
        return cls(environ.get("NOTIFY_SOCKET", ""), watched=watched)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    def starting(self, status: str) -> None:
        """Tell that the start gets on and needs more time."""
        self._send("STATUS=" + status, f"EXTEND_TIMEOUT_USEC={START_AGAIN_S * 1_000_000}")
        self.alive()

    def ready(self, status: str) -> None:
        """Tell that everything is served."""
        self._send("READY=1", "STATUS=" + status)

    def alive(self) -> None:
        """Give a sign of life, from the loop that serves."""
        if self._watched:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Tell that the stop has begun."""
        self._send("STOPPING=1", "STATUS=stopping")

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)
