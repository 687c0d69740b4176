"""LOCK, IDENT and MARK, and the first start."""

import os
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.logkit import UUID, open_, replayed, start
from tests.simdisk import ROOT, SimDisk
from wal import directory, frame
from wal.directory import Ident, decode_ident, decode_marks, encode_ident
from wal.disk import NETWORK_MAGICS, RealDisk
from wal.errors import LockedError, RefusedError, Rule
from wal.frame import MARK_SLOT_BYTES, Mark

IDENT = Ident(uuid=UUID, version=frame.FORMAT_VERSION, created_wall_ms=77)
FIRST = Mark(
    count=0, lsn=0, seq=0, offset=0, term=0, wall_ms=0, frame_crc=0, clean=False, uuid=UUID
)


def used(disk, appends=1):
    """Make a store with some frames in it."""
    store = open_(disk)
    replayed(store)
    log = start(store)
    for lsn in range(1, appends + 1):
        log.append(b"x", first_lsn=lsn, records=1, wall_ms=0, rel_ms=0)
    log.mark()
    log.close()
    return disk


# ---- IDENT ----


def test_ident_comes_back_and_every_bit_is_covered():
    data = bytearray(encode_ident(IDENT))
    assert decode_ident(bytes(data), "IDENT") == IDENT
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RefusedError) as refused:
            decode_ident(bytes(data), "IDENT")
        assert refused.value.rule is Rule.IDENT
        data[bit // 8] ^= 1 << bit % 8


def test_an_ident_of_another_length_is_refused():
    for data in (b"", encode_ident(IDENT)[:-1], encode_ident(IDENT) + b"\0"):
        with pytest.raises(RefusedError):
            decode_ident(data, "IDENT")


def test_a_newer_store_is_refused_with_what_to_do():
    newer = bytearray(encode_ident(IDENT))
    newer[12] = frame.FORMAT_VERSION + 1
    newer[60:] = frame.crc32c(newer[:60]).to_bytes(4, "little")
    with pytest.raises(RefusedError, match="use a newer wheeld") as refused:
        decode_ident(bytes(newer), "IDENT")
    assert refused.value.rule is Rule.NEWER_FORMAT


# ---- MARK ----


def ring(*counts):
    """Return the bytes of MARK after writes of these counts; lsn = 10 x count."""
    slots = [bytes(MARK_SLOT_BYTES)] * 8
    for count in counts:
        slots[count % 8] = frame.encode_mark(replace(FIRST, count=count, lsn=count * 10))
    return bytearray(b"".join(slots))


def test_the_newest_slot_of_the_ring_counts():
    assert decode_marks(ring(*range(11)), "MARK", UUID).newest.lsn == 100
    assert decode_marks(ring(0), "MARK", UUID).newest.lsn == 0


def test_a_torn_slot_falls_back_to_the_one_before_and_is_told():
    data = ring(*range(11))
    data[2 * MARK_SLOT_BYTES + 20] ^= 1
    state = decode_marks(data, "MARK", UUID)
    assert (state.newest.lsn, state.damaged_slots) == (90, 1)


def test_more_than_one_damaged_slot_is_no_crash():
    data = ring(*range(11))
    data[2 * MARK_SLOT_BYTES + 20] ^= 1
    data[5 * MARK_SLOT_BYTES + 20] ^= 1
    for damaged in (data, bytes(4096), b"", bytes(data[:MARK_SLOT_BYTES])):
        with pytest.raises(RefusedError) as refused:
            decode_marks(damaged, "MARK", UUID)
        assert refused.value.rule is Rule.MARK


def test_the_mark_of_another_store_is_refused():
    with pytest.raises(RefusedError) as refused:
        decode_marks(ring(0), "MARK", bytes(16))
    assert refused.value.rule is Rule.FOREIGN_UUID


# ---- the folder ----


def test_a_new_store_is_private_and_keeps_its_name(tmp_path):
    path = tmp_path / "a" / "b" / "data"
    store = open_(RealDisk(), path=str(path))
    assert store.uuid == UUID
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / "IDENT").stat().st_mode) == 0o600
    assert (path / "LOCK").read_text() == f"{os.getpid()}\n"
    names = ["IDENT", "LOCK", "MANIFEST", "MARK", "snap", "wal"]
    assert sorted(p.name for p in path.iterdir()) == names
    store.close()
    again = directory.open_directory(RealDisk(), str(path), new_uuid=bytes(16), wall_ms=9)
    assert again.ident.uuid == UUID
    assert again.ident.created_wall_ms == 1_000
    again.close()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(RefusedError, match="chmod 0700") as refused:
        open_(RealDisk(), path=str(tmp_path))
    assert refused.value.rule is Rule.PERMISSIONS
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(NotADirectoryError):
        open_(RealDisk(), path=str(tmp_path / "data"))


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("keep")
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "LOCK").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        open_(RealDisk(), path=str(data))
    assert target.read_text() == "keep"


@pytest.mark.parametrize("magic", NETWORK_MAGICS)
def test_a_network_file_system_is_refused_unless_allowed(magic):
    disk = SimDisk()
    disk.magic = magic
    with pytest.raises(RefusedError, match="--allow-network-fs") as refused:
        open_(disk)
    assert refused.value.rule is Rule.NETWORK_FS
    open_(disk, allow_network_fs=True).close()


def test_the_real_disk_knows_its_file_system(tmp_path):
    assert RealDisk().fs_magic(str(tmp_path)) not in (0, *NETWORK_MAGICS)
    with pytest.raises(FileNotFoundError):
        RealDisk().fs_magic(str(tmp_path / "absent"))


# ---- LOCK ----


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path):
    code = (
        "import sys; from tests.logkit import open_; from wal.disk import RealDisk;"
        "s = open_(RealDisk(), path=sys.argv[1]); print('up', flush=True); sys.stdin.read()"
    )
    path = str(tmp_path / "data")
    with subprocess.Popen(
        [sys.executable, "-c", code, path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        with pytest.raises(LockedError, match=f"process {holder.pid}") as locked:
            open_(RealDisk(), path=path)
        assert locked.value.pid == holder.pid
        assert RealDisk().locked(f"{path}/LOCK")
        holder.kill()
        holder.wait()
        assert not RealDisk().locked(f"{path}/LOCK")
        open_(RealDisk(), path=path).close()


def test_the_lock_is_not_inherited_and_not_lost_when_another_descriptor_closes(tmp_path):
    path = str(tmp_path / "data")
    store = open_(RealDisk(), path=path)
    with open(f"{path}/LOCK", "rb"):  # noqa: PTH123
        pass
    subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(LockedError):
        open_(RealDisk(), path=path)
    store.close()
    assert not RealDisk().locked(f"{path}/LOCK")
    assert not RealDisk().locked(f"{path}/absent")


# ---- missing files ----


@pytest.mark.parametrize(
    ("name", "rule"), [("IDENT", Rule.IDENT), ("MARK", Rule.MARK), ("wal", Rule.SEGMENT_MISSING)]
)
def test_a_store_in_use_with_a_part_missing_is_refused(name, rule):
    disk = used(SimDisk())
    if name == "wal":
        for path in disk.files():
            if path.startswith("/data/wal/"):
                disk.unlink(path)
    disk.unlink(f"/data/{name}")
    before = disk.files()
    with pytest.raises(RefusedError) as refused:
        open_(disk)
    assert refused.value.rule is rule
    assert disk.files() == before


def test_a_lost_ident_is_refused_even_when_the_segments_are_lost_too():
    disk = used(SimDisk())
    for path in disk.files():
        if path.startswith("/data/wal/") or path.endswith("IDENT"):
            disk.unlink(path)
    with pytest.raises(RefusedError) as refused:
        open_(disk)
    assert refused.value.rule is Rule.IDENT


def test_a_first_start_that_broke_off_is_begun_again():
    disk = SimDisk()
    disk.make_folder("/data")
    disk.make_folder("/data/wal")
    disk.write_file("/data/MARK", ring(0))
    disk.write_file("/data/IDENT.tmp", b"half")
    used(disk)
    assert "/data/IDENT.tmp" not in disk.files()


def test_leftovers_are_removed_by_the_start_and_not_before():
    disk = used(SimDisk())
    disk.write_file("/data/wal/next.tmp", b"leftover")
    store = open_(disk)
    replayed(store)
    assert "/data/wal/next.tmp" in disk.files()
    start(store).close()
    assert "/data/wal/next.tmp" not in disk.files()
