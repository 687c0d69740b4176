"""A core of many jobs in this process, its checkpoint, and how fast that is loaded again."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import BenchError
from bench.loads import FAR_MS, PAYLOAD
from wal.facts import CheckpointStop
from wal.frame import CheckpointScanner
from wheel.engine.core import Commit, Core, CoreOptions
from wheel.engine.facts import CheckpointPhase, CheckpointState, Clocks

WALL_MS: Final = 1_800_000_000_000
TERM: Final = 1
COMMANDS: Final = 2_000  # pipelined at once
READ_BYTES: Final = 1 << 20
CLOCKS: Final = Clocks(wall_ms=WALL_MS, boot_ms=1_000_000, mono_ms=1_000_000)
_JOB: Final = b"*4\r\n$8\r\nSCHEDULE\r\n$4\r\nmail\r\n$13\r\n%d\r\n$100\r\n" + PAYLOAD + b"\r\n"
_KEYED: Final = _JOB.replace(b"*4", b"*6") + b"$3\r\nKEY\r\n$20\r\norder-%014d\r\n"


def options(jobs: int) -> CoreOptions:
    """Return those of a core by hand that holds so many jobs."""
    return CoreOptions(
        jobs_max=jobs + jobs // 10 + 1000,
        maxmemory_bytes=max(1 << 30, jobs * 600),
        commit=Commit.DRIVEN,
        sockets=False,
        hand_clock=True,
    )


def started(core: Core) -> Core:
    """Return the core, which serves now."""
    core.start(term=TERM, rel_ms=WALL_MS, clocks=CLOCKS)
    return core


def fill(core: Core, jobs: int, *, keyed: bool = False) -> Iterator[bytes]:
    """Schedule so many jobs with 100 bytes each, and yield the frames of it."""
    handle = core.fed_open("fill")
    for first in range(0, jobs, COMMANDS):
        numbers = range(first, min(jobs, first + COMMANDS))
        dues = (FAR_MS + i * 7_919_113 % 86_400_000 for i in numbers)
        if keyed:
            data = b"".join(_KEYED % (due, i, i) for due, i in zip(dues, numbers, strict=True))
        else:
            data = b"".join(_JOB % (due, i) for due, i in zip(dues, numbers, strict=True))
        core.fed_input(handle, data)
        core.commit()
        while (batch := core.take_batch()) is not None:
            yield batch.frame
            core.batch_durable(batch.lsn)
        core.fed_taken(handle, len(core.fed_output(handle).data))
        core.commit()


def write(core: Core, path: Path, *, rate_bytes: int = 0) -> CheckpointState:
    """Return the figures of a whole checkpoint to a file, written as fast as the rate allows.

    Raises:
        BenchError: it failed.
    """
    core.checkpoint_start(str(path), salt=7, rate_bytes=rate_bytes)
    while (state := core.checkpoint_state()).phase < CheckpointPhase.DONE:
        core.commit()
    if state.phase != CheckpointPhase.DONE:
        raise BenchError(f"the checkpoint failed: {state}")
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Seconds that a restart spent: checking the file, loading it, until it served."""

    verify_s: float
    load_s: float
    start_s: float


def pieces(path: Path) -> Iterator[memoryview]:
    """Yield the file's header block and chunks, verified, about 1 MiB at a time.

    Raises:
        BenchError: it is damaged.
    """
    scanner, held = CheckpointScanner(), bytearray()
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        while size:
            held += file.read(READ_BYTES)
            found = scanner.feed(held, room=size)
            if found.stop not in {CheckpointStop.MORE, CheckpointStop.WHOLE}:
                raise BenchError(f"{path} is damaged: {found.stop.name}")
            yield memoryview(bytes(held[: found.bytes]))
            del held[: found.bytes]
            size -= found.bytes


def load(core: Core, path: Path) -> Loaded:
    """Verify the file, load it, start the core; return the seconds of each."""
    times = [time.perf_counter()]
    for _piece in pieces(path):
        pass
    times.append(time.perf_counter())
    for piece in pieces(path):
        core.load(piece)
    times.append(time.perf_counter())
    started(core)
    times.append(time.perf_counter())
    return Loaded(
        verify_s=times[1] - times[0], load_s=times[2] - times[1], start_s=times[3] - times[2]
    )


def drop_cache(path: Path) -> None:
    """Let the kernel forget the file's pages."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
