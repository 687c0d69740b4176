"""The verdicts at start: each row of the table in FORMAT.md, and a matrix of damage."""

import random
from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest

from tests.logkit import DATA, UUID, History, Server, open_, read_all, replayed, start
from tests.simdisk import SimDisk
from wal import frame
from wal.errors import LogFailedError, RefusedError, Rule, WalError
from wal.frame import FsyncMode, decode_mark, encode_mark
from wal.recover import Ending, Verdict
from wal.segment import segment_name

FLIPS = 4_000
BLOCK = 4096


def store(sizes, *, fsync=FsyncMode.ALWAYS, mark=0, clean=False, lives=1):
    """Return (disk, history) of a log with frames of these payload sizes.

    MARK is written after each of the first ``mark`` frames, and by the starts; the frames are
    spread over as many lives of a server as asked.
    """
    disk, history = SimDisk(), History()
    rng = random.Random(4)
    server = Server(disk, history, fsync)
    for i, size in enumerate(sizes):
        if i % -(-len(sizes) // lives) == 0:
            if i:
                server.log.close()
            server = Server(disk, history, fsync, salt_seed=i)
            server.start()
        server.append(rng.randbytes(size), records=2)
        if i < mark:
            server.sync()
            server.log.mark()
    if clean:
        server.stop()
    server.log.close()
    return disk, history


def segments(disk):
    return [path for path in disk.files() if path.endswith(".wal")]


def last_frame_at(disk):
    """Return (path, offset) of the last frame of the log, found without the code under test."""
    path = segments(disk)[-1]
    at, data = BLOCK, disk.read(path)
    found = at
    while data[at : at + 4] == b"WDFR":
        found = at
        at += 64 + (int.from_bytes(data[at + 12 : at + 16], "little") + 7) // 8 * 8
    return path, found


def refusal(disk, **options):
    """Return the RefusedError of a start, having checked that it changed nothing."""
    before = {path: disk.read(path) for path in disk.files()}
    with pytest.raises(RefusedError) as refused:
        read_all(disk, **options)
    assert {path: disk.read(path) for path in disk.files()} == before
    return refused.value


def restarted(disk, history, shown):
    """Start, append, and read it again: what was shown stays."""
    server = Server(disk, History(history.attempted[:shown]))
    opened = server.start()
    server.append(b"after")
    server.log.close()
    assert len(read_all(disk.crashed(0))[0]) == shown + 1
    return opened.verdict


# ---- clean ----


def test_an_empty_store_is_clean_and_starts_at_lsn_1():
    frames, verdict = read_all(SimDisk())
    assert frames == []
    assert (verdict.ending, verdict.next_lsn, verdict.term) == (Ending.CLEAN, 1, 1)


def test_zeros_behind_the_last_frame_are_the_clean_end():
    disk, history = store([10, 20, 30], mark=3)
    frames, verdict = read_all(disk)
    assert frames == history.attempted
    assert verdict == Verdict(
        ending=Ending.CLEAN,
        segments=1,
        frames=3,
        records=6,
        bytes=BLOCK + 3 * 64 + 16 + 24 + 32,
        next_lsn=7,
        term=2,
        marked_lsn=6,
        damaged_mark_slots=0,
        after_clean_stop=False,
    )


def test_every_start_has_a_higher_term_and_an_empty_segment_is_replaced():
    disk = SimDisk()
    terms, names = [], []
    for _ in range(4):
        opened = open_(disk)
        replayed(opened)
        log = start(opened)
        terms.append(log.term)
        log.close()
        names.append(segments(disk))
    assert terms == [1, 2, 3, 4]
    assert names == [[f"{DATA}/wal/{segment_name(1, 1)}"]] * 4


def test_a_start_never_appends_to_an_old_segment():
    disk, history = store([10])
    old = disk.read(segments(disk)[0])
    restarted(disk, history, 1)
    assert disk.read(segments(disk)[0]) == old
    assert len(segments(disk)) == 2


def test_the_clocks_of_the_last_frame_and_the_last_header_are_told():
    disk, _ = store([10, 10, 10])
    opened = open_(disk)
    assert opened.last_times is None
    replayed(opened)
    times = opened.last_times
    assert (times.wall_ms, times.rel_ms) == (3_005, 5)  # logkit: 3000 + first lsn, first lsn
    assert (times.rel_minus_boot_ms, times.boot_id, times.created_wall_ms) == (
        500,
        bytes(range(16, 32)),
        2_000,
    )
    opened.close()


def test_chunks_tell_progress_and_place():
    disk, history = store([3000, 3000, 100])
    opened = open_(disk)
    chunks = list(opened.replay())
    assert [chunk.seq for chunk in chunks] == [1, 2]
    assert [(chunk.first_lsn, chunk.last_lsn) for chunk in chunks] == [(1, 2), (3, 6)]
    done = [chunk.bytes_done for chunk in chunks]
    assert done == sorted(done)
    assert done[-1] <= chunks[0].bytes_total == chunks[1].bytes_total == 2 * 8192
    assert sum(chunk.records for chunk in chunks) == opened.verdict.records == 6
    assert history.attempted[0][2] in bytes(chunks[0].data)
    opened.close()


def test_a_store_is_used_in_order():
    opened = open_(SimDisk())
    with pytest.raises(WalError, match="not been replayed"):
        _ = opened.verdict
    with pytest.raises(WalError, match="not been replayed"):
        start(opened)
    replayed(opened)
    with pytest.raises(WalError, match="already"):
        replayed(opened)
    log = start(opened)
    with pytest.raises(WalError, match="already"):
        start(opened)
    log.close()


@pytest.mark.parametrize("segment_bytes", [0, 4096, 8193])
def test_a_segment_size_that_holds_no_frame_is_refused(segment_bytes):
    with pytest.raises(ValueError, match="segment_bytes"):
        open_(SimDisk(), segment_bytes=segment_bytes)


def test_frames_longer_than_one_read_are_replayed():
    disk = SimDisk()
    big = 5 << 20  # more than the 4 MiB of one read
    opened = open_(disk, segment_bytes=16 << 20)
    replayed(opened)
    log = start(opened)
    log.append(b"a", first_lsn=1, records=1, wall_ms=0, rel_ms=0)
    log.append(b"b" * big, first_lsn=2, records=1, wall_ms=0, rel_ms=0)
    log.append(b"c", first_lsn=3, records=1, wall_ms=0, rel_ms=0)
    log.close()
    assert [len(payload) for _, _, payload in read_all(disk)[0]] == [1, big, 1]


# ---- torn ----


@pytest.mark.parametrize("lost", range(4))
def test_a_torn_last_frame_above_the_mark_is_cleared(lost):
    """1700 bytes of frame lie in four sectors; any of them may be missing."""
    disk, history = store([40, 1700], mark=1)
    path, at = last_frame_at(disk)
    sector = at // 512 + lost
    begin = max(sector * 512, at)
    disk.poke(path, begin, bytes((sector + 1) * 512 - begin))
    frames, verdict = read_all(disk)
    assert frames == history.attempted[:1]
    assert (verdict.ending, verdict.path, verdict.offset) == (Ending.TORN, path, at)
    restarted(disk, history, 1)
    assert disk.read(path)[at:] == bytes(8192 - at)


def test_a_header_that_spans_two_sectors_may_lose_either():
    for first in (True, False):
        disk, history = store(
            [512 - 64 - 32, 100], mark=1
        )  # the second header starts 32 bytes before
        path, at = last_frame_at(disk)  # a sector's end
        assert at % 512 == 480
        disk.poke(path, at if first else at + 32, bytes(32 if first else 512))
        assert read_all(disk)[1].ending is Ending.TORN
        restarted(disk, history, 1)


def test_a_torn_first_frame_leaves_an_empty_segment_that_is_replaced():
    disk, history = store([900], mark=0)
    path, at = last_frame_at(disk)
    disk.poke(path, at, bytes(512))
    assert restarted(disk, history, 0).ending is Ending.TORN
    assert segments(disk) == [path]


def test_a_torn_frame_at_or_below_the_mark_is_refused():
    disk, _ = store([40, 1700], mark=2)
    path, at = last_frame_at(disk)
    disk.poke(path, at + 512, bytes(512))
    error = refusal(disk)
    assert (error.rule, error.path, error.offset, error.lsn) == (
        Rule.DAMAGED_DURABLE,
        path,
        at,
        3,
    )
    assert "wheeld wal verify DATA" in str(error)


def test_damage_that_leaves_no_zero_sector_is_not_torn():
    disk, _ = store([40, 1700], mark=1)
    path, at = last_frame_at(disk)
    disk.flip(path, (at + 700) * 8)
    assert refusal(disk).rule is Rule.NOT_TORN


def test_bytes_behind_the_torn_frame_are_not_torn():
    disk, _ = store([40, 1700], mark=1)
    path, at = last_frame_at(disk)
    disk.poke(path, at + 512, bytes(512))
    disk.poke(path, at + 64 + 1704, b"\x01")
    assert refusal(disk).rule is Rule.NOT_TORN


def test_a_frame_behind_the_damage_proves_that_it_was_synced():
    disk, _ = store([40, 300, 40])
    path = segments(disk)[0]
    second = BLOCK + 64 + 40
    disk.poke(path, second, bytes(64))
    error = refusal(disk)
    assert (error.rule, error.offset) == (Rule.DAMAGED_DURABLE, second)
    assert "lsn 4 was known durable" in str(error)


def test_a_frame_behind_the_damage_is_refused_even_when_it_proves_nothing_by_its_lsn():
    """The frame at the damage, once more at another place: a write that went astray."""
    disk, _ = store([40, 300], mark=1)
    path, at = last_frame_at(disk)
    disk.poke(path, 6000 // 8 * 8, disk.read(path)[at : at + 64])
    disk.poke(path, at, bytes(64))
    assert refusal(disk).rule is Rule.FRAME_BEHIND


def test_damage_in_a_sealed_segment_is_refused():
    disk, _ = store([3000, 3000])
    first = segments(disk)[0]
    disk.poke(first, BLOCK + 64 + 3000, b"\x01")  # padding of nothing: a zero behind the frame
    error = refusal(disk)
    assert (error.rule, error.path, error.lsn) == (Rule.DAMAGED_SEALED, first, 3)


def test_a_clean_stop_leaves_nothing_to_be_torn():
    disk, _ = store([40, 40], clean=True)
    path, at = last_frame_at(disk)
    disk.poke(path, at + 104 + 512, b"\x01")
    assert refusal(disk).rule is Rule.AFTER_CLEAN_STOP


# ---- lost ----


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_tail_that_vanished_is_noticed_by_the_mark(keep):
    disk, _ = store([40, 40, 40], mark=3)
    path = segments(disk)[0]
    at = BLOCK + keep * 104
    disk.poke(path, at, bytes(8192 - at))
    error = refusal(disk)
    assert (error.rule, error.path, error.offset, error.lsn) == (
        Rule.LOST_TAIL,
        path,
        at,
        1 + 2 * keep,
    )
    assert f"the log ends at lsn {2 * keep}, and lsn 6 was known durable" in str(error)


def test_an_old_copy_of_mark_is_noticed():
    """It would not know the tail; but each server writes it before its first frame."""
    disk, history = store([40, 40], mark=2)
    old = disk.read(f"{DATA}/MARK")
    server = Server(disk, history)
    server.start()
    server.append(b"newer")
    server.log.close()
    disk.poke(f"{DATA}/MARK", 0, old)
    error = refusal(disk)
    assert error.rule is Rule.MARK
    assert "frames of term 2 are there, and MARK is of term 1" in str(error)


def test_all_segments_lost_is_noticed():
    disk, _ = store([40])
    disk.unlink(segments(disk)[0])
    assert refusal(disk).rule is Rule.LOST_TAIL


@pytest.mark.parametrize("index", range(4))
def test_a_missing_segment_is_refused(index):
    disk, _ = store([3000] * 4, mark=4)
    missing = segments(disk)[index]
    disk.unlink(missing)
    rule = Rule.LOST_TAIL if index == 3 else Rule.SEGMENT_MISSING
    assert refusal(disk).rule is rule


def test_an_old_copy_of_the_segments_is_noticed():
    disk, history = store([40, 40], mark=2)
    old = {path: disk.read(path) for path in segments(disk)}
    server = Server(disk, history)
    server.start()
    server.append(b"newer")
    server.log.mark()
    server.log.close()
    for path in segments(disk):
        disk.unlink(path)
    for path, data in old.items():
        disk.write_file(path, data)
    assert refusal(disk).rule is Rule.LOST_TAIL


def test_another_history_of_the_same_length_is_noticed_by_the_mark():
    ours, _ = store([40, 40], mark=2)
    other = SimDisk()
    history = History()
    server = Server(other, history, salt_seed=99)
    server.start()
    for _ in range(2):
        server.append(b"o" * 40, records=2)
    server.log.close()
    ours.poke(segments(ours)[0], 0, other.read(segments(other)[0]))
    assert refusal(ours).rule is Rule.MARK


# ---- what no crash leaves ----


def changed_header(disk, path, **changes):
    header = frame.decode_segment(disk.read(path)[:BLOCK])
    disk.poke(path, 0, frame.encode_segment(replace(header, **changes)))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"uuid": bytes(16)}, Rule.FOREIGN_UUID),
        ({"seq": 7}, Rule.NAME_MISMATCH),
        ({"base_lsn": 9}, Rule.NAME_MISMATCH),
        ({"prev_crc": 1}, Rule.PREV_CRC),
        ({"term": 0}, Rule.TERM_ORDER),
    ],
)
def test_a_header_that_contradicts_its_neighbours_is_refused(changes, rule):
    disk, _ = store([3000, 3000])
    path = segments(disk)[1]
    changed_header(disk, path, **changes)
    error = refusal(disk)
    assert (error.rule, error.path, error.offset) == (rule, path, 0)


def test_a_first_segment_that_names_a_frame_before_it_is_refused():
    disk, _ = store([40])
    changed_header(disk, segments(disk)[0], prev_crc=5)
    assert refusal(disk).rule is Rule.PREV_CRC


def test_a_segment_of_a_newer_format_is_refused():
    disk, _ = store([40])
    path = segments(disk)[0]
    block = bytearray(disk.read(path)[:BLOCK])
    block[12] = frame.FORMAT_VERSION + 1
    block[-4:] = frame.crc32c(block[:-4]).to_bytes(4, "little")
    disk.poke(path, 0, block)
    error = refusal(disk)
    assert (error.rule, error.advice) == (Rule.NEWER_FORMAT, "use a newer wheeld")


def test_a_segment_that_starts_too_early_is_refused():
    disk, _ = store([3000, 3000])
    path = segments(disk)[1]
    changed_header(disk, path, base_lsn=2)
    disk.rename(path, f"{DATA}/wal/{segment_name(2, 2)}")
    assert refusal(disk).rule is Rule.LSN_OVERLAP


def test_renamed_and_exchanged_segments_are_refused():
    disk, _ = store([3000] * 3)
    _, second, third = segments(disk)
    disk.rename(second, f"{DATA}/wal/{segment_name(5, 3)}")
    assert refusal(disk).rule is Rule.SEGMENT_MISSING
    disk, _ = store([3000] * 3)
    data = disk.read(second)
    disk.poke(second, 0, disk.read(third))
    disk.poke(third, 0, data)
    assert refusal(disk).rule is Rule.NAME_MISMATCH


def test_a_segment_of_another_store_is_refused():
    disk, _ = store([3000, 3000])
    other, _ = store([3000, 3000])
    path = segments(disk)[1]
    block = frame.decode_segment(other.read(path)[:BLOCK])
    other.poke(path, 0, frame.encode_segment(replace(block, uuid=bytes(16))))
    disk.poke(path, 0, other.read(path))
    assert refusal(disk).rule is Rule.FOREIGN_UUID


def test_a_log_without_its_first_segment_is_refused_when_no_checkpoint_makes_up_for_it():
    disk, _ = store([3000] * 3)
    disk.unlink(segments(disk)[0])
    assert refusal(disk).rule is Rule.SEGMENT_MISSING


# ---- headers that a crash left ----


@pytest.mark.parametrize("block", [bytes(BLOCK), b"\x07" * 512 + bytes(BLOCK - 512)])
def test_a_last_segment_without_header_and_frames_is_replaced(block):
    disk, history = store([40], lives=1)
    server = Server(disk, history)
    server.start()  # opens a second segment and dies
    server.log.close()
    path = segments(disk)[-1]
    disk.poke(path, 0, block)
    assert read_all(disk)[1].ending is Ending.EMPTY_HEADER
    verdict = restarted(disk, history, 1)
    assert verdict.ending is Ending.EMPTY_HEADER
    assert verdict.term == 3  # MARK knows the term of the header that is gone
    assert segments(disk)[-1] == path


def test_a_last_segment_without_header_that_holds_a_frame_is_refused():
    disk, _ = store([3000, 3000])
    path = segments(disk)[-1]
    disk.poke(path, 0, bytes(512))
    error = refusal(disk)
    assert (error.path, error.offset) == (path, 0)


def test_a_frame_of_mode_always_speaks_against_an_unsynced_tail():
    """The header is gone, the one before says interval: the frame's flag tells who wrote it."""
    disk, history = store([40], fsync=FsyncMode.INTERVAL)
    server = Server(disk, history, FsyncMode.ALWAYS)
    server.start()
    server.append(b"confirmed")
    server.log.close()
    disk.poke(segments(disk)[-1], 0, bytes(512))
    assert refusal(disk).rule is Rule.FRAME_BEHIND


# ---- unsynced tails ----


def test_an_unsynced_gap_of_a_whole_segment_is_cut():
    disk, history = store([3000] * 4, fsync=FsyncMode.OFF)
    names = segments(disk)
    disk.unlink(names[1])
    verdict = restarted(disk, history, 1)
    assert (verdict.ending, verdict.cut_records, verdict.next_lsn) == (Ending.CUT, 6, 3)
    assert verdict.cut_files == tuple(n.replace(".wal", ".1.cut") for n in names[2:])


def test_an_unsynced_segment_without_header_is_moved_aside_whole():
    disk, history = store([3000] * 3, fsync=FsyncMode.INTERVAL)
    second = segments(disk)[1]
    data = disk.read(second)
    disk.poke(second, 1024, bytes(3072))  # the crc went with it
    verdict = restarted(disk, history, 1)
    assert (verdict.ending, verdict.cut_records) == (Ending.CUT, 4)
    assert disk.read(verdict.cut_files[0])[BLOCK:] == data[BLOCK:]


def test_a_second_cut_does_not_overwrite_the_first():
    disk, history = store([3000] * 2, fsync=FsyncMode.OFF)
    second = segments(disk)[1]
    for expected in ("1", "2"):
        disk.poke(second, BLOCK, bytes(512))
        server = Server(disk, History(history.attempted[:1]), FsyncMode.OFF)
        verdict = server.start().verdict
        assert verdict.cut_files == (second.replace(".wal", f".{expected}.cut"),)
        server.append(b"again" * 300)
        server.log.close()
        assert segments(disk)[1] == second


@pytest.mark.parametrize("lsn_in", ["MARK", "a frame behind"])
def test_an_unsynced_tail_at_or_below_what_was_synced_is_refused(lsn_in):
    if lsn_in == "MARK":
        disk, _ = store([40, 40, 40], fsync=FsyncMode.INTERVAL, mark=2)
        at = BLOCK + 104
    else:
        disk, history = SimDisk(), History()
        server = Server(disk, history, FsyncMode.INTERVAL)
        server.start()
        server.append(b"x" * 40)
        server.sync()
        server.append(b"y" * 40)
        server.log.close()
        at = BLOCK
    disk.flip(segments(disk)[0], (at + 70) * 8)
    error = refusal(disk)
    assert (error.rule, error.offset) == (Rule.DAMAGED_DURABLE, at)


def test_a_later_start_proves_that_everything_before_it_was_synced():
    """By its segment's header alone: its MARK did not arrive."""
    disk, history = store([40, 40], fsync=FsyncMode.OFF)
    mark = disk.read(f"{DATA}/MARK")
    server = Server(disk, history, FsyncMode.OFF)
    server.start()
    server.log.close()
    disk.poke(f"{DATA}/MARK", 0, mark)
    disk.flip(segments(disk)[0], (BLOCK + 104 + 70) * 8)
    assert refusal(disk).rule is Rule.DAMAGED_DURABLE


def test_a_rotation_in_mode_always_proves_that_everything_before_it_was_synced():
    disk, _ = store([3000, 3000])
    first, second = segments(disk)
    disk.poke(second, BLOCK, bytes(8192 - BLOCK))
    disk.poke(first, BLOCK, bytes(512))
    error = refusal(disk)
    assert (error.rule, error.path, error.lsn) == (Rule.DAMAGED_DURABLE, first, 1)
    assert "lsn 2 was known durable" in str(error)


def test_what_is_moved_aside_survives_a_power_cut_at_any_step_of_the_start():
    whole, history = store([3000] * 4, fsync=FsyncMode.OFF)
    whole.crash(1)  # all of it is on the device
    names = segments(whole)
    whole.poke(names[1], 0, bytes(512))
    kept = [whole.read(name)[BLOCK : BLOCK + 3064] for name in names[1:]]
    steps = 0
    while True:
        steps += 1
        disk = whole.clone()
        disk.power_off_after(steps)
        done = False
        with suppress(LogFailedError, OSError):
            Server(disk, History(list(history.attempted)), FsyncMode.OFF).start()
            done = True
        for seed in range(40):
            cut = disk.crashed(seed)
            there = [cut.read(path)[BLOCK : BLOCK + 3064] for path in cut.files()]
            assert all(part in there for part in kept), f"step {steps} seed {seed}"
        if done:
            assert steps > 8
            return


# ---- the matrix ----


@cache
def matrix(mark):
    """A store of three segments and two lives; every file but LOCK."""
    disk, history = store([700, 2500, 1500, 900, 40, 1200], mark=mark, lives=2)
    return disk, history, [path for path in disk.files() if not path.endswith("LOCK")]


def outcome(disk, history, lost_max):
    """Judge a damaged copy: refused, told, or a frame that nobody was told about. Never silent."""
    whole = history.attempted
    try:
        frames, verdict = read_all(disk)
    except RefusedError:
        return "refused"
    assert frames == whole[: len(frames)], "invented"
    assert len(whole) - len(frames) <= lost_max, "lost"
    told = verdict.ending is not Ending.CLEAN or verdict.damaged_mark_slots
    return "told" if told else "silent"


def flip_all(mark, bits, lost_max):
    """Return how often each outcome came up; a flip that changes nothing at all is a failure."""
    disk, history, _ = matrix(mark)
    counts = {"refused": 0, "told": 0, "silent": 0}
    for path, bit in bits:
        disk.flip(path, bit)
        try:
            result = outcome(disk, history, lost_max)
        except AssertionError as error:
            raise AssertionError(f"{path} bit {bit}: {error}") from error
        disk.flip(path, bit)
        counts[result] += 1
        assert result != "silent", f"{path} bit {bit} changed nothing that is told"
    assert read_all(disk)[0] == history.attempted
    return counts


def all_bits(mark):
    disk, _, paths = matrix(mark)
    return [(path, bit) for path in paths for bit in range(len(disk.read(path)) * 8)]


@pytest.mark.parametrize(("mark", "lost_max"), [(6, 0), (3, 1)])
def test_a_flipped_bit_anywhere_is_refused_or_told_and_loses_nothing_known_durable(mark, lost_max):
    """Sampled; with MARK at the end nothing may be lost, else at most the last frame."""
    rng = random.Random(mark)
    counts = flip_all(mark, rng.sample(all_bits(mark), FLIPS // 2), lost_max)
    assert counts["refused"] > 0
    assert counts["told"] > 0


@pytest.mark.long
@pytest.mark.parametrize(("mark", "lost_max"), [(6, 0), (3, 1)])
def test_every_flipped_bit(mark, lost_max):
    flip_all(mark, all_bits(mark), lost_max)


@pytest.mark.parametrize("kind", ["zeroed", "swapped", "doubled", "cut off"])
def test_damaged_sectors_and_shortened_files_lose_nothing_known_durable(kind):
    disk, history, paths = matrix(6)
    results = set()
    for path in paths:
        data = disk.read(path)
        for sector in range(len(data) // 512):
            copy = disk.clone()
            at = sector * 512
            other = (sector + 3) % (len(data) // 512) * 512
            if kind == "zeroed":
                copy.poke(path, at, bytes(512))
            elif kind == "cut off":
                copy.resize(path, at)
            else:
                copy.poke(path, at, data[other : other + 512])
                if kind == "swapped":
                    copy.poke(path, other, data[at : at + 512])
            if copy.read(path).rstrip(b"\0") != data.rstrip(b"\0"):
                results.add(outcome(copy, history, 0))
    assert "refused" in results
    assert "silent" not in results


@pytest.mark.parametrize("how", ["missing", "empty", "of another store"])
def test_whole_files_that_are_wrong_lose_nothing_known_durable(how):
    disk, history, paths = matrix(6)
    other = SimDisk()
    opened = open_(other, uuid=bytes(16))
    replayed(opened)
    start(opened).close()
    for path in paths:
        copy = disk.clone()
        if how == "missing":
            copy.unlink(path)
        else:
            copy.resize(path, 0)
            if how == "of another store":
                twin = path if path in other.files() else segments(other)[0]
                copy.write_file(path, other.read(twin))
        assert outcome(copy, history, 0) == "refused", path


def test_the_store_of_the_matrix_is_what_it_says():
    disk, history, paths = matrix(6)
    assert len(history.attempted) == 6
    assert [path.rpartition("/")[2] for path in paths][:3] == ["IDENT", "MANIFEST", "MARK"]
    assert len(paths) == 6
    assert read_all(disk)[1].term == 3
    assert disk.read(paths[0])[16:32] == UUID


def test_a_power_cut_while_the_only_segment_is_cut_leaves_a_store_that_starts():
    """Moved aside whole, the store would stand without a segment, which is refused as a loss."""
    whole, history = store([900], fsync=FsyncMode.OFF)
    whole.poke(segments(whole)[0], BLOCK, bytes(512))
    steps = 0
    while True:
        steps += 1
        disk = whole.clone()
        disk.power_off_after(steps)
        server = Server(disk, History(list(history.attempted)), FsyncMode.OFF)
        try:
            server.start()
        except (LogFailedError, OSError):
            for seed in range(8):
                assert read_all(disk.crashed(seed))[0] == []
            continue
        assert steps > 5
        return


def test_a_mark_that_names_a_place_outside_of_its_segment_is_refused():
    """With a checksum that fits: no disk does that, and yet it must be no traceback."""
    disk = SimDisk()
    server = Server(disk, History())
    server.start()
    server.append(b"x")
    server.log.mark()
    server.log.close()
    path = f"{DATA}/MARK"
    marks = disk.read(path)
    slots = [decode_mark(marks[at : at + 512]) for at in range(0, 4096, 512)]
    newest = max((mark for mark in slots if mark), key=lambda mark: mark.count)
    forged = encode_mark(replace(newest, offset=(1 << 64) - 8))
    disk.poke(path, slots.index(newest) * 512, forged)
    with pytest.raises(RefusedError, match="MARK names the frame of lsn 1") as refused:
        read_all(disk)
    assert refused.value.rule is Rule.MARK
