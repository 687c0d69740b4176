"""The code's own form: what reviewers would otherwise have to look for each time."""

import ast
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import lint_calls

ROOT = Path(__file__).parents[1]
NOT_OURS = {".git", "build", "dist", "node_modules", "__pycache__", "corpus"}
OURS = ("wheel/", "wal/", "server/", "wheeld.py")  # what is installed
KEPT_DOTS = {".ci", ".gitignore", ".clang-format", ".clang-tidy"}
CODE_LINES_MAX = 600
TEST_LINES_MAX = 1000  # a table of cases is read in part, never as a whole
LONG_FILES = {"wheel/engine/core.py": 800}  # one method for each call of the core, and no more
FILE_BYTES_MAX = 400_000

SELF = "tests/test_tidy.py"  # holds what it looks for

NOTES = re.compile(r"\b(TODO|FIXME|XXX)\b")
MACHINE_PATH = re.compile(r"(^|[^\w./-])/(work|root|srv/build)/\w", re.MULTILINE)
SECRET = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY|gh[pousr]_\w{30}|AKIA[0-9A-Z]{16}")
INDEX_HOST = re.compile(r"pypi\.org|pythonhosted|registry\.npmjs|ghcr\.io|docker\.io\b")
CONFLICT = re.compile(r"^(<{7}|>{7}|={7})( |$)", re.MULTILINE)
# A test that is not run guards nothing.
SKIPS = re.compile(r"\b(pytest\.skip|importorskip|mark\.skip|mark\.xfail|unittest\.skip)\b")


def is_ours(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    if any(part in NOT_OURS or part.endswith(".egg-info") for part in parts):
        return False
    return not parts[0].startswith(".") or parts[0] in KEPT_DOTS


def walk(*patterns: str, below: str = "") -> Iterator[tuple[str, str]]:
    """Give (path, text) of our text files; all of them without a pattern on their names."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if is_ours(Path(folder, name))]
        for name in names:
            path = Path(folder, name)
            if not is_ours(path) or path.suffix in {".so", ".o", ".pyc", ".png", ".svg"}:
                continue
            short = path.relative_to(ROOT).as_posix()
            if short.startswith(below) and (not patterns or any(map(path.match, patterns))):
                yield short, path.read_text()


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}"
        for path, text in walk()
        if path != SELF
        for found in pattern.finditer(text)
    ]


def test_the_walk_sees_every_kind_of_file():
    """Or every check below would pass on nothing."""
    seen = {Path(path).suffix or path for path, _ in walk()}
    assert {".py", ".c", ".h", ".md", ".toml", "Makefile", ".ci/run"} <= seen


def test_no_code_file_is_longer_than_a_reader_can_hold():
    sizes = {path: text.count("\n") for path, text in walk("*.py", "*.pyi", "*.c", "*.h")}
    limits = {p: TEST_LINES_MAX if p.startswith("tests/") else CODE_LINES_MAX for p in sizes}
    limits |= LONG_FILES
    assert {path: lines for path, lines in sizes.items() if lines > limits[path]} == {}


def test_no_file_is_a_blob():
    assert [path for path, text in walk() if len(text) > FILE_BYTES_MAX] == []


@pytest.mark.parametrize(
    "pattern",
    [NOTES, MACHINE_PATH, SECRET, INDEX_HOST, CONFLICT],
    ids=["notes to self", "machine paths", "secrets", "index hosts", "merge conflicts"],
)
def test_no_file_holds(pattern):
    assert lines_with(pattern) == []


def test_patterns_match_what_they_are_for():
    assert NOTES.search("/* TODO: later */")
    assert MACHINE_PATH.search("cd /root/x")
    assert INDEX_HOST.search("https://pypi.org/simple")
    assert CONFLICT.search("a\n<<<<<<< HEAD\n")
    assert SECRET.search("-----BEGIN RSA PRIVATE KEY-----")
    assert SKIPS.search("@pytest.mark.skip(reason=1)")


def test_no_test_is_left_out():
    """Where a program is missing `skipif` may say so; in CI that counts as a failure."""
    found = [line for line in lines_with(SKIPS) if line.startswith("tests/")]
    assert found == []


def test_text_files_end_in_one_newline_and_hold_no_stray_blanks():
    wrong = []
    for path, text in walk():
        if path.startswith("tests/transcripts/"):
            continue  # what came over a socket, byte by byte
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            wrong.append(f"{path}: end")
        if "\r" in text:
            wrong.append(f"{path}: carriage return")
        if re.search(r"[ \t]+$", text, re.MULTILINE) and not path.endswith(".md"):
            wrong.append(f"{path}: blanks at the end of a line")
    assert wrong == []


def test_c_files_hold_no_tabs_and_no_line_over_100_columns():
    wrong = [
        f"{path}:{number}"
        for path, text in walk("*.c", "*.h")
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > 100 or "\t" in line
    ]
    assert wrong == []


def test_every_python_file_says_what_it_is():
    bare = [
        path
        for path, text in walk("*.py")
        if ast.get_docstring(ast.parse(text)) is None and text.strip()
    ]
    assert bare == []


def test_every_c_file_says_what_it_is():
    bare = [path for path, text in walk("*.c", "*.h") if not text.startswith("/* ")]
    assert bare == []


def test_the_changelog_leads_with_what_touches_data():
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^#{2,3} (.+)$", text, re.MULTILINE)
    assert headings[:2] == ["[Unreleased]", "Safety and durability"]


def test_every_declared_dependency_is_used():
    """A dependency that nothing imports is a promise to users without a reason."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"] + project["optional-dependencies"]["server"]
    names = {re.split(r"[^\w-]", line)[0] for line in declared} - {"cffi"}  # it runs _wheeld
    source = "\n".join(text for path, text in walk("*.py") if path.startswith(OURS))
    assert {name for name in names if not re.search(rf"import {name}|from {name}", source)} == set()


# ---------------------------------------------------------------- adapters


def test_files_clocks_and_randomness_are_touched_by_the_adapters_alone():
    assert lint_calls.complaints(ROOT) == []


def test_each_adapter_is_named_with_a_reason():
    assert all(len(reason.split()) >= 3 for reason in lint_calls.ALLOWED.values())
    assert {kind for _, kind in lint_calls.ALLOWED} <= {"file", "clock", "random"}


PLANTED_PYTHON = {
    "file": [
        "open('x')",
        "import io\nio.open('x')",
        "import os\nos.fsync(3)",
        "import os as o\no.replace('a', 'b')",
        "from os import rename\nrename('a', 'b')",
        "import os.path\nos.path.exists('x')",
        "from pathlib import Path\nPath('x').read_text()",
        "import shutil\nshutil.rmtree('x')",
        "import tempfile\ntempfile.mkstemp()",
    ],
    "clock": [
        "import time\ntime.time()",
        "from time import monotonic as m\nm()",
        "import time\n\ndef f(clock=time.time_ns):\n    pass",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.utcnow()",
        "import time\ntime.sleep(1)",
        "import asyncio\nasyncio.sleep(1)",
    ],
    "random": [
        "import random\nrandom.random()",
        "import random\nrandom.Random()",
        "from random import choice\nchoice([1])",
        "import os\nos.urandom(8)",
        "import secrets\nsecrets.token_hex()",
        "import uuid\nuuid.uuid4()",
    ],
}
PLANTED_C = {
    "file": ["int f(void) { return fsync(3); }", "void f(void) { fopen (name, mode); }"],
    "clock": ["void f(void) { clock_gettime(CLOCK_REALTIME, &t); }", "int64_t t = time(NULL);"],
    "random": ["int f(void) { return rand(); }", "void f(void) { getrandom(p, n, 0); }"],
}
HARMLESS_PYTHON = [
    "import random\n\ndef f(source: random.Random) -> None:\n    source.random()",
    "import random\nrandom.Random(7)",
    "def f(clock):\n    return clock.time()",
    "text = 'x'.replace('a', 'b')",
    "from pathlib import Path\nPath('a') / 'b'",
    "import datetime\ndatetime.timedelta(1)",
    "import asyncio\nasyncio.sleep(0)",
    "def f(disk):\n    disk.unlink('x')",
    "self.file.open(1)",
]
HARMLESS_C = [
    "/* fsync(3) */ int f(void);",
    'void f(void) { puts("time(now)"); }',
    "int f(io *o) { return o->fsync(o, 3) + o.time(0); }",
    "int wd_time(int timeout);",
]


def plant(folder: Path, name: str, text: str) -> list[str]:
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return [f"{found.path} {found.kind}" for found in lint_calls.findings(folder)]


@pytest.mark.parametrize("kind", PLANTED_PYTHON)
def test_a_planted_call_in_python_is_caught(kind, tmp_path):
    for number, text in enumerate(PLANTED_PYTHON[kind]):
        for folder in ("wheel/engine", "wal", "server"):
            found = plant(tmp_path / f"{number}{folder}", f"{folder}/x.py", text)
            assert set(found) == {f"{folder}/x.py {kind}"}, text


@pytest.mark.parametrize("kind", PLANTED_C)
def test_a_planted_call_in_c_is_caught(kind, tmp_path):
    for number, text in enumerate(PLANTED_C[kind]):
        assert plant(tmp_path / str(number), "csrc/wd_x.c", text) == [f"csrc/wd_x.c {kind}"], text


def test_inputs_and_look_alikes_are_not_caught(tmp_path):
    for number, text in enumerate(HARMLESS_PYTHON):
        assert plant(tmp_path / f"p{number}", "wheel/x.py", text) == [], text
    for number, text in enumerate(HARMLESS_C):
        assert plant(tmp_path / f"c{number}", "csrc/wd_x.c", text) == [], text


def test_a_planted_call_fails_the_command_and_names_the_line(tmp_path, monkeypatch, capsys):
    for folder in ("wheel", "csrc", "server"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "csrc" / "wd_planted.c").write_text("\n\nint64_t t = time(NULL);\n")
    monkeypatch.setattr("sys.argv", ["lint_calls", str(tmp_path)])
    assert lint_calls.main() == 1
    assert "csrc/wd_planted.c:3: clock call time" in capsys.readouterr().out


# ---------------------------------------------------------------- continuous integration


def test_the_suites_of_ci_fit_into_twelve_minutes():
    lines = (ROOT / ".ci" / "suites.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    assert [row[0] for row in rows] == ["setup", "test", "lint", "asan"]
    assert sum(int(row[1]) for row in rows) <= 720
    assert all(row[2].startswith("make ") for row in rows)


def test_every_target_of_make_is_listed_by_help():
    text = (ROOT / "Makefile").read_text()
    (listed,) = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    phony = set(listed.split()) - {"\\"}
    helped = set(re.findall(r"^([a-z-]+):.*## .+$", text, re.MULTILINE))
    assert helped == {name for name in phony if not name.startswith("lint-")}
