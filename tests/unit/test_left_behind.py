"""What the last step of a round makes ready is not left for a round that nobody asks for."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.byhand import ByHand
from tests.simdisk import SimDisk

GRANT_END = b"$-1\r\n$-1\r\n$-1\r\n"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[ByHand]:
    live = ByHand(tmp_path)
    yield live
    live.close()


@pytest.mark.parametrize("bound", [b" BOUND", b""], ids=["bound", "unsent"])
def test_a_job_that_goes_back_when_its_holder_is_gone_wakes_who_waits_for_it(
    live: ByHand, bound: bytes
) -> None:
    holder, waiting = live.local(), live.connect()
    live.ask(holder, b"PING\r\n")
    payload = b"x" * (1 if bound else 60_000)
    for _ in range(4):
        live.ask(waiting, b"SCHEDULE mail now %b\r\n" % payload)
    holder.sendall(b"LEASE mail COUNT 4%b\r\n" % bound)
    live.core.poll(0)
    if bound:
        live.read(holder, GRANT_END)  # of what is not bound the kernel took a part
    waiting.sendall(b"LEASE mail COUNT 4 WAIT 60000\r\nPING\r\n")
    while not live.core.stats()["conns_waiting"]:
        live.core.poll(1000)
    assert live.core.engine_figures()["jobs_leased"] == 4
    holder.close()
    assert live.read(waiting, b"+PONG\r\n").startswith(b"*4\r\n")
    assert live.core.durable_lsn() == live.core.lsn()


def test_a_waiting_lease_is_served_when_its_peer_takes_bytes_again(live: ByHand) -> None:
    slow, other = live.local(), live.connect()
    live.ask(slow, b"PING\r\n")
    first = live.ask(other, b"SCHEDULE big +1h %b\r\n" % (b"x" * 60_000))
    job = first.split(b"\r\n")[1]
    slow.sendall(b"JOB %b\r\n" % job * 15 + b"LEASE mail WAIT 60000\r\n")
    while not live.core.stats()["conns_waiting"]:
        live.core.poll(1000)
    assert [session.blocked for session in live.core.sessions()] == [True, False]
    live.ask(other, b"SCHEDULE mail now y\r\n")
    assert live.core.engine_figures()["jobs_ready"] == 1
    assert live.read(slow, GRANT_END).endswith(b"$1\r\ny\r\n:300000\r\n" + GRANT_END)


def test_a_waiting_lease_is_served_when_the_disk_has_room_again() -> None:
    disk = SimDisk()
    live = ByHand(Path("/data"), disk=disk, segment_bytes=128 * 1024)
    waiting, writer = live.connect(), live.connect()
    waiting.sendall(b"LEASE mail WAIT 60000\r\n")
    live.ask(writer, b"SCHEDULE mail +500ms y\r\n")
    disk.fault("open", 1, error=errno.ENOSPC)
    line = b"SCHEDULE later +1h " + b"x" * 20_000 + b"\r\n"
    while not live.core.stats()["commit_stalled"]:
        writer.sendall(line)
        live.core.poll(1)
    live.advance(600)
    assert live.core.engine_figures()["jobs_ready"] == 1
    live.advance(600)  # the frame is tried again
    assert not live.core.stats()["commit_stalled"]
    assert live.read(waiting, GRANT_END).startswith(b"*1\r\n")
    live.close()
