/* wd_decide.c -- the verbs on jobs: resolve everything, then log it.
 *
 * Nothing here changes the state but through wd_log_record.
 */
#include "wd_state.h"

/* ---- randomness and room ---- */

enum { RING_SHARE = 64 };

static uint64_t random_u64(wd_engine *e)
{
    /* splitmix64 (Steele, Lea, Flood 2014): the seed is an input, the draw's result is logged. */
    uint64_t z = e->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

int64_t wd_random_below(wd_engine *e, int64_t end)
{
    WD_ASSERT(end >= 0);
    return (int64_t)(random_u64(e) % ((uint64_t)end + 1)); /* end < 2^32: the bias is below 2^-32 */
}

static void drop_oldest(wd_engine *e, int kind, uint64_t n, uint64_t *counter)
{
    wd_record r = {.kind = (uint8_t)kind, .fields = WD_F_NUMBER, .number = (int64_t)n};
    if (wd_log_record(e, &r) == WD_OK) *counter += n;
}

/* How many entries a ring of `count` has to forget: none while there is room for a command's worth;
 * then a 64th of it at once, and what is above when the limit is lower than it was. */
static uint64_t ring_drop(uint64_t count, uint64_t most)
{
    uint64_t share = most / RING_SHARE;
    if (count < most - share / 2) return 0;
    return (share > 0 ? share : 1) + (count > most ? count - most : 0);
}

void wd_make_room(wd_engine *e)
{
    uint64_t count = wd_ring_ended_count(e->ring), n = ring_drop(count, e->options.ended_max);
    if (n > 0) drop_oldest(e, WD_R_RING_DROPPED, n, &e->stats.ring_dropped);
    count = wd_ring_once_count(e->ring);
    n = ring_drop(count, e->options.once_max);
    if (n > 0) drop_oldest(e, WD_R_ONCE_DROPPED, n, &e->stats.once_dropped);
    for (uint32_t slot = e->dead.first; slot != WD_NIL; slot = e->dead.first) {
        const wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
        int old = b->ended_ms + e->options.dead_kept_ms <= e->clocks.wall_ms;
        if (!old && e->dead.count <= e->options.dead_max) break;
        if (wd_engine_purge(e, wd_job_id(e->slab, slot)) != WD_A_OK) break;
        e->stats.dead_dropped++;
    }
}

static const char *no_room(const wd_engine *e)
{
    uint64_t limit = e->options.maxmemory_bytes / 100 * WD_MEMORY_PERCENT;
    return wd_engine_memory(e) >= limit ? "maxmemory" : NULL;
}

/* ---- names ---- */

uint32_t wd_engine_handler(wd_engine *e, wd_span name)
{
    uint32_t number = wd_handler_find(e->names, name);
    if (number != WD_NIL || wd_handlers_count(e->names) == WD_HANDLERS_MAX) return number;
    number = wd_handlers_count(e->names);
    wd_record r = {.kind = WD_R_HANDLER, .fields = WD_F_HANDLER, .handler = (uint16_t)number};
    wd_record_set(&r, WD_S_NAME, name);
    return wd_log_record(e, &r) == WD_OK ? number : WD_NIL;
}

/* Number of a policy, logged when new; WD_NIL = no room. */
static uint32_t policy_number(wd_engine *e, const wd_policy *p)
{
    uint32_t number = wd_policy_find(e->names, p);
    if (number != WD_NIL || wd_policies_count(e->names) == WD_POLICIES_MAX) return number;
    number = wd_policies_count(e->names);
    wd_record r = {.kind = WD_R_POLICY, .fields = WD_F_POLICY, .policy = (uint16_t)number};
    wd_record_set(&r, WD_S_BLOB, (wd_span){(const uint8_t *)p, sizeof *p});
    int status = wd_log_record(e, &r);
    WD_ASSERT(status == WD_OK); /* reserve() took the batch's room, the table's was asked for */
    return number;
}

/* Job option > handler default > server default, resolved now. WD_NIL = no room. */
static uint32_t resolve_policy(wd_engine *e, wd_handler *h, const wd_new_job *job)
{
    if (!job->policy_set && h->policy != WD_NO_POLICY) return h->policy;
    wd_policy p = h->settings.policy;
    wd_policy_merge(&p, &job->policy, job->policy_set);
    uint32_t number = policy_number(e, &p);
    if (number != WD_NIL && !job->policy_set) h->policy = (uint16_t)number;
    return number;
}

int wd_engine_set_handler(wd_engine *e, uint32_t handler, const wd_settings *s)
{
    wd_record r = {.kind = WD_R_HANDLER_SET, .fields = WD_F_HANDLER, .handler = (uint16_t)handler};
    wd_record_set(&r, WD_S_BLOB, (wd_span){(const uint8_t *)s, sizeof *s});
    return wd_log_record(e, &r);
}

/* ---- times ---- */

/* A `when` resolved: REL times go onto the rel axis. */
static void resolve_when(const wd_engine *e, wd_when w, int64_t *out_ms, int *out_rel)
{
    *out_rel = w.kind != WD_WHEN_ABS;
    *out_ms = w.kind == WD_WHEN_REL ? wd_after(e, w.ms) : w.ms;
}

static void set_due(const wd_engine *e, wd_record *r, wd_when due)
{
    int rel;
    resolve_when(e, due, &r->due_ms, &rel);
    r->flags |= rel ? WD_RF_REL : 0;
    r->fields |= WD_F_DUE | WD_F_FLAGS;
}

/* ---- SCHEDULE ---- */

static int state_of(const wd_engine *e, uint64_t id)
{
    uint32_t slot = wd_slab_find(e->slab, id);
    if (slot != WD_NIL) return (int)e->rows[slot].state;
    const wd_ended *end = wd_ring_find(e->ring, id);
    return end ? end->state : WD_FREE;
}

static int found(const wd_engine *e, int answer, uint64_t id, wd_new_result *out)
{
    out->id = id;
    out->state = state_of(e, id);
    return answer;
}

/* A token that found a job instead of making one has to be remembered too: the repeat of a call
 * whose answer was lost must not make a job after the found one has ended. */
static int remember(wd_engine *e, const wd_new_job *job, int answer, uint64_t id,
                    wd_new_result *out)
{
    if (job->once.n) {
        wd_record r = {.kind = WD_R_ONCE,
                       .fields = WD_F_ID | WD_F_REASON,
                       .id = id,
                       .reason = (uint8_t)answer};
        wd_record_set(&r, WD_S_ONCE, job->once);
        if (wd_log_record(e, &r) != WD_OK) {
            out->why = "memory";
            return WD_A_NO_ROOM;
        }
    }
    return found(e, answer, id, out);
}

/* What a job that holds, or lately held, the key makes of this call: an answer, or -1 = go on; then
 * *out_replace says which job is to be made anew (WD_NIL = none). */
static int by_key(wd_engine *e, const wd_new_job *job, wd_new_result *out, uint32_t *out_replace)
{
    *out_replace = WD_NIL;
    uint32_t slot = wd_key_find(e, job->key);
    if (slot != WD_NIL) {
        uint64_t id = wd_job_id(e->slab, slot);
        if (job->ondup == WD_DUP_ERROR) return found(e, WD_A_EXISTS, id, out);
        if (job->ondup == WD_DUP_KEEP) return remember(e, job, WD_A_EXISTING, id, out);
        if (e->rows[slot].state == WD_LEASED) return found(e, WD_A_CONFLICT, id, out);
        *out_replace = slot;
        return -1;
    }
    const wd_ended *end =
        job->window_ms ? wd_ring_find_key(e->ring, wd_key_hash(e, job->key)) : NULL;
    if (!end || e->rel_ms - end->rel_ms >= job->window_ms) return -1;
    if (job->ondup == WD_DUP_ERROR) return found(e, WD_A_EXISTS, end->id, out);
    return remember(e, job, WD_A_ENDED, end->id, out);
}

static void describe(const wd_engine *e, const wd_new_job *job, wd_record *r)
{
    r->fields |= WD_F_ID | WD_F_AT | WD_F_HANDLER | WD_F_POLICY | WD_F_PRIORITY;
    r->at_ms = e->clocks.wall_ms;
    r->priority = job->priority;
    set_due(e, r, job->due);
    if (job->has_expire) {
        int rel;
        resolve_when(e, job->expire, &r->expire_ms, &rel);
        r->flags |= rel ? WD_RF_EXPIRE_REL : 0;
        r->fields |= WD_F_EXPIRE;
    }
    if (job->held) r->flags |= WD_RF_HELD;
    wd_record_set(r, WD_S_PAYLOAD, job->payload);
    wd_record_set(r, WD_S_KEY, job->key);
    wd_record_set(r, WD_S_ONCE, job->once);
    wd_record_set(r, WD_S_META, job->meta);
    wd_record_set(r, WD_S_GROUP, job->group);
    wd_record_set(r, WD_S_OWNER, job->owner);
}

/* Take all memory that the records of a new job need, so that they are logged all or none. */
static int reserve(wd_engine *e, const wd_new_job *job)
{
    enum { /* HANDLER, POLICY, CREATED */
           FIXED_BYTES = 3 * (WD_RECORD_HEADER_BYTES + WD_RECORD_FIXED_BYTES_MAX + 64)
    };
    size_t texts = 2 * job->handler.n + job->payload.n + job->key.n + job->once.n + job->meta.n +
                   job->group.n + job->owner.n;
    uint32_t handler = wd_handler_find(e->names, job->handler);
    int status = wd_batch_reserve(e, texts + FIXED_BYTES);
    if (status != WD_OK || handler == WD_NIL) return status;
    return wd_ready_reserve(&wd_handler_at(e->names, handler)->ready, job->priority);
}

static int refuse(wd_new_result *out, const char *why)
{
    out->why = why;
    return WD_A_NO_ROOM;
}

int wd_engine_schedule(wd_engine *e, const wd_new_job *job, wd_new_result *out)
{
    uint32_t replace = WD_NIL;
    *out = (wd_new_result){0};
    if (job->once.n) {
        const wd_once *o = wd_ring_find_once(e->ring, wd_key_hash(e, job->once), e->rel_ms);
        if (o) return found(e, o->word, o->id, out);
    }
    wd_make_room(e);
    if (job->key.n) {
        int answer = by_key(e, job, out, &replace);
        if (answer >= 0) return answer;
    }
    const char *full = no_room(e);
    if (full) return refuse(out, full);
    wd_record r = {.kind = replace == WD_NIL ? WD_R_CREATED : WD_R_REPLACED};
    if (replace != WD_NIL)
        r.id = wd_job_id(e->slab, replace);
    else if (wd_slab_next_id(e->slab, &r.id) != WD_OK)
        return refuse(out, "jobs");
    if (reserve(e, job) != WD_OK) return refuse(out, "memory");
    uint32_t handler = wd_engine_handler(e, job->handler);
    if (handler == WD_NIL) return refuse(out, "handlers");
    uint32_t policy = resolve_policy(e, wd_handler_at(e->names, handler), job);
    if (policy == WD_NIL) return refuse(out, "policies");
    r.handler = (uint16_t)handler;
    r.policy = (uint16_t)policy;
    describe(e, job, &r);
    if (wd_log_record(e, &r) != WD_OK) return refuse(out, "memory");
    return found(e, replace == WD_NIL ? WD_A_CREATED : WD_A_REPLACED, r.id, out);
}

/* ---- ending ---- */

int wd_end(wd_engine *e, uint32_t slot, int state, int verb, wd_span text)
{
    const wd_job *row = &e->rows[slot];
    const wd_side *b = wd_job_side(e->slab, row);
    const wd_run *run = wd_job_run(e->slab, row);
    wd_record r = {.kind = WD_R_ENDED,
                   .fields = WD_F_ID | WD_F_AT | WD_F_HANDLER | WD_F_REASON | WD_F_NUMBER,
                   .id = wd_job_id(e->slab, slot),
                   .at_ms = e->clocks.wall_ms,
                   .handler = row->handler,
                   .reason = (uint8_t)state,
                   .number = verb};
    if (run) {
        r.fields |= WD_F_FENCE;
        r.fence_term = run->term;
        r.fence_lsn = run->lsn;
    }
    if (b) wd_record_set(&r, WD_S_KEY, wd_text(e, b->key, b->key_len));
    if (text.n && wd_engine_memory(e) >= e->options.maxmemory_bytes)
        e->stats.texts_dropped++;
    else
        wd_record_set(&r, WD_S_TEXT, text);
    wd_make_room(e);
    return wd_log_record(e, &r);
}

/* Where an id leads: a live row, or an answer for one that is over or was never there. */
static uint32_t live(const wd_engine *e, uint64_t id, int *out_answer)
{
    uint32_t slot = wd_slab_find(e->slab, id);
    *out_answer = WD_A_UNKNOWN;
    if (slot == WD_NIL) {
        if (wd_ring_find(e->ring, id)) *out_answer = WD_A_ENDED;
        return WD_NIL;
    }
    if (e->rows[slot].state >= WD_SUCCEEDED) {
        *out_answer = WD_A_ENDED;
        return WD_NIL;
    }
    return slot;
}

int wd_engine_cancel(wd_engine *e, uint64_t id)
{
    int answer;
    uint32_t slot = live(e, id, &answer);
    if (slot == WD_NIL) return answer;
    const wd_job *row = &e->rows[slot];
    if (row->state == WD_DEAD) return WD_A_ENDED;
    if (row->state == WD_LEASED) {
        wd_record r = {.kind = WD_R_MARKED, .fields = WD_F_ID, .id = id};
        if (row->marked) return WD_A_MARKED;
        return wd_log_record(e, &r) == WD_OK ? WD_A_MARKED : WD_A_NO_ROOM;
    }
    if (wd_end(e, slot, WD_CANCELLED, WD_V_SERVER, (wd_span){0}) != WD_OK) return WD_A_NO_ROOM;
    e->stats.cancelled++;
    return WD_A_CANCELLED;
}

static int move(wd_engine *e, uint64_t id, wd_when due, int run)
{
    int answer;
    uint32_t slot = live(e, id, &answer);
    if (slot == WD_NIL) return answer;
    uint32_t state = e->rows[slot].state;
    if (state == WD_LEASED || state == WD_DEAD) return WD_A_CONFLICT;
    wd_record r = {
        .kind = run && state == WD_HELD ? WD_R_UNHELD : WD_R_MOVED, .fields = WD_F_ID, .id = id};
    set_due(e, &r, due);
    if (r.kind == WD_R_UNHELD) { /* not its owner's doing: it must hear of it */
        r.fields |= WD_F_REASON;
        r.reason = WD_UNHELD_BY_USER;
    }
    return wd_log_record(e, &r) == WD_OK ? WD_A_OK : WD_A_NO_ROOM;
}

int wd_engine_move(wd_engine *e, uint64_t id, wd_when due)
{
    return move(e, id, due, 0);
}

int wd_engine_run(wd_engine *e, uint64_t id)
{
    return move(e, id, (wd_when){.kind = WD_WHEN_REL, .ms = 0}, 1);
}

int wd_engine_requeue(wd_engine *e, uint64_t id)
{
    int answer;
    uint32_t slot = live(e, id, &answer);
    if (slot == WD_NIL) return answer == WD_A_ENDED ? WD_A_CONFLICT : answer;
    if (e->rows[slot].state != WD_DEAD) return WD_A_CONFLICT;
    const wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
    if (b->key_len && wd_key_find(e, wd_text(e, b->key, b->key_len)) != WD_NIL)
        return WD_A_CONFLICT;
    wd_record r = {.kind = WD_R_REQUEUED, .fields = WD_F_ID, .id = id};
    set_due(e, &r, (wd_when){.kind = WD_WHEN_REL, .ms = 0});
    return wd_log_record(e, &r) == WD_OK ? WD_A_OK : WD_A_NO_ROOM;
}

int wd_engine_purge(wd_engine *e, uint64_t id)
{
    int answer;
    uint32_t slot = live(e, id, &answer);
    if (slot == WD_NIL) return answer == WD_A_ENDED ? WD_A_CONFLICT : answer;
    if (e->rows[slot].state != WD_DEAD) return WD_A_CONFLICT;
    wd_record r = {.kind = WD_R_PURGED, .fields = WD_F_ID, .id = id};
    return wd_log_record(e, &r) == WD_OK ? WD_A_OK : WD_A_NO_ROOM;
}

int wd_engine_accept_clock(wd_engine *e)
{
    wd_record r = {.kind = WD_R_CLOCK,
                   .fields = WD_F_AT | WD_F_FLAGS | WD_F_NUMBER,
                   .at_ms = e->clocks.wall_ms,
                   .number = e->clocks.wall_ms - e->logical_ms,
                   .flags = WD_RF_ACCEPT};
    return wd_log_record(e, &r);
}

int wd_engine_raise_generations(wd_engine *e, uint32_t generation)
{
    WD_ASSERT(generation >= 1 && generation <= WD_GEN_MAX);
    wd_record r = {.kind = WD_R_GENERATIONS, .fields = WD_F_NUMBER, .number = generation};
    return wd_log_record(e, &r);
}

uint64_t wd_engine_key_id(const wd_engine *e, wd_span key)
{
    uint32_t slot = wd_key_find(e, key);
    if (slot != WD_NIL) return wd_job_id(e->slab, slot);
    /* Every end of a job with a key is in the ring, and the ring forgets the oldest first: what it
     * still knows is newer than a dead job that it has forgotten, whatever the wall clock said. */
    const wd_ended *end = wd_ring_find_key(e->ring, wd_key_hash(e, key));
    if (end) return end->id;
    slot = wd_dead_find(e, key);
    return slot == WD_NIL ? 0 : wd_job_id(e->slab, slot);
}
