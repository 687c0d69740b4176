"""Listening sockets, and the rule that nobody listens to the world without tokens."""

import errno
import os
import socket
import ssl
from typing import Final

from server.auth import Tokens
from server.settings import SettingsError, TlsOptions, is_loopback, resolve_listen
from server.tls import make_context
from wheel.errors import in_words

BACKLOG: Final = 511
_LISTEN_HINTS: Final[dict[int | None, str]] = {
    errno.EADDRINUSE: "is another server running there? ",
    errno.EADDRNOTAVAIL: "this machine does not have that address. ",
    errno.EACCES: "a port below 1024 needs a privilege. ",
}


class ListenError(Exception):
    """The address cannot be listened on just now; the text says which and what to do."""


def check_exposure(
    host: str, addresses: list[str], tokens: Tokens | None, option: str = "--listen"
) -> None:
    """Refuse to be reachable from other machines without sign-in.

    Args:
        host: as the user wrote it, for the error.
        addresses: every numeric address it stands for.
        tokens: of the token file; None = there is no such file.
        option: which option named it.

    Raises:
        SettingsError: one of them is not loopback and there is no token.
    """
    outside = [address for address in addresses if not is_loopback(address)]
    if outside and (tokens is None or not tokens.lines):
        shown = host if host == outside[0] else f"{host} ({outside[0]})"
        raise SettingsError(
            f"{option} {shown} can be reached from other machines, and without --token-file"
            " naming a file that holds a token anybody there could use this server: make one"
            " with `wheeld token create`, or listen on 127.0.0.1"
        )


def open_sockets(
    addresses: list[tuple[socket.AddressFamily, str]], port: int
) -> list[socket.socket]:
    """Return a listening socket for each address, all on one port.

    Args:
        addresses: (family, numeric address), at least one.
        port: 0 = the kernel's choice for the first, which the others then share.

    Raises:
        ListenError: one of them cannot be listened on; none stays open.
    """
    opened: list[socket.socket] = []
    address = ""
    try:
        for family, address in addresses:
            listener = socket.create_server(
                (address, port), family=family, backlog=BACKLOG, reuse_port=False
            )
            listener.setblocking(False)
            opened.append(listener)
            port = int(listener.getsockname()[1])
    except OSError as error:
        for listener in opened:
            listener.close()
        # Not error.strerror: Python says the address there once more.
        why = os.strerror(error.errno).lower() if error.errno else in_words(error)
        raise ListenError(
            f"cannot listen on {address} port {port}: {why}; {_LISTEN_HINTS.get(error.errno, '')}"
            "--listen and --tls-listen take another address"
        ) from error
    return opened


def open_tls(
    options: TlsOptions, tokens: Tokens | None
) -> tuple[ssl.SSLContext, list[socket.socket]]:
    """Return the context of TLS and the sockets to listen on with it.

    Raises:
        SettingsError: a file cannot be used, or others could reach it without signing in.
        ListenError: an address cannot be listened on.
    """
    addresses = resolve_listen(options.host, options.port)
    check_exposure(options.host, [address for _, address in addresses], tokens, "--tls-listen")
    context = make_context(options)
    return context, open_sockets(addresses, options.port)


def shown_address(listener: socket.socket) -> str:
    """Return "address:port" as people write it."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
