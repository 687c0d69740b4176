"""The search for crash states: each step of a piece of work, and each set of effects that arrived.

A piece of work is run once; in front of each of its steps (a call that changes something on the
disk) the disk is copied. Of every copy a power cut leaves one state for each subset of the effects
that no sync covers (sectors, lengths, operations on names): of few all are tried, of many a sample.
Each different state is judged once; for some, what recovers from it is cut in turn in front of each
of its own steps. (ALICE, OSDI 2014, enumerates so.)
"""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from tests.lives import copied
from tests.logkit import History
from tests.simdisk import SimDisk

SUBSETS_ALL = 64  # so many subsets: all of them


class World(Protocol):
    """A kind of work to cut. All of it is the same each time for one number.

    Attributes:
        reached: whether the states that were judged were of every kind that there is.
    """

    reached: bool

    def begin(self, number: int) -> tuple[SimDisk, History]:
        """Return the disk before the work, and what it has to hold."""

    def work(self, number: int, disk: SimDisk, history: History) -> None:
        """Do what is cut."""

    def recover(self, disk: SimDisk, history: History) -> None:
        """Do what is cut in a state that a cut has left."""

    def judge(self, disk: SimDisk, history: History, draw: int) -> None:
        """Assert that a state is one that may be; draw chooses how closely it is looked at."""


@dataclass
class Search:
    """What has been tried. A state is a disk with what it has to hold; each is judged once.

    Attributes:
        world: what is cut.
        sample: subsets of one boundary's effects, where there are too many for all.
        nested_sample: the same for the boundaries of a recovery.
        nested_share: of the states, how many have their recovery cut: one in so many.
    """

    world: World
    sample: int
    nested_sample: int
    nested_share: int
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    seen: set[tuple[int, int, int]] = field(default_factory=set)
    states: Counter[str] = field(default_factory=Counter)
    boundaries: int = 0

    def _subsets(self, pending, sample):
        """Return masks of effects to keep, none and all among them."""
        if 1 << min(pending, 64) <= SUBSETS_ALL:
            return range(1 << pending)
        bits = self.rng.getrandbits
        few = [bits(64) & bits(64) & bits(64) for _ in range(sample // 3)]
        most = [bits(64) | bits(64) | bits(64) for _ in range(sample // 3)]
        return [0, (1 << 64) - 1, *few, *most, *(bits(64) for _ in range(sample // 3))]

    def _new_states(self, work, disk, history, sample):
        """Yield (disk, history, kind of call) of the different states that cuts of work leave."""
        moments = []
        with disk.before_steps(lambda: moments.append((disk.clone(), copied(history)))):
            work(disk, history)
        for moment, known in moments:
            self.boundaries += 1
            for mask in self._subsets(moment.pending, sample):
                cut = moment.crashed_with(mask, self.rng.randrange(1, 1 << 60))
                key = (cut.digest, known.durable, len(known.attempted))
                if key not in self.seen:
                    self.seen.add(key)
                    yield cut, known, known.doing

    def _judge(self, disk, history):
        self.world.judge(disk, copied(history), self.rng.randrange(1 << 30))

    def run(self, number):
        """Try everything that one piece of work can leave."""
        disk, history = self.world.begin(number)

        def work(disk, history):
            self.world.work(number, disk, history)

        for cut, known, kind in self._new_states(work, disk, history, self.sample):
            self.states[kind] += 1
            if self.rng.randrange(self.nested_share) == 0:
                self._nest(cut, known)
            self._judge(cut, known)

    def _nest(self, disk, history):
        cuts = self._new_states(
            self.world.recover, disk.clone(), copied(history), self.nested_sample
        )
        for cut, known, kind in cuts:
            self.states["recovery" if kind == "start" else f"{kind} after a cut"] += 1
            self._judge(cut, known)


def search(world, figure, numbers, **options):
    """Return how many states there were, in all and of each kind, and tell."""
    begin_s = time.process_time()
    tried = Search(world, **options)
    for number in numbers:
        tried.run(number)
    kinds = ", ".join(f"{kind} {count}" for kind, count in tried.states.most_common())
    figure(
        f"{tried.states.total()} crash states at {tried.boundaries} boundaries of {world};"
        f" {time.process_time() - begin_s:.0f} s; {kinds}"
    )
    return {"all": tried.states.total(), **tried.states}
