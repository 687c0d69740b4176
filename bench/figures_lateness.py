"""How late due jobs leave: a steady stream of them, one waiting worker."""

import time
from pathlib import Path

from bench import loads
from bench.harness import BenchError, Result, Scale, middle
from bench.peers import wheeld
from bench.workers import build, drain

COMMAND = "python -m bench.run lateness"
RATE = 5_000
LEAD_S = 2.0  # and 10 us a job: from the first SCHEDULE to the first due time
WAIT_NS = 100_000_000  # the worker waits before the first job is due
TARGET_US = 3_000.0


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
    """Return how late jobs leave that fall due evenly, and that none is early."""
    program = build(folder)
    jobs = RATE * scale.steady_s
    scale.progress(f"steady, {RATE:,} jobs/s for {scale.steady_s} s")
    with wheeld(folder / "steady", fsync="off") as server:
        start_ms = time.time_ns() // 1_000_000 + int((LEAD_S + jobs * 10e-6) * 1000)
        loads.schedule(server, (start_ms + i * 1000 // RATE for i in range(jobs)))
        if time.time_ns() // 1_000_000 >= start_ms:
            raise BenchError("scheduling took longer than planned, the first jobs were due")
        begin_ns = time.monotonic_ns() + (start_ms * 1_000_000 - time.time_ns()) - WAIT_NS
        before_us = server.cpu_us()
        done = drain(program, server, workers=1, begin_ns=begin_ns)
        late = server.histogram("lateness_us")
        used_us = (server.cpu_us() - before_us) / jobs
    if done.jobs != jobs:
        raise BenchError(f"{done.jobs} of {jobs} jobs came")
    name = f"steady, {RATE:,} jobs/s for {scale.steady_s} s"
    return [
        _row(f"{name}: due to sent, p50", "us", [float(late["p50"])]),
        _row(f"{name}: due to sent, p99", "us", [float(late["p99"])], TARGET_US),
        _row(f"{name}: due to sent, longest", "us", [float(late["max"])]),
        _row(f"{name}: early", "jobs", [float(done.early)], 0.0),
        _row(f"{name}: server CPU", "us/job", [used_us]),
    ]
