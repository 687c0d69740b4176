"""What the documents show, made runnable: blocks, transcripts in the notation of PROTOCOL.md."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from server.answers import Outcome
from server.control import Control, Identity
from server.settings import Settings
from server.shown import Shown
from server.signin import SignIn
from server.state import State
from tests.fed import TERM, WALL_MS, Bench, Fed
from tests.scheduled import Scheduling
from wheel.engine.core import CoreOptions
from wheel.facade import VERSION
from wheel.wire import NOT_READY, Reply, ReplyError, ReplyReader, Simple, encode_reply

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ESCAPED = {"\\": "\\\\", '"': '\\"', "\r": "\\r", "\n": "\\n"}
_STEP = re.compile(r"^(?:(?P<name>[A-Z]?)> (?P<line>.*)|\((?P<seconds>\d+) s\))$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: where it begins, its language, its text."""

    line: int
    language: str
    text: str


def blocks(path: Path, language: str) -> list[Block]:
    """Return the fenced blocks of a language in a document."""
    document = path.read_text(encoding="utf-8")
    return [
        Block(line=document.count("\n", 0, match.start()) + 1, language=match[1], text=match[2])
        for match in _BLOCK.finditer(document)
        if match[1] == language
    ]


def shown(reply: Reply) -> str:
    """Return a reply in the notation of PROTOCOL.md."""
    if isinstance(reply, ReplyError):
        return f"-{reply}"
    if isinstance(reply, Simple):
        return f"+{reply}"
    if isinstance(reply, bytes):
        text = reply.decode("utf-8", "backslashreplace")
        return '"' + "".join(_ESCAPED.get(character, character) for character in text) + '"'
    if isinstance(reply, dict):
        return (
            "{" + ", ".join(f"{shown(key)}: {shown(value)}" for key, value in reply.items()) + "}"
        )
    if isinstance(reply, list):
        return "[" + ", ".join(shown(item) for item in reply) + "]"
    return "nil" if reply is None else str(reply)


def fits(actual: str, documented: str) -> bool:
    """Return whether a reply is what a document shows; ``...`` there leaves something out."""
    pattern = ".*".join(re.escape(part) for part in documented.split("..."))
    return re.fullmatch(pattern, actual, re.DOTALL) is not None


class Clock:
    """The bench's clock, as the server reads it."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def wall_ms(self) -> int:
        return self._bench.wall_ms

    def boot_ms(self) -> int:
        return self._bench.boot_ms

    def mono_ms(self) -> int:
        return self._bench.boot_ms

    def mono_ns(self) -> int:
        return self._bench.boot_ms * 1_000_000

    def boot_id(self) -> bytes:
        return bytes(16)

    def entropy(self, size_bytes: int) -> bytes:
        return bytes(size_bytes)


class Stage:
    """A server without sockets, threads or files: a fed core and the daemon's own control commands.

    Connections speak RESP3, so that maps are maps.
    """

    def __init__(self, **options: object) -> None:
        self.bench = Bench(**options)
        clock = Clock(self.bench)
        core = self.bench.core
        state = State(
            settings=Settings(data=ROOT, memory_bytes_max=1 << 30, clients_max=10),
            clock=clock,
            core=core,
            store=CoreOptions().store,
            loop_name="none",
            listen="127.0.0.1:8463",
            port=8463,
            started_ns=clock.mono_ns(),
            term=TERM,
            loading=False,
        )
        self.state = state
        self.stopped: list[str] = []
        self.control = Control(
            core=core,
            server=Shown(state, self.stopped.append),
            identity=Identity(version=VERSION, store=state.store.hex()),
            clock=clock,
            sign_in=SignIn(core, clock, None),
        )
        self.scheduling = Scheduling(self.bench)
        self.control.set_cron(self.scheduling.commands)
        self.connections: dict[str, tuple[Fed, ReplyReader]] = {}
        self.connect("")

    def connect(self, name: str) -> Fed:
        fed = self.bench.open(f"127.0.0.1:{50_000 + len(self.connections)}")
        self.bench.core.set_session(fed.handle, resp=3)
        self.connections[name] = (fed, ReplyReader())
        return fed

    def type(self, name: str, line: str) -> None:
        """Type a line on a connection; it is opened on its first line."""
        fed = self.connections[name][0] if name in self.connections else self.connect(name)
        fed.feed(line.encode() + b"\r\n")

    def settle(self) -> None:
        """Make everything durable and answer what is Python's, until nothing is left."""
        self._settle()
        while self.scheduling.turn():
            self._settle()

    def _settle(self) -> None:
        core = self.bench.core
        core.commit()
        while True:
            command = core.slow_next()
            if command is not None:
                outcome = self.control.answer(command.handle, command.arguments)
                self._reply(command.handle, outcome)
            batch = core.take_batch()
            if batch is not None:
                core.batch_durable(batch.lsn)
            if command is None and batch is None:
                return
            core.commit()

    def _reply(self, handle: int, outcome: Outcome) -> None:
        core = self.bench.core
        if outcome.silent:
            core.kill_session(handle)
            return
        if outcome.close:
            core.close_session(handle)
        session = core.session(handle)
        assert session is not None
        core.slow_reply(handle, encode_reply(outcome.value, session.resp), gated=outcome.gated)

    def said(self) -> Iterator[str]:
        """Yield what has come out since the last time, a line each."""
        self.settle()
        for name, (fed, reader) in self.connections.items():
            prefix = f"{name}: " if name else ""
            while data := fed.take():
                reader.feed(data)
            while (reply := reader.gets()) is not NOT_READY:
                yield prefix + shown(reply)
            if fed.finished:
                yield f"{prefix}(closed)"


def play(block: Block) -> None:
    """Run a transcript against a fresh server; fail where it says something else."""
    stage = Stage()
    steps: list[tuple[re.Match[str], list[str]]] = []
    for line in block.text.splitlines():
        if (match := _STEP.match(line)) is not None:
            steps.append((match, []))
        else:
            assert steps, f"line {block.line}: a reply before a command"
            steps[-1][1].append(line)
    assert steps
    for match, documented in steps:
        if match["seconds"]:
            stage.bench.advance(int(match["seconds"]) * 1000)
        else:
            stage.type(match["name"], match["line"])
        actual = list(stage.said())
        same = len(actual) == len(documented) and all(map(fits, actual, documented))
        assert same, f"line {block.line}: {match[0]}\n" + "\n".join(actual)
    assert stage.bench.core.check() == 0


__all__ = ["ROOT", "WALL_MS", "Block", "Stage", "blocks", "fits", "play", "shown"]
