"""Putting a checkpoint in force, and deleting what nothing needs any more.

The core writes the file (csrc), under a name that counts for nothing, ``snap/next.tmp``. When
it has been synced, read back and verified, and the log is durable up to its end lsn:

1. it gets its name, and the name is synced;
2. MANIFEST is replaced: from now on it is in force, and the one before is the generation to fall
   back to;
3. what is older than the oldest generation kept goes: checkpoints first, then segments, oldest
   first, by their lsn and number, never by a clock.

A crash or an error between any two calls leaves either MANIFEST with all that it needs, and at most
files too many; the next publication takes those. Nothing that a MANIFEST on the disk names is ever
deleted, nor anything that is newer than what it names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from wal.directory import Directory
from wal.errors import RefusedError, Rule
from wal.manifest import Checkpoint, Manifest, read_manifest, write_manifest
from wal.reader import Entered
from wal.segment import BLOCK_BYTES, list_segments, parse_checkpoint_name

KEEP_DEFAULT: Final = 2
KEEP_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A checkpoint file that is written, synced and verified, under its temporary name."""

    start_lsn: int
    end_lsn: int
    size_bytes: int
    digest: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What was deleted: names, and the room that it took."""

    names: tuple[str, ...]
    size_bytes: int


class Checkpoints:
    """The checkpoints of an open store. One thread at a time uses it; the log may run beside it.

    Args:
        directory: the store's.
        manifest: as it stands on the disk now.
        entered: the segments of earlier servers that the start has read, and where their frames
            end.
    """

    __slots__ = ("_directory", "_disk", "_entered", "_tried", "manifest")

    def __init__(
        self, directory: Directory, manifest: Manifest, entered: Sequence[Entered]
    ) -> None:
        self._directory = directory
        self._disk = directory.disk
        self._entered = tuple(entered)
        self._tried = manifest
        self.manifest = manifest

    @property
    def newest(self) -> Checkpoint | None:
        """The checkpoint that a start would begin with."""
        return self.manifest.checkpoints[-1] if self.manifest.checkpoints else None

    @property
    def folder(self) -> str:
        """Where the files of checkpoints lie."""
        return self._directory.snap_path

    def temporary_path(self) -> str:
        """Return where the file of the next checkpoint is to be written."""
        return f"{self.folder}/next.tmp"

    def free_bytes(self) -> int:
        """Return the room on the disk."""
        return self._disk.free_bytes(self._directory.path)

    def publish(self, made: Made, *, keep: int, wall_ms: int) -> Checkpoint:
        """Put a checkpoint in force, durably. The log has to be durable up to its end lsn.

        Args:
            made: what was written under :meth:`temporary_path`.
            keep: generations to keep, this one included.
            wall_ms: now.

        Raises:
            RefusedError: MANIFEST on the disk is not the one that this process knows.
            OSError: a file call failed; the one before stays in force, or this one is.
        """
        self._check_fence()
        newest = self.newest
        if newest is not None and made.start_lsn <= newest.start_lsn:
            self._disk.unlink(self.temporary_path())  # the name is taken, by one that covers it
            return newest
        new = Checkpoint(
            start_lsn=made.start_lsn,
            end_lsn=made.end_lsn,
            size_bytes=made.size_bytes,
            digest=made.digest,
            rows=made.rows,
            seq=self._seq_of(made.start_lsn + 1, durable_lsn=made.end_lsn),
            wall_ms=wall_ms,
        )
        self._disk.rename(self.temporary_path(), f"{self.folder}/{new.name}")
        self._disk.dirsync(self.folder)
        self._replace(self._next_manifest(new, keep, wall_ms))
        return new

    def shrink(self, *, wall_ms: int) -> None:
        """Keep the newest generation only, for room; drop() then deletes the others.

        Raises:
            RefusedError: MANIFEST on the disk is not the one that this process knows.
            OSError: a file call failed.
        """
        self._check_fence()
        newest, now = self.newest, self.manifest
        if newest is None or now.oldest_lsn == newest.start_lsn + 1:
            return
        self._replace(
            replace(
                now,
                count=now.count + 1,
                oldest_seq=self._seq_of(newest.start_lsn + 1, durable_lsn=newest.end_lsn),
                oldest_lsn=newest.start_lsn + 1,
                wall_ms=wall_ms,
                checkpoints=(newest,),
            )
        )

    def _replace(self, manifest: Manifest) -> None:
        self._tried = manifest
        write_manifest(self._disk, self._directory.path, manifest)
        self.manifest = manifest

    def _check_fence(self) -> None:
        """Refuse to go on when somebody else has written MANIFEST, the lock notwithstanding.

        Raises:
            RefusedError: it is not what this process wrote, or found, or tried to write, last.
        """
        found = read_manifest(self._disk, self._directory.path, self.manifest.uuid)
        if found == self._tried:  # replacing it failed behind the rename
            self._disk.dirsync(self._directory.path)
            self.manifest = found
        if found != self.manifest:
            raise RefusedError(
                rule=Rule.MANIFEST,
                path=f"{self._directory.path}/MANIFEST",
                detail=f"write {found.count} is there, this server knows of {self.manifest.count}:"
                " another process uses the data directory",
                advice="stop one of them",
            )

    def _seq_of(self, lsn: int, *, durable_lsn: int) -> int:
        """Return the number of the first segment that is needed to read from record lsn on.

        Only segments that begin by durable_lsn count: the sync that covered that record covered
        their names too. One that was opened since may be gone after a power cut.
        """
        segments = list_segments(self._disk, self._directory.wal_path).segments
        begun = min(lsn, durable_lsn)
        known = (one.seq for one in segments if one.base_lsn <= begun)
        return max(known, default=self.manifest.oldest_seq)

    def _next_manifest(self, new: Checkpoint, keep: int, wall_ms: int) -> Manifest:
        now = self.manifest
        older = [one for one in now.checkpoints if one.start_lsn < new.start_lsn]
        kept = [*older[len(older) - (keep - 1) :], new] if keep > 1 else [new]
        oldest_lsn = kept[0].start_lsn + 1
        if len(kept) < keep and now.oldest_lsn == 1:
            oldest_lsn = 1  # the empty store is a generation too
        return replace(
            now,
            count=now.count + 1,
            oldest_seq=self._seq_of(oldest_lsn, durable_lsn=new.end_lsn),
            oldest_lsn=oldest_lsn,
            wall_ms=wall_ms,
            checkpoints=tuple(kept),
        )

    def drop(self) -> Dropped:
        """Delete what MANIFEST does not need: older checkpoints, older segments.

        Raises:
            OSError: a file call failed; the next call goes on with it.
        """
        manifest, wal_path = self.manifest, self._directory.wal_path
        if not manifest.checkpoints:
            return Dropped(names=(), size_bytes=0)
        newest = manifest.checkpoints[-1].start_lsn
        in_force = {one.start_lsn for one in manifest.checkpoints}
        paths: list[str] = []
        for name in sorted(self._disk.names(self.folder)):
            start_lsn = parse_checkpoint_name(name)
            if start_lsn is not None and start_lsn < newest and start_lsn not in in_force:
                paths.append(f"{self.folder}/{name}")
        snaps = len(paths)
        segments = list_segments(self._disk, wal_path).segments
        paths += [one.path for one in segments[:-1] if one.seq < manifest.oldest_seq]
        size_bytes = sum(self._unlink(path) for path in paths)
        if snaps:
            self._disk.dirsync(self.folder)
        if len(paths) > snaps:
            self._disk.dirsync(wal_path)
        return Dropped(
            names=tuple(path.rpartition("/")[2] for path in paths), size_bytes=size_bytes
        )

    def _unlink(self, path: str) -> int:
        fd = self._disk.open(path)
        try:
            size_bytes = self._disk.size(fd)
        finally:
            self._disk.close(fd)
        self._disk.unlink(path)
        return size_bytes

    def trim(self) -> int:
        """Give back the room behind the last frame of earlier servers' segments; return its bytes.

        Each start opens a fresh segment, so without this a server that is started often fills the
        disk with zeros. What is cut off was read and is zero; a later segment stands behind it
        durably, and its header, not the length of this file, tells where this one must end. So a
        crash may keep either length.

        Raises:
            OSError: a file call failed.
        """
        gained, entered, self._entered = 0, self._entered, ()
        # The last one is being written to. It may have the name of one that was read: a segment
        # without a frame is replaced by the fresh one.
        sealed = list_segments(self._disk, self._directory.wal_path).segments[:-1]
        names = frozenset(segment.name for segment in sealed)
        for into in entered:
            size_bytes = -(-into.end // BLOCK_BYTES) * BLOCK_BYTES
            if into.file.name not in names or into.size_bytes <= size_bytes:
                continue
            fd = self._disk.open(into.file.path, write=True)
            try:
                gained += into.size_bytes - size_bytes
                self._disk.truncate(fd, size_bytes)
            finally:
                self._disk.close(fd)
        return gained
