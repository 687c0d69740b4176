/* wd_apply.c -- record -> state. The same code runs live and at replay.
 *
 * It reads the record, the state and the frame's time, nothing else: no clock, no option, no free
 * memory, no randomness. Allocation comes first in each function, so that a failure changes
 * nothing. A record that does not fit the state is damage (WD_ECORRUPT): live, decide never makes
 * one.
 */
#include "wd_state.h"

/* The row that a record is about; WD_NIL = none, which is damage. */
static uint32_t row_of(const wd_engine *e, const wd_record *r)
{
    return r->fields & WD_F_ID ? wd_slab_find(e->slab, r->id) : WD_NIL;
}

static int due_is_legal(const wd_record *r)
{
    return r->due_ms >= 0 && r->due_ms < WD_DUE_MS_END;
}

/* The row's side block, made when absent. */
static wd_side *side_for(wd_engine *e, uint32_t slot)
{
    wd_job *row = &e->rows[slot];
    if (row->side == WD_NIL) row->side = wd_side_new(e->slab, slot);
    return wd_job_side(e->slab, row);
}

static int put_text(wd_engine *e, wd_span s, uint32_t *ref, uint16_t *len)
{
    uint32_t fresh;
    int status = wd_arena_put(e->arena, s, &fresh);
    if (status != WD_OK) return status;
    wd_arena_drop(e->arena, *ref, *len);
    *ref = fresh;
    *len = (uint16_t)s.n;
    return WD_OK;
}

/* ---- CREATED, REPLACED ---- */

/* The texts of a new job. Taken before anything is changed: references into the arena. */
enum { T_PAYLOAD = 0, T_KEY, T_META, T_GROUP, T_OWNER, TEXTS };
static const uint8_t string_of[TEXTS] = {WD_S_PAYLOAD, WD_S_KEY, WD_S_META, WD_S_GROUP, WD_S_OWNER};

static void drop_texts(wd_engine *e, const wd_record *r, const uint32_t *refs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i == T_PAYLOAD)
            wd_arena_drop_sealed(e->arena, refs[i], r->text[string_of[i]].n);
        else
            wd_arena_drop(e->arena, refs[i], r->text[string_of[i]].n);
    }
}

static int take_texts(wd_engine *e, const wd_record *r, uint32_t *refs)
{
    for (uint32_t i = 0; i < TEXTS; i++) {
        wd_span s = r->text[string_of[i]];
        int status = i == T_PAYLOAD ? wd_arena_put_sealed(e->arena, s, &refs[i])
                                    : wd_arena_put(e->arena, s, &refs[i]);
        if (status == WD_OK) continue;
        drop_texts(e, r, refs, i);
        return status;
    }
    return WD_OK;
}

/* Everything optional of a new job into its side block, which is made when there is any. */
static void set_optional(wd_engine *e, uint32_t slot, const wd_record *r, const uint32_t *refs)
{
    const uint32_t any = WD_F_KEY | WD_F_META | WD_F_GROUP | WD_F_OWNER | WD_F_EXPIRE;
    if (!(r->fields & any)) return;
    wd_side *b = side_for(e, slot);
    wd_arena_drop(e->arena, b->key, b->key_len);
    wd_arena_drop(e->arena, b->meta, b->meta_len);
    wd_arena_drop(e->arena, b->group, b->group_len);
    wd_arena_drop(e->arena, b->owner, b->owner_len);
    b->key = refs[T_KEY];
    b->meta = refs[T_META];
    b->group = refs[T_GROUP];
    b->owner = refs[T_OWNER];
    b->key_len = (uint8_t)r->text[WD_S_KEY].n;
    b->meta_len = (uint16_t)r->text[WD_S_META].n;
    b->group_len = (uint8_t)r->text[WD_S_GROUP].n;
    b->owner_len = (uint16_t)r->text[WD_S_OWNER].n;
    b->expire_ms = r->fields & WD_F_EXPIRE ? r->expire_ms : WD_NEVER_MS;
    b->expire_rel = (r->flags & WD_RF_EXPIRE_REL) != 0;
}

static int remember_once(wd_engine *e, const wd_record *r, int word)
{
    if (!(r->fields & WD_F_ONCE)) return WD_OK;
    return wd_ring_once(e->ring, &(wd_once){.token = wd_key_hash(e, r->text[WD_S_ONCE]),
                                            .id = r->id,
                                            .rel_ms = e->frame_rel_ms,
                                            .word = (uint8_t)word});
}

/* Does a new job fit the state, and is there room for all of it but its texts? */
static int check_new(wd_engine *e, const wd_record *r)
{
    const uint32_t must =
        WD_F_ID | WD_F_DUE | WD_F_AT | WD_F_FLAGS | WD_F_HANDLER | WD_F_POLICY | WD_F_PRIORITY;
    if ((r->fields & must) != must || !due_is_legal(r)) return WD_ECORRUPT;
    if (r->handler >= wd_handlers_count(e->names) || r->policy >= wd_policies_count(e->names))
        return WD_ECORRUPT;
    if (r->fields & WD_F_ONCE && wd_ring_once_count(e->ring) == WD_ONCE_MAX) return WD_EFULL;
    return wd_ready_reserve(&wd_handler_at(e->names, r->handler)->ready, r->priority);
}

/* Fill a row, fresh or unplaced, from the record, and place it. */
static void fill_new(wd_engine *e, uint32_t slot, const wd_record *r, const uint32_t *refs,
                     int word)
{
    wd_job *row = &e->rows[slot];
    int status = remember_once(e, r, word);
    WD_ASSERT(status == WD_OK); /* check_new */
    set_optional(e, slot, r, refs);
    row->payload = refs[T_PAYLOAD];
    row->payload_len = (uint32_t)r->text[WD_S_PAYLOAD].n & 0xffffff;
    row->handler = r->handler;
    row->policy = r->policy;
    row->priority = r->priority;
    row->due_ms = r->due_ms;
    row->rel = (r->flags & WD_RF_REL) != 0;
    row->created_ms = (uint64_t)r->at_ms & 0xffffffffffff;
    row->lsn = e->lsn + 1;
    if (r->fields & WD_F_KEY) wd_key_add(e, slot);
    wd_set_state(e, slot, r->flags & WD_RF_HELD ? WD_HELD : WD_SCHEDULED);
    if (row->state == WD_SCHEDULED) wd_place(e, slot);
}

static int apply_created(wd_engine *e, const wd_record *r)
{
    uint32_t slot, refs[TEXTS];
    int status = check_new(e, r);
    if (status != WD_OK) return status;
    int compares = r->fields & WD_F_KEY && !wd_is_fuzzy(e);
    if (compares && wd_key_find(e, r->text[WD_S_KEY]) != WD_NIL) return WD_ECORRUPT;
    status = take_texts(e, r, refs);
    if (status != WD_OK) return status;
    status = wd_slab_claim(e->slab, r->id, &slot);
    if (status != WD_OK) {
        drop_texts(e, r, refs, TEXTS);
        return status;
    }
    fill_new(e, slot, r, refs, WD_A_CREATED);
    if (e->serving) e->stats.created++;
    return WD_OK;
}

/* A live job is made anew under its id: everything as in a fresh SCHEDULE. Only a key finds it. */
static int apply_replaced(wd_engine *e, const wd_record *r)
{
    uint32_t slot = row_of(e, r), refs[TEXTS];
    int status = slot == WD_NIL || !(r->fields & WD_F_KEY) ? WD_ECORRUPT : check_new(e, r);
    if (status != WD_OK) return status;
    wd_job *row = &e->rows[slot];
    if (row->state != WD_SCHEDULED && row->state != WD_READY && row->state != WD_HELD)
        return WD_ECORRUPT;
    if (!wd_is_fuzzy(e) && wd_key_find(e, r->text[WD_S_KEY]) != slot) return WD_ECORRUPT;
    status = take_texts(e, r, refs);
    if (status != WD_OK) return status;
    wd_unplace(e, slot);
    wd_key_remove(e, slot);
    wd_arena_drop_sealed(e->arena, row->payload, row->payload_len);
    wd_side *b = side_for(e, slot);
    wd_arena_drop(e->arena, b->text, b->text_len); /* of the attempts before */
    b->text = WD_NIL;
    b->text_len = 0;
    wd_run *run = wd_job_run(e->slab, row);
    if (run) run->fence = WD_FENCE_CLOSED; /* it named the job that was */
    row->failures = row->lost = 0;
    wd_set_state(e, slot, WD_FREE);
    fill_new(e, slot, r, refs, WD_A_REPLACED);
    return WD_OK;
}

/* ---- grants ---- */

static int apply_leased(wd_engine *e, const wd_record *r)
{
    uint32_t slot = row_of(e, r);
    if (slot == WD_NIL || !(r->fields & WD_F_LEASE)) return WD_ECORRUPT;
    wd_job *row = &e->rows[slot];
    if (row->state != WD_SCHEDULED && row->state != WD_READY) return WD_ECORRUPT;
    uint32_t worker;
    int status = wd_arena_put(e->arena, r->text[WD_S_WORKER], &worker);
    if (status != WD_OK) return status;
    wd_side *b = side_for(e, slot);
    if (b->run == WD_NIL) b->run = wd_run_new(e->slab);
    wd_run *run = wd_run_at(e->slab, b->run);
    wd_arena_drop(e->arena, run->worker, run->worker_len);
    run->worker = worker;
    run->worker_len = (uint8_t)r->text[WD_S_WORKER].n;
    wd_unplace(e, slot);
    run->term = e->apply_term;
    run->lsn = e->lsn + 1;
    run->due_ms = row->due_ms;
    run->started_ms = r->at_ms;
    run->lease_ms = r->lease_ms;
    run->fence = WD_FENCE_LIVE;
    run->unheard = 0;
    row->attempt = (uint32_t)r->number;
    row->lsn = e->lsn + 1;
    wd_set_state(e, slot, WD_LEASED);
    wd_list_add(e, &e->leased, slot);
    if (!e->serving) return WD_OK;
    uint32_t timeout_ms = wd_policy_at(e->names, row->policy)->timeout_ms;
    run->lease_end_ms = e->rel_ms + run->lease_ms;
    run->timeout_end_ms = timeout_ms ? e->rel_ms + timeout_ms : WD_NEVER_MS;
    wd_arm_lease(e, slot);
    return WD_OK;
}

/* The attempt in run is over: into its list, the oldest falling out. */
static void keep_attempt(const wd_job *row, wd_run *run, const wd_record *r)
{
    if (run->attempts_count == WD_ATTEMPTS_KEPT) {
        memmove(run->attempts, run->attempts + 1, (WD_ATTEMPTS_KEPT - 1) * sizeof *run->attempts);
        run->attempts_count--;
    }
    run->attempts[run->attempts_count++] = (wd_attempt){.started_ms = run->started_ms,
                                                        .ended_ms = r->at_ms,
                                                        .attempt = row->attempt,
                                                        .reason = r->reason};
}

static uint8_t fence_after(int reason)
{
    switch ((enum wd_reason)reason) {
    case WD_BY_FAIL:
    case WD_BY_DEAD:
        return WD_FENCE_FAILED;
    case WD_BY_RELEASE:
        return WD_FENCE_RELEASED;
    case WD_BY_TIMEOUT:
    case WD_BY_LOSS:
    case WD_BY_SERVER:
        return WD_FENCE_OPEN;
    case WD_BY_UNSENT:
    case WD_BY_CORRUPT:
        break;
    }
    return WD_FENCE_CLOSED;
}

/* RETRY and DIED begin alike: the leased row, its run, its text. */
static int end_attempt(wd_engine *e, const wd_record *r, uint32_t *out_slot)
{
    uint32_t slot = row_of(e, r);
    if (slot == WD_NIL || e->rows[slot].state != WD_LEASED) return WD_ECORRUPT;
    wd_job *row = &e->rows[slot];
    wd_side *b = wd_job_side(e->slab, row);
    WD_ASSERT(b && b->run != WD_NIL);
    wd_run *run = wd_run_at(e->slab, b->run);
    if (r->fields & WD_F_TEXT) {
        int status = put_text(e, r->text[WD_S_TEXT], &b->text, &b->text_len);
        if (status != WD_OK) return status;
    }
    wd_unplace(e, slot);
    keep_attempt(row, run, r);
    run->fence = fence_after(r->reason);
    row->failures = r->failures;
    row->lost = r->lost;
    row->lsn = e->lsn + 1;
    row->marked = 0;
    *out_slot = slot;
    return WD_OK;
}

static int apply_retry(wd_engine *e, const wd_record *r)
{
    uint32_t slot;
    if (!due_is_legal(r)) return WD_ECORRUPT;
    int status = end_attempt(e, r, &slot);
    if (status != WD_OK) return status;
    e->rows[slot].due_ms = r->due_ms;
    e->rows[slot].rel = (r->flags & WD_RF_REL) != 0;
    wd_set_state(e, slot, WD_SCHEDULED);
    wd_place(e, slot);
    return WD_OK;
}

static int end_in_ring(wd_engine *e, const wd_record *r, int state, int verb)
{
    if (r->handler >= wd_handlers_count(e->names)) return WD_ECORRUPT;
    wd_ended entry = {.id = r->id,
                      .term = r->fence_term,
                      .lsn = r->fence_lsn,
                      .ended_ms = r->at_ms,
                      .rel_ms = e->frame_rel_ms,
                      .handler = r->handler,
                      .state = (uint8_t)state,
                      .verb = (uint8_t)verb};
    if (r->fields & WD_F_KEY) entry.key = wd_key_hash(e, r->text[WD_S_KEY]);
    return wd_ring_end(e->ring, &entry, r->text[WD_S_TEXT]);
}

static int apply_died(wd_engine *e, const wd_record *r)
{
    uint32_t slot;
    if (wd_ring_ended_count(e->ring) == WD_ENDED_MAX) return WD_EFULL;
    if (r->handler >= wd_handlers_count(e->names)) return WD_ECORRUPT;
    int status = end_attempt(e, r, &slot);
    if (status != WD_OK) return status;
    wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
    b->reason = r->reason;
    b->ended_ms = r->at_ms;
    if (fence_after(r->reason) != WD_FENCE_FAILED)
        wd_run_at(e->slab, b->run)->fence = WD_FENCE_CLOSED;
    wd_key_remove(e, slot);
    wd_set_state(e, slot, WD_DEAD);
    wd_dead_add(e, slot);
    if (b->owner_len) wd_ended_add(e, e->rows[slot].side);
    return r->fields & WD_F_KEY ? end_in_ring(e, r, WD_DEAD, WD_V_SERVER) : WD_OK;
}

static int apply_ended(wd_engine *e, const wd_record *r)
{
    uint32_t slot = row_of(e, r);
    int state = r->reason;
    if (slot == WD_NIL || state < WD_SUCCEEDED || state > WD_EXPIRED) return WD_ECORRUPT;
    wd_job *row = &e->rows[slot];
    if (row->state > WD_LEASED) return WD_ECORRUPT;
    if (wd_ring_ended_count(e->ring) == WD_ENDED_MAX) return WD_EFULL;
    if (r->handler >= wd_handlers_count(e->names)) return WD_ECORRUPT;
    wd_side *b = wd_job_side(e->slab, row);
    int status = WD_OK;
    if (b && b->owner_len && r->fields & WD_F_TEXT) /* for its owner, until CLOSED */
        status = put_text(e, r->text[WD_S_TEXT], &b->text, &b->text_len);
    if (status != WD_OK) return status;
    status = end_in_ring(e, r, state, (int)r->number);
    WD_ASSERT(status == WD_OK);
    wd_unplace(e, slot);
    if (!b || !b->owner_len) {
        wd_job_free(e, slot);
        return WD_OK;
    }
    wd_key_remove(e, slot);
    b->ended_ms = r->at_ms;
    row->lsn = e->lsn + 1;
    wd_set_state(e, slot, state);
    wd_ended_add(e, row->side);
    return WD_OK;
}

/* ---- small changes of one job ---- */

static int apply_extended(wd_engine *e, const wd_record *r)
{
    uint32_t slot = row_of(e, r);
    if (slot == WD_NIL || e->rows[slot].state != WD_LEASED) return WD_ECORRUPT;
    wd_job_run(e->slab, &e->rows[slot])->lease_ms = r->lease_ms;
    e->rows[slot].lsn = e->lsn + 1;
    return WD_OK;
}

static int apply_marked(wd_engine *e, const wd_record *r)
{
    uint32_t slot = row_of(e, r);
    if (slot == WD_NIL || e->rows[slot].state != WD_LEASED) return WD_ECORRUPT;
    e->rows[slot].marked = 1;
    e->rows[slot].lsn = e->lsn + 1;
    return WD_OK;
}

static void notify_owner(wd_engine *e, uint32_t slot)
{
    const wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
    if (b && b->owner_len) wd_ended_add(e, e->rows[slot].side);
}

/* MOVED, UNHELD, REQUEUED: another due time; UNHELD and REQUEUED also change the state. */
static int apply_moved(wd_engine *e, const wd_record *r)
{
    uint32_t slot = row_of(e, r);
    if (slot == WD_NIL || !due_is_legal(r)) return WD_ECORRUPT;
    wd_job *row = &e->rows[slot];
    int held = row->state == WD_HELD, dead = row->state == WD_DEAD;
    if (r->kind == WD_R_UNHELD && !held) return WD_ECORRUPT;
    if (r->kind == WD_R_REQUEUED && !dead) return WD_ECORRUPT;
    if (r->kind == WD_R_MOVED && !held && row->state != WD_SCHEDULED && row->state != WD_READY)
        return WD_ECORRUPT;
    wd_unplace(e, slot);
    row->due_ms = r->due_ms;
    row->rel = (r->flags & WD_RF_REL) != 0;
    row->lsn = e->lsn + 1;
    if (dead) {
        wd_side *b = wd_job_side(e->slab, row);
        row->failures = row->lost = 0;
        if (b->key_len) wd_key_add(e, slot);
        b->reason = 0;
        b->ended_ms = 0;
    }
    if (r->kind != WD_R_UNHELD || r->reason == WD_UNHELD_BY_USER) notify_owner(e, slot);
    if (held && r->kind == WD_R_MOVED) return WD_OK;
    wd_set_state(e, slot, WD_SCHEDULED);
    wd_place(e, slot);
    return WD_OK;
}

static int apply_purged(wd_engine *e, const wd_record *r)
{
    uint32_t slot = row_of(e, r);
    if (slot == WD_NIL || e->rows[slot].state != WD_DEAD) return WD_ECORRUPT;
    wd_unplace(e, slot);
    const wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
    if (b->owner_len) { /* its owner has to see that it is gone: CLOSED frees it */
        wd_set_state(e, slot, WD_CANCELLED);
        wd_ended_add(e, e->rows[slot].side);
        e->rows[slot].lsn = e->lsn + 1;
        return WD_OK;
    }
    wd_job_free(e, slot);
    return WD_OK;
}

static int apply_closed(wd_engine *e, const wd_record *r)
{
    uint32_t slot = row_of(e, r);
    if (slot == WD_NIL || e->rows[slot].side == WD_NIL) return WD_ECORRUPT;
    wd_ended_remove(e, e->rows[slot].side);
    e->rows[slot].lsn = e->lsn + 1;
    if (e->rows[slot].state >= WD_SUCCEEDED) wd_job_free(e, slot);
    return WD_OK;
}

/* ---- names, settings, tables, rings, clock ---- */

static int apply_handler_set(wd_engine *e, const wd_record *r)
{
    wd_span blob = r->text[WD_S_BLOB];
    if (r->handler >= wd_handlers_count(e->names) || blob.n != sizeof(wd_settings))
        return WD_ECORRUPT;
    wd_handler *h = wd_handler_at(e->names, r->handler);
    memcpy(&h->settings, blob.p, sizeof h->settings);
    h->policy = WD_NO_POLICY;
    if (h->ready.count) wd_engine_mark_dirty(e, r->handler);
    return WD_OK;
}

static int apply_policy(wd_engine *e, const wd_record *r)
{
    wd_policy p;
    if (r->text[WD_S_BLOB].n != sizeof p) return WD_ECORRUPT;
    memcpy(&p, r->text[WD_S_BLOB].p, sizeof p);
    return wd_policy_add(e->names, r->policy, &p);
}

static int apply_table(wd_engine *e, const wd_record *r)
{
    wd_span key = r->text[WD_S_NAME];
    if (key.n == 0 || key.n > WD_TABLE_KEY_BYTES_MAX) return WD_ECORRUPT;
    if (r->kind == WD_R_PUT) return wd_table_put(e->table, r->reason, key, r->text[WD_S_BLOB]);
    return wd_table_del(e->table, r->reason, key) == WD_OK ? WD_OK : WD_ECORRUPT;
}

static int apply_drop(wd_engine *e, const wd_record *r)
{
    int once = r->kind == WD_R_ONCE_DROPPED;
    uint64_t have = once ? wd_ring_once_count(e->ring) : wd_ring_ended_count(e->ring);
    if (r->number <= 0 || (uint64_t)r->number > have) return WD_ECORRUPT;
    if (once)
        wd_ring_drop_once(e->ring, (uint64_t)r->number);
    else
        wd_ring_drop_ended(e->ring, (uint64_t)r->number);
    return WD_OK;
}

static int apply_clock(wd_engine *e, const wd_record *r)
{
    if (!(r->flags & WD_RF_ACCEPT)) return WD_OK; /* a step is told, it changes nothing by itself */
    e->logical_ms = r->at_ms;
    if (e->serving) wd_wheel_rebase(e->wall_wheel, r->at_ms);
    return WD_OK;
}

int wd_apply_beside(wd_engine *e, const wd_record *r)
{
    switch ((enum wd_kind)r->kind) {
    case WD_R_CREATED:
        return remember_once(e, r, WD_A_CREATED);
    case WD_R_REPLACED:
        return remember_once(e, r, WD_A_REPLACED);
    case WD_R_ENDED:
        return end_in_ring(e, r, r->reason, (int)r->number);
    case WD_R_DIED:
        return r->fields & WD_F_KEY ? end_in_ring(e, r, WD_DEAD, WD_V_SERVER) : WD_OK;
    default:
        return WD_OK;
    }
}

int wd_apply(wd_engine *e, const wd_record *r)
{
    switch ((enum wd_kind)r->kind) {
    case WD_R_HANDLER:
        return wd_handler_add(e->names, r->handler, r->text[WD_S_NAME]);
    case WD_R_POLICY:
        return apply_policy(e, r);
    case WD_R_HANDLER_SET:
        return apply_handler_set(e, r);
    case WD_R_CREATED:
        return apply_created(e, r);
    case WD_R_REPLACED:
        return apply_replaced(e, r);
    case WD_R_LEASED:
        return apply_leased(e, r);
    case WD_R_RETRY:
        return apply_retry(e, r);
    case WD_R_ENDED:
        return apply_ended(e, r);
    case WD_R_DIED:
        return apply_died(e, r);
    case WD_R_EXTENDED:
        return apply_extended(e, r);
    case WD_R_MARKED:
        return apply_marked(e, r);
    case WD_R_MOVED:
    case WD_R_UNHELD:
    case WD_R_REQUEUED:
        return apply_moved(e, r);
    case WD_R_PURGED:
        return apply_purged(e, r);
    case WD_R_PUT:
    case WD_R_DEL:
        return apply_table(e, r);
    case WD_R_CLOSED:
        return apply_closed(e, r);
    case WD_R_RING_DROPPED:
    case WD_R_ONCE_DROPPED:
        return apply_drop(e, r);
    case WD_R_CLOCK:
        return apply_clock(e, r);
    case WD_R_ONCE:
        return remember_once(e, r, r->reason);
    case WD_R_GENERATIONS:
        if (r->number < 1 || r->number > WD_GEN_MAX) return WD_ECORRUPT;
        wd_slab_raise(e->slab, (uint32_t)r->number);
        return WD_OK;
    }
    return r->kind & WD_RECORD_SKIPPABLE ? WD_OK : WD_ECORRUPT;
}
