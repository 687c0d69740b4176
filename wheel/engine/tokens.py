"""ONCE tokens of commands about schedules: who repeats a call gets the answer of the first one.

A client that lost a reply asks again with the same token. A token and its answer stand in the same
batch as what the call made, so a crash loses both or neither.
"""

import json
from collections import deque
from typing import Final

from wheel.engine.change import ONCE, Change
from wheel.engine.definition import ScheduleError

ONCE_MS: Final = 600_000
ONCE_BYTES_MAX: Final = 64
ONCE_MAX: Final = 100_000
FORGET_A_SLICE: Final = 100


class Tokens:
    """The tokens of the last ten minutes, and the run ids that each got. Times are rel."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, list[str]]] = {}
        self._order: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, once: str, rel_ms: int) -> list[str] | None:
        """Return what a token got, None if it is new, or if there is none.

        Raises:
            ScheduleError: LIMIT.
        """
        token = once.encode()
        if len(token) > ONCE_BYTES_MAX:
            raise ScheduleError(
                "LIMIT",
                f"the ONCE token has {len(token)} bytes, not 1..{ONCE_BYTES_MAX}; shorten it",
            )
        since_ms, ids = self._known.get(token, (0, []))
        return ids if token in self._known and rel_ms - since_ms < ONCE_MS else None

    def put(self, change: Change, once: str, ids: list[str], rel_ms: int) -> None:
        """Remember what a token got; nothing without one."""
        token = once.encode()
        if not token:
            return
        before = self._known.pop(token, None)
        self._known[token] = rel_ms, ids
        self._order.append(token)
        change.put(ONCE, token, rel_ms.to_bytes(8, "big") + json.dumps(ids).encode())
        change.undone_by(lambda: self._take_back(token, before))

    def _take_back(self, token: bytes, before: tuple[int, list[str]] | None) -> None:
        self._order.pop()
        del self._known[token]
        if before is not None:
            self._known[token] = before

    def load(self, entries: list[tuple[bytes, bytes]]) -> None:
        """Take over what the table has of tokens."""
        for token, blob in sorted(entries, key=lambda entry: entry[1][:8]):
            self._known[token] = int.from_bytes(blob[:8], "big"), json.loads(blob[8:])
            self._order.append(token)

    def too_old(self, rel_ms: int) -> list[bytes]:
        """Return some tokens that are over ten minutes old, or too many."""
        found: list[bytes] = []
        for token in self._order:
            since_ms, _ = self._known.get(token, (0, []))
            is_many = len(self._known) - len(found) > ONCE_MAX
            if (rel_ms - since_ms < ONCE_MS and not is_many) or len(found) == FORGET_A_SLICE:
                break
            found.append(token)
        return found

    def forget(self, tokens: list[bytes]) -> None:
        """Forget what ``too_old`` gave."""
        for token in tokens:
            self._order.popleft()
            self._known.pop(token, None)
