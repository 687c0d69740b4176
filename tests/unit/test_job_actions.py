"""``wheeld jobs cancel`` and its kin, against a server of a few scripted replies."""

import json

import pytest

import wheeld
from tests.unit.test_commands import Scripted

UNKNOWN = b'-UNKNOWN no job "nope"\r\n'
CONFLICT = b'-CONFLICT job "b" is not in a state that allows it\r\n'


@pytest.fixture
def server(monkeypatch):
    scripted = Scripted()
    monkeypatch.setenv("WHEELD_URL", scripted.url)
    yield scripted
    scripted.close()


def asked(server):
    return [words for words in server.asked if words[0] != "HELLO"]


@pytest.mark.parametrize(
    ("words", "reply", "command", "printed"),
    [
        (["cancel", "a"], [b"+CANCELLED\r\n"], ["CANCEL", "a"], "a\tcancelled"),
        (["requeue", "a"], [b"+OK\r\n"], ["REQUEUE", "a"], "a\trequeued"),
        (["purge", "a"], [b"+OK\r\n"], ["PURGE", "a"], "a\tpurged"),
        (["run", "a"], b"+OK\r\n", ["RUN", "a"], "a\tdue now"),
        (
            ["reschedule", "a", "+1h30m"],
            b"+OK\r\n",
            ["RESCHEDULE", "a", "+5400000"],
            "a\trescheduled",
        ),
    ],
)
def test_what_is_done_to_a_job(server, capsys, words, reply, command, printed):
    server.replies[command[0]] = [reply]
    assert wheeld.main(["jobs", *words]) == 0
    assert asked(server) == [command]
    assert capsys.readouterr().out == printed + "\n"


def test_jobs_of_one_call_are_told_of_apart_and_in_their_order(server, capsys):
    server.replies["CANCEL"] = [[b"+MARKED\r\n", UNKNOWN, b"+ENDED\r\n"]]
    assert wheeld.main(["jobs", "cancel", "a", "nope", "c"]) == 3
    said = capsys.readouterr()
    assert said.out == "a\tmarked\nc\tended\n"
    assert said.err == 'Error: UNKNOWN no job "nope"\n'
    assert wheeld.main(["jobs", "cancel", "a", "nope", "c", "--json"]) == 3
    items = json.loads(capsys.readouterr().out)["items"]
    assert [(item["job"], item["word"], item["error"]) for item in items] == [
        ("a", "marked", None),
        ("nope", None, 'UNKNOWN no job "nope"'),
        ("c", "ended", None),
    ]


def test_a_job_that_cannot_be_run_keeps_no_other_from_it(server, capsys):
    server.replies["RUN"] = [CONFLICT, UNKNOWN, b"+OK\r\n"]
    assert wheeld.main(["jobs", "run", "b", "nope", "c"]) == 5
    said = capsys.readouterr()
    assert said.out == "c\tdue now\n"
    assert said.err.count("Error: ") == 2


def test_what_is_no_fault_of_a_job_ends_the_command(server, capsys):
    server.replies["RUN"] = [b"-NOPERM a viewer may not do this\r\n"]
    assert wheeld.main(["jobs", "run", "a", "b"]) == 5
    assert capsys.readouterr().err == "Error: NOPERM a viewer may not do this\n"
    assert len(asked(server)) == 1


def test_more_jobs_than_a_command_takes_are_several_commands(server, capsys):
    server.replies["REQUEUE"] = [[b"+OK\r\n"] * 500, [b"+OK\r\n"] * 2]
    assert wheeld.main(["jobs", "requeue", *map(str, range(502))]) == 0
    assert [len(words) - 1 for words in asked(server)] == [500, 2]
    assert len(capsys.readouterr().out.splitlines()) == 502
