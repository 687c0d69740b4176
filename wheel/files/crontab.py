"""Crontabs: each line becomes a schedule whose handler is ``shell.run`` (wheel/shell.py).

What cron does is kept: runs may overlap, what was missed stays missed, nothing is tried again, and
the lines are read in the machine's zone or in that of a ``CRON_TZ`` line above. What has no
counterpart is named: ``@reboot``, mail, another user.

The name of a schedule is made from its command, so that importing the file again changes what
changed; of equal commands the second one gets ``-2``.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from wheel.definitions import CronOptions, Definition
from wheel.errors import InvalidRequest
from wheel.files.found import Entry, Found, Problem, Remark, refused, unique

HANDLER: Final = "shell.run"
NAME_BYTES_MAX: Final = 120  # leaves room for a number behind it

_VARIABLE: Final = re.compile(r"""\s*(?P<name>"[^"]*"|'[^']*'|[A-Za-z_]\w*)\s*=(?P<value>.*)""")
_FIELDS: Final = re.compile(r"\s*(-?\s*(?:@\S+|\S+(?:[ \t]+\S+){4}))(?:[ \t]+(.*))?$")
_STAR_STEP: Final = re.compile(r"\*/[0-9]+")
_USER: Final = re.compile(r"[A-Za-z_][\w.-]*\$?")
_NO_WORD: Final = re.compile(r"[^\w.]+")
_COMMAND: Final = re.compile(r"(?:\\.|[^%])*", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\([\\%])")
_INPUT: Final = re.compile(r"(\\)?%")

MAIL: Final = frozenset({"MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"})


@dataclass(slots=True, kw_only=True)
class _State:
    """What the lines above say for the lines below."""

    environment: dict[str, str] = field(default_factory=dict[str, str])
    tz: str
    jitter: str | None = None


def read_crontab(
    text: str,
    file: str,
    *,
    tz: str = "UTC",
    prefix: str = "",
    user_column: bool | None = None,
    users: Collection[str] = ("root",),
) -> Found:
    """Return the schedules of a crontab.

    Args:
        text: of the file.
        file: its name, for errors.
        tz: the zone that its lines are read in, unless one of them says CRON_TZ.
        prefix: what the names of the schedules begin with.
        user_column: whether the sixth word is a user, as in /etc/crontab; None finds it out: it is
            if each line has one of ``users`` there, and a command behind it.
        users: names of users of this machine.

    Raises:
        FileRefused: lines that are no crontab's; every fault with its line.
    """
    lines = text.split("\n")
    if user_column is None:
        user_column = _has_users(lines, users)
    reader = _Reader(_State(tz=tz), prefix, user_column)
    for number, line in enumerate(lines, 1):
        reader.line(f"line {number}", line.rstrip("\r"))
    if reader.problems:
        raise refused(file, reader.problems)
    return Found(entries=tuple(reader.entries), remarks=tuple(reader.remarks))


def _has_users(lines: list[str], users: Collection[str]) -> bool:
    commands = [
        (match[2] or "").split(None, 1)
        for line in lines
        if not _is_idle(line)
        and _VARIABLE.fullmatch(line) is None
        and (match := _FIELDS.match(line)) is not None
    ]
    return bool(commands) and all(len(words) == 2 and words[0] in users for words in commands)


def _is_idle(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


class _Reader:
    def __init__(self, state: _State, prefix: str, user_column: bool) -> None:
        self.entries: list[Entry] = []
        self.remarks: list[Remark] = []
        self.problems: list[Problem] = []
        self._state = state
        self._prefix = prefix
        self._user_column = user_column
        self._taken: set[str] = set()

    def line(self, place: str, line: str) -> None:
        """Read one line."""
        if _is_idle(line):
            return
        variable = _VARIABLE.fullmatch(line)
        if variable is not None:
            self._variable(place, _unquoted(variable["name"]), _unquoted(variable["value"]))
            return
        match = _FIELDS.match(line)
        if match is None or match[1].lower().startswith("@every"):
            self._complain(place, f"{line.strip()!r} is not a line of a crontab; write five fields "
                           "and a command, or NAME = value")  # fmt: skip
            return
        self._job(place, match[1], match[2] or "")

    # ---------------------------------------------------------------- NAME = value

    def _variable(self, place: str, name: str, value: str) -> None:
        state = self._state
        if name in MAIL:
            text = f"{name}: nobody is mailed; what a command writes is kept with its run"
            self.remarks.append(Remark(place=place, kind="mailto", text=text))
        elif name == "CRON_TZ":
            state.tz = value or state.tz
            text = f"the lines below are read in {state.tz}"
            self.remarks.append(Remark(place=place, kind="zone", text=text))
        elif name == "RANDOM_DELAY":
            state.jitter = f"{value}m" if value.isdigit() else None
            text = f"RANDOM_DELAY: the lines below have a jitter of up to {value} minutes"
            if state.jitter is None:
                self._complain(place, f"RANDOM_DELAY is {value!r}; write a number of minutes")
                return
            self.remarks.append(Remark(place=place, kind="random-delay", text=text))
        elif name == "START_HOURS_RANGE":
            text = "START_HOURS_RANGE: left out; it is for anacron"
            self.remarks.append(Remark(place=place, kind="environment", text=text, skipped=True))
        else:
            state.environment[name] = value
            kind = "path" if name == "PATH" else "environment"
            text = f"{name}: set for the commands below, kept in each schedule's payload"
            self.remarks.append(Remark(place=place, kind=kind, text=text))

    # ---------------------------------------------------------------- jobs

    def _job(self, place: str, times: str, rest: str) -> None:
        remarks: list[Remark] = []
        user, rest = self._split_user(place, rest)
        if user:
            run_by = user if user == "root" else f"{user}, or by root"
            text = f"as user {user}: its worker must be run by {run_by}"
            remarks.append(Remark(place=place, kind="user", text=text))
        if times.startswith("-"):
            times = times[1:].lstrip()
        command, stdin = split_percent(rest)
        if not command:
            self._complain(place, "there is no command behind the times")
            return
        if times.lower() == "@reboot":
            text = f"{command!r} is left out: nothing here starts with the machine; use systemd"
            self.remarks.append(Remark(place=place, kind="reboot", text=text, skipped=True))
            return
        if stdin is not None:
            text = "% in the command: what is behind it is its standard input, as cron does"
            remarks.append(Remark(place=place, kind="percent", text=text))
        if r"\\" in rest.partition("%")[0]:
            text = r"\\ in the command is one backslash, as to Debian's cron; others keep both"
            remarks.append(Remark(place=place, kind="backslash", text=text))
        remarks += _day_steps(place, times)
        self._add(
            place, " ".join(times.split()), _payload(command, stdin, user, self._state), remarks
        )

    def _split_user(self, place: str, rest: str) -> tuple[str, str]:
        if not self._user_column:
            return "", rest
        words = rest.split(None, 1)
        user = words[0] if words else ""
        if not _USER.fullmatch(user):
            self._complain(
                place, f"{user!r} is not the name of a user, which the sixth word has to be"
            )
        return user, words[1] if len(words) > 1 else ""

    def _add(
        self, place: str, rule: str, payload: Mapping[str, object], remarks: list[Remark]
    ) -> None:
        command = str(payload["command"])
        options = CronOptions(
            tz=self._state.tz,
            overlap="allow",
            catch_up="skip",
            retries=0,
            timeout=0,
        )
        if self._state.jitter is not None:
            options["jitter"] = self._state.jitter
        definition = Definition(
            name=unique(self._prefix + name_of(command), self._taken),
            rule=rule,
            handler=HANDLER,
            payload=payload,
            options=options,
        )
        try:
            definition.words()
        except InvalidRequest as error:
            self._complain(place, str(error))
            return
        self.entries.append(Entry(place=place, definition=definition, remarks=tuple(remarks)))

    def _complain(self, place: str, text: str) -> None:
        self.problems.append(Problem(place, text))


def split_percent(text: str) -> tuple[str, str | None]:
    r"""Return command and standard input of a crontab's command: the first ``%`` parts them.

    As Debian's cron does (3.0pl1-162, tried out): in the command ``\%`` is a percent sign and a
    doubled backslash is one; in the input ``%`` is a line end, ``\%`` a percent sign, and the last
    line gets an end if it has none. Nothing behind the ``%`` is an empty input; no ``%``: None.
    """
    match = _COMMAND.match(text)
    assert match is not None, text
    command = _ESCAPED.sub(r"\1", match[0]).strip()
    if match.end() == len(text):
        return command, None
    written = _INPUT.sub(lambda found: "%" if found[1] else "\n", text[match.end() + 1 :])
    return command, written if not written or written.endswith("\n") else f"{written}\n"


def name_of(command: str) -> str:
    """Return a name for what runs a command: its words, joined by dashes."""
    words = [
        _NO_WORD.sub("-", word.rstrip("/").rpartition("/")[2]).strip("-.")
        for word in command.split()
        if "<" not in word and ">" not in word  # where its output goes is no part of its name
    ]
    name = "-".join(filter(None, words))
    return name.encode()[:NAME_BYTES_MAX].decode("utf-8", "ignore").rstrip("-.") or "command"


def _payload(command: str, stdin: str | None, user: str, state: _State) -> dict[str, object]:
    environment = dict(state.environment)
    payload: dict[str, object] = {"command": command}
    if stdin is not None:
        payload["stdin"] = stdin
    if shell := environment.pop("SHELL", ""):
        payload["shell"] = shell
    if environment:
        payload["env"] = environment
    if user:
        payload["user"] = user
    return payload


def _day_steps(place: str, times: str) -> list[Remark]:
    """Return a remark if a day field begins with a star and a step, which many read wrongly."""
    fields = times.split()
    if len(fields) != 5:
        return []
    for at, other in ((2, 4), (4, 2)):
        if not _STAR_STEP.match(fields[at]):
            continue
        what = "day of month" if at == 2 else "weekday"
        if fields[other] in {"*", "?"}:
            text = f"{fields[at]} as {what} counts from the first one of each month or week anew"
        else:
            text = f"{fields[at]} as {what} begins with a star: both day fields must match"
        return [Remark(place=place, kind="day-step", text=text)]
    return []


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text
