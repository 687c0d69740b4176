"""Commits to a real log on a real disk, in every mode, over real sockets and real clocks."""

import contextlib
import errno
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import PATIENCE_S, Live, clocks
from tests.simdisk import SimDisk
from wheel.engine.core import Commit, DiskRoom, FigureKind, LogStoppedError, Sync
from wheel.engine.records import Kind, Record, encode
from wheel.errors import CoreDiskError

MODES = [
    (Commit.THREAD, Sync.ALWAYS),
    (Commit.INLINE, Sync.ALWAYS),
    (Commit.THREAD, Sync.INTERVAL),
    (Commit.INLINE, Sync.INTERVAL),
    (Commit.THREAD, Sync.OFF),
]


@pytest.fixture(params=MODES, ids=lambda mode: f"{mode[0].name}-{mode[1].name}".lower())
def mode(request: pytest.FixtureRequest) -> tuple[Commit, Sync]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    live = Live(tmp_path, Commit.THREAD, Sync.ALWAYS)
    yield live
    live.close()


def test_what_was_confirmed_is_there_after_a_restart(
    tmp_path: Path, mode: tuple[Commit, Sync]
) -> None:
    live = Live(tmp_path, *mode)
    clients = [live.connect() for _ in range(8)]
    for turn in range(20):
        for client in clients:
            client.sendall(b"SCHEDULE mail +1h x\r\n" * (1 + turn % 3))
        for client in clients:
            reply = live.read(client, b"\r\n")
            while reply.count(b"$") < 1 + turn % 3 or not reply.endswith(b"\r\n"):
                reply += live.read(client, b"\r\n")
    state = live.core.state_hash()
    count = live.ask(clients[0], b"COUNT\r\n")
    assert live.core.durable_lsn() == live.core.lsn()
    live.close()
    again = Live(tmp_path, *mode)
    assert again.core.check() == 0
    assert again.core.state_hash() == state
    assert again.ask(again.connect(), b"COUNT\r\n") == count
    again.close()


def test_reads_cause_no_commit(tmp_path: Path, mode: tuple[Commit, Sync]) -> None:
    live = Live(tmp_path, *mode)
    client = live.connect()
    live.ask(client, b"SCHEDULE mail +1h x\r\nCOUNT\r\n", b":1\r\n")
    frames = live.log.stats().frames
    for _ in range(50):
        assert live.ask(client, b"COUNT\r\n") == b":1\r\n"
    assert live.log.stats().frames == frames
    live.close()


def end_command(client: socket.socket, begun: threading.Event, asked_ms: list[int]) -> None:
    """Send the rest of a command when the round is on its way, and note the boot clock before."""
    assert begun.wait(PATIENCE_S)
    time.sleep(0.003)  # nothing waits for this: it only has to be in the middle
    asked_ms.append(clocks().boot_ms)
    client.sendall(b" x\r\n")


def test_a_delay_counts_from_when_it_was_asked_for_however_long_the_round_lasts(
    tmp_path: Path,
) -> None:
    """The round is busy with others while the call comes in; their clocks are older than it."""
    live = Live(tmp_path, Commit.THREAD, Sync.OFF)
    others = [live.connect() for _ in range(40)]
    for turn in range(3):
        client = live.connect()
        live.ask(client, b"PING\r\n")
        live.core.poll(0)  # the kernel forgets that it was ready
        for other in others:
            other.send(b"COUNT\r\n" * 8000)
        client.sendall(b"SCHEDULE mail +10000")  # behind the others in the list of what is ready
        begun = threading.Event()
        asked_ms: list[int] = []
        asker = threading.Thread(target=end_command, args=(client, begun, asked_ms))
        asker.start()
        begun.set()
        live.core.poll(1000)
        asker.join()
        job = live.read(client, b"\r\n").split(b"\r\n")[1]
        told = live.ask(client, b"JOB %b\r\nCOUNT\r\n" % job, b"\r\n:%d\r\n" % (turn + 1))
        due_ms = int(told.partition(b"$6\r\ndue_ms\r\n:")[2].partition(b"\r\n")[0])
        boot_ms = due_ms - (clocks().wall_ms - clocks().boot_ms)
        assert boot_ms - asked_ms[0] >= 10_000 - 2  # the two clocks are rounded by themselves
        for other in others:
            live.read(other, b"\r\n")
    live.close()


def test_while_syncs_are_quick_the_loop_does_them_for_a_herd_too(tmp_path: Path) -> None:
    """Frames are shared as well: what came in together is written together."""
    live = Live(tmp_path, Commit.THREAD, Sync.ALWAYS, own_sync_us=1_000_000)
    clients = [live.connect() for _ in range(20)]
    for _ in range(5):
        for client in clients:
            client.sendall(b"SCHEDULE mail +1h x\r\n")
        for client in clients:
            live.read(client, b"\r\n")
    stats, figure = live.core.stats(), live.core.figure(FigureKind.BATCH_RECORDS)
    assert stats["own_syncs"] == figure.count
    assert stats["gathers"] == 0
    assert figure.count < 5 * 20
    live.close()


def test_what_does_not_fit_into_one_frame_is_confirmed_without_another_wake_up(
    tmp_path: Path,
) -> None:
    """However quick the syncs are: after one by the loop nobody would look at the next frame."""
    live = Live(tmp_path, Commit.THREAD, Sync.ALWAYS, own_sync_us=1_000_000)
    clients = [live.connect() for _ in range(24)]
    for client in clients:
        live.ask(client, b"PING\r\n")
    for client in clients:
        client.sendall(b"SCHEDULE mail +1h %b\r\n" % (b"x" * 60_000))
    waiting = {client.fileno(): client for client in clients}
    while waiting:
        woken, _, _ = select.select([live.core.fileno(), *waiting], [], [], PATIENCE_S)
        assert woken, f"{len(waiting)} calls are forgotten"
        live.core.poll(0)
        for client in [waiting.pop(fd) for fd in woken if fd in waiting]:
            assert client.recv(100).startswith(b"$10")
    assert live.core.figure(FigureKind.BATCH_RECORDS).count > 2
    live.close()


def test_the_loop_syncs_by_itself_only_when_it_keeps_nobody_by_that(tmp_path: Path) -> None:
    """A sync may turn out to be slow, and nobody knows before."""
    live = Live(tmp_path, Commit.THREAD, Sync.ALWAYS, own_sync_us=1_000_000)

    def write_until(counter: str, other: str) -> None:
        before = live.core.stats()
        for _ in range(1000):  # now and then a sync is slow by itself, and the next is the thread's
            live.ask(busy, b"SCHEDULE mail +1h x\r\n")
            if live.core.stats()[counter] >= before[counter] + 5:
                break
        assert live.core.stats()[counter] >= before[counter] + 5
        assert live.core.stats()[other] == before[other]

    try:
        busy = live.connect()
        write_until("own_syncs", "awaited_syncs")
        live.ask(live.connect(), b"PING\r\n")  # an idle one: it may ask again at any time
        write_until("awaited_syncs", "own_syncs")
    finally:
        live.close()


def test_a_herd_that_the_loop_waited_for_with_the_thread_is_gathered(tmp_path: Path) -> None:
    live = Live(tmp_path, Commit.THREAD, Sync.ALWAYS, own_sync_us=1_000_000)
    live.ask(live.connect(), b"PING\r\n")  # an idle one, so that the loop does not sync by itself
    clients = [live.connect() for _ in range(20)]
    deadline, herds = time.monotonic() + PATIENCE_S, 0
    while herds < 5 or not live.core.stats()["awaited_syncs"]:  # a slow sync is not waited for
        assert time.monotonic() < deadline
        herds += 1
        for client in clients:
            client.sendall(b"SCHEDULE mail +1h x\r\n")
        for client in clients:
            live.read(client, b"\r\n")
    stats, figure = live.core.stats(), live.core.figure(FigureKind.BATCH_RECORDS)
    assert stats["gathers"] >= stats["awaited_syncs"] - 1, "the last one has no round behind it"
    assert figure.count < herds * 20
    live.close()


def test_a_lone_client_is_synced_by_the_loop_and_a_herd_by_the_thread(live: Live) -> None:
    lone = live.connect()
    for _ in range(20):
        live.ask(lone, b"SCHEDULE mail +1h x\r\n")
    assert live.core.stats()["own_syncs"] > 0
    clients = [live.connect() for _ in range(20)]
    for _ in range(5):
        for client in clients:
            client.sendall(b"SCHEDULE mail +1h x\r\n")
        for client in clients:
            live.read(client, b"\r\n")
    assert live.core.stats()["gathers"] > 0
    figure = live.core.figure(FigureKind.BATCH_RECORDS)
    assert figure.count < 20 + 5 * 20, "frames are shared"
    assert figure.max > 1


def test_interval_syncs_by_itself(tmp_path: Path) -> None:
    live = Live(tmp_path, Commit.THREAD, Sync.INTERVAL)
    live.ask(live.connect(), b"SCHEDULE mail +1h x\r\n")
    deadline = time.monotonic() + PATIENCE_S
    while live.log.stats().synced_lsn < live.core.lsn():
        assert time.monotonic() < deadline
        live.core.poll(10)
    live.close()


@contextlib.contextmanager
def no_writes() -> Iterator[None]:
    """No file may be written in this process: pwrite fails with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_log_closes_everything_without_another_byte(
    tmp_path: Path, mode: tuple[Commit, Sync]
) -> None:
    live = Live(tmp_path, *mode)
    writer, reader = live.connect(), live.connect()
    live.ask(writer, b"PING\r\n")
    live.ask(reader, b"PING\r\n")
    writer.sendall(b"SCHEDULE mail +1h x\r\n")
    select.select([live.core.fileno()], [], [], PATIENCE_S)
    with no_writes(), pytest.raises(LogStoppedError):
        live.poll_for(PATIENCE_S)
    for client in (writer, reader):
        client.setblocking(True)
        client.settimeout(PATIENCE_S)
        assert client.recv(100) == b""
    with pytest.raises(LogStoppedError):
        live.core.poll(0)
    with pytest.raises(LogStoppedError):
        live.core.commit()
    assert live.log.error() is not None
    live.close()


@pytest.mark.parametrize("commit", [Commit.THREAD, Commit.INLINE])
def test_a_full_disk_holds_the_frame_refuses_writes_and_goes_on_by_itself(commit: Commit) -> None:
    disk = SimDisk()
    live = Live(Path("/data"), commit, Sync.ALWAYS, disk=disk, segment_bytes=128 * 1024)
    writer, other = live.connect(), live.connect()
    live.ask(other, b"PING\r\n")
    disk.fault("open", 1, error=errno.ENOSPC)
    line = b"SCHEDULE mail +1h " + b"x" * 20_000 + b"\r\n"
    asked = 0
    while not live.core.stats()["commit_stalled"]:
        assert asked < 20
        writer.sendall(line)
        asked += 1
        until = time.monotonic() + PATIENCE_S
        while live.core.durable_lsn() < live.core.lsn() or live.core.stats()["lsn"] < asked + 2:
            assert time.monotonic() < until
            live.core.poll(10)
            if live.core.stats()["commit_stalled"]:
                break
    durable_lsn = live.core.durable_lsn()
    assert durable_lsn < live.core.lsn()
    assert live.ask(other, b"PING\r\n") == b"+PONG\r\n"
    disk.fault("open", 1, error=errno.ENOSPC)  # and the next try fails too
    assert live.ask(other, line).startswith(b"-DISKFULL")
    with pytest.raises(CoreDiskError):  # nor does a schedule, whatever its owner has seen
        live.core.submit(encode(Record(kind=Kind.PUT, reason=1, name=b"n", blob=b"x")))
    assert live.core.durable_lsn() == durable_lsn
    replies = live.read(writer, b"\r\n")
    while replies.count(b"$") < asked:
        replies += live.read(writer, b"\r\n")
    assert live.core.durable_lsn() == live.core.lsn()
    assert not live.core.stats()["commit_stalled"]
    assert live.ask(other, b"SCHEDULE mail +1h x\r\n").startswith(b"$")
    state = live.core.state_hash()
    live.close()
    again = Live(Path("/data"), commit, Sync.ALWAYS, disk=disk, segment_bytes=128 * 1024)
    assert again.core.state_hash() == state
    again.close()


def test_the_less_room_the_disk_has_the_less_is_taken_on(live: Live) -> None:
    client = live.connect()
    live.ask(client, b"SCHEDULE mail now x\r\nSCHEDULE mail now y\r\nCOUNT\r\n", b":2\r\n")
    lease = live.ask(client, b"LEASE mail\r\n", b"$-1\r\n$-1\r\n$-1\r\n")
    receipt = lease.split(b"\r\n")[3]
    answers: dict[DiskRoom, list[bytes]] = {}
    for room in DiskRoom:
        live.core.set_disk_room(room)
        live.core.commit()
        schedule = b"SCHEDULE mail\r\n" if room is DiskRoom.OK else b"SCHEDULE mail now x\r\n"
        extend = b"EXTEND %s x\r\n" % receipt
        lines = (schedule, b"LEASE nothing\r\n", extend, b"COUNT\r\n")
        answers[room] = [live.ask(client, line)[:9] for line in lines]
    full = b"-DISKFULL"
    assert answers[DiskRoom.OK][1:] == [b"*0\r\n", b"-SYNTAX r", b":2\r\n"]
    assert answers[DiskRoom.TIGHT] == [full, b"*0\r\n", b"-SYNTAX r", b":2\r\n"]
    assert answers[DiskRoom.LOW] == [full, full, b"-SYNTAX r", b":2\r\n"]
    assert answers[DiskRoom.FULL] == [full, full, full, b":2\r\n"]
    live.core.set_disk_room(DiskRoom.OK)
    assert live.ask(client, b"ACK " + receipt + b"\r\n", b"+OK\r\n") == b"*1\r\n+OK\r\n"


def test_a_waiting_lease_gets_nothing_while_the_disk_is_low(live: Live) -> None:
    worker, producer = live.connect(), live.connect()
    worker.sendall(b"LEASE mail WAIT 60000\r\n")
    live.ask(producer, b"SCHEDULE mail +1h x KEY k\r\nCOUNT\r\n", b":1\r\n")
    live.core.set_disk_room(DiskRoom.LOW)
    assert live.ask(producer, b"RUN k\r\n") == b"+OK\r\n"
    assert live.ask(producer, b"COUNT STATE leased\r\n") == b":0\r\n"
    live.core.set_disk_room(DiskRoom.OK)
    assert live.read(worker, b"$-1\r\n$-1\r\n$-1\r\n").startswith(b"*1\r\n")


def test_the_port_answers_while_the_log_is_read(tmp_path: Path) -> None:
    live = Live(tmp_path, Commit.THREAD, Sync.ALWAYS, started=False)
    client = live.connect()
    assert live.ask(client, b"PING\r\n") == b"+PONG\r\n"
    assert live.ask(client, b"SCHEDULE mail now x\r\n").startswith(b"-LOADING")
    assert live.core.stats()["loading"] == 1
    live.start()
    assert live.ask(client, b"SCHEDULE mail now x\r\n").startswith(b"$10\r\n")
    live.close()


@pytest.mark.parametrize("when", ["+40", "absolute"])
def test_a_due_job_wakes_a_waiting_lease_by_a_timer(live: Live, when: str) -> None:
    worker, producer = live.connect(), live.connect()
    worker.sendall(b"LEASE mail WAIT 20000\r\n")
    due_ms = clocks().wall_ms + 40
    text = str(due_ms) if when == "absolute" else when
    live.ask(producer, f"SCHEDULE mail {text} x\r\n".encode())
    live.core.reset_figures()
    reply = live.read(worker, b"$-1\r\n$-1\r\n$-1\r\n")
    assert reply.startswith(b"*1\r\n")
    assert clocks().wall_ms >= due_ms - 1, "clocks are cut to ms, each by itself"
    lateness = live.core.figure(FigureKind.LATENESS_US)
    assert lateness.count == 1
    assert live.core.figure(FigureKind.ROUND_CPU_NS).count > 0


def test_a_waiting_lease_ends_by_a_timer(live: Live) -> None:
    started = time.monotonic_ns()
    assert live.ask(live.connect(), b"LEASE mail WAIT 50\r\n") == b"*0\r\n"
    assert time.monotonic_ns() - started >= 49_000_000


def test_big_commands_close_batches_early_and_none_is_torn(live: Live, tmp_path: Path) -> None:
    client = live.connect()
    payload = b"x" * 60_000
    command = b"*4\r\n$8\r\nSCHEDULE\r\n$3\r\nbig\r\n$3\r\n+1h\r\n$60000\r\n" + payload + b"\r\n"
    client.setblocking(True)
    total = 60
    data = command * total
    replies = 0
    client.setblocking(False)
    deadline = time.monotonic() + PATIENCE_S
    while replies < total:
        assert time.monotonic() < deadline
        with contextlib.suppress(BlockingIOError):
            data = data[client.send(data) :] if data else data
        live.core.poll(1)
        with contextlib.suppress(BlockingIOError):
            replies += client.recv(1 << 16).count(b"$")
    figure = live.core.figure(FigureKind.BATCH_BYTES)
    assert figure.max < 512 * 1024 + 2 * 61_000
    assert figure.sum >= total * 60_000
    assert live.core.durable_lsn() == live.core.lsn()


def test_an_idle_core_wakes_nobody(live: Live) -> None:
    """Ready, leased, paused and far-off jobs, waiting and parked clients: none of them spins."""
    client, waiting, parked = live.connect(), live.connect(), live.connect()
    live.ask(client, b"SCHEDULE a now x\r\nSCHEDULE a +1h x\r\nSCHEDULE b now x EXPIRE +1h\r\n")
    live.ask(client, b"SCHEDULE c now x\r\nLEASE c\r\n", b"$-1\r\n$-1\r\n$-1\r\n")
    live.ask(client, b"HANDLER a PAUSE\r\nCOUNT\r\n", b":4\r\n")
    waiting.sendall(b"LEASE a,nothing WAIT 300000\r\n")
    parked.sendall(b"INFO\r\n")
    for _ in range(200):  # until what is still under way has come: a sync, a segment made ahead
        rounds = live.core.stats()["rounds"]
        if not select.select([live.core.fileno()], [], [], 0.3)[0]:
            break
        live.core.poll(0)
    else:
        pytest.fail("it does not come to rest")
    assert rounds < 150
