"""Runs that an edit or a deletion takes back: all at once for the log, slice by slice in time.

A schedule may have thousands of runs that nobody has taken yet, and to cancel each costs some ten
microseconds. So the change itself logs only *that* they go (one value of the table: why, and the
ids of their jobs) together with the new definition; turns then cancel them, and the value goes with
the last one. A crash in between loses nothing: a start goes on with those that are left.

Until its slice a run counts as under way for those that wait for it, and OVERLAP does not see it. A
worker that takes one meanwhile ends it as usual, as if the change had come a moment later.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from wheel.engine.runs import Run

EDITED = "edited"
DELETED = "deleted"


@dataclass(slots=True)
class Going:
    """The runs of one schedule that are being taken back.

    Attributes:
        reason: EDITED: each becomes a record; DELETED: the history goes as well.
        runs: those that are left, by ``Run.key``.
    """

    reason: str
    runs: dict[tuple[int, str], Run]


def going_blob(reason: str, runs: Iterable[Run]) -> bytes:
    """Return the bytes of runs that are to be taken back."""
    ids = [run.job_id for run in runs]
    return reason.encode() + b"\n" + struct.pack(f"<{len(ids)}Q", *ids)


def read_going(blob: bytes) -> tuple[str, tuple[int, ...]]:
    """Return why runs are taken back, and the ids of their jobs.

    Raises:
        ValueError: these are no such bytes.
    """
    reason, line, ids = blob.partition(b"\n")
    if not line or len(ids) % 8:
        raise ValueError(f"{len(blob)} bytes that say no runs to be taken back")
    return reason.decode(), struct.unpack(f"<{len(ids) // 8}Q", ids)
