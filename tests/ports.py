"""Ports for servers that tests start, kill and start again on the same port.

While such a server is down its port must stay its own: a client that keeps trying would talk to
whoever has taken it. So they are not the kernel's to give (those lie above 32767), each is given
once, and tests that run side by side take theirs from different thousands.
"""

import itertools
import os
import socket
from collections.abc import Iterator
from typing import Final

FIRST: Final = 20_000
EACH: Final = 1_000  # ports of one process of tests
PROCESSES_MAX: Final = 12


def _ports() -> Iterator[int]:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    first = FIRST + EACH * (int(worker) % PROCESSES_MAX)
    # Two runs on one machine begin at different places.
    start = os.getpid() % EACH
    return (first + (start + k) % EACH for k in itertools.count())


_next_port: Final = _ports()


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on and no other test is given."""
    for port in itertools.islice(_next_port, EACH):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError(f"none of {EACH} ports is free")
