"""Plant faults in the C core, one at a time, and see whether tests notice them.

Each fault replaces text that stands exactly once in a source file. The core is built with it, and
the tests run over that build. First they must pass over the sound one.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A mistake someone could make: `old` in a file becomes `new`."""

    name: str
    file: str
    old: str
    new: str


def fault(name: str, file: str, old: str, new: str) -> Fault:
    """Return a Fault; saves the keywords in the table below."""
    return Fault(name=name, file=file, old=old, new=new)


class Builder:
    """Builds the core, each time with one file changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        spec = importlib.util.spec_from_file_location("build_ffi", CSRC / "build_ffi.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.ffibuilder.emit_c_code(str(folder / "_wheeld.c"))
        self._sources = [folder / "_wheeld.c", *sorted(CSRC.glob("wd_*.c"))]
        for source in self._sources:
            self._compile(source, folder / f"{source.stem}.o")

    def _compile(self, source: Path, target: Path) -> None:
        command = ["gcc", "-std=c11", "-O1", "-w", "-fPIC", "-c", str(source), "-o", str(target)]
        command += ["-DPy_LIMITED_API=0x030B0000", f"-I{CSRC}"]
        command += [f"-I{sysconfig.get_path('include')}"]
        subprocess.run(command, check=True)

    def build(self, what: Fault | None) -> Path:
        """Return a folder with the core in it, one fault planted."""
        objects = {source.stem: self._folder / f"{source.stem}.o" for source in self._sources}
        target = self._folder / "built"
        target.mkdir(exist_ok=True)
        if what is not None:
            assert_stands_once(what)
            source = self._folder / f"faulty_{what.file}"
            source.write_text((CSRC / what.file).read_text().replace(what.old, what.new))
            stem = Path(what.file).stem
            objects[stem] = self._folder / "faulty.o"
            self._compile(source, objects[stem])
        module = target / "_wheeld.abi3.so"
        module.unlink(missing_ok=True)
        names = [str(path) for path in objects.values()]
        subprocess.run(["gcc", "-shared", "-pthread", *names, "-o", str(module)], check=True)
        return target


def tests_pass(built: Path, tests: Sequence[str], hang_s: float) -> bool:
    """Return whether tests, as pytest is told them, pass over the core in a folder."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-m", "not long", "-o", f"pythonpath={built} .", *tests]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=hang_s, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def plant(faults: Sequence[Fault], tests: Sequence[str], *, hang_s: float) -> int:
    """Plant those that the command line asks for, print a line for each.

    Returns the exit status: 0 when the sound core passes and every fault is noticed.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="faults whose name contains this")
    only = parser.parse_args().only
    chosen = [what for what in faults if only in what.name]
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(Path(folder))
        if not tests_pass(builder.build(None), tests, hang_s):
            print("the sound core does not pass")
            return 1
        missed = 0
        for what in chosen:
            noticed = not tests_pass(builder.build(what), tests, hang_s)
            missed += not noticed
            print(f"{'noticed' if noticed else 'MISSED ':8} {what.name}", flush=True)
    return 1 if missed or not chosen else 0


def assert_all_are_noticed(module: str) -> None:
    """Run a module of faults, as a program of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", module],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def assert_stands_once(what: Fault) -> None:
    """The source has the text that the fault replaces."""
    assert (CSRC / what.file).read_text().count(what.old) == 1
