"""The thread that keeps a worker's leases alive.

Every third of the shortest lease it extends all runs held, in one command, over a connection of
its own: LEASE parks the other one. It does nothing else, so that a handler that never lets the
interpreter go costs it a switch interval and no more.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from wheel.errors import ProtocolError, UnavailableError, WheeldError
from wheel.handlers import Run
from wheel.link import Connection, Pauses, array, checked
from wheel.outbox import ANSWER_S, LATER_CODES, LOST_CODES
from wheel.system import System
from wheel.wire import ReplyError, encode_command

BEATS_PER_LEASE: Final = 3
CANCELLED: Final = "CANCELLED"

_log = logging.getLogger("wheeld.worker")


class Keeper:
    """Extends leases; ``run`` is the body of its thread.

    Args:
        connect: makes its connection.
        lease_ms: the term to ask for; None leaves it to the server.
        lost: called with a run and the code when the server says that it is lost or cancelled.
        system: the clock.
    """

    __slots__ = (
        "_changed",
        "_closed",
        "_connect",
        "_connection",
        "_held",
        "_last_s",
        "_lease_ms",
        "_lost",
        "_pauses",
        "_system",
        "_wait_ms",
    )

    def __init__(
        self,
        connect: Callable[[], Connection],
        lost: Callable[[Run, str], None],
        system: System,
        *,
        lease_ms: int | None = None,
    ) -> None:
        self._connect = connect
        self._lost = lost
        self._system = system
        self._lease_ms = lease_ms
        self._pauses = Pauses(system)
        self._changed = threading.Condition()
        self._closed = False
        self._connection: Connection | None = None
        self._held: dict[str, Run] = {}  # by receipt
        self._last_s = 0.0  # when the last beat began, or the first run came
        self._wait_ms = 0  # shortest lease of the present wait; 0: nothing held, waits for a run

    def hold(self, runs: Sequence[Run]) -> None:
        """Keep the leases of these runs too."""
        with self._changed:
            if not self._held:
                self._last_s = self._system.monotonic()
            self._held.update((run.receipt, run) for run in runs)
            shortest_ms = min((run.lease_ms for run in runs), default=self._wait_ms)
            if shortest_ms < self._wait_ms or not self._wait_ms:
                self._changed.notify_all()

    def drop(self, run: Run) -> None:
        """Keep this lease no longer."""
        with self._changed:
            self._held.pop(run.receipt, None)

    def beat(self) -> None:
        """Extend all leases once, now.

        Raises:
            UnavailableError: not reached, or put off; the leases run on at the server.
            ProtocolError: the answer made no sense.
            WheeldError: the server refused.
        """
        with self._changed:
            runs = list(self._held.values())
        if not runs:
            return
        try:
            if self._connection is None:
                self._connection = self._connect()
            for_words = () if self._lease_ms is None else ("FOR", self._lease_ms)
            command = encode_command(["EXTEND", *(run.receipt for run in runs), *for_words])
            reply = self._connection.ask(command, self._system.monotonic() + ANSWER_S)
            answers = array(checked(reply), len(runs))
        except (UnavailableError, ProtocolError):
            self._hang_up()
            raise
        for run, answer in zip(runs, answers, strict=False):
            if isinstance(answer, ReplyError):
                self._refused(run, answer)

    def close(self) -> None:
        """Let the thread end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """Beat in time until closed."""
        told = False  # one line a break, not one an attempt
        while self._wait_for_beat():
            begun_s = self._system.monotonic()
            try:
                self.beat()
            except WheeldError as error:
                if not told:
                    _log.warning("leases cannot be extended, the runs go on: %s", error)
                    told = True
                self._sleep(self._pauses.next_s())
                continue
            self._last_s = begun_s
            self._pauses.reset()
            told = False
        self._hang_up()

    def _refused(self, run: Run, answer: ReplyError) -> None:
        with self._changed:
            if run.receipt not in self._held:  # it ended while the command was under way
                return
            if answer.code in LOST_CODES:
                del self._held[run.receipt]
        if answer.code in LOST_CODES or answer.code == CANCELLED:
            if not run.lost:
                self._lost(run, answer.code)
        elif answer.code not in LATER_CODES:
            _log.error("run %s: EXTEND refused: %s", run.run_id, answer)

    def _wait_for_beat(self) -> bool:
        """Wait until a beat is due; False when closed."""
        with self._changed:
            while not self._closed:
                self._wait_ms = min((run.lease_ms for run in self._held.values()), default=0)
                if not self._wait_ms:
                    self._changed.wait()
                    continue
                due_s = self._last_s + self._wait_ms / 1000 / BEATS_PER_LEASE
                left_s = due_s - self._system.monotonic()
                if left_s <= 0:
                    return True
                self._changed.wait(left_s)
            return False

    def _sleep(self, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, timeout=pause_s)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
