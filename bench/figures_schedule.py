"""SCHEDULE under redis-benchmark beside Redis's ZADD of the same payload, in interleaved rounds.

ZADD puts the payload into a sorted set by its due time, which is the least that a scheduler on
Redis does. Due times are random over 23 days for both. Each round starts both servers afresh.
Redis's PING under the same load is printed too: what a command costs that does nothing. Nearly all
of that is the kernel's receiving, sending and waking, which no server of this shape gets below.
"""

from dataclasses import dataclass
from pathlib import Path

from bench.harness import Result, Scale, middle
from bench.loads import RANDOM_PAYLOAD, Measured, redis_benchmark
from bench.peers import Peer, has_redis, redis, wheeld

OURS = ("SCHEDULE", "mail", "2__rand_int__", RANDOM_PAYLOAD)
THEIRS = ("ZADD", "queue", "2__rand_int__", RANDOM_PAYLOAD)
COMMAND = "python -m bench.run schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounds:
    """What a load came to, a round each; ``ping`` is the same load of PINGs on Redis."""

    ours: list[Measured]
    theirs: list[Measured]
    ping: list[Measured]


def _load(server: Peer, words: tuple[str, ...], requests: int, depth: int) -> Measured:
    redis_benchmark(server, *words, requests=requests // 10, pipeline=depth)  # warm up
    return redis_benchmark(server, *words, requests=requests, pipeline=depth)


def _rounds(folder: Path, scale: Scale, fsync: str, requests: int, depth: int) -> _Rounds:
    """Return what wheeld and Redis did in turn."""
    rounds = _Rounds(ours=[], theirs=[], ping=[])
    append = "none" if fsync == "off" else fsync
    for i in range(scale.rounds):
        scale.progress(f"schedule, fsync {fsync}, pipeline {depth}, round {i + 1}")
        with wheeld(folder / f"{fsync}-{depth}-{i}-w", fsync=fsync) as server:
            rounds.ours.append(_load(server, OURS, requests, depth))
        if not has_redis():
            continue
        with redis(folder / f"{fsync}-{depth}-{i}-r", append=append) as server:
            rounds.theirs.append(_load(server, THEIRS, requests, depth))
            rounds.ping.append(_load(server, ("PING",), requests, depth))
    return rounds


def _results(
    text: str, rounds: _Rounds, rate_target: float | None, cpu_target: float | None
) -> list[Result]:
    ours, theirs, ping = rounds.ours, rounds.theirs, rounds.ping
    rows = [
        _row(f"{text}: wheeld", "cmd/s", [m.rate for m in ours]),
        _row(f"{text}: wheeld, server CPU", "us/cmd", [m.cpu_us for m in ours]),
    ]
    if not theirs:
        why = "Redis is not installed"
        names = (f"{text}: rate beside Redis", f"{text}: server CPU a command beside Redis")
        missing = [
            Result(figure=name, value=None, unit="x", why=why, command=COMMAND) for name in names
        ]
        return rows + missing
    rates = [m.rate / n.rate for m, n in zip(ours, theirs, strict=True)]
    costs = [m.cpu_us / n.cpu_us for m, n in zip(ours, theirs, strict=True)]
    return [
        *rows,
        _row(f"{text}: Redis ZADD", "cmd/s", [m.rate for m in theirs]),
        _row(f"{text}: Redis ZADD, server CPU", "us/cmd", [m.cpu_us for m in theirs]),
        _row(f"{text}: Redis PING (the floor)", "cmd/s", [m.rate for m in ping]),
        _row(f"{text}: Redis PING (the floor), server CPU", "us/cmd", [m.cpu_us for m in ping]),
        _row(f"{text}: rate beside Redis ZADD", "x", rates, at_least=rate_target),
        _row(f"{text}: server CPU a command beside Redis ZADD", "x", costs, at_most=cpu_target),
    ]


def _row(
    figure: str,
    unit: str,
    values: list[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Result:
    return Result(
        figure=figure,
        value=middle(values),
        unit=unit,
        at_least=at_least,
        at_most=at_most,
        rounds=tuple(values),
        command=COMMAND,
    )


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return rates and CPU a command: unpipelined, 16 deep, and synced before every reply."""
    few, many = scale.requests, scale.requests_pipelined
    plain = _rounds(folder, scale, "off", few, 1)
    deep = _rounds(folder, scale, "off", many, 16)
    synced = _rounds(folder, scale, "always", few, 1)
    return [
        *_results("50 connections, fsync off", plain, 1.6, 0.45),
        *_results("50 connections, 16 deep, fsync off", deep, 5.0, None),
        *_results("50 connections, fsync always", synced, 1.3, None),
    ]
