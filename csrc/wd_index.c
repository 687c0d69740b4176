/* wd_index.c -- linear hashing over reserved arrays.
 *
 * Buckets are 0 .. 2^level + split - 1. A hash's bucket is its low `level` bits, or level + 1 bits
 * if that bucket has been split in this round. Links and hashes stand in arrays by item, so an
 * index of few items in a large range touches few pages.
 *
 * Invariants: (1) every item's chain is the bucket of its hash; (2) count = items in all chains;
 * (3) split < 2^level.
 */
#include "wd_index.h"

enum { LEVEL_MIN = 4, DENSE = 4 };

struct wd_index {
    uint32_t items_max, count, level, split;
    uint32_t *head; /* by bucket: item + 1, 0 = empty (reserved memory reads as zero) */
    uint32_t *next; /* by item: item + 1 of the next in the chain, 0 = last */
    uint32_t *hash; /* by item */
};

static size_t array_bytes(uint32_t items_max)
{
    return ((size_t)items_max + (1u << (LEVEL_MIN + 1))) * sizeof(uint32_t);
}

wd_index *wd_index_new(uint32_t items_max)
{
    WD_ASSERT(items_max > 0);
    wd_index *ix = wd_zalloc(sizeof *ix);
    if (!ix) return NULL;
    ix->items_max = items_max;
    ix->level = LEVEL_MIN;
    ix->head = wd_reserve(array_bytes(items_max));
    ix->next = wd_reserve(array_bytes(items_max));
    ix->hash = wd_reserve(array_bytes(items_max));
    if (ix->head && ix->next && ix->hash) return ix;
    wd_index_free(ix);
    return NULL;
}

void wd_index_free(wd_index *ix)
{
    if (!ix) return;
    wd_unreserve(ix->head, array_bytes(ix->items_max));
    wd_unreserve(ix->next, array_bytes(ix->items_max));
    wd_unreserve(ix->hash, array_bytes(ix->items_max));
    wd_release(ix);
}

void wd_index_presize(wd_index *ix, uint32_t items, uint32_t end)
{
    WD_ASSERT(ix->count == 0);
    uint32_t buckets = items < ix->items_max ? items : ix->items_max;
    if (buckets < 1u << LEVEL_MIN) return;
    ix->level = 31 - (uint32_t)__builtin_clz(buckets);
    ix->split = buckets - (1u << ix->level);
    WD_ASSERT(ix->split < 1u << ix->level);
    wd_expect(ix->head, buckets * sizeof(uint32_t));
    if (items < end / DENSE || end > ix->items_max) return; /* by item: few pages are touched */
    wd_expect(ix->next, end * sizeof(uint32_t));
    wd_expect(ix->hash, end * sizeof(uint32_t));
}

static uint32_t bucket_of(const wd_index *ix, uint32_t hash)
{
    uint32_t b = hash & ((1u << ix->level) - 1);
    if (b < ix->split) b = hash & ((1u << (ix->level + 1)) - 1);
    return b;
}

/* Split the next bucket of this round: its items go to it and to its new sibling. */
static void split_one(wd_index *ix)
{
    uint32_t from = ix->split, to = from + (1u << ix->level);
    uint32_t link = ix->head[from];
    WD_ASSERT(ix->head[to] == 0);
    ix->head[from] = 0;
    if (++ix->split == 1u << ix->level) {
        ix->level++;
        ix->split = 0;
    }
    while (link) {
        uint32_t item = link - 1, b = bucket_of(ix, ix->hash[item]);
        link = ix->next[item];
        WD_ASSERT(b == from || b == to);
        ix->next[item] = ix->head[b];
        ix->head[b] = item + 1;
    }
}

void wd_index_add(wd_index *ix, uint32_t item, uint32_t hash)
{
    WD_ASSERT(item < ix->items_max);
    WD_ASSERT(ix->count < ix->items_max);
    uint32_t b = bucket_of(ix, hash);
    ix->hash[item] = hash;
    ix->next[item] = ix->head[b];
    ix->head[b] = item + 1;
    ix->count++;
    if (ix->count > (1u << ix->level) + ix->split) split_one(ix);
}

void wd_index_remove(wd_index *ix, uint32_t item)
{
    WD_ASSERT(item < ix->items_max);
    uint32_t *link = &ix->head[bucket_of(ix, ix->hash[item])];
    while (*link != item + 1) {
        WD_ASSERT(*link != 0);
        link = &ix->next[*link - 1];
    }
    *link = ix->next[item];
    ix->next[item] = 0;
    ix->count--;
}

static uint32_t match(const wd_index *ix, uint32_t link, uint32_t hash)
{
    while (link && ix->hash[link - 1] != hash)
        link = ix->next[link - 1];
    return link ? link - 1 : WD_NIL;
}

uint32_t wd_index_first(const wd_index *ix, uint32_t hash)
{
    return match(ix, ix->head[bucket_of(ix, hash)], hash);
}

uint32_t wd_index_next(const wd_index *ix, uint32_t item)
{
    return match(ix, ix->next[item], ix->hash[item]);
}

uint32_t wd_index_count(const wd_index *ix)
{
    return ix->count;
}

int wd_index_check(const wd_index *ix)
{
    uint64_t seen = 0;
    if (ix->split >= 1u << ix->level) return 0;
    for (uint32_t b = 0; b < (1u << ix->level) + ix->split; b++) {
        for (uint32_t link = ix->head[b]; link; link = ix->next[link - 1]) {
            if (link > ix->items_max || ++seen > ix->count) return 0;
            if (bucket_of(ix, ix->hash[link - 1]) != b) return 0;
        }
    }
    return seen == ix->count;
}
