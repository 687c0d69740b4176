"""The commit thread and the loop meet at a sync: one that fails, one that lasts, one at the end."""

import errno
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.calldisk import HookedDisk
from tests.live import PATIENCE_S, Live
from wheel.engine.core import Commit, LogStoppedError, Sync

SEGMENT_BYTES = 64 * 1024
IDLE_S = 0.2  # four of the thread's intervals
SLOW_S = 0.003  # more than the loop takes upon itself for one client
WRITE = b"SCHEDULE mail +1h x\r\n"
ENDINGS = 5


@pytest.fixture
def disk() -> HookedDisk:
    return HookedDisk()


@pytest.fixture
def live(tmp_path: Path, disk: HookedDisk) -> Iterator[Live]:
    live = opened(tmp_path, Sync.INTERVAL, disk)
    yield live
    live.close()


def opened(data: Path, sync: Sync, disk: HookedDisk) -> Live:
    return Live(data, Commit.THREAD, sync, disk=disk, segment_bytes=SEGMENT_BYTES)


def assert_stopped(live: Live, client: socket.socket) -> None:
    """The log's failure was told, by the call that failed, and nobody gets another byte."""
    told = live.log.error()
    assert (told.errno, told.call) == (errno.EIO, "datasync")
    client.setblocking(True)
    client.settimeout(PATIENCE_S)
    assert client.recv(100) == b""
    with pytest.raises(LogStoppedError):
        live.core.poll(0)


def test_an_intervals_sync_that_fails_ends_everything(live: Live, disk: HookedDisk) -> None:
    """Nobody asks for anything any more: the thread wakes the loop by itself."""
    client = live.connect()
    assert live.ask(client, WRITE).startswith(b"$")
    disk.on_datasync = lambda: -errno.EIO
    assert select.select([live.core.fileno()], [], [], PATIENCE_S)[0]
    with pytest.raises(LogStoppedError):
        live.poll_for(PATIENCE_S)
    assert_stopped(live, client)


def test_a_sync_that_failed_is_not_tried_again_for_what_was_written_meanwhile(
    live: Live, disk: HookedDisk
) -> None:
    """A second one would succeed, over pages that the kernel threw away."""
    begun, may_end, again = threading.Event(), threading.Event(), threading.Event()

    def fail() -> int | None:
        if begun.is_set():
            again.set()
            return None
        begun.set()
        assert may_end.wait(PATIENCE_S)
        return -errno.EIO

    client = live.connect()
    disk.on_datasync = fail
    live.ask(client, WRITE)
    assert begun.wait(PATIENCE_S)
    live.ask(client, WRITE)  # the loop writes on while the thread syncs
    may_end.set()
    with pytest.raises(LogStoppedError):
        live.poll_for(PATIENCE_S)
    assert_stopped(live, client)
    assert not again.wait(IDLE_S)
    assert live.log.stats().synced_lsn < live.log.stats().written_lsn


def test_an_interval_in_which_nothing_was_written_syncs_nothing(
    live: Live, disk: HookedDisk
) -> None:
    synced = threading.Event()
    disk.on_datasync = synced.set
    live.ask(live.connect(), b"PING\r\n")
    live.core.commit()
    written = live.log.stats().written_lsn
    while live.log.stats().synced_lsn < written:  # the start wrote something
        assert synced.wait(PATIENCE_S)
    synced.clear()
    assert not synced.wait(IDLE_S)
    assert live.log.stats().written_lsn == written


@pytest.mark.parametrize("begun", [False, True])
def test_a_frame_that_was_handed_over_is_written_before_the_core_has_ended(
    tmp_path: Path, disk: HookedDisk, *, begun: bool
) -> None:
    """Whether the thread has begun with it or not, and although nobody is left to be told."""
    for turn in range(ENDINGS):
        syncs, closing = threading.Event(), threading.Event()
        disk.on_datasync = lambda: None
        live = opened(tmp_path, Sync.ALWAYS, disk)
        client = live.connect()
        assert live.ask(client, b"COUNT\r\n") == b":%d\r\n" % (2 * turn)
        disk.on_datasync = lambda: time.sleep(SLOW_S)  # so that the loop leaves the next one alone
        live.ask(client, WRITE)

        def sync(syncs: threading.Event = syncs, closing: threading.Event = closing) -> None:
            syncs.set()
            assert not begun or closing.wait(PATIENCE_S)

        disk.on_datasync = sync
        client.sendall(WRITE)
        assert select.select([live.core.fileno()], [], [], PATIENCE_S)[0]
        live.core.poll(0)
        assert live.core.stats()["commit_busy"]
        if begun:
            assert syncs.wait(PATIENCE_S)
            closing.set()
        live.close()
