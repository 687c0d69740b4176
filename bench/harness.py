"""What every figure is made of: a result with its target, processes and their CPU, the machine.

Rates drift with what else the machine does; CPU time per command does so less. So every figure that
compares is taken in interleaved rounds, ours and the peer's in turn, and stands as a median.
"""

import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Final

import wheeld

ROOT: Final = Path(__file__).resolve().parents[1]
PATIENCE_S: Final = 60.0
SYNCS: Final = 200
SYNC_BYTES: Final = 4096
VERSION: Final = re.compile(r"\b(?:v=)?([0-9]+\.[0-9.]*[0-9])")
DISTURBED_LOAD: Final = 1.0  # runnable tasks per CPU before we start, from which we say so


class BenchError(Exception):
    """A peer or a tool did not do what it was started for; the text has its last words."""


# ---------------------------------------------------------------- results


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Where a figure stands in the pictures (bench/plots.py).

    Attributes:
        chart: the picture's name, one of ``plots.CHARTS``.
        series: what is compared: "wheeld", "Redis ZADD".
        at: the place on the other axis: a load in few words, or a number of jobs.
    """

    chart: str
    series: str
    at: str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the table.

    Attributes:
        figure: what was measured, with the load in words.
        value: the median; None = not measured, and ``why`` says why.
        unit: of value and of the target.
        at_most: the target, if it is an upper bound.
        at_least: the target, if it is a lower bound.
        command: how to measure this figure alone.
        rounds: the single values, in the order they were taken.
        why: the reason for no value.
        plot: where it stands in a picture; None = in none.
    """

    figure: str
    value: float | None
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    command: str = ""
    rounds: tuple[float, ...] = ()
    why: str = ""
    plot: Plot | None = None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Return the least and the greatest round; None when it was taken once."""
        return (min(self.rounds), max(self.rounds)) if len(self.rounds) > 1 else None

    @property
    def target(self) -> str:
        """Return the target as text; empty when there is none."""
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return f">= {self.at_least:g}" if self.at_least is not None else ""

    @property
    def verdict(self) -> str:
        """Return ``ok``, ``MISSED``, ``not measured``, or nothing without a target."""
        if self.value is None:
            return "not measured"
        if self.at_most is not None:
            return "ok" if self.value <= self.at_most else "MISSED"
        if self.at_least is not None:
            return "ok" if self.value >= self.at_least else "MISSED"
        return ""


def middle(values: Sequence[float]) -> float:
    """Return the median.

    Raises:
        BenchError: there are no values.
    """
    if not values:
        raise BenchError("no round gave a value")
    return median(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured: all of it, or what fits into a minute and a half."""

    rounds: int
    jobs_large: tuple[int, ...]  # for memory and restarts
    peer_jobs: int  # the same, beside peers: at most so many
    steady_s: int
    all_points: bool  # of W1, W2 and W4, or only those that have a target
    run_s: float  # one load against one server, if its jobs are not all done before
    far_jobs: int  # jobs at most in such a run
    backlog_jobs: int  # ready before the workers begin
    steady_rates: tuple[int, ...]  # jobs that fall due a second, for lateness
    herds: tuple[int, ...]  # jobs due in one millisecond
    restart_jobs: int
    wheel_rounds: int
    wheel_timers: int
    growth_timers: tuple[int, ...]
    day_schedules: int
    day_jobs: int  # beside their runs
    progress: Callable[[str], None] = field(default=lambda _text: None)


# ---------------------------------------------------------------- the machine


def first_line(path: str, start: str = "") -> str:
    """Return the first line of a file that begins with start, without it; "?" if there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return "?"
    found = next((line for line in lines if line.startswith(start)), "?")
    return found.removeprefix(start).strip(" \t:")


def output_of(*command: str) -> str:
    """Return what a short command prints, or "" when there is no such command or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def sync_us(folder: Path) -> float:
    """Return the median time of write + fdatasync of 4 KiB over bytes already on disk, in us."""
    took_us: list[float] = []
    block = bytes(SYNC_BYTES)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(block * SYNCS)
        file.flush()
        os.fsync(file.fileno())
        for i in range(SYNCS):
            start = time.perf_counter_ns()
            os.pwrite(file.fileno(), block, i * SYNC_BYTES)
            os.fdatasync(file.fileno())
            took_us.append((time.perf_counter_ns() - start) / 1000)
    return middle(took_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where and with what the figures were taken."""

    cpu: str
    cpu_count: int
    kernel: str
    memory_gib: float
    filesystem: str
    fdatasync_us: float
    load_1min: float
    huge_pages: str
    versions: dict[str, str]
    commit: str


def commit_of_tree() -> str:
    """Return the commit that is checked out, marked when files differ from it."""
    commit = output_of("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    dirty = output_of("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return (commit or "?") + ("+changes" if dirty else "")


def version_of(*command: str) -> str:
    """Return the version that a program prints, or "not found"."""
    found = VERSION.search(output_of(*command))
    return found[1] if found else "not found"


def postgres_program() -> str:
    """Return PostgreSQL's server; Debian keeps it off the path."""
    here = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=str)
    return shutil.which("postgres") or (str(here[-1]) if here else "postgres")


def versions() -> dict[str, str]:
    """Return the versions of what is measured, and of what it was made with."""
    return {
        "wheeld": wheeld.__version__,
        "python": platform.python_version(),
        "compiler": output_of(os.environ.get("CC", "gcc"), "--version").partition("\n")[0],
        "redis": version_of("redis-server", "--version"),
        "beanstalkd": version_of("beanstalkd", "-v"),
        "postgresql": version_of(postgres_program(), "--version"),
        "sortedcontainers": metadata.version("sortedcontainers"),
    }


def look_at_machine(folder: Path) -> Machine:
    """Return the description of this machine; syncs a small file in folder to time the disk."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cpu=first_line("/proc/cpuinfo", "model name"),
        cpu_count=os.cpu_count() or 0,
        kernel=platform.release(),
        memory_gib=round(pages / 2**30, 1),
        filesystem=output_of("findmnt", "-no", "FSTYPE", "-T", str(folder)) or "?",
        fdatasync_us=round(sync_us(folder), 1),
        load_1min=os.getloadavg()[0],
        huge_pages=first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        versions=versions(),
        commit=commit_of_tree(),
    )


def compiled(program: Path, sources: Sequence[Path], *flags: str) -> Path:
    """Return a program, compiled from C into this place.

    Raises:
        BenchError: there is no compiler or a source is not there, or it does not compile.
    """
    if missing := [path.name for path in sources if not path.exists()]:
        raise BenchError(f"{missing[0]} is not installed with wheeld: measure this in a checkout")
    command = [os.environ.get("CC", "gcc"), "-std=c11", "-O2", *map(str, sources), *flags]
    try:
        done = subprocess.run(
            [*command, "-o", str(program)], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise BenchError(
            f"{program.name} has to be compiled, and {command[0]} cannot be started: install a C "
            "compiler (Debian: apt-get install gcc libc6-dev)"
        ) from error
    if done.returncode != 0:
        raise BenchError(f"{program.name} does not compile: {done.stderr[-500:]}")
    return program


# ---------------------------------------------------------------- processes


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def cpu_us(pid: int) -> float:
    """Return the CPU time that all live threads of a process took so far, in us (schedstat)."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text(encoding="ascii").split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended in between
    return total_ns / 1000


def resident_bytes(pid: int) -> int:
    """Return the memory that the kernel counts for a process (smaps_rollup, Rss)."""
    text = first_line(f"/proc/{pid}/smaps_rollup", "Rss:")
    return int(text.split()[0]) * 1024


@contextmanager
def running(
    command: Sequence[str], log: Path, **env: str
) -> Generator[subprocess.Popen[bytes], None, None]:
    """Run a process; at the end ask it to stop, and kill it if it does not.

    Args:
        command: program and arguments.
        log: file that gets what it prints.
        env: variables on top of ours.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to stop and wait for it; kill it after a while."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
