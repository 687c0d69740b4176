"""The turns of the schedules: what ended is recorded, what is due is decided.

A turn takes runs that ended, then schedules whose time has come, each in slices of at most a
millisecond or so; one slice is one ``Change``, submitted as one batch. A batch that the core
refuses changes nothing: its schedules stay due and are tried each second, late but never missed.

Time comes in as ``Times`` of the core. The wall axis is its logical now, which never goes back: so
while the wall clock is set back nothing comes due twice. What steps, suspends and downtime passed
over is *missed*, and only that: a server that is late decides every time that has come.
"""

import functools
import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from wheel.engine import history
from wheel.engine.catchup import last_missed, pick
from wheel.engine.change import BATCH_BYTES_MAX, PLAN, Change
from wheel.engine.dag import Phase
from wheel.engine.definition import CatchUp, ScheduleError
from wheel.engine.dependencies import HELD_MAX
from wheel.engine.entries import Entry, Manual, Plan, changed_extra
from wheel.engine.records import Record, State
from wheel.engine.runner import SLICE_NS, Event, Span
from wheel.engine.runner import Core as RunnerCore
from wheel.engine.runs import Outcome, Run, RunRecord, Stands, parse_owner
from wheel.engine.withdrawals import Withdrawals

ENDED_A_SLICE: Final = 64
RETRY_MS: Final = 1_000
FILL_HELD_MAX: Final = HELD_MAX // 2  # leaves the other half to the runs of every day

_OUTCOMES: Final = {
    State.SUCCEEDED: Outcome.SUCCEEDED,
    State.DEAD: Outcome.DEAD,
    State.CANCELLED: Outcome.CANCELLED,
    State.EXPIRED: Outcome.EXPIRED,
}
_DIED: Final = {
    1: "failed", 2: "timed_out", 3: "worker_lost", 4: "released", 5: "not_delivered",
    6: "server_restarted", 7: "failed", 8: "corrupt",
}  # fmt: skip


class Core(RunnerCore, Protocol):
    """What the planner needs of the core."""

    def each_ended(self, most: int) -> Iterator[Record]:
        """Return owned jobs that ended or were moved and are not closed, as they are asked for."""
        ...


class Turn(NamedTuple):
    """What a turn leaves.

    Attributes:
        more: another turn has work at once.
        wall_ms: when the next one has on the wall axis; None: not by itself.
        rel_ms: and on the rel axis.
    """

    more: bool
    wall_ms: int | None
    rel_ms: int | None


class Planner(Withdrawals):
    """Decides, turn by turn, about the runs of all schedules."""

    def __init__(self, core: Core, *, clock_ns: Callable[[], int]) -> None:
        """Make it.

        Args:
            core: has the jobs and the table.
            clock_ns: a stopwatch, for slices.
        """
        super().__init__(core, clock_ns)
        self._ended_of = core.each_ended
        self._manual: list[tuple[int, str, str]] = []  # heap: wall time, schedule, tag
        self._retry_ms: int | None = None  # rel: after a refused batch
        self._making_up: set[str] = set()  # schedules that missed dates, see Extra.made_up_ms
        self._is_lefts_turn = False  # this turn is for what large changes have left

    # ---------------------------------------------------------------- a turn

    def turn(self) -> Turn:
        """Do what there is to do now, for about two milliseconds."""
        times = self.look()
        if self._retry_ms is not None and times.rel_ms < self._retry_ms:
            return self._turn_end(more=False)
        self._retry_ms = None
        more = False
        try:
            if self._left_slice():
                return self._turn_end(more=True)
            more |= self._ended_slice()
            more |= self._due_slice(rel=False)
            more |= self._due_slice(rel=True)
            more |= self._manual_slice()
            more |= self._make_up_slice()
            more |= self._fill_slice()
            more |= self._has_left()
        except ScheduleError as error:
            self.counts["refused"] += 1
            if self._retry_ms is None:
                self._events.append(Event("schedules_late", {"error": str(error)}))
            self._retry_ms = times.rel_ms + RETRY_MS
            more = False
        return self._turn_end(more=more)

    @property
    def is_late(self) -> bool:
        """Whether the core has refused a batch, which is tried again each second."""
        return self._retry_ms is not None

    def wakes(self) -> Turn:
        """Return when the next turn is due, as things stand."""
        more = bool(self._filling or self._making_up) or self._has_left()
        return self._turn_end(more=more)

    def _turn_end(self, *, more: bool) -> Turn:
        if self._retry_ms is not None:
            return Turn(False, None, self._retry_ms)
        wall_ms, rel_ms = self.store.first_ms(rel=False), self.store.first_ms(rel=True)
        if self._manual and (wall_ms is None or self._manual[0][0] < wall_ms):
            wall_ms = self._manual[0][0]
        return Turn(more, wall_ms, rel_ms)

    def _has_left(self) -> bool:
        return bool(self.store.going or self.behind) or not self.dependencies.is_settled

    def _left_slice(self) -> bool:
        """Go on with what a start or a large change has left; True: and do nothing else now.

        It takes every second turn, so that neither keeps the other waiting.
        """
        self._is_lefts_turn = not self._is_lefts_turn and self._has_left()
        if not self._is_lefts_turn:
            return False
        if self.store.going:
            self.withdraw_slice(next(iter(self.store.going)))
        else:
            self._release_slice()
        return self._has_left()

    def _release_slice(self) -> None:
        """Judge held runs, and let those go of one schedule whose turn has come."""
        name = next(iter(self.behind), "")
        entry = self.store.get(name)
        self.behind.pop(name, None)
        try:
            with self.changing() as change:
                if entry is not None:
                    self.release(change, entry)
        except ScheduleError:
            self.behind[name] = None
            raise

    def _ended_slice(self) -> bool:
        """Record runs that ended; True: there may be more."""
        records = self._ended_of(ENDED_A_SLICE)
        first = next(records, None)
        if first is None:
            return False
        until_ns = self._clock_ns() + SLICE_NS
        number = 0
        with self.changing() as change:
            for record in itertools.chain((first,), records):
                self._ended(change, record)
                number += 1
                if self._clock_ns() >= until_ns:
                    return True
        return number == ENDED_A_SLICE

    def _due_slice(self, *, rel: bool) -> bool:
        """Decide about schedules whose time has come; True: there may be more."""
        now_ms = self._times.rel_ms if rel else self._times.logical_ms
        first_ms = self.store.first_ms(rel=rel)
        if first_ms is None or first_ms > now_ms:
            return False
        until_ns = self._clock_ns() + SLICE_NS
        taken: list[Entry] = []
        try:
            with self.changing() as change:
                while (entry := self.store.take_due(now_ms, rel=rel)) is not None:
                    taken.append(entry)
                    self._due(change, entry, now_ms)
                    if self._clock_ns() >= until_ns or change.bytes >= BATCH_BYTES_MAX:
                        break
        except BaseException:
            for entry in taken:
                self.store.place(entry)
            raise
        return True

    def _due(self, change: Change, entry: Entry, now_ms: int) -> None:
        """Decide about a schedule's next time, which has come."""
        nominal_ms, fire_ms = entry.next_ms, entry.fire_ms
        assert nominal_ms is not None
        assert fire_ms is not None
        change.edit(entry)
        most = entry.settings.max_runs
        if most is not None and entry.runs >= most:  # runs by hand have used it up meanwhile
            self.set_next(entry, nominal_ms)
            self.dependencies.note(entry.name)
            return
        picked = nominal_ms <= entry.caught_ms
        span = None if picked else self.missed_until(entry)
        if span is not None and self.catch_up(change, entry, span, now_ms):
            return
        entry.done_ms = nominal_ms
        in_row = picked and entry.settings.catch_up is CatchUp.ALL
        self.counts["caught_up"] += picked
        self.start(change, entry, nominal_ms, fire_ms, caught_up=in_row)
        self.set_next(entry, nominal_ms)

    def catch_up(self, change: Change, entry: Entry, span: Span, now_ms: int) -> bool:
        """Pick from missed times; False: nothing was missed, the next time is decided as usual."""
        change.edit(entry)
        first_ms = entry.next_ms
        assert first_ms is not None
        rule = entry.compiled
        until_ms = min(span.to_ms, now_ms)
        if entry.settings.end_ms is not None:
            until_ms = min(until_ms, self.due_ms(entry, entry.settings.end_ms))
        last_ms = last_missed(
            rule,
            first_ms=first_ms,
            until_ms=until_ms,
            due_ms=lambda ms: self.due_ms(entry, ms),
        )
        if last_ms is not None and entry.settings.end_ms is not None:
            last_ms = min(last_ms, entry.settings.end_ms)
        if last_ms is None:
            return False
        picked = pick(
            entry.settings,
            rule,
            first_ms=first_ms,
            last_ms=last_ms,
            now_ms=now_ms,
            reason=span.reason,
        )
        for gap in picked.gaps:
            self.drop(change, entry, gap, Outcome.MISSED)
        entry.caught_ms = last_ms
        begin_ms = last_ms + 1 if picked.first_ms is None else picked.first_ms
        entry.done_ms = begin_ms - 1
        self.set_next(entry, begin_ms - 1)
        return True

    def make_up(self, change: Change, entry: Entry, paused_ms: int) -> None:
        """Begin to make runs, as CATCHUP says, of the dates that a schedule without a rule missed.

        Args:
            change: that it is part of.
            entry: the schedule; no longer paused.
            paused_ms: logical wall time, since when it was.
        """
        settings = entry.settings
        if entry.rule is not None or settings.catch_up is CatchUp.SKIP:
            return
        missed = self.ledger.missed(change, entry, entry.extra.made_up_ms or paused_ms)
        if settings.window_ms is not None:
            begin_ms = self._times.logical_ms - settings.window_ms
            missed = [item for item in missed if item.first_ms >= begin_ms]
        missed.sort(key=lambda item: item.first_ms)
        most = settings.catch_up_max if settings.catch_up is CatchUp.ALL else 1
        self._make_up_some(change, entry, missed[-most:])

    def _make_up_some(self, change: Change, entry: Entry, missed: list[history.Item]) -> None:
        """Make runs of missed dates, the oldest first, for a slice's time.

        One behind the other, whatever OVERLAP says, if each of them is made up for.
        """
        until_ns = self._clock_ns() + SLICE_NS
        in_row = entry.settings.catch_up is CatchUp.ALL
        for number, item in enumerate(missed):
            if number and (self._clock_ns() >= until_ns or change.bytes >= BATCH_BYTES_MAX):
                left_ms = min(item.ended_ms for item in missed[number:])
                entry.extra = changed_extra(entry.extra, made_up_ms=left_ms)
                self._making_up.add(entry.name)
                return
            self.ledger.take_back(change, entry, [item])
            at_ms = item.first_ms
            own = entry.own(history.label_of(item), at_ms)
            self.start(change, entry, at_ms, at_ms, own=own, caught_up=in_row)
        entry.extra = changed_extra(entry.extra, made_up_ms=0)

    def _make_up_slice(self) -> bool:
        """Go on with making up for missed dates; True: there may be more."""
        while self._making_up:
            name = min(self._making_up)
            entry = self.store.get(name)
            if entry is not None and entry.extra.made_up_ms and not entry.paused:
                with self.changing() as change:
                    change.edit(entry)
                    missed = self.ledger.missed(change, entry, entry.extra.made_up_ms)
                    missed.sort(key=lambda item: item.first_ms)
                    self._make_up_some(change, entry, missed)
                if entry.extra.made_up_ms:
                    return True
            self._making_up.discard(name)
        return False

    # ---------------------------------------------------------------- runs by hand

    def plan_manual(self, entry: Entry, manual: Manual) -> None:
        """Have a turn at the time of a run that was triggered for later."""
        heapq.heappush(self._manual, (manual.at_ms, entry.name, manual.tag))

    def _manual_slice(self) -> bool:
        """Make a run that was triggered for now; True: there may be more."""
        while self._manual and self._manual[0][0] <= self._times.logical_ms:
            at_ms, name, tag = self._manual[0]
            entry = self.store.get(name)
            manual = None if entry is None else manual_of(entry, tag)
            if entry is not None and manual is not None and manual.at_ms == at_ms:
                with self.changing() as change:
                    self.start_manual(change, entry, manual)
            heapq.heappop(self._manual)
            if manual is not None:
                return True
        return False

    def start_manual(self, change: Change, entry: Entry, manual: Manual) -> Run | None:
        """Make a run that was triggered by hand, its time having come."""
        change.edit(entry)
        extra = entry.extra
        alone = extra.alone
        if manual.alone:
            alone = (*alone, (manual.at_ms, manual.tag))
        left = tuple(one for one in extra.manual if one.tag != manual.tag)
        entry.extra = changed_extra(extra, alone=alone, manual=left)
        return self.start(
            change, entry, manual.at_ms, manual.at_ms, tag=manual.tag, alone=manual.alone
        )

    def take_up(self, entry: Entry) -> None:
        """Go on with what a schedule had begun before a start."""
        for manual in entry.extra.manual:
            self.plan_manual(entry, manual)
        self.fill(entry)
        if entry.extra.made_up_ms:
            self._making_up.add(entry.name)

    # ---------------------------------------------------------------- backfills

    def _fill_slice(self) -> bool:
        """Go on with a backfill; True: there may be more."""
        while self._filling:
            entry = self.store.get(min(self._filling))
            if entry is not None and not entry.paused and entry.extra.plan is not None:
                until_ns = self._clock_ns() + SLICE_NS
                with self.changing() as change:
                    done = self.fill_on(change, entry, until_ns)
                if not done:
                    return True
                self._filling.discard(entry.name)
            else:
                self._filling.discard(min(self._filling))
        return False

    def fill_on(self, change: Change, entry: Entry, until_ns: int) -> bool:
        """Make runs of a backfill as it has room; False: there are more to be made now."""
        plan = entry.extra.plan
        assert plan is not None
        change.edit(entry)
        done, times = plan.done, plan.times
        while done < len(times) and self._has_room(entry, plan):
            nominal_ms, done = times[done], done + 1
            entry.set_plan(Plan(times=times, done=done, active=plan.active))
            self.ledger.take_out(change, entry, nominal_ms)
            self.start(change, entry, nominal_ms, self.due_ms(entry, nominal_ms), alone=True)
            is_over = self._clock_ns() >= until_ns or change.bytes >= BATCH_BYTES_MAX
            if is_over and done < len(times):  # behind one at least, however long that took
                return False
        over = done == len(times) and not any(run.alone and not run.tag for run in entry.all_live())
        if over:
            change.drop(PLAN, entry.name.encode())
            entry.set_plan(None)
        return True

    def _has_room(self, entry: Entry, plan: Plan) -> bool:
        """Return whether a backfill may make another run.

        One that only a person can help takes no room, or a date without an upstream would keep all
        those behind it from being made. Yet they are held, and too many of those would be dropped.
        """
        busy = held = 0
        for run in entry.all_live():
            held += run.stands is Stands.HELD
            if run.alone and not run.tag:
                waits = self.dependencies.held_run(run.name, run.nominal_ms)
                busy += waits is None or not waits.verdict.is_stuck
        return busy < plan.active and held < FILL_HELD_MAX

    # ---------------------------------------------------------------- runs that ended

    def _ended(self, change: Change, record: Record) -> None:
        """Record what became of one job."""
        assert record.id is not None
        change.close(record.id)
        if record.id in self._recorded:
            self._recorded.discard(record.id)
            change.undone_by(functools.partial(self._recorded.add, record.id))
            return
        found = self.store.jobs.get(record.id)
        if found is None:
            self._unknown(change, record)
            return
        entry, run = found
        outcome = _OUTCOMES.get(State(record.reason or 0))
        if outcome is None:
            if run.stands is not Stands.ACTIVE and record.reason != State.HELD:
                self.let_go(change, run)  # a person has let it go
                change.stand(run, Stands.ACTIVE)
            return
        if entry is None or self.store.get(entry.name) is not entry:  # it was deleted
            change.ended.append(run)
            return
        self._finish(change, entry, run, outcome, record)

    def _unknown(self, change: Change, record: Record) -> None:
        """Take in a job that was not live: one that was requeued, or purged, or a stranger's."""
        try:
            name, nominal_ms, tag, label = parse_owner(record.owner)
        except ValueError:
            return
        entry = self.store.get(name)
        if entry is None:
            return
        outcome = _OUTCOMES.get(State(record.reason or 0))
        job_id = record.id or 0
        run = Run(name, nominal_ms, tag, record.due_ms or 0, label, job_id=job_id)
        if outcome is None:
            change.revive(entry, run)
            change.edit(entry)
            self.store.jobs[job_id] = (entry, run)
            change.undone_by(lambda: self._forget_job(job_id))
            self.tell(change, entry, run, Phase.RUNNING)
        elif outcome is not Outcome.CANCELLED or not self._is_recorded(change, entry, run):
            self._finish(change, entry, run, outcome, record)

    def _forget_job(self, job_id: int) -> None:
        self.store.jobs.pop(job_id)

    @staticmethod
    def _is_recorded(change: Change, entry: Entry, run: Run) -> bool:
        return any(
            item.first_ms == run.nominal_ms and history.tag_of(item) == run.tag
            for item in change.seen_history(entry.name)
            if item.count == 1
        )

    def _finish(
        self, change: Change, entry: Entry, run: Run, outcome: Outcome, record: Record
    ) -> None:
        """Record a run's end, and let the next one go."""
        self.end(change, entry, run)
        if run.stands is Stands.HELD:
            self.let_go(change, run)
        reason = entry.why(run) if outcome is Outcome.CANCELLED else ""
        entry.forget_asked(run)
        if outcome is Outcome.DEAD:
            reason = _DIED.get(record.number or 0, "")
            entry.failed += 1
            self.counts["failed"] += 1
        elif outcome is Outcome.SUCCEEDED:
            entry.succeeded += 1
            entry.last_success_ms = max(entry.last_success_ms or 0, run.nominal_ms)
            self.counts["succeeded"] += 1
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
                started_ms=record.due_ms or 0,
                ended_ms=record.at_ms or 0,
                failures=record.failures or 0,
                lost=record.lost or 0,
                job_id=record.id or 0,
                text=record.text,
            ),
        )
        self.tell(change, entry, run, Phase(outcome.value))
        self.release(change, entry)


def manual_of(entry: Entry, tag: str) -> Manual | None:
    """Return the run to come that was triggered by hand."""
    return next((one for one in entry.extra.manual if one.tag == tag), None)
