"""What a start makes of the log it finds: read, judge, and carry the judgement out.

The question at the first byte after the last good frame (E) is whether what lies there was ever
confirmed. Frames and segments are written so that this can be answered from the disk alone:

*  mode always keeps one frame in flight, so any later frame proves the one at E was synced;
*  every frame and every segment header says how far syncs had come when it was written;
*  MARK, another file with its own syncs, says so once more, for the tail that vanished whole.

So either E is the clean end; or what lies behind E was provably not confirmed: it is cleared (mode
always: one torn frame) or moved aside, counted and reported (modes interval and off); or the start
is refused and nothing is changed. FORMAT.md has the table; the rules are named in :class:`Rule`.
Telling a crash from corruption by a second, separate record of what was persisted is the point of
"Protocol-Aware Recovery for Consensus-Based Storage" (FAST 2018).
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NoReturn

from wal import frame
from wal.errors import RefusedError, Rule
from wal.frame import (
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    SECTOR_BYTES,
    SEGMENT_HEADER_BYTES,
    FsyncMode,
    Mark,
    NewerFormatError,
    Stop,
)
from wal.reader import READ_BYTES, Damage, Reader, zero_from


class Ending(StrEnum):
    """How the log ended, and what the start does about it."""

    CLEAN = "clean"
    TORN = "torn"
    CUT = "cut"
    EMPTY_HEADER = "empty_header"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What replay found: facts for the log line of a start.

    ``cut_records`` counts up to the highest lsn that was seen behind the cut, which is at
    ``offset`` of ``path``; they lie in ``cut_files`` once the start has moved them.
    """

    ending: Ending
    segments: int
    frames: int
    records: int
    bytes: int
    next_lsn: int
    term: int
    marked_lsn: int
    damaged_mark_slots: int
    after_clean_stop: bool
    detail: str = ""
    path: str = ""
    offset: int = 0
    cut_records: int = 0
    cut_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the start has to do before it opens its segment; all of it may be done twice."""

    next_seq: int
    clear: tuple[str, int] | None = None
    save: bool = False
    move: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What the bytes at and behind the damage prove."""

    durable_lsn: int
    highest_lsn: int
    term: int = 0
    frames: int = 0
    synced_mode: bool = False
    bytes_follow: bool = False


def judge(
    reader: Reader,
    mark: Mark,
    *,
    damaged_mark_slots: int = 0,
    durable_lsn: int = 0,
    term_floor: int = 0,
) -> tuple[Verdict, Plan]:
    """Return the verdict over the log that a reader has read, and what a start has to do.

    Args:
        reader: its chunks() have been taken to the end.
        mark: the newest slot of MARK.
        damaged_mark_slots: a fact for the verdict.
        durable_lsn: known durable by MANIFEST: the highest end lsn of its checkpoints.
        term_floor: the new term is higher than this.

    Raises:
        RefusedError: a start could lose or invent confirmed records.
        OSError: a file call failed.
    """
    if not reader.done:
        raise RuntimeError("the log has not been read to its end")
    verdict = Verdict(
        ending=Ending.CLEAN,
        segments=len(reader.entered),
        frames=sum(into.frames for into in reader.entered),
        records=sum(into.records for into in reader.entered),
        bytes=sum(into.end for into in reader.entered),
        next_lsn=reader.next_lsn,
        term=max(reader.term, mark.term, term_floor) + 1,
        marked_lsn=mark.lsn,
        damaged_mark_slots=damaged_mark_slots,
        after_clean_stop=mark.clean,
    )
    if reader.damage is None:
        _refuse_lost_tail(reader, mark, max(mark.lsn, durable_lsn))
        plan = Plan(next_seq=_next_seq(reader))
    else:
        case = _Case(reader, mark, reader.damage, max(mark.lsn, durable_lsn))
        verdict = replace(verdict, term=max(verdict.term, case.evidence.term + 1))
        verdict, plan = case.judge(verdict)
    _refuse_other_mark(reader, mark)
    if damaged_mark_slots == 0:
        _refuse_old_mark(reader, mark)
    return verdict, plan


def evidence_behind(reader: Reader, mark: Mark, damage: Damage, *, durable_lsn: int) -> Evidence:
    """Return what the bytes at and behind a place in the log prove, for whoever gives them up.

    Args:
        reader: has read up to there at least.
        mark: the newest slot of MARK.
        damage: the place.
        durable_lsn: known durable by MANIFEST.
    """
    case = _Case(reader, mark, damage, max(mark.lsn, durable_lsn))
    case.evidence.highest_lsn = max(case.evidence.highest_lsn, case.evidence.durable_lsn)
    return case.evidence


def _next_seq(reader: Reader) -> int:
    """Return the number for the fresh segment: an empty last one is replaced by it."""
    if not reader.entered:
        return 1
    last = reader.entered[-1]
    return last.file.seq if last.frames == 0 else last.file.seq + 1


def _refuse_lost_tail(reader: Reader, mark: Mark, durable_lsn: int) -> None:
    # A mark of a term above 0 was written by a server, which had opened a segment before.
    if reader.next_lsn > durable_lsn and (reader.entered or mark.term == 0):
        return
    into = reader.entered[-1] if reader.entered else None
    raise RefusedError(
        rule=Rule.LOST_TAIL,
        path=into.file.path if into else "wal",
        offset=into.end if into else None,
        lsn=reader.next_lsn,
        detail=f"the log ends at lsn {reader.next_lsn - 1},"
        f" and lsn {durable_lsn} was known durable",
    )


def _refuse_other_mark(reader: Reader, mark: Mark) -> None:
    """Refuse when the frame that MARK names is another one than the log has there."""
    into = next((e for e in reader.entered if e.file.seq == mark.seq), None)
    if into is None or mark.lsn == 0:
        return
    found = None
    if mark.offset + FRAME_HEADER_BYTES <= into.size_bytes:  # any number may stand there
        fd = reader.disk.open(into.file.path)
        try:
            data = reader.disk.pread(fd, FRAME_HEADER_BYTES, mark.offset)
        finally:
            reader.disk.close(fd)
        found = frame.find(data, salt=into.header.salt)
    if found and (found.header.last_lsn, found.payload_crc) == (mark.lsn, mark.frame_crc):
        return
    raise RefusedError(
        rule=Rule.MARK,
        path=into.file.path,
        offset=mark.offset,
        lsn=mark.lsn,
        detail=f"MARK names the frame of lsn {mark.lsn} there, and another one is found",
    )


def _refuse_old_mark(reader: Reader, mark: Mark) -> None:
    """Refuse a MARK from before the last server: each writes it before its first frame."""
    last = next((into for into in reversed(reader.entered) if into.frames), None)
    if last is None or mark.term >= last.header.term:
        return
    raise RefusedError(
        rule=Rule.MARK,
        path=last.file.path,
        offset=SEGMENT_HEADER_BYTES,
        lsn=last.first_lsn,
        detail=f"frames of term {last.header.term} are there, and MARK is of term {mark.term}",
    )


class _Case:
    """One damaged place, and what the bytes at and behind it prove."""

    __slots__ = ("_damage", "_disk", "_mark", "_path", "_reader", "evidence")

    def __init__(self, reader: Reader, mark: Mark, damage: Damage, durable_lsn: int) -> None:
        self._reader = reader
        self._disk = reader.disk
        self._mark = mark
        self._damage = damage
        self._path = reader.segments[damage.index].path
        self.evidence = Evidence(durable_lsn=durable_lsn, highest_lsn=damage.lsn - 1)
        for index in range(damage.index, len(reader.segments)):
            fd = self._disk.open(reader.segments[index].path)
            try:
                if index > damage.index:
                    self._header_evidence(fd)
                self._frame_evidence(fd, index)
            finally:
                self._disk.close(fd)

    # ---- evidence ----

    def _header_evidence(self, fd: int) -> None:
        """Look at the header of a segment behind the damage."""
        try:
            header = frame.decode_segment(self._disk.pread(fd, SEGMENT_HEADER_BYTES, 0))
        except NewerFormatError:
            return
        if header is None or header.uuid != self._reader.uuid:
            return
        evidence, entered = self.evidence, self._reader.entered
        evidence.term = max(evidence.term, header.term)
        evidence.highest_lsn = max(evidence.highest_lsn, header.base_lsn - 1)
        # A start, and a rotation in mode always, had synced all that came before.
        begun = not entered or header.term > entered[-1].header.term
        if begun or header.fsync_mode == FsyncMode.ALWAYS:
            evidence.durable_lsn = max(evidence.durable_lsn, header.base_lsn - 1)

    def _frame_evidence(self, fd: int, index: int) -> None:
        """Search a segment for frame headers: the frame at the damage, and any behind it."""
        damage = self._damage
        here = index == damage.index
        offset = max(damage.offset, SEGMENT_HEADER_BYTES) if here else SEGMENT_HEADER_BYTES
        salt = self._reader.entered[index].header.salt if here and damage.offset > 0 else None
        while data := self._disk.pread(fd, READ_BYTES + FRAME_HEADER_BYTES, offset):
            zeros = frame.zero_prefix(data)
            self.evidence.bytes_follow |= zeros < len(data)
            start = zeros // 8 * 8
            while found := frame.find(memoryview(data)[start:], salt=salt):
                at = offset + start + found.offset
                self._count(found, behind=not (here and at == damage.offset))
                start += found.offset + 8
            offset += READ_BYTES

    def _count(self, found: frame.Found, *, behind: bool) -> None:
        evidence = self.evidence
        evidence.durable_lsn = max(evidence.durable_lsn, found.header.durable_lsn)
        evidence.highest_lsn = max(evidence.highest_lsn, found.header.last_lsn)
        evidence.synced_mode |= not found.header.flags & frame.FRAME_UNSYNCED
        evidence.frames += behind

    def _unsynced_mode(self) -> bool:
        """Return True when the damaged place was written in mode interval or off.

        The header of the segment before speaks for one whose own does not verify: only a rotation
        in these modes leaves a header unsynced, and the mode stays for a server's life. A frame
        without the UNSYNCED flag speaks against it.
        """
        entered = self._reader.entered
        if not entered or self.evidence.synced_mode:
            return False
        return entered[-1].header.fsync_mode in (FsyncMode.INTERVAL, FsyncMode.OFF)

    # ---- the table of FORMAT.md ----

    def judge(self, verdict: Verdict) -> tuple[Verdict, Plan]:
        """Return the verdict over a log that does not simply end, built on the one of a clean end.

        Raises:
            RefusedError: what is damaged may have been confirmed.
        """
        damage, evidence = self._damage, self.evidence
        own = self._reader.segments[damage.index]
        last = damage.index == len(self._reader.segments) - 1
        verdict = replace(verdict, detail=damage.detail, path=own.path, offset=damage.offset)
        if evidence.durable_lsn >= damage.lsn:
            rule = Rule.SEGMENT_MISSING if damage.gap else Rule.DAMAGED_DURABLE
            self._refuse(rule, f"lsn {evidence.durable_lsn} was known durable")
        unused = damage.offset == 0 and last and not evidence.bytes_follow
        if unused and own.base_lsn == damage.lsn:
            return replace(verdict, ending=Ending.EMPTY_HEADER), Plan(next_seq=own.seq)
        if self._mark.clean:
            self._refuse(Rule.AFTER_CLEAN_STOP, "the server before had stopped in order")
        if self._unsynced_mode():
            return self._cut(verdict)
        if damage.gap:
            self._refuse(Rule.SEGMENT_MISSING, "a later segment follows")
        if not last:
            self._refuse(Rule.DAMAGED_SEALED, "a later segment follows")
        if evidence.frames:
            self._refuse(Rule.FRAME_BEHIND, "a whole frame header follows it")
        if not self._torn_shaped():
            self._refuse(Rule.NOT_TORN, "a crash during one write does not leave that")
        verdict = replace(verdict, ending=Ending.TORN)
        return verdict, Plan(next_seq=_next_seq(self._reader), clear=(own.path, damage.offset))

    def _refuse(self, rule: Rule, why: str) -> NoReturn:
        damage = self._damage
        raise RefusedError(
            rule=rule,
            path=self._path,
            offset=damage.offset,
            lsn=damage.lsn,
            detail=f"{damage.detail}, and {why}",
        )

    def _torn_shaped(self) -> bool:
        """Return True when the damage is what a crash in the middle of one write leaves.

        A sector holds either what was written or the zeros from before. So either a part of the
        header that lies in one sector is zero; or the header is whole, and another sector of the
        frame's extent is zero. Behind the extent nothing was written.
        """
        damage = self._damage
        extent = damage.frame_bytes or FRAME_BYTES_MAX
        fd = self._disk.open(self._path)
        try:
            data = self._disk.pread(fd, extent, damage.offset)
            quiet_behind = zero_from(self._disk, fd, damage.offset + extent)
        finally:
            self._disk.close(fd)
        if damage.stop in (Stop.ZERO, Stop.MAGIC, Stop.HEADER_CRC):
            return quiet_behind and _has_zero_sector(data[:FRAME_HEADER_BYTES], damage.offset)
        if damage.stop is Stop.PAYLOAD_CRC:
            return quiet_behind and _has_zero_sector(data, damage.offset)
        return False

    def _cut(self, verdict: Verdict) -> tuple[Verdict, Plan]:
        """Return the verdict over the unsynced tail of a segment of mode interval or off."""
        damage = self._damage
        own = self._reader.segments[damage.index]
        later = tuple(s.path for s in self._reader.segments[damage.index + 1 :])
        verdict = replace(
            verdict,
            ending=Ending.CUT,
            cut_records=self.evidence.highest_lsn - damage.lsn + 1,
        )
        if damage.offset == 0:  # there is a segment before it, or its mode would not be known
            return verdict, Plan(next_seq=own.seq, move=(own.path, *later))
        next_seq = _next_seq(self._reader)
        if damage.gap:
            return verdict, Plan(next_seq=next_seq, move=later)
        # Not moved whole, even when no frame is left in it: a store that was in use without a
        # segment is taken for a lost one.
        clear = (own.path, damage.offset)
        return verdict, Plan(next_seq=next_seq, clear=clear, save=True, move=later)


def _has_zero_sector(data: bytes, offset: int) -> bool:
    """Return True when the part of data in one of the disk's sectors is all zero.

    Args:
        data: bytes of a file.
        offset: where they stand in it.
    """
    start = 0
    while start < len(data):
        end = start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES
        if not any(data[start:end]):
            return True
        start = end
    return False
