"""What rules mean, and how those are refused that mean nothing."""

import json
import re
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import croniter
import pytest
from hypothesis import given

from tests.property import cron_oracle as oracle
from wheel import cronfields, cronmasks
from wheel.cron import compile_rule, next_fires
from wheel.cronfields import Token, read_fields
from wheel.errors import (
    CronSyntaxError,
    InvalidRequest,
    NaiveDatetimeError,
    WheeldError,
    ZoneError,
)
from wheel.zones import Zone

# L, W, # and the like; an equal range.
OWN_FORM = re.compile(r"[lw#?]|^([0-9a-z]+)-\1($|/)", re.IGNORECASE)
NAMES = re.compile("|".join(oracle.MONTHS + oracle.WEEKDAYS), re.IGNORECASE)

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "cron.jsonl").read_text().splitlines()
]
NOW = datetime(2026, 3, 3, 10, 17, tzinfo=UTC)
NOW_MS = int(NOW.timestamp()) * 1000


def times(rule, count=3, after=NOW, **options):
    return [at.isoformat() for at in next_fires(rule, after=after, count=count, **options)]


@pytest.fixture
def no_memory():
    """Forget what was compiled, before and after."""

    def forget():
        cronfields._asked.clear()
        sys.modules["wheel.cron"]._compile.cache_clear()
        sys.modules["wheel.cron"]._compile_hashed.cache_clear()

    forget()
    yield
    forget()


# ------------------------------------------------------------------------------ cases


def test_no_case_is_lost():
    assert len(CASES) == len({case["id"] for case in CASES}) == 77


@pytest.mark.parametrize("case", [case for case in CASES if "fires" in case], ids=lambda c: c["id"])
def test_a_case_fires_at(case):
    after = datetime.fromisoformat(case["after"])
    found = times(
        case["rule"], len(case["fires"]), after, tz=case["tz"], dst=case.get("dst", "cron")
    )
    assert found == case["fires"]


@pytest.mark.parametrize(
    "case", [case for case in CASES if "refused" in case], ids=lambda c: c["id"]
)
def test_a_case_is_refused_with(case):
    with pytest.raises(CronSyntaxError, match=case["refused"]) as refused:
        times(case["rule"], 1, datetime.fromisoformat(case["after"]), tz=case["tz"])
    assert refused.value.position == case["position"]
    assert case["refused"] in refused.value.reason
    assert refused.value.hint


# ------------------------------------------------------------------------------ refusals

REFUSED = [
    ("", 0, "empty", "'0 9 * * 1'"),
    ("   ", 0, "empty", "@daily"),
    ("0 0 * * * * * *", 14, "8 fields", "seven end with the year"),
    ("0 0 1 1", None, "4 fields", "write minute, hour"),
    ("* * * * mon-xyz", 8, "'xyz' is no weekday", "sun to sat"),
    ("* * * * monday", 8, "'monday' is no weekday", "sun to sat"),
    ("* * * foo *", 6, "'foo' is no month", "jan to dec"),
    ("5,70 * * * *", 2, "70 is not 0 to 59", "0 to 59"),
    ("0 24 * * *", 2, "24 is not 0 to 23", "0 for the first"),
    ("0 0 0 * *", 4, "0 is not 1 to 31", "1 to 31"),
    ("0 0 32 * *", 4, "32 is not 1 to 31", "1 to 31"),
    ("0 0 * 13 *", 6, "13 is not 1 to 12", "1 to 12"),
    ("0 0 * * 8", 8, "8 is not 0 to 7", "0 to 7"),
    ("0 0 0 1 1 * 1969", 12, "1969 is not 1970 to 2199", "1970"),
    ("0 0 0 1 1 * 2200", 12, "2200 is not 1970 to 2199", "2199"),
    ("-5 * * * *", 0, "a value is missing", "0 to 59"),
    ("5- * * * *", 0, "a value is missing", "0 to 59"),
    ("+5 * * * *", 0, "'+5' is no minute", "0 to 59"),
    ("1-2-3 * * * *", 0, "'2-3' is no minute", "0 to 59"),
    ("*5 * * * *", 0, "a star takes only a step", "*/5"),
    ("*/5/5 * * * *", 0, "'5/5' is not a whole number", "*/5"),
    ("*/-5 * * * *", 0, "'-5' is not a whole number", "*/5"),
    ("*/61 * * * *", 0, "a step of 61", "@every 61m"),
    ("0 */36 * * *", 2, "a step of 36", "@every 36h"),
    ("0 0 */45 * *", 4, "a step of 45", "@every 45d"),
    ("0 0 1 */13 *", 6, "a step of 13", "1 to 12"),
    ("*/99999999999999999999 * * * *", 0, "a step of 999999999999...", "1 to 60"),
    ("0 20-4 * * *", 2, "runs backwards", "20-23,0-4"),
    ("0 0 25-5 * *", 4, "runs backwards", "25-31,1-5"),
    (",5 * * * *", 0, "empty item", "comma"),
    ("5, * * * *", 2, "empty item", "comma"),
    ("* ? * * *", 2, "question mark", "write *"),
    ("0 0 ?,5 * *", 4, "'?' is no day of month", "1 to 31"),
    ("R * * * *", 0, "draw anew", "write H"),
    ("0 R(0-5) * * *", 2, "draw anew", "write H"),
    ("0 0 0 1 1 * H", 12, "no meaning for years", "a year"),
    ("H(9-5) * * * *", 0, "runs forwards", "H(5-9)"),
    ("H(0-70) * * * *", 0, "70 is not 0 to 59", "0 to 59"),
    ("H(5) * * * *", 0, "all values or from a range", "write H, H(1-7) or H/5"),
    ("0 H() * * *", 2, "all values or from a range", "write H, H(1-7) or H/5"),
    ("Hx * * * *", 0, "all values or from a range", "write H, H(1-7) or H/5"),
    ("cron_tz=Europe/Rome 0 0 * * *", 0, "in capitals", "write CRON_TZ=Europe/Rome"),
    ("CRON_TZ=UTC TZ=UTC 0 0 * * *", 12, "goes in front", "write CRON_TZ=UTC"),
    ("30~10 * * * *", 0, "runs forwards", "H(10-30)"),
    ("L * * * *", 0, "not a form of this field", "0 to 59"),
    ("0 0 L-0 * *", 4, "not L-1 to L-30", "L-1"),
    ("0 0 L-31 * *", 4, "not L-1 to L-30", "L-1"),
    ("0 0 32W * *", 4, "32 is not 1 to 31", "1 to 31"),
    ("0 0 1-5W * *", 4, "follows a single day", "15W"),
    ("0 0 L/2 * *", 4, "no step", "write l"),
    ("0 0 * * L", 8, "needs a weekday", "6L"),
    ("0 0 * * 5#0", 8, "once to five", "fri#1"),
    ("0 0 * * 5#6", 8, "once to five", "fri#1"),
    ("0 0 * * 5#", 8, "once to five", "fri#1"),
    ("0 0 * * 8L", 8, "8 is not 0 to 7", "0 to 7"),
    ("0 0 30,31 2 *", None, "never_fires", "days that its months have"),
    ("0 0 L-30 2,4 *", None, "never_fires", "days that its months have"),
    ("0 0 31W 4,6 *", None, "never_fires", "days that its months have"),
    ("0 0 * 2 ?#5", 8, "'?' is no weekday", "sun to sat"),
    ("0 0 * *\n*", 7, "not a blank or a tab", "one rule"),
    ("0 0 * * *\x00", 9, "not a blank or a tab", "one rule"),
    ("0 0 * * * " + " " * 250, 256, "260 bytes are more than 256", "ranges"),
    ("0 0 * * é", 8, "not ASCII", "ASCII"),
    ("@dayly", 0, "@dayly is unknown", "write @daily"),
    ("@", 0, "@ is unknown", "@at"),
    ("@reboot", 0, "not a time", "service manager"),
    ("@daily 5", 7, "stands alone", "write @daily"),
    ("@every", 0, "takes one duration", "@every 90m"),
    ("@every 1h 5m", 10, "takes one duration", "@every 90m"),
    ("@every 0s", 7, "less than a second", "@every 1s"),
    ("@every 999ms", 7, "less than a second", "@every 1s"),
    ("@every -5m", 7, "'-5m' is not a duration", "90m"),
    ("@every 5x", 7, "'5x' is not a duration", "90m"),
    ("@every 1h/", 10, "'' is not a duration", "90m"),
    ("@every 1h/1h", 10, "not shorter than 1h", "a phase below 1h"),
    ("@every 4000000d", 7, "is not a duration", "90m"),
    ("@every 100000d", None, "never_fires", "a shorter length"),
    ("@at", 0, "is not a time", "@at 2026"),
    ("@at tomorrow", 4, "is not a time", "@at 2026"),
    ("@at 2026-12-24T09:00", 4, "has no zone", "+01:00"),
    ("@at 2200-01-01T00:00Z", 4, "beyond the horizon", "1970 to 2199"),
    ("@at 2020-01-01T00:00Z", None, "never_fires", "to come"),
    ("CRON_TZ=Europe/Rome", 19, "empty", "@daily"),
    ("-", None, "never_fires", "follow others"),
]


@pytest.mark.parametrize(("rule", "position", "reason", "hint"), REFUSED)
def test_a_refusal_says_where_why_and_what_to_write(rule, position, reason, hint):
    with pytest.raises(CronSyntaxError) as refused:
        times(rule)
    error = refused.value
    assert (error.position, reason in error.reason, hint in error.hint) == (position, True, True), (
        error.position,
        error.reason,
        error.hint,
    )
    assert str(error).endswith(f"{error.reason}; {error.hint}")
    assert "\n" not in str(error)
    if position is not None:
        assert f"at position {position}:" in str(error)


@pytest.mark.parametrize(
    ("tz", "hint"),
    [
        ("Europe/Rom", "Europe/Rome"),
        ("europe/rome", "Europe/Rome"),
        ("New York", "America/New_York"),
        ("Tokio", "Asia/Tokyo"),
        ("utc", "UTC"),
        ("CEST", ""),
        ("", ""),
        ("../../etc/passwd", ""),
        ("/etc/localtime", ""),
        ("localtime", ""),
        ("posixrules", ""),
        ("right/UTC", "Etc/UTC"),
        ("right/Europe/Rome", "Europe/Rome"),
        ("posix/Europe/Rome", "Europe/Rome"),
        ("Europe", ""),
        ("Europe/Rome\0", ""),
        ("Москва", ""),
        ("x" * 100_000, ""),
    ],
)
def test_an_unknown_zone_is_refused_and_the_nearest_one_named(tz, hint):
    with pytest.raises(ZoneError, match="time zone") as refused:
        times("@daily", tz=tz)
    assert hint in refused.value.hint
    assert refused.value.hint.startswith("write ")
    assert len(str(refused.value)) < 250


def test_a_zone_in_front_of_the_rule_is_refused_with_its_position():
    with pytest.raises(ZoneError) as refused:
        times("  CRON_TZ=Europe/Rom @daily")
    assert refused.value.position == 10


def test_the_beginning_of_time_can_be_asked_from_in_any_zone():
    """Ten milliseconds are no measure here: what counts is that an answer comes at all."""
    first = datetime.min.replace(tzinfo=UTC)
    for rule in ("@every 90m", "30 1 * * *", "@at 2026-01-01T00:00Z"):
        for tz in ("America/New_York", "Pacific/Kiritimati"):
            assert len(next_fires(rule, tz=tz, after=first, count=1)) == 1
    with pytest.raises(CronSyntaxError, match="never_fires"):
        next_fires("@every 90m", after=datetime.max.replace(tzinfo=UTC), count=1)


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(NaiveDatetimeError):
        next_fires("@daily", after=datetime(2026, 1, 1), count=1)  # noqa: DTZ001


@pytest.mark.parametrize("count", [-1, 100_001])
def test_an_impossible_count_is_refused(count):
    with pytest.raises(InvalidRequest, match="count"):
        next_fires("@daily", after=NOW, count=count)


def test_an_unknown_dst_rule_is_refused():
    with pytest.raises(InvalidRequest, match="'quartz' is not one of cron, literal"):
        compile_rule("@daily", dst="quartz")


# ------------------------------------------------------------------------------ forms


@pytest.mark.parametrize(
    ("rule", "same"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@ANNUALLY", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@Weekly", "0 0 * * 0"),
        ("\t@daily\n", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("0 0 * JAN-mar Mon-FRI", "0 0 * 1-3 1-5"),
        ("0 0 * nov-feb *", "0 0 * 11,12,1,2 *"),
        ("0 0 * 11-4/2 *", "0 0 * 11,1,3 *"),
        ("0 0 * * fri-mon", "0 0 * * 5,6,0,1"),
        ("0 0 * * 7-2", "0 0 * * 0,1,2"),
        ("0 0 * * 5-7/2", "0 0 * * 5,0"),
        ("0 0 * * sun-sat", "0 0 * * *"),
        ("0 0 L-2,15w * *", "0 0 15W,l-2 * *"),
        ("0 0 * * 5l", "0 0 * * LFRI"),
        ("0 0 ? * ?", "0 0 * * *"),
        ("0 0 0 * * * *", "0 0 * * *"),
        ("0 0 0 1 1 * 2090/5", "0 0 0 1 1 * 2090-2199/5"),
        ("0 0 0 1 1 * */50", "0 0 0 1 1 * 1970,2020,2070,2120,2170"),
        ("H(7-7) 3 * * *", "7 3 * * *"),
        ("CRON_TZ=Asia/Tokyo @daily", "TZ=Asia/Tokyo 0 0 * * *"),
    ],
)
def test_two_ways_to_write_one_rule(rule, same):
    assert times(rule) == times(same)


def test_a_star_list_begins_with_a_star_and_a_full_list_does_not():
    """The day rule looks at the first letter: `*,1` joins by and, `1,*` by or."""
    both = times("0 0 *,1 * mon", 2)
    assert both == ["2026-03-09T00:00:00+00:00", "2026-03-16T00:00:00+00:00"]
    assert times("0 0 1,* * mon", 2) == ["2026-03-04T00:00:00+00:00", "2026-03-05T00:00:00+00:00"]


def test_every_is_anchored_at_the_epoch_and_shifted_by_the_phase():
    assert times("@every 90m", 2) == ["2026-03-03T10:30:00+00:00", "2026-03-03T12:00:00+00:00"]
    assert times("@EVERY 1h30m/15m", 1) == ["2026-03-03T10:45:00+00:00"]
    rule = compile_rule("@every 1500ms/1ms")
    assert [rule.next_ms(0), rule.next_ms(1), rule.next_ms(1500)] == [1, 1501, 1501]
    assert rule.axis == "rel"
    assert compile_rule("@hourly").axis == compile_rule("@at 2030-01-01T00:00Z").axis == "wall"


def test_at_fires_once():
    rule = compile_rule("@at 2030-01-01T00:00:00.250+01:00")
    at_ms = 1893452400250
    assert [rule.next_ms(at_ms - 1), rule.next_ms(at_ms)] == [at_ms, None]
    assert [rule.latest_before(at_ms), rule.latest_before(at_ms + 1)] == [None, at_ms]
    assert list(rule.between(0, at_ms)) == rule.newest(0, at_ms, 9) == [at_ms]
    assert [rule.count(0, at_ms), rule.count(at_ms, at_ms + 1)] == [1, 0]


def test_a_rule_that_only_follows_others_has_no_times():
    rule = compile_rule("-")
    assert rule.kind == "none"
    assert (rule.next_ms(0), rule.latest_before(NOW_MS), rule.count(0, NOW_MS)) == (None, None, 0)


def test_the_prefix_wins_over_the_zone():
    rule = compile_rule("CRON_TZ=Asia/Tokyo 0 9 * * *", tz="Europe/Rome")
    assert rule.tz == "Asia/Tokyo"
    assert times("TZ=Asia/Tokyo @daily", 1, tz="Europe/Rome") == ["2026-03-04T00:00:00+09:00"]


def test_what_a_schedule_draws_from_its_name_never_changes():
    """These numbers are in use: another hash would move every schedule that has an H."""
    found = [times("H H H H H", 1, name=name)[0] for name in ("backup", "report", "日報")]
    assert found == [
        "2027-01-03T15:02:00+00:00",
        "2026-04-03T16:43:00+00:00",
        "2026-11-06T00:18:00+00:00",
    ]
    spread = times("H(10-20)/5 H * * *", 2, name="backup")
    assert spread == times("10~20/5 h * * *", 2, name="backup")


def test_h_spreads_over_the_whole_field_and_each_field_by_itself():
    names = [f"schedule-{number}" for number in range(3000)]
    at = [next_fires("H H H * *", after=NOW, count=1, name=name)[0] for name in names]
    assert {moment.minute for moment in at} == set(range(60))
    assert {moment.hour for moment in at} == set(range(24))
    assert {moment.day for moment in at} == set(range(1, 29))
    assert len({(moment.hour, moment.minute) for moment in at}) > 1150  # of 1,440, by chance 1,260


def test_only_an_h_makes_a_rule_depend_on_the_name():
    assert compile_rule("0 0 * * *", name="a") is compile_rule("0 0 * * *", name="b")
    assert compile_rule("0 H * * *", name="a") is compile_rule("0 H * * *", name="a")
    assert compile_rule("0 H * * *", name="a") != compile_rule("0 H * * *", name="b")
    assert hash(compile_rule("0 0 * * *")) == hash(compile_rule("0 0 * * *"))
    assert compile_rule("0 0 * * *") != compile_rule("0 0 * * *", tz="Europe/Rome")


# ------------------------------------------------------------------------------ time


def test_a_fraction_of_a_second_never_gives_a_time_that_is_not_after():
    rule = compile_rule("0 3 * * *")
    three_ms = 1577847600000
    assert rule.next_ms(three_ms - 1) == three_ms
    for fraction in (0, 1, 400, 999):
        assert rule.next_ms(three_ms + fraction) == three_ms + 86_400_000
    assert rule.latest_before(three_ms) == three_ms - 86_400_000
    assert rule.latest_before(three_ms + 1) == three_ms


def test_what_was_asked_before_does_not_change_the_answer():
    """The rule remembers its last answer, which holds for a stretch of questions."""
    asked = [NOW_MS + shift * 977_000 for shift in (0, 5, 3, 500, -70, 5, 90, 89, -1)]
    rule = compile_rule("*/20 2-5 * * *", tz="Europe/Rome")
    first = [rule.next_ms(at) for at in asked]
    assert [rule.next_ms(at) for at in reversed(asked)] == first[::-1]
    for at, found in zip(asked, first, strict=True):
        assert next_fires(
            "*/20 2-5 * * *",
            tz="Europe/Rome",
            after=datetime.fromtimestamp(at / 1000, UTC),
            count=1,
        ) == [datetime.fromtimestamp(found / 1000, UTC)]


def test_answers_carry_the_rules_zone_and_the_question_may_have_any():
    rome = times("0 9 * * *", 1, NOW.astimezone(timezone(timedelta(hours=-9))), tz="Europe/Rome")
    assert rome == ["2026-03-04T09:00:00+01:00"]
    [second] = next_fires(
        "30 * * * *", tz="Europe/Rome", after=datetime(2026, 10, 25, 0, 59, tzinfo=UTC), count=1
    )
    assert (second.hour, second.minute, second.fold) == (2, 30, 1)


@pytest.mark.parametrize("tz", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_the_horizon_of_an_interval_is_the_end_of_2199_as_its_zone_has_it(tz):
    """The first six days of 2200 were given: the last second that zones are asked for."""
    last = datetime(2199, 12, 31, 22, 30, tzinfo=ZoneInfo(tz))
    found = next_fires("@every 1h", tz=tz, after=last, count=5)
    assert [(at.year, at.hour) for at in found] == [(2199, 23)]
    rule = compile_rule("@every 1h", tz=tz)
    assert rule.latest_before(1 << 47) == int(found[0].timestamp()) * 1000


def test_the_horizon_is_the_end_of_2199():
    last = datetime(2199, 12, 31, 23, 58, 30, tzinfo=UTC)
    assert times("* * * * *", 5, last) == ["2199-12-31T23:59:00+00:00"]
    for rule in ("* * * * *", "@every 1h"):
        with pytest.raises(CronSyntaxError, match="never_fires"):
            times(rule, 1, last + timedelta(days=10))
    rule = compile_rule("@daily")
    assert rule.latest_before(1 << 47) == int(datetime(2199, 12, 31, tzinfo=UTC).timestamp()) * 1000


def test_the_beginning_of_datetime_is_no_trouble():
    first = datetime(1, 1, 1, tzinfo=UTC)
    assert len(times("@yearly", 1, first, tz="America/New_York")) == 1
    assert compile_rule("@yearly", tz="Asia/Tokyo").latest_before(-(1 << 47)) is None


def test_missed_runs_of_a_decade_are_counted_without_walking_over_them(monkeypatch):
    asked = []
    whole = cronmasks.Fields.next
    monkeypatch.setattr(
        cronmasks.Fields, "next", lambda self, low: asked.append(low) or whole(self, low)
    )
    rule = compile_rule("* * * * * *", tz="America/New_York")
    a, b = (int(datetime(year, 7, 1, tzinfo=UTC).timestamp()) * 1000 for year in (2026, 2036))
    assert rule.count(a, b) == (b - a) // 1000
    assert len(asked) < 100
    assert rule.newest(a, b, 3) == [b - 2000, b - 1000, b]


@pytest.mark.parametrize(
    ("rule", "dst"),
    [
        ("0 0 31 2,4,6,9,11 *", "cron"),
        ("0 0 30 2 *", "cron"),
        ("30 2 8-14 3 */7", "literal"),  # in New York always in the gap
        ("* 2 8-14 3 */7", "cron"),
        ("* * 2 8-14 3 */7 2026-2199", "cron"),
        ("0 0 0 29 2 * 2025-2199/4", "cron"),
        ("0 0 29 2 2#1", "cron"),
    ],
)
def test_a_rule_without_times_is_refused_after_bounded_work(monkeypatch, no_memory, rule, dst):
    """Counted in steps, because a busy machine is slow and not wrong: 10 ms are 10,000 of them."""
    steps = []
    month, segment = cronmasks._month, Zone.segment
    monkeypatch.setattr(cronmasks, "_month", lambda *at: steps.append(at) or month(*at))
    monkeypatch.setattr(Zone, "segment", lambda self, at: steps.append(at) or segment(self, at))
    if rule == "0 0 29 2 2#1":  # either will do
        assert times(rule, 1) == ["2027-02-02T00:00:00+00:00"]
    else:
        with pytest.raises(CronSyntaxError, match="never_fires"):
            times(rule, 1, tz="America/New_York", dst=dst)
    assert len(steps) < 6000


# ------------------------------------------------------------------------------ croniter


def _wraps(item):
    return item.form == "range" and item.low >= item.high


def test_every_plain_field_is_expanded_by_croniter(monkeypatch, no_memory):
    asked = []
    expand = croniter.croniter.expand

    def listen(text, **options):
        asked.append(text)
        return expand(text, **options)

    monkeypatch.setattr(croniter.croniter, "expand", listen)
    compile_rule("5,10-20/5 */15 9-17 1-15,20 jan-mar mon-fri 2026-2030")
    assert asked == ["5,10-20/5 */15 9-17 1-15,20 1-3 1-5 2026-2030"]
    compile_rule("5,10-20/5 */15 9-17 1-15,20 4 mon-fri 2026-2030")
    assert asked[1:] == ["* * * * 4 * *"]  # what it said of the others is remembered


@given(oracle.rules(seconds=True))
def test_no_plain_item_is_read_by_our_own_code(rule):
    """Whatever is made up: an item is croniter's, or of a form that the module lists."""
    tokens = [Token(word, 0) for word in rule.text.split()]
    for field, word in zip(read_fields(tokens, "", rule.text), rule.text.split(), strict=True):
        for item, text in zip(field.items, word.split(","), strict=True):
            bare = NAMES.sub("1", text)
            assert item.plain or OWN_FORM.search(bare) or _wraps(item), (word, text)


def test_what_croniter_answers_is_what_the_rule_means(monkeypatch, no_memory):
    """Nothing else reads a plain field: let croniter answer 17, and 17 it is."""
    monkeypatch.setattr(croniter.croniter, "expand", lambda text, **options: ([[3]] * 7, {}))
    [at] = next_fires("0 5 7 2 * *", after=NOW, count=1)
    assert (at.second, at.minute, at.hour, at.day, at.month) == (3, 3, 3, 3, 3)


@pytest.mark.parametrize(
    "rule",
    ["5-5 5-5 L 11-2 5L", "H H H H H", "0~30 H/6 L-3,LW,15W 7-7 1#1,6-2", "5-5 5-5 ? H ?"],
)
def test_croniter_is_not_asked_for_the_forms_that_the_module_lists(monkeypatch, no_memory, rule):
    def never(text, **options):
        raise AssertionError(text)

    monkeypatch.setattr(croniter.croniter, "expand", never)
    assert compile_rule(rule).next_ms(NOW_MS)


def test_without_croniter_the_error_says_what_to_install(monkeypatch, no_memory):
    monkeypatch.setitem(sys.modules, "croniter", None)
    with pytest.raises(WheeldError, match=r"pip install 'wheeld\[server\]'"):
        times("0 0 * * *")
    assert times("@every 1h", 1)
