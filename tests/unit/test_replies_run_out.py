"""The buffer of replies has to grow in the middle of one, and there is no memory for it."""

import pytest

from tests.fed import Bench
from tests.unit.test_memory_runs_out import fail_allocation
from wheel.engine.records import Kind, Record, encode

LINES = ["LEASE h COUNT 2", "LEASE owned", "JOB failed", "DEAD", "JOBS COUNT 9", "HANDLERS"]
WIDTHS = range(0, 560, 3)  # of what stands in front of it: the buffer grows at each byte of a reply


def prepared() -> Bench:
    bench = Bench()
    conn = bench.open()
    for line in ("SCHEDULE h now payload KEY k META meta GROUP g", "SCHEDULE h now x KEY failed"):
        conn.ask(line)
    for _ in range(2):
        conn.ask("SCHEDULE dying now x KEY d RETRIES 1")
        receipt = conn.ask("LEASE dying WORKER w").split(b"\r\n")[3].decode()
        conn.ask(f"FAIL {receipt} IN 0 ERROR why")
    op = {"name": b"owned", "due_ms": 0, "flags": 0, "priority": 1}
    owner = b"daily@2027-01-15\n1800000000000\n2027-01-15"
    bench.core.submit(encode(Record(kind=Kind.CREATED, owner=owner, **op)))
    bench.settle()
    return bench


@pytest.mark.parametrize("line", LINES)
def test_a_reply_is_whole_or_its_connection_is_closed(line: str) -> None:
    bench = prepared()
    whole = bench.open().ask("COUNT")
    for width in WIDTHS:
        for n in range(1, 9):
            conn = bench.open()
            fail_allocation(n)
            conn.feed(b"PING " + b"p" * width + b"\r\n" + line.encode() + b"\r\nPING\r\n")
            failed = fail_allocation(0) >= n
            bench.settle()
            reply = conn.take()
            assert bench.core.check() == 0
            assert conn.finished or reply.endswith(b"+PONG\r\n") or b"-OOM" in reply
            conn.close()
            bench.settle()
            if not failed:
                break
    assert bench.open().ask("COUNT") == whole
    bench.check()


def test_a_connection_forgets_the_bound_grants_that_are_over() -> None:
    bench = Bench()
    conn = bench.open()
    for _ in range(3):
        for _half in range(2):
            conn.feed(b"SCHEDULE h now x\r\n" * 500)
            bench.settle()
            conn.take()
        reply = conn.ask("LEASE h COUNT 1000 BOUND")
        receipts = [part.decode() for part in reply.split(b"\r\n") if part.count(b".") == 2]
        assert len(receipts) == 1000
        for at in range(0, 900, 300):
            conn.ask("ACK " + " ".join(receipts[at : at + 300]))
    conn.close()
    bench.settle()
    assert bench.core.engine_figures()["jobs_leased"] == 0
    assert bench.core.engine_figures()["lost"] == 300
    bench.check()
