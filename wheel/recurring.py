"""Schedules from Python: what ``Client`` can do with them, and the handle that it gives.

A schedule is a name on the server; a ``Schedule`` here is that name and what the server last said
of it. Its methods ask again. Calls that make something (``trigger``, ``backfill``, ``rerun``) carry
a ONCE token, so that a call that is repeated after a lost reply makes nothing twice.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date as calendar_date
from datetime import datetime
from typing import Final, Literal, Protocol, TypeAlias, Unpack

from wheel.applying import Applied, Plan
from wheel.definitions import (
    NUMBER_MAX,
    CronOptions,
    Definition,
    DstRule,
    rule_bytes,
    schedule_name,
)
from wheel.errors import InvalidRequest, NotFound
from wheel.link import array, fields, number, text
from wheel.values import Payload, When, from_ms, when_wire
from wheel.wire import Reply

Word: TypeAlias = bytes | str | int
Label: TypeAlias = calendar_date | str
Verdict: TypeAlias = Literal["succeeded", "failed"]

PAGE: Final = 200
RUNS_PAGE: Final = 100
NEXT_MAX: Final = 100


class Caller(Protocol):
    """What a schedule asks the server through: ``Client``."""

    def execute(self, *words: Word) -> Reply:
        """Return the server's reply to one command."""
        ...

    def token(self) -> str:
        """Return a new ONCE token."""
        ...

    @property
    def payload_max(self) -> int:
        """Bytes of a payload, at most."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fire:
    """One moment at which a rule fires.

    Attributes:
        at: the moment, in UTC.
        local: the same as the zone's clock shows it, with its offset.
        due: when the job is handed out: ``at`` and the schedule's jitter.
    """

    at: datetime
    local: str
    due: datetime

    def __str__(self) -> str:
        """Return it for people: ``Mon 2026-12-07 09:00 +01:00 = 08:00Z``."""
        moment = datetime.fromisoformat(self.local)
        offset = moment.strftime("%z")
        return (
            f"{moment:%a %Y-%m-%d} {clock(moment)} {offset[:3]}:{offset[3:5]} = {clock(self.at)}Z"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A rule in words, and what comes of it.

    Attributes:
        rule: as it was asked.
        tz: the zone that it is read in.
        words: the rule in words.
        next: the next times.
        remarks: what to take care of: days on which clocks change, warnings.
        herd: how many others fire at the same moment, if that is worth saying.
    """

    rule: str
    tz: str
    words: str
    next: tuple[Fire, ...]
    remarks: tuple[str, ...]
    herd: str | None

    def __str__(self) -> str:
        ahead = ", ".join(map(str, self.next)) or "never again"
        notes = "".join(f"\n{note}" for note in (*self.remarks, *filter(None, [self.herd])))
        return f"{self.words} ({self.tz}). Next: {ahead}{notes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    """One run of a schedule, or several in a row that were dropped for one reason.

    Attributes:
        run_id: name and nominal time.
        nominal: what the run is for; the first one's, if they are several.
        last: the last one's nominal time.
        count: how many.
        date: the logical date that others wait by.
        outcome: how it stands or ended.
        reason: why, where there is a reason.
        fields: everything that the server answered, by the server's names.
    """

    run_id: str
    nominal: datetime
    last: datetime
    count: int
    date: str
    outcome: str
    reason: str | None
    fields: Mapping[str, object] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule on the server, as the server last told of it; the methods ask anew.

    Attributes:
        name: its identity.
        version: rises with every change; for ``if_version``.
        word: what the call that gave this did: ``created``, ``changed`` or ``unchanged``; None if
            it only looked.
        next_at: the nominal time of the next run, in UTC; None if there is none.
        fields: everything that CRON GET or CRON LIST answered, by the server's names; empty
            behind ``schedule_cron``.
    """

    name: str
    version: int
    word: str | None
    next_at: datetime | None
    fields: Mapping[str, Reply] = field(repr=False)
    _caller: Caller = field(repr=False, compare=False)

    @property
    def state(self) -> str:
        """``active``, ``paused`` or ``ended``, as the server last said; empty if it did not."""
        return text(self.fields.get("state", ""))

    @property
    def dag(self) -> str:
        """What it is shown under; empty if nothing, or if the server did not say."""
        shown = self.fields.get("dag")
        return "" if shown is None else text(shown)

    @property
    def after(self) -> tuple[str, ...]:
        """Whom it waits for, as the server last said."""
        names = self.fields.get("after") or []
        return tuple(text(name) for name in names) if isinstance(names, list) else ()

    @property
    def created(self) -> bool:
        """Whether this call made the schedule."""
        return self.word == "created"

    @property
    def changed(self) -> bool:
        """Whether this call changed it; a changed rule has cancelled what was not handed out."""
        return self.word == "changed"

    @property
    def unchanged(self) -> bool:
        """Whether it was there already, exactly like this."""
        return self.word == "unchanged"

    def next(self, count: int = 1) -> list[Fire]:
        """Return the next times at which it fires, at most 100; fewer if it ends before.

        Raises:
            NotFound: there is no such schedule any more.
            InvalidRequest: ``count`` is out of bounds.
        """
        _bounded("count", count, NEXT_MAX)
        answer = fields(self._ask("NEXT", "COUNT", count))
        return [_fire(entry) for entry in array(answer.get("next"))]

    def explain(self, count: int = 3) -> Explanation:
        """Return its rule in words, with its next times and what to take care of.

        Raises:
            NotFound: there is no such schedule any more.
            InvalidRequest: it has no rule of its own, or ``count`` is out of bounds.
        """
        now = fields(self._ask("GET", missing=True))
        words: list[Word] = ["TZ", text(now.get("tz", "UTC")), "DST", text(now.get("dst", "cron"))]
        return _explain(self._caller, text(now.get("rule", "")), [*words, "NAME", self.name], count)

    def pause(self, note: str | None = None) -> None:
        """Let no run begin until it is resumed; ``note`` says why, to whoever looks.

        Raises:
            NotFound: there is no such schedule any more.
        """
        self._ask("PAUSE", *(() if note is None else ("NOTE", note)))

    def resume(self) -> None:
        """Go on; what has passed meanwhile is missed, and ``catch_up`` decides.

        Raises:
            NotFound: there is no such schedule any more.
        """
        self._ask("RESUME")

    def trigger(self, *, at: When | None = None, force: bool = False) -> str:
        """Make one run by hand, and return its run id.

        Unless it is forced, ``overlap`` judges it when it is due: one that is skipped stands in
        ``runs`` as skipped.

        Args:
            at: when it is due; at once by default.
            force: whatever ``overlap`` says.

        Raises:
            NotFound: there is no such schedule any more.
        """
        when: list[Word] = [] if at is None else ["AT", when_wire(at)]
        forced = ["FORCE"] if force else []
        return text(self._ask("TRIGGER", *when, *forced, "ONCE", self._caller.token()))

    def runs(self, *, date: Label | None = None) -> Iterator[ScheduleRun]:
        """Yield its runs, the newest first: those that are under way and those in the history.

        Args:
            date: only those for this logical date.

        Raises:
            NotFound: there is no such schedule any more.
        """
        only: list[Word] = [] if date is None else ["DATE", label_text(date)]
        cursor = "0"
        while True:
            page = array(self._ask("RUNS", *only, "COUNT", RUNS_PAGE, "CURSOR", cursor), 2)
            yield from map(_run, array(page[1]))
            cursor = text(page[0])
            if cursor == "0":
                return

    def delete(self, *, force: bool = False) -> None:
        """Delete it with its history; what was not handed out is cancelled.

        Args:
            force: even if others wait for it.

        Raises:
            NotFound: there is no such schedule any more.
            Conflict: others wait for it.
        """
        self._ask("DEL", *(["FORCE"] if force else []))

    def backfill(
        self,
        start: When,
        end: When,
        *,
        dry_run: bool = False,
        reverse: bool = False,
        active: int | None = None,
    ) -> list[str]:
        """Make the runs of a stretch of time that are not in the history; return their run ids.

        Args:
            start: the first moment of it.
            end: its last moment.
            dry_run: only say which.
            reverse: the newest first.
            active: at most so many at once; one by default.

        Raises:
            NotFound: there is no such schedule any more.
            InvalidRequest: a bad stretch, or more runs than the server makes at once.
        """
        words: list[Word] = [when_wire(start), when_wire(end)]
        words += ["DRY"] if dry_run else []
        words += ["REVERSE"] if reverse else []
        words += [] if active is None else ["ACTIVE", _bounded("active", active, NUMBER_MAX)]
        once = ["ONCE", self._caller.token()]
        return [text(run) for run in array(self._ask("BACKFILL", *words, *once))]

    def rerun(self, date: Label, *, downstream: bool = False) -> list[str]:
        """Run a logical date again; return the new runs' ids.

        Args:
            date: the logical date.
            downstream: also everything that waits for it, on that date.

        Raises:
            NotFound: there is no such schedule any more, or it has no run on that date.
        """
        words: list[Word] = [label_text(date), *(["DOWNSTREAM"] if downstream else [])]
        return [
            text(run) for run in array(self._ask("RERUN", *words, "ONCE", self._caller.token()))
        ]

    def refresh(self) -> "Schedule":
        """Return the schedule as it is now.

        Raises:
            NotFound: there is no such schedule any more.
        """
        return _schedule(self._caller, fields(self._ask("GET", missing=True)))

    def _ask(self, verb: str, *words: Word, missing: bool = False) -> Reply:
        reply = self._caller.execute("CRON", verb, self.name, *words)
        if missing and reply is None:
            raise not_found(self.name)
        return reply

    def __repr__(self) -> str:
        ahead = "" if self.next_at is None else f" next {self.next_at:%Y-%m-%dT%H:%M:%SZ}"
        word = "" if self.word is None else f" {self.word}"
        return f"<Schedule {self.name} version {self.version}{ahead}{word}>"


class Recurring(ABC):
    """The part of ``Client`` that is about schedules."""

    __slots__ = ()

    @abstractmethod
    def execute(self, *words: Word) -> Reply:
        """Return the server's reply to one command; the client's."""
        ...

    @abstractmethod
    def token(self) -> str:
        """Return a new ONCE token; the client's."""
        ...

    @property
    @abstractmethod
    def payload_max(self) -> int:
        """Bytes of a payload, at most; the client's."""
        ...

    def schedule_cron(
        self,
        name: str,
        rule: str,
        handler: str,
        payload: Payload = None,
        **options: Unpack[CronOptions],
    ) -> Schedule:
        """Make or change a schedule, and return it, durable.

        The name is the identity: the same call at every deploy changes the schedule or leaves it
        as it is, and never makes a second one. What was counted stays.

        Args:
            name: up to 160 bytes.
            rule: cron text (``0 9 * * 1``), ``@daily`` and its kin, ``@every 90m``, ``@at`` and an
                ISO time, or ``-`` for none, with ``after``.
            handler: name of the handler that is to run it.
            payload: of every run; a mapping becomes a JSON object, bytes go as they are.
            options: see ``CronOptions``.

        Raises:
            CronSyntaxError: the rule or its zone cannot be read, or never fires.
            CycleError: it would wait for itself.
            NotFound: a schedule of ``after`` is not there.
            Conflict: ``if_version`` is not the version.
            InvalidRequest: an argument that is malformed or out of bounds.
            UnavailableError: the server was not reached or did not answer in time.
            WheeldError: the server refused.
        """
        wanted = Definition(name=name, rule=rule, handler=handler, payload=payload, options=options)
        answer = array(self.execute(*wanted.words(payload_max=self.payload_max)), 3)
        return Schedule(
            name=name,
            version=number(answer[0]),
            word=text(answer[1]),
            next_at=_moment(answer[2]),
            fields={},
            _caller=self,
        )

    def schedule(self, name: str) -> Schedule:
        """Return a schedule.

        Raises:
            NotFound: there is none of this name.
        """
        reply = self.execute("CRON", "GET", schedule_name(name))
        if reply is None:
            raise not_found(name)
        return _schedule(self, fields(reply))

    def schedules(self, prefix: str = "", *, dag: str = "") -> Iterator[Schedule]:
        """Yield schedules by name, asking page by page.

        Args:
            prefix: of their names.
            dag: only those of this graph; "" = all.
        """
        only: list[Word] = [] if not prefix else ["PREFIX", prefix]
        only += ["DAG", dag] if dag else []
        cursor = "0"
        while True:
            page = array(self.execute("CRON", "LIST", *only, "COUNT", PAGE, "CURSOR", cursor), 2)
            for entry in array(page[1]):
                yield _schedule(self, fields(entry))
            cursor = text(page[0])
            if cursor == "0":
                return

    def mark_run(self, run_id: str, verdict: Verdict, note: str | None = None) -> None:
        """Say how a schedule's run shall count from now on, for those that wait for it.

        Args:
            run_id: of the run.
            verdict: ``succeeded`` or ``failed``.
            note: why.

        Raises:
            NotFound: no such run is known.
        """
        why = () if note is None else ("NOTE", note)
        self.execute("CRON", "MARK", run_id, verdict, *why)

    def explain(
        self,
        rule: str,
        *,
        tz: str = "UTC",
        after: When | None = None,
        count: int = 3,
        dst: DstRule | None = None,
        name: str | None = None,
    ) -> Explanation:
        """Return a rule in words, with its next times; nothing is stored.

        Args:
            rule: as for ``schedule_cron``.
            tz: the zone to read it in.
            after: where to begin; now by default.
            count: how many times, at most 100.
            dst: ``cron`` or ``literal``.
            name: of the schedule that it is for: what ``H`` stands for depends on it.

        Raises:
            CronSyntaxError: the rule or its zone cannot be read, or never fires.
            InvalidRequest: ``count`` is out of bounds.
        """
        words: list[Word] = ["TZ", tz]
        words += [] if after is None else ["FROM", when_wire(after)]
        words += [] if dst is None else ["DST", dst]
        words += [] if name is None else ["NAME", schedule_name(name)]
        return _explain(self, rule, words, count)

    def apply(
        self, *definitions: Definition | Iterable[Definition], dry_run: bool = False
    ) -> list[Applied]:
        """Make or change many schedules, all or none; return what became of each.

        Everything is checked before anything is changed: arguments here, every rule by the
        server, and who waits for whom over what is there and what is new. Then they are stored one
        by one, upstreams first; if the server fails in between, the same call goes on.

        Args:
            definitions: or a ``Dag``, or any iterable of definitions.
            dry_run: change nothing, only say what would become of each.

        Raises:
            ApplyError: some are refused; ``errors`` says why by name. Nothing was changed.
            CycleError: they would wait for each other; ``path`` names them.
            WheeldError: the server failed half-way; what is behind has not been changed.
        """
        flat: list[Definition] = []
        for entry in definitions:
            flat += [entry] if isinstance(entry, Definition) else entry
        plan = Plan(self, flat, payload_max=self.payload_max)
        return plan.check() if dry_run else plan.carry_out()


def not_found(name: str) -> NotFound:
    """Return the error for a schedule that is not there."""
    error = NotFound(f"no schedule {name!r}; `wheeld cron list` shows those that there are")
    error.code = "UNKNOWN"
    return error


def clock(moment: datetime) -> str:
    """Return a time of day, with seconds only where there are some."""
    return f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"


def label_text(label: object) -> str:
    """Return a logical date as text.

    Raises:
        InvalidRequest: neither a date nor text.
    """
    if isinstance(label, datetime):
        raise InvalidRequest(f"{label!r} is a moment; a logical date is a date or its text")
    if isinstance(label, calendar_date):
        return label.isoformat()
    if not isinstance(label, str):
        raise InvalidRequest(f"{label!r} is not a logical date; write '2026-12-07' or a date")
    return label


def _bounded(what: str, value: int, most: int) -> int:
    if isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidRequest(f"{what} {value!r} is not between 1 and {most}")
    return value


def _moment(value: Reply) -> datetime | None:
    return None if value is None else from_ms(number(value))


def _schedule(caller: Caller, found: Mapping[str, Reply]) -> Schedule:
    return Schedule(
        name=text(found.get("name", "")),
        version=number(found.get("version", 0)),
        word=None,
        next_at=_moment(found.get("next_ms")),
        fields=found,
        _caller=caller,
    )


def _fire(entry: Reply) -> Fire:
    item = array(entry, 2)
    at = from_ms(number(item[0]))
    due = from_ms(number(item[2])) if len(item) > 2 else at
    return Fire(at=at, local=text(item[1]), due=due)


def _explain(caller: Caller, rule: str, words: Sequence[Word], count: int) -> Explanation:
    asked = caller.execute(
        "CRON", "EXPLAIN", rule_bytes(rule), *words, "COUNT", _bounded("count", count, NEXT_MAX)
    )
    found = fields(asked)
    herd = found.get("herd")
    return Explanation(
        rule=rule,
        tz=text(found.get("tz", "")),
        words=text(found.get("words", "")),
        next=tuple(map(_fire, array(found.get("next", [])))),
        remarks=tuple(map(text, array(found.get("remarks", [])))),
        herd=None if herd is None else text(herd),
    )


def _run(entry: Reply) -> ScheduleRun:
    found = fields(entry)
    nominal = from_ms(number(found.get("nominal_ms")))
    last, reason = found.get("last_ms"), found.get("reason")
    return ScheduleRun(
        run_id=text(found.get("run", "")),
        nominal=nominal,
        last=nominal if last is None else from_ms(number(last)),
        count=number(found.get("count", 1)),
        date=text(found.get("date") or ""),
        outcome=text(found.get("outcome", "")),
        reason=None if reason is None else text(reason),
        fields=found,
    )
