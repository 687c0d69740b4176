"""A herd of jobs due in one millisecond, and what a PING feels meanwhile.

The herd is drained by 8 worker processes that lease 100 jobs at a time and acknowledge them with
the next LEASE; beside it Redis with the usual Lua claim, in the same rounds. The clock runs from
the due time to the last acknowledgement. Beside them a client sends a PING every millisecond.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import loads
from bench.harness import BenchError, Result, Scale, middle
from bench.peers import Peer, has_redis, redis, wheeld
from bench.workers import Pinged, Pinger, build, drain

COMMAND = "python -m bench.run herd"
WORKERS = 8
LEAD_S = 1.5  # and 10 us a job: from the first SCHEDULE to the due time
ROUND_TARGET_US = 2_000.0

Load = Callable[[Peer, Iterator[int]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Herd:
    """A herd drained: seconds from the due time to the last acknowledgement, pings meanwhile."""

    took_s: float
    ping: Pinged


def _herd(server: Peer, load: Load, program: Path, jobs: int) -> _Herd:
    """Return how a herd was drained.

    Raises:
        BenchError: jobs are missing, or came early.
    """
    due_ms = (time.time_ns() + int((LEAD_S + jobs * 10e-6) * 1e9)) // 1_000_000
    load(server, (due_ms for _ in range(jobs)))
    begin_ns = time.monotonic_ns() + (due_ms * 1_000_000 - time.time_ns())
    if begin_ns < time.monotonic_ns():
        raise BenchError("scheduling took longer than planned, the herd was due before its end")
    pinger = Pinger(server.port)
    try:
        done = drain(program, server, workers=WORKERS, begin_ns=begin_ns)
    finally:
        ping = pinger.stop()
    if done.jobs != jobs or done.early:
        raise BenchError(f"{server.name}: {done.jobs} of {jobs} jobs came, {done.early} early")
    return _Herd(took_s=(done.last_ns - begin_ns) / 1e9, ping=ping)


def _herd_results(folder: Path, scale: Scale, program: Path) -> list[Result]:
    jobs = scale.herd_jobs
    ours: list[_Herd] = []
    theirs: list[_Herd] = []
    rounds_us: list[float] = []
    for i in range(scale.rounds):
        scale.progress(f"herd, round {i + 1}")
        with wheeld(folder / f"herd-w{i}", fsync="off") as server:
            ours.append(_herd(server, loads.schedule, program, jobs))
            rounds_us.append(server.histogram("round_cpu_ns")["max"] / 1000)
        if has_redis():
            with redis(folder / f"herd-r{i}", append="none") as server:
                theirs.append(_herd(server, loads.zadd, program, jobs))
    name = f"herd of {jobs:,}, {WORKERS} workers"
    rows = [
        *_herd_rows(f"{name}: wheeld", ours),
        _row(f"{name}: longest loop round, thread CPU", "us", rounds_us, ROUND_TARGET_US),
    ]
    beside = f"{name}: time beside Redis' Lua claim"
    if not theirs:
        return [*rows, Result(figure=beside, value=None, unit="x", why="Redis is not installed")]
    ratios = [our.took_s / their.took_s for our, their in zip(ours, theirs, strict=True)]
    return [*rows, *_herd_rows(f"{name}: Redis", theirs), _row(beside, "x", ratios, 0.6)]


def _herd_rows(text: str, herds: list[_Herd]) -> list[Result]:
    return [
        _row(f"{text} drained in", "s", [herd.took_s for herd in herds]),
        _row(f"{text}, PING p50", "us", [herd.ping.p50_us for herd in herds]),
        _row(f"{text}, PING p99", "us", [herd.ping.p99_us for herd in herds]),
        _row(f"{text}, PING longest", "us", [herd.ping.max_us for herd in herds]),
    ]


def _row(figure: str, unit: str, values: list[float], at_most: float | None = None) -> Result:
    return Result(
        figure=figure,
        value=middle(values),
        unit=unit,
        at_most=at_most,
        rounds=tuple(values),
        command=COMMAND,
    )


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return the herd's figures."""
    return _herd_results(folder, scale, build(folder))
