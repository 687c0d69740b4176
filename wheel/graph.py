"""Who waits for whom: a graph of names without circles. Pure; the server and the client share it.

``a -> b`` in every text is the flow: b waits for a. A name's *level* is the length of the longest
chain that leads to it; a name that waits for nothing stands on level 0, and whoever waits stands
above all that it waits for. So names sorted by level are in an order in which nothing comes before
what it waits for, and a limit on levels bounds every walk along a chain.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from itertools import islice
from typing import Final

from wheel.errors import Conflict, CycleError, InvalidRequest, LimitError, NotFound

EDGES_MAX: Final = 256  # that one name waits for
LEVELS_MAX: Final = 100  # names in one chain
NAMED_MAX: Final = 5  # in an error text
NEAR_MAX: Final = 200  # names that a suggestion is sought among
_NOBODY: Final[frozenset[str]] = frozenset()


class Graph:
    """The edges of all schedules; a name without edges costs nothing here.

    Invariants:
        1. No circle; no chain has more than LEVELS_MAX names.
        2. ``_waiting`` is ``_after`` turned round.
        3. ``_level`` holds every name that waits for something.

    An upstream may be missing: one that was removed by force stays a name that others wait for.
    """

    def __init__(self) -> None:
        self._after: dict[str, tuple[str, ...]] = {}
        self._waiting: dict[str, set[str]] = {}
        self._level: dict[str, int] = {}

    def check(self, name: str, after: Sequence[str], *, known: Callable[[str], bool]) -> None:
        """Refuse edges that cannot stand; nothing is changed.

        Args:
            name: who will wait.
            after: for whom.
            known: whether there is a schedule of a name.

        Raises:
            LimitError: too many edges, or too long a chain.
            InvalidRequest: a name stands twice.
            NotFound: a new edge to a name that is no schedule's.
            CycleError: names would wait for each other; the text is the path.
        """
        self._levels_with(name, after, known)

    def set(self, name: str, after: Sequence[str], *, known: Callable[[str], bool]) -> None:
        """Let name wait for these and no others; nothing is changed when it raises as ``check``."""
        levels = self._levels_with(name, after, known)
        self._unlink(name)
        if after:
            self._after[name] = tuple(after)
            for upstream in after:
                self._waiting.setdefault(upstream, set()).add(name)
        self._take_levels(levels)

    def remove(self, name: str, *, force: bool = False) -> None:
        """Forget whom name waits for; who waits for it goes on waiting.

        Args:
            name: may be one without edges.
            force: even if others wait for it.

        Raises:
            Conflict: others wait for it.
        """
        waiting = self.dependants(name)
        if waiting and not force:
            raise Conflict(
                f"schedule {name!r} is waited for by {_listed(waiting)}: change their AFTER first, "
                f"or delete with FORCE, which leaves their runs held as no_upstream"
            )
        levels = self._levels_with(name, (), _anything)
        self._unlink(name)
        self._take_levels(levels)

    def upstreams(self, name: str) -> tuple[str, ...]:
        """Return whom name waits for, in the order given."""
        return self._after.get(name, ())

    def dependants(self, name: str) -> list[str]:
        """Return who waits for name itself, sorted."""
        return sorted(self._waiting.get(name, ()))

    def waiting(self, name: str) -> AbstractSet[str]:
        """Return who waits for name itself, in no order."""
        return self._waiting.get(name, _NOBODY)

    def level(self, name: str) -> int:
        """Return on which level a name stands."""
        return self._level.get(name, 0)

    def downstream(self, names: Iterable[str]) -> list[str]:
        """Return who waits for these, directly or not, none before what it waits for."""
        return self._closure(names, self._waiting)

    def upstream(self, names: Iterable[str]) -> list[str]:
        """Return for whom these wait, directly or not, none before what it waits for."""
        return self._closure(names, self._after)

    def order(self, names: Iterable[str]) -> list[str]:
        """Return the names so that none comes before one that it waits for."""
        return sorted(names, key=lambda name: (self._level.get(name, 0), name))

    def _closure(self, names: Iterable[str], step: Mapping[str, Iterable[str]]) -> list[str]:
        todo = list(names)
        found: set[str] = set()
        while todo:
            for name in step.get(todo.pop(), ()):
                if name not in found:
                    found.add(name)
                    todo.append(name)
        return self.order(found)

    def _unlink(self, name: str) -> None:
        for upstream in self._after.pop(name, ()):
            waiting = self._waiting[upstream]
            waiting.discard(name)
            if not waiting:
                del self._waiting[upstream]

    def _take_levels(self, levels: Mapping[str, int]) -> None:
        for name, level in levels.items():
            if name in self._after:
                self._level[name] = level
            else:
                self._level.pop(name, None)

    def _levels_with(
        self, name: str, after: Sequence[str], known: Callable[[str], bool]
    ) -> dict[str, int]:
        """Return the levels that change when name waits for these; raise as ``check``."""
        if len(after) > EDGES_MAX:
            raise LimitError(f"AFTER names {len(after)} schedules, at most {EDGES_MAX} are allowed")
        twice = next((one for i, one in enumerate(after) if one in after[:i]), None)
        if twice is not None:
            raise InvalidRequest(f"AFTER names {twice!r} twice, leave one of them out")
        for upstream in after:
            if upstream not in (name, *self.upstreams(name)) and not known(upstream):
                raise NotFound(f"AFTER names {upstream!r}, which is not a schedule: make it first")
        downstream = self.downstream([name])
        _refuse_circle(name, after, downstream, self._waiting)
        levels: dict[str, int] = {}
        for one in [name, *downstream]:
            upstreams = after if one == name else self._after[one]
            level = 1 + max((self._level_in(levels, up) for up in upstreams), default=-1)
            if level >= LEVELS_MAX:
                raise LimitError(
                    f"{name!r} behind {_listed(after)} makes a chain of {level + 1} schedules that "
                    f"ends at {one!r}, at most {LEVELS_MAX} may wait one behind the other"
                )
            levels[one] = level
        return levels

    def _level_in(self, levels: Mapping[str, int], name: str) -> int:
        return levels[name] if name in levels else self._level.get(name, 0)


def _anything(_name: str) -> bool:
    return True


def _listed(names: Sequence[str]) -> str:
    """Return a few of the names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:NAMED_MAX])
    more = len(names) - NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _refuse_circle(
    name: str, after: Sequence[str], downstream: Sequence[str], waiting: Mapping[str, Iterable[str]]
) -> None:
    """Raise CycleError with the shortest path if name would wait for what waits for it."""
    closing = {name, *downstream}.intersection(after)
    if not closing:
        return
    came_from: dict[str, str] = {}
    todo = deque([name])
    while todo[0] not in closing:
        one = todo.popleft()
        for other in sorted(waiting.get(one, ())):
            if other not in came_from:
                came_from[other] = one
                todo.append(other)
    path = [name, todo[0]]
    while path[-1] != name:
        path.append(came_from[path[-1]])
    raise CycleError(" -> ".join(reversed(path)))


def layers(after: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the names in layers: each stands behind all that it waits for, as early as it may.

    Args:
        after: whom each name waits for. Names that are no keys are left out.

    Raises:
        CycleError: names wait for each other; the text is the path.
    """
    rest = {name: [up for up in ups if up in after] for name, ups in after.items()}
    waiting: dict[str, list[str]] = {name: [] for name in rest}
    for name, upstreams in rest.items():
        for upstream in upstreams:
            waiting[upstream].append(name)
    missing = {name: len(upstreams) for name, upstreams in rest.items()}
    found: list[list[str]] = []
    layer = [name for name, count in missing.items() if count == 0]
    while layer:
        found.append(layer)
        behind: list[str] = []
        for name in layer:
            for other in waiting[name]:
                missing[other] -= 1
                if missing[other] == 0:
                    behind.append(other)
        layer = behind
    left = {name: after[name] for name, count in missing.items() if count > 0}
    if left:
        raise CycleError(" -> ".join(_circle_in(left)))
    return found


def _circle_in(after: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a circle, its first name again at the end; every name waits for another of them."""
    path = [next(iter(after))]
    while path[-1] not in path[:-1]:
        path.append(next(up for up in after[path[-1]] if up in after))
    return path[path.index(path[-1]) :][::-1]


def near(name: str, names: Iterable[str]) -> str | None:
    """Return the name most like a misspelt one, None if none is; looks at 200 names at most."""
    found = get_close_matches(name, islice(names, NEAR_MAX), n=1, cutoff=0.75)
    return found[0] if found else None
