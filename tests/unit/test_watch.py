"""What the server says about itself without being asked."""

from dataclasses import replace

import pytest

from server.watch import QUIET_NS, Seen, Watch
from tests.fakes import Lines, StandingClock


class Watched:
    def __init__(self):
        self.now = Seen()
        self.clock = StandingClock()
        self.lines = Lines()
        self.watch = Watch(self, clock=self.clock, logger=self.lines.logger, memory_bytes_max=1000)

    def seen(self):
        return self.now

    def look(self, **changes):
        self.now = replace(self.now, **changes)
        self.watch.look()
        return self.lines.events


@pytest.fixture
def watched():
    return Watched()


def test_server_in_good_order_says_nothing(watched):
    assert watched.look() == []
    assert watched.look(memory_bytes=500, held_ms=-3) == []


@pytest.mark.parametrize(
    ("counter", "event"),
    [
        ("foreign", "foreign_protocol_refused"),
        ("refused_full", "clients_refused"),
        ("slow_consumers", "clients_dropped"),
        ("queue_pauses", "changes_held"),
        ("handshakes_failed", "handshakes_failed"),
        ("dead_dropped", "dead_jobs_dropped"),
        ("ended_dropped", "memory_of_ended_jobs_cut"),
    ],
)
def test_what_outsiders_cause_is_one_line_a_minute_with_the_count(watched, counter, event):
    watched.look(**{counter: 3})
    watched.look(**{counter: 5})
    watched.clock.now_ns = QUIET_NS - 1
    assert watched.look(**{counter: 9}) == [event]
    watched.clock.now_ns = QUIET_NS
    assert watched.look() == [event, event]
    assert [value for line in watched.lines.all for value in line.values()].count(6) == 1
    watched.clock.now_ns = 3 * QUIET_NS
    assert watched.look() == [event, event]


def test_a_payload_that_changed_in_memory_is_told_with_its_job_and_what_to_do(watched):
    changes = {"payload_corrupt": 2, "corrupt_job": 4294967297, "corrupt_handler": "mail"}
    assert watched.look(**changes) == ["payload_corrupted"]
    line = watched.lines.all[0]
    assert (line["jobs"], line["job"], line["handler"]) == (2, "4294967297", "mail")
    assert "restart" in line["hint"]
    assert "jobs requeue" in line["hint"]
    assert watched.look() == ["payload_corrupted"]
    assert watched.look(payload_corrupt=3) == ["payload_corrupted"] * 2


def test_clock_that_is_held_is_said_when_it_starts_and_when_it_ends(watched):
    watched.look(held_ms=1_000)
    assert watched.look(held_ms=1_001) == ["clock_held"]
    watched.look(held_ms=900_000)
    assert watched.look(held_ms=0) == ["clock_held", "clock_released"]


def test_steps_and_suspends_are_said_each_time(watched):
    watched.look(clock_steps=1)
    watched.look()
    assert watched.look(clock_steps=2, suspends=1) == [
        "clock_stepped",
        "suspend_noticed",
        "clock_stepped",
    ]


def test_log_that_is_stuck_is_said_when_it_starts_and_when_it_ends(watched):
    assert watched.look(queue_is_red=True) == ["log_stuck"]
    watched.look(queue_is_red=True)
    assert watched.look(queue_is_red=False) == ["log_stuck", "log_moved_on"]


def test_slow_sync_is_said_when_it_is_the_slowest_so_far(watched):
    watched.look(sync_max_ns=1_000_000_000)
    watched.look(sync_max_ns=1_500_000_000)
    assert watched.look() == ["sync_slowed"]
    assert watched.look(sync_max_ns=2_500_000_000) == ["sync_slowed", "sync_slowed"]
    assert watched.lines.all[-1]["took_ms"] == 2500


def test_full_memory_is_said_when_it_starts_and_when_it_ends(watched):
    watched.look(memory_bytes=850)
    watched.look(memory_bytes=851)
    watched.look(memory_bytes=900)
    assert watched.look(memory_bytes=100) == ["memory_filled", "memory_freed"]
