"""Resident memory of one job: the server's RSS after scheduling, less what it had before."""

from collections.abc import Callable, Iterator
from pathlib import Path

from bench import loads
from bench.harness import Result, Scale
from bench.peers import Peer, wheeld

COMMAND = "python -m bench.run memory"
TARGET_BYTES = 200.0


def _bytes_a_job(folder: Path, jobs: int, load: Callable[[Peer, Iterator[int]], None]) -> float:
    with wheeld(folder, fsync="off") as server:
        server.wire.ask("SCHEDULE", "mail", loads.FAR_MS, "first")
        before = server.resident_bytes()
        load(server, loads.far_dues_ms(jobs))
        return (server.resident_bytes() - before) / jobs


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return bytes a job at each size, without and with a key. Exact enough to be taken once."""
    results: list[Result] = []
    for jobs in scale.jobs_large:
        for text, load, target in (
            ("without key", loads.schedule, TARGET_BYTES),
            ("20-byte key", loads.schedule_keyed, None),
        ):
            scale.progress(f"memory, {jobs:,} jobs {text}")
            size = _bytes_a_job(folder / f"{jobs}-{text[0]}", jobs, load)
            results.append(
                Result(
                    figure=f"memory a job, 100-byte payload, {text}, {jobs:,} jobs",
                    value=size,
                    unit="B",
                    at_most=target,
                    command=COMMAND,
                )
            )
    return results
