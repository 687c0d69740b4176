"""How much one firing writes: a run, and those of all schedules without a rule that it calls for.

They stand in one batch, of which there is a largest one. So who would make a firing larger is
refused when it is set, and not when its time has come.
"""

from collections.abc import Callable, Sequence
from typing import Final

from wheel.engine.definition import ScheduleError
from wheel.graph import Graph

FIRING_BYTES_MAX: Final = 1_500_000  # a slice may have written 256 KiB before it; 2 MiB are a batch
RUN_BYTES: Final = 600  # of a run beside its definition: owner, state, history


class Fanout:
    """What the firings are that a schedule takes part in."""

    def __init__(
        self, graph: Graph, has_rule: Callable[[str], bool], size: Callable[[str], int]
    ) -> None:
        """Make it.

        Args:
            graph: who waits for whom.
            has_rule: whether a schedule has a rule.
            size: bytes of its definition.
        """
        self._graph = graph
        self._has_rule = has_rule
        self._size = size

    def check(self, name: str, after: Sequence[str], size: int, *, ruled: bool) -> None:
        """Refuse a schedule that makes a firing too large.

        Args:
            name: the schedule; others may wait for it already.
            after: whom it is to wait for.
            size: bytes of its definition.
            ruled: whether it is to have a rule.

        Raises:
            ScheduleError: LIMIT.
        """
        roots = [name]
        if not ruled:
            roots += [up for up in (*after, *self._graph.upstream(after)) if self._has_rule(up)]
        for root in dict.fromkeys(roots):
            total, tasks = 0, 0
            todo, seen = [root], {root}
            while todo:
                one = todo.pop()
                tasks += 1
                total += RUN_BYTES + (size if one == name else self._size(one))
                if total > FIRING_BYTES_MAX:
                    raise _too_large(name, root, tasks, total)
                called = set(self._graph.waiting(one)) - {name}  # but for its new edges
                if one in after:
                    called.add(name)
                for other in called - seen:
                    if ruled if other == name else self._has_rule(other):
                        continue
                    seen.add(other)
                    todo.append(other)


def _too_large(name: str, root: str, tasks: int, total: int) -> ScheduleError:
    return ScheduleError(
        "LIMIT",
        f"schedule {name!r}: a run of {root!r} would make {tasks} runs or more at once, {total} "
        f"bytes with their payloads, over {FIRING_BYTES_MAX}; make payloads smaller, or give some "
        "a rule of their own",
    )
