"""The soak's own arithmetic, and that it reports what is planted: loss, doubles, leaks."""

import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from tests.soak.figures import (
    ENDED_BYTES,
    ONCE_BYTES,
    RING_SIZES,
    Sample,
    by_minute,
    look,
    mappings,
    slope,
    slopes_of,
)
from tests.soak.ledger import Ledger, settle

MB = 1_000_000
EVERY_S = 3.0
RING = 131_072  # ended jobs that the ring lets go of at once


def samples(*, leak_mb_h=0.0, ring_mb=0.0, fds_h=0.0, threads_h=0.0, minutes=30, seed=1):
    """Return what a server looks like whose memory follows its ring, with noise and faults."""
    rng = random.Random(seed)
    found = []
    for number in range(int(minutes * 60 / EVERY_S)):
        at_s = number * EVERY_S
        ended = 4_000_000 + number * 4_700 % RING
        once = 3_000_000 + 200 * min(number, 300)  # a rate that rose ten minutes ago
        storm = number % 20 == 4
        rings = ENDED_BYTES * ended + ONCE_BYTES * once + int(ring_mb * MB)
        rest = int(60 * MB + rng.gauss(0, MB / 20) + leak_mb_h * MB * at_s / 3600)
        if at_s < 600 and rng.random() < 0.2:
            rest -= 10 * MB  # a thread's buffers, given back and taken again
        found.append(
            Sample(
                at_s=1000 + at_s,
                pid=7,
                rss_bytes=rings + rest,
                rings_bytes=rings,
                anonymous_bytes=rest - 8 * MB,
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


def test_a_minute_is_told_by_its_lowest_or_by_its_median():
    points = [(0.0, 5.0), (9.0, 4.0), (59.0, 3.0), (61.0, 9.0), (190.0, 1.0)]
    assert by_minute(points, min) == [(30.0, 3.0), (90.0, 9.0), (210.0, 1.0)]
    assert by_minute(points, median) == [(30.0, 4.0), (90.0, 9.0), (210.0, 1.0)]


@pytest.mark.parametrize("seed", range(5))
def test_a_server_that_keeps_nothing_passes(seed):
    slopes = slopes_of(samples(seed=seed))
    assert slopes.faults() == []
    assert abs(slopes.rss_mb) < 0.5


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"leak_mb_h": 1.2}, "memory grows by"),
        ({"ring_mb": 30.0}, "the rings hold 30.0 MB that are no entries"),
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


def test_rings_that_are_not_found_are_reported():
    window = [Sample(**{**values(one), "rings_bytes": 0}) for one in samples()]
    assert any("cannot be told from the rest" in text for text in slopes_of(window).faults())


SMAPS = """\
7f0b9e600000-7f0bb2600000 rw-p 00000000 00:00 0
Size:             327680 kB
Rss:              325004 kB
VmFlags: rd wr mr mw me ac sd
7f36c1c44000-7f36c1d78000 rw-p 0042e000 fe:00 123 /usr/lib/libpython3.11.so.1.0
Size:               1232 kB
Rss:                1232 kB
"""


def test_mappings_are_told_by_their_bytes():
    (ring, fields), (other, _) = mappings(SMAPS)
    assert ring in RING_SIZES
    assert fields == {"Size": 327_680, "Rss": 325_004}
    assert other == 1232 * 1024


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
