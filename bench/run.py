"""Measure wheeld on this machine, beside Redis where it is installed, and print one table.

    make bench                                   everything, about ten minutes
    make bench BENCH="--quick"                   a minute and a half; for a look, not for quoting
    python -m bench.run [GROUP ...] [--quick] [--json FILE] [--folder DIR]

Groups: wheel, memory, schedule, cycle, lateness, herd, restart, checkpoint, schedules. Exit status
1 when a target is missed.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from bench import (
    figures_checkpoint,
    figures_cycle,
    figures_herd,
    figures_lateness,
    figures_memory,
    figures_restart,
    figures_schedule,
    figures_schedules,
    figures_wheel,
)
from bench.harness import (
    DISTURBED_LOAD,
    BenchError,
    Machine,
    Result,
    Scale,
    look_at_machine,
)

Group = Callable[[Path, Scale], list[Result]]

GROUPS: Final[dict[str, Group]] = {
    "wheel": figures_wheel.run,
    "memory": figures_memory.run,
    "schedule": figures_schedule.run,
    "cycle": figures_cycle.run,
    "lateness": figures_lateness.run,
    "herd": figures_herd.run,
    "restart": figures_restart.run,
    "checkpoint": figures_checkpoint.run,
    "schedules": figures_schedules.run,
}
FULL: Final = Scale(
    rounds=3,
    jobs_large=(1_000_000, 10_000_000),
    steady_s=3,
    all_points=True,
    run_s=0.5,
    far_jobs=1_000_000,
    backlog_jobs=150_000,
    steady_rates=(5_000, 50_000),
    herds=(100_000, 1_000_000),
    restart_jobs=1_000_000,
    wheel_rounds=3,
)
QUICK: Final = Scale(
    rounds=1,
    jobs_large=(300_000,),
    steady_s=2,
    all_points=False,
    run_s=0.2,
    far_jobs=300_000,
    backlog_jobs=50_000,
    steady_rates=(5_000, 50_000),
    herds=(100_000,),
    restart_jobs=300_000,
    wheel_rounds=1,
)


def measure(names: Sequence[str], scale: Scale, folder: Path) -> list[Result]:
    """Return the results of the groups; one that fails is a result that says why."""
    results: list[Result] = []
    for name in names:
        here = folder / name
        here.mkdir()
        try:
            results += GROUPS[name](here, scale)
        except (BenchError, OSError) as error:
            results.append(Result(figure=name, value=None, unit="", why=str(error)[-300:]))
        shutil.rmtree(here, ignore_errors=True)
    return results


def shown(value: float) -> str:
    """Return a number with as many digits as one can rely on."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(machine: Machine, results: Sequence[Result]) -> str:
    """Return machine and results as text for people."""
    lines = [
        (
            f"{machine.cpu_count} x {machine.cpu}, {machine.memory_gib} GiB, "
            f"Linux {machine.kernel}, {machine.filesystem}, huge pages {machine.huge_pages}"
        ),
        f"fdatasync of 4 KiB: {machine.fdatasync_us:.0f} us; load before: {machine.load_1min:.2f}",
        (
            f"{', '.join(f'{name} {text}' for name, text in machine.versions.items())}; "
            f"commit {machine.commit}"
        ),
    ]
    if machine.load_1min > DISTURBED_LOAD * machine.cpu_count:
        lines.append("other programs keep the CPUs busy: trust ratios, not rates")
    lines += ["", f"{'figure':<84}{'measured':>18}{'target':>10}  {'':<13}command"]
    for row in results:
        measured = "-" if row.value is None else f"{shown(row.value)} {row.unit}"
        lines.append(
            f"{row.figure:<84}{measured:>18}{row.target:>10}  {row.verdict:<13}{row.command}"
        )
        if row.why:
            lines.append(f"    {row.why}")
    return "\n".join(lines)


def report(machine: Machine, results: Sequence[Result]) -> str:
    """Return machine and results as JSON."""
    rows = [{**asdict(row), "verdict": row.verdict} for row in results]
    return json.dumps({"machine": asdict(machine), "results": rows}, indent=2)


def main() -> int:
    """Return the exit status: 1 when a target was missed or a group failed."""
    parser = argparse.ArgumentParser(description="Measure wheeld on this machine.")
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; none = all")
    parser.add_argument("--quick", action="store_true", help="less of everything, one round")
    parser.add_argument("--rounds", type=int, help="interleaved rounds, 3 unless --quick")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--folder", type=Path, help="where data goes: its disk is what is measured")
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    start = time.monotonic()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # end what was started

    def progress(text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - start:5.0f} s] {text}\n")

    scale = replace(QUICK if options.quick else FULL, progress=progress)
    if options.rounds:
        scale = replace(scale, rounds=options.rounds)
    with tempfile.TemporaryDirectory(prefix="wheeld-bench-", dir=options.folder) as name:
        folder = Path(name)
        machine = look_at_machine(folder)
        results = measure(options.groups or list(GROUPS), scale, folder)
    sys.stdout.write(table(machine, results) + "\n")
    if options.json:
        options.json.write_text(report(machine, results) + "\n", encoding="utf-8")
    return 1 if any(row.verdict == "MISSED" or row.why for row in results) else 0


if __name__ == "__main__":
    sys.exit(main())
