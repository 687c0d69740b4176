"""Small worlds for faults that a random one meets too seldom: each function asserts, or passes.

tests/sim/test_mutants.py runs them over the sound core, and over the twin with the fault that names
them.
"""

from contextlib import suppress

from tests.fed import Bench
from tests.logkit import History, Server, frames_of, read_all
from tests.simdisk import SimDisk
from tests.store import Life
from wal import frame
from wal.errors import LogFailedError, RefusedError
from wal.frame import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES

FRAME_BYTES = FRAME_HEADER_BYTES + 64


def _store(frames=3):
    """Return (disk, path of the segment, its bytes) of a store with equally long frames."""
    disk = SimDisk()
    server = Server(disk, History())
    server.start()
    for i in range(frames):
        server.append(bytes([i + 1]) * 64)
    server.log.close()
    path = next(p for p in disk.files() if p.endswith(".wal"))
    return disk, path, disk.read(path)


def _place(i):
    return SEGMENT_HEADER_BYTES + i * FRAME_BYTES


def _forged(disk, path, *, first_lsn, prev_crc=None, salt=None, place=3):
    """Write a frame behind the last one that is right in all but what is given."""
    header = frame.decode_segment(disk.read(path)[:SEGMENT_HEADER_BYTES])
    last = frame.find(disk.read(path)[_place(place - 1) :], salt=header.salt)
    data = frame.seal(
        b"f" * 64,
        first_lsn=first_lsn,
        records=1,
        wall_ms=1,
        rel_ms=1,
        salt=header.salt if salt is None else salt,
        prev_crc=last.payload_crc if prev_crc is None else prev_crc,
    )
    disk.poke(path, _place(place), data)


def _refused(disk, text):
    try:
        frames, _ = read_all(disk)
    except RefusedError as refused:
        assert text in str(refused), f"refused for another reason: {refused}"
        return
    raise AssertionError(f"{len(frames)} frames were taken")


def a_frame_with_another_lsn_is_refused():
    disk, path, _ = _store()
    _forged(disk, path, first_lsn=9)
    _refused(disk, "not the next one")


def a_frame_that_continues_another_history_is_refused():
    disk, path, _ = _store()
    _forged(disk, path, first_lsn=4, prev_crc=7)
    _refused(disk, "continues another history")


def a_frame_of_another_segment_is_refused():
    disk, path, _ = _store()
    _forged(disk, path, first_lsn=4, salt=99)
    _refused(disk, "belongs to another segment")


def a_flipped_bit_of_a_header_is_refused():
    disk, path, data = _store()
    at = _place(1) + 40  # the wall time: nothing else looks at it
    disk.poke(path, at, [data[at] ^ 1])
    _refused(disk, "header fails its checksum")


def a_late_fail_is_stale():
    bench = Bench()
    conn = bench.open()
    conn.ask("SCHEDULE h now x LEASE 1000 TIMEOUT 0")
    receipt = conn.ask("LEASE h").split(b"\r\n")[3].decode()
    bench.advance(10_000)
    bench.settle()
    assert conn.ask("COUNT STATE leased") == b":0\r\n"
    assert conn.ask(f"FAIL {receipt}").startswith(b"-STALE")
    assert conn.ask(f"ACK {receipt}") == b"*1\r\n+OK\r\n"


def a_grant_that_never_left_goes_back():
    bench = Bench()
    conn, other = bench.open(), bench.open()
    conn.ask("SCHEDULE h now x")
    other.feed(b"LEASE h\r\n")
    bench.settle()
    other.take(5)
    other.close()
    bench.settle()
    assert conn.ask("COUNT STATE ready") == b":1\r\n"


def what_one_command_did_stands_in_one_frame():
    bench = Bench()
    conn = bench.open()
    before = len(bench.frames)
    conn.ask("SCHEDULE fresh now x RETRIES 77")  # a handler, a policy and a job
    assert len(bench.frames) - before == 1
    ((_, records, _),) = frames_of(bench.frames[-1])
    assert records == 3


def a_failed_log_takes_no_frame():
    disk, history = SimDisk(), History()
    server = Server(disk, history)
    server.start()
    disk.fault("datasync", 1)
    with suppress(LogFailedError):
        server.append(b"x")
    server.stays_failed()


def a_concurrency_limit_holds():
    bench = Bench()
    conn = bench.open()
    conn.ask("HANDLER h CONCURRENCY 2")
    for _ in range(5):
        conn.ask("SCHEDULE h now x")
    conn.ask("LEASE h COUNT 5")
    assert conn.ask("COUNT STATE leased") == b":2\r\n"


def a_frame_that_finds_no_room_is_kept():
    disk = SimDisk()
    life = Life("/data", disk=disk)
    disk.lib.wd_simfs_set_full(disk.fs, 1)
    asked = 0
    while not life.core.stats()["commit_stalled"] and asked < 60:
        life.core.fed_input(life.handle, b"SCHEDULE h +1h " + b"x" * 900 + b"\r\n")
        life.core.commit()
        asked += 1
    assert life.core.stats()["commit_stalled"], "the disk never was too full"
    disk.lib.wd_simfs_set_full(disk.fs, 0)
    for _ in range(3):
        life.advance(1000)
    assert life.core.durable_lsn() == life.core.lsn()
    before = life.core.state_hash()
    life.kill()
    again = Life("/data", disk=disk, wall_ms=life.wall_ms)
    assert again.core.state_hash() == before
    again.kill()
