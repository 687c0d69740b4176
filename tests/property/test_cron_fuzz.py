"""Whatever is written behind CRON is answered or refused by name; nothing fails inside."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.cron_commands import SUBCOMMANDS
from server.cron_words import SET_OPTIONS
from tests.scheduled import World
from wheel.wire import ReplyError

CODES = {
    "CONFLICT", "CRON", "CYCLE", "EXISTS", "LIMIT", "NAIVE_TIME", "SYNTAX", "UNKNOWN",
    "UNKNOWN_COMMAND",
}  # fmt: skip
NAMES = st.sampled_from(["a", "b", "c", "é", "0"])
TIMES = st.sampled_from(
    ["now", "+5m", "1800000000000", "1799990000000", "2027-01-15T08:00Z", "2027-01-14", "7", "+1d",
     "1970-01-01T00:00Z", "1969-12-31T23:59Z", "2199-12-31T23:59:59.999Z", "2200-01-01T00:00Z",
     "9999-12-31T23:59:59Z", "253402300800000", "281474976710655", "+99999d"]
)  # fmt: skip
RULES = st.sampled_from(
    ["@hourly", "*/5 * * * *", "0 9 * * 1", "@every 7m", "@at 2027-01-15T09:00Z", "-", "61 * * * *",
     "H H L * *", "0 0 29 2 * ", "* * * * * *", "TZ=Asia/Tokyo 0 0 1W * *",
     "CRON_TZ=Pacific/Apia 0 9 * * *", "@at 2199-12-31T23:59:59-12:00", "@every 36500d"]
)  # fmt: skip
DATES = st.sampled_from(
    ["2027-01-15", "2027-01-14", "2027-01-15T08", "2027-01-15T08:00:00Z", "x", "2027-02-30",
     "2027-01-15T24", "2011-12-30", "2026-03-29T02", "1970-01-01", "1969-12-31", "0001-01-01",
     "2199-12-31", "2200-01-01", "9999-12-31T23:59:59Z", "2027-01-15T08:00:00.0005Z"]
)  # fmt: skip
RUNS = st.builds("{}@{}{}".format, NAMES, st.sampled_from(
    ["2027-01-15T08:00:00Z", "2027-01-15T08:05:00Z", "x", "0001-01-01T00:00:00Z",
     "1969-12-31T23:59:59Z", "2027-02-30T00:00:00Z", "9999-12-31T23:59:59Z"]),
    st.sampled_from(["", "!1", "~1", "~"])
)  # fmt: skip
NUMBERS = st.sampled_from(["0", "1", "2", "5", "300000", "99999999999", "-1", "x"])
WORDS = st.sampled_from(
    [*SET_OPTIONS, *"WINDOW MAX NOTE FORCE AT ONCE COUNT CURSOR PREFIX FROM NAME REVERSE ACTIVE "
     "DOWNSTREAM succeeded failed skip queue_one queue_all allow cancel_running all latest "
     "all_done all_success day hour exact cron literal exp UTC Europe/Rome Pacific/Apia +1".split()]
)  # fmt: skip
ANY = st.one_of(NAMES, TIMES, RULES, DATES, RUNS, NUMBERS, WORDS, st.text(max_size=5))
SETS = st.builds(
    lambda name, rule, more: ["SET", name, rule, "h", "{}", *more],
    NAMES,
    RULES,
    st.lists(st.tuples(st.sampled_from(sorted(SET_OPTIONS)), ANY), max_size=3).map(
        lambda pairs: [word for pair in pairs for word in pair]
    ),
)
FITTING = st.one_of(
    st.tuples(st.just("RERUN"), NAMES, DATES, st.sampled_from(["DOWNSTREAM", "ONCE"])),
    st.tuples(st.just("RERUN"), NAMES, DATES),
    st.tuples(st.just("RUNS"), NAMES, st.just("DATE"), DATES),
    st.tuples(st.just("MARK"), RUNS, st.sampled_from(["succeeded", "failed"])),
    st.tuples(st.just("TRIGGER"), NAMES, st.just("AT"), TIMES),
    st.tuples(st.just("BACKFILL"), NAMES, TIMES, TIMES),
    st.tuples(st.just("EXPLAIN"), RULES, st.just("FROM"), TIMES),
    st.tuples(st.just("SET"), NAMES, RULES, st.just("h"), st.just("{}"),
              st.sampled_from(["START", "END"]), TIMES),
    st.tuples(st.just("SET"), NAMES, st.just("-"), st.just("h"), st.just("{}"), st.just("AFTER"),
              st.just("1"), NAMES, st.just("DATE"), st.sampled_from(["day", "hour", "exact"])),
)  # fmt: skip
COMMANDS = st.one_of(
    SETS,
    FITTING,
    FITTING,
    st.builds(lambda word, rest: [word, *rest], st.sampled_from(sorted(SUBCOMMANDS)),
              st.lists(ANY, max_size=6)),
    st.builds(lambda word, name, rest: [word, name, *rest], st.sampled_from(sorted(SUBCOMMANDS)),
              NAMES, st.lists(ANY, max_size=4)),
)  # fmt: skip


BEGIN = [
    ["SET", "a", "0 9 * * *", "h", "{}", "TZ", "Pacific/Apia"],
    ["SET", "b", "-", "h", "{}", "AFTER", "1", "a", "TZ", "Europe/Rome", "DATE", "hour"],
    ["SET", "c", "@every 7m", "h", "{}"],
]


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.tuples(COMMANDS, st.sampled_from([0, 0, 1_000, 300_000])), max_size=25))
def test_every_command_is_answered_or_refused_by_name(steps):
    world = World()
    for line in BEGIN:
        assert not isinstance(world.raw("CRON", *line), ReplyError)
    for words, ms in steps:
        reply = world.raw("CRON", *(word.encode("utf-8", "replace") for word in words))
        if isinstance(reply, ReplyError):
            assert reply.code in CODES, (words, reply)
            assert reply.text.count(";") >= 1 or ":" in reply.text, (words, reply)
        world.advance(ms)
        for job in world.lease("h", count=3):
            world.ack([job])
    world.check()
