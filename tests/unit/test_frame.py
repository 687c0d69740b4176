"""The codec in C: checksum, frames, segment headers, MARK slots, and the scan over frames."""

import random
import re
import struct
import threading
from pathlib import Path

import pytest
from _wheeld import ffi, lib
from hypothesis import given
from hypothesis import strategies as st

from tests import format_reader
from tests.logkit import BOOT_ID, UUID, frames_of, open_, replayed, start
from wal import directory, frame
from wal.disk import RealDisk
from wal.errors import WalError
from wal.frame import FRAME_HEADER_BYTES, FsyncMode, Mark, Scanner, SegmentHeader, Stop

ROOT = Path(__file__).parents[2]
SALT = 0xDEADBEEF
HEADER = SegmentHeader(
    uuid=UUID,
    term=3,
    seq=9,
    base_lsn=41,
    prev_crc=0x12345678,
    salt=SALT,
    fsync_mode=1,
    created_wall_ms=-5,
    rel_minus_boot_ms=-77,
    boot_id=BOOT_ID,
)
MARK = Mark(
    count=12,
    lsn=99,
    seq=4,
    offset=8192,
    term=2,
    wall_ms=5,
    frame_crc=0xCAFE,
    clean=True,
    uuid=UUID,
)


def chain(payloads, *, first_lsn=1, salt=SALT, prev_crc=0):
    """Return the bytes of frames with two records each, one behind the other."""
    data = b""
    for payload in payloads:
        data += frame.seal(
            payload,
            first_lsn=first_lsn,
            records=2,
            wall_ms=10,
            rel_ms=20,
            salt=salt,
            prev_crc=prev_crc,
            durable_lsn=first_lsn - 1,
        )
        prev_crc = int.from_bytes(data[-whole(payload) :][8:12], "little")
        first_lsn += 2
    return data


def whole(payload):
    return 64 + (len(payload) + 7) // 8 * 8


def scan(data, *, room=None, next_lsn=1, prev_crc=0, salt=SALT):
    scanner = Scanner(next_lsn=next_lsn, prev_crc=prev_crc, salt=salt)
    found = scanner.feed(data, room=len(data) if room is None else room)
    return found.stop, found


# ---- checksum ----


@pytest.fixture(params=[False, True], ids=["cpu", "table"])
def crc_way(request):
    frame.force_crc_table(on=request.param)
    yield
    frame.force_crc_table(on=False)


@pytest.mark.usefixtures("crc_way")
def test_crc32c_gives_the_published_values():
    """RFC 3720, appendix B.4."""
    assert frame.crc32c(b"123456789") == 0xE3069283
    assert frame.crc32c(bytes(32)) == 0x8A9136AA
    assert frame.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert frame.crc32c(bytes(range(32))) == 0x46DD794E
    assert frame.crc32c(bytes(range(31, -1, -1))) == 0x113FDB5C


@given(data=st.binary(max_size=300), cut=st.integers(0, 300), crc=st.integers(0, 2**32 - 1))
def test_both_ways_and_plain_python_agree_at_any_length_and_cut(data, cut, crc):
    expected = format_reader.crc32c(data, crc)
    for on in (False, True):
        frame.force_crc_table(on=on)
        assert frame.crc32c(data[cut:], frame.crc32c(data[:cut], crc)) == expected
    frame.force_crc_table(on=False)


def test_the_table_follows_from_the_polynomial():
    text = (ROOT / "csrc" / "wd_crc32c_table.h").read_text()
    found = [int(number, 16) for number in re.findall(r"0x([0-9a-f]{8})u", text)]
    rows = [format_reader.TABLE]
    for _ in range(7):
        rows.append([(c >> 8) ^ format_reader.TABLE[c & 0xFF] for c in rows[-1]])
    assert found == [number for row in rows for number in row]


# ---- FORMAT.md ----


def offsets_in_format(section):
    """Return {field: (offset, bytes)} of the table under a heading of FORMAT.md."""
    text = (ROOT / "FORMAT.md").read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    return {name: (int(offset), int(size)) for offset, size, name in rows}


@pytest.mark.parametrize(
    ("section", "prefix", "size"),
    [
        ("Frame", "WD_FRAME_AT_", lib.WD_FRAME_HEADER_BYTES),
        ("Segment header", "WD_SEGMENT_AT_", lib.WD_SEGMENT_HEADER_BYTES),
        ("MARK", "WD_MARK_AT_", lib.WD_MARK_SLOT_BYTES),
    ],
)
def test_format_md_has_the_offsets_of_the_code_and_no_gap(section, prefix, size):
    table = offsets_in_format(section)
    for name in dir(lib):
        if name.startswith(prefix):
            assert table[name.removeprefix(prefix).lower()][0] == getattr(lib, name), name
    named = {name for name in table if not name.startswith("zero")}
    assert named == {n.removeprefix(prefix).lower() for n in dir(lib) if n.startswith(prefix)}
    at = 0
    for offset, length in sorted(table.values()):
        assert offset == at
        at += length
    assert at == size


def test_format_md_has_the_offsets_of_ident_and_no_gap():
    table = offsets_in_format("IDENT")
    ident = directory.Ident(uuid=UUID, version=7, created_wall_ms=-3)
    data = directory.encode_ident(ident)
    fields = {name: data[at : at + size] for name, (at, size) in table.items()}
    assert sum(map(len, fields.values())) == directory.IDENT_BYTES == len(data)
    assert fields["magic"] == b"WDIDENT\n"
    assert struct.unpack("<I", fields["version"]) == (7,)
    assert struct.unpack("<I", fields["reader_min"]) == (frame.FORMAT_READER_MIN,)
    assert fields["uuid"] == UUID
    assert struct.unpack("<q", fields["created_wall_ms"]) == (-3,)
    assert fields["zero"] == bytes(20)
    assert struct.unpack("<I", fields["crc"]) == (format_reader.crc32c(data[:60]),)


# ---- blocks ----


def test_a_segment_header_comes_back_as_it_was_written():
    block = frame.encode_segment(HEADER)
    assert len(block) == frame.SEGMENT_HEADER_BYTES
    assert frame.decode_segment(block) == HEADER
    assert format_reader.read_header(block)["base_lsn"] == 41


def test_every_byte_of_a_segment_header_is_covered():
    block = bytearray(frame.encode_segment(HEADER))
    for at in range(len(block)):
        block[at] ^= 1 << at % 8
        assert frame.decode_segment(block) is None, at
        block[at] ^= 1 << at % 8
    assert frame.decode_segment(block) == HEADER
    assert frame.decode_segment(block[:-1]) is None
    assert frame.decode_segment(bytes(len(block))) is None


def test_a_segment_of_a_newer_format_is_not_read():
    block = bytearray(frame.encode_segment(HEADER))
    block[12:16] = struct.pack("<I", frame.FORMAT_VERSION + 1)
    block[-4:] = struct.pack("<I", frame.crc32c(block[:-4]))
    with pytest.raises(frame.NewerFormatError):
        frame.decode_segment(block)


def test_a_mark_comes_back_as_it_was_written_and_every_bit_is_covered():
    slot = bytearray(frame.encode_mark(MARK))
    assert frame.decode_mark(slot) == MARK
    for bit in range(len(slot) * 8):
        slot[bit // 8] ^= 1 << bit % 8
        assert frame.decode_mark(slot) is None, bit
        slot[bit // 8] ^= 1 << bit % 8


# ---- frames ----


def test_a_frame_is_padded_to_eight_bytes_with_zeros():
    for size in range(1, 20):
        data = frame.seal(
            b"\xff" * size, first_lsn=1, records=1, wall_ms=0, rel_ms=0, salt=SALT, prev_crc=0
        )
        assert len(data) % 8 == 0
        assert data[64:] == b"\xff" * size + bytes(-size % 8)


def test_what_stood_in_the_room_for_padding_does_not_reach_the_frame():
    meta = ffi.new("wd_frame_meta *", {"payload_bytes": 3, "records": 1, "first_lsn": 1})
    buffer = ffi.new("uint8_t[]", b"\xff" * (64 + 3 + 7))
    assert lib.wd_frame_seal(buffer, meta, SALT, 0) == 72
    assert bytes(ffi.buffer(buffer))[64:74] == b"\xff" * 3 + bytes(5) + b"\xff" * 2


def test_a_scan_takes_whole_frames_and_knows_the_next():
    payloads = [b"a", b"b" * 100, b"", b"c" * 5000]
    data = chain(payloads)
    stop, found = scan(data)
    assert stop is Stop.END
    assert (found.frames, found.records, found.next_lsn) == (4, 8, 9)
    assert found.bytes == len(data)
    assert found.last_offset == len(data) - whole(payloads[-1])
    assert (found.wall_ms, found.rel_ms) == (10, 20)
    assert scan(data + bytes(4096))[0] is Stop.ZERO
    assert scan(data + bytes(8))[0] is Stop.ZERO


@pytest.mark.parametrize("cut", range(0, 500, 7))
def test_a_scan_goes_on_in_the_next_buffer(cut):
    data = chain([bytes([i]) * (i * 3) for i in range(12)])
    scanner = Scanner(next_lsn=1, prev_crc=0, salt=SALT)
    first = scanner.feed(data[:cut], room=len(data))
    assert first.stop is Stop.MORE
    second = scanner.feed(data[first.bytes :], room=len(data) - first.bytes)
    assert second.stop is Stop.END
    assert first.bytes + second.bytes == len(data)
    assert first.frames + second.frames == 12


def test_a_scan_says_how_much_the_cut_frame_needs():
    data = chain([b"x" * 1000])
    assert scan(data[:63], room=len(data))[1].need_bytes == 0
    assert scan(data[:64], room=len(data))[1].need_bytes == len(data)


def test_every_reason_to_stop():
    good = chain([b"first"])
    after = {"next_lsn": 3, "prev_crc": int.from_bytes(good[8:12], "little")}
    second = chain([b"second"], first_lsn=3, prev_crc=after["prev_crc"])
    assert scan(second, **after)[0] is Stop.END
    for want, data in {
        Stop.MAGIC: b"\x01" + second[1:],
        Stop.HEADER_CRC: second[:41] + b"\x01" + second[42:],
        Stop.SALT: chain([b"second"], first_lsn=3, prev_crc=after["prev_crc"], salt=1),
        Stop.LSN: chain([b"second"], first_lsn=4, prev_crc=after["prev_crc"]),
        Stop.PREV_CRC: chain([b"second"], first_lsn=3, prev_crc=1),
        Stop.PAYLOAD_CRC: second[:64] + b"S" + second[65:],
        Stop.LENGTH: second[:64],
        Stop.ZERO: bytes(64) + second[64:],
    }.items():
        stop, found = scan(data, **after)
        assert (stop, found.bytes) == (want, 0), want


def test_a_frame_of_no_records_or_over_the_limit_is_not_valid():
    data = bytearray(chain([b"x"]))
    for offset, value, want in ((16, 0, Stop.LSN), (12, 16 << 20, Stop.LENGTH)):
        changed = data.copy()
        changed[offset : offset + 4] = struct.pack("<I", value)
        changed[4:8] = struct.pack("<I", frame.crc32c(changed[8:64], SALT))
        assert scan(changed, room=1 << 30)[0] is want


def test_every_bit_of_a_frame_is_covered():
    data = bytearray(chain([b"some payload of 23 bytes"[:23]]))
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        assert scan(data)[1].frames == 0, bit
        data[bit // 8] ^= 1 << bit % 8
    assert scan(data)[1].frames == 1


@pytest.mark.usefixtures("crc_way")
@given(payloads=st.lists(st.binary(max_size=200), max_size=8), seed=st.integers(0, 1 << 30))
def test_the_scan_and_the_plain_python_reader_agree_on_damaged_bytes(payloads, seed):
    rng = random.Random(seed)
    data = bytearray(chain(payloads) + bytes(200))
    for _ in range(rng.randrange(3)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    segment = bytes(4096) + bytes(data)
    frames, end = format_reader.read_frames(segment, {"base_lsn": 1, "prev_crc": 0, "salt": SALT})
    stop, found = scan(data)
    assert (len(frames), end) == (found.frames, 4096 + found.bytes)
    assert stop in (Stop.ZERO, Stop.MAGIC) or frames != payloads


@given(sizes=st.lists(st.integers(0, 300), max_size=12), limit=st.integers(0, 900))
def test_frames_split_into_runs_that_keep_each_frame_whole(sizes, limit):
    data = chain([bytes(size) for size in sizes])
    runs = list(frame.split_frames(memoryview(data), limit))
    assert b"".join(runs) == data
    lsn = 1
    for run in runs:
        firsts = [first for first, _, _ in frames_of(run)]
        assert firsts == list(range(lsn, lsn + 2 * len(firsts), 2))
        assert len(run) <= limit or len(firsts) == 1
        lsn += 2 * len(firsts)


def test_a_search_finds_headers_by_their_own_salt_at_steps_of_eight():
    data = chain([b"one", b"two"])
    second = whole(b"one")
    found = frame.find(memoryview(bytes(64) + data)[8:], salt=None)
    assert found is not None
    assert (found.offset, found.salt, found.header.last_lsn) == (56, SALT, 2)
    found = frame.find(memoryview(data)[8:], salt=SALT)
    assert found is not None
    assert (found.offset, found.header.first_lsn) == (second - 8, 3)
    assert found.payload_crc == int.from_bytes(data[second + 8 : second + 12], "little")
    assert frame.find(data, salt=1) is None
    assert frame.find(b"\x01" + data, salt=None) is None
    assert frame.find(data[:63], salt=None) is None


@pytest.mark.parametrize("size", [0, 1, 7, 4095, 4096, 4097, 20_000])
def test_zero_prefix_counts_exactly(size):
    assert frame.zero_prefix(bytes(size)) == size
    assert frame.zero_prefix(bytes(size) + b"\x01" + bytes(9)) == size


# ---- the writer on a real disk ----


def test_what_the_writer_writes_the_plain_python_reader_reads(tmp_path):
    rng = random.Random(2)
    expected = []
    for life in range(3):
        store = open_(RealDisk(), path=str(tmp_path / "data"), segment_bytes=65536)
        assert replayed(store) == expected
        log = start(store, salt_seed=life)
        lsn = expected[-1][0] + expected[-1][1] if expected else 1
        for _ in range(40):
            payload, records = rng.randbytes(rng.randrange(6000)), rng.randrange(1, 9)
            log.append(payload, first_lsn=lsn, records=records, wall_ms=1, rel_ms=2)
            expected.append((lsn, records, payload))
            lsn += records
        log.close()
    assert format_reader.read_store(tmp_path / "data") == expected


def test_segments_are_made_ahead_while_another_thread_appends(tmp_path):
    """The hand-over: nothing is lost or doubled, and no rotation finds a half-made segment."""
    store = open_(RealDisk(), path=str(tmp_path / "data"), fsync=FsyncMode.OFF, segment_bytes=65536)
    assert replayed(store) == []
    log = start(store)
    stop = threading.Event()
    errors = []

    def background():
        try:
            while not stop.is_set():
                log.prepare()
                log.sync()
                log.mark()
        except WalError as error:
            errors.append(error)

    thread = threading.Thread(target=background)
    thread.start()
    for lsn in range(1, 2001):
        log.append(lsn.to_bytes(8, "little") * 100, first_lsn=lsn, records=1, wall_ms=0, rel_ms=0)
    stop.set()
    thread.join()
    assert not errors
    assert log.stats().rotations > 20
    log.sync()
    log.close()
    store = open_(RealDisk(), path=str(tmp_path / "data"))
    lsns = [first for chunk in store.replay() for first, _, _ in frames_of(chunk.data)]
    assert lsns == list(range(1, 2001))
    store.close()


def test_appends_out_of_order_or_over_the_limit_change_nothing(tmp_path):
    store = open_(RealDisk(), path=str(tmp_path / "data"))
    replayed(store)
    log = start(store)
    log.append(b"x", first_lsn=1, records=1, wall_ms=0, rel_ms=0)
    before = log.stats()
    for wrong in (
        {"payload": b"x", "first_lsn": 1, "records": 1},
        {"payload": b"x", "first_lsn": 3, "records": 1},
        {"payload": b"x", "first_lsn": 2, "records": 0},
        {"payload": bytes(8192 - 4096 - FRAME_HEADER_BYTES + 1), "first_lsn": 2, "records": 1},
    ):
        with pytest.raises(WalError, match="invalid argument"):
            log.append(**wrong, wall_ms=0, rel_ms=0)
    assert log.stats() == before
    log.append(bytes(8192 - 4096 - FRAME_HEADER_BYTES), first_lsn=2, records=1, wall_ms=0, rel_ms=0)
    log.mark(clean=True)
    with pytest.raises(WalError, match="invalid argument"):
        log.append(b"x", first_lsn=3, records=1, wall_ms=0, rel_ms=0)
    log.close()
    with pytest.raises(WalError, match="closed"):
        log.mark()
