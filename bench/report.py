"""What is written about results: the table for people, the JSON file, the comparison with one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, cast

from bench.harness import DISTURBED_LOAD, BenchError, Machine, Plot, Result

FORMAT: Final = 1  # of the JSON file; a field more does not change it
NOISE: Final = 0.05  # half the width that a figure has at least, however few rounds it had
HIGHER_IS_BETTER: Final = ("/s",)  # how a unit ends
LOWER_IS_BETTER: Final = frozenset({"B", "s", "ms", "us", "ns", "us/cmd", "us/job", "jobs"})

Json = Mapping[str, object]


# ---------------------------------------------------------------- for people


def shown(value: float) -> str:
    """Return a number with as many digits as one can rely on."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(row: Result) -> str:
    """Return the least and the greatest round."""
    return f"{shown(row.spread[0])} .. {shown(row.spread[1])}" if row.spread else ""


def heading(machine: Machine) -> list[str]:
    """Return what a reader must know of the machine."""
    lines = [
        (
            f"{machine.cpu_count} x {machine.cpu}, {machine.memory_gib} GiB, "
            f"Linux {machine.kernel}, {machine.filesystem}, huge pages {machine.huge_pages}"
        ),
        f"fdatasync of 4 KiB: {machine.fdatasync_us:.0f} us; load before: {machine.load_1min:.2f}",
        (
            f"{', '.join(f'{name} {text}' for name, text in machine.versions.items())}; "
            f"commit {machine.commit}"
        ),
    ]
    if machine.load_1min > DISTURBED_LOAD * machine.cpu_count:
        lines.append("other programs keep the CPUs busy: trust ratios, not rates")
    return lines


def table(machine: Machine, results: Sequence[Result]) -> str:
    """Return machine and results as text: the median, the rounds' spread, the target."""
    lines = [
        *heading(machine),
        "",
        (f"{'figure':<84}{'median':>18}{'least .. greatest':>24}{'target':>10}  {'':<13}command"),
    ]
    for row in results:
        measured = "-" if row.value is None else f"{shown(row.value)} {row.unit}"
        lines.append(
            f"{row.figure:<84}{measured:>18}{spread(row):>24}{row.target:>10}"
            f"  {row.verdict:<13}{row.command}"
        )
        if row.why:
            lines.append(f"    {row.why}")
    return "\n".join(lines)


# ---------------------------------------------------------------- JSON


def to_json(machine: Machine, results: Sequence[Result]) -> str:
    """Return machine and results as JSON."""
    rows = [{**asdict(row), "verdict": row.verdict} for row in results]
    document = {"format": FORMAT, "machine": asdict(machine), "results": rows}
    return json.dumps(document, indent=2) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A JSON file as it was read.

    Attributes:
        machine: its fields by name.
        results: the rows.
    """

    machine: Json
    results: tuple[Result, ...]


def _result(row: Json) -> Result:
    values = {name: row[name] for name in Result.__dataclass_fields__ if name in row}
    values["rounds"] = tuple(cast("list[float]", row.get("rounds", [])))
    if (place := cast("Json | None", row.get("plot"))) is not None:
        values["plot"] = Plot(
            chart=str(place["chart"]),
            series=str(place["series"]),
            at=cast("str | int", place["at"]),
        )
    return Result(**values)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def read(path: Path) -> Report:
    """Return the report that stands in a file.

    Raises:
        BenchError: there is no such file, or it holds something else.
    """
    try:
        document = cast("Json", json.loads(path.read_text(encoding="utf-8")))
        rows = cast("list[Json]", document["results"])
        machine = cast("Json", document["machine"])
        return Report(machine=machine, results=tuple(_result(row) for row in rows))
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise BenchError(f"{path} is no report of `wheeld bench --json`: {error!r}") from error


# ---------------------------------------------------------------- comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure then and now.

    Attributes:
        figure: its name.
        before: the median then; None = there was none.
        now: the median now; None = it was not measured.
        unit: of both.
        ratio: now / before; None when one is missing or before was 0.
        word: better, worse, same, moved (which way is better is not known), new or gone.
        fails: a figure with a target got worse beyond the spread of the rounds.
    """

    figure: str
    before: float | None
    now: float | None
    unit: str
    ratio: float | None
    word: str
    fails: bool


def better_is(row: Result) -> int:
    """Return 1 when more is better, -1 when less is, 0 when one cannot say."""
    if row.at_least is not None:
        return 1
    if row.at_most is not None:
        return -1
    if row.unit.endswith(HIGHER_IS_BETTER):
        return 1
    return -1 if row.unit in LOWER_IS_BETTER else 0


def width(row: Result) -> tuple[float, float]:
    """Return the range in which a figure lies: its rounds, and 5 % about the median."""
    assert row.value is not None
    least, most = row.spread or (row.value, row.value)
    noise = NOISE * abs(row.value)
    return min(least, row.value - noise), max(most, row.value + noise)


def _change(old: Result, new: Result) -> Change:
    if old.value is None or new.value is None:
        word = "same" if old.value is new.value else ("new" if old.value is None else "gone")
        ratio = None
    else:
        ratio = new.value / old.value if old.value else None
        (old_least, old_most), (new_least, new_most) = width(old), width(new)
        moved = 1 if new_least > old_most else (-1 if new_most < old_least else 0)
        words = {1: "better", -1: "worse", 0: "moved"}
        word = words[moved * better_is(new)] if moved else "same"
    fails = bool(new.target or old.target) and word in {"worse", "gone"}
    return Change(
        figure=new.figure,
        before=old.value,
        now=new.value,
        unit=new.unit,
        ratio=ratio,
        word=word,
        fails=fails,
    )


def compare(old: Sequence[Result], new: Sequence[Result]) -> list[Change]:
    """Return each figure that was measured now, beside what it was; figures are matched by name.

    Worse or better it is only beyond the spread: when all rounds of the one, and 5 % about its
    median, lie on one side of those of the other.
    """
    before = {row.figure: row for row in old}
    changes: list[Change] = []
    for row in new:
        if row.figure in before:
            changes.append(_change(before[row.figure], row))
            continue
        changes.append(
            Change(
                figure=row.figure,
                before=None,
                now=row.value,
                unit=row.unit,
                ratio=None,
                word="new",
                fails=False,
            )
        )
    return changes


def comparison(report: Report, machine: Machine, changes: Sequence[Change]) -> str:
    """Return the changes as text for people."""
    lines = [f"against commit {report.machine.get('commit')}:"]
    for name in ("cpu", "cpu_count", "kernel"):
        now = getattr(machine, name)
        if (then := report.machine.get(name)) != now:
            lines.append(f"  another machine ({name} {then}, now {now}): compare ratios alone")
    lines.append(f"{'figure':<84}{'before':>14}{'now':>14}{'ratio':>8}  ")
    for change in changes:
        before, now = (
            "-" if value is None else shown(value) for value in (change.before, change.now)
        )
        ratio = "" if change.ratio is None else f"{change.ratio:.2f}x"
        mark = change.word.upper() if change.fails else change.word
        lines.append(f"{change.figure:<84}{before:>14}{now:>14}{ratio:>8}  {mark:<7} {change.unit}")
    return "\n".join(lines)
