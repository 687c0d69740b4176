"""A checkpoint and the log behind it make the state that was in memory, whatever happened while it
was written: histories by seed, over the shipped scan, writer, scanner, loader and replay.
"""

import os
from collections import Counter

import pytest

from tests.property.checkpoint_world import Frames, World, first_lsn, last_lsn, next_ids
from wheel.engine.records import Kind, decode
from wheel.errors import CoreError

HISTORIES = int(os.environ.get("WHEELD_HISTORIES", "240"))
STEPS = 130
GROUPS = 4


def kinds(frames: Frames) -> Counter[Kind]:
    """Return how often each kind of record stands in the frames."""
    found: Counter[Kind] = Counter()
    for _, frame in frames:
        size = int.from_bytes(frame[12:16], "little")
        found.update(Kind(record.kind) for record in decode(frame[64 : 64 + size]))
    return found


def check_every_restart(world: World) -> None:
    """Hold what each checkpoint makes, with the log behind it, against what the whole log makes."""
    world.settle()
    with world.started(None) as truth:
        assert truth.state_hash() == world.core.state_hash()
        ended, ids = truth.ended(), next_ids(truth)
    for checkpoint in world.checkpoints:
        with world.started(checkpoint) as core:
            assert core.check() == 0
            assert core.state_hash() == world.core.state_hash()
            assert core.ended() == ended
            assert next_ids(core) == ids
        upto = [frame for frame in world.frames if last_lsn(frame[1]) <= checkpoint.end_lsn]
        with world.started(checkpoint, upto) as core, world.started(None, upto) as truth:
            assert core.check() == 0
            assert core.state_hash() == truth.state_hash()


def check_short_logs(world: World) -> None:
    """A log that ends between S0 and S1 starts nothing."""
    checkpoint = world.checkpoints[-1]
    if checkpoint.start_lsn == checkpoint.end_lsn:
        return
    short = [frame for frame in world.frames if last_lsn(frame[1]) < checkpoint.end_lsn]
    with world.rebuilt(checkpoint, short) as core:
        assert not core.loaded().reached
        with pytest.raises(CoreError, match="damaged"):
            core.start(term=world.term + 1, rel_ms=world.rel_ms, clocks=world.clocks())


def history(seed: int) -> Counter[Kind]:
    """Play one history; return the kinds of the records that were made while one was written."""
    world = World(seed)
    try:
        world.run(STEPS)
        while not world.checkpoints:
            world.begin_checkpoint()
            world.finish_checkpoint()
        check_every_restart(world)
        check_short_logs(world)
        return kinds(
            [
                (term, frame)
                for term, frame in world.frames
                for checkpoint in world.checkpoints
                if checkpoint.start_lsn < first_lsn(frame) <= checkpoint.end_lsn
            ]
        )
    finally:
        world.close()


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_checkpoint_and_the_log_behind_it_make_what_was_in_memory(group: int) -> None:
    """Histories of calls of every kind, slices of 1 to 8 things between them, several lives."""
    met: Counter[Kind] = Counter()
    for seed in range(group, HISTORIES, GROUPS):
        try:
            met += history(seed)
        except BaseException:
            print(f"history {seed} of {HISTORIES}")
            raise
    assert set(met) == set(Kind), "or a kind that no slice ever met"
