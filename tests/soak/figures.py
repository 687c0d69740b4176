"""What a soak measures of the server's process, and how it judges it: samples, slopes, verdicts."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

HOUR_S: Final = 3600.0
MINUTE_S: Final = 60.0
RSS_MB_PER_H_MAX: Final = 1.0
COUNT_PER_H_MAX: Final = 1.0  # of descriptors and threads: less than one in the hour is none
_KB: Final = 1024
# The rings of ended jobs and of tokens: so many entries of so many bytes, each in one mapping.
RING_MAX: Final = 4 * 1024 * 1024
ENDED_BYTES: Final = 80
ONCE_BYTES: Final = 48
RING_SIZES: Final = (RING_MAX * ENDED_BYTES, RING_MAX * ONCE_BYTES)
# What they hold beyond their entries: 131,072 ended jobs are let go of at once, pages come back by
# blocks of 8,192, and the entries are counted a moment before the pages.
RINGS_SLACK_BYTES: Final = 24_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the process.

    Attributes:
        at_s: on the clock that nobody sets.
        pid: of the process.
        rss_bytes: resident.
        rings_bytes: of these, in the rings of ended jobs and of tokens. Both go up and down with
            the load of the last minutes, as far as docs/limits.md allows; a leak is in the rest.
        anonymous_bytes: resident and not of a file, without the rings.
        fds: descriptors that are open.
        threads: threads that it has.
        cpu_s: CPU time so far.
        ended: jobs that it remembers although they have ended, by its own word.
        once: tokens of ONCE that it remembers.
    """

    at_s: float
    pid: int
    rss_bytes: int
    rings_bytes: int
    anonymous_bytes: int
    fds: int
    threads: int
    cpu_s: float
    ended: int = 0
    once: int = 0

    @property
    def rest_bytes(self) -> int:
        """Resident bytes that are not in the rings."""
        return self.rss_bytes - self.rings_bytes

    @property
    def surplus_bytes(self) -> int:
        """Bytes that the rings hold beyond their entries."""
        return self.rings_bytes - ENDED_BYTES * self.ended - ONCE_BYTES * self.once


def look(pid: int, *, ended: int = 0, once: int = 0) -> Sample:
    """Return a sample of a process, which has said how many ended jobs and tokens it remembers.

    Raises:
        OSError: there is no such process.
    """
    folder = Path("/proc", str(pid))
    rss = rings = anonymous = 0
    for size, fields in mappings((folder / "smaps").read_text()):
        rss += fields["Rss"] * _KB
        if size in RING_SIZES:
            rings += fields["Rss"] * _KB
        else:
            anonymous += fields["Anonymous"] * _KB
    stat = (folder / "stat").read_text().rpartition(")")[2].split()
    return Sample(
        at_s=time.monotonic(),
        pid=pid,
        rss_bytes=rss,
        rings_bytes=rings,
        anonymous_bytes=anonymous,
        fds=sum(1 for _ in (folder / "fd").iterdir()),
        threads=int(stat[17]),
        cpu_s=(int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
        ended=ended,
        once=once,
    )


def mappings(smaps: str) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield the bytes and the fields, in KiB, of each mapping of ``/proc/PID/smaps``."""
    found: dict[str, int] = {}
    size = 0
    for line in smaps.splitlines():
        word, _, rest = line.partition(" ")
        if not word.endswith(":"):  # the first line of a mapping
            if found:
                yield size, found
            low, _, high = word.partition("-")
            size, found = int(high, 16) - int(low, 16), {}
        elif rest.endswith("kB"):
            found[word[:-1]] = int(rest.split()[0])
    if found:
        yield size, found


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return by how much y rises with x, by least squares; 0 where the points do not tell."""
    if not points:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    square = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * y for x, y in points) / square if square else 0.0


def by_minute(
    points: Iterable[tuple[float, float]], one_of: Callable[[list[float]], float]
) -> list[tuple[float, float]]:
    """Return one of the y of each minute, as (x of the minute's middle, y).

    The lowest has nothing of what a fault takes for a moment and gives back. The median has nothing
    of what is given back for a moment and taken again either, as a thread's buffers are. What
    stays is in both.
    """
    minutes: defaultdict[int, list[float]] = defaultdict(list)
    for x, y in points:
        minutes[int(x // MINUTE_S)].append(y)
    return [((minute + 0.5) * MINUTE_S, one_of(ys)) for minute, ys in sorted(minutes.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """How much more the process holds after an hour, by least squares over a window.

    Attributes:
        rss_mb: through the median of each minute, without the rings.
        raw_mb: with the rings.
        anonymous_mb: as ``rss_mb``, of anonymous memory.
        surplus_mb: the most that the rings held beyond their entries.
        fds: through the lowest of each minute.
        threads: the same.
        lives: processes in the window; more than one cannot be compared.
        has_rings: whether their mappings were found in each sample of a server that has entries.
    """

    rss_mb: float
    raw_mb: float
    anonymous_mb: float
    surplus_mb: float
    fds: float
    threads: float
    lives: int
    has_rings: bool

    def faults(self) -> list[str]:
        """Return what is wrong with them."""
        said = []
        if self.lives != 1:
            said.append(f"the window has {self.lives} lives of the server, not one")
        if not self.has_rings:
            said.append(
                f"no mappings of {RING_SIZES} bytes: the rings cannot be told from the rest"
            )
        if not self.rss_mb < RSS_MB_PER_H_MAX:
            said.append(f"memory grows by {self.rss_mb:.2f} MB/h, not under 1")
        if not self.surplus_mb < RINGS_SLACK_BYTES / 1e6:
            said.append(f"the rings hold {self.surplus_mb:.1f} MB that are no entries")
        if not abs(self.fds) < COUNT_PER_H_MAX:
            said.append(f"descriptors change by {self.fds:.2f} an hour")
        if not abs(self.threads) < COUNT_PER_H_MAX:
            said.append(f"threads change by {self.threads:.2f} an hour")
        return said


def slopes_of(samples: Sequence[Sample]) -> Slopes:
    """Return the slopes over the samples of a window."""
    start_s = samples[0].at_s if samples else 0.0

    def points(name: str) -> list[tuple[float, float]]:
        return [(s.at_s - start_s, float(getattr(s, name))) for s in samples]

    def mb(name: str) -> float:
        return slope(by_minute(points(name), median)) * HOUR_S / 1e6

    def floor(name: str) -> float:
        return slope(by_minute(points(name), min)) * HOUR_S

    return Slopes(
        rss_mb=mb("rest_bytes"),
        raw_mb=mb("rss_bytes"),
        anonymous_mb=mb("anonymous_bytes"),
        surplus_mb=max((s.surplus_bytes for s in samples), default=0) / 1e6,
        fds=floor("fds"),
        threads=floor("threads"),
        lives=len({s.pid for s in samples}),
        has_rings=all(s.rings_bytes for s in samples if s.ended),
    )
