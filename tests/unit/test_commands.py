"""The command line of the user's side, against a server of a few scripted replies."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import wheeld
from wheel.commands.lazy import LazyGroup
from wheel.commands.output import (
    exit_status,
    from_now,
    iso,
    one_line,
    print_json,
    print_table,
    span,
)
from wheel.errors import (
    AuthError,
    BusyError,
    Conflict,
    ConnectError,
    CycleError,
    NaiveDatetimeError,
    NotFound,
    ServerFullError,
    WheeldError,
    WheeldTimeout,
)

ID = "4611686018427387905"
STORE = "0" * 31 + "7"


def bulk(value):
    data = str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def reply_of(value):
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(reply_of, value))
    if isinstance(value, int):
        return b":%d\r\n" % value
    return value if isinstance(value, bytes) else bulk(value)


class Scripted:
    """A server on a free port that answers each command from a list and remembers what it got."""

    def __init__(self):
        self.replies = {"HELLO": [{"server": "wheeld", "store": STORE, "term": 1}]}
        self.asked = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.url = f"wheeld://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self):
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, peer.makefile("rb") as lines:
                while head := lines.readline():
                    words = []
                    for _ in range(int(head[1:])):
                        size = int(lines.readline()[1:])
                        words.append(lines.read(size + 2)[:-2].decode())
                    self.asked.append(words)
                    script = self.replies[words[0]]
                    peer.sendall(reply_of(script.pop(0) if len(script) > 1 else script[0]))

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        assert not self._thread.is_alive()


@pytest.fixture
def server(monkeypatch):
    scripted = Scripted()
    monkeypatch.setenv("WHEELD_URL", scripted.url)
    yield scripted
    scripted.close()


def sent(server):
    """Give what was asked after the greeting, without the ONCE token that the client draws."""
    (words,) = (words for words in server.asked if words[0] != "HELLO")
    if "ONCE" in words:
        at = words.index("ONCE")
        words = words[:at] + words[at + 2 :]
    return words


# ---------------------------------------------------------------- schedule


def test_schedule_sends_what_was_typed_and_prints_the_id_first(server, capsys):
    server.replies["SCHEDULE"] = [[ID, "created", "scheduled"]]
    text = '{"payment": 42,  "note": "é"}'
    argv = ["schedule", "--in", "24h", "payments.retry", text, "--key", "retry-42"]
    assert wheeld.main([*argv, "--priority", "3", "--retries", "5", "--timeout", "2m"]) == 0
    assert sent(server)[:4] == ["SCHEDULE", "payments.retry", "+86400000", text]
    options = sent(server)[4:]
    pairs = dict(zip(options[::2], options[1::2], strict=True))
    expected = {"KEY": "retry-42", "PRIORITY": "3", "RETRIES": "5", "TIMEOUT": "120000"}
    assert pairs == expected
    assert capsys.readouterr().out.split("\t")[:3] == [ID, "created", "payments.retry"]


def test_schedule_at_takes_a_moment_with_an_offset(server, capsys):
    server.replies["SCHEDULE"] = [ID]
    assert wheeld.main(["schedule", "--at", "2026-12-24T09:00:00+01:00", "mail", "--json"]) == 0
    assert sent(server)[2] == "1798099200000"
    document = json.loads(capsys.readouterr().out)
    assert document["id"] == ID
    assert document["due"] == "2026-12-24T08:00:00Z"
    assert document["uid"] == f"{STORE}-{ID}"


def test_schedule_reads_the_payload_from_a_file_and_from_the_input(
    server, capsys, tmp_path, monkeypatch
):
    server.replies["SCHEDULE"] = [ID]
    path = tmp_path / "payload.json"
    path.write_text('{"from": "file"}\n')
    assert wheeld.main(["schedule", "--in", "1s", "h", f"@{path}"]) == 0
    assert sent(server)[3] == '{"from": "file"}'
    server.asked.clear()
    with path.open() as opened:
        monkeypatch.setattr("sys.stdin", opened)
        assert wheeld.main(["schedule", "--in", "1s", "h", "-"]) == 0
    assert sent(server)[3] == '{"from": "file"}'
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["h"], "--at ISO or --in DUR"),
        (["--at", "2026-12-24T09:00:00Z", "--in", "1s", "h"], "--at ISO or --in DUR"),
        (["--at", "2026-12-24T09:00:00", "h"], "has no time zone"),
        (["--in", "1 fortnight", "h"], "is not a duration"),
        (["--in", "1s", "h", "{user: 7}"], "the payload is not JSON"),
        (["--in", "1s", "h", "@missing.json"], "missing.json: No such file"),
        (["--in", "1s", "h", "--on-conflict", "maybe"], "'maybe' is not one of"),
    ],
)
def test_schedule_refuses_before_it_connects(server, capsys, argv, says):
    assert wheeld.main(["schedule", *argv]) == 2
    assert says in capsys.readouterr().err
    assert server.asked == []


# ---------------------------------------------------------------- jobs


def job(**fields):
    return {"id": ID, "handler": "payments.retry", "state": "scheduled", "due_ms": 1798099200000,
            "attempt": 0, "key": "retry-42", **fields}  # fmt: skip


def test_jobs_show_prints_every_field_with_times_as_times(server, capsys):
    server.replies["JOB"] = [job(meta="a\tb\x1b[31m", worker=None)]
    assert wheeld.main(["jobs", "show", "retry-42"]) == 0
    assert sent(server) == ["JOB", "retry-42"]
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert lines["uid"] == f"{STORE}-{ID}"
    assert lines["due"] == "2026-12-24T08:00:00Z"
    assert lines["meta"] == r"a\tb\x1b[31m"
    assert lines["worker"] == ""


def test_jobs_show_writes_attempts_for_people(server, capsys):
    """They were a Python list of milliseconds, and the times of the rest were called `due_ms`."""
    attempts = [[1, 1798099200000, 1798099200013, "failed"], [2, 1798099260000, 1798099262000, "x"]]
    server.replies["JOB"] = [job(attempts=attempts, payload=b"$2\r\n\xff\x00\r\n")]
    assert wheeld.main(["jobs", "show", "retry-42"]) == 0
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert lines["attempt 1"] == "failed 2026-12-24T08:00:00Z after 13 ms"
    assert lines["attempt 2"] == "x 2026-12-24T08:01:00Z after 2 s"
    assert lines["payload"] == r"\xff\x00"
    assert not [name for name in lines if name in {"due_ms", "created_ms", "attempts"}]


def test_jobs_show_of_an_unknown_job_exits_3(server, capsys):
    server.replies["JOB"] = [None]
    assert wheeld.main(["jobs", "show", "nobody"]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "'nobody'" in said.err


def test_jobs_list_translates_the_filter_and_follows_the_cursor(server, capsys):
    server.replies["JOBS"] = [
        ["77", []],
        ["99", [job(), job(key=None)]],
        ["0", [job(state="ready")]],
    ]
    words = "handler:payments.retry state:scheduled key:pay-* from:now to:+1h"
    assert wheeld.main(["jobs", "list", words]) == 0
    filters = ["HANDLER", "payments.retry", "STATE", "scheduled", "KEYPREFIX", "pay-"]
    filters += ["FROM", "now", "TO", "+1h"]
    pages = [asked for asked in server.asked if asked[0] == "JOBS"]
    assert [page[1:-4] for page in pages] == [filters] * 3
    assert [page[-4:] for page in pages] == [
        ["COUNT", "50", "CURSOR", "0"],
        ["COUNT", "50", "CURSOR", "77"],
        ["COUNT", "48", "CURSOR", "99"],
    ]
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[3] for row in rows] == ["scheduled", "scheduled", "ready"]
    due = "2026-12-24T08:00:00Z"
    assert rows[0] == [ID, "payments.retry", due, "scheduled", "0", "retry-42", ""]


def test_jobs_list_tells_why_a_job_is_dead(server, capsys, monkeypatch):
    why = "ValueError: " + "x" * 80 + "\nsecond line"
    server.replies["JOBS"] = [["0", [job(state="dead", error=why)]]]
    assert wheeld.main(["jobs", "list"]) == 0
    assert capsys.readouterr().out.rstrip("\n").split("\t")[6] == "ValueError: " + "x" * 80
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert wheeld.main(["jobs", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("  ValueError: " + "x" * 45 + "...")


def test_jobs_list_stops_at_the_limit_and_says_how_to_go_on(server, capsys):
    server.replies["JOBS"] = [["99", [job(), job()]]]
    assert wheeld.main(["jobs", "list", "--limit", "2"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert "--cursor 99" in said.err
    server.replies["JOBS"] = [["99", [job(), job()]]]
    assert wheeld.main(["jobs", "list", "--limit", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["next"] == "99"
    assert [item["id"] for item in document["items"]] == [ID, ID]


def test_jobs_list_takes_options_as_well_as_words(server, capsys):
    """A handler's name may have blanks, which a word of the filter cannot."""
    server.replies["JOBS"] = [["0", []]]
    words = ["--handler", "a b", "--state", "dead", "--key-prefix", "k 1", "--to", "+1h30m"]
    assert wheeld.main(["jobs", "list", "from:now", *words]) == 0
    asked = ["JOBS", "FROM", "now", "HANDLER", "a b", "STATE", "dead", "KEYPREFIX", "k 1"]
    assert sent(server)[:-4] == [*asked, "TO", "+5400000"]
    server.asked.clear()
    assert wheeld.main(["jobs", "list", "state:dead", "--state", "ready"]) == 2
    assert "both say state" in capsys.readouterr().err
    assert server.asked == []


@pytest.mark.parametrize("word", ["handlers:x", "state:", "ready", "key:whole"])
def test_jobs_list_refuses_a_word_it_does_not_know(server, capsys, word):
    assert wheeld.main(["jobs", "list", word]) == 2
    assert repr(word) in capsys.readouterr().err
    assert server.asked == []


# ---------------------------------------------------------------- exit statuses


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WheeldError(), 1),
        (NaiveDatetimeError(), 2),
        (NotFound(), 3),
        (ConnectError(), 4),
        (BusyError(), 4),
        (Conflict(), 5),
        (CycleError(), 5),
        (AuthError(), 5),
        (ServerFullError(), 5),
        (WheeldTimeout(), 6),
    ],
)
def test_exit_status_tells_a_script_what_happened(error, status):
    assert exit_status(error) == status


def test_a_refusal_of_the_server_is_one_line_and_exits_5(server, capsys):
    server.replies["SCHEDULE"] = [b"-OOM no room for one more job: --maxmemory is used up\r\n"]
    assert wheeld.main(["schedule", "--in", "1s", "h"]) == 5
    error = "Error: OOM no room for one more job: --maxmemory is used up\n"
    assert capsys.readouterr().err == error


def test_no_server_exits_4_and_names_the_address(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("WHEELD_URL", f"wheeld://127.0.0.1:{port}")
    assert wheeld.main(["jobs", "show", "7"]) == 4
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_an_unknown_command_exits_2(capsys):
    assert wheeld.main(["shedule"]) == 2
    assert "No such command 'shedule'" in capsys.readouterr().err


# ---------------------------------------------------------------- every command


def leaves(command, path):
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        return [(path, command)]
    return [leaf for name, sub in subcommands.items() for leaf in leaves(sub, [*path, name])]


@pytest.mark.parametrize("name", wheeld.COMMANDS)
def test_every_command_has_help_with_two_examples_and_json(name, capsys):
    command = wheeld._load(wheeld.COMMANDS[name][0])
    for path, leaf in leaves(command, [name]):
        assert wheeld.main([*path, "-h"]) == 0
        text = capsys.readouterr().out
        examples = text.partition("Examples:")[2]
        assert examples.count(f"wheeld {' '.join(path)}") >= 2, path
        if name not in {"serve", "work"}:  # these run until they are told to stop
            assert "--json" in {option for param in leaf.params for option in param.opts}, path


def test_the_list_of_commands_imports_none_of_them(capsys):
    def load(target):
        raise AssertionError(target)

    from wheel.commands.lazy import Lazy

    table = {"x": Lazy(target="m:x", summary="Do x.")}
    group = LazyGroup(table, load, about="All.", sections={"Some": ["x"]})
    with pytest.raises(SystemExit):
        group.main(["-h"], prog_name="wheeld")
    assert "Some:\n  x  Do x." in capsys.readouterr().out


def test_every_command_stands_in_one_section_of_the_list():
    listed = [name for names in wheeld.SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(wheeld.COMMANDS)


@pytest.mark.parametrize("name", wheeld.COMMANDS)
def test_no_line_of_a_list_of_commands_is_cut(name, monkeypatch, capsys):
    """`cron -h` told "Make the schedule NAME, or change it; the same again..."."""
    monkeypatch.setenv("COLUMNS", "80")
    command = wheeld._load(wheeld.COMMANDS[name][0])
    assert wheeld.main([name, "-h"]) == 0
    text = capsys.readouterr().out
    assert "..." not in text.partition("Commands:")[2]
    assert not getattr(command, "commands", None) or "Commands:" in text


def test_a_command_that_is_misspelt_is_told_with_what_was_meant(capsys):
    assert wheeld.main(["job", "list"]) == 2
    assert "No such command 'job'. Did you mean 'jobs'?" in capsys.readouterr().err
    assert wheeld.main(["cron", "lst"]) == 2
    assert "No such command 'lst'. Did you mean 'list'?" in capsys.readouterr().err
    assert wheeld.main(["cron", "help"]) == 2
    assert "Did you mean 'wheeld cron -h'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"), [("wheeld jo", "jobs"), ("wheeld jobs sh", "show"), ("wheeld nix ", "jobs")]
)
def test_a_shell_can_complete_commands(monkeypatch, capsys, words, found):
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    monkeypatch.setenv("_WHEELD_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit) as left:
        wheeld.main([])
    said = capsys.readouterr()
    assert f"plain,{found}\n" in said.out
    assert (left.value.code, said.err) == (0, "")


def test_version_is_an_option_as_well(capsys):
    """What people try first, and what packagers' scripts ask."""
    assert wheeld.main(["version"]) == 0
    told = capsys.readouterr().out
    assert wheeld.main(["--version"]) == 0
    assert capsys.readouterr().out == told


HEAVY = """
import sys, wheeld
for command in ("schedule", "cron", "jobs", "version"):
    assert wheeld.main([command, "-h"]) == 0
heavy = {"_wheeld", "asyncio", "cffi", "server", "ssl", "structlog", "wal", "wheel.worker"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_client_commands_load_nothing_heavy():
    """They run in loops of shell scripts: the start is most of their cost."""
    env = {**os.environ, "PYTHONPATH": str(Path(wheeld.__file__).parent)}
    subprocess.run([sys.executable, "-P", "-c", HEAVY], env=env, check=True, capture_output=True)


# ---------------------------------------------------------------- words for people


@pytest.mark.parametrize(
    ("length_ms", "words"),
    [
        (0, "0 ms"),
        (40, "40 ms"),
        (2_500, "2 s"),
        (60_000, "1 min"),
        (23 * 3_600_000 + 59 * 60_000 + 999, "23 h 59 min"),
        (86_400_000 * 3 + 59_999, "3 d"),
    ],
)
def test_span_is_in_the_two_largest_units(length_ms, words):
    assert span(length_ms) == words


def test_from_now_looks_both_ways():
    assert from_now(12_000, 10_000) == "in 2 s"
    assert from_now(10_000, 12_000) == "2 s ago"


def test_iso_is_utc_and_keeps_milliseconds():
    assert iso(1_798_099_200_000) == "2026-12-24T08:00:00Z"
    assert iso(1_798_099_200_007) == "2026-12-24T08:00:00.007Z"
    assert iso(1 << 48).endswith(" ms")


def test_json_has_nothing_that_could_drive_a_terminal(capsys):
    document = {"key": "a\u202eb\x9b2J", "name": "é日", "flag": "\U000e0001"}
    print_json(document)
    text = capsys.readouterr().out
    assert text.rstrip("\n").isprintable()
    assert "é日" in text
    assert json.loads(text) == document


def test_a_table_is_aligned_by_cells_of_the_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_table(("A", "B"), [("日本", "x"), ("e\u0301", "y"), ("abcd", "z")])
    assert capsys.readouterr().out == "A     B\n日本  x\ne\u0301     y\nabcd  z\n"


def test_one_line_escapes_what_could_drive_a_terminal():
    assert one_line("a\tb\n\x1b[2Jé") == r"a\tb\n\x1b[2Jé"
