"""CRON and its subcommands: arguments in, a call of the scheduler, the reply out.

Decides nothing about schedules: server/cron_words.py reads a definition, the scheduler judges and
keeps it, and wheel/cron.py knows the calendar. Every reply is gated: it leaves when what it shows
or changed is durable.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, Protocol

from server.answers import OK, Outcome, RefusedError, read_word, show
from server.cron_words import (
    DST_RULES,
    NAME_BYTES_MAX,
    ZONE_BYTES_MAX,
    Spec,
    read_rule,
    read_schedule_name,
    read_spec,
)
from server.words import Moment, Words
from wheel.engine.facts import Session
from wheel.errors import (
    Conflict,
    CoreMemoryError,
    CronSyntaxError,
    CycleError,
    InvalidRequest,
    LimitError,
    NaiveDatetimeError,
    NotFound,
    ServerFullError,
    WheeldError,
)
from wheel.wire import Answer

NOTE_BYTES_MAX: Final = 1_000
TOKEN_BYTES_MAX: Final = 64
DATE_BYTES_MAX: Final = 64
RUN_BYTES_MAX: Final = 240
PAGE: Final = 50
PAGE_MAX: Final = 200
NEXT: Final = 5
NEXT_MAX: Final = 1_000
FIRST_PAGE: Final = "0"
LAST_PAGE: Final = "0"

_SET: Final = (
    "name rule handler payload [TZ z] [JITTER ms] [OVERLAP p] [CATCHUP p [WINDOW ms] [MAX n]] "
    "[AFTER n name...] [AFTERRULE r] [DATE d] [DAG name] [START when] [END when] [MAXRUNS n] "
    "[DST d] [IFVERSION v] [DRY] [options of its jobs]"
)
# The code of what a scheduler raises: of the first class that it is an instance of.
CODES: Final[tuple[tuple[type[WheeldError], str], ...]] = (
    (CronSyntaxError, "CRON"),
    (CycleError, "CYCLE"),
    (LimitError, "LIMIT"),
    (NaiveDatetimeError, "NAIVE_TIME"),
    (InvalidRequest, "SYNTAX"),
    (NotFound, "UNKNOWN"),
    (Conflict, "CONFLICT"),
    (ServerFullError, "DISKFULL"),
    (CoreMemoryError, "OOM"),
)

# Name: (what stands behind it, one sentence).
SUBCOMMANDS: Final[dict[str, tuple[str, str]]] = {
    "SET": (_SET, "Make or change a schedule."),
    "GET": ("name", "Show a schedule."),
    "DEL": ("name [FORCE]", "Delete a schedule and its history."),
    "PAUSE": ("name [NOTE text]", "Let no run begin."),
    "RESUME": ("name", "Let runs begin again."),
    "TRIGGER": ("name [AT when] [FORCE] [ONCE token]", "Make a run by hand."),
    "LIST": ("[PREFIX p] [COUNT n] [CURSOR c]", "List schedules by name, page by page."),
    "NEXT": ("name [COUNT n]", "Show when a schedule fires next."),
    "EXPLAIN": (
        "rule [TZ z] [FROM when] [COUNT n] [DST d] [NAME n]",
        "Say a rule in words, and when it fires; nothing is stored.",
    ),
    "BACKFILL": (
        "name from to [DRY] [REVERSE] [ACTIVE n] [ONCE token]",
        "Make the runs of a stretch of time that are not there.",
    ),
    "RERUN": ("name date [DOWNSTREAM] [ONCE token]", "Run a logical date again."),
    "MARK": ("run succeeded|failed [NOTE text]", "Say how a run counts from now on."),
    "RUNS": ("name [DATE d] [COUNT n] [CURSOR c]", "List a schedule's runs, the newest first."),
}


class Scheduler(Protocol):
    """What CRON needs of the scheduler.

    A call that is refused raises one of the classes in CODES and has changed nothing.
    """

    def set(self, spec: Spec, *, actor: str) -> tuple[int, str, int | None]:
        """Return version, what was done, and the next nominal time."""
        ...

    def get(self, name: str) -> Mapping[str, Answer] | None:
        """Return a schedule's map; None if there is none."""
        ...

    def page(
        self, prefix: str, after: str, count: int
    ) -> tuple[Sequence[Mapping[str, Answer]], bool]:
        """Return schedules by name behind ``after``, and whether there are more."""
        ...

    def delete(self, name: str, *, force: bool, actor: str) -> None:
        """Delete a schedule."""
        ...

    def pause(self, name: str, *, note: str, actor: str) -> None:
        """Pause a schedule."""
        ...

    def resume(self, name: str, *, actor: str) -> None:
        """Resume a schedule."""
        ...

    def trigger(self, name: str, *, at: Moment | None, force: bool, once: str, actor: str) -> str:
        """Return the id of the run that was made."""
        ...

    def next(self, name: str, count: int) -> Mapping[str, Answer]:
        """Return a schedule's next times."""
        ...

    def explain(
        self, rule: str, *, tz: str, begin: Moment | None, count: int, dst: str, name: str
    ) -> Mapping[str, Answer]:
        """Return a rule in words, and its next times."""
        ...

    def backfill(
        self,
        name: str,
        begin: Moment,
        end: Moment,
        *,
        dry: bool,
        reverse: bool,
        active: int | None,
        once: str,
        actor: str,
    ) -> Sequence[str]:
        """Return the ids of the runs."""
        ...

    def rerun(
        self, name: str, date: str, *, downstream: bool, once: str, actor: str
    ) -> Sequence[str]:
        """Return the ids of the runs."""
        ...

    def mark(self, run_id: str, *, succeeded: bool, note: str, actor: str) -> None:
        """Have a run count as succeeded or failed."""
        ...

    def runs(
        self, name: str, *, date: str, count: int, cursor: int
    ) -> tuple[Sequence[Mapping[str, Answer]], int]:
        """Return runs, the newest first, and where to go on; 0 = the end."""
        ...


class CronCommands:
    """Answers CRON."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        payload_bytes_max: int,
        served: Callable[[bytes], bool] | None = None,
    ) -> None:
        """Make it.

        Args:
            scheduler: keeps the schedules.
            payload_bytes_max: of one job.
            served: whether anybody serves a handler; with ``--strict-handlers`` only.
        """
        self._scheduler = scheduler
        self._payload_bytes_max = payload_bytes_max
        self._served = served
        self._commands: dict[str, Callable[[Words, str], Answer]] = {
            "SET": self._set,
            "GET": self._get,
            "DEL": self._delete,
            "PAUSE": self._pause,
            "RESUME": self._resume,
            "TRIGGER": self._trigger,
            "LIST": self._list,
            "NEXT": self._next,
            "EXPLAIN": self._explain,
            "BACKFILL": self._backfill,
            "RERUN": self._rerun,
            "MARK": self._mark,
            "RUNS": self._runs,
        }

    def answer(self, session: Session, args: Sequence[bytes]) -> Outcome:
        """Return what to do about one CRON command.

        Args:
            session: who asks; what changes something is noted with their name.
            args: the subcommand and its arguments.

        Raises:
            RefusedError: it is refused; nothing was changed.
        """
        word = read_word(args[0])
        command = self._commands.get(word)
        if command is None:
            near = get_close_matches(word, self._commands, 1)
            advice = (
                f"do you mean CRON {near[0]}?" if near else f"it has {' '.join(self._commands)}"
            )
            raise RefusedError(
                "UNKNOWN_COMMAND", f'CRON has no subcommand "{show(args[0])}"; {advice}'
            )
        words = Words(f"CRON {word}", args[1:])
        try:
            return Outcome(value=command(words, session.user), gated=True)
        except WheeldError as error:
            raise RefusedError(_code(error), str(error)) from error

    # ---------------------------------------------------------------- the schedule

    def _set(self, words: Words, actor: str) -> Answer:
        spec = read_spec(words, self._payload_bytes_max)
        handler = spec.handler.encode()
        if self._served is not None and not self._served(handler):
            raise RefusedError(
                "DENIED",
                f'handler "{show(handler)}" is served by nobody and --strict-handlers is on; '
                "start its worker first, or mind the spelling",
            )
        return list(self._scheduler.set(spec, actor=actor))

    def _get(self, words: Words, _actor: str) -> Answer:
        name = read_schedule_name(words)
        words.end()
        return self._scheduler.get(name)

    def _delete(self, words: Words, actor: str) -> Answer:
        name = read_schedule_name(words)
        given = _options(words, {"FORCE": _flag})
        self._scheduler.delete(name, force="FORCE" in given, actor=actor)
        return OK

    def _pause(self, words: Words, actor: str) -> Answer:
        name = read_schedule_name(words)
        given = _options(words, {"NOTE": _note})
        self._scheduler.pause(name, note=str(given.get("NOTE", "")), actor=actor)
        return OK

    def _resume(self, words: Words, actor: str) -> Answer:
        name = read_schedule_name(words)
        words.end()
        self._scheduler.resume(name, actor=actor)
        return OK

    def _list(self, words: Words, _actor: str) -> Answer:
        given = _options(
            words,
            {
                "PREFIX": lambda words: words.text("PREFIX", NAME_BYTES_MAX),
                "COUNT": lambda words: words.number("COUNT", 1, PAGE_MAX),
                "CURSOR": _name_cursor,
            },
        )
        rows, more = self._scheduler.page(
            str(given.get("PREFIX", "")),
            str(given.get("CURSOR", "")),
            _number(given, "COUNT", PAGE),
        )
        # A name may be "0" or look like a number; the sign keeps it apart from the end.
        return [f"+{_text(rows[-1]['name'])}" if more else LAST_PAGE, list(rows)]

    # ---------------------------------------------------------------- its times

    def _next(self, words: Words, _actor: str) -> Answer:
        name = read_schedule_name(words)
        given = _options(words, {"COUNT": _next_count})
        return self._scheduler.next(name, _number(given, "COUNT", NEXT))

    def _explain(self, words: Words, _actor: str) -> Answer:
        rule = read_rule(words)
        begin: list[Moment] = []
        given = _options(
            words,
            {
                "TZ": lambda words: words.text("TZ", ZONE_BYTES_MAX),
                "FROM": lambda words: begin.append(words.moment("FROM")),
                "COUNT": _next_count,
                "DST": lambda words: words.choice("DST", DST_RULES),
                "NAME": lambda words: read_schedule_name(words, "NAME"),
            },
        )
        return self._scheduler.explain(
            rule,
            tz=str(given.get("TZ", "UTC")),
            begin=begin[0] if begin else None,
            count=_number(given, "COUNT", NEXT),
            dst=str(given.get("DST", "cron")),
            name=str(given.get("NAME", "")),
        )

    # ---------------------------------------------------------------- its runs

    def _trigger(self, words: Words, actor: str) -> Answer:
        name = read_schedule_name(words)
        at: list[Moment] = []
        given = _options(
            words,
            {"AT": lambda words: at.append(words.moment("AT")), "FORCE": _flag, "ONCE": _once},
        )
        return self._scheduler.trigger(
            name,
            at=at[0] if at else None,
            force="FORCE" in given,
            once=str(given.get("ONCE", "")),
            actor=actor,
        )

    def _backfill(self, words: Words, actor: str) -> Answer:
        name = read_schedule_name(words)
        begin, end = words.moment("from"), words.moment("to")
        given = _options(
            words,
            {
                "DRY": _flag,
                "REVERSE": _flag,
                "ACTIVE": lambda words: words.number("ACTIVE", 1, 1_000),
                "ONCE": _once,
            },
        )
        return list(
            self._scheduler.backfill(
                name,
                begin,
                end,
                dry="DRY" in given,
                reverse="REVERSE" in given,
                active=_number(given, "ACTIVE", 0) or None,
                once=str(given.get("ONCE", "")),
                actor=actor,
            )
        )

    def _rerun(self, words: Words, actor: str) -> Answer:
        name = read_schedule_name(words)
        date = words.text("date", DATE_BYTES_MAX)
        given = _options(words, {"DOWNSTREAM": _flag, "ONCE": _once})
        return list(
            self._scheduler.rerun(
                name,
                date,
                downstream="DOWNSTREAM" in given,
                once=str(given.get("ONCE", "")),
                actor=actor,
            )
        )

    def _mark(self, words: Words, actor: str) -> Answer:
        run_id = words.text("run", RUN_BYTES_MAX)
        verdict = words.choice("the verdict", ("succeeded", "failed"))
        given = _options(words, {"NOTE": _note})
        self._scheduler.mark(
            run_id, succeeded=verdict == "succeeded", note=str(given.get("NOTE", "")), actor=actor
        )
        return OK

    def _runs(self, words: Words, _actor: str) -> Answer:
        name = read_schedule_name(words)
        given = _options(
            words,
            {
                "DATE": lambda words: words.text("DATE", DATE_BYTES_MAX),
                "COUNT": lambda words: words.number("COUNT", 1, PAGE_MAX),
                "CURSOR": lambda words: words.number("CURSOR"),
            },
        )
        rows, cursor = self._scheduler.runs(
            name,
            date=str(given.get("DATE", "")),
            count=_number(given, "COUNT", PAGE),
            cursor=_number(given, "CURSOR", 0),
        )
        return [str(cursor), list(rows)]


def _code(error: WheeldError) -> str:
    """Return the code of an error; one that nobody refuses with is raised as it is."""
    for kind, code in CODES:
        if isinstance(error, kind):
            return error.code or code
    raise error


Reader = Callable[[Words], object]


def _options(words: Words, readers: Mapping[str, Reader]) -> dict[str, object]:
    """Return the options that are given, up to the end.

    Raises:
        RefusedError: another one, one given twice, or a bad value.
    """
    given: dict[str, object] = {}
    while words:
        option = words.option(tuple(readers))
        given[option] = readers[option](words)
    return given


def _number(given: Mapping[str, object], option: str, default: int) -> int:
    value = given.get(option, default)
    assert isinstance(value, int)
    return value


def _text(value: Answer) -> str:
    assert isinstance(value, str)
    return value


def _flag(_words: Words) -> object:
    return True


def _note(words: Words) -> object:
    return words.text("NOTE", NOTE_BYTES_MAX)


def _once(words: Words) -> object:
    return words.text("ONCE", TOKEN_BYTES_MAX)


def _next_count(words: Words) -> object:
    return words.number("COUNT", 1, NEXT_MAX)


def _name_cursor(words: Words) -> object:
    """CURSOR of LIST: ``0``, or a sign and the name behind which to go on."""
    cursor = words.text("CURSOR", NAME_BYTES_MAX + 1)
    if cursor == FIRST_PAGE:
        return ""
    if not cursor.startswith("+") or len(cursor) == 1:
        raise RefusedError(
            "SYNTAX",
            f'CURSOR "{show(cursor.encode())}" is none that CRON LIST gave; begin with 0',
        )
    return cursor[1:]
