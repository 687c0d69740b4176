"""Pictures of results, PNG and SVG: throughput, lateness, memory, cost by size.

    python -m bench.run --json now.json ... ; python -m bench.plots now.json docs/plots

A picture is drawn from the rows that name it (``harness.Plot``) and from nothing else. Colours are
those of Okabe and Ito, which people with any kind of colour blindness tell apart; lines differ in
their marks too, and bars carry their numbers. matplotlib is needed (dependency group ``bench``).
"""
# pyright: basic

import argparse
import importlib
import importlib.util
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from types import ModuleType
from typing import Final

from bench.harness import BenchError, Result
from bench.report import read, shown

COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
SERVERS: Final = {
    "wheeld": COLOURS[0],
    "Redis ZADD": COLOURS[1],
    "Redis HSET+ZADD": COLOURS[2],
    "beanstalkd": COLOURS[3],
    "PostgreSQL": COLOURS[4],
    "PostgreSQL INSERT": COLOURS[4],
    "PostgreSQL COPY": COLOURS[5],
}  # in this order, ours first; a server has one colour in all pictures
MARKS: Final = ("o", "s", "^", "D", "v", "P", "X")
DPI: Final = 144
LINE: Final = 14  # letters under a place
MANY: Final = 5  # places; with more the letters are smaller
SUFFIXES: Final = (".png", ".svg")
NO_MATPLOTLIB: Final = (
    "--plots needs matplotlib, which is not installed: pip install matplotlib "
    "(in a checkout: pip install --group bench)"
)


Series = dict[str, dict[str | int, Result]]  # by name, then by place


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture.

    Attributes:
        title: above it.
        y: what its other axis shows, with the unit.
        x: under it; "" = the places are loads in words, and bars are drawn, else lines.
        log: whether y is drawn by powers of ten.
    """

    title: str
    y: str
    x: str = ""
    log: bool = False


CHARTS: Final[dict[str, Chart]] = {
    "throughput": Chart(title="Jobs scheduled a second", y="jobs a second", log=True),
    "cpu": Chart(title="What one scheduled job costs the server", y="CPU time a job, us"),
    "cycle": Chart(title="Jobs leased and acknowledged a second", y="jobs a second", log=True),
    "lateness": Chart(title="From due to sent", y="ms", log=True),
    "herd": Chart(title="Jobs due in one millisecond: until the last is done", y="s"),
    "memory": Chart(title="Memory of a job with a payload of 100 bytes", y="bytes a job"),
    "restart": Chart(title="Jobs back in memory a second of start", y="jobs a second"),
    "wheel": Chart(title="The wheel beside other queues", y="ns an operation", log=True),
    "growth": Chart(
        title="Cost of an operation as the number of timers grows",
        y="ns an operation",
        x="timers",
    ),
}


def has_matplotlib() -> bool:
    """Return whether pictures can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def of_chart(chart: str, results: Sequence[Result]) -> Series:
    """Return the figures of one picture: series -> place -> row. Ours is the first series.

    Raises:
        BenchError: two rows have one place.
    """
    series: Series = {}
    for row in results:
        if row.plot is None or row.plot.chart != chart or row.value is None:
            continue
        places = series.setdefault(row.plot.series, {})
        if row.plot.at in places:
            raise BenchError(f"two figures of {chart} stand at {row.plot.series}, {row.plot.at}")
        places[row.plot.at] = row
    known = {name: place for place, name in enumerate(SERVERS)}
    return dict(sorted(series.items(), key=lambda item: known.get(item[0], len(known))))


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """Draw every picture that has figures, and return the files.

    Raises:
        BenchError: there is no matplotlib, or a row names a picture that there is not.
    """
    if not has_matplotlib():
        raise BenchError(NO_MATPLOTLIB)
    named = {row.plot.chart for row in results if row.plot is not None}
    if unknown := named - CHARTS.keys():
        raise BenchError(f"no picture {', '.join(sorted(unknown))} in bench/plots.py")
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    for name, chart in CHARTS.items():
        if series := of_chart(name, results):
            made += _save(chart, series, folder / name)
    return made


def colour(name: str, place: int) -> str:
    """Return a server's own colour, or for any other series the one of its place."""
    return SERVERS.get(name) or COLOURS[place % len(COLOURS)]


# ---------------------------------------------------------------- matplotlib


def _save(chart: Chart, series: Series, path: Path) -> list[Path]:
    importlib.import_module("matplotlib").use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")
    style = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "both" if chart.x else "y",
        "grid.color": "#dddddd",
        "axes.axisbelow": True,
        "svg.hashsalt": path.name,  # the same picture is the same file
        "svg.fonttype": "none",
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
        (_lines if chart.x else _bars)(plt, chart, series)
        axes.set_title(chart.title, loc="left", fontweight="bold")
        axes.set_ylabel(chart.y)
        if not chart.log:
            axes.yaxis.set_major_formatter(lambda value, _place: f"{value:,.10g}")
        if len(series) > 1:
            figure.legend(
                frameon=False,
                ncols=3 if chart.x else min(4, len(series)),
                loc="outside lower center",
            )
        files = [path.with_suffix(suffix) for suffix in SUFFIXES]
        for file in files:
            dates = {"Date": None} if file.suffix == ".svg" else None
            figure.savefig(file, dpi=DPI, metadata=dates, facecolor="white")
        plt.close(figure)
    return files


def _errors(rows: Sequence[Result]) -> list[list[float]] | None:
    """Return how far the least and the greatest round lie from the medians; None: one round."""
    if not any(row.spread for row in rows):
        return None
    spreads = [row.spread or (row.value or 0, row.value or 0) for row in rows]
    values = [row.value or 0 for row in rows]
    below = [max(0.0, value - least) for value, (least, _) in zip(values, spreads, strict=True)]
    above = [max(0.0, most - value) for value, (_, most) in zip(values, spreads, strict=True)]
    return [below, above]


def _short(value: float) -> str:
    """Return a number that fits above a bar."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= (size if size > 1e3 else 10 * size):
            return f"{value / size:.3g} {letter}"
    return shown(value)


def _bars(plt: ModuleType, chart: Chart, series: Series) -> None:
    axes = plt.gca()
    places = list(dict.fromkeys(at for rows in series.values() for at in rows))
    here = {place: [name for name, rows in series.items() if place in rows] for place in places}
    width = 0.8 / max(len(names) for names in here.values())
    bars = sum(map(len, here.values()))
    for i, (name, rows) in enumerate(series.items()):
        at = [j for j, place in enumerate(places) if place in rows]
        found = [rows[places[j]] for j in at]
        # The bars of a place stand together about its middle, however many they are.
        x = [j + (here[places[j]].index(name) - (len(here[places[j]]) - 1) / 2) * width for j in at]
        axes.bar(
            x,
            [row.value or 0 for row in found],
            width * 0.92,
            label=name,
            color=colour(name, i),
            yerr=_errors(found),
            error_kw={"lw": 1, "capsize": 2, "ecolor": "#333333"},
        )
        for left, row in zip(x, found, strict=True):
            axes.annotate(
                _short(row.value or 0),
                (left, max(row.value or 0, row.spread[1] if row.spread else 0)),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=7 if bars > 12 else 8,
                rotation=90 if bars > 18 else 0,
            )
    words = [_wrapped(str(place)) for place in places]
    axes.set_xticks(range(len(places)), words, fontsize=9 if len(places) > MANY else None)
    axes.set_xlim(-0.5, len(places) - 0.5)
    if chart.log:
        axes.set_yscale("log")
    axes.margins(y=0.15 if bars > 18 else 0.1)


def _wrapped(text: str) -> str:
    """Return a load's words on lines of their own."""
    text = text.replace(",000,000 ", " M ")
    return "\n".join(line for part in text.split(", ") for line in wrap(part, LINE))


def _lines(plt: ModuleType, chart: Chart, series: Series) -> None:
    axes = plt.gca()
    for i, (name, rows) in enumerate(series.items()):
        sizes = sorted(int(at) for at in rows)
        found = [rows[size] for size in sizes]
        axes.errorbar(
            sizes,
            [row.value for row in found],
            yerr=_errors(found),
            label=name,
            color=colour(name, i),
            marker=MARKS[i % len(MARKS)],
            capsize=2,
            lw=1.8,
        )
    ticks = sorted({int(at) for rows in series.values() for at in rows})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [_short(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(chart.x)
    if chart.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * max(_highest(rows) for rows in series.values()))


def _highest(rows: dict[str | int, Result]) -> float:
    highest = max(max(row.value or 0, row.spread[1] if row.spread else 0) for row in rows.values())
    return highest if math.isfinite(highest) else 1.0


def main() -> int:
    """Return the exit status: 2 when nothing could be drawn."""
    parser = argparse.ArgumentParser(description="Draw a report of `wheeld bench --json`.")
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        made = draw(read(options.report).results, options.folder)
    except BenchError as error:
        sys.stderr.write(f"plots: {error}\n")
        return 2
    sys.stdout.writelines(f"{path}\n" for path in made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
