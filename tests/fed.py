"""A core whose clock, commits and connections a test moves by hand: no socket, thread or file.

Every frame that is made durable is kept, so that a second core can replay them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from wheel.engine.core import Commit, Core, CoreOptions
from wheel.engine.facts import Clocks

WALL_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
TERM = 7


class Bench:
    """A driven core and its connections.

    Attributes:
        core: the core itself.
        frames: every frame that was made durable.
        python: called for each command that C does not answer; its result is the reply.
    """

    def __init__(self, **options: Any) -> None:
        self.options = CoreOptions(
            commit=Commit.DRIVEN,
            sockets=False,
            hand_clock=True,
            **{"jobs_max": 10_000, **options},
        )
        self.core = Core(self.options)
        self.wall_ms: int = WALL_MS
        self.boot_ms: int = 1_000_000
        self.frames: list[bytes] = []
        self.python: Callable[[Sequence[bytes]], bytes] = lambda _arguments: b"+PYTHON\r\n"
        self.core.start(term=TERM, rel_ms=WALL_MS, clocks=self.clocks())
        self.core.tick(self.clocks())

    def clocks(self) -> Clocks:
        return Clocks(wall_ms=self.wall_ms, boot_ms=self.boot_ms, mono_ms=self.boot_ms)

    def open(self, name: str = "test") -> "Fed":
        return Fed(self, self.core.fed_open(name))

    def advance(self, ms: int) -> None:
        """Let time pass on both axes, without making anything durable."""
        self.wall_ms += ms
        self.boot_ms += ms
        self.core.tick(self.clocks())

    def answer_python(self) -> list[tuple[bytes, ...]]:
        """Answer every command that waits for Python; return their arguments."""
        asked: list[tuple[bytes, ...]] = []
        while (command := self.core.slow_next()) is not None:
            asked.append(command.arguments)
            self.core.slow_reply(command.handle, self.python(command.arguments), gated=True)
            self.core.commit()
        return asked

    def settle(self) -> list[tuple[bytes, ...]]:
        """Commit until nothing is left to do; return what Python was asked."""
        asked: list[tuple[bytes, ...]] = []
        self.core.commit()
        while True:
            news = self.answer_python()
            batch = self.core.take_batch()
            if batch is None and not news:
                return asked
            asked += news
            if batch is not None:
                self.frames.append(batch.frame)
                self.core.batch_durable(batch.lsn)

    def check(self) -> None:
        """Every invariant holds, and a replay of the frames gives the same state."""
        assert self.core.check() == 0
        self.settle()
        with Core(self.options) as other:
            for frame in self.frames:
                other.replay(frame, term=TERM)
            other.start(term=TERM + 1, rel_ms=self.wall_ms, clocks=self.clocks())
            assert other.check() == 0
            assert other.state_hash() == self.core.state_hash()


class Fed:
    """One fed connection."""

    def __init__(self, bench: Bench, handle: int) -> None:
        self.bench = bench
        self.handle = handle
        self.finished = False

    def feed(self, data: bytes) -> None:
        """Hand bytes in and end the round; nothing is made durable."""
        self.bench.core.fed_input(self.handle, data)
        self.bench.core.commit()

    def eof(self) -> None:
        self.bench.core.fed_eof(self.handle)
        self.bench.core.commit()

    def take(self, limit: int | None = None) -> bytes:
        """Return what may leave now, at most limit bytes."""
        output = self.bench.core.fed_output(self.handle)
        data = output.data[:limit]
        if self.finished:
            return b""
        self.bench.core.fed_taken(self.handle, len(data))
        self.finished = output.finished and len(data) == len(output.data)
        self.bench.core.commit()
        return data

    def ask(self, line: str | bytes) -> bytes:
        """Return the reply to one line, with every commit made."""
        data = line.encode() if isinstance(line, str) else line
        self.feed(data + b"\r\n")
        self.bench.settle()
        return self.take()

    def close(self) -> None:
        self.bench.core.fed_close(self.handle)
        self.bench.core.commit()
