"""The load generator (bench/load, in C): compiled where it is first needed, run, and read.

In C because what is measured is the server: on two CPUs a load in Python, and redis-benchmark too,
is at its end before the servers are. How busy the generator itself was stands in every report
(``busy``); where that is near 1, the rate is the generator's and the server's CPU time tells more.
"""

import functools
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from bench.harness import ROOT, BenchError
from bench.peers import Peer

SOURCES: Final = ROOT / "bench" / "load"
CFLAGS: Final = (
    *("-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"),
    *("-Wstrict-prototypes", "-Wmissing-prototypes", "-Wformat=2", "-Werror"),
)
GRACE_S: Final = 60  # for connecting, for the last replies, and for a busy machine
SEED: Final = 1
SECONDS_MAX: Final = 600


# ---------------------------------------------------------------- what a run prints


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A histogram in us; its buckets are 6 % wide, and what is told is a bucket's upper end."""

    count: int
    p50: int
    p99: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one run of the generator did.

    Attributes:
        dialect: what it spoke.
        seed: of the random due times.
        sent: jobs scheduled.
        stored: of them, confirmed.
        leased: jobs that workers were given.
        done: of them, acknowledged, and the acknowledgement confirmed.
        early: jobs that came before the due time in their payload.
        duplicates: acknowledged a second time.
        seconds: from the first command to the last reply that counted.
        own_cpu_s: CPU time that the generator took.
        begin_ns: CLOCK_MONOTONIC of the first command.
        last_ns: CLOCK_MONOTONIC of the last reply that counted.
        store_us: from the write of a batch to the last reply to it; not in an open loop.
        late_us: from due until the job had been received.
        ping_us: round trips of pings.
    """

    dialect: str
    seed: int
    sent: int
    stored: int
    leased: int
    done: int
    early: int
    duplicates: int
    seconds: float
    own_cpu_s: float
    begin_ns: int
    last_ns: int
    store_us: Figures
    late_us: Figures
    ping_us: Figures

    @property
    def busy(self) -> float:
        """Return the part of a CPU that the generator used; near 1 it was at its end."""
        return self.own_cpu_s / max(self.seconds, 1e-9)


def parse(text: str) -> Report:
    """Return what the line of JSON says.

    Raises:
        BenchError: it is another text, a field is missing, or is not known here.
    """
    try:
        found = json.loads(text)
        values = dict(found)
        for name in ("store_us", "late_us", "ping_us"):
            values[name] = Figures(**values[name])
        report = Report(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise BenchError(f"the load generator printed {text[:300]!r}: {error}") from error
    for field in fields(Report):
        value = getattr(report, field.name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if field.type in {int, float} and not (number and value >= 0):
            raise BenchError(f"the load generator printed {field.name} = {value!r}")
    return report


# ---------------------------------------------------------------- compile


def compile_to(folder: Path) -> Path:
    """Return the compiled generator below folder; it is made anew when a source has changed.

    Raises:
        BenchError: there is no C compiler, or it finds something wrong.
    """
    compiler = [*shlex.split(os.environ.get("CC", "cc")), *CFLAGS]
    sources = sorted(SOURCES.glob("*.[ch]"))
    if not sources:
        raise BenchError("bench/load is not installed with wheeld: measure this in a checkout")
    digest = hashlib.sha256(" ".join(compiler).encode())
    for source in sources:
        digest.update(source.read_bytes())
    program = folder / f"load-{digest.hexdigest()[:16]}"
    if program.exists():
        return program
    if not shutil.which(compiler[0]):
        raise BenchError(f"no C compiler {compiler[0]!r}: install gcc, or set CC")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        made = Path(name) / "load"
        files = [str(source) for source in sources if source.suffix == ".c"]
        done = subprocess.run(
            [*compiler, *files, "-o", str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BenchError(f"the load generator does not compile: {done.stderr[-2000:]}")
        made.rename(program)  # whole or not at all, whoever else compiles it at the same time
    return program


def cache_folder() -> Path:
    """Return where the generator is kept: below build/ of a checkout, else in the user's cache."""
    if (ROOT / "csrc").is_dir():
        return ROOT / "build" / "load"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "wheeld"


@functools.cache
def program() -> Path:
    """Return the generator, compiled into the cache, or where that cannot be written a new folder.

    Raises:
        BenchError: it cannot be compiled.
    """
    try:
        return compile_to(cache_folder())
    except (OSError, RuntimeError):  # there may be no home
        return compile_to(Path(tempfile.mkdtemp(prefix="wheeld-load-")))


# ---------------------------------------------------------------- run


def command(server: Peer, *, seconds: float, **options: int | str) -> list[str]:
    """Return the command line of a run against a server; load.c tells what the options mean."""
    words = [str(program()), "--dialect", server.dialect, "--port", str(server.port)]
    words += [*server.words, "--seconds-ms", str(int(seconds * 1000))]
    for name, value in {"seed": SEED, **options}.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def run(server: Peer, *, seconds: float, **options: int | str) -> Report:
    """Run the generator to its end.

    Args:
        server: what it is run against.
        seconds: when it ends at the latest, whatever was done until then.
        options: of load.c: producers, depth, jobs, workers, batch, expect ...

    Raises:
        BenchError: a reply was another one than expected, or it does not end.
    """
    with running(server, seconds=seconds, **options) as process:
        return finished(process, seconds)


@contextmanager
def running(
    server: Peer, *, seconds: float, **options: int | str
) -> Generator[subprocess.Popen[str], None, None]:
    """Run the generator beside what the block does; ``finished`` or ``ended`` read what it did.

    Raises:
        BenchError: more than ten minutes are asked for.
    """
    if not 0 < seconds <= SECONDS_MAX:
        raise BenchError(f"{seconds} s of load: between 0 and {SECONDS_MAX} s are possible")
    process = subprocess.Popen(
        command(server, seconds=seconds, **options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> Report:
    """End a generator that runs beside, and return what it did until now.

    Raises:
        BenchError: it had failed before.
    """
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    return finished(process, 0)


def finished(process: subprocess.Popen[str], seconds: float) -> Report:
    """Wait for a generator that runs beside, and return what it did.

    Args:
        process: from ``running``.
        seconds: how long it may still take, and a minute.

    Raises:
        BenchError: it failed, or does not end.
    """
    try:
        out, errors = process.communicate(timeout=seconds + GRACE_S)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"the load generator did not end in {seconds + GRACE_S:g} s") from error
    if process.returncode != 0:
        raise BenchError(errors.strip()[-500:] or f"exit status {process.returncode}")
    return parse(out)
