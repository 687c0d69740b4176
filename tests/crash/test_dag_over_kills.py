"""Schedules that wait for each other, over kill -9 of the real process."""

import random
from datetime import date, timedelta

import pytest

from tests.process import Connection, Server
from wheel.wire import Reply

pytestmark = pytest.mark.crash

WAIT_MS = 30_000
FIRST_DAY = date(2025, 11, 1)


def lease(connection: Connection, handler: str, wait_ms: int = WAIT_MS) -> list[Reply]:
    jobs = connection.call("LEASE", handler, "COUNT", 100, "WAIT", wait_ms)
    assert isinstance(jobs, list)
    return jobs


def runs(connection: Connection, name: str) -> dict[bytes, bytes]:
    """Return the outcomes of a schedule's runs by their ids."""
    page = connection.call("CRON", "RUNS", name, "COUNT", 100)
    assert isinstance(page, list)
    _cursor, rows = page
    fields = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
    return {row[b"run"]: row[b"outcome"] for row in fields}


def make_graph(connection: Connection) -> None:
    """Make a backup, a report that waits for it, and a note that follows whatever happened."""
    for words in (
        ("backup", "0 2 * * *", "backup.db", "{}"),
        ("report", "-", "report.build", "{}", "AFTER", 1, "backup"),
        ("notify", "-", "mail.ops", "{}", "AFTER", 1, "report", "AFTERRULE", "all_done"),
    ):
        reply = connection.call("CRON", "SET", *words)
        assert isinstance(reply, list), reply


@pytest.mark.parametrize("told", [True, False], ids=["after the reply", "before the reply"])
def test_a_kill_at_an_upstreams_end_loses_nothing_and_doubles_nothing(
    server: Server, seed: int, told: bool
) -> None:
    """The worker's ACK is in the log; what it releases is not, or just so."""
    chance = random.Random(seed)
    server.start()
    with Connection(server.port) as connection:
        make_graph(connection)
    for number in range(2):
        day = FIRST_DAY + timedelta(days=number)
        with Connection(server.port) as connection:
            connection.call("CRON", "BACKFILL", "backup", f"{day}T00:00:00Z", f"{day}T23:00:00Z")
            (job,) = lease(connection, "backup.db")
            assert job[11][0].decode() == f"backup@{day}T02:00:00Z"
            connection.send(("ACK", job[0]))
            if told:
                connection.read()
            for _ in range(chance.randrange(3)):
                connection.send(("PING",))
            server.kill()
        server.start()
        with Connection(server.port) as connection:
            if not told:
                # The ACK may have been lost with the process; then the lease has to run out, or
                # its holder says it again.
                connection.call("ACK", job[0])
            (report,) = lease(connection, "report.build")
            assert report[11][0].decode() == f"report@{day}T02:00:00Z"
            assert report[11][2].decode() == str(day)
            assert connection.call("ACK", report[0]) == ["OK"]
            (note,) = lease(connection, "mail.ops")
            assert note[11][0].decode() == f"notify@{day}T02:00:00Z"
            assert connection.call("ACK", note[0]) == ["OK"]
            assert lease(connection, "report.build", 0) == []
    with Connection(server.port) as connection:
        for name in ("backup", "report", "notify"):
            found = runs(connection, name)
            assert len(found) == 2
            assert set(found.values()) == {b"succeeded"}


def test_what_is_held_by_a_failure_is_healed_after_a_kill(server: Server) -> None:
    server.start()
    day = FIRST_DAY
    with Connection(server.port) as connection:
        make_graph(connection)
        connection.call("CRON", "BACKFILL", "backup", f"{day}T00:00:00Z", f"{day}T23:00:00Z")
        (job,) = lease(connection, "backup.db")
        assert connection.call("FAIL", job[0], "DEAD") == "DEAD"
        (note,) = lease(connection, "mail.ops")  # all_done: it runs when something failed
        assert connection.call("ACK", note[0]) == ["OK"]
        assert runs(connection, "report") == {
            f"report@{day}T02:00:00Z".encode(): b"upstream_failed"
        }
        server.kill()
    server.start()
    with Connection(server.port) as connection:
        assert runs(connection, "report") == {
            f"report@{day}T02:00:00Z".encode(): b"upstream_failed"
        }
        made = connection.call("CRON", "RERUN", "backup", str(day))
        assert made == [f"backup@{day}T02:00:00Z~1".encode()]
        (job,) = lease(connection, "backup.db")
        assert connection.call("ACK", job[0]) == ["OK"]
        (report,) = lease(connection, "report.build")
        assert report[11][0].decode() == f"report@{day}T02:00:00Z"
