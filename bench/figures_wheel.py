"""W6: the timing wheel alone, beside a C 4-ary heap, and beside what one would take in Python.

The C queues run in bench/wheel/bench_wheel.c, Python's here in a process of its own, on the same
mix: half of the timers are cancelled at random, the rest fires. heapq knows no cancel, so there it
is a set of numbers that are passed over when they come out, as its documentation advises. Rounds
take turns; times are CPU time of the thread.
"""

import heapq
import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final, Protocol, cast

from sortedcontainers import SortedKeyList  # pyright: ignore[reportMissingTypeStubs]

from bench.harness import ROOT, BenchError, Plot, Result, Scale, compiled, middle

COMMAND: Final = "python -m bench.run wheel"
CSRC: Final = ROOT / "csrc"
SOURCES: Final = (
    CSRC / "wd_wheel.c",
    CSRC / "wd_mem.c",
    ROOT / "bench" / "wheel" / "bench_wheel.c",
    ROOT / "bench" / "wheel" / "heap4.c",
)
STEP_MS: Final = 1000
TARGET_TIMERS: Final = 1_000_000  # at fewer there is less to be missed in a cache: no targets
START_MS: Final = 1_790_000_012_345
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
WHEEL, HEAP, HEAPQ, SORTED = "wheel", "C 4-ary heap", "heapq", "SortedKeyList"
VERBS: Final = ("insert", "cancel", "expire")
RATIOS: Final = {"insert": None, "cancel": 0.7, "expire": 0.6}  # beside the C heap, at most
MEMORY: Final = {
    "bytes_fresh": "fresh",
    "bytes_cancel_50": "50 % cancelled at random",
    "bytes_cancel_75": "75 % cancelled at random",
    "bytes_cancel_90": "90 % cancelled at random",
    "bytes_cancel_99": "99 % cancelled at random",
    "bytes_17_in_each": "adversary: 17 left in each chunk",
    "bytes_1_and_17": "adversary: 1 and 17 in turn",
}

Figures = dict[str, float]


def build(folder: Path) -> Path:
    """Return the compiled driver."""
    program = folder / "bench_wheel"
    return compiled(program, SOURCES, "-g", "-UNDEBUG", f"-I{CSRC}", "-lm")


def _run(*command: str | int | Path) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{Path(words[0]).name}: {done.stderr[-300:]}")
    return done.stdout


def driven(program: Path, *arguments: str | int) -> Figures:
    """Return the figures that one run of the driver prints, by name."""
    pairs = (line.split() for line in _run(program, *arguments).splitlines())
    return {name: float(value) for name, value in pairs}


# ---------------------------------------------------------------- Python's queues


def _dues_ms(timers: int, seed: int) -> list[int]:
    """Return the mix of bench_wheel.c."""
    draw = random.Random(seed)
    dues: list[int] = []
    for _ in range(timers):
        percent = draw.random() * 100
        if percent < 50:
            after = 1 + int(draw.expovariate(1 / 30e3))
        elif percent < 75:
            after = 1 + int(draw.expovariate(1 / HOUR_MS))
        elif percent < 90:
            after = (draw.randrange(1440) + 1) * MINUTE_MS - START_MS % MINUTE_MS
        else:
            after = DAY_MS + draw.randrange(29 * DAY_MS)
        dues.append(START_MS + after)
    return dues


def _with_heapq(dues: list[int], cancelled: list[int]) -> Iterator[float]:
    heap: list[tuple[int, int]] = []
    yield time.thread_time()
    for i, due in enumerate(dues):
        heapq.heappush(heap, (due, i))
    yield time.thread_time()
    gone: set[int] = set()
    for i in cancelled:
        gone.add(i)
    yield time.thread_time()
    fired = 0
    while heap:
        fired += heapq.heappop(heap)[1] not in gone
    yield time.thread_time()
    if fired + len(cancelled) != len(dues):
        raise BenchError("heapq lost timers")


class _Sorted(Protocol):
    def add(self, value: int) -> None: ...
    def remove(self, value: int) -> None: ...
    def pop(self, index: int) -> int: ...
    def __len__(self) -> int: ...


def _with_sorted(dues: list[int], cancelled: list[int]) -> Iterator[float]:
    queue = cast("_Sorted", SortedKeyList(key=dues.__getitem__))
    yield time.thread_time()
    for i in range(len(dues)):
        queue.add(i)
    yield time.thread_time()
    for i in cancelled:
        queue.remove(i)
    yield time.thread_time()
    fired = 0
    while queue:
        queue.pop(0)
        fired += 1
    yield time.thread_time()
    if fired + len(cancelled) != len(dues):
        raise BenchError("SortedKeyList lost timers")


def in_python(kind: str, timers: int, seed: int) -> Figures:
    """Return ns an operation of one of Python's queues, in this process."""
    dues = _dues_ms(timers, seed)
    cancelled = random.Random(seed).sample(range(timers), timers // 2)
    queue = {HEAPQ: _with_heapq, SORTED: _with_sorted}[kind]
    times = list(queue(dues, cancelled))
    done = (timers, len(cancelled), timers - len(cancelled))
    return {f"{verb}_ns": (times[i + 1] - times[i]) / done[i] * 1e9 for i, verb in enumerate(VERBS)}


# ---------------------------------------------------------------- rows


def _mix(program: Path, timers: int, scale: Scale) -> Iterator[Result]:
    rounds: dict[str, list[Figures]] = defaultdict(list)
    for seed in range(scale.wheel_rounds):
        scale.progress(f"wheel and other queues, round {seed + 1}")
        for name, kind in ((WHEEL, "wheel"), (HEAP, "heap")):
            rounds[name].append(driven(program, "mix", kind, timers, seed, STEP_MS))
        for name in (HEAPQ, SORTED):
            words = (sys.executable, "-m", "bench.figures_wheel", name, timers, seed)
            rounds[name].append(json.loads(_run(*words)))
    for verb in VERBS:
        for name, figures in rounds.items():
            values = [figure[f"{verb}_ns"] for figure in figures]
            yield Result(
                figure=f"{timers:,} timers: {verb}, {name}",
                value=middle(values),
                unit="ns",
                rounds=tuple(values),
                command=COMMAND,
                plot=Plot(chart="wheel", series=name, at=verb),
            )
        for name in (HEAP, HEAPQ, SORTED):
            ratios = [
                ours[f"{verb}_ns"] / theirs[f"{verb}_ns"]
                for ours, theirs in zip(rounds[WHEEL], rounds[name], strict=True)
            ]
            yield Result(
                figure=f"{timers:,} timers: {verb}, wheel beside {name}",
                value=middle(ratios),
                unit="x",
                at_most=RATIOS[verb] if name == HEAP and timers >= TARGET_TIMERS else None,
                rounds=tuple(ratios),
                command=COMMAND,
            )


def _alone(program: Path, timers: int, scale: Scale) -> Iterator[Result]:
    empty = [driven(program, "empty")["empty_ns"] for _ in range(scale.wheel_rounds)]
    yield Result(
        figure="wheel: an advance with nothing due",
        value=median(empty),
        unit="ns",
        at_most=20,
        rounds=tuple(empty),
        command=COMMAND,
    )
    # The driver makes identical runs and takes each call's least time; the plain longest contains
    # what else the machine did, and has no target.
    for kind, text in (("mix", "mix"), ("herd", "one instant")):
        found = driven(program, "longest", kind, timers, 0)
        for name, key, most in (("", "longest_us", 1.0), (", plain", "longest_plain_us", None)):
            yield Result(
                figure=f"wheel, {timers:,} timers: longest advance, {text}{name}",
                value=found[key] / 1000,
                unit="ms",
                at_most=most,
                command=COMMAND,
            )
    # One partly filled chunk per bucket (137 kB in all) is no matter of the timers: it weighs on
    # few of them, so the target is set for the full number. Exact, so taken once.
    found = driven(program, "memory", timers, 0)
    for key, text in MEMORY.items():
        yield Result(
            figure=f"wheel, {timers:,} timers: memory a timer, {text}",
            value=found[key],
            unit="B",
            at_most=46.0 if timers >= TARGET_TIMERS else None,
            command=COMMAND,
        )


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return insert, cancel and expiry of each queue, and what the wheel costs besides."""
    program = build(folder)
    timers = scale.wheel_timers
    return [*_mix(program, timers, scale), *_alone(program, timers, scale)]


if __name__ == "__main__":
    print(json.dumps(in_python(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
