"""What is drawn from a schedule's name stays as it is in every version: jitter, and H in a rule.

A run's due time and a rule's times are not only computed once: a restart, another version and a
standby must come to the same. So these values are written down here, and must never change.
"""

import hashlib

import pytest

from wheel.cron import compile_rule
from wheel.engine.spread import due_ms
from wheel.zones import exact

# Name, nominal time, the one behind it, bound; how much later the run is due.
GOLDEN = [
    ("backup", 1_800_000_000_000, None, 300_000, 256_887),
    ("backup", 1_800_000_000_000, 1_800_000_060_000, 300_000, 46_260),
    ("報告", 1_798_761_600_000, None, 86_400_000, 24_120_117),
    ("weekly-digest", 1_796_626_800_000, 1_797_231_600_000, 300_000, 98_989),
    ("x" * 160, 281_473_976_710_655, None, 3_600_000, 345_017),
    ('é "q"', 1_700_000_000_000, 1_700_003_600_000, 3_599_999, 334_708),
    ("a", 0, None, 1, 0),
    ("a", 0, 2, 1000, 0),
    ("n", 1_800_000_000_001, None, 0, 0),
]


@pytest.mark.parametrize(("name", "nominal_ms", "next_ms", "jitter_ms", "later_ms"), GOLDEN)
def test_jitter_is_what_it_always_was(name, nominal_ms, next_ms, jitter_ms, later_ms):
    assert due_ms(name, nominal_ms, next_ms, jitter_ms) == nominal_ms + later_ms


def test_ten_thousand_jitters_are_what_they_always_were():
    digest = hashlib.sha256()
    for i in range(10_000):
        due = due_ms(f"s{i % 100}", 1_800_000_000_000 + i * 60_000, None, 60_000 + i)
        digest.update(due.to_bytes(8, "little"))
    assert digest.hexdigest() == "d60b1c6e226a49898dbf6cb8fff447b9c3c739033b61c9bbef32ec27914d28e6"


# Rule, name; the first time behind 2027-01-15T08:00Z.
HASHED = [
    ("H H * * *", "backup", "2027-01-15T15:02:00Z"),
    ("H H * * *", "報告", "2027-01-15T22:11:00Z"),
    ("H(0-29)/10 H H * *", "backup", "2027-02-04T15:02:00Z"),
    ("H(0-29)/10 H H * *", "報告", "2027-01-20T22:01:00Z"),
    ("0~30 9 * * 1", "backup", "2027-01-18T09:20:00Z"),
    ("0~30 9 * * 1", "報告", "2027-01-18T09:25:00Z"),
    ("H H H H H *", "backup", "2028-01-04T15:02:42Z"),
    ("H H H H H *", "報告", "2027-08-20T22:11:43Z"),
    ("H H * * H", "backup", "2027-01-17T15:02:00Z"),
    ("H H * * H", "報告", "2027-01-17T22:11:00Z"),
]


@pytest.mark.parametrize(("rule", "name", "first"), HASHED)
def test_what_h_draws_from_a_name_is_what_it_always_was(rule, name, first):
    assert exact(compile_rule(rule, name=name).require_fire(1_800_000_000_000)) == first
