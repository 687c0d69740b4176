"""The bare wheel, callable from Python: for tests only.

Compiles wd_wheel.c and wd_mem.c with small chunks into a module of their own, so that the product's
extension need not export what only tests call. No setuptools: cffi writes the C file, the compiler
is called directly.
"""

import importlib.machinery
import importlib.util
import os
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from cffi import FFI

CSRC = Path(__file__).resolve().parents[2] / "csrc"
CHUNK_CAP = 8
NIL = 2**32 - 1
NEVER_MS = 2**63 - 1
DUE_MS_END = 2**48

MODULE_NAME = "_wheel_under_test"
PROTOTYPES = """
typedef struct { int64_t due_ms; uint32_t where; ...; } wd_job;
typedef struct wd_wheel wd_wheel;
wd_wheel *wd_wheel_new(wd_job *rows, uint32_t capacity, int64_t now_ms);
void wd_wheel_free(wd_wheel *w);
void wd_wheel_insert(wd_wheel *w, uint32_t slot);
int wd_wheel_cancel(wd_wheel *w, uint32_t slot);
size_t wd_wheel_advance(wd_wheel *w, int64_t target_ms, uint32_t *out, size_t max_out,
                        size_t max_moves, int *out_more);
int64_t wd_wheel_next_due(const wd_wheel *w);
int64_t wd_wheel_now(const wd_wheel *w);
uint32_t wd_wheel_count(const wd_wheel *w);
uint64_t wd_wheel_bytes(const wd_wheel *w);
void wd_wheel_rebase(wd_wheel *w, int64_t now_ms);
int wd_wheel_check(const wd_wheel *w);
"""


def compile_module(folder: Path) -> ModuleType:
    """Return the module, built in folder. Raises CalledProcessError when the compiler refuses."""
    ffi = FFI()
    ffi.cdef(PROTOTYPES)
    ffi.set_source(MODULE_NAME, '#include "wd_wheel.h"')
    glue = folder / f"{MODULE_NAME}.c"
    ffi.emit_c_code(str(glue))
    library = folder / f"{MODULE_NAME}{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    include = [f"-I{CSRC}", f"-I{sysconfig.get_path('include')}"]
    sources = [str(glue), str(CSRC / "wd_wheel.c"), str(CSRC / "wd_mem.c")]
    flags = ["-std=c11", "-O1", "-g", "-fPIC", "-shared", f"-DWD_CHUNK_CAP={CHUNK_CAP}"]
    flags += os.environ.get("WHEELD_COVERAGE", "").split()
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, *flags, *include, *sources, "-o", str(library)], check=True)
    spec = importlib.util.spec_from_file_location(MODULE_NAME, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Wheel:
    """One wheel over rows of its own."""

    def __init__(self, module: ModuleType, capacity: int, now_ms: int) -> None:
        self._ffi: Any = module.ffi
        self._lib: Any = module.lib
        self.capacity = capacity
        self._rows = self._ffi.new("wd_job[]", capacity)
        for slot in range(capacity):
            self._rows[slot].where = NIL
        self._out = self._ffi.new("uint32_t[]", capacity)
        self._more = self._ffi.new("int *")
        wheel = self._lib.wd_wheel_new(self._rows, capacity, now_ms)
        assert wheel != self._ffi.NULL
        self._wheel = self._ffi.gc(wheel, self._lib.wd_wheel_free)

    def insert(self, slot: int, due_ms: int) -> None:
        self._rows[slot].due_ms = due_ms
        self._lib.wd_wheel_insert(self._wheel, slot)

    def insert_all(self, timers: Iterable[tuple[int, int]]) -> None:
        for slot, due_ms in timers:
            self.insert(slot, due_ms)

    def cancel(self, slot: int) -> bool:
        return bool(self._lib.wd_wheel_cancel(self._wheel, slot))

    def advance(self, target_ms: int, max_out: int, max_moves: int) -> tuple[list[int], bool]:
        """Return the slots fired, in order, and whether work is left."""
        max_out = min(max_out, self.capacity)
        got = self._lib.wd_wheel_advance(
            self._wheel, target_ms, self._out, max_out, max_moves, self._more
        )
        return list(self._out[0:got]), bool(self._more[0])

    def drain(self, target_ms: int, max_out: int, max_moves: int) -> list[int]:
        """Return all slots due by target_ms, fired in as many slices as it takes."""
        fired: list[int] = []
        more = True
        while more:
            slice_fired, more = self.advance(target_ms, max_out, max_moves)
            fired += slice_fired
        return fired

    def rebase(self, now_ms: int) -> None:
        self._lib.wd_wheel_rebase(self._wheel, now_ms)

    def close(self) -> None:
        self._ffi.release(self._wheel)

    @property
    def now_ms(self) -> int:
        return int(self._lib.wd_wheel_now(self._wheel))

    @property
    def next_due_ms(self) -> int:
        return int(self._lib.wd_wheel_next_due(self._wheel))

    @property
    def count(self) -> int:
        return int(self._lib.wd_wheel_count(self._wheel))

    @property
    def size_bytes(self) -> int:
        return int(self._lib.wd_wheel_bytes(self._wheel))

    def broken_invariant(self) -> int:
        """Return 0, or the number of the first invariant that does not hold."""
        return int(self._lib.wd_wheel_check(self._wheel))
