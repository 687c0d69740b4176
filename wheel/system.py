"""Clocks, sleep and randomness of the user's side: the one file here that asks the machine.

Whoever needs one of them takes a ``System``; tests hand in their own.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_FRACTION_BITS: Final = 53  # what a float can hold exactly


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _uniform(low: float, high: float) -> float:
    # From os.urandom and not from ``random``: no state that a fork would copy.
    fraction = (int.from_bytes(os.urandom(7), "big") >> 3) / (1 << _FRACTION_BITS)
    return low + (high - low) * fraction


def _token() -> str:
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What a client takes from the machine.

    Attributes:
        wall_ms: milliseconds since the Unix epoch.
        monotonic: seconds since some moment; never stepped.
        sleep: wait that many seconds.
        uniform: a number between two bounds.
        token: 32 hex digits that nobody drew before.
    """

    wall_ms: Callable[[], int] = _wall_ms
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = _uniform
    token: Callable[[], str] = _token


SYSTEM: Final = System()
