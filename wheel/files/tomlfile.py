"""``schedules.toml``: one table a schedule, its keys those of ``schedule_cron``.

prefix = "shop/"                 # optional: every name begins with it; --prune keeps to it

[defaults]                       # optional: for every schedule below
tz = "Europe/Rome"

[schedule."shop/weekly-digest"]
cron = "0 9 * * 1"               # a rule of any kind: @daily, @every 90m; none with `after`
handler = "digest.send"
payload = { to = "team" }
jitter = "5m"
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, cast

from wheel.definitions import NO_RULE, CronOptions, Definition, TaskOptions
from wheel.errors import InvalidRequest
from wheel.files.found import Entry, FileRefused, Found, Problem, near, refused
from wheel.files.tomllines import Path, key_lines, line_of
from wheel.values import Backoff, BackoffKind, backoff

OPTIONS: Final = frozenset(TaskOptions.__annotations__) | frozenset(CronOptions.__annotations__)
COMMON: Final = OPTIONS - {"after", "if_version"}
OWN_KEYS: Final = frozenset({"cron", "handler", "payload"})
TOP_KEYS: Final = ("prefix", "defaults", "schedule")

# What a value of each option may be; the rest of it is checked by whoever makes the definition.
_TEXTS: Final = frozenset("tz overlap catch_up date dst after_rule dag group meta".split())
_NUMBERS: Final = frozenset("catch_up_max max_runs if_version priority retries lost".split())
_DURATIONS: Final = frozenset("jitter catch_up_window lease timeout expire".split())


@dataclass(frozen=True, slots=True, kw_only=True)
class TomlFound(Found):
    """What is in a ``schedules.toml``.

    Attributes:
        prefix: what every name begins with; empty if the file does not say.
    """

    prefix: str = ""


def read_toml(text: str, file: str) -> TomlFound:
    """Return the schedules of a file, in its order.

    Args:
        text: of the file.
        file: its name, for errors.

    Raises:
        FileRefused: it is no TOML, or something in it is wrong; every fault with its line.
    """
    try:
        document: Mapping[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _undecodable(file, str(error)) from error
    return _Reader(document, key_lines(text), file).read()


def _undecodable(file: str, message: str) -> FileRefused:
    """Return the error for what is no TOML; tomllib's message ends with the line."""
    reason, at, place = message.rpartition(" (at ")
    if not at:
        return refused(file, [Problem("line 1", message)])
    return refused(file, [Problem(place.rstrip(")").replace(", column", " column"), reason)])


class _Reader:
    def __init__(self, document: Mapping[str, object], lines: dict[Path, int], file: str) -> None:
        self._document = document
        self._lines = lines
        self._file = file
        self._problems: list[Problem] = []

    def read(self) -> TomlFound:
        for key in self._document:
            if key not in TOP_KEYS:
                self._complain((key,), f"unknown key {key!r}; {near(key, TOP_KEYS)}")
        prefix = self._prefix()
        shared = self._table("defaults")
        self._unknown(("defaults",), shared, COMMON)
        shared = {key: value for key, value in shared.items() if key in COMMON}
        defaults = self._options(("defaults",), shared)
        entries = [
            entry
            for name in self._table("schedule")
            if (entry := self._entry(name, prefix, defaults)) is not None
        ]
        if not entries and not self._problems:
            self._complain((), "there is no schedule in it; write [schedule.NAME]")
        if self._problems:
            raise refused(self._file, self._problems)
        return TomlFound(entries=tuple(entries), prefix=prefix)

    def _prefix(self) -> str:
        prefix = self._document.get("prefix", "")
        if isinstance(prefix, str):
            return prefix
        self._complain(("prefix",), f"prefix is {prefix!r}; write a text")
        return ""

    def _table(self, key: str) -> Mapping[str, object]:
        table = self._document.get(key, {})
        if isinstance(table, dict):
            return cast("Mapping[str, object]", table)
        self._complain((key,), f"{key} is {table!r}; write a table, [{key}]")
        return {}

    def _entry(self, name: str, prefix: str, defaults: CronOptions) -> Entry | None:
        path: Path = ("schedule", name)
        table = self._table("schedule")[name]
        before = len(self._problems)
        if not isinstance(table, dict):
            self._complain(path, f"{name!r} is {table!r}; write a table, [schedule.{name}]")
            return None
        given = cast("Mapping[str, object]", table)
        if not name.startswith(prefix):
            self._complain(path, f"the name {name!r} does not begin with the prefix {prefix!r}")
        self._unknown(path, given, OPTIONS | OWN_KEYS)
        rule = self._text(path, given, "cron", NO_RULE)
        handler = self._text(path, given, "handler", "")
        if not given.get("handler"):
            self._complain(path, f'schedule {name!r} has no handler; write handler = "mail.send"')
        payload = self._payload(path, given.get("payload"))
        options: CronOptions = {**defaults, **self._options(path, given)}
        if len(self._problems) > before:
            return None
        definition = Definition(
            name=name, rule=rule, handler=handler, payload=payload, options=options
        )
        try:
            definition.words()
        except InvalidRequest as error:
            self._complain(path, f"schedule {name!r}: {error}")
        return Entry(place=self._place(path), definition=definition)

    def _options(self, path: Path, given: Mapping[str, object]) -> CronOptions:
        options: dict[str, object] = {}
        for key, value in given.items():
            if key in OPTIONS:
                read = self._option((*path, key), key, value)
                if read is not None:
                    options[key] = read
        return cast("CronOptions", options)

    def _option(self, path: Path, key: str, value: object) -> object:
        wanted = ""
        if key in _TEXTS and not isinstance(value, str):
            wanted = "a text"
        elif key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int)):
            wanted = "a whole number"
        elif key in _DURATIONS and (isinstance(value, bool) or not isinstance(value, str | int)):
            wanted = 'a duration, "5m"'
        elif key == "after":
            return self._names(path, value)
        elif key == "backoff":
            return self._backoff(path, value)
        elif key in {"start", "end"}:
            return self._moment(path, key, value)
        if wanted:
            self._complain(path, f"{key} is {_shown(value)}; write {wanted}")
            return None
        return value

    def _names(self, path: Path, value: object) -> list[str] | None:
        names = cast("list[object]", value if isinstance(value, list) else [value])
        if all(isinstance(name, str) for name in names):
            return [str(name) for name in names]
        self._complain(path, f'after is {_shown(names)}; write names, ["backup-db"]')
        return None

    def _moment(self, path: Path, key: str, value: object) -> datetime | str | None:
        if isinstance(value, str) or (isinstance(value, datetime) and value.tzinfo is not None):
            return value
        without = " has no zone" if isinstance(value, date) else ""
        self._complain(
            path, f"{key} is {_shown(value)}{without}; write 2026-12-24T09:00:00+01:00, or with Z"
        )
        return None

    def _backoff(self, path: Path, value: object) -> Backoff | None:
        shown = _shown(value)
        given = cast("Mapping[str, object]", value if isinstance(value, dict) else {"base": value})
        before = len(self._problems)
        self._unknown(path, given, frozenset({"base", "kind", "max"}))
        if len(self._problems) > before:
            return None
        try:
            return backoff(
                cast("str", given.get("base")),
                cast("BackoffKind", given.get("kind", "exp")),
                max=cast("str | None", given.get("max")),
            )
        except InvalidRequest as error:
            self._complain(
                path,
                f"backoff is {shown}: {error}; "
                'write "30s" or {base = "30s", kind = "exp", max = "1h"}',
            )
            return None

    def _payload(self, path: Path, value: object) -> Mapping[str, object] | bytes | None:
        if value is None:
            return None
        try:
            data = json.dumps(value, ensure_ascii=False)
        except TypeError:
            self._complain(
                (*path, "payload"), "the payload has a date or time in it; write it as a text"
            )
            return None
        if isinstance(value, dict):
            return cast("Mapping[str, object]", value)
        return data.encode()

    def _text(self, path: Path, given: Mapping[str, object], key: str, absent: str) -> str:
        value = given.get(key, absent)
        if isinstance(value, str):
            return value
        self._complain((*path, key), f"{key} is {_shown(value)}; write a text")
        return absent

    def _unknown(self, path: Path, given: Mapping[str, object], known: frozenset[str]) -> None:
        for key in given:
            if key not in known:
                self._complain((*path, key), f"unknown key {key!r}; {near(key, sorted(known))}")

    def _complain(self, path: Path, text: str) -> None:
        self._problems.append(Problem(self._place(path), text))

    def _place(self, path: Path) -> str:
        return f"line {line_of(self._lines, path)}"


def _shown(value: object) -> str:
    text = value.isoformat() if isinstance(value, date) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
