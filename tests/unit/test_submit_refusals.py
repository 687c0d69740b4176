"""What Python submits is checked as if a stranger had: each field of each operation."""

import struct

import pytest
from _wheeld import ffi, lib

from tests.fed import WALL_MS, Bench
from wheel.engine.core import JobGoneError
from wheel.engine.records import Flag, Kind, Record, encode
from wheel.errors import CoreError, CoreMemoryError

SPAN_MS_MAX = 30 * 24 * 3600 * 1000
ALL = 31
LEASE = 8
BLOB_MAX = 1 << 20


def policy(set_=ALL, zero=b"\0\0\0", **fields):
    """Return the BLOB of a CREATED record."""
    values = {"base": 1, "max": 1, "lease": 1, "timeout": 1, "retries": 1, "lost": 1, "backoff": 0}
    return struct.pack("<IIIIHHB", *{**values, **fields}.values()) + zero + bytes([set_])


def created(**fields):
    values = {"name": b"h", "due_ms": WALL_MS, "flags": 0, "priority": 1}
    return Record(kind=Kind.CREATED, **{**values, **fields})


REFUSED = {
    "a policy of another length": created(blob=b"x"),
    "a setting that is none": created(blob=policy(set_=32)),
    "a first byte that must be zero": created(blob=policy(zero=b"\1\0\0")),
    "a second byte that must be zero": created(blob=policy(zero=b"\0\1\0")),
    "a third byte that must be zero": created(blob=policy(zero=b"\0\0\1")),
    "too many retries": created(blob=policy(retries=1001)),
    "too many losses": created(blob=policy(lost=1001)),
    "a backoff that is none": created(blob=policy(backoff=3)),
    "too long a first delay": created(blob=policy(base=SPAN_MS_MAX + 1)),
    "too long a last delay": created(blob=policy(max=SPAN_MS_MAX + 1)),
    "too long a lease": created(blob=policy(lease=SPAN_MS_MAX + 1)),
    "no lease": created(blob=policy(lease=0)),
    "too long a timeout": created(blob=policy(timeout=SPAN_MS_MAX + 1)),
    "too long a payload": created(payload=bytes(BLOB_MAX + 1)),
    "too long a name": created(name=b"n" * 201),
    "a key and an owner": created(key=b"k", owner=b"o"),
    "an entry without a name": Record(kind=Kind.PUT, reason=1, blob=b"x"),
    "an entry with a long name": Record(kind=Kind.PUT, reason=1, name=b"n" * 1025, blob=b"x"),
    "an entry without a kind": Record(kind=Kind.PUT, name=b"n", blob=b"x"),
    "too long an entry": Record(kind=Kind.PUT, reason=1, name=b"n", blob=bytes(BLOB_MAX + 1)),
    "a kind that nobody submits": Record(kind=Kind.LEASED, id=1),
}


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.check()


@pytest.mark.parametrize("what", REFUSED)
def test_an_operation_that_cannot_be_is_refused(bench, what):
    before = bench.core.state_hash()
    with pytest.raises(CoreError, match="invalid argument"):
        bench.core.submit(encode(REFUSED[what]))
    assert bench.core.state_hash() == before


def test_settings_that_are_not_set_are_not_looked_at(bench):
    assert len(bench.core.submit(encode(created(blob=policy(set_=ALL & ~LEASE, lease=0))))) == 1


def test_an_owned_job_is_closed_once_its_owner_has_something_to_see(bench):
    [job] = bench.core.submit(encode(created(owner=b"o", due_ms=WALL_MS + 1000)))
    [bare] = bench.core.submit(encode(created(due_ms=WALL_MS + 1000)))
    for nothing in (job, bare):
        with pytest.raises(JobGoneError):
            bench.core.submit(encode(Record(kind=Kind.CLOSED, id=nothing)))
    bench.core.submit(encode(Record(kind=Kind.MARKED, id=job)))
    bench.core.submit(encode(Record(kind=Kind.CLOSED, id=job)))


def test_an_expiry_may_stand_on_either_axis(bench):
    conn = bench.open()
    for flags in (0, Flag.EXPIRE_REL):
        op = created(name=b"e", flags=flags, expire_ms=WALL_MS + 500)
        [job] = bench.core.submit(encode(op))
        assert b"expire_ms\r\n:%d" % (WALL_MS + 500) in conn.ask(f"JOB {job}")


def test_more_jobs_than_rows_or_than_ids_are_refused():
    bench = Bench(jobs_max=2)
    two, three = encode(created()) * 2, encode(created()) * 3
    with pytest.raises(CoreMemoryError):
        bench.core.submit(three)
    ids, made = ffi.new("uint64_t[1]"), ffi.new("uint32_t *")
    core = bench.core._core
    assert lib.wd_core_submit(core, two, len(two), ids, 1, made) == lib.WD_EINVAL
    assert len(bench.core.submit(two)) == 2
    bench.check()


def test_ended_jobs_that_cannot_be_listed_for_lack_of_memory_are_listed_later(bench):
    jobs = bench.core.submit(encode(created(owner=b"o" * 400, due_ms=WALL_MS + 1000)) * 3)
    for job in jobs:
        bench.core.submit(encode(Record(kind=Kind.MARKED, id=job)))
    lib.wd_alloc_fail_at(1)
    try:
        with pytest.raises(CoreMemoryError):
            bench.core.ended()
    finally:
        lib.wd_alloc_fail_at(0)
    assert [record.id for record in bench.core.ended()] == jobs


def test_only_owned_jobs_are_walked(bench):
    bench.open().ask("SCHEDULE h +1h x KEY k")
    bench.open().ask("SCHEDULE h +1h x")
    [job] = bench.core.submit(encode(created(owner=b"o", due_ms=WALL_MS + 1000)))
    assert [owned.id for owned in bench.core.owned()] == [job]


@pytest.mark.parametrize("words", ["DONE {} result", "FAIL {} ERROR text"])
def test_texts_are_dropped_when_all_memory_is_taken(words):
    """Grants take memory that SCHEDULE does not: so the limit itself can be met."""
    bench = Bench(maxmemory_bytes=1 << 19)
    conn = bench.open()
    while not conn.ask("SCHEDULE h now x").startswith(b"-OOM"):
        pass
    receipts = []
    while bench.core.memory_bytes() < 1 << 19:
        reply = conn.ask("LEASE h COUNT 100")
        receipts += [part for part in reply.split(b"\r\n") if part.count(b".") == 2]
    assert conn.ask(words.format(receipts[0].decode()))[:1] == b"+"
    assert bench.core.engine_figures()["texts_dropped"] == 1
    bench.check()
