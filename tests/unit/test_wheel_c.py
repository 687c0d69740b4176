"""wd_wheel.c against its sorted model, and the model's check against planted faults."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 60
RUN_S_MAX = 600  # against a hang; every mutant is compiled and run
SMALL_CHUNKS = "-DWD_CHUNK_CAP=8"
PRODUCT_CHUNKS = "-DWD_CHUNK_CAP=64"


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)


def build_check_wheel(target: Path, *flags: str) -> Path:
    sources = [ROOT / "csrc/wd_wheel.c", ROOT / "csrc/wd_mem.c", ROOT / "tests/c/check_wheel.c"]
    command = [os.environ.get("CC", "gcc"), "-std=c11", "-Wall", "-Wextra", "-Werror", *flags]
    built = run([*command, f"-I{ROOT / 'csrc'}", *map(str, sources), "-o", str(target)])
    assert built.returncode == 0, built.stderr
    return target


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(
            (
                "-O1",
                "-g",
                SMALL_CHUNKS,
                "-fsanitize=address,undefined",
                "-fno-sanitize-recover=all",
            ),
            id="small-chunks-sanitized",
        ),
        pytest.param(("-O2", PRODUCT_CHUNKS), id="as-in-the-product"),
    ],
)
def test_wheel_answers_every_call_as_the_sorted_model_does(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    program = build_check_wheel(tmp_path / "check_wheel", *flags)
    checked = run([str(program), "1", str(SEEDS)])
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout == f"ok: {SEEDS} seeds from 1\n"


@pytest.mark.slow
def test_every_planted_fault_of_the_wheel_is_noticed() -> None:
    script = ROOT / "tests/c/mutate_wheel.py"
    planted = run([sys.executable, "-P", str(script), "-j2"])
    assert planted.returncode == 0, planted.stdout + planted.stderr
