"""``wheeld wal``: judge the files of a data directory."""

import json
import os
from pathlib import Path
from typing import Final

import click

from server.settings import default_data
from wal.disk import RealDisk
from wal.verify import Report, as_text, verify
from wheel.commands.lazy import CONTEXT

EXIT_DAMAGE: Final = 11

EPILOG = """\b
Examples:
  wheeld wal verify
  wheeld wal verify /srv/wheeld --json
"""


@click.group("wal", context_settings=CONTEXT)
def wal_group() -> None:
    """Judge the files of a data directory."""


@wal_group.command("verify", epilog=EPILOG, context_settings=CONTEXT)
@click.argument("data", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def verify_command(data: Path | None, as_json: bool) -> int:
    """Read every segment in DATA, check every frame, and say what a start would say.

    Changes nothing, and may run beside a server.

    Exit status: 0 a start would accept it, 11 damage.
    """
    path = (data or default_data(os.environ, Path.home())).absolute()
    try:
        report = verify(RealDisk(), str(path))
    except OSError as error:
        raise click.ClickException(f"{path} is not a data directory: {error}") from error
    click.echo(json.dumps(document(report)) if as_json else as_text(report).rstrip())
    return EXIT_DAMAGE if report.damaged else 0


def document(report: Report) -> dict[str, object]:
    """Return the report as one JSON document."""
    refused = report.refused
    return {
        "data": report.path,
        "damaged": report.damaged,
        "records": report.records,
        "marked_lsn": report.marked_lsn,
        "next_lsn": None if report.verdict is None else report.verdict.next_lsn,
        "ending": None if report.verdict is None else str(report.verdict.ending),
        "running_pid": report.running_pid,
        "refused": refused
        and {
            "rule": str(refused.rule),
            "file": refused.path,
            "offset_bytes": refused.offset,
            "lsn": refused.lsn,
            "detail": refused.detail,
        },
        "segments": [
            {
                "name": segment.name,
                "records": segment.records,
                "frames": segment.frames,
                "size_bytes": segment.size_bytes,
                "used_bytes": segment.bytes,
                "first_lsn": segment.first_lsn,
                "last_lsn": segment.last_lsn,
                "problems": segment.problems,
            }
            for segment in report.segments
        ],
        "other_files": list(report.other_files),
    }
