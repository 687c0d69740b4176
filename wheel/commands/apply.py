"""``wheeld apply``: the schedules of a file, all or none."""

import sys
from typing import Final

import click

from wheel.client import Client
from wheel.commands.lazy import CONTEXT
from wheel.commands.machine import read_text
from wheel.commands.output import (
    confirm,
    counted,
    iso,
    json_option,
    print_json,
    print_table,
    url_option,
)
from wheel.commands.storing import doomed, store
from wheel.files.tomlfile import read_toml

EPILOG: Final = """\b
Examples:
  wheeld apply schedules.toml --dry-run
  wheeld apply schedules.toml --prune
"""
HEADER: Final = ("NAME", "WHAT", "VERSION", "NEXT (UTC)")


@click.command("apply", epilog=EPILOG, context_settings=CONTEXT)
@click.argument("file")
@click.option("--dry-run", is_flag=True, help="Change nothing, say what would become of each.")
@click.option(
    "--prune", is_flag=True, help="Delete the schedules with the file's prefix that it lacks."
)
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
@url_option
@json_option
def apply_command(
    file: str, *, dry_run: bool, prune: bool, yes: bool, url: str | None, as_json: bool
) -> None:
    """Make and change schedules so that they are as FILE says.

    Everything is checked first: with one wrong entry the file is refused, with the line of each
    fault, and nothing is changed. A dash reads the standard input.
    """
    found = read_toml(read_text(file), file)
    with Client(url) as client:
        going = doomed(client, found, file, found.prefix) if prune else []
        if going and not dry_run and not yes and sys.stdin.isatty():
            more = ", ..." if len(going) > 10 else ""
            confirm(f"Delete {counted(len(going), 'schedule')}: {', '.join(going[:10])}{more}?")
        done = store(client, found, file, dry_run=dry_run)
        if not dry_run:
            for name in going:
                client.schedule(name).delete()
    if as_json:
        items = [
            {
                "name": applied.name,
                "word": applied.word,
                "version": applied.version,
                "next": None if applied.next_at is None else _iso(applied.next_at.timestamp()),
            }
            for applied in done
        ]
        print_json({"dry_run": dry_run, "items": items, "deleted": going})
        return
    rows = [
        (
            applied.name,
            applied.word,
            str(applied.version),
            "" if applied.next_at is None else _iso(applied.next_at.timestamp()),
        )
        for applied in done
    ]
    print_table(HEADER, [*rows, *((name, "deleted", "", "") for name in going)])
    if dry_run:
        click.echo("nothing was changed (--dry-run)", err=True)


def _iso(unix_s: float) -> str:
    return iso(round(unix_s * 1000))
