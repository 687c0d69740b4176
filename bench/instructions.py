"""The regression gate: instructions that the C core takes for fixed work, counted by callgrind.

    python -m bench.instructions                  count, compare with the committed baseline
    python -m bench.instructions --update         count, and write the baseline
    python -m bench.instructions --against REV    compare with another commit, on this compiler

What is counted: the functions of csrc/, each by the instructions of its own (not those of what it
calls), in the workloads of bench/gate/workloads.c. The C library, the kernel, Python and the driver
are left out, and the checksum takes the way that every CPU has. So the numbers depend on csrc/, on
the compiler and its flags, and on nothing else: they are the same in every run.

A workload that takes over 5 % more fails, and the functions that rose most are named; one that
takes over 5 % less asks for a new baseline. With another compiler or CPU family than the baseline's
nothing can be said of a few percent: that is printed in capitals, and nothing fails; --against REV
gives the comparison there.
"""

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CSRC: Final = ROOT / "csrc"
DRIVER: Final = ROOT / "bench" / "gate" / "workloads.c"
BASELINE: Final = ROOT / "bench" / "gate" / "instructions.tsv"
CACHE: Final = ROOT / "build" / "gate"  # objects, by what they were made of

TOLERANCE_PERCENT: Final = 5
SHOWN_SHARE: Final = 0.005  # of a workload: functions below it stand in the baseline as one
OTHERS: Final = "(each below 0.5 %)"
NAMED_MOST: Final = 5
TIMEOUT_S: Final = 300
WORK: Final = re.compile(r"^WORK work_(\w+)\(", re.MULTILINE)
COST: Final = re.compile(r"[0-9+*-]")
TRIGGER: Final = re.compile(r"^desc: Trigger: --dump-after=work_(\w+)$", re.MULTILINE)


class GateError(Exception):
    """The gate itself cannot be run; the text says what is missing."""


Functions = Mapping[str, int]  # instructions by "function file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One workload as it was counted.

    Attributes:
        name: of the C function, without work_.
        things: how many jobs, records or ticks it was about.
        functions: instructions by function of csrc/, each of its own.
    """

    name: str
    things: int
    functions: Functions

    @property
    def total(self) -> int:
        """Return the instructions of all functions."""
        return sum(self.functions.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Everything counted, and with what it was compiled."""

    compiler: str
    workloads: tuple[Workload, ...]


# ---------------------------------------------------------------- build


def _run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Return what a program prints.

    Raises:
        GateError: it is not there, or failed.
    """
    command = [str(word) for word in words]
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise GateError(
            f"{command[0]} is not installed (Debian: apt-get install {command[0]})"
        ) from error
    if done.returncode != 0:
        raise GateError(f"{' '.join(command[:3])} ...: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def compiler() -> str:
    """Return the compiler's command."""
    return os.environ.get("CC", "gcc")


def compiler_version() -> str:
    """Return what decides about the code it makes: its name, its version, the CPU family."""
    version = _run(compiler(), "-dumpfullversion", "-dumpversion").strip()
    return f"{Path(compiler()).name} {version} {platform.machine()}"


def _flags() -> list[str]:
    """Return the flags that csrc/ is shipped with."""
    spec = importlib.util.spec_from_file_location("build_ffi", CSRC / "build_ffi.py")
    if spec is None or spec.loader is None:
        raise GateError("csrc/build_ffi.py cannot be read")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    flags: list[str] = module.compile_args()
    return [*flags, "-fPIC"]


def build(csrc: Path, folder: Path) -> Path:
    """Return the driver, linked with the core of a folder, in ``folder``.

    Objects are kept in build/gate under a hash of all that they are made of.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    flags = _flags()
    headers = b"".join(path.read_bytes() for path in sorted(csrc.glob("*.h")))
    common = hashlib.sha256(headers + " ".join([compiler_version(), *flags]).encode())

    def compiled(source: Path) -> Path:
        digest = common.copy()
        digest.update(source.read_bytes())
        made = CACHE / f"{source.stem}-{digest.hexdigest()[:16]}.o"
        if not made.exists():
            part = folder / made.name
            # As setuptools names it: the assertions hold the name.
            name = source.relative_to(source.parents[1])
            _run(compiler(), *flags, f"-I{csrc}", "-c", name, "-o", part, cwd=source.parents[1])
            shutil.copyfile(part, made.with_suffix(f".{os.getpid()}"))
            made.with_suffix(f".{os.getpid()}").replace(made)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, [*sorted(csrc.glob("wd_*.c")), DRIVER]))
    program = folder / "workloads"
    _run(compiler(), "-pthread", *objects, "-o", program)
    return program


# ---------------------------------------------------------------- count


def count(csrc: Path = CSRC) -> Counts:
    """Return the instructions of every workload with the core of a folder.

    Raises:
        GateError: no compiler, no valgrind, or the workloads failed.
    """
    names = WORK.findall(DRIVER.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="wheeld-gate-") as temporary:
        folder = Path(temporary)
        program = build(csrc, folder)
        options = [
            f"--{what}=work_{name}" for name in names for what in ("dump-before", "dump-after")
        ]
        out = folder / "callgrind"
        printed = _run(
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            "--compress-strings=no",
            *options,
            program,
            folder / "checkpoint",
            cwd=folder,
        )
        dumps = [path.read_text(encoding="utf-8") for path in folder.glob("callgrind.*")]
    things = {name: int(many) for name, many in (line.split() for line in printed.splitlines())}
    found: dict[str, Functions] = {}
    for dump in dumps:
        if (trigger := TRIGGER.search(dump)) is not None:
            found[trigger[1]] = exclusive(dump)
    if missing := [name for name in names if not found.get(name) or name not in things]:
        raise GateError(f"callgrind counted nothing for {', '.join(missing)}")
    return Counts(
        compiler=compiler_version(),
        workloads=tuple(
            Workload(name=name, things=things[name], functions=found[name]) for name in names
        ),
    )


def exclusive(dump: str) -> Functions:
    """Return the own instructions of each function of csrc/ in one file of callgrind's.

    A line "calls=" is followed by one with what the call cost in all: that is the callee's.
    """
    counts: defaultdict[str, int] = defaultdict(int)
    file = function = ""
    is_call = False
    for line in dump.splitlines():
        key, _, value = line.partition("=")
        if key == "fl":
            file = value
        elif key == "fn":
            function = value
        elif key == "calls":
            is_call = True
        elif COST.match(line):
            cost = line.split()[1:]  # left out when it is 0
            if not is_call and cost and "/csrc/" in file:
                counts[f"{function} {file.rpartition('/')[2]}"] += int(cost[0])
            is_call = False
    return dict(counts)


# ---------------------------------------------------------------- baseline


def folded(functions: Functions) -> dict[str, int]:
    """Return the same with all that is small in one place, by size."""
    least = SHOWN_SHARE * sum(functions.values())
    kept = {name: many for name, many in functions.items() if many >= least}
    kept = dict(sorted(kept.items(), key=lambda item: -item[1]))
    return {**kept, OTHERS: sum(functions.values()) - sum(kept.values())}


def written(counts: Counts) -> str:
    """Return the text of a baseline."""
    lines = [
        "# Instructions of fixed work by function of csrc/ (bench/instructions.py). Made anew by",
        "# `make gate-update`; a difference in this file is a difference in what the core costs.",
        f"# compiler\t{counts.compiler}",
        "# workload\tthings\tfunction\tinstructions",
    ]
    for work in counts.workloads:
        lines += [
            f"{work.name}\t{work.things}\t{name}\t{many}"
            for name, many in folded(work.functions).items()
        ]
    return "\n".join(lines) + "\n"


def read(text: str) -> Counts:
    """Return what stands in a baseline.

    Raises:
        GateError: it is not one.
    """
    compiled_with = ""
    things: dict[str, int] = {}
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for line in text.splitlines():
        fields = line.split("\t")
        if fields[0] == "# compiler":
            compiled_with = fields[1]
        if line.startswith("#"):
            continue
        name, many, function, instructions = fields
        things[name] = int(many)
        found[name][function] = int(instructions)
    if not compiled_with or not found:
        raise GateError(f"{BASELINE.name} is no baseline; make one with `make gate-update`")
    return Counts(
        compiler=compiled_with,
        workloads=tuple(
            Workload(name=name, things=things[name], functions=found[name]) for name in found
        ),
    )


# ---------------------------------------------------------------- compare


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a comparison came to.

    Attributes:
        rises: sentences about workloads that take too much more; the gate fails.
        falls: sentences about those that take so much less that the baseline is out of date.
    """

    rises: tuple[str, ...]
    falls: tuple[str, ...]


def movers(old: Functions, new: Functions, *, sign: int) -> list[str]:
    """Return the functions that rose (sign 1) or fell (-1) most, in words."""
    kept = {name for name in (*old, *folded(new)) if name != OTHERS}
    then, now = dict(old), {name: new.get(name, 0) for name in kept}
    if OTHERS in old:  # what is small in a baseline stands there as one
        then = {name: old.get(name, 0) for name in kept}
    delta = {name: now[name] - then.get(name, 0) for name in kept}
    ranked = sorted(delta, key=lambda name: -sign * delta[name])
    return [
        f"{name}: {then.get(name, 0):,} -> {now[name]:,}"
        for name in ranked[:NAMED_MOST]
        if 100 * sign * delta[name] > TOLERANCE_PERCENT * sign * sum(delta.values())
    ]


def compare(old: Counts, new: Counts) -> Verdict:
    """Return which workloads take over 5 % more or less than before, with the functions' names.

    Raises:
        GateError: the workloads are not the same.
    """
    before = {work.name: work for work in old.workloads}
    if names := before.keys() ^ {work.name for work in new.workloads}:
        raise GateError(
            f"workloads {', '.join(sorted(names))} stand only on one side: `make gate-update`"
        )
    rises: list[str] = []
    falls: list[str] = []
    for work in new.workloads:
        was = before[work.name]
        if was.things != work.things:
            raise GateError(f"{work.name} does other work than its baseline: `make gate-update`")
        delta, change = work.total - was.total, work.total / was.total - 1
        if 100 * abs(delta) <= TOLERANCE_PERCENT * was.total:
            continue
        sign = 1 if delta > 0 else -1
        text = f"{work.name}: {was.total:,} -> {work.total:,} instructions ({change:+.1%})"
        text = "\n    ".join([text, *movers(was.functions, work.functions, sign=sign)])
        (rises if sign > 0 else falls).append(text)
    return Verdict(rises=tuple(rises), falls=tuple(falls))


def table(counts: Counts, old: Counts | None) -> str:
    """Return the workloads for people: instructions a thing, beside what they were."""
    before = {work.name: work.total for work in old.workloads} if old else {}
    lines = [f"{counts.compiler}; instructions of csrc/ alone, checksum by table"]
    lines += [f"{'workload':<18}{'things':>8}{'a thing':>10}{'before':>10}{'change':>9}"]
    for work in counts.workloads:
        each = work.total / work.things
        was = before.get(work.name)
        beside = f"{was / work.things:>10,.0f}{work.total / was - 1:>+9.1%}" if was else ""
        lines.append(f"{work.name:<18}{work.things:>8,}{each:>10,.0f}{beside}")
    return "\n".join(lines)


# ---------------------------------------------------------------- command


def at_commit(revision: str, folder: Path) -> Counts:
    """Return the counts of another commit's csrc/, with this tree's workloads."""
    archive = folder / "csrc.tar"
    _run("git", "archive", f"--output={archive}", revision, "csrc")
    _run("tar", "-xf", archive, "-C", folder)
    return count(folder / "csrc")


def judged(verdict: Verdict, say: Callable[[str], object]) -> int:
    """Say what was found; return the exit status."""
    for text in verdict.falls:
        say(f"LESS: {text}")
    if verdict.falls:
        say("The baseline is out of date: `make gate-update`, and commit it with the reason.")
    for text in verdict.rises:
        say(f"MORE: {text}")
    if verdict.rises:
        say(
            "The core takes over 5 % more instructions. If that is what the change is worth, "
            "`make gate-update`, and say so in the commit."
        )
    return 1 if verdict.rises else 0


def main() -> int:
    """Return the exit status: 1 when a workload takes too much more, 2 when nothing was counted."""
    parser = argparse.ArgumentParser(description="Count the core's instructions for fixed work.")
    parser.add_argument("--update", action="store_true", help="write the baseline")
    parser.add_argument("--against", metavar="REV", help="compare with a commit, not the baseline")
    options = parser.parse_args()

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")

    try:
        counts = count()
        if options.update:
            BASELINE.write_text(written(counts), encoding="utf-8")
            say(table(counts, None))
            return 0
        if options.against:
            with tempfile.TemporaryDirectory() as folder:
                old = at_commit(options.against, Path(folder))
        else:
            old = read(BASELINE.read_text(encoding="utf-8"))
        say(table(counts, old))
        if old.compiler != counts.compiler:
            say(f"NOT COMPARED: the baseline is of {old.compiler}, this is {counts.compiler}.")
            say("Compare with a commit here: python -m bench.instructions --against REV")
            return 0
        return judged(compare(old, counts), say)
    except GateError as error:
        sys.stderr.write(f"gate: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
