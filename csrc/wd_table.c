/* wd_table.c -- the PUT table: entries in an array, found by a hash of kind and key. */
#include "wd_table.h"

#include "wd_index.h"

enum { ENTRIES = 2 * WD_TABLE_MAX };

typedef struct {
    uint32_t key, blob; /* arena references; free: key = number of the next free entry + 1 */
    uint32_t blob_len;
    uint16_t key_len; /* 0 = free */
    uint8_t kind;
} entry;

struct wd_table {
    uint8_t hash_key[16];
    wd_arena *arena;
    entry *entries;
    wd_index *index;
    uint32_t top, free;
    uint32_t count_max;
};

wd_table *wd_table_new(const uint8_t hash_key[16], wd_arena *arena)
{
    wd_table *t = wd_zalloc(sizeof *t);
    if (!t) return NULL;
    memcpy(t->hash_key, hash_key, sizeof t->hash_key);
    t->arena = arena;
    t->count_max = WD_TABLE_MAX;
    t->entries = wd_reserve(sizeof(entry) * ENTRIES);
    t->index = wd_index_new(ENTRIES);
    if (t->entries && t->index) return t;
    wd_table_free(t);
    return NULL;
}

void wd_table_free(wd_table *t)
{
    if (!t) return;
    wd_unreserve(t->entries, sizeof(entry) * ENTRIES);
    wd_index_free(t->index);
    wd_release(t);
}

static wd_span key_of(const wd_table *t, const entry *e)
{
    return (wd_span){wd_arena_at(t->arena, e->key), e->key_len};
}

static uint32_t hash_of(const wd_table *t, uint8_t kind, wd_span key)
{
    return (uint32_t)wd_siphash(t->hash_key, key).lo + kind;
}

static uint32_t find(const wd_table *t, uint8_t kind, wd_span key)
{
    uint32_t i = wd_index_first(t->index, hash_of(t, kind, key));
    while (i != WD_NIL &&
           (t->entries[i].kind != kind || !wd_span_eq(key_of(t, &t->entries[i]), key)))
        i = wd_index_next(t->index, i);
    return i;
}

void wd_table_set_loading(wd_table *t, int loading)
{
    t->count_max = loading ? ENTRIES : WD_TABLE_MAX;
}

static uint32_t take(wd_table *t)
{
    if (wd_index_count(t->index) >= t->count_max) return WD_NIL;
    if (!t->free) return t->top < ENTRIES ? t->top++ : WD_NIL;
    uint32_t i = t->free - 1;
    t->free = t->entries[i].key;
    return i;
}

int wd_table_put(wd_table *t, uint8_t kind, wd_span key, wd_span blob)
{
    WD_ASSERT(key.n > 0 && key.n <= WD_TABLE_KEY_BYTES_MAX);
    uint32_t i = find(t, kind, key), blob_ref, key_ref;
    int status = wd_arena_put(t->arena, blob, &blob_ref);
    if (status != WD_OK) return status;
    if (i != WD_NIL) {
        wd_arena_drop(t->arena, t->entries[i].blob, t->entries[i].blob_len);
    } else {
        status = wd_arena_put(t->arena, key, &key_ref);
        if (status == WD_OK) i = take(t);
        if (status == WD_OK && i == WD_NIL) {
            wd_arena_drop(t->arena, key_ref, key.n);
            status = WD_EFULL;
        }
        if (status != WD_OK) {
            wd_arena_drop(t->arena, blob_ref, blob.n);
            return status;
        }
        t->entries[i] = (entry){.key = key_ref, .key_len = (uint16_t)key.n, .kind = kind};
        wd_index_add(t->index, i, hash_of(t, kind, key));
    }
    t->entries[i].blob = blob_ref;
    t->entries[i].blob_len = (uint32_t)blob.n;
    return WD_OK;
}

int wd_table_del(wd_table *t, uint8_t kind, wd_span key)
{
    uint32_t i = find(t, kind, key);
    if (i == WD_NIL) return WD_EGONE;
    entry *e = &t->entries[i];
    wd_index_remove(t->index, i);
    wd_arena_drop(t->arena, e->key, e->key_len);
    wd_arena_drop(t->arena, e->blob, e->blob_len);
    *e = (entry){.key = t->free};
    t->free = i + 1;
    return WD_OK;
}

int wd_table_get(const wd_table *t, uint8_t kind, wd_span key, wd_span *out_blob)
{
    uint32_t i = find(t, kind, key);
    if (i == WD_NIL) return WD_EGONE;
    *out_blob = (wd_span){wd_arena_at(t->arena, t->entries[i].blob), t->entries[i].blob_len};
    return WD_OK;
}

uint32_t wd_table_top(const wd_table *t)
{
    return t->top;
}

int wd_table_at(const wd_table *t, uint32_t number, wd_entry *out)
{
    WD_ASSERT(number < t->top);
    const entry *e = &t->entries[number];
    if (e->key_len == 0) return WD_EGONE;
    *out = (wd_entry){key_of(t, e), {wd_arena_at(t->arena, e->blob), e->blob_len}, e->kind};
    return WD_OK;
}

uint32_t wd_table_count(const wd_table *t)
{
    return wd_index_count(t->index);
}

uint64_t wd_table_bytes(const wd_table *t)
{
    return wd_table_count(t) * sizeof(entry);
}

int wd_table_check(const wd_table *t)
{
    return wd_index_check(t->index);
}
