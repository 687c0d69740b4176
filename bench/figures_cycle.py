"""W2: the life of a job, from SCHEDULE to its acknowledgement, beside every peer that is installed.

*Life cycle*: as many producers as workers. Jobs are due at once, and producers wait while 10,000
are not done. A worker takes a batch, and sends its acknowledgement with the next claim in one
write; beanstalkd knows no batches, so there it is as many commands in one write. With batches of
one, producers send one command and wait for its reply; with batches of 100 they send 100.

*Lease and ack*: the jobs are there and due before 8 workers begin, and nothing is scheduled.

PostgreSQL: each connection stores a batch if that is asked for, claims one with SKIP LOCKED, and
deletes it, one statement each.
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
from bench.loader import Report
from bench.loader import run as load
from bench.peers import Peer
from bench.postgres import PAYLOAD, Postgres, life_cycle, postgres

COMMAND: Final = "python -m bench.run cycle"
BACKLOG: Final = 10_000
MANY: Final = 100
WORKERS: Final = 8
ENOUGH: Final = 50_000_000  # jobs: time ends these runs
DRAIN_S: Final = 60.0
SLOW_READY: Final = 1_000  # beanstalkd with a sync in each command; it is some thousand a second
POSTGRES_READY: Final = 20_000

Point = tuple[int, int]  # workers, jobs in a batch
POINTS: Final[dict[str, tuple[Point, ...]]] = {
    "off": ((1, 1), (8, 1), (16, 1), (1, MANY), (8, MANY), (16, MANY)),
    "always": ((1, 1), (8, 1), (8, MANY)),
}
WITH_TARGETS: Final[Point] = (WORKERS, MANY)
WITH_POSTGRES: Final[tuple[Point, ...]] = ((WORKERS, 1), (WORKERS, MANY))
# A sorted set alone keeps no table of jobs: beside it a whole life is shown without a target.
TARGETS: Final[dict[str, tuple[Target, ...]]] = {
    "off": (Target(peer=HSET, rate=3.0), Target(peer=BEANSTALKD, rate=10.0)),
    "always": (Target(peer=HSET, rate=1.2), Target(peer=BEANSTALKD, rate=10.0)),
}
CLAIM_TARGETS: Final = {"off": Target(peer=ZADD, rate=3.0), "always": Target(peer=ZADD, rate=1.2)}
NO_TARGET: Final = (Target(peer=BEST),)


# ---------------------------------------------------------------- loads


def live(server: Peer, point: Point, seconds: float) -> Sample:
    """Return what whole lives of jobs came to.

    Raises:
        BenchError: the server holds another number than was stored and not yet done.
    """
    workers, batch = point

    def done(report: Report) -> int:
        there = server.jobs()
        if report.sent != report.stored or there != report.stored - report.done:
            counts = f"{report.stored} of {report.sent} stored, {report.done} done, {there} there"
            raise BenchError(f"{server.name}: {counts}")
        return report.done

    return timed(
        server,
        lambda: load(
            server,
            seconds=seconds,
            producers=workers,
            depth=batch,
            jobs=ENOUGH,
            backlog=BACKLOG,
            workers=workers,
            batch=batch,
        ),
        done,
    )


def lease_and_ack(server: Peer, ready: int) -> Sample:
    """Return what working off jobs that are ready came to.

    Raises:
        BenchError: not all of them were done, or some are left.
    """
    stored = load(server, seconds=DRAIN_S, producers=WORKERS, depth=MANY, jobs=ready).stored

    def done(report: Report) -> int:
        there = server.jobs()
        if report.done != stored or there:
            raise BenchError(f"{server.name}: {report.done} of {stored} done, {there} left")
        return report.done

    return timed(
        server,
        lambda: load(server, seconds=DRAIN_S, workers=WORKERS, batch=MANY, expect=stored),
        done,
    )


def _on_postgres(server: Postgres, point: Point, *, ready: int) -> Sample:
    """Return the same by PostgreSQL; ready = 0: whole lives, for a second."""
    workers, batch = point
    server.empty()
    words = ("-T", "1")
    if ready:
        server.sql(
            "INSERT INTO jobs (handler, payload, next_run_at) "
            f"SELECT 'mail', '{PAYLOAD}', now() FROM generate_series(1, {ready}); ANALYZE jobs"
        )
        words = ("-t", str(ready // batch // workers))
    before_us = server.cpu_us()
    ran = server.pgbench(life_cycle(batch, store=not ready), *words, clients=workers)
    jobs = ran.transactions * batch
    return Sample(rate=ran.rate * batch, cpu_us=(server.cpu_us() - before_us) / jobs)


# ---------------------------------------------------------------- contests


def _contests(fsync: str, scale: Scale) -> dict[Point, Contest]:
    found: dict[Point, Contest] = {}
    for workers, batch in POINTS[fsync] if scale.all_points else (WITH_TARGETS,):
        many = f"{workers} worker" + ("s" if workers > 1 else "")
        text = f"W2 {fsync}, life cycle, {many}, batches of {batch}"
        drawn = (workers, batch) == WITH_TARGETS
        found[workers, batch] = Contest(
            text=text,
            command=COMMAND,
            at=f"{fsync}, whole life",
            rate_chart="cycle" if drawn else "",
        )
    return found


def _postgres(
    fsync: str, lives: dict[Point, Contest], drained: Contest, folder: Path, scale: Scale
) -> None:
    """Let PostgreSQL take part; or say why it does not."""
    taking = {point: lives[point] for point in WITH_POSTGRES if point in lives}
    try:
        with postgres(folder, durable=fsync == "always") as server:
            for round_number in range(scale.rounds):
                scale.progress(f"W2 {fsync}, PostgreSQL, round {round_number + 1}")
                for point, contest in taking.items():
                    contest.add(POSTGRES, _on_postgres(server, point, ready=0))
                sample = _on_postgres(server, (WORKERS, MANY), ready=POSTGRES_READY)
                drained.add(POSTGRES, sample)
    except BenchError as error:
        for contest in (*taking.values(), drained):
            contest.whys[POSTGRES] = str(error)


def _mode(fsync: str, folder: Path, scale: Scale) -> list[Result]:
    starts = contenders(fsync)
    lives = _contests(fsync, scale)
    for point, contest in lives.items():
        compete(contest, folder, scale, starts, partial(live, point=point, seconds=scale.run_s))
    drained = Contest(
        text=f"W2 {fsync}, lease and ack of ready jobs, {WORKERS} workers, batches of {MANY}",
        command=COMMAND,
        at=f"{fsync}, ready jobs",
        rate_chart="cycle",
    )

    def drain(server: Peer) -> Sample:
        slow = fsync == "always" and server.dialect == "beanstalkd"
        return lease_and_ack(server, SLOW_READY if slow else scale.backlog_jobs)

    compete(drained, folder, scale, starts, drain)
    _postgres(fsync, lives, drained, folder, scale)
    rows = [] if fsync == "off" else [disk_row(drained, folder, scale)]
    for point, contest in lives.items():
        targets = (Target(peer=ZADD), *TARGETS[fsync]) if point == WITH_TARGETS else NO_TARGET
        rows += contest.rows(*targets)
        if point in WITH_POSTGRES and contest.whys:
            rows.append(contest.missing(POSTGRES, "jobs/s", contest.whys[POSTGRES]))
    return [*rows, *drained.rows(CLAIM_TARGETS[fsync], *TARGETS[fsync], Target(peer=POSTGRES))]


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return jobs a second and CPU time a job, ours beside the peers'."""
    return [row for fsync in POINTS for row in _mode(fsync, folder, scale)]
