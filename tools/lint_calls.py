"""Fail on file, clock and random calls outside the adapters, in Python and in C.

The core and everything that decides take time, randomness and files as inputs; that is what makes
a run repeatable from a seed and lets a simulated disk stand in for the real one. Who may make such
calls is one table, ALLOWED, with a reason each. Python is read as a syntax tree (a mention counts,
not only a call: a clock handed on as a value is a clock read), C as text without its comments and
strings (calls only; a call through a table, ``io->fsync(...)``, is what adapters are for).

    python tools/lint_calls.py [folder]
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYTHON_FOLDERS: Final = ("wheel", "wal", "server")
PYTHON_FILES: Final = ("wheeld.py",)
C_FOLDER: Final = "csrc"

# (file, kind): why this file may. An entry that nothing uses is an error too.
ALLOWED: Final[dict[tuple[str, str], str]] = {
    ("csrc/wd_clock.c", "clock"): "the core's one reader of clocks",
    ("csrc/wd_io.c", "clock"): "times a sync for the figures; nothing is decided by it",
    ("csrc/wd_io.c", "file"): "the core's one table of file calls",
    ("csrc/wd_net.c", "clock"): "arms the two kernel timers that wake the loop",
    ("csrc/wd_net.c", "file"): "holds one spare descriptor, to refuse a connection with",
    ("server/auth.py", "file"): "reads and writes the file of access tokens",
    ("server/clock.py", "clock"): "the daemon's one reader of clocks",
    ("server/clock.py", "file"): "reads the kernel's boot id",
    ("server/clock.py", "random"): "the daemon's one source of randomness",
    ("server/info.py", "file"): "reads how much memory this process has, for INFO",
    ("server/pace.py", "file"): "maps memory, no file, as a buffer that nobody has to clear",
    ("server/settings.py", "file"): "reads the machine's and the container's memory limits",
    ("server/tls.py", "file"): "asks who else can read the key of the certificate",
    ("wal/disk.py", "file"): "the one place where the data directory is touched",
    ("wheel/__init__.py", "file"): "finds other packages named wheel on sys.path, once",
    ("wheel/commands/machine.py", "file"): "reads the file of schedules, and the machine's zone",
    ("wheel/commands/schedule.py", "file"): "reads the payload that @FILE names",
    ("wheel/shell.py", "file"): "runs commands in the home of their user, and reads their output",
    ("wheel/system.py", "clock"): "the user side's one reader of clocks",
    ("wheel/system.py", "random"): "the user side's one source of randomness",
    ("wheel/tls.py", "file"): "asks whether files of certificates have changed",
    ("wheel/zones.py", "file"): "reads a zone's file for the fingerprint of its rules",
    ("wheeld.py", "file"): "finds the daemon's folder before anything of ours can be imported",
}

# What counts. A dotted name stands for itself and for everything below it ("shutil" -> "shutil.x").
PYTHON_CALLS: Final[dict[str, frozenset[str]]] = {
    "file": frozenset(
        [
            *("open", "io.open", "io.FileIO", "shutil", "tempfile", "mmap", "fcntl", "glob"),
            "click.open_file",
            *(
                f"os.{name}"
                for name in (
                    "access chmod chown close copy_file_range fchmod fdatasync fdopen fstat "
                    "fstatvfs fsync ftruncate link listdir lseek lstat makedirs mkdir open "
                    "posix_fadvise posix_fallocate pread preadv pwrite pwritev read readlink "
                    "remove removedirs rename renames replace rmdir scandir stat statvfs symlink "
                    "sync truncate unlink utime walk write writev path.exists path.getmtime "
                    "path.getsize path.isdir path.isfile path.islink path.lexists path.realpath "
                    "path.samefile"
                ).split()
            ),
        ]
    ),
    "clock": frozenset(
        [
            *("datetime.datetime.now", "datetime.datetime.today", "datetime.datetime.utcnow"),
            *("datetime.date.today", "asyncio.sleep", "uuid.uuid1", "os.times"),
            *(
                f"time.{name}"
                for name in (
                    "asctime clock_gettime clock_gettime_ns ctime gmtime localtime monotonic "
                    "monotonic_ns perf_counter perf_counter_ns process_time process_time_ns sleep "
                    "strftime thread_time thread_time_ns time time_ns"
                ).split()
            ),
        ]
    ),
    "random": frozenset(["random", "secrets", "uuid.uuid4", "os.urandom", "os.getrandom"]),
}
# The type, and a generator made from a seed, are inputs.
SEEDED: Final = "random.Random"
YIELD: Final = "asyncio.sleep"  # of 0: lets the loop turn, and waits for no clock
# Methods of pathlib.Path that no other type we use has.
PATH_METHODS: Final = frozenset(
    "hardlink_to is_dir is_file is_symlink iterdir lstat mkdir read_bytes read_text readlink rglob "
    "rmdir symlink_to touch unlink write_bytes write_text".split()
)
C_CALLS: Final[dict[str, frozenset[str]]] = {
    "file": frozenset(
        "access chmod creat fallocate fchmod fdatasync fdopen fopen fread fseek fstat fstatat "
        "fstatfs fsync ftruncate fwrite link lseek lstat mkdir mkdirat mkstemp open openat "
        "opendir posix_fadvise posix_fallocate pread preadv pwrite pwritev readdir readlink remove "
        "rename renameat rmdir stat statfs statvfs symlink sync sync_file_range syncfs tmpfile "
        "truncate unlink unlinkat".split()
    ),
    "clock": frozenset(
        "clock clock_getres clock_gettime clock_nanosleep ctime gettimeofday gmtime localtime "
        "mktime nanosleep sleep strftime time timer_create timer_settime timerfd_create "
        "timerfd_gettime timerfd_settime timespec_get usleep __rdtsc".split()
    ),
    "random": frozenset(
        "arc4random arc4random_buf arc4random_uniform drand48 erand48 getentropy getrandom "
        "lrand48 mrand48 rand rand_r random srand srand48 srandom".split()
    ),
}
C_NOISE: Final = re.compile(
    r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)
C_CALL: Final = re.compile(r"(?<![\w.>])([A-Za-z_]\w*)\s*\(")


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Finding:
    """One call that the table does not know.

    Attributes:
        path: relative to the folder looked at.
        line: from 1.
        kind: file, clock or random.
        name: what is called.
    """

    path: str
    line: int
    kind: str
    name: str

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line}: {self.kind} call {self.name}: take it as an input, "
            "or name this file and why in ALLOWED (tools/lint_calls.py)"
        )


class _Names(ast.NodeVisitor):
    """Every dotted name that is read, with imports resolved: ``(line, name)``."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self._imported: dict[str, str] = {"open": "open"}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            self._imported[alias.asname or name] = name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def visit_Call(self, node: ast.Call) -> None:
        if self._dotted(node.func) == SEEDED:
            if not node.args:
                self.found.append((node.lineno, "random.Random()"))
            for part in [*node.args, *node.keywords]:
                self.visit(part)
            return
        if self._dotted(node.func) == YIELD and [ast.unparse(arg) for arg in node.args] == ["0"]:
            return
        if isinstance(node.func, ast.Attribute) and _is_path_method(node.func):
            self.found.append((node.lineno, f"Path.{node.func.attr}"))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._dotted(node)
        if name is None:
            self.generic_visit(node)
        else:
            self.found.append((node.lineno, name))

    def visit_Name(self, node: ast.Name) -> None:
        name = self._dotted(node)
        if name is not None:
            self.found.append((node.lineno, name))

    def _dotted(self, node: ast.expr) -> str | None:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._imported:
            return None
        return ".".join([self._imported[node.id], *reversed(parts)])


def _is_path_method(func: ast.Attribute) -> bool:
    """Return whether this is a file call on a path, and not on what stands for the disk."""
    receiver = ast.unparse(func.value).rpartition(".")[2]
    return func.attr in PATH_METHODS and receiver.lstrip("_") != "disk"


def _python_kind(name: str) -> str | None:
    """Return which kind of call a resolved name is, if any."""
    if name.startswith("Path."):
        return "file"
    if name == SEEDED:
        return None
    parts = name.split(".")
    prefixes = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return next((kind for kind, names in PYTHON_CALLS.items() if prefixes & names), None)


def python_findings(path: str, text: str) -> Iterator[Finding]:
    """Return what a Python file calls, allowed or not."""
    names = _Names()
    names.visit(ast.parse(text))
    for line, name in names.found:
        kind = _python_kind(name)
        if kind is not None:
            yield Finding(path=path, line=line, kind=kind, name=name)


def c_findings(path: str, text: str) -> Iterator[Finding]:
    """Return what a C file calls, allowed or not."""
    bare = C_NOISE.sub(lambda found: "\n" * found[0].count("\n") + " ", text)
    for call in C_CALL.finditer(bare):
        for kind, names in C_CALLS.items():
            if call[1] in names:
                line = bare.count("\n", 0, call.start()) + 1
                yield Finding(path=path, line=line, kind=kind, name=call[1])


def findings(root: Path) -> list[Finding]:
    """Return every call of every kind under ``root``, allowed or not, sorted."""
    found: list[Finding] = []
    python = [path for folder in PYTHON_FOLDERS for path in (root / folder).rglob("*.py")]
    for path in [*python, *(root / name for name in PYTHON_FILES)]:
        if path.exists():
            found += python_findings(path.relative_to(root).as_posix(), path.read_text())
    for path in (root / C_FOLDER).glob("*.[ch]"):
        found += c_findings(path.relative_to(root).as_posix(), path.read_text())
    return sorted(found)


def complaints(root: Path) -> list[str]:
    """Return what is wrong under ``root``: calls nobody allowed, entries nobody uses."""
    found = findings(root)
    used = {(finding.path, finding.kind) for finding in found}
    wrong = [str(finding) for finding in found if (finding.path, finding.kind) not in ALLOWED]
    idle = sorted(set(ALLOWED) - used)
    return wrong + [
        f"{path}: ALLOWED has it for {kind} calls, it makes none" for path, kind in idle
    ]


def main() -> int:
    """Print the complaints; 1 if there are any."""
    wrong = complaints(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
