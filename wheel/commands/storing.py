"""From what a file says to what the server holds: all or none, faults with their place."""

from collections.abc import Iterable, Sequence
from typing import cast

from wheel.applying import Applied, ordered
from wheel.client import Client
from wheel.commands.output import plain
from wheel.errors import ApplyError, CycleError
from wheel.files.found import Entry, Found, Problem, refused


def store(client: Client, found: Found, file: str, *, dry_run: bool) -> list[Applied]:
    """Make the schedules of a file, or only say what would become of each.

    Raises:
        FileRefused: the server refuses some of them; nothing was changed.
        WheeldError: the server failed.
    """
    places = {entry.definition.name: entry.place for entry in found.entries}
    definitions = [entry.definition for entry in found.entries]
    try:
        done = client.apply(definitions, dry_run=dry_run)
    except ApplyError as error:
        problems = [
            Problem(places.get(name, file), f"schedule {name!r}: {why}")
            for name, why in error.errors.items()
        ]
        raise refused(file, problems) from error
    except CycleError as error:
        first = next((places[name] for name in error.path if name in places), file)
        raise refused(file, [Problem(first, str(error))]) from error
    if not dry_run:
        _pause(client, found.entries, file)
    return done


def _pause(client: Client, entries: Iterable[Entry], file: str) -> None:
    for entry in entries:
        if not entry.paused:
            continue
        schedule = client.schedule(entry.definition.name)
        if str(plain(schedule.fields.get("state"))) != "paused":
            schedule.pause(f"off in {file}")


def doomed(client: Client, found: Found, file: str, prefix: str) -> list[str]:
    """Return the schedules that a prune would delete, each before those that it waits for.

    Args:
        client: asked for all schedules.
        found: what the file says; what is in it stays.
        file: its name, for errors.
        prefix: schedules whose names begin with something else stay too.

    Raises:
        FileRefused: what stays waits for what would go.
    """
    staying = {entry.definition.name: entry for entry in found.entries}
    there = {schedule.name: _after(schedule.fields.get("after")) for schedule in client.schedules()}
    going = {name for name in there if name.startswith(prefix) and name not in staying}
    problems = [
        Problem(entry.place, f"{name!r} waits for {up!r}, which would go")
        for name, entry in staying.items()
        for up in entry.definition.after
        if up in going
    ]
    for name, after in there.items():
        if name not in staying and name not in going:
            problems += [
                Problem(file, f"{name!r} on the server waits for {up!r}, which would go")
                for up in after
                if up in going
            ]
    if problems:
        raise refused(file, problems)
    return list(reversed(ordered({name: there[name] for name in sorted(going)})))


def _after(value: object) -> Sequence[str]:
    names = plain(value)
    if not isinstance(names, list):
        return []
    return [str(name) for name in cast("list[object]", names)]
