"""Kubernetes CronJobs, from ``kubectl get cronjobs -A -o json``.

What Kubernetes does is kept: the rule is matched literally where clocks change, a run that was
missed is made up for once and only within ``startingDeadlineSeconds``, ``concurrencyPolicy`` says
what happens when the last run still goes on. A star with a step in a day field does not make both
day fields count there, so it is written as a range, which does not here either.

What runs is a container, so the jobs go to a handler of the user's own, ``kubernetes.job`` unless
another name is asked for; its payload holds namespace, name and the job template.
"""

import re
from collections.abc import Mapping
from typing import Final

from wheel.definitions import CronOptions, Definition, Overlap
from wheel.errors import InvalidRequest
from wheel.files.documents import Node, read_json
from wheel.files.found import Entry, Found, Remark, refused, unique

HANDLER: Final = "kubernetes.job"
BACKOFF_LIMIT: Final = 6  # what Kubernetes takes if a job does not say
WINDOW_S_MAX: Final = 366 * 86_400  # of CATCHUP
TIMEOUT_S_MAX: Final = 30 * 86_400

_OVERLAPS: Final[Mapping[str, Overlap]] = {
    "Allow": "allow",
    "Forbid": "skip",
    "Replace": "cancel_running",
}
_STAR_STEP: Final = re.compile(r"(?<![^,])[*?](?=/)")
_DAYS: Final = ((2, "1-31"), (4, "0-6"))


def read_cronjobs(text: str, file: str, *, prefix: str = "", handler: str = HANDLER) -> Found:
    """Return the schedules of a list of CronJobs, or of a single one.

    Args:
        text: JSON.
        file: its name, for errors.
        prefix: what the names of the schedules begin with; behind it stand namespace and name.
        handler: who runs them.

    Raises:
        FileRefused: it is no such list; every fault with its path.
    """
    document = read_json(text, file)
    nodes = document.nodes("items") if "items" in document.values else [document]
    taken: set[str] = set()
    entries: list[Entry] = []
    remarks: list[Remark] = []
    for node in nodes:
        kind = node.text("kind", "CronJob")
        if kind != "CronJob":
            text = f"a {kind} is left out; only CronJobs are read"
            remarks.append(Remark(place=node.path(), kind="kind", text=text, skipped=True))
            continue
        entries += _entries(node, prefix, handler, taken)
    if not nodes and not document.problems:
        document.complain("there are no items in it")
    if document.problems:
        raise refused(file, document.problems)
    return Found(entries=tuple(entries), remarks=tuple(remarks))


def _entries(node: Node, prefix: str, handler: str, taken: set[str]) -> list[Entry]:
    metadata, spec = node.node("metadata"), node.node("spec")
    name = metadata.text("name", needed=True)
    namespace = metadata.text("namespace", "default")
    rule, remarks = _rule(spec)
    options = _options(spec, remarks)
    if not rule or not name:
        return []
    definition = Definition(
        name=unique(f"{prefix}{namespace}/{name}", taken),
        rule=rule,
        handler=handler,
        payload={
            "namespace": namespace,
            "name": name,
            "jobTemplate": dict(spec.node("jobTemplate").values),
        },
        options=options,
    )
    try:
        definition.words()
    except InvalidRequest as error:
        node.complain(str(error))
        return []
    paused = spec.flag("suspend")
    if paused:
        remarks.append(_remark(spec, "suspend", "it is paused, as it is suspended there"))
    return [Entry(place=node.path(), definition=definition, paused=paused, remarks=tuple(remarks))]


def _rule(spec: Node) -> tuple[str, list[Remark]]:
    """Return the schedule as we read it, and what was changed in it."""
    written = " ".join(spec.text("schedule", needed=True).split())
    words = written.split(" ")
    remarks: list[Remark] = []
    first = 1 if "TZ=" in words[0] else 0
    if len(words) - first != 5:  # a macro, or what the server will refuse
        return written, remarks
    for at, whole in _DAYS:
        changed = _STAR_STEP.sub(whole, words[first + at])
        if changed != words[first + at]:
            text = f"{words[first + at]} is written as {changed}: either day field counts there"
            remarks.append(_remark(spec, "day-step", text))
            words[first + at] = changed
    for at in (0, 1, 3):
        words[first + at] = words[first + at].replace("?", "*")
    return " ".join(words), remarks


def _options(spec: Node, remarks: list[Remark]) -> CronOptions:
    options = CronOptions(dst="literal", catch_up="latest", overlap="allow")
    zone = spec.text("timeZone")
    if zone:
        options["tz"] = zone
    elif "TZ=" not in spec.text("schedule"):
        text = "it says no timeZone, so it is read in UTC, as most clusters do"
        remarks.append(_remark(spec, "zone", text))
    policy = spec.text("concurrencyPolicy", "Allow")
    if policy in _OVERLAPS:
        options["overlap"] = _OVERLAPS[policy]
    else:
        spec.complain(f"{policy!r} is not Allow, Forbid or Replace", "concurrencyPolicy")
    deadline_s = spec.number("startingDeadlineSeconds")
    if deadline_s == 0:
        options["catch_up"] = "skip"
    elif deadline_s is not None:
        options["catch_up_window"] = _at_most(
            spec, "startingDeadlineSeconds", deadline_s, WINDOW_S_MAX, remarks
        )
    job = spec.node("jobTemplate").node("spec")
    options["retries"] = _or(job.number("backoffLimit"), BACKOFF_LIMIT)
    options["timeout"] = _at_most(
        job, "activeDeadlineSeconds", _or(job.number("activeDeadlineSeconds"), 0), TIMEOUT_S_MAX,
        remarks,
    )  # fmt: skip
    for key in ("parallelism", "completions"):
        if (_or(job.number(key), 1)) > 1:
            text = f"{key} is more than 1: it is in the payload, and the handler's to see to"
            remarks.append(_remark(spec, key, text))
    return options


def _at_most(node: Node, key: str, number: int, most: int, remarks: list[Remark]) -> int:
    if number <= most:
        return number
    text = f"{key} {number} is cut to {most}, the most that there is here"
    remarks.append(Remark(place=node.path(key), kind="deadline", text=text))
    return most


def _or(number: int | None, absent: int) -> int:
    return absent if number is None else number


def _remark(spec: Node, kind: str, text: str) -> Remark:
    return Remark(place=spec.path(), kind=kind, text=text)
