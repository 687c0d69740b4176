"""The engine of schedules on a real core, its clock, workers and crashes moved by hand."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.fed import WALL_MS
from tests.schedules import DAY_MS, HOUR_MS, MINUTE_MS, Clockwork, Hand
from wheel.engine import prints
from wheel.engine import scheduler as scheduler_file
from wheel.engine.core import DiskRoom
from wheel.engine.definition import CatchUp, Definition, Overlap, ScheduleError
from wheel.engine.history import RUNS_MAX
from wheel.engine.records import Backoff, Policy
from wheel.errors import Conflict, CronSyntaxError, CycleError, NotFound

S = 1_000


@pytest.fixture
def world():
    made = Clockwork()
    yield made
    made.check()
    crash_changes_nothing(made)


def crash_changes_nothing(world: Clockwork) -> None:
    """What a start reads is what was in memory."""
    world.go(0)
    before = world.snapshot()
    world.crash()
    world.go(0)
    assert world.snapshot() == before


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def at(offset_ms: int) -> str:
    """Return a run id's time, from the first moment of a test."""
    return iso(WALL_MS + offset_ms)


def work(world: Clockwork, hand: Hand, lasts_ms: int, total_ms: int) -> list[tuple[int, int]]:
    """Let a worker take whatever is there and hold each run so long; return (start, nominal)."""
    begin_ms, began = world.boot_ms, list[tuple[int, int]]()
    held: dict[str, int] = {}
    for _ in range(total_ms // S + 1):
        for run, since_ms in list(held.items()):
            if world.boot_ms - since_ms >= lasts_ms:
                hand.done(run)
                del held[run]
        world.go(0)
        for run in hand.take_jobs():
            held[run] = world.boot_ms
            nominal = datetime.fromisoformat(run.partition("@")[2]).timestamp() * 1000
            began.append((world.boot_ms - begin_ms, int(nominal) - WALL_MS))
        world.go(S)
    return [(start // S, nominal // S) for start, nominal in began]


# ------------------------------------------------------------------------------ overlap


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Overlap.SKIP, [(10, 10), (40, 40), (70, 70)]),
        (Overlap.QUEUE_ONE, [(10, 10), (35, 20), (60, 40), (85, 70)]),
        (Overlap.QUEUE_ALL, [(10, 10), (35, 20), (60, 30), (85, 40)]),
        (Overlap.ALLOW, [(t, t) for t in range(10, 90, 10)]),
    ],
)
def test_o22_a_run_that_lasts_longer_than_its_period(
    world: Clockwork, policy: Overlap, expected: list[tuple[int, int]]
) -> None:
    world.set("s", "@every 10s", overlap=policy)
    assert work(world, Hand(world), 25 * S, 89 * S) == expected


def test_o22_cancel_running_cancels_and_the_newcomer_starts_when_the_old_one_has_ended(
    world: Clockwork,
) -> None:
    hand = Hand(world)
    world.set("s", "@every 10s", overlap=Overlap.CANCEL_RUNNING)
    world.go(10 * S)
    [first] = hand.take_jobs()
    world.go(10 * S)
    assert b"-CANCELLED" in hand.ask(f"EXTEND {hand.got[first]}")
    assert hand.take_jobs() == [], "the old one still runs"
    world.go(10 * S)
    assert hand.fail(first, "") == "CANCELLED"
    world.go(0)
    assert hand.take_jobs() == [f"s@{at(30 * S)}"], "the newest one, not the one before it"
    assert world.told("s") == [
        (at(10 * S), "cancelled", "overlap", 1),
        (at(20 * S), "skipped", "overlap", 1),
        (at(30 * S), "running", "", 1),
    ]


def test_cancel_running_takes_back_at_once_what_nobody_has_taken(world: Clockwork) -> None:
    world.set("s", "@every 10s", overlap=Overlap.CANCEL_RUNNING)
    world.go(20 * S)
    assert world.told("s") == [
        (at(10 * S), "cancelled", "overlap", 1),
        (at(20 * S), "running", "", 1),
    ]
    assert Hand(world).take_jobs() == [f"s@{at(20 * S)}"]


def test_queue_all_holds_a_thousand_and_says_when_it_is_full(world: Clockwork) -> None:
    world.set("s", "@every 1s", overlap=Overlap.QUEUE_ALL)
    world.go(1003 * S)
    assert world.told("s")[-2:] == [
        (at(1001 * S), "waiting", "overlap", 1),
        (at(1002 * S), "skipped", "queue_full", 2),
    ]
    assert world.scheduler.get("s").waiting == 1000


def test_times_that_are_skipped_in_a_row_share_a_record_and_an_event(world: Clockwork) -> None:
    hand = Hand(world)
    world.set("s")
    world.go(5 * MINUTE_MS)
    [first] = hand.take_jobs()
    assert hand.done(first) == "OK"
    world.go(3 * MINUTE_MS)
    assert world.told("s") == [
        (at(60 * S), "succeeded", "", 1),
        (at(120 * S), "skipped", "overlap", 4),
        (at(360 * S), "running", "", 1),
        (at(420 * S), "skipped", "overlap", 2),
    ]
    assert [name for name, _ in world.seen].count("run_dropped") == 2
    row = world.scheduler.get("s")
    assert (row.runs, row.succeeded, row.skipped, row.missed) == (2, 1, 6, 0)


def test_o24_a_run_by_hand_obeys_the_policy_and_counts_for_later_ones(world: Clockwork) -> None:
    hand = Hand(world)
    world.set("s")
    by_hand = world.scheduler.trigger("s")
    assert by_hand == f"s@{at(0)}!1"
    world.go(MINUTE_MS)
    assert world.told("s")[-1] == (at(60 * S), "skipped", "overlap", 1)
    again = world.scheduler.trigger("s")
    assert world.told("s")[-1] == (f"{at(60 * S)}!2", "skipped", "overlap", 1)
    assert again.endswith("!2")
    forced = world.scheduler.trigger("s", force=True)
    world.go(0)
    assert sorted(hand.take_jobs()) == sorted([by_hand, forced])
    hand.done(by_hand)
    world.go(MINUTE_MS)
    assert world.told("s")[-1] == (at(120 * S), "running", "", 1), "FORCE does not count"


def test_a_run_by_hand_for_later_is_judged_then(world: Clockwork) -> None:
    hand = Hand(world)
    world.set("s", "0 0 * * *")
    later = world.scheduler.trigger("s", at_ms=WALL_MS + HOUR_MS)
    sooner = world.scheduler.trigger("s", at_ms=WALL_MS + MINUTE_MS)
    world.go(0)
    assert hand.take_jobs() == []
    world.crash()
    hand = Hand(world)
    world.go(30 * MINUTE_MS)
    assert hand.take_jobs(for_ms=7_200_000) == [sooner]
    world.go(30 * MINUTE_MS)
    assert world.told("s")[-1] == (later.removeprefix("s@"), "skipped", "overlap", 1)


# ------------------------------------------------------------------------------ missed


@pytest.mark.parametrize(
    ("options", "expected", "waiting"),
    [
        ({"catch_up": CatchUp.SKIP}, [(60, "missed", "down", 600)], 0),
        (
            {"catch_up": CatchUp.LATEST},
            [(60, "missed", "down", 599), (600 * 60, "running", "", 1)],
            0,
        ),
        ({"catch_up": CatchUp.ALL}, [(60, "running", "", 1)], 599),
        (
            {"catch_up": CatchUp.ALL, "window_ms": HOUR_MS},
            [(60, "missed", "window", 540), (541 * 60, "running", "", 1)],
            59,
        ),
        (
            {"catch_up": CatchUp.ALL, "catch_up_max": 3},
            [(60, "missed", "limit", 597), (598 * 60, "running", "", 1)],
            2,
        ),
        (
            {"catch_up": CatchUp.ALL, "catch_up_max": 3, "overlap": Overlap.ALLOW},
            [(60, "missed", "limit", 597), (598 * 60, "running", "", 1)],
            0,
        ),
        ({"window_ms": 10 * S}, [(60, "missed", "window", 600)], 0),
    ],
)
def test_o9_a_minutely_schedule_whose_server_was_down_for_ten_hours(
    world: Clockwork, options: dict[str, Any], expected: list[tuple[Any, ...]], waiting: int
) -> None:
    world.set("s", **options)
    world.crash(10 * HOUR_MS + 30 * S)
    world.go(0)
    told = world.told("s")
    assert told[: len(expected)] == [(at(ms * S), *rest) for ms, *rest in expected]
    row = world.scheduler.get("s")
    assert (row.waiting, row.state) == (waiting, "active")
    assert row.missed + row.runs == 600
    assert row.next_ms == WALL_MS + 10 * HOUR_MS + MINUTE_MS


def test_runs_that_make_up_for_missed_ones_go_one_behind_the_other_whatever_overlap_says(
    world: Clockwork,
) -> None:
    hand = Hand(world)
    world.set("s", catch_up=CatchUp.ALL, overlap=Overlap.CANCEL_RUNNING)
    world.crash(3 * MINUTE_MS + 30 * S)
    hand = Hand(world)
    world.go(0)
    for minute in (1, 2):
        assert hand.take_jobs() == [f"s@{at(minute * 60 * S)}"]
        hand.done(f"s@{at(minute * 60 * S)}")
        world.go(0)
    world.go(30 * S)
    assert hand.take_jobs() == [f"s@{at(180 * S)}"]
    assert world.told("s")[-1] == (at(240 * S), "waiting", "overlap", 1)
    hand.done(f"s@{at(180 * S)}")
    world.go(0)
    assert hand.take_jobs() == [f"s@{at(240 * S)}"]


def test_o10_a_late_server_decides_every_time_and_misses_none(world: Clockwork) -> None:
    """It was up all the time and did not come to it: that is lateness, not a miss."""
    world.set("s", "@every 10s", overlap=Overlap.QUEUE_ALL, catch_up=CatchUp.SKIP)
    world.wall_ms += 35 * S
    world.boot_ms += 35 * S
    world.mono_ms += 35 * S
    world.tick()
    world.turns()
    assert [outcome for _, outcome, *_ in world.told("s")] == ["running", "waiting", "waiting"]
    assert world.scheduler.get("s").missed == 0


def test_o11_a_weekly_interval_fires_each_week_though_the_server_restarts_daily(
    world: Clockwork,
) -> None:
    hand = Hand(world)
    world.set("s", "@every 168h")
    first_ms = world.scheduler.get("s").next_ms
    assert first_ms is not None
    for _ in range(21):
        world.go(DAY_MS - S)
        world.crash(S)
        hand = Hand(world)
        world.go(0)
        for run in hand.take_jobs():
            hand.done(run)
            world.go(0)
    assert [run for run, *_ in world.told("s")] == [
        iso(first_ms + week * 7 * DAY_MS) for week in range(3)
    ]


def test_o12_a_short_interval_and_a_long_absence_leave_no_backlog(world: Clockwork) -> None:
    world.set("s", "@every 5s", catch_up=CatchUp.SKIP)
    world.crash(14 * DAY_MS)
    world.go(0)
    [(_, outcome, reason, count)] = world.told("s")
    assert (outcome, reason, count) == ("missed", "down", 14 * DAY_MS // (5 * S))
    world.go(5 * S)
    assert world.told("s")[-1][1] == "running"


def test_o13_a_daily_time_that_passes_while_the_server_restarts_runs_once(
    world: Clockwork,
) -> None:
    world.set("s", "1 8 * * *")
    world.go(MINUTE_MS - 2500)
    world.crash(3200)
    world.go(0)
    hand = Hand(world)
    [run] = hand.take_jobs()
    assert run == f"s@{at(60 * S)}"
    hand.done(run)
    world.go(0)
    world.crash(S)
    world.go(0)
    [row] = world.runs("s")
    assert (row.outcome, row.due_ms, row.started_ms - row.due_ms) == (
        "succeeded",
        row.first_ms,
        700,
    )


def test_o17_what_passes_while_paused_is_missed_and_catch_up_decides(world: Clockwork) -> None:
    world.set("skips", "0 9 * * *", catch_up=CatchUp.SKIP)
    world.set("catches", "0 9 * * *")
    for name in ("skips", "catches"):
        world.scheduler.pause(name, note="not now", actor="ann")
    row = world.scheduler.get("skips")
    assert (row.state, row.note, row.actor, row.paused_ms) == ("paused", "not now", "ann", WALL_MS)
    world.go(70 * MINUTE_MS)
    assert world.told("skips") == world.told("catches") == []
    world.crash()
    for name in ("skips", "catches"):
        world.scheduler.resume(name)
    assert world.told("skips") == [(at(HOUR_MS), "missed", "paused", 1)]
    world.go(0)
    assert world.told("catches") == [(at(HOUR_MS), "running", "", 1)]
    assert world.scheduler.get("skips").next_ms == WALL_MS + 25 * HOUR_MS


# ------------------------------------------------------------------------------ clocks


def test_o5_the_wall_clock_set_back_holds_cron_and_leaves_intervals_alone(
    world: Clockwork,
) -> None:
    world.set("wall", overlap=Overlap.ALLOW)
    world.set("every", "@every 60s", overlap=Overlap.ALLOW)
    world.go(10 * MINUTE_MS)
    world.step_wall(-2 * HOUR_MS)
    world.go(60 * MINUTE_MS)
    assert world.scheduler.get("wall").runs == 10
    assert world.scheduler.get("every").runs == 70
    world.go(61 * MINUTE_MS)
    assert world.scheduler.get("wall").runs == 11, "behind what it had come to"
    assert len({run for run, *_ in world.told("wall")}) == 11


def test_o5_the_wall_clock_set_forward_misses_what_it_jumped_over(world: Clockwork) -> None:
    world.set("wall", catch_up=CatchUp.ALL, catch_up_max=5)
    world.set("every", "@every 60s")
    world.step_wall(2 * HOUR_MS)
    assert world.told("wall")[0] == (at(60 * S), "missed", "limit", 115)
    assert world.scheduler.get("wall").runs == 5
    assert world.told("every") == []


def test_clock_accept_keeps_the_next_nominal_times(world: Clockwork) -> None:
    world.set("wall")
    world.go(MINUTE_MS)
    world.step_wall(-2 * HOUR_MS)
    world.core.accept_clock()
    world.go(2 * HOUR_MS - 10 * S)
    assert world.scheduler.get("wall").runs == 1
    world.go(HOUR_MS)
    assert world.scheduler.get("wall").runs + world.scheduler.get("wall").skipped > 30


def test_a_suspend_is_missed_time_on_both_axes(world: Clockwork) -> None:
    world.set("wall")
    world.set("every", "@every 60s")
    world.suspend(HOUR_MS)
    for name in ("wall", "every"):
        assert world.told(name) == [
            (at(60 * S), "missed", "step", 59),
            (at(3600 * S), "running", "", 1),
        ]


def test_new_rules_of_a_zone_move_next_times_of_its_schedules_alone(
    world: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.set("rome", "0 9 * * *", tz="Europe/Rome")
    world.set("paris", "0 9 * * *", tz="Europe/Paris")
    world.set("every", "@every 1h", tz="Europe/Rome")
    asked: list[str] = []
    real = prints.print_of

    def print_of(settings: Any) -> bytes:
        asked.append(settings.zone)
        return b"another!" if settings.zone == "Europe/Rome" else real(settings)

    monkeypatch.setattr(scheduler_file, "print_of", print_of)
    monkeypatch.setattr(prints, "print_of", print_of)
    world.crash()
    assert sorted(asked) == ["Europe/Paris", "Europe/Rome"], "once a zone, not once a schedule"
    world.seen.clear()
    world.go(0)
    told = [fields for name, fields in world.seen if name == "schedule_zone_changed"]
    assert [fields["schedule"] for fields in told] == ["rome"]
    world.seen.clear()
    world.crash()
    world.go(0)
    assert "schedule_zone_changed" not in [name for name, _ in world.seen]
    monkeypatch.undo()
    world.crash()
    world.go(0)


def test_a_restart_evaluates_no_rule(world: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(50):
        world.set(f"s{i}", f"{i} 9 * * *", tz="Europe/Rome", jitter_ms=1000)
    from wheel.engine import entries

    def compile_rule(*_args: object, **_more: object) -> None:
        raise AssertionError("a rule was asked for")

    monkeypatch.setattr(entries, "compile_rule", compile_rule)
    world.crash()
    world.turns()
    monkeypatch.undo()
    assert world.scheduler.wakes().wall_ms is not None


# ------------------------------------------------------------------------------ identity


def test_o15_setting_the_same_again_changes_nothing_and_keeps_what_was_counted(
    world: Clockwork,
) -> None:
    hand = Hand(world)
    assert world.set("s", payload=b"p") == "created"
    world.go(MINUTE_MS)
    hand.done(*hand.take_jobs())
    world.go(0)
    before = replace(world.scheduler.get("s"), served=False)
    lsn = world.core.lsn()
    assert world.set("s", payload=b"p") == "unchanged"
    world.crash()
    assert world.set("s", payload=b"p") == "unchanged"
    assert world.core.lsn() == lsn
    assert world.scheduler.get("s") == before
    assert (before.runs, before.succeeded, before.version) == (1, 1, 1)
    assert [row.name for row in world.scheduler.page("", "", 10)[0]] == ["s"]


def test_o16_another_rule_takes_back_what_waits_and_begins_from_now(world: Clockwork) -> None:
    hand = Hand(world)
    world.set("s", overlap=Overlap.QUEUE_ALL)
    world.go(MINUTE_MS)
    [running] = hand.take_jobs(for_ms=7_200_000)
    world.go(2 * MINUTE_MS)
    assert world.set("s", "30 * * * *", overlap=Overlap.QUEUE_ALL) == "changed"
    row = world.scheduler.get("s")
    assert (row.version, row.next_ms, row.waiting) == (2, WALL_MS + 30 * MINUTE_MS, 0)
    assert world.told("s") == [
        (at(60 * S), "running", "", 1),
        (at(120 * S), "cancelled", "edited", 1),
        (at(180 * S), "cancelled", "edited", 1),
    ]
    world.go(10 * MINUTE_MS)
    assert hand.done(running) == "OK"
    world.go(20 * MINUTE_MS)
    assert hand.take_jobs() == [f"s@{at(30 * 60 * S)}"]


def test_another_payload_keeps_the_next_time_and_what_waits(world: Clockwork) -> None:
    world.set("s", "@every 1h", payload=b"old")
    next_ms = world.scheduler.get("s").next_ms
    world.go(10 * MINUTE_MS)
    assert world.set("s", "@every 1h", payload=b"new") == "changed"
    row = world.scheduler.get("s")
    assert (row.next_ms, row.definition.payload, row.version) == (next_ms, b"new", 2)


def test_a_version_that_is_not_there_any_more_is_refused(world: Clockwork) -> None:
    one = Definition(name="s", rule="@daily", handler="h")
    other = Definition(name="s", rule="@hourly", handler="h")
    assert world.scheduler.set(one, if_version=0).version == 1
    for version, code in ((0, "EXISTS"), (2, "CONFLICT")):
        with pytest.raises(ScheduleError) as refused:
            world.scheduler.set(other, if_version=version)
        assert refused.value.code == code
    assert world.scheduler.set(other, if_version=1)[:2] == (2, "changed")


def test_a_definition_is_kept_to_the_last_option(world: Clockwork) -> None:
    one = Definition(
        name='ünïcode "報告" 🚀',
        rule="CRON_TZ=Asia/Tokyo 0 9 * * 1",
        handler="h",
        payload=bytes(range(256)),
        tz="Europe/Rome",
        dst="literal",
        jitter_ms=5000,
        overlap=Overlap.QUEUE_ONE,
        catch_up=CatchUp.ALL,
        window_ms=DAY_MS,
        catch_up_max=7,
        dag="d",
        start_ms=WALL_MS + DAY_MS,
        end_ms=WALL_MS + 100 * DAY_MS,
        max_runs=9,
        priority=3,
        policy=Policy(retries=5, lost=2, backoff=(Backoff.EXP, 1, 2), lease_ms=9000, timeout_ms=0),
        expire_ms=60_000,
        meta=b"\x00meta",
        group="g",
    )
    world.scheduler.set(one, actor="ann")
    world.crash()
    row = world.scheduler.get(one.name)
    assert row.definition == one
    assert (row.zone, row.changed_by) == ("Asia/Tokyo", "ann")
    assert world.scheduler.set(one).word == "unchanged"


def test_o18_what_is_deleted_is_gone_and_leaves_nothing_behind(world: Clockwork) -> None:
    hand = Hand(world)
    world.set("s", overlap=Overlap.QUEUE_ALL)
    world.go(MINUTE_MS)
    [running] = hand.take_jobs()
    world.go(MINUTE_MS)
    hand.say(f"DONE {hand.got.pop(running)} {'x' * 3000}")
    world.go(0)
    assert world.runs("s")[0].text == b"x" * 3000
    [second] = hand.take_jobs()
    world.go(MINUTE_MS)
    world.scheduler.delete("s")
    world.go(10 * MINUTE_MS)
    assert not world.scheduler.exists("s")
    assert list(world.core.table()) == []
    assert hand.done(second) == "OK", "a run that was handed out ends as usual"
    world.go(0)
    assert world.core.ended() == []
    assert world.scheduler.figures()["schedules_live_runs"] == 0
    with pytest.raises(ScheduleError, match="no schedule 's'"):
        world.scheduler.delete("s")


def test_a_schedule_that_is_made_again_still_knows_the_run_of_the_old_one(
    world: Clockwork,
) -> None:
    hand = Hand(world)
    world.set("s")
    world.go(MINUTE_MS)
    [run] = hand.take_jobs()
    world.scheduler.delete("s")
    world.set("s")
    world.go(MINUTE_MS)
    assert world.told("s")[-1] == (at(120 * S), "skipped", "overlap", 1)
    hand.done(run)
    world.go(MINUTE_MS)
    assert world.told("s")[-1][1] == "running"


# ------------------------------------------------------------------------------ bounds


def test_start_end_and_maxruns_bound_a_schedule(world: Clockwork) -> None:
    world.set("window", start_ms=WALL_MS + 5 * MINUTE_MS, end_ms=WALL_MS + 7 * MINUTE_MS,
              overlap=Overlap.ALLOW)  # fmt: skip
    world.set("three", max_runs=3, overlap=Overlap.ALLOW)
    world.go(HOUR_MS)
    assert [run for run, *_ in world.told("window")] == [at(ms * 60 * S) for ms in (5, 6, 7)]
    assert [run for run, *_ in world.told("three")] == [at(ms * 60 * S) for ms in (1, 2, 3)]
    for name in ("window", "three"):
        row = world.scheduler.get(name)
        assert (row.state, row.next_ms) == ("ended", None)
    assert world.set("three", max_runs=4, overlap=Overlap.ALLOW) == "changed"
    assert world.scheduler.get("three").next_ms == WALL_MS + 61 * MINUTE_MS


def test_jitter_moves_the_due_time_within_the_period_and_is_the_same_after_a_crash(
    world: Clockwork,
) -> None:
    for i in range(30):
        world.set(f"s{i}", jitter_ms=HOUR_MS)
    rows = [world.scheduler.get(f"s{i}") for i in range(30)]
    delays = [row.fire_ms - row.next_ms for row in rows if row.fire_ms and row.next_ms]
    assert all(0 <= delay < MINUTE_MS for delay in delays)
    assert len(set(delays)) > 25
    world.go(2 * MINUTE_MS)
    for row in rows:
        [first, *_] = world.runs(row.definition.name)
        assert (first.first_ms, first.due_ms) == (row.next_ms, row.fire_ms)


def test_a_long_history_keeps_the_last_runs(world: Clockwork) -> None:
    hand = Hand(world)
    world.set("s")
    for minute in range(30):
        world.go(MINUTE_MS)
        [run] = hand.take_jobs()
        hand.say(f"DONE {hand.got.pop(run)} {'x' * 500}{minute}")
    world.go(0)
    rows = world.runs("s")
    assert len(rows) == RUNS_MAX
    assert rows[-1].text == b"x" * 500 + b"29"
    page, cursor = world.scheduler.runs("s", count=15)
    rest, end = world.scheduler.runs("s", count=15, before=cursor)
    assert (page + rest, end) == (rows[::-1], 0)
    texts = [entry for entry in world.core.table() if entry.kind == 6]
    assert len(texts) == RUNS_MAX, "those of runs that are gone are gone too"


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ("61 * * * *", CronSyntaxError),
        ("0 0 31 2 *", CronSyntaxError),
        ("", CronSyntaxError),
        ("-", ScheduleError),
        ("@at 2020-01-01T00:00:00Z", CronSyntaxError),
    ],
)
def test_o21_a_rule_that_cannot_be_is_refused_at_once(
    world: Clockwork, rule: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        world.set("s", rule)
    assert not world.scheduler.exists("s")
    assert world.core.lsn() == 0


def test_o21_a_handler_that_nobody_serves_is_shown(world: Clockwork) -> None:
    world.set("s", handler="nobody")
    assert not world.scheduler.get("s").served
    Hand(world).say("HANDLER nobody LEASE 1000")
    assert world.scheduler.get("s").served


def test_o23_a_run_that_lives_through_a_crash_of_the_server_still_counts(
    world: Clockwork,
) -> None:
    hand = Hand(world)
    world.set("s")
    world.go(MINUTE_MS)
    [run] = hand.take_jobs()
    world.crash(10 * S)
    world.go(MINUTE_MS)
    assert world.told("s")[-1] == (at(120 * S), "skipped", "overlap", 1)
    again = Hand(world)
    again.got = hand.got
    assert again.done(run) == "OK"
    world.go(MINUTE_MS)
    assert world.told("s")[-1] == (at(180 * S), "running", "", 1)


def test_pages_of_the_list_are_by_name_and_look_at_no_more_than_they_show(
    world: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(f"{team}.{i:03d}" for team in ("a", "b", "c") for i in range(40))
    for name in names:
        world.set(name)
    seen = 0
    real = world.core.table_get

    def table_get(kind: int, key: bytes) -> bytes | None:
        nonlocal seen
        seen += 1
        return real(kind, key)

    monkeypatch.setattr(world.core, "table_get", table_get)
    found: list[str] = []
    after = ""
    while True:
        rows, more = world.scheduler.page("b.", after, 7)
        assert seen <= 8
        seen = 0
        found += [row.name for row in rows]
        if not more:
            break
        after = found[-1]
    assert found == [name for name in names if name.startswith("b.")]


# ------------------------------------------------------------------------------ a user's own hands


def test_what_users_do_to_jobs_reaches_their_schedule(world: Clockwork) -> None:
    hand = Hand(world)
    world.set("s", overlap=Overlap.QUEUE_ONE)
    world.go(2 * MINUTE_MS)
    rows = world.runs("s")
    hand.say(f"RUN {rows[1].job_id}")
    world.go(0)
    assert [row.outcome for row in world.runs("s")] == ["running", "running"]
    hand.say(f"CANCEL {rows[0].job_id}")
    hand.say(f"RESCHEDULE {rows[1].job_id} +1h")
    world.go(0)
    assert world.told("s")[0] == (at(60 * S), "cancelled", "", 1)
    hand.say(f"RUN {rows[1].job_id}")
    world.go(0)
    hand.fail(*hand.take_jobs())
    world.go(0)
    [_, dead] = world.runs("s")
    assert (dead.outcome, dead.reason, dead.text, dead.failures) == ("dead", "failed", b"bad", 1)
    assert world.scheduler.get("s").failed == 1
    hand.say(f"REQUEUE {dead.job_id}")
    world.go(0)
    assert world.told("s")[1:] == [
        (at(120 * S), "dead", "failed", 1),
        (at(120 * S), "running", "", 1),
    ]
    hand.done(*hand.take_jobs())
    world.go(0)
    assert [row.outcome for row in world.runs("s")] == ["cancelled", "succeeded"]


def test_a_dead_run_that_is_purged_stays_dead_in_the_history(world: Clockwork) -> None:
    hand = Hand(world)
    world.set("s")
    world.go(MINUTE_MS)
    hand.fail(*hand.take_jobs())
    world.go(0)
    [row] = world.runs("s")
    hand.say(f"PURGE {row.job_id}")
    world.go(0)
    assert world.told("s") == [(at(60 * S), "dead", "failed", 1)]
    assert world.core.ended() == []


# ------------------------------------------------------------------------------ backfill, marks


def test_a_backfill_makes_what_is_not_there_and_never_more_than_it_may_at_once(
    world: Clockwork,
) -> None:
    hand = Hand(world)
    world.set("s", "0 * * * *")
    world.go(HOUR_MS)
    hand.done(*hand.take_jobs())
    world.go(0)
    begin_ms, end_ms = WALL_MS - 3 * HOUR_MS, WALL_MS + 5 * HOUR_MS
    expected = [f"s@{at(hour * HOUR_MS)}" for hour in (-3, -2, -1, 0)]
    assert world.scheduler.backfill("s", begin_ms, end_ms, dry=True) == expected
    assert world.scheduler.get("s").backfill_left == 0
    made = world.scheduler.backfill("s", begin_ms, end_ms, reverse=True, active=2, once="t")
    assert made == expected[::-1]
    assert world.scheduler.backfill("s", begin_ms, end_ms, once="t") == made
    with pytest.raises(ScheduleError, match="under way"):
        world.scheduler.backfill("s", begin_ms - HOUR_MS, end_ms)
    world.go(0)
    assert sorted(hand.take_jobs()) == sorted(made[:2])
    world.crash()
    old, hand = hand, Hand(world)
    hand.got = old.got
    world.go(0)
    assert hand.take_jobs() == []
    hand.done(made[1])
    world.go(0)
    assert hand.take_jobs() == [made[2]]
    world.go(HOUR_MS)
    assert f"s@{at(2 * HOUR_MS)}" in hand.take_jobs(), "OVERLAP counts no backfill"
    for run in list(hand.got):
        hand.done(run)
        world.go(0)
        hand.take_jobs()
    for run in list(hand.got):
        hand.done(run)
    world.go(0)
    assert sorted(run for run, *_ in world.told("s"))[:4] == [
        at(hour * HOUR_MS) for hour in (-3, -2, -1, 0)
    ]
    assert world.scheduler.backfill("s", begin_ms, end_ms, dry=True) == []
    assert {entry.kind for entry in world.core.table()} == {1, 2, 3}


def test_a_backfill_after_a_change_of_the_rule_makes_its_times_that_the_old_one_did_not_have(
    world: Clockwork,
) -> None:
    """Also where the history has forgotten what was made: then the rule of that time tells."""
    hand = Hand(world)
    world.set("s", "0 * * * *")
    for _ in range(30):
        world.go(HOUR_MS)
        hand.done(*hand.take_jobs())
    world.go(0)
    assert len(world.runs("s")) < 30
    world.set("s", "*/30 * * * *")
    world.crash()
    begin_ms, end_ms = WALL_MS, WALL_MS + 30 * HOUR_MS
    halves = [f"s@{at(begin_ms + hour * HOUR_MS + HOUR_MS // 2 - WALL_MS)}" for hour in range(30)]
    assert world.scheduler.backfill("s", begin_ms + 1, end_ms, dry=True) == halves
    assert world.scheduler.backfill("s", begin_ms + 1, end_ms, active=100) == halves
    hand = Hand(world)
    world.go(0)
    for run in hand.take_jobs():
        hand.done(run)
    world.go(0)
    world.set("s", "*/15 * * * *")
    again = world.scheduler.backfill("s", begin_ms + 1, end_ms, dry=True)
    assert len(again) == 60
    assert not set(again) & set(halves)


def test_a_run_is_marked_and_made_anew(world: Clockwork) -> None:
    hand = Hand(world)
    world.set("s", "0 * * * *")
    world.go(HOUR_MS)
    hand.fail(*hand.take_jobs())
    world.go(0)
    [dead] = world.runs("s")
    world.scheduler.mark(dead.run_id, succeeded=True, note="by hand", actor="ann")
    [marked] = world.runs("s")
    assert (marked.outcome, marked.note, marked.actor) == ("succeeded", "by hand", "ann")
    made = world.scheduler.rerun("s", "2027-01-15", once="r")
    assert made == [f"{dead.run_id}~1"]
    assert world.scheduler.rerun("s", "2027-01-15", once="r") == made
    world.go(0)
    assert hand.take_jobs() == made
    with pytest.raises(ScheduleError, match="being run"):
        world.scheduler.mark(made[0], succeeded=True)
    hand.done(made[0])
    world.go(0)
    assert world.scheduler.rerun("s", "2027-01-15") == [f"{dead.run_id}~2"]
    for bad in ("s", "s@2099-01-01T00:00:00Z", "nobody@2027-01-15T09:00:00Z"):
        with pytest.raises(ScheduleError):
            world.scheduler.mark(bad, succeeded=True)


def test_a_token_gets_the_first_answer_for_ten_minutes(world: Clockwork) -> None:
    world.set("s", overlap=Overlap.ALLOW)
    first = world.scheduler.trigger("s", once="token")
    world.crash()
    assert world.scheduler.trigger("s", once="token") == first
    assert world.scheduler.get("s").runs == 1
    world.go(10 * MINUTE_MS)
    assert world.scheduler.trigger("s", once="token") != first
    world.go(11 * MINUTE_MS)
    assert [entry for entry in world.core.table() if entry.kind == 5] == []


# ------------------------------------------------------------------------------ dependencies


def test_a_run_waits_for_its_upstreams_and_failure_heals(world: Clockwork) -> None:
    hand = Hand(world)
    world.set("load", "0 9 * * *", "load")
    world.set("report", "-", "report", after=("load",))
    world.go(HOUR_MS)
    assert world.told("report") == [(at(HOUR_MS), "held", "running load", 1)]
    hand.fail(*hand.take_jobs("load"))
    world.go(0)
    assert world.told("report") == [(at(HOUR_MS), "upstream_failed", "dead load", 1)]
    world.crash()
    hand = Hand(world)
    world.go(0)
    assert world.told("report") == [(at(HOUR_MS), "upstream_failed", "dead load", 1)]
    [again] = world.scheduler.rerun("load", "2027-01-15")
    world.go(0)
    hand.take_jobs("load")
    hand.done(again)
    world.go(0)
    assert hand.take_jobs("report") == [f"report@{at(HOUR_MS)}"]


def test_circles_strangers_and_needed_upstreams_are_refused(world: Clockwork) -> None:
    world.set("a", "@daily")
    world.set("b", "-", after=("a",))
    lsn = world.core.lsn()
    with pytest.raises(CycleError, match="a -> b -> a"):
        world.set("a", "@daily", after=("b",))
    with pytest.raises(NotFound):
        world.set("c", "-", after=("nobody",))
    with pytest.raises(Conflict, match="'b'"):
        world.scheduler.delete("a")
    assert world.core.lsn() == lsn
    world.scheduler.delete("a", force=True)


# ------------------------------------------------------------------------------ no room


def test_a_refused_batch_changes_nothing_and_is_tried_each_second(world: Clockwork) -> None:
    hand = Hand(world)
    world.set("s", "@every 10s", overlap=Overlap.ALLOW)
    world.core.set_disk_room(DiskRoom.TIGHT)
    before = world.snapshot()
    with pytest.raises(ScheduleError) as refused:
        world.scheduler.trigger("s", once="t")
    assert refused.value.code == "DISKFULL"
    assert world.snapshot() == before
    world.go(25 * S)
    assert world.scheduler.get("s").runs == 0
    assert world.told("s") == []
    world.core.set_disk_room(DiskRoom.OK)
    world.go(S)
    assert [outcome for _, outcome, *_ in world.told("s")] == ["running", "running"]
    assert world.scheduler.get("s").missed == 0
    assert len(hand.take_jobs()) == 2


@pytest.mark.parametrize("command", ["set", "edit", "delete", "pause", "backfill"])
def test_a_refused_command_leaves_memory_as_it_was(
    world: Clockwork, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.set("up", "0 * * * *")
    world.set("s", "-", after=("up",))
    world.go(HOUR_MS)
    before = world.snapshot()
    world.core.set_disk_room(DiskRoom.FULL)
    calls = {
        "set": lambda: world.set("new", after=("up",)),
        "edit": lambda: world.set("s", "0 9 * * *"),
        "delete": lambda: world.scheduler.delete("s"),
        "pause": lambda: world.scheduler.pause("s"),
        "backfill": lambda: world.scheduler.backfill("up", WALL_MS - DAY_MS, WALL_MS),
    }
    with pytest.raises(ScheduleError):
        calls[command]()
    assert world.snapshot() == before
    world.core.set_disk_room(DiskRoom.OK)
    calls[command]()
    assert world.snapshot() != before


def test_a_full_memory_is_not_taken_for_a_full_disk() -> None:
    world = Clockwork(maxmemory_bytes=1 << 20)
    for i in range(10):
        world.set(f"s{i}", payload=b"x" * 60_000)
    with pytest.raises(ScheduleError, match="--maxmemory") as refused:
        world.set("one more", payload=b"x" * 900_000)
    assert refused.value.code == "OOM"
    world.check()
    crash_changes_nothing(world)
