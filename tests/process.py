"""The server as a process: started on a free port, asked, signalled, killed, started again.

Nothing here sleeps: a start waits for the line that says so, a stop for the process to end.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from tests.ports import free_port
from wheel.wire import NOT_READY, Reply, ReplyReader, encode_command

ROOT = Path(__file__).parents[1]
DEADLINE_S = 60.0


class Connection:
    """One connection that speaks RESP, or whatever bytes it is given."""

    def __init__(self, port: int, *, timeout_s: float = DEADLINE_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._reader = ReplyReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *commands: tuple[bytes | str | int, ...]) -> None:
        """Send commands without waiting for their replies."""
        self.socket.sendall(b"".join(encode_command(command) for command in commands))

    def read(self) -> Reply:
        """Return the next reply."""
        while (reply := self._reader.gets()) is NOT_READY:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        return reply

    def call(self, *words: bytes | str | int) -> Reply:
        """Send one command and return its reply."""
        self.send(words)
        return self.read()

    def read_to_end(self) -> bytes:
        """Return every byte up to the end; a reset connection ends it too."""
        parts = []
        try:
            while data := self.socket.recv(1 << 16):
                parts.append(data)
        except ConnectionResetError:
            pass
        return b"".join(parts)


class Server:
    """One data directory, and the process that serves it when there is one."""

    def __init__(self, data: Path, *, options: tuple[str, ...] = ()) -> None:
        self.data = data
        self.options = options
        self.env: dict[str, str] = {}
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader: threading.Thread | None = None

    # ---- life

    def command(self, *options: str) -> list[str]:
        """Return the command line of a start."""
        serve = ["serve", "--data", str(self.data), "--listen", f"127.0.0.1:{self.port}"]
        return [sys.executable, "-m", "wheeld", *serve, *self.options, *options]

    def spawn(self, *options: str, env: Mapping[str, str] | None = None) -> None:
        """Start the process and do not wait for it."""
        assert self.process is None or self.process.poll() is not None, "it still runs"
        self.lines = []
        self._queue = queue.Queue()
        self.process = subprocess.Popen(
            self.command(*options),
            cwd=ROOT,
            env={**os.environ, **self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def start(self, *options: str, env: Mapping[str, str] | None = None) -> dict[str, object]:
        """Start the process, wait until it serves, and return its ready event."""
        self.spawn(*options, env=env)
        return self.wait_event("server_ready")

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        lines = self._queue
        with process.stderr:
            for line in process.stderr:
                lines.put(line.decode("utf-8", "backslashreplace").rstrip("\n"))
        lines.put(None)

    def wait_event(self, name: str) -> dict[str, object]:
        """Read the log up to an event and return it; fail when the process ends before."""
        while (line := self._queue.get(timeout=DEADLINE_S)) is not None:
            self.lines.append(line)
            event = parse_event(line)
            if event.get("event") == name:
                return event
        raise AssertionError(f"ended without {name}:\n" + "\n".join(self.lines))

    def log(self) -> list[dict[str, object]]:
        """Return the events of a process that has ended."""
        self.wait()
        return [parse_event(line) for line in self.lines]

    def lines_so_far(self) -> list[dict[str, object]]:
        """Return the events that a running process has logged until now."""
        while not self._queue.empty():
            if (line := self._queue.get_nowait()) is not None:
                self.lines.append(line)
        return [parse_event(line) for line in self.lines]

    def event(self, name: str) -> dict[str, object]:
        """Return an event of a process that has ended; fail when there is none."""
        found = [event for event in self.log() if event.get("event") == name]
        assert found, "\n".join(self.lines)
        return found[-1]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal: SIGKILL, SIGTERM, SIGSTOP, SIGCONT, SIGHUP."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit status."""
        assert self.process is not None
        status = self.process.wait(DEADLINE_S)
        assert self._reader is not None
        self._reader.join(DEADLINE_S)
        while not self._queue.empty():
            if (line := self._queue.get_nowait()) is not None:
                self.lines.append(line)
        return status

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self.signal(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def terminate(self) -> int:
        """Stop in order, and return the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """End whatever is left."""
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
            self.wait()

    # ---- talk

    def connect(self) -> Connection:
        """Return a new connection."""
        return Connection(self.port)

    def call(self, *words: bytes | str | int) -> Reply:
        """Return the reply to one command on a connection of its own."""
        with self.connect() as connection:
            return connection.call(*words)

    def info(self) -> dict[str, str]:
        """Return INFO's fields."""
        text = self.call("INFO")
        assert isinstance(text, bytes), text
        return dict(
            line.split(":", 1) for line in text.decode().splitlines() if line and line[0] != "#"
        )


def parse_event(line: str) -> dict[str, object]:
    """Return a log line's fields; {} for a line that is none."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def compiled(folder: Path, name: str) -> Path:
    """Return a shim of tests/shims for LD_PRELOAD, compiled into a folder."""
    out, source = folder / f"{name}.so", ROOT / "tests" / "shims" / f"{name}.c"
    flags = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", out, source, "-ldl"], check=True)
    return out


@contextmanager
def serving(data: Path, *options: str) -> Iterator[Server]:
    """Yield a server that serves, and end it."""
    server = Server(data, options=options)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server over an empty data directory; not started."""
    made = Server(tmp_path / "data")
    try:
        yield made
    finally:
        made.close()
