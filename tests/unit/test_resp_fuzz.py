"""tests/c/fuzz_resp.c under AddressSanitizer and UBSan, with a fixed number of inputs."""

import subprocess
from pathlib import Path

import pytest

from tests.fuzzer import ROOT, compiler, corpus, run

CORPUS = corpus("resp")
CASES = 150_000
SOURCES = ["tests/c/fuzz_resp.c", "csrc/wd_resp.c", "csrc/wd_when.c", "csrc/wd_mem.c"]


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("fuzz") / "fuzz_resp"
    command = [*compiler("-Wshadow -Werror"), *SOURCES, "-o", str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


@pytest.mark.slow
def test_no_input_reads_outside_its_bytes_or_depends_on_how_they_were_cut(fuzzer: Path) -> None:
    run(fuzzer, CASES, CORPUS)


def test_the_corpus_is_there() -> None:
    assert len(CORPUS) >= 20
