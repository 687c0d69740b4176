"""TLS: what the options say, as a context; and whose certificate a client shows.

TLS 1.2 is the oldest version spoken. There are no session tickets and no resumption: a certificate
that is no good any more does not come back in through an old session. A connection that ends
without TLS's own goodbye counts as one that has sent all it will: commands are whole or not at all.
"""

import os
import ssl
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from server.settings import SettingsError, TlsOptions

NAMES_MAX: Final = 16  # of a certificate that are looked at
KINDS: Final = frozenset({"DNS", "URI", "email"})


def make_context(options: TlsOptions) -> ssl.SSLContext:
    """Return a server's context.

    Raises:
        SettingsError: naming the file that cannot be used, and why.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    context.num_tickets = 0
    _check_key(options.key)
    try:
        context.load_cert_chain(options.certificate, options.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"--tls-cert {options.certificate} and --tls-key {options.key} cannot be used:"
            f" {_why(error)}; they are PEM files, the key fits and is not encrypted"
        ) from error
    if options.client_ca is not None:
        try:
            context.load_verify_locations(options.client_ca)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"--tls-client-ca {options.client_ca} cannot be used: {_why(error)}"
            ) from error
        required = options.client_required
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _check_key(path: Path) -> None:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)  # noqa: PTH116 -- one call, one error
    except OSError as error:
        raise SettingsError(f"--tls-key {path} cannot be read: {error.strerror}") from error
    if mode & 0o027:
        raise SettingsError(
            f"--tls-key {path} has mode {mode:04o}, others could use it: chmod 600 {path}"
        )


def _no_password() -> str:
    raise ValueError("it is encrypted")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error).lower().replace("_", " ")
    return str(error.strerror) if isinstance(error, OSError) and error.strerror else str(error)


def certificate_names(certificate: Mapping[str, object] | None) -> list[str]:
    """Return the names of a verified certificate: its common name, then its other names.

    Args:
        certificate: as ``ssl.SSLSocket.getpeercert`` gives it; None or empty = none was shown.
    """
    if not certificate:
        return []
    names: list[str] = []
    subject = cast("Sequence[Sequence[Sequence[str]]]", certificate.get("subject", ()))
    names += [pair[1] for group in subject for pair in group if pair[0] == "commonName"]
    others = cast("Sequence[Sequence[str]]", certificate.get("subjectAltName", ()))
    names += [pair[1] for pair in others if pair[0] in KINDS]
    return names[:NAMES_MAX]
