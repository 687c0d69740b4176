"""A schedule's history as one value of the table: the records of its last runs.

Appending looks at fixed fields only; records are decoded when somebody asks. A text that is longer
than a line is a value of its own, so that a run's end does not write those of other runs again.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from wheel.engine.runs import OUTCOMES, Outcome, RunRecord

RUNS_MAX: Final = 20
NEEDED_MAX: Final = 2_000  # with those that others still wait for
AGE_MS_MAX: Final = 366 * 86_400_000
INLINE_BYTES: Final = 200
TEXT_BYTES_MAX: Final = 1024 + 1 + 4096  # ERROR and RESULT of FAIL
NOTE_BYTES_MAX: Final = 1000

_FIXED: Final = struct.Struct("<HBBqqIqqqHHQ")  # size, outcome, flags, first, last, count ...
_BY_HAND, _TEXT_APART = 1, 2


@dataclass(frozen=True, slots=True)
class Item:
    """One record, not decoded but for what appending looks at."""

    outcome: Outcome
    first_ms: int
    last_ms: int
    count: int
    ended_ms: int
    flags: int
    data: bytes

    @property
    def text_apart(self) -> bool:
        """Whether its text is a value of its own."""
        return bool(self.flags & _TEXT_APART)

    @property
    def by_hand(self) -> bool:
        """Whether a person set its outcome."""
        return bool(self.flags & _BY_HAND)


def split(blob: bytes) -> list[Item]:
    """Return the records of a history, the oldest first."""
    found: list[Item] = []
    at = 0
    while at < len(blob):
        fixed: tuple[int, ...] = _FIXED.unpack_from(blob, at)
        size, outcome, flags, first_ms, last_ms, count = fixed[:6]
        found.append(
            Item(OUTCOMES[outcome], first_ms, last_ms, count, fixed[8], flags, blob[at : at + size])
        )
        at += size
    return found


def join(items: list[Item]) -> bytes:
    """Return a history's bytes."""
    return b"".join([item.data for item in items])


def encode(record: RunRecord) -> Item:
    """Return a record as a history keeps it; a long text is left for ``apart``."""
    is_apart = len(record.text) > INLINE_BYTES
    texts = (
        record.reason.encode(),
        record.tag.encode(),
        record.label.encode(),
        b"" if is_apart else record.text,
        record.actor.encode()[:63],
    )
    note = record.note.encode()[:NOTE_BYTES_MAX]
    tail = b"".join(bytes((len(text),)) + text for text in texts) + note
    flags = (_BY_HAND if record.by_hand else 0) | (_TEXT_APART if is_apart else 0)
    data = (
        _FIXED.pack(
            _FIXED.size + len(tail),
            OUTCOMES.index(record.outcome),
            flags,
            record.first_ms,
            record.last_ms,
            record.count,
            record.due_ms,
            record.started_ms,
            record.ended_ms,
            record.failures,
            record.lost,
            record.job_id,
        )
        + tail
    )
    return Item(
        record.outcome, record.first_ms, record.last_ms, record.count, record.ended_ms, flags, data
    )


def decode(item: Item) -> RunRecord:
    """Return a record; the text is empty where it is a value of its own."""
    fixed = _FIXED.unpack_from(item.data)
    at = _FIXED.size
    texts: list[bytes] = []
    for _ in range(5):
        size = item.data[at]
        texts.append(item.data[at + 1 : at + 1 + size])
        at += 1 + size
    return RunRecord(
        outcome=item.outcome,
        reason=texts[0].decode(),
        first_ms=item.first_ms,
        last_ms=item.last_ms,
        count=item.count,
        tag=texts[1].decode(),
        label=texts[2].decode(),
        due_ms=fixed[6],
        started_ms=fixed[7],
        ended_ms=fixed[8],
        failures=fixed[9],
        lost=fixed[10],
        job_id=fixed[11],
        text=texts[3],
        by_hand=item.by_hand,
        note=item.data[at:].decode(errors="ignore"),
        actor=texts[4].decode(errors="ignore"),
    )


def records(blob: bytes) -> Iterator[RunRecord]:
    """Yield the records of a history, the oldest first."""
    return map(decode, split(blob))


def tag_of(item: Item) -> str:
    """Return a record's tag without decoding the rest."""
    at = _FIXED.size
    at += 1 + item.data[at]
    return item.data[at + 1 : at + 1 + item.data[at]].decode()


def reason_of(item: Item) -> str:
    """Return a record's reason without decoding the rest."""
    at = _FIXED.size
    return item.data[at + 1 : at + 1 + item.data[at]].decode()


def last_dropped_ms(items: list[Item]) -> int:
    """Return when the last of the times was dropped that a pause let pass; 0 = none was."""
    paused = (
        item.ended_ms
        for item in items
        if item.outcome is Outcome.MISSED and reason_of(item) == "paused"
    )
    return max(paused, default=0)


def label_of(item: Item) -> str:
    """Return a record's label without decoding the rest."""
    at = _FIXED.size
    at += 1 + item.data[at]
    at += 1 + item.data[at]
    return item.data[at + 1 : at + 1 + item.data[at]].decode()


def _is_assumed(item: Item, assumed_from_ms: int) -> bool:
    """Return whether a record says no more than its absence would."""
    plain = item.outcome is Outcome.SUCCEEDED and not item.by_hand and not tag_of(item)
    return plain and item.first_ms >= assumed_from_ms


def trim(
    items: list[Item],
    *,
    now_ms: int,
    keep_from_ms: int | None,
    assumed_from_ms: int,
    missed_from_ms: int | None = None,
) -> tuple[list[Item], list[Item]]:
    """Return what stays of a history, and what goes: too many, or too old.

    Args:
        items: the oldest first.
        now_ms: wall.
        keep_from_ms: outcomes at this nominal time or later are still needed.
        assumed_from_ms: but that a first attempt at this time or later succeeded need not be kept:
            it is assumed where there is no record.
        missed_from_ms: what was missed since then is to be made up for.
    """
    if len(items) <= RUNS_MAX and (not items or now_ms - items[0].ended_ms < AGE_MS_MAX):
        return items, []
    stays: list[Item] = []
    goes: list[Item] = []
    last = len(items) - RUNS_MAX
    for number, item in enumerate(items):
        needed = len(items) - number <= NEEDED_MAX and (
            (
                keep_from_ms is not None
                and item.last_ms >= keep_from_ms
                and not _is_assumed(item, assumed_from_ms)
            )
            or (
                missed_from_ms is not None
                and item.outcome is Outcome.MISSED
                and item.ended_ms >= missed_from_ms
            )
        )
        young = number >= last and now_ms - item.ended_ms < AGE_MS_MAX
        (stays if young or needed else goes).append(item)
    return stays, goes
