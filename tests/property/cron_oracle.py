"""A slow and simple answer to when a rule fires, and rules made together with their meaning.

The oracle looks at every single minute (or second) of a stretch of time, asks ``zoneinfo`` what
the clock on the wall shows, and applies the rule for gaps and folds as cron(8) words it. It shares
no code with wheel/: rules are generated as text and, beside it, as the set of values they mean.
"""

import calendar
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
WEEKDAYS = "sun mon tue wed thu fri sat".split()

# Where clocks did something worth looking at: a moment near the change, in UTC.
CHANGES = [
    ("America/New_York", "2025-03-09T07:00"),
    ("America/New_York", "2026-11-01T06:00"),
    ("Europe/Berlin", "2031-03-30T01:00"),
    ("Europe/Berlin", "2180-10-27T01:00"),
    ("Australia/Lord_Howe", "2019-10-05T15:30"),  # half an hour
    ("Australia/Lord_Howe", "2024-04-06T15:00"),
    ("Europe/Dublin", "2019-03-31T01:00"),  # winter is the exception there
    ("Europe/Dublin", "2019-10-27T01:00"),
    ("Africa/Casablanca", "2026-02-15T02:00"),
    ("Africa/Casablanca", "2026-03-22T02:00"),
    ("Antarctica/Troll", "2025-03-30T01:00"),  # two hours
    ("Antarctica/Troll", "2025-10-26T01:00"),
    ("Antarctica/Casey", "2020-10-03T16:01"),  # three hours, at 00:01
    ("Antarctica/Casey", "2010-03-04T15:00"),
    ("Africa/Cairo", "2025-04-24T22:00"),  # midnight is left out
    ("Africa/Cairo", "2025-10-30T21:00"),
    ("America/Santiago", "2025-09-07T04:00"),
    ("America/Havana", "2025-11-02T05:00"),  # midnight comes twice
    ("America/Asuncion", "2017-10-01T04:00"),
    ("Asia/Gaza", "2040-10-27T00:00"),  # two changes within a week
    ("Asia/Kathmandu", "1985-12-31T18:30"),  # a quarter of an hour, for good
    ("Asia/Pyongyang", "2018-05-04T15:00"),
    ("Africa/Monrovia", "1972-01-07T00:44"),  # -0:44:30 before
    ("Pacific/Apia", "2011-12-30T10:00"),  # a day is left out
    ("Pacific/Kwajalein", "1993-08-21T12:00"),
    ("Antarctica/Vostok", "1994-02-01T00:00"),  # seven hours back
    ("America/Caracas", "2016-05-01T07:00"),
    ("Europe/London", "1971-10-31T02:00"),
    ("UTC", "2026-01-01T00:00"),
]


@dataclass(frozen=True)
class Meaning:
    """A rule and what it means, said twice."""

    text: str
    times: Callable[[int, int, int], bool]  # hour, minute, second
    day: Callable[[date], bool]
    fixed: bool


def fires(rule: Meaning, zone: ZoneInfo, start: datetime, end: datetime, step_s: int) -> list[int]:
    """Give every moment in [start, end) that the rule fires at, in Unix seconds."""
    found = []
    first, last = int(start.timestamp()), int(end.timestamp())
    before = datetime.fromtimestamp(first - step_s, zone)
    for unix_s in range(first, last, step_s):
        wall = datetime.fromtimestamp(unix_s, zone)
        if wall.utcoffset() == before.utcoffset():
            fire = _matches(rule, wall) and not (rule.fixed and wall.fold)
        else:
            fire = _at_change(rule, before, wall, zone, step_s)
        if fire:
            found.append(unix_s)
        before = wall
    return found


def _at_change(
    rule: Meaning, before: datetime, wall: datetime, zone: ZoneInfo, step_s: int
) -> bool:
    leap = wall.utcoffset() - before.utcoffset()
    matches = _matches(rule, wall) and not (rule.fixed and wall.fold)
    if not rule.fixed or not timedelta(0) < leap <= timedelta(hours=3):
        return matches
    skipped = before.replace(tzinfo=None, fold=0) + timedelta(seconds=step_s)
    while skipped < wall.replace(tzinfo=None, fold=0):
        if _matches(rule, skipped):
            return True
        skipped += timedelta(seconds=1 if skipped.second or step_s < 60 else 60)
    return matches


def _matches(rule: Meaning, wall: datetime) -> bool:
    return rule.times(wall.hour, wall.minute, wall.second) and rule.day(wall.date())


def days(rule: Meaning, start: date, count: int) -> Iterator[date]:
    """Give the days among the ``count`` from ``start`` on that match."""
    return (day for day in (start + timedelta(at) for at in range(count)) if rule.day(day))


# ------------------------------------------------------------------------------ rules


@st.composite
def values(draw, low, high, names=(), *, wraps=False, open_end=None):
    """Give (text, set of values) of one item of a plain field."""
    top = open_end if open_end is not None else high
    kind = draw(st.sampled_from(["*", "n", "a-b", "*/s", "a-b/s", "a/s", "a-a"]))

    def word(value):
        if names and value <= top and draw(st.booleans()):
            name = names[value - low]
            return draw(st.sampled_from([name, name.upper()]))
        return draw(st.sampled_from([str(value), f"{value:02}"]))

    if kind == "*":
        return "*", set(range(low, top + 1))
    if kind == "*/s":
        step = draw(st.integers(1, top - low + 1))
        return f"*/{step}", set(range(low, top + 1, step))
    first, last = draw(st.integers(low, high)), draw(st.integers(low, high))
    if kind == "n":
        return word(first), {first}
    if kind == "a-a":
        return f"{word(first)}-{word(first)}", {first}
    step = draw(st.integers(1, top - low + 1))
    if kind == "a/s":
        return f"{word(first)}/{step}", set(range(first, max(top, first) + 1, step))
    if first > last and not wraps:
        first, last = last, first
    ends = last if last >= first else last + (top - low + 1)
    if kind == "a-b":
        step = 1
    text = f"{word(first)}-{word(last)}" + (f"/{step}" if kind == "a-b/s" else "")
    return text, {(value - low) % (top - low + 1) + low for value in range(first, ends + 1, step)}


@st.composite
def a_list(draw, item):
    """Give (text, set) of a comma list."""
    items = draw(st.lists(item, min_size=1, max_size=3))
    return ",".join(text for text, _ in items), set().union(*(found for _, found in items))


def minutes():
    return a_list(values(0, 59))


def hours():
    return a_list(values(0, 23))


def months():
    return a_list(values(1, 12, MONTHS, wraps=True))


@st.composite
def a_day(draw):
    """Give (text, predicate of a date) of one item of the day-of-month field."""
    kind = draw(st.sampled_from(["plain", "plain", "plain", "L", "L-n", "LW", "nW"]))
    number = draw(st.integers(1, 31))
    if kind == "plain":
        text, found = draw(values(1, 31))
        return text, lambda day: day.day in found
    if kind == "L":
        return draw(st.sampled_from("Ll")), lambda day: day.day == _length(day)
    if kind == "L-n":
        back = min(number, 30)
        return f"L-{back}", lambda day: day.day == _length(day) - back
    if kind == "LW":
        return "LW", lambda day: day == _nearest_weekday(day, _length(day))
    return f"{number}W", lambda day: number <= _length(day) and day == _nearest_weekday(day, number)


@st.composite
def a_weekday(draw):
    """Give (text, predicate of a date) of one item of the weekday field."""
    kind = draw(st.sampled_from(["plain", "plain", "plain", "dL", "d#n"]))
    number = draw(st.integers(0, 7))
    word = draw(st.sampled_from([str(number), WEEKDAYS[number % 7], WEEKDAYS[number % 7].upper()]))
    if kind == "plain":
        text, found = draw(values(0, 7, WEEKDAYS, open_end=6, wraps=True))
        found = {value % 7 for value in found}  # 7 is Sunday too
        return text, lambda day: day.isoweekday() % 7 in found
    if kind == "dL":
        text = draw(st.sampled_from([f"{word}L", f"L{word}", f"{word}l"]))
        return text, lambda day: day.isoweekday() % 7 == number % 7 and day.day + 7 > _length(day)
    nth = draw(st.integers(1, 5))
    return (
        f"{word}#{nth}",
        lambda day: day.isoweekday() % 7 == number % 7 and nth * 7 - 7 < day.day <= nth * 7,
    )


@st.composite
def day_fields(draw):
    """Give (day-of-month text, weekday text, predicate) joined by the rule of cron(8)."""
    texts, tests = [], []
    for item in (a_day(), a_weekday()):
        if draw(st.integers(0, 2)) == 0:
            texts.append(draw(st.sampled_from("*?")))
            tests.append(lambda day: True)
            continue
        found = draw(st.lists(item, min_size=1, max_size=3))
        texts.append(",".join(text for text, _ in found))
        tests.append(lambda day, found=found: any(test(day) for _, test in found))
    join = all if texts[0][0] in "*?" or texts[1][0] in "*?" else any
    return texts[0], texts[1], lambda day: join(test(day) for test in tests)


@st.composite
def rules(draw, *, literal=False, seconds=False):
    """Give a rule with its meaning; times are dense enough to meet a change of the clocks."""
    minute, in_minute = draw(minutes())
    hour, in_hour = draw(hours())
    month, in_month = draw(st.one_of(st.just(("*", set(range(1, 13)))), months()))
    dom, dow, is_day = draw(day_fields())
    words, in_second = [minute, hour, dom, month, dow], {0}
    if seconds:
        second, in_second = draw(a_list(values(0, 59)))
        words.insert(0, second)
    blank = draw(st.sampled_from([" ", "  ", "\t"]))
    return Meaning(
        text=blank.join(words),
        times=lambda h, m, s: h in in_hour and m in in_minute and s in in_second,
        day=lambda day: day.month in in_month and is_day(day),
        fixed=not literal and minute[0] != "*" and hour[0] != "*",
    )


def _length(day):
    return calendar.monthrange(day.year, day.month)[1]


def _nearest_weekday(month, number):
    """Give the weekday of a month that is nearest to its day ``number``."""
    days_of_it = [month.replace(day=at) for at in range(1, _length(month) + 1)]
    return min(
        (day for day in days_of_it if day.isoweekday() < 6),
        key=lambda day: abs(day.day - number),
    )


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
