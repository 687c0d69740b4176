"""Measure wheeld on this machine, beside the peers that are installed.

    make bench                                   everything, about half an hour
    make bench BENCH="--quick"                   a few minutes; for a look, not for quoting
    wheeld bench [GROUP ...] [--quick] [--json FILE] [--against FILE] [--plots DIR] [--folder DIR]

`wheeld bench -h` lists the groups. Exit status 1 when a target is missed, a group failed, or a
figure with a target got worse than in --against's file by more than the rounds differ.
"""

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from bench import (
    figures_checkpoint,
    figures_cycle,
    figures_day,
    figures_floor,
    figures_growth,
    figures_herd,
    figures_lateness,
    figures_memory,
    figures_schedule,
    figures_schedules,
    figures_wheel,
    plots,
    report,
)
from bench.harness import BenchError, Result, Scale, look_at_machine
from wheel.commands.lazy import CONTEXT
from wheel.commands.output import EXIT_FAILED
from wheeld import main


@dataclass(frozen=True, slots=True)
class Group:
    """Figures that are taken together.

    Attributes:
        run: takes them in a folder of their own.
        about: one line for the help, with the number that the issue and docs/performance.md give.
    """

    run: Callable[[Path, Scale], list[Result]]
    about: str


GROUPS: Final[dict[str, Group]] = {
    "schedule": Group(figures_schedule.run, "W1: far-future jobs a second, CPU a job"),
    "cycle": Group(figures_cycle.run, "W2: schedule, due, lease, acknowledge"),
    "memory": Group(figures_memory.run, "W3: bytes a job; a start after a stop and after kill -9"),
    "lateness": Group(figures_lateness.run, "W4: from due to sent, at a steady rate"),
    "herd": Group(figures_herd.run, "W5: many jobs due in one millisecond, and a PING meanwhile"),
    "wheel": Group(
        figures_wheel.run, "W6: the timing wheel alone, beside a C heap, heapq and SortedKeyList"
    ),
    "growth": Group(figures_growth.run, "W7: cost of an operation from 10,000 to 10 M timers"),
    "day": Group(
        figures_day.run, "W8: 24 hours of mixed work by hand-moved clock, all accounted for"
    ),
    "floor": Group(figures_floor.run, "a server that does nothing under the loads of W1"),
    "checkpoint": Group(figures_checkpoint.run, "what a checkpoint costs, and a start from one"),
    "schedules": Group(figures_schedules.run, "cron schedules: size, a midnight, a start"),
}
FULL: Final = Scale(
    rounds=3,
    jobs_large=(1_000_000, 10_000_000),
    steady_s=3,
    all_points=True,
    run_s=1.0,
    far_jobs=1_000_000,
    backlog_jobs=150_000,
    steady_rates=(5_000, 50_000),
    herds=(100_000, 1_000_000),
    restart_jobs=1_000_000,
    peer_jobs=1_000_000,
    wheel_rounds=3,
    wheel_timers=1_000_000,
    growth_timers=(10_000, 100_000, 1_000_000, 10_000_000),
    day_schedules=200_000,
    day_jobs=1_000_000,
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
    peer_jobs=300_000,
    wheel_rounds=1,
    wheel_timers=200_000,
    growth_timers=(10_000, 100_000, 1_000_000),
    day_schedules=5_000,
    day_jobs=50_000,
)


def measure(names: Sequence[str], scale: Scale, folder: Path) -> list[Result]:
    """Return the results of the groups; one that fails is a result that says why."""
    results: list[Result] = []
    for name in names:
        here = folder / name
        here.mkdir()
        try:
            results += GROUPS[name].run(here, scale)
        except (BenchError, OSError) as error:
            results.append(Result(figure=name, value=None, unit="", why=str(error)[-300:]))
        shutil.rmtree(here, ignore_errors=True)
    return results


def is_failure(row: Result) -> bool:
    """Return whether a row makes the run fail: a target missed, or a group that did not run.

    A peer that is not installed is no failure: its rows say so, and have no value.
    """
    return row.verdict == "MISSED" or (bool(row.why) and row.figure in GROUPS)


EXAMPLES: Final = """\b
Examples:
  wheeld bench --quick
  wheeld bench schedule herd --json now.json --against before.json
"""


def _listed() -> str:
    lines = [f"  {name:<11} {group.about}" for name, group in GROUPS.items()]
    groups = "\b\nGroups (all of them when none is named):\n" + "\n".join(lines)
    return f"{groups}\n\n{EXAMPLES}"


@click.command("bench", epilog=_listed(), context_settings=CONTEXT)
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@click.option("--quick", is_flag=True, help="Less of everything, one round; not for quoting.")
@click.option("--rounds", type=click.IntRange(min=1), help="Interleaved rounds.  [default: 3]")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write machine, versions, commit and every round there too.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Compare with an earlier --json file.",
)
@click.option(
    "--plots",
    "plots_folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Draw pictures (PNG and SVG) into this folder.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where the data of all servers goes: its disk is what is measured.",
)
def bench_command(
    groups: tuple[str, ...],
    *,
    quick: bool,
    rounds: int | None,
    json_file: Path | None,
    against: Path | None,
    plots_folder: Path | None,
    folder: Path | None,
) -> int:
    """Measure wheeld on this machine, beside Redis, beanstalkd and PostgreSQL where they are found.

    Servers are started on free ports of 127.0.0.1 and ended again; nothing that runs already is
    touched. What a peer is needed for and not found is printed as not measured.
    """
    if unknown := sorted(set(groups) - set(GROUPS)):
        raise click.UsageError(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if plots_folder is not None and not plots.has_matplotlib():
        raise click.ClickException(plots.NO_MATPLOTLIB)
    scale = QUICK if quick else FULL
    if rounds:
        scale = replace(scale, rounds=rounds)
    try:
        earlier = None if against is None else report.read(against)
        return _bench(groups or tuple(GROUPS), scale, folder, (json_file, earlier, plots_folder))
    except BenchError as error:
        raise click.ClickException(str(error)) from error


def _bench(
    names: Sequence[str],
    scale: Scale,
    folder: Path | None,
    wanted: tuple[Path | None, report.Report | None, Path | None],
) -> int:
    json_file, earlier, plots_folder = wanted
    start = time.monotonic()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # end what was started

    def progress(text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - start:5.0f} s] {text}\n")

    with tempfile.TemporaryDirectory(prefix="wheeld-bench-", dir=folder) as name:
        machine = look_at_machine(Path(name))
        results = measure(names, replace(scale, progress=progress), Path(name))
    click.echo(report.table(machine, results))
    failed = any(map(is_failure, results))
    if json_file is not None:
        json_file.write_text(report.to_json(machine, results), encoding="utf-8")
    if earlier is not None:
        changes = report.compare(earlier.results, results)
        click.echo("\n" + report.comparison(earlier, machine, changes))
        failed |= any(change.fails for change in changes)
    if plots_folder is not None:
        for path in plots.draw(results, plots_folder):
            progress(f"drew {path}")
    return EXIT_FAILED if failed else 0


if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
