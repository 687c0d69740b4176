"""A disk that rots under a running server: it is told, and a checkpoint takes its place."""

import os

import pytest

from tests.crash.test_checkpoints import SMALL, fields, snaps
from tests.crash.test_serve import schedule_many, wait_for

pytestmark = pytest.mark.crash

QUICK = (*SMALL, "--scrub", "64M")


def flip(path, offset):
    """Flip a bit where the file lies, as a disk does."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, bytes([os.pread(fd, 1, offset)[0] ^ 1]), offset)
    finally:
        os.close(fd)


def start_with_a_sealed_segment(server):
    """Return a segment that the running server has read once already, and found whole."""
    server.start(*QUICK)
    with server.connect() as connection:
        schedule_many(connection, 1000)
    assert server.terminate() == 0
    server.start(*QUICK)
    wait_for(server, lambda info: info["scrub_passes"] == "1")
    return min((server.data / "wal").glob("*.wal"))


@pytest.mark.parametrize("what", ["segment", "checkpoint"])
def test_a_bit_that_flips_under_a_running_server_is_told_and_healed(server, what):
    path = start_with_a_sealed_segment(server)
    with server.connect() as connection:
        schedule_many(connection, 10)
        if what == "checkpoint":
            connection.call("SAVE")
            path = snaps(server)[-1]
            schedule_many(connection, 10)
        flip(path, 5000)
        fields(connection.call("SAVE"))  # something new is in force, so all is read again
    told = server.wait_event("scrub_damaged")
    assert told["level"] == "error"
    assert told["file"] == str(path)
    assert 0 < told["offset_bytes"] <= 5000
    assert told["rule"] == ("checkpoint" if what == "checkpoint" else "payload_crc")
    assert "SAVE" in told["hint"]
    server.wait_event("scrub_healed")
    wait_for(server, lambda _: not path.exists())
    info = server.info()
    assert (info["scrub_errors"], info["scrub_damaged_files"], info["health"]) == (
        "1",
        "0",
        "green",
    )
    assert info["scrub_last_error"].startswith(f"{path} at offset ")
    server.kill()
    server.start(*QUICK)
    assert server.call("COUNT") == (1020 if what == "checkpoint" else 1010)
    assert server.info()["checkpoint_alarm"] == ""


def test_health_is_yellow_until_a_change_lets_a_checkpoint_take_the_place_of_what_is_damaged(
    server,
):
    path = start_with_a_sealed_segment(server)
    flip(path, 5000)
    fields(server.call("SAVE"))  # of nothing newer than the segment: it is still in force
    server.wait_event("scrub_damaged")
    info = server.info()
    assert (info["health"], info["scrub_damaged_files"]) == ("yellow", "1")
    with server.connect() as connection:
        schedule_many(connection, 1)
    server.wait_event("scrub_healed")
    assert server.info()["health"] == "green"
    server.kill()
    server.start(*QUICK)
    assert server.call("COUNT") == 1001


def test_scrub_of_zero_reads_nothing(server):
    server.start("--scrub", "0")
    info = server.info()
    assert (info["scrub_state"], info["scrub_bytes"], info["scrub_passes"]) == ("off", "0", "0")
