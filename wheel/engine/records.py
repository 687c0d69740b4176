"""Records as ``csrc/wd_record.h`` lays them out: what Python submits, and what the core tells.

A record is a header (u32 size of the whole, u8 kind, u24 mask of the fields that follow) and its
fields in the order of their bits: fixed ones little-endian, byte strings behind a length of 1, 2 or
4 bytes. An empty byte string is a field left out.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

HEADER_BYTES: Final = 8


class Kind(IntEnum):
    """What a record does; on disk, so never renumbered."""

    HANDLER = 1
    POLICY = 2
    HANDLER_SET = 3
    CREATED = 4
    REPLACED = 5
    LEASED = 6
    RETRY = 7
    ENDED = 8
    DIED = 9
    EXTENDED = 10
    MARKED = 11
    MOVED = 12
    REQUEUED = 13
    PURGED = 14
    PUT = 15
    DEL = 16
    CLOSED = 17
    RING_DROPPED = 18
    ONCE_DROPPED = 19
    CLOCK = 20
    UNHELD = 21
    ONCE = 22
    GENERATIONS = 23


class Flag(IntFlag):
    """Bits of FLAGS."""

    REL = 1
    EXPIRE_REL = 2
    HELD = 4
    ACCEPT = 8


class State(IntEnum):
    """A job's state; REASON of an ENDED record is one of them."""

    UNKNOWN = 0
    SCHEDULED = 1
    HELD = 2
    READY = 3
    LEASED = 4
    DEAD = 5
    SUCCEEDED = 6
    CANCELLED = 7
    EXPIRED = 8


class Backoff(IntEnum):
    """How the delay before a retry grows."""

    FIXED = 0
    LINEAR = 1
    EXP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record; None or b"" = the field is not there.

    Attributes:
        kind: a Kind, or a number of 128 and more that older readers skip.
        id: of the job.
        due_ms: on the axis that flags name.
        at_ms: wall clock.
        flags: of Flag.
        handler: its number.
        policy: its number.
        priority: 0 first.
        failures: so far.
        lost: leases lost so far.
        fence: term and lsn of a grant.
        lease_ms: how long the lease is.
        number: of many meanings, by kind.
        reason: of many meanings, by kind.
        expire_ms: on the axis that flags name.
        worker: who leased.
        payload: the job's.
        key: the job's unique name.
        once: token of the call.
        meta: travels with the job.
        group: for fairness.
        owner: the run id of a job that a schedule owns.
        text: an error or a result.
        name: of a handler or a table entry.
        blob: a policy, settings, or a table entry's value.
    """

    kind: int
    id: int | None = None
    due_ms: int | None = None
    at_ms: int | None = None
    flags: int | None = None
    handler: int | None = None
    policy: int | None = None
    priority: int | None = None
    failures: int | None = None
    lost: int | None = None
    fence: tuple[int, int] | None = None
    lease_ms: int | None = None
    number: int | None = None
    reason: int | None = None
    expire_ms: int | None = None
    worker: bytes = b""
    payload: bytes = b""
    key: bytes = b""
    once: bytes = b""
    meta: bytes = b""
    group: bytes = b""
    owner: bytes = b""
    text: bytes = b""
    name: bytes = b""
    blob: bytes = b""


# Name and format of each fixed field, in the order of their bits.
_FIXED: Final = (
    ("id", struct.Struct("<Q")),
    ("due_ms", struct.Struct("<q")),
    ("at_ms", struct.Struct("<q")),
    ("flags", struct.Struct("<B")),
    ("handler", struct.Struct("<H")),
    ("policy", struct.Struct("<H")),
    ("priority", struct.Struct("<B")),
    ("failures", struct.Struct("<H")),
    ("lost", struct.Struct("<H")),
    ("fence", struct.Struct("<QQ")),
    ("lease_ms", struct.Struct("<I")),
    ("number", struct.Struct("<q")),
    ("reason", struct.Struct("<B")),
    ("expire_ms", struct.Struct("<q")),
)
# Name of each byte string and the width of its length, from bit 14 on.
_STRINGS: Final = (
    ("worker", 1),
    ("payload", 4),
    ("key", 1),
    ("once", 1),
    ("meta", 2),
    ("group", 1),
    ("owner", 2),
    ("text", 2),
    ("name", 2),
    ("blob", 4),
)


def _encode_fixed(record: Record) -> tuple[int, bytes]:
    """Return the mask and the bytes of the fixed fields.

    Raises:
        ValueError: a number is outside its field.
    """
    mask = 0
    parts: list[bytes] = []
    for bit, (name, layout) in enumerate(_FIXED):
        value = getattr(record, name)
        if value is None:
            continue
        mask |= 1 << bit
        try:
            parts.append(layout.pack(*value) if name == "fence" else layout.pack(value))
        except struct.error as error:
            raise ValueError(f"{name} {value} does not fit its field: {error}") from None
    return mask, b"".join(parts)


def encode(record: Record) -> bytes:
    """Return the record's bytes.

    Raises:
        ValueError: a number is outside its field, or a byte string is too long for its length.
    """
    if not 1 <= record.kind <= 255:
        raise ValueError(f"kind {record.kind} is none, kinds are 1 to 255")
    mask, fixed = _encode_fixed(record)
    parts = [fixed]
    for bit, (name, width) in enumerate(_STRINGS, len(_FIXED)):
        value: bytes = getattr(record, name)
        if not value:
            continue
        if len(value) >= 1 << 8 * width:
            raise ValueError(f"{name} has {len(value)} bytes, less than {1 << 8 * width} fit")
        mask |= 1 << bit
        parts += (len(value).to_bytes(width, "little"), value)
    body = b"".join(parts)
    return struct.pack("<II", HEADER_BYTES + len(body), record.kind | mask << 8) + body


def decode(data: bytes | memoryview) -> Iterator[Record]:
    """Yield the records that stand one behind the other in data.

    Raises:
        ValueError: the bytes are not whole records; names the offset.
    """
    view = memoryview(data)
    at = 0
    while at < len(view):
        if len(view) - at < HEADER_BYTES:
            raise ValueError(f"offset {at}: {len(view) - at} bytes are no record header")
        size, head = struct.unpack_from("<II", view, at)
        if not HEADER_BYTES <= size <= len(view) - at or not head & 0xFF:
            raise ValueError(f"offset {at}: size {size}, kind {head & 0xFF} are no record's")
        try:
            yield _decode_one(view[at + HEADER_BYTES : at + size], head & 0xFF, head >> 8)
        except ValueError as error:
            raise ValueError(f"offset {at}: {error}") from None
        at += size


def _decode_one(body: memoryview, kind: int, mask: int) -> Record:
    """Return the record whose fields are in body."""
    values: dict[str, object] = {}
    at = 0
    for bit, (name, layout) in enumerate(_FIXED):
        if not mask >> bit & 1:
            continue
        if len(body) - at < layout.size:
            raise ValueError(f"{name} is cut off")
        found = layout.unpack_from(body, at)
        values[name] = found if name == "fence" else found[0]
        at += layout.size
    for bit, (name, width) in enumerate(_STRINGS, len(_FIXED)):
        if not mask >> bit & 1:
            continue
        length = int.from_bytes(body[at : at + width], "little")
        if not 0 < length <= len(body) - at - width:
            raise ValueError(f"{name} is empty or cut off")
        values[name] = bytes(body[at + width : at + width + length])
        at += width + length
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes behind the last field")
    return Record(kind=kind, **values)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


_POLICY: Final = struct.Struct("<IIIIHHB3xB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a job is leased and retried; None = by its handler's settings, else the server's.

    Attributes:
        retries: failures that are retried.
        lost: lost leases that are borne.
        backoff: kind, base and longest delay in ms.
        lease_ms: of a grant.
        timeout_ms: of a run, 0 = none.
    """

    retries: int | None = None
    lost: int | None = None
    backoff: tuple[Backoff, int, int] | None = None
    lease_ms: int | None = None
    timeout_ms: int | None = None

    def blob(self) -> bytes:
        """Return the BLOB of a CREATED record (``wd_policy``, then which members count)."""
        kind, base_ms, max_ms = self.backoff or (Backoff.FIXED, 0, 0)
        given = (self.retries, self.lost, self.backoff, self.lease_ms, self.timeout_ms)
        mask = sum(1 << bit for bit, value in enumerate(given) if value is not None)
        return _POLICY.pack(
            base_ms,
            max_ms,
            self.lease_ms or 0,
            self.timeout_ms or 0,
            self.retries or 0,
            self.lost or 0,
            kind,
            mask,
        )
