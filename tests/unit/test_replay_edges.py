"""Where a checkpoint and the log behind it meet: records it has seen, numbers that do not fit."""

import struct
from copy import copy

import pytest
from _wheeld import lib

from tests.fed import TERM, WALL_MS, Bench
from tests.format_reader import ENDED as ENDED_IMAGE
from tests.format_reader import TOKEN
from tests.unit.test_checkpoint import BLOCK, CHUNK, END, Saved, chunks, resealed, scan
from tests.unit.test_checkpoint_images import chunk_of, edited, whole_again
from wal import frame
from wal.facts import CheckpointStop
from wheel.engine.core import Core
from wheel.engine.records import Kind, Record, State, encode
from wheel.errors import CoreError, CoreMemoryError

ROWS, TABLE, ENDED, ONCE = 3, 4, 5, 6
DAMAGED = "damaged bytes"
GEN = 1 << 32
POLICY = struct.pack("<IIIIHHB3x", 7, 7, 7, 7, 7, 7, 0)
STEP = Record(kind=Kind.CLOCK, at_ms=0, flags=0, number=0)


@pytest.fixture(scope="module")
def fuzzy():
    """Return a checkpoint whose scan went on while records were made, and its S0 and S1."""
    saved = Saved().fill()
    saved.start(slice_things=1)
    saved.conn.feed(b"".join(b"SCHEDULE h +1h x KEY during%d\r\n" % n for n in range(40)))
    data = saved.save_rest()
    assert saved.state.end_lsn - saved.state.start_lsn > 20
    return saved, data


def replayed(fuzzy, *records):
    """Replay records right behind the beginning of the checkpoint, as another log could have."""
    saved, data = fuzzy
    with Core(saved.bench.options) as core:
        core.load(data)
        bytes_ = frame.seal(
            b"".join(map(encode, records)),
            first_lsn=core.loaded().start_lsn + 1,
            records=len(records),
            wall_ms=WALL_MS,
            rel_ms=WALL_MS,
            salt=0,
            prev_crc=0,
        )
        core.replay(bytes_, term=TERM)
        return core.lsn()


@pytest.mark.parametrize(
    "record",
    [
        Record(kind=Kind.CREATED, due_ms=0),
        Record(kind=Kind.ENDED, id=GEN + 999),
        Record(kind=Kind.ENDED, id=2 * GEN),
        Record(kind=Kind.HANDLER, handler=0, name=b"another"),
        Record(kind=Kind.POLICY, policy=0, blob=POLICY),
        Record(kind=Kind.DEL, reason=1),
        Record(kind=Kind.DEL, reason=1, name=b"n" * 1025),
        Record(kind=Kind.ENDED, id=GEN + 5, at_ms=0, handler=99, reason=State.CANCELLED, number=1),
        Record(kind=0x7F),
    ],
    ids=[
        "no id",
        "unknown slot",
        "generation to come",
        "another handler",
        "another policy",
        "entry without a name",
        "entry with a long name",
        "ended before, in an unknown handler",
        "unknown kind",
    ],
)
def test_a_record_that_no_checkpoint_can_have_seen_is_damage(fuzzy, record):
    with pytest.raises(CoreError, match=DAMAGED):
        replayed(fuzzy, record)


def test_what_the_checkpoint_has_not_seen_is_applied(fuzzy):
    saved, _data = fuzzy
    figures = saved.bench.core.engine_figures()
    lsn = replayed(
        fuzzy,
        Record(kind=Kind.POLICY, policy=figures["policies_count"], blob=POLICY),
        Record(kind=Kind.HANDLER, handler=figures["handlers_count"], name=b"fresh"),
        Record(kind=Kind.DEL, reason=1, name=b"gone"),
        Record(kind=0x80 | 77),
        Record(kind=Kind.RING_DROPPED, number=99),
        STEP,
    )
    assert lsn == saved.state.start_lsn + 6


def test_a_frame_over_the_end_of_the_checkpoint_is_damage(fuzzy):
    saved, _data = fuzzy
    records = [STEP] * (saved.state.end_lsn - saved.state.start_lsn + 1)
    with pytest.raises(CoreError, match=DAMAGED):
        replayed(fuzzy, *records)


def test_no_frame_goes_between_two_pieces_of_a_checkpoint(fuzzy):
    saved, data = fuzzy
    with Core(saved.bench.options) as core:
        core.load(data[: chunks(data)[0][0]])
        step = frame.seal(
            encode(STEP), first_lsn=1, records=1, wall_ms=0, rel_ms=0, salt=0, prev_crc=0
        )
        with pytest.raises(CoreError, match=DAMAGED):
            core.replay(step, term=TERM)


# ---------------------------------------------------------------- files that cannot be


@pytest.fixture(scope="module")
def saved():
    """Return a bench with entries in both rings, and its checkpoint."""
    saved = Saved().fill()
    for n in range(3):
        saved.conn.ask(f"SCHEDULE h +1h x KEY e{n} ONCE t{n}")
        saved.conn.ask(f"CANCEL e{n}")
    return saved, saved.save()


def refused(saved, data, error=CoreError, match=DAMAGED):
    with Core(saved[0].bench.options) as core, pytest.raises(error, match=match):
        core.load(data)


@pytest.mark.parametrize("logical_ms", [-1, 1 << 48])
def test_a_time_outside_all_time_is_damage(saved, logical_ms):
    block = bytearray(saved[1][:BLOCK])
    (wall_ms,) = struct.unpack_from("<q", block, 56)
    assert wall_ms == WALL_MS
    struct.pack_into("<q", block, 64, logical_ms)
    block[4092:] = frame.crc32c(block[:4092]).to_bytes(4, "little")
    refused(saved, bytes(block) + saved[1][BLOCK:])


def test_an_end_of_another_length_is_no_end(saved):
    at, whole, kind = chunks(saved[1])[-1]
    assert kind == END
    chunk = bytearray(saved[1][at : at + whole])
    struct.pack_into("<I", chunk, 12, whole - CHUNK - 8)
    data = resealed(saved[1][:at] + bytes(chunk)[:-8], at, whole - 8)
    assert scan(data).stop == CheckpointStop.FOOTER


@pytest.mark.parametrize(("kind", "layout"), [(ENDED, ENDED_IMAGE), (ONCE, TOKEN)])
def test_entries_of_a_ring_are_in_the_order_of_their_times(saved, kind, layout):
    offset = 48 if kind == ENDED else 24  # rel_ms of the first entry
    assert layout.size > offset
    later = struct.pack("<q", 1 << 47)
    refused(saved, whole_again(edited(saved[1], kind, offset, later)))


@pytest.mark.parametrize("kind", [ENDED, ONCE])
def test_a_ring_does_not_begin_again(saved, kind):
    """Two chunks whose numbers go back: the second would overwrite the first."""
    at, whole = chunk_of(saved[1], kind)
    twice = saved[1][: at + whole] + saved[1][at:]
    renumbered = bytearray(twice)
    for number, (start, _size, _kind) in enumerate(chunks(twice)):
        struct.pack_into("<I", renumbered, start + 16, number)
    struct.pack_into(
        "<Q", renumbered, chunks(twice)[-1][0] + CHUNK + 64 + 8 + 8, len(chunks(twice)) - 1
    )
    refused(saved, whole_again(bytes(renumbered)))


@pytest.mark.parametrize(("kind", "head", "following"), [(ENDED, 40, 32), (ONCE, 56, 48)])
def test_an_end_whose_rings_do_not_fit_is_damage(saved, kind, head, following):
    at, whole, _kind = chunks(saved[1])[-1]
    (first,) = struct.unpack_from("<Q", saved[1], at + CHUNK + head)
    (next_,) = struct.unpack_from("<Q", saved[1], at + CHUNK + following)
    assert next_ > first >= 1
    for place, value in ((head, 0), (following, 0), (following, next_ + 5)):
        end = bytearray(saved[1][at : at + whole])
        struct.pack_into("<Q", end, CHUNK + place, value)
        refused(saved, saved[1][:at] + resealed(bytes(end), 0, whole))


def ended_again(saved, by):
    """Return the checkpoint with its ended jobs once more, numbered higher by that, and their ids.

    All end at the time of the last, so that the second run follows the first.
    """
    data = saved[1]
    at, whole = chunk_of(data, ENDED)
    again, ids, place = bytearray(data[at : at + whole]), [], CHUNK
    count, first = struct.unpack_from("<IQ", again, 20)
    for _ in range(count):
        ids.append(struct.unpack_from("<Q", again, place)[0])
        struct.pack_into("<q", again, place + 48, WALL_MS)
        place += ENDED_IMAGE.size + struct.unpack_from("<H", again, place + 58)[0]
    struct.pack_into("<Q", again, 24, first + by)
    both = bytearray(data[: at + whole] + again + data[at + whole :])
    for number, (start_, _size, _kind) in enumerate(chunks(both)):
        struct.pack_into("<I", both, start_ + 16, number)
    end = chunks(both)[-1][0] + CHUNK
    struct.pack_into("<QQ", both, end + 32, first + by + count, first + by)
    struct.pack_into("<Q", both, end + 80, len(chunks(both)) - 1)
    return whole_again(bytes(both)), ids


@pytest.mark.parametrize("by", [1 << 32, (1 << 32) + 1, 1 << 33])
def test_a_link_to_an_entry_of_long_ago_leads_nowhere(saved, by):
    """The low half of a number comes again after 2^32 entries: older than it, or even newer."""
    data, ids = ended_again(saved, by)
    assert len(ids) > len({id_ % GEN for id_ in ids}), "several of one slot"
    bench = copy(saved[0].bench)
    with Core(bench.options) as bench.core:
        bench.core.load(data)
        bench.core.start(term=TERM + 1, rel_ms=bench.wall_ms, clocks=bench.clocks())
        assert bench.core.check() == 0
        conn = bench.open()
        for id_ in ids:
            assert conn.ask(f"JOB {id_}").startswith(b"*"), id_
            assert conn.ask(f"JOB {id_ + 99 * GEN}") == b"$-1\r\n"


def test_an_end_whose_ring_begins_below_what_was_loaded_is_damage(saved):
    by = 1 << 32
    data, ids = ended_again(saved, by)
    end = chunks(data)[-1][0] + CHUNK
    next_, head = struct.unpack_from("<QQ", data, end + 32)
    assert next_ - head == len(ids)
    for wrong in (head - 1, 1):
        low = bytearray(data)
        struct.pack_into("<Q", low, end + 40, wrong)
        refused(saved, whole_again(bytes(low)))


def test_a_payload_above_the_largest_block_is_damage(saved):
    at, whole = chunk_of(saved[1], ROWS)
    size = 3 << 20
    huge = bytearray(saved[1][at : at + CHUNK + 44])
    struct.pack_into("<I", huge, CHUNK + 4, size)
    struct.pack_into("<I", huge, 12, 44 + size)
    struct.pack_into("<I", huge, 20, 1)
    row = bytes(huge) + bytes(size + (-(44 + size)) % 8)
    refused(saved, whole_again(saved[1][:at] + row + saved[1][at + whole :]))


def test_an_entry_without_a_name_or_with_a_long_one_is_damage(saved):
    for length in (0, 1025):
        refused(saved, whole_again(edited(saved[1], TABLE, 4, struct.pack("<H", length))))
    at, whole = chunk_of(saved[1], TABLE)
    long = bytearray(saved[1][at : at + CHUNK + 8])
    struct.pack_into("<IH", long, CHUNK, 0, 1025)
    struct.pack_into("<I", long, 12, 8 + 1025)
    entry = bytes(long) + b"n" * 1025 + bytes(-(8 + 1025) % 8)
    refused(saved, whole_again(saved[1][:at] + entry + saved[1][at + whole :]))


def test_a_load_whose_lists_cannot_be_sorted_says_so():
    saved = Saved()
    for n in range(3):
        saved.conn.ask(f"SCHEDULE h now x KEY d{n}")
        receipt = saved.conn.ask("LEASE h").split(b"\r\n")[3].decode()
        saved.conn.ask(f"FAIL {receipt} DEAD")
    data = saved.save()
    refusals = 0
    for n in range(1, 30):
        with Core(saved.bench.options) as core:
            lib.wd_alloc_fail_at(n)
            try:
                core.load(data)
            except CoreMemoryError:
                refusals += 1
            finally:
                made = lib.wd_alloc_fail_at(0)
            if made < n:
                break
    assert refusals > 1


def test_of_two_dead_jobs_of_one_key_the_later_death_is_shown_after_a_load():
    saved = Saved()
    ask = saved.conn.ask
    jobs = []
    for _ in range(2):
        jobs.append(ask("SCHEDULE h now x KEY k").split(b"\r\n")[2])
        receipt = ask("LEASE h").split(b"\r\n")[3].decode()
        assert ask(f"FAIL {receipt} DEAD") == b"+DEAD\r\n"
    ask(b"REQUEUE " + jobs[0])
    receipt = ask("LEASE h").split(b"\r\n")[3].decode()
    assert ask(f"FAIL {receipt} DEAD") == b"+DEAD\r\n"
    saved.bench.advance(2 * 3600 * 1000)
    ask("SCHEDULE other +1h x")  # the ended ring is aged by the next record
    assert saved.bench.core.engine_figures()["ended_count"] == 0
    shown = ask("JOB k")
    with Core(saved.bench.options) as core:
        core.load(saved.save())
        other = Bench.__new__(Bench)
        other.core, other.frames, other.python = core, [], lambda _words: b""
        core.start(term=TERM + 1, rel_ms=saved.bench.wall_ms, clocks=saved.bench.clocks())
        assert other.open().ask("JOB k").split(b"\r\n")[4] == shown.split(b"\r\n")[4] == jobs[0]
