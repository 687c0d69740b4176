"""MANIFEST: which checkpoints are in force, and how far back the log has to reach.

It is the one place that says so: a checkpoint counts because MANIFEST names it, and nothing is
deleted that the MANIFEST on the disk still needs. It is written whole and replaced by a rename, so
there is always one, the old or the new; each bit of it is covered by its checksum. A store has one
from its first start on, so a missing one is a loss, never a beginning.
"""

import struct
from dataclasses import dataclass
from typing import Final

from wal import frame
from wal.disk import Disk
from wal.errors import RefusedError, Rule

MAGIC: Final = b"WDMANIF\n"
HEAD: Final = struct.Struct("<8sII16sQQQQqI20x")
ENTRY: Final = struct.Struct("<QQQQqQIHH8x")
CRC: Final = struct.Struct("<I")
GENERATIONS_MAX: Final = 8
MANIFEST_BYTES_MAX: Final = HEAD.size + GENERATIONS_MAX * ENTRY.size + CRC.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint in force.

    Attributes:
        start_lsn: its slices began when this was the last record; replay goes on behind it.
        end_lsn: the last record when they ended: the image is whole from here on.
        size_bytes: of the file.
        digest: of the file, as its footer has it.
        rows: jobs in it.
        seq: the first segment that the log behind it begins in.
        wall_ms: when it was made.
    """

    start_lsn: int
    end_lsn: int
    size_bytes: int
    digest: int
    rows: int
    seq: int
    wall_ms: int

    @property
    def name(self) -> str:
        """The file's name."""
        return checkpoint_name(self.start_lsn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What MANIFEST says.

    Attributes:
        uuid: of the store.
        count: number of this write, from 0.
        term_floor: the next server's term is higher than this, whatever the log says.
        oldest_seq: first segment that is needed.
        oldest_lsn: first record that the log is needed for.
        wall_ms: when it was written.
        checkpoints: in force, oldest first; none = the log from record 1 on is the state.
    """

    uuid: bytes
    count: int = 0
    term_floor: int = 0
    oldest_seq: int = 1
    oldest_lsn: int = 1
    wall_ms: int
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def end_lsn(self) -> int:
        """Every record up to this one was durable when MANIFEST was written."""
        return max((checkpoint.end_lsn for checkpoint in self.checkpoints), default=0)


def checkpoint_name(start_lsn: int) -> str:
    """Return the file's name of a checkpoint: its start lsn in 16 hex digits."""
    return f"{start_lsn:016x}.snap"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of MANIFEST."""
    data = HEAD.pack(
        MAGIC,
        frame.FORMAT_VERSION,
        frame.FORMAT_READER_MIN,
        manifest.uuid,
        manifest.count,
        manifest.term_floor,
        manifest.oldest_seq,
        manifest.oldest_lsn,
        manifest.wall_ms,
        len(manifest.checkpoints),
    )
    for one in manifest.checkpoints:
        data += ENTRY.pack(
            one.start_lsn,
            one.end_lsn,
            one.size_bytes,
            one.seq,
            one.wall_ms,
            one.rows,
            one.digest,
            0,  # this part
            1,  # of so many: a checkpoint is one file today
        )
    return data + CRC.pack(frame.crc32c(data))


def decode_manifest(data: bytes, path: str, uuid: bytes) -> Manifest:
    """Return what MANIFEST says.

    Args:
        data: all its bytes, or more than the longest may have.
        path: for the error.
        uuid: of the store, from IDENT.

    Raises:
        RefusedError: it does not verify, is another store's, or of a newer format.
    """
    if len(data) < HEAD.size + CRC.size or not data.startswith(MAGIC):
        raise _refused(path, "not a MANIFEST file")
    if CRC.unpack_from(data, len(data) - CRC.size)[0] != frame.crc32c(data[: -CRC.size]):
        raise _refused(path, "its checksum does not match")
    _, version, reader_min, own, count, term, seq, lsn, wall_ms, n = HEAD.unpack_from(data)
    if reader_min > frame.FORMAT_VERSION:
        raise RefusedError(
            rule=Rule.NEWER_FORMAT,
            path=path,
            detail=f"written in format {version}, this build reads up to {frame.FORMAT_VERSION}",
            advice="use a newer wheeld",
        )
    if own != uuid:
        detail = "it belongs to another store than IDENT"
        raise RefusedError(rule=Rule.FOREIGN_UUID, path=path, detail=detail)
    if n > GENERATIONS_MAX or len(data) != HEAD.size + n * ENTRY.size + CRC.size:
        raise _refused(path, f"it is {len(data)} bytes long and counts {n} checkpoints")
    return Manifest(
        uuid=own,
        count=count,
        term_floor=term,
        oldest_seq=seq,
        oldest_lsn=lsn,
        wall_ms=wall_ms,
        checkpoints=tuple(_entry(data, i, path) for i in range(n)),
    )


def _entry(data: bytes, i: int, path: str) -> Checkpoint:
    start, end, size, seq, wall_ms, rows, digest, part, parts = ENTRY.unpack_from(
        data, HEAD.size + i * ENTRY.size
    )
    if (part, parts) != (0, 1):
        raise _refused(path, f"checkpoint {start:016x} is part {part} of {parts}; one is known")
    return Checkpoint(
        start_lsn=start,
        end_lsn=end,
        size_bytes=size,
        digest=digest,
        rows=rows,
        seq=seq,
        wall_ms=wall_ms,
    )


def _refused(path: str, detail: str) -> RefusedError:
    return RefusedError(rule=Rule.MANIFEST, path=path, detail=detail)


def read_manifest(disk: Disk, folder: str, uuid: bytes) -> Manifest:
    """Return what folder/MANIFEST says.

    Raises:
        RefusedError: it is missing or damaged, another store's, or of a newer format.
        OSError: a file call failed.
    """
    path = f"{folder}/MANIFEST"
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        raise _refused(path, "it is missing") from None
    try:
        data = disk.pread(fd, MANIFEST_BYTES_MAX + 1, 0)
    finally:
        disk.close(fd)
    return decode_manifest(data, path, uuid)


def write_manifest(disk: Disk, folder: str, manifest: Manifest) -> None:
    """Replace folder/MANIFEST, durably: written aside, synced, renamed, the name synced.

    After a crash or an error on the way the old one or the new one is there.

    Raises:
        OSError: a file call failed.
    """
    path = f"{folder}/MANIFEST"
    fd = disk.open(f"{path}.tmp", write=True, create=True)
    try:
        disk.truncate(fd, 0)
        disk.pwrite(fd, encode_manifest(manifest), 0)
        disk.datasync(fd)
    finally:
        disk.close(fd)
    disk.rename(f"{path}.tmp", path)
    disk.dirsync(folder)
