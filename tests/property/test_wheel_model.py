"""The wheel against a sorted list of (key, order of insertion), for any sequence of calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sortedcontainers import SortedKeyList

from tests.property.wheel_binding import DUE_MS_END, NEVER_MS, Wheel, compile_module

CAPACITY = 400
LAST_MS = DUE_MS_END - 1
YEARS_100_MS = 100 * 365 * 86_400_000

# Most faults are at the edges of digits.
BASES_MS = sorted(
    {0, 1_790_000_000_000, 2**47} | {64**k - 1 for k in range(1, 8)} | {64**k for k in range(1, 8)}
)
DELTAS_MS = sorted(
    {0, 1, 63, 64, 65, 4095, 4096, 10**9, YEARS_100_MS, -1, -63, -64, -5000}
    | {64**k + side for k in range(8) for side in (-1, 0, 1)}
)

base_ms = st.sampled_from(BASES_MS)
delta_ms = st.one_of(st.sampled_from(DELTAS_MS), st.integers(-5000, 5000), st.integers(0, 2**40))
slots = st.integers(0, CAPACITY - 1)
budgets = st.one_of(st.integers(1, 12), st.just(CAPACITY))


def clip(time_ms: int) -> int:
    return max(0, min(LAST_MS, time_ms))


@pytest.fixture(scope="session")
def wheel_module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return compile_module(tmp_path_factory.mktemp("wheel_under_test"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    key_ms: int
    order: int
    slot: int
    due_ms: int


def firing_order(timer: Timer) -> tuple[int, int]:
    return timer.key_ms, timer.order


class WheelMachine(RuleBasedStateMachine):
    """Every rule calls the wheel and the model, and compares the answers."""

    module: ModuleType

    def __init__(self) -> None:
        super().__init__()
        self.model: SortedKeyList[Timer, tuple[int, int]] = SortedKeyList(key=firing_order)
        self.armed: dict[int, Timer] = {}
        self.fired: list[int] = []
        self.inserted_count = 0
        self.target_ms = 0
        self.more = False

    @initialize(start_ms=base_ms)
    def start(self, start_ms: int) -> None:
        self.wheel = Wheel(self.module, CAPACITY, start_ms)
        self.target_ms = start_ms

    def teardown(self) -> None:
        if not hasattr(self, "wheel"):
            return
        expected = [timer.slot for timer in self.model]
        assert self.wheel.drain(LAST_MS, CAPACITY, CAPACITY) == expected
        assert self.wheel.broken_invariant() == 0
        assert self.wheel.size_bytes == 0
        self.wheel.close()

    # ---- the model's half of each call ----

    def _insert(self, slot: int, due_ms: int) -> None:
        self.inserted_count += 1
        key_ms = max(due_ms, self.wheel.now_ms)
        timer = Timer(key_ms=key_ms, order=self.inserted_count, slot=slot, due_ms=due_ms)
        self.model.add(timer)
        self.armed[slot] = timer
        self.wheel.insert(slot, due_ms)

    def _cancel(self, slot: int) -> None:
        timer = self.armed.pop(slot, None)
        if timer is not None:
            self.model.remove(timer)
        assert self.wheel.cancel(slot) == (timer is not None)

    def _advance(self, max_out: int, max_moves: int) -> None:
        before_ms = self.wheel.now_ms
        reached_ms = max(self.target_ms, before_ms)
        fired, self.more = self.wheel.advance(self.target_ms, max_out, max_moves)
        assert len(fired) <= max_out
        expected = list(self.model[: len(fired)])
        assert fired == [timer.slot for timer in expected]
        assert all(timer.key_ms <= reached_ms for timer in expected), "fired early"
        for timer in expected:
            self.model.remove(timer)
            del self.armed[timer.slot]
        self.fired += fired
        assert before_ms <= self.wheel.now_ms <= reached_ms
        if self.more:
            assert self.wheel.next_due_ms == self.wheel.now_ms
        else:
            assert self.wheel.now_ms == reached_ms
            assert not self.model or self.model[0].key_ms > reached_ms, "late"

    # ---- rules ----

    @rule(slot=slots, delta=delta_ms)
    def schedule(self, slot: int, delta: int) -> None:
        if slot not in self.armed:
            self._insert(slot, clip(self.wheel.now_ms + delta))

    @rule(first=slots, count=st.integers(1, 60), delta=delta_ms, spread=st.sampled_from((0, 1, 64)))
    def schedule_n(self, first: int, count: int, delta: int, spread: int) -> None:
        now_ms = self.wheel.now_ms
        for slot in range(first, min(first + count, CAPACITY)):
            if slot not in self.armed:
                self._insert(slot, clip(now_ms + delta + spread * (slot % 5)))

    @rule(edge=base_ms, slot=slots)
    def schedule_at_a_digit_edge(self, edge: int, slot: int) -> None:
        if slot not in self.armed:
            self._insert(slot, edge)

    @rule(data=st.data(), slot=slots)
    @precondition(lambda self: self.model)
    def schedule_beside_another(self, data: st.DataObject, slot: int) -> None:
        if slot not in self.armed:
            beside = data.draw(st.integers(0, len(self.model) - 1))
            self._insert(slot, self.model[beside].due_ms)

    @rule(beside=st.integers(0, 9), free=st.integers(1, 20), max_moves=st.integers(1, 5))
    @precondition(lambda self: self.more)
    def schedule_into_the_work_in_hand(self, beside: int, free: int, max_moves: int) -> None:
        """Late timers and such as fall into the bucket that is being moved or emptied."""
        idle = [slot for slot in range(CAPACITY) if slot not in self.armed][:free]
        for i, slot in enumerate(idle):
            keys = [timer.due_ms for timer in self.model[: beside + 1]]
            self._insert(slot, clip(keys[i % len(keys)] if i % 3 else self.wheel.now_ms - i))
        self._advance(max_out=3, max_moves=max_moves)

    @rule(count=st.integers(1, CAPACITY))
    @precondition(lambda self: self.more)
    def cancel_the_work_in_hand(self, count: int) -> None:
        for timer in list(self.model[:count]):
            self._cancel(timer.slot)

    @rule(slot=slots)
    def cancel(self, slot: int) -> None:
        self._cancel(slot)

    @rule(data=st.data(), keep_every=st.integers(2, 9))
    @precondition(lambda self: self.model)
    def cancel_most_of_a_stretch(self, data: st.DataObject, keep_every: int) -> None:
        first = data.draw(st.integers(0, len(self.model) - 1))
        stretch = list(self.model[first : first + 60])
        for i, timer in enumerate(stretch):
            if i % keep_every:
                self._cancel(timer.slot)

    @rule(data=st.data())
    @precondition(lambda self: self.fired)
    def cancel_fired(self, data: st.DataObject) -> None:
        self._cancel(data.draw(st.sampled_from(self.fired)))

    @rule(delta=delta_ms, max_out=budgets, max_moves=budgets)
    def advance(self, delta: int, max_out: int, max_moves: int) -> None:
        self.target_ms = clip(self.wheel.now_ms + max(0, delta))
        self._advance(max_out, max_moves)

    @rule(max_out=budgets, max_moves=budgets)
    @precondition(lambda self: self.more)
    def advance_further(self, max_out: int, max_moves: int) -> None:
        self._advance(max_out, max_moves)

    @rule(side=st.sampled_from((-1, 0, 1)), max_out=budgets, max_moves=budgets)
    @precondition(lambda self: self.model)
    def advance_to_next(self, side: int, max_out: int, max_moves: int) -> None:
        self.target_ms = clip(self.model[0].key_ms + side)
        self._advance(max_out, max_moves)

    @rule(back_ms=st.integers(1, 10_000))
    def step_back(self, back_ms: int) -> None:
        self.target_ms = self.wheel.now_ms - back_ms
        self._advance(CAPACITY, CAPACITY)

    @rule(delta=st.sampled_from((0, -1, 1, -64, 64, -5000, 5000, -(10**9), 10**9, -YEARS_100_MS)))
    def rebase(self, delta: int) -> None:
        now_ms = clip(self.wheel.now_ms + delta)
        self.wheel.rebase(now_ms)
        timers = list(self.model)
        self.model.clear()
        for timer in timers:
            self.inserted_count += 1
            key_ms = max(timer.due_ms, now_ms)
            moved = replace(timer, key_ms=key_ms, order=self.inserted_count)
            self.model.add(moved)
            self.armed[timer.slot] = moved
        self.more = False
        assert self.wheel.now_ms == now_ms

    @rule()
    def reload(self) -> None:
        """Build a new wheel from the rows in firing order, as a start from a checkpoint does."""
        old = self.wheel
        self.wheel = Wheel(self.module, CAPACITY, old.now_ms)
        self.wheel.insert_all((timer.slot, timer.due_ms) for timer in self.model)
        self.more = False
        old.close()

    # ---- after every rule ----

    @invariant()
    def invariants_hold(self) -> None:
        if not hasattr(self, "wheel"):
            return
        assert self.wheel.broken_invariant() == 0
        assert self.wheel.count == len(self.model)
        if self.model:
            assert self.wheel.now_ms <= self.wheel.next_due_ms <= self.model[0].key_ms
        else:
            assert self.wheel.next_due_ms == NEVER_MS


def test_wheel_answers_any_sequence_of_calls_as_a_sorted_list_does(
    wheel_module: ModuleType,
) -> None:
    machine = type("BoundWheelMachine", (WheelMachine,), {"module": wheel_module})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80,
            stateful_step_count=60,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


herds = st.lists(delta_ms, min_size=1, max_size=CAPACITY // 2)


def timers_of(start_ms: int, deltas: Sequence[int]) -> list[tuple[int, int]]:
    return [(slot, clip(start_ms + delta)) for slot, delta in enumerate(deltas)]


@given(start_ms=base_ms, deltas=herds, max_out=budgets, max_moves=budgets)
@settings(deadline=None, print_blob=True, max_examples=60)
def test_many_small_advances_fire_in_the_order_of_one_big_advance(
    wheel_module: ModuleType, start_ms: int, deltas: list[int], max_out: int, max_moves: int
) -> None:
    timers = timers_of(start_ms, deltas)
    wheels = [Wheel(wheel_module, CAPACITY, start_ms) for _ in range(2)]
    for wheel in wheels:
        wheel.insert_all(timers)
    at_once = wheels[0].drain(LAST_MS, CAPACITY, 8 * CAPACITY)
    for due_ms in sorted({due_ms for _, due_ms in timers}):
        if due_ms > start_ms:
            assert not wheels[1].drain(due_ms - 1, max_out, max_moves), "fired early"
        fired = wheels[1].drain(due_ms, max_out, max_moves)
        assert at_once[: len(fired)] == fired
        del at_once[: len(fired)]
    assert at_once == []


@given(start_ms=base_ms, deltas=herds, extra=herds)
@settings(deadline=None, print_blob=True, max_examples=60)
def test_timers_inserted_and_cancelled_again_leave_no_trace_in_the_order(
    wheel_module: ModuleType, start_ms: int, deltas: list[int], extra: list[int]
) -> None:
    timers = timers_of(start_ms, deltas)
    plain = Wheel(wheel_module, CAPACITY, start_ms)
    plain.insert_all(timers)
    mixed = Wheel(wheel_module, CAPACITY, start_ms)
    passing = [(CAPACITY // 2 + slot, due_ms) for slot, due_ms in timers_of(start_ms, extra)]
    for i in range(max(len(timers), len(passing))):
        mixed.insert_all(passing[i : i + 1] + timers[i : i + 1])
    for slot, _ in passing:
        assert mixed.cancel(slot)
    assert mixed.broken_invariant() == 0
    assert mixed.drain(LAST_MS, 7, 7) == plain.drain(LAST_MS, CAPACITY, CAPACITY)
