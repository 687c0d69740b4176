"""Once a second: the few things that somebody should read about, each as one log line.

What happens a thousand times a second is a counter in INFO; a line is for what starts, what ends,
and what should not be. A line that an outsider can cause comes at most once a minute.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from server.clock import Clock
from server.settings import refused_at_bytes

QUIET_NS: Final = 60_000_000_000
HELD_MS: Final = 1_000  # a wall clock so far behind is an alarm
SLOW_SYNC_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The counters that are watched.

    Attributes:
        foreign: connections that spoke HTTP or TLS.
        refused_full: connections refused at maxclients.
        slow_consumers: connections closed because they did not read.
        queue_pauses: times that changes were held back because the log could not keep up.
        queue_is_red: whether the oldest change has waited for the log for over ten seconds.
        held_ms: how far the wall clock is behind the wall wheel.
        clock_steps: times that the wall clock jumped.
        suspends: times that the machine slept.
        handshakes_failed: peers that did not get through TLS's handshake.
        sync_max_ns: the longest sync of the log.
        memory_bytes: in use.
        dead_dropped: dead jobs forgotten because the list was full or they were too old.
        ended_dropped: ended jobs and ONCE tokens forgotten before their time.
        payload_corrupt: grants that found a payload changed in memory.
        corrupt_job: the job of the newest of these, and
        corrupt_handler: its handler.
    """

    foreign: int = 0
    refused_full: int = 0
    slow_consumers: int = 0
    queue_pauses: int = 0
    queue_is_red: bool = False
    held_ms: int = 0
    clock_steps: int = 0
    suspends: int = 0
    handshakes_failed: int = 0
    sync_max_ns: int = 0
    memory_bytes: int = 0
    dead_dropped: int = 0
    ended_dropped: int = 0
    payload_corrupt: int = 0
    corrupt_job: int = 0
    corrupt_handler: str = ""


class Source(Protocol):
    """Where the counters come from."""

    def seen(self) -> Seen:
        """Return the counters now."""
        ...


class Watch:
    """Turns changes of counters into log lines."""

    def __init__(
        self, source: Source, *, clock: Clock, logger: FilteringBoundLogger, memory_bytes_max: int
    ) -> None:
        self._source = source
        self._clock = clock
        self._log = logger
        self._memory_high_bytes = refused_at_bytes(memory_bytes_max)
        self._last = Seen()
        self._said_ns: dict[str, int] = {}
        self._said: dict[str, int] = {}
        self._held = False
        self._full = False

    def look(self) -> None:
        """Compare the counters with those of the last look."""
        now = self._source.seen()
        if new := self._news("foreign", now.foreign):
            self._log.warning(
                "foreign_protocol_refused",
                connections=new,
                hint="HTTP or TLS came in on the port of the line protocol; TLS has a port of its"
                " own, --tls-listen",
            )
        if new := self._news("refused_full", now.refused_full):
            self._log.warning("clients_refused", connections=new, hint="raise --maxclients")
        if new := self._news("slow_consumers", now.slow_consumers):
            self._log.warning(
                "clients_dropped", connections=new, hint="they did not read their replies"
            )
        if new := self._news("queue_pauses", now.queue_pauses):
            self._log.warning(
                "changes_held",
                pauses=new,
                hint="the disk is slower than what comes in: what changes something waits",
            )
        if new := self._news("handshakes_failed", now.handshakes_failed):
            self._log.warning(
                "handshakes_failed",
                connections=new,
                hint="what came on the TLS port was not TLS 1.2 or newer, or a certificate was not"
                " accepted by one side",
            )
        if new := self._news("dead_dropped", now.dead_dropped):
            self._log.warning(
                "dead_jobs_dropped",
                jobs=new,
                hint="the list of dead jobs is full, or they were older than it keeps them:"
                " REQUEUE or PURGE them, or raise --dead-max and --dead-kept",
            )
        if new := self._news("ended_dropped", now.ended_dropped):
            self._log.warning(
                "memory_of_ended_jobs_cut",
                entries=new,
                hint="more jobs end than are remembered for an hour: late receipts get UNKNOWN",
            )
        if new := now.payload_corrupt - self._last.payload_corrupt:
            self._log.error(
                "payload_corrupted",
                jobs=new,
                job=str(now.corrupt_job),
                handler=now.corrupt_handler,
                hint="payloads changed in memory (bad RAM?) and were given to nobody; DEAD lists"
                " the jobs with the reason corrupt: `wheeld jobs requeue` when payload_mended says"
                " that it was put back, or behind a restart, which reads all from the disk again",
            )
        self._look_at_clocks(now)
        self._look_at_load(now)
        self._last = now

    def _news(self, name: str, count: int) -> int:
        """Return how much a counter grew since it was last told of, 0 if not or too recently."""
        new = count - self._said.get(name, 0)
        now_ns = self._clock.mono_ns()
        if new <= 0 or now_ns - self._said_ns.get(name, now_ns - QUIET_NS) < QUIET_NS:
            return 0
        self._said[name] = count
        self._said_ns[name] = now_ns
        return new

    def _look_at_clocks(self, now: Seen) -> None:
        if now.suspends > self._last.suspends:
            self._log.warning("suspend_noticed", suspends=now.suspends - self._last.suspends)
        if now.clock_steps > self._last.clock_steps:
            self._log.warning("clock_stepped", steps=now.clock_steps - self._last.clock_steps)
        held = now.held_ms > HELD_MS
        if held and not self._held:
            self._log.error(
                "clock_held",
                held_ms=now.held_ms,
                hint="the wall clock was set back: absolute times wait until it has caught up,"
                " or until CLOCK ACCEPT",
            )
        elif self._held and not held:
            self._log.info("clock_released")
        self._held = held

    def _look_at_load(self, now: Seen) -> None:
        if now.queue_is_red and not self._last.queue_is_red:
            self._log.error(
                "log_stuck",
                hint="a sync of the log takes over ten seconds: see to the disk",
            )
        elif self._last.queue_is_red and not now.queue_is_red:
            self._log.info("log_moved_on")
        if now.sync_max_ns > max(SLOW_SYNC_NS, self._last.sync_max_ns):
            self._log.warning("sync_slowed", took_ms=now.sync_max_ns // 1_000_000)
        full = now.memory_bytes > self._memory_high_bytes
        if full and not self._full:
            self._log.error(
                "memory_filled",
                used_bytes=now.memory_bytes,
                hint="SCHEDULE is refused: finish or cancel jobs, or raise --maxmemory",
            )
        elif self._full and not full:
            self._log.info("memory_freed", used_bytes=now.memory_bytes)
        self._full = full
