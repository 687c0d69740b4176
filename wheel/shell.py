"""``shell.run``: a handler that runs commands, for schedules that were crontabs.

It is served only where somebody asks for it (``wheeld work --shell``), because whoever may schedule
a job then runs commands here: each must stand in an allow-list, word for word, unless any command
is allowed. The payload is an object:

    command   for ``shell -c``
    stdin     what it reads; nothing if absent
    env       variables; beside them it gets only HOME, LOGNAME, USER, SHELL, PATH and what names
              the run (WHEELD_RUN_ID, WHEELD_LOGICAL_DATE), never the worker's own
    shell     /bin/sh if absent
    user      whom to run it as; the worker must be that user, or root

The command gets a process group of its own. A time-out, a lost lease and a cancelled job kill the
group. What it wrote last, to stdout and stderr, is kept: with exit code 0 in the run's result,
otherwise behind its error text, each as far as the protocol's limit lets it.
"""

import contextlib
import json
import os
import pwd
import selectors
import signal
import subprocess
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from wheel.handlers import App, Fail, Retry, Run
from wheel.system import SYSTEM, System

HANDLER: Final = "shell.run"
SHELL: Final = "/bin/sh"
SEARCH_PATH: Final = "/usr/bin:/bin"
OUTPUT_BYTES_MAX: Final = 4_096
RESULT_BYTES_MAX: Final = 4_096  # PROTOCOL.md: result of DONE
TERM_S: Final = 2.0  # between SIGTERM and SIGKILL
LINGER_S: Final = 1.0  # for output that is on its way when the command has ended

_CHUNK: Final = 65_536
_SETTINGS: Final = ("env", "user", "shell")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a job asks for."""

    command: str
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    shell: str = SHELL
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What may be run.

    Attributes:
        file: where that stands, for errors.
        commands: word for word.
        env: ``NAME=value``.
        users: beside the worker's own.
        shells: beside /bin/sh.
    """

    file: str
    commands: frozenset[str] = frozenset()
    env: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    shells: frozenset[str] = frozenset({SHELL})

    def refusal(self, order: Order) -> str | None:
        """Return why an order is refused, with the line that would allow it; None if it is not."""
        if order.command not in self.commands:
            return self._missing("the command", order.command)
        for name, value in order.env.items():
            if f"{name}={value}" not in self.env:
                return self._missing("the variable", f"env: {name}={value}")
        if order.shell not in self.shells:
            return self._missing("the shell", f"shell: {order.shell}")
        if order.user and order.user not in self.users:
            return self._missing("the user", f"user: {order.user}")
        return None

    def _missing(self, what: str, line: str) -> str:
        return f"{what} is not in the allow-list {self.file}; its line would be: {line}"


def read_allowed(text: str, file: str) -> Allowed:
    """Return an allow-list: a command a line, ``env: NAME=value``, ``user: name``, ``shell: path``.

    Blank lines and lines that begin with # say nothing.
    """
    found: dict[str, set[str]] = {key: set() for key in ("command", *_SETTINGS)}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, colon, value = stripped.partition(":")
        if colon and key in _SETTINGS:
            found[key].add(value.strip())
        else:
            found["command"].add(stripped)
    return Allowed(
        file=file,
        commands=frozenset(found["command"]),
        env=frozenset(found["env"]),
        users=frozenset(found["user"]),
        shells=frozenset(found["shell"] | {SHELL}),
    )


def read_order(payload: bytes) -> Order:
    """Return what a payload asks for.

    Raises:
        Fail: it is no such object; trying again would not help.
    """
    try:
        value: object = json.loads(payload)
    except ValueError as error:
        raise Fail(f"the payload is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Fail('the payload is not an object; write {"command": "..."}')
    given = cast("Mapping[str, object]", value)
    unknown = sorted(given.keys() - {"command", "stdin", "env", "shell", "user"})
    if unknown:
        raise Fail(f"the payload has {unknown[0]!r}, which shell.run does not know")
    env = given.get("env", {})
    pairs = cast("Mapping[str, object]", env) if isinstance(env, dict) else {"": env}
    for name, text in pairs.items():
        if not name or "=" in name or not isinstance(text, str) or "\0" in name + text:
            raise Fail(f"the variable {name!r} of the payload's env is not a name with a text")
    order = Order(
        command=_text(given, "command"),
        stdin=_text(given, "stdin").encode(),
        env=cast("Mapping[str, str]", pairs),
        shell=_text(given, "shell") or SHELL,
        user=_text(given, "user"),
    )
    if not order.command.strip():
        raise Fail('the payload has no command; write {"command": "..."}')
    return order


def _text(given: Mapping[str, object], key: str) -> str:
    value = given.get(key, "")
    if not isinstance(value, str) or (key != "stdin" and "\0" in value):
        raise Fail(f"the payload's {key} is not text without NUL")
    return value


class Shell:
    """Runs commands.

    Args:
        allowed: what may be run; None allows any command, as any user that the worker may become.
        system: clock.
    """

    def __init__(self, allowed: Allowed | None, system: System = SYSTEM) -> None:
        self._allowed = allowed
        self._system = system
        self._lock = threading.Lock()
        self._groups: set[_Group] = set()
        self._over = False

    def register(self, app: App) -> None:
        """Add ``shell.run`` to an app's handlers."""
        app.handler(HANDLER)(self.execute)

    def kill_all(self) -> None:
        """Kill every command that runs or is about to: the worker ends and hands back its jobs."""
        with self._lock:
            self._over = True
            groups = list(self._groups)
        for group in groups:
            group.kill(signal.SIGKILL)

    def execute(self, run: Run, payload: bytes) -> dict[str, object]:
        """Run a job's command to its end and return exit code and output.

        Raises:
            Fail: the command is not allowed, or cannot be run here.
            Retry: it ended with another code than 0, or was killed.
        """
        order = read_order(payload)
        refusal = None if self._allowed is None else self._allowed.refusal(order)
        if refusal is not None:
            raise Fail(refusal)
        with self._started(run, order) as group:
            timed_out = self._attend(group, order.stdin, _patience_s(run.timeout_ms / 1000))
            if timed_out or run.lost:  # the leader may be gone, and others of the group not
                group.kill(signal.SIGKILL)
        output = group.output()
        if timed_out:
            raise Retry(f"killed, its time of {run.timeout_ms / 1000:g} s is up", output=output)
        if run.lost:
            raise Retry(f"killed: the run was {run.lost_code.lower()}", output=output)
        if group.code:
            raise Retry(_ended(group.code), output=output)
        return _result(output)

    @contextlib.contextmanager
    def _started(self, run: Run, order: Order) -> Generator["_Group"]:
        """Have the command run, and be killed if the run is lost or this is left early."""
        group = _Group(_start(run, order))
        with self._lock:
            self._groups.add(group)
            over = self._over
        try:
            if over:
                group.kill(signal.SIGKILL)
            run.when_lost(lambda: group.kill(signal.SIGKILL))
            yield group
        finally:
            run.when_lost(None)
            if not group.ended:
                group.kill(signal.SIGKILL)
            group.close()
            with self._lock:
                self._groups.discard(group)

    def _attend(self, group: "_Group", stdin: bytes, timeout_s: float) -> bool:
        """Feed a command and read it until it has ended; whether it had to be killed."""
        deadline = self._system.monotonic() + timeout_s if timeout_s else None
        timed_out = False
        with group.watched(stdin) as watched:
            while watched.get_map():
                left_s = None if deadline is None else deadline - self._system.monotonic()
                wait_s = None if left_s is None else max(left_s, 0)
                if group.move([key.fd for key, _ in watched.select(wait_s)]):
                    deadline = self._system.monotonic() + LINGER_S
                elif left_s is not None and left_s <= 0:
                    if group.ended:
                        break  # whoever still holds its output is no longer waited for
                    group.kill(signal.SIGKILL if timed_out else signal.SIGTERM)
                    timed_out = True
                    deadline = self._system.monotonic() + TERM_S
        return timed_out


class _Group:
    """A command and the process group that it leads."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._ended_fd = os.pidfd_open(process.pid)
        self._unwritten = memoryview(b"")
        self._tail = bytearray()
        self.ended = False

    @property
    def code(self) -> int:
        """The exit code; below 0 the signal that ended it."""
        return self._process.wait()

    def output(self) -> bytes:
        """Return the last bytes of what it wrote."""
        return bytes(self._tail)

    def kill(self, number: signal.Signals) -> None:
        """Send the group a signal, unless its leader has been waited for."""
        with self._lock:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Wait for the leader, which has ended or was killed; give back what was open."""
        with self._lock:
            self._process.wait()
        os.close(self._ended_fd)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    @contextlib.contextmanager
    def watched(self, stdin: bytes) -> Generator[selectors.BaseSelector]:
        """Give what has to be waited for: input, output, and the leader's end."""
        self._unwritten = memoryview(stdin)
        with selectors.DefaultSelector() as watched:
            watched.register(self._ended_fd, selectors.EVENT_READ)
            for stream, events in (
                (self._process.stdout, selectors.EVENT_READ),
                (self._process.stdin, selectors.EVENT_WRITE),
            ):
                if stream is not None:
                    os.set_blocking(stream.fileno(), False)
                    watched.register(stream, events)
            self._watched = watched
            yield watched

    def move(self, ready: list[int]) -> bool:
        """Read and write what can be; whether the leader's end was seen now for the first time."""
        output = self._process.stdout
        just_ended = False
        for fd in ready:
            if fd == self._ended_fd:
                self._watched.unregister(fd)
                self.ended = just_ended = True
            elif output is not None and fd == output.fileno():
                self._read()
            else:
                self._write()
        return just_ended

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        data = stream.read(_CHUNK)
        if data is None:
            return
        if not data:
            self._watched.unregister(stream)
            return
        self._tail += data[-OUTPUT_BYTES_MAX:]
        del self._tail[:-OUTPUT_BYTES_MAX]

    def _write(self) -> None:
        stream = self._process.stdin
        assert stream is not None
        try:
            written = stream.write(self._unwritten[:_CHUNK]) or 0
        except BrokenPipeError:  # it does not want the rest
            written = len(self._unwritten)
        self._unwritten = self._unwritten[written:]
        if not self._unwritten:
            self._watched.unregister(stream)
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _start(run: Run, order: Order) -> subprocess.Popen[bytes]:
    """Return the command, started in a session of its own.

    Raises:
        Fail: no such user or shell, or this worker may not become that user.
    """
    try:
        entry = pwd.getpwnam(order.user) if order.user else pwd.getpwuid(os.geteuid())
    except KeyError:
        raise Fail(f"there is no user {order.user or os.geteuid()!r} here") from None
    home = order.env.get("HOME", entry.pw_dir)
    switch = entry.pw_uid != os.geteuid()
    if switch and os.geteuid():
        own = pwd.getpwuid(os.geteuid()).pw_name
        raise Fail(f"the command is {order.user}'s, and this worker is run by {own}")
    try:
        return subprocess.Popen(  # noqa: S603  (what it is for; see Allowed)
            [order.shell, "-c", order.command],
            bufsize=0,
            stdin=subprocess.PIPE if order.stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(run, order, entry),
            cwd=home if Path(home).is_dir() else "/",
            start_new_session=True,
            user=entry.pw_uid if switch else None,
            group=entry.pw_gid if switch else None,
            extra_groups=os.getgrouplist(entry.pw_name, entry.pw_gid) if switch else None,
        )
    except OSError as error:
        raise Fail(f"{order.shell} cannot be run: {error.strerror}") from error


def _environment(run: Run, order: Order, entry: pwd.struct_passwd) -> dict[str, str]:
    return {
        "HOME": entry.pw_dir,
        "LOGNAME": entry.pw_name,
        "USER": entry.pw_name,
        "SHELL": order.shell,
        "PATH": SEARCH_PATH,
        **order.env,
        "WHEELD_RUN_ID": run.run_id,
        "WHEELD_LOGICAL_DATE": run.logical_date or "",
    }


def _patience_s(timeout_s: float) -> float:
    """Return how long a command may run: a little less than its run, so that the end is told."""
    return timeout_s - min(timeout_s / 10, TERM_S + 0.5)


def _ended(code: int) -> str:
    if code > 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _result(output: bytes) -> dict[str, object]:
    """Return the result: as much of the output's end as the limit lets through as JSON."""
    text = output.decode("utf-8", "replace")
    while True:
        result: dict[str, object] = {"exit": 0, "output": text}
        data = json.dumps(result, separators=(",", ":"), ensure_ascii=False).encode()
        over = len(data) - RESULT_BYTES_MAX
        if over <= 0:
            return result
        text = text[-(-over // 6) :]  # a letter takes six bytes at most: never cut too much
