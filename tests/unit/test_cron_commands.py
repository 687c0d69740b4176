"""CRON's subcommands: which call of the scheduler each one is, and what is refused before it."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from server.answers import RefusedError
from server.cron_commands import SUBCOMMANDS, CronCommands
from wheel.cron import compile_rule
from wheel.engine.definition import Definition, ScheduleError
from wheel.engine.facts import Session
from wheel.engine.scheduler import Scheduler
from wheel.engine.shown import Brief, Upcoming
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

NOW_MS = 1_800_000_000_000
DAILY = Definition(name="n", rule="@daily", handler="h", payload=b"{}")
NUMBERS = "runs succeeded failed skipped missed active waiting held backfill_left".split()
TIMES = "fire_ms created_ms changed_ms paused_ms last_success_ms".split()
RUN = SimpleNamespace(
    run_id="r", first_ms=1, last_ms=2, count=3, label="2027-01-15", outcome="missed", reason="",
    due_ms=4, started_ms=None, ended_ms=None, failures=0, lost=0, job_id=0, text="", note="x",
    actor="",
)  # fmt: skip


def shown(name):
    return SimpleNamespace(
        definition=replace(DAILY, name=name), version=3, state="active", next_ms=5, note="",
        actor="", changed_by="", served=False, **dict.fromkeys(NUMBERS, 7), **dict.fromkeys(TIMES),
    )  # fmt: skip


def brief(name):
    return Brief(
        name=name, version=3, state="active", next_ms=5, rule="@daily", tz="UTC", handler="h",
        dag="", after=(),
    )  # fmt: skip


@pytest.fixture
def scheduler() -> Mock:
    made = Mock(spec=Scheduler)
    made.set.return_value = (1, "created", 5)
    made.page.return_value = ([brief("a"), brief("0")], True)
    made.upcoming.return_value = Upcoming(compile_rule("@daily"), None, 0, None, None)
    made.axis_offset_ms.return_value = 7
    made.exists.return_value = True
    made.is_withdrawing.return_value = False
    made.herd.return_value = 0
    made.runs.return_value = ([RUN], 7)
    made.backfill.return_value = ("n@a", "n@b")
    made.rerun.return_value = ("n@a~1",)
    made.trigger.return_value = "n@a!1"
    made.get.return_value = shown("n")
    return made


@pytest.fixture
def cron(scheduler):
    commands = CronCommands(scheduler, wall_ms=lambda: NOW_MS, payload_bytes_max=100)
    session = Mock(spec=Session)
    session.user = "ada"

    def ask(line: str, *more: str):
        words = [*line.split(" "), *more]
        outcome = commands.answer(session, [word.encode() for word in words])
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
    ("TRIGGER a", "trigger", ("a",), {"at_ms": None, "force": False, "once": "", "actor": "ada"}),
    (
        "TRIGGER a ONCE t FORCE AT now",
        "trigger",
        ("a",),
        {"at_ms": NOW_MS, "force": True, "once": "t", "actor": "ada"},
    ),
    ("NEXT a", "upcoming", ("a",), {}),
    (
        "SET n @daily h {} IFVERSION 2 DRY",
        "set",
        (DAILY,),
        {"if_version": 2, "dry": True, "actor": "ada"},
    ),
    ("LIST", "page", ("", "", 50, ""), {}),
    ("LIST PREFIX p DAG d COUNT 9 CURSOR +0", "page", ("p", "0", 9, "d"), {}),
    ("LIST CURSOR 0", "page", ("", "", 50, ""), {}),
    ("MARK n@a succeeded", "mark", ("n@a",), {"succeeded": True, "note": "", "actor": "ada"}),
    ("MARK n@a FAILED NOTE x", "mark", ("n@a",), {"succeeded": False, "note": "x", "actor": "ada"}),
    ("RUNS a", "runs", ("a",), {"label": "", "count": 50, "before": 0}),
    (
        "RUNS a DATE 2027-01-15 CURSOR 8 COUNT 3",
        "runs",
        ("a",),
        {"label": "2027-01-15", "count": 3, "before": 8},
    ),
    (
        "RERUN a 2027-01-15 DOWNSTREAM ONCE t",
        "rerun",
        ("a", "2027-01-15"),
        {"downstream": True, "once": "t", "actor": "ada"},
    ),
    (
        "BACKFILL a 1800000000001 +5s DRY REVERSE ACTIVE 2 ONCE t",
        "backfill",
        ("a", NOW_MS + 1, NOW_MS + 5_000),
        {"dry": True, "reverse": True, "active": 2, "once": "t", "actor": "ada"},
    ),
    (
        "BACKFILL a 1800000000001 now",
        "backfill",
        ("a", NOW_MS + 1, NOW_MS),
        {"dry": False, "reverse": False, "active": None, "once": "", "actor": "ada"},
    ),
]


@pytest.mark.parametrize(("line", "call", "positional", "named"), CALLS)
def test_a_subcommand_asks_the_scheduler_for_just_that(
    cron, scheduler, line, call, positional, named
):
    cron(line)
    assert call in [entry[0] for entry in scheduler.mock_calls]
    getattr(scheduler, call).assert_called_once_with(*positional, **named)


def test_replies_have_the_forms_of_the_page(cron, scheduler):
    assert cron("SET n @daily h {}") == [1, "created", 5]
    scheduler.exists.return_value = False
    assert cron("GET n") is None
    scheduler.exists.return_value = True
    whole = cron("GET n")
    assert list(whole)[:4] == ["name", "version", "state", "next_ms"]
    assert (whole["served"], whole["missed"], whole["note"]) == ("never", 7, None)
    assert (whole["rule"], whole["payload"], whole["overlap"]) == ("@daily", b"{}", "skip")
    _, rows = cron("LIST")
    assert rows[0] == {
        "name": "a", "version": 3, "state": "active", "next_ms": 5, "rule": "@daily", "tz": "UTC",
        "handler": "h", "dag": None, "after": [],
    }  # fmt: skip
    assert cron("TRIGGER n") == "n@a!1"
    assert cron("BACKFILL n now now") == ["n@a", "n@b"]
    assert cron("RERUN n 2027-01-15") == ["n@a~1"]
    cursor, [run] = cron("RUNS n")
    assert (cursor, run["run"], run["nominal_ms"], run["last_ms"]) == ("7", "r", 1, 2)
    assert (run["count"], run["date"], run["reason"], run["job"]) == (3, "2027-01-15", None, None)
    assert cron("PAUSE n") == cron("DEL n") == cron("MARK n@a failed") == "OK"


def test_a_cursor_is_told_from_the_end_whatever_the_name(cron, scheduler):
    """A schedule called 0 is no end of the list."""
    cursor, rows = cron("LIST")
    assert (cursor, len(rows)) == ("+0", 2)
    scheduler.page.return_value = ([], False)
    assert cron(f"LIST CURSOR {cursor}") == ["0", []]
    assert scheduler.page.call_args.args == ("", "0", 50, "")


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
    ("NEXT a COUNT 101", "LIMIT", "COUNT 101", "1..100"),
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
        (LimitError("too many"), "LIMIT"),
        (InvalidRequest("no"), "SYNTAX"),
        (NotFound("no schedule"), "UNKNOWN"),
        (Conflict("version 2"), "CONFLICT"),
        (CoreMemoryError("no room"), "OOM"),
        (ScheduleError("EXISTS", "there is one"), "EXISTS"),
        (ServerFullError("no room on the disk"), "DISKFULL"),
    ],
)
def test_what_the_scheduler_refuses_has_the_code_of_its_kind(cron, scheduler, error, code):
    scheduler.set.side_effect = error
    with pytest.raises(RefusedError) as refused:
        cron("SET n @daily h {}")
    assert (refused.value.code, str(refused.value)) == (code, str(error))


def test_a_cycle_is_told_with_its_path_and_what_to_do(cron, scheduler):
    scheduler.set.side_effect = CycleError("a -> b -> a")
    with pytest.raises(
        RefusedError, match=r"^a -> b -> a: each waits for the next; take out"
    ) as no:
        cron("SET a - h {} AFTER 1 b")
    assert no.value.code == "CYCLE"


def test_what_is_no_refusal_is_not_made_one(cron, scheduler):
    scheduler.get.side_effect = CoreError("an invariant is broken")
    with pytest.raises(CoreError):
        cron("GET n")


def test_next_tells_each_time_on_three_clocks(cron, scheduler):
    rule = compile_rule("0 9 * * *", tz="Europe/Rome")
    scheduler.upcoming.return_value = Upcoming(rule, NOW_MS, 3_600_000, None, 2)
    told = cron("NEXT n COUNT 9")
    assert (told["name"], told["tz"]) == ("n", "Europe/Rome")
    assert [entry[:2] for entry in told["next"]] == [
        [NOW_MS, "2027-01-15T09:00:00+01:00"],
        [NOW_MS + 86_400_000, "2027-01-16T09:00:00+01:00"],
    ], "two runs are left"
    delays = [due_ms - nominal_ms for nominal_ms, _, due_ms in told["next"]]
    assert delays[0] != delays[1]
    assert all(0 <= delay <= 3_600_000 for delay in delays)
    scheduler.upcoming.return_value = Upcoming(rule, NOW_MS, 0, NOW_MS, None)
    assert len(cron("NEXT n")["next"]) == 1, "it ends"
    scheduler.upcoming.return_value = Upcoming(rule, None, 0, None, None)
    assert cron("NEXT n")["next"] == []
    every = compile_rule("@every 90m")
    scheduler.upcoming.return_value = Upcoming(every, 5_400_000, 0, None, None)
    assert cron("NEXT n COUNT 1")["next"] == [
        [5_400_007, "1970-01-01T01:30:00.007+00:00", 5_400_007]
    ], "what is on the axis that nobody sets is shown on the wall's"


def test_explain_says_a_rule_in_words_and_stores_nothing(cron, scheduler):
    scheduler.herd.return_value = 88
    told = cron("EXPLAIN @daily FROM +48h TZ Europe/Rome COUNT 2")
    assert (told["rule"], told["tz"]) == ("@daily", "Europe/Rome")
    assert "00:00" in told["words"]
    assert [entry[1] for entry in told["next"]] == [
        "2027-01-18T00:00:00+01:00",
        "2027-01-19T00:00:00+01:00",
    ]
    assert "88 other schedules" in told["herd"]
    assert {entry[0] for entry in scheduler.mock_calls} == {"herd"}
    literal = cron("EXPLAIN", "30 2 28 3 *", "TZ", "Europe/Rome", "DST", "literal", "FROM", "now")
    usual = cron("EXPLAIN", "30 2 28 3 *", "TZ", "Europe/Rome", "FROM", "now")
    assert usual["next"][0][1] == "2027-03-28T03:00:00+02:00", "where 02:30 is left out"
    assert literal["next"][0][1] == "2028-03-28T02:30:00+02:00"
    hashed = cron("EXPLAIN", "H H * * *", "NAME", "a"), cron("EXPLAIN", "H H * * *", "NAME", "b")
    assert hashed[0]["next"] != hashed[1]["next"]


@pytest.mark.parametrize("rule", ["61 * * * *", "0 0 31 2 *", "@every 0s"])
def test_explain_refuses_what_set_refuses(cron, rule):
    with pytest.raises(RefusedError) as refused:
        cron("EXPLAIN", rule)
    assert refused.value.code == "CRON"


def test_every_subcommand_is_described_and_answered(cron):
    for word in SUBCOMMANDS:
        try:
            cron(word)
        except RefusedError as error:
            assert error.code == "SYNTAX", "a subcommand that is described is there"
    with pytest.raises(RefusedError, match=" ".join(SUBCOMMANDS)):
        cron("?")
