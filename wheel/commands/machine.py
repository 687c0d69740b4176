"""What the commands that read files ask of the machine: a file's text, its zone, its users."""

import os
import pwd
import sys
from pathlib import Path
from typing import Final

import click

from wheel.files.found import Problem, refused

FILE_BYTES_MAX: Final = 16 << 20


def read_text(file: str) -> str:
    """Return the text of a file, or of the standard input for a dash.

    Raises:
        click.BadParameter: there is no such file, or it is too large.
        FileRefused: it is not UTF-8; with the line.
    """
    if file == "-":
        data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
    else:
        try:
            with click.open_file(file, "rb") as opened:
                data = opened.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise click.BadParameter(f"{file}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise click.BadParameter(f"{file} is larger than {FILE_BYTES_MAX >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refused(file, [Problem(f"line {line}", "it is not UTF-8")]) from error


def local_zone() -> str | None:
    """Return the name of the zone that this machine is set to, None if it does not say."""
    named = os.environ.get("TZ", "").lstrip(":")
    if named:
        return named
    try:
        return Path("/etc/timezone").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        pass
    try:
        _, found, name = str(Path("/etc/localtime").readlink()).partition("zoneinfo/")
    except OSError:
        return None
    return name if found else None


def user_names() -> frozenset[str]:
    """Return the names of the users of this machine."""
    return frozenset(entry.pw_name for entry in pwd.getpwall()) | {"root"}
