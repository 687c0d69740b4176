"""Schedules over a core whose clock, commits and connections a test moves by hand.

A ``World`` is a bench (tests/fed.py), the scheduler over it and the CRON commands: no socket, no
thread, no file. Everything is asked over one fed connection, as a client would.
"""

from collections.abc import Sequence

from server.answers import RefusedError
from server.cron_commands import CronCommands
from tests.asking import replies
from tests.fed import TERM, Bench, Fed
from wheel.engine.core import Core
from wheel.engine.scheduler import Scheduler
from wheel.wire import Reply, ReplyError, encode_command, encode_reply

PAYLOAD_MAX = 65_536


def plain(value):
    """Return a reply with text for bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, ReplyError):
        return str(value)
    return [plain(entry) for entry in value] if isinstance(value, list) else value


class Asker:
    """The session that CRON commands are told of."""

    user = "ada"


class Scheduling:
    """The scheduler and the CRON commands over a bench.

    It counts no time of its own: a slice is as long as the work there is.
    """

    def __init__(self, bench: Bench, *, strict: bool = False) -> None:
        self.bench = bench
        self.scheduler = Scheduler(bench.core, clock_ns=lambda: 0, strict_handlers=strict)
        for _ in self.scheduler.load():
            pass
        self.commands = CronCommands(
            self.scheduler, wall_ms=lambda: bench.wall_ms, payload_bytes_max=PAYLOAD_MAX
        )

    def answer(self, arguments: Sequence[bytes]) -> bytes:
        """Return the reply to CRON, in RESP2."""
        assert arguments[0].upper() == b"CRON"
        try:
            outcome = self.commands.answer(Asker(), arguments[1:])
            value = outcome.value
            if outcome.work is not None:
                value = self.finish(outcome.work)
        except RefusedError as error:
            value = ReplyError(error.code, str(error))
        return encode_reply(value, 2)

    def finish(self, work):
        """Return what comes of an answer in the making; the turns go on between its steps."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value
            self.turn()

    def turn(self) -> bool:
        """Let the scheduler decide; whether there may be more to do."""
        before = self.bench.core.lsn()
        more = self.scheduler.turn().more
        self.bench.core.commit()
        return more or self.bench.core.lsn() != before

    def settle(self) -> None:
        """Let the scheduler and the commands go on until nothing is left to do."""
        for _ in range(10_000):
            self.bench.settle()
            if not self.turn():
                return
        raise AssertionError("the scheduler comes to no end")


class World:
    """A server's schedules, with the clock in the test's hand."""

    def __init__(self, **options):
        self.bench = Bench(**options)
        self.frames: list[tuple[int, bytes]] = []
        self.term = TERM
        self._attach()

    def _attach(self):
        strict = self.bench.options.strict_handlers
        self.scheduling = Scheduling(self.bench, strict=strict)
        self.bench.python = self.scheduling.answer
        self.conn: Fed = self.bench.open()
        self.settle()

    def settle(self) -> None:
        self.scheduling.settle()

    def check(self) -> None:
        assert self.bench.core.check() == 0

    # ---------------------------------------------------------------- time

    @property
    def now_ms(self):
        return self.bench.wall_ms

    def advance(self, ms: int, *, by: int | None = None) -> None:
        """Let time pass, in one step or in steps of ``by``."""
        left_ms = ms
        while left_ms > 0:
            step_ms = min(left_ms, by or left_ms)
            self.bench.advance(step_ms)
            self.settle()
            left_ms -= step_ms

    def step(self, ms: int) -> None:
        """Set the wall clock by hand; nothing else moves."""
        self.bench.wall_ms += ms
        self.bench.core.tick(self.bench.clocks())
        self.settle()

    def down(self, ms: int) -> None:
        """Kill the server; start it so much later over what was durable."""
        bench = self.bench
        bench.settle()
        self.frames += [(self.term, frame) for frame in bench.frames]
        bench.frames.clear()
        rel_ms = bench.core.engine_figures()["rel_ms"] + ms
        bench.core.close()
        bench.wall_ms += ms
        bench.boot_ms += ms
        bench.core = Core(bench.options)
        for term, frame in self.frames:
            bench.core.replay(frame, term=term)
        self.term += 1
        bench.core.start(term=self.term, rel_ms=rel_ms, clocks=bench.clocks())
        bench.core.tick(bench.clocks())
        self._attach()

    def clock(self):
        figures = self.bench.core.engine_figures()
        return {"clock_held": int(figures["held_ms"] > 1_000)}

    # ---------------------------------------------------------------- asking

    def raw(self, *words) -> Reply:
        self.conn.feed(encode_command([*words]))
        self.settle()
        [reply] = replies(self.conn.take())
        return reply

    def ask(self, *words):
        """Return the reply to a command, with text for bytes."""
        return plain(self.raw(*words))

    def cron(self, words: str, *more):
        """Return the reply to CRON: the words of a line, and arguments that have blanks."""
        reply = self.raw("CRON", *words.split(), *more)
        assert not isinstance(reply, ReplyError), reply
        return plain(reply)

    def refused(self, words: str, *more) -> str:
        """Return the code that CRON refuses with."""
        reply = self.raw("CRON", *words.split(), *more)
        assert isinstance(reply, ReplyError), reply
        return reply.code

    @staticmethod
    def pairs(flat):
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def get(self, name):
        return self.pairs(self.cron("GET", name))

    def names(self):
        cursor, rows = self.cron("LIST COUNT 100")
        assert cursor == "0"
        return [self.pairs(row)["name"] for row in rows]

    def runs(self, name):
        """Return the whole history, the newest first."""
        found, cursor = [], "0"
        while True:
            cursor, rows = self.cron("RUNS", name, "COUNT", 100, "CURSOR", cursor)
            found += [{"count": 1, "reason": None, **self.pairs(row)} for row in rows]
            if cursor == "0":
                return found

    # ---------------------------------------------------------------- a worker

    def lease(self, handler, *, count=100):
        return self.ask("LEASE", handler, "COUNT", count)

    def ack(self, jobs):
        return self.ask("ACK", *map(self.receipt_of, jobs)) if jobs else []

    @staticmethod
    def receipt_of(job):
        return job[0]

    @staticmethod
    def run_id_of(job):
        return job[11][0]

    @staticmethod
    def nominal_of(job):
        return job[11][1]

    def nominals(self, handler):
        """Lease and acknowledge all that is ready; return every nominal time leased so far."""
        seen = self.__dict__.setdefault("_seen", {}).setdefault(handler, [])
        while jobs := self.lease(handler):
            seen += [self.nominal_of(job) for job in jobs]
            self.ack(jobs)
        return list(seen)
