"""Checkpoints, truncation, fall-back and repair over a simulated disk: cut at every file call.

What has to hold, whatever was lost of what no sync covered: a start is never refused after a crash;
its checkpoint and the frames behind it are a prefix of what was appended, with everything confirmed
in it; and MANIFEST on the disk never names a file that is not there.
"""

import random
from collections import Counter
from contextlib import suppress

import pytest

from tests.ckptkit import write_checkpoint
from tests.lives import (
    STOPS,
    Life,
    copied,
    harm,
    names_what_is_there,
    segments,
    snap,
    with_two_generations,
)
from tests.logkit import DATA, UUID, History, payload
from tests.simdisk import SimDisk
from wal.errors import RefusedError, Rule
from wal.frame import FsyncMode
from wal.manifest import read_manifest

EIO, ENOSPC = 5, 28


def workload(disk, history, fsync, keep=2):
    """Two lives with three checkpoints, rotations, truncation, trimmed segments, a clean stop."""
    rng = random.Random(5)
    life = Life(disk, history, fsync)
    life.log.checkpoints.trim()
    life.log.prepare()
    for i in range(5):
        life.append(payload(rng), records=1 + i % 3)
    life.checkpoint(keep)
    for _ in range(3):
        life.append(payload(rng))
    life.checkpoint(keep, behind=[payload(rng), payload(rng)])
    life.append(payload(rng))
    life.stop()
    life = Life(disk, history, fsync, salt_seed=8)
    life.log.checkpoints.trim()
    life.append(payload(rng))
    life.checkpoint(keep)
    life.append(b"last")
    life.log.close()


def steps_of(fsync, keep=2):
    disk = SimDisk(seed=0)
    workload(disk, History(), fsync, keep)
    return disk.steps


def run_until_power_off(fsync, steps, keep=2):
    disk, history = SimDisk(seed=steps), History()
    disk.power_off_after(steps)
    with suppress(*STOPS):
        workload(disk, history, fsync, keep)
    return disk, history


def recovered(disk, history, fsync, seen=None):
    """Start after a crash, go on, make a checkpoint; after another crash all of it is there.

    The history goes on with it.
    """
    names_what_is_there(disk)
    life = Life(disk, history, fsync)
    assert life.store.fallen == ()
    if seen is not None:
        seen[len(life.log.checkpoints.manifest.checkpoints)] += 1
    life.log.checkpoints.trim()
    life.append(b"after the crash")
    life.checkpoint()
    life.append(b"and more")
    life.sync()
    life.log.close()
    again = Life(disk.crashed(0), copied(history), fsync)
    assert again.frames[-1][2] == b"and more"
    assert not [path for path in again.disk.files() if path.endswith(".tmp")]
    again.log.close()
    return life


@pytest.mark.parametrize(
    ("fsync", "keep"),
    [
        (FsyncMode.ALWAYS, 2),
        (FsyncMode.ALWAYS, 1),
        (FsyncMode.INTERVAL, 2),
        (FsyncMode.OFF, 1),
    ],
)
def test_a_power_cut_at_any_step_with_checkpoints_loses_nothing_durable(fsync, keep):
    seen = Counter()
    for steps in range(1, steps_of(fsync, keep) + 1):
        disk, history = run_until_power_off(fsync, steps, keep)
        for seed in range(12):
            cut = disk.crashed(seed if seed < 4 else seed + 100 * steps)
            recovered(cut, copied(history), fsync, seen)
    assert set(range(keep + 1)) <= set(seen), "the sweep did not reach all it is there for"


def nested(fsync, cases, seed):
    """Cut at a random step, and then at every step of the start, the trimming and a checkpoint."""
    rng = random.Random(seed)
    total, states = steps_of(fsync), 0
    for case in range(cases):
        disk, history = run_until_power_off(fsync, rng.randrange(1, total))
        disk.crash(rng.randrange(4, 1 << 30))
        whole = disk.clone()
        before = whole.steps
        recovered(whole, copied(history), fsync)
        for steps in range(1, whole.steps - before + 1):
            second, life = disk.clone(), copied(history)
            second.power_off_after(steps)
            with suppress(*STOPS):
                recovered(second, life, fsync)
            for last in (0, case * 1000 + steps + 4):
                recovered(second.crashed(last), copied(life), fsync)
                states += 1
    return states


@pytest.mark.parametrize("fsync", list(FsyncMode))
def test_a_power_cut_at_any_step_of_the_recovery_after_a_power_cut(fsync):
    assert nested(fsync, 6, 11) > 300


@pytest.mark.long
@pytest.mark.parametrize("fsync", list(FsyncMode))
def test_many_power_cuts_during_recoveries(fsync):
    assert nested(fsync, 250, 12) > 15_000


# ---- fall-back ----


@pytest.mark.parametrize("how", ["missing", "short", "older", "flipped"])
def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_and_its_log_make_up_for_it(how):
    disk, history = with_two_generations()
    newest, older = snap(disk, -1), read_manifest(disk, DATA, UUID).checkpoints[-2]
    harm(disk, newest, how)
    life = Life(disk, history)
    assert life.store.checkpoint == older
    assert [one.path for one in life.store.fallen] == [newest]
    assert life.frames[-1][2] == b"behind both"
    assert life.log.checkpoints.manifest.checkpoints == (older,)
    assert (f"{newest}.broken" in disk.files()) == (how != "missing")
    life.checkpoint()
    life.log.close()
    again = Life(disk, history)
    assert again.store.fallen == ()
    assert older in again.log.checkpoints.manifest.checkpoints, "it fell back to a damaged one"


def test_both_checkpoints_damaged_is_refused_about_the_newest_and_changes_nothing():
    disk, history = with_two_generations()
    for generation in (-1, -2):
        harm(disk, snap(disk, generation), "flipped")
    files = {path: disk.read(path) for path in disk.files()}
    with pytest.raises(RefusedError, match="no older one that verifies") as refused:
        Life(disk, history)
    assert (refused.value.rule, refused.value.path) == (Rule.CHECKPOINT, snap(disk, -1))
    assert refused.value.offset is not None
    assert {path: disk.read(path) for path in disk.files()} == files


def test_both_damaged_while_the_log_has_everything_starts_from_record_1():
    disk, history = SimDisk(), History()
    life = Life(disk, history)
    life.append(b"a" * 3000)
    life.checkpoint()  # the empty store is the generation before it, so no log is deleted
    life.append(b"b" * 3000)
    life.log.close()
    harm(disk, snap(disk, -1), "flipped")
    life = Life(disk, history)
    assert (life.store.checkpoint, len(life.store.fallen)) == (None, 1)
    assert [data[:1] for _, _, data in life.frames] == [b"a", b"b"]


def test_a_fall_back_without_the_log_for_it_is_refused_about_the_checkpoint():
    disk, history = with_two_generations()
    harm(disk, snap(disk, -1), "flipped")
    first = min(path for path in disk.files() if path.endswith(".wal"))
    disk.unlink(first)
    with pytest.raises(RefusedError, match="no longer reaches back") as refused:
        Life(disk, history)
    assert (refused.value.rule, refused.value.path) == (Rule.CHECKPOINT, snap(disk, -1))


def test_a_log_that_ends_before_the_end_of_a_checkpoint_is_refused_without_mark_too():
    """MANIFEST knows that the log was durable up to the checkpoint's end."""
    disk, history = SimDisk(), History()
    life = Life(disk, history)
    life.append(b"a")
    life.checkpoint(behind=[b"b", b"c"])
    life.log.close()
    path = next(path for path in disk.files() if path.endswith(".wal"))
    disk.poke(path, 4096 + 2 * 72, bytes(72))
    with pytest.raises(RefusedError, match="lsn 3 was known durable") as refused:
        Life(disk, history)
    assert refused.value.rule is Rule.LOST_TAIL


def test_a_power_cut_at_any_step_of_a_start_that_falls_back_loses_nothing():
    whole, history = with_two_generations()
    harm(whole, snap(whole, -1), "flipped")
    steps, fell = 0, set()
    while True:
        steps += 1
        disk, life = whole.clone(), copied(history)
        disk.power_off_after(steps)
        done = False
        with suppress(*STOPS):
            Life(disk, life)
            done = True
        for seed in range(12):
            cut = disk.crashed(seed)
            again = Life(cut, copied(life))
            fell.add(len(again.store.fallen))
            again.append(b"on")
            again.checkpoint()
            again.log.close()
        if done:
            break
    assert steps > 8
    assert fell == {0, 1}


# ---- errors while a checkpoint is published ----


@pytest.mark.parametrize("call", ["pwrite", "datasync", "rename", "dirsync", "unlink", "open"])
@pytest.mark.parametrize("error", [EIO, ENOSPC])
def test_an_error_at_any_call_of_a_publication_leaves_the_log_and_the_next_one_works(call, error):
    struck = 0
    for nth in range(1, 12):
        disk, history = SimDisk(nth), History()
        life = Life(disk, history)
        for size in (3000, 3000, 3000):
            life.append(b"x" * size)
        life.checkpoint()
        life.append(b"y" * 3000)
        start_lsn = history.next_lsn - 1
        made = write_checkpoint(disk, life.log, uuid=UUID, term=life.log.term, start_lsn=start_lsn)
        disk.fault(call, nth, error)
        try:
            life.log.checkpoints.publish(made, keep=1, wall_ms=1)
            life.log.checkpoints.drop()
        except OSError:
            struck += 1
            assert disk.fault_done
        if not disk.fault_done:
            break
        names_what_is_there(disk)
        Life(disk.crashed(0), copied(history)).log.close()
        life.append(b"z" * 3000)
        life.checkpoint(keep=1)
        assert len(life.log.checkpoints.manifest.checkpoints) == 1
        life.log.close()
        assert Life(disk.crashed(1), copied(history)).store.fallen == ()
    assert struck >= (0 if call == "unlink" else 1)


def test_a_manifest_that_somebody_else_wrote_stops_the_publication():
    disk, history = SimDisk(), History()
    life = Life(disk, history)
    life.append(b"x")
    life.checkpoint()
    twin = Life(disk, history)  # a second server, the lock notwithstanding
    twin.append(b"y")
    twin.checkpoint()
    with pytest.raises(RefusedError, match="another process") as refused:
        life.log.checkpoints.publish(
            write_checkpoint(disk, life.log, uuid=UUID, term=9, start_lsn=2), keep=2, wall_ms=1
        )
    assert refused.value.rule is Rule.MANIFEST


# ---- what is deleted, and what is not ----


def test_what_two_generations_need_stays_and_what_is_older_goes():
    disk, history = SimDisk(), History()
    life = Life(disk, history)
    bases = []
    for _ in range(4):
        for _ in range(3):
            life.append(b"x" * 3000)
        life.checkpoint()
        first = int(segments(disk)[0][-20:-4], 16)
        bases.append(first)
        generations = life.log.checkpoints.manifest.checkpoints
        oldest = generations[0].start_lsn if len(bases) > 1 else 0
        assert first <= oldest + 1, "the log no longer reaches back to the older generation"
        if len(segments(disk)) > 1:
            assert int(segments(disk)[1][-20:-4], 16) > oldest + 1, "a segment too many is kept"
        assert len([path for path in disk.files() if path.endswith(".snap")]) == len(generations)
    assert bases == sorted(bases)
    assert bases[0] == 1 < bases[1]
    life.log.close()


def test_shrinking_keeps_the_newest_generation_only():
    disk, history = with_two_generations()
    life = Life(disk, history)
    newest = life.log.checkpoints.newest
    life.log.checkpoints.shrink(wall_ms=9)
    dropped = life.log.checkpoints.drop()
    assert len([name for name in dropped.names if name.endswith(".snap")]) == 1
    assert dropped.size_bytes > 0
    assert life.log.checkpoints.manifest.checkpoints == (newest,)
    life.log.close()
    assert Life(disk.crashed(0), history).store.checkpoint == newest


def test_a_checkpoint_that_was_named_and_never_came_into_force_is_left_until_the_next_one():
    disk, history = with_two_generations()
    orphan = f"{DATA}/snap/00000000000000ff.snap"
    old = f"{DATA}/snap/0000000000000001.snap"
    for path in (orphan, old):
        disk.write_file(path, b"not in force")
    life = Life(disk, history)
    life.append(b"x")
    life.checkpoint()
    assert orphan in disk.files(), "it is newer than all in force"
    assert old not in disk.files()
    life.log.close()


def test_the_room_behind_the_last_frame_of_earlier_segments_is_given_back():
    """Each start opens a fresh segment: many starts must not fill the disk with zeros."""
    disk, history = SimDisk(), History()
    for number in range(20):
        life = Life(disk, history, salt_seed=number, segment_bytes=1 << 16)
        assert life.log.checkpoints.trim() == (0 if number == 0 else (1 << 16) - 8192)
        life.append(bytes([number]))
        life.log.close()
    assert sum(len(disk.read(path)) for path in segments(disk)) == 19 * 8192 + (1 << 16)
    for seed in range(20):  # the new lengths were not synced: a power cut may keep either
        assert len(Life(disk.crashed(seed), copied(history)).frames) == 20


@pytest.mark.parametrize("rotations", [0, 2])
def test_the_segment_that_is_written_to_is_never_shortened(rotations):
    """A start without a frame leaves a segment whose name the next start takes for its own."""
    disk, history = SimDisk(), History()
    Life(disk, history, segment_bytes=1 << 14).log.close()
    life = Life(disk, history, segment_bytes=1 << 14)
    for number in range(1 + 4 * rotations):
        life.append(bytes([number + 1]) * 3000)
    assert life.log.stats().rotations == rotations
    assert life.log.checkpoints.trim() == 0
    life.append(b"and on")
    life.log.close()
    assert Life(disk, history).frames[-1][2] == b"and on"


@pytest.mark.parametrize("fsync", [FsyncMode.INTERVAL, FsyncMode.OFF])
def test_a_segment_whose_name_no_sync_covers_is_no_reason_to_delete_the_one_before(fsync):
    """The log rotates between the sync for a checkpoint and its publication; then a power cut."""
    disk, history = SimDisk(), History()
    life = Life(disk, history, fsync)
    life.append(b"x" * 3000)
    made = write_checkpoint(disk, life.log, uuid=UUID, term=life.log.term, start_lsn=1)
    life.sync()
    life.append(b"y" * 3000)
    assert life.log.stats().rotations == 1
    life.log.checkpoints.publish(made, keep=1, wall_ms=5_000)
    life.log.checkpoints.drop()
    for seed in range(10):
        assert Life(disk.crashed(seed), copied(history), fsync).frames[0][2] == b"x" * 3000
