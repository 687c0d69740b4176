"""The wire as bytes: commands out, replies in, and replies that Python itself gives.

Sans I/O: nothing here opens, waits or logs. The client, the server's own commands and the tests
share it. The grammar is RESP2 and RESP3 as PROTOCOL.md narrows it; the C core has its own half of
it (csrc/wd_resp.h), and the tests hold the two against each other.

An error reply is a value (``ReplyError``), not an exception: in an array of replies one may be an
error among others. ``WireError`` is raised for bytes that are no RESP at all; the connection they
came over is of no further use.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import index
from typing import Final, Literal, TypeAlias

DEPTH_MAX: Final = 32
"""Arrays inside arrays, at most."""
LINE_BYTES_MAX: Final = 1 << 16
"""A line without its CRLF; only bulk strings are longer."""
BULK_BYTES_MAX: Final = 1 << 29
"""A bulk string; the server's own limits are far lower."""
ERROR_TEXT_BYTES_MAX: Final = 1024
"""Text of an error reply that is written; what is longer is cut."""

_INT64_END: Final = 1 << 63


class WireError(ValueError):
    """Bytes that are no RESP, or pass a limit of this file."""


class Simple(str):
    """A short status such as OK: written as ``+OK`` where a plain str becomes a bulk string."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ReplyError:
    """An error reply.

    Attributes:
        code: the first word, which is the contract (``STALE``).
        text: the rest, for people.
    """

    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.text}"


class NotReady(Enum):
    """The type of ``NOT_READY``."""

    NOT_READY = "not ready"


NOT_READY: Final = NotReady.NOT_READY
"""What ``ReplyReader.gets`` returns when no whole reply is there."""

Key: TypeAlias = str | bytes | int
Reply: TypeAlias = (
    "bool | int | float | str | bytes | ReplyError | list[Reply] | dict[Key, Reply] | None"
)
"""What a reply is read as."""
Pairs: TypeAlias = "Mapping[str, Answer] | Mapping[bytes, Answer] | Mapping[Key, Answer]"
Answer: TypeAlias = (
    "bool | int | float | str | bytes | ReplyError | Sequence[Answer] | Pairs | None"
)
"""What can be written as a reply; a sequence is a list or a tuple."""


class Push(list[Reply]):
    """A RESP3 push: not the answer to any command."""

    __slots__ = ()


# ---------------------------------------------------------------- commands


def encode_command(args: Sequence[bytes | str | int]) -> bytes:
    """Return a command as a RESP array of bulk strings.

    Args:
        args: the command's name and its arguments; str goes as UTF-8, int as decimal digits.

    Raises:
        ValueError: no argument at all (the server skips an empty array without an answer), or a
            str that has no UTF-8 form.
        TypeError: an argument of another type.
    """
    if not args:
        raise ValueError("a command has at least a name: the server does not answer an empty one")
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        data = arg if type(arg) is bytes else _argument(arg)
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _argument(arg: bytes | str | int) -> bytes:
    if isinstance(arg, str):
        return arg.encode()
    if isinstance(arg, bytes):
        return arg
    if isinstance(arg, bool):
        raise TypeError(f"an argument is bytes, str or int, not a bool: {arg!r}")
    return b"%d" % index(arg)  # index() refuses what % would round: floats


# ---------------------------------------------------------------- replies that are read


def _read_simple(body: bytes) -> Reply:
    return Simple(body.decode("utf-8", "replace"))


def _read_error(body: bytes) -> Reply:
    code, _, text = body.decode("utf-8", "replace").partition(" ")
    return ReplyError(code, text)


_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,4000}")  # int() alone takes blanks and 1_000 too
_DOUBLE: Final = re.compile(rb"[+-]?(?:inf|nan|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)")


def _read_integer(body: bytes) -> Reply:
    if not _INTEGER.fullmatch(body):
        raise WireError(f"not an integer: {body[:40]!r}")
    return int(body)


def _read_double(body: bytes) -> Reply:
    if not _DOUBLE.fullmatch(body):
        raise WireError(f"not a number: {body[:40]!r}")
    return float(body)


def _read_boolean(body: bytes) -> Reply:
    if body not in {b"t", b"f"}:
        raise WireError(f"not a truth value: {body[:40]!r}")
    return body == b"t"


def _read_null(body: bytes) -> Reply:
    if body:
        raise WireError(f"bytes behind a null: {body[:40]!r}")
    return None


_LINES: Final[dict[bytes, Callable[[bytes], Reply]]] = {
    b"+": _read_simple,
    b"-": _read_error,
    b":": _read_integer,
    b"(": _read_integer,
    b",": _read_double,
    b"#": _read_boolean,
    b"_": _read_null,
}
_BLOBS: Final = frozenset([b"$", b"!", b"="])
_ITEMS_PER_COUNT: Final = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}
_NULL: Final = -1

# Lengths as they stand on the wire: one look-up instead of a check and a conversion.
_LENGTHS: Final = {b"%d" % length: length for length in range(_NULL, 1024)}
_BULK: Final = ord("$")
_INT: Final = ord(":")


def _read_length(body: bytes, limit: int) -> int:
    """Return a length, _NULL for ``-1``."""
    if (length := _LENGTHS.get(body)) is not None:
        return length
    if not body.isdigit() or len(body) > 10 or body[0] == ord("0"):
        raise WireError(f"not a length: {body[:40]!r}")
    if (length := int(body)) > limit:
        raise WireError(f"a length of {length} passes the limit of {limit}")
    return length


class _Frame:
    """An array, map, set or push whose items are still coming."""

    __slots__ = ("items", "mark", "total")

    def __init__(self, mark: bytes, total: int) -> None:
        self.mark = mark
        self.total = total
        self.items: list[Reply] = []

    def close(self) -> Reply:
        """Return what the items make."""
        if self.mark == b">":
            return Push(self.items)
        if self.mark not in {b"%", b"|"}:
            return self.items
        pairs: dict[Key, Reply] = {}
        for key, value in zip(self.items[::2], self.items[1::2], strict=True):
            if not isinstance(key, str | bytes | int):
                raise WireError(f"a map's key is a string or a number, not {key!r}")
            pairs[key] = value
        return pairs


class _Opened(Enum):
    OPENED = "opened"


_OPENED: Final = _Opened.OPENED


class ReplyReader:
    """Replies out of the pieces in which they come.

    Simple strings are read as ``Simple``, bulk and verbatim strings as bytes, arrays and sets as
    list (a set's items need not be hashable), maps as dict, pushes as ``Push``; attributes are
    skipped. Costs O(bytes), in however many pieces they come: what was read of an unfinished array
    is kept, and pieces of a bulk string are joined once, when all of them are there.
    """

    __slots__ = (
        "_buffer",
        "_error",
        "_frames",
        "_missing_bytes",
        "_pieces",
        "_pieces_bytes",
        "_position",
    )

    def __init__(self) -> None:
        self._buffer = b""
        self._position = 0  # of the first byte in _buffer that is not read
        self._missing_bytes = 1  # without so many more, nothing behind _position can be read
        self._pieces: list[bytes] = []  # what was fed behind _buffer
        self._pieces_bytes = 0
        self._frames: list[_Frame] = []  # unfinished, outermost first
        self._error: WireError | None = None

    def feed(self, data: bytes) -> None:
        """Take bytes as they came from the socket."""
        self._pieces.append(data)
        self._pieces_bytes += len(data)

    def gets(self) -> Reply | Literal[NotReady.NOT_READY]:
        """Return the next reply, or NOT_READY when more must be fed first.

        Raises:
            WireError: what came is no RESP; then every later call raises it too.
        """
        if self._error is not None:
            raise self._error
        try:
            reply = self._next()
            while reply is NOT_READY and self._join_pieces():
                reply = self._next()
        except WireError as error:
            self._error = error
            raise
        return reply

    def _join_pieces(self) -> bool:
        if self._pieces_bytes < self._missing_bytes:
            return False
        self._pieces.insert(0, self._buffer[self._position :])
        self._buffer = b"".join(self._pieces)
        self._position = 0
        self._pieces.clear()
        self._pieces_bytes = 0
        return True

    def _next(self) -> Reply | Literal[NotReady.NOT_READY]:
        while True:
            frame = self._frames[-1] if self._frames else None
            if frame is None:
                value = self._element()
            else:
                self._plain_elements(frame)
                value = self._element() if len(frame.items) < frame.total else self._close()
            if value is NOT_READY:
                return NOT_READY
            if isinstance(value, _Opened):
                continue
            if not self._frames:
                return value
            self._frames[-1].items.append(value)

    def _close(self) -> Reply | Literal[_Opened.OPENED]:
        frame = self._frames.pop()
        value = frame.close()
        return _OPENED if frame.mark == b"|" else value  # an attribute is no value: read on

    def _plain_elements(self, frame: _Frame) -> None:
        """Read whole bulk strings, nulls and integers into frame, up to anything else.

        The loop that long arrays spend their time in; leaves every doubt to ``_element``.
        """
        buffer = self._buffer
        position = self._position
        items = frame.items
        for _ in range(frame.total - len(items)):
            end = buffer.find(b"\r\n", position)
            if end < 0:
                break
            body = buffer[position + 1 : end]
            mark = buffer[position]
            if mark == _INT and body.isdigit() and len(body) < 20:
                items.append(int(body))
                position = end + 2
                continue
            length = _LENGTHS.get(body) if mark == _BULK else None
            if length is None:
                break
            stop = end + 2 + length  # a null has no bytes and its CRLF is at end = stop - 1
            if length == _NULL:
                items.append(None)
                position = end + 2
            elif buffer[stop : stop + 2] == b"\r\n":
                items.append(buffer[end + 2 : stop])
                position = stop + 2
            else:
                break
        self._position = position

    def _element(self) -> Reply | Literal[NotReady.NOT_READY, _Opened.OPENED]:
        """Return one value that is no aggregate, or open the frame of one that is."""
        buffer = self._buffer
        position = self._position
        end = buffer.find(b"\r\n", position)
        if end < 0 and len(buffer) - position <= LINE_BYTES_MAX + 2:  # the mark before, CR behind
            self._missing_bytes = 1
            return NOT_READY
        mark = buffer[position : position + 1]
        body = buffer[position + 1 : end]
        if end < 0 or len(body) > LINE_BYTES_MAX:
            raise WireError(f"a line of more than {LINE_BYTES_MAX} bytes: {body[:40]!r}...")
        if mark in _BLOBS:
            return self._blob(mark, body, end + 2)
        if mark in _ITEMS_PER_COUNT:
            return self._open(mark, body, end + 2)
        read = _LINES.get(mark)
        if read is None:
            raise WireError(f"no reply begins with {mark!r}; is this a wheeld server's port?")
        value = read(body)
        self._position = end + 2
        return value

    def _blob(self, mark: bytes, body: bytes, start: int) -> Reply | Literal[NotReady.NOT_READY]:
        length = _read_length(body, BULK_BYTES_MAX)
        if length == _NULL:
            if mark != b"$":
                raise WireError(f"a null written as {mark + body!r}")
            self._position = start
            return None
        stop = start + length
        if len(self._buffer) < stop + 2:
            self._missing_bytes = stop + 2 - len(self._buffer)
            return NOT_READY
        if self._buffer[stop : stop + 2] != b"\r\n":
            raise WireError(f"no CRLF behind a bulk string of {length} bytes")
        data = self._buffer[start:stop]
        self._position = stop + 2
        if mark == b"$":
            return data
        if mark == b"!":
            return _read_error(data)
        if data[3:4] != b":":
            raise WireError(f"a verbatim string without its format: {data[:40]!r}")
        return data[4:]

    def _open(self, mark: bytes, body: bytes, start: int) -> Reply | Literal[_Opened.OPENED]:
        count = _read_length(body, _INT64_END)
        if count == _NULL:
            if mark != b"*":
                raise WireError(f"a null written as {mark + body!r}")
            self._position = start
            return None
        if len(self._frames) == DEPTH_MAX:
            raise WireError(f"arrays nested more than {DEPTH_MAX} deep")
        self._frames.append(_Frame(mark, count * _ITEMS_PER_COUNT[mark]))
        self._position = start
        return _OPENED


# ---------------------------------------------------------------- replies that are written

_CONTROLS: Final = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], " ")


def encode_reply(value: Answer, resp: int) -> bytes:
    """Return a value as a reply.

    None, bool, float and maps have forms of their own in RESP3; in RESP2 they go as null bulk,
    0 or 1, a bulk string of digits, and a flat array. An int beyond 64 bits is a big number or a
    bulk string. str and bytes are bulk strings, ``Simple`` a simple one. In an error's text
    control characters become blanks, and it is cut at 1 KiB.

    Args:
        value: the answer.
        resp: 2 or 3.

    Raises:
        ValueError: another resp; a Simple or an error's code that does not fit into a line.
        TypeError: a value that has no form on the wire.
    """
    if resp not in {2, 3}:
        raise ValueError(f"resp is 2 or 3, not {resp!r}")
    parts: list[bytes] = []
    _write(parts, value, resp)
    return b"".join(parts)


def _write(parts: list[bytes], value: Answer, resp: int) -> None:
    if value is None:
        parts.append(b"_\r\n" if resp == 3 else b"$-1\r\n")
    elif isinstance(value, bytes):
        parts.append(_bulk(value))
    elif isinstance(value, str):
        parts.append(_simple(value) if isinstance(value, Simple) else _bulk(value.encode()))
    elif isinstance(value, int | float):
        parts.append(_number(value, resp))
    elif isinstance(value, ReplyError):
        parts.append(_error(value))
    elif isinstance(value, Mapping):
        parts.append(b"%%%d\r\n" % len(value) if resp == 3 else b"*%d\r\n" % (2 * len(value)))
        for key, item in value.items():
            _write(parts, key, resp)
            _write(parts, item, resp)
    elif isinstance(value, list | tuple):
        parts.append(b"*%d\r\n" % len(value))
        for item in value:
            _write(parts, item, resp)
    else:
        raise TypeError(f"a {type(value).__name__} has no form on the wire: {value!r}")


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _simple(text: str) -> bytes:
    if "\r" in text or "\n" in text:
        raise ValueError(f"a simple string is one line: {text!r}")
    return b"+%b\r\n" % text.encode()


def _number(value: float, resp: int) -> bytes:
    if isinstance(value, bool):
        return (b"#t\r\n" if value else b"#f\r\n") if resp == 3 else b":%d\r\n" % value
    if isinstance(value, float):
        digits = repr(float(value)).encode()
        return b",%b\r\n" % digits if resp == 3 else _bulk(digits)
    if -_INT64_END <= value < _INT64_END:
        return b":%d\r\n" % value
    return b"(%d\r\n" % value if resp == 3 else _bulk(b"%d" % value)


def _error(error: ReplyError) -> bytes:
    if not error.code or error.code != error.code.translate(_CONTROLS).replace(" ", ""):
        raise ValueError(f"an error's code is one word: {error.code!r}")
    text = error.text.translate(_CONTROLS).encode("utf-8", "replace")
    if len(text) > ERROR_TEXT_BYTES_MAX:
        text = text[:ERROR_TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()
    return b"-%b %b\r\n" % (error.code.encode(), text)
