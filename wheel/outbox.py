"""What became of a worker's runs, on its way to the server.

An outcome is kept until the server has answered it: while the server cannot be reached it waits
here. All four verbs may be repeated, because a receipt is spent only once (a repeat is answered
ALREADY). ACKs travel together in one command.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from wheel.errors import ProtocolError, WheeldError
from wheel.handlers import Run
from wheel.link import Connection, Pauses, text
from wheel.system import System
from wheel.wire import Reply, ReplyError, encode_command

Verb: TypeAlias = Literal["ACK", "DONE", "FAIL", "RELEASE"]

ACKS_MAX: Final = 500  # receipts in one ACK
ANSWER_S: Final = 5.0
LATER_CODES: Final = frozenset(
    {"BUSY", "CLUSTERDOWN", "DISKFULL", "LOADING", "MOVED", "OOM", "READONLY", "TRYAGAIN"}
)
"""Answers that will be others in a while: of the server's state, not of what was asked."""
LOST_CODES: Final = frozenset({"STALE", "UNKNOWN"})

_log = logging.getLogger("wheeld.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one run ended.

    Attributes:
        run: the run.
        verb: the command that says it.
        words: the command's arguments behind the receipt.
    """

    run: Run
    verb: Verb
    words: tuple[str | bytes | int, ...] = ()


Group: TypeAlias = Sequence[Outcome]  # what one command says, and one reply answers


def encode(outcomes: Sequence[Outcome]) -> tuple[bytes, list[Group]]:
    """Return the commands that say all of ``outcomes``, and what each of them says, in order."""
    acks = [outcome for outcome in outcomes if outcome.verb == "ACK"]
    groups: list[Group] = [acks[at : at + ACKS_MAX] for at in range(0, len(acks), ACKS_MAX)]
    data = [encode_command(["ACK", *(said.run.receipt for said in group)]) for group in groups]
    for said in outcomes:
        if said.verb != "ACK":
            groups.append([said])
            data.append(encode_command([said.verb, said.run.receipt, *said.words]))
    return b"".join(data), groups


def unsettled(group: Group, reply: Reply) -> list[Outcome]:
    """Return which outcomes of a group have to be said again; what was refused goes to the log."""
    if isinstance(reply, list) and group[0].verb == "ACK":
        answers = reply
        if len(answers) != len(group):
            raise ProtocolError(f"ACK of {len(group)} receipts was answered {len(answers)} times")
    else:
        answers = [reply] * len(group)
    return [said for said, answer in zip(group, answers, strict=True) if not _settled(said, answer)]


def _settled(said: Outcome, answer: Reply) -> bool:
    run = said.run
    if not isinstance(answer, ReplyError):
        word = text(answer).partition(" ")[0]
        if word in {"DEAD", "CANCELLED"}:
            _log.warning("run %s of %s ended: %s", run.run_id, run.handler, word.lower())
        return True
    if answer.code in LATER_CODES:
        return False
    if answer.code in LOST_CODES:
        _log.warning(
            "LeaseLost: run %s of %s ended here, but was no longer this worker's: %s refused, %s",
            run.run_id,
            run.handler,
            said.verb,
            answer,
        )
    else:
        _log.error("run %s of %s: %s refused: %s", run.run_id, run.handler, said.verb, answer)
    return True


class Outbox:
    """Outcomes that wait to be said, and the thread that says them.

    The worker's lease loop takes them along when it is about to ask for jobs anyway (``take``); at
    all other times, when it is parked in LEASE or has no connection, the thread here does.
    """

    __slots__ = (
        "_changed",
        "_closed",
        "_connect",
        "_emptied",
        "_leaser_sends",
        "_out",
        "_system",
        "_waiting",
    )

    def __init__(
        self,
        connect: Callable[[], Connection],
        emptied: Callable[[], object],
        system: System,
    ) -> None:
        self._connect = connect
        self._emptied = emptied  # called whenever all has been said
        self._system = system
        self._changed = threading.Condition()
        self._waiting: list[Outcome] = []
        self._out = 0  # taken and neither settled nor given back
        self._leaser_sends = False
        self._closed = False

    def put(self, outcome: Outcome) -> None:
        """Add an outcome."""
        with self._changed:
            self._waiting.append(outcome)
            if not self._leaser_sends:
                self._changed.notify_all()

    def leaser_sends(self, sends: bool) -> None:
        """Say whether the lease loop is on its way to ``take`` what waits."""
        with self._changed:
            self._leaser_sends = sends
            if not sends and self._waiting:
                self._changed.notify_all()

    def take(self) -> list[Outcome]:
        """Take all that waits; each is to be given back or reported as settled."""
        with self._changed:
            return self._take()

    def settle(self, count: int, again: Sequence[Outcome]) -> None:
        """Report ``count`` outcomes that were taken; those in ``again`` wait anew."""
        with self._changed:
            self._out -= count
            self._waiting[:0] = again
            empty = not self._waiting and not self._out
            self._changed.notify_all()
        if empty:
            self._emptied()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is said; False if that took too long."""
        with self._changed:
            self._leaser_sends = False
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: not self._waiting and not self._out, timeout=timeout_s
            )

    def empty(self) -> bool:
        """Return whether all has been said."""
        with self._changed:
            return not self._waiting and not self._out

    def close(self) -> None:
        """Let the thread end; what waits is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """Say what waits until closed: the body of the outbox's thread."""
        pauses = Pauses(self._system)
        connection: Connection | None = None
        told = False  # one line a break, not one an attempt
        while outcomes := self._wait():
            again: Sequence[Outcome] = outcomes
            try:
                if connection is None:
                    connection = self._connect()
                again = say(connection, outcomes, self._system.monotonic() + ANSWER_S)
            except WheeldError as error:
                if not told:
                    count = f"{len(outcomes)} run{'' if len(outcomes) == 1 else 's'}"
                    _log.warning("how %s ended is not told yet, trying again: %s", count, error)
                    told = True
                if connection is not None:
                    connection.close()
                    connection = None
            self.settle(len(outcomes), again)
            if again:
                self._pause(pauses.next_s())
            else:
                pauses.reset()
                told = False
        if connection is not None:
            connection.close()

    def _take(self) -> list[Outcome]:
        taken = self._waiting
        self._waiting = []
        self._out += len(taken)
        return taken

    def _wait(self) -> list[Outcome]:
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._waiting and not self._leaser_sends)
            )
            return [] if self._closed else self._take()

    def _pause(self, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, timeout=pause_s)


def say(connection: Connection, outcomes: Sequence[Outcome], deadline: float) -> list[Outcome]:
    """Say outcomes to the server; return those that it put off.

    Raises:
        UnavailableError: the connection broke or no answer came before the deadline; then all of
            them may be said again.
        ProtocolError: the answer made no sense.
    """
    data, groups = encode(outcomes)
    connection.send(data, deadline)
    again: list[Outcome] = []
    for group in groups:
        again += unsettled(group, connection.receive(deadline))
    return again
