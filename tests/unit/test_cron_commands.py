"""CRON's subcommands: which call of the scheduler each one is, and what is refused before it."""

from unittest.mock import Mock

import pytest

from server.answers import RefusedError
from server.cron_commands import SUBCOMMANDS, CronCommands, Scheduler
from server.words import Moment
from wheel.engine.facts import Session
from wheel.errors import (
    Conflict,
    CoreError,
    CoreMemoryError,
    CronSyntaxError,
    CycleError,
    InvalidRequest,
    LimitError,
    NotFound,
    ServerFullError,
)

NOW = Moment(ms=0, from_now=True)
DAY = Moment(ms=1_800_000_000_000, from_now=False)


@pytest.fixture
def scheduler() -> Mock:
    made = Mock(spec=Scheduler)
    made.set.return_value = (1, "created", 5)
    made.page.return_value = ([{"name": "a"}, {"name": "0"}], True)
    made.runs.return_value = ([{"run": "r"}], 7)
    made.backfill.return_value = ("n@a", "n@b")
    made.rerun.return_value = ("n@a~1",)
    made.trigger.return_value = "n@a!1"
    made.get.return_value = None
    made.next.return_value = made.explain.return_value = {"next": []}
    return made


@pytest.fixture
def cron(scheduler):
    commands = CronCommands(scheduler, payload_bytes_max=100)
    session = Mock(spec=Session)
    session.user = "ada"

    def ask(line: str):
        outcome = commands.answer(session, [word.encode() for word in line.split(" ")])
        assert outcome.gated, "a reply shows state, and may not leave before it is durable"
        return outcome.value

    return ask


CALLS = [
    ("GET a", "get", ("a",), {}),
    ("DEL a", "delete", ("a",), {"force": False, "actor": "ada"}),
    ("del a force", "delete", ("a",), {"force": True, "actor": "ada"}),
    ("PAUSE a", "pause", ("a",), {"note": "", "actor": "ada"}),
    ("PAUSE a NOTE why", "pause", ("a",), {"note": "why", "actor": "ada"}),
    ("RESUME a", "resume", ("a",), {"actor": "ada"}),
    ("TRIGGER a", "trigger", ("a",), {"at": None, "force": False, "once": "", "actor": "ada"}),
    (
        "TRIGGER a ONCE t FORCE AT 1800000000000",
        "trigger",
        ("a",),
        {"at": DAY, "force": True, "once": "t", "actor": "ada"},
    ),
    ("NEXT a", "next", ("a", 5), {}),
    ("NEXT a COUNT 1000", "next", ("a", 1000), {}),
    ("LIST", "page", ("", "", 50), {}),
    ("LIST PREFIX p COUNT 9 CURSOR +0", "page", ("p", "0", 9), {}),
    ("LIST CURSOR 0", "page", ("", "", 50), {}),
    ("MARK n@a succeeded", "mark", ("n@a",), {"succeeded": True, "note": "", "actor": "ada"}),
    ("MARK n@a FAILED NOTE x", "mark", ("n@a",), {"succeeded": False, "note": "x", "actor": "ada"}),
    ("RUNS a", "runs", ("a",), {"date": "", "count": 50, "cursor": 0}),
    (
        "RUNS a DATE 2027-01-15 CURSOR 8 COUNT 3",
        "runs",
        ("a",),
        {"date": "2027-01-15", "count": 3, "cursor": 8},
    ),
    (
        "RERUN a 2027-01-15 DOWNSTREAM ONCE t",
        "rerun",
        ("a", "2027-01-15"),
        {"downstream": True, "once": "t", "actor": "ada"},
    ),
    (
        "BACKFILL a 1800000000000 now DRY REVERSE ACTIVE 2 ONCE t",
        "backfill",
        ("a", DAY, NOW),
        {"dry": True, "reverse": True, "active": 2, "once": "t", "actor": "ada"},
    ),
    (
        "BACKFILL a 1800000000000 now",
        "backfill",
        ("a", DAY, NOW),
        {"dry": False, "reverse": False, "active": None, "once": "", "actor": "ada"},
    ),
    (
        "EXPLAIN @daily",
        "explain",
        ("@daily",),
        {"tz": "UTC", "begin": None, "count": 5, "dst": "cron", "name": ""},
    ),
    (
        "EXPLAIN @daily FROM now TZ Europe/Rome COUNT 2 DST literal NAME n",
        "explain",
        ("@daily",),
        {"tz": "Europe/Rome", "begin": NOW, "count": 2, "dst": "literal", "name": "n"},
    ),
]


@pytest.mark.parametrize(("line", "call", "positional", "named"), CALLS)
def test_a_subcommand_asks_the_scheduler_for_just_that(
    cron, scheduler, line, call, positional, named
):
    cron(line)
    assert [entry[0] for entry in scheduler.mock_calls] == [call]
    getattr(scheduler, call).assert_called_once_with(*positional, **named)


def test_replies_have_the_forms_of_the_page(cron):
    assert cron("SET n @daily h {}") == [1, "created", 5]
    assert cron("GET n") is None
    assert cron("TRIGGER n") == "n@a!1"
    assert cron("BACKFILL n now now") == ["n@a", "n@b"]
    assert cron("RERUN n 2027-01-15") == ["n@a~1"]
    assert cron("RUNS n") == ["7", [{"run": "r"}]]
    assert cron("PAUSE n") == cron("DEL n") == cron("MARK n@a failed") == "OK"


def test_a_cursor_is_told_from_the_end_whatever_the_name(cron, scheduler):
    """A schedule called 0 is no end of the list."""
    cursor, rows = cron("LIST")
    assert (cursor, len(rows)) == ("+0", 2)
    scheduler.page.return_value = ([], False)
    assert cron(f"LIST CURSOR {cursor}") == ["0", []]
    assert scheduler.page.call_args.args == ("", "0", 50)


REFUSED = [
    ("FIRE a", "UNKNOWN_COMMAND", 'no subcommand "FIRE"', "it has SET GET"),
    ("DELETE a", "UNKNOWN_COMMAND", 'no subcommand "DELETE"', "do you mean CRON DEL?"),
    ("GET", "SYNTAX", "CRON GET needs schedule", "not there"),
    ("GET a b", "SYNTAX", '"b" stands behind', "leave it out"),
    ("RESUME a NOTE x", "SYNTAX", '"NOTE" stands behind', "leave it out"),
    ("DEL a FORCED", "SYNTAX", 'option "FORCED" of CRON DEL', "do you mean FORCE?"),
    ("TRIGGER a AT 2027-01-15T08:00", "NAIVE_TIME", 'AT "2027-01-15T08:00"', "T08:00Z"),
    ("TRIGGER a FORCE FORCE", "SYNTAX", "option FORCE", "given twice"),
    ("LIST COUNT 201", "LIMIT", "COUNT 201", "1..200"),
    ("LIST CURSOR 17", "SYNTAX", 'CURSOR "17"', "begin with 0"),
    ("NEXT a COUNT 1001", "LIMIT", "COUNT 1001", "1..1000"),
    ("BACKFILL a 2027-01-15 now", "NAIVE_TIME", 'from "2027-01-15"', "T00:00Z"),
    ("BACKFILL a now", "SYNTAX", "a time for to", "not there"),
    ("BACKFILL a now now ACTIVE 0", "LIMIT", "ACTIVE 0", "1..1000"),
    ("MARK n@a done", "SYNTAX", 'verdict "done"', "succeeded, failed"),
    ("RUNS a CURSOR x", "SYNTAX", 'CURSOR "x"', "digits only"),
    ("EXPLAIN @daily DST x", "SYNTAX", 'DST "x"', "cron, literal"),
]


@pytest.mark.parametrize(("line", "code", "value", "correction"), REFUSED)
def test_a_bad_argument_is_refused_before_the_scheduler_is_asked(
    cron, scheduler, line, code, value, correction
):
    with pytest.raises(RefusedError) as refused:
        cron(line)
    assert refused.value.code == code
    assert value in str(refused.value)
    assert correction in str(refused.value)
    assert scheduler.mock_calls == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CronSyntaxError("minute 61 at position 0"), "CRON"),
        (CycleError("a -> a: each waits for the next"), "CYCLE"),
        (LimitError("too many"), "LIMIT"),
        (InvalidRequest("no"), "SYNTAX"),
        (NotFound("no schedule"), "UNKNOWN"),
        (Conflict("version 2"), "CONFLICT"),
        (CoreMemoryError("no room"), "OOM"),
        (ServerFullError("no room on the disk"), "DISKFULL"),
    ],
)
def test_what_the_scheduler_refuses_has_the_code_of_its_kind(cron, scheduler, error, code):
    scheduler.set.side_effect = error
    with pytest.raises(RefusedError) as refused:
        cron("SET n @daily h {}")
    assert (refused.value.code, str(refused.value)) == (code, str(error))


def test_what_is_no_refusal_is_not_made_one(cron, scheduler):
    scheduler.get.side_effect = CoreError("an invariant is broken")
    with pytest.raises(CoreError):
        cron("GET n")


def test_a_handler_that_nobody_serves_is_refused_where_that_is_asked_for(scheduler):
    asked = []
    commands = CronCommands(
        scheduler, payload_bytes_max=100, served=lambda name: asked.append(name) or name == b"h"
    )
    session = Mock(spec=Session, user="")
    with pytest.raises(RefusedError, match="served by nobody") as refused:
        commands.answer(session, [b"SET", b"n", b"@daily", b"other", b"{}"])
    assert refused.value.code == "DENIED"
    assert scheduler.mock_calls == []
    commands.answer(session, [b"SET", b"n", b"@daily", b"h", b"{}"])
    assert asked == [b"other", b"h"]


def test_every_subcommand_is_described_and_answered(cron):
    for word in SUBCOMMANDS:
        try:
            cron(word)
        except RefusedError as error:
            assert error.code == "SYNTAX", "a subcommand that is described is there"
    with pytest.raises(RefusedError, match=" ".join(SUBCOMMANDS)):
        cron("?")
