/* wd_ring.c -- two circular arrays in reserved space, found through chains that need no deletion.
 *
 * An entry has a number, counted from 1 for ever; it stands at number % capacity. A chain head
 * holds the low 32 bits of the newest entry's number, each entry those of the one before it in the
 * same chain. A link is followed while it leads to a strictly older entry that is still in the
 * ring; so entries fall out of their chains by being forgotten, and a link that meets another entry
 * after 2^32 of them does no harm: entries are compared by what they are.
 *
 * Ended jobs are chained by slot (a job id names its slot) and by key hash; tokens by token hash.
 */
#include "wd_ring.h"

enum {
    CHAINS_LOG2 = 20,
    CHAINS = 1 << CHAINS_LOG2,
    /* Entries whose memory is given back at once. A power of two: blocks tile the ring, and as an
     * entry's size is a multiple of 8 bytes each is whole pages, so that none is left behind. */
    BLOCK = 8192,
    AGED_MAX = 16 * 1024 /* entries that one call forgets at most: a bound on one frame's work */
};

typedef struct {
    uint8_t *base;
    size_t entry_bytes;
    uint32_t capacity;
    uint64_t head, tail; /* numbers of the oldest entry and of the next one; head == tail: empty */
    uint64_t skip;       /* entries to come that are forgotten already: a checkpoint is ahead */
} ring;

typedef struct {
    wd_ended e;
    uint32_t slot_prev, key_prev;
} ended_entry;

typedef struct {
    wd_once o;
    uint32_t prev;
} once_entry;

struct wd_ring {
    ring ended, once;
    wd_arena *texts;
    uint32_t slots_max;
    uint32_t *by_slot; /* chain heads: low 32 bits of a number */
    uint32_t *by_key;
    uint32_t *by_token;
};

static void *entry_at(const ring *r, uint64_t number)
{
    return r->base + (number % r->capacity) * r->entry_bytes;
}

/* The entry that a link leads to from the entry with number `from` (r->tail: from a chain head);
 * 0 = the chain ends here. */
static uint64_t follow(const ring *r, uint32_t link, uint64_t from)
{
    uint32_t back = (uint32_t)r->tail - link;    /* distance from the tail, 1 = the newest */
    if (back - 1 >= r->tail - r->head) return 0; /* 0: written 2^32 entries ago */
    uint64_t number = r->tail - back;
    return number < from ? number : 0;
}

static int ring_init(ring *r, size_t entry_bytes, uint32_t capacity)
{
    WD_ASSERT(capacity < BLOCK || capacity % BLOCK == 0);
    *r = (ring){.entry_bytes = entry_bytes, .capacity = capacity, .head = 1, .tail = 1};
    r->base = wd_reserve(entry_bytes * capacity);
    return r->base != NULL;
}

wd_ring *wd_ring_new(uint32_t slots_max, wd_arena *texts)
{
    wd_ring *r = wd_zalloc(sizeof *r);
    if (!r) return NULL;
    r->texts = texts;
    r->slots_max = slots_max;
    r->by_slot = wd_reserve(sizeof(uint32_t) * slots_max);
    r->by_key = wd_reserve(sizeof(uint32_t) * CHAINS);
    r->by_token = wd_reserve(sizeof(uint32_t) * CHAINS);
    if (ring_init(&r->ended, sizeof(ended_entry), WD_ENDED_MAX) &&
        ring_init(&r->once, sizeof(once_entry), WD_ONCE_MAX) && r->by_slot && r->by_key &&
        r->by_token)
        return r;
    wd_ring_free(r);
    return NULL;
}

void wd_ring_free(wd_ring *r)
{
    if (!r) return;
    wd_unreserve(r->ended.base, r->ended.entry_bytes * r->ended.capacity);
    wd_unreserve(r->once.base, r->once.entry_bytes * r->once.capacity);
    wd_unreserve(r->by_slot, sizeof(uint32_t) * r->slots_max);
    wd_unreserve(r->by_key, sizeof(uint32_t) * CHAINS);
    wd_unreserve(r->by_token, sizeof(uint32_t) * CHAINS);
    wd_release(r);
}

static uint32_t chain_of(wd_hash128 h)
{
    return (uint32_t)h.hi & (CHAINS - 1);
}

static int same(wd_hash128 a, wd_hash128 b)
{
    return ((a.lo ^ b.lo) | (a.hi ^ b.hi)) == 0;
}

static int has_key(wd_hash128 h)
{
    return (h.lo | h.hi) != 0;
}

/* 1: the entry that comes now is one of those that are forgotten already. */
static int skips(ring *r)
{
    if (r->skip == 0) return 0;
    WD_ASSERT(r->head == r->tail);
    r->skip--;
    return 1;
}

int wd_ring_end(wd_ring *r, const wd_ended *e, wd_span text)
{
    uint32_t slot = (uint32_t)e->id;
    WD_ASSERT(slot < r->slots_max);
    if (r->ended.tail - r->ended.head == r->ended.capacity) return WD_EFULL;
    if (skips(&r->ended)) return WD_OK;
    uint64_t number = r->ended.tail++;
    ended_entry *x = entry_at(&r->ended, number);
    *x = (ended_entry){.e = *e, .slot_prev = r->by_slot[slot]};
    x->e.text_len = 0;
    if (wd_arena_put(r->texts, text, &x->e.text) == WD_OK)
        x->e.text_len = (uint16_t)text.n;
    else
        x->e.text = WD_NIL;
    r->by_slot[slot] = (uint32_t)number;
    if (has_key(e->key)) {
        x->key_prev = r->by_key[chain_of(e->key)];
        r->by_key[chain_of(e->key)] = (uint32_t)number;
    }
    return WD_OK;
}

const wd_ended *wd_ring_find(const wd_ring *r, uint64_t id)
{
    uint32_t slot = (uint32_t)id;
    if (slot >= r->slots_max) return NULL;
    uint64_t n = follow(&r->ended, r->by_slot[slot], r->ended.tail);
    while (n) {
        const ended_entry *x = entry_at(&r->ended, n);
        if (x->e.id == id) return &x->e;
        n = follow(&r->ended, x->slot_prev, n);
    }
    return NULL;
}

const wd_ended *wd_ring_find_key(const wd_ring *r, wd_hash128 key)
{
    uint64_t n = follow(&r->ended, r->by_key[chain_of(key)], r->ended.tail);
    while (n) {
        const ended_entry *x = entry_at(&r->ended, n);
        if (same(x->e.key, key)) return &x->e;
        n = follow(&r->ended, x->key_prev, n);
    }
    return NULL;
}

int wd_ring_once(wd_ring *r, const wd_once *o)
{
    if (r->once.tail - r->once.head == r->once.capacity) return WD_EFULL;
    if (skips(&r->once)) return WD_OK;
    uint64_t number = r->once.tail++;
    once_entry *x = entry_at(&r->once, number);
    *x = (once_entry){.o = *o, .prev = r->by_token[chain_of(o->token)]};
    r->by_token[chain_of(o->token)] = (uint32_t)number;
    return WD_OK;
}

const wd_once *wd_ring_find_once(const wd_ring *r, wd_hash128 token, int64_t rel_ms)
{
    uint64_t n = follow(&r->once, r->by_token[chain_of(token)], r->once.tail);
    while (n) {
        const once_entry *x = entry_at(&r->once, n);
        if (same(x->o.token, token)) return x->o.rel_ms + WD_ONCE_KEPT_MS > rel_ms ? &x->o : NULL;
        n = follow(&r->once, x->prev, n);
    }
    return NULL;
}

/* Entries [head, head + n) go; blocks wholly behind the new head are given back, but one that the
 * ring's other end has come to: it is in use. */
static void forget(ring *r, uint64_t n)
{
    WD_ASSERT(n <= r->tail - r->head);
    uint64_t first = r->head / BLOCK, end = (r->head + n) / BLOCK;
    r->head += n;
    for (uint64_t b = first; b < end; b++)
        if (b * BLOCK + r->capacity >= r->tail)
            wd_discard(entry_at(r, b * BLOCK), BLOCK * r->entry_bytes);
}

void wd_ring_drop_ended(wd_ring *r, uint64_t n)
{
    WD_ASSERT(n <= wd_ring_ended_count(r));
    for (uint64_t i = 0; i < n; i++) {
        const wd_ended *e = wd_ring_ended_at(r, i);
        wd_arena_drop(r->texts, e->text, e->text_len);
    }
    forget(&r->ended, n);
}

void wd_ring_drop_once(wd_ring *r, uint64_t n)
{
    forget(&r->once, n);
}

void wd_ring_age(wd_ring *r, int64_t rel_ms)
{
    uint64_t n = 0;
    while (n < AGED_MAX && n < wd_ring_ended_count(r) &&
           wd_ring_ended_at(r, n)->rel_ms + WD_ENDED_KEPT_MS <= rel_ms)
        n++;
    if (n) wd_ring_drop_ended(r, n);
    n = 0;
    while (n < AGED_MAX && n < wd_ring_once_count(r) &&
           wd_ring_once_at(r, n)->rel_ms + WD_ONCE_KEPT_MS <= rel_ms)
        n++;
    if (n) wd_ring_drop_once(r, n);
}

uint64_t wd_ring_ended_count(const wd_ring *r)
{
    return r->ended.tail - r->ended.head;
}

uint64_t wd_ring_once_count(const wd_ring *r)
{
    return r->once.tail - r->once.head;
}

const wd_ended *wd_ring_ended_at(const wd_ring *r, uint64_t i)
{
    WD_ASSERT(i < wd_ring_ended_count(r));
    return &((const ended_entry *)entry_at(&r->ended, r->ended.head + i))->e;
}

const wd_once *wd_ring_once_at(const wd_ring *r, uint64_t i)
{
    WD_ASSERT(i < wd_ring_once_count(r));
    return &((const once_entry *)entry_at(&r->once, r->once.head + i))->o;
}

uint64_t wd_ring_bytes(const wd_ring *r)
{
    return wd_ring_ended_count(r) * sizeof(ended_entry) +
           wd_ring_once_count(r) * sizeof(once_entry);
}

/* ---- checkpoints ---- */

wd_numbers wd_ring_ended_numbers(const wd_ring *r)
{
    return (wd_numbers){r->ended.head, r->ended.tail};
}

wd_numbers wd_ring_once_numbers(const wd_ring *r)
{
    return (wd_numbers){r->once.head, r->once.tail};
}

/* Let the next entry have this number. */
static int seek(ring *r, uint64_t number)
{
    if (number < r->tail) return WD_ECORRUPT;
    WD_ASSERT(number == r->tail || r->head == r->tail);
    if (number > r->tail) r->head = r->tail = number;
    return WD_OK;
}

int wd_ring_load_ended(wd_ring *r, uint64_t number, const wd_ended *e, wd_span text)
{
    uint64_t count = wd_ring_ended_count(r);
    if (count && e->rel_ms < wd_ring_ended_at(r, count - 1)->rel_ms) return WD_ECORRUPT;
    if (number > r->ended.tail) wd_ring_drop_ended(r, count);
    int status = seek(&r->ended, number);
    return status == WD_OK ? wd_ring_end(r, e, text) : status;
}

int wd_ring_load_once(wd_ring *r, uint64_t number, const wd_once *o)
{
    uint64_t count = wd_ring_once_count(r);
    if (count && o->rel_ms < wd_ring_once_at(r, count - 1)->rel_ms) return WD_ECORRUPT;
    if (number > r->once.tail) wd_ring_drop_once(r, count);
    int status = seek(&r->once, number);
    return status == WD_OK ? wd_ring_once(r, o) : status;
}

/* How many of the oldest go when numbers below n.first are forgotten; -1: n does not fit. */
static int64_t settled(const ring *r, wd_numbers n)
{
    uint64_t count = r->tail - r->head;
    if (n.first == 0 || n.next == 0) return -1;
    if (n.first >= n.next) return (int64_t)count;
    return n.next == r->tail && n.first >= r->head ? (int64_t)(n.first - r->head) : -1;
}

/* What is left has gone: the first entry that counts is n.first. */
static void leap(ring *r, wd_numbers n)
{
    if (n.first < n.next) return;
    WD_ASSERT(r->head == r->tail);
    r->head = r->tail = n.first;
    r->skip = n.first - n.next;
}

int wd_ring_settle_ended(wd_ring *r, wd_numbers n)
{
    int64_t gone = settled(&r->ended, n);
    if (gone < 0) return WD_ECORRUPT;
    wd_ring_drop_ended(r, (uint64_t)gone);
    leap(&r->ended, n);
    return WD_OK;
}

int wd_ring_settle_once(wd_ring *r, wd_numbers n)
{
    int64_t gone = settled(&r->once, n);
    if (gone < 0) return WD_ECORRUPT;
    wd_ring_drop_once(r, (uint64_t)gone);
    leap(&r->once, n);
    return WD_OK;
}
