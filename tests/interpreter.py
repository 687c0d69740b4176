"""Code in a Python process of its own, with this one's import path."""

import os
import subprocess
import sys


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, with its import path in it."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": paths, **more}


def assert_runs(code: str) -> None:
    """The code ends with status 0 and without a word on stderr."""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
