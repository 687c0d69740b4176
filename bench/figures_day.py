"""W8: 24 hours of mixed work in one run, by a clock that is moved by hand; every run accounted for.

Schedules that fire ten times a day each, and jobs of other handlers beside them: half due within
the minute, a quarter within the hour, the rest at the edge of a minute today or up to 30 days
ahead. Workers take all that is ready every ten seconds. Of what they take they acknowledge 90 %,
fail 5 %, fail half a percent for good, give 2 % back, and of the rest are never heard again, so
that its lease runs out. When the day is over nothing new is made, and time goes on until only far
timers are left.

*Loop time* is CPU time of the one thread that the server has: ticks, commands with their commits,
turns of the scheduler. What the workers of this program do is not in it. There is no network.
"""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bench.figures_schedules import DAY_MS, LEASED_AT_ONCE, RUNS_A_DAY, START_MS, Stand
from bench.harness import ROOT, BenchError, Result, Scale
from bench.loads import PAYLOAD
from server import collector
from wheel.engine.definition import Definition, Overlap

COMMAND: Final = "python -m bench.run day"
STEP_MS: Final = 10_000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
DRAIN_STEP_MS: Final = MINUTE_MS
DRAIN_HOURS: Final = 12  # more than any backoff lasts
FAR_MS: Final = 2 * DAY_MS  # what is due later stays
FAILED_FOR_GOOD, FAILED, SILENT, RELEASED = 0.005, 0.055, 0.08, 0.10  # of 1, summed up
TICK_MOST_MS: Final = 2.0
PATIENCE_S: Final = 3600


class Day(Stand):
    """The stand, with a stopwatch and workers that do not always succeed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = random.Random(seed)
        self.loop_s = 0.0
        self.longest_tick_s = 0.0
        self.turns_s: list[float] = []
        self.made = 0

    def pass_time(self, now_ms: int) -> None:
        """Move the clocks, until nothing more is due; the scheduler has its turns."""
        begin_s = time.thread_time()
        self.move_to(now_ms)
        took_s = time.thread_time() - begin_s
        self.settle()
        self.longest_tick_s = max(self.longest_tick_s, took_s)
        self.loop_s += time.thread_time() - begin_s
        self.turns_taken()

    def turns_taken(self) -> None:
        """Let the scheduler do all that it has to do, if it has been woken."""
        begin_s = time.thread_time()
        wakes = self.scheduler.wakes()
        times = [at for at in (wakes.wall_ms, wakes.rel_ms) if at is not None]
        if self.core.wants_python() or wakes.more or min(times, default=self.now_ms) <= self.now_ms:
            self.turns_s += self.turns()
        self.loop_s += time.thread_time() - begin_s

    def say(self, lines: list[bytes]) -> bytes:
        """Return the replies to lines that are sent as one piece.

        Raises:
            BenchError: one of them is an error.
        """
        begin_s = time.thread_time()
        self.core.fed_input(self.worker, b"\r\n".join([*lines, b""]))
        self.settle()
        output = self.core.fed_output(self.worker).data
        self.core.fed_taken(self.worker, len(output))
        self.loop_s += time.thread_time() - begin_s
        if output.startswith(b"-") or b"\n-" in output:
            raise BenchError(f"the core answered {output[:200]!r}")
        return output

    def due_ms(self) -> int:
        """Return when a new job is due."""
        kind = self.draw.random()
        if kind < 0.5:
            return self.now_ms + 1 + self.draw.randrange(MINUTE_MS)
        if kind < 0.75:
            return self.now_ms + 1 + self.draw.randrange(HOUR_MS)
        if kind < 0.9:
            return (self.now_ms // MINUTE_MS + 1 + self.draw.randrange(600)) * MINUTE_MS
        return self.now_ms + FAR_MS + self.draw.randrange(28 * DAY_MS)

    def make(self, jobs: int) -> None:
        """Schedule so many jobs."""
        lines = [
            b"SCHEDULE mail %d '%s'" % (self.due_ms(), PAYLOAD % (self.made + i))
            for i in range(jobs)
        ]
        if lines:
            self.say(lines)
        self.made += jobs

    def work(self) -> None:
        """Take all that is ready, and do with it what workers do."""
        while True:
            output = self.say([b"LEASE h,mail COUNT %d" % LEASED_AT_ONCE])
            words = output.split(b"\r\n")
            receipts = [word for word in words if word.count(b".") == 2 and word[:1].isdigit()]
            if not receipts:
                return
            done: list[bytes] = []
            lines: list[bytes] = []
            for receipt in receipts:
                fate = self.draw.random()
                if fate < FAILED_FOR_GOOD:
                    lines.append(b"FAIL %s DEAD ERROR 'no such user'" % receipt)
                elif fate < FAILED:
                    lines.append(b"FAIL %s ERROR 'time-out of the mail server'" % receipt)
                elif SILENT <= fate < RELEASED:
                    lines.append(b"RELEASE %s IN 5000" % receipt)
                elif fate >= RELEASED:
                    done.append(receipt)
            if done:
                lines.append(b"ACK " + b" ".join(done))
            if lines:
                self.say(lines)
            self.turns_taken()


def _set_up(day: Day, schedules: int) -> None:
    for i in range(schedules):
        day.scheduler.set(
            Definition(
                name=f"s{i}",
                rule=f"{i % 60} */2 * * *",
                handler="h",
                max_runs=RUNS_A_DAY,
                overlap=Overlap.SKIP,
            )
        )
        if i % 500 == 0:
            day.settle()
    day.settle()
    collector.hold_back()


def lived(schedules: int, jobs: int, seed: int = 1) -> dict[str, float]:
    """Return what a day came to.

    Raises:
        BenchError: a run or a job is not accounted for.
    """
    day = Day(seed)
    _set_up(day, schedules)
    steps = DAY_MS // STEP_MS
    for step in range(1, steps + 1):
        day.pass_time(START_MS + step * STEP_MS)
        day.make(jobs * step // steps - day.made)
        day.work()
    for _ in range(DRAIN_HOURS * HOUR_MS // DRAIN_STEP_MS):
        day.pass_time(day.now_ms + DRAIN_STEP_MS)
        day.work()
    return _accounted(day, schedules)


def _accounted(day: Day, schedules: int) -> dict[str, float]:
    runs, core = day.scheduler.figures(), day.core.engine_figures()
    succeeded, dead = runs["schedule_runs_succeeded_total"], runs["schedule_runs_failed_total"]
    if succeeded + dead != schedules * RUNS_A_DAY:
        raise BenchError(f"{succeeded} + {dead} runs of {schedules * RUNS_A_DAY}: {runs}")
    far = core["jobs_scheduled"]
    moving = core["jobs_ready"] + core["jobs_leased"] + core["jobs_held"]
    if core["created"] != core["acked"] + core["died"] + far or moving:
        raise BenchError(f"jobs are not accounted for: {core}")
    if core["created"] != day.made + schedules * RUNS_A_DAY or day.core.check():
        raise BenchError(f"{core['created']} jobs, of {day.made} and the runs")
    done = core["acked"] + core["died"]
    turns_s = sorted(day.turns_s)
    return {
        "runs": succeeded + dead,
        "runs_dead": dead,
        "jobs": core["created"],
        "done": done,
        "dead": core["died"],
        "far": far,
        "failed": core["failed"],
        "lost": core["lost"],
        "released": core["released"],
        "loop_s": day.loop_s,
        "rate": done / day.loop_s,
        "turn_p99_ms": turns_s[len(turns_s) * 99 // 100] * 1e3,
        "turn_ms": turns_s[-1] * 1e3,
        "tick_ms": day.longest_tick_s * 1e3,
    }


def run(_folder: Path, scale: Scale) -> list[Result]:
    """Return what the day came to: its work, and the loop's time for it."""
    schedules, jobs = scale.day_schedules, scale.day_jobs
    scale.progress(f"a day of {schedules:,} schedules and {jobs:,} jobs")
    words = [sys.executable, "-m", "bench.figures_day", str(schedules), str(jobs)]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        raise BenchError(done.stderr[-500:])
    found: dict[str, float] = json.loads(done.stdout)
    day = f"a day of {schedules:,} schedules and {jobs:,} other jobs"
    rows: tuple[tuple[str, str, str, float | None], ...] = (
        ("runs of schedules, all accounted for", "runs", "runs", None),
        ("jobs, all accounted for", "jobs", "jobs", None),
        ("far timers left at its end", "far", "jobs", None),
        ("failures that were retried or final", "failed", "jobs", None),
        ("leases that ran out", "lost", "jobs", None),
        ("given back", "released", "jobs", None),
        ("dead in the end", "dead", "jobs", None),
        ("loop time in all", "loop_s", "s", None),
        ("done a second of loop time", "rate", "jobs/s", None),
        ("turn of the scheduler, p99", "turn_p99_ms", "ms", None),
        ("turn of the scheduler, longest", "turn_ms", "ms", None),
        ("longest tick", "tick_ms", "ms", TICK_MOST_MS),
    )
    return [
        Result(figure=f"{day}: {text}", value=found[key], unit=unit, at_most=most, command=COMMAND)
        for text, key, unit, most in rows
    ]


if __name__ == "__main__":
    print(json.dumps(lived(int(sys.argv[1]), int(sys.argv[2]))))
