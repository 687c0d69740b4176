"""The thread beside the log: keeps the next segment prepared and MARK close behind the log.

MARK is the log's promise to its own next start: "lsn n was durable". It is written at most 10 ms
after the log goes idle, each second under load, and at a rotation, so that a tail which got lost
on the disk is noticed. It costs a sync of its own file; under load that sync would compete with
those that clients wait for, so there it is rare.

When the disk has no room for another segment, the one in reserve becomes the next: so jobs that are
there can still be worked off. How much of it is left is told to the loop, which stops taking jobs
first, handing them out when little is left, and all changes when next to nothing is.

The log's calls are safe beside appends (csrc/wd_log.h); the loop tells this thread when the log
has moved, and this thread tells the loop, by ``on_failure``, when the log has failed.
"""

import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from server.clock import Clock
from wal.errors import DiskFullError

LOOK_S: Final = 0.004
QUIET_LOOKS: Final = (
    2  # without news = idle: 8 ms behind the last append, and no slow sync in between
)
MARK_EVERY_NS: Final = 1_000_000_000  # under load
PREPARE_AGAIN_S: Final = 1.0  # after the disk was full
PREPARE_AGAIN_NS: Final = 1_000_000_000
JOIN_S: Final = 5.0
LOW_SHARE: Final = 4  # a quarter of a segment left: what is leased must still be able to end
# As a batch may take: what is made while this is left still fits, so that its replies, and reads
# behind it, need not wait for room.
FULL_BYTES: Final = 640 * 1024


class Room(IntEnum):
    """What the disk has left for the log, as ``wheel.engine.core.DiskRoom`` counts it."""

    OK = 0
    TIGHT = 1  # no further segment can be made
    LOW = 2  # and little is left in those that are there
    FULL = 3  # and next to nothing


class LogStats(Protocol):
    """The figures of the log that are looked at here."""

    @property
    def written_lsn(self) -> int:
        """Return the lsn of the last record written."""
        ...

    @property
    def synced_lsn(self) -> int:
        """Return the highest lsn that a sync covers."""
        ...

    @property
    def marked_lsn(self) -> int:
        """Return the lsn that MARK holds."""
        ...

    @property
    def rotations(self) -> int:
        """Return how many segments were opened behind the first."""
        ...

    @property
    def prepared(self) -> bool:
        """Return whether the next segment stands ready."""
        ...

    @property
    def offset(self) -> int:
        """Return where the next frame goes in the current segment."""
        ...

    @property
    def segment_bytes(self) -> int:
        """Return how long a segment is."""
        ...


class Log(Protocol):
    """What this file needs of the log."""

    def prepare(self) -> None:
        """Make the next segment ready. Raises DiskFullError, or when the log has failed."""
        ...

    def mark(self, *, clean: bool) -> None:
        """Write MARK. Raises when the log failed."""
        ...

    def stats(self) -> LogStats:
        """Return the figures."""
        ...


class Keeper:
    """Runs the thread."""

    def __init__(
        self,
        *,
        log: Log,
        clock: Clock,
        logger: FilteringBoundLogger,
        on_failure: Callable[[], None],
        on_room: Callable[[Room], None],
        syncs: bool = True,
    ) -> None:
        """Make the keeper of one log.

        Args:
            log: the log.
            clock: tells how long MARK has been left alone.
            logger: for a full disk and a failure.
            on_failure: called in the thread, once, when the log has failed.
            on_room: called in the thread each time that it changes what the disk has left.
            syncs: whether somebody syncs the log while it rests (all but ``--fsync off``).
        """
        self._wal = log
        self._clock = clock
        self._log = logger
        self._on_failure = on_failure
        self._on_room = on_room
        self._syncs = syncs
        self._wake = threading.Condition()
        self._moved = False
        self._stopped = False
        self._room = Room.OK
        self._disk_full = False
        self._thread = threading.Thread(target=self._run, name="wheeld-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def moved(self) -> None:
        """Tell the thread that the log has new records. Cheap when it knows already."""
        if self._moved:
            return
        with self._wake:
            self._moved = True
            self._wake.notify()

    def stop(self) -> None:
        """End the thread and wait for it."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    @property
    def disk_full(self) -> bool:
        """Return whether the last try to prepare a segment found no room."""
        return self._disk_full

    @property
    def room(self) -> Room:
        """Return what the disk has left for the log."""
        return self._room

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._prepare()
                if self._rest():
                    self._follow()
        except Exception as error:  # noqa: BLE001 -- whatever it is, the log is not kept any more
            self._log.error("log_keeping_failed", error=str(error))
            self._on_failure()

    def _rest(self) -> bool:
        """Wait until the log moves; False when the wait ended for another reason."""
        with self._wake:
            self._wake.wait_for(
                lambda: self._moved or self._stopped,
                PREPARE_AGAIN_S if self._disk_full else None,
            )
            return self._moved and not self._stopped

    def _follow(self) -> None:
        """Mark now and then while the log moves, and once more when it rests."""
        before = self._wal.stats()
        marked_ns = tried_ns = self._clock.mono_ns()
        quiet = 0
        while not self._pause():
            now = self._wal.stats()
            self._tell_room(now)
            rests = now.written_lsn == before.written_lsn and (
                now.synced_lsn == now.written_lsn or not self._syncs
            )
            quiet = quiet + 1 if rests else 0
            idle = quiet >= QUIET_LOOKS
            if idle:
                # From here on moved() wakes this thread again. What moved before is in these:
                self._moved = False
                now = self._wal.stats()
                if now.written_lsn != before.written_lsn:
                    self._moved, idle = True, False
            again = self._clock.mono_ns() - tried_ns >= PREPARE_AGAIN_NS
            if again if self._disk_full else not now.prepared:
                self._prepare()
                tried_ns = self._clock.mono_ns()
            due = self._clock.mono_ns() - marked_ns >= MARK_EVERY_NS
            if (idle or due or now.rotations != before.rotations) and (
                now.synced_lsn != now.marked_lsn
            ):
                self._wal.mark(clean=False)
                marked_ns = self._clock.mono_ns()
            if idle:
                return
            before = now

    def _pause(self) -> bool:
        """Wait a look's time; True when the thread is to end."""
        with self._wake:
            return self._wake.wait_for(lambda: self._stopped, LOOK_S)

    def _prepare(self) -> None:
        try:
            self._wal.prepare()
        except DiskFullError:
            full = True
        else:
            full = False
        if full and not self._disk_full:
            self._log.error(
                "disk_filled",
                hint="make room where the data directory lies; the server tries again each second",
            )
        elif self._disk_full and not full:
            self._log.info("disk_freed")
        changes = full or self._disk_full
        self._disk_full = full
        if changes:
            self._tell_room(self._wal.stats())

    def _tell_room(self, stats: LogStats) -> None:
        """Tell what the disk has left for the log, when that has changed."""
        room = Room.OK
        if self._disk_full:
            left = stats.segment_bytes - stats.offset
            left += stats.segment_bytes if stats.prepared else 0
            low = left < stats.segment_bytes // LOW_SHARE
            room = Room.FULL if left < FULL_BYTES else Room.LOW if low else Room.TIGHT
        if room is not self._room:
            self._room = room
            self._on_room(room)
