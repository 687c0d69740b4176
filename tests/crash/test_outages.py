"""The server is away for a while, or a worker is: what happens to what was promised."""

import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest

from tests.history import History, Schedule, now
from tests.load import Load, Stage, ask_ends, fields_of, grant_of, make_load
from tests.process import DEADLINE_S, Server
from wheel.client import Client
from wheel.values import Backoff, Options

pytestmark = [pytest.mark.crash, pytest.mark.slow]

PATIENT = Options(retries=1000, lost=1000, backoff=Backoff("fixed", 100, 100))

# A worker of one job: leases it, says the receipt, and ACKs when it is told a port.
ONE_JOB_WORKER = """
import socket, sys
def ask(port, line):
    with socket.create_connection(("127.0.0.1", int(port))) as s:
        s.sendall(line.encode() + b"\\r\\nQUIT\\r\\n")
        return b"".join(iter(lambda: s.recv(4096), b"")).decode().split("\\r\\n")
receipt = ask(sys.argv[1], "LEASE h FOR 300")[3]
print(receipt, flush=True)
print(ask(sys.stdin.readline(), "ACK " + receipt)[1], flush=True)
"""


def pass_time(seconds: float) -> None:
    """Let real time pass, because that is what is tested."""
    threading.Event().wait(seconds)


def test_one_shots_whose_time_comes_while_the_server_is_dead_are_all_delivered_late(server):
    """1,000 over 3 s, kill -9 in the first third, back when all are due: each runs, once, and its
    lateness can be read from what the worker is given."""
    server.start("--segment-size", "4M")
    load = make_load(server, 0, producers=0)
    history = load.stage.history
    with server.connect() as connection:
        start = now()
        dues = [start.wall_ms + 3 * n for n in range(1000)]
        connection.send(
            *(("SCHEDULE", "h", due, f"t{n}", "LEASE", 60_000) for n, due in enumerate(dues))
        )
        for n, due in enumerate(dues):
            job = int(connection.read())
            history.add(Schedule(token=f"t{n}", called=start, returned=now(), job=job, due_ms=due))
        with server.connect() as worker:
            while now().wall_ms < dues[len(dues) // 3]:
                serve_some(worker, history)
    served_before = len(grants_of(history))
    assert served_before > 0
    server.kill()
    pass_time((dues[-1] - now().wall_ms) / 1000 + 0.5)
    server.start("--segment-size", "4M")
    back = now()
    with server.connect() as worker:
        while len(grants_of(history)) < len(dues):
            assert serve_some(worker, history) > 0, "not all were delivered"
        assert worker.call("LEASE", "h", "COUNT", 1000) == []
    grants = grants_of(history)
    assert set(Counter(grant.token for grant in grants).values()) == {1}
    assert {grant.token: grant.due_ms for grant in grants} == {
        f"t{n}": due for n, due in enumerate(dues)
    }
    assert {grant.attempt for grant in grants} == {1}
    assert all(g.got.wall_ms >= back.wall_ms > g.due_ms for g in grants[served_before:])
    assert int(server.info()["lateness_us"].split("max=")[1].split(",")[0]) >= 500_000
    ask_ends(server, history)
    assert history.check() == []
    assert set(history.states.values()) == {"leased"}


def serve_some(worker, history: History) -> int:
    """Lease what is ready and keep it; return how many."""
    asked = now()
    got = [grant_of(item, asked, now()) for item in worker.call("LEASE", "h", "COUNT", 50)]
    for grant in got:
        history.add(grant)
    return len(got)


def grants_of(history: History):
    return [event for event in history.events if not isinstance(event, Schedule)]


def test_worker_that_slept_past_its_lease_and_a_kill_is_refused_and_the_other_counts(server):
    server.start()
    job = server.call("SCHEDULE", "h", "now", "p").decode()
    sleeper = subprocess.Popen(
        [sys.executable, "-c", ONE_JOB_WORKER, str(server.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with sleeper:
        receipt = sleeper.stdout.readline().strip()
        sleeper.send_signal(signal.SIGSTOP)
        server.kill()
        server.start()
        [item] = server.call("LEASE", "h", "WAIT", 30_000)
        assert item[1].decode() == job
        assert server.call("ACK", item[0]) == ["OK"]
        sleeper.send_signal(signal.SIGCONT)
        said, _ = sleeper.communicate(f"{server.port}\n", timeout=DEADLINE_S)
    assert receipt.startswith(job + ".")
    assert said.startswith("-STALE ")
    told = fields_of(server.call("JOB", job))
    assert told["state"] == b"succeeded"


@pytest.mark.parametrize("done", [True, False], ids=["acked meanwhile", "silent"])
def test_server_that_was_stopped_past_a_lease_lets_one_completion_count(server, done):
    """SIGSTOP, as a machine that stands still: what is said meanwhile lies in its sockets."""
    server.start()
    job = server.call("SCHEDULE", "h", "now", "p", "LEASE", 1000, "TIMEOUT", 0)
    with server.connect() as first, server.connect() as other:
        [[receipt, *_]] = first.call("LEASE", "h")
        other.send(("LEASE", "h", "WAIT", 30_000))
        server.signal(signal.SIGSTOP)
        if done:
            first.send(("ACK", receipt))
        pass_time(2.5)  # the lease, and the second that is spared to it
        server.signal(signal.SIGCONT)
        if done and first.read() == ["OK"]:
            other.send(("PING",))
            server.terminate()
            assert other.read() == [], "it is over, so nobody else is given it"
        else:
            [[second, *_]] = other.read()
            assert second != receipt
            assert first.call("FAIL", receipt).code == "STALE"
            [late] = first.call("ACK", receipt)
            assert late.code == "STALE"
            assert other.call("ACK", second) == ["OK"]
            assert fields_of(server.call("JOB", job))["state"] == b"succeeded"
            server.terminate()
    server.start()
    assert server.call("COUNT") == 0


def test_planned_restart_under_load_loses_nothing_and_fails_no_call(server):
    """Clients and workers as they are by default; the history is checked as after a kill."""
    server.start("--segment-size", "4M")
    load = make_load(server, 1, producers=0)
    clients = [
        threading.Thread(target=schedule_all, args=(load.stage, number), daemon=True)
        for number in range(2)
    ]
    load.start()
    load.life()
    for thread in clients:
        thread.start()
    try:
        for _ in range(2):
            load.stage.wait_events(300)
            assert server.terminate() == 0
            server.start("--segment-size", "4M")
        finish(server, load, clients)
    finally:
        load.stage.stop()
    assert load.stage.faults == []
    assert load.stage.history.check() == []
    assert set(load.stage.history.states.values()) <= {"succeeded", "dead"}


def schedule_all(stage: Stage, number: int) -> None:
    """Schedule jobs by the client library until the load is over; its failures are the test's."""
    made = 0
    try:
        with Client(f"wheeld://127.0.0.1:{stage.server.port}") as client:
            while not (stage.stopping or stage.draining):
                made += 1
                token, called = f"c{number}-{made}", now()
                job = client.schedule_in("10ms", "mail", token.encode(), **PATIENT)
                stage.note(
                    Schedule(token=token, called=called, returned=now(), job=job.id, delay_ms=10)
                )
    except Exception as error:
        stage.faults.append(repr(error))
        raise


def finish(server: Server, load: Load, clients: list[threading.Thread]) -> None:
    """Stop scheduling, let the workers end everything, and ask what became of it."""
    load.stage.draining = True
    for thread in clients:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    with server.connect() as connection:
        while connection.call("COUNT", "STATE", "dead") != connection.call("COUNT"):
            assert not load.stage.faults, load.stage.faults
    load.stop()
    ask_ends(server, load.stage.history)
