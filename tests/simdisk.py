"""The simulated disk (tests/c/wd_simfs.c) as Python sees it, built when it is first used.

The C writer under test is the shipped one, inside ``_wheeld``: it gets the address of the simulated
disk's table of file calls.
"""

import hashlib
import importlib.util
import os
import re
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).parents[1]
C = ROOT / "tests" / "c"
HEADERS = [C / "wd_simfs.h", C / "wd_simworld.h"]
CODE = sorted(C.glob("wd_sim*.c"))
SOURCES = [*CODE, *sorted(C.glob("wd_sim*.h")), *sorted((ROOT / "csrc").glob("wd_*.h"))]
NO_CALLS = {"SIM_ANY", "SIM_FAIL", "SIM_LIE", "SIM_SHORT", "SIM_DROP", "SIM_MISDIRECT"}
BLOCK = re.compile(r"/\* cffi: begin \*/(.*?)/\* cffi: end \*/", re.DOTALL)


@cache
def module():
    """Return the cffi module of the simulated disk."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:16]
    name = f"_simfs_{digest}"
    folder = ROOT / "build" / "tests"
    if not (built := list(folder.glob(f"{name}.*so"))):
        ffi = FFI()
        ffi.cdef("typedef struct wd_io wd_io;")
        for header in HEADERS:
            ffi.cdef("".join(BLOCK.findall(header.read_text())))
        ffi.set_source(
            name,
            "".join(f'#include "{header.name}"\n' for header in HEADERS),
            sources=[*map(str, CODE), str(ROOT / "csrc" / "wd_mem.c")],
            include_dirs=[str(C), str(ROOT / "csrc")],
            extra_compile_args=["-std=c11", "-g", "-O2", "-UNDEBUG", "-Wall", "-Wextra", "-Werror"],
        )
        built = [Path(ffi.compile(tmpdir=str(folder)))]
    spec = importlib.util.spec_from_file_location(name, built[0])
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


NEW = FFI().new_allocator(should_clear_after_alloc=False)
NAMES_ROOM = NEW("char[]", 256 * 96)  # every name there can be


def _check(result):
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


class SimDisk:
    """A wal.disk.Disk in memory, with crashes and faults by seed."""

    def __init__(self, seed=0, *, handle=None):
        self.lib, self.ffi = module().lib, module().ffi
        self.fs = self.ffi.gc(handle or self.lib.wd_simfs_new(seed), self.lib.wd_simfs_free)
        self.magic = 0xEF53
        self.mode = 0o700
        self.free = 1 << 40
        self.own = True

    # ---- wal.disk.Disk ----

    @property
    def io(self):
        return int(self.ffi.cast("uintptr_t", self.lib.wd_simfs_io(self.fs)))

    def names(self, folder):
        folder = (folder.rstrip("/") or "/").encode()
        n = self.lib.wd_simfs_names(self.fs, folder, NAMES_ROOM, len(NAMES_ROOM))
        return sorted(bytes(self.ffi.buffer(NAMES_ROOM, n)).decode().split("/")[:-1])

    def folder_mode(self, folder):
        if not _check(self.lib.wd_simfs_is_folder(self.fs, folder.encode())):
            raise NotADirectoryError(folder)
        return self.mode

    def is_own(self, folder):
        return self.own

    def make_folder(self, folder):
        _check(self.lib.wd_simfs_mkdir(self.fs, folder.encode()))

    def open(self, path, *, write=False, create=False):
        flags = (os.O_RDWR if write else 0) | (os.O_CREAT if create else 0)
        return _check(self.lib.wd_simfs_open(self.fs, path.encode(), flags))

    def close(self, fd):
        _check(self.lib.wd_simfs_close(self.fs, fd))

    def size(self, fd):
        return _check(self.lib.wd_simfs_size(self.fs, fd))

    def pread(self, fd, size_bytes, offset):
        room = max(min(size_bytes, self.size(fd) - offset), 0)
        data = NEW("uint8_t[]", room + 1)
        got = _check(self.lib.wd_simfs_pread(self.fs, fd, data, room, offset))
        return bytes(self.ffi.buffer(data, got))

    def pwrite(self, fd, data, offset):
        data = bytes(data)
        while data:
            put = _check(self.lib.wd_simfs_pwrite(self.fs, fd, data, len(data), offset))
            data, offset = data[put:], offset + put

    def truncate(self, fd, size_bytes):
        _check(self.lib.wd_simfs_truncate(self.fs, fd, size_bytes))

    def datasync(self, fd):
        _check(self.lib.wd_simfs_datasync(self.fs, fd))

    def drop_cache(self, fd):
        _check(self.lib.wd_simfs_drop_cache(self.fs, fd))

    def dirsync(self, folder):
        _check(self.lib.wd_simfs_dirsync(self.fs, folder.encode()))

    def rename(self, source, target):
        _check(self.lib.wd_simfs_rename(self.fs, source.encode(), target.encode()))

    def unlink(self, path):
        _check(self.lib.wd_simfs_unlink(self.fs, path.encode()))

    def lock(self, path):
        return self.open(path, write=True, create=True)

    def locked(self, path):
        return False

    def fs_magic(self, path):
        return self.magic

    def free_bytes(self, path):
        return self.free

    def overwrite_in_place(self, folder):
        """It does."""

    # ---- the test's side ----

    def paths(self):
        found, i = [], 0
        while (path := self.lib.wd_simfs_path(self.fs, i)) != self.ffi.NULL:
            found.append(self.ffi.string(path).decode())
            i += 1
        return sorted(found)

    def files(self):
        return [p for p in self.paths() if not self.lib.wd_simfs_is_folder(self.fs, p.encode())]

    def clone(self):
        copy = SimDisk(handle=self.lib.wd_simfs_clone(self.fs))
        copy.magic, copy.mode, copy.own = self.magic, self.mode, self.own
        copy.free = self.free
        return copy

    def crash(self, seed):
        self.lib.wd_simfs_crash(self.fs, seed)

    @property
    def pending(self):
        """How many effects no sync covers."""
        return self.lib.wd_simfs_pending(self.fs)

    def crashed_with(self, mask, seed=1):
        """Return a copy after a power cut that kept the effects whose bits are set in mask."""
        copy = self.clone()
        self.lib.wd_simfs_crash_with(copy.fs, mask & (1 << 64) - 1, seed)
        return copy

    @property
    def digest(self):
        """A number for all names and contents."""
        return self.lib.wd_simfs_digest(self.fs)

    def crashed(self, seed):
        """Return a copy of this disk after a power cut."""
        copy = self.clone()
        copy.crash(seed)
        return copy

    @contextmanager
    def before_steps(self, call):
        """Call it before each step that is made meanwhile, and once at the end; it may clone."""
        failed = []

        def hook():
            try:
                call()
            except BaseException as error:
                failed.append(error)

        handle = self.ffi.callback("void(void)", hook)
        self.lib.wd_simfs_before_steps(self.fs, handle)
        try:
            yield
        finally:
            self.lib.wd_simfs_before_steps(self.fs, self.ffi.NULL)
        hook()
        if failed:
            raise failed[0]

    @property
    def steps(self):
        return self.lib.wd_simfs_steps(self.fs)

    def power_off_after(self, steps):
        self.lib.wd_simfs_power_off_after(self.fs, steps)

    def fault(self, call, nth, error=5, kind="FAIL"):
        code = getattr(self.lib, f"SIM_{call.upper()}")
        self.lib.wd_simfs_fault(self.fs, code, nth, getattr(self.lib, f"SIM_{kind}"), error)

    @property
    def fault_done(self):
        return bool(self.lib.wd_simfs_fault_done(self.fs))

    def read(self, path):
        fd = self.open(path)
        try:
            return self.pread(fd, self.size(fd), 0)
        finally:
            self.close(fd)

    def poke(self, path, offset, data):
        _check(self.lib.wd_simfs_poke(self.fs, path.encode(), bytes(data), len(data), offset))

    def flip(self, path, bit):
        byte = self.read(path)[bit // 8]
        self.poke(path, bit // 8, [byte ^ (1 << bit % 8)])

    def resize(self, path, size_bytes):
        _check(self.lib.wd_simfs_resize(self.fs, path.encode(), size_bytes))

    def write_file(self, path, data):
        fd = self.open(path, write=True, create=True)
        self.pwrite(fd, data, 0)
        self.datasync(fd)
        self.close(fd)
        self.dirsync(path.rpartition("/")[0])

    def trace(self):
        """Return (call, path, offset, bytes, result) of each call so far."""
        names = {
            getattr(self.lib, name): name.removeprefix("SIM_").lower()
            for name in dir(self.lib)
            if name.startswith("SIM_") and name not in NO_CALLS
        }
        out = self.ffi.new("wd_sim_trace *")
        calls, i = [], 0
        while self.lib.wd_simfs_trace(self.fs, i, out):
            path = self.ffi.string(out.path).decode()
            calls.append((names[out.call], path, out.offset, out.bytes, out.result))
            i += 1
        return calls
