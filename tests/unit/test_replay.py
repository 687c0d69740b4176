"""Replay in slices, and where the rel axis stands after it."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.replay import SLICE_NS, Progress, ReplayError, rel_now_ms, replay
from tests.fakes import StandingClock
from wal.frame import seal
from wal.log import LastTimes
from wal.reader import Chunk
from wheel.errors import CoreError

BOOT = bytes(range(16))
OTHER = bytes(range(1, 17))
MS = st.integers(0, 1 << 47)


TIMES = LastTimes(
    wall_ms=1_000_000,
    rel_ms=900_000,
    boot_id=BOOT,
    rel_minus_boot_ms=800_000,
    created_wall_ms=990_000,
)


def test_first_start_begins_the_axis_at_the_wall():
    assert rel_now_ms(None, wall_ms=5_000, boot_ms=7, boot_id=BOOT) == 5_000


@given(MS)
def test_same_boot_goes_on_by_the_boot_clock_whatever_the_wall_says(wall_ms):
    assert rel_now_ms(TIMES, wall_ms=wall_ms, boot_ms=150_000, boot_id=BOOT) == 950_000


def test_other_boot_goes_on_by_the_wall():
    assert rel_now_ms(TIMES, wall_ms=1_000_500, boot_ms=1, boot_id=OTHER) == 900_500


def test_other_boot_with_the_wall_set_back_stands_still():
    assert rel_now_ms(TIMES, wall_ms=10, boot_ms=1, boot_id=OTHER) == 900_000


def test_unknown_boot_is_never_the_same():
    last = replace(TIMES, boot_id=bytes(16))
    assert rel_now_ms(last, wall_ms=1_000_500, boot_ms=150_000, boot_id=bytes(16)) == 900_500


def test_log_without_frames_begins_at_the_wall_after_a_boot():
    last = replace(TIMES, wall_ms=None, rel_ms=None)
    assert rel_now_ms(last, wall_ms=5_000, boot_ms=1, boot_id=OTHER) == 5_000


@given(MS, MS, st.sampled_from([BOOT, OTHER, bytes(16)]))
def test_axis_never_goes_back(wall_ms, boot_ms, boot_id):
    last = TIMES
    assert rel_now_ms(last, wall_ms=wall_ms, boot_ms=boot_ms, boot_id=boot_id) >= 900_000


# ---------------------------------------------------------------- slices


class FakeStore:
    """Chunks of frames of 32 KiB."""

    def __init__(self, chunks, frames):
        self.chunks = chunks
        self.frames = frames

    def load(self):
        return iter(())

    def replay(self):
        lsn = 1
        for number in range(self.chunks):
            data = b""
            for _ in range(self.frames):
                data += seal(
                    b"x" * 32_000,
                    first_lsn=lsn,
                    records=1,
                    wall_ms=0,
                    rel_ms=0,
                    salt=1,
                    prev_crc=0,
                )
                lsn += 1
            yield Chunk(
                data=memoryview(data),
                term=3,
                seq=5,
                offset=4096,
                first_lsn=lsn - self.frames,
                last_lsn=lsn - 1,
                frames=self.frames,
                records=self.frames,
                bytes_done=number + 1,
                bytes_total=self.chunks,
            )


class SlowCore:
    """Takes a millisecond for each call."""

    def __init__(self, clock):
        self.clock = clock
        self.given = []

    def replay(self, frames, *, term):
        self.given.append((bytes(frames), term))
        self.clock.now_ns += 1_000_000


def run(store, on_slice):
    clock, progress = StandingClock(), Progress()
    core = SlowCore(clock)
    whole = asyncio.run(replay(core, store, clock=clock, progress=progress, on_slice=on_slice))
    return whole, core, progress, clock


def test_every_frame_is_applied_once_in_order_with_its_term():
    store = FakeStore(3, 20)
    whole, core, progress, _ = run(store, lambda: True)
    assert whole
    assert b"".join(data for data, _ in core.given) == b"".join(
        bytes(chunk.data) for chunk in store.replay()
    )
    assert {term for _, term in core.given} == {3}
    assert (progress.records, progress.percent) == (60, 100)


def test_loop_has_its_turn_after_each_slice():
    turns = []

    def on_slice():
        turns.append(1)
        return True

    _, core, _, clock = run(FakeStore(3, 20), on_slice)
    assert len(turns) >= clock.now_ns // SLICE_NS - 3
    assert max(len(data) for data, _ in core.given) <= 200_000


def test_replay_that_is_given_up_stops_at_once():
    whole, core, _, _ = run(FakeStore(3, 20), lambda: False)
    assert not whole
    assert len(core.given) == 3


def test_core_that_cannot_apply_ends_it_and_the_place_is_told():
    class Broken:
        def replay(self, frames, *, term):
            raise CoreError("bytes that cannot be what was written")

    with pytest.raises(ReplayError, match="cannot be") as raised:
        asyncio.run(
            replay(
                Broken(),
                FakeStore(1, 1),
                clock=StandingClock(),
                progress=Progress(),
                on_slice=lambda: True,
            )
        )
    found = raised.value
    assert (found.segment, found.offset_bytes, found.lsn) == (5, 4096, 1)


def test_empty_log_is_wholly_replayed():
    whole, core, progress, _ = run(FakeStore(0, 0), lambda: True)
    assert whole
    assert core.given == []
    assert progress.percent == 100
