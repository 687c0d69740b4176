/* wd_place.c -- which structure a row stands in.
 *
 *   SCHEDULED  the wall or the rel wheel (row.rel)      READY  its handler's ready queue
 *   LEASED     the rel wheel and the list `leased`      DEAD   the list `dead`
 *   HELD, and an ended job that Python has not closed: nowhere
 *
 * At replay rows stand in no wheel and no queue (READY is not logged); wd_engine_start puts them.
 */
#include "wd_state.h"

void wd_list_add(wd_engine *e, wd_list *list, uint32_t slot)
{
    wd_job *row = &e->rows[slot];
    row->next = WD_NIL;
    row->prev = list->last;
    if (list->last == WD_NIL)
        list->first = slot;
    else
        e->rows[list->last].next = slot;
    list->last = slot;
    list->count++;
}

void wd_list_remove(wd_engine *e, wd_list *list, uint32_t slot)
{
    wd_job *row = &e->rows[slot];
    WD_ASSERT(list->count > 0);
    if (row->prev == WD_NIL)
        list->first = row->next;
    else
        e->rows[row->prev].next = row->next;
    if (row->next == WD_NIL)
        list->last = row->prev;
    else
        e->rows[row->next].prev = row->prev;
    row->next = row->prev = WD_NIL;
    list->count--;
}

/* ---- the ring of READY jobs with EXPIRE (side blocks), walked by the sweep ---- */

static void expiring_add(wd_engine *e, uint32_t side)
{
    wd_side *b = wd_side_at(e->slab, side);
    WD_ASSERT(!b->on_expiring);
    if (e->expiring == WD_NIL) {
        b->expiring_next = b->expiring_prev = side;
        e->expiring = side;
    } else { /* behind all others: just before the one that is looked at next */
        wd_side *next = wd_side_at(e->slab, e->expiring);
        b->expiring_next = e->expiring;
        b->expiring_prev = next->expiring_prev;
        wd_side_at(e->slab, next->expiring_prev)->expiring_next = side;
        next->expiring_prev = side;
    }
    b->on_expiring = 1;
    e->expiring_count++;
}

static void expiring_remove(wd_engine *e, uint32_t side)
{
    wd_side *b = wd_side_at(e->slab, side);
    if (!b->on_expiring) return;
    if (b->expiring_next == side) {
        e->expiring = WD_NIL;
    } else {
        wd_side_at(e->slab, b->expiring_prev)->expiring_next = b->expiring_next;
        wd_side_at(e->slab, b->expiring_next)->expiring_prev = b->expiring_prev;
        if (e->expiring == side) e->expiring = b->expiring_next;
    }
    b->expiring_next = b->expiring_prev = WD_NIL;
    b->on_expiring = 0;
    e->expiring_count--;
}

/* ---- the list `ended`: owned jobs that Python has to look at (side blocks) ---- */

void wd_ended_add(wd_engine *e, uint32_t side)
{
    wd_side *b = wd_side_at(e->slab, side);
    if (b->on_ended) return;
    b->ended_next = WD_NIL;
    b->ended_prev = e->ended_last;
    if (e->ended_last == WD_NIL)
        e->ended_first = side;
    else
        wd_side_at(e->slab, e->ended_last)->ended_next = side;
    e->ended_last = side;
    b->on_ended = 1;
    b->ended_lsn = e->lsn + 1;
    e->ended_count++;
}

void wd_ended_remove(wd_engine *e, uint32_t side)
{
    wd_side *b = wd_side_at(e->slab, side);
    if (!b->on_ended) return;
    if (b->ended_prev == WD_NIL)
        e->ended_first = b->ended_next;
    else
        wd_side_at(e->slab, b->ended_prev)->ended_next = b->ended_next;
    if (b->ended_next == WD_NIL)
        e->ended_last = b->ended_prev;
    else
        wd_side_at(e->slab, b->ended_next)->ended_prev = b->ended_prev;
    b->ended_next = b->ended_prev = WD_NIL;
    b->on_ended = 0;
    e->ended_count--;
}

/* ---- handlers with work ---- */

void wd_engine_mark_dirty(wd_engine *e, uint32_t handler)
{
    wd_handler *h = wd_handler_at(e->names, handler);
    if (h->dirty) return;
    h->dirty = 1;
    e->dirty[e->dirty_count++] = handler;
}

uint32_t wd_engine_next_dirty(wd_engine *e)
{
    if (e->dirty_count == 0) return WD_NIL;
    uint32_t handler = e->dirty[--e->dirty_count];
    wd_handler_at(e->names, handler)->dirty = 0;
    return handler;
}

static void working_update(wd_engine *e, uint32_t handler)
{
    wd_handler *h = wd_handler_at(e->names, handler);
    if (h->ready.count > 0 && !h->working) {
        e->working[e->working_count++] = handler;
        h->working = e->working_count;
    } else if (h->ready.count == 0) {
        WD_ASSERT(h->working);
        uint32_t last = e->working[--e->working_count];
        e->working[h->working - 1] = last;
        wd_handler_at(e->names, last)->working = h->working;
        h->working = 0;
    }
}

/* Take a row out of the counters of its state. */
static void uncount(wd_engine *e, wd_handler *h, uint32_t state)
{
    if (state == WD_FREE) return;
    WD_ASSERT(h->count[state] > 0 && e->count[state] > 0);
    h->count[state]--;
    e->count[state]--;
}

void wd_set_state(wd_engine *e, uint32_t slot, int state)
{
    wd_job *row = &e->rows[slot];
    wd_handler *h = wd_handler_at(e->names, row->handler);
    uncount(e, h, row->state);
    row->state = (uint32_t)state & 15;
    if (state != WD_FREE) {
        h->count[state]++;
        e->count[state]++;
    }
}

void wd_make_ready(wd_engine *e, uint32_t slot)
{
    wd_job *row = &e->rows[slot];
    wd_handler *h = wd_handler_at(e->names, row->handler);
    const wd_side *b = wd_job_side(e->slab, row);
    WD_ASSERT(row->state == WD_SCHEDULED && row->where == WD_NIL);
    wd_set_state(e, slot, WD_READY);
    wd_ready_push(&h->ready, e->rows, slot);
    working_update(e, row->handler);
    wd_engine_mark_dirty(e, row->handler);
    if (b && b->expire_ms != WD_NEVER_MS) expiring_add(e, row->side);
}

void wd_place(wd_engine *e, uint32_t slot)
{
    const wd_job *row = &e->rows[slot];
    WD_ASSERT(row->state == WD_SCHEDULED);
    WD_ASSERT(row->due_ms >= 0 && row->due_ms < WD_DUE_MS_END);
    if (!e->serving) return;
    if (row->due_ms <= (row->rel ? e->rel_ms : e->clocks.wall_ms))
        wd_make_ready(e, slot);
    else
        wd_wheel_insert(row->rel ? e->rel_wheel : e->wall_wheel, slot);
}

static void unplace_leased(wd_engine *e, uint32_t slot)
{
    wd_job *row = &e->rows[slot];
    wd_run *run = wd_job_run(e->slab, row);
    WD_ASSERT(run);
    wd_list_remove(e, &e->leased, slot);
    if (e->serving) (void)wd_wheel_cancel(e->rel_wheel, slot);
    row->due_ms = run->due_ms;
    if (wd_handler_at(e->names, row->handler)->ready.count) wd_engine_mark_dirty(e, row->handler);
}

static void unplace_dead(wd_engine *e, uint32_t slot)
{
    const wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
    wd_list_remove(e, &e->dead, slot);
    if (b->key_len) wd_index_remove(e->dead_keys, slot);
}

void wd_unplace(wd_engine *e, uint32_t slot)
{
    wd_job *row = &e->rows[slot];
    switch (row->state) {
    case WD_SCHEDULED:
        if (e->serving) {
            int armed = wd_wheel_cancel(row->rel ? e->rel_wheel : e->wall_wheel, slot);
            WD_ASSERT(armed);
        }
        break;
    case WD_READY:
        if (row->side != WD_NIL) expiring_remove(e, row->side);
        wd_ready_remove(&wd_handler_at(e->names, row->handler)->ready, e->rows, slot);
        working_update(e, row->handler);
        break;
    case WD_LEASED:
        unplace_leased(e, slot);
        break;
    case WD_DEAD:
        unplace_dead(e, slot);
        break;
    default: /* HELD, or ended and kept for its owner: nowhere */
        break;
    }
    WD_ASSERT(row->where == WD_NIL);
}

int64_t wd_grace_ms(uint32_t lease_ms)
{
    int64_t tenth = lease_ms / 10;
    return tenth > WD_GRACE_MS_MIN ? tenth : WD_GRACE_MS_MIN;
}

void wd_arm_lease(wd_engine *e, uint32_t slot)
{
    wd_job *row = &e->rows[slot];
    const wd_run *run = wd_job_run(e->slab, row);
    WD_ASSERT(run && e->serving);
    int64_t over_ms = run->lease_end_ms + wd_grace_ms(run->lease_ms);
    row->due_ms = run->timeout_end_ms < over_ms ? run->timeout_end_ms : over_ms;
    WD_ASSERT(row->due_ms < WD_DUE_MS_END);
    wd_wheel_insert(e->rel_wheel, slot);
}

/* ---- keys ---- */

uint32_t wd_key_find(const wd_engine *e, wd_span key)
{
    uint32_t slot = wd_index_first(e->keys, (uint32_t)wd_key_hash(e, key).lo);
    while (slot != WD_NIL) {
        const wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
        WD_ASSERT(b && b->keyed);
        if (wd_span_eq(wd_text(e, b->key, b->key_len), key)) return slot;
        slot = wd_index_next(e->keys, slot);
    }
    return WD_NIL;
}

void wd_key_add(wd_engine *e, uint32_t slot)
{
    wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
    WD_ASSERT(b && b->key_len > 0 && !b->keyed);
    wd_index_add(e->keys, slot, (uint32_t)wd_key_hash(e, wd_text(e, b->key, b->key_len)).lo);
    b->keyed = 1;
}

void wd_key_remove(wd_engine *e, uint32_t slot)
{
    wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
    if (!b || !b->keyed) return;
    wd_index_remove(e->keys, slot);
    b->keyed = 0;
}

void wd_dead_add(wd_engine *e, uint32_t slot)
{
    const wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
    WD_ASSERT(b && !b->keyed);
    WD_ASSERT(b->run != WD_NIL);
    wd_run_at(e->slab, b->run)->died_lsn = e->lsn + 1;
    wd_list_add(e, &e->dead, slot);
    if (b->key_len == 0) return;
    wd_hash128 hash = wd_key_hash(e, wd_text(e, b->key, b->key_len));
    wd_index_add(e->dead_keys, slot, (uint32_t)hash.lo);
}

uint32_t wd_dead_find(const wd_engine *e, wd_span key)
{
    uint32_t slot = wd_index_first(e->dead_keys, (uint32_t)wd_key_hash(e, key).lo), best = WD_NIL;
    for (; slot != WD_NIL; slot = wd_index_next(e->dead_keys, slot)) {
        const wd_side *b = wd_job_side(e->slab, &e->rows[slot]);
        if (!wd_span_eq(wd_text(e, b->key, b->key_len), key)) continue;
        if (best == WD_NIL || e->rows[slot].lsn > e->rows[best].lsn) best = slot;
    }
    return best;
}

static void side_free(wd_engine *e, uint32_t side)
{
    wd_side *b = wd_side_at(e->slab, side);
    wd_ended_remove(e, side);
    wd_arena_drop(e->arena, b->key, b->key_len);
    wd_arena_drop(e->arena, b->meta, b->meta_len);
    wd_arena_drop(e->arena, b->group, b->group_len);
    wd_arena_drop(e->arena, b->owner, b->owner_len);
    wd_arena_drop(e->arena, b->text, b->text_len);
    if (b->run != WD_NIL) {
        wd_run *run = wd_run_at(e->slab, b->run);
        wd_arena_drop(e->arena, run->worker, run->worker_len);
        wd_run_give(e->slab, b->run);
        b->run = WD_NIL;
    }
    wd_side_give(e->slab, side);
}

void wd_job_free(wd_engine *e, uint32_t slot)
{
    wd_job *row = &e->rows[slot];
    WD_ASSERT(row->where == WD_NIL && !row->heaped);
    wd_key_remove(e, slot);
    wd_arena_drop_sealed(e->arena, row->payload, row->payload_len);
    if (row->side != WD_NIL) side_free(e, row->side);
    row->side = WD_NIL;
    uncount(e, wd_handler_at(e->names, row->handler), row->state);
    wd_slab_give(e->slab, slot); /* marks it free */
}
