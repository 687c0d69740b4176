"""Stores that earlier builds wrote: each format version ever released stays readable.

A golden store is a JSON file: name of the file in the data directory -> its bytes, deflated, in
base64. Of each version there are two: ``format_N`` holds frames of random bytes, ``store_N`` real
jobs, with checkpoints and every kind of record, and the hash of the state that they make.
``python -m tests.unit.test_golden`` writes those of the present format, once per version.
"""

import base64
import json
import random
import zlib
from pathlib import Path

import pytest

from server.inspect import segment_lines
from tests import format_reader
from tests.logkit import DATA, History, Server, open_, replayed
from tests.simdisk import SimDisk
from tests.store import Life, varied
from wal import frame
from wal.disk import RealDisk
from wal.frame import FsyncMode
from wheel.engine.records import Kind

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


def write_golden_store():
    """Write the golden store with real jobs of the present format version."""
    disk = jobs_on_disk()
    files = {
        path.removeprefix(f"{DATA}/"): base64.b64encode(zlib.compress(disk.read(path), 9)).decode()
        for path in disk.files()
    }
    life = Life(DATA, disk=disk)
    document = {"state_hash": f"{life.core.state_hash():016x}", "jobs": jobs(life), "files": files}
    life.kill()
    path = GOLDEN / f"store_{frame.FORMAT_VERSION}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")


def jobs_on_disk():
    disk = SimDisk()
    varied(DATA, disk=disk)
    return disk


def jobs(life):
    """Return how many jobs there are in each state."""
    figures = life.core.engine_figures()
    return {name: figures[name] for name in sorted(figures) if name.startswith("jobs_")}


def unpacked(version, folder, kind="format"):
    files = json.loads((GOLDEN / f"{kind}_{version}.json").read_text())
    files = files.get("files", files)
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


# ---- with real jobs ----

VERSIONS = range(1, frame.FORMAT_VERSION + 1)
# What takes a million entries to come about.
NOT_SMALL = {Kind.RING_DROPPED, Kind.ONCE_DROPPED}


def said(version):
    return json.loads((GOLDEN / f"store_{version}.json").read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_the_jobs_of_every_format_version_are_what_they_were(version, tmp_path):
    folder = unpacked(version, tmp_path / "data", "store")
    life = Life(folder)
    assert f"{life.core.state_hash():016x}" == said(version)["state_hash"]
    assert jobs(life) == said(version)["jobs"]
    assert life.store.checkpoint is not None
    assert life.store.fallen == ()
    assert life.core.check() == 0
    life.kill()


@pytest.mark.parametrize("version", VERSIONS)
def test_each_generation_of_a_golden_store_makes_the_same_jobs(version, tmp_path):
    """The newest checkpoint, the one before, and the log that follows each agree."""
    folder = unpacked(version, tmp_path / "data", "store")
    newest = max((folder / "snap").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    life = Life(folder)
    assert len(life.store.fallen) == 1
    assert f"{life.core.state_hash():016x}" == said(version)["state_hash"]
    life.kill()


def test_this_build_writes_the_same_jobs_byte_for_byte(tmp_path):
    """A record or a checkpoint that means something else needs a new format version."""
    folder = unpacked(frame.FORMAT_VERSION, tmp_path / "data", "store")
    disk = jobs_on_disk()
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == sorted(path.removeprefix(f"{DATA}/") for path in disk.files())
    for path in disk.files():
        assert disk.read(path) == (folder / path.removeprefix(f"{DATA}/")).read_bytes(), path


def test_the_golden_store_has_every_kind_of_record_that_a_small_one_can_have(tmp_path):
    folder = unpacked(frame.FORMAT_VERSION, tmp_path / "data", "store")
    lines = [
        line
        for path in sorted((folder / "wal").iterdir())
        for line in segment_lines(RealDisk(), str(path))
    ]
    assert {Kind(line.record.kind) for line in lines} == set(Kind) - NOT_SMALL


if __name__ == "__main__":
    write_golden()
    write_golden_store()
