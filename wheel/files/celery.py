"""Celery's ``beat_schedule`` as JSON: a name, and of each task, schedule, args, kwargs, options.

A schedule is a number of seconds, ``{"crontab": {...}}``, ``{"interval": {...}}`` or
``{"solar": {...}}``; the kind may also stand inside, as ``type`` or ``__type__``. What Celery does
is kept: both day fields must match, runs may overlap, and of what was missed the last is made up
for. The sun has no rule here: ``solar`` is named and left out.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, cast

from wheel.definitions import CronOptions, Definition
from wheel.errors import InvalidRequest
from wheel.files.documents import Node, read_json
from wheel.files.found import Entry, Found, Remark, near, refused, unique

CRONTAB_FIELDS: Final = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day_of_month", 1, 31),
    ("month_of_year", 1, 12),
    ("day_of_week", 0, 6),
)
KINDS: Final = ("crontab", "interval", "solar")
KIND_KEYS: Final = ("type", "__type__")
ENTRY_KEYS: Final = ("task", "schedule", "args", "kwargs", "options", "enabled", "one_off")

_PERIODS_MS: Final[Mapping[str, Fraction]] = {
    "days": Fraction(86_400_000),
    "hours": Fraction(3_600_000),
    "minutes": Fraction(60_000),
    "seconds": Fraction(1_000),
    "microseconds": Fraction(1, 1_000),
}
_WEEKS: Final = {"1-7": 1, "8-14": 2, "15-21": 3, "22-28": 4}
_LONG_NAME: Final = re.compile(r"([a-z]{3})[a-z]+")  # Celery looks at three letters
_RANGE: Final = re.compile(r"([0-9]{1,2})-([0-9]{1,2})(/[0-9]{1,2})?")


def read_beat(text: str, file: str, *, tz: str = "UTC", prefix: str = "") -> Found:
    """Return the schedules of a beat dict.

    Args:
        text: JSON.
        file: its name, for errors.
        tz: Celery's ``timezone``.
        prefix: what the names of the schedules begin with.

    Raises:
        FileRefused: it is no such dict; every fault with its path.
    """
    document = read_json(text, file)
    if set(document.values) <= {"beat_schedule", "CELERYBEAT_SCHEDULE", "timezone"}:
        tz = document.text("timezone", tz)
        for key in ("beat_schedule", "CELERYBEAT_SCHEDULE"):
            if key in document.values:
                document = document.node(key)
    reader = _Reader(tz, prefix)
    for name in document.values:
        reader.entry(name, document.node(name))
    if not document.values and not document.problems:
        document.complain("there is no schedule in it")
    if document.problems:
        raise refused(file, document.problems)
    return Found(entries=tuple(reader.entries), remarks=tuple(reader.remarks))


class _Reader:
    def __init__(self, tz: str, prefix: str) -> None:
        self.entries: list[Entry] = []
        self.remarks: list[Remark] = []
        self._tz = tz
        self._prefix = prefix
        self._taken: set[str] = set()

    def entry(self, name: str, node: Node) -> None:
        """Read one schedule."""
        task = node.text("task", needed=True)
        remarks: list[Remark] = []
        rule = self._rule(node, remarks)
        if rule is None or not task:
            return
        options = CronOptions(tz=self._tz, overlap="allow", catch_up="latest")
        self._more(node, options, remarks)
        definition = Definition(
            name=unique(self._prefix + name, self._taken),
            rule=rule,
            handler=task,
            payload=_payload(node, remarks),
            options=options,
        )
        try:
            definition.words()
        except InvalidRequest as error:
            node.complain(str(error))
            return
        paused = not node.flag("enabled", absent=True)
        self.entries.append(
            Entry(place=node.path(), definition=definition, paused=paused, remarks=tuple(remarks))
        )

    def _more(self, node: Node, options: CronOptions, remarks: list[Remark]) -> None:
        given = node.node("options")
        expires_s = given.number("expires")
        if expires_s:
            options["expire"] = expires_s
        if node.flag("one_off"):
            options["max_runs"] = 1
        left = [key for key in given.values if key != "expires"]
        if left:
            text = f"the options {', '.join(left)} are left out; set the schedule's own"
            remarks.append(Remark(place=node.path("options"), kind="options", text=text))
        for key in [key for key in node.values if key not in ENTRY_KEYS]:
            text = f"{key} is left out; read are {', '.join(ENTRY_KEYS)}"
            remarks.append(Remark(place=node.path(key), kind="options", text=text))

    # ---------------------------------------------------------------- rules

    def _rule(self, node: Node, remarks: list[Remark]) -> str | None:
        """Return the rule; None if there is none, which has been said."""
        value = node.values.get("schedule")
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _every(node, Fraction(value) * 1000, remarks)
        if not isinstance(value, dict):
            node.complain("write a number of seconds, crontab, interval or solar", "schedule")
            return None
        given = node.node("schedule")
        kind = given.text("type") or given.text("__type__")
        for name in KINDS:
            if name in given.values:
                kind, given = name, given.node(name)
        if kind == "crontab":
            return _crontab(given)
        if kind == "interval":
            return _interval(given, remarks)
        if kind == "solar":
            event = given.text("event", "the sun")
            text = (
                f"{node.path()} is left out: no rule follows {event}; "
                "let a daily job ask for the time and schedule one at it"
            )
            self.remarks.append(Remark(place=given.path(), kind="solar", text=text, skipped=True))
            return None
        given.complain(f"the schedule is of kind {kind!r}, not one of {', '.join(KINDS)}")
        return None


def _interval(given: Node, remarks: list[Remark]) -> str | None:
    _refuse_others(given, ("every", "period", "relative"))
    every = given.values.get("every")
    period = given.text("period", "seconds")
    if period not in _PERIODS_MS:
        given.complain(f"{period!r} is not one of {', '.join(_PERIODS_MS)}", "period")
        return None
    if isinstance(every, bool) or not isinstance(every, int | float):
        given.complain("every is not a number", "every")
        return None
    return _every(given, Fraction(every) * _PERIODS_MS[period], remarks)


def _every(node: Node, length_ms: Fraction, remarks: list[Remark]) -> str | None:
    whole_ms = round(length_ms)
    if whole_ms < 1000:
        node.complain("an interval of less than a second; write 1 or more", "schedule")
        return None
    text = "it is counted from 1970 and not from the last run, so restarts do not move it"
    remarks.append(Remark(place=node.path(), kind="interval", text=text))
    if whole_ms % 1000:
        return f"@every {whole_ms}ms"
    return f"@every {whole_ms // 1000}s"


def _crontab(given: Node) -> str | None:
    before = len(given.problems)
    _refuse_others(given, [key for key, _, _ in CRONTAB_FIELDS])
    words = {key: _field(given, key, low, high) for key, low, high in CRONTAB_FIELDS}
    if len(given.problems) > before:
        return None
    day, weekday = words["day_of_month"], words["day_of_week"]
    if not day.startswith("*") and not weekday.startswith("*"):
        nth = _nth(day, weekday)
        if nth is None:
            given.complain(
                f"day_of_month {day} and day_of_week {weekday} must both match in Celery, which "
                "no rule says here; leave one of them to the handler"
            )
            return None
        words["day_of_month"], words["day_of_week"] = "*", nth
    return " ".join(words.values())


def _refuse_others(given: Node, keys: Sequence[str]) -> None:
    """Refuse keys that there are not: left out, a misspelt hour would mean every hour."""
    for key in given.values:
        if key not in keys and key not in KIND_KEYS:
            given.complain(f"there is no {key!r}; {near(key, keys)}", key)


def _nth(day: str, weekday: str) -> str | None:
    """Return both day fields as ``d#n``, if the days are whole weeks of the month."""
    weeks = [_WEEKS.get(part) for part in day.split(",")]
    single = re.fullmatch(r"[0-6]|[a-z]{3}", weekday)
    if single is None or None in weeks:
        return None
    return ",".join(f"{weekday}#{week}" for week in weeks)


def _field(given: Node, key: str, low: int, high: int) -> str:
    """Return one field of a crontab; ranges that run over the end are written as two."""
    value = given.values.get(key, "*")
    parts = cast("Sequence[object]", value) if isinstance(value, list) else [value]
    if not parts or any(
        isinstance(part, bool) or not isinstance(part, int | str) for part in parts
    ):
        given.complain(f"{value!r} is not a field of a crontab", key)
        return "*"
    text = ",".join(str(part) for part in parts).replace(" ", "").lower()
    text = _LONG_NAME.sub(r"\1", text)
    items: list[str] = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item)
        if match is None or int(match[1]) <= int(match[2]) or key not in {"minute", "hour"}:
            items.append(item)
        elif match[3]:
            given.complain(f"{item} runs over the end in steps; write its values", key)
        else:
            items += [f"{match[1]}-{high}", f"{low}-{match[2]}"]
    return ",".join(items)


def _payload(node: Node, remarks: list[Remark]) -> Mapping[str, object] | None:
    arguments = list(node.items("args"))
    named = dict(node.node("kwargs").values)
    if arguments:
        text = "args and kwargs are the two entries of its payload"
        remarks.append(Remark(place=node.path("args"), kind="args", text=text))
        return {"args": arguments, "kwargs": named}
    return named or None
