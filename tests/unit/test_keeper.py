"""The thread that keeps MARK behind the log and a segment ahead of it.

The log is a stand-in that counts, and a barrier that the test and the thread meet at takes the
place of every wait: nothing here depends on how fast the machine is.
"""

import queue
import threading
from dataclasses import dataclass, replace

import pytest

from server.keeper import Keeper, Room
from tests.fakes import Lines, StandingClock
from wal.errors import DiskFullError

DEADLINE_S = 20


@dataclass(frozen=True)
class Figures:
    written_lsn: int = 0
    synced_lsn: int = 0
    marked_lsn: int = 0
    rotations: int = 0
    prepared: bool = True
    offset: int = 4096
    segment_bytes: int = 4 << 20


class CountingLog:
    """A log in memory."""

    def __init__(self):
        self.figures = Figures()
        self.room = True
        self.failure = None
        self.prepared: queue.Queue[bool] = queue.Queue()
        self.marks: queue.Queue[tuple[int, bool]] = queue.Queue()
        self.looks = threading.Semaphore(0)
        self.grow = 0  # so many looks at the figures find a new record

    def prepare(self):
        self.prepared.put(self.room)
        self.figures = replace(self.figures, prepared=self.room or self.figures.prepared)
        if not self.room:
            raise DiskFullError("no room for the next segment")

    def mark(self, *, clean):
        if self.failure:
            raise self.failure
        self.figures = replace(self.figures, marked_lsn=self.figures.synced_lsn)
        self.marks.put((self.figures.synced_lsn, clean))

    def stats(self):
        if self.grow:
            self.grow -= 1
            lsn = self.figures.written_lsn + 1
            self.figures = replace(self.figures, written_lsn=lsn, synced_lsn=lsn)
        self.looks.release()
        return self.figures


@pytest.fixture
def made():
    log, lines, failed = CountingLog(), Lines(), threading.Event()
    clock = StandingClock()
    log.rooms = []
    keeper = Keeper(
        log=log,
        clock=clock,
        logger=lines.logger,
        on_failure=failed.set,
        on_room=log.rooms.append,
    )
    yield keeper, log, lines, failed, clock
    keeper.stop()


def append(log, keeper, lsn, **changes):
    log.figures = replace(log.figures, written_lsn=lsn, synced_lsn=lsn, **changes)
    keeper.moved()


def test_log_that_rests_is_marked_up_to_its_last_record(made):
    keeper, log, *_ = made
    keeper.start()
    append(log, keeper, 7)
    assert log.marks.get(timeout=DEADLINE_S) == (7, False)
    append(log, keeper, 9)
    assert log.marks.get(timeout=DEADLINE_S) == (9, False)


def test_log_that_moves_all_the_time_is_marked_once_and_then_when_it_rests(made):
    keeper, log, *_ = made
    log.grow = 30
    keeper.start()
    keeper.moved()
    assert log.marks.get(timeout=DEADLINE_S) == (30, False)
    assert log.marks.empty()


def test_log_that_moves_all_the_time_is_marked_when_a_second_has_passed(made):
    keeper, log, _, _, clock = made
    log.grow = 1 << 30
    keeper.start()
    keeper.moved()
    assert log.looks.acquire(timeout=DEADLINE_S)
    assert log.marks.empty()
    clock.now_ns = 1_000_000_000
    assert log.marks.get(timeout=DEADLINE_S)[1] is False


def test_rotation_is_marked_though_the_log_goes_on(made):
    keeper, log, *_ = made
    log.grow = 1 << 30
    keeper.start()
    keeper.moved()
    for _ in range(3):
        assert log.looks.acquire(timeout=DEADLINE_S)
    log.figures = replace(log.figures, rotations=1)
    assert log.marks.get(timeout=DEADLINE_S)


def test_segment_is_prepared_at_once_and_after_a_rotation(made):
    keeper, log, *_ = made
    keeper.start()
    assert log.prepared.get(timeout=DEADLINE_S)
    append(log, keeper, 1, prepared=False, rotations=1)
    assert log.prepared.get(timeout=DEADLINE_S)


def test_full_disk_is_said_once_tried_again_and_its_end_is_said(made, monkeypatch):
    monkeypatch.setattr("server.keeper.PREPARE_AGAIN_S", 0.001)
    keeper, log, lines, *_ = made
    log.room = False
    keeper.start()
    assert log.prepared.get(timeout=DEADLINE_S) is False
    assert log.prepared.get(timeout=DEADLINE_S) is False
    assert keeper.disk_full
    log.room = True
    while not log.prepared.get(timeout=DEADLINE_S):
        pass
    append(log, keeper, 1)
    log.marks.get(timeout=DEADLINE_S)
    assert lines.events == ["disk_filled", "disk_freed"]
    assert log.rooms == [Room.TIGHT, Room.OK]
    assert not keeper.disk_full


def test_little_room_is_told_while_the_disk_is_full_and_its_end_when_it_is_not(made):
    """A quarter of a segment, in the current one and the one in reserve together."""
    keeper, log, _, _, clock = made
    log.room = False
    keeper.start()
    told = []
    for offset, prepared in ((4_100_000, True), (3_100_000, False), (3_200_000, False)):
        append(log, keeper, offset, offset=offset, prepared=prepared)
        log.marks.get(timeout=DEADLINE_S)
        told.append(list(log.rooms))
    assert told == [[Room.TIGHT], [Room.TIGHT], [Room.TIGHT, Room.LOW]]
    append(log, keeper, 4_000_000, offset=4_000_000)
    log.marks.get(timeout=DEADLINE_S)
    assert keeper.room is Room.FULL
    log.room = True
    clock.now_ns += 2_000_000_000
    append(log, keeper, 4_000_001)
    while log.rooms[-1] is not Room.OK:
        log.prepared.get(timeout=DEADLINE_S)


def test_a_full_disk_is_tried_again_each_second_though_the_log_moves_all_the_time(made):
    keeper, log, _, _, clock = made
    log.room = False
    log.grow = 1 << 30
    keeper.start()
    assert log.prepared.get(timeout=DEADLINE_S) is False
    keeper.moved()
    for _ in range(5):
        assert log.looks.acquire(timeout=DEADLINE_S)
    assert log.prepared.empty()
    clock.now_ns = 1_000_000_000
    assert log.prepared.get(timeout=DEADLINE_S) is False


def test_failed_log_is_told_to_the_loop(made):
    keeper, log, lines, failed, _ = made
    log.failure = OSError(5, "Input/output error")
    keeper.start()
    append(log, keeper, 1)
    assert failed.wait(DEADLINE_S)
    assert lines.events == ["log_keeping_failed"]


def test_stop_ends_the_thread(made):
    keeper, log, *_ = made
    keeper.start()
    log.prepared.get(timeout=DEADLINE_S)
    keeper.stop()
    assert not keeper._thread.is_alive()
