"""Carrying a verdict out: clear a torn tail, or move an unsynced one aside.

Only a start does this, under the lock, before it opens its own segment.
"""

from wal import frame
from wal.disk import Disk
from wal.frame import SEGMENT_HEADER_BYTES
from wal.reader import READ_BYTES
from wal.recover import Plan


def carry_out(disk: Disk, wal_path: str, plan: Plan) -> tuple[str, ...]:
    """Do what the verdict asks, durably, and return the paths of the files moved aside.

    A crash on the way leaves a log of the same verdict: whole files move first, then the tail's
    copy is made and synced, and only then the tail is cleared.

    Raises:
        OSError: a file call failed; the start has to be given up.
    """
    taken = set(disk.names(wal_path))
    aside: list[str] = []
    for path in reversed(plan.move):
        target = _free_name(path, taken)
        _sync(disk, path)
        disk.rename(path, target)
        aside.append(target)
    if plan.clear is not None:
        path, offset = plan.clear
        if plan.save:
            aside.append(_save_tail(disk, path, offset, _free_name(path, taken)))
        clear_tail(disk, path, offset)
    if aside:
        disk.dirsync(wal_path)
    return tuple(reversed(aside))


def _sync(disk: Disk, path: str) -> None:
    fd = disk.open(path)
    try:
        disk.datasync(fd)
    finally:
        disk.close(fd)


def _free_name(path: str, taken: set[str]) -> str:
    """Return <path without .wal>.<n>.cut with the first n that no file has."""
    folder, _, name = path.rpartition("/")
    stem = name.removesuffix(".wal")
    n = 1
    while f"{stem}.{n}.cut" in taken:
        n += 1
    taken.add(f"{stem}.{n}.cut")
    return f"{folder}/{stem}.{n}.cut"


def _save_tail(disk: Disk, path: str, offset: int, target: str) -> str:
    """Copy the header block and the tail to target, at their offsets, and make it durable."""
    source = disk.open(path)
    copy = disk.open(target, write=True, create=True)
    try:
        disk.pwrite(copy, disk.pread(source, SEGMENT_HEADER_BYTES, 0), 0)
        while data := disk.pread(source, READ_BYTES, offset):
            if frame.zero_prefix(data) < len(data):
                disk.pwrite(copy, data, offset)
            offset += len(data)
        disk.datasync(copy)
    finally:
        disk.close(copy)
        disk.close(source)
    disk.dirsync(path.rpartition("/")[0])
    return target


def clear_tail(disk: Disk, path: str, offset: int) -> None:
    """Write zeros from offset to the end, and make them durable."""
    fd = disk.open(path, write=True)
    try:
        end = disk.size(fd)
        while offset < end:
            size_bytes = min(READ_BYTES, end - offset)
            data = disk.pread(fd, size_bytes, offset)
            if frame.zero_prefix(data) < len(data):
                disk.pwrite(fd, bytes(len(data)), offset)
            offset += size_bytes
        disk.datasync(fd)
    finally:
        disk.close(fd)
