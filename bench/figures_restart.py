"""A planned restart: from SIGTERM to the first answer of the next process, with many jobs."""

import json
import signal
import time
from pathlib import Path

from bench import loads
from bench.harness import PATIENCE_S, BenchError, Result, Scale, middle
from bench.peers import wheeld

COMMAND = "python -m bench.run restart"
TARGET_S = 2.0


def _replay_rate(log: Path) -> float:
    """Return records a second of the last replay that the server's log tells of."""
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    last = [event for event in events if event.get("event") == "replay_finished"][-1]
    return float(last["records"]) / max(float(last["took_s"]), 1e-9)


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return the seconds without an answer, and how fast the log was replayed."""
    jobs = scale.restart_jobs
    gaps_s: list[float] = []
    rates: list[float] = []
    scale.progress(f"restart with {jobs:,} jobs")
    with wheeld(folder, fsync="always") as server:
        loads.schedule(server, loads.far_dues_ms(jobs))
    for _ in range(scale.rounds):
        with wheeld(folder, fsync="always") as server:
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(PATIENCE_S)
            with wheeld(folder, fsync="always", port=server.port) as fresh:
                gaps_s.append(time.monotonic() - start)
                if fresh.wire.ask("COUNT") != jobs:
                    raise BenchError(f"COUNT is not {jobs} after the restart")
            rates.append(_replay_rate(server.log))
    name = f"restart with {jobs:,} jobs, fsync always"
    return [
        Result(
            figure=f"{name}: SIGTERM to answering again",
            value=middle(gaps_s),
            unit="s",
            at_most=TARGET_S,
            rounds=tuple(gaps_s),
            command=COMMAND,
        ),
        Result(
            figure=f"{name}: replay",
            value=middle(rates),
            unit="jobs/s",
            rounds=tuple(rates),
            command=COMMAND,
        ),
    ]
