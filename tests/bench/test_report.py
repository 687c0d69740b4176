"""What the bench says about figures: verdicts, spread, the JSON file, and what got worse."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from bench import plots, report, run
from bench.harness import BenchError, Machine, Plot, Result, Scale, compiled

MACHINE = Machine(
    cpu="a CPU",
    cpu_count=2,
    kernel="6.1",
    memory_gib=24.0,
    filesystem="ext4",
    fdatasync_us=120.0,
    load_1min=0.1,
    huge_pages="madvise",
    versions={"wheeld": "0.1.0", "redis": "not found"},
    commit="abc",
)


def row(value=100.0, *, rounds=(), **fields):
    fields = {"figure": "f", "unit": "jobs/s", **fields}
    return Result(value=value, rounds=tuple(rounds), **fields)


def change(old, new):
    (found,) = report.compare([old], [new])
    return found.word, found.fails


# ---------------------------------------------------------------- rows


def test_a_target_is_met_missed_or_not_measured():
    assert row(2.0, at_least=2.0).verdict == "ok"
    assert row(1.9, at_least=2.0).verdict == "MISSED"
    assert row(2.1, at_most=2.0).verdict == "MISSED"
    assert row(None, at_least=2.0).verdict == "not measured"
    assert row(5.0).verdict == ""


def test_the_spread_is_the_least_and_the_greatest_round():
    assert row(2.0, rounds=[3.0, 1.0, 2.0]).spread == (1.0, 3.0)
    assert row(2.0, rounds=[2.0]).spread is None
    assert report.spread(row(2.0, rounds=[3.0, 1.0, 2.0])) == "1 .. 3"


def test_the_table_shows_all_that_a_reader_must_know():
    rows = [
        row(1234.5, rounds=[1200.0, 1234.5, 1300.0], at_least=1000, command="the command"),
        row(None, figure="beside Redis", unit="x", why="Redis is not installed"),
    ]
    text = report.table(replace(MACHINE, load_1min=2.5), rows)
    for word in (
        "2 x a CPU",
        "120 us",
        "redis not found",
        "commit abc",
        "trust ratios, not rates",
        "1,234 jobs/s",
        "1,200 .. 1,300",
        ">= 1000",
        "ok",
        "the command",
        "not measured",
        "    Redis is not installed",
    ):
        assert word in text, word
    assert "trust ratios" not in report.table(MACHINE, rows)


def test_json_gives_back_what_was_written(tmp_path):
    rows = (
        row(2.0, rounds=[1.0, 2.0, 3.0], plot=Plot(chart="growth", series="insert", at=1000)),
        row(None, figure="g", why="no"),
    )
    path = tmp_path / "x.json"
    path.write_text(report.to_json(MACHINE, rows))
    read = report.read(path)
    assert read.results == rows
    assert read.machine["commit"] == "abc"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": {}, "results": [{"unit": "x"}]}'])
def test_another_file_is_refused_by_name(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"x\.json is no report of `wheeld bench --json`"):
        report.read(path)


# ---------------------------------------------------------------- then and now


def test_what_got_worse_beyond_the_spread_of_both_fails_when_it_has_a_target():
    old = row(100.0, rounds=[90.0, 100.0, 110.0], at_least=50)
    assert change(old, row(85.0, rounds=[80.0, 85.0, 89.0], at_least=50)) == ("worse", True)
    assert change(old, row(85.0, rounds=[80.0, 85.0, 91.0], at_least=50)) == ("same", False)
    assert change(old, row(120.0, rounds=[111.0, 120.0, 130.0], at_least=50)) == ("better", False)
    slower = [80.0, 85.0, 89.0]
    assert change(replace(old, at_least=None), row(85.0, rounds=slower)) == ("worse", False)


def test_less_is_better_for_an_upper_bound_and_for_times_and_bytes():
    ratio = {"unit": "x", "at_most": 4.0}
    assert change(row(1.0, **ratio), row(1.2, **ratio)) == ("worse", True)
    assert change(row(1.0, unit="ns"), row(0.8, unit="ns")) == ("better", False)
    assert change(row(1.0, unit="x"), row(0.8, unit="x")) == ("moved", False)


def test_one_round_counts_with_five_percent_about_it():
    assert change(row(100.0, at_least=1), row(91.0, at_least=1)) == ("same", False)
    assert change(row(100.0, at_least=1), row(90.0, at_least=1)) == ("worse", True)


def test_a_figure_that_is_not_measured_any_more_fails_when_it_has_a_target():
    assert change(row(1.0, at_least=1), row(None, at_least=1)) == ("gone", True)
    assert change(row(None, at_least=1), row(1.0, at_least=1)) == ("new", False)
    assert change(row(None, at_least=1), row(None, at_least=1)) == ("same", False)
    (found,) = report.compare([], [row(1.0, at_least=1)])
    assert (found.word, found.fails) == ("new", False)


def test_the_comparison_names_another_machine(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(report.to_json(replace(MACHINE, cpu="another"), [row(100.0, at_least=1)]))
    old = report.read(path)
    changes = report.compare(old.results, [row(50.0, at_least=1)])
    text = report.comparison(old, MACHINE, changes)
    assert "another machine (cpu another, now a CPU)" in text
    assert "0.50x  WORSE" in text


# ---------------------------------------------------------------- the command


TINY = Scale(**{name: 1 for name in Scale.__dataclass_fields__ if name != "progress"})


@pytest.fixture
def groups(monkeypatch):
    """Give a table of groups whose rows a test chooses."""
    rows = {"a": [row(100.0, at_least=1, figure="good")]}

    def failing(_folder, _scale):
        raise BenchError("the peer is gone")

    table = {
        "a": run.Group(lambda _folder, _scale: rows["a"], "shows a"),
        "b": run.Group(failing, "shows b"),
    }
    monkeypatch.setattr(run, "GROUPS", table)
    monkeypatch.setattr(run, "look_at_machine", lambda _folder: MACHINE)
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    return rows


def bench(*words):
    done = CliRunner().invoke(run.bench_command, [*map(str, words)], standalone_mode=False)
    return done.return_value, done.output, done.exception


def test_a_run_writes_its_file_and_a_later_one_is_compared_with_it(groups, tmp_path):
    path = tmp_path / "x.json"
    assert bench("a", "--json", path)[0] == 0
    assert bench("a", "--against", path)[0] == 0
    groups["a"] = [row(50.0, at_least=1, figure="good")]
    status, output, _ = bench("a", "--against", path)
    assert status == 1
    assert "WORSE" in output


def test_a_missed_target_and_a_failed_group_end_with_1(groups):
    status, output, _ = bench()
    assert status == 1
    assert "the peer is gone" in output
    assert "good" in output
    groups["a"] = [row(0.5, at_least=1)]
    assert bench("a")[0] == 1


def test_a_peer_that_is_not_there_is_no_failure(groups):
    groups["a"] = [row(None, at_least=1, figure="beside Redis", why="Redis is not installed")]
    status, output, _ = bench("a")
    assert status == 0
    assert "not measured" in output


def test_wrong_words_are_named(groups, tmp_path):
    assert "no group c; there are a, b" in str(bench("c")[2])
    (tmp_path / "x.json").write_text("{}")
    assert "is no report" in str(bench("a", "--against", tmp_path / "x.json")[2])


def test_help_tells_what_each_group_shows():
    output = bench("-h")[1]
    for name, group in run.GROUPS.items():
        assert f"{name:<11} {group.about}" in output


def test_a_missing_compiler_and_missing_sources_are_named(tmp_path, monkeypatch):
    source = tmp_path / "x.c"
    with pytest.raises(BenchError, match=r"x\.c is not installed with wheeld: measure this in a"):
        compiled(tmp_path / "x", [source])
    source.write_text("int main(void) { return no; }\n")
    with pytest.raises(BenchError, match="x does not compile: "):
        compiled(tmp_path / "x", [source])
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    with pytest.raises(BenchError, match="cc cannot be started: install a C compiler"):
        compiled(tmp_path / "x", [source])


# ---------------------------------------------------------------- pictures


def placed(value, series, at, chart="growth", **fields):
    return row(value, plot=Plot(chart=chart, series=series, at=at), **fields)


def test_a_picture_has_the_rows_that_name_it_ours_first():
    rows = [
        placed(3.0, "Redis", 10),
        placed(1.0, "wheeld", 10),
        placed(2.0, "wheeld", 100),
        placed(None, "wheeld", 1000),
        placed(1.0, "wheeld", "x", chart="memory"),
        row(5.0),
    ]
    found = plots.of_chart("growth", rows)
    assert [(name, [*places]) for name, places in found.items()] == [
        ("wheeld", [10, 100]),
        ("Redis", [10]),
    ]
    with pytest.raises(BenchError, match="two figures of growth stand at wheeld, 10"):
        plots.of_chart("growth", [*rows, placed(9.0, "wheeld", 10)])


def test_a_server_has_its_colour_whoever_else_is_in_the_picture():
    """Readers of two pictures side by side take one colour for one server."""
    names = ["beanstalkd", "x", "Redis HSET+ZADD", "wheeld", "Redis ZADD"]
    rows = [placed(1.0, name, 10) for name in names]
    for some in (rows, rows[:3]):
        found = [*plots.of_chart("growth", some)]
        assert found == [n for n in [*plots.SERVERS, "x"] if n in found]
        assert [plots.colour(n, i) for i, n in enumerate(found) if n != "x"] == [
            plots.SERVERS[n] for n in found if n != "x"
        ]


def test_pictures_without_matplotlib_are_refused_before_anything_is_measured(groups, monkeypatch):
    monkeypatch.setattr(plots, "has_matplotlib", lambda: False)
    groups["a"] = None  # would fail
    assert "pip install matplotlib" in str(bench("a", "--plots", "x")[2])


@pytest.mark.slow
@pytest.mark.skipif(
    not plots.has_matplotlib(), reason="not run: matplotlib (group bench) is not installed"
)
@pytest.mark.filterwarnings("default")
def test_pictures_are_png_and_svg_and_the_same_each_time(tmp_path):
    rows = [
        placed(value * size, series, at, chart=chart, rounds=[size, value * size, 9.0 * size])
        for chart, described in plots.CHARTS.items()
        for series, size in (("wheeld", 10.0), ("Redis", 30.0))
        for at, value in (((1000, 1.0), (10_000, 2.0)) if described.x else (("a, b", 3.0),))
    ]
    made = plots.draw(rows, tmp_path)
    assert {path.name for path in made} == {
        f"{chart}{suffix}" for chart in plots.CHARTS for suffix in (".png", ".svg")
    }
    assert all(path.read_bytes().startswith((b"\x89PNG", b"<?xml")) for path in made)
    before = {path: path.read_bytes() for path in made}
    plots.draw(rows, tmp_path)
    assert {path: path.read_bytes() for path in made} == before


def test_an_unknown_picture_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "has_matplotlib", lambda: True)
    with pytest.raises(BenchError, match="no picture grwth"):
        plots.draw([placed(1.0, "wheeld", 1, chart="grwth")], tmp_path)
