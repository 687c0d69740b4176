"""What a reader of schedules found in a file, and how a file is refused."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wheel.definitions import Definition
from wheel.errors import InvalidRequest


class Problem(NamedTuple):
    """Why a file is refused.

    Attributes:
        place: where: ``line 12``, ``items[3]``.
        text: what is wrong and what to write.
    """

    place: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something of a file that is done in another way, or left out.

    Attributes:
        place: where.
        kind: one word to look for: ``reboot``, ``percent``, ``user``, ``mailto``, ``environment``.
        text: what it means here.
        skipped: whether the entry is left out for it.
    """

    place: str
    kind: str
    text: str
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One schedule of a file.

    Attributes:
        place: where it is defined.
        definition: as it shall be.
        paused: whether the file has it switched off.
        remarks: what is different from where it comes from.
    """

    place: str
    definition: Definition
    paused: bool = False
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is in a file.

    Attributes:
        entries: the schedules, in order.
        remarks: what concerns the file, or entries that are left out.
    """

    entries: tuple[Entry, ...]
    remarks: tuple[Remark, ...] = ()


class FileRefused(InvalidRequest):
    """A file of schedules with something wrong in it; nothing was changed.

    Attributes:
        problems: all that was found.
    """

    problems: tuple[Problem, ...] = ()


def refused(file: str, problems: Iterable[Problem]) -> FileRefused:
    """Return the error for a file: each problem in a line of its own, with its place."""
    listed = tuple(problems)
    lines = "".join(f"\n  {place}: {text}" for place, text in listed)
    error = FileRefused(f"{file} is refused, nothing was changed:{lines}")
    error.problems = listed
    return error


def near(word: str, known: Sequence[str]) -> str:
    """Return ``; did you mean x?`` for the most similar of the known words, else what there is."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(known))}"


def unique(name: str, taken: set[str]) -> str:
    """Return a name that is not taken, and take it: ``backup``, ``backup-2``."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found)
    return found
