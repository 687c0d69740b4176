"""Any allocation, and any submission, may fail under any CRON command and the turns behind it.

What C keeps of a command for Python is in tests/unit/test_memory_runs_out.py, the other commands
too. Here the scheduler meets it: a command is refused whole, with OOM or DISKFULL, or done whole;
said again it does what it would have done; and a turn that was refused is made up for within two
seconds.
"""

from contextlib import contextmanager, suppress

import pytest
from _wheeld import lib

from server.cron_commands import SUBCOMMANDS
from tests.allocations import until_nothing_fails
from tests.asking import replies
from tests.scheduled import Scheduling, World, plain
from wheel.errors import CoreDiskError, CoreMemoryError

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
BEFORE = ("2027-01-14T00:00:00Z", "2027-01-14T05:00:00Z")  # the clock begins a day later at 08:00
LONG = "n" * 900
# Schedule: its first words. The second and third wait for the first.
SCHEDULES = {
    "up": ["0 * * * *", "u", "{}", "OVERLAP", "allow"],
    "down": ["-", "d", "{}", "AFTER", "1", "up", "OVERLAP", "allow"],
    "later": ["0 10 * * *", "l", "{}", "AFTER", "1", "up"],
    "off": ["*/10 * * * *", "o", "{}", "CATCHUP", "all", "OVERLAP", "allow"],
    "busy": ["*/30 * * * *", "b", "{}", "OVERLAP", "queue_all"],
}
COMMANDS = [
    ["SET", "new", "0 9 * * *", "fresh", "{}"],
    ["SET", "new", "-", "d", "{}", "AFTER", "2", "up", "busy", "PRIORITY", "3", "DAG", "g"],
    ["SET", "up", "30 * * * *", "u", "x" * 5_000, "OVERLAP", "skip"],
    ["SET", "busy", "0 0 1 1 *", "b", "{}"],
    ["SET", "busy", *SCHEDULES["busy"], "JITTER", "5000"],
    ["SET", "up", *SCHEDULES["up"]],
    ["SET", "up", *SCHEDULES["up"], "DRY"],
    ["GET", "up"],
    ["DEL", "busy"],
    ["DEL", "up", "FORCE"],
    ["PAUSE", "up", "NOTE", LONG],
    ["PAUSE", "off"],
    ["RESUME", "off"],
    ["RESUME", "up"],
    ["TRIGGER", "up"],
    ["TRIGGER", "busy", "FORCE", "ONCE", "token"],
    ["TRIGGER", "busy", "AT", "+1h", "ONCE", "token"],
    ["LIST"],
    ["NEXT", "up"],
    ["EXPLAIN", "0 9 * * *"],
    ["BACKFILL", "up", *BEFORE, "ACTIVE", "3", "ONCE", "token"],
    ["BACKFILL", "up", *BEFORE, "REVERSE"],
    ["BACKFILL", "up", *BEFORE, "DRY"],
    ["RERUN", "up", "2027-01-15", "DOWNSTREAM", "ONCE", "token"],
    ["RERUN", "later", "2027-01-15"],
    ["MARK", "up@2027-01-15T09:00:00Z", "failed", "NOTE", LONG],
    ["MARK", "later@2027-01-15T10:00:00Z", "succeeded"],
    ["RUNS", "up"],
]
# Times at which something was done, not those that it was for: a turn may be two seconds late.
WHEN = {"changed_ms", "created_ms", "started_ms", "ended_ms", "last_success_ms"}


def prepared():
    """Return schedules with runs of every kind, two hours and a half after they were made."""
    world = World()
    for name, words in SCHEDULES.items():
        world.cron("SET", name, *words)
    world.cron("PAUSE off")
    world.advance(HOUR_MS, by=10 * MINUTE_MS)
    world.ack(world.lease("u"))
    world.advance(HOUR_MS, by=10 * MINUTE_MS)
    world.advance(30 * MINUTE_MS, by=10 * MINUTE_MS)
    return world


def view(world):
    """Return all that can be asked of the schedules, but when it was done."""
    found = {}
    for name in world.names():
        row = world.get(name)
        runs = [{key: run[key] for key in run.keys() - WHEN} for run in world.runs(name)]
        found[name] = ({key: row[key] for key in row.keys() - WHEN}, runs)
    found["jobs"] = [world.ask("COUNT", "STATE", word) for word in ("scheduled", "ready", "held")]
    return found


def answer(world, words):
    """Return the reply to CRON as the server answers it, without a connection."""
    data = [b"CRON", *(word.encode() for word in words)]
    [reply] = replies(world.scheduling.answer(data))
    return plain(reply)


def turn(scheduling: Scheduling):
    with suppress(CoreMemoryError):  # the server logs it, and takes another in a second
        scheduling.turn()


def after(world):
    """Let what was refused be tried again."""
    world.advance(1_500)
    world.advance(1_500)
    world.check()
    return view(world)


def test_every_subcommand_is_tried():
    assert {words[0] for words in COMMANDS} == set(SUBCOMMANDS)


@contextmanager
def nth_allocation(_world, n, met):
    """Let the n-th allocation of the core fail; say whether it was met."""
    lib.wd_alloc_fail_at(n)
    try:
        yield
    finally:
        met.append(lib.wd_alloc_fail_at(0) >= n)


def nth_submission(error):
    """Let the n-th submission be refused, as when the arena, or the disk, has no room."""

    @contextmanager
    def failing(world, n, met):
        core, count = world.bench.core, 0
        submit = core.submit

        def refused(ops):
            nonlocal count
            count += 1
            if count == n:
                raise error("no room")
            return submit(ops)

        core.submit = refused
        try:
            yield
        finally:
            del core.submit
            met.append(count >= n)

    return failing


FAILING = {
    "allocation": nth_allocation,
    "submission, no memory": nth_submission(CoreMemoryError),
    "submission, no disk": nth_submission(CoreDiskError),
}
CHANGING = {"SET", "DEL", "PAUSE", "RESUME", "TRIGGER", "BACKFILL", "RERUN", "MARK"}


@pytest.mark.parametrize("how", FAILING)
@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(words)[:40] for words in COMMANDS])
def test_a_cron_command_that_meets_no_memory_is_refused_whole_or_done_whole(words, how):
    world = prepared()
    before, lsn = view(world), world.bench.core.lsn()
    said = answer(world, words)
    assert not str(said).startswith(("OOM", "DISKFULL"))
    changes = world.bench.core.lsn() != lsn
    world.settle()
    expected = after(world)
    world.bench.core.close()

    def attempt(n):
        world, met = prepared(), []
        with FAILING[how](world, n, met):
            reply = answer(world, words)
            for _ in range(4):
                turn(world.scheduling)
        world.check()
        if str(reply).startswith(("OOM", "DISKFULL")):
            assert view(world) == before, f"failure {n}"
            reply = answer(world, words)
        assert reply == said, f"failure {n}"
        world.settle()
        assert after(world) == expected, f"failure {n}"
        world.bench.core.close()
        return met == [True]

    failures = until_nothing_fails(attempt)
    if how != "allocation":  # the core may have room for small ones
        assert failures >= changes
    assert not changes or words[0] in CHANGING
