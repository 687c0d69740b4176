"""One atomic change: everything that one decision does, submitted as a whole or undone as a whole.

A decision writes into memory at once, because the next step of it has to see that; what it touches
is saved first. ``commit`` submits all of it as one batch. If the core refuses the batch (no memory,
no disk), memory is put back, and nothing happened.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from wheel.engine.definition import ScheduleError, read_template
from wheel.engine.entries import SAVED, Entry, saved_of
from wheel.engine.history import Item, join, split
from wheel.engine.records import Flag, Kind, Record, State, encode
from wheel.engine.runs import Run, Stands
from wheel.errors import CoreDiskError, CoreMemoryError

BATCH_BYTES_MAX: Final = 256 * 1024  # a slice ends behind it; one command may write more
SUBMIT_BYTES_MAX: Final = 2 * 1024 * 1024  # the core takes no more at once
DEFINITION, STATE, HISTORY, PLAN, ONCE, TEXT, GOING = 1, 2, 3, 4, 5, 6, 7  # of table entries

# A job that was not handed out yet.
WAITS: Final = frozenset({State.SCHEDULED, State.HELD, State.READY})


class Core(Protocol):
    """What schedules need of the core."""

    def submit(self, ops: bytes) -> list[int]:
        """Carry out operations, all or none; return ids of new jobs."""
        ...

    def table_get(self, kind: int, key: bytes) -> bytes | None:
        """Return the value of one entry."""
        ...

    def job_state(self, job_id: int) -> int:
        """Return a job's state."""
        ...


class Change:
    """What one decision does.

    Attributes:
        bytes: of its operations so far, about.
        events: what is to be told when it has been carried out.
        ended: runs that it takes off the live ones.
        grown: entries that got records.
    """

    def __init__(self, core: Core) -> None:
        self.bytes = 0
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.ended: list[Run] = []
        self.grown: dict[Entry, None] = {}
        self._core = core
        self._saved: dict[Entry, tuple[object, ...]] = {}
        self._lives: dict[Entry, dict[tuple[int, str], Run] | None] = {}
        self._stood: dict[Run, Stands] = {}
        self._made: list[tuple[Entry, Run]] = []
        self._templates: dict[Entry, bytes] = {}  # definitions of those that it makes runs of
        self._closed: list[int] = []
        self._cancelled: dict[Run, None] = {}
        self._released: dict[Run, Entry] = {}
        self._histories: dict[str, list[Item]] = {}
        self._seen: dict[str, list[Item]] = {}  # as the table has them
        self._puts: dict[tuple[int, bytes], bytes | None] = {}
        self._undo: list[Callable[[], None]] = []

    @property
    def touched(self) -> Mapping[Entry, object]:
        """The entries that it changes."""
        return self._saved

    @property
    def made(self) -> list[tuple[Entry, Run]]:
        """The runs that it makes."""
        return self._made

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be submitted."""
        done = self._saved or self._closed or self._puts or self._cancelled
        return not (done or self._made or self._released)

    # ---------------------------------------------------------------- entries

    def edit(self, entry: Entry) -> None:
        """Say that an entry is going to be changed."""
        if entry not in self._saved:
            self._saved[entry] = saved_of(entry)
            self.bytes += 160

    def undone_by(self, undo: Callable[[], None]) -> None:
        """Have something else put back too if the change is refused."""
        self._undo.append(undo)

    def put(self, kind: int, key: bytes, blob: bytes) -> None:
        """Set an entry of the table."""
        self._puts[kind, key] = blob
        self.bytes += len(blob) + len(key) + 32

    def drop(self, kind: int, key: bytes) -> None:
        """Delete an entry of the table, if it is there."""
        if self._core.table_get(kind, key) is not None:
            self._puts[kind, key] = None
        else:
            self._puts.pop((kind, key), None)

    def get(self, kind: int, key: bytes) -> bytes | None:
        """Return an entry of the table, as this change leaves it."""
        if (kind, key) in self._puts:
            return self._puts[kind, key]
        return self._core.table_get(kind, key)

    # ---------------------------------------------------------------- runs

    def _own_live(self, entry: Entry) -> dict[tuple[int, str], Run]:
        """Return an entry's live runs, of which the old ones are saved."""
        if entry not in self._lives:
            self._lives[entry] = entry.live
            entry.live = {} if entry.live is None else dict(entry.live)
        if entry.live is None:
            entry.live = {}
        return entry.live

    def make(self, entry: Entry, run: Run) -> None:
        """Make a run."""
        self._own_live(entry)[run.key] = run
        self._made.append((entry, run))
        self.bytes += 400 + len(self._template(entry))

    def _template(self, entry: Entry) -> bytes:
        """Return the definition that an entry's runs are made by."""
        found = self._templates.get(entry)
        if found is None:
            blob = self.get(DEFINITION, entry.name.encode())
            assert blob is not None, entry.name
            found = self._templates[entry] = blob
        return found

    def revive(self, entry: Entry, run: Run) -> None:
        """Count a run as live again whose job is there."""
        self._own_live(entry)[run.key] = run

    def set_live(self, entry: Entry, live: dict[tuple[int, str], Run]) -> None:
        """Replace an entry's live runs."""
        self._lives.setdefault(entry, entry.live)
        entry.live = live or None

    def end(self, entry: Entry, run: Run) -> None:
        """Take a run off the live ones."""
        live = self._own_live(entry)
        live.pop(run.key, None)
        if not live:
            entry.live = None
        self.ended.append(run)

    def stand(self, run: Run, stands: Stands) -> None:
        """Let a run stand somewhere else, in memory."""
        self._stood.setdefault(run, run.stands)
        run.stands = stands

    def release(self, entry: Entry, run: Run) -> None:
        """Let a held run go."""
        self.stand(run, Stands.ACTIVE)
        # Somebody may have let it go by RUN: then the news of that are still on their way.
        if run.job_id and self._core.job_state(run.job_id) == State.HELD:
            self._released[run] = entry
            self.bytes += 40

    def cancel(self, run: Run) -> bool:
        """Cancel a run; if it was handed out, ask its worker to stop. False: it is not there."""
        state = self._core.job_state(run.job_id)
        if state not in WAITS and state != State.LEASED:
            return False
        self._released.pop(run, None)
        if run not in self._cancelled:
            self._cancelled[run] = None
            self.bytes += 24
        return True

    def cancel_waiting(self, run: Run) -> bool:
        """Cancel a run that was not handed out."""
        return self._core.job_state(run.job_id) in WAITS and self.cancel(run)

    def close(self, job_id: int) -> None:
        """Note that the end of an owned job was seen."""
        self._closed.append(job_id)
        self.bytes += 24

    # ---------------------------------------------------------------- history

    def history(self, name: str) -> list[Item]:
        """Return a schedule's history as this change leaves it; to be changed in place."""
        found = self._histories.get(name)
        if found is None:
            found = split(self._core.table_get(HISTORY, name.encode()) or b"")
            self._histories[name] = found
            self.bytes += 1500
        return found

    def seen_history(self, name: str) -> list[Item]:
        """Return a schedule's history as this change leaves it; not to be changed."""
        found = self._histories.get(name)
        if found is None:
            found = self._seen.get(name)
        if found is None:
            found = split(self._core.table_get(HISTORY, name.encode()) or b"")
            self._seen[name] = found
        return found

    def set_history(self, name: str, items: list[Item]) -> None:
        """Replace a schedule's history."""
        self._histories[name] = items

    # ---------------------------------------------------------------- the end

    def _ops(self, gone: frozenset[str]) -> bytes:
        ops: list[bytes] = [encode(Record(kind=Kind.CLOSED, id=job_id)) for job_id in self._closed]
        ops += [encode(Record(kind=Kind.MARKED, id=run.job_id)) for run in self._cancelled]
        for run, entry in self._released.items():
            flags = Flag.REL if entry.settings.rel and not run.tag.startswith("!") else 0
            ops.append(
                encode(Record(kind=Kind.UNHELD, id=run.job_id, due_ms=run.due_ms, flags=int(flags)))
            )
        for entry, run in self._made:
            flags = 1 if entry.settings.rel and not run.tag.startswith("!") else 0
            if run.stands is not Stands.ACTIVE:
                flags |= 4
            template = read_template(self._template(entry))
            ops.append(template.created(run.due_ms, flags, run.owner))
        ops += [
            _put(HISTORY, name.encode(), join(items))
            for name, items in self._histories.items()
            if name not in gone
        ]
        ops += [
            _put(STATE, entry.name.encode(), entry.state_blob())
            for entry in self._saved
            if entry.name not in gone
        ]
        for (kind, key), value in self._puts.items():
            if value is None:
                ops.append(encode(Record(kind=Kind.DEL, reason=kind, name=key)))
            else:
                ops.append(_put(kind, key, value))
        return b"".join(ops)

    def commit(self, *, gone: frozenset[str] = frozenset()) -> list[tuple[Entry, Run]]:
        """Carry it out; return the runs that were made, with the ids of their jobs.

        Args:
            gone: schedules that it deletes.

        Raises:
            ScheduleError: OOM, DISKFULL or LIMIT; ``undo`` puts everything back.
        """
        ops = self._ops(gone)
        if len(ops) > SUBMIT_BYTES_MAX:
            raise ScheduleError(
                "LIMIT",
                f"this would write {len(ops)} bytes at once, at most {SUBMIT_BYTES_MAX} are; ask "
                "for less of it",
            )
        try:
            ids = self._core.submit(ops)
        except CoreDiskError as error:
            raise ScheduleError(
                "DISKFULL",
                "the disk has no room for what schedules would have to log; make room where the "
                "data directory lies, the server tries again each second",
            ) from error
        except CoreMemoryError as error:
            raise ScheduleError(
                "OOM",
                f"no room for what schedules would make ({error}); raise --maxmemory, or cancel "
                "and purge jobs, the server tries again each second",
            ) from error
        for (_entry, run), job_id in zip(self._made, ids, strict=True):
            run.job_id = job_id
        return self._made

    def undo(self) -> None:
        """Put everything back."""
        for entry, values in self._saved.items():
            for name, value in zip(SAVED, values, strict=True):
                setattr(entry, name, value)
        for entry, live in self._lives.items():
            entry.live = live
        for run, stands in self._stood.items():
            run.stands = stands
        for undo in reversed(self._undo):
            undo()


_M_REASON, _M_NAME, _M_BLOB = 1 << 12, 1 << 22, 1 << 23
_PUT: Final = struct.Struct("<IIBH")
_PUT_BLOB: Final = int(Kind.PUT) | (_M_REASON | _M_NAME | _M_BLOB) << 8
_PUT_EMPTY: Final = int(Kind.PUT) | (_M_REASON | _M_NAME) << 8


def _put(kind: int, key: bytes, blob: bytes) -> bytes:
    """Return a PUT record: REASON, NAME and BLOB; an empty blob is left out."""
    size = _PUT.size + len(key)
    if not blob:
        return _PUT.pack(size, _PUT_EMPTY, kind, len(key)) + key
    head = _PUT.pack(size + 4 + len(blob), _PUT_BLOB, kind, len(key))
    return b"".join((head, key, len(blob).to_bytes(4, "little"), blob))
