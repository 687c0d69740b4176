"""Bits that flip in the memory of a running server: nobody gets them, and no file does."""

import os
import signal
import struct
from pathlib import Path

import pytest

from tests.crash.test_checkpoints import fields
from wheel.wire import ReplyError

pytestmark = pytest.mark.crash

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
IN_MEMORY = 1 << 63  # of an entry of pagemap
RUN_PAGES = 256  # read at once
SMALL_MEMORY = ("--maxmemory", "256M")  # less to look through


def payload_of(size):
    """Return a payload that stands in the memory of a server only where one put it."""
    return b"".join(b"flips-%d-%d;" % (size, i) for i in range(size // 9 + 1))[:size]


def private(pid):
    """Yield (start, end) of what a process alone can write to."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        if rights == "rw-p":
            start, end = (int(number, 16) for number in span.split("-"))
            yield start, end


def present(pid, start, end):
    """Yield (start, end) of runs of pages that are in memory; most of the rest was never used."""
    pages = (end - start) // PAGE_BYTES
    with Path(f"/proc/{pid}/pagemap").open("rb", 0) as pagemap:
        pagemap.seek(start // PAGE_BYTES * 8)
        entries = struct.unpack(f"<{pages}Q", pagemap.read(8 * pages))
    first = None
    for i in range(pages + 1):
        there = i < pages and entries[i] & IN_MEMORY
        if there and first is None:
            first = i
        elif not there and first is not None:
            yield start + first * PAGE_BYTES, start + i * PAGE_BYTES
            first = None


def flip(server, payload):
    """Flip a bit of each copy of a payload in the memory of the server, which stands meanwhile."""
    pid, at, flipped = server.process.pid, len(payload) // 2, 0
    server.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    with Path(f"/proc/{pid}/mem").open("r+b", 0) as memory:
        for span in private(pid):
            for start, end in present(pid, *span):
                memory.seek(start)
                held, found = memory.read(end - start), -1
                while (found := held.find(payload, found + 1)) >= 0:
                    memory.seek(start + found + at)
                    memory.write(bytes([payload[at] ^ 4]))
                    flipped += 1
    server.signal(signal.SIGCONT)
    assert flipped


def leased(connection):
    """Return {id: payload} of what a LEASE of everything gets."""
    grants = connection.call("LEASE", "h", "COUNT", 10)
    return {grant[1]: grant[7] for grant in grants}


@pytest.fixture
def connection(server):
    """Return a connection to a fresh server."""
    server.start(*SMALL_MEMORY)
    with server.connect() as made:
        yield made


def schedule(connection, when, *sizes):
    """Schedule jobs between two others; return ids with payloads: theirs, and of the others."""
    before = connection.call("SCHEDULE", "h", "now", "before")
    jobs = {connection.call("SCHEDULE", "h", when, payload_of(n)): payload_of(n) for n in sizes}
    behind = connection.call("SCHEDULE", "h", "now", "behind")
    return jobs, {before: b"before", behind: b"behind"}


def test_what_changed_is_handed_to_nobody_and_a_restart_has_the_true_payloads(server, connection):
    jobs, others = schedule(connection, "now", 40, 60_000)
    for payload in jobs.values():
        flip(server, payload)
    assert leased(connection) == others
    for job in jobs:
        shown = fields(connection.call("JOB", job))
        assert (shown["state"], shown["reason"]) == (b"dead", b"corrupt")
    told = server.wait_event("payload_corrupted")
    assert (told["level"], told["jobs"], told["handler"]) == ("error", 2, "h")
    assert told["job"].encode() in jobs
    info = server.info()
    assert (info["payload_corrupt"], info["health"]) == ("2", "yellow")
    server.kill()
    server.start(*SMALL_MEMORY)
    assert server.info()["payload_corrupt"] == "0"
    with server.connect() as after:
        for job in jobs:
            assert fields(after.call("JOB", job))["reason"] == b"corrupt"
            after.call("REQUEUE", job)
        assert leased(after) == jobs


def test_checkpoints_put_back_what_changed_and_no_file_has_the_change(server, connection):
    jobs, _ = schedule(connection, "+1d", 40, 60_000)
    for mended in (2, 4):  # first the log has them alone, then the checkpoint
        for payload in jobs.values():
            flip(server, payload)
        connection.call("SCHEDULE", "h", "+1d", "another")
        saved = connection.call("SAVE")
        assert not isinstance(saved, ReplyError), saved
        for job in jobs:
            told = server.wait_event("payload_mended")
            assert (told["level"], told["job"]) == ("error", job.decode())
            assert told["size_bytes"] == len(jobs[job])
        info = server.info()
        assert (info["payload_corrupt"], info["payload_mended"]) == ("0", f"{mended}")
        assert (info["checkpoint_alarm"], info["health"]) == ("", "yellow")
    job = min(jobs)
    connection.call("RUN", job)
    flip(server, jobs[job])
    assert job not in leased(connection)  # dead; a checkpoint begins by itself
    assert server.wait_event("payload_mended")["job"] == job.decode()
    connection.call("REQUEUE", job)
    assert leased(connection) == {job: jobs.pop(job)}
    server.kill()
    server.start(*SMALL_MEMORY)
    with server.connect() as after:
        for job in jobs:
            after.call("RUN", job)
        assert leased(after) == jobs
