"""Worker processes that empty a queue in batches (bench/drain/drain.c), and PINGs beside them.

For Redis a claim is the Lua script everybody writes: due members out of the queue, into a second
sorted set with the end of their lease, and back to the caller; an acknowledgement takes them out of
that.
"""

import os
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import ROOT, BenchError, middle
from bench.peers import Peer, Wire

SOURCE: Final = ROOT / "bench" / "drain" / "drain.c"
CFLAGS: Final = ("-std=c11", "-O2")
PING_PAUSE_S: Final = 0.001
REPORT_TIMEOUT_S: Final = 120

CLAIM_LUA: Final = """
local jobs = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
if #jobs == 0 then return jobs end
local leased = {}
for i = 1, #jobs do leased[2 * i - 1] = ARGV[2]; leased[2 * i] = jobs[i] end
redis.call('ZREM', KEYS[1], unpack(jobs))
redis.call('ZADD', KEYS[2], unpack(leased))
return jobs
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What one worker did, or several together.

    Attributes:
        jobs: how many they acknowledged.
        early: how many of them came before they were due (wheeld tells the due time).
        last_ns: CLOCK_MONOTONIC when the last batch was acknowledged.
    """

    jobs: int
    early: int
    last_ns: int


def build(folder: Path) -> Path:
    """Return the compiled worker."""
    program = folder / "drain"
    command = [os.environ.get("CC", "gcc"), *CFLAGS, str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def drain(program: Path, server: Peer, *, workers: int, begin_ns: int) -> Drained:
    """Return what workers did until the queue was empty.

    Args:
        program: from ``build``.
        server: wheeld, or Redis.
        workers: how many processes.
        begin_ns: CLOCK_MONOTONIC at which they ask for the first time.

    Raises:
        BenchError: one failed, or did not end.
    """
    command = [str(program), server.name, str(server.port), str(begin_ns)]
    if server.name == "redis":
        sha = server.wire.ask("SCRIPT", "LOAD", CLAIM_LUA)
        if not isinstance(sha, bytes):
            raise BenchError(f"SCRIPT LOAD answered {sha!r}")
        command.append(sha.decode())
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(workers)
    ]
    parts: list[Drained] = []
    try:
        for process in processes:
            out, errors = process.communicate(timeout=REPORT_TIMEOUT_S)
            if process.returncode != 0:
                raise BenchError(f"a worker failed: {errors.strip()}")
            words = out.split()
            part = Drained(jobs=int(words[0]), early=int(words[1]), last_ns=int(words[2]))
            parts.append(part)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"a worker did not end within {REPORT_TIMEOUT_S} s") from error
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return Drained(
        jobs=sum(part.jobs for part in parts),
        early=sum(part.early for part in parts),
        last_ns=max(part.last_ns for part in parts),
    )


# ---------------------------------------------------------------- pings


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinged:
    """Round trips of a client that sends a PING every millisecond, in us."""

    p50_us: float
    p99_us: float
    max_us: float


class Pinger:
    """Pings from a thread; the waiting for worker processes beside it takes no CPU."""

    def __init__(self, port: int) -> None:
        self._wire = Wire(port)
        self._stop = threading.Event()
        self._took_us: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            start = time.perf_counter_ns()
            self._wire.sock.sendall(b"PING\r\n")
            self._wire.sock.recv(64)
            self._took_us.append((time.perf_counter_ns() - start) / 1000)
            time.sleep(PING_PAUSE_S)

    def stop(self) -> Pinged:
        """Return what was seen."""
        self._stop.set()
        self._thread.join()
        self._wire.close()
        took_us = sorted(self._took_us)
        rank = len(took_us) * 99 // 100
        return Pinged(p50_us=middle(took_us), p99_us=took_us[rank], max_us=took_us[-1])
