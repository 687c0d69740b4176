"""Backup and restore with real processes: the drill, and what may go wrong in it."""

import json
import os
import subprocess
import sys

import pytest

from tests.process import ROOT, Server
from wheel.wire import ReplyError

pytestmark = pytest.mark.crash

GENERATION = 1 << 32


def wheeld(*words, status=0):
    """Run a command of the command line; return its JSON document, or its stderr when it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "wheeld", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == status, done.stderr.decode()
    return json.loads(done.stdout) if status == 0 else done.stderr.decode()


def backup(server, target, **options):
    url = f"wheeld://127.0.0.1:{server.port}"
    return wheeld("backup", target, "--data", server.data, "--url", url, "--json", **options)


def lease(connection, handler, count):
    """Return {job id: receipt} of a lease."""
    jobs = connection.call("LEASE", handler, "COUNT", count, "FOR", 60_000)
    return {int(job[1]): job[0].decode() for job in jobs}


def schedule(connection, *words):
    """Return the id of a new job, or of the one that its token stands for."""
    reply = connection.call("SCHEDULE", *words)
    return int(reply[0] if isinstance(reply, list) else reply)


def fields(reply):
    return dict(zip(reply[::2], reply[1::2], strict=True))


def words(replies):
    return [reply.code if isinstance(reply, ReplyError) else str(reply) for reply in replies]


@pytest.fixture
def second(tmp_path):
    made = Server(tmp_path / "restored")
    yield made
    made.close()


def test_the_drill(server, second, tmp_path):
    """A store is lost after its backup was made: what was in it is back, and nothing else is."""
    server.start()
    with server.connect() as connection:
        ids = [schedule(connection, "mail", "now", f"p{i}") for i in range(30)]
        once = schedule(connection, "mail", "+1h", "x", "ONCE", "token-1")
        before = lease(connection, "mail", 5)
        connection.call("ACK", next(iter(before.values())))
        made = backup(server, tmp_path / "first.wheeld")
        # What happens from here on is lost with the machine.
        acked = lease(connection, "mail", 7)
        assert words(connection.call("ACK", *acked.values())) == ["OK"] * 7
        lost_ids = {schedule(connection, "mail", "+2h", "new") for _ in range(12)}
        future = lease(connection, "mail", 3)
        store = fields(connection.call("HELLO", 2))[b"store"]
        term = server.info()["term"]
    server.kill()

    restored = wheeld(
        *("restore", tmp_path / "first.wheeld", "--to", second.data),
        *("--compare-with", server.data, "--json"),
    )
    after = restored["after"]
    assert (after["ended"], after["made"], after["granted"]) == (7, 12, 10)
    assert set(after["ended_ids"]) == set(acked)
    assert set(after["made_ids"]) == lost_ids
    assert after["last_lsn"] > restored["backup"]["lsn"] == made["lsn"]
    assert restored["jobs"] == 30

    second.start()
    with second.connect() as connection:
        hello = fields(connection.call("HELLO", 2))
        assert hello[b"store"] == store
        assert hello[b"term"] > int(term) + (1 << 16)
        # Receipts from before hold, those that were given out after are of no use here.
        assert words(connection.call("ACK", *list(before.values())[:2])) == ["ALREADY", "OK"]
        assert words(connection.call("ACK", *future.values(), *acked.values())) == ["STALE"] * 10
        # What was acknowledged after the backup runs again, under receipts of its own.
        again = lease(connection, "mail", 40)
        assert set(acked) | set(future) <= set(again)
        assert not set(again.values()) & (set(acked.values()) | set(future.values()))
        # No id is given out twice, neither in a slot of a job that is there nor in a new one.
        assert words(connection.call("ACK", *again.values())) == ["OK"] * len(again)
        new_ids = {schedule(connection, "mail", "+2h", "n") for _ in range(100)}
        assert not new_ids & (lost_ids | set(ids))
        assert min(new_ids) // GENERATION > 1 << 16
        # Tokens and uids mean what they meant.
        assert schedule(connection, "mail", "+1h", "x", "ONCE", "token-1") == once
    assert second.terminate() == 0
    # Stable: the raised terms and generations are there after any restart.
    second.start("--checkpoint-after", "1M")
    with second.connect() as connection:
        connection.call("SAVE")
    second.kill()
    second.start()
    with second.connect() as connection:
        job = schedule(connection, "mail", "+2h", "n")
        assert job // GENERATION > 1 << 16
        assert job not in new_ids | lost_ids | set(ids)


def test_a_backup_of_a_busy_server_has_all_that_was_confirmed_before_it(server, second, tmp_path):
    server.start("--segment-size", "4M", "--checkpoint-after", "1M")
    with server.connect() as connection, server.connect() as busy:
        for _ in range(20):
            connection.send(*[("SCHEDULE", "h", "+1h", "x" * 300)] * 500)
            for _ in range(500):
                connection.read()
        busy.send(*[("SCHEDULE", "h", "+1h", "y" * 300)] * 20_000)
        made = backup(server, tmp_path)  # a folder: the file gets a name of its own
        for _ in range(20_000):
            busy.read()
        assert connection.call("COUNT") == 30_000
        assert server.info()["checkpoint_holds"] == "0"
    restored = wheeld("restore", made["file"], "--to", second.data, "--json")
    assert 10_000 <= restored["jobs"] <= 30_000
    assert restored["lsn"] == made["lsn"] + 1  # and the record that raises the generations
    second.start()
    assert second.call("COUNT") == restored["jobs"]


def test_a_store_without_a_server_is_backed_up_under_its_lock(server, second, tmp_path):
    server.start()
    with server.connect() as connection:
        for _ in range(10):
            connection.call("SCHEDULE", "h", "+1h", "x")
    server.terminate()
    backup(server, tmp_path / "b")
    wheeld("restore", tmp_path / "b", "--to", second.data, "--json")
    second.start()
    assert second.call("COUNT") == 10


def test_without_data_a_backup_is_of_what_the_server_serves(server, second, tmp_path):
    server.start()
    server.call("SCHEDULE", "h", "+1h", "x")
    url = f"wheeld://127.0.0.1:{server.port}"
    made = wheeld("backup", tmp_path / "b", "--url", url, "--json")
    wheeld("restore", made["file"], "--to", second.data, "--json")
    second.start()
    assert second.call("COUNT") == 1
    server.data.rename(tmp_path / "elsewhere")
    said = wheeld("backup", tmp_path / "c", "--url", url, status=1)
    assert f"serves {server.data}, which is not on this machine" in said


def test_a_backup_keeps_the_files_still_until_its_connection_is_gone(server):
    server.start("--segment-size", "4M", "--checkpoint-after", "1M")
    files = server.data / "wal"
    with server.connect() as worker:
        with server.connect() as holder:
            held = fields(holder.call("BACKUP", "START"))
            assert held[b"data"] == str(server.data).encode()
            before = set(files.glob("*.wal"))
            for _ in range(3):
                worker.send(*[("SCHEDULE", "h", "+1h", "x" * 3000)] * 1500)
                for _ in range(1500):
                    worker.read()
                worker.call("SAVE")
            assert before <= set(files.glob("*.wal"))
            assert server.info()["checkpoint_holds"] == "1"
        server.wait_event("files_dropped")
        assert not before <= set(files.glob("*.wal"))
        end = worker.call("BACKUP", "END")
        assert isinstance(end, ReplyError)
        assert end.code == "CONFLICT"


def test_a_restore_that_cannot_be_says_why_and_serves_nothing(server, second, tmp_path):
    server.start()
    server.call("SCHEDULE", "h", "+1h", "x")
    backup(server, tmp_path / "b")
    assert "is there already" in backup(server, tmp_path / "b", status=1)
    server.terminate()
    whole = (tmp_path / "b").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "none").write_bytes(b"something else")
    flipped = bytearray(whole)
    flipped[whole.index(b"WDSEGMT") + 4096 + 100] ^= 1
    (tmp_path / "flipped").write_bytes(flipped)
    for number, (name, text) in enumerate(
        (("cut", "no whole backup"), ("none", "no whole backup"), ("flipped", "is damaged: wal/"))
    ):
        target = tmp_path / f"target{number}"
        said = wheeld("restore", tmp_path / name, "--to", target, status=11)
        assert text in said
        assert not target.exists()
    assert "is not empty" in wheeld("restore", tmp_path / "b", "--to", server.data, status=1)
    said = wheeld("restore", tmp_path / "missing", "--to", tmp_path / "x", status=3)
    assert said == f"Error: {tmp_path}/missing: no such file or directory\n"
    said = wheeld("backup", tmp_path / "y", "--data", tmp_path / "nowhere", status=3)
    assert said.startswith(f"Error: {tmp_path}/nowhere: no such file or directory; --data names")


def test_an_unpacked_backup_is_not_served(server, second, tmp_path):
    """It has the terms and ids of the store that goes on elsewhere: it has to be restored."""
    server.start()
    server.call("SCHEDULE", "h", "+1h", "x")
    backup(server, tmp_path / "b")
    second.data.mkdir(mode=0o700)
    subprocess.run(["tar", "xf", tmp_path / "b", "-C", second.data], check=True)
    assert (second.data / "BACKUP").exists()
    second.spawn()
    assert second.wait() == 78
    assert second.event("start_refused")["rule"] == "ident"
