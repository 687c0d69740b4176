"""The worker: takes jobs under leases, runs their handlers in threads, tells the server the end.

Threads: one asks for jobs (LEASE, only as many as slots are free), one keeps the leases
(wheel/keeper.py), one says outcomes (wheel/outbox.py), one per slot runs handlers; the one that
called ``run`` waits for a reason to stop. Three connections, because a parked LEASE holds back
everything that is sent behind it.

A server that cannot be reached stops nothing here: handlers run on and their outcomes wait. A run
is lost only when the server says so. Then only its success is still sent, because a success counts
until somebody else was given the job.

Draining: no more jobs are taken. The lease connection is half-closed, so that the server answers
the parked LEASE at once and no job is granted into a closed socket. Runs get time to end; what
then still runs is handed back, uncounted.
"""

import contextlib
import json
import logging
import os
import queue
import select
import signal
import socket
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from wheel.client import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S
from wheel.encode import name_bytes, option_arguments
from wheel.errors import (
    AuthError,
    InvalidRequest,
    LeaseLost,
    ProtocolError,
    WheeldError,
    from_reply,
)
from wheel.handlers import App, Fail, Interrupted, Registered, Retry, Run, Snooze, Stopping
from wheel.keeper import CANCELLED, Keeper
from wheel.link import (
    DEFAULT_URL,
    Connection,
    Pauses,
    array,
    checked,
    connect,
    number,
    parse_url,
    text,
)
from wheel.outbox import LATER_CODES, LOST_CODES, Outbox, Outcome, unsettled
from wheel.outbox import encode as encode_outcomes
from wheel.publishing import publish_schedules
from wheel.system import SYSTEM, System
from wheel.traces import user_trace
from wheel.values import Duration, duration_ms, from_ms
from wheel.wire import Reply, ReplyError, encode_command

CONCURRENCY: Final = 10
CONCURRENCY_MAX: Final = 1_000  # PROTOCOL.md: COUNT of LEASE
DRAIN: Final = "25s"  # under the 30 s that a container gets
WAIT: Final = "20s"
WAIT_MS_MAX: Final = 300_000
RESULT_BYTES_MAX: Final = 4_096
ERROR_BYTES_MAX: Final = 1_024
HAND_BACK_S: Final = 5.0
HURRIED_HAND_BACK_S: Final = 1.0

EXIT_OK: Final = 0
EXIT_REFUSED: Final = 5
EXIT_RESTART: Final = 75

# What comes through the socket that wakes the worker's main thread; a signal as its number.
_STOP: Final = b"s"
_CHANGED: Final = b"c"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_STOPS: Final = (_STOP, *(bytes([name]) for name in _SIGNALS))

_log = logging.getLogger("wheeld.worker")


class Worker:
    """Runs the handlers of an app.

    Args:
        app: the handlers.
        url: of the server; by default ``WHEELD_URL``, else this machine.
        concurrency: how many runs at once, 1 to 1,000.
        drain: how long runs may go on after the first signal.
        wait: how long one LEASE waits at the server for a job.
        lease: term of the leases; by default the job's own.
        name: shown by the server; by default host and process id.
        handlers: names of the handlers to serve; by default all.
        system: clock, sleep and randomness.

    Raises:
        InvalidRequest: an argument out of bounds, an unknown handler, or no handler at all.
    """

    def __init__(
        self,
        app: App,
        url: str | None = None,
        *,
        concurrency: int = CONCURRENCY,
        drain: Duration = DRAIN,
        wait: Duration = WAIT,
        lease: Duration | None = None,
        name: str | None = None,
        handlers: Sequence[str] = (),
        system: System = SYSTEM,
    ) -> None:
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InvalidRequest(
                f"concurrency {concurrency} is not between 1 and {CONCURRENCY_MAX}"
            )
        self._wait_ms = duration_ms(wait)
        if not 1 <= self._wait_ms <= WAIT_MS_MAX:
            raise InvalidRequest(f"wait {wait!r} is not between 1 ms and 5 minutes")
        self._app = app
        self._serves = _chosen(app, handlers)
        self._address = parse_url(url or os.environ.get("WHEELD_URL") or DEFAULT_URL)
        self._concurrency = concurrency
        self._drain_s = duration_ms(drain) / 1000
        self._lease_ms = None if lease is None else duration_ms(lease)
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        name_bytes("worker name", self._name)
        self._system = system
        self._stop = Stopping()
        self._exit_status = EXIT_OK
        self._outbox = Outbox(self._connect, lambda: self._wake(_CHANGED), system)
        self._keeper = Keeper(self._connect, self._on_lost, system, lease_ms=self._lease_ms)
        self._slots = threading.Condition()
        self._running: dict[str, Run] = {}  # by receipt; a slot each
        self._jobs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._threads_count = 0  # of those that run handlers; written by the lease loop alone
        self._lease_connection: Connection | None = None
        self._leasing = True
        self.left_running = 0
        self._stops_count = 0
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)  # signals write to it

    # ------------------------------------------------------------ life

    def run(self) -> int:
        """Work until stopped; the exit status. Once only.

        SIGTERM and SIGINT stop it if this is the main thread: the first one drains, the second
        hands back at once. ``left_running`` then tells how many handlers still run, handed back.

        Returns:
            0, or 5: the server refused this worker, or 75: so many lost runs go on here that no
            slot is left, start a new process.
        """
        leaser = threading.Thread(target=self._lease_loop, daemon=True)
        keeper = threading.Thread(target=self._keeper.run, daemon=True)
        outbox = threading.Thread(target=self._outbox.run, daemon=True)
        threads = (leaser, keeper, outbox)
        with self._signals(), self._wake_read, self._wake_write:
            for thread in threads:
                thread.start()
            _log.info("%s serves %s at %s", self._name, ", ".join(self._serves), self._address)
            self._wait_for_stops(1)
            self._end_leasing()
            hurried = self._drain()
            timeout_s = HURRIED_HAND_BACK_S if hurried else HAND_BACK_S
            leaser.join(timeout_s)  # it may be about to read a job that was granted
            self._hand_back(timeout_s)
        for _ in range(self._threads_count):
            self._jobs.put(None)
        for thread in threads:
            thread.join(HURRIED_HAND_BACK_S)
        return self._exit_status

    def stop(self) -> None:
        """Begin to drain; a second call hands back at once. From any thread."""
        self._wake(_STOP)

    @property
    def running(self) -> int:
        """How many runs are going on."""
        return len(self._running)

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        """Have signals wake us through the socket.

        A handler in Python is not enough: a signal that comes just before ``select`` begins would
        be noted, and ``select`` would still wait.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wake_before = signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        before = {name: signal.signal(name, _noted) for name in _SIGNALS}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)
            signal.set_wakeup_fd(wake_before)

    def _wait_for_stops(
        self, stops: int, *, until: Callable[[], bool] | None = None, timeout_s: float | None = None
    ) -> bool:
        """Wait until there were so many stops, True; or for ``until`` or the time-out, False."""
        end_s = None if timeout_s is None else self._system.monotonic() + timeout_s
        while self._stops_count < stops:
            left_s = None if end_s is None else end_s - self._system.monotonic()
            if (until is not None and until()) or (left_s is not None and left_s <= 0):
                return False
            if select.select([self._wake_read], [], [], left_s)[0]:
                reasons = self._wake_read.recv(4096)
                self._stops_count += sum(reasons.count(stop) for stop in _STOPS)
        return True

    def _end_leasing(self) -> None:
        with self._slots:
            self._stop.asked = True
            self._slots.notify_all()
        connection = self._lease_connection
        if connection is not None:
            connection.end_input()

    def _drain(self) -> bool:
        """Wait for the runs to end; True if a second stop cut that short."""
        count = len(self._running)
        what = (
            f": {count} {'run has' if count == 1 else 'runs have'} {self._drain_s:.0f} s to end, "
        )
        _log.info("stopping%s", what + "a second signal hands them back" if count else "")

        def drained() -> bool:
            return not self._running and not self._leasing and self._outbox.empty()

        self._outbox.leaser_sends(False)
        return self._wait_for_stops(2, until=drained, timeout_s=self._drain_s)

    def _hand_back(self, timeout_s: float) -> None:
        with self._slots:
            left = list(self._running.values())
            self._running.clear()
        self.left_running = len(left)
        for run in left:
            self._keeper.drop(run)
            if not run.lost:
                _log.warning("run %s of %s is handed back", run.run_id, run.handler)
            self._say(run, Outcome(run=run, verb="RELEASE"))
        if not self._outbox.flush(timeout_s):
            _log.error("the server was not reached: what was held stays leased until it runs out")
        self._keeper.close()
        self._outbox.close()

    # ------------------------------------------------------------ taking jobs

    def _connect(self) -> Connection:
        deadline = self._system.monotonic() + CALL_TIMEOUT_S
        return connect(self._address, self._system, deadline=deadline, timeout_s=CONNECT_TIMEOUT_S)

    def _lease_loop(self) -> None:
        """Ask for jobs until stopped: the body of the lease thread."""
        pauses = Pauses(self._system)
        published = told = False
        while self._wait_for_slot():
            try:
                connection = self._leasing_connection()
                if not published:
                    self._publish(connection)
                    published = True
                if self._lease(connection):
                    pauses.reset()
                    if told:
                        _log.info("the server at %s gives jobs again", self._address)
                    told = False
                    continue
            except (AuthError, InvalidRequest) as error:
                _log.error("the server refuses this worker: %s", error)
                self._exit_status = EXIT_REFUSED
                self.stop()
                break
            except WheeldError as error:
                self._hang_up()
                if not told and not self._stop.asked:
                    _log.warning("no jobs can be taken, trying again: %s", error)
                    told = True
            self._outbox.leaser_sends(False)
            self._pause(pauses.next_s())
        self._outbox.leaser_sends(False)
        self._hang_up()
        self._leasing = False
        self._wake(_CHANGED)

    def _leasing_connection(self) -> Connection:
        if self._lease_connection is None:
            self._lease_connection = self._connect()
        return self._lease_connection

    def _hang_up(self) -> None:
        connection, self._lease_connection = self._lease_connection, None
        if connection is not None:
            connection.close()

    def _publish(self, connection: Connection) -> None:
        """Tell the server the handlers' defaults, where they have any."""
        for registered in self._serves.values():
            words = option_arguments(registered.defaults)
            if not words:
                continue
            deadline = self._system.monotonic() + CALL_TIMEOUT_S
            reply = connection.ask(encode_command(["HANDLER", registered.name, *words]), deadline)
            if isinstance(reply, ReplyError) and reply.code == "NOPERM":
                _log.warning("defaults of %s are not published: %s", registered.name, reply)
            else:
                checked(reply)
        publish_schedules(connection, self._app, self._serves, self._system)

    def _wait_for_slot(self) -> bool:
        """Wait until a slot is free; False when stopping."""
        with self._slots:
            if len(self._running) >= self._concurrency:
                self._outbox.leaser_sends(True)  # whoever frees a slot leaves its outcome to us
                self._slots.wait_for(
                    lambda: self._stop.asked or len(self._running) < self._concurrency
                )
            return not self._stop.asked

    def _lease(self, connection: Connection) -> bool:
        """Say what waits, ask for jobs, start them; False if the server had none far too soon.

        Raises:
            WheeldError: the connection broke, or the server refused.
        """
        outcomes = self._outbox.take()
        self._outbox.leaser_sends(False)
        again: list[Outcome] = []
        unread = list(outcomes)
        try:
            deadline = self._system.monotonic() + CALL_TIMEOUT_S
            data, groups = encode_outcomes(outcomes)
            if self._stop.asked:  # or end_input came too early to be seen
                return True
            connection.send(data + self._lease_command(), deadline)
            for group in groups:
                again += unsettled(group, connection.receive(deadline))
                del unread[: len(group)]
        finally:
            if outcomes:
                self._outbox.settle(len(outcomes), [*again, *unread])
        asked_s = self._system.monotonic()
        reply = connection.receive(asked_s + self._wait_ms / 1000 + CALL_TIMEOUT_S)
        if isinstance(reply, ReplyError) and reply.code in LATER_CODES:
            raise from_reply(reply.code, reply.text)
        jobs = array(checked(reply))
        self._start([self._granted(connection, job) for job in jobs])
        return bool(jobs) or self._system.monotonic() - asked_s >= self._wait_ms / 2000

    def _lease_command(self) -> bytes:
        free = self._concurrency - len(self._running)
        words: list[str | int] = ["LEASE", ",".join(self._serves), "COUNT", free]
        words += ["WAIT", self._wait_ms, "WORKER", self._name]
        if self._lease_ms is not None:
            words += ["FOR", self._lease_ms]
        return encode_command(words)

    def _granted(self, connection: Connection, job: Reply) -> Run:
        """Return a run from LEASE's array (PROTOCOL.md, LEASE)."""
        item = array(job, 12)
        job_id, key, meta, progress = item[1], item[2], item[9], item[10]
        origin = None if item[11] is None else array(item[11], 3)
        uid = f"{connection.store}-{number(job_id)}"
        return Run(
            receipt=text(item[0]),
            id=number(job_id),
            run_id=uid if origin is None else text(origin[0]),
            nominal=None if origin is None or origin[1] is None else from_ms(number(origin[1])),
            logical_date=None if origin is None or origin[2] is None else text(origin[2]),
            key=None if key is None else text(key),
            handler=text(item[3]),
            attempt=number(item[4]),
            due=from_ms(number(item[5])),
            lease_ms=number(item[6]),
            payload=_blob(item[7]),
            timeout_ms=number(item[8]),
            meta=None if meta is None else _blob(meta),
            progress=None if progress is None else _blob(progress),
            stop=self._stop,
        )

    def _start(self, runs: Sequence[Run]) -> None:
        if not runs:
            return
        self._keeper.hold(runs)
        with self._slots:
            stopping = self._stop.asked
            if not stopping:
                self._running.update((run.receipt, run) for run in runs)
        if stopping:  # granted while we were leaving
            for run in runs:
                self._keeper.drop(run)
                self._outbox.put(Outcome(run=run, verb="RELEASE"))
            return
        while self._threads_count < len(self._running):
            self._threads_count += 1
            threading.Thread(
                target=self._run_handlers, name=f"wheeld-run-{self._threads_count}", daemon=True
            ).start()
        for run in runs:
            self._jobs.put(run)

    # ------------------------------------------------------------ running them

    def _run_handlers(self) -> None:
        """Run one job after the other: the body of a slot's thread."""
        while (run := self._jobs.get()) is not None:
            outcome = execute(self._serves, run)
            with self._slots:
                ours = self._running.pop(run.receipt, None) is not None  # or it was handed back
                if ours:
                    self._keeper.drop(run)
                    self._say(run, outcome)
                    self._slots.notify()
            if self._stop.asked:
                self._wake(_CHANGED)

    def _say(self, run: Run, outcome: Outcome) -> None:
        """Have an outcome said, if it can still count."""
        if run.lost_code == "UNKNOWN" or (
            run.lost_code == "STALE" and outcome.verb not in {"ACK", "DONE"}
        ):
            _log.warning(
                "LeaseLost: run %s of %s ended here, but was no longer this worker's (%s)",
                run.run_id,
                run.handler,
                run.lost_code,
            )
            return
        self._outbox.put(outcome)

    def _on_lost(self, run: Run, code: str) -> None:
        """Take note that the server gave up a run, or was told to cancel it."""
        _log.warning(
            "run %s of %s %s",
            run.run_id,
            run.handler,
            _LOST_WORDS.get(code, f"is lost ({code})"),
        )
        run.lose(code)
        lost = sum(run.lost_code in LOST_CODES for run in list(self._running.values()))
        if code != CANCELLED and lost >= self._concurrency:
            _log.error(
                "every slot is taken by a run that was lost and goes on: ending with status %d, "
                "for a supervisor to start a new worker",
                EXIT_RESTART,
            )
            self._exit_status = EXIT_RESTART
            self.stop()

    def _wake(self, why: bytes) -> None:
        with contextlib.suppress(OSError):  # closed: it has stopped. Full: it will look anyway
            self._wake_write.send(why)

    def _pause(self, pause_s: float) -> None:
        with self._slots:
            self._slots.wait_for(lambda: self._stop.asked, timeout=pause_s)


_LOST_WORDS: Final = {
    CANCELLED: "is to stop: it was cancelled",
    "STALE": "is lost: its time-out or its lease ran out (STALE)",
    "UNKNOWN": "is lost: the server does not know it any more (UNKNOWN)",
}


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Let a signal do nothing but wake us."""


def execute(serves: Mapping[str, Registered], run: Run) -> Outcome:
    """Run a job's handler and return how that ended. Raises nothing: a failure is an outcome."""
    registered = serves.get(run.handler)
    if registered is None:
        return Outcome(run=run, verb="RELEASE", words=("IN", 1000))
    try:
        result = registered.execute(run)
    except BaseException as error:  # noqa: BLE001  (whatever a handler raises is its outcome)
        return _raised(run, error)
    return _succeeded(run, result)


def _raised(run: Run, error: BaseException) -> Outcome:
    if isinstance(error, Interrupted):
        return Outcome(run=run, verb="RELEASE")
    if isinstance(error, Snooze):
        return Outcome(run=run, verb="RELEASE", words=("IN", error.in_ms))
    reason: tuple[str | bytes | int, ...]
    if isinstance(error, Fail):
        reason = ("DEAD", "ERROR", _cut(str(error)))
    elif isinstance(error, Retry):
        delay = () if error.in_ms is None else ("IN", error.in_ms)
        reason = (*delay, "ERROR", _cut(str(error)))
        if error.output:
            reason += ("RESULT", error.output[-RESULT_BYTES_MAX:])
    else:
        if not (run.lost and isinstance(error, LeaseLost)):  # a coroutine that was told to end
            trace = user_trace(error)
            shown = None if trace is None else (type(error), error, trace)
            why = f": {error}" if trace is None else ""
            _log.warning("run %s of %s failed%s", run.run_id, run.handler, why, exc_info=shown)
        reason = ("ERROR", _cut(_described(error)))
    return Outcome(run=run, verb="FAIL", words=reason)


def _succeeded(run: Run, result: object) -> Outcome:
    if result is None:
        return Outcome(run=run, verb="ACK")
    try:
        data = json.dumps(result, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        _log.warning("the result of %s is not kept, it is not JSON: %s", run.handler, error)
        return Outcome(run=run, verb="ACK")
    if len(data) > RESULT_BYTES_MAX:
        _log.warning(
            "the result of %s is not kept: %d bytes, the limit is %d",
            run.handler,
            len(data),
            RESULT_BYTES_MAX,
        )
        return Outcome(run=run, verb="ACK")
    return Outcome(run=run, verb="DONE", words=(data,))


def _described(error: BaseException) -> str:
    """Return an error as one line: its class, its text, and the last place it passed."""
    trace = user_trace(error)
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" ({Path(code.co_filename).name}:{trace.tb_lineno} in {code.co_name})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{place}"


def _cut(words: str) -> bytes:
    """Return text in UTF-8 within the protocol's limit of an ERROR."""
    return words.encode("utf-8", "replace")[:ERROR_BYTES_MAX].decode("utf-8", "ignore").encode()


def _blob(value: Reply) -> bytes:
    if not isinstance(value, bytes):
        raise ProtocolError(f"the server answered {value!r} where bytes belong")
    return value


def _chosen(app: App, names: Sequence[str]) -> dict[str, Registered]:
    unknown = [name for name in names if name not in app.handlers]
    if unknown:
        raise InvalidRequest(
            f"the app has no handler {unknown[0]!r}; it has {', '.join(sorted(app.handlers))}"
        )
    chosen = {name: entry for name, entry in app.handlers.items() if not names or name in names}
    if not chosen:
        raise InvalidRequest(
            "the app has no handler: decorate a function with @app.handler('name')"
        )
    return chosen
