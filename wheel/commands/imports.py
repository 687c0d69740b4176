"""``wheeld cron import-...``: schedules from crontabs, Kubernetes and Celery.

Each entry becomes a schedule; each thing that is done in another way here, or left out, is a line
of the report, with its place and one word for its kind.
"""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

import click

from wheel.client import Client
from wheel.commands.lazy import CONTEXT
from wheel.commands.machine import local_zone, read_text, user_names
from wheel.commands.output import counted, json_option, print_json, print_table, url_option
from wheel.commands.storing import store
from wheel.files.celery import read_beat
from wheel.files.crontab import read_crontab
from wheel.files.found import Entry, Found, Remark
from wheel.files.kubernetes import HANDLER, read_cronjobs

CRONTAB_EPILOG: Final = """\b
Examples:
  wheeld cron import-crontab /etc/crontab --dry-run
  crontab -l | wheeld cron import-crontab - --prefix web1/
"""
KUBERNETES_EPILOG: Final = """\b
Examples:
  kubectl get cronjobs -A -o json | wheeld cron import-kubernetes - --dry-run
  wheeld cron import-kubernetes cronjobs.json --prefix cluster1/ --handler k8s.run
"""
CELERY_EPILOG: Final = """\b
Examples:
  wheeld cron import-celery beat.json --dry-run
  wheeld cron import-celery beat.json --tz Europe/Rome --prefix shop/
"""
HEADER: Final = ("PLACE", "WHAT", "NAME", "RULE", "HANDLER", "KIND", "NOTE")
SYSTEM_FOLDERS: Final = ("/etc/crontab", "/etc/cron.d/")

_dry_run = click.option("--dry-run", is_flag=True, help="Change nothing, only report.")
_prefix = click.option("--prefix", default="", help="Put this in front of the schedules' names.")


@click.command("import-crontab", epilog=CRONTAB_EPILOG, context_settings=CONTEXT)
@click.argument("file")
@click.option("--tz", metavar="ZONE", help="The zone of its lines; this machine's if not given.")
@click.option(
    "--user-column/--no-user-column",
    default=None,
    help="Whether the sixth word is a user, as in /etc/crontab; found out if not given.",
)
@_prefix
@_dry_run
@url_option
@json_option
def crontab_command(
    file: str,
    *,
    tz: str | None,
    user_column: bool | None,
    prefix: str,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Make a schedule of each line of a crontab; `wheeld work --shell` runs the commands.

    A dash reads the standard input. One line that cannot be read refuses the file.
    """
    if user_column is None and file.startswith(SYSTEM_FOLDERS):
        user_column = True
    zone = tz or local_zone()
    text = read_text(file)
    found = read_crontab(
        text,
        file,
        tz=zone or "UTC",
        prefix=prefix,
        user_column=user_column,
        users=user_names(),
    )
    where = zone or "UTC, because this machine does not say its zone"
    remark = Remark(place=PurePath(file).name, kind="zone", text=f"its lines are read in {where}")
    found = Found(entries=found.entries, remarks=(remark, *found.remarks))
    _import(found, file, dry_run=dry_run, url=url, as_json=as_json)


@click.command("import-kubernetes", epilog=KUBERNETES_EPILOG, context_settings=CONTEXT)
@click.argument("file")
@click.option(
    "--handler", default=HANDLER, show_default=True, help="Who runs the job templates: yours."
)
@_prefix
@_dry_run
@url_option
@json_option
def kubernetes_command(
    file: str, *, handler: str, prefix: str, dry_run: bool, url: str | None, as_json: bool
) -> None:
    """Make a schedule of each Kubernetes CronJob in JSON; a dash reads the standard input."""
    found = read_cronjobs(read_text(file), file, prefix=prefix, handler=handler)
    _import(found, file, dry_run=dry_run, url=url, as_json=as_json)


@click.command("import-celery", epilog=CELERY_EPILOG, context_settings=CONTEXT)
@click.argument("file")
@click.option("--tz", default="UTC", show_default=True, help="Celery's setting `timezone`.")
@_prefix
@_dry_run
@url_option
@json_option
def celery_command(
    file: str, *, tz: str, prefix: str, dry_run: bool, url: str | None, as_json: bool
) -> None:
    """Make a schedule of each entry of a Celery beat_schedule in JSON; a dash reads the input.

    Python writes it: json.dumps(app.conf.beat_schedule), crontabs as {"crontab": {"hour": 3}}.
    """
    found = read_beat(read_text(file), file, tz=tz, prefix=prefix)
    _import(found, file, dry_run=dry_run, url=url, as_json=as_json)


def _import(found: Found, file: str, *, dry_run: bool, url: str | None, as_json: bool) -> None:
    with Client(url) as client:
        done = store(client, found, file, dry_run=dry_run) if found.entries else []
    words = {applied.name: applied.word for applied in done}
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "items": [_document(entry, words) for entry in found.entries],
                "remarks": [_note(remark) for remark in found.remarks],
            }
        )
        return
    rows: list[tuple[str, ...]] = []
    for entry in found.entries:
        made = entry.definition
        what = words[made.name] + (", paused" if entry.paused else "")
        notes = entry.remarks or (None,)
        for at, remark in enumerate(notes):
            head = (what, made.name, made.rule, made.handler) if not at else ("",) * 4
            rows.append((entry.place, *head, *(("", "") if remark is None else _said(remark))))
    rows += [
        (remark.place, "skipped" if remark.skipped else "noted", "", "", "", *_said(remark))
        for remark in found.remarks
    ]
    print_table(HEADER, rows)
    skipped = sum(remark.skipped for remark in found.remarks)
    end = "; nothing was changed (--dry-run)" if dry_run else ""
    click.echo(f"{counted(len(found.entries), 'schedule')}, {skipped} left out{end}", err=True)


def _said(remark: Remark) -> tuple[str, str]:
    return remark.kind, remark.text


def _document(entry: Entry, words: Mapping[str, str]) -> Mapping[str, object]:
    return {
        "place": entry.place,
        "name": entry.definition.name,
        "word": words[entry.definition.name],
        "rule": entry.definition.rule,
        "handler": entry.definition.handler,
        "paused": entry.paused,
        "remarks": [_note(remark) for remark in entry.remarks],
    }


def _note(remark: Remark) -> Mapping[str, object]:
    return {
        "place": remark.place,
        "kind": remark.kind,
        "text": remark.text,
        "skipped": remark.skipped,
    }


IMPORT_COMMANDS: Final[tuple[click.Command, ...]] = (
    crontab_command,
    kubernetes_command,
    celery_command,
)
