"""Producers and workers on raw sockets that note all they see in a history, over many server lives.

A thread waits for the server to be up, works until its connection breaks, and waits again. What
was not answered is noted as such, and mostly said again on the next connection.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.history import (
    GONE,
    Answer,
    Cancel,
    Event,
    Grant,
    History,
    Moment,
    Run,
    Schedule,
    now,
)
from tests.process import DEADLINE_S, Connection, Server
from wheel.wire import Reply, ReplyError

Words = tuple[bytes | str | int, ...]

HANDLERS: Final = ("mail", "sms", "report")
FAR_MS: Final = 86_400_000
PIPELINE_MAX: Final = 24
JOBS_OPEN_MAX: Final = 400  # of one producer, so that the load stays a load and no flood
KEYS: Final = 12
LEASES_MS: Final = (250, 600, 1500)
WAIT_MS: Final = 100
BROKEN: Final = (ConnectionError, OSError)


class Stage:
    """What the threads share: whether the server is up, whether to go on, what was seen."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.history = History()
        self.stopping = False
        self.draining = False
        self.faults: list[str] = []
        self._up = False
        self._changed = threading.Condition()

    def set_up(self, up: bool) -> None:
        """Tell the threads whether there is a server."""
        with self._changed:
            self._up = up
            self._changed.notify_all()

    def stop(self) -> None:
        """End the threads when they next look."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def wait_up(self) -> bool:
        """Wait until there is a server; False when the threads are to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._up or self.stopping, DEADLINE_S)
            return not self.stopping

    def note(self, event: Event) -> None:
        """Note an event, and tell who waits for progress."""
        self.history.add(event)
        with self._changed:
            self._changed.notify_all()

    def wait_events(self, count: int) -> None:
        """Wait until so many more events were noted."""
        wanted = len(self.history.events) + count
        with self._changed:
            grown = self._changed.wait_for(
                lambda: len(self.history.events) >= wanted or bool(self.faults), DEADLINE_S
            )
        assert not self.faults, self.faults
        assert grown, "the load stands still"

    def run(self, play: Callable[[Connection], None]) -> None:
        """Play on one connection after the other until the player is done."""
        try:
            while self.wait_up():
                try:
                    with self.server.connect() as connection:
                        play(connection)
                        return
                except BROKEN:
                    with self._changed:  # the next life, or a retry while this one begins
                        self._changed.wait(0.02)
        except Exception as error:
            self.faults.append(repr(error))
            raise


@dataclass(slots=True, kw_only=True)
class Request:
    """One command on its way: its words, and what is noted with or without a reply."""

    words: Words
    answered: Callable[[Moment, Moment, Reply], None]
    lost: Callable[[Moment], None]


def exchange(stage: Stage, connection: Connection, requests: Sequence[Request]) -> None:
    """Send commands in one go and read the replies; note each, also when the connection breaks."""
    called = now()
    done = 0
    try:
        connection.send(*(request.words for request in requests))
        for request in requests:
            reply = connection.read()
            if isinstance(reply, ReplyError) and reply.code == "LOADING":
                raise ConnectionError("still loading")
            request.answered(called, now(), reply)
            done += 1
    finally:
        for request in requests[done:]:
            request.lost(called)


# ---------------------------------------------------------------- producers


@dataclass(slots=True, kw_only=True)
class Plan:
    """A job to be scheduled, with its token, until the server has answered."""

    token: str
    words: tuple[bytes | str | int, ...]
    delay_ms: int | None
    due_ms: int


class Producer:
    """Schedules jobs: near and far, absolute and relative, with keys, and cancels some."""

    def __init__(self, stage: Stage, name: str, seed: int) -> None:
        self._stage = stage
        self._name = name
        self._rng = random.Random(seed)
        self._made = 0
        self._again: deque[Plan] = deque()
        self._mine: list[int] = []
        self._limit = JOBS_OPEN_MAX

    def run(self) -> None:
        """Run as a thread."""
        self._stage.run(self._play)

    def grow(self) -> None:
        """Allow more jobs: called once each life."""
        self._limit = self._made + JOBS_OPEN_MAX

    def _play(self, connection: Connection) -> None:
        while not (self._stage.stopping or self._stage.draining):
            count = self._rng.randrange(1, PIPELINE_MAX)
            if self._made >= self._limit:  # enough for this life: say only what must be said again
                count = len(self._again)
            requests = [self._schedule() for _ in range(count)]
            if self._mine and self._rng.random() < 0.3:
                requests.append(self._cancel())
            if requests:
                exchange(self._stage, connection, requests)
            else:
                connection.call("PING")

    def _plan(self) -> Plan:
        rng = self._rng
        self._made += 1
        token = f"{self._name}-{self._made}"
        delay_ms: int | None = rng.choice((0, 0, 5, 50, 300, 800, FAR_MS))
        when: str | int = f"+{delay_ms}"
        due_ms = 0
        if rng.random() < 0.4:
            due_ms = now().wall_ms + (delay_ms or 0)
            when, delay_ms = due_ms, None
        words: Words = ("SCHEDULE", rng.choice(HANDLERS), when, token, "ONCE", token)
        words += ("BACKOFF", "fixed", 100, "LOST", 1000, "PRIORITY", rng.choice((0, 128, 255)))
        # Only a FAIL ends a job here: whoever is dead was failed by somebody who noted it.
        retries, timeout_ms = rng.choice(((0, 0), (1000, 400), (1000, 60_000)))
        words += ("RETRIES", retries, "TIMEOUT", timeout_ms)
        if rng.random() < 0.25:
            words += ("KEY", f"{self._name}-key-{rng.randrange(KEYS)}")
            words += ("ONDUP", rng.choice(("keep", "replace", "error")))
            words += ("WINDOW", rng.choice((0, 0, 500)))
        return Plan(token=token, words=words, delay_ms=delay_ms, due_ms=due_ms)

    def _schedule(self) -> Request:
        again = self._again and (self._made >= self._limit or self._rng.random() < 0.7)
        plan = self._again.popleft() if again else self._plan()

        def note(called: Moment, returned: Moment | None, **reply: object) -> None:
            self._stage.note(
                Schedule(
                    token=plan.token,
                    called=called,
                    returned=returned,
                    delay_ms=plan.delay_ms,
                    due_ms=plan.due_ms,
                    **reply,  # type: ignore[arg-type]
                )
            )

        def answered(called: Moment, returned: Moment, reply: Reply) -> None:
            if isinstance(reply, ReplyError):
                assert reply.code in {"EXISTS", "CONFLICT"}, reply
                note(called, returned, refused=reply.code)
                return
            job, word = (reply[0], reply[1]) if isinstance(reply, list) else (reply, b"created")
            assert isinstance(job, bytes)
            assert isinstance(word, bytes)
            note(called, returned, job=int(job), word=word.decode())
            self._mine.append(int(job))
            if self._rng.random() < 0.02:
                self._again.append(plan)  # a repetition that was not needed

        def lost(called: Moment) -> None:
            note(called, None, word="")
            if self._rng.random() < 0.9:
                self._again.append(plan)

        return Request(words=plan.words, answered=answered, lost=lost)

    def _cancel(self) -> Request:
        job = self._rng.choice(self._mine[-50:])

        def answered(called: Moment, returned: Moment, reply: Reply) -> None:
            assert isinstance(reply, list)
            event = Cancel(job=job, called=called, returned=returned, answer=first_word(reply[0]))
            self._stage.note(event)

        return Request(
            words=("CANCEL", job),
            answered=answered,
            lost=lambda called: self._stage.note(Cancel(job=job, called=called)),
        )


def first_word(reply: Reply) -> str:
    """Return what a reply about one receipt or job says."""
    if isinstance(reply, ReplyError):
        return reply.code
    return str(reply).partition(" ")[0]


# ---------------------------------------------------------------- workers


class Worker:
    """Leases jobs and ends them in all ways there are, mostly by ACK."""

    def __init__(self, stage: Stage, name: str, seed: int) -> None:
        self._stage = stage
        self._name = name
        self._rng = random.Random(seed)
        self._held: deque[Grant] = deque(maxlen=64)  # said nothing about yet
        self._spent: deque[Grant] = deque(maxlen=16)
        self._again: deque[tuple[str, Grant, Words]] = deque()

    def run(self) -> None:
        """Run as a thread."""
        self._stage.run(self._play)

    def _play(self, connection: Connection) -> None:
        while not self._stage.stopping:
            again = [self._say(*self._again.popleft()) for _ in range(len(self._again))]
            exchange(self._stage, connection, again + self._late())
            got: list[Grant] = []
            exchange(self._stage, connection, [self._lease(got)])
            requests: list[Request] = []
            for grant in got:
                started = now()
                self._stage.note(Run(fence=grant.fence, started=started, ended=now()))
                requests += self._end(grant)
            exchange(self._stage, connection, requests)

    def _lease(self, got: list[Grant]) -> Request:
        rng = self._rng
        lease_ms = rng.choice(LEASES_MS)
        words: Words = ("LEASE", ",".join(rng.sample(HANDLERS, 2)), "COUNT", rng.randrange(1, 40))
        if self._stage.draining:
            words = ("LEASE", "*", "COUNT", 200)
        words += ("WAIT", WAIT_MS, "FOR", lease_ms, "WORKER", self._name)

        def answered(called: Moment, returned: Moment, reply: Reply) -> None:
            assert isinstance(reply, list), reply
            got.extend(grant_of(item, called, returned) for item in reply)
            for grant in got:
                self._stage.note(grant)

        return Request(words=words, answered=answered, lost=lambda _called: None)

    def _end(self, grant: Grant) -> list[Request]:
        """Return what is said about a grant."""
        if self._stage.draining:
            return [self._say("ACK", grant)]
        self._spent.append(grant)
        luck = self._rng.random()
        if luck < 0.60:
            return [self._say("ACK", grant)]
        if luck < 0.65:
            return [self._say("EXTEND", grant), self._say("DONE", grant, ("result",))]
        if luck < 0.73:
            return [self._say("FAIL", grant, ("IN", self._rng.choice((0, 100)), "ERROR", "no"))]
        if luck < 0.81:
            return [self._say("RELEASE", grant)]
        if luck < 0.83:
            return [self._say("FAIL", grant, ("DEAD",))]
        if luck < 0.98:  # later, perhaps in another life of the server
            self._held.append(grant)
        return []  # forgotten: its lease will run out

    def _late(self) -> list[Request]:
        """Return late and repeated words about earlier grants."""
        requests = []
        if self._held and self._rng.random() < 0.3:
            requests.append(self._say("ACK", self._held.popleft()))
        if self._held and self._rng.random() < 0.3:
            requests.append(self._say("EXTEND", self._held[0]))
        requests += [
            self._say(verb, self._rng.choice(self._spent))
            for verb in ("ACK", "FAIL", "RELEASE", "EXTEND")
            if self._spent and self._rng.random() < 0.3
        ]
        return requests

    def _say(self, verb: str, grant: Grant, words: Words = ()) -> Request:
        def note(called: Moment, returned: Moment | None, answer: str) -> None:
            self._stage.note(
                Answer(
                    job=grant.job,
                    fence=grant.fence,
                    verb=verb,
                    called=called,
                    returned=returned,
                    answer=answer,
                )
            )

        def answered(called: Moment, returned: Moment, reply: Reply) -> None:
            answer = reply[0] if isinstance(reply, list) else reply
            note(called, returned, first_word(answer))

        def lost(called: Moment) -> None:
            note(called, None, "")
            if self._rng.random() < 0.8:
                self._again.append((verb, grant, words))

        return Request(words=(verb, receipt_of(grant), *words), answered=answered, lost=lost)


def receipt_of(grant: Grant) -> str:
    """Return the receipt of a grant."""
    return f"{grant.job}.{grant.fence[0]}.{grant.fence[1]}"


def grant_of(item: Reply, asked: Moment, got: Moment) -> Grant:
    """Return one job of a LEASE reply."""
    match item:
        case [
            bytes(receipt), bytes(job), _, _, int(attempt), int(due_ms), int(lease_ms),
            bytes(payload), int(timeout_ms), *_,
        ]:  # fmt: skip
            _, term, lsn = receipt.split(b".")
        case _:
            raise AssertionError(f"no job of a LEASE reply: {item!r}")
    return Grant(
        job=int(job),
        fence=(int(term), int(lsn)),
        attempt=attempt,
        token=payload.decode(),
        due_ms=due_ms,
        lease_ms=lease_ms,
        timeout_ms=timeout_ms,
        asked=asked,
        got=got,
    )


# ---------------------------------------------------------------- the whole


@dataclass(slots=True)
class Load:
    """All threads of a load on one server."""

    stage: Stage
    producers: list[Producer]
    workers: list[Worker]
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Start the threads."""
        runs = [producer.run for producer in self.producers]
        for run in (*runs, *(worker.run for worker in self.workers)):
            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            self._threads.append(thread)

    def life(self) -> None:
        """The server is up again."""
        for producer in self.producers:
            producer.grow()
        self.stage.set_up(True)

    def stop(self) -> None:
        """End the threads."""
        self.stage.stop()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        assert not self.stage.faults, self.stage.faults


def make_load(server: Server, seed: int, *, producers: int = 2, workers: int = 2) -> Load:
    """Return a load that is not started yet."""
    stage = Stage(server)
    return Load(
        stage,
        [Producer(stage, f"p{i}", seed * 10 + i) for i in range(producers)],
        [Worker(stage, f"w{i}", seed * 10 + 5 + i) for i in range(workers)],
    )


def find_jobs(server: Server, **options: bytes | str | int) -> list[int]:
    """Return the ids that JOBS lists."""
    words = [word for name, value in options.items() for word in (name.upper(), value)]
    found: list[int] = []
    cursor: Reply = b"0"
    with server.connect() as connection:
        while True:
            reply = connection.call("JOBS", *words, "COUNT", 200, "CURSOR", shown(cursor))
            assert isinstance(reply, list), reply
            cursor, rows = reply
            assert isinstance(rows, list)
            found += [int(shown(fields_of(row)["id"])) for row in rows]
            if cursor == b"0":
                return found


def ask_jobs(server: Server, jobs: Sequence[int]) -> dict[int, dict[str, Reply]]:
    """Return what JOB says of each job; {} of one that is not known."""
    told: dict[int, dict[str, Reply]] = {}
    with server.connect() as connection:
        for at in range(0, len(jobs), 500):
            some = jobs[at : at + 500]
            connection.send(*(("JOB", job) for job in some))
            told |= {job: fields_of(connection.read()) for job in some}
    return told


def fields_of(reply: Reply) -> dict[str, Reply]:
    """Return a map as JOB and JOBS reply with; {} for nil."""
    if reply is None:
        return {}
    assert isinstance(reply, list), reply
    return {shown(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def shown(reply: Reply) -> str:
    """Return a bulk string as text."""
    assert isinstance(reply, bytes), reply
    return reply.decode()


def ask_ends(server: Server, history: History) -> None:
    """Note what became of every job, also of those that only the server knows.

    A job that no reply has named was made by a call whose reply was lost; its payload tells which.
    """
    listed = find_jobs(server)
    assert len(listed) == len(set(listed)) == server.call("COUNT")
    told = ask_jobs(server, sorted(set(listed) | set(history.jobs())))
    history.states = {job: shown(f["state"]) if f else GONE for job, f in told.items()}
    calls = {event.token: event for event in history.events if isinstance(event, Schedule)}
    for job in listed:
        token = shown(told[job]["payload"])
        assert token in calls, f"job {job} carries {token}, which nobody asked for"
        history.add(replace(calls[token], job=job, returned=now(), word="", refused=""))
