"""What an option's value may be, checked while the options are read: an error names the option."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from wheel.errors import InvalidRequest
from wheel.values import duration_ms, when_wire

if TYPE_CHECKING:
    PathType: TypeAlias = click.Path[Path]
else:
    PathType = click.Path  # generic since click 8.5

Checked: TypeAlias = Callable[[click.Context, click.Parameter, str | None], str | None]


class FilePath(PathType):
    """A path that is not empty.

    A shell makes an empty word of a variable that is not set, and pathlib makes the current folder
    of an empty word.
    """

    def __init__(self, *, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(
        self,
        value: str | PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """Return the path.

        Raises:
            click.BadParameter: it is empty, or a file where a folder belongs or the reverse.
        """
        if value == "":
            self.fail("it is empty; name a path, or leave the option out", param, ctx)
        return super().convert(value, param, ctx)


def _checked(check: Callable[[str], object]) -> Checked:
    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is not None:
            try:
                check(value)
            except InvalidRequest as error:
                raise click.BadParameter(str(error), ctx, param) from error
        return value

    return callback


def _above_zero(text: str) -> None:
    if not duration_ms(text):
        raise InvalidRequest(f"{text!r} is no time at all; write 1ms or more")


# Callbacks of options whose text the client library reads.
duration: Final = _checked(duration_ms)
duration_above_zero: Final = _checked(_above_zero)
moment: Final = _checked(when_wire)
