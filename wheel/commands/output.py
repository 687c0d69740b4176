"""What every client command shares: options, exit statuses, and how rows are printed.

A terminal gets aligned columns with absolute and relative times; a pipe gets the same rows,
separated by tabs, times as ISO 8601 in UTC; ``--json`` gets one document. Data goes to stdout and
everything else to stderr. Ids are strings in JSON, because JavaScript would round the numbers.
"""

import errno
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, cast
from unicodedata import combining, east_asian_width

import click

from wheel.errors import (
    AuthError,
    Conflict,
    CycleError,
    InvalidRequest,
    NotFound,
    NotLeaderError,
    ServerError,
    UnavailableError,
    WheeldError,
    WheeldTimeout,
    in_words,
)

# What a script can tell apart. 2 is click's own, for wrong usage.
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_FOUND: Final = 3
EXIT_UNREACHABLE: Final = 4
EXIT_REFUSED: Final = 5
EXIT_TIMED_OUT: Final = 6
EXIT_INTERRUPTED: Final = 130

# The first class that an error is an instance of decides: the narrower ones stand first.
_STATUSES: Final[tuple[tuple[type[WheeldError], int], ...]] = (
    (NotFound, EXIT_NOT_FOUND),
    (WheeldTimeout, EXIT_TIMED_OUT),
    (UnavailableError, EXIT_UNREACHABLE),
    (CycleError, EXIT_REFUSED),
    (InvalidRequest, EXIT_USAGE),
    (Conflict, EXIT_REFUSED),
    (AuthError, EXIT_REFUSED),
    (NotLeaderError, EXIT_REFUSED),
    (ServerError, EXIT_REFUSED),
)
# What a write to a full or broken output fails with; a closed pipe is click's business.
_OUTPUT_ERRORS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
_SPANS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))

# What every command that talks to a server has.
url_option = click.option(
    "--url",
    envvar="WHEELD_URL",
    metavar="URL",
    help="wheeld://[:token@]host[:port]; else $WHEELD_URL, else this machine.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def exit_status(error: WheeldError) -> int:
    """Return the exit status that an error stands for."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), EXIT_FAILED)


def run(group: click.Group, argv: list[str]) -> int:
    """Run a command line and return its exit status; an error is one sentence on stderr.

    A command that returns a number has chosen its status.
    """
    try:
        status: object = group.main(
            args=argv,
            prog_name="wheeld",
            standalone_mode=False,
            help_option_names=["-h", "--help"],  # click keeps what a command is first run with
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except WheeldError as error:
        click.echo(f"Error: {error}", err=True)
        return exit_status(error)
    except click.Abort:
        return EXIT_INTERRUPTED
    except UnicodeEncodeError as error:
        # Python reads an argument that is not UTF-8 into text that cannot be written.
        click.echo(f"Error: not UTF-8: {error.object!r}", err=True)
        return EXIT_USAGE
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        click.echo(f"Error: the output cannot be written: {in_words(error)}", err=True)
        sys.stdout = sys.stderr  # at the exit a flush of the other would fail again
        return EXIT_FAILED
    return status if isinstance(status, int) else 0


def confirm(question: str) -> None:
    """Ask a person, and return if the answer is yes.

    Raises:
        click.ClickException: the answer is no, or there is nobody to answer.
        click.Abort: it was Ctrl-C.
    """
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        click.echo(err=True)
        raise click.ClickException(
            "nobody answered, so nothing was changed; --yes does not ask"
        ) from error
    if not agreed:
        raise click.ClickException("nothing was changed")


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document; what could drive a terminal is escaped, as JSON may have it."""
    text = json.dumps(plain(document), ensure_ascii=False)
    click.echo("".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text))


def plain(value: object) -> object:
    r"""Return a reply as JSON can hold it: text for bytes, lists and dicts of the same.

    Bytes that are not UTF-8 are written as ``\xff``.
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value)
        return {str(plain(name)): plain(entry) for name, entry in pairs.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        entries = cast("Sequence[object]", value)
        return [plain(entry) for entry in entries]
    return value


def print_runs_made(name: str, runs: Sequence[str], word: str, *, as_json: bool) -> None:
    """Print what was made of a schedule or graph: ``word`` of each run."""
    if as_json:
        print_json({"name": name, "word": word, "items": runs})
    else:
        print_table(("RUN", "WHAT"), [(run, word) for run in runs])


def print_backfilled(name: str, runs: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    """Print the runs that a backfill makes, or would make."""
    print_runs_made(name, runs, "would be made" if dry_run else "made", as_json=as_json)
    if dry_run:
        click.echo(f"{counted(len(runs), 'run')}; nothing was changed (--dry-run)", err=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows: aligned under their header on a terminal, tab-separated into a pipe."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(one_line(cell) for cell in row))
        return
    table = [list(header), *([one_line(cell) or "-" for cell in row] for row in rows)]
    widths = [max(cells_wide(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        cells = [
            cell + " " * (width - cells_wide(cell)) for cell, width in zip(row, widths, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def cells_wide(text: str) -> int:
    """Return how many cells of a terminal a text takes: most letters of East Asia take two."""
    return sum(
        0 if combining(char) else 1 + (east_asian_width(char) in {"W", "F"}) for char in text
    )


def shortened(text: str, most: int) -> str:
    """Return a text's first line for a row: on a terminal no longer than ``most``."""
    line = text.partition("\n")[0]
    return line[: most - 3] + "..." if sys.stdout.isatty() and len(line) > most else line


def counted(count: int, what: str) -> str:
    """Return a count with its noun: ``1 run``, ``2 runs``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def one_line(text: str) -> str:
    """Return text that cannot break a table or drive a terminal: control characters escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def shown_name(name: str, moments: Collection[str]) -> str:
    """Return a field's name for a table, which shows a moment as one and not in milliseconds."""
    return name.removesuffix("_ms") if name in moments else name


def iso(unix_ms: int) -> str:
    """Return a moment as ISO 8601 in UTC, with milliseconds only where there are some."""
    try:
        moment = datetime.fromtimestamp(unix_ms // 1000, tz=UTC)
    except (OverflowError, ValueError):
        return f"{unix_ms} ms"  # after the year 9999
    moment = moment.replace(microsecond=unix_ms % 1000 * 1000)
    precision = "milliseconds" if unix_ms % 1000 else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def span(length_ms: int) -> str:
    """Return a length of time in its two largest units: ``23 h 59 min``, ``2 s``, ``40 ms``."""
    for (unit_ms, name), (next_ms, next_name) in pairwise(_SPANS):
        if length_ms >= unit_ms:
            whole, rest_ms = divmod(length_ms, unit_ms)
            minor = 0 if name == "s" else rest_ms // next_ms
            return f"{whole} {name}" + (f" {minor} {next_name}" if minor else "")
    return f"{length_ms} ms"


def from_now(unix_ms: int, now_ms: int) -> str:
    """Return how far a moment is: ``in 2 s``, ``8 min ago``."""
    if unix_ms >= now_ms:
        return f"in {span(unix_ms - now_ms)}"
    return f"{span(now_ms - unix_ms)} ago"
