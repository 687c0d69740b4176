"""What a soak measures of the server's process, and how it judges it: samples, slopes, verdicts."""

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOUR_S: Final = 3600.0
MINUTE_S: Final = 60.0
RSS_MB_PER_H_MAX: Final = 1.0
COUNT_PER_H_MAX: Final = 1.0  # of descriptors and threads: less than one in the hour is none
_KB: Final = 1024
TINY: Final = 1e-9  # of a column's square: what is left of it says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the process.

    Attributes:
        at_s: on the clock that nobody sets.
        pid: of the process.
        rss_bytes: resident, as smaps_rollup counts it.
        anonymous_bytes: of these, not of a file.
        fds: descriptors that are open.
        threads: threads that it has.
        cpu_s: CPU time so far.
        ended: jobs that it remembers although they have ended, by its own word; the ring lets go
            of them a hundred thousand at a time, so memory goes up and down with this number.
        once: tokens of ONCE that it remembers, ten minutes each, so their number follows the rate
            of ten minutes.
    """

    at_s: float
    pid: int
    rss_bytes: int
    anonymous_bytes: int
    fds: int
    threads: int
    cpu_s: float
    ended: int = 0
    once: int = 0


def look(pid: int, *, ended: int = 0, once: int = 0) -> Sample:
    """Return a sample of a process, which has said how many ended jobs and tokens it remembers.

    Raises:
        OSError: there is no such process.
    """
    folder = Path("/proc", str(pid))
    memory = _fields(folder / "smaps_rollup")
    stat = (folder / "stat").read_text().rpartition(")")[2].split()
    return Sample(
        at_s=time.monotonic(),
        pid=pid,
        rss_bytes=memory["Rss"] * _KB,
        anonymous_bytes=memory["Anonymous"] * _KB,
        fds=sum(1 for _ in (folder / "fd").iterdir()),
        threads=int(stat[17]),
        cpu_s=(int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
        ended=ended,
        once=once,
    )


def _fields(path: Path) -> dict[str, int]:
    found = {}
    for line in path.read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0])
    return found


def slope(points: Sequence[tuple[float, ...]]) -> float:
    """Return by how much y rises with x, by least squares over (x, y, others that y follows too).

    What y owes to the others is taken off, as far as it is in proportion to them; 0 where the
    points do not tell.
    """
    rows = [(1.0, x, *others) for x, _y, *others in points]
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)] if rows else []
    rows = [(1.0, *(v - m for v, m in zip(row[1:], means[1:], strict=True))) for row in rows]
    found = _least_squares(rows, [point[1] for point in points])
    return found[1] if len(found) > 1 else 0.0


def _least_squares(rows: list[tuple[float, ...]], ys: list[float]) -> list[float]:
    """Return what each column counts for; 0 for one that says nothing new."""
    size = len(rows[0]) if rows else 0
    table = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)]
        + [sum(row[i] * y for row, y in zip(rows, ys, strict=True))]
        for i in range(size)
    ]
    scales = [table[i][i] or 1.0 for i in range(size)]
    found = [0.0] * size
    used: list[int] = []
    for i in range(size):
        if abs(table[i][i]) < TINY * scales[i]:
            continue
        used.append(i)
        for k in range(size):
            if k != i:
                factor = table[k][i] / table[i][i]
                table[k] = [a - factor * b for a, b in zip(table[k], table[i], strict=True)]
    for i in used:
        found[i] = table[i][size] / table[i][i]
    return found


def floors(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the lowest y of each minute, as (x of the minute's middle, y).

    What a fault takes for a moment and gives back is not in it; what stays is.
    """
    minutes: defaultdict[int, list[float]] = defaultdict(list)
    for x, y in points:
        minutes[int(x // MINUTE_S)].append(y)
    return [((minute + 0.5) * MINUTE_S, min(ys)) for minute, ys in sorted(minutes.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """How much more the process holds after an hour, by least squares over a window.

    Attributes:
        rss_mb: through all samples, with what goes up and down with the remembered jobs and
            tokens taken off.
        raw_mb: with nothing taken off.
        anonymous_mb: as ``rss_mb``, of anonymous memory.
        fds: through the lowest of each minute.
        threads: the same.
        lives: processes in the window; more than one cannot be compared.
    """

    rss_mb: float
    raw_mb: float
    anonymous_mb: float
    fds: float
    threads: float
    lives: int

    def faults(self) -> list[str]:
        """Return what is wrong with them."""
        said = []
        if self.lives != 1:
            said.append(f"the window has {self.lives} lives of the server, not one")
        if not self.rss_mb < RSS_MB_PER_H_MAX:
            said.append(f"memory grows by {self.rss_mb:.2f} MB/h, not under 1")
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

    def beside(name: str) -> float:
        rows = zip(points(name), samples, strict=True)
        return slope([(x, y, float(s.ended), float(s.once)) for (x, y), s in rows]) * HOUR_S / 1e6

    def floor(name: str) -> float:
        return slope(floors(points(name))) * HOUR_S

    return Slopes(
        rss_mb=beside("rss_bytes"),
        raw_mb=slope(points("rss_bytes")) * HOUR_S / 1e6,
        anonymous_mb=beside("anonymous_bytes"),
        fds=floor("fds"),
        threads=floor("threads"),
        lives=len({s.pid for s in samples}),
    )
