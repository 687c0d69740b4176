"""The worker and its handlers against a scripted server."""

import itertools
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import pytest

from tests.fake_server import STORE, FakeServer
from tests.interpreter import assert_runs, environment
from tests.ports import free_port
from wheel.client import Client
from wheel.errors import InvalidRequest
from wheel.handlers import App, Fail, Interrupted, Retry, Run, Snooze
from wheel.keeper import Keeper
from wheel.link import Connection, connect, parse_url
from wheel.outbox import Outbox, Outcome, encode
from wheel.system import SYSTEM
from wheel.values import backoff
from wheel.worker import Worker

WAIT_S = 20
ROOT = Path(__file__).parents[2]


@pytest.fixture
def server():
    with FakeServer() as started:
        yield started


@pytest.fixture
def app():
    return App()


def until(condition):
    """Wait for a flag that tells nobody when it is set, as a handler does."""
    while not condition():
        threading.Event().wait(0.001)


class Running:
    """A worker on a thread of its own, stopped at the end."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.status: int | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.status = self.worker.run()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self.worker.stop()
        self.join()

    def join(self) -> None:
        self._thread.join(WAIT_S)
        if self._thread.is_alive():  # so that a failed test ends
            self.worker.stop()
            self._thread.join(WAIT_S)
            raise AssertionError("the worker did not stop")


def work(app, server, **options):
    return Running(Worker(app, server.url, **options))


def make_run(receipt="1.1.1", **fields):
    values = {
        "id": 1,
        "run_id": f"{STORE}-1",
        "handler": "h",
        "key": None,
        "attempt": 1,
        "due": datetime(2026, 12, 24, tzinfo=UTC),
        "receipt": receipt,
        "payload": b"{}",
        "lease_ms": 60_000,
        "timeout_ms": 0,
        "meta": None,
        "progress": None,
        "stop": None,
    }
    return Run(**{**values, **fields})


# ---------------------------------------------------------------- what a handler gets


def test_entries_of_the_payload_become_arguments(server, app):
    got = []

    @app.handler("pay")
    def pay(payment: int, currency: str = "EUR") -> None:
        got.append((payment, currency))

    server.add("pay", b'{"payment": 42}')
    server.add("pay", b'{"payment": 43, "currency": "CHF"}')
    with work(app, server, concurrency=1):
        server.wait_until(lambda: server.states() == ["succeeded"] * 2)
    assert got == [(42, "EUR"), (43, "CHF")]
    assert pay(1) is None, "it is still a function"


def test_a_first_parameter_annotated_run_gets_the_run(server, app):
    got = []

    @app.handler("h")
    def handle(run: Run, n: int) -> None:
        got.append((run, n))

    job = server.add("h", b'{"n": 5}', KEY="k", META="m")
    scheduled = server.add("h", b'{"n": 6}', RUN="digest@2026-12-24T08:00:00Z")
    with work(app, server, concurrency=1):
        server.wait_until(lambda: server.states() == ["succeeded"] * 2)
    run = got[0][0]
    assert (got[0][1], run.id, run.run_id) == (5, job.id, f"{STORE}-{job.id}")
    assert (run.key, run.attempt, run.receipt, run.meta) == ("k", 1, job.receipt, b"m")
    assert run.due == datetime(2026, 12, 24, 8, tzinfo=UTC)
    assert (run.lost, run.lease_ms, run.timeout_ms) == (False, 60_000, 300_000)
    assert got[1][0].run_id == scheduled.options["RUN"]


def test_an_annotation_that_only_a_type_checker_resolves_is_understood(server, app):
    got = []

    def handle(run: "wheel.Run", n: "Missing" = 1) -> None:  # type: ignore[name-defined]  # noqa: F821
        got.append((run.id, n))

    app.handler("h")(handle)
    job = server.add("h")
    with work(app, server):
        server.wait_until(lambda: server.states() == ["succeeded"])
    assert got == [(job.id, 1)]


def test_a_parameter_annotated_bytes_gets_the_payload_as_it_is(server, app):
    got = []

    @app.handler("raw")
    def raw(run: Run, body: bytes) -> None:
        got.append((run.attempt, body))

    server.add("raw", b"\x00\xff{")
    with work(app, server):
        server.wait_until(lambda: server.states() == ["succeeded"])
    assert got == [(1, b"\x00\xff{")]


def test_a_coroutine_runs_to_its_end(server, app):
    @app.handler("later")
    async def later(n: int) -> dict[str, int]:
        import asyncio

        await asyncio.sleep(0)
        return {"n": n}

    job = server.add("later", b'{"n": 3}')
    with work(app, server):
        server.wait_until(lambda: job.state == "succeeded")
    assert job.result == b'{"n":3}'


@pytest.mark.parametrize("payload", [b"[1]", b"{", b"\xff", b'{"other": 1}'])
def test_a_payload_that_does_not_fit_is_a_failure_with_a_reason(server, app, payload):
    @app.handler("h")
    def handle(n: int) -> None:
        raise AssertionError(n)

    server.add("h", payload)
    with work(app, server):
        server.wait_until(lambda: server.seen("FAIL"))
    (words,) = server.seen("FAIL")
    assert words[2] == "ERROR"
    assert words[3].startswith("InvalidRequest: the payload ")
    assert not words[3].endswith(")")  # no place: none of the handler's lines was run


# ---------------------------------------------------------------- how a run ends


ENDINGS: dict[str, tuple[Callable[[], object] | Exception, list[str]]] = {
    "none": (lambda: None, ["ACK"]),
    "result": (lambda: {"rows": 3}, ["DONE", '{"rows":3}']),
    "no json": (object, ["ACK"]),
    "large": (lambda: "x" * 5000, ["ACK"]),
    "retry": (Retry("try later", in_="10m"), ["FAIL", "IN", "600000", "ERROR", "try later"]),
    "plain retry": (Retry(), ["FAIL", "ERROR", "retry asked for"]),
    "fail": (Fail("no such user"), ["FAIL", "DEAD", "ERROR", "no such user"]),
    "snooze": (Snooze("1h"), ["RELEASE", "IN", "3600000"]),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_each_ending_is_said_with_its_command(server, app, ending):
    does, expected = ENDINGS[ending]

    @app.handler("h")
    def handle() -> object:
        if isinstance(does, Exception):
            raise does
        return does()

    job = server.add("h")
    with work(app, server):
        server.wait_until(lambda: server.seen(expected[0]))
    (words,) = server.seen(expected[0])
    assert words == [expected[0], job.receipt, *expected[1:]]


def test_an_exception_is_a_failure_with_its_class_text_and_place(server, app):
    @app.handler("h")
    def handle() -> None:
        raise ValueError("bad thing\n" + "é" * 2000)

    job = server.add("h")
    with work(app, server):
        server.wait_until(lambda: server.seen("FAIL"))
    ((verb, receipt, word, error),) = server.seen("FAIL")
    assert (verb, receipt, word) == ("FAIL", job.receipt, "ERROR")
    assert error.startswith("ValueError: bad thing")
    assert len(error.encode()) <= 1024


def test_the_place_of_a_failure_is_told(server, app):
    @app.handler("h")
    def handle() -> None:
        raise KeyError("k")

    server.add("h")
    with work(app, server):
        server.wait_until(lambda: server.seen("FAIL"))
    assert "test_worker.py:" in server.seen("FAIL")[0][3]
    assert server.seen("FAIL")[0][3].endswith("in handle)")


def test_interrupted_gives_the_job_back_at_once(server, app):
    attempts = []

    @app.handler("h")
    def handle(run: Run) -> None:
        attempts.append(run.attempt)
        if run.attempt == 1:
            raise Interrupted

    server.add("h")
    with work(app, server):
        server.wait_until(lambda: server.states() == ["succeeded"])
    assert attempts == [1, 2]
    assert [words[0] for words in server.seen("RELEASE")] == ["RELEASE"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_not_even_an_exit_in_a_handler_ends_the_worker(server, app, error):
    @app.handler("h")
    def handle(run: Run) -> None:
        if run.attempt == 1:
            raise error

    server.add("h")
    with work(app, server, concurrency=1):
        server.wait_until(lambda: server.seen("FAIL"))
        server.add("h").attempt = 1
        server.wait_until(lambda: "succeeded" in server.states())


# ---------------------------------------------------------------- taking jobs


def test_jobs_are_taken_for_free_slots_only(server, app):
    release, started = threading.Event(), threading.Barrier(3)

    @app.handler("h")
    def handle() -> None:
        if not release.is_set():
            started.wait(WAIT_S)
        release.wait(WAIT_S)

    for _ in range(5):
        server.add("h")
    with work(app, server, concurrency=2) as running:
        started.wait(WAIT_S)
        assert running.worker.running == 2
        assert [words[3] for words in server.seen("LEASE")] == ["2"]
        release.set()
        server.wait_until(lambda: server.states() == ["succeeded"] * 5)
    assert {words[3] for words in server.seen("LEASE")} <= {"1", "2"}
    first = server.seen("LEASE")[0]
    assert first[:8] == ["LEASE", "h", "COUNT", "2", "WAIT", "20000", "WORKER", first[7]]


def test_an_ack_travels_with_the_next_lease_when_every_slot_was_taken(server, app):
    @app.handler("h")
    def handle() -> None:
        return None

    for _ in range(20):
        server.add("h")
    with work(app, server, concurrency=1):
        server.wait_until(lambda: server.states() == ["succeeded"] * 20)
    by_lease_connection = {number for number, words in server.commands if words[0] == "LEASE"}
    acks = [number for number, words in server.commands if words[0] == "ACK"]
    assert by_lease_connection.issuperset(acks)


def test_outcomes_do_not_queue_behind_a_parked_lease(server, app):
    release = threading.Event()

    @app.handler("h")
    def handle() -> None:
        release.wait(WAIT_S)

    job = server.add("h")
    with work(app, server, concurrency=2):
        server.wait_until(lambda: job.state == "leased" and server.parked == 1)
        release.set()
        server.wait_until(lambda: job.state == "succeeded")
        assert server.parked == 1


def test_defaults_of_handlers_are_published_before_the_first_lease(server, app):
    @app.handler(
        "report", retries=5, lost=1, timeout="2m", backoff=backoff("30s", max="1h"), lease="45s"
    )
    def report() -> None: ...

    @app.handler("plain")
    def plain() -> None: ...

    with work(app, server, lease="30s", name="w1"):
        server.wait_until(lambda: server.seen("LEASE"))
    verbs = [words[0] for _, words in server.commands if words[0] != "HELLO"]
    assert verbs[:2] == ["HANDLER", "LEASE"]
    assert server.seen("HANDLER") == [
        "HANDLER report RETRIES 5 LOST 1 BACKOFF exp 30000 3600000 LEASE 45000 "
        "TIMEOUT 120000".split()
    ]
    assert server.seen("LEASE")[0] == (
        "LEASE report,plain COUNT 10 WAIT 20000 WORKER w1 FOR 30000".split()
    )


def test_only_the_chosen_handlers_are_served(server, app):
    app.handler("a")(lambda: None)
    app.handler("b")(lambda: None)
    with work(app, server, handlers=["b"]):
        server.wait_until(lambda: server.seen("LEASE"))
    assert server.seen("LEASE")[0][1] == "b"
    with pytest.raises(InvalidRequest, match="'c'"):
        Worker(app, server.url, handlers=["c"])


def test_a_lease_that_is_answered_empty_too_soon_is_asked_for_again(server, app):
    app.handler("h")(lambda: None)
    with work(app, server):
        server.wait_until(lambda: server.parked == 1)
        server.answer_parked()
        server.wait_until(lambda: server.parked == 1)
        server.add("h")
        server.wait_until(lambda: server.states() == ["succeeded"])


@pytest.mark.parametrize("trouble", ["LOADING x", "TRYAGAIN x", "BUSY x", "OOM x", "drop_before"])
def test_trouble_with_lease_passes(server, app, trouble):
    app.handler("h")(lambda: None)
    server.script("LEASE", trouble, trouble)
    server.add("h")
    with work(app, server):
        server.wait_until(lambda: server.states() == ["succeeded"])


@pytest.mark.parametrize("refusal", ["NOPERM x", "SYNTAX x"])
def test_a_worker_that_is_refused_ends_with_status_5(server, app, refusal):
    app.handler("h")(lambda: None)
    server.script("LEASE", refusal)
    with work(app, server) as running:
        running.join()
    assert running.status == 5


def test_a_token_that_may_not_publish_defaults_may_still_work(server, app, caplog):
    app.handler("h", retries=1)(lambda: None)
    server.script("HANDLER", "NOPERM viewer")
    server.add("h")
    with work(app, server):
        server.wait_until(lambda: server.states() == ["succeeded"])
    assert "not published" in caplog.text


def test_the_worker_waits_for_a_server_that_is_not_up_yet(server, app):
    app.handler("h")(lambda: None)
    server.add("h")
    server.stop()
    with work(app, server):
        server.start()
        server.wait_until(lambda: server.states() == ["succeeded"])


# ---------------------------------------------------------------- a server that goes away


def test_a_run_goes_on_without_its_server_and_its_outcome_is_said_later(server, app):
    release = threading.Event()
    seen = []

    @app.handler("h")
    def handle(run: Run) -> None:
        release.wait(WAIT_S)
        seen.append(run.lost)

    job = server.add("h")
    server.lease_ms = 60
    with work(app, server, concurrency=2):
        server.wait_until(lambda: len(server.seen("EXTEND")) >= 2)
        server.stop()
        release.set()
        until(lambda: seen)
        server.start()
        server.wait_until(lambda: job.state == "succeeded")
    assert seen == [False]


@pytest.mark.parametrize("verb", ["ACK", "DONE", "FAIL", "RELEASE"])
@pytest.mark.parametrize(
    "trouble", ["drop_before", "drop_after", "LOADING x", "OOM x", "READONLY x"]
)
def test_an_outcome_is_said_until_it_is_answered(server, verb, trouble):
    """After drop_after the repeat is answered ALREADY."""
    server.add("h")
    job = server.jobs[1000]
    server._grant(job)
    server.script(verb, trouble, trouble)
    words = (b"1",) if verb == "DONE" else ()
    run = make_run(job.receipt)
    said = threading.Event()
    outbox = Outbox(lambda: connection_to(server), said.set, SYSTEM)
    thread = threading.Thread(target=outbox.run)
    thread.start()
    outbox.put(Outcome(run=run, verb=verb, words=words))
    assert outbox.flush(WAIT_S)
    outbox.close()
    thread.join(WAIT_S)
    assert said.is_set()
    assert outbox.empty()
    assert job.ended_by == f"{verb} {job.receipt}"
    assert len(server.seen(verb)) == 3


def connection_to(server) -> Connection:
    deadline = SYSTEM.monotonic() + WAIT_S
    return connect(parse_url(server.url), SYSTEM, deadline=deadline, timeout_s=WAIT_S)


def test_a_refused_outcome_is_reported_and_not_said_for_ever(server, caplog):
    outbox = Outbox(lambda: connection_to(server), lambda: None, SYSTEM)
    thread = threading.Thread(target=outbox.run)
    thread.start()
    server.script("FAIL", "SYNTAX what")
    outbox.put(Outcome(run=make_run("7.1.1"), verb="ACK"))
    outbox.put(Outcome(run=make_run("8.1.1"), verb="FAIL"))
    assert outbox.flush(WAIT_S)
    outbox.close()
    thread.join(WAIT_S)
    assert "LeaseLost" in caplog.text
    assert "UNKNOWN" in caplog.text
    assert "SYNTAX what" in caplog.text


def test_acks_travel_in_one_command_and_the_rest_one_by_one():
    outcomes = [
        Outcome(run=make_run("1.1.1"), verb="ACK"),
        Outcome(run=make_run("2.1.1"), verb="FAIL", words=("DEAD",)),
        Outcome(run=make_run("3.1.1"), verb="ACK"),
    ]
    data, groups = encode(outcomes)
    assert [[said.run.receipt for said in group] for group in groups] == [
        ["1.1.1", "3.1.1"],
        ["2.1.1"],
    ]
    assert data.index(b"3.1.1") < data.index(b"FAIL")
    many = [Outcome(run=make_run(f"{n}.1.1"), verb="ACK") for n in range(1201)]
    assert [len(group) for group in encode(many)[1]] == [500, 500, 201]


# ---------------------------------------------------------------- leases


class Beats:
    """A keeper driven by hand."""

    def __init__(self, server, lease_ms=None):
        self.lost: list[object] = []
        self.keeper = Keeper(
            lambda: connection_to(server),
            lambda run, code: self.lost.append((run.receipt, code)),
            SYSTEM,
            lease_ms=lease_ms,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.keeper.close()
        self.keeper.run()  # closed: it hangs up and returns


def test_all_runs_are_extended_in_one_command(server):
    with Beats(server, lease_ms=30_000) as beats:
        beats.keeper.beat()
        assert server.commands == []
        beats.keeper.hold([make_run(f"{n}.1.1") for n in range(3)])
        beats.keeper.beat()
        beats.keeper.drop(make_run("1.1.1"))
        beats.keeper.beat()
    assert server.seen("EXTEND") == [
        "EXTEND 0.1.1 1.1.1 2.1.1 FOR 30000".split(),
        "EXTEND 0.1.1 2.1.1 FOR 30000".split(),
    ]


@pytest.mark.parametrize("code", ["STALE", "UNKNOWN"])
def test_a_run_is_lost_when_the_server_says_so_and_is_extended_no_more(server, code):
    server.extend_answers = {"1.1.1": code}
    with Beats(server) as beats:
        beats.keeper.hold([make_run("1.1.1"), make_run("2.1.1")])
        beats.keeper.beat()
        beats.keeper.beat()
    assert beats.lost == [("1.1.1", code)]
    assert server.seen("EXTEND")[1] == ["EXTEND", "2.1.1"]


@pytest.mark.parametrize("answer", ["LOADING", "TRYAGAIN", "OOM", "ERR"])
def test_no_other_answer_loses_a_run(server, answer):
    server.extend_answers = {"*": answer}
    with Beats(server) as beats:
        beats.keeper.hold([make_run("1.1.1")])
        beats.keeper.beat()
    assert beats.lost == []


def test_a_cancelled_run_is_told_once_and_still_kept(server):
    """Its success still counts, so it must not expire meanwhile."""
    server.extend_answers = {"1.1.1": "CANCELLED"}
    run = make_run("1.1.1")
    with Beats(server) as beats:
        beats.keeper._lost = lambda lost, code: (beats.lost.append(code), lost.lose(code))
        beats.keeper.hold([run])
        beats.keeper.beat()
        beats.keeper.beat()
    assert beats.lost == ["CANCELLED"]
    assert len(server.seen("EXTEND")) == 2


@pytest.mark.parametrize(
    ("code", "ends", "said"),
    [
        ("STALE", None, ["ACK"]),
        ("STALE", ValueError("x"), []),
        ("UNKNOWN", None, []),
        ("CANCELLED", None, ["ACK"]),
        ("CANCELLED", ValueError("x"), ["FAIL"]),
    ],
)
def test_after_a_loss_only_what_still_counts_is_said(server, app, caplog, code, ends, said):
    """After expiry a success counts until somebody else got the job; a cancelled job may finish."""
    lost = threading.Event()

    @app.handler("h")
    def handle(run: Run) -> None:
        run.when_lost(lost.set)
        assert lost.wait(WAIT_S)
        assert run.lost
        if ends is not None:
            raise ends

    server.lease_ms = 30
    job = server.add("h")
    with work(app, server, concurrency=2):
        server.wait_until(lambda: job.receipt)
        server.extend_answers = {job.receipt: code}
        assert lost.wait(WAIT_S)
    outcomes = [
        words[0]
        for _, words in server.commands
        if words[0] in {"ACK", "FAIL", "RELEASE"} and job.receipt in words
    ]
    assert outcomes == said
    assert ("LeaseLost" in caplog.text) == (not said)


def test_a_lost_coroutine_is_cancelled(server, app):
    ended = threading.Event()

    @app.handler("h")
    async def handle() -> None:
        import asyncio

        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    server.lease_ms = 30
    job = server.add("h")
    with work(app, server, concurrency=2):
        server.wait_until(lambda: job.receipt)
        server.extend_answers = {job.receipt: "STALE"}
        assert ended.wait(WAIT_S)


def test_a_worker_whose_slots_are_all_lost_asks_to_be_restarted(server, app):
    release = threading.Event()
    app.handler("h")(lambda: release.wait(WAIT_S) and None)
    server.lease_ms = 30
    server.extend_answers = {"*": "STALE"}
    server.add("h")
    with work(app, server, concurrency=1, drain=0) as running:
        running.join()
    release.set()
    assert running.status == 75


def test_a_handler_that_burns_the_interpreter_keeps_its_lease(server, app):
    """Bytecode that never blocks, for three lengths of its lease: the EXTENDs come all the same."""
    lease_s = 0.6
    server.lease_ms = int(lease_s * 1000)
    counts = []

    @app.handler("burn")
    def burn() -> None:
        counted = [0]
        for _ in range(3):
            end_s = time.monotonic() + lease_s
            while time.monotonic() < end_s:
                pass
            counted.append(len(server.seen("EXTEND")))
        counts.append(counted)

    jobs = [server.add("burn") for _ in range(2)]
    with work(app, server, concurrency=2):
        server.wait_until(lambda: server.states() == ["succeeded"] * 2)
    for counted in counts:
        assert all(after > before for before, after in itertools.pairwise(counted)), (
            "at least one in each length of the lease"
        )
    receipts = {job.receipt for job in jobs}
    assert all(receipts.issuperset(words[1:]) for words in server.seen("EXTEND"))


# ---------------------------------------------------------------- stopping


def test_a_stop_lets_runs_end_and_takes_no_more(server, app):
    started, seen = threading.Barrier(2), []

    @app.handler("h")
    def handle(run: Run) -> None:
        started.wait(WAIT_S)
        until(lambda: run.stopping)
        seen.append(run.stopping)

    job = server.add("h")
    with work(app, server, concurrency=2) as running:
        started.wait(WAIT_S)
        server.wait_until(lambda: server.parked == 1)
        running.worker.stop()
        server.wait_until(lambda: job.state == "succeeded")
        server.add("h")
        running.join()
    assert seen == [True]
    assert (running.status, running.worker.left_running) == (0, 0)
    assert server.states() == ["succeeded", "ready"]
    assert server.seen("RELEASE") == []


def test_what_still_runs_at_the_end_of_the_drain_is_handed_back_uncounted(server, app):
    release, started = threading.Event(), threading.Barrier(9)

    @app.handler("h")
    def handle() -> None:
        started.wait(WAIT_S)
        release.wait(WAIT_S)

    for _ in range(8):
        server.add("h")
    with work(app, server, concurrency=8, drain="50ms") as running:
        started.wait(WAIT_S)
        running.worker.stop()
        running.join()
        assert server.states() == ["ready"] * 8
    assert running.worker.left_running == 8
    assert len(server.seen("RELEASE")) == 8
    release.set()
    assert [words for words in server.seen("RELEASE") if "IN" in words] == []


def test_a_second_stop_does_not_wait_for_the_drain(server, app):
    release = threading.Event()
    app.handler("h")(lambda: release.wait(WAIT_S) and None)
    server.add("h")
    with work(app, server, drain="1h") as running:
        server.wait_until(lambda: server.states() == ["leased"])
        running.worker.stop()
        running.worker.stop()
        running.join()
    release.set()
    assert server.states() == ["ready"]


def test_a_job_granted_while_the_worker_leaves_is_given_back(server, app):
    """The parked LEASE is answered with a job at the very moment of the stop."""
    ran = []
    app.handler("h")(lambda: ran.append(1))
    with work(app, server) as running:
        server.wait_until(lambda: server.parked == 1)
        with server.changed:  # the server sees the end of input only after the job is there
            running.worker.stop()
            until(lambda: running.worker._stop.asked)
            job = server._add("h", "now", b"{}", {})
            server.changed.notify_all()
        running.join()
    assert ran == []
    assert job.state == "ready"
    assert job.attempt == 1
    assert server.seen("RELEASE") == [["RELEASE", job.receipt]]


def test_outcomes_are_said_before_the_worker_ends(server, app):
    app.handler("h")(lambda: None)
    server.script("ACK", *["LOADING x"] * 5)
    server.add("h")
    with work(app, server) as running:
        server.wait_until(lambda: server.seen("ACK"))
        running.worker.stop()
        running.join()
    assert server.states() == ["succeeded"]


def test_stopping_a_worker_without_a_server_ends_too(app):
    app.handler("h")(lambda: None)
    with Running(Worker(app, f"wheeld://127.0.0.1:{free_port()}")) as running:
        running.worker.stop()
        running.join()
    assert running.status == 0


# ---------------------------------------------------------------- what is refused


def test_a_handler_needs_a_name_and_only_one_may_have_it(app):
    with pytest.raises(InvalidRequest, match="needs a name"):

        @app.handler
        def nameless() -> None: ...

    app.handler("h")(lambda: None)
    with pytest.raises(InvalidRequest, match="'h' is registered twice"):
        app.handler("h")(lambda: None)
    for name in ("a,b", "a*", ""):
        with pytest.raises(InvalidRequest):
            app.handler(name)
    with pytest.raises(InvalidRequest, match="retries"):
        app.handler("x", retries=-1)


def test_parameters_that_no_payload_can_fill_are_refused(app):
    with pytest.raises(InvalidRequest, match="no name"):
        app.handler("a")(lambda *args: args)
    with pytest.raises(InvalidRequest, match="no name"):
        app.handler("b")(lambda x, /: x)


def test_a_worker_out_of_bounds_cannot_be_made(app, server):
    with pytest.raises(InvalidRequest, match="no handler"):
        Worker(app, server.url)
    app.handler("h")(lambda: None)
    for options in ({"concurrency": 0}, {"concurrency": 1001}, {"wait": "6m"}, {"drain": "x"}):
        with pytest.raises(InvalidRequest):
            Worker(app, server.url, **options)


# ---------------------------------------------------------------- scheduling through handlers


def test_a_handler_schedules_its_own_calls(server):
    with Client(server.url) as client:
        app = App(client)

        @app.handler("pay")
        def pay(run: Run, payment: int, currency: str = "EUR") -> None: ...

        @app.handler("any")
        def anything(**entries: str) -> None: ...

        job = pay.schedule_in("24h", 42)
        pay.options(key="pay-42", priority=3).schedule_at("now", payment=42, currency="CHF")
        with pytest.raises(TypeError, match="payment"):
            pay.schedule_in("24h")  # type: ignore[call-arg]
        anything.schedule_in("24h", note="x")

        @app.handler("raw")
        def raw(body: bytes) -> None: ...

        raw.schedule_in(1, b"\x00")
    assert job.handler == "pay"
    assert [job.payload for job in server.jobs.values()] == [
        b'{"payment":42}',
        b'{"payment":42,"currency":"CHF"}',
        b'{"note":"x"}',
        b"\x00",
    ]
    assert server.jobs[1001].options["KEY"] == "pay-42"


# ---------------------------------------------------------------- the command


APP = """
import threading, time
import wheel.handlers
app = wheel.handlers.App()

@app.handler("quick")
def quick(n: int) -> int:
    return n + 1

@app.handler("slow")
def slow() -> None:
    threading.Event().wait(600)
"""
MAIN = """
import sys
from wheel.commands.work import work_command
sys.path.insert(0, ".")
work_command()
"""


@pytest.fixture
def command(tmp_path, server):
    (tmp_path / "shop.py").write_text(APP)
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", MAIN, *arguments],
            cwd=tmp_path,
            env=environment(WHEELD_URL=server.url),
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_command_works_until_sigterm(server, command):
    job = server.add("quick", b'{"n": 41}')
    process = command("shop:app", "--concurrency", "3")
    server.wait_until(lambda: job.state == "succeeded")
    assert job.result == b"42"
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    assert server.seen("LEASE")[0][3] == "3"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_eight_running_jobs_are_handed_back_after_the_drain(server, command, name):
    for _ in range(8):
        server.add("slow")
    process = command("shop:app", "--concurrency", "8", "--drain", "100ms")
    server.wait_until(lambda: server.states() == ["leased"] * 8)
    process.send_signal(getattr(signal, name))
    assert process.wait(WAIT_S) == 0
    assert server.states() == ["ready"] * 8


def test_a_second_signal_hands_back_at_once(server, command):
    server.add("slow")
    process = command("shop:app", "--drain", "1h")
    server.wait_until(lambda: server.states() == ["leased"])
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 0
    assert server.states() == ["ready"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["shop"], "not of the form module:app"),
        (["nowhere:app"], "no module 'nowhere'"),
        (["shop:quick"], "not a wheel.App"),
        (["shop:nix"], "no 'nix' in the module shop; its app is shop:app"),
        (["shop:app", "--drain", "soon"], "'soon' is not a duration"),
        (["shop:app", "--handler", "nix"], "no handler 'nix'"),
    ],
)
def test_a_wrong_call_is_one_clear_error(command, arguments, what):
    process = command(*arguments)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode != 0
    assert what in errors


@pytest.mark.parametrize(
    ("code", "place", "what"),
    [
        ("def f():\n    raise ValueError('no such shop')\nf()\n", "line 2, in f", "no such shop"),
        ("import nowhere_to_be_found\n", "line 1, in <module>", "nowhere_to_be_found"),
        ("app = = 1\n", "line 1", "invalid syntax"),
        (
            (
                "import wheeld as wheel\napp = wheel.App()\n@app.cron('@daily', name='d')\n"
                "def digest(): ...\n"
            ),
            "line 3, in <module>",
            "stands above @app.handler('name'), and what stands below it here is <function digest",
        ),
    ],
)
def test_an_app_that_cannot_be_imported_says_where_and_shows_no_frame_of_ours(
    command, tmp_path, code, place, what
):
    (tmp_path / "broken.py").write_text(code)
    process = command("broken:app")
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "broken.py" in errors
    assert place in errors
    assert what in errors
    assert errors.splitlines()[-1].startswith("Error: 'broken' cannot be imported: ")
    assert "importlib" not in errors
    assert "commands/work.py" not in errors
    assert "/wheel/" not in errors


def test_a_worker_without_coroutines_never_loads_the_event_loop():
    code = (
        "import sys; from wheel.handlers import App; import wheel.worker; "
        "app = App(); app.handler('a')(lambda: None); "
        "bad = {'asyncio', 'structlog', '_wheeld', 'click'} & set(sys.modules); "
        "sys.exit(f'{bad}' if bad else 0)"
    )
    assert_runs(code)


def test_the_worker_logs_and_configures_nothing():
    assert logging.getLogger("wheeld.worker").handlers == []
