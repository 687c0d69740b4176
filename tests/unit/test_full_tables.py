"""Tables that are full: refused by name, nothing torn, and what needs no room goes on."""

import struct

import pytest

from tests import narrow
from tests.fed import TERM, WALL_MS
from tests.unit.test_checkpoint import Saved
from wal.frame import seal
from wheel.engine.facts import CoreOptions
from wheel.engine.records import Kind, Record, State, encode
from wheel.errors import CoreMemoryError

LIMITS = {"ended_max": narrow.MOST, "once_max": narrow.MOST, "jobs_max": 5000}
UNIT = 16  # bytes of the arena that a text takes at least
BLOCK = 4096
SEAL = 4  # bytes of checksum behind a payload
RING_BLOCK = 8192  # entries of a ring whose pages are given back together
FULL = b"-OOM"
NO_ROOM = "no room left"
GEN = 1 << 32
HANDLER = Record(kind=Kind.HANDLER, handler=0, name=b"h")
POLICY = Record(
    kind=Kind.POLICY,
    policy=0,
    blob=struct.pack("<IIIIHHB3x", 1000, 1000, 1000, 1000, 1, 1, 0),
)


def fed_bench(**options):
    return narrow.fed().Bench(**LIMITS, **options)


def fill(conn, *, spare=0):
    """Take all of the arena but for so many texts of the smallest size."""
    ids = []
    for payload in (b"x" * 4000, b"x" * 10):
        while not (reply := conn.ask(b"SCHEDULE h +1h " + payload)).startswith(FULL):
            ids.append(reply.split(b"\r\n")[1])
    for job in ids[len(ids) - spare :]:
        assert conn.ask(b"CANCEL " + job) == b"*1\r\n+CANCELLED\r\n"


def new(slot, **fields):
    needs = {"due_ms": WALL_MS, "at_ms": WALL_MS, "flags": 0}
    numbers = {"handler": 0, "policy": 0, "priority": 5}
    return Record(kind=Kind.CREATED, id=GEN + slot, **{**needs, **numbers, **fields})


def ended(slot, **fields):
    needs = {"at_ms": WALL_MS, "handler": 0, "reason": State.CANCELLED, "number": 1}
    return Record(kind=Kind.ENDED, id=GEN + slot, **needs, **fields)


def fresh_core(**options):
    made = {"commit": 2, "sockets": False, "hand_clock": True, **LIMITS, **options}
    return narrow.fed().Core(CoreOptions(**made))


def replay(core, *records):
    """Replay one frame of these records."""
    frame = seal(
        b"".join(map(encode, records)),
        first_lsn=core.lsn() + 1,
        records=len(records),
        wall_ms=WALL_MS,
        rel_ms=WALL_MS,
        salt=0,
        prev_crc=0,
    )
    core.replay(frame, term=TERM)


def refuses(core, record):
    """Return whether a record finds no room; then it has changed nothing."""
    before = core.lsn(), core.state_hash()
    try:
        replay(core, record)
    except CoreMemoryError as error:
        assert NO_ROOM in str(error)
        assert (core.lsn(), core.state_hash()) == before
        return True
    return False


# ---------------------------------------------------------------- live


@pytest.mark.parametrize("keyed", [False, True], ids=["new", "replaced"])
def test_a_job_whose_texts_do_not_all_fit_is_refused_whole(keyed):
    outcomes = []
    for spare in range(6):
        bench = fed_bench()
        conn = bench.open()
        if keyed:
            conn.ask("SCHEDULE h +1h p KEY key META m GROUP g")
        fill(conn, spare=spare)
        before = bench.core.lsn(), bench.core.state_hash()
        reply = conn.ask("SCHEDULE h +1h q KEY key META n GROUP i ONDUP replace")
        refused = reply.startswith(FULL)
        outcomes.append(refused)
        assert ((bench.core.lsn(), bench.core.state_hash()) == before) == refused
        bench.check()
    assert outcomes == [True] * 4 + [False] * 2, "payload, key, meta, group"


def leased(conn, options=""):
    assert conn.ask(f"SCHEDULE h now x {options}")[:1] in b"$*"
    return conn.ask("LEASE h").split(b"\r\n")[3].decode()


def test_a_grant_whose_worker_cannot_be_kept_is_not_made():
    bench = fed_bench()
    conn = bench.open()
    conn.ask("SCHEDULE h now x")
    fill(conn)
    before = bench.core.state_hash()
    assert conn.ask("LEASE h WORKER w") == b"*0\r\n"
    assert bench.core.state_hash() == before
    assert conn.ask("LEASE h").startswith(b"*1\r\n")
    bench.check()


@pytest.mark.parametrize("words", ["FAIL {} ERROR why", "FAIL {} DEAD ERROR why"])
def test_a_failure_whose_text_cannot_be_kept_is_refused_and_taken_without_it(words):
    bench = fed_bench()
    conn = bench.open()
    receipt = leased(conn, "KEY key")
    fill(conn)
    before = bench.core.lsn(), bench.core.state_hash()
    assert conn.ask(words.format(receipt)).startswith(FULL)
    assert (bench.core.lsn(), bench.core.state_hash()) == before
    assert conn.ask(words.format(receipt).partition(" ERROR")[0])[:1] == b"+"
    bench.check()


def test_a_result_that_cannot_be_kept_is_dropped_and_its_job_is_done():
    bench = fed_bench()
    conn = bench.open()
    receipt = leased(conn)
    fill(conn)
    assert conn.ask(f"DONE {receipt} result") == b"+OK\r\n"
    bench.check()


def test_a_result_for_an_owner_that_cannot_be_kept_is_refused_and_acked_without_it():
    bench = fed_bench()
    conn = bench.open()
    owned = Record(kind=Kind.CREATED, name=b"h", owner=b"o", due_ms=0, flags=0, priority=1)
    bench.core.submit(encode(owned))
    receipt = conn.ask("LEASE h").split(b"\r\n")[3].decode()
    fill(conn)
    before = bench.core.lsn(), bench.core.state_hash()
    assert conn.ask(f"DONE {receipt} result").startswith(FULL)
    assert (bench.core.lsn(), bench.core.state_hash()) == before
    assert conn.ask(f"ACK {receipt}") == b"*1\r\n+OK\r\n"
    bench.check()


def test_a_handler_whose_name_does_not_fit_is_refused():
    bench = fed_bench()
    conn = bench.open()
    fill(conn)
    before = bench.core.lsn(), bench.core.state_hash()
    assert conn.ask("SCHEDULE fresh +1h x").startswith(b"-LIMIT the table of handlers")
    assert (bench.core.lsn(), bench.core.state_hash()) == before
    bench.check()


def test_names_and_policies_have_a_limit_that_is_told():
    bench = fed_bench()
    conn = bench.open()
    for n in range(narrow.NUMBERS):
        assert conn.ask(f"SCHEDULE h{n} +1h x RETRIES {n}").startswith(b"$")
    assert conn.ask("SCHEDULE h8 +1h x RETRIES 1").startswith(b"-LIMIT the table of handlers")
    assert conn.ask("SCHEDULE h1 +1h x RETRIES 99").startswith(b"-LIMIT the table of policies")
    assert conn.ask("SCHEDULE h1 +1h x RETRIES 1").startswith(b"$")
    op = Record(kind=Kind.CREATED, name=b"h1", due_ms=0, flags=0, priority=1)
    before = bench.core.lsn(), bench.core.state_hash()
    with pytest.raises(CoreMemoryError, match=NO_ROOM):
        bench.core.submit(encode(op))
    assert (bench.core.lsn(), bench.core.state_hash()) == before
    bench.check()


def test_tokens_are_forgotten_in_order_so_many_a_frame():
    bench = fed_bench()
    conn = bench.open()
    for n in range(2 * narrow.AGED):
        assert conn.ask(f"SCHEDULE h +1h x ONCE t{n}").startswith(b"$")
    bench.advance(601_000)
    left = []
    for _ in range(3):
        conn.ask("SCHEDULE h +1h x")
        left.append(bench.core.engine_figures()["once_count"])
    assert left == [narrow.AGED, 0, 0]
    bench.check()


# ---------------------------------------------------------------- at a start with less room

# Texts of one unit each.
HISTORY = [
    new(1, payload=b"p", key=b"k", meta=b"m", group=b"g", owner=b"o"),
    Record(kind=Kind.LEASED, id=GEN + 1, at_ms=0, lease_ms=1, number=1, worker=b"w"),
    ended(1, text=b"t"),
    Record(kind=Kind.HANDLER, handler=1, name=b"n"),
    Record(kind=Kind.PUT, reason=1, name=b"n", blob=b"b"),
    new(2, key=b"key", payload=b"p"),
    Record(kind=Kind.LEASED, id=GEN + 2, at_ms=0, lease_ms=1, number=1, worker=b"w"),
    Record(
        kind=Kind.RETRY,
        id=GEN + 2,
        due_ms=0,
        flags=0,
        at_ms=0,
        reason=1,
        failures=1,
        lost=0,
        text=b"t",
    ),
]
UNITS = 20  # more than all of it takes


def test_a_start_that_has_less_room_than_the_log_needs_is_refused_at_any_record():
    refused_at = []
    for units in range(UNITS):
        with fresh_core() as core:
            rest = narrow.ARENA_BYTES - UNIT * (units + 1) - 15 * BLOCK  # 1: the name of h
            fillers = [new(10 + n, payload=b"x" * (BLOCK - SEAL)) for n in range(15)]
            replay(core, HANDLER, POLICY, *fillers, new(9, payload=b"x" * (rest - SEAL)))
            refused = (number for number, record in enumerate(HISTORY) if refuses(core, record))
            refused_at.append(next(refused, None))
    found = [number for number in refused_at if number is not None]
    assert found == sorted(found)
    assert set(found) == set(range(len(HISTORY))), "each had its turn"
    assert refused_at[-1] is None


def test_a_replaced_job_that_does_not_fit_any_more_stands_as_it_was():
    """Once this ended the process, half way through."""
    with fresh_core() as core:
        replay(core, HANDLER, POLICY, new(0, key=b"key", payload=b"p"))
        rest = narrow.ARENA_BYTES - UNIT * 4 - 15 * BLOCK
        fillers = [new(10 + n, payload=b"x" * (BLOCK - SEAL)) for n in range(15)]
        replay(core, *fillers, new(9, payload=b"x" * (rest - SEAL)))
        again = new(0, key=b"key", payload=b"q", meta=b"m")
        assert refuses(core, Record(**{**fields(again), "kind": Kind.REPLACED}))


def fields(record):
    return {name: getattr(record, name) for name in record.__slots__}


def test_numbers_above_the_tables_are_refused():
    with fresh_core() as core:
        replay(core, HANDLER, POLICY)
        for n in range(1, narrow.NUMBERS):
            replay(core, Record(kind=Kind.HANDLER, handler=n, name=b"h%d" % n))
            replay(core, Record(kind=Kind.POLICY, policy=n, blob=POLICY.blob))
        for n in range(narrow.NUMBERS):
            replay(core, Record(kind=Kind.PUT, reason=1, name=b"%d" % n, blob=b"b"))
        assert refuses(core, Record(kind=Kind.HANDLER, handler=narrow.NUMBERS, name=b"n"))
        assert refuses(core, Record(kind=Kind.POLICY, policy=narrow.NUMBERS, blob=POLICY.blob))
        assert refuses(core, Record(kind=Kind.PUT, reason=1, name=b"n", blob=b"b"))


def test_rings_that_are_full_refuse_one_more():
    """A server with less room forgets the oldest by records of its own, before they are full."""
    with fresh_core() as core:
        replay(core, HANDLER, POLICY, new(narrow.MOST + 1), new(narrow.MOST + 2))
        lease = {"kind": Kind.LEASED, "at_ms": 0, "lease_ms": 1, "number": 1}
        replay(core, Record(id=GEN + narrow.MOST + 2, **lease))
        for n in range(narrow.MOST):
            replay(core, new(n, once=b"%d" % n), ended(n))
        assert refuses(core, new(narrow.MOST + 3, once=b"one more", key=b"k"))
        assert refuses(core, Record(kind=Kind.ONCE, id=GEN, reason=6, once=b"one more"))
        assert refuses(core, ended(narrow.MOST + 1))
        died = {"at_ms": 0, "handler": 0, "reason": 1, "failures": 1, "lost": 0, "key": b"k"}
        assert refuses(core, Record(kind=Kind.DIED, id=GEN + narrow.MOST + 2, **died))


def load(data):
    """Return whether the narrow core has room for a checkpoint."""
    with fresh_core() as core:
        try:
            core.load(data)
        except CoreMemoryError as error:
            assert NO_ROOM in str(error)
            return False
        return True


@pytest.mark.parametrize("words", ["ONCE t{}", "KEY k{}"], ids=["tokens", "ended"])
def test_a_checkpoint_with_more_entries_than_there_is_room_for_is_refused(words):
    for count in (narrow.MOST, narrow.MOST + 1):
        saved = Saved(jobs_max=5000)
        for n in range(count):
            saved.conn.ask("SCHEDULE h +1h x " + words.format(n))
            if "KEY" in words:
                saved.conn.ask(f"CANCEL k{n}")
        assert load(saved.save()) == (count <= narrow.MOST)


def test_a_checkpoint_with_more_texts_than_there_is_room_for_is_refused_at_any_of_them():
    """Names, entries, payloads, keys, meta, groups, owners, errors and workers."""
    outcomes = []
    for units in range(28):
        saved = Saved(jobs_max=5000)
        rest = narrow.ARENA_BYTES - UNIT * units - 15 * BLOCK
        for size in (*([BLOCK] * 15), rest):
            saved.conn.ask(f"SCHEDULE h +1h {'x' * (size - SEAL)}")
        saved.fill_anywhere()
        outcomes.append(load(saved.save()))
    assert outcomes == sorted(outcomes)
    assert not outcomes[0]
    assert outcomes[-1]


def test_a_checkpoint_with_more_entries_than_texts_fit_is_refused():
    saved = Saved(jobs_max=5000)
    for n in range(3):
        op = Record(kind=Kind.PUT, reason=1, name=b"%d" % n, blob=bytes(narrow.ARENA_BYTES // 2))
        saved.bench.core.submit(encode(op))
    assert not load(saved.save())


def test_a_block_that_the_other_end_of_its_ring_has_come_to_is_not_given_back():
    """The last ended jobs stand in the very pages of the block that was passed."""
    bench = fed_bench()
    conn = bench.open()
    turns = (RING_BLOCK + 2 * narrow.MOST) // 16
    for turn in range(turns):
        names = [b"k%d" % (16 * turn + i) for i in range(16)]
        conn.feed(b"".join(b"SCHEDULE h +1h x KEY %b\r\n" % name for name in names))
        conn.feed(b"CANCEL " + b" ".join(names) + b"\r\n")
        bench.settle()
        conn.take()
    assert bench.core.check() == 0
    for n in range(16 * turns - narrow.MOST // 2, 16 * turns):
        assert b"cancelled" in conn.ask(b"JOB k%d" % n), n
