"""A start on a machine that lacks a schedule's zone: it is paused, and the others go on."""

import zoneinfo
from collections.abc import Callable, Iterator

import pytest

from tests.schedules import DAY_MS, HOUR_MS, Clockwork
from wheel import cron, zones
from wheel.engine.definition import ScheduleError
from wheel.errors import ZoneError

# The clock begins on 2027-01-15 at 08:00 UTC.
GONE = "US/Pacific"


@pytest.fixture
def world() -> Iterator[Clockwork]:
    world = Clockwork()
    yield world
    world.check()


@pytest.fixture
def take_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Give what takes the zone away from this machine, or brings it back."""
    real = zoneinfo.ZoneInfo
    gone = False

    def look(name: str) -> zoneinfo.ZoneInfo:
        if gone and name == GONE:
            raise zoneinfo.ZoneInfoNotFoundError(name)
        return real(name)

    def forget() -> None:
        for known in (zones.zone, cron._compile, cron._compile_hashed):
            known.cache_clear()

    def take(away: bool) -> None:
        nonlocal gone
        gone = away
        forget()

    monkeypatch.setattr(zoneinfo, "ZoneInfo", look)
    yield take
    monkeypatch.undo()
    forget()


def start_without_it(world: Clockwork, take_away: Callable[[bool], None]) -> None:
    take_away(True)
    world.crash()
    world.seen.clear()
    world.go(0)


@pytest.mark.parametrize(
    ("rule", "tz"),
    [
        ("0 9 * * *", GONE),
        (f"CRON_TZ={GONE} 0 9 * * *", "UTC"),
        ("@every 1h", GONE),
        ("@at 2027-01-16T09:00:00Z", GONE),
        ("H H * * *", GONE),
    ],
)
def test_a_schedule_whose_zone_is_gone_is_paused_and_others_go_on(
    world: Clockwork, take_away: Callable[[bool], None], rule: str, tz: str
) -> None:
    world.set("lost", rule, tz=tz)
    world.set("here", "0 9 * * *")
    before = world.scheduler.get("lost").next_ms
    start_without_it(world, take_away)
    told = [fields for name, fields in world.seen if name == "schedule_zone_gone"]
    assert [(fields["schedule"], fields["zone"]) for fields in told] == [("lost", GONE)]
    world.go(2 * DAY_MS)
    row = world.scheduler.get("lost")
    assert (row.state, row.next_ms, row.actor) == ("paused", before, "wheeld")
    assert f"no time zone '{GONE}'" in row.note
    assert world.runs("lost") == []
    assert len(world.runs("here")) == 2
    world.crash()  # it is known, and not told again
    world.seen.clear()
    world.go(0)
    assert world.seen == []


def test_what_needs_the_zone_is_refused_until_it_is_set_anew(
    world: Clockwork, take_away: Callable[[bool], None]
) -> None:
    world.set("lost", "0 9 * * *", tz=GONE)
    start_without_it(world, take_away)
    scheduler, now_ms = world.scheduler, world.wall_ms
    for ask in (
        lambda: scheduler.resume("lost"),
        lambda: scheduler.upcoming("lost"),
        lambda: scheduler.backfill("lost", now_ms - DAY_MS, now_ms),
        lambda: scheduler.rerun("lost", "2027-01-14"),
    ):
        with pytest.raises(ScheduleError, match=f"no time zone '{GONE}'.*; SET it") as refused:
            ask()
        assert refused.value.code == "CONFLICT"
    with pytest.raises(ZoneError):
        world.set("lost", "0 10 * * *", tz=GONE)
    assert world.set("lost", "0 9 * * *", tz="America/Los_Angeles") == "changed"
    world.scheduler.resume("lost")
    world.go(DAY_MS)
    assert [run for run, *_ in world.told("lost")] == ["2027-01-15T17:00:00Z"]


def test_a_zone_that_is_back_goes_on_by_resume(
    world: Clockwork, take_away: Callable[[bool], None]
) -> None:
    world.set("lost", "0 9 * * *", tz=GONE)
    start_without_it(world, take_away)
    world.go(2 * DAY_MS)
    take_away(False)
    world.crash()
    world.go(0)
    assert world.scheduler.get("lost").state == "paused"
    world.scheduler.resume("lost")
    world.go(0)
    assert world.told("lost") == [
        ("2027-01-15T17:00:00Z", "missed", "paused", 1),
        ("2027-01-16T17:00:00Z", "running", "", 1),
    ]


def test_dates_of_a_zone_that_is_gone_hold_who_waits_for_them(
    world: Clockwork, take_away: Callable[[bool], None]
) -> None:
    world.set("up", "0 9 * * *", "u", tz=GONE)
    world.set("down", "0 10 * * *", "d", after=("up",))
    world.set("follows", "-", "f", after=("up",), tz=GONE)
    world.go(3 * HOUR_MS)
    start_without_it(world, take_away)
    assert [world.scheduler.get(name).state for name in ("up", "down", "follows")] == [
        "paused",
        "active",
        "paused",
    ]
    assert world.told("down") == [("2027-01-15T10:00:00Z", "held", "paused up", 1)]
    world.scheduler.delete("follows")
    world.scheduler.delete("up", force=True)
    world.go(0)
    assert world.told("down") == [("2027-01-15T10:00:00Z", "no_upstream", "deleted up", 1)]
