"""MANIFEST: its bytes, and what is refused."""

import re
from dataclasses import replace

import pytest

from tests import format_reader
from tests.logkit import DATA, UUID, open_, replayed, start
from tests.simdisk import ROOT, SimDisk
from wal import frame
from wal.errors import RefusedError, Rule
from wal.manifest import (
    GENERATIONS_MAX,
    MANIFEST_BYTES_MAX,
    Checkpoint,
    Manifest,
    decode_manifest,
    encode_manifest,
    read_manifest,
    write_manifest,
)

ONE = Checkpoint(
    start_lsn=70,
    end_lsn=90,
    size_bytes=12_345,
    digest=0xDEADBEEF,
    rows=17,
    seq=3,
    wall_ms=1_700_000_000_000,
)
TWO = replace(ONE, start_lsn=200, end_lsn=201, seq=5)
MANIFEST = Manifest(
    uuid=UUID,
    count=9,
    term_floor=65_540,
    oldest_seq=3,
    oldest_lsn=71,
    wall_ms=1_700_000_000_500,
    checkpoints=(ONE, TWO),
)


def sealed(data):
    """Return changed bytes of MANIFEST under a checksum that fits."""
    return bytes(data[:-4]) + frame.crc32c(bytes(data[:-4])).to_bytes(4, "little")


def test_a_manifest_comes_back_whole():
    for manifest in (MANIFEST, Manifest(uuid=UUID, wall_ms=1)):
        assert decode_manifest(encode_manifest(manifest), "MANIFEST", UUID) == manifest


def fields_of(data, text):
    """Return {field: number or bytes} of data by a table of FORMAT.md, which has no gap."""
    found, end = {}, 0
    for offset, size, name in re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", text, re.MULTILINE):
        assert int(offset) == end
        end += int(size)
        part = data[int(offset) : end]
        found[name] = part if name in ("magic", "uuid", "zero") else int.from_bytes(part, "little")
    assert end == len(data)
    return found


def test_format_md_says_where_each_field_of_it_stands():
    text = (ROOT / "FORMAT.md").read_text().partition("\n## MANIFEST\n")[2].partition("\n## ")[0]
    head_table, _, entry_table = text.partition("One checkpoint:")
    data = encode_manifest(MANIFEST)
    head = fields_of(data[:96], head_table)
    assert (head.pop("magic"), head.pop("zero")) == (b"WDMANIF\n", bytes(20))
    assert (head.pop("version"), head.pop("reader_min")) == (1, 1)
    assert head.pop("checkpoints") == 2
    assert head == {name: getattr(MANIFEST, name) for name in head}
    for i, checkpoint in enumerate((ONE, TWO)):
        entry = fields_of(data[96 + 64 * i : 160 + 64 * i], entry_table)
        assert (entry.pop("part"), entry.pop("parts"), entry.pop("zero")) == (0, 1, bytes(8))
        assert entry == {name: getattr(checkpoint, name) for name in entry}
    assert int.from_bytes(data[96 + 128 :], "little") == format_reader.crc32c(data[: 96 + 128])


def test_every_bit_of_it_is_covered():
    data = bytearray(encode_manifest(MANIFEST))
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RefusedError) as refused:
            decode_manifest(bytes(data), "MANIFEST", UUID)
        assert refused.value.rule is Rule.MANIFEST
        data[bit // 8] ^= 1 << bit % 8


def test_another_length_is_refused_whatever_its_checksum():
    data = encode_manifest(MANIFEST)
    for wrong in (b"", data[:-1], data + b"\0", data[:50], sealed(data[:-64]), sealed(data + b"1")):
        with pytest.raises(RefusedError) as refused:
            decode_manifest(wrong, "MANIFEST", UUID)
        assert refused.value.rule is Rule.MANIFEST


def test_the_longest_manifest_is_read_whole_and_a_longer_one_is_refused():
    generations = tuple(replace(ONE, start_lsn=i) for i in range(GENERATIONS_MAX + 1))
    longest = encode_manifest(replace(MANIFEST, checkpoints=generations[:-1]))
    assert len(longest) == MANIFEST_BYTES_MAX
    assert len(decode_manifest(longest, "MANIFEST", UUID).checkpoints) == GENERATIONS_MAX
    with pytest.raises(RefusedError):
        decode_manifest(
            encode_manifest(replace(MANIFEST, checkpoints=generations)), "MANIFEST", UUID
        )


def test_a_checkpoint_in_more_parts_than_one_is_refused_by_this_build():
    data = bytearray(encode_manifest(MANIFEST))
    data[96 + 54] = 2  # parts of the first entry
    with pytest.raises(RefusedError, match="part 0 of 2"):
        decode_manifest(sealed(data), "MANIFEST", UUID)


def test_the_manifest_of_another_store_or_of_a_newer_format_is_refused():
    data = bytearray(encode_manifest(MANIFEST))
    with pytest.raises(RefusedError) as refused:
        decode_manifest(bytes(data), "MANIFEST", bytes(16))
    assert refused.value.rule is Rule.FOREIGN_UUID
    data[12] = frame.FORMAT_VERSION + 1
    with pytest.raises(RefusedError, match="use a newer wheeld") as refused:
        decode_manifest(sealed(data), "MANIFEST", UUID)
    assert refused.value.rule is Rule.NEWER_FORMAT


def test_a_store_has_one_from_its_first_start_and_a_missing_one_is_refused():
    disk = SimDisk()
    store = open_(disk)
    replayed(store)
    start(store).close()
    assert read_manifest(disk, DATA, UUID) == Manifest(uuid=UUID, wall_ms=1_000)
    disk.unlink(f"{DATA}/MANIFEST")
    before = {path: disk.read(path) for path in disk.files()}
    with pytest.raises(RefusedError, match="it is missing") as refused:
        open_(disk)
    assert (refused.value.rule, refused.value.path) == (Rule.MANIFEST, f"{DATA}/MANIFEST")
    assert {path: disk.read(path) for path in disk.files()} == before


def test_a_missing_folder_of_checkpoints_is_refused():
    disk = SimDisk()
    open_(disk).close()
    disk.unlink(f"{DATA}/snap")
    with pytest.raises(RefusedError) as refused:
        open_(disk)
    assert refused.value.rule is Rule.CHECKPOINT


def test_a_power_cut_while_it_is_replaced_leaves_the_old_one_or_the_new_one():
    whole = SimDisk()
    open_(whole).close()
    old = read_manifest(whole, DATA, UUID)
    found = set()
    for steps in range(1, 8):
        disk = whole.clone()
        disk.power_off_after(steps)
        done = True
        try:
            write_manifest(disk, DATA, MANIFEST)
        except OSError:
            done = False
        for seed in range(40):
            after = read_manifest(disk.crashed(seed), DATA, UUID)
            assert after in (old, MANIFEST)
            assert not done or after == MANIFEST
            found.add((after == MANIFEST, done))
    assert found == {(False, False), (True, False), (True, True)}


def test_the_term_of_a_start_is_above_the_floor():
    disk = SimDisk()
    open_(disk).close()
    write_manifest(disk, DATA, Manifest(uuid=UUID, wall_ms=1, term_floor=70_000))
    store = open_(disk)
    replayed(store)
    log = start(store)
    assert log.term == 70_001
    log.close()
