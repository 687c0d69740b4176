"""The servers that are measured: wheeld from this checkout, and Redis where it is installed.

Both speak RESP, so one client serves both. Every start is on a free port of 127.0.0.1 and in a
folder of its own; nothing of an earlier start is seen.
"""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.harness import PATIENCE_S, ROOT, BenchError, cpu_us, free_port, resident_bytes, running
from wheel.wire import NotReady, Reply, ReplyError, ReplyReader, encode_command

RECV_BYTES: Final = 1 << 18
POLL_S: Final = 0.002

Words = Sequence[bytes | str | int]


class Wire:
    """One connection: commands out, replies in, in order."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = ReplyReader()

    def send(self, *words: bytes | str | int) -> None:
        """Send a command; its reply is for ``receive``."""
        self.sock.sendall(encode_command(words))

    def receive(self) -> Reply:
        """Return the next reply.

        Raises:
            BenchError: the server closed the connection.
        """
        while (reply := self._reader.gets()) is NotReady.NOT_READY:
            data = self.sock.recv(RECV_BYTES)
            if not data:
                raise BenchError("the server closed the connection")
            self._reader.feed(data)
        return reply

    def ask(self, *words: bytes | str | int) -> Reply:
        """Return the reply to one command."""
        self.send(*words)
        return self.receive()

    def close(self) -> None:
        """Close."""
        self.sock.close()


@dataclass(slots=True, kw_only=True)
class Peer:
    """A running server."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    wire: Wire = field(init=False)

    def cpu_us(self) -> float:
        """Return the CPU time it took so far."""
        return cpu_us(self.process.pid)

    def resident_bytes(self) -> int:
        """Return its memory."""
        return resident_bytes(self.process.pid)

    def info(self, section: str) -> dict[str, str]:
        """Return a section of INFO, by name."""
        reply = self.wire.ask("INFO", section)
        if not isinstance(reply, bytes):
            raise BenchError(f"{self.name}: INFO answered {reply!r}")
        pairs = (line.partition(":") for line in reply.decode().splitlines())
        return {name: value for name, colon, value in pairs if colon}

    def histogram(self, name: str) -> dict[str, int]:
        """Return a histogram of wheeld's INFO: count, p50, p90, p99, p999, max."""
        pairs = (part.partition("=") for part in self.info("latency")[name].split(","))
        return {key: int(value) for key, _, value in pairs}

    def wait(self, *words: str) -> None:
        """Return when it answers this command with something else than an error.

        Raises:
            BenchError: it ended, or takes too long.
        """
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                wire = Wire(self.port)
                reply = wire.ask(*words)
            except (OSError, BenchError):
                time.sleep(POLL_S)
                continue
            if not isinstance(reply, ReplyError):
                self.wire = wire
                return
            wire.close()
            time.sleep(POLL_S)
        raise BenchError(f"{self.name} does not answer: {self.log.read_text()[-2000:]}")


def wheeld_command(data: Path, port: int, fsync: str) -> list[str]:
    """Return the command line of our server."""
    words = ["-P", "-m", "wheeld", "serve", "--data", str(data), "--fsync", fsync]
    return [sys.executable, *words, "--listen", f"127.0.0.1:{port}"]


@contextmanager
def wheeld(folder: Path, *, fsync: str, port: int = 0) -> Generator[Peer, None, None]:
    """Run wheeld over folder/data until the block ends.

    Args:
        folder: is made; a data directory already there is served again.
        fsync: always, interval or off.
        port: 0 = a free one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    log = folder / "wheeld.log"
    command = wheeld_command(folder / "data", port, fsync)
    with running(command, log, PYTHONPATH=str(ROOT)) as process:
        peer = Peer(name="wheeld", port=port, process=process, log=log)
        peer.wait("COUNT")
        yield peer


def has_redis() -> bool:
    """Return whether Redis and its benchmark can be started here."""
    return all(shutil.which(name) for name in ("redis-server", "redis-benchmark"))


@contextmanager
def redis(folder: Path, *, append: str) -> Generator[Peer, None, None]:
    """Run Redis in folder until the block ends.

    Args:
        folder: is made.
        append: value of ``appendfsync``, or ``none`` for no log at all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    words += ["--appendonly", "no" if append == "none" else "yes"]
    words += [] if append == "none" else ["--appendfsync", append]
    log = folder / "redis.log"
    with running(["redis-server", *words], log) as process:
        peer = Peer(name="redis", port=port, process=process, log=log)
        peer.wait("DBSIZE")
        yield peer
