"""A click group that imports a command's module only when the command is run.

``wheeld schedule`` in a shell loop must not pay for the worker or the daemon, and a base install
has no daemon's libraries at all; so the list of commands and their one-line helps is a table.
"""

from collections.abc import Callable, Mapping, Sequence
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


class Group(click.Group):
    """A group that lists its commands as they were added, each with its whole first sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """Return the names, as they were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant.

        Raises:
            click.UsageError: there is none; with what it may have been.
        """
        names = self.list_commands(ctx)
        if not ctx.resilient_parsing and args[0] not in names and not args[0].startswith("-"):
            from difflib import get_close_matches  # noqa: PLC0415 -- not for every start

            close = get_close_matches(args[0], names)
            meant = f"{ctx.command_path} -h" if args[0] == "help" else "".join(close[:1])
            hint = f" Did you mean {meant!r}?" if meant else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        rows = [
            (name, summary(command))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def summary(command: click.Command) -> str:
    """Return a help's first paragraph, which is one sentence or two."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


class LazyGroup(Group):
    """A group over a table of ``Lazy`` entries; ``load`` imports one on demand.

    Args:
        table: the commands by name.
        load: imports one.
        about: the help of the group.
        sections: the names of commands, by the headings under which they are listed.
        epilog: what stands below them.
    """

    def __init__(
        self,
        table: Mapping[str, Lazy],
        load: Callable[[str], click.Command],
        *,
        about: str,
        sections: Mapping[str, Sequence[str]],
        epilog: str = "",
    ) -> None:
        super().__init__(
            name="wheeld",
            help=about,
            epilog=epilog,
            context_settings=dict(CONTEXT),
            params=[
                click.Option(
                    ["--version"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=self._show_version,
                    help="Print the version and exit.",
                )
            ],
        )
        self._table = table
        self._sections = sections
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
        for title, names in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, self._table[name].summary) for name in names])
