"""Commands and replies in C (csrc/wd_resp.c): framing, quoting, pieces, limits, memory, replies."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.resp_core import build_resp, span
from wheel.wire import NOT_READY, ReplyError, ReplyReader, Simple, encode_command

ARGS_MAX = 1024
INLINE_BYTES_MAX = 64 * 1024
BULK_BYTES_MAX = 1024 * 1024
COMMAND_BYTES_MAX = 4 * 1024 * 1024


@pytest.fixture(scope="session")
def c(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module: ``c.lib`` and ``c.ffi``."""
    return build_resp(tmp_path_factory.getbasetemp())


@dataclass(frozen=True, slots=True)
class Syntax:
    text: str


@dataclass(frozen=True, slots=True)
class Broken:
    text: str


Said = list[bytes] | Syntax | Broken


class Connection:
    """What a connection does with the parser: keeps bytes, asks for one command after another."""

    def __init__(self, module: Any) -> None:
        self.ffi, self.lib = module.ffi, module.lib
        self.parser = self.ffi.new("wd_parser *")
        self.scratch = self.ffi.gc(self.ffi.new("wd_buf *"), self.lib.wd_buf_free)
        self.argv = self.ffi.new("wd_span[]", self.lib.WD_ARGS_MAX)
        self.unread = b""
        self.is_broken = False

    def feed(self, piece: bytes) -> list[Said]:
        """Return what the parser says to the bytes that are there now."""
        self.unread += piece
        said: list[Said] = []
        while not self.is_broken and (answer := self.ask()) is not None:
            said.append(answer)
        return said

    def ask(self) -> Said | None:
        block = self.ffi.from_buffer("uint8_t[]", self.unread)
        parsed = self.lib.wd_parse_command(
            self.parser, block, len(self.unread), self.argv, self.scratch
        )
        if parsed.verdict == self.lib.WD_PARSE_MORE:
            return None
        answer: Said
        if parsed.verdict == self.lib.WD_PARSE_COMMAND:
            spans = [parsed.argv[i] for i in range(parsed.argc)]
            answer = [bytes(self.ffi.buffer(span.p, span.n)) for span in spans]
        else:
            text = self.ffi.string(parsed.error).decode("ascii")
            self.is_broken = parsed.verdict == self.lib.WD_PARSE_BROKEN
            answer = Broken(text) if self.is_broken else Syntax(text)
        if not self.is_broken:
            assert 0 < parsed.used_bytes <= len(self.unread)
            self.unread = self.unread[parsed.used_bytes :]
        return answer


def parse(c: Any, data: bytes) -> list[Said]:
    return Connection(c).feed(data)


def parse_bytewise(c: Any, data: bytes) -> list[Said]:
    connection = Connection(c)
    return [said for i in range(len(data)) for said in connection.feed(data[i : i + 1])]


# ---------------------------------------------------------------- framing

JUST_COMMANDS: list[tuple[bytes, list[Said]]] = [
    (b"PING\r\n", [[b"PING"]]),
    (b"PING\n", [[b"PING"]]),
    (b" \tPING \t a\t\n", [[b"PING", b"a"]]),
    (b"\r\n\n  \t\r\n", [[], [], []]),
    (b"*0\r\nPING\n", [[], [b"PING"]]),
    (b"*1\r\n$4\r\nPING\r\n", [[b"PING"]]),
    (b"*2\r\n$0\r\n\r\n$2\r\n\r\n\r\n", [[b"", b"\r\n"]]),
    (
        b"PING 1\n*2\r\n$4\r\nPING\r\n$1\r\n2\r\nPING 3\r\n",
        [[b"PING", b"1"], [b"PING", b"2"], [b"PING", b"3"]],
    ),
    (b"a\rb\n", [[b"a\rb"]]),
    (b"a\r\r\n", [[b"a\r"]]),
    (b"a\x00b \xff\n", [[b"a\x00b", b"\xff"]]),
    (b"$4\n+x\n", [[b"$4"], [b"+x"]]),
]

QUOTING: list[tuple[bytes, list[bytes]]] = [
    (b'SCHEDULE mail +5m {"user":7}', [b"SCHEDULE", b"mail", b"+5m", b'{"user":7}']),
    (b'a"b c\'d e"', [b'a"b', b"c'd", b'e"']),
    (b'"a b" c', [b"a b", b"c"]),
    (b'""', [b""]),
    (b"'' x ''", [b"", b"x", b""]),
    (rb'"\n\r\t\"\\\x41\xfF\x00"', b'\n\r\t"\\A\xff\x00'.split(b" ")),
    (rb"'it\'s' '\\' '\n' '\x41'", [b"it's", b"\\", rb"\n", rb"\x41"]),
    (b'"it\'s" \'say "x"\'', [b"it's", b'say "x"']),
    (rb'"\\" "\"" "plain" "\x20"', [b"\\", b'"', b"plain", b" "]),
    (b'"a\tb"\t"c"', [b"a\tb", b"c"]),
    (rb"\n a\\b", [rb"\n", rb"a\\b"]),
]

BEHIND_A_QUOTE = (
    "text directly behind a closing quote at byte 9 of the line: "
    "put a blank between, or quote all of it"
)
UNKNOWN_ESCAPE = r'unknown escape at byte 9 of the line: inside "..." stand \n \r \t \" \\ \xHH'
WRONG_LINES: list[tuple[bytes, str]] = [
    (b'PING "abc', "the quote at byte 6 of the line is not closed"),
    (b"PING 'abc", "the quote at byte 6 of the line is not closed"),
    (b'PING "', "the quote at byte 6 of the line is not closed"),
    (rb'PING "abc\"', "the quote at byte 6 of the line is not closed"),
    (b'PING "abc\\', "the quote at byte 6 of the line is not closed"),
    (rb"PING 'abc\'", "the quote at byte 6 of the line is not closed"),
    (
        b'PING "a"b',
        BEHIND_A_QUOTE,
    ),
    (
        b"PING 'a''b'",
        BEHIND_A_QUOTE,
    ),
    *[
        (
            b'PING "ab' + escape + b'"',
            UNKNOWN_ESCAPE,
        )
        for escape in (rb"\q", rb"\'", rb"\0", rb"\x4", rb"\x4g", rb"\xg4", rb"\N", rb"\u0041")
    ],
]

NO_NUMBER = "protocol error: the {} length behind '{}' is no plain number"
BAD_ARRAY = NO_NUMBER.format("array", "*")
BAD_BULK = NO_NUMBER.format("bulk", "$")
NULL_ARRAY = "protocol error: a null or negative array is no command"
BROKEN: list[tuple[bytes, str]] = [
    (b"*-1\r\n", NULL_ARRAY),
    (b"*-5\r\n", NULL_ARRAY),
    (b"*-", NULL_ARRAY),
    (b"*\r\n", BAD_ARRAY),
    (b"*x\r\n", BAD_ARRAY),
    (b"*+1\r\n", BAD_ARRAY),
    (b"* 1\r\n", BAD_ARRAY),
    (b"*1 \r\n", BAD_ARRAY),
    (b"*01\r\n", BAD_ARRAY),
    (b"*00\r\n", BAD_ARRAY),
    (b"*1\n", BAD_ARRAY),
    (b"*1\rx", BAD_ARRAY),
    (b"*99999999999999999999\r\n", BAD_ARRAY),
    (b"*1025\r\n", "an array of 1025 arguments passes the limit of 1024"),
    (b"*1\r\n:5\r\n", "protocol error: expected '$' of a bulk string, got byte 0x3a"),
    (b"*1\r\n\r\n", "protocol error: expected '$' of a bulk string, got byte 0x0d"),
    (b"*1\r\n*0\r\n", "protocol error: expected '$' of a bulk string, got byte 0x2a"),
    (b"*1\r\n$-1\r\n", "protocol error: a null bulk string cannot be an argument"),
    (b"*1\r\n$\r\n\r\n", BAD_BULK),
    (b"*1\r\n$4x\r\n", BAD_BULK),
    (b"*1\r\n$04\r\nPING\r\n", BAD_BULK),
    (b"*1\r\n$4\nPING\r\n", BAD_BULK),
    (b"*1\r\n$99999999999999999999\r\n", BAD_BULK),
    (b"*1\r\n$4\r\nPINGPING", "protocol error: no CRLF behind a bulk string of 4 bytes"),
    (b"*1\r\n$4\r\nPING\rx", "protocol error: no CRLF behind a bulk string of 4 bytes"),
    (b"*1\r\n$4\r\nPING\n\n", "protocol error: no CRLF behind a bulk string of 4 bytes"),
    (b"*1\r\n$1048577\r\n", "a bulk string of 1048577 bytes passes the limit of 1048576 bytes"),
    (
        b"*1\r\n$9999999999999999999\r\n",
        "a bulk string of 9999999999999999999 bytes passes the limit of 1048576 bytes",
    ),
]


@pytest.mark.parametrize(("data", "said"), JUST_COMMANDS)
def test_lines_and_arrays_mix_on_one_connection(c: Any, data: bytes, said: list[Said]) -> None:
    assert parse(c, data) == said


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize(("line", "args"), QUOTING)
def test_a_quote_opens_only_at_the_start_of_an_argument(
    c: Any, line: bytes, args: list[bytes], end: bytes
) -> None:
    assert parse(c, line + end) == [args]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize(("line", "text"), WRONG_LINES)
def test_a_wrong_line_is_dropped_and_the_next_one_understood(
    c: Any, line: bytes, text: str, end: bytes
) -> None:
    assert parse(c, line + end + b"PING\n") == [Syntax(text), [b"PING"]]


@pytest.mark.parametrize(("data", "text"), BROKEN)
def test_lost_framing_is_said_by_name(c: Any, data: bytes, text: str) -> None:
    assert parse(c, data) == [Broken(text)]


@pytest.mark.parametrize(("data", "text"), BROKEN)
def test_what_comes_later_never_changes_a_verdict(c: Any, data: bytes, text: str) -> None:
    for more in (b"\r\n", b"0", b"PING\r\n", b"\x00" * 100):
        assert parse(c, data + more) == [Broken(text)]
    connection = Connection(c)
    connection.feed(data)
    connection.is_broken = False
    assert connection.feed(b"\r\n") == [Broken(text)]


WHOLE = [data for data, _ in JUST_COMMANDS] + [data for data, _ in BROKEN]
LINES = [line + b"\r\nPING\n" for line, _ in QUOTING] + [
    line + b"\nPING\n" for line, _ in WRONG_LINES
]


@pytest.mark.parametrize("data", WHOLE + LINES)
def test_bytes_cut_anywhere_say_the_same(c: Any, data: bytes) -> None:
    whole = parse(c, data)
    assert parse_bytewise(c, data) == whole
    for cut in range(1, len(data)):
        connection = Connection(c)
        assert connection.feed(data[:cut]) + connection.feed(data[cut:]) == whole, cut


ARGV = st.lists(st.binary(max_size=80), min_size=1, max_size=12)


@settings(deadline=None)
@given(commands=st.lists(ARGV, min_size=1, max_size=5), cuts=st.lists(st.integers(1, 400)))
def test_any_arguments_survive_the_wire(
    c: Any, commands: list[list[bytes]], cuts: list[int]
) -> None:
    data = b"".join(encode_command(argv) for argv in commands)
    connection = Connection(c)
    said: list[Said] = []
    for cut in cuts:
        said += connection.feed(data[:cut])
        data = data[cut:]
    assert said + connection.feed(data) == commands


def quoted(arg: bytes) -> bytes:
    named = {10: rb"\n", 13: rb"\r", 9: rb"\t", 34: rb"\"", 92: rb"\\"}
    return b'"' + b"".join(named.get(byte, rb"\x%02x" % byte) for byte in arg) + b'"'


@settings(deadline=None)
@given(argv=ARGV)
def test_any_arguments_can_be_typed_as_a_line(c: Any, argv: list[bytes]) -> None:
    assert parse(c, b" ".join(quoted(arg) for arg in argv) + b"\n") == [argv]


@settings(deadline=None)
@given(args=st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=8))
def test_single_quotes_keep_all_but_two_escapes(c: Any, args: list[bytes]) -> None:
    typed = [arg.replace(b"\n", b"").replace(b"\r", b"") for arg in args]
    line = b" ".join(
        b"'" + arg.replace(b"\\", rb"\\").replace(b"'", rb"\'") + b"'" for arg in typed
    )
    assert parse(c, line + b"\n") == [typed]


@settings(deadline=None)
@given(
    data=st.binary(max_size=60) | st.text("*$0123456789\r\n\"' \\ax", max_size=60).map(str.encode)
)
def test_any_bytes_cut_anywhere_say_the_same(c: Any, data: bytes) -> None:
    assert parse_bytewise(c, data) == parse(c, data)


# ---------------------------------------------------------------- pieces


def test_what_was_scanned_of_a_line_is_not_looked_at_again(c: Any) -> None:
    connection = Connection(c)
    assert connection.feed(b"x" * 1000) == []
    assert connection.parser.scanned_bytes == 1000
    connection.unread = b"\n" * 1000  # had it been looked at again, this would be 1000 lines
    assert connection.feed(b"y") == []
    assert connection.parser.scanned_bytes == 1001


def test_arguments_that_were_whole_are_not_looked_at_again_until_all_are(c: Any) -> None:
    data = encode_command([b"a" * 100, b"b" * 100, b"c" * 100])
    connection = Connection(c)
    assert connection.feed(data[:-150]) == []
    assert (connection.parser.args_total, connection.parser.args_done) == (3, 1)
    assert connection.parser.scanned_bytes == len(b"*3\r\n$100\r\n\r\n") + 100
    scanned = connection.parser.scanned_bytes
    connection.unread = b"*" + b"?" * (scanned - 1) + connection.unread[scanned:]
    assert connection.feed(data[-150:-1]) == []
    assert connection.parser.args_done == 2


@pytest.mark.parametrize(
    "data", [b"PING\n", b"*1\r\n$4\r\nPING\r\n", b'PING "\n', b"*0\r\n", b"\n"]
)
def test_the_parser_is_ready_for_the_next_command(c: Any, data: bytes) -> None:
    connection = Connection(c)
    for byte in data:
        connection.feed(bytes([byte]))
    parser = connection.parser
    assert (parser.args_total, parser.args_done, parser.scanned_bytes) == (0, 0, 0)


# ---------------------------------------------------------------- limits


def test_limits_are_the_documented_ones(c: Any) -> None:
    lib = c.lib
    limits = (lib.WD_ARGS_MAX, lib.WD_INLINE_BYTES_MAX, lib.WD_BULK_BYTES_MAX)
    assert limits == (ARGS_MAX, INLINE_BYTES_MAX, BULK_BYTES_MAX)
    assert lib.WD_COMMAND_BYTES_MAX == COMMAND_BYTES_MAX


def test_arguments_of_an_array_up_to_the_limit(c: Any) -> None:
    argv = [b"%d" % i for i in range(ARGS_MAX)]
    assert parse(c, encode_command(argv)) == [argv]
    assert parse(c, encode_command([*argv, b"x"])) == [
        Broken("an array of 1025 arguments passes the limit of 1024")
    ]


def test_arguments_of_a_line_up_to_the_limit(c: Any) -> None:
    assert parse(c, b"a " * ARGS_MAX + b"\n") == [[b"a"] * ARGS_MAX]
    assert parse(c, b"a " * ARGS_MAX + b"b\n") == [
        Broken("a line of more than 1024 arguments passes the limit")
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("piece_bytes", [1 << 20, 1 << 16, 1000])
def test_a_line_up_to_the_limit(c: Any, end: bytes, piece_bytes: int) -> None:
    def in_pieces(data: bytes) -> list[Said]:
        connection = Connection(c)
        starts = range(0, len(data), piece_bytes)
        return [said for at in starts for said in connection.feed(data[at : at + piece_bytes])]

    line = b"x" * INLINE_BYTES_MAX
    too_long = Broken("a line of more than 65536 bytes passes the limit: send a RESP array")
    assert in_pieces(line + end + b"PING\n") == [[line], [b"PING"]]
    assert in_pieces(line + b"y" + end) == [too_long]
    assert in_pieces(line + b"yz") == [too_long]


def test_a_line_is_too_long_as_soon_as_its_end_can_no_longer_come_in_time(c: Any) -> None:
    connection = Connection(c)
    assert connection.feed(b"x" * INLINE_BYTES_MAX + b"\r") == []
    assert connection.feed(b"\n") == [[b"x" * INLINE_BYTES_MAX]]


def test_a_bulk_string_up_to_the_limit(c: Any) -> None:
    assert parse(c, encode_command([b"x" * BULK_BYTES_MAX])) == [[b"x" * BULK_BYTES_MAX]]


def test_a_bulk_string_over_the_limit_is_refused_before_its_bytes_come(c: Any) -> None:
    assert parse(c, b"*2\r\n$1\r\na\r\n$1048577\r\n") == [
        Broken("a bulk string of 1048577 bytes passes the limit of 1048576 bytes")
    ]


def test_a_command_up_to_the_limit(c: Any) -> None:
    argv = [b"x" * (BULK_BYTES_MAX - 64)] * 4
    last = b"y" * (COMMAND_BYTES_MAX - len(encode_command([*argv, b"y" * 100])) + 100)
    data = encode_command([*argv, last])
    assert len(data) == COMMAND_BYTES_MAX
    assert parse(c, data) == [[*argv, last]]
    assert parse(c, encode_command([*argv, last + b"y"])) == [
        Broken("a command of 4194305 bytes or more passes the limit of 4194304 bytes")
    ]


# ---------------------------------------------------------------- memory


@pytest.fixture
def failing(c: Any) -> Iterator[Any]:
    """wd_alloc_fail_at, switched off afterwards."""
    yield c.lib.wd_alloc_fail_at
    c.lib.wd_alloc_fail_at(0)


@pytest.mark.parametrize("data", [b'PING "\\n"\n', b'PING "\n', b"*-1\r\n"])
def test_no_memory_for_a_line_or_a_text_is_said(c: Any, failing: Any, data: bytes) -> None:
    connection = Connection(c)
    failing(1)
    assert connection.feed(data) == [Broken("out of memory")]


def test_arguments_without_escapes_need_no_memory(c: Any, failing: Any) -> None:
    failing(0)
    parse(c, b"PING \"a b\" 'c d' e\n" + encode_command([b"PING", b"x"]))
    assert failing(0) == 0


@pytest.mark.parametrize(
    "write",
    [
        lambda c, b: c.lib.wd_reply_simple(b, b"OK"),
        lambda c, b: c.lib.wd_reply_error(b, b"ERR", b"x"),
        lambda c, b: c.lib.wd_reply_int(b, 5),
        lambda c, b: c.lib.wd_reply_bulk(b, span(c, b"abc")[0]),
        lambda c, b: c.lib.wd_reply_bulk_u64(b, 5),
        lambda c, b: c.lib.wd_reply_array(b, 5),
        lambda c, b: c.lib.wd_reply_map(b, 5, 3),
        lambda c, b: c.lib.wd_reply_nil(b, 2),
    ],
)
def test_a_reply_without_memory_changes_nothing(c: Any, failing: Any, write: Any) -> None:
    buffer = c.ffi.new("wd_buf *")
    failing(1)
    assert write(c, buffer) == c.lib.WD_ENOMEM
    assert (buffer.p, buffer.n, buffer.cap) == (c.ffi.NULL, 0, 0)


# ---------------------------------------------------------------- replies


def written(c: Any, *calls: Any) -> bytes:
    """Return what the calls, each a function of the buffer, appended."""
    buffer = c.ffi.gc(c.ffi.new("wd_buf *"), c.lib.wd_buf_free)
    for call in calls:
        assert call(buffer) == c.lib.WD_OK
    return bytes(c.ffi.buffer(buffer.p, buffer.n))


def test_replies_as_bytes(c: Any) -> None:
    lib = c.lib
    payload, _block = span(c, b"a\r\nb")
    empty, _block2 = span(c, b"")
    assert written(c, lambda b: lib.wd_reply_simple(b, b"OK")) == b"+OK\r\n"
    assert written(c, lambda b: lib.wd_reply_bulk(b, payload)) == b"$4\r\na\r\nb\r\n"
    assert written(c, lambda b: lib.wd_reply_bulk(b, empty)) == b"$0\r\n\r\n"
    assert written(c, lambda b: lib.wd_reply_array(b, 0)) == b"*0\r\n"
    assert written(c, lambda b: lib.wd_reply_array(b, 4294967295)) == b"*4294967295\r\n"
    assert written(c, lambda b: lib.wd_reply_map(b, 7, 3)) == b"%7\r\n"
    assert written(c, lambda b: lib.wd_reply_map(b, 7, 2)) == b"*14\r\n"
    assert written(c, lambda b: lib.wd_reply_map(b, 4294967295, 2)) == b"*8589934590\r\n"
    assert written(c, lambda b: lib.wd_reply_nil(b, 3)) == b"_\r\n"
    assert written(c, lambda b: lib.wd_reply_nil(b, 2)) == b"$-1\r\n"


@settings(deadline=None)
@given(value=st.integers(-(1 << 63), (1 << 63) - 1))
@example(value=-(1 << 63))
@example(value=(1 << 63) - 1)
@example(value=0)
@example(value=-1)
@example(value=9)
@example(value=10)
@example(value=99)
@example(value=100)
def test_integers_as_digits(c: Any, value: int) -> None:
    lib = c.lib
    assert written(c, lambda b: lib.wd_reply_int(b, value)) == b":%d\r\n" % value
    unsigned = value % (1 << 64)
    digits = b"%d" % unsigned
    expected = b"$%d\r\n%b\r\n" % (len(digits), digits)
    assert written(c, lambda b: lib.wd_reply_bulk_u64(b, unsigned)) == expected


def test_digits_around_every_power_of_two_and_of_ten(c: Any) -> None:
    near = {base**k + step for base in (2, 10) for k in range(65) for step in (-1, 0, 1)}
    for value in (v for v in near if v < 1 << 64):
        digits = b"%d" % value
        expected = b"$%d\r\n%b\r\n" % (len(digits), digits)
        assert written(c, lambda b, v=value: c.lib.wd_reply_bulk_u64(b, v)) == expected


@settings(deadline=None)
@given(payload=st.binary(max_size=300), number=st.integers(0, 1 << 62))
def test_replies_written_in_c_are_read_in_python(c: Any, payload: bytes, number: int) -> None:
    lib = c.lib
    bulk, _block = span(c, payload)
    data = written(
        c,
        lambda b: lib.wd_reply_array(b, 5),
        lambda b: lib.wd_reply_bulk(b, bulk),
        lambda b: lib.wd_reply_int(b, -number),
        lambda b: lib.wd_reply_nil(b, 2),
        lambda b: lib.wd_reply_error(b, b"STALE", b"receipt %s", c.ffi.new("char[]", b"1.2")),
        lambda b: lib.wd_reply_simple(b, b"OK"),
    )
    reader = ReplyReader()
    reader.feed(data)
    stale = ReplyError("STALE", "receipt 1.2")
    assert reader.gets() == [payload, -number, None, stale, Simple("OK")]
    assert reader.gets() is NOT_READY


def error_reply(c: Any, text: bytes) -> bytes:
    quoted_text = c.ffi.new("char[]", text)
    return written(c, lambda b: c.lib.wd_reply_error(b, b"ERR", b"%s", quoted_text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"plain", b"plain"),
        (b"a\r\nb\tc\x7fd", b"a  b c d"),
        ("é名\U0001f600".encode(), "é名\U0001f600".encode()),
        (b"a\xc2\x85b", b"a  b"),
        (b"a\xffb\xc3", b"a?b?"),
        (b"\xed\xa0\x80", b"???"),
        (b"", b""),
        (b"x" * 1024, b"x" * 1024),
        (b"x" * 1025, b"x" * 1024),
        (b"x" * 1023 + "é".encode(), b"x" * 1023),
        (b"x" * 1022 + "é".encode() + b"y", b"x" * 1022 + "é".encode()),
        (b"x" * 1021 + "\U0001f600".encode(), b"x" * 1021),
    ],
)
def test_an_error_is_one_line_of_utf8_of_at_most_a_kib(c: Any, text: bytes, line: bytes) -> None:
    assert error_reply(c, text) == b"-ERR " + line + b"\r\n"
