"""IDENT, MARK or MANIFEST made anew: what one of them said, as far as the other files tell it.

* IDENT: the uuid stands in every other file of the store, and all have to be of one mind.
* MANIFEST: a checkpoint has its name only since it was whole and the log was durable up to its end,
  so each whole one may be in force; how far back the log reaches its segments tell. The floor of
  terms is in MARK too: a restore writes it there, and each server its own.
* MARK: that the log went no further than it can be read today, nothing else says. It is made anew
  only for somebody who says himself where the log is to end (wal/repair.py); what is left of its
  slots still counts as evidence against him.

Nothing is written here, and what is found is no verdict. Whoever uses it judges the log by it as a
start does, and the next start does so again: with the MARK that was there, so that a segment that
went the way of MANIFEST is missed.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from wal import frame
from wal.directory import (
    IDENT_BYTES,
    Facts,
    Ident,
    MarkState,
    decode_ident,
    decode_marks,
    empty_mark,
    read_directory,
    read_file,
)
from wal.disk import Disk
from wal.errors import LOST, RefusedError, Rule
from wal.frame import (
    MARK_SLOT_BYTES,
    MARK_SLOTS,
    SEGMENT_HEADER_BYTES,
    Mark,
    NewerFormatError,
    SegmentHeader,
)
from wal.generations import CheckpointDamagedError, CheckpointFile
from wal.manifest import (
    GENERATIONS_MAX,
    Checkpoint,
    Manifest,
    checkpoint_name,
    read_manifest,
)
from wal.segment import SegmentFile, list_segments, parse_checkpoint_name

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What IDENT, MARK and MANIFEST say, or said.

    Attributes:
        facts: of all three.
        lost: names of those that are missing or damaged, and were made anew.
        durable_lsn: every record up to this one was durable, by anything but MARK and the log.
        term: the highest by these three.
    """

    facts: Facts
    lost: tuple[str, ...]
    durable_lsn: int
    term: int


def read_or_rebuild(disk: Disk, path: str, *, wall_ms: int) -> Found:
    """Return what IDENT, MARK and MANIFEST say; what is lost of them, by the other files.

    Args:
        disk: where they lie.
        path: the data directory.
        wall_ms: now.

    Raises:
        RefusedError: it is no store, another's files are in it, or they do not tell.
        OSError: a file call failed.
    """
    try:
        facts = read_directory(disk, path)
    except RefusedError as refused:
        names = disk.names(path)
        if refused.rule not in LOST or not {"wal", "snap"} <= {*names}:
            raise
        return _Rebuild(disk, path, wall_ms, refused).found()
    floor = max(facts.mark.newest.term, facts.manifest.term_floor)
    return Found(facts=facts, lost=(), durable_lsn=facts.manifest.end_lsn, term=floor)


class _Rebuild:
    """One store of which something is lost; ``refused`` is what a start says about it."""

    def __init__(self, disk: Disk, path: str, wall_ms: int, refused: RefusedError) -> None:
        self._disk = disk
        self._path = path
        self._wall_ms = wall_ms
        self._refused = refused
        self._segments = list_segments(disk, f"{path}/wal").segments
        self._headers = [self._header(one) for one in self._segments]
        self._slots = self._read_slots()

    def _header(self, segment: SegmentFile) -> SegmentHeader | None:
        with suppress(NewerFormatError):
            return frame.decode_segment(read_file(self._disk, segment.path, SEGMENT_HEADER_BYTES))
        return None

    def _read_slots(self) -> list[Mark]:
        """Return the slots of MARK that verify."""
        data = b""
        with suppress(FileNotFoundError):
            data = read_file(self._disk, f"{self._path}/MARK", MARK_SLOT_BYTES * MARK_SLOTS)
        slots = (data[at : at + MARK_SLOT_BYTES] for at in range(0, len(data), MARK_SLOT_BYTES))
        return [mark for mark in map(frame.decode_mark, slots) if mark is not None]

    def found(self) -> Found:
        """Return what the files tell.

        Raises:
            RefusedError: nothing.
            OSError: a file call failed.
        """
        path, disk = self._path, self._disk
        ident = _unless_lost(Rule.IDENT, self._read_ident)
        uuid = self._uuid() if ident is None else ident.uuid
        manifest = _unless_lost(Rule.MANIFEST, lambda: read_manifest(disk, path, uuid))
        mark = _unless_lost(Rule.MARK, lambda: self._read_mark(uuid))
        lost = [("IDENT", ident), ("MARK", mark), ("MANIFEST", manifest)]
        newest = self._mark(uuid) if mark is None else mark
        durable_lsn = 0
        if manifest is None:
            manifest, durable_lsn = self._manifest(uuid, newest.newest.term)
        return Found(
            facts=Facts(ident=ident or self._ident(uuid), mark=newest, manifest=manifest),
            lost=tuple(name for name, read in lost if read is None),
            durable_lsn=max(durable_lsn, manifest.end_lsn),
            term=max(newest.newest.term, manifest.term_floor),
        )

    # ---- IDENT ----

    def _read_ident(self) -> Ident:
        path = f"{self._path}/IDENT"
        return decode_ident(read_file(self._disk, path, IDENT_BYTES + 1), path)

    def _uuid(self) -> bytes:
        """Return whose the files are.

        Raises:
            RefusedError: they do not say, or not the same.
        """
        uuids = {mark.uuid for mark in self._slots}
        uuids |= {header.uuid for header in self._headers if header is not None}
        if len(uuids) == 1:
            return uuids.pop()
        why = "no slot of MARK and no segment tells whose the store is"
        if uuids:
            said = " and ".join(sorted(uuid.hex() for uuid in uuids))
            why = f"MARK and segments belong to the stores {said}"
        raise RefusedError(
            rule=Rule.FOREIGN_UUID if uuids else self._refused.rule,
            path=self._refused.path,
            detail=f"{self._refused.detail}, and {why}",
            advice="restore a backup",
        )

    def _ident(self, uuid: bytes) -> Ident:
        times = [header.created_wall_ms for header in self._headers if header is not None]
        return Ident(
            uuid=uuid,
            version=frame.FORMAT_VERSION,
            created_wall_ms=min(times, default=self._wall_ms),
        )

    # ---- MARK ----

    def _read_mark(self, uuid: bytes) -> MarkState:
        path = f"{self._path}/MARK"
        data = read_file(self._disk, path, MARK_SLOT_BYTES * MARK_SLOTS)
        return decode_marks(data, path, uuid)

    def _mark(self, uuid: bytes) -> MarkState:
        """Return the newest slot that verifies, a lower bound, or one that says nothing."""
        own = (mark for mark in self._slots if mark.uuid == uuid)
        newest = max(own, key=lambda mark: mark.count, default=empty_mark(uuid))
        return MarkState(newest=replace(newest, clean=False), damaged_slots=MARK_SLOTS)

    # ---- MANIFEST ----

    def _checkpoints(self, uuid: bytes) -> list[tuple[Checkpoint, int]]:
        """Return the checkpoints that verify, oldest first, and the terms of their servers."""
        folder = f"{self._path}/snap"
        found: list[tuple[Checkpoint, int]] = []
        for name in sorted(self._disk.names(folder)):
            if parse_checkpoint_name(name) is None:
                continue
            file = CheckpointFile(self._disk, f"{folder}/{name}", None, uuid)
            with suppress(CheckpointDamagedError):
                for _ in file.pieces():
                    pass
                checkpoint = self._checkpoint(file, name)
                if checkpoint is not None and file.header is not None:
                    found.append((checkpoint, file.header.term))
        return found

    def _checkpoint(self, file: CheckpointFile, name: str) -> Checkpoint | None:
        """Return a whole checkpoint as MANIFEST names it; None: the log is not there for it."""
        header, end = file.header, file.end
        if header is None or end is None or name != checkpoint_name(end.start_lsn):
            return None
        # One that begins just behind its end may have a name that no sync covered.
        seq = self._seq_of(min(end.start_lsn + 1, end.end_lsn)) or self._seq_of(end.start_lsn + 1)
        # Of what a server of a higher term has written there this one knows nothing: it is of a
        # history that was given up.
        terms = [
            one.term
            for one in self._headers
            if one is not None and one.base_lsn <= end.end_lsn and one.term > header.term
        ]
        if seq is None or terms:
            return None
        return Checkpoint(
            start_lsn=end.start_lsn,
            end_lsn=end.end_lsn,
            size_bytes=file.size_bytes,
            digest=end.crc,
            rows=end.jobs,
            seq=seq,
            wall_ms=end.wall_ms,
        )

    def _seq_of(self, lsn: int) -> int | None:
        """Return the segment that record lsn stands in, by the names; None: it is not there."""
        return max((one.seq for one in self._segments if one.base_lsn <= lsn), default=None)

    def _manifest(self, uuid: bytes, term: int) -> tuple[Manifest, int]:
        """Return a MANIFEST with every generation that the log is there for.

        And up to where the log was durable by the names in snap/: a checkpoint gets its name only
        then, and one that is given up loses it.

        Raises:
            RefusedError: it is there for none.
        """
        named = map(parse_checkpoint_name, self._disk.names(f"{self._path}/snap"))
        whole = self._checkpoints(uuid)[-GENERATIONS_MAX:]
        oldest_lsn, oldest_seq = 1, self._seq_of(1)
        if oldest_seq is None and whole:
            oldest_lsn, oldest_seq = whole[0][0].start_lsn + 1, whole[0][0].seq
        if oldest_seq is None and not self._segments:
            oldest_seq = 1  # a store that was only made; or the log is lost, which MARK tells
        if oldest_seq is None:
            raise RefusedError(
                rule=self._refused.rule,
                path=self._refused.path,
                detail=f"{self._refused.detail}, and no checkpoint is there that verifies and that"
                f" the log reaches back to: it begins at lsn {self._segments[0].base_lsn}",
                advice="restore a backup",
            )
        manifest = Manifest(
            uuid=uuid,
            count=1,
            term_floor=max(term, *(term for _, term in whole)) if whole else term,
            oldest_seq=oldest_seq,
            oldest_lsn=oldest_lsn,
            wall_ms=self._wall_ms,
            checkpoints=tuple(one for one, _ in whole),
        )
        return manifest, max((lsn for lsn in named if lsn is not None), default=0)


def _unless_lost(rule: Rule, read: Callable[[], T]) -> T | None:
    """Return what a file says; None when it is missing, or damaged, which is what the rule says.

    Raises:
        RefusedError: it is another store's, or of a newer format.
    """
    try:
        return read()
    except FileNotFoundError:
        return None
    except RefusedError as refused:
        if refused.rule is not rule:
            raise
        return None
