"""A core with a scheduler, whose time, workers and crashes a test moves by hand."""

from dataclasses import replace
from typing import Any

from tests.asking import code, codes, leased, replies, text
from tests.fed import TERM, WALL_MS, Bench, Fed
from wheel.engine.core import Core
from wheel.engine.definition import Definition
from wheel.engine.facts import Clocks
from wheel.engine.scheduler import Scheduler
from wheel.engine.shown import RunRow
from wheel.wire import Reply

TURNS_MAX = 100_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000


class Clockwork(Bench):
    """A driven core and its scheduler.

    Attributes:
        scheduler: the scheduler itself.
        seen: names and fields of the events so far.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[tuple[str, dict[str, object]]] = []
        self.terms = [(0, TERM)]  # from which frame on
        self.mono_ms: int = self.boot_ms
        self.rel_first_ms = WALL_MS - self.boot_ms
        self.scheduler = self.make()

    def clocks(self) -> Clocks:
        mono_ms: int = getattr(self, "mono_ms", self.boot_ms)
        return Clocks(wall_ms=self.wall_ms, boot_ms=self.boot_ms, mono_ms=mono_ms)

    def make(self) -> Scheduler:
        scheduler = Scheduler(self.core, clock_ns=lambda: 0)
        for _ in scheduler.load():
            pass
        return scheduler

    # ---------------------------------------------------------------- time

    def turns(self) -> tuple[int | None, int | None]:
        """Take turns until there is nothing to do now; return when there is next."""
        for _ in range(TURNS_MAX):
            lsn = self.core.lsn()
            turn = self.scheduler.turn()
            idle = self.core.lsn() == lsn and not turn.more
            self.core.set_alarms(turn.wall_ms, turn.rel_ms)
            self.settle()
            self.seen += [(event.name, dict(event.fields)) for event in self.scheduler.events()]
            if idle:
                return turn.wall_ms, turn.rel_ms
        raise AssertionError("the turns come to no end")

    def tick(self) -> None:
        self.core.tick(self.clocks())
        self.settle()

    def go(self, ms: int) -> None:
        """Let time pass on all axes, with a turn whenever one is due."""
        end_ms = self.boot_ms + ms
        for _ in range(TURNS_MAX):
            wall_ms, rel_ms = self.turns()
            waits = [end_ms - self.boot_ms]
            if wall_ms is not None:
                waits.append(max(0, wall_ms - self.wall_ms))
            if rel_ms is not None:
                waits.append(max(0, rel_ms - self.rel_first_ms - self.boot_ms))
            step_ms = max(min(waits), 1 if min(waits[1:], default=1) == 0 else 0)
            if step_ms == 0:
                return
            step_ms = min(step_ms, end_ms - self.boot_ms)
            if step_ms == 0:
                return
            self.wall_ms += step_ms
            self.boot_ms += step_ms
            self.mono_ms += step_ms
            self.tick()
        raise AssertionError("time does not pass")

    def step_wall(self, ms: int) -> None:
        """Set the wall clock; nothing else moves."""
        self.wall_ms += ms
        self.tick()
        self.turns()

    def suspend(self, ms: int) -> None:
        """Let the machine sleep."""
        self.wall_ms += ms
        self.boot_ms += ms
        self.tick()
        self.turns()

    # ---------------------------------------------------------------- crashes

    def crash(self, down_ms: int = 0, *, frames: int | None = None) -> None:
        """Start anew from what was durable, after a while."""
        self.settle()
        before = self.core.state_hash()
        if frames is not None:
            del self.frames[frames:]
            self.terms = [(first, term) for first, term in self.terms if first <= frames]
        self.core.close()
        self.core = Core(self.options)
        self._replay(self.core)
        if frames is None:
            assert self.core.state_hash() == before
        self.wall_ms += down_ms
        self.boot_ms += down_ms
        self.mono_ms += down_ms
        term = self.terms[-1][1] + 1
        self.terms.append((len(self.frames), term))
        rel_ms = self.boot_ms + self.rel_first_ms
        self.core.start(term=term, rel_ms=rel_ms, clocks=self.clocks())
        self.core.tick(self.clocks())
        assert self.core.check() == 0
        self.scheduler = self.make()

    def _replay(self, core: Core) -> None:
        starts = dict(self.terms)
        term = TERM
        for number, frame in enumerate(self.frames):
            term = starts.get(number, term)
            core.replay(frame, term=term)

    def check(self) -> None:
        """Every invariant holds, and a replay of the frames gives the same state."""
        assert self.core.check() == 0
        self.settle()
        with Core(self.options) as other:
            self._replay(other)
            assert other.state_hash() == self.core.state_hash()

    def snapshot(self) -> list[object]:
        """Return all that memory knows of schedules and their runs."""
        planner = self.scheduler.planner
        planner.look()
        found: list[object] = []
        for entry in planner.store.all():
            live = sorted(
                (run.id, run.label, run.job_id, run.stands, run.alone) for run in entry.all_live()
            )
            # Of a job that was retried a start sees the new due time only.
            rows = [
                row if row.ended_ms else replace(row, due_ms=0) for row in self.runs(entry.name)
            ]
            found.append(
                (
                    replace(self.scheduler.get(entry.name), served=False),
                    entry.done_ms,
                    entry.extra,
                    entry.linked,
                    entry.listed_ms,
                    live,
                    rows,
                )
            )
        return found

    # ---------------------------------------------------------------- asking

    def set(self, name: str, rule: str = "* * * * *", handler: str = "h", **more: Any) -> str:
        made = self.scheduler.set(Definition(name=name, rule=rule, handler=handler, **more))
        self.settle()
        return made.word

    def runs(self, name: str, **more: Any) -> list[RunRow]:
        """Return all runs, the oldest first."""
        rows, cursor = self.scheduler.runs(name, count=100_000, **more)
        assert cursor == 0
        return rows[::-1]

    def told(self, name: str) -> list[tuple[str, str, str, int]]:
        """Return run id behind the name, outcome, reason and count of all runs, oldest first."""
        return [
            (row.run_id.removeprefix(f"{name}@"), row.outcome, row.reason, row.count)
            for row in self.runs(name)
        ]


class Hand(Fed):
    """A worker by hand.

    Attributes:
        got: what it has taken: receipt by run id.
    """

    def __init__(self, clockwork: Clockwork) -> None:
        super().__init__(clockwork, clockwork.core.fed_open("worker"))
        self.got: dict[str, str] = {}

    def say(self, line: str | bytes) -> Reply:
        [reply] = replies(self.ask(line))
        return reply

    def take_jobs(self, handlers: str = "h", *, for_ms: int = 60_000) -> list[str]:
        """Return the run ids of the jobs that are there, which it now holds."""
        reply = self.say(f"LEASE {handlers} COUNT 1000 FOR {for_ms}")
        assert isinstance(reply, list), reply
        taken: list[str] = []
        for job in reply:
            fields = leased([job])
            run = fields[11]
            assert isinstance(run, list), fields
            run_id = text(run[0])
            self.got[run_id] = text(fields[0])
            taken.append(run_id)
        return taken

    def done(self, run_id: str) -> str:
        [answer] = codes(self.say(f"ACK {self.got.pop(run_id)}"))
        return answer

    def fail(self, run_id: str, words: str = "DEAD ERROR bad") -> str:
        return code(self.say(f"FAIL {self.got.pop(run_id)} {words}"))
