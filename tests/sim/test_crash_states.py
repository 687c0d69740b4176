"""Every state that a power cut can leave: behind each call of a life, and of each start after it.

A workload is run once for each of its steps, with the power going just behind it. What no sync
covered by then (sectors, lengths, operations on names) may have arrived in any combination: of few
effects all subsets are tried, of many a sample. On each different disk that this gives a start is
made; for some, the start is cut in turn behind each of its own steps, and started again. What has
to hold is in tests/logkit.py: never refused, nothing durable lost, nothing invented, and what one
start has shown every later start shows. (ALICE, OSDI 2014, enumerates so.)
"""

import random
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from tests.logkit import History, Server, read_all
from tests.simdisk import SimDisk
from wal.errors import LogFailedError
from wal.frame import FsyncMode

MODES = list(FsyncMode)
# Mode -> workloads, and the different states that they give at least: 50,000 together.
WORKLOADS = {FsyncMode.ALWAYS: 27, FsyncMode.INTERVAL: 5, FsyncMode.OFF: 5}
STATES_MIN = {FsyncMode.ALWAYS: 10_000, FsyncMode.INTERVAL: 20_000, FsyncMode.OFF: 20_000}
LIVES = 2
SUBSETS_ALL = 64  # so many subsets: all of them


def copied(history):
    return replace(history, attempted=list(history.attempted))


def live(rng, server):
    """One life of a server: start, frames of one sector to eight, rotations, marks, an end."""
    server.start()
    for _ in range(rng.randrange(4, 12)):
        server.append(rng.randbytes(rng.choice((8, 300, 900, 2000, 3900))), rng.randrange(1, 4))
        if (what := rng.randrange(8)) < 3:
            (server.log.prepare, server.log.mark, server.sync)[what]()
    if rng.random() < 0.5:
        server.stop()
    else:
        server.log.close()


def work(number, disk, history, fsync):
    """First start, and lives after it; the same each time."""
    rng = random.Random(number)
    for life in range(LIVES):
        live(rng, Server(disk, history, fsync, salt_seed=life))


def cut_after(number, fsync, steps):
    """Return (disk, history) of a workload when the power goes behind so many of its steps."""
    disk, history = SimDisk(seed=steps), History()
    disk.power_off_after(steps)
    with suppress(LogFailedError, OSError):
        work(number, disk, history, fsync)
    return disk, history


def start_and_append(disk, history, fsync):
    server = Server(disk, history, fsync)
    server.start()
    server.append(b"never")


@dataclass
class Search:
    """What has been tried. A state is a disk with what it has to hold; each is judged once.

    Attributes:
        sample: subsets of one boundary's effects, where there are too many for all.
        nested_sample: the same for the boundaries of a start.
        nested_share: of the states, how many have their start cut at every step: one in so many.
    """

    fsync: FsyncMode
    sample: int
    nested_sample: int
    nested_share: int
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    seen: set[tuple[int, int, int]] = field(default_factory=set)
    boundaries: int = 0
    nested: int = 0

    def subsets(self, pending, sample):
        """Return masks of effects to keep, none and all among them."""
        if 1 << min(pending, 64) <= SUBSETS_ALL:
            return range(1 << pending)
        bits = self.rng.getrandbits
        few = [bits(64) & bits(64) & bits(64) for _ in range(sample // 3)]
        most = [bits(64) | bits(64) | bits(64) for _ in range(sample // 3)]
        return [0, (1 << 64) - 1, *few, *most, *(bits(64) for _ in range(sample // 3))]

    def new_states(self, disk, history, sample):
        """Yield the different disks that a power cut can leave of this one."""
        self.boundaries += 1
        for mask in self.subsets(disk.pending, sample):
            cut = disk.crashed_with(mask, self.rng.randrange(1, 1 << 60))
            key = (cut.digest, history.durable, len(history.attempted))
            if key not in self.seen:
                self.seen.add(key)
                yield cut

    def judge(self, disk, history):
        """Start and append; after every third, look again after another cut."""
        server = Server(disk, copied(history), self.fsync)
        server.start()
        server.append(b"after the crash")
        server.log.close()
        if self.rng.randrange(3) == 0:
            server.history.check(read_all(disk.crashed(0), fsync=self.fsync)[0])

    def nest(self, disk, history):
        """Cut the start on this disk behind each of its steps, and start once more."""
        whole = disk.clone()
        Server(whole, copied(history), self.fsync).start()
        for steps in range(1, whole.steps - disk.steps + 1):
            second, life = disk.clone(), copied(history)
            second.power_off_after(steps)
            with suppress(LogFailedError, OSError):
                start_and_append(second, life, self.fsync)
            for cut in self.new_states(second, life, self.nested_sample):
                self.nested += 1
                self.judge(cut, life)

    def run(self, number):
        """Try everything that a workload can leave."""
        whole = SimDisk()
        work(number, whole, History(), self.fsync)
        for steps in range(1, whole.steps + 1):
            disk, history = cut_after(number, self.fsync, steps)
            for cut in self.new_states(disk, history, self.sample):
                if self.rng.randrange(self.nested_share) == 0:
                    self.nest(cut, history)
                self.judge(cut, history)


def search(fsync, figure, workloads, **options):
    begin_s = time.process_time()
    tried = Search(fsync, **options)
    for number in workloads:
        tried.run(number)
    figure(
        f"{len(tried.seen)} crash states at {tried.boundaries} boundaries, mode {fsync.name}, "
        f"{tried.nested} of them in a start after a crash; {time.process_time() - begin_s:.0f} s"
    )
    return len(tried.seen)


@pytest.mark.slow
@pytest.mark.parametrize("fsync", MODES)
def test_no_state_that_a_power_cut_can_leave_is_refused_or_loses_anything(fsync, figure):
    workloads = range(WORKLOADS[fsync])
    states = search(fsync, figure, workloads, sample=90, nested_sample=6, nested_share=40)
    assert states >= STATES_MIN[fsync]


@pytest.mark.long
@pytest.mark.parametrize("fsync", MODES)
def test_many_more_states(fsync, figure):
    search(fsync, figure, range(100, 140), sample=600, nested_sample=30, nested_share=40)
