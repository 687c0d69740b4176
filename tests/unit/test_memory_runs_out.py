"""Any allocation may fail: nothing breaks, and a command that was refused has changed nothing."""

from contextlib import ExitStack, suppress

import pytest

from tests.allocations import failures
from tests.fed import TERM, Bench
from wheel.engine.core import Core, command_table, rights_table
from wheel.engine.records import Kind, Record, encode
from wheel.errors import CoreError, CoreMemoryError
from wheel.wire import encode_command

SETUP = [
    "SCHEDULE h now leased KEY leased META m",
    "LEASE h WORKER w",
    "SCHEDULE h now ready KEY ready EXPIRE +1h",
    "SCHEDULE h +1h scheduled KEY scheduled",
    "SCHEDULE dying now dead KEY dead",
]
RECEIPT = "{receipt}"
COMMANDS = [
    "SCHEDULE h now x",
    "SCHEDULE fresh now x PRIORITY 3 RETRIES 9 KEY new ONCE t META m GROUP g EXPIRE +5s",
    "SCHEDULE h now x PRIORITY 7",
    "SCHEDULE h now x RETRIES 77",
    "SCHEDULE h now x KEY ready",
    "SCHEDULE h now x KEY ready ONCE t",
    "SCHEDULE other now x KEY scheduled ONDUP replace PRIORITY 9 TIMEOUT 5 ONCE t",
    f"SCHEDULE h now {'x' * 60_000} KEY big",
    "LEASE h COUNT 10 WORKER somebody",
    "LEASE h COUNT 1000 BOUND",
    "LEASE nothing WAIT 1000",
    "LEASE nothing*,h2 WAIT 1000 WORKER w BOUND",
    f"ACK {RECEIPT}",
    f"DONE {RECEIPT} {'r' * 4000}",
    f"FAIL {RECEIPT} ERROR {'e' * 900}",
    f"FAIL {RECEIPT} DEAD ERROR e",
    f"FAIL {RECEIPT} ERROR e RESULT {'r' * 4000}",
    f"RELEASE {RECEIPT}",
    f"RELEASE {RECEIPT} IN 5000",
    f"EXTEND {RECEIPT} FOR 100000",
    "CANCEL ready scheduled leased dead nobody",
    "RESCHEDULE scheduled now",
    "RUN scheduled",
    "REQUEUE dead",
    "PURGE dead",
    "HANDLER h CONCURRENCY 5 RETRIES 2 PAUSE",
    "HANDLER unseen LEASE 5",
    "HANDLER * RESUME",
    "JOB ready",
    "JOBS COUNT 200",
    "DEAD",
    "COUNT",
    "HANDLERS",
    "PING",
    f"PING {'p' * 5000}",
    "NOSUCH",
]
# What Python answers: C keeps the arguments for it, and its reply.
BY_PYTHON = [
    "HELLO 3 AUTH user token SETNAME me",
    "AUTH user token",
    "QUIT",
    "RESET",
    "SELECT 0",
    "CLIENT SETNAME me",
    "COMMAND DOCS",
    "INFO limits",
    "CONFIG GET *",
    "TIME",
    "CLOCK ACCEPT",
    "SHUTDOWN",
    "SAVE",
    "BACKUP START",
    "CRON LIST",
]


def prepared() -> tuple[Bench, str]:
    """Return a bench with a job in each state, and the receipt of the leased one."""
    bench = Bench()
    conn = bench.open()
    receipt = ""
    for line in SETUP:
        reply = conn.ask(line)
        if line.startswith("LEASE"):
            receipt = reply.split(b"\r\n")[3].decode()
    dying = conn.ask("LEASE dying").split(b"\r\n")[3].decode()
    assert conn.ask(f"FAIL {dying} DEAD") == b"+DEAD\r\n"
    conn.close()
    bench.settle()
    return bench, receipt


def test_every_command_of_the_table_is_tried() -> None:
    tried = {line.split()[0] for line in COMMANDS + BY_PYTHON}
    table = {command.name for command in command_table()} | {
        right.command for right in rights_table()
    }
    assert table - tried == set()
    assert tried - table == {"NOSUCH"}


@pytest.mark.parametrize("line", BY_PYTHON, ids=[line[:40] for line in BY_PYTHON])
def test_a_command_for_python_that_meets_no_memory_closes_its_connection_at_most(line: str) -> None:
    for failure in failures(1):
        bench, _receipt = prepared()
        conn, other = bench.open(), bench.open()
        before = bench.core.state_hash()
        with failure:
            conn.feed(line.encode() + b"\r\n")
            while (command := bench.core.slow_next()) is not None:
                with suppress(CoreMemoryError):
                    bench.core.slow_reply(command.handle, b"$3000\r\n" + b"r" * 3002, gated=True)
            bench.core.commit()
        assert bench.core.check() == 0
        assert bench.core.state_hash() == before
        assert other.ask("PING") == b"+PONG\r\n"
        conn.close()
        bench.check()
        bench.core.close()


def test_a_start_that_meets_no_memory_says_so_and_the_next_one_is_whole() -> None:
    """Making a core, replaying into it, starting it: each allocation of them."""
    bench, _receipt = prepared()
    frames, state = list(bench.frames), bench.core.state_hash()
    for failure in failures(11):
        started = False
        with ExitStack() as stack:
            with suppress(CoreError), failure:
                core = stack.enter_context(Core(bench.options))
                for frame in frames:
                    core.replay(frame, term=TERM)
                core.start(term=TERM + 1, rel_ms=bench.wall_ms, clocks=bench.clocks())
                started = True
            if started:
                assert core.check() == 0
                assert core.state_hash() == state
    assert started
    bench.core.close()


@pytest.mark.parametrize("line", COMMANDS, ids=[line[:40] for line in COMMANDS])
def test_a_command_that_meets_no_memory_is_refused_whole_or_done_whole(line: str) -> None:
    for failure in failures():
        bench, receipt = prepared()
        conn = bench.open()
        before, lsn = bench.core.state_hash(), bench.core.lsn()
        words = line.replace(RECEIPT, receipt).split()
        with failure:
            bench.core.fed_input(conn.handle, encode_command(words))
            bench.core.commit()
        assert bench.core.check() == 0
        if not failure.happened:
            bench.core.close()
            continue
        bench.settle()
        reply = conn.take()
        if reply.startswith(b"-OOM"):
            assert (bench.core.state_hash(), bench.core.lsn()) == (before, lsn), failure.number
        session = bench.core.session(conn.handle)
        if session and not conn.finished and not session.waiting:
            assert conn.ask("PING") == b"+PONG\r\n" or conn.finished
        bench.check()
        conn.close()
        bench.check()
        bench.core.close()


ENDS = [
    f"ACK {RECEIPT}",
    f"DONE {RECEIPT} result",
    f"FAIL {RECEIPT} ERROR {'e' * 900}",
    f"FAIL {RECEIPT} DEAD ERROR e",
    f"RELEASE {RECEIPT}",
    "CANCEL k{number}",
]
MANY = 40


@pytest.mark.parametrize("line", ENDS, ids=[line[:14] for line in ENDS])
def test_no_end_of_a_job_is_refused_for_memory(line: str) -> None:
    """The transitions take none. A buffer of the connection may fail to grow, which closes it."""
    for failure in failures(1):
        bench = Bench()
        conn, data = bench.open(), b""
        for number in range(MANY):
            conn.ask(f"SCHEDULE h now x KEY k{number} RETRIES 0")
            receipt = conn.ask("LEASE h").split(b"\r\n")[3].decode() if RECEIPT in line else ""
            data += encode_command(line.format(receipt=receipt, number=number).split())
        ending = bench.open()
        before = bench.core.lsn()
        with failure:
            bench.core.fed_input(ending.handle, data)
            bench.core.commit()
        bench.settle()
        assert b"-" not in ending.take()
        ended = bench.core.lsn() - before
        assert ended == MANY or (failure.happened and ending.finished)
        bench.check()
        bench.core.close()


@pytest.mark.parametrize("event", ["lease lost", "timed out", "due", "expired", "wait over"])
def test_a_tick_that_meets_no_memory_leaves_the_rest_to_the_next_one(event: str) -> None:
    lines, ms = {
        "lease lost": (["SCHEDULE h now x LEASE 1000", "LEASE h"], 2000),
        "timed out": (["SCHEDULE h now x TIMEOUT 1000 RETRIES 0 KEY k", "LEASE h"], 1000),
        "due": (["SCHEDULE h +1s x"] * 5, 1000),
        "expired": (["SCHEDULE h now x EXPIRE +1s"] * 3, 6000),
        "wait over": (["SCHEDULE h +1s x", "LEASE h WAIT 1000", "LEASE h,i* WAIT 1000"], 1000),
    }[event]
    found = set()
    for failure in failures():
        bench = Bench()
        for line in lines:
            bench.open().ask(line)
        bench.wall_ms += ms
        bench.boot_ms += ms
        with failure:
            bench.core.tick(bench.clocks())
        assert bench.core.check() == 0
        for _ in range(40):
            bench.advance(500)
            bench.settle()
        bench.check()
        conn = bench.open()
        counts = " ".join(
            conn.ask(f"COUNT STATE {state}").decode().strip()
            for state in ("scheduled", "ready", "dead", "leased")
        )
        found.add(counts)
        bench.core.close()
    assert len(found) == 1, "the last one met no failure"


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "asks"])
def test_a_lease_that_finds_work_and_no_memory_is_served_in_the_next_round(*, waits: bool) -> None:
    """Or its connection is closed. The frame in flight makes the next one take memory."""

    for failure in failures(3):
        bench = Bench()
        conn, writer = bench.open(), bench.open()
        writer.ask("SCHEDULE h +1s x" if waits else "SCHEDULE h now x")
        if waits:
            conn.feed(b"LEASE h WAIT 60000\r\n")
        writer.feed(b"SCHEDULE other +1h x\r\n")
        flight = bench.core.take_batch()
        assert flight is not None
        with failure:
            if waits:
                bench.advance(1000)
            else:
                bench.core.fed_input(conn.handle, b"LEASE h WAIT 60000\r\n")
        bench.core.commit()
        bench.core.batch_durable(flight.lsn)
        bench.settle()
        assert conn.take().startswith(b"*1\r\n") or conn.finished, failure.number
        assert bench.core.check() == 0
        bench.core.close()


def test_a_connection_closed_without_memory_is_cleaned_up_whole() -> None:
    for failure in failures():
        bench = Bench()
        conn = bench.open()
        for _ in range(3):
            conn.ask("SCHEDULE h now x")
        conn.feed(b"LEASE h BOUND\r\nLEASE h\r\n")
        bench.settle()
        with failure:
            bench.core.fed_close(conn.handle)
        assert bench.core.check() == 0
        bench.check()
        for _ in range(20):
            bench.advance(10_000)
            bench.settle()
        assert bench.open().ask("COUNT STATE leased") == b":0\r\n", "none is held for ever"
        bench.core.close()


def test_a_submission_that_meets_no_memory_changes_nothing_but_names() -> None:
    ops = [
        Record(kind=Kind.CREATED, name=b"h", due_ms=0, flags=0, priority=5, owner=b"o"),
        Record(kind=Kind.CREATED, name=b"fresh", due_ms=0, flags=0, priority=1),
        Record(kind=Kind.CREATED, name=b"fresh", due_ms=0, flags=0, priority=2, key=b"k"),
        Record(kind=Kind.PUT, reason=1, name=b"n", blob=b"x" * 9000),
    ]

    for failure in failures(3):
        bench, _receipt = prepared()
        conn = bench.open()
        jobs = conn.ask("COUNT")
        refused = True
        with suppress(CoreMemoryError), failure:
            bench.core.submit(b"".join(map(encode, ops)))
            refused = False
        assert bench.core.check() == 0
        bench.settle()
        if refused:
            assert conn.ask("COUNT") == jobs
            assert not list(bench.core.table())
        else:
            assert conn.ask("COUNT") != jobs
        bench.check()
        bench.core.close()
