"""Tell which branches of the C core the tests took; fail on one that is missing and not explained.

A branch is one side of a decision as the compiler sees it without optimization: an `if` has two,
each `&&` two more, a `switch` one for each place that it can go to. `make coverage` builds a copy
of the tree that counts them, runs the tests on it, and calls this.

Not counted: the branches of WD_ASSERT, whose other side is the end of the process.

Held to: SHARE_MIN of all branches of csrc/, and every branch of the files in WHOLE, which hold
the log, checkpoints, leases, and what they decide and apply. A branch there that no test can take
stands with its reason in tools/coverage_known.tsv, by the text of its line: line numbers move.

    python tools/coverage.py FOLDER [--missing]

FOLDER is the copy, with its counts. --missing prints the missing branches of the other files too.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict, cast

SHARE_MIN: Final = 0.95
KNOWN: Final = Path(__file__).with_name("coverage_known.tsv")
WHOLE: Final = frozenset(
    f"wd_{name}.c"
    for name in (
        "log file frame crc32c record batch commit payload "  # the log
        "checkpoint ckptfile ckptwriter image save load replay statehash "
        "decide apply place submit lease policy ring"
    ).split()
)
ASSERTION: Final = "WD_ASSERT"
ASSERTION_END: Final = re.compile(r"\)\s*;")


class GcovBranch(TypedDict):
    """One side of a decision, as gcov's JSON has it."""

    count: int


class GcovLine(TypedDict):
    """One line of a function."""

    line_number: int
    function_name: str
    branches: list[GcovBranch]


class GcovFile(TypedDict):
    """One file that an object was compiled from."""

    file: str
    lines: list[GcovLine]


class GcovReport(TypedDict):
    """What gcov says about one object."""

    files: list[GcovFile]


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Branch:
    """One side of one decision.

    Attributes:
        file: name below csrc/.
        line: from 1.
        function: what it stands in.
        number: how manieth of its line it is, from 0.
    """

    file: str
    line: int
    function: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One row of the table of branches that no test can take.

    Attributes:
        file: name below csrc/.
        function: what the line stands in.
        text: the line, without the blanks around it.
        branches: how many of the line's branches are missing.
        reason: why no test takes them.
    """

    file: str
    function: str
    text: str
    branches: int
    reason: str


def counts(folder: Path, sources: Container[str]) -> dict[Branch, int]:
    """Return how often each branch of ``sources`` was taken, over all objects below ``folder``.

    An object that a test compiled for itself counts as the core's own does, and a function of a
    header once, however many objects hold it.

    Raises:
        SystemExit: nothing there was built for counting.
    """
    objects = sorted(folder.rglob("*.gcno"))
    if not objects:
        raise SystemExit(f"coverage: {folder} holds no object that counts; run `make coverage`")
    total: Counter[Branch] = Counter()
    for report in map(_report, objects):
        for file in report["files"]:
            path = Path(file["file"])
            if path.name in sources and path.parent.name == "csrc":
                total.update(dict(_branches(path.name, file["lines"])))
    return total


def _report(notes: Path) -> GcovReport:
    command = ["gcov", "--branch-probabilities", "--json-format", "--stdout", notes.name]
    done = subprocess.run(command, cwd=notes.parent, check=True, capture_output=True)
    return cast("GcovReport", json.loads(done.stdout))


def _branches(file: str, lines: Iterable[GcovLine]) -> Iterator[tuple[Branch, int]]:
    for line in lines:
        for number, branch in enumerate(line["branches"]):
            where = Branch(
                file=file, line=line["line_number"], function=line["function_name"], number=number
            )
            yield where, branch["count"]


def asserted(text: str) -> set[int]:
    """Return the lines of a C source, from 1, that belong to an assertion."""
    found: set[int] = set()
    for start in re.finditer(ASSERTION, text):
        end = ASSERTION_END.search(text, start.start())
        last = end.start() if end else start.start()
        found.update(range(text.count("\n", 0, start.start()) + 1, text.count("\n", 0, last) + 2))
    return found


def known(path: Path) -> list[Known]:
    """Return the rows of the table.

    Raises:
        SystemExit: a row has not five columns, or no reason.
    """
    rows: list[Known] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != 5 or not all(cells) or not cells[3].isdecimal():
            raise SystemExit(
                f"{path.name}:{number}: want file, function, line, how many branches, reason"
            )
        rows.append(
            Known(
                file=cells[0],
                function=cells[1],
                text=cells[2],
                branches=int(cells[3]),
                reason=cells[4],
            )
        )
    return rows


def table(taken: dict[Branch, int]) -> list[str]:
    """Return one line a file, worst first, and the sum."""
    total = Counter(branch.file for branch in taken)
    hit = Counter(branch.file for branch, count in taken.items() if count)
    rows = sorted(total, key=lambda file: (hit[file] / total[file], file))
    lines = [f"{'file':<18} {'branches':>8} {'taken':>6} {'%':>6}"]
    lines += [_row(f"{file}{'*' * (file in WHOLE)}", total[file], hit[file]) for file in rows]
    whole = [file for file in rows if file in WHOLE]
    sums = [sum(per_file[file] for file in whole) for per_file in (total, hit)]
    lines.append(_row("those with *", *sums))
    return [*lines, _row("whole", total.total(), hit.total())]


def _row(name: str, total: int, hit: int) -> str:
    return f"{name:<18} {total:>8} {hit:>6} {100 * hit / total:>6.2f}"


def judge(
    taken: dict[Branch, int], sources: dict[str, str], rows: list[Known], *, everything: bool
) -> list[str]:
    """Return what is wrong: missing branches that no row explains, and rows that explain nothing.

    Args:
        taken: how often each branch was taken.
        sources: name below csrc/ -> text.
        rows: the table of what no test can take.
        everything: tell missing branches of files outside WHOLE too.
    """
    missing = Counter(
        (branch.file, branch.line, branch.function) for branch, count in taken.items() if not count
    )
    left = {(row.file, row.function, row.text): row.branches for row in rows}
    wrong: list[str] = []
    for (file, line, function), count in sorted(missing.items()):
        text = sources[file].splitlines()[line - 1].strip()
        said = min(left.get((file, function, text), 0), count)
        if said:
            left[file, function, text] -= said
        if count > said and (everything or file in WHOLE):
            wrong.append(f"csrc/{file}:{line}: {function}: {count - said} not taken: {text}")
    wrong += [
        f"{KNOWN.name}: {file}: {function}: {count} of these are taken, or are no more: {text}"
        for (file, function, text), count in left.items()
        if count
    ]
    return wrong


def main() -> int:
    """Print the table and the complaints; 1 if there are any, or too few branches are taken."""
    folder = Path(sys.argv[1])
    everything = "--missing" in sys.argv[2:]
    sources = {path.name: path.read_text() for path in (folder / "csrc").glob("wd*.[ch]")}
    assertions = {file: asserted(text) for file, text in sources.items()}
    taken = {
        branch: count
        for branch, count in counts(folder, sources).items()
        if branch.line not in assertions[branch.file]
    }
    wrong = judge(taken, sources, known(KNOWN), everything=everything)
    print(*table(taken), *wrong, sep="\n")
    share = sum(map(bool, taken.values())) / len(taken)
    if share < SHARE_MIN:
        print(f"coverage: {share:.2%} of the branches are taken, want {SHARE_MIN:.0%}")
    return 1 if wrong or share < SHARE_MIN else 0


if __name__ == "__main__":
    raise SystemExit(main())
