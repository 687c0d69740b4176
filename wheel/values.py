"""What goes into a call and what comes back: durations, moments, jobs. No I/O, no clock.

Times are whole milliseconds inside. Whoever writes them may use ``datetime``, ISO text, seconds
since the epoch, ``timedelta`` or text like ``"90s"``; a time without a zone is refused, because
guessing its zone has cost people hours. Fractions of a millisecond are rounded up: a job may be
late, never early.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias, TypedDict, get_args

from wheel.errors import InvalidRequest, NaiveDatetimeError, WheeldError

Duration: TypeAlias = timedelta | int | float | str
When: TypeAlias = datetime | timedelta | int | float | str
Payload: TypeAlias = Mapping[str, object] | bytes | None
OnConflict: TypeAlias = Literal["keep", "replace", "error"]
BackoffKind: TypeAlias = Literal["fixed", "linear", "exp"]

ON_CONFLICT: Final = get_args(OnConflict)
BACKOFF_KINDS: Final = get_args(BackoffKind)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME_MS_LIMIT: Final = 1 << 48  # PROTOCOL.md: times are below it
MILLISECONDS_ABOVE: Final = 1e11  # the year 5138 in seconds, 1973 in milliseconds

_MILLISECOND: Final = timedelta(milliseconds=1)
_NUMBER: Final = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION: Final = re.compile(
    rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?"
)
_UNITS_MS: Final = (86_400_000, 3_600_000, 60_000, 1_000, 1)


def duration_ms(value: Duration) -> int:
    """Return a length of time in milliseconds, fractions rounded up.

    Args:
        value: ``"90s"``, ``"1h30m"``, ``"7d"``, ``"250ms"``, a timedelta, or a number of seconds.

    Raises:
        InvalidRequest: not one of these, negative, or longer than 2^48 ms.
    """
    exact_ms = _exact_ms(value)
    if not 0 <= exact_ms < TIME_MS_LIMIT:
        raise InvalidRequest(f"the duration {value!r} is not between 0 and 2^48 ms")
    return _round_up(exact_ms, 6)


def when_wire(when: When) -> bytes:
    """Return a moment as the protocol writes it: ``now``, ``+`` and ms from now, or Unix ms.

    Args:
        when: an aware datetime, ISO 8601 text with an offset or Z, seconds since the epoch,
            ``"now"``, or a time from now as a timedelta or as text with a plus, ``"+90s"``.
            A moment before March 1973 is sent as ``now``: it is due, and that is all that counts.

    Raises:
        NaiveDatetimeError: the time has no zone.
        InvalidRequest: not a moment, milliseconds instead of seconds, or after 2^48 ms.
    """
    if isinstance(when, str):
        if when.startswith("+"):
            return b"+%d" % duration_ms(when[1:])
        if when == "now":
            return b"now"
        when = _parse_iso(when)
    if isinstance(when, datetime):
        due_ms = _datetime_ms(when)
    elif isinstance(when, timedelta):
        return b"+%d" % duration_ms(when)
    else:
        due_ms = _epoch_ms(when)
    if due_ms >= TIME_MS_LIMIT:
        raise InvalidRequest(f"{when!r} is too far ahead: times end at 2^48 ms, the year 10889")
    return b"now" if due_ms < MILLISECONDS_ABOVE else b"%d" % due_ms


def wire_due(wire: bytes, wall_ms: int) -> datetime:
    """Return the moment that ``when_wire`` wrote, in UTC; relative ones from ``wall_ms``."""
    if wire == b"now":
        return from_ms(wall_ms)
    return from_ms(wall_ms + int(wire) if wire.startswith(b"+") else int(wire))


def from_ms(unix_ms: int) -> datetime:
    """Return a moment in UTC; the last one a datetime can hold for any that lies behind it."""
    try:
        return EPOCH + timedelta(milliseconds=unix_ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def _exact_ms(value: object) -> float:
    if isinstance(value, str):
        return _text_ms(value)
    if isinstance(value, timedelta):
        return -(-value // _MILLISECOND)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(
            f"{value!r} is not a duration; write '90s', '1h30m', a timedelta or seconds"
        )
    return value * 1000


def _text_ms(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise InvalidRequest(
            f"{text!r} is not a duration; write a number with d, h, m, s or ms: '90s', '1h30m'"
        )
    parts = zip(match.groups(), _UNITS_MS, strict=True)
    return sum(float(number) * unit_ms for number, unit_ms in parts if number is not None)


def _round_up(exact_ms: float, digits: int) -> int:
    if isinstance(exact_ms, int):
        return exact_ms
    return math.ceil(round(exact_ms, digits))  # 4.035 s is 4035.0000000000005 ms: not 4036


def _parse_iso(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is not a time; write ISO 8601 with an offset, '2026-12-24T09:00:00+01:00', "
            "or '+90s' for a time from now"
        ) from None
    if when.utcoffset() is None:
        raise NaiveDatetimeError(
            f"{text!r} has no time zone; write it with one, {when.isoformat()}Z or "
            f"{when.isoformat()}+01:00, or '+24h' for a time from now"
        )
    return when


def _datetime_ms(when: datetime) -> int:
    if when.utcoffset() is None:
        raise NaiveDatetimeError(
            f"{when} has no time zone. Write datetime(..., tzinfo=ZoneInfo('Europe/Rome')), "
            "or datetime.now(timezone.utc) + ..., or use schedule_in('24h', ...)"
        )
    return -((EPOCH - when) // _MILLISECOND)


def _epoch_ms(when: object) -> int:
    if isinstance(when, bool) or not isinstance(when, int | float) or not math.isfinite(when):
        raise InvalidRequest(
            f"{when!r} is not a time; write an aware datetime, ISO text or seconds since the epoch"
        )
    if when > MILLISECONDS_ABOVE:
        raise InvalidRequest(
            f"{when!r} looks like milliseconds; numbers are seconds since the epoch. "
            f"Write {when / 1000!r}"
        )
    return _round_up(when * 1000, 2)  # what a float of this size can tell


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a job waits between its attempts; see ``backoff``.

    Attributes:
        kind: how the wait grows with the number of failures.
        base_ms: the first wait; for ``exp`` its upper bound.
        max_ms: cap of every wait; None leaves it to the server.
    """

    kind: BackoffKind
    base_ms: int
    max_ms: int | None = None


def backoff(
    base: Duration,
    kind: BackoffKind = "exp",
    *,
    max: Duration | None = None,  # noqa: A002  (the word a user looks for)
) -> Backoff:
    """Return a backoff: ``backoff("30s", max="1h")``.

    Args:
        base: the wait after the first failure.
        kind: ``fixed``: always base. ``linear``: base, 2 x base, 3 x base. ``exp``: drawn from
            0 to base, then to 2 x base, 4 x base, so that what failed together spreads out.
        max: cap of every wait.

    Raises:
        InvalidRequest: an unknown kind or a bad duration.
    """
    if kind not in BACKOFF_KINDS:
        raise InvalidRequest(f"backoff kind {kind!r} is not one of fixed, linear, exp")
    return Backoff(kind, duration_ms(base), None if max is None else duration_ms(max))


class Options(TypedDict, total=False):
    """Options of every call that schedules a job; what is left out, the server decides.

    ``key``: a name of the job, unique among live jobs. ``window``: how long after its end the key
    still counts as taken. ``on_conflict``: what happens if the key is taken. ``once``: a token
    that makes a repeated call harmless; the client makes one of its own if there is none.
    ``priority``: 0 to 255, 0 first. ``retries``, ``lost``: how many failures, lost leases, are
    allowed. ``lease``: how long a silent worker counts as alive. ``timeout``: how long a run may
    last; 0 is for ever. ``expire``: moment after which the job is not worth doing. ``meta``: up to
    1 KiB that travels with the job. ``group``: stored.
    """

    key: str | None
    window: Duration | None
    on_conflict: OnConflict | None
    once: str | None
    priority: int | None
    retries: int | None
    lost: int | None
    backoff: Backoff | None
    lease: Duration | None
    timeout: Duration | None
    expire: When | None
    meta: bytes | str | None
    group: str | None


NO_OPTIONS: Final = Options()


@dataclass(frozen=True, slots=True)
class Item:
    """One job for ``schedule_many``, with its options (the same as in ``Options``)."""

    when: When
    handler: str
    payload: Payload = None
    _: KW_ONLY
    key: str | None = None
    window: Duration | None = None
    on_conflict: OnConflict | None = None
    once: str | None = None
    priority: int | None = None
    retries: int | None = None
    lost: int | None = None
    backoff: Backoff | None = None
    lease: Duration | None = None
    timeout: Duration | None = None
    expire: When | None = None
    meta: bytes | str | None = None
    group: str | None = None

    def options(self) -> Options:
        """Return the options alone."""
        return Options(
            key=self.key,
            window=self.window,
            on_conflict=self.on_conflict,
            once=self.once,
            priority=self.priority,
            retries=self.retries,
            lost=self.lost,
            backoff=self.backoff,
            lease=self.lease,
            timeout=self.timeout,
            expire=self.expire,
            meta=self.meta,
            group=self.group,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What scheduling answered.

    Attributes:
        id: the server's number of the job.
        store: id of the server's data directory.
        handler: which handler runs it.
        due: when it is due, in UTC, by this machine's clock where it was given from now; None
            if the call made nothing and the job that was there keeps its own time.
        word: ``created``, ``existing``, ``replaced``, or ``ended`` (the key's last job ended
            inside the window).
        state: its state at the answer; None for a job without key that was just created.
        key: its key.
    """

    id: int
    store: str
    handler: str
    due: datetime | None
    word: str = "created"
    state: str | None = None
    key: str | None = None

    @property
    def created(self) -> bool:
        """Whether this call made the job; False if its key was already there."""
        return self.word == "created"

    @property
    def uid(self) -> str:
        """The job's name in the world: no two data directories share one."""
        return f"{self.store}-{self.id}"

    def __repr__(self) -> str:
        due = "" if self.due is None else f" due {_iso(self.due)}"
        key = "" if self.key is None else f" key {self.key!r}"
        return f"<Job {self.id} {self.handler}{due}{key} {self.word}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """What the server knows of a job.

    Attributes:
        id: the server's number of the job.
        store: id of the server's data directory.
        handler: which handler runs it.
        state: scheduled, held, ready, leased, succeeded, dead, cancelled or expired.
        key: its key.
        due: when it is or was due.
        attempt: how often it was handed out; None if the server no longer knows.
        fields: everything that the server answered, by the server's names.
    """

    id: int
    store: str
    handler: str
    state: str
    key: str | None
    due: datetime | None
    attempt: int | None
    fields: Mapping[str, object] = field(repr=False)

    @property
    def uid(self) -> str:
        """The job's name in the world: no two data directories share one."""
        return f"{self.store}-{self.id}"

    def __repr__(self) -> str:
        due = "" if self.due is None else f" due {_iso(self.due)}"
        key = "" if self.key is None else f" key {self.key!r}"
        attempt = "" if self.attempt is None else f" attempt {self.attempt}"
        return f"<JobInfo {self.id} {self.handler} {self.state}{due}{key}{attempt}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The ids of many jobs, in the order of the items; None where an item was refused.

    Attributes:
        ids: what iteration gives.
        created: how many jobs were made.
        existing: how many keys were there already, or had ended inside their window.
        replaced: how many jobs were replaced.
        errors: why an item was refused, by its position.
    """

    ids: Sequence[int | None] = field(repr=False)
    created: int
    existing: int
    replaced: int
    errors: Mapping[int, WheeldError] = field(repr=False)

    @property
    def failed(self) -> int:
        """How many items were refused."""
        return len(self.errors)

    def check(self) -> None:
        """Raise the first item's error, if any was refused.

        Raises:
            WheeldError: of the first refused item, with its position as a note.
        """
        for position, error in self.errors.items():
            error.add_note(f"item {position}; {self.failed} of {len(self)} were refused")
            raise error

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int | None]:
        return iter(self.ids)

    def __getitem__(self, index: int) -> int | None:
        return self.ids[index]

    def __repr__(self) -> str:
        return (
            f"<BatchResult {len(self)} jobs: {self.created} created, {self.existing} existing, "
            f"{self.replaced} replaced, {self.failed} failed>"
        )


def _iso(moment: datetime) -> str:
    precision = "milliseconds" if moment.microsecond else "seconds"
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")
