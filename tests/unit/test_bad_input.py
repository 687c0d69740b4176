"""Whatever is sent wrong gets its named error, changes nothing, and the connection goes on."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.fed import Bench, Fed
from wheel.wire import encode_command

SHOWN_BYTES = 64  # of a wrong value, in an error
SPAN_MS = 2_592_000_000
U32 = (1 << 32) - 1
SECRET = b"SECRET"

# What is wrong for each kind of argument, and the code that says so.
Wrong = dict[bytes, str]
NAME: Wrong = {
    b"": "SYNTAX",
    b"a\x00b": "SYNTAX",
    b"a\nb": "SYNTAX",
    b"\x7f": "SYNTAX",
    b"\xc2\x85": "SYNTAX",
    b"\xff": "SYNTAX",
    b"\xe4\xb8": "SYNTAX",
    b"\xed\xa0\x80": "SYNTAX",
    b"n" * 201: "LIMIT",
    "中".encode() * 67: "LIMIT",
}
HANDLER = NAME | dict.fromkeys([b"a,b", b"*", b"a*", b"*a", b" a", b"a "], "SYNTAX")
HANDLERS = dict.fromkeys(
    [b"", b",", b"a,", b",a", b"a,,b", b"*a", b"a*b", b"a, b", b"a ,b", b"\xff", b"n" * 201],
    "SYNTAX",
)
KEY = NAME | {b"0123": "SYNTAX"}
JOB = NAME | {b"9" * 19: "LIMIT", b"9" * 40: "LIMIT"}
WHEN: Wrong = {
    b"": "SYNTAX",
    b"soon": "SYNTAX",
    b"-5": "SYNTAX",
    b"+": "SYNTAX",
    b"+5x": "SYNTAX",
    b"+5M": "SYNTAX",
    b"+-5": "SYNTAX",
    b"1": "SYNTAX",
    b"1700000000": "SYNTAX",
    b"1700000000000.5": "SYNTAX",
    b"2027-01-15": "NAIVE_TIME",
    b"2027-01-15T08:00:00": "NAIVE_TIME",
    b"2027-02-30T08:00:00Z": "SYNTAX",
    b"2027-01-15T24:00:00Z": "SYNTAX",
    b"2027-01-15T08:00:00+5": "SYNTAX",
    b"1969-12-31T23:59:59Z": "LIMIT",
    b"+9999999999999d": "LIMIT",
    b"281474976710656": "LIMIT",
    b"9" * 40: "LIMIT",
}
RECEIPT = dict.fromkeys(
    [b"", b"1", b"1.2", b"1.2.3.4", b"a.b.c", b"1..3", b".1.2", b"-1.2.3", b"1.2.3 ", b"+1.2.3"],
    "SYNTAX",
) | {b"9" * 30 + b".1.2": "SYNTAX"}


def number(least: int, most: int) -> Wrong:
    wrong = dict.fromkeys([b"", b"x", b"-1", b"+1", b"1.5", b"1e3", b" 1", b"9" * 25], "SYNTAX")
    wrong |= {b"%d" % (most + 1): "LIMIT", b"%d" % ((1 << 64) - 1): "LIMIT"}
    return wrong | ({b"%d" % (least - 1): "LIMIT"} if least else {})


def sized(most: int) -> Wrong:
    return {b"": "LIMIT", b"x" * (most + 1): "LIMIT"}


WORD: Wrong = {b"": "SYNTAX", b"maybe": "SYNTAX", b"\x00": "SYNTAX"}


@dataclass(frozen=True, slots=True)
class Arg:
    """An argument: one that is right, and what would be wrong in its place."""

    good: bytes
    wrong: Wrong


H, W = Arg(b"h", HANDLER), Arg(b"+1h", WHEN)
SPAN, SPAN_1 = Arg(b"5", number(0, SPAN_MS)), Arg(b"5", number(1, SPAN_MS))
COUNTED = Arg(b"3", number(0, 1000))
R = Arg(b"4294967296.7.3", RECEIPT)
J = Arg(b"4294967296", JOB)
POLICY = {
    b"RETRIES": [COUNTED],
    b"LOST": [COUNTED],
    b"LEASE": [SPAN_1],
    b"TIMEOUT": [SPAN],
    b"BACKOFF": [Arg(b"fixed", WORD), SPAN],
}
PAGE = {
    b"HANDLER": [H],
    b"FROM": [W],
    b"TO": [W],
    b"KEYPREFIX": [Arg(b"k", sized(200))],
    b"COUNT": [Arg(b"9", number(1, 200))],
    b"CURSOR": [Arg(b"0", number(0, U32))],
}
STATE = {b"STATE": [Arg(b"ready", WORD)]}

# Each command: its arguments, then its options with theirs.
COMMANDS: dict[bytes, tuple[list[Arg], dict[bytes, list[Arg]]]] = {
    b"SCHEDULE": (
        [H, W, Arg(SECRET, {b"x" * 65_537: "LIMIT"})],
        POLICY
        | {
            b"KEY": [Arg(b"k", KEY)],
            b"ONCE": [Arg(b"t", sized(64))],
            b"META": [Arg(b"m", sized(1024))],
            b"GROUP": [Arg(b"g", NAME)],
            b"PRIORITY": [Arg(b"9", number(0, 255))],
            b"EXPIRE": [W],
        },
    ),
    b"LEASE": (
        [Arg(b"nobody", HANDLERS)],
        {
            b"COUNT": [Arg(b"2", number(1, 1000))],
            b"WAIT": [Arg(b"0", number(0, 300_000))],
            b"FOR": [SPAN_1],
            b"WORKER": [Arg(b"w", NAME)],
        },
    ),
    b"ACK": ([R, R], {}),
    b"DONE": ([R, Arg(b"result", {b"x" * 4097: "LIMIT"})], {}),
    b"FAIL": ([R], {b"IN": [SPAN], b"ERROR": [Arg(b"why", {})]}),
    b"RELEASE": ([R], {b"IN": [SPAN]}),
    b"EXTEND": ([R, R], {b"FOR": [SPAN_1]}),
    b"CANCEL": ([J, J], {}),
    b"REQUEUE": ([J, J], {}),
    b"PURGE": ([J, J], {}),
    b"RESCHEDULE": ([J, W], {}),
    b"RUN": ([J], {}),
    b"JOB": ([J], {}),
    b"JOBS": ([], PAGE | STATE),
    b"DEAD": ([], PAGE),
    b"COUNT": ([], {b"HANDLER": [H]} | STATE),
    b"HANDLER": (
        [Arg(b"h", {name: code for name, code in HANDLER.items() if name != b"*"})],
        POLICY | {b"CONCURRENCY": [Arg(b"2", number(0, U32))]},
    ),
}


def cases() -> Iterator[tuple[list[bytes], str]]:
    for verb, (args, options) in COMMANDS.items():
        good = [verb, *(arg.good for arg in args)]
        for at, arg in enumerate(args, 1):
            for wrong, code in arg.wrong.items():
                yield [*good[:at], wrong, *good[at + 1 :]], code
        for word, values in options.items():
            given = [arg.good for arg in values]
            for at, arg in enumerate(values):
                for wrong, code in arg.wrong.items():
                    yield [*good, word, *given[:at], wrong, *given[at + 1 :]], code
            yield [*good, word], "SYNTAX"
            yield [*good, word.lower(), *given[:-1]], "SYNTAX"
        if options or not args:
            yield [*good, b"NONSENSE", b"1"], "SYNTAX"
        for count in range(1 if len(set(map(id, args))) < len(args) else len(args)):
            yield [verb, *(b"x" for _ in range(count))], "SYNTAX"
    yield [b"SCHEDULE", b"h", b"now", b"p", b"KEY", b"k", b"KEY", b"k"], "SYNTAX"
    yield [b"SCHEDULE", b"h", b"now", b"p", b"KEY", b"k", b"ONDUP", b"maybe"], "SYNTAX"
    yield [b"SCHEDULE", b"h", b"now", b"p", b"KEY", b"k", b"WINDOW", b"3600001"], "LIMIT"
    yield [b"SCHEDULE", b"h", b"now", b"p", b"ONDUP", b"keep"], "SYNTAX"
    yield [b"SCHEDULE", b"h", b"now", b"p", b"WINDOW", b"5"], "SYNTAX"
    yield [b"SCHEDULE", b"h", b"now", b"p", b"LEASE", b"5", b"LEASE", b"5"], "SYNTAX"
    backoff = [b"SCHEDULE", b"h", b"now", b"p", b"BACKOFF"]
    yield [*backoff, b"exp", b"5", b"4"], "LIMIT"
    yield [*backoff, b"exp", b"5", b"9x"], "SYNTAX"
    yield [b"FAIL", R.good, b"DEAD", b"IN", b"5"], "SYNTAX"
    yield [b"FAIL", R.good, b"DEAD", b"DEAD"], "SYNTAX"
    yield [b"LEASE", b"h", b"BOUND", b"BOUND"], "SYNTAX"
    yield [b"EXTEND", b"FOR", b"5"], "SYNTAX"
    yield [b"HANDLER", b"h", b"PAUSE", b"RESUME"], "SYNTAX"
    yield [b"HANDLERS", b"h"], "SYNTAX"
    yield [b"PING", b"a", b"b"], "SYNTAX"
    yield [b"NOSUCH", b"a"], "UNKNOWN_COMMAND"
    yield [b"SCHEDULE\x00", b"h", b"now", b"p"], "UNKNOWN_COMMAND"
    yield [b""], "UNKNOWN_COMMAND"


CASES = list(cases())


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """A core with a job in each state, so that a command that went through would show."""
    bench = Bench()
    conn = bench.open()
    conn.ask(b"SCHEDULE h now x KEY leased")
    conn.ask(b"LEASE h")
    conn.ask(b"SCHEDULE h now x KEY ready")
    conn.ask(b"SCHEDULE h +1h x KEY scheduled")
    conn.ask(b"SCHEDULE dying now x")
    receipt = conn.ask(b"LEASE dying").split(b"\r\n")[3]
    assert conn.ask(b"FAIL %s DEAD" % receipt) == b"+DEAD\r\n"
    yield bench
    bench.check()


@pytest.fixture
def conn(bench: Bench) -> Iterator[Fed]:
    """A connection that must be good for more afterwards, over a state that must not change."""
    conn = bench.open()
    before, lsn = bench.core.state_hash(), bench.core.lsn()
    yield conn
    assert conn.ask(b"PING") == b"+PONG\r\n"
    assert (bench.core.state_hash(), bench.core.lsn()) == (before, lsn)
    assert bench.core.check() == 0
    conn.close()


@pytest.mark.parametrize(
    ("words", "code"),
    CASES,
    ids=[
        f"{i}-{words[0].decode(errors='replace')!r}-{code}" for i, (words, code) in enumerate(CASES)
    ],
)
def test_a_wrong_argument_gets_its_named_error_and_changes_nothing(
    conn: Fed, words: list[bytes], code: str
) -> None:
    conn.feed(encode_command(words))
    conn.bench.settle()
    reply = conn.take()
    assert reply.startswith(b"-" + code.encode() + b" ")
    assert reply.endswith(b"\r\n")
    assert reply.count(b"\r\n") == 1
    assert len(reply.split(b" ", 1)[1]) > 20, "says what, which value, what to do"
    assert SECRET not in reply
    reply.decode()


LONG = [
    [*words[:at], b"Q" * 5000, *words[at + 1 :]]
    for words in ([verb, *(arg.good for arg in args)] for verb, (args, _) in COMMANDS.items())
    for at in range(len(words))
    if not (words[0] == b"SCHEDULE" and at == 3)
]


@pytest.mark.parametrize("words", LONG, ids=[f"{i}-{w[-1][:9]!r}" for i, w in enumerate(LONG)])
def test_an_error_shows_no_more_than_64_bytes_of_a_value(conn: Fed, words: list[bytes]) -> None:
    conn.feed(encode_command(words))
    conn.bench.settle()
    reply = conn.take()
    assert reply.startswith(b"-")
    assert max((len(run) for run in re.findall(rb"Q+", reply)), default=0) <= SHOWN_BYTES
    assert len(reply) < 512


def test_a_character_cut_in_an_error_does_not_make_it_unreadable(conn: Fed) -> None:
    """The 64 bytes may end inside a character; what is sent is UTF-8 all the same."""
    conn.feed(encode_command(["RUN", "xx" + "中" * 100]))
    conn.bench.settle()
    reply = conn.take()
    assert reply.startswith(b"-LIMIT ")
    reply.decode()


def test_a_wrong_receipt_among_good_ones_stops_the_whole_call(conn: Fed) -> None:
    """Nothing was acknowledged: the caller mends the one and sends all again."""
    leased = conn.ask("JOB leased")
    assert b"leased" in leased
    for verb in ("ACK", "EXTEND"):
        reply = conn.ask(f"{verb} 4294967296.7.4 nonsense")
        assert reply.startswith(b"-SYNTAX receipt")


MOST = (1 << 64) - 1
PARTS = [b"0", b"7", b"%d" % MOST, b"00000000000000000000000000000000000007"]
NO_PARTS = [b"", b"%d" % (MOST + 1), b"9" * 20, b"9" * 64, b"-7", b"+7", b" 7", b"7 ", b"7x", b"\0"]


@pytest.mark.parametrize("at", range(3))
def test_a_receipt_is_three_numbers_of_64_bits(conn: Fed, at: int) -> None:
    def answer(*parts: bytes) -> bytes:
        conn.feed(encode_command([b"ACK", b".".join(parts)]))
        conn.bench.settle()
        return conn.take()

    fine = [b"4294967297", b"7", b"4"]
    for part in PARTS:
        reply = answer(*fine[:at], part, *fine[at + 1 :])
        assert reply.startswith((b"*1\r\n-UNKNOWN", b"*1\r\n-STALE")), part
    for part in NO_PARTS:
        assert answer(*fine[:at], part, *fine[at + 1 :]).startswith(b"-SYNTAX receipt"), part
    assert answer(*fine[: at + 1], b"1", *fine[at + 1 :]).startswith(b"-SYNTAX receipt")
    assert answer(*fine[:at], *fine[at + 1 :]).startswith(b"-SYNTAX receipt")


@pytest.mark.parametrize(
    "line", [b'PING "open', b"PING 'open", b'PING "a"b', b'PING "\\xZZ"', b"PING 'a'b"]
)
def test_a_line_that_cannot_be_split_is_refused_and_the_next_one_runs(
    conn: Fed, line: bytes
) -> None:
    assert conn.ask(line).startswith(b"-SYNTAX ")


def test_a_command_sent_in_halves_runs_once_it_is_whole(conn: Fed) -> None:
    data = encode_command(["PING", "whole"])
    for at in range(1, len(data)):
        conn.feed(data[:at])
        conn.bench.settle()
        assert conn.take() == b""
        conn.feed(data[at:])
        conn.bench.settle()
        assert conn.take() == b"$5\r\nwhole\r\n"


@pytest.mark.parametrize("at", [1, 5, 20, 40, 59])
def test_a_command_that_never_gets_whole_does_nothing(bench: Bench, conn: Fed, at: int) -> None:
    before = bench.core.state_hash()
    data = encode_command(["SCHEDULE", "h", "now", "payload", "KEY", "half"])
    other = bench.open()
    other.feed(data[:at])
    other.eof()
    bench.settle()
    assert other.take() == b""
    assert other.finished
    other.close()
    assert bench.core.state_hash() == before


@pytest.mark.parametrize(
    "data",
    [
        b"*2\r\n$4\r\nPING\r\n:5\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$x\r\n",
        b"*x\r\n",
        b"*1\r\n$9999999999\r\n",
        b"*99999\r\n",
        b"*1\r\n$4\r\nPINGxx",
        b"x" * 70_000,
    ],
)
def test_lost_framing_is_told_and_closes_this_connection_alone(
    bench: Bench, conn: Fed, data: bytes
) -> None:
    other = bench.open()
    other.feed(data)
    bench.settle()
    reply = other.take()
    assert reply.startswith(b"-ERR ")
    assert other.finished
    other.close()
