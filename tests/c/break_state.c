/* break_state.c -- breaks one thing of a core's state, so that a test can ask who notices.
 *
 * Built into the small core of tests/narrow.py alone. Each break has a name; the scene that it
 * needs stands in tests/unit/test_engine_check.py.
 */
/* Two modules that never meet have a type of this name. */
#define wd_list wd_list_of_conns
#include "wd_round.h"
#undef wd_list
#include "wd_state.h"

int wd_break(wd_core *c, const char *what);
int wd_break_says(wd_core *c);
int wd_break_wheel(wd_wheel *w, const char *what); /* break_wheel.c */

/* The nth row, from 0, in a state. */
static uint32_t row_in(const wd_engine *e, uint32_t state, uint32_t nth)
{
    for (uint32_t slot = 0; slot < wd_slab_top(e->slab); slot++)
        if (e->rows[slot].state == state && nth-- == 0) return slot;
    WD_ASSERT(0);
    return WD_NIL;
}

static wd_handler *working_handler(const wd_engine *e, uint32_t *number)
{
    *number = e->working[0];
    return wd_handler_at(e->names, *number);
}

#define IS(text) strcmp(what, text) == 0

static int break_row(wd_engine *e, const char *what)
{
    wd_job *row = &e->rows[row_in(e, WD_SCHEDULED, 0)];
    wd_job *ready = &e->rows[row_in(e, WD_READY, 0)];
    uint32_t leased = row_in(e, WD_LEASED, 0);
    wd_side *b = wd_job_side(e->slab, row), *rb = wd_job_side(e->slab, ready);
    wd_side *other = wd_job_side(e->slab, &e->rows[row_in(e, WD_SCHEDULED, 1)]);
    wd_side *dead = wd_job_side(e->slab, &e->rows[row_in(e, WD_DEAD, 0)]);
    WD_ASSERT(b && rb && other && dead && b->keyed && other->keyed && rb->on_expiring);
    if (IS("a state that is none"))
        row->state = WD_EXPIRED + 1;
    else if (IS("a scheduled row in no wheel"))
        row->where = WD_NIL;
    else if (IS("a ready row in a wheel"))
        ready->where = 1;
    else if (IS("a row newer than the log"))
        row->lsn = e->lsn + 1;
    else if (IS("a scheduled row in a heap"))
        row->heaped = 1;
    else if (IS("a row of no handler"))
        row->handler = 9999;
    else if (IS("a row of no policy"))
        row->policy = 9999;
    else if (IS("a side block of another row"))
        b->slot++;
    else if (IS("an unowned row among the ended"))
        b->on_ended = 1;
    else if (IS("a ready row that is not expiring"))
        rb->on_expiring = 0;
    else if (IS("a row that expires never, expiring"))
        rb->expire_ms = WD_NEVER_MS;
    else if (IS("a scheduled row, expiring"))
        b->on_expiring = 1;
    else if (IS("a key in no index"))
        b->keyed = 0;
    else if (IS("an index without a key"))
        b->key_len = 0;
    else if (IS("a dead row with a live key"))
        dead->keyed = 1;
    else if (IS("a key twice"))
        b->key = other->key, b->key_len = other->key_len;
    else if (IS("a relative row in the other wheel"))
        row->rel ^= 1;
    else if (IS("a leased row in no wheel"))
        (void)wd_wheel_cancel(e->rel_wheel, leased), e->rows[leased].where = 1;
    else if (IS("a wall wheel that is broken"))
        (void)wd_break_wheel(e->wall_wheel, "a bit of an empty bucket");
    else if (IS("a row without a generation"))
        row->gen = 0;
    else if (IS("another priority than its queue's"))
        ready->priority ^= 1;
    else if (IS("a queue that leads elsewhere"))
        ready->prev = 7;
    else if (IS("a queued row that says it is in the heap"))
        ready->heaped = 1;
    else
        return 0;
    return 1;
}

static int break_run(wd_engine *e, const char *what)
{
    uint32_t slot = row_in(e, WD_LEASED, 0), again = row_in(e, WD_SCHEDULED, 0);
    wd_run *run = wd_job_run(e->slab, &e->rows[slot]);
    while (!wd_job_run(e->slab, &e->rows[again]))
        again++;
    wd_run *over = wd_job_run(e->slab, &e->rows[again]);
    if (IS("a lease that is not live"))
        run->fence = WD_FENCE_OPEN;
    else if (IS("a lease without a run"))
        wd_job_side(e->slab, &e->rows[slot])->run = WD_NIL;
    else if (IS("a live fence of a job that is not leased"))
        over->fence = WD_FENCE_LIVE;
    else if (IS("a grant newer than the log"))
        run->lsn = e->lsn + 1;
    else if (IS("a grant of a term to come"))
        run->term = e->apply_term + 1;
    else if (IS("a run of nobody"))
        (void)wd_run_new(e->slab);
    else if (IS("a side block of nobody"))
        (void)wd_side_new(e->slab, 0);
    else
        return 0;
    return 1;
}

static int break_counts(wd_engine *e, const char *what)
{
    uint32_t n, arena, free = 0;
    wd_handler *h = working_handler(e, &n);
    while (e->rows[free].state != WD_FREE)
        free++;
    if (IS("more in a queue than rows"))
        h->ready.count++;
    else if (IS("a handler with work that is not working"))
        h->working = 0;
    else if (IS("work of another handler"))
        e->working[h->working - 1] = n + 1;
    else if (IS("more with work than there are"))
        e->working_count++;
    else if (IS("a count of the engine"))
        e->count[WD_LEASED]++;
    else if (IS("a count of a handler"))
        h->count[WD_LEASED]++;
    else if (IS("a key index with an item more"))
        wd_index_add(e->keys, 4999, 1);
    else if (IS("a dead key that is in no index"))
        wd_index_remove(e->dead_keys, row_in(e, WD_DEAD, 0));
    else if (IS("a free row that is used up"))
        e->rows[free].gen = WD_GEN_MAX;
    else if (IS("a free list that leads to a row in use"))
        e->rows[free].next = 0;
    else if (IS("a block of nobody"))
        (void)wd_arena_put(e->arena, WD_SPAN("x"), &arena);
    else
        return 0;
    return 1;
}

/* Of the handler with work: two jobs in its heap, two priorities. */
static int break_ready(wd_engine *e, const char *what)
{
    uint32_t n;
    wd_handler *h = working_handler(e, &n);
    wd_ready *q = &h->ready;
    WD_ASSERT(q->heap_count == 2 && q->fifos_count == 2);
    wd_job *top = &e->rows[q->heap[0]], *below = &e->rows[q->heap[1]];
    if (IS("a row of the heap that says it is queued"))
        top->heaped = 0;
    else if (IS("a row of the heap that names another place"))
        below->prev = 0;
    else if (IS("a heap out of order"))
        below->due_ms = top->due_ms - 1;
    else if (IS("two queues of one priority"))
        q->fifos[1].priority = q->fifos[0].priority;
    else if (IS("a queue whose end is not its last"))
        q->fifos[1].tail = q->heap[0];
    else if (IS("a handler that counts one less"))
        h->count[WD_READY]--, q->count--;
    else
        return 0;
    return 1;
}

static int break_lists(wd_engine *e, const char *what)
{
    uint32_t leased = e->leased.first, dead = e->dead.first;
    wd_side *ended = wd_side_at(e->slab, e->ended_first);
    wd_side *expiring = wd_side_at(e->slab, e->expiring);
    wd_side *owned = wd_job_side(e->slab, &e->rows[row_in(e, WD_HELD, 0)]);
    WD_ASSERT(owned && owned->owner_len && !owned->on_ended);
    if (IS("leased: one more"))
        e->leased.count++;
    else if (IS("leased: one less"))
        e->leased.count--;
    else if (IS("leased: a way back that leads elsewhere"))
        e->rows[leased].prev = 7;
    else if (IS("leased: no end"))
        e->leased.last = WD_NIL;
    else if (IS("leased: a row that is not"))
        e->leased.first = row_in(e, WD_READY, 0);
    else if (IS("leased: the engine counts another number"))
        e->leased.first = e->leased.last = WD_NIL, e->leased.count = 0;
    else if (IS("dead: no end"))
        e->dead.last = WD_NIL;
    else if (IS("dead: never died"))
        wd_job_run(e->slab, &e->rows[dead])->died_lsn = 0;
    else if (IS("dead: in a time to come"))
        wd_job_run(e->slab, &e->rows[dead])->died_lsn = e->lsn + 1;
    else if (IS("ended: one that is not"))
        ended->on_ended = 0;
    else if (IS("ended: one less"))
        e->ended_count--;
    else if (IS("ended: one more"))
        e->ended_count++;
    else if (IS("ended: never"))
        ended->ended_lsn = 0;
    else if (IS("ended: in a time to come"))
        ended->ended_lsn = e->lsn + 1;
    else if (IS("ended: one that is on no list"))
        owned->on_ended = 1;
    else if (IS("expiring: one more"))
        e->expiring_count++;
    else if (IS("expiring: a way back that leads elsewhere"))
        expiring->expiring_prev = 1;
    else if (IS("expiring: none"))
        e->expiring = WD_NIL;
    else if (IS("ended ring: out of order"))
        ((wd_ended *)(uintptr_t)wd_ring_ended_at(e->ring, 1))->rel_ms = -1;
    else if (IS("tokens: out of order"))
        ((wd_once *)(uintptr_t)wd_ring_once_at(e->ring, 1))->rel_ms = -1;
    else
        return 0;
    return 1;
}

static int break_batches(wd_engine *e, const char *what)
{
    WD_ASSERT(e->queue_first && e->queue_first->next && e->open);
    if (IS("a gap between queued batches"))
        e->queue_first->next->meta.first_lsn++;
    else if (IS("a gap before the open batch"))
        e->open->meta.first_lsn++;
    else if (IS("a gap behind the open batch"))
        e->open->meta.records--;
    else
        return 0;
    return 1;
}

/* Of the row in slot 0, whatever its state; done twice, it is as it was. */
static int break_payload(wd_engine *e, const char *what)
{
    const wd_job *row = &e->rows[0];
    if (!IS("a payload that changed") && !IS("a checksum that changed")) return 0;
    WD_ASSERT(row->payload != WD_NIL);
    uint8_t *p = (uint8_t *)(uintptr_t)wd_arena_at(e->arena, row->payload);
    p[IS("a checksum that changed") ? row->payload_len : 0] ^= 1;
    return 1;
}

/* 1: done; 0: there is no such break. "" queues the open batch, for those of batches. */
int wd_break(wd_core *c, const char *what)
{
    wd_engine *e = c->engine;
    if (IS("")) {
        wd_engine_close_batch(e);
        return 1;
    }
    return break_payload(e, what) || break_row(e, what) || break_run(e, what) ||
           break_counts(e, what) || break_ready(e, what) || break_lists(e, what) ||
           (e->queue_first && break_batches(e, what)) || wd_break_wheel(e->rel_wheel, what);
}

/* Which of its own invariants the wheel of relative times finds broken; 0 = none. */
int wd_break_says(wd_core *c)
{
    return wd_wheel_check(c->engine->rel_wheel);
}
