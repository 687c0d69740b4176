"""What the processes of a soak share: one mapped file that says what each has seen of each job.

A job is a number, which it carries as its payload. Each fact about a number has a plane of bytes;
where two processes may note the same fact, each has a plane of its own. A process that is killed
leaves behind what it had noted, because the mapping is the kernel's.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

WORKERS: Final = 2

RUN, DRAIN, STOP = 0, 1, 2
CONTROL: Final = ("phase", "rate", "burst_asked", "burst_done", "drained", "live_far")
FIGURES: Final = (
    "commands", "made", "granted", "acked", "failed", "released", "extended", "let_go", "cancelled",
    "replaced", "stale", "refused", "broken", "early", "after_end", "runs",
)  # fmt: skip
PEERS: Final = 1 + WORKERS  # the producer is 0
PLANES: Final = (
    "confirmed",  # a reply named a job for it
    "doubtful",  # its SCHEDULE, or what would have ended it, was sent and never answered
    "cancelled",
    *(f"{fact}{peer}" for fact in ("said", "acked", "dead") for peer in range(WORKERS)),
)
_WORD: Final = 8
_HEAD: Final = _WORD * (len(CONTROL) + PEERS * len(FIGURES))


class Ledger:
    """The file.

    Attributes:
        numbers: how many jobs it has room for.
        control: what the parent asks of the peers, by the order of ``CONTROL``.
    """

    def __init__(self, path: Path, *, numbers: int = 0) -> None:
        """Open it; with ``numbers`` it is made."""
        if numbers:
            with path.open("wb") as file:
                file.truncate(_HEAD + numbers * len(PLANES))
        self.numbers = (path.stat().st_size - _HEAD) // len(PLANES)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        whole = memoryview(self._map)
        self._words = whole[:_HEAD].cast("q")
        self._planes = {
            name: whole[_HEAD + k * self.numbers : _HEAD + (k + 1) * self.numbers]
            for k, name in enumerate(PLANES)
        }

    def get(self, name: str) -> int:
        """Return a word of control."""
        return self._words[CONTROL.index(name)]

    def put(self, name: str, value: int) -> None:
        """Set a word of control."""
        self._words[CONTROL.index(name)] = value

    def plane(self, name: str) -> memoryview:
        """Return the bytes of a fact, one a job."""
        return self._planes[name]

    def figures(self, peer: int) -> "Counters":
        """Return what a peer counts."""
        first = len(CONTROL) + peer * len(FIGURES)
        return Counters(self._words[first : first + len(FIGURES)])

    def total(self, name: str) -> int:
        """Return a figure over all peers."""
        return sum(self.figures(peer).get(name) for peer in range(PEERS))


class Counters:
    """The counters of one peer; those of a process that took its place go on."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._at = {name: k for k, name in enumerate(FIGURES)}

    def add(self, name: str, count: int = 1) -> None:
        """Count."""
        self._words[self._at[name]] += count

    def get(self, name: str) -> int:
        """Return a counter."""
        return self._words[self._at[name]]


@dataclass(slots=True, kw_only=True)
class Account:
    """What became of every job of a soak.

    Attributes:
        confirmed: jobs that the server said it had.
        ended: of these, that were answered with an end.
        in_doubt: of these, whose end was asked for by somebody who did not see the reply.
        lost: of these, with no end at all although everything has ended: their numbers.
        twice: jobs that were answered with two ends.
    """

    confirmed: int = 0
    ended: int = 0
    in_doubt: int = 0
    lost: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)


def settle(ledger: Ledger) -> Account:
    """Return the account; to be called when the server has no live job any more."""
    account = Account()
    ends = [ledger.plane("cancelled")]
    ends += [ledger.plane(f"{fact}{k}") for fact in ("acked", "dead") for k in range(WORKERS)]
    maybe = [ledger.plane("doubtful"), *(ledger.plane(f"said{k}") for k in range(WORKERS))]
    for number in _numbers(ledger, ["confirmed"]):
        account.confirmed += 1
        count = sum(plane[number] for plane in ends)
        account.ended += count > 0
        if count > 1:
            account.twice.append(number)
        if not count:
            if any(plane[number] for plane in maybe):
                account.in_doubt += 1
            else:
                account.lost.append(number)
    return account


def _numbers(ledger: Ledger, names: list[str]) -> Iterator[int]:
    """Yield the numbers of which one of the planes says something."""
    step = 1 << 16
    for start in range(0, ledger.numbers, step):
        pieces = [bytes(ledger.plane(name)[start : start + step]) for name in names]
        if not any(any(piece) for piece in pieces):
            continue
        for k in range(len(pieces[0])):
            if any(piece[k] for piece in pieces):
                yield start + k
