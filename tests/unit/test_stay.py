"""Rounds one after the other in one call: when they are made, and when the caller has its turn."""

import contextlib
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from wheel.engine.core import Commit, Core, CoreOptions
from wheel.engine.facts import Clocks

PATIENCE_S = 20.0
CALLS = 30
PING = b"*1\r\n$4\r\nPING\r\n"  # twice as long as its answer, so that those find room
PINGS = PING * 500
LONG_LINE = b"NOPE " + b"x" * 8000 + b"\r\n"  # its answer is short


@contextmanager
def serving(
    *, started: bool = True, **options: Any
) -> Generator[tuple[Core, socket.socket, socket.socket], None, None]:
    """Run a core with real clocks, and two clients that have sent nothing.

    Over a unix socket: what was sent is there when the next round looks.
    """
    made: dict[str, Any] = {"commit": Commit.INLINE, "jobs_max": 100, **options}
    with Core(CoreOptions(**made)) as core, contextlib.ExitStack() as sockets:
        now = time.monotonic_ns() // 1_000_000
        if started:
            core.start(term=1, rel_ms=now, clocks=Clocks(wall_ms=now, boot_ms=now, mono_ms=now))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("")  # a name of the kernel's choice, no file
        listener.listen()
        address = listener.getsockname()
        core.listen(listener.detach())
        clients = [sockets.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        for client in clients:
            client.connect(address)
            client.settimeout(PATIENCE_S)
        yield core, clients[0], clients[1]


def rounds(core: Core) -> int:
    return core.stats()["rounds"]


def fill(client: socket.socket) -> int:
    """Send more than one round takes; return how many commands it was."""
    client.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            assert client.send(LONG_LINE) == len(LONG_LINE)
            sent += 1
    client.settimeout(PATIENCE_S)
    assert sent * len(LONG_LINE) > 2 * 65536
    return sent


def drain(core: Core, client: socket.socket, count: int) -> None:
    """Make rounds until so many commands are answered."""
    data = b""
    deadline = time.monotonic() + PATIENCE_S
    while data.count(b"\r\n") < count:
        assert time.monotonic() < deadline
        core.poll(0)
        with contextlib.suppress(BlockingIOError):
            data += client.recv(1 << 16, socket.MSG_DONTWAIT)


def rounds_a_call(core: Core, client: socket.socket) -> set[int]:
    """Return how many rounds each of many calls made, with work for several each time."""
    found: set[int] = set()
    for _ in range(CALLS):
        count = fill(client)
        for _again in range(2):  # the second at once: a client that comes back
            before = rounds(core)
            core.stay()
            found.add(rounds(core) - before)
        drain(core, client, count)
    return found


def test_who_comes_back_at_once_is_served_within_the_call() -> None:
    with serving() as (core, client, _other):
        deadline = time.monotonic() + PATIENCE_S
        while max(rounds_a_call(core, client)) == 1:
            assert time.monotonic() < deadline, "each call made one round"


def test_who_comes_after_a_pause_gets_one_round() -> None:
    with serving() as (core, client, _other):
        fill(client)
        core.stay()
        assert rounds(core) == 1


@pytest.mark.parametrize(
    "options",
    [{"commit": Commit.DRIVEN}, {"hand_clock": True}, {"started": False}],
    ids=["frames", "clock", "replay"],
)
def test_one_round_a_call_where_the_owner_does_something_between(options: dict[str, Any]) -> None:
    """Takes frames, moves the clock, replays the log."""
    with serving(**options) as (core, client, _other):
        assert rounds_a_call(core, client) == {1}


def test_one_round_a_call_while_a_connection_is_fed() -> None:
    with serving() as (core, client, _other):
        fed = core.fed_open("somebody")
        assert rounds_a_call(core, client) == {1}
        core.fed_close(fed)


@pytest.mark.parametrize("axis", ["wall", "rel"])
def test_one_round_a_call_while_an_alarm_has_rung(axis: str) -> None:
    with serving() as (core, client, _other):
        core.set_alarms(1 if axis == "wall" else None, 1 if axis == "rel" else None)
        assert rounds_a_call(core, client) == {1}


def test_a_command_for_python_ends_the_call() -> None:
    with serving() as (core, client, other):
        for _ in range(CALLS):
            count = fill(client)
            core.stay()
            other.sendall(b"TIME\r\n")
            before = rounds(core)
            assert core.stay() == 1
            assert rounds(core) == before + 1, "it waited while another client was served"
            command = core.slow_next()
            assert command is not None
            core.slow_reply(command.handle, b"+ok\r\n", gated=False)
            core.commit()
            assert other.recv(100) == b"+ok\r\n"
            drain(core, client, count)


def test_a_client_that_has_more_to_do_does_not_keep_the_call_for_itself() -> None:
    """Each has sent some 2 MB, for which nobody needs so little as 3 ms."""
    with serving() as (core, _client, _other):
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        core.listen(listener.detach())
        for _ in range(5):
            with socket.create_connection(address) as busy:
                while core.connections() < 3:
                    core.poll(0)
                busy.setblocking(False)
                sent, before = 0, core.stats()["commands"]
                with contextlib.suppress(BlockingIOError):
                    while True:
                        sent += busy.send(PINGS)
                assert sent > 16 * 65536
                for _again in range(2):
                    core.stay()
                assert core.stats()["commands"] - before < sent // len(PING)
            while core.connections() > 2:
                core.poll(0)
