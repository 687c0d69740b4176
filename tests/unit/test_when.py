"""The grammar's scalars in C (csrc/wd_when.c): numbers, words, names, times."""

import re
import string
import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.resp_core import DUE_MS_END, build_resp, span


@pytest.fixture(scope="session")
def c(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module: ``c.lib`` and ``c.ffi``."""
    return build_resp(tmp_path_factory.getbasetemp())


# ---------------------------------------------------------------- numbers, words, names


def u64(c: Any, data: bytes, limit: int = (1 << 64) - 1) -> int | None:
    out = c.ffi.new("uint64_t *", 77)
    text, _block = span(c, data)
    status = c.lib.wd_parse_u64(text, limit, out)
    assert status in {c.lib.WD_OK, c.lib.WD_EINVAL}
    assert status == c.lib.WD_OK or out[0] == 77, "written although refused"
    return int(out[0]) if status == c.lib.WD_OK else None


@settings(deadline=None, max_examples=300)
@given(
    data=st.integers(0, 1 << 66).map(b"%d".__mod__)
    | st.text("0123456789+- _", max_size=22).map(str.encode),
    limit=st.sampled_from([0, 9, 255, 1000, (1 << 63) - 1, (1 << 64) - 1]),
)
@example(data=b"18446744073709551615", limit=(1 << 64) - 1)
@example(data=b"18446744073709551616", limit=(1 << 64) - 1)
@example(data=b"", limit=9)
@example(data=b"10", limit=9)
@example(data=b"9", limit=9)
def test_a_number_is_digits_and_at_most_its_limit(c: Any, data: bytes, limit: int) -> None:
    value = int(data) if re.fullmatch(rb"[0-9]+", data) else None
    assert u64(c, data, limit) == (value if value is not None and value <= limit else None)


@pytest.mark.parametrize(
    ("data", "same"),
    [
        (b"COUNT", True),
        (b"count", True),
        (b"CoUnT", True),
        (b"COUN", False),
        (b"COUNTS", False),
        (b"", False),
        (b"COUNT\x00", False),
        (b"\x00", False),
        (b"C\x4fUN\x74\x20", False),
        (b"cou\xeet", False),
    ],
)
def test_words_are_the_same_in_any_case(c: Any, data: bytes, same: bool) -> None:
    text, _block = span(c, data)
    assert bool(c.lib.wd_word_is(text, b"COUNT")) is same


@settings(deadline=None)
@given(
    word=st.text(string.ascii_letters + string.digits + "@[`{_", max_size=9),
    data=st.binary(max_size=9),
)
def test_only_ascii_letters_have_a_case(c: Any, word: str, data: bytes) -> None:
    text, _block = span(c, word.encode())
    assert c.lib.wd_word_is(text, word.upper().encode())
    other, _block2 = span(c, data)
    upper = bytes(byte - 32 if 97 <= byte <= 122 else byte for byte in data)
    assert bool(c.lib.wd_word_is(other, word.upper().encode())) is (upper == word.upper().encode())


def is_name(c: Any, data: bytes, limit: int = 200) -> bool:
    text, _block = span(c, data)
    return bool(c.lib.wd_is_name(text, limit))


def is_name_by_python(data: bytes, limit: int) -> bool:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return 1 <= len(data) <= limit and all(unicodedata.category(char) != "Cc" for char in text)


ODD_UTF8 = [
    b"\xc0\x80",  # overlong
    b"\xc1\xbf",
    b"\xe0\x9f\xbf",
    b"\xe0\xa0\x80",
    b"\xed\x9f\xbf",
    b"\xed\xa0\x80",  # surrogate
    b"\xef\xbf\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xf0\x90\x80\x80",
    b"\xf4\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",  # above U+10FFFF
    b"\xf5\x80\x80\x80",
    b"\xc2",
    b"\xe2\x82",
    b"\xf0\x9f\x98",
    b"\x80",
    b"\xff",
    b"\xc2\x80",  # C1
    b"\xc2\x9f",
    b"\xc2\xa0",
    b"\x1f",
    b" ",
    b"\x7f",
    b"~",
    b"\x00",
    b"",
]


@pytest.mark.parametrize("data", ODD_UTF8)
def test_odd_utf8_is_a_name_if_python_decodes_it(c: Any, data: bytes) -> None:
    for around in (b"", b"a"):
        assert is_name(c, around + data + around) is is_name_by_python(around + data + around, 200)


@settings(deadline=None, max_examples=400)
@given(
    data=st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.binary(max_size=8)
)
def test_a_name_is_utf8_without_controls(c: Any, data: bytes) -> None:
    assert is_name(c, data) is is_name_by_python(data, 200)


def test_a_name_ends_at_its_limit(c: Any) -> None:
    assert is_name(c, b"x" * 200)
    assert not is_name(c, b"x" * 201)
    assert is_name(c, "é".encode() * 100)
    assert not is_name(c, b"x" + "é".encode() * 100)
    assert not is_name(c, b"x" * 161, 160)


# ---------------------------------------------------------------- times


def when(c: Any, text: str | bytes) -> tuple[str, int] | str:
    """Return ("ABS" | "REL", ms), or the name of the error."""
    lib = c.lib
    out = c.ffi.new("wd_when *", {"kind": -1, "ms": -1})
    spelled, _block = span(c, text.encode() if isinstance(text, str) else text)
    error = lib.wd_parse_when(spelled, out)
    if error == lib.WD_WHEN_OK:
        return ("REL" if out.kind == lib.WD_WHEN_REL else "ABS"), int(out.ms)
    assert (out.kind, out.ms) == (-1, -1), "written although refused"
    names = {
        lib.WD_WHEN_SYNTAX: "SYNTAX",
        lib.WD_WHEN_NAIVE: "NAIVE",
        lib.WD_WHEN_SECONDS: "SECONDS",
        lib.WD_WHEN_RANGE: "RANGE",
    }
    return names[error]


NINE_UTC_MS = 1_798_102_800_000  # 2026-12-24T09:00:00Z


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("now", ("REL", 0)),
        ("NOW", ("REL", 0)),
        ("+0", ("REL", 0)),
        ("+5", ("REL", 5)),
        ("+5ms", ("REL", 5)),
        ("+5s", ("REL", 5_000)),
        ("+5m", ("REL", 300_000)),
        ("+5h", ("REL", 18_000_000)),
        ("+5d", ("REL", 432_000_000)),
        ("+007s", ("REL", 7_000)),
        (f"+{DUE_MS_END - 1}", ("REL", DUE_MS_END - 1)),
        ("100000000000", ("ABS", 100_000_000_000)),
        (f"{NINE_UTC_MS}", ("ABS", NINE_UTC_MS)),
        (f"{DUE_MS_END - 1}", ("ABS", DUE_MS_END - 1)),
        ("2026-12-24T09:00:00Z", ("ABS", NINE_UTC_MS)),
        ("2026-12-24t09:00:00z", ("ABS", NINE_UTC_MS)),
        ("2026-12-24 09:00:00Z", ("ABS", NINE_UTC_MS)),
        ("2026-12-24T09:00Z", ("ABS", NINE_UTC_MS)),
        ("2026-12-24T10:00:00+01:00", ("ABS", NINE_UTC_MS)),
        ("2026-12-24T10:30:00+0130", ("ABS", NINE_UTC_MS)),
        ("2026-12-24T01:00:00-08", ("ABS", NINE_UTC_MS)),
        ("2026-12-25T08:59:00+23:59", ("ABS", NINE_UTC_MS)),
        ("2026-12-23T09:01:00-23:59", ("ABS", NINE_UTC_MS)),
        ("2026-12-24T09:00:00-00:00", ("ABS", NINE_UTC_MS)),
        ("2026-12-24T09:00:00.5Z", ("ABS", NINE_UTC_MS + 500)),
        ("2026-12-24T09:00:00,25Z", ("ABS", NINE_UTC_MS + 250)),
        ("2026-12-24T09:00:00.001Z", ("ABS", NINE_UTC_MS + 1)),
        ("2026-12-24T09:00:00.0010000Z", ("ABS", NINE_UTC_MS + 1)),
        ("2026-12-24T09:00:00.00100001Z", ("ABS", NINE_UTC_MS + 2)),
        ("2026-12-24T09:00:00.0000000001Z", ("ABS", NINE_UTC_MS + 1)),
        ("2026-12-24T08:59:59.9999Z", ("ABS", NINE_UTC_MS)),
        ("2024-02-29T00:00:00Z", ("ABS", 1_709_164_800_000)),
        ("2000-02-29T00:00:00Z", ("ABS", 951_782_400_000)),
        ("1970-01-01T00:00:00Z", ("ABS", 0)),
        ("1970-01-01T01:00:00+01:00", ("ABS", 0)),
        ("9999-12-31T23:59:59.9999-23:59", ("ABS", 253_402_387_140_000)),
        ("2026-12-24T09:00:00", "NAIVE"),
        ("2026-12-24 09:00", "NAIVE"),
        ("2026-12-24T09:00:00.5", "NAIVE"),
        ("2026-12-24", "NAIVE"),
        ("0", "SECONDS"),
        ("1798102800", "SECONDS"),
        ("99999999999", "SECONDS"),
        ("20261224", "SECONDS"),
        (f"{DUE_MS_END}", "RANGE"),
        ("9" * 40, "RANGE"),
        (f"+{DUE_MS_END}", "RANGE"),
        ("+" + "9" * 40 + "d", "RANGE"),
        ("+18446744073709551617ms", "RANGE"),
        ("+3257813d", "RANGE"),
        ("1969-12-31T23:59:59.999Z", "RANGE"),
        ("1970-01-01T00:59:59+01:00", "RANGE"),
        ("0000-01-01T00:00:00Z", "RANGE"),
        ("", "SYNTAX"),
        ("+", "SYNTAX"),
        ("+-5", "SYNTAX"),
        ("-5", "SYNTAX"),
        ("+5w", "SYNTAX"),
        ("+5M", "SYNTAX"),
        ("+5 s", "SYNTAX"),
        ("+5mss", "SYNTAX"),
        ("+s", "SYNTAX"),
        ("+1.5s", "SYNTAX"),
        ("+1h30m", "SYNTAX"),
        ("nowish", "SYNTAX"),
        ("tomorrow", "SYNTAX"),
        (" now", "SYNTAX"),
        ("1798102800000 ", "SYNTAX"),
        ("1798102800.5", "SYNTAX"),
        ("1e12", "SYNTAX"),
        ("2025-02-29T00:00:00Z", "SYNTAX"),
        ("1900-02-29T00:00:00Z", "SYNTAX"),
        ("2026-04-31T00:00:00Z", "SYNTAX"),
        ("2026-02-30", "SYNTAX"),
        ("2026-00-10T00:00:00Z", "SYNTAX"),
        ("2026-13-10T00:00:00Z", "SYNTAX"),
        ("2026-01-00T00:00:00Z", "SYNTAX"),
        ("2026-12-24T24:00:00Z", "SYNTAX"),
        ("2026-12-24T09:60:00Z", "SYNTAX"),
        ("2026-12-31T23:59:60Z", "SYNTAX"),
        ("2026-12-24T09:00:00.Z", "SYNTAX"),
        ("2026-12-24T09:00.5Z", "SYNTAX"),
        ("2026-12-24T09Z", "SYNTAX"),
        ("2026-12-24T", "SYNTAX"),
        ("2026-12-24Z", "SYNTAX"),
        ("2026-12-24  09:00:00Z", "SYNTAX"),
        ("2026-12-24_09:00:00Z", "SYNTAX"),
        ("2026-12-24T09:00:00 Z", "SYNTAX"),
        ("2026-12-24T09:00:00Zx", "SYNTAX"),
        ("2026-12-24T09:00:00+", "SYNTAX"),
        ("2026-12-24T09:00:00+1", "SYNTAX"),
        ("2026-12-24T09:00:00+24:00", "SYNTAX"),
        ("2026-12-24T09:00:00+01:60", "SYNTAX"),
        ("2026-12-24T09:00:00+01:", "SYNTAX"),
        ("2026-12-24T09:00:00+01:00:00", "SYNTAX"),
        ("2026-12-24T09:00:00+01:00[Europe/Berlin]", "SYNTAX"),
        ("2026-12-24T09:00:00 +01:00", "SYNTAX"),
        ("26-12-24T09:00:00Z", "SYNTAX"),
        ("2026-1-2T09:00:00Z", "SYNTAX"),
        ("12026-12-24T09:00:00Z", "SYNTAX"),
        ("+2026-12-24T09:00:00Z", "SYNTAX"),
        ("20261224T090000Z", "SYNTAX"),
        ("2026-W52-4T09:00:00Z", "SYNTAX"),
        (b"2026-12-24\x0009:00:00Z", "SYNTAX"),
        (b"2026-12-24T09:00:00\x00", "SYNTAX"),
        (b"now\x00", "SYNTAX"),
        ("２０２６-12-24T09:00:00Z", "SYNTAX"),  # noqa: RUF001  (digits, but not ASCII's)
    ],
)
def test_when(c: Any, text: str | bytes, meaning: tuple[str, int] | str) -> None:
    assert when(c, text) == meaning


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OFFSETS = st.integers(-(24 * 60 - 1), 24 * 60 - 1).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
)


def spelled_offset(moment: datetime, style: int) -> str:
    """Return the offset in one of its forms: +hh:mm, +hhmm, +hh or Z where they can say it."""
    colon = moment.isoformat()[-6:]
    if style == 1:
        return colon.replace(":", "")
    if style == 2 and colon.endswith(":00"):
        return colon[:3]
    return "Z" if style == 3 and colon == "+00:00" else colon


@settings(deadline=None, max_examples=1000)
@given(
    moment=st.datetimes(timezones=OFFSETS | st.just(UTC), allow_imaginary=False),
    digits=st.integers(0, 6),
    style=st.integers(0, 3),
    separator=st.sampled_from("T "),
)
def test_iso_times_mean_what_python_says_and_are_never_early(
    c: Any, moment: datetime, digits: int, style: int, separator: str
) -> None:
    step_us = 10 ** (6 - digits)
    moment = moment.replace(microsecond=moment.microsecond // step_us * step_us)
    fraction = f".{moment.microsecond:06}"[: digits + 1] if digits else ""
    local = moment.replace(tzinfo=None, microsecond=0).isoformat(sep=separator)
    us = (moment - EPOCH) // timedelta(microseconds=1)
    ms = -(-us // 1000)
    expected: tuple[str, int] | str = ("ABS", ms) if ms >= 0 else "RANGE"
    assert when(c, local + fraction + spelled_offset(moment, style)) == expected
    assert when(c, local + fraction) == "NAIVE"


@settings(deadline=None, max_examples=500)
@given(year=st.integers(0, 9999), month=st.integers(0, 14), day=st.integers(0, 33))
def test_only_dates_that_exist_are_taken(c: Any, year: int, month: int, day: int) -> None:
    try:
        datetime(year or 4, month, day, tzinfo=UTC)  # Python has no year 0, a leap year as 4 is
        exists = True
    except ValueError:
        exists = False
    assert when(c, f"{year:04}-{month:02}-{day:02}") == ("NAIVE" if exists else "SYNTAX")


@settings(deadline=None)
@given(count=st.integers(0, 1 << 70), unit=st.sampled_from(["", "ms", "s", "m", "h", "d"]))
@example(count=DUE_MS_END // 86_400_000, unit="d")
@example(count=DUE_MS_END // 86_400_000 + 1, unit="d")
@example(count=(DUE_MS_END - 1) // 1000, unit="s")
def test_relative_times_end_at_the_range(c: Any, count: int, unit: str) -> None:
    unit_ms = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[unit]
    ms = count * unit_ms
    assert when(c, f"+{count}{unit}") == (("REL", ms) if ms < DUE_MS_END else "RANGE")
