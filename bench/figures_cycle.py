"""The second half of a job's life: leased and acknowledged, beside Redis's Lua claim."""

import time
from pathlib import Path

from bench import loads
from bench.harness import BenchError, Result, Scale, middle
from bench.peers import has_redis, redis, wheeld
from bench.workers import build, drain

COMMAND = "python -m bench.run cycle"
WORKERS = 8
TARGET = 3.0


def _row(figure: str, unit: str, values: list[float], at_least: float | None = None) -> Result:
    return Result(
        figure=figure,
        value=middle(values),
        unit=unit,
        at_least=at_least,
        rounds=tuple(values),
        command=COMMAND,
    )


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return jobs a second, ours and Redis's, of jobs that were due before."""
    program, jobs = build(folder), scale.backlog_jobs
    rates: dict[str, list[float]] = {"wheeld": [], "redis": []}
    for i in range(scale.rounds):
        scale.progress(f"cycle, round {i + 1}")
        due_ms = time.time_ns() // 1_000_000
        servers = [(wheeld(folder / f"w{i}", fsync="off"), loads.schedule)]
        if has_redis():
            servers.append((redis(folder / f"r{i}", append="none"), loads.zadd))
        for start, load in servers:
            with start as server:
                load(server, (due_ms for _ in range(jobs)))
                begin_ns = time.monotonic_ns()
                done = drain(program, server, workers=WORKERS, begin_ns=begin_ns)
                if done.jobs != jobs:
                    raise BenchError(f"{server.name}: {done.jobs} of {jobs} jobs came")
                rates[server.name].append(jobs * 1e9 / (done.last_ns - begin_ns))
    name = f"lease and ack of {jobs:,} ready jobs, {WORKERS} workers, batches of 100"
    rows = [_row(f"{name}: wheeld", "jobs/s", rates["wheeld"])]
    beside = f"{name}: rate beside Redis' Lua claim"
    if not rates["redis"]:
        return [*rows, Result(figure=beside, value=None, unit="x", why="Redis is not installed")]
    ratios = [our / their for our, their in zip(rates["wheeld"], rates["redis"], strict=True)]
    rows.append(_row(f"{name}: Redis", "jobs/s", rates["redis"]))
    return [*rows, _row(beside, "x", ratios, TARGET)]
