/* wd_image.c -- things of the state as bytes of a checkpoint, and back.
 *
 * An image holds what is logged, and nothing that is derived: no links, no wheel places, no lease
 * ends, no hashes of live keys. Loading puts a row where a row stands at replay (wd_place.c): in
 * no wheel and no queue, but on the lists `leased`, `dead` and `ended` and in the key indexes. In
 * the lists rows come in the order of their slots; wd_load.c sorts them when all is there.
 *
 * Bytes are believed to be what was written (they have crcs), but no more than that: whatever they
 * say, loading stays inside the tables and leaves a state that apply can work on, or refuses.
 */
#include "wd_image.h"

enum { GEN_BITS = 25, STATE_SHIFT = 25, REL_SHIFT = 29, MARKED_SHIFT = 30, SIDE_SHIFT = 31 };

/* ---- a reader that cannot overrun ---- */

typedef struct {
    const uint8_t *p, *end;
    int short_of; /* 1: more was asked for than there is */
} cursor;

static const uint8_t *take(cursor *c, size_t n)
{
    static const uint8_t NOTHING[64];
    if ((size_t)(c->end - c->p) < n) {
        c->short_of = 1;
        c->p = c->end;
        WD_ASSERT(n <= sizeof NOTHING);
        return NOTHING;
    }
    const uint8_t *at = c->p;
    c->p += n;
    return at;
}

static wd_span take_bytes(cursor *c, size_t n)
{
    if ((size_t)(c->end - c->p) < n) {
        c->short_of = 1;
        return (wd_span){NULL, 0};
    }
    wd_span s = {c->p, n};
    c->p += n;
    return s;
}

static uint8_t *put_bytes(uint8_t *p, wd_span s)
{
    if (s.n) memcpy(p, s.p, s.n);
    return p + s.n;
}

/* ---- row: write ---- */

static size_t run_bytes(const wd_run *run)
{
    return WD_IMAGE_RUN_BYTES + (size_t)run->attempts_count * WD_IMAGE_ATTEMPT_BYTES +
           run->worker_len;
}

static size_t side_bytes(const wd_engine *e, const wd_side *b)
{
    size_t n = WD_IMAGE_SIDE_BYTES + (size_t)b->key_len + b->meta_len + b->group_len +
               b->owner_len + b->text_len;
    return b->run == WD_NIL ? n : n + run_bytes(wd_run_at(e->slab, b->run));
}

size_t wd_image_row_bytes(const wd_engine *e, uint32_t slot)
{
    const wd_job *row = &e->rows[slot];
    if (row->state == WD_FREE) return WD_IMAGE_FREE_BYTES;
    size_t n = WD_IMAGE_ROW_BYTES + (size_t)row->payload_len;
    return row->side == WD_NIL ? n : n + side_bytes(e, wd_side_at(e->slab, row->side));
}

static uint8_t *put_run(const wd_engine *e, const wd_run *run, uint8_t *p)
{
    WD_ASSERT(run->attempts_count <= WD_ATTEMPTS_KEPT);
    wd_put_u64(p, run->term);
    wd_put_u64(p + 8, run->lsn);
    wd_put_u64(p + 16, (uint64_t)run->started_ms);
    wd_put_u64(p + 24, run->died_lsn);
    wd_put_u32(p + 32, run->lease_ms);
    p[36] = run->worker_len;
    p[37] = run->fence;
    p[38] = run->attempts_count;
    p[39] = 0;
    p += WD_IMAGE_RUN_BYTES;
    for (uint32_t i = 0; i < run->attempts_count; i++) {
        const wd_attempt *a = &run->attempts[i];
        wd_put_u64(p, (uint64_t)a->started_ms);
        wd_put_u64(p + 8, (uint64_t)a->ended_ms);
        wd_put_u32(p + 16, a->attempt);
        wd_put_u32(p + 20, a->reason);
        p += WD_IMAGE_ATTEMPT_BYTES;
    }
    return put_bytes(p, wd_text(e, run->worker, run->worker_len));
}

static uint8_t *put_side(const wd_engine *e, const wd_side *b, uint8_t *p)
{
    wd_put_u64(p, (uint64_t)b->expire_ms);
    wd_put_u64(p + 8, (uint64_t)b->ended_ms);
    wd_put_u64(p + 16, b->on_ended ? b->ended_lsn : 0);
    wd_put_u16(p + 24, b->meta_len);
    wd_put_u16(p + 26, b->owner_len);
    wd_put_u16(p + 28, b->text_len);
    p[30] = b->key_len;
    p[31] = b->group_len;
    p[32] = (uint8_t)((b->expire_rel ? WD_IMAGE_EXPIRE_REL : 0) |
                      (b->on_ended ? WD_IMAGE_ON_ENDED : 0) |
                      (b->run != WD_NIL ? WD_IMAGE_HAS_RUN : 0));
    p[33] = b->reason;
    wd_put_u16(p + 34, 0);
    p += WD_IMAGE_SIDE_BYTES;
    p = put_bytes(p, wd_text(e, b->key, b->key_len));
    p = put_bytes(p, wd_text(e, b->meta, b->meta_len));
    p = put_bytes(p, wd_text(e, b->group, b->group_len));
    p = put_bytes(p, wd_text(e, b->owner, b->owner_len));
    p = put_bytes(p, wd_text(e, b->text, b->text_len));
    return b->run == WD_NIL ? p : put_run(e, wd_run_at(e->slab, b->run), p);
}

size_t wd_image_row_put(const wd_engine *e, uint32_t slot, uint8_t *p)
{
    const wd_job *row = &e->rows[slot];
    uint32_t state = row->state == WD_READY ? WD_SCHEDULED : row->state;
    WD_ASSERT(state == WD_FREE || row->gen > 0);
    if (state == WD_FREE) {
        wd_put_u32(p, row->gen);
        return WD_IMAGE_FREE_BYTES;
    }
    int64_t due_ms = state == WD_LEASED ? wd_job_run(e->slab, row)->due_ms : row->due_ms;
    wd_put_u32(p, row->gen | state << STATE_SHIFT | (uint32_t)row->rel << REL_SHIFT |
                      (uint32_t)row->marked << MARKED_SHIFT |
                      (uint32_t)(row->side != WD_NIL) << SIDE_SHIFT);
    wd_put_u32(p + 4, row->payload_len | (uint32_t)row->priority << 24);
    wd_put_u64(p + 8, row->lsn);
    wd_put_u64(p + 16, (uint64_t)due_ms);
    wd_put_u64(p + 24, row->created_ms | (uint64_t)row->lost << 48);
    wd_put_u32(p + 32, row->attempt);
    wd_put_u16(p + 36, row->handler);
    wd_put_u16(p + 38, row->policy);
    wd_put_u16(p + 40, row->failures);
    wd_put_u16(p + 42, 0);
    uint8_t *end = put_bytes(p + WD_IMAGE_ROW_BYTES, wd_text(e, row->payload, row->payload_len));
    if (row->side != WD_NIL) end = put_side(e, wd_side_at(e->slab, row->side), end);
    return (size_t)(end - p);
}

/* ---- row: load ---- */

static int load_text(wd_engine *e, wd_span s, uint32_t *out_ref)
{
    WD_ASSERT(s.n <= WD_ARENA_BYTES_MAX);
    return wd_arena_put(e->arena, s, out_ref);
}

static int load_run(wd_engine *e, wd_side *b, cursor *c)
{
    b->run = wd_run_new(e->slab);
    wd_run *run = wd_run_at(e->slab, b->run);
    const uint8_t *p = take(c, WD_IMAGE_RUN_BYTES);
    uint8_t count = p[38];
    if (p[37] > WD_FENCE_CLOSED || count > WD_ATTEMPTS_KEPT) return WD_ECORRUPT;
    run->term = wd_get_u64(p);
    run->lsn = wd_get_u64(p + 8);
    run->started_ms = (int64_t)wd_get_u64(p + 16);
    run->died_lsn = wd_get_u64(p + 24);
    run->lease_ms = wd_get_u32(p + 32);
    run->fence = p[37];
    uint8_t worker_len = p[36];
    for (uint32_t i = 0; i < count; i++) {
        p = take(c, WD_IMAGE_ATTEMPT_BYTES);
        run->attempts[i] = (wd_attempt){.started_ms = (int64_t)wd_get_u64(p),
                                        .ended_ms = (int64_t)wd_get_u64(p + 8),
                                        .attempt = wd_get_u32(p + 16),
                                        .reason = p[20]};
    }
    run->attempts_count = count;
    wd_span worker = take_bytes(c, worker_len);
    if (c->short_of) return WD_ECORRUPT;
    int status = load_text(e, worker, &run->worker);
    if (status == WD_OK) run->worker_len = worker_len;
    return status;
}

static int load_side_texts(wd_engine *e, wd_side *b, const uint8_t *head, cursor *c)
{
    const size_t lengths[] = {head[30], wd_get_u16(head + 24), head[31], wd_get_u16(head + 26),
                              wd_get_u16(head + 28)};
    uint32_t *const refs[] = {&b->key, &b->meta, &b->group, &b->owner, &b->text};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        wd_span s = take_bytes(c, lengths[i]);
        if (c->short_of) return WD_ECORRUPT;
        int status = load_text(e, s, refs[i]);
        if (status != WD_OK) return status;
    }
    b->key_len = head[30];
    b->group_len = head[31];
    b->meta_len = wd_get_u16(head + 24);
    b->owner_len = wd_get_u16(head + 26);
    b->text_len = wd_get_u16(head + 28);
    return WD_OK;
}

static int load_side(wd_engine *e, uint32_t slot, cursor *c, uint64_t *out_ended_lsn)
{
    wd_job *row = &e->rows[slot];
    row->side = wd_side_new(e->slab, slot);
    wd_side *b = wd_side_at(e->slab, row->side);
    const uint8_t *p = take(c, WD_IMAGE_SIDE_BYTES);
    uint8_t flags = p[32];
    b->expire_ms = (int64_t)wd_get_u64(p);
    b->ended_ms = (int64_t)wd_get_u64(p + 8);
    b->expire_rel = (flags & WD_IMAGE_EXPIRE_REL) != 0;
    b->reason = p[33];
    *out_ended_lsn = flags & WD_IMAGE_ON_ENDED ? wd_get_u64(p + 16) : 0;
    if (c->short_of || (flags & WD_IMAGE_ON_ENDED && *out_ended_lsn == 0)) return WD_ECORRUPT;
    int status = load_side_texts(e, b, p, c);
    if (status == WD_OK && flags & WD_IMAGE_HAS_RUN) status = load_run(e, b, c);
    return status;
}

/* Does what the image said of a row hold together, so that apply may rely on it? */
static int row_is_sound(const wd_engine *e, uint32_t slot, int state, uint64_t ended_lsn)
{
    const wd_job *row = &e->rows[slot];
    const wd_side *b = wd_job_side(e->slab, row);
    const wd_run *run = wd_job_run(e->slab, row);
    int owned = b && b->owner_len > 0;
    if (row->due_ms < 0 || row->due_ms >= WD_DUE_MS_END) return 0;
    if ((state == WD_LEASED) != (run && run->fence == WD_FENCE_LIVE) && state < WD_DEAD) return 0;
    if (state == WD_DEAD && (!run || run->died_lsn == 0)) return 0;
    if (state >= WD_SUCCEEDED && !owned) return 0;
    if (run && run->term > e->load.meta.term) return 0;
    return ended_lsn == 0 || owned;
}

/* A sound row onto the lists and into the indexes that it stands in at replay. */
static void place_loaded(wd_engine *e, uint32_t slot, int state, uint64_t ended_lsn)
{
    wd_job *row = &e->rows[slot];
    wd_side *b = wd_job_side(e->slab, row);
    wd_set_state(e, slot, state);
    if (state == WD_LEASED) {
        wd_job_run(e->slab, row)->due_ms = row->due_ms;
        wd_list_add(e, &e->leased, slot);
    }
    if (state == WD_DEAD) {
        uint64_t died_lsn = wd_job_run(e->slab, row)->died_lsn;
        wd_dead_add(e, slot);
        wd_job_run(e->slab, row)->died_lsn = died_lsn;
    }
    if (b && b->key_len && state <= WD_LEASED) wd_key_add(e, slot);
    if (ended_lsn == 0) return;
    WD_ASSERT(b); /* row_is_sound: an owner stands in a side block */
    wd_ended_add(e, row->side);
    b->ended_lsn = ended_lsn;
}

static void fill_row(wd_job *row, const uint8_t *p)
{
    uint32_t head = wd_get_u32(p);
    uint64_t created = wd_get_u64(p + 24);
    row->rel = head >> REL_SHIFT & 1;
    row->marked = head >> MARKED_SHIFT & 1;
    row->priority = p[7];
    row->lsn = wd_get_u64(p + 8);
    row->due_ms = (int64_t)wd_get_u64(p + 16);
    row->created_ms = created & 0xffffffffffff;
    row->lost = (uint16_t)(created >> 48);
    row->attempt = wd_get_u32(p + 32);
    row->handler = wd_get_u16(p + 36);
    row->policy = wd_get_u16(p + 38);
    row->failures = wd_get_u16(p + 40);
}

static uint64_t newest_lsn(const wd_engine *e, uint32_t slot, uint64_t ended_lsn)
{
    const wd_job *row = &e->rows[slot];
    const wd_run *run = wd_job_run(e->slab, row);
    uint64_t lsn = row->lsn > ended_lsn ? row->lsn : ended_lsn;
    if (run && run->lsn > lsn) lsn = run->lsn;
    if (run && run->died_lsn > lsn) lsn = run->died_lsn;
    return lsn;
}

/* A slot in use. On failure it stays half filled: a state that did not load is thrown away. */
static int load_used(wd_engine *e, uint32_t slot, cursor *c, uint64_t *out_lsn)
{
    uint64_t ended_lsn = 0;
    const uint8_t *p = take(c, WD_IMAGE_ROW_BYTES);
    uint32_t head = wd_get_u32(p), payload_bytes = wd_get_u32(p + 4) & 0xffffff;
    int state = (int)(head >> STATE_SHIFT & 15);
    if (c->short_of || state == WD_READY || state > WD_EXPIRED) return WD_ECORRUPT;
    wd_job *row = &e->rows[slot];
    fill_row(row, p);
    if (row->handler >= wd_handlers_count(e->names) || row->policy >= wd_policies_count(e->names))
        return WD_ECORRUPT;
    wd_span payload = take_bytes(c, payload_bytes);
    if (c->short_of || payload.n > WD_SEALED_BYTES_MAX) return WD_ECORRUPT;
    int status =
        wd_ready_reserve(&wd_handler_at(e->names, row->handler)->ready, (uint8_t)row->priority);
    if (status == WD_OK) status = wd_arena_put_sealed(e->arena, payload, &row->payload);
    if (status == WD_OK) row->payload_len = payload_bytes & 0xffffff;
    if (status == WD_OK && head >> SIDE_SHIFT) status = load_side(e, slot, c, &ended_lsn);
    if (status != WD_OK) return status;
    if (!row_is_sound(e, slot, state, ended_lsn)) return WD_ECORRUPT;
    place_loaded(e, slot, state, ended_lsn);
    *out_lsn = newest_lsn(e, slot, ended_lsn);
    return WD_OK;
}

int wd_image_row_load(wd_engine *e, uint32_t slot, wd_span s, size_t *out_bytes, uint64_t *out_lsn)
{
    cursor c = {s.p, s.p + s.n, 0};
    if (s.n < WD_IMAGE_FREE_BYTES) return WD_ECORRUPT;
    uint32_t head = wd_get_u32(s.p), gen = head & ((1u << GEN_BITS) - 1);
    int used = (head >> STATE_SHIFT & 15) != WD_FREE;
    if (!used && head != gen) return WD_ECORRUPT;
    int status = wd_slab_load(e->slab, slot, gen, used);
    *out_lsn = 0;
    if (status == WD_OK && used) status = load_used(e, slot, &c, out_lsn);
    if (status != WD_OK) return status;
    *out_bytes = used ? (size_t)(c.p - s.p) : WD_IMAGE_FREE_BYTES;
    return WD_OK;
}

/* ---- row: read ---- */

static void pass_side(cursor *c)
{
    const uint8_t *p = take(c, WD_IMAGE_SIDE_BYTES);
    (void)take_bytes(c, (size_t)p[30] + p[31] + wd_get_u16(p + 24) + wd_get_u16(p + 26) +
                            wd_get_u16(p + 28));
    if (!(p[32] & WD_IMAGE_HAS_RUN)) return;
    p = take(c, WD_IMAGE_RUN_BYTES);
    (void)take_bytes(c, p[36] + (size_t)p[38] * WD_IMAGE_ATTEMPT_BYTES);
}

int wd_image_row_read(wd_span s, wd_image_row *out, size_t *out_bytes)
{
    cursor c = {s.p, s.p + s.n, 0};
    uint32_t head = wd_get_u32(take(&c, WD_IMAGE_FREE_BYTES));
    *out = (wd_image_row){.gen = head & ((1u << GEN_BITS) - 1),
                          .used = (head >> STATE_SHIFT & 15) != WD_FREE};
    if (out->used) {
        const uint8_t *p = take(&c, WD_IMAGE_ROW_BYTES - WD_IMAGE_FREE_BYTES);
        out->payload = take_bytes(&c, wd_get_u32(p) & 0xffffff);
        if (head >> SIDE_SHIFT) pass_side(&c);
    }
    if (c.short_of) return WD_ECORRUPT;
    *out_bytes = (size_t)(c.p - s.p);
    return WD_OK;
}

/* ---- names ---- */

size_t wd_image_handler_bytes(const wd_engine *e, uint32_t number)
{
    return WD_IMAGE_HANDLER_BYTES + wd_handler_name(e->names, number).n;
}

size_t wd_image_handler_put(const wd_engine *e, uint32_t number, uint8_t *p)
{
    wd_span name = wd_handler_name(e->names, number);
    WD_ASSERT(name.n > 0 && name.n <= UINT8_MAX);
    memcpy(p, &wd_handler_at(e->names, number)->settings, sizeof(wd_settings));
    p[sizeof(wd_settings)] = (uint8_t)name.n;
    return (size_t)(put_bytes(p + WD_IMAGE_HANDLER_BYTES, name) - p);
}

int wd_image_handler_load(wd_engine *e, uint32_t number, wd_span s, size_t *out_bytes)
{
    cursor c = {s.p, s.p + s.n, 0};
    const uint8_t *p = take(&c, WD_IMAGE_HANDLER_BYTES);
    wd_span name = take_bytes(&c, p[sizeof(wd_settings)]);
    if (c.short_of) return WD_ECORRUPT;
    int status = wd_handler_add(e->names, number, name);
    if (status != WD_OK) return status;
    memcpy(&wd_handler_at(e->names, number)->settings, p, sizeof(wd_settings));
    *out_bytes = (size_t)(c.p - s.p);
    return WD_OK;
}

size_t wd_image_policy_put(const wd_engine *e, uint32_t number, uint8_t *p)
{
    memcpy(p, wd_policy_at(e->names, number), WD_IMAGE_POLICY_BYTES);
    return WD_IMAGE_POLICY_BYTES;
}

int wd_image_policy_load(wd_engine *e, uint32_t number, wd_span s, size_t *out_bytes)
{
    wd_policy policy;
    if (s.n < sizeof policy) return WD_ECORRUPT;
    memcpy(&policy, s.p, sizeof policy);
    int status = wd_policy_add(e->names, number, &policy);
    if (status == WD_OK) *out_bytes = sizeof policy;
    return status;
}

/* ---- PUT table ---- */

size_t wd_image_entry_bytes(const wd_entry *entry)
{
    return WD_IMAGE_ENTRY_BYTES + entry->key.n + entry->blob.n;
}

size_t wd_image_entry_put(const wd_entry *entry, uint8_t *p)
{
    wd_put_u32(p, (uint32_t)entry->blob.n);
    wd_put_u16(p + 4, (uint16_t)entry->key.n);
    p[6] = entry->kind;
    p[7] = 0;
    return (size_t)(put_bytes(put_bytes(p + WD_IMAGE_ENTRY_BYTES, entry->key), entry->blob) - p);
}

int wd_image_entry_load(wd_engine *e, wd_span s, size_t *out_bytes)
{
    cursor c = {s.p, s.p + s.n, 0};
    const uint8_t *p = take(&c, WD_IMAGE_ENTRY_BYTES);
    uint32_t blob_bytes = wd_get_u32(p);
    uint16_t key_bytes = wd_get_u16(p + 4);
    wd_span key = take_bytes(&c, key_bytes), blob = take_bytes(&c, blob_bytes);
    if (c.short_of || key_bytes == 0 || key_bytes > WD_TABLE_KEY_BYTES_MAX ||
        blob_bytes > WD_ARENA_BYTES_MAX)
        return WD_ECORRUPT;
    /* The same key twice: it went, and came again under a higher number, while the table was
     * written. The later image is the newer one. */
    int status = wd_table_put(e->table, p[6], key, blob);
    if (status == WD_OK) *out_bytes = (size_t)(c.p - s.p);
    return status;
}

/* ---- rings ---- */

size_t wd_image_ended_bytes(const wd_ended *x)
{
    return WD_IMAGE_ENDED_BYTES + (size_t)x->text_len;
}

size_t wd_image_ended_put(const wd_engine *e, const wd_ended *x, uint8_t *p)
{
    const uint64_t words[] = {
        x->id, x->term, x->lsn, x->key.lo, x->key.hi, (uint64_t)x->ended_ms, (uint64_t)x->rel_ms};
    memcpy(p, words, sizeof words);
    wd_put_u16(p + 56, x->handler);
    wd_put_u16(p + 58, x->text_len);
    p[60] = x->state;
    p[61] = x->verb;
    wd_put_u16(p + 62, 0);
    wd_span text = wd_text(e, x->text, x->text_len);
    return (size_t)(put_bytes(p + WD_IMAGE_ENDED_BYTES, text) - p);
}

int wd_image_ended_load(wd_engine *e, uint64_t number, wd_span s, size_t *out_bytes)
{
    cursor c = {s.p, s.p + s.n, 0};
    const uint8_t *p = take(&c, WD_IMAGE_ENDED_BYTES);
    wd_ended x = {.id = wd_get_u64(p),
                  .term = wd_get_u64(p + 8),
                  .lsn = wd_get_u64(p + 16),
                  .key = {wd_get_u64(p + 24), wd_get_u64(p + 32)},
                  .ended_ms = (int64_t)wd_get_u64(p + 40),
                  .rel_ms = (int64_t)wd_get_u64(p + 48),
                  .handler = wd_get_u16(p + 56),
                  .state = p[60],
                  .verb = p[61]};
    wd_span text = take_bytes(&c, wd_get_u16(p + 58));
    if (c.short_of || x.handler >= wd_handlers_count(e->names) || x.state < WD_DEAD ||
        x.state > WD_EXPIRED || (uint32_t)x.id >= wd_slab_capacity(e->slab))
        return WD_ECORRUPT;
    int status = wd_ring_load_ended(e->ring, number, &x, text);
    if (status == WD_OK) *out_bytes = (size_t)(c.p - s.p);
    return status;
}

size_t wd_image_once_put(const wd_once *x, uint8_t *p)
{
    wd_put_u64(p, x->token.lo);
    wd_put_u64(p + 8, x->token.hi);
    wd_put_u64(p + 16, x->id);
    wd_put_u64(p + 24, (uint64_t)x->rel_ms);
    wd_put_u32(p + 32, x->word);
    return WD_IMAGE_ONCE_BYTES;
}

int wd_image_once_load(wd_engine *e, uint64_t number, wd_span s, size_t *out_bytes)
{
    if (s.n < WD_IMAGE_ONCE_BYTES) return WD_ECORRUPT;
    wd_once x = {.token = {wd_get_u64(s.p), wd_get_u64(s.p + 8)},
                 .id = wd_get_u64(s.p + 16),
                 .rel_ms = (int64_t)wd_get_u64(s.p + 24),
                 .word = s.p[32]};
    int status = wd_ring_load_once(e->ring, number, &x);
    if (status == WD_OK) *out_bytes = WD_IMAGE_ONCE_BYTES;
    return status;
}
