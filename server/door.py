"""The door: where clients come in, who may, and both read again at SIGHUP.

``prepare`` reads tokens and certificates and refuses what would open the server to strangers;
``open`` takes the addresses; ``serve`` lets clients in. Wire connections are the core's own, TLS
ones are fed to it (server/tls_server.py).
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from server.auth import TokenFileError, Tokens, read_tokens
from server.clock import Clock
from server.listener import check_exposure, open_sockets, open_tls, shown_address
from server.settings import Settings, SettingsError, resolve_listen
from server.signin import Closing, SignIn
from server.tls import make_context
from server.tls_server import TlsServer
from wheel.engine.core import Core


class Door:
    """Lets clients in."""

    def __init__(self, settings: Settings, *, clock: Clock, logger: FilteringBoundLogger) -> None:
        self._settings = settings
        self._clock = clock
        self._log = logger
        self._addresses: list[tuple[socket.AddressFamily, str]] = []
        self._listeners: list[socket.socket] = []
        self._tls_parts: tuple[ssl.SSLContext, list[socket.socket]] | None = None
        self._soon: Callable[[], None] = lambda: None
        self._closed = False
        self.tokens: Tokens | None = None
        self.sign_in: SignIn | None = None
        self.tls: TlsServer | None = None
        self.listen = ""
        self.listen_tls = ""
        self.port = 0

    # ---------------------------------------------------------------- the way up

    def prepare(self) -> None:
        """Read the tokens, and refuse to be reached by others without any.

        Raises:
            SettingsError: an address does not resolve or would let strangers in.
            TokenFileError: the token file cannot be used.
        """
        settings = self._settings
        self._addresses = resolve_listen(settings.host, settings.port)
        if settings.token_file is not None:
            self.tokens = read_tokens(settings.token_file)
        check_exposure(settings.host, [address for _, address in self._addresses], self.tokens)
        if self.tokens is not None and not self.tokens.lines:
            raise SettingsError(
                f"--token-file {settings.token_file} holds no token, so nobody could sign in:"
                " add one with `wheeld token create`"
            )

    def open(self) -> None:
        """Take the addresses; nobody is let in yet.

        Raises:
            SettingsError: a file of TLS cannot be used.
            ListenError: an address cannot be listened on.
        """
        if self._settings.tls is not None:
            self._tls_parts = open_tls(self._settings.tls, self.tokens)
            self.listen_tls = ", ".join(map(shown_address, self._tls_parts[1]))
        self._listeners = open_sockets(self._addresses, self._settings.port)
        self.listen = ", ".join(map(shown_address, self._listeners))
        self.port = int(self._listeners[0].getsockname()[1])

    def attach(self, core: Core) -> SignIn:
        """Hand the wire's sockets to the core; return who gives its connections their rights."""
        for listener in self._listeners:
            core.listen(listener.detach())
        self.sign_in = SignIn(core, self._clock, self.tokens)
        return self.sign_in

    def serve(self, core: Core, soon: Callable[[], None]) -> None:
        """Let clients in.

        Args:
            core: that ``attach`` had.
            soon: asks for a round of it.
        """
        self._soon = soon
        if self._tls_parts is None or self.sign_in is None:
            return
        context, listeners = self._tls_parts
        self.tls = TlsServer(
            core=core,
            sign_in=self.sign_in,
            context=context,
            listeners=listeners,
            clients_max=self._settings.clients_max,
            soon=soon,
        )
        self.tls.start()

    # ---------------------------------------------------------------- running

    def after_round(self) -> None:
        """Move the bytes of TLS connections, behind each round of the core."""
        if self.tls is not None:
            self.tls.after_round()

    def look(self) -> None:
        """Close who signed in with a token that has expired since."""
        if self.sign_in is not None:
            self._close_some(self.sign_in.expire())

    def reload(self) -> None:
        """Read tokens and certificates again; a file that is wrong changes nothing."""
        self._reload_certificates()
        path = self._settings.token_file
        if path is None or self.sign_in is None:
            return
        try:
            tokens = read_tokens(path)
        except TokenFileError as error:
            self._log.error("tokens_refused", error=str(error), hint="the old ones stay in force")
            return
        self._log.info("tokens_reloaded", tokens_count=len(tokens.lines))
        self._close_some(self.sign_in.replace(tokens))

    def _reload_certificates(self) -> None:
        """Take the certificates as they are now, for those who come from now on."""
        if self.tls is None or self._settings.tls is None:
            return
        try:
            self.tls.context = make_context(self._settings.tls)
        except SettingsError as error:
            self._log.error("certificates_refused", error=str(error), hint="the old ones serve on")
            return
        self._log.info("certificates_reloaded")

    def _close_some(self, closing: Closing) -> None:
        """Take a step of closing whose token is gone; the next one when others had their turn."""
        if self._closed:
            return
        try:
            next(closing)
        except StopIteration as end:
            if end.value:
                self._log.info("tokens_revoked", connections=end.value)
                self._soon()  # what was killed is closed at the end of a round
            return
        asyncio.get_running_loop().call_soon(self._close_some, closing)

    # ---------------------------------------------------------------- the way down

    def stop_reading(self) -> None:
        """Let nobody in any more; what was read is still answered."""
        if self.tls is not None:
            self.tls.stop_reading()

    def close(self, *, failed: bool) -> None:
        """Close TLS connections, in order, or without another byte; before the core is closed."""
        self._closed = True
        if self.tls is None:
            return
        if failed:
            self.tls.abort()
        else:
            self.tls.close()
