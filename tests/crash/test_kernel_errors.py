"""A sync that the kernel itself lets fail: the device under the file system has no room for a page.

An ext4 image lies in a tmpfs that is then filled up. The segment being written was zero-filled, so
ext4 needs no block; the loop device needs a page of the tmpfs for it, gets none, and the sync fails
with EIO. From then on the page cache may show what is not on the device, and another sync succeeds:
what counts is what a read past the cache finds. (The loop device takes a short write for a whole
one. So the frame that fails begins with a page, and not one byte of it finds room.)

Where no file system may be mounted this prints "not run"; the same errors at each call of a
simulated disk are in tests/sim/test_log_simfs.py.
"""

import mmap
import os
import shutil
import subprocess

import pytest

from tests.crash.test_disk_full import may_mount, write_for_ever
from tests.crash.test_serve import last_segment, schedule_many, wait_for
from tests.format_reader import read_frames, read_header
from tests.process import Server

pytestmark = pytest.mark.crash

SEGMENT = ("--segment-size", "4M")
PAGE_BYTES = 4096
READ_BYTES = 1 << 20  # of the segment, more than the test writes


def may_loop():
    """Return whether an image can be made and mounted by a loop device here."""
    found = all(map(shutil.which, ("losetup", "mkfs.ext4", "fallocate")))
    if not (may_mount() and found):
        return False
    return subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode == 0


class Disk:
    """An ext4 file system of 40 MiB on a loop device over a file in a tmpfs.

    Without a journal, whose blocks would fail as well: then it turns read-only. Its blocks are
    pages of the tmpfs.
    """

    def __init__(self, folder):
        self.outer, self.data = folder / "outer", folder / "inner"
        self.image = self.outer / "image"
        self.ballast = self.outer / "ballast"
        self.mounted = []
        for path in (self.outer, self.data):
            path.mkdir()
        self._mount(self.outer, "-t", "tmpfs", "-o", "size=48m", "none")
        with self.image.open("wb") as image:
            image.truncate(40 << 20)
        make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", str(PAGE_BYTES), "-O", "^has_journal"]
        subprocess.run([*make, self.image], check=True)
        self._mount(self.data, "-o", "loop", self.image)

    def _mount(self, folder, *how):
        subprocess.run(["mount", *how, folder], check=True)
        self.mounted.append(folder)

    def fill(self):
        """Give back the pages that hold nothing but zeros, and leave the tmpfs not one to give."""
        subprocess.run(["fallocate", "--dig-holes", self.image], check=True)
        with self.ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            write_for_ever(file)

    def close(self):
        for folder in reversed(self.mounted):
            subprocess.run(["umount", folder], check=False)


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path)
    yield made
    made.close()


def on_the_device(path):
    """Return the front of a file as the device has it, past the page cache."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, READ_BYTES) as buffer:  # O_DIRECT asks for an aligned one
            size = os.preadv(fd, [buffer], 0)
            return buffer[:size]
    finally:
        os.close(fd)


def offset_of(server):
    return int(server.info()["log_offset_bytes"])


def fill_a_page(server, connection):
    """Return two confirmed jobs more, behind which the log stands at the border of two pages."""
    before = offset_of(server)
    made = [connection.call("SCHEDULE", "h", "+1d", "x" * 1000)]
    grown, at = offset_of(server) - before, offset_of(server)
    left = PAGE_BYTES - at % PAGE_BYTES
    while left < grown - 1000:
        left += PAGE_BYTES
    made.append(connection.call("SCHEDULE", "h", "+1d", "x" * (1000 + left - grown)))
    assert offset_of(server) % PAGE_BYTES == 0
    return made


def last_lsn(segment):
    """Return the last lsn that the front of a segment holds, by a reader of its own."""
    frames, _ = read_frames(segment, read_header(segment))
    return max(first_lsn + records - 1 for first_lsn, records, _ in frames)


@pytest.mark.skipif(not may_loop(), reason="not run: no loop device may be mounted here")
def test_a_sync_that_the_kernel_fails_is_the_last_and_a_restart_shows_what_the_device_has(disk):
    server = Server(disk.data / "data")
    try:
        server.start(*SEGMENT)
        wait_for(server, lambda info: info["log_reserve"] == "1")
        with server.connect() as writer, server.connect() as reader:
            confirmed = schedule_many(writer, 3) + fill_a_page(server, writer)
            disk.fill()
            writer.send(("SCHEDULE", "h", "+1d", "x" * 5_000), ("PING",))
            assert writer.read_to_end() == reader.read_to_end() == b"", "nothing is sent any more"
        assert server.wait() == 74
        failed = server.event("log_failed")
        segment = last_segment(server)
        there = last_lsn(on_the_device(segment))
        assert there < int(str(failed["lsn"]))
        disk.ballast.unlink()
        server.start(*SEGMENT)
        assert int(server.info()["log_written_lsn"]) == there
        assert server.call("COUNT") == len(confirmed)
        for reply in confirmed[-3:]:
            job = reply[0] if isinstance(reply, list) else reply
            assert server.call("JOB", job) is not None
    finally:
        server.close()
