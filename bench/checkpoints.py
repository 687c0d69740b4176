"""A core of many jobs in this process, its checkpoint, and how fast that is loaded again."""

import os
from collections.abc import Iterator
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
JOB: Final = b"*4\r\n$8\r\nSCHEDULE\r\n$4\r\nmail\r\n$13\r\n%d\r\n$100\r\n" + PAYLOAD + b"\r\n"


def options(jobs: int, *, commit: Commit = Commit.DRIVEN) -> CoreOptions:
    """Return those of a core by hand that holds so many jobs."""
    return CoreOptions(
        jobs_max=jobs + jobs // 10 + 1000,
        maxmemory_bytes=max(1 << 30, jobs * 600),
        commit=commit,
        sockets=False,
        hand_clock=True,
    )


def started(core: Core) -> Core:
    """Return the core, which serves now."""
    core.start(term=TERM, rel_ms=WALL_MS, clocks=CLOCKS)
    return core


def fill(core: Core, jobs: int, *, commands: int = COMMANDS) -> Iterator[bytes]:
    """Schedule so many jobs with 100 bytes each, and yield the frames of so many commands each."""
    handle = core.fed_open("fill")
    for first in range(0, jobs, commands):
        numbers = range(first, min(jobs, first + commands))
        dues = (FAR_MS + i * 7_919_113 % 86_400_000 for i in numbers)
        data = b"".join(JOB % (due, i) for due, i in zip(dues, numbers, strict=True))
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


def load(core: Core, path: Path) -> None:
    """Verify the whole file, then load it: no core is spoilt by a damaged one."""
    for _piece in pieces(path):
        pass
    for piece in pieces(path):
        core.load(piece)


def drop_cache(path: Path) -> None:
    """Let the kernel forget the file's pages."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
