"""However a byte stream is cut, and whenever commits happen, the answers are the same."""

from hypothesis import given
from hypothesis import strategies as st

from tests.fed import Bench

LINES = [
    b"PING",
    b"PING 'a b'",
    b"",
    b"COUNT",
    b"SCHEDULE mail now hello",
    b"SCHEDULE mail +1h hello KEY k ONDUP replace",
    b'SCHEDULE mail now "a\\x00\\n"',
    b"LEASE mail COUNT 2",
    b"LEASE none WAIT 0",
    b"ACK 4294967296.7.4",
    b"CANCEL k",
    b"JOB k",
    b"SCHEDULE mail",
    b"PING 'open",
    b"INFO server",
    b"NOSUCH x",
]
RESP = [
    b"*1\r\n$4\r\nPING\r\n",
    b"*2\r\n$4\r\nPING\r\n$3\r\na\r\n\r\n",
    b"*4\r\n$8\r\nSCHEDULE\r\n$4\r\nmail\r\n$3\r\nnow\r\n$300\r\n" + b"\r" * 300 + b"\r\n",
    b"*0\r\n",
    b"*2\r\n$5\r\nCOUNT\r\n$0\r\n\r\n",
]
COMMANDS = st.sampled_from(
    [line + b"\r\n" for line in LINES] + [line + b"\n" for line in LINES] + RESP
)


def play(stream: bytes, cuts: list[int], commits: list[bool]) -> tuple[bytes, int]:
    """Return all that is answered, and the state's hash."""
    bench = Bench()
    fed = bench.open()
    reply = b""
    ends = [*sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    start = 0
    for number, end in enumerate(ends):
        fed.feed(stream[start:end])
        start = end
        if commits[number % len(commits)]:
            bench.settle()
            reply += b"".join(iter(fed.take, b""))
        assert bench.core.check() == 0
    fed.eof()
    bench.settle()
    reply += b"".join(iter(fed.take, b""))
    assert fed.finished
    found = reply, bench.core.state_hash()
    bench.core.close()
    return found


@given(
    commands=st.lists(COMMANDS, min_size=1, max_size=20),
    tail=st.sampled_from([b"", b"PING", b"*1\r\n$4\r\nPI", b"*1\r\n$x\r\nPING\r\n"]),
    cuts=st.lists(st.integers(min_value=0, max_value=5000), max_size=30),
    commits=st.lists(st.booleans(), min_size=1, max_size=7),
)
def test_cuts_and_commits_change_no_answer(
    commands: list[bytes], tail: bytes, cuts: list[int], commits: list[bool]
) -> None:
    stream = b"".join(commands) + tail
    assert play(stream, cuts, commits) == play(stream, [], [True])
