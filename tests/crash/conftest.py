"""Tests here run the server as a process, or crash what runs in this one."""

import os
import random
import sys

import pytest

from tests.process import server

__all__ = ["seed", "server"]


@pytest.fixture
def seed() -> int:
    """Another number each time, told when the test fails; SEED=n repeats it.

    What is chosen by it is the same then; when the machine gets to it is not.
    """
    number = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    sys.stdout.write(f"SEED={number}\n")
    return number
