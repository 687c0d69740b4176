"""What the C side of the log tells, as plain values; :mod:`wal.frame` makes them."""

import os
from dataclasses import dataclass
from enum import IntEnum

from wal.errors import LogFailedError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """Counters of the writer; times in ns."""

    frames: int
    bytes: int
    syncs: int
    rotations: int
    marks: int
    sync_ns_sum: int
    sync_ns_max: int
    sync_ns_last: int
    written_lsn: int
    synced_lsn: int
    marked_lsn: int
    seq: int
    offset: int
    segment_bytes: int
    prepared: bool
    reserved: bool
    unsynced_segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogError:
    """The file call that ended the log."""

    errno: int
    call: str
    path: str
    offset: int
    lsn: int

    def exception(self) -> LogFailedError:
        """Return it as the exception that says so."""
        return LogFailedError(
            call=self.call,
            path=self.path,
            offset=self.offset,
            lsn=self.lsn,
            errno=self.errno,
            reason=os.strerror(self.errno),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeader:
    """The header block of a checkpoint.

    Attributes:
        uuid: of the store.
        term: of the server that wrote it.
        start_lsn: S0; the log is needed from the next lsn on.
        salt: seeds the crcs of its chunks.
        created_wall_ms: when it was begun.
        logical_ms: logical now of the wall axis at S0.
        slots: of the job table, ever used at S0.
        jobs: slots in use at S0.
        keys: live keys at S0.
        generation: lowest of the ids to come at S0; 0 = never raised.
    """

    uuid: bytes
    term: int
    start_lsn: int
    salt: int
    created_wall_ms: int
    logical_ms: int
    slots: int
    jobs: int
    keys: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEnd:
    """The last chunk of a checkpoint.

    Attributes:
        start_lsn: S0, as in the header.
        end_lsn: S1; the log must be durable up to it, and be replayed up to it.
        wall_ms: the wall clock at S1.
        rel_ms: rel now at S1.
        jobs: in the file.
        chunks: before this one.
        crc: crc32c of their payload crcs, in order, continued from the salt.
    """

    start_lsn: int
    end_lsn: int
    wall_ms: int
    rel_ms: int
    jobs: int
    chunks: int
    crc: int


class CheckpointStop(IntEnum):
    """Why a scan over a checkpoint stopped (``enum wd_ckpt_stop``; a test compares them)."""

    MORE = 0
    WHOLE = 1
    HEADER = 2
    NEWER = 3
    SHORT = 4
    MAGIC = 5
    HEADER_CRC = 6
    SALT = 7
    LENGTH = 8
    ORDER = 9
    PAYLOAD_CRC = 10
    FOOTER = 11
    TRAILING = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointScan:
    """What one buffer held: header block and whole valid chunks, and why the scan stopped behind.

    Attributes:
        stop: WHOLE = verified to the file's end, MORE = read on, any other = damaged.
        bytes: of header block and whole valid chunks at the front of the buffer.
        need_bytes: length of what begins behind them; 0 = not known.
        chunks: so far, over all buffers.
        header: once it was seen.
        end: once the last chunk was seen.
    """

    stop: CheckpointStop
    bytes: int
    need_bytes: int
    chunks: int
    header: CheckpointHeader | None
    end: CheckpointEnd | None
