"""The twin: a build of the core in which every fault of a table can be switched on while it runs.

The shipped sources hold no switches. Here they are copied, each fault is planted into the copy as
``(wd_mutant_on == number)``, and one module ``_wheeld`` is built from it; with the switch at 0 it
is the sound core. A process that puts the twin's folder first on ``sys.path`` runs all Python code
over it. What must notice each fault: tests/sim/test_mutants.py.
"""

import hashlib
import importlib.util
import os
import re
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
SWITCH = "extern int wd_mutant_on;"
WORD = re.compile(r"\bPLANTED\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault: in each file `old`, which stands there once, becomes `new`.

    Attributes:
        name: what is wrong, in words.
        edits: (file, old, new); the word PLANTED in new is true while the fault is on.
        scenario: the name of a function in tests/sim/scenarios*.py that must fail; "" = the
            whole-engine simulation must find it.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    scenario: str = ""


def plant(name: str, file: str, old: str, new: str, *, scenario: str = "") -> Mutant:
    """Return a fault in one place."""
    return Mutant(name=name, edits=((file, old, new),), scenario=scenario)


def tables() -> list[Mutant]:
    """Return the faults of tests/c/mutants*.py; the i-th has number i + 1."""
    found: list[Mutant] = []
    for path in sorted((ROOT / "tests" / "c").glob("mutants*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        table = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(table)
        found += table.MUTANTS
    names = [mutant.name for mutant in found]
    assert len(set(names)) == len(names), "two faults have one name"
    return found


def planted(mutants: list[Mutant]) -> dict[str, str]:
    """Return each C source with its faults in it.

    Raises:
        ValueError: a fault's text does not stand exactly once in its file.
    """
    texts = {path.name: path.read_text() for path in sorted(CSRC.glob("wd*.[ch]"))}
    for number, mutant in enumerate(mutants, 1):
        for file, old, new in mutant.edits:
            if (count := texts[file].count(old)) != 1:
                raise ValueError(f"{mutant.name}: its text stands {count} times in {file}")
            switched = WORD.sub(f"(wd_mutant_on == {number})", new)
            texts[file] = texts[file].replace(old, switched)
    return {
        name: f"{SWITCH}\n#line 1\n{text}" if name.endswith(".c") else text
        for name, text in texts.items()
    }


def build_ffi():
    """Return csrc/build_ffi.py as a module."""
    spec = importlib.util.spec_from_file_location("build_ffi", CSRC / "build_ffi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(source: Path) -> None:
    command = ["gcc", "-std=c11", "-O1", "-UNDEBUG", "-w", "-fPIC", "-c", str(source)]
    command += ["-DPy_LIMITED_API=0x030B0000", f"-I{sysconfig.get_path('include')}"]
    subprocess.run([*command, "-o", str(source.with_suffix(".o"))], check=True)


def build() -> Path:
    """Return the folder of the twin, built if it is not there."""
    texts = planted(tables())
    ffi_code = build_ffi()
    whole = "".join([*texts.values(), (CSRC / "build_ffi.py").read_text()])
    folder = ROOT / "build" / "tests" / f"twin_{hashlib.sha256(whole.encode()).hexdigest()[:16]}"
    module = folder / "_wheeld.abi3.so"
    if module.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "wd_mutant.c").write_text("int wd_mutant_on;\n")
    ffi = FFI()
    ffi.cdef(f"{ffi_code.public_prototypes()}\n{SWITCH}")
    includes = "\n".join(f'#include "{name}"' for name in ffi_code.PUBLIC_HEADERS)
    ffi.set_source("_wheeld", f"{includes}\n{SWITCH}\n{ffi_code.PROTOTYPE}", py_limited_api=True)
    ffi.emit_c_code(str(folder / "_wheeld.c"))
    sources = sorted(folder.glob("*.c"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_compile, sources))
    objects = [str(source.with_suffix(".o")) for source in sources]
    subprocess.run(["gcc", "-shared", "-pthread", *objects, "-o", str(module)], check=True)
    return folder
