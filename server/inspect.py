"""What the files of a store say, record by record: for ``wheeld wal inspect`` and ``stat``.

Read only, and forgiving: it shows what verifies, and where it stops to. Names of handlers are shown
once the record that names them has been passed.
"""

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Final

from wal import frame
from wal.disk import Disk
from wal.errors import WalError
from wal.frame import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, CheckpointScanner, Scanner, Stop
from wal.reader import READ_BYTES, WORDS
from wheel.commands.output import iso, one_line
from wheel.engine.records import Flag, Kind, Record, State, decode

CHUNK: Final = struct.Struct("<IIIIIIQII")  # header of a checkpoint's chunk
CHECKPOINT_HEADER_BYTES: Final = 4096
CHUNK_KINDS: Final = {
    1: "handlers",
    2: "policies",
    3: "rows",
    4: "table",
    5: "ended",
    6: "once",
    7: "end",
}
VERBS: Final = ("server", "ACK", "DONE", "FAIL", "RELEASE")
REASONS: Final = {
    1: "FAIL",
    2: "time-out",
    3: "lease lost",
    4: "RELEASE",
    5: "grant not delivered",
    6: "not heard of after a restart",
    7: "FAIL DEAD",
}
SHOWN_BYTES_MAX: Final = 40


class UnreadableError(Exception):
    """A file, or the rest of it, cannot be read; the text says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One record with its place.

    Attributes:
        file: name of the segment.
        offset: of its frame.
        frame_records: in that frame.
        lsn: its own.
        wall_ms: its frame's.
        record: what it says.
    """

    file: str
    offset: int
    frame_records: int
    lsn: int
    wall_ms: int
    record: Record


def segment_lines(disk: Disk, path: str, *, from_lsn: int = 1) -> Iterator[Line]:
    """Yield the records of a segment from from_lsn on.

    Raises:
        UnreadableError: a header block, a frame or a record that does not verify.
        OSError: a file call failed.
    """
    fd = disk.open(path)
    try:
        try:
            header = frame.decode_segment(disk.pread(fd, SEGMENT_HEADER_BYTES, 0))
        except WalError as error:
            raise UnreadableError(f"{path}: {error}") from error
        if header is None:
            raise UnreadableError(f"{path}: the header block does not verify")
        scanner = Scanner(next_lsn=header.base_lsn, prev_crc=header.prev_crc, salt=header.salt)
        size, at, want = disk.size(fd), SEGMENT_HEADER_BYTES, READ_BYTES
        while True:
            room = size - at
            data = disk.pread(fd, min(want, room), at)
            scan = scanner.feed(data, room=room)
            if scan.next_lsn > from_lsn:
                yield from _lines(path, at, memoryview(data)[: scan.bytes], from_lsn)
            at += scan.bytes
            if scan.stop in (Stop.END, Stop.ZERO):
                return
            if scan.stop is not Stop.MORE:
                where = f"{path} at offset {at} (lsn {scan.next_lsn})"
                raise UnreadableError(f"{where}: {WORDS[scan.stop]}")
            want = max(READ_BYTES, scan.need_bytes)
    finally:
        disk.close(fd)


def _lines(path: str, offset: int, data: memoryview, from_lsn: int) -> Iterator[Line]:
    name = path.rpartition("/")[2]
    for one in frame.split_frames(data, 1):
        found = frame.find(one, salt=None)
        if found is None:
            raise UnreadableError(f"{path} at offset {offset}: no frame header")
        head = found.header
        if head.last_lsn >= from_lsn:
            payload = one[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + head.payload_bytes]
            try:
                records = list(decode(payload))
            except ValueError as error:
                where = f"{path} at offset {offset} (lsn {head.first_lsn})"
                raise UnreadableError(f"{where}: a record that cannot be read: {error}") from error
            for lsn, record in enumerate(records, head.first_lsn):
                if lsn >= from_lsn:
                    yield Line(
                        file=name,
                        offset=offset,
                        frame_records=head.records,
                        lsn=lsn,
                        wall_ms=head.wall_ms,
                        record=record,
                    )
        offset += len(one)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLine:
    """One chunk of a checkpoint: where it is, and what it holds."""

    offset: int
    kind: str
    count: int
    first: int
    size_bytes: int


def checkpoint_lines(disk: Disk, path: str) -> Iterator[ChunkLine]:
    """Yield the chunks of a checkpoint, each verified.

    Raises:
        UnreadableError: one does not verify.
        OSError: a file call failed.
    """
    fd = disk.open(path)
    try:
        size, offset, want = disk.size(fd), 0, READ_BYTES
        scanner = CheckpointScanner()
        while True:
            data = disk.pread(fd, min(want, size - offset), offset)
            scan = scanner.feed(data, room=size - offset)
            yield from _chunks(memoryview(data)[: scan.bytes], offset)
            offset += scan.bytes
            if scan.stop.name == "WHOLE":
                return
            if scan.stop.name != "MORE":
                raise UnreadableError(
                    f"{path} at offset {offset}: does not verify ({scan.stop.name.lower()})"
                )
            want = max(READ_BYTES, scan.need_bytes)
    finally:
        disk.close(fd)


def _chunks(data: memoryview, offset: int) -> Iterator[ChunkLine]:
    at = CHECKPOINT_HEADER_BYTES if offset == 0 and data else 0
    while at < len(data):
        _, _, _, payload_bytes, _, count, first, kind, _ = CHUNK.unpack_from(data, at)
        size_bytes = CHUNK.size + -(-payload_bytes // 8) * 8
        yield ChunkLine(
            offset=offset + at,
            kind=CHUNK_KINDS.get(kind, str(kind)),
            count=count,
            first=first,
            size_bytes=size_bytes,
        )
        at += size_bytes


# ---- in words ----


def kind_name(kind: int) -> str:
    """Return the name of a record kind, or its number."""
    return Kind(kind).name if kind in Kind.__members__.values() else str(kind)


class Words:
    """Says records in words, with the names of handlers as far as they were seen."""

    def __init__(self) -> None:
        self._handlers: dict[int, str] = {}

    def learn(self, record: Record) -> None:
        """Keep the name of a handler."""
        if record.kind == Kind.HANDLER and record.handler is not None:
            self._handlers[record.handler] = record.name.decode("utf-8", "backslashreplace")

    def of(self, record: Record) -> str:
        """Return what a record says, on one line that cannot drive a terminal."""
        said = ((name, self._value(record, name)) for name in _NAMES)
        return " ".join(f"{name} {value}" for name, value in said if value)

    def _value(self, record: Record, name: str) -> str:
        value = getattr(record, name)
        if value is None or value == b"":
            return ""
        if isinstance(value, bytes):
            return _bytes(value)
        known = self._known(record.kind, name, value)
        return f"{value} ({known})" if known else _plain(value)

    def _known(self, kind: int, name: str, value: int) -> str:
        """Return what a number means, empty when it means itself."""
        if name == "handler":
            return one_line(self._handlers.get(value, ""))
        if name == "flags":
            return "|".join(flag.name or "" for flag in Flag if value & flag).lower()
        if name == "reason":
            return _reason(kind, value)
        if name == "number" and kind == Kind.ENDED and 0 <= value < len(VERBS):
            return f"by {VERBS[value]}"
        return iso(value) if name.endswith("_ms") and name != "lease_ms" else ""


_NAMES: Final = tuple(one.name for one in fields(Record) if one.name != "kind")


def _plain(value: int | tuple[int, int]) -> str:
    """Return a number, or a fence as receipts show it."""
    return f"{value[0]}.{value[1]}" if isinstance(value, tuple) else str(value)


def _reason(kind: int, value: int) -> str:
    if kind == Kind.ENDED:
        return State(value).name.lower() if value in State.__members__.values() else ""
    return REASONS.get(value, "") if kind in (Kind.RETRY, Kind.DIED) else ""


def _bytes(value: bytes) -> str:
    shown = repr(value[:SHOWN_BYTES_MAX])[1:]
    more = f"... ({len(value)} bytes)" if len(value) > SHOWN_BYTES_MAX else ""
    return shown + more


def as_document(line: Line) -> dict[str, object]:
    """Return a record as JSON can hold it; ids are strings, bytes are text with escapes."""
    document: dict[str, object] = {
        "lsn": line.lsn,
        "kind": kind_name(line.record.kind),
        "file": line.file,
        "offset_bytes": line.offset,
        "wall_ms": line.wall_ms,
    }
    for name in _NAMES:
        value = getattr(line.record, name)
        if value is None or value == b"":
            continue
        if name == "id":
            value = str(value)
        elif name == "fence":
            value = f"{value[0]}.{value[1]}"
        elif isinstance(value, bytes):
            value = value.decode("utf-8", "backslashreplace")
        document[name] = value
    return document


# ---- counts ----


@dataclass(slots=True, kw_only=True)
class Counts:
    """What records there are, and how many of them still matter.

    ``live`` is the number of jobs that were made or changed in what was read and have not ended in
    it: each needs one record, so live / records tells how much of the log is of use.
    """

    records: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])
    stopped: str = ""
    _jobs: set[int] = field(default_factory=set[int])

    @property
    def live(self) -> int:
        """Jobs that a record was about and that have not ended."""
        return len(self._jobs)

    @property
    def live_ratio(self) -> float:
        """Return live / records; 1.0 for no records."""
        return self.live / self.records if self.records else 1.0

    def add(self, record: Record) -> None:
        """Count one record."""
        name = kind_name(record.kind)
        self.records += 1
        self.kinds[name] += 1
        if record.id is not None:
            if record.kind in (Kind.ENDED, Kind.PURGED, Kind.CLOSED):
                self._jobs.discard(record.id)
            else:
                self._jobs.add(record.id)
