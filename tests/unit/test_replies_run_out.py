"""The buffer of replies has to grow in the middle of one, and there is no memory for it."""

import pytest

from tests.allocations import failures
from tests.fed import Bench
from wheel.engine.records import Kind, Record, encode

LEASES = ["LEASE h COUNT 2", "LEASE owned"]
LINES = [
    *LEASES,
    "ACK" + 8 * " {ended}",
    "EXTEND" + 8 * " {ended}",
    "JOB failed",
    "DEAD",
    "JOBS COUNT 9",
    "HANDLERS",
]
WIDTHS = range(0, 560, 3)  # of what stands in front of it: the buffer grows at each byte of a reply
OWNED = Record(
    kind=Kind.CREATED,
    name=b"owned",
    due_ms=0,
    flags=0,
    priority=1,
    owner=b"daily@2027-01-15\n1800000000000\n2027-01-15",
)


def prepared() -> tuple[Bench, str]:
    """Return a bench with jobs in most states, and the receipt of a grant that is over."""
    bench = Bench()
    conn = bench.open()
    conn.ask("SCHEDULE later +1h payload KEY k META meta GROUP g")
    conn.ask("SCHEDULE h now x KEY failed")
    receipt = ""
    for _ in range(2):
        conn.ask("SCHEDULE dying now x KEY d RETRIES 1")
        receipt = conn.ask("LEASE dying WORKER w").split(b"\r\n")[3].decode()
        conn.ask(f"FAIL {receipt} IN 0 ERROR why")
    conn.close()
    bench.settle()
    return bench, receipt


def supply(bench: Bench, line: str) -> None:
    """Let there be what a LEASE gives out: an earlier one may have taken what there was."""
    if line == "LEASE owned":
        bench.core.submit(encode(OWNED))
    elif line in LEASES:
        conn = bench.open()
        for _ in range(2):
            conn.ask("SCHEDULE h now payload META meta GROUP g")
        conn.close()
    bench.settle()


@pytest.mark.parametrize("line", LINES)
def test_a_reply_is_whole_or_its_connection_is_closed(line: str) -> None:
    bench, receipt = prepared()
    for width in WIDTHS:
        for failure in failures():
            supply(bench, line)
            whole = bench.open().ask("COUNT")
            conn = bench.open()
            with failure:
                text = line.format(ended=receipt).encode()
                conn.feed(b"PING " + b"p" * width + b"\r\n" + text + b"\r\nPING\r\n")
            bench.settle()
            reply = conn.take()
            assert bench.core.check() == 0
            assert conn.finished or reply.endswith(b"+PONG\r\n") or b"-OOM" in reply
            conn.close()
            bench.settle()
            assert bench.open().ask("COUNT") == whole
    bench.check()


@pytest.mark.parametrize(
    "line",
    [
        "NOSUCH",
        "ACK",
        "ACK nothing",
        "COUNT STATE none",
        "HANDLER unheard",
        "LEASE a*b",
        "LEASE h COUNT 0",
        "SCHEDULE h never x",
        "SCHEDULE h now x NOSUCH",
        "JOB \x01",
    ],
)
def test_a_refusal_is_told_or_its_connection_is_closed(line: str) -> None:
    """Whoever is told nothing takes the next reply for this one."""
    bench = Bench()
    for failure in failures():
        conn = bench.open()
        with failure:
            conn.feed(line.encode() + b"\r\nPING\r\n")
        bench.settle()
        reply = conn.take()
        assert conn.finished or (reply.startswith(b"-") and reply.endswith(b"+PONG\r\n")), reply
        conn.close()
    bench.check()


def test_a_connection_forgets_the_bound_grants_that_are_over() -> None:
    bench = Bench()
    conn = bench.open()
    for turn in range(3):
        for _half in range(2):
            conn.feed(b"SCHEDULE h now x\r\n" * 500)
            bench.settle()
            conn.take()
        reply = conn.ask("LEASE h COUNT 1000 BOUND")
        receipts = [part.decode() for part in reply.split(b"\r\n") if part.count(b".") == 2]
        assert len(receipts) == 1000
        for at in range(0, 900, 300):
            conn.ask("ACK " + " ".join(receipts[at : at + 300]))
        session = bench.core.session(conn.handle)
        assert session is not None
        assert session.leases_bound <= max(1024, 2 * 100 * turn) + 1000
    conn.close()
    bench.settle()
    assert bench.core.engine_figures()["jobs_leased"] == 0
    assert bench.core.engine_figures()["lost"] == 300
    bench.check()
