"""Rules against the oracle that looks at every minute, and against two other libraries."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import croniter
import cronsim
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.property import cron_oracle as oracle
from wheel.cron import compile_rule, next_fires
from wheel.errors import CronSyntaxError

DAY = timedelta(days=1)
BEYOND_CRONSIM = {"Pacific/Apia", "Pacific/Kwajalein", "Antarctica/Vostok", "Africa/Monrovia"}


def asked(rule, tz, start, end, dst):
    """Give what the rule itself says in [start, end)."""
    compiled = compile_rule(rule.text, tz=tz, dst=dst)
    first, last = int(start.timestamp()) * 1000, int(end.timestamp()) * 1000
    return compiled, first - 1, last - 1


def readable(rule, tz, dst):
    """Whether the rule has any time at all: one that has none is refused, and only such a one."""
    try:
        compile_rule(rule.text, tz=tz, dst=dst)
    except CronSyntaxError as error:
        assert error.reason.startswith("never_fires"), error
        return False
    return True


@settings(max_examples=250)
@given(st.data())
def test_a_rule_fires_when_the_oracle_says_so_around_every_kind_of_change(data):
    dst = data.draw(st.sampled_from(["cron", "cron", "literal"]))
    rule = data.draw(oracle.rules(literal=dst == "literal"))
    tz, moment = data.draw(st.sampled_from(oracle.CHANGES))
    start = oracle.utc(moment) - timedelta(minutes=data.draw(st.integers(0, 2000)))
    end = start + timedelta(minutes=data.draw(st.integers(1, 3500)))
    assume(readable(rule, tz, dst))
    if tz == "Africa/Monrovia":  # -0:44:30: the wall's full minutes are half ones of UTC's
        start, end, step = start.replace(second=0), min(end, start + timedelta(hours=6)), 30
    else:
        step = 60
    expected = oracle.fires(rule, ZoneInfo(tz), start, end, step)

    compiled, after, until = asked(rule, tz, start, end, dst)
    assert [at // 1000 for at in compiled.between(after, until)] == expected
    assert compiled.count(after, until) == len(expected)
    assert [at // 1000 for at in compiled.newest(after, until, 1 << 20)] == expected
    assert [at // 1000 for at in compiled.newest(after, until, 3)] == expected[-3:]


@settings(max_examples=60)
@given(st.data())
def test_seconds_fire_when_the_oracle_says_so(data):
    rule = data.draw(oracle.rules(seconds=True))
    tz, moment = data.draw(st.sampled_from(oracle.CHANGES))
    start = oracle.utc(moment) - timedelta(seconds=data.draw(st.integers(0, 8000)))
    end = start + timedelta(seconds=data.draw(st.integers(1, 9000)))
    assume(readable(rule, tz, "cron"))
    expected = oracle.fires(rule, ZoneInfo(tz), start, end, 1)

    compiled, after, until = asked(rule, tz, start, end, "cron")
    assert [at // 1000 for at in compiled.between(after, until)] == expected
    assert compiled.count(after, until) == len(expected)
    assert [at // 1000 for at in compiled.newest(after, until, 1 << 20)] == expected


@settings(max_examples=150)
@given(oracle.day_fields(), oracle.months(), st.dates(date(1970, 1, 1), date(2190, 1, 1)))
def test_days_of_years_are_those_of_the_calendar(fields, months, start):
    dom, dow, is_day = fields
    month, in_month = months
    rule = oracle.Meaning(
        text=f"0 0 {dom} {month} {dow}",
        times=lambda h, m, s: h == m == s == 0,
        day=lambda day: day.month in in_month and is_day(day),
        fixed=True,
    )
    assume(readable(rule, "UTC", "cron"))
    expected = list(oracle.days(rule, start, 1200))
    first = datetime(start.year, start.month, start.day, tzinfo=UTC)
    compiled, after, until = asked(rule, "UTC", first, first + 1200 * DAY, "cron")
    found = [datetime.fromtimestamp(at / 1000, UTC) for at in compiled.between(after, until)]
    assert [at.date() for at in found] == expected
    assert compiled.count(after, until) == len(expected)
    assert len(compiled.newest(after, until, 2000)) == len(expected)


@settings(max_examples=100)
@given(
    oracle.minutes(),
    oracle.hours(),
    oracle.months(),
    st.integers(31_536_000, 1_893_456_000).map(lambda at: datetime.fromtimestamp(at, UTC)),
)
def test_plain_fields_mean_what_croniter_says(minute, hour, month, after):
    """Where croniter is right: in UTC, without equal or reversed ranges."""
    text = f"{minute[0]} {hour[0]} * {month[0]} *"
    assume(not any(_odd_range(item) for word in text.split() for item in word.split(",")))
    others = croniter.croniter(text, after, max_years_between_matches=60)
    expected = [others.get_next(datetime) for _ in range(5)]
    assert next_fires(text, after=after, count=5) == expected


def _odd_range(item):
    first, dash, last = item.partition("/")[0].lower().partition("-")
    if not dash:
        return False
    low, high = (
        oracle.MONTHS.index(word) + 1 if word in oracle.MONTHS else int(word)
        for word in (first, last)
    )
    return low >= high


@settings(max_examples=100)
@given(
    st.sampled_from([change for change in oracle.CHANGES if change[0] not in BEYOND_CRONSIM]),
    st.integers(0, 59),
    st.integers(0, 23),
    st.integers(0, 2000),
    st.sampled_from(["* * *", "L * *", "* * 1-5", "LW * *", "*/2 * 1", "13 * 5", "* * 0L"]),
)
def test_daily_times_around_changes_are_those_of_cronsim(change, minute, hour, earlier, days):
    """Where cronsim is right: changes of up to three hours, not asked in a fold's second pass."""
    tz, moment = change
    after = (oracle.utc(moment) - timedelta(minutes=earlier)).astimezone(ZoneInfo(tz))
    assume(not after.fold)
    text = f"{minute} {hour} {days}"
    others = cronsim.CronSim(text, after)
    expected = [next(others).astimezone(UTC) for _ in range(4)]
    assert [at.astimezone(UTC) for at in next_fires(text, tz=tz, after=after, count=4)] == expected


@settings(max_examples=100)
@given(oracle.rules(), st.sampled_from(oracle.CHANGES), st.integers(-(10**6), 10**6))
def test_back_and_forth_is_the_same_way(rule, change, shift):
    """The last time before the next one is the one before, and nothing lies in between."""
    tz, moment = change
    assume(readable(rule, tz, "cron"))
    compiled = compile_rule(rule.text, tz=tz)
    at_ms = int(oracle.utc(moment).timestamp()) * 1000 + shift * 1000
    following = compiled.next_ms(at_ms)
    if following is not None:
        assert following > at_ms
        assert (compiled.latest_before(following) or -(1 << 60)) <= at_ms
    earlier = compiled.latest_before(at_ms)
    if earlier is not None:
        assert earlier < at_ms
        assert compiled.next_ms(earlier - 1) == earlier
        assert (compiled.next_ms(earlier) or 1 << 60) >= at_ms
