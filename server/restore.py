"""Restore: a store made of a backup, which can never be taken for the one that was lost.

The lost store went on after the backup was made, and workers and clients still hold what it gave
them: receipts and ids. The restored one has the same name (so that tokens and keys mean the same),
and must not give any of these out again for something else. So its terms begin 2^16 above the
highest that the backup knows of, which makes each receipt from the lost store's future one that was
never issued here; and each job slot's generation begins 2^16 above the highest in the backup, which
does the same for ids. The second is a record in the log like any other, written by a short life of
the engine without a network; that life reads the whole backup as every start does, and is its test.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from server.clock import Clock
from server.replay import rel_now_ms
from server.settings import JOBS_MAX
from wal import frame
from wal.backup import Backup, BackupError, adopt, read_backup, unpack_backup
from wal.disk import Disk
from wal.errors import WalError
from wal.frame import FsyncMode
from wal.log import FileLog, Store, open_store
from wal.reader import Chunk, Reader
from wal.segment import list_segments, needed
from wheel.engine.core import Commit, Core, CoreOptions
from wheel.engine.facts import Clocks
from wheel.engine.records import Kind, State, decode

TERMS_RAISED: Final = 1 << 16
GENERATIONS_RAISED: Final = 1 << 16
GENERATION_MAX: Final = (1 << 25) - 1
EXAMPLES_MAX: Final = 20
MEMORY_BYTES_MAX: Final = 1 << 50  # what a server could hold, this one can


class TargetError(WalError):
    """The folder to make a store in has something in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was made.

    Attributes:
        backup: what it was made of.
        term: of the store's first life; the next server's is higher.
        generation_floor: no job gets a generation below it.
        jobs: that it holds, dead ones included.
        lsn: of its last record.
    """

    backup: Backup
    term: int
    generation_floor: int
    jobs: int
    lsn: int


@dataclass(slots=True, kw_only=True)
class After:
    """What the lost store did after the backup: counts, and the first ids of each.

    Attributes:
        last_lsn: up to which its log could be read.
        ended: jobs that were finished there and are live again: they will run again.
        cancelled: jobs that were cancelled or expired there and are live again.
        made: jobs that were made there and are gone.
        granted: leases that were given there; their receipts are refused.
        stopped: why reading ended before the log did; empty = it did not.
    """

    last_lsn: int
    ended: int = 0
    cancelled: int = 0
    made: int = 0
    granted: int = 0
    stopped: str = ""
    ended_ids: list[int] = field(default_factory=list[int])
    cancelled_ids: list[int] = field(default_factory=list[int])
    made_ids: list[int] = field(default_factory=list[int])


def restore(disk: Disk, path: str, target: str, *, clock: Clock) -> Restored:
    """Make a store in the folder target out of the backup in the file path.

    Args:
        disk: where both lie.
        path: the backup, absolute.
        target: absolute; made when it is not there, else it must be empty.
        clock: for times and randomness.

    Raises:
        TargetError: target is not empty.
        BackupError: the backup is none or damaged.
        WalError: what is in it does not make a store.
        CoreError: the engine cannot apply it.
        OSError: a file call failed.
    """
    names: list[str] = []
    with suppress(FileNotFoundError):
        names = disk.names(target)
        if names:
            raise TargetError(f"{target} is not empty: name an empty folder, or a new one")
    read_backup(disk, path)  # whole, before anything is made of it
    if not names:
        with suppress(FileExistsError):
            disk.make_folder(target)
            disk.dirsync(target.rpartition("/")[0] or "/")
    backup = unpack_backup(disk, path, target)
    floor = backup.term + TERMS_RAISED
    adopt(disk, target, backup, term_floor=floor, wall_ms=clock.wall_ms())
    store = open_store(
        target,
        disk=disk,
        fsync=FsyncMode.ALWAYS,
        wall_ms=clock.wall_ms(),
        new_uuid=clock.entropy(16),
    )
    closing: Store | FileLog = store
    try:
        with Core(_options(store.uuid)) as core:
            _read(core, store)
            if store.verdict.next_lsn != backup.lsn + 1:
                raise BackupError(
                    f"{path} says that it ends at lsn {backup.lsn}, and its log ends at"
                    f" {store.verdict.next_lsn - 1}"
                )
            closing = log = _start(core, store, clock)
            generation_floor = min(core.generation_max() + GENERATIONS_RAISED, GENERATION_MAX)
            core.raise_generations(generation_floor)
            core.commit()
            jobs = sum(
                count for name, count in core.engine_figures().items() if name.startswith("jobs_")
            )
        log.sync()
        log.mark(clean=True)
        lsn = log.stats().synced_lsn
    finally:
        closing.close()
    return Restored(
        backup=backup, term=log.term, generation_floor=generation_floor, jobs=jobs, lsn=lsn
    )


def _options(store: bytes) -> CoreOptions:
    return CoreOptions(
        jobs_max=JOBS_MAX,
        conns_max=1,
        maxmemory_bytes=MEMORY_BYTES_MAX,
        store=store,
        commit=Commit.INLINE,
        sockets=False,
    )


def _read(core: Core, store: Store) -> None:
    for piece in store.load():
        if piece.data is not None:
            core.load(piece.data)
    for chunk in store.replay():
        core.replay(chunk.data, term=chunk.term)


def _start(core: Core, store: Store, clock: Clock) -> FileLog:
    clocks = Clocks(wall_ms=clock.wall_ms(), boot_ms=clock.boot_ms(), mono_ms=clock.mono_ms())
    boot_id = clock.boot_id()
    rel_ms = rel_now_ms(
        store.last_times, wall_ms=clocks.wall_ms, boot_ms=clocks.boot_ms, boot_id=boot_id
    )
    log = store.start(
        wall_ms=clocks.wall_ms,
        rel_minus_boot_ms=rel_ms - clocks.boot_ms,
        boot_id=boot_id,
        salt_seed=int.from_bytes(clock.entropy(4), "little"),
    )
    core.attach_log(log.handle)
    core.start(term=log.term, rel_ms=rel_ms, clocks=clocks)
    return log


# ---- what was lost ----


def what_came_after(disk: Disk, old: str, backup: Backup) -> After:
    """Return what the lost store did after the backup, as far as its log can still be read.

    Args:
        disk: where it lies.
        old: the lost store's data directory, or a copy of its wal/.
        backup: where the comparison begins.

    Raises:
        BackupError: it is another store's, or its log no longer reaches back to the backup.
        OSError: a file call failed.
    """
    after = After(last_lsn=backup.lsn)
    try:
        segments = needed(list_segments(disk, f"{old}/wal").segments, backup.lsn + 1)
    except WalError as error:
        raise BackupError(f"{old} does not reach back to the backup: {error}") from error
    reader = Reader(disk, segments, uuid=bytes.fromhex(backup.store), settle=False)
    made: set[int] = set()
    try:
        for chunk in reader.chunks():
            _count(chunk, backup.lsn, made, after)
    except WalError as error:
        after.stopped = str(error)
    if reader.damage is not None:
        after.stopped = reader.damage.detail
    after.last_lsn = max(after.last_lsn, reader.next_lsn - 1)
    return after


def _count(chunk: Chunk, lsn: int, made: set[int], after: After) -> None:
    for kind, job, reason in _records(chunk, lsn):
        if kind == Kind.CREATED:
            made.add(job)
            after.made += 1
            _example(after.made_ids, job)
        elif kind == Kind.LEASED:
            after.granted += 1
        elif kind == Kind.ENDED and job not in made:
            if reason == State.SUCCEEDED:
                after.ended += 1
                _example(after.ended_ids, job)
            else:
                after.cancelled += 1
                _example(after.cancelled_ids, job)


def _records(chunk: Chunk, lsn: int) -> Iterator[tuple[int, int, int]]:
    """Yield (kind, job, reason) of each record behind lsn."""
    for one in frame.split_frames(chunk.data, 1):
        found = frame.find(one, salt=None)
        if found is None or found.header.last_lsn <= lsn:
            continue
        end = frame.FRAME_HEADER_BYTES + found.header.payload_bytes
        payload = one[frame.FRAME_HEADER_BYTES : end]
        for number, record in enumerate(decode(payload), found.header.first_lsn):
            if number > lsn:
                yield record.kind, record.id or 0, record.reason or 0


def _example(ids: list[int], job: int) -> None:
    if len(ids) < EXAMPLES_MAX:
        ids.append(job)
