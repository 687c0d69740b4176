"""docs/limits.md says what is: defaults, options, INFO, errors, and tests that are there."""

import re
from dataclasses import dataclass
from unittest.mock import Mock

import pytest

from server.commands.serve import serve_command
from server.planner import Schedules
from tests.docs import ROOT, Clock, Stage

PAGE = ROOT / "docs" / "limits.md"
UNITS = {
    "": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "bytes": 1,
    "s": 1000,
    "d": 86_400_000,
    "%": 1,
}
# On a line of INFO, beside its limits: how often, how much, since when.
COUNTS = {
    *("refused", "stopped", "closed", "now", "now_ms", "now_bytes", "pauses", "paused", "gated"),
    *("addresses", "wrong", "put_off", "done", "failed", "timed_out", "dropped"),
}


@dataclass(frozen=True)
class Row:
    """A line of the page."""

    name: str
    default: str
    option: str
    info: str
    met: str
    tests: list[str]


def rows():
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or cells[0] == "limit":
            continue
        assert len(cells) == 6, line
        name, default, option, info, met, tests = cells
        found.append(
            Row(
                name, default, option.strip("`"), info.strip("`"), met, re.findall("`(.*?)`", tests)
            )
        )
    return found


def info():
    """Return INFO's fields, those with several numbers taken apart: limit_clients.max."""
    found = {}
    stage = Stage()
    stage.state.schedules = Schedules(
        stage.bench.core, clock=Clock(stage.bench), logger=Mock(), strict_handlers=False
    )
    for section in stage.state.sections().values():
        for name, value in section.items():
            found[name] = value
            for pair in re.findall(r"([a-z_]+)=([0-9]+)", str(value)):
                found[f"{name}.{pair[0]}"] = int(pair[1])
    return found


def test_the_page_has_rows():
    assert len(rows()) > 40


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_each_limit_has_its_figure_in_info(row):
    shown = info()
    if row.info.startswith("errorstat_"):
        assert row.info.removeprefix("errorstat_") in Stage().bench.core.errors()
    else:
        assert row.info in shown, f"{row.name}: {row.info}"


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_each_default_is_what_info_shows(row):
    number = re.fullmatch(r"([0-9]+) ?([A-Za-z]*)", row.default)
    name = row.info.partition(".")[2]
    if number is None or not name.startswith(("max", "kept", "red", "for", "addresses_max")):
        return
    assert int(number[1]) * UNITS[number[2]] == info()[row.info]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_each_option_is_one_of_the_server_with_that_default(row):
    if not row.option:
        return
    options = {option.opts[0]: option for option in serve_command.params}
    assert row.option in options
    default = options[row.option].default
    if isinstance(default, int | str) and not isinstance(default, bool):
        assert row.default.replace(" ", "") == str(default)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_each_limit_is_met_by_a_test_that_is_there(row):
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert row.tests, row.name
    for name in row.tests:
        assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), name


def test_each_error_that_is_named_is_one_of_the_protocol():
    table = (ROOT / "PROTOCOL.md").read_text().split("## 3. Errors")[1].split("\n## ")[0]
    for row in rows():
        for code in re.findall(
            r"\b[A-Z]{3,}\b", re.sub(r"`[^`]*`|ACK|FAIL|CANCEL|SCHEDULE", "", row.met)
        ):
            assert f"`{code}`" in table, (row.name, code)


def test_every_limit_of_info_stands_on_the_page():
    named = {row.info.partition(".")[0] for row in rows()}
    lines = {name for name in info() if name.startswith("limit_") and "." not in name}
    assert lines <= named


def test_every_number_of_a_limits_line_is_on_the_page_or_counts():
    named = {row.info for row in rows()}
    for name in info():
        line, _, part = name.partition(".")
        if line.startswith("limit_") and part and part not in COUNTS:
            assert name in named, name
