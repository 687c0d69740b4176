"""``wheeld cron``, second half: what is done to a schedule's runs."""

from itertools import islice
from typing import Final, cast

import click

from wheel.client import Client
from wheel.commands.kinds import duration, moment
from wheel.commands.lazy import CONTEXT
from wheel.commands.output import (
    EXIT_REFUSED,
    iso,
    json_option,
    plain,
    print_backfilled,
    print_json,
    print_runs_made,
    print_table,
    shortened,
    url_option,
)
from wheel.recurring import Schedule, ScheduleRun, Verdict
from wheel.values import When

PAUSE_EPILOG: Final = """\b
Examples:
  wheeld cron pause weekly-digest --note 'mail server moves'
  wheeld cron pause weekly-digest --json
"""
RESUME_EPILOG: Final = """\b
Examples:
  wheeld cron resume weekly-digest
  wheeld cron resume weekly-digest --json
"""
TRIGGER_EPILOG: Final = """\b
Examples:
  wheeld cron trigger weekly-digest
  wheeld cron trigger weekly-digest --in 10m --force
"""
BACKFILL_EPILOG: Final = """\b
Examples:
  wheeld cron backfill nightly 2026-11-01T00:00Z 2026-12-01T00:00Z --dry-run
  wheeld cron backfill nightly 2026-11-01T00:00Z now --reverse --active 2
"""
RUNS_EPILOG: Final = """\b
Examples:
  wheeld cron runs nightly --limit 20
  wheeld cron runs nightly --date 2026-12-07 --json
"""
RERUN_EPILOG: Final = """\b
Examples:
  wheeld cron rerun verify 2026-12-07
  wheeld cron rerun verify 2026-12-07 --downstream
"""
MARK_EPILOG: Final = """\b
Examples:
  wheeld cron mark nightly@2026-12-07T02:00:00Z succeeded --note 'done by hand'
  wheeld cron mark nightly@2026-12-07T02:00:00Z failed
"""
TEXT_SHOWN: Final = 60  # characters of an error, on a terminal
NEWEST: Final = 20  # runs among which one that has just been made is
RUNS_HEADER: Final = ("RUN", "DATE", "OUTCOME", "COUNT", "REASON")


@click.command("pause", epilog=PAUSE_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.option("--note", help="The reason, shown with it.")
@url_option
@json_option
def pause_command(name: str, *, note: str | None, url: str | None, as_json: bool) -> None:
    """Pause the schedule NAME: no run begins until it is resumed."""
    with Client(url) as client:
        client.schedule(name).pause(note)
    _print_done(name, "paused", as_json=as_json)


@click.command("resume", epilog=RESUME_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@url_option
@json_option
def resume_command(name: str, *, url: str | None, as_json: bool) -> None:
    """Resume the schedule NAME; its catch-up decides about the runs that it missed."""
    with Client(url) as client:
        client.schedule(name).resume()
    _print_done(name, "resumed", as_json=as_json)


@click.command("trigger", epilog=TRIGGER_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.option("--at", metavar="ISO", callback=moment, help="When it is due; now by default.")
@click.option("--in", "delay", metavar="DUR", callback=duration, help="Due so long from now.")
@click.option("--force", is_flag=True, help="Run it even if another run is active.")
@url_option
@json_option
def trigger_command(
    name: str,
    *,
    at: str | None,
    delay: str | None,
    force: bool,
    url: str | None,
    as_json: bool,
) -> int:
    """Make one run of the schedule NAME by hand.

    Exit status: 5 if it was skipped, because another run is active and the schedule's overlap
    says skip.
    """
    if at is not None and delay is not None:
        raise click.UsageError("say when with either --at ISO or --in DUR")
    when: When | None = at if delay is None else f"+{delay}"
    with Client(url) as client:
        schedule = client.schedule(name)
        run_id = schedule.trigger(at=when, force=force)
        # One that is due later is judged later, and a forced one is not.
        is_skipped = when is None and not force and _is_skipped(schedule, run_id)
    print_runs_made(name, [run_id], "skipped" if is_skipped else "triggered", as_json=as_json)
    if is_skipped:
        click.echo("another run is active; --force runs it all the same", err=True)
    return EXIT_REFUSED if is_skipped else 0


def _is_skipped(schedule: Schedule, run_id: str) -> bool:
    newest = islice(schedule.runs(), NEWEST)
    return any(run.run_id == run_id and run.outcome == "skipped" for run in newest)


@click.command("backfill", epilog=BACKFILL_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.argument("start", metavar="FROM", callback=moment)
@click.argument("end", metavar="TO", callback=moment)
@click.option("--dry-run", is_flag=True, help="Change nothing, only show the runs.")
@click.option("--reverse", is_flag=True, help="Run the newest first.")
@click.option("--active", type=click.IntRange(1), help="Run at most so many at once  [default: 1]")
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
    """Make the runs of NAME from FROM to TO that are not in its history."""
    with Client(url) as client:
        made = client.schedule(name).backfill(
            start, end, dry_run=dry_run, reverse=reverse, active=active
        )
    print_backfilled(name, made, dry_run=dry_run, as_json=as_json)


@click.command("runs", epilog=RUNS_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.option("--date", help="Only those for this logical date: 2026-12-07.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Most rows.")
@url_option
@json_option
def runs_command(
    name: str, *, date: str | None, limit: int, url: str | None, as_json: bool
) -> None:
    """List the runs of the schedule NAME, the newest first."""
    with Client(url) as client:
        found = list(islice(client.schedule(name).runs(date=date), limit + 1))
    more = len(found) > limit
    found = found[:limit]
    if as_json:
        print_json({"name": name, "items": [run.fields for run in found], "more": more})
        return
    print_table(RUNS_HEADER, [_run_row(run) for run in found])
    if more:
        click.echo(f"there are more: --limit {2 * limit}", err=True)


def _run_row(run: ScheduleRun) -> tuple[str, ...]:
    name = run.run_id
    if run.count > 1:
        name += f" .. {iso(round(run.last.timestamp() * 1000))}"
    reason = run.reason or ""
    if run.outcome == "dead" and run.fields.get("text"):
        reason += f": {shortened(str(plain(run.fields['text'])), TEXT_SHOWN)}"
    return (name, run.date, run.outcome, str(run.count), reason)


@click.command("rerun", epilog=RERUN_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.argument("date")
@click.option("--downstream", is_flag=True, help="Run all that waits for it again as well.")
@url_option
@json_option
def rerun_command(
    name: str, date: str, *, downstream: bool, url: str | None, as_json: bool
) -> None:
    """Run the logical date DATE of the schedule NAME again."""
    with Client(url) as client:
        made = client.schedule(name).rerun(date, downstream=downstream)
    print_runs_made(name, made, "made", as_json=as_json)


@click.command("mark", epilog=MARK_EPILOG, context_settings=CONTEXT)
@click.argument("run")
@click.argument("verdict", type=click.Choice(["succeeded", "failed"]))
@click.option("--note", help="The reason, shown with it.")
@url_option
@json_option
def mark_command(
    run: str, verdict: str, *, note: str | None, url: str | None, as_json: bool
) -> None:
    """Set the outcome of RUN, for the schedules that wait for it."""
    with Client(url) as client:
        client.mark_run(run, cast("Verdict", verdict), note)
    _print_done(run, f"marked {verdict}", as_json=as_json)


def _print_done(name: str, word: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "word": word})
    else:
        print_table(("NAME", "WHAT"), [(name, word)])


RUN_COMMANDS: Final[tuple[click.Command, ...]] = (
    pause_command,
    resume_command,
    trigger_command,
    backfill_command,
    runs_command,
    rerun_command,
    mark_command,
)
