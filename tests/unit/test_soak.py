"""The soak's own arithmetic, and that it reports what is planted: loss, doubles, leaks."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.figures import Sample, floors, look, slope, slopes_of
from tests.soak.ledger import Ledger, settle

MB = 1_000_000
EVERY_S = 3.0
RING = 131_072  # ended jobs that the ring lets go of at once
ENTRY_BYTES = 88
TOKEN_BYTES = 48


def samples(*, leak_mb_h=0.0, fds_h=0.0, threads_h=0.0, minutes=30, seed=1):
    """Return what a server looks like whose memory follows its ring, with noise and faults."""
    rng = random.Random(seed)
    found = []
    for number in range(int(minutes * 60 / EVERY_S)):
        at_s = number * EVERY_S
        ended = 4_000_000 + number * 4_700 % RING
        once = 3_000_000 + 200 * min(number, 300)  # a rate that rose ten minutes ago
        storm = number % 20 == 4
        rss = 400 * MB + ENTRY_BYTES * ended + TOKEN_BYTES * once + rng.gauss(0, MB / 4)
        found.append(
            Sample(
                at_s=1000 + at_s,
                pid=7,
                rss_bytes=int(rss + leak_mb_h * MB * at_s / 3600),
                anonymous_bytes=int(rss + leak_mb_h * MB * at_s / 3600),
                fds=27 + 500 * storm + int(fds_h * at_s / 3600),
                threads=4 + storm + int(threads_h * at_s / 3600),
                cpu_s=0.0,
                ended=ended,
                once=once,
            )
        )
    return found


def test_a_slope_is_that_of_the_line_of_least_squares():
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2.0)
    assert slope([(0.0, 1.0), (1.0, 0.0), (2.0, 1.0), (3.0, 4.0)]) == pytest.approx(1.0)
    assert slope([]) == slope([(1.0, 5.0)]) == slope([(1.0, 5.0), (1.0, 9.0)]) == 0.0


def test_what_y_follows_beside_x_is_taken_off_as_far_as_it_tells_something():
    points = [(x, 7.0 + 2.0 * x + 5.0 * (x * 3 % 7), x * 3 % 7) for x in map(float, range(40))]
    assert slope(points) == pytest.approx(2.0)
    assert slope([(x, y, 4.0) for x, y, _ in points]) == pytest.approx(
        slope([(x, y) for x, y, _ in points])
    )


def test_the_floor_of_a_minute_is_its_lowest():
    assert floors([(0.0, 5.0), (59.0, 3.0), (61.0, 9.0), (190.0, 1.0)]) == [
        (30.0, 3.0),
        (90.0, 9.0),
        (210.0, 1.0),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_server_that_keeps_nothing_passes(seed):
    slopes = slopes_of(samples(seed=seed))
    assert slopes.faults() == []
    assert abs(slopes.rss_mb) < 0.5


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"leak_mb_h": 2.0}, "memory grows by"),
        ({"fds_h": 4.0}, "descriptors change by"),
        ({"threads_h": 4.0}, "threads change by"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_what_grows_is_reported(planted, said, seed):
    (fault,) = slopes_of(samples(seed=seed, **planted)).faults()
    assert fault.startswith(said)


def test_another_life_in_the_window_cannot_be_compared():
    window = samples(minutes=5)
    other = [Sample(**{**values(sample), "pid": 8}) for sample in window[50:]]
    assert "2 lives" in slopes_of(window[:50] + other).faults()[0]


def values(sample):
    return {name: getattr(sample, name) for name in Sample.__slots__}


@pytest.mark.slow
def test_a_real_process_that_leaks_is_seen_to_leak():
    """Memory and descriptors of a process that keeps more with every line that it reads."""
    leaky = (
        "import sys, os\nkept = []\n"
        "for line in sys.stdin:\n"
        "    kept.append(bytearray(os.urandom(1 << 20)))\n"
        "    kept.append(open(os.devnull))\n"
        "    print('.', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", leaky], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        seen = []
        for minute in range(12):
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b".\n"
            sample = look(process.pid)
            # As if a minute had passed in between.
            seen.append(Sample(**{**values(sample), "at_s": 60.0 * minute}))
        process.stdin.close()
    slopes = slopes_of(seen)
    assert 60 < slopes.rss_mb < 90  # a MiB a minute, and what passes on the way
    assert slopes.fds == pytest.approx(60, rel=0.01)
    assert len(slopes.faults()) == 2


def test_a_sample_is_what_the_kernel_counts():
    sample = look(os.getpid())
    assert sample.pid == os.getpid()
    assert sample.rss_bytes >= sample.anonymous_bytes > 1 * MB
    before = sample.fds
    with Path(os.devnull).open():
        assert look(os.getpid()).fds == before + 1


# ---------------------------------------------------------------- the account


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger", numbers=200_000)


def note(ledger, number, *facts):
    for fact in facts:
        ledger.plane(fact)[number] += 1


def test_an_account_finds_what_was_lost_and_what_ended_twice(ledger):
    note(ledger, 1, "confirmed", "said0", "acked0")
    note(ledger, 2, "confirmed", "cancelled")
    note(ledger, 3, "confirmed", "said1", "dead1")
    note(ledger, 4, "confirmed", "said0")  # its worker was killed before the answer
    note(ledger, 5, "doubtful")  # never confirmed: owes nothing
    note(ledger, 100_000, "confirmed")
    note(ledger, 6, "confirmed", "acked0", "acked1")
    note(ledger, 7, "confirmed", "acked0", "acked0")
    note(ledger, 8, "confirmed", "acked1", "cancelled")
    account = settle(ledger)
    assert (account.confirmed, account.ended, account.in_doubt) == (8, 6, 1)
    assert account.lost == [100_000]
    assert account.twice == [6, 7, 8]


def test_what_one_process_notes_another_one_reads(ledger, tmp_path):
    other = Ledger(tmp_path / "ledger")
    assert other.numbers == ledger.numbers
    other.plane("acked1")[199_999] = 1
    other.put("rate", -1)
    other.figures(2).add("early", 3)
    assert ledger.plane("acked1")[199_999] == 1
    assert ledger.plane("acked0")[199_999] == 0
    assert ledger.get("rate") == -1
    assert (ledger.total("early"), ledger.total("acked")) == (3, 0)
