"""W5: a herd of jobs due in one millisecond, and what a PING feels meanwhile.

The jobs are scheduled ahead; 8 workers begin at the due time, take batches of 100, and acknowledge
them with the next claim. The time runs from the due time to the last acknowledgement. Beside them a
process of its own sends a PING every millisecond, from just before the due time on.

Redis does nothing when a member's time has come, so its herd is due when it is stored, and the time
runs from the first claim. beanstalkd has whole seconds, so its herd would be spread over one: it is
stopped (SIGSTOP) until all of it is due, and the time runs from when it goes on. PostgreSQL has no
PING; ``SELECT 1`` on a connection of its own stands for it. beanstalkd and PostgreSQL take 20 s for
a million jobs, so they do that once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.contests import (
    BEANSTALKD,
    OURS,
    POSTGRES,
    ZADD,
    Contest,
    Sample,
    compete,
    contenders,
)
from bench.figures_schedule import FAR_MS
from bench.harness import BenchError, Plot, Result, Scale, middle
from bench.loader import Figures, Report, ended, finished, running
from bench.loader import run as load
from bench.peers import Peer
from bench.postgres import PAYLOAD, Postgres, life_cycle, postgres

COMMAND: Final = "python -m bench.run herd"
WORKERS: Final = 8
BATCH: Final = 100
AHEAD_JOBS: Final = 10_000  # far in the future, to learn how long storing takes here and now
LEAD_S: Final = 1.0  # from the first command to the due time, and so many times what storing takes:
LEAD_TIMES: Final = 2
BEGIN_MS: Final = 300  # from a herd that is there until the workers begin
NAMES: Final = {"wheeld": OURS, "zadd": ZADD, "beanstalkd": BEANSTALKD}
PING_AHEAD_S: Final = 0.1
SMEAR_S: Final = 1.0  # beanstalkd rounds up to whole seconds
DRAIN_S: Final = 300.0
RATE_JOBS: Final = 1_000_000  # from this size on the rate has a target
RATE_TARGET: Final = 500_000.0
ROUND_TARGET_US: Final = 2_000.0
SLOW_JOBS_MAX: Final = 100_000  # from this size on slow peers run once


@dataclass(slots=True, kw_only=True)
class Herd:
    """The herds of one size.

    Attributes:
        jobs: in each.
        contest: rates and CPU time.
        pings: what a PING felt, by server, a round each.
        rounds_us: wheeld's longest round of its loop, CPU time of the thread.
    """

    jobs: int
    contest: Contest
    pings: dict[str, list[Figures]] = field(default_factory=dict[str, list[Figures]])
    rounds_us: list[float] = field(default_factory=list[float])


def _store(server: Peer, jobs: int) -> int:
    """Schedule jobs for one millisecond, and return when the workers begin.

    Raises:
        BenchError: they are not all there, or were due before they were.
    """

    def store(count: int, due_ms: int, first: int) -> Report:
        return load(
            server,
            seconds=DRAIN_S,
            producers=WORKERS,
            depth=BATCH,
            jobs=count,
            first=first,
            at_ms=due_ms,
        )

    ahead = store(AHEAD_JOBS, FAR_MS, jobs)
    lead_s = LEAD_S + LEAD_TIMES * jobs * ahead.seconds / AHEAD_JOBS
    if server.dialect == "zadd":
        lead_s = 0.0
    due_ms = (time.time_ns() + int(lead_s * 1e9)) // 1_000_000
    stored = store(jobs, due_ms, 0).stored
    there = server.jobs() - ahead.stored
    if stored != jobs or there != jobs:
        raise BenchError(f"{server.name}: {stored} of {jobs} jobs confirmed, {there} there")
    if server.dialect == "zadd":
        return time.time_ns() // 1_000_000 + BEGIN_MS
    if time.time_ns() >= due_ms * 1_000_000:
        raise BenchError(f"{server.name}: the herd was due before all of it was stored")
    return due_ms


def drain(server: Peer, jobs: int) -> tuple[Report, Figures, float]:
    """Return what the workers did, what a PING felt, and the server's CPU time in us.

    Raises:
        BenchError: a job is missing, came early, or was done twice.
    """
    due_ms = _store(server, jobs)
    begin_ns = time.monotonic_ns() + due_ms * 1_000_000 - time.time_ns()
    smeared = server.dialect == "beanstalkd"
    if smeared:
        begin_ns += int(SMEAR_S * 1e9)
    ping_ns = begin_ns - (0 if smeared else int(PING_AHEAD_S * 1e9))
    before_us = server.cpu_us()
    with (
        running(server, seconds=DRAIN_S, pingers=1, begin_ns=ping_ns) as pinger,
        running(
            server, seconds=DRAIN_S, workers=WORKERS, batch=BATCH, expect=jobs, begin_ns=begin_ns
        ) as workers,
    ):
        if smeared:
            with server.stopped():
                time.sleep(max(0.0, (begin_ns - time.monotonic_ns()) / 1e9))
        report = finished(workers, DRAIN_S)
        used_us = server.cpu_us() - before_us
        ping = ended(pinger).ping_us
    left = server.jobs() - AHEAD_JOBS
    if report.done != jobs or report.early or report.duplicates or left:
        counts = f"{report.done} of {jobs} done, {report.early} early, {report.duplicates} twice"
        raise BenchError(f"{server.name}: {counts}, {left} left")
    return report, ping, used_us


def _measure(server: Peer, herd: Herd) -> Sample:
    report, ping, used_us = drain(server, herd.jobs)
    herd.pings.setdefault(NAMES[server.dialect], []).append(ping)
    if server.dialect == "wheeld":
        herd.rounds_us.append(server.histogram("round_cpu_ns")["max"] / 1000)
    return Sample(rate=herd.jobs / report.seconds, cpu_us=used_us / herd.jobs, busy=report.busy)


def _postgres(herd: Herd, folder: Path, scale: Scale) -> None:
    """Let PostgreSQL take part; or say why it does not."""
    try:
        with postgres(folder, durable=False) as server:
            for round_number in range(scale.rounds):
                scale.progress(f"{herd.contest.text}, PostgreSQL, round {round_number + 1}")
                _measure_postgres(herd, server)
    except BenchError as error:
        herd.contest.whys[POSTGRES] = str(error)


def _measure_postgres(herd: Herd, server: Postgres) -> None:
    server.empty()
    server.sql(
        "INSERT INTO jobs (handler, payload, next_run_at) "
        f"SELECT 'mail', '{PAYLOAD}', now() FROM generate_series(1, {herd.jobs}); ANALYZE jobs"
    )
    words = ("-t", str(herd.jobs // BATCH // WORKERS))
    before_us = server.cpu_us()
    with server.pinged() as pings:
        ran = server.pgbench(life_cycle(BATCH, store=False), *words, clients=WORKERS)
    done = ran.transactions * BATCH
    cost = (server.cpu_us() - before_us) / done
    herd.contest.add(POSTGRES, Sample(rate=ran.rate * BATCH, cpu_us=cost))
    herd.pings.setdefault(POSTGRES, []).extend(pings)


# ---------------------------------------------------------------- rows


def ping_rows(herd: Herd) -> list[Result]:
    """Return what a PING felt, and whether ours is below each peer's of the same round."""
    contest = herd.contest
    found: list[Result] = []
    figures: tuple[tuple[str, Callable[[Figures], int]], ...] = (
        ("p50", lambda one: one.p50),
        ("p99", lambda one: one.p99),
        ("longest", lambda one: one.max),
    )
    for name, pings in herd.pings.items():
        found += [
            contest.row(f"{name}, PING {what}", "us", [float(of(ping)) for ping in pings])
            for what, of in figures
        ]
    others = [pings for name, pings in herd.pings.items() if name != OURS]
    what = "longest PING beside the best peer's of the round"
    if not others:
        return [*found, contest.missing(what, "x", "no peer is installed", at_most=1.0)]
    ratios: list[float] = []
    for number, our in enumerate(herd.pings[OURS]):  # who ran once counts in each round
        best = min(pings[min(number, len(pings) - 1)].max for pings in others)
        ratios.append(our.max / max(best, 1))
    return [*found, contest.row(what, "x", ratios, at_most=1.0)]


def beside(herd: Herd, peer: str) -> Result:
    """Return our rate beside that of a peer, which may have run once."""
    contest = herd.contest
    theirs = [sample.rate for sample in contest.samples.get(peer, [])]
    if not theirs:
        why = contest.whys.get(peer, f"{peer} is not installed")
        return contest.missing(f"rate beside {peer}", "x", why)
    ours = [sample.rate for sample in contest.samples[OURS]]
    if len(theirs) == len(ours):
        ratios = contest.ratios(peer, lambda one: one.rate)
        return contest.row(f"rate beside {peer}", "x", ratios)
    return contest.row(f"rate beside {peer}, its one round", "x", [middle(ours) / middle(theirs)])


def _rows(herd: Herd) -> list[Result]:
    contest = herd.contest
    target = RATE_TARGET if herd.jobs >= RATE_JOBS else None
    return [
        *contest.rows(at_least=target),
        *(
            contest.row(
                f"{name}, until the last is done",
                "s",
                [herd.jobs / sample.rate for sample in samples],
                plot=Plot(chart="herd", series=name, at=f"{herd.jobs:,} jobs"),
            )
            for name, samples in contest.samples.items()
        ),
        *(beside(herd, peer) for peer in (ZADD, BEANSTALKD, POSTGRES)),
        contest.row(
            "longest round of the loop, thread CPU", "us", herd.rounds_us, at_most=ROUND_TARGET_US
        ),
        *ping_rows(herd),
    ]


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return how quickly herds are drained, the longest round, and what a PING feels."""
    found: list[Result] = []
    starts = contenders("off", hset=False)
    for jobs in scale.herds:
        herd = Herd(jobs=jobs, contest=Contest(text=f"W5 herd of {jobs:,}", command=COMMAND))
        measure = partial(_measure, herd=herd)
        slow = {name: start for name, start in starts.items() if name == BEANSTALKD}
        once = replace(scale, rounds=1)
        if jobs <= SLOW_JOBS_MAX:
            compete(herd.contest, folder, scale, starts, measure)
            _postgres(herd, folder, scale)
        else:
            quick = {name: start for name, start in starts.items() if name not in slow}
            compete(herd.contest, folder, scale, quick, measure)
            compete(herd.contest, folder, once, slow, measure)
            _postgres(herd, folder, once)
        found += _rows(herd)
    return found
