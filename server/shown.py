"""The daemon as the control commands see it: what they may ask of it, and no more."""

import asyncio
from collections.abc import Callable, Mapping

from server.answers import Outcome
from server.info import render
from server.saving import answer_backup_end, answer_backup_start, answer_save
from server.state import State


class Shown:
    """The daemon as the control commands see it."""

    def __init__(self, state: State, shut_down: Callable[[str], None]) -> None:
        self._state = state
        self._shut_down = shut_down

    def shut_down(self, reason: str) -> None:
        """Begin an orderly stop."""
        self._shut_down(reason)

    @property
    def term(self) -> int:
        """Return the leadership number of this run; 0 while the log is replayed."""
        return self._state.term

    def info(self, sections: frozenset[str]) -> str:
        """Return INFO's text."""
        return render(self._state.sections(), sections)

    def config(self) -> Mapping[str, str]:
        """Return what CONFIG GET shows."""
        return self._state.config()

    def clock_state(self) -> Mapping[str, int]:
        """Return what CLOCK shows."""
        return self._state.clocks()

    def save(self) -> asyncio.Future[Outcome]:
        """Make a checkpoint that covers everything up to now; becomes SAVE's answer."""
        return asyncio.ensure_future(answer_save(self._state.checkpointer))

    def backup(self, handle: int, *, start: bool) -> asyncio.Future[Outcome]:
        """Keep the files as they are for a connection, or let them go; becomes BACKUP's answer."""
        data = str(self._state.settings.data)
        checkpointer = self._state.checkpointer
        work = (
            answer_backup_start(checkpointer, handle, data)
            if start
            else answer_backup_end(checkpointer, handle)
        )
        return asyncio.ensure_future(work)
