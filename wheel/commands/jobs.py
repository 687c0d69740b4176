"""``wheeld jobs``: list what the server holds, and look at one job."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final, cast

import click

from wheel.client import Client
from wheel.commands.job_actions import ACTION_COMMANDS
from wheel.commands.kinds import moment
from wheel.commands.lazy import CONTEXT, Group
from wheel.commands.output import (
    from_now,
    iso,
    json_option,
    plain,
    print_json,
    print_table,
    shortened,
    shown_name,
    span,
    url_option,
)
from wheel.link import array, fields, number, text
from wheel.system import SYSTEM
from wheel.values import when_wire
from wheel.wire import Reply

EPILOG = """\b
Examples:
  wheeld jobs list --handler payments.retry --state ready
  wheeld jobs show 4611686018427387905
  wheeld jobs list --state dead | cut -f1 | xargs wheeld jobs requeue
"""
LIST_EPILOG = """\b
WHEN is now, +1h, or ISO 8601 with an offset. FILTER says the same as the options
do: handler:NAME state:STATE key:PREFIX* from:WHEN to:WHEN; all must hold.

\b
Examples:
  wheeld jobs list --handler payments.retry --state scheduled --limit 20
  wheeld jobs list --key-prefix pay- --from now --to +1h --json
  wheeld jobs list 'handler:payments.retry state:dead'
"""
SHOW_EPILOG = """\b
Examples:
  wheeld jobs show 4611686018427387905
  wheeld jobs show retry-42 --json
"""
HEADER: Final = ("ID", "HANDLER", "DUE (UTC)", "STATE", "ATTEMPT", "KEY", "ERROR")
ERROR_SHOWN: Final = 60  # characters, on a terminal
MOMENTS: Final = frozenset({"created_ms", "due_ms", "leased_ms", "ended_ms", "expire_ms"})
PAGE_ROWS_MAX: Final = 200  # PROTOCOL.md, JOBS
STATES: Final = ("scheduled", "held", "ready", "leased", "dead")
# Word of a filter -> option of JOBS.
_OPTIONS: Final = {
    "handler": "HANDLER",
    "state": "STATE",
    "key": "KEYPREFIX",
    "from": "FROM",
    "to": "TO",
}


@click.group("jobs", cls=Group, epilog=EPILOG, context_settings=CONTEXT)
def jobs_group() -> None:
    """List jobs, look at one, and cancel, run or requeue them."""


@jobs_group.command("list", epilog=LIST_EPILOG, context_settings=CONTEXT)
@click.argument("filters", metavar="[FILTER]", nargs=-1)
@click.option("--handler", metavar="NAME", help="Only jobs of this handler.")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--key-prefix", metavar="TEXT", help="Only jobs whose key begins so.")
@click.option(
    "--from", "start", metavar="WHEN", callback=moment, help="Only jobs due then or later."
)
@click.option("--to", "end", metavar="WHEN", callback=moment, help="Only jobs due then or before.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Most rows.")
@click.option("--cursor", default="0", help="Where to go on: what the last list printed as next.")
@url_option
@json_option
def list_command(
    filters: tuple[str, ...],
    *,
    handler: str | None,
    state: str | None,
    key_prefix: str | None,
    start: str | None,
    end: str | None,
    limit: int,
    cursor: str,
    url: str | None,
    as_json: bool,
) -> None:
    """List jobs that have not ended, and dead ones: a page of them, in no order.

    The server looks at some thousands of jobs a call; this goes on until there are enough rows.
    """
    words = filter_words(" ".join(filters))
    asked = {"HANDLER": handler, "STATE": state, "KEYPREFIX": key_prefix, "FROM": start, "TO": end}
    for option, value in asked.items():
        if value is not None:
            if option in words[::2]:
                raise click.UsageError(f"the filter and an option both say {option.lower()}")
            is_moment = option in {"FROM", "TO"}
            words += [option, when_wire(value).decode() if is_moment else value]
    rows: list[dict[str, Reply]] = []
    with Client(url) as client:
        while True:
            count = min(limit - len(rows), PAGE_ROWS_MAX)
            page = array(client.execute("JOBS", *words, "COUNT", count, "CURSOR", cursor))
            cursor = text(page[0])
            rows += [fields(job) for job in array(page[1])]
            if cursor == "0" or len(rows) >= limit:
                break
    if as_json:
        print_json({"items": rows, "next": None if cursor == "0" else cursor})
        return
    now_ms = SYSTEM.wall_ms()
    print_table(HEADER, [_row(job, now_ms) for job in rows])
    if cursor != "0":
        click.echo(f"there may be more: --cursor {cursor}", err=True)


@jobs_group.command("show", epilog=SHOW_EPILOG, context_settings=CONTEXT)
@click.argument("job")
@url_option
@json_option
def show_command(job: str, *, url: str | None, as_json: bool) -> None:
    """Show everything the server knows of JOB, an id or a key."""
    with Client(url) as client:
        found = client.get(job)
    if as_json:
        print_json({**found.fields, "id": str(found.id), "uid": found.uid})
        return
    now_ms = SYSTEM.wall_ms()
    rows = [("uid", found.uid)]
    for name, value in found.fields.items():
        if name == "attempts":
            rows += [_attempt(array(attempt, 4)) for attempt in array(cast("Reply", value))]
        else:
            rows.append((shown_name(name, MOMENTS), _value(name, value, now_ms)))
    print_table(("FIELD", "VALUE"), rows)


def _attempt(attempt: Sequence[Reply]) -> tuple[str, str]:
    """Return one attempt (PROTOCOL.md, Jobs by name) for people."""
    count, start_ms, end_ms, why = attempt
    took = span(max(0, number(end_ms) - number(start_ms)))
    return f"attempt {number(count)}", f"{text(why)} {iso(number(start_ms))} after {took}"


def filter_words(filters: str) -> list[str]:
    """Return a filter as options of JOBS.

    Raises:
        click.BadParameter: a word that the filter language does not have.
    """
    options: list[str] = []
    for word in filters.split():
        name, colon, value = word.partition(":")
        if not colon or not value or name not in _OPTIONS:
            known = ", ".join(f"{name}:" for name in _OPTIONS)
            raise click.BadParameter(f"{word!r} is not one of {known}", param_hint="FILTER")
        if name == "key":
            if not value.endswith("*"):
                raise click.BadParameter(
                    f"{word!r}: a list takes the beginning of a key, as in 'key:pay-*'; "
                    "`wheeld jobs show KEY` finds one job",
                    param_hint="FILTER",
                )
            value = value[:-1]
        options += [_OPTIONS[name], value]
    return options


def _row(job: Mapping[str, Reply], now_ms: int) -> tuple[str, ...]:
    return (
        text(job.get("id", "")),
        text(job.get("handler", "")),
        _value("due_ms", job.get("due_ms"), now_ms),
        text(job.get("state", "")),
        text(job.get("attempt", "")),
        "" if job.get("key") is None else text(job["key"]),
        shortened(_value("error", job.get("error"), now_ms), ERROR_SHOWN),
    )


def _value(name: str, value: object, now_ms: int) -> str:
    """Return one field for people; a moment is written as one."""
    if value is None:
        return ""
    if name in MOMENTS:
        unix_ms = int(str(plain(value)))
        if not unix_ms:
            return ""
        relative = f" ({from_now(unix_ms, now_ms)})" if sys.stdout.isatty() else ""
        return iso(unix_ms) + relative
    return str(plain(value))


for _command in ACTION_COMMANDS:
    jobs_group.add_command(_command)
