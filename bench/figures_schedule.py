"""W1: a million far-future jobs, or what a second holds of them, beside every installed peer.

Jobs have 100 bytes of payload and are due at random within 30 days from 2033 on. Connections send
one command and wait for its reply, or 16 in one write and wait for all replies. PostgreSQL gets
single INSERTs from as many connections, and COPY of 10,000 rows a transaction over two.
"""

from functools import partial
from pathlib import Path
from typing import Final

from bench.contests import (
    BEANSTALKD,
    BEST,
    HSET,
    POSTGRES,
    ZADD,
    Contest,
    Sample,
    Target,
    compete,
    contenders,
    disk_row,
    timed,
)
from bench.harness import BenchError, Result, Scale
from bench.loader import SEED, Report
from bench.loader import run as load
from bench.peers import Peer
from bench.postgres import INSERT_FAR, Postgres, postgres

COMMAND: Final = "python -m bench.run schedule"
FAR_MS: Final = 2_000_000_000_000  # 2033: nothing of it falls due while we measure
SPAN_MS: Final = 30 * 86_400_000
DEEP: Final = 16
WHOLE_S: Final = 15.0
COPY_ROWS: Final = 200_000
INSERT_S: Final = "2"  # whole seconds, and fifty connections have to be made within
COPY: Final = f"{POSTGRES} COPY"
INSERT: Final = f"{POSTGRES} INSERT"

Shape = tuple[int, int]  # connections, commands in one write
ONE: Final = (1, 1)
MANY: Final = (50, 1)
ONE_DEEP: Final = (1, DEEP)
MANY_DEEP: Final = (50, DEEP)

POINTS: Final[dict[str, tuple[Shape, ...]]] = {
    "off": (ONE, ONE_DEEP, MANY, MANY_DEEP),
    "interval": (MANY, MANY_DEEP),
    "always": (ONE, ONE_DEEP, MANY, MANY_DEEP),
}
TARGETS: Final[dict[tuple[str, Shape], tuple[Target, ...]]] = {
    ("off", MANY): (
        Target(peer=ZADD, rate=2.0, cpu=0.4),
        Target(peer=BEANSTALKD, rate=1.3, cpu=0.8),
        Target(peer=HSET),
    ),
    ("off", MANY_DEEP): (
        Target(peer=ZADD, rate=6.0),
        Target(peer=BEANSTALKD, rate=5.0),
        Target(peer=HSET),
    ),
    ("always", ONE): (Target(peer=BEST, rate=0.9),),
    ("always", MANY): (Target(peer=ZADD, rate=1.4), Target(peer=BEANSTALKD, rate=10.0)),
    ("always", MANY_DEEP): (
        Target(peer=ZADD, rate=4.0),
        Target(peer=BEANSTALKD, rate=10.0),
        Target(peer=COPY, rate=2.0),
    ),
}
NO_TARGET: Final = (Target(peer=BEST),)


def words(shape: Shape) -> str:
    """Return a shape in words."""
    connections, depth = shape
    many = f"{connections} connection" + ("s" if connections > 1 else "")
    return f"{many}, {depth} deep" if depth > 1 else f"{many}, unpipelined"


def far(server: Peer, shape: Shape, jobs: int, seconds: float) -> Report:
    """Have jobs scheduled that are not due for years, with no connection but the load's."""
    with server.alone():
        return load(
            server,
            seconds=seconds,
            producers=shape[0],
            depth=shape[1],
            jobs=jobs,
            at_ms=FAR_MS,
            span_ms=SPAN_MS,
        )


def schedule(server: Peer, shape: Shape, jobs: int, seconds: float) -> Sample:
    """Return what scheduling far-future jobs came to.

    Raises:
        BenchError: the server does not hold as many jobs as it has confirmed.
    """

    def stored(report: Report) -> int:
        there = server.jobs()
        if not report.sent == report.stored == there:
            counts = f"{report.sent} sent, {report.stored} confirmed, {there} there"
            raise BenchError(f"{server.name}: {counts}")
        return report.stored

    return timed(server, lambda: far(server, shape, jobs, seconds), stored)


def _inserted(server: Postgres, clients: int) -> Sample:
    server.empty()
    before_us = server.cpu_us()
    ran = server.pgbench(INSERT_FAR, "-T", INSERT_S, clients=clients)
    return Sample(rate=ran.rate, cpu_us=(server.cpu_us() - before_us) / ran.transactions)


def _copied(server: Postgres) -> Sample:
    server.empty()
    before_us = server.cpu_us()
    seconds = server.copy(COPY_ROWS)
    used_us, rows = server.cpu_us() - before_us, server.jobs()
    return Sample(rate=rows / seconds, cpu_us=used_us / rows)


def _postgres(contests: dict[Shape, Contest], folder: Path, scale: Scale) -> None:
    """Let PostgreSQL take part in the contests with fsync always; or say why it does not."""
    try:
        with postgres(folder, durable=True) as server:
            for round_number in range(scale.rounds):
                scale.progress(f"W1, PostgreSQL {server.version}, round {round_number + 1}")
                for shape in (ONE, MANY):
                    contests[shape].add(INSERT, _inserted(server, shape[0]))
                contests[MANY_DEEP].add(COPY, _copied(server))
    except BenchError as error:
        for contest in contests.values():
            contest.whys |= {COPY: str(error), INSERT: str(error)}


def _contest(fsync: str, shape: Shape) -> Contest:
    drawn = shape in {MANY, MANY_DEEP}
    return Contest(
        text=f"W1 {fsync}, {words(shape)}",
        command=COMMAND,
        at=f"{fsync}, {shape[1]} deep" if shape[1] > 1 else f"{fsync}, unpipelined",
        rate_chart="throughput" if drawn else "",
        cpu_chart="cpu" if drawn else "",
    )


def _seconds(fsync: str, shape: Shape, scale: Scale) -> float:
    """Return how long one server is loaded at most.

    Where jobs come by the hundred thousand a second all of them are scheduled, because what a
    sorted set costs grows with its size; where that would take minutes a sample stands for it.
    """
    whole = scale.all_points and shape == MANY_DEEP and fsync != "interval"
    return WHOLE_S if whole else scale.run_s


def _mode(fsync: str, folder: Path, scale: Scale) -> list[Result]:
    contests = {
        shape: _contest(fsync, shape)
        for shape in POINTS[fsync]
        if scale.all_points or (fsync, shape) in TARGETS
    }
    if not contests:
        return []
    for shape, contest in contests.items():
        seconds = _seconds(fsync, shape, scale)
        run_shape = partial(schedule, shape=shape, jobs=scale.far_jobs, seconds=seconds)
        compete(contest, folder, scale, contenders(fsync), run_shape)
    if fsync == "always":
        _postgres(contests, folder, scale)
    rows: list[Result] = []
    if fsync != "off":
        first = Contest(text=f"W1 {fsync}", command=COMMAND)
        rows.append(disk_row(first, folder, scale))
    for shape, contest in contests.items():
        rows += contest.rows(*TARGETS.get((fsync, shape), NO_TARGET))
    return rows


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return jobs a second and CPU time a job, in each mode and shape, ours beside the peers'."""
    scale.progress(f"W1, due times from seed {SEED}")
    rows: list[Result] = []
    for fsync in POINTS:
        rows += _mode(fsync, folder, scale)
    return rows
