"""The engine against the model, for any sequence of commands, clocks, closes and crashes."""

import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from tests.c.mutate_engine import FAULTS
from tests.c.planting import Fault, assert_all_are_noticed, assert_stands_once
from tests.property.engine_model import Ask, New, Policy, Receipt, When
from tests.property.engine_world import World, schedule_words

HANDLERS = (b"a", b"b", b"b.x", b"c")
KEYS = (b"k1", b"k2", b"k3")
DAY_MS = 86_400_000

# Delays around the edges of what the rules name: leases and grace, backoffs, 10 min, 1 h, 90 days.
delay_ms = st.one_of(
    st.sampled_from([0, 1, 500, 999, 1000, 1001, 2000, 4000, 15_000, 60_000, 66_000, 300_000]),
    st.sampled_from([599_999, 600_000, 3_599_999, 3_600_000, DAY_MS, 91 * DAY_MS]),
    st.integers(0, 10_000),
)
in_ms = delay_ms.filter(lambda ms: ms <= 30 * DAY_MS)
lease_ms = st.sampled_from([1, 500, 1000, 3000, 20_000, 60_000, 3_600_000])
handlers = st.sampled_from(HANDLERS)
index = st.integers(0, 1 << 12)
backoffs = st.one_of(
    st.tuples(
        st.sampled_from(["fixed", "linear"]), st.sampled_from([0, 1000, 5000]), st.just(8000)
    ),
    st.tuples(st.just("exp"), st.sampled_from([0, 1, 2000]), st.sampled_from([2000, 60_000])),
)


def rarely(strategy: st.SearchStrategy[Any], otherwise: Any = None) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(otherwise), st.just(otherwise), strategy)


policies = st.builds(
    Policy,
    retries=rarely(st.integers(0, 3)),
    lost=rarely(st.integers(0, 3)),
    backoff=rarely(backoffs),
    lease_ms=rarely(lease_ms),
    timeout_ms=rarely(st.sampled_from([0, 1, 2000, 5000, 60_000])),
)


@st.composite
def whens(draw: st.DrawFn) -> When:
    """A time around the first wall clock, or from now."""
    if draw(st.booleans()):
        return When(ms=draw(delay_ms), relative=True)
    return When(ms=1_800_000_000_000 + draw(delay_ms) - draw(rarely(delay_ms, 0)), relative=False)


news = st.builds(
    New,
    handler=handlers,
    when=st.one_of(st.just(When(ms=0, relative=True)), whens()),
    payload=st.sampled_from([b"", b"p", b"payload"]),
    key=rarely(st.sampled_from(KEYS), b""),
    window_ms=st.sampled_from([0, 0, 1, 5000, 600_000, 3_600_000]),
    ondup=st.sampled_from(["keep", "replace", "error"]),
    once=rarely(st.sampled_from([b"t1", b"t2"]), b""),
    priority=st.sampled_from([128, 128, 128, 0, 7, 255]),
    policy=policies,
    expire=rarely(whens()),
    meta=rarely(st.just(b"m"), b""),
    group=rarely(st.just(b"g"), b""),
)
asks = st.builds(
    Ask,
    names=st.sampled_from(
        [(b"a",), (b"b",), (b"a", b"b"), (b"b*",), (b"*",), (b"b.x", b"b*", b"a"), (b"c", b"new")]
    ),
    count=st.sampled_from([1, 1, 1, 2, 5, 1000]),
    for_ms=rarely(lease_ms, 0),
    worker=rarely(st.sampled_from([b"w1", b"w2"]), b""),
)


class EngineMachine(RuleBasedStateMachine):
    """Every rule goes to the engine and to the model; the answers must be the same."""

    @initialize(seed=st.integers(0, 3))
    def start(self, seed: int) -> None:
        self.world = World(seed=seed)

    def teardown(self) -> None:  # type: ignore[explicit-override]  # typing.override: 3.12
        if not hasattr(self, "world"):
            return
        failed = sys.exc_info()[0] is not None
        try:
            if failed:
                return
            for job_id in self.world.model.made:
                self.world.look(job_id)
            with self.world.replayed() as other:
                assert other.state_hash() == self.world.core.state_hash()
        finally:
            self.world.close()

    # ---- choosing what a command names ----

    def _receipt(self, at: int) -> Receipt:
        """Half of the time one that is held, else any that ever was, else a wrong one."""
        held: list[Receipt] = [job.receipt for job in self.world.model.leases if job.receipt]
        if held and at % 4 < 2:
            return held[at // 4 % len(held)]
        known = self.world.receipts
        if known and at % 4 == 2:
            return known[-1 - at // 4 % len(known)]
        job_id = next(iter(self.world.model.made), 99)
        return (job_id, 1, at)

    def _job(self, at: int) -> int | bytes:
        made = sorted(self.world.model.made)
        if at % 8 == 0 or not made:
            return KEYS[at // 8 % len(KEYS)]
        if at % 8 == 1:
            return made[-1] + (at << 32)
        live = sorted(self.world.model.jobs)
        names = live if live and at % 8 < 6 else made
        return names[at // 8 % len(names)]

    # ---- commands ----

    @rule(at=index, new=news)
    def schedule(self, at: int, new: New) -> None:
        self.world.schedule(self.world.free(at), new)
        self.world.after()

    @rule(at=index, many=st.lists(news, min_size=2, max_size=8))
    def schedule_many(self, at: int, many: list[New]) -> None:
        for new in many:
            self.world.schedule(self.world.free(at), new)
            self.world.after()

    @rule(at=index, ask=asks, bound=st.booleans())
    def lease(self, at: int, ask: Ask, bound: bool) -> None:
        self.world.lease(self.world.free(at), ask, wait_ms=0, bound=bound)
        self.world.after()

    @rule(
        at=index, ask=asks, wait_ms=st.sampled_from([1, 1000, 60_000, 300_000]), bound=st.booleans()
    )
    def wait(self, at: int, ask: Ask, wait_ms: int, bound: bool) -> None:
        self.world.lease(self.world.free(at), ask, wait_ms=wait_ms, bound=bound)
        self.world.after()

    @rule(at=index, ask=asks, part=st.floats(0, 1), bound=st.booleans())
    def lease_that_does_not_arrive(self, at: int, ask: Ask, part: float, bound: bool) -> None:
        self.world.lease_unsent(self.world.free(at), ask, part, bound=bound)
        self.world.after()

    @rule(at=index, receipts=st.lists(index, min_size=1, max_size=4), again=st.booleans())
    def ack(self, at: int, receipts: list[int], again: bool) -> None:
        named = [self._receipt(one) for one in receipts]
        for _ in range(1 + again):
            self.world.ack(self.world.free(at), named)
            self.world.after()

    @rule(at=index, receipt=index, result=st.sampled_from([b"", b"r"]))
    def done(self, at: int, receipt: int, result: bytes) -> None:
        self.world.done(self.world.free(at), self._receipt(receipt), result)
        self.world.after()

    @rule(at=index, receipt=index, in_ms=rarely(in_ms), dead=st.booleans(), again=st.booleans())
    def fail(self, at: int, receipt: int, in_ms: int | None, dead: bool, again: bool) -> None:
        dead = dead and in_ms is None
        named = self._receipt(receipt)
        for _ in range(1 + again):
            self.world.fail(self.world.free(at), named, in_ms=in_ms, dead=dead)
            self.world.after()

    @rule(at=index, receipt=index, in_ms=rarely(in_ms), again=st.booleans())
    def release(self, at: int, receipt: int, in_ms: int | None, again: bool) -> None:
        named = self._receipt(receipt)
        for _ in range(1 + again):
            self.world.release(self.world.free(at), named, in_ms)
            self.world.after()

    @rule(at=index, receipts=st.lists(index, min_size=1, max_size=3), for_ms=rarely(lease_ms, 0))
    def extend(self, at: int, receipts: list[int], for_ms: int) -> None:
        self.world.extend(self.world.free(at), [self._receipt(one) for one in receipts], for_ms)
        self.world.after()

    @rule(
        at=index,
        verb=st.sampled_from(["CANCEL", "CANCEL", "REQUEUE", "PURGE"]),
        jobs=st.lists(index, min_size=1, max_size=3),
    )
    def verb(self, at: int, verb: str, jobs: list[int]) -> None:
        self.world.verb(self.world.free(at), verb, [self._job(one) for one in jobs])
        self.world.after()

    @rule(at=index, pick=index)
    def requeue_dead(self, at: int, pick: int) -> None:
        dead = self.world.model.dead
        if dead:
            self.world.verb(self.world.free(at), "REQUEUE", [dead[pick % len(dead)].id])
            self.world.after()

    @rule(at=index, job=index, when=whens())
    def reschedule(self, at: int, job: int, when: When) -> None:
        self.world.reschedule(self.world.free(at), self._job(job), when)
        self.world.after()

    @rule(at=index, job=index)
    def run(self, at: int, job: int) -> None:
        self.world.run(self.world.free(at), self._job(job))
        self.world.after()

    @rule(
        at=index,
        name=st.one_of(handlers, st.just(b"*")),
        paused=rarely(st.booleans()),
        concurrency=rarely(st.sampled_from([0, 0, 1, 2])),
        policy=policies,
    )
    def set_handler(
        self, at: int, name: bytes, paused: bool | None, concurrency: int | None, policy: Policy
    ) -> None:
        self.world.set_handler(
            self.world.free(at), name, paused=paused, concurrency=concurrency, policy=policy
        )
        self.world.after()

    @rule(job=index)
    def look(self, job: int) -> None:
        name = self._job(job)
        if isinstance(name, int):
            self.world.look(name)

    @rule(at=index)
    def close_connection(self, at: int) -> None:
        self.world.close_conn(self.world.conns[at % len(self.world.conns)])
        self.world.after()

    # ---- time ----

    @rule(ms=delay_ms)
    def let_time_pass(self, ms: int) -> None:
        self.world.advance(ms)
        self.world.after()

    @rule(count=st.integers(1, 6), ms=st.sampled_from([1, 250, 1000, 2600]))
    def let_time_pass_in_steps(self, count: int, ms: int) -> None:
        for _ in range(count):
            self.world.advance(ms)
            self.world.after()

    @rule(
        ms=st.sampled_from([0, 1, 1000]),
        step_ms=st.sampled_from([-7_200_000, -1001, -1000, -1, 1, 1000, 1001, 7_200_000, DAY_MS]),
    )
    def step_the_wall_clock(self, ms: int, step_ms: int) -> None:
        self.world.advance(ms, wall_ms=step_ms)
        self.world.after()

    @rule(suspended_ms=st.sampled_from([1000, 1001, 30_000, 3_600_000]))
    def suspend(self, suspended_ms: int) -> None:
        self.world.advance(1, suspended_ms=suspended_ms)
        self.world.after()

    @rule()
    def accept_clock(self) -> None:
        self.world.accept_clock()
        self.world.after()

    # ---- crashes ----

    @rule(down_ms=delay_ms, same_boot=st.booleans(), lost=st.lists(news, max_size=2))
    def crash(self, down_ms: int, same_boot: bool, lost: list[New]) -> None:
        commands = [schedule_words(new) for new in lost]
        self.world.crash(down_ms=down_ms, same_boot=same_boot, lost=commands)
        self.world.after()

    @rule(down_ms=delay_ms, receipts=st.lists(index, min_size=1, max_size=3), names=handlers)
    def crash_on_the_way(self, down_ms: int, receipts: list[int], names: bytes) -> None:
        """Calls whose records were never durable have not happened."""
        named = [".".join(map(str, self._receipt(one))) for one in receipts]
        commands: list[list[bytes | str | int]] = [
            ["ACK", *named],
            ["LEASE", names, "COUNT", 3],
            ["CANCEL", KEYS[0]],
        ]
        self.world.crash(down_ms=down_ms, same_boot=True, lost=commands)
        self.world.after()


@pytest.mark.parametrize("down_ms", [None, 0])
def test_a_dead_job_is_purged_by_a_key_whose_end_is_forgotten(down_ms: int | None) -> None:
    """The ended ring forgets after an hour what the dead list keeps for 90 days."""
    machine = EngineMachine()
    machine.start(seed=0)
    world, now = machine.world, When(ms=0, relative=True)
    try:
        for key in (b"k3", b""):
            world.schedule(world.conns[0], New(handler=b"a", when=now, key=key))
            world.after()
            ask = Ask(names=(b"a",), count=1, for_ms=0, worker=b"")
            world.lease(world.conns[0], ask, wait_ms=0, bound=False)
            world.fail(world.conns[0], world.receipts[-1], in_ms=None, dead=True)
            world.advance(2 * 3_600_000)
            world.after()
        [first, second] = sorted(world.model.made)
        assert world.model.ended_of(first) is None
        if down_ms is not None:
            world.crash(down_ms=down_ms, same_boot=True, lost=())
        world.verb(world.conns[0], "PURGE", [b"k3", b"k3", second])
        world.after()
        assert world.model.over == {first: "purged", second: "purged"}
    finally:
        machine.teardown()


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_the_engine_answers_as_the_model_does() -> None:
    run(examples=250, steps=50)


@pytest.mark.long
def test_the_engine_answers_as_the_model_does_for_long() -> None:
    run(examples=4000, steps=120)


@pytest.mark.parametrize("what", FAULTS, ids=lambda what: what.name)
def test_the_place_of_a_planted_fault_is_in_the_source_once(what: Fault) -> None:
    assert_stands_once(what)


@pytest.mark.long
def test_every_planted_fault_of_the_engine_is_noticed() -> None:
    assert_all_are_noticed("tests.c.mutate_engine")
