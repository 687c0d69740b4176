"""Names of segments, their order, and which of them a start needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simdisk import SimDisk
from wal.errors import RefusedError, Rule
from wal.segment import SegmentFile, list_segments, needed, parse_name, segment_name

U64 = st.integers(0, 2**64 - 1)


@given(seq=U64, base_lsn=U64)
def test_a_name_holds_both_numbers(seq, base_lsn):
    assert parse_name(segment_name(seq, base_lsn)) == (seq, base_lsn)


@given(numbers=st.lists(st.tuples(U64, U64), max_size=6))
def test_names_sort_as_their_numbers(numbers):
    assert sorted(segment_name(*n) for n in numbers) == [segment_name(*n) for n in sorted(numbers)]


@pytest.mark.parametrize(
    "name",
    [
        "next.tmp",
        "1-1.wal",
        "0000000000000001-0000000000000001.wal.bak",
        "0000000000000001-0000000000000001.1.cut",
        "x0000000000000001-0000000000000001.wal",
        "000000000000000A-0000000000000001.wal",
        "0000000000000001-0000000000000001.wal\n",
    ],
)
def test_other_names_are_no_segments(name):
    assert parse_name(name) is None


def disk_with(*names):
    disk = SimDisk()
    disk.make_folder("/wal")
    for name in names:
        disk.write_file(f"/wal/{name}", b"x")
    return disk


def test_a_listing_orders_segments_and_keeps_the_rest_apart():
    names = [segment_name(seq, seq * 10) for seq in (10, 2, 9)]
    listing = list_segments(disk_with(*names, "next.tmp", "a.1.cut", "notes"), "/wal")
    assert [segment.seq for segment in listing.segments] == [2, 9, 10]
    assert listing.segments[0].name == names[1]
    assert listing.temporary == ("/wal/next.tmp",)
    assert listing.other == ("/wal/a.1.cut", "/wal/notes")


def test_two_segments_of_one_number_are_refused():
    with pytest.raises(RefusedError) as refused:
        list_segments(disk_with(segment_name(3, 5), segment_name(3, 6)), "/wal")
    assert refused.value.rule is Rule.NAME_MISMATCH


def files(*base_lsns):
    return tuple(
        SegmentFile(seq=i + 1, base_lsn=lsn, path=f"/{i}") for i, lsn in enumerate(base_lsns)
    )


@pytest.mark.parametrize(
    ("base_lsns", "from_lsn", "first"),
    [
        ((1, 10, 20), 1, 1),
        ((1, 10, 20), 9, 1),
        ((1, 10, 20), 10, 2),
        ((1, 10, 20), 99, 3),
        ((1, 10, 10, 20), 15, 3),
        ((10, 20), 10, 1),
    ],
)
def test_a_start_needs_the_segment_that_holds_the_first_record_and_all_later_ones(
    base_lsns, from_lsn, first
):
    chosen = needed(files(*base_lsns), from_lsn)
    assert [segment.seq for segment in chosen] == list(range(first, len(base_lsns) + 1))


def test_a_log_that_starts_too_late_is_refused():
    with pytest.raises(RefusedError, match="needed from lsn 9 on") as refused:
        needed(files(10, 20), 9)
    assert (refused.value.rule, refused.value.lsn) == (Rule.SEGMENT_MISSING, 9)
    assert needed((), 9) == ()
