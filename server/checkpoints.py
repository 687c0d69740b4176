"""When a checkpoint is made, by whom, and what becomes of it.

The core writes it beside its work, slice by slice (csrc/wd_checkpoint.c); this file says when,
and puts what was written in force on a thread of its own, so that no client waits for a file. A
checkpoint that comes to nothing is an alarm and no more: the log still has everything, and goes on.

It is due when the log behind the last one has grown beyond the larger of a fixed size and 0.75 of
that one's size, which bounds the disk by a multiple of what is live; or when the log has come to
lie in very many files, as it does when a small store is started again and again.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from structlog.typing import FilteringBoundLogger

from server.clock import Clock
from server.info import Section
from server.mend import Mender
from wal.checkpoint import Checkpoints, Dropped, Made
from wal.errors import WalError
from wal.facts import LogStats
from wal.manifest import Checkpoint, Manifest
from wheel.engine.facts import CheckpointPhase, CheckpointState
from wheel.errors import CoreError

GROWTH: Final = 0.75  # of the last checkpoint's size: then the next one is due
SEGMENTS_SPARE: Final = 64  # files that the log may take beyond those that its size asks for
ROOM: Final = 1.2  # times the last checkpoint's size must be free, or none is begun
LOOK_S: Final = 1.0
MOVED_NS: Final = 20_000_000  # while the log moves it is looked at so often
RATE_BYTES: Final = 200_000_000  # a second: commits beside it wait no longer than without
STEP_S: Final = 0.01  # while one is being made
AGAIN_NS: Final = 60_000_000_000  # after a failure, or for lack of room
HOLDS_MAX: Final = 16
MENDS_MAX: Final = 1000  # payloads put back for one checkpoint: more is no memory to go on with

T = TypeVar("T")


class CheckpointFailedError(Exception):
    """A checkpoint that was asked for did not come to be; the text says why.

    Attributes:
        code: first word of the error reply.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Core(Protocol):
    """What this file needs of the C core."""

    def lsn(self) -> int:
        """Return the lsn of the newest record."""
        ...

    def checkpoint_start(self, path: str, *, salt: int, rate_bytes: int) -> None:
        """Begin to write a checkpoint to path."""
        ...

    def checkpoint_state(self) -> CheckpointState:
        """Return how far it is."""
        ...

    def checkpoint_abort(self) -> None:
        """Stop writing it and delete the file; forget one that is over."""
        ...

    def checkpoint_go_on(self) -> None:
        """Let one that stands at a payload that changed look at it again."""
        ...


class Log(Protocol):
    """What this file needs of the log: wal.log.FileLog."""

    checkpoints: Checkpoints

    def sync(self) -> None:
        """Sync what is not synced."""
        ...

    def stats(self) -> LogStats:
        """Return the figures."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The numbers that decide.

    Attributes:
        keep: generations to keep.
        log_bytes_min: a log behind the last checkpoint that is shorter than this is left alone.
        segment_bytes: size of a file of the log.
    """

    keep: int
    log_bytes_min: int
    segment_bytes: int

    def next_at_bytes(self, last: Checkpoint | None) -> int:
        """Return the length of the log behind the last checkpoint at which the next is due."""
        return max(self.log_bytes_min, int(GROWTH * last.size_bytes) if last else 0)

    def is_due(self, last: Checkpoint | None, *, log_bytes: int, segments: int) -> bool:
        """Return whether to make one.

        Args:
            last: the one in force.
            log_bytes: in the log behind it.
            segments: files that the log behind it lies in.
        """
        limit = self.next_at_bytes(last)
        return log_bytes > limit or segments > SEGMENTS_SPARE + 2 * (limit // self.segment_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A file that does not verify: a checkpoint by its start lsn, or a segment by its number."""

    start_lsn: int = 0
    seq: int = 0

    def in_force(self, manifest: Manifest) -> bool:
        """Return whether a start may still need it."""
        if self.seq:
            return self.seq >= manifest.oldest_seq
        return any(one.start_lsn == self.start_lsn for one in manifest.checkpoints)


@dataclass(slots=True, kw_only=True)
class _Figures:
    """For INFO."""

    made: int = 0
    failures: int = 0
    last_error: str = ""
    skipped: str = ""
    took_ms: int = 0
    slice_max_us: int = 0
    dropped_bytes: int = 0


class Checkpointer:
    """Makes the checkpoints of one server. Its calls belong to the loop's thread."""

    def __init__(
        self,
        *,
        core: Core,
        log: Log,
        policy: Policy,
        clock: Clock,
        logger: FilteringBoundLogger,
        mender: Mender,
        is_connected: Callable[[int], bool],
        replayed_bytes: int = 0,
        fallen: int = 0,
    ) -> None:
        """Make it; ``run`` does the work.

        Args:
            core: writes the file.
            log: the store's, open.
            policy: when and how many.
            clock: for times.
            logger: for what was made, and for alarms.
            mender: puts payloads back that changed in memory.
            is_connected: whether the connection of this handle is still there.
            replayed_bytes: of the log, read at the start behind the last checkpoint.
            fallen: checkpoints that did not verify at the start: an alarm in INFO.
        """
        self._core = core
        self._wal = log
        self._files = log.checkpoints
        self._policy = policy
        self._clock = clock
        self._log = logger
        self._mender = mender
        self._is_connected = is_connected
        self._fallen = fallen
        self._behind_bytes = -replayed_bytes  # log.stats().bytes when the last one began
        self._waiting: list[asyncio.Future[Checkpoint]] = []
        self._wake = asyncio.Event()
        self._holds: set[int] = set()
        self._busy = ""
        self._damaged: frozenset[Damaged] = frozenset()
        self._corrupt, self._seeks = 0, False  # grants that found a changed payload; look for them
        self._dirty = True  # files may lie there that are not needed
        self._not_before_ns = self._looked_ns = 0
        self._end, self._over = asyncio.Event(), asyncio.Event()
        self._figures = _Figures()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wheeld-checkpoints")

    # ---------------------------------------------------------------- for commands

    @property
    def newest(self) -> Checkpoint | None:
        """The checkpoint that a start would begin with."""
        return self._files.newest

    @property
    def synced_lsn(self) -> int:
        """The highest lsn of the log that a sync covers."""
        return self._wal.stats().synced_lsn

    def moved(self) -> None:
        """Tell that the log has new records. Cheap, to be called each round."""
        now_ns = self._clock.mono_ns()
        if now_ns - self._looked_ns >= MOVED_NS:
            self._looked_ns = now_ns
            if not self._busy and self._is_due():
                self._wake.set()

    def save(self) -> asyncio.Future[Checkpoint]:
        """Return what becomes the checkpoint that covers everything up to now.

        One that is being made began earlier, so whoever asks meanwhile waits for the next, all of
        them for the same. It ends with CheckpointFailedError when there is none.
        """
        future: asyncio.Future[Checkpoint] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wake.set()
        return future

    def heal(self, damaged: Damaged) -> None:
        """Take a damaged file out of force, by a checkpoint of what is in memory.

        No generation is kept behind that one: they need the file, or are older than it. Where the
        newest checkpoint is damaged and nothing has changed since, it waits until something does:
        a checkpoint has the name of its lsn, and what MANIFEST names is never overwritten.
        """
        self._damaged |= {damaged}
        self._wake.set()

    def seek(self, corrupt: int) -> None:
        """Make a checkpoint when a grant has found a payload changed: it puts back all there are.

        Args:
            corrupt: how many grants did, so far.
        """
        if corrupt > self._corrupt:
            self._corrupt, self._seeks = corrupt, True
            self._wake.set()

    @property
    def mended(self) -> int:
        """How many payloads that had changed in memory were put back."""
        return self._mender.mended

    def hold(self, handle: int) -> bool:
        """Delete no file as long as this connection lives; False when too many hold already."""
        self._prune()
        if len(self._holds) >= HOLDS_MAX and handle not in self._holds:
            return False
        self._holds.add(handle)
        return True

    def release(self, handle: int) -> bool:
        """End a hold; False when there is none."""
        found = handle in self._holds
        self._holds.discard(handle)
        self._wake.set()
        return found

    def _prune(self) -> None:
        self._holds = {handle for handle in self._holds if self._is_connected(handle)}

    def section(self) -> Section:
        """Return INFO's section."""
        self._prune()
        last, figures = self._files.newest, self._figures
        age_ms = max(0, self._clock.wall_ms() - last.wall_ms) if last else 0
        return {
            "checkpoint_state": self._busy or "idle",
            "checkpoint_alarm": self._alarm(),
            "checkpoint_lsn": last.start_lsn if last else 0,
            "checkpoint_end_lsn": last.end_lsn if last else 0,
            "checkpoint_size_bytes": last.size_bytes if last else 0,
            "checkpoint_jobs": last.rows if last else 0,
            "checkpoint_age_s": age_ms // 1000,
            "checkpoint_generations": len(self._files.manifest.checkpoints),
            "checkpoint_made": figures.made,
            "checkpoint_took_ms": figures.took_ms,
            "checkpoint_slice_max_us": figures.slice_max_us,
            "checkpoint_failures": figures.failures,
            "checkpoint_last_error": figures.last_error,
            "checkpoint_skipped": figures.skipped,
            "checkpoint_fallen": self._fallen,
            "checkpoint_log_bytes": self._log_bytes(),
            "checkpoint_next_at_bytes": self._policy.next_at_bytes(last),
            "checkpoint_holds": len(self._holds),
            "checkpoint_dropped_bytes": figures.dropped_bytes,
        }

    def _alarm(self) -> str:
        """Return what somebody has to look at, in one word; empty = nothing."""
        if self._fallen:
            return "damaged"
        if self._figures.skipped:
            return "skipped"
        return "failed" if self._figures.last_error else ""

    def _log_bytes(self) -> int:
        return self._wal.stats().bytes - self._behind_bytes

    # ---------------------------------------------------------------- the work

    async def run(self) -> None:
        """Make what is due and what is asked for, until ``stop``."""
        try:
            await self._run()
        finally:
            self._over.set()

    async def _run(self) -> None:
        await self._tidy(self._files.trim)
        while not self._end.is_set():
            if self._waiting or self._is_due():
                await self._make()
            if self._dirty and not self._held() and not self._end.is_set():
                await self._drop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LOOK_S)
            self._wake.clear()

    async def stop(self) -> None:
        """Give up what is being made, and wait until ``run`` has ended and touches no file."""
        self._end.set()
        self._wake.set()
        self._mender.stop()
        self._core.checkpoint_abort()
        await self._over.wait()
        self._thread.shutdown()
        for future in self._taken():
            self._refuse(future, CheckpointFailedError("TRYAGAIN", "the server stops"))

    def _held(self) -> bool:
        self._prune()
        return bool(self._holds)

    def _taken(self) -> list[asyncio.Future[Checkpoint]]:
        waiting, self._waiting = self._waiting, []
        return waiting

    @staticmethod
    def _refuse(future: asyncio.Future[Checkpoint], error: CheckpointFailedError) -> None:
        if not future.done():
            future.set_exception(error)

    def _is_due(self) -> bool:
        if self._clock.mono_ns() < self._not_before_ns:
            return False
        last = self._files.newest
        if self._seeks or self._can_heal(last):
            return True
        first = last.seq if last else self._files.manifest.oldest_seq
        return self._policy.is_due(
            last, log_bytes=self._log_bytes(), segments=self._wal.stats().seq - first
        )

    def _is_damaged(self) -> bool:
        manifest = self._files.manifest
        self._damaged = frozenset(one for one in self._damaged if one.in_force(manifest))
        return bool(self._damaged)

    def _can_heal(self, last: Checkpoint | None) -> bool:
        """Return whether something in force is damaged, and a checkpoint now would help."""
        if not self._is_damaged():
            return False
        if last is None or last.start_lsn != self._core.lsn():
            return self._core.lsn() > 0
        whole = Damaged(start_lsn=last.start_lsn) not in self._damaged
        return whole and self._files.manifest.oldest_lsn != last.start_lsn + 1

    def _say_healed(self) -> None:
        """Tell, behind a checkpoint, that nothing that is damaged is in force any more."""
        if self._damaged and not self._is_damaged():
            self._log.info("scrub_healed", hint="a new checkpoint took what was damaged out of use")

    async def _make(self) -> None:
        """Make one for all who wait at this moment."""
        waiting = self._taken()
        try:
            checkpoint = await self._make_one(asked=bool(waiting))
        except CheckpointFailedError as error:
            self._not_before_ns = self._clock.mono_ns() + AGAIN_NS
            for future in waiting:
                self._refuse(future, error)
        else:
            for future in waiting:
                if not future.done():
                    future.set_result(checkpoint)
        finally:
            self._busy = ""

    async def _make_one(self, *, asked: bool) -> Checkpoint:
        last = self._files.newest
        if last is not None and last.start_lsn == self._core.lsn():
            self._seeks = False  # it came by all payloads, behind the grant that found one
            return await self._covered(last)
        await self._make_room(last)
        self._busy, self._seeks = "writing", False
        begin_ns, begin_bytes = self._clock.mono_ns(), self._wal.stats().bytes
        state = await self._write()
        self._busy = "publishing"
        made = Made(
            start_lsn=state.start_lsn,
            end_lsn=state.end_lsn,
            size_bytes=state.size_bytes,
            digest=state.crc,
            rows=state.jobs,
        )
        try:
            checkpoint = await self._in_thread(partial(self._publish, made))
        except (OSError, WalError) as error:
            self._core.checkpoint_abort()
            raise self._failed(str(error)) from error
        self._core.checkpoint_abort()
        self._behind_bytes, self._dirty = begin_bytes, True
        figures = self._figures
        figures.made += 1
        figures.last_error = figures.skipped = ""
        figures.took_ms = (self._clock.mono_ns() - begin_ns) // 1_000_000
        figures.slice_max_us = max(figures.slice_max_us, state.slice_ns_max // 1000)
        self._log.info(
            "checkpoint_made",
            lsn=checkpoint.start_lsn,
            end_lsn=checkpoint.end_lsn,
            jobs=checkpoint.rows,
            size_bytes=checkpoint.size_bytes,
            took_s=round(figures.took_ms / 1000, 3),
            slice_max_us=state.slice_ns_max // 1000,
            asked=asked,
        )
        self._say_healed()
        return checkpoint

    async def _covered(self, last: Checkpoint) -> Checkpoint:
        """Return the newest checkpoint, which covers everything already, if it is whole."""
        if self._is_damaged():
            if Damaged(start_lsn=last.start_lsn) in self._damaged:
                raise CheckpointFailedError(
                    "TRYAGAIN",
                    "the newest checkpoint is damaged, and nothing has changed since it was made:"
                    " another one is made when something does",
                )
            shrink = partial(self._files.shrink, wall_ms=self._clock.wall_ms())
            try:
                await self._in_thread(shrink)
            except (OSError, WalError) as error:
                raise self._failed(str(error)) from error
            self._dirty = True
            self._say_healed()
        return last

    async def _make_room(self, last: Checkpoint | None) -> None:
        """Refuse to begin when the disk has no room for it; give up a generation before that."""
        if last is None:
            return
        need = int(ROOM * last.size_bytes)
        free = self._files.free_bytes()
        if free < need and not self._held():
            await self._tidy(self._shrink)
            free = self._files.free_bytes()
        if free >= need:
            self._figures.skipped = ""
            return
        reason = f"{free} bytes are free, and a checkpoint takes {need}"
        if not self._figures.skipped:
            self._log.error(
                "checkpoint_skipped",
                free_bytes=free,
                need_bytes=need,
                hint="make room where the data directory lies: the log grows until then",
            )
        self._figures.skipped = reason
        raise CheckpointFailedError("DISKFULL", reason)

    async def _write(self) -> CheckpointState:
        """Let the core write the file; return when it is complete, verified, and in the log."""
        path = self._files.temporary_path()
        salt = int.from_bytes(self._clock.entropy(4), "little")
        try:
            self._core.checkpoint_start(path, salt=salt, rate_bytes=RATE_BYTES)
        except CoreError as error:
            raise self._failed(str(error)) from error
        mended: set[int] = set()
        while True:
            state = self._core.checkpoint_state()
            if state.corrupt_id:
                await self._mend(state.corrupt_id, mended)
            if state.phase == CheckpointPhase.DONE:
                return state
            if state.phase == CheckpointPhase.FAILED:
                self._core.checkpoint_abort()
                why = os.strerror(state.error) if state.error else "it reads back differently"
                raise self._failed(f"{state.call}: {why}")
            if self._end.is_set() or state.phase == CheckpointPhase.IDLE:
                raise CheckpointFailedError("TRYAGAIN", "the server stops")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), STEP_S)

    async def _mend(self, job: int, mended: set[int]) -> None:
        """Put the payload back that the checkpoint stands at, or give the checkpoint up.

        It passes a job once: one that it stands at again is in memory that keeps nothing.
        """
        again = job in mended or len(mended) == MENDS_MAX
        mended.add(job)
        if again or not await self._mender.mend(job, self._in_thread):
            self._core.checkpoint_abort()
            raise self._failed(
                f"the payload of job {job} changed in memory (bad RAM?) and could not be put back:"
                " restart, which reads all of them from the disk again"
            )
        self._core.checkpoint_go_on()

    def _failed(self, reason: str) -> CheckpointFailedError:
        """Note a failure, and return it as an error."""
        if self._end.is_set():
            return CheckpointFailedError("TRYAGAIN", "the server stops")
        self._figures.failures += 1
        self._figures.last_error = reason
        self._log.error(
            "checkpoint_failed",
            error=reason,
            hint="nothing is lost, the log has everything; it is tried again in a minute",
        )
        return CheckpointFailedError("ERR", f"the checkpoint failed: {reason}")

    # ---------------------------------------------------------------- on the other thread

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _publish(self, made: Made) -> Checkpoint:
        """Put it in force, when the log is on the disk up to its end."""
        self._wal.sync()
        synced_lsn = self._wal.stats().synced_lsn
        if synced_lsn < made.end_lsn:
            raise WalError(f"the log is synced up to lsn {synced_lsn} only, not {made.end_lsn}")
        keep = self._policy.keep
        if self._damaged or self._files.free_bytes() < made.size_bytes:
            keep = 1
        return self._files.publish(made, keep=keep, wall_ms=self._clock.wall_ms())

    def _shrink(self) -> None:
        """Give up all generations but the newest."""
        self._files.shrink(wall_ms=self._clock.wall_ms())
        self._files.drop()

    async def _drop(self) -> None:
        self._dirty = False
        dropped = await self._tidy(self._files.drop)
        if isinstance(dropped, Dropped) and dropped.names:
            self._figures.dropped_bytes += dropped.size_bytes
            self._log.info("files_dropped", files=len(dropped.names), size_bytes=dropped.size_bytes)

    async def _tidy(self, call: Callable[[], object]) -> object:
        """Run something that may fail without harm; say so when it does."""
        try:
            return await self._in_thread(call)
        except (OSError, WalError) as error:
            self._figures.last_error = str(error)
            self._log.error("checkpoint_files_failed", error=str(error))
            return None
