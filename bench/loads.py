"""Fillings: pipelined streams of SCHEDULE from this process, for what is measured afterwards."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from bench.harness import BenchError
from bench.peers import Peer, Wire

PAYLOAD: Final = (
    b'{"user":"42d5a9c0","mail":"welcome","lang":"en","try":false,"trace":"9f86d081884c7d65%013d"}'
)
PAYLOAD_BYTES: Final = 100
CHUNK: Final = 500  # commands a write; two chunks are in flight
FAR_MS: Final = 2_000_000_000_000  # 2033: nothing of it falls due while we measure
DAY_MS: Final = 86_400_000
RECV_BYTES: Final = 1 << 18
assert len(PAYLOAD % 1) == PAYLOAD_BYTES

_JOB: Final = b"*%d\r\n$8\r\nSCHEDULE\r\n$4\r\nmail\r\n$13\r\n%d\r\n$100\r\n" + PAYLOAD + b"\r\n"
_ID_REPLY: Final = b"$10\r\n4294967296\r\n"  # ids have 10 digits up to 5.7e9 - 2^32 jobs
_KEY_REPLY: Final = b"*3\r\n" + _ID_REPLY + b"$7\r\ncreated\r\n$9\r\nscheduled\r\n"


def stream(peer: Peer, commands: Iterator[bytes], reply: bytes) -> None:
    """Send commands as one pipeline and take their replies.

    Args:
        peer: where to.
        commands: encoded.
        reply: what an expected reply looks like; all have its length.

    Raises:
        BenchError: a reply is an error, or of another length.
    """
    wire = Wire(peer.port)
    owed_bytes = 0
    more = True
    while more or owed_bytes:
        chunk = list(islice(commands, CHUNK))
        more = len(chunk) == CHUNK
        if chunk:
            wire.sock.sendall(b"".join(chunk))
            owed_bytes += len(chunk) * len(reply)
        keep_bytes = CHUNK * len(reply) if more else 0
        while owed_bytes > keep_bytes:
            data = wire.sock.recv(RECV_BYTES)
            if not data or data.startswith(b"-") or b"\n-" in data:
                raise BenchError(f"{peer.name} answered {data[:200]!r}")
            owed_bytes -= len(data)
        if owed_bytes < 0:
            raise BenchError(f"{peer.name}: replies are longer than {reply!r}")
    wire.close()


def schedule(peer: Peer, dues_ms: Iterator[int]) -> None:
    """Schedule a job of 100 bytes for each due time."""
    stream(peer, (_JOB % (4, due_ms, i) for i, due_ms in enumerate(dues_ms)), _ID_REPLY)


def schedule_keyed(peer: Peer, dues_ms: Iterator[int]) -> None:
    """Schedule a job of 100 bytes with a key of 20 bytes for each due time."""
    keyed = _JOB + b"$3\r\nKEY\r\n$20\r\norder-%014d\r\n"
    stream(peer, (keyed % (6, due_ms, i, i) for i, due_ms in enumerate(dues_ms)), _KEY_REPLY)


def far_dues_ms(count: int) -> Iterator[int]:
    """Return due times spread over a day in 2033, in no order."""
    return (FAR_MS + i * 7_919_113 % DAY_MS for i in range(count))
