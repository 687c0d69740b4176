"""Real file systems of four kinds: full, over their quota, gone in the middle of a write.

Each lies on a loop device over a file in a tmpfs (tests/mounts.py). Where that is refused, or a
kind is missing, the test prints "not run" and why; the same errors at each call of a simulated disk
are in tests/sim/test_log_simfs.py.
"""

import random
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.crash.test_disk_full import code, room_is, stages
from tests.crash.test_kernel_errors import fill_a_page, last_lsn, on_the_device
from tests.crash.test_serve import last_segment, schedule_many, wait_for
from tests.mounts import Mounted, fill, mounted, why_not
from tests.process import Server
from wheel.wire import ReplyError

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SEGMENT = ("--segment-size", "4M")
KINDS = ("tmpfs", "ext4", "xfs", "btrfs")
BIG = ("SCHEDULE", "h", "+1d", "x" * 1000)
LIVES = 2
FULL_WORDS = ("No space left on device", "Disk quota exceeded")


def needs(kind: str) -> pytest.MarkDecorator:
    """Return the mark of a test that mounts this kind of file system: not run where none can be."""
    reason = why_not(kind)
    return pytest.mark.skipif(bool(reason), reason=f"not run: {reason}")


@contextmanager
def served(folder: Path):
    """Yield a server whose data lie in a folder, ready for a full disk."""
    server = Server(folder / "data")
    try:
        server.start(*SEGMENT)
        wait_for(server, lambda info: info["log_reserve"] == "1")
        yield server
    finally:
        server.close()


# ---------------------------------------------------------------- full


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=needs(kind)) for kind in KINDS])
def test_a_full_file_system_takes_no_jobs_ends_those_that_are_there_and_heals(kind, tmp_path):
    with mounted(kind, tmp_path) as disk, served(disk.path) as server:
        ballast = disk.path / "ballast"
        with server.connect() as connection:
            jobs = schedule_many(connection, 30, when="now")
            leased = [job[0] for job in connection.call("LEASE", "h", "COUNT", 4)]
            fill(ballast)
            assert stages(connection, BIG)[-1] == "DISKFULL"
            assert int(server.info()["log_rotations"]) >= 1
            kept = connection.call("COUNT")
            assert connection.call("ACK", leased[0]) == ["OK"]
            assert str(connection.call("FAIL", leased[1])).startswith("RETRY")
            assert connection.call("FAIL", leased[2], "DEAD") == "DEAD"
            assert connection.call("RELEASE", leased[3]) == "OK"
            assert connection.call("CANCEL", jobs[-1]) == ["CANCELLED"]
            assert len(connection.call("LEASE", "h")) == 1
            assert code(connection.call("SAVE")) == "ERR"
            assert connection.call("COUNT") == kept - 2
            ballast.unlink()
            wait_for(server, room_is("ok"))
            assert not isinstance(connection.call(*BIG), ReplyError)
            assert not isinstance(connection.call("SAVE"), ReplyError)
        server.kill()
        for path in (server.data / "wal").glob("*.tmp"):
            path.unlink()  # as the start would, so that it finds no room in them
        fill(ballast)
        server.spawn(*SEGMENT)
        assert server.wait() == 74
        assert "room" in str(server.event("start_refused")["hint"])
        ballast.unlink()
        server.start(*SEGMENT)
        states = {state: server.call("COUNT", "STATE", state) for state in ("dead", "leased")}
        assert states == {"dead": 1, "leased": 1}
        assert server.call("COUNT") == kept - 1


@needs("btrfs")
def test_a_full_file_system_that_copies_on_write_loses_nothing_that_was_confirmed(tmp_path):
    """Whether its files are overwritten in place or not: of a store of before the log may end."""
    with mounted("btrfs", tmp_path) as disk, served(disk.path) as server:
        fill(disk.path / "ballast")
        check_full(server, disk.path / "ballast")


@needs("btrfs")
def test_a_quota_that_is_used_up_is_a_full_disk(tmp_path):
    """EDQUOT, of btrfs; the kernels that CI has give no other file system a quota."""
    with mounted("btrfs", tmp_path) as disk:
        store = disk.path / "store"
        for words in (
            ("quota", "enable", disk.path),
            ("subvolume", "create", store),
            ("qgroup", "limit", "24M", store),
        ):
            subprocess.run(["btrfs", *words], check=True, capture_output=True)
        with served(store) as server:
            fill(store / "ballast")
            assert disk.free_bytes() > 24 << 20, "it is the quota that is used up, not the disk"
            check_full(server, store / "ballast")


def check_full(server, ballast):
    """Nothing confirmed is lost, whether the server goes on or has ended; and it starts again."""
    confirmed, said = 0, None
    with suppress(OSError), server.connect() as connection:
        while not isinstance(said := connection.call(*BIG), ReplyError):
            confirmed, said = confirmed + 1, None
    if said is None:
        assert server.wait() == 74
        assert server.event("log_failed")["error"] in FULL_WORDS
    else:
        assert said.code == "DISKFULL"
        server.kill()
    ballast.unlink()
    subprocess.run(["sync", "-f", ballast.parent], check=True)  # btrfs frees it by a commit
    server.start(*SEGMENT)
    assert server.call("COUNT") >= confirmed
    assert not isinstance(server.call(*BIG), ReplyError)


@needs("xfs")
def test_a_device_that_takes_no_more_ends_the_server_and_a_restart_shows_what_it_has(tmp_path):
    """As tests/crash/test_kernel_errors.py does with ext4; xfs says ENOSPC or gives up wholly."""
    with mounted("xfs", tmp_path) as disk, served(disk.path) as server:
        with server.connect() as writer, server.connect() as reader:
            confirmed = schedule_many(writer, 3) + fill_a_page(server, writer)
            disk.fill_device()
            writer.send(("SCHEDULE", "h", "+1d", "x" * 5_000), ("PING",))
            assert writer.read_to_end() == reader.read_to_end() == b"", "nothing is sent any more"
        assert server.wait() == 74
        failed = server.event("log_failed")
        disk.free_device()
        disk.unmount()
        disk.mount()
        there = last_lsn(on_the_device(last_segment(server)))
        assert there < int(str(failed["lsn"]))
        server.start(*SEGMENT)
        assert server.call("COUNT") == len(confirmed)
        assert all(server.call("JOB", job) is not None for job in confirmed)


# ---------------------------------------------------------------- the power


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=needs(kind)) for kind in ("ext4", "xfs")]
)
def test_what_was_confirmed_is_on_the_device_when_the_power_goes(kind, tmp_path, seed):
    """Shut down by the kernel without a flush: whatever no sync had covered is gone for good."""
    rng = random.Random(seed)
    with mounted(kind, tmp_path) as disk:
        server = Server(disk.path / "data")
        try:
            confirmed = set[bytes]()
            for _ in range(LIVES):
                server.start(*SEGMENT, "--checkpoint-after", "1M")
                assert server.call("COUNT") >= len(confirmed)
                for job in rng.sample(sorted(confirmed), min(20, len(confirmed))):
                    assert server.call("JOB", job) is not None
                confirmed |= until_the_power_goes(server, disk, rng)
                assert server.wait() == 74
                disk.unmount()
                disk.mount()
            server.start(*SEGMENT)
            assert len(confirmed) > LIVES
            assert server.call("COUNT") >= len(confirmed)
            assert all(server.call("JOB", job) is not None for job in confirmed)
        finally:
            server.close()


def until_the_power_goes(server: Server, disk: Mounted, rng: random.Random) -> set[bytes]:
    """Return the jobs that were confirmed before the device had gone, and some right behind."""
    confirmed = set()
    with suppress(OSError), server.connect() as connection:
        connection.send(*[("SCHEDULE", "h", "+1d", rng.randbytes(900))] * 3_000)
        for _ in range(rng.randrange(1, 2_500)):
            confirmed.add(connection.read())
        disk.go_down()
        connection.send(BIG)
        while True:
            confirmed.add(connection.read())
    return confirmed


# ---------------------------------------------------------------- read-only


@needs("ext4")
def test_a_file_system_that_the_kernel_makes_read_only_ends_the_server_and_loses_nothing(tmp_path):
    with mounted("ext4", tmp_path, ("errors=remount-ro",)) as disk, served(disk.path) as server:
        with server.connect() as connection:
            confirmed = schedule_many(connection, 10)
            disk.meet_an_error()
            with suppress(OSError):
                while True:
                    confirmed.append(connection.call(*BIG))
        assert server.wait() == 74
        assert not any(isinstance(reply, ReplyError) for reply in confirmed)
        server.spawn(*SEGMENT)
        assert server.wait() == 74
        refused = server.event("start_refused")
        assert "read-only" in f"{refused['error']} {refused['hint']}".lower()
        disk.unmount()
        disk.mount()
        server.start(*SEGMENT)
        assert server.call("COUNT") >= len(confirmed)


# ---------------------------------------------------------------- what a process may write


def limited(server: Server, size_bytes: int) -> None:
    """Let the next starts have files of so many bytes at most (RLIMIT_FSIZE)."""
    serve = type(server).command
    words = ["prlimit", f"--fsize={size_bytes}:", "--"]
    setattr(server, "command", lambda *more: [*words, *serve(server, *more)])  # noqa: B010


def test_a_start_that_may_not_write_a_segment_is_refused_and_names_the_limit(server):
    limited(server, 1 << 20)
    server.spawn(*SEGMENT)
    assert server.wait() == 74, "and not ended by SIGXFSZ"
    refused = server.event("start_refused")
    assert "File too large" in str(refused["error"])
    assert "LimitFSIZE" in str(refused["hint"])


def test_a_checkpoint_that_may_not_be_so_large_is_an_alarm_and_the_log_goes_on(server):
    limited(server, 6 << 20)
    server.start(*SEGMENT)
    with server.connect() as connection:
        many = [("SCHEDULE", "h", "+1d", "x" * 60_000)] * 150
        connection.send(*many)
        confirmed = [connection.read() for _ in many]
        said = connection.call("SAVE")
        assert code(said) == "ERR"
        assert "File too large" in str(said)
        assert server.info()["checkpoint_alarm"] == "failed"
        assert not list((server.data / "snap").iterdir())
        confirmed += schedule_many(connection, 10)
        raised = ["prlimit", "--pid", str(server.process.pid), "--fsize=unlimited:"]
        subprocess.run(raised, check=True)
        assert not isinstance(connection.call("SAVE"), ReplyError)
        assert server.info()["checkpoint_alarm"] == ""
    server.kill()
    server.start(*SEGMENT)
    assert server.call("COUNT") == len(confirmed)


def test_a_limit_that_is_lowered_under_a_running_server_is_the_logs_end_and_loses_nothing(server):
    server.start(*SEGMENT)
    lowered = ["prlimit", "--pid", str(server.process.pid), "--fsize=65536:"]
    confirmed = []
    with server.connect() as connection:
        confirmed += schedule_many(connection, 10)
        subprocess.run(lowered, check=True)
        with suppress(OSError):
            while True:
                confirmed.append(connection.call(*BIG))
    assert server.wait() == 74, "and not ended by SIGXFSZ"
    assert server.event("log_failed")["error"] == "File too large"
    assert not any(isinstance(reply, ReplyError) for reply in confirmed)
    server.start(*SEGMENT)
    assert server.call("COUNT") >= len(confirmed)
