"""The commands about schedules: each checks everything, changes all it changes at once, or nothing.

Identity is the name: setting the same definition again changes nothing and keeps what was counted.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from wheel.engine.bounds import require_fire
from wheel.engine.byhand import ByHand
from wheel.engine.catchup import Gap
from wheel.engine.change import DEFINITION, HISTORY, ONCE, PLAN, STATE, Change
from wheel.engine.dag import refusal
from wheel.engine.definition import (
    Definition,
    Kept,
    ScheduleError,
    Settings,
    check,
    check_note,
    keep,
    settings_of,
)
from wheel.engine.dependencies import HeldRun
from wheel.engine.entries import NO_PRINT, Entry, changed_extra
from wheel.engine.facts import Times
from wheel.engine.fanout import Fanout
from wheel.engine.going import DELETED, EDITED
from wheel.engine.history import last_dropped_ms
from wheel.engine.planner import Core as PlannerCore
from wheel.engine.planner import Planner, Turn
from wheel.engine.prints import print_of, refresh, refuse_gone
from wheel.engine.runner import Event, Span
from wheel.engine.runs import Outcome, Stands, tag_parts
from wheel.engine.shown import Brief, Row, RunRow, Set, Shown, Upcoming
from wheel.engine.tokens import Tokens
from wheel.engine.withdrawals import keep_alone

SCHEDULES_MAX: Final = 300_000


class Core(PlannerCore, Protocol):
    """What the scheduler needs of the core."""

    def served(self, handler: bytes) -> bool:
        """Return whether anybody serves a handler."""
        ...


class Scheduler(ByHand):
    """All schedules of a server. Every call is synchronous, and atomic."""

    def __init__(
        self, core: Core, *, clock_ns: Callable[[], int], strict_handlers: bool = False
    ) -> None:
        """Make it; ``load`` before anything else.

        Args:
            core: replayed and started.
            clock_ns: a stopwatch, for slices.
            strict_handlers: refuse schedules for handlers that nobody serves.
        """
        self._core = core
        self._strict = strict_handlers
        super().__init__(Planner(core, clock_ns=clock_ns), Tokens())
        self._shown = Shown(self.planner, core)
        self._stale: deque[str] = deque()  # their zone's rules are others now

    # ---------------------------------------------------------------- start

    def load(self) -> Iterator[None]:
        """Read everything from the core; yields between slices.

        Raises:
            Damaged: the table holds what no build has written.
        """
        planner, store = self.planner, self.planner.store
        tokens: list[tuple[bytes, bytes]] = []
        yield from store.load(self._core, tokens)
        planner.begin()
        self._tokens.load(tokens)
        prints: dict[str, bytes] = {}
        for number, entry in enumerate(store.all()):
            if number % 200 == 0:
                yield
            self._take_in(entry, prints)
        for entry in store.all():
            if entry.linked:
                planner.dependencies.note(entry.name)
        yield

    def _take_in(self, entry: Entry, prints: dict[str, bytes]) -> None:
        planner = self.planner
        settings = entry.settings
        if any(run.stands is Stands.WAITING for run in entry.all_live()):
            planner.behind[entry.name] = None  # what let them go may not have been logged
        if settings.after:
            planner.graph.set(entry.name, settings.after, known=lambda _name: True)
            self._link(settings.after)
            entry.linked = True
            for run in list(entry.all_live()):
                if run.stands is Stands.WAITING and not run.tag.startswith("!"):
                    run.stands = Stands.HELD
                    own = entry.own(run.label, run.nominal_ms)
                    planner.dependencies.hold(
                        HeldRun(name=run.name, nominal_ms=run.nominal_ms, own=own)
                    )
        planner.take_up(entry)
        if entry.print == NO_PRINT:
            if not entry.has_zone:
                self._stale.append(entry.name)
            return
        if settings.zone not in prints:
            prints[settings.zone] = print_of(settings)
        if prints[settings.zone] != entry.print:
            self._stale.append(entry.name)

    def _link(self, names: Sequence[str]) -> None:
        for name in names:
            entry = self.planner.store.get(name)
            if entry is not None:
                entry.linked = True

    # ---------------------------------------------------------------- turns

    def turn(self) -> Turn:
        """Do what there is to do now, for about two milliseconds; say when the next turn is."""
        planner = self.planner
        planner.look()
        if self._stale:
            self._refresh_zones()
            return Turn(True, None, None)
        self._forget_tokens()
        return planner.turn()

    def _refresh_zones(self) -> None:
        """Find the next times of schedules anew whose zone's rules have changed."""
        names = [self._stale.popleft() for _ in range(min(20, len(self._stale)))]
        try:
            refresh(self.planner, names)
        except ScheduleError:
            self._stale.extendleft(reversed(names))

    def _forget_tokens(self) -> None:
        """Delete tokens that are too old."""
        tokens = self._tokens.too_old(self.planner.look().rel_ms)
        if not tokens:
            return
        try:
            with self.planner.changing() as change:
                for token in tokens:
                    change.drop(ONCE, token)
        except ScheduleError:
            return
        self._tokens.forget(tokens)

    def wakes(self) -> Turn:
        """Return when the next turn is due, as things stand now."""
        return Turn(True, None, None) if self._stale else self.planner.wakes()

    def events(self) -> list[Event]:
        """Return what happened since this was last asked."""
        return self.planner.take_events()

    def figures(self) -> dict[str, int]:
        """Return counters and sizes, for INFO."""
        planner = self.planner
        return {
            "schedules": len(planner.store),
            "schedules_live_runs": len(planner.store.jobs),
            "schedules_once_tokens": len(self._tokens),
            **{f"schedule_runs_{name}_total": n for name, n in planner.counts.items()},
        }

    # ---------------------------------------------------------------- look-ups

    def exists(self, name: str) -> bool:
        """Return whether there is a schedule of a name."""
        return self.planner.store.get(name) is not None

    def get(self, name: str) -> Row:
        """Return a schedule.

        Raises:
            ScheduleError: UNKNOWN.
        """
        return self._shown.row(self.planner.entry(name))

    def page(self, prefix: str, after: str, count: int, dag: str = "") -> tuple[list[Brief], bool]:
        """Return schedules by name, and whether there are more; looks at no others.

        Args:
            prefix: of their names.
            after: the name behind which to begin; "" = at the beginning.
            count: at most.
            dag: only those that are shown under this name; "" = all.
        """
        found = self.planner.store.page(prefix, after, count + 1, dag)
        return [self._shown.brief(entry) for entry in found[:count]], len(found) > count

    def upcoming(self, name: str) -> Upcoming:
        """Return by what a schedule's next times are found.

        Raises:
            ScheduleError: UNKNOWN, or CONFLICT: its zone is not there.
        """
        entry = self.planner.entry(name)
        refuse_gone(entry)
        settings = entry.settings
        left = None if settings.max_runs is None else max(0, settings.max_runs - entry.runs)
        return Upcoming(entry.compiled, entry.next_ms, settings.jitter_ms, settings.end_ms, left)

    def axis_offset_ms(self) -> int:
        """Return what to add to a time of the rel axis to show it."""
        times = self.planner.look()
        return times.wall_ms - times.rel_ms

    def herd(self, at_ms: int) -> int:
        """Return how many schedules decide at a very moment of the wall axis."""
        return self.planner.store.firing_at(at_ms)

    def runs(
        self, name: str, *, label: str = "", count: int = 50, before: int = 0
    ) -> tuple[list[RunRow], int]:
        """Return a schedule's runs, the newest nominal time first, and where to go on; 0 = the end.

        Args:
            name: the schedule.
            label: only those of this date; "" = all.
            count: at most.
            before: where to go on.

        Raises:
            ScheduleError: UNKNOWN or SYNTAX.
        """
        return self._shown.runs(self.planner.entry(name), label, count, before)

    def is_withdrawing(self, name: str) -> bool:
        """Return whether runs that an edit or a deletion takes back are left, and going now.

        False also while the core refuses that: it is logged, and tried each second.
        """
        return name in self.planner.store.going and not self.planner.is_late

    # ---------------------------------------------------------------- set

    def set(
        self,
        definition: Definition,
        *,
        if_version: int | None = None,
        dry: bool = False,
        actor: str = "",
    ) -> Set:
        """Make a schedule, or change it; the same definition again changes nothing.

        Args:
            definition: what it is to be.
            if_version: the version that it must have; 0 = must not be there.
            dry: check and compare only; an upstream that is not there is no error.
            actor: who asks.

        Raises:
            ScheduleError: it is refused.
            CronSyntaxError: its rule or zone.
            CycleError, LimitError, NotFound: its upstreams.
        """
        check(definition)
        planner = self.planner
        planner.finish_withdrawal(definition.name)
        times = planner.look()
        old = planner.store.get(definition.name)
        self._check_version(definition.name, old, if_version)
        settings = settings_of(definition)
        new = keep(definition, settings, version=1, now_ms=times.wall_ms, actor=actor)
        kept = None if old is None else self._shown.kept(definition.name)
        if old is not None and kept is not None and kept.same(new):
            return Set(old.version, "unchanged", old.next_ms)
        settings = planner.store.settings.get(new.settings)
        self._check_new(definition, settings, old, times, dry=dry, size=len(new.blob()))
        if dry:
            return self._would_set(definition, settings, old, times)
        if old is None:
            return self._create(definition, settings, new, times)
        assert kept is not None
        return self._edit(old, settings, new, kept, times)

    def _check_version(self, name: str, old: Entry | None, if_version: int | None) -> None:
        found = 0 if old is None else old.version
        if if_version is None or if_version == found:
            return
        if if_version == 0:
            raise ScheduleError(
                "EXISTS", f"schedule {name!r} is there, version {found}; leave out IFVERSION 0"
            )
        raise ScheduleError(
            "CONFLICT",
            f"schedule {name!r} has version {found}, not IFVERSION {if_version}; look at it again",
        )

    def _check_new(
        self,
        definition: Definition,
        settings: Settings,
        old: Entry | None,
        times: Times,
        *,
        dry: bool,
        size: int,
    ) -> None:
        """Refuse what does not fit to what is there."""
        planner, name = self.planner, definition.name
        if old is None and len(planner.store) >= SCHEDULES_MAX:
            raise ScheduleError(
                "LIMIT", f"there are {SCHEDULES_MAX} schedules, the limit; delete some"
            )
        if self._strict and not self._core.served(definition.handler.encode()):
            raise ScheduleError(
                "DENIED",
                f"handler {definition.handler!r} is served by nobody, and --strict-handlers is "
                "set; start a worker for it first",
            )
        if old is None or _new_rule(old.settings, settings) or _new_end(old.settings, settings):
            rule = Entry(name, settings, version=1, since_ms=0).compiled
            runs = 0 if old is None else old.runs
            require_fire(rule, settings, _begin_ms(settings, times), runs)
        planner.graph.check(name, settings.after, known=lambda other: dry or self.exists(other))
        shown = Entry(name, settings, version=1, since_ms=0)
        ups = [up for up in map(planner.store.get, settings.after) if up is not None]
        text = refusal(shown, ups)
        for waiting in planner.graph.dependants(name):
            entry = planner.store.get(waiting)
            text = text or (None if entry is None else refusal(entry, [shown]))
        if text is not None:
            raise ScheduleError("SYNTAX", text)
        if settings.after or planner.graph.waiting(name):
            fanout = Fanout(planner.graph, self._has_rule, planner.known.size)
            fanout.check(name, settings.after, size, ruled=settings.has_rule)

    def _has_rule(self, name: str) -> bool:
        entry = self.planner.store.get(name)
        return entry is not None and entry.settings.has_rule

    def _would_set(
        self, definition: Definition, settings: Settings, old: Entry | None, times: Times
    ) -> Set:
        version = 1 if old is None else old.version + 1
        word = "created" if old is None else "changed"
        if old is not None and not _new_rule(old.settings, settings):
            return Set(version, word, old.next_ms)
        entry = Entry(definition.name, settings, version=version, since_ms=0)
        return Set(version, word, self.planner.next_time(entry, _begin_ms(settings, times)))

    def _create(self, definition: Definition, settings: Settings, new: Kept, times: Times) -> Set:
        planner, name = self.planner, definition.name
        begin_ms = _begin_ms(settings, times)
        since_ms = begin_ms + 1
        if settings.start_ms is not None:
            since_ms = max(since_ms, settings.start_ms)
        entry = Entry(name, settings, version=1, since_ms=since_ms)
        entry.done_ms = begin_ms
        entry.print = print_of(settings)
        planner.set_next(entry, begin_ms)
        with planner.changing() as change:
            change.edit(entry)
            entry.live = planner.store.adopt(entry)
            for run in entry.all_live():  # handed out before it was deleted
                keep_alone(entry, run)
                number, _ = tag_parts(run.tag)
                entry.manual_count = max(entry.manual_count, number)  # no two share an id
            planner.store.add(entry)
            change.undone_by(lambda: planner.store.remove(entry))
            planner.graph.set(name, settings.after, known=self.exists)
            change.undone_by(lambda: planner.graph.set(name, (), known=self.exists))
            self._relink(change, entry)
            change.put(DEFINITION, name.encode(), new._replace(since_ms=since_ms).blob())
            planner.dependencies.note(name)
            change.events.append(
                ("schedule_set", {"schedule": name, "word": "created", "actor": new.actor})
            )
        return Set(1, "created", entry.next_ms)

    def _relink(self, change: Change, entry: Entry) -> None:
        """Keep ``linked`` true of an entry and of those that it waits for."""
        planner = self.planner
        entry.linked = bool(entry.settings.after or planner.graph.dependants(entry.name))
        for name in entry.settings.after:
            other = planner.store.get(name)
            if other is not None and not other.linked:
                change.edit(other)
                other.linked = True

    def _edit(self, entry: Entry, settings: Settings, new: Kept, kept: Kept, times: Times) -> Set:
        planner, old = self.planner, entry.settings
        is_new_rule = _new_rule(old, settings)
        begin_ms = _begin_ms(settings, times)
        if old.has_rule or not settings.has_rule:
            # On either axis: a run id is made of a nominal time, and none is made twice.
            begin_ms = max(begin_ms, entry.done_ms)
        with planner.changing() as change:
            change.edit(entry)
            planner.graph.set(entry.name, settings.after, known=self.exists)
            change.undone_by(
                lambda: planner.graph.set(entry.name, old.after, known=lambda _name: True)
            )
            if is_new_rule:
                planner.withdraw(change, entry, EDITED, by_hand=False)
                planner.drop_plan(change, entry)
                entry.extra = changed_extra(entry.extra, made_up_ms=0)
                self._abandon(change, entry)
            planner.store.group(entry, old.dag, settings.dag)
            change.undone_by(lambda: planner.store.group(entry, settings.dag, old.dag))
            entry.settings = settings
            entry.version += 1
            if is_new_rule or old.date != settings.date:
                entry.since_ms = max(begin_ms + 1, settings.start_ms or 0)
                entry.dropping = False
            if is_new_rule:
                entry.done_ms = begin_ms
                entry.caught_ms = 0
                entry.print = print_of(settings)
                planner.set_next(entry, begin_ms)
            else:
                self._rebound(entry, old, begin_ms)
            if old.date != settings.date:
                planner.relabel(change, entry)
            self._relink(change, entry)
            self._unlink(change, old.after)
            change.put(
                DEFINITION,
                entry.name.encode(),
                new._replace(
                    version=entry.version, created_ms=kept.created_ms, since_ms=entry.since_ms
                ).blob(),
            )
            planner.dependencies.note(entry.name)
            change.events.append(
                (
                    "schedule_set",
                    {
                        "schedule": entry.name,
                        "word": "changed",
                        "version": entry.version,
                        "actor": new.actor,
                    },
                )
            )
            planner.release(change, entry)
        return Set(entry.version, "changed", entry.next_ms)

    def _abandon(self, change: Change, entry: Entry) -> None:
        """Record the times that have come and that nobody decides any more; the rule goes."""
        planner = self.planner
        first_ms, now_ms = entry.next_ms, planner.now_ms(entry)
        if first_ms is not None and first_ms <= now_ms:
            last_ms = entry.compiled.latest_before(now_ms + 1) or first_ms
            if entry.settings.end_ms is not None and last_ms > entry.settings.end_ms:
                last_ms = entry.compiled.latest_before(entry.settings.end_ms + 1) or first_ms
            count = entry.compiled.count(first_ms - 1, last_ms)
            reason = "paused" if entry.paused else "edited"
            planner.drop(change, entry, Gap(first_ms, last_ms, count, reason), Outcome.MISSED)
            entry.done_ms = last_ms
        if entry.settings.has_rule:
            entry.fill(entry.since_ms, entry.done_ms)
            return
        for fact in planner.known.runs(entry.name, now_ms, entry.done_ms + 1):
            entry.fill(fact.first_ms, fact.last_ms)  # made before its time, see was_made_ahead

    def _rebound(self, entry: Entry, old: Settings, begin_ms: int) -> None:
        """Find the next time anew, if other bounds or another jitter may have moved it."""
        bounds = ("end_ms", "max_runs", "jitter_ms")
        if all(getattr(old, name) == getattr(entry.settings, name) for name in bounds):
            return
        had_ended = entry.next_ms is None
        after_ms = begin_ms if entry.next_ms is None else entry.next_ms - 1
        self.planner.set_next(entry, after_ms)
        if had_ended and entry.next_ms is not None:
            # What passed while it had ended was nobody's: neither made nor missed.
            entry.done_ms = begin_ms
            entry.since_ms = begin_ms + 1

    def _unlink(self, change: Change, names: Sequence[str]) -> None:
        for name in names:
            other = self.planner.store.get(name)
            if other is not None and other.linked:
                change.edit(other)
                other.linked = bool(other.settings.after or self.planner.graph.dependants(name))

    # ---------------------------------------------------------------- delete, pause, resume

    def delete(self, name: str, *, force: bool = False, actor: str = "") -> None:
        """Delete a schedule and its history; what was not handed out is cancelled.

        Raises:
            ScheduleError: UNKNOWN.
            Conflict: others wait for it, and force was not said.
        """
        entry, planner = self.planner.entry(name), self.planner
        planner.finish_withdrawal(name)
        planner.look()
        after = entry.settings.after
        key = name.encode()
        with planner.changing(gone=frozenset({name})) as change:
            change.edit(entry)
            planner.graph.remove(name, force=force)
            change.undone_by(lambda: planner.graph.set(name, after, known=lambda _name: True))
            planner.withdraw(change, entry, DELETED, by_hand=True)
            planner.ledger.forget_texts(change, entry)
            for kind in (DEFINITION, STATE, HISTORY, PLAN):
                change.drop(kind, key)
            planner.store.remove(entry)
            change.undone_by(lambda: planner.store.restore(entry))
            self._unlink(change, after)
            planner.dependencies.note(name)
            change.events.append(("schedule_deleted", {"schedule": name, "actor": actor}))

    def pause(self, name: str, *, note: str = "", actor: str = "") -> None:
        """Let no run of a schedule begin; paused already: another note.

        Raises:
            ScheduleError: UNKNOWN or LIMIT.
        """
        entry, planner = self.planner.entry(name), self.planner
        times = planner.look()
        check_note(note)
        with planner.changing() as change:
            change.edit(entry)
            since_ms = entry.extra.paused_ms
            if not since_ms:
                # What RESUME makes up for was dropped from then on. No clock orders that by itself:
                # logical now goes back by CLOCK ACCEPT, and over a restart to the last time logged.
                since_ms = max(times.logical_ms, last_dropped_ms(change.seen_history(name)) + 1)
            entry.paused = True
            entry.extra = changed_extra(entry.extra, paused_ms=since_ms, note=note, actor=actor)
            planner.dependencies.note(name)
            change.events.append(
                ("schedule_paused", {"schedule": name, "note": note, "actor": actor})
            )

    def resume(self, name: str, *, actor: str = "") -> None:
        """Let runs begin again; what passed meanwhile is missed. Not paused: nothing happens.

        Raises:
            ScheduleError: UNKNOWN, or CONFLICT: its zone is not there.
        """
        entry, planner = self.planner.entry(name), self.planner
        planner.look()
        if not entry.paused:
            return
        refuse_gone(entry)
        now_ms = planner.now_ms(entry)
        with planner.changing() as change:
            change.edit(entry)
            entry.paused = False
            paused_ms = entry.extra.paused_ms
            entry.extra = changed_extra(entry.extra, paused_ms=0, note="", actor="")
            if entry.fire_ms is not None and entry.fire_ms <= now_ms:
                planner.catch_up(change, entry, Span(-1, now_ms, "paused"), now_ms)
            planner.dependencies.note(name)
            planner.make_up(change, entry, paused_ms)
            planner.release(change, entry)
            change.events.append(("schedule_resumed", {"schedule": name, "actor": actor}))
        planner.fill(entry)


def _new_rule(old: Settings, new: Settings) -> bool:
    """Return whether another definition has other nominal times."""
    names = ("rule", "tz", "dst", "start_ms")
    return any(getattr(old, name) != getattr(new, name) for name in names)


def _new_end(old: Settings, new: Settings) -> bool:
    """Return whether another definition ends at another time, or after more or fewer runs."""
    return (old.end_ms, old.max_runs) != (new.end_ms, new.max_runs)


def _begin_ms(settings: Settings, times: Times) -> int:
    """Return now on a schedule's axis: its first nominal time is behind it."""
    return times.rel_ms if settings.rel else times.logical_ms
