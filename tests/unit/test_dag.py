"""What holds a run: every case of one, by name."""

import pytest

from tests.dag_world import Plan, Run, Times, World, Zone, ms
from wheel.engine.dag import RELEASE, AfterRule, Phase, State, refusal
from wheel.engine.dates import Date, Dates
from wheel.engine.dependencies import HELD_MAX

T02 = ms("2026-11-02T02:00:00Z")
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def daily(at_ms: int, days: int = 10) -> Times:
    return Times(at_ms + DAY_MS * day for day in range(days))


def backup_and_report(**options: object) -> World:
    """Return a backup each day at 02:00 and a report at 06:00 that waits for it."""
    world = World()
    world.set(Plan(name="backup", rule=daily(T02)))
    report = {"rule": daily(T02 + 4 * HOUR_MS), "after": ("backup",), **options}
    world.set(Plan(name="report", **report))  # type: ignore[arg-type]
    return world


def told(world: World, name: str, nominal_ms: int) -> str:
    """Return a held run's verdict in a line, "free" of one that is not held."""
    verdict = world.verdict(name, nominal_ms)
    if verdict is None:
        return "free"
    return f"{verdict.state.value} {verdict.upstream} {verdict.reason}"


REPORT = T02 + 4 * HOUR_MS


# ---------------------------------------------------------------- this date's runs


def test_a_run_waits_for_this_dates_run_and_goes_when_that_succeeds():
    world = backup_and_report()
    world.fire("report")
    assert told(world, "report", REPORT) == "waiting backup pending"
    world.fire("backup")
    assert told(world, "report", REPORT) == "waiting backup running"
    world.end("backup", T02, Phase.SUCCEEDED)
    assert told(world, "report", REPORT) == "free"


def test_yesterdays_run_and_tomorrows_do_not_count():
    world = backup_and_report()
    world.fire("backup")
    world.fire("report")
    world.end("backup", T02, Phase.SUCCEEDED)
    world.fire("report")
    assert told(world, "report", REPORT + DAY_MS) == "waiting backup pending"
    world.fire("backup")
    world.fire("backup")
    world.end("backup", T02 + 2 * DAY_MS, Phase.SUCCEEDED)
    assert told(world, "report", REPORT + DAY_MS) == "waiting backup running"


def test_all_runs_up_to_its_own_time_are_waited_for_and_none_behind_it():
    world = backup_and_report()
    times = [T02, T02 + HOUR_MS, REPORT + HOUR_MS]
    world.set(Plan(name="backup", rule=Times(times)))
    for _ in times:
        world.fire("backup")
    world.fire("report")
    world.end("backup", T02 + HOUR_MS, Phase.SUCCEEDED)
    assert told(world, "report", REPORT) == "waiting backup running"
    world.end("backup", T02, Phase.SUCCEEDED)
    assert told(world, "report", REPORT) == "free"


def test_a_run_at_the_very_same_time_is_waited_for():
    world = backup_and_report(rule=daily(T02))
    world.fire("report")
    assert told(world, "report", T02) == "waiting backup pending"
    world.set(Plan(name="backup", rule=Times([T02 - HOUR_MS, T02])))
    world.fire("backup")
    world.end("backup", T02 - HOUR_MS, Phase.SUCCEEDED)
    assert told(world, "report", T02) == "waiting backup pending"


def test_a_run_marked_before_its_time_does_not_hide_those_behind_it():
    world = backup_and_report()
    world.set(Plan(name="backup", rule=Times([T02, T02 + HOUR_MS])))
    world.mark("backup", T02, Phase.SUCCEEDED)
    world.fire("report")
    assert told(world, "report", REPORT) == "waiting backup pending"
    world.mark("backup", T02 + HOUR_MS, Phase.SUCCEEDED)
    assert told(world, "report", REPORT) == "free"


def test_without_a_run_by_then_the_first_later_one_of_the_date_is_waited_for():
    world = backup_and_report(rule=daily(T02 - HOUR_MS))
    world.set(Plan(name="backup", rule=Times([T02 - 4 * HOUR_MS, T02, T02 + HOUR_MS])))
    world.fire("backup")
    world.end("backup", T02 - 4 * HOUR_MS, Phase.SUCCEEDED)
    world.fire("report")
    assert told(world, "report", T02 - HOUR_MS) == "waiting backup pending"
    world.fire("backup")
    world.end("backup", T02, Phase.SUCCEEDED)
    assert told(world, "report", T02 - HOUR_MS) == "free"


def test_an_upstream_without_any_run_on_the_date_holds_until_it_has_one():
    world = backup_and_report(rule=Times([REPORT, REPORT + DAY_MS]))
    world.set(Plan(name="backup", rule=Times([T02, T02 + 5 * DAY_MS])))
    world.fire("report")
    world.fire("report")
    assert told(world, "report", REPORT + DAY_MS) == "no_upstream backup none"
    world.set(Plan(name="backup", rule=daily(T02)))
    assert told(world, "report", REPORT + DAY_MS) == "waiting backup pending"


def test_marking_the_upstream_on_a_date_without_run_heals():
    world = backup_and_report()
    world.set(Plan(name="backup", rule=daily(T02 + DAY_MS)))
    world.fire("report")
    assert told(world, "report", REPORT) == "no_upstream backup none"
    world.mark("backup", T02 - HOUR_MS, Phase.SUCCEEDED)
    assert told(world, "report", REPORT) == "free"


def test_rerunning_the_upstream_on_a_date_without_run_heals():
    world = backup_and_report()
    world.set(Plan(name="backup", rule=daily(T02 + DAY_MS)))
    world.fire("report")
    world.rerun("backup", T02 - 2 * HOUR_MS)
    assert told(world, "report", REPORT) == "waiting backup running"
    world.end("backup", T02 - 2 * HOUR_MS, Phase.SUCCEEDED)
    assert told(world, "report", REPORT) == "free"


# ---------------------------------------------------------------- how an upstream ends


@pytest.mark.parametrize("phase", [Phase.DEAD, Phase.CANCELLED, Phase.EXPIRED])
def test_an_upstream_that_ended_otherwise_holds_with_that_reason_until_rerun(phase):
    world = backup_and_report()
    world.fire("backup")
    world.fire("report")
    world.end("backup", T02, phase)
    assert told(world, "report", REPORT) == f"upstream_failed backup {phase}"
    world.rerun("backup", T02)
    assert told(world, "report", REPORT) == "waiting backup running"
    world.end("backup", T02, Phase.SUCCEEDED)
    assert told(world, "report", REPORT) == "free"


def test_the_newest_outcome_of_reruns_counts():
    world = backup_and_report()
    world.fire("backup")
    world.end("backup", T02, Phase.SUCCEEDED)
    world.rerun("backup", T02)
    world.fire("report")
    assert told(world, "report", REPORT) == "waiting backup running"
    world.end("backup", T02, Phase.DEAD)
    assert told(world, "report", REPORT) == "upstream_failed backup dead"


def test_an_upstream_that_was_skipped_holds_with_that_reason_until_marked():
    world = backup_and_report()
    world.fire("report")
    world.skip("backup")
    assert told(world, "report", REPORT) == "upstream_failed backup skipped"
    world.mark("backup", T02, Phase.SUCCEEDED)
    assert told(world, "report", REPORT) == "free"


def test_an_upstream_that_was_missed_in_a_row_holds_on_each_date_and_is_healed_one_by_one():
    world = backup_and_report()
    for _ in range(3):
        world.fire("report")
    world.miss("backup", 3)
    days = [REPORT + DAY_MS * day for day in range(3)]
    assert {told(world, "report", day) for day in days} == {"upstream_failed backup missed"}
    world.mark("backup", T02 + DAY_MS, Phase.SUCCEEDED)
    assert [told(world, "report", day) for day in days] == [
        "upstream_failed backup missed",
        "free",
        "upstream_failed backup missed",
    ]


def test_a_requeued_upstream_is_waited_for_again():
    world = backup_and_report()
    world.fire("backup")
    world.fire("report")
    world.end("backup", T02, Phase.DEAD)
    world.end("backup", T02, Phase.RUNNING)
    assert told(world, "report", REPORT) == "waiting backup running"


def test_a_paused_upstream_is_waited_for_until_its_catch_up_has_decided():
    world = backup_and_report()
    world.plans["backup"].paused = True
    world.changed("backup")
    world.fire("report")
    assert told(world, "report", REPORT) == "waiting backup paused"
    world.plans["backup"].paused = False
    world.changed("backup")
    assert told(world, "report", REPORT) == "waiting backup pending"
    world.miss("backup", 1)
    assert told(world, "report", REPORT) == "upstream_failed backup missed"


def test_a_run_that_a_paused_upstream_has_under_way_is_simply_waited_for():
    world = backup_and_report()
    world.fire("backup")
    world.plans["backup"].paused = True
    world.changed("backup")
    world.fire("report")
    assert told(world, "report", REPORT) == "waiting backup running"


def test_a_deleted_upstream_holds_until_it_is_made_again_or_the_edge_is_gone():
    world = backup_and_report()
    world.fire("report")
    world.delete("backup")
    assert told(world, "report", REPORT) == "no_upstream backup deleted"
    world.set(Plan(name="backup", rule=daily(T02)))
    assert told(world, "report", REPORT) == "waiting backup pending"
    world.delete("backup")
    world.set(Plan(name="report", rule=daily(REPORT), position_ms=REPORT + 1))
    assert told(world, "report", REPORT) == "free"


def test_an_upstream_whose_end_or_last_run_has_come_has_none_on_later_dates():
    world = backup_and_report()
    world.fire("backup")
    world.end("backup", T02, Phase.SUCCEEDED)
    world.plans["backup"].until_ms = T02 + 1
    world.changed("backup")
    world.fire("report")
    world.fire("report")
    assert told(world, "report", REPORT) == "free"
    assert told(world, "report", REPORT + DAY_MS) == "no_upstream backup none"


def test_times_from_before_the_upstream_was_made_do_not_exist():
    world = backup_and_report()
    now_ms = T02 + HOUR_MS
    world.set(
        Plan(
            name="backup",
            rule=Times([T02, T02 + 2 * HOUR_MS]),
            since_ms=now_ms,
            position_ms=now_ms,
        )
    )
    world.fire("report")
    assert told(world, "report", REPORT) == "waiting backup pending"
    world.fire("backup")
    world.end("backup", T02 + 2 * HOUR_MS, Phase.SUCCEEDED)
    assert told(world, "report", REPORT) == "free"


def test_an_edited_rule_is_asked_anew_also_for_what_is_over():
    """02:00 succeeded, but the rule now says 14:00: that is what this date's run is."""
    world = backup_and_report()
    world.fire("backup")
    world.end("backup", T02, Phase.SUCCEEDED)
    edit_ms = T02 + HOUR_MS
    world.set(
        Plan(name="backup", rule=daily(T02 + 12 * HOUR_MS), since_ms=edit_ms, position_ms=edit_ms)
    )
    world.fire("report")
    assert told(world, "report", REPORT) == "waiting backup pending"


def test_a_run_by_hand_does_not_count():
    """Runs by TRIGGER are no facts here: ``Facts.runs`` leaves them out."""
    world = backup_and_report()
    world.set(Plan(name="backup", rule=daily(T02 + DAY_MS)))
    world.runs_of["backup"][T02] = Run(nominal_ms=T02, phase=Phase.SUCCEEDED)
    world.fire("report")
    assert told(world, "report", REPORT) == "no_upstream backup none"


# ---------------------------------------------------------------- chains, all_done


def chain(**options: object) -> World:
    world = backup_and_report()
    values = {"rule": daily(T02 + 5 * HOUR_MS), "after": ("report",), **options}
    world.set(Plan(name="notify", **values))  # type: ignore[arg-type]
    world.fire("backup")
    world.fire("report")
    world.fire("notify")
    return world


NOTIFY = T02 + 5 * HOUR_MS


def test_a_failure_runs_down_the_chain_with_the_reason_of_its_root_and_is_healed_there():
    world = chain()
    assert told(world, "notify", NOTIFY) == "waiting report held"
    world.end("backup", T02, Phase.DEAD)
    assert told(world, "notify", NOTIFY) == "upstream_failed report dead"
    world.mark("backup", T02, Phase.SUCCEEDED)
    assert told(world, "notify", NOTIFY) == "waiting report running"


def test_all_done_runs_also_when_something_failed_further_up():
    world = chain(after_rule=AfterRule.ALL_DONE)
    assert told(world, "notify", NOTIFY) == "waiting report held"
    world.end("backup", T02, Phase.DEAD)
    assert told(world, "report", REPORT) == "upstream_failed backup dead"
    assert told(world, "notify", NOTIFY) == "free"


def test_all_done_waits_for_the_last_of_several():
    world = backup_and_report()
    world.set(Plan(name="files", rule=daily(T02)))
    world.set(
        Plan(
            name="report",
            rule=daily(REPORT),
            after=("backup", "files"),
            after_rule=AfterRule.ALL_DONE,
        )
    )
    for name in ("backup", "files", "report"):
        world.fire(name)
    world.end("backup", T02, Phase.DEAD)
    assert told(world, "report", REPORT) == "waiting files running"
    world.end("files", T02, Phase.CANCELLED)
    assert told(world, "report", REPORT) == "free"


def test_all_done_still_needs_a_run_on_the_date():
    world = chain(after_rule=AfterRule.ALL_DONE)
    world.set(Plan(name="report", rule=daily(REPORT + DAY_MS), after=("backup",)))
    assert told(world, "notify", NOTIFY) == "no_upstream report none"


def test_all_success_tells_of_a_failure_while_others_still_run():
    world = backup_and_report()
    world.set(Plan(name="files", rule=daily(T02)))
    world.set(Plan(name="report", rule=daily(REPORT), after=("files", "backup")))
    for name in ("backup", "files", "report"):
        world.fire(name)
    world.end("backup", T02, Phase.DEAD)
    assert told(world, "report", REPORT) == "upstream_failed backup dead"


def test_edges_edited_while_runs_are_held_count_for_them():
    world = chain()
    world.set(Plan(name="files", rule=daily(T02)))
    world.set(Plan(name="notify", rule=daily(NOTIFY), position_ms=NOTIFY + 1, after=("files",)))
    assert told(world, "notify", NOTIFY) == "waiting files pending"
    world.set(Plan(name="notify", rule=daily(NOTIFY), position_ms=NOTIFY + 1))
    assert told(world, "notify", NOTIFY) == "free"


# ---------------------------------------------------------------- zones and labels


def test_dates_are_told_in_each_schedules_own_zone():
    """Rome's 00:30 of the 3rd is the 2nd in UTC: the same text is the same date."""
    world = World()
    rome_ms = ms("2026-11-03T00:30:00+01:00")
    kiritimati_ms = ms("2026-11-03T01:00:00+14:00")
    world.set(Plan(name="rome", rule=Times([rome_ms]), zone=Zone("Europe/Rome")))
    world.set(
        Plan(
            name="kiritimati",
            rule=Times([kiritimati_ms]),
            zone=Zone("Pacific/Kiritimati"),
            after=("rome",),
        )
    )
    world.set(Plan(name="utc", rule=Times([rome_ms + HOUR_MS // 4]), after=("rome",)))
    world.set(Plan(name="utc_3rd", rule=Times([rome_ms + 20 * HOUR_MS]), after=("rome",)))
    for name in ("kiritimati", "utc", "utc_3rd"):
        world.fire(name)
    assert told(world, "kiritimati", kiritimati_ms) == "waiting rome pending"
    assert told(world, "utc", rome_ms + HOUR_MS // 4) == "no_upstream rome none"
    assert told(world, "utc_3rd", rome_ms + 20 * HOUR_MS) == "waiting rome pending"


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-10-25", 25), ("2026-03-29", 23), ("2026-06-01", 24)]
)
def test_a_day_has_all_its_hours_when_the_clock_is_set(day, hours):
    world = World()
    first_ms = ms(f"{day}T00:00:00+0{2 if hours > 23 else 1}:00")
    times = Times(first_ms + HOUR_MS * hour for hour in range(-1, hours + 1))
    rome = Zone("Europe/Rome")
    world.set(Plan(name="hourly", rule=times, zone=rome))
    end_ms = first_ms + hours * HOUR_MS - 60_000
    world.set(Plan(name="day", rule=Times([end_ms]), zone=rome, after=("hourly",)))
    world.fire("day")
    for _ in range(hours + 1):
        world.fire("hourly")
    for hour in range(hours):
        assert told(world, "day", end_ms) == "waiting hourly running", hour
        world.end("hourly", first_ms + hour * HOUR_MS, Phase.SUCCEEDED)
    assert told(world, "day", end_ms) == "free"


def test_by_hour_only_this_hours_runs_count():
    world = World()
    times = Times(T02 + i * 600_000 for i in range(18))
    world.set(Plan(name="often", rule=times))
    nominal_ms = T02 + HOUR_MS + 1_500_000
    world.set(Plan(name="hourly", rule=Times([nominal_ms]), date=Date.HOUR, after=("often",)))
    world.fire("hourly")
    for _ in range(10):
        world.fire("often")
    for i in (6, 7, 8):
        assert told(world, "hourly", nominal_ms) == "waiting often running"
        world.end("often", T02 + i * 600_000, Phase.SUCCEEDED)
    assert told(world, "hourly", nominal_ms) == "free"


def test_exact_wants_the_same_moment_in_whatever_zone():
    world = World()
    world.set(Plan(name="up", rule=Times([T02, T02 + 60_000]), zone=Zone("Asia/Kolkata")))
    world.set(
        Plan(
            name="down",
            rule=Times([T02 + 30_000, T02 + 60_000]),
            date=Date.EXACT,
            after=("up",),
        )
    )
    world.fire("down")
    world.fire("down")
    assert told(world, "down", T02 + 30_000) == "no_upstream up none"
    assert told(world, "down", T02 + 60_000) == "waiting up pending"


# ---------------------------------------------------------------- without a rule


def test_without_a_rule_one_run_a_date_is_made_when_the_first_upstream_fires():
    world = World()
    world.set(Plan(name="db", rule=daily(T02)))
    world.set(Plan(name="files", rule=daily(T02 + 2 * HOUR_MS)))
    world.set(Plan(name="verify", after=("db", "files")))
    assert world.runs_of["verify"] == {}
    world.fire("db")
    (run,) = world.runs_of["verify"].values()
    assert (run.nominal_ms, run.own) == (T02 + 2 * HOUR_MS, "2026-11-02")
    world.fire("files")
    assert len(world.runs_of["verify"]) == 1
    world.end("db", T02, Phase.SUCCEEDED)
    assert told(world, "verify", run.nominal_ms) == "waiting files running"
    world.end("files", T02 + 2 * HOUR_MS, Phase.SUCCEEDED)
    assert told(world, "verify", run.nominal_ms) == "free"


def test_without_a_rule_the_nominal_time_stays_when_an_upstream_is_edited():
    world = World()
    world.set(Plan(name="db", rule=daily(T02)))
    world.set(Plan(name="files", rule=daily(T02 + 2 * HOUR_MS)))
    world.set(Plan(name="verify", after=("db", "files")))
    world.fire("db")
    world.set(Plan(name="files", rule=daily(T02 + 5 * HOUR_MS)))
    world.fire("files")
    assert [run.nominal_ms for run in world.runs_of["verify"].values()] == [T02 + 2 * HOUR_MS]


def test_without_a_rule_a_skipped_upstream_makes_the_run_and_a_missed_one_does_not():
    world = World()
    world.set(Plan(name="db", rule=daily(T02)))
    world.set(Plan(name="verify", after=("db",)))
    world.set(Plan(name="report", rule=daily(REPORT), after=("verify",)))
    world.skip("db")
    world.miss("db", 1)
    world.fire("report")
    world.fire("report")
    assert told(world, "verify", T02) == "upstream_failed db skipped"
    assert told(world, "report", REPORT) == "upstream_failed verify skipped"
    assert list(world.runs_of["verify"]) == [T02]
    assert told(world, "report", REPORT + DAY_MS) == "upstream_failed verify missed"
    world.rerun("db", T02 + DAY_MS)
    assert told(world, "verify", T02 + DAY_MS) == "waiting db running"
    assert told(world, "report", REPORT + DAY_MS) == "waiting verify held"


def test_without_a_rule_a_date_of_which_all_was_missed_in_one_row_was_missed_too():
    world = World()
    world.set(Plan(name="db", rule=Times(T02 + i * HOUR_MS for i in range(4))))
    world.set(Plan(name="verify", after=("db",)))
    world.set(Plan(name="report", rule=daily(REPORT), after=("verify",)))
    world.miss("db", 4)
    world.fire("report")
    assert told(world, "report", REPORT) == "upstream_failed verify missed"


def test_without_a_rule_a_date_that_was_called_for_once_was_not_missed():
    """The run behind the missed ones succeeded, and what it called for too; both are gone."""
    world = World()
    world.set(Plan(name="db", rule=Times(T02 + i * HOUR_MS for i in range(4))))
    world.set(Plan(name="verify", after=("db",)))
    world.miss("db", 3)
    world.fire("db")
    world.end("db", T02 + 3 * HOUR_MS, Phase.SUCCEEDED)
    world.mark("verify", T02 + 3 * HOUR_MS, Phase.SUCCEEDED)
    world.runs_of["db"][T02 + 3 * HOUR_MS].trimmed = True
    world.runs_of["verify"].clear()
    world.set(Plan(name="report", rule=daily(REPORT), after=("verify",)))
    world.fire("report")
    assert told(world, "report", REPORT) == "free"


def test_without_a_rule_the_chain_below_is_made_at_once():
    world = World()
    world.set(Plan(name="db", rule=daily(T02)))
    for name, after in (("verify", "db"), ("report", "verify"), ("notify", "report")):
        world.set(Plan(name=name, after=(after,)))
    world.fire("db")
    assert [told(world, name, T02) for name in ("verify", "report", "notify")] == [
        "waiting db running",
        "waiting verify held",
        "waiting report held",
    ]


def test_without_a_rule_the_date_is_the_upstreams_not_that_of_the_own_zone():
    """00:30 in Rome on the 3rd is the 2nd in UTC, where the schedule without a rule stands."""
    world = World()
    rome_ms = ms("2026-11-03T00:30:00+01:00")
    rome = Zone("Europe/Rome")
    world.set(Plan(name="db", rule=Times([rome_ms]), zone=rome))
    world.set(Plan(name="verify", after=("db",)))
    world.set(Plan(name="report", rule=Times([rome_ms + HOUR_MS]), zone=rome, after=("verify",)))
    world.fire("db")
    world.fire("report")
    assert [run.own for run in world.runs_of["verify"].values()] == ["2026-11-03"]
    assert told(world, "report", rome_ms + HOUR_MS) == "waiting verify held"


def test_without_a_rule_two_dates_that_end_at_one_moment_make_two_runs():
    world = World()
    moment_ms = ms("2026-11-02T23:30:00Z")
    rome = Zone("Europe/Rome")
    world.set(Plan(name="utc", rule=Times([moment_ms])))
    world.set(Plan(name="rome", rule=Times([moment_ms]), zone=rome))
    world.set(Plan(name="verify", after=("utc", "rome")))
    world.fire("utc")
    world.fire("rome")
    runs = world.runs_of["verify"]
    assert {run.own: run.nominal_ms for run in runs.values()} == {
        "2026-11-02": moment_ms,
        "2026-11-03": moment_ms + 1,
    }


def test_without_a_rule_zones_a_day_apart_still_meet():
    world = World()
    moment_ms = ms("2026-11-02T12:00:00Z")
    world.set(Plan(name="up", rule=Times([moment_ms]), zone=Zone("Pacific/Kiritimati")))
    west = Zone("Pacific/Pago_Pago")
    world.set(Plan(name="mid", after=("up",), zone=west))
    late_ms = moment_ms + 30 * HOUR_MS
    world.set(Plan(name="down", rule=Times([late_ms]), after=("mid",), zone=west))
    world.fire("up")
    world.fire("down")
    assert [run.own for run in world.runs_of["mid"].values()] == ["2026-11-03"]
    assert told(world, "down", late_ms) == "waiting mid held"


def test_without_a_rule_a_daily_run_stands_on_the_hour_of_its_nominal_time_only():
    world = World()
    world.set(Plan(name="up", rule=Times([T02, T02 + HOUR_MS])))
    world.set(Plan(name="mid", after=("up",)))
    times = Times([T02 + 60_000, T02 + HOUR_MS + 60_000])
    world.set(Plan(name="down", rule=times, after=("mid",), date=Date.HOUR))
    world.set(Plan(name="last", after=("mid",), date=Date.HOUR))
    for name in ("down", "down", "up"):
        world.fire(name)
    assert told(world, "down", T02 + 60_000) == "no_upstream mid none"
    assert told(world, "down", T02 + HOUR_MS + 60_000) == "waiting mid held"
    world.set(Plan(name="day", rule=Times([REPORT]), after=("last",)))
    world.fire("day")
    assert told(world, "day", REPORT) == "waiting last held"
    assert [run.own for run in world.runs_of["last"].values()] == ["2026-11-02T03"]
    world.fire("up")
    for name, at in (("up", T02), ("up", T02 + HOUR_MS), ("mid", T02 + HOUR_MS)):
        world.end(name, at, Phase.SUCCEEDED)
    world.end("last", T02 + HOUR_MS, Phase.SUCCEEDED)
    assert told(world, "day", REPORT) == "free"


def test_without_a_rule_nothing_is_there_before_it_was_made():
    world = World()
    world.set(Plan(name="up", rule=daily(T02)))
    world.fire("up")
    world.set(Plan(name="mid", after=("up",), since_ms=T02 + HOUR_MS))
    world.set(Plan(name="down", rule=daily(REPORT), after=("mid",)))
    world.fire("down")
    assert told(world, "down", REPORT) == "no_upstream mid none"


def test_without_a_rule_a_date_from_before_it_was_made_is_made_when_an_upstream_is_run_again():
    """So a backfill of the first schedules of a graph goes through all of it."""
    world = World()
    world.set(Plan(name="up", rule=daily(T02)))
    world.fire("up")
    world.set(Plan(name="mid", after=("up",), since_ms=T02 + HOUR_MS))
    world.set(Plan(name="down", rule=daily(REPORT), after=("mid",)))
    world.fire("down")
    world.rerun("up", T02)
    assert told(world, "mid", T02) == "waiting up running"
    assert told(world, "down", REPORT) == "waiting mid held"


def test_without_a_rule_nothing_is_made_before_its_start_and_from_its_end_on():
    world = World()
    world.set(Plan(name="up", rule=daily(T02)))
    second, third = T02 + DAY_MS, T02 + 2 * DAY_MS
    world.set(Plan(name="mid", after=("up",), since_ms=second, start_ms=second, until_ms=third))
    world.set(Plan(name="down", rule=daily(REPORT), after=("mid",)))
    for name in ("up", "up", "up", "down", "down", "down"):
        world.fire(name)
    assert list(world.runs_of["mid"]) == [second]
    assert told(world, "down", REPORT) == "no_upstream mid none"
    assert told(world, "down", REPORT + 2 * DAY_MS) == "no_upstream mid none"


def test_without_a_rule_what_was_missed_while_paused_is_made_when_an_upstream_is_rerun():
    world = World()
    world.set(Plan(name="up", rule=daily(T02)))
    world.set(Plan(name="mid", after=("up",), paused=True))
    world.fire("up")
    world.end("up", T02, Phase.SUCCEEDED)
    world.plans["mid"].paused = False
    world.rerun("up", T02)
    assert told(world, "mid", T02) == "waiting up running"


def test_without_a_rule_a_run_by_hand_behind_the_rules_last_is_waited_for():
    world = World()
    world.set(Plan(name="up", rule=daily(T02)))
    world.set(Plan(name="mid", after=("up",)))
    world.rerun("up", T02 + HOUR_MS)
    assert told(world, "mid", T02 + HOUR_MS) == "waiting up pending"
    world.fire("up")
    world.end("up", T02, Phase.SUCCEEDED)
    assert told(world, "mid", T02 + HOUR_MS) == "waiting up running"


def test_without_a_rule_an_edited_upstream_is_asked_anew_for_what_is_still_to_come():
    world = World()
    world.set(Plan(name="up", rule=daily(T02 + 3 * HOUR_MS)))
    world.set(Plan(name="mid", after=("up",)))
    world.set(Plan(name="down", rule=daily(REPORT), after=("mid",)))
    world.fire("down")
    assert told(world, "down", REPORT) == "waiting mid pending"
    world.set(Plan(name="up", rule=daily(T02 + 2 * HOUR_MS)))
    world.fire("up")
    assert list(world.runs_of["mid"]) == [T02 + 2 * HOUR_MS]


def test_an_hourly_schedule_without_a_rule_is_waited_for_all_day():
    world = World()
    times = [T02 + HOUR_MS * hour for hour in range(3)]
    world.set(Plan(name="ingest", rule=Times(times)))
    world.set(Plan(name="clean", after=("ingest",), date=Date.HOUR))
    world.set(Plan(name="day", rule=Times([T02 + 10 * HOUR_MS]), after=("clean",)))
    world.fire("day")
    for at in times:
        world.fire("ingest")
        world.end("ingest", at, Phase.SUCCEEDED)
        assert told(world, "day", T02 + 10 * HOUR_MS).startswith("waiting clean")
        world.end("clean", at, Phase.SUCCEEDED)
    assert told(world, "day", T02 + 10 * HOUR_MS) == "free"


def test_a_day_behind_exact_runs_without_a_rule_is_refused():
    exact = Plan(name="exact", after=("up",), date=Date.EXACT)
    assert refusal(Plan(name="day", after=("exact",)), [exact])
    assert refusal(Plan(name="same", after=("exact",), date=Date.EXACT), [exact]) is None
    ruled = Plan(name="exact", rule=Times([T02]), date=Date.EXACT)
    assert refusal(Plan(name="day", after=("exact",)), [ruled]) is None


def test_a_paused_schedule_without_a_rule_misses_what_passes():
    world = World()
    world.set(Plan(name="db", rule=daily(T02)))
    world.set(Plan(name="verify", after=("db",), paused=True))
    world.set(Plan(name="report", rule=daily(REPORT), after=("verify",)))
    world.fire("db")
    world.fire("report")
    assert told(world, "report", REPORT) == "upstream_failed verify missed"


# ---------------------------------------------------------------- backfill, history, limits


def test_a_backfill_of_the_upstream_is_waited_for_before_it_has_made_its_runs():
    world = backup_and_report()
    late_ms = T02 + 20 * DAY_MS
    for name in ("backup", "report"):
        world.plans[name].since_ms = world.plans[name].position_ms = late_ms
        world.changed(name)
    world.plans["backup"].planned.append(T02)
    world.changed("backup")
    world.make("report", Run(nominal_ms=REPORT))
    assert told(world, "report", REPORT) == "waiting backup pending"
    world.plans["backup"].planned.clear()
    world.make("backup", Run(nominal_ms=T02))
    world.end("backup", T02, Phase.SUCCEEDED)
    assert told(world, "report", REPORT) == "free"


def test_a_backfill_without_the_upstreams_is_held_until_that_is_backfilled_too():
    world = backup_and_report()
    late_ms = T02 + 20 * DAY_MS
    for name in ("backup", "report"):
        world.plans[name].since_ms = world.plans[name].position_ms = late_ms
        world.changed(name)
    world.make("report", Run(nominal_ms=REPORT))
    assert told(world, "report", REPORT) == "no_upstream backup none"
    world.make("backup", Run(nominal_ms=T02))
    assert told(world, "report", REPORT) == "waiting backup running"


def test_outcomes_that_held_or_coming_runs_ask_for_are_kept():
    world = backup_and_report()
    assert world.dependencies.keep_from("report") is None
    day_ms = ms("2026-11-02T00:00:00Z")
    first_ms = world.dependencies.keep_from("backup")
    assert first_ms is not None
    assert day_ms - DAY_MS < first_ms <= day_ms
    world.fire("report")
    world.fire("report")
    assert world.dependencies.keep_from("backup") == first_ms  # the held run still asks
    world.fire("backup")
    world.end("backup", T02, Phase.SUCCEEDED)
    assert told(world, "report", REPORT) == "free"
    assert world.dependencies.keep_from("backup") == first_ms + DAY_MS


def test_what_is_waited_for_through_a_schedule_without_a_rule_is_kept_too():
    world = World()
    world.set(Plan(name="db", rule=daily(T02)))
    world.set(Plan(name="verify", after=("db",)))
    world.set(Plan(name="report", rule=daily(REPORT), after=("verify",)))
    world.miss("db", 3)
    world.fire("report")
    keep_ms = world.dependencies.keep_from("db")
    assert keep_ms is not None
    assert keep_ms <= T02


def test_what_a_planned_backfill_will_ask_for_is_kept():
    world = backup_and_report()
    late_ms = T02 + 20 * DAY_MS
    world.plans["report"].position_ms = late_ms
    world.plans["report"].planned.append(REPORT)
    keep_ms = world.dependencies.keep_from("backup")
    assert keep_ms is not None
    assert keep_ms <= T02


def test_a_run_without_a_rule_is_kept_whatever_zone_its_date_is_from():
    world = World()
    moment_ms = ms("2026-11-03T00:30:00+14:00")
    west = Zone("Pacific/Pago_Pago")
    world.set(Plan(name="up", rule=Times([moment_ms]), zone=Zone("Pacific/Kiritimati")))
    world.set(Plan(name="mid", after=("up",), zone=west))
    late_ms = ms("2026-11-03T23:00:00-11:00")
    world.set(Plan(name="down", rule=Times([late_ms]), after=("mid",), zone=west))
    world.fire("up")
    assert [run.own for run in world.runs_of["mid"].values()] == ["2026-11-03"]
    keep_ms = world.dependencies.keep_from("mid")
    assert keep_ms is not None
    assert keep_ms <= moment_ms


def test_an_hour_behind_a_day_without_a_rule_keeps_the_whole_day():
    world = World()
    world.set(Plan(name="up", rule=Times([T02, T02 + 9 * HOUR_MS])))
    world.set(Plan(name="mid", after=("up",)))
    down = Times([T02 + 9 * HOUR_MS])
    world.set(Plan(name="down", rule=down, after=("mid",), date=Date.HOUR))
    world.plans["up"].position_ms = T02 + 10 * HOUR_MS
    keep_ms = world.dependencies.keep_from("up")
    assert keep_ms is not None
    assert keep_ms <= T02


def test_nobody_is_released_by_what_is_healed_in_the_same_moment():
    world = backup_and_report()
    world.set(Plan(name="files", rule=daily(T02)))
    both = {"after": ("report", "files"), "after_rule": AfterRule.ALL_DONE}
    world.set(Plan(name="all", rule=daily(NOTIFY), **both))  # type: ignore[arg-type]
    for name in ("backup", "files", "report", "all"):
        world.fire(name)
    world.end("backup", T02, Phase.DEAD)
    assert told(world, "all", NOTIFY) == "waiting files running"
    for name, phase in (("files", Phase.SUCCEEDED), ("backup", Phase.RUNNING)):
        run = world.runs_of[name][T02]
        run.phase = phase
        world.dependencies.note(name, world.fact(name, run))
    world.settle()
    assert told(world, "all", NOTIFY) == "waiting report held"


def test_changes_are_told_in_the_order_of_running_and_each_once():
    world = World()
    world.set(Plan(name="d", rule=daily(T02)))
    for name, after in (("c", "d"), ("b", "c"), ("a", "b")):
        world.set(Plan(name=name, rule=daily(T02), after=(after,)))
    for name in "abcd":
        world.fire(name)
    run = world.runs_of["d"][T02]
    run.phase = Phase.DEAD
    world.dependencies.note("a")
    world.dependencies.note("b")
    world.dependencies.note("d", world.fact("d", run))
    told_of = [(held.name, held.verdict.reason) for held, _before in world.dependencies.settle()]
    assert told_of == [("c", "dead"), ("b", "dead"), ("a", "dead")]


def test_the_oldest_run_that_only_a_person_can_help_makes_room():
    world = backup_and_report(rule=daily(REPORT, HELD_MAX + 2))
    for _ in range(HELD_MAX):
        world.fire("report")
    assert world.dependencies.surplus("report") is None
    world.fire("backup")
    world.fire("backup")
    world.end("backup", T02 + DAY_MS, Phase.DEAD)
    world.fire("report")
    surplus = world.dependencies.surplus("report")
    assert surplus is not None
    assert surplus.nominal_ms == REPORT + DAY_MS


def test_a_restart_comes_to_the_same_verdicts():
    world = chain()
    world.end("backup", T02, Phase.DEAD)
    before = [told(world, name, at) for name, at in (("report", REPORT), ("notify", NOTIFY))]
    world.start()
    after = [told(world, name, at) for name, at in (("report", REPORT), ("notify", NOTIFY))]
    assert before == after == ["upstream_failed backup dead", "upstream_failed report dead"]


def test_an_end_that_nobody_had_told_of_is_acted_upon_after_a_restart():
    """The server was killed between the upstream's ACK and the release of what waits for it."""
    world = backup_and_report()
    world.fire("backup")
    world.fire("report")
    world.runs_of["backup"][T02].phase = Phase.SUCCEEDED
    assert told(world, "report", REPORT) == "waiting backup running"
    world.start()
    assert told(world, "report", REPORT) == "free"
    assert world.released[-1] == ("report", REPORT)


def test_a_verdict_of_a_schedule_that_is_not_there_is_refused():
    with pytest.raises(KeyError):
        World().dependencies.verdict("nobody", T02)


def test_a_run_without_upstreams_is_free():
    world = World()
    world.set(Plan(name="alone", rule=daily(T02)))
    assert world.dependencies.verdict("alone", T02) is RELEASE
    assert RELEASE.state is State.RELEASE


def test_the_last_time_on_a_date_is_found_however_dense_or_sparse_the_rule_is():
    zone = Zone("UTC")
    for times in ([T02], [T02 + i * 1000 for i in range(60 * 60)], [T02, T02 + 20 * HOUR_MS]):
        plan = Plan(name="a", rule=Times([*times, T02 + 2 * DAY_MS]), zone=zone)
        dates = Dates({"a": plan}.get)
        assert dates.last_on(plan, "2026-11-02", Date.DAY) == times[-1]
        assert dates.last_on(plan, "2026-11-03", Date.DAY) is None


def test_without_a_rule_nobody_goes_before_all_is_made_that_one_run_calls_for():
    """The note must not run while the check, which is made in the same moment, is still to run."""
    world = World()
    world.set(Plan(name="db", rule=daily(T02)))
    world.set(Plan(name="a_report", after=("db",)))
    done = {"after_rule": AfterRule.ALL_DONE}
    world.set(Plan(name="check", after=("db",), **done))  # type: ignore[arg-type]
    world.set(Plan(name="b_note", after=("a_report", "check"), **done))  # type: ignore[arg-type]
    world.skip("db")
    assert told(world, "a_report", T02) == "upstream_failed db skipped"
    assert told(world, "check", T02) == "free"
    assert told(world, "b_note", T02) == "waiting check running"


def test_without_a_rule_a_run_that_is_called_for_twice_at_once_is_made_once():
    """By its upstream, and by what else that one calls for."""
    world = World()
    world.set(Plan(name="db", rule=daily(T02)))
    world.set(Plan(name="check", after=("db",)))
    world.set(Plan(name="report", after=("db", "check")))
    made: list[str] = []
    make = world.make
    world.make = lambda name, run: (made.append(name), make(name, run))[1]  # type: ignore[method-assign]
    world.fire("db")
    assert made == ["db", "check", "report"]
