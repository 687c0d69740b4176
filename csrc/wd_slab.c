/* wd_slab.c -- rows, side blocks, run blocks.
 *
 * Free rows are a FIFO list, so a slot is reused as late as possible and its 25-bit generation
 * lasts; a slot whose generations are used up is retired (left out of the list). Free side and run
 * blocks are LIFO lists: they are reused while warm. A block that is taken holds what it held.
 *
 * Invariants: (1) a row is FREE or has a generation >= 1; (2) unless replaying, the free list holds
 * exactly the FREE slots below top whose generation is < WD_GEN_MAX; (3) counts equal what is in
 * use.
 */
#include "wd_slab.h"

static int pool_init(wd_pool *p, size_t block_bytes, uint32_t capacity)
{
    *p = (wd_pool){.block_bytes = block_bytes, .capacity = capacity};
    p->base = wd_reserve(block_bytes * capacity);
    return p->base ? WD_OK : WD_ENOMEM;
}

/* Never in vain: a row has one side block at most, a side block one run, and all three kinds have
 * room for as many as there are rows. */
static uint32_t pool_take(wd_pool *p)
{
    uint32_t i;
    if (p->free) {
        i = p->free - 1;
        p->free = wd_get_u32(p->base + (size_t)i * p->block_bytes);
    } else {
        WD_ASSERT(p->top < p->capacity);
        i = p->top++;
    }
    p->used++;
    return i;
}

static void pool_give(wd_pool *p, uint32_t i)
{
    WD_ASSERT(i < p->top);
    WD_ASSERT(p->used > 0);
    wd_put_u32(p->base + (size_t)i * p->block_bytes, p->free);
    p->free = i + 1;
    p->used--;
}

wd_slab *wd_slab_new(uint32_t capacity)
{
    WD_ASSERT(capacity > 0);
    wd_slab *s = wd_zalloc(sizeof *s);
    if (!s) return NULL;
    s->capacity = capacity;
    s->free_head = s->free_tail = WD_NIL;
    s->rows = wd_reserve(sizeof(wd_job) * capacity);
    if (s->rows && pool_init(&s->sides, sizeof(wd_side), capacity) == WD_OK &&
        pool_init(&s->runs, sizeof(wd_run), capacity) == WD_OK)
        return s;
    wd_slab_free(s);
    return NULL;
}

void wd_slab_free(wd_slab *s)
{
    if (!s) return;
    wd_unreserve(s->rows, sizeof(wd_job) * s->capacity);
    wd_unreserve(s->sides.base, sizeof(wd_side) * s->capacity);
    wd_unreserve(s->runs.base, sizeof(wd_run) * s->capacity);
    wd_release(s);
}

wd_job *wd_slab_rows(const wd_slab *s)
{
    return s->rows;
}

uint32_t wd_slab_top(const wd_slab *s)
{
    return s->top;
}

uint32_t wd_slab_capacity(const wd_slab *s)
{
    return s->capacity;
}

static uint32_t next_generation(const wd_slab *s, uint32_t last)
{
    return last + 1 > s->floor ? last + 1 : s->floor;
}

int wd_slab_next_id(const wd_slab *s, uint64_t *out_id)
{
    WD_ASSERT(s->linked);
    if (s->free_head != WD_NIL) {
        *out_id = wd_id_of(next_generation(s, s->rows[s->free_head].gen), s->free_head);
        return WD_OK;
    }
    if (s->top == s->capacity) return WD_EFULL;
    *out_id = wd_id_of(next_generation(s, 0), s->top);
    return WD_OK;
}

void wd_slab_raise(wd_slab *s, uint32_t generation)
{
    WD_ASSERT(generation <= WD_GEN_MAX);
    if (generation > s->floor) s->floor = generation;
}

uint32_t wd_slab_floor(const wd_slab *s)
{
    return s->floor;
}

uint32_t wd_slab_generation_max(const wd_slab *s)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->top; i++)
        if (s->rows[i].gen > most) most = s->rows[i].gen;
    return most;
}

uint32_t wd_slab_room(const wd_slab *s)
{
    return s->capacity - s->top + s->free_count;
}

/* Take slot off the free list: live, it can only be the head. */
static void unlink_free(wd_slab *s, uint32_t slot)
{
    if (!s->linked) return;
    WD_ASSERT(s->free_head == slot);
    s->free_head = s->rows[slot].next;
    if (s->free_head == WD_NIL) s->free_tail = WD_NIL;
    s->free_count--;
}

static void clear_row(wd_job *row, uint32_t gen)
{
    *row = (wd_job){.gen = gen & WD_GEN_MAX,
                    .where = WD_NIL,
                    .next = WD_NIL,
                    .prev = WD_NIL,
                    .payload = WD_NIL,
                    .side = WD_NIL};
}

int wd_slab_claim(wd_slab *s, uint64_t id, uint32_t *out_slot)
{
    uint32_t slot = (uint32_t)id;
    uint64_t gen = id >> WD_SLOT_BITS;
    if (gen == 0 || gen > WD_GEN_MAX) return WD_ECORRUPT;
    if (slot >= s->capacity) return WD_EFULL;
    wd_job *row = &s->rows[slot];
    if (slot < s->top) {
        if (row->state != WD_FREE || gen <= row->gen) return WD_ECORRUPT;
        unlink_free(s, slot);
    } else {
        WD_ASSERT(!s->linked || slot == s->top);
        for (uint32_t i = s->top; i <= slot; i++)
            s->rows[i].where = WD_NIL;
        s->top = slot + 1;
    }
    clear_row(row, (uint32_t)gen);
    s->used++;
    *out_slot = slot;
    return WD_OK;
}

static void pool_expect(wd_pool *p, uint32_t blocks)
{
    uint32_t n = blocks < p->capacity ? blocks : p->capacity;
    wd_expect(p->base, p->block_bytes * n);
}

void wd_slab_expect(wd_slab *s, uint32_t slots, uint32_t sides, uint32_t runs)
{
    WD_ASSERT(s->top == 0);
    wd_expect(s->rows, sizeof(wd_job) * (size_t)(slots < s->capacity ? slots : s->capacity));
    pool_expect(&s->sides, sides);
    pool_expect(&s->runs, runs);
}

int wd_slab_load(wd_slab *s, uint32_t slot, uint32_t gen, int used)
{
    WD_ASSERT(!s->linked);
    if (slot != s->top || gen > WD_GEN_MAX || (used && gen == 0)) return WD_ECORRUPT;
    if (slot == s->capacity) return WD_EFULL;
    clear_row(&s->rows[slot], gen);
    s->top++;
    s->used += used != 0;
    return WD_OK;
}

static void link_free(wd_slab *s, uint32_t slot)
{
    s->rows[slot].next = WD_NIL;
    if (s->free_tail == WD_NIL)
        s->free_head = slot;
    else
        s->rows[s->free_tail].next = slot;
    s->free_tail = slot;
    s->free_count++;
}

void wd_slab_give(wd_slab *s, uint32_t slot)
{
    wd_job *row = &s->rows[slot];
    WD_ASSERT(slot < s->top && row->state != WD_FREE);
    WD_ASSERT(row->side == WD_NIL && row->where == WD_NIL);
    /* Read before the state is written: they share a word, and a load behind the store waits. */
    int retired = row->gen == WD_GEN_MAX;
    row->state = WD_FREE;
    s->used--;
    if (s->linked && !retired) link_free(s, slot);
}

void wd_slab_link_free(wd_slab *s)
{
    s->free_head = s->free_tail = WD_NIL;
    s->free_count = 0;
    for (uint32_t i = 0; i < s->top; i++)
        if (s->rows[i].state == WD_FREE && s->rows[i].gen < WD_GEN_MAX) link_free(s, i);
    s->linked = 1;
}

uint32_t wd_side_new(wd_slab *s, uint32_t slot)
{
    uint32_t i = pool_take(&s->sides);
    *wd_side_at(s, i) = (wd_side){.expire_ms = WD_NEVER_MS,
                                  .slot = slot,
                                  .run = WD_NIL,
                                  .key = WD_NIL,
                                  .meta = WD_NIL,
                                  .group = WD_NIL,
                                  .owner = WD_NIL,
                                  .text = WD_NIL,
                                  .expiring_next = WD_NIL,
                                  .expiring_prev = WD_NIL,
                                  .ended_next = WD_NIL,
                                  .ended_prev = WD_NIL};
    return i;
}

void wd_side_give(wd_slab *s, uint32_t side)
{
    wd_side *b = wd_side_at(s, side);
    WD_ASSERT(b->run == WD_NIL);
    WD_ASSERT(!b->keyed && !b->on_expiring && !b->on_ended);
    pool_give(&s->sides, side);
}

uint32_t wd_run_new(wd_slab *s)
{
    uint32_t i = pool_take(&s->runs);
    wd_run *run = wd_run_at(s, i);
    memset(run, 0, offsetof(wd_run, attempts)); /* none of those is read: attempts_count is 0 */
    run->worker = WD_NIL;
    return i;
}

void wd_run_give(wd_slab *s, uint32_t run)
{
    pool_give(&s->runs, run);
}

wd_slab_counts wd_slab_count(const wd_slab *s)
{
    return (wd_slab_counts){s->used, s->sides.used, s->runs.used};
}

uint64_t wd_slab_bytes(const wd_slab *s)
{
    return s->used * sizeof(wd_job) + s->sides.used * sizeof(wd_side) +
           s->runs.used * sizeof(wd_run);
}

int wd_slab_check(const wd_slab *s)
{
    uint32_t used = 0, free = 0, linked = 0;
    for (uint32_t i = 0; i < s->top; i++) {
        if (s->rows[i].state != WD_FREE && s->rows[i].gen == 0) return 0;
        if (s->rows[i].state != WD_FREE)
            used++;
        else if (s->rows[i].gen < WD_GEN_MAX)
            free++;
    }
    if (used != s->used) return 0;
    if (!s->linked) return 1;
    for (uint32_t i = s->free_head; i != WD_NIL; i = s->rows[i].next)
        if (i >= s->top || s->rows[i].state != WD_FREE || ++linked > free) return 0;
    return linked == free && linked == s->free_count;
}
