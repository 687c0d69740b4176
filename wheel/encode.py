"""A SCHEDULE call as bytes, and the checks that need no server. Pure functions.

The command is one ``%`` template instead of a list of arguments: ``schedule_many`` spends most of
its time here.
"""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, cast

from wheel.errors import InvalidRequest, LimitError, PayloadTooLarge
from wheel.values import ON_CONFLICT, Backoff, Options, When, duration_ms, when_wire

NAME_BYTES_MAX: Final = 200
META_BYTES_MAX: Final = 1024
TOKEN_BYTES_MAX: Final = 64
COUNT_MAX: Final = 65_535
PRIORITY_MAX: Final = 255
PAYLOAD_BYTES_MAX: Final = 65_536  # the server's default limit

_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_SCHEDULE: Final = (
    b"*%d\r\n$8\r\nSCHEDULE\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n$4\r\nONCE\r\n$%d\r\n%b\r\n%b"
)
_FIXED_ARGUMENTS: Final = 6  # SCHEDULE handler when payload ONCE token


def schedule_command(
    handler: str,
    when: bytes,
    payload: bytes,
    token: bytes,
    options: Options,
) -> bytes:
    """Return SCHEDULE as a RESP array.

    Args:
        handler: its name.
        when: as ``when_wire`` wrote it.
        payload: as ``payload_bytes`` wrote it.
        token: for ONCE, unless the options bring their own.
        options: the call's options.

    Raises:
        InvalidRequest: a name or an option that the protocol does not allow.
    """
    extra: list[bytes] = []
    if options:
        once = options.get("once")
        if once is not None:
            token = once_token(once)
        extra = option_arguments(options)
    return _SCHEDULE % (
        _FIXED_ARGUMENTS + len(extra),
        handler_argument(handler),
        len(when),
        when,
        len(payload),
        payload,
        len(token),
        token,
        b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in extra]) if extra else b"",
    )


def payload_bytes(payload: object, bytes_max: int) -> bytes:
    """Return a payload as it travels: bytes as they are, a mapping as a JSON object.

    Raises:
        InvalidRequest: not a mapping or bytes, or a value that JSON has no form for.
        PayloadTooLarge: over ``bytes_max``.
    """
    if payload is None:
        return b"{}"
    if isinstance(payload, bytes):
        data = payload
    elif isinstance(payload, dict | Mapping):  # dict first: a Mapping is dearer to recognise
        data = _json_bytes(cast("Mapping[str, object]", payload))
    else:
        raise InvalidRequest(
            f"a payload is a mapping or bytes, not {type(payload).__name__}; "
            "write {'name': value}: its entries become the handler's arguments"
        )
    if len(data) > bytes_max:
        raise PayloadTooLarge(
            f"the payload has {len(data)} bytes, the limit is {bytes_max}: "
            "store it elsewhere and send its key"
        )
    return data


def _json_bytes(payload: Mapping[str, object]) -> bytes:
    try:
        return _encode(payload if isinstance(payload, dict) else dict(payload)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the payload is not JSON: {error}") from error


@lru_cache(maxsize=1024)
def handler_argument(handler: str) -> bytes:
    """Return a handler's name as a bulk string.

    Raises:
        InvalidRequest: not a name as the protocol wants it.
    """
    data = handler_name(handler)
    return b"$%d\r\n%b\r\n" % (len(data), data)


def handler_name(handler: str) -> bytes:
    """Return a handler's name in UTF-8.

    Raises:
        InvalidRequest: not a name as the protocol wants it.
    """
    data = name_bytes("handler", handler)
    if "," in handler or "*" in handler or handler != handler.strip():
        raise InvalidRequest(
            f"handler {handler!r}: a handler's name has no ',' or '*' and no blank at either end"
        )
    return data


def name_bytes(what: str, name: str) -> bytes:
    """Return a name in UTF-8.

    Raises:
        InvalidRequest: not text of 1 to 200 bytes without control characters.
    """
    try:
        data = name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidRequest(f"{what} {name!r} is not a text that UTF-8 can write") from None
    if not 1 <= len(data) <= NAME_BYTES_MAX:
        raise LimitError(
            f"{what} {name!r} has {len(data)} bytes; 1 to {NAME_BYTES_MAX} are allowed"
        )
    if any(character < " " or character == "\x7f" for character in name):
        raise InvalidRequest(f"{what} {name!r} has a control character")
    return data


def key_bytes(key: str) -> bytes:
    """Return a job's key in UTF-8.

    Raises:
        InvalidRequest: not a name, or digits alone, which would read as an id.
    """
    data = name_bytes("key", key)
    if data.isdigit():
        raise InvalidRequest(f"key {key!r} is digits alone, which is an id; write 'order-{key}'")
    return data


def once_token(token: str) -> bytes:
    """Return a ONCE token.

    Raises:
        InvalidRequest: not 1 to 64 bytes.
    """
    data = name_bytes("once", token)
    if len(data) > TOKEN_BYTES_MAX:
        raise LimitError(f"once {token!r} has {len(data)} bytes; {TOKEN_BYTES_MAX} are allowed")
    return data


def option_arguments(options: Options) -> list[bytes]:
    """Return the option words of a call, ONCE left out; [] when there are none.

    Raises:
        InvalidRequest: an option that the protocol does not allow.
        TypeError: an option that there is not.
    """
    arguments: list[bytes] = []
    if options.get("key") is None and (
        options.get("window") is not None or options.get("on_conflict") is not None
    ):
        raise InvalidRequest("window and on_conflict say what a taken key means: give a key too")
    for name, writer in _WRITERS:
        value = options.get(name)
        if value is not None:
            arguments += writer(value)
    for name in options:
        if name not in _NAMES:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(sorted(_NAMES))}")
    return arguments


def _key(value: object) -> list[bytes]:
    return [b"KEY", key_bytes(_text("key", value))]


def _conflict(value: object) -> list[bytes]:
    if value not in ON_CONFLICT:
        raise InvalidRequest(f"on_conflict {value!r} is not one of keep, replace, error")
    return [b"ONDUP", str(value).encode()]


def _backoff(value: object) -> list[bytes]:
    if not isinstance(value, Backoff):
        raise InvalidRequest(f"backoff {value!r}: write wheel.backoff('30s', max='1h')")
    words = [b"BACKOFF", value.kind.encode(), b"%d" % value.base_ms]
    return words if value.max_ms is None else [*words, b"%d" % value.max_ms]


def _meta(value: object) -> list[bytes]:
    data = value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes):
        raise InvalidRequest(f"meta {value!r} is neither bytes nor text")
    if len(data) > META_BYTES_MAX:
        raise LimitError(f"meta has {len(data)} bytes, the limit is {META_BYTES_MAX}")
    return [b"META", data]


def _group(value: object) -> list[bytes]:
    return [b"GROUP", name_bytes("group", _text("group", value))]


def _expire(value: object) -> list[bytes]:
    when: When = value  # type: ignore[assignment]  # when_wire refuses what is not one
    return [b"EXPIRE", when_wire(when)]


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{what} {value!r} is not a text")
    return value


def _length(word: bytes) -> Callable[[object], list[bytes]]:
    def write(value: object) -> list[bytes]:
        return [word, b"%d" % duration_ms(value)]  # type: ignore[arg-type]  # it refuses others

    return write


def _number(word: bytes, most: int) -> Callable[[object], list[bytes]]:
    def write(value: object) -> list[bytes]:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise InvalidRequest(f"{word.decode().lower()} {value!r} is not between 0 and {most}")
        return [word, b"%d" % value]

    return write


# In the order of PROTOCOL.md: WINDOW and ONDUP belong to KEY and stand behind it.
_WRITERS: Final[tuple[tuple[str, Callable[[object], list[bytes]]], ...]] = (
    ("key", _key),
    ("window", _length(b"WINDOW")),
    ("on_conflict", _conflict),
    ("priority", _number(b"PRIORITY", PRIORITY_MAX)),
    ("retries", _number(b"RETRIES", COUNT_MAX)),
    ("lost", _number(b"LOST", COUNT_MAX)),
    ("backoff", _backoff),
    ("lease", _length(b"LEASE")),
    ("timeout", _length(b"TIMEOUT")),
    ("expire", _expire),
    ("meta", _meta),
    ("group", _group),
)
_NAMES: Final = {name for name, _ in _WRITERS} | {"once"}
