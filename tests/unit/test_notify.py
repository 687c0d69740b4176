"""What the supervisor is told, over a real datagram socket."""

import os
import socket

import pytest

from server.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def supervisor(request, tmp_path):
    """A socket that listens, and its address as the environment names it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"\0wheeld-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name)
        listening.setblocking(False)
        yield listening, name.replace("\0", "@")


def test_every_word_is_a_datagram_of_its_own(supervisor):
    listening, address = supervisor
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000"}
    with Notifier.from_environ(environ) as notifier:
        notifier.starting("half way")
        notifier.ready("serving")
        notifier.alive()
        notifier.stopping()
    said = [listening.recv(1000).decode() for _ in range(5)]
    assert said == [
        "STATUS=half way\nEXTEND_TIMEOUT_USEC=30000000",
        "WATCHDOG=1",
        "READY=1\nSTATUS=serving",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=stopping",
    ]


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}])
def test_signs_of_life_are_given_only_to_who_asked_this_process_for_them(supervisor, more):
    listening, address = supervisor
    with Notifier.from_environ({"NOTIFY_SOCKET": address, **more}) as notifier:
        notifier.alive()
    with pytest.raises(BlockingIOError):
        listening.recv(1000)


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nonexistent/socket"}])
def test_without_a_supervisor_nothing_happens(environ):
    with Notifier.from_environ(environ) as notifier:
        notifier.ready("serving")
        notifier.stopping()


def test_supervisor_that_does_not_listen_stops_nobody(tmp_path):
    name = str(tmp_path / "full")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name)
        with Notifier(name, watched=True) as notifier:
            for _ in range(10_000):
                notifier.alive()
