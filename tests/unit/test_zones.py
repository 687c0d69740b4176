"""Offsets, and local days and hours."""

import zoneinfo
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel import zones
from wheel.zones import FIRST_S, LAST_S, exact, label, label_span, label_unit, zone

HOUR_MS = 3_600_000
NAMES = sorted(zoneinfo.available_timezones() - {"localtime"})


def ms(text):
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@given(st.sampled_from(NAMES), st.integers(-3_000_000_000, LAST_S - 1))
def test_the_offset_is_zoneinfos_at_any_time_in_any_zone(name, unix_s):
    expected = datetime.fromtimestamp(unix_s, ZoneInfo(name)).utcoffset()
    assert zone(name).offset_s(unix_s) == expected.total_seconds()


@given(st.sampled_from(NAMES), st.integers(-2_000_000_000, 4_000_000_000))
def test_segments_join_without_hole_and_change_where_they_say(name, unix_s):
    where = zone(name)
    segment = where.segment(unix_s)
    assert segment.start_s <= unix_s < segment.end_s
    if segment.before_s != segment.offset_s:
        for at_s, offset_s in ((-1, segment.before_s), (0, segment.offset_s)):
            moment = datetime.fromtimestamp(segment.start_s + at_s, ZoneInfo(name))
            assert moment.utcoffset().total_seconds() == offset_s
    if segment.end_s == LAST_S:
        return  # a zone that never changes
    following = where.segment(segment.end_s)
    assert following.start_s <= segment.end_s < following.end_s
    assert following.before_s == segment.offset_s or following.start_s < segment.end_s


def test_no_zone_changes_twice_within_a_probes_reach():
    """Blocks are probed every 73 hours; the quickest two changes known are 4 days apart."""
    quickest = 1 << 60
    for name in ("Africa/Freetown", "Asia/Gaza", "America/Noronha", "Africa/Casablanca"):
        where, before_s = zone(name), None
        change = where.change_after(-1_200_000_000, 4_000_000_000)
        while change is not None:
            if before_s is not None:
                quickest = min(quickest, change.start_s - before_s)
            before_s = change.start_s
            change = where.change_after(before_s, 4_000_000_000)
    assert 90 * 3600 < quickest < 100 * 3600
    assert quickest > zones._PROBE_S


@pytest.mark.parametrize("unix_s", [FIRST_S, LAST_S - 1])
def test_the_ends_of_time_can_be_asked_for(unix_s):
    for name in ("UTC", "America/New_York", "Asia/Tokyo"):
        assert zone(name).segment(unix_s).end_s > unix_s


@pytest.mark.parametrize("name", ["UTC", "Asia/Tokyo", "Etc/GMT+5"])
def test_a_zone_without_changes_has_no_next_one(name):
    assert zone(name).change_after(1_700_000_000, 1 << 40) is None


def test_a_zone_asked_about_everywhere_stays_bounded(monkeypatch):
    monkeypatch.setattr(zones, "_BLOCKS_MAX", 8)
    where = zones.Zone("Europe/Rome", ZoneInfo("Europe/Rome"))
    assert {where.offset_s(at_s) for at_s in range(0, 1 << 27, 1 << 21)} == {3600, 7200}
    assert len(where._blocks) <= 8


def test_the_fingerprint_is_of_the_rules_wherever_the_file_lies(monkeypatch):
    rome, paris = zone("Europe/Rome").fingerprint, zone("Europe/Paris").fingerprint
    assert rome != paris
    assert len(rome) == 16
    zones._fingerprint.cache_clear()
    monkeypatch.setattr(zoneinfo, "TZPATH", ())  # no system database: the package has it
    assert len(zone("Europe/Rome").fingerprint) == 16
    zones._fingerprint.cache_clear()


def test_changed_rules_change_the_fingerprint(monkeypatch, tmp_path):
    zones._fingerprint.cache_clear()
    before = zone("Europe/Rome").fingerprint
    Path(tmp_path, "Europe").mkdir()
    Path(tmp_path, "Europe", "Rome").write_bytes(b"TZif other rules")
    zones._fingerprint.cache_clear()
    monkeypatch.setattr(zoneinfo, "TZPATH", (str(tmp_path),))
    assert zone("Europe/Rome").fingerprint != before
    zones._fingerprint.cache_clear()


# ------------------------------------------------------------------------------ labels


@pytest.mark.parametrize(
    ("tz", "moment", "day", "hour"),
    [
        ("UTC", "2026-11-01T23:59:59.999+00:00", "2026-11-01", "2026-11-01T23"),
        ("Asia/Tokyo", "2026-11-01T15:00:00+00:00", "2026-11-02", "2026-11-02T00"),
        ("America/New_York", "2026-11-01T06:30:00+00:00", "2026-11-01", "2026-11-01T01"),
        ("America/New_York", "2026-11-01T05:30:00+00:00", "2026-11-01", "2026-11-01T01"),
        ("UTC", "1969-12-31T23:00:00+00:00", "1969-12-31", "1969-12-31T23"),
    ],
)
def test_a_label_is_the_local_day_or_hour(tz, moment, day, hour):
    assert label(zone(tz), ms(moment), "day") == day
    assert label(zone(tz), ms(moment), "hour") == hour


def test_an_exact_label_is_the_instant_as_run_ids_write_it():
    assert exact(ms("2026-11-01T06:00:00+00:00")) == "2026-11-01T06:00:00Z"
    assert exact(ms("2026-11-01T06:00:00+00:00") + 7) == "2026-11-01T06:00:00.007Z"
    assert label(zone("Asia/Tokyo"), 0, "exact") == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("tz", "text", "hours"),
    [
        ("UTC", "2026-11-01", 24),
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
        ("Australia/Lord_Howe", "2019-10-06", 23.5),
        ("Africa/Cairo", "2025-04-25", 23),  # begins at 01:00
        ("America/Havana", "2025-11-02", 25),  # begins twice
        ("Pacific/Apia", "2011-12-30", None),
        ("America/New_York", "2026-03-08T02", None),
        ("America/New_York", "2026-11-01T01", 2),
        ("Australia/Lord_Howe", "2019-10-06T02", 0.5),
        ("Antarctica/Troll", "2025-10-26T01", 3),  # 01:00, then from 03:00 back to 01:00
    ],
)
def test_a_days_and_an_hours_length(tz, text, hours):
    span = label_span(zone(tz), text)
    assert (None if span is None else (span[1] - span[0]) / HOUR_MS) == hours


@given(
    st.sampled_from(["America/New_York", "Pacific/Apia", "Antarctica/Troll", "Africa/Monrovia"]),
    st.integers(0, 4_000_000_000_000),
    st.sampled_from(["day", "hour", "exact"]),
)
def test_a_moment_lies_in_the_span_of_its_label(tz, unix_ms, unit):
    where = zone(tz)
    text = label(where, unix_ms, unit)
    assert label_unit(text) == unit
    start_ms, end_ms = label_span(where, text)
    assert start_ms <= unix_ms < end_ms
    assert label(where, start_ms, unit) == label(where, end_ms - 1, unit) == text
    if unit != "exact":
        assert label(where, start_ms - 1, unit) != text
        assert label(where, end_ms, unit) != text


@pytest.mark.parametrize(
    "text",
    ["", "2026", "2026-13-01", "2026-02-30", "2026-11-01T24", "2026-11-01T1", "2026-11-01 01",
     "2026-11-01T01:00:00", "2026-11-01T01:00:00+01:00", "0001-01-01", "2200-01-01", "x" * 99,
     "2026-11-01T25:00:00Z", "\uff12\uff10\uff12\uff16-11-01"],
)  # fmt: skip
def test_what_is_no_label_is_refused(text):
    with pytest.raises(ValueError, match=r"20|day|month|hour|iso|ISO"):
        label_span(zone("UTC"), text)


def test_a_time_beyond_labels_is_still_exact():
    assert exact((LAST_S - 1) * 1000).startswith("2200-")
    assert datetime.fromtimestamp(LAST_S, UTC).year == 2200
