"""CRON and its subcommands: arguments in, a call of the scheduler, the reply out.

Decides nothing about schedules: server/cron_words.py reads a definition, the scheduler judges and
keeps it, and wheel/cron.py knows the calendar. Every reply is gated: it leaves when what it shows
or changed is durable.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from server.answers import OK, Outcome, RefusedError, Work, read_word, show
from server.cron_show import definition_of, run_map, schedule_map, schedule_row
from server.cron_times import explained_map, next_map
from server.cron_words import (
    DST_RULES,
    NAME_BYTES_MAX,
    ZONE_BYTES_MAX,
    read_rule,
    read_schedule_name,
    read_spec,
)
from server.words import Moment, Words
from wheel.engine.definition import ScheduleError
from wheel.engine.facts import Session
from wheel.engine.scheduler import Scheduler
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
PAGE_MAX: Final = 200  # of schedules, as of jobs: rows that are made in 2 ms or so
RUNS_PAGE_MAX: Final = 100  # of runs, each with its text
NEXT: Final = 5
NEXT_MAX: Final = 100
NOW: Final = Moment(ms=0, from_now=True)
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
    "LIST": ("[PREFIX p] [DAG name] [COUNT n] [CURSOR c]", "List schedules by name, by pages."),
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


class CronCommands:
    """Answers CRON."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        wall_ms: Callable[[], int],
        payload_bytes_max: int,
    ) -> None:
        """Make it.

        Args:
            scheduler: keeps the schedules.
            wall_ms: the wall clock.
            payload_bytes_max: of one job.
        """
        self._scheduler = scheduler
        self._wall_ms = wall_ms
        self._payload_bytes_max = payload_bytes_max
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
        words = Words(f"CRON {word}", args[1:], SUBCOMMANDS[word][0])
        try:
            value = command(words, session.user)
        except CycleError as error:
            advice = "each waits for the next; take out one of these edges"
            raise RefusedError("CYCLE", f"{error}: {advice}") from error
        except WheeldError as error:
            raise RefusedError(_code(error), str(error)) from error
        name = args[1].decode(errors="replace") if word in {"SET", "DEL"} else ""
        if name and self._scheduler.is_withdrawing(name):
            return Outcome(work=self._withdrawn(name, value), gated=True)
        return Outcome(value=value, gated=True)

    def _withdrawn(self, name: str, value: Answer) -> Work:
        """Answer when the last of a schedule's runs that go has been taken back."""
        while self._scheduler.is_withdrawing(name):
            yield
        return value

    # ---------------------------------------------------------------- the schedule

    def _set(self, words: Words, actor: str) -> Answer:
        spec = read_spec(words, self._payload_bytes_max)
        definition = definition_of(spec, self._wall_ms())
        return list(
            self._scheduler.set(definition, if_version=spec.if_version, dry=spec.dry, actor=actor)
        )

    def _get(self, words: Words, _actor: str) -> Answer:
        name = read_schedule_name(words)
        words.end()
        return schedule_map(self._scheduler.get(name)) if self._scheduler.exists(name) else None

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
                "DAG": lambda words: words.text("DAG", NAME_BYTES_MAX),
                "COUNT": lambda words: words.number("COUNT", 1, PAGE_MAX),
                "CURSOR": _name_cursor,
            },
        )
        rows, more = self._scheduler.page(
            str(given.get("PREFIX", "")),
            str(given.get("CURSOR", "")),
            _number(given, "COUNT", PAGE),
            str(given.get("DAG", "")),
        )
        # A name may be "0" or look like a number; the sign keeps it apart from the end.
        cursor = f"+{rows[-1].name}" if more else LAST_PAGE
        return [cursor, [schedule_row(row) for row in rows]]

    # ---------------------------------------------------------------- its times

    def _next(self, words: Words, _actor: str) -> Answer:
        name = read_schedule_name(words)
        given = _options(words, {"COUNT": _next_count})
        scheduler = self._scheduler
        count = _number(given, "COUNT", NEXT)
        return next_map(name, scheduler.upcoming(name), count, scheduler.axis_offset_ms())

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
        return explained_map(
            rule,
            tz=str(given.get("TZ", "UTC")),
            dst="literal" if given.get("DST") == "literal" else "cron",
            name=str(given.get("NAME", "")),
            after_ms=(begin or [NOW])[0].wall_ms(self._wall_ms()),
            count=_number(given, "COUNT", NEXT),
            herd=self._scheduler.herd,
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
            at_ms=at[0].wall_ms(self._wall_ms()) if at else None,
            force="FORCE" in given,
            once=str(given.get("ONCE", "")),
            actor=actor,
        )

    def _backfill(self, words: Words, actor: str) -> Answer:
        name = read_schedule_name(words)
        now_ms = self._wall_ms()
        begin_ms, end_ms = (words.moment(what).wall_ms(now_ms) for what in ("from", "to"))
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
                begin_ms,
                end_ms,
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
                "COUNT": lambda words: words.number("COUNT", 1, RUNS_PAGE_MAX),
                "CURSOR": lambda words: words.number("CURSOR"),
            },
        )
        rows, cursor = self._scheduler.runs(
            name,
            label=str(given.get("DATE", "")),
            count=_number(given, "COUNT", PAGE),
            before=_number(given, "CURSOR", 0),
        )
        return [str(cursor), [run_map(row) for row in rows]]


def _code(error: WheeldError) -> str:
    """Return the code of an error; one that nobody refuses with is raised as it is."""
    if isinstance(error, ScheduleError):
        return error.code
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
