"""What ``wheeld wal verify DATA`` finds: each file by itself, and what a start would say.

Read only: nothing is locked, synced or written, so it may run beside a server. It then sees the log
as it is at that moment, a frame in flight included.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from wal import frame
from wal.directory import check_folder, lock_holder, read_directory
from wal.disk import Disk
from wal.errors import RefusedError
from wal.frame import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    NewerFormatError,
    Scan,
    Scanner,
    Stop,
)
from wal.generations import CheckpointDamagedError, CheckpointFile, Generations
from wal.manifest import Checkpoint, Manifest
from wal.reader import READ_BYTES, WORDS, Reader, zero_from
from wal.recover import Ending, Verdict, judge
from wal.segment import SegmentFile, list_segments, parse_checkpoint_name

PROBLEMS_MAX: Final = 20
# A write that a running server is in the middle of can look like damage; it does not for long.
LOOKS_MAX: Final = 3


@dataclass(slots=True, kw_only=True)
class SegmentReport:
    """One segment. ``bytes`` is where its frames end; an lsn of 0 = it holds no records."""

    name: str
    size_bytes: int
    bytes: int = 0
    frames: int = 0
    records: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    problems: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """One checkpoint. ``problem`` is empty for a whole one, and for one that is not in force."""

    name: str
    size_bytes: int
    jobs: int
    start_lsn: int
    end_lsn: int
    in_force: bool
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it. ``refused`` is why a start would be refused; then there is no verdict.

    ``checkpoint_lsn`` and ``needed_segments`` say what a start would read; lsn 0 = no checkpoint.
    ``spare_problem`` is why it could not fall back to the generation before, were the newest
    checkpoint lost; empty = it could, or there is none.
    """

    path: str
    checkpoints: tuple[CheckpointReport, ...]
    checkpoint_lsn: int
    needed_segments: int
    segments: tuple[SegmentReport, ...]
    other_files: tuple[str, ...]
    running_pid: int | None
    running: bool
    marked_lsn: int
    verdict: Verdict | None
    refused: RefusedError | None
    spare_problem: str = ""

    @property
    def damaged(self) -> bool:
        """True when a start is refused or falls back to an older checkpoint, or could not."""
        damaged = any(one.problem for one in self.checkpoints)
        return self.refused is not None or damaged or bool(self.spare_problem)

    @property
    def records(self) -> int:
        """Records in all segments, also behind damage."""
        return sum(segment.records for segment in self.segments)


def verify(disk: Disk, path: str) -> Report:
    """Return what is in a data directory.

    Args:
        disk: where it lies.
        path: the data directory.

    Raises:
        OSError: a file call failed.
    """
    path = path.rstrip("/")
    for _ in range(1, LOOKS_MAX):
        with suppress(FileNotFoundError):  # a server has deleted what it needs no more
            report = _look(disk, path)
            if not report.damaged or not report.running:
                return report
    return _look(disk, path)


def _look(disk: Disk, path: str) -> Report:
    running = disk.locked(f"{path}/LOCK")
    segments: list[SegmentReport] = []
    checkpoints: tuple[CheckpointReport, ...] = ()
    checkpoint_lsn = needed_segments = 0
    other: tuple[str, ...] = ()
    marked_lsn = 0
    verdict = refused = None
    spare_problem = ""
    try:
        check_folder(disk, path, allow_network_fs=True)
        facts = read_directory(disk, path)
        ident, mark = facts.ident, facts.mark
        marked_lsn = mark.newest.lsn
        listing = list_segments(disk, f"{path}/wal")
        other = listing.other
        segments = [_survey(disk, file) for file in listing.segments]
        checkpoints = tuple(_checkpoints(disk, f"{path}/snap", facts.manifest))
        generations = Generations(disk, f"{path}/snap", facts.manifest, listing.segments)
        for _ in generations.choose():
            pass
        needed_segments = len(generations.segments)
        checkpoint_lsn = generations.chosen.start_lsn if generations.chosen else 0
        reader = Reader(disk, generations.segments, uuid=ident.uuid, settle=False)
        for _ in reader.chunks():
            pass
        spare_problem = _spare_problem(disk, path, facts.manifest, generations, listing.segments)
        verdict, _ = judge(
            reader,
            mark.newest,
            damaged_mark_slots=mark.damaged_slots,
            durable_lsn=facts.manifest.end_lsn,
        )
    except RefusedError as error:
        refused = error
    return Report(
        path=path,
        checkpoints=checkpoints,
        checkpoint_lsn=checkpoint_lsn,
        needed_segments=needed_segments,
        segments=tuple(segments),
        other_files=other,
        running_pid=lock_holder(disk, f"{path}/LOCK") if running else None,
        running=running,
        marked_lsn=marked_lsn,
        verdict=verdict,
        refused=refused,
        spare_problem=spare_problem,
    )


def _spare_problem(
    disk: Disk,
    path: str,
    manifest: Manifest,
    chosen: Generations,
    segments: tuple[SegmentFile, ...],
) -> str:
    """Return why the generation before the chosen one is no use; empty: it is, or there is none.

    No start looks at what only that one needs, until it is needed. Its part of the log is read
    here, up to the first segment that the chosen one needs too.
    """
    if chosen.chosen is None:
        return ""
    newest = chosen.chosen.start_lsn
    older = tuple(one for one in manifest.checkpoints if one.start_lsn < newest)
    if not older and manifest.oldest_lsn > 1:
        return ""
    spare = Generations(disk, f"{path}/snap", replace(manifest, checkpoints=older), segments)
    try:
        for _ in spare.choose():
            pass
        first = chosen.segments[:1]
        before = [one for one in spare.segments if one not in chosen.segments]
        reader = Reader(disk, (*before, *first), uuid=manifest.uuid, settle=False)
        for _ in reader.chunks():
            pass
    except RefusedError as refused:
        return f"{refused.path}: {refused.detail}"
    damage = reader.damage
    if damage is None or damage.index == len(before):
        return ""  # the verdict tells of damage in what the chosen one needs
    return f"{before[damage.index].path} at offset {damage.offset}: {damage.detail}"


def _checkpoints(disk: Disk, folder: str, manifest: Manifest) -> Iterator[CheckpointReport]:
    """Yield what each checkpoint is: those in force, verified, and others that lie there."""
    for named in manifest.checkpoints:
        yield _checkpoint(disk, folder, named, manifest.uuid)
    in_force = {named.start_lsn for named in manifest.checkpoints}
    for name in sorted(disk.names(folder)):
        start_lsn = parse_checkpoint_name(name)
        if start_lsn is not None and start_lsn not in in_force:
            yield CheckpointReport(
                name=name,
                size_bytes=_size(disk, f"{folder}/{name}"),
                jobs=0,
                start_lsn=start_lsn,
                end_lsn=0,
                in_force=False,
            )


def _checkpoint(disk: Disk, folder: str, named: Checkpoint, uuid: bytes) -> CheckpointReport:
    """Return what one checkpoint in force is, read to its end."""
    report = CheckpointReport(
        name=named.name,
        size_bytes=named.size_bytes,
        jobs=named.rows,
        start_lsn=named.start_lsn,
        end_lsn=named.end_lsn,
        in_force=True,
    )
    try:
        for _ in CheckpointFile(disk, f"{folder}/{named.name}", named, uuid).pieces():
            pass
    except CheckpointDamagedError as damage:
        return replace(report, problem=f"{damage.detail} (offset {damage.offset})")
    return report


def _size(disk: Disk, path: str) -> int:
    fd = disk.open(path)
    try:
        return disk.size(fd)
    finally:
        disk.close(fd)


def _survey(disk: Disk, file: SegmentFile) -> SegmentReport:
    """Return what one segment holds, going on behind damage where a frame verifies again."""
    fd = disk.open(file.path)
    try:
        report = SegmentReport(name=file.name, size_bytes=disk.size(fd))
        try:
            header = frame.decode_segment(disk.pread(fd, SEGMENT_HEADER_BYTES, 0))
        except NewerFormatError as error:
            report.problems.append(str(error))
            return report
        if header is None:
            report.problems.append("header block damaged")
            return report
        if (header.seq, header.base_lsn) != (file.seq, file.base_lsn):
            report.problems.append(
                f"named as another segment: its header says {header.seq:016x}-"
                f"{header.base_lsn:016x}"
            )
        scanner = Scanner(next_lsn=header.base_lsn, prev_crc=header.prev_crc, salt=header.salt)
        _survey_frames(disk, fd, scanner, header.salt, report)
        return report
    finally:
        disk.close(fd)


def _survey_frames(disk: Disk, fd: int, scanner: Scanner, salt: int, report: SegmentReport) -> None:
    offset = SEGMENT_HEADER_BYTES
    while True:
        offset, scan = _run(disk, fd, scanner, offset, report)
        if scan.stop is Stop.END or (scan.stop is Stop.ZERO and zero_from(disk, fd, offset)):
            return
        report.problems.append(f"{WORDS[scan.stop]} at offset {offset} (lsn {scan.next_lsn})")
        behind = _next_header(disk, fd, offset + 8, salt)
        if behind is None or len(report.problems) >= PROBLEMS_MAX:
            return
        offset, found = behind
        scanner = Scanner(next_lsn=found.header.first_lsn, prev_crc=found.prev_crc, salt=salt)


def _run(
    disk: Disk, fd: int, scanner: Scanner, offset: int, report: SegmentReport
) -> tuple[int, Scan]:
    """Scan from a frame's border until the scan stops; return where, and its last buffer's."""
    size_bytes = READ_BYTES
    while True:
        room = max(report.size_bytes - offset, 0)
        data = disk.pread(fd, min(size_bytes, room), offset)
        room = room if len(data) == min(size_bytes, room) else len(data)
        scan = scanner.feed(data, room=room)
        offset += scan.bytes
        if scan.frames:
            report.last_lsn = scan.next_lsn - 1
            report.first_lsn = report.first_lsn or scan.next_lsn - scan.records
            report.frames += scan.frames
            report.records += scan.records
            report.bytes = offset
        if scan.stop is not Stop.MORE:
            return offset, scan
        size_bytes = max(READ_BYTES, scan.need_bytes)


def _next_header(disk: Disk, fd: int, offset: int, salt: int) -> tuple[int, frame.Found] | None:
    """Return (offset, header) of the first frame header from offset on that verifies."""
    while data := disk.pread(fd, READ_BYTES + FRAME_HEADER_BYTES, offset):
        if found := frame.find(data, salt=salt):
            return offset + found.offset, found
        offset += READ_BYTES
    return None


# ---- as text ----


def grouped(number: int) -> str:
    """Return a number with its thousands apart: 8100201 -> '8 100 201'."""
    return f"{number:,}".replace(",", " ")


def as_text(report: Report) -> str:
    """Return the report as the lines that ``wheeld wal verify`` prints."""
    rows: list[tuple[str, ...]] = []
    if report.checkpoints:
        rows.append(("checkpoint", "jobs", "bytes", "lsn range", "result"))
    for one in report.checkpoints:
        result = (one.problem or "ok") if one.in_force else "not in force"
        lsns = f"{grouped(one.start_lsn)}-{grouped(one.end_lsn)}" if one.in_force else "-"
        rows.append((one.name, grouped(one.jobs), grouped(one.size_bytes), lsns, result))
    rows.append(("segment", "records", "bytes", "lsn range", "result"))
    for segment in report.segments:
        lsns = "-"
        if segment.records:
            lsns = f"{grouped(segment.first_lsn)}-{grouped(segment.last_lsn)}"
        result = "; ".join(segment.problems) or "ok"
        rows.append((segment.name, grouped(segment.records), grouped(segment.bytes), lsns, result))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines: list[str] = []
    if report.running:
        pid = "" if report.running_pid is None else f" (pid {report.running_pid})"
        lines.append(f"A server{pid} runs on {report.path}: this is the log at one moment.")
    for name, records, size, lsns, result in rows:
        lines.append(
            f"{name:<{widths[0]}}  {records:>{widths[1]}}  {size:>{widths[2]}}  "
            f"{lsns:<{widths[3]}}  {result}"
        )
    lines += _summary(report)
    return "\n".join(lines) + "\n"


def _summary(report: Report) -> list[str]:
    if report.refused is not None:
        return [f"DAMAGED: a start is refused: {report.refused}"]
    verdict = report.verdict
    if verdict is None:
        return ["Nothing could be read."]
    marked = f"Known durable up to lsn {grouped(report.marked_lsn)}."
    damaged = [one.name for one in report.checkpoints if one.problem]
    if report.spare_problem:
        damaged.append(f"the generation before cannot be fallen back to: {report.spare_problem}")
    found = f"DAMAGED: {', '.join(damaged)}" if damaged else "no damage"
    records = "1 record" if verdict.records == 1 else f"{grouped(verdict.records)} records"
    lines = [f"{records}, {found}. {marked}"]
    if report.checkpoints:
        plural = "" if report.needed_segments == 1 else "s"
        start = (
            f"Checkpoint lsn {grouped(report.checkpoint_lsn)} + {report.needed_segments} segment"
            if report.checkpoint_lsn
            else f"No checkpoint, {report.needed_segments} segment"
        )
        lines.append(f"{start}{plural} restores everything.")
    if verdict.damaged_mark_slots:
        lines.append("1 of 8 slots of MARK is damaged; the others make up for it.")
    place = f"{verdict.path} at offset {grouped(verdict.offset)}"
    if verdict.ending is Ending.TORN:
        lines.append(f"Torn frame in {place} (crash): normal, never confirmed, cut on start.")
    elif verdict.ending is Ending.CUT:
        lines.append(
            f"Unsynced tail in {place}: {grouped(verdict.cut_records)} records that no sync "
            "covered are moved aside on start."
        )
    elif verdict.ending is Ending.EMPTY_HEADER:
        lines.append(f"Unfinished header in {verdict.path} (crash): normal, replaced on start.")
    lines += [f"Set aside earlier: {path}" for path in report.other_files if path.endswith(".cut")]
    return lines
