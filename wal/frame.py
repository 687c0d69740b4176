# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false
"""The C codec and writer of the log as typed Python: the only file here that crosses into C.

FORMAT.md has the bytes. Nothing here touches a file but through the ``wd_io`` table that a
:class:`LogHandle` is opened over.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self, TypeAlias

from _wheeld import ffi, lib

from wal.errors import DiskFullError, WalError
from wal.facts import (
    CheckpointEnd,
    CheckpointHeader,
    CheckpointScan,
    CheckpointStop,
    LogError,
    LogStats,
)

Bytes: TypeAlias = bytes | bytearray | memoryview

FORMAT_VERSION: Final = int(lib.WD_FORMAT_VERSION)
FORMAT_READER_MIN: Final = int(lib.WD_FORMAT_READER_MIN)
SEGMENT_HEADER_BYTES: Final = int(lib.WD_SEGMENT_HEADER_BYTES)
FRAME_HEADER_BYTES: Final = int(lib.WD_FRAME_HEADER_BYTES)
CHECKPOINT_HEADER_BYTES: Final = int(lib.WD_CKPT_HEADER_BYTES)
FRAME_BYTES_MAX: Final = int(lib.WD_FRAME_BYTES_MAX)
MARK_SLOT_BYTES: Final = int(lib.WD_MARK_SLOT_BYTES)
MARK_SLOTS: Final = int(lib.WD_MARK_SLOTS)
FRAME_UNSYNCED: Final = int(lib.WD_FRAME_UNSYNCED)
SECTOR_BYTES: Final = 512
UUID_BYTES: Final = 16


class FsyncMode(IntEnum):
    """When a confirmed record is on the disk (``--fsync``); the value stands in segment headers."""

    ALWAYS = lib.WD_FSYNC_ALWAYS
    INTERVAL = lib.WD_FSYNC_INTERVAL
    OFF = lib.WD_FSYNC_OFF


class Stop(IntEnum):
    """Why a scan over frames stopped (``enum wd_scan_stop``)."""

    MORE = lib.WD_SCAN_MORE
    END = lib.WD_SCAN_END
    ZERO = lib.WD_SCAN_ZERO
    MAGIC = lib.WD_SCAN_MAGIC
    HEADER_CRC = lib.WD_SCAN_HEADER_CRC
    SALT = lib.WD_SCAN_SALT
    LENGTH = lib.WD_SCAN_LENGTH
    LSN = lib.WD_SCAN_LSN
    PREV_CRC = lib.WD_SCAN_PREV_CRC
    PAYLOAD_CRC = lib.WD_SCAN_PAYLOAD_CRC


class NewerFormatError(WalError):
    """The segment was written in a format that this build must not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """The header of a frame."""

    payload_bytes: int
    records: int
    flags: int
    first_lsn: int
    durable_lsn: int
    wall_ms: int
    rel_ms: int

    @property
    def last_lsn(self) -> int:
        """The lsn of its last record."""
        return self.first_lsn + self.records - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The header block of a segment."""

    uuid: bytes
    term: int
    seq: int
    base_lsn: int
    prev_crc: int
    salt: int
    fsync_mode: int
    created_wall_ms: int
    rel_minus_boot_ms: int
    boot_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One slot of MARK: up to ``lsn`` a completed sync covers everything."""

    count: int
    lsn: int
    seq: int
    offset: int
    term: int
    wall_ms: int
    frame_crc: int
    clean: bool
    uuid: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A frame header that verifies, found by search; ``offset`` from the front of the buffer."""

    offset: int
    frame_bytes: int
    salt: int
    prev_crc: int
    payload_crc: int
    header: FrameHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStart:
    """Everything a start decided, for the C writer (``wd_log_start`` has the meanings)."""

    folder: str
    segment_bytes: int
    allocate_only: bool
    next_seq: int
    next_lsn: int
    term: int
    fsync: FsyncMode
    salt_seed: int
    uuid: bytes
    boot_id: bytes
    wall_ms: int
    rel_minus_boot_ms: int
    prev_crc: int
    last_seq: int
    last_offset: int
    last_wall_ms: int
    mark_count: int


def crc32c(data: Bytes, crc: int = 0) -> int:
    """Return the crc32c of data, continued from crc."""
    view = ffi.from_buffer(data)
    return int(lib.wd_crc32c(crc, view, len(view)))


def force_crc_table(*, on: bool) -> None:
    """Compute crc32c by table whatever the CPU can do (tests, instruction counts)."""
    lib.wd_crc32c_force_table(int(on))


def fs_magic(path: str) -> int:
    """Return the kernel's number of the file system that path lies on.

    Raises:
        OSError: statfs() failed.
    """
    magic = int(lib.wd_io_fs_magic(os.fsencode(path)))
    if magic < 0:
        raise OSError(-magic, os.strerror(-magic), path)
    return magic


def real_io() -> int:
    """Return the address of the ``wd_io`` table that holds the kernel's calls."""
    return int(ffi.cast("uintptr_t", lib.wd_io_real()))


# ---- segment header, MARK slot ----


def encode_segment(header: SegmentHeader) -> bytes:
    """Return the header block, SEGMENT_HEADER_BYTES long."""
    meta = ffi.new("wd_segment_meta *")
    for name in ("term", "seq", "base_lsn", "prev_crc", "salt", "fsync_mode"):
        setattr(meta, name, getattr(header, name))
    meta.created_wall_ms = header.created_wall_ms
    meta.rel_minus_boot_ms = header.rel_minus_boot_ms
    meta.uuid = header.uuid
    meta.boot_id = header.boot_id
    block = ffi.new("uint8_t[]", SEGMENT_HEADER_BYTES)
    lib.wd_segment_encode(meta, block)
    return bytes(ffi.buffer(block))


def decode_segment(block: Bytes) -> SegmentHeader | None:
    """Return the header of a segment, None when the block is short or does not verify.

    Raises:
        NewerFormatError: it verifies, and this build must not read the segment.
    """
    if len(block) < SEGMENT_HEADER_BYTES:
        return None
    meta = ffi.new("wd_segment_meta *")
    status = lib.wd_segment_decode(ffi.from_buffer(block), meta)
    if status == lib.WD_EINVAL:
        raise NewerFormatError(f"this build reads segments up to format {FORMAT_VERSION}")
    if status != lib.WD_OK:
        return None
    return SegmentHeader(
        uuid=bytes(meta.uuid),
        term=meta.term,
        seq=meta.seq,
        base_lsn=meta.base_lsn,
        prev_crc=meta.prev_crc,
        salt=meta.salt,
        fsync_mode=meta.fsync_mode,
        created_wall_ms=meta.created_wall_ms,
        rel_minus_boot_ms=meta.rel_minus_boot_ms,
        boot_id=bytes(meta.boot_id),
    )


def encode_mark(mark: Mark) -> bytes:
    """Return the slot, MARK_SLOT_BYTES long."""
    meta = ffi.new("wd_mark_meta *")
    for name in ("count", "lsn", "seq", "offset", "term", "wall_ms", "frame_crc"):
        setattr(meta, name, getattr(mark, name))
    meta.flags = lib.WD_MARK_CLEAN if mark.clean else 0
    meta.uuid = mark.uuid
    slot = ffi.new("uint8_t[]", MARK_SLOT_BYTES)
    lib.wd_mark_encode(meta, slot)
    return bytes(ffi.buffer(slot))


def decode_mark(slot: Bytes) -> Mark | None:
    """Return the slot's content, None when it is short or does not verify."""
    if len(slot) < MARK_SLOT_BYTES:
        return None
    meta = ffi.new("wd_mark_meta *")
    if lib.wd_mark_decode(ffi.from_buffer(slot), meta) != lib.WD_OK:
        return None
    return Mark(
        count=meta.count,
        lsn=meta.lsn,
        seq=meta.seq,
        offset=meta.offset,
        term=meta.term,
        wall_ms=meta.wall_ms,
        frame_crc=meta.frame_crc,
        clean=bool(meta.flags & lib.WD_MARK_CLEAN),
        uuid=bytes(meta.uuid),
    )


# ---- frames ----


def _frame_header(meta: Any) -> FrameHeader:
    return FrameHeader(
        payload_bytes=meta.payload_bytes,
        records=meta.records,
        flags=meta.flags,
        first_lsn=meta.first_lsn,
        durable_lsn=meta.durable_lsn,
        wall_ms=meta.wall_ms,
        rel_ms=meta.rel_ms,
    )


def _frame_meta(*, payload: Bytes, first_lsn: int, records: int, wall_ms: int, rel_ms: int) -> Any:
    meta = ffi.new("wd_frame_meta *")
    meta.payload_bytes = len(payload)
    meta.first_lsn = first_lsn
    meta.records = records
    meta.wall_ms = wall_ms
    meta.rel_ms = rel_ms
    return meta


def _frame_buffer(payload: Bytes) -> Any:
    buffer = ffi.new("uint8_t[]", FRAME_HEADER_BYTES + len(payload) + 7)
    ffi.memmove(buffer + FRAME_HEADER_BYTES, payload, len(payload))
    return buffer


def seal(
    payload: Bytes,
    *,
    first_lsn: int,
    records: int,
    wall_ms: int,
    rel_ms: int,
    salt: int,
    prev_crc: int,
    durable_lsn: int = 0,
    flags: int = 0,
) -> bytes:
    """Return a whole frame around payload (tools and tests; the server's frames are made in C)."""
    meta = _frame_meta(
        payload=payload, first_lsn=first_lsn, records=records, wall_ms=wall_ms, rel_ms=rel_ms
    )
    meta.durable_lsn = durable_lsn
    meta.flags = flags
    buffer = _frame_buffer(payload)
    whole = lib.wd_frame_seal(buffer, meta, salt, prev_crc)
    return bytes(ffi.buffer(buffer, whole))


def find(data: Bytes, *, salt: int | None) -> Found | None:
    """Return the first frame header in data that verifies, at steps of 8 bytes, or None.

    Args:
        data: bytes that start at a multiple of 8 in their file.
        salt: only of the segment with this salt; None = of any.
    """
    out = ffi.new("wd_found *")
    view = ffi.from_buffer(data)
    if not lib.wd_frame_find(view, len(view), -1 if salt is None else salt, out):
        return None
    return Found(
        offset=out.offset,
        frame_bytes=out.frame_bytes,
        salt=out.salt,
        prev_crc=out.prev_crc,
        payload_crc=out.payload_crc,
        header=_frame_header(out.meta),
    )


def zero_prefix(data: Bytes) -> int:
    """Return the number of zero bytes at the front."""
    view = ffi.from_buffer(data)
    return int(lib.wd_zero_prefix(view, len(view)))


def split_frames(data: memoryview, size_bytes: int) -> Iterator[memoryview]:
    """Yield data, which is whole valid frames, in runs of whole frames.

    Each run is as long as size_bytes allows, and at least one frame.
    """
    while data:
        run = int(lib.wd_frame_split(ffi.from_buffer(data), len(data), size_bytes))
        yield data[:run]
        data = data[run:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What one buffer held: whole valid frames at its front, and why the scan stopped behind them.

    ``need_bytes`` is the length of the frame that it stopped at, 0 = its header tells none;
    ``last_offset`` that of the last valid frame from the front of the buffer. ``next_lsn`` and
    ``prev_crc`` are what the next frame must carry; the times are the last valid frame's.
    """

    stop: Stop
    bytes: int
    frames: int
    records: int
    need_bytes: int
    last_offset: int
    next_lsn: int
    prev_crc: int
    wall_ms: int
    rel_ms: int


class Scanner:
    """A scan over the frames of one segment, buffer by buffer.

    Args:
        next_lsn: what the first frame's first lsn must be.
        prev_crc: the payload crc of the frame before it, 0 = none.
        salt: the segment's.
    """

    __slots__ = ("_scan",)

    def __init__(self, *, next_lsn: int, prev_crc: int, salt: int) -> None:
        self._scan: Any = ffi.new("wd_scan *")
        self._scan.next_lsn = next_lsn
        self._scan.prev_crc = prev_crc
        self._scan.salt = salt

    def feed(self, data: Bytes, *, room: int) -> Scan:
        """Return what data holds, which starts at a frame's border.

        Args:
            data: bytes of the segment.
            room: bytes from data's front to the end of the segment, >= len(data).
        """
        view, c = ffi.from_buffer(data), self._scan
        lib.wd_frame_scan(view, len(view), room, c)
        return Scan(
            stop=Stop(c.stop),
            bytes=c.bytes,
            frames=c.frames,
            records=c.records,
            need_bytes=c.need_bytes,
            last_offset=c.last_offset,
            next_lsn=c.next_lsn,
            prev_crc=c.prev_crc,
            wall_ms=c.wall_ms,
            rel_ms=c.rel_ms,
        )


# ---- checkpoints ----


def _taken(fact: type[Any], c: Any) -> Any:
    """Return a dataclass whose fields are those of the same name of a C struct."""
    names = fact.__dataclass_fields__
    return fact(**{n: bytes(c.uuid) if n == "uuid" else int(getattr(c, n)) for n in names})


class CheckpointScanner:
    """A verifying scan over one checkpoint file, buffer by buffer from its front."""

    __slots__ = ("_scan",)

    def __init__(self) -> None:
        self._scan: Any = ffi.new("wd_ckpt_scan *")

    def feed(self, data: Bytes, *, room: int) -> CheckpointScan:
        """Return what data holds, which starts at the file's front or at a chunk's border.

        Args:
            data: bytes of the file.
            room: bytes from data's front to the end of the file, >= len(data).
        """
        view, c = ffi.from_buffer(data), self._scan
        lib.wd_ckpt_scan_run(view, len(view), room, c)
        return CheckpointScan(
            stop=CheckpointStop(c.stop),
            bytes=c.bytes,
            need_bytes=c.need_bytes,
            chunks=c.chunks,
            header=_taken(CheckpointHeader, c.meta) if c.stage >= 1 else None,
            end=_taken(CheckpointEnd, c.end) if c.stage >= 2 else None,
        )


# ---- the writer ----


def _log_error(error: Any) -> LogError:
    return LogError(
        errno=error.error,
        call=ffi.string(error.call).decode("ascii"),
        path=os.fsdecode(ffi.string(error.path)),
        offset=error.offset,
        lsn=error.lsn,
    )


class LogHandle:
    """The C writer: one open log. ``wd_log.h`` says which calls may overlap.

    Args:
        start: what the start decided.
        io: address of the ``wd_io`` table to write through.
        owner: who holds that table; kept until the log is closed.

    Raises:
        LogFailedError: the fresh segment could not be opened.
    """

    __slots__ = ("_log",)

    def __init__(self, start: LogStart, *, io: int, owner: object) -> None:
        folder = ffi.new("char[]", os.fsencode(start.folder))
        c_start = ffi.new("wd_log_start *")
        c_start.folder = folder
        c_start.allocate_only = int(start.allocate_only)
        c_start.fsync_mode = int(start.fsync)
        for name in (
            "segment_bytes next_seq next_lsn term salt_seed uuid boot_id wall_ms rel_minus_boot_ms"
            " prev_crc last_seq last_offset last_wall_ms mark_count"
        ).split():
            setattr(c_start, name, getattr(start, name))
        error = ffi.new("wd_log_error *")
        log = lib.wd_log_open(ffi.cast("const wd_io *", io), c_start, error)
        if log == ffi.NULL:
            raise _log_error(error).exception()

        def free(log: Any, _owner: object = owner) -> None:
            lib.wd_log_free(log)

        self._log: Any = ffi.gc(log, free)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cdata(self) -> Any:
        """The ``wd_log *`` for the engine core.

        Raises:
            WalError: the log is closed.
        """
        if self._log is None:
            raise WalError("the log is closed")
        return self._log

    def _check(self, status: int) -> None:
        if status == lib.WD_OK:
            return
        if status == lib.WD_EFULL:
            raise DiskFullError("no room for the next segment")
        if status == lib.WD_EIO:
            raise self.error().exception()
        if status == lib.WD_ENOMEM:
            raise MemoryError
        raise WalError(ffi.string(lib.wd_strerror(status)).decode("ascii"))

    def append(
        self, payload: Bytes, *, first_lsn: int, records: int, wall_ms: int, rel_ms: int
    ) -> None:
        """Write one frame; in mode always it is synced on return.

        Raises:
            DiskFullError: no room for the next segment; nothing was written, repeat it later.
            LogFailedError: the log has failed for good.
            WalError: not the next lsn, or longer than a frame may be.
        """
        meta = _frame_meta(
            payload=payload, first_lsn=first_lsn, records=records, wall_ms=wall_ms, rel_ms=rel_ms
        )
        self._check(lib.wd_log_append(self.cdata, _frame_buffer(payload), meta))

    def prepare(self) -> None:
        """Make the next segment ready, for a background thread (the GIL is let go meanwhile).

        Raises:
            DiskFullError: no room; nothing is broken, ask again later.
            LogFailedError: the log has failed for good.
        """
        self._check(lib.wd_log_prepare(self.cdata))

    def sync(self) -> None:
        """Sync all that was written before the call.

        Raises:
            LogFailedError: the log has failed for good.
        """
        self._check(lib.wd_log_sync(self.cdata))

    def mark(self, *, clean: bool) -> None:
        """Write MARK; clean at an orderly stop, after a sync: no append is taken after it.

        Raises:
            LogFailedError: the log has failed for good.
            WalError: clean was asked for while something is not synced.
        """
        self._check(lib.wd_log_mark(self.cdata, int(clean)))

    def stats(self) -> LogStats:
        """Return the counters."""
        out = ffi.new("wd_log_stats *")
        lib.wd_log_stats_get(self.cdata, out)
        return LogStats(
            frames=out.frames,
            bytes=out.bytes,
            syncs=out.syncs,
            rotations=out.rotations,
            marks=out.marks,
            sync_ns_sum=out.sync_ns_sum,
            sync_ns_max=out.sync_ns_max,
            sync_ns_last=out.sync_ns_last,
            written_lsn=out.written_lsn,
            synced_lsn=out.synced_lsn,
            marked_lsn=out.marked_lsn,
            seq=out.seq,
            offset=out.offset,
            segment_bytes=out.segment_bytes,
            prepared=bool(out.prepared),
            reserved=bool(out.reserved),
            unsynced_segments=out.unsynced_segments,
        )

    def error(self) -> LogError:
        """Return the failure that ended the log; its errno is 0 while there is none."""
        out = ffi.new("wd_log_error *")
        lib.wd_log_error_get(self.cdata, out)
        return _log_error(out)

    def close(self) -> None:
        """Close the files; writes nothing. A second call does nothing."""
        log, self._log = self._log, None
        if log is not None:
            ffi.release(log)
