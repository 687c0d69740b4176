"""A shell session as a document shows it, run in a folder against a server on another port.

``nc`` and ``redis-cli`` are run where they are installed; elsewhere a plain socket sends the same
bytes, and the replies are written as redis-cli writes them.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs import ROOT
from tests.process import DEADLINE_S, Connection
from wheel.wire import Reply, ReplyError, Simple

DOCUMENTED_PORT = 8463
_IDENTITY = re.compile(r"\b[0-9]{10,}(?:\.[0-9]+\.[0-9]+)?\b")
_NUMBER = re.compile(r"[0-9]+")


def steps(text: str) -> list[tuple[str, str]]:
    """Return (command, documented output) of a session whose commands stand behind ``$``."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            assert found, f"output before a command: {line}"
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def shape(text: str) -> str:
    """Return a text with every number written N."""
    return _NUMBER.sub("N", text.replace("\r\n", "\n").rstrip("\n"))


def as_redis_cli(reply: Reply, indent: str = "") -> str:
    """Return a reply as redis-cli shows it to a person."""
    if isinstance(reply, list):
        width = len(str(len(reply)))
        lines: list[str] = []
        for number, item in enumerate(reply, 1):
            mark = f"{number:>{width}}) "
            lines.append(
                (indent if lines else "") + mark + as_redis_cli(item, indent + " " * len(mark))
            )
        return "\n".join(lines) if lines else "(empty array)"
    if isinstance(reply, ReplyError):
        return f"(error) {reply}"
    if isinstance(reply, Simple):
        return str(reply)
    if isinstance(reply, bytes):
        text = reply.decode()
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "(nil)" if reply is None else f"(integer) {reply}"


@dataclass(slots=True, kw_only=True)
class Shell:
    """A folder, a server's port, and what ids and receipts of the document stand for.

    Attributes:
        folder: where the commands run; ``bin/wheeld`` is made in it.
        port: what 8463 is replaced by.
        stand_in: use sockets in place of nc and redis-cli, whatever is installed.
    """

    folder: Path
    port: int
    stand_in: bool = False
    named: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        script = self.folder / "bin" / "wheeld"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m wheeld "$@"\n')
        script.chmod(0o755)
        (script.parent / "python").symlink_to(sys.executable)

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "WHEELD_URL": f"wheeld://127.0.0.1:{self.port}",
        }

    def here(self, command: str) -> str:
        """Return a documented command with this server's port, ids and receipts."""
        command = command.replace(str(DOCUMENTED_PORT), str(self.port))
        return _IDENTITY.sub(lambda match: self.named.get(match[0], match[0]), command)

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command that goes on; its output ends after 90 s, whatever it does."""
        return subprocess.Popen(
            ["/bin/sh", "-c", f"exec timeout 90 {self.here(command)}"],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, command: str, documented: str) -> None:
        """Run a command; fail unless it prints what is documented, numbers aside."""
        output = self._output(self.here(command))
        assert shape(output) == shape(documented), f"$ {command}\n{output}"
        pairs = zip(_IDENTITY.findall(documented), _IDENTITY.findall(output), strict=True)
        self.named.update(pairs)

    def _output(self, command: str) -> str:
        words = shlex.split(command)
        if words[0] == "redis-cli":
            if not self.stand_in and shutil.which("redis-cli"):
                return self._sh(command.replace("redis-cli", "redis-cli --no-raw", 1))
            assert words[1:3] == ["-p", str(self.port)]
            with Connection(self.port) as connection:
                return as_redis_cli(connection.call(*words[3:]))
        if "nc" in words and (self.stand_in or not _nc_half_closes()):
            assert words[0] == "echo"
            return self._lines(words[1])
        return self._sh(command)

    def _lines(self, line: str) -> str:
        """Send a line, half-close, and return what comes back: nc -N."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S) as client:
            client.sendall(line.encode() + b"\n")
            client.shutdown(socket.SHUT_WR)
            parts = []
            while data := client.recv(1 << 16):
                parts.append(data)
        return b"".join(parts).decode()

    def _sh(self, command: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def _nc_half_closes() -> bool:
    """Return whether there is an nc that knows -N (OpenBSD's)."""
    if not shutil.which("nc"):
        return False
    usage = subprocess.run(["nc", "-h"], capture_output=True, text=True, check=False)
    return re.search(r"\[-\w*N\w*\]", usage.stdout + usage.stderr) is not None
