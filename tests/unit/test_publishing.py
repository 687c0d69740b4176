"""``@app.cron``: the schedules of an app, which a worker publishes when it starts."""

import threading
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from tests.fake_server import FakeServer
from wheel.applying import ordered
from wheel.errors import CycleError, InvalidRequest
from wheel.handlers import App, Run
from wheel.worker import Worker

WAIT_S = 20


@pytest.fixture
def server():
    with FakeServer() as started:
        yield started


@pytest.fixture
def app():
    return App()


def sets(server):
    return [words for words in server.seen("CRON") if words[1] == "SET"]


def work(app, server, seen, **options):
    """Run a worker until the server has seen something; return its exit status."""
    worker = Worker(app, server.url, **options)
    status = []
    thread = threading.Thread(target=lambda: status.append(worker.run()))
    thread.start()
    try:
        server.wait_until(seen)
    finally:
        worker.stop()
        thread.join(WAIT_S)
    return status[0]


def test_schedules_are_published_before_the_first_lease_upstreams_first(server, app):
    @app.cron("-", name="report", after=["db", "elsewhere"], after_rule="all_done")
    @app.handler("report.build")
    def report() -> None: ...

    @app.cron("0 2 * * *", name="db", tz="Europe/Rome", jitter="5m", payload={"full": True})
    @app.handler("backup.db")
    def backup(full: bool) -> None: ...

    assert work(app, server, lambda: server.seen("LEASE")) == 0
    assert sets(server) == [
        ["CRON", "SET", "db", "0 2 * * *", "backup.db", '{"full":true}', "TZ", "Europe/Rome",
         "JITTER", "300000"],
        ["CRON", "SET", "report", "-", "report.build", "{}", "AFTER", "2", "db", "elsewhere",
         "AFTERRULE", "all_done"],
    ]  # fmt: skip
    verbs = [words[0] for _, words in server.commands]
    assert verbs.index("LEASE") > max(at for at, verb in enumerate(verbs) if verb == "CRON")
    assert backup(full=True) is None, "it is still a function"


def test_a_handler_may_have_many_schedules_and_only_those_served_are_published(server, app):
    @app.cron("@daily", name="one")
    @app.cron("@hourly", name="two")
    @app.handler("h")
    def handle() -> None: ...

    app.cron("@daily", name="other")(app.handler("other")(lambda: None))
    work(app, server, lambda: server.seen("LEASE"), handlers=["h"])
    assert [words[2] for words in sets(server)] == ["two", "one"]


def test_a_restart_publishes_again_and_deletes_nothing(server, app):
    app.cron("@daily", name="n")(app.handler("h")(lambda: None))
    for _ in range(2):
        work(app, server, lambda: server.seen("LEASE"))
    assert [words[1] for words in server.seen("CRON")] == ["SET", "SET"]


@pytest.mark.parametrize("refusal", ["CRON rule at position 0: x", "CYCLE a -> a: x", "SYNTAX x"])
def test_a_worker_whose_rule_is_refused_ends_with_status_5(server, app, caplog, refusal):
    app.cron("61 * * * *", name="wrong")(app.handler("h")(lambda: None))
    server.script("CRON", refusal)
    assert Worker(app, server.url).run() == 5
    assert "wrong" in caplog.text
    assert not server.seen("LEASE")


@pytest.mark.parametrize("refusal", ["NOPERM worker", "UNKNOWN no schedule up", "CONFLICT x"])
def test_a_worker_goes_on_when_somebody_else_sees_to_a_schedule(server, app, caplog, refusal):
    app.cron("@daily", name="n")(app.handler("h")(lambda: None))
    server.script("CRON", refusal)
    server.add("h")
    assert work(app, server, lambda: server.states() == ["succeeded"]) == 0
    assert "schedule n is not published" in caplog.text


@pytest.mark.parametrize("trouble", ["LOADING x", "OOM x", "drop_before", "drop_after"])
def test_a_schedule_is_published_again_after_trouble(server, app, trouble):
    app.cron("@daily", name="n")(app.handler("h")(lambda: None))
    server.script("CRON", trouble)
    assert work(app, server, lambda: server.seen("LEASE")) == 0
    assert [words[2] for words in sets(server)] == ["n", "n"]


def test_schedules_that_wait_for_each_other_are_refused_before_any_is_made(server, app):
    app.cron("-", name="a", after=["b"])(app.handler("h")(lambda: None))
    app.cron("-", name="b", after=["a"])(app.handler("g")(lambda: None))
    assert Worker(app, server.url).run() == 5
    assert not sets(server)


def test_what_is_written_wrong_is_found_when_it_is_written(app):
    handler = app.handler("h")(lambda: None)
    app.cron("@daily", name="n")(handler)
    with pytest.raises(InvalidRequest, match="'n' is registered twice"):
        app.cron("@hourly", name="n")(handler)
    with pytest.raises(InvalidRequest, match="queue_one"):
        app.cron("@hourly", name="m", overlap="queue")(handler)
    with pytest.raises(TypeError, match=r"above @app\.handler"):
        app.cron("@hourly", name="m")(lambda: None)
    assert list(app.schedules) == ["n"]


def test_a_run_knows_what_it_is_for(server, app):
    got: list[Run] = []

    @app.handler("h")
    def handle(run: Run) -> None:
        got.append(run)

    server.add("h", b"{}", RUN="digest@2026-12-24T08:00:00Z")
    server.add("h")
    work(app, server, lambda: server.states() == ["succeeded"] * 2, concurrency=1)
    assert got[0].run_id == "digest@2026-12-24T08:00:00Z"
    assert got[0].nominal == datetime(2026, 12, 24, 8, tzinfo=UTC)
    assert got[0].logical_date == "2026-12-24"
    assert (got[1].nominal, got[1].logical_date) == (None, None)


def test_a_cycle_names_its_path_each_waiting_for_the_next():
    edges = {"report": ["verify"], "verify": ["db"], "db": ["report"], "free": ["db"]}
    with pytest.raises(CycleError) as found:
        ordered(edges)
    path = found.value.path
    assert path[0] == path[-1]
    assert all(after in edges[name] for name, after in pairwise(path))
    assert " -> ".join(path) in str(found.value)
