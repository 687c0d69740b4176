"""Runs that a person asks for: triggered, backfilled, made anew, or marked."""

from typing import Final

from wheel.engine import history
from wheel.engine.change import PLAN, Change
from wheel.engine.dates import APART_MS, Date
from wheel.engine.definition import HORIZON_MS, ScheduleError, check_note
from wheel.engine.entries import Entry, Manual, Plan, changed_extra, plan_blob
from wheel.engine.fanout import FIRING_BYTES_MAX, RUN_BYTES
from wheel.engine.planner import Planner
from wheel.engine.prints import refuse_gone
from wheel.engine.reruns import Reruns, Target, own_label
from wheel.engine.runs import (
    DROPPED,
    Outcome,
    Run,
    RunRecord,
    Stands,
    parse_run_id,
    run_id,
    tag_parts,
    time_text,
)
from wheel.engine.tokens import Tokens
from wheel.zones import checked_unit

BACKFILL_MAX: Final = 10_000
BACKFILL_ACTIVE_MAX: Final = 1_000
MANUAL_MAX: Final = 1_000
REPEATS_MAX: Final = 1_000


class ByHand:
    """What commands do to runs; see ``Scheduler`` for the words."""

    def __init__(self, planner: Planner, tokens: Tokens) -> None:
        self.planner = planner
        self._tokens = tokens

    def trigger(
        self,
        name: str,
        *,
        at_ms: int | None = None,
        force: bool = False,
        once: str = "",
        actor: str = "",
    ) -> str:
        """Make a run by hand; return its id. OVERLAP may drop it, as its record says.

        Args:
            name: the schedule.
            at_ms: its nominal time, wall; None = now. OVERLAP is judged then.
            force: OVERLAP neither judges nor counts it.
            once: the same token within ten minutes gets the same answer and makes nothing.
            actor: who asks.

        Raises:
            ScheduleError: it is refused.
        """
        known = self._tokens.find(once, self.planner.look().rel_ms)
        if known is not None:
            return known[0]
        entry, planner = self.planner.entry(name), self.planner
        times = planner.look()
        nominal_ms = times.wall_ms if at_ms is None else at_ms
        if not 0 <= nominal_ms < HORIZON_MS:
            raise ScheduleError(
                "LIMIT", f"AT {nominal_ms} is not from 1970 to 2199; write a time from there"
            )
        with planner.changing() as change:
            change.edit(entry)
            entry.manual_count += 1
            manual = Manual(at_ms=nominal_ms, tag=f"!{entry.manual_count}", alone=force)
            made_id = run_id(name, nominal_ms, manual.tag)
            if nominal_ms > times.logical_ms:
                if len(entry.extra.manual) >= MANUAL_MAX:
                    raise ScheduleError(
                        "LIMIT", f"{MANUAL_MAX} runs of {name!r} are triggered for later; wait"
                    )
                to_come = (*entry.extra.manual, manual)
                entry.extra = changed_extra(entry.extra, manual=to_come)
                planner.plan_manual(entry, manual)
            else:
                planner.start_manual(change, entry, manual)
            self._tokens.put(change, once, [made_id], self.planner.look().rel_ms)
            change.events.append(("run_triggered", {"run": made_id, "actor": actor}))
        return made_id

    def backfill(
        self,
        name: str,
        from_ms: int,
        to_ms: int,
        *,
        dry: bool = False,
        reverse: bool = False,
        active: int | None = None,
        once: str = "",
        actor: str = "",
    ) -> list[str]:
        """Make the runs of the rule in [from, to] that are not in the history; return their ids.

        OVERLAP neither judges nor counts them; at most ``active`` (1) run at once.

        Args:
            name: the schedule.
            from_ms: the first nominal time, wall.
            to_ms: the last one; not in the future.
            dry: say only which.
            reverse: the newest first.
            active: how many may run at once.
            once: as for trigger.
            actor: who asks.

        Raises:
            ScheduleError: it is refused.
        """
        known = None if dry else self._tokens.find(once, self.planner.look().rel_ms)
        if known is not None:
            return known
        entry, planner = self.planner.entry(name), self.planner
        refuse_gone(entry)
        if not dry:
            planner.finish_withdrawal(name)
        planner.look()
        times = self._backfill_times(entry, from_ms, to_ms)
        if reverse:
            times.reverse()
        ids = [run_id(name, ms) for ms in times]
        if dry or not ids:
            return ids
        if entry.extra.plan is not None:
            plan = entry.extra.plan
            raise ScheduleError(
                "CONFLICT",
                f"a backfill of {name!r} is under way, {len(plan.times) - plan.done} runs are to "
                "be made; wait until they are over",
            )
        if not 1 <= (active or 1) <= BACKFILL_ACTIVE_MAX:
            raise ScheduleError(
                "LIMIT", f"ACTIVE {active} is not in 1..{BACKFILL_ACTIVE_MAX}; write less"
            )
        with planner.changing() as change:
            change.edit(entry)
            change.put(PLAN, name.encode(), plan_blob(times))
            entry.set_plan(Plan(times=tuple(times), done=0, active=active or 1))
            entry.fill(min(times), max(times))
            self._tokens.put(change, once, ids, self.planner.look().rel_ms)
            planner.dependencies.note(name)
            change.events.append(
                ("schedule_backfilled", {"schedule": name, "runs": len(ids), "actor": actor})
            )
        planner.fill(entry)
        return ids

    def _backfill_times(self, entry: Entry, from_ms: int, to_ms: int) -> list[int]:
        name = entry.name
        if not entry.settings.has_rule:
            raise ScheduleError(
                "SYNTAX", f"schedule {name!r} has no rule; backfill those that it waits for"
            )
        if to_ms < from_ms:
            raise ScheduleError(
                "SYNTAX", f"to {_told(to_ms)} is before from {_told(from_ms)}; swap them"
            )
        now_ms = self.planner.now_ms(entry)
        until_ms = min(to_ms, now_ms)
        if entry.next_ms is not None:
            until_ms = min(until_ms, entry.next_ms - 1)
        count = entry.compiled.count(from_ms - 1, until_ms) if until_ms >= from_ms else 0
        if count > BACKFILL_MAX:
            raise ScheduleError(
                "LIMIT",
                f"from {_told(from_ms)} to {_told(to_ms)} are {count} runs, and one command "
                f"makes at most {BACKFILL_MAX}; split it",
            )
        known = _Recorded(self.planner.known.history(name), entry)
        found = entry.compiled.between(from_ms - 1, until_ms) if count else ()
        return [ms for ms in found if known.may_be_made(ms)]

    def rerun(
        self, name: str, label: str, *, downstream: bool = False, once: str = "", actor: str = ""
    ) -> list[str]:
        """Make the runs of a date anew; return the ids of the new ones.

        Args:
            name: the schedule.
            label: the date: a day, an hour or an exact moment.
            downstream: also those that wait for them, directly or not.
            once: as for trigger.
            actor: who asks.

        Raises:
            ScheduleError: it is refused.
            InvalidRequest, Conflict, LimitError: as ``Reruns.targets``.
        """
        known = self._tokens.find(once, self.planner.look().rel_ms)
        if known is not None:
            return known
        entry, planner = self.planner.entry(name), self.planner
        refuse_gone(entry)
        for going in list(planner.store.going):
            planner.finish_withdrawal(going)
        planner.look()
        unit = unit_of(label)
        self._refuse_far_date(entry, label, Date(unit))
        reruns = Reruns(planner.graph, planner.known, planner.dates)
        targets = reruns.targets(name, label, Date(unit), downstream=downstream)
        ids: list[str] = []
        self._refuse_large(targets)
        with planner.changing() as change:
            ids += [self._repeat(change, target) for target in targets]
            self._tokens.put(change, once, ids, self.planner.look().rel_ms)
            change.events.append(
                ("runs_repeated", {"schedule": name, "date": label, "runs": ids, "actor": actor})
            )
        return ids

    def _refuse_large(self, targets: list[Target]) -> None:
        """Refuse to make more at once than fits into a batch."""
        total = sum(RUN_BYTES + self.planner.known.size(target.name) for target in targets)
        if total > FIRING_BYTES_MAX:
            raise ScheduleError(
                "LIMIT",
                f"these {len(targets)} runs have {total} bytes with their payloads, at most "
                f"{FIRING_BYTES_MAX} are made in one command: name an hour instead of a day, or "
                "rerun the schedules one by one",
            )

    def _refuse_far_date(self, entry: Entry, label: str, date: Date) -> None:
        """Refuse a date that is before all time, or wholly to come."""
        begin_ms, _ = entry.zone.span(label, date)
        # The date of a run without a rule may be one of another zone.
        margin_ms = 0 if entry.settings.has_rule else APART_MS
        if begin_ms < 0:
            raise ScheduleError(
                "LIMIT",
                f"date {label!r} begins before 1970 in {entry.settings.zone}; write a later one",
            )
        if begin_ms - margin_ms > self.planner.now_ms(entry):
            raise ScheduleError(
                "CONFLICT",
                f"date {label!r} is still to come, and only runs that are over are made anew; "
                "write a date that has begun",
            )

    def _repeat(self, change: Change, target: Target) -> str:
        """Make one run anew; return the id of the new one."""
        entry = self.planner.entry(target.name)
        live = entry.live_at(target.nominal_ms)
        if live is not None:
            return live.id  # those before it called for it, for the first time
        change.edit(entry)
        tag = self._repeat_tag(change, entry, target.nominal_ms)
        due_ms = self.planner.due_ms(entry, target.nominal_ms)
        # One behind the other, whatever OVERLAP says, or all but the first were skipped.
        self.planner.start(
            change, entry, target.nominal_ms, due_ms, tag=tag, own=target.own, caught_up=True
        )
        return run_id(target.name, target.nominal_ms, tag)

    def _repeat_tag(self, change: Change, entry: Entry, nominal_ms: int) -> str:
        """Return the next ``~k`` of a nominal time, and remember that it is taken."""
        extra = entry.extra
        taken = [k for ms, _, k in extra.repeats if ms == nominal_ms]
        taken += [
            tag_parts(history.tag_of(item))[1]
            for item in change.seen_history(entry.name)
            if item.first_ms == nominal_ms and item.count == 1
        ]
        taken += [tag_parts(tag)[1] for ms, tag in entry.live or {} if ms == nominal_ms]
        k = max(taken, default=0) + 1
        others = tuple(one for one in extra.repeats if one[0] != nominal_ms)[-REPEATS_MAX + 1 :]
        entry.extra = changed_extra(extra, repeats=(*others, (nominal_ms, "", k)))
        return f"~{k}"

    def mark(self, run: str, *, succeeded: bool, note: str = "", actor: str = "") -> None:
        """Have a run count as succeeded or failed from now on.

        Args:
            run: its id. A held one is set free, or ended; one that runs is refused.
            succeeded: or failed.
            note: why.
            actor: who says so.

        Raises:
            ScheduleError: it is refused.
        """
        try:
            name, nominal_ms, tag = parse_run_id(run)
        except ValueError as error:
            raise ScheduleError("SYNTAX", f"{error}; write an id that CRON RUNS shows") from None
        check_note(note)
        if nominal_ms < 0:
            raise ScheduleError(
                "UNKNOWN", f"run {run!r} is not known, it is from before 1970; see CRON RUNS"
            )
        entry, planner = self.planner.entry(name), self.planner
        planner.finish_withdrawal(name)
        times = planner.look()
        live = (entry.live or {}).get((nominal_ms, tag))
        with planner.changing() as change:
            change.edit(entry)
            record = self._marked(change, entry, (nominal_ms, tag), live)
            outcome = Outcome.SUCCEEDED if succeeded else Outcome.DEAD
            if record.outcome is Outcome.SUCCEEDED and not succeeded:
                entry.succeeded -= 1
            if succeeded and record.outcome is not Outcome.SUCCEEDED:
                entry.succeeded += 1
                entry.last_success_ms = max(entry.last_success_ms or 0, nominal_ms)
            new = RunRecord(
                outcome=outcome,
                reason="marked",
                first_ms=nominal_ms,
                last_ms=nominal_ms,
                tag=tag,
                label=record.label,
                due_ms=record.due_ms,
                started_ms=record.started_ms,
                ended_ms=record.ended_ms or times.wall_ms,
                failures=record.failures,
                lost=record.lost,
                job_id=record.job_id,
                text=record.text,
                by_hand=True,
                note=note,
                actor=actor,
            )
            if not tag:
                planner.ledger.take_out(change, entry, nominal_ms)
                self._unplan(change, entry, nominal_ms)
            planner.write(change, entry, new)
            planner.tell_marked(change, entry, new)
            change.events.append(
                ("run_marked", {"run": run, "outcome": outcome.value, "note": note, "actor": actor})
            )
            if live is not None:
                planner.release(change, entry)

    def _unplan(self, change: Change, entry: Entry, nominal_ms: int) -> None:
        """Have a backfill leave out a time that it has not come to yet: a person has decided it."""
        plan = entry.extra.plan
        if plan is None or nominal_ms not in plan.times[plan.done :]:
            return
        times = tuple(ms for ms in plan.times if ms != nominal_ms)
        change.put(PLAN, entry.name.encode(), plan_blob(list(times)))
        entry.set_plan(Plan(times=times, done=plan.done, active=plan.active))
        self.planner.fill(entry)

    def _marked(
        self, change: Change, entry: Entry, key: tuple[int, str], live: Run | None
    ) -> RunRecord:
        """Return the record of a run to be marked; a live one that was not handed out ends."""
        nominal_ms, tag = key
        if live is not None:
            if not change.cancel_waiting(live):
                raise ScheduleError(
                    "CONFLICT", f"run {live.id!r} is being run; wait until it is over, or CANCEL it"
                )
            if live.stands is Stands.HELD:
                self.planner.let_go(change, live)
            self.planner.end(change, entry, live)
            return RunRecord(
                outcome=Outcome.CANCELLED,
                first_ms=nominal_ms,
                last_ms=nominal_ms,
                tag=tag,
                label=live.label,
                due_ms=live.due_ms,
                job_id=live.job_id,
            )
        for item in change.history(entry.name):
            if item.first_ms <= nominal_ms <= item.last_ms and history.tag_of(item) == tag:
                return history.decode(item)
        to_come = nominal_ms > self.planner.now_ms(entry) or self._is_to_come(entry, nominal_ms)
        # What waits for it on a date where it has no run can only go on by this.
        asked = self.planner.graph.waiting(entry.name) or _was_due(entry, nominal_ms)
        if tag or to_come or not asked:
            raise ScheduleError(
                "UNKNOWN", f"run {run_id(entry.name, *key)!r} is not known; see CRON RUNS"
            )
        label = own_label(self.planner.known, self.planner.dates, entry, nominal_ms)
        self._refuse_second(entry, nominal_ms, label)
        return RunRecord(
            outcome=Outcome.MISSED, first_ms=nominal_ms, last_ms=nominal_ms, label=label
        )

    def _refuse_second(self, entry: Entry, nominal_ms: int, label: str) -> None:
        """Refuse another run of a schedule without a rule on a date that has one."""
        if entry.rule is not None:
            return
        around = (nominal_ms - APART_MS, nominal_ms + APART_MS)
        for fact in self.planner.known.runs(entry.name, *around):
            if fact.label == label and fact.first_ms != nominal_ms:
                raise ScheduleError(
                    "UNKNOWN",
                    f"{entry.name!r} has one run for {label}, and that is "
                    f"{run_id(entry.name, fact.first_ms)!r}; mark that one",
                )

    @staticmethod
    def _is_to_come(entry: Entry, nominal_ms: int) -> bool:
        """Return whether a nominal time is the rule's and still to be decided."""
        if entry.next_ms is None or nominal_ms < entry.next_ms:
            return False
        return entry.compiled.next_ms(nominal_ms - 1) == nominal_ms


def _was_due(entry: Entry, nominal_ms: int) -> bool:
    """Return whether a nominal time is the rule's, and passed since that is in force."""
    rule = entry.rule
    has_it = rule is not None and rule.next_ms(nominal_ms - 1) == nominal_ms
    return has_it and nominal_ms >= entry.since_ms


def unit_of(label: str) -> str:
    """Return whether a label is a day, an hour or an exact moment.

    Raises:
        ScheduleError: SYNTAX.
    """
    try:
        return checked_unit(label)
    except ValueError as error:
        raise ScheduleError("SYNTAX", str(error)) from None


class _Recorded:
    """Which nominal times of a schedule have a run, or had one."""

    def __init__(self, items: list[history.Item], entry: Entry) -> None:
        self._entry = entry
        self._dropped: list[tuple[int, int]] = []
        self._runs = {run.nominal_ms for run in entry.all_live() if run.tag[:1] != "!"}
        for item in items:
            record = history.decode(item)
            if record.tag.startswith("!"):
                continue
            if record.outcome in DROPPED and not record.job_id:
                self._dropped.append((record.first_ms, record.last_ms))
            else:
                self._runs.add(record.first_ms)
        plan = entry.extra.plan
        self._runs.update(() if plan is None else plan.times)

    def may_be_made(self, ms: int) -> bool:
        """Return whether a time has no run yet: it was dropped, or never decided."""
        if ms in self._runs:
            return False
        was_dropped = any(first <= ms <= last for first, last in self._dropped)
        return was_dropped or not self._entry.was_filled(ms)


def _told(when_ms: int) -> str:
    """Return a moment for an error; calendars end before what a command may name."""
    return time_text(when_ms) if when_ms < HORIZON_MS else str(when_ms)
