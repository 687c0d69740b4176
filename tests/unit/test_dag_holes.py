"""Dates that lack something: an hour that a zone leaves out, an upstream, the rule they had."""

from collections.abc import Iterator

import pytest

from tests.schedules import DAY_MS, HOUR_MS, Clockwork, Hand
from wheel.engine.dates import Date
from wheel.engine.definition import CatchUp, Overlap, ScheduleError
from wheel.engine.dependencies import HELD_MAX
from wheel.engine.planner import FILL_HELD_MAX
from wheel.errors import Conflict, InvalidRequest

# The clock begins on 2027-01-15 at 08:00 UTC.
DAY = "2027-01-15"
JANUARY_MS = 1_798_761_600_000  # 2027-01-01T00:00Z
NEW_YORK = "America/New_York"
GAP = "2027-03-14T02"  # an hour that New York leaves out
EVE_MS = 57 * DAY_MS  # from the beginning to the morning before


@pytest.fixture
def world() -> Iterator[Clockwork]:
    world = Clockwork()
    yield world
    world.check()
    before = world.snapshot()
    world.crash()
    world.turns()
    assert world.snapshot() == before


@pytest.fixture
def hand(world: Clockwork) -> Hand:
    return Hand(world)


def outcomes(world: Clockwork, name: str) -> dict[str, str]:
    """Return the outcome of each run of a schedule, by the day of the month and the tag."""
    return {
        row.run_id.partition("@")[2][8:10] + row.run_id.partition("Z")[2]: row.outcome
        for row in world.runs(name)
    }


def work(world: Clockwork, hand: Hand, *handlers: str) -> None:
    """Have all be done that these handlers have, and what that lets go."""
    idle = False
    while not idle:
        world.go(0)
        idle = True
        for handler in handlers:
            for run in hand.take_jobs(handler):
                hand.done(run)
                idle = False


def day(number: int) -> int:
    return JANUARY_MS + (number - 1) * DAY_MS


# ------------------------------------------------------------------------------ zones


def foreign_hour(world: Clockwork, overlap: Overlap = Overlap.SKIP) -> None:
    """Have a schedule in New York wait for two in UTC, in an hour that New York leaves out."""
    world.go(EVE_MS)
    world.set("a", "10 2 * * *", "a")
    world.set("b", "40 2 * * *", "b")
    for name, after in (("r", ("a", "b")), ("s", ("a", "r"))):
        world.set(name, "-", name, after=after, tz=NEW_YORK, date=Date.HOUR, overlap=overlap)
    world.go(DAY_MS)


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.ALLOW])
def test_a_run_in_an_hour_that_its_own_zone_leaves_out_is_made_once(
    world: Clockwork, hand: Hand, overlap: Overlap
) -> None:
    foreign_hour(world, overlap)
    assert hand.say("COUNT HANDLER r") == 1
    work(world, hand, "a", "b", "r", "s")
    for name in ("r", "s"):
        assert world.told(name) == [(f"{GAP}:40:00Z", "succeeded", "", 1)]


def test_a_rerun_in_an_hour_that_the_zone_leaves_out_has_an_id_of_its_own(
    world: Clockwork, hand: Hand
) -> None:
    foreign_hour(world)
    work(world, hand, "a", "b", "r", "s")
    made = world.scheduler.rerun("a", GAP, downstream=True)
    assert made == [f"a@{GAP}:10:00Z~1", f"r@{GAP}:40:00Z~1", f"s@{GAP}:40:00Z~1"]
    work(world, hand, "a", "r", "s")
    assert [told[0] for told in world.told("s")] == [f"{GAP}:40:00Z", f"{GAP}:40:00Z~1"]


@pytest.mark.parametrize(
    ("tz", "label"), [("Pacific/Apia", "2011-12-30"), (NEW_YORK, "2026-03-08T02")]
)
@pytest.mark.parametrize("name", ["ruled", "follows"])
def test_a_date_that_its_zone_leaves_out_is_not_run_again(
    world: Clockwork, name: str, tz: str, label: str
) -> None:
    date = Date.HOUR if "T" in label else Date.DAY
    world.set("ruled", "0 9 * * *", tz=tz)
    world.set("follows", "-", after=("ruled",), tz=tz, date=date)
    with pytest.raises(InvalidRequest, match=f"no {label}: .* another date"):
        world.scheduler.rerun(name, label)
    assert world.runs(name) == []


@pytest.mark.parametrize(
    ("label", "code", "text"),
    [
        ("2027-02-30", "SYNTAX", "not a date: day is out of range"),
        ("2027-13-01", "SYNTAX", "not a date: month"),
        ("2027-01-01T25", "SYNTAX", "not a date: hour"),
        ("2027-01-01T09:60:00Z", "SYNTAX", "not a date: minute"),
        ("1969-12-31", "SYNTAX", "from 1970 to 2199"),
        ("0001-01-01", "SYNTAX", "from 1970 to 2199"),
        ("2200-01-01", "SYNTAX", "from 1970 to 2199"),
        ("9999-12-31T23:00:00Z", "SYNTAX", "from 1970 to 2199"),
        ("1970-01-01", "LIMIT", "before 1970 in Asia/Tokyo"),
        ("2027-01-17", "CONFLICT", "still to come"),
        ("2199-12-31T23", "CONFLICT", "still to come"),
    ],
)
def test_a_date_that_is_none_is_refused_by_name(
    world: Clockwork, label: str, code: str, text: str
) -> None:
    world.set("x", "0 9 * * *", tz="Asia/Tokyo")
    world.set("y", "-", after=("x",), tz="Asia/Tokyo")
    before = world.snapshot()
    for name in ("x", "y"):
        if name == "y" and label == "2027-01-17":
            continue  # another zone may have begun it
        with pytest.raises(ScheduleError, match=text) as refused:
            world.scheduler.rerun(name, label)
        assert refused.value.code == code
        assert repr(label) in str(refused.value)
        assert "write" in str(refused.value)
    if code == "SYNTAX":
        with pytest.raises(ScheduleError, match=text):
            world.scheduler.runs("x", label=label)
    assert world.snapshot() == before


def test_a_run_that_is_under_way_is_no_syntax_error(world: Clockwork) -> None:
    world.set("x", "0 9 * * *")
    with pytest.raises(Conflict, match=r"still to come.*; wait for it"):
        world.scheduler.rerun("x", DAY)
    world.go(HOUR_MS)
    with pytest.raises(Conflict, match=r"not over yet.*; wait for its end"):
        world.scheduler.rerun("x", DAY)


def test_no_run_before_1970_can_be_marked(world: Clockwork) -> None:
    world.set("x", "0 9 * * *")
    world.set("y", "-", after=("x",))
    for run in ("x@0001-01-01T09:00:00Z", "y@1969-12-31T23:59:59Z", "x@0999-01-01T00:00:00Z"):
        with pytest.raises(ScheduleError, match="before 1970") as refused:
            world.scheduler.mark(run, succeeded=True)
        assert refused.value.code == "UNKNOWN"


# ------------------------------------------------------------------------------ backfills


def up_and_down(world: Clockwork) -> None:
    world.set("up", "0 9 * * *", "u")
    world.set("down", "0 10 * * *", "d", after=("up",))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_backfill_goes_on_past_dates_without_an_upstream(
    world: Clockwork, hand: Hand, reverse: bool
) -> None:
    up_and_down(world)
    world.scheduler.backfill("up", day(10), day(12))
    work(world, hand, "u")
    world.scheduler.backfill("down", day(9), day(15), reverse=reverse)
    work(world, hand, "d")
    done = dict.fromkeys(("10", "11"), "succeeded")
    assert outcomes(world, "down") == dict.fromkeys(("09", "12", "13", "14"), "no_upstream") | done


def test_a_backfill_goes_on_past_a_failure_of_its_upstream(world: Clockwork, hand: Hand) -> None:
    up_and_down(world)
    world.scheduler.backfill("up", day(10), day(14))
    world.scheduler.backfill("down", day(10), day(14))
    world.go(0)
    assert outcomes(world, "down") == {"10": "held"}  # at most one at once
    for failed in (False, True, False, False):
        [run] = hand.take_jobs("u")
        if failed:
            hand.fail(run)
        else:
            hand.done(run)
        work(world, hand, "d")
    expected = dict.fromkeys(("10", "12", "13"), "succeeded") | {"11": "upstream_failed"}
    assert outcomes(world, "down") == expected
    world.scheduler.rerun("up", "2027-01-11")
    work(world, hand, "u", "d")
    assert set(outcomes(world, "down").values()) == {"succeeded"}
    assert world.scheduler.get("down").backfill_left == 0


def test_a_backfill_runs_no_more_at_once_when_many_are_healed(world: Clockwork, hand: Hand) -> None:
    up_and_down(world)
    world.scheduler.backfill("down", day(5), day(14), active=2)
    world.go(0)
    assert list(outcomes(world, "down").values()) == ["no_upstream"] * 9
    world.set("down", "0 10 * * *", "d")  # it waits for nobody any more
    for left in (7, 5, 3, 1):
        world.go(0)
        taken = hand.take_jobs("d")
        assert len(taken) == 2
        assert hand.take_jobs("d") == []
        for run in taken:
            hand.done(run)
        world.go(0)
        assert (
            len(world.runs("down")) - list(outcomes(world, "down").values()).count("succeeded")
            == left
        )
    work(world, hand, "d")
    assert list(outcomes(world, "down").values()) == ["succeeded"] * 9


@pytest.mark.slow
def test_a_long_backfill_without_upstreams_drops_none_of_its_runs(world: Clockwork) -> None:
    world.set("up", "0 9 * * 1", "u", start_ms=day(30))
    world.set("down", "0 * * * *", "d", after=("up",))
    made = world.scheduler.backfill("down", day(1) - 30 * DAY_MS, day(14))
    assert len(made) > FILL_HELD_MAX
    world.go(0)
    assert set(outcomes(world, "down").values()) == {"no_upstream"}
    row = world.scheduler.get("down")
    assert (row.held, row.backfill_left) == (FILL_HELD_MAX, len(made) - FILL_HELD_MAX)
    assert FILL_HELD_MAX < HELD_MAX
    world.scheduler.mark(made[0], succeeded=True)
    world.go(0)
    assert world.scheduler.get("down").backfill_left == len(made) - FILL_HELD_MAX - 1


@pytest.mark.parametrize("succeeded", [True, False])
def test_a_backfill_goes_on_when_its_held_run_is_marked(
    world: Clockwork, hand: Hand, succeeded: bool
) -> None:
    up_and_down(world)
    world.scheduler.pause("up")
    world.scheduler.backfill("up", day(10), day(13))  # so they are waited for
    world.scheduler.backfill("down", day(10), day(13))
    world.go(0)
    assert outcomes(world, "down") == {"10": "held"}
    world.scheduler.mark("down@2027-01-10T10:00:00Z", succeeded=succeeded)
    world.go(0)
    assert outcomes(world, "down") == {"10": "succeeded" if succeeded else "dead", "11": "held"}
    assert hand.take_jobs("d") == []


def test_a_backfill_does_not_wait_behind_runs_that_overlap_has_queued(
    world: Clockwork, hand: Hand
) -> None:
    world.set("up", "0 9 * * *", "u")
    world.set("down", "0 * * * *", "d", after=("up",), overlap=Overlap.QUEUE_ALL)
    world.scheduler.mark("up@2027-01-15T00:00:00Z", succeeded=True)
    world.go(4 * HOUR_MS)
    work(world, hand, "u")
    [active] = hand.take_jobs("d")
    assert [row.outcome for row in world.runs("down")] == ["running", *["waiting"] * 3]
    world.scheduler.backfill("down", day(14), day(14) + HOUR_MS)
    world.go(0)
    assert hand.take_jobs("d") == []
    world.scheduler.mark("up@2027-01-14T09:00:00Z", succeeded=True)
    world.go(0)
    assert hand.take_jobs("d") == ["down@2027-01-14T00:00:00Z"]
    assert hand.done(active) == "OK"
    world.go(0)
    assert hand.take_jobs("d") == ["down@2027-01-15T10:00:00Z"]


@pytest.mark.parametrize("held", [True, False])
def test_a_time_that_is_run_again_is_not_backfilled_beside_it(
    world: Clockwork, hand: Hand, held: bool
) -> None:
    """One of two held runs of one time was lost sight of when the other ended."""
    world.set("up", "0 9 * * 1", "u")
    world.set("down", "0 10 * * *", "d", after=("up",) if held else ())
    world.scheduler.rerun("down", "2027-01-14")
    world.go(0)
    assert world.scheduler.backfill("down", day(13), day(15)) == ["down@2027-01-13T10:00:00Z"]
    work(world, hand, "d")
    ended = "no_upstream" if held else "succeeded"
    assert outcomes(world, "down") == {"13": ended, "14~1": ended}
    assert world.scheduler.backfill("down", day(14), day(15)) == []


def test_a_missed_date_that_is_run_again_is_not_made_up_for_beside_it(
    world: Clockwork, hand: Hand
) -> None:
    world.set("up", "0 9 * * *", "u")
    world.set("down", "-", "d", after=("up",), catch_up=CatchUp.ALL)
    world.scheduler.pause("down")
    world.go(2 * HOUR_MS)
    [made] = world.scheduler.rerun("down", DAY)
    world.scheduler.resume("down")
    work(world, hand, "u", "d")
    assert made.endswith("~1")
    assert [(row.run_id, row.outcome) for row in world.runs("down") if row.job_id] == [
        (made, "succeeded")
    ]


# ------------------------------------------------------------------------------ edits


def test_a_rule_in_place_of_upstreams_begins_now(world: Clockwork, hand: Hand) -> None:
    """The run without a rule was made for 23:00, when the last of its upstreams is due."""
    world.set("a", "0 9 * * *", "a")
    world.set("b", "0 23 * * *", "b")
    world.set("c", "-", "c", after=("a", "b"), overlap=Overlap.ALLOW)
    world.go(HOUR_MS)
    assert outcomes(world, "c") == {"15": "held"}
    world.set("c", "0 * * * *", "c", overlap=Overlap.ALLOW)
    assert world.scheduler.get("c").next_ms == world.wall_ms + HOUR_MS
    world.go(15 * HOUR_MS)
    told = world.told("c")
    assert [run for run, *_ in told] == [f"{DAY}T{hour:02}:00:00Z" for hour in range(10, 24)] + [
        "2027-01-16T00:00:00Z"
    ]
    assert told[13][1:] == ("cancelled", "edited", 1)  # 23:00 had its run
    assert {outcome for _, outcome, *_ in told[:13]} == {"running"}


def test_a_rule_that_gives_way_to_upstreams_makes_no_time_twice(
    world: Clockwork, hand: Hand
) -> None:
    world.set("a", "0 9 * * *", "a")
    world.set("c", "0 9 * * *", "c")
    world.go(HOUR_MS)
    work(world, hand, "c")
    world.set("c", "-", "c", after=("a",))
    work(world, hand, "a", "c")
    assert outcomes(world, "c") == {"15": "succeeded"}
    world.go(DAY_MS)
    work(world, hand, "a", "c")
    assert outcomes(world, "c") == {"15": "succeeded", "16": "succeeded"}


@pytest.mark.parametrize(
    ("old", "new"), [(old, new) for old in Date for new in Date if old is not new]
)
def test_runs_without_a_rule_stay_held_for_the_same_when_date_is_edited(
    world: Clockwork, hand: Hand, old: Date, new: Date
) -> None:
    """An hour's label was taken for a day's: held for nothing, or a traceback."""
    world.set("up", "30 9 * * *", "u")
    names = {"mid": "up", "low": "mid"}
    for name, after in names.items():
        world.set(name, "-", name, after=(after,), date=old)
    world.go(2 * HOUR_MS)
    order = ["mid", "low"] if old is Date.EXACT else ["low", "mid"]  # as they may wait
    for name in order:
        world.set(name, "-", name, after=(names[name],), date=new)
        assert outcomes(world, "mid") == outcomes(world, "low") == {"15": "held"}
    world.crash()
    hand = Hand(world)
    work(world, hand, "u", "mid", "low")
    assert outcomes(world, "low") == {"15": "succeeded"}
    world.scheduler.mark(f"mid@{DAY}T09:30:00Z", succeeded=False)
    assert world.scheduler.rerun("up", DAY, downstream=True) == [
        f"{name}@{DAY}T09:30:00Z~1" for name in ("up", "mid", "low")
    ]
    world.go(DAY_MS)
    assert list(outcomes(world, "mid")) == ["15", "15~1", "16"]


@pytest.mark.parametrize("overlap", [Overlap.QUEUE_ONE, Overlap.QUEUE_ALL])
@pytest.mark.parametrize("new", [overlap.value for overlap in Overlap])
def test_an_edit_lets_go_what_waited_behind_a_run_that_it_cancels(
    world: Clockwork, hand: Hand, overlap: Overlap, new: str
) -> None:
    """It waited for ever, and every later run was skipped, or waited behind it."""
    world.set("x", "0 9 * * *", overlap=overlap)
    world.go(HOUR_MS)
    made = world.scheduler.trigger("x")
    world.go(0)
    assert outcomes(world, "x") == {"15": "running", "15!1": "waiting"}
    world.set("x", "0 20 * * *", overlap=Overlap(new))
    assert outcomes(world, "x") == {"15": "cancelled", "15!1": "running"}
    assert hand.take_jobs() == [made]


@pytest.mark.parametrize("taken", [False, True])
def test_a_taken_run_of_a_backfill_stays_apart_when_an_edit_ends_that(
    world: Clockwork, hand: Hand, taken: bool
) -> None:
    """After a restart it counted for OVERLAP, and the next run was skipped for it."""
    world.set("x", "0 9 * * *")
    world.scheduler.backfill("x", day(10), day(14))
    world.go(0)
    if taken:
        assert len(hand.take_jobs()) == 1
    world.set("x", "0 10 * * *")
    world.crash()
    world.go(2 * HOUR_MS)
    assert outcomes(world, "x") == {"10": "running" if taken else "cancelled", "15": "running"}
    assert world.scheduler.get("x").backfill_left == 0


@pytest.mark.parametrize("by", ["force", "backfill"])
def test_a_taken_run_stays_apart_when_its_schedule_is_made_anew(
    world: Clockwork, hand: Hand, by: str
) -> None:
    world.set("x", "0 9 * * *")
    if by == "force":
        world.scheduler.trigger("x", force=True)
    else:
        world.scheduler.backfill("x", day(14), day(15))
    world.go(0)
    [taken] = hand.take_jobs()
    world.scheduler.delete("x")
    world.set("x", "0 9 * * *")
    world.crash()
    world.go(2 * HOUR_MS)
    assert {row.run_id: row.outcome for row in world.runs("x")} == {
        taken: "running",
        f"x@{DAY}T09:00:00Z": "running",
    }


@pytest.mark.parametrize("by", ["trigger", "backfill"])
def test_runs_by_hand_that_use_up_maxruns_end_a_schedule_at_once(world: Clockwork, by: str) -> None:
    world.set("x", "0 9 * * *", max_runs=2, overlap=Overlap.ALLOW)
    if by == "trigger":
        world.scheduler.trigger("x")
        world.scheduler.trigger("x")
    else:
        world.scheduler.backfill("x", day(10), day(12), active=9)
    world.go(0)
    row = world.scheduler.get("x")
    assert (row.runs, row.state, row.next_ms, row.fire_ms) == (2, "ended", None, None)
    world.set("x", "0 9 * * *", max_runs=3, overlap=Overlap.ALLOW)
    world.go(3 * DAY_MS)
    row = world.scheduler.get("x")
    assert (row.runs, row.state) == (3, "ended")


def test_a_run_by_hand_shares_no_id_with_one_from_before_a_deletion(
    world: Clockwork, hand: Hand
) -> None:
    world.set("x", "0 9 * * *", overlap=Overlap.ALLOW)
    at_ms = world.wall_ms - 1_000
    first = world.scheduler.trigger("x", at_ms=at_ms)
    world.go(0)
    assert hand.take_jobs() == [first]
    world.scheduler.delete("x")
    world.set("x", "0 9 * * *", overlap=Overlap.ALLOW)
    second = world.scheduler.trigger("x", at_ms=at_ms)
    world.go(0)
    assert hand.take_jobs() == [second] != [first]


@pytest.mark.parametrize(
    ("at_ms", "refused"),
    [(7_258_118_399_999, False), (7_258_118_400_000, True), ((1 << 48) - 1, True)],
)
def test_a_run_is_triggered_for_no_later_than_2199(
    world: Clockwork, at_ms: int, refused: bool
) -> None:
    world.set("x", "0 9 * * *", tz=NEW_YORK)
    if not refused:
        assert world.scheduler.trigger("x", at_ms=at_ms) == "x@2199-12-31T23:59:59.999Z!1"
        return
    with pytest.raises(ScheduleError, match=f"AT {at_ms} is not from 1970 to 2199") as error:
        world.scheduler.trigger("x", at_ms=at_ms)
    assert error.value.code == "LIMIT"


@pytest.mark.parametrize(
    ("bounds", "refused"),
    [
        ({"end_ms": 253_402_300_799_999}, ""),
        ({"end_ms": (1 << 48) - 1}, "END"),
        ({"start_ms": 7_258_118_400_000}, "START"),
        ({"start_ms": (1 << 48) - 1, "end_ms": (1 << 48) - 1}, "START"),
    ],
)
def test_bounds_lie_within_the_calendar(
    world: Clockwork, bounds: dict[str, int], refused: str
) -> None:
    if not refused:
        assert world.set("x", "0 9 * * *", **bounds) == "created"
        return
    with pytest.raises(ScheduleError, match=f"{refused} .* write a number") as error:
        world.set("x", "0 9 * * *", **bounds)
    assert error.value.code == "LIMIT"
    assert not world.scheduler.exists("x")


def test_catching_up_all_with_few_runs_left_makes_no_more_than_these(world: Clockwork) -> None:
    world.set("x", "0 * * * *", max_runs=3, catch_up=CatchUp.ALL)
    world.crash(5 * HOUR_MS)
    world.turns()
    assert len(world.runs("x")) == 3
    row = world.scheduler.get("x")
    assert (row.runs, row.next_ms, row.state) == (3, None, "ended")
