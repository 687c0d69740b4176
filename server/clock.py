"""The only reader of clocks and of the system's randomness in the daemon.

Everything else takes times and seeds as arguments, so a test or a simulation can hand in its own.
The C core reads the same three clocks for its rounds (csrc/wd_net.c): that is the data plane's
one place, this is the control plane's.
"""

import os
import time
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_OFFSETS: Final = Path("/proc/self/timens_offsets")
_BOOTTIME: Final = frozenset({"boottime", "7"})  # how kernels name that clock there


class Clock(Protocol):
    """Times and random bytes, as the daemon asks for them."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 (CLOCK_REALTIME): steps when the clock is set."""
        ...

    def boot_ms(self) -> int:
        """Return milliseconds since boot (CLOCK_BOOTTIME): goes on while suspended, never steps."""
        ...

    def mono_ms(self) -> int:
        """Return CLOCK_MONOTONIC in milliseconds: stands still while suspended."""
        ...

    def mono_ns(self) -> int:
        """Return CLOCK_MONOTONIC in nanoseconds, for how long things take."""
        ...

    def boot_id(self) -> bytes:
        """Return 16 bytes that name what boot_ms counts from; those of two names don't compare."""
        ...

    def entropy(self, size_bytes: int) -> bytes:
        """Return random bytes: seeds, salts, ids, tokens."""
        ...


class SystemClock:
    """The machine's own."""

    __slots__ = ()

    def wall_ms(self) -> int:
        """Return CLOCK_REALTIME in milliseconds."""
        return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000

    def boot_ms(self) -> int:
        """Return CLOCK_BOOTTIME in milliseconds."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def mono_ms(self) -> int:
        """Return CLOCK_MONOTONIC in milliseconds."""
        return self.mono_ns() // 1_000_000

    def mono_ns(self) -> int:
        """Return CLOCK_MONOTONIC in nanoseconds."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def boot_id(self) -> bytes:
        """Return the name of this boot's CLOCK_BOOTTIME; 16 zero bytes where /proc does not tell.

        Zero never equals a real name, so the rel axis then goes on by the wall clock.
        """
        try:
            boot = _BOOT_ID.read_text(encoding="ascii")
            offsets = _OFFSETS.read_text(encoding="ascii") if _OFFSETS.exists() else ""
            return name_boot(boot, offsets)
        except (OSError, ValueError):
            return bytes(16)

    def entropy(self, size_bytes: int) -> bytes:
        """Return bytes from the kernel's generator."""
        return os.urandom(size_bytes)


def name_boot(boot: str, offsets: str) -> bytes:
    """Return 16 bytes that are the same if and only if CLOCK_BOOTTIME counts from the same moment.

    That is the kernel's boot id, but in a time namespace, as a container may have one: there the
    clock of the same boot is ahead or behind by an offset, and the next start may be in another.

    Args:
        boot: the kernel's boot id, as /proc writes it.
        offsets: /proc/self/timens_offsets; empty where the kernel has no time namespaces.
    """
    name = bytes.fromhex(boot.strip().replace("-", ""))
    for clock, *offset in map(str.split, offsets.splitlines()):
        if clock in _BOOTTIME and any(map(int, offset)):
            return blake2b(" ".join(offset).encode(), digest_size=len(name), key=name).digest()
    return name


def iso_utc(wall_ms: int) -> str:
    """Return a wall time as ISO 8601 in UTC with milliseconds and ``Z``."""
    moment = datetime.fromtimestamp(wall_ms // 1000, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ms % 1000:03d}Z"
