"""What comes of a rule: in words, its next times, and what to take care of.

Care means: the ways to read a rule wrongly (a star with a step in a day field, days that not every
month has, steps that do not divide the hour), what H drew, the next changes of the clocks that
touch it, and how many other schedules fire at the same moment.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from typing import Final

from wheel.cron import Parsed, Rule, compile_rule, parse_rule
from wheel.crondst import GAP_MAX_S
from wheel.cronfields import DAY, HOUR, MINUTE, WEEKDAY, Field, Item
from wheel.cronmasks import DAY_S
from wheel.cronwords import (
    ALL_DAYS,
    ALL_MONTHS,
    drawn_words,
    duration_words,
    join,
    ordinal,
    rule_words,
)
from wheel.errors import InvalidRequest
from wheel.zones import LAST_S, Segment, Zone

COUNT_MAX: Final = 1_000

_CHANGES_SHOWN: Final = 2
_CHANGES_AHEAD_S: Final = 10 * 366 * DAY_S  # rules of one day a year meet a change now and then
_SOON_S: Final = 800 * DAY_S
_HERD_RATE: Final = 10  # runs a second that need no jitter
_JITTERS_S: Final = (10, 30, 60, 120, 300, 600, 900, 1800, 3600)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A rule explained.

    Attributes:
        rule: its text.
        tz: the zone it is read in.
        words: what it means.
        fires: its next nominal times in Unix ms, of ``@every`` on the relative axis.
        remarks: what to take care of, a sentence each.
        herd: who else fires at the first of these moments; None if nobody does.
    """

    rule: str
    tz: str
    words: str
    fires: tuple[int, ...]
    remarks: tuple[str, ...]
    herd: str | None


def explain(
    rule: str,
    *,
    tz: str = "UTC",
    now_ms: int,
    count: int = 3,
    dst: str = "cron",
    name: str = "",
    herd: Callable[[int], int] | None = None,
) -> Explanation:
    """Return a rule explained.

    Args:
        rule: its text.
        tz: zone, if the rule names none.
        now_ms: from when on.
        count: how many of its next times, 0 to 1,000.
        dst: ``cron`` or ``literal``.
        name: the schedule's, from which H draws.
        herd: says how many other schedules fire at a moment.

    Raises:
        CronSyntaxError: the rule cannot be read, or it never fires after that.
        ZoneError: the zone is unknown; a CronSyntaxError.
        InvalidRequest: ``count`` or ``dst`` is none.
    """
    if not 0 <= count <= COUNT_MAX:
        raise InvalidRequest(f"the count {count} is not between 0 and {COUNT_MAX}")
    compiled = compile_rule(rule, tz=tz, name=name, dst=dst)
    parsed = parse_rule(rule, name)
    if compiled.kind != "none":
        compiled.require_fire(now_ms)
    fires = tuple(islice(compiled.between(now_ms, LAST_S * 1000), max(count, 1)))
    return Explanation(
        rule=rule,
        tz=compiled.tz,
        words=_words(compiled, parsed),
        fires=fires[:count],
        remarks=(*_cautions(parsed, name), *_clock_remarks(compiled, now_ms // 1000)),
        herd=None if herd is None or not fires else _herd(herd(fires[0]), fires),
    )


def _words(rule: Rule, parsed: Parsed) -> str:
    words = rule_words(parsed)
    if parsed.kind == "at":
        local = _wall(parsed.at_ms // 1000, rule.zone)
        return f"{words}, on {local:%a %Y-%m-%d} at {local:%H:%M:%S} {_offset(local)}"
    return words


# ------------------------------------------------------------------------------ cautions


def _cautions(parsed: Parsed, name: str) -> Iterator[str]:
    by_unit = {field.unit.name: field for field in parsed.fields}
    if not by_unit:
        return
    day, weekday = by_unit[DAY.name], by_unit[WEEKDAY.name]
    yield from _day_cautions(day, weekday)
    yield from _missing_days(day)
    for unit in (MINUTE, HOUR):
        yield from _uneven(by_unit[unit.name])
    drawn = drawn_words(parsed)
    if drawn:
        of = "the schedule's name" if name else "an empty name; the schedule's own gives another"
        yield f"{drawn} {'are' if ' and ' in drawn else 'is'} drawn from {of}"


def _day_cautions(day: Field, weekday: Field) -> Iterator[str]:
    if _is_free(day) or _is_free(weekday):
        return
    if not day.star and not weekday.star:
        yield (
            "a day counts if the day of the month or the weekday matches; "
            "both are asked for only if one of the fields begins with a star"
        )
        return
    for field, other in ((day, weekday), (weekday, day)):
        if field.star:
            low, high = field.unit.low, field.unit.high
            yield (
                f"the {field.unit.name} begins with a star, so the {other.unit.name} must match "
                f"too; write {low}-{high} in place of the star if either one will do"
            )
            return


def _is_free(field: Field) -> bool:
    """Return whether a day field leaves every day in, as a star or a question mark does."""
    return field.star and any(item.form == "star" and item.step == 1 for item in field.items)


def _missing_days(day: Field) -> Iterator[str]:
    lowest = [_first_day(item) for item in day.items]
    if min(lowest) > 28:
        number = ordinal(min(lowest))
        yield f"months without a {number} have no such day; the last day of every month is L"


def _first_day(item: Item) -> int:
    return item.low if item.kind in {"range", "nearest"} else 0


def _uneven(field: Field) -> Iterator[str]:
    period = field.unit.high + 1
    for item in field.items:
        if item.form == "star" and item.step > 1 and period % item.step:
            last = (period - 1) // item.step * item.step
            yield (
                f"{period} {field.unit.name}s are no multiple of {item.step}: "
                f"after {field.unit.name} {last} the next one is 0, {period - last} later"
            )


# ------------------------------------------------------------------------------ clocks


def _clock_remarks(rule: Rule, now_s: int) -> Iterator[str]:
    if rule.kind != "cron":
        return
    touching: list[str] = []
    others: list[Segment] = []
    every_day = rule.fields.months == ALL_MONTHS and rule.fields.days.mask(0, 31) == ALL_DAYS
    ahead_s = _SOON_S if every_day else _CHANGES_AHEAD_S
    at_s, until_s = now_s, min(now_s + ahead_s, LAST_S - 1)
    while len(touching) < _CHANGES_SHOWN:
        change = rule.zone.change_after(at_s, until_s)
        if change is None:
            break
        remark = _change_remark(rule, change)
        if remark is None:
            others.append(change)
        else:
            touching.append(remark)
        at_s = change.start_s
    yield from touching
    soon = [change for change in others if change.start_s - now_s < _SOON_S]
    if soon and not touching:
        days = join([f"{_wall(change.start_s, rule.zone):%Y-%m-%d}" for change in soon[:2]])
        yield f"the clocks change on {days}, which moves none of its times"


def _change_remark(rule: Rule, change: Segment) -> str | None:
    """Return what a change of the clocks does to a rule, None if nothing."""
    low_s, high_s = sorted((change.start_s + change.before_s, change.start_s + change.offset_s))
    number = rule.fields.count(low_s, high_s - 1)
    if not number:
        return None
    times = _times(rule, low_s, high_s, number)
    end = _wall(change.start_s, rule.zone)
    many = number > 1
    if change.offset_s > change.before_s:
        day = (_EPOCH + timedelta(seconds=low_s)).date()
        what = f"{day}: {times} {'do' if many else 'does'} not exist (clocks go forward)"
        if not rule.fixed:
            return f"{what} -> no run then"
        if high_s - low_s > GAP_MAX_S:
            return f"{what} by {duration_words((high_s - low_s) * 1000)} -> no run then"
        return f"{what} -> runs once at {_clock(end)} {_offset(end)}"
    day = (_EPOCH + timedelta(seconds=low_s)).date()
    what = f"{day}: {times} {'come' if many else 'comes'} twice (clocks go back)"
    if rule.fixed:
        return f"{what} -> runs the first time only"
    return f"{what} -> runs both times"


def _times(rule: Rule, low_s: int, high_s: int, number: int) -> str:
    """Return the matching local times in [low_s, high_s), which are ``number``."""
    first_s, last_s = rule.fields.next(low_s), rule.fields.previous(high_s - 1)
    assert first_s is not None, rule
    assert last_s is not None, rule
    first, last = (_clock(_EPOCH + timedelta(seconds=at)) for at in (first_s, last_s))
    if number == 1:
        return first
    if number == 2:
        return f"{first} and {last}"
    return f"{first} to {last} ({number} times)"


def _wall(unix_s: int, where: Zone) -> datetime:
    ahead = timezone(timedelta(seconds=where.offset_s(unix_s)))
    return (_EPOCH + timedelta(seconds=unix_s)).astimezone(ahead)


def _clock(local: datetime) -> str:
    return f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"


def _offset(local: datetime) -> str:
    text = local.isoformat()
    return text[19:]


# ------------------------------------------------------------------------------ herd


def _herd(others: int, fires: tuple[int, ...]) -> str | None:
    if others <= 0:
        return None
    moment = _EPOCH + timedelta(milliseconds=fires[0])
    if others == 1:
        text = f"1 other schedule fires at {moment:%Y-%m-%d %H:%M:%S} UTC"
    else:
        text = f"{others:,} other schedules fire at {moment:%Y-%m-%d %H:%M:%S} UTC"
    enough_s = next((s for s in _JITTERS_S if s * _HERD_RATE > others), _JITTERS_S[-1])
    gap_s = (fires[1] - fires[0]) // 1000 if len(fires) > 1 else _JITTERS_S[-1]
    jitter_s = max((s for s in _JITTERS_S if s <= min(enough_s, gap_s)), default=0)
    if others <= _HERD_RATE or not jitter_s:
        return text
    rate = -(-(others + 1) // jitter_s)
    width = duration_words(jitter_s * 1000)
    return f"{text}; a jitter of {width} on each would make that {rate:,} a second"
