"""What a new tz database does to schedules: times are found anew, or there is no zone any more.

Each state keeps a hash of the rules of its zone by which its next time was found. A start compares,
and nothing else is recomputed. A zone that this machine does not have (a database that has dropped
it, a store that was moved) keeps no server from starting: its schedules are paused, with an event
and a note, and go on by RESUME when the zone is back, or by SET with another one.
"""

import functools
from collections.abc import Iterable
from typing import Final

from wheel.engine.definition import ScheduleError, Settings
from wheel.engine.entries import NO_PRINT, Entry, changed_extra
from wheel.engine.runner import Runner
from wheel.errors import ZoneError
from wheel.zones import zone

GONE_PRINT: Final = b"\xff" * len(NO_PRINT)  # of a zone that is not there
ACTOR: Final = "wheeld"


def print_of(settings: Settings) -> bytes:
    """Return a hash of the zone's rules, if the schedule's times depend on them."""
    try:
        where = zone(settings.zone)
    except ZoneError:
        return GONE_PRINT
    if settings.rel or not settings.has_rule or settings.rule.lower().startswith("@at"):
        return NO_PRINT
    return _print(where.fingerprint)


@functools.lru_cache(maxsize=1024)
def _print(fingerprint: str) -> bytes:
    """Return a hash as bytes, which all schedules of a zone share."""
    return bytes.fromhex(fingerprint)


def refresh(planner: Runner, names: Iterable[str]) -> None:
    """Find the next times anew of schedules whose zones' rules are others now.

    Raises:
        ScheduleError: OOM or DISKFULL; nothing was changed.
    """
    with planner.changing() as change:
        for name in names:
            entry = planner.store.get(name)
            if entry is None:
                continue
            change.edit(entry)
            before_ms = entry.next_ms
            entry.print = print_of(entry.settings)
            fields: dict[str, object] = {
                "schedule": name,
                "zone": entry.settings.zone,
                "before_ms": before_ms,
            }
            if entry.print == GONE_PRINT:
                _pause(planner, entry)
                change.events.append(("schedule_zone_gone", fields))
            else:
                planner.set_next(entry, entry.done_ms)
                fields["next_ms"] = entry.next_ms
                change.events.append(("schedule_zone_changed", fields))
            planner.dependencies.note(name)


def _pause(planner: Runner, entry: Entry) -> None:
    if entry.paused:
        return
    entry.paused = True
    note = f"this machine has no time zone {entry.settings.zone!r}; SET another one, or RESUME"
    entry.extra = changed_extra(
        entry.extra, paused_ms=planner.look().logical_ms, note=note, actor=ACTOR
    )


def refuse_gone(entry: Entry) -> None:
    """Refuse what needs the times of a schedule, if its zone is not there.

    Raises:
        ScheduleError: CONFLICT.
    """
    if not entry.has_zone:
        raise ScheduleError(
            "CONFLICT",
            f"this machine has no time zone {entry.settings.zone!r}, which schedule "
            f"{entry.name!r} is read in; SET it with another one, or install the zone",
        )
