"""Many schedules at once, all or none: check everything, then store them, upstreams first.

The server has no command for many schedules. What makes this all or none is that nothing is sent
that changes anything before every definition has been checked: its arguments here, its rule, zone
and version by the server (``CRON SET ... DRY``), and who waits for whom over the definitions and
those schedules of the server that they wait for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from graphlib import CycleError as GraphCycleError
from graphlib import TopologicalSorter
from typing import Final, Protocol

from wheel.definitions import Definition
from wheel.errors import (
    ApplyError,
    CycleError,
    InvalidRequest,
    NotFound,
    UnavailableError,
    WheeldError,
)
from wheel.link import array, fields, number, text
from wheel.values import from_ms
from wheel.wire import Reply

SHOWN_ERRORS: Final = 5


class Caller(Protocol):
    """Who asks the server: ``Client``."""

    def execute(self, *words: bytes | str | int) -> Reply:
        """Return the server's reply to one command."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of one definition.

    Attributes:
        name: of the schedule.
        word: ``created``, ``changed`` or ``unchanged``.
        version: behind the change; in a dry run what it would be.
        next_at: the nominal time of the next run, in UTC; None if there is none.
    """

    name: str
    word: str
    version: int
    next_at: datetime | None


class Plan:
    """One call of ``Client.apply``."""

    __slots__ = ("_caller", "_definitions", "_payload_max")

    def __init__(
        self, caller: Caller, definitions: Sequence[Definition], *, payload_max: int
    ) -> None:
        self._caller = caller
        self._definitions = {entry.name: entry for entry in definitions}
        self._payload_max = payload_max
        if len(self._definitions) != len(definitions):
            names = [entry.name for entry in definitions]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InvalidRequest(f"schedule {twice[0]!r} is defined twice; a name is one schedule")

    def check(self) -> list[Applied]:
        """Return what would become of each definition, in the order given; changes nothing.

        Raises:
            ApplyError: some are refused.
            CycleError: they would wait for each other.
        """
        self._order()
        errors: dict[str, WheeldError] = {}
        found: list[Applied] = []
        for name in self._definitions:
            try:
                found.append(self._set(name, dry=True))
            except UnavailableError:
                raise
            except WheeldError as error:
                errors[name] = error
        self._check_upstreams(errors)
        if errors:
            raise refused(errors)
        return found

    def carry_out(self) -> list[Applied]:
        """Store every definition; return what became of each, in the order given.

        Raises:
            ApplyError: some are refused; nothing was changed.
            CycleError: they would wait for each other; nothing was changed.
            WheeldError: the server failed half-way.
        """
        self.check()
        done = {name: self._set(name, dry=False) for name in self._order()}
        return [done[name] for name in self._definitions]

    def _set(self, name: str, *, dry: bool) -> Applied:
        words = self._definitions[name].words(dry=dry, payload_max=self._payload_max)
        answer = array(self._caller.execute(*words), 3)
        ahead = answer[2]
        return Applied(
            name=name,
            word=text(answer[1]),
            version=number(answer[0]),
            next_at=None if ahead is None else from_ms(number(ahead)),
        )

    def _order(self) -> list[str]:
        """Return the names, upstreams first.

        Raises:
            CycleError: there is no such order.
        """
        return ordered({name: entry.after for name, entry in self._definitions.items()})

    def _check_upstreams(self, errors: dict[str, WheeldError]) -> None:
        """Look at the schedules of the server that are waited for, and at those that they wait for.

        Args:
            errors: a definition that waits for a schedule that is nowhere is added to them.

        Raises:
            CycleError: the new ones and the old ones together would wait in a circle.
        """
        edges = {name: entry.after for name, entry in self._definitions.items()}
        waiting = [(name, up) for name, after in edges.items() for up in after if up not in edges]
        while waiting:
            name, up = waiting.pop()
            if up in edges:
                continue
            reply = self._caller.execute("CRON", "GET", up)
            if reply is None:
                edges[up] = ()
                if name in self._definitions:
                    errors.setdefault(
                        name,
                        NotFound(
                            f"schedule {name!r} waits for {up!r}, which is neither here nor on "
                            "the server"
                        ),
                    )
                continue
            edges[up] = tuple(text(entry) for entry in array(fields(reply).get("after", [])))
            waiting += [(up, further) for further in edges[up]]
        ordered(edges)


def ordered(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names, upstreams first, each behind all that it waits for.

    Args:
        edges: whom each name waits for; a name that stands only there is left out.

    Raises:
        CycleError: some wait for each other in a circle; ``path`` names them.
    """
    sorter = TopologicalSorter(
        {name: [up for up in after if up in edges] for name, after in edges.items()}
    )
    try:
        return list(sorter.static_order())
    except GraphCycleError as error:
        found: Sequence[str] = error.args[1]  # each is an upstream of the next
        raise cycle(list(reversed(found))) from None


def cycle(path: Sequence[str]) -> CycleError:
    """Return the error for schedules that wait for each other; each waits for the next one."""
    error = CycleError(f"{' -> '.join(path)}: each waits for the next; take out one of the edges")
    error.path = tuple(path)
    return error


def refused(errors: Mapping[str, WheeldError]) -> ApplyError:
    """Return the error for definitions that are refused."""
    shown = [f"{name}: {error}" for name, error in list(errors.items())[:SHOWN_ERRORS]]
    more = len(errors) - len(shown)
    error = ApplyError(
        f"{len(errors)} of the schedules are refused, nothing was changed: "
        + "; ".join(shown)
        + (f"; and {more} more" if more else "")
    )
    error.errors = dict(errors)
    return error
