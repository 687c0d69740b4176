"""CLIENT: what a connection says of itself, and who else is connected.

LIST and KILL look at every connection. With ten thousand of them that takes a fifth of a second, so
it is done in steps, between which everything else has its turn.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from server.answers import OK, Outcome, RefusedError, Work, read_name, read_number, read_word, show
from server.auth import DEFAULT_USER
from wheel.engine.facts import Session
from wheel.wire import ReplyError

CONNECTIONS_A_STEP: Final = 32  # about 1 ms
FORGET_A_TIME: Final = 2


class Core(Protocol):
    """What this file needs of the C core; wheel.engine.core.Core has more."""

    def walk_sessions(self) -> Iterator[Session]:
        """Yield the open connections, in no order; other calls may come in between."""
        ...

    def session(self, handle: int) -> Session | None:
        """Return one connection, None when it is gone."""
        ...

    def set_session(
        self,
        handle: int,
        *,
        resp: int | None = None,
        name: str | None = None,
        user: str | None = None,
        authed: bool | None = None,
        roles: int | None = None,
        globs: str = "",
    ) -> None:
        """Change what is given; a connection that is gone is left alone."""
        ...

    def close_session(self, handle: int) -> None:
        """Close a connection when what was answered so far has left."""
        ...

    def kill_session(self, handle: int) -> bool:
        """Close a connection without another byte; False when it is gone."""
        ...


class Clients:
    """Answers CLIENT."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # What connections said of their libraries, oldest first; see _remember.
        self._libraries: dict[int, dict[str, str]] = {}
        self._commands: dict[str, Callable[[Session, Sequence[bytes]], Outcome]] = {
            "ID": lambda session, _: Outcome(value=session.id),
            "GETNAME": lambda session, _: Outcome(value=session.name.encode() or None),
            "SETNAME": self._set_name,
            "SETINFO": self._set_info,
            "INFO": lambda session, _: Outcome(value=self._line(session)),
            "LIST": self._list,
            "KILL": self._kill,
            "NO-EVICT": self._switch,
            "NO-TOUCH": self._switch,
            "REPLY": self._reply,
        }

    def answer(self, session: Session, args: Sequence[bytes]) -> Outcome:
        """Answer CLIENT and its subcommands.

        Raises:
            RefusedError: with the reply's text.
        """
        command = self._commands.get(read_word(args[0]))
        if command is None:
            known = ", ".join(self._commands)
            raise RefusedError(
                "ERR", f"unknown subcommand {show(args[0])!r} of CLIENT, there are {known}"
            )
        return command(session, args[1:])

    # ---------------------------------------------------------------- what one says of itself

    def _set_name(self, session: Session, args: Sequence[bytes]) -> Outcome:
        if len(args) != 1:
            raise RefusedError("SYNTAX", "CLIENT SETNAME takes one name")
        self._core.set_session(session.handle, name=read_name(args[0], "the connection's name"))
        return Outcome(value=OK)

    def _set_info(self, session: Session, args: Sequence[bytes]) -> Outcome:
        if len(args) != 2:
            raise RefusedError("SYNTAX", "CLIENT SETINFO takes LIB-NAME or LIB-VER and a value")
        option = read_word(args[0])
        if option not in {"LIB-NAME", "LIB-VER"}:
            raise RefusedError("ERR", f"unknown option {show(args[0])!r} of CLIENT SETINFO")
        value = read_name(args[1], option)
        if session.handle not in self._libraries:
            self._forget_some()
        self._libraries.setdefault(session.handle, {})[option.lower()] = value
        return Outcome(value=OK)

    def _forget_some(self) -> None:
        """Look at the two oldest entries: drop them if their connections are gone.

        One new entry for two looks, so those of gone connections never outnumber the others by
        much, and no look at all of them is ever needed.
        """
        for handle in list(itertools.islice(self._libraries, FORGET_A_TIME)):
            library = self._libraries.pop(handle)
            if self._core.session(handle) is not None:
                self._libraries[handle] = library

    def forget(self, handle: int) -> None:
        """Drop what a connection said of itself (RESET)."""
        self._libraries.pop(handle, None)

    @staticmethod
    def _switch(_session: Session, args: Sequence[bytes]) -> Outcome:
        """NO-EVICT and NO-TOUCH: nothing is ever evicted here, so both are true already."""
        if len(args) != 1 or read_word(args[0]) not in {"ON", "OFF"}:
            raise RefusedError("SYNTAX", "write ON or OFF")
        return Outcome(value=OK)

    @staticmethod
    def _reply(_session: Session, args: Sequence[bytes]) -> Outcome:
        if len(args) != 1 or read_word(args[0]) != "ON":
            raise RefusedError("ERR", "CLIENT REPLY knows ON only: every command is answered")
        return Outcome(value=OK)

    # ---------------------------------------------------------------- who else is there

    def _walk(self) -> Iterator[Session | None]:
        """Yield every connection, and None wherever others may have their turn."""
        for count, session in enumerate(self._core.walk_sessions(), start=1):
            yield session
            if count % CONNECTIONS_A_STEP == 0:
                yield None

    def _line(self, session: Session) -> str:
        """Return a connection as one line of CLIENT LIST."""
        library = self._libraries.get(session.handle, {})
        fields = {
            "id": session.id,
            "addr": session.peer,
            "laddr": session.local,
            "name": session.name,
            "age": session.age_ms // 1000,
            "idle": session.idle_ms // 1000,
            "flags": "b" if session.waiting else "N",
            "db": 0,
            "qbuf": session.input_bytes,
            "omem": session.output_bytes,
            "user": session.user or DEFAULT_USER,
            "resp": session.resp,
            "lib-name": library.get("lib-name", ""),
            "lib-ver": library.get("lib-ver", ""),
        }
        return " ".join(f"{name}={value}" for name, value in fields.items())

    def _list(self, _session: Session, args: Sequence[bytes]) -> Outcome:
        """CLIENT LIST [TYPE NORMAL] or [ID id ...]."""
        wanted: frozenset[int] | None = None
        if args:
            option = read_word(args[0])
            if option == "ID" and len(args) >= 2:
                wanted = frozenset(read_number(argument, "ID") for argument in args[1:])
            elif option != "TYPE" or len(args) != 2 or read_word(args[1]) != "NORMAL":
                raise RefusedError("SYNTAX", "CLIENT LIST takes TYPE NORMAL or ID id [id ...]")
        return Outcome(work=self._list_work(wanted))

    def _list_work(self, wanted: frozenset[int] | None) -> Work:
        """Make the list, in the order of connecting."""
        lines: dict[int, str] = {}
        for session in self._walk():
            if session is None:
                yield
            elif wanted is None or session.id in wanted:
                lines[session.id] = f"{self._line(session)}\n"
        return "".join(line for _, line in sorted(lines.items()))

    def _kill(self, session: Session, args: Sequence[bytes]) -> Outcome:
        """CLIENT KILL address:port, or ID|ADDR|LADDR|USER|SKIPME value pairs."""
        if len(args) == 1:
            return Outcome(work=self._kill_one(session, args[0]))
        if len(args) % 2 or not args:
            raise RefusedError("SYNTAX", "CLIENT KILL takes an address, or pairs as ID 7")
        skip_me, wanted = _kill_conditions(args)
        return Outcome(work=self._kill_many(session, wanted, skip_me=skip_me))

    def _kill_one(self, asker: Session, address: bytes) -> Work:
        """Close the connection with this address: OK, or an error that there is none."""
        peer = address.decode("latin-1")
        for session in self._walk():
            if session is None:
                yield
            elif session.peer == peer:
                self._end(asker, session)
                return OK
        return ReplyError("ERR", f"no such client {show(address)!r}, see CLIENT LIST")

    def _kill_many(
        self, asker: Session, wanted: Sequence[tuple[str, str]], *, skip_me: bool
    ) -> Work:
        """Close the connections that meet all conditions; their number."""
        killed = 0
        for session in self._walk():
            if session is None:
                yield
                continue
            has = {
                "ID": str(session.id),
                "ADDR": session.peer,
                "LADDR": session.local,
                "USER": session.user,
            }
            mine = session.handle == asker.handle
            if not (mine and skip_me) and all(has[option] == value for option, value in wanted):
                self._end(asker, session)
                killed += 1
        return killed

    def _end(self, asker: Session, session: Session) -> None:
        """Close a connection at once; the asker's own behind its answer."""
        if session.handle == asker.handle:
            self._core.close_session(session.handle)
        else:
            self._core.kill_session(session.handle)


def _kill_conditions(args: Sequence[bytes]) -> tuple[bool, list[tuple[str, str]]]:
    """Return SKIPME, and the (ID|ADDR|LADDR|USER, value) pairs that a connection must meet."""
    skip_me = True
    wanted: list[tuple[str, str]] = []
    for option, value in zip(args[::2], args[1::2], strict=True):
        word, text = read_word(option), value.decode("latin-1")
        if word == "SKIPME" and text.upper() in {"YES", "NO"}:
            skip_me = text.upper() == "YES"
        elif word in {"ID", "ADDR", "LADDR", "USER"}:
            wanted.append((word, text))
        else:
            raise RefusedError("SYNTAX", f"{show(option)!r} in CLIENT KILL is not known")
    if not wanted:
        raise RefusedError("SYNTAX", "CLIENT KILL needs ID, ADDR, LADDR or USER")
    return skip_me, wanted
