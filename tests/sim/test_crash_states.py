"""Every state that a power cut can leave: before each call of a life, and of each start after it.

How they are found stands in tests/sim/crashes.py. What has to hold: a start is never refused after
a crash, nothing durable is lost, nothing invented, what one start has shown every later start shows
(tests/logkit.py), and MANIFEST never names what is not there. A store that a repair was cut in is
refused as before, or starts with what the repair was to leave, and the repair can be done again.
"""

import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from tests.lives import (
    Life,
    copied,
    harm,
    names_what_is_there,
    place_of,
    snap,
    with_two_generations,
)
from tests.logkit import DATA, History, payload
from tests.sim.crashes import search
from tests.simdisk import SimDisk
from wal import frame
from wal.errors import RefusedError
from wal.frame import FsyncMode
from wal.recover import Ending
from wal.repair import RepairError, plan_repair, repair
from wal.verify import verify

MODES = list(FsyncMode)
ALWAYS, INTERVAL, OFF = FsyncMode.ALWAYS, FsyncMode.INTERVAL, FsyncMode.OFF
STATES_MIN = 50_000  # of all below together
LIVES = 2


@dataclass
class Log:
    """First start, frames of one sector to eight, rotations, marks, an end; and a second life."""

    fsync: FsyncMode
    seen: set[object] = field(default_factory=set)  # how starts found the log to end

    def __str__(self):
        return f"a log, mode {self.fsync.name}"

    @property
    def reached(self):
        """Whether cuts of every kind were met."""
        return self.seen >= {Ending.CLEAN, Ending.TORN if self.fsync is ALWAYS else Ending.CUT}

    def begin(self, number):
        return SimDisk(), History()

    def work(self, number, disk, history):
        rng = random.Random(number)
        for one in range(LIVES):
            life = Life(disk, history, self.fsync, salt_seed=one)
            for _ in range(rng.randrange(4, 12)):
                size = rng.choice((8, 300, 900, 2000, 3900))
                life.append(rng.randbytes(size), rng.randrange(1, 4))
                if (what := rng.randrange(8)) < 3:
                    (life.prepare, life.mark, life.sync)[what]()
            if rng.random() < 0.5:
                life.stop()
            else:
                life.log.close()

    def recover(self, disk, history):
        Life(disk, history, self.fsync).append(b"never")

    def judge(self, disk, history, draw):
        """Start and append; after every third, look again after another cut."""
        life = Life(disk, history, self.fsync)
        self.seen.add(life.store.verdict.ending)
        life.append(b"after the crash")
        life.log.close()
        if draw % 3 == 0:
            self.look_again(disk.crashed(0), history)

    def look_again(self, disk, history):
        assert not verify(disk, DATA).damaged
        life = Life(disk, copied(history), self.fsync)
        assert not [path for path in disk.files() if path.endswith(".tmp")]
        life.log.close()


@dataclass
class Checkpointed(Log):
    """Lives with checkpoints, one or two generations of them, truncation, trimmed segments."""

    def __str__(self):
        return f"checkpoints, mode {self.fsync.name}"

    def work(self, number, disk, history):
        rng = random.Random(number)
        for one in range(LIVES):
            life = Life(disk, history, self.fsync, salt_seed=one)
            life.trim()
            for _ in range(rng.randrange(1, 3)):
                for _ in range(rng.randrange(1, 4)):
                    life.append(payload(rng), rng.randrange(1, 4))
                behind = [payload(rng) for _ in range(rng.randrange(3))]
                life.checkpoint(rng.randrange(1, 3), behind=behind)
            if rng.random() < 0.5:
                life.shrink()
            life.append(payload(rng))
            if rng.random() < 0.5:
                life.stop()
            else:
                life.log.close()

    def recover(self, disk, history):
        life = Life(disk, history, self.fsync)
        life.trim()
        life.append(b"never")
        life.checkpoint()

    def judge(self, disk, history, draw):
        """Start, go on, and after some make a checkpoint and look again after another cut."""
        self.check_disk(disk)
        life = Life(disk, history, self.fsync)
        self.seen |= {life.store.verdict.ending, len(life.store.fallen)}
        self.check_start(life)
        life.append(b"after the crash")
        if draw % 3 == 0:
            life.trim()
            life.checkpoint()
            life.append(b"and more")
            life.sync()
        life.log.close()
        if draw % 6 == 0:
            self.look_again(disk.crashed(0), history)

    def check_disk(self, disk):
        names_what_is_there(disk)

    def check_start(self, life):
        assert life.store.fallen == ()


@dataclass
class FallBack(Checkpointed):
    """A start that finds the newest checkpoint damaged, and takes it out of force."""

    def __str__(self):
        return f"a start that falls back, mode {self.fsync.name}"

    def begin(self, number):
        disk, history = with_two_generations(self.fsync)
        harm(disk, snap(disk, -1), ("flipped", "short", "missing", "older")[number % 4])
        return disk, history

    def work(self, number, disk, history):
        Life(disk, history, self.fsync).append(b"goes on")

    @property
    def reached(self):
        return self.seen >= {0, 1}

    def check_disk(self, disk):
        """What it names is damaged."""

    def check_start(self, life):
        assert len(life.store.fallen) <= 1


def aged(disk):
    """Stamp the format version before this build's on every file of a store."""
    for path in disk.files():
        crc_at = 4092 if path.endswith((".wal", ".snap")) else len(disk.read(path)) - 4
        if path.endswith((".wal", ".snap", "/IDENT", "/MANIFEST")):
            stamp = (frame.FORMAT_VERSION - 1).to_bytes(4, "little") * 2
            disk.poke(path, 8, stamp)  # version, and the lowest that a reader must know
            crc = frame.crc32c(disk.read(path)[:crc_at])
            disk.poke(path, crc_at, crc.to_bytes(4, "little"))


@dataclass
class Upgrade(Checkpointed):
    """The first life of this build on a store of the format before, up to its second checkpoint.

    The older segments are deleted or left as they are.
    """

    def __str__(self):
        return f"an upgrade, mode {self.fsync.name}"

    def begin(self, number):
        disk, history = with_two_generations(self.fsync)
        aged(disk)
        self.old = {path: disk.read(path) for path in disk.files() if path.endswith(".wal")}
        return disk, history

    def work(self, number, disk, history):
        rng = random.Random(number)
        life = Life(disk, history, self.fsync, salt_seed=number)
        life.trim()
        for keep in (2, 1):
            life.append(payload(rng))
            life.append(payload(rng))
            life.checkpoint(keep, behind=[payload(rng)])
        life.stop()

    def check_start(self, life):
        super().check_start(life)
        for path in life.disk.files():
            if path in self.old:
                data = life.disk.read(path)
                assert data == self.old[path][: len(data)]
        newest = max(path for path in life.disk.files() if path.endswith(".wal"))
        assert int.from_bytes(life.disk.read(newest)[8:12], "little") == frame.FORMAT_VERSION


@dataclass
class Repair:
    """A repair of a store with a flipped bit in a frame; what is cut of it is repaired again."""

    fsync: FsyncMode
    seen: set[str] = field(default_factory=set)

    def __str__(self):
        return f"a repair, mode {self.fsync.name}"

    @property
    def reached(self):
        return self.seen == {"refused", "repaired", "whole"}

    def begin(self, number):
        """Return a store whose frame 1 (under its checkpoint), 6 or 8 is damaged."""
        self.victim = (1, 6, 8)[number % 3]
        disk, history = SimDisk(), History()
        life = Life(disk, history, self.fsync)
        for i in range(9):
            life.append(bytes([i + 1]) * 1500, records=2)
            if i == 3:
                life.checkpoint()
        life.sync()
        life.mark()
        life.log.close()
        self.whole = history
        self.lsn = history.attempted[self.victim][0]
        disk.flip(*place_of(disk, self.lsn))
        return disk, History(doing="repair")

    def work(self, number, disk, history):
        self.recover(disk, history)

    def recover(self, disk, history):
        plan = plan_repair(disk, DATA, self.lsn, wall_ms=9)
        repair(disk, DATA, self.lsn, accepted_records=plan.records, wall_ms=9)

    def judge(self, disk, history, draw):
        self.seen.add(self.outcome(disk.clone()))
        self.recover(disk, history)
        assert self.outcome(disk) == "repaired"

    def outcome(self, disk):
        """Return what a start makes of it; verify says the same before."""
        report = verify(disk, DATA)
        try:
            life = Life(disk, History(list(self.whole.attempted)), self.fsync)
        except RefusedError:
            assert report.damaged
            return "refused"
        assert report.refused is None
        life.log.close()
        if life.frames == self.whole.attempted:
            assert self.victim == 1, "only there a checkpoint covers the damaged place"
            assert report.spare_problem, "a start without that checkpoint would meet the damage"
            return "whole"
        assert not report.damaged
        assert life.frames == self.whole.attempted[: self.victim]
        return "repaired"


@dataclass
class Rebuild:
    """IDENT and MANIFEST made anew; where MARK is lost too, the end of the log is given."""

    fsync: FsyncMode
    seen: set[str] = field(default_factory=set)

    def __str__(self):
        return f"lost files made anew, mode {self.fsync.name}"

    @property
    def reached(self):
        return self.seen == {"refused", "whole"}

    def begin(self, number):
        disk, self.whole = with_two_generations(self.fsync)
        names = (("MANIFEST",), ("IDENT", "MANIFEST"), ("IDENT", "MARK", "MANIFEST"))[number % 3]
        for name in names:
            if number % 2:
                disk.flip(f"{DATA}/{name}", 8 * 20)
                disk.flip(f"{DATA}/{name}", 8 * 20 - 1)
            if not number % 2 or name == "MARK":
                disk.unlink(f"{DATA}/{name}")
        self.lsn = self.whole.next_lsn if "MARK" in names else None
        return disk, History(doing="repair")

    def work(self, number, disk, history):
        self.recover(disk, history)

    def recover(self, disk, history):
        with suppress(RepairError):  # nothing is left to be made anew
            repair(disk, DATA, self.lsn, accepted_records=0, wall_ms=9)

    def judge(self, disk, history, draw):
        """What is cut is refused as before, or whole; done again it is whole."""
        before = self.outcome(disk.clone())
        self.seen.add(before)
        if before == "refused":
            self.recover(disk, history)
        assert self.outcome(disk) == "whole"

    def outcome(self, disk):
        try:
            life = Life(disk, copied(self.whole), self.fsync)
        except RefusedError:
            return "refused"
        assert life.frames == self.whole.attempted
        life.log.close()
        return "whole"


# World, numbers of pieces of work, of its states how many have their recovery cut (one in so many),
# and how many states there are at least, in all and of single kinds.
PLANS = [
    (Log(ALWAYS), range(10), 40, {"all": 4_100, "start": 190, "commit": 1_100, "rotate": 2_100}),
    (Log(ALWAYS), range(10, 20), 40, {"all": 5_000, "commit": 1_050, "rotate": 2_700}),
    (Log(INTERVAL), range(1), 40, {"all": 3_900, "recovery": 1_100}),
    (Log(INTERVAL), range(1, 2), 40, {"all": 7_900, "recovery": 2_700, "rotate": 3_200}),
    (Log(INTERVAL), range(2, 3), 40, {"all": 4_400, "recovery": 1_100, "stop": 4}),
    (Log(OFF), range(1), 40, {"all": 4_000, "recovery": 1_200}),
    (Log(OFF), range(1, 2), 40, {"all": 8_400, "recovery": 3_200, "rotate": 3_200}),
    (Log(OFF), range(2, 3), 40, {"all": 4_700, "recovery": 1_400, "stop": 4}),
    (Checkpointed(ALWAYS), range(8), 20, {"all": 2_500, "checkpoint": 480, "truncate": 90}),
    (Checkpointed(INTERVAL), range(3), 40, {"all": 3_600, "checkpoint": 880, "truncate": 60}),
    (Checkpointed(OFF), range(3), 40, {"all": 3_500, "checkpoint": 900, "truncate": 60}),
    (FallBack(ALWAYS), range(4), 1, {"all": 220, "start": 8, "recovery": 90}),
    (FallBack(INTERVAL), range(4), 1, {"all": 210, "start": 10, "recovery": 70}),
    (Upgrade(ALWAYS), range(4), 20, {"all": 1_200, "checkpoint": 160, "truncate": 120}),
    (Upgrade(INTERVAL), range(2), 40, {"all": 1_700, "checkpoint": 470, "truncate": 44}),
    (Upgrade(OFF), range(2), 40, {"all": 1_900, "checkpoint": 450, "truncate": 44}),
    (Repair(ALWAYS), range(3), 3, {"all": 650, "repair": 110, "repair after a cut": 540}),
    (Repair(INTERVAL), range(3), 3, {"all": 650, "repair": 110, "repair after a cut": 540}),
    (Rebuild(ALWAYS), range(3), 3, {"all": 250, "repair": 60}),
    (Rebuild(INTERVAL), range(3, 6), 3, {"all": 150, "repair": 35}),
]
# Half of the states are in `make test`: one plan at least of each world and of each mode.
LONG = {
    *("a log, mode ALWAYS, 10-19", "a log, mode INTERVAL, 1-1", "a log, mode OFF, 1-1"),
    *("checkpoints, mode OFF, 0-2", "an upgrade, mode OFF, 0-1"),
}
IDS = [f"{world}, {numbers.start}-{numbers.stop - 1}" for world, numbers, *_ in PLANS]
CASES = [
    pytest.param(*plan, id=name, marks=[pytest.mark.long] if name in LONG else [])
    for plan, name in zip(PLANS, IDS, strict=True)
]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "numbers", "share", "least"), CASES)
def test_no_state_that_a_power_cut_can_leave_is_refused_or_loses_anything(
    world, numbers, share, least, figure
):
    found = search(world, figure, numbers, sample=90, nested_sample=6, nested_share=share)
    assert {kind: found[kind] for kind in least if found[kind] < least[kind]} == {}
    assert world.reached, world.seen


def test_together_they_are_as_many_states_as_demanded():
    assert sum(least["all"] for *_, least in PLANS) >= STATES_MIN


@pytest.mark.long
@pytest.mark.parametrize(("world", "numbers", "share", "least"), CASES)
def test_many_more_states(world, numbers, share, least, figure):
    search(
        world,
        figure,
        range(100 + numbers.start, 110 + numbers.start),
        sample=600,
        nested_sample=30,
        nested_share=share,
    )
