"""Jitter: how much later than its nominal time a run is due. Pure, so a restart changes nothing."""

import hashlib


def due_ms(name: str, nominal_ms: int, next_ms: int | None, jitter_ms: int) -> int:
    """Return when a run is due.

    Args:
        name: its schedule's.
        nominal_ms: its nominal time.
        next_ms: the nominal time behind it, before which it is due; None: there is none.
        jitter_ms: how much later at most.
    """
    if next_ms is not None:
        jitter_ms = min(jitter_ms, next_ms - nominal_ms - 1)
    if jitter_ms <= 0:
        return nominal_ms
    digest = hashlib.blake2b(f"{name}\n{nominal_ms}".encode(), digest_size=8).digest()
    return nominal_ms + int.from_bytes(digest, "little") % (jitter_ms + 1)
