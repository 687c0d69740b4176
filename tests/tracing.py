"""A disk that writes down each write and sync of the log, and what a client had received by then.

It stands between the core and another disk: the shipped commit code runs as it is.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from cffi import FFI

from wal.disk import Disk

FFI_ = FFI()
FFI_.cdef(
    """
    typedef struct {
        void *disk;
        void *open, *close, *pread;
        int64_t (*pwrite)(void *disk, int fd, const void *p, size_t n, int64_t offset);
        int (*datasync)(void *disk, int fd);
        void *dirsync, *rename, *unlink, *allocate, *now_ns, *writeback, *forget;
    } wd_io_table; /* struct wd_io of csrc/wd_io.h */
    """
)


@dataclass(frozen=True, slots=True)
class Call:
    """One write or sync: as it began.

    Attributes:
        name: pwrite or datasync.
        fd: of the file.
        data: what was written; empty for a sync.
        seen: what ``watch`` said when it began.
        at_s: the monotonic clock then.
    """

    name: str
    fd: int
    data: bytes
    seen: frozenset[int]
    at_s: float


class TracingDisk:
    """A disk whose table of file calls tells of writes and syncs.

    Attributes:
        calls: all of them so far, in their order.
        watch: asked at each of them, before it is passed on.
    """

    def __init__(self, disk: Disk) -> None:
        self.calls: list[Call] = []
        self.watch: Callable[[], frozenset[int]] = frozenset
        self._disk = disk
        self._lock = threading.Lock()
        inner: Any = FFI_.cast("wd_io_table *", disk.io)
        self._table = cast("Any", FFI_.new("wd_io_table *", inner[0]))

        @FFI_.callback("int64_t(void *, int, const void *, size_t, int64_t)")
        def pwrite(state: Any, fd: int, p: Any, n: int, offset: int) -> int:
            self._note("pwrite", fd, bytes(FFI_.buffer(p, n)))
            with self._lock:
                return int(inner.pwrite(state, fd, p, n, offset))

        @FFI_.callback("int(void *, int)")
        def datasync(state: Any, fd: int) -> int:
            self._note("datasync", fd, b"")
            with self._lock:
                return int(inner.datasync(state, fd))

        self._kept = (pwrite, datasync)
        self._table.pwrite, self._table.datasync = self._kept

    def _note(self, name: str, fd: int, data: bytes) -> None:
        self.calls.append(Call(name, fd, data, self.watch(), time.monotonic()))

    @property
    def io(self) -> int:
        """Return the address of the table."""
        return int(FFI_.cast("uintptr_t", self._table))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)
