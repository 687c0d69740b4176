"""When rules fire, as replies show it: in milliseconds, and on the clock of their zone."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from typing import Final, Literal

from wheel.cronexplain import explain
from wheel.engine.shown import Upcoming
from wheel.engine.spread import due_ms
from wheel.wire import Answer
from wheel.zones import Zone, zone

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def local_iso(where: Zone, unix_ms: int) -> str:
    """Return a moment as the zone's clock shows it, with its offset; milliseconds if any."""
    ahead = timezone(timedelta(seconds=where.offset_s(unix_ms // 1000)))
    moment = (_EPOCH + timedelta(milliseconds=unix_ms)).astimezone(ahead)
    return moment.isoformat(timespec="milliseconds" if unix_ms % 1000 else "seconds")


def next_map(name: str, upcoming: Upcoming, count: int, rel_offset_ms: int) -> dict[str, Answer]:
    """Return the reply to CRON NEXT.

    Args:
        name: of the schedule: its jitter is drawn from it.
        upcoming: by what its times are found.
        count: how many.
        rel_offset_ms: what to add to a time of the rel axis to show it.
    """
    where = upcoming.rule.zone
    offset_ms = rel_offset_ms if upcoming.rule.axis == "rel" else 0
    times = islice(_fires(name, upcoming), count)
    return {
        "name": name,
        "tz": where.name,
        "next": [
            fire_of(where, at_ms + offset_ms, then_ms + offset_ms) for at_ms, then_ms in times
        ],
    }


def _fires(name: str, upcoming: Upcoming) -> Iterator[tuple[int, int]]:
    """Yield (nominal, due) times on the rule's own axis until there are no more."""
    nominal_ms, left = upcoming.first_ms, upcoming.runs_left
    while nominal_ms is not None and left != 0:
        if upcoming.end_ms is not None and nominal_ms > upcoming.end_ms:
            return
        next_ms = upcoming.rule.next_ms(nominal_ms)
        yield nominal_ms, due_ms(name, nominal_ms, next_ms, upcoming.jitter_ms)
        nominal_ms = next_ms
        left = None if left is None else left - 1


def fire_of(where: Zone, nominal_ms: int, handed_ms: int) -> Answer:
    """Return one time of ``next``: nominal, the same on the zone's clock, due."""
    return [nominal_ms, local_iso(where, nominal_ms), handed_ms]


def explained_map(
    rule: str,
    *,
    tz: str,
    dst: Literal["cron", "literal"],
    name: str,
    after_ms: int,
    count: int,
    herd: Callable[[int], int],
) -> dict[str, Answer]:
    """Return the reply to CRON EXPLAIN.

    Raises:
        CronSyntaxError: the rule or its zone cannot be read, or it fires no more.
    """
    told = explain(rule, tz=tz, now_ms=after_ms, count=count, dst=dst, name=name, herd=herd)
    where = zone(told.tz)
    return {
        "rule": rule,
        "tz": told.tz,
        "words": told.words,
        "next": [fire_of(where, fire_ms, fire_ms) for fire_ms in told.fires],
        "remarks": list(told.remarks),
        "herd": told.herd,
    }
