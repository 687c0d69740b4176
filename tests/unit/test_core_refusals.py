"""What the core's face refuses: unknown handles, options out of range, calls out of turn."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from _wheeld import ffi, lib

from tests.calldisk import CallDisk
from tests.fed import TERM, WALL_MS, Bench
from tests.unit.test_log_calls import opened
from wal.frame import FsyncMode
from wheel.engine.core import Core
from wheel.engine.facts import Clocks, Commit, CoreOptions, DiskRoom, FigureKind, Sync
from wheel.errors import CoreError

GONE = 1 << 40
CLOCKS = Clocks(wall_ms=WALL_MS, boot_ms=1, mono_ms=1)
OPTIONS = {
    "jobs_max": 100,
    "conns_max": 10,
    "maxmemory_bytes": 1 << 30,
    "payload_bytes_max": 1000,
    "dead_max": 10,
    "dead_kept_ms": 1000,
    "ended_max": 10,
    "once_max": 10,
    "commit_mode": 2,
    "fsync_mode": 0,
    "hand_clock": 1,
}


def new_core(**changes: int) -> Any:
    return lib.wd_core_new(ffi.new("wd_core_options *", {**OPTIONS, **changes}))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("jobs_max", 0),
        ("conns_max", 0),
        ("conns_max", 1 << 31),
        ("dead_max", 0),
        ("dead_kept_ms", 0),
        ("dead_kept_ms", 1 << 48),
        ("ended_max", 0),
        ("ended_max", (4 << 20) + 1),
        ("once_max", 0),
        ("once_max", (4 << 20) + 1),
        ("payload_bytes_max", (1 << 20) + 1),
        ("gather_us", 1 << 31),
        ("own_sync_us", 1 << 31),
        ("commit_mode", -1),
        ("commit_mode", 3),
        ("fsync_mode", -1),
        ("fsync_mode", 3),
    ],
)
def test_an_option_out_of_range_makes_no_core(option: str, value: int) -> None:
    assert new_core(**{option: value}) == ffi.NULL
    assert lib.wd_core_new(ffi.NULL) == ffi.NULL
    core = new_core()
    assert core != ffi.NULL
    lib.wd_core_free(core)


def test_a_handle_of_nobody_is_told_in_every_call() -> None:
    core = new_core()
    u64, u32, size, data = (ffi.new(f"{t} *") for t in ("uint64_t", "uint32_t", "size_t", "int"))
    bytes_ = ffi.new("const uint8_t **")
    calls: list[Callable[[], int]] = [
        lambda: lib.wd_core_fed_input(core, GONE, b"x", 1),
        lambda: lib.wd_core_fed_eof(core, GONE),
        lambda: lib.wd_core_fed_blocked(core, GONE, 1),
        lambda: lib.wd_core_fed_output(core, GONE, bytes_, size, data),
        lambda: lib.wd_core_fed_taken(core, GONE, 0),
        lambda: lib.wd_core_fed_close(core, GONE),
        lambda: lib.wd_core_conn_info(core, GONE, ffi.new("wd_conn_info *")),
        lambda: lib.wd_core_conn_kill(core, GONE),
        lambda: lib.wd_core_conn_set_resp(core, GONE, 2),
        lambda: lib.wd_core_conn_set_name(core, GONE, b"n", 1),
        lambda: lib.wd_core_conn_set_user(core, GONE, b"n", 1),
        lambda: lib.wd_core_conn_set_rights(core, GONE, 0, b"", 0),
        lambda: lib.wd_core_conn_set_closing(core, GONE),
        lambda: lib.wd_core_slow_reply(core, GONE, b"x", 1, 0),
    ]
    assert u64 is not None
    assert u32 is not None
    assert [call() for call in calls] == [lib.WD_EGONE] * len(calls)
    assert lib.wd_core_fed_wants_input(core, GONE) == 0
    lib.wd_core_free(core)


def test_arguments_of_a_connection_are_checked() -> None:
    core = new_core(conns_max=1)
    handle = ffi.new("uint64_t *")
    assert lib.wd_core_fed_open(core, b"a", handle) == lib.WD_OK
    assert lib.wd_core_fed_open(core, b"b", ffi.new("uint64_t *")) == lib.WD_EFULL
    one = handle[0]
    refused = [
        lib.wd_core_conn_set_resp(core, one, 4),
        lib.wd_core_conn_set_name(core, one, b"n" * 64, 64),
        lib.wd_core_conn_set_user(core, one, b"n" * 64, 64),
        lib.wd_core_conn_set_rights(core, one, 1 << 31, b"", 0),
        lib.wd_core_fed_taken(core, one, 1),
        lib.wd_core_set_disk_room(core, -1),
        lib.wd_core_set_disk_room(core, 99),
        lib.wd_core_figure(core, -1, ffi.new("wd_figure *")),
        lib.wd_core_figure(core, 99, ffi.new("wd_figure *")),
    ]
    assert refused == [lib.WD_EINVAL] * len(refused)
    assert lib.wd_core_fed_input(core, one, b"", 0) == lib.WD_OK
    assert lib.wd_core_conn_kill(core, one) == lib.WD_OK
    gone = [
        lib.wd_core_conn_kill(core, one),
        lib.wd_core_fed_input(core, one, b"PING\r\n", 6),
        lib.wd_core_fed_taken(core, one, 0),
    ]
    assert gone == [lib.WD_EGONE] * 3
    lib.wd_core_free(core)


def test_calls_out_of_turn_are_refused() -> None:
    core = new_core()
    out, ids = ffi.new("uint32_t *"), ffi.new("uint64_t[1]")
    before = [
        lib.wd_core_tick(core, 0, 0, 0),
        lib.wd_core_submit(core, b"", 0, ids, 1, out),
        lib.wd_core_accept_clock(core),
        lib.wd_core_raise_generations(core, 1),
        lib.wd_core_load(core, ffi.NULL, 0),
        lib.wd_core_attach_log(core, ffi.NULL),
        lib.wd_core_listen_fd(core, 0),
        lib.wd_core_poll(core, 0),
    ]
    assert before == [lib.WD_EINVAL] * len(before)
    assert lib.wd_core_fd(core) == -1
    assert lib.wd_core_wants_python(core) == 0
    assert lib.wd_core_start(core, 1, WALL_MS, WALL_MS, 1, 1) == lib.WD_OK
    after = [
        lib.wd_core_start(core, 1, WALL_MS, WALL_MS, 1, 1),
        lib.wd_core_replay(core, b"", 0, 1),
        lib.wd_core_load(core, b"x", 1),
        lib.wd_core_raise_generations(core, 0),
        lib.wd_core_raise_generations(core, 1 << 25),
        lib.wd_core_submit(core, b"", (2 << 20) + 1, ids, 1, out),
    ]
    assert after == [lib.WD_EINVAL] * len(after)
    lib.wd_core_free(core)
    by_itself = new_core(hand_clock=0)
    assert lib.wd_core_start(by_itself, 1, WALL_MS, WALL_MS, 1, 1) == lib.WD_OK
    assert lib.wd_core_tick(by_itself, 0, 0, 0) == lib.WD_EINVAL
    lib.wd_core_free(by_itself)


# ---------------------------------------------------------------- commits


def test_a_driver_says_what_is_durable_of_what_it_took_and_nothing_else() -> None:
    bench = Bench()
    conn = bench.open()
    bench.core.batch_durable(0)
    conn.feed(b"SCHEDULE h now x\r\nSCHEDULE h now x\r\n")
    batch = bench.core.take_batch()
    assert batch is not None
    assert bench.core.take_batch() is None
    with pytest.raises(CoreError, match="invalid argument"):
        bench.core.batch_durable(batch.lsn + 1)
    bench.core.batch_durable(batch.lsn - 1)
    assert conn.take() == b""
    bench.core.batch_durable(batch.lsn)
    assert conn.take().count(b"$10") == 2
    bench.frames.append(batch.frame)
    with pytest.raises(CoreError, match="invalid argument"):
        bench.core.batch_durable(batch.lsn + 1)
    bench.check()


def test_a_core_that_writes_by_itself_has_no_driver_and_one_log() -> None:
    disk = CallDisk()
    with opened(disk) as log, Core(options(Commit.INLINE)) as core:
        core.attach_log(log.cdata)
        with pytest.raises(CoreError, match="invalid argument"):
            core.attach_log(log.cdata)
        with pytest.raises(CoreError, match="invalid argument"):
            core.take_batch()
        with pytest.raises(CoreError, match="invalid argument"):
            core.batch_durable(0)
        with Bench().core as driven, pytest.raises(CoreError, match="invalid argument"):
            driven.attach_log(log.cdata)


def options(commit: Commit, sync: Sync = Sync.ALWAYS) -> CoreOptions:
    return CoreOptions(
        commit=commit, sync=sync, sockets=False, hand_clock=True, jobs_max=100, conns_max=10
    )


@pytest.mark.parametrize("commit", [Commit.INLINE, Commit.THREAD])
@pytest.mark.parametrize("sync", list(Sync))
def test_after_a_failed_write_nothing_is_committed_or_saved(commit: Commit, sync: Sync) -> None:
    disk = CallDisk()
    with (
        opened(disk, fsync=FsyncMode(int(sync))) as log,
        Core(options(commit, sync)) as core,
    ):
        core.attach_log(log.cdata)
        core.start(term=TERM, rel_ms=WALL_MS, clocks=CLOCKS)
        conn = core.fed_open("test")
        disk.on["pwrite"] = lambda *_: -5
        core.fed_input(conn, b"SCHEDULE h now x\r\n")
        with pytest.raises(CoreError, match="log has stopped"):
            commit_until_told(core)
        for call in (core.commit, lambda: core.tick(CLOCKS)):
            with pytest.raises(CoreError, match="log has stopped"):
                call()
        with pytest.raises(CoreError, match="log has stopped"):
            core.checkpoint_start("/snap/x", salt=1, io=disk.io, threaded=False)
        assert core.fed_output(conn).data == b""


def commit_until_told(core: Core) -> None:
    """End rounds until the thread has said how its write ended; each waits for it a little."""
    while core.commit() >= 0:
        pass


@contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    kept = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, kept[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, kept)


def limit_that_leaves(descriptors: int) -> int:
    """The least RLIMIT_NOFILE that leaves so many to be opened: the open ones may have gaps."""
    limit = 0
    while descriptors:
        try:
            os.fstat(limit)
        except OSError:
            descriptors -= 1
        limit += 1
    return limit


def test_a_core_without_descriptors_is_not_made() -> None:
    for descriptors in range(12):
        with limited(resource.RLIMIT_NOFILE, limit_that_leaves(descriptors)):
            core = new_core(sockets=1)
        if core != ffi.NULL:
            lib.wd_core_free(core)
            break
    else:
        pytest.fail("no core with 11 descriptors free")
    assert descriptors >= 4, "an event fd, an epoll, two timers, a spare"


def test_rooms_and_figures_have_the_numbers_of_the_header() -> None:
    core = Bench().core
    for room in DiskRoom:
        core.set_disk_room(room)
    for kind in FigureKind:
        assert core.figure(kind) is not None
