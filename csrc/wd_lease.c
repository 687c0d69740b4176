/* wd_lease.c -- grants, the verbs on receipts, and leases that run out.
 *
 * Lease ends are not logged: a restart gives every live lease a full fresh term, so renewing one
 * within its logged term is one store, and the wheel looks again when the old end comes.
 */
#include "wd_state.h"

enum { CACHE_LINE_BYTES = 64 };

/* What the dead list says of a job whose payload changed in memory; an operator reads it. */
#define CORRUPT_TEXT                                                                               \
    "the payload changed in memory, and was given to nobody: requeue the job when the server has " \
    "put it back from the disk (payload_mended in its log), or restart the server before"

/* ---- LEASE ---- */

static int has_room(const wd_handler *h)
{
    return !h->settings.paused &&
           (h->settings.concurrency == 0 || h->count[WD_LEASED] < h->settings.concurrency);
}

int wd_engine_has_work(const wd_engine *e, uint32_t handler)
{
    const wd_handler *h = wd_handler_at(e->names, handler);
    return h->ready.count > 0 && has_room(h);
}

static int is_expired(const wd_engine *e, uint32_t slot)
{
    const wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
    if (!b || b->expire_ms == WD_NEVER_MS) return 0;
    return b->expire_ms <= (b->expire_rel ? e->rel_ms : e->clocks.wall_ms);
}

static int end_expired(wd_engine *e, uint32_t slot)
{
    int status = wd_end(e, slot, WD_EXPIRED, WD_V_SERVER, (wd_span){0});
    if (status == WD_OK) e->stats.expired++;
    return status;
}

/* What comes into use soon: the payload when the reply is written, and the queue's job after the
 * next one, which was fetched a grant ago. They lie where a schedule put them, long ago. */
static void fetch_ahead(const wd_engine *e, const wd_job *row)
{
    const uint8_t *payload = wd_arena_at(e->arena, row->payload);
    if (payload) {
        __builtin_prefetch(payload);
        __builtin_prefetch(payload + CACHE_LINE_BYTES);
    }
    if (row->next == WD_NIL) return;
    uint32_t second = e->rows[row->next].next;
    if (second != WD_NIL) __builtin_prefetch(&e->rows[second], 1);
}

static int grant(wd_engine *e, uint32_t slot, const wd_lease_ask *ask)
{
    const wd_job *row = &e->rows[slot];
    fetch_ahead(e, row);
    const wd_policy *policy = wd_policy_at(e->names, row->policy);
    wd_record r = {.kind = WD_R_LEASED,
                   .fields = WD_F_ID | WD_F_AT | WD_F_LEASE | WD_F_NUMBER,
                   .id = wd_job_id(e->slab, slot),
                   .at_ms = e->clocks.wall_ms,
                   .lease_ms = ask->lease_ms ? ask->lease_ms : policy->lease_ms,
                   .number = (int64_t)row->attempt + 1};
    wd_record_set(&r, WD_S_WORKER, ask->worker);
    int status = wd_log_record(e, &r);
    if (status == WD_OK) e->stats.leased++;
    return status;
}

/* The handler to serve next: of those asked for that have work, the least recently served.
 * *out_unserved = how many of them were not served since turn `since`. */
static uint32_t next_handler(const wd_engine *e, const wd_lease_ask *ask, uint64_t since,
                             uint32_t *out_unserved)
{
    uint32_t best = WD_NIL;
    *out_unserved = 0;
    for (uint32_t i = 0; i < ask->handlers_count; i++) {
        uint32_t n = ask->handlers[i];
        if (!wd_engine_has_work(e, n)) continue;
        *out_unserved += wd_handler_at(e->names, n)->served_at <= since;
        if (best == WD_NIL ||
            wd_handler_at(e->names, n)->served_at < wd_handler_at(e->names, best)->served_at)
            best = n;
    }
    return best;
}

static uint32_t grant_some(wd_engine *e, const wd_lease_ask *ask, uint32_t *out_slots)
{
    uint32_t got = 0, unserved;
    uint64_t payload_bytes = 0, since = e->turn;
    WD_ASSERT(ask->count >= 1 && ask->count <= WD_LEASE_COUNT_MAX);
    while (got < ask->count && payload_bytes < WD_LEASE_PAYLOAD_BYTES_MAX) {
        uint32_t number = next_handler(e, ask, since, &unserved);
        if (number == WD_NIL) break;
        if (unserved == 0) { /* each had its share: what is left is shared out anew */
            since = e->turn;
            continue;
        }
        wd_handler *h = wd_handler_at(e->names, number);
        uint32_t share = (ask->count - got + unserved - 1) / unserved;
        h->served_at = ++e->turn;
        for (; share > 0 && payload_bytes < WD_LEASE_PAYLOAD_BYTES_MAX &&
               wd_engine_has_work(e, number);
             share--) {
            uint32_t slot = wd_ready_first(&h->ready, e->rows);
            if (is_expired(e, slot)) {
                if (end_expired(e, slot) != WD_OK) return got;
                continue;
            }
            uint32_t bytes = e->rows[slot].payload_len;
            if (got > 0 && payload_bytes + bytes > WD_LEASE_PAYLOAD_BYTES_MAX) return got;
            if (grant(e, slot, ask) != WD_OK) return got;
            out_slots[got++] = slot;
            payload_bytes += bytes;
        }
    }
    return got;
}

/* ---- receipts ---- */

/* The row whose newest grant the receipt names; WD_NIL with the answer otherwise.
 * spent_by: the answer is ALREADY if this verb is what ended the job. */
static uint32_t holder(const wd_engine *e, wd_receipt r, int verb, int *out_answer)
{
    uint32_t slot = wd_slab_find(e->slab, r.id);
    if (slot == WD_NIL) {
        const wd_ended *end = wd_ring_find(e->ring, r.id);
        *out_answer = !end ? WD_A_UNKNOWN : WD_A_STALE;
        if (!end || end->lsn != r.lsn || end->term != r.term) return WD_NIL;
        int ack = verb == WD_V_ACK || verb == WD_V_DONE;
        int acked = end->verb == WD_V_ACK || end->verb == WD_V_DONE;
        if (ack ? acked : end->verb == verb) *out_answer = WD_A_ALREADY;
        return WD_NIL;
    }
    const wd_run *run = wd_job_run(e->slab, &e->rows[slot]);
    *out_answer = WD_A_STALE;
    if (!run || run->lsn != r.lsn || run->term != r.term) return WD_NIL;
    if (e->rows[slot].state >= WD_SUCCEEDED) { /* kept for its owner */
        int acked = e->rows[slot].state == WD_SUCCEEDED && (verb == WD_V_ACK || verb == WD_V_DONE);
        if (acked) *out_answer = WD_A_ALREADY;
        return WD_NIL;
    }
    if (verb == WD_V_FAIL && run->fence == WD_FENCE_FAILED) *out_answer = WD_A_ALREADY;
    if (verb == WD_V_RELEASE && run->fence == WD_FENCE_RELEASED) *out_answer = WD_A_ALREADY;
    if (run->fence == WD_FENCE_LIVE) return slot;
    return run->fence == WD_FENCE_OPEN && (verb == WD_V_ACK || verb == WD_V_DONE) ? slot : WD_NIL;
}

int wd_engine_ack(wd_engine *e, wd_receipt r, int verb, wd_span result)
{
    int answer;
    WD_ASSERT(verb == WD_V_ACK || verb == WD_V_DONE);
    uint32_t slot = holder(e, r, verb, &answer);
    if (slot == WD_NIL) return answer;
    if (wd_end(e, slot, WD_SUCCEEDED, verb, result) != WD_OK) return WD_A_NO_ROOM;
    e->stats.acked++;
    return WD_A_OK;
}

/* The delay before the k-th retry (k from 1): fixed = base, linear = k x base, exp = uniform in
 * [0, base x 2^(k-1)]; capped at max. */
static int64_t backoff_ms(wd_engine *e, const wd_policy *p, uint32_t k)
{
    int64_t base = p->base_ms, most = p->max_ms, delay = base;
    WD_ASSERT(k >= 1);
    if (p->backoff == WD_BACKOFF_LINEAR) delay = base * k;
    if (p->backoff == WD_BACKOFF_EXP) {
        uint32_t doublings = k - 1 < 32 ? k - 1 : 32;
        delay = base << doublings; /* < 2^32 * 2^32 */
    }
    if (delay > most) delay = most;
    return p->backoff == WD_BACKOFF_EXP ? wd_random_below(e, delay) : delay;
}

/* A record that ends the attempt of a leased row; the caller adds what is special. */
static wd_record attempt_record(const wd_engine *e, uint32_t slot, int kind, int reason)
{
    const wd_job *row = &e->rows[slot];
    const wd_run *run = wd_job_run(e->slab, row);
    return (wd_record){.kind = (uint8_t)kind,
                       .fields =
                           WD_F_ID | WD_F_AT | WD_F_FAILURES | WD_F_LOST | WD_F_REASON | WD_F_FENCE,
                       .id = wd_job_id(e->slab, slot),
                       .at_ms = e->clocks.wall_ms,
                       .failures = row->failures,
                       .lost = row->lost,
                       .reason = (uint8_t)reason,
                       .fence_term = run->term,
                       .fence_lsn = run->lsn};
}

static void set_text(wd_engine *e, wd_record *r, wd_span text)
{
    if (text.n && wd_engine_memory(e) >= e->options.maxmemory_bytes)
        e->stats.texts_dropped++;
    else
        wd_record_set(r, WD_S_TEXT, text);
}

static int die(wd_engine *e, uint32_t slot, const wd_record *retry, wd_span text)
{
    const wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
    wd_record r = *retry;
    r.kind = WD_R_DIED;
    r.fields = (r.fields & ~(uint32_t)(WD_F_DUE | WD_F_FLAGS)) | WD_F_HANDLER;
    r.handler = e->rows[slot].handler;
    wd_record_set(&r, WD_S_KEY, wd_text(e, b->key, b->key_len));
    set_text(e, &r, text);
    wd_make_room(e);
    if (wd_log_record(e, &r) != WD_OK) return WD_A_NO_ROOM;
    e->stats.died++;
    return WD_A_DEAD;
}

/* Of the grants just made, keep those whose payload is what was scheduled; the others are dead
 * before anybody heard of them. Behind all grants, so that the payloads have come into the cache.
 * Without memory for the record it stays leased to nobody, and is looked at again when that runs
 * out. */
static uint32_t keep_intact(wd_engine *e, uint32_t *slots, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = slots[i];
        if (wd_payload_is_intact(e, slot)) {
            slots[kept++] = slot;
            continue;
        }
        e->stats.payload_corrupt++;
        e->stats.corrupt_id = wd_job_id(e->slab, slot);
        e->stats.corrupt_handler = e->rows[slot].handler;
        wd_record r = attempt_record(e, slot, WD_R_DIED, WD_BY_CORRUPT);
        (void)die(e, slot, &r, WD_SPAN(CORRUPT_TEXT));
    }
    return kept;
}

uint32_t wd_engine_lease(wd_engine *e, const wd_lease_ask *ask, uint32_t *out_slots)
{
    for (;;) { /* ends: what is not kept is not ready any more, and the batch grows by it */
        uint32_t n = grant_some(e, ask, out_slots), kept = keep_intact(e, out_slots, n);
        if (kept > 0 || n == 0 || wd_engine_open_bytes(e) >= WD_BATCH_CLOSE_BYTES) return kept;
    }
}

/* Back to scheduled after delay_ms on the rel axis. */
static int retry_in(wd_engine *e, wd_record *r, int64_t delay_ms, wd_span text)
{
    WD_ASSERT(delay_ms >= 0);
    r->due_ms = wd_after(e, delay_ms);
    r->flags = WD_RF_REL;
    r->fields |= WD_F_DUE | WD_F_FLAGS;
    set_text(e, r, text);
    return wd_log_record(e, r) == WD_OK ? WD_A_RETRY : WD_A_NO_ROOM;
}

/* Back with the due time that it had: it keeps its place in the order. */
static int retry_as_it_was(wd_engine *e, uint32_t slot, int reason)
{
    wd_record r = attempt_record(e, slot, WD_R_RETRY, reason);
    r.due_ms = wd_job_run(e->slab, &e->rows[slot])->due_ms;
    r.flags = e->rows[slot].rel ? WD_RF_REL : 0;
    r.fields |= WD_F_DUE | WD_F_FLAGS;
    return wd_log_record(e, &r) == WD_OK ? WD_A_OK : WD_A_NO_ROOM;
}

static int end_marked(wd_engine *e, uint32_t slot, int verb)
{
    if (wd_end(e, slot, WD_CANCELLED, verb, (wd_span){0}) != WD_OK) return WD_A_NO_ROOM;
    e->stats.cancelled++;
    return WD_A_CANCELLED;
}

/* One failure more (FAIL, time-out): retry or die. */
static int fail(wd_engine *e, uint32_t slot, int reason, const wd_failure *f)
{
    const wd_policy *p = wd_policy_at(e->names, e->rows[slot].policy);
    wd_record r = attempt_record(e, slot, WD_R_RETRY, reason);
    if (r.failures < UINT16_MAX) r.failures++;
    if (f->dead || r.failures > p->retries) return die(e, slot, &r, f->text);
    return retry_in(e, &r, f->in_ms >= 0 ? f->in_ms : backoff_ms(e, p, r.failures), f->text);
}

/* One lost lease more: the first one is ready at once, later ones by the job's backoff. */
static int lose(wd_engine *e, uint32_t slot)
{
    const wd_policy *p = wd_policy_at(e->names, e->rows[slot].policy);
    wd_record r = attempt_record(e, slot, WD_R_RETRY, WD_BY_LOSS);
    if (r.lost < UINT16_MAX) r.lost++;
    if (r.lost > p->lost) return die(e, slot, &r, (wd_span){0});
    if (r.lost > 1) return retry_in(e, &r, backoff_ms(e, p, r.lost - 1u), (wd_span){0});
    return retry_in(e, &r, 0, (wd_span){0});
}

int wd_engine_fail(wd_engine *e, wd_receipt r, const wd_failure *f, int64_t *out_due_wall_ms)
{
    int answer;
    uint32_t slot = holder(e, r, WD_V_FAIL, &answer);
    if (slot == WD_NIL) return answer;
    if (e->rows[slot].marked) return end_marked(e, slot, WD_V_FAIL);
    answer = fail(e, slot, f->dead ? WD_BY_DEAD : WD_BY_FAIL, f);
    if (answer == WD_A_RETRY || answer == WD_A_DEAD) e->stats.failed++;
    if (answer == WD_A_RETRY) *out_due_wall_ms = wd_to_wall(e, e->rows[slot].due_ms, 1);
    return answer;
}

int wd_engine_release(wd_engine *e, wd_receipt r, int64_t in_ms)
{
    int answer;
    uint32_t slot = holder(e, r, WD_V_RELEASE, &answer);
    if (slot == WD_NIL) return answer;
    if (e->rows[slot].marked) return end_marked(e, slot, WD_V_RELEASE);
    if (in_ms >= 0) {
        wd_record back = attempt_record(e, slot, WD_R_RETRY, WD_BY_RELEASE);
        answer = retry_in(e, &back, in_ms, (wd_span){0}) == WD_A_RETRY ? WD_A_OK : WD_A_NO_ROOM;
    } else {
        answer = retry_as_it_was(e, slot, WD_BY_RELEASE);
    }
    if (answer == WD_A_OK) e->stats.released++;
    return answer;
}

int wd_engine_extend(wd_engine *e, wd_receipt r, uint32_t for_ms, uint32_t *out_lease_ms)
{
    int answer;
    uint32_t slot = holder(e, r, WD_V_SERVER, &answer);
    if (slot == WD_NIL) return answer == WD_A_ALREADY ? WD_A_STALE : answer;
    if (e->rows[slot].marked) return WD_A_CANCELLED;
    wd_run *run = wd_job_run(e->slab, &e->rows[slot]);
    uint32_t lease_ms = for_ms ? for_ms : run->lease_ms;
    if (lease_ms > run->lease_ms) {
        wd_record longer = {.kind = WD_R_EXTENDED,
                            .fields = WD_F_ID | WD_F_LEASE,
                            .id = r.id,
                            .lease_ms = lease_ms};
        if (wd_log_record(e, &longer) != WD_OK) return WD_A_NO_ROOM;
    }
    run->lease_end_ms = e->rel_ms + lease_ms; /* the wheel finds it when the old end comes ... */
    run->unheard = 0;
    int64_t over_ms = run->lease_end_ms + wd_grace_ms(run->lease_ms);
    if (over_ms < e->rows[slot].due_ms) { /* ... unless it is now earlier */
        (void)wd_wheel_cancel(e->rel_wheel, slot);
        wd_arm_lease(e, slot);
    }
    *out_lease_ms = lease_ms;
    return WD_A_OK;
}

/* The leased row that (id, lsn of its grant) names, WD_NIL = it is held no more. */
static uint32_t held_grant(const wd_engine *e, uint64_t id, uint64_t lsn)
{
    uint32_t slot = wd_slab_find(e->slab, id);
    if (slot == WD_NIL || e->rows[slot].state != WD_LEASED) return WD_NIL;
    return wd_job_run(e->slab, &e->rows[slot])->lsn == lsn ? slot : WD_NIL;
}

void wd_engine_unsent(wd_engine *e, uint64_t id, uint64_t lsn)
{
    uint32_t slot = held_grant(e, id, lsn);
    if (slot == WD_NIL) return;
    if (e->rows[slot].marked)
        (void)end_marked(e, slot, WD_V_SERVER);
    else if (retry_as_it_was(e, slot, WD_BY_UNSENT) == WD_A_OK)
        e->stats.unsent++;
}

void wd_engine_unbound(wd_engine *e, uint64_t id, uint64_t lsn)
{
    uint32_t slot = held_grant(e, id, lsn);
    if (slot == WD_NIL) return;
    if (e->rows[slot].marked) {
        (void)end_marked(e, slot, WD_V_SERVER);
        return;
    }
    int answer = lose(e, slot);
    if (answer == WD_A_RETRY || answer == WD_A_DEAD) e->stats.lost++;
}

int wd_engine_grant_due(const wd_engine *e, uint64_t id, uint64_t lsn, int64_t *out_due_wall_ms)
{
    uint32_t slot = held_grant(e, id, lsn);
    if (slot == WD_NIL) return WD_EGONE;
    *out_due_wall_ms =
        wd_to_wall(e, wd_job_run(e->slab, &e->rows[slot])->due_ms, (int)e->rows[slot].rel);
    return WD_OK;
}

/* ---- leases that run out ---- */

void wd_lease_due(wd_engine *e, uint32_t slot)
{
    const wd_job *row = &e->rows[slot];
    const wd_run *run = wd_job_run(e->slab, row);
    WD_ASSERT(row->state == WD_LEASED && run && row->where == WD_NIL);
    int64_t over_ms = run->lease_end_ms + wd_grace_ms(run->lease_ms);
    int answer = WD_A_OK, over = over_ms <= e->rel_ms;
    /* What came first decides, however late this look is. */
    int timed_out = run->timeout_end_ms <= e->rel_ms && run->timeout_end_ms <= over_ms;
    const wd_failure none = {.in_ms = -1};
    if (!timed_out && !over) {
        wd_arm_lease(e, slot);
        return;
    }
    if (row->marked)
        answer = end_marked(e, slot, WD_V_SERVER);
    else if (timed_out)
        answer = fail(e, slot, WD_BY_TIMEOUT, &none);
    else if (run->unheard)
        answer = retry_as_it_was(e, slot, WD_BY_SERVER);
    else
        answer = lose(e, slot);
    if (answer == WD_A_NO_ROOM) { /* no memory for the batch just now: look again soon */
        e->rows[slot].due_ms = e->rel_ms + WD_GRACE_MS_MIN;
        wd_wheel_insert(e->rel_wheel, slot);
    } else if (answer == WD_A_RETRY || answer == WD_A_DEAD) {
        if (timed_out)
            e->stats.timed_out++;
        else
            e->stats.lost++;
    }
}

void wd_leases_refresh(wd_engine *e)
{
    for (uint32_t slot = e->leased.first; slot != WD_NIL; slot = e->rows[slot].next) {
        wd_run *run = wd_job_run(e->slab, &e->rows[slot]);
        uint32_t timeout_ms = wd_policy_at(e->names, e->rows[slot].policy)->timeout_ms;
        run->lease_end_ms = e->rel_ms + run->lease_ms;
        run->timeout_end_ms = timeout_ms ? e->rel_ms + timeout_ms : WD_NEVER_MS;
    }
}
