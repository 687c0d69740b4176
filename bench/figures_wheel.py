"""The timing wheel beside a 4-ary heap: the figures of bench/bench_wheel.py that have a target."""

from pathlib import Path

from bench.bench_wheel import TARGET_TIMERS, build, measure
from bench.harness import Result, Scale

COMMAND = "python bench/bench_wheel.py"


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return expiry, cancel, empty advance, longest call and memory of the wheel."""
    scale.progress("wheel beside heap")
    found = measure(build(folder), [TARGET_TIMERS], scale.wheel_rounds)
    return [
        Result(
            figure=f"wheel, {line.timers:,} timers: {line.name}",
            value=line.value,
            unit=line.unit,
            at_most=line.target,
            command=COMMAND,
        )
        for line in found
        if line.target is not None
    ]
