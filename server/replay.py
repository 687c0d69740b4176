"""Replay: checkpoint and log read back into the core, in slices between turns of the event loop.

A slice is short, so that the port answers PING and INFO while millions of records are applied.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from server.clock import Clock
from wal.frame import split_frames
from wal.generations import Piece
from wal.log import LastTimes
from wal.reader import Chunk
from wheel.errors import CoreError

SLICE_NS: Final = 3_000_000
SLICE_BYTES: Final = 128 * 1024  # given to the core at once: about 1 ms


class ReplayError(Exception):
    """Frames that verify, and that the core cannot apply: no room, or written by another build.

    Attributes:
        segment: number of the segment.
        offset_bytes: where in it the slice begins.
        lsn: of the first record that may be the one.
    """

    def __init__(self, error: CoreError, *, segment: int, offset_bytes: int, lsn: int) -> None:
        super().__init__(f"the log cannot be applied: {error}")
        self.segment = segment
        self.offset_bytes = offset_bytes
        self.lsn = lsn


class LoadError(Exception):
    """A checkpoint that verifies, and that the core cannot take: no room, or another build's."""

    def __init__(self, error: CoreError) -> None:
        super().__init__(f"the checkpoint cannot be loaded: {error}")


class Core(Protocol):
    """What replay needs of the core."""

    def load(self, chunks: memoryview) -> None:
        """Take whole chunks of a checkpoint."""
        ...

    def replay(self, frames: memoryview, *, term: int) -> None:
        """Apply whole valid frames."""
        ...


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a start has come.

    Attributes:
        phase: "checkpoint" or "log".
        bytes_done: of it, read and applied; a checkpoint is read twice.
        bytes_total: to read; the segments' sizes.
        records: applied.
        checkpoint_bytes: of the checkpoint that was loaded.
    """

    phase: str = "log"
    checkpoint_bytes: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    records: int = 0

    @property
    def percent(self) -> int:
        """Return the share that is done, 100 for an empty log."""
        return 100 * self.bytes_done // self.bytes_total if self.bytes_total else 100


class Source(Protocol):
    """Where checkpoint and log come from: wal.log.Store."""

    def load(self) -> Iterator[Piece]:
        """Yield the checkpoint in force."""
        ...

    def replay(self) -> Iterator[Chunk]:
        """Yield whole valid frames in order."""
        ...


async def replay(
    core: Core,
    store: Source,
    *,
    clock: Clock,
    progress: Progress,
    on_slice: Callable[[], bool],
) -> bool:
    """Load the checkpoint in force, and apply the whole log behind it.

    Args:
        core: where to.
        store: where from.
        clock: measures the slices.
        progress: kept up to date.
        on_slice: called after each slice; False gives the replay up.

    Returns:
        Whether it came to the end.

    Raises:
        RefusedError: the log cannot be trusted.
        OSError: it cannot be read.
        ReplayError: the core could not apply it.
    """
    if not await _load(core, store, clock=clock, progress=progress, on_slice=on_slice):
        return False
    progress.phase, progress.bytes_done, progress.bytes_total = "log", 0, 0
    slice_ns = clock.mono_ns()
    for chunk in store.replay():
        progress.bytes_total = chunk.bytes_total
        for frames in split_frames(chunk.data, SLICE_BYTES):
            try:
                core.replay(frames, term=chunk.term)
            except CoreError as error:
                raise ReplayError(
                    error, segment=chunk.seq, offset_bytes=chunk.offset, lsn=chunk.first_lsn
                ) from error
            if clock.mono_ns() - slice_ns >= SLICE_NS:
                await asyncio.sleep(0)
                if not on_slice():
                    return False
                slice_ns = clock.mono_ns()
        progress.bytes_done = chunk.bytes_done
        progress.records += chunk.records
    progress.bytes_done = progress.bytes_total
    return True


async def _load(
    core: Core,
    store: Source,
    *,
    clock: Clock,
    progress: Progress,
    on_slice: Callable[[], bool],
) -> bool:
    """Load the checkpoint in force, if there is one; False when the start is given up."""
    slice_ns = clock.mono_ns()
    for piece in store.load():
        progress.phase = "checkpoint"
        progress.bytes_total = piece.bytes_total
        if piece.data is not None:
            try:
                core.load(piece.data)
            except CoreError as error:
                raise LoadError(error) from error
            progress.checkpoint_bytes += len(piece.data)
        progress.bytes_done = piece.bytes_done
        if clock.mono_ns() - slice_ns >= SLICE_NS:
            await asyncio.sleep(0)
            if not on_slice():
                return False
            slice_ns = clock.mono_ns()
    return True


def rel_now_ms(last: LastTimes | None, *, wall_ms: int, boot_ms: int, boot_id: bytes) -> int:
    """Return where the rel axis stands at this start.

    It begins as the wall clock and goes on at CLOCK_BOOTTIME's pace: while the kernel is the same
    boot by that clock itself, else by the wall clock, of which only a step forward counts.

    Args:
        last: the clocks as the log last saw them; None at the first start.
        wall_ms: the wall clock now.
        boot_ms: CLOCK_BOOTTIME now.
        boot_id: the kernel's; 16 zero bytes = not known, which never counts as the same.
    """
    if last is None:
        return wall_ms
    known_ms = last.rel_ms or 0
    if any(boot_id) and last.boot_id == boot_id:
        return max(known_ms, boot_ms + last.rel_minus_boot_ms)
    if last.rel_ms is None or last.wall_ms is None:
        return wall_ms  # no record was ever written: nothing stands on the axis yet
    return last.rel_ms + max(0, wall_ms - last.wall_ms)
