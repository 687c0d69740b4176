"""Puts the payload of a job that changed in memory back, from the copy that the disk has.

A checkpoint that meets such a payload stands there (csrc/wd_checkpoint.c): written down, it would
take the place of the true one. That lies in the checkpoint in force, or in the log behind it, and
stays there: neither is given up before a newer checkpoint is in force, which has the payload.

What is found is believed only if it has the checksum that memory keeps of the true payload, or is
what memory holds, in which case the checksum has changed (csrc/wd_arena.c). So a copy that is out
of date, of the job before it was replaced, does no harm, and nothing has to tell which is newest.
Nothing is logged: the log has it, which is the point.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from wal.disk import Disk
from wal.errors import WalError
from wal.frame import CHECKPOINT_HEADER_BYTES
from wal.generations import STEP_BYTES, CheckpointDamagedError, CheckpointFile
from wal.manifest import Checkpoint, Manifest
from wal.reader import Reader
from wal.segment import SegmentFile, list_segments
from wheel.errors import CoreError

InThread = Callable[[Callable[[], bytes | None]], Awaitable[bytes | None]]


class Core(Protocol):
    """What this file needs of the C core."""

    def mend(self, job: int, payload: bytes) -> bool:
        """Put a payload back; False: this is not what was scheduled."""
        ...

    def payload_in_frames(self, frames: memoryview, job: int) -> bytes | None:
        """Return the last payload that frames give a job; in any thread."""
        ...

    def payload_in_chunks(self, chunks: memoryview, job: int) -> bytes | None:
        """Return the payload that a checkpoint's chunks give a job; in any thread."""
        ...


class Files(Protocol):
    """What this file needs of wal.checkpoint.Checkpoints."""

    manifest: Manifest

    @property
    def folder(self) -> str:
        """Return where the files of checkpoints lie."""
        ...


class Mender:
    """Finds payloads on the disk. Nothing may delete files meanwhile: the checkpointer uses it.

    Args:
        core: whose memory it mends.
        disk: where the store lies.
        files: tells what is in force.
        wal_path: the folder of segments.
        logger: for what was mended.
    """

    def __init__(
        self, *, core: Core, disk: Disk, files: Files, wal_path: str, logger: FilteringBoundLogger
    ) -> None:
        self._core = core
        self._disk = disk
        self._files = files
        self._wal_path = wal_path
        self._log = logger
        self.mended = 0
        self._stops = False

    def stop(self) -> None:
        """Let what is being read be the last: a large checkpoint takes a while."""
        self._stops = True

    async def mend(self, job: int, in_thread: InThread) -> bool:
        """Put the payload of a job back; False when the disk has none that is what it was.

        Args:
            job: its id.
            in_thread: runs what reads files.
        """
        copies = self._copies(job)
        while (payload := await in_thread(partial(next, copies, None))) is not None:
            if self._core.mend(job, payload):
                self.mended += 1
                self._log.error(
                    "payload_mended",
                    job=str(job),
                    size_bytes=len(payload),
                    hint="it had changed in memory (bad RAM?), and the copy on the disk was put"
                    " back; if the job is dead with the reason corrupt: `wheeld jobs requeue`; test"
                    " the machine's memory",
                )
                return True
        return False

    def _copies(self, job: int) -> Iterator[bytes]:
        """Yield what the disk holds as the payload of a job, the likeliest first."""
        manifest = self._files.manifest
        segments = list_segments(self._disk, self._wal_path).segments
        for named in reversed(manifest.checkpoints):
            behind = [one for one in segments if one.seq >= named.seq]
            yield from self._in_log(job, manifest, behind)
            yield from self._in_checkpoint(job, manifest, named)
        if manifest.oldest_lsn == 1:
            yield from self._in_log(job, manifest, segments)

    def _in_log(
        self, job: int, manifest: Manifest, segments: Sequence[SegmentFile]
    ) -> Iterator[bytes]:
        """Yield the last payload there, if any. The log may end anywhere: it is written to."""
        kept = tuple(one for one in segments if one.seq >= manifest.oldest_seq)
        found: bytes | None = None
        with contextlib.suppress(OSError, WalError, CoreError):  # damage is the scrubber's to tell
            for chunk in Reader(self._disk, kept, uuid=manifest.uuid, settle=False).chunks():
                if self._stops:
                    return
                found = self._core.payload_in_frames(chunk.data, job) or found
        if found is not None:
            yield found

    def _in_checkpoint(self, job: int, manifest: Manifest, named: Checkpoint) -> Iterator[bytes]:
        """Yield the payload there, if any."""
        file = CheckpointFile(
            self._disk, f"{self._files.folder}/{named.name}", named, manifest.uuid
        )
        found, skip_bytes = None, CHECKPOINT_HEADER_BYTES
        with contextlib.suppress(OSError, WalError, CheckpointDamagedError, CoreError):
            for data in file.pieces(STEP_BYTES):
                if self._stops:
                    return
                found = self._core.payload_in_chunks(data[skip_bytes:], job)
                if found is not None:
                    break
                skip_bytes = 0
        if found is not None:
            yield found
