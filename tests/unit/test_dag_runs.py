"""Schedules that wait for others, on a real core: from the rule to the worker's hand."""

from collections.abc import Callable, Iterator

import pytest

from tests.fed import WALL_MS
from tests.schedules import DAY_MS, HOUR_MS, MINUTE_MS, Clockwork, Hand
from wheel.engine.core import DiskRoom
from wheel.engine.dag import AfterRule
from wheel.engine.dates import Date
from wheel.engine.definition import CatchUp, Overlap, ScheduleError
from wheel.errors import Conflict, CycleError, InvalidRequest, NotFound

# The clock begins on 2027-01-15 at 08:00 UTC.
DAY = "2027-01-15"


@pytest.fixture
def world() -> Iterator[Clockwork]:
    world = Clockwork()
    yield world
    world.check()


@pytest.fixture
def hand(world: Clockwork) -> Hand:
    return Hand(world)


def outcomes(world: Clockwork, name: str) -> list[tuple[str, str]]:
    """Return outcome and first word of the reason of a schedule's runs, oldest first."""
    return [(row.outcome, row.reason.partition(" ")[0]) for row in world.runs(name)]


def backup_and_report(world: Clockwork, **options: object) -> None:
    """Make a backup at 9 and a report at 10 that waits for it."""
    world.set("backup", "0 9 * * *", "b")
    world.set("report", "0 10 * * *", "r", after=("backup",), **options)


def test_a_run_is_handed_out_when_its_upstream_has_succeeded(world: Clockwork, hand: Hand) -> None:
    backup_and_report(world)
    world.go(2 * HOUR_MS)
    assert outcomes(world, "report") == [("held", "running")]
    assert hand.take_jobs("r") == []
    hand.done(*hand.take_jobs("b"))
    world.go(0)
    assert hand.take_jobs("r") == [f"report@{DAY}T10:00:00Z"]


@pytest.mark.parametrize("ending", ["dead", "cancelled"])
def test_a_failed_upstream_holds_and_a_rerun_heals(
    world: Clockwork, hand: Hand, ending: str
) -> None:
    backup_and_report(world)
    world.go(HOUR_MS)
    if ending == "dead":
        hand.fail(*hand.take_jobs("b"))
    else:
        hand.say(f"CANCEL {world.runs('backup')[0].job_id}")
    world.go(HOUR_MS)
    assert outcomes(world, "report") == [("upstream_failed", ending)]
    assert world.scheduler.rerun("backup", DAY) == [f"backup@{DAY}T09:00:00Z~1"]
    world.go(0)
    assert outcomes(world, "report") == [("held", "running")]
    hand.done(*hand.take_jobs("b"))
    world.go(0)
    assert hand.take_jobs("r") == [f"report@{DAY}T10:00:00Z"]


def test_a_requeued_upstream_is_waited_for_again(world: Clockwork, hand: Hand) -> None:
    backup_and_report(world)
    world.go(HOUR_MS)
    hand.fail(*hand.take_jobs("b"))
    world.go(HOUR_MS)
    hand.say(f"REQUEUE {world.runs('backup')[0].job_id}")
    world.go(0)
    assert outcomes(world, "report") == [("held", "running")]
    hand.done(*hand.take_jobs("b"))
    world.go(0)
    assert hand.take_jobs("r")


def test_an_upstream_skipped_for_overlap_holds_with_that_reason(
    world: Clockwork, hand: Hand
) -> None:
    world.set("backup", "0 9,10 * * *", "b")
    world.set("report", "0 11 * * *", "r", after=("backup",))
    world.go(HOUR_MS)
    [first] = hand.take_jobs(
        "b",
    )
    world.go(2 * HOUR_MS)
    assert outcomes(world, "backup") == [("running", ""), ("skipped", "overlap")]
    assert outcomes(world, "report") == [("upstream_failed", "skipped")]
    world.scheduler.mark(f"backup@{DAY}T10:00:00Z", succeeded=True)
    world.go(0)
    assert outcomes(world, "report") == [("held", "running")]
    assert first == f"backup@{DAY}T09:00:00Z"


def test_an_upstream_missed_while_down_holds_with_that_reason(world: Clockwork, hand: Hand) -> None:
    world.set("backup", "0 9 * * *", "b", catch_up=CatchUp.SKIP)
    world.set("report", "0 10 * * *", "r", after=("backup",))
    world.crash(3 * HOUR_MS)
    hand = Hand(world)
    world.go(0)
    assert outcomes(world, "backup") == [("missed", "down")]
    assert outcomes(world, "report") == [("upstream_failed", "missed")]
    world.scheduler.rerun("backup", DAY)
    world.go(0)
    hand.done(*hand.take_jobs("b"))
    world.go(0)
    assert hand.take_jobs("r")


def test_a_paused_upstream_is_waited_for_and_its_catch_up_decides(
    world: Clockwork, hand: Hand
) -> None:
    backup_and_report(world)
    world.scheduler.pause("backup")
    world.go(3 * HOUR_MS)
    assert outcomes(world, "report") == [("held", "paused")]
    world.scheduler.resume("backup")
    world.go(0)
    hand.done(*hand.take_jobs("b"))
    world.go(0)
    assert hand.take_jobs("r")


def test_a_date_without_upstream_holds_until_somebody_marks_it(
    world: Clockwork, hand: Hand
) -> None:
    world.set("backup", "0 9 1 * *", "b")
    world.set("report", "0 10 * * *", "r", after=("backup",))
    world.go(3 * HOUR_MS)
    assert outcomes(world, "report") == [("no_upstream", "none")]
    world.scheduler.mark(f"backup@{DAY}T00:00:00Z", succeeded=True)
    world.go(0)
    assert hand.take_jobs("r")


def test_a_date_without_upstream_holds_until_somebody_reruns_it(
    world: Clockwork, hand: Hand
) -> None:
    world.set("backup", "0 9 1 * *", "b")
    world.set("report", "0 10 * * *", "r", after=("backup",))
    world.go(3 * HOUR_MS)
    assert world.scheduler.rerun("backup", DAY) == [f"backup@{DAY}T00:00:00Z~1"]
    world.go(0)
    hand.done(*hand.take_jobs("b"))
    world.go(0)
    assert hand.take_jobs("r")


def test_a_run_by_hand_of_the_upstream_does_not_count(world: Clockwork, hand: Hand) -> None:
    world.set("backup", "0 9 1 * *", "b")
    world.set("report", "0 10 * * *", "r", after=("backup",))
    world.scheduler.trigger("backup")
    world.go(0)
    hand.done(*hand.take_jobs("b"))
    world.go(3 * HOUR_MS)
    assert outcomes(world, "report") == [("no_upstream", "none")]


def test_an_upstream_that_has_used_up_its_runs_has_none_on_later_dates(
    world: Clockwork, hand: Hand
) -> None:
    backup_and_report(world, overlap=Overlap.ALLOW)
    world.set("backup", "0 9 * * *", "b", max_runs=1)
    world.go(2 * HOUR_MS)
    hand.done(*hand.take_jobs("b"))
    world.go(DAY_MS)
    assert outcomes(world, "report") == [("running", ""), ("no_upstream", "none")]


def test_times_that_passed_while_an_upstream_had_ended_do_not_count_as_done(
    world: Clockwork, hand: Hand
) -> None:
    world.set("backup", "0 9,10,11 * * *", "b", max_runs=1)
    world.set("report", "30 10 * * *", "r", after=("backup",), overlap=Overlap.ALLOW)
    world.go(HOUR_MS)
    hand.fail(*hand.take_jobs("b"))
    world.go(HOUR_MS + 15 * MINUTE_MS)
    world.set("backup", "0 9,10,11 * * *", "b", max_runs=9)
    world.scheduler.mark(f"backup@{DAY}T09:00:00Z", succeeded=True)
    world.go(HOUR_MS)
    assert [row.run_id for row in world.runs("report")] == [f"report@{DAY}T10:30:00Z"]
    assert outcomes(world, "report") == [("running", "")]
    world.set("late", "0 12 * * *", "r", after=("backup",))
    world.go(HOUR_MS)
    assert outcomes(world, "late") == [("held", "running")]


def test_times_before_a_start_to_come_do_not_count_as_done(world: Clockwork) -> None:
    world.set("backup", "0 * * * *", "b")
    world.set("report", "30 10 * * *", "r", after=("backup",))
    world.set("backup", "0 * * * *", "b", start_ms=WALL_MS + 5 * HOUR_MS)
    world.go(3 * HOUR_MS)
    assert outcomes(world, "report") == [("held", "pending")]


# ---------------------------------------------------------------- edits


def test_edges_edited_while_runs_are_held_count_for_them(world: Clockwork, hand: Hand) -> None:
    backup_and_report(world)
    world.set("files", "0 9 * * *", "f")
    world.go(2 * HOUR_MS)
    world.set("report", "0 10 * * *", "r", after=("files",))
    world.go(0)
    hand.done(*hand.take_jobs("f"))
    world.go(0)
    assert hand.take_jobs("r") == [f"report@{DAY}T10:00:00Z"]


def test_the_upstreams_rule_is_asked_anew_when_it_is_edited(world: Clockwork) -> None:
    backup_and_report(world)
    world.go(2 * HOUR_MS)
    world.set("backup", "0 9 1 * *", "b")
    world.go(0)
    assert outcomes(world, "report") == [("no_upstream", "none")]
    world.set("backup", "0 20 * * *", "b")
    world.go(0)
    assert outcomes(world, "report") == [("held", "pending")]


def test_an_upstream_is_deleted_only_by_force_and_made_again_it_heals(
    world: Clockwork, hand: Hand
) -> None:
    backup_and_report(world)
    with pytest.raises(Conflict, match="'report'"):
        world.scheduler.delete("backup")
    world.go(2 * HOUR_MS)
    world.scheduler.delete("backup", force=True)
    world.go(0)
    assert outcomes(world, "report") == [("no_upstream", "deleted")]
    world.set("report", "0 10 * * *", "r", payload=b"other", after=("backup",))
    world.set("backup", "0 12 * * *", "b")
    world.go(2 * HOUR_MS)
    hand.done(*hand.take_jobs("b"))
    world.go(0)
    assert hand.take_jobs("r")


@pytest.mark.parametrize(
    ("name", "after", "error", "text"),
    [
        ("backup", ("report",), CycleError, "^backup -> report -> backup$"),
        ("report", ("bakery",), NotFound, "'bakery'"),
        ("report", ("backup", "backup"), (InvalidRequest, ScheduleError), "twice"),
    ],
)
def test_edges_that_cannot_stand_change_nothing(world, name, after, error, text) -> None:
    backup_and_report(world)
    before = world.core.state_hash()
    with pytest.raises(error, match=text):
        world.set(name, "0 9 * * *", "b", after=after)
    assert world.core.state_hash() == before
    assert world.scheduler.planner.graph.upstreams("report") == ("backup",)


def test_edges_refused_for_want_of_room_do_not_stand(world: Clockwork) -> None:
    backup_and_report(world)
    world.set("files", "0 9 * * *", "f")
    world.core.set_disk_room(DiskRoom.FULL)
    world.tick()
    with pytest.raises(ScheduleError):
        world.set("report", "0 10 * * *", "r", after=("files",))
    world.core.set_disk_room(DiskRoom.OK)
    world.tick()
    assert world.scheduler.planner.graph.upstreams("report") == ("backup",)
    world.go(2 * HOUR_MS)
    assert outcomes(world, "report") == [("held", "running")]


# ---------------------------------------------------------------- held runs and overlap


def test_overlap_is_judged_at_the_nominal_time_though_the_run_would_be_held(
    world: Clockwork, hand: Hand
) -> None:
    backup_and_report(world)
    world.go(2 * HOUR_MS)
    hand.done(*hand.take_jobs("b"))
    world.go(0)
    [first] = hand.take_jobs("r", for_ms=2 * DAY_MS)
    world.go(DAY_MS)
    assert outcomes(world, "report") == [("running", ""), ("skipped", "overlap")]
    assert hand.done(first) == "OK"


def test_runs_held_for_upstreams_are_not_active(world: Clockwork, hand: Hand) -> None:
    world.set("backup", "0 9 * * *", "b", overlap=Overlap.ALLOW)
    world.set("report", "0 10 * * *", "r", after=("backup",))
    world.go(2 * HOUR_MS + DAY_MS)
    assert outcomes(world, "report") == [("held", "running")] * 2


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.ALLOW, Overlap.CANCEL_RUNNING])
def test_a_run_released_while_another_is_active_waits_its_turn_or_goes_at_once(
    world: Clockwork, hand: Hand, overlap: Overlap
) -> None:
    world.set("backup", "0 9 * * *", "b", overlap=Overlap.ALLOW)
    world.set("report", "0 10 * * *", "r", after=("backup",), overlap=overlap)
    world.go(2 * HOUR_MS + DAY_MS)
    for run in hand.take_jobs("b"):
        hand.done(run)
    world.go(0)
    taken = hand.take_jobs("r")
    if overlap is Overlap.ALLOW:
        assert len(taken) == 2
        return
    assert taken == [f"report@{DAY}T10:00:00Z"]
    assert [row.outcome for row in world.runs("report")] == ["running", "waiting"]
    hand.done(*taken)
    world.go(0)
    assert hand.take_jobs("r") == ["report@2027-01-16T10:00:00Z"]


def test_at_its_turn_a_run_is_held_again_if_its_upstream_was_rerun_meanwhile(
    world: Clockwork, hand: Hand
) -> None:
    world.set("backup", "0 9 * * *", "b", overlap=Overlap.ALLOW)
    world.set("report", "0 10 * * *", "r", after=("backup",))
    world.go(2 * HOUR_MS + DAY_MS)
    for run in hand.take_jobs("b"):
        hand.done(run)
    world.go(0)
    [first] = hand.take_jobs("r")
    world.scheduler.rerun("backup", "2027-01-16")
    world.go(0)
    hand.done(first)
    world.go(0)
    assert [row.outcome for row in world.runs("report")] == ["succeeded", "held"]
    hand.done(*hand.take_jobs("b"))
    world.go(0)
    assert hand.take_jobs("r") == ["report@2027-01-16T10:00:00Z"]


# ---------------------------------------------------------------- zones


def test_a_day_of_25_hours_is_waited_for_whole(world: Clockwork, hand: Hand) -> None:
    """Rome's 2027-10-31; 02:00 comes twice, and the report is for both."""
    world.crash(288 * DAY_MS)  # to 2027-10-30 08:00 UTC
    hand = Hand(world)
    world.set("hourly", "0 * * * *", "b", tz="Europe/Rome", overlap=Overlap.ALLOW)
    world.set("day", "55 23 * * *", "r", tz="Europe/Rome", after=("hourly",))
    world.go(14 * HOUR_MS - MINUTE_MS)  # to its last minute
    for run in hand.take_jobs("b"):
        hand.done(run)
    world.go(0)
    hand.done(*hand.take_jobs("r"))
    world.go(25 * HOUR_MS)
    assert [row.label for row in world.runs("day")] == ["2027-10-30", "2027-10-31"]
    taken = hand.take_jobs("b")
    assert len(taken) == 25
    for run in taken:
        assert world.runs("day")[-1].outcome == "held"
        hand.done(run)
        world.go(0)
    assert world.runs("day")[-1].outcome != "held"


def test_dates_are_compared_as_each_zone_tells_them(world: Clockwork, hand: Hand) -> None:
    """Kiritimati's 16th begins at 10:00 UTC of the 15th; New York's report of the 16th waits."""
    world.set("backup", "30 0 * * *", "b", tz="Pacific/Kiritimati")
    world.set("report", "0 6 * * *", "r", tz="America/New_York", after=("backup",))
    world.go(3 * HOUR_MS)
    assert [row.label for row in world.runs("backup")] == ["2027-01-16"]
    hand.done(*hand.take_jobs("b"))
    world.go(DAY_MS)
    assert [(row.label, row.outcome) for row in world.runs("report")] == [
        (DAY, "no_upstream"),
        ("2027-01-16", "running"),
    ]


@pytest.mark.parametrize(("date", "label"), [(Date.HOUR, f"{DAY}T09"), (Date.EXACT, None)])
def test_by_the_hour_or_the_moment(world: Clockwork, hand: Hand, date: Date, label: str) -> None:
    world.set("often", "*/30 * * * *", "b", overlap=Overlap.ALLOW)
    world.set("down", "30 9 * * *", "r", after=("often",), date=date)
    world.go(2 * HOUR_MS)
    hand.take_jobs("b")
    needed = [f"often@{DAY}T09:30:00Z"]
    needed += [f"often@{DAY}T09:00:00Z"] if date is Date.HOUR else []
    for run in needed:
        assert [row.outcome for row in world.runs("down")] == ["held"]
        hand.done(run)
        world.go(0)
    assert hand.take_jobs("r")
    assert world.runs("down")[0].label == (label or f"{DAY}T09:30:00Z")


# ---------------------------------------------------------------- without a rule


def nightly(world: Clockwork) -> None:
    """Make db and files, then verify, report and notify without rules of their own."""
    world.set("db", "0 9 * * *", "db")
    world.set("files", "0 10 * * *", "files")
    world.set("verify", "-", "verify", after=("db", "files"))
    world.set("report", "-", "report", after=("verify",))
    world.set("notify", "-", "notify", after=("report",), after_rule=AfterRule.ALL_DONE)


def test_a_graph_runs_through_in_order(world: Clockwork, hand: Hand) -> None:
    nightly(world)
    world.go(HOUR_MS)
    assert [row.run_id for row in world.runs("notify")] == [f"notify@{DAY}T10:00:00Z"]
    world.go(HOUR_MS)
    order: list[str] = []
    for handler in ("db", "files", "verify", "report", "notify"):
        [run] = hand.take_jobs(
            "db,files,verify,report,notify".replace("db,files", handler, 1)
            if handler in {"db", "files"}
            else handler
        )
        order.append(run.partition("@")[0])
        hand.done(run)
        world.go(0)
    assert order == ["db", "files", "verify", "report", "notify"]


def test_a_failure_ends_in_the_note_and_a_rerun_goes_on_from_there(
    world: Clockwork, hand: Hand
) -> None:
    nightly(world)
    world.go(2 * HOUR_MS)
    hand.done(*hand.take_jobs("db"))
    hand.fail(*hand.take_jobs("files"))
    world.go(0)
    assert outcomes(world, "verify") == [("upstream_failed", "dead")]
    assert outcomes(world, "report") == [("upstream_failed", "dead")]
    hand.done(*hand.take_jobs("notify"))
    world.scheduler.rerun("files", DAY)
    world.go(0)
    for handler in ("files", "verify", "report"):
        hand.done(*hand.take_jobs(handler))
        world.go(0)
    assert outcomes(world, "report") == [("succeeded", "")]
    assert hand.take_jobs("notify") == []


def test_nobody_goes_before_all_is_made_that_one_run_calls_for(
    world: Clockwork, hand: Hand
) -> None:
    world.set("db", "0 9,10 * * *", "b")
    world.set("a_report", "-", "r", after=("db",), date=Date.HOUR)
    world.set("check", "-", "c", after=("db",), date=Date.HOUR, after_rule=AfterRule.ALL_DONE)
    world.set(
        "b_note",
        "-",
        "n",
        after=("a_report", "check"),
        date=Date.HOUR,
        after_rule=AfterRule.ALL_DONE,
        overlap=Overlap.ALLOW,
    )
    world.go(HOUR_MS)
    hand.take_jobs("b")
    world.go(HOUR_MS)  # 10:00 is skipped: the report is stuck, the check runs
    assert outcomes(world, "a_report")[1] == ("upstream_failed", "skipped")
    hand.done(*hand.take_jobs("c"))
    assert outcomes(world, "b_note")[1] == ("held", "running")
    world.go(0)
    assert hand.take_jobs("n") == [f"b_note@{DAY}T10:00:00Z"]


def test_a_rerun_makes_what_was_never_made_once(world: Clockwork, hand: Hand) -> None:
    """The run that the rerun calls for is the one that DOWNSTREAM names."""
    world.set("backup", "0 9 * * *", "b", catch_up=CatchUp.SKIP)
    world.set("report", "-", "r", after=("backup",))
    world.crash(3 * HOUR_MS)
    hand = Hand(world)
    world.go(0)
    made = world.scheduler.rerun("backup", DAY, downstream=True)
    assert made == [f"backup@{DAY}T09:00:00Z~1", f"report@{DAY}T09:00:00Z"]
    world.go(0)
    hand.done(*hand.take_jobs("b"))
    world.go(0)
    assert hand.take_jobs("r") == [f"report@{DAY}T09:00:00Z"]


def test_a_date_without_a_rule_has_one_run_and_no_other_is_marked(
    world: Clockwork, hand: Hand
) -> None:
    nightly(world)
    world.go(2 * HOUR_MS)
    with pytest.raises(ScheduleError, match=f"verify@{DAY}T10:00:00Z"):
        world.scheduler.mark(f"verify@{DAY}T09:30:00Z", succeeded=True)
    world.scheduler.mark(f"verify@{DAY}T10:00:00Z", succeeded=True)
    world.go(0)
    assert hand.take_jobs("report")


def test_rerun_downstream_makes_all_of_it_again_in_order(world: Clockwork, hand: Hand) -> None:
    nightly(world)
    world.go(2 * HOUR_MS)
    for handler in ("db", "files", "verify", "report", "notify"):
        hand.done(*hand.take_jobs(handler))
        world.go(0)
    made = world.scheduler.rerun("files", DAY, downstream=True)
    names = ["files", "verify", "report", "notify"]
    assert made == [f"{name}@{DAY}T10:00:00Z~1" for name in names]
    world.go(0)
    for name in names:
        for later in names[names.index(name) + 1 :]:
            assert hand.take_jobs(later) == []
        hand.done(*hand.take_jobs(name))
        world.go(0)
    assert [row.outcome for row in world.runs("notify")] == ["succeeded"] * 2


def test_a_backfill_of_the_roots_goes_through_the_graph_date_by_date(
    world: Clockwork, hand: Hand
) -> None:
    nightly(world)
    from_ms = WALL_MS - 3 * DAY_MS
    for name in ("db", "files"):
        world.scheduler.backfill(name, from_ms, WALL_MS)
    world.go(0)
    done: list[str] = []
    for _ in range(40):
        for handler in ("notify", "report", "verify", "files", "db"):
            for run in hand.take_jobs(handler):
                done.append(run)
                hand.done(run)
                world.go(0)
    days = [f"2027-01-{day}" for day in (12, 13, 14)]
    for name in ("verify", "report", "notify"):
        runs = [run for run in done if run.startswith(name)]
        assert runs == [f"{name}@{day}T10:00:00Z" for day in days]
    for day in days:
        of_day = [run.partition("@")[0] for run in done if day in run]
        assert of_day.index("verify") > max(of_day.index("db"), of_day.index("files"))
        assert of_day[of_day.index("verify") :] == ["verify", "report", "notify"]


@pytest.mark.parametrize(
    ("catch_up", "days"),
    [(CatchUp.LATEST, ["17"]), (CatchUp.ALL, ["15", "16", "17"]), (CatchUp.SKIP, [])],
)
def test_dates_that_pass_while_it_is_paused_are_made_up_for_as_it_says(
    world: Clockwork, hand: Hand, catch_up: CatchUp, days: list[str]
) -> None:
    world.set("backup", "0 9 * * *", "b", overlap=Overlap.ALLOW)
    world.set("report", "-", "r", after=("backup",), catch_up=catch_up)
    world.scheduler.pause("report")
    world.go(3 * DAY_MS)
    for run in hand.take_jobs("b"):
        hand.done(run)
    world.scheduler.resume("report")
    world.go(0)
    done: list[str] = []
    while taken := hand.take_jobs("r"):
        done += taken
        hand.done(*taken)
        world.go(0)
    assert done == [f"report@2027-01-{day}T09:00:00Z" for day in days]


@pytest.mark.parametrize("catch_up", [CatchUp.LATEST, CatchUp.ALL])
def test_a_date_that_is_made_up_for_is_missed_no_longer(
    world: Clockwork, hand: Hand, catch_up: CatchUp
) -> None:
    """One date, one record: RUNS shows no run beside the word that there was none."""
    world.set("backup", "0 9 * * *", "b", overlap=Overlap.ALLOW)
    world.set("report", "-", "r", after=("backup",), catch_up=catch_up)
    world.scheduler.pause("report")
    world.go(3 * DAY_MS)
    assert outcomes(world, "report") == [("missed", "paused")] * 3
    world.scheduler.resume("report")
    times = [row.first_ms for row in world.runs("report")]
    assert len(times) == len(set(times)) == 3
    row = world.scheduler.get("report")
    assert (row.missed, row.runs) == ((2, 1) if catch_up is CatchUp.LATEST else (0, 3))


def test_a_pause_makes_up_for_its_own_dates_also_when_the_clock_was_set_back(
    world: Clockwork, hand: Hand
) -> None:
    """What an earlier pause had left out was made again, by its time on the wall."""
    world.set("backup", "0 * * * *", "b", overlap=Overlap.ALLOW, date="hour")
    world.set("report", "-", "r", after=("backup",), date=Date.HOUR)
    world.scheduler.pause("report")
    world.go(3 * HOUR_MS)
    world.scheduler.resume("report")
    assert [row.outcome for row in world.runs("report")] == ["missed", "missed", "held"]
    world.step_wall(-6 * HOUR_MS)
    world.scheduler.pause("report")
    world.go(MINUTE_MS)
    world.scheduler.resume("report")
    assert [row.outcome for row in world.runs("report")] == ["missed", "missed", "held"]
    assert world.scheduler.get("report").runs == 1


def backfilled(world: Clockwork, *, of_day: int = 14) -> None:
    """Have the upstream run three times for a day that passed before it was made."""
    from_ms = WALL_MS + (of_day - 15) * DAY_MS
    world.scheduler.backfill("backup", from_ms, from_ms + 2 * HOUR_MS, active=10)
    world.turns()


@pytest.mark.parametrize("how", ["accepted", "restarted"])
@pytest.mark.parametrize("catch_up", [CatchUp.LATEST, CatchUp.ALL])
def test_a_pause_makes_up_for_its_own_dates_also_when_logical_now_went_back(
    world: Clockwork, catch_up: CatchUp, how: str
) -> None:
    """What was dropped in the pause seemed to be older than it, and was never made up for."""
    world.set("backup", "0 * * * *", "b", overlap=Overlap.ALLOW, date="hour")
    world.set("report", "-", "r", after=("backup",), catch_up=catch_up, date="hour")
    world.wall_ms += 2_000_000  # the clock goes on, and nothing is logged
    world.boot_ms += 2_000_000
    world.mono_ms += 2_000_000
    world.tick()
    world.step_wall(-6 * HOUR_MS)
    world.scheduler.pause("report")
    if how == "accepted":
        world.core.accept_clock()
    else:
        world.crash()
    before_ms = world.core.times().logical_ms
    assert before_ms < world.scheduler.get("report").paused_ms
    backfilled(world)
    assert outcomes(world, "report") == [("missed", "paused")] * 3
    world.scheduler.resume("report")
    assert world.scheduler.get("report").runs == (1 if catch_up is CatchUp.LATEST else 3)


def test_a_second_pause_in_the_millisecond_of_a_resume_makes_nothing_again(
    world: Clockwork,
) -> None:
    """What LATEST had left out in the first pause was made at the second one's end."""
    world.set("backup", "0 * * * *", "b", overlap=Overlap.ALLOW, date="hour")
    world.set("report", "-", "r", after=("backup",), date="hour")
    world.scheduler.pause("report")
    backfilled(world)
    for _ in range(3):
        world.scheduler.resume("report")
        world.scheduler.pause("report")
    assert [row.outcome for row in world.runs("report")] == ["missed", "missed", "held"]
    assert world.scheduler.get("report").runs == 1


def two_upstreams(world: Clockwork) -> tuple[str, ...]:
    world.set("db", "15 9 * * *", "b")
    world.set("files", "45 9 * * *", "b")
    return ("db", "files")


def one_that_runs_twice(world: Clockwork) -> tuple[str, ...]:
    world.set("db", "15,45 9 * * *", "b", overlap=Overlap.ALLOW)
    return ("db",)


@pytest.mark.parametrize("upstreams", [two_upstreams, one_that_runs_twice])
@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_a_date_that_several_called_for_in_a_pause_is_one_run(
    world: Clockwork,
    hand: Hand,
    upstreams: Callable[[Clockwork], tuple[str, ...]],
    catch_up: CatchUp,
) -> None:
    """Each of them left a record, and RESUME made a job of each, all with one run id."""
    world.set("verify", "-", "v", after=upstreams(world), catch_up=catch_up)
    world.scheduler.pause("verify")
    world.go(2 * HOUR_MS)
    [row] = world.runs("verify")
    assert (row.outcome, row.reason, row.label) == ("missed", "paused", DAY)
    assert world.scheduler.get("verify").missed == 1
    world.scheduler.resume("verify")
    world.go(0)
    made = catch_up is not CatchUp.SKIP
    assert hand.say("COUNT HANDLER v") == int(made)
    assert outcomes(world, "verify") == ([("held", "running")] if made else [("missed", "paused")])
    assert world.scheduler.get("verify").missed == int(not made)


def test_a_date_that_one_missed_in_a_pause_and_another_calls_for_behind_it_is_made(
    world: Clockwork, hand: Hand
) -> None:
    world.set("verify", "-", "v", after=two_upstreams(world), catch_up=CatchUp.SKIP)
    world.scheduler.pause("verify")
    world.go(HOUR_MS + 20 * MINUTE_MS)
    assert outcomes(world, "verify") == [("missed", "paused")]
    world.scheduler.resume("verify")
    world.go(HOUR_MS)
    assert outcomes(world, "verify") == [("held", "running")]
    assert world.scheduler.get("verify").missed == 0


@pytest.mark.parametrize(
    ("more", "made"),
    [
        ({"catch_up": CatchUp.ALL}, 40),
        ({"catch_up": CatchUp.ALL, "catch_up_max": 30}, 30),
        ({"catch_up": CatchUp.ALL, "window_ms": 25 * HOUR_MS}, 25),
        ({"catch_up": CatchUp.LATEST}, 1),
        ({"catch_up": CatchUp.LATEST, "window_ms": MINUTE_MS - 1}, 0),
        ({"catch_up": CatchUp.SKIP}, 0),
    ],
)
def test_more_dates_than_a_history_keeps_are_made_up_for(
    world: Clockwork, hand: Hand, more: dict[str, object], made: int
) -> None:
    """Of forty hours that passed in a pause all but the newest twenty were gone without a word."""
    world.set("backup", "0 * * * *", "b", overlap=Overlap.ALLOW)
    world.set("report", "-", "r", after=("backup",), date=Date.HOUR, overlap=Overlap.ALLOW, **more)
    world.scheduler.pause("report")
    world.go(40 * HOUR_MS + MINUTE_MS)
    assert world.scheduler.get("report").missed == 40
    world.crash()
    world.scheduler.resume("report")
    world.go(0)
    row = world.scheduler.get("report")
    assert (row.runs, row.missed) == (made, 40 - made)
    times = [row.first_ms for row in world.runs("report") if not row.ended_ms]
    assert times == [world.wall_ms - MINUTE_MS - HOUR_MS * k for k in reversed(range(made))]


@pytest.mark.parametrize("turns", [0, 2])
def test_dates_are_made_up_for_in_slices_also_behind_a_crash(
    world: Clockwork, hand: Hand, turns: int
) -> None:
    payload = bytes(60_000)
    world.set("backup", "0 * * * *", "b", overlap=Overlap.ALLOW)
    world.set(
        "report", "-", "r", payload=payload, after=("backup",), date=Date.HOUR,
        overlap=Overlap.ALLOW, catch_up=CatchUp.ALL,
    )  # fmt: skip
    world.scheduler.pause("report")
    world.go(40 * HOUR_MS)
    world.scheduler.resume("report")
    for _ in range(turns):
        assert world.scheduler.turn().more
    assert 0 < world.scheduler.get("report").runs < 20
    world.scheduler.pause("report")
    world.turns()
    world.scheduler.resume("report")
    world.crash()
    world.turns()
    row = world.scheduler.get("report")
    assert (row.runs, row.missed, row.held) == (40, 0, 40)


def test_what_a_rule_missed_is_not_made_up_for_without_it(world: Clockwork, hand: Hand) -> None:
    world.set("backup", "0 11 * * *", "b")
    world.set("report", "0 9 * * *", "r", catch_up=CatchUp.ALL)
    world.scheduler.pause("report")
    world.go(2 * HOUR_MS)
    world.set("report", "-", "r", after=("backup",), catch_up=CatchUp.ALL)
    world.go(2 * HOUR_MS)
    assert outcomes(world, "report") == [("missed", "paused"), ("missed", "paused")]
    world.scheduler.resume("report")
    assert world.told("report") == [
        (f"{DAY}T09:00:00Z", "missed", "paused", 1),
        (f"{DAY}T11:00:00Z", "held", "running backup", 1),
    ]


# ---------------------------------------------------------------- history, crashes


def test_an_outcome_that_a_held_run_asks_for_is_kept_however_many_follow(
    world: Clockwork, hand: Hand
) -> None:
    world.set("often", "* * * * *", "b")
    world.set("down", "5 8 * * *", "r", after=("often",))
    world.go(MINUTE_MS)
    hand.fail(*hand.take_jobs("b"))
    for _ in range(60):
        world.go(MINUTE_MS)
        hand.done(*hand.take_jobs("b"))
    world.go(0)
    assert len(world.runs("often")) < 30
    assert outcomes(world, "down") == [("upstream_failed", "dead")]
    world.set("down", "5 8 * * *", "r", after=("often",), payload=b"judged anew")
    world.crash()
    world.go(0)
    assert outcomes(world, "down") == [("upstream_failed", "dead")]


@pytest.mark.parametrize("ending", ["done", "fail"])
def test_a_crash_behind_an_upstreams_end_loses_nothing(
    world: Clockwork, hand: Hand, ending: str
) -> None:
    backup_and_report(world)
    world.go(2 * HOUR_MS)
    getattr(hand, ending)(*hand.take_jobs("b"))
    world.crash()
    hand = Hand(world)
    world.go(0)
    if ending == "done":
        assert hand.take_jobs("r") == [f"report@{DAY}T10:00:00Z"]
    else:
        assert hand.take_jobs("r") == []
        assert outcomes(world, "report") == [("upstream_failed", "dead")]
