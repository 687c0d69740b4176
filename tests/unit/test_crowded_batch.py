"""The batch of a commit has to grow for the next record, and there is no memory for it.

Whatever writes the record is refused whole, or is done later, and everything goes on.
"""

from functools import cache

import pytest

from tests.allocations import failures
from tests.fed import Bench, Fed

PAYLOADS = (60_000, 60_000, 9_000)  # of a batch's first 128 KiB, all but a little
FILLERS = 80
SETUP = [
    "SCHEDULE h now x KEY leased LEASE 2000 TIMEOUT 30000",
    "LEASE h",
    "SCHEDULE h now x KEY marked LEASE 2000",
    "LEASE h",
    "CANCEL marked",
    "SCHEDULE dying now x KEY dead",
    "LEASE dying",
    "FAIL {2} DEAD",
    "SCHEDULE h now x KEY ready",
    "SCHEDULE h +1h x KEY scheduled",
    "SCHEDULE late now x KEY late EXPIRE +1s",
    "SCHEDULE mixed now x KEY expired EXPIRE +1s",
    "SCHEDULE mixed now x",
    "SCHEDULE filler +1h x KEY f",
]
COMMANDS = [
    "SCHEDULE h now x",
    "SCHEDULE h now x KEY ready ONCE token",
    "SCHEDULE h now x KEY scheduled ONDUP replace",
    "SCHEDULE fresh now x",
    "SCHEDULE h now x RETRIES 7",
    "LEASE h",
    "LEASE late",
    "ACK {0}",
    "DONE {0} result",
    "FAIL {0}",
    "FAIL {0} ERROR text",
    "FAIL {0} DEAD",
    "FAIL {1}",
    "RELEASE {0}",
    "RELEASE {0} IN 5000",
    "RELEASE {1}",
    "EXTEND {0} FOR 100000",
    "CANCEL ready",
    "CANCEL leased",
    "RESCHEDULE scheduled now",
    "RUN scheduled",
    "REQUEUE dead",
    "PURGE dead",
    "HANDLER h PAUSE",
]


def prepared(**options: int) -> tuple[Bench, list[str]]:
    """Return a bench with jobs in many states, and the receipts of its leases in their order."""
    bench = Bench(**options)
    conn = bench.open()
    receipts: list[str] = []
    for line in SETUP:
        reply = conn.ask(line.format(*receipts))
        assert not reply.startswith(b"-"), reply
        if line.startswith("LEASE"):
            receipts.append(reply.split(b"\r\n")[3].decode())
    conn.close()
    bench.settle()
    return bench, receipts


def crowd(conn: Fed, count: int, command: str) -> None:
    """Log large records, what a command does, and so many small ones."""
    for size in PAYLOADS:
        conn.feed(b"*4\r\n$8\r\nSCHEDULE\r\n$6\r\nfiller\r\n$3\r\n+1h\r\n")
        conn.feed(b"$%d\r\n%s\r\n" % (size, b"x" * size))
    conn.feed(command.encode() + b"\r\n")
    conn.feed(b"RESCHEDULE f +2h\r\n" * count)


@cache
def records_that_fit(command: str) -> int:
    """Return how many small records a batch holds before it has to grow."""
    for failure in failures():
        bench, receipts = prepared()
        conn = bench.open()
        with failure:
            crowd(conn, FILLERS, command.format(*receipts))
        bench.settle()
        refused = conn.take().partition(b"-OOM")
        if refused[1]:
            return refused[0].count(b"+OK")
    raise AssertionError("the batch never grew")


def crowded(command: str = "PING", less: int = 0, **options: int) -> tuple[Bench, list[str]]:
    """Return a bench as `prepared` whose next record has to make the open batch grow.

    Args:
        command: what was done last but for small changes.
        less: so many small records fewer, for a command that logs some before it.
        options: of the core.
    """
    bench, receipts = prepared(**options)
    crowd(bench.open(), records_that_fit(command) - less, command.format(*receipts))
    return bench, receipts


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_that_cannot_be_logged_is_refused_whole(line: str) -> None:
    refused = 0
    for failure in failures():
        bench, receipts = crowded()
        conn = bench.open()
        before = bench.core.state_hash(), bench.core.lsn()
        with failure:
            conn.feed(line.format(*receipts).encode() + b"\r\n")
        assert bench.core.check() == 0
        if failure.happened and bench.core.lsn() == before[1]:
            refused += 1
            assert bench.core.state_hash() == before[0]
        bench.settle()
        bench.check()
        bench.core.close()
    assert refused > 0


@pytest.mark.parametrize("receipt", [0, 1], ids=["running", "marked"])
@pytest.mark.parametrize("way", ["BOUND", ""], ids=["bound", "unsent"])
def test_what_a_lost_connection_leaves_is_settled_later(way: str, receipt: int) -> None:
    """Bound leases are lost, grants that were not sent go back: at the latest when they end."""
    for failure in failures():
        bench, receipts = prepared()
        conn = bench.open()
        conn.ask(f"RELEASE {receipts[receipt]}")
        conn.ask("SCHEDULE h now x KEY marked2")
        conn.ask("CANCEL ready")
        conn.feed(f"LEASE h COUNT 9 {way}\r\n".encode())
        bench.settle()
        if way:
            conn.take()
        if receipt:
            bench.open().ask("CANCEL marked2")
        crowd(bench.open(), records_that_fit("PING"), "PING")
        with failure:
            bench.core.fed_close(conn.handle)
        assert bench.core.check() == 0
        bench.settle()
        for _ in range(30):
            bench.advance(10_000)
            bench.settle()
        bench.check()
        assert bench.open().ask("COUNT STATE leased") == b":0\r\n"
        bench.core.close()


@pytest.mark.parametrize("ms", [1_000, 6_000, 31_000], ids=["expired", "lost", "timed out"])
def test_what_time_does_is_done_later(ms: int) -> None:
    counts = set()
    for failure in failures():
        bench, _receipts = crowded()
        bench.wall_ms += ms
        bench.boot_ms += ms
        with failure:
            bench.core.tick(bench.clocks())
        assert bench.core.check() == 0
        bench.settle()
        for _ in range(30):
            bench.advance(10_000)
            bench.settle()
        bench.check()
        conn = bench.open()
        counts.add(tuple(conn.ask(f"COUNT STATE {s}") for s in ("leased", "dead", "ready")))
        bench.core.close()
    assert len(counts) == 1


@pytest.mark.parametrize(
    ("option", "command"),
    [
        ("ended_max", "CANCEL late"),
        ("once_max", "SCHEDULE h +1h x ONCE t"),
        ("dead_max", "FAIL {0} DEAD"),
    ],
)
def test_what_is_to_be_forgotten_is_forgotten_by_the_next_command(
    option: str, command: str
) -> None:
    for less in range(4):
        for failure in failures():
            bench, _receipts = crowded(command, less, **{option: 1})
            conn = bench.open()
            with failure:
                conn.feed(b"SCHEDULE h now x\r\n")
            assert bench.core.check() == 0
            bench.settle()
            bench.open().ask("SCHEDULE h now x")
            bench.check()
            figures = bench.core.engine_figures()
            left = {"ended_max": "ended_count", "once_max": "once_count", "dead_max": "jobs_dead"}
            assert figures[left[option]] <= 1
            bench.core.close()


def test_a_first_record_that_finds_no_memory_for_a_batch_is_refused_whole() -> None:
    """While the only other batch is with the disk."""
    for failure in failures():
        bench, _receipts = prepared()
        conn = bench.open()
        conn.feed(b"RESCHEDULE f +2h\r\n")
        while (batch := bench.core.take_batch()) is None:
            pass
        before = bench.core.state_hash(), bench.core.lsn()
        with failure:
            conn.feed(b"CANCEL ready\r\n")
        if failure.happened and failure.number == 1:
            assert (bench.core.state_hash(), bench.core.lsn()) == before
        bench.frames.append(batch.frame)
        bench.core.batch_durable(batch.lsn)
        bench.check()
        bench.core.close()


def test_an_expired_job_that_cannot_end_keeps_its_handler_waiting_and_no_longer() -> None:
    for failure in failures():
        bench, _receipts = prepared()
        bench.advance(1500)  # over, and no sweep has been by
        crowd(bench.open(), records_that_fit("PING"), "PING")
        conn = bench.open()
        with failure:
            conn.feed(b"LEASE mixed COUNT 2\r\n")
        assert bench.core.check() == 0
        bench.settle()
        bench.check()
        bench.core.close()
