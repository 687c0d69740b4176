"""Jitter: how far a run of a schedule is moved behind its nominal time, without any chance.

The delay is drawn by a hash of the schedule's name and the nominal time. So it is the same after a
restart and on another machine, needs no memory, and ten thousand schedules of one midnight spread
evenly over their jitter.
"""

from wheel.cronfields import hash64


def spread(name: str, nominal_ms: int, jitter_ms: int, gap_ms: int | None = None) -> int:
    """Return by how many milliseconds a run is due after its nominal time.

    Args:
        name: of the schedule.
        nominal_ms: the run's nominal time.
        jitter_ms: the largest delay; 0 for none.
        gap_ms: distance to the next nominal time, which no run reaches; None if there is none.
    """
    limit_ms = jitter_ms if gap_ms is None else min(jitter_ms, gap_ms - 1)
    if limit_ms <= 0:
        return 0
    return hash64("jitter", name, str(nominal_ms)) % (limit_ms + 1)
