"""Contests: the same load on wheeld and its peers in turn, and the rows that tell who did what.

A *round* starts each server afresh in an empty folder, lets it come to rest, and loads it; the next
server follows. Each round turns the order round. A ratio is taken in each round, of figures that
were measured within seconds of each other; what stands in the table is the median of the ratios.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.harness import BenchError, Plot, Result, Scale, middle, sync_us
from bench.loader import Report
from bench.peers import Peer, beanstalkd, has_beanstalkd, has_redis, redis, wheeld

OURS: Final = "wheeld"
ZADD: Final = "Redis ZADD"
HSET: Final = "Redis HSET+ZADD"
BEANSTALKD: Final = "beanstalkd"
POSTGRES: Final = "PostgreSQL"
BEST: Final = "the best peer"

REST_S: Final = 0.03
REST_US: Final = 500.0  # CPU time in REST_S that counts as rest
REST_TIMES: Final = 2  # in a row
REST_PATIENCE_S: Final = 3.0

Start = Callable[[Path], AbstractContextManager[Peer]]


# ---------------------------------------------------------------- servers


def contenders(fsync: str, *, hset: bool = True) -> dict[str, Start]:
    """Return how wheeld and the installed peers are started, by name.

    Args:
        fsync: wheeld's mode; what stands beside it is told in bench/peers.py.
        hset: whether Redis takes part a second time, with a hash of payloads.
    """
    append = {"off": "none", "interval": "everysec", "always": "always"}[fsync]
    sync_ms = {"off": None, "interval": 50, "always": 0}[fsync]
    found: dict[str, Start] = {OURS: lambda folder: wheeld(folder, fsync=fsync)}
    if has_redis():
        found[ZADD] = lambda folder: redis(folder, append=append)
        if hset:
            found[HSET] = lambda folder: redis(folder, append=append, dialect="hset")
    if has_beanstalkd():
        found[BEANSTALKD] = lambda folder: beanstalkd(folder, sync_ms=sync_ms)
    return found


@contextmanager
def started(folder: Path, start: Start) -> Generator[Peer, None, None]:
    """Run a server in a new folder below this one; the folder is gone when the block has ended."""
    here = Path(tempfile.mkdtemp(dir=folder))
    try:
        with start(here / "s") as server:
            rest(server.cpu_us)
            yield server
    finally:
        shutil.rmtree(here, ignore_errors=True)  # or a hundred logs would fill the disk


def rest(cpu_us: Callable[[], float]) -> None:
    """Return when a server that was just started has come to rest, or after three seconds."""
    deadline = time.monotonic() + REST_PATIENCE_S
    before_us, quiet = cpu_us(), 0
    while quiet < REST_TIMES and time.monotonic() < deadline:
        time.sleep(REST_S)
        now_us = cpu_us()
        quiet = quiet + 1 if now_us - before_us < REST_US else 0
        before_us = now_us


# ---------------------------------------------------------------- what was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One server in one round.

    Attributes:
        rate: jobs a second.
        cpu_us: CPU time of all the server's threads, a job.
        busy: part of a CPU that the load generator used; 0 = not known.
    """

    rate: float
    cpu_us: float
    busy: float = 0.0


def timed(server: Peer, load: Callable[[], Report], jobs: Callable[[Report], int]) -> Sample:
    """Return what a load came to.

    Args:
        server: whose CPU time is taken.
        load: runs it.
        jobs: how many jobs of the report count.

    Raises:
        BenchError: nothing was done, or a job came early or twice.
    """
    before_us = server.cpu_us()
    report = load()
    used_us = server.cpu_us() - before_us
    count = jobs(report)
    if report.early or report.duplicates:
        raise BenchError(f"{server.name}: {report.early} early, {report.duplicates} done twice")
    if count <= 0 or report.seconds <= 0:
        raise BenchError(f"{server.name} did nothing in {report.seconds:g} s")
    return Sample(rate=count / report.seconds, cpu_us=used_us / count, busy=report.busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What ours is to reach beside a peer: in rate at least, in CPU time a job at most."""

    peer: str
    rate: float | None = None
    cpu: float | None = None


@dataclass(slots=True, kw_only=True)
class Contest:
    """One load, and what each server did under it, round by round.

    Attributes:
        text: the load in words.
        command: that measures it.
        samples: by server, a round each.
        whys: by server, why it was not measured.
        at: the load in few words, as it stands under a picture.
        rate_chart: the picture (bench/plots.py) of the rates; "" = in none.
        cpu_chart: the same of the CPU time a job.
    """

    text: str
    command: str
    at: str = ""
    rate_chart: str = ""
    cpu_chart: str = ""
    samples: dict[str, list[Sample]] = field(default_factory=dict[str, list[Sample]])
    whys: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, name: str, sample: Sample) -> None:
        """Take down what a server did in this round."""
        self.samples.setdefault(name, []).append(sample)

    def ratios(self, peer: str, of: Callable[[Sample], float]) -> list[float]:
        """Return ours divided by theirs, a round each; ``BEST`` = by the quickest of the round.

        Raises:
            BenchError: that peer was not measured in each round.
        """
        ours = self.samples[OURS]
        if peer == BEST:
            rows = [rows for name, rows in self.samples.items() if name != OURS]
            theirs = [max(sample, key=lambda one: one.rate) for sample in zip(*rows, strict=True)]
        else:
            theirs = self.samples.get(peer, [])
        if not theirs or len(theirs) != len(ours):
            raise BenchError(self.whys.get(peer, f"{peer} is not installed"))
        return [of(our) / of(their) for our, their in zip(ours, theirs, strict=True)]

    def rows(self, *targets: Target, at_least: float | None = None) -> list[Result]:
        """Return a row for each figure of each server, and one for each target.

        Args:
            targets: beside peers; those without a bound only show the ratio.
            at_least: the target of our own rate.
        """
        found: list[Result] = []
        for name, samples in self.samples.items():
            rates = [sample.rate for sample in samples]
            costs = [sample.cpu_us for sample in samples]
            bound = at_least if name == OURS else None
            found.append(
                self.row(
                    name, "jobs/s", rates, at_least=bound, plot=self._plot(self.rate_chart, name)
                )
            )
            found.append(
                self.row(
                    f"{name}, server CPU", "us/job", costs, plot=self._plot(self.cpu_chart, name)
                )
            )
        if self.samples.get(OURS):
            busy = [sample.busy * 100 for sample in self.samples[OURS]]
            found.append(self.row("wheeld, CPU that the load generator used", "%", busy))
        for target in targets:
            if target.rate is not None or target.cpu is None:
                found.append(self._beside(target.peer, target.rate, None))
            if target.cpu is not None:
                found.append(self._beside(target.peer, None, target.cpu))
        return found

    def _plot(self, chart: str, series: str) -> Plot | None:
        return Plot(chart=chart, series=series, at=self.at) if chart else None

    def _beside(self, peer: str, rate: float | None, cpu: float | None) -> Result:
        what = "server CPU a job" if cpu is not None else "rate"
        try:
            ratios = self.ratios(peer, lambda one: one.cpu_us if cpu is not None else one.rate)
        except (BenchError, ValueError) as error:
            return self.missing(f"{what} beside {peer}", "x", str(error), rate, cpu)
        return self.row(f"{what} beside {peer}", "x", ratios, at_least=rate, at_most=cpu)

    def row(
        self,
        what: str,
        unit: str,
        values: Sequence[float],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        plot: Plot | None = None,
    ) -> Result:
        """Return the row of one figure."""
        return Result(
            figure=f"{self.text}: {what}",
            value=middle(values),
            unit=unit,
            at_least=at_least,
            at_most=at_most,
            rounds=tuple(values),
            command=self.command,
            plot=plot,
        )

    def missing(
        self,
        what: str,
        unit: str,
        why: str,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> Result:
        """Return the row of a figure that could not be measured."""
        return Result(
            figure=f"{self.text}: {what}",
            value=None,
            unit=unit,
            at_least=at_least,
            at_most=at_most,
            why=why,
            command=self.command,
        )


def in_turn(names: Sequence[str], round_number: int) -> list[str]:
    """Return the order of a round: each second one is the other way round."""
    return list(names) if round_number % 2 == 0 else list(reversed(names))


def compete(
    contest: Contest,
    folder: Path,
    scale: Scale,
    starts: dict[str, Start],
    load: Callable[[Peer], Sample],
) -> None:
    """Run the rounds of a contest.

    Args:
        contest: takes down what was done.
        folder: for the servers' data.
        scale: how many rounds.
        starts: the servers.
        load: is run on each of them.
    """
    for round_number in range(scale.rounds):
        scale.progress(f"{contest.text}, round {round_number + 1}")
        for name in in_turn(list(starts), round_number):
            with started(folder, starts[name]) as server:
                contest.add(name, load(server))


def disk_row(contest: Contest, folder: Path, scale: Scale) -> Result:
    """Return the time of one sync of this disk now: what stands beside each durable figure."""
    return contest.row(
        "fdatasync of 4 KiB on this disk", "us", [sync_us(folder) for _ in range(scale.rounds)]
    )
