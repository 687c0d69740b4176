"""The server as a whole: what is started in which order, what runs, and how it ends.

Start: options and tokens are checked; the data directory is locked; the port opens; the log is
judged and replayed in slices between turns of the loop, so the port answers meanwhile; then the log
is opened for writing and everything is served. The loop watches one descriptor, the core's inner
epoll, and makes one call for a round or some.

Stop: the port closes, waiting LEASE calls are answered empty, what was read is carried out and
answered, the log is synced and marked clean.

The exit status is 0 after an orderly stop, 74 when the log failed (nothing more was confirmed), and
what server/refusals.py says when it did not come to serve.
"""

import asyncio
import contextlib
import errno
import importlib.util
import os
import signal
import traceback
from collections.abc import Callable
from typing import Final

from structlog.typing import FilteringBoundLogger

from server import collector
from server.checkpoints import Checkpointer, Damaged, Policy
from server.clock import Clock
from server.control import Control, Identity
from server.cron_commands import CronCommands
from server.door import Door
from server.keeper import Keeper, Room
from server.mend import Mender
from server.notify import Notifier
from server.planner import Schedules, warm_up
from server.refusals import ERRORS, EXIT_FAILED, EXIT_IO, EXIT_OK, refusal
from server.replay import rel_now_ms, replay
from server.scrub import Scrubber
from server.settings import Fsync, Settings, jobs_max
from server.shown import Shown
from server.state import State
from server.turns import Turns
from server.watch import Watch
from wal.disk import RealDisk
from wal.errors import LogFailedError
from wal.frame import FsyncMode
from wal.log import FileLog, Store, open_store
from wal.recover import Ending, Verdict
from wheel.engine.core import Commit, Core, CoreOptions, DiskRoom, Sync
from wheel.engine.facts import Clocks
from wheel.facade import VERSION

FLUSH_S: Final = 5.0  # at a stop, for clients that do not take their last replies
WATCH_S: Final = 1.0
TIDY_LOOKS: Final = 60  # of the watch: once a minute
PROGRESS_NS: Final = 1_000_000_000


def serve(
    settings: Settings, *, clock: Clock, logger: FilteringBoundLogger, notifier: Notifier
) -> int:
    """Run a server until it is stopped, and return the exit status."""
    factory, name = loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner, notifier:
        daemon = Daemon(settings, clock=clock, logger=logger, loop_name=name, notifier=notifier)
        return runner.run(daemon.run())


def loop_factory() -> tuple[Callable[[], asyncio.AbstractEventLoop], str]:
    """Return what makes the event loop, uvloop's where it is installed, and its name."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop, "asyncio"
    import uvloop  # noqa: PLC0415 -- an optional package

    return uvloop.new_event_loop, "uvloop"


class Daemon:
    """One run of the server.

    Everything runs on the loop's thread but the keeper, the scrubber and what puts checkpoints in
    force; they touch the log and its files alone.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        logger: FilteringBoundLogger,
        loop_name: str,
        notifier: Notifier,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._log = logger
        self._loop_name = loop_name
        self._notify = notifier
        self._started_ns = clock.mono_ns()
        self._stop = asyncio.Event()
        self._reason = ""
        self._door = Door(settings, clock=clock, logger=logger)
        self._turns: Turns | None = None
        self._schedules: Schedules | None = None
        self._control: Control | None = None
        self._wal: FileLog | None = None  # once it is open for writing
        self._failed = False  # the log
        self._faulty = False  # this program

    # ---------------------------------------------------------------- life

    async def run(self) -> int:
        """Start, serve until told to stop, stop; return the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.shut_down, number.name)
        loop.set_exception_handler(self._on_loop_error)
        try:
            return await self._run()
        except ERRORS as error:
            status, fields = refusal(error, self._settings.data)
            self._log.error("start_refused", **fields)
            return status

    # ---------------------------------------------------------------- the way up

    async def _run(self) -> int:
        settings = self._settings
        self._door.prepare()
        store = open_store(
            str(settings.data),
            disk=RealDisk(),
            fsync=FsyncMode(settings.fsync.code),
            wall_ms=self._clock.wall_ms(),
            new_uuid=self._clock.entropy(16),
            segment_bytes=settings.segment_bytes,
            allow_network_fs=settings.allow_network_fs,
        )
        try:
            warm_up()
            self._door.open()
            return await self._run_store(store)
        finally:
            (self._wal or store).close()

    async def _run_store(self, store: Store) -> int:
        """Serve a locked store; closing it is the caller's."""
        with Core(self._core_options(store.uuid)) as core:
            state = State(
                settings=self._settings,
                clock=self._clock,
                core=core,
                store=store.uuid,
                loop_name=self._loop_name,
                listen=self._door.listen,
                port=self._door.port,
                started_ns=self._started_ns,
                listen_tls=self._door.listen_tls,
                sign_in=self._door.attach(core),
            )
            turns = Turns(
                core,
                self._make_control(core, state),
                logger=self._log,
                on_moved=state.log_moved,
                on_failed=self._on_log_failed,
                after_round=self._behind_round,
            )
            self._turns = turns
            state.schedules = self._schedules = Schedules(
                core,
                clock=self._clock,
                logger=self._log,
                strict_handlers=self._settings.strict_handlers,
            )
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._door.reload)
            self._log.info(
                "server_started",
                version=VERSION,
                pid=os.getpid(),
                loop=self._loop_name,
                data=str(self._settings.data),
                fsync=self._settings.fsync.value,
                listen=state.listen,
            )
            turns.start()
            self._door.serve(core, turns.soon)
            state.tls = self._door.tls
            try:
                return await self._run_core(core, turns, store, state)
            finally:
                turns.stop()
                self._door.close(failed=True)

    def _behind_round(self) -> None:
        """Move the bytes of TLS connections, and look at schedules."""
        self._door.after_round()
        schedules, turns = self._schedules, self._turns
        if schedules is not None and turns is not None and schedules.after_round():
            turns.soon()

    def _core_options(self, store: bytes) -> CoreOptions:
        settings = self._settings
        return CoreOptions(
            jobs_max=jobs_max(settings),
            dead_max=settings.dead_max,
            dead_kept_ms=settings.dead_kept_ms,
            conns_max=settings.clients_max,
            maxmemory_bytes=settings.memory_bytes_max,
            payload_bytes_max=settings.payload_bytes_max,
            seed=int.from_bytes(self._clock.entropy(8), "little"),
            store=store,
            strict_handlers=settings.strict_handlers,
            auth_required=self._door.tokens is not None,
            commit=Commit.THREAD,
            sync=Sync(settings.fsync.code),
        )

    def _make_control(self, core: Core, state: State) -> Control:
        assert state.sign_in is not None
        self._control = Control(
            core=core,
            server=Shown(state, self.shut_down),
            identity=Identity(version=VERSION, store=state.store.hex()),
            clock=self._clock,
            sign_in=state.sign_in,
        )
        return self._control

    async def _run_core(self, core: Core, turns: Turns, store: Store, state: State) -> int:
        """Replay, serve, stop."""
        if not await self._replay(core, store, state):
            self._log.info("replay_abandoned", reason=self._reason)
            return EXIT_OK
        log = self._start_log(core, store, state)
        await self._load_schedules(state)
        loop = asyncio.get_running_loop()

        def on_failure() -> None:
            loop.call_soon_threadsafe(self._on_keeper_failed, turns)

        def on_room(room: Room) -> None:
            loop.call_soon_threadsafe(self._on_disk_room, core, turns, DiskRoom(room))

        keeper = Keeper(
            log=log,
            clock=self._clock,
            logger=self._log,
            on_failure=on_failure,
            on_room=on_room,
            syncs=self._settings.fsync is not Fsync.OFF,
        )
        state.keeper = keeper
        keeper.start()
        checkpointer = self._make_checkpointer(core, log, store)
        state.checkpointer = checkpointer
        making = loop.create_task(checkpointer.run())
        making.add_done_callback(self._on_checkpointer_ended)
        scrubber = self._make_scrubber(log, checkpointer)
        state.scrubber = scrubber
        scrubber.start()
        try:
            turns.soon()
            self._say_ready(state)
            await self._serve(state)
            scrubber.stop()
            await checkpointer.stop()
            if not self._failed:
                await self._drain(core, turns)
        finally:
            turns.stop()
            scrubber.stop()
            keeper.stop()
            self._door.close(failed=self._failed)
            await checkpointer.stop()
            await asyncio.wait([making])
            core.close()
        return self._close_log(log)

    def _make_checkpointer(self, core: Core, log: FileLog, store: Store) -> Checkpointer:
        return Checkpointer(
            core=core,
            log=log,
            policy=Policy(
                keep=self._settings.keep_checkpoints,
                log_bytes_min=self._settings.checkpoint_after_bytes,
                segment_bytes=self._settings.segment_bytes,
            ),
            clock=self._clock,
            logger=self._log,
            mender=Mender(
                core=core,
                disk=RealDisk(),
                files=log.checkpoints,
                wal_path=f"{self._settings.data}/wal",
                logger=self._log,
            ),
            is_connected=lambda handle: core.session(handle) is not None,
            replayed_bytes=store.behind_bytes,
            fallen=len(store.fallen),
        )

    def _make_scrubber(self, log: FileLog, checkpointer: Checkpointer) -> Scrubber:
        loop = asyncio.get_running_loop()

        def on_damage(damaged: Damaged) -> None:
            loop.call_soon_threadsafe(checkpointer.heal, damaged)

        return Scrubber(
            disk=RealDisk(),
            log=log,
            files=log.checkpoints,
            wal_path=f"{self._settings.data}/wal",
            rate_bytes=self._settings.scrub_bytes,
            clock=self._clock,
            logger=self._log,
            on_damage=on_damage,
        )

    def _on_checkpointer_ended(self, task: asyncio.Task[None]) -> None:
        """Stop, in order, should it have ended by a fault."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_loop_error(
                asyncio.get_running_loop(), {"exception": error, "message": "checkpoints"}
            )

    async def _replay(self, core: Core, store: Store, state: State) -> bool:
        """Read checkpoint and log back; False when the server is to stop instead."""
        begin_ns = said_ns = self._clock.mono_ns()
        progress = state.progress

        def on_slice() -> bool:
            nonlocal said_ns
            if self._clock.mono_ns() - said_ns >= PROGRESS_NS:
                said_ns = self._clock.mono_ns()
                self._notify.starting(f"replaying the log, {progress.percent} %")
                self._log.info(
                    "replay_progressed",
                    phase=progress.phase,
                    percent=progress.percent,
                    records=progress.records,
                    done_bytes=progress.bytes_done,
                    total_bytes=progress.bytes_total,
                )
            return not self._stop.is_set()

        if not await replay(core, store, clock=self._clock, progress=progress, on_slice=on_slice):
            return False
        verdict = store.verdict
        for fallen in store.fallen:
            self._log.error(
                "checkpoint_damaged",
                file=fallen.path,
                offset_bytes=fallen.offset,
                error=fallen.detail,
                hint="an older checkpoint and the log made up for it; the file is kept as *.broken:"
                " see to the disk",
            )
        checkpoint = store.checkpoint
        self._log.info(
            "replay_finished",
            checkpoint_lsn=checkpoint.start_lsn if checkpoint else None,
            checkpoint_bytes=progress.checkpoint_bytes,
            segments=verdict.segments,
            records=verdict.records,
            bytes=verdict.bytes,
            jobs=state.jobs(),
            after_clean_stop=verdict.after_clean_stop,
            took_s=self._seconds_since(begin_ns),
        )
        self._say_verdict(verdict)
        return True

    def _say_verdict(self, verdict: Verdict) -> None:
        """Tell what the end of the log looked like, if it was not simply its end."""
        if verdict.ending is Ending.TORN:
            self._log.warning(
                "torn_frame_cleared",
                file=verdict.path,
                offset_bytes=verdict.offset,
                hint="the write that a crash interrupted; nobody had been told that it was done",
            )
        elif verdict.ending is Ending.CUT:
            self._log.error(
                "unsynced_tail_cut",
                file=verdict.path,
                offset_bytes=verdict.offset,
                records=verdict.cut_records,
                hint="records that --fsync interval or off had not synced before a power cut;"
                " the files *.cut hold them",
            )
        if verdict.damaged_mark_slots:
            self._log.warning("mark_slot_damaged", slots=verdict.damaged_mark_slots)

    def _start_log(self, core: Core, store: Store, state: State) -> FileLog:
        """Open the log for writing and let the core serve."""
        clocks = Clocks(
            wall_ms=self._clock.wall_ms(),
            boot_ms=self._clock.boot_ms(),
            mono_ms=self._clock.mono_ms(),
        )
        boot_id = self._clock.boot_id()
        rel_ms = rel_now_ms(
            store.last_times, wall_ms=clocks.wall_ms, boot_ms=clocks.boot_ms, boot_id=boot_id
        )
        log = store.start(
            wall_ms=clocks.wall_ms,
            rel_minus_boot_ms=rel_ms - clocks.boot_ms,
            boot_id=boot_id,
            salt_seed=int.from_bytes(self._clock.entropy(4), "little"),
        )
        self._wal = log
        core.attach_log(log.handle)
        core.start(term=log.term, rel_ms=rel_ms, clocks=clocks)
        state.log = log
        state.term = log.term
        state.loading = False
        return log

    async def _load_schedules(self, state: State) -> None:
        """Read the schedules; CRON is answered -LOADING until they are there."""
        assert state.schedules is not None
        assert self._control is not None
        await state.schedules.load()
        commands = CronCommands(
            state.schedules.scheduler,
            wall_ms=self._clock.wall_ms,
            payload_bytes_max=self._settings.payload_bytes_max,
        )
        self._control.set_cron(commands)
        collector.hold_back()

    def _say_ready(self, state: State) -> None:
        self._log.info(
            "server_ready",
            listen=state.listen,
            **({"listen_tls": state.listen_tls} if state.listen_tls else {}),
            term=state.term,
            lsn=state.core.lsn(),
            took_s=self._seconds_since(self._started_ns),
        )
        self._notify.ready(f"serving on {state.listen}")
        if self._door.tokens is None:
            self._log.info("tokens_missing", hint="listening on loopback only")

    # ---------------------------------------------------------------- running

    async def _serve(self, state: State) -> None:
        """Wait for the stop; look at the counters each second meanwhile."""
        watch = Watch(
            state,
            clock=self._clock,
            logger=self._log,
            memory_bytes_max=self._settings.memory_bytes_max,
        )
        looks = 0
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), WATCH_S)
            if self._turns is not None:
                self._turns.look()
            watch.look()
            state.mend()
            self._notify.alive()
            self._door.look()
            looks += 1
            if looks % TIDY_LOOKS == 0:
                collector.tidy()

    def shut_down(self, reason: str) -> None:
        """Begin an orderly stop; again: nothing new."""
        if not self._stop.is_set():
            self._reason = reason
            self._log.info("server_stopping", reason=reason)
            self._notify.stopping()
            self._stop.set()

    def _on_log_failed(self) -> None:
        """Stop without another byte; the core has closed every connection."""
        self._failed = True
        self._stop.set()

    @staticmethod
    def _on_disk_room(core: Core, turns: Turns, room: DiskRoom) -> None:
        """Take no jobs while no further segment can be made; what is there is still worked off."""
        core.set_disk_room(room)
        turns.soon()

    def _on_keeper_failed(self, turns: Turns) -> None:
        """The same, found out by the other thread."""
        turns.stop()
        self._on_log_failed()

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """An exception that nobody caught is a fault in the server: stop, in order."""
        error = context.get("exception")
        shown = error if isinstance(error, BaseException) else None
        self._log.error(
            "callback_failed",
            error=repr(error or context.get("message")),
            trace="".join(traceback.format_exception(shown)) if shown else "",
        )
        self._faulty = True
        self.shut_down("a fault in the server")

    # ---------------------------------------------------------------- the way down

    async def _drain(self, core: Core, turns: Turns) -> None:
        """Answer what waits and what was read, and let the replies leave."""
        core.stop_reading()
        self._door.stop_reading()
        try:
            await asyncio.wait_for(turns.flush(), FLUSH_S)
        except TimeoutError:
            self._log.warning(
                "replies_dropped",
                connections=core.unflushed(),
                hint="their clients did not take them in time",
            )

    def _close_log(self, wal: FileLog) -> int:
        """Sync the log and mark it clean, unless it has failed; return the exit status."""
        begin_ns = self._clock.mono_ns()
        if not self._failed:
            try:
                wal.sync()
                wal.mark(clean=True)
            except LogFailedError:
                self._failed = True
        if self._failed:
            error = wal.error()
            self._log.error(
                "log_failed",
                call=error.call,
                file=error.path,
                offset_bytes=error.offset,
                lsn=error.lsn,
                error=os.strerror(error.errno or errno.ENOSPC),  # 0: no room for a new segment
                hint="nothing was confirmed from this lsn on; see to the disk, then start again",
            )
            return EXIT_IO
        self._log.info(
            "server_stopped",
            reason=self._reason,
            lsn=wal.stats().synced_lsn,
            took_s=self._seconds_since(begin_ns),
        )
        return EXIT_FAILED if self._faulty else EXIT_OK

    def _seconds_since(self, begin_ns: int) -> float:
        return round((self._clock.mono_ns() - begin_ns) / 1e9, 3)
