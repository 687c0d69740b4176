"""Access tokens: a file that names them by their hashes, and the question who a token is.

A token is 256 random bits, so one sha256 is enough: there is nothing to guess that a slow hash
(scrypt, argon2) would protect, and a sign-in that costs microseconds is one that nobody can use to
keep the server busy. There are no passwords that people choose.

The file holds one token a line, ``name role[:glob,...] sha256-hex [created=T] [expires=T]``, blank
lines and lines that begin with ``#`` left out; T is ISO 8601 in UTC. ``cert`` in the place of the
hash = no secret: who shows a client certificate of that name over TLS is let in. The file must
belong to nobody but its owner (mode 0600 or stricter): who can write it can sign in as anybody.
"""

import fcntl
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from server.clock import iso_utc
from wheel.errors import in_words

LINES_MAX: Final = 1_000  # each sign-in compares with all of them
TOKEN_BYTES: Final = 32
TOKEN_PREFIX: Final = "wd_"  # noqa: S105 -- so that scanners for leaked secrets can know one
DEFAULT_USER: Final = "default"  # what Redis clients send when they were given a password only

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_GLOB: Final = re.compile(r"[^\s,*:\x00-\x1f\x7f]{0,200}\*?")
_BY_CERTIFICATE: Final = "cert"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
GLOBS_CHARS_MAX: Final = 4096  # of all globs of a token


class TokenFileError(ValueError):
    """The token file cannot be used; the text names it, the line, and what to do."""


class Role(StrEnum):
    """What a token is for; csrc/wd_command.c says which commands that is."""

    VIEWER = "viewer"
    PRODUCER = "producer"
    WORKER = "worker"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def bit(self) -> int:
        """Return the role's bit in the core (enum wd_role)."""
        return 1 << list(Role).index(self)

    @property
    def takes_globs(self) -> bool:
        """Return whether it can be limited to some handlers."""
        return self in {Role.PRODUCER, Role.WORKER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One line of the token file.

    Attributes:
        name: who signs in.
        role: what for.
        globs: handlers that the role is limited to, exact names or ``prefix*``; empty = all.
        digest: sha256 of the token's text; empty = by client certificate alone.
        created_ms: wall time, None = not written down.
        expires_ms: wall time from which on it lets nobody in, None = never.
    """

    name: str
    role: Role
    globs: tuple[str, ...] = ()
    digest: bytes = b""
    created_ms: int | None = None
    expires_ms: int | None = None

    def line(self) -> str:
        """Return the token as a line of the file, without the line end."""
        role = f"{self.role}:{','.join(self.globs)}" if self.globs else str(self.role)
        words = [self.name, role, self.digest.hex() or _BY_CERTIFICATE]
        if self.created_ms is not None:
            words.append(f"created={iso_utc(self.created_ms)}")
        if self.expires_ms is not None:
            words.append(f"expires={iso_utc(self.expires_ms)}")
        return " ".join(words)

    def is_valid(self, wall_ms: int) -> bool:
        """Return whether it has not expired."""
        return self.expires_ms is None or wall_ms < self.expires_ms


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that may sign in."""

    lines: tuple[Token, ...] = ()

    def find(self, name: str | None, secret: bytes, wall_ms: int) -> Token | None:
        """Return the token that a client presents, None when it is not one of ours or has expired.

        Looks at every line, and compares in constant time, whatever it finds.

        Args:
            name: the user named with it; None or "default" = any.
            secret: the token's text as sent.
            wall_ms: now.
        """
        digest = hashlib.sha256(secret).digest()
        wanted = None if name == DEFAULT_USER else name
        found: Token | None = None
        for token in self.lines:
            same = hmac.compare_digest(token.digest, digest)
            if same and wanted in {None, token.name} and token.is_valid(wall_ms):
                found = token
        return found

    def named(self, name: str, wall_ms: int) -> Token | None:
        """Return the token of a name, None when there is none or it has expired."""
        for token in self.lines:
            if token.name == name and token.is_valid(wall_ms):
                return token
        return None


def parse_role(text: str) -> tuple[Role, tuple[str, ...]]:
    """Return role and handler globs of ``role[:glob,...]``.

    Raises:
        ValueError: saying what may be written.
    """
    word, separator, rest = text.partition(":")
    try:
        role = Role(word)
    except ValueError:
        raise ValueError(f"{word!r} is not a role, use one of {', '.join(Role)}") from None
    globs = tuple(rest.split(",")) if separator else ()
    if separator and not role.takes_globs:
        raise ValueError(f"{word} is for all handlers: only producer and worker can be limited")
    if len(rest) > GLOBS_CHARS_MAX:
        raise ValueError(f"the handlers have {len(rest)} characters, at most {GLOBS_CHARS_MAX}")
    for glob in globs:
        if not glob or not _GLOB.fullmatch(glob):
            raise ValueError(f"{glob!r} is not a handler name or prefix*")
    return role, globs


def parse_name(text: str) -> str:
    """Return a token's name if it is one.

    Raises:
        ValueError: saying which names there are.
    """
    if not _NAME.fullmatch(text) or text == DEFAULT_USER:
        raise ValueError(
            f"{text!r} is not a token name: 1-63 of A-Z a-z 0-9 _ . - and not {DEFAULT_USER!r}"
        )
    return text


def parse_time_ms(text: str) -> int:
    """Return a moment of the file, ``2026-12-24T09:00:00Z``, in ms since 1970.

    Raises:
        ValueError: it is none, or has no zone.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min  # noqa: DTZ901 -- stands for: not readable
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} is not a time as 2026-12-24T09:00:00Z")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _parse_line(line: str) -> Token:
    fields = line.split()
    if len(fields) < 3:
        raise ValueError("it is not `name role[:glob,...] sha256-hex`")
    name = parse_name(fields[0])
    role, globs = parse_role(fields[1])
    if not _DIGEST.fullmatch(fields[2]) and fields[2] != _BY_CERTIFICATE:
        raise ValueError("the third field is not 64 hex digits in lower case, or cert")
    times: dict[str, int] = {}
    for field in fields[3:]:
        key, _, value = field.partition("=")
        if key not in {"created", "expires"} or key in times:
            raise ValueError("behind `name role sha256-hex` stand created=T and expires=T alone")
        times[key] = parse_time_ms(value)
    digest = b"" if fields[2] == _BY_CERTIFICATE else bytes.fromhex(fields[2])
    return Token(
        name=name,
        role=role,
        globs=globs,
        digest=digest,
        created_ms=times.get("created"),
        expires_ms=times.get("expires"),
    )


def parse_tokens(text: str, origin: str) -> Tokens:
    """Return the tokens that a file's text holds.

    Args:
        text: the whole file.
        origin: its name, for errors.

    Raises:
        TokenFileError: naming the first line that is wrong.
    """
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise TokenFileError(f"{origin} has {len(lines)} lines, at most {LINES_MAX} are read")
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            token = _parse_line(line)
        except ValueError as error:
            raise TokenFileError(f"{origin}, line {number}: {error}") from None
        if token.name in tokens:
            raise TokenFileError(f"{origin}, line {number}: a second token {token.name!r}")
        tokens[token.name] = token
    return Tokens(tuple(tokens.values()))


def read_tokens(path: Path) -> Tokens:
    """Return the tokens of a file.

    Raises:
        TokenFileError: it cannot be read, others than its owner can reach it, or a line is wrong.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise TokenFileError(f"the token file {path} cannot be read: {error.strerror}") from error
    try:
        _check_status(path, os.fstat(descriptor))
        with open(descriptor, encoding="utf-8", closefd=False) as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenFileError(f"the token file {path} cannot be read: {in_words(error)}") from error
    finally:
        os.close(descriptor)
    return parse_tokens(text, str(path))


def _check_status(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TokenFileError(f"the token file {path} is not a regular file")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o177:
        raise TokenFileError(
            f"the token file {path} has mode {mode:04o}, others could use it: chmod 600 {path}"
        )


def mint(
    name: str,
    role: Role,
    globs: tuple[str, ...],
    entropy: bytes,
    *,
    created_ms: int | None = None,
    expires_ms: int | None = None,
) -> tuple[str, Token]:
    """Return a new token's text, to be shown once, and its line.

    Args:
        name: who will sign in with it.
        role: what for.
        globs: handlers it is limited to.
        entropy: TOKEN_BYTES random bytes.
        created_ms: now.
        expires_ms: when it ends; None = never.
    """
    if len(entropy) != TOKEN_BYTES:
        raise ValueError(f"a token takes {TOKEN_BYTES} random bytes, got {len(entropy)}")
    secret = TOKEN_PREFIX + entropy.hex()
    digest = hashlib.sha256(secret.encode()).digest()
    token = Token(
        name=name,
        role=role,
        globs=globs,
        digest=digest,
        created_ms=created_ms,
        expires_ms=expires_ms,
    )
    return secret, token


def add_token(path: Path, token: Token) -> None:
    """Add a line to a token file, making the file if there is none.

    The new file is written beside the old one, synced and renamed over it: a reader sees the old
    file or the new one, and a crash leaves one of them.

    Raises:
        TokenFileError: the file cannot be used as it is, or it has that name already.
        OSError: the new file cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path.parent):
        _replace(path, f"{_text_before(path, token.name)}{token.line()}\n")


def remove_token(path: Path, name: str) -> None:
    """Take the line of a token out of its file, as ``add_token`` puts it in.

    Raises:
        TokenFileError: the file cannot be used as it is, or has no such name.
        OSError: the new file cannot be written.
    """
    if not path.parent.is_dir():
        raise TokenFileError(f"there is no token file {path}")
    with _locked(path.parent):
        if not any(token.name == name for token in read_tokens(path).lines):
            raise TokenFileError(f"{path} has no token {name!r}: `wheeld token list` shows them")
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        _replace(path, "".join(line for line in lines if line.split()[:1] != [name]))


@contextmanager
def _locked(parent: Path) -> Generator[None, None, None]:
    """Hold a folder alone, and make what changed in it durable at the end."""
    folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # two at once: one line after the other
        yield
        os.fsync(folder)
    finally:
        os.close(folder)


def _text_before(path: Path, name: str) -> str:
    """Return what the token file holds, with a line end behind it, if `name` may be added."""
    if not path.exists():
        return ""
    if any(line.name == name for line in read_tokens(path).lines):
        raise TokenFileError(f"{path} has a token {name!r} already, choose another name")
    text = path.read_text(encoding="utf-8")
    return text if text.endswith("\n") or not text else f"{text}\n"


def _replace(path: Path, text: str) -> None:
    """Put a synced file of mode 0600 with this text in the place of `path`."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
