"""CRON SET's words: what the client writes the server reads, and every refusal is of use."""

from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.answers import RefusedError
from server.cron_show import definition_of, schedule_map
from server.cron_words import Retrying, Spec, read_spec
from server.words import Moment, Words
from tests.fed import Bench
from wheel.definitions import (
    AFTER_RULES,
    CATCH_UPS,
    DATE_MODES,
    DST_RULES,
    OVERLAPS,
    CronOptions,
    Definition,
)
from wheel.errors import InvalidRequest, LimitError, NaiveDatetimeError, PayloadTooLarge
from wheel.values import backoff

PAYLOAD_MAX = 65_536
NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=[chr(c) for c in range(0xA0)])
    | st.sampled_from("abc 日本é\"'🎉"),
    min_size=1,
    max_size=30,
)
SPANS = st.integers(0, 86_400_000).map(lambda ms: timedelta(milliseconds=ms))
MOMENTS = st.integers(1_000_000_000_000, 4_000_000_000_000)


def read(words: list[object]) -> Spec:
    """Return what the server makes of a command that the client wrote."""
    data = [str(word).encode() if isinstance(word, str | int) else word for word in words]
    assert data[:2] == [b"CRON", b"SET"]
    return read_spec(Words("CRON SET", data[2:]), PAYLOAD_MAX)


def wire(line: str) -> Spec:
    return read_spec(Words("CRON SET", line.encode().split(b" ")), PAYLOAD_MAX)


@given(
    name=NAMES.filter(lambda name: len(name.encode()) <= 160),
    payload=st.binary(max_size=50),
    tz=st.none() | st.sampled_from(["UTC", "Europe/Rome"]),
    jitter=st.none() | SPANS,
    overlap=st.none() | st.sampled_from(OVERLAPS),
    catch_up=st.none() | st.sampled_from(CATCH_UPS),
    limits=st.none() | st.tuples(SPANS.filter(bool), st.integers(1, 100_000)),
    after=st.lists(NAMES, max_size=3, unique=True),
    words=st.tuples(
        st.none() | st.sampled_from(AFTER_RULES),
        st.none() | st.sampled_from(DATE_MODES),
        st.none() | st.sampled_from(DST_RULES),
    ),
    bounds=st.tuples(st.none() | MOMENTS, st.none() | MOMENTS, st.none() | st.integers(1, 9)),
    job=st.tuples(
        st.none() | st.integers(0, 255),
        st.none() | st.integers(0, 1000),
        st.none() | SPANS,
        st.none() | st.integers(1, 86_400_000),
        st.none() | st.binary(min_size=1, max_size=20),
    ),
)
def test_what_the_client_writes_the_server_reads(
    name, payload, tz, jitter, overlap, catch_up, limits, after, words, bounds, job
):
    after_rule, date, dst = words
    start, end, max_runs = bounds
    priority, retries, timeout, expire_ms, meta = job
    after = [up for up in after if up != name]
    options: CronOptions = {
        "tz": tz, "jitter": jitter, "overlap": overlap, "catch_up": catch_up, "after": after,
        "after_rule": after_rule, "date": date, "dst": dst, "max_runs": max_runs,
        "start": None if start is None else datetime.fromtimestamp(start / 1000, tz=UTC),
        "end": None if end is None else datetime.fromtimestamp(end / 1000, tz=UTC),
        "priority": priority, "retries": retries, "timeout": timeout, "meta": meta,
        "expire": None if expire_ms is None else timedelta(milliseconds=expire_ms),
    }  # fmt: skip
    if catch_up is not None and limits is not None:
        options["catch_up_window"], options["catch_up_max"] = limits
    definition = Definition(
        name=name, rule="0 9 * * 1", handler="h", payload=payload, options=options
    )
    spec = read(definition.words())
    ms = timedelta(milliseconds=1)
    assert (spec.name, spec.rule, spec.handler, spec.payload) == (name, "0 9 * * 1", "h", payload)
    assert (spec.tz, spec.overlap, spec.catch_up) == (
        tz or "UTC",
        overlap or "skip",
        catch_up or "latest",
    )
    assert spec.jitter_ms == (jitter or timedelta()) // ms
    if catch_up is not None and limits is not None:
        assert (spec.window_ms, spec.catch_up_max) == (limits[0] // ms, limits[1])
    assert (spec.after, spec.after_rule) == (tuple(after), after_rule or "all_success")
    assert (spec.date, spec.dst, spec.max_runs) == (date or "day", dst or "cron", max_runs)
    assert spec.start == (None if start is None else Moment(ms=start, from_now=False))
    assert spec.end == (None if end is None else Moment(ms=end, from_now=False))
    assert (spec.priority, spec.retries) == (128 if priority is None else priority, retries)
    assert spec.timeout_ms == (None if timeout is None else timeout // ms)
    assert (spec.expire_ms, spec.meta) == (expire_ms, meta or b"")


def test_a_backoff_and_the_rest_of_the_job_options_arrive():
    definition = Definition(
        name="n",
        rule="@daily",
        handler="h",
        options={
            "backoff": backoff("30s", "linear", max="1h"),
            "lost": 5,
            "lease": "10s",
            "group": "g",
            "dag": "d",
            "if_version": 0,
        },
    )
    spec = read(definition.words(dry=True))
    assert spec.backoff == Retrying(kind="linear", base_ms=30_000, max_ms=3_600_000)
    assert (spec.lost, spec.lease_ms, spec.group, spec.dag) == (5, 10_000, "g", "d")
    assert (spec.if_version, spec.dry) == (0, True)
    assert read(Definition(name="n", rule="@daily", handler="h").words()).dry is False


def test_a_backoff_without_a_cap_is_capped_at_an_hour_or_at_its_base():
    for base_ms, max_ms in ((1_000, 3_600_000), (7_200_000, 7_200_000)):
        spec = wire(f"n @daily h {{}} BACKOFF fixed {base_ms}")
        assert spec.backoff == Retrying(kind="fixed", base_ms=base_ms, max_ms=max_ms)


def test_a_name_that_is_waited_for_twice_is_sent_once():
    definition = Definition(name="n", rule="-", handler="h", options={"after": ["a", "b", "a"]})
    assert read(definition.words()).after == ("a", "b")


def test_every_option_is_read_whatever_its_case_and_order():
    spec = wire(
        "n @daily h {} group g TIMEOUT 0 after 2 a b catchup all max 5 window 9 Dst literal"
    )
    assert (spec.group, spec.timeout_ms, spec.after, spec.dst) == ("g", 0, ("a", "b"), "literal")
    assert (spec.catch_up, spec.catch_up_max, spec.window_ms) == ("all", 5, 9)


def test_a_rule_may_be_written_with_tabs_and_a_name_may_not():
    """Whoever copies a line of a crontab brings tabs along."""
    rule = "0\t0  1   *  *"
    assert read(Definition(name="n", rule=rule, handler="h").words()).rule == rule
    with pytest.raises(RefusedError, match=r"U\+000A"):
        read_spec(Words("CRON SET", [b"n", b"0 0 1 *\n*", b"h", b"{}"]), PAYLOAD_MAX)
    with pytest.raises(RefusedError, match=r"U\+0009"):
        read_spec(Words("CRON SET", [b"a\tb", b"@daily", b"h", b"{}"]), PAYLOAD_MAX)


REFUSED = [
    ("", "SYNTAX", "needs schedule", "it is not there"),
    ("n", "SYNTAX", "needs rule", "it is not there"),
    ("n @daily", "SYNTAX", "needs handler", "it is not there"),
    ("n @daily h", "SYNTAX", "needs payload", "it is not there"),
    ("n @daily a,b {}", "SYNTAX", 'handler "a,b"', "leave them out"),
    ("n @daily h {} OVERLAPS skip", "SYNTAX", 'option "OVERLAPS"', "do you mean OVERLAP?"),
    ("n @daily h {} zzzz", "SYNTAX", 'option "zzzz"', "it takes TZ JITTER"),
    ("n @daily h {} TZ UTC TZ UTC", "SYNTAX", "option TZ", "given twice"),
    ("n @daily h {} TZ", "SYNTAX", "needs TZ", "it is not there"),
    ("n @daily h {} JITTER 5m", "SYNTAX", 'JITTER "5m"', "write digits only"),
    ("n @daily h {} JITTER 86400001", "LIMIT", "JITTER 86400001", "0..86400000"),
    ("n @daily h {} OVERLAP queue", "SYNTAX", 'OVERLAP "queue"', "queue_one"),
    ("n @daily h {} CATCHUP some", "SYNTAX", 'CATCHUP "some"', "latest, all, skip"),
    ("n @daily h {} CATCHUP all MAX 0", "LIMIT", "MAX 0", "1..100000"),
    ("n @daily h {} CATCHUP all WINDOW 1 WINDOW 2", "SYNTAX", "option WINDOW", "given twice"),
    ("n @daily h {} WINDOW 5", "SYNTAX", 'option "WINDOW"', "it takes"),
    ("n @daily h {} AFTER 0", "LIMIT", "AFTER 0", "1..256"),
    ("n @daily h {} AFTER 2 a", "SYNTAX", "upstream 2 of 2", "it is not there"),
    ("n @daily h {} AFTER 2 a a", "SYNTAX", 'names "a" twice', "each once"),
    ("n @daily h {} DATE week", "SYNTAX", 'DATE "week"', "day, hour, exact"),
    ("n @daily h {} START 2027-01-15", "NAIVE_TIME", 'START "2027-01-15"', "2027-01-15T00:00Z"),
    ("n @daily h {} END 2027-01-15T08:00", "NAIVE_TIME", "no time zone", "T08:00+01:00"),
    ("n @daily h {} END 1800000000", "SYNTAX", "END 1800000000", "looks like seconds"),
    ("n @daily h {} END tomorrow", "SYNTAX", 'END "tomorrow"', "write now, +30s"),
    ("n @daily h {} END 999999999999999", "LIMIT", "END", "1970 to 10889"),
    ("n @daily h {} MAXRUNS 0", "LIMIT", "MAXRUNS 0", "1.."),
    ("n @daily h {} DST vixie", "SYNTAX", 'DST "vixie"', "cron, literal"),
    ("n @daily h {} PRIORITY 256", "LIMIT", "PRIORITY 256", "0..255"),
    ("n @daily h {} RETRIES 1001", "LIMIT", "RETRIES 1001", "0..1000"),
    ("n @daily h {} BACKOFF exp", "SYNTAX", "BACKOFF base", "it is not there"),
    ("n @daily h {} BACKOFF exp 9 8", "LIMIT", "BACKOFF max 8", "9.."),
    ("n @daily h {} LEASE 0", "LIMIT", "LEASE 0", "1.."),
    ("n @daily h {} EXPIRE 2027-01-15T08:00Z", "SYNTAX", "EXPIRE", "such as +2h"),
    ("n @daily h {} EXPIRE now", "SYNTAX", 'EXPIRE "now"', "such as +2h"),
    ("n @daily h {} EXPIRE +0", "LIMIT", "EXPIRE +0", "+30d"),
    ("n - h {}", "SYNTAX", 'rule "-"', "AFTER n name"),
]


@pytest.mark.parametrize(("line", "code", "value", "correction"), REFUSED)
def test_a_refusal_names_the_field_the_value_and_what_to_write(line, code, value, correction):
    words = Words("CRON SET", line.encode().split(b" ") if line else [])
    with pytest.raises(RefusedError) as refused:
        read_spec(words, PAYLOAD_MAX)
    assert refused.value.code == code
    assert value in str(refused.value)
    assert correction in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ([b"a\x00b", b"@daily", b"h", b"{}"], "SYNTAX", "U+0000 at character 1"),
        ([b"a\xc2\x85", b"@daily", b"h", b"{}"], "SYNTAX", "U+0085"),
        ([b"\xff", b"@daily", b"h", b"{}"], "SYNTAX", "no UTF-8 at byte 0"),
        ([b"", b"@daily", b"h", b"{}"], "LIMIT", "0 bytes, not 1..160"),
        (["日".encode() * 54, b"@daily", b"h", b"{}"], "LIMIT", "162 bytes, not 1..160"),
        ([b"n", b"x" * 257, b"h", b"{}"], "LIMIT", "257 bytes, not 1..256"),
        ([b"n", b"@daily", b" h", b"{}"], "SYNTAX", "a blank at an end"),
        ([b"n", b"@daily", b"h ", b"{}"], "SYNTAX", "a blank at an end"),
        ([b"n", b"@daily", b"h", b"x" * 65_537], "LIMIT", "65537 bytes, the limit is 65536"),
        ([b"n", b"@daily", b"h", b"{}", b"META", b"x" * 1025], "LIMIT", "META has 1025 bytes"),
    ],
)
def test_bytes_that_are_no_name_are_refused(arguments, code, value):
    with pytest.raises(RefusedError) as refused:
        read_spec(Words("CRON SET", arguments), PAYLOAD_MAX)
    assert (refused.value.code, value in str(refused.value)) == (code, True)


@pytest.mark.parametrize(
    ("definition", "kind", "words"),
    [
        ({"name": "a\0b"}, InvalidRequest, "control character"),
        ({"name": "\x85"}, InvalidRequest, "control character"),
        ({"name": "x" * 161}, LimitError, "161 bytes; 1 to 160"),
        ({"name": "\ud800"}, InvalidRequest, "UTF-8"),
        ({"rule": ""}, LimitError, "0 bytes"),
        ({"rule": "-"}, InvalidRequest, "nothing to wait for"),
        ({"handler": "a*"}, InvalidRequest, "no ',' or '*'"),
        ({"payload": b"x" * 65_537}, PayloadTooLarge, "65537 bytes"),
        ({"options": {"overlap": "queue"}}, InvalidRequest, "queue_one"),
        ({"options": {"jitter": "5 minutes"}}, InvalidRequest, "not a duration"),
        ({"options": {"start": "2027-01-01T00:00"}}, NaiveDatetimeError, "no time zone"),
        ({"options": {"catch_up_max": 3}}, InvalidRequest, "catch_up='all'"),
        ({"options": {"max_runs": 0}}, InvalidRequest, "from 1 on"),
        ({"options": {"after": ["n"]}}, InvalidRequest, "wait for itself"),
        ({"options": {"expire": "tomorrow"}}, InvalidRequest, "not a duration"),
        ({"options": {"tz": 3}}, InvalidRequest, "not a text"),
    ],
)
def test_the_client_refuses_by_itself_what_needs_no_calendar(definition, kind, words):
    whole = {"name": "n", "rule": "@daily", "handler": "h", **definition}
    with pytest.raises(kind, match=words.replace("*", r"\*")) as refused:
        Definition(**whole).words()
    assert any("schedule" in note for note in refused.value.__notes__)


def test_an_option_that_there_is_not_is_named():
    with pytest.raises(TypeError, match=r"no option 'zone'; there are .*tz"):
        Definition(name="n", rule="@daily", handler="h", options={"zone": "UTC"}).words()


def test_the_core_tells_who_is_served():
    """By LEASE, one that is parked or a pattern included, or by defaults that were set."""
    bench = Bench()
    conn, other = bench.open(), bench.open()
    conn.ask("LEASE a")
    conn.ask("HANDLER b RETRIES 1")
    other.feed(b"LEASE c*,d WAIT 1000\r\n")
    served = {name for name in (b"a", b"b", b"c1", b"d", b"e", b"") if bench.core.served(name)}
    assert served == {b"b", b"c1", b"d"}
    conn.ask("SCHEDULE a now x")
    conn.ask("LEASE a")
    assert bench.core.served(b"a")


def test_a_definition_is_shown_as_it_was_said():
    """Every option that CRON SET takes stands in CRON GET's map."""
    spec = wire(
        "n @hourly h pay TZ Europe/Rome JITTER 1 OVERLAP allow CATCHUP all WINDOW 2 MAX 3 "
        "AFTER 1 a AFTERRULE all_done DATE exact DAG d START 1800000000000 END +5s MAXRUNS 4 "
        "DST literal PRIORITY 5 RETRIES 6 LOST 7 BACKOFF linear 8 9 LEASE 10 TIMEOUT 0 "
        "EXPIRE +11 META m GROUP g"
    )
    assert defined(spec) == {
        "name": "n",
        "rule": "@hourly", "tz": "Europe/Rome", "dst": "literal", "handler": "h", "payload": b"pay",
        "jitter_ms": 1, "overlap": "allow", "catch_up": "all", "window_ms": 2, "catch_up_max": 3,
        "after": ["a"], "after_rule": "all_done", "date": "exact", "dag": "d",
        "start_ms": 1_800_000_000_000, "end_ms": 1_800_000_005_000, "max_runs": 4, "priority": 5,
        "retries": 6, "lost_max": 7, "backoff": "linear", "backoff_base_ms": 8, "backoff_max_ms": 9,
        "lease_ms": 10, "timeout_ms": 0, "expire_ms": 11, "meta": b"m", "group": "g",
    }  # fmt: skip


def defined(spec):
    """Return what CRON GET shows of a definition, without what became of it."""
    row = Mock(definition=definition_of(spec, 1_800_000_000_000))
    return {
        name: value
        for name, value in schedule_map(row).items()
        if not isinstance(value, Mock) and name != "served"
    }


def test_what_was_not_said_is_shown_as_nil_or_as_the_default_that_holds():
    shown = defined(wire("n @hourly h {}"))
    assert (shown["tz"], shown["overlap"], shown["catch_up"]) == ("UTC", "skip", "latest")
    nil = {name for name, value in shown.items() if value is None}
    assert nil == {
        "window_ms", "dag", "start_ms", "end_ms", "max_runs", "retries", "lost_max", "backoff",
        "backoff_base_ms", "backoff_max_ms", "lease_ms", "timeout_ms", "expire_ms", "meta", "group",
    }  # fmt: skip
