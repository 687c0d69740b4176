"""Runs of one schedule beside each other: every policy at every number of others."""

import pytest

from wheel.engine.overlap import QUEUE_MAX, Fate, Overlap, Ruling, decide, may_start

START, WAIT, SKIP = Fate.START, Fate.WAIT, Fate.SKIP


@pytest.mark.parametrize("policy", Overlap)
def test_alone_a_run_starts_whatever_the_policy(policy):
    assert decide(policy, active=0, waiting=0) == Ruling(fate=START)


@pytest.mark.parametrize(
    ("policy", "active", "waiting", "fate", "reason"),
    [
        (Overlap.SKIP, 1, 0, SKIP, "overlap"),
        (Overlap.SKIP, 0, 1, SKIP, "overlap"),
        (Overlap.QUEUE_ONE, 1, 0, WAIT, ""),
        (Overlap.QUEUE_ONE, 1, 1, SKIP, "overlap"),
        (Overlap.QUEUE_ALL, 1, 0, WAIT, ""),
        (Overlap.QUEUE_ALL, 1, QUEUE_MAX - 1, WAIT, ""),
        (Overlap.QUEUE_ALL, 1, QUEUE_MAX, SKIP, "queue_full"),
        (Overlap.ALLOW, 5, 0, START, ""),
    ],
)
def test_beside_others_the_policy_decides(policy, active, waiting, fate, reason):
    assert decide(policy, active=active, waiting=waiting) == Ruling(fate=fate, reason=reason)


def test_cancel_running_keeps_the_newcomer_skips_who_waits_and_asks_the_active_to_stop():
    ruling = decide(Overlap.CANCEL_RUNNING, active=1, waiting=1)
    assert ruling == Ruling(fate=WAIT, skip_waiting=True, cancel_active=True)


@pytest.mark.parametrize("policy", Overlap)
def test_a_run_whose_upstreams_are_done_waits_its_turn_unless_all_may_run(policy):
    assert may_start(policy, active=0)
    assert may_start(policy, active=1) is (policy is Overlap.ALLOW)
