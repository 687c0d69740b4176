"""For all tests: refuse a stale C core, set how hypothesis searches, let CI skip nothing.

A failing property prints its example and the line that repeats it; pytest-randomly prints the seed
of the order, `--randomly-seed=N` repeats it.
"""

import importlib.util
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

ROOT = Path(__file__).parents[1]
NOT_RUN = "not run: "
# Time says nothing about a property: a busy machine is slow, not wrong.
PATIENT = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("test", PATIENT)
settings.register_profile("fuzz", PATIENT, max_examples=5_000)
# Over a planted fault: the first failure is enough, nobody reads a smaller one.
settings.register_profile("planted", PATIENT, phases=[Phase.generate])
settings.load_profile("test")


def pytest_configure() -> None:
    spec = importlib.util.find_spec("_wheeld")
    if spec is None or spec.origin is None:
        pytest.exit("_wheeld is not built, run `make build`", returncode=4)
    built_at = Path(spec.origin).stat().st_mtime
    sources = [*(ROOT / "csrc").glob("*.[ch]"), ROOT / "csrc" / "build_ffi.py"]
    newer = sorted(path.name for path in sources if path.stat().st_mtime > built_at)
    if newer:
        pytest.exit(f"csrc/ is newer than _wheeld, run `make build`: {newer}", returncode=4)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count a skip as a failure in CI: there every program that a test may need is installed.

    What a kernel may refuse (mounts, namespaces) is another matter: such a test says "not run".
    """
    report = yield
    refused = NOT_RUN in str(report.longrepr)
    if report.skipped and os.environ.get("CI") and not refused:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {report.longrepr}"
    return report
