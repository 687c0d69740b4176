"""The log as the server uses it: open the store, replay it, start writing.

Life of a store::

    store = open_store(path, disk=RealDisk(), fsync=FsyncMode.ALWAYS, ...)   # locked, listed
    for piece in store.load(): ...                        # the checkpoint in force, for the engine
    for chunk in store.replay(): ...                      # the engine applies whole valid frames
    store.verdict, store.last_frame                       # judged; RefusedError ends the start
    log = store.start(...)                                # what was judged is carried out
    log.handle                                            # the C writer, for the engine core

Order at start: verify and read the checkpoint, sync and read each segment behind it, judge, carry
out, sync that, open the fresh segment (durable: file, name, directory), write MARK, and only then
serve.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from wal.checkpoint import Checkpoints
from wal.directory import Directory, open_directory
from wal.disk import Disk
from wal.errors import WalError
from wal.facts import LogError, LogStats
from wal.frame import FsyncMode, LogHandle, LogStart
from wal.generations import Fallen, Generations, Piece
from wal.manifest import Checkpoint, Manifest, write_manifest
from wal.reader import Chunk, LastFrame, Reader
from wal.recover import Plan, Verdict, judge
from wal.segment import (
    BLOCK_BYTES,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MIN,
    Listing,
    list_segments,
)
from wal.settle import carry_out

NO_FRAME: Final = LastFrame(lsn=0, seq=0, offset=0, frame_crc=0, wall_ms=0, rel_ms=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastTimes:
    """Both clocks as the log last saw them; frame times are None when there is no frame.

    ``boot_id`` and ``rel_minus_boot_ms`` are the last segment header's: while the boot id is the
    same, CLOCK_BOOTTIME counts from the same moment, and rel now goes on at its pace.
    """

    wall_ms: int | None
    rel_ms: int | None
    boot_id: bytes
    rel_minus_boot_ms: int
    created_wall_ms: int


class FileLog:
    """The open log. The engine core appends through :attr:`handle`.

    Which calls may overlap: ``prepare`` belongs to a background thread; ``sync`` and ``mark`` may
    run beside an append; ``close`` is for when no other call runs and the core has let go.
    """

    __slots__ = ("_directory", "_handle", "_open", "checkpoints", "term", "uuid")

    def __init__(
        self, directory: Directory, handle: LogHandle, checkpoints: Checkpoints, *, term: int
    ) -> None:
        self._directory = directory
        self._handle = handle
        self._open = True
        self.checkpoints = checkpoints
        self.term = term
        self.uuid = directory.ident.uuid

    @property
    def handle(self) -> object:
        """The ``wd_log *``; valid until close()."""
        return self._handle.cdata

    def append(
        self, payload: bytes, *, first_lsn: int, records: int, wall_ms: int, rel_ms: int
    ) -> None:
        """Write one frame of records from Python (a commit that is driven by hand).

        Raises:
            DiskFullError: no room for the next segment; nothing was written, repeat it later.
            LogFailedError: the log has failed for good.
        """
        self._handle.append(
            payload, first_lsn=first_lsn, records=records, wall_ms=wall_ms, rel_ms=rel_ms
        )

    def prepare(self) -> None:
        """Make the next segment ready, and sync sealed ones that wait for it; cheap when done.

        To be called after the start and after each rotation (stats().rotations tells), and again
        each second while it raises DiskFullError. The GIL is let go meanwhile.

        Raises:
            DiskFullError: no room; the rest of the current segment is all that is left.
            LogFailedError: the log has failed for good.
        """
        self._handle.prepare()

    def mark(self, *, clean: bool = False) -> None:
        """Write the highest synced lsn to MARK: when the log fell idle, each second under load.

        Raises:
            LogFailedError: the log has failed for good.
        """
        self._handle.mark(clean=clean)

    def sync(self) -> None:
        """Sync all that was written before the call (modes interval and off).

        Raises:
            LogFailedError: the log has failed for good.
        """
        self._handle.sync()

    def stats(self) -> LogStats:
        """Return the writer's counters."""
        return self._handle.stats()

    def error(self) -> LogError:
        """Return the failure that ended the log; its errno is 0 while there is none."""
        return self._handle.error()

    def close(self) -> None:
        """Close the files and let the lock go; a second call does nothing.

        An orderly stop syncs and marks clean before.
        """
        if self._open:
            self._open = False
            self._handle.close()
            self._directory.close()


class Store:
    """A locked data directory before the start: replay, then start.

    Made by :func:`open_store`.
    """

    __slots__ = (
        "_behind_bytes",
        "_directory",
        "_fsync",
        "_generations",
        "_listing",
        "_open",
        "_plan",
        "_reader",
        "_segment_bytes",
        "_verdict",
    )

    def __init__(
        self,
        directory: Directory,
        listing: Listing,
        *,
        fsync: FsyncMode,
        segment_bytes: int,
    ) -> None:
        self._directory = directory
        self._listing = listing
        self._behind_bytes = 0
        self._open = True
        self._fsync = fsync
        self._segment_bytes = segment_bytes
        self._generations = Generations(
            directory.disk, directory.snap_path, directory.manifest, listing.segments
        )
        self._reader: Reader | None = None
        self._verdict: Verdict | None = None
        self._plan: Plan | None = None

    @property
    def uuid(self) -> bytes:
        """The store's 16 bytes."""
        return self._directory.ident.uuid

    @property
    def path(self) -> str:
        """The data directory."""
        return self._directory.path

    def load(self) -> Iterator[Piece]:
        """Yield the checkpoint in force: progress while it is verified, then its chunks.

        Nothing is yielded when the log from record 1 on is the state. When the newest does not
        verify, the generation before is taken, and :attr:`fallen` tells.

        Raises:
            RefusedError: no generation can be used with the log that is there.
            OSError: a file call failed.
        """
        yield from self._generations.read()
        self._reader = Reader(
            self._directory.disk,
            self._generations.segments,
            uuid=self._directory.ident.uuid,
            settle=True,
        )

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that was loaded; None = there is none in force."""
        return self._generations.chosen

    @property
    def fallen(self) -> tuple[Fallen, ...]:
        """Checkpoints in force that do not verify, newest first."""
        return self._generations.fallen

    def replay(self) -> Iterator[Chunk]:
        """Yield all valid frames in order, about 4 MiB at a time; then the verdict is known.

        The first segment may begin with frames that the checkpoint covers. What is yielded may be
        applied at once, but nothing may be answered from it before the iterator ended without an
        error.

        Raises:
            RefusedError: a start could lose or invent confirmed records.
            WalError: a checkpoint is in force, and load() has not ended.
            OSError: a file call failed.
        """
        if self._reader is None and not self._directory.manifest.checkpoints:
            for _ in self.load():  # nothing: there is no checkpoint
                pass
        reader = self._reader
        if reader is None:
            raise WalError("the checkpoint has not been loaded")
        if reader.done:
            raise WalError("the log has been replayed already")
        start_lsn = self.checkpoint.start_lsn if self.checkpoint else 0
        for chunk in reader.chunks():
            if chunk.last_lsn > start_lsn:
                self._behind_bytes += len(chunk.data)
            yield chunk
        mark, manifest = self._directory.mark, self._directory.manifest
        header = self._generations.header
        self._verdict, self._plan = judge(
            reader,
            mark.newest,
            damaged_mark_slots=mark.damaged_slots,
            durable_lsn=manifest.end_lsn,
            term_floor=max(manifest.term_floor, header.term if header else 0),
        )

    @property
    def behind_bytes(self) -> int:
        """Bytes of frames behind the checkpoint, to within what is read at once."""
        return self._behind_bytes

    @property
    def verdict(self) -> Verdict:
        """What replay found.

        Raises:
            WalError: replay() has not ended.
        """
        if self._verdict is None:
            raise WalError("the log has not been replayed to its end")
        return self._verdict

    @property
    def last_frame(self) -> LastFrame | None:
        """The last frame of the log; None when there is none behind the checkpoint."""
        return self._reader.last_frame if self._reader else None

    @property
    def last_times(self) -> LastTimes | None:
        """The clocks as the store last saw them; None when there is no segment."""
        if self._reader is None or not self._reader.entered:
            return None
        header = self._reader.entered[-1].header
        last = self._reader.last_frame or self._generations.end
        return LastTimes(
            wall_ms=last.wall_ms if last else None,
            rel_ms=last.rel_ms if last else None,
            boot_id=header.boot_id,
            rel_minus_boot_ms=header.rel_minus_boot_ms,
            created_wall_ms=header.created_wall_ms,
        )

    def start(
        self, *, wall_ms: int, rel_minus_boot_ms: int, boot_id: bytes, salt_seed: int
    ) -> FileLog:
        """Carry the verdict out, open a fresh segment under a new term, write MARK.

        Args:
            wall_ms: now.
            rel_minus_boot_ms: rel now - CLOCK_BOOTTIME, for the segment headers.
            boot_id: the kernel's, 16 bytes.
            salt_seed: 32 random bits.

        Raises:
            WalError: replay() has not ended.
            LogFailedError: a file call of the writer failed.
            OSError: a file call failed.
        """
        verdict, plan, reader = self.verdict, self._plan, self._reader
        if plan is None or reader is None:
            raise WalError("the log has been started already")
        self._plan = None
        disk, directory = self._directory.disk, self._directory
        self._sweep()
        cut_files = carry_out(disk, directory.wal_path, plan)
        self._verdict = replace(verdict, cut_files=cut_files)
        last = reader.last_frame or NO_FRAME
        handle = LogHandle(
            LogStart(
                folder=directory.path,
                segment_bytes=self._segment_bytes,
                # Zeros written ahead make syncs cheap; where none is waited for they only cost.
                allocate_only=directory.copy_on_write or self._fsync is FsyncMode.OFF,
                next_seq=plan.next_seq,
                next_lsn=verdict.next_lsn,
                term=verdict.term,
                fsync=self._fsync,
                salt_seed=salt_seed,
                uuid=directory.ident.uuid,
                boot_id=boot_id,
                wall_ms=wall_ms,
                rel_minus_boot_ms=rel_minus_boot_ms,
                prev_crc=reader.prev_crc,
                last_seq=last.seq,
                last_offset=last.offset,
                last_wall_ms=last.wall_ms,
                mark_count=directory.mark.newest.count + 1,
            ),
            io=disk.io,
            owner=disk,
        )
        try:
            handle.mark(clean=False)
            manifest = self._set_aside(wall_ms)
        except BaseException:
            handle.close()
            raise
        self._open = False
        earlier = [into for into in reader.entered if into.file.seq < plan.next_seq]
        checkpoints = Checkpoints(directory, manifest, earlier)
        return FileLog(directory, handle, checkpoints, term=verdict.term)

    def _sweep(self) -> None:
        """Delete what earlier servers had begun to make and not put in force."""
        disk, directory = self._directory.disk, self._directory
        for folder in (directory.path, directory.snap_path, directory.wal_path):
            for name in disk.names(folder):
                if name.endswith(".tmp"):
                    disk.unlink(f"{folder}/{name}")

    def _set_aside(self, wall_ms: int) -> Manifest:
        """Take checkpoints that do not verify out of force, and keep their files as *.broken.

        The log is durable up to their end, and MARK says so. They must go before another
        checkpoint is made: else the damaged one would be the generation to fall back to.
        """
        disk, directory, manifest = self._directory.disk, self._directory, self._directory.manifest
        if not self.fallen:
            return manifest
        damaged = {one.checkpoint.start_lsn for one in self.fallen}
        manifest = replace(
            manifest,
            count=manifest.count + 1,
            wall_ms=wall_ms,
            checkpoints=tuple(one for one in manifest.checkpoints if one.start_lsn not in damaged),
        )
        write_manifest(disk, directory.path, manifest)
        names = disk.names(directory.snap_path)
        for one in self.fallen:
            if one.checkpoint.name in names:
                disk.rename(one.path, f"{one.path}.broken")
        disk.dirsync(directory.snap_path)
        return manifest

    def close(self) -> None:
        """Let the lock go without a start; does nothing when it was let go, or a start has it."""
        if self._open:
            self._open = False
            self._directory.close()


def open_store(
    path: str,
    *,
    disk: Disk,
    fsync: FsyncMode,
    wall_ms: int,
    new_uuid: bytes,
    segment_bytes: int = SEGMENT_BYTES_DEFAULT,
    allow_network_fs: bool = False,
) -> Store:
    """Return the store in a data directory, locked; made when it is not there.

    Args:
        path: absolute path of the data directory.
        disk: where it lies.
        fsync: mode of the segments that a start will write.
        wall_ms: now; kept in IDENT when the store is made.
        new_uuid: 16 random bytes; the store's name when it is made.
        segment_bytes: size of new segments, a multiple of 4096, at least 8192; a frame has to fit,
            so a server takes 4 MiB or more.
        allow_network_fs: open it on a network file system too.

    Raises:
        LockedError: another process holds it.
        RefusedError: it is not a directory that may be used.
        OSError: a file call failed.
    """
    if segment_bytes < SEGMENT_BYTES_MIN or segment_bytes % BLOCK_BYTES:
        raise ValueError(
            f"segment_bytes is {segment_bytes}: not a multiple of {BLOCK_BYTES} from "
            f"{SEGMENT_BYTES_MIN} on"
        )
    directory = open_directory(
        disk,
        path.rstrip("/"),
        new_uuid=new_uuid,
        wall_ms=wall_ms,
        allow_network_fs=allow_network_fs,
    )
    try:
        listing = list_segments(disk, directory.wal_path)
        return Store(directory, listing, fsync=fsync, segment_bytes=segment_bytes)
    except BaseException:
        directory.close()
        raise
