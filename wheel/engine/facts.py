"""What the core takes and tells, as plain values."""

from dataclasses import dataclass
from enum import IntEnum


class Commit(IntEnum):
    """Who writes frames, and when; wd_commit.h tells them apart."""

    THREAD = 0
    INLINE = 1
    DRIVEN = 2


class Sync(IntEnum):
    """When a frame counts as durable: synced (always), or written (interval, off)."""

    ALWAYS = 0
    INTERVAL = 1
    OFF = 2


class DiskRoom(IntEnum):
    """How much the disk has left for the log.

    TIGHT: no segment stands ready, no job is taken. LOW: little is left in this one, none is handed
    out. FULL: next to nothing is left, no record is made; what reads goes on.
    """

    OK = 0
    TIGHT = 1
    LOW = 2
    FULL = 3


class FigureKind(IntEnum):
    """What the core measures; the unit is in the name."""

    ROUND_CPU_NS = 0
    SYNC_NS = 1
    LATENESS_US = 2
    BATCH_BYTES = 3
    BATCH_RECORDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOptions:
    """What a core is made with; nothing of it changes later.

    Attributes:
        jobs_max: job slots; memory is taken only for those in use.
        conns_max: connections at once, fed ones included.
        maxmemory_bytes: SCHEDULE is refused above 85 % of it.
        payload_bytes_max: of one job, at most 1 MiB.
        seed: for backoff draws.
        dead_max: dead jobs kept; the oldest goes first.
        dead_kept_ms: and no longer than this.
        ended_max: ended jobs remembered, at most 4 Mi.
        once_max: ONCE tokens remembered, at most 4 Mi.
        store: the store's uuid, 16 bytes: keys the hashes of keys and tokens.
        strict_handlers: refuse jobs for a handler that nobody serves.
        auth_required: connections start without rights.
        commit: who writes frames.
        sync: when they count as durable.
        gather_us: longest wait behind a commit for its clients to come back, 0 = none.
        own_sync_us: while the last sync took less, the loop syncs by itself for many who wait.
        sockets: with epoll and timers; without, connections are fed and time is moved by rounds.
        hand_clock: time moves by ``tick`` only.
    """

    jobs_max: int = 1_000_000
    conns_max: int = 10_000
    maxmemory_bytes: int = 1 << 30
    payload_bytes_max: int = 64 * 1024
    seed: int = 0
    dead_max: int = 1_000_000
    dead_kept_ms: int = 90 * 24 * 3600 * 1000
    ended_max: int = 4 << 20
    once_max: int = 4 << 20
    store: bytes = bytes(16)
    strict_handlers: bool = False
    auth_required: bool = False
    commit: Commit = Commit.THREAD
    sync: Sync = Sync.ALWAYS
    gather_us: int = 100
    own_sync_us: int = 300
    sockets: bool = True
    hand_clock: bool = False


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


class CheckpointPhase(IntEnum):
    """How far a checkpoint is; wd_save.h tells them apart (a test compares the values)."""

    IDLE = 0
    SCANS = 1
    SYNCS = 2
    VERIFIES = 3
    WAITS = 4
    DONE = 5
    FAILED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """How far the last checkpoint is; ``wd_checkpoint_state`` in wd_save.h has the fields.

    Attributes:
        phase: a CheckpointPhase.
        start_lsn: S0, the log is needed behind it.
        end_lsn: S1, the log must be durable up to it; 0 = the scan goes on.
        crc: of the chunks' crcs, as in the file's last chunk.
        took_ns: from its start to its end, or to now.
        error: errno of the call that failed; 0 with the call "verify".
        verdict: how what was read back differs (``wal.frame.CheckpointStop``).
        corrupt_id: the job whose payload changed in memory: the scan stands there; else 0.
    """

    phase: int
    start_lsn: int
    end_lsn: int
    slots: int
    slots_done: int
    jobs: int
    things: int
    chunks: int
    size_bytes: int
    written_bytes: int
    verified_bytes: int
    slices: int
    slice_ns_max: int
    slice_cpu_ns_max: int
    scan_ns: int
    took_ns: int
    crc: int
    error: int
    verdict: int
    call: str
    corrupt_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The checkpoint that a core began with.

    Attributes:
        start_lsn: S0; 0 with end_lsn 0: none was loaded.
        end_lsn: S1.
        whole: its last chunk was loaded.
        reached: the log was replayed up to S1, so that the core may start.
    """

    start_lsn: int
    end_lsn: int
    whole: bool
    reached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A job that a schedule owns.

    Attributes:
        id: of the job.
        due_ms: on its axis.
        owner: what it was made with.
        state: of ``records.State``.
    """

    id: int
    due_ms: int
    owner: bytes
    state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The axes at one moment.

    Attributes:
        wall_ms: CLOCK_REALTIME.
        logical_ms: the wall axis's own now: the latest that the wall clock has shown.
        rel_ms: the axis that nobody sets.
        wall_jump: what the wall clock jumped over, by a step or a suspend: (from, to], 0 and 0 =
            nothing.
        rel_jump: what the rel axis jumped over by a suspend.
    """

    wall_ms: int
    logical_ms: int
    rel_ms: int
    wall_jump: tuple[int, int] = (0, 0)
    rel_jump: tuple[int, int] = (0, 0)


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


class WhenFault(IntEnum):
    """Why a text is no ``when`` (enum wd_when_error)."""

    SYNTAX = 1
    NAIVE = 2
    SECONDS = 3
    RANGE = 4
