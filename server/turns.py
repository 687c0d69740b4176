"""The loop's turns: one call into the core for a round or some, and Python's answers between them.

The core's inner epoll is itself a descriptor; the event loop watches that one, whatever the number
of clients. A turn runs what is ready, answers the commands that are not the core's, and says when
the log has moved or failed.
"""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from server.answers import Outcome
from wheel.engine.core import Core, LogStoppedError
from wheel.wire import ReplyError, encode_reply

COMMANDS_A_TURN: Final = 64  # answered by Python before the sockets are looked at again
INTERNAL_ERROR: Final = Outcome(
    value=ReplyError("ERR", "the server failed at this command, see its log")
)


class Answers(Protocol):
    """Who answers the commands: server.control.Control."""

    def answer(self, handle: int, argv: Sequence[bytes]) -> Outcome:
        """Return what to do about one command."""
        ...


class Turns:
    """Drives one core on the running loop."""

    def __init__(
        self,
        core: Core,
        answers: Answers,
        *,
        logger: FilteringBoundLogger,
        on_moved: Callable[[], None],
        on_failed: Callable[[], None],
        after_round: Callable[[], None] | None = None,
    ) -> None:
        """Make it; ``start`` begins.

        Args:
            core: the core, with sockets.
            answers: answers what is not the core's.
            logger: for a command that failed inside.
            on_moved: called when the log has new records, once per turn at most.
            on_failed: called once, when the log has failed.
            after_round: called behind each round: moves the bytes of connections that Python feeds.
        """
        self._core = core
        self._answers = answers
        self._log = logger
        self._on_moved = on_moved
        self._on_failed = on_failed
        self._after_round = after_round
        self._loop = asyncio.get_running_loop()
        self._on_round: Callable[[], None] | None = None
        self._seen_lsn = 0
        self._scheduled = False
        self._running = False
        self._steps = 0  # answers that are worked on step by step

    def start(self) -> None:
        """Begin to watch the core."""
        self._running = True
        self._loop.add_reader(self._core.fileno(), self._turn)

    def stop(self) -> None:
        """Watch it no more; what is scheduled does nothing."""
        if self._running:
            self._running = False
            self._loop.remove_reader(self._core.fileno())

    async def flush(self) -> None:
        """Return when all that was asked is answered, durable and sent; reading has stopped."""
        flushed = asyncio.Event()

        def look() -> None:
            if not self._core.unflushed() and self._core.durable_lsn() == self._core.lsn():
                flushed.set()

        self._on_round = look
        self.soon()
        await flushed.wait()

    def soon(self) -> None:
        """Ask for a round without events, after something else changed the core."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._again)

    def look(self) -> None:
        """Make a round without events now, while some change waits for the disk.

        How long it has waited is measured by rounds, and a server whose only clients wait for a
        disk that is stuck has none.
        """
        if self._running and self._core.durable_lsn() != self._core.lsn():
            self._round(self._core.commit)

    def _turn(self) -> None:
        # Rounds one after the other, unless this loop has something of its own to do soon.
        alone = self._scheduled or self._steps or self._on_round is not None
        self._round(self._core.poll if alone else self._core.stay)

    def _again(self) -> None:
        self._scheduled = False
        if self._running:
            self._round(self._core.commit)

    def _round(self, run: Callable[[], int]) -> None:
        """Run a round, answer what it left for Python, and tell what has changed."""
        try:
            if run() and self._answer():
                self.soon()
        except LogStoppedError:
            self.stop()
            self._on_failed()
            return
        if self._after_round is not None:
            self._after_round()
        lsn = self._core.durable_lsn()
        if lsn != self._seen_lsn:
            self._seen_lsn = lsn
            self._on_moved()
        if self._on_round is not None:
            self._on_round()

    def _answer(self) -> bool:
        """Answer some of what waits for Python; True when the core has to go on because of it."""
        for count in range(COMMANDS_A_TURN):
            command = self._core.slow_next()
            if command is None:
                return count > 0
            try:
                outcome = self._answers.answer(command.handle, command.arguments)
                if outcome.work is not None:
                    self._steps += 1
                    self._loop.call_soon(self._work, command.handle, outcome)
                elif outcome.later is not None:
                    outcome.later.add_done_callback(partial(self._arrived, command.handle))
                elif outcome.delay_s:
                    self._loop.call_later(outcome.delay_s, self._late, command.handle, outcome)
                else:
                    self._reply(command.handle, outcome)
            except Exception as error:  # noqa: BLE001 -- one command must not stop the server
                self._reply(command.handle, self._failed(command.arguments[0], error))
        return True

    def _failed(self, command: bytes, error: BaseException) -> Outcome:
        """Return the answer to a command that failed inside; the log says where.

        Not with the exception's own text: it may quote what a client sent, a token or a payload.
        """
        self._log.error(
            "command_failed",
            command=command,
            error=type(error).__name__,
            trace=traceback.format_tb(error.__traceback__, limit=-4),
        )
        return INTERNAL_ERROR

    def _work(self, handle: int, outcome: Outcome) -> None:
        """Take one step towards an answer; the next one when others have had their turn."""
        self._steps -= 1
        if not self._running or outcome.work is None:
            return
        try:
            next(outcome.work)
        except StopIteration as end:
            self._late(handle, Outcome(value=end.value, gated=outcome.gated))
        except Exception as error:  # noqa: BLE001 -- one command must not stop the server
            self._late(handle, self._failed(b"CLIENT", error))
        else:
            self._steps += 1
            self._loop.call_soon(self._work, handle, outcome)

    def _arrived(self, handle: int, later: "asyncio.Future[Outcome]") -> None:
        """Send a reply that something outside the loop has made."""
        error = None if later.cancelled() else later.exception()
        if later.cancelled() or isinstance(error, Exception):
            self._late(handle, self._failed(b"a command", error or asyncio.CancelledError()))
        else:
            self._late(handle, later.result())

    def _late(self, handle: int, outcome: Outcome) -> None:
        if self._running:
            self._reply(handle, outcome)
            self.soon()

    def _reply(self, handle: int, outcome: Outcome) -> None:
        session = self._core.session(handle)
        if session is None:
            return
        if outcome.silent:
            self._core.kill_session(handle)
            return
        if outcome.close:
            self._core.close_session(handle)
        reply = encode_reply(outcome.value, session.resp)
        self._core.slow_reply(handle, reply, gated=outcome.gated)
