"""``wheeld save``: make a checkpoint now."""

from typing import Final

import click

from wheel.client import Client
from wheel.commands.lazy import CONTEXT
from wheel.commands.output import json_option, plain, print_json, url_option
from wheel.link import fields, text

SAVE_TIMEOUT_S: Final = 3600.0  # a checkpoint of ten million jobs takes some seconds

EPILOG = """\b
Examples:
  wheeld save
  wheeld save --url wheeld://:token@10.0.0.5:8463 --json
"""


@click.command("save", epilog=EPILOG, context_settings=CONTEXT)
@url_option
@json_option
def save_command(*, url: str | None, as_json: bool) -> None:
    """Make a checkpoint, and return when it is in force.

    It covers everything that was confirmed before. The next start reads it and the log behind it;
    older log that nothing needs any more is deleted. The server makes checkpoints by itself too.
    """
    with Client(url) as client:
        client.execute("PING")  # nobody waits an hour for a server that is not there
    with Client(url, timeout=SAVE_TIMEOUT_S) as client:
        saved = fields(client.execute("SAVE"))
    if as_json:
        print_json({name: plain(value) for name, value in saved.items()})
        return
    click.echo(
        f"checkpoint at lsn {text(saved['lsn'])}: {text(saved['jobs'])} jobs,"
        f" {text(saved['size_bytes'])} bytes"
    )
