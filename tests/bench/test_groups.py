"""Groups that need no peer, at a tiny scale: they run, count what they did, and fill their rows."""

from dataclasses import replace
from itertools import islice

import pytest

from bench import (
    figures_checkpoint,
    figures_day,
    figures_floor,
    figures_growth,
    figures_memory,
    figures_wheel,
    plots,
)
from bench.harness import BenchError
from bench.run import QUICK

TINY = replace(
    QUICK,
    rounds=2,
    wheel_rounds=2,
    wheel_timers=3_000,
    growth_timers=(2_000, 4_000),
    day_schedules=12,
    day_jobs=400,
    jobs_large=(3_000,),
    peer_jobs=1_000,
    run_s=0.05,
    far_jobs=5_000,
)


def repeat(action, times):
    for _ in range(times):
        action()


def by_name(rows):
    """Return the rows by what they are called; each has a value, a command and its rounds."""
    for row in rows:
        assert row.value is not None, row
        assert row.value >= 0
        assert row.command.startswith("python -m bench.run ")
        assert row.plot is None or row.plot.chart in plots.CHARTS
    found = {row.figure: row for row in rows}
    assert len(found) == len(rows), "two rows have one name"
    return found


@pytest.mark.slow
def test_wheel_shows_each_queue_and_the_ratios(tmp_path):
    rows = by_name(figures_wheel.run(tmp_path, TINY))
    for verb in figures_wheel.VERBS:
        for name in (figures_wheel.WHEEL, figures_wheel.HEAPQ, figures_wheel.SORTED):
            assert len(rows[f"3,000 timers: {verb}, {name}"].rounds) == 2
    assert rows["wheel: an advance with nothing due"].at_most == 20
    assert rows["3,000 timers: cancel, wheel beside C 4-ary heap"].target == ""


@pytest.mark.slow
def test_growth_shows_each_operation_at_each_size(tmp_path):
    rows = by_name(figures_growth.run(tmp_path, TINY))
    for text in figures_growth.OPERATIONS.values():
        assert rows[f"{text}: with 2,000 timers"].plot.at == 2_000
        assert rows[f"{text}: with 4,000 timers"].value > 0
    assert rows["a tick over 1 year of nothing, beside one over 1 ms"].at_most == 4
    assert list(tmp_path.iterdir()) == []


def test_the_ratio_of_the_greatest_size_has_a_target_at_ten_million_alone():
    found = {"insert": 5.0}
    sizes = {100_000: [found], 10_000_000: [{"insert": 21.0}]}
    (row,) = figures_growth._beside("insert", sizes)
    assert (row.value, row.target, row.verdict) == (4.2, "<= 4", "MISSED")
    (row,) = figures_growth._beside("insert", {100_000: [found], 1_000_000: [found]})
    assert row.target == ""
    assert list(figures_growth._beside("insert", {2_000: [found], 4_000: [found]})) == []


@pytest.mark.slow
def test_a_day_accounts_for_every_run(tmp_path):
    rows = by_name(figures_day.run(tmp_path, TINY))
    day = "a day of 12 schedules and 400 other jobs"
    assert rows[f"{day}: runs of schedules, all accounted for"].value == 12 * 10
    assert rows[f"{day}: jobs, all accounted for"].value == 12 * 10 + 400
    for what in ("failures that were retried or final", "leases that ran out", "given back"):
        assert rows[f"{day}: {what}"].value > 0
    assert 0 < rows[f"{day}: far timers left at its end"].value < 400


def test_a_day_that_loses_a_job_is_no_figure():
    day = figures_day.Day(1)
    day.make(5)
    with pytest.raises(BenchError, match=r"0 \+ 0 runs of 10"):
        figures_day._accounted(day, 1)
    day.made += 5
    with pytest.raises(BenchError, match="5 jobs, of 10 and the runs"):
        figures_day._accounted(day, 0)


@pytest.mark.slow
def test_floor_and_wheeld_take_the_same_load(tmp_path, monkeypatch):
    monkeypatch.setattr(figures_floor, "SHAPES", (figures_floor.MANY_DEEP,))
    rows = by_name(figures_floor.run(tmp_path, replace(TINY, rounds=1)))
    for name in ("wheeld", "bare echo"):
        assert rows[f"floor, 50 connections, 16 deep: {name}"].value > 0
        assert rows[f"floor, 50 connections, 16 deep: {name}, server CPU"].value > 0


@pytest.mark.slow
def test_a_restart_counts_every_job(tmp_path, monkeypatch):
    scale = replace(TINY, rounds=1)
    rows = by_name(list(islice(figures_memory._ours(tmp_path, scale, 3_000), 3)))
    for what in ("to the first answer", "CPU", "warm"):
        assert rows[f"restart with 3,000 jobs, kill -9, log alone: wheeld, {what}"].value > 0
    forgetful = figures_memory.wheeld(tmp_path / "log", fsync="off")
    with pytest.raises(BenchError, match="3000 jobs after the restart, not 3001"):
        figures_memory._started(lambda: forgetful, 3_001)


def test_peers_that_are_not_there_are_rows_without_a_value(tmp_path, monkeypatch):
    monkeypatch.setattr(figures_memory, "has_redis", lambda: False)
    monkeypatch.setattr(figures_memory, "has_beanstalkd", lambda: False)
    rows = list(figures_memory._peers(tmp_path, TINY, 10))
    assert [row.why for row in rows] == ["Redis is not installed", "beanstalkd is not installed"]
    assert {row.verdict for row in rows} == {"not measured"}


def test_a_commit_that_was_refused_is_no_figure(tmp_path, monkeypatch):
    """A full table refuses in half a microsecond, which once stood here as a commit's time."""
    monkeypatch.setattr(figures_checkpoint, "MADE_MOST", 0)
    working = figures_checkpoint.Working(tmp_path, 2_000)
    with pytest.raises(BenchError, match="the table of jobs is full"):
        repeat(working.commit, 100)
    working.close()


def test_each_round_of_checkpoints_begins_with_the_same_jobs(tmp_path):
    working = figures_checkpoint.Working(tmp_path, 2_000)
    for _ in range(2):
        assert working.commit() > 0
        working.forget()
        assert working.core.engine_figures()["jobs_scheduled"] == 2_000
    working.close()
