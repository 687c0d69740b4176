"""The C core, typed: the one file of ``wheel/`` that crosses into ``_wheeld``.

One thread uses a core. Nothing is called back: whatever the core has for Python is asked for. A
call after ``close()`` raises TypeError.
"""
# pyright: basic

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, Self

from _wheeld import ffi, lib

from wheel.engine.facts import (
    Batch,
    Clocks,
    CommandSyntax,
    Entry,
    FedOutput,
    Figure,
    Right,
    Session,
    SlowCommand,
)
from wheel.engine.records import HEADER_BYTES, Record, decode
from wheel.errors import CoreError, CoreMemoryError

NAME_BYTES_MAX: Final = 63  # of a connection's or a user's name
ROLES_ALL: Final = 31  # WD_ROLES_ALL


class LogStoppedError(CoreError):
    """The log has failed: every connection is closed, nothing more may be confirmed, exit."""


class JobGoneError(CoreError):
    """Something named in a submission is not there, or not in a state that allows it."""


class Commit(IntEnum):
    """Who writes frames, and when; wd_commit.h tells them apart."""

    THREAD = lib.WD_COMMIT_THREAD
    INLINE = lib.WD_COMMIT_INLINE
    DRIVEN = lib.WD_COMMIT_DRIVEN


class Sync(IntEnum):
    """When a frame counts as durable: synced (always), or written (interval, off)."""

    ALWAYS = lib.WD_FSYNC_ALWAYS
    INTERVAL = lib.WD_FSYNC_INTERVAL
    OFF = lib.WD_FSYNC_OFF


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

    ROUND_CPU_NS = lib.WD_FIGURE_ROUND_CPU_NS
    SYNC_NS = lib.WD_FIGURE_SYNC_NS
    LATENESS_US = lib.WD_FIGURE_LATENESS_US
    BATCH_BYTES = lib.WD_FIGURE_BATCH_BYTES
    BATCH_RECORDS = lib.WD_FIGURE_BATCH_RECORDS


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


def _raise(status: int, doing: str) -> None:
    """Raise what a negative status means."""
    text = f"{doing}: {ffi.string(lib.wd_strerror(status)).decode()}"
    if status == lib.WD_EIO:
        raise LogStoppedError(f"{text}; the log has stopped, end the process")
    if status in (lib.WD_ENOMEM, lib.WD_EFULL):
        raise CoreMemoryError(text)
    if status == lib.WD_EGONE:
        raise JobGoneError(text)
    raise CoreError(text)


def _need(status: int, doing: str) -> int:
    """Return a status that is not negative."""
    if status < 0:
        _raise(status, doing)
    return status


class Core:
    """A core: engine, connections, and what carries its frames to the log."""

    def __init__(self, options: CoreOptions) -> None:
        if len(options.store) != 16:
            raise ValueError(f"store has {len(options.store)} bytes, a uuid has 16")
        self._core: Any = ffi.gc(lib.wd_core_new(_c_options(options)), lib.wd_core_free)
        if self._core == ffi.NULL:
            raise CoreMemoryError(f"no core could be made with {options}")
        self._log: object = None  # kept alive while the core writes to it
        self._u64 = ffi.new("uint64_t *")
        self._u32 = ffi.new("uint32_t *")
        self._int = ffi.new("int *")
        self._size = ffi.new("size_t *")
        self._bytes = ffi.new("const uint8_t **")
        self._info = ffi.new("wd_conn_info *")
        self._figure = ffi.new("wd_figure *")
        self._stats = ffi.new("wd_core_stats *")
        self._engine = ffi.new("wd_engine_figures *")

    def close(self) -> None:
        """Close every connection, wait for the frame in flight, free everything."""
        if self._core is not None:
            ffi.release(self._core)
            self._core = None
            self._log = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---------------------------------------------------------------- start

    def replay(self, frames: bytes | bytearray | memoryview, *, term: int) -> None:
        """Apply whole valid frames, headers included, in their order; before ``start``."""
        data = ffi.from_buffer(frames)
        _need(lib.wd_core_replay(self._core, data, len(data), term), "replaying frames")

    def start(self, *, term: int, rel_ms: int, clocks: Clocks) -> None:
        """Begin to serve under a term, the rel axis standing at rel_ms at these clocks."""
        status = lib.wd_core_start(
            self._core, term, rel_ms, clocks.wall_ms, clocks.boot_ms, clocks.mono_ms
        )
        _need(status, f"starting term {term}")

    def attach_log(self, log: object) -> None:
        """Write to a log (``wd_log *``, from ``wal.frame``) from now on; before anything is served.

        The core must be closed before the log is.
        """
        _need(lib.wd_core_attach_log(self._core, log), "attaching the log")
        self._log = log

    # ---------------------------------------------------------------- rounds

    def fileno(self) -> int:
        """Return the inner epoll: readable when ``poll`` has work to do; -1 without sockets."""
        return int(lib.wd_core_fd(self._core))

    def listen(self, fd: int) -> None:
        """Accept clients from a listening socket; the descriptor is the core's from now on."""
        _need(lib.wd_core_listen_fd(self._core, fd), f"listening on descriptor {fd}")

    def poll(self, timeout_ms: int = 0) -> int:
        """Run one round over what is ready; return how many commands wait for Python.

        Raises:
            LogStoppedError: the log has failed; the process must end.
        """
        return _need(lib.wd_core_poll(self._core, timeout_ms), "a round")

    def commit(self) -> int:
        """End a round without events, after answers or fed input; return as ``poll``."""
        return _need(lib.wd_core_commit(self._core), "the end of a round")

    def tick(self, clocks: Clocks) -> int:
        """Let time be this (hand_clock), run what is due, end the round; return as ``poll``."""
        status = lib.wd_core_tick(self._core, clocks.wall_ms, clocks.boot_ms, clocks.mono_ms)
        return _need(status, "a tick")

    def stop_reading(self) -> None:
        """Close the listeners, read nothing more, end waiting LEASE calls with an empty array."""
        lib.wd_core_stop_reading(self._core)

    def set_disk_room(self, room: DiskRoom) -> None:
        """Tell what is left on the disk for the log; from the next round on it is acted upon."""
        _need(lib.wd_core_set_disk_room(self._core, room), f"disk room {room}")

    def connections(self) -> int:
        """Return how many connections there are, fed ones included."""
        return int(lib.wd_core_conns(self._core))

    def unflushed(self) -> int:
        """Return how many connections have bytes to send or a command to be answered."""
        return int(lib.wd_core_unflushed(self._core))

    # ---------------------------------------------------------------- driven commit

    def take_batch(self) -> Batch | None:
        """Return the next frame to make durable, None while one is in flight or there is none."""
        status = lib.wd_core_take_batch(self._core, self._bytes, self._size, self._u64)
        if status == lib.WD_EAGAIN:
            return None
        _need(status, "taking a batch")
        return Batch(frame=ffi.buffer(self._bytes[0], self._size[0])[:], lsn=int(self._u64[0]))

    def batch_durable(self, lsn: int) -> None:
        """Open the gate up to lsn, which is durable now, and end the round."""
        _need(lib.wd_core_batch_durable(self._core, lsn), f"lsn {lsn} as durable")

    # ---------------------------------------------------------------- what Python decided

    def submit(self, ops: bytes) -> list[int]:
        """Carry out operations (``records.encode``), all of them or none; return ids of new jobs.

        What each kind of record means here stands in ``wd_control.h``. Call ``commit`` behind it.

        Raises:
            JobGoneError: a job or entry is not there or not in a state that allows it.
            CoreMemoryError: no room.
            CoreError: the bytes are no such operations, or more than 2 MiB.
        """
        ids = ffi.new("uint64_t[]", len(ops) // HEADER_BYTES + 1)
        status = lib.wd_core_submit(self._core, ops, len(ops), ids, len(ids), self._u32)
        _need(status, f"submitting {len(ops)} bytes")
        return [int(ids[i]) for i in range(int(self._u32[0]))]

    def ended(self, most: int = 1000) -> list[Record]:
        """Return owned jobs that ended, or were moved, and are not CLOSED yet; oldest first."""
        status = lib.wd_core_ended(self._core, most, self._bytes, self._size)
        _need(status, "listing ended jobs")
        return list(decode(ffi.buffer(self._bytes[0], self._size[0])[:])) if self._size[0] else []

    def table(self) -> Iterator[Entry]:
        """Yield every entry; nothing may change the table meanwhile."""
        cursor, found = ffi.new("uint32_t *"), ffi.new("wd_core_entry *")
        while lib.wd_core_table_next(self._core, cursor, found) == lib.WD_OK:
            yield Entry(
                kind=int(found.kind),
                key=ffi.buffer(found.key, found.key_n)[:],
                blob=ffi.buffer(found.blob, found.blob_n)[:] if found.blob_n else b"",
            )

    # ---------------------------------------------------------------- commands that Python answers

    def slow_next(self) -> SlowCommand | None:
        """Return the next command that Python must answer, None when there is none."""
        status = lib.wd_core_slow_next(self._core, self._u64, self._bytes, self._u32)
        if status == lib.WD_EAGAIN:
            return None
        _need(status, "fetching a command")
        count = int(self._u32[0])
        lengths = ffi.unpack(ffi.cast("const uint32_t *", self._bytes[0]), count)
        data = ffi.buffer(self._bytes[0] + 4 * count, sum(lengths))[:]
        ends = [0]
        for length in lengths:
            ends.append(ends[-1] + length)
        arguments = tuple(data[a:b] for a, b in pairwise(ends))
        return SlowCommand(handle=int(self._u64[0]), arguments=arguments)

    def slow_reply(self, handle: int, reply: bytes, *, gated: bool) -> bool:
        """Answer a command; True unless its connection is gone.

        Args:
            handle: as ``slow_next`` named it.
            reply: whole replies, encoded; may be empty.
            gated: the reply depends on the state that it shows or changed.
        """
        status = lib.wd_core_slow_reply(self._core, handle, reply, len(reply), gated)
        return bool(status == lib.WD_OK)

    # ---------------------------------------------------------------- fed connections

    def fed_open(self, peer: str) -> int:
        """Return the handle of a new connection whose bytes Python moves."""
        status = lib.wd_core_fed_open(self._core, peer.encode(), self._u64)
        _need(status, f"a connection for {peer}")
        return int(self._u64[0])

    def fed_input(self, handle: int, data: bytes) -> bool:
        """Run what came in (``commit`` ends the round); False when the connection is gone."""
        return bool(lib.wd_core_fed_input(self._core, handle, data, len(data)) == lib.WD_OK)

    def fed_eof(self, handle: int) -> bool:
        """The peer has sent all it will; False when the connection is gone."""
        return bool(lib.wd_core_fed_eof(self._core, handle) == lib.WD_OK)

    def fed_wants_input(self, handle: int) -> bool:
        """Return whether the transport may read; if not, ask again after each round."""
        return bool(lib.wd_core_fed_wants_input(self._core, handle))

    def fed_blocked(self, handle: int, *, blocked: bool) -> None:
        """Tell whether the transport refuses bytes: no lease is given meanwhile."""
        lib.wd_core_fed_blocked(self._core, handle, blocked)

    def fed_ready(self) -> Iterator[int]:
        """Yield the connections that have released bytes or are to be closed, each once."""
        while lib.wd_core_fed_ready(self._core, self._u64) == lib.WD_OK:
            yield int(self._u64[0])

    def fed_output(self, handle: int) -> FedOutput:
        """Return what may leave now; say with ``fed_taken`` how much of it did."""
        status = lib.wd_core_fed_output(self._core, handle, self._bytes, self._size, self._int)
        if status != lib.WD_OK:
            return FedOutput(data=b"", finished=True)
        data = ffi.buffer(self._bytes[0], self._size[0])[:] if self._size[0] else b""
        return FedOutput(data=data, finished=bool(self._int[0]))

    def fed_taken(self, handle: int, count: int) -> None:
        """The transport took the first count released bytes."""
        status = lib.wd_core_fed_taken(self._core, handle, count)
        if status != lib.WD_EGONE:
            _need(status, f"{count} bytes as taken")

    def fed_close(self, handle: int) -> None:
        """Forget a connection (``commit`` ends the round).

        Grants whose reply had not left wholly are given back.
        """
        lib.wd_core_fed_close(self._core, handle)

    # ---------------------------------------------------------------- connections

    def session(self, handle: int) -> Session | None:
        """Return one connection, None when it is gone."""
        if lib.wd_core_conn_info(self._core, handle, self._info) != lib.WD_OK:
            return None
        return _session(self._info)

    def sessions(self) -> list[Session]:
        """Return every open connection, in the order of connecting."""
        cursor = ffi.new("uint32_t *")
        found: list[Session] = []
        while lib.wd_core_conn_next(self._core, cursor, self._info) == lib.WD_OK:
            found.append(_session(self._info))
        return sorted(found, key=lambda session: session.id)

    def walk_sessions(self) -> Iterator[Session]:
        """Yield the open connections, in no order; other calls may come between two of them.

        One that opens or closes meanwhile may be missing; none is yielded twice.
        """
        cursor = ffi.new("uint32_t *")
        while lib.wd_core_conn_next(self._core, cursor, self._info) == lib.WD_OK:
            yield _session(self._info)

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
        """Change what is given; a connection that is gone is left alone.

        authed gives every role or none; roles gives these (bits, 0 = signed out), limited to the
        handlers in globs ("a.*,b"; none = all).

        Raises:
            ValueError: a name of more than 63 bytes, or a RESP version other than 2 and 3.
        """
        if self.session(handle) is None:
            return
        if resp is not None and lib.wd_core_conn_set_resp(self._core, handle, resp) != lib.WD_OK:
            raise ValueError(f"RESP version {resp}: only 2 and 3 are spoken")
        if name is not None:
            text = _short(name)
            lib.wd_core_conn_set_name(self._core, handle, text, len(text))
        if user is not None:
            text = _short(user)
            lib.wd_core_conn_set_user(self._core, handle, text, len(text))
        if roles is None and authed is not None:
            roles = ROLES_ALL if authed else 0
        if roles is not None:
            text = globs.encode()
            status = lib.wd_core_conn_set_rights(self._core, handle, roles, text, len(text))
            _need(status, f"roles {roles:#x} of connection {handle}")

    def close_session(self, handle: int) -> None:
        """Close a connection when what it is owed has left; a waiting LEASE ends empty."""
        lib.wd_core_conn_set_closing(self._core, handle)

    def kill_session(self, handle: int) -> bool:
        """Close a connection without another byte; False when it is gone."""
        return bool(lib.wd_core_conn_kill(self._core, handle) == lib.WD_OK)

    # ---------------------------------------------------------------- figures

    def figure(self, kind: FigureKind) -> Figure:
        """Return what was measured since the last reset."""
        _need(lib.wd_core_figure(self._core, kind, self._figure), f"figure {kind}")
        return Figure(**{name: int(getattr(self._figure, name)) for name in Figure.__slots__})

    def reset_figures(self) -> None:
        """Begin all distributions anew."""
        lib.wd_core_figures_reset(self._core)

    def stats(self) -> dict[str, int]:
        """Return every counter, gauge and limit by its name in ``wd_core_stats``."""
        lib.wd_core_stats_get(self._core, self._stats)
        return {name: int(getattr(self._stats, name)) for name in _STATS_NAMES}

    def errors(self) -> dict[str, int]:
        """Return how many error replies were sent, by their code; "other" = any not listed."""
        code, count = ffi.new("const char **"), ffi.new("uint64_t *")
        found: dict[str, int] = {}
        while lib.wd_core_error_count(self._core, len(found), code, count) == lib.WD_OK:
            found[_text(code[0])] = int(count[0])
        return found

    def engine_figures(self) -> dict[str, int]:
        """Return the engine's clocks, counters and job counts by their names in wd_control.h."""
        lib.wd_core_engine_figures(self._core, self._engine)
        return {name: int(getattr(self._engine, name)) for name in _ENGINE_NAMES}

    def accept_clock(self) -> None:
        """Set the wall wheel's logical now to the wall clock (CLOCK ACCEPT); a record."""
        _need(lib.wd_core_accept_clock(self._core), "accepting the clock")

    # ---------------------------------------------------------------- state

    def lsn(self) -> int:
        """Return the lsn of the last record made."""
        return int(lib.wd_core_lsn(self._core))

    def durable_lsn(self) -> int:
        """Return the lsn of the last record that is durable."""
        return int(lib.wd_core_durable_lsn(self._core))

    def memory_bytes(self) -> int:
        """Return what counts against maxmemory."""
        return int(lib.wd_core_memory(self._core))

    def check(self) -> int:
        """Return the number of the first broken invariant, 0 = all hold; O(jobs)."""
        return int(lib.wd_core_check(self._core))

    def state_hash(self) -> int:
        """Return the hash of the logged state: equal before and after any restart; O(jobs)."""
        return int(lib.wd_core_hash(self._core))


_STATS_NAMES: Final[tuple[str, ...]] = tuple(
    name for name, _field in ffi.typeof("wd_core_stats").fields
)
_ENGINE_NAMES: Final[tuple[str, ...]] = tuple(
    name for name, _field in ffi.typeof("wd_engine_figures").fields
)


def _c_options(options: CoreOptions) -> Any:
    """Return the options as the core takes them."""
    return ffi.new(
        "wd_core_options *",
        {
            "jobs_max": options.jobs_max,
            "conns_max": options.conns_max,
            "maxmemory_bytes": options.maxmemory_bytes,
            "payload_bytes_max": options.payload_bytes_max,
            "seed": options.seed,
            "dead_max": options.dead_max,
            "dead_kept_ms": options.dead_kept_ms,
            "ended_max": options.ended_max,
            "once_max": options.once_max,
            "store": options.store,
            "strict_handlers": options.strict_handlers,
            "auth_required": options.auth_required,
            "commit_mode": options.commit,
            "fsync_mode": options.sync,
            "gather_us": options.gather_us,
            "own_sync_us": options.own_sync_us,
            "sockets": options.sockets,
            "hand_clock": options.hand_clock,
        },
    )


def command_table() -> list[CommandSyntax]:
    """Return the commands that the core answers itself."""
    name, usage = ffi.new("const char **"), ffi.new("const char **")
    least, most = ffi.new("uint32_t *"), ffi.new("uint32_t *")
    found: list[CommandSyntax] = []
    while lib.wd_core_command(len(found), name, usage, least, most) == lib.WD_OK:
        found.append(
            CommandSyntax(
                name=_text(name[0]), usage=_text(usage[0]), args_min=least[0], args_max=most[0]
            )
        )
    return found


def rights_table() -> list[Right]:
    """Return who may use which command, and which forms of commands differ."""
    command, form = ffi.new("const char **"), ffi.new("const char **")
    roles, limited = ffi.new("uint32_t *"), ffi.new("int *")
    found: list[Right] = []
    while lib.wd_core_right(len(found), command, form, roles, limited) == lib.WD_OK:
        found.append(Right(_text(command[0]), _text(form[0]), int(roles[0]), bool(limited[0])))
    return found


def _short(text: str) -> bytes:
    """Return a name as the core keeps it."""
    data = text.encode()
    if len(data) > NAME_BYTES_MAX:
        raise ValueError(f"a name of {len(data)} bytes, at most {NAME_BYTES_MAX} are kept")
    return data


def _text(field: Any) -> str:
    return str(ffi.string(field).decode("utf-8", "replace"))


def _session(info: Any) -> Session:
    return Session(
        handle=int(info.handle),
        id=int(info.id),
        peer=_text(info.addr),
        local=_text(info.local),
        name=_text(info.name),
        user=_text(info.user),
        resp=int(info.resp),
        authed=bool(info.authed),
        age_ms=int(info.age_ms),
        idle_ms=int(info.idle_ms),
        input_bytes=int(info.in_bytes),
        output_bytes=int(info.out_bytes),
        commands=int(info.commands),
        leases_unsent=int(info.leases_unsent),
        leases_bound=int(info.leases_bound),
        waiting=info.parked == lib.WD_CONN_WAITS,
        blocked=bool(info.blocked),
        fed=bool(info.fed),
        roles=int(info.roles),
    )
