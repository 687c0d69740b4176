"""A worker whose machine vanishes, in a network namespace of its own.

``unshare -rn python -m tests.gone_peer FOLDER``: the worker waits in a LEASE from an address that
is then taken away, so no packet reaches it and none comes back. Prints after how many seconds the
server had given it up, and who was given the job that came then.
"""

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.process import Connection, Server

ADDRESS: Final = "10.99.99.9"
PATIENCE_S: Final = 60.0


def ip(*words: str) -> None:
    """Run the ip program."""
    subprocess.run(["ip", *words], check=True)


class FromAfar(Connection):
    """A connection from the address that goes."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.socket.close()
        self.socket = socket.create_connection(("127.0.0.1", port), source_address=(ADDRESS, 0))


def main() -> None:
    """Run the scene."""
    ip("link", "set", "lo", "up")
    ip("address", "add", f"{ADDRESS}/32", "dev", "lo")
    server = Server(Path(sys.argv[1]) / "data")
    server.start()
    with FromAfar(server.port) as gone, server.connect() as other, server.connect() as producer:
        gone.send(("LEASE", "h", "WAIT", 300_000))
        while server.info()["blocked_clients"] != "1":
            pass
        begin = time.monotonic()
        ip("address", "delete", f"{ADDRESS}/32", "dev", "lo")
        while server.info()["blocked_clients"] != "0":
            assert time.monotonic() - begin < PATIENCE_S
            time.sleep(0.1)
        print(f"given up after {time.monotonic() - begin:.1f} s")
        producer.call("SCHEDULE", "h", "now", "x")
        print("given to the other" if other.call("LEASE", "h") else "given to nobody")
    server.terminate()


if __name__ == "__main__":
    main()
