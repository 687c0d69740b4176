"""Reading files at a rate, past the page cache: a look at the disk that nothing else feels."""

import mmap
from collections.abc import Callable
from typing import Final

from server.clock import Clock
from wal.disk import Disk

SLICE_BYTES: Final = 256 << 10  # read at once; then it is waited for the pace
LAG_NS: Final = 1_000_000_000  # a pace that was lost for longer is not made up for


def _pages(size_bytes: int) -> mmap.mmap:
    """Return memory that nobody writes to before it is used: zeros come page by page."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class StoppedError(Exception):
    """The server stops; what was being read is given up."""


class PacedDisk:
    """The calls of a disk that read, at a rate. It has none that writes or syncs.

    Args:
        disk: the real one.
        rate_bytes: a second.
        clock: tells how long reads took.
        wait: sleeps so many seconds; True when the server stops.
    """

    def __init__(
        self, disk: Disk, *, rate_bytes: int, clock: Clock, wait: Callable[[float], bool]
    ) -> None:
        self._disk = disk
        self._rate_bytes = rate_bytes
        self._clock = clock
        self._wait = wait
        self._due_ns = 0
        self._buffer = _pages(SLICE_BYTES)
        self.bytes = 0
        self.path = ""  # opened last
        self.offset = 0  # read last

    def open(self, path: str) -> int:
        """Open a file for reading, and let the cache forget it."""
        self.path, self.offset = path, 0
        fd = self._disk.open(path)
        self._disk.drop_cache(fd)
        return fd

    def close(self, fd: int) -> None:
        """Close it."""
        self._disk.close(fd)

    def size(self, fd: int) -> int:
        """Return the file's length in bytes."""
        return self._disk.size(fd)

    def pread(self, fd: int, size_bytes: int, offset: int) -> memoryview:
        """Read in slices, at the rate, and leave nothing of it in the cache.

        What is returned is overwritten by the next call. One buffer for all calls, because to give
        four MiB back to the system takes the interpreter's lock for a quarter of a millisecond or
        more, and the event loop waits for that; to copy a slice takes it for a hundredth of one.
        """
        if len(self._buffer) < size_bytes:
            self._buffer = _pages(size_bytes)
        room, got = memoryview(self._buffer), 0
        while got < size_bytes:
            self.offset = offset + got
            data = self._disk.pread(fd, min(size_bytes - got, SLICE_BYTES), self.offset)
            if not data:
                break
            room[got : got + len(data)] = data
            got += len(data)
            self._pace(len(data))
        self._disk.drop_cache(fd)
        return room[:got]

    def _pace(self, size_bytes: int) -> None:
        now_ns = self._clock.mono_ns()
        self.bytes += size_bytes
        self._due_ns = max(self._due_ns, now_ns - LAG_NS)
        self._due_ns += size_bytes * 1_000_000_000 // self._rate_bytes
        if self._wait(max(0, self._due_ns - now_ns) / 1e9):
            raise StoppedError
