"""Taking back all runs of a schedule that nobody has taken, when it is edited or deleted.

Few go at once, with the change itself. Many go slice by slice, see going.py.
"""

import functools
from dataclasses import replace
from typing import Final

from wheel.engine.change import BATCH_BYTES_MAX, GOING, PLAN, Change
from wheel.engine.dependencies import HeldRun
from wheel.engine.entries import Entry, changed_extra
from wheel.engine.going import EDITED, Going, going_blob
from wheel.engine.runner import SLICE_NS, Runner
from wheel.engine.runs import Outcome, Run, Stands

AT_ONCE: Final = 16  # runs that are taken back with the change itself
A_SLICE: Final = 8  # at least: each slice writes the whole history, which may be long


class Withdrawals(Runner):
    """A runner that takes back many runs."""

    def withdraw(self, change: Change, entry: Entry, reason: str, *, by_hand: bool) -> None:
        """Take back the runs of a schedule that nobody has taken; many of them turn by turn.

        Args:
            change: that it is part of; none is under way for this schedule.
            entry: the schedule.
            reason: of the records that they become; DELETED: they become none.
            by_hand: also those that were triggered.
        """
        all_live = entry.live or {}
        going = {key: run for key, run in all_live.items() if by_hand or run.tag[:1] != "!"}
        if len(going) <= AT_ONCE:
            for run in going.values():
                self._withdraw_one(change, entry, run, reason)
            return
        held = self.dependencies.let_all_go(entry.name)
        change.undone_by(functools.partial(self._hold_again, list(held.values())))
        for run in going.values():
            if run.stands is Stands.HELD:
                change.stand(run, Stands.WAITING)
        change.set_live(entry, {key: run for key, run in all_live.items() if key not in going})
        change.put(GOING, entry.name.encode(), going_blob(reason, going.values()))
        self.store.going[entry.name] = Going(reason, going)
        change.undone_by(lambda: self._forget_going(entry.name))

    def _withdraw_one(self, change: Change, entry: Entry | None, run: Run, reason: str) -> bool:
        """Take back one run; False: somebody has taken it."""
        if entry is not None and reason == EDITED:
            return self.take_back(change, entry, run, Outcome.CANCELLED, reason)
        if not change.cancel_waiting(run):
            return False
        if run.stands is Stands.HELD:
            self.let_go(change, run)
        self.recorded(change, run)
        if entry is not None:
            change.end(entry, run)
        else:
            change.ended.append(run)
        return True

    def relabel(self, change: Change, entry: Entry) -> None:
        """Have held runs count for their dates as another DATE tells them."""
        for run in entry.all_live():
            held = self.dependencies.held_run(run.name, run.nominal_ms)
            if run.stands is Stands.HELD and held is not None:
                own = entry.own(run.label, run.nominal_ms)
                self.dependencies.hold(replace(held, own=own))
                change.undone_by(functools.partial(self.dependencies.hold, held))

    def drop_plan(self, change: Change, entry: Entry) -> None:
        """End a backfill; OVERLAP still leaves those of its runs alone that somebody has taken."""
        if entry.extra.plan is None:
            return
        change.drop(PLAN, entry.name.encode())
        entry.set_plan(None)
        for run in entry.all_live():
            keep_alone(entry, run)

    def withdraw_slice(self, name: str) -> None:
        """Go on with taking back the runs of a schedule, for a slice's time.

        Raises:
            ScheduleError: OOM or DISKFULL; nothing was changed.
        """
        going, entry = self.store.going[name], self.store.get(name)
        until_ns = self._clock_ns() + SLICE_NS
        done: dict[tuple[int, str], Run] = {}
        with self.changing() as change:
            change.undone_by(functools.partial(self._undo_slice, name, going, done))
            for key, run in list(going.runs.items()):
                done[key] = going.runs.pop(key)
                # One that ended meanwhile is recorded; one that somebody took ends as usual.
                if self.store.jobs.get(run.job_id) is not None and not self._withdraw_one(
                    change, entry, run, going.reason
                ):
                    self._leave(change, entry, run)
                if change.bytes >= BATCH_BYTES_MAX:
                    break
                if len(done) >= A_SLICE and self._clock_ns() >= until_ns:
                    break
            if not going.runs:
                change.drop(GOING, name.encode())
                del self.store.going[name]

    def finish_withdrawal(self, name: str) -> None:
        """Take back at once what is left of a schedule's: a command wants to see how that ends.

        Raises:
            ScheduleError: OOM or DISKFULL.
        """
        while name in self.store.going:
            self.withdraw_slice(name)

    def _leave(self, change: Change, entry: Entry | None, run: Run) -> None:
        if entry is not None:
            change.edit(entry)
            change.revive(entry, run)
            keep_alone(entry, run)
            self.store.jobs[run.job_id] = (entry, run)
        else:
            self.store.orphans.setdefault(run.name, {})[run.key] = run
            self.store.jobs[run.job_id] = (None, run)
            change.undone_by(functools.partial(self.store.forget, run))

    def _undo_slice(self, name: str, going: Going, done: dict[tuple[int, str], Run]) -> None:
        going.runs.update(done)
        self.store.going[name] = going

    def _forget_going(self, name: str) -> None:
        self.store.going.pop(name, None)

    def _hold_again(self, held: list[HeldRun]) -> None:
        for run in held:
            self.dependencies.hold(run)


def keep_alone(entry: Entry, run: Run) -> None:
    """Have a start know that OVERLAP leaves a run alone, whose backfill or schedule is gone."""
    if run.alone and not entry.is_alone(run):
        entry.extra = changed_extra(entry.extra, alone=(*entry.extra.alone, run.key))
