"""tests/c/fuzz_resp.c under AddressSanitizer and UBSan, with a fixed number of inputs."""

import os
import random
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORPUS = sorted((ROOT / "tests" / "c" / "corpus" / "resp").iterdir())
CASES = 150_000
SOURCES = ["tests/c/fuzz_resp.c", "csrc/wd_resp.c", "csrc/wd_when.c", "csrc/wd_mem.c"]
FLAGS = "-std=c11 -g -O1 -Wall -Wextra -Wshadow -Werror -DWD_FUZZ_MAIN -Icsrc"
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("fuzz") / "fuzz_resp"
    compiler = os.environ.get("CC", "gcc")
    command = [compiler, *FLAGS.split(), *SANITIZERS.split(), *SOURCES, "-o", str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


@pytest.mark.slow
def test_no_input_reads_outside_its_bytes_or_depends_on_how_they_were_cut(fuzzer: Path) -> None:
    seed = random.randrange(1 << 32)
    done = subprocess.run(
        [str(fuzzer), str(CASES), str(seed), *map(str, CORPUS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr  # both name the seed and the case
    assert done.stdout.endswith(f"ran {CASES} cases\n")


def test_the_corpus_is_there() -> None:
    assert len(CORPUS) >= 20
