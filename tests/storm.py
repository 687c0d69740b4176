"""A storm of connections, as a process of its own: ``python -m tests.storm PORT RATE SECONDS``.

Connects RATE times a second and keeps what stays open. Prints one JSON document: how many were
made, how many the server turned away with its text, how many it dropped without one.
"""

import json
import select
import socket
import sys
import time
from typing import Final

STEP_S: Final = 0.002
TOLD: Final = b"-ERR max number of clients reached"


class Storm:
    """The connections of one storm."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._open: dict[int, socket.socket] = {}
        self._poll = select.epoll()
        self.made = 0
        self.told = 0
        self.dropped = 0

    def connect(self) -> bool:
        """Begin a connection; False when there is no descriptor or port for it just now."""
        try:
            sock = socket.socket()
        except OSError:
            return False
        sock.setblocking(False)
        try:
            sock.connect(self._address)
        except BlockingIOError:
            pass
        except OSError:
            sock.close()
            return False
        self.made += 1
        self._open[sock.fileno()] = sock
        self._poll.register(sock.fileno(), select.EPOLLIN)
        return True

    def look(self, timeout_s: float) -> None:
        """Take down what the server said."""
        for fd, _ in self._poll.poll(timeout_s):
            sock = self._open.pop(fd)
            try:
                text = sock.recv(200)
            except OSError:
                text = b""
            if text.startswith(TOLD):
                self.told += 1
            else:
                self.dropped += 1
            sock.close()

    def run(self, rate: int, seconds: float) -> None:
        """Connect at a rate for a while."""
        begin = time.monotonic()
        while (passed := time.monotonic() - begin) < seconds:
            while self.made < rate * passed and self.connect():
                pass
            self.look(STEP_S)

    def report(self) -> dict[str, int]:
        """Return what happened."""
        return {
            "made": self.made,
            "told": self.told,
            "dropped": self.dropped,
            "open": len(self._open),
        }


def main() -> None:
    """Run one storm; let go of everything at the end of stdin."""
    port, rate, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    storm = Storm(port)
    storm.run(rate, seconds)
    for _ in range(20):
        storm.look(0.05)
    print(json.dumps(storm.report()), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
