"""A producer or a worker of a soak, as a process: ``python -m tests.soak.peer KIND LEDGER PORT``.

KIND is ``producer``, or ``worker`` and its number. It does what the ledger's control says until
that says stop, over one connection after the other, and notes in the ledger what it sees. Nothing
here waits for anybody else: a rate is kept by the clock.
"""

import os
import random
import select
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.load import BROKEN, Words
from tests.process import Connection
from tests.soak.ledger import DRAIN, RUN, STOP, Ledger
from wheel.wire import Reply, ReplyError

TICK_S: Final = 0.05
LATE_S_MAX: Final = 0.2  # what a stop of the server held back is not made up for
CHUNK: Final = 400
BURST_CHUNK: Final = 2_000
FAR: Final = 20_000  # jobs that stay scheduled, so that many are live
OPEN_MAX: Final = 20_000  # while the peak is looked for
FAR_WHEN: Final = "+7d"
DELAYS_MS: Final = (0,) * 8 + (5, 50, 300, 300, 1000, 2000, 5000)
LEASE_MS: Final = 1_500
WAIT_MS: Final = 100
COUNT: Final = 200
HANDLERS: Final = "soak.*"
RESULT: Final = b'{"rows":31337}'
DONE_EVERY: Final = 50  # jobs of which one ends with a result
AGAIN: Final = ("RETRIES", 1000, "LOST", 1000, "BACKOFF", "fixed", 200)
Note = Callable[[Reply], None]
Request = tuple[Words, Note]


def pause(seconds: float) -> None:
    """Let time pass: what a rate is made of."""
    select.select([], [], [], max(0.0, seconds))


def word_of(reply: Reply) -> str:
    """Return what a reply about one job or receipt says."""
    if isinstance(reply, ReplyError):
        return reply.code
    return str(reply).partition(" ")[0]


class Peer(ABC):
    """What both kinds have: the ledger, a place in it, and connections that break."""

    def __init__(self, ledger: Ledger, port: int, place: int) -> None:
        self._ledger = ledger
        self._port = port
        self._count = ledger.figures(place)
        self._rng = random.Random(place * 7919 + os.getpid())

    def run(self) -> None:
        """Play on one connection after the other until told to stop."""
        while self._ledger.get("phase") != STOP and os.getppid() != 1:
            try:
                with Connection(self._port, timeout_s=30) as connection:
                    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._play(connection)
            except BROKEN:
                self._count.add("broken")
                self._broke()
                pause(TICK_S)

    @abstractmethod
    def _play(self, connection: Connection) -> None:
        """Do its part on a connection until told to stop."""

    @abstractmethod
    def _broke(self) -> None:
        """Take down what will never be answered."""

    def _exchange(self, connection: Connection, requests: Sequence[Request]) -> None:
        """Send in one go and read the replies."""
        connection.send(*(words for words, _ in requests))
        for _, note in requests:
            reply = connection.read()
            if isinstance(reply, ReplyError) and reply.code == "LOADING":
                raise ConnectionError("still loading")
            note(reply)
        self._count.add("commands", len(requests))


# ---------------------------------------------------------------- the producer


class Producer(Peer):
    """Schedules at a rate, and keeps so many jobs far in the future by replacing and cancelling."""

    def __init__(self, ledger: Ledger, port: int) -> None:
        super().__init__(ledger, port, 0)
        self._confirmed = ledger.plane("confirmed")
        self._cancelled = ledger.plane("cancelled")
        self._doubtful = ledger.plane("doubtful")
        self._next = 0
        self._far: dict[int, int] = {}  # place -> number of the job that stands there
        self._busy: set[int] = set()  # places with a reply to come
        self._asked: list[int] = []  # numbers whose reply is to come
        self._again: deque[tuple[int, Words]] = deque()
        self._tokens: dict[int, Words] = {}
        self._burst = 0
        self._filled = 0  # of the places

    def _play(self, connection: Connection) -> None:
        last_s = time.monotonic()
        owed = 0.0
        while (phase := self._ledger.get("phase")) != STOP:
            if phase == DRAIN:
                self._drain(connection)
                return
            rate = self._ledger.get("rate")
            now_s = time.monotonic()
            owed += rate * min(now_s - last_s, LATE_S_MAX)
            last_s = now_s
            count = int(owed)
            owed -= count
            if rate < 0:
                count, owed = (CHUNK, 0.0) if self._open() < OPEN_MAX else (0, 0.0)
            for at in range(0, count, CHUNK):
                self._send(connection, min(count - at, CHUNK))
            self._burst_on(connection)
            if rate >= 0 or not count:
                pause(TICK_S - (time.monotonic() - now_s))

    def _open(self) -> int:
        """Return how many jobs are there beyond the far ones, about."""
        ended = self._ledger.total("acked") + self._ledger.total("cancelled")
        return self._ledger.total("made") - ended - self._ledger.total("replaced") - FAR

    def _send(self, connection: Connection, count: int) -> None:
        requests = [self._repeat() for _ in range(len(self._again))]
        for _ in range(count):
            if self._next + 1 >= self._ledger.numbers:
                break
            far = self._rng.random() < (0.1 if self._filled == FAR else 0.5)
            requests += self._far_one() if far else [self._near()]
        self._exchange(connection, requests)
        self._clear()
        self._ledger.put("live_far", len(self._far))

    def _burst_on(self, connection: Connection) -> None:
        """Send what was asked for beyond the rate, all at once."""
        if self._burst == self._ledger.get("burst_asked"):
            return
        left = self._ledger.get("burst_asked") - self._burst
        self._burst += left
        while left > 0:
            some = min(left, BURST_CHUNK)
            self._exchange(connection, [self._near("soak.burst") for _ in range(some)])
            self._clear()
            left -= some
        self._ledger.put("burst_done", self._burst)

    def _number(self) -> int:
        self._next += 1
        self._asked.append(self._next)
        return self._next

    def _near(self, handler: str = "soak.near") -> Request:
        number = self._number()
        rng = self._rng
        delay_ms = rng.choice(DELAYS_MS)
        when: str | int = f"+{delay_ms}"
        if rng.random() < 0.1:
            when = time.time_ns() // 1_000_000 + delay_ms
        words: Words = ("SCHEDULE", handler, when, number, *AGAIN)
        if rng.random() < 0.1:
            words += ("KEY", f"near-{number}", "PRIORITY", rng.choice((0, 128, 255)))
        # Many, because the ring of tokens gives memory back by the MiB: often is level.
        if rng.random() < 0.5:
            words += ("ONCE", f"soak-{number}")
            self._tokens[number] = words
        return words, self._note_made(number)

    def _repeat(self) -> Request:
        """Say again what has a token and was not answered."""
        number, words = self._again.popleft()
        self._tokens[number] = words
        self._asked.append(number)
        return words, self._note_made(number)

    def _note_made(self, number: int) -> Note:
        def note(reply: Reply) -> None:
            if isinstance(reply, ReplyError):
                self._count.add("refused")
                return
            self._confirmed[number] = 1
            self._count.add("made")

        return note

    def _far_one(self) -> list[Request]:
        """Replace, or cancel and schedule anew, one of those that are far."""
        place = self._rng.randrange(FAR)
        if self._filled < FAR:
            place = self._filled
            self._filled += 1
        if place in self._busy:
            return [self._near()]
        self._busy.add(place)
        was = self._far.pop(place, 0)
        requests: list[Request] = []
        if was and self._rng.random() < 0.5:
            requests.append((("CANCEL", f"far-{place}"), self._note_cancel(was)))
        number = self._number()
        words: Words = ("SCHEDULE", "soak.far", FAR_WHEN, number)
        words += ("KEY", f"far-{place}", "ONDUP", "replace")

        def note(reply: Reply) -> None:
            self._doubtful[was] = 0
            if isinstance(reply, ReplyError):
                self._count.add("refused")
                if not self._cancelled[was]:
                    self._far[place] = was  # it stands where it stood
                return
            assert isinstance(reply, list), reply
            self._confirmed[number] = 1
            self._count.add("made")
            if reply[1] == b"replaced":
                self._cancelled[was] = 1  # the id lives on with another payload
                self._count.add("replaced")
            self._far[place] = number

        self._doubtful[was] = 1  # until the reply is there
        requests.append((words, note))
        return requests

    def _note_cancel(self, number: int) -> Note:
        def note(reply: Reply) -> None:
            answer = word_of(reply[0]) if isinstance(reply, list) else word_of(reply)
            if answer == "CANCELLED":
                self._cancelled[number] = 1
                self._count.add("cancelled")

        return note

    def _broke(self) -> None:
        for number in self._asked:
            if not self._confirmed[number]:
                self._doubtful[number] = 1
        self._again.extend(self._tokens.items())
        self._clear()

    def _clear(self) -> None:
        self._asked.clear()
        self._tokens.clear()
        self._busy.clear()

    def _drain(self, connection: Connection) -> None:
        """Say again what is open, and end what is far: each of it must be there."""
        self._exchange(connection, [self._repeat() for _ in range(len(self._again))])
        places = sorted(self._far)
        for at in range(0, len(places), CHUNK):
            some = places[at : at + CHUNK]
            requests: list[Request] = [
                (("CANCEL", f"far-{place}"), self._note_cancel(self._far[place])) for place in some
            ]
            self._exchange(connection, requests)
        for at in range(0, FAR, CHUNK):  # those of which nobody knows whether they stand there
            some = [k for k in range(at, min(FAR, at + CHUNK)) if k not in self._far]
            unsure = [(("CANCEL", f"far-{place}"), self._ignore) for place in some]
            self._exchange(connection, unsure)
        self._far.clear()
        self._ledger.put("drained", 1)
        while self._ledger.get("phase") == DRAIN:
            pause(TICK_S)

    def _ignore(self, reply: Reply) -> None:
        pass


# ---------------------------------------------------------------- workers


class Worker(Peer):
    """Leases, and ends what it got in all ways there are, mostly by ACK."""

    def __init__(self, ledger: Ledger, port: int, number: int, runs: Path) -> None:
        super().__init__(ledger, port, 1 + number)
        self._name = f"soak-{number}"
        self._said = ledger.plane(f"said{number}")
        self._acked = ledger.plane(f"acked{number}")
        self._dead = ledger.plane(f"dead{number}")
        self._others = [ledger.plane(f"acked{k}") for k in range(2)]
        self._others += [ledger.plane(f"dead{k}") for k in range(2)]
        self._others.append(ledger.plane("cancelled"))
        self._runs = os.open(runs, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._held: deque[tuple[float, bytes, int]] = deque()  # until when, receipt, number
        self._ended = 0

    def _broke(self) -> None:
        """Do nothing: what it holds goes to somebody else when its lease is over."""

    def _play(self, connection: Connection) -> None:
        self._held.clear()
        while self._ledger.get("phase") != STOP:
            words: Words = ("LEASE", HANDLERS, "COUNT", COUNT, "WAIT", WAIT_MS)
            words += ("FOR", LEASE_MS, "WORKER", self._name)
            got: list[Reply] = []

            def take(reply: Reply, got: list[Reply] = got) -> None:
                if isinstance(reply, ReplyError):
                    self._count.add("refused")
                else:
                    assert isinstance(reply, list), reply
                    got += reply

            asked_s = time.monotonic()
            self._exchange(connection, [(words, take)])
            self._exchange(connection, self._end(got, asked_s))

    def _end(self, got: list[Reply], asked_s: float) -> list[Request]:
        """Return what is said about the jobs of a LEASE, and about those held since before."""
        self._count.add("granted", len(got))
        acks: list[tuple[bytes, int]] = []
        requests: list[Request] = []
        now_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        while self._held and self._held[0][0] <= now_s:
            acks.append(self._held.popleft()[1:])
        for job in got:
            assert isinstance(job, list), job
            receipt, due_ms, run = job[0], job[5], job[11]
            assert isinstance(receipt, bytes)
            assert isinstance(due_ms, int)
            self._count.add("early", due_ms > now_ms)
            if isinstance(run, list):
                requests.append(self._end_run(receipt, run))
                continue
            assert isinstance(job[7], bytes)
            number = int(job[7])
            # Who was stopped reads grants that were another's long since.
            if now_s - asked_s < LEASE_MS / 1000:
                self._count.add("after_end", any(plane[number] for plane in self._others))
            self._choose(receipt, number, acks, requests, now_s)
        if self._held:
            receipts = [receipt for _, receipt, _ in self._held][:CHUNK]
            requests.append((("EXTEND", *receipts), self._note_extended))
        return requests + [self._ack(acks[at : at + CHUNK]) for at in range(0, len(acks), CHUNK)]

    def _choose(
        self,
        receipt: bytes,
        number: int,
        acks: list[tuple[bytes, int]],
        requests: list[Request],
        now_s: float,
    ) -> None:
        luck = self._rng.random()
        if self._ledger.get("phase") != RUN or luck < 0.90:
            self._ended += 1
            if self._ended % DONE_EVERY:
                acks.append((receipt, number))
            else:
                self._said[number] = 1
                requests.append((("DONE", receipt, RESULT), self._note_end(number)))
        elif luck < 0.93:
            note = self._note_given_back("failed")
            requests.append((("FAIL", receipt, "IN", 200, "ERROR", "no route to host"), note))
        elif luck < 0.945:
            requests.append((("RELEASE", receipt), self._note_given_back("released")))
        elif luck < 0.955:
            self._said[number] = 1
            words = ("FAIL", receipt, "DEAD", "ERROR", "boom")
            requests.append((words, self._note_dead(number)))
        elif luck < 0.985:
            self._held.append((now_s + 2 * LEASE_MS / 1000, receipt, number))
        else:
            self._count.add("let_go")  # its lease will run out

    def _ack(self, acks: list[tuple[bytes, int]]) -> Request:
        for _, number in acks:
            self._said[number] = 1

        def note(reply: Reply) -> None:
            if isinstance(reply, ReplyError):  # all of it was refused: nothing was ended
                self._count.add("refused")
                for _, number in acks:
                    self._said[number] = 0
                return
            assert isinstance(reply, list), reply
            for (_, number), answer in zip(acks, reply, strict=True):
                self._note_end(number)(answer)

        return ("ACK", *(receipt for receipt, _ in acks)), note

    def _note_end(self, number: int) -> Note:
        def note(reply: Reply) -> None:
            answer = word_of(reply)
            if answer == "OK":
                self._acked[number] += 1
                self._count.add("acked")
            elif answer != "ALREADY":
                self._said[number] = 0
                self._count.add("stale")

        return note

    def _note_dead(self, number: int) -> Note:
        def note(reply: Reply) -> None:
            if word_of(reply) == "DEAD":
                self._dead[number] += 1
            else:
                self._said[number] = 0
            self._count.add("failed")

        return note

    def _note_given_back(self, figure: str) -> Note:
        return lambda _reply: self._count.add(figure)

    def _note_extended(self, reply: Reply) -> None:
        if isinstance(reply, list):
            self._count.add("extended", sum(isinstance(answer, int) for answer in reply))

    def _end_run(self, receipt: bytes, run: list[Reply]) -> Request:
        """End a schedule's job; what is said and heard of it is written down."""
        name = run[0]
        assert isinstance(name, bytes)

        def note(reply: Reply) -> None:
            answer = reply[0] if isinstance(reply, list) else reply
            if word_of(answer) == "OK":
                os.write(self._runs, name + b"\n")
                self._count.add("runs")

        return ("ACK", receipt), note


def main() -> None:
    """Run one peer."""
    kind, ledger, port = sys.argv[1], Ledger(Path(sys.argv[2])), int(sys.argv[3])
    if kind == "producer":
        Producer(ledger, port).run()
    else:
        Worker(ledger, port, int(sys.argv[4]), Path(sys.argv[5])).run()


if __name__ == "__main__":
    main()
