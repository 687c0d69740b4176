"""Reading the log from its first needed segment to the place where it ends, or goes wrong.

The reader checks each step from segment to segment and from frame to frame. It does not judge:
where the log does not go on as it must it notes a :class:`Damage` and stops; wal/recover.py says
what that means. Only what no crash leaves behind (a segment of another store, a renamed file, a
header that verifies and contradicts the one before) is refused here, on the spot.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from wal import frame
from wal.disk import Disk
from wal.errors import RefusedError, Rule
from wal.frame import (
    SEGMENT_HEADER_BYTES,
    FsyncMode,
    NewerFormatError,
    Scan,
    Scanner,
    SegmentHeader,
    Stop,
)
from wal.segment import SegmentFile

READ_BYTES: Final = 4 << 20

WORDS: Final = {
    Stop.ZERO: "a frame header is missing and bytes follow",
    Stop.MAGIC: "no frame header stands where one must",
    Stop.HEADER_CRC: "the frame header fails its checksum",
    Stop.SALT: "the frame belongs to another segment",
    Stop.LENGTH: "the frame is longer than its segment or the limit",
    Stop.LSN: "the frame is not the next one",
    Stop.PREV_CRC: "the frame continues another history",
    Stop.PAYLOAD_CRC: "the frame's payload fails its checksum",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Whole valid frames, in order, for the engine to apply.

    ``bytes_done`` of ``bytes_total`` is the progress of the whole replay.
    """

    data: memoryview
    term: int
    seq: int
    offset: int
    first_lsn: int
    last_lsn: int
    frames: int
    records: int
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastFrame:
    """The last frame of the log, for the clocks and for the chain."""

    lsn: int
    seq: int
    offset: int
    frame_crc: int
    wall_ms: int
    rel_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The first place where the log does not go on as it must.

    ``index`` counts the segments read; ``stop`` is None when the header block of that segment is
    damaged (offset 0) or the segment after it is missing (``gap``). ``frame_bytes`` is the extent
    of the frame at offset, 0 = not known.
    """

    index: int
    offset: int
    lsn: int
    detail: str
    stop: Stop | None = None
    gap: bool = False
    frame_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class Entered:
    """A segment that was read: its header, where its frames end, how many they are."""

    file: SegmentFile
    header: SegmentHeader
    size_bytes: int
    end: int = SEGMENT_HEADER_BYTES
    frames: int = 0
    records: int = 0
    first_lsn: int = 0
    last_lsn: int = 0


class Reader:
    """One pass over the log, then the verdict.

    Args:
        disk: where it lies.
        segments: the segments to read, in order.
        uuid: of the store.
        settle: sync each file before it is read, and read past the page cache what may never have
            reached the device (a start; not a look from outside).
    """

    __slots__ = (
        "_settle",
        "_total",
        "damage",
        "disk",
        "done",
        "entered",
        "last_frame",
        "next_lsn",
        "prev_crc",
        "segments",
        "term",
        "uuid",
    )

    def __init__(
        self,
        disk: Disk,
        segments: tuple[SegmentFile, ...],
        *,
        uuid: bytes,
        settle: bool,
    ) -> None:
        self.disk = disk
        self.segments = segments
        self.uuid = uuid
        self._settle = settle
        self._total = 0
        self.entered: list[Entered] = []
        self.damage: Damage | None = None
        self.last_frame: LastFrame | None = None
        self.next_lsn = 1
        self.prev_crc = 0
        self.term = 0
        self.done = False

    # ---- reading ----

    def chunks(self) -> Iterator[Chunk]:
        """Yield all valid frames, at most about READ_BYTES at a time.

        Raises:
            RefusedError: something that no crash leaves behind was found on the way.
            OSError: a file call failed.
        """
        sizes = [self._size(segment) for segment in self.segments]
        self._total = sum(sizes)
        before = 0
        for index, size in enumerate(sizes):
            fd = self.disk.open(self.segments[index].path)
            try:
                if self._enter(fd, index, size):
                    yield from self._frames(fd, index, before)
            finally:
                self.disk.close(fd)
            if self.damage is not None:
                break
            before += size
        self.done = True

    def _size(self, segment: SegmentFile) -> int:
        fd = self.disk.open(segment.path)
        try:
            return self.disk.size(fd)
        finally:
            self.disk.close(fd)

    def _read_header(self, fd: int, index: int) -> SegmentHeader | None:
        """Return the header of the open segment, read from the device where that matters."""
        header = self._decode(fd, index)
        if not self._settle:
            return header
        self.disk.datasync(fd)
        last = index == len(self.segments) - 1
        if last or header is None or header.fsync_mode != FsyncMode.ALWAYS:
            # A page whose write failed is clean in the cache and absent on the device.
            self.disk.drop_cache(fd)
            header = self._decode(fd, index)
        return header

    def _decode(self, fd: int, index: int) -> SegmentHeader | None:
        path = self.segments[index].path
        try:
            return frame.decode_segment(self.disk.pread(fd, SEGMENT_HEADER_BYTES, 0))
        except NewerFormatError as error:
            raise RefusedError(
                rule=Rule.NEWER_FORMAT, path=path, detail=str(error), advice="use a newer wheeld"
            ) from error

    def _enter(self, fd: int, index: int, size: int) -> bool:
        """Return True when the segment goes on where the one before ended; else damage is set."""
        file = self.segments[index]
        if index > 0 and file.seq != self.segments[index - 1].seq + 1:
            self._gap(index, f"segment {self.segments[index - 1].seq + 1:016x} is missing")
            return False
        header = self._read_header(fd, index)
        if header is None:
            if index == 0:
                self.next_lsn = file.base_lsn
            self.damage = Damage(
                index=index,
                offset=0,
                lsn=self.next_lsn,
                detail="the segment's header block does not verify",
            )
            return False
        self._check_header(file, header)
        if index == 0:
            self._begin(file, header)
        elif header.base_lsn > self.next_lsn:
            self._gap(index, f"records {self.next_lsn} to {header.base_lsn - 1} are missing")
            return False
        else:
            self._check_join(file, header)
        self.term = max(self.term, header.term)
        self.entered.append(Entered(file=file, header=header, size_bytes=size))
        return True

    def _gap(self, index: int, detail: str) -> None:
        before = self.entered[-1]
        self.damage = Damage(
            index=index - 1,
            offset=before.end,
            lsn=self.next_lsn,
            detail=detail,
            gap=True,
        )

    def _check_header(self, file: SegmentFile, header: SegmentHeader) -> None:
        """Refuse a header that verifies and is not this file's, of this store."""
        if header.uuid != self.uuid:
            detail = f"it belongs to store {header.uuid.hex()}, not to {self.uuid.hex()}"
            raise RefusedError(rule=Rule.FOREIGN_UUID, path=file.path, offset=0, detail=detail)
        if (header.seq, header.base_lsn) != (file.seq, file.base_lsn):
            detail = f"its header names it {header.seq:016x}-{header.base_lsn:016x}"
            raise RefusedError(rule=Rule.NAME_MISMATCH, path=file.path, offset=0, detail=detail)

    def _begin(self, file: SegmentFile, header: SegmentHeader) -> None:
        if header.base_lsn == 1 and header.prev_crc != 0:
            detail = "it starts the log and names a frame before it"
            raise RefusedError(rule=Rule.PREV_CRC, path=file.path, offset=0, detail=detail)
        self.next_lsn = header.base_lsn
        self.prev_crc = header.prev_crc

    def _check_join(self, file: SegmentFile, header: SegmentHeader) -> None:
        """Refuse a segment that does not follow the one before it; no crash leaves that."""
        lsn = header.base_lsn
        if lsn < self.next_lsn:
            detail = f"it starts at lsn {lsn}, and the segment before ends at {self.next_lsn - 1}"
            raise RefusedError(
                rule=Rule.LSN_OVERLAP, path=file.path, offset=0, lsn=lsn, detail=detail
            )
        if header.prev_crc != self.prev_crc:
            detail = "it continues another history than the segment before it"
            raise RefusedError(rule=Rule.PREV_CRC, path=file.path, offset=0, lsn=lsn, detail=detail)
        if header.term < self.entered[-1].header.term:
            detail = f"its term {header.term} is lower than the one before"
            raise RefusedError(
                rule=Rule.TERM_ORDER, path=file.path, offset=0, lsn=lsn, detail=detail
            )

    def _frames(self, fd: int, index: int, before: int) -> Iterator[Chunk]:
        """Yield the frames of the segment entered last; on damage set it."""
        into = self.entered[-1]
        into.first_lsn = self.next_lsn
        scanner = Scanner(next_lsn=self.next_lsn, prev_crc=self.prev_crc, salt=into.header.salt)
        size_bytes = READ_BYTES
        while True:
            room = max(into.size_bytes - into.end, 0)
            data = self.disk.pread(fd, min(size_bytes, room), into.end)
            if len(data) < min(size_bytes, room):
                room = len(data)  # somebody made the file shorter meanwhile: that is its end
            scan = scanner.feed(data, room=room)
            if scan.frames:
                yield self._take(into, scan, data, before)
            if scan.stop is not Stop.MORE:
                break
            size_bytes = max(READ_BYTES, scan.need_bytes)
        into.last_lsn = self.next_lsn - 1
        ended = scan.stop is Stop.ZERO and zero_from(self.disk, fd, into.end)
        if ended or scan.stop is Stop.END:
            return
        self.damage = Damage(
            index=index,
            offset=into.end,
            lsn=self.next_lsn,
            detail=WORDS[scan.stop],
            stop=scan.stop,
            frame_bytes=scan.need_bytes,
        )

    def _take(self, into: Entered, scan: Scan, data: bytes, before: int) -> Chunk:
        first_lsn = self.next_lsn
        self.next_lsn = scan.next_lsn
        self.prev_crc = scan.prev_crc
        self.last_frame = LastFrame(
            lsn=self.next_lsn - 1,
            seq=into.header.seq,
            offset=into.end + scan.last_offset,
            frame_crc=self.prev_crc,
            wall_ms=scan.wall_ms,
            rel_ms=scan.rel_ms,
        )
        offset = into.end
        into.end += scan.bytes
        into.frames += scan.frames
        into.records += scan.records
        return Chunk(
            data=memoryview(data)[: scan.bytes],
            term=into.header.term,
            seq=into.header.seq,
            offset=offset,
            first_lsn=first_lsn,
            last_lsn=self.next_lsn - 1,
            frames=scan.frames,
            records=scan.records,
            bytes_done=before + into.end,
            bytes_total=self._total,
        )


def zero_from(disk: Disk, fd: int, offset: int) -> bool:
    """Return True when the file holds nothing but zeros from offset to its end."""
    while data := disk.pread(fd, READ_BYTES, offset):
        if frame.zero_prefix(data) != len(data):
            return False
        offset += len(data)
    return True
