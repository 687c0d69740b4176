"""TLS connections: sockets that Python reads and writes, for the core's fed connections.

A peer goes through its handshake, one step of one peer a turn of the loop, so that a storm of
handshakes (a millisecond each) leaves room for everything else; then its bytes go in by
``fed_input`` and come out by ``fed_output``. What the core says of a connection is obeyed: nothing
is read while it wants no input, and while the kernel refuses bytes it is told so, and no job is
leased to that peer. Bytes are "taken" when the kernel has them, not before: a job whose reply did
not leave whole goes back.

Sockets are read and written here and not by asyncio's own TLS, whose transports hold a buffer of
their own between us and the kernel.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from server.auth import Token
from server.tls import certificate_names
from wheel.engine.facts import FedOutput
from wheel.errors import CoreError

HANDSHAKES_MAX: Final = 256  # in flight
HANDSHAKES_OF_ONE_MAX: Final = 32  # of these from one address
HANDSHAKE_S: Final = 10.0
ACCEPTS_A_TURN: Final = 16
ACCEPT_AGAIN_S: Final = 0.2  # after there was no descriptor
RECORD_BYTES: Final = 16 * 1024  # TLS's largest
READ_BYTES: Final = 64 * 1024
READS_A_TURN: Final = 4
WRITE_BYTES_A_TURN: Final = 512 * 1024
LINGER_BYTES: Final = 1024 * 1024  # unread input thrown away at the end, so that none resets it
# A peer gone for 15 s holds no lease: as in csrc/wd_net.c.
SOCKET_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000),
)
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Core(Protocol):
    """What this file needs of the C core."""

    def fed_open(self, peer: str) -> int:
        """Return the handle of a new connection. Raises CoreError when there is no room."""
        ...

    def fed_input(self, handle: int, data: bytes) -> bool:
        """Run what came in; False when the connection is gone."""
        ...

    def fed_eof(self, handle: int) -> bool:
        """The peer has sent all it will; False when the connection is gone."""
        ...

    def fed_wants_input(self, handle: int) -> bool:
        """Return whether there may be read."""
        ...

    def fed_blocked(self, handle: int, *, blocked: bool) -> None:
        """Tell whether bytes are refused."""
        ...

    def fed_ready(self) -> Iterator[int]:
        """Yield connections that have bytes to send or are to be closed."""
        ...

    def fed_output(self, handle: int) -> FedOutput:
        """Return what may leave."""
        ...

    def fed_taken(self, handle: int, count: int) -> None:
        """The kernel took so many bytes."""
        ...

    def fed_close(self, handle: int) -> None:
        """Forget a connection."""
        ...

    def connections(self) -> int:
        """Return how many connections there are, all kinds."""
        ...


class SignIn(Protocol):
    """What this file needs of the sign-in."""

    def by_certificate(self, names: list[str]) -> Token | None:
        """Return the token that a certificate stands for."""
        ...

    def enter(self, handle: int, token: Token | None) -> None:
        """Sign a connection in."""
        ...


class Peer:
    """One socket. Before the handshake is done it has no handle."""

    __slots__ = ("address", "blocked", "eof", "handle", "host", "reading", "sock", "timer")

    def __init__(self, sock: ssl.SSLSocket, host: str, address: str) -> None:
        self.sock = sock
        self.host = host
        self.address = address
        self.handle = 0
        self.timer: asyncio.TimerHandle | None = None
        self.reading = False
        self.blocked = False
        self.eof = False


class TlsServer:
    """Everything that speaks TLS."""

    def __init__(
        self,
        *,
        core: Core,
        sign_in: SignIn,
        context: ssl.SSLContext,
        listeners: list[socket.socket],
        clients_max: int,
        soon: Callable[[], None],
    ) -> None:
        """Make it; ``start`` begins.

        Args:
            core: whose connections the peers are.
            sign_in: lets in who shows a certificate.
            context: see ``server.tls``; ``context`` may be set anew, for those who come then.
            listeners: listening sockets, ours from now on.
            clients_max: connections of all kinds, peers in their handshake included.
            soon: asks for a round of the core.
        """
        self.context = context
        self._core = core
        self._sign_in = sign_in
        self._listeners = listeners
        self._clients_max = clients_max
        self._soon = soon
        self._loop = asyncio.get_running_loop()
        self._shaking: dict[Peer, None] = {}
        self._shaking_of: Counter[str] = Counter()
        self._steps: deque[Peer] = deque()
        self._peers: dict[int, Peer] = {}
        self._paused: dict[Peer, None] = {}
        self.handshakes = 0
        self.failed = 0
        self.timed_out = 0
        self.refused = 0
        self.last_failure = ""

    @property
    def shaking(self) -> int:
        """Return how many handshakes are in flight."""
        return len(self._shaking)

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Begin to accept."""
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def stop_reading(self) -> None:
        """Accept nobody any more, and give up handshakes; what was read is still answered."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners = []
        for peer in list(self._shaking):
            self._drop(peer)

    def abort(self) -> None:
        """Close everything without another byte; the core may be gone."""
        self.stop_reading()
        for peer in self._peers.values():
            self._close_socket(peer)
        self._peers.clear()
        self._paused.clear()

    def close(self) -> None:
        """Close everything in order: all that was released has left."""
        for peer in self._peers.values():
            self._say_goodbye(peer)
        self.abort()

    # ---------------------------------------------------------------- handshakes

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, name = listener.accept()
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:  # the listener stays readable: do not spin
                    self.refused += 1
                    self._loop.remove_reader(listener)
                    self._loop.call_later(ACCEPT_AGAIN_S, self._accept_again, listener)
                return
            self._begin(sock, str(name[0]), int(name[1]))

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _begin(self, sock: socket.socket, host: str, port: int) -> None:
        """Start a handshake, unless there are too many."""
        full = self._core.connections() + len(self._shaking) >= self._clients_max
        if (
            full
            or len(self._shaking) >= HANDSHAKES_MAX
            or self._shaking_of[host] >= HANDSHAKES_OF_ONE_MAX
        ):
            self.refused += 1
            sock.close()
            return
        try:
            sock.setblocking(False)
            for level, option, value in SOCKET_OPTIONS:
                sock.setsockopt(level, option, value)
            wrapped = self.context.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
        except (OSError, ValueError):  # gone already
            sock.close()
            return
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        peer = Peer(wrapped, host, address)
        self._shaking[peer] = None
        self._shaking_of[host] += 1
        peer.timer = self._loop.call_later(HANDSHAKE_S, self._give_up, peer)
        self._loop.add_reader(wrapped, self._queue, peer)

    def _queue(self, peer: Peer) -> None:
        """A peer's handshake can go on: when its turn comes."""
        self._loop.remove_reader(peer.sock)
        self._loop.remove_writer(peer.sock)
        self._steps.append(peer)
        if len(self._steps) == 1:
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        """Take one step of one handshake."""
        peer = self._steps[0]
        if peer in self._shaking:
            self._shake(peer)
        self._steps.popleft()
        if self._steps:
            self._loop.call_soon(self._step)

    def _shake(self, peer: Peer) -> None:
        try:
            peer.sock.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.add_reader(peer.sock, self._queue, peer)
        except ssl.SSLWantWriteError:
            self._loop.add_writer(peer.sock, self._queue, peer)
        except (OSError, ValueError) as error:
            self.failed += 1
            self.last_failure = getattr(error, "reason", None) or type(error).__name__
            self._drop(peer)
        else:
            self._open(peer)

    def _give_up(self, peer: Peer) -> None:
        if peer in self._shaking:
            self.timed_out += 1
            self._drop(peer)

    def _end_handshake(self, peer: Peer) -> None:
        del self._shaking[peer]
        self._shaking_of[peer.host] -= 1
        if not self._shaking_of[peer.host]:
            del self._shaking_of[peer.host]
        if peer.timer is not None:
            peer.timer.cancel()
            peer.timer = None

    def _drop(self, peer: Peer) -> None:
        """Forget a peer in its handshake."""
        self._end_handshake(peer)
        self._close_socket(peer)

    def _open(self, peer: Peer) -> None:
        """The handshake is done: make it a connection."""
        self._end_handshake(peer)
        self.handshakes += 1
        try:
            peer.handle = self._core.fed_open(peer.address)
        except CoreError:  # maxclients, or no memory
            self.refused += 1
            self._close_socket(peer)
            return
        self._peers[peer.handle] = peer
        token = self._sign_in.by_certificate(certificate_names(peer.sock.getpeercert()))
        if token is not None:
            self._sign_in.enter(peer.handle, token)
        self._read_on(peer)
        self._soon()

    # ---------------------------------------------------------------- bytes in

    def _read_on(self, peer: Peer) -> None:
        if not peer.reading and not peer.eof:
            peer.reading = True
            self._loop.add_reader(peer.sock, self._read, peer)

    def _read_no_more(self, peer: Peer) -> None:
        if peer.reading:
            peer.reading = False
            self._loop.remove_reader(peer.sock)

    def _read(self, peer: Peer) -> None:
        for _ in range(READS_A_TURN):
            if not self._core.fed_wants_input(peer.handle):
                self._read_no_more(peer)
                self._paused[peer] = None
                break
            try:
                data = peer.sock.recv(READ_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except (OSError, ValueError):
                self._lost(peer)
                return
            if not data:
                peer.eof = True
                self._read_no_more(peer)
                self._core.fed_eof(peer.handle)
                break
            self._core.fed_input(peer.handle, data)
        self._soon()

    # ---------------------------------------------------------------- bytes out

    def after_round(self) -> None:
        """Send what the core has released, close what it has done with, read where it wants it."""
        for handle in self._core.fed_ready():
            peer = self._peers.get(handle)
            if peer is None:
                self._core.fed_close(handle)
            elif not peer.blocked:
                self._write(peer)
            elif self._is_dead(handle):
                self._lost(peer)
        for peer in [peer for peer in self._paused if self._core.fed_wants_input(peer.handle)]:
            del self._paused[peer]
            self._read_on(peer)

    def _is_dead(self, handle: int) -> bool:
        """Return whether a connection that takes no bytes was killed: there are none for it."""
        output = self._core.fed_output(handle)
        return output.finished and not output.data

    def _write(self, peer: Peer) -> None:
        output = self._core.fed_output(peer.handle)
        data = memoryview(output.data)[:WRITE_BYTES_A_TURN]
        sent = 0
        try:
            while sent < len(data):
                sent += peer.sock.send(data[sent : sent + RECORD_BYTES])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self._block(peer)
        except (OSError, ValueError):
            self._lost(peer)
            return
        if sent:
            self._core.fed_taken(peer.handle, sent)
        if output.finished and sent == len(output.data):
            self._end(peer)
        elif sent == len(data) < len(output.data):
            self._loop.call_soon(self._write_on, peer)

    def _write_on(self, peer: Peer) -> None:
        if peer.handle in self._peers and not peer.blocked:
            self._write(peer)
            self._soon()

    def _block(self, peer: Peer) -> None:
        peer.blocked = True
        self._core.fed_blocked(peer.handle, blocked=True)
        self._loop.add_writer(peer.sock, self._unblock, peer)

    def _unblock(self, peer: Peer) -> None:
        self._loop.remove_writer(peer.sock)
        peer.blocked = False
        self._core.fed_blocked(peer.handle, blocked=False)
        self._write(peer)
        self._soon()

    # ---------------------------------------------------------------- ends

    def _end(self, peer: Peer) -> None:
        """All is said: close."""
        self._say_goodbye(peer)
        self._lost(peer)

    @staticmethod
    def _say_goodbye(peer: Peer) -> None:
        """Say TLS's goodbye, and read what came, so that no reset overtakes the last reply."""
        with contextlib.suppress(OSError, ValueError):
            peer.sock.unwrap()  # does not wait for the other's
        with contextlib.suppress(OSError, ValueError):
            socket.socket.shutdown(peer.sock, socket.SHUT_WR)
            seen = 0
            while seen < LINGER_BYTES and (data := socket.socket.recv(peer.sock, READ_BYTES)):
                seen += len(data)

    def _lost(self, peer: Peer) -> None:
        """Close a peer's socket and its connection."""
        self._close_socket(peer)
        self._paused.pop(peer, None)
        if self._peers.pop(peer.handle, None) is not None:
            self._core.fed_close(peer.handle)
            self._soon()

    def _close_socket(self, peer: Peer) -> None:
        if peer.sock.fileno() >= 0:
            self._loop.remove_reader(peer.sock)
            self._loop.remove_writer(peer.sock)
            peer.sock.close()
