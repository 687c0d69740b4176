/* wd_check.c -- every invariant of the engine, numbered; tests walk them after each step.
 *
 *  1. counts by state, of the engine and of each handler, equal what the rows say
 *  2. a row stands where its state says (wd_place.c), and its lsn is not newer than the log
 *  3. the wheels hold together and hold exactly the rows that are armed
 *  4. the ready queues hold together and hold exactly the READY rows; `working` = their handlers
 *  5. the key index holds exactly the live rows with a key, each key once
 *  6. rows, side blocks and run blocks: counts, generations and the free list
 *  7. side and run blocks belong to one row each
 *  8. arena bytes in use = sum over everything that owns a block
 *  9. the lists `leased` and `dead` hold exactly their rows, `dead` in the order of its DIED
 * records
 * 10. the list `ended` and the ring `expiring` hold exactly their side blocks, `ended` in the order
 *     of the records that put them there
 * 11. the rings are in order of their rel times
 * 12. a live fence is the row's newest grant and not newer than the log
 * 13. names, policies and the PUT table hold together
 * 14. the open batch and the queue number their records without a gap up to the log's lsn
 * 15. each payload is what its record or image said
 *
 * Between a loaded checkpoint's S0 and S1 the state is a mixture, of which nothing is claimed.
 */
#include "wd_state.h"

typedef struct {
    const wd_engine *e;
    uint64_t count[WD_EXPIRED + 1];
    uint64_t arena_bytes;
    uint32_t wall_armed, rel_armed, keyed, sides, runs, ended, expiring;
} walk;

static int side_owner_ok(const wd_engine *e, uint32_t slot)
{
    return wd_side_at(e->slab, e->rows[slot].side)->slot == slot;
}

static uint64_t side_bytes(const wd_side *b, const wd_run *run)
{
    uint64_t n = wd_arena_block_bytes(b->key_len) + wd_arena_block_bytes(b->meta_len) +
                 wd_arena_block_bytes(b->group_len) + wd_arena_block_bytes(b->owner_len) +
                 wd_arena_block_bytes(b->text_len);
    return run ? n + wd_arena_block_bytes(run->worker_len) : n;
}

/* Invariants 2, 5, 7, 12, 15 of one row; 0 or the number. */
static int check_row(walk *w, uint32_t slot)
{
    const wd_engine *e = w->e;
    const wd_job *row = &e->rows[slot];
    const wd_side *b = wd_job_side(e->slab, row);
    const wd_run *run = wd_job_run(e->slab, row);
    int armed = row->where != WD_NIL;
    int should = e->serving && (row->state == WD_SCHEDULED || row->state == WD_LEASED);
    if (row->state > WD_EXPIRED || armed != should || row->lsn > e->lsn) return 2;
    if (row->heaped && row->state != WD_READY) return 2;
    if (row->handler >= wd_handlers_count(e->names) || row->policy >= wd_policies_count(e->names))
        return 2;
    w->count[row->state]++;
    if (armed && (row->state == WD_LEASED || row->rel))
        w->rel_armed++;
    else if (armed)
        w->wall_armed++;
    w->arena_bytes += wd_arena_sealed_bytes(row->payload_len);
    if (!wd_payload_is_intact(e, slot)) return 15;
    if (row->state == WD_LEASED && (!run || run->fence != WD_FENCE_LIVE)) return 12;
    if (run && row->state != WD_LEASED && run->fence == WD_FENCE_LIVE && row->state < WD_DEAD)
        return 12;
    if (run && (run->lsn > e->lsn || run->term > e->apply_term)) return 12;
    if (!b) return 0;
    if (!side_owner_ok(e, slot)) return 7;
    w->sides++;
    w->runs += run != NULL;
    w->ended += b->on_ended;
    w->expiring += b->on_expiring;
    w->arena_bytes += side_bytes(b, run);
    if (b->on_ended && !b->owner_len) return 10;
    if (b->on_expiring != (row->state == WD_READY && b->expire_ms != WD_NEVER_MS)) return 10;
    int live = row->state >= WD_SCHEDULED && row->state <= WD_LEASED;
    if (b->keyed != (live && b->key_len > 0)) return 5;
    w->keyed += b->keyed;
    return b->keyed && wd_key_find(e, wd_text(e, b->key, b->key_len)) != slot ? 5 : 0;
}

static int check_counts(const walk *w)
{
    const wd_engine *e = w->e;
    uint64_t sum[WD_EXPIRED + 1] = {0};
    uint32_t working = 0;
    for (uint32_t n = 0; n < wd_handlers_count(e->names); n++) {
        const wd_handler *h = wd_handler_at(e->names, n);
        for (int s = WD_SCHEDULED; s <= WD_EXPIRED; s++)
            sum[s] += h->count[s];
        if (h->ready.count != h->count[WD_READY] || !wd_ready_check(&h->ready, e->rows)) return 4;
        if ((h->working != 0) != (h->ready.count != 0)) return 4;
        if (h->working && e->working[h->working - 1] != n) return 4;
        working += h->working != 0;
    }
    if (working != e->working_count) return 4;
    for (int s = WD_SCHEDULED; s <= WD_EXPIRED; s++)
        if (sum[s] != w->count[s] || e->count[s] != w->count[s]) return 1;
    return 0;
}

static int check_list(const wd_engine *e, const wd_list *list, uint32_t state)
{
    uint32_t n = 0, prev = WD_NIL;
    for (uint32_t slot = list->first; slot != WD_NIL; slot = e->rows[slot].next) {
        if (e->rows[slot].state != state || e->rows[slot].prev != prev || ++n > list->count)
            return 0;
        prev = slot;
    }
    return n == list->count && list->last == prev && n == e->count[state];
}

static int dead_in_order(const wd_engine *e)
{
    uint64_t last = 0;
    for (uint32_t slot = e->dead.first; slot != WD_NIL; slot = e->rows[slot].next) {
        uint64_t lsn = wd_job_run(e->slab, &e->rows[slot])->died_lsn;
        if (lsn <= last || lsn > e->lsn) return 0;
        last = lsn;
    }
    return 1;
}

static int check_side_lists(const walk *w)
{
    const wd_engine *e = w->e;
    uint32_t n = 0;
    uint64_t last = 0;
    for (uint32_t i = e->ended_first; i != WD_NIL; i = wd_side_at(e->slab, i)->ended_next) {
        const wd_side *b = wd_side_at(e->slab, i);
        if (!b->on_ended || ++n > e->ended_count) return 10;
        if (b->ended_lsn <= last || b->ended_lsn > e->lsn) return 10;
        last = b->ended_lsn;
    }
    if (n != e->ended_count || n != w->ended) return 10;
    n = 0;
    for (uint32_t i = e->expiring; i != WD_NIL && n < e->expiring_count; n++) {
        const wd_side *b = wd_side_at(e->slab, i);
        if (!b->on_expiring || wd_side_at(e->slab, b->expiring_next)->expiring_prev != i) return 10;
        i = b->expiring_next;
    }
    return n == e->expiring_count && n == w->expiring ? 0 : 10;
}

/* Invariants 8, 11: blocks owned by rings, names and the table; order of the rings. */
static int check_rest(walk *w)
{
    const wd_engine *e = w->e;
    int64_t last = INT64_MIN;
    for (uint64_t i = 0; i < wd_ring_ended_count(e->ring); i++) {
        const wd_ended *x = wd_ring_ended_at(e->ring, i);
        if (x->rel_ms < last) return 11;
        last = x->rel_ms;
        w->arena_bytes += wd_arena_block_bytes(x->text_len);
    }
    last = INT64_MIN;
    for (uint64_t i = 0; i < wd_ring_once_count(e->ring); i++) {
        if (wd_ring_once_at(e->ring, i)->rel_ms < last) return 11;
        last = wd_ring_once_at(e->ring, i)->rel_ms;
    }
    for (uint32_t i = 0; i < wd_handlers_count(e->names); i++)
        w->arena_bytes += wd_arena_block_bytes(wd_handler_at(e->names, i)->name_len);
    for (uint32_t i = 0; i < wd_table_top(e->table); i++) {
        wd_entry entry;
        if (wd_table_at(e->table, i, &entry) != WD_OK) continue;
        w->arena_bytes += wd_arena_block_bytes(entry.key.n) + wd_arena_block_bytes(entry.blob.n);
    }
    return w->arena_bytes == wd_arena_used(e->arena) ? 0 : 8;
}

static int check_batches(const wd_engine *e)
{
    uint64_t next = 0;
    for (const wd_batch *b = e->queue_first; b; b = b->next) {
        if (next && b->meta.first_lsn != next) return 14;
        next = b->meta.first_lsn + b->meta.records;
    }
    if (e->open && next && e->open->meta.first_lsn != next) return 14;
    if (e->open) next = e->open->meta.first_lsn + e->open->meta.records;
    return next && next != e->lsn + 1 ? 14 : 0;
}

static int check_wheels(const walk *w)
{
    const wd_engine *e = w->e;
    if (!e->serving) return 0;
    if (wd_wheel_check(e->wall_wheel) || wd_wheel_check(e->rel_wheel)) return 3;
    return wd_wheel_count(e->wall_wheel) == w->wall_armed &&
                   wd_wheel_count(e->rel_wheel) == w->rel_armed
               ? 0
               : 3;
}

static int check_keys(const walk *w)
{
    const wd_engine *e = w->e;
    uint32_t dead = 0;
    for (uint32_t slot = e->dead.first; slot != WD_NIL; slot = e->rows[slot].next)
        dead += wd_job_side(e->slab, &e->rows[slot])->key_len > 0;
    return w->keyed == wd_index_count(e->keys) && wd_index_check(e->keys) &&
           dead == wd_index_count(e->dead_keys) && wd_index_check(e->dead_keys);
}

int wd_engine_check(const wd_engine *e)
{
    walk w = {.e = e};
    int broken = 0;
    if (wd_is_fuzzy(e)) return 0;
    for (uint32_t slot = 0; slot < wd_slab_top(e->slab) && !broken; slot++)
        if (e->rows[slot].state != WD_FREE) broken = check_row(&w, slot);
    if (!broken) broken = check_counts(&w);
    if (!broken) broken = check_wheels(&w);
    if (!broken && !check_keys(&w)) broken = 5;
    wd_slab_counts have = wd_slab_count(e->slab);
    if (!broken && !wd_slab_check(e->slab)) broken = 6;
    if (!broken && (have.sides != w.sides || have.runs != w.runs)) broken = 7;
    if (!broken && !check_list(e, &e->leased, WD_LEASED)) broken = 9;
    if (!broken && (!check_list(e, &e->dead, WD_DEAD) || !dead_in_order(e))) broken = 9;
    if (!broken) broken = check_side_lists(&w);
    if (!broken) broken = check_rest(&w);
    if (!broken && (!wd_names_check(e->names) || !wd_table_check(e->table))) broken = 13;
    if (!broken) broken = check_batches(e);
    return broken;
}
