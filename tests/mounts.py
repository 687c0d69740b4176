"""File systems of their own for a test: images on a loop device over a file in a tmpfs.

Only some users may mount one; a test for which this is not so prints why it did not run.
"""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

GOING_DOWN: Final = 0x8004587D  # _IOR('X', 125, u32): ext4 and xfs alike
AND_FORGET: Final = 2  # nothing is written out any more, not even the journal
OUTER: Final = "size=400m"
CAP_SYS_ADMIN: Final = 21

# Of each kind: the image's size in MiB, and how it is made. xfs is none below 300 MiB, and a small
# btrfs has no room for metadata once its data are full.
KINDS: Final = {
    "ext4": (64, ("-F", "-m", "0")),
    "xfs": (300, ()),
    "btrfs": (256, ("-f",)),
}


def may_mount() -> bool:
    """Return whether this process has CAP_SYS_ADMIN, and a program to use it with."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(effective >> CAP_SYS_ADMIN & 1) and shutil.which("mount") is not None


def why_not(kind: str) -> str:
    """Return why a file system of this kind cannot be mounted here; empty = it can."""
    if not may_mount():
        return "no file system may be mounted here"
    if kind == "tmpfs":
        return ""
    if shutil.which(f"mkfs.{kind}") is None:
        return f"there is no mkfs.{kind}"
    if f"\t{kind}\n" not in Path("/proc/filesystems").read_text(encoding="ascii"):
        return f"the kernel has no {kind}"
    found = subprocess.run(["losetup", "-f"], capture_output=True, check=False)
    return "" if found.returncode == 0 else "there is no loop device"


class Mounted:
    """A file system that is mounted at ``path``."""

    def __init__(self, kind: str, folder: Path, options: tuple[str, ...] = ()) -> None:
        self.kind, self.path = kind, folder / "inner"
        self.outer = folder / "outer"
        self.image = self.outer / "image"
        self._options = options
        self.path.mkdir()
        self.outer.mkdir()

    def make(self) -> None:
        """Make the file system and mount it."""
        if self.kind != "tmpfs":
            size_mib, words = KINDS[self.kind]
            _run("mount", "-t", "tmpfs", "-o", OUTER, "none", self.outer)
            with self.image.open("wb") as image:
                image.truncate(size_mib << 20)
            _run(f"mkfs.{self.kind}", "-q", *words, self.image)
        self.mount()

    def mount(self) -> None:
        """Mount it, again."""
        if self.kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", "size=48m,mode=0700", "none", self.path)
        else:
            _run("mount", "-o", ",".join(("loop", *self._options)), self.image, self.path)

    def unmount(self) -> None:
        """Unmount it; the image stays."""
        _run("umount", self.path)

    def go_down(self) -> None:
        """Let it end as by a power cut: what is not on the device yet will never be."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, GOING_DOWN, struct.pack("I", AND_FORGET))
        finally:
            os.close(fd)

    def fill_device(self) -> None:
        """Leave the tmpfs no page to give: the device has no room for what is not on it yet."""
        _run("fallocate", "--dig-holes", self.image)  # pages of zeros are given back
        fill(self.outer / "ballast")

    def free_device(self) -> None:
        """Give the device its room again."""
        (self.outer / "ballast").unlink()

    def meet_an_error(self) -> None:
        """Let ext4 find an inconsistency; what it does then is an option of its mount."""
        device = subprocess.run(
            ["findmnt", "-no", "SOURCE", self.path], check=True, capture_output=True, text=True
        ).stdout.strip()
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("for a test\n")

    def free_bytes(self) -> int:
        """Return the room that is left on it."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        """Unmount whatever is mounted."""
        for folder in (self.path, self.outer):
            subprocess.run(["umount", "-l", folder], capture_output=True, check=False)


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def mounted(kind: str, folder: Path, options: tuple[str, ...] = ()) -> Iterator[Mounted]:
    """Yield a fresh file system of a kind, mounted with these options, and take it away again."""
    made = Mounted(kind, folder, options)
    try:
        made.make()
        yield made
    finally:
        made.close()


def fill(path: Path) -> None:
    """Take all the room that is left, by a file; unlink it to give it back."""
    size = 64 << 20
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        end = os.fstat(fd).st_size
        while size >= 4096:
            try:
                os.posix_fallocate(fd, end, size)
            except OSError:
                size //= 2
            else:
                end += size
        os.fsync(fd)
    finally:
        os.close(fd)
