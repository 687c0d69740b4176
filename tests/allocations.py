"""Allocations of the core that fail: the 1st, the 2nd, ... of what a test does."""

from collections.abc import Callable, Iterator
from typing import Self

from _wheeld import lib

FAILURES_MAX = 200  # nothing makes so many allocations


def fail_allocation(number: int) -> int:
    """Let the number-th allocation from now fail, 0 = none; return how many there were."""
    return int(lib.wd_alloc_fail_at(number))


class Failure:
    """One allocation that fails within a ``with`` block.

    Attributes:
        number: which of them.
        happened: whether the block made so many.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.happened = False

    def __enter__(self) -> Self:
        fail_allocation(self.number)
        return self

    def __exit__(self, *_: object) -> None:
        self.happened = fail_allocation(0) >= self.number


def failures(least: int = 0) -> Iterator[Failure]:
    """Yield the failure of the 1st, 2nd, ... allocation, until one does not happen.

    Args:
        least: so many must have happened.
    """
    for number in range(1, FAILURES_MAX):
        failure = Failure(number)
        yield failure
        if not failure.happened:
            assert number - 1 >= least, f"only {number - 1} allocations"
            return
    raise AssertionError(f"over {FAILURES_MAX} allocations")


def until_nothing_fails(attempt: Callable[[int], bool]) -> int:
    """Have the 1st, 2nd, ... thing fail until an attempt meets no failure; return how many did."""
    for number in range(1, FAILURES_MAX):
        if not attempt(number):
            return number - 1
    raise AssertionError(f"over {FAILURES_MAX} failures")
