"""The file of a checkpoint and what reads it: every kind of damage, odd pieces, little memory."""

import random
import struct

import pytest
from _wheeld import lib

from tests.fed import TERM, Bench
from tests.simdisk import SimDisk
from wal import frame
from wal.facts import CheckpointStop
from wal.frame import CheckpointScanner
from wheel.engine.core import Core
from wheel.engine.facts import CheckpointPhase, Commit, FigureKind, Sync
from wheel.engine.records import Kind, Record, encode
from wheel.errors import CoreError, CoreMemoryError

PATH = "/snap/next.tmp"
SALT = 0x5EED
BLOCK, CHUNK = 4096, 40
END = 7  # kind of the last chunk
FREE = 5  # a slot that is free in a filled bench; it had generation 1
CLEAN = (CheckpointStop.WHOLE, CheckpointStop.MORE)


class Saved:
    """A bench with jobs of every kind, and the disk that its checkpoints go to."""

    def __init__(self, **options):
        self.bench = Bench(**options)
        self.conn = self.bench.open()
        self.disk = SimDisk()
        self.disk.make_folder("/snap")
        self.disk.dirsync("/")

    def fill_anywhere(self):
        """Make jobs in every state, names, settings, entries of both rings and of the table."""
        ask = self.conn.ask
        for line in (
            "SCHEDULE h now leased KEY leased META m GROUP g RETRIES 0 BACKOFF fixed 5",
            "LEASE h WORKER someone",
            "SCHEDULE h now ready KEY ready EXPIRE +1h ONCE token",
            "SCHEDULE h +1h scheduled KEY scheduled PRIORITY 3",
            "SCHEDULE h +1h gone KEY gone",
            "CANCEL gone",
            "SCHEDULE other now dead KEY dead",
            "HANDLER other CONCURRENCY 7",
        ):
            ask(line)
        receipt = ask("LEASE other").split(b"\r\n")[3].decode()
        assert ask(f"FAIL {receipt} DEAD ERROR why") == b"+DEAD\r\n"
        self.bench.core.submit(
            encode(Record(kind=Kind.PUT, reason=1, name=b"key", blob=b"value"))
            + encode(
                Record(kind=Kind.CREATED, name=b"h", owner=b"o@1", due_ms=0, flags=0, priority=128)
            )
        )
        self.bench.settle()
        return self

    def fill(self):
        """As fill_anywhere, in slots from 0 on, one of them FREE."""
        self.fill_anywhere()
        ask = self.conn.ask
        assert ask("SCHEDULE h +1h last KEY last").split(b"\r\n")[2] == b"%d" % (1 << 32 | FREE)
        ask("CANCEL last")
        return self

    def start(self, **options):
        given = {"salt": SALT, "io": self.disk.io, "threaded": False, "slice_things": 3}
        self.bench.core.checkpoint_start(PATH, **given | options)

    @property
    def state(self):
        return self.bench.core.checkpoint_state()

    def finish(self):
        for _ in range(10_000):
            if self.state.phase in (CheckpointPhase.DONE, CheckpointPhase.FAILED):
                return self.state
            self.bench.settle()
        raise AssertionError(self.state)

    def save(self, **options):
        """Return the bytes of a whole checkpoint."""
        self.start(**options)
        return self.save_rest()

    def save_rest(self):
        assert self.finish().phase == CheckpointPhase.DONE, self.state
        return self.disk.read(PATH)

    def files(self):
        return self.disk.files()


@pytest.fixture(scope="module")
def saved():
    """Return a filled bench, which no test changes, and its checkpoint."""
    saved = Saved().fill()
    return saved, saved.save()


def scan(data):
    return CheckpointScanner().feed(data, room=len(data))


def chunks(data):
    """Return (offset, whole length, kind) of each chunk, by the page's layout alone."""
    found, at = [], BLOCK
    while at < len(data):
        size, kind = struct.unpack_from("<I", data, at + 12)[0], data[at + 32]
        found.append((at, CHUNK + (size + 7) // 8 * 8, kind))
        at += found[-1][1]
    return found


def resealed(data, at, whole, salt=SALT):
    """Return data whose chunk at an offset has good crcs again."""
    chunk = bytearray(data[at : at + whole])
    chunk[8:12] = frame.crc32c(chunk[CHUNK:], salt).to_bytes(4, "little")
    chunk[4:8] = frame.crc32c(chunk[8:CHUNK], salt).to_bytes(4, "little")
    return data[:at] + bytes(chunk) + data[at + whole :]


def with_end(data, **fields):
    """Return data whose last chunk says something else, with good crcs."""
    names = (
        "start_lsn end_lsn wall_ms rel_ms ended_next ended_head once_next once_head things jobs"
    ).split()
    at, whole, kind = chunks(data)[-1]
    assert kind == END
    changed = bytearray(data)
    for name, value in fields.items():
        if name in names:
            struct.pack_into("<q", changed, at + CHUNK + 8 * names.index(name), value)
        else:
            offset = {"chunks": 80, "crc": 84}[name]
            struct.pack_into("<I", changed, at + CHUNK + offset, value)
    return resealed(bytes(changed), at, whole)


def rebuilt(saved, data, frames=None):
    """Return a core that loaded data and replayed the bench's frames, not started."""
    core = Core(saved.bench.options)
    try:
        core.load(data)
        for one in saved.bench.frames if frames is None else frames:
            core.replay(one, term=TERM)
    except BaseException:
        core.close()
        raise
    return core


def start(core, bench):
    core.start(term=TERM + 1, rel_ms=bench.wall_ms, clocks=bench.clocks())


# ---------------------------------------------------------------- damage


def test_every_flipped_bit_of_a_file_is_refused(saved):
    data = bytearray(saved[1])
    scanner = CheckpointScanner  # bound once: this runs fifty thousand times
    for bit in range(8 * len(data)):
        data[bit >> 3] ^= 1 << (bit & 7)
        found = scanner().feed(data, room=len(data))
        data[bit >> 3] ^= 1 << (bit & 7)
        assert found.stop not in CLEAN, f"bit {bit}"
    assert scan(bytes(data)).stop is CheckpointStop.WHOLE


def test_a_file_cut_off_anywhere_is_too_short(saved):
    for size in range(len(saved[1])):
        assert scan(saved[1][:size]).stop is CheckpointStop.SHORT, size


@pytest.mark.parametrize("more", [b"\0", b"x" * 9, bytes(4096)])
def test_bytes_behind_the_last_chunk_are_refused(saved, more):
    assert scan(saved[1] + more).stop is CheckpointStop.TRAILING


def test_chunks_swapped_left_out_or_doubled_are_refused(saved):
    data = saved[1]
    for (at, whole, _), (_, next_whole, _) in zip(chunks(data), chunks(data)[1:], strict=False):
        end = at + whole + next_whole
        first, second = data[at : at + whole], data[at + whole : end]
        for damaged in (
            data[:at] + second + first + data[end:],
            data[:at] + second + data[end:],
            data[:at] + first + first + second + data[end:],
        ):
            assert scan(damaged).stop is CheckpointStop.ORDER


def test_a_chunk_of_another_file_is_refused(saved):
    other = saved[0].save(salt=SALT + 1)
    saved[0].bench.core.checkpoint_abort()
    at, whole, _ = chunks(saved[1])[2]
    assert chunks(other)[2][:2] == (at, whole)
    mixed = saved[1][:at] + other[at : at + whole] + saved[1][at + whole :]
    assert scan(mixed).stop is CheckpointStop.SALT


LIES = [{"start_lsn": 1}, {"end_lsn": 0}, {"things": 1}, {"chunks": 1}, {"crc": 1}]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_last_chunk_that_disagrees_with_the_others_is_refused(saved, lie):
    assert scan(with_end(saved[1], **lie)).stop is CheckpointStop.FOOTER


def test_a_chunk_of_an_unknown_kind_is_refused_unless_readers_may_skip_it(saved):
    at, whole, _ = chunks(saved[1])[0]
    for kind, stop in ((8, CheckpointStop.LENGTH), (0, CheckpointStop.LENGTH)):
        changed = bytearray(saved[1])
        changed[at + 32] = kind
        assert scan(resealed(bytes(changed), at, whole)).stop is stop
    assert scan(with_skippable(saved[1])).stop is CheckpointStop.WHOLE


@pytest.mark.parametrize(("offset", "value"), [(12, 5 << 20), (20, 0)])
def test_a_chunk_that_is_too_long_or_empty_is_refused(saved, offset, value):
    """Its header has a good crc: only the limits are left to refuse it."""
    at, whole, _ = chunks(saved[1])[0]
    changed = bytearray(saved[1])
    struct.pack_into("<I", changed, at + offset, value)
    assert scan(resealed(bytes(changed), at, whole)).stop is CheckpointStop.LENGTH


def test_a_scan_that_is_over_goes_on_saying_so(saved):
    scanner = CheckpointScanner()
    assert scanner.feed(saved[1], room=len(saved[1])).stop is CheckpointStop.WHOLE
    assert scanner.feed(b"", room=0).stop is CheckpointStop.WHOLE
    assert scanner.feed(b"", room=1).stop is CheckpointStop.TRAILING


def with_skippable(data, kind=0x85):
    """Return data with one more chunk, of a kind with bit 7, before its last one."""
    at, whole, _ = chunks(data)[-1]
    number = struct.unpack_from("<I", data, at + 16)[0]
    body = b"of a later version".ljust(24, b"\0")
    head = struct.pack("<IIIIIIQII", 0x4B504457, 0, 0, 18, number, 5, 0, kind, SALT)
    extra = resealed(head + body, 0, CHUNK + len(body))
    end = bytearray(data[at:])
    struct.pack_into("<I", end, 16, number + 1)
    things, crc = (
        struct.unpack_from("<Q", end, CHUNK + 64)[0],
        struct.unpack_from("<I", end, CHUNK + 84)[0],
    )
    struct.pack_into("<Q", end, CHUNK + 64, things + 5)
    struct.pack_into("<II", end, CHUNK + 80, number + 1, frame.crc32c(extra[8:12], crc))
    return data[:at] + extra + resealed(bytes(end), 0, whole)


def test_a_chunk_that_readers_may_skip_is_skipped(saved):
    with rebuilt(saved[0], with_skippable(saved[1])) as core:
        start(core, saved[0].bench)
        assert core.state_hash() == saved[0].bench.core.state_hash()


def test_a_newer_format_is_told_from_damage(saved):
    block = bytearray(saved[1][:BLOCK])
    struct.pack_into("<II", block, 8, 2, 2)
    block[4092:] = frame.crc32c(block[:4092]).to_bytes(4, "little")
    newer = bytes(block) + saved[1][BLOCK:]
    assert scan(newer).stop is CheckpointStop.NEWER
    with Core(saved[0].bench.options) as core, pytest.raises(CoreError, match="damaged"):
        core.load(newer)


# ---------------------------------------------------------------- loading


def pieces(data, rng, size_max):
    """Yield what a reader hands on that reads odd numbers of bytes: runs of whole chunks."""
    scanner, held, at = CheckpointScanner(), b"", 0
    while True:
        step = rng.randrange(1, size_max)
        held, at = held + data[at : at + step], min(at + step, len(data))
        found = scanner.feed(held, room=len(held) + len(data) - at)
        assert found.stop in CLEAN
        if found.bytes:
            yield held[: found.bytes]
        held = held[found.bytes :]
        if found.stop is CheckpointStop.WHOLE:
            assert not held
            return


@pytest.mark.parametrize("size_max", [3, 50, 700, 5_000])
def test_a_file_read_in_odd_pieces_loads_as_a_whole_one(saved, size_max):
    world, data = saved
    with Core(world.bench.options) as core:
        for piece in pieces(data, random.Random(size_max), size_max):
            core.load(piece)
        assert core.loaded().whole
        start(core, world.bench)
        assert core.check() == 0
        assert core.state_hash() == world.bench.core.state_hash()


def test_pieces_that_are_no_whole_chunks_are_refused(saved):
    world, data = saved
    for cut in (1, BLOCK - 1, BLOCK + 1, len(data) - 1):
        with Core(world.bench.options) as core, pytest.raises(CoreError, match="damaged"):
            core.load(data[:cut])


def test_what_is_loaded_is_what_the_crcs_cover_even_if_nobody_scanned_it(saved):
    world, data = saved
    for offset in (100, BLOCK + 60, len(data) - 20):
        damaged = bytearray(data)
        damaged[offset] ^= 1
        with Core(world.bench.options) as core, pytest.raises(CoreError, match="damaged"):
            core.load(damaged)


def test_a_core_loads_once_and_before_all_else(saved):
    world, data = saved
    with rebuilt(world, data) as core:
        for late in (data, data[:BLOCK]):
            with pytest.raises(CoreError, match="invalid"):
                core.load(late)
        start(core, world.bench)
        with pytest.raises(CoreError, match="invalid"):
            core.load(data)
    with Core(world.bench.options) as core:
        core.replay(world.bench.frames[0], term=TERM)
        with pytest.raises(CoreError, match="invalid"):
            core.load(data)


def test_a_checkpoint_without_its_last_chunk_serves_nothing_and_replays_nothing(saved):
    world, data = saved
    with Core(world.bench.options) as core:
        core.load(data[: chunks(data)[-1][0]])
        with pytest.raises(CoreError, match="damaged"):
            core.replay(world.bench.frames[-1], term=TERM)
        with pytest.raises(CoreError, match="damaged"):
            start(core, world.bench)
        assert not core.loaded().whole


def test_a_log_that_ends_before_the_checkpoints_end_starts_nothing(saved):
    """And one that has its last frame does, whatever else it has."""
    world, data = saved
    bench = world.bench
    last = int.from_bytes(bench.frames[-1][24:32], "little") - 1
    last += int.from_bytes(bench.frames[-1][16:20], "little")
    ahead = with_end(data, end_lsn=last + 1)
    with rebuilt(world, ahead) as core:
        assert core.loaded().end_lsn == last + 1
        assert not core.loaded().reached
        with pytest.raises(CoreError, match="damaged"):
            start(core, bench)
    with rebuilt(world, data, frames=[]) as core:
        assert core.loaded().reached
        start(core, bench)
        assert core.state_hash() == bench.core.state_hash()


def test_bytes_behind_the_last_record_of_a_frame_are_damage(saved):
    world, data = saved
    end = scan(data).end
    step = encode(Record(kind=Kind.CLOCK, at_ms=1, flags=0, number=0))
    for records, payload in ((1, step * 2), (2, step)):
        one = frame.seal(
            payload,
            first_lsn=end.end_lsn + 1,
            records=records,
            wall_ms=end.wall_ms,
            rel_ms=end.rel_ms,
            salt=0,
            prev_crc=0,
        )
        for file in (data, with_end(data, end_lsn=end.end_lsn + records)):
            with rebuilt(world, file) as core, pytest.raises(CoreError, match="damaged"):
                core.replay(one, term=TERM)


def test_a_frame_that_reaches_over_the_checkpoints_end_is_damage(saved):
    world, data = saved
    end = scan(data).end
    two = frame.seal(
        encode(Record(kind=Kind.CLOCK, at_ms=1, flags=0, number=0)) * 2,
        first_lsn=end.end_lsn + 1,
        records=2,
        wall_ms=end.wall_ms,
        rel_ms=end.rel_ms,
        salt=0,
        prev_crc=0,
    )
    inside = with_end(data, end_lsn=end.end_lsn + 1)
    with rebuilt(world, inside) as core, pytest.raises(CoreError, match="damaged"):
        core.replay(two, term=TERM)
    with rebuilt(world, with_end(data, end_lsn=end.end_lsn + 2)) as core:
        core.replay(two, term=TERM)
        assert core.loaded().reached


def behind(saved, data, record, *, seen=True):
    """Return a core that replayed one record more, which the checkpoint may have seen or not."""
    end = scan(data).end
    one = frame.seal(
        encode(record),
        first_lsn=end.end_lsn + 1,
        records=1,
        wall_ms=end.wall_ms,
        rel_ms=end.rel_ms,
        salt=0,
        prev_crc=0,
    )
    data = with_end(data, end_lsn=end.end_lsn + 1) if seen else data
    return rebuilt(saved, data, [*saved.bench.frames, one])


FORGED = [
    Record(kind=Kind.HANDLER, handler=0, name=b"other"),
    Record(kind=Kind.HANDLER, handler=9, name=b"not the next"),
    Record(kind=Kind.POLICY, policy=0, blob=bytes(24)),
    Record(kind=Kind.LEASED, id=2 << 32, at_ms=1, lease_ms=1, number=1),
    Record(kind=Kind.LEASED, id=1 << 32 | 77, at_ms=1, lease_ms=1, number=1),
    Record(kind=Kind.CLOSED, id=3 << 32 | 3),
    Record(kind=Kind.CLOSED, id=2 << 32 | FREE),
    Record(kind=Kind.MARKED),
    Record(kind=Kind.DEL, reason=1),
    Record(
        kind=Kind.CREATED,
        id=2 << 32,
        due_ms=1,
        at_ms=1,
        flags=0,
        handler=0,
        policy=0,
        priority=1,
    ),
    Record(kind=Kind.GENERATIONS, number=1 << 25),
]


@pytest.mark.parametrize(
    "record", FORGED, ids=lambda record: f"{record.kind.name} {record.id or ''}"
)
def test_a_record_before_s1_that_fits_no_state_of_its_thing_is_damage(saved, record):
    with pytest.raises(CoreError, match="damaged"):
        behind(*saved, record)


SEEN = [
    Record(kind=Kind.HANDLER, handler=0, name=b"h"),
    Record(kind=Kind.MARKED, id=1 << 32 | 3),
    Record(kind=Kind.MARKED, id=1 << 32 | FREE),
    Record(kind=Kind.DEL, reason=1, name=b"gone"),
]
DROPS = [Record(kind=Kind.RING_DROPPED, number=1), Record(kind=Kind.ONCE_DROPPED, number=1)]


@pytest.mark.parametrize("record", SEEN, ids=lambda record: f"{record.kind.name} {record.id or ''}")
def test_behind_s1_what_a_thing_has_seen_already_is_damage(saved, record):
    with pytest.raises(CoreError, match="damaged"):
        behind(*saved, record, seen=False)


@pytest.mark.parametrize(
    "record", [*SEEN, *DROPS], ids=lambda record: f"{record.kind.name} {record.id or ''}"
)
def test_a_record_before_s1_whose_thing_has_seen_it_changes_nothing(saved, record):
    with rebuilt(*saved) as core, behind(*saved, record) as other:
        start(core, saved[0].bench)
        start(other, saved[0].bench)
        assert other.check() == 0
        assert other.state_hash() == core.state_hash() + 1, "the lsn alone"


RINGS = [("ended", Kind.RING_DROPPED), ("once", Kind.ONCE_DROPPED)]


@pytest.mark.parametrize(("ring", "kind"), RINGS)
def test_what_was_dropped_for_room_while_it_was_written_is_dropped_once(ring, kind):
    """It takes four million entries to see one made, so the record and END's numbers are put in."""
    saved = Saved()
    for number in range(6):
        saved.conn.ask(f"SCHEDULE h +1h x KEY k{number} ONCE t{number}")
        saved.conn.ask(f"CANCEL k{number}")
    data = saved.save()
    lsn = saved.state.end_lsn
    drop = frame.seal(
        encode(Record(kind=kind, number=4)),
        first_lsn=lsn + 1,
        records=1,
        wall_ms=saved.bench.wall_ms,
        rel_ms=saved.bench.wall_ms,
        salt=0,
        prev_crc=0,
    )
    frames = [*saved.bench.frames, drop]
    moved = with_end(data, end_lsn=lsn + 1, **{f"{ring}_head": 5})
    with Core(saved.bench.options) as truth, rebuilt(saved, moved, frames) as core:
        for one in frames:
            truth.replay(one, term=TERM)
        assert core.state_hash() == truth.state_hash() != saved.bench.core.state_hash()


def test_rings_age_once_by_each_frame_whichever_side_of_the_checkpoint_it_is_on():
    """A frame forgets at most 16 k entries, so 40,000 that are over at once take three frames."""
    saved = Saved(jobs_max=100_000)
    count = 40_000
    for _ in range(8):
        saved.conn.feed(b"SCHEDULE h +9h x\r\n" * (count // 8))
        saved.bench.settle()
        saved.conn.take()
    for first in range(0, count, 1000):
        ids = " ".join(str(1 << 32 | slot) for slot in range(first, first + 1000))
        saved.conn.ask(f"CANCEL {ids}")
    figures = saved.bench.core.engine_figures
    assert figures()["ended_count"] == count
    saved.start(slice_things=count // 4)
    saved.bench.advance(3_600_001)
    saved.conn.ask("SCHEDULE h +9h one")
    data = saved.save_rest()
    assert figures()["ended_count"] == count - 16 * 1024
    upto = list(saved.bench.frames)
    with rebuilt(saved, data, upto) as core:
        start(core, saved.bench)
        assert core.state_hash() == saved.bench.core.state_hash()
    for left in (count - 2 * 16 * 1024, 0):
        saved.conn.ask("SCHEDULE h +9h more")
        assert figures()["ended_count"] == left
        with rebuilt(saved, data) as core:
            start(core, saved.bench)
            assert core.state_hash() == saved.bench.core.state_hash()


def test_more_jobs_than_fit_are_told_from_damage(saved):
    bench = Bench(jobs_max=3)
    with Core(bench.options) as core, pytest.raises(CoreMemoryError):
        core.load(saved[1])


@pytest.mark.parametrize(
    ("what", "offset", "value"),
    [
        ("a generation of 0", 0, b"\0\0\0\x08"),
        ("a state that is none", 3, b"\x7f"),
        ("ready, which is never written", 3, b"\x06"),
        ("a payload beyond the chunk", 4, b"\xff\xff\xff"),
        ("an lsn that is not written yet", 8, b"\xff" * 7),
        ("a due time beyond the wheel", 16, b"\xff" * 8),
        ("a handler that is none", 36, b"\xff\xff"),
        ("a policy that is none", 38, b"\xff\xff"),
    ],
)
def test_a_row_that_cannot_be_is_refused_although_its_crcs_are_good(saved, what, offset, value):
    world, data = saved
    [(at, whole, _)] = [chunk for chunk in chunks(data) if chunk[2] == 3]
    changed = bytearray(data)
    place = at + CHUNK + offset
    changed[place : place + len(value)] = value
    changed = resealed(bytes(changed), at, whole)
    crc = SALT
    for offset_, _, kind in chunks(changed):
        if kind != END:
            crc = frame.crc32c(changed[offset_ + 8 : offset_ + 12], crc)
    changed = with_end(changed, crc=crc)
    assert scan(changed).stop is CheckpointStop.WHOLE, "or nothing is shown"
    with Core(world.bench.options) as core, pytest.raises(CoreError, match="damaged"):
        core.load(changed)


# ---------------------------------------------------------------- writing


def test_nothing_waits_for_a_checkpoint_and_it_counts_when_its_end_is_durable():
    saved = Saved().fill()
    saved.start(slice_things=1)
    saved.conn.feed(b"SCHEDULE h +1h late\r\n")
    for _ in range(200):
        saved.bench.core.commit()  # rounds, and nothing becomes durable
    state = saved.state
    assert state.phase == CheckpointPhase.WAITS
    assert saved.bench.core.durable_lsn() < state.end_lsn
    saved.bench.settle()
    assert saved.state.phase == CheckpointPhase.DONE
    with rebuilt(saved, saved.disk.read(PATH)) as core:
        start(core, saved.bench)
        assert core.state_hash() == saved.bench.core.state_hash()


def test_one_at_a_time_and_a_new_one_when_it_is_over():
    saved = Saved().fill()
    assert saved.state.phase == CheckpointPhase.IDLE
    saved.start()
    with pytest.raises(CoreError, match="not now"):
        saved.start()
    saved.finish()
    first = saved.state.start_lsn
    saved.conn.ask("SCHEDULE h +1h more")
    saved.save()
    assert saved.state.start_lsn > first


def test_a_checkpoint_given_up_leaves_no_file_and_one_that_is_over_keeps_its_own():
    saved = Saved().fill()
    saved.start()
    saved.bench.core.commit()
    assert saved.files() == [PATH]
    saved.bench.core.checkpoint_abort()
    assert (saved.files(), saved.state.phase) == ([], CheckpointPhase.IDLE)
    saved.save()
    saved.bench.core.checkpoint_abort()
    assert (saved.files(), saved.state.phase) == ([PATH], CheckpointPhase.IDLE)
    saved.start()
    saved.bench.core.commit()
    saved.bench.core.close()
    assert saved.files() == []


CALLS = [
    ("open", 1, "FAIL", 28),
    ("pwrite", 1, "FAIL", 28),
    ("pwrite", 3, "FAIL", 5),
    ("datasync", 1, "FAIL", 5),
    ("datasync", 1, "FAIL", 28),
    ("pread", 1, "FAIL", 5),
    ("unlink", 1, "FAIL", 30),
]


@pytest.mark.parametrize(("call", "nth", "kind", "error"), CALLS)
def test_a_disk_error_fails_the_checkpoint_and_nothing_else(call, nth, kind, error):
    saved = Saved().fill()
    saved.disk.fault(call, nth, error=error, kind=kind)
    saved.start()
    state = saved.finish()
    assert saved.disk.fault_done
    assert (state.phase, state.error, state.call) == (CheckpointPhase.FAILED, error, call)
    assert saved.files() == []
    assert saved.conn.ask("SCHEDULE h +1h after").startswith(b"$")
    saved.save()  # the next one is as good as any
    saved.bench.check()


def test_a_write_that_is_cut_short_is_continued():
    saved = Saved().fill()
    saved.disk.fault("pwrite", 2, kind="SHORT")
    data = saved.save()
    assert saved.disk.fault_done
    assert scan(data).stop is CheckpointStop.WHOLE


def test_a_sync_that_lies_is_noticed_by_reading_the_device():
    """The pages are clean in the cache and absent on the device: only a read past it tells."""
    saved = Saved().fill()
    saved.disk.fault("datasync", 1, kind="LIE")
    saved.start()
    state = saved.finish()
    assert (state.phase, state.call, state.error) == (CheckpointPhase.FAILED, "verify", 0)
    assert state.verdict == CheckpointStop.HEADER
    assert saved.files() == []


def test_a_finished_file_survives_a_power_cut_once_its_name_is_synced():
    saved = Saved().fill()
    data = saved.save()
    saved.disk.dirsync("/snap")
    assert saved.disk.crashed(0).read(PATH) == data


def test_a_slice_that_finds_no_memory_fails_the_checkpoint_and_nothing_else():
    saved = Saved(payload_bytes_max=1 << 20).fill()
    payload = b"p" * 900_000
    saved.conn.ask(b"*4\r\n$8\r\nSCHEDULE\r\n$1\r\nh\r\n$3\r\n+1h\r\n$900000\r\n" + payload)
    for nth in range(1, 40):
        lib.wd_alloc_fail_at(nth)
        try:
            saved.start(slice_things=1)
        except CoreMemoryError:
            saved.bench.core.checkpoint_abort()
            assert saved.state.phase == CheckpointPhase.IDLE
            continue
        state = saved.finish()
        lib.wd_alloc_fail_at(0)
        if state.phase == CheckpointPhase.DONE:
            break
        assert (state.phase, state.error, state.call) == (CheckpointPhase.FAILED, 12, "memory")
        assert saved.files() == []
    else:
        raise AssertionError("there is always another allocation")
    assert nth > 3
    assert scan(saved.disk.read(PATH)).stop is CheckpointStop.WHOLE
    saved.bench.check()


def test_a_load_that_finds_no_memory_says_so(saved):
    world, data = saved
    failures = 0
    for nth in range(1, 100):
        with Core(world.bench.options) as core:
            lib.wd_alloc_fail_at(nth)
            try:
                core.load(data)
            except CoreMemoryError:
                failures += 1
                continue
            finally:
                lib.wd_alloc_fail_at(0)
            start(core, world.bench)
            assert core.state_hash() == world.bench.core.state_hash()
            break
    assert failures >= 3


def test_buffers_count_against_maxmemory_as_long_as_they_are():
    saved = Saved().fill()
    before = saved.bench.core.memory_bytes()
    saved.start(slice_things=1)
    assert before + (1 << 20) < saved.bench.core.memory_bytes() < before + (8 << 20)
    saved.finish()
    assert saved.bench.core.memory_bytes() == before


def test_ids_made_behind_raised_generations_keep_to_them_over_any_restart():
    saved = Saved().fill()
    saved.start(slice_things=1)
    saved.bench.core.raise_generations(1 << 20)
    data = saved.save_rest()
    late = saved.save()
    assert scan(data).header.generation == 0, "it was raised behind S0"
    assert scan(late).header.generation == 1 << 20
    made = saved.conn.ask("SCHEDULE h +1h x").split(b"\r\n")[1]
    assert int(made) >> 32 == 1 << 20
    for file in (data, late):
        with rebuilt(saved, file) as core:
            start(core, saved.bench)
            assert core.state_hash() == saved.bench.core.state_hash()
            assert core.generation_max() == 1 << 20


@pytest.mark.parametrize("generation", [0, 1 << 25, 1 << 31])
def test_a_generation_that_no_id_can_have_is_refused(generation):
    with pytest.raises(CoreError, match="invalid"):
        Bench().core.raise_generations(generation)


# ---------------------------------------------------------------- what the page and Python say


@pytest.mark.parametrize(
    ("values", "prefix"),
    [
        (CheckpointStop, "WD_CKPT_"),
        (CheckpointPhase, "WD_CHECKPOINT_"),
        (Commit, "WD_COMMIT_"),
        (Sync, "WD_FSYNC_"),
        (FigureKind, "WD_FIGURE_"),
    ],
)
def test_pythons_numbers_are_those_of_the_code(values, prefix):
    assert {one.name: one.value for one in values} == {
        one.name: getattr(lib, f"{prefix}{one.name}") for one in values
    }
    assert list(values)[-1].value == len(values) - 1, "or one is missing"


def test_a_scan_waits_for_a_buffer_among_names_and_among_entries():
    """Each more than all buffers hold; the writer carries one away a round."""
    saved = Saved()
    for n in range(6000):
        saved.conn.feed(b"HANDLER %b CONCURRENCY 1\r\n" % (b"h%d" % n).ljust(200, b"x"))
        if n % 1000 == 999:
            saved.bench.settle()
            saved.conn.take()
    for n in range(8):
        op = Record(kind=Kind.PUT, reason=1, name=b"%d" % n, blob=b"b" * 300_000)
        saved.bench.core.submit(encode(op))
        saved.bench.settle()
    data = saved.save(slice_things=100_000)
    with Core(saved.bench.options) as core:
        core.load(data)
        start(core, saved.bench)
        assert core.state_hash() == saved.bench.core.state_hash()
