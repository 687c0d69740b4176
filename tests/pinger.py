"""How long a PING takes on an old connection while something goes on.

The asking is done by a process of its own: ``python -m tests.pinger PORT PID`` pings every 5 ms
until its stdin ends and prints one JSON document. Time in which the server's thread or the asking
one was ready to run and the machine let others run (``/proc/PID/schedstat``) is the machine's and
is taken off; the longest that a bare echo took, asked at the same moments, is allowed on top.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, Self

from tests.process import ROOT

EVERY_S: Final = 0.005
LIMIT_MS: Final = 50.0  # what an old connection may have to wait, whatever goes on
PATIENCE_S: Final = 60.0


class Pinger:
    """Pings while its block runs; ``check`` looks at what it saw."""

    def __init__(self, port: int, pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.pinger", str(port), str(pid)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._said = b""  # at the end

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"connected\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._said = self._process.communicate(timeout=PATIENCE_S)[0]

    def check(self) -> None:
        """Fail if a PING took over 50 ms more than the bare echo ever did."""
        seen = json.loads(self._said)
        print(seen)
        assert seen["count"] > 0  # on a machine under load it may be the one at the beginning
        assert seen["server_ms"] <= LIMIT_MS + seen["echo_ms"], seen


def waited_ns(pid: int | str) -> int:
    """Return how long a process's first thread was ready to run and did not."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])


def ask_ns(sock: socket.socket, pids: tuple[int | str, ...]) -> int:
    """Return what one PING took, without what the machine took from these processes."""
    before = sum(map(waited_ns, pids))
    begin = time.monotonic_ns()
    sock.sendall(b"PING\r\n")
    if not sock.recv(100):
        raise ConnectionError("the old connection was closed")
    took_ns = time.monotonic_ns() - begin
    return max(0, took_ns - (sum(map(waited_ns, pids)) - before))


def connected(port: int) -> socket.socket:
    """Return a connection to a port of this machine."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def echo(listener: socket.socket) -> None:
    """Send back whatever comes."""
    peer, _ = listener.accept()
    while data := peer.recv(100):
        peer.sendall(data)


def wait_for_end(stop: threading.Event) -> None:
    """Stop when stdin ends."""
    sys.stdin.read()
    stop.set()


def main() -> None:
    """Ping until stdin ends."""
    port, pid = int(sys.argv[1]), int(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0))
    if (echo_pid := os.fork()) == 0:
        echo(listener)
        os._exit(0)
    stop = threading.Event()
    threading.Thread(target=wait_for_end, args=(stop,), daemon=True).start()
    server, bare = connected(port), connected(listener.getsockname()[1])

    def both_ns() -> tuple[int, int]:
        return ask_ns(server, (pid, "self")), ask_ns(bare, (echo_pid, "self"))

    both_ns()  # for warming up
    print("connected", flush=True)
    longest_ns = both_ns()
    count = 1
    while not stop.wait(EVERY_S):
        found_ns = both_ns()
        longest_ns = max(longest_ns[0], found_ns[0]), max(longest_ns[1], found_ns[1])
        count += 1
    print(
        json.dumps(
            {
                "count": count,
                "server_ms": longest_ns[0] / 1e6,
                "echo_ms": longest_ns[1] / 1e6,
            }
        )
    )


if __name__ == "__main__":
    main()
