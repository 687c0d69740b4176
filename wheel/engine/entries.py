"""A schedule in memory: what the next decision needs, and its bytes in the table.

An entry is a cache of two values of the table: the definition, of which it keeps the settings and
nothing else, and the state, which changes with every run. Two hundred thousand of them have to be
small: slots, shared settings, and one ``Extra`` for what few of them have.
"""

import functools
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, NamedTuple, TypedDict, Unpack

from wheel.cron import Rule, compile_rule, without_zone
from wheel.engine.dag import AfterRule
from wheel.engine.dates import Date
from wheel.engine.definition import Settings
from wheel.engine.runs import MOMENTS_MAX, Run, Stands
from wheel.errors import InvalidRequest, ZoneError
from wheel.zones import Unit, Zone, label_place, label_span, zone
from wheel.zones import label as label_in

NO_PRINT: Final = bytes(8)  # of a schedule whose times depend on no zone

_FORMAT: Final = 1
_STATE: Final = struct.Struct("<BBqqqqqIIIIII8s")
_PAUSED, _DROPPING = 1, 2
_NEVER: Final = -1
FILLED_MAX: Final = 50
FREE_STEPS_MAX: Final = 10  # more only where all of a stretch counts as made


class Filled(NamedTuple):
    """A stretch of time whose runs were made before: those of a rule, which may not be in force.

    Attributes:
        first_ms: the first nominal time.
        last_ms: the last one.
        rule: whose; empty: every time in it counts as made.
        tz: the zone that it was read in.
        dst: ``cron`` or ``literal``.
    """

    first_ms: int
    last_ms: int
    rule: str = ""
    tz: str = "UTC"
    dst: str = "cron"

    def has(self, nominal_ms: int, name: str) -> bool:
        """Return whether a time of the schedule of this name is among them."""
        if not self.first_ms <= nominal_ms <= self.last_ms:
            return False
        try:
            rule = self.rule and compile_rule(self.rule, tz=self.tz, name=name, dst=self.dst)
        except InvalidRequest:  # a zone that is gone: rather leave out than make twice
            return True
        return not rule or rule.next_ms(nominal_ms - 1) == nominal_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Manual:
    """A run that was triggered by hand for a time to come.

    Attributes:
        at_ms: wall.
        tag: of its run id.
        alone: FORCE was said.
    """

    at_ms: int
    tag: str
    alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A backfill that is under way.

    Attributes:
        times: nominal times, in the order in which they are to run.
        done: how many of them were made.
        active: how many may run at once.
    """

    times: tuple[int, ...]
    done: int
    active: int


class ExtraChanges(TypedDict, total=False):
    """Attributes of Extra."""

    paused_ms: int
    note: str
    actor: str
    alone: tuple[tuple[int, str], ...]
    manual: tuple[Manual, ...]
    plan: Plan | None
    repeats: tuple[tuple[int, str, int], ...]
    filled: tuple[Filled, ...]
    asked: tuple[tuple[int, str, str], ...]
    made_up_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """What few schedules have.

    Attributes:
        paused_ms: since when it is paused, wall.
        note: why, in somebody's words.
        actor: who paused it.
        alone: live runs that OVERLAP leaves alone: nominal time and tag.
        manual: runs to come that were triggered by hand.
        plan: of a backfill.
        repeats: nominal time, tag of the run repeated, and how often it was.
        filled: whose runs were made before, by a backfill or by a rule that is not in force any
            more; a run of theirs that is in no record is gone from the history.
        asked: handed out runs whose worker was asked to stop: nominal time, tag, and the reason
            that their record will give.
        made_up_ms: logical wall time: dates that a schedule without a rule missed in a pause since
            then are still to be made up for; 0: none are.
    """

    paused_ms: int = 0
    note: str = ""
    actor: str = ""
    alone: tuple[tuple[int, str], ...] = ()
    manual: tuple[Manual, ...] = ()
    plan: Plan | None = None
    repeats: tuple[tuple[int, str, int], ...] = ()
    filled: tuple[Filled, ...] = ()
    asked: tuple[tuple[int, str, str], ...] = ()
    made_up_ms: int = 0


NOTHING: Final = Extra()


def changed_extra(extra: Extra, **changes: Unpack[ExtraChanges]) -> Extra:
    """Return it with changes; ``NOTHING`` if nothing is left."""
    changed = replace(extra, **changes)
    return NOTHING if changed == NOTHING else changed


@functools.lru_cache(maxsize=1024)
def _shared(print_of_zone: bytes) -> bytes:
    """Return the same object for the same bytes."""
    return print_of_zone


@functools.lru_cache(maxsize=MOMENTS_MAX)
def _label(zone_name: str, nominal_ms: int, date: Date) -> str:
    """Return a label; many schedules ask for the same one."""
    return label_in(_zone_here(zone_name), nominal_ms, _UNITS[date])


def _zone_here(name: str) -> Zone:
    """Return a zone; UTC in place of one that this machine does not have, see prints.py."""
    try:
        return zone(name)
    except ZoneError:
        return zone("UTC")


class Where:
    """A zone, as those see it that compare dates."""

    __slots__ = ("_zone",)

    def __init__(self, name: str) -> None:
        self._zone = _zone_here(name)

    def label(self, nominal_ms: int, date: Date) -> str:
        """Return the label of a moment."""
        return label_in(self._zone, nominal_ms, _UNITS[date])

    def span(self, label: str, date: Date) -> tuple[int, int]:
        """Return the first moment that may have the label, and the first behind all that may.

        One and the same moment if the zone leaves the label out: runs of a schedule without a rule
        stand there all the same, for upstreams whose zones have it.
        """
        del date  # seen from the label's form
        span = label_span(self._zone, label)
        if span is None:
            place_ms = label_place(self._zone, label)
            return place_ms, place_ms
        return span


_LABELS: Final = {10: Date.DAY, 13: Date.HOUR}  # by their length
_UNITS: Final[dict[Date, Unit]] = {Date.DAY: "day", Date.HOUR: "hour", Date.EXACT: "exact"}


class Entry:
    """One schedule.

    Attributes:
        name: its identity.
        settings: by which its runs are decided.
        version: of its definition.
        since_ms: from when its rule, zone and date are in force.
        next_ms: the first nominal time that is not decided; None: there is none.
        fire_ms: when it is decided: nominal and jitter.
        done_ms: the last nominal time decided, or where it began.
        caught_ms: missed times up to here were picked from; those that are left are to run.
        last_success_ms: nominal time of the last run that succeeded; None = none did.
        runs: made so far; succeeded, failed, skipped, missed: what became of them.
        manual_count: triggered by hand so far.
        print: hash of the zone's rules by which ``next_ms`` was found.
        paused: nothing is decided.
        dropping: the last decision dropped a time, and the next dropped one joins its record.
        live: runs that have not ended, by ``Run.key``; None = there are none.
        extra: what few schedules have.
        listed_ms: the time under which it stands in its list of times; None: it does not.
        linked: it waits for others, or others for it.
    """

    __slots__ = (
        "caught_ms", "done_ms", "dropping", "extra", "failed", "fire_ms", "last_success_ms",
        "linked", "listed_ms", "live", "manual_count", "missed", "name", "next_ms", "paused",
        "print", "runs", "settings", "since_ms", "skipped", "succeeded", "version",
    )  # fmt: skip

    def __init__(self, name: str, settings: Settings, *, version: int, since_ms: int) -> None:
        self.name = name
        self.settings = settings
        self.version = version
        self.since_ms = since_ms
        self.next_ms: int | None = None
        self.fire_ms: int | None = None
        self.done_ms = since_ms
        self.caught_ms = 0
        self.last_success_ms: int | None = None
        self.runs = self.succeeded = self.failed = self.skipped = self.missed = 0
        self.manual_count = 0
        self.print = NO_PRINT
        self.paused = False
        self.dropping = False
        self.live: dict[tuple[int, str], Run] | None = None
        self.extra = NOTHING
        self.listed_ms: int | None = None
        self.linked = False

    def __repr__(self) -> str:
        return f"<Entry {self.name} next {self.next_ms}>"

    # ---------------------------------------------------------------- as others see it

    @property
    def after(self) -> tuple[str, ...]:
        """For whom it waits."""
        return self.settings.after

    @property
    def after_rule(self) -> AfterRule:
        """What their runs must have come to."""
        return self.settings.after_rule

    @property
    def date(self) -> Date:
        """By which labels it waits."""
        return self.settings.date

    @property
    def rule(self) -> Rule | None:
        """Its compiled rule; None: it has none."""
        return self.compiled if self.settings.has_rule else None

    @property
    def compiled(self) -> Rule:
        """Its compiled rule, also if that never fires."""
        settings = self.settings
        try:
            return compile_rule(settings.rule, tz=settings.tz, name=self.name, dst=settings.dst)
        except ZoneError:  # it is paused, and nothing is decided by this
            rule = without_zone(settings.rule)
            return compile_rule(rule, name=self.name, dst=settings.dst)

    @property
    def zone(self) -> Where:
        """Where its labels are told."""
        return Where(self.settings.zone)

    @property
    def has_zone(self) -> bool:
        """Whether this machine has the zone."""
        try:
            zone(self.settings.zone)
        except ZoneError:
            return False
        return True

    @property
    def start_ms(self) -> int | None:
        """Before which it has no runs."""
        return self.settings.start_ms

    @property
    def until_ms(self) -> int | None:
        """From when on it has no runs; None: never."""
        settings = self.settings
        if settings.max_runs is not None and self.runs >= settings.max_runs:
            return self.done_ms + 1
        return None if settings.end_ms is None else settings.end_ms + 1

    @property
    def planned_ms(self) -> int | None:
        """The first nominal time that a backfill is still to make; None: there is none."""
        plan = self.extra.plan
        return None if plan is None else min(plan.times[plan.done :], default=None)

    # ---------------------------------------------------------------- its runs

    def all_live(self) -> Iterable[Run]:
        """Return the runs that have not ended."""
        return () if self.live is None else self.live.values()

    def live_at(self, nominal_ms: int) -> Run | None:
        """Return the live run of a nominal time, those by TRIGGER left out."""
        if self.live is None:
            return None
        run = self.live.get((nominal_ms, ""))
        if run is not None:  # nearly always, and a thousand may be asked for in turn
            return run
        found = (run for run in self.live.values() if run.nominal_ms == nominal_ms)
        return next((run for run in found if not run.tag.startswith("!")), None)

    def held_at(self, nominal_ms: int) -> Run | None:
        """Return the run of a nominal time, if it is held for upstreams."""
        run = self.live_at(nominal_ms)
        return run if run is not None and run.stands is Stands.HELD else None

    def standing(self, stands: Stands) -> list[Run]:
        """Return the runs that OVERLAP judges and that stand so, by nominal time."""
        found = [run for run in self.all_live() if run.stands is stands and not run.alone]
        return sorted(found, key=lambda run: run.key)

    def is_alone(self, run: Run) -> bool:
        """Return whether a run is one that OVERLAP leaves alone: by FORCE, or a backfill's."""
        if run.key in self.extra.alone:
            return True
        plan = self.extra.plan
        return plan is not None and not run.tag and run.nominal_ms in plan.times[: plan.done]

    def why(self, run: Run) -> str:
        """Return the reason for which a run's worker was asked to stop; "" = it was not."""
        return next((why for *key, why in self.extra.asked if tuple(key) == run.key), "")

    def ask(self, run: Run, why: str) -> None:
        """Note that a run's worker was asked to stop."""
        self.extra = changed_extra(self.extra, asked=(*self.extra.asked, (*run.key, why)))

    def forget_asked(self, run: Run) -> None:
        """A run has ended."""
        if self.extra.asked:
            left = tuple(one for one in self.extra.asked if one[:2] != run.key)
            self.extra = changed_extra(self.extra, asked=left)

    def set_plan(self, plan: Plan | None) -> None:
        """Begin, go on with or end a backfill."""
        self.extra = changed_extra(self.extra, plan=plan)

    def fill(self, first_ms: int, last_ms: int) -> None:
        """Note that the runs of a stretch were made by the rule in force."""
        if last_ms < first_ms:
            return
        settings = self.settings
        whose = (settings.rule, settings.tz, settings.dst) if settings.has_rule else ("",)
        merged: list[Filled] = []
        for one in sorted(
            (*self.extra.filled, Filled(first_ms, last_ms, *whose)),
            key=lambda one: (*one[2:], one.first_ms),
        ):
            if merged and one[2:] == merged[-1][2:] and one.first_ms <= merged[-1].last_ms + 1:
                last = max(merged[-1].last_ms, one.last_ms)
                merged[-1] = merged[-1]._replace(last_ms=last)
            else:
                merged.append(one)
        merged.sort()
        while len(merged) > FILLED_MAX:  # rather leave out than make twice
            last = max(merged[0].last_ms, merged[1].last_ms)
            merged[:2] = [Filled(merged[0].first_ms, last)]
        self.extra = changed_extra(self.extra, filled=tuple(merged))

    def was_filled(self, nominal_ms: int) -> bool:
        """Return whether a nominal time was decided before, by its rule or otherwise."""
        if self.settings.has_rule and self.since_ms <= nominal_ms <= self.done_ms:
            return True
        return any(one.has(nominal_ms, self.name) for one in self.extra.filled)

    def was_made_ahead(self, nominal_ms: int) -> bool:
        """Return whether a time to come has a run already, of what was in force before.

        A run without a rule is made when the first of its upstreams fires, and its nominal time is
        that of the last.
        """
        filled = self.extra.filled
        return bool(filled) and any(one.has(nominal_ms, self.name) for one in filled)

    def free_ms(self, nominal_ms: int) -> int:
        """Return the first moment from one on at which no rule of before had a run.

        A schedule that has no rule any more would give its ids out again.
        """
        for _ in range(FREE_STEPS_MAX):
            if not any(one.has(nominal_ms, self.name) for one in self.extra.filled):
                return nominal_ms
            nominal_ms += 1  # a rule's times are seconds apart
        return 1 + max(one.last_ms for one in self.extra.filled)

    def label(self, nominal_ms: int) -> str:
        """Return the date that a run is for."""
        return _label(self.settings.zone, nominal_ms, self.settings.date)

    def own(self, label: str, nominal_ms: int) -> str:
        """Return for which date a run without a rule counts, as DATE is now; "" with a rule.

        Args:
            label: the date that it was made for; DATE may have been another one then.
            nominal_ms: its nominal time.
        """
        if self.settings.has_rule:
            return ""
        date = _LABELS.get(len(label), Date.EXACT)
        if date is self.settings.date:
            return label
        if date is Date.HOUR and self.settings.date is Date.DAY:
            return label.partition("T")[0]
        return self.label(nominal_ms)

    # ---------------------------------------------------------------- bytes

    def state_blob(self) -> bytes:
        """Return the bytes of its state."""
        return _STATE.pack(
            _FORMAT,
            (_PAUSED if self.paused else 0) | (_DROPPING if self.dropping else 0),
            _NEVER if self.next_ms is None else self.next_ms,
            _NEVER if self.fire_ms is None else self.fire_ms,
            self.done_ms,
            self.caught_ms,
            _NEVER if self.last_success_ms is None else self.last_success_ms,
            self.runs,
            self.succeeded,
            self.failed,
            self.skipped,
            self.missed,
            self.manual_count,
            self.print,
        ) + (b"" if self.extra is NOTHING else _extra_bytes(self.extra))

    def read_state(self, blob: bytes) -> None:
        """Take over a state's bytes.

        Raises:
            ValueError: of a format that this build does not know.
        """
        (
            layout, flags, next_ms, fire_ms, self.done_ms, self.caught_ms, success_ms, self.runs,
            self.succeeded, self.failed, self.skipped, self.missed, self.manual_count, self.print,
        ) = _STATE.unpack_from(blob)  # fmt: skip
        if layout != _FORMAT:
            raise ValueError(f"a state of format {layout}, this build reads format {_FORMAT}")
        self.next_ms = None if next_ms == _NEVER else next_ms
        self.fire_ms = None if fire_ms == _NEVER else fire_ms
        self.print = _shared(self.print)
        if self.fire_ms == self.next_ms:
            self.fire_ms = self.next_ms  # one number in memory, not two
        self.last_success_ms = None if success_ms == _NEVER else success_ms
        self.paused = bool(flags & _PAUSED)
        self.dropping = bool(flags & _DROPPING)
        self.extra = _read_extra(blob[_STATE.size :]) if len(blob) > _STATE.size else NOTHING


# What a change may touch, and a refused one puts back.
SAVED: Final = (
    "settings", "version", "since_ms", "next_ms", "fire_ms", "done_ms", "caught_ms",
    "last_success_ms", "runs", "succeeded", "failed", "skipped", "missed", "manual_count", "print",
    "paused", "dropping", "extra", "linked",
)  # fmt: skip
saved_of: Final = attrgetter(*SAVED)


def _extra_bytes(extra: Extra) -> bytes:
    said: dict[str, object] = {}
    if extra.paused_ms:
        said["paused"] = [extra.paused_ms, extra.note, extra.actor]
    if extra.alone:
        said["alone"] = extra.alone
    if extra.manual:
        said["manual"] = [[one.at_ms, one.tag, int(one.alone)] for one in extra.manual]
    if extra.plan:
        said["plan"] = [extra.plan.done, extra.plan.active]
    if extra.repeats:
        said["repeats"] = extra.repeats
    if extra.filled:
        said["filled"] = extra.filled
    if extra.asked:
        said["asked"] = extra.asked
    if extra.made_up_ms:
        said["made_up"] = extra.made_up_ms
    if not said:
        return b""
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def _read_extra(data: bytes) -> Extra:
    said = json.loads(data)
    paused_ms, note, actor = said.get("paused", (0, "", ""))
    done, active = said.get("plan", (0, 0))
    return Extra(
        paused_ms=paused_ms,
        note=note,
        actor=actor,
        alone=tuple((ms, tag) for ms, tag in said.get("alone", ())),
        manual=tuple(
            Manual(at_ms=at_ms, tag=tag, alone=bool(alone))
            for at_ms, tag, alone in said.get("manual", ())
        ),
        plan=Plan(times=(), done=done, active=active) if active else None,
        repeats=tuple((ms, tag, k) for ms, tag, k in said.get("repeats", ())),
        filled=tuple(Filled(*one) for one in said.get("filled", ())),
        asked=tuple((ms, tag, why) for ms, tag, why in said.get("asked", ())),
        made_up_ms=said.get("made_up", 0),
    )


def plan_blob(times: Iterable[int]) -> bytes:
    """Return the bytes of a backfill's times."""
    found = list(times)
    return struct.pack(f"<{len(found)}q", *found)


def read_plan(blob: bytes) -> tuple[int, ...]:
    """Return a backfill's times."""
    return struct.unpack(f"<{len(blob) // 8}q", blob)
