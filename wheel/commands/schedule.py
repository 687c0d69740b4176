"""``wheeld schedule``: one job, from a shell."""

import json
import os
import sys

import click

from wheel.client import Client
from wheel.commands.kinds import duration, moment
from wheel.commands.lazy import CONTEXT
from wheel.commands.output import from_now, iso, json_option, print_json, print_table, url_option
from wheel.system import SYSTEM
from wheel.values import ON_CONFLICT, Job, OnConflict, Options, When

EPILOG = """\b
Examples:
  wheeld schedule --at 2026-12-24T09:00:00+01:00 mail.greeting '{"user": 7}'
  wheeld schedule --in 24h payments.retry @payment.json --key retry-42
"""
HEADER = ("ID", "WHAT", "HANDLER", "DUE (UTC)", "KEY")


@click.command("schedule", epilog=EPILOG, context_settings=CONTEXT)
@click.option(
    "--at",
    metavar="ISO",
    callback=moment,
    help="A moment: ISO 8601 with an offset or Z, or now.",
)
@click.option(
    "--in",
    "delay",
    metavar="DUR",
    callback=duration,
    help="A while from now: 90s, 30m, 24h, 7d, 1h30m.",
)
@click.option("--key", help="A name of the job, unique among live jobs.")
@click.option(
    "--on-conflict", type=click.Choice(ON_CONFLICT), help="What happens if the key is taken."
)
@click.option(
    "--window",
    metavar="DUR",
    callback=duration,
    help="How long after the end of its job the key counts as taken.",
)
@click.option("--priority", type=click.IntRange(0, 255), help="0 first; 128 if not given.")
@click.option(
    "--retries",
    type=click.IntRange(0, 1_000),
    help="Failures allowed; one more and the job is dead.",
)
@click.option(
    "--timeout",
    metavar="DUR",
    callback=duration,
    help="How long a run may last; 0s = for ever.",
)
@url_option
@json_option
@click.argument("handler")
@click.argument("payload", metavar="[JSON|@FILE|-]", required=False)
def schedule_command(
    handler: str,
    payload: str | None,
    *,
    at: str | None,
    delay: str | None,
    key: str | None,
    on_conflict: OnConflict | None,
    window: str | None,
    priority: int | None,
    retries: int | None,
    timeout: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Schedule one job for HANDLER, and print it once it is durable.

    The payload is JSON: written out, read from @FILE, or from the standard input with a dash.
    """
    if (at is None) == (delay is None):
        raise click.UsageError("say when, with either --at ISO or --in DUR; --at now is at once")
    when: When = at if at is not None else f"+{delay}"
    options = Options(
        key=key,
        on_conflict=on_conflict,
        window=window,
        priority=priority,
        retries=retries,
        timeout=timeout,
    )
    content = None if payload is None else read_payload(payload)
    with Client(url) as client:
        job = client.schedule_at(when, handler, content, **options)
    _print(job, as_json=as_json)


def read_payload(payload: str) -> bytes:
    """Return a payload's bytes as they were written, once they are known to be JSON.

    Args:
        payload: the JSON, ``@`` and a file's name, or a dash for the standard input.

    Raises:
        click.BadParameter: no such file, or not JSON.
    """
    if payload == "-":
        content = sys.stdin.buffer.read()
    elif payload.startswith("@"):
        try:
            with click.open_file(payload[1:], "rb") as file:
                content = file.read()
        except OSError as error:
            raise click.BadParameter(f"{payload[1:]}: {error.strerror}") from error
    else:
        content = os.fsencode(payload)
    try:
        json.loads(content)
    except ValueError as error:
        raise click.BadParameter(
            f"the payload is not JSON: {error}. Write an object, as in '{{\"user\": 7}}'"
        ) from error
    return content.rstrip(b"\r\n")


def _print(job: Job, *, as_json: bool) -> None:
    due_ms = None if job.due is None else round(job.due.timestamp() * 1000)
    if as_json:
        print_json(
            {
                "id": str(job.id),
                "uid": job.uid,
                "word": job.word,
                "handler": job.handler,
                "due": None if due_ms is None else iso(due_ms),
                "state": job.state,
                "key": job.key,
            }
        )
        return
    due = "" if due_ms is None else iso(due_ms)
    if due_ms is not None and sys.stdout.isatty():
        due += f" ({from_now(due_ms, SYSTEM.wall_ms())})"
    print_table(HEADER, [(str(job.id), job.word, job.handler, due, job.key or "")])
