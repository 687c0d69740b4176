"""Behaviours of schedules that other schedulers' users had to report; the clock is moved by hand.

Everything here goes over the wire, as a user's commands and a worker's do.
"""

from itertools import pairwise

import pytest

from tests.fed import WALL_MS
from tests.scheduled import World

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000


@pytest.fixture
def world():
    made = World()
    yield made
    made.check()


def at(text: str) -> int:
    """Return 2027-01-15 (a Friday) and a time as unix ms; the world begins at 08:00."""
    hour, minute, second = (*map(int, text.split(":")), 0)[:3]
    return WALL_MS + (hour - 8) * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS


def outcomes(world, name):
    """Return (outcome, how many runs) of a schedule's history, summed up."""
    found: dict[str, int] = {}
    for run in world.runs(name):
        found[run["outcome"]] = found.get(run["outcome"], 0) + run["count"]
    return found


# ---------------------------------------------------------------- time


def test_o5_a_step_of_the_wall_clock_moves_nothing_relative_and_doubles_nothing(world):
    world.cron("SET wall", "* * * * *", "w", "{}", "OVERLAP", "allow")
    world.cron("SET every", "@every 60s", "e", "{}", "OVERLAP", "allow")
    world.ask("SCHEDULE", "rel", "+5s", "x")
    world.advance(10 * MINUTE_MS, by=SECOND_MS)
    before = {name: world.nominals(name) for name in ("w", "e")}
    assert len(before["w"]) == len(before["e"]) == 10
    assert world.ack(world.lease("rel")) == ["OK"]
    world.step(-2 * HOUR_MS)
    assert world.clock()["clock_held"] == 1
    world.ask("SCHEDULE", "rel", "+5s", "x")
    world.advance(10 * MINUTE_MS, by=SECOND_MS)
    assert len(world.lease("rel")) == 1
    after = world.nominals("e")
    assert len(after) == 20, "what is relative goes on"
    assert {b - a for a, b in pairwise(after)} == {MINUTE_MS}
    assert world.nominals("w") == before["w"], "wall times are held"
    world.advance(2 * HOUR_MS, by=MINUTE_MS)
    nominals = world.nominals("w")
    assert len(nominals) == len(set(nominals)), "no nominal time runs twice"
    assert world.clock()["clock_held"] == 0
    assert len(nominals) == 20


def test_o5_a_step_forward_is_a_miss_and_the_catch_up_rule_applies(world):
    world.cron("SET n", "* * * * *", "h", "{}")
    world.cron("SET every", "@every 60s", "e", "{}", "OVERLAP", "allow")
    world.advance(30 * SECOND_MS)
    world.step(2 * HOUR_MS)
    assert world.nominals("h") == [at("10:00")], "one run, for the last time jumped over"
    assert outcomes(world, "n")["missed"] == 119
    world.advance(5 * MINUTE_MS, by=SECOND_MS)
    assert len(world.nominals("e")) == 5, "the clock that nobody sets did not jump"


def test_o10_a_server_that_is_late_misses_nothing(world):
    world.cron("SET n", "* * * * *", "h", "{}", "CATCHUP", "skip", "OVERLAP", "allow")
    world.advance(62 * SECOND_MS)
    assert world.nominals("h") == [at("8:01")]
    world.advance(5 * MINUTE_MS)
    assert len(world.nominals("h")) == 6, "five minutes in one turn: all five are made"
    assert "missed" not in outcomes(world, "n")


# ---------------------------------------------------------------- catch-up


@pytest.mark.parametrize(
    ("options", "made", "missed"),
    [
        (("CATCHUP", "skip"), 0, 600),
        (("CATCHUP", "latest"), 1, 599),
        (("CATCHUP", "all"), 600, 0),
        (("CATCHUP", "all", "WINDOW", HOUR_MS), 60, 540),
        (("CATCHUP", "all", "MAX", 100), 100, 500),
        (("CATCHUP", "latest", "WINDOW", HOUR_MS), 1, 599),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_o9_ten_hours_down_are_caught_up_by_the_rule_and_never_end_a_schedule(
    world, options, made, missed
):
    world.cron("SET n", "* * * * *", "h", "{}", *options)
    world.down(10 * HOUR_MS + 30 * SECOND_MS)
    nominals = []
    while jobs := world.lease("h", count=1):  # `all` runs one behind the other
        nominals.append(world.nominal_of(jobs[0]))
        world.ack(jobs)
    assert len(nominals) == made
    assert nominals == sorted(nominals), "the oldest first"
    assert nominals[-1:] == [at("18:00")][: min(made, 1)], "the newest are kept"
    shown = world.get("n")
    assert (shown["missed"], shown["succeeded"]) == (missed, made)
    if missed and made < 20:  # a longer history has been trimmed by now
        assert [run["count"] for run in world.runs("n") if run["outcome"] == "missed"] == [missed]
    assert (shown["state"], shown["next_ms"]) == ("active", at("18:01"))
    world.advance(MINUTE_MS)
    assert [world.nominal_of(job) for job in world.lease("h")] == [at("18:01")]


def test_o11_a_weekly_interval_fires_each_week_though_the_server_is_restarted_daily(world):
    world.cron("SET n", "@every 7d", "h", "{}")
    due_ms = world.get("n")["next_ms"]
    nominals = []
    for _ in range(22):
        world.advance(DAY_MS - MINUTE_MS)
        jobs = world.lease("h")
        nominals += [world.nominal_of(job) for job in jobs]
        world.ack(jobs)
        world.down(MINUTE_MS)
    jobs = world.lease("h")
    nominals += [world.nominal_of(job) for job in jobs]
    assert nominals == [due_ms + week * 7 * DAY_MS for week in range(len(nominals))]
    assert len(nominals) in (3, 4)


def test_o12_two_weeks_down_leave_no_backlog_of_a_short_interval(world):
    world.cron("SET n", "@every 5s", "h", "{}", "CATCHUP", "skip")
    world.down(14 * DAY_MS)
    assert world.lease("h") == []
    assert outcomes(world, "n") == {"missed": 14 * DAY_MS // 5_000}
    assert len(world.runs("n")) <= 2, "one record for many"
    world.advance(5 * SECOND_MS)
    assert len(world.lease("h")) == 1


def test_o13_a_restart_over_the_time_of_a_run_makes_it_once_and_tells_how_late(world):
    world.cron("SET n", "0 9 * * *", "h", "{}")
    world.advance(HOUR_MS - 2_500)
    world.down(3_200)
    [job] = world.lease("h")
    assert world.nominal_of(job) == at("9:00")
    [run] = world.runs("n")
    assert (run["nominal_ms"], run["outcome"]) == (at("9:00"), "running")
    world.ack([job])
    world.down(SECOND_MS)
    world.advance(HOUR_MS, by=MINUTE_MS)
    assert world.lease("h") == []
    assert [run["outcome"] for run in world.runs("n")] == ["succeeded"]


# ---------------------------------------------------------------- identity and editing


def test_o15_the_same_schedule_again_is_unchanged_and_its_counts_stay(world):
    words = ("n", "*/5 * * * *", "h", "{}", "TZ", "Europe/Rome", "JITTER", 1000)
    first = world.cron("SET", *words)
    assert first[:2] == [1, "created"]
    assert world.cron("SET", *words)[:2] == [1, "unchanged"]
    world.advance(5 * MINUTE_MS + 1000)
    world.ack(world.lease("h"))
    before = world.get("n")
    assert world.cron("SET", *words) == [1, "unchanged", before["next_ms"]]
    world.down(SECOND_MS)
    assert world.cron("SET", *words) == [1, "unchanged", before["next_ms"]]
    assert world.get("n") == {**before, "served": "never"}, "nobody has asked for it since"
    assert world.names() == ["n"]
    assert world.cron("SET", *words[:3], "other", *words[4:])[:2] == [2, "changed"]
    assert world.get("n")["runs"] == before["runs"], "what was counted stays"


def test_o16_another_rule_cancels_what_the_old_one_had_pending(world):
    world.cron("SET n", "*/10 * * * *", "h", "{}", "OVERLAP", "queue_all", "TIMEOUT", 0)
    world.advance(30 * MINUTE_MS, by=MINUTE_MS)
    [job] = world.lease("h")
    assert world.ask("COUNT") == 3, "one is running, two wait behind it"
    version, word, next_ms = world.cron("SET n", "45 8 * * *", "h", "{}", "TIMEOUT", 0)
    assert (version, word, next_ms) == (2, "changed", at("8:45"))
    assert world.ask("COUNT") == 1
    assert world.ack([job]) == ["OK"]
    world.advance(3 * HOUR_MS, by=MINUTE_MS)
    assert [world.nominal_of(job) for job in world.lease("h")] == [at("8:45")]
    assert outcomes(world, "n") == {"succeeded": 1, "cancelled": 2, "running": 1}


def test_o17_what_passed_while_paused_is_not_run_late(world):
    world.cron("SET n", "0 17 * * *", "h", "{}", "CATCHUP", "skip")
    world.advance(8 * HOUR_MS)
    world.cron("PAUSE n", "NOTE", "why not")
    shown = world.get("n")
    assert (shown["state"], shown["note"]) == ("paused", "why not")
    world.advance(70 * MINUTE_MS, by=MINUTE_MS)
    assert world.lease("h") == []
    world.cron("RESUME n")
    world.advance(MINUTE_MS)
    assert world.lease("h") == []
    assert world.get("n")["next_ms"] == at("17:00") + DAY_MS
    assert [(run["outcome"], run["reason"]) for run in world.runs("n")] == [("missed", "paused")]


def test_a_pause_lasts_over_a_restart_and_latest_runs_once_at_resume(world):
    world.cron("SET n", "0 * * * *", "h", "{}")
    world.cron("PAUSE n")
    world.down(5 * HOUR_MS)
    assert world.get("n")["state"] == "paused"
    assert world.lease("h") == []
    world.cron("RESUME n")
    assert [world.nominal_of(job) for job in world.lease("h")] == [at("13:00")]
    assert outcomes(world, "n")["missed"] == 4


def test_o18_what_is_added_changed_and_removed_is_in_force_at_once(world):
    world.cron("SET n", "@every 1h", "h", "{}")
    world.cron("SET n", "@every 1s", "h", "{}")
    world.advance(SECOND_MS)
    world.ack(world.lease("h"))
    world.cron("SET m", "@every 1s", "h", "{}")
    world.cron("DEL n")
    world.advance(SECOND_MS)
    [job] = world.lease("h")
    assert world.run_id_of(job).startswith("m@")
    assert world.cron("GET n") is None
    assert world.refused("RUNS n") == world.refused("DEL n") == "UNKNOWN"


def test_a_deleted_schedule_leaves_no_pending_job_and_its_leased_run_ends_as_usual(world):
    world.cron("SET n", "@every 1s", "h", "{}", "OVERLAP", "queue_all")
    world.advance(3 * SECOND_MS, by=SECOND_MS)
    [job] = world.lease("h")
    world.cron("DEL n")
    assert world.ask("COUNT") == 1
    assert world.ack([job]) == ["OK"]
    world.advance(5 * SECOND_MS, by=SECOND_MS)
    assert world.ask("COUNT") == 0


# ---------------------------------------------------------------- overlap


def work(world, seconds, *, takes=25):
    """Let a worker with many slots run everything for ``takes`` seconds.

    It heartbeats each second and stops what was cancelled. Returns (start, nominal) in seconds.
    """
    started, running = [], {}
    for second in range(1, seconds + 1):
        world.advance(SECOND_MS)
        for receipt, end in list(running.items()):
            cancelled = str(world.ask("EXTEND", receipt)[0]).startswith("CANCELLED")
            if cancelled or second >= end:
                world.ask(*(["RELEASE", receipt] if cancelled else ["ACK", receipt]))
                del running[receipt]
        for job in world.lease("h", count=100):
            running[world.receipt_of(job)] = second + takes
            started.append((second, (world.nominal_of(job) - WALL_MS) // 1000))
    return started


@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        ("skip", [(10, 10), (40, 40), (70, 70), (100, 100)]),
        ("queue_one", [(10, 10), (35, 20), (60, 40), (85, 70)]),
        ("queue_all", [(10, 10), (35, 20), (60, 30), (85, 40)]),
        ("allow", [(s, s) for s in range(10, 101, 10)]),
        ("cancel_running", [(s, s) for s in range(10, 101, 10)]),
    ],
)
def test_o22_a_run_that_lasts_longer_than_its_interval_obeys_the_policy(world, policy, starts):
    world.cron("SET n", "*/10 * * * * *", "h", "{}", "OVERLAP", policy, "TIMEOUT", 0)
    found = work(world, 100)
    assert found[: len(starts)] == starts
    told = outcomes(world, "n")
    if policy in {"skip", "queue_one"}:
        assert told["skipped"] > 0
        assert {run["reason"] for run in world.runs("n") if run["outcome"] == "skipped"} == {
            "overlap"
        }
    else:
        assert "skipped" not in told
    if policy == "cancel_running":
        assert told["cancelled"] == 9
    made = sum(told.values())
    assert made == 10, "each of the ten nominal times stands in the history, whatever became of it"


def test_o23_a_run_that_outlives_a_kill_of_the_server_still_counts_as_active(world):
    world.cron("SET n", "* * * * *", "h", "{}", "TIMEOUT", 0)
    world.advance(MINUTE_MS)
    [job] = world.lease("h")
    world.down(5 * SECOND_MS)
    assert world.ask("EXTEND", world.receipt_of(job)) == [60_000]
    world.advance(MINUTE_MS, by=SECOND_MS)
    assert world.lease("h") == [], "no second run beside it"
    assert outcomes(world, "n") == {"running": 1, "skipped": 1}
    assert world.ack([job]) == ["OK"]
    world.advance(MINUTE_MS, by=SECOND_MS)
    assert [world.nominal_of(job) for job in world.lease("h")] == [at("8:03")]


def test_o24_a_run_by_hand_obeys_the_policy_and_counts_for_the_next_ones(world):
    world.cron("SET n", "* * * * *", "h", "{}", "TIMEOUT", 0)
    by_hand = world.cron("TRIGGER n")
    assert by_hand.startswith("n@2027-01-15T08:00:00Z!")
    [job] = world.lease("h")
    assert world.run_id_of(job) == by_hand
    world.advance(MINUTE_MS)
    assert world.lease("h") == [], "the scheduled run is skipped: the one by hand is active"
    dropped = world.cron("TRIGGER n")
    assert world.lease("h") == [], "and so is another one by hand, which the history tells"
    told = {run["run"]: (run["outcome"], run["reason"]) for run in world.runs("n")}
    assert told[dropped] == ("skipped", "overlap")
    forced = world.cron("TRIGGER n FORCE")
    assert forced != by_hand
    [second] = world.lease("h")
    assert world.run_id_of(second) == forced
    world.ack([job, second])
    world.advance(MINUTE_MS)
    assert len(world.lease("h")) == 1


def test_a_trigger_that_is_repeated_with_its_token_makes_one_run(world):
    world.cron("SET n", "@yearly", "h", "{}", "OVERLAP", "allow")
    first = world.cron("TRIGGER n ONCE t1")
    assert world.cron("TRIGGER n ONCE t1") == first
    world.down(SECOND_MS)
    assert world.cron("TRIGGER n ONCE t1") == first
    assert world.cron("TRIGGER n ONCE t2") != first
    assert len(world.lease("h", count=10)) == 2


# ---------------------------------------------------------------- what is told


def test_why_a_worker_was_asked_to_stop_is_known_after_a_crash_and_forgotten_at_the_end(world):
    world.cron("SET n", "* * * * *", "h", "{}", "OVERLAP", "cancel_running")
    world.advance(MINUTE_MS)
    [job] = world.lease("h")
    world.advance(MINUTE_MS)  # the next run asks this one to stop, and waits
    world.down(SECOND_MS)
    assert world.ask("FAIL", world.receipt_of(job)) == "CANCELLED"
    told = {run["run"]: (run["outcome"], run["reason"]) for run in world.runs("n")}
    assert told[world.run_id_of(job)] == ("cancelled", "overlap")
    assert [world.nominal_of(job) for job in world.lease("h")] == [at("8:02")]
    entry = world.scheduling.scheduler.planner.store.get("n")
    assert entry.extra.asked == ()


def test_a_run_that_succeeds_though_it_was_asked_to_stop_gives_no_reason(world):
    world.cron("SET n", "* * * * *", "h", "{}", "OVERLAP", "cancel_running")
    world.advance(MINUTE_MS)
    [job] = world.lease("h")
    world.advance(MINUTE_MS)
    assert world.ack([job]) == ["OK"]
    told = {run["run"]: (run["outcome"], run["reason"]) for run in world.runs("n")}
    assert told[world.run_id_of(job)] == ("succeeded", None)


def test_a_failed_run_keeps_its_code_and_the_last_four_kibibytes_of_its_output(world):
    output = "".join(f"line {i:4}\n" for i in range(500))[-4096:]
    world.cron("SET n", "* * * * *", "h", "{}", "RETRIES", 0)
    world.advance(MINUTE_MS)
    [job] = world.lease("h")
    assert world.ask("FAIL", world.receipt_of(job), "ERROR", "exit 3", "RESULT", output) == "DEAD"
    world.down(SECOND_MS)
    [run] = [run for run in world.runs("n") if run["outcome"] == "dead"]
    assert run["text"] == f"exit 3\n{output}"


def test_o21_a_rule_that_is_wrong_is_refused_at_once_and_stores_nothing(world):
    for rule in ("61 * * * *", "0 0 31 2 *", "*/0 * * * *", "a b c d e", "@every 0s", "@at never"):
        assert world.refused("SET n", rule, "h", "{}") == "CRON"
    assert world.refused("SET n", "@daily", "h", "{}", "TZ", "Europe/Romme") == "CRON"
    assert world.cron("GET n") is None
    assert world.names() == []


def test_o21_a_handler_that_nobody_serves_is_shown_so_or_refused_where_that_is_asked_for(world):
    world.cron("SET n", "@daily", "h", "{}")
    assert world.get("n")["served"] == "never"
    world.lease("h")
    assert world.get("n")["served"] == "never", "a handler comes to be with its first job"
    world.ask("HANDLER", "h", "RETRIES", 1)
    assert world.get("n")["served"] == "yes"
    strict = World(strict_handlers=True)
    assert strict.refused("SET n", "@daily", "h", "{}") == "DENIED"
    assert strict.cron("GET n") is None
    strict.ask("HANDLER", "h", "RETRIES", 1)
    assert strict.cron("SET n", "@daily", "h", "{}")[1] == "created"


def test_what_start_end_and_a_number_of_runs_bound_ends_by_itself(world):
    start, end = at("9:00"), at("11:30")
    world.cron("SET n", "0 * * * *", "h", "{}", "START", start, "END", end, "OVERLAP", "allow")
    assert world.get("n")["next_ms"] == start
    world.cron("SET m", "0 * * * *", "g", "{}", "MAXRUNS", 2, "OVERLAP", "allow")
    world.advance(6 * HOUR_MS, by=MINUTE_MS)
    assert world.nominals("h") == [at("9:00"), at("10:00"), at("11:00")]
    assert world.nominals("g") == [at("9:00"), at("10:00")]
    for name in ("n", "m"):
        shown = world.get(name)
        assert (shown["state"], shown["next_ms"]) == ("ended", None)


def test_jitter_moves_the_due_time_alone_and_is_the_same_after_a_restart(world):
    world.cron("SET n", "0 * * * *", "h", "{}", "JITTER", 30 * MINUTE_MS)
    told = world.pairs(world.cron("NEXT n COUNT 3"))["next"]
    world.down(SECOND_MS)
    assert world.pairs(world.cron("NEXT n COUNT 3"))["next"] == told
    nominal_ms, _, due_ms = told[0]
    assert nominal_ms == at("9:00")
    assert nominal_ms < due_ms < nominal_ms + 30 * MINUTE_MS
    world.advance(due_ms - 1 - world.now_ms)
    assert world.lease("h") == []
    world.advance(1)
    [job] = world.lease("h")
    assert (world.nominal_of(job), job[5]) == (nominal_ms, due_ms)


def test_an_expiry_counts_from_when_a_run_is_due(world):
    world.cron("SET n", "0 9 * * *", "h", "{}", "EXPIRE", "+5m")
    world.advance(HOUR_MS + 4 * MINUTE_MS, by=MINUTE_MS)
    assert world.ask("COUNT", "STATE", "ready") == 1
    world.advance(2 * MINUTE_MS, by=SECOND_MS)
    assert world.lease("h") == []
    assert [run["outcome"] for run in world.runs("n")] == ["expired"]
