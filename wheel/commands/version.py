"""``wheeld version``."""

import platform

import click

from wheel.commands.lazy import CONTEXT
from wheel.commands.output import json_option, print_json
from wheel.facade import VERSION

EPILOG = """\b
Examples:
  wheeld version
  wheeld version --json
"""


@click.command("version", epilog=EPILOG, context_settings=CONTEXT)
@json_option
def version_command(as_json: bool) -> None:
    """Print the version of wheeld and of this Python."""
    if as_json:
        print_json({"version": VERSION, "python": platform.python_version()})
    else:
        click.echo(f"wheeld {VERSION}, Python {platform.python_version()}")
