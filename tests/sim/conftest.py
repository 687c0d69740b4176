"""Figures of the simulation, printed at the end of a run: seeds, seeds an hour, states, faults."""

import pytest


@pytest.fixture
def figure(request):
    """Return a function that keeps one line for the end of the run."""
    return lambda line: request.node.user_properties.append(("figure", line))


def pytest_terminal_summary(terminalreporter):
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, line in report.user_properties:
                if name == "figure" and report.when == "call":
                    terminalreporter.write_line(f"simulation: {line}")
