/* heap4.c -- see heap4.h. As good a heap as we can make one, for a fair comparison.
 *
 * An entry is 16 bytes and holds the key, so that sifting never reads a row. The root is at
 * position ROOT = 3: then the four children of p, at 4p - 8 .. 4p - 5, begin at a multiple of four
 * and share one cache line. Sifting moves a hole and writes the entry once. Each move writes the
 * row's `where`, as cancel by position demands.
 */
#include "heap4.h"

enum { ROOT = 3, ARITY = 4 };

typedef struct {
    int64_t due_ms;
    uint32_t seq; /* order of insertion; enough for 2^32 inserts, wraps beyond */
    uint32_t slot;
} entry;

struct heap4 {
    wd_job *rows;
    entry *at; /* [ROOT, end) */
    uint32_t end;
    uint32_t capacity;
    uint32_t next_seq;
};

static inline uint32_t parent_of(uint32_t p)
{
    return p / ARITY + 2;
}

static inline uint32_t first_child_of(uint32_t p)
{
    return ARITY * (p - 2);
}

static inline int before(const entry *a, const entry *b)
{
    if (a->due_ms != b->due_ms) return a->due_ms < b->due_ms;
    return (int32_t)(a->seq - b->seq) < 0;
}

static inline void put(heap4 *h, uint32_t p, entry e)
{
    h->at[p] = e;
    h->rows[e.slot].where = p;
}

static void sift_up(heap4 *h, uint32_t hole, entry e)
{
    while (hole > ROOT) {
        uint32_t parent = parent_of(hole);
        if (!before(&e, &h->at[parent])) break;
        put(h, hole, h->at[parent]);
        hole = parent;
    }
    put(h, hole, e);
}

static void sift_down(heap4 *h, uint32_t hole, entry e)
{
    uint64_t child = first_child_of(hole);
    while (child < h->end) {
        uint32_t best = (uint32_t)child;
        uint32_t last = best + ARITY < h->end ? best + ARITY : h->end;
        for (uint32_t i = best + 1; i < last; i++) {
            if (before(&h->at[i], &h->at[best])) best = i;
        }
        if (!before(&h->at[best], &e)) break;
        put(h, hole, h->at[best]);
        hole = best;
        child = (uint64_t)ARITY * (hole - 2);
    }
    put(h, hole, e);
}

static size_t size_bytes(uint32_t capacity)
{
    return sizeof(entry) * ((size_t)capacity + ROOT);
}

heap4 *heap4_new(wd_job *rows, uint32_t capacity)
{
    heap4 *h = wd_zalloc(sizeof *h);
    if (!h) return NULL;
    *h = (heap4){.rows = rows, .end = ROOT, .capacity = capacity};
    h->at = wd_reserve(size_bytes(capacity));
    if (!h->at) {
        wd_release(h);
        return NULL;
    }
    return h;
}

void heap4_free(heap4 *h)
{
    if (!h) return;
    wd_unreserve(h->at, size_bytes(h->capacity));
    wd_release(h);
}

void heap4_insert(heap4 *h, uint32_t slot)
{
    WD_ASSERT(h->end - ROOT < h->capacity && h->rows[slot].where == WD_NIL);
    entry e = {.due_ms = h->rows[slot].due_ms, .seq = h->next_seq++, .slot = slot};
    sift_up(h, h->end++, e);
}

/* Fill the hole with the last entry. */
static void close_hole(heap4 *h, uint32_t hole)
{
    entry last = h->at[--h->end];
    if (hole == h->end) return;
    if (hole > ROOT && before(&last, &h->at[parent_of(hole)])) {
        sift_up(h, hole, last);
    } else {
        sift_down(h, hole, last);
    }
}

int heap4_cancel(heap4 *h, uint32_t slot)
{
    uint32_t p = h->rows[slot].where;
    if (p == WD_NIL) return 0;
    WD_ASSERT(p < h->end && h->at[p].slot == slot);
    h->rows[slot].where = WD_NIL;
    close_hole(h, p);
    return 1;
}

size_t heap4_advance(heap4 *h, int64_t target_ms, uint32_t *out, size_t max_out)
{
    size_t got = 0;
    while (got < max_out && h->end > ROOT && h->at[ROOT].due_ms <= target_ms) {
        uint32_t slot = h->at[ROOT].slot;
        out[got++] = slot;
        h->rows[slot].where = WD_NIL;
        close_hole(h, ROOT);
    }
    return got;
}

int64_t heap4_next_due(const heap4 *h)
{
    return h->end > ROOT ? h->at[ROOT].due_ms : WD_NEVER_MS;
}

uint64_t heap4_bytes(const heap4 *h)
{
    return sizeof(entry) * (uint64_t)(h->end - ROOT);
}
