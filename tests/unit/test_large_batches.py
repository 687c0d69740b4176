"""Payloads that together are more than a batch: what is due is made in slices, more is refused."""

from collections.abc import Iterator

import pytest

from tests.schedules import HOUR_MS, MINUTE_MS, Clockwork, Hand
from wheel.engine.definition import Overlap, ScheduleError
from wheel.engine.fanout import FIRING_BYTES_MAX, RUN_BYTES

LARGE = bytes(65_536)
FIT = FIRING_BYTES_MAX // (len(LARGE) + 2 * RUN_BYTES)  # tasks with such a payload in a firing


@pytest.fixture
def world() -> Iterator[Clockwork]:
    world = Clockwork()
    yield world
    world.check()


@pytest.fixture
def hand(world: Clockwork) -> Hand:
    return Hand(world)


def refused(world: Clockwork, name: str, rule: str = "-", **more: object) -> str:
    before = world.snapshot()
    with pytest.raises(ScheduleError) as error:
        world.set(name, rule, **more)
    assert error.value.code == "LIMIT"
    assert world.snapshot() == before
    return str(error.value)


def test_schedules_due_at_once_are_made_however_large_they_are(
    world: Clockwork, hand: Hand
) -> None:
    """Sixty of 64 KiB were one batch of 4 MiB, which the core refuses: all stood still."""
    for number in range(60):
        world.set(f"x{number}", "0 9 * * *", payload=LARGE)
    world.go(HOUR_MS)
    assert hand.say("COUNT HANDLER h") == 60


def test_a_firing_that_fits_into_a_batch_is_made_whole(world: Clockwork, hand: Hand) -> None:
    world.set("root", "0 9 * * *", "root")
    for number in range(FIT):
        after = "root" if number % 2 == 0 else f"x{number - 1}"
        world.set(f"x{number}", "-", after=(after,), payload=LARGE)
    world.go(HOUR_MS)
    assert hand.say("COUNT HANDLER h") == FIT


def test_who_makes_a_firing_too_large_is_refused(world: Clockwork) -> None:
    world.set("root", "0 9 * * *", "root")
    for number in range(FIT):
        world.set(f"x{number}", "-", after=("root",), payload=LARGE)
    text = refused(world, "more", after=("x0",), payload=LARGE)
    assert "a run of 'root' would make" in text
    assert "payloads smaller" in text
    refused(world, "root", "0 9 * * *", payload=LARGE)
    world.set("more", "30 9 * * *", after=("x0",), payload=LARGE)  # made by its own rule
    refused(world, "more", after=("x0",), payload=LARGE)
    world.set("more", "-", after=("x0",))  # small
    refused(world, "more", after=("x0",), payload=LARGE)
    world.set("x0", "-", after=("root",))
    world.set("more", "-", after=("x0",), payload=LARGE)


def test_a_new_edge_that_joins_two_firings_is_refused(world: Clockwork) -> None:
    for root in ("a", "b"):
        world.set(root, "0 9 * * *", "root")
        world.set(f"{root}-first", "-", after=(root,))
        for number in range(FIT * 2 // 3):
            world.set(f"{root}{number}", "-", after=(f"{root}-first",), payload=LARGE)
    refused(world, "b-first", after=("b", "a0"))
    refused(world, "b-first", after=("a",))
    for number in range(FIT * 2 // 3):
        world.scheduler.delete(f"a{number}")
    assert world.set("b-first", "-", after=("a",)) == "changed"


def test_a_rerun_of_more_than_a_batch_is_refused(world: Clockwork, hand: Hand) -> None:
    world.set("x", "* * * * *", overlap=Overlap.ALLOW, payload=LARGE)
    world.go(40 * MINUTE_MS)
    while taken := hand.take_jobs():
        for run in taken:
            hand.done(run)
    world.go(0)
    with pytest.raises(ScheduleError, match="name an hour instead of a day") as error:
        world.scheduler.rerun("x", "2027-01-15")
    assert error.value.code == "LIMIT"
    assert len(world.scheduler.rerun("x", "2027-01-15T08:05:00Z")) == 1
