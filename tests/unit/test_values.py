"""Durations, moments and what calls return."""

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel.errors import ConnectError, InvalidRequest, NaiveDatetimeError, NotFound, WheeldError
from wheel.values import (
    Backoff,
    BatchResult,
    Item,
    Job,
    JobInfo,
    backoff,
    duration_ms,
    from_ms,
    when_wire,
    wire_due,
)

ROME_NINE_MS = 1_798_099_200_000  # 2026-12-24T09:00:00+01:00


def after_1973(microseconds):
    return datetime(1973, 4, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        ("90s", 90_000),
        ("24h", 86_400_000),
        ("7d", 604_800_000),
        ("1h30m", 5_400_000),
        ("1d2h3m4s5ms", 93_784_005),
        ("1.5s", 1_500),
        ("250ms", 250),
        ("0s", 0),
        ("0.0001s", 1),
        (90, 90_000),
        (0.5, 500),
        (4.035, 4_035),
        (2.3, 2_300),
        (0.0001, 1),
        (timedelta(days=1, microseconds=1), 86_400_001),
    ],
)
def test_a_duration_in_any_form_is_whole_milliseconds_rounded_up(value, expected_ms):
    assert duration_ms(value) == expected_ms


@pytest.mark.parametrize(
    "value",
    [
        *("", "90", "s", "1h 30m", "30m1h", "1s1s", "-5s", "5S", "٣s", "1e3s", "in 5s", " 5s"),
        *(-1, -0.001, float("nan"), float("inf"), 1e18, True, None, timedelta(-1), b"5s"),
    ],
)
def test_what_is_no_duration_is_refused_and_named(value):
    with pytest.raises(InvalidRequest) as caught:
        duration_ms(value)
    assert repr(value) in str(caught.value) or str(value) in str(caught.value)


@given(st.integers(0, 2**47), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_text_with_one_unit_means_that_many_of_it(number, unit):
    unit_ms = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[unit]
    number //= unit_ms
    assert duration_ms(f"{number}{unit}") == number * unit_ms


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (datetime(2026, 12, 24, 9, tzinfo=ZoneInfo("Europe/Rome")), b"1798099200000"),
        (datetime(2026, 12, 24, 13, 30, tzinfo=timezone(timedelta(hours=5.5))), b"1798099200000"),
        ("2026-12-24T09:00:00+01:00", b"1798099200000"),
        ("2026-12-24T08:00:00Z", b"1798099200000"),
        ("2026-12-24T08:00:00.0001Z", b"1798099200001"),
        (1_798_099_200, b"1798099200000"),
        (1_798_099_200.25, b"1798099200250"),
        ("now", b"now"),
        ("+90s", b"+90000"),
        (timedelta(minutes=30), b"+1800000"),
        (datetime(1970, 1, 1, tzinfo=UTC), b"now"),
        (datetime(1, 1, 1, tzinfo=UTC), b"now"),
        (-5, b"now"),
        (100_000_000, b"100000000000"),
    ],
)
def test_a_moment_in_any_form_is_written_as_the_protocol_wants_it(when, expected):
    assert when_wire(when) == expected


def test_a_datetime_without_zone_is_refused_with_what_to_write():
    with pytest.raises(NaiveDatetimeError) as caught:
        when_wire(datetime(2026, 12, 24, 9))  # noqa: DTZ001
    assert str(caught.value) == (
        "2026-12-24 09:00:00 has no time zone. "
        "Write datetime(..., tzinfo=ZoneInfo('Europe/Rome')), "
        "or datetime.now(timezone.utc) + ..., or use schedule_in('24h', ...)"
    )
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, WheeldError)


@pytest.mark.parametrize("text", ["2026-12-24T09:00:00", "2026-12-24 09:00", "2026-12-24"])
def test_text_without_offset_is_refused_too(text):
    with pytest.raises(NaiveDatetimeError, match="has no time zone"):
        when_wire(text)


def test_milliseconds_are_not_taken_for_seconds():
    with pytest.raises(InvalidRequest, match=r"looks like milliseconds.*Write 1798099200\.0"):
        when_wire(ROME_NINE_MS)
    assert when_wire(1e11) == b"100000000000000"


@pytest.mark.parametrize(
    "when",
    [None, True, float("nan"), float("inf"), "tomorrow", "", "90s", "+", "+x", date(2026, 1, 1)],
)
def test_what_is_no_moment_is_refused(when):
    with pytest.raises(InvalidRequest):
        when_wire(when)


def test_a_moment_behind_the_last_one_is_refused():
    assert wire_due(when_wire(datetime.max.replace(tzinfo=UTC)), 0) == datetime.max.replace(
        tzinfo=UTC
    )
    with pytest.raises(InvalidRequest, match=r"2\^48 ms"):
        when_wire(f"+{2**48}ms")


@given(st.integers(0, 250_000_000_000_000_000).map(after_1973))
def test_no_moment_is_written_earlier_than_it_is_nor_a_millisecond_late(moment):
    written = from_ms(int(when_wire(moment)))
    assert moment <= written
    assert written - moment < timedelta(milliseconds=1)


def test_due_of_a_relative_time_counts_from_the_clock_given():
    assert wire_due(b"+1500", 1000) == from_ms(2500)
    assert wire_due(b"now", 1000) == from_ms(1000)
    assert wire_due(b"1798099200000", 1000) == from_ms(ROME_NINE_MS)


def test_backoff_keeps_milliseconds_and_refuses_unknown_kinds():
    assert backoff("30s", max="1h") == Backoff("exp", 30_000, 3_600_000)
    assert backoff(5, "fixed") == Backoff("fixed", 5_000, None)
    with pytest.raises(InvalidRequest, match="'steep'"):
        backoff("30s", "steep")  # type: ignore[arg-type]


def test_results_say_what_they_are():
    due = datetime(2026, 12, 24, 9, tzinfo=ZoneInfo("Europe/Rome"))
    job = Job(id=7, store="ab", handler="mail", due=due, key="k")
    assert repr(job) == "<Job 7 mail due 2026-12-24T08:00:00Z key 'k' created>"
    assert job.created
    assert job.uid == "ab-7"
    there = Job(id=7, store="ab", handler="mail", due=None, word="existing", state="ready")
    assert repr(there) == "<Job 7 mail existing>"
    assert not there.created
    info = JobInfo(
        id=7, store="ab", handler="mail", state="ready", key=None, due=due, attempt=2, fields={}
    )
    assert repr(info) == "<JobInfo 7 mail ready due 2026-12-24T08:00:00Z attempt 2>"
    assert info.uid == "ab-7"


def test_results_cannot_be_changed():
    job = Job(id=7, store="ab", handler="mail", due=None)
    with pytest.raises(AttributeError):
        job.id = 8  # type: ignore[misc]


def test_a_batch_result_is_its_ids_in_order_and_raises_its_first_error_on_request():
    refused = NotFound("why")
    result = BatchResult(ids=[5, None, 6], created=1, existing=1, replaced=0, errors={1: refused})
    assert list(result) == [5, None, 6]
    assert (len(result), result[2], result.failed) == (3, 6, 1)
    assert repr(result) == ("<BatchResult 3 jobs: 1 created, 1 existing, 0 replaced, 1 failed>")
    with pytest.raises(NotFound) as caught:
        result.check()
    assert caught.value.__notes__ == ["item 1; 1 of 3 were refused"]
    BatchResult(ids=[5], created=1, existing=0, replaced=0, errors={}).check()


def test_an_item_gives_all_of_its_options():
    item = Item("now", "mail", key="k", retries=0, meta=b"m")
    given_options = {name: value for name, value in item.options().items() if value is not None}
    assert given_options == {"key": "k", "retries": 0, "meta": b"m"}


def test_nothing_was_confirmed_by_an_error_that_does_not_say_so():
    assert ConnectError("x").confirmed == 0
