"""``wheeld handlers``: how much waits for each handler, and who serves it."""

import sys
from collections.abc import Mapping
from typing import Final

import click

from wheel.client import Client
from wheel.commands.lazy import CONTEXT, Group
from wheel.commands.output import (
    from_now,
    iso,
    json_option,
    plain,
    print_json,
    print_table,
    url_option,
)
from wheel.link import array, fields, number, text
from wheel.system import SYSTEM
from wheel.wire import Reply

EPILOG: Final = """\b
Examples:
  wheeld handlers list
  wheeld handlers pause mail.send
"""
LIST_EPILOG: Final = """\b
Examples:
  wheeld handlers list
  wheeld handlers list mail. --json
"""
PAUSE_EPILOG: Final = """\b
Examples:
  wheeld handlers pause mail.send
  wheeld handlers pause mail.send --json
"""
RESUME_EPILOG: Final = """\b
Examples:
  wheeld handlers resume mail.send
  wheeld handlers resume mail.send --json
"""
COUNTS: Final = ("ready", "leased", "scheduled", "held", "dead", "workers")
HEADER: Final = ("HANDLER", *(name.upper() for name in COUNTS), "OLDEST DUE (UTC)", "STATE")


@click.group("handlers", cls=Group, epilog=EPILOG, context_settings=CONTEXT)
def handlers_group() -> None:
    """Show how much waits for each handler, and pause or resume one."""


@handlers_group.command("list", epilog=LIST_EPILOG, context_settings=CONTEXT)
@click.argument("prefix", default="")
@url_option
@json_option
def list_command(prefix: str, *, url: str | None, as_json: bool) -> None:
    """List handlers by name, those that begin with PREFIX: their jobs by state, and their workers.

    Workers are calls that wait for a job just now: busy workers wait for none. The oldest is the
    first of the jobs that are ready.
    """
    with Client(url) as client:
        found = [fields(entry) for entry in array(client.execute("HANDLERS"))]
    found = [entry for entry in found if text(entry["handler"]).startswith(prefix)]
    found.sort(key=lambda entry: text(entry["handler"]))
    if as_json:
        print_json({"items": found})
        return
    now_ms = SYSTEM.wall_ms()
    print_table(HEADER, [_row(entry, now_ms) for entry in found])


def _row(entry: Mapping[str, Reply], now_ms: int) -> tuple[str, ...]:
    oldest = entry.get("oldest_due_ms")
    due = "" if oldest is None else iso(number(oldest))
    if oldest is not None and sys.stdout.isatty():
        due += f" ({from_now(number(oldest), now_ms)})"
    if number(entry.get("paused", 0)):
        state = "paused"
    else:
        state = "never served" if text(entry.get("served", "")) == "never" else "served"
    return (text(entry["handler"]), *(text(entry.get(name, "")) for name in COUNTS), due, state)


@handlers_group.command("pause", epilog=PAUSE_EPILOG, context_settings=CONTEXT)
@click.argument("handler")
@url_option
@json_option
def pause_command(handler: str, *, url: str | None, as_json: bool) -> None:
    """Hand out no job of HANDLER until it is resumed; those that run go on."""
    _set(handler, "PAUSE", "paused", url=url, as_json=as_json)


@handlers_group.command("resume", epilog=RESUME_EPILOG, context_settings=CONTEXT)
@click.argument("handler")
@url_option
@json_option
def resume_command(handler: str, *, url: str | None, as_json: bool) -> None:
    """Hand out the jobs of HANDLER again."""
    _set(handler, "RESUME", "resumed", url=url, as_json=as_json)


def _set(handler: str, verb: str, word: str, *, url: str | None, as_json: bool) -> None:
    with Client(url) as client:
        client.execute("HANDLER", handler)  # one that is misspelt would be made
        now = fields(client.execute("HANDLER", handler, verb))
    if as_json:
        print_json({"handler": handler, "word": word, "now": plain(now)})
    else:
        print_table(("HANDLER", "WHAT"), [(handler, word)])
