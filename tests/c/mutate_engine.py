"""Plant known faults in the engine: its tests must notice each.

    python -m tests.c.mutate_engine [--only TEXT]      (in the root of the checkout)

The tests of behaviours, submissions and restarts, and at last the model.
"""

from tests.c.planting import fault, plant

TESTS = [
    "tests/unit/test_behaviours.py",
    "tests/unit/test_restart.py",
    "tests/unit/test_submit.py",
    "tests/unit/test_engine_limits.py",
    "tests/property/test_engine_model.py",
]
OPTIONS = ["-p", "no:randomly", "--hypothesis-profile=planted"]
HANG_S = 300

FAULTS = [
    # leases and fences
    fault(
        "the term of a fence is not looked at",
        "wd_lease.c",
        "if (!run || run->lsn != r.lsn || run->term != r.term) return WD_NIL;",
        "if (!run || run->lsn != r.lsn) return WD_NIL;",
    ),
    fault(
        "any receipt of a job will do",
        "wd_lease.c",
        "if (!run || run->lsn != r.lsn || run->term != r.term) return WD_NIL;",
        "if (!run) return WD_NIL;",
    ),
    fault(
        "the receipt of an ended job is not compared",
        "wd_lease.c",
        "if (!end || end->lsn != r.lsn || end->term != r.term) return WD_NIL;",
        "if (!end) return WD_NIL;",
    ),
    fault(
        "a late FAIL counts as a late ACK does",
        "wd_lease.c",
        "run->fence == WD_FENCE_OPEN && (verb == WD_V_ACK || verb == WD_V_DONE)",
        "run->fence == WD_FENCE_OPEN",
    ),
    fault(
        "a late ACK does not count",
        "wd_lease.c",
        "return run->fence == WD_FENCE_OPEN && (verb == WD_V_ACK || verb == WD_V_DONE) ? slot",
        "return 0 ? slot",
    ),
    fault(
        "a repeated FAIL is stale",
        "wd_lease.c",
        "if (verb == WD_V_FAIL && run->fence == WD_FENCE_FAILED) *out_answer = WD_A_ALREADY;",
        "",
    ),
    fault(
        "no grace behind a lease",
        "wd_place.c",
        "return tenth > WD_GRACE_MS_MIN ? tenth : WD_GRACE_MS_MIN;",
        "return tenth < 0 ? tenth : 0;",
    ),
    fault(
        "the grace is a second, however long the lease",
        "wd_place.c",
        "return tenth > WD_GRACE_MS_MIN ? tenth : WD_GRACE_MS_MIN;",
        "return tenth < 0 ? tenth : WD_GRACE_MS_MIN;",
    ),
    fault(
        "a shorter EXTEND is noticed at the old end only",
        "wd_lease.c",
        "if (over_ms < e->rows[slot].due_ms) {",
        "if (0 && over_ms < e->rows[slot].due_ms) {",
    ),
    fault(
        "a heartbeat after a restart is forgotten",
        "wd_lease.c",
        "    run->unheard = 0;\n    int64_t over_ms",
        "    int64_t over_ms",
    ),
    fault(
        "a lease that lived through a restart counts as lost",
        "wd_lease.c",
        "else if (run->unheard)",
        "else if (0 && run->unheard)",
    ),
    fault(
        "no fresh term after a suspend",
        "wd_engine.c",
        "        wd_leases_refresh(e);\n    }\n    if (step_ms",
        "    }\n    if (step_ms",
    ),
    fault(
        "no fresh term after a restart",
        "wd_engine.c",
        "    e->serving = 1;\n    wd_leases_refresh(e);",
        "    e->serving = 1;",
    ),
    fault(
        "a time-out wins over a loss that came first",
        "wd_lease.c",
        "run->timeout_end_ms <= e->rel_ms && run->timeout_end_ms <= over_ms",
        "run->timeout_end_ms <= e->rel_ms",
    ),
    # counts
    fault(
        "a grant that did not arrive counts as lost",
        "wd_lease.c",
        "else if (retry_as_it_was(e, slot, WD_BY_UNSENT) == WD_A_OK)",
        "else if (lose(e, slot) == WD_A_RETRY)",
    ),
    fault("RELEASE forgets the due time", "wd_lease.c", "if (in_ms >= 0) {", "if (in_ms >= -1) {"),
    fault(
        "a job dies one failure early",
        "wd_lease.c",
        "r.failures > p->retries",
        "r.failures >= p->retries",
    ),
    fault(
        "a job dies one loss late",
        "wd_lease.c",
        "if (r.lost > p->lost)",
        "if (r.lost > p->lost + 1)",
    ),
    fault(
        "the first loss waits too", "wd_lease.c", "if (r.lost > 1) return", "if (r.lost > 0) return"
    ),
    fault(
        "losses share the failures' backoff",
        "wd_lease.c",
        "backoff_ms(e, p, r.lost - 1u)",
        "backoff_ms(e, p, r.lost + r.failures)",
    ),
    fault("backoff is not capped", "wd_lease.c", "if (delay > most) delay = most;", "(void)most;"),
    fault(
        "exponential backoff starts at the second step",
        "wd_lease.c",
        "uint32_t doublings = k - 1 < 32 ? k - 1 : 32;",
        "uint32_t doublings = k < 32 ? k : 32;",
    ),
    fault(
        "REQUEUE keeps the failures",
        "wd_apply.c",
        "        row->failures = row->lost = 0;\n        if (b->key_len)",
        "        if (b->key_len)",
    ),
    # keys, windows, tokens
    fault(
        "a dead job keeps its key",
        "wd_apply.c",
        "    wd_key_remove(e, slot);\n    wd_set_state(e, slot, WD_DEAD);",
        "    wd_set_state(e, slot, WD_DEAD);",
    ),
    fault(
        "the window is a ms too long",
        "wd_decide.c",
        "e->rel_ms - end->rel_ms >= job->window_ms",
        "e->rel_ms - end->rel_ms > job->window_ms",
    ),
    fault(
        "ONCE is not remembered",
        "wd_apply.c",
        "if (!(r->fields & WD_F_ONCE)) return WD_OK;\n",
        "return WD_OK;\n",
    ),
    fault(
        "ONCE is remembered for ever",
        "wd_ring.c",
        "x->o.rel_ms + WD_ONCE_KEPT_MS > rel_ms ? &x->o : NULL",
        "rel_ms ? &x->o : NULL",
    ),
    fault(
        "a token that found a job is not remembered",
        "wd_decide.c",
        "    if (job->once.n) {\n        wd_record r = {.kind = WD_R_ONCE,",
        "    if (0) {\n        wd_record r = {.kind = WD_R_ONCE,",
    ),
    fault(
        "REPLACE keeps the failures",
        "wd_apply.c",
        "    row->failures = row->lost = 0;\n    wd_set_state(e, slot, WD_FREE);",
        "    wd_set_state(e, slot, WD_FREE);",
    ),
    fault(
        "a leased job is replaced",
        "wd_decide.c",
        "if (e->rows[slot].state == WD_LEASED) return found(e, WD_A_CONFLICT, id, out);",
        "",
    ),
    fault(
        "REQUEUE takes the key of a live job",
        "wd_decide.c",
        "if (b->key_len && wd_key_find(e, wd_text(e, b->key, b->key_len)) != WD_NIL)\n",
        "if (b->key_len > 255)\n",
    ),
    # time
    fault(
        "a job is ready a ms before it is due",
        "wd_place.c",
        "if (row->due_ms <= (row->rel ? e->rel_ms : e->clocks.wall_ms))",
        "if (row->due_ms <= (row->rel ? e->rel_ms : e->clocks.wall_ms) + 1)",
    ),
    fault(
        "the wall wheel moves while the clock is held",
        "wd_engine.c",
        "if (e->clocks.wall_ms >= e->logical_ms) more |=",
        "more |=",
    ),
    fault(
        "relative times follow the wall clock",
        "wd_decide.c",
        "w.kind == WD_WHEN_REL ? wd_after(e, w.ms) : w.ms",
        "w.kind == WD_WHEN_REL ? e->clocks.wall_ms + w.ms : w.ms",
    ),
    fault(
        "CLOCK ACCEPT does not move the wheel",
        "wd_apply.c",
        "if (e->serving) wd_wheel_rebase(e->wall_wheel, r->at_ms);",
        "",
    ),
    fault(
        "CLOCK ACCEPT is forgotten at a restart",
        "wd_apply.c",
        "    e->logical_ms = r->at_ms;\n",
        "    if (e->serving) e->logical_ms = r->at_ms;\n",
    ),
    fault(
        "logical now is not taken from the log",
        "wd_replay.c",
        "if (m->wall_ms > e->logical_ms) e->logical_ms = m->wall_ms;",
        "",
    ),
    fault(
        "an expired job is handed out",
        "wd_lease.c",
        "if (is_expired(e, slot)) {",
        "if (0 && is_expired(e, slot)) {",
    ),
    fault(
        "the sweep slows down with what it ends",
        "wd_engine.c",
        "        ends++;\n",
        "        ends++;\n        left -= left > 0;\n",
    ),
    # what may be handed out
    fault("paused handlers are served", "wd_lease.c", "return !h->settings.paused &&", "return"),
    fault(
        "one lease more than the limit",
        "wd_lease.c",
        "h->count[WD_LEASED] < h->settings.concurrency",
        "h->count[WD_LEASED] <= h->settings.concurrency",
    ),
    fault(
        "the same handler is served again and again",
        "wd_lease.c",
        "h->served_at = ++e->turn;",
        "++e->turn;",
    ),
    fault(
        "what comes out of order stands at the tail",
        "wd_ready.c",
        "if (f->tail != WD_NIL && row->due_ms < rows[f->tail].due_ms && heap_grow(q) == WD_OK) {",
        "if (0) {",
    ),
    fault(
        "a room that gets free wakes nobody",
        "wd_place.c",
        "if (wd_handler_at(e->names, row->handler)->ready.count) ",
        "if (0) ",
    ),
    fault(
        "RESUME wakes nobody",
        "wd_apply.c",
        "if (h->ready.count) wd_engine_mark_dirty(e, r->handler);",
        "",
    ),
    # ends, owners, restarts
    fault(
        "a marked job is retried",
        "wd_lease.c",
        "if (e->rows[slot].marked) return end_marked(e, slot, WD_V_FAIL);",
        "",
    ),
    fault(
        "an owned job is gone with its end",
        "wd_apply.c",
        "if (!b || !b->owner_len) {\n        wd_job_free(e, slot);",
        "if (1) {\n        wd_job_free(e, slot);",
    ),
    fault(
        "RUN of a held job is kept from its owner",
        "wd_apply.c",
        "if (r->kind != WD_R_UNHELD || r->reason == WD_UNHELD_BY_USER) notify_owner",
        "if (r->kind != WD_R_UNHELD) notify_owner",
    ),
    fault(
        "the replay believes in a list of free slots",
        "wd_slab.c",
        "s->free_head = s->free_tail = WD_NIL;\n    s->rows = wd_reserve",
        "s->free_head = s->free_tail = WD_NIL;\n    s->linked = 1;\n    s->rows = wd_reserve",
    ),
    fault(
        "a DIED record forgets its text at the replay",
        "wd_apply.c",
        "if (r->fields & WD_F_TEXT) {",
        "if (r->fields & WD_F_TEXT && e->serving) {",
    ),
]

if __name__ == "__main__":
    raise SystemExit(plant(FAULTS, [*OPTIONS, *TESTS], hang_s=HANG_S))
