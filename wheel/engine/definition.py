"""What a schedule is: its definition, what is refused in one, and the bytes in which it is kept.

The bytes have two parts: what every run's CREATED record repeats, ready to be copied, and the
settings by which runs are decided. Schedules with equal settings share one ``Settings``, so two
hundred thousand of them cost little; the rest of a definition is decoded only when asked for.
"""

import json
import struct
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from wheel.cron import compile_rule
from wheel.engine.dag import AfterRule
from wheel.engine.dates import Date
from wheel.engine.records import Backoff, Flag, Kind, Policy, Record, decode
from wheel.errors import WheeldError

NAME_BYTES_MAX: Final = 160
HANDLER_BYTES_MAX: Final = 200
META_BYTES_MAX: Final = 1024
GROUP_BYTES_MAX: Final = 200
ZONE_BYTES_MAX: Final = 64
PAYLOAD_BYTES_MAX: Final = 1 << 20
JITTER_MS_MAX: Final = 86_400_000
WINDOW_MS_MAX: Final = 366 * 86_400_000
SPAN_MS_MAX: Final = 30 * 86_400_000
TIME_MS_END: Final = 1 << 48
HORIZON_MS: Final = 7_258_118_400_000  # 2200-01-01T00:00Z: nothing is looked for from then on
CALENDAR_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999, which many write for ever
CATCH_UP_MAX: Final = 1_000
CATCH_UP_MAX_MOST: Final = 100_000
RUNS_MAX_MOST: Final = (1 << 32) - 1
NOTE_BYTES_MAX: Final = 1000
NO_RULE: Final = "-"


class ScheduleError(WheeldError):
    """A command about schedules is refused; nothing was changed."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Overlap(StrEnum):
    """What becomes of a run whose time comes while another one is active."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    ALLOW = "allow"
    CANCEL_RUNNING = "cancel_running"


class CatchUp(StrEnum):
    """What becomes of nominal times that were missed."""

    LATEST = "latest"
    ALL = "all"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Settings:
    """By what a schedule's runs are decided; shared by schedules that agree in all of it.

    Attributes:
        rule: as written, ``-`` for none.
        tz: the zone, as written.
        zone: the zone in force; another one than ``tz`` where the rule has a prefix.
        dst: ``cron`` or ``literal``.
        rel: nominal times are on the rel axis.
        jitter_ms: bound of the jitter.
        overlap: see Overlap.
        catch_up: see CatchUp.
        window_ms: how old a missed time may be to be caught up.
        catch_up_max: how many are, the newest.
        after: whom it waits for.
        after_rule: what their runs must have come to.
        date: by which dates it waits.
        dag: shown under this name.
        start_ms: no nominal time before.
        end_ms: no nominal time after.
        max_runs: how many runs in all.
    """

    rule: str = NO_RULE
    tz: str = "UTC"
    zone: str = "UTC"
    dst: str = "cron"
    rel: bool = False
    jitter_ms: int = 0
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    window_ms: int | None = None
    catch_up_max: int = CATCH_UP_MAX
    after: tuple[str, ...] = ()
    after_rule: AfterRule = AfterRule.ALL_SUCCESS
    date: Date = Date.DAY
    dag: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    max_runs: int | None = None

    @property
    def has_rule(self) -> bool:
        """Whether nominal times come of a rule, not of upstreams."""
        return self.rule != NO_RULE


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A schedule as it is set; the attributes that ``Settings`` has too mean the same.

    Attributes:
        name: its identity.
        handler: who runs it.
        payload: of every run.
        priority: 0 first.
        policy: how its jobs are leased and retried.
        expire_ms: not handed out so long after it was due; None = whenever.
        meta: travels with every job.
        group: stored with every job.
    """

    name: str
    handler: str
    rule: str = NO_RULE
    payload: bytes = b""
    tz: str = "UTC"
    dst: str = "cron"
    jitter_ms: int = 0
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    window_ms: int | None = None
    catch_up_max: int = CATCH_UP_MAX
    after: tuple[str, ...] = ()
    after_rule: AfterRule = AfterRule.ALL_SUCCESS
    date: Date = Date.DAY
    dag: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    max_runs: int | None = None
    priority: int = 128
    policy: Policy = field(default_factory=Policy)
    expire_ms: int | None = None
    meta: bytes = b""
    group: str = ""


# ------------------------------------------------------------------------------ refusals


def _refuse(code: str, what: str, value: object, reason: str, advice: str) -> ScheduleError:
    return ScheduleError(code, f"{what} {value!r} {reason}; {advice}")


def check_name(name: str) -> None:
    """Refuse what is no schedule's name.

    Raises:
        ScheduleError: SYNTAX or LIMIT.
    """
    size = len(name.encode())
    if not 1 <= size <= NAME_BYTES_MAX:
        raise _refuse(
            "LIMIT", "schedule", name[:40], f"has {size} bytes, not 1..{NAME_BYTES_MAX}",
            "shorten it",
        )  # fmt: skip
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        raise _refuse("SYNTAX", "schedule", name, "has a control character", "write printable text")


def check_note(note: str) -> None:
    """Refuse a note that is too long.

    Raises:
        ScheduleError: LIMIT.
    """
    size = len(note.encode())
    if size > NOTE_BYTES_MAX:
        raise ScheduleError(
            "LIMIT", f"the note has {size} bytes, not 0..{NOTE_BYTES_MAX}; shorten it"
        )


def _check_sizes(one: Definition) -> None:
    sizes = (
        ("handler", one.handler.encode(), 1, HANDLER_BYTES_MAX),
        ("payload", one.payload, 0, PAYLOAD_BYTES_MAX),
        ("META", one.meta, 0, META_BYTES_MAX),
        ("GROUP", one.group.encode(), 0, GROUP_BYTES_MAX),
        ("TZ", one.tz.encode(), 1, ZONE_BYTES_MAX),
        ("DAG", one.dag.encode(), 0, NAME_BYTES_MAX),
    )
    for what, value, least, most in sizes:
        if not least <= len(value) <= most:
            raise ScheduleError(
                "LIMIT", f"{what} has {len(value)} bytes, not {least}..{most}; shorten it"
            )


def _check_numbers(one: Definition) -> None:
    ranges = (
        ("PRIORITY", one.priority, 0, 255),
        ("JITTER", one.jitter_ms, 0, JITTER_MS_MAX),
        ("WINDOW", one.window_ms, 1, WINDOW_MS_MAX),
        ("MAX", one.catch_up_max, 1, CATCH_UP_MAX_MOST),
        ("START", one.start_ms, 0, HORIZON_MS - 1),
        ("END", one.end_ms, 0, CALENDAR_MS_MAX),
        ("MAXRUNS", one.max_runs, 1, RUNS_MAX_MOST),
        ("EXPIRE", one.expire_ms, 1, SPAN_MS_MAX),
    )
    for what, value, least, most in ranges:
        if value is not None and not least <= value <= most:
            raise ScheduleError(
                "LIMIT", f"{what} {value} is not in {least}..{most}; write a number from there"
            )
    if one.start_ms is not None and one.end_ms is not None and one.end_ms < one.start_ms:
        raise ScheduleError(
            "SYNTAX", f"END {one.end_ms} is before START {one.start_ms}; write a later END"
        )


def check(one: Definition) -> None:
    """Refuse what no schedule may be; whether its rule ever fires is asked later.

    Raises:
        ScheduleError: SYNTAX or LIMIT.
        CronSyntaxError: the rule or the zone.
    """
    check_name(one.name)
    _check_sizes(one)
    _check_numbers(one)
    if one.rule == NO_RULE and not one.after:
        raise _refuse(
            "SYNTAX", "rule", one.rule, "fires by nothing: the schedule waits for nobody",
            'write a rule such as "0 9 * * 1", or AFTER n name...',
        )  # fmt: skip
    for upstream in one.after:
        check_name(upstream)
    settings_of(one)


def settings_of(one: Definition) -> Settings:
    """Return the settings of a definition.

    Raises:
        CronSyntaxError: the rule or the zone.
    """
    rule = compile_rule(one.rule, tz=one.tz, name=one.name, dst=one.dst)
    given = {name: getattr(one, name) for name in _SHARED}
    return Settings(zone=rule.tz, rel=rule.axis == "rel", **given)


# ------------------------------------------------------------------------------ bytes

_FORMAT: Final = 1
_HEAD: Final = struct.Struct("<BIqqqBIIIHH")
_FIXED: Final = struct.Struct("<IIqBB")
_FIXED_EXPIRE: Final = struct.Struct("<IIqBBq")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")

_CREATED: Final = int(Kind.CREATED)
_REL, _EXPIRE_REL = int(Flag.REL), int(Flag.EXPIRE_REL)
_M_DUE, _M_FLAGS, _M_PRIORITY, _M_EXPIRE = 1 << 1, 1 << 3, 1 << 6, 1 << 13
_M_PAYLOAD, _M_META, _M_GROUP, _M_OWNER = 1 << 15, 1 << 18, 1 << 19, 1 << 20
_M_NAME, _M_BLOB = 1 << 22, 1 << 23

_SHARED: Final = tuple(one.name for one in fields(Settings) if one.name not in {"zone", "rel"})
_DEFAULTS: Final = {one.name: one.default for one in fields(Settings)}
_ENUMS: Final = {
    "overlap": Overlap,
    "catch_up": CatchUp,
    "after_rule": AfterRule,
    "date": Date,
}


class Template(NamedTuple):
    """What all runs of a schedule have in common, as a CREATED record has it.

    Attributes:
        mask: which fields it has.
        priority: of the jobs.
        expire_ms: from a run's due time; 0 = never.
        prefix: fields before OWNER, encoded.
        suffix: fields behind OWNER, encoded.
    """

    mask: int
    priority: int
    expire_ms: int
    prefix: bytes
    suffix: bytes

    @property
    def handler(self) -> str:
        """The handler's name: the suffix begins with it."""
        (size,) = _U16.unpack_from(self.suffix)
        return self.suffix[_U16.size : _U16.size + size].decode()

    def created(self, due_ms: int, flags: int, owner: bytes) -> bytes:
        """Return the CREATED record of one run."""
        size = len(self.prefix) + len(owner) + len(self.suffix) + 2
        if not self.expire_ms:
            head = _FIXED.pack(
                _FIXED.size + size, _CREATED | self.mask << 8, due_ms, flags, self.priority
            )
        else:
            if flags & _REL:
                flags |= _EXPIRE_REL
            head = _FIXED_EXPIRE.pack(
                _FIXED_EXPIRE.size + size,
                _CREATED | (self.mask | _M_EXPIRE) << 8,
                due_ms,
                flags,
                self.priority,
                min(due_ms + self.expire_ms, TIME_MS_END - 1),
            )
        return b"".join((head, self.prefix, _U16.pack(len(owner)), owner, self.suffix))


def _template(one: Definition) -> Template:
    mask = _M_DUE | _M_FLAGS | _M_PRIORITY | _M_OWNER | _M_NAME
    prefix: list[bytes] = []
    group, handler = one.group.encode(), one.handler.encode()
    if one.payload:
        mask |= _M_PAYLOAD
        prefix += (_U32.pack(len(one.payload)), one.payload)
    if one.meta:
        mask |= _M_META
        prefix += (_U16.pack(len(one.meta)), one.meta)
    if group:
        mask |= _M_GROUP
        prefix += (bytes((len(group),)), group)
    suffix = [_U16.pack(len(handler)), handler]
    if one.policy != Policy():
        blob = one.policy.blob()
        mask |= _M_BLOB
        suffix += (_U32.pack(len(blob)), blob)
    return Template(mask, one.priority, one.expire_ms or 0, b"".join(prefix), b"".join(suffix))


def _settings_bytes(settings: Settings) -> bytes:
    said = {
        name: value
        for name, default in _DEFAULTS.items()
        if (value := getattr(settings, name)) != default
    }
    if settings.zone == settings.tz:
        said.pop("zone", None)
    return json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


class Kept(NamedTuple):
    """A definition as it is kept, in parts.

    Attributes:
        version: 1, 2, ... with every change.
        created_ms: wall.
        changed_ms: wall, of this version.
        since_ms: from when its rule, zone and date are in force, on its axis.
        actor: who changed it last.
        template: of its runs.
        settings: encoded.
    """

    version: int
    created_ms: int
    changed_ms: int
    since_ms: int
    actor: str
    template: Template
    settings: bytes

    def same(self, other: "Kept") -> bool:
        """Return whether both say the same, whoever said it when."""
        return self.template == other.template and self.settings == other.settings

    def blob(self) -> bytes:
        """Return its bytes."""
        actor = self.actor.encode()
        job = self.template
        head = _HEAD.pack(
            _FORMAT,
            self.version,
            self.created_ms,
            self.changed_ms,
            self.since_ms,
            job.priority,
            job.expire_ms,
            job.mask,
            len(job.prefix),
            len(job.suffix),
            len(actor),
        )
        return b"".join((head, job.prefix, job.suffix, actor, self.settings))


def keep(one: Definition, settings: Settings, *, version: int, now_ms: int, actor: str) -> Kept:
    """Return a new definition as it is to be kept."""
    return Kept(version, now_ms, now_ms, 0, actor[:63], _template(one), _settings_bytes(settings))


def read_template(blob: bytes) -> Template:
    """Return what the runs of a kept definition have in common."""
    head = _HEAD.unpack_from(blob)
    at, prefix, suffix = _HEAD.size, head[8], head[9]
    middle = at + prefix
    return Template(head[7], head[5], head[6], blob[at:middle], blob[middle : middle + suffix])


def read_kept(blob: bytes) -> Kept:
    """Return a kept definition in parts.

    Raises:
        ValueError: of a format that this build does not know.
    """
    head = _HEAD.unpack_from(blob)
    if head[0] != _FORMAT:
        raise ValueError(f"a schedule of format {head[0]}, this build reads format {_FORMAT}")
    end = _HEAD.size + head[8] + head[9]
    actor = blob[end : end + head[10]].decode()
    return Kept(
        head[1], head[2], head[3], head[4], actor, read_template(blob), blob[end + head[10] :]
    )


class SettingsPool:
    """All settings in use, each once."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[bytes, Settings] = WeakValueDictionary()

    def get(self, data: bytes) -> Settings:
        """Return the settings that these bytes say."""
        found = self._known.get(data)
        if found is None:
            found = _read_settings(data)
            self._known[data] = found
        return found


def _read_settings(data: bytes) -> Settings:
    said: dict[str, object] = json.loads(data)
    for name, kind in _ENUMS.items():
        if name in said:
            said[name] = kind(str(said[name]))
    said.setdefault("zone", said.get("tz", "UTC"))
    said["after"] = tuple(json.loads(data).get("after", ()))
    return Settings(**said)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


_T = TypeVar("_T")


def read_definition(name: str, kept: Kept, settings: Settings) -> Definition:
    """Return a kept definition as it was set."""
    [job] = decode(kept.template.created(0, 0, b"-"))
    shared = {field_name: getattr(settings, field_name) for field_name in _SHARED}
    return Definition(
        name=name,
        handler=job.name.decode(),
        payload=job.payload,
        priority=kept.template.priority,
        policy=_read_policy(job),
        expire_ms=kept.template.expire_ms or None,
        meta=job.meta,
        group=job.group.decode(),
        **shared,
    )


_POLICY: Final = struct.Struct("<IIIIHHB3xB")


def _read_policy(job: Record) -> Policy:
    if not job.blob:
        return Policy()
    base_ms, max_ms, lease_ms, timeout_ms, retries, lost, kind, mask = _POLICY.unpack(job.blob)

    def given(bit: int, value: _T) -> _T | None:
        return value if mask >> bit & 1 else None

    return Policy(
        retries=given(0, retries),
        lost=given(1, lost),
        backoff=given(2, (Backoff(kind), base_ms, max_ms)),
        lease_ms=given(3, lease_ms),
        timeout_ms=given(4, timeout_ms),
    )
