"""The scheduler on the loop: a turn after a round that it has work in, its alarms, its events.

The scheduler itself waits for nothing and knows no loop. After each round of the core it is asked
whether it has work; a turn takes about two milliseconds, and what is left waits for the next round,
so others are served in between. A fault in it is logged and tried again a second later: jobs go on.
"""

import asyncio
import contextlib
import traceback
from typing import Final

from structlog.typing import FilteringBoundLogger

from server.clock import Clock
from wheel.cron import compile_rule
from wheel.engine.core import Core, LogStoppedError
from wheel.engine.scheduler import Scheduler
from wheel.errors import WheeldError

LOAD_SLICE_NS: Final = 2_000_000
FAULT_MS: Final = 1_000
WARNINGS: Final = frozenset({"schedules_late"})


def warm_up() -> None:
    """Compile a rule before anybody waits: the first one loads croniter, which takes 90 ms."""
    with contextlib.suppress(WheeldError):  # not installed: the first CRON SET says so
        compile_rule("0 0 * * *")


class Schedules:
    """Drives the scheduler of one core.

    Attributes:
        scheduler: the schedules; to be used once they are loaded.
    """

    def __init__(
        self, core: Core, *, clock: Clock, logger: FilteringBoundLogger, strict_handlers: bool
    ) -> None:
        """Make it; ``load`` begins.

        Args:
            core: started.
            clock: measures the slices.
            logger: for events.
            strict_handlers: refuse schedules for handlers that nobody serves.
        """
        self.scheduler = Scheduler(core, clock_ns=clock.mono_ns, strict_handlers=strict_handlers)
        self._core = core
        self._clock = clock
        self._log = logger
        self._is_loaded = False
        self._more = True  # what ended before the start is taken first
        self._wakes: tuple[int | None, int | None] = (None, None)
        self._retry_ms: int | None = None  # rel: after a fault
        self.turns = self.faults = 0
        self.turn_ns_max = 0

    async def load(self) -> None:
        """Read the schedules from the core, in slices between turns of the loop."""
        begin_ns = slice_ns = self._clock.mono_ns()
        for _ in self.scheduler.load():
            if self._clock.mono_ns() - slice_ns >= LOAD_SLICE_NS:
                await asyncio.sleep(0)
                slice_ns = self._clock.mono_ns()
        self._is_loaded = True
        figures = self.scheduler.figures()
        self._log.info(
            "schedules_loaded",
            schedules=figures["schedules"],
            live_runs=figures["schedules_live_runs"],
            took_s=round((self._clock.mono_ns() - begin_ns) / 1e9, 3),
        )

    def after_round(self) -> bool:
        """Take a turn if there is work; True: the core has to go on because of it."""
        if not self._is_loaded:
            return False
        lsn = self._core.lsn()
        took = self._more or self._core.wants_python()
        if took:
            self._more = self._turn()
        wakes = self.scheduler.wakes()
        self._more |= wakes.more and self._retry_ms is None
        alarms = wakes.wall_ms, wakes.rel_ms
        if self._retry_ms is not None:
            alarms = None, self._retry_ms
        if took or alarms != self._wakes:
            self._wakes = alarms
            self._core.set_alarms(*alarms)
        # A batch that was refused leaves what asked for a turn: it waits for its second.
        return self._more or self._core.lsn() != lsn

    def _turn(self) -> bool:
        """Take a turn; True: there is more to do."""
        if self._retry_ms is not None and self._core.times().rel_ms < self._retry_ms:
            return False
        self._retry_ms = None
        begin_ns = self._clock.mono_ns()
        try:
            more = self.scheduler.turn().more
        except LogStoppedError:
            raise
        except Exception as error:  # noqa: BLE001 -- jobs go on without schedules
            self.faults += 1
            self._retry_ms = self._core.times().rel_ms + FAULT_MS
            self._log.error(
                "schedules_failed",
                error=repr(error),
                trace=traceback.format_exception(error, limit=-6),
            )
            return False
        self.turns += 1
        self.turn_ns_max = max(self.turn_ns_max, self._clock.mono_ns() - begin_ns)
        self.tell()
        return more

    def tell(self) -> None:
        """Log what happened."""
        for event in self.scheduler.events():
            say = self._log.warning if event.name in WARNINGS else self._log.info
            say(event.name, **event.fields)

    def figures(self) -> dict[str, int]:
        """Return counters and sizes, for INFO."""
        return self.scheduler.figures() | {
            "schedule_turns": self.turns,
            "schedule_turn_max_us": self.turn_ns_max // 1000,
            "schedule_faults": self.faults,
        }
