"""docs/info.md has every field of INFO in its section, and no other."""

import re
from dataclasses import fields
from unittest.mock import Mock

from server.planner import Schedules
from server.scrub import Scrubber
from tests.docs import ROOT, Clock, Stage
from tests.fakes import Lines, StandingClock
from tests.logkit import DATA
from tests.unit.test_checkpoints import Bench
from wal.facts import LogStats

PAGE = ROOT / "docs" / "info.md"


def documented():
    """Return the fields of each section of the page."""
    parts = re.split(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    rows = [re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE) for text in parts[1::2]]
    names = [[name for row in found for name in re.findall(r"`(\w+)`", row)] for found in rows]
    return dict(zip(parts[::2], names, strict=True))


def told():
    """Return the fields of each section of INFO, of a server that has all its parts."""
    stage, bench = Stage(), Bench()
    stage.state.loading = True
    stage.state.log = Mock(stats=lambda: LogStats(**{one.name: 0 for one in fields(LogStats)}))
    stage.state.schedules = Schedules(
        stage.bench.core, clock=Clock(stage.bench), logger=Mock(), strict_handlers=False
    )
    stage.state.checkpointer = bench.made
    stage.state.scrubber = Scrubber(
        disk=bench.disk,
        log=bench.log,
        files=bench.log.checkpoints,
        wal_path=f"{DATA}/wal",
        rate_bytes=1,
        clock=StandingClock(),
        logger=Lines().logger,
        on_damage=lambda _damaged: None,
    )
    sections = stage.state.sections()
    bench.log.close()
    return {title.lower(): list(found) for title, found in sections.items()}


def test_the_page_has_the_fields_of_info_in_its_sections_each_once():
    shown, page = told(), documented()
    assert list(page) == list(shown)
    for title, names in shown.items():
        assert sorted(page[title]) == sorted(names), title


def test_the_protocol_page_names_the_sections_in_their_order():
    text = (ROOT / "PROTOCOL.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `INFO \[section \.\.\.\]` \| ([^|]+) \|$", text, re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == list(documented())
