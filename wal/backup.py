"""A backup: the newest checkpoint and the log behind it, in one file.

The file is a tar archive, so that any machine can look into it: ``MANIFEST`` (which names the one
checkpoint), ``snap/...``, ``wal/...`` (each segment's header block and its frames, without the
zeros behind them), and last ``BACKUP``, a JSON document with the size and crc32c of each member,
and in a second line its own crc32c. There is no IDENT in it, so an unpacked archive cannot be
served by mistake: it has to be restored, which gives it terms and generations that were never
issued (server/restore.py).

Everything is verified while it is copied. It is copied out of a store that nothing is deleted from
meanwhile: a server holds still for it (BACKUP START), or the lock is held.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import IO, Final

from wal import frame
from wal.directory import (
    IDENT_BYTES,
    decode_ident,
    encode_ident,
    read_directory,
    read_file,
    write_ident,
    write_mark,
)
from wal.disk import Disk
from wal.errors import WalError
from wal.frame import SEGMENT_HEADER_BYTES, Mark, Scanner, Stop
from wal.generations import Generations
from wal.manifest import Manifest, encode_manifest, read_manifest, write_manifest
from wal.reader import READ_BYTES, WORDS
from wal.segment import SegmentFile, list_segments, parse_checkpoint_name, parse_name

VERSION: Final = 1
COPY_BYTES: Final = 1 << 20
MEMBERS_MAX: Final = 1 << 20
DOCUMENT_BYTES_MAX: Final = 256 << 20
FILE_MODE: Final = 0o600


class BackupError(WalError):
    """A file is no whole backup; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file in a backup."""

    name: str
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What a backup holds: its ``BACKUP`` document.

    Attributes:
        version: of the archive.
        store: uuid of the store, in hex.
        created_wall_ms: of the store.
        format: version of the store's files.
        taken_wall_ms: when the backup was made.
        lsn: the last record in it.
        wall_ms: time of that record; 0 = the checkpoint is newer than any frame in it.
        term: highest term that the store had issued.
        checkpoint_lsn: where its log begins.
        jobs: in the checkpoint.
        members: the files, in order.
    """

    version: int
    store: str
    created_wall_ms: int
    format: int
    taken_wall_ms: int
    lsn: int
    wall_ms: int
    term: int
    checkpoint_lsn: int
    jobs: int
    members: tuple[Member, ...]


class _Out(io.RawIOBase):
    """What the archive is written to: one file, front to back."""

    def __init__(self, disk: Disk, fd: int) -> None:
        super().__init__()
        self._disk, self._fd, self.offset = disk, fd, 0

    def writable(self) -> bool:
        return True

    def write(self, data: frame.Bytes, /) -> int:  # type: ignore[override]
        self._disk.pwrite(self._fd, data, self.offset)
        self.offset += len(data)
        return len(data)


class _In(io.RawIOBase):
    """A part of a file, to be read from front to back, with the checksum of what was read."""

    def __init__(self, disk: Disk, fd: int, *, offset: int, end: int) -> None:
        super().__init__()
        self._disk, self._fd, self.offset, self._end = disk, fd, offset, end
        self.crc = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        left = self._end - self.offset
        data = self._disk.pread(self._fd, left if size < 0 else min(size, left), self.offset)
        self.offset += len(data)
        self.crc = frame.crc32c(data, self.crc)
        return data


class _Writer:
    """Adds members to an archive, and notes them."""

    def __init__(self, disk: Disk, out: _Out, wall_ms: int) -> None:
        self._disk = disk
        self._tar = tarfile.open(fileobj=out, mode="w|", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        self._mtime = wall_ms // 1000
        self.members: list[Member] = []

    def bytes(self, name: str, data: bytes) -> None:
        """Add data as a member."""
        self._tar.addfile(self._info(name, len(data)), io.BytesIO(data))
        self.members.append(Member(name=name, size_bytes=len(data), crc32c=frame.crc32c(data)))

    def file(self, name: str, path: str, size_bytes: int) -> None:
        """Add the first size_bytes of a file as a member.

        Raises:
            BackupError: the file got shorter meanwhile.
            OSError: a file call failed.
        """
        fd = self._disk.open(path)
        try:
            source = _In(self._disk, fd, offset=0, end=size_bytes)
            self._tar.addfile(self._info(name, size_bytes), source)
        finally:
            self._disk.close(fd)
        if source.offset != size_bytes:
            raise BackupError(f"{path} got shorter while it was copied")
        self.members.append(Member(name=name, size_bytes=size_bytes, crc32c=source.crc))

    def _info(self, name: str, size_bytes: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size_bytes, FILE_MODE, self._mtime
        return info

    def close(self) -> None:
        """Write the end of the archive."""
        self._tar.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extent:
    """How much of a segment goes into the backup; whole = the next one may follow."""

    file: SegmentFile
    end: int
    last_lsn: int
    last_crc: int
    wall_ms: int
    term: int
    whole: bool


def write_backup(
    disk: Disk, data: str, target: str, *, wall_ms: int, durable_lsn: int | None = None
) -> Backup:
    """Copy the store in a data directory into the file target, verified, and make it durable.

    Args:
        disk: where both lie.
        data: the data directory, of which nothing is deleted meanwhile.
        target: the file; it must not be there yet.
        wall_ms: now.
        durable_lsn: copy no record behind this one; None = all there are (nobody writes).

    Raises:
        RefusedError: the store is damaged.
        BackupError: target is there already, or the log is damaged.
        OSError: a file call failed; target is not there.
    """
    folder, _, name = target.rpartition("/")
    if name in disk.names(folder or "/"):
        raise BackupError(f"{target} is there already")
    temporary = f"{target}.tmp"
    fd = disk.open(temporary, write=True, create=True)
    try:
        disk.truncate(fd, 0)
        backup = _write(disk, data, _Out(disk, fd), wall_ms=wall_ms, durable_lsn=durable_lsn)
        disk.datasync(fd)
    except BaseException:
        disk.unlink(temporary)
        raise
    finally:
        disk.close(fd)
    disk.rename(temporary, target)
    disk.dirsync(folder or "/")
    return backup


def _write(disk: Disk, data: str, out: _Out, *, wall_ms: int, durable_lsn: int | None) -> Backup:
    facts = read_directory(disk, data)
    segments = list_segments(disk, f"{data}/wal").segments
    generations = Generations(disk, f"{data}/snap", facts.manifest, segments)
    for _ in generations.choose():
        pass
    chosen = generations.chosen
    extents = list(_extents(disk, generations.segments, facts.ident.uuid, durable_lsn))
    last_lsn = extents[-1].last_lsn if extents else 0
    if chosen and last_lsn < chosen.end_lsn:
        raise BackupError(
            f"the log ends at lsn {last_lsn}, and the checkpoint needs it up to {chosen.end_lsn}"
        )
    manifest = Manifest(
        uuid=facts.ident.uuid,
        count=0,
        oldest_seq=chosen.seq if chosen else facts.manifest.oldest_seq,
        oldest_lsn=chosen.start_lsn + 1 if chosen else 1,
        wall_ms=wall_ms,
        checkpoints=(chosen,) if chosen else (),
    )
    writer = _Writer(disk, out, wall_ms)
    writer.bytes("IDENT.backup", encode_ident(facts.ident))
    writer.bytes("MANIFEST", encode_manifest(manifest))
    if chosen:
        writer.file(f"snap/{chosen.name}", f"{data}/snap/{chosen.name}", chosen.size_bytes)
    for extent in extents:
        writer.file(f"wal/{extent.file.name}", extent.file.path, extent.end)
    header = generations.header
    backup = Backup(
        version=VERSION,
        store=facts.ident.uuid.hex(),
        created_wall_ms=facts.ident.created_wall_ms,
        format=facts.ident.version,
        taken_wall_ms=wall_ms,
        lsn=last_lsn,
        wall_ms=max((extent.wall_ms for extent in extents), default=0),
        term=max(
            facts.mark.newest.term,
            facts.manifest.term_floor,
            header.term if header else 0,
            *(extent.term for extent in extents),
        ),
        checkpoint_lsn=chosen.start_lsn if chosen else 0,
        jobs=chosen.rows if chosen else 0,
        members=tuple(writer.members),
    )
    document = json.dumps(asdict(backup)).encode()
    writer.bytes("BACKUP", document + b"\n%08x" % frame.crc32c(document))
    writer.close()
    return backup


def _extents(
    disk: Disk, segments: tuple[SegmentFile, ...], uuid: bytes, durable_lsn: int | None
) -> Iterator[_Extent]:
    """Yield how much of each segment to copy, every frame verified.

    Raises:
        BackupError: the log is damaged before its end.
    """
    next_lsn = prev_crc = 0
    for i, file in enumerate(segments):
        fd = disk.open(file.path)
        try:
            header = frame.decode_segment(disk.pread(fd, SEGMENT_HEADER_BYTES, 0))
            if header is None or header.uuid != uuid:
                raise BackupError(f"{file.path} has no header block of this store")
            if i and (header.base_lsn, header.prev_crc) != (next_lsn, prev_crc):
                raise BackupError(f"{file.path} does not follow the segment before it")
            extent = _extent(disk, fd, file, header, durable_lsn)
        finally:
            disk.close(fd)
        next_lsn, prev_crc = extent.last_lsn + 1, extent.last_crc
        yield extent
        if not extent.whole:
            return


def _extent(
    disk: Disk, fd: int, file: SegmentFile, header: frame.SegmentHeader, durable_lsn: int | None
) -> _Extent:
    """Return how much of one segment to copy.

    A frame that a server is in the middle of writing stands behind durable_lsn, and may look like
    anything.
    """
    scanner = Scanner(next_lsn=header.base_lsn, prev_crc=header.prev_crc, salt=header.salt)
    size, at, want = disk.size(fd), SEGMENT_HEADER_BYTES, READ_BYTES
    last_lsn, prev_crc, wall_ms = header.base_lsn - 1, header.prev_crc, 0
    limit = durable_lsn if durable_lsn is not None else 1 << 64
    while last_lsn < limit:
        room = size - at
        data = disk.pread(fd, min(want, room), at)
        scan = scanner.feed(data, room=room)
        if scan.next_lsn - 1 > limit:
            at += _cut(memoryview(data)[: scan.bytes], limit)
            last_lsn, wall_ms = limit, scan.wall_ms
            break
        at += scan.bytes
        if scan.frames:
            last_lsn, prev_crc, wall_ms = scan.next_lsn - 1, scan.prev_crc, scan.wall_ms
        if scan.stop in (Stop.END, Stop.ZERO) or last_lsn >= limit:
            break
        if scan.stop is not Stop.MORE:
            where = f"{file.path} at offset {at} (lsn {last_lsn + 1})"
            raise BackupError(f"{where}: {WORDS[scan.stop]}")
        want = max(READ_BYTES, scan.need_bytes)
    return _Extent(
        file=file,
        end=at,
        last_lsn=last_lsn,
        last_crc=prev_crc,
        wall_ms=wall_ms,
        term=header.term,
        whole=last_lsn < limit,
    )


def _cut(data: memoryview, last_lsn: int) -> int:
    """Return the length of the whole frames at the front of data that end by last_lsn."""
    kept = 0
    for one in frame.split_frames(data, 1):
        found = frame.find(one, salt=None)
        if found is None or found.header.last_lsn > last_lsn:
            break
        kept += len(one)
    return kept


# ---- reading one ----


def read_backup(disk: Disk, path: str) -> Backup:
    """Return what a backup holds, every byte of it verified.

    Raises:
        BackupError: it is none, cut short, or damaged.
        OSError: a file call failed.
    """
    return _unpack(disk, path, None)


def unpack_backup(disk: Disk, path: str, target: str) -> Backup:
    """Write a backup's checkpoint, MANIFEST and segments into a folder, verified and durable.

    Args:
        disk: where both lie.
        path: the backup.
        target: an empty folder. Without IDENT and MARK it is no store yet.

    Raises:
        BackupError: it is none, cut short, or damaged; what was written so far stays in target.
        OSError: a file call failed.
    """
    names = disk.names(target)
    for folder in ("wal", "snap"):
        if folder not in names:
            disk.make_folder(f"{target}/{folder}")
    backup = _unpack(disk, path, target)
    for folder in ("wal", "snap", ""):
        disk.dirsync(f"{target}/{folder}".rstrip("/"))
    return backup


def _unpack(disk: Disk, path: str, target: str | None) -> Backup:
    fd = disk.open(path)
    try:
        source = _In(disk, fd, offset=0, end=disk.size(fd))
        with tarfile.open(fileobj=source, mode="r|") as tar:
            return _members(disk, tar, path, target)
    except tarfile.TarError as error:
        raise BackupError(f"{path} is no whole backup: {error}") from error
    finally:
        disk.close(fd)


def _members(disk: Disk, tar: tarfile.TarFile, path: str, target: str | None) -> Backup:
    """Read all members, and compare them with what the last of them says."""
    found: list[Member] = []
    for info in tar:
        name = info.name
        stream = tar.extractfile(info) if info.isreg() else None
        if stream is None or len(found) >= MEMBERS_MAX:
            raise BackupError(f"{path}: {name!r} is no file of a backup")
        if name == "BACKUP":
            if info.size > DOCUMENT_BYTES_MAX:
                raise BackupError(f"{path}: its BACKUP has {info.size} bytes")
            return _compared(stream.read(), found, path)
        if not _is_known(name):
            raise BackupError(f"{path}: {name!r} is no file of a backup")
        found.append(_copy_out(disk, stream, name, f"{target}/{name}" if target else None))
    raise BackupError(f"{path} is cut short: its last member, BACKUP, is missing")


def _is_known(name: str) -> bool:
    """Return True for the name of a file that a backup may hold; nothing else is ever written."""
    folder, _, rest = name.rpartition("/")
    if folder == "wal":
        return parse_name(rest) is not None
    if folder == "snap":
        return parse_checkpoint_name(rest) is not None
    return name in ("IDENT.backup", "MANIFEST")


def _copy_out(disk: Disk, stream: IO[bytes], name: str, path: str | None) -> Member:
    """Return a member with its checksum; write it to path when there is one."""
    crc = done = 0
    fd = disk.open(path, write=True, create=True) if path else -1
    try:
        while data := stream.read(COPY_BYTES):
            crc = frame.crc32c(data, crc)
            if path:
                disk.pwrite(fd, data, done)
            done += len(data)
        if path:
            disk.datasync(fd)
    finally:
        if path:
            disk.close(fd)
    return Member(name=name, size_bytes=done, crc32c=crc)


def _compared(document: bytes, found: list[Member], path: str) -> Backup:
    """Return what BACKUP says, when the members are those that it names."""
    document, _, crc = document.rpartition(b"\n")
    if crc != b"%08x" % frame.crc32c(document):
        raise BackupError(f"{path} is damaged: the checksum of its BACKUP does not match")
    try:
        fields = json.loads(document)
        members = tuple(Member(**member) for member in fields.pop("members"))
        backup = Backup(members=members, **fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BackupError(f"{path}: its BACKUP cannot be read: {error}") from error
    if backup.version != VERSION:
        raise BackupError(
            f"{path} is a backup of version {backup.version}, this build reads {VERSION}:"
            " use a newer wheeld"
        )
    for said, is_there in zip_longest(members, found):
        if said != is_there:
            name = said.name if said else is_there.name if is_there else ""
            raise BackupError(f"{path} is damaged: {name} is not what was written")
    return backup


def adopt(disk: Disk, target: str, backup: Backup, *, term_floor: int, wall_ms: int) -> None:
    """Make a store of an unpacked backup: under its own name, its terms above term_floor.

    IDENT comes last: until then no server takes the folder for a store.

    Args:
        disk: where it lies.
        target: the folder.
        backup: what was unpacked there.
        term_floor: no term up to this one is issued any more.
        wall_ms: now.

    Raises:
        RefusedError: MANIFEST or IDENT in it does not verify.
        OSError: a file call failed.
    """
    uuid = bytes.fromhex(backup.store)
    manifest = read_manifest(disk, target, uuid)
    write_manifest(disk, target, replace(manifest, count=1, term_floor=term_floor, wall_ms=wall_ms))
    mark = Mark(
        count=0,
        lsn=backup.lsn,
        seq=0,
        offset=0,
        term=term_floor,
        wall_ms=backup.wall_ms,
        frame_crc=0,
        clean=False,
        uuid=uuid,
    )
    write_mark(disk, target, mark)
    ident = decode_ident(
        read_file(disk, f"{target}/IDENT.backup", IDENT_BYTES + 1), f"{target}/IDENT.backup"
    )
    write_ident(disk, target, ident)
    disk.unlink(f"{target}/IDENT.backup")
    disk.dirsync(target)
