"""Signing in: who a connection is, what its role lets it do, and what happens to those who guess.

The core holds a connection's rights and checks them before each command (csrc/wd_rights.c); this
file sets them. Nothing here waits: a token is found by one hash (server/auth.py), and an answer to
a wrong one is put off by the caller.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Generator, Iterator
from typing import Final, Protocol

from server.answers import RefusedError
from server.auth import DEFAULT_USER, Token, Tokens
from server.clock import Clock
from wheel.engine.core import ROLES_ALL
from wheel.engine.facts import Session

ADDRESSES_MAX: Final = 4_096  # that failed lately; the oldest are forgotten
ATTEMPTS_PER_S: Final = 5  # from an address that failed
FORGIVEN_NS: Final = 60_000_000_000
SESSIONS_A_STEP: Final = 32  # looked at between two turns of the loop
NS_PER_S: Final = 1_000_000_000

Closing = Generator[None, None, int]  # closes connections step by step; returns how many


class Core(Protocol):
    """What this file needs of the C core."""

    def walk_sessions(self) -> Iterator[Session]:
        """Yield the open connections, in no order; other calls may come in between."""
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

    def kill_session(self, handle: int) -> bool:
        """Close a connection without another byte; False when it is gone."""
        ...


class Guesses:
    """Addresses that presented a wrong token lately, and how often they may try again.

    A bucket of ATTEMPTS_PER_S attempts for each, full at its first failure, filled at that rate;
    forgotten a minute after its last failure.
    """

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[int, int]] = OrderedDict()  # attempts x 1e9, ns
        self.failures = 0
        self.put_off = 0

    def __len__(self) -> int:
        return len(self._buckets)

    def may_try(self, address: str, now_ns: int) -> bool:
        """Return whether an address may present a token now, and count that it does."""
        bucket = self._buckets.get(address)
        if bucket is None:
            return True
        level, at_ns = bucket
        if now_ns - at_ns >= FORGIVEN_NS:
            del self._buckets[address]
            return True
        level = min(ATTEMPTS_PER_S * NS_PER_S, level + (now_ns - at_ns) * ATTEMPTS_PER_S)
        if level < NS_PER_S:
            self.put_off += 1
            return False
        self._buckets[address] = (level - NS_PER_S, now_ns)
        return True

    def failed(self, address: str, now_ns: int) -> None:
        """Take down that a token was wrong."""
        self.failures += 1
        if address not in self._buckets:
            self._buckets[address] = ((ATTEMPTS_PER_S - 1) * NS_PER_S, now_ns)
            if len(self._buckets) > ADDRESSES_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(address)


def address_of(peer: str) -> str:
    """Return the address of a peer ("127.0.0.1:5000"); of IPv6 the /64, which is one customer."""
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # "unix"
        return host
    if address.version == 4 or address.ipv4_mapped:
        return str(address.ipv4_mapped or address) if address.version == 6 else host
    return str(ipaddress.ip_network((int(address), 64), strict=False))


class SignIn:
    """Gives and takes the rights of connections."""

    def __init__(self, core: Core, clock: Clock, tokens: Tokens | None) -> None:
        """Make it.

        Args:
            core: the connections.
            clock: for expiry and for how often somebody may guess.
            tokens: of the token file; None = there is no such file, everybody may do everything.
        """
        self._core = core
        self._clock = clock
        self._tokens = tokens
        self._expired: frozenset[str] = frozenset()  # names whose connections were closed
        self.guesses = Guesses()

    @property
    def is_needed(self) -> bool:
        """Return whether a connection has no rights before it signs in."""
        return self._tokens is not None

    def find(self, session: Session, name: bytes | None, secret: bytes) -> Token | None:
        """Return the token that is presented, None when it is wrong.

        Raises:
            RefusedError: too many were wrong from that address; this one was not looked at.
        """
        if self._tokens is None:
            return None
        address, now_ns = address_of(session.peer), self._clock.mono_ns()
        if not self.guesses.may_try(address, now_ns):
            raise RefusedError(
                "TRYAGAIN", "too many wrong tokens came from your address; try again in a second"
            )
        wanted = None if name is None else name.decode("latin-1")
        token = self._tokens.find(wanted, secret, self._clock.wall_ms())
        if token is None:
            self.guesses.failed(address, now_ns)
        return token

    def by_certificate(self, names: list[str]) -> Token | None:
        """Return the token that a client certificate's names stand for, None = no such name."""
        for name in names:
            if self._tokens is not None and (
                token := self._tokens.named(name, self._clock.wall_ms())
            ):
                return token
        return None

    def enter(
        self, handle: int, token: Token | None, *, resp: int | None = None, name: str | None = None
    ) -> None:
        """Sign a connection in, with every role where there are no tokens.

        Args:
            handle: the connection.
            token: what it presented; None = there is no token file.
            resp: its protocol, None = as it was.
            name: its name, None = as it was.
        """
        self._core.set_session(
            handle,
            resp=resp,
            name=name,
            user=token.name if token else DEFAULT_USER,
            roles=token.role.bit if token else ROLES_ALL,
            globs=",".join(token.globs) if token else "",
        )

    def leave(self, handle: int) -> None:
        """Make a connection as new: RESP2, no name, signed out where one can sign in."""
        self._core.set_session(
            handle, resp=2, name="", user="", roles=0 if self.is_needed else ROLES_ALL
        )

    def replace(self, tokens: Tokens) -> Closing:
        """Take another list of tokens; close who signed in with one that is not on it as it was.

        The closing yields wherever others may have their turn, and returns how many were closed.
        """
        old = self._tokens.lines if self._tokens else ()
        self._tokens = tokens
        gone = frozenset(token.name for token in set(old) - set(tokens.lines))
        return self._close_users(gone)

    def expire(self) -> Closing:
        """Close who signed in with a token that has expired since, as ``replace``."""
        now_ms = self._clock.wall_ms()
        lines = self._tokens.lines if self._tokens else ()
        before = self._expired
        self._expired = frozenset(token.name for token in lines if not token.is_valid(now_ms))
        return self._close_users(self._expired - before)

    def _close_users(self, names: frozenset[str]) -> Closing:
        closed = 0
        if not names:
            return closed
        for count, session in enumerate(self._core.walk_sessions(), start=1):
            if session.user in names and self._core.kill_session(session.handle):
                closed += 1
            if count % SESSIONS_A_STEP == 0:
                yield
        return closed
