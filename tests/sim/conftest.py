"""Figures of the simulation, printed at the end of a run: seeds, seeds an hour, states, faults."""

import pytest

FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config):
    config.stash[FIGURES] = []


@pytest.fixture
def figure(request):
    """Return a function that keeps one line for the end of the run."""
    return request.config.stash[FIGURES].append


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash[FIGURES]:
        terminalreporter.write_line(f"simulation: {line}")
