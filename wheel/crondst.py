"""The rule for changes of the clocks: from matching local times to moments.

A *gap* is the local time that a change leaps over, a *fold* the local time that comes twice.

- A rule whose minute or hour field begins with a star follows the wall clock: nothing happens in a
  gap, and both passes of a fold count. So do all rules under ``literal``.
- Any other rule is *fixed*, it means one run at that time of the day. A time inside a gap of at
  most three hours runs at the gap's end, several such times make one run; of a fold only the first
  pass counts. A longer gap is a correction of the clock, such as a day that a country leaves out:
  its times are skipped. This is what cron(8) describes.

Each search goes from segment to segment (wheel/zones.py), leaps over stretches without a matching
local time, and ends at the horizon. Moments are Unix seconds.
"""

from typing import Final

from wheel.cronmasks import DAY_S, Fields
from wheel.zones import FIRST_S, LAST_S, Segment, Zone

GAP_MAX_S: Final = 3 * 3600

# A local time is less than a day away from UTC; two days leave room for a gap of a day beside it.
_REACH_S: Final = 2 * DAY_S


def next_fire(fields: Fields, where: Zone, fixed: bool, after_s: int) -> int | None:
    """Return the first moment after ``after_s``, None if there is none up to 2199.

    Args:
        fields: what matches.
        where: the zone.
        fixed: whether the rule is a fixed one, see above.
        after_s: not below ``FIRST_S``.
    """
    at_s = after_s + 1
    while at_s < LAST_S:
        segment = where.segment(at_s)
        if fixed and at_s == segment.start_s and _in_gap(fields, segment):
            return at_s
        low_s = at_s + segment.offset_s
        if fixed:
            low_s = max(low_s, _floor_s(segment))
        local_s = fields.next(low_s)
        if local_s is not None and local_s - segment.offset_s < segment.end_s:
            return local_s - segment.offset_s
        # What comes after this segment may begin with a fold: a day back on the wall at most.
        local_s = fields.next(segment.end_s + segment.offset_s - DAY_S)
        if local_s is None:
            return None
        at_s = max(segment.end_s, local_s - _REACH_S)
    return None


def previous_fire(fields: Fields, where: Zone, fixed: bool, before_s: int) -> int | None:
    """Return the last moment before ``before_s``, None if there is none; see ``next_fire``."""
    at_s = min(before_s, LAST_S) - 1
    while at_s >= FIRST_S:
        segment = where.segment(at_s)
        high_s = at_s + segment.offset_s
        local_s = fields.previous(high_s)
        floor_s = _floor_s(segment) if fixed else segment.start_s + segment.offset_s
        if local_s is not None and local_s >= floor_s:
            return local_s - segment.offset_s
        if fixed and _in_gap(fields, segment):
            return segment.start_s
        # Behind a fold, the segment before reaches further on the wall than this one.
        local_s = fields.previous(high_s + _REACH_S)
        if local_s is None:
            return None
        at_s = min(segment.start_s - 1, local_s + _REACH_S)
    return None


def count_fires(fields: Fields, where: Zone, fixed: bool, after_s: int, until_s: int) -> int:
    """Return how many moments lie in (after_s, until_s]; one step a change, not one a run."""
    total, at_s, until_s = 0, after_s + 1, min(until_s, LAST_S - 1)
    while at_s <= until_s:
        segment = where.segment(at_s)
        change = where.change_after(at_s, until_s)
        end_s = until_s + 1 if change is None else change.start_s
        low_s, high_s = at_s + segment.offset_s, end_s - 1 + segment.offset_s
        if fixed:
            low_s = max(low_s, _floor_s(segment))
            if at_s == segment.start_s and _in_gap(fields, segment) and not fields.matches(low_s):
                total += 1
        total += fields.count(low_s, high_s)
        at_s = end_s
    return total


def _floor_s(segment: Segment) -> int:
    """Return the local time from which on a fixed rule has not yet been in force before."""
    return segment.start_s + max(segment.before_s, segment.offset_s)


def _in_gap(fields: Fields, segment: Segment) -> bool:
    """Return whether a segment begins with a gap that holds a time which runs at its end."""
    if not 0 < segment.offset_s - segment.before_s <= GAP_MAX_S:
        return False
    local_s = fields.next(segment.start_s + segment.before_s)
    return local_s is not None and local_s < segment.start_s + segment.offset_s
