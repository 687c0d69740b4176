"""``wheeld jobs``, second half: what is done to jobs by their ids or keys."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

import click

from wheel.client import Client
from wheel.commands.kinds import moment
from wheel.commands.lazy import CONTEXT
from wheel.commands.output import (
    exit_status,
    json_option,
    print_json,
    print_table,
    url_option,
)
from wheel.errors import Conflict, NotFound, WheeldError
from wheel.link import array, checked, text
from wheel.values import when_wire
from wheel.wire import Reply

CANCEL_EPILOG: Final = """\b
Examples:
  wheeld jobs cancel retry-42
  wheeld jobs list --handler mail.send | cut -f1 | xargs wheeld jobs cancel
"""
RUN_EPILOG: Final = """\b
Examples:
  wheeld jobs run retry-42
  wheeld jobs run 4611686018427387905 --json
"""
RESCHEDULE_EPILOG: Final = """\b
Examples:
  wheeld jobs reschedule retry-42 +2h
  wheeld jobs reschedule retry-42 2026-12-24T09:00:00+01:00
"""
REQUEUE_EPILOG: Final = """\b
Examples:
  wheeld jobs requeue retry-42
  wheeld jobs list --state dead | cut -f1 | xargs wheeld jobs requeue
"""
PURGE_EPILOG: Final = """\b
Examples:
  wheeld jobs purge retry-42
  wheeld jobs list --state dead --to now | cut -f1 | xargs wheeld jobs purge
"""
CHUNK: Final = 500  # a command has at most 1,024 arguments (PROTOCOL.md, Limits)

Outcome: TypeAlias = "Reply | WheeldError"
Ask: TypeAlias = Callable[[Client, Sequence[str]], Iterator[Outcome]]


def _together(verb: str) -> Ask:
    """Return how a verb that takes many jobs is asked."""

    def ask(client: Client, jobs: Sequence[str]) -> Iterator[Outcome]:
        rest = iter(jobs)
        while chunk := list(islice(rest, CHUNK)):
            yield from array(client.execute(verb, *chunk), len(chunk))

    return ask


def _one_by_one(verb: str, *words: str) -> Ask:
    """Return how a verb that takes one job is asked."""

    def ask(client: Client, jobs: Sequence[str]) -> Iterator[Outcome]:
        for job in jobs:
            try:
                yield client.execute(verb, job, *words)
            except (NotFound, Conflict) as error:  # of this job; what else there is ends it all
                yield error

    return ask


def _raised(outcome: Outcome) -> Reply:
    if isinstance(outcome, WheeldError):
        raise outcome
    return checked(outcome)


def _do(ask: Ask, jobs: Sequence[str], word: str, *, url: str | None, as_json: bool) -> int:
    """Ask, print what became of each job, and return the exit status: of the first refusal.

    Args:
        ask: how.
        jobs: ids and keys.
        word: what ``+OK`` means; other words are printed as the server says them.
        url: the server's.
        as_json: print one document.
    """
    items: list[dict[str, str | None]] = []
    refused: list[WheeldError] = []
    with Client(url) as client:
        for job, outcome in zip(jobs, ask(client, jobs), strict=True):
            said: str | None = None
            try:
                said = text(_raised(outcome))
            except WheeldError as error:
                refused.append(error)
            what = word if said == "OK" else said and said.lower()
            items.append({"job": job, "word": what, "error": None if said else str(refused[-1])})
    if as_json:
        print_json({"items": items})
    else:
        rows = [(str(item["job"]), item["word"]) for item in items]
        print_table(("JOB", "WHAT"), [(job, what) for job, what in rows if what])
        for refusal in refused:
            click.echo(f"Error: {refusal}", err=True)
    return exit_status(refused[0]) if refused else 0


@click.command("cancel", epilog=CANCEL_EPILOG, context_settings=CONTEXT)
@click.argument("job", metavar="JOB...", nargs=-1, required=True)
@url_option
@json_option
def cancel_command(job: tuple[str, ...], *, url: str | None, as_json: bool) -> int:
    """Cancel each JOB, an id or a key: it will not run.

    A job that runs is marked: its worker is told to stop. The second word printed is cancelled,
    marked, or ended where there was nothing to cancel.
    """
    return _do(_together("CANCEL"), job, "cancelled", url=url, as_json=as_json)


@click.command("run", epilog=RUN_EPILOG, context_settings=CONTEXT)
@click.argument("job", metavar="JOB...", nargs=-1, required=True)
@url_option
@json_option
def run_command(job: tuple[str, ...], *, url: str | None, as_json: bool) -> int:
    """Make each JOB due now, an id or a key that waits for its time."""
    return _do(_one_by_one("RUN"), job, "due now", url=url, as_json=as_json)


@click.command("reschedule", epilog=RESCHEDULE_EPILOG, context_settings=CONTEXT)
@click.argument("job")
@click.argument("when", callback=moment)
@url_option
@json_option
def reschedule_command(job: str, *, when: str, url: str | None, as_json: bool) -> int:
    """Move JOB, an id or a key, to another time: now, +2h, or ISO 8601 with an offset."""
    ask = _one_by_one("RESCHEDULE", when_wire(when).decode())
    return _do(ask, [job], "rescheduled", url=url, as_json=as_json)


@click.command("requeue", epilog=REQUEUE_EPILOG, context_settings=CONTEXT)
@click.argument("job", metavar="JOB...", nargs=-1, required=True)
@url_option
@json_option
def requeue_command(job: tuple[str, ...], *, url: str | None, as_json: bool) -> int:
    """Let each dead JOB, an id or a key, live again: due now, with all its retries."""
    return _do(_together("REQUEUE"), job, "requeued", url=url, as_json=as_json)


@click.command("purge", epilog=PURGE_EPILOG, context_settings=CONTEXT)
@click.argument("job", metavar="JOB...", nargs=-1, required=True)
@url_option
@json_option
def purge_command(job: tuple[str, ...], *, url: str | None, as_json: bool) -> int:
    """Forget each dead JOB, an id or a key."""
    return _do(_together("PURGE"), job, "purged", url=url, as_json=as_json)


ACTION_COMMANDS: Final[tuple[click.Command, ...]] = (
    cancel_command,
    run_command,
    reschedule_command,
    requeue_command,
    purge_command,
)
