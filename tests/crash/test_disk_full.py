"""A full disk, stage by stage, with a real process.

By a shim that gives new files no room; and on a file system that is really full, where this user
may mount one.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.crash.test_serve import schedule_many, wait_for
from tests.process import Server, compiled
from wheel.wire import ReplyError

pytestmark = pytest.mark.crash

SEGMENT = ("--segment-size", "4M")
MANY = 1_000


@pytest.fixture(scope="module")
def no_room(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("shim"), "no_room")


@pytest.fixture
def full(server, no_room, tmp_path):
    """The file that makes the disk full while it is there; the server runs."""
    when = tmp_path / "full"
    server.env = {"LD_PRELOAD": str(no_room), "NO_ROOM_WHEN": str(when)}
    server.start(*SEGMENT)
    return when


def code(reply):
    return reply.code if isinstance(reply, ReplyError) else str(reply)


def stages(connection, words, limit=4000):
    """Send a command again and again; return its replies' words as they change."""
    seen = []
    for _ in range(limit):
        connection.send(*[words] * MANY)
        for _ in range(MANY):
            said = code(connection.read())
            if not seen or seen[-1] != said:
                seen.append(said)
        if "DISKFULL" in seen:
            return seen
    raise AssertionError(f"the disk did not fill: {seen}")


def schedule_for_ever(connection):
    while True:
        connection.call("SCHEDULE", "h", "+1d", "x" * 60_000)


def write_for_ever(file):
    while True:
        file.write(bytes(1 << 16))


def room_is(level):
    return lambda info: info["disk_room"] == level


def test_a_full_disk_takes_no_jobs_then_hands_none_out_then_changes_nothing_and_heals(server, full):
    with server.connect() as connection, server.connect() as worker:
        wait_for(server, lambda info: info["log_reserve"] == "1")
        jobs = schedule_many(connection, 20, when="now")
        (taken, *_) = worker.call("LEASE", "h", "COUNT", 5)
        full.touch()
        # The current segment and the one prepared are used up; the reserve takes their place.
        big = ("SCHEDULE", "h", "+1d", "x" * 1000)
        assert stages(connection, big)[-1] == "DISKFULL"
        wait_for(server, room_is("tight"))
        kept = connection.call("COUNT")
        (other, *_) = worker.call("LEASE", "h")
        assert worker.call("ACK", taken[0]) == ["OK"]
        # Work goes on in the room that is left, until there is little of it.
        moved = ("RESCHEDULE", int(jobs[19]), "+2d")
        connection.send(*[moved] * MANY)
        replies = {code(connection.read()) for _ in range(MANY)}
        assert replies == {"OK"}
        while server.info()["disk_room"] == "tight":
            connection.send(*[moved] * MANY)
            assert {code(connection.read()) for _ in range(MANY)} == {"OK"}
        assert server.info()["disk_room"] == "low"
        assert code(worker.call("LEASE", "h")) == "DISKFULL"
        assert worker.call("ACK", other[0]) == ["OK"]
        # And then until there is none: nothing changes, all can be read.
        assert stages(connection, moved)[-1] == "DISKFULL"
        assert server.info()["disk_room"] == "full"
        assert code(worker.call("ACK", "1.1.1")) == "DISKFULL"
        assert connection.call("COUNT") == kept - 2
        full.unlink()
        wait_for(server, room_is("ok"))
        assert not isinstance(connection.call(*big), ReplyError)
        assert connection.call("COUNT") == kept - 1
    names = [event.get("event") for event in server.lines_so_far()]
    assert names.count("disk_filled") == names.count("disk_freed") == 1
    server.kill()
    server.start(*SEGMENT)
    assert server.call("COUNT") == kept - 1


def test_a_checkpoint_that_finds_no_room_is_an_alarm_and_the_log_goes_on(server, full):
    with server.connect() as connection:
        schedule_many(connection, 1000)
        full.touch()
        said = connection.call("SAVE")
        assert isinstance(said, ReplyError)
        assert said.code == "ERR"
        assert "No space left" in str(said)
        info = server.info()
        assert (info["checkpoint_alarm"], info["checkpoint_failures"]) == ("failed", "1")
        assert not list((server.data / "snap").iterdir())
        assert connection.call("COUNT") == 1000
        full.unlink()
        assert not isinstance(connection.call("SAVE"), ReplyError)
        assert server.info()["checkpoint_alarm"] == ""
    server.kill()
    server.start(*SEGMENT)
    assert server.call("COUNT") == 1000


def test_no_room_at_the_start_ends_it_with_74_and_a_clear_sentence(server, full):
    with server.connect() as connection:
        schedule_many(connection, 10)
    server.kill()
    full.touch()
    server.spawn(*SEGMENT)
    assert server.wait() == 74
    refused = server.event("start_refused")
    assert "No space left on device" in refused["error"]
    assert "room" in refused["hint"]
    full.unlink()
    server.start(*SEGMENT)
    assert server.call("COUNT") == 10


def test_a_disk_that_became_read_only_ends_the_server_with_74_and_nothing_is_lost(
    server, full, no_room
):
    server.kill()
    env = {"NO_ROOM_ERROR": "30"}  # EROFS
    server.start(*SEGMENT, env=env)
    with server.connect() as connection:
        confirmed = schedule_many(connection, 10)
        full.touch()
        with pytest.raises(OSError, match=r"closed|reset|Broken pipe"):
            schedule_for_ever(connection)
    assert server.wait() == 74
    server.spawn(*SEGMENT, env=env)
    assert server.wait() == 74
    assert "Read-only file system" in server.event("start_refused")["error"]
    full.unlink()
    server.start(*SEGMENT)
    assert server.call("COUNT") >= len(confirmed)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 40 MiB of its own; only some users may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m,mode=0700", "none", str(folder)]
    subprocess.run(mount, check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def may_mount():
    """Return whether this process has CAP_SYS_ADMIN, and a program to use it with."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(effective >> 21 & 1) and shutil.which("mount") is not None


@pytest.mark.skipif(not may_mount(), reason="not run: no file system may be mounted here")
def test_a_file_system_that_is_really_full_refuses_jobs_and_heals_when_there_is_room(small_disk):
    server = Server(small_disk / "data")
    ballast = small_disk / "ballast"
    try:
        server.start(*SEGMENT)
        wait_for(server, lambda info: info["log_reserve"] == "1")
        with server.connect() as connection:
            fill = ballast.open("wb", buffering=0)
            with fill, pytest.raises(OSError, match="No space left"):
                write_for_ever(fill)
            big = ("SCHEDULE", "h", "+1d", "x" * 1000)
            assert stages(connection, big)[-1] == "DISKFULL"
            kept = connection.call("COUNT")
            assert code(connection.call("SAVE")) in {"ERR", "DISKFULL"}
            ballast.unlink()
            wait_for(server, room_is("ok"))
            assert not isinstance(connection.call(*big), ReplyError)
            assert connection.call("COUNT") == kept + 1
        server.kill()
        server.start(*SEGMENT)
        assert server.call("COUNT") == kept + 1
    finally:
        server.close()
