"""The walk over the invariants notices each kind of break, and names it."""

import re

import pytest

from tests import narrow
from wheel.engine.records import Flag, Kind, Record, encode

LIMITS = {"ended_max": narrow.MOST, "once_max": narrow.MOST, "jobs_max": 5000}
SCENE = [
    "SCHEDULE h +1h x KEY first",
    "SCHEDULE h +1h x KEY second ONCE t1",
    "SCHEDULE h now x KEY again",
    "LEASE h",
    "RELEASE {0} IN 3600000",
    "SCHEDULE h now x KEY leased",
    "LEASE h",
    "SCHEDULE h now x KEY dead ONCE t2",
    "LEASE h",
    "FAIL {2} DEAD",
    "SCHEDULE i now x KEY ready EXPIRE +1h",
    "SCHEDULE i now x EXPIRE +2h",
    "SCHEDULE i 1799999000001 x",
    "SCHEDULE i 1799999000002 x",
    "SCHEDULE i now x PRIORITY 3",
    "SCHEDULE h +1h x KEY gone1",
    "SCHEDULE h +1h x KEY gone2",
    "CANCEL gone1 gone2",
]
# Which invariant of csrc/wd_check.c each break breaks.
BROKEN = {
    1: "a count of the engine|a count of a handler",
    2: "a state that is none|a scheduled row in no wheel|a ready row in a wheel"
    "|a row newer than the log|a scheduled row in a heap|a row of no handler|a row of no policy",
    3: "a relative row in the other wheel|a leased row in no wheel|a wall wheel that is broken",
    4: "more in a queue than rows|a handler with work that is not working|work of another handler"
    "|more with work than there are|another priority than its queue's"
    "|a queue that leads elsewhere|a queued row that says it is in the heap"
    "|a row of the heap that says it is queued|a row of the heap that names another place"
    "|a heap out of order|two queues of one priority|a queue whose end is not its last"
    "|a handler that counts one less",
    5: "a key in no index|an index without a key|a dead row with a live key|a key twice"
    "|a key index with an item more|a dead key that is in no index",
    6: "a row without a generation|a free row that is used up"
    "|a free list that leads to a row in use",
    7: "a side block of another row|a run of nobody|a side block of nobody",
    8: "a block of nobody",
    9: "leased: one more|leased: one less|leased: a way back that leads elsewhere|leased: no end"
    "|leased: a row that is not|leased: the engine counts another number|dead: no end"
    "|dead: never died|dead: in a time to come",
    10: "an unowned row among the ended|a ready row that is not expiring"
    "|a row that expires never, expiring|a scheduled row, expiring|ended: one that is not"
    "|ended: one less|ended: one more|ended: never|ended: in a time to come"
    "|ended: one that is on no list|expiring: one more"
    "|expiring: a way back that leads elsewhere|expiring: none",
    11: "ended ring: out of order|tokens: out of order",
    12: "a lease that is not live|a lease without a run"
    "|a live fence of a job that is not leased|a grant newer than the log"
    "|a grant of a term to come",
    14: "a gap between queued batches|a gap before the open batch|a gap behind the open batch",
    15: "a payload that changed|a checksum that changed",
}
# And of csrc/wd_wheel.c, all of them 3 of the engine's.
BROKEN_WHEEL = {
    1: "a cell of a row that cannot be|a row that names another cell"
    "|a chunk that uses more than its cells|a chunk that counts one more|a chunk of no timer"
    "|a wheel that counts one more|two thin neighbours at the end, which may be, and lost timers",
    2: "a timer due beyond its level|a timer due in the next bucket"
    "|a now that has come to a bucket, and nothing cascades",
    5: "a bit of an empty bucket|a bit of an empty level",
    6: "a now behind the end of time|a cascade of no level|a cascade in the middle of its bucket"
    "|a cascade of an empty bucket",
    7: "a thin head and the one behind it|two thin neighbours",
    8: "a link to a chunk that was not made|a way back that leads elsewhere"
    "|a chunk of another bucket|an end that is not the last|more chunks than there is room for"
    "|a free list that leads out|a free list in a circle|a free chunk that is not on the list"
    "|a chunk in use that is in no bucket|a chunk in use that is free as well",
}
CROWD = 300  # timers of one due time: five chunks


def cases(breaks):
    """Return (number, break) of a table."""
    return [(number, what) for number, names in breaks.items() for what in names.split("|")]


CASES, WHEEL_CASES = cases(BROKEN), cases(BROKEN_WHEEL)


def scene():
    """Return a bench over the small core with rows in every state and two of most things."""
    bench = narrow.fed().Bench(**LIMITS)
    conn = bench.open()
    receipts = []
    for line in SCENE:
        reply = conn.ask(line.format(*receipts))
        assert not reply.startswith(b"-"), (line, reply)
        if line.startswith("LEASE"):
            receipts.append(reply.split(b"\r\n")[3].decode())
    owned = {"name": b"h", "due_ms": 0, "flags": Flag.HELD, "priority": 1, "owner": b"o"}
    jobs = bench.core.submit(encode(Record(kind=Kind.CREATED, **owned)) * 3)
    for job in jobs[1:]:
        bench.core.submit(encode(Record(kind=Kind.MARKED, id=job)))
    conn.ask("SCHEDULE h +1h x KEY free")
    conn.ask("CANCEL free")
    bench.settle()
    return bench


def broken(bench, what):
    lib = narrow.library()
    assert lib.lib.wd_break(lib.ffi.cast("wd_core *", bench.core._core), what.encode()) == 1


def wheel_says(bench):
    """Return which of its own invariants the wheel of relative times finds broken."""
    lib = narrow.library()
    return lib.lib.wd_break_says(lib.ffi.cast("wd_core *", bench.core._core))


@pytest.mark.parametrize(("number", "what"), CASES)
def test_a_break_is_noticed_and_named(number, what):
    bench = scene()
    if number == 14:
        for _ in range(2):
            bench.open().feed(b"SCHEDULE h +1h x\r\n")
            broken(bench, "")
        bench.open().feed(b"SCHEDULE h +1h x\r\n")
    assert bench.core.check() == 0
    broken(bench, what)
    assert bench.core.check() == number


@pytest.mark.parametrize(("number", "what"), WHEEL_CASES)
def test_a_break_of_a_wheel_is_noticed_and_named(number, what):
    bench = scene()
    bench.open().feed(b"SCHEDULE h +1h x\r\n" * CROWD)
    bench.settle()
    assert wheel_says(bench) == bench.core.check() == 0
    broken(bench, what)
    assert wheel_says(bench) == number
    assert bench.core.check() == 3


def test_every_break_is_tried():
    text = "".join(path.read_text() for path in narrow.BREAKS)
    tried = {what for _number, what in CASES + WHEEL_CASES}
    assert set(re.findall(r'IS\("([^"]+)"\)', text)) == tried
    assert numbers_in("wd_check.c") - set(BROKEN) == {13}, "its parts check themselves"
    assert numbers_in("wd_wheel.c") - set(BROKEN_WHEEL) == {3, 4}, "no walk can see them"


def numbers_in(file):
    """Return the numbers of the invariants in a file's heading."""
    heading = (narrow.CSRC / file).read_text().partition("*/")[0]
    return {int(n) for n in re.findall(r"^ \* +(\d+)\. ", heading, re.MULTILINE)}
