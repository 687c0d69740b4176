"""What becomes of a run whose time comes while others of its schedule are not over. Pure.

*Active* is a run that may be executing: made, not held, not over. One that is held for upstreams is
not. *Waiting* is one that is held because of others of its schedule.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

QUEUE_MAX: Final = 1_000  # runs that wait under queue_all


class Overlap(StrEnum):
    """How runs of one schedule share time."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    ALLOW = "allow"
    CANCEL_RUNNING = "cancel_running"


class Fate(Enum):
    """What becomes of the newcomer."""

    START = "start"
    WAIT = "wait"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What becomes of the newcomer, and of the others.

    Attributes:
        fate: of the newcomer.
        reason: why it is skipped; "" if it is not.
        skip_waiting: those that wait are skipped in its favour, with the reason ``replaced``.
        cancel_active: those that are active are asked to stop.
    """

    fate: Fate
    reason: str = ""
    skip_waiting: bool = False
    cancel_active: bool = False


_START: Final = Ruling(fate=Fate.START)
_WAIT: Final = Ruling(fate=Fate.WAIT)
_SKIP: Final = Ruling(fate=Fate.SKIP, reason="overlap")
_FULL: Final = Ruling(fate=Fate.SKIP, reason="queue_full")
_REPLACE: Final = Ruling(fate=Fate.WAIT, skip_waiting=True, cancel_active=True)


def decide(policy: Overlap, *, active: int, waiting: int) -> Ruling:
    """Return what becomes of a run whose time has come.

    Args:
        policy: the schedule's.
        active: how many of its runs are.
        waiting: how many of its runs are.
    """
    if policy is Overlap.ALLOW or not (active or waiting):
        return _START
    if policy is Overlap.SKIP:
        return _SKIP
    if policy is Overlap.CANCEL_RUNNING:
        return _REPLACE
    if policy is Overlap.QUEUE_ONE:
        return _SKIP if waiting else _WAIT
    return _WAIT if waiting < QUEUE_MAX else _FULL


def may_start(policy: Overlap, *, active: int) -> bool:
    """Return whether a run that was held may start now that its upstreams are done."""
    return policy is Overlap.ALLOW or not active
