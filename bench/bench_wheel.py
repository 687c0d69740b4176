"""Measure the timing wheel beside a 4-ary heap and compare both with the targets.

    python bench/bench_wheel.py [--timers 1000000 ...] [--rounds 3] [--json]

Builds csrc/wd_wheel.c and bench/wheel/*.c with -O2. Times are medians of the rounds; the
rounds of wheel and heap take turns, so that a busy minute meets both. Absolute times drift on a
shared machine: the ratios are what the targets are about. What is measured, and how, stands in
the heading of bench/wheel/bench_wheel.c. Exit status 1 when a target is missed.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
SOURCES = [
    ROOT / "bench/wheel/bench_wheel.c",
    ROOT / "bench/wheel/heap4.c",
    CSRC / "wd_wheel.c",
    CSRC / "wd_mem.c",
]
CFLAGS = ["-std=c11", "-O2", "-g", "-UNDEBUG"]
STEP_MS = 1000
TARGET_TIMERS = 1_000_000

Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the table. `target` is an upper bound, None where there is none."""

    timers: int
    name: str
    value: float
    unit: str
    target: float | None = None

    @property
    def met(self) -> bool:
        return self.target is None or self.value <= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    cpu: str
    cpu_count: int
    kernel: str
    compiler: str
    huge_pages: str


def first_line(path: str, start: str = "") -> str:
    """Return the first line of a file that begins with start, without it; "?" if there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return "?"
    found = next((line for line in lines if line.startswith(start)), "?")
    return found.removeprefix(start).strip(" \t:")


def compiler() -> str:
    return os.environ.get("CC", "gcc")


def machine() -> Machine:
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True)
    return Machine(
        cpu=first_line("/proc/cpuinfo", "model name"),
        cpu_count=os.cpu_count() or 0,
        kernel=platform.release(),
        compiler=version.stdout.splitlines()[0],
        huge_pages=first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
    )


def build(folder: Path) -> Path:
    """Return the compiled driver."""
    program = folder / "bench_wheel"
    sources = [str(source) for source in SOURCES]
    command = [compiler(), *CFLAGS, f"-I{CSRC}", *sources, "-lm", "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def run(program: Path, *arguments: str | int) -> Figures:
    """Return the figures that one run of the driver prints, by name."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pairs = (line.split() for line in done.stdout.splitlines())
    return {name: float(value) for name, value in pairs}


def medians(rounds: list[Figures]) -> Figures:
    """Return the median of each figure over the rounds."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for figures in rounds:
        for name, value in figures.items():
            values[name].append(value)
    return {name: median(seen) for name, seen in values.items()}


def mix_results(program: Path, timers: int, rounds: int) -> list[Result]:
    """Return insert, cancel and expiry of wheel and heap, and their ratios."""
    runs: dict[str, list[Figures]] = {"wheel": [], "heap": []}
    for seed in range(rounds):
        for kind, done in runs.items():
            done.append(run(program, "mix", kind, timers, seed, STEP_MS))
    wheel, heap = medians(runs["wheel"]), medians(runs["heap"])
    targets = {"insert_ns": None, "cancel_ns": 0.7, "expire_ns": 0.6}
    results: list[Result] = []
    for name, ratio_target in targets.items():
        verb = name.removesuffix("_ns")
        target = ratio_target if timers == TARGET_TIMERS else None
        ratio = wheel[name] / heap[name]
        results += [
            Result(timers=timers, name=f"{verb}, wheel", value=wheel[name], unit="ns"),
            Result(timers=timers, name=f"{verb}, heap", value=heap[name], unit="ns"),
            Result(timers=timers, name=f"{verb}, ratio", value=ratio, unit="x", target=target),
        ]
    return results


def longest_results(program: Path, timers: int) -> list[Result]:
    """Return the longest call of advance with 1024 moves and 4096 slots at most.

    The driver makes identical runs and takes each call's least time; the plain longest contains
    what else the machine did, and has no target.
    """
    results: list[Result] = []
    for kind, text in (("mix", "longest advance, mix"), ("herd", "longest advance, one instant")):
        figures = run(program, "longest", kind, timers, 0)
        value, plain = figures["longest_us"] / 1000, figures["longest_plain_us"] / 1000
        results += [
            Result(timers=timers, name=text, value=value, unit="ms", target=1.0),
            Result(timers=timers, name=f"{text}, plain", value=plain, unit="ms"),
        ]
    return results


def memory_results(program: Path, timers: int) -> list[Result]:
    """Return bytes per live timer: chunks in use and 12 bytes of the row. Exact, so run once.

    One partly filled chunk per bucket (137 kB in all) is no matter of the timers: it weighs on few
    of them, so the target is set for the full number.
    """
    figures = run(program, "memory", timers, 0)
    names = {
        "bytes_fresh": "memory, fresh",
        "bytes_cancel_50": "memory, 50 % cancelled at random",
        "bytes_cancel_75": "memory, 75 % cancelled at random",
        "bytes_cancel_90": "memory, 90 % cancelled at random",
        "bytes_cancel_99": "memory, 99 % cancelled at random",
        "bytes_17_in_each": "memory, adversary: 17 left in each chunk",
        "bytes_1_and_17": "memory, adversary: 1 and 17 in turn",
    }
    target = 46.0 if timers >= TARGET_TIMERS else None
    return [
        Result(timers=timers, name=text, value=figures[name], unit="B", target=target)
        for name, text in names.items()
    ]


def measure(program: Path, timers_list: list[int], rounds: int) -> list[Result]:
    empty = medians([run(program, "empty") for _ in range(rounds)])
    results = [
        Result(timers=1, name="empty advance", value=empty["empty_ns"], unit="ns", target=20)
    ]
    for timers in timers_list:
        results += mix_results(program, timers, rounds)
        results += longest_results(program, timers)
        results += memory_results(program, timers)
    return results


def table(host: Machine, results: list[Result], rounds: int) -> str:
    """Return the results as text for people."""
    lines = [
        f"{host.cpu_count} x {host.cpu}, Linux {host.kernel}, {host.compiler}",
        f"transparent huge pages: {host.huge_pages}; median of {rounds}; thread CPU time",
        "",
        f"{'timers':>9}  {'figure':<42} {'measured':>10}  {'target':>8}",
    ]
    for result in results:
        target = "" if result.target is None else f"<= {result.target:g}"
        mark = "" if result.target is None else ("  ok" if result.met else "  MISSED")
        measured = f"{result.value:.2f} {result.unit:<2}"
        lines.append(f"{result.timers:>9}  {result.name:<42} {measured:>10}  {target:>8}{mark}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the timing wheel beside a 4-ary heap.")
    parser.add_argument("--timers", type=int, nargs="+", default=[TARGET_TIMERS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(build(Path(folder)), options.timers, options.rounds)
    host = machine()
    if options.json:
        lines = [{**asdict(result), "met": result.met} for result in results]
        report = {"machine": asdict(host), "rounds": options.rounds, "results": lines}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        sys.stdout.write(table(host, results, options.rounds) + "\n")
    return 0 if all(result.met for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
