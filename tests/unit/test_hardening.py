"""The core is built so that a mistake in it is harder to use: as readelf sees the built file."""

import importlib.util
import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    bool({"WHEELD_SANITIZE", "WHEELD_COVERAGE"} & os.environ.keys()),
    reason="not run: built for a sanitizer or for counting, not as it is shipped",
)


def readelf(*options):
    path = importlib.util.find_spec("_wheeld").origin
    return subprocess.run(
        ["readelf", "-W", *options, path], capture_output=True, text=True, check=True
    ).stdout


def test_tables_of_addresses_are_read_only_once_the_file_is_loaded():
    assert "GNU_RELRO" in readelf("-l")
    assert re.search(r"BIND_NOW|\bNOW\b", readelf("-d"))


def test_stack_is_not_run():
    (flags,) = re.findall(r"GNU_STACK .* ([RWE ]{3}) ", readelf("-l"))
    assert "E" not in flags


def test_nothing_is_written_and_run():
    loads = re.findall(r"^ +LOAD .* ([RWE ]{3}) 0x", readelf("-l"), re.MULTILINE)
    assert loads
    assert not any("W" in flags and "E" in flags for flags in loads)


def test_stack_frames_and_copies_are_checked():
    names = set(re.findall(r"UND (\w+)@?", readelf("--dyn-syms")))
    assert "__stack_chk_fail" in names
    assert {"__memcpy_chk", "__snprintf_chk"} & names


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its marks are of another kind here")
def test_indirect_jumps_land_on_marks():
    code = Path(importlib.util.find_spec("_wheeld").origin).read_bytes()
    assert code.count(b"\xf3\x0f\x1e\xfa") > 100  # endbr64
