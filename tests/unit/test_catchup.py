"""What is made up for of the times that passed unattended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dag_world import Times
from wheel.engine.catchup import Catch, CatchUp, Dropped, pick

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class Minutes(Times):
    """Times, with what wheel.cron.Rule has beside."""

    def newest(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        found = [ms for ms in self.all if after_ms < ms <= until_ms]
        return found[-limit:]

    def count(self, after_ms: int, until_ms: int) -> int:
        return sum(after_ms < ms <= until_ms for ms in self.all)


TEN_HOURS = Minutes(range(MINUTE_MS, 600 * MINUTE_MS + 1, MINUTE_MS))
NOW_MS = 600 * MINUTE_MS + 30_000


def caught(policy: CatchUp, *, window_ms: int | None = None, runs_max: int = 1000) -> Catch:
    return pick(
        TEN_HOURS,
        policy,
        from_ms=MINUTE_MS,
        until_ms=NOW_MS,
        now_ms=NOW_MS,
        window_ms=window_ms,
        runs_max=runs_max,
        why="down",
    )


def dropped(first: int, last: int, reason: str) -> Dropped:
    """Return minutes first to last as one row."""
    return Dropped(
        first_ms=first * MINUTE_MS,
        last_ms=last * MINUTE_MS,
        count=last - first + 1,
        reason=reason,
    )


def test_skip_makes_up_for_nothing_and_says_so_once():
    assert caught(CatchUp.SKIP) == Catch(runs=(), dropped=(dropped(1, 600, "down"),))


def test_latest_makes_up_for_the_last_and_counts_the_others():
    expected = Catch(runs=(600 * MINUTE_MS,), dropped=(dropped(1, 599, "down"),))
    assert caught(CatchUp.LATEST) == expected


def test_all_makes_up_for_600_oldest_first():
    assert caught(CatchUp.ALL) == Catch(runs=tuple(TEN_HOURS.all), dropped=())


def test_a_window_of_an_hour_leaves_60():
    catch = caught(CatchUp.ALL, window_ms=HOUR_MS)
    assert (len(catch.runs), catch.dropped) == (60, (dropped(1, 540, "window"),))


def test_the_newest_are_kept_when_there_are_too_many():
    catch = caught(CatchUp.ALL, runs_max=100)
    assert (catch.runs[0], catch.runs[-1]) == (501 * MINUTE_MS, 600 * MINUTE_MS)
    assert catch.dropped == (dropped(1, 500, "max"),)


def test_window_and_max_are_told_apart():
    catch = caught(CatchUp.ALL, window_ms=HOUR_MS, runs_max=10)
    assert catch.dropped == (dropped(1, 540, "window"), dropped(541, 590, "max"))


def test_a_window_that_nothing_is_young_enough_for_leaves_nothing():
    catch = caught(CatchUp.LATEST, window_ms=10_000)
    assert catch == Catch(runs=(), dropped=(dropped(1, 600, "window"),))


def test_nothing_was_missed_between_two_times():
    catch = pick(
        Minutes([MINUTE_MS]),
        CatchUp.ALL,
        from_ms=2 * MINUTE_MS,
        until_ms=NOW_MS,
        now_ms=NOW_MS,
        window_ms=None,
        runs_max=5,
        why="step",
    )
    assert catch == Catch(runs=(), dropped=())


@given(
    times=st.lists(st.integers(0, 60), max_size=20),
    policy=st.sampled_from(CatchUp),
    from_ms=st.integers(0, 60),
    span=st.integers(0, 60),
    late=st.integers(0, 20),
    window_ms=st.none() | st.integers(1, 60),
    runs_max=st.integers(1, 5),
)
def test_every_missed_time_is_made_up_for_or_dropped_and_none_twice(
    times, policy, from_ms, span, late, window_ms, runs_max
):
    rule, until_ms = Minutes(times), from_ms + span
    now_ms = until_ms + late
    catch = pick(
        rule,
        policy,
        from_ms=from_ms,
        until_ms=until_ms,
        now_ms=now_ms,
        window_ms=window_ms,
        runs_max=runs_max,
        why="down",
    )
    missed = [ms for ms in rule.all if from_ms <= ms < until_ms]
    told = [ms for row in catch.dropped for ms in missed if row.first_ms <= ms <= row.last_ms]
    assert told + list(catch.runs) == missed
    for row in catch.dropped:
        inside = [ms for ms in missed if row.first_ms <= ms <= row.last_ms]
        assert (inside[0], inside[-1], len(inside)) == (row.first_ms, row.last_ms, row.count)
        old = window_ms is not None and row.last_ms < now_ms - window_ms
        assert (row.reason == "window") == old
    young = [ms for ms in missed if window_ms is None or ms >= now_ms - window_ms]
    most = {CatchUp.SKIP: 0, CatchUp.LATEST: 1, CatchUp.ALL: runs_max}[policy]
    assert len(catch.runs) == min(most, len(young))


@pytest.mark.parametrize("policy", CatchUp)
def test_a_week_of_seconds_is_not_walked_over(policy):
    class Asked(Minutes):
        """Counts how often it is asked."""

        questions = 0

        def newest(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
            self.questions += 1
            return [until_ms - until_ms % 1000 - 1000 * k for k in reversed(range(limit))]

        def count(self, after_ms: int, until_ms: int) -> int:
            self.questions += 1
            return until_ms // 1000 - after_ms // 1000

        def next_ms(self, after_ms: int) -> int:
            self.questions += 1
            return (after_ms // 1000 + 1) * 1000

        def latest_before(self, before_ms: int) -> int:
            self.questions += 1
            return -(-before_ms // 1000) * 1000 - 1000

    rule = Asked([])
    week_ms = 7 * 24 * HOUR_MS
    catch = pick(
        rule,
        policy,
        from_ms=0,
        until_ms=week_ms,
        now_ms=week_ms,
        window_ms=HOUR_MS,
        runs_max=1000,
        why="down",
    )
    assert len(catch.runs) + sum(row.count for row in catch.dropped) == 7 * 24 * 3600
    assert rule.questions < 10
