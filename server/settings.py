"""What `wheeld serve` may be told: every option validated here, each with its unit in its name.

The rest of the daemon trusts a ``Settings``. What the machine offers (memory, descriptors) and
where it wants state (environment) are arguments, so the defaults are pure functions.
"""

import ipaddress
import os
import re
import resource
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from wheel.errors import in_words

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8463  # T-I-M-E on a phone's keypad
DEFAULT_TLS_PORT: Final = 8464
DEFAULT_LISTEN: Final = f"{DEFAULT_HOST}:{DEFAULT_PORT}"

CLIENTS_MAX_DEFAULT: Final = 10_000
CLIENTS_MAX_LIMIT: Final = 1_000_000
DESCRIPTORS_RESERVED: Final = 64  # log segments, the lock, epoll, timers, standard streams
MEMORY_SHARE: Final = 0.70  # of what the machine or the container has, for jobs
MEMORY_BYTES_MIN: Final = 16 * 1024 * 1024
PAYLOAD_BYTES_MAX: Final = 64 * 1024
DEAD_MAX: Final = 1_000_000
DEAD_KEPT_MS: Final = 90 * 86_400_000
DEAD_KEPT_MS_MIN: Final = 1000
DEAD_KEPT_MS_LIMIT: Final = 100 * 365 * 86_400_000
JOBS_MAX: Final = 500_000_000  # eight cells of the wheel for each, numbered in 32 bits
JOB_BYTES_MIN: Final = 64  # a job's row; only what is used costs memory
MEMORY_REFUSED_PERCENT: Final = 85  # of maxmemory: SCHEDULE is refused from there on
SEGMENT_BYTES: Final = 64 * 1024 * 1024
SEGMENT_BYTES_MIN: Final = 4 * 1024 * 1024  # a frame is at most 2 MiB and a bit
SEGMENT_BYTES_LIMIT: Final = 1024 * 1024 * 1024
SEGMENT_BLOCK_BYTES: Final = 4096
CHECKPOINT_AFTER_BYTES: Final = 64 * 1024 * 1024
CHECKPOINT_AFTER_BYTES_MIN: Final = 1024 * 1024
KEEP_CHECKPOINTS: Final = 2
SCRUB_BYTES: Final = 10 * 1024 * 1024  # a second: a 64 MiB segment takes 6 s
KEEP_CHECKPOINTS_LIMIT: Final = 4

_SIZE: Final = re.compile(r"(?P<number>[0-9]{1,18})(?P<unit>[kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE_LIMIT_BYTES: Final = 1 << 50


class SettingsError(ValueError):
    """An option has a value that the server cannot run with; the text says what to write."""


class Fsync(StrEnum):
    """When the log is synced, as written behind ``--fsync``; ``code`` is wd_fsync's number."""

    ALWAYS = "always"  # before every reply that depends on it
    INTERVAL = "interval"  # every 50 ms; a power cut may take that much
    OFF = "off"  # by the kernel alone

    @property
    def code(self) -> int:
        """Return the number that the log's files and the C core use."""
        return ("always", "interval", "off").index(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """How to speak TLS.

    Attributes:
        host: name or address to listen on.
        port: TCP port; 0 = a free one, named in the ready line.
        certificate: PEM file, ours first, then those that vouch for it.
        key: PEM file of its key, not encrypted.
        client_ca: PEM file of those that vouch for clients; None = clients show nothing.
        client_required: a client must show a certificate.
    """

    host: str
    port: int
    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of one server.

    Attributes:
        data: the data directory, absolute.
        host: name or address to listen on.
        port: TCP port; 0 = a free one, named in the ready line.
        fsync: when the log is synced.
        memory_bytes_max: jobs and connections may take this much; SCHEDULE is refused above 85 %.
        clients_max: connections at once.
        token_file: the access tokens; None = no sign-in, loopback only.
        strict_handlers: refuse jobs for a handler that nobody has ever served.
        payload_bytes_max: of one job.
        segment_bytes: size of a log file.
        tls: how to speak TLS, on a port of its own; None = not.
        checkpoint_after_bytes: a checkpoint is made when the log behind the last one is longer than
            this, and than three quarters of that one.
        keep_checkpoints: generations to keep: the newest, and what to fall back to.
        scrub_bytes: a second, of the files in force, read again in the background; 0 = not.
        allow_network_fs: serve a data directory that lies on a network file system.
        dead_max: dead jobs kept; the oldest goes first.
        dead_kept_ms: and no longer than this.
    """

    data: Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    fsync: Fsync = Fsync.ALWAYS
    memory_bytes_max: int
    clients_max: int
    token_file: Path | None = None
    strict_handlers: bool = False
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    segment_bytes: int = SEGMENT_BYTES
    tls: TlsOptions | None = None
    checkpoint_after_bytes: int = CHECKPOINT_AFTER_BYTES
    keep_checkpoints: int = KEEP_CHECKPOINTS
    scrub_bytes: int = SCRUB_BYTES
    allow_network_fs: bool = False
    dead_max: int = DEAD_MAX
    dead_kept_ms: int = DEAD_KEPT_MS

    def __post_init__(self) -> None:
        """Refuse values outside their documented ranges.

        Raises:
            SettingsError: naming the option, its value and the range.
        """
        _within("--listen: port", self.port, 0, 65_535)
        _within("--maxclients", self.clients_max, 1, CLIENTS_MAX_LIMIT)
        _size_within("--maxmemory", self.memory_bytes_max, MEMORY_BYTES_MIN, _SIZE_LIMIT_BYTES)
        _within("--dead-max", self.dead_max, 1, JOBS_MAX)
        if not DEAD_KEPT_MS_MIN <= self.dead_kept_ms <= DEAD_KEPT_MS_LIMIT:
            raise SettingsError("--dead-kept must be 1s to 36500d")
        _size_within("--segment-size", self.segment_bytes, SEGMENT_BYTES_MIN, SEGMENT_BYTES_LIMIT)
        _size_within(
            "--checkpoint-after",
            self.checkpoint_after_bytes,
            CHECKPOINT_AFTER_BYTES_MIN,
            _SIZE_LIMIT_BYTES,
        )
        _within("--keep-checkpoints", self.keep_checkpoints, 1, KEEP_CHECKPOINTS_LIMIT)
        _size_within("--scrub", self.scrub_bytes, 0, _SIZE_LIMIT_BYTES)
        if self.segment_bytes % SEGMENT_BLOCK_BYTES:
            raise SettingsError(
                f"--segment-size is {self.segment_bytes} bytes, it must be a multiple of"
                f" {SEGMENT_BLOCK_BYTES}: write for example 64M"
            )
        if not self.host:
            raise SettingsError("--listen has no host, write for example 127.0.0.1:8463")
        if not self.data.is_absolute():
            raise SettingsError(f"--data {self.data} is not an absolute path")


def make_tls_options(
    *,
    listen: tuple[str, int] | None,
    certificate: Path | None,
    key: Path | None,
    client_ca: Path | None,
    client_auth: str | None,
) -> TlsOptions | None:
    """Return what the options say together; None = no TLS.

    Raises:
        SettingsError: one of them needs another.
    """
    others = (certificate, key, client_ca, client_auth)
    if listen is None:
        if any(option is not None for option in others):
            raise SettingsError("the options --tls-* need --tls-listen HOST:PORT")
        return None
    if certificate is None or key is None:
        raise SettingsError("--tls-listen needs --tls-cert and --tls-key, PEM files")
    if client_auth is not None and client_ca is None:
        raise SettingsError("--tls-client-auth needs --tls-client-ca, a PEM file")
    return TlsOptions(
        host=listen[0],
        port=listen[1],
        certificate=certificate.absolute(),
        key=key.absolute(),
        client_ca=None if client_ca is None else client_ca.absolute(),
        client_required=client_auth == "required",
    )


def _within(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise SettingsError(f"{what} is {value}; it must be {low} to {high}")


def _size_within(what: str, size_bytes: int, low_bytes: int, high_bytes: int) -> None:
    if not low_bytes <= size_bytes <= high_bytes:
        found, low, high = map(shown_size, (size_bytes, low_bytes, high_bytes))
        raise SettingsError(f"{what} is {found}; it must be {low} to {high}")


def shown_size(size_bytes: int) -> str:
    """Return a number of bytes as ``parse_size_bytes`` reads it, in its largest whole unit."""
    unit = next(name for name in "tgmk" if not size_bytes % _SIZE_UNITS[name] or name == "k")
    if not size_bytes or size_bytes % _SIZE_UNITS[unit]:
        return str(size_bytes)
    return f"{size_bytes // _SIZE_UNITS[unit]}{unit.upper()}"


def parse_size_bytes(text: str) -> int:
    """Return the bytes that ``512M``, ``2GiB``, ``64kb`` or ``1048576`` stand for.

    Units are powers of 1024 whatever their case; a bare number is bytes.

    Raises:
        SettingsError: it is not a size, or larger than 1 PiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SettingsError(f"{text!r} is not a size; write for example 512M or 2G")
    size_bytes = int(match["number"]) * _SIZE_UNITS[match["unit"].lower()]
    if size_bytes > _SIZE_LIMIT_BYTES:
        raise SettingsError(f"{text!r} is more than 1024T, the largest size there is")
    return size_bytes


def parse_listen(
    text: str, *, option: str = "--listen", default_port: int = DEFAULT_PORT
) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``[::1]:8463``, ``HOST`` or ``:PORT``.

    Raises:
        SettingsError: naming what is wrong.
    """
    host, separator, port = text.strip().rpartition(":")
    if not separator or text.endswith("]"):
        host, port = text.strip(), str(default_port)
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    elif ":" in host:
        raise SettingsError(f"{option} {text!r}: write an IPv6 address in brackets, [::1]:8463")
    if not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise SettingsError(f"{option} {text!r}: the port is a number in 0..65535")
    return host or DEFAULT_HOST, int(port)


def default_data(environ: Mapping[str, str], home: Path) -> Path:
    """Return the data directory to use when ``--data`` is not given.

    systemd's StateDirectory= (the first, if several), else the XDG state folder.
    """
    if state := environ.get("STATE_DIRECTORY"):
        return Path(state.split(":", 1)[0]).absolute()
    base = environ.get("XDG_STATE_HOME", "")
    root = Path(base) if base.startswith("/") else home / ".local" / "state"
    return root / "wheeld"


def allowed_clients_max(asked: int | None, descriptors_max: int) -> int:
    """Return how many connections this process may hold.

    Args:
        asked: with --maxclients; None = the default.
        descriptors_max: how many descriptors it may open; some are the log's.
    """
    wanted = CLIENTS_MAX_DEFAULT if asked is None else asked
    return max(1, min(wanted, descriptors_max - DESCRIPTORS_RESERVED))


def default_memory_bytes_max(available_bytes: Iterable[int]) -> int:
    """Return the memory for jobs: 70 % of the smallest of the given limits (RAM, cgroup)."""
    return max(MEMORY_BYTES_MIN, int(min(available_bytes) * MEMORY_SHARE))


def jobs_max(settings: "Settings") -> int:
    """Return how many jobs there may be at once: what fits into memory at the very most."""
    return min(JOBS_MAX, settings.memory_bytes_max // JOB_BYTES_MIN)


def refused_at_bytes(memory_bytes_max: int) -> int:
    """Return how much memory may be in use before SCHEDULE is refused (csrc/wd_state.h)."""
    return memory_bytes_max // 100 * MEMORY_REFUSED_PERCENT


def machine_descriptors_max(wanted: int) -> int:
    """Return how many descriptors this process may open, raised to what is wanted if it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CLIENTS_MAX_LIMIT
    if soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        except (OSError, ValueError):  # a sandbox does not let us
            return soft
        return raised
    return soft


def machine_memory_bytes(root: Path = Path("/")) -> list[int]:
    """Return the machine's memory and, where there are any, the limits of our control groups.

    Args:
        root: where proc and sys lie; another folder in tests.
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limits = [root / "sys/fs/cgroup/memory/memory.limit_in_bytes"]
    for line in _lines(root / "proc/self/cgroup"):
        if line.startswith("0::/"):
            group = root / "sys/fs/cgroup" / line[4:].lstrip("/")
            limits += [folder / "memory.max" for folder in (group, *group.parents)]
    for path in limits:
        found += [int(text) for text in _lines(path) if text.isdigit()]  # "max" = none
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def resolve_listen(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    """Return every address that a listen host stands for, as (family, numeric address).

    Raises:
        SettingsError: the name does not resolve.
    """
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
        )
    except OSError as error:
        raise SettingsError(
            f"the address {host!r} to listen on does not resolve: {in_words(error)}"
        ) from error
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    return list(dict.fromkeys(addresses))


def is_loopback(address: str) -> bool:
    """Return whether a numeric address can be reached from this machine only (127/8, ::1)."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback
