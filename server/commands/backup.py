"""``wheeld backup`` and ``wheeld restore``."""

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from server.clock import SystemClock
from server.restore import After, Restored, restore, what_came_after
from server.settings import default_data
from wal.backup import Backup, BackupError, write_backup
from wal.directory import is_folder
from wal.disk import RealDisk
from wal.errors import RefusedError, WalError
from wal.verify import grouped
from wheel.client import Client
from wheel.commands.kinds import FilePath
from wheel.commands.lazy import CONTEXT
from wheel.commands.output import iso, json_option, url_option
from wheel.errors import ConnectError, CoreError, in_words
from wheel.link import fields, text

EXIT_FAILED: Final = 1
EXIT_NOT_FOUND: Final = 3
EXIT_DAMAGE: Final = 11
CALL_TIMEOUT_S: Final = 3600.0

BACKUP_EPILOG = """\b
Examples:
  wheeld backup /mnt/backups
  wheeld backup /mnt/backups/monday.wheeld --data /srv/wheeld --json
"""
RESTORE_EPILOG = """\b
Examples:
  wheeld restore /mnt/backups/monday.wheeld --to /srv/wheeld
  wheeld restore monday.wheeld --to /srv/new --compare-with /srv/old --json
"""

data_option = click.option(
    "--data",
    envvar="WHEELD_DATA",
    type=FilePath(file_okay=False),
    help="The data directory  [default: the running server's, else as for serve]",
)


@click.command("backup", epilog=BACKUP_EPILOG, context_settings=CONTEXT)
@click.argument("target", type=FilePath())
@data_option
@url_option
@json_option
def backup_command(target: Path, *, data: Path | None, url: str | None, as_json: bool) -> int:
    """Copy a store into one file, while its server runs or while none does.

    TARGET is the file to make, or a folder to make one in. This runs on the server's machine, as
    its user: it asks the server (with an admin's token, if there are tokens) for a fresh checkpoint
    and to delete nothing, and then copies the files itself, verifying each byte. When no server
    runs it holds the lock meanwhile. Without --data it copies what the server at --url serves.

    Exit status: 0 done, 1 failed, 3 no such data directory, 11 the store is damaged.
    """
    disk, clock = RealDisk(), SystemClock()
    try:
        with _held_still(disk, data and data.absolute(), url) as (path, durable_lsn):
            wall_ms = clock.wall_ms()
            file = target.absolute()
            if _is_folder(disk, file):
                stamp = iso(wall_ms // 1000 * 1000).replace(":", "")
                file /= f"wheeld-{stamp}.backup"
            made = write_backup(disk, path, str(file), wall_ms=wall_ms, durable_lsn=durable_lsn)
    except _NoStoreError as error:
        click.echo(f"Error: {error}; --data names the store's directory", err=True)
        return EXIT_NOT_FOUND
    except RefusedError as error:
        click.echo(f"Error: {error}", err=True)
        return EXIT_DAMAGE
    except (OSError, WalError) as error:
        raise click.ClickException(in_words(error)) from error
    size_bytes = sum(member.size_bytes for member in made.members)
    if as_json:
        click.echo(json.dumps({"file": str(file), **_facts(made), "size_bytes": size_bytes}))
    else:
        click.echo(f"{file}: {grouped(size_bytes)} bytes, {_reach(made)}")
    return 0


def _is_folder(disk: RealDisk, path: Path) -> bool:
    try:
        return is_folder(disk, str(path))
    except NotADirectoryError:
        return False


class _NoStoreError(Exception):
    """There is no data directory where one was looked for."""


@contextmanager
def _held_still(
    disk: RealDisk, data: Path | None, url: str | None
) -> Generator[tuple[str, int | None]]:
    """Yield which data directory to copy and up to which lsn, while nothing in it is deleted.

    Raises:
        BackupError: the server at url serves another data directory than data, or one that is
            not on this machine.
        _NoStoreError: there is no such directory, and no server that says where its own is.
        ConnectError: url names a server, and it is not there.
    """
    if data is None and _answers(url):
        with _held_by_server(url) as (served, durable_lsn):
            _require_here(disk, served)
            yield served, durable_lsn
        return
    path = str(data or default_data(os.environ, Path.home()).absolute())
    try:
        names = disk.names(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _NoStoreError(in_words(error)) from error
    lock_fd = disk.lock(f"{path}/LOCK") if "IDENT" in names else None
    if lock_fd is not None:
        try:
            yield path, None
        finally:
            disk.close(lock_fd)
        return
    with Client(url) as client:
        client.execute("PING")  # nobody waits an hour for a server that is not there
    with _held_by_server(url) as (served, durable_lsn):
        if not _is_same(served, path):
            raise BackupError(
                f"the server there serves {served}, and --data is {path}: name its --url"
            )
        yield path, durable_lsn


def _answers(url: str | None) -> bool:
    """Return whether a server answers at url.

    Raises:
        ConnectError: none does, and it was named: another store must not be copied in its place.
        WheeldError: one is there, and refuses the token or does not answer as one should.
    """
    try:
        with Client(url) as client:
            client.execute("PING")
    except ConnectError as error:
        if url is None:
            return False
        raise ConnectError(
            f"{error}; --data copies the directory of a server that is stopped"
        ) from error
    return True


@contextmanager
def _held_by_server(url: str | None) -> Generator[tuple[str, int]]:
    """Yield the data directory that the server at url keeps still meanwhile, and its lsn."""
    with Client(url, timeout=CALL_TIMEOUT_S) as client:
        started = fields(client.execute("BACKUP", "START"))
        yield text(started["data"]), int(text(started["durable_lsn"]))
        client.execute("BACKUP", "END")


def _require_here(disk: RealDisk, path: str) -> None:
    try:
        disk.folder_mode(path)
    except FileNotFoundError:
        raise BackupError(
            f"the server there serves {path}, which is not on this machine: run this on its own"
        ) from None


def _is_same(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()


def _facts(backup: Backup) -> dict[str, object]:
    """Return a backup's facts without the list of its members."""
    return {name: value for name, value in asdict(backup).items() if name != "members"}


def _reach(backup: Backup) -> str:
    """Return how far a backup reaches, for people."""
    when = f", written {iso(backup.wall_ms)}" if backup.wall_ms else ""
    return f"up to lsn {grouped(backup.lsn)}{when}"


@click.command("restore", epilog=RESTORE_EPILOG, context_settings=CONTEXT)
@click.argument("file", type=FilePath(dir_okay=False))
@click.option(
    "--to",
    "target",
    required=True,
    type=FilePath(file_okay=False),
    help="The data directory to make: a new folder, or an empty one.",
)
@click.option(
    "--compare-with",
    "old",
    type=FilePath(file_okay=False),
    help="The lost store's data directory, to tell what it did after the backup.",
)
@json_option
def restore_command(file: Path, *, target: Path, old: Path | None, as_json: bool) -> int:
    """Make a data directory out of a backup.

    The store keeps its name, so uids from before still dedupe. What the lost store gave out after
    the backup is not taken for this one's: receipts and ids from then are refused. Jobs that were
    finished after the backup run again; with --compare-with they are counted.

    Exit status: 0 done, 1 failed, 3 no such file, 11 the backup is damaged.
    """
    disk, clock = RealDisk(), SystemClock()
    path = file.absolute()
    try:
        made = restore(disk, str(path), str(target.absolute()), clock=clock)
        after = what_came_after(disk, str(old.absolute()), made.backup) if old else None
    except FileNotFoundError as error:
        click.echo(f"Error: {in_words(error)}", err=True)
        return EXIT_NOT_FOUND
    except (BackupError, RefusedError) as error:
        click.echo(f"Error: {error}", err=True)
        return EXIT_DAMAGE
    except (OSError, WalError, CoreError) as error:
        raise click.ClickException(in_words(error)) from error
    if as_json:
        document = {
            "data": str(target.absolute()),
            "term": made.term,
            "generation_floor": made.generation_floor,
            "jobs": made.jobs,
            "lsn": made.lsn,
            "backup": _facts(made.backup),
            "after": None if after is None else asdict(after),
        }
        click.echo(json.dumps(document))
    else:
        click.echo(_as_text(target, made, after))
    return 0


def _as_text(target: Path, made: Restored, after: After | None) -> str:
    lines = [
        f"{target}: {grouped(made.jobs)} jobs, {_reach(made.backup)}; term {made.term}.",
        "Receipts and ids that were given out after that are refused from now on.",
    ]
    if after is None:
        lines.append(
            "Jobs that were finished after that run again; --compare-with OLDDIR counts them."
        )
        return "\n".join(lines)
    lines.append(f"What the lost store did after that, up to lsn {grouped(after.last_lsn)}:")
    for count, ids, what in (
        (after.ended, after.ended_ids, "jobs were finished, and will run again"),
        (after.cancelled, after.cancelled_ids, "jobs were cancelled or expired, and are back"),
        (after.made, after.made_ids, "jobs were made, and are gone"),
    ):
        shown = "" if not ids else ": " + ", ".join(str(job) for job in ids)
        more = ", ..." if count > len(ids) else ""
        lines.append(f"  {grouped(count)} {what}{shown}{more}")
    lines.append(f"  {grouped(after.granted)} leases were given")
    if after.stopped:
        lines.append(f"  and it could not be read further: {after.stopped}")
    return "\n".join(lines)
