"""Build ``_wheeld`` (cffi API mode, abi3) from csrc/*.c.

setuptools reads ``ffibuilder``. WHEELD_SANITIZE=address,undefined gives a sanitizer build;
WHEELD_COVERAGE holds the flags of one that counts which branches are taken (`make coverage`).
"""

import os
import platform
import re
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BLOCK = re.compile(r"/\* cffi: begin \*/(.*?)/\* cffi: end \*/", re.DOTALL)
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wvla", "-Wstrict-prototypes", "-Wmissing-prototypes"]
HARDENING = ["-fstack-protector-strong", "-fvisibility=hidden"]
# Checks at copies whose room is known; the C library takes it for 2 where it knows no 3. Not with a
# sanitizer, which watches the same calls. -U: Python's own flags may name another level.
FORTIFY = ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"]
# Indirect jumps land where the compiler said they may.
BRANCHES = {
    "x86_64": ["-fcf-protection=full"],
    "aarch64": ["-mbranch-protection=standard"],
}
# For which CPUs the order and choice of instructions is weighed; no instruction that others lack is
# used. The generic choice clears a record, 230 bytes and several a job, by `rep stos`, whose start
# alone takes longer than clearing them by plain stores.
TUNING = {"x86_64": ["-mtune=skylake"]}

# cffi writes this function without one, which -Wmissing-prototypes reports.
PROTOTYPE = "PyMODINIT_FUNC PyInit__wheeld(void);"

# Order matters to cffi: a type stands before its use.
PUBLIC_HEADERS = [
    "wd.h",
    "wd_io.h",
    "wd_crc32c.h",
    "wd_frame.h",
    "wd_ckptfile.h",
    "wd_log.h",
    "wd_commit.h",
    "wd_core.h",
    "wd_control.h",
    "wd_save.h",
    "wd_payload.h",
]


def public_prototypes() -> str:
    """Return what cffi can parse of the headers: the blocks between the cffi markers."""
    blocks = [
        block for name in PUBLIC_HEADERS for block in BLOCK.findall((HERE / name).read_text())
    ]
    if len(blocks) < len(PUBLIC_HEADERS):
        raise ValueError("a public header has no cffi markers")
    return "\n".join(blocks)


def compile_args() -> list[str]:
    """Return compiler flags for the mode that the environment asks for.

    -UNDEBUG: this Python's own flags contain -DNDEBUG, which would silently drop assert().
    """
    args = ["-std=c11", "-g", "-O2", "-UNDEBUG", *HARDENING, *WARNINGS]
    args += BRANCHES.get(platform.machine(), [])
    args += TUNING.get(platform.machine(), [])
    if counting := os.environ.get("WHEELD_COVERAGE"):
        args += counting.split()
    elif sanitize := os.environ.get("WHEELD_SANITIZE"):
        args += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-O1"]
    else:
        args += FORTIFY
    return args


def link_args() -> list[str]:
    """Return linker flags for the mode that the environment asks for."""
    sanitize = os.environ.get("WHEELD_SANITIZE")
    return [
        "-pthread",
        "-Wl,-z,relro,-z,now,-z,noexecstack",
        *([f"-fsanitize={sanitize}"] if sanitize else []),
        *os.environ.get("WHEELD_COVERAGE", "").split(),
    ]


def relative(pattern: str) -> list[str]:
    """Return csrc/ paths that match, relative to the root (setuptools wants them so)."""
    return sorted(str(path.relative_to(ROOT)) for path in HERE.glob(pattern))


ffibuilder = FFI()
ffibuilder.cdef(public_prototypes())
ffibuilder.set_source(
    "_wheeld",
    "\n".join([*(f'#include "{name}"' for name in PUBLIC_HEADERS), PROTOTYPE]),
    sources=relative("wd_*.c"),
    depends=relative("*.h"),
    include_dirs=["csrc"],
    extra_compile_args=compile_args(),
    extra_link_args=link_args(),
)
