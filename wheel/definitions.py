"""What a schedule is made of, and CRON SET as a list of words. Pure functions; no I/O, no clock.

The checks here are those that need no calendar: names, ranges, words. The rule itself, its zone,
and who waits for whom are judged by the server, which says where in the rule it stumbled.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypedDict, cast, get_args

from wheel.encode import PAYLOAD_BYTES_MAX, handler_name, option_arguments, payload_bytes
from wheel.errors import InvalidRequest, LimitError
from wheel.values import Backoff, Duration, Options, Payload, When, duration_ms, when_wire

Overlap: TypeAlias = Literal["skip", "queue_one", "queue_all", "allow", "cancel_running"]
CatchUp: TypeAlias = Literal["latest", "all", "skip"]
AfterRule: TypeAlias = Literal["all_success", "all_done"]
DateMode: TypeAlias = Literal["day", "hour", "exact"]
DstRule: TypeAlias = Literal["cron", "literal"]

OVERLAPS: Final = get_args(Overlap)
CATCH_UPS: Final = get_args(CatchUp)
AFTER_RULES: Final = get_args(AfterRule)
DATE_MODES: Final = get_args(DateMode)
DST_RULES: Final = get_args(DstRule)

NAME_BYTES_MAX: Final = 160
RULE_BYTES_MAX: Final = 256
UPSTREAMS_MAX: Final = 256
NUMBER_MAX: Final = (1 << 53) - 1  # what every JSON reader can hold
NO_RULE: Final = "-"


class TaskOptions(TypedDict, total=False):
    """Options of a schedule, but for whom it waits for; what is left out, the server decides.

    When: ``tz`` is the zone that the rule is read in, UTC by default. ``jitter`` moves each run by
    up to so much, the same at every restart. ``start``, ``end``, ``max_runs`` bound it. ``dst``:
    ``cron`` (default) or ``literal``, what happens where clocks change.

    Which: ``overlap`` says what happens when a run is due while another is active: ``skip``
    (default), ``queue_one``, ``queue_all``, ``allow``, ``cancel_running``. ``catch_up`` says what
    becomes of times that passed while the server was down or the schedule paused: ``latest``
    (default), ``all``, ``skip``; no older than ``catch_up_window``, at most ``catch_up_max``.

    For whom: ``date`` says which of a run's times those that wait for it compare: ``day``
    (default), ``hour`` or ``exact``.

    ``if_version`` refuses the call if the schedule has another version; 0 = if it is there.

    The jobs: ``priority``, ``retries``, ``lost``, ``backoff``, ``lease``, ``timeout``, ``meta`` and
    ``group`` as in ``Options``; ``expire`` is a time from when a run is due.
    """

    tz: str | None
    jitter: Duration | None
    overlap: Overlap | None
    catch_up: CatchUp | None
    catch_up_window: Duration | None
    catch_up_max: int | None
    date: DateMode | None
    start: When | None
    end: When | None
    max_runs: int | None
    dst: DstRule | None
    if_version: int | None
    priority: int | None
    retries: int | None
    lost: int | None
    backoff: Backoff | None
    lease: Duration | None
    timeout: Duration | None
    expire: Duration | None
    meta: bytes | str | None
    group: str | None


class CronOptions(TaskOptions, total=False):
    """Options of a schedule: those of ``TaskOptions``, and whom it waits for.

    ``after`` names the schedules whose runs of the same date it waits for. ``after_rule`` says
    whether they must succeed: ``all_success`` (default), or ``all_done``. ``dag`` is a name to show
    them under.
    """

    after: Iterable[str] | str | None
    after_rule: AfterRule | None
    dag: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A schedule as it shall be.

    Attributes:
        name: its identity: the same name again changes it, and never makes a second one.
        rule: cron text, ``@macro``, ``@every 90m``, ``@at ISO``; ``-`` for none, with ``after``.
        handler: which handler runs it.
        payload: of every run.
        options: see ``CronOptions``.
    """

    name: str
    rule: str
    handler: str
    payload: Payload = None
    options: CronOptions = field(default_factory=CronOptions)

    @property
    def after(self) -> tuple[str, ...]:
        """The schedules that it waits for."""
        return upstreams(self.options.get("after"))

    def words(
        self, *, dry: bool = False, payload_max: int = PAYLOAD_BYTES_MAX
    ) -> list[bytes | str | int]:
        """Return CRON SET with all its arguments.

        Args:
            dry: check and compare only.
            payload_max: bytes of a payload.

        Raises:
            InvalidRequest: something that the server would refuse as well; the message names the
                schedule.
        """
        try:
            words: list[bytes | str | int] = [
                b"CRON",
                b"SET",
                schedule_name(self.name),
                rule_bytes(self.rule),
                handler_name(self.handler),
                payload_bytes(self.payload, payload_max),
                *_arguments(self.options),
            ]
            self._check_rule()
        except InvalidRequest as error:
            error.add_note(f"schedule {self.name!r}")
            raise
        return [*words, b"DRY"] if dry else words

    def _check_rule(self) -> None:
        if self.rule == NO_RULE and not self.after:
            raise InvalidRequest(
                f"schedule {self.name!r} has no rule and nothing to wait for: write a rule such as "
                "'0 9 * * 1', or after=[...]"
            )
        if self.name in self.after:
            raise InvalidRequest(f"schedule {self.name!r} would wait for itself")


def schedule_name(name: str) -> bytes:
    """Return a schedule's name in UTF-8.

    Raises:
        InvalidRequest: not text of 1 to 160 bytes without control characters.
    """
    return _plain_text("schedule name", name, NAME_BYTES_MAX)


def rule_bytes(rule: str) -> bytes:
    """Return a rule as it travels.

    Raises:
        InvalidRequest: empty, over 256 bytes, or with control characters other than tabs.
    """
    return _plain_text("rule", rule, RULE_BYTES_MAX, allowed="\t")


def upstreams(after: Iterable[str] | str | None) -> tuple[str, ...]:
    """Return the names that a schedule waits for, each once, in order."""
    if after is None:
        return ()
    return tuple(dict.fromkeys([after] if isinstance(after, str) else after))


def _plain_text(what: str, value: object, bytes_max: int, *, allowed: str = "") -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest(f"{what} {value!r} is not a text")
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} {value!r} is not a text that UTF-8 can write") from None
    if not 1 <= len(data) <= bytes_max:
        raise LimitError(f"{what} {value!r} has {len(data)} bytes; 1 to {bytes_max} are allowed")
    if any(
        (character < " " or "\x7f" <= character <= "\x9f") and character not in allowed
        for character in value
    ):
        raise InvalidRequest(f"{what} {value!r} has a control character")
    return data


_JOB_NAMES: Final = ("priority", "retries", "lost", "backoff", "lease", "timeout", "meta", "group")


def _arguments(options: CronOptions) -> list[bytes]:
    arguments: list[bytes] = []
    given = cast("Mapping[str, object]", options)
    for name, writer in _WRITERS:
        value = given.get(name)
        if value is not None:
            arguments += writer(value)
    if options.get("catch_up") is None and (
        options.get("catch_up_window") is not None or options.get("catch_up_max") is not None
    ):
        raise InvalidRequest(
            "catch_up_window and catch_up_max bound a catch-up: say which, catch_up='all'"
        )
    for name in given:
        if name not in _NAMES:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(sorted(_NAMES))}")
    jobs = {name: given[name] for name in _JOB_NAMES if given.get(name) is not None}
    expire = options.get("expire")
    return [
        *arguments,
        *option_arguments(cast("Options", jobs)),
        *([] if expire is None else [b"EXPIRE", b"+%d" % duration_ms(expire)]),
    ]


def _zone(value: object) -> list[bytes]:
    return [b"TZ", _plain_text("tz", value, NAME_BYTES_MAX)]


def _dag(value: object) -> list[bytes]:
    return [b"DAG", _plain_text("dag", value, NAME_BYTES_MAX)]


def _after(value: object) -> list[bytes]:
    names = upstreams(cast("Iterable[str] | str", value))
    if len(names) > UPSTREAMS_MAX:
        raise LimitError(f"after has {len(names)} names; at most {UPSTREAMS_MAX} are allowed")
    if not names:
        return []
    return [b"AFTER", b"%d" % len(names), *(schedule_name(name) for name in names)]


def _length(word: bytes) -> Callable[[object], list[bytes]]:
    def write(value: object) -> list[bytes]:
        return [word, b"%d" % duration_ms(cast("Duration", value))]

    return write


def _moment(word: bytes) -> Callable[[object], list[bytes]]:
    def write(value: object) -> list[bytes]:
        return [word, when_wire(cast("When", value))]

    return write


def _one_of(name: str, word: bytes, allowed: tuple[str, ...]) -> Callable[[object], list[bytes]]:
    def write(value: object) -> list[bytes]:
        if value not in allowed:
            raise InvalidRequest(f"{name} {value!r} is not one of {', '.join(allowed)}")
        return [word, str(value).encode()]

    return write


def _number(name: str, word: bytes, least: int) -> Callable[[object], list[bytes]]:
    def write(value: object) -> list[bytes]:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not least <= value <= NUMBER_MAX
        ):
            raise InvalidRequest(f"{name} {value!r} is not a number from {least} on")
        return [word, b"%d" % value]

    return write


# In the order of PROTOCOL.md: WINDOW and MAX belong to CATCHUP and stand behind it.
_WRITERS: Final[tuple[tuple[str, Callable[[object], list[bytes]]], ...]] = (
    ("tz", _zone),
    ("jitter", _length(b"JITTER")),
    ("overlap", _one_of("overlap", b"OVERLAP", OVERLAPS)),
    ("catch_up", _one_of("catch_up", b"CATCHUP", CATCH_UPS)),
    ("catch_up_window", _length(b"WINDOW")),
    ("catch_up_max", _number("catch_up_max", b"MAX", 1)),
    ("after", _after),
    ("after_rule", _one_of("after_rule", b"AFTERRULE", AFTER_RULES)),
    ("date", _one_of("date", b"DATE", DATE_MODES)),
    ("dag", _dag),
    ("start", _moment(b"START")),
    ("end", _moment(b"END")),
    ("max_runs", _number("max_runs", b"MAXRUNS", 1)),
    ("dst", _one_of("dst", b"DST", DST_RULES)),
    ("if_version", _number("if_version", b"IFVERSION", 0)),
)
_NAMES: Final = {name for name, _ in _WRITERS} | {*_JOB_NAMES, "expire"}
