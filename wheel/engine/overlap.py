"""What becomes of a run whose time has come while others of its schedule are active. Pure."""

from enum import Enum
from typing import Final, NamedTuple

from wheel.engine.definition import Overlap

QUEUE_MAX: Final = 1_000


class Act(Enum):
    """What to do."""

    START = "start"
    QUEUE = "queue"  # behind those that are there
    SKIP = "skip"
    REPLACE = "replace"  # cancel what is active, skip what waits, and queue


class Decision(NamedTuple):
    """What to do, and with SKIP the reason that its record gives."""

    act: Act
    reason: str = ""


START: Final = Decision(Act.START)
QUEUE: Final = Decision(Act.QUEUE)
REPLACE: Final = Decision(Act.REPLACE)
OVERLAP: Final = Decision(Act.SKIP, "overlap")
QUEUE_FULL: Final = Decision(Act.SKIP, "queue_full")


def decide(
    policy: Overlap, *, active: int, waiting: int, caught_up: bool, catching_up: bool
) -> Decision:
    """Return what becomes of a run.

    Args:
        policy: the schedule's.
        active: runs of it that are in the queue or handed out.
        waiting: runs of it that wait for those.
        caught_up: the run is one of several that make up for missed ones: one behind the other,
            whatever the policy says, but for ``allow``.
        catching_up: others of that sort are still there.
    """
    if policy is Overlap.ALLOW or not active + waiting:
        return START
    if caught_up:
        return QUEUE
    if policy is Overlap.QUEUE_ONE:
        return OVERLAP if waiting else QUEUE
    if policy is Overlap.QUEUE_ALL:
        return QUEUE if waiting < QUEUE_MAX else QUEUE_FULL
    if policy is Overlap.CANCEL_RUNNING:
        return QUEUE if catching_up else REPLACE
    return OVERLAP
