"""A payload that changed in memory is found on the disk again, wherever it lies there."""

import asyncio
from dataclasses import replace

import pytest

from server.mend import Mender
from tests.ckptkit import chunk
from tests.fakes import Lines
from tests.format_reader import read_checkpoint
from tests.simdisk import SimDisk
from tests.store import Life, varied
from wal.frame import seal
from wal.generations import STEP_BYTES
from wheel.engine.core import Core
from wheel.errors import CoreError

DATA = "/data"
MAIL = "payload-of-a-mail"


class Believes:
    """A core's search for payloads; ``mend`` believes what the test says."""

    def __init__(self, *believed):
        self.believed, self.offered = believed, []

    payload_in_frames = Core.payload_in_frames
    payload_in_chunks = Core.payload_in_chunks

    def mend(self, job, payload):
        self.offered.append(payload)
        assert job > 0
        return payload in self.believed


class Bench:
    """A life on a simulated disk, and what looks for payloads there meanwhile."""

    def __init__(self, *, disk=None, believes=()):
        self.life = Life(DATA, disk=disk or SimDisk())
        self.disk, self.files = self.life.disk, self.life.log.checkpoints
        self.core = Believes(*believes)
        for name in ("_lib", "_ffi", "_need", "_found"):
            setattr(self.core, name, getattr(self.life.core, name))
        self.lines = Lines()
        self.mender = Mender(
            core=self.core,
            disk=self.disk,
            files=self.files,
            wal_path=f"{DATA}/wal",
            logger=self.lines.logger,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.life.kill()

    def schedule(self, payload, options=""):
        reply = self.life.ask(f"SCHEDULE mail +1h {payload} {options}")
        return int(next(line for line in reply.split(b"\r\n") if line.isdigit()))

    def copies(self, job):
        return list(self.mender._copies(job))

    def mend(self, job):
        async def here(call):
            return call()

        return asyncio.run(self.mender.mend(job, here))


def test_a_payload_is_found_in_the_log_that_is_being_written_to():
    with Bench() as bench:
        first, second = bench.schedule("one"), bench.schedule("two")
        assert bench.copies(first) == [b"one"]
        assert bench.copies(second) == [b"two"]
        assert bench.copies(second + 1) == []


def test_a_payload_is_found_in_the_first_segment_of_several():
    with Bench() as bench:
        job = bench.schedule("one")
        for i in range(200):
            bench.schedule(f"{i}" * 40)
        assert sum(path.endswith(".wal") for path in bench.disk.files()) > 2
        assert bench.copies(job) == [b"one"]


def test_a_payload_is_found_in_a_checkpoint_of_several_pieces():
    with Bench() as bench:
        jobs = {bench.schedule("x" * n): "x" * n for n in range(9_000, 9_100)}
        newest = bench.life.save()
        assert newest.size_bytes > 2 * STEP_BYTES
        for job in (min(jobs), min(jobs) + 50, max(jobs)):
            found = list(bench.mender._in_checkpoint(job, bench.files.manifest, newest))
            assert found == [jobs[job].encode()]


def test_a_payload_is_found_in_the_checkpoint_when_the_log_behind_it_has_it_no_more():
    with Bench() as bench:
        job = bench.schedule("one")
        for i in range(200):  # the segment with it is not needed any more
            bench.schedule(f"{i}" * 40)
        bench.life.save(keep=1)
        assert bench.copies(job) == [b"one"]
        assert bench.files.manifest.oldest_lsn > 1


def test_of_a_job_that_was_replaced_the_newest_copy_comes_first():
    with Bench(believes=(b"old",)) as bench:
        job = bench.schedule("old", "KEY k")
        bench.life.save()
        assert bench.schedule("new", "KEY k ONDUP replace") == job
        assert bench.copies(job)[:2] == [b"new", b"old"]
        assert bench.mend(job)
        assert bench.core.offered == [b"new", b"old"]  # the checksum decides, not the order
        told = bench.lines.all
        assert [line["event"] for line in told] == ["payload_mended"]
        assert (told[0]["job"], told[0]["size_bytes"]) == (str(job), 3)
        assert "requeue" in told[0]["hint"]
        assert bench.mender.mended == 1


def test_what_is_not_believed_is_put_back_nowhere():
    with Bench() as bench:
        job = bench.schedule("one")
        assert not bench.mend(job)
        assert bench.core.offered == [b"one"]
        assert (bench.mender.mended, bench.lines.all) == (0, [])


@pytest.mark.parametrize("what", ["flipped", "missing"])
def test_behind_a_damaged_checkpoint_the_one_before_is_asked(what):
    with Bench() as bench:
        job = bench.schedule(MAIL)
        for _ in range(2):
            for i in range(200):
                bench.schedule(f"{i}" * 40)
            newest = bench.life.save()
        path = f"{DATA}/snap/{newest.name}"
        if what == "missing":
            bench.disk.unlink(path)
        else:
            fd = bench.disk.open(path, write=True)
            at = bench.disk.read(path).index(MAIL.encode())
            bench.disk.pwrite(fd, b"P", at)
            bench.disk.close(fd)
        assert MAIL.encode() in bench.copies(job)


def test_damage_in_the_log_hides_no_payload_before_it():
    with Bench() as bench:
        job = bench.schedule(MAIL)
        bench.schedule("damaged")
        path = next(path for path in bench.disk.files() if path.endswith(".wal"))
        fd = bench.disk.open(path, write=True)
        bench.disk.pwrite(fd, b"D", bench.disk.read(path).index(b"damaged"))
        bench.disk.close(fd)
        assert bench.copies(job) == [MAIL.encode()]


def test_every_payload_of_a_checkpoint_is_found_whatever_stands_before_it():
    """Rows with and without side blocks, attempts and texts, free slots: all are walked over."""
    disk = SimDisk()
    varied(DATA, disk=disk)
    with Bench(disk=disk) as bench:
        newest = bench.life.save()
        _, _, things = read_checkpoint(disk.read(f"{DATA}/snap/{newest.name}"))
        rows = [row for row in things[3] if row["state"]]
        assert sum(1 for row in rows if row["side"] and row["side"]["run"]) > 3
        assert len(things[3]) > len(rows)
        for row in things[3]:
            job = row["generation"] << 32 | row["slot"]
            found = list(bench.mender._in_checkpoint(job, bench.files.manifest, newest))
            assert found == ([row["payload"]] if row.get("payload") else [])
            other = job + (1 << 32)
            assert list(bench.mender._in_checkpoint(other, bench.files.manifest, newest)) == []


@pytest.mark.parametrize("where", ["log", "checkpoint"])
def test_a_server_that_stops_reads_no_file_to_its_end(where):
    with Bench() as bench:
        job = bench.schedule("one")
        if where == "checkpoint":
            bench.life.save(keep=1)
        bench.mender.stop()
        read = bench.disk.pread
        reads = []
        bench.disk.pread = lambda *what: (reads.append(what), read(*what))[1]
        assert bench.copies(job) == []
        assert len(reads) <= 4


ROWS = 3  # kind of a chunk
HEAD = b"\1\0\0\2"  # of a job of generation 1 that waits
NOT_ROWS = {
    "nothing": b"",
    "half a row": HEAD + bytes(20),
    "less than its payload": HEAD + b"\xff" + bytes(39),
}


@pytest.mark.parametrize("data", NOT_ROWS.values(), ids=NOT_ROWS)
def test_chunks_that_verify_and_are_no_rows_hold_no_payload(data):
    with Bench() as bench:
        rows, _ = chunk(data, number=0, kind=ROWS, salt=1)
        with pytest.raises(CoreError, match="payload of job 4294967296"):
            bench.core.payload_in_chunks(rows, 1 << 32)
        assert bench.core.payload_in_chunks(rows, 1 << 32 | 1) is None  # stands in another chunk
        later, _ = chunk(data, number=1, kind=ROWS, first=5, salt=1)
        assert bench.core.payload_in_chunks(later, 1 << 32 | 4) is None


def test_frames_that_verify_and_are_no_records_hold_no_payload():
    with Bench() as bench:
        job = bench.schedule("one")
        times = {"wall_ms": 1, "rel_ms": 1}
        whole = seal(b"no record", first_lsn=1, records=1, salt=1, prev_crc=0, **times)
        with pytest.raises(CoreError, match=f"payload of job {job}"):
            bench.core.payload_in_frames(whole, job)
        lsn = bench.life.core.lsn() + 1
        bench.life.log.append(b"no record", first_lsn=lsn, records=1, **times)
        assert bench.copies(job) == []


def test_a_store_whose_files_are_gone_has_no_copy():
    with Bench() as bench:
        job = bench.schedule("one")
        gone = replace(bench.files.manifest, uuid=bytes(16))
        bench.files.manifest, kept = gone, bench.files.manifest
        assert bench.copies(job) == []
        bench.files.manifest = kept
