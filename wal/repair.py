"""Repair: give up records from one lsn on, by order, so that a refused store starts again.

Nothing here decides what may be lost. Whoever repairs names the lsn where the log is to end and the
exact number of records that go with it: the number that the files prove to have been there. The
originals stay beside what replaces them, as ``*.broken``.

An IDENT, MARK or MANIFEST that is lost is made anew on the way (wal/rebuild.py). When nothing else
is wrong and MARK is there no lsn is named: a start has to accept the store as it is then, and
nothing is given up. MARK is what misses the end of a log; without it somebody has to say the end.

The order of steps is such that a crash between any two leaves a store that is refused as before, or
that starts with what the repair was to leave; and the repair can be called again. MARK, which keeps
a shortened log from being taken for a whole one, is replaced last.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from wal import frame
from wal.directory import (
    Ident,
    check_folder,
    lock_holder,
    read_directory,
    write_ident,
    write_mark,
)
from wal.disk import Disk
from wal.errors import LockedError, RefusedError, WalError
from wal.frame import Mark
from wal.generations import Generations
from wal.manifest import Manifest, write_manifest
from wal.reader import Chunk, Damage, Reader
from wal.rebuild import Found, read_or_rebuild
from wal.recover import evidence_behind, judge
from wal.segment import SegmentFile, list_segments
from wal.settle import clear_tail

COPY_BYTES: Final = 4 << 20
# As by a restore. Where MARK is lost servers may have run of which nothing is left, and what they
# have given out must not be given out again.
TERMS_RAISED: Final = 1 << 16


class RepairError(WalError):
    """The repair cannot be done as it was asked; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What a repair would do.

    Attributes:
        lsn: the first record that is given up; where the log ends if none is.
        records: how many there were from it on, by everything that the files prove.
        term: the highest that was seen; the next server's is above it.
        clear: segment and offset whose rest is cleared.
        aside: files that are taken out of the store whole.
        anew: names of IDENT, MARK and MANIFEST that are lost and made anew.
        ident: what IDENT is to be, None = as it is.
        manifest: what MANIFEST is to be, None = as it is.
        ends: MARK is to say that the log ends before lsn; else it stays.
        uuid: of the store.
    """

    lsn: int
    records: int
    term: int
    clear: tuple[str, int] | None = None
    aside: tuple[str, ...] = ()
    anew: tuple[str, ...]
    ident: Ident | None
    manifest: Manifest | None
    ends: bool
    uuid: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """How far the log can be read: the frame borders around an lsn.

    Attributes:
        reader: has read to the end, or to the first damage.
        index: segment of the border.
        offset: of the border in it.
        lsn: of the record behind it.
    """

    reader: Reader
    index: int
    offset: int
    lsn: int


def plan_repair(disk: Disk, path: str, lsn: int | None, *, wall_ms: int) -> RepairPlan:
    """Return what giving up the records from lsn on comes to. Reads only.

    Args:
        disk: where it lies.
        path: the data directory.
        lsn: the first record to give up, the first of a frame; None = none, make anew what is lost.
        wall_ms: now.

    Raises:
        RepairError: lsn is no place where this log can end, or it has to be said.
        RefusedError: the store is damaged in a way that this does not mend.
        OSError: a file call failed.
    """
    check_folder(disk, path, allow_network_fs=True)
    found = read_or_rebuild(disk, path, wall_ms=wall_ms)
    if lsn is None:
        return _plan_anew(disk, path, found)
    facts = found.facts
    segments = list_segments(disk, f"{path}/wal").segments
    manifest = _without_younger(facts.manifest, lsn, wall_ms)
    generations = Generations(disk, f"{path}/snap", manifest, segments)
    for _ in generations.choose():
        pass
    needed = generations.segments
    place = _find(disk, needed, facts.ident.uuid, lsn)
    damage = Damage(index=place.index, offset=place.offset, lsn=lsn, detail="")
    evidence = evidence_behind(
        place.reader, facts.mark.newest, damage, durable_lsn=found.durable_lsn
    )
    whole = place.offset > 0
    later = needed[place.index + whole :]
    dropped = set(facts.manifest.checkpoints) - set(manifest.checkpoints)
    dropped |= {one.checkpoint for one in generations.fallen}
    kept = tuple(one for one in manifest.checkpoints if one not in dropped)
    changed = kept != facts.manifest.checkpoints or "MANIFEST" in found.lost
    return RepairPlan(
        lsn=lsn,
        records=evidence.highest_lsn - lsn + 1,
        term=max(evidence.term, place.reader.term, found.term)
        + ("MARK" in found.lost and TERMS_RAISED),
        clear=(needed[place.index].path, place.offset) if whole else None,
        aside=(
            *(f"{path}/snap/{one.name}" for one in dropped),
            *(one.path for one in reversed(later)),
        ),
        anew=found.lost,
        ident=facts.ident if "IDENT" in found.lost else None,
        manifest=replace(manifest, checkpoints=kept) if changed else None,
        ends=True,
        uuid=facts.ident.uuid,
    )


def _plan_anew(disk: Disk, path: str, found: Found) -> RepairPlan:
    """Return what making anew what is lost comes to: nothing is given up.

    Raises:
        RepairError: nothing is lost, or MARK is.
        RefusedError: a start would not accept the store as it is then.
    """
    if not found.lost:
        raise RepairError(
            "IDENT, MARK and MANIFEST are whole: say where the log is to end, --truncate-at LSN"
        )
    facts = found.facts
    segments = list_segments(disk, f"{path}/wal").segments
    generations = Generations(disk, f"{path}/snap", facts.manifest, segments)
    for _ in generations.choose():
        pass
    reader = Reader(disk, generations.segments, uuid=facts.ident.uuid, settle=False)
    for _ in reader.chunks():
        pass
    if "MARK" in found.lost:
        raise RepairError(
            "MARK is lost, and nothing else tells whether the log went further than it can be read:"
            f" that is up to lsn {reader.next_lsn - 1}; if that is where it ended, say so:"
            f" --truncate-at {reader.next_lsn}"
        )
    verdict, _ = judge(
        reader,
        facts.mark.newest,
        damaged_mark_slots=facts.mark.damaged_slots,
        durable_lsn=found.durable_lsn,
        term_floor=found.term,
    )
    return RepairPlan(
        lsn=verdict.next_lsn,
        records=0,
        term=verdict.term - 1,
        anew=found.lost,
        ident=facts.ident if "IDENT" in found.lost else None,
        manifest=facts.manifest if "MANIFEST" in found.lost else None,
        ends=False,
        uuid=facts.ident.uuid,
    )


def _without_younger(manifest: Manifest, lsn: int, wall_ms: int) -> Manifest:
    """Return MANIFEST without the checkpoints that need the log at lsn or behind it.

    Raises:
        RepairError: none is left, and the log does not begin with record 1.
    """
    kept = tuple(one for one in manifest.checkpoints if one.end_lsn < lsn)
    if kept == manifest.checkpoints:
        return manifest
    if not kept and manifest.oldest_lsn > 1:
        first = min(one.end_lsn for one in manifest.checkpoints) + 1
        raise RepairError(f"no checkpoint is older than lsn {lsn}: the lowest end is lsn {first}")
    return replace(manifest, count=manifest.count + 1, wall_ms=wall_ms, checkpoints=kept)


def _chunks(reader: Reader) -> Iterator[Chunk]:
    """Yield what can be read; a contradiction between segments is an end like any other damage."""
    try:
        yield from reader.chunks()
    except RefusedError:
        return


def _find(disk: Disk, needed: tuple[SegmentFile, ...], uuid: bytes, lsn: int) -> Readable:
    """Return the frame border at lsn.

    Raises:
        RepairError: there is none.
    """
    reader = Reader(disk, needed, uuid=uuid, settle=False)
    place = border = None
    for chunk in _chunks(reader):
        index = len(reader.entered) - 1
        if place is None and chunk.first_lsn <= lsn <= chunk.last_lsn:
            offset, border = _border(chunk, lsn)
            place = (index, offset)
    if border not in (None, lsn):
        raise RepairError(f"lsn {lsn} lies inside a frame, which is one whole: say {border}")
    if place is None and lsn == reader.next_lsn and reader.entered:
        place = (len(reader.entered) - 1, reader.entered[-1].end)
    if place is None:
        raise RepairError(
            f"the log can be read up to lsn {reader.next_lsn - 1}: the highest lsn that it can be"
            f" truncated at is {reader.next_lsn}, and {lsn} was asked for"
        )
    return Readable(reader=reader, index=place[0], offset=place[1], lsn=lsn)


def _border(chunk: Chunk, lsn: int) -> tuple[int, int]:
    """Return offset and first lsn of the frame in a chunk that holds lsn."""
    offset = chunk.offset
    for one in frame.split_frames(chunk.data, 1):
        found = frame.find(one, salt=None)
        if found is not None and found.header.last_lsn >= lsn:
            return offset, found.header.first_lsn
        offset += len(one)
    raise RepairError(f"lsn {lsn} is not where its chunk says")


def repair(
    disk: Disk, path: str, lsn: int | None, *, accepted_records: int, wall_ms: int
) -> RepairPlan:
    """Make the log end before lsn, and return what was done.

    Args:
        disk: where it lies.
        path: the data directory; no server runs on it.
        lsn: the first record to give up; None = none, make anew what is lost.
        accepted_records: how many go with it; must be the number exactly.
        wall_ms: now.

    Raises:
        LockedError: a server runs on it.
        RepairError: it cannot be done so, or it is another number; nothing was changed.
        RefusedError: the store is damaged in a way that this does not mend.
        OSError: a file call failed; call it again.
    """
    path = path.rstrip("/")
    if not {"wal", "snap"} <= {*disk.names(path)}:
        read_directory(disk, path)  # refuses, before LOCK is made in a folder that is no store
    lock_path = f"{path}/LOCK"
    lock_fd = disk.lock(lock_path)
    if lock_fd is None:
        raise LockedError(path=lock_path, pid=lock_holder(disk, lock_path))
    try:
        plan = plan_repair(disk, path, lsn, wall_ms=wall_ms)
        if plan.records != accepted_records:
            raise RepairError(
                f"ending the log before lsn {plan.lsn} loses {plan.records} records,"
                f" not {accepted_records}"
            )
        _carry_out(disk, path, plan, wall_ms)
    finally:
        disk.close(lock_fd)
    return plan


def _carry_out(disk: Disk, path: str, plan: RepairPlan, wall_ms: int) -> None:
    if plan.ends:
        _keep(disk, f"{path}/MARK")
    if plan.clear is not None:
        _keep(disk, plan.clear[0])
    if plan.manifest is not None:
        _keep(disk, f"{path}/MANIFEST")
        write_manifest(disk, path, plan.manifest)
    if plan.ident is not None:
        _keep(disk, f"{path}/IDENT")
        write_ident(disk, path, plan.ident)
    if plan.ends:
        _end_log(disk, path, plan, wall_ms)


def _end_log(disk: Disk, path: str, plan: RepairPlan, wall_ms: int) -> None:
    if plan.clear is not None:
        clear_tail(disk, *plan.clear)
    for one in plan.aside:
        folder, _, name = one.rpartition("/")
        if name in disk.names(folder):
            disk.rename(one, _free_name(disk, one))
    disk.dirsync(f"{path}/snap")
    disk.dirsync(f"{path}/wal")
    mark = Mark(
        count=0,
        lsn=plan.lsn - 1,
        seq=0,
        offset=0,
        term=plan.term,
        wall_ms=wall_ms,
        frame_crc=0,
        clean=False,
        uuid=plan.uuid,
    )
    write_mark(disk, path, mark)


def _free_name(disk: Disk, path: str) -> str:
    """Return <path>.broken, or <path>.<n>.broken with the first n that no file has."""
    folder, _, name = path.rpartition("/")
    taken = frozenset(disk.names(folder))
    target, n = f"{name}.broken", 1
    while target in taken:
        n += 1
        target = f"{name}.{n}.broken"
    return f"{folder}/{target}"


def _keep(disk: Disk, path: str) -> None:
    """Copy a file to its *.broken name, whole and durable; nothing, when it is not there."""
    folder, _, name = path.rpartition("/")
    if name not in disk.names(folder):
        return
    target = _free_name(disk, path)
    temporary = f"{path}.broken.tmp"
    source, copy = disk.open(path), disk.open(temporary, write=True, create=True)
    try:
        disk.truncate(copy, 0)
        offset = 0
        while data := disk.pread(source, COPY_BYTES, offset):
            disk.pwrite(copy, data, offset)
            offset += len(data)
        disk.datasync(copy)
    finally:
        disk.close(copy)
        disk.close(source)
    disk.rename(temporary, target)
    disk.dirsync(folder)
