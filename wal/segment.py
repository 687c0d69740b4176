"""Segment files: their names, their order, and what else may lie beside them."""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from wal.disk import Disk
from wal.errors import RefusedError, Rule

NAME: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.wal")
SNAP_NAME: Final = re.compile(r"([0-9a-f]{16})\.snap")
SEGMENT_BYTES_DEFAULT: Final = 64 << 20
SEGMENT_BYTES_MIN: Final = 8192
BLOCK_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """A segment by its name: number, lsn of the first record that it may hold, path."""

    seq: int
    base_lsn: int
    path: str

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What lies in the folder of segments."""

    segments: tuple[SegmentFile, ...]
    temporary: tuple[str, ...]
    other: tuple[str, ...]


def segment_name(seq: int, base_lsn: int) -> str:
    """Return the name of a segment: both numbers in 16 hex digits."""
    return f"{seq:016x}-{base_lsn:016x}.wal"


def parse_name(name: str) -> tuple[int, int] | None:
    """Return (seq, base lsn) of a segment's name, None for any other name."""
    found = NAME.fullmatch(name)
    return (int(found[1], 16), int(found[2], 16)) if found else None


def parse_checkpoint_name(name: str) -> int | None:
    """Return the start lsn of a checkpoint's name, None for any other name."""
    found = SNAP_NAME.fullmatch(name)
    return int(found[1], 16) if found else None


def list_segments(disk: Disk, folder: str) -> Listing:
    """Return the segments in order of their numbers, and the paths of other files.

    Raises:
        RefusedError: two segments have one number.
    """
    segments: list[SegmentFile] = []
    temporary: list[str] = []
    other: list[str] = []
    for name in sorted(disk.names(folder)):
        path = f"{folder}/{name}"
        if parsed := parse_name(name):
            segments.append(SegmentFile(seq=parsed[0], base_lsn=parsed[1], path=path))
        else:
            (temporary if name.endswith(".tmp") else other).append(path)
    for before, after in pairwise(segments):
        if before.seq == after.seq:
            raise RefusedError(
                rule=Rule.NAME_MISMATCH,
                path=after.path,
                detail=f"{before.name} has the same segment number",
            )
    return Listing(segments=tuple(segments), temporary=tuple(temporary), other=tuple(other))


def needed(segments: tuple[SegmentFile, ...], from_lsn: int) -> tuple[SegmentFile, ...]:
    """Return the segments that hold records from from_lsn on; earlier ones are not looked at.

    Raises:
        RefusedError: the first segment starts behind from_lsn.
    """
    first = -1
    for i, segment in enumerate(segments):
        if segment.base_lsn <= from_lsn:
            first = i
    if first >= 0 or not segments:
        return segments[max(first, 0) :]
    raise RefusedError(
        rule=Rule.SEGMENT_MISSING,
        path=segments[0].path,
        lsn=from_lsn,
        detail=f"the log is needed from lsn {from_lsn} on, and the first segment starts at lsn "
        f"{segments[0].base_lsn}",
    )
