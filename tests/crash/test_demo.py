"""The demo keeps its promises, and notices when one is broken."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import blocks

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.crash


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", str(ROOT / "tools" / "demo.py"), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def shape(text: str) -> list[str]:
    """Return the lines with every number written N."""
    return [re.sub(r"[0-9]+(\.[0-9]+)?", "N", line) for line in text.splitlines()]


def test_the_demo_loses_nothing_and_runs_nothing_early():
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0   early 0" in done.stdout
    assert "every promise held" in done.stdout
    shown = blocks(ROOT / "README.md", "text")[0]
    assert shape(done.stdout) == shape(shown.text)


def test_the_demo_notices_one_record_that_was_dropped_from_the_log():
    script = ROOT / "tests" / "drop_record.py"
    done = demo("--seed", "7", "--after-kill", f"{sys.executable} -P {script}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "A PROMISE WAS BROKEN" in done.stdout
    assert "lost 1 " in done.stdout
