r"""Log lines: structlog events on stderr, JSON for programs and plain lines for a terminal.

An event is a constant ``noun_verb_past``; everything that varies is a field with its unit in its
name. Two rules hold for every line, whoever writes it:

1. No control character reaches the output: names come from clients, and a line end or an escape
   sequence in one would forge lines or take over the reader's terminal. They are written ``\xHH``.
2. What belongs to users (payloads, results, tokens) is never written, only how long it is.
"""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Final, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from server.clock import Clock, iso_utc

# C0, DEL, C1, line and paragraph separator, and the marks that turn text around.
_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
WITHHELD: Final = frozenset(
    {"payload", "result", "meta", "progress", "blob", "argv", "token", "secret", "password"}
)
FIELD_CHARS_MAX: Final = 4096
_COUNTS: Final = frozenset({"records", "jobs", "lsn", "segments"})  # shown as 1 234 567

# How the few events of a start and a stop read on a terminal: (first column, text).
_HUMAN: Final[dict[str, tuple[str, str]]] = {
    "server_started": ("", "wheeld {version}  pid {pid}  {loop}  data {data}  fsync {fsync}"),
    "replay_progressed": ("replay", "{records} records, {percent} %"),
    "replay_finished": (
        "replay",
        "{segments} segments, {records} records -> {jobs} jobs  100 %  {took_s} s",
    ),
    "server_ready": ("ready", "wire {listen}  term {term}  lsn {lsn}  {took_s} s"),
    "tokens_missing": ("note", "no access tokens: {hint}"),
    "server_stopping": ("stopping", "{reason}"),
    "server_stopped": ("stopped", "all up to lsn {lsn} is on the disk"),
    "start_refused": ("refused", "{error}"),
}


def escape(text: str) -> str:
    r"""Return text with every control character written as ``\xHH`` or ``\uHHHH``."""
    return _CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _clean(value: object) -> object:
    """Return a value that JSON can hold, escaped and cut."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return {escape(str(key)): _clean(item) for key, item in pairs}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(item) for item in cast("Iterable[object]", value)]
    if isinstance(value, bytes | bytearray):
        return escape(bytes(value)[:FIELD_CHARS_MAX].decode("utf-8", "backslashreplace"))
    return escape(str(value)[:FIELD_CHARS_MAX])


def _withhold(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace what is never logged by its size, and escape the rest."""
    cleaned: dict[str, object] = {}
    for name, value in event.items():
        if name in WITHHELD:
            cleaned[f"{name}_withheld_size"] = len(value) if isinstance(value, Sized) else None
        else:
            cleaned[escape(name)] = _clean(value)
    return cleaned


def _stamp(clock: Clock) -> Callable[[WrappedLogger, str, EventDict], EventDict]:
    """Return a processor that adds the time and the level."""

    def stamp(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        name = event.pop("event", "")
        return {"time": iso_utc(clock.wall_ms()), "level": method, "event": name, **event}

    return stamp


def _render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return json.dumps(event, ensure_ascii=False, separators=(", ", ": "))


def _render_human(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Return a line for a terminal: the start-up's own form, else time, event and fields."""
    fields = {name: _shown(name, value) for name, value in event.items()}
    name = str(event.get("event"))
    if (form := _HUMAN.get(name)) is not None:
        column, text = form
        try:
            line = text.format(**fields)
        except KeyError:
            pass
        else:
            hint = (
                f"\n            {fields['hint']}"
                if name == "start_refused" and "hint" in fields
                else ""
            )
            return f"  {column:<9} {line}{hint}" if column else line
    rest = "  ".join(
        f"{key}={value}" for key, value in fields.items() if key not in {"time", "level", "event"}
    )
    return f"  {fields['level']:<9} {fields['time']}  {name}  {rest}".rstrip()


def _shown(name: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and name in _COUNTS:
        return f"{value:_}".replace("_", " ")
    return str(value)


class _Lines:
    """Writes lines to a stream; a stream that is gone never stops the server."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        """Write one line at once."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg


def make_logger(
    clock: Clock, stream: TextIO | None = None, *, human: bool | None = None
) -> FilteringBoundLogger:
    """Return a logger that writes to a stream.

    Args:
        clock: stamps the lines.
        stream: stderr by default.
        human: plain lines instead of JSON; by default when the stream is a terminal.
    """
    target = sys.stderr if stream is None else stream
    plain = target.isatty() if human is None else human
    logger: FilteringBoundLogger = structlog.wrap_logger(
        _Lines(target),
        processors=[_stamp(clock), _withhold, _render_human if plain else _render_json],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        cache_logger_on_first_use=True,
    )
    return logger
