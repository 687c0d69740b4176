"""Names whose hashes meet are still two names: keys, handlers, policies, entries, tokens.

The hashes are keyed by the store, here by zeros; the pairs were found by trying, and are checked.
"""

import struct

import pytest

from tests.fed import WALL_MS, Bench
from tests.unit.test_checkpoint import Saved
from wheel.engine.records import Backoff, Kind, Policy, Record, encode

MASK = (1 << 64) - 1
SAME_HASH = (b"k27538", b"k94106")  # low 32 bits of the first half: in every index
SAME_CHAIN = (b"k2906", b"k3766")  # low 20 bits of the second half: in both rings
SAME_POLICY = (17_168, 24_496)  # base_ms


def siphash(data):
    """Return both halves of SipHash-2-4-128 of data under a key of zeros."""
    v = [0x736F6D6570736575, 0x646F72616E646F6D ^ 0xEE, 0x6C7967656E657261, 0x7465646279746573]

    def rotl(x, b):
        return (x << b | x >> (64 - b)) & MASK

    def rounds(n):
        for _ in range(n):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = rotl(v[1], 13) ^ v[0]
            v[0] = rotl(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = rotl(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = rotl(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = rotl(v[1], 17) ^ v[2]
            v[2] = rotl(v[2], 32)

    whole = len(data) // 8 * 8
    last = data[whole:].ljust(7, b"\0") + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", data[:whole] + last):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return low, v[0] ^ v[1] ^ v[2] ^ v[3]


def policy_bytes(base_ms):
    return struct.pack("<IIIIHHB3x", base_ms, 3_600_000, 60_000, 300_000, 3, 3, Backoff.FIXED)


@pytest.fixture
def bench():
    bench = Bench(store=bytes(16))
    yield bench
    bench.check()


def test_the_pairs_do_meet():
    first, second = (siphash(name)[0] for name in SAME_HASH)
    assert first != second
    assert first & 0xFFFFFFFF == second & 0xFFFFFFFF
    first, second = (siphash(name)[1] for name in SAME_CHAIN)
    assert first & 0xFFFFF == second & 0xFFFFF
    first, second = (siphash(policy_bytes(base_ms))[0] for base_ms in SAME_POLICY)
    assert first & 0xFFFFFFFF == second & 0xFFFFFFFF


def job_of(reply):
    return next(line for line in reply.split(b"\r\n") if line.isdigit() and len(line) == 10)


def test_keys_of_live_and_of_dead_jobs(bench):
    ask = bench.open().ask
    ids = [job_of(ask(b"SCHEDULE h now x KEY " + name)) for name in SAME_HASH]
    for name, job in zip(SAME_HASH, ids, strict=True):
        assert job_of(ask(b"JOB " + name)) == job
        assert job_of(ask(b"SCHEDULE h now x KEY " + name)) == job
    for _ in SAME_HASH:
        receipt = ask("LEASE h").split(b"\r\n")[3].decode()
        assert ask(f"FAIL {receipt} DEAD") == b"+DEAD\r\n"
    bench.advance(2 * 3600 * 1000)  # the ended ring forgets them
    ask("SCHEDULE h +1h x")
    for name, job in zip(SAME_HASH, ids, strict=True):
        assert job_of(ask(b"JOB " + name)) == job


def test_names_of_handlers(bench):
    ask = bench.open().ask
    for name in SAME_HASH:
        ask(b"SCHEDULE " + name + b" now " + name)
    assert bench.core.engine_figures()["handlers_count"] == 2
    for name in SAME_HASH:
        assert name in ask(b"LEASE " + name).split(b"\r\n")


def test_policies(bench):
    for base_ms in (*SAME_POLICY, *SAME_POLICY):
        blob = Policy(backoff=(Backoff.FIXED, base_ms, 3_600_000)).blob()
        job = {"due_ms": WALL_MS, "flags": 0, "priority": 1}
        bench.core.submit(encode(Record(kind=Kind.CREATED, name=b"h", blob=blob, **job)))
    assert bench.core.engine_figures()["policies_count"] == 2


def test_entries_of_the_table(bench):
    for name in SAME_HASH:
        bench.core.submit(encode(Record(kind=Kind.PUT, reason=1, name=name, blob=name)))
    assert sorted(entry.blob for entry in bench.core.table()) == list(SAME_HASH)


def test_keys_in_the_ended_ring_and_tokens(bench):
    ask = bench.open().ask
    ids = [job_of(ask(b"SCHEDULE h now x KEY %b ONCE %b" % (n, n))) for n in SAME_CHAIN]
    for name in SAME_CHAIN:
        ask(b"CANCEL " + name)
    for name, job in zip(SAME_CHAIN, ids, strict=True):
        assert job_of(ask(b"SCHEDULE h now x WINDOW 60000 KEY " + name)) == job
        assert job_of(ask(b"SCHEDULE h now x ONCE " + name)) == job


def test_a_checkpoint_keeps_them_apart():
    saved = Saved(store=bytes(16))
    for name in SAME_HASH:
        saved.conn.ask(b"SCHEDULE h +1h x KEY " + name)
    assert saved.save()
    saved.bench.check()
