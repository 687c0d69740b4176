"""Client and worker against the real server, which is stopped, killed and started under them."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest

from tests.process import DEADLINE_S, ROOT
from wheel.client import Client
from wheel.handlers import App, Run
from wheel.values import Item
from wheel.worker import Worker

pytestmark = pytest.mark.crash

APP = """
import threading
from wheel.handlers import App, Run
app = App()

@app.handler("slow")
def slow(n: int) -> None:
    threading.Event().wait(600)

@app.handler("burn", lease="1s")
def burn() -> None:
    import time
    end_s = time.monotonic() + 3
    while time.monotonic() < end_s:
        pass
"""


def url_of(server):
    return f"wheeld://127.0.0.1:{server.port}"


@pytest.fixture
def client(server):
    server.start()
    with Client(url_of(server), timeout=DEADLINE_S) as made:
        yield made


@pytest.fixture
def work(server):
    """Start a worker on a thread; stopped at the end."""
    started = []

    def start(app, **options):
        worker = Worker(app, url_of(server), **options)
        thread = threading.Thread(target=worker.run)
        thread.start()
        started.append((worker, thread))
        return worker

    yield start
    for worker, thread in started:
        worker.stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.fixture
def command(server, tmp_path):
    """Start ``wheeld work`` as a process."""
    (tmp_path / "shop.py").write_text(APP)
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, ROOT / "wheeld.py", "work", "shop:app", *arguments],
            cwd=tmp_path,
            env={**os.environ, "WHEELD_URL": url_of(server)},
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for(client, condition):
    """Ask the server until it says so; it cannot be told to call back."""
    for _ in range(int(DEADLINE_S * 100)):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"it never came to that: {client.execute('HANDLERS')!r}")


def count(client, state):
    return client.execute("COUNT", "STATE", state)


def test_a_batch_over_two_kills_makes_each_job_once(server, client):
    """Half with keys, half without: the ONCE tokens alone must hold the latter together."""
    jobs = 20_000

    def source():
        for n in range(jobs):
            if n in {7_000, 14_000}:
                server.kill()
                server.start()
            payload = b'{"n":%d}' % n
            yield Item("+1h", "h", payload, key=f"k{n}" if n % 2 else None)

    result = client.schedule_many(source(), chunk=300)
    assert (result.created, result.existing, result.failed) == (jobs, 0, 0)
    assert len(set(result)) == jobs
    assert client.execute("COUNT") == jobs
    for n in (0, 1, 6_999, 7_000, 13_999, 14_001, jobs - 1):
        assert client.get(result[n] or 0).fields["payload"] == b'{"n":%d}' % n


def test_single_calls_over_a_kill_make_each_job_once(server, client):
    calls = itertools.count()
    done = threading.Event()
    made = []

    def call() -> None:
        while not done.is_set():
            made.append(client.schedule_in("1h", "h", {"n": next(calls)}).id)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        wanted = len(made) + 200
        wait_for(client, lambda wanted=wanted: len(made) > wanted)
        server.kill()
        server.start()
    done.set()
    for thread in threads:
        thread.join()
    assert len(set(made)) == len(made)
    assert client.execute("COUNT") == len(made)


def test_runs_go_on_over_a_kill_and_each_succeeds_once(server, client, work):
    app, gate = App(), threading.Event()
    attempts: Counter[int] = Counter()

    @app.handler("h")
    def handle(run: Run, n: int) -> None:
        attempts[n] += 1
        gate.wait(DEADLINE_S)
        assert not run.lost

    client.schedule_many([("now", "h", {"n": n}) for n in range(8)])
    work(app, concurrency=8)
    wait_for(client, lambda: len(attempts) == 8)
    server.kill()
    gate.set()
    server.start()
    wait_for(client, lambda: client.execute("COUNT") == 0)
    assert attempts == Counter(dict.fromkeys(range(8), 1))


def test_a_worker_finds_a_server_again_that_stopped_in_order(server, client, work):
    app, ran = App(), threading.Event()
    app.handler("h")(ran.set)
    work(app)
    wait_for(client, lambda: b"never" not in str(client.execute("HANDLERS")).encode())
    assert server.terminate() == 0
    server.start()
    client.schedule_at("now", "h")
    assert ran.wait(DEADLINE_S)


def test_cancelling_a_run_tells_it_and_its_success_still_counts(client, work):
    app, lost = App(), threading.Event()

    @app.handler("h")
    def handle(run: Run, well: bool) -> None:
        run.when_lost(lost.set)
        lost.wait(DEADLINE_S)
        assert well

    work(app)
    for well, state in ((True, "succeeded"), (False, "cancelled")):
        lost.clear()
        job = client.schedule_at("now", "h", {"well": well}, lease="1s")
        wait_for(client, lambda job=job: client.get(job).state == "leased")
        assert client.cancel(job) is False
        wait_for(client, lambda job=job: client.get(job).state != "leased")
        assert client.get(job).state == state


def test_a_handler_that_burns_the_interpreter_keeps_its_lease(client, command):
    """Bytecode that never blocks, for three lengths of its lease."""
    jobs = [client.schedule_at("now", "burn", lease="1s", lost=0) for _ in range(2)]
    command("--concurrency", "2")
    wait_for(client, lambda: {client.get(job).state for job in jobs} == {"succeeded"})


def test_after_sigterm_nothing_is_left_leased(client, command):
    jobs = [client.schedule_at("now", "slow", {"n": n}) for n in range(8)]
    process = command("--concurrency", "8", "--drain", "500ms")
    wait_for(client, lambda: count(client, "leased") == 8)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    assert (count(client, "leased"), count(client, "ready")) == (0, 8)
    for job in jobs:
        info = client.get(job)
        assert (info.fields["failures"], info.fields["lost"]) == (0, 0)


def test_a_worker_that_is_killed_loses_its_jobs_to_another(client, command, work):
    """O25: its place under a limit is free with the job, and the job keeps its key."""
    client.execute("HANDLER", "slow", "CONCURRENCY", 1)
    job = client.schedule_at("now", "slow", {"n": 1}, lease="1s", key="k")
    process = command()
    wait_for(client, lambda: client.get(job).state == "leased")
    process.kill()
    assert client.schedule_at("now", "slow", {"n": 2}, key="k").id == job.id
    other = client.schedule_at("now", "slow", {"n": 3})
    app, ran = App(), []

    @app.handler("slow")
    def slow(n: int) -> None:
        ran.append(n)

    work(app)
    wait_for(client, lambda: {client.get(one).state for one in (job, other)} == {"succeeded"})
    assert sorted(ran) == [1, 3]


def test_a_worker_that_was_stopped_too_long_learns_that_its_run_is_lost(client, command, work):
    """The other one's success counts, not the late one's."""
    job = client.schedule_at("now", "slow", {"n": 1}, lease="1s")
    process = command("--concurrency", "1", "--drain", "100ms")
    wait_for(client, lambda: client.get(job).state == "leased")
    process.send_signal(signal.SIGSTOP)
    app = App()
    app.handler("slow")(lambda n: {"by": "the other", "n": n})
    work(app)
    wait_for(client, lambda: client.get(job).state == "succeeded")
    process.send_signal(signal.SIGCONT)
    assert process.wait(DEADLINE_S) == 75, "its one slot is taken by a lost run: start it anew"
    info = client.get(job)
    assert info.state == "succeeded"
    assert info.fields["result"] == b'{"by":"the other","n":1}'
