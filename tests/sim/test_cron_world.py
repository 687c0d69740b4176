"""Schedules in a simulated world, from a seed: power cuts, kills, two clocks, three modes of fsync.

Each seed has four lives with faults and a quiet last one, in which everything due has to end. Every
nominal time of every schedule has one run or one reason, once, whatever happened; what is judged
stands in tests/cronoracle.py. That it would notice is what the planted faults are for.

A seed that fails is repeated by `python -P -m tests.cronworld SEED`.
"""

import multiprocessing
import time
from collections import Counter

import pytest

from tests.cronworld import LIVES, run_seed
from tests.sim.cronmutants import FIRST_SEEDS, PATCHES

SEEDS = 10
MUTANT_SEEDS_MAX = 60
FAULTS_MIN = 20


def run_block(first, count, figure):
    """Run seeds; assert what has to hold of each, and that the worlds were worth it."""
    cpu_s = time.process_time()
    counts: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for seed in range(first, first + count):
        outcome = run_seed(seed)
        assert not outcome.violation, f"seed {seed}: {outcome.violation} ({outcome.ends})"
        assert len(outcome.ends) == LIVES + 1
        counts += outcome.counts
        ends.update(outcome.ends)
    cpu_s = time.process_time() - cpu_s
    figure(
        f"schedules, seeds {first}..{first + count - 1}: {counts['facts']} times decided "
        f"({counts['missed']} of them missed), {counts['runs']} runs, {counts['commands']} "
        f"commands, {ends['cut']} power cuts and {ends['killed']} kills; "
        f"{int(3600 * count / cpu_s)} seeds an hour and core"
    )
    for kind in ("facts", "missed", "in time", "by hand", "runs", "checkpoints", "filled"):
        assert counts[kind] > count, kind
    for kind in ("anew", "marked"):
        assert counts[kind] > 0, kind
    assert ends["cut"] > count
    return counts


@pytest.mark.slow
def test_every_time_has_one_run_or_one_reason_whatever_happens(figure):
    run_block(1, SEEDS, figure)


def test_the_same_seed_gives_the_same_schedules():
    first, second = run_seed(3), run_seed(3)
    assert first.trace == second.trace
    assert first.counts == second.counts
    assert first.ends == second.ends
    assert run_seed(4).trace != first.trace


def hunt(number, found):
    """In a process of its own: plant a fault, and tell the first seed that notices it."""
    PATCHES[number].apply()
    first = FIRST_SEEDS.get(PATCHES[number].name, 1)
    for seed in (first, *range(1, MUTANT_SEEDS_MAX)):
        try:
            violation = run_seed(seed).violation
        except BaseException as error:
            violation = repr(error)
        if violation:
            found.send((seed, violation))
            return
    found.send((0, ""))


@pytest.mark.slow
def test_every_planted_fault_of_schedules_is_noticed(figure):
    assert len(PATCHES) >= FAULTS_MIN
    context = multiprocessing.get_context("fork")
    missed = []
    for number, patch in enumerate(PATCHES):
        patch.place()
        here, there = context.Pipe()
        child = context.Process(target=hunt, args=(number, there))
        child.start()
        seed, violation = here.recv()
        child.join()
        figure(f"{seed:3} seeds  {patch.name}: {violation[:80]}")
        if not seed:
            missed.append(patch.name)
    assert missed == []


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_many_more_worlds_with_schedules(block, figure):
    run_block(1_000_000 + block * 300, 300, figure)
