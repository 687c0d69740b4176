"""A schedule between words and value: from CRON SET's spec, and into the maps that CRON answers."""

from server.cron_words import Retrying, Spec
from server.words import Moment
from wheel.engine.dag import AfterRule
from wheel.engine.dates import Date
from wheel.engine.definition import CatchUp, Definition, Overlap
from wheel.engine.records import Backoff, Policy
from wheel.engine.shown import Brief, Row, RunRow
from wheel.wire import Answer


def definition_of(spec: Spec, now_ms: int) -> Definition:
    """Return what a spec asks for; what it says from now on begins at ``now_ms``."""
    return Definition(
        name=spec.name,
        rule=spec.rule,
        handler=spec.handler,
        payload=spec.payload,
        tz=spec.tz,
        dst=spec.dst,
        jitter_ms=spec.jitter_ms,
        overlap=Overlap(spec.overlap),
        catch_up=CatchUp(spec.catch_up),
        window_ms=spec.window_ms,
        catch_up_max=spec.catch_up_max,
        after=spec.after,
        after_rule=AfterRule(spec.after_rule),
        date=Date(spec.date),
        dag=spec.dag,
        start_ms=_wall_ms(spec.start, now_ms),
        end_ms=_wall_ms(spec.end, now_ms),
        max_runs=spec.max_runs,
        priority=spec.priority,
        policy=Policy(
            retries=spec.retries,
            lost=spec.lost,
            backoff=_backoff(spec.backoff),
            lease_ms=spec.lease_ms,
            timeout_ms=spec.timeout_ms,
        ),
        expire_ms=spec.expire_ms,
        meta=spec.meta,
        group=spec.group,
    )


def schedule_map(row: Row) -> dict[str, Answer]:
    """Return the map of CRON GET; nil is what was not said or is not known."""
    return {
        **_brief_map(row.definition, row),
        "due_ms": row.fire_ms,
        "served": "yes" if row.served else "never",
        "running": row.active,
        "waiting": row.waiting,
        "held": row.held,
        "runs": row.runs,
        "succeeded": row.succeeded,
        "failed": row.failed,
        "skipped": row.skipped,
        "missed": row.missed,
        "backfill_left": row.backfill_left,
        "last_success_ms": row.last_success_ms,
        "created_ms": row.created_ms,
        "changed_ms": row.changed_ms,
        "changed_by": row.changed_by or None,
        "paused_ms": row.paused_ms or None,
        "note": row.note or None,
        "actor": row.actor or None,
        **_definition_map(row.definition),
    }


def schedule_row(row: Brief) -> dict[str, Answer]:
    """Return one map of CRON LIST: what one wants to see of many."""
    return _brief_map(row, row)


def _brief_map(what: Brief | Definition, row: Brief | Row) -> dict[str, Answer]:
    return {
        "name": what.name,
        "version": row.version,
        "state": row.state,
        "next_ms": row.next_ms,
        "rule": what.rule,
        "tz": what.tz,
        "handler": what.handler,
        "dag": what.dag or None,
        "after": list(what.after),
    }


def run_map(run: RunRow) -> dict[str, Answer]:
    """Return one map of CRON RUNS."""
    return {
        "run": run.run_id,
        "nominal_ms": run.first_ms,
        "last_ms": run.last_ms,
        "count": run.count,
        "date": run.label,
        "outcome": run.outcome,
        "reason": run.reason or None,
        "due_ms": run.due_ms or None,
        "started_ms": run.started_ms or None,
        "ended_ms": run.ended_ms or None,
        "failures": run.failures,
        "lost": run.lost,
        "job": str(run.job_id) if run.job_id else None,
        "text": run.text or None,
        "note": run.note or None,
        "actor": run.actor or None,
    }


def _definition_map(definition: Definition) -> dict[str, Answer]:
    policy = definition.policy
    kind, base_ms, max_ms = policy.backoff or (None, None, None)
    return {
        "payload": definition.payload,
        "dst": definition.dst,
        "jitter_ms": definition.jitter_ms,
        "overlap": definition.overlap.value,
        "catch_up": definition.catch_up.value,
        "window_ms": definition.window_ms,
        "catch_up_max": definition.catch_up_max,
        "after_rule": definition.after_rule.value,
        "date": definition.date.value,
        "start_ms": definition.start_ms,
        "end_ms": definition.end_ms,
        "max_runs": definition.max_runs,
        "priority": definition.priority,
        "retries": policy.retries,
        "lost_max": policy.lost,
        "backoff": None if kind is None else kind.name.lower(),
        "backoff_base_ms": base_ms,
        "backoff_max_ms": max_ms,
        "lease_ms": policy.lease_ms,
        "timeout_ms": policy.timeout_ms,
        "expire_ms": definition.expire_ms,
        "meta": definition.meta or None,
        "group": definition.group or None,
    }


def _wall_ms(moment: Moment | None, now_ms: int) -> int | None:
    return None if moment is None else moment.wall_ms(now_ms)


def _backoff(retrying: Retrying | None) -> tuple[Backoff, int, int] | None:
    if retrying is None:
        return None
    return Backoff[retrying.kind.upper()], retrying.base_ms, retrying.max_ms
