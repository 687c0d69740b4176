"""The output gate: no reply leaves before what it depends on is durable, reads included."""

import random
from collections.abc import Iterator

import pytest

from tests.c.mutate_conn import FAULTS
from tests.c.planting import Fault, assert_all_are_noticed, assert_stands_once
from tests.fed import Bench, Fed
from wheel.engine.core import DiskRoom
from wheel.wire import encode_command

SCHEDULE = b"SCHEDULE mail now hello\r\n"


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.check()
    bench.core.close()


def durable(bench: Bench) -> None:
    """Make exactly the next frame durable."""
    batch = bench.core.take_batch()
    assert batch is not None
    bench.frames.append(batch.frame)
    bench.core.batch_durable(batch.lsn)


def test_a_write_is_answered_only_when_it_is_durable(bench: Bench) -> None:
    fed = bench.open()
    fed.feed(SCHEDULE)
    assert fed.take() == b""
    batch = bench.core.take_batch()
    assert batch is not None
    assert fed.take() == b"", "taking a frame makes nothing durable"
    bench.frames.append(batch.frame)
    bench.core.batch_durable(batch.lsn - 1)
    assert fed.take() == b"", "the batch is not durable as a whole"
    bench.core.batch_durable(batch.lsn)
    assert fed.take().startswith(b"$")


def test_a_read_waits_for_what_it_saw_although_another_connection_wrote_it(bench: Bench) -> None:
    writer, reader = bench.open(), bench.open()
    writer.feed(SCHEDULE)
    reader.feed(b"COUNT\r\n")
    assert reader.take() == b""
    durable(bench)
    assert reader.take() == b":1\r\n"


def test_a_read_waits_for_the_frame_in_flight(bench: Bench) -> None:
    writer, reader = bench.open(), bench.open()
    writer.feed(SCHEDULE)
    batch = bench.core.take_batch()
    assert batch is not None
    reader.feed(b"COUNT\r\n")
    assert reader.take() == b""
    bench.frames.append(batch.frame)
    bench.core.batch_durable(batch.lsn)
    assert reader.take() == b":1\r\n"


def test_a_read_on_a_quiet_server_is_answered_at_once(bench: Bench) -> None:
    fed = bench.open()
    fed.ask("SCHEDULE mail now hello")
    fed.feed(b"COUNT\r\n")
    assert fed.take() == b":1\r\n"
    assert bench.core.take_batch() is None, "a read must not cause a commit"


def test_ping_leaves_at_once_if_nothing_is_before_it(bench: Bench) -> None:
    writer, other = bench.open(), bench.open()
    writer.feed(SCHEDULE)
    other.feed(b"PING\r\n")
    assert other.take() == b"+PONG\r\n"


def test_ping_waits_behind_a_gated_reply_of_its_own_connection(bench: Bench) -> None:
    fed = bench.open()
    fed.feed(b"PING\r\n" + SCHEDULE + b"PING\r\n")
    assert fed.take() == b"+PONG\r\n"
    assert fed.take() == b""
    durable(bench)
    reply = fed.take()
    assert reply.startswith(b"$")
    assert reply.endswith(b"+PONG\r\n")


def test_a_syntax_error_depends_on_nothing_but_order(bench: Bench) -> None:
    fed = bench.open()
    fed.feed(SCHEDULE + b"SCHEDULE mail\r\n")
    assert fed.take() == b""
    durable(bench)
    assert b"\r\n-" in fed.take()


def test_each_batch_opens_the_gate_just_as_far_as_it_goes(bench: Bench) -> None:
    fed = bench.open()
    fed.feed(b"SCHEDULE a now 1\r\n")
    first = bench.core.take_batch()
    assert first is not None
    fed.feed(b"SCHEDULE b now 2\r\nPING\r\n")
    assert fed.take() == b""
    bench.frames.append(first.frame)
    bench.core.batch_durable(first.lsn)
    reply = fed.take()
    assert reply.count(b"$") == 1
    assert b"PONG" not in reply
    durable(bench)
    reply = fed.take()
    assert reply.count(b"$") == 1
    assert reply.endswith(b"+PONG\r\n")


def test_one_frame_is_in_flight_and_the_next_gathers_what_comes_meanwhile(bench: Bench) -> None:
    feds = [bench.open() for _ in range(10)]
    feds[0].feed(SCHEDULE)
    first = bench.core.take_batch()
    assert first is not None
    for fed in feds[1:]:
        fed.feed(SCHEDULE)
    assert bench.core.take_batch() is None
    bench.frames.append(first.frame)
    bench.core.batch_durable(first.lsn)
    durable(bench)
    assert all(fed.take().startswith(b"$") for fed in feds)
    assert bench.core.take_batch() is None


def test_a_waiting_lease_is_answered_when_its_grant_is_durable(bench: Bench) -> None:
    worker, producer = bench.open(), bench.open()
    worker.feed(b"LEASE mail WAIT 1000\r\n")
    producer.feed(SCHEDULE)
    assert worker.take() == b""
    bench.settle()
    assert worker.take().startswith(b"*1\r\n*12\r\n")


def test_an_answer_by_python_goes_through_the_same_gate(bench: Bench) -> None:
    writer, asker = bench.open(), bench.open()
    writer.feed(SCHEDULE)
    asker.feed(b"INFO\r\nPING\r\n")
    bench.answer_python()
    assert asker.take() == b""
    durable(bench)
    assert asker.take() == b"+PYTHON\r\n+PONG\r\n"


def test_an_ungated_answer_by_python_leaves_at_once(bench: Bench) -> None:
    writer, asker = bench.open(), bench.open()
    writer.feed(SCHEDULE)
    asker.feed(b"INFO\r\n")
    command = bench.core.slow_next()
    assert command is not None
    assert command.arguments == (b"INFO",)
    assert bench.core.slow_reply(command.handle, b"+X\r\n", gated=False)
    bench.core.commit()
    assert asker.take() == b"+X\r\n"


def test_a_handle_dies_with_its_connection(bench: Bench) -> None:
    fed = bench.open()
    fed.feed(b"INFO\r\n")
    command = bench.core.slow_next()
    assert command is not None
    fed.close()
    other = bench.open()
    assert other.handle != command.handle
    other.feed(b"INFO\r\n")
    assert not bench.core.slow_reply(command.handle, b"+X\r\n", gated=False)
    bench.core.commit()
    assert other.take() == b""


def test_a_grant_that_never_left_is_given_back_and_counted_as_nothing(bench: Bench) -> None:
    fed = bench.open()
    fed.ask("SCHEDULE mail now hello")
    worker = bench.open()
    worker.feed(b"LEASE mail\r\n")
    bench.settle()
    assert worker.take(10)  # a part of the reply only
    worker.close()
    bench.settle()
    other = bench.open()
    attempt = other.ask("LEASE mail").split(b"\r\n")
    assert attempt[0] == b"*1"
    assert b":2" in attempt, "it is the second grant"
    job = other.ask("JOB 4294967296").split(b"\r\n")
    assert job[job.index(b"lost") + 1] == b":0"
    assert job[job.index(b"failures") + 1] == b":0"


def test_no_lease_goes_to_a_transport_that_takes_no_bytes(bench: Bench) -> None:
    worker, producer = bench.open(), bench.open()
    worker.feed(b"LEASE mail WAIT 60000\r\n")
    bench.core.fed_blocked(worker.handle, blocked=True)
    assert not bench.core.fed_wants_input(worker.handle)
    producer.ask("SCHEDULE mail now x")
    assert producer.ask("COUNT STATE leased") == b":0\r\n"
    bench.core.fed_blocked(worker.handle, blocked=False)
    bench.settle()
    assert worker.take().startswith(b"*1\r\n")


def test_closing_a_waiting_session_answers_it_empty_first(bench: Bench) -> None:
    worker = bench.open()
    worker.feed(b"LEASE mail WAIT 60000\r\nPING\r\n")
    bench.core.close_session(worker.handle)
    bench.settle()
    assert worker.take() == b"*0\r\n", "what stands behind is not run any more"
    assert worker.finished


def test_killing_a_waiting_session_hands_it_nothing(bench: Bench) -> None:
    worker, producer = bench.open(), bench.open()
    worker.feed(b"LEASE mail WAIT 60000\r\n")
    assert bench.core.kill_session(worker.handle)
    producer.ask("SCHEDULE mail now x")
    assert producer.ask("COUNT STATE leased") == b":0\r\n"
    output = bench.core.fed_output(worker.handle)
    assert (output.data, output.finished) == (b"", True)
    assert worker.handle in list(bench.core.fed_ready())


def test_a_command_refused_by_python_may_close_behind_its_reply(bench: Bench) -> None:
    fed = bench.open()
    fed.feed(b"QUIT\r\nPING\r\n")
    command = bench.core.slow_next()
    assert command is not None
    bench.core.close_session(command.handle)
    bench.core.slow_reply(command.handle, b"+OK\r\n", gated=False)
    bench.core.commit()
    assert fed.take() == b"+OK\r\n"
    assert fed.finished


def test_after_auth_the_narrow_limits_are_gone() -> None:
    bench = Bench(auth_required=True)
    fed = bench.open()
    assert fed.ask("SCHEDULE mail now x").startswith(b"-NOAUTH")
    bench.core.set_session(fed.handle, user="me", authed=True)
    assert fed.ask("SCHEDULE mail now " + "x" * 20_000).startswith(b"$")
    assert fed.ask("CANCEL 1 2 3 4 5 6 7 8 9 10 11 12").startswith(b"*12\r\n")
    bench.advance(11_000)
    assert fed.ask("PING") == b"+PONG\r\n", "no time-out any more"
    bench.check()


def test_undurable_commands_are_bounded_and_go_on_behind(bench: Bench) -> None:
    fed = bench.open()
    count = 5000
    fed.feed(b"SCHEDULE a now 1\r\n" * count)
    session = bench.core.session(fed.handle)
    assert session is not None
    assert session.commands == 4096
    assert not bench.core.fed_wants_input(fed.handle)
    bench.settle()
    reply = b"".join(iter(fed.take, b""))
    bench.settle()
    reply += b"".join(iter(fed.take, b""))
    assert reply.count(b"$") == count
    assert bench.core.fed_wants_input(fed.handle)


def test_bytes_that_are_not_durable_are_bounded_too(bench: Bench) -> None:
    fed = bench.open()
    command = encode_command(["SCHEDULE", "a", "+1h", "x" * 60_000])
    count, ran = 120, 0
    for _ in range(count):  # as they come from a socket, which stops behind the last that is run
        if not bench.core.fed_wants_input(fed.handle):
            break
        fed.feed(command)
        ran += 1
    session = bench.core.session(fed.handle)
    assert session is not None
    assert session.commands == ran == -(-(4 << 20) // len(command))
    bench.settle()
    assert fed.take().count(b"$") == ran
    assert bench.core.fed_wants_input(fed.handle)


def test_output_of_one_chunk_stops_at_the_limit(bench: Bench) -> None:
    fed = bench.open()
    payload = "x" * 60_000
    for _ in range(100):
        fed.ask(f"SCHEDULE big now {payload}")
    asker = bench.open()
    asker.feed(b"LEASE big COUNT 1000\r\n" * 1000)
    bench.settle()
    session = bench.core.session(asker.handle)
    assert session is not None
    assert session.output_bytes < 2 * 1024 * 1024
    assert session.input_bytes > 0
    reply = b""
    while data := asker.take():
        reply += data
        bench.settle()
    assert reply.count(b"*12\r\n") == 100, "every job came, each once"
    whole = reply.replace(payload.encode(), b"").split(b"\r\n")
    answers = [line for line in whole if line[:1] == b"*" and line != b"*12"]
    assert len(answers) == 1000, "every command was answered"


@pytest.mark.parametrize("seed", range(8))
def test_no_reply_leaves_before_its_batch_whatever_the_order(seed: int) -> None:
    """A model of the gate: each reply is tagged with the lsn that it needs."""
    dice = random.Random(seed)
    bench = Bench()
    feds = [bench.open() for _ in range(5)]
    expected: list[list[tuple[int, bytes]]] = [[] for _ in feds]
    got = [b"" for _ in feds]
    count = 0
    flight: int | None = None
    for _ in range(600):
        i = dice.randrange(len(feds))
        what = dice.randrange(5)
        if what == 0:
            feds[i].feed(b"SCHEDULE a +1h x\r\n")
            count += 1
            expected[i].append((bench.core.lsn(), b""))
        elif what == 1:
            feds[i].feed(b"COUNT\r\n")
            expected[i].append((bench.core.lsn(), b":%d\r\n" % count))
        elif what == 2:
            feds[i].feed(b"PING\r\n")
            expected[i].append((0, b"+PONG\r\n"))
        elif flight is None and (batch := bench.core.take_batch()) is not None:
            bench.frames.append(batch.frame)
            flight = batch.lsn
        elif flight is not None:
            bench.core.batch_durable(flight)
            flight = None
        for j, fed in enumerate(feds):
            got[j] += b"".join(iter(fed.take, b""))
            _compare(got[j], expected[j], bench.core.durable_lsn(), seed)
    if flight is not None:
        bench.core.batch_durable(flight)
    bench.check()


def _compare(got: bytes, expected: list[tuple[int, bytes]], durable_lsn: int, seed: int) -> None:
    """What left is exactly the replies whose lsn, and that of all before them, is durable."""
    left = got
    for lsn, reply in expected:
        if lsn > durable_lsn:
            break
        if reply:
            assert left.startswith(reply), f"seed {seed}"
            left = left[len(reply) :]
        else:  # an id, as a bulk string
            assert left.startswith(b"$"), f"seed {seed}"
            left = left.split(b"\r\n", 2)[2]
    assert left == b"", f"seed {seed}: bytes left before lsn {durable_lsn} covered them"


def test_a_connection_keeps_its_order_through_python_waits_and_writes(bench: Bench) -> None:
    fed: Fed = bench.open()
    fed.feed(b"PING 1\r\nINFO\r\nSCHEDULE a now x\r\nPING 2\r\nLEASE a\r\nINFO\r\nPING 3\r\n")
    bench.settle()
    reply = b"".join(iter(fed.take, b""))
    marks = [
        b"$1\r\n1\r\n",
        b"+PYTHON",
        b"$",
        b"$1\r\n2\r\n",
        b"*1\r\n*12",
        b"+PYTHON",
        b"$1\r\n3\r\n",
    ]
    at = 0
    for mark in marks:
        at = reply.index(mark, at) + len(mark)


@pytest.mark.long
def test_every_planted_fault_of_the_data_plane_is_noticed() -> None:
    assert_all_are_noticed("tests.c.mutate_conn")


@pytest.mark.parametrize("what", FAULTS, ids=lambda what: what.name)
def test_the_place_of_a_planted_fault_is_in_the_source_once(what: Fault) -> None:
    assert_stands_once(what)


# ---------------------------------------------------------------- the log is behind


def fall_behind(bench: Bench, conn: Fed) -> None:
    """Ask for a change whose frame stays in flight for over two seconds."""
    conn.feed(b"SCHEDULE h +1h x\r\n")
    bench.core.commit()
    for _ in range(4):
        bench.advance(700)
    assert bench.core.stats()["writes_paused"] == 1


def test_a_log_that_is_behind_holds_back_what_changes_something_and_nothing_else() -> None:
    bench = Bench()
    writer, other, reader = bench.open(), bench.open(), bench.open()
    other.ask("SCHEDULE h now x")
    fall_behind(bench, writer)
    for line in (b"SCHEDULE h +1h y", b"LEASE h", b"HANDLER h PAUSE", b"CANCEL 1"):
        held = bench.open()
        held.feed(line + b"\r\nPING\r\n")
        assert held.take() == b"", line
    for line in (b"PING", b"NONSENSE"):
        reader.feed(line + b"\r\n")
        assert reader.take() != b"", line
    reader.feed(b"HANDLER h\r\nCOUNT\r\n")
    assert reader.take() == b"", "what reads is run, and waits for what it saw"
    assert bench.core.stats()["conns_held"] == 4
    assert bench.core.stats()["queue_age_ms"] >= 2_000
    bench.settle()
    assert bench.core.stats()["writes_paused"] == 0
    assert bench.core.stats()["queue_age_ms"] == 0
    assert b"$6\r\npaused\r\n:0\r\n" in reader.take(), "run before what was held back"


def test_what_was_held_back_goes_on_in_order_when_the_log_has_caught_up() -> None:
    bench = Bench()
    writer, held = bench.open(), bench.open()
    fall_behind(bench, writer)
    held.feed(b"SCHEDULE h +1h y KEY k\r\nPING\r\nJOB k\r\n")
    assert held.take() == b""
    bench.settle()
    reply = held.take()
    assert reply.startswith(b"*3\r\n")
    assert b"+PONG\r\n*64\r\n" in reply
    assert bench.core.stats()["queue_pauses"] == 1
    bench.check()


def test_a_waiting_lease_is_given_nothing_while_the_log_is_behind() -> None:
    bench = Bench()
    writer, waiting = bench.open(), bench.open()
    writer.ask("SCHEDULE h +2500ms x")
    waiting.feed(b"LEASE h WAIT 60000\r\n")
    fall_behind(bench, writer)
    assert bench.core.engine_figures()["jobs_ready"] == 1
    assert bench.core.engine_figures()["jobs_leased"] == 0
    assert bench.core.stats()["conns_waiting"] == 1
    bench.settle()
    assert waiting.take().startswith(b"*1\r\n*12\r\n")


def test_a_connection_that_goes_while_it_is_held_back_is_forgotten() -> None:
    bench = Bench()
    writer, held, eof = bench.open(), bench.open(), bench.open()
    fall_behind(bench, writer)
    held.feed(b"SCHEDULE h +1h y\r\n")
    held.close()
    eof.feed(b"SCHEDULE h +1h z\r\n")
    eof.eof()
    bench.settle()
    assert eof.take().startswith(b"$10\r\n")
    assert eof.finished
    assert bench.core.engine_figures()["jobs_scheduled"] == 2
    bench.check()


def test_who_is_fed_in_spite_of_being_held_back_is_held_back_no_longer_than_its_command() -> None:
    """The disk has run full meanwhile, so the command is refused and holds nothing back."""
    bench = Bench()
    writer, held = bench.open(), bench.open()
    fall_behind(bench, writer)
    held.feed(b"SCHEDULE h +1h y\r\n")
    assert bench.core.stats()["conns_held"] == 1
    assert not bench.core.fed_wants_input(held.handle)
    bench.core.set_disk_room(DiskRoom.FULL)
    bench.advance(1)
    held.feed(b"PING\r\n")
    assert bench.core.stats()["conns_held"] == 0
    assert held.take().startswith(b"-DISKFULL")
    bench.settle()
    assert bench.core.stats()["writes_paused"] == 0
    assert bench.core.fed_wants_input(held.handle)
    bench.check()


# ---------------------------------------------------------------- before AUTH, and errors


@pytest.mark.parametrize(
    ("data", "closes"),
    [
        (b"PING " + b"x" * 4_089 + b"\r\n", False),
        (b"PING " + b"x" * 4_090 + b"\r\n", True),
        (b"PING " + b"x" * 4_092, True),
        (b"*2\r\n$4\r\nPING\r\n$16000\r\n" + b"x" * 16_000 + b"\r\n", False),
        (b"*2\r\n$4\r\nPING\r\n$16384\r\n" + b"x" * 16_384 + b"\r\n", True),
        (b"*11\r\n", True),
    ],
)
def test_before_auth_lines_and_arrays_are_short(data: bytes, closes: bool) -> None:
    conn = Bench(auth_required=True).open()
    conn.feed(data)
    assert (b"before AUTH" in conn.take()) == closes
    assert conn.finished == closes


def test_every_error_reply_is_counted_by_its_code() -> None:
    bench = Bench()
    bench.python = lambda _: b"-WRONGPASS no\r\n"
    conn = bench.open()
    for line in ("NONSENSE", "SCHEDULE h", "SCHEDULE h 2027-01-15 x", "AUTH x", 'PING "', "PING"):
        conn.ask(line)
    counted = {code: count for code, count in bench.core.errors().items() if count}
    assert counted == {"UNKNOWN_COMMAND": 1, "SYNTAX": 2, "NAIVE_TIME": 1, "WRONGPASS": 1}
    bench.python = lambda _: b"-STRANGE no\r\n"
    conn.ask("AUTH x")
    assert bench.core.errors()["other"] == 1


def test_a_grant_that_was_never_sent_and_is_lost_meanwhile_is_nobodys() -> None:
    bench = Bench()
    conn = bench.open()
    conn.ask("SCHEDULE h now x LEASE 1000")
    conn.feed(b"LEASE h\r\n")
    bench.settle()
    bench.advance(10_000)
    bench.settle()
    assert bench.core.engine_figures()["lost"] == 1
    conn.close()
    assert bench.core.engine_figures()["unsent"] == 0
    bench.check()


@pytest.mark.parametrize("ask", ["LEASE h", "LEASE h BOUND"])
def test_a_lost_grant_that_somebody_else_has_now_stays_his_when_the_first_one_goes(
    ask: str,
) -> None:
    bench = Bench()
    first, second = bench.open(), bench.open()
    second.ask("SCHEDULE h now x LEASE 1000")
    first.feed(f"{ask}\r\n".encode())
    bench.settle()
    for _ in range(2):  # the lease is over, then the delay behind it
        bench.advance(60_000)
        bench.settle()
    receipt = second.ask("LEASE h").split(b"\r\n")[3]
    first.close()
    assert second.ask(b"ACK " + receipt) == b"*1\r\n+OK\r\n"
    figures = bench.core.engine_figures()
    assert (figures["lost"], figures["unsent"], figures["acked"]) == (1, 0, 1)
    bench.check()
