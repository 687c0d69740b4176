"""One connection to the server, a pool of them, and the rule of trying again.

Every wait has an end: a connection 2 s, a call 5 s in all. What may be repeated (every command
here, because SCHEDULE carries a ONCE token) is repeated until the call's deadline, with pauses of
25 ms doubling to 400 ms under full jitter, when the connection is refused or breaks, and when the
server answers LOADING or TRYAGAIN.

A pool has no lock: the one mutable thing in it is a deque, whose ends are atomic. It belongs to
the process that filled it; after a fork the child starts with an empty one, so that no socket is
ever spoken on by two processes.

``wheelds://`` is the same over TLS. The server's certificate is always checked, its name too: there
is no switch that turns that off. ``?ca=FILE`` (or WHEELD_CA) names who vouches for it where that is
not one of the system's; ``?cert=FILE&key=FILE`` (or WHEELD_CERT, WHEELD_KEY) is the client's own.
"""

import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from wheel.errors import (
    AuthError,
    BusyError,
    ConnectError,
    InvalidRequest,
    ProtocolError,
    UnavailableError,
    WheeldTimeout,
    from_reply,
    in_words,
)
from wheel.system import System
from wheel.wire import NOT_READY, Reply, ReplyError, ReplyReader, WireError, encode_command

T = TypeVar("T")

DEFAULT_URL: Final = "wheeld://127.0.0.1:8463"
DEFAULT_PORT: Final = 8463
DEFAULT_TLS_PORT: Final = 8464
PAUSE_FIRST_S: Final = 0.025
PAUSE_MAX_S: Final = 0.4
RETRIED_CODES: Final = frozenset({"LOADING", "TRYAGAIN"})

_TLS_FILES: Final = {"ca": "WHEELD_CA", "cert": "WHEELD_CERT", "key": "WHEELD_KEY"}
_RECEIVE_BYTES: Final = 1 << 16
_POOLED_MAX: Final = 16  # idle connections kept; more threads than this reconnect now and then
_PLAIN_IDS: Final = b"$0123456789\r\n"  # all that a run of bulk ids consists of
_ID_HEADS: Final = frozenset(b"$%d" % digits for digits in range(1, 20))  # ids are < 2^63


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is and how to be let in.

    Attributes:
        host: name or IP address.
        port: TCP port.
        user: name for AUTH.
        token: secret for AUTH; empty for none. Never shown.
        tls: speak TLS, checking the server's certificate.
        ca: PEM file of who vouches for it; empty = the system's.
        certificate: PEM file of our own; empty = none.
        key: PEM file of its key; empty = in the same file.
    """

    host: str
    port: int
    user: str = "default"
    token: str = field(default="", repr=False)
    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wheelds' if self.tls else 'wheeld'}://{host}:{self.port}"


def parse_url(url: str, environ: Mapping[str, str] = os.environ) -> Address:
    """Return the address that a URL names.

    ``wheeld://[[user]:token@]host[:port]``, or ``wheelds://...[?ca=F&cert=F&key=F]`` for TLS.

    Args:
        url: the URL.
        environ: WHEELD_CA, WHEELD_CERT, WHEELD_KEY stand in for what a TLS URL does not name.

    Raises:
        InvalidRequest: another scheme, no host, a bad port, or an option that is not one of these.
            The message leaves the token out.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise InvalidRequest(f"the server's URL cannot be read: {error}") from None
    tls = parts.scheme == "wheelds"
    if not (tls or parts.scheme == "wheeld") or not parts.hostname or parts.path not in {"", "/"}:
        raise InvalidRequest(
            f"a server's URL is wheeld://[:token@]host[:port], like {DEFAULT_URL}, or wheelds:// "
            f"for TLS; this one has the scheme {parts.scheme!r} and the host {parts.hostname!r}"
        )
    files = dict(options)
    if strange := sorted(files.keys() - (_TLS_FILES.keys() if tls else ())):
        raise InvalidRequest(
            f"the server's URL has {strange[0]!r}; a wheelds:// URL may have "
            f"{', '.join(_TLS_FILES)} behind a ?, a wheeld:// URL nothing"
        )
    if tls:
        files = {
            name: files.get(name) or environ.get(variable, "")
            for name, variable in _TLS_FILES.items()
        }
    return Address(
        host=parts.hostname,
        port=port or (DEFAULT_TLS_PORT if tls else DEFAULT_PORT),
        user=unquote(parts.username or "") or "default",
        token=unquote(parts.password or ""),
        tls=tls,
        ca=files.get("ca", ""),
        certificate=files.get("cert", ""),
        key=files.get("key", ""),
    )


class Pauses:
    """The pauses between attempts: up to 25 ms, 50, 100, 200, 400, 400, ..., fully jittered."""

    __slots__ = ("_cap_s", "_system")

    def __init__(self, system: System) -> None:
        self._system = system
        self._cap_s = PAUSE_FIRST_S

    def next_s(self) -> float:
        """Return the next pause in seconds."""
        pause_s = self._system.uniform(0.0, self._cap_s)
        self._cap_s = min(2 * self._cap_s, PAUSE_MAX_S)
        return pause_s

    def reset(self) -> None:
        """Begin again with the shortest."""
        self._cap_s = PAUSE_FIRST_S

    def sleep_before(self, deadline: float) -> bool:
        """Sleep for the next pause; False, without sleeping, if it would not end in time."""
        pause_s = self.next_s()
        if self._system.monotonic() + pause_s >= deadline:
            return False
        self._system.sleep(pause_s)
        return True


class Connection:
    """A connected, greeted socket. For one thread at a time; after any error only ``close`` it."""

    __slots__ = ("_raw", "_reader", "_socket", "_system", "address", "store")

    def __init__(self, address: Address, connected: socket.socket, system: System) -> None:
        self.address = address
        self.store = ""
        self._socket = connected
        self._system = system
        self._reader = ReplyReader()
        self._raw = b""  # received, not yet fed to the reader: see receive_ids

    def send(self, data: bytes, deadline: float) -> None:
        """Send all of ``data``.

        Raises:
            ConnectError: the connection broke.
            WheeldTimeout: not all was taken before the deadline.
        """
        try:
            self._socket.settimeout(self._left_s(deadline))
            self._socket.sendall(data)
        except TimeoutError:
            raise self._timeout() from None
        except OSError as error:
            raise ConnectError(
                f"{self.address}: the connection broke: {in_words(error)}"
            ) from error

    def receive(self, deadline: float) -> Reply:
        """Return the next reply; an error reply is returned as a ReplyError.

        Raises:
            ConnectError: the connection broke or was closed.
            WheeldTimeout: no whole reply came before the deadline.
            ProtocolError: what came is not RESP.
        """
        if self._raw:
            self._reader.feed(self._raw)
            self._raw = b""
        try:
            while (reply := self._reader.gets()) is NOT_READY:
                self._reader.feed(self._receive_bytes(deadline))
        except WireError as error:
            raise ProtocolError(
                f"{self.address}: no wheeld server answers there: {error}"
            ) from error
        return reply

    def receive_ids(self, count: int, deadline: float) -> list[int] | None:
        """Return the next ``count`` replies if each of them is an id, else None.

        None consumes nothing: ``receive`` then gives the replies one by one. Only to be called
        while ``receive`` has not been called since the last command, or after another
        ``receive_ids`` that was not None; so the reader holds no half of a reply.

        Raises:
            ConnectError: the connection broke or was closed.
            WheeldTimeout: they did not all come before the deadline.
        """
        while self._raw.count(b"\r\n") < 2 * count:
            if self._raw.translate(None, _PLAIN_IDS):
                return None
            self._raw += self._receive_bytes(deadline)
        words = self._raw.split(b"\r\n", 2 * count)
        if not _ID_HEADS.issuperset(words[0:-1:2]):
            return None
        try:
            ids = [int(word) for word in words[1:-1:2]]
        except ValueError:
            return None
        self._raw = words[-1]
        return ids

    def ask(self, command: bytes, deadline: float) -> Reply:
        """Return the reply to one command; an error reply is returned as a ReplyError.

        Raises:
            UnavailableError: as for ``send`` and ``receive``.
            ProtocolError: what came is not RESP.
        """
        self.send(command, deadline)
        return self.receive(deadline)

    def end_input(self) -> None:
        """Tell the server that no command will follow: it answers what it has, then closes.

        May be called from any thread while another one is in ``receive``.
        """
        try:
            # Not SSLSocket's own, behind which nothing could be read any more.
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
        except OSError:
            return  # broken already: the reader finds out by itself

    def close(self) -> None:
        """Close the socket; may be repeated."""
        self._socket.close()

    def greet(self, deadline: float) -> None:
        """Say HELLO, with the token if there is one, and keep the store's id.

        Raises:
            AuthError: the token is missing or wrong.
            UnavailableError: as for ``send`` and ``receive``.
            ProtocolError: the peer is not wheeld.
        """
        words: list[str | bytes | int] = ["HELLO", 2]
        if self.address.token:
            words += ["AUTH", self.address.user, self.address.token]
        try:
            greeting = fields(checked(self.ask(encode_command(words), deadline)))
        except AuthError as error:
            if error.code == "NOAUTH":  # its text is for who types commands
                told = AuthError(
                    f"NOAUTH {self.address}: the server wants a token, and the URL has none; "
                    "write wheeld://:TOKEN@host:port, or set WHEELD_URL to that"
                )
                told.code = error.code
                raise told from error
            raise
        except ConnectError as error:
            raise ConnectError(
                f"{error} before it said hello; is it wheeld's port, and one without TLS?"
                if not self.address.tls
                else f"{error} before it said hello"
            ) from error
        if (server := text(greeting.get("server", ""))) != "wheeld":
            raise ProtocolError(f"{self.address}: that is not wheeld but {server!r}")
        self.store = text(greeting.get("store", ""))

    def _receive_bytes(self, deadline: float) -> bytes:
        try:
            self._socket.settimeout(self._left_s(deadline))
            data = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError:
            raise self._timeout() from None
        except OSError as error:
            raise ConnectError(
                f"{self.address}: the connection broke: {in_words(error)}"
            ) from error
        if not data:
            raise ConnectError(f"{self.address}: the server closed the connection")
        return data

    def _left_s(self, deadline: float) -> float:
        left_s = deadline - self._system.monotonic()
        if left_s <= 0:  # settimeout(0) would mean: do not block at all
            raise TimeoutError
        return left_s

    def _timeout(self) -> WheeldTimeout:
        return WheeldTimeout(f"{self.address}: no answer in time; whether it was done is unknown")


def connect(address: Address, system: System, *, deadline: float, timeout_s: float) -> Connection:
    """Return a greeted connection.

    Args:
        address: of the server.
        system: the clock.
        deadline: of everything, in ``system.monotonic``'s seconds.
        timeout_s: for the connection alone; what is left until the deadline if that is less.

    Raises:
        ConnectError: refused, unreachable, or broken while greeting.
        WheeldTimeout: the server did not greet back before the deadline.
        AuthError: the token is missing or wrong, or the server's certificate is not good.
        InvalidRequest: a file of certificates cannot be used.
    """
    left_s = max(min(timeout_s, deadline - system.monotonic()), 0.001)
    encrypt = _encryption(address)
    try:
        connected = socket.create_connection((address.host, address.port), left_s)
    except OSError as error:
        raise ConnectError(
            f"{address}: cannot connect: {in_words(error)}; is the server running (`wheeld serve`)?"
        ) from error
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected = encrypt(connected, left_s)
    except BaseException:
        connected.close()
        raise
    connection = Connection(address, connected, system)
    try:
        connection.greet(deadline)
    except BaseException:
        connection.close()
        raise
    return connection


def _encryption(address: Address) -> Callable[[socket.socket, float], socket.socket]:
    """Return what makes of a connected socket one to speak on, within a time in seconds.

    Raises:
        InvalidRequest: a file of certificates cannot be used.
    """
    if not address.tls:
        return lambda connected, _: connected
    from wheel.tls import context_of, encrypt  # noqa: PLC0415 -- as slow to load as all the rest

    context = context_of(address)
    return lambda connected, timeout_s: encrypt(connected, context, address, timeout_s)


class Pool:
    """Idle connections to one address, shared by the threads of one process."""

    __slots__ = ("_idle", "_pid", "address", "connect_timeout_s", "system")

    def __init__(self, address: Address, system: System, *, connect_timeout_s: float) -> None:
        self.address = address
        self.system = system
        self.connect_timeout_s = connect_timeout_s
        self._pid = os.getpid()
        self._idle: deque[Connection] = deque(maxlen=_POOLED_MAX)

    def take(self, deadline: float) -> Connection:
        """Return a connection that nobody else uses: an idle one or a new one.

        Raises:
            UnavailableError: as for ``connect``.
            AuthError: as for ``connect``.
        """
        if self._pid != os.getpid():
            self.close()  # our copies of the parent's sockets; the parent's stay open
            self._pid = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return connect(
                self.address, self.system, deadline=deadline, timeout_s=self.connect_timeout_s
            )

    def give(self, connection: Connection) -> None:
        """Take back a connection on which nothing is outstanding."""
        if len(self._idle) < _POOLED_MAX and self._pid == os.getpid():
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:  # another thread took the last one
                return


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and the id of the store that gave it."""

    value: Reply
    store: str


def ask(pool: Pool, command: bytes, timeout_s: float) -> Answer:
    """Return the answer to a command that may be repeated; tries until ``timeout_s`` is over.

    Raises:
        UnavailableError: not reached, not answered, or put off until the deadline.
        WheeldError: the server refused.
    """

    def once(deadline: float) -> Answer:
        connection = pool.take(deadline)
        try:
            reply = connection.ask(command, deadline)
        except BaseException:
            connection.close()
            raise
        pool.give(connection)
        return Answer(checked(reply), connection.store)

    return retried(once, pool.system, timeout_s)


def retried(attempt: Callable[[float], T], system: System, timeout_s: float) -> T:
    """Return what ``attempt(deadline)`` returns, tried again until the deadline.

    Raises:
        UnavailableError: the last attempt's, when no time is left for another.
    """
    deadline = system.monotonic() + timeout_s
    pauses = Pauses(system)
    while True:
        try:
            return attempt(deadline)
        except (ConnectError, BusyError) as error:
            if not may_retry(error) or not pauses.sleep_before(deadline):
                raise


def may_retry(error: UnavailableError) -> bool:
    """Return whether the same call may succeed in a moment."""
    return isinstance(error, ConnectError) or error.code in RETRIED_CODES


def checked(reply: Reply) -> Reply:
    """Return a reply that is no error.

    Raises:
        WheeldError: the class that the error's code stands for.
    """
    if isinstance(reply, ReplyError):
        raise from_reply(reply.code, reply.text)
    return reply


def text(value: object) -> str:
    """Return a reply's string, whichever of RESP's kinds it came as."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def number(value: object) -> int:
    """Return a reply's number, whether it came as an integer or as digits.

    Raises:
        ProtocolError: it is neither.
    """
    if isinstance(value, int):
        return value
    try:
        return int(text(value))
    except ValueError:
        raise ProtocolError(f"the server answered {value!r} where a number belongs") from None


def array(value: Reply, least: int = 0) -> list[Reply]:
    """Return a reply that is an array of ``least`` elements or more.

    Raises:
        ProtocolError: it is not.
    """
    if not isinstance(value, list):
        raise ProtocolError(f"the server answered {value!r} where an array belongs")
    if len(value) < least:
        raise ProtocolError(f"the server answered {len(value)} elements, not {least}")
    return value


def fields(value: Reply) -> dict[str, Reply]:
    """Return a reply that is a map, in RESP2's form (names and values in turn) or RESP3's.

    Raises:
        ProtocolError: it is neither.
    """
    if isinstance(value, dict):
        return {text(name): entry for name, entry in value.items()}
    flat = array(value)
    return {text(name): entry for name, entry in zip(flat[::2], flat[1::2], strict=False)}
