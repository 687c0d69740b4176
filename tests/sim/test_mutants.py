"""Planted faults of the core, the log and its recovery: the simulation must notice each of them.

The faults stand in tests/c/mutants*.py (C, switched at run time in one test build, tests/twin.py)
and in tests/sim/pymutants.py. A proof that cannot fail proves nothing.
"""

import json
import subprocess
import sys

import pytest

from tests.twin import ROOT

SEEDS_MAX = 600
FAULTS_MIN = 40


@pytest.mark.slow
def test_every_planted_fault_is_noticed(figure):
    command = [sys.executable, "-P", "-c", RUN, "--seeds", str(SEEDS_MAX)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) >= FAULTS_MIN, done.stderr[-2000:]
    missed = [fault["fault"] for fault in found if not fault["noticed"]]
    for fault in sorted(found, key=lambda fault: fault["seeds"]):
        seeds = f"{fault['seeds']:4} seeds" if fault["seeds"] else "scenario  "
        figure(f"{seeds}  {fault['fault']}: {fault['noticed'][:70]}")
    assert not missed
    assert done.returncode == 0, done.stderr[-2000:]


# -m would put the folder of the tests' root in front of the twin.
RUN = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
runpy.run_module("tests.hunt", run_name="__main__")
"""
