"""``wheeld cron`` against a server of a few scripted replies."""

import json
import sys

import pytest

import wheeld
from tests.unit.test_commands import Scripted

NEXT_MS = 1_798_099_200_000  # 2026-12-24T08:00:00Z
ENTRY = {
    "name": "weekly-digest",
    "version": 3,
    "rule": "0 9 * * 1",
    "tz": "Europe/Rome",
    "handler": "digest.send",
    "state": "active",
    "next_ms": NEXT_MS,
    "after": ["a", "b"],
    "note": None,
}
FIRES = [[NEXT_MS, "2026-12-24T09:00:00+01:00", NEXT_MS + 60_000]]
EXPLAINED = {
    "rule": "30 2 * * *",
    "tz": "America/New_York",
    "words": "At 02:30, every day",
    "next": [[NEXT_MS, "2026-12-24T03:00:00-05:00", NEXT_MS]],
    "remarks": ["2027-03-14: 02:30 does not exist"],
    "herd": "88 other schedules fire at that moment",
}


@pytest.fixture
def server(monkeypatch):
    scripted = Scripted()
    monkeypatch.setenv("WHEELD_URL", scripted.url)
    yield scripted
    scripted.close()


def run(server, *argv, replies, status=0):
    """Run a command; return what it asked, greeting and ONCE tokens left out."""
    server.replies["CRON"] = list(replies)
    server.asked.clear()
    assert wheeld.main(["cron", *argv]) == status
    asked = []
    for words in server.asked:
        at = words.index("ONCE") if "ONCE" in words else len(words)
        asked.append(words[1:at] + words[at + 2 :])
    return asked[1:]


def test_add_sends_what_was_typed(server, capsys):
    (asked,) = run(
        server, "add", "weekly-digest", "0 9 * * 1", "digest.send", '{"to":  "all"}',
        "--tz", "Europe/Rome", "--jitter", "5m", "--overlap", "queue_one", "--catch-up", "all",
        "--catch-up-window", "7d", "--after", "a", "--after", "b", "--backoff", "exp:15s:1h",
        "--timeout", "0s", "--if-version", "0", replies=[[1, "created", NEXT_MS]],
    )  # fmt: skip
    assert asked == [
        "SET", "weekly-digest", "0 9 * * 1", "digest.send", '{"to":  "all"}', "TZ", "Europe/Rome",
        "JITTER", "300000", "OVERLAP", "queue_one", "CATCHUP", "all", "WINDOW", "604800000",
        "AFTER", "2", "a", "b", "IFVERSION", "0", "BACKOFF", "exp", "15000", "3600000",
        "TIMEOUT", "0",
    ]  # fmt: skip
    row = capsys.readouterr().out.rstrip("\n").split("\t")
    assert row == ["weekly-digest", "created", "1", "2026-12-24T08:00:00Z"]


def test_add_without_next_time_prints_none(server, capsys):
    run(server, "add", "r", "-", "h", "--after", "a", "--json", replies=[[2, "changed", None]])
    assert json.loads(capsys.readouterr().out) == {
        "name": "r",
        "word": "changed",
        "version": 2,
        "next": None,
    }


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["add", "n", "@daily"], "Missing argument 'HANDLER'"),
        (["add", "n", "@daily", "h", "{user: 7}"], "the payload is not JSON"),
        (["add", "n", "@daily", "h", "--overlap", "queue"], "'queue' is not one of"),
        (["add", "n", "@daily", "h", "--backoff", "15s"], "write exp:15s:1h"),
        (["add", "n", "@daily", "h", "--start", "2026-12-24T09:00"], "has no time zone"),
        (["add", "n", "-", "h"], "nothing to wait for"),
        (["trigger", "n", "--at", "now", "--in", "5m"], "--at ISO or --in DUR"),
        (["mark", "n@x", "done"], "'done' is not one of"),
        (["explain", "@daily", "--count", "0"], "not in the range"),
        (["backfill", "n", "2026-12-01T00:00Z"], "Missing argument 'TO'"),
    ],
)
def test_a_wrong_call_is_refused_with_status_2(server, capsys, argv, says):
    run(server, *argv, replies=[ENTRY], status=2)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (b'-CRON rule "61 * * * *" at position 0: x\r\n', 2),
        (b"-CYCLE a -> b -> a: each waits for the next\r\n", 5),
        (b"-CONFLICT version 2, not 1\r\n", 5),
        (b"-UNKNOWN no schedule up\r\n", 3),
        (b"-NOPERM viewer\r\n", 5),
    ],
)
def test_a_refusal_of_the_server_has_a_status_of_its_kind(server, capsys, reply, status):
    run(server, "add", "n", "61 * * * *", "h", replies=[reply], status=status)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Error: " + reply[1:].decode().split()[0])


def test_list_follows_the_cursor_and_tells_of_more(server, capsys):
    pages = [["+b", [ENTRY, ENTRY]], ["0", [ENTRY]]]
    asked = run(server, "list", "week", replies=pages)
    assert [words[:3] for words in asked] == [["LIST", "PREFIX", "week"]] * 2
    assert [words[-1] for words in asked] == ["0", "+b"]
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 3
    assert rows[0] == [
        "weekly-digest",
        "0 9 * * 1",
        "Europe/Rome",
        "digest.send",
        "active",
        "2026-12-24T08:00:00Z",
    ]
    run(server, "list", "--limit", "2", "--json", replies=pages)
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (len(document["items"]), document["more"]) == (2, True)


def test_show_prints_every_field_with_times_as_times(server, capsys):
    run(server, "show", "weekly-digest", replies=[ENTRY])
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert lines["next"] == "2026-12-24T08:00:00Z"
    assert (lines["after"], lines["note"]) == ("a, b", "")
    run(server, "show", "nobody", replies=[None], status=3)
    assert "'nobody'" in capsys.readouterr().err


def test_explain_in_a_pipe_is_rows_and_in_a_terminal_a_page(server, capsys, monkeypatch):
    asked = run(
        server, "explain", "30 2 * * *", "--tz", "America/New_York", "--name", "n",
        "--from", "2026-12-24T00:00Z", "--dst", "literal", replies=[EXPLAINED],
    )  # fmt: skip
    assert asked == [
        ["EXPLAIN", "30 2 * * *", "TZ", "America/New_York", "FROM", "1798070400000",
         "DST", "literal", "NAME", "n", "COUNT", "3"],
    ]  # fmt: skip
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["words", "At 02:30, every day (America/New_York)"],
        ["next", "2026-12-24T03:00:00-05:00", "2026-12-24T08:00:00Z"],
        ["care", "2027-03-14: 02:30 does not exist"],
        ["herd", "88 other schedules fire at that moment"],
    ]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    run(server, "explain", "30 2 * * *", replies=[EXPLAINED])
    page = capsys.readouterr().out.splitlines()
    assert page[0] == "At 02:30, every day (America/New_York)"
    assert page[1].startswith("  next  Thu 2026-12-24 03:00 -05:00   08:00 UTC   ")
    assert page[2:] == [
        "  care  2027-03-14: 02:30 does not exist",
        "  herd  88 other schedules fire at that moment",
    ]
    run(server, "explain", "30 2 * * *", "--json", replies=[EXPLAINED])
    document = json.loads(capsys.readouterr().out)
    assert document["next"] == [
        {"at": "2026-12-24T08:00:00Z", "local": "2026-12-24T03:00:00-05:00",
         "due": "2026-12-24T08:00:00Z"},
    ]  # fmt: skip


def test_next_tells_local_time_and_utc(server, capsys):
    asked = run(server, "next", "n", "--count", "1", replies=[ENTRY, {"next": FIRES}])
    assert asked == [["GET", "n"], ["NEXT", "weekly-digest", "COUNT", "1"]]
    row = capsys.readouterr().out.rstrip("\n").split("\t")
    assert row[:2] == ["2026-12-24T09:00:00+01:00", "2026-12-24T08:00:00Z"]


@pytest.mark.parametrize(
    ("argv", "asked", "reply", "printed"),
    [
        (["pause", "n", "--note", "why"], ["PAUSE", "weekly-digest", "NOTE", "why"],
         b"+OK\r\n", "n\tpaused"),
        (["resume", "n"], ["RESUME", "weekly-digest"], b"+OK\r\n", "n\tresumed"),
        (["trigger", "n", "--in", "5m", "--force"],
         ["TRIGGER", "weekly-digest", "AT", "+300000", "FORCE"], "n@x!1", "n@x!1\ttriggered"),
        (["delete", "n", "--yes", "--force"], ["DEL", "weekly-digest", "FORCE"], b"+OK\r\n",
         "n\tdeleted"),
        (["rerun", "n", "2026-12-24", "--downstream"],
         ["RERUN", "weekly-digest", "2026-12-24", "DOWNSTREAM"], ["n@x~1"], "n@x~1\tmade"),
        (["backfill", "n", "2026-12-24T00:00Z", "now", "--dry-run", "--reverse", "--active", "2"],
         ["BACKFILL", "weekly-digest", "1798070400000", "now", "DRY", "REVERSE", "ACTIVE", "2"],
         ["n@y", "n@x"], "n@y\twould be made\nn@x\twould be made"),
    ],
)  # fmt: skip
def test_what_is_done_to_a_schedule(server, capsys, argv, asked, reply, printed):
    assert run(server, *argv, replies=[ENTRY, reply]) == [["GET", "n"], asked]
    assert capsys.readouterr().out == printed + "\n"
    run(server, *argv, "--json", replies=[ENTRY, reply])
    assert json.loads(capsys.readouterr().out)["name"] == "n"


@pytest.mark.parametrize(
    ("words", "outcome", "status", "word"),
    [
        ([], "running", 0, "triggered"),
        ([], "skipped", 5, "skipped"),
        (["--force"], "skipped", 0, "triggered"),
        (["--in", "5m"], "skipped", 0, "triggered"),
    ],
)
def test_a_trigger_that_is_skipped_is_not_told_as_triggered(
    server, capsys, words, outcome, status, word
):
    """It printed `triggered` and exited 0, and the run was nowhere but in the history."""
    other = {"run": "n@w", "nominal_ms": NEXT_MS, "date": "2026-12-24", "outcome": "skipped"}
    replies = [ENTRY, "n@x", ["0", [{**other, "run": "n@x", "outcome": outcome}, other]]]
    run(server, "trigger", "n", *words, replies=replies, status=status)
    said = capsys.readouterr()
    assert said.out == f"n@x\t{word}\n"
    assert ("--force runs it" in said.err) == (word == "skipped")


def test_mark_needs_the_run_alone(server, capsys):
    asked = run(server, "mark", "n@x", "succeeded", "--note", "by hand", replies=[b"+OK\r\n"])
    assert asked == [["MARK", "n@x", "succeeded", "NOTE", "by hand"]]
    assert capsys.readouterr().out == "n@x\tmarked succeeded\n"


def test_delete_asks_before_it_deletes(server, capsys, monkeypatch):
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _text: "n")
    assert run(server, "delete", "n", replies=[ENTRY], status=1) == []
    assert "nothing was changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [(EOFError, 1, "--yes does not ask"), (KeyboardInterrupt, 130, "")],
)
def test_without_an_answer_nothing_is_deleted(server, capsys, monkeypatch, answer, status, says):
    """No terminal is no Ctrl-C: a script has to learn what to write."""

    def ask(_text):
        raise answer

    monkeypatch.setattr("click.termui.visible_prompt_func", ask)
    assert run(server, "delete", "n", replies=[ENTRY], status=status) == []
    assert says in capsys.readouterr().err


def test_runs_tell_why_one_is_dead(server, capsys):
    row = {"run": "n@x", "nominal_ms": NEXT_MS, "date": "2026-12-24", "outcome": "dead"}
    row |= {"reason": "failed", "text": "exit 3\nno such file"}
    run(server, "runs", "n", replies=[ENTRY, ["0", [row]]])
    assert capsys.readouterr().out == "n@x\t2026-12-24\tdead\t1\tfailed: exit 3\n"


def test_runs_show_a_stretch_of_dropped_times_as_one_row(server, capsys):
    row = {"run": "n@x", "nominal_ms": NEXT_MS, "date": "2026-12-24", "outcome": "succeeded"}
    many = {**row, "outcome": "missed", "reason": "down", "last_ms": NEXT_MS + 60_000, "count": 2}
    asked = run(server, "runs", "n", "--date", "2026-12-24", replies=[ENTRY, ["0", [row, many]]])
    assert asked[1][:4] == ["RUNS", "weekly-digest", "DATE", "2026-12-24"]
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["n@x", "2026-12-24", "succeeded", "1", ""],
        ["n@x .. 2026-12-24T08:01:00Z", "2026-12-24", "missed", "2", "down"],
    ]
