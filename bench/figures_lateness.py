"""W4: how late due jobs leave, and that none is early.

An open loop: jobs are scheduled one by one at an even rate, each half a second before it is due, so
the server stores as many as it hands out. What counts is the server's own histogram, from the due
time until the last byte of the LEASE reply was given to the kernel; beside it stands what the
worker saw on its side, which has the way there and its own waiting for a CPU in it.

*A quiet handler beside a million ready*: the same stream for one handler, while another has a
million jobs that nobody takes, and once more while workers take them.

Peers are seen from the worker's side alone. A worker of Redis asks again a millisecond after it
found nothing. beanstalkd has whole seconds: its jobs are up to a second late by its nature.
"""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.contests import BEANSTALKD, OURS, ZADD, Contest, contenders, started
from bench.harness import BenchError, Plot, Result, Scale, middle, sync_us
from bench.loader import Report, ended, running
from bench.loader import run as load
from bench.peers import Peer

COMMAND: Final = "python -m bench.run lateness"
LEAD_MS: Final = 500
PATIENCE_S: Final = 30.0
PRODUCERS: Final = 4
WORKERS: Final = 4
BATCH: Final = 100
POLL_US: Final = 1_000
TARGETS_MS: Final = {5_000: 2.0, 50_000: 5.0}
SYNCS: Final = 2  # that `always` may take longer
CROWD: Final = 1_000_000
CROWD_WORKERS: Final = 4
CROWD_S: Final = 60.0
PEER_RATE: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """One stream of due jobs.

    Attributes:
        seen: what the workers saw.
        sent_us: the server's histogram, due to sent; only wheeld has one.
        cpu_us: the server's CPU time a job, its scheduling included.
    """

    seen: Report
    sent_us: dict[str, int]
    cpu_us: float


def stream(server: Peer, rate: int, seconds: int, handler: str = "mail") -> Late:
    """Return how late the jobs of a stream were.

    Raises:
        BenchError: jobs are missing, or were done twice.
    """
    jobs = rate * seconds
    batch = 1 if server.dialect == "beanstalkd" else BATCH  # several at once do not wait there
    before_us = server.cpu_us()
    seen = load(
        server,
        seconds=seconds + PATIENCE_S,
        producers=PRODUCERS,
        rate=rate,
        lead_ms=LEAD_MS,
        jobs=jobs,
        workers=WORKERS,
        batch=batch,
        poll_us=POLL_US,
        expect=jobs,
        handler=handler,
    )
    used_us = server.cpu_us() - before_us
    if seen.done != jobs or seen.duplicates:
        raise BenchError(f"{server.name}: {seen.done} of {jobs} done, {seen.duplicates} twice")
    sent_us = server.histogram("lateness_us") if server.dialect == "wheeld" else {}
    return Late(seen=seen, sent_us=sent_us, cpu_us=used_us / jobs)


def _rows(contest: Contest, streamed: list[Late], at_most_ms: float | None) -> list[Result]:
    """Return the rows of wheeld's rounds."""
    seen = [late.seen for late in streamed]

    def sent(what: str, name: str, bound: float | None = None) -> Result:
        return contest.row(
            f"due to sent, {what}",
            "ms",
            [late.sent_us[name] / 1000 for late in streamed],
            at_most=bound,
            plot=Plot(chart="lateness", series=what, at=contest.at) if contest.at else None,
        )

    return [
        sent("p50", "p50"),
        sent("p99", "p99", at_most_ms),
        sent("longest", "max"),
        *_seen_rows(contest, OURS, seen),
        contest.row("server CPU", "us/job", [late.cpu_us for late in streamed]),
    ]


def _seen_rows(contest: Contest, name: str, seen: list[Report]) -> list[Result]:
    early = [float(report.early) for report in seen]
    p50_ms = [report.late_us.p50 / 1000 for report in seen]
    p99_ms = [report.late_us.p99 / 1000 for report in seen]
    return [
        contest.row(f"{name}, due to received, p50", "ms", p50_ms),
        contest.row(f"{name}, due to received, p99", "ms", p99_ms),
        contest.row(f"{name}, early", "jobs", early, at_most=0.0 if name == OURS else None),
    ]


# ---------------------------------------------------------------- streams


def target_ms(fsync: str, rate: int, syncs_us: Sequence[float]) -> float | None:
    """Return the target of a stream's p99.

    Args:
        fsync: wheeld's mode.
        rate: jobs a second.
        syncs_us: what a sync took beside each round.
    """
    at_most = TARGETS_MS.get(rate)
    if at_most is None or fsync != "always":
        return at_most
    return round(at_most + SYNCS * middle(syncs_us) / 1000, 3)


def _streams(folder: Path, scale: Scale, fsync: str) -> list[Result]:
    """Return the rows of wheeld at each rate."""
    found: list[Result] = []
    for rate in scale.steady_rates:
        text = f"W4 {fsync}, {rate:,} jobs/s for {scale.steady_s} s"
        contest = Contest(text=text, command=COMMAND, at=f"{fsync}, {rate:,}/s")
        streamed: list[Late] = []
        syncs_us: list[float] = []
        for round_number in range(scale.rounds):
            scale.progress(f"{text}, round {round_number + 1}")
            with started(folder, contenders(fsync)[OURS]) as server:
                syncs_us.append(sync_us(folder))
                streamed.append(stream(server, rate, scale.steady_s))
        if fsync == "always":
            found.append(contest.row("fdatasync of 4 KiB on this disk", "us", syncs_us))
        found += _rows(contest, streamed, target_ms(fsync, rate, syncs_us))
    return found


def _peers(folder: Path, scale: Scale) -> list[Result]:
    """Return the rows of the peers, at the lower rate: what a worker of theirs sees."""
    contest = Contest(text=f"W4 off, {PEER_RATE:,} jobs/s for {scale.steady_s} s", command=COMMAND)
    starts = contenders("off", hset=False)
    found: list[Result] = []
    for name in (ZADD, BEANSTALKD):
        seen: list[Report] = []
        if name not in starts:
            why = f"{name} is not installed"
            found.append(contest.missing(f"{name}, due to received, p99", "ms", why))
            continue
        for round_number in range(scale.rounds):
            scale.progress(f"W4, {name}, round {round_number + 1}")
            with started(folder, starts[name]) as server:
                seen.append(stream(server, PEER_RATE, scale.steady_s).seen)
        found += _seen_rows(contest, name, seen)
    return found


# ---------------------------------------------------------------- a quiet handler beside a crowd


@contextmanager
def _crowd(server: Peer, *, worked_off: bool) -> Generator[None, None, None]:
    """Give another handler a million ready jobs; have them taken while the block runs, or not."""
    stored = load(
        server, seconds=CROWD_S, producers=8, depth=100, jobs=CROWD, handler="crowd"
    ).stored
    if stored != CROWD:
        raise BenchError(f"{stored:,} of {CROWD:,} jobs were stored in {CROWD_S:g} s")
    with ExitStack() as stack:
        if worked_off:
            process = stack.enter_context(
                running(
                    server,
                    seconds=CROWD_S,
                    workers=CROWD_WORKERS,
                    batch=1,
                    expect=CROWD,
                    handler="crowd",
                )
            )
            stack.callback(ended, process)
        yield


def _quiet(folder: Path, scale: Scale) -> list[Result]:
    """Return the rows of a stream whose handler is not the one that has a million ready."""
    found: list[Result] = []
    for worked_off in (False, True):
        how = "being taken" if worked_off else "waiting"
        text = f"W4 off, {PEER_RATE:,} jobs/s beside {CROWD:,} of another handler {how}"
        at = f"off, {PEER_RATE:,}/s, beside a million" if not worked_off else ""
        contest = Contest(text=text, command=COMMAND, at=at)
        streamed: list[Late] = []
        for round_number in range(scale.rounds):
            scale.progress(f"{text}, round {round_number + 1}")
            start = contenders("off")[OURS]
            with started(folder, start) as server, _crowd(server, worked_off=worked_off):
                streamed.append(stream(server, PEER_RATE, scale.steady_s, handler="quiet"))
        if worked_off:  # the server's histogram has the crowd's lateness too
            found += _seen_rows(contest, OURS, [late.seen for late in streamed])
        else:
            found += _rows(contest, streamed, TARGETS_MS[PEER_RATE])
    return found


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return how late jobs leave that fall due evenly, and that none is early."""
    return [
        *_streams(folder, scale, "off"),
        *_streams(folder, scale, "always"),
        *(_peers(folder, scale) if scale.all_points else []),
        *_quiet(folder, scale),
    ]
