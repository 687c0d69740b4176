"""Checkpoints with real processes: killed while one is made, damaged, bounded, started often."""

import os
import random

import pytest

from tests.crash.test_backup import wheeld
from tests.crash.test_serve import schedule_many, wait_for
from wheel.wire import ReplyError

pytestmark = pytest.mark.crash

SMALL = ("--segment-size", "4M", "--checkpoint-after", "1M")


def fields(reply):
    return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def put(connection, keys, size):
    """Schedule or replace a job for each key."""
    connection.send(
        *[
            ("SCHEDULE", "h", "+1d", "x" * size, "KEY", f"k{key}", "ONDUP", "replace")
            for key in keys
        ]
    )
    for _ in keys:
        reply = connection.read()
        assert not isinstance(reply, ReplyError), reply


def snaps(server):
    return sorted((server.data / "snap").glob("*.snap"))


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_start_reads_the_checkpoint_and_the_log_behind_it(server):
    server.start(*SMALL)
    with server.connect() as connection:
        schedule_many(connection, 3000)
        saved = fields(connection.call("SAVE"))
        assert saved["jobs"] == 3000
        assert snaps(server)[-1].stat().st_size == saved["size_bytes"]
        schedule_many(connection, 500)
    server.kill()
    server.start(*SMALL)
    finished = next(e for e in server.lines_so_far() if e.get("event") == "replay_finished")
    assert finished["checkpoint_lsn"] == saved["lsn"]
    assert finished["checkpoint_bytes"] == saved["size_bytes"]
    assert server.call("COUNT") == 3500


def test_a_damaged_newest_checkpoint_is_an_alarm_and_loses_nothing(server):
    server.start(*SMALL)
    with server.connect() as connection:
        for _ in range(2):
            schedule_many(connection, 2000)
            connection.call("SAVE")
        schedule_many(connection, 100)
    server.kill()
    newest = snaps(server)[-1]
    damage(newest)
    server.start(*SMALL)
    told = next(e for e in server.lines_so_far() if e.get("event") == "checkpoint_damaged")
    assert told["level"] == "error"
    assert told["file"] == str(newest)
    assert told["offset_bytes"] > 0
    assert server.call("COUNT") == 4100
    info = server.info()
    assert (info["checkpoint_alarm"], info["checkpoint_fallen"]) == ("damaged", "1")
    assert newest.with_name(newest.name + ".broken").exists()
    assert not isinstance(server.call("SAVE"), ReplyError)
    server.kill()
    server.start(*SMALL)
    assert server.call("COUNT") == 4100
    assert server.info()["checkpoint_alarm"] == ""


def sizes(server):
    """Return the sizes of all files but LOCK, which holds the number of the last process."""
    return {p: p.stat().st_size for p in server.data.rglob("*") if p.name != "LOCK"}


@pytest.mark.parametrize("what", ["both checkpoints", "the manifest", "no manifest", "no snap"])
def test_a_start_that_cannot_be_whole_is_refused_with_file_and_rule_and_changes_nothing(
    server, what
):
    server.start(*SMALL)
    with server.connect() as connection:
        for _ in range(3):
            schedule_many(connection, 5000)
            connection.call("SAVE")
    server.kill()
    path, rule = server.data / "MANIFEST", "manifest"
    if what == "both checkpoints":
        for snap in snaps(server):
            damage(snap)
        path, rule = snaps(server)[-1], "checkpoint"
    elif what == "the manifest":
        damage(path)
    elif what == "no manifest":
        path.unlink()
    else:
        path, rule = server.data / "snap", "checkpoint"
        path.rename(server.data / "away")
    before = sizes(server)
    server.spawn(*SMALL)
    assert server.wait() == 78
    refused = server.event("start_refused")
    assert (refused["file"], refused["rule"]) == (str(path), rule)
    assert sizes(server) == before


def test_killed_at_any_moment_of_a_checkpoint_nothing_confirmed_is_lost(server, seed):
    rng, confirmed = random.Random(seed), 0
    for _ in range(5):
        server.start(*SMALL, "--keep-checkpoints", str(rng.choice((1, 2))))
        with server.connect() as connection, server.connect() as saver:
            assert connection.call("COUNT") == confirmed
            for _ in range(rng.randrange(1, 5)):
                saver.send(("SAVE",))
                confirmed += len(schedule_many(connection, rng.randrange(1, 1500)))
            if rng.random() < 0.5:
                wait_for(server, lambda info: info["checkpoint_state"] != "idle")
        server.kill()
    server.start(*SMALL)
    assert server.call("COUNT") == confirmed
    assert server.info()["checkpoint_alarm"] == ""


def disk_bytes(server):
    """Return what is on the disk but for segments made ahead, deleted files not counted."""
    total = 0
    for folder in ("wal", "snap"):
        for entry in os.scandir(server.data / folder):
            try:
                if entry.name not in ("next.tmp", "reserve.tmp") or folder == "snap":
                    total += entry.stat().st_size
            except FileNotFoundError:
                continue
    return total


@pytest.mark.parametrize(
    ("keep", "bound"), [pytest.param(1, 2.85, marks=pytest.mark.long), (2, 4.6)]
)
def test_the_disk_that_replaced_jobs_take_is_bounded_by_what_is_live(server, keep, bound):
    """Each job is replaced some three times. What is live is what a checkpoint of all of it takes.

    The client waits while a checkpoint is made, so that the machine's speed does not count. A file
    of the log is there whole from its start on: one for each generation, and the one written to,
    may be in part not needed.
    """
    server.start(*SMALL, "--keep-checkpoints", str(keep))
    jobs, size, step = 2_000, 16_000, 25
    rng = random.Random(4)
    with server.connect() as connection:
        for first in range(0, jobs, step):
            put(connection, range(first, first + step), size)
        live = fields(connection.call("SAVE"))["size_bytes"]
        assert live > jobs * size
        peak = 0
        for _ in range(3 * jobs // step):
            put(connection, [rng.randrange(jobs) for _ in range(step)], size)
            while server.info()["checkpoint_state"] != "idle":
                peak = max(peak, disk_bytes(server))
            peak = max(peak, disk_bytes(server))
        made = int(server.info()["checkpoint_made"])
    assert made >= 3, "the log was never bounded"
    assert peak <= bound * live + (keep + 1) * (4 << 20), f"{peak / live:.2f} x what is live"
    print(f"keep {keep}: {made} made, peak {peak / live:.2f} x what is live")


def test_many_starts_of_a_small_store_do_not_fill_the_disk(server):
    """Each opens a fresh segment of its full size; the room behind the last frame is given back."""
    for number in range(6):
        server.start(*SMALL)
        server.call("SCHEDULE", "h", "+1d", "x", "KEY", f"k{number}")
        if number % 3 == 2:
            server.kill()
        else:
            assert server.terminate() == 0
    server.start(*SMALL)
    wait_for(server, lambda info: info["log_reserve"] == "1")
    sizes = sorted(path.stat().st_size for path in (server.data / "wal").glob("*.wal"))
    assert sizes[-1] == 4 << 20
    assert sum(sizes[:-1]) <= 6 * 8192
    assert server.call("COUNT") == 6


def test_wheeld_save_makes_one_and_says_what_it_covers(server):
    server.start(*SMALL)
    with server.connect() as connection:
        schedule_many(connection, 300)
    url = ("--url", f"wheeld://127.0.0.1:{server.port}")
    saved = wheeld("save", *url, "--json")
    assert saved["jobs"] == 300
    assert saved["size_bytes"] == snaps(server)[-1].stat().st_size
    assert saved["lsn"] <= saved["end_lsn"]
    server.kill()
    assert "cannot connect" in wheeld("save", *url, status=4)
