"""The whole server in a simulated world: lives and recoveries of one store, from one seed.

Between two crashes everything runs in C (tests/c/wd_simworld.c), over the shipped core and log. The
starts in between are the shipped ones of Python: wal.open_store, replay, start, as server/daemon.py
makes them.
"""

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from _wheeld import ffi as core_ffi
from _wheeld import lib as core_lib

from server.replay import rel_now_ms
from tests.simdisk import SimDisk, module
from wal.checkpoint import Made
from wal.errors import LogFailedError, RefusedError, WalError
from wal.frame import FsyncMode
from wal.log import open_store
from wheel.engine.core import Commit, Core, CoreOptions, Sync
from wheel.engine.facts import CheckpointPhase, Clocks
from wheel.errors import CoreError

DATA = "/d"
BOUND = (
    "wd_core_tick wd_core_commit wd_core_fed_open wd_core_fed_input wd_core_fed_eof"
    " wd_core_fed_ready wd_core_fed_output wd_core_fed_taken wd_core_fed_blocked wd_core_fed_close"
    " wd_core_take_batch wd_core_batch_durable wd_core_set_disk_room wd_core_stop_reading"
    " wd_core_check wd_core_lsn wd_core_durable_lsn wd_log_append wd_log_prepare wd_log_sync"
    " wd_log_mark wd_log_stats_get"
).split()


@cache
def _functions():
    """Return name -> address of what the world calls in ``_wheeld``."""
    return {
        name: int(core_ffi.cast("uintptr_t", core_ffi.addressof(core_lib, name))) for name in BOUND
    }


@dataclass
class Outcome:
    """What became of one seed."""

    seed: int
    violation: str = ""
    refused: str = ""  # the start noticed what a lying disk had done
    ends: list[str] = field(default_factory=list)
    published: int = 0  # checkpoints put in force
    fallen: int = 0  # starts that took an older one
    figures: dict[str, int] = field(default_factory=dict)

    @property
    def trace(self):
        return self.figures["hash"]


class World:
    """One seed."""

    ENDS = ("", "killed", "cut", "failed", "stopped", "done", "violation", "asks")

    def __init__(self, seed):
        self.lib, self.ffi = module().lib, module().ffi
        self.disk = SimDisk(seed)
        self.world = self.ffi.gc(self.lib.wd_world_new(seed, self.disk.fs), self.lib.wd_world_free)
        for name, address in _functions().items():
            assert self.lib.wd_world_bind(
                self.world, name.encode(), self.ffi.cast("void *", address)
            )
        self.plan = self.ffi.new("wd_world_plan *")
        self.outcome = Outcome(seed)
        self.uuid = seed.to_bytes(8, "little") * 2
        self.before = None  # the state's hash at the end of a life that ended in order
        self.damaged = False  # the newest checkpoint was damaged, and can be done without

    def run(self):
        """Return the outcome."""
        done = False
        while not done:
            self.lib.wd_world_next_life(self.world, self.plan)
            done = self._life()
            if self.outcome.ends[-1:] in (["cut"], ["start_cut"]):
                self.disk.crash(4 + self.lib.wd_world_draw(self.world) % (1 << 40))
        self.outcome.violation = self.ffi.string(self.lib.wd_world_violation(self.world)).decode()
        stats = self.ffi.new("wd_world_stats *")
        self.lib.wd_world_stats_get(self.world, stats)
        self.outcome.figures = {name: getattr(stats, name) for name in dir(stats)}
        return self.outcome

    def _violate(self, text):
        self.lib.wd_world_violate(self.world, text[:200].encode())

    def _life(self):
        """Start, run to the life's end; True when the seed is over."""
        plan = self.plan
        if plan.power_off_steps:
            self.disk.power_off_after(plan.power_off_steps)
        core = self._core()
        log = None
        try:
            log = self._start(core)
            if log is None:
                return True
            self.disk.power_off_after(0)
            return self._serve(core, log)
        except RefusedError as refused:
            self.outcome.refused = str(refused.rule)
            self.lib.wd_world_refused(self.world, f"{refused.rule}: {refused}".encode())
            return True
        except (OSError, LogFailedError) as error:
            if not plan.power_off_steps:
                self._violate(f"start_failed: {error}")
                return True
            self.lib.wd_world_start_cut(self.world)
            self.damaged = False  # this start may have taken it out of force already
            self.outcome.ends.append("start_cut")
            return False
        finally:
            core.close()
            if log is not None:
                log.close()

    def _core(self):
        plan = self.plan
        return Core(
            CoreOptions(
                jobs_max=4096,
                conns_max=64,
                maxmemory_bytes=64 << 20,
                seed=plan.salt_seed,
                store=self.uuid,
                commit=Commit(plan.commit_mode),
                sync=Sync(plan.fsync_mode),
                gather_us=0,
                sockets=False,
                hand_clock=True,
            )
        )

    def _start(self, core):
        """Recover the store into the core, as the server does; None: a violation."""
        plan = self.plan
        boot_id = bytes(plan.boot_id)
        store = open_store(
            DATA,
            disk=self.disk,
            fsync=FsyncMode(plan.fsync_mode),
            wall_ms=plan.wall_ms,
            new_uuid=self.uuid,
            segment_bytes=plan.segment_bytes,
        )
        try:
            for piece in store.load():
                if piece.data is not None:
                    core.load(piece.data)
            for chunk in store.replay():
                core.replay(chunk.data, term=chunk.term)
        except CoreError as error:
            self._violate(f"replay: {error}")
            return None
        rel_ms = rel_now_ms(
            store.last_times, wall_ms=plan.wall_ms, boot_ms=plan.boot_ms, boot_id=boot_id
        )
        log = store.start(
            wall_ms=plan.wall_ms,
            rel_minus_boot_ms=rel_ms - plan.boot_ms,
            boot_id=boot_id,
            salt_seed=plan.salt_seed,
        )
        core.attach_log(log.handle) if plan.commit_mode != Commit.DRIVEN else None
        core.start(
            term=log.term,
            rel_ms=rel_ms,
            clocks=Clocks(wall_ms=plan.wall_ms, boot_ms=plan.boot_ms, mono_ms=plan.mono_ms),
        )
        settled = self.lib.wd_world_is_settled(self.world)
        if self.before is not None and settled and core.state_hash() != self.before:
            self._violate("hash: the replay gives another state than was in memory")
        self.before = None
        self.outcome.fallen += bool(store.fallen)
        if self.damaged and not store.fallen:
            self._violate("fallen: a damaged checkpoint was taken for a whole one")
        self.damaged = False
        last_lsn = store.verdict.next_lsn - 1
        if self.lib.wd_world_recovered(self.world, last_lsn, rel_ms) or (broken := core.check()):
            if not self.ffi.string(self.lib.wd_world_violation(self.world)):
                self._violate(f"check: invariant {broken} after the start")
            log.close()
            return None
        return log

    def _serve(self, core, log):
        handle = self.ffi.cast("wd_core *", int(core_ffi.cast("uintptr_t", core._core)))
        wal = self.ffi.cast("wd_log *", int(core_ffi.cast("uintptr_t", log.handle)))
        self._maybe(log.checkpoints.trim)
        end = self.ENDS[self.lib.wd_world_run(self.world, handle, wal)]
        while end == "asks":
            self._save(core, log)
            end = self.ENDS[self.lib.wd_world_run(self.world, self.ffi.NULL, self.ffi.NULL)]
        self.outcome.ends.append(end)
        if self.lib.wd_world_is_settled(self.world) and end in ("killed", "stopped"):
            self.before = core.state_hash()
        self._damage(log)
        return end in ("done", "violation")

    # ---- checkpoints ----

    def _draw(self, n):
        return self.lib.wd_world_draw(self.world) % n

    @staticmethod
    def _maybe(call):
        """Do what may fail without harm."""
        with suppress(OSError, WalError):
            call()

    def _save(self, core, log):
        """Begin a checkpoint, or put in force the one that is being made if it is whole."""
        state = core.checkpoint_state()
        if state.phase == CheckpointPhase.IDLE:
            with suppress(CoreError):
                core.checkpoint_start(
                    log.checkpoints.temporary_path(),
                    salt=self._draw(1 << 32),
                    io=self.disk.io,
                    threaded=False,
                    slice_things=1 + self._draw(40),
                )
                self.lib.wd_world_set_saving(self.world, 1)
            return
        if state.phase == CheckpointPhase.DONE:
            self._maybe(lambda: self._publish(log, state))
        if state.phase in (CheckpointPhase.DONE, CheckpointPhase.FAILED):
            core.checkpoint_abort()
            self.lib.wd_world_set_saving(self.world, 0)

    def _publish(self, log, state):
        if self._draw(4) == 0 and not self.plan.quiet:
            self.disk.power_off_after(1 + self._draw(20))
            self.lib.wd_world_ends_by_cut(self.world)
        log.sync()
        if log.stats().synced_lsn < state.end_lsn:
            return
        made = Made(
            start_lsn=state.start_lsn,
            end_lsn=state.end_lsn,
            size_bytes=state.size_bytes,
            digest=state.crc,
            rows=state.jobs,
        )
        log.checkpoints.publish(made, keep=1 + self._draw(2), wall_ms=self.plan.wall_ms)
        self.outcome.published += 1
        log.checkpoints.drop()

    def _damage(self, log):
        """Damage the newest checkpoint now and then, where another one makes up for it."""
        manifest = log.checkpoints.manifest
        spare = len(manifest.checkpoints) > 1 or manifest.oldest_lsn == 1
        if not manifest.checkpoints or not spare or self.outcome.ends[-1] != "killed":
            return
        path = f"{log.checkpoints.folder}/{manifest.checkpoints[-1].name}"
        if self._draw(3) == 0:
            self.disk.flip(path, self._draw(8 * manifest.checkpoints[-1].size_bytes))
            self.damaged = True


def run_seed(seed):
    """Return the outcome of a seed."""
    return World(seed).run()


if __name__ == "__main__":
    for outcome in map(run_seed, map(int, sys.argv[1:])):
        print(outcome)
