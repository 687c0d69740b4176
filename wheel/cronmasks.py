"""Which local times a cron expression matches: bit masks and whole numbers, no zone and no clock.

A local time is a count of seconds since 1970-01-01T00:00 on the wall. A field is an int whose bit
n says that n matches, so the next value is the lowest bit above; only days need more, because
which of them match depends on the month. What a month looks like is one of 28 kinds (the weekday
of its first, and 28 to 31 days), and the mask of a kind is made once.
"""

import functools
from dataclasses import dataclass, field
from datetime import date
from typing import Final

YEAR_FIRST: Final = 1970
YEAR_LAST: Final = 2199  # the horizon: nothing is looked for behind it
DAY_S: Final = 86_400

_HOUR_S: Final = 3_600
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_END_S: Final = (date(YEAR_LAST, 12, 31).toordinal() - _EPOCH_DAY + 1) * DAY_S - 1
_LENGTHS: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """Which days of a month match.

    Attributes:
        plain: bits 1 to 31, days of the month.
        from_end: n for the n-th day before the last one, 0 for the last.
        last_weekday: whether the last day from Monday to Friday matches.
        nearest: days whose nearest weekday in the month matches.
        weekdays: bits 0 (Sunday) to 6.
        last: weekdays whose last one in the month matches.
        nth: (weekday, n): its n-th one in the month.
        both: whether a day must match as a day of the month and as a weekday; else either will do.
    """

    plain: int
    from_end: tuple[int, ...] = ()
    last_weekday: bool = False
    nearest: tuple[int, ...] = ()
    weekdays: int
    last: tuple[int, ...] = ()
    nth: tuple[tuple[int, int], ...] = ()
    both: bool
    _masks: dict[int, int] = field(default_factory=dict[int, int], compare=False, repr=False)

    def mask(self, first: int, length: int) -> int:
        """Return the matching days, bits 1 to 31.

        Args:
            first: the weekday of the first of the month, Sunday is 0.
            length: how many days the month has.
        """
        kind = first * 32 + length
        mask = self._masks.get(kind)
        if mask is None:
            by_month = self._by_month(first, length)
            by_week = self._by_week(first, length)
            mask = by_month & by_week if self.both else by_month | by_week
            self._masks[kind] = mask
        return mask

    def _by_month(self, first: int, length: int) -> int:
        mask = self.plain & ((2 << length) - 2)
        for back in self.from_end:
            mask |= (1 << (length - back)) & ~1 if back < length else 0
        if self.last_weekday:
            mask |= 1 << _nearest_weekday(length, first, length)
        for day in self.nearest:
            if day <= length:
                mask |= 1 << _nearest_weekday(day, first, length)
        return mask

    def _by_week(self, first: int, length: int) -> int:
        mask = 0
        for day in range(1, length + 1):
            weekday = (first + day - 1) % 7
            if (
                self.weekdays >> weekday & 1
                or (day + 7 > length and weekday in self.last)
                or (weekday, (day + 6) // 7) in self.nth
            ):
                mask |= 1 << day
        return mask


def _nearest_weekday(day: int, first: int, length: int) -> int:
    """Return the day from Monday to Friday nearest to ``day``, in the same month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:  # Saturday: the Friday before it, or the Monday after the first
        return day - 1 if day > 1 else day + 2
    if weekday == 0:  # Sunday: the Monday after it, or the Friday before the last
        return day + 1 if day < length else day - 2
    return day


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """A compiled expression.

    Attributes:
        seconds: bits 0 to 59.
        minutes: bits 0 to 59.
        hours: bits 0 to 23.
        days: which days of a month.
        months: bits 1 to 12.
        years: bits from 0, which is 1970; None if any year will do.
        wild: whether the minute or the hour field begins with a star, see wheel/crondst.py.
    """

    seconds: int
    minutes: int
    hours: int
    days: Days
    months: int
    years: int | None
    wild: bool

    def next(self, low_s: int) -> int | None:
        """Return the first matching local second >= ``low_s``; None if it is after 2199."""
        today, second = divmod(low_s, DAY_S)
        day = self._day_from(today)
        if day == today:
            at_s = self._time_from(second)
            if at_s is not None:
                return today * DAY_S + at_s
            day = self._day_from(today + 1)
        if day is None:
            return None
        first = _low(self.hours) * _HOUR_S + _low(self.minutes) * 60 + _low(self.seconds)
        return day * DAY_S + first

    def previous(self, high_s: int) -> int | None:
        """Return the last matching local second <= ``high_s``; None if there is none."""
        today, second = divmod(min(high_s, _END_S), DAY_S)
        day = self._day_until(today)
        if day == today:
            at_s = self._time_until(second)
            if at_s is not None:
                return today * DAY_S + at_s
            day = self._day_until(today - 1)
        if day is None:
            return None
        last = _high(self.hours) * _HOUR_S + _high(self.minutes) * 60 + _high(self.seconds)
        return day * DAY_S + last

    def possible(self) -> bool:
        """Return whether any day matches at all; asks each kind of month once, not each month."""
        if self.years is not None:
            return self._day_from(0) is not None
        lengths: set[int] = set()
        for month in range(1, 13):
            if self.months >> month & 1:
                lengths.update((28, 29) if month == 2 else (_LENGTHS[month],))
        return any(self.days.mask(first, length) for length in lengths for first in range(7))

    def matches(self, local_s: int) -> bool:
        """Return whether a local second matches."""
        return self.next(local_s) == local_s

    def count(self, low_s: int, high_s: int) -> int:
        """Return how many local seconds in [low_s, high_s] match."""
        if low_s > high_s:
            return 0
        first, low = divmod(low_s, DAY_S)
        last, high = divmod(high_s, DAY_S)
        a_day = self.hours.bit_count() * self.minutes.bit_count() * self.seconds.bit_count()
        total = self._days_between(first, last) * a_day
        if self._day_from(first) == first:
            total -= self._times_below(low)
        if self._day_from(last) == last:
            total -= a_day - self._times_below(high + 1)
        return total

    # ---------------------------------------------------------------- within a day

    def _time_from(self, second: int) -> int | None:
        hour, rest = divmod(second, _HOUR_S)
        if self.hours >> hour & 1:
            minute, low = divmod(rest, 60)
            if self.minutes >> minute & 1:
                above = self.seconds >> low
                if above:
                    return second + _low(above)
            above = self.minutes >> minute + 1
            if above:
                minute += 1 + _low(above)
                return hour * _HOUR_S + minute * 60 + _low(self.seconds)
        above = self.hours >> hour + 1
        if not above:
            return None
        hour += 1 + _low(above)
        return hour * _HOUR_S + _low(self.minutes) * 60 + _low(self.seconds)

    def _time_until(self, second: int) -> int | None:
        hour, rest = divmod(second, _HOUR_S)
        if self.hours >> hour & 1:
            minute, high = divmod(rest, 60)
            if self.minutes >> minute & 1:
                below = self.seconds & ((2 << high) - 1)
                if below:
                    return hour * _HOUR_S + minute * 60 + _high(below)
            below = self.minutes & ((1 << minute) - 1)
            if below:
                return hour * _HOUR_S + _high(below) * 60 + _high(self.seconds)
        below = self.hours & ((1 << hour) - 1)
        if not below:
            return None
        return _high(below) * _HOUR_S + _high(self.minutes) * 60 + _high(self.seconds)

    def _times_below(self, second: int) -> int:
        """Return how many matching times of a day lie before ``second``, 0 to 86,400."""
        hour, rest = divmod(second, _HOUR_S)
        minute, low = divmod(rest, 60)
        an_hour = self.minutes.bit_count() * self.seconds.bit_count()
        total = (self.hours & ((1 << hour) - 1)).bit_count() * an_hour
        if self.hours >> hour & 1:
            total += (self.minutes & ((1 << minute) - 1)).bit_count() * self.seconds.bit_count()
            if self.minutes >> minute & 1:
                total += (self.seconds & ((1 << low) - 1)).bit_count()
        return total

    # ---------------------------------------------------------------- days

    def _day_from(self, day: int) -> int | None:
        """Return the first matching day >= ``day``, both counted from 1970-01-01."""
        start = date.fromordinal(day + _EPOCH_DAY)
        year, month, above = start.year, start.month, start.day
        while True:
            if self.years is not None and (after := self._year_from(year)) != year:
                if after is None:
                    return None
                year, month, above = after, 1, 1
            later = self.months >> month
            if not later:
                year, month, above = year + 1, 1, 1
                if year > YEAR_LAST:
                    return None
                continue
            if not later & 1:
                month, above = month + _low(later), 1
            if year > YEAR_LAST:
                return None
            begin, first, length = _month(year, month)
            left = self.days.mask(first, length) >> above
            if left:
                return begin + above + _low(left)
            month, above = month + 1, 1

    def _day_until(self, day: int) -> int | None:
        """Return the last matching day <= ``day``."""
        start = date.fromordinal(day + _EPOCH_DAY)
        year, month, below = start.year, start.month, start.day
        while year >= 1:
            if self.years is not None and (before := self._year_until(year)) != year:
                if before is None:
                    return None
                year, month, below = before, 12, 31
            earlier = self.months & ((2 << month) - 1)
            if earlier:
                if _high(earlier) != month:
                    month, below = _high(earlier), 31
                begin, first, length = _month(year, month)
                left = self.days.mask(first, length) & ((2 << below) - 1)
                if left:
                    return begin + _high(left)
                month, below = month - 1, 31
            else:
                month = 0
            if month == 0:
                year, month, below = year - 1, 12, 31
        return None

    def _year_from(self, year: int) -> int | None:
        assert self.years is not None
        year = max(year, YEAR_FIRST)
        above = self.years >> year - YEAR_FIRST
        return year + _low(above) if above else None

    def _year_until(self, year: int) -> int | None:
        assert self.years is not None
        below = self.years & ((2 << year - YEAR_FIRST) - 1) if year >= YEAR_FIRST else 0
        return YEAR_FIRST + _high(below) if below else None

    def _days_between(self, first: int, last: int) -> int:
        """Return how many days in [first, last] match; one step a month."""
        start = date.fromordinal(first + _EPOCH_DAY)
        year, month, total = start.year, start.month, 0
        while year <= YEAR_LAST:
            begin, weekday, length = _month(year, month)
            if begin + 1 > last:
                break
            of_year = self.years is None or (
                year >= YEAR_FIRST and self.years >> year - YEAR_FIRST & 1
            )
            if of_year and self.months >> month & 1:
                mask = self.days.mask(weekday, length)
                if begin + length > last:
                    mask &= (2 << last - begin) - 1
                if begin + 1 < first:
                    mask &= -(1 << first - begin)
                total += mask.bit_count()
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        return total


@functools.lru_cache(maxsize=4096)
def _month(year: int, month: int) -> tuple[int, int, int]:
    """Return the day before a month's first, the first's weekday (Sunday is 0), and the length."""
    ordinal = date(year, month, 1).toordinal()
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return ordinal - _EPOCH_DAY - 1, ordinal % 7, _LENGTHS[month] + leap


def _low(mask: int) -> int:
    """Return the lowest bit that is set."""
    assert mask, "an empty mask has no lowest bit"
    return (mask & -mask).bit_length() - 1


def _high(mask: int) -> int:
    """Return the highest bit that is set."""
    return mask.bit_length() - 1
