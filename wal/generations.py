"""Which checkpoint a start begins with: the newest that verifies, else the one before.

A checkpoint is read twice: first to the end, so that one with a damaged byte is passed over before
any of it has gone into the engine, and then for the engine. Falling back is told, loudly; when the
log does not reach back to an older generation the start is refused. Nothing is deleted here.
"""

import errno
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from wal.disk import Disk
from wal.errors import RefusedError, Rule
from wal.facts import CheckpointEnd, CheckpointHeader, CheckpointStop
from wal.frame import (
    FORMAT_VERSION,
    SEGMENT_HEADER_BYTES,
    CheckpointScanner,
    NewerFormatError,
    decode_segment,
)
from wal.manifest import Checkpoint, Manifest
from wal.segment import SegmentFile, needed

READ_BYTES: Final = 4 << 20
STEP_BYTES: Final = 300_000  # given to the engine at once: a chunk, as a rule, and about 1 ms

WORDS: Final = {
    CheckpointStop.SHORT: "it is cut short",
    CheckpointStop.TRAILING: "bytes follow its end",
    CheckpointStop.HEADER: "its header block does not verify",
}


class CheckpointDamagedError(Exception):
    """A checkpoint that does not verify.

    Args:
        path: the file.
        offset: of the first byte that is in doubt.
        detail: what is wrong there.
    """

    def __init__(self, path: str, offset: int, detail: str) -> None:
        super().__init__(f"{path} at offset {offset}: {detail}")
        self.path = path
        self.offset = offset
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallen:
    """A checkpoint that MANIFEST names and a start could not use."""

    checkpoint: Checkpoint
    path: str
    offset: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A step of reading a checkpoint.

    Attributes:
        data: whole chunks for the engine, None while the file is only verified.
        bytes_done: of the two passes.
        bytes_total: of both.
    """

    data: memoryview | None
    bytes_done: int
    bytes_total: int


class CheckpointFile:
    """The file of a checkpoint, read and compared with what MANIFEST says about it.

    Args:
        disk: where it lies.
        path: of the file.
        named: what MANIFEST says; None = whatever it is, MANIFEST being lost.
        uuid: of the store.
    """

    __slots__ = ("_disk", "_named", "_uuid", "end", "header", "path", "size_bytes")

    def __init__(self, disk: Disk, path: str, named: Checkpoint | None, uuid: bytes) -> None:
        self._disk = disk
        self._named = named
        self._uuid = uuid
        self.path = path
        self.size_bytes = 0
        self.header: CheckpointHeader | None = None
        self.end: CheckpointEnd | None = None

    def pieces(self, step_bytes: int = READ_BYTES) -> Iterator[memoryview]:
        """Yield the file in whole verified chunks; header and end are known when it is over.

        Args:
            step_bytes: how much to yield at once, about; a chunk that is longer comes whole.

        Raises:
            CheckpointDamagedError: it is missing, or not what was written.
            OSError: a file call failed, otherwise than by a bad sector.
        """
        try:
            fd = self._disk.open(self.path)
        except FileNotFoundError:
            raise CheckpointDamagedError(self.path, 0, "it is missing") from None
        try:
            yield from self._read(fd, step_bytes)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise CheckpointDamagedError(self.path, 0, f"reading it failed: {error}") from error
        finally:
            self._disk.close(fd)

    def _read(self, fd: int, step_bytes: int) -> Iterator[memoryview]:
        size = self.size_bytes = self._disk.size(fd)
        if self._named is not None and size != self._named.size_bytes:
            detail = f"it has {size} bytes, and MANIFEST says {self._named.size_bytes}"
            raise CheckpointDamagedError(self.path, min(size, self._named.size_bytes), detail)
        scanner, offset, want = CheckpointScanner(), 0, step_bytes
        buffer, at = memoryview(b""), 0
        while True:
            room = size - offset
            if len(buffer) - at < min(want, room):
                buffer, at = memoryview(self._disk.pread(fd, max(want, READ_BYTES), offset)), 0
                size = size if len(buffer) >= min(want, room) else offset + len(buffer)
            data = buffer[at : at + want]
            scan = scanner.feed(data, room=size - offset)
            if scan.bytes:
                yield data[: scan.bytes]
                offset += scan.bytes
                at += scan.bytes
            if scan.stop is not CheckpointStop.MORE:
                break
            want = max(step_bytes, scan.need_bytes)
        if scan.stop is CheckpointStop.NEWER:
            raise RefusedError(
                rule=Rule.NEWER_FORMAT,
                path=self.path,
                detail=f"this build reads checkpoints up to format {FORMAT_VERSION}",
                advice="use a newer wheeld",
            )
        if scan.stop is not CheckpointStop.WHOLE:
            detail = WORDS.get(scan.stop, f"a chunk does not verify ({scan.stop.name.lower()})")
            raise CheckpointDamagedError(self.path, offset, detail)
        self.header, self.end = scan.header, scan.end
        self._compare()

    def _compare(self) -> None:
        """Refuse a whole checkpoint that is not the one MANIFEST names."""
        header, end, named = self.header, self.end, self._named
        if header is None or end is None:
            raise CheckpointDamagedError(self.path, 0, "it has no header or no end")
        if header.uuid != self._uuid:
            raise CheckpointDamagedError(self.path, 0, f"it belongs to store {header.uuid.hex()}")
        found = (end.start_lsn, end.end_lsn, end.crc)
        if named is None:
            return
        if found != (named.start_lsn, named.end_lsn, named.digest):
            detail = (
                f"it is another one than MANIFEST names: lsn {end.start_lsn} to {end.end_lsn},"
                f" not {named.start_lsn} to {named.end_lsn}"
            )
            raise CheckpointDamagedError(self.path, 0, detail)


class Generations:
    """The generations that MANIFEST offers a start, and the choice among them.

    Args:
        disk: where they lie.
        folder: of the checkpoints.
        manifest: what names them.
        segments: all there are, in order.
    """

    __slots__ = ("_disk", "_file", "_folder", "_manifest", "_segments", "chosen", "fallen")

    def __init__(
        self, disk: Disk, folder: str, manifest: Manifest, segments: tuple[SegmentFile, ...]
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._manifest = manifest
        self._segments = segments
        self._file: CheckpointFile | None = None
        self.chosen: Checkpoint | None = None
        self.fallen: tuple[Fallen, ...] = ()

    @property
    def header(self) -> CheckpointHeader | None:
        """The chosen checkpoint's header, when it was read."""
        return self._file.header if self._file else None

    @property
    def end(self) -> CheckpointEnd | None:
        """The chosen checkpoint's end, when it was read."""
        return self._file.end if self._file else None

    @property
    def segments(self) -> tuple[SegmentFile, ...]:
        """The segments to be read behind the chosen generation.

        Raises:
            RefusedError: they do not reach back so far.
        """
        from_lsn = self.chosen.start_lsn + 1 if self.chosen else 1
        seq = self.chosen.seq if self.chosen else self._manifest.oldest_seq
        try:
            found = needed(self._segments, from_lsn)
        except RefusedError as refused:
            raise self._explained(refused) from refused
        if found and found[0].seq < seq:
            raise self._explained(
                RefusedError(
                    rule=Rule.SEGMENT_MISSING,
                    path=found[0].path,
                    lsn=from_lsn,
                    detail=f"the log is needed from lsn {from_lsn} on, which stood in segment"
                    f" {seq:016x}, and the nearest there is {found[0].name}",
                )
            )
        return self._with_the_one_before(found, from_lsn)

    def _with_the_one_before(
        self, found: tuple[SegmentFile, ...], from_lsn: int
    ) -> tuple[SegmentFile, ...]:
        """Return found, led by the segment before it when its own header block does not verify.

        Of a segment that begins just behind the checkpoint no sync need have covered anything, in
        modes interval and off. The one before is durable, and tells the mode: so what is missing
        can be told from what is damaged.
        """
        at = len(self._segments) - len(found)
        if not found or found[0].base_lsn != from_lsn or at == 0:
            return found
        before = self._segments[at - 1]
        if before.seq + 1 != found[0].seq or self._has_header(found[0]):
            return found
        return (before, *found)

    def _has_header(self, segment: SegmentFile) -> bool:
        fd = self._disk.open(segment.path)
        try:
            block = self._disk.pread(fd, SEGMENT_HEADER_BYTES, 0)
        finally:
            self._disk.close(fd)
        with suppress(NewerFormatError):
            return decode_segment(block) is not None
        return True

    def _explained(self, refused: RefusedError) -> RefusedError:
        """Return the refusal, about the damaged checkpoint when one is what led there."""
        if not self.fallen:
            return refused
        first = self.fallen[0]
        return RefusedError(
            rule=Rule.CHECKPOINT,
            path=first.path,
            offset=first.offset,
            lsn=refused.lsn,
            detail=f"{first.detail}, and the log no longer reaches back: {refused.detail}",
        )

    def read(self) -> Iterator[Piece]:
        """Choose the generation, and yield its checkpoint for the engine.

        Raises:
            RefusedError: none can be used.
            OSError: a file call failed.
        """
        yield from self.choose()
        if self._file is not None and self.chosen is not None:
            yield from self._for_engine(self._file, 2 * self.chosen.size_bytes)

    def choose(self) -> Iterator[Piece]:
        """Verify one generation after the other, newest first, until one can be used.

        Raises:
            RefusedError: none can be used.
            OSError: a file call failed.
        """
        for checkpoint in reversed(self._manifest.checkpoints):
            path = f"{self._folder}/{checkpoint.name}"
            file = CheckpointFile(self._disk, path, checkpoint, self._manifest.uuid)
            total = 2 * checkpoint.size_bytes
            done = 0
            try:
                for data in file.pieces():
                    done += len(data)
                    yield Piece(data=None, bytes_done=done, bytes_total=total)
            except CheckpointDamagedError as damage:
                self._fall(checkpoint, damage)
                continue
            self.chosen, self._file = checkpoint, file
            _ = self.segments  # refused before anything goes into the engine
            return
        if self._manifest.oldest_lsn == 1:
            return
        if not self.fallen:
            raise RefusedError(
                rule=Rule.MANIFEST,
                path=f"{self._folder.rpartition('/')[0]}/MANIFEST",
                detail="it names no checkpoint, and no record 1",
            )
        first = self.fallen[0]
        raise RefusedError(
            rule=Rule.CHECKPOINT,
            path=first.path,
            offset=first.offset,
            lsn=self._manifest.oldest_lsn,
            detail=f"{first.detail}, there is no older one that verifies, and the log starts"
            f" at lsn {self._manifest.oldest_lsn}",
        )

    def _fall(self, checkpoint: Checkpoint, damage: CheckpointDamagedError) -> None:
        fallen = Fallen(
            checkpoint=checkpoint, path=damage.path, offset=damage.offset, detail=damage.detail
        )
        self.fallen = (*self.fallen, fallen)

    def _for_engine(self, file: CheckpointFile, total: int) -> Iterator[Piece]:
        done = total // 2
        try:
            for data in file.pieces(STEP_BYTES):
                done += len(data)
                yield Piece(data=data, bytes_done=done, bytes_total=total)
        except CheckpointDamagedError as damage:
            # It verified a moment ago: this disk does not read the same twice.
            raise RefusedError(
                rule=Rule.CHECKPOINT, path=damage.path, offset=damage.offset, detail=damage.detail
            ) from damage
