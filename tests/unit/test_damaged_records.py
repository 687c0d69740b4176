"""A record that cannot follow what is there is refused by name, and changes nothing.

Its frame is whole and its checksums hold: what is wrong is what it says.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest

from tests.fed import TERM, WALL_MS, Bench
from wal.frame import seal
from wheel.engine.core import Core
from wheel.engine.facts import Clocks
from wheel.engine.records import Flag, Kind, Record, State, encode
from wheel.errors import CoreError, CoreMemoryError

DAMAGED = "damaged bytes"
TOO_LATE_MS = 1 << 48
POLICY = struct.pack("<IIIIHHB3x", 1000, 1000, 1000, 1000, 1, 1, 0)
SETTINGS_BYTES = 36
GEN = 1 << 32
SCHEDULED, LEASED, DEAD, HELD, OWNED, ENDED, BARE = (GEN + slot for slot in range(7))
NOBODY = GEN + 99
SCENE = [
    "SCHEDULE h +1h x KEY scheduled ONCE t",
    "SCHEDULE h now x KEY leased",
    "LEASE h WORKER w",
    "SCHEDULE dying now x KEY dead",
    "LEASE dying",
]
NEW = {
    "kind": Kind.CREATED,
    "id": GEN + 7,
    "due_ms": WALL_MS,
    "at_ms": WALL_MS,
    "flags": 0,
    "handler": 0,
    "policy": 0,
    "priority": 5,
}


@cache
def scene() -> tuple[Bench, str]:
    """Return a bench whose jobs are in every state, and the receipt of the leased one."""
    bench = Bench()
    conn = bench.open()
    receipts = []
    for line in SCENE:
        reply = conn.ask(line)
        if line.startswith("LEASE"):
            receipts.append(reply.split(b"\r\n")[3].decode())
    assert conn.ask(f"FAIL {receipts[1]} DEAD") == b"+DEAD\r\n"
    job = {"kind": Kind.CREATED, "name": b"h", "due_ms": 0, "flags": Flag.HELD, "priority": 1}
    ids = bench.core.submit(encode(Record(**job)) + encode(Record(**job, owner=b"o")) * 2)
    assert ids == [HELD, OWNED, ENDED]
    bench.core.submit(encode(Record(kind=Kind.MARKED, id=ENDED)))
    assert conn.ask("SCHEDULE h +1h x") == b"$10\r\n%d\r\n" % BARE
    bench.settle()
    return bench, receipts[0]


@contextmanager
def replayed(**options: int) -> Iterator[Core]:
    """Give a core that the scene was replayed into."""
    bench, _receipt = scene()
    with Core(replace(bench.options, **options)) as core:
        for frame in bench.frames:
            core.replay(frame, term=TERM)
        assert core.state_hash() == bench.core.state_hash()
        yield core


def replay(core: Core, *records: Record | bytes, count: int | None = None, **header: int) -> None:
    """Replay one more frame, of these records; count: what it says of their number."""
    payload = b"".join(r if isinstance(r, bytes) else encode(r) for r in records)
    times = {"wall_ms": WALL_MS + 1000, "rel_ms": WALL_MS + 1000, "first_lsn": core.lsn() + 1}
    frame = seal(
        payload,
        records=len(records) or 1,
        salt=0,
        prev_crc=0,
        **{**times, **header},
    )
    if count is not None:
        frame = frame[:16] + count.to_bytes(4, "little") + frame[20:]
    core.replay(frame, term=TERM)


def refuse(*records: Record | bytes, count: int | None = None, **header: int) -> None:
    with replayed() as core:
        lsn, state = core.lsn(), core.state_hash()
        with pytest.raises(CoreError, match=DAMAGED):
            replay(core, *records, count=count, **header)
        assert (core.lsn(), core.state_hash()) == (lsn, state)


def new(**changes: object) -> Record:
    """Return a sound CREATED with changes."""
    return Record(**{**NEW, **changes})


def of(kind: int, job: int | None = NOBODY, **fields: object) -> Record:
    """Return a record with all that its kind needs, changed."""
    needs = {
        Kind.LEASED: {"at_ms": 0, "lease_ms": 1000, "number": 1},
        Kind.RETRY: {"due_ms": 0, "flags": 0, "at_ms": 0, "reason": 1, "failures": 1, "lost": 0},
        Kind.ENDED: {"at_ms": 0, "handler": 0, "reason": State.CANCELLED, "number": 1},
        Kind.DIED: {"at_ms": 0, "handler": 0, "reason": 1, "failures": 1, "lost": 0},
        Kind.EXTENDED: {"lease_ms": 1},
        Kind.MOVED: {"due_ms": 0, "flags": 0},
        Kind.UNHELD: {"due_ms": 0, "flags": 0},
        Kind.REQUEUED: {"due_ms": 0, "flags": 0},
    }.get(Kind(kind), {})
    return Record(kind=kind, id=job, **{**needs, **fields})


REPLACED = {"kind": Kind.REPLACED, "id": SCHEDULED, "key": b"scheduled"}
MISFITS = {
    "created without a due time": new(due_ms=None),
    "created due before all time": new(due_ms=-1),
    "created due after all time": new(due_ms=TOO_LATE_MS),
    "created for an unknown handler": new(handler=2),
    "created with an unknown policy": new(policy=9),
    "created with a key that is taken": new(key=b"leased"),
    "created in a slot in use": new(id=2 * GEN),
    "created without a generation": new(id=7),
    "created with a generation above all": new(id=(1 << 57) + 7),
    "created with an id of before, texts and all": new(id=LEASED, key=b"new", meta=b"m"),
    "replaced: nobody": new(**{**REPLACED, "id": NOBODY}),
    "replaced: no id": new(**{**REPLACED, "id": None}),
    "replaced without a key": new(**{**REPLACED, "key": b""}),
    "replaced with another job's key": new(**{**REPLACED, "key": b"leased"}),
    "replaced with a key of nobody": new(**{**REPLACED, "key": b"fresh"}),
    "replaced due after all time": new(**{**REPLACED, "due_ms": TOO_LATE_MS}),
    "replaced while leased": new(**{**REPLACED, "id": LEASED, "key": b"leased"}),
    "replaced when dead": new(**{**REPLACED, "id": DEAD, "key": b"dead"}),
    "leased: nobody": of(Kind.LEASED),
    "leased for no time": of(Kind.LEASED, SCHEDULED, lease_ms=None),
    "leased twice": of(Kind.LEASED, LEASED),
    "retry: nobody": of(Kind.RETRY),
    "retry of a job that is not leased": of(Kind.RETRY, SCHEDULED),
    "retry due after all time": of(Kind.RETRY, LEASED, due_ms=TOO_LATE_MS),
    "died: nobody": of(Kind.DIED),
    "died in an unknown handler": of(Kind.DIED, LEASED, handler=9),
    "died unleased": of(Kind.DIED, SCHEDULED),
    "ended: nobody": of(Kind.ENDED),
    "ended in a state that is no end": of(Kind.ENDED, LEASED, reason=State.DEAD),
    "ended in a state that is none": of(Kind.ENDED, LEASED, reason=9),
    "ended in an unknown handler": of(Kind.ENDED, LEASED, handler=9),
    "ended when dead": of(Kind.ENDED, DEAD),
    "extended: nobody": of(Kind.EXTENDED),
    "extended unleased": of(Kind.EXTENDED, SCHEDULED),
    "marked: nobody": of(Kind.MARKED),
    "marked unleased": of(Kind.MARKED, SCHEDULED),
    "moved: nobody": of(Kind.MOVED),
    "moved to after all time": of(Kind.MOVED, SCHEDULED, due_ms=TOO_LATE_MS),
    "moved while leased": of(Kind.MOVED, LEASED),
    "unheld, but never held": of(Kind.UNHELD, SCHEDULED),
    "requeued alive": of(Kind.REQUEUED, SCHEDULED),
    "purged: nobody": of(Kind.PURGED),
    "purged alive": of(Kind.PURGED, SCHEDULED),
    "closed: nobody": of(Kind.CLOSED),
    "closed: never owned": of(Kind.CLOSED, BARE),
    "handler out of order": Record(kind=Kind.HANDLER, handler=5, name=b"n"),
    "handler without a name": Record(kind=Kind.HANDLER, handler=2),
    "handler with a long name": Record(kind=Kind.HANDLER, handler=2, name=b"n" * 201),
    "settings of an unknown handler": Record(
        kind=Kind.HANDLER_SET, handler=9, blob=bytes(SETTINGS_BYTES)
    ),
    "settings of another length": Record(kind=Kind.HANDLER_SET, handler=0, blob=b"x"),
    "policy out of order": Record(kind=Kind.POLICY, policy=9, blob=POLICY),
    "policy of another length": Record(kind=Kind.POLICY, policy=1, blob=b"x"),
    "entry without a name": Record(kind=Kind.PUT, reason=1, blob=b"x"),
    "entry with a long name": Record(kind=Kind.PUT, reason=1, name=b"n" * 1025),
    "entry that is not there": Record(kind=Kind.DEL, reason=1, name=b"n"),
    "none forgotten": Record(kind=Kind.RING_DROPPED, number=0),
    "more forgotten than there are": Record(kind=Kind.RING_DROPPED, number=99),
    "more tokens forgotten than there are": Record(kind=Kind.ONCE_DROPPED, number=99),
    "no generation": Record(kind=Kind.GENERATIONS, number=0),
    "generation above all": Record(kind=Kind.GENERATIONS, number=1 << 25),
    "a kind that nobody may skip": Record(kind=0x7F),
}
MALFORMED = {
    "header cut off": b"\0" * 7,
    "shorter than its header": struct.pack("<II", 7, 4),
    "longer than its frame": struct.pack("<II", 9, 4),
    "no kind": struct.pack("<II", 8, 0),
    "number cut off": struct.pack("<III", 12, 4 | 1 << 8, 0),
    "length cut off": struct.pack("<IIB", 9, 15 | 1 << (8 + 15), 1),
    "text cut off": struct.pack("<IIHB", 11, 15 | 1 << (8 + 22), 2, 0),
    "text that is empty": struct.pack("<IIH", 10, 15 | 1 << (8 + 22), 0),
    "bytes behind the last field": struct.pack("<IIB", 9, 20, 0),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_record_that_does_not_fit_the_state_is_damage_and_changes_nothing(name: str) -> None:
    refuse(MISFITS[name])


@pytest.mark.parametrize("name", MALFORMED)
def test_bytes_that_are_no_record_are_damage_and_change_nothing(name: str) -> None:
    refuse(MALFORMED[name])


@pytest.mark.parametrize(
    "header",
    [
        {"first_lsn": 1 << 20},
        {"wall_ms": -1},
        {"wall_ms": TOO_LATE_MS},
        {"rel_ms": -1},
        {"rel_ms": TOO_LATE_MS},
    ],
    ids=str,
)
def test_a_frame_whose_header_does_not_fit_is_damage(header: dict[str, int]) -> None:
    refuse(Record(kind=Kind.CLOCK, at_ms=0, flags=0, number=0), **header)


def test_a_frame_says_how_many_records_it_has() -> None:
    step = Record(kind=Kind.CLOCK, at_ms=0, flags=0, number=0)
    refuse(step, count=0)
    with replayed() as core, pytest.raises(CoreError, match=DAMAGED):
        replay(core, step, step, count=1)


def test_frames_that_are_cut_off_are_damage() -> None:
    bench, _receipt = scene()
    frame = bench.frames[0]
    longer = struct.pack("<I", 1 << 20)
    for bad in (frame[:63], frame[:-8], frame[:12] + longer + frame[16:]):
        with Core(bench.options) as core, pytest.raises(CoreError, match=DAMAGED):
            core.replay(bad, term=TERM)


def test_a_kind_that_readers_may_skip_is_skipped() -> None:
    with replayed() as core:
        lsn = core.lsn()
        replay(core, Record(kind=0x80 | 77, blob=b"of a later version"), new(id=GEN + 7))
        assert core.lsn() == lsn + 2
        assert ask(started(core), f"JOB {GEN + 7}").startswith(b"*")


def test_a_job_in_a_slot_that_this_core_has_not_is_refused_by_name() -> None:
    with replayed(jobs_max=8) as core, pytest.raises(CoreMemoryError, match="no room left"):
        replay(core, new(id=GEN + 8, key=b"new", meta=b"m"))


def test_a_reason_of_a_later_version_closes_the_grant() -> None:
    """Nobody knows what its receipt is good for then."""
    with replayed() as core:
        replay(core, of(Kind.RETRY, LEASED, reason=200))
        _bench, receipt = scene()
        assert ask(started(core), f"ACK {receipt}").startswith(b"*1\r\n-STALE")


def test_counts_of_failures_and_losses_stop_at_the_most_that_a_field_holds() -> None:
    """A log may say so although no server of this version counts so far."""
    most = (1 << 16) - 1
    with replayed() as core:
        patient = struct.pack("<IIIIHHB3x", 1000, 1000, 1000, 0, most, most, 0)
        replay(
            core,
            Record(kind=Kind.POLICY, policy=1, blob=patient),
            new(due_ms=0, handler=1, policy=1),
            of(Kind.LEASED, GEN + 7),
            of(Kind.RETRY, GEN + 7, failures=most, lost=most),
        )
        reply = ask(started(core), "LEASE dying BOUND")
        receipt = reply.split(b"\r\n")[3].decode()
        assert receipt.startswith(f"{GEN + 7}.")
        assert ask(core, f"FAIL {receipt} IN 0").startswith(b"+RETRY ")
        reply = ask(core, "LEASE dying BOUND", gone=True)
        assert reply.split(b"\r\n")[3].startswith(b"%d." % (GEN + 7))
        shown = ask(core, f"JOB {GEN + 7}")
        assert shown.count(b":65535\r\n") == 4, "retries, failures; most losses, losses"


def started(core: Core) -> Core:
    """Return the core, serving."""
    clocks = Clocks(wall_ms=WALL_MS + 2000, boot_ms=1000, mono_ms=1000)
    core.start(term=TERM + 1, rel_ms=WALL_MS + 2000, clocks=clocks)
    core.tick(clocks)
    return core


def ask(core: Core, line: str, *, gone: bool = False) -> bytes:
    """Return the reply to one line; gone: its connection is closed behind it."""
    conn = core.fed_open("test")
    core.fed_input(conn, line.encode() + b"\r\n")
    core.commit()
    while (batch := core.take_batch()) is not None:
        core.batch_durable(batch.lsn)
    reply = core.fed_output(conn).data
    core.fed_taken(conn, len(reply))
    core.commit()
    if gone:
        core.fed_close(conn)
        core.commit()
    return reply


def test_a_replaced_job_may_be_held() -> None:
    with replayed() as core:
        replay(core, new(**REPLACED, flags=Flag.HELD, due_ms=0))
        assert b"held" in ask(started(core), f"JOB {SCHEDULED}")
        assert core.check() == 0


def test_a_held_job_may_be_replaced() -> None:
    with replayed() as core:
        held = new(flags=Flag.HELD, key=b"k")
        replay(core, held, new(kind=Kind.REPLACED, key=b"k", due_ms=0))
        assert b"ready" in ask(started(core), f"JOB {GEN + 7}")
        assert core.check() == 0
