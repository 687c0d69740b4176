"""``wheeld wal``: judge the files of a data directory, look into them, and mend them."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import click

from server.clock import SystemClock
from server.inspect import (
    Counts,
    Line,
    UnreadableError,
    Words,
    as_document,
    checkpoint_lines,
    kind_name,
    segment_lines,
)
from server.settings import default_data
from wal.disk import RealDisk
from wal.errors import LockedError, RefusedError, WalError
from wal.repair import RepairError, repair
from wal.segment import list_segments
from wal.verify import Report, as_text, grouped, verify
from wheel.commands.kinds import FilePath
from wheel.commands.lazy import CONTEXT, Group
from wheel.commands.output import iso
from wheel.errors import in_words

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_FOUND: Final = 3
EXIT_DAMAGE: Final = 11
LIMIT_DEFAULT: Final = 1000
LOSS: Final = re.compile(r"(\d+)-records?")

EPILOG = """\b
Examples:
  wheeld wal verify
  wheeld wal verify /srv/wheeld --json
"""
INSPECT_EPILOG = """\b
Examples:
  wheeld wal inspect /srv/wheeld --from 8100201 --limit 20
  wheeld wal inspect /srv/wheeld/snap/00000000007ba0f8.snap --json
"""
STAT_EPILOG = """\b
Examples:
  wheeld wal stat
  wheeld wal stat /srv/wheeld --json
"""
REPAIR_EPILOG = """\b
Examples:
  wheeld wal repair /srv/wheeld --truncate-at 8100201 --i-accept-losing 17-records
  wheeld wal repair /srv/wheeld --i-accept-losing 0-records
"""

data_argument = click.argument("data", required=False, type=FilePath(file_okay=False))
json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group("wal", cls=Group, context_settings=CONTEXT)
def wal_group() -> None:
    """Check, inspect and repair the files of a data directory."""


def _path(data: Path | None) -> Path:
    return (data or default_data(os.environ, Path.home())).absolute()


@wal_group.command("verify", epilog=EPILOG, context_settings=CONTEXT)
@data_argument
@json_flag
def verify_command(data: Path | None, as_json: bool) -> int:
    """Check each byte of the checkpoints and segments in DATA, and say what a start would say.

    Changes nothing, and may run beside a server.

    Exit status: 0 a start would accept it, 3 no such directory, 11 damage.
    """
    path = _path(data)
    try:
        report = verify(RealDisk(), str(path))
    except OSError as error:
        click.echo(f"Error: no data directory: {in_words(error)}", err=True)
        return EXIT_NOT_FOUND
    click.echo(json.dumps(document(report)) if as_json else as_text(report).rstrip())
    return EXIT_DAMAGE if report.damaged else 0


# ---------------------------------------------------------------- inspect


@wal_group.command("inspect", epilog=INSPECT_EPILOG, context_settings=CONTEXT)
@click.argument("path", required=False, type=FilePath())
@click.option("--from", "from_lsn", type=click.IntRange(1), default=1, help="First lsn to show.")
@click.option("--to", "to_lsn", type=click.IntRange(1), help="Last lsn to show.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only these, as CREATED.")
@click.option("--job", type=int, help="Only records about this job id.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=LIMIT_DEFAULT,
    show_default=True,
    help="Most to show; 0 = all.",
)
@json_flag
def inspect_command(
    path: Path | None,
    *,
    from_lsn: int,
    to_lsn: int | None,
    kinds: tuple[str, ...],
    job: int | None,
    limit: int,
    as_json: bool,
) -> int:
    """Show the records in PATH, a segment or a whole data directory, in words.

    For a checkpoint, what its chunks hold. Changes nothing, and may run beside a server.

    Exit status: 0, 3 no such file, 11 something in it does not verify; what did is shown.
    """
    place = (path or default_data(os.environ, Path.home())).absolute()
    wanted = frozenset(kind.upper() for kind in kinds)

    def fits(line: Line) -> bool:
        return (
            (to_lsn is None or line.lsn <= to_lsn)
            and (not wanted or kind_name(line.record.kind) in wanted)
            and job in (None, line.record.id)
        )

    try:
        if place.suffix == ".snap":
            return _show(_checkpoint_rows(place), limit, as_json=as_json)
        return _show(_record_rows(place, from_lsn, fits), limit, as_json=as_json)
    except FileNotFoundError as error:
        click.echo(f"Error: {in_words(error)}", err=True)
        return EXIT_NOT_FOUND
    except BrokenPipeError:
        raise  # whoever read has read enough
    except OSError as error:
        raise click.ClickException(in_words(error)) from error


Row = tuple[str, dict[str, object]]


def _show(rows: Iterator[Row], limit: int, *, as_json: bool) -> int:
    """Print rows, in words or as one document, and what ended them; return the exit status."""
    items: list[dict[str, object]] = []
    problem = ""
    more = False
    try:
        for words, item in islice(rows, limit or None):
            if as_json:
                items.append(item)
            else:
                click.echo(words)
        more = bool(limit) and next(rows, None) is not None
    except UnreadableError as error:
        problem = str(error)
    if as_json:
        click.echo(json.dumps({"items": items, "more": more, "problem": problem or None}))
    elif problem:
        click.echo(f"Error: {problem}", err=True)
    elif more:
        click.echo(f"there are more than {limit}: --limit 0 shows all, --from goes on", err=True)
    return EXIT_DAMAGE if problem else 0


def _record_rows(place: Path, from_lsn: int, fits: Callable[[Line], bool]) -> Iterator[Row]:
    words = Words()
    for line in _lines(place, from_lsn):
        words.learn(line.record)
        if fits(line):
            head = f"{line.lsn}  {iso(line.wall_ms)}  {kind_name(line.record.kind):<12}"
            yield f"{head}  {words.of(line.record)}".rstrip(), as_document(line)


def _lines(place: Path, from_lsn: int) -> Iterator[Line]:
    """Yield the records of a segment, or of all segments of a data directory."""
    disk = RealDisk()
    try:
        disk.folder_mode(str(place))
    except NotADirectoryError:
        yield from segment_lines(disk, str(place), from_lsn=from_lsn)
        return
    try:
        segments = list_segments(disk, f"{place}/wal").segments
    except RefusedError as error:
        raise UnreadableError(str(error)) from error
    for i, segment in enumerate(segments):
        if i + 1 == len(segments) or segments[i + 1].base_lsn > from_lsn:
            yield from segment_lines(disk, segment.path, from_lsn=from_lsn)


def _checkpoint_rows(place: Path) -> Iterator[Row]:
    for chunk in checkpoint_lines(RealDisk(), str(place)):
        item: dict[str, object] = {
            "offset_bytes": chunk.offset,
            "kind": chunk.kind,
            "count": chunk.count,
            "first": chunk.first,
            "size_bytes": chunk.size_bytes,
        }
        last = chunk.first + max(chunk.count, 1) - 1
        words = (
            f"{chunk.offset:>12}  {chunk.kind:<9} {chunk.first}-{last}  {chunk.size_bytes} bytes"
        )
        yield words, item


# ---------------------------------------------------------------- stat


@wal_group.command("stat", epilog=STAT_EPILOG, context_settings=CONTEXT)
@data_argument
@json_flag
def stat_command(data: Path | None, as_json: bool) -> int:
    """Say how large DATA is, what records it holds, and what a restart would read.

    Exit status: 0, 3 no such directory, 11 damage; what can be read is counted.
    """
    path, clock = _path(data), SystemClock()
    begin_ns = clock.mono_ns()
    try:
        report = verify(RealDisk(), str(path))
        read_ms = (clock.mono_ns() - begin_ns) // 1_000_000
        counts = _count(path)
    except OSError as error:
        click.echo(f"Error: no data directory: {in_words(error)}", err=True)
        return EXIT_NOT_FOUND
    needed = report.segments[len(report.segments) - report.needed_segments :]
    in_force = [one for one in report.checkpoints if one.in_force]
    newest = next((one for one in in_force if one.start_lsn == report.checkpoint_lsn), None)
    found: dict[str, object] = {
        "data": str(path),
        "checkpoints": len(in_force),
        "checkpoint_bytes": sum(one.size_bytes for one in in_force),
        "checkpoint_jobs": newest.jobs if newest else 0,
        "segments": len(report.segments),
        "segment_bytes": sum(segment.size_bytes for segment in report.segments),
        "log_bytes": sum(segment.bytes for segment in report.segments),
        "records": counts.records,
        "kinds": dict(counts.kinds.most_common()),
        "jobs_live": counts.live,
        "live_ratio": round(counts.live_ratio, 4),
        "restart_checkpoint_bytes": newest.size_bytes if newest else 0,
        "restart_log_bytes": sum(segment.bytes for segment in needed),
        "read_ms": read_ms,
        "problem": str(report.refused or counts.stopped) or None,
    }
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(_stat_text(found, counts.kinds))
    return EXIT_DAMAGE if report.damaged or counts.stopped else 0


def _count(path: Path) -> Counts:
    counts = Counts()
    try:
        for line in _lines(path, 1):
            counts.add(line.record)
    except UnreadableError as error:
        counts.stopped = str(error)
    return counts


def _stat_text(found: dict[str, object], kinds: Counter[str]) -> str:
    def number(name: str) -> str:
        return grouped(int(str(found[name])))

    segments = f"{number('segments')}, {number('segment_bytes')} bytes"
    restart = f"{number('restart_checkpoint_bytes')} bytes of checkpoint"
    live = f"about {number('jobs_live')} jobs that have not ended (ratio {found['live_ratio']})"
    kept = f"{number('checkpoints')}, {number('checkpoint_bytes')} bytes"
    lines = [
        f"checkpoints  {kept}; the newest holds {number('checkpoint_jobs')} jobs",
        f"segments     {segments}, {number('log_bytes')} of them used",
        f"records      {number('records')}, {live}",
        f"a restart    reads {restart} and {number('restart_log_bytes')} of log",
        f"reading all  took {number('read_ms')} ms",
    ]
    lines += [f"  {name:<12} {grouped(count)}" for name, count in kinds.most_common()]
    if found["problem"]:
        lines.append(f"DAMAGED: {found['problem']}")
    return "\n".join(lines)


# ---------------------------------------------------------------- repair


@wal_group.command("repair", epilog=REPAIR_EPILOG, context_settings=CONTEXT)
@data_argument
@click.option(
    "--truncate-at", "lsn", type=click.IntRange(1), help="First lsn to give up; none by default."
)
@click.option(
    "--i-accept-losing",
    "loss",
    required=True,
    metavar="N-records",
    help="How many records go with it, exactly.",
)
@json_flag
def repair_command(data: Path | None, *, lsn: int | None, loss: str, as_json: bool) -> int:
    """Mend DATA, so that a refused store starts again: end its log, make lost files anew.

    What a start refuses may have been confirmed. With --truncate-at the log ends before that lsn,
    and what follows is given up. Without it nothing is: an IDENT or MANIFEST that is missing or
    damaged is made anew of the other files, if a start accepts the store then. A lost MARK, which
    tells how far the log went, is made anew with --truncate-at only.

    Without the exact number of records it does nothing and says the number. The originals stay as
    *.broken.

    Exit status: 0 done, 1 failed or a server runs on it, 2 another number, 3 no such directory,
    11 damage that this cannot mend.
    """
    path, accepted = _path(data), LOSS.fullmatch(loss)
    if accepted is None:
        raise click.BadParameter(
            f"{loss!r}: write a number and -records, as in 17-records",
            param_hint="--i-accept-losing",
        )
    try:
        plan = repair(
            RealDisk(),
            str(path),
            lsn,
            accepted_records=int(accepted[1]),
            wall_ms=SystemClock().wall_ms(),
        )
    except FileNotFoundError as error:
        click.echo(f"Error: no data directory: {in_words(error)}", err=True)
        return EXIT_NOT_FOUND
    except RepairError as error:
        click.echo(f"Error: {error}", err=True)
        return EXIT_USAGE
    except LockedError as error:
        click.echo(f"Error: {error}", err=True)
        return EXIT_FAILED
    except RefusedError as error:
        click.echo(f"Error: this does not mend it: {error}", err=True)
        return EXIT_DAMAGE
    except (OSError, WalError) as error:
        raise click.ClickException(in_words(error)) from error
    if as_json:
        found = {
            "lsn": plan.lsn,
            "records_lost": plan.records,
            "set_aside": list(plan.aside),
            "made_anew": list(plan.anew),
        }
        click.echo(json.dumps(found))
    else:
        anew = f" Made anew: {', '.join(plan.anew)}." if plan.anew else ""
        click.echo(
            f"{path}: the log ends at lsn {plan.lsn - 1}; {plan.records} records were given up."
            f"{anew} The originals are there as *.broken."
        )
    return 0


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
        "checkpoint_lsn": report.checkpoint_lsn,
        "needed_segments": report.needed_segments,
        "spare_problem": report.spare_problem or None,
        "checkpoints": [
            {
                "name": one.name,
                "jobs": one.jobs,
                "size_bytes": one.size_bytes,
                "start_lsn": one.start_lsn,
                "end_lsn": one.end_lsn,
                "in_force": one.in_force,
                "problem": one.problem or None,
            }
            for one in report.checkpoints
        ],
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
