"""What the scrubber finds is healed by a checkpoint that keeps no older generation: cut anywhere.

A simulated disk under the scrubber, the checkpointer and the log as the server has them. The power
goes out before each step of the heal, and behind it. What has to hold: a start loses nothing that
was confirmed. While MANIFEST still needs the damaged file a start falls back to what is whole, or,
where the log itself is damaged and there is nothing to fall back to, is refused and changes
nothing, as it would be without a heal; once the heal has come into force nothing is in its way.
"""

import asyncio

import pytest

from server.checkpoints import Checkpointer
from server.scrub import Scrubber
from tests.fakes import Lines, StandingClock
from tests.lives import Life, copied, names_what_is_there, place_of, segments
from tests.logkit import DATA, History
from tests.simdisk import SimDisk
from tests.unit.test_checkpoints import POLICY, Mends, StandIn, until
from wal.errors import RefusedError
from wal.frame import FsyncMode

SEEDS = 6
RATE = 1 << 20


class Server:
    """A life with two checkpoints and sealed segments, and what watches over its files."""

    def __init__(self, fsync):
        self.disk, self.history, self.lines = SimDisk(), History(), Lines()
        self.life = Life(self.disk, self.history, fsync)
        for _ in range(2):
            for size in (1500, 2000, 1500, 2000):
                self.append(size)
            self.life.checkpoint()
        for size in (2000, 1500, 2000, 1500):
            self.append(size)
        self.life.sync()
        self.life.log.mark()
        self.append(100)  # with --fsync off nothing has synced it when the heal begins
        log, clock = self.life.log, StandingClock()
        self.files = log.checkpoints
        core = StandIn(self.disk, log)
        core.done_lsn = self.history.next_lsn - 1
        self.checkpointer = Checkpointer(
            core=core,
            log=log,
            policy=POLICY,
            clock=clock,
            logger=self.lines.logger,
            mender=Mends(),
            is_connected=lambda _handle: True,
        )
        self.scrubber = Scrubber(
            disk=self.disk,
            log=log,
            files=self.files,
            wal_path=f"{DATA}/wal",
            rate_bytes=RATE,
            clock=clock,
            logger=self.lines.logger,
            on_damage=self.checkpointer.heal,
            wait=lambda _seconds: False,
        )

    def append(self, size):
        self.life.append(bytes([self.history.next_lsn]) * size)

    def damage(self, what):
        """Flip a bit; return the path of the file that has it."""
        older, newest = self.files.manifest.checkpoints
        if what in ("newest", "older"):
            path = f"{self.files.folder}/{(newest if what == 'newest' else older).name}"
            self.disk.flip(path, len(self.disk.read(path)) // 2 * 8)
            return path
        behind = newest if what == "log behind the newest" else older
        path, bit = place_of(self.disk, behind.start_lsn + 1)
        assert path != segments(self.disk)[-1], "it is not sealed"
        self.disk.flip(path, bit)
        return path

    def heal(self):
        """Let the scrubber find it, and what it asks for be done, as the server does."""

        async def healed():
            self.scrubber.pass_once()
            task = asyncio.ensure_future(self.checkpointer.run())
            await until(lambda: "files_dropped" in self.lines.events)
            await self.checkpointer.stop()
            await task

        asyncio.run(asyncio.wait_for(healed(), 30))


def restarted(disk, history, fsync):
    """Return a life behind a power cut: with all that was durable, and going on."""
    names_what_is_there(disk)
    life = Life(disk, history, fsync)
    life.append(b"on")
    life.checkpoint()
    life.log.close()
    again = Life(disk.crashed(0), copied(history), fsync)
    assert again.frames[-1][2] == b"on"
    again.log.close()
    return life


@pytest.mark.parametrize("fsync", [FsyncMode.ALWAYS, FsyncMode.OFF])
@pytest.mark.parametrize(
    "what", ["newest", "older", "log behind the newest", "log behind the older"]
)
def test_a_power_cut_at_any_step_of_a_heal_loses_nothing(what, fsync):
    server = Server(fsync)
    path = server.damage(what)
    before, states = server.files.manifest, []
    with server.disk.before_steps(
        lambda: states.append((server.disk.clone(), server.files.manifest != before))
    ):
        server.heal()
    assert "scrub_healed" in server.lines.events
    assert path not in server.disk.files()
    assert len(server.files.manifest.checkpoints) == 1
    seen = set()
    for step, (disk, in_force) in enumerate(states):
        for seed in range(SEEDS):
            cut = disk.crashed(seed if seed < 4 else seed + 100 * step)
            files = {one: cut.read(one) for one in cut.files()}
            history = copied(server.history)
            if in_force:
                history.durable = history.confirmed
            try:
                life = restarted(cut, history, fsync)
            except RefusedError as refused:
                assert what == "log behind the newest"
                assert refused.path == path
                assert not in_force
                assert {one: cut.read(one) for one in cut.files()} == files
                seen.add("refused")
            else:
                fallen = [one.path for one in life.store.fallen]
                assert fallen in ([], [path])
                assert not (in_force and fallen)
                seen.add("fell back" if fallen else "whole")
    server.life.log.close()
    assert len(states) > 15
    assert {in_force for _, in_force in states} == {True, False}
    assert seen == {
        "newest": {"fell back", "whole"},
        "log behind the newest": {"refused", "whole"},
    }.get(what, {"whole"})
