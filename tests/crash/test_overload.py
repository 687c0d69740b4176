"""Overload: each limit is met by a real server, and an old connection's PING goes on meanwhile.

An issue of this kind is a limit (docs/limits.md), its figure in INFO, its named error, and who is
not to be harmed by it. The long forms are behind the marker `long`.
"""

import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time

import pytest

from tests.crash.test_serve import schedule_many, wait_for
from tests.pinger import Pinger
from tests.process import DEADLINE_S, ROOT, compiled
from wheel.wire import ReplyError, encode_command

pytestmark = pytest.mark.crash


def limit(server, name):
    """Return the numbers of a line of INFO's limits."""
    fields = dict(pair.split("=") for pair in server.info()[f"limit_{name}"].split(","))
    return {key: int(value) for key, value in fields.items()}


def pinging(server):
    """Return a block in which an old connection pings."""
    return Pinger(server.port, server.process.pid)


@contextlib.contextmanager
def storm(server, rate, seconds):
    """Yield what a storm of connections met; its connections stay open inside the block."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.storm", *map(str, (server.port, rate, seconds))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield lambda: json.loads(process.stdout.readline())
    finally:
        process.communicate(timeout=DEADLINE_S)


# ---------------------------------------------------------------- connections


def weather(server, *, clients_max, rate, seconds):
    server.start("--maxclients", str(clients_max))
    with pinging(server) as pinger:
        with storm(server, rate, seconds) as report:
            met = report()
        wait_for_room(server)
    print(met)
    assert met["made"] >= rate * seconds / 2, "the storm was none"
    assert met["open"] <= clients_max
    assert met["told"] >= (met["made"] - clients_max) * 0.9, met
    assert limit(server, "clients")["refused"] >= met["told"]
    assert limit(server, "clients")["max"] == clients_max
    pinger.check()


def wait_for_room(server):
    """A storm that is over leaves room for the next one."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with server.connect() as connection:
            if connection.call("PING") == "PONG":
                return
    raise AssertionError("nobody is let in")


def test_storm_of_connections_is_turned_away_with_a_text(server):
    weather(server, clients_max=200, rate=2_000, seconds=1.0)


@pytest.mark.long
def test_storm_of_five_thousand_a_second_for_ten_seconds(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        weather(server, clients_max=1_000, rate=5_000, seconds=10.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def with_descriptors(server, soft, hard, *options):
    """Start a server that may open so many descriptors."""
    command = server.command
    limits = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    server.command = lambda *more: ["sh", "-c", limits, "sh", *command(*more)]
    return server.start(*options)


def test_with_128_descriptors_64_clients_are_served_and_the_log_has_its_own(server):
    with_descriptors(server, 128, 128, "--segment-size", "4M")
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(server.connect())
        assert old.call("PING") == "PONG"
        pinger = stack.enter_context(pinging(server))
        others = [stack.enter_context(server.connect()) for _ in range(150)]
        answers = [other.read_to_end() for other in others[62:]]
        assert all(b"max number of clients reached (64)" in answer for answer in answers)
        # Segments are opened and closed while every place of a client is taken.
        schedule_many(old, 3 * 4_096 // 4 * 2, when="+1d", handler="h" * 190)
        old.send(*[("SCHEDULE", "h", "+1d", b"x" * 60_000)] * 200)
        assert all(isinstance(old.read(), bytes) for _ in range(200))
    pinger.check()
    assert int(server.info()["log_rotations"]) >= 2
    assert server.info()["maxclients"] == "64"


def test_more_clients_than_descriptors_are_cut_to_what_there_is_and_told(server):
    with_descriptors(server, 128, 200, "--maxclients", "1000")
    assert server.info()["maxclients"] == "136"
    server.terminate()
    event = server.event("clients_limited")
    assert (event["asked"], event["clients_max"]) == (1000, 136)
    assert "LimitNOFILE" in str(event["hint"])


def test_soft_limit_of_descriptors_is_raised_for_maxclients(server):
    with_descriptors(server, 128, 1024, "--maxclients", "300")
    assert server.info()["maxclients"] == "300"
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(server.connect()) for _ in range(290)]
        assert all(other.call("PING") == "PONG" for other in others)


# ---------------------------------------------------------------- a disk that stops


def stop_disk(server, tmp_path, ms):
    """Start a server whose syncs take so long while the file that is returned is there."""
    when = tmp_path / "slow"
    shim = compiled(tmp_path, "slow_sync")
    env = {"LD_PRELOAD": str(shim), "SLOW_SYNC_WHEN": str(when), "SLOW_SYNC_MS": str(ms)}
    server.start(env=env)
    return when


def test_slow_sync_holds_back_changes_and_nothing_else(server, tmp_path):
    when = stop_disk(server, tmp_path, 3_000)
    with server.connect() as writer, server.connect() as other, server.connect() as looking:
        # Quick syncs: the loop would do the next one too, if nobody else could be kept by it.
        while int(server.info()["own_syncs"]) + int(server.info()["awaited_syncs"]) < 10:
            writer.call("SCHEDULE", "h", "+1d", "x")
        with pinging(server) as pinger:
            when.touch()
            begin = time.monotonic()
            writer.send(("SCHEDULE", "h", "+1d", "x"))
            while looking.call("PING") != "PONG" or time.monotonic() - begin < 2.3:
                pass
            # Its frame has waited for two seconds: who changes something now is held back.
            other.send(("SCHEDULE", "h", "+1d", "y"), ("PING",))
            assert "health:yellow" in looking.call("INFO", "server").decode()
            looking.send(("INFO", "limits"))
            when.unlink()
            assert isinstance(writer.read(), bytes)
            assert isinstance(other.read(), bytes)
            assert other.read() == "PONG"
        pinger.check()
    assert server.info()["health"] == "green"
    assert limit(server, "commit_queue")["pauses"] == 1
    assert server.wait_event("changes_held")["pauses"] == 1


@pytest.mark.long
def test_syncs_of_five_seconds_one_behind_the_other(server, tmp_path):
    when = stop_disk(server, tmp_path, 5_000)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(server.connect()) for _ in range(20)]
        for writer in writers:
            writer.call("SCHEDULE", "h", "+1d", "x")
        pinger = stack.enter_context(pinging(server))
        when.touch()
        for writer in writers:
            writer.send(*[("SCHEDULE", "h", "+1d", "x")] * 50)
        for writer in writers:
            assert all(isinstance(writer.read(), bytes) for _ in range(50))
        when.unlink()
    pinger.check()


@pytest.mark.long
def test_sync_of_twelve_seconds_makes_health_red(server, tmp_path):
    """Nobody asks anything meanwhile. (With one connection alone the loop may wait by itself.)"""
    when = stop_disk(server, tmp_path, 14_000)
    with server.connect() as writer, server.connect() as looking:
        schedule_many(writer, 10)
        when.touch()
        writer.send(("SCHEDULE", "h", "+1d", "x"))
        assert server.wait_event("log_stuck")
        assert "health:red" in looking.call("INFO", "server").decode()
        when.unlink()
        assert isinstance(writer.read(), bytes)
    assert server.wait_event("log_moved_on")
    assert server.info()["health"] == "green"


# ---------------------------------------------------------------- peers that are slow


def test_reader_that_takes_next_to_nothing_is_not_read_and_gets_no_job(server):
    server.start()
    with server.connect() as slow, server.connect() as other, pinging(server) as pinger:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        other.send(*[("SCHEDULE", "big", "now", b"x" * 60_000)] * 200)
        assert all(isinstance(other.read(), bytes) for _ in range(200))
        slow.socket.setblocking(False)
        asked = 0
        data = encode_command(("JOBS", "COUNT", 200)) * 1000
        with contextlib.suppress(BlockingIOError):
            while asked < 64 << 20:
                asked += slow.socket.send(data)
        assert asked < 32 << 20, "what is not run is read on and on"
        wait_for(server, lambda info: info["clients_slow"] == "1")
        assert slow.socket.recv(1)
        before = int(server.info()["used_memory"])
        slow.socket.setblocking(True)
        assert other.call("COUNT", "STATE", "leased") == 0
        assert len(other.call("LEASE", "big")) == 1
        assert int(server.info()["used_memory"]) <= before + (1 << 20)
    pinger.check()
    wait_for(server, lambda info: info["clients_slow"] == "0")


@pytest.mark.long
@pytest.mark.parametrize("every_s", [1.0, None], ids=["a byte a second", "never"])
def test_reader_that_takes_next_to_nothing_is_closed_in_half_a_minute(server, every_s):
    """The kernel gives up on a peer whose window stays shut for 15 s."""
    server.start()
    with server.connect() as slow, server.connect() as other:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        other.send(*[("SCHEDULE", "big", "now", b"x" * 60_000)] * 200)
        assert all(isinstance(other.read(), bytes) for _ in range(200))
        slow.send(*[("JOBS", "COUNT", 200)] * 2000, ("LEASE", "big", "COUNT", 100))
        wait_for(server, lambda info: info["clients_slow"] == "1")
        begin = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            while int(server.info()["connected_clients"]) > 2:
                assert time.monotonic() - begin < 40
                if every_s is not None:
                    slow.socket.recv(1)
                time.sleep(every_s or 1.0)
        assert other.call("COUNT", "STATE", "leased") == 0


def test_many_who_send_a_byte_at_a_time_harm_nobody(server):
    server.start()
    line = b"PING " + b"x" * 60 + b"\r\n"
    with contextlib.ExitStack() as stack, pinging(server) as pinger:
        peers = [stack.enter_context(server.connect()) for _ in range(100)]
        for peer in peers:
            peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place in range(len(line)):
            for peer in peers:
                peer.socket.sendall(line[place : place + 1])
        assert all(peer.read() == b"x" * 60 for peer in peers)
    pinger.check()


def test_waiting_workers_are_counted_and_harm_nobody(server):
    server.start()
    with contextlib.ExitStack() as stack, pinging(server) as pinger:
        peers = [stack.enter_context(server.connect()) for _ in range(300)]
        for peer in peers:
            peer.send(("LEASE", "h", "WAIT", 60_000))
        wait_for(server, lambda info: info["blocked_clients"] == "300")
        with server.connect() as producer:
            schedule_many(producer, 300, when="now")
        assert all(len(peer.read()) == 1 for peer in peers)
    pinger.check()
    assert server.info()["blocked_clients"] == "0"


# ---------------------------------------------------------------- herds, memory, the lists


def herd(server, count):
    """Jobs of one moment: they become ready slice by slice."""
    server.start()
    due_ms = int(time.time() * 1000) + 1_500 + count // 20
    with server.connect() as producer, pinging(server) as pinger:
        schedule_many(producer, count, when=str(due_ms))
        wait_for(server, lambda info: info["jobs_ready"] == str(count))
    pinger.check()


def test_herd_of_due_jobs_stops_nobody(server):
    herd(server, 20_000)


@pytest.mark.long
def test_herd_of_two_hundred_thousand_due_jobs_stops_nobody(server):
    herd(server, 200_000)


def test_full_memory_refuses_jobs_and_everything_else_goes_on(server):
    server.start("--maxmemory", "16M")
    with server.connect() as connection, pinging(server) as pinger:
        big = b"x" * 30_000
        ids = []
        while not isinstance(reply := connection.call("SCHEDULE", "h", "now", big), ReplyError):
            ids.append(reply)
        assert reply.code == "OOM"
        assert server.info()["health"] == "yellow"
        memory = limit(server, "memory")
        assert memory["now_bytes"] >= memory["refused_at_bytes"] - (1 << 16)
        receipts = [job[0] for job in connection.call("LEASE", "h", "COUNT", 4)]
        assert connection.call("ACK", receipts[0]) == ["OK"]
        assert connection.call("FAIL", receipts[1], "DEAD", "ERROR", "e" * 1000) == "DEAD"
        assert str(connection.call("FAIL", receipts[2])).startswith("RETRY")
        assert connection.call("RELEASE", receipts[3]) == "OK"
        assert connection.call("CANCEL", ids[-1]) == ["CANCELLED"]
        assert int(server.info()["errorstat_OOM"].removeprefix("count=")) == 1
        for job_id in ids[4:-1]:
            connection.call("CANCEL", job_id)
        assert isinstance(connection.call("SCHEDULE", "h", "now", big), bytes)
    pinger.check()
    assert server.info()["health"] == "green"


def test_full_dead_list_drops_the_oldest_and_says_so(server):
    server.start("--dead-max", "10")
    with server.connect() as connection:
        ids = schedule_many(connection, 15, when="now")
        for _ in ids:
            (job,) = connection.call("LEASE", "h")
            assert connection.call("FAIL", job[0], "DEAD") == "DEAD"
        assert connection.call("COUNT", "STATE", "dead") in (10, 11)
        assert connection.call("JOB", ids[-1]) is not None
        assert connection.call("JOB", ids[0]) is None
    dead = limit(server, "dead_list")
    assert dead["max"] == 10
    assert dead["dropped"] >= 4
    assert server.wait_event("dead_jobs_dropped")["jobs"] >= 4
    server.kill()
    server.start()
    assert server.call("COUNT", "STATE", "dead") in (10, 11), "a drop is a record"


@pytest.mark.long
def test_full_ended_ring_and_dead_list_stop_nobody(server):
    """Four million jobs that have ended are remembered; of more the oldest are forgotten."""
    server.start("--fsync", "off", "--dead-max", "1000")
    count, chunk = 4_300_000, 20_000
    with server.connect() as connection, pinging(server) as pinger:
        for _ in range(count // chunk):
            connection.send(*[("SCHEDULE", "h", "+1d", "")] * chunk)
            ids = [connection.read() for _ in range(chunk)]
            connection.send(*[("CANCEL", *ids[i : i + 1000]) for i in range(0, chunk, 1000)])
            assert all(len(connection.read()) == 1000 for _ in range(chunk // 1000))
        for _ in range(3):
            schedule_many(connection, 1000, when="now")
            for _ in range(10):
                jobs = connection.call("LEASE", "h", "COUNT", 100)
                connection.send(*[("FAIL", job[0], "DEAD") for job in jobs])
                assert all(connection.read() == "DEAD" for _ in jobs)
    ring, dead = limit(server, "ended_ring"), limit(server, "dead_list")
    assert ring["now"] <= ring["max"]
    assert ring["dropped"] >= count - ring["max"]
    assert dead["dropped"] >= 1900
    assert server.call("COUNT") == server.call("COUNT", "STATE", "dead") <= 1100
    pinger.check()
    server.kill()
    server.start("--fsync", "off", "--dead-max", "1000")
    assert limit(server, "ended_ring")["now"] <= ring["max"]


@pytest.mark.long
@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 12_000,
    reason="not run: this user may open fewer than 12,000 descriptors",
)
def test_ten_thousand_idle_connections_stop_nobody(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (12_000, hard))
    try:
        server.start("--maxclients", "10500")
        with contextlib.ExitStack() as stack:
            old = stack.enter_context(server.connect())
            idle = [stack.enter_context(server.connect()) for _ in range(10_000)]
            wait_for(server, lambda info: int(info["connected_clients"]) > 10_000)
            with pinging(server) as pinger:
                schedule_many(old, 20_000)
                for connection in idle[::100]:
                    assert connection.call("PING") == "PONG"
            pinger.check()
            memory = int(server.info()["used_memory"])
            print(f"{memory / 10_000:.0f} bytes of used memory a connection, jobs included")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---------------------------------------------------------------- peers that are gone


def test_sockets_give_up_on_a_peer_that_is_gone_within_fifteen_seconds(server):
    """As the kernel shows them: `ss` names the timer, /proc no option; so ask a copy in process."""
    from tests.unit.test_net import Server as InProcess
    from tests.unit.test_net import open_descriptors

    here = InProcess()
    client = here.connect()
    here.settle()
    found = []
    for fd in open_descriptors():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as end:
            if end.getpeername() == client.socket.getsockname():
                found.append(
                    [
                        end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                        *(
                            end.getsockopt(socket.IPPROTO_TCP, option)
                            for option in (
                                socket.TCP_KEEPIDLE,
                                socket.TCP_KEEPINTVL,
                                socket.TCP_KEEPCNT,
                                socket.TCP_USER_TIMEOUT,
                            )
                        ),
                    ]
                )
    here.close()
    ((alive, idle_s, every_s, probes, user_ms),) = found
    assert alive == 1
    assert idle_s + every_s * probes <= 15
    assert user_ms <= 15_000


def has_namespaces():
    words = ["unshare", "-rn", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(words, check=False).returncode == 0


@pytest.mark.long
@pytest.mark.skipif(not has_namespaces(), reason="not run: no network namespaces for this user")
def test_worker_whose_machine_vanished_is_given_up_within_fifteen_seconds(tmp_path):
    done = subprocess.run(
        ["unshare", "-rn", sys.executable, "-P", "-m", "tests.gone_peer", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    after, given = done.stdout.splitlines()
    print(after)
    assert float(after.split()[3]) <= 16.0
    assert given == "given to the other"
