"""A fuzz target of tests/c as a program under sanitizers, with a fixed number of inputs."""

import os
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"


def compiler(flags: str) -> list[str]:
    """Return how a file of such a program is compiled."""
    options = f"-std=c11 -g -O1 -Wall -Wextra {flags} -DWD_FUZZ_MAIN -Icsrc {SANITIZERS}"
    return [os.environ.get("CC", "gcc"), *options.split()]


def corpus(name: str) -> list[Path]:
    """Return the inputs that are kept."""
    return sorted((ROOT / "tests" / "c" / "corpus" / name).iterdir())


def run(program: Path, cases: int, inputs: Iterable[Path]) -> None:
    """Run so many cases, made of the inputs. What a sanitizer says names the seed and the case."""
    seed = random.randrange(1 << 32)
    done = subprocess.run(
        [str(program), str(cases), str(seed), *map(str, inputs)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.endswith(f"ran {cases} cases\n")
