"""A server for the load generator that answers what a test wants, and keeps what it was sent."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from bench.peers import Peer

PATIENCE_S = 20
RECV_BYTES = 1 << 20

SHAS = ("--put-sha", "0" * 40, "--claim-sha", "1" * 40, "--ack-sha", "2" * 40)


@dataclass
class Fake:
    """Answers what it receives with one reply after the other; then it closes, or holds."""

    replies: Sequence[bytes]
    hold: bool = False
    got: list[bytes] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)

    def serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self.reached.set()
        with connection, suppress(ConnectionError):  # a generator that dies resets it
            connection.settimeout(PATIENCE_S)
            for reply in self.replies:
                data = connection.recv(RECV_BYTES)
                if not data:
                    return
                self.got.append(data)
                connection.sendall(reply)
            while self.hold and (data := connection.recv(RECV_BYTES)):
                self.got.append(data)


@contextmanager
def faking(fake: Fake, dialect: str = "wheeld") -> Iterator[Peer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        thread = threading.Thread(target=fake.serve, args=(listener,))
        thread.start()
        yield Peer(
            name="fake",
            port=listener.getsockname()[1],
            process=SimpleNamespace(pid=0),
            log=Path("none"),
            dialect=dialect,
            words=SHAS,
        )
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
