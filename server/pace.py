"""Reading files at a rate, past the page cache: a look at the disk that nothing else feels."""

from collections.abc import Callable
from typing import Final

from server.clock import Clock
from wal.disk import Disk

SLICE_BYTES: Final = 256 << 10  # read at once; then it is waited for the pace
LAG_NS: Final = 1_000_000_000  # a pace that was lost for longer is not made up for


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

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Read in slices, at the rate, and leave nothing of it in the cache."""
        parts: list[bytes] = []
        while size_bytes > 0:
            self.offset = offset
            data = self._disk.pread(fd, min(size_bytes, SLICE_BYTES), offset)
            if not data:
                break
            parts.append(data)
            offset += len(data)
            size_bytes -= len(data)
            self._pace(len(data))
        self._disk.drop_cache(fd)
        return b"".join(parts)

    def _pace(self, size_bytes: int) -> None:
        now_ns = self._clock.mono_ns()
        self.bytes += size_bytes
        self._due_ns = max(self._due_ns, now_ns - LAG_NS)
        self._due_ns += size_bytes * 1_000_000_000 // self._rate_bytes
        if self._wait(max(0, self._due_ns - now_ns) / 1e9):
            raise StoppedError
