"""W7: what an operation costs as the number of timers grows, from ten thousand to ten million.

The core runs in a process of its own, by hand: commands in, replies out, frames made durable, and
nothing of the kernel. Each size does the same number of each operation, so that only what is
*there* differs. Jobs are due at random within a day in 2033. Times are CPU time of the thread, and
Python's own work on the commands is left out.

*Empty time* is a tick over an hour in which nothing is due, with all these timers further ahead.
"""

import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.checkpoints import JOB, TERM, WALL_MS, options, write
from bench.checkpoints import load as load_checkpoint
from bench.harness import ROOT, BenchError, Plot, Result, Scale, middle
from bench.loads import DAY_MS, FAR_MS
from wheel.engine.core import Core
from wheel.engine.facts import Clocks
from wheel.wire import encode_command

COMMAND: Final = "python -m bench.run growth"
BASE, BIG = 100_000, 10_000_000  # the sizes that the target compares
RATIO_MOST: Final = 4.0
SAMPLE: Final = 50_000  # of each operation
CHUNK: Final = 500  # commands a round
BATCH: Final = 100  # jobs a LEASE
HOURS: Final = 2_000
HOUR_MS: Final = 3_600_000
YEAR_MS: Final = 365 * DAY_MS
FIRST_ID: Final = 1 << 32
PATIENCE_S: Final = 1800
OPERATIONS: Final = {
    "insert": "SCHEDULE",
    "cancel": "CANCEL",
    "fire": "due: into its queue",
    "lease": "LEASE and ACK, 100 at a time",
    "empty": "an hour in which nothing is due",
    "restart": "loading from a checkpoint",
}


class Stand:
    """A core by hand that holds many timers, and a stopwatch of what it does."""

    def __init__(self, jobs: int, seed: int) -> None:
        self._options = options(jobs + 2 * SAMPLE)
        self.core = Core(self._options)
        self.now_ms = WALL_MS
        self.core.start(term=TERM, rel_ms=WALL_MS, clocks=self._clocks())
        self.core.tick(self._clocks())
        self._handle = self.core.fed_open("bench")
        self._draw = random.Random(seed)
        self._made = 0

    def _clocks(self) -> Clocks:
        return Clocks(wall_ms=self.now_ms, boot_ms=self.now_ms, mono_ms=self.now_ms)

    def _settle(self) -> None:
        self.core.commit()
        while (batch := self.core.take_batch()) is not None:
            self.core.batch_durable(batch.lsn)

    def ask(self, data: bytes) -> tuple[float, bytes]:
        """Return the seconds that a piece of input took, and the replies."""
        begin = time.thread_time()
        self.core.fed_input(self._handle, data)
        self._settle()
        output = self.core.fed_output(self._handle)
        self.core.fed_taken(self._handle, len(output.data))
        took_s = time.thread_time() - begin
        if output.data.startswith(b"-") or b"\n-" in output.data:
            raise BenchError(f"the core answered {output.data[:100]!r}")
        return took_s, output.data

    def tick(self, now_ms: int) -> float:
        """Return the seconds that moving the clocks took."""
        self.now_ms = now_ms
        begin = time.thread_time()
        self.core.tick(self._clocks())
        self._settle()
        return time.thread_time() - begin

    def insert(self, jobs: int) -> float:
        """Schedule so many jobs; return ns each."""
        took_s = 0.0
        for first in range(0, jobs, CHUNK):
            many = range(first, min(jobs, first + CHUNK))
            dues = [FAR_MS + int(self._draw.random() * DAY_MS) for _ in many]
            data = b"".join(JOB % (due, self._made + i) for i, due in zip(many, dues, strict=True))
            took_s += self.ask(data)[0]
        self._made += jobs
        return took_s / jobs * 1e9

    def cancel(self, jobs: int) -> float:
        """Cancel so many at random; return ns each."""
        ids = self._draw.sample(range(self._made), jobs)
        took_s = 0.0
        for first in range(0, jobs, CHUNK):
            data = b"".join(
                encode_command(["CANCEL", FIRST_ID + i]) for i in ids[first : first + CHUNK]
            )
            took_s += self.ask(data)[0]
        self._made -= jobs
        return took_s / jobs * 1e9

    def fire(self, jobs: int) -> float:
        """Let time pass until about so many are due, some at a time; return ns each."""
        step_ms = max(1, DAY_MS * CHUNK // self._made)
        self.tick(FAR_MS - 1)
        took_s, now_ms = 0.0, FAR_MS
        while (ready := self.core.engine_figures()["jobs_ready"]) < jobs:
            now_ms += step_ms
            took_s += self.tick(now_ms)
        return took_s / ready * 1e9

    def lease(self) -> float:
        """Hand out and acknowledge all that are ready; return ns each."""
        took_s, done = 0.0, 0
        while True:
            took, jobs = self.ask(encode_command(["LEASE", "mail", "COUNT", BATCH]))
            lines = jobs.split(b"\r\n")
            receipts = [line for line in lines if line.count(b".") == 2 and line[:1].isdigit()]
            if not receipts:
                return took_s / done * 1e9
            took_s += took + self.ask(encode_command(["ACK", *receipts]))[0]
            done += len(receipts)

    def empty(self) -> float:
        """Let hours pass in which nothing is due; return ns an hour."""
        took_s = sum(self.tick(self.now_ms + HOUR_MS) for _ in range(HOURS))
        return took_s / HOURS * 1e9

    def restart(self, path: Path) -> float:
        """Write a checkpoint and load it into another core; return ns a job."""
        jobs = self.core.engine_figures()["jobs_scheduled"]
        write(self.core, path)
        with Core(self._options) as fresh:
            begin = time.thread_time()
            load_checkpoint(fresh, path)
            took_s = time.thread_time() - begin
            fresh.start(term=TERM + 1, rel_ms=self.now_ms, clocks=self._clocks())
            if (found := fresh.engine_figures()["jobs_scheduled"]) != jobs:
                raise BenchError(f"{found} jobs in the checkpoint of {jobs}")
        path.unlink()
        return took_s / jobs * 1e9


def grown(jobs: int, seed: int, folder: Path) -> dict[str, float]:
    """Return ns an operation with so many timers, in this process."""
    sample = min(SAMPLE, jobs // 2)
    stand = Stand(jobs, seed)
    stand.insert(jobs - sample)
    found = {"insert": stand.insert(sample), "empty": stand.empty()}
    found["restart"] = stand.restart(folder / "growth.tmp")
    found["cancel"] = stand.cancel(sample // 2)
    stand.insert(sample // 2)
    found["fire"] = stand.fire(sample // 2)
    found["lease"] = stand.lease()
    if stand.core.check():
        raise BenchError("an invariant of the core is broken")
    return found


def emptiness(folder: Path) -> dict[str, float]:
    """Return ns of one tick over a millisecond, an hour and a year with one timer far ahead."""
    del folder
    stand = Stand(1, 1)
    stand.insert(1)  # 2033
    found: dict[str, float] = {}
    for name, ms, times in (("1 ms", 1, 20_000), ("1 hour", HOUR_MS, 20_000)):
        begin = time.thread_time()
        for _ in range(times):
            stand.tick(stand.now_ms + ms)
        found[name] = (time.thread_time() - begin) / times * 1e9
    stand.ask(encode_command(["SCHEDULE", "mail", FAR_MS + 100 * YEAR_MS, b"far"]))
    stand.tick(FAR_MS + DAY_MS)  # the first one fires
    found["1 year"] = sum(stand.tick(stand.now_ms + YEAR_MS) for _ in range(90)) / 90 * 1e9
    return found


def _measured(folder: Path, *words: str | int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.figures_growth", str(folder), *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        raise BenchError(done.stderr[-300:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _row(figure: str, unit: str, values: Sequence[float], **fields: float | Plot | None) -> Result:
    return Result(
        figure=figure,
        value=middle(values),
        unit=unit,
        rounds=tuple(values),
        command=COMMAND,
        **fields,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    )


def _beside(name: str, rounds: dict[int, list[dict[str, float]]]) -> Iterator[Result]:
    """Yield the ratio of the greatest size to 100,000, where both were measured."""
    most = max(rounds)
    if most <= BASE or BASE not in rounds:
        return
    pairs = zip(rounds[most], rounds[BASE], strict=True)
    yield _row(
        f"{OPERATIONS[name]}: with {most:,} timers beside {BASE:,}",
        "x",
        [big[name] / small[name] for big, small in pairs],
        at_most=RATIO_MOST if most >= BIG else None,
    )


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return ns an operation at each size, and what time costs in which nothing happens."""
    rounds: dict[int, list[dict[str, float]]] = defaultdict(list)
    for number in range(scale.rounds):
        for jobs in scale.growth_timers:
            scale.progress(f"growth, {jobs:,} timers, round {number + 1}")
            rounds[jobs].append(_measured(folder, jobs, number + 1))
    results: list[Result] = []
    for name, text in OPERATIONS.items():
        results += [
            _row(
                f"{text}: with {jobs:,} timers",
                "ns",
                [found[name] for found in rounds[jobs]],
                plot=Plot(chart="growth", series=text, at=jobs),
            )
            for jobs in rounds
        ]
        results += _beside(name, rounds)
    empty = [_measured(folder) for _ in range(scale.rounds)]
    results += [
        _row(f"a tick over {name} of nothing", "ns", [found[name] for found in empty])
        for name in empty[0]
    ]
    longest = [found["1 year"] / found["1 ms"] for found in empty]
    text = "a tick over 1 year of nothing, beside one over 1 ms"
    results.append(_row(text, "x", longest, at_most=RATIO_MOST))
    return results


if __name__ == "__main__":
    place, *numbers = sys.argv[1:]
    if numbers:
        print(json.dumps(grown(int(numbers[0]), int(numbers[1]), Path(place))))
    else:
        print(json.dumps(emptiness(Path(place))))
