"""A core whose tables are small enough to fill: what a full one does, without four million entries.

The shipped sources, with other numbers for their limits, as a second ``_wheeld`` in this process.
"""

import fcntl
import hashlib
import importlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType

from cffi import FFI

from tests.twin import build_ffi

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
C = ROOT / "tests" / "c"
BREAKS = (C / "break_state.c", C / "break_wheel.c")
INCLUDED = "wd_wheel.c"  # by break_wheel.c
BREAK = "int wd_break(wd_core *c, const char *what); int wd_break_says(wd_core *c);"
MOST = 64  # ended jobs, tokens
NUMBERS = 8  # handlers, policies, entries
ARENA_BYTES = 1 << 16
AGED = 16  # entries that one frame forgets
LIMITS = (
    ("wd_ring.h", "WD_ENDED_MAX = 4 * 1024 * 1024", f"WD_ENDED_MAX = {MOST}"),
    ("wd_ring.h", "WD_ONCE_MAX = 4 * 1024 * 1024", f"WD_ONCE_MAX = {MOST}"),
    ("wd_ring.c", "AGED_MAX = 16 * 1024", f"AGED_MAX = {AGED}"),
    ("wd_policy.h", "WD_POLICIES_MAX = 65000", f"WD_POLICIES_MAX = {NUMBERS}"),
    ("wd_policy.h", "WD_HANDLERS_MAX = 65000", f"WD_HANDLERS_MAX = {NUMBERS}"),
    ("wd_table.h", "WD_TABLE_MAX = 1 << 20", f"WD_TABLE_MAX = {NUMBERS}"),
    ("wd_engine.c", "arena_bytes > UINT64_C(1) << 30 ? arena_bytes : UINT64_C(1) << 30", "1 << 16"),
)
FLAGS = "-std=c11 -O0 -UNDEBUG -w -fPIC -DPy_LIMITED_API=0x030B0000"


def _sources() -> dict[str, str]:
    texts = {path.name: path.read_text() for path in [*sorted(CSRC.glob("wd*.[ch]")), *BREAKS]}
    for file, old, new in LIMITS:
        assert texts[file].count(old) == 1, (file, old)
        texts[file] = texts[file].replace(old, new)
    return texts


def _build() -> Path:
    """Return the path of the built module, built if it is not there."""
    counting = os.environ.get("WHEELD_COVERAGE", "").split()
    texts = _sources()
    digest = hashlib.sha256("".join([*texts.values(), *counting]).encode()).hexdigest()[:16]
    folder = ROOT / "build" / "tests" / f"narrow_{digest}"
    module, sources = folder / "_wheeld.abi3.so", folder / "csrc"
    sources.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be building it
        if not module.exists():
            for name, text in texts.items():
                (sources / name).write_text(text)
            _compile(sources, module, counting)
    return module


def _compile(sources: Path, module: Path, counting: list[str]) -> None:
    code, ffi = build_ffi(), FFI()
    ffi.cdef(f"{code.public_prototypes()}\n{BREAK}")
    includes = "\n".join(f'#include "{name}"' for name in code.PUBLIC_HEADERS)
    ffi.set_source("_wheeld", f"{includes}\n{BREAK}\n{code.PROTOTYPE}", py_limited_api=True)
    ffi.emit_c_code(str(sources / "_wheeld.c"))
    flags = [*FLAGS.split(), *counting, f"-I{sysconfig.get_path('include')}"]

    def compiled(source: Path) -> str:
        made = str(source.with_suffix(".o"))
        subprocess.run(["gcc", *flags, "-c", str(source), "-o", made], check=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled_alone = [c for c in sorted(sources.glob("*.c")) if c.name != INCLUDED]
        objects = list(pool.map(compiled, compiled_alone))
    fresh = module.with_suffix(".new")
    subprocess.run(["gcc", "-shared", "-pthread", *counting, *objects, "-o", fresh], check=True)
    fresh.rename(module)


def library() -> ModuleType:
    """Return the small core's own ``_wheeld``."""
    module: ModuleType = sys.modules["_wheeld_narrow"]
    return module


@cache
def fed() -> ModuleType:
    """Return tests.fed over the narrow core; ``fed().Core`` is that core."""
    hidden = ("_wheeld", "wheel.engine.core", "tests.fed")
    kept = {name: sys.modules.pop(name) for name in hidden if name in sys.modules}
    try:
        spec = importlib.util.spec_from_file_location("_wheeld", _build())
        assert spec is not None
        assert spec.loader is not None
        sys.modules["_wheeld"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["_wheeld"])
        sys.modules["_wheeld_narrow"] = sys.modules["_wheeld"]
        return importlib.import_module("tests.fed")
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
        sys.modules.update(kept)
        if "wheel.engine.core" in kept:
            sys.modules["wheel.engine"].core = kept["wheel.engine.core"]  # type: ignore[attr-defined]
