"""Rounds one after the other in one call: when they are made, and when the caller has its turn."""

import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from wheel.engine.core import Commit, Core, CoreOptions
from wheel.engine.facts import Clocks

PATIENCE_S = 20.0
CALLS = 300


@contextmanager
def serving(**options: Any) -> Generator[tuple[Core, socket.socket], None, None]:
    """Run a core with real clocks and one client that has sent nothing."""
    made: dict[str, Any] = {"commit": Commit.INLINE, "jobs_max": 100, **options}
    with Core(CoreOptions(**made)) as core:
        now = time.monotonic_ns() // 1_000_000
        core.start(term=1, rel_ms=now, clocks=Clocks(wall_ms=now, boot_ms=now, mono_ms=now))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            core.listen(listener.detach())
        with socket.create_connection(address) as client:
            client.settimeout(PATIENCE_S)
            yield core, client


def rounds(core: Core) -> int:
    return core.stats()["rounds"]


@contextmanager
def talking(core: Core, client: socket.socket) -> Generator[None, None, None]:
    """Let the client send PING after PING, each as soon as the last is answered."""
    over = threading.Event()

    def talk() -> None:
        while not over.is_set():
            client.sendall(b"PING\r\n")
            assert client.recv(100) == b"+PONG\r\n"

    peer = threading.Thread(target=talk)
    peer.start()
    try:
        yield
    finally:
        over.set()
        while peer.is_alive():
            core.stay()


def rounds_a_call(core: Core) -> set[int]:
    """Return how many rounds each of many calls made."""
    found: set[int] = set()
    for _ in range(CALLS):
        before = rounds(core)
        core.stay()
        found.add(rounds(core) - before)
    return found


def test_who_comes_back_at_once_is_served_within_the_call() -> None:
    with serving() as (core, client), talking(core, client):
        deadline = time.monotonic() + PATIENCE_S
        while max(rounds_a_call(core)) == 1:
            assert time.monotonic() < deadline, "each call made one round"


def test_one_round_a_call_where_the_owner_takes_frames_between() -> None:
    with serving(commit=Commit.DRIVEN) as (core, client), talking(core, client):
        assert rounds_a_call(core) == {1}


def test_one_round_a_call_while_a_connection_is_fed() -> None:
    with serving() as (core, client):
        fed = core.fed_open("somebody")
        with talking(core, client):
            assert rounds_a_call(core) == {1}
        core.fed_close(fed)


def test_a_command_for_python_ends_the_call() -> None:
    with serving() as (core, client):
        for _ in range(CALLS):
            client.sendall(b"TIME\r\n")
            deadline = time.monotonic() + PATIENCE_S
            while core.stay() == 0:
                assert time.monotonic() < deadline, "it never came"
            command = core.slow_next()
            assert command is not None
            core.slow_reply(command.handle, b"+ok\r\n", gated=False)
            core.commit()
            assert client.recv(100) == b"+ok\r\n"
