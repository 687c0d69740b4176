"""The log at single file calls: what fails, what else happens meanwhile, and what is told."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _wheeld import ffi, lib

from tests.calldisk import CallDisk, real_table
from wal.errors import DiskFullError, LogFailedError, WalError
from wal.frame import FRAME_BYTES_MAX, FsyncMode, LogHandle, LogStart, real_io

SEGMENT_BYTES = 8192
BIG = bytes(3000)  # one in each segment
SEALED_MAX = 32
START = LogStart(
    folder="/data",
    segment_bytes=SEGMENT_BYTES,
    allocate_only=True,
    next_seq=1,
    next_lsn=1,
    term=1,
    fsync=FsyncMode.ALWAYS,
    salt_seed=1,
    uuid=bytes(16),
    boot_id=bytes(16),
    wall_ms=1,
    rel_minus_boot_ms=0,
    prev_crc=0,
    last_seq=0,
    last_offset=0,
    last_wall_ms=0,
    mark_count=0,
)


@contextmanager
def opened(disk: CallDisk, **changes: object) -> Iterator[LogHandle]:
    with LogHandle(replace(START, **changes), io=disk.io, owner=disk) as log:
        yield log


def append(log: LogHandle, payload: bytes = b"x") -> None:
    lsn = log.stats().written_lsn + 1
    log.append(payload, first_lsn=lsn, records=1, wall_ms=1, rel_ms=1)


def once(result: int | None, does: Any = None) -> Any:
    """Return an answer for the next call alone."""
    left = [1]

    def answer(*_arguments: object) -> int | None:
        if not left:
            return None
        left.pop()
        if does:
            does()
        return result

    return answer


def fails_to_mark(disk: CallDisk, log: LogHandle) -> None:
    disk.on["pwrite"] = once(-errno.EIO)
    with pytest.raises(LogFailedError):
        log.mark(clean=False)


def test_of_two_failures_the_first_is_told() -> None:
    disk = CallDisk()
    with opened(disk) as log:
        disk.on["datasync"] = once(-errno.ENXIO, lambda: fails_to_mark(disk, log))
        with pytest.raises(LogFailedError):
            append(log)
        told = log.error()
    assert (told.errno, told.call, told.path) == (errno.EIO, "pwrite", "/data/MARK")


def test_an_append_is_not_confirmed_when_the_log_failed_meanwhile() -> None:
    """Its own sync succeeded; but that of what stands before it may not have."""
    disk = CallDisk()
    with opened(disk) as log:
        disk.on["datasync"] = once(None, lambda: fails_to_mark(disk, log))
        with pytest.raises(LogFailedError):
            append(log)
        assert log.stats().written_lsn == 0


def test_a_write_of_nothing_is_an_error_of_the_disk() -> None:
    disk = CallDisk()
    with opened(disk) as log:
        disk.on["pwrite"] = once(0)
        with pytest.raises(LogFailedError):
            append(log)
        assert log.error().errno == errno.EIO


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_for_the_next_segment_passes(full: int) -> None:
    disk = CallDisk()
    with opened(disk) as log:
        disk.on["allocate"] = once(-full)
        with pytest.raises(DiskFullError):
            log.prepare()
        assert not log.stats().prepared
        log.prepare()
        assert (log.stats().prepared, log.stats().reserved) == (True, True)


def test_a_reserve_that_cannot_be_renamed_ends_the_log() -> None:
    disk = CallDisk()
    with opened(disk) as log:
        log.prepare()
        append(log, BIG)
        append(log, BIG)  # takes the segment made ahead
        disk.on["allocate"] = lambda *_: -errno.ENOSPC
        disk.on["rename"] = once(-errno.EIO)
        with pytest.raises(LogFailedError):
            append(log, BIG)
        assert (log.error().call, log.error().path) == ("rename", "/data/wal/next.tmp")


def test_the_reserve_stands_in_once_when_there_is_no_room() -> None:
    disk = CallDisk()
    with opened(disk) as log:
        log.prepare()
        append(log, BIG)
        append(log, BIG)  # takes the segment made ahead
        disk.on["allocate"] = lambda *_: -errno.ENOSPC
        append(log, BIG)
        assert not log.stats().reserved
        with pytest.raises(DiskFullError):
            append(log, BIG)
        disk.on.clear()
        append(log, BIG)


def test_a_segment_whose_zeros_cannot_all_be_written_ends_the_log() -> None:
    disk = CallDisk()
    with opened(disk, allocate_only=False, segment_bytes=1 << 18) as log:
        disk.on["pwrite"] = lambda _fd, _data, _size, offset: -errno.EIO if offset else None
        with pytest.raises(LogFailedError):
            log.prepare()
        assert (log.error().call, log.error().offset) == ("pwrite", 1 << 16)


def test_old_segments_that_cannot_be_removed_end_the_log() -> None:
    disk = CallDisk()
    with opened(disk) as log:
        disk.on["unlink"] = once(-errno.EACCES)
        with pytest.raises(LogFailedError):
            log.prepare()
        assert log.error().call == "unlink"


def test_a_rotation_that_has_to_sync_and_cannot_ends_the_log() -> None:
    disk = CallDisk()
    with opened(disk, fsync=FsyncMode.OFF) as log:
        for _ in range(SEALED_MAX + 1):
            append(log, BIG)
        assert log.stats().unsynced_segments == SEALED_MAX
        disk.on["datasync"] = once(-errno.EIO)
        with pytest.raises(LogFailedError):
            append(log, BIG)


def test_a_sync_between_a_rotation_and_its_frame_covers_what_was_written() -> None:
    disk = CallDisk()
    with opened(disk, fsync=FsyncMode.INTERVAL) as log:
        append(log, BIG)
        log.sync()
        disk.on["pwrite"] = lambda *_: None if log.stats().seq == 1 else sync_at_frame()
        seen = []

        def sync_at_frame() -> None:
            del disk.on["pwrite"]
            log.sync()
            seen.append(log.stats())

        append(log, BIG)
        assert [(stats.synced_lsn, stats.unsynced_segments) for stats in seen] == [(1, 0)]
        assert (log.stats().written_lsn, log.stats().synced_lsn) == (2, 1)
        log.sync()
        assert log.stats().synced_lsn == 2


def test_a_sync_with_nothing_new_makes_no_call() -> None:
    disk = CallDisk()
    with opened(disk, fsync=FsyncMode.INTERVAL) as log:
        append(log)
        log.sync()
        disk.on["datasync"] = lambda *_: pytest.fail("a sync of nothing")
        log.sync()


def test_a_failed_log_stays_failed_in_every_mode() -> None:
    for mode in FsyncMode:
        disk = CallDisk()
        with opened(disk, fsync=mode) as log:
            fails_to_mark(disk, log)
            for call in (log.sync, log.prepare, lambda log=log: append(log)):
                with pytest.raises(LogFailedError):
                    call()


def test_a_log_is_marked_clean_only_when_all_of_it_is_synced() -> None:
    disk = CallDisk()
    with opened(disk, fsync=FsyncMode.INTERVAL) as log:
        append(log)
        with pytest.raises(WalError, match="invalid argument"):
            log.mark(clean=True)
        append(log)
        log.sync()
        log.mark(clean=True)
        with pytest.raises(WalError, match="invalid argument"):
            append(log)


def test_a_frame_above_the_limit_is_refused_and_the_log_goes_on() -> None:
    with opened(CallDisk(), segment_bytes=2 * FRAME_BYTES_MAX) as log:
        with pytest.raises(WalError, match="invalid argument"):
            append(log, bytes(FRAME_BYTES_MAX))
        append(log)


@pytest.mark.parametrize(
    "wrong",
    [
        {"folder": "/" + "d" * 1000},
        {"segment_bytes": SEGMENT_BYTES // 2},
        {"segment_bytes": SEGMENT_BYTES + 8},
        {"segment_bytes": 1 << 63},
        {"next_seq": 0},
        {"next_lsn": 0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_start_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(LogFailedError) as refused, opened(CallDisk(), **wrong):
        pass
    assert refused.value.errno == errno.EINVAL


def test_a_start_without_a_folder_or_with_an_unknown_mode_is_refused() -> None:
    disk = CallDisk()
    for folder, mode in ((None, 0), (b"/data", 3)):
        text = ffi.new("char[]", folder) if folder else ffi.NULL
        start = ffi.new(
            "wd_log_start *",
            {
                "folder": text,
                "segment_bytes": SEGMENT_BYTES,
                "next_seq": 1,
                "next_lsn": 1,
                "fsync_mode": mode,
            },
        )
        error = ffi.new("wd_log_error *")
        assert lib.wd_log_open(ffi.cast("const wd_io *", disk.io), start, error) == ffi.NULL
        assert error.error == errno.EINVAL


def test_a_log_that_cannot_be_opened_says_why() -> None:
    disk = CallDisk()
    for call, code in (("open", errno.EACCES), ("allocate", errno.ENOSPC)):
        disk.on = {call: once(-code)}
        with pytest.raises(LogFailedError) as refused, opened(disk):
            pass
        assert refused.value.errno == code
    lib.wd_alloc_fail_at(1)
    try:
        with pytest.raises(LogFailedError) as refused, opened(CallDisk()):
            pass
    finally:
        lib.wd_alloc_fail_at(0)
    assert refused.value.errno == errno.ENOMEM


def test_to_free_nothing_is_nothing() -> None:
    lib.wd_log_free(ffi.NULL)
    lib.wd_core_free(ffi.NULL)


def test_the_kernels_calls_tell_their_errors_as_negative_numbers(tmp_path: Path) -> None:
    real, gone = real_table(real_io()), os.fsencode(tmp_path / "gone" / "x")
    room = bytes(8)
    for result in (
        real.close(None, -1),
        real.pread(None, -1, room, 8, 0),
        real.pwrite(None, -1, room, 8, 0),
        real.datasync(None, -1),
        real.allocate(None, -1, 8),
        real.writeback(None, -1, 0, 8, 0),
        real.forget(None, -1),
    ):
        assert result == -errno.EBADF
    for result in (
        real.open(None, gone, os.O_RDONLY, 0),
        real.dirsync(None, gone),
        real.rename(None, gone, gone),
        real.unlink(None, gone),
    ):
        assert result == -errno.ENOENT


def test_a_descriptor_that_has_nothing_to_write_back_is_no_error() -> None:
    reader, writer = os.pipe()
    try:
        assert real_table(real_io()).writeback(None, writer, 0, 8, 0) == 0
        assert real_table(real_io()).datasync(None, writer) == -errno.EINVAL
    finally:
        os.close(reader)
        os.close(writer)
