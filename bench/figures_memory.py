"""W3: what a job weighs in memory, and how soon all jobs are back after a stop and after kill -9.

Memory is the server's RSS with all jobs, less what it had before. A restart is from the start of
the process to its first answer, warm (the files are in the page cache); every job is counted
afterwards. wheeld starts three ways: from the log alone, as after a kill -9 before any checkpoint;
from a checkpoint of four fifths of the jobs and the log of the rest, after kill -9; and after
SIGTERM. Redis keeps a hash of payloads beside its sorted set here, or a job could not be looked up
by its id.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from bench import loader, loads
from bench.harness import PATIENCE_S, BenchError, Plot, Result, Scale, middle
from bench.peers import Peer, beanstalkd, has_beanstalkd, has_redis, redis, wheeld

COMMAND: Final = "python -m bench.run memory"
BYTES_MOST: Final = 190.0  # a job of 100 bytes without a key, at BIG jobs
RATE_LEAST: Final = 2.5e6  # jobs a second of a warm start, at BIG jobs
BIG: Final = 10_000_000
PRODUCERS, DEPTH = 4, 100
FILL_S: Final = 600
LOG_ALONE: Final = ("--checkpoint-after", "1T")
AFTER_SAVE: Final = 5  # one in so many jobs comes after the checkpoint

Start = Callable[[], AbstractContextManager[Peer]]


def _row(figure: str, unit: str, values: Sequence[float], **fields: float | Plot | None) -> Result:
    return Result(
        figure=figure,
        value=middle(values),
        unit=unit,
        rounds=tuple(values),
        command=COMMAND,
        **fields,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    )


def _fill(server: Peer, jobs: int) -> None:
    """Schedule so many far-future jobs more."""
    there = server.jobs()
    loader.run(server, seconds=FILL_S, producers=PRODUCERS, depth=DEPTH, jobs=jobs)
    if (now := server.jobs()) != there + jobs:
        raise BenchError(f"{server.name}: {now} jobs, of {there + jobs}")


# ---------------------------------------------------------------- memory


def _bytes_a_job(start: Start, jobs: int, fill: Callable[[Peer, int], None]) -> float:
    with start() as server:
        before = server.resident_bytes()
        fill(server, jobs)
        return (server.resident_bytes() - before) / jobs


def _keyed(server: Peer, jobs: int) -> None:
    loads.schedule_keyed(server, loads.far_dues_ms(jobs))


def _memory(folder: Path, scale: Scale) -> Iterator[Result]:
    """Yield bytes a job. Exact enough to be taken once."""
    most = scale.jobs_large[-1]
    few = min(most, scale.peer_jobs)
    cases: list[tuple[str, int, str, Start, Callable[[Peer, int], None]]] = [
        ("wheeld", jobs, "no key", lambda: wheeld(folder / "w", fsync="off"), _fill)
        for jobs in scale.jobs_large
    ]
    ours = lambda: wheeld(folder / "k", fsync="off")  # noqa: E731 -- as the lines around it
    cases.append(("wheeld", few, "20-byte key", ours, _keyed))
    if has_redis():
        hset = lambda: redis(folder / "h", append="none", dialect="hset")  # noqa: E731
        zadd = lambda: redis(folder / "z", append="none")  # noqa: E731
        cases += [("Redis HSET+ZADD", few, "no key", hset, _fill)]
        cases += [("Redis ZADD", few, "no key", zadd, _fill)]
    if has_beanstalkd():
        tubes = lambda: beanstalkd(folder / "b", sync_ms=None)  # noqa: E731
        cases.append(("beanstalkd", few, "no key", tubes, _fill))
    for name, jobs, key, start, fill in cases:
        scale.progress(f"memory of {jobs:,} jobs, {name}, {key}")
        is_target = jobs >= BIG and key == "no key"
        here = _bytes_a_job(start, jobs, fill)
        _forget(folder)
        yield Result(
            figure=f"memory a job, payload of 100 bytes, {key}, {jobs:,} jobs: {name}",
            value=here,
            unit="B",
            at_most=BYTES_MOST if is_target else None,
            command=COMMAND,
            plot=Plot(chart="memory", series=name, at=f"{jobs:,} jobs, {key}"),
        )


def _forget(folder: Path) -> None:
    """Remove what servers left: ten million jobs are gigabytes."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()


# ---------------------------------------------------------------- restart


def _started(start: Start, jobs: int) -> tuple[float, float, float | None]:
    """Return seconds to the first answer, CPU time in us, and the server's own of its replay.

    The server is killed afterwards, so that the next start finds the same files.
    """
    begun = time.monotonic()
    with start() as server:
        took_s, cpu_us = time.monotonic() - begun, server.cpu_us()
        if (found := server.jobs()) != jobs:
            raise BenchError(f"{server.name}: {found} jobs after the restart, not {jobs}")
        own = _replay_s(server.log) if server.dialect == "wheeld" else None
        _kill(server)
    return took_s, cpu_us, own


def _kill(server: Peer) -> None:
    server.process.kill()
    server.process.wait(PATIENCE_S)


def _replay_s(log: Path) -> float:
    """Return the seconds of the last replay that the server's log tells of."""
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    found = [event["took_s"] for event in events if event.get("event") == "replay_finished"]
    if not found:
        raise BenchError(f"{log.name} tells of no replay")
    return float(found[-1])


def _restarts(how: str, start: Start, jobs: int, scale: Scale) -> Iterator[Result]:
    scale.progress(f"restart with {jobs:,} jobs, {how}")
    _started(start, jobs)  # warms the cache
    times = [_started(start, jobs) for _ in range(scale.rounds)]
    name, _, case = how.partition(", ")
    text = f"restart with {jobs:,} jobs, {case}: {name}"
    yield _row(f"{text}, to the first answer", "s", [took for took, _, _ in times])
    yield _row(f"{text}, CPU", "us/job", [cpu_us / jobs for _, cpu_us, _ in times])
    own = [took for _, _, took in times if took is not None]
    target = RATE_LEAST if own and jobs >= BIG else None
    yield _row(
        f"{text}, warm",
        "jobs/s",
        [jobs / took for took in (own or [took for took, _, _ in times])],
        at_least=target,
        plot=Plot(chart="restart", series=name, at=f"{jobs:,} jobs, {case}"),
    )


def _ours(folder: Path, scale: Scale, jobs: int) -> Iterator[Result]:
    def alone() -> AbstractContextManager[Peer]:
        return wheeld(folder / "log", fsync="interval", options=LOG_ALONE)

    with alone() as server:
        _fill(server, jobs)
        _kill(server)
    yield from _restarts("wheeld, kill -9, log alone", alone, jobs, scale)

    def saved() -> AbstractContextManager[Peer]:
        return wheeld(folder / "saved", fsync="interval", options=LOG_ALONE)

    behind = jobs // AFTER_SAVE
    with saved() as server:
        _fill(server, jobs - behind)
        server.wire.sock.settimeout(FILL_S)
        if isinstance(reply := server.wire.ask("SAVE"), Exception):
            raise BenchError(f"SAVE answered {reply}")
        _fill(server, behind)
        _kill(server)
    yield from _restarts("wheeld, kill -9, 4/5 in a checkpoint", saved, jobs, scale)
    with saved() as server:
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE_S)
    yield from _restarts("wheeld, after SIGTERM", saved, jobs, scale)


def _peers(folder: Path, scale: Scale, jobs: int) -> Iterator[Result]:
    starts: dict[str, tuple[bool, Start]] = {
        "Redis HSET+ZADD": (
            has_redis(),
            lambda: redis(folder / "redis", append="everysec", dialect="hset"),
        ),
        "beanstalkd": (has_beanstalkd(), lambda: beanstalkd(folder / "tubes", sync_ms=50)),
    }
    for name, (is_there, start) in starts.items():
        how = f"{name}, kill -9, log alone"
        if not is_there:
            yield Result(
                figure=f"restart with {jobs:,} jobs: {name}",
                value=None,
                unit="jobs/s",
                command=COMMAND,
                why=f"{name.partition(' ')[0]} is not installed",
            )
            continue
        with start() as server:
            _fill(server, jobs)
            _kill(server)  # what was written is in the kernel's hands
        yield from _restarts(how, start, jobs, scale)


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return bytes a job, and restarts, beside the peers."""
    results: list[Result] = list(_memory(folder, scale))
    for jobs in scale.jobs_large:
        results += _ours(folder, scale, jobs)
        _forget(folder)
    results += _peers(folder, scale, min(scale.jobs_large[-1], scale.peer_jobs))
    return results
