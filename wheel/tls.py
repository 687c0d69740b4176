"""TLS for a client's connection: whose certificate is believed, and what is said when it is not.

Imported only for ``wheelds://``: the ssl module takes longer to load than the rest of the client.
"""

import os
import socket
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING

from wheel.errors import AuthError, ConnectError, InvalidRequest, in_words

if TYPE_CHECKING:
    from wheel.link import Address


def context_of(address: "Address") -> ssl.SSLContext:
    """Return what to speak to a server with; made anew when a file has changed.

    Raises:
        InvalidRequest: a file of certificates cannot be used.
    """
    return _context(*_files(address))


def encrypt(
    connected: socket.socket, context: ssl.SSLContext, address: "Address", timeout_s: float
) -> ssl.SSLSocket:
    """Return a connected socket behind its handshake; the one given is used up.

    Args:
        connected: the TCP connection.
        context: of ``context_of``.
        address: of the server.
        timeout_s: for the handshake.

    Raises:
        AuthError: the server's certificate is not good, or not its.
        ConnectError: the handshake broke or took too long.
    """
    try:
        connected.settimeout(timeout_s)
        return context.wrap_socket(connected, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        connected.close()
        raise AuthError(
            f"{address}: the server's certificate is not accepted: {error.verify_message}; "
            "name its CA with ?ca=FILE or WHEELD_CA, and the host as the certificate does"
        ) from error
    except OSError as error:
        connected.close()
        raise ConnectError(
            f"{address}: no TLS connection: {in_words(error)}; is that the port of --tls-listen?"
        ) from error


def _files(address: "Address") -> tuple[tuple[str, int], ...]:
    """Return the names of the files of certificates, each with when it was changed last.

    Raises:
        InvalidRequest: one of them is not there.
    """
    found: list[tuple[str, int]] = []
    for name in (address.ca, address.certificate, address.key):
        try:
            found.append((name, os.stat(name).st_mtime_ns if name else 0))  # noqa: PTH116
        except OSError as error:
            raise InvalidRequest(f"{name!r} cannot be read: {error.strerror}") from error
    return tuple(found)


@lru_cache(maxsize=8)
def _context(
    ca: tuple[str, int], certificate: tuple[str, int], key: tuple[str, int]
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca[0] or None)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{ca[0]!r} holds no certificates: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate[0]:
        try:
            context.load_cert_chain(certificate[0], key[0] or None, password=_no_password)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"{certificate[0]!r} and its key {key[0] or certificate[0]!r} cannot be used: "
                f"{error}; they are PEM files, and the key is not encrypted"
            ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")
