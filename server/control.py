"""The commands that Python answers: sign-in, connections, and what is about the server itself.

``Control.answer`` is a plain function of (connection, arguments): it changes connections through
``Core`` and returns an ``Outcome``; server/turns.py encodes and sends it. Nothing here waits, and
no step takes longer than a millisecond or two: what grows with the number of connections is made
step by step (server/clients.py).

Answers follow Redis where a client library looks at them, so that redis-cli, redis-py, hiredis,
ioredis and go-redis connect without special settings.
"""

import asyncio
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from server.answers import OK, Outcome, RefusedError, read_name, read_word, show
from server.auth import Token
from server.clients import Clients
from server.clients import Core as ClientsCore
from server.clock import Clock
from server.cron_commands import SUBCOMMANDS, CronCommands
from server.signin import SignIn
from server.verbs import VERBS, Verb
from wheel.engine.facts import Session
from wheel.wire import Answer, ReplyError, Simple

WRONG_TOKEN_DELAY_S: Final = 1.0
CONFIG_PATTERNS_MAX: Final = 32
# Of INFO: what no record changes. Asked for alone they tell of a log that is stuck while it is.
FREE_SECTIONS: Final = frozenset({"server", "clients", "log"})


class Core(ClientsCore, Protocol):
    """What this file needs of the C core; wheel.engine.core.Core has more."""

    def accept_clock(self) -> None:
        """Set the wall wheel's logical now to the wall clock."""
        ...


class Server(Protocol):
    """What this file needs of the daemon."""

    def info(self, sections: frozenset[str]) -> str:
        """Return the text of INFO; no sections = all."""
        ...

    def config(self) -> Mapping[str, str]:
        """Return what CONFIG GET may show."""
        ...

    def clock_state(self) -> Mapping[str, int]:
        """Return what CLOCK shows."""
        ...

    def shut_down(self, reason: str) -> None:
        """Begin an orderly stop."""
        ...

    def save(self) -> "asyncio.Future[Outcome]":
        """Make a checkpoint; becomes SAVE's answer."""
        ...

    def backup(self, handle: int, *, start: bool) -> "asyncio.Future[Outcome]":
        """Keep the files as they are for a connection, or let them go; becomes BACKUP's answer."""
        ...

    @property
    def term(self) -> int:
        """Return the leadership number of this run; 0 while the log is replayed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this server is, for HELLO and INFO.

    Attributes:
        version: of wheeld.
        store: the data directory's uuid, 32 hex digits.
    """

    version: str
    store: str


class Control:
    """Answers the control commands of one server."""

    def __init__(
        self,
        *,
        core: Core,
        server: Server,
        identity: Identity,
        clock: Clock,
        sign_in: SignIn,
    ) -> None:
        self._core = core
        self._server = server
        self._identity = identity
        self._clock = clock
        self._sign_in = sign_in
        self._clients = Clients(core)
        self._cron: CronCommands | None = None
        self._commands: dict[str, Callable[[Session, Sequence[bytes]], Outcome]] = {
            "HELLO": self._hello,
            "AUTH": self._auth,
            "CLIENT": self._clients.answer,
            "COMMAND": self._command,
            "INFO": self._info,
            "CONFIG": self._config,
            "TIME": self._time,
            "CLOCK": self._clock_command,
            "SELECT": self._select,
            "RESET": self._reset,
            "QUIT": self._quit,
            "SHUTDOWN": self._shutdown,
            "CRON": self._cron_command,
            "SAVE": self._save,
            "BACKUP": self._backup,
        }

    @property
    def names(self) -> frozenset[str]:
        """Return the commands that are answered here."""
        return frozenset(self._commands)

    def set_cron(self, commands: CronCommands) -> None:
        """Answer CRON from now on: the log is replayed and the schedules are there."""
        self._cron = commands

    def answer(self, handle: int, argv: Sequence[bytes]) -> Outcome:
        """Return what to do about one command.

        The core has looked at it before: the name is in its table, the number of arguments is
        within bounds, and the connection may send it, signed in or not, loading or not.

        Args:
            handle: the connection.
            argv: name and arguments.
        """
        session = self._core.session(handle)
        if session is None:
            return Outcome(silent=True)
        try:
            return self._commands[read_word(argv[0])](session, argv[1:])
        except RefusedError as error:
            return Outcome(value=ReplyError(error.code, str(error)))

    # ---------------------------------------------------------------- signing in

    def _hello(self, session: Session, args: Sequence[bytes]) -> Outcome:
        """HELLO [2|3] [AUTH user token] [SETNAME n]: nothing is changed if anything is refused."""
        resp = session.resp
        if args:
            if args[0] not in {b"2", b"3"}:
                raise RefusedError("NOPROTO", "unsupported protocol version, use 2 or 3")
            resp = int(args[0])
        token: Token | None = None
        signs_in = False
        name: str | None = None
        rest = list(args[1:])
        while rest:
            option = read_word(rest[0])
            if option == "AUTH" and len(rest) >= 3:
                token = self._sign_in.find(session, rest[1], rest[2])
                if token is None and self._sign_in.is_needed:
                    return self._wrong_token()
                signs_in, rest = True, rest[3:]
            elif option == "SETNAME" and len(rest) >= 2:
                name, rest = read_name(rest[1], "the connection's name"), rest[2:]
            else:
                raise RefusedError("SYNTAX", f"{show(rest[0])!r} in HELLO, see HELLO's options")
        if signs_in:
            self._sign_in.enter(session.handle, token, resp=resp, name=name)
        elif session.authed:
            self._core.set_session(session.handle, resp=resp, name=name)
        else:
            raise RefusedError("NOAUTH", "sign in: HELLO 3 AUTH name token, or AUTH token before")
        return Outcome(value=self._hello_map(session, resp))

    def _hello_map(self, session: Session, resp: int) -> dict[str, Answer]:
        return {
            "server": "wheeld",
            "version": self._identity.version,
            "proto": resp,
            "id": session.id,
            "mode": "standalone",
            "role": "master",
            "modules": [],
            "store": self._identity.store,
            "term": self._server.term,
        }

    def _auth(self, session: Session, args: Sequence[bytes]) -> Outcome:
        """AUTH [name] token."""
        if len(args) > 2:
            raise RefusedError("SYNTAX", "AUTH takes [name] token")
        if not self._sign_in.is_needed:
            raise RefusedError(
                "ERR", "AUTH was called, but this server has no --token-file: nothing to sign in to"
            )
        token = self._sign_in.find(session, args[0] if len(args) == 2 else None, args[-1])
        if token is None:
            return self._wrong_token()
        self._sign_in.enter(session.handle, token)
        return Outcome(value=OK)

    def _wrong_token(self) -> Outcome:
        return Outcome(
            value=ReplyError("WRONGPASS", "no such name and token, see the server's token file"),
            delay_s=WRONG_TOKEN_DELAY_S,
        )

    # ---------------------------------------------------------------- the connection

    def _select(self, _session: Session, args: Sequence[bytes]) -> Outcome:
        if args[0] != b"0":
            raise RefusedError("ERR", f"DB index {show(args[0])!r} is out of range, there is 0")
        return Outcome(value=OK)

    def _reset(self, session: Session, _args: Sequence[bytes]) -> Outcome:
        self._clients.forget(session.handle)
        self._sign_in.leave(session.handle)
        return Outcome(value=Simple("RESET"))

    def _quit(self, _session: Session, _args: Sequence[bytes]) -> Outcome:
        return Outcome(value=OK, close=True)

    # ---------------------------------------------------------------- the server

    def _info(self, _session: Session, args: Sequence[bytes]) -> Outcome:
        sections = frozenset(argument[:64].decode("latin-1").lower() for argument in args)
        everything = sections & {"all", "everything", "default"}
        text = self._server.info(frozenset() if everything else sections)
        return Outcome(value=text, gated=not (sections and sections <= FREE_SECTIONS))

    def _config(self, _session: Session, args: Sequence[bytes]) -> Outcome:
        """CONFIG GET pattern [pattern ...]."""
        if read_word(args[0]) != "GET" or len(args) < 2:
            raise RefusedError(
                "ERR", "CONFIG knows GET pattern only: options are set where the server is started"
            )
        if len(args) - 1 > CONFIG_PATTERNS_MAX:
            raise RefusedError("LIMIT", f"CONFIG GET takes at most {CONFIG_PATTERNS_MAX} patterns")
        patterns = [argument[:200].decode("latin-1").lower() for argument in args[1:]]
        return Outcome(
            value={
                name: value
                for name, value in self._server.config().items()
                if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
            }
        )

    def _time(self, _session: Session, _args: Sequence[bytes]) -> Outcome:
        seconds, ms = divmod(self._clock.wall_ms(), 1000)
        return Outcome(value=[str(seconds), str(ms * 1000)])

    def _clock_command(self, _session: Session, args: Sequence[bytes]) -> Outcome:
        """CLOCK shows both axes; CLOCK ACCEPT ends a CLOCK_HELD."""
        if args:
            if len(args) != 1 or read_word(args[0]) != "ACCEPT":
                raise RefusedError("SYNTAX", "CLOCK takes nothing or ACCEPT")
            self._core.accept_clock()
        return Outcome(value=dict(self._server.clock_state()), gated=True)

    def _shutdown(self, _session: Session, args: Sequence[bytes]) -> Outcome:
        if len(args) > 1 or (args and read_word(args[0]) not in {"SAVE", "NOSAVE", "NOW"}):
            raise RefusedError("SYNTAX", "SHUTDOWN takes nothing, SAVE or NOSAVE")
        self._server.shut_down("SHUTDOWN")
        return Outcome(silent=True)

    def _cron_command(self, session: Session, args: Sequence[bytes]) -> Outcome:
        if self._cron is None:
            raise RefusedError("LOADING", "the schedules are being read; try again soon")
        return self._cron.answer(session, args)

    def _save(self, _session: Session, _args: Sequence[bytes]) -> Outcome:
        return Outcome(later=self._server.save())

    def _backup(self, session: Session, args: Sequence[bytes]) -> Outcome:
        """BACKUP START|END."""
        word = read_word(args[0])
        if word not in {"START", "END"}:
            raise RefusedError("SYNTAX", f"BACKUP takes START or END, not {show(args[0])!r}")
        return Outcome(later=self._server.backup(session.handle, start=word == "START"))

    # ---------------------------------------------------------------- COMMAND

    def _command(self, _session: Session, args: Sequence[bytes]) -> Outcome:
        """COMMAND [COUNT|DOCS|INFO|LIST]."""
        if not args:
            return Outcome(value=[_command_row(verb) for verb in VERBS.values()])
        word = read_word(args[0])
        if word == "COUNT":
            return Outcome(value=len(VERBS))
        if word == "LIST":
            return Outcome(value=[verb.name.lower() for verb in VERBS.values()])
        wanted = [read_word(argument) for argument in args[1:]] or list(VERBS)
        if word == "INFO":
            rows = (VERBS.get(name) for name in wanted)
            return Outcome(value=[_command_row(verb) if verb else None for verb in rows])
        if word == "DOCS":
            return Outcome(
                value={
                    VERBS[name].name.lower(): _command_docs(VERBS[name])
                    for name in wanted
                    if name in VERBS
                }
            )
        raise RefusedError("ERR", f"unknown subcommand {show(args[0])!r} of COMMAND")


def _command_row(verb: Verb) -> Answer:
    """Return one element of COMMAND: name, arity, flags, first key, last key, step, and so on."""
    key = verb.key
    flags = [Simple(flag) for flag in verb.flags]
    step = min(key, 1)
    forms: list[Answer] = [
        [f"{verb.name}|{form}".lower(), -2, flags, key, key, step, _categories(roles), [], [], []]
        for form, roles in verb.forms.items()
    ]
    roles = _categories(verb.roles)
    return [verb.name.lower(), verb.arity, flags, key, key, step, roles, [], [], forms]


def _categories(roles: Sequence[str]) -> list[Answer]:
    """Return roles in the place where Redis has categories of commands: ``@viewer``."""
    return [Simple(f"@{role}") for role in roles]


def _command_docs(verb: Verb) -> Answer:
    """Return one entry of COMMAND DOCS, as redis-cli reads it for its help."""
    docs = _docs(verb.summary, verb.group, verb.arguments)
    if verb.name == "CRON":
        docs["subcommands"] = {
            f"cron|{name.lower()}": _docs(summary, verb.group, arguments)
            for name, (arguments, summary) in SUBCOMMANDS.items()
        }
    return docs


def _docs(summary: str, group: str, arguments: str) -> dict[str, Answer]:
    docs: dict[str, Answer] = {
        "summary": summary,
        "since": "0.1.0",
        "group": group,
        "complexity": "O(1)",
    }
    if arguments:
        docs["arguments"] = [
            {
                "name": "syntax",
                "type": "pure-token",  # of another type redis-cli shows token and name
                "display_text": arguments,
                "token": arguments,
            }
        ]
    return docs
