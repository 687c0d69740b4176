"""Schedules on a core whose clock is moved by hand: their size, a midnight, a start.

Everything is measured in a process of its own, so that resident memory is that of the schedules.
CPU time of the one thread stands for time of the loop: what else the machine does must not count.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.harness import ROOT, BenchError, Result, Scale
from server import collector
from wheel.engine.core import Commit, Core, CoreOptions
from wheel.engine.dates import Date
from wheel.engine.definition import Definition, Overlap
from wheel.engine.facts import Clocks
from wheel.engine.scheduler import Scheduler
from wheel.wire import NotReady, Reply, ReplyReader

COMMAND: Final = "python -m bench.run schedules"
START_MS: Final = 1_800_000_000_000  # 2027-01-15T08:00:00Z
DAY_MS: Final = 86_400_000
TERM: Final = 1
RUNS_A_DAY: Final = 10
LEASED_AT_ONCE: Final = 1000
PATIENCE_S: Final = 3600


class Stand:
    """A core and its scheduler."""

    def __init__(self) -> None:
        options = CoreOptions(
            commit=Commit.DRIVEN,
            sockets=False,
            hand_clock=True,
            jobs_max=3_000_000,
            maxmemory_bytes=16 << 30,
        )
        self.core = Core(options)
        self.now_ms = START_MS
        self.core.start(term=TERM, rel_ms=START_MS, clocks=self._clocks())
        self.core.tick(self._clocks())
        self.scheduler = self.load()
        self.worker = self.core.fed_open("worker")

    def _clocks(self) -> Clocks:
        return Clocks(wall_ms=self.now_ms, boot_ms=self.now_ms, mono_ms=self.now_ms)

    def load(self) -> Scheduler:
        scheduler = Scheduler(self.core, clock_ns=time.thread_time_ns)
        for _ in scheduler.load():
            pass
        return scheduler

    def settle(self) -> None:
        """Make everything durable, and forget the frames."""
        self.core.commit()
        while (batch := self.core.take_batch()) is not None:
            self.core.batch_durable(batch.lsn)

    def move_to(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.core.tick(self._clocks())

    def lease(self, count: int) -> list[bytes]:
        """Return the receipts of jobs that are there."""
        jobs = self.ask(b"LEASE h COUNT %d" % count)
        if not isinstance(jobs, list):
            raise BenchError(f"LEASE answered {jobs!r}")
        receipts = (job[0] for job in jobs if isinstance(job, list))
        return [receipt for receipt in receipts if isinstance(receipt, bytes)]

    def ask(self, line: bytes) -> Reply:
        """Return the reply to a worker's line."""
        self.core.fed_input(self.worker, line + b"\r\n")
        self.settle()
        reader = ReplyReader()
        output = self.core.fed_output(self.worker)
        reader.feed(output.data)
        self.core.fed_taken(self.worker, len(output.data))
        reply = reader.gets()
        if reply is NotReady.NOT_READY:
            raise BenchError(f"no reply to {line[:40]!r}")
        return reply

    def turns(self) -> Iterator[float]:
        """Take turns until nothing is due; yield what each took, in seconds."""
        while True:
            begin_s = time.thread_time()
            more = self.scheduler.turn().more
            yield time.thread_time() - begin_s
            self.settle()
            self.scheduler.events()
            if not more:
                return


def resident_bytes() -> int:
    """Return this process's resident memory."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


def midnight(schedules: int) -> dict[str, float]:
    """Measure many schedules that are due at one midnight."""
    stand = Stand()
    gc.collect()
    before = resident_bytes()
    slowest_s = total_s = 0.0
    for i in range(schedules):
        begin_s = time.thread_time()
        stand.scheduler.set(
            Definition(
                name=f"team-{i % 97}.report-{i:06d}",
                rule="0 0 * * *",
                handler="report.build",
                payload=b'{"tenant": 12345}',
                tz="Europe/Rome",
            )
        )
        took_s = time.thread_time() - begin_s
        total_s += took_s
        slowest_s = max(slowest_s, took_s)
        if i % 500 == 0:
            stand.settle()
    stand.settle()
    gc.collect()
    size = (resident_bytes() - before) / schedules
    collector.hold_back()
    begin_s = time.thread_time()
    stand.load()
    load_s = time.thread_time() - begin_s
    due_ms = stand.scheduler.wakes().wall_ms
    if due_ms is None:
        raise BenchError("nothing is due")
    slices, late_ms = _pass(stand, due_ms)
    runs = stand.scheduler.figures()["schedule_runs_runs_total"]
    if runs != schedules:
        raise BenchError(f"{runs} runs of {schedules} schedules")
    slices.sort()
    return {
        "bytes": size,
        "set_us": total_s / schedules * 1e6,
        "load_s": load_s,
        "midnight_s": sum(slices),
        "slice_p99_ms": slices[len(slices) * 99 // 100] * 1e3,
        "slice_max_ms": slices[-1] * 1e3,
        "other_late_ms": late_ms,
    }


def _pass(stand: Stand, due_ms: int) -> tuple[list[float], float]:
    """Take turns until all is made; return what each took, in s, and how late others' jobs were.

    The clock goes on by the CPU time that was used: who has a job due meanwhile, one every 5 ms,
    asks for it between two turns.
    """
    for k in range(1000):
        stand.ask(b"SCHEDULE quiet %d x" % (due_ms + 5 * k))
    stand.move_to(due_ms)
    slices: list[float] = []
    late_ms = 0.0
    begin_s = time.thread_time()
    for took_s in stand.turns():
        slices.append(took_s)
        passed_ms = (time.thread_time() - begin_s) * 1e3
        stand.move_to(due_ms + int(passed_ms))
        jobs = stand.ask(b"LEASE quiet COUNT 100")
        passed_ms = (time.thread_time() - begin_s) * 1e3
        for job in jobs if isinstance(jobs, list) else ():
            if isinstance(job, list) and isinstance(job[5], int):
                late_ms = max(late_ms, due_ms + passed_ms - job[5])
    return slices, late_ms


def edits(runs: int) -> dict[str, float]:
    """Measure two edits where many runs wait for upstreams: what is waited for, and the rule."""
    stand = Stand()
    up = Definition(name="up", rule="0 * * * *", handler="h", overlap=Overlap.ALLOW, date=Date.HOUR)
    down = replace(up, name="down", handler="d", after=("up",))
    for made in (up, down):
        stand.scheduler.set(made)
    for _ in range(runs):
        due_ms = stand.scheduler.wakes().wall_ms
        if due_ms is None:
            raise BenchError("nothing is due")
        stand.move_to(due_ms)
        for _ in stand.turns():
            pass
    if stand.scheduler.get("down").held != runs:
        raise BenchError(f"{stand.scheduler.get('down').held} runs are held, not {runs}")
    collector.hold_back()
    slices: list[float] = []
    for edited in (replace(down, after=()), replace(up, rule="30 * * * *")):
        begin_s = time.thread_time()
        stand.scheduler.set(edited)
        slices.append(time.thread_time() - begin_s)
        stand.settle()
        slices += list(stand.turns())
    slices.sort()
    return {"p99_ms": slices[len(slices) * 99 // 100] * 1e3, "max_ms": slices[-1] * 1e3}


def _measured(what: str, many: int) -> dict[str, float]:
    words = [sys.executable, "-m", "bench.figures_schedules", what, str(many)]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        raise BenchError(done.stderr[-300:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def run(_folder: Path, scale: Scale) -> list[Result]:
    """Return size and time of schedules."""
    many = 200_000 if scale.rounds > 1 else 50_000
    herd = 50_000
    scale.progress(f"{many:,} schedules")
    size = _measured("midnight", many)
    scale.progress(f"{herd:,} schedules at one midnight")
    found = _measured("midnight", herd)
    scale.progress("edits")
    edited = _measured("edits", 1000)
    rows = (
        (f"memory a schedule, {many:,} of them", size["bytes"], "B", 1200.0),
        ("setting a schedule", size["set_us"], "us", 500.0),
        (f"reading {many:,} schedules at a start", size["load_s"], "s", None),
        (f"{herd:,} runs due at one midnight: CPU", found["midnight_s"], "s", 1.0),
        ("its slices, p99", found["slice_p99_ms"], "ms", 2.0),
        ("its slices, longest", found["slice_max_ms"], "ms", 2.0),
        (
            "a job of another handler due meanwhile: late",
            found["other_late_ms"],
            "ms",
            20.0,
        ),
        ("edits that reach 1,000 held runs: slices, p99", edited["p99_ms"], "ms", 2.0),
        ("the same, longest", edited["max_ms"], "ms", None),
    )
    return [
        Result(figure=figure, value=value, unit=unit, at_most=most, command=COMMAND)
        for figure, value, unit, most in rows
    ]


if __name__ == "__main__":
    measure = {"midnight": midnight, "edits": edits}[sys.argv[1]]
    print(json.dumps(measure(int(sys.argv[2]))))
