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
    ["now", "+5m", "1800000000000", "1799990000000", "2027-01-15T08:00Z", "2027-01-14", "7", "+1d"]
)
RULES = st.sampled_from(
    ["@hourly", "*/5 * * * *", "0 9 * * 1", "@every 7m", "@at 2027-01-15T09:00Z", "-", "61 * * * *",
     "H H L * *", "0 0 29 2 * ", "* * * * * *", "TZ=Asia/Tokyo 0 0 1W * *"]
)  # fmt: skip
DATES = st.sampled_from(["2027-01-15", "2027-01-14", "2027-01-15T08", "2027-01-15T08:00:00Z", "x"])
RUNS = st.builds("{}@{}{}".format, NAMES, st.sampled_from(
    ["2027-01-15T08:00:00Z", "2027-01-15T08:05:00Z", "x"]), st.sampled_from(["", "!1", "~1", "~"])
)  # fmt: skip
NUMBERS = st.sampled_from(["0", "1", "2", "5", "300000", "99999999999", "-1", "x"])
WORDS = st.sampled_from(
    [*SET_OPTIONS, *"WINDOW MAX NOTE FORCE AT ONCE COUNT CURSOR PREFIX FROM NAME REVERSE ACTIVE "
     "DOWNSTREAM succeeded failed skip queue_one queue_all allow cancel_running all latest "
     "all_done all_success day hour exact cron literal exp UTC Europe/Rome +1".split()]
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
COMMANDS = st.one_of(
    SETS,
    st.builds(lambda word, rest: [word, *rest], st.sampled_from(sorted(SUBCOMMANDS)),
              st.lists(ANY, max_size=6)),
    st.builds(lambda word, name, rest: [word, name, *rest], st.sampled_from(sorted(SUBCOMMANDS)),
              NAMES, st.lists(ANY, max_size=4)),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.tuples(COMMANDS, st.sampled_from([0, 0, 1_000, 300_000])), max_size=25))
def test_every_command_is_answered_or_refused_by_name(steps):
    world = World()
    for words, ms in steps:
        reply = world.raw("CRON", *(word.encode("utf-8", "replace") for word in words))
        if isinstance(reply, ReplyError):
            assert reply.code in CODES, (words, reply)
            assert reply.text.count(";") >= 1 or ":" in reply.text, (words, reply)
        world.advance(ms)
        for job in world.lease("h", count=3):
            world.ack([job])
    world.check()
