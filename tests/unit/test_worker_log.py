"""What a worker writes into its log: for whoever wrote the handlers, and runs them."""

import asyncio
import logging
import threading

import pytest

from tests.fake_server import FakeServer
from tests.unit.test_worker import work
from wheel.handlers import App

WAIT_S = 20


@pytest.fixture
def server():
    with FakeServer() as started:
        yield started


@pytest.fixture
def app():
    return App()


def test_a_payload_that_does_not_fit_is_one_line_of_the_log(server, app, caplog):
    """It was 20 lines of our frames and inspect's, the last of them stored as the place."""

    @app.handler("h")
    def handle(n: int) -> None:
        raise AssertionError(n)

    server.add("h", b'{"other": 1}')
    with work(app, server):
        server.wait_until(lambda: server.seen("FAIL"))
    (failed,) = (record for record in caplog.records if "failed" in record.message)
    assert "does not fit the handler 'h': missing a required argument: 'n'" in failed.message
    assert failed.exc_info is None


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_the_trace_of_a_failed_run_begins_with_the_handler(server, app, caplog, kind):
    if kind == "plain":

        @app.handler("h")
        def handle() -> None:
            raise ValueError("boom")

    else:

        @app.handler("h")
        async def handle_later() -> None:
            raise ValueError("boom")

    server.add("h", b"")
    with work(app, server):
        server.wait_until(lambda: server.seen("FAIL"))
    (failed,) = (record for record in caplog.records if "failed" in record.message)
    assert failed.exc_info is not None
    trace = failed.exc_info[2]
    assert trace is not None
    assert trace.tb_frame.f_code.co_name.startswith("handle")
    assert trace.tb_next is None


def test_the_log_says_when_the_trouble_is_over_and_counts_nothing_that_is_not(server, app, caplog):
    """It warned that no jobs could be taken, and never again said a word; then "0 runs have"."""
    caplog.set_level(logging.INFO, "wheeld.worker")
    app.handler("h")(lambda: None)
    server.script("LEASE", "LOADING x")
    server.add("h")
    with work(app, server):
        server.wait_until(lambda: server.states() == ["succeeded"])
    said = [record.message for record in caplog.records]
    (begun,) = (i for i, line in enumerate(said) if line.startswith("no jobs can be taken"))
    assert f"the server at {server.url} gives jobs again" in said[begun:]
    assert said[-1] == "stopping"


@pytest.mark.parametrize("code", ["STALE", "CANCELLED"])
def test_a_coroutine_that_was_told_to_end_is_no_failure_in_the_log(server, app, caplog, code):
    """It was a trace of asyncio's own, CancelledError, and another behind it."""
    ended = threading.Event()

    @app.handler("h")
    async def handle() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    server.lease_ms = 30
    job = server.add("h")
    with work(app, server, concurrency=2):
        server.wait_until(lambda: job.receipt)
        server.extend_answers = {job.receipt: code}
        assert ended.wait(WAIT_S)
    said = "its time-out or its lease ran out" if code == "STALE" else "it was cancelled"
    assert said in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
    assert " failed" not in caplog.text
