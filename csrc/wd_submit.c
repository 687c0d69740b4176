/* wd_submit.c -- core.batch(): what Python decided, carried out whole or not at all.
 *
 * Three passes over the same operations. The first decodes each and checks it against the state and
 * against the others: no two may be about one thing, so what the state allows stays allowed. The
 * second takes all memory that they need; of a submission that fails there, names of handlers may
 * stay behind and nothing else. The third carries them out; that it cannot fail is asserted, and a
 * process that stops there has confirmed nothing of it, since the batch was not written.
 */
#include "wd_state.h"

#include <stdlib.h>

enum {
    POLICY_BLOB_BYTES = sizeof(wd_policy) + 1,
    SETTINGS_ALL = WD_SET_RETRIES | WD_SET_LOST | WD_SET_BACKOFF | WD_SET_LEASE | WD_SET_TIMEOUT,
    /* What an operation can need beside its own bytes: other records' fields, a key, a name. */
    OP_EXTRA_BYTES = 1024
};

static int policy_is_legal(wd_span blob)
{
    wd_policy p;
    if (blob.n == 0) return 1;
    if (blob.n != POLICY_BLOB_BYTES) return 0;
    memcpy(&p, blob.p, sizeof p);
    uint8_t set = blob.p[sizeof p];
    if (set & ~SETTINGS_ALL || p.zero[0] || p.zero[1] || p.zero[2]) return 0;
    if (p.retries > WD_RETRIES_MAX || p.lost > WD_RETRIES_MAX || p.backoff > WD_BACKOFF_EXP)
        return 0;
    if (p.base_ms > WD_SPAN_MS_MAX || p.max_ms > WD_SPAN_MS_MAX || p.lease_ms > WD_SPAN_MS_MAX)
        return 0;
    return p.timeout_ms <= WD_SPAN_MS_MAX && (!(set & WD_SET_LEASE) || p.lease_ms > 0);
}

static int due_is_legal(const wd_record *r)
{
    const uint32_t must = WD_F_DUE | WD_F_FLAGS;
    return (r->fields & must) == must && r->due_ms >= 0 && r->due_ms < WD_DUE_MS_END;
}

static int job_is_in(const wd_engine *e, uint64_t id, uint32_t states)
{
    uint32_t slot = wd_slab_find(e->slab, id);
    return slot != WD_NIL && states >> e->rows[slot].state & 1;
}

static int check_created(wd_engine *e, const wd_record *r)
{
    const uint32_t must = WD_F_PRIORITY | WD_F_NAME;
    if ((r->fields & must) != must || r->text[WD_S_NAME].n > WD_NAME_BYTES_MAX) return WD_EINVAL;
    if (!due_is_legal(r) || r->text[WD_S_PAYLOAD].n > WD_BULK_BYTES_MAX) return WD_EINVAL;
    if (!policy_is_legal(r->text[WD_S_BLOB])) return WD_EINVAL;
    /* An owned job is named by its run id; a key would let a client replace it. */
    if (r->fields & WD_F_KEY && r->fields & WD_F_OWNER) return WD_EINVAL;
    int live = r->fields & WD_F_KEY && wd_key_find(e, r->text[WD_S_KEY]) != WD_NIL;
    return live ? WD_EGONE : WD_OK;
}

static int check_op(wd_engine *e, const wd_record *r)
{
    const uint32_t waiting = 1u << WD_SCHEDULED | 1u << WD_READY | 1u << WD_HELD;
    switch ((enum wd_kind)r->kind) {
    case WD_R_CREATED:
        return check_created(e, r);
    case WD_R_MARKED:
        return job_is_in(e, r->id, waiting | 1u << WD_LEASED) ? WD_OK : WD_EGONE;
    case WD_R_UNHELD:
        if (!due_is_legal(r)) return WD_EINVAL;
        return job_is_in(e, r->id, 1u << WD_HELD) ? WD_OK : WD_EGONE;
    case WD_R_MOVED:
        if (!due_is_legal(r)) return WD_EINVAL;
        return job_is_in(e, r->id, waiting) ? WD_OK : WD_EGONE;
    case WD_R_CLOSED: {
        uint32_t slot = wd_slab_find(e->slab, r->id);
        const wd_side *b = slot == WD_NIL ? NULL : wd_job_side(e->slab, &e->rows[slot]);
        return b && b->on_ended ? WD_OK : WD_EGONE;
    }
    case WD_R_PUT:
    case WD_R_DEL: {
        wd_span blob, key = r->text[WD_S_NAME];
        if (key.n == 0 || key.n > WD_TABLE_KEY_BYTES_MAX || !(r->fields & WD_F_REASON))
            return WD_EINVAL;
        if (r->kind == WD_R_PUT)
            return r->text[WD_S_BLOB].n <= WD_BULK_BYTES_MAX ? WD_OK : WD_EINVAL;
        return wd_table_get(e->table, r->reason, key, &blob);
    }
    default:
        return WD_EINVAL;
    }
}

static wd_new_job job_of(const wd_record *r)
{
    wd_span blob = r->text[WD_S_BLOB];
    wd_new_job job = {.handler = r->text[WD_S_NAME],
                      .payload = r->text[WD_S_PAYLOAD],
                      .key = r->text[WD_S_KEY],
                      .meta = r->text[WD_S_META],
                      .group = r->text[WD_S_GROUP],
                      .owner = r->text[WD_S_OWNER],
                      .priority = r->priority,
                      .held = (r->flags & WD_RF_HELD) != 0};

    job.due = r->flags & WD_RF_REL ? (wd_when){WD_WHEN_AXIS, r->due_ms}
                                   : (wd_when){WD_WHEN_ABS, r->due_ms};
    job.has_expire = (r->fields & WD_F_EXPIRE) != 0;
    job.expire = r->flags & WD_RF_EXPIRE_REL ? (wd_when){WD_WHEN_AXIS, r->expire_ms}
                                             : (wd_when){WD_WHEN_ABS, r->expire_ms};
    if (blob.n == POLICY_BLOB_BYTES) {
        memcpy(&job.policy, blob.p, sizeof job.policy);
        job.policy_set = blob.p[sizeof job.policy];
    }
    return job;
}

static void carry_out(wd_engine *e, wd_record *r, uint64_t *out_ids, uint32_t *count)
{
    int ok;
    if (r->kind == WD_R_CREATED) {
        wd_new_job job = job_of(r);
        wd_new_result made;
        ok = wd_engine_schedule(e, &job, &made) == WD_A_CREATED;
        out_ids[(*count)++] = made.id;
    } else if (r->kind == WD_R_MARKED) {
        ok = wd_engine_cancel(e, r->id) != WD_A_NO_ROOM; /* check_op: it is there */
    } else {
        ok = wd_log_record(e, r) == WD_OK;
    }
    WD_ASSERT(ok);
}

/* What an operation is about, as a number that no other thing has (but for a hash collision,
 * 2^-60); 0 = nothing that another could take away. Closing a job goes with any other operation on
 * it. */
static uint64_t thing_of(const wd_engine *e, const wd_record *r)
{
    enum { JOB, CLOSING, KEY, ENTRY, THINGS };
    const uint64_t hashed = UINT64_C(1) << 63; /* ids are below 2^57 */
    uint64_t hash;
    switch ((enum wd_kind)r->kind) {
    case WD_R_CREATED:
        hash = wd_key_hash(e, r->text[WD_S_KEY]).lo;
        return r->fields & WD_F_KEY ? hashed | hash / THINGS * THINGS | KEY : 0;
    case WD_R_DEL:
        hash = wd_key_hash(e, r->text[WD_S_NAME]).lo + ((uint64_t)r->reason << 40);
        return hashed | hash / THINGS * THINGS | ENTRY;
    case WD_R_PUT:
        return 0;
    case WD_R_CLOSED:
        return r->id * THINGS | CLOSING;
    default:
        return r->id * THINGS | JOB;
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

typedef struct {
    uint32_t created, entries;       /* jobs; entries that are not in the table yet, at most */
    uint64_t log_bytes, state_bytes; /* upper bounds */
    wd_buf things;                   /* u64 each */
} needs;

/* First pass. */
static int check_ops(wd_engine *e, wd_span ops, needs *out)
{
    wd_record r;
    size_t size;
    for (wd_span rest = ops; rest.n; rest = (wd_span){rest.p + size, rest.n - size}) {
        if (wd_record_decode(rest, &r, &size) != WD_OK) return WD_EINVAL;
        int status = check_op(e, &r);
        if (status != WD_OK) return status;
        uint64_t thing = thing_of(e, &r);
        if (thing && wd_buf_put(&out->things, &thing, sizeof thing) != WD_OK) return WD_ENOMEM;
        wd_span blob;
        out->created += r.kind == WD_R_CREATED;
        out->entries += r.kind == WD_R_PUT &&
                        wd_table_get(e->table, r.reason, r.text[WD_S_NAME], &blob) != WD_OK;
        out->log_bytes += size + OP_EXTRA_BYTES;
        out->state_bytes += size + size / 4 + OP_EXTRA_BYTES; /* size classes waste an eighth */
    }
    uint64_t *things = (uint64_t *)(void *)out->things.p;
    size_t n = out->things.n / sizeof *things;
    if (n > 1) qsort(things, n, sizeof *things, by_value);
    for (size_t i = 1; i < n; i++)
        if (things[i] == things[i - 1]) return WD_EINVAL;
    return WD_OK;
}

/* Second pass. */
static int reserve(wd_engine *e, wd_span ops, const needs *need)
{
    wd_record r;
    size_t size;
    uint64_t limit = e->options.maxmemory_bytes / 100 * WD_MEMORY_PERCENT;
    uint64_t bytes = wd_engine_memory(e) + need->log_bytes + need->state_bytes;
    if (bytes >= limit || wd_slab_room(e->slab) < need->created) return WD_EFULL;
    if (WD_POLICIES_MAX - wd_policies_count(e->names) < need->created) return WD_EFULL;
    if (WD_TABLE_MAX - wd_table_count(e->table) < need->entries) return WD_EFULL;
    int status = wd_batch_reserve(e, need->log_bytes);
    for (wd_span rest = ops; rest.n && status == WD_OK;
         rest = (wd_span){rest.p + size, rest.n - size}) {
        (void)wd_record_decode(rest, &r, &size);
        if (r.kind != WD_R_CREATED) continue;
        uint32_t handler = wd_engine_handler(e, r.text[WD_S_NAME]);
        if (handler == WD_NIL) return WD_EFULL;
        status = wd_ready_reserve(&wd_handler_at(e->names, handler)->ready, r.priority);
    }
    return status;
}

int wd_engine_submit(wd_engine *e, wd_span ops, int takes_jobs, uint64_t *out_ids, uint32_t ids_max,
                     uint32_t *out_count)
{
    wd_record r;
    size_t size;
    uint32_t made = 0;
    needs need = {0};
    int status = check_ops(e, ops, &need);
    wd_buf_free(&need.things);
    if (status == WD_OK && need.created > ids_max) status = WD_EINVAL;
    if (status == WD_OK && need.created > 0 && !takes_jobs) status = WD_EFULL;
    if (status == WD_OK) status = reserve(e, ops, &need);
    if (status != WD_OK) return status;
    for (wd_span rest = ops; rest.n; rest = (wd_span){rest.p + size, rest.n - size}) {
        (void)wd_record_decode(rest, &r, &size);
        WD_ASSERT(check_op(e, &r) == WD_OK);
        carry_out(e, &r, out_ids, &made);
    }
    *out_count = made;
    return WD_OK;
}

int wd_engine_ended(const wd_engine *e, uint32_t most, wd_buf *out)
{
    uint32_t n = 0;
    for (uint32_t i = e->ended_first; i != WD_NIL && n < most; n++) {
        const wd_side *b = wd_side_at(e->slab, i);
        const wd_job *row = &e->rows[b->slot];
        const wd_run *run = wd_job_run(e->slab, row);
        wd_record r = {.kind = WD_R_ENDED,
                       .fields = WD_F_ID | WD_F_DUE | WD_F_AT | WD_F_FAILURES | WD_F_LOST |
                                 WD_F_REASON | WD_F_NUMBER,
                       .due_ms = run ? run->started_ms : 0,
                       .failures = row->failures,
                       .lost = (uint16_t)row->lost,
                       .id = wd_job_id(e->slab, b->slot),
                       .at_ms = b->ended_ms,
                       .reason = (uint8_t)row->state,
                       .number = b->reason};
        wd_record_set(&r, WD_S_OWNER, wd_text(e, b->owner, b->owner_len));
        wd_record_set(&r, WD_S_TEXT, wd_text(e, b->text, b->text_len));
        int status = wd_buf_need(out, wd_record_bound(&r));
        if (status != WD_OK) return status;
        out->n += wd_record_encode(&r, out->p + out->n);
        i = b->ended_next;
    }
    return WD_OK;
}

int wd_engine_has_ended(const wd_engine *e)
{
    WD_ASSERT((e->ended_count == 0) == (e->ended_first == WD_NIL));
    return e->ended_count > 0;
}

int wd_engine_owned_next(const wd_engine *e, uint32_t *slot, uint32_t rows_max, wd_owned *out)
{
    uint32_t top = wd_slab_top(e->slab);
    for (uint32_t n = 0; n < rows_max && *slot < top; n++) {
        uint32_t i = (*slot)++;
        const wd_job *row = &e->rows[i];
        const wd_side *b = row->state == WD_FREE ? NULL : wd_job_side(e->slab, row);
        if (!b || !b->owner_len) continue;
        *out = (wd_owned){.id = wd_job_id(e->slab, i),
                          .due_ms = row->state == WD_LEASED ? wd_job_run(e->slab, row)->due_ms
                                                            : row->due_ms,
                          .state = (int)row->state,
                          .owner = wd_text(e, b->owner, b->owner_len)};
        return WD_OK;
    }
    return *slot < top ? WD_EAGAIN : WD_EGONE;
}

const wd_table *wd_engine_table(const wd_engine *e)
{
    return e->table;
}
