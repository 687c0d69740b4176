"""Log lines: no control character, no payload, events with constant names."""

import ast
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.logs import WITHHELD, make_logger
from tests.fakes import StandingClock

ROOT = Path(__file__).parents[2]
NASTY = "a\nb\rc\x1b[31md\x00e\x7ff\x9b31mg\u2028h\u202ei"
FIELDS = ["handler", "key", "worker", "client", "user", "path", "hint"]


def lines(human, *calls):
    stream = io.StringIO()
    logger = make_logger(StandingClock(), stream, human=human)
    for event, fields in calls:
        logger.warning(event, **fields)
    return stream.getvalue()


def control_characters(text):
    return re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", text)


@pytest.mark.parametrize("human", [False, True])
@pytest.mark.parametrize("field", FIELDS)
def test_control_characters_in_a_name_never_reach_the_output(human, field):
    text = lines(human, ("client_refused", {field: NASTY}))
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert control_characters(text) == []
    assert "\\x1b[31m" in text.replace("\\\\", "\\")


@pytest.mark.parametrize("human", [False, True])
def test_control_characters_in_a_field_name_or_in_what_it_holds_are_escaped(human):
    text = lines(
        human, ("x_done", {NASTY: 1, "peers": [NASTY, {NASTY: (NASTY,)}], "error": OSError(NASTY)})
    )
    assert text.count("\n") == 1
    assert control_characters(text) == []


@given(st.text(), st.binary(), st.booleans())
def test_any_text_and_any_bytes_make_one_printable_line(text, raw, human):
    out = lines(human, ("name_seen", {"name": text, "raw": raw}))
    assert out.count("\n") == 1
    assert len(out.splitlines()) == 1
    assert control_characters(out) == []


@pytest.mark.parametrize("human", [False, True])
@pytest.mark.parametrize("field", sorted(WITHHELD))
def test_what_belongs_to_users_is_not_written_only_its_size(human, field):
    for value in (b"s3cret-payload", "s3cret-payload", ["s3cret-payload"]):
        text = lines(human, ("job_dead", {field: value}))
        assert "s3cret" not in text
        assert f"{field}_withheld_size" in text


def test_json_line_holds_time_level_event_and_fields_as_they_are():
    text = lines(False, ("fsync_slowed", {"took_ms": 1500, "ok": True, "share": 0.5, "none": None}))
    assert json.loads(text) == {
        "time": "2026-06-21T00:00:00.123Z",
        "level": "warning",
        "event": "fsync_slowed",
        "took_ms": 1500,
        "ok": True,
        "share": 0.5,
        "none": None,
    }


def test_start_line_reads_as_a_sentence_on_a_terminal():
    text = lines(
        True,
        ("server_ready", {"listen": "127.0.0.1:8463", "term": 3, "lsn": 1204331, "took_s": 0.2}),
    )
    assert text == "  ready     wire 127.0.0.1:8463  term 3  lsn 1 204 331  0.2 s\n"


def test_start_line_without_its_fields_is_still_a_line():
    assert "server_ready" in lines(True, ("server_ready", {"listen": "x"}))


def test_long_field_is_cut():
    assert len(lines(False, ("name_seen", {"name": "x" * 100_000}))) < 5_000


def test_stream_that_is_gone_stops_nobody():
    stream = io.StringIO()
    logger = make_logger(StandingClock(), stream, human=False)
    stream.close()
    logger.error("log_failed", error="EIO")


def log_calls(tree):
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"debug", "info", "warning", "error", "critical"}
            and ast.unparse(node.func.value).split(".")[-1].strip("_") == "log"
        ):
            yield node


def events_in_the_code():
    return [
        (f"{path.name}:{node.lineno}", node)
        for path in sorted((ROOT / "server").rglob("*.py"))
        for node in log_calls(ast.parse(path.read_text()))
    ]


def test_every_event_is_a_constant_noun_and_verb():
    calls = events_in_the_code()
    assert len(calls) >= 3
    for where, node in calls:
        assert node.args, where
        event = node.args[0]
        assert isinstance(event, ast.Constant), where
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", str(event.value)), where
        assert len(node.args) == 1, where


def test_no_line_of_the_server_names_a_field_that_is_withheld():
    for where, node in events_in_the_code():
        assert not {keyword.arg for keyword in node.keywords} & WITHHELD, where
