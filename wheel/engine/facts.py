"""What the core takes and tells, as plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The three clocks at one moment.

    Attributes:
        wall_ms: CLOCK_REALTIME.
        boot_ms: CLOCK_BOOTTIME.
        mono_ms: CLOCK_MONOTONIC.
    """

    wall_ms: int
    boot_ms: int
    mono_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One frame to be made durable, and the lsn of its last record."""

    frame: bytes
    lsn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of the table: an after-image that only Python understands."""

    kind: int
    key: bytes
    blob: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCommand:
    """A command that Python answers; its connection waits for ``slow_reply(handle, ...)``."""

    handle: int
    arguments: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FedOutput:
    """What may leave over a fed connection; finished: close the transport behind it."""

    data: bytes
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One connection.

    Attributes:
        handle: names the connection to the core; never used twice.
        id: what CLIENT ID says: 1, 2, ... in the order of connecting.
        peer: the client's "address:port".
        local: ours.
        name: CLIENT SETNAME, "" = none.
        user: who signed in, "" = nobody.
        resp: 2 or 3.
        authed: whether it may use all commands.
        age_ms: since it connected.
        idle_ms: since its last input.
        input_bytes: read and not yet carried out.
        output_bytes: answered and not yet sent.
        commands: carried out so far.
        leases_unsent: jobs handed to it whose reply has not left wholly.
        leases_bound: jobs that are lost when it closes.
        waiting: parked in a LEASE.
        blocked: the kernel refused bytes for it.
        fed: Python moves its bytes.
        roles: bits of its roles: 1 viewer, 2 producer, 4 worker, 8 operator, 16 admin.
    """

    handle: int
    id: int
    peer: str
    local: str
    name: str
    user: str
    resp: int
    authed: bool
    age_ms: int
    idle_ms: int
    input_bytes: int
    output_bytes: int
    commands: int
    leases_unsent: int
    leases_bound: int
    waiting: bool
    blocked: bool
    fed: bool
    roles: int = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A distribution since the last reset; quantiles are at most 12.5 % above the true ones."""

    count: int
    sum: int
    p50: int
    p90: int
    p99: int
    p999: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSyntax:
    """A command that the core answers.

    Attributes:
        name: in upper case.
        usage: what is written behind the name.
        args_min: number of arguments at least, the name not counted.
        args_max: and at most.
    """

    name: str
    usage: str
    args_min: int
    args_max: int


@dataclass(frozen=True, slots=True)
class Right:
    """Who may use a command, or a form of it.

    Attributes:
        command: its name, in upper case.
        form: its first argument, "*" = with any option, "" = all that no other form says.
        roles: bits, as in ``Session``.
        limited: whether a token for some handlers only may use it.
    """

    command: str
    form: str
    roles: int
    limited: bool
