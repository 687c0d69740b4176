"""Hunt planted faults over the twin: each runs in a process of its own until something notices it.

    python -P -m tests.hunt [--seeds 1000] [--only TEXT]

Prints one JSON line a fault: its name, what noticed it, how many seeds that took (0 = a scenario).
A crash of the process (an assertion of the core) counts as noticed.
"""

import argparse
import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from tests import twin

SEEDS_MAX = 1000
SCENARIOS = Path(__file__).parent / "sim"


def _scenarios():
    """Return name -> function of all tests/sim/scenarios*.py."""
    found = {}
    for path in sorted(SCENARIOS.glob("scenarios*.py")):
        module = importlib.import_module(f"tests.sim.{path.stem}")
        found |= {name: f for name, f in vars(module).items() if callable(f)}
    return found


def _simulate(seeds, seen):
    """Run seeds until one is violated; tell seen() of each before it begins."""
    from tests.simworld import run_seed

    for seed in range(1, seeds + 1):
        seen(seed)
        if violation := run_seed(seed).violation:
            return violation
    return ""


def _in_child(work):
    """Return (seeds begun, what noticed it) of work(seen) in a forked process."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.close(read)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        seeds = 0

        def seen(seed):
            nonlocal seeds
            seeds = seed
            os.write(write, b".")

        try:
            what = work(seen)
        except BaseException:
            what = traceback.format_exc(limit=-1).strip().splitlines()[-1]
        os.write(write, what.encode()[:400])
        os._exit(0)
    os.close(write)
    said = b""
    while data := os.read(read, 1 << 16):
        said += data
    os.close(read)
    _, status = os.waitpid(child, 0)
    what = said.lstrip(b".")
    if os.WIFSIGNALED(status):
        what = b"assertion: the core ended itself with signal %d" % os.WTERMSIG(status)
    return len(said) - len(said.lstrip(b".")), what.decode(errors="replace")


def _run_scenario(function):
    def work(_seen):
        try:
            function()
        except AssertionError as error:
            return f"scenario: {function.__name__}: {error}"
        return ""

    return work


def main():
    """Return 0 when every fault was noticed and the sound twin passes everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    mutants = twin.tables()
    sys.path.insert(0, str(twin.build()))
    lib = importlib.import_module("_wheeld").lib
    assert lib.wd_mutant_on == 0
    scenarios = _scenarios()
    patches = importlib.import_module("tests.sim.pymutants").PATCHES
    missed = 0

    def report(name, result):
        nonlocal missed
        seeds, what = result
        missed += not what
        print(json.dumps({"fault": name, "seeds": seeds, "noticed": what}), flush=True)

    used = sorted({mutant.scenario for mutant in mutants if mutant.scenario})
    for name in used:
        _, what = _in_child(_run_scenario(scenarios[name]))
        assert not what, f"the sound core fails {name}: {what}"
    for number, mutant in enumerate(mutants, 1):
        if options.only not in mutant.name:
            continue
        lib.wd_mutant_on = number
        if mutant.scenario:
            report(mutant.name, _in_child(_run_scenario(scenarios[mutant.scenario])))
        else:
            report(mutant.name, _in_child(lambda seen: _simulate(options.seeds, seen)))
    lib.wd_mutant_on = 0
    for patch in patches:
        if options.only not in patch.name:
            continue
        patch.place()  # here, where its absence is not taken for somebody's notice

        def patched(seen, patch=patch):
            patch.apply()
            return _simulate(options.seeds, seen)

        report(patch.name, _in_child(patched))
    for name, result in _break_promises(options.only, lib):
        report(name, result)
    return 1 if missed else 0


def _break_promises(only, lib):
    """Yield what the history checker says of each fault that breaks one of its properties."""
    for name, scenario, rule in importlib.import_module("tests.sim.scenarios_history").PROPERTIES:
        if only in name:
            yield f"{name} (history: {rule})", _break(name, scenario, rule, lib)


def _break(name, scenario, rule, lib):
    """Return (0, what the checker said) of a scenario with a fault, "" unless it names the rule."""
    numbers = {mutant.name: number for number, mutant in enumerate(twin.tables(), 1)}
    pymutants = importlib.import_module("tests.sim.pymutants")
    patches = {patch.name: patch for patch in pymutants.OF_SCHEDULES}
    _, sound = _in_child(_run_scenario(scenario))
    assert not sound, f"the sound core fails {scenario.__name__}: {sound}"

    def work(seen):
        if name in patches:
            patches[name].apply()
        return _run_scenario(scenario)(seen)

    lib.wd_mutant_on = numbers.get(name, 0)
    _, what = _in_child(work)
    lib.wd_mutant_on = 0
    return 0, what if rule in what.split() else ""


if __name__ == "__main__":
    raise SystemExit(main())
