"""What the documents show is run, and what they list is compared with the code."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.commands.serve import serve_command
from server.cron_commands import CODES, SUBCOMMANDS
from server.cron_words import SET_OPTIONS
from tests.console import Shell, steps
from tests.docs import ROOT, blocks, play
from tests.process import Server
from wheel.engine.core import command_table
from wheel.errors import BY_CODE
from wheeld import COMMANDS

README = ROOT / "README.md"
PROTOCOL = ROOT / "PROTOCOL.md"
SCHEDULES = ROOT / "docs" / "schedules.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
DOCUMENTS = sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md"))


def section(path: Path, title: str) -> str:
    """Return a document's text under a heading, up to the next one of any level."""
    _, found, rest = path.read_text(encoding="utf-8").partition(f" {title}\n")
    assert found, f"{path.name} has no section {title!r}"
    return re.split(r"^#{1,4} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


# ---------------------------------------------------------------- PROTOCOL.md


@pytest.mark.parametrize("block", blocks(PROTOCOL, "wire"), ids=lambda block: f"line{block.line}")
def test_a_transcript_of_the_protocol_page_is_what_the_server_says(block):
    play(block)


def test_every_command_stands_on_the_protocol_page():
    text = PROTOCOL.read_text(encoding="utf-8")
    missing = [
        syntax.name for syntax in command_table() if not re.search(rf"`{syntax.name}\b[^`]*`", text)
    ]
    assert missing == []


@pytest.mark.parametrize("name", ["SCHEDULE", "LEASE", "HANDLER"])
def test_every_option_that_a_usage_names_stands_in_its_section(name):
    (usage,) = [syntax.usage for syntax in command_table() if syntax.name == name]
    title = {"HANDLER": "HANDLERS, HANDLER"}.get(name, name)
    words = set(re.findall(r"\b[A-Z]{2,}\b", usage))
    assert words <= set(re.findall(r"\b[A-Z]{2,}\b", section(PROTOCOL, title)))


def test_every_subcommand_of_cron_stands_on_the_page_with_its_options():
    text = section(PROTOCOL, "6. Schedules") + section(PROTOCOL, "CRON SET")
    for name, (usage, _) in SUBCOMMANDS.items():
        (row,) = re.findall(rf"^\| `(CRON {name}\b[^`]*)` \|", text, re.MULTILINE)
        wanted = set(re.findall(r"\b[A-Z]{2,}\b", usage))
        assert wanted <= set(re.findall(r"\b[A-Z]{2,}\b", text if name == "SET" else row)), name
    options = set(re.findall(r"\b[A-Z]{3,}\b", section(PROTOCOL, "CRON SET")))
    assert set(SET_OPTIONS) - {"TZ"} <= options


def codes_in_code() -> set[str]:
    """Return every error code that the server can send."""
    found: set[str] = set()
    for path in (ROOT / "csrc").glob("*.c"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'\b(?:wd_)?(?:refuse|reply_error)\([^;"]*"([A-Z_]+)"', text))
    for path in (ROOT / "server").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'\b(?:RefusedError|ReplyError)\(\s*"([A-Z_]+)"', text))
    return found | {code for _, code in CODES}


def test_every_error_code_is_explained_and_those_not_sent_yet_are_named():
    text = section(PROTOCOL, "3. Errors")
    table, _, rest = text.partition("\nNot sent by this version")
    explained = {
        code
        for row in re.findall(r"^\| ((?:`[A-Z_]+` ?)+) \|", table, re.MULTILINE)
        for code in re.findall(r"`([A-Z_]+)`", row)
    }
    not_sent = set(re.findall(r"`([A-Z_]+)`", rest.partition("\n\n")[0]))
    sent = codes_in_code()
    assert {"SYNTAX", "STALE", "WRONGPASS", "LOADING", "ERR"} <= sent  # the search finds something
    assert sent == explained - not_sent
    assert set(BY_CODE) <= explained


def constants() -> dict[str, int]:
    """Return the numeric constants of the C headers."""
    found: dict[str, int] = {}
    for path in (ROOT / "csrc").glob("*.h"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for name, value in re.findall(r"\b(WD_\w+) = ([0-9* ]+)[,\n}]", text):
            number = 1
            for factor in value.split("*"):
                number *= int(factor)
            found[name] = number
        for name, value in re.findall(r"#define (WD_\w+) +UINT32_C\((\d+)\)", text):
            found[name] = int(value)
    return found


LIMITS = {
    "inline line": "{WD_INLINE_BYTES_MAX:KiB} KiB",
    "arguments of a command": "{WD_ARGS_MAX:,}",
    "one argument": "{WD_BULK_BYTES_MAX:MiB} MiB",
    "one command": "{WD_COMMAND_BYTES_MAX:MiB} MiB",
    "before AUTH": "{WD_PREAUTH_ARGS_MAX} arguments, {WD_PREAUTH_BYTES_MAX:KiB} KiB, "
    "{WD_PREAUTH_LINE_BYTES_MAX:KiB} KiB in a line, {WD_PREAUTH_MS:s} s",
    "META": "1 to {WD_META_BYTES_MAX:,} bytes",
    "ONCE": "1 to {WD_ONCE_BYTES_MAX} bytes",
    "result of DONE, RESULT of FAIL": "{WD_RESULT_BYTES_MAX:,} bytes",
    "ERROR text": "{WD_ERROR_BYTES_MAX:,} bytes",
    "WINDOW": "{WD_WINDOW_MS_MAX:h} h",
    "LEASE, TIMEOUT": "{WD_SPAN_MS_MAX:days} days",
    "RETRIES, LOST": "{WD_RETRIES_MAX:,}",
    "COUNT of LEASE": "{WD_LEASE_COUNT_MAX:,}; {WD_PAGE_MAX}",
    "WAIT": "{WD_WAIT_MS_MAX:min} min",
    "payload of one LEASE": "{WD_LEASE_PAYLOAD_BYTES_MAX:KiB} KiB, and at least one job",
    "jobs, and": "{WD_MEMORY_PERCENT} % of `--maxmemory`",
    "handlers;": "{WD_HANDLERS_MAX:,} each",
    "replies that": "{WD_OUT_STOP_BYTES:MiB} MiB: no more commands are read; "
    "{WD_OUT_SOFT_BYTES:MiB} MiB for {WD_OUT_SOFT_MS:s} s, or {WD_OUT_HARD_BYTES:MiB} MiB",
    "pipelined": "{WD_UNDURABLE_COMMANDS_MAX:,} commands, {WD_UNDURABLE_BYTES_MAX:MiB} MiB",
}
UNITS = {
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "s": 1000,
    "h": 3_600_000,
    "min": 60_000,
    "days": 86_400_000,
}


class Limit(int):
    """A constant that can be written in a unit."""

    def __format__(self, spec: str) -> str:
        if spec not in UNITS:
            return format(int(self), spec)
        whole, rest = divmod(int(self), UNITS[spec])
        assert rest == 0
        return str(whole)


@pytest.mark.parametrize("what", LIMITS)
def test_a_limit_of_the_protocol_page_is_that_of_the_code(what):
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section(PROTOCOL, "Limits"), re.MULTILINE)
    (shown,) = [value for name, value in rows if name.startswith(what)]
    known = {name: Limit(value) for name, value in constants().items()}
    assert shown == LIMITS[what].format_map(known)


# ---------------------------------------------------------------- README.md


def test_every_option_of_serve_stands_in_the_readme_with_its_default():
    rows = dict(
        re.findall(
            r"^\| `(--[a-z-]+)[^`]*` \| ([^|]+) \|", section(README, "Options"), re.MULTILINE
        )
    )
    options = {option.opts[0]: option for option in serve_command.params}
    assert set(rows) == set(options)
    for name, option in options.items():
        if option.default not in (None, False) and isinstance(option.default, str):
            assert f"`{option.default}`" in rows[name]


def test_every_command_of_the_command_line_stands_in_the_readme():
    text = README.read_text(encoding="utf-8")
    assert [name for name in COMMANDS if not re.search(rf"`(?:wheeld )?{name}\b", text)] == []


def test_the_first_two_commands_are_make_words():
    first, *_ = blocks(README, "console")
    words = [command.removeprefix("make ") for command, _ in steps(first.text)]
    assert words == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words)


@pytest.fixture
def shell(tmp_path: Path, server: Server) -> Shell:
    """A shell in an empty folder with the server that the README starts in it."""
    server.data = tmp_path / "data"
    server.start()
    return Shell(folder=tmp_path, port=server.port)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "data")
    yield made
    made.close()


@pytest.mark.crash
@pytest.mark.parametrize("stand_in", [False, True], ids=["programs", "sockets"])
def test_the_readme_from_app_py_to_a_worker_by_hand_runs_as_shown(shell, stand_in):
    shell.stand_in = stand_in
    app, *_ = blocks(README, "python")
    assert app.text.startswith("import wheeld as wheel\n")
    assert len(list(filter(None, app.text.splitlines()))) == 5
    (shell.folder / "app.py").write_text(app.text)
    _, starts, *sessions = blocks(README, "console")
    (serve, _), (work, _) = steps(starts.text)
    assert serve == "wheeld serve --data ./data"  # the fixture's, but for the port
    worker = shell.start(work)
    try:
        for session in sessions:
            for command, documented in steps(session.text):
                shell.run(command, documented)
        assert worker.stdout is not None
        # Threads print a text and its line end apart, so lines may stand in one another's way.
        printed = "".join(worker.stdout.readline() for _ in range(3))
        assert sorted(re.findall("hello (Ada|Grace|Edsger)", printed)) == ["Ada", "Edsger", "Grace"]
    finally:
        worker.terminate()
        worker.communicate(timeout=60)


@pytest.mark.crash
def test_the_python_of_the_readme_gives_what_its_comments_say(shell):
    _, *programs = blocks(README, "python")
    found = 0
    for code in programs:
        said = re.findall(r"^([^#=\s][^#=\n]*?) +# (.+)$", code.text, re.MULTILINE)
        program = code.text
        for expression, comment in said:
            line = next(line for line in code.text.splitlines() if line.endswith(comment))
            program = program.replace(line, f"print(repr({expression}))")
        ast.parse(program)
        output = run_python(shell, program)
        for value, (_, comment) in zip(output.splitlines(), said, strict=True):
            assert re.match(rf"{re.escape(value)}(;|:|$)", comment), (value, comment)
        found += len(said)
    assert found == 5


# ---------------------------------------------------------------- docs/schedules.md


@pytest.mark.crash
def test_the_schedules_page_runs_as_shown(shell):
    """In the order of the page: each block of Python in one process, each command in a shell."""
    text = SCHEDULES.read_text(encoding="utf-8")
    found = sorted(
        [*blocks(SCHEDULES, "python"), *blocks(SCHEDULES, "console")], key=lambda block: block.line
    )
    assert len(found) == text.count("```python\n") + text.count("```console\n") >= 6
    header = ""
    for block in found:
        if block.language == "console":
            for command, documented in steps(block.text):
                shell.run(command, documented)
            continue
        said = re.findall(r"^([^#=\s][^#=\n]*?)  # ([^\n]+)$", block.text, re.MULTILINE)
        said = [(code, value) for code, value in said if "nightly" not in code]
        program = header + block.text
        for expression, comment in said:
            program = program.replace(f"{expression}  # {comment}", f"print(repr({expression}))")
        output = run_python(shell, program)
        for value, (_, comment) in zip(output.splitlines(), said, strict=True):
            assert re.match(rf"{re.escape(value)}(;|:|$)", comment), (value, comment)
        header = header or "import wheeld as wheel\n\n"


def run_python(shell: Shell, program: str) -> str:
    """Return what a program prints, run against the shell's server."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=shell.folder,
        env=shell.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------- ARCHITECTURE.md


def test_every_name_in_the_architecture_is_there():
    """Files, C functions and tests that it names exist; a name that was changed fails here."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "csrc").glob("*.[ch]"))
    modules = {path.stem for path in (ROOT / "csrc").glob("*.[ch]")}
    known = set(re.findall(r"\bwd_\w+", sources)) | modules
    assert sorted(set(re.findall(r"\bwd_\w+", text)) - known) == []
    tests = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")
    ) + "\n".join(path.name for path in (ROOT / "tests").rglob("*"))
    assert [name for name in re.findall(r"`(test_\w+)`", text) if name not in tests] == []
    files = re.findall(r"`((?:\w+/)+[\w.]+\.\w+)`", text)
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_every_module_of_the_core_has_its_place_in_the_layers():
    layers = ARCHITECTURE.read_text(encoding="utf-8").partition("csrc/    bottom to top:")[2]
    named = set(re.findall(r"\bwd_\w+", layers.partition("```")[0]))
    modules = {path.stem for path in (ROOT / "csrc").glob("wd_*.c")}
    assert modules - named - {"wd_crc32c_table"} == set()


def test_every_numbered_invariant_of_the_code_stands_in_the_table():
    heading = (ROOT / "csrc" / "wd_check.c").read_text(encoding="utf-8").partition("*/")[0]
    numbers = {int(number) for number in re.findall(r"^ \* +(\d+)\. ", heading, re.MULTILINE)}
    assert numbers == set(range(1, max(numbers) + 1))
    rows = re.findall(
        r"^\| I\d+ \|[^|]+\|([^|]*)\|", section(ARCHITECTURE, "Invariants"), re.MULTILINE
    )
    assert {int(number) for row in rows for number in re.findall(r"\d+", row)} == numbers


# ---------------------------------------------------------------- all of them


def anchors(path: Path) -> set[str]:
    """Return the anchors that a document's headings have on GitHub."""
    headings = re.findall(r"^#{1,6} (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        found = path.parent / name if name else path
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


def test_every_document_can_be_reached_from_the_readme():
    reached = set(re.findall(r"\]\(([\w/]+\.md)", README.read_text(encoding="utf-8")))
    assert reached == {str(path.relative_to(ROOT)) for path in DOCUMENTS} - {"README.md"}


def test_every_make_word_of_contributing_is_a_target():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    words = set(re.findall(r"`make (\w+)`", text))
    assert len(words) > 5
    assert [word for word in words if not re.search(rf"^{word}:", makefile, re.MULTILINE)] == []
