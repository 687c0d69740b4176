"""Repair over a simulated disk: what is given up, and what is refused.

Power cuts at every call of it: test_crash_states.py.
"""

import pytest

from tests.lives import Life, copied, place_of, segments
from tests.logkit import DATA, UUID, History
from tests.simdisk import SimDisk
from wal.errors import LockedError, RefusedError, Rule
from wal.frame import FsyncMode
from wal.manifest import read_manifest
from wal.repair import RepairError, plan_repair, repair


def damaged(fsync=FsyncMode.ALWAYS, *, checkpoints=True, victim=6):
    """Return a store whose frame number `victim` has a flipped bit, its history, and that lsn."""
    disk, history = SimDisk(), History()
    life = Life(disk, history, fsync)
    for i in range(4):
        life.append(bytes([i + 1]) * 1500, records=2)
    if checkpoints:
        life.checkpoint()
    for i in range(4, 9):
        life.append(bytes([i + 1]) * 1500, records=2)
    life.sync()
    life.log.mark()
    life.log.close()
    lsn = history.attempted[victim][0]
    disk.flip(*place_of(disk, lsn))
    return disk, history, lsn


def contents(disk):
    return {path: disk.read(path) for path in disk.files() if not path.endswith("LOCK")}


@pytest.mark.parametrize("fsync", [FsyncMode.ALWAYS, FsyncMode.INTERVAL])
def test_a_refused_store_serves_again_without_what_was_given_up(fsync):
    disk, history, lsn = damaged(fsync)
    before = contents(disk)
    with pytest.raises(RefusedError):
        Life(disk, copied(history), fsync)
    lost = history.next_lsn - lsn
    plan = repair(disk, DATA, lsn, accepted_records=lost, wall_ms=9)
    assert (plan.records, plan.lsn) == (lost, lsn)
    after = contents(disk)
    saved = {data for path, data in after.items() if path.endswith(".broken")}
    assert {data for path, data in before.items() if after.get(path) != data} <= saved
    kept = History(history.attempted[:6])
    life = Life(disk, kept, fsync)
    assert life.frames == history.attempted[:6]
    assert life.log.term > plan.term >= 1
    life.append(b"goes on")
    life.checkpoint()
    life.log.close()


def test_without_the_exact_number_nothing_is_done_and_the_number_is_said():
    disk, history, lsn = damaged()
    before = contents(disk)
    lost = history.next_lsn - lsn
    for wrong in (0, lost - 1, lost + 1):
        with pytest.raises(RepairError, match=f"loses {lost} records, not {wrong}"):
            repair(disk, DATA, lsn, accepted_records=wrong, wall_ms=9)
    assert contents(disk) == before


def test_an_lsn_inside_a_frame_or_behind_the_damage_is_no_end():
    disk, history, lsn = damaged()
    with pytest.raises(RepairError, match=f"can be truncated at is {lsn}, and {lsn + 2}"):
        plan_repair(disk, DATA, lsn + 2, wall_ms=9)
    with pytest.raises(RepairError, match=f"inside a frame, which is one whole: say {lsn - 2}"):
        plan_repair(disk, DATA, lsn - 1, wall_ms=9)
    with pytest.raises(RepairError, match="can be truncated at"):
        plan_repair(disk, DATA, history.next_lsn + 50, wall_ms=9)


def test_an_end_before_a_checkpoint_gives_the_checkpoint_up_too():
    disk, history, _ = damaged(victim=2)  # the checkpoint covers the damage
    first = history.attempted[2][0]
    lost = history.next_lsn - first
    plan = repair(disk, DATA, first, accepted_records=lost, wall_ms=9)
    assert plan.manifest is not None
    assert read_manifest(disk, DATA, UUID).checkpoints == ()
    assert [path for path in disk.files() if path.endswith(".snap.broken")]
    life = Life(disk, History(history.attempted[:2]))
    assert (life.store.checkpoint, life.frames) == (None, history.attempted[:2])


def test_an_end_before_the_oldest_checkpoint_cannot_be_when_the_log_is_gone():
    disk, history = SimDisk(), History()
    life = Life(disk, history)
    for _ in range(3):
        for _ in range(3):
            life.append(b"x" * 3000)
        life.checkpoint()
    life.log.close()
    before = contents(disk)
    with pytest.raises(RepairError, match="no checkpoint is older than lsn 2"):
        repair(disk, DATA, 2, accepted_records=8, wall_ms=9)
    assert contents(disk) == before


def test_what_no_end_of_the_log_mends_is_refused():
    disk, _, lsn = damaged()
    for path in segments(disk)[:3]:  # what the checkpoint needs, and all before it
        disk.unlink(path)
    with pytest.raises(RefusedError) as refused:
        repair(disk, DATA, lsn, accepted_records=1, wall_ms=9)
    assert refused.value.rule is Rule.SEGMENT_MISSING


def test_a_store_that_a_server_holds_is_left_alone():
    disk, _, lsn = damaged()
    disk.lock = lambda _: None
    with pytest.raises(LockedError):
        repair(disk, DATA, lsn, accepted_records=1, wall_ms=9)


def test_a_whole_log_may_be_cut_back_on_purpose():
    disk, history, _ = damaged(victim=8)
    first = history.attempted[5][0]
    repair(disk, DATA, first, accepted_records=history.next_lsn - first, wall_ms=9)
    assert Life(disk, History(history.attempted[:5])).frames == history.attempted[:5]


def test_nothing_is_lost_at_the_end_of_the_log():
    disk, history = SimDisk(), History()
    life = Life(disk, history)
    life.append(b"x")
    life.log.close()
    assert plan_repair(disk, DATA, 2, wall_ms=9).records == 0
