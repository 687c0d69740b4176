"""A table of file calls whose every call is a function of the test: a disk that stores nothing.

What happens inside a call is up to the test, so two threads' meetings in the log can be played in
one, at the very call where they matter.
"""

import ctypes
from collections.abc import Callable

from wal.disk import RealDisk
from wal.frame import real_io

P, I32, I64, U64, SIZE, TEXT = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int64,
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_char_p,
)
# As struct wd_io of csrc/wd_io.h: result, then arguments behind `disk`.
CALLS = {
    "open": (I32, TEXT, I32, I32),
    "close": (I32, I32),
    "pread": (I64, I32, P, SIZE, I64),
    "pwrite": (I64, I32, P, SIZE, I64),
    "datasync": (I32, I32),
    "dirsync": (I32, TEXT),
    "rename": (I32, TEXT, TEXT),
    "unlink": (I32, TEXT),
    "allocate": (I32, I32, I64),
    "now_ns": (U64,),
    "writeback": (I32, I32, I64, I64, I32),
    "forget": (I32, I32),
}
TYPES = {name: ctypes.CFUNCTYPE(result, P, *rest) for name, (result, *rest) in CALLS.items()}


class Table(ctypes.Structure):
    """struct wd_io."""

    _fields_ = (("disk", P), *TYPES.items())


class CallDisk:
    """A disk on which all succeeds, but for what `on` says.

    Attributes:
        on: name of a call -> what answers it: the result, or None for success.
        io: address of the table.
    """

    def __init__(self) -> None:
        self.on: dict[str, Callable[..., int | None]] = {}
        self._descriptors = 2
        self._table = Table(None, *(TYPES[name](self._answer(name)) for name in CALLS))
        self.io = ctypes.addressof(self._table)

    def _answer(self, name: str) -> Callable[..., int]:
        def answer(_disk: object, *arguments: object) -> int:
            hook = self.on.get(name)
            result = hook(*arguments) if hook else None
            return self._succeed(name, arguments) if result is None else result

        return answer

    def _succeed(self, name: str, arguments: tuple[object, ...]) -> int:
        if name == "open":
            self._descriptors += 1
            return self._descriptors
        return int(str(arguments[2])) if name == "pwrite" else 0


def real_table(io: int) -> Table:
    """Return the table at an address."""
    return Table.from_address(io)


class HookedDisk(RealDisk):
    """The kernel's disk, but each sync of a file by the log first asks the test.

    Attributes:
        on_datasync: what answers a sync, in the thread that makes it: the result, or None for
            what the kernel says.
    """

    def __init__(self) -> None:
        self.on_datasync: Callable[[], int | None] = lambda: None
        self._real = real_table(real_io())
        self._table = Table.from_buffer_copy(self._real)
        self._table.datasync = TYPES["datasync"](self._datasync)

    @property
    def io(self) -> int:
        """Address of the table."""
        return ctypes.addressof(self._table)

    def _datasync(self, _disk: object, fd: int) -> int:
        result = self.on_datasync()
        return int(self._real.datasync(None, fd)) if result is None else result
