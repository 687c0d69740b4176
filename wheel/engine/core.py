"""The C core, typed: the one file of ``wheel/`` that crosses into ``_wheeld``.

One thread uses a core. Nothing is called back: whatever the core has for Python is asked for. A
call after ``close()`` raises TypeError.
"""
# pyright: basic

from collections.abc import Iterator
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, Self

from _wheeld import ffi, lib

from wheel.engine.facts import (
    Batch,
    CheckpointState,
    Clocks,
    CommandSyntax,
    Commit,
    CoreOptions,
    DiskRoom,
    FedOutput,
    Figure,
    FigureKind,
    Loaded,
    Right,
    Session,
    SlowCommand,
    Sync,
    WhenFault,
)
from wheel.engine.mending import Mending
from wheel.engine.plane import ControlPlane
from wheel.errors import CoreError, CoreMemoryError

__all__ = [
    "Commit",
    "Core",
    "CoreOptions",
    "DiskRoom",
    "FigureKind",
    "JobGoneError",
    "LogStoppedError",
    "Sync",
    "WhenFault",
    "command_table",
    "parse_when",
    "rights_table",
]

NAME_BYTES_MAX: Final = 63  # of a connection's or a user's name
ROLES_ALL: Final = 31  # WD_ROLES_ALL


class LogStoppedError(CoreError):
    """The log has failed: every connection is closed, nothing more may be confirmed, exit."""


class JobGoneError(CoreError):
    """Something named in a submission is not there, or not in a state that allows it."""


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


class Core(ControlPlane, Mending):
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
        self._times = ffi.new("wd_core_times *")
        self._lib, self._ffi, self._need = lib, ffi, _need

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

    def load(self, chunks: bytes | bytearray | memoryview) -> None:
        """Load a checkpoint: header block and whole chunks, in order; before any ``replay``.

        Frames that it holds wholly are passed over by ``replay`` afterwards. A core whose load
        failed is good for nothing but to be closed.
        """
        data = ffi.from_buffer(chunks)
        _need(lib.wd_core_load(self._core, data, len(data)), "loading a checkpoint")

    def loaded(self) -> Loaded:
        """Return which checkpoint was loaded, and whether the log has reached its end_lsn."""
        c = ffi.new("wd_core_loaded *")
        lib.wd_core_loaded_get(self._core, c)
        whole, reached = bool(c.whole), bool(c.reached)
        return Loaded(start_lsn=c.start_lsn, end_lsn=c.end_lsn, whole=whole, reached=reached)

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

    def stay(self) -> int:
        """Run a round over what is ready, and further ones while sockets alone keep it busy.

        That ends after 2 to 3 ms, and at once when something waits for Python. Returns as ``poll``.
        """
        return _need(lib.wd_core_stay(self._core), "a round")

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

    # ---------------------------------------------------------------- checkpoints

    def checkpoint_start(
        self,
        path: str,
        *,
        salt: int,
        rate_bytes: int = 0,
        io: int | None = None,
        threaded: bool = True,
        slice_things: int = 0,
    ) -> None:
        """Begin a checkpoint to a file that is made anew, a slice of it a round (wd_save.h).

        Args:
            path: of the file; what stands there is removed.
            salt: 32 random bits.
            rate_bytes: a second, written and read back; 0 = as fast as it goes.
            io: address of a ``wd_io`` table that outlives it; None = the kernel's calls.
            threaded: by a thread of its own; else within rounds.
            slice_things: so many things a round, whatever the clock says (tests).

        Raises:
            CoreError: one is under way, or the core does not serve yet.
        """
        text = ffi.new("char[]", path.encode(errors="surrogateescape"))
        table = lib.wd_io_real() if io is None else ffi.cast("const wd_io *", io)
        start = ffi.new(
            "wd_checkpoint_start *", (text, rate_bytes, salt, slice_things, int(threaded))
        )
        status = lib.wd_core_checkpoint_start(self._core, table, start)
        _need(status, f"a checkpoint to {path}")

    def checkpoint_state(self) -> CheckpointState:
        """Return how far the last checkpoint is; phase IDLE when there was none."""
        state = ffi.new("wd_checkpoint_state *")
        lib.wd_core_checkpoint_state(self._core, state)
        return CheckpointState(**_numbers(state), call=_text(state.call))

    def checkpoint_abort(self) -> None:
        """Give up the checkpoint under way, its file with it; forget one that is over."""
        lib.wd_core_checkpoint_abort(self._core)

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
        return Figure(**_numbers(self._figure))

    def reset_figures(self) -> None:
        """Begin all distributions anew."""
        lib.wd_core_figures_reset(self._core)

    def stats(self) -> dict[str, int]:
        """Return every counter, gauge and limit by its name in ``wd_core_stats``."""
        lib.wd_core_stats_get(self._core, self._stats)
        return _numbers(self._stats)

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
        return _numbers(self._engine)

    def handler_name(self, number: int) -> str:
        """Return the name of a handler by its number; it must exist."""
        _need(lib.wd_core_handler_name(self._core, number, self._bytes, self._size), "a handler")
        return bytes(ffi.buffer(self._bytes[0], self._size[0])).decode("utf-8", "replace")

    def accept_clock(self) -> None:
        """Set the wall wheel's logical now to the wall clock (CLOCK ACCEPT); a record."""
        _need(lib.wd_core_accept_clock(self._core), "accepting the clock")

    def served(self, handler: bytes) -> bool:
        """Return whether anybody serves a handler: by LEASE since the start, or by its defaults."""
        return bool(lib.wd_core_served(self._core, handler, len(handler)))

    def generation_max(self) -> int:
        """Return the highest generation that any job's id has had; O(slots)."""
        return int(lib.wd_core_generation_max(self._core))

    def raise_generations(self, generation: int) -> None:
        """Make no id from now on with a lower generation, 1 to 2^25 - 1; a record."""
        status = lib.wd_core_raise_generations(self._core, generation)
        _need(status, f"generations from {generation} on")

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


def _numbers(c: Any) -> dict[str, int]:
    """Return the fields of a C struct, of which all but arrays are integers, by name."""
    fields = ffi.typeof(c).item.fields
    return {name: int(getattr(c, name)) for name, field in fields if field.type.kind != "array"}


def _c_options(options: CoreOptions) -> Any:
    """Return the options as the core takes them."""
    renamed = {"commit_mode": options.commit, "fsync_mode": options.sync}
    names = [name for name, _field in ffi.typeof("wd_core_options").fields if name not in renamed]
    fields: dict[str, Any] = {name: getattr(options, name) for name in names}
    return ffi.new("wd_core_options *", fields | renamed)


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


def parse_when(text: bytes) -> tuple[int, bool] | WhenFault:
    """Return a ``when`` of the protocol as ms, and whether they count from now; or why it is none.

    Its grammar is the core's own (csrc/wd_when.c).
    """
    out_ms = ffi.new("int64_t *")
    status = lib.wd_core_when(text, len(text), out_ms)
    return WhenFault(-status) if status < 0 else (int(out_ms[0]), status == 1)


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
