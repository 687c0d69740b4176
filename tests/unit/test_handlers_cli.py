"""``wheeld handlers`` against a server of a few scripted replies."""

import json

import pytest

import wheeld
from tests.unit.test_commands import Scripted

DUE_MS = 1_798_099_200_000  # 2026-12-24T08:00:00Z


def entry(name, **fields):
    counts = dict.fromkeys(("scheduled", "held", "ready", "leased", "dead", "workers"), 0)
    return {
        "handler": name,
        **counts,
        "oldest_due_ms": None,
        "served": "yes",
        "paused": 0,
        **fields,
    }


ENTRIES = [
    entry("sms", paused=1),
    entry("mail.b", served="never", ready=2, oldest_due_ms=DUE_MS),
    entry("mail.a", leased=1, dead=3, workers=4),
]


@pytest.fixture
def server(monkeypatch):
    scripted = Scripted()
    scripted.replies["HANDLERS"] = [ENTRIES]
    monkeypatch.setenv("WHEELD_URL", scripted.url)
    yield scripted
    scripted.close()


def test_handlers_are_listed_by_name_with_their_counts(server, capsys):
    assert wheeld.main(["handlers", "list"]) == 0
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [
        ["mail.a", "0", "1", "0", "0", "3", "4", "", "served"],
        ["mail.b", "2", "0", "0", "0", "0", "0", "2026-12-24T08:00:00Z", "never served"],
        ["sms", "0", "0", "0", "0", "0", "0", "", "paused"],
    ]
    assert wheeld.main(["handlers", "list", "mail.", "--json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [(item["handler"], item["ready"]) for item in items] == [("mail.a", 0), ("mail.b", 2)]


@pytest.mark.parametrize(("verb", "word"), [("pause", "paused"), ("resume", "resumed")])
def test_a_handler_is_paused_and_resumed(server, capsys, verb, word):
    server.replies["HANDLER"] = [entry("sms")]
    assert wheeld.main(["handlers", verb, "sms"]) == 0
    assert server.asked[-1] == ["HANDLER", "sms", verb.upper()]
    assert capsys.readouterr().out == f"sms\t{word}\n"
    assert wheeld.main(["handlers", verb, "sms", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["word"] == word


def test_a_handler_that_is_misspelt_is_not_made(server, capsys):
    """HANDLER h PAUSE makes one that there is not."""
    server.replies["HANDLER"] = [b'-UNKNOWN no handler "smms" yet\r\n']
    assert wheeld.main(["handlers", "pause", "smms"]) == 3
    assert "no handler" in capsys.readouterr().err
    assert server.asked[-1] == ["HANDLER", "smms"]
