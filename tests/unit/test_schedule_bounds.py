"""START, END and MAXRUNS with a rule: what can never fire is refused, and what counts as a run."""

import pytest

from tests.scheduled import World
from wheel.wire import ReplyError

DAY_MS = 86_400_000
MINUTE_MS = 60_000


@pytest.fixture
def world():
    made = World()  # 2027-01-15T08:00Z, a Friday
    yield made
    made.check()


def refused(world, *words) -> str:
    reply = world.raw("CRON", "SET", *words)
    assert isinstance(reply, ReplyError), reply
    assert reply.code == "CRON"
    return str(reply)


NEVER = [
    (
        ("0 9 * * 1", "END", "2027-01-18T08:59:59Z"),
        (
            "END 2027-01-18T08:59:59Z: never_fires: the rule '0 9 * * 1' has no time up to then, "
            "its next is 2027-01-18T09:00:00Z; write that or a later one"
        ),
    ),
    (
        ("0 9 * * *", "END", "2026-01-01T00:00:00Z"),
        (
            "END 2026-01-01T00:00:00Z: never_fires: the rule '0 9 * * *' has no time up to then, "
            "its next is 2027-01-15T09:00:00Z; write that or a later one"
        ),
    ),
    (
        ("0 9 1 1 *", "START", "2027-02-01T00:00:00Z", "END", "2027-12-31T00:00:00Z"),
        (
            "END 2027-12-31T00:00:00Z: never_fires: the rule '0 9 1 1 *' has no time up to then, "
            "its next is 2028-01-01T09:00:00Z; write that or a later one"
        ),
    ),
    (
        ("0 0 0 1 1 ? 2030", "START", "2031-01-01T00:00:00Z"),
        (
            "START 2031-01-01T00:00:00Z: never_fires: the rule '0 0 0 1 1 ? 2030' has no time from "
            "then on; write 2030-01-01T00:00:00Z or earlier"
        ),
    ),
    (
        ("@at 2028-01-01T00:00:00Z", "START", "2028-01-01T00:00:00.001Z"),
        (
            "START 2028-01-01T00:00:00.001Z: never_fires: the rule '@at 2028-01-01T00:00:00Z' has "
            "no time from then on; write 2028-01-01T00:00:00Z or earlier"
        ),
    ),
    (
        ("@every 36h", "END", "+1h"),
        "has no time up to then, its next is 2027-01-15T12:00:00Z; write that or a later one",
    ),
]


@pytest.mark.parametrize(("words", "says"), NEVER, ids=lambda value: " ".join(value)[:40])
def test_bounds_within_which_a_rule_never_fires_are_refused_when_it_is_made(world, words, says):
    rule, *options = words
    assert says in refused(world, "n", rule, "h", "{}", *options)
    assert says in refused(world, "n", rule, "h", "{}", *options, "DRY")
    assert world.cron("GET n") is None


def test_bounds_that_let_one_time_through_are_taken(world):
    for name, rule, *options in (
        ("a", "0 9 * * 1", "END", "2027-01-18T09:00:00Z"),
        ("b", "0 0 0 1 1 ? 2030", "START", "2030-01-01T00:00:00Z", "END", "2030-01-01T00:00:00Z"),
        ("c", "@every 36h", "END", "2027-01-15T12:00:00Z"),
    ):
        version, word, next_ms = world.cron("SET", name, rule, "h", "{}", *options)
        assert (version, word) == (1, "created")
        assert next_ms


def test_a_follower_whose_end_has_passed_is_refused(world):
    world.cron("SET up", "@daily", "h", "{}")
    said = refused(world, "n", "-", "h", "{}", "AFTER", 1, "up", "END", "2027-01-15T08:00:00Z")
    assert "END 2027-01-15T08:00:00Z: never_fires: it has passed; write a moment to come" in said


def test_an_edit_after_which_it_never_fires_again_is_refused_and_changes_nothing(world):
    world.cron("SET n", "* * * * *", "h", "{}", "OVERLAP", "allow")
    world.advance(3 * MINUTE_MS, by=MINUTE_MS)
    before = world.get("n")
    assert before["runs"] == 3
    said = refused(world, "n", "* * * * *", "h", "{}", "OVERLAP", "allow", "MAXRUNS", 3)
    assert "MAXRUNS 3: never_fires: it has had 3 runs; write more than 3" in said
    end = "2027-01-15T08:01:00Z"
    assert "never_fires" in refused(world, "n", "* * * * *", "h", "{}", "END", end)
    assert world.get("n") == before
    world.cron("SET n", "* * * * *", "h", "{}", "OVERLAP", "allow", "MAXRUNS", 4)
    world.advance(5 * MINUTE_MS, by=MINUTE_MS)
    assert (world.get("n")["runs"], world.get("n")["state"]) == (4, "ended")


def test_what_has_ended_by_itself_can_be_set_again_with_another_payload(world):
    options = ("OVERLAP", "allow", "END", "2027-01-15T08:02:00Z")
    world.cron("SET n", "* * * * *", "h", "{}", *options)
    world.advance(5 * MINUTE_MS, by=MINUTE_MS)
    assert world.get("n")["state"] == "ended"
    assert world.cron("SET n", "* * * * *", "h", "{}", *options)[1] == "unchanged"
    assert world.cron("SET n", "* * * * *", "h", "[]", *options)[1] == "changed"


# ------------------------------------------------------------------------------ what counts


def test_runs_by_hand_and_backfilled_ones_use_maxruns_up_and_repeats_do_not(world):
    world.cron("SET n", "0 * * * *", "h", "{}", "MAXRUNS", 4, "OVERLAP", "allow", "RETRIES", 0)
    world.cron("TRIGGER n")
    world.cron("BACKFILL n", "2027-01-15T06:00:00Z", "2027-01-15T06:30:00Z")
    world.advance(61 * MINUTE_MS, by=MINUTE_MS)
    jobs = world.lease("h")
    assert len(jobs) == world.get("n")["runs"] == 3
    for job in jobs:
        world.ask("FAIL", world.receipt_of(job))
    world.cron("RERUN n 2027-01-15T09")  # the same runs again: they count as they did
    world.ack(world.lease("h"))
    world.cron("RERUN n 2027-01-15T09")
    world.ack(world.lease("h"))
    assert world.get("n")["runs"] == 3
    assert world.get("n")["state"] == "active"
    world.advance(60 * MINUTE_MS, by=MINUTE_MS)
    assert (world.get("n")["runs"], world.get("n")["state"]) == (4, "ended")
    world.advance(3 * 60 * MINUTE_MS, by=MINUTE_MS)
    assert world.get("n")["runs"] == 4
    assert world.cron("TRIGGER n").startswith("n@"), "a person may, all the same"
    assert world.get("n")["runs"] == 5
    assert "never_fires" in refused(world, "n", "0 * * * *", "h", "{}", "MAXRUNS", 5)


# ------------------------------------------------------------------------------ the list by graph


def test_the_list_of_one_graph_is_paged_and_follows_edits(world, monkeypatch):
    for i in range(30):
        world.cron(f"SET t{i:02} @daily h {{}} DAG", "nightly" if i % 3 == 0 else f"other{i % 2}")
    looked = []
    store = world.scheduling.scheduler.planner.store
    real = store.page
    monkeypatch.setattr(store, "page", lambda *args: looked.append(real(*args)) or looked[-1])
    names, cursor = [], "0"
    while True:
        cursor, rows = world.cron("LIST DAG nightly COUNT 4 CURSOR", cursor)
        found = [world.pairs(row) for row in rows]
        assert {row["dag"] for row in found} == {"nightly"}
        names += [row["name"] for row in found]
        if cursor == "0":
            break
    assert names == [f"t{i:02}" for i in range(0, 30, 3)]
    assert max(map(len, looked)) <= 5, "no more are looked at than a page shows"
    world.cron("SET t00 @daily h {} DAG other0")
    world.cron("DEL t03")
    world.cron("SET t99 @daily h {} DAG nightly")
    world.down(1000)
    listed = [world.pairs(row)["name"] for row in world.cron("LIST DAG nightly PREFIX t")[1]]
    assert listed == [*names[2:], "t99"]
    assert world.cron("LIST DAG none") == ["0", []]
    assert world.refused("LIST COUNT 201") == "LIMIT"
    assert len(world.cron("LIST COUNT 200")[1]) == 30


# ------------------------------------------------------------------------------ backfill


def test_a_stretch_that_cannot_be_backfilled_is_told_as_it_was_written(world):
    """It was told in milliseconds, which nobody had typed."""
    world.cron("SET n", "* * * * *", "h", "{}")
    for start, end, says in (
        (
            "2027-01-15T07:00:00Z",
            "2027-01-14T07:00:00Z",
            "to 2027-01-14T07:00:00Z is before from 2027-01-15T07:00:00Z; swap them",
        ),
        (
            "2026-01-15T07:00:00Z",
            "2027-01-15T07:00:00.5Z",
            "are 525601 runs, and one command makes at most 10000; split it",
        ),
        ("281474976710655", "2027-01-15T07:00:00Z", "is before from 281474976710655; swap them"),
    ):
        assert says in str(world.raw("CRON", "BACKFILL", "n", start, end))
