"""Time zones in whole seconds: which offset is in force when, and which moments a local day has.

A zone is looked at in blocks of 2^22 s (49 days). A block is asked of ``zoneinfo`` once, at steps
of 2^18 s (3 days), and each change between two steps is found by bisection; the tz database has no
two changes of one zone within four days of each other. So the common question, in a block without
a change, costs one look-up in a dict, and nobody reads the files of the tz database twice.

Offsets are whole seconds, because those of the past were: Monrovia stood at -0:44:30 until 1972.

Not here: what a rule does in a gap or a fold (wheel/crondst.py).
"""

import difflib
import functools
import hashlib
import importlib.resources
import re
import zoneinfo
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from wheel.errors import ZoneError

Unit: TypeAlias = Literal["day", "hour", "exact"]

FIRST_S: Final = -62_100_000_000  # early in the year 2: an offset away from where datetime ends
LAST_S: Final = 7_258_550_400  # 2200-01-07: every local time of 2199 lies before it
NAME_BYTES_MAX: Final = 64

_BLOCK_BITS: Final = 22
_PROBE_S: Final = 1 << 18
_LOOKBACK_S: Final = 1 << 18  # longer than any gap or fold, a day at most
_BLOCKS_MAX: Final = 2048  # 270 years; a zone that is asked about more starts anew
_DAY_S: Final = 86_400
_HOUR_S: Final = 3_600
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*")
# Files that stand beside the zones in many systems: what this machine is set to, and the zones once
# more, the second time with leap seconds, which no count of Unix seconds has.
_NO_ZONE: Final = re.compile(r"localtime|posixrules|(?:posix|right)/.*")
_DATES: Final = "write 2026-11-01, 2026-11-01T06 or 2026-11-01T06:00:00Z"
_LABEL: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:T([0-9]{2})(:[0-9:.]+Z)?)?")


class Segment(NamedTuple):
    """A stretch of time with one offset.

    Attributes:
        start_s: its first second; of a long one, where the block begins that was asked about.
        before_s: offset in force just before ``start_s``; equal to ``offset_s`` if nothing changed.
        offset_s: what to add to UTC to get local time.
        end_s: the second after its last one, or after the block's.
    """

    start_s: int
    before_s: int
    offset_s: int
    end_s: int


class Zone:
    """One zone of the tz database; get it by ``zone(name)``.

    Attributes:
        name: as in the database, ``Europe/Rome``.
        info: for whoever makes datetimes.
    """

    __slots__ = ("_blocks", "_fixed", "info", "name")

    def __init__(self, name: str, info: zoneinfo.ZoneInfo) -> None:
        self.name = name
        self.info = info
        always = info.utcoffset(None)
        self._fixed = None if always is None else _constant(always)
        self._blocks: dict[int, tuple[Segment, ...]] = {}

    def segment(self, unix_s: int) -> Segment:
        """Return the segment that holds a second; ``FIRST_S`` <= unix_s < ``LAST_S``."""
        if self._fixed is not None:
            return self._fixed
        number = unix_s >> _BLOCK_BITS
        segments = self._blocks.get(number)
        if segments is None:
            segments = self._load(number)
        for segment in segments:
            if unix_s < segment.end_s:
                return segment
        raise AssertionError(f"block {number} of {self.name} ends before {unix_s}")

    def offset_s(self, unix_s: int) -> int:
        """Return what to add to UTC at a moment to get local time, in seconds."""
        return self.segment(unix_s).offset_s

    def change_after(self, unix_s: int, until_s: int) -> Segment | None:
        """Return the first segment that begins with a change in (unix_s, until_s], if any does."""
        at_s = self.segment(unix_s).end_s
        while at_s <= min(until_s, LAST_S - 1):
            segment = self.segment(at_s)
            if segment.start_s == at_s and segment.before_s != segment.offset_s:
                return segment
            at_s = segment.end_s
        return None

    @property
    def fingerprint(self) -> str:
        """A hash of the zone's rules: another one means that the tz database changed them."""
        return _fingerprint(self.name)

    def _load(self, number: int) -> tuple[Segment, ...]:
        begin_s = number << _BLOCK_BITS
        end_s = begin_s + (1 << _BLOCK_BITS)
        changes: list[tuple[int, int, int]] = []
        low_s, before_s = begin_s - _LOOKBACK_S, self._ask(begin_s - _LOOKBACK_S)
        for high_s in range(low_s + _PROBE_S, end_s + 1, _PROBE_S):
            offset_s = self._ask(high_s)
            if offset_s != before_s:
                changes.append((self._bisect(low_s, high_s, before_s), before_s, offset_s))
            low_s, before_s = high_s, offset_s
        if not changes:
            segments: tuple[Segment, ...] = (Segment(begin_s, before_s, before_s, end_s),)
        else:
            segments = _segments(changes, begin_s, end_s)
        if len(self._blocks) >= _BLOCKS_MAX:
            self._blocks.clear()
        self._blocks[number] = segments
        return segments

    def _ask(self, unix_s: int) -> int:
        offset = datetime.fromtimestamp(unix_s, self.info).utcoffset()
        assert offset is not None, self.name
        return offset.days * _DAY_S + offset.seconds

    def _bisect(self, low_s: int, high_s: int, before_s: int) -> int:
        while high_s - low_s > 1:
            middle_s = (low_s + high_s) // 2
            if self._ask(middle_s) == before_s:
                low_s = middle_s
            else:
                high_s = middle_s
        return high_s

    def __repr__(self) -> str:
        return f"<Zone {self.name}>"


def _constant(always: timedelta) -> Segment:
    offset_s = always.days * _DAY_S + always.seconds
    return Segment(FIRST_S, offset_s, offset_s, LAST_S)


def _segments(changes: list[tuple[int, int, int]], begin_s: int, end_s: int) -> tuple[Segment, ...]:
    """Return the segments of a block from the changes in it and shortly before it."""
    first_s, before_s, _ = changes[0]
    found = [Segment(min(begin_s, first_s), before_s, before_s, first_s)]
    for at, (change_s, before_s, offset_s) in enumerate(changes):
        until_s = changes[at + 1][0] if at + 1 < len(changes) else end_s
        found.append(Segment(change_s, before_s, offset_s, until_s))
    # A change at the very end belongs to the next block; one before the block starts only its fold.
    return tuple(one for one in found if one.end_s > begin_s and one.start_s < end_s)


@functools.lru_cache(maxsize=1024)
def zone(name: str) -> Zone:
    """Return a zone by its name.

    Raises:
        ZoneError: the tz database has no such zone; the error names the nearest one.
    """
    is_name = len(name) <= NAME_BYTES_MAX and _NAME.fullmatch(name) is not None
    if is_name and _NO_ZONE.fullmatch(name) is None:
        try:
            return Zone(name, zoneinfo.ZoneInfo(name))
        except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
            pass
    raise _unknown(name)


def _unknown(name: str) -> ZoneError:
    shown = name if len(name) <= NAME_BYTES_MAX else name[:NAME_BYTES_MAX] + "..."
    near = _nearest(name[:NAME_BYTES_MAX])
    hint = f"write {near}" if near else "write a name of the tz database, Europe/Rome or UTC"
    reason = f"the time zone {shown!r} is unknown"
    error = ZoneError(f"{reason}; {hint}")
    error.reason, error.hint = reason, hint
    return error


@functools.lru_cache(maxsize=1024)
def _nearest(name: str) -> str | None:
    """Return the zone with the most similar name: of the whole, or of the city alone."""
    wanted = name.lower().replace(" ", "_").removeprefix("posix/").removeprefix("right/")
    names, cities = _known()
    found = names if "/" in wanted else cities
    if wanted in found:
        return found[wanted]
    close = difflib.get_close_matches(wanted, found, n=1, cutoff=0.75)
    return found[close[0]] if close else None


@functools.cache
def _known() -> tuple[dict[str, str], dict[str, str]]:
    """Return every zone by its name in small letters, and by what stands after the last slash.

    The package's list is one file; asking the system opens every zone.
    """
    try:
        import tzdata  # noqa: PLC0415  (see _rules)
    except ImportError:
        found = zoneinfo.available_timezones()
        every = sorted(name for name in found if _NO_ZONE.fullmatch(name) is None)
    else:
        every = importlib.resources.files(tzdata).joinpath("zones").read_text().split()
    # Last wins: Europe/Berlin over a bare or a longer name of the same city.
    every.sort(key=lambda full: (full.count("/") == 1, full))
    return {full.lower(): full for full in every}, {
        full.lower().rpartition("/")[2]: full for full in every
    }


@functools.lru_cache(maxsize=1024)
def _fingerprint(name: str) -> str:
    return hashlib.blake2b(_rules(name), digest_size=8).hexdigest()


def _rules(name: str) -> bytes:
    """Return the zone's file, from where zoneinfo takes it: the system's, else the package's."""
    for folder in zoneinfo.TZPATH:
        path = Path(folder, name)
        if path.is_file():
            return path.read_bytes()
    import tzdata  # noqa: PLC0415  (most systems have the database and need no package)

    return importlib.resources.files(tzdata).joinpath("zoneinfo", *name.split("/")).read_bytes()


# ------------------------------------------------------------------------------ labels


def label(where: Zone, unix_ms: int, unit: Unit) -> str:
    """Return the local day, the local hour or the very moment as text.

    Args:
        where: whose days and hours.
        unix_ms: the moment.
        unit: ``day`` gives 2026-11-01, ``hour`` 2026-11-01T01, ``exact`` 2026-11-01T06:00:00Z,
            with .mmm if it is not whole seconds. Exact labels are of the instant, in any zone.
    """
    if unit == "exact":
        return exact(unix_ms)
    unix_s = unix_ms // 1000
    day, second = divmod(unix_s + where.offset_s(unix_s), _DAY_S)
    text = date.fromordinal(day + _EPOCH_DAY).isoformat()
    return text if unit == "day" else f"{text}T{second // _HOUR_S:02}"


def exact(unix_ms: int) -> str:
    """Return a moment as run ids write it: in UTC with Z, milliseconds only if there are some."""
    moment = datetime.fromtimestamp(unix_ms // 1000, UTC)
    fraction = f".{unix_ms % 1000:03}" if unix_ms % 1000 else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def label_unit(text: str) -> Unit:
    """Return which unit a label is of.

    Raises:
        ValueError: it is no label.
    """
    match = _LABEL.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a date; {_DATES}")
    if match[2] is None:
        return "day"
    return "hour" if match[3] is None else "exact"


def checked_unit(text: str) -> Unit:
    """Return which unit a label is of that somebody has written.

    Raises:
        ValueError: it is no label, or no date of the calendar from 1970 to 2199.
    """
    unit = label_unit(text)
    if not 1970 <= int(text[:4]) < 2200:
        raise ValueError(f"{text!r} is not a date from 1970 to 2199; {_DATES}")
    try:
        datetime.fromisoformat(text if unit != "hour" else f"{text}:00")
    except ValueError as error:
        raise ValueError(f"{text!r} is not a date: {error}; {_DATES}") from None
    return unit


def label_span(where: Zone, text: str) -> tuple[int, int] | None:
    """Return the moments [start, end) of a label in Unix ms; None if it does not exist there.

    A day has 23 or 25 hours around a change, or none at all (Apia had no 30 December 2011). An
    hour that comes twice spans both passes; if the clocks go back by more than an hour, other
    labels lie between the two, and ``label`` tells which moments are meant.

    Raises:
        ValueError: it is no label, or no date of the calendar from year 2 to 2199.
    """
    unit = label_unit(text)
    if unit == "exact":
        start_ms = _exact_ms(text)
        return start_ms, start_ms + 1
    first_s = _local_s(text)
    span_s = _DAY_S if unit == "day" else _HOUR_S
    found = [
        (max(segment.start_s, first_s - segment.offset_s),
         min(segment.end_s, first_s + span_s - segment.offset_s))
        for segment in _around(where, first_s)
    ]  # fmt: skip
    found = [(start, end) for start, end in found if start < end]
    if not found:
        return None
    return min(start for start, _ in found) * 1000, max(end for _, end in found) * 1000


def label_place(where: Zone, text: str) -> int:
    """Return in Unix ms about where a label stands that a zone leaves out: when the clock leaps.

    Raises:
        ValueError: as ``label_span``.
    """
    first_s = _local_s(text)
    before = [one for one in _around(where, first_s) if one.start_s + one.offset_s <= first_s]
    return before[-1].end_s * 1000


def _around(where: Zone, local_s: int) -> list[Segment]:
    """Return the segments of the two days before and the three after a local time."""
    at_s, end_s = local_s - 2 * _DAY_S, local_s + 3 * _DAY_S
    found: list[Segment] = []
    while at_s < end_s:
        segment = where.segment(at_s)
        found.append(segment)
        at_s = segment.end_s
    return found


def _exact_ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return round((moment - datetime.fromtimestamp(0, UTC)) / timedelta(milliseconds=1))


def _local_s(text: str) -> int:
    day = date.fromisoformat(text[:10])
    hour = int(text[11:13] or 0)
    if not 2 < day.year < 2200 or hour > 23:
        raise ValueError(f"{text!r} is not a date from year 3 to 2199 with an hour from 00 to 23")
    return (day.toordinal() - _EPOCH_DAY) * _DAY_S + hour * _HOUR_S
