"""No figure comes from work that was left out: what each mode does before it answers.

Planted faults of the same kind are noticed by tests/sim/test_mutants.py.
"""

import pytest

from tests.sim import scenarios_honest as scenarios


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.always_writes_and_syncs_before_the_reply,
        scenarios.interval_writes_before_the_reply,
        scenarios.interval_syncs_within_its_interval,
        scenarios.off_writes_before_the_reply,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_before_a_reply(scenario):
    scenario()
