"""``wheeld cron``: make schedules, look at them, ask when they fire.

What is done to the runs of a schedule stands in wheel/commands/cron_runs.py.
"""

import sys
from collections.abc import Mapping
from itertools import islice
from typing import Final, cast

import click

from wheel.client import Client
from wheel.commands.cron_runs import RUN_COMMANDS
from wheel.commands.imports import IMPORT_COMMANDS
from wheel.commands.kinds import duration, moment
from wheel.commands.lazy import CONTEXT, Group
from wheel.commands.output import (
    confirm,
    from_now,
    iso,
    json_option,
    plain,
    print_json,
    print_table,
    shown_name,
    url_option,
)
from wheel.commands.schedule import read_payload
from wheel.definitions import (
    AFTER_RULES,
    CATCH_UPS,
    DATE_MODES,
    DST_RULES,
    OVERLAPS,
    CronOptions,
    DstRule,
)
from wheel.errors import InvalidRequest
from wheel.recurring import Explanation, Fire, Schedule
from wheel.system import SYSTEM
from wheel.values import BACKOFF_KINDS, Backoff, BackoffKind, backoff

EPILOG: Final = """\b
Examples:
  wheeld cron add weekly-digest '0 9 * * 1' digest.send --tz Europe/Rome
  wheeld cron explain '30 2 * * *' --tz America/New_York
"""
ADD_EPILOG: Final = """RULE is cron text (5 to 7 fields), @daily and its kin, '@every 90m',
'@at ISO', or - for none, with --after.

\b
Examples:
  wheeld cron add weekly-digest '0 9 * * 1' digest.send --tz Europe/Rome --jitter 5m
  wheeld cron add report - report.build --after verify --after-rule all_done
"""
LIST_EPILOG: Final = """\b
Examples:
  wheeld cron list
  wheeld cron list shop. --json
"""
SHOW_EPILOG: Final = """\b
Examples:
  wheeld cron show weekly-digest
  wheeld cron show weekly-digest --json
"""
EXPLAIN_EPILOG: Final = """\b
Examples:
  wheeld cron explain '30 2 * * *' --tz America/New_York
  wheeld cron explain 'H H * * 1-5' --name weekly-digest --count 10
"""
NEXT_EPILOG: Final = """\b
Examples:
  wheeld cron next weekly-digest
  wheeld cron next weekly-digest --count 20 --json
"""
DELETE_EPILOG: Final = """\b
Examples:
  wheeld cron delete weekly-digest
  wheeld cron delete weekly-digest --yes --force
"""
LIST_HEADER: Final = ("NAME", "RULE", "ZONE", "HANDLER", "STATE", "NEXT (UTC)")
NEXT_HEADER: Final = ("LOCAL", "UTC", "IN")
MOMENTS: Final = frozenset(
    "next_ms due_ms start_ms end_ms created_ms changed_ms paused_ms last_success_ms".split()
)
SET_HEADER: Final = ("NAME", "WHAT", "VERSION", "NEXT (UTC)")


@click.group("cron", cls=Group, epilog=EPILOG, context_settings=CONTEXT)
def cron_group() -> None:
    """Make schedules, look at them, and see to their runs."""


def _backoff(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Backoff | None:
    return None if text is None else read_backoff(text)


WHEN_OPTIONS: Final = (
    click.Option(["--tz"], metavar="ZONE", help="Time zone of the rule  [default: UTC]"),
    click.Option(
        ["--jitter"], metavar="DUR", callback=duration, help="Delay each run by up to so much."
    ),
    click.Option(["--start"], metavar="ISO", callback=moment, help="No run before this moment."),
    click.Option(["--end"], metavar="ISO", callback=moment, help="No run after this moment."),
    click.Option(["--max-runs"], type=click.IntRange(1), help="End after so many runs."),
    click.Option(
        ["--dst"],
        type=click.Choice(DST_RULES),
        help="How the rule behaves when the clocks change  [default: cron]",
    ),
)
WHICH_OPTIONS: Final = (
    click.Option(
        ["--overlap"],
        type=click.Choice(OVERLAPS),
        help="What to do when a run is due while another is active  [default: skip]",
    ),
    click.Option(
        ["--catch-up"],
        type=click.Choice(CATCH_UPS),
        help="Which missed runs to make up for, after a downtime or pause  [default: latest]",
    ),
    click.Option(
        ["--catch-up-window"],
        metavar="DUR",
        callback=duration,
        help="Make up for no run older than this.",
    ),
    click.Option(
        ["--catch-up-max"],
        type=click.IntRange(1),
        help="Make up for at most so many runs  [default: 1000]",
    ),
    click.Option(
        ["--after"],
        multiple=True,
        metavar="NAME",
        help="Wait for the run of NAME for the same date; may be repeated.",
    ),
    click.Option(
        ["--after-rule"],
        type=click.Choice(AFTER_RULES),
        help="Whether those must succeed or only end  [default: all_success]",
    ),
    click.Option(
        ["--date"],
        type=click.Choice(DATE_MODES),
        help="What counts as the same date for --after  [default: day]",
    ),
    click.Option(["--dag"], metavar="NAME", help="The graph that `wheeld dag` shows it in."),
)
JOB_OPTIONS: Final = (
    click.Option(["--priority"], type=click.IntRange(0, 255), help="0 goes first  [default: 128]"),
    click.Option(
        ["--retries"],
        type=click.IntRange(0, 1_000),
        help="Failures allowed; one more and the run is dead.",
    ),
    click.Option(
        ["--lost"],
        type=click.IntRange(0, 1_000),
        help="Lost leases allowed; one more and the run is dead.",
    ),
    click.Option(
        ["--backoff"],
        metavar="KIND:DUR[:MAX]",
        callback=_backoff,
        help="Wait between attempts: exp:15s:1h, linear:1m, fixed:5m.",
    ),
    click.Option(
        ["--lease"],
        metavar="DUR",
        callback=duration,
        help="How long a silent worker counts as alive.",
    ),
    click.Option(
        ["--timeout"],
        metavar="DUR",
        callback=duration,
        help="How long a run may last; 0s = for ever.",
    ),
    click.Option(
        ["--expire"],
        metavar="DUR",
        callback=duration,
        help="Give a run up if no worker took it so long after it was due.",
    ),
    click.Option(["--group"], metavar="NAME", help="A label, stored with the jobs."),
)


@cron_group.command(
    "add",
    epilog=ADD_EPILOG,
    context_settings=CONTEXT,
    params=[*WHEN_OPTIONS, *WHICH_OPTIONS, *JOB_OPTIONS],
)
@click.argument("name")
@click.argument("rule")
@click.argument("handler")
@click.argument("payload", metavar="[JSON|@FILE|-]", required=False)
@click.option(
    "--if-version", type=click.IntRange(0), help="Only if it has this version; 0: is not there."
)
@url_option
@json_option
def add_command(
    name: str,
    rule: str,
    handler: str,
    payload: str | None,
    *,
    url: str | None,
    as_json: bool,
    **given: object,
) -> None:
    """Make the schedule NAME, or change it; the same again changes nothing.

    The payload is JSON: written out, read from @FILE, or from the standard input with a dash.
    """
    content = None if payload is None else read_payload(payload)
    words = {key: value for key, value in given.items() if value not in (None, ())}
    with Client(url) as client:
        made = client.schedule_cron(name, rule, handler, content, **cast("CronOptions", words))
    next_ms = unix_ms(made)
    if as_json:
        print_json(
            {
                "name": made.name,
                "word": made.word,
                "version": made.version,
                "next": None if next_ms is None else iso(next_ms),
            }
        )
        return
    row = (made.name, made.word or "", str(made.version), shown_moment(next_ms))
    print_table(SET_HEADER, [row])


def read_backoff(text: str) -> Backoff:
    """Return what ``kind:base[:max]`` says.

    Raises:
        click.BadParameter: another form, or no duration.
    """
    kind, _, rest = text.partition(":")
    base, _, most = rest.partition(":")
    if kind not in BACKOFF_KINDS or not base:
        raise click.BadParameter(f"{text!r}: write exp:15s:1h, linear:1m or fixed:5m")
    try:
        return backoff(base, cast("BackoffKind", kind), max=most or None)
    except InvalidRequest as error:
        raise click.BadParameter(str(error)) from error


@cron_group.command("list", epilog=LIST_EPILOG, context_settings=CONTEXT)
@click.argument("prefix", default="")
@click.option("--dag", default="", metavar="NAME", help="Only those of this graph.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Most rows.")
@url_option
@json_option
def list_command(prefix: str, *, dag: str, limit: int, url: str | None, as_json: bool) -> None:
    """List schedules by name, those that begin with PREFIX."""
    with Client(url) as client:
        found = list(islice(client.schedules(prefix, dag=dag), limit + 1))
    more = len(found) > limit
    found = found[:limit]
    if as_json:
        print_json({"items": [entry.fields for entry in found], "more": more})
        return
    print_table(LIST_HEADER, [_list_row(entry) for entry in found])
    if more:
        click.echo(f"there are more: --limit {2 * limit}", err=True)


def _list_row(entry: Schedule) -> tuple[str, ...]:
    shown = [str(plain(entry.fields.get(name)) or "") for name in ("rule", "tz", "handler")]
    state = str(plain(entry.fields.get("state")) or "")
    return (entry.name, *shown, state, shown_moment(unix_ms(entry)))


@cron_group.command("show", epilog=SHOW_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@url_option
@json_option
def show_command(name: str, *, url: str | None, as_json: bool) -> None:
    """Show everything the server knows of the schedule NAME."""
    with Client(url) as client:
        found = client.schedule(name)
    if as_json:
        print_json(found.fields)
        return
    print_table(
        ("FIELD", "VALUE"),
        [(shown_name(key, MOMENTS), _value(key, value)) for key, value in found.fields.items()],
    )


def _value(name: str, value: object) -> str:
    """Return one field for people; a moment is written as one."""
    if value is None:
        return ""
    if name in MOMENTS:
        return shown_moment(int(str(plain(value))))
    if isinstance(value, list):
        return ", ".join(str(plain(entry)) for entry in cast("list[object]", value))
    return str(plain(value))


@cron_group.command("explain", epilog=EXPLAIN_EPILOG, context_settings=CONTEXT)
@click.argument("rule")
@click.option("--tz", default="UTC", metavar="ZONE", show_default=True, help="The rule's zone.")
@click.option("--from", "after", metavar="ISO", callback=moment, help="Begin there  [default: now]")
@click.option(
    "--count", type=click.IntRange(1, 100), default=3, show_default=True, help="How many times."
)
@click.option("--dst", type=click.Choice(DST_RULES), help="What happens where clocks change.")
@click.option("--name", help="Of the schedule it is for: what H stands for depends on it.")
@url_option
@json_option
def explain_command(
    rule: str,
    *,
    tz: str,
    after: str | None,
    count: int,
    dst: DstRule | None,
    name: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Put RULE into words, with its next times and what to watch for; nothing is stored."""
    with Client(url) as client:
        found = client.explain(rule, tz=tz, after=after, count=count, dst=dst, name=name)
    if as_json:
        print_json(
            {
                "rule": found.rule,
                "tz": found.tz,
                "words": found.words,
                "next": [_fire_document(fire) for fire in found.next],
                "remarks": found.remarks,
                "herd": found.herd,
            }
        )
    elif sys.stdout.isatty():
        _print_explained(found)
    else:
        rows: list[tuple[str, ...]] = [("words", f"{found.words} ({found.tz})")]
        rows += [("next", *_fire_row(fire)[:2]) for fire in found.next]
        rows += [("care", remark) for remark in found.remarks]
        rows += [("herd", found.herd)] if found.herd else []
        for row in rows:
            print_table((), [row])


def _print_explained(found: Explanation) -> None:
    click.echo(f"{found.words} ({found.tz})")
    head = "next"
    now_ms = SYSTEM.wall_ms()
    for fire in found.next:
        local, _, utc = str(fire).partition(" = ")
        ahead = from_now(round(fire.at.timestamp() * 1000), now_ms)
        click.echo(f"  {head:4}  {local}   {utc.rstrip('Z')} UTC   {ahead}")
        head = ""
    head = "care"
    for remark in found.remarks:
        click.echo(f"  {head:4}  {remark}")
        head = ""
    if found.herd:
        click.echo(f"  herd  {found.herd}")


@cron_group.command("next", epilog=NEXT_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.option(
    "--count", type=click.IntRange(1, 100), default=5, show_default=True, help="How many times."
)
@url_option
@json_option
def next_command(name: str, *, count: int, url: str | None, as_json: bool) -> None:
    """Show when the schedule NAME fires next."""
    with Client(url) as client:
        fires = client.schedule(name).next(count)
    if as_json:
        print_json({"name": name, "items": [_fire_document(fire) for fire in fires]})
        return
    print_table(NEXT_HEADER, [_fire_row(fire) for fire in fires])


@cron_group.command("delete", epilog=DELETE_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.option("--force", is_flag=True, help="Even if others wait for it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
@json_option
def delete_command(name: str, *, force: bool, yes: bool, url: str | None, as_json: bool) -> None:
    """Delete the schedule NAME with its history; what was not handed out is cancelled."""
    if not yes:
        confirm(f"Delete the schedule {name!r} and its history?")
    with Client(url) as client:
        client.schedule(name).delete(force=force)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        print_table(("NAME", "WHAT"), [(name, "deleted")])


def unix_ms(entry: Schedule) -> int | None:
    """Return when a schedule fires next, as unix time."""
    return None if entry.next_at is None else round(entry.next_at.timestamp() * 1000)


def shown_moment(moment_ms: int | None) -> str:
    """Return a moment for a table: in UTC, and for a person also how far it is."""
    if moment_ms is None:
        return ""
    relative = f" ({from_now(moment_ms, SYSTEM.wall_ms())})" if sys.stdout.isatty() else ""
    return iso(moment_ms) + relative


def _fire_row(fire: Fire) -> tuple[str, str, str]:
    at_ms = round(fire.at.timestamp() * 1000)
    return fire.local, iso(at_ms), from_now(at_ms, SYSTEM.wall_ms())


def _fire_document(fire: Fire) -> Mapping[str, object]:
    at_ms, due_ms = (round(moment.timestamp() * 1000) for moment in (fire.at, fire.due))
    return {"at": iso(at_ms), "local": fire.local, "due": iso(due_ms)}


for _command in (*RUN_COMMANDS, *IMPORT_COMMANDS):
    cron_group.add_command(_command)
