/* wd_view.c -- reading a job as it stands, on the wall clock. */
#include "wd_state.h"

static const char *const state_names[] = {
    [WD_FREE] = "unknown",        [WD_SCHEDULED] = "scheduled", [WD_HELD] = "held",
    [WD_READY] = "ready",         [WD_LEASED] = "leased",       [WD_DEAD] = "dead",
    [WD_SUCCEEDED] = "succeeded", [WD_CANCELLED] = "cancelled", [WD_EXPIRED] = "expired",
};

const char *wd_state_name(int state)
{
    WD_ASSERT(state >= WD_FREE && state <= WD_EXPIRED);
    return state_names[state];
}

const char *wd_reason_name(int reason)
{
    switch ((enum wd_reason)reason) {
    case WD_BY_FAIL:
        return "failed";
    case WD_BY_TIMEOUT:
        return "timed_out";
    case WD_BY_LOSS:
        return "worker_lost";
    case WD_BY_RELEASE:
        return "released";
    case WD_BY_UNSENT:
        return "not_delivered";
    case WD_BY_SERVER:
        return "server_restarted";
    case WD_BY_DEAD:
        return "rejected";
    case WD_BY_CORRUPT:
        return "corrupt";
    }
    return "none";
}

/* What stands before the next line feed, or all of it; *rest is what stands behind. */
static wd_span cut_line(wd_span *rest)
{
    wd_span line = *rest;
    const uint8_t *end = line.n ? memchr(line.p, '\n', line.n) : NULL;
    if (end) line.n = (size_t)(end - line.p);
    size_t used = line.n + (end != NULL);
    *rest = (wd_span){rest->p + used, rest->n - used};
    WD_ASSERT(used >= line.n);
    return line;
}

/* OWNER is a run id, and behind it, each behind a line feed, which no run id has, the nominal time
 * in ms and the logical date of the run. */
static void view_owner(wd_span owner, wd_span *run_id, wd_span *nominal, wd_span *date)
{
    *run_id = cut_line(&owner);
    *nominal = cut_line(&owner);
    *date = cut_line(&owner);
}

static void view_side(const wd_engine *e, const wd_side *b, wd_view *v)
{
    v->key = wd_text(e, b->key, b->key_len);
    v->meta = wd_text(e, b->meta, b->meta_len);
    v->group = wd_text(e, b->group, b->group_len);
    view_owner(wd_text(e, b->owner, b->owner_len), &v->run_id, &v->nominal, &v->date);
    v->text = wd_text(e, b->text, b->text_len);
    v->reason = b->reason;
    v->ended_ms = b->ended_ms;
    if (b->expire_ms != WD_NEVER_MS) v->expire_ms = wd_to_wall(e, b->expire_ms, b->expire_rel);
}

/* Nothing is left of what is over, although grace or a busy round may keep it a little longer. */
static int64_t left_ms(const wd_engine *e, int64_t end_ms)
{
    return end_ms > e->rel_ms ? end_ms - e->rel_ms : 0;
}

static void view_run(const wd_engine *e, const wd_job *row, const wd_run *run, wd_view *v)
{
    v->run = run;
    v->term = run->term;
    v->lsn_fence = run->lsn;
    v->started_ms = run->started_ms;
    v->lease_ms = run->lease_ms;
    v->worker = wd_text(e, run->worker, run->worker_len);
    if (row->state != WD_LEASED) return;
    v->due_ms = wd_to_wall(e, run->due_ms, (int)row->rel);
    v->lease_left_ms = left_ms(e, run->lease_end_ms);
    if (run->timeout_end_ms != WD_NEVER_MS) v->timeout_left_ms = left_ms(e, run->timeout_end_ms);
}

void wd_engine_view_slot(const wd_engine *e, uint32_t slot, wd_view *out)
{
    const wd_job *row = &e->rows[slot];
    WD_ASSERT(row->state != WD_FREE);
    *out = (wd_view){.id = wd_job_id(e->slab, slot),
                     .lsn = row->lsn,
                     .slot = slot,
                     .state = (int)row->state,
                     .due_ms = wd_to_wall(e, row->due_ms, (int)row->rel),
                     .created_ms = (int64_t)row->created_ms,
                     .expire_ms = WD_NEVER_MS,
                     .timeout_left_ms = WD_NEVER_MS,
                     .attempt = row->attempt,
                     .failures = row->failures,
                     .lost = row->lost,
                     .handler_number = row->handler,
                     .priority = (uint8_t)row->priority,
                     .marked = (uint8_t)row->marked,
                     .rel = (uint8_t)row->rel,
                     .handler = wd_handler_name(e->names, row->handler),
                     .payload = wd_text(e, row->payload, row->payload_len),
                     .policy = *wd_policy_at(e->names, row->policy)};
    const wd_side *b = wd_job_side(e->slab, row);
    if (b) view_side(e, b, out);
    const wd_run *run = wd_job_run(e->slab, row);
    if (run) view_run(e, row, run, out);
}

void wd_engine_view_grant(const wd_engine *e, uint32_t slot, wd_grant_view *out)
{
    const wd_job *row = &e->rows[slot];
    const wd_side *b = wd_job_side(e->slab, row);
    WD_ASSERT(row->state == WD_LEASED && b && b->run != WD_NIL);
    const wd_run *run = wd_run_at(e->slab, b->run);
    out->id = wd_job_id(e->slab, slot);
    out->term = run->term;
    out->lsn = run->lsn;
    out->due_ms = wd_to_wall(e, run->due_ms, (int)row->rel);
    out->attempt = row->attempt;
    out->lease_ms = run->lease_ms;
    out->timeout_ms = wd_policy_at(e->names, row->policy)->timeout_ms;
    out->handler = wd_handler_name(e->names, row->handler);
    out->key = wd_text(e, b->key, b->key_len);
    out->payload = wd_text(e, row->payload, row->payload_len);
    out->meta = wd_text(e, b->meta, b->meta_len);
    out->run_id = out->nominal = out->date = (wd_span){0};
    if (b->owner_len)
        view_owner(wd_text(e, b->owner, b->owner_len), &out->run_id, &out->nominal, &out->date);
}

int wd_engine_view(const wd_engine *e, uint64_t id, wd_view *out)
{
    uint32_t slot = wd_slab_find(e->slab, id);
    if (slot != WD_NIL) {
        wd_engine_view_slot(e, slot, out);
        return WD_OK;
    }
    const wd_ended *end = wd_ring_find(e->ring, id);
    if (!end) return WD_EGONE;
    *out = (wd_view){.id = id,
                     .slot = WD_NIL,
                     .state = end->state,
                     .expire_ms = WD_NEVER_MS,
                     .ended_ms = end->ended_ms,
                     .term = end->term,
                     .lsn_fence = end->lsn,
                     .handler_number = end->handler,
                     .handler = wd_handler_name(e->names, end->handler),
                     .text = wd_text(e, end->text, end->text_len)};
    return WD_OK;
}
