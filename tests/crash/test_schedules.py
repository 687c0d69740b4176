"""Schedules from Python against the real server, with its real clock, killed in between."""

import queue
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.process import DEADLINE_S
from wheel.client import Client
from wheel.errors import (
    ApplyError,
    Conflict,
    CronSyntaxError,
    CycleError,
    InvalidRequest,
    NotFound,
)
from wheel.graphs import dag
from wheel.handlers import App, Run
from wheel.worker import Worker

pytestmark = pytest.mark.crash

NAMES = [
    "日報・夜間",
    "é e\u0301",
    "🎉 party",
    "quo\"te's and \\ back",
    "two  blanks ",
    "0",
    "a@b!1~2",
    "{tag}:x",
    "ünïcödé" * 10,
    "%2F..%00",
]


def url_of(server):
    return f"wheeld://127.0.0.1:{server.port}"


@pytest.fixture
def client(server):
    server.start()
    with Client(url_of(server), timeout=DEADLINE_S) as made:
        yield made


def test_a_name_is_one_schedule_however_often_it_is_set(server, client):
    """Also after a kill: version, next time and definition are those that were confirmed."""
    made = client.schedule_cron("n", "0 9 * * 1", "h", {"a": 1}, tz="Europe/Rome", jitter="5m")
    assert (made.word, made.version) == ("created", 1)
    again = client.schedule_cron("n", "0 9 * * 1", "h", {"a": 1}, tz="Europe/Rome", jitter="5m")
    assert (again.word, again.version, again.next_at) == ("unchanged", 1, made.next_at)
    server.kill()
    server.start()
    again = client.schedule_cron("n", "0 9 * * 1", "h", {"a": 1}, tz="Europe/Rome", jitter="5m")
    assert (again.word, again.version, again.next_at) == ("unchanged", 1, made.next_at)
    other = client.schedule_cron("n", "0 10 * * 1", "h", {"a": 1}, tz="Europe/Rome")
    assert (other.word, other.version) == ("changed", 2)
    assert len(list(client.schedules())) == 1
    for wrong in (0, 1):
        with pytest.raises(Conflict):
            client.schedule_cron("n", "@daily", "h", if_version=wrong)
    assert client.schedule_cron("n", "@daily", "h", if_version=2).version == 3


def test_next_times_are_those_of_the_zone(client):
    made = client.schedule_cron("n", "30 2 1,15 * *", "h", tz="America/New_York", jitter="10m")
    fires = made.next(100)
    assert fires[0].at == made.next_at
    assert len({fire.local[:10] for fire in fires}) == 100, "also where clocks change"
    assert {fire.local[-6:] for fire in fires} == {"-05:00", "-04:00"}
    assert all(timedelta() <= fire.due - fire.at <= timedelta(minutes=10) for fire in fires)
    assert len({fire.due - fire.at for fire in fires}) > 50, "the jitter differs from run to run"
    assert [fire.due for fire in made.next(5)] == [fire.due for fire in fires[:5]]


def test_a_rule_that_is_wrong_is_refused_and_nothing_is_stored(client):
    wrong = [
        ("61 * * * *", "UTC", 0, "0 to 59"),
        ("0 25 * * *", "UTC", 2, "0 to 23"),
        ("0 0 31 2 *", "UTC", None, "never"),
        ("* * * *", "UTC", None, "5, 6 or 7"),
        ("@dayly", "UTC", 0, "@daily"),
        ("0 9 * * *", "Europe/Romme", None, "Europe/Rome"),
    ]
    for rule, tz, position, correction in wrong:
        with pytest.raises(CronSyntaxError) as refused:
            client.schedule_cron("n", rule, "h", tz=tz)
        assert correction in str(refused.value)
        assert (refused.value.code, refused.value.position) == ("CRON", position)
    with pytest.raises(NotFound):
        client.schedule("n")


def test_names_of_every_kind_are_stored_listed_found_and_told_byte_for_byte(server, client):
    handlers = {name: f"h {name}".strip() for name in NAMES}
    for name in NAMES:
        client.schedule_cron(name, "@yearly", handlers[name], {"name": name}, dag=name, group=name)
    server.kill()
    server.start()
    assert [entry.name for entry in client.schedules()] == sorted(NAMES, key=str.encode)
    for name in NAMES:
        found = client.schedule(name)
        assert (found.name, found.dag) == (name, name)
        assert found.fields["handler"].decode() == handlers[name]
        assert name in [entry.name for entry in client.schedules(name[:2])]
        run_id = found.trigger()
        assert run_id.startswith(f"{name}@")
        job = client.execute("LEASE", handlers[name])[0]
        assert job[11][0].decode() == run_id
        assert job[7].decode() == f'{{"name":"{name}"}}'.replace("\\", "\\\\").replace(
            'quo"te', 'quo\\"te'
        )
        assert [run.run_id for run in found.runs()] == [run_id]
        found.delete()
    assert list(client.schedules()) == []
    with pytest.raises(InvalidRequest, match="control character"):
        client.schedule_cron("a\0b", "@daily", "h")


def test_a_worker_runs_what_its_app_schedules(server, client):
    app = App()
    seen: queue.Queue[Run] = queue.Queue()

    @app.cron("@every 1s", name="tick", payload={"n": 7})
    @app.handler("tick.run")
    def tick(run: Run, n: int) -> None:
        assert n == 7
        seen.put(run)

    worker = Worker(app, url_of(server))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        runs = [seen.get(timeout=DEADLINE_S) for _ in range(2)]
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
    assert len({run.run_id for run in runs}) == 2
    for run in runs:
        assert run.run_id.startswith("tick@")
        assert run.nominal is not None
        assert run.logical_date == f"{run.nominal:%Y-%m-%d}"
    assert (runs[1].nominal - runs[0].nominal).total_seconds() % 1 == 0


def test_pause_trigger_mark_and_history(client):
    schedule = client.schedule_cron("n", "@yearly", "h")
    schedule.pause("the mail server moves")
    shown = client.schedule("n")
    assert shown.state == "paused"
    assert "the mail server moves" in {
        value.decode() for value in shown.fields.values() if isinstance(value, bytes)
    }
    schedule.resume()
    assert client.schedule("n").state == "active"
    run_id = schedule.trigger()
    receipt = client.execute("LEASE", "h")[0][0]
    client.execute("FAIL", receipt, "DEAD")
    (run,) = schedule.runs()
    assert (run.run_id, run.outcome) == (run_id, "dead")
    client.mark_run(run_id, "succeeded", "by hand")
    assert next(schedule.runs()).outcome == "succeeded"
    schedule.delete()
    for call in (schedule.delete, schedule.pause, schedule.trigger, schedule.next):
        with pytest.raises(NotFound):
            call()


def test_a_backfill_makes_what_is_not_there_and_once(client):
    schedule = client.schedule_cron("n", "0 0 * * *", "h")
    end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    start = end - timedelta(days=3)
    planned = schedule.backfill(start, end, dry_run=True)
    assert len(planned) == 4, "both ends are meant"
    assert list(schedule.runs()) == []
    assert schedule.backfill(start, end, reverse=True, active=1) == planned[::-1]
    assert schedule.backfill(start, end) == [], "they are in the history now"


def jobs_become(client, count):
    """Return how many jobs there are, when a backfill has made so many; they come turn by turn."""
    found = 0
    for _ in range(10_000):
        found = client.execute("COUNT", "HANDLER", "h")
        if found >= count:
            break
    return found


def test_an_edit_and_a_deletion_answer_when_the_last_of_many_runs_has_been_taken_back(
    server, client
):
    schedule = client.schedule_cron("n", "0 0 * * *", "h")
    end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    made = schedule.backfill(end - timedelta(days=149), end, active=200)
    assert len(made) == jobs_become(client, 150)
    client.schedule_cron("n", "0 12 * * *", "h")
    assert client.execute("COUNT", "HANDLER", "h") == 0, "behind the reply nobody gets one"
    assert {(run.outcome, run.reason) for run in schedule.runs()} == {("cancelled", "edited")}
    before = end - timedelta(days=200)
    assert len(schedule.backfill(before - timedelta(days=99), before, active=200)) == 99
    assert jobs_become(client, 99) == 99
    server.kill()
    server.start()
    assert client.execute("COUNT", "HANDLER", "h") == 99
    schedule.delete()
    assert client.execute("COUNT", "HANDLER", "h") == 0
    server.kill()
    server.start()
    assert client.execute("COUNT", "HANDLER", "h") == 0
    assert list(client.schedules()) == []


def test_a_graph_is_applied_whole_or_not_at_all(client):
    nightly = dag("nightly", cron="0 2 * * *", catch_up="all", catch_up_window="7d")
    db = nightly.task("db", "backup.db")
    verify = nightly.task("verify", "backup.verify", after=[db])
    nightly.task("notify", "mail.ops", after=[verify], when="all_done")
    assert {entry.word for entry in client.apply(nightly, dry_run=True)} == {"created"}
    assert list(client.schedules()) == []
    assert [entry.word for entry in client.apply(nightly)] == ["created"] * 3
    assert [entry.word for entry in client.apply(nightly)] == ["unchanged"] * 3
    assert client.schedule("notify").after == ("verify",)
    with pytest.raises(Conflict, match="verify"):
        client.schedule("db").delete()
    with pytest.raises(CycleError) as refused:
        client.schedule_cron("db", "-", "backup.db", after="notify")
    assert set(refused.value.path) == {"db", "verify", "notify"}
    broken = dag("broken", cron="0 25 * * *")
    broken.task("first", "h")
    broken.task("second", "h", after="first")
    with pytest.raises(ApplyError) as refused_all:
        client.apply(broken)
    assert set(refused_all.value.errors) == {"first"}
    assert [entry.name for entry in client.schedules()] == ["db", "notify", "verify"]


def test_o23_a_run_that_outlives_a_kill_of_the_server_keeps_the_next_ones_from_beginning(server):
    """Its worker goes on, and goes on asking for its lease; nobody else gets a run meanwhile."""
    server.start()
    with server.connect() as worker:
        made = worker.call("CRON", "SET", "n", "* * * * * *", "h", "{}", "OVERLAP", "skip")
        assert made[1] == b"created"
        [[receipt, *_]] = worker.call("LEASE", "h", "WAIT", 60_000)
        server.kill()
    server.start()
    with server.connect() as worker, server.connect() as other:
        other.send(("LEASE", "h", "WAIT", 60_000))
        skipped = 0
        while skipped < 3:
            assert worker.call("EXTEND", receipt) == [60_000], "it holds in the next life"
            figures = worker.call("CRON", "GET", "n")
            skipped = dict(zip(figures[::2], figures[1::2], strict=True))[b"skipped"]
        assert worker.call("ACK", receipt) == ["OK"]
        [[next_receipt, *_]] = other.read()
        assert next_receipt != receipt
        _, rows = worker.call("CRON", "RUNS", "n", "COUNT", 100)
        told = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
        active = [row for row in told if row[b"outcome"] in {b"running", b"succeeded"}]
        assert len(active) == 2
        between = [row for row in told if row[b"outcome"] == b"skipped"]
        assert {row[b"reason"] for row in between} <= {b"overlap", b"missed"}
        assert sum(row[b"count"] for row in between) >= skipped


def test_o13_a_daily_time_that_passes_between_two_servers_has_one_run_that_tells_how_late_it_was(
    server,
):
    server.start()
    due = datetime.fromtimestamp(int(time.time()) + 3, UTC)
    with server.connect() as connection:
        rule = f"{due.second} {due.minute} {due.hour} * * *"
        assert connection.call("CRON", "SET", "n", rule, "h", "{}")[1] == b"created"
    assert server.terminate() == 0
    while time.time() < due.timestamp() + 0.7:
        time.sleep(0.05)  # the moment itself is what is waited for
    server.start()
    with server.connect() as connection:
        [job] = connection.call("LEASE", "h", "WAIT", 60_000)
        assert job[5] == int(due.timestamp() * 1000), "due when it was due: how late it is shows"
        assert job[11][1] == job[5]
        _, rows = connection.call("CRON", "RUNS", "n")
        assert len(rows) == 1
        assert connection.call("ACK", job[0]) == ["OK"]
        assert connection.call("LEASE", "h") == []
    assert int(server.info()["schedule_runs_runs_total"]) == 1
