"""Small worlds for faults of checkpoints: each function asserts, or passes.

They are the promises of tests/property/test_checkpoint.py and tests/unit/test_checkpoint.py, in few
functions that a planted fault can name.
"""

from contextlib import suppress

from tests.property.test_checkpoint import history
from tests.unit import test_checkpoint as unit
from wal.facts import CheckpointStop
from wheel.errors import CoreError

HISTORIES = 120


def histories_end_as_the_whole_log_says():
    for seed in range(HISTORIES):
        history(seed)


def every_damage_of_a_checkpoint_is_refused():
    saved = unit.Saved().fill()
    pair = saved, saved.save()
    unit.test_every_flipped_bit_of_a_file_is_refused(pair)
    unit.test_chunks_swapped_left_out_or_doubled_are_refused(pair)
    unit.test_a_chunk_of_another_file_is_refused(pair)
    unit.test_bytes_behind_the_last_chunk_are_refused(pair, b"\0")
    unit.test_a_checkpoint_without_its_last_chunk_serves_nothing_and_replays_nothing(pair)
    for lie in unit.LIES:
        assert unit.scan(unit.with_end(pair[1], **lie)).stop is CheckpointStop.FOOTER, lie


def records_that_fit_no_state_are_damage():
    saved = unit.Saved().fill()
    pair = saved, saved.save()
    for record, seen in [(record, True) for record in unit.FORGED] + [
        (record, False) for record in unit.SEEN
    ]:
        with suppress(CoreError):
            unit.behind(*pair, record, seen=seen).close()
            raise AssertionError(f"{record.kind.name} was taken")
    unit.test_a_frame_that_reaches_over_the_checkpoints_end_is_damage(pair)


def rings_age_and_are_cut_once():
    unit.test_rings_age_once_by_each_frame_whichever_side_of_the_checkpoint_it_is_on()
    for ring, kind in unit.RINGS:
        unit.test_what_was_dropped_for_room_while_it_was_written_is_dropped_once(ring, kind)


def a_disk_that_fails_or_lies_fails_the_checkpoint_alone():
    for call in unit.CALLS:
        unit.test_a_disk_error_fails_the_checkpoint_and_nothing_else(*call)
    unit.test_a_sync_that_lies_is_noticed_by_reading_the_device()
    unit.test_a_finished_file_survives_a_power_cut_once_its_name_is_synced()


def a_checkpoint_counts_when_its_end_is_durable():
    unit.test_nothing_waits_for_a_checkpoint_and_it_counts_when_its_end_is_durable()
