"""A click group that imports a command's module only when the command is run.

``wheeld schedule`` in a shell loop must not pay for the worker or the daemon, and a base install
has no daemon's libraries at all; so the list of commands and their one-line helps is a table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import click

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lazy:
    """Where a command lives and what the list says of it.

    Attributes:
        target: ``module:attribute`` of the click command.
        summary: one line.
    """

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group over a table of ``Lazy`` entries; ``load`` imports one on demand."""

    def __init__(
        self, table: Mapping[str, Lazy], load: Callable[[str], click.Command], *, about: str
    ) -> None:
        super().__init__(
            name="wheeld",
            help=about,
            context_settings=dict(CONTEXT),
            params=[
                click.Option(
                    ["--version"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=self._show_version,
                    help="As the command version.",
                )
            ],
        )
        self._table = table
        self._load = load

    def _show_version(self, ctx: click.Context, _: click.Parameter, asked: bool) -> None:
        if asked and not ctx.resilient_parsing:
            ctx.invoke(self._load(self._table["version"].target), as_json=False)
            ctx.exit()

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """Return the names; click completes and suggests from them."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- click's signature
        """Return the command of that name, imported now, or None."""
        entry = self._table.get(cmd_name)
        return None if entry is None else self._load(entry.target)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- click's signature
        """Write the list of commands from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self._table.items()])
