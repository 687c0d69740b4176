"""The servers that are measured: wheeld from this checkout, and the peers that are installed.

Redis with two ways to keep a job, beanstalkd, and PostgreSQL (bench/postgres.py). Every start is
on a free port of 127.0.0.1 and in a folder of its own; nothing of an earlier start is seen.

What stands beside what, by wheeld's ``--fsync``:

- ``off``: Redis without append-only file, beanstalkd without binlog, PostgreSQL with
  ``synchronous_commit off``;
- ``interval`` (50 ms): Redis ``everysec``, beanstalkd ``-f 50``, which is its default;
- ``always``: Redis ``appendfsync always``, beanstalkd ``-f 0``, which syncs in each command and
  knows no group commit, PostgreSQL with ``synchronous_commit on``.

So in ``off`` Redis and beanstalkd keep nothing on disk, while wheeld writes its log.
"""

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.harness import PATIENCE_S, ROOT, BenchError, cpu_us, free_port, resident_bytes, running
from wheel.wire import NotReady, Reply, ReplyError, ReplyReader, encode_command

RECV_BYTES: Final = 1 << 18
POLL_S: Final = 0.002

Words = Sequence[bytes | str | int]


class Wire:
    """One connection: commands out, replies in, in order."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = ReplyReader()

    def send(self, *words: bytes | str | int) -> None:
        """Send a command; its reply is for ``receive``."""
        self.sock.sendall(encode_command(words))

    def receive(self) -> Reply:
        """Return the next reply.

        Raises:
            BenchError: the server closed the connection.
        """
        while (reply := self._reader.gets()) is NotReady.NOT_READY:
            data = self.sock.recv(RECV_BYTES)
            if not data:
                raise BenchError("the server closed the connection")
            self._reader.feed(data)
        return reply

    def ask(self, *words: bytes | str | int) -> Reply:
        """Return the reply to one command."""
        self.send(*words)
        return self.receive()

    def number(self, *words: bytes | str | int) -> int:
        """Return the reply to one command that answers a number.

        Raises:
            BenchError: it answers something else.
        """
        reply = self.ask(*words)
        if not isinstance(reply, int):
            raise BenchError(f"{words[0]!r} answered {reply!r}")
        return reply

    def close(self) -> None:
        """Close."""
        self.sock.close()


@dataclass(slots=True, kw_only=True)
class Peer:
    """A running server.

    Attributes:
        name: for people.
        port: of 127.0.0.1.
        process: of the server.
        log: what it printed.
        dialect: in which the load generator talks to it.
        words: what the generator must be told for that: names of scripts.
        wire: a connection that speaks RESP; not for beanstalkd.
    """

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    dialect: str = "wheeld"
    words: tuple[str, ...] = ()
    wire: Wire = field(init=False)

    def cpu_us(self) -> float:
        """Return the CPU time it took so far."""
        return cpu_us(self.process.pid)

    def resident_bytes(self) -> int:
        """Return its memory."""
        return resident_bytes(self.process.pid)

    def jobs(self) -> int:
        """Return how many jobs it holds, leased ones included.

        Raises:
            BenchError: it answers something else.
        """
        if self.dialect == "beanstalkd":
            return beanstalkd_jobs(self.port)
        if self.dialect == "wheeld":
            return self.wire.number("COUNT")
        return self.wire.number("ZCARD", "due") + self.wire.number("ZCARD", "leased")

    def info(self, section: str) -> dict[str, str]:
        """Return a section of INFO, by name."""
        reply = self.wire.ask("INFO", section)
        if not isinstance(reply, bytes):
            raise BenchError(f"{self.name}: INFO answered {reply!r}")
        pairs = (line.partition(":") for line in reply.decode().splitlines())
        return {name: value for name, colon, value in pairs if colon}

    def histogram(self, name: str) -> dict[str, int]:
        """Return a histogram of wheeld's INFO: count, p50, p90, p99, p999, max."""
        pairs = (part.partition("=") for part in self.info("latency")[name].split(","))
        return {key: int(value) for key, _, value in pairs}

    @contextmanager
    def stopped(self) -> Generator[None, None, None]:
        """Stop it (SIGSTOP) while the block runs."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    @contextmanager
    def alone(self) -> Generator[None, None, None]:
        """Hang up while the block runs, so that the load's connections are all that there are.

        beanstalkd is not talked to meanwhile either; and a server may do for one connection what it
        does not do beside an idle one.
        """
        if self.dialect == "beanstalkd":
            yield
            return
        self.wire.close()
        try:
            yield
        finally:
            self.wire = Wire(self.port)

    def close(self) -> None:
        """Hang up."""
        self.wire.close()

    def wait(self, *words: str) -> None:
        """Return when it answers this command with something else than an error.

        Raises:
            BenchError: it ended, or takes too long.
        """
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                wire = Wire(self.port)
            except OSError:
                time.sleep(POLL_S)
                continue
            try:
                if not isinstance(wire.ask(*words), ReplyError):
                    self.wire = wire
                    return
            except (OSError, BenchError):
                pass
            wire.close()
            time.sleep(POLL_S)
        raise BenchError(f"{self.name} does not answer: {self.log.read_text()[-2000:]}")


# ---------------------------------------------------------------- wheeld


def wheeld_command(data: Path, port: int, fsync: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command line of our server."""
    words = ["-P", "-m", "wheeld", "serve", "--data", str(data), "--fsync", fsync, *options]
    return [sys.executable, *words, "--listen", f"127.0.0.1:{port}"]


@contextmanager
def wheeld(
    folder: Path, *, fsync: str, port: int = 0, options: Sequence[str] = ()
) -> Generator[Peer, None, None]:
    """Run wheeld over folder/data until the block ends.

    Args:
        folder: is made; a data directory already there is served again.
        fsync: always, interval or off.
        port: 0 = a free one.
        options: more of `wheeld serve`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    log = folder / "wheeld.log"
    command = wheeld_command(folder / "data", port, fsync, options)
    with running(command, log, PYTHONPATH=str(ROOT)) as process:
        peer = Peer(name="wheeld", port=port, process=process, log=log)
        peer.wait("COUNT")
        with closing(peer):
            yield peer


# ---------------------------------------------------------------- Redis

# A sorted set of payloads by due time is the least that a scheduler on Redis does. A claim moves
# members into a second set with the end of their lease, which is what everybody writes in Lua.
ZADD_CLAIM_LUA: Final = """
local jobs = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
if #jobs == 0 then return jobs end
local leased = {}
for i = 1, #jobs do leased[2 * i - 1] = ARGV[2]; leased[2 * i] = jobs[i] end
redis.call('ZREM', KEYS[1], unpack(jobs))
redis.call('ZADD', KEYS[2], unpack(leased))
return jobs
"""

# With a hash of payloads beside it a job has an id, under which it can be looked at or cancelled.
HSET_PUT_LUA: Final = """
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
return redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
"""
HSET_CLAIM_LUA: Final = """
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
if #ids == 0 then return ids end
local payloads = redis.call('HMGET', KEYS[3], unpack(ids))
local leased, jobs = {}, {}
for i = 1, #ids do
  leased[2 * i - 1] = ARGV[2]; leased[2 * i] = ids[i]
  jobs[2 * i - 1] = ids[i]; jobs[2 * i] = payloads[i]
end
redis.call('ZREM', KEYS[1], unpack(ids))
redis.call('ZADD', KEYS[2], unpack(leased))
return jobs
"""
HSET_ACK_LUA: Final = """
redis.call('ZREM', KEYS[1], unpack(ARGV))
return redis.call('HDEL', KEYS[2], unpack(ARGV))
"""
SCRIPTS: Final = {
    "zadd": {"--claim-sha": ZADD_CLAIM_LUA},
    "hset": {
        "--put-sha": HSET_PUT_LUA,
        "--claim-sha": HSET_CLAIM_LUA,
        "--ack-sha": HSET_ACK_LUA,
    },
}


def has_redis() -> bool:
    """Return whether Redis can be started here."""
    return shutil.which("redis-server") is not None


@contextmanager
def redis(folder: Path, *, append: str, dialect: str = "zadd") -> Generator[Peer, None, None]:
    """Run Redis in folder until the block ends.

    Args:
        folder: is made.
        append: value of ``appendfsync``, or ``none`` for no log at all.
        dialect: ``zadd``, or ``hset``: how jobs are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    words += ["--appendonly", "no" if append == "none" else "yes"]
    words += [] if append == "none" else ["--appendfsync", append]
    log = folder / "redis.log"
    with running(["redis-server", *words], log) as process:
        peer = Peer(name=f"Redis {dialect}", port=port, process=process, log=log, dialect=dialect)
        peer.wait("DBSIZE")
        with closing(peer):
            for option, script in SCRIPTS[dialect].items():
                sha = peer.wire.ask("SCRIPT", "LOAD", script)
                if not isinstance(sha, bytes):
                    raise BenchError(f"SCRIPT LOAD answered {sha!r}")
                peer.words += (option, sha.decode())
            yield peer


# ---------------------------------------------------------------- beanstalkd


def has_beanstalkd() -> bool:
    """Return whether beanstalkd can be started here."""
    return shutil.which("beanstalkd") is not None


@contextmanager
def beanstalkd(folder: Path, *, sync_ms: int | None) -> Generator[Peer, None, None]:
    """Run beanstalkd until the block ends.

    Args:
        folder: is made; its binlog goes there.
        sync_ms: at most so old is what is not synced; 0 = a sync in each command; None = no binlog.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    words = ["beanstalkd", "-l", "127.0.0.1", "-p", str(port)]
    words += [] if sync_ms is None else ["-b", str(folder), "-f", str(sync_ms)]
    log = folder / "beanstalkd.log"
    with running(words, log) as process:
        peer = Peer(name="beanstalkd", port=port, process=process, log=log, dialect="beanstalkd")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                beanstalkd_jobs(port)
                break
            except (OSError, BenchError) as error:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise BenchError(f"beanstalkd does not answer: {log.read_text()}") from error
                time.sleep(POLL_S)
        yield peer


def beanstalkd_jobs(port: int) -> int:
    """Return how many jobs beanstalkd holds.

    Raises:
        BenchError: it does not answer as it should.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sock.sendall(b"stats\r\n")
        with sock.makefile("rb") as file:
            head = file.readline()
            if not head.startswith(b"OK "):
                raise BenchError(f"beanstalkd answered {head!r} to stats")
            text = file.read(int(head.split()[1])).decode()
    pairs = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return sum(int(pairs[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed"))
