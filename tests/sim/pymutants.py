"""Faults of the Python side of recovery, as replacements of one function each.

tests/sim/test_mutants.py demands that the simulation finds every one of them.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from wal.generations import CheckpointFile
from wal.recover import Ending, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One fault: `target` ("module:name" or "module:Class.name") becomes make(what it was)."""

    name: str
    target: str
    make: Callable[[Any], Any]

    def place(self) -> tuple[Any, str]:
        """Return what owns the target, and its name there.

        Raises:
            AttributeError: it is not there any more, and a fault that cannot be put in is no fault
                that was noticed.
        """
        module, _, path = self.target.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        getattr(owner, name)
        return owner, name

    def apply(self) -> None:
        """Put the fault in, for the rest of this process."""
        owner, name = self.place()
        setattr(owner, name, self.make(getattr(owner, name)))


def nothing(_original):
    return lambda *_args, **_options: None


def unsettled(reader):
    return lambda *args, **options: reader(*args, **{**options, "settle": False})


def blind(judge):
    return lambda reader, mark, **facts: judge(reader, replace(mark, lsn=0), **facts)


def same_term(judge):
    def judged(*args, **options):
        verdict, plan = judge(*args, **options)
        return replace(verdict, term=max(1, verdict.term - 1)), plan

    return judged


def all_torn(_judge):
    """Whatever is damaged: cut it off and go on."""

    def judged(case, verdict):
        damage = case._damage
        path = case._reader.segments[damage.index].path
        last = case._reader.segments[-1]
        plan = Plan(next_seq=last.seq + 1, clear=(path, damage.offset))
        return replace(verdict, ending=Ending.TORN), plan

    return judged


def without_moves(carry_out):
    return lambda disk, path, plan: carry_out(disk, path, replace(plan, move=()))


def same_seq(next_seq):
    return lambda reader: max(1, next_seq(reader) - 1)


def everything_goes(_needed):
    """Of all segments, only the last is needed."""
    return lambda segments, _from_lsn: segments[-1:]


def hasty(publish):
    """The older generations' files go before MANIFEST names the new one."""

    def published(files, made, *, keep, wall_ms):
        files.drop()
        for name in files._disk.names(files.folder):
            if name.endswith(".snap"):
                files._disk.unlink(f"{files.folder}/{name}")
        return publish(files, made, keep=keep, wall_ms=wall_ms)

    return published


def unverified(choose):
    """The newest checkpoint is taken as it is."""

    def chosen(generations):
        for checkpoint in generations._manifest.checkpoints[-1:]:
            path = f"{generations._folder}/{checkpoint.name}"
            disk, uuid = generations._disk, generations._manifest.uuid
            generations.chosen = checkpoint
            generations._file = CheckpointFile(disk, path, checkpoint, uuid)
            yield from ()
            return
        yield from choose(generations)

    return chosen


def times_left_out(next_ms):
    """Every seventh five minutes a rule does not fire."""

    def nexter(rule, after_ms):
        found = next_ms(rule, after_ms)
        return next_ms(rule, found) if found is not None and found // 300_000 % 7 == 0 else found

    return nexter


# What the simulation of a log and its workers has no schedules for: scenarios_history.py.
OF_SCHEDULES = [
    Patch(name="a rule leaves times out", target="wheel.cron:Rule.next_ms", make=times_left_out),
]

PATCHES = [
    Patch(
        name="a checkpoint is not verified before it is loaded",
        target="wal.generations:Generations.choose",
        make=unverified,
    ),
    Patch(
        name="old checkpoints go before the new one is in force",
        target="wal.checkpoint:Checkpoints.publish",
        make=hasty,
    ),
    Patch(
        name="a start reads only the last segment",
        target="wal.generations:needed",
        make=everything_goes,
    ),
    Patch(name="a torn tail is not cleared", target="wal.settle:clear_tail", make=nothing),
    Patch(name="a start does not look at what MARK says", target="wal.log:judge", make=blind),
    Patch(name="a start believes the page cache", target="wal.log:Reader", make=unsettled),
    Patch(name="a restart keeps its term", target="wal.log:judge", make=same_term),
    Patch(name="whatever is damaged is cut off", target="wal.recover:_Case.judge", make=all_torn),
    Patch(
        name="a torn frame is refused",
        target="wal.recover:_Case._torn_shaped",
        make=lambda _original: lambda _case: False,
    ),
    Patch(
        name="segments behind an unsynced tail stay", target="wal.log:carry_out", make=without_moves
    ),
    Patch(name="a start syncs no data", target="tests.simdisk:SimDisk.datasync", make=nothing),
    Patch(name="a start syncs no names", target="tests.simdisk:SimDisk.dirsync", make=nothing),
    Patch(name="a start writes no MARK", target="wal.frame:LogHandle.mark", make=nothing),
    Patch(name="a start writes over a segment", target="wal.recover:_next_seq", make=same_seq),
    Patch(
        name="the rel axis begins anew at a restart",
        target="tests.simworld:rel_now_ms",
        make=lambda _original: lambda _last, *, wall_ms, boot_ms, boot_id: wall_ms,
    ),
]
