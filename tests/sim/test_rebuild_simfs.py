"""IDENT, MARK or MANIFEST lost, alone and together, also with another loss: what is made anew.

Either nothing is done, or the next start shows every record that was durable. What of a lost MARK
cannot be known somebody has to say. Power cuts at every call of it: test_crash_states.py.
"""

from itertools import chain, combinations

import pytest

from tests.lives import Life, copied, place_of, segments, snap, with_two_generations
from tests.logkit import DATA, UUID, History
from tests.simdisk import SimDisk
from wal import frame
from wal.errors import RefusedError, Rule
from wal.frame import FRAME_HEADER_BYTES, MARK_SLOT_BYTES, FsyncMode
from wal.rebuild import read_or_rebuild
from wal.repair import RepairError, plan_repair, repair

NAMES = ("IDENT", "MARK", "MANIFEST")
LOST = [*chain.from_iterable(combinations(NAMES, n) for n in (1, 2, 3))]
HOWS = ("missing", "empty", "flipped")


def without_checkpoints(fsync):
    disk, history = SimDisk(), History()
    life = Life(disk, history, fsync)
    for i in range(9):
        life.append(bytes([i + 1]) * 1500, records=2)
    life.sync()
    life.log.mark()
    life.log.close()
    return disk, history


def one_generation(fsync):
    """A server that keeps one: the log behind it begins somewhere in the middle."""
    disk, history = SimDisk(), History()
    life = Life(disk, history, fsync)
    for i in range(12):
        life.append(bytes([i + 1]) * 3000, records=2)
        if i in (4, 8):
            life.checkpoint(1)
    life.sync()
    life.log.mark()
    life.log.close()
    return disk, history


STORES = {
    "two generations": with_two_generations,
    "one generation": one_generation,
    "no checkpoint": without_checkpoints,
}


def lose(disk, name, how):
    path = f"{DATA}/{name}"
    if how == "missing":
        disk.unlink(path)
    elif how == "empty":
        disk.resize(path, 0)
    elif name == "MARK":  # two slots are more than a torn write
        disk.flip(path, 8 * 20)
        disk.flip(path, 8 * (20 + MARK_SLOT_BYTES))
    else:
        disk.flip(path, 8 * 20)


def newest_frames_vanish(disk):
    """Zero the last segment that has frames, as a disk does that lost its last writes."""
    path = next(one for one in reversed(segments(disk)) if any(disk.read(one)[4096:]))
    disk.poke(path, 4096, bytes(len(disk.read(path)) - 4096))


def snaps(disk):
    return sorted(path for path in disk.files() if path.endswith(".snap"))


def flip_in(disk, path):
    disk.flip(path, len(disk.read(path)) // 2 * 8)


# What else is lost, and whether the files still have everything: None = it depends on the store.
ELSE = {
    "nothing": (lambda _: None, True),
    "the newest segment": (lambda disk: disk.unlink(segments(disk)[-1]), False),
    "the newest frames": (newest_frames_vanish, False),
    "the first segment": (lambda disk: disk.unlink(segments(disk)[0]), None),
    "a segment in the middle": (lambda disk: disk.unlink(segments(disk)[1]), None),
    "all segments": (lambda disk: [disk.unlink(path) for path in segments(disk)], False),
    "the newest checkpoint": (lambda disk: disk.unlink(snaps(disk)[-1]), None),
    "all checkpoints": (lambda disk: [disk.unlink(path) for path in snaps(disk)], None),
    "a byte of the newest checkpoint": (lambda disk: flip_in(disk, snaps(disk)[-1]), None),
    "a byte of a frame": (lambda disk: disk.flip(*last_frame(disk)), False),
}


def last_frame(disk):
    """Return (path, bit) in the payload of the last frame that is there."""
    found = None
    for path in segments(disk):
        data, at = disk.read(path), 4096
        while one := frame.find(data[at:], salt=None):
            found = path, (at + one.offset + FRAME_HEADER_BYTES) * 8
            at += one.offset + one.frame_bytes
    return found


def contents(disk):
    return {path: disk.read(path) for path in disk.files() if not path.endswith("LOCK")}


def made(store, fsync, also):
    """Return a store with another loss, and its history; None: it has no such thing to lose."""
    disk, history = STORES[store](fsync)
    if "checkpoint" in also and not snaps(disk):
        return None
    ELSE[also][0](disk)
    return disk, history


def accepted(disk, history, fsync):
    """Return whether a start accepts the store, and then shows everything."""
    try:
        life = Life(disk.clone(), copied(history), fsync)
    except RefusedError:
        return False
    assert life.frames == history.attempted, "records are gone, and nobody was told"
    life.append(b"goes on")
    life.checkpoint()
    life.log.close()
    return True


@pytest.mark.parametrize("fsync", list(FsyncMode))
@pytest.mark.parametrize("also", ELSE)
@pytest.mark.parametrize("store", STORES)
def test_what_is_lost_is_made_anew_if_nothing_is_missing_then_and_else_nothing_is_done(
    store, also, fsync
):
    """However it was lost, a start accepts afterwards what it would have accepted before."""
    found = made(store, fsync, also)
    if found is None:
        return
    disk, history = found
    fits = accepted(disk, history, fsync)
    if ELSE[also][1] is not None:
        assert fits == ELSE[also][1]
    for number, lost in enumerate(one for one in LOST if "MARK" not in one):
        harmed = disk.clone()
        for name in lost:
            lose(harmed, name, HOWS[number % 3])
        before = contents(harmed)
        assert not accepted(harmed, history, fsync)
        try:
            plan = repair(harmed, DATA, None, accepted_records=0, wall_ms=9)
        except RefusedError:
            assert contents(harmed) == before
            assert not fits, "a start accepted it while it was whole"
            continue
        assert (plan.records, plan.anew) == (0, lost)
        assert accepted(harmed, history, fsync)
        after = contents(harmed)
        kept = {path: data for path, data in before.items() if after.get(path) != data}
        assert {after[f"{path}.broken"] for path in kept} == set(kept.values())


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("store", STORES)
def test_each_way_of_losing_any_of_the_three_is_mended_and_nothing_is_gone(store, lost, how):
    disk, history = STORES[store](FsyncMode.ALWAYS)
    for name in lost:
        lose(disk, name, how)
    if "MARK" in lost:
        before = contents(disk)
        with pytest.raises(RepairError, match=f"say so: --truncate-at {history.next_lsn}"):
            repair(disk, DATA, None, accepted_records=0, wall_ms=9)
        assert contents(disk) == before
        plan = repair(disk, DATA, history.next_lsn, accepted_records=0, wall_ms=9)
        assert plan.term > 1 << 16
    else:
        plan = repair(disk, DATA, None, accepted_records=0, wall_ms=9)
    assert plan.anew == lost
    assert accepted(disk, history, FsyncMode.ALWAYS)
    assert Life(disk, history).log.term > plan.term


def test_the_number_has_to_be_none_also_where_nothing_is_given_up():
    disk, _ = with_two_generations()
    lose(disk, "MANIFEST", "missing")
    before = contents(disk)
    with pytest.raises(RepairError, match="loses 0 records, not 1"):
        repair(disk, DATA, None, accepted_records=1, wall_ms=9)
    assert contents(disk) == before


def test_a_store_that_has_all_three_is_told_to_say_where_its_log_ends():
    disk, _ = with_two_generations()
    with pytest.raises(RepairError, match="are whole: say where the log is to end"):
        repair(disk, DATA, None, accepted_records=0, wall_ms=9)


def test_what_is_made_anew_says_what_was_there():
    for store in STORES.values():
        disk, _ = store(FsyncMode.ALWAYS)
        old = read_or_rebuild(disk, DATA, wall_ms=9).facts
        lose(disk, "MANIFEST", "missing")
        lose(disk, "IDENT", "missing")
        new = read_or_rebuild(disk, DATA, wall_ms=9).facts
        assert new.ident.uuid == old.ident.uuid == UUID
        assert new.mark == old.mark
        assert new.manifest.checkpoints[-1:] == tuple(
            # Its time is the one of its end, not of its publication.
            type(one)(**{**fields(one), "wall_ms": new.manifest.checkpoints[-1].wall_ms})
            for one in old.manifest.checkpoints[-1:]
        )
        assert new.manifest.oldest_lsn <= old.manifest.oldest_lsn
        has_all = segments(disk)[0].endswith(f"-{1:016x}.wal")
        assert (new.manifest.oldest_lsn == 1) == has_all
        assert new.manifest.oldest_seq <= old.manifest.oldest_seq
        assert new.manifest.term_floor >= old.mark.newest.term


def fields(one):
    return {name: getattr(one, name) for name in type(one).__slots__}


def test_an_end_of_the_log_may_be_given_while_others_are_made_anew():
    disk, history = without_checkpoints(FsyncMode.ALWAYS)
    lsn = history.attempted[5][0]
    disk.flip(*place_of(disk, lsn))
    for name in ("IDENT", "MANIFEST"):
        lose(disk, name, "missing")
    with pytest.raises(RefusedError):
        repair(disk, DATA, None, accepted_records=0, wall_ms=9)
    lost = history.next_lsn - lsn
    plan = repair(disk, DATA, lsn, accepted_records=lost, wall_ms=9)
    assert (plan.records, plan.anew) == (lost, ("IDENT", "MANIFEST"))
    assert Life(disk, History(history.attempted[:5])).frames == history.attempted[:5]


def test_slots_that_are_left_of_a_damaged_mark_still_tell_how_far_the_log_went():
    disk, history = without_checkpoints(FsyncMode.ALWAYS)
    disk.unlink(segments(disk)[-1])
    newest = read_or_rebuild(disk, DATA, wall_ms=9).facts.mark.newest
    for slot in {0, 1, 2} - {newest.count % 8}:
        disk.flip(f"{DATA}/MARK", 8 * (20 + slot * MARK_SLOT_BYTES))
    found = read_or_rebuild(disk, DATA, wall_ms=9)
    assert found.lost == ("MARK",)
    with pytest.raises(RepairError, match="the highest lsn that it can be") as refused:
        plan_repair(disk, DATA, history.next_lsn, wall_ms=9)
    end = int(str(refused.value).split(" is ")[1].split(",")[0])
    plan = plan_repair(disk, DATA, end, wall_ms=9)
    assert plan.records == history.next_lsn - end > 0


@pytest.mark.parametrize("harm", ["missing", "flipped"])
def test_a_checkpoint_proves_that_the_log_was_durable_up_to_it_when_mark_does_not_say(harm):
    """MARK may be a second behind. By an older checkpoint and half of the log all seems well."""
    disk, history = SimDisk(), History()
    life = Life(disk, history)
    life.append(b"x" * 3000)
    life.checkpoint()
    life.append(b"y" * 3000)
    life.append(b"z" * 3000)
    life.checkpoint()
    life.log.close()
    assert read_or_rebuild(disk, DATA, wall_ms=9).facts.mark.newest.lsn == 0
    for path in segments(disk)[1:]:
        disk.unlink(path)
    if harm == "flipped":
        flip_in(disk, snaps(disk)[-1])
    lose(disk, "MANIFEST", "missing")
    with pytest.raises(RefusedError) as refused:
        plan_repair(disk, DATA, None, wall_ms=9)
    assert refused.value.rule is Rule.LOST_TAIL


def test_a_checkpoint_of_a_history_that_was_given_up_is_not_taken():
    """A repair that was cut before it had set the checkpoint aside leaves one under its name."""
    disk, history = SimDisk(), History()
    life = Life(disk, history)
    for i in range(6):
        life.append(bytes([i + 1]) * 500, records=2)
    life.checkpoint()
    life.log.close()
    lsn = history.attempted[2][0]
    repair(disk, DATA, lsn, accepted_records=history.next_lsn - lsn, wall_ms=9)
    [given_up] = [path for path in disk.files() if path.endswith(".snap.broken")]
    disk.rename(given_up, given_up.removesuffix(".broken"))
    history = History(history.attempted[:2])
    life = Life(disk, history)
    for i in range(9):
        life.append(bytes([200 + i]) * 500, records=2)
    life.log.mark()
    life.log.close()
    lose(disk, "MANIFEST", "missing")
    plan = repair(disk, DATA, None, accepted_records=0, wall_ms=9)
    assert plan.manifest.checkpoints == ()
    assert Life(disk, copied(history)).frames == history.attempted


def test_files_of_two_stores_are_of_no_mind():
    disk, _ = with_two_generations()
    other = SimDisk()
    Life(other, History()).log.close()
    lose(disk, "IDENT", "missing")
    mark = bytearray(other.read(f"{DATA}/MARK"))
    mark[64:80] = bytes(16)
    mark[508:512] = frame.crc32c(bytes(mark[:508])).to_bytes(4, "little")
    disk.write_file(f"{DATA}/MARK", bytes(mark[:512]))
    with pytest.raises(RefusedError, match="belong to the stores") as refused:
        plan_repair(disk, DATA, None, wall_ms=9)
    assert refused.value.rule is Rule.FOREIGN_UUID


def test_without_any_file_that_names_the_store_nothing_is_made():
    disk, _ = with_two_generations()
    for path in (*segments(disk), f"{DATA}/IDENT", f"{DATA}/MARK"):
        disk.unlink(path)
    with pytest.raises(RefusedError, match="tells whose the store is"):
        plan_repair(disk, DATA, None, wall_ms=9)


def test_a_store_that_was_only_made_is_mended_too():
    disk = SimDisk()
    Life(disk, History()).log.close()
    disk.unlink(segments(disk)[0])
    lose(disk, "MANIFEST", "missing")
    with pytest.raises(RefusedError) as refused:  # a server had run, and opened a segment
        plan_repair(disk, DATA, None, wall_ms=9)
    assert refused.value.rule is Rule.LOST_TAIL


def test_a_newer_format_is_not_taken_for_a_loss():
    disk, _ = with_two_generations()
    data = bytearray(disk.read(f"{DATA}/MANIFEST"))
    data[12:16] = (99).to_bytes(4, "little")
    data[-4:] = frame.crc32c(bytes(data[:-4])).to_bytes(4, "little")
    disk.write_file(f"{DATA}/MANIFEST", bytes(data))
    lose(disk, "IDENT", "missing")
    with pytest.raises(RefusedError) as refused:
        plan_repair(disk, DATA, None, wall_ms=9)
    assert refused.value.rule is Rule.NEWER_FORMAT


def test_more_generations_than_manifest_can_name_are_the_newest():
    disk, history = SimDisk(), History()
    life = Life(disk, history)
    for _ in range(10):
        life.append(b"x" * 300)
        life.checkpoint(8)
        for path in snaps(disk):
            disk.write_file(f"{path}.kept", disk.read(path))
    life.log.mark()
    life.log.close()
    for path in [path for path in disk.files() if path.endswith(".kept")]:
        disk.rename(path, path.removesuffix(".kept"))
    assert len(snaps(disk)) > 8
    lose(disk, "MANIFEST", "empty")
    plan = repair(disk, DATA, None, accepted_records=0, wall_ms=9)
    assert [f"{DATA}/snap/{one.name}" for one in plan.manifest.checkpoints] == snaps(disk)[-8:]
    assert accepted(disk, history, FsyncMode.ALWAYS)
    assert snap(disk, -1) == snaps(disk)[-1]
