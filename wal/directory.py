"""The data directory: LOCK, IDENT, MARK, MANIFEST.

First start, so that a crash between any two calls leaves a state that the next first start can tell
from loss: wal/, snap/, MARK and MANIFEST are made and durable first, IDENT last. Therefore with an
IDENT they must be there; without one, no segment and no checkpoint may be.
"""

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from wal import frame
from wal.disk import BTRFS_MAGIC, NETWORK_MAGICS, Disk
from wal.errors import LockedError, RefusedError, Rule
from wal.frame import MARK_SLOT_BYTES, MARK_SLOTS, Mark
from wal.manifest import Manifest, encode_manifest, read_manifest
from wal.segment import list_segments

IDENT_MAGIC: Final = b"WDIDENT\n"
IDENT_BYTES: Final = 64
IDENT: Final = struct.Struct("<8sII16sq20xI")  # magic, version, min reader, uuid, created, crc
OTHERS_MAY_WRITE: Final = 0o022
# What a store has, from its first start on, and the rule that a missing one breaks.
PARTS: Final = (
    ("IDENT", Rule.IDENT),
    ("MARK", Rule.MARK),
    ("MANIFEST", Rule.MANIFEST),
    ("wal", Rule.SEGMENT_MISSING),
    ("snap", Rule.CHECKPOINT),
)


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
class Facts:
    """What IDENT, MARK and MANIFEST say."""

    ident: Ident
    mark: MarkState
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """An open data directory. lock_fd is held for the life of the process."""

    path: str
    disk: Disk
    lock_fd: int
    facts: Facts
    copy_on_write: bool

    @property
    def ident(self) -> Ident:
        """Who this store is."""
        return self.facts.ident

    @property
    def mark(self) -> MarkState:
        """What MARK said when it was opened."""
        return self.facts.mark

    @property
    def manifest(self) -> Manifest:
        """What MANIFEST said when it was opened."""
        return self.facts.manifest

    @property
    def wal_path(self) -> str:
        """The folder of the segments."""
        return f"{self.path}/wal"

    @property
    def snap_path(self) -> str:
        """The folder of the checkpoints."""
        return f"{self.path}/snap"

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
    """Return the first size_max bytes of a file, as the device has them.

    After a sync that failed the cache holds what the device does not.
    """
    fd = disk.open(path)
    try:
        disk.drop_cache(fd)
        return disk.pread(fd, size_max, 0)
    finally:
        disk.close(fd)


def _write_file(disk: Disk, path: str, data: bytes) -> None:
    fd = disk.open(path, write=True, create=True)
    try:
        disk.truncate(fd, 0)
        disk.pwrite(fd, data, 0)
        disk.datasync(fd)
    finally:
        disk.close(fd)


def _ring(first: Mark) -> bytes:
    """Return the bytes of a MARK that only its first write went to."""
    return frame.encode_mark(first) + bytes(MARK_SLOT_BYTES * (MARK_SLOTS - 1))


def write_mark(disk: Disk, path: str, first: Mark) -> None:
    """Replace path/MARK, durably, by a ring that only its first write went to.

    Raises:
        OSError: a file call failed; the old one or the new one is there.
    """
    _write_file(disk, f"{path}/MARK.tmp", _ring(first))
    disk.rename(f"{path}/MARK.tmp", f"{path}/MARK")
    disk.dirsync(path)


def write_ident(disk: Disk, path: str, ident: Ident) -> None:
    """Write path/IDENT, durably, behind everything else that makes a store.

    Raises:
        OSError: a file call failed; it is there whole or not at all.
    """
    _write_file(disk, f"{path}/IDENT.tmp", encode_ident(ident))
    disk.rename(f"{path}/IDENT.tmp", f"{path}/IDENT")
    disk.dirsync(path)


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
        RefusedError: another user owns it or may write to it, or it lies on a network file system.
    """
    mode = disk.folder_mode(path)
    if mode & OTHERS_MAY_WRITE:
        raise RefusedError(
            rule=Rule.PERMISSIONS,
            path=path,
            detail=f"its mode is {mode:04o}: others than its owner may write",
            advice=f"chmod 0700 {path}",
        )
    if not disk.is_own(path):
        raise RefusedError(
            rule=Rule.PERMISSIONS,
            path=path,
            detail="another user owns it",
            advice=f"run as its owner, or give it away: chown -R USER {path}",
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


def _was_used(disk: Disk, path: str, names: list[str]) -> bool:
    """Return True when more than a first start that broke off was here: a server, a restore."""
    if "IDENT.backup" in names:
        return True
    if "wal" in names and list_segments(disk, f"{path}/wal").segments:
        return True
    if "snap" in names and any(name.endswith(".snap") for name in disk.names(f"{path}/snap")):
        return True
    if "MARK" not in names:
        return False
    data = read_file(disk, f"{path}/MARK", MARK_SLOT_BYTES * MARK_SLOTS)
    slots = (data[at : at + MARK_SLOT_BYTES] for at in range(0, len(data), MARK_SLOT_BYTES))
    return any(mark.term > 0 for slot in slots if (mark := frame.decode_mark(slot)))


def _make_path(disk: Disk, path: str) -> None:
    """Make a folder and the parents that are missing, each name durable before the next is made."""
    missing: list[str] = []
    while path and not is_folder(disk, path):
        missing.append(path)
        path = path.rpartition("/")[0]
    for folder in reversed(missing):
        disk.make_folder(folder)
        disk.dirsync(_parent(folder))


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_folder(disk: Disk, path: str) -> bool:
    """Return True when path is there, and a folder.

    Raises:
        NotADirectoryError: it is something else.
    """
    try:
        disk.folder_mode(path)
    except FileNotFoundError:
        return False
    return True


def empty_mark(uuid: bytes) -> Mark:
    """Return the MARK of a store that nothing was written to: older than any other."""
    return Mark(
        count=0,
        lsn=0,
        seq=0,
        offset=0,
        term=0,
        wall_ms=0,
        frame_crc=0,
        clean=False,
        uuid=uuid,
    )


def _create(disk: Disk, path: str, ident: Ident) -> None:
    """Make all that a store has in an empty data directory, IDENT last, behind all else.

    Raises:
        RefusedError: there are segments or checkpoints without an IDENT.
    """
    names = disk.names(path)
    if _was_used(disk, path, names):
        detail = "it is missing, and the store was in use"
        raise RefusedError(rule=Rule.IDENT, path=f"{path}/IDENT", detail=detail)
    for folder in ("wal", "snap"):
        if folder not in names:
            disk.make_folder(f"{path}/{folder}")
    _write_file(disk, f"{path}/MARK", _ring(empty_mark(ident.uuid)))
    manifest = Manifest(uuid=ident.uuid, wall_ms=ident.created_wall_ms)
    _write_file(disk, f"{path}/MANIFEST", encode_manifest(manifest))
    disk.dirsync(path)
    write_ident(disk, path, ident)


def read_directory(disk: Disk, path: str) -> Facts:
    """Return what IDENT, MARK and MANIFEST say.

    Raises:
        RefusedError: one of them is missing or damaged, or wal/ or snap/ is missing.
    """
    names = disk.names(path)
    for name, rule in PARTS:
        if name not in names:
            raise RefusedError(rule=rule, path=f"{path}/{name}", detail="it is missing")
    ident = decode_ident(read_file(disk, f"{path}/IDENT", IDENT_BYTES + 1), f"{path}/IDENT")
    slots = read_file(disk, f"{path}/MARK", MARK_SLOT_BYTES * MARK_SLOTS)
    return Facts(
        ident=ident,
        mark=decode_marks(slots, f"{path}/MARK", ident.uuid),
        manifest=read_manifest(disk, path, ident.uuid),
    )


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
        if copy_on_write:
            # Or a full disk has no room for the next frame in a page that holds one already.
            disk.overwrite_in_place(path)
        if "IDENT" not in disk.names(path):
            ident = Ident(uuid=new_uuid, version=frame.FORMAT_VERSION, created_wall_ms=wall_ms)
            _create(disk, path, ident)
        # What an earlier process made and could not sync before it was killed is visible here, and
        # everything from now on builds on it.
        with suppress(PermissionError):  # a parent that may be passed through, but not read
            disk.dirsync(_parent(path))
        disk.dirsync(path)
        facts = read_directory(disk, path)
        # Before the fresh segment is made: its header proves that all before it was durable.
        disk.dirsync(f"{path}/wal")
        disk.dirsync(f"{path}/snap")
    except BaseException:
        disk.close(lock_fd)
        raise
    return Directory(
        path=path,
        disk=disk,
        lock_fd=lock_fd,
        facts=facts,
        copy_on_write=copy_on_write,
    )
