"""CRON SET's arguments, read into a ``Spec``: names, ranges, words, times; no calendar, no state.

What a rule means, whether its zone exists, whom a schedule may wait for, and whether its version
is the expected one is the scheduler's to judge.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from server.answers import RefusedError, show
from server.words import SPAN_MS_MAX, Moment, Words

NAME_BYTES_MAX: Final = 160
RULE_BYTES_MAX: Final = 256
ZONE_BYTES_MAX: Final = 64
UPSTREAMS_MAX: Final = 256
META_BYTES_MAX: Final = 1024
RETRIES_MAX: Final = 1_000
PRIORITY_MAX: Final = 255
PRIORITY: Final = 128
JITTER_MS_MAX: Final = 86_400_000
WINDOW_MS_MAX: Final = 366 * 86_400_000
CATCH_UP_MAX: Final = 1_000
CATCH_UP_MAX_MOST: Final = 100_000
BACKOFF_MAX_MS: Final = 3_600_000

NO_RULE: Final = "-"
OVERLAPS: Final = ("skip", "queue_one", "queue_all", "allow", "cancel_running")
CATCH_UPS: Final = ("latest", "all", "skip")
AFTER_RULES: Final = ("all_success", "all_done")
DATE_MODES: Final = ("day", "hour", "exact")
DST_RULES: Final = ("cron", "literal")
BACKOFF_KINDS: Final = ("fixed", "linear", "exp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """BACKOFF as it was given: kind, first wait, cap."""

    kind: str
    base_ms: int
    max_ms: int


@dataclass(slots=True, kw_only=True)
class Spec:
    """A schedule as CRON SET asks for it; None = not said.

    Attributes:
        name: its identity.
        rule: as written, ``-`` for none.
        handler: who runs it.
        payload: of every run.
        tz: the zone, as written.
        jitter_ms: bound of the jitter.
        overlap: of OVERLAPS.
        catch_up: of CATCH_UPS.
        window_ms: how old a missed time may be to be caught up.
        catch_up_max: how many.
        after: whom it waits for.
        after_rule: of AFTER_RULES.
        date: of DATE_MODES.
        dag: shown under this name.
        start: no nominal time before.
        end: no nominal time after.
        max_runs: how many runs in all.
        dst: of DST_RULES.
        if_version: the version that it must have; 0 = must not be there.
        dry: check and compare only.
        priority: 0 first.
        retries: failures allowed.
        lost: lost leases allowed.
        backoff: between attempts.
        lease_ms: how long a silent worker counts as alive.
        timeout_ms: how long a run may last; 0 = for ever.
        expire_ms: not handed out so long after it was due.
        meta: travels with every job.
        group: stored with every job.
    """

    name: str
    rule: str
    handler: str
    payload: bytes
    tz: str = "UTC"
    jitter_ms: int = 0
    overlap: str = "skip"
    catch_up: str = "latest"
    window_ms: int | None = None
    catch_up_max: int = CATCH_UP_MAX
    after: tuple[str, ...] = ()
    after_rule: str = "all_success"
    date: str = "day"
    dag: str = ""
    start: Moment | None = None
    end: Moment | None = None
    max_runs: int | None = None
    dst: str = "cron"
    if_version: int | None = None
    dry: bool = False
    priority: int = PRIORITY
    retries: int | None = None
    lost: int | None = None
    backoff: Retrying | None = None
    lease_ms: int | None = None
    timeout_ms: int | None = None
    expire_ms: int | None = None
    meta: bytes = b""
    group: str = ""


def read_schedule_name(words: Words, what: str = "schedule") -> str:
    """Return the next argument as a schedule's name.

    Raises:
        RefusedError: not 1 to 160 bytes of UTF-8 without control characters.
    """
    return words.text(what, NAME_BYTES_MAX)


def read_rule(words: Words) -> str:
    """Return the next argument as a rule, to be judged by who knows the calendar.

    Raises:
        RefusedError: not 1 to 256 bytes of UTF-8 without control characters other than tabs.
    """
    return words.text("rule", RULE_BYTES_MAX, allowed="\t")


def read_spec(words: Words, payload_bytes_max: int) -> Spec:
    """Return what CRON SET's arguments say.

    Raises:
        RefusedError: something is missing, malformed or out of bounds.
    """
    spec = Spec(
        name=read_schedule_name(words),
        rule=read_rule(words),
        handler=read_handler(words),
        payload=read_payload(words, payload_bytes_max),
    )
    while words:
        SET_OPTIONS[words.option(tuple(SET_OPTIONS))](words, spec)
    if spec.rule == NO_RULE and not spec.after:
        raise RefusedError(
            "SYNTAX",
            f'schedule "{spec.name}" has the rule "-" and waits for nobody; write a rule such as '
            '"0 9 * * 1", or AFTER n name...',
        )
    return spec


def read_handler(words: Words) -> str:
    """Return the next argument as a handler's name.

    Raises:
        RefusedError: it is none.
    """
    name = words.text("handler")
    if "," in name or "*" in name or name != name.strip(" "):
        raise RefusedError(
            "SYNTAX",
            f'handler "{show(name.encode())}" has a comma, a star or a blank at an end; leave '
            "them out",
        )
    return name


def read_payload(words: Words, bytes_max: int) -> bytes:
    """Return the next argument as a payload.

    Raises:
        RefusedError: it is too large.
    """
    payload = words.raw("payload")
    if len(payload) > bytes_max:
        raise RefusedError(
            "LIMIT",
            f"the payload has {len(payload)} bytes, the limit is {bytes_max}; store it elsewhere "
            "and send its name",
        )
    return payload


def _catch_up(words: Words, spec: Spec) -> None:
    """CATCHUP policy [WINDOW ms] [MAX n]."""
    spec.catch_up = words.choice("CATCHUP", CATCH_UPS)
    while words.peek() in {"WINDOW", "MAX"}:
        if words.option(("WINDOW", "MAX")) == "WINDOW":
            spec.window_ms = words.number("WINDOW", 1, WINDOW_MS_MAX)
        else:
            spec.catch_up_max = words.number("MAX", 1, CATCH_UP_MAX_MOST)


def _after(words: Words, spec: Spec) -> None:
    """AFTER n name [name ...]."""
    count = words.number("AFTER", 1, UPSTREAMS_MAX)
    names = tuple(read_schedule_name(words, f"upstream {k + 1} of {count}") for k in range(count))
    if len(set(names)) != count:
        twice = next(name for name in names if names.count(name) > 1)
        raise RefusedError("SYNTAX", f'AFTER names "{twice}" twice; write each once')
    spec.after = names


def _backoff(words: Words, spec: Spec) -> None:
    """BACKOFF kind base [max]."""
    kind = words.choice("BACKOFF", BACKOFF_KINDS)
    base_ms = words.number("BACKOFF base", 0, SPAN_MS_MAX)
    max_ms = max(base_ms, BACKOFF_MAX_MS)
    if words.peek().isdigit():
        max_ms = words.number("BACKOFF max", base_ms, SPAN_MS_MAX)
    spec.backoff = Retrying(kind=kind, base_ms=base_ms, max_ms=max_ms)


def _expire(words: Words, spec: Spec) -> None:
    """EXPIRE +N: from when a run is due."""
    given = words.peek().lower()
    moment = words.moment("EXPIRE")
    if not moment.from_now or not given.startswith("+"):
        raise RefusedError(
            "SYNTAX",
            f'EXPIRE "{show(given.encode())}" is a moment, and a schedule has many runs; write a '
            "time from when a run is due, such as +2h",
        )
    if not 1 <= moment.ms <= SPAN_MS_MAX:
        raise RefusedError("LIMIT", f"EXPIRE {given} is outside +1..+30d; write such a time")
    spec.expire_ms = moment.ms


def _meta(words: Words, spec: Spec) -> None:
    data = words.raw("META")
    if not 1 <= len(data) <= META_BYTES_MAX:
        raise RefusedError(
            "LIMIT", f"META has {len(data)} bytes, not 1..{META_BYTES_MAX}; shorten it"
        )
    spec.meta = data


def _set(name: str, read: Callable[[Words], object]) -> Callable[[Words, Spec], None]:
    """Return a reader of one option whose value goes into one field."""

    def option(words: Words, spec: Spec) -> None:
        setattr(spec, name, read(words))

    return option


# Who reads the value of each option; in the order of PROTOCOL.md.
SET_OPTIONS: Final[dict[str, Callable[[Words, Spec], None]]] = {
    "TZ": _set("tz", lambda words: words.text("TZ", ZONE_BYTES_MAX)),
    "JITTER": _set("jitter_ms", lambda words: words.number("JITTER", 0, JITTER_MS_MAX)),
    "OVERLAP": _set("overlap", lambda words: words.choice("OVERLAP", OVERLAPS)),
    "CATCHUP": _catch_up,
    "AFTER": _after,
    "AFTERRULE": _set("after_rule", lambda words: words.choice("AFTERRULE", AFTER_RULES)),
    "DATE": _set("date", lambda words: words.choice("DATE", DATE_MODES)),
    "DAG": _set("dag", lambda words: words.text("DAG", NAME_BYTES_MAX)),
    "START": _set("start", lambda words: words.moment("START")),
    "END": _set("end", lambda words: words.moment("END")),
    "MAXRUNS": _set("max_runs", lambda words: words.number("MAXRUNS", 1)),
    "DST": _set("dst", lambda words: words.choice("DST", DST_RULES)),
    "IFVERSION": _set("if_version", lambda words: words.number("IFVERSION")),
    "DRY": _set("dry", lambda _words: True),
    "PRIORITY": _set("priority", lambda words: words.number("PRIORITY", 0, PRIORITY_MAX)),
    "RETRIES": _set("retries", lambda words: words.number("RETRIES", 0, RETRIES_MAX)),
    "LOST": _set("lost", lambda words: words.number("LOST", 0, RETRIES_MAX)),
    "BACKOFF": _backoff,
    "LEASE": _set("lease_ms", lambda words: words.number("LEASE", 1, SPAN_MS_MAX)),
    "TIMEOUT": _set("timeout_ms", lambda words: words.number("TIMEOUT", 0, SPAN_MS_MAX)),
    "EXPIRE": _expire,
    "META": _meta,
    "GROUP": _set("group", lambda words: words.text("GROUP")),
}
