"""Transcripts: what goes over the wire, as a readable file (tests/transcripts/*.txt).

A block is input lines, ``----``, the expected output, an empty line. Input goes to connection
``a`` unless a directive says otherwise; output of other connections stands behind ``[name]``. A
line end in the output is CRLF; any other byte that is not printable ASCII is ``\\xHH``.

Directives, each on a line of its own:
    @conn NAME       the lines that follow come from this connection (opened at first use)
    @raw TEXT        these bytes, with Python's escapes, and no line end
    @tick MS         time passes
    @hold | @release commits stop (replies stay at the gate) | go on
    @eof | @close    the connection ends its side | is gone
    @resp N          the connection speaks RESP N
    @roles N [GLOBS] it has these roles (bits), for these handlers

In the files cron-*.txt a scheduler stands over the core, and CRON is answered.

``{j2}`` in an input line stands for the second job id, ``{r2}`` for the second receipt that came
out of the blocks before it.

``WHEELD_REWRITE=1 pytest tests/unit/test_transcripts.py`` writes what comes out into the files:
commit the difference only if you can say why it is right.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fed import Bench, Fed
from tests.scheduled import Scheduling

FOLDER = Path(__file__).parents[1] / "transcripts"
FILES = sorted(FOLDER.glob("*.txt"))
OPTIONS: dict[str, dict[str, Any]] = {
    "strict": {"strict_handlers": True},
    "auth": {"auth_required": True},
    "full": {"jobs_max": 2},
    "oom": {"maxmemory_bytes": 2_000},
    "small": {"payload_bytes_max": 16},
}
NAMED = re.compile(r"\{([jr])([1-9][0-9]*)\}")
IDENTITY = re.compile(r"^([0-9]{10,}(?:\.[0-9]+\.[0-9]+)?)$", re.MULTILINE)


class Player:
    """Plays one file."""

    def __init__(self, name: str) -> None:
        self.bench = Bench(**OPTIONS.get(name, {}))
        self.scheduling = None
        if name == "cron":
            self.scheduling = Scheduling(self.bench)
            self.bench.python = self.scheduling.answer
        self.conns: dict[str, Fed] = {}
        self.current = "a"
        self.held = False
        self.seen: dict[str, list[str]] = {"j": [], "r": []}
        self.select("a")

    def select(self, name: str) -> None:
        self.current = name
        if name not in self.conns:
            self.conns[name] = self.bench.open(f"{name}:1")

    def line(self, line: str) -> None:
        line = NAMED.sub(lambda match: self.seen[match[1]][int(match[2]) - 1], line)
        word, _, rest = line.partition(" ")
        if word == "@conn":
            self.select(rest)
        elif word == "@tick":
            self.bench.advance(int(rest))
        elif word in ("@hold", "@release"):
            self.held = word == "@hold"
        else:
            self.input(self.conns[self.current], word, line)
        if self.scheduling is not None:
            self.scheduling.settle()

    def input(self, fed: Fed, word: str, line: str) -> None:
        rest = line.removeprefix(word)[1:]
        if word == "@raw":
            fed.feed(rest.encode("latin-1").decode("unicode_escape").encode("latin-1"))
        elif word == "@eof":
            fed.eof()
        elif word == "@close":
            fed.close()
            del self.conns[self.current]
            self.current = ""
        elif word == "@resp":
            self.bench.core.set_session(fed.handle, resp=int(rest))
        elif word == "@roles":
            bits, _, globs = rest.partition(" ")
            self.bench.core.set_session(fed.handle, roles=int(bits), globs=globs)
        else:
            fed.feed(line.encode() + b"\r\n")

    def outputs(self) -> Iterator[str]:
        if self.scheduling is not None:
            self.scheduling.settle()
            asked = []
        else:
            asked = [] if self.held else self.bench.settle()
        for arguments in asked:
            yield "(python) " + b" ".join(arguments).decode("latin-1") + "\n"
        for name, fed in sorted(self.conns.items(), key=lambda item: item[0] != self.current):
            text = "".join(_chunks(fed))
            closed = "(closed)\n" if fed.finished else ""
            if name != self.current and (text or closed):
                yield f"[{name}]\n"
            yield text + closed
            if fed.finished:
                fed.close()
        self.conns = {name: fed for name, fed in self.conns.items() if not fed.finished}

    def play(self, lines: list[str]) -> str:
        for line in lines:
            self.line(line)
        output = "".join(self.outputs())
        for word in IDENTITY.findall(output):
            seen = self.seen["r" if "." in word else "j"]
            if word not in seen:
                seen.append(word)
        assert self.bench.core.check() == 0
        return output


def _chunks(fed: Fed) -> Iterator[str]:
    while data := fed.take():
        yield _shown(data)


def _shown(data: bytes) -> str:
    text = data.replace(b"\r\n", b"\n")
    return "".join(chr(b) if b == 10 or 32 <= b < 127 else f"\\x{b:02x}" for b in text)


def _blocks(text: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield (comment lines, input lines, expected output) of each block."""
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n")
        comments = [line for line in lines if line.startswith("#")]
        lines = [line for line in lines if not line.startswith("#")]
        if not lines:
            yield "".join(f"{line}\n" for line in comments), [], ""
            continue
        assert "----" in lines, f"a block without ----: {lines}"
        at = lines.index("----")
        expected = "".join(f"{line}\n" for line in lines[at + 1 :])
        yield "".join(f"{line}\n" for line in comments), lines[:at], expected


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_wire_answers_as_written(path: Path) -> None:
    player = Player(path.stem.partition("-")[0])
    rewritten: list[str] = []
    for comment, lines, expected in _blocks(path.read_text(encoding="ascii")):
        if not lines:
            rewritten.append(comment)
            continue
        output = player.play(lines)
        rewritten.append(comment + "".join(f"{line}\n" for line in lines) + "----\n" + output)
        if not os.environ.get("WHEELD_REWRITE"):
            assert output == expected, f"{path.name}: {lines}"
    if os.environ.get("WHEELD_REWRITE"):
        path.write_text("\n".join(rewritten), encoding="ascii")
    player.bench.check()


def test_transcripts_are_there() -> None:
    assert len(FILES) >= 5
