"""Schedules and runs, as they are shown."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from wheel.cron import Rule
from wheel.engine import history
from wheel.engine.byhand import unit_of
from wheel.engine.change import DEFINITION
from wheel.engine.dag import State as Judged
from wheel.engine.dates import Date
from wheel.engine.definition import Definition, Kept, read_definition, read_kept, read_template
from wheel.engine.entries import Entry
from wheel.engine.planner import Planner
from wheel.engine.runs import Run, Stands, run_id


class Core(Protocol):
    """What showing needs of the core."""

    def table_get(self, kind: int, key: bytes) -> bytes | None:
        """Return the value of one entry."""
        ...

    def served(self, handler: bytes) -> bool:
        """Return whether anybody serves a handler."""
        ...


class Set(NamedTuple):
    """What became of a definition."""

    version: int
    word: str
    next_ms: int | None


class Upcoming(NamedTuple):
    """By what a schedule's next times are found.

    Attributes:
        rule: compiled; its times are on its own axis.
        first_ms: the first that is not decided; None: there is none.
        jitter_ms: bound of the jitter.
        end_ms: no nominal time after; None: without end.
        runs_left: of MAXRUNS; None: without end.
    """

    rule: Rule
    first_ms: int | None
    jitter_ms: int
    end_ms: int | None
    runs_left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A schedule, as it is shown.

    Attributes:
        definition: what was set.
        version: of it.
        state: ``active``, ``paused`` or ``ended``.
        zone: in force.
        next_ms: the next nominal time.
        fire_ms: and when it is due.
        created_ms: wall.
        changed_ms: wall.
        changed_by: who changed it last.
        paused_ms: wall, since when; 0 = is not.
        note: why, in somebody's words.
        actor: who paused it.
        runs: made so far; succeeded, failed, skipped, missed: what became of them.
        last_success_ms: nominal time of the last run that succeeded.
        active: live runs in the queue or handed out.
        waiting: live runs behind those.
        held: live runs that wait for upstreams.
        backfill_left: runs that a backfill is still to make.
        served: whether anybody serves the handler.
    """

    definition: Definition
    version: int
    state: str
    zone: str
    next_ms: int | None
    fire_ms: int | None
    created_ms: int
    changed_ms: int
    changed_by: str
    paused_ms: int
    note: str
    actor: str
    runs: int
    succeeded: int
    failed: int
    skipped: int
    missed: int
    last_success_ms: int | None
    active: int
    waiting: int
    held: int
    backfill_left: int
    served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What is shown of one of many schedules; as in ``Row`` and its definition."""

    name: str
    version: int
    state: str
    next_ms: int | None
    rule: str
    tz: str
    handler: str
    dag: str
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run, or nominal times that were dropped in a row, as it is shown.

    Attributes:
        run_id: of several the first one's.
        outcome: of Outcome; of a live run ``running``, ``waiting`` (behind another) or ``held``
            (for upstreams), or the outcome that holds it.
        reason: why.
        first_ms: nominal time; of several the first one's.
        last_ms: and the last one's.
        count: how many it stands for.
        label: the date that it is for.
        due_ms: when it was due; 0 = no job was made.
        started_ms: wall, when its last attempt began; 0 = not known, or never.
        ended_ms: wall; 0 = not yet.
        failures: of its attempts.
        lost: leases.
        job_id: 0 = no job was made.
        text: its error or result.
        note: of who marked it.
        actor: who that was.
    """

    run_id: str
    outcome: str
    reason: str
    first_ms: int
    last_ms: int
    count: int
    label: str
    due_ms: int
    started_ms: int
    ended_ms: int
    failures: int
    lost: int
    job_id: int
    text: bytes
    note: str
    actor: str


def state_of(entry: Entry) -> str:
    """Return ``active``, ``paused`` or ``ended``."""
    if entry.paused:
        return "paused"
    return "ended" if entry.settings.has_rule and entry.next_ms is None else "active"


class Shown:
    """Looks at schedules and their runs."""

    def __init__(self, planner: Planner, core: Core) -> None:
        self._planner = planner
        self._core = core

    def kept(self, name: str) -> Kept:
        """Return the definition of a schedule that is there."""
        blob = self._core.table_get(DEFINITION, name.encode())
        assert blob is not None, name
        return read_kept(blob)

    def brief(self, entry: Entry) -> Brief:
        """Return what is shown of a schedule among many: without decoding its payload."""
        blob = self._core.table_get(DEFINITION, entry.name.encode())
        assert blob is not None, entry.name
        settings = entry.settings
        return Brief(
            name=entry.name,
            version=entry.version,
            state=state_of(entry),
            next_ms=entry.next_ms,
            rule=settings.rule,
            tz=settings.tz,
            handler=read_template(blob).handler,
            dag=settings.dag,
            after=settings.after,
        )

    def row(self, entry: Entry) -> Row:
        """Return a schedule, as it is shown."""
        kept, extra = self.kept(entry.name), entry.extra
        definition = read_definition(entry.name, kept, entry.settings)
        stands = [run.stands for run in entry.all_live()]
        plan = extra.plan
        return Row(
            definition=definition,
            version=entry.version,
            state=state_of(entry),
            zone=entry.settings.zone,
            next_ms=entry.next_ms,
            fire_ms=entry.fire_ms,
            created_ms=kept.created_ms,
            changed_ms=kept.changed_ms,
            changed_by=kept.actor,
            paused_ms=extra.paused_ms,
            note=extra.note,
            actor=extra.actor,
            runs=entry.runs,
            succeeded=entry.succeeded,
            failed=entry.failed,
            skipped=entry.skipped,
            missed=entry.missed,
            last_success_ms=entry.last_success_ms,
            active=stands.count(Stands.ACTIVE),
            waiting=stands.count(Stands.WAITING),
            held=stands.count(Stands.HELD),
            backfill_left=0 if plan is None else len(plan.times) - plan.done,
            served=self._core.served(definition.handler.encode()),
        )

    def runs(self, entry: Entry, label: str, count: int, before: int) -> tuple[list[RunRow], int]:
        """Return a schedule's runs; see ``Scheduler.runs``."""
        if label:
            unit_of(label)
        rows = [self._live_row(run) for run in entry.all_live()]
        going = self._planner.store.going.get(entry.name)
        if going is not None:  # they are not cancelled yet, and nothing else can come of them
            rows += [
                replace(self._live_row(run), outcome="cancelled", reason=going.reason)
                for run in going.runs.values()
            ]
        rows += [self._row_of(entry, item) for item in self._planner.known.history(entry.name)]
        rows.sort(key=lambda row: (row.last_ms, row.run_id), reverse=True)
        if label:
            rows = [row for row in rows if self._is_on(entry, row, label)]
        found = rows[before : before + count]
        behind = before + len(found)
        return found, behind if behind < len(rows) else 0

    def _is_on(self, entry: Entry, row: RunRow, label: str) -> bool:
        if row.label == label:
            return True
        unit = Date(unit_of(label))
        first, last = (entry.zone.label(ms, unit) for ms in (row.first_ms, row.last_ms))
        return first <= label <= last

    def _live_row(self, run: Run) -> RunRow:
        outcome = {Stands.ACTIVE: "running", Stands.WAITING: "waiting", Stands.HELD: "held"}
        shown, reason = outcome[run.stands], "overlap" if run.stands is Stands.WAITING else ""
        if run.stands is Stands.HELD:
            held = self._planner.dependencies.held_run(run.name, run.nominal_ms)
            if held is not None and held.verdict.state is not Judged.RELEASE:
                shown = held.verdict.phase.value
                reason = f"{held.verdict.reason} {held.verdict.upstream}".strip()
        return RunRow(
            run_id=run.id,
            outcome=shown,
            reason=reason,
            first_ms=run.nominal_ms,
            last_ms=run.nominal_ms,
            count=1,
            label=run.label,
            due_ms=run.due_ms,
            started_ms=0,
            ended_ms=0,
            failures=0,
            lost=0,
            job_id=run.job_id,
            text=b"",
            note="",
            actor="",
        )

    def _row_of(self, entry: Entry, item: history.Item) -> RunRow:
        record = history.decode(item)
        return RunRow(
            run_id=run_id(entry.name, record.first_ms, record.tag),
            outcome=record.outcome.value,
            reason=record.reason,
            first_ms=record.first_ms,
            last_ms=record.last_ms,
            count=record.count,
            label=record.label,
            due_ms=record.due_ms,
            started_ms=record.started_ms,
            ended_ms=record.ended_ms,
            failures=record.failures,
            lost=record.lost,
            job_id=record.job_id,
            text=self._planner.ledger.text_of(entry, item),
            note=record.note,
            actor=record.actor,
        )
