"""wheel/wire.py: what is written is read back, in whatever pieces it comes."""

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wheel.wire import (
    BULK_BYTES_MAX,
    DEPTH_MAX,
    LINE_BYTES_MAX,
    NOT_READY,
    Answer,
    Push,
    Reply,
    ReplyError,
    ReplyReader,
    Simple,
    WireError,
    encode_command,
    encode_reply,
)

ROOT = Path(__file__).parents[2]


def drain(reader: ReplyReader, pieces: Sequence[bytes]) -> list[Reply]:
    """Return every reply, asked for after each piece."""
    replies: list[Reply] = []
    for piece in pieces:
        reader.feed(piece)
        while (reply := reader.gets()) is not NOT_READY:
            replies.append(reply)
    return replies


def read_all(pieces: Sequence[bytes]) -> list[Reply]:
    """Return every reply, asked for after each piece; the pieces must end with the last reply."""
    reader = ReplyReader()
    replies = drain(reader, pieces)
    assert reader.gets() is NOT_READY
    return replies


def read(data: bytes) -> Reply:
    replies = read_all([data])
    assert len(replies) == 1
    return replies[0]


# ---------------------------------------------------------------- reading

FORMS: list[tuple[bytes, Reply]] = [
    (b"+OK\r\n", Simple("OK")),
    (b"+\r\n", Simple("")),
    ("+né\r\n".encode(), Simple("né")),
    (b"-STALE receipt 1.2 is old\r\n", ReplyError("STALE", "receipt 1.2 is old")),
    (b"-ERR\r\n", ReplyError("ERR", "")),
    (b"-ERR \xff\r\n", ReplyError("ERR", "\ufffd")),
    (b":0\r\n", 0),
    (b":-5\r\n", -5),
    (b":+5\r\n", 5),
    (b":9223372036854775807\r\n", (1 << 63) - 1),
    (b"(1234567890123456789012345678901234567890\r\n", 1234567890123456789012345678901234567890),
    (b"$0\r\n\r\n", b""),
    (b"$4\r\na\r\nb\r\n", b"a\r\nb"),
    (b"$1500\r\n" + b"x" * 1500 + b"\r\n", b"x" * 1500),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"_\r\n", None),
    (b"#t\r\n", True),
    (b"#f\r\n", False),
    (b",1.5\r\n", 1.5),
    (b",10\r\n", 10.0),
    (b",-1e-7\r\n", -1e-7),
    (b",inf\r\n", math.inf),
    (b",-inf\r\n", -math.inf),
    (b"=8\r\ntxt:text\r\n", b"text"),
    (b"!9\r\nERR a\r\nb!\r\n", ReplyError("ERR", "a\r\nb!")),
    (b"*0\r\n", []),
    (b"%0\r\n", {}),
    (b"*3\r\n:1\r\n$1\r\na\r\n_\r\n", [1, b"a", None]),
    (b"*2\r\n*1\r\n*0\r\n-ERR x\r\n", [[[]], ReplyError("ERR", "x")]),
    (b"~2\r\n*0\r\n:1\r\n", [[], 1]),
    (b"%2\r\n$1\r\na\r\n:1\r\n+b\r\n*1\r\n#t\r\n", {b"a": 1, "b": [True]}),
    (b"%1\r\n:7\r\n%1\r\n$1\r\nx\r\n_\r\n", {7: {b"x": None}}),
    (b">2\r\n+invalidate\r\n:1\r\n", Push([Simple("invalidate"), 1])),
    (b"|1\r\n+ttl\r\n:5\r\n:3\r\n", 3),
    (b"*2\r\n|1\r\n+ttl\r\n:5\r\n:3\r\n:4\r\n", [3, 4]),
]


@pytest.mark.parametrize(("data", "reply"), FORMS)
def test_every_form_of_both_protocols_is_read(data: bytes, reply: Reply) -> None:
    found = read(data)
    assert found == reply
    assert type(found) is type(reply)


@pytest.mark.parametrize(("data", "reply"), FORMS)
def test_every_form_is_read_when_cut_at_every_byte(data: bytes, reply: Reply) -> None:
    bytewise = [data[i : i + 1] for i in range(len(data))] * 2
    assert read_all(bytewise) == [reply, reply]
    for cut in range(1, len(data)):
        assert read_all([data[:cut], data[cut:] + data]) == [reply, reply], cut


def test_nan_is_read() -> None:
    found = read(b",nan\r\n")
    assert isinstance(found, float)
    assert math.isnan(found)


def test_all_forms_in_one_piece_come_out_in_order() -> None:
    assert read_all([b"".join(data for data, _ in FORMS)]) == [reply for _, reply in FORMS]


def test_a_reader_that_is_asked_only_sometimes_loses_nothing() -> None:
    reader = ReplyReader()
    for number in range(100):
        reader.feed(b":%d\r\n" % number)
        if number % 3 == 0:
            assert reader.gets() == number // 3
    assert [reader.gets() for _ in range(67)] == [*range(34, 100), NOT_READY]


def test_a_reader_without_bytes_has_nothing() -> None:
    reader = ReplyReader()
    assert reader.gets() is NOT_READY
    reader.feed(b"")
    assert reader.gets() is NOT_READY


@pytest.mark.parametrize(
    "data",
    [
        b"?\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\r\n",
        b":\r\n",
        b":1_0\r\n",
        b": 1\r\n",
        b":1.5\r\n",
        b"(x\r\n",
        b",1_0\r\n",
        b",\r\n",
        b",infinity\r\n",
        b"#x\r\n",
        b"_x\r\n",
        b"$\r\n",
        b"$x\r\n",
        b"$+1\r\na\r\n",
        b"$01\r\na\r\n",
        b"$-2\r\n",
        b"$1_0\r\n",
        b"$1\r\nabc",
        b"$?\r\n",
        b"*x\r\n",
        b"*-2\r\n",
        b"%-1\r\n",
        b"!-1\r\n",
        b"=3\r\nabc\r\n",
        b"=4\r\nabcd\r\n",
        b"%1\r\n*0\r\n:1\r\n",
        b"%1\r\n_\r\n:1\r\n",
        b"*2\r\n:1\r\n?\r\n",
        b"*2\r\n:1\r\n:1_0\r\n",
        b"*2\r\n:1\r\n$1\r\nabc",
        b"$%d\r\n" % (BULK_BYTES_MAX + 1),
        b"*1\r\n" * (DEPTH_MAX + 1),
        b"+" + b"x" * (LINE_BYTES_MAX + 2),
        b"+" + b"x" * (LINE_BYTES_MAX + 1) + b"\r\n",
    ],
)
def test_what_is_no_reply_is_refused_and_stays_refused(data: bytes) -> None:
    bytewise = [data[i : i + 1] for i in range(min(len(data), 200))]
    texts: set[str] = set()
    for pieces in ([data], [*bytewise, data[200:]]):
        reader = ReplyReader()
        with pytest.raises(WireError) as first:
            drain(reader, pieces)
        with pytest.raises(WireError) as second:
            drain(reader, [b"+OK\r\n"])
        texts |= {str(first.value), str(second.value)}
    assert len(texts) == 1, "the text depends on the pieces"


def test_nesting_and_lines_up_to_their_limits() -> None:
    deep = read(b"*1\r\n" * DEPTH_MAX + b":1\r\n")
    for _ in range(DEPTH_MAX):
        assert isinstance(deep, list)
        (deep,) = deep
    assert deep == 1
    line = b"+" + b"x" * LINE_BYTES_MAX + b"\r\n"
    for behind in (1, 2, 3):
        assert read_all([line[:-behind], line[-behind:]]) == ["x" * LINE_BYTES_MAX]


def test_a_bulk_string_in_many_pieces_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    joins: list[int] = []
    join = ReplyReader._join_pieces

    def counted(reader: ReplyReader) -> bool:
        joined = join(reader)
        joins.append(joined)
        return joined

    monkeypatch.setattr(ReplyReader, "_join_pieces", counted)
    data = encode_reply(b"x" * 100_000, 2)
    assert read_all([data[at : at + 10] for at in range(0, len(data), 10)]) == [b"x" * 100_000]
    assert sum(joins) == 2  # the header, then all the rest


# ---------------------------------------------------------------- there and back

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
LINE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)
CODE = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=12)
ERRORS = st.builds(ReplyError, CODE, LINE)
PLAIN = (
    st.none()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.binary(max_size=40)
    | st.binary(min_size=1020, max_size=1030)
    | LINE.map(Simple)
    | ERRORS
)
RICH = PLAIN | st.booleans() | st.integers() | st.floats(allow_nan=False)


def nested(scalars: st.SearchStrategy[Reply], *, maps: bool) -> st.SearchStrategy[Reply]:
    """Return arrays, and maps if the protocol has them, of scalars."""
    keys = st.binary(max_size=8) | LINE.map(Simple) | st.integers(-1000, 1000)

    def extend(inner: st.SearchStrategy[Reply]) -> st.SearchStrategy[Reply]:
        lists = st.lists(inner, max_size=5)
        return lists | st.dictionaries(keys, inner, max_size=4) if maps else lists

    return st.recursive(scalars, extend, max_leaves=20)


def cut(data: bytes, lengths: Sequence[int]) -> list[bytes]:
    pieces = []
    for length in lengths:
        pieces.append(data[:length])
        data = data[length:]
    return [*pieces, data]


@settings(deadline=None, max_examples=300)
@given(
    values=st.lists(nested(RICH, maps=True), min_size=1, max_size=4),
    lengths=st.lists(st.integers(1, 50), max_size=20),
)
def test_resp3_brings_back_what_was_written(values: list[Reply], lengths: list[int]) -> None:
    data = b"".join(encode_reply(value, 3) for value in values)
    assert read_all(cut(data, lengths)) == values


@settings(deadline=None, max_examples=300)
@given(
    values=st.lists(nested(PLAIN, maps=False), min_size=1, max_size=4),
    lengths=st.lists(st.integers(1, 50), max_size=20),
)
def test_resp2_brings_back_what_it_has_forms_for(values: list[Reply], lengths: list[int]) -> None:
    data = b"".join(encode_reply(value, 2) for value in values)
    assert read_all(cut(data, lengths)) == values


@settings(deadline=None)
@given(value=nested(RICH, maps=True))
def test_replies_are_read_when_cut_at_every_byte(value: Reply) -> None:
    data = encode_reply(value, 3)
    assert read_all([data[i : i + 1] for i in range(len(data))]) == [value]


@settings(deadline=None)
@given(args=st.lists(st.binary(max_size=40) | TEXT | st.integers(), min_size=1, max_size=8))
@example(args=[b"", "", 0, -1])
def test_a_command_is_an_array_of_bulk_strings(args: list[bytes | str | int]) -> None:
    expected = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
    assert read(encode_command(args)) == expected


# ---------------------------------------------------------------- writing


def test_commands_as_bytes() -> None:
    assert encode_command(["PING"]) == b"*1\r\n$4\r\nPING\r\n"
    assert (
        encode_command(("é", b"\r\n", 12)) == b"*3\r\n$2\r\n\xc3\xa9\r\n$2\r\n\r\n\r\n$2\r\n12\r\n"
    )


def test_commands_that_the_server_would_not_answer_are_refused() -> None:
    with pytest.raises(ValueError, match="at least a name"):
        encode_command([])


@pytest.mark.parametrize("arg", [True, 1.5, None, [b"x"]])
def test_arguments_of_other_types_are_refused(arg: object) -> None:
    with pytest.raises(TypeError):
        encode_command(["PING", arg])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("value", "resp2", "resp3"),
    [
        (None, b"$-1\r\n", b"_\r\n"),
        (True, b":1\r\n", b"#t\r\n"),
        (False, b":0\r\n", b"#f\r\n"),
        (7, b":7\r\n", b":7\r\n"),
        (1 << 63, b"$19\r\n9223372036854775808\r\n", b"(9223372036854775808\r\n"),
        (-(1 << 63), b":-9223372036854775808\r\n", b":-9223372036854775808\r\n"),
        (1.5, b"$3\r\n1.5\r\n", b",1.5\r\n"),
        (math.inf, b"$3\r\ninf\r\n", b",inf\r\n"),
        ("né", b"$3\r\nn\xc3\xa9\r\n", b"$3\r\nn\xc3\xa9\r\n"),
        (Simple("OK"), b"+OK\r\n", b"+OK\r\n"),
        (b"", b"$0\r\n\r\n", b"$0\r\n\r\n"),
        ((1, [b"a"]), b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n", b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n"),
        (
            {"a": 1, "b": None},
            b"*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n$-1\r\n",
            b"%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n_\r\n",
        ),
        (ReplyError("ERR", "a\r\nb\x85c"), b"-ERR a  b c\r\n", b"-ERR a  b c\r\n"),
        (
            ReplyError("ERR", "é" * 600),
            b"-ERR " + "é".encode() * 512 + b"\r\n",
            b"-ERR " + "é".encode() * 512 + b"\r\n",
        ),
        (
            ReplyError("ERR", "x" + "é" * 600),
            b"-ERR x" + "é".encode() * 511 + b"\r\n",
            b"-ERR x" + "é".encode() * 511 + b"\r\n",
        ),
        (ReplyError("ERR", "a\ud800b"), b"-ERR a?b\r\n", b"-ERR a?b\r\n"),
    ],
)
def test_answers_as_bytes(value: Answer, resp2: bytes, resp3: bytes) -> None:
    assert encode_reply(value, 2) == resp2
    assert encode_reply(value, 3) == resp3


@pytest.mark.parametrize(
    "value",
    [
        Simple("a\r\nb"),
        Simple("a\n"),
        ReplyError("", "x"),
        ReplyError("A B", "x"),
        ReplyError("A\r", "x"),
    ],
)
def test_what_would_break_a_line_is_refused(value: Answer) -> None:
    with pytest.raises(ValueError, match=r"line|word"):
        encode_reply([value], 3)


@pytest.mark.parametrize("value", [object(), {1, 2}, bytearray(b"x")])
def test_what_has_no_form_on_the_wire_is_refused(value: Answer) -> None:
    with pytest.raises(TypeError, match="no form on the wire"):
        encode_reply(value, 2)


@pytest.mark.parametrize("resp", [0, 1, 4])
def test_there_are_two_protocols(resp: int) -> None:
    with pytest.raises(ValueError, match="2 or 3"):
        encode_reply(None, resp)


def test_importing_the_wire_loads_nothing_heavy() -> None:
    heavy = {"asyncio", "socket", "ssl", "structlog", "_wheeld", "cffi", "typing_extensions"}
    code = f"import sys, wheel.wire; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
