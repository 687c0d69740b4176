"""Making runs, dropping them, letting them go: what turns and commands have in common.

Everything happens inside a ``Change``. The two policies decide first (overlap.py, catchup.py), then
the runs that a schedule waits for (dependencies.py): a run that is held for those is not active,
and when they are done it waits for its turn like any other.
"""

import functools
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from wheel.engine.catchup import Gap
from wheel.engine.change import BATCH_BYTES_MAX, Change
from wheel.engine.change import Core as ChangeCore
from wheel.engine.dag import RELEASE, Phase, RunFact
from wheel.engine.dag import State as Judged
from wheel.engine.dates import Dates
from wheel.engine.definition import TIME_MS_END, CatchUp, ScheduleError
from wheel.engine.dependencies import UNJUDGED, Dependencies, Firing, HeldRun
from wheel.engine.entries import Entry, changed_extra
from wheel.engine.facts import Times
from wheel.engine.known import Known
from wheel.engine.ledger import Ledger
from wheel.engine.overlap import START, Act, Decision, decide
from wheel.engine.runs import Outcome, Run, RunRecord, Stands, tag_parts
from wheel.engine.spread import due_ms
from wheel.engine.store import Core as StoreCore
from wheel.engine.store import Store
from wheel.graph import Graph

SLICE_NS: Final = 300_000  # of deciding; carrying it out takes twice that again
SPANS_MAX: Final = 16
# Of schedules without a rule: nominal times that are remembered from one change to the next, so
# many and so many for each schedule. Past dates are not asked for again.
DATES_MIN: Final = 1_000
DATES_EACH: Final = 2
# What calls for runs of schedules without a rule: a run was made, or its overlap policy dropped it.
_FIRES: Final = frozenset({Phase.RUNNING, Phase.HELD, Phase.SKIPPED})


class Core(ChangeCore, StoreCore, Protocol):
    """What making runs needs of the core."""

    def times(self) -> Times:
        """Return where the axes stand."""
        ...


class Span(NamedTuple):
    """Moments (from, to] in which nobody could decide, and why."""

    from_ms: int
    to_ms: int
    reason: str


class Event(NamedTuple):
    """Something to be told: a fixed name, and fields."""

    name: str
    fields: Mapping[str, object]


class Runner:
    """Makes the runs of all schedules.

    Attributes:
        store: the schedules.
        graph: who waits for whom.
        dates: which runs a rule has on a date.
        dependencies: the runs that are held for upstreams.
        known: the facts about runs.
        ledger: writes them down.
        counts: what was done since the start, for INFO.
        behind: schedules with runs whose turn may have come; after a start, or if there were many.
    """

    def __init__(self, core: Core, clock_ns: Callable[[], int]) -> None:
        self.store = Store()
        self.graph = Graph()
        self.known = Known(self.store, core)
        self.dates = Dates(self.known.schedule)
        self.dependencies = Dependencies(self.graph, self.known, self.dates)
        self.known.dependencies = self.dependencies
        self.ledger = Ledger(core, self.dependencies.keep_from)
        self.counts: dict[str, int] = dict.fromkeys(
            ("runs", "succeeded", "failed", "skipped", "missed", "caught_up", "refused"), 0
        )
        self.behind: dict[str, None] = {}
        self._filling: set[str] = set()  # schedules whose backfill may go on
        self._recorded: set[int] = set()  # jobs whose end was written down before it came
        self._core = core
        self._clock_ns = clock_ns
        self._events: list[Event] = []
        self._times = Times(wall_ms=0, logical_ms=0, rel_ms=0)
        self._spans: tuple[list[Span], list[Span]] = ([], [])

    # ---------------------------------------------------------------- look-ups

    def entry(self, name: str) -> Entry:
        """Return a schedule.

        Raises:
            ScheduleError: UNKNOWN.
        """
        entry = self.store.get(name)
        if entry is None:
            raise ScheduleError(
                "UNKNOWN", f"there is no schedule {name!r}; see CRON LIST for those there are"
            )
        return entry

    # ---------------------------------------------------------------- time

    def begin(self) -> None:
        """Everything is loaded: what passed up to now was missed."""
        times = self.look()
        for spans, now_ms in zip(self._spans, (times.logical_ms, times.rel_ms), strict=True):
            spans[:] = [Span(-1, now_ms, "down")]

    def look(self) -> Times:
        """Return where the axes stand, and keep what they jumped over."""
        times = self._core.times()
        for spans, (from_ms, to_ms) in zip(
            self._spans, (times.wall_jump, times.rel_jump), strict=True
        ):
            if to_ms:
                spans.append(Span(from_ms, to_ms, "step"))
                del spans[:-SPANS_MAX]
        self._times = times
        return times

    def now_ms(self, entry: Entry) -> int:
        """Return now on a schedule's axis."""
        return self._times.rel_ms if entry.settings.rel else self._times.logical_ms

    def missed_until(self, entry: Entry) -> Span | None:
        """Return in which span a schedule's time passed, None if somebody could decide then."""
        assert entry.fire_ms is not None
        for span in self._spans[entry.settings.rel]:
            if span.from_ms < entry.fire_ms <= span.to_ms:
                return span
        return None

    def next_time(self, entry: Entry, after_ms: int) -> int | None:
        """Return a schedule's first nominal time after a moment, within its bounds."""
        settings = entry.settings
        if not settings.has_rule:
            return None
        if settings.max_runs is not None and entry.runs >= settings.max_runs:
            return None
        if settings.start_ms is not None:
            after_ms = max(after_ms, settings.start_ms - 1)
        found = entry.compiled.next_ms(after_ms)
        while found is not None and entry.was_made_ahead(found):
            found = entry.compiled.next_ms(found)
        if found is None or found >= TIME_MS_END:
            return None
        return None if settings.end_ms is not None and found > settings.end_ms else found

    def due_ms(self, entry: Entry, nominal_ms: int) -> int:
        """Return when a run of a schedule is due."""
        jitter_ms = entry.settings.jitter_ms
        if not jitter_ms or not entry.settings.has_rule:
            return nominal_ms
        following = entry.compiled.next_ms(nominal_ms)
        return min(due_ms(entry.name, nominal_ms, following, jitter_ms), TIME_MS_END - 1)

    def set_next(self, entry: Entry, after_ms: int) -> None:
        """Let the next decision be about the first time after a moment."""
        entry.next_ms = self.next_time(entry, after_ms)
        entry.fire_ms = None if entry.next_ms is None else self.due_ms(entry, entry.next_ms)
        if entry.next_ms is None and entry.linked:
            self.dependencies.note(entry.name)

    # ---------------------------------------------------------------- changes

    @contextmanager
    def changing(self, *, gone: frozenset[str] = frozenset()) -> Generator[Change]:
        """Give a change, and carry it out at the end.

        Args:
            gone: schedules that it deletes.

        Raises:
            ScheduleError: OOM or DISKFULL; nothing was changed.
        """
        change = Change(self._core)
        self.known.change = change
        self.dates.trim(DATES_MIN + DATES_EACH * len(self.store))
        unsettled = self.dependencies.unsettled()
        try:
            yield change
            self._settle(change)
            self.ledger.trim(change, self._times.wall_ms)
            if not change.is_empty:
                change.commit(gone=gone)
        except BaseException:
            change.undo()
            self.dependencies.take_back(unsettled)
            self.dates.forget()
            self.known.change = None
            raise
        self.known.change = None
        for run in change.ended:
            owner = self.store.jobs.pop(run.job_id)
            if owner is None or owner[0] is None:
                self.store.forget(run)
        for entry, run in change.made:
            self.store.jobs[run.job_id] = (entry, run)
        for entry in change.touched:
            if entry.name not in gone:
                self.store.place(entry)
        self.counts["runs"] += len(change.made)
        self._events += [Event(name, fields) for name, fields in change.events]

    def take_events(self) -> list[Event]:
        """Return what happened since this was last asked."""
        found, self._events = self._events, []
        return found

    def _settle(self, change: Change) -> None:
        """Let go what is held no longer, and whatever follows from that.

        For a slice's time: a change that reaches thousands of held runs does so turn by turn. What
        is left follows from what is logged: a start judges all held runs anew.
        """
        until_ns = self._clock_ns() + SLICE_NS

        def is_over() -> bool:
            return self._clock_ns() >= until_ns or change.bytes >= BATCH_BYTES_MAX

        while news := self.dependencies.settle(is_over):
            free: dict[Entry, None] = {}
            for held, before in news:
                old = replace(held, verdict=before)
                change.undone_by(functools.partial(self.dependencies.hold, old))
                entry = self._judged(change, held)
                if entry is not None:
                    free[entry] = None
            for entry in free:
                self.release(change, entry)
            if is_over():
                return

    def _judged(self, change: Change, held: HeldRun) -> Entry | None:
        """Do what another verdict on a held run calls for; return a schedule to be released."""
        entry = self.store.get(held.name)
        run = None if entry is None else entry.held_at(held.nominal_ms)
        if entry is None or run is None:
            self.dependencies.let_go(held.name, held.nominal_ms)
        elif held.verdict.state is Judged.RELEASE:
            self.dependencies.let_go(held.name, held.nominal_ms)
            change.stand(run, Stands.WAITING)
            return entry
        else:
            fields = {
                "run": run.id,
                "outcome": held.verdict.phase.value,
                "upstream": held.verdict.upstream,
                "reason": held.verdict.reason,
            }
            change.events.append(("run_held", fields))
            if held.verdict.is_stuck:
                self.fill(entry)
        return None

    # ---------------------------------------------------------------- runs

    def start(
        self,
        change: Change,
        entry: Entry,
        nominal_ms: int,
        due: int,
        *,
        tag: str = "",
        own: str = "",
        caught_up: bool = False,
        alone: bool = False,
    ) -> Run | None:
        """Make a run, or drop it, as the policies say; None: it was dropped.

        Of one nominal time one run is live at most, but for those by TRIGGER: if there is one, made
        anew by RERUN, that is returned.

        Args:
            change: that it is part of.
            entry: its schedule.
            nominal_ms: its nominal time.
            due: when it is due.
            tag: of its run id.
            own: the label it is made for, if the schedule has no rule.
            caught_up: one of several that make up for missed ones.
            alone: OVERLAP leaves it alone.
        """
        change.edit(entry)
        twin = None if tag.startswith("!") else entry.live_at(nominal_ms)
        if twin is not None:
            return twin
        run = Run(entry.name, nominal_ms, tag, due, own or entry.label(nominal_ms), alone=alone)
        # At the nominal time, whether its upstreams are done or not.
        decision = START
        if not alone and entry.live is not None:
            decision = self._overlap(change, entry, caught_up=caught_up)
        if decision.act is Act.SKIP:
            gap = Gap(nominal_ms, nominal_ms, 1, decision.reason)
            self.drop(change, entry, gap, Outcome.SKIPPED, tag=tag, label=run.label)
            return None
        if decision.act is not Act.START:
            run.stands = Stands.WAITING
        verdict = RELEASE
        if entry.settings.after and not tag.startswith("!"):
            verdict = UNJUDGED if own else self.dependencies.verdict(entry.name, nominal_ms, own)
        if verdict.state is not Judged.RELEASE:
            run.stands = Stands.HELD
        in_row = caught_up or alone
        self._make(change, entry, run, in_row=in_row)
        if run.stands is Stands.HELD:
            held = HeldRun(name=run.name, nominal_ms=nominal_ms, own=own, verdict=verdict)
            self._hold(change, held)
            self._surplus(change, entry)
        return run

    def _overlap(self, change: Change, entry: Entry, *, caught_up: bool) -> Decision:
        """Return what becomes of a run, having made room for it."""
        waiting = entry.standing(Stands.WAITING)
        decision = decide(
            entry.settings.overlap,
            active=len(entry.standing(Stands.ACTIVE)),
            waiting=len(waiting),
            caught_up=caught_up,
            catching_up=entry.settings.catch_up is CatchUp.ALL
            and any(
                run.nominal_ms <= entry.caught_ms
                for run in entry.all_live()
                if not run.tag and not run.alone
            ),
        )
        if decision.act is not Act.REPLACE:
            return decision
        for run in waiting:
            self.take_back(change, entry, run, Outcome.SKIPPED, "overlap")
        for run in entry.standing(Stands.ACTIVE):
            taken = not self.take_back(change, entry, run, Outcome.CANCELLED, "overlap")
            if taken and change.cancel(run) and not entry.why(run):
                entry.ask(run, "overlap")
        left = entry.standing(Stands.ACTIVE) + entry.standing(Stands.WAITING)
        return Decision(Act.QUEUE if left else Act.START)

    def _make(self, change: Change, entry: Entry, run: Run, *, in_row: bool) -> None:
        change.make(entry, run)
        repeat = tag_parts(run.tag)[1]
        entry.runs += not repeat  # made anew, it is the same run
        if not run.tag:
            entry.dropping = False
        if not repeat and entry.runs == entry.settings.max_runs:
            entry.next_ms = entry.fire_ms = None
            self.dependencies.note(entry.name)  # no run of it is to come any more
        if entry.linked:
            phase = Phase.HELD if run.stands is Stands.HELD else Phase.RUNNING
            self.tell(change, entry, run, phase, in_row=in_row)

    def _hold(self, change: Change, held: HeldRun) -> None:
        if held.verdict is UNJUDGED:
            self.dependencies.judge_later(held)
        else:
            self.dependencies.hold(held)
        change.undone_by(lambda: self.dependencies.let_go(held.name, held.nominal_ms))

    def let_go(self, change: Change, run: Run) -> None:
        """Forget that a run is held."""
        held = self.dependencies.held_run(run.name, run.nominal_ms)
        if held is not None:
            self.dependencies.let_go(run.name, run.nominal_ms)
            change.undone_by(lambda: self.dependencies.hold(held))

    def _surplus(self, change: Change, entry: Entry) -> None:
        """Let a held run go that is one too many."""
        held = self.dependencies.surplus(entry.name)
        run = None if held is None else entry.held_at(held.nominal_ms)
        if held is not None and run is not None:
            outcome = Outcome.SKIPPED
            if held.verdict.is_stuck:
                outcome = Outcome(held.verdict.phase.value)
            self.take_back(change, entry, run, outcome, "held_full")

    def take_back(
        self, change: Change, entry: Entry, run: Run, outcome: Outcome, reason: str
    ) -> bool:
        """End a run that was not handed out; False: it was, nothing is done."""
        if not change.cancel_waiting(run):
            return False
        if run.stands is Stands.HELD:
            self.let_go(change, run)
        self.recorded(change, run)
        self.end(change, entry, run)
        if outcome is Outcome.SKIPPED:
            entry.skipped += 1
            self.counts["skipped"] += 1
        self.write(
            change,
            entry,
            RunRecord(
                outcome=outcome,
                reason=reason,
                first_ms=run.nominal_ms,
                last_ms=run.nominal_ms,
                tag=run.tag,
                label=run.label,
                due_ms=run.due_ms,
                ended_ms=self._times.wall_ms,
                job_id=run.job_id,
            ),
        )
        change.events.append(
            ("run_dropped", {"run": run.id, "outcome": outcome.value, "reason": reason})
        )
        self.tell(change, entry, run, Phase(outcome.value))
        return True

    def end(self, change: Change, entry: Entry, run: Run) -> None:
        """Take a run off the live ones; a backfill may go on."""
        change.edit(entry)
        change.end(entry, run)
        if run.alone:
            left = tuple(key for key in entry.extra.alone if key != run.key)
            entry.extra = changed_extra(entry.extra, alone=left)
        self.fill(entry)

    def fill(self, entry: Entry) -> None:
        """Have a turn look at a schedule's backfill."""
        if entry.extra.plan is not None:
            self._filling.add(entry.name)

    def recorded(self, change: Change, run: Run) -> None:
        """Note that the end of a run's job is no news when it comes."""
        self._recorded.add(run.job_id)
        change.undone_by(functools.partial(self._recorded.discard, run.job_id))

    def release(self, change: Change, entry: Entry) -> None:
        """Let the next waiting runs go whose turn it is."""
        if entry.paused:
            return
        at_once = entry.settings.overlap == "allow"
        until_ns = self._clock_ns() + SLICE_NS
        for run in entry.standing(Stands.WAITING):
            if not at_once and entry.standing(Stands.ACTIVE):
                break
            if self._still_free(change, entry, run):
                change.release(entry, run)
            if at_once and self._clock_ns() >= until_ns:
                self.behind[entry.name] = None
                return
        self._release_alone(change, entry)

    def _release_alone(self, change: Change, entry: Entry) -> None:
        """Let those go that OVERLAP leaves alone: by FORCE, or a backfill's as it has room."""
        plan = entry.extra.plan
        room = None
        if plan is not None:
            active = [run for run in entry.all_live() if run.alone and run.stands is Stands.ACTIVE]
            room = plan.active - len(active)
        waiting = [run for run in entry.all_live() if run.alone and run.stands is Stands.WAITING]
        for run in sorted(waiting, key=lambda run: run.key):
            if room is not None and room <= 0 and not run.tag:
                continue
            if self._still_free(change, entry, run):
                change.release(entry, run)
                room = None if room is None else room - 1

    def _still_free(self, change: Change, entry: Entry, run: Run) -> bool:
        """Return whether upstreams let a run go; if they do not any more, hold it again."""
        if not entry.settings.after or run.tag.startswith("!"):
            return True
        own = entry.own(run.label, run.nominal_ms)
        verdict = self.dependencies.verdict(entry.name, run.nominal_ms, own)
        if verdict.state is Judged.RELEASE:
            return True
        change.stand(run, Stands.HELD)
        self._hold(
            change,
            HeldRun(name=run.name, nominal_ms=run.nominal_ms, own=own, verdict=verdict),
        )
        self.tell(change, entry, run, Phase.HELD)
        return False

    # ---------------------------------------------------------------- records

    def drop(
        self,
        change: Change,
        entry: Entry,
        gap: Gap,
        outcome: Outcome,
        *,
        tag: str = "",
        label: str = "",
    ) -> None:
        """Record nominal times that no run is made for, and tell those that wait for them."""
        # Never before a pause that it is dropped in, which RESUME asks for (see Scheduler.pause),
        # nor before a definition without a rule is in force, which may be the next millisecond.
        now_ms = max(self._times.logical_ms, entry.extra.paused_ms)
        if entry.rule is None:
            now_ms = max(now_ms, entry.since_ms)
        record = self.ledger.drop(change, entry, gap, outcome, now_ms=now_ms, tag=tag, label=label)
        self.counts[outcome.value] += gap.count
        fact = RunFact(
            first_ms=gap.first_ms,
            last_ms=gap.last_ms,
            phase=Phase(outcome.value),
            cause=gap.reason,
            label=entry.own(record.label, record.first_ms),
        )
        if entry.linked and not tag.startswith("!"):
            self._tell(change, entry, fact)

    def write(self, change: Change, entry: Entry, record: RunRecord) -> None:
        """Record how a run ended."""
        self.ledger.write(change, entry, record)

    # ---------------------------------------------------------------- dependants

    def tell(
        self, change: Change, entry: Entry, run: Run, phase: Phase, *, in_row: bool = False
    ) -> None:
        """Have those judged anew that wait for a run, and make those that it calls for.

        Args:
            change: that it is part of.
            entry: the run's schedule.
            run: the run.
            phase: where it stands now.
            in_row: it is one of several made at once, and so are those that it calls for: they go
                one behind the other, or OVERLAP would drop all but the first.
        """
        manual, repeat = tag_parts(run.tag)
        if manual or not entry.linked:
            return
        label = entry.own(run.label, run.nominal_ms)
        self._tell(
            change,
            entry,
            RunFact(
                first_ms=run.nominal_ms,
                last_ms=run.nominal_ms,
                phase=phase,
                by_hand=repeat > 0,
                label=label,
            ),
            in_row=in_row,
        )

    def tell_marked(self, change: Change, entry: Entry, record: RunRecord) -> None:
        """Have those judged anew that wait for a run whose outcome a person has set."""
        manual, _ = tag_parts(record.tag)
        if manual or not entry.linked:
            return
        self._tell(
            change,
            entry,
            RunFact(
                first_ms=record.first_ms,
                last_ms=record.last_ms,
                phase=Phase(record.outcome.value),
                by_hand=True,
                label=entry.own(record.label, record.first_ms),
            ),
            in_row=True,
        )

    def _tell(self, change: Change, entry: Entry, fact: RunFact, *, in_row: bool = False) -> None:
        self.dependencies.note(entry.name, fact)
        if fact.phase not in _FIRES and not fact.by_hand:
            return
        for firing in self.dependencies.fires(entry.name, fact.first_ms, fact.label):
            self._fire(change, firing, in_row=in_row)

    def _fire(self, change: Change, firing: Firing, *, in_row: bool) -> None:
        """Make the run of a schedule without a rule."""
        entry = self.store.get(firing.name)
        assert entry is not None, firing.name
        missed = self.ledger.missed_on(change, entry, firing.own)
        if missed and entry.paused:  # several call for one date
            return
        change.edit(entry)
        nominal_ms = entry.free_ms(firing.nominal_ms)
        entry.done_ms = max(entry.done_ms, nominal_ms)
        self.ledger.take_back(change, entry, missed)
        self.ledger.take_out(change, entry, nominal_ms, firing.own)  # of an earlier firing
        if entry.paused:
            gap = Gap(nominal_ms, nominal_ms, 1, "paused")
            self.drop(change, entry, gap, Outcome.MISSED, label=firing.own)
        else:
            self.start(change, entry, nominal_ms, nominal_ms, own=firing.own, caught_up=in_row)
