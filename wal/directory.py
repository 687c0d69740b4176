"""The data directory: LOCK, IDENT, MARK.

First start, so that a crash between any two calls leaves a state that the next first start can tell
from loss: wal/ and MARK are made and durable first, IDENT last. Therefore with an IDENT, MARK and
wal/ must be there; without one, no segment may be.
"""

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from wal import frame
from wal.disk import BTRFS_MAGIC, NETWORK_MAGICS, Disk
from wal.errors import LockedError, RefusedError, Rule
from wal.frame import MARK_SLOT_BYTES, MARK_SLOTS, Mark
from wal.segment import list_segments

IDENT_MAGIC: Final = b"WDIDENT\n"
IDENT_BYTES: Final = 64
IDENT: Final = struct.Struct("<8sII16sq20xI")  # magic, version, min reader, uuid, created, crc
OTHERS_MAY_WRITE: Final = 0o022


@dataclass(frozen=True, slots=True, kw_only=True)
class Ident:
    """Who this store is."""

    uuid: bytes
    version: int
    created_wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkState:
    """What MARK says: its newest slot, and how many slots are damaged (0 or 1)."""

    newest: Mark
    damaged_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """An open data directory. lock_fd is held for the life of the process."""

    path: str
    disk: Disk
    lock_fd: int
    ident: Ident
    mark: MarkState
    copy_on_write: bool

    @property
    def wal_path(self) -> str:
        """The folder of the segments."""
        return f"{self.path}/wal"

    def close(self) -> None:
        """Let the lock go."""
        self.disk.close(self.lock_fd)


def encode_ident(ident: Ident) -> bytes:
    """Return the 64 bytes of IDENT."""
    head = IDENT.pack(
        IDENT_MAGIC, ident.version, frame.FORMAT_READER_MIN, ident.uuid, ident.created_wall_ms, 0
    )[: IDENT_BYTES - 4]
    return head + struct.pack("<I", frame.crc32c(head))


def decode_ident(data: bytes, path: str) -> Ident:
    """Return what IDENT says.

    Raises:
        RefusedError: it is not 64 bytes that verify, or of a newer format.
    """
    if len(data) != IDENT_BYTES or not data.startswith(IDENT_MAGIC):
        raise RefusedError(rule=Rule.IDENT, path=path, detail="not an IDENT file of 64 bytes")
    _, version, reader_min, uuid, created_wall_ms, crc = IDENT.unpack(data)
    if crc != frame.crc32c(data[: IDENT_BYTES - 4]):
        raise RefusedError(rule=Rule.IDENT, path=path, detail="its checksum does not match")
    if reader_min > frame.FORMAT_VERSION:
        raise RefusedError(
            rule=Rule.NEWER_FORMAT,
            path=path,
            detail=f"written in format {version}, this build reads up to {frame.FORMAT_VERSION}",
            advice="use a newer wheeld",
        )
    return Ident(uuid=uuid, version=version, created_wall_ms=created_wall_ms)


def read_file(disk: Disk, path: str, size_max: int) -> bytes:
    """Return the first size_max bytes of a file."""
    fd = disk.open(path)
    try:
        return disk.pread(fd, size_max, 0)
    finally:
        disk.close(fd)


def _write_file(disk: Disk, path: str, data: bytes) -> None:
    fd = disk.open(path, write=True, create=True)
    try:
        disk.pwrite(fd, data, 0)
        disk.datasync(fd)
    finally:
        disk.close(fd)


def decode_marks(data: bytes, path: str, uuid: bytes) -> MarkState:
    """Return what the slots of MARK say.

    Write n goes to slot n mod 8, alone: so with the newest write known, each slot must hold the
    last one that went there, or zeros when none did. One that does not is a torn write, which its
    neighbours and the log make up for; two are no crash.

    Raises:
        RefusedError: no slot verifies, or more than one is wrong, or another store's is there.
    """
    slots = [data[i * MARK_SLOT_BYTES : (i + 1) * MARK_SLOT_BYTES] for i in range(MARK_SLOTS)]
    marks = [frame.decode_mark(slot) for slot in slots]
    newest = max((mark for mark in marks if mark), key=lambda mark: mark.count, default=None)
    if newest is None:
        raise RefusedError(rule=Rule.MARK, path=path, detail="none of its slots verifies")
    if any(mark.uuid != uuid for mark in marks if mark):
        detail = "it belongs to another store than IDENT"
        raise RefusedError(rule=Rule.FOREIGN_UUID, path=path, detail=detail)
    damaged = 0
    for i, (slot, mark) in enumerate(zip(slots, marks, strict=True)):
        count = newest.count - (newest.count - i) % MARK_SLOTS
        if count >= 0:
            damaged += mark is None or mark.count != count
        else:
            damaged += slot != bytes(MARK_SLOT_BYTES)
    if damaged > 1:
        detail = f"{damaged} of its {MARK_SLOTS} slots are not what was written there last"
        raise RefusedError(rule=Rule.MARK, path=path, detail=detail)
    return MarkState(newest=newest, damaged_slots=damaged)


def check_folder(disk: Disk, path: str, *, allow_network_fs: bool) -> bool:
    """Return True when the folder lies on a copy-on-write file system.

    Raises:
        RefusedError: others may write to it, or it lies on a network file system.
    """
    mode = disk.folder_mode(path)
    if mode & OTHERS_MAY_WRITE:
        raise RefusedError(
            rule=Rule.PERMISSIONS,
            path=path,
            detail=f"its mode is {mode:04o}: others than its owner may write",
            advice=f"chmod 0700 {path}",
        )
    magic = disk.fs_magic(path)
    if magic in NETWORK_MAGICS and not allow_network_fs:
        raise RefusedError(
            rule=Rule.NETWORK_FS,
            path=path,
            detail=f"it lies on a network file system ({NETWORK_MAGICS[magic]}), whose locks and "
            "syncs may not hold what they say",
            advice="use a local disk, or allow it with --allow-network-fs",
        )
    return magic == BTRFS_MAGIC


def lock_holder(disk: Disk, path: str) -> int | None:
    """Return the process id in a LOCK file, None when there is none to be read."""
    text = read_file(disk, path, 32).strip()
    return int(text) if text.isdigit() else None


def _was_started(disk: Disk, path: str, names: list[str]) -> bool:
    """Return True when MARK was written by a server, not only by a first start that broke off."""
    if "MARK" not in names:
        return False
    data = read_file(disk, f"{path}/MARK", MARK_SLOT_BYTES * MARK_SLOTS)
    slots = (data[at : at + MARK_SLOT_BYTES] for at in range(0, len(data), MARK_SLOT_BYTES))
    return any(mark.term > 0 for slot in slots if (mark := frame.decode_mark(slot)))


def _make_path(disk: Disk, path: str) -> None:
    """Make a folder and the parents that are missing, each name durable before the next is made."""
    missing: list[str] = []
    while path and not _is_folder(disk, path):
        missing.append(path)
        path = path.rpartition("/")[0]
    for folder in reversed(missing):
        disk.make_folder(folder)
        disk.dirsync(_parent(folder))


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _is_folder(disk: Disk, path: str) -> bool:
    try:
        disk.folder_mode(path)
    except FileNotFoundError:
        return False
    return True


def _create(disk: Disk, path: str, ident: Ident) -> None:
    """Make wal/, MARK and IDENT in an empty data directory, each durable before the next.

    Raises:
        RefusedError: there are segments without an IDENT.
    """
    names = disk.names(path)
    wal_path = f"{path}/wal"
    if "wal" not in names:
        disk.make_folder(wal_path)
    elif list_segments(disk, wal_path).segments or _was_started(disk, path, names):
        detail = "it is missing, and the store was in use"
        raise RefusedError(rule=Rule.IDENT, path=f"{path}/IDENT", detail=detail)
    first = Mark(
        count=0,
        lsn=0,
        seq=0,
        offset=0,
        term=0,
        wall_ms=0,
        frame_crc=0,
        clean=False,
        uuid=ident.uuid,
    )
    slots = frame.encode_mark(first) + bytes(MARK_SLOT_BYTES * (MARK_SLOTS - 1))
    _write_file(disk, f"{path}/MARK", slots)
    disk.dirsync(path)
    _write_file(disk, f"{path}/IDENT.tmp", encode_ident(ident))
    disk.rename(f"{path}/IDENT.tmp", f"{path}/IDENT")
    disk.dirsync(path)


def read_directory(disk: Disk, path: str) -> tuple[Ident, MarkState]:
    """Return what IDENT and MARK say.

    Raises:
        RefusedError: one of them is missing or damaged, or wal/ is missing.
    """
    names = disk.names(path)
    for name, rule in (("IDENT", Rule.IDENT), ("MARK", Rule.MARK), ("wal", Rule.SEGMENT_MISSING)):
        if name not in names:
            raise RefusedError(rule=rule, path=f"{path}/{name}", detail="it is missing")
    ident = decode_ident(read_file(disk, f"{path}/IDENT", IDENT_BYTES + 1), f"{path}/IDENT")
    slots = read_file(disk, f"{path}/MARK", MARK_SLOT_BYTES * MARK_SLOTS)
    return ident, decode_marks(slots, f"{path}/MARK", ident.uuid)


def open_directory(
    disk: Disk, path: str, *, new_uuid: bytes, wall_ms: int, allow_network_fs: bool = False
) -> Directory:
    """Return the data directory, locked; made when it is not there yet.

    Args:
        disk: where it lies.
        path: absolute, without a slash at its end.
        new_uuid: 16 random bytes, used when it is made.
        wall_ms: now, kept in IDENT when it is made.
        allow_network_fs: open it on a network file system too.

    Raises:
        LockedError: another process holds it.
        RefusedError: it is not a directory that may be used.
        OSError: a file call failed.
    """
    _make_path(disk, path)
    copy_on_write = check_folder(disk, path, allow_network_fs=allow_network_fs)
    lock_path = f"{path}/LOCK"
    lock_fd = disk.lock(lock_path)
    if lock_fd is None:
        raise LockedError(path=lock_path, pid=lock_holder(disk, lock_path))
    try:
        if "IDENT" not in disk.names(path):
            ident = Ident(uuid=new_uuid, version=frame.FORMAT_VERSION, created_wall_ms=wall_ms)
            _create(disk, path, ident)
        # What an earlier process made and could not sync before it was killed is visible here, and
        # everything from now on builds on it.
        with suppress(PermissionError):  # a parent that may be passed through, but not read
            disk.dirsync(_parent(path))
        disk.dirsync(path)
        # Before the fresh segment is made: its header proves that all before it was durable.
        disk.dirsync(f"{path}/wal")
        ident, mark = read_directory(disk, path)
    except BaseException:
        disk.close(lock_fd)
        raise
    return Directory(
        path=path,
        disk=disk,
        lock_fd=lock_fd,
        ident=ident,
        mark=mark,
        copy_on_write=copy_on_write,
    )
