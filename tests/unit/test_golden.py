"""Stores that earlier builds wrote: each format version ever released stays readable.

A golden store is a JSON file: name of the file in the data directory -> its bytes, deflated, in
base64. ``python -m tests.unit.test_golden`` writes the one of the present format, once per version.
"""

import base64
import json
import random
import zlib
from pathlib import Path

import pytest

from tests import format_reader
from tests.logkit import DATA, History, Server, open_, replayed
from tests.simdisk import SimDisk
from wal import frame
from wal.disk import RealDisk
from wal.frame import FsyncMode

GOLDEN = Path(__file__).parents[1] / "golden"


def lives():
    """Write the store: two lives in two modes, rotations, clean stops; return (disk, frames)."""
    disk, history = SimDisk(), History()
    rng = random.Random(1)
    for fsync in (FsyncMode.ALWAYS, FsyncMode.INTERVAL):
        server = Server(disk, history, fsync, salt_seed=int(fsync))
        server.start()
        for size in (0, 1, 8, 700, 1900, 2500):
            server.append(rng.randbytes(size), records=1 + size % 3)
        server.stop()
    return disk, history.attempted


def write_golden():
    """Write the golden store of the present format version."""
    disk, _ = lives()
    files = {
        path.removeprefix(f"{DATA}/"): base64.b64encode(zlib.compress(disk.read(path), 9)).decode()
        for path in disk.files()
    }
    path = GOLDEN / f"format_{frame.FORMAT_VERSION}.json"
    path.write_text(json.dumps(files, indent=1) + "\n")


def unpacked(version, folder):
    files = json.loads((GOLDEN / f"format_{version}.json").read_text())
    (folder / "wal").mkdir(parents=True)
    (folder / "snap").mkdir()
    folder.chmod(0o700)
    for name, data in files.items():
        (folder / name).write_bytes(zlib.decompress(base64.b64decode(data)))
    return folder


@pytest.mark.parametrize("version", range(1, frame.FORMAT_VERSION + 1))
def test_a_store_of_every_format_version_replays_to_what_was_written(version, tmp_path):
    folder = unpacked(version, tmp_path / "data")
    store = open_(RealDisk(), path=str(folder))
    frames = replayed(store)
    store.close()
    assert frames == lives()[1]
    assert (store.verdict.term, store.verdict.after_clean_stop) == (3, True)


def test_the_plain_python_reader_reads_the_present_format(tmp_path):
    folder = unpacked(frame.FORMAT_VERSION, tmp_path / "data")
    assert format_reader.read_store(folder) == lives()[1]


def test_this_build_writes_the_present_format_byte_for_byte(tmp_path):
    """A change of the bytes needs a new format version, and a golden store of it."""
    folder = unpacked(frame.FORMAT_VERSION, tmp_path / "data")
    disk, _ = lives()
    for path in disk.files():
        assert disk.read(path) == (folder / path.removeprefix(f"{DATA}/")).read_bytes(), path


if __name__ == "__main__":
    write_golden()
