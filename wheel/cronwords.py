"""Rules in words: what a rule means, said from the values it has and not from how it is written.

Each field is a set of numbers when it comes here, so two ways to write one rule get the same
words, and there is no form without words. How a field was written shows only where it matters:
what is drawn by H, and which of the two ways the day fields are joined.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from wheel.cron import Parsed
from wheel.cronfields import MONTH, WEEKDAY, Field, compile_fields
from wheel.cronmasks import YEAR_FIRST, Days, Fields

MONTH_NAMES: Final = (
    "January February March April May June July August September October November December"
).split()
WEEKDAY_NAMES: Final = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday".split()
ALL_DAYS: Final = (1 << 32) - 2
ALL_WEEKDAYS: Final = (1 << 7) - 1
ALL_MONTHS: Final = (1 << 13) - 2
CLOCK_TIMES_MAX: Final = 8  # more of them are said as minutes of hours

_UNITS_MS: Final = (
    ("day", 86_400_000),
    ("hour", 3_600_000),
    ("minute", 60_000),
    ("second", 1_000),
    ("millisecond", 1),
)


def rule_words(parsed: Parsed) -> str:
    """Return a rule in words, as a sentence without a full stop; zone and DST are not in it."""
    if parsed.kind == "every":
        later = f", {duration_words(parsed.phase_ms)} later" if parsed.phase_ms else ""
        return f"Every {duration_words(parsed.every_ms)}, counted from 1970{later}"
    if parsed.kind == "at":
        return "Once"
    if parsed.kind == "none":
        return "Never by itself: it follows the schedules it comes after"
    fields = compile_fields(parsed.fields)
    parts = [_time(fields), _days(fields)]
    if fields.months != ALL_MONTHS:
        parts.append("in " + _set(_bits(fields.months), "month", lambda at: MONTH_NAMES[at - 1]))
    if fields.years is not None:
        years = [year + YEAR_FIRST for year in _bits(fields.years)]
        parts.append("in " + _set(years, "year", str))
    text = ", ".join(part for part in parts if part)
    return text[0].upper() + text[1:]


def duration_words(length_ms: int) -> str:
    """Return a length of time in words: ``1 hour 30 minutes``."""
    parts: list[str] = []
    for name, unit_ms in _UNITS_MS:
        number, length_ms = divmod(length_ms, unit_ms)
        if number:
            parts.append(f"{number} {name}{'s' if number > 1 else ''}")
    return " ".join(parts)


def drawn_words(parsed: Parsed) -> str:
    """Return what H stands for in a rule: ``minute 17 and hour 3``; empty without an H."""
    drawn: list[str] = []
    for field in parsed.fields:
        values = [item for item in field.items if item.form == "hash"]
        for item in values:
            if item.step > 1:
                drawn.append(f"{field.unit.name} {_value(field, item.low)} as the first")
            else:
                drawn.append(f"{field.unit.name} {_value(field, item.low)}")
    return join(list(dict.fromkeys(drawn)))


def join(words: Sequence[str], last: str = "and") -> str:
    """Return ``a, b and c``."""
    if len(words) < 2:
        return "".join(words)
    if any(f" {last} " in word for word in words):
        return f", {last} ".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def ordinal(number: int) -> str:
    """Return ``1st``, ``2nd``, ``11th``."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _value(field: Field, value: int) -> str:
    if field.unit is MONTH:
        return MONTH_NAMES[value - 1]
    return WEEKDAY_NAMES[value % 7] if field.unit is WEEKDAY else str(value)


def _bits(mask: int) -> list[int]:
    return [at for at in range(mask.bit_length()) if mask >> at & 1]


# ------------------------------------------------------------------------------ sets


def _set(values: Sequence[int], unit: str, show: Callable[[int], str]) -> str:
    """Return a set of values: as steps, or as runs and single ones.

    Args:
        values: in order, at least one.
        unit: what they are, for steps: ``month``.
        show: a value in words.
    """
    step = _step(values)
    if step is not None and step > 1:
        return f"every {ordinal(step)} {unit} from {show(values[0])} through {show(values[-1])}"
    return join([_run(first, last, show) for first, last in _runs(values)])


def _step(values: Sequence[int]) -> int | None:
    """Return the one distance between neighbours of three or more values, if it is one."""
    if len(values) < 3:
        return None
    steps = {high - low for low, high in itertools.pairwise(values)}
    return steps.pop() if len(steps) == 1 else None


def _runs(values: Iterable[int]) -> list[tuple[int, int]]:
    """Return first and last of each run of three or more neighbours, and of each single value."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and runs[-1][1] == value - 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    found: list[tuple[int, int]] = []
    for first, last in runs:
        if last == first + 1:
            found += [(first, first), (last, last)]
        else:
            found.append((first, last))
    return found


def _run(first: int, last: int, show: Callable[[int], str]) -> str:
    return show(first) if first == last else f"{show(first)} through {show(last)}"


# ------------------------------------------------------------------------------ time of day


def _time(fields: Fields) -> str:
    seconds, minutes, hours = map(_bits, (fields.seconds, fields.minutes, fields.hours))
    if len(seconds) == 1 and len(minutes) * len(hours) <= CLOCK_TIMES_MAX:
        second = f":{seconds[0]:02}" if seconds != [0] else ""
        times = [f"{hour:02}:{minute:02}{second}" for hour in hours for minute in minutes]
        return f"at {join(times)}"
    if len(hours) == 24 and minutes == [0] and seconds == [0]:
        return "every hour, on the hour"
    if seconds == [0]:
        text = _often(minutes, "minute")
    else:
        text = _often(seconds, "second")
        if len(minutes) < 60:
            text += f" in {_which(minutes, 'minute')}"
        elif text.startswith("at"):
            text += " of every minute"
    if len(hours) < 24:
        return f"{text} in {_which(hours, 'hour')}"
    said_singly = len(minutes) < 60 and (seconds != [0] or text.startswith("at"))
    return f"{text} of every hour" if said_singly else text


def _often(values: Sequence[int], unit: str) -> str:
    """Return the seconds of a minute or the minutes of an hour, as how often that is."""
    if len(values) == 60:
        return f"every {unit}"
    step = _step(values)
    if step is not None and len(values) * step == 60:  # equally far apart all around the clock
        start = f" from {unit} {values[0]}" if values[0] else ""
        return f"every {step} {unit}s{start}"
    return f"at {_which(values, unit)}"


def _which(values: Sequence[int], unit: str) -> str:
    step = _step(values)
    if step is not None and step > 1:
        return _set(values, unit, str)
    return f"{unit}{'s' if len(values) > 1 else ''} {_set(values, unit, str)}"


# ------------------------------------------------------------------------------ days


def _days(fields: Fields) -> str:
    days = fields.days
    any_day, any_weekday = days.plain == ALL_DAYS, days.weekdays == ALL_WEEKDAYS
    by_month, by_week = join(_by_month(days)), join(_by_week(days))
    if not days.both:
        return f"on {by_month} or on {by_week}"
    if any_day and any_weekday:
        return "every day" if fields.hours.bit_count() < 24 else ""
    if any_day:
        return f"on {by_week}"
    if any_weekday:
        return f"on {by_month}"
    return f"on {by_month}, but only if it is {join(_by_week(days), 'or')}"


def _by_month(days: Days) -> list[str]:
    words: list[str] = []
    if days.plain == ALL_DAYS:
        words.append("every day of the month")
    elif days.plain:
        plain = _bits(days.plain)
        steps = (_step(plain) or 1) > 1
        shown = _set(plain, "day", lambda at: f"the {ordinal(at)}" if steps else ordinal(at))
        words.append(f"{'' if steps else 'the '}{shown} of the month")
    for back in sorted(set(days.from_end)):
        if back == 0:
            words.append("the last day of the month")
        else:
            words.append(f"the {ordinal(back)} day before the last of the month")
    if days.last_weekday:
        words.append("the last working day of the month")
    words += [
        f"the working day nearest to the {ordinal(day)} of the month"
        for day in sorted(set(days.nearest))
    ]
    return words


def _by_week(days: Days) -> list[str]:
    words: list[str] = []
    if days.weekdays == ALL_WEEKDAYS:
        words.append("every day of the week")
    elif days.weekdays:
        # Monday first, as people count: a run from Saturday to Sunday stays together.
        order = [(weekday + 6) % 7 for weekday in _bits(days.weekdays)]
        words += [
            _run(first, last, lambda at: WEEKDAY_NAMES[(at + 1) % 7])
            for first, last in _runs(sorted(order))
        ]
    words += [f"the last {WEEKDAY_NAMES[at]} of the month" for at in sorted(set(days.last))]
    words += [
        f"the {ordinal(nth)} {WEEKDAY_NAMES[at]} of the month"
        for at, nth in sorted(set(days.nth), key=lambda pair: (pair[1], pair[0]))
    ]
    return words
