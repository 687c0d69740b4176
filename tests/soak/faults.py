"""The faults of a soak: what is done to the server, its workers, its disk and its port.

Each is a method that does its harm, lets it last, and takes it away again. What a fault needs for
that is time, so each says how long it lasts; while it lasts nobody else does harm.
"""

import contextlib
import random
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.certificates import Certificate
from tests.process import ROOT, Connection, Server
from tests.soak.ledger import Ledger
from tests.soak.peer import pause
from wheel.wire import encode_command

STOP_S: Final = 3.0
WORKER_STOP_S: Final = 5.0  # longer than a lease and its grace
FULL_S: Final = 8.0
SLOW_S: Final = 6.0
SLOW_SYNC_MS: Final = 1_500
STORM_RATE: Final = 1_000
STORM_S: Final = 3.0
READER_S: Final = 5.0
GARBAGE: Final = 60  # connections
BURST: Final = 100_000
HTTP: Final = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
HELLO: Final = bytes.fromhex("16030100c8010000c40303") + bytes(range(190))  # of TLS
DEADLINE_S: Final = 120.0


class Crew:
    """The peers as processes.

    Attributes:
        workers: by number.
    """

    def __init__(self, ledger: Path, port: int, runs: Path) -> None:
        self._arguments = (str(ledger), str(port))
        self._runs = str(runs)
        self.producer = self._spawn("producer", *self._arguments)
        self.workers = [self._worker(k) for k in range(2)]

    @staticmethod
    def _spawn(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "tests.soak.peer", *words]
        return subprocess.Popen(
            command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL
        )

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        return self._spawn("worker", *self._arguments, str(number), self._runs)

    def replace(self, number: int) -> None:
        """kill -9 a worker; another one takes its place."""
        self.workers[number].kill()
        self.workers[number].wait()
        self.workers[number] = self._worker(number)

    def ended(self) -> list[str]:
        """Return the peers that are gone although nobody told them to go."""
        all_of = {"producer": self.producer, "w0": self.workers[0], "w1": self.workers[1]}
        return [f"{name} ended with {p.returncode}" for name, p in all_of.items() if p.poll()]

    def close(self) -> None:
        """End them."""
        for process in (self.producer, *self.workers):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


class Faults:
    """All faults that do not end the server, in their order."""

    def __init__(
        self,
        server: Server,
        crew: Crew,
        ledger: Ledger,
        *,
        folder: Path,
        certificate: Certificate | None,
        tls_port: int,
        seed: int,
    ) -> None:
        self._server = server
        self._crew = crew
        self._ledger = ledger
        self._folder = folder
        self._certificate = certificate
        self._tls_port = tls_port
        self._rng = random.Random(seed)
        self.scale = 1.0  # how large those are whose size sets how much memory there ever was
        self.rotation: list[Callable[[], None]] = [
            self.burst,
            self.kill_worker,
            self.storm,
            self.stop_server,
            self.garbage,
            self.stop_worker,
            self.full_disk,
            self.reader_that_stops,
            self.slow_sync,
            self.tls_bytes,
        ]

    def kill_worker(self) -> None:
        """kill -9 a worker that holds leases."""
        self._crew.replace(self._rng.randrange(2))

    def stop_worker(self) -> None:
        """A worker stops for longer than its leases, reads nothing, and goes on as if nothing."""
        worker = self._crew.workers[self._rng.randrange(2)]
        worker.send_signal(signal.SIGSTOP)
        pause(WORKER_STOP_S)
        worker.send_signal(signal.SIGCONT)

    def storm(self) -> None:
        """Connections, a thousand a second, that stay open and are then dropped at once."""
        words = (str(self._server.port), str(int(STORM_RATE * self.scale)), str(STORM_S))
        storm = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.storm", *words],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        pause(STORM_S + 1)
        storm.communicate(timeout=DEADLINE_S)

    def stop_server(self) -> None:
        """SIGSTOP: as a machine that is suspended, or a hypervisor that looks elsewhere."""
        self._server.signal(signal.SIGSTOP)
        pause(STOP_S)
        self._server.signal(signal.SIGCONT)

    def garbage(self) -> None:
        """Random bytes, HTTP and half a command on many connections; each is hung up on."""
        for number in range(GARBAGE):
            data = self._rng.randbytes(self._rng.randrange(1, 4000))
            if number % 4 == 1:
                data = HTTP
            elif number % 4 == 2:
                data = encode_command(("SCHEDULE", "soak.x", "now", "x" * 900))[:-300]
            elif number % 4 == 3:
                data = b"*3\r\n$8\r\nSCHEDULE\r\n$-1\r\n" + data
            self._send_raw(self._server.port, data)

    def tls_bytes(self) -> None:
        """TLS on the plain port; on the TLS port garbage, half a handshake, some whole ones."""
        for _ in range(GARBAGE // 2):
            self._send_raw(self._server.port, HELLO)
            self._send_raw(self._tls_port, self._rng.randbytes(200))
            self._send_raw(self._tls_port, HELLO[:50])
        if self._certificate is None:
            return
        context = ssl.create_default_context(cafile=self._certificate.certificate)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        for number in range(GARBAGE // 2):
            with contextlib.suppress(OSError):
                raw = socket.create_connection(("127.0.0.1", self._tls_port), timeout=DEADLINE_S)
                with raw, context.wrap_socket(raw) as sock:
                    sock.sendall(encode_command(("INFO",)) * (1 + number % 3))
                    if number % 2:
                        sock.recv(1 << 16)

    @staticmethod
    def _send_raw(port: int, data: bytes) -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock,
        ):
            sock.sendall(data)

    def full_disk(self) -> None:
        """No room for new files: SCHEDULE is refused once what is prepared is used up."""
        self._while_there("full", FULL_S)

    def slow_sync(self) -> None:
        """Each sync takes one and a half seconds."""
        self._while_there("slow", SLOW_S)

    def _while_there(self, name: str, seconds: float) -> None:
        path = self._folder / name
        path.touch()
        try:
            pause(seconds)
        finally:
            path.unlink()

    def reader_that_stops(self) -> None:
        """A client asks for a lot and does not read it."""
        with contextlib.suppress(OSError), Connection(self._server.port) as connection:
            connection.socket.settimeout(READER_S)
            ask = encode_command(("JOBS", "COUNT", 200)) * 400
            with contextlib.suppress(TimeoutError):
                connection.socket.sendall(ask)
            pause(READER_S)

    def burst(self) -> None:
        """A hundred thousand jobs beyond the rate, due now."""
        asked = self._ledger.get("burst_asked") + int(BURST * self.scale)
        self._ledger.put("burst_asked", asked)
        for _ in range(int(DEADLINE_S)):
            if self._ledger.get("burst_done") >= asked:
                return
            pause(1)
        raise AssertionError("the burst does not end")
