"""Stand-ins that several test modules share."""

import io
import json

from server.logs import make_logger


class StandingClock:
    """A clock that stands until the test sets it."""

    def __init__(self) -> None:
        self.now_wall_ms = 1_782_000_000_123
        self.now_ns = 0

    def wall_ms(self) -> int:
        return self.now_wall_ms

    def boot_ms(self) -> int:
        return self.now_ns // 1_000_000

    def mono_ms(self) -> int:
        return self.now_ns // 1_000_000

    def mono_ns(self) -> int:
        return self.now_ns

    def boot_id(self) -> bytes:
        return bytes(16)

    def entropy(self, size_bytes: int) -> bytes:
        return bytes(size_bytes)


class Lines:
    """A logger that writes into memory, and what it wrote."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.logger = make_logger(StandingClock(), self._stream, human=False)

    @property
    def all(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]

    @property
    def events(self) -> list[str]:
        return [str(line["event"]) for line in self.all]
