"""A graph of schedules that run after one another, for one logical date at a time.

``dag()`` begins one; each ``task`` is a schedule of its own on the server. The tasks that wait for
nobody carry the graph's rule; the others have none, and run when those that they wait for are done
on that date.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias, Unpack, cast

from wheel.applying import ordered
from wheel.definitions import (
    NO_RULE,
    AfterRule,
    CronOptions,
    Definition,
    TaskOptions,
    schedule_name,
)
from wheel.errors import InvalidRequest
from wheel.values import Payload

# What only a task with a rule of its own can have: it says when.
_OF_RULES: Final = ("jitter", "start", "end", "max_runs", "dst")


class Task:
    """One task of a graph; give it to another task's ``after``."""

    __slots__ = ("after", "handler", "name", "options", "payload", "when")

    def __init__(
        self,
        name: str,
        handler: str,
        payload: Payload,
        *,
        after: tuple[str, ...],
        when: AfterRule | None,
        options: TaskOptions,
    ) -> None:
        self.name = name
        self.handler = handler
        self.payload = payload
        self.after = after
        self.when: AfterRule | None = when
        self.options = options

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


TaskRef: TypeAlias = Task | str


class Dag:
    """Tasks that run after one another; iterating gives their definitions, upstreams first.

    Args:
        name: shown with each task.
        cron: the rule of those tasks that wait for nobody.
        options: of every task; a task's own come first.
    """

    __slots__ = ("_tasks", "cron", "name", "options")

    def __init__(self, name: str, cron: str, options: TaskOptions) -> None:
        schedule_name(name)
        self.name = name
        self.cron = cron
        self.options = options
        self._tasks: dict[str, Task] = {}

    def task(
        self,
        name: str,
        handler: str,
        payload: Payload = None,
        *,
        after: Iterable[TaskRef] | TaskRef = (),
        when: AfterRule | None = None,
        **options: Unpack[TaskOptions],
    ) -> Task:
        """Add a task and return it.

        Args:
            name: of the schedule that it becomes; unique on the server, not in the graph alone.
            handler: name of the handler that is to run it.
            payload: of every run.
            after: the tasks, or names of schedules, that it waits for.
            when: ``all_success`` (default), or ``all_done``: also when some of them failed.
            options: see ``CronOptions``; they come before the graph's.

        Raises:
            InvalidRequest: the name is taken or no name.
        """
        schedule_name(name)
        if name in self._tasks:
            raise InvalidRequest(f"task {name!r} stands twice in the graph {self.name!r}")
        given = [after] if isinstance(after, Task | str) else list(after)
        names = tuple(entry.name if isinstance(entry, Task) else entry for entry in given)
        made = Task(name, handler, payload, after=names, when=when, options=options)
        self._tasks[name] = made
        return made

    def __iter__(self) -> Iterator[Definition]:
        """Yield the tasks as schedules, each behind all that it waits for.

        Raises:
            CycleError: some wait for each other in a circle; ``path`` names them.
        """
        for name in ordered({task.name: task.after for task in self._tasks.values()}):
            yield self._definition(self._tasks[name])

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"<Dag {self.name} of {len(self)} tasks>"

    def _definition(self, task: Task) -> Definition:
        inherited = [
            (name, value)
            for name, value in self.options.items()
            if not (task.after and name in _OF_RULES)
        ]
        options = cast("CronOptions", {**dict(inherited), **task.options})
        options["dag"] = self.name
        options["after"] = task.after
        options["after_rule"] = task.when
        return Definition(
            name=task.name,
            rule=NO_RULE if task.after else self.cron,
            handler=task.handler,
            payload=task.payload,
            options=options,
        )


def dag(name: str, cron: str, **options: Unpack[TaskOptions]) -> Dag:
    """Return an empty graph: ``nightly = wheel.dag("nightly", cron="0 2 * * *")``.

    Args:
        name: shown with each task.
        cron: the rule of those tasks that wait for nobody.
        options: of every task; see ``CronOptions``.

    Raises:
        InvalidRequest: no name.
    """
    return Dag(name, cron, options)
