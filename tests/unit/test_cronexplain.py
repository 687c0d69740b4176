"""Rules in words, and what to take care of."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.property import cron_oracle as oracle
from wheel.cron import compile_rule, parse_rule
from wheel.cronexplain import explain
from wheel.cronwords import rule_words
from wheel.errors import CronSyntaxError, InvalidRequest

NOW_MS = int(datetime(2026, 12, 1, tzinfo=UTC).timestamp() * 1000)
FORM = re.compile(r"[*/#?~@_]|-|\b[0-9]*[LWHlwh][0-9]*\b")  # what is only ever written in a field


def asked(rule, tz="UTC", **options):
    return explain(rule, **{"tz": tz, "now_ms": NOW_MS, **options})


WORDS = [
    ("* * * * *", "Every minute"),
    ("*/5 * * * *", "Every 5 minutes"),
    ("2/5 * * * *", "Every 5 minutes from minute 2"),
    ("*/7 * * * *", "At every 7th minute from 0 through 56 of every hour"),
    ("0 * * * *", "Every hour, on the hour"),
    ("@hourly", "Every hour, on the hour"),
    ("17 * * * *", "At minute 17 of every hour"),
    ("0,30 * * * *", "At minutes 0 and 30 of every hour"),
    ("0-10,30 * * * *", "At minutes 0 through 10 and 30 of every hour"),
    ("30 2 * * *", "At 02:30, every day"),
    ("0,30 6,18 * * *", "At 06:00, 06:30, 18:00 and 18:30, every day"),
    ("0 */2 * * *", "At minute 0 in every 2nd hour from 0 through 22, every day"),
    ("*/5 9-17 * * 1-5", "Every 5 minutes in hours 9 through 17, on Monday through Friday"),
    ("* 9 * * *", "Every minute in hour 9, every day"),
    ("5 * * * * *", "At second 5 of every minute"),
    ("* * * * * *", "Every second"),
    ("*/10 * * * * *", "Every 10 seconds"),
    ("* 5 * * * *", "Every second in minute 5 of every hour"),
    ("15 30 2 * * *", "At 02:30:15, every day"),
    (
        "*/10 */5 9 * * *",
        "Every 10 seconds in every 5th minute from 0 through 55 in hour 9, every day",
    ),
    ("0 0 13 * *", "At 00:00, on the 13th of the month"),
    ("0 0 1,2,22 * *", "At 00:00, on the 1st, 2nd and 22nd of the month"),
    ("0 0 L * *", "At 00:00, on the last day of the month"),
    ("0 0 L-3 * *", "At 00:00, on the 3rd day before the last of the month"),
    ("0 0 LW * *", "At 00:00, on the last working day of the month"),
    ("0 0 15W * *", "At 00:00, on the working day nearest to the 15th of the month"),
    ("0 0 1,L * *", "At 00:00, on the 1st of the month and the last day of the month"),
    ("0 0 * * 0", "At 00:00, on Sunday"),
    ("0 0 * * 6-7", "At 00:00, on Saturday and Sunday"),
    ("0 0 * * 5-7", "At 00:00, on Friday through Sunday"),
    ("0 0 * * mon,wed,fri", "At 00:00, on Monday, Wednesday and Friday"),
    ("0 0 * * 5L", "At 00:00, on the last Friday of the month"),
    ("0 0 * * MON#1", "At 00:00, on the 1st Monday of the month"),
    ("0 0 13 * 5", "At 00:00, on the 13th of the month or on Friday"),
    ("0 0 1-31 * 4", "At 00:00, on every day of the month or on Thursday"),
    (
        "0 0 */10 * 1",
        (
            "At 00:00, on every 10th day from the 1st through the 31st of the month, "
            "but only if it is Monday"
        ),
    ),
    ("0 12 * jan *", "At 12:00, every day, in January"),
    ("0 12 * nov-feb *", "At 12:00, every day, in January, February, November and December"),
    (
        "0 12 1 */3 *",
        "At 12:00, on the 1st of the month, in every 3rd month from January through October",
    ),
    (
        "0 0 0 29 2 * 2028-2030",
        "At 00:00, on the 29th of the month, in February, in 2028 through 2030",
    ),
    ("0 0 0 1 1 * 2090", "At 00:00, on the 1st of the month, in January, in 2090"),
    ("@yearly", "At 00:00, on the 1st of the month, in January"),
    ("@every 90m", "Every 1 hour 30 minutes, counted from 1970"),
    ("@every 1d/2h", "Every 1 day, counted from 1970, 2 hours later"),
    ("@every 1500ms", "Every 1 second 500 milliseconds, counted from 1970"),
    ("-", "Never by itself: it follows the schedules it comes after"),
]


@pytest.mark.parametrize(("rule", "words"), WORDS)
def test_a_rule_in_words(rule, words):
    assert asked(rule).words == words


def test_at_is_said_in_the_zones_time():
    words = asked("@at 2027-01-01T00:00Z", "Asia/Tokyo").words
    assert words == "Once, on Fri 2027-01-01 at 09:00:00 +09:00"


@given(oracle.rules(), st.sampled_from(["", "H ", "H/7 ", "*/11 ", "5~40 "]))
def test_every_rule_has_words_and_none_of_them_is_a_piece_of_the_rule(rule, second):
    """No form falls back to how it was written."""
    text = second + rule.text
    try:
        compile_rule(text)
    except CronSyntaxError:
        assume(False)
    words = rule_words(parse_rule(text))
    assert not FORM.search(words), words
    assert words[0].isupper()
    assert "  " not in words
    assert not words.endswith((" ", ","))


@given(oracle.rules())
def test_a_rule_is_explained_with_times_that_it_fires_at(rule):
    try:
        found = asked(rule.text, "America/New_York", count=3)
    except CronSyntaxError:
        assume(False)
    fires = compile_rule(rule.text, tz="America/New_York").between(NOW_MS, 1 << 47)
    assert list(found.fires) == [at for at, _ in zip(fires, range(3), strict=False)]


# ------------------------------------------------------------------------------ care

TWICE = "2027-11-07: 01:30 comes twice (clocks go back)"
CHANGES = [
    (
        "30 2 * * *",
        "America/New_York",
        "cron",
        "2027-03-14: 02:30 does not exist (clocks go forward) -> runs once at 03:00 -04:00",
    ),
    (
        "0,30 2 * * *",
        "America/New_York",
        "cron",
        "2027-03-14: 02:00 and 02:30 do not exist (clocks go forward) -> runs once at 03:00 -04:00",
    ),
    (
        "1-59/2 2 * * *",
        "America/New_York",
        "cron",
        (
            "2027-03-14: 02:01 to 02:59 (30 times) do not exist (clocks go forward) "
            "-> runs once at 03:00 -04:00"
        ),
    ),
    (
        "30 2 * * *",
        "America/New_York",
        "literal",
        "2027-03-14: 02:30 does not exist (clocks go forward) -> no run then",
    ),
    (
        "30 * * * *",
        "America/New_York",
        "cron",
        "2027-03-14: 02:30 does not exist (clocks go forward) -> no run then",
    ),
    ("30 1 * * *", "America/New_York", "cron", f"{TWICE} -> runs the first time only"),
    ("30 1 * * *", "America/New_York", "literal", f"{TWICE} -> runs both times"),
    ("30 * * * *", "America/New_York", "cron", f"{TWICE} -> runs both times"),
    (
        "15 2 * * *",
        "Australia/Lord_Howe",
        "cron",
        "2027-10-03: 02:15 does not exist (clocks go forward) -> runs once at 02:30 +11:00",
    ),
    (
        "0 9 * * *",
        "America/New_York",
        "cron",
        "the clocks change on 2027-03-14 and 2027-11-07, which moves none of its times",
    ),
    (
        "30 2 14 3 *",
        "America/New_York",
        "cron",
        "2027-03-14: 02:30 does not exist (clocks go forward) -> runs once at 03:00 -04:00",
    ),
    (
        "0 0 7 9 *",
        "America/Santiago",
        "cron",
        "2031-09-07: 00:00 does not exist (clocks go forward) -> runs once at 01:00 -03:00",
    ),
]


@pytest.mark.parametrize(("rule", "tz", "dst", "remark"), CHANGES)
def test_a_change_of_the_clocks_that_touches_a_rule_is_named(rule, tz, dst, remark):
    assert remark in asked(rule, tz, dst=dst).remarks


@pytest.mark.parametrize("tz", ["UTC", "Asia/Tokyo"])
def test_where_no_clock_changes_nothing_is_said_of_it(tz):
    assert asked("30 2 * * *", tz).remarks == ()


def test_a_day_that_a_zone_leaves_out_is_skipped_and_said_so():
    before_ms = int(datetime(2011, 12, 1, tzinfo=UTC).timestamp() * 1000)
    [remark] = [
        remark
        for remark in asked("0 12 * * *", "Pacific/Apia", now_ms=before_ms).remarks
        if "2011-12-30" in remark
    ]
    assert remark == (
        "2011-12-30: 12:00 does not exist (clocks go forward) by 1 day -> no run then"
    )


@given(oracle.rules(), st.sampled_from(["America/New_York", "Antarctica/Troll", "Europe/Dublin"]))
def test_what_is_said_of_a_change_is_what_the_rule_does(rule, tz):
    try:
        compiled = compile_rule(rule.text, tz=tz)
        remarks = asked(rule.text, tz).remarks
    except CronSyntaxError:
        assume(False)
    for remark in remarks:
        match = re.match(
            r"(\d{4}-\d\d-\d\d): (\d\d:\d\d).*-> (runs once|runs both|no run|runs the)", remark
        )
        if match is None:
            continue
        date, first, what = match.groups()
        year = int(date[:4])
        change = compiled.zone.change_after(
            int(datetime.fromisoformat(f"{date}T00:00Z").timestamp()) - 86_400, 1 << 33
        )
        shown = [
            datetime.fromtimestamp(at / 1000, compiled.zone.info)
            for at in compiled.between(
                change.start_s * 1000 - 6 * 3_600_000, change.start_s * 1000 + 6 * 3_600_000
            )
        ]
        clock = [f"{at:%H:%M}" for at in shown if at.year == year and at.date().isoformat() == date]
        if what == "runs once":
            assert change.start_s in [int(at.timestamp()) for at in shown]
        expected = {"runs once": 0, "no run": 0, "runs both": 2, "runs the": 1}
        assert clock.count(first) == expected[what]


@pytest.mark.parametrize(
    ("rule", "remark"),
    [
        (
            "0 0 */2 * 1",
            (
                "the day of month begins with a star, so the weekday must match too; "
                "write 1-31 in place of the star if either one will do"
            ),
        ),
        (
            "0 0 13 * */2",
            (
                "the weekday begins with a star, so the day of month must match too; "
                "write 0-6 in place of the star if either one will do"
            ),
        ),
        (
            "0 0 13 * 5",
            (
                "a day counts if the day of the month or the weekday matches; "
                "both are asked for only if one of the fields begins with a star"
            ),
        ),
        ("0 0 31 * *", "months without a 31st have no such day; the last day of every month is L"),
        ("0 0 30W * *", "months without a 30th have no such day; the last day of every month is L"),
        (
            "*/7 * * * *",
            "60 minutes are no multiple of 7: after minute 56 the next one is 0, 4 later",
        ),
        ("0 */5 * * *", "24 hours are no multiple of 5: after hour 20 the next one is 0, 4 later"),
        ("H * * * *", "minute 44 is drawn from an empty name; the schedule's own gives another"),
    ],
)
def test_a_rule_that_is_easily_read_wrongly_gets_a_remark(rule, remark):
    assert asked(rule).remarks == (remark,)


@pytest.mark.parametrize(
    "rule",
    [
        "0 0 * * 1",
        "0 0 ? * 1",
        "0 0 13 * ?",
        "0 0 */2 * *",
        "0 0 1,31 * *",
        "0 0 31,L * *",
        "*/15 */6 * * *",
        "@daily",
        "@every 7m",
        "-",
    ],
)
def test_a_plain_rule_gets_no_remark(rule):
    assert asked(rule).remarks == ()


def test_what_h_drew_is_said():
    [remark] = asked("H/20 H H H H", name="backup").remarks[1:]
    assert re.fullmatch(
        r"minute \d+ as the first, hour \d+, day of month \d+, month [A-Z]\w+ and weekday "
        r"[A-Z]\w+ are drawn from the schedule's name",
        remark,
    )


# ------------------------------------------------------------------------------ herd


@pytest.mark.parametrize(
    ("others", "herd"),
    [
        (0, None),
        (1, "1 other schedule fires at 2026-12-01 07:30:00 UTC"),
        (10, "10 other schedules fire at 2026-12-01 07:30:00 UTC"),
        (
            88,
            (
                "88 other schedules fire at 2026-12-01 07:30:00 UTC; "
                "a jitter of 10 seconds on each would make that 9 a second"
            ),
        ),
        (
            12_399,
            (
                "12,399 other schedules fire at 2026-12-01 07:30:00 UTC; "
                "a jitter of 30 minutes on each would make that 7 a second"
            ),
        ),
        (
            10**6,
            (
                "1,000,000 other schedules fire at 2026-12-01 07:30:00 UTC; "
                "a jitter of 1 hour on each would make that 278 a second"
            ),
        ),
    ],
)
def test_the_herd_of_a_moment_is_counted_and_a_jitter_proposed(others, herd):
    asked_for = []
    found = asked(
        "30 2 * * *",
        "America/New_York",
        herd=lambda at_ms: asked_for.append(at_ms) or others,
    )
    assert found.herd == herd
    assert asked_for == [found.fires[0]]


def test_no_jitter_is_proposed_beyond_the_next_time():
    assert "1 minute on each" in asked("* * * * *", herd=lambda _: 50_000).herd
    assert "jitter" not in asked("* * * * * *", herd=lambda _: 50_000).herd


# ------------------------------------------------------------------------------ refusals


def test_nothing_is_explained_that_never_fires():
    with pytest.raises(CronSyntaxError, match="never_fires"):
        asked("0 0 0 1 1 * 2020")


@pytest.mark.parametrize("count", [-1, 1001])
def test_the_count_is_bounded(count):
    with pytest.raises(InvalidRequest, match="count"):
        asked("@daily", count=count)


def test_no_times_may_be_asked_for():
    assert asked("@daily", count=0).fires == ()
