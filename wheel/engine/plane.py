"""The control plane's calls of a core: what Python decided goes in, what it must know comes out.

A part of ``wheel.engine.core.Core``, which gives it the C library; it crosses into C by that alone.
"""
# pyright: basic

from collections.abc import Callable, Iterator
from typing import Any, Final

from wheel.engine.facts import Entry, Owned, Times
from wheel.engine.records import HEADER_BYTES, Record, decode
from wheel.errors import CoreDiskError

NEVER_MS: Final = (1 << 63) - 1


class ControlPlane:
    """One half of a core's calls."""

    _lib: Any
    _ffi: Any
    _core: Any
    _times: Any
    _u32: Any
    _bytes: Any
    _size: Any
    _need: Callable[[int, str], int]

    def submit(self, ops: bytes) -> list[int]:
        """Carry out operations (``records.encode``), all of them or none; return ids of new jobs.

        What each kind of record means here stands in ``wd_control.h``. Call ``commit`` behind it.

        Raises:
            JobGoneError: a job or entry is not there or not in a state that allows it.
            CoreMemoryError: no room; CoreDiskError: on the disk.
            CoreError: the bytes are no such operations, or more than 2 MiB.
        """
        ids = self._ffi.new("uint64_t[]", len(ops) // HEADER_BYTES + 1)
        status = self._lib.wd_core_submit(self._core, ops, len(ops), ids, len(ids), self._u32)
        if status == self._lib.WD_EFULL and self._lib.wd_core_disk_room(self._core):
            raise CoreDiskError(f"submitting {len(ops)} bytes: the disk has no room for them")
        self._need(status, f"submitting {len(ops)} bytes")
        return [int(ids[i]) for i in range(int(self._u32[0]))]

    def ended(self, most: int = 1000) -> list[Record]:
        """Return owned jobs that ended, or were moved, and are not CLOSED yet; oldest first."""
        return list(self.each_ended(most))

    def each_ended(self, most: int) -> Iterator[Record]:
        """Return them one by one: to decode a record takes ten microseconds or so."""
        status = self._lib.wd_core_ended(self._core, most, self._bytes, self._size)
        self._need(status, "listing ended jobs")
        data = self._ffi.buffer(self._bytes[0], self._size[0])[:] if self._size[0] else b""
        return decode(data)

    def table(self) -> Iterator[Entry]:
        """Yield every entry; nothing may change the table meanwhile."""
        cursor, found = self._ffi.new("uint32_t *"), self._ffi.new("wd_core_entry *")
        while self._lib.wd_core_table_next(self._core, cursor, found) == self._lib.WD_OK:
            yield Entry(
                kind=int(found.kind),
                key=self._ffi.buffer(found.key, found.key_n)[:],
                blob=self._ffi.buffer(found.blob, found.blob_n)[:] if found.blob_n else b"",
            )

    def table_get(self, kind: int, key: bytes) -> bytes | None:
        """Return the value of one entry, None if there is none."""
        status = self._lib.wd_core_table_get(
            self._core, kind, key, len(key), self._bytes, self._size
        )
        if status != self._lib.WD_OK:
            return None
        return self._ffi.buffer(self._bytes[0], self._size[0])[:] if self._size[0] else b""

    def owned(self) -> Iterator[Owned | None]:
        """Yield every job with an owner; None now and then, when there was none for a while."""
        cursor, found = self._ffi.new("uint32_t *"), self._ffi.new("wd_core_owned *")
        while (
            status := self._lib.wd_core_owned_next(self._core, cursor, found)
        ) != self._lib.WD_EGONE:
            if status != self._lib.WD_OK:
                yield None
                continue
            owner = self._ffi.buffer(found.owner, found.owner_n)[:]
            yield Owned(
                id=int(found.id), due_ms=int(found.due_ms), owner=owner, state=int(found.state)
            )

    def job_state(self, job_id: int) -> int:
        """Return a job's ``State``; UNKNOWN when it has gone."""
        return int(self._lib.wd_core_job_state(self._core, job_id))

    def times(self) -> Times:
        """Return where the axes stand, and what they jumped over since this was last asked."""
        self._lib.wd_core_times_get(self._core, self._times)
        seen = self._times
        return Times(
            wall_ms=int(seen.wall_ms),
            logical_ms=int(seen.logical_ms),
            rel_ms=int(seen.rel_ms),
            wall_jump=(int(seen.wall_from_ms), int(seen.wall_to_ms)),
            rel_jump=(int(seen.rel_from_ms), int(seen.rel_to_ms)),
        )

    def set_alarms(self, wall_ms: int | None, rel_ms: int | None) -> None:
        """Have a round begin when logical now or rel now comes to these; None = never."""
        self._lib.wd_core_set_alarms(
            self._core,
            NEVER_MS if wall_ms is None else wall_ms,
            NEVER_MS if rel_ms is None else rel_ms,
        )

    def wants_python(self) -> bool:
        """Return whether an alarm's time has come, or owned jobs ended and are not CLOSED."""
        return bool(self._lib.wd_core_wants_python(self._core))
