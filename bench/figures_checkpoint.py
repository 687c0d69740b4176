"""Checkpoints: what one costs while the server works, and how fast a restart from one is.

The core runs in this process, so that slices and commits are measured and not the wire. Commits are
timed in turns, without and with a checkpoint under way, on the same log.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Final

from bench.checkpoints import (
    COMMANDS,
    JOB,
    TERM,
    WALL_MS,
    drop_cache,
    fill,
    load,
    options,
    started,
    write,
)
from bench.harness import BenchError, Result, Scale, middle
from bench.loads import FAR_MS
from wal.disk import RealDisk
from wal.frame import FsyncMode, split_frames
from wal.log import open_store
from wheel.engine.core import Commit, Core
from wheel.engine.facts import CheckpointPhase, CheckpointState

COMMAND: Final = "python -m bench.run checkpoint"
RATE_BYTES: Final = 200_000_000  # as the server gives it
COMMIT_JOBS: Final = 32
COMMITS_LEAST: Final = 2_000
MADE_MOST: Final = 4_000_000  # jobs of one round's commits
SLICE_US_MOST: Final = 1_000
P99_RATIO_MOST: Final = 1.5
JOBS_LEAST: Final = 2e6  # a second
LOG_SHARE: Final = 4  # the log behind the checkpoint has one job for so many in it
REPLAY_BYTES: Final = 1 << 20


# ---------------------------------------------------------------- while the server works


class Working:
    """A core with many jobs and a real log, and commits on it that are timed."""

    def __init__(self, folder: Path, jobs: int) -> None:
        given = options(jobs + MADE_MOST, commit=Commit.INLINE)
        store = open_store(
            str(folder / "data"),
            disk=RealDisk(),
            fsync=FsyncMode.ALWAYS,
            wall_ms=WALL_MS,
            new_uuid=given.store,
        )
        for _chunk in store.replay():
            raise BenchError("the fresh store has a log")
        self.log = store.start(wall_ms=WALL_MS, rel_minus_boot_ms=0, boot_id=bytes(16), salt_seed=1)
        self.core = started(Core(given))
        self.core.attach_log(self.log.handle)
        self.path = folder / "next.tmp"
        self.handle = self.core.fed_open("bench")
        self.number = 0
        self.made: list[bytes] = []  # ids
        for _ in range(0, jobs, COMMANDS):
            self.commit(COMMANDS)
        self.made.clear()

    def commit(self, jobs: int = COMMIT_JOBS) -> float:
        """Return the seconds that the commit of so many new jobs took.

        Raises:
            BenchError: one of them was refused.
        """
        numbers = range(self.number, self.number + jobs)
        self.number += jobs
        took_s, replies = self._committed(
            b"".join(JOB % (FAR_MS + i * 7_919_113 % 86_400_000, i) for i in numbers)
        )
        lines = replies.split(b"\r\n")
        if len(lines) != 2 * jobs + 1:  # a length and an id each
            raise BenchError(f"not every job was taken: {replies[-80:]!r}")
        self.made += lines[1::2]
        return took_s

    def forget(self) -> None:
        """Cancel what was made since the last time: each round has the same jobs to write."""
        for first in range(0, len(self.made), COMMANDS):
            some = self.made[first : first + COMMANDS]
            replies = self._committed(b"".join(b"CANCEL %s\r\n" % job for job in some))[1]
            if replies.count(b"+CANCELLED") != len(some):
                raise BenchError(f"not every job was cancelled: {replies[-80:]!r}")
        self.made.clear()

    def _committed(self, commands: bytes) -> tuple[float, bytes]:
        self.core.fed_input(self.handle, commands)
        begun = time.perf_counter()
        self.core.commit()
        took_s = time.perf_counter() - begun
        replies = bytes(self.core.fed_output(self.handle).data)
        self.core.fed_taken(self.handle, len(replies))
        return took_s, replies

    def checkpoint(self) -> tuple[list[float], CheckpointState]:
        """Return the times of the commits during a checkpoint, and its figures."""
        times: list[float] = []
        self.core.checkpoint_start(str(self.path), salt=7, rate_bytes=RATE_BYTES)
        while (state := self.core.checkpoint_state()).phase < CheckpointPhase.DONE:
            times.append(self.commit())
        if state.phase != CheckpointPhase.DONE:
            raise BenchError(f"the checkpoint failed: {state}")
        return times, state

    def close(self) -> None:
        """Let go of the core, then of the log."""
        self.core.close()
        self.log.close()


def _p99_us(times_s: list[float]) -> float:
    return 1e6 * quantiles(times_s, n=100)[98]


def _while_working(folder: Path, scale: Scale) -> Iterator[Result]:
    jobs = scale.restart_jobs
    scale.progress(f"commits beside a checkpoint of {jobs:,} jobs")
    working = Working(folder, jobs)
    alone_us: list[float] = []
    beside_us: list[float] = []
    slices_us: list[float] = []
    row_ns: list[float] = []
    for _ in range(scale.rounds):
        times, state = working.checkpoint()
        most = max(COMMITS_LEAST, len(times))
        alone_us.append(_p99_us([working.commit() for _ in range(most)]))
        beside_us.append(_p99_us(times))
        slices_us.append(state.slice_cpu_ns_max / 1e3)
        row_ns.append(state.scan_ns / state.slots)
        working.forget()
    working.close()
    name = f"checkpoint of {jobs:,} jobs at {RATE_BYTES // 1_000_000} MB/s"
    ratios = [beside / alone for beside, alone in zip(beside_us, alone_us, strict=True)]
    yield Result(
        figure=f"{name}: p99 of a commit, against none under way",
        value=middle(ratios),
        unit="x",
        at_most=P99_RATIO_MOST,
        rounds=tuple(ratios),
        command=COMMAND,
    )
    for figure, unit, rounds, most_of in (
        ("p99 of a commit beside it", "us", beside_us, None),
        ("p99 of a commit without", "us", alone_us, None),
        ("longest slice, CPU", "us", slices_us, SLICE_US_MOST),
        ("CPU of the loop a row", "ns", row_ns, None),
    ):
        yield Result(
            figure=f"{name}: {figure}",
            value=middle(rounds),
            unit=unit,
            at_most=most_of,
            rounds=tuple(rounds),
            command=COMMAND,
        )


# ---------------------------------------------------------------- restart


def _log_behind(core: Core, jobs: int, records: int) -> bytes:
    """Return the frames of so many new jobs, with so many records in each."""
    return b"".join(fill(core, jobs, commands=records))


def _restart(path: Path, log: bytes, jobs: int) -> tuple[float, float]:
    """Return the seconds from the file and the log to a core that serves, and those of CPU."""
    core = Core(options(jobs))
    begun, cpu = time.perf_counter(), time.process_time()
    load(core, path)
    for frames in split_frames(memoryview(log), REPLAY_BYTES):
        core.replay(frames, term=TERM)
    started(core)
    took_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    found = core.engine_figures()["jobs_scheduled"]
    core.close()
    if found != jobs:
        raise BenchError(f"{found:,} jobs after the restart, not {jobs:,}")
    return took_s, cpu_s


def _restarts(folder: Path, scale: Scale, jobs: int) -> Iterator[Result]:
    behind = jobs // (LOG_SHARE + 1)
    path = folder / "restart.tmp"
    scale.progress(f"restart of {jobs:,} jobs from a checkpoint")
    for records in (1, 64):
        core = started(Core(options(jobs)))
        for _frame in fill(core, jobs - behind):
            pass
        write(core, path)
        log = _log_behind(core, behind, records)
        core.close()
        drop_cache(path)
        cold = jobs / _restart(path, log, jobs)[0]
        times = [_restart(path, log, jobs) for _ in range(scale.rounds)]
        rates = [jobs / took_s for took_s, _ in times]
        cpu_ns = [1e9 * cpu_s / jobs for _, cpu_s in times]
        name = f"restart of {jobs:,} jobs, 4/5 in a checkpoint, frames of {records}"
        yield Result(
            figure=f"{name}: warm",
            value=middle(rates),
            unit="jobs/s",
            at_least=JOBS_LEAST,
            rounds=tuple(rates),
            command=COMMAND,
        )
        yield Result(figure=f"{name}: cold", value=cold, unit="jobs/s", command=COMMAND)
        yield Result(
            figure=f"{name}: warm, CPU a job",
            value=middle(cpu_ns),
            unit="ns",
            rounds=tuple(cpu_ns),
            command=COMMAND,
        )


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return what checkpoints cost beside commits, and the rates of restarts from them."""
    results = list(_while_working(folder, scale))
    for jobs in scale.jobs_large:
        results += _restarts(folder, scale, jobs)
    return results
