"""What one RERUN makes anew."""

import pytest

from tests.dag_world import Plan, Times, World, Zone, ms
from wheel.engine.dag import Phase
from wheel.engine.dates import Date, Dates
from wheel.engine.reruns import RERUNS_MAX, Reruns, own_label
from wheel.errors import Conflict, LimitError

T02 = ms("2026-11-02T02:00:00Z")
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DAY = "2026-11-02"


def daily(at_ms: int) -> Times:
    return Times(at_ms + DAY_MS * day for day in range(5))


def targets(
    world: World, name: str, label: str = DAY, date: Date = Date.DAY, *, downstream: bool = False
) -> list[tuple[str, int]]:
    reruns = Reruns(world.graph, world, Dates(world.schedule))
    return [
        (t.name, t.nominal_ms) for t in reruns.targets(name, label, date, downstream=downstream)
    ]


def nightly() -> World:
    """Return db and files at 02:00, then verify and report without rules, then notify at 06:00."""
    world = World()
    for name in ("db", "files"):
        world.set(Plan(name=name, rule=daily(T02)))
    world.set(Plan(name="verify", after=("db", "files")))
    world.set(Plan(name="report", after=("verify",)))
    world.set(Plan(name="notify", rule=daily(T02 + 4 * HOUR_MS), after=("report",)))
    return world


def run_through(world: World) -> None:
    for name in ("db", "files", "notify"):
        world.fire(name)
    for name in ("db", "files", "verify", "report"):
        world.end(name, T02, Phase.SUCCEEDED)
    world.end("notify", T02 + 4 * HOUR_MS, Phase.SUCCEEDED)


def test_alone_only_the_schedules_own_runs_of_the_date():
    world = nightly()
    run_through(world)
    world.fire("db")
    world.end("db", T02 + DAY_MS, Phase.DEAD)
    assert targets(world, "db") == [("db", T02)]
    assert targets(world, "db", "2026-11-03") == [("db", T02 + DAY_MS)]


def test_downstream_in_the_order_of_running_and_nothing_beside():
    world = nightly()
    run_through(world)
    assert targets(world, "db", downstream=True) == [
        ("db", T02),
        ("verify", T02),
        ("report", T02),
        ("notify", T02 + 4 * HOUR_MS),
    ]


def test_downstream_leaves_what_is_held_or_runs_to_see_for_itself():
    world = nightly()
    for name in ("db", "files"):
        world.fire(name)
        world.end(name, T02, Phase.DEAD)
    assert targets(world, "db", downstream=True) == [("db", T02)]


def test_downstream_reaches_other_dates_where_zones_differ():
    world = World()
    late_ms = ms("2026-11-02T23:30:00Z")
    world.set(Plan(name="up", rule=Times([late_ms]), zone=Zone("Europe/Rome")))
    world.set(Plan(name="down", rule=daily(T02 + DAY_MS), after=("up",)))
    world.fire("up")
    world.fire("down")
    world.end("up", late_ms, Phase.SUCCEEDED)
    world.end("down", T02 + DAY_MS, Phase.SUCCEEDED)
    assert targets(world, "up", "2026-11-03", downstream=True) == [
        ("up", late_ms),
        ("down", T02 + DAY_MS),
    ]


def test_whatever_the_end_was_it_is_run_again_and_trimmed_successes_too():
    world = World()
    times = [T02 + HOUR_MS * hour for hour in range(6)]
    world.set(Plan(name="often", rule=Times(times)))
    for phase in (Phase.SUCCEEDED, Phase.DEAD, Phase.CANCELLED):
        world.fire("often")
        at = max(world.runs_of["often"])
        world.end("often", at, phase)
    world.skip("often")
    world.miss("often", 2)
    world.runs_of["often"][T02].trimmed = True
    assert targets(world, "often") == [("often", at) for at in times]


def test_by_hour_only_that_hours_runs():
    world = World()
    world.set(Plan(name="often", rule=Times([T02, T02 + 1_800_000, T02 + HOUR_MS])))
    for _ in range(3):
        world.fire("often")
        world.end("often", max(world.runs_of["often"]), Phase.SUCCEEDED)
    hour = targets(world, "often", "2026-11-02T02", Date.HOUR)
    assert hour == [("often", T02), ("often", T02 + 1_800_000)]


def test_a_date_that_passed_before_the_schedule_was_made_gets_the_rules_times():
    world = World()
    later_ms = T02 + 3 * DAY_MS
    world.set(Plan(name="db", rule=daily(T02), since_ms=later_ms, position_ms=later_ms))
    assert targets(world, "db") == [("db", T02)]


def test_a_date_on_which_the_rule_has_nothing_gets_one_run_at_its_first_moment():
    world = World()
    world.set(Plan(name="db", rule=daily(T02 + DAY_MS)))
    ((name, nominal_ms),) = targets(world, "db")
    assert name == "db"
    assert Zone("UTC").span(DAY, Date.DAY)[0] == nominal_ms


@pytest.mark.parametrize(("fired", "word"), [(False, "still to come"), (True, "not over yet")])
def test_what_is_not_over_is_refused(fired, word):
    world = World()
    world.set(Plan(name="db", rule=daily(T02)))
    if fired:
        world.fire("db")
    with pytest.raises(Conflict, match=word):
        targets(world, "db")


def test_without_a_rule_a_missed_date_is_made_at_its_own_time():
    world = nightly()
    for name in ("db", "files"):
        world.miss(name, 1)
    assert targets(world, "verify") == [("verify", T02)]


def test_more_than_one_command_may_make_is_refused():
    world = World()
    times = Times(T02 + i * 1000 for i in range(RERUNS_MAX + 1))
    world.set(Plan(name="secondly", rule=times, position_ms=T02 + DAY_MS))
    with pytest.raises(LimitError, match="1000"):
        targets(world, "secondly")


def test_a_schedule_that_is_not_there_is_refused():
    with pytest.raises(KeyError):
        targets(World(), "nobody")


def test_the_label_of_a_run_without_a_rule_is_found_by_its_time():
    world = World()
    rome_ms = ms("2026-11-03T00:30:00+01:00")
    world.set(Plan(name="up", rule=Times([rome_ms]), zone=Zone("Europe/Rome")))
    world.set(Plan(name="mid", after=("up",)))
    dates = Dates(world.schedule)
    assert own_label(world, dates, world.plans["mid"], rome_ms) == "2026-11-03"
    assert own_label(world, dates, world.plans["mid"], rome_ms + 1) == "2026-11-02"
    world.fire("up")
    world.set(Plan(name="up", rule=Times([rome_ms + HOUR_MS]), zone=Zone("Europe/Rome")))
    assert own_label(world, Dates(world.schedule), world.plans["mid"], rome_ms) == "2026-11-03"
