"""What `wheeld wal verify DATA` says."""

import pytest

from tests.lives import segments, with_two_generations
from tests.logkit import DATA, SEGMENT_BYTES, History, Server, open_, replayed
from tests.simdisk import SimDisk
from wal.disk import RealDisk
from wal.errors import Rule
from wal.frame import FsyncMode
from wal.recover import Ending
from wal.verify import as_text, grouped, verify


def store(sizes, fsync=FsyncMode.ALWAYS):
    disk = SimDisk()
    server = Server(disk, History(), fsync)
    server.start()
    for size in sizes:
        server.append(b"x" * size, records=3)
    server.log.close()
    return disk


def untouched(disk):
    """Return the report, having checked that looking changed nothing and synced nothing."""
    before, calls = {path: disk.read(path) for path in disk.files()}, len(disk.trace())
    report = verify(disk, DATA)
    made = {call for call, *_ in disk.trace()[calls:]}
    assert made <= {"open"}
    assert {path: disk.read(path) for path in disk.files()} == before
    return report


def test_a_whole_store_is_counted_segment_by_segment():
    report = untouched(store([3000, 2000, 1000]))
    assert not report.damaged
    assert [(s.records, s.first_lsn, s.last_lsn, s.problems) for s in report.segments] == [
        (3, 1, 3, []),
        (6, 4, 9, []),
    ]
    assert report.records == report.verdict.records == 9
    assert as_text(report) == (
        "segment                                records  bytes  lsn range  result\n"
        "0000000000000001-0000000000000001.wal        3  7 160  1-3        ok\n"
        "0000000000000002-0000000000000004.wal        6  7 224  4-9        ok\n"
        "9 records, no damage. Known durable up to lsn 0.\n"
    )


def test_an_empty_store_has_nothing_wrong():
    report = untouched(store([]))
    assert not report.damaged
    assert "        0      0  -          ok\n" in as_text(report)


def test_a_torn_frame_is_told_as_normal():
    disk = store([40, 900])
    disk.poke(f"{DATA}/wal/0000000000000001-0000000000000001.wal", 4096 + 104, bytes(512))
    report = untouched(disk)
    assert not report.damaged
    assert report.verdict.ending is Ending.TORN
    assert "at offset 4 200 (crash): normal, never confirmed, cut on start." in as_text(report)


def test_damage_is_shown_with_place_and_what_is_whole_behind_it():
    disk = store([40, 40, 40, 40])
    path = f"{DATA}/wal/0000000000000001-0000000000000001.wal"
    disk.flip(path, (4096 + 104 + 70) * 8)
    disk.flip(path, (4096 + 2 * 104 + 30) * 8)
    report = untouched(disk)
    assert report.damaged
    assert report.refused.rule is Rule.DAMAGED_DURABLE
    (segment,) = report.segments
    assert (segment.records, segment.first_lsn, segment.last_lsn) == (6, 1, 12)
    assert segment.problems == ["the frame's payload fails its checksum at offset 4200 (lsn 4)"]
    text = as_text(report)
    assert "DAMAGED: a start is refused: " in text
    assert "at offset 4200 (lsn 4)" in text


def test_a_damaged_header_and_a_wrong_name_are_shown():
    disk = store([3000, 3000])
    disk.flip(f"{DATA}/wal/0000000000000002-0000000000000004.wal", 99)
    disk.rename(
        f"{DATA}/wal/0000000000000001-0000000000000001.wal",
        f"{DATA}/wal/0000000000000001-0000000000000002.wal",
    )
    first, second = untouched(disk).segments
    assert first.problems == [
        "named as another segment: its header says 0000000000000001-0000000000000001"
    ]
    assert second.problems == ["header block damaged"]


def test_an_unsynced_tail_and_what_was_set_aside_are_told():
    disk = store([40, 40, 40], FsyncMode.OFF)
    disk.flip(f"{DATA}/wal/0000000000000001-0000000000000001.wal", (4096 + 104 + 70) * 8)
    text = as_text(untouched(disk))
    assert "Unsynced tail in" in text
    assert "6 records that no sync covered are moved aside on start." in text
    Server(disk, History([(1, 3, b"x" * 40)])).start()
    text = as_text(verify(disk, DATA))
    assert "Set aside earlier: /data/wal/0000000000000001-0000000000000001.1.cut" in text


def test_a_damaged_slot_of_mark_and_a_missing_ident_are_told():
    disk = store([40])
    disk.flip(f"{DATA}/MARK", 8 * 20)
    assert "1 of 8 slots of MARK is damaged" in as_text(untouched(disk))
    disk.unlink(f"{DATA}/IDENT")
    report = untouched(disk)
    assert report.damaged
    assert "IDENT: it is missing" in as_text(report)


@pytest.mark.parametrize("how", ["missing", "short", "damaged"])
def test_the_log_that_only_the_generation_before_needs_is_looked_at_too(how):
    """No start reads it, until the newest checkpoint is damaged: then it is too late to learn."""
    disk, _ = with_two_generations()
    assert not untouched(disk).damaged
    first = segments(disk)[0]
    if how == "missing":
        disk.unlink(first)
    elif how == "short":
        disk.resize(first, 4096)
    else:
        disk.flip(first, 5000 * 8)
    report = untouched(disk)
    assert report.damaged
    assert report.refused is None
    assert "the generation before cannot be fallen back to: /data/wal/" in as_text(report)


def test_it_may_run_beside_a_server_and_says_so(tmp_path):
    path = str(tmp_path / "data")
    opened = open_(RealDisk(), path=path, segment_bytes=SEGMENT_BYTES)
    replayed(opened)
    report = verify(RealDisk(), path + "/")
    assert report.running
    assert as_text(report).startswith(f"A server (pid {report.running_pid}) runs on {path}: ")
    opened.close()
    assert not verify(RealDisk(), path).running


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1000, "1 000"), (8_100_201, "8 100 201")]
)
def test_numbers_are_grouped(number, text):
    assert grouped(number) == text
