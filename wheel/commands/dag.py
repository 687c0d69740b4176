"""``wheeld dag``: schedules that run after one another, seen as one graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import click

from wheel.applying import ordered
from wheel.client import Client
from wheel.commands.cron import shown_moment, unix_ms
from wheel.commands.kinds import moment
from wheel.commands.lazy import CONTEXT, Group
from wheel.commands.output import (
    iso,
    json_option,
    plain,
    print_backfilled,
    print_json,
    print_table,
    url_option,
)
from wheel.errors import Conflict, NotFound
from wheel.recurring import Schedule, ScheduleRun

EPILOG: Final = """\b
Examples:
  wheeld dag list
  wheeld dag show nightly --date 2026-12-07
"""
LIST_EPILOG: Final = """\b
Examples:
  wheeld dag list
  wheeld dag list --json
"""
SHOW_EPILOG: Final = """\b
Examples:
  wheeld dag show nightly
  wheeld dag show nightly --date 2026-12-07 --json
"""
GRAPH_EPILOG: Final = """\b
Examples:
  wheeld dag graph nightly
  wheeld dag graph nightly --dot | dot -Tsvg > nightly.svg
"""
RERUN_EPILOG: Final = """\b
Examples:
  wheeld dag rerun nightly 2026-12-07
  wheeld dag rerun nightly 2026-12-07 --json
"""
BACKFILL_EPILOG: Final = """\b
Examples:
  wheeld dag backfill nightly 2026-11-01T00:00Z 2026-12-01T00:00Z --dry-run
  wheeld dag backfill nightly 2026-11-01T00:00Z now --active 2
"""
LIST_HEADER: Final = ("NAME", "TASKS", "NEXT (UTC)")
SHOW_HEADER: Final = ("LAYER", "TASK", "HANDLER", "AFTER", "STATE", "NEXT (UTC)")
DATE_HEADER: Final = ("LAYER", "TASK", "HANDLER", "AFTER", "RUN", "OUTCOME", "REASON")
GRAPH_HEADER: Final = ("TASK", "AFTER")
UNDER_WAY: Final = ("running", "waiting")
HELD: Final = ("held", "upstream_failed", "no_upstream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The schedules of one graph, upstreams first.

    Attributes:
        name: what they are shown under.
        tasks: by name.
        after: whom each one waits for, those outside of the graph included.
        layers: 0 for those that wait for nobody in the graph.
    """

    name: str
    tasks: Mapping[str, Schedule]
    after: Mapping[str, Sequence[str]]
    layers: Mapping[str, int]


@click.group("dag", cls=Group, epilog=EPILOG, context_settings=CONTEXT)
def dag_group() -> None:
    """Look at schedules that run after one another, and run them again."""


@dag_group.command("list", epilog=LIST_EPILOG, context_settings=CONTEXT)
@url_option
@json_option
def list_command(*, url: str | None, as_json: bool) -> None:
    """List the graphs: every name that schedules are shown under."""
    found: dict[str, list[Schedule]] = {}
    with Client(url) as client:
        for entry in client.schedules():
            if entry.dag:
                found.setdefault(entry.dag, []).append(entry)
    rows: list[tuple[str, int, int | None]] = []
    for name, tasks in sorted(found.items()):
        ahead = [moment for moment in map(unix_ms, tasks) if moment is not None]
        rows.append((name, len(tasks), min(ahead, default=None)))
    if as_json:
        items = [
            {"name": name, "tasks": count, "next": None if next_ms is None else iso(next_ms)}
            for name, count, next_ms in rows
        ]
        print_json({"items": items})
        return
    print_table(LIST_HEADER, [(name, str(n), shown_moment(ms)) for name, n, ms in rows])


@dag_group.command("show", epilog=SHOW_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.option("--date", help="What became of each task on this logical date: 2026-12-07.")
@url_option
@json_option
def show_command(name: str, *, date: str | None, url: str | None, as_json: bool) -> None:
    """Show the tasks of the graph NAME in order, or what became of them on one date."""
    with Client(url) as client:
        graph = load(client, name)
        runs = (
            {} if date is None else {task: _newest(graph.tasks[task], date) for task in graph.tasks}
        )
    if as_json:
        items = [
            {
                **graph.tasks[task].fields,
                "layer": graph.layers[task],
                "run": None if runs.get(task) is None else cast("ScheduleRun", runs[task]).fields,
            }
            for task in graph.tasks
        ]
        print_json({"name": name, "date": date, "items": items})
    elif date is None:
        print_table(SHOW_HEADER, [_task_row(graph, task) for task in graph.tasks])
    else:
        print_table(DATE_HEADER, [_date_row(graph, task, runs[task]) for task in graph.tasks])


def _newest(task: Schedule, date: str) -> ScheduleRun | None:
    return next(iter(task.runs(date=date)), None)


def _head(graph: Graph, task: str) -> tuple[str, str, str, str]:
    handler = str(plain(graph.tasks[task].fields.get("handler")) or "")
    return (str(graph.layers[task]), task, handler, ", ".join(graph.after[task]))


def _task_row(graph: Graph, task: str) -> tuple[str, ...]:
    entry = graph.tasks[task]
    return (*_head(graph, task), entry.state, shown_moment(unix_ms(entry)))


def _date_row(graph: Graph, task: str, run: ScheduleRun | None) -> tuple[str, ...]:
    told = ("", "none", "") if run is None else (run.run_id, run.outcome, run.reason or "")
    return (*_head(graph, task), *told)


@dag_group.command("graph", epilog=GRAPH_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.option("--dot", is_flag=True, help="Print it for Graphviz.")
@url_option
@json_option
def graph_command(name: str, *, dot: bool, url: str | None, as_json: bool) -> None:
    """Show who waits for whom in the graph NAME."""
    with Client(url) as client:
        graph = load(client, name)
    if as_json:
        items = [{"task": task, "after": list(after)} for task, after in graph.after.items()]
        print_json({"name": name, "items": items})
    elif dot:
        for line in dot_lines(graph):
            click.echo(line)
    else:
        rows = [(task, ", ".join(after)) for task, after in graph.after.items()]
        print_table(GRAPH_HEADER, rows)


def dot_lines(graph: Graph) -> list[str]:
    """Return a graph in the language of Graphviz."""
    lines = [f"digraph {_quoted(graph.name)} {{", "  rankdir=LR;"]
    lines += [f"  {_quoted(task)};" for task in graph.tasks]
    lines += [
        f"  {_quoted(up)} -> {_quoted(task)};"
        for task, after in graph.after.items()
        for up in after
    ]
    return [*lines, "}"]


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dag_group.command("rerun", epilog=RERUN_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.argument("date")
@url_option
@json_option
def rerun_command(name: str, date: str, *, url: str | None, as_json: bool) -> None:
    """Run every task of the graph NAME again for the logical date DATE.

    A run that is held goes on by itself when those that it waits for have succeeded. While a run
    of that date is under way nothing is run again.
    """
    with Client(url) as client:
        graph = load(client, name)
        made, held = _rerun(graph, date)
    if as_json:
        print_json({"name": name, "word": "made", "items": made, "held": held})
    else:
        rows = [*((run, "made") for run in made), *((run, "held") for run in held)]
        print_table(("RUN", "WHAT"), rows)


def _rerun(graph: Graph, date: str) -> tuple[list[str], list[str]]:
    """Run each task again; return the new runs, and those that are held and go on by themselves.

    Raises:
        Conflict: one is under way; nothing was run again.
    """
    before = {task: _newest(entry, date) for task, entry in graph.tasks.items()}
    for run in before.values():
        if run is not None and run.outcome in UNDER_WAY:
            raise Conflict(
                f"{run.run_id} is {run.outcome}, so nothing was run again; wait for its end, or "
                "cancel its job"
            )
    made: list[str] = []
    held: list[str] = []
    for task, entry in graph.tasks.items():
        run = before[task]
        if run is None and not graph.tasks.keys().isdisjoint(graph.after[task]):
            run = _newest(entry, date)  # which the run of an upstream may have made
            if run is not None:
                made.append(run.run_id)
                continue
        if run is not None and run.outcome in HELD:
            held.append(run.run_id)
        else:
            made += entry.rerun(date)
    return made, held


@dag_group.command("backfill", epilog=BACKFILL_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.argument("start", metavar="FROM", callback=moment)
@click.argument("end", metavar="TO", callback=moment)
@click.option("--dry-run", is_flag=True, help="Change nothing, only show the runs.")
@click.option("--reverse", is_flag=True, help="Run the newest first.")
@click.option(
    "--active", type=click.IntRange(1), help="Run at most so many of a task at once  [default: 1]"
)
@url_option
@json_option
def backfill_command(
    name: str,
    start: str,
    end: str,
    *,
    dry_run: bool,
    reverse: bool,
    active: int | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Make the runs from FROM to TO that are not there, of the tasks that have a rule.

    The other tasks follow by themselves, each for the date of the run that it waits for.
    """
    with Client(url) as client:
        graph = load(client, name)
        made = [
            run
            for task, entry in graph.tasks.items()
            if graph.layers[task] == 0
            for run in entry.backfill(start, end, dry_run=dry_run, reverse=reverse, active=active)
        ]
    print_backfilled(name, made, dry_run=dry_run, as_json=as_json)


def load(client: Client, name: str) -> Graph:
    """Return a graph as the server has it.

    Raises:
        NotFound: no schedule is shown under this name.
    """
    tasks = {entry.name: entry for entry in client.schedules(dag=name)}
    if not tasks:
        raise NotFound(f"no graph {name!r}; `wheeld dag list` shows those that there are")
    after = {task: entry.after for task, entry in tasks.items()}
    layers: dict[str, int] = {}
    for task in ordered(after):
        layers[task] = max((layers[up] + 1 for up in after[task] if up in tasks), default=0)
    names = sorted(layers, key=lambda task: (layers[task], task))
    return Graph(
        name=name,
        tasks={task: tasks[task] for task in names},
        after={task: after[task] for task in names},
        layers=layers,
    )
