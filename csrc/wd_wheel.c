/* wd_wheel.c -- a hierarchical timing wheel over job rows, whose buckets are lists of chunks.
 *
 * THE IDEA
 * A time is read as eight digits of six bits (48 bits of milliseconds). A timer stands on the level
 * of the highest digit in which its time differs from the wheel's now, in the bucket of that digit:
 *
 *     level l, bucket d:  [now with digit l set to d and the digits below cleared, + 64^l)
 *
 * so level 0 holds single milliseconds, level 7 spans of 139 years, and no level is a ring. All of
 * a level is due before all of the next: two count-trailing-zeros find what comes first, however
 * long the gap. When now reaches a bucket above level 0 its timers move down ("cascade"). This is
 * Varghese and Lauck's hierarchical wheel (1987, scheme 7); placed by exclusive or in place of
 * distance it is a radix heap of base 64 as well (Ahuja et al. 1990).
 *
 * A bucket is a list not of timers but of chunks: arrays of CHUNK_CAP row numbers. In a list the
 * next address is known when the last cache miss is over; from a chunk many rows are asked for at
 * once: 2x to 10x on expiry once the rows outgrow the cache. A row knows its cell (`where`), so a
 * cancel clears just that cell; chunks grown thin are merged, so memory is bounded by the timers
 * that live, not by those that ever did.
 *
 * Words: `slot` is the number of a row, `bucket` a compartment of the wheel (level * 64 + digit). A
 * timer's key is max(due, now at its insert): what is late counts as due now.
 *
 * INVARIANTS (wd_wheel_check returns the number of the first that is broken)
 *  1. A row is armed here <=> where is its cell and the cell holds its number. Every other used
 *     cell is WD_NIL. A chunk's live counts its cells in use, is never 0, and sums to count.
 *  2. A timer on level l agrees with now in all digits above l, and its digit l is its bucket's:
 *     greater than now's, or on level 0 and in the bucket in cascade equal to it.
 *  3. Timers of equal key are all in one bucket, in order of insertion, so they fire in order of
 *     (key, insertion) with no sequence number and no sort. While a bucket is in cascade, what
 *     belongs below it goes behind what it still holds (see place), never ahead of it.
 *  4. A timer moves at most once per level, downwards. now never falls but by a rebase. After an
 *     advance without more, now == max(now, target) and nothing due by then is left.
 *  5. A bit of occupied is set <=> that bucket has a chunk; a bit of nonempty <=> that level has.
 *  6. While work is left (cascading != 0, or level 0 holds now), now stays at the first millisecond
 *     of the bucket in work, which is not empty, and nothing later is emitted.
 *  7. Two neighbouring chunks of a bucket never both have live <= MERGE_AT, except when the second
 *     is the tail (filling) or the first is the head of the bucket in work (being emptied). So two
 *     hold at least MERGE_AT + 2 timers: of 64 cells 9 are in use, 30 bytes per timer at worst.
 *  8. A bucket's chunks form a list, head to tail, linked both ways, each with its bucket's number;
 *     all other chunks ever made are on the free list.
 * 3 and 4 relate one call to the next, so no walk can see them: tests/c/check_wheel.c does.
 *
 * MEMORY: by 7 a bucket of n timers has at most n * 2 / (MERGE_AT + 2) + 2 chunks, the one in work
 * one more; in a rebase, which holds old chunks while it fills new ones, one more per bucket. So
 * capacity * 8 / CHUNK_CAP + 4 * BUCKET_COUNT are reserved, and an insert can never fail.
 *
 * NOT HERE: clocks, job states, the order among ready jobs, persistence. The wheel is an index over
 * rows: it is rebuilt by inserting them, never stored.
 */
#include "wd_wheel.h"

/* Tests build with small chunks, so that merges and partial cascades come within a few steps. */
#ifndef WD_CHUNK_CAP
#define WD_CHUNK_CAP 64
#endif

enum {
    DIGIT_BITS = 6,
    DIGITS = 64,
    LEVEL_COUNT = 8,
    BUCKET_COUNT = LEVEL_COUNT * DIGITS,
    CHUNK_CAP = WD_CHUNK_CAP,
    MERGE_AT = CHUNK_CAP / 4,       /* a chunk with this many live or fewer looks for a partner */
    MERGE_FITS = CHUNK_CAP * 3 / 4, /* and takes one when together they hold no more than this */
    CELLS_PER_LINE = 16
};

typedef struct {
    uint32_t next, prev; /* in the bucket; next also links the free list */
    uint16_t bucket;
    uint8_t used; /* cells handed out so far, from 0 up: where the next timer goes */
    uint8_t live; /* cells of these that hold a timer */
} chunk;

_Static_assert(sizeof(chunk) == 12, "chunk metadata is small enough to stay in cache");
_Static_assert(CHUNK_CAP >= 8 && CHUNK_CAP <= UINT8_MAX, "used and live are bytes; MERGE_AT >= 2");
_Static_assert(DIGIT_BITS == 6 && DIGITS == 64, "the digits of a level are the bits of a word");
_Static_assert(WD_DUE_MS_END == INT64_C(1) << (DIGIT_BITS * LEVEL_COUNT), "8 digits hold it");

struct wd_wheel {
    uint64_t now_ms;
    uint32_t count; /* armed rows */
    uint32_t capacity;
    uint32_t nonempty;  /* bit l: level l has a bucket with chunks */
    uint32_t cascading; /* the level whose bucket at now is moved down in parts; 0 = none */
    uint32_t chunks_used, chunks_made, chunks_reserved; /* made: used or free */
    uint32_t free_head;
    uint64_t occupied[LEVEL_COUNT]; /* bit d of [l]: bucket l * DIGITS + d has chunks */
    uint32_t head[BUCKET_COUNT], tail[BUCKET_COUNT];
    wd_job *rows;                 /* the caller's */
    chunk *chunks;                /* apart from the cells: all of it stays in the L2 cache */
    uint32_t (*cells)[CHUNK_CAP]; /* row numbers, WD_NIL where a timer has left */
};

/* The bucket that comes first in time. */
typedef struct {
    uint32_t level, bucket;
    uint64_t start_ms;
} span;

/* Chunks taken out of their buckets, in order. */
typedef struct {
    uint32_t head, tail;
} chain;

/* ---- digits ---- */

static inline uint32_t digit_of(uint64_t time_ms, uint32_t level)
{
    return (uint32_t)(time_ms >> (level * DIGIT_BITS)) % DIGITS;
}

/* The highest digit in which the two differ; 0 when they are equal (clz(0) is undefined). */
static inline uint32_t level_of(uint64_t now_ms, uint64_t key_ms)
{
    return (63 - (uint32_t)__builtin_clzll((now_ms ^ key_ms) | 1U)) / DIGIT_BITS;
}

/* The first millisecond of a bucket. */
static inline uint64_t start_of(uint64_t now_ms, uint32_t level, uint32_t digit)
{
    uint64_t above = now_ms >> ((level + 1) * DIGIT_BITS);
    return (above * DIGITS + digit) << (level * DIGIT_BITS);
}

static inline uint32_t bucket_at_now(const wd_wheel *w, uint32_t level)
{
    return level * DIGITS + digit_of(w->now_ms, level);
}

static inline uint64_t key_of(const wd_wheel *w, uint32_t slot)
{
    uint64_t due_ms = (uint64_t)w->rows[slot].due_ms;
    return due_ms < w->now_ms ? w->now_ms : due_ms;
}

/* ---- buckets and chunks ---- */

static void bucket_emptied(wd_wheel *w, uint32_t bucket)
{
    uint32_t level = bucket / DIGITS;
    w->occupied[level] &= ~(UINT64_C(1) << (bucket % DIGITS));
    if (w->occupied[level] == 0) w->nonempty &= ~(UINT32_C(1) << level);
    if (w->cascading != 0 && bucket == bucket_at_now(w, w->cascading)) w->cascading = 0;
}

static uint32_t chunk_append(wd_wheel *w, uint32_t bucket)
{
    WD_ASSERT(bucket < BUCKET_COUNT);
    uint32_t c = w->free_head;
    if (c != WD_NIL) {
        w->free_head = w->chunks[c].next;
    } else {
        WD_ASSERT(w->chunks_made < w->chunks_reserved);
        c = w->chunks_made++;
    }
    uint32_t before = w->tail[bucket];
    w->chunks[c] = (chunk){.next = WD_NIL, .prev = before, .bucket = (uint16_t)bucket};
    if (before != WD_NIL) {
        w->chunks[before].next = c;
    } else {
        w->head[bucket] = c;
        w->occupied[bucket / DIGITS] |= UINT64_C(1) << (bucket % DIGITS);
        w->nonempty |= UINT32_C(1) << (bucket / DIGITS);
    }
    w->tail[bucket] = c;
    w->chunks_used++;
    return c;
}

static void chunk_recycle(wd_wheel *w, uint32_t c)
{
    WD_ASSERT(w->chunks_used > 0);
    w->chunks[c].next = w->free_head;
    w->free_head = c;
    w->chunks_used--;
}

static void chunk_remove(wd_wheel *w, uint32_t c)
{
    const chunk *k = &w->chunks[c];
    uint32_t bucket = k->bucket;
    WD_ASSERT(bucket < BUCKET_COUNT);
    *(k->prev != WD_NIL ? &w->chunks[k->prev].next : &w->head[bucket]) = k->next;
    *(k->next != WD_NIL ? &w->chunks[k->next].prev : &w->tail[bucket]) = k->prev;
    if (w->head[bucket] == WD_NIL) bucket_emptied(w, bucket);
    chunk_recycle(w, c);
}

/* Append a row to the bucket of its key. */
static inline void place(wd_wheel *w, uint32_t slot, uint64_t key_ms)
{
    uint32_t level = level_of(w->now_ms, key_ms);
    if (level < w->cascading) level = w->cascading; /* behind the rest of that bucket */
    uint32_t bucket = level * DIGITS + digit_of(key_ms, level);
    uint32_t c = w->tail[bucket];
    if (__builtin_expect(c == WD_NIL || w->chunks[c].used == CHUNK_CAP, 0)) {
        c = chunk_append(w, bucket);
    }
    chunk *k = &w->chunks[c];
    w->cells[c][k->used] = slot;
    w->rows[slot].where = c * CHUNK_CAP + k->used;
    k->used++;
    k->live++;
}

/* Put the live cells of `from` to the end of `to`, which is packed; returns its new length. */
static uint32_t pack_cells(wd_wheel *w, uint32_t to, uint32_t n, uint32_t from)
{
    const uint32_t *source = w->cells[from];
    uint32_t *target = w->cells[to];
    for (uint32_t i = 0; i < w->chunks[from].used; i++) {
        uint32_t slot = source[i];
        if (slot == WD_NIL) continue;
        WD_ASSERT(n < CHUNK_CAP);
        target[n] = slot;
        w->rows[slot].where = to * CHUNK_CAP + n;
        n++;
    }
    return n;
}

/* Merge a chunk with its successor when both fit in one with room to spare; 1 if it was done. */
static int chunk_merge(wd_wheel *w, uint32_t first, uint32_t second)
{
    if (first == WD_NIL || second == WD_NIL) return 0;
    if (w->chunks[first].live + w->chunks[second].live > MERGE_FITS) return 0;
    WD_ASSERT(w->chunks[first].next == second);
    uint32_t n = pack_cells(w, first, 0, first); /* in place: n never passes the cell it reads */
    n = pack_cells(w, first, n, second);
    w->chunks[first].used = w->chunks[first].live = (uint8_t)n;
    chunk_remove(w, second);
    return 1;
}

/* ---- taking rows out of chunks ---- */

/* Take the first rows out of a chunk, at most max, in order; their where is left to the caller.
 * The gathering has no branch on what a cell holds: after many cancels none could predict it. */
static inline uint32_t take_rows(wd_wheel *w, uint32_t c, size_t max, uint32_t slots[CHUNK_CAP])
{
    chunk *k = &w->chunks[c];
    uint32_t *cell = w->cells[c];
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->used; i++) {
        slots[n] = cell[i];
        n += cell[i] != WD_NIL;
    }
    WD_ASSERT(n == k->live);
    if (n > max) {
        n = (uint32_t)max;
        for (uint32_t i = 0; cell[i] != slots[n]; i++)
            cell[i] = WD_NIL;
    }
    k->live = (uint8_t)(k->live - n);
    return n;
}

/* Ask for memory before its turn: the rows just taken, and the cells of the chunk that is next. */
static inline void ask_ahead(const wd_wheel *w, uint32_t c, const uint32_t *slots, uint32_t n)
{
    uint32_t next = w->chunks[c].next;
    for (uint32_t i = 0; i < n; i++) {
        __builtin_prefetch(&w->rows[slots[i]], 1); /* NOLINT: take_rows wrote [0, n) */
    }
    for (uint32_t i = 0; next != WD_NIL && i < CHUNK_CAP; i += CELLS_PER_LINE) {
        __builtin_prefetch(&w->cells[next][i]);
    }
}

/* ---- the two kinds of work ---- */

/* The bucket in cascade, else the first on the lowest level that has any. 0 when empty. */
static inline int first_span(const wd_wheel *w, span *first)
{
    if (w->nonempty == 0) return 0;
    uint32_t level = w->cascading;
    uint32_t digit = digit_of(w->now_ms, level);
    if (level == 0) {
        level = (uint32_t)__builtin_ctz(w->nonempty);
        digit = (uint32_t)__builtin_ctzll(w->occupied[level]);
    }
    first->level = level;
    first->bucket = level * DIGITS + digit;
    first->start_ms = start_of(w->now_ms, level, digit);
    return 1;
}

/* Disarm the rows of a level 0 bucket, in order, into out; at most max_out. */
static size_t drain(wd_wheel *w, uint32_t bucket, uint32_t *out, size_t max_out)
{
    size_t got = 0;
    uint32_t slots[CHUNK_CAP];
    uint32_t c = w->head[bucket];
    WD_ASSERT(bucket < DIGITS && c != WD_NIL);
    while (c != WD_NIL && got < max_out) {
        uint32_t n = take_rows(w, c, max_out - got, slots);
        ask_ahead(w, c, slots, n);
        for (uint32_t i = 0; i < n; i++) {
            out[got++] = slots[i];
            w->rows[slots[i]].where = WD_NIL;
        }
        if (w->chunks[c].live == 0) chunk_remove(w, c);
        c = w->head[bucket];
    }
    w->count -= (uint32_t)got;
    return got;
}

/* Place the rows of a chunk anew, in order; at most max_moves of them. Returns how many. */
static inline size_t move_rows(wd_wheel *w, uint32_t c, size_t max_moves)
{
    uint32_t slots[CHUNK_CAP];
    uint32_t n = take_rows(w, c, max_moves, slots);
    ask_ahead(w, c, slots, n);
    for (uint32_t i = 0; i < n; i++)
        place(w, slots[i], key_of(w, slots[i])); /* NOLINT: take_rows wrote [0, n) */
    return n;
}

/* Move the rows of a bucket above level 0 down; at most max_moves. now must stand at its start.
 * Remembers in `cascading` that rows are left. */
static size_t cascade(wd_wheel *w, const span *from, size_t max_moves)
{
    size_t moved = 0;
    uint32_t c = w->head[from->bucket];
    WD_ASSERT(from->level > 0 && c != WD_NIL);
    WD_ASSERT(w->now_ms == from->start_ms);
    w->cascading = 0; /* what is moved now goes below */
    while (c != WD_NIL && moved < max_moves) {
        moved += move_rows(w, c, max_moves - moved);
        if (w->chunks[c].live == 0) chunk_remove(w, c);
        c = w->head[from->bucket];
    }
    if (c != WD_NIL) w->cascading = from->level;
    return moved;
}

/* ---- the interface ---- */

wd_wheel *wd_wheel_new(wd_job *rows, uint32_t capacity, int64_t now_ms)
{
    /* Both factors are argued in the heading. */
    uint64_t chunks = (uint64_t)capacity * 8 / CHUNK_CAP + UINT64_C(4) * BUCKET_COUNT;
    WD_ASSERT(rows != NULL && chunks * CHUNK_CAP < WD_NIL); /* every cell has a number for where */
    WD_ASSERT(now_ms >= 0 && now_ms < WD_DUE_MS_END);
    wd_wheel *w = wd_zalloc(sizeof *w);
    if (!w) return NULL;
    w->rows = rows;
    w->capacity = capacity;
    w->now_ms = (uint64_t)now_ms;
    w->free_head = WD_NIL;
    w->chunks_reserved = (uint32_t)chunks;
    memset(w->head, 0xff, sizeof w->head);
    memset(w->tail, 0xff, sizeof w->tail);
    w->chunks = wd_reserve(sizeof w->chunks[0] * chunks);
    w->cells = wd_reserve(sizeof w->cells[0] * chunks);
    if (!w->chunks || !w->cells) {
        wd_wheel_free(w);
        return NULL;
    }
    return w;
}

void wd_wheel_free(wd_wheel *w)
{
    if (!w) return;
    wd_unreserve(w->chunks, sizeof w->chunks[0] * w->chunks_reserved);
    wd_unreserve(w->cells, sizeof w->cells[0] * w->chunks_reserved);
    wd_release(w);
}

void wd_wheel_insert(wd_wheel *w, uint32_t slot)
{
    WD_ASSERT(slot < w->capacity);
    const wd_job *row = &w->rows[slot];
    WD_ASSERT(row->where == WD_NIL);
    WD_ASSERT(row->due_ms >= 0 && row->due_ms < WD_DUE_MS_END);
    place(w, slot, key_of(w, slot));
    w->count++;
}

int wd_wheel_cancel(wd_wheel *w, uint32_t slot)
{
    WD_ASSERT(slot < w->capacity);
    uint32_t where = w->rows[slot].where;
    if (where == WD_NIL) return 0;
    uint32_t c = where / CHUNK_CAP;
    WD_ASSERT(c < w->chunks_made);
    uint32_t *cell = &w->cells[c][where % CHUNK_CAP];
    WD_ASSERT(*cell == slot); /* else it stands on another wheel */
    chunk *k = &w->chunks[c];
    *cell = WD_NIL;
    w->rows[slot].where = WD_NIL;
    w->count--;
    k->live--;
    if (k->live == 0) {
        chunk_remove(w, c);
    } else if (k->live <= MERGE_AT && !chunk_merge(w, c, k->next)) {
        (void)chunk_merge(w, k->prev, c);
    }
    return 1;
}

size_t wd_wheel_advance(wd_wheel *w, int64_t target_ms, uint32_t *out, size_t max_out,
                        size_t max_moves, int *out_more)
{
    WD_ASSERT(target_ms < WD_DUE_MS_END && max_moves > 0);
    WD_ASSERT(out != NULL && out_more != NULL);
    uint64_t target = target_ms > (int64_t)w->now_ms ? (uint64_t)target_ms : w->now_ms;
    size_t got = 0, moved = 0;
    int more = 0;
    span first;
    while (!more && first_span(w, &first) && first.start_ms <= target) {
        w->now_ms = first.start_ms;
        if (first.level == 0) {
            got += drain(w, first.bucket, out + got, max_out - got);
        } else {
            moved += cascade(w, &first, max_moves - moved);
        }
        more = w->head[first.bucket] != WD_NIL;
    }
    if (!more) w->now_ms = target;
    *out_more = more;
    return got;
}

int64_t wd_wheel_next_due(const wd_wheel *w)
{
    span first;
    return first_span(w, &first) ? (int64_t)first.start_ms : WD_NEVER_MS;
}

int64_t wd_wheel_now(const wd_wheel *w)
{
    return (int64_t)w->now_ms;
}

uint32_t wd_wheel_count(const wd_wheel *w)
{
    return w->count;
}

uint64_t wd_wheel_bytes(const wd_wheel *w)
{
    return (uint64_t)w->chunks_used * (sizeof w->chunks[0] + sizeof w->cells[0]);
}

/* ---- rebase ---- */

/* Take all chunks out of a bucket and put them to the end of the chain. */
static void bucket_detach(wd_wheel *w, uint32_t bucket, chain *to)
{
    uint32_t head = w->head[bucket];
    WD_ASSERT(head != WD_NIL && w->tail[bucket] != WD_NIL);
    *(to->head == WD_NIL ? &to->head : &w->chunks[to->tail].next) = head;
    to->tail = w->tail[bucket];
    w->head[bucket] = w->tail[bucket] = WD_NIL;
    bucket_emptied(w, bucket);
}

/* All chunks in the order of firing, as far as it counts. What is due by now_ms will have one key,
 * so it is sorted first, by letting it cascade, as is the rest of a bucket in cascade. All else is
 * kept apart by its due time, and is in order where that is equal (invariant 3). */
static chain detach_all(wd_wheel *w, uint64_t now_ms)
{
    chain all = {WD_NIL, WD_NIL};
    span first;
    while (first_span(w, &first)) {
        if (first.level > 0 && (first.start_ms <= now_ms || w->cascading != 0)) {
            w->now_ms = first.start_ms;
            (void)cascade(w, &first, SIZE_MAX);
        } else {
            bucket_detach(w, first.bucket, &all);
        }
    }
    return all;
}

void wd_wheel_rebase(wd_wheel *w, int64_t now_ms)
{
    WD_ASSERT(now_ms >= 0 && now_ms < WD_DUE_MS_END);
    chain all = detach_all(w, (uint64_t)now_ms);
    WD_ASSERT(w->nonempty == 0 && w->cascading == 0);
    w->now_ms = (uint64_t)now_ms;
    uint32_t c = all.head;
    while (c != WD_NIL) {
        uint32_t next = w->chunks[c].next;
        (void)move_rows(w, c, SIZE_MAX);
        chunk_recycle(w, c);
        c = next;
    }
}

/* ---- the invariants, walked ---- */

enum { BROKEN_CELLS = 1, BROKEN_PLACE = 2, BROKEN_BITS = 5 };
enum { BROKEN_WORK = 6, BROKEN_FILL = 7, BROKEN_LISTS = 8 };

static int check_row(const wd_wheel *w, uint32_t slot, uint32_t bucket, uint32_t where)
{
    if (slot >= w->capacity || w->rows[slot].where != where) return BROKEN_CELLS;
    uint32_t level = bucket / DIGITS;
    uint32_t digit = bucket % DIGITS;
    uint64_t key_ms = key_of(w, slot);
    if (level_of(w->now_ms, key_ms) > level || digit_of(key_ms, level) != digit)
        return BROKEN_PLACE;
    int at_now = digit == digit_of(w->now_ms, level) && (level == 0 || level == w->cascading);
    return digit > digit_of(w->now_ms, level) || at_now ? 0 : BROKEN_PLACE;
}

static int check_chunk(const wd_wheel *w, uint32_t c)
{
    const chunk *k = &w->chunks[c];
    uint32_t live = 0;
    if (k->used > CHUNK_CAP) return BROKEN_CELLS;
    for (uint32_t i = 0; i < k->used; i++) {
        uint32_t slot = w->cells[c][i];
        if (slot == WD_NIL) continue;
        int broken = check_row(w, slot, k->bucket, c * CHUNK_CAP + i);
        if (broken) return broken;
        live++;
    }
    return live == k->live && live > 0 ? 0 : BROKEN_CELLS;
}

/* Is this thin pair of neighbours one that invariant 7 does not allow? */
static int pair_too_thin(const wd_wheel *w, uint32_t first, uint32_t second)
{
    uint32_t bucket = w->chunks[first].bucket;
    if (w->chunks[first].live > MERGE_AT || w->chunks[second].live > MERGE_AT) return 0;
    int emptying = first == w->head[bucket] && bucket == bucket_at_now(w, w->cascading);
    return !emptying && second != w->tail[bucket];
}

/* Walk one bucket; adds its timers and chunks to the sums. */
static int check_bucket(const wd_wheel *w, uint32_t bucket, uint64_t *live, uint64_t *chunks)
{
    uint32_t prev = WD_NIL;
    for (uint32_t c = w->head[bucket]; c != WD_NIL; c = w->chunks[c].next) {
        if (c >= w->chunks_made || *chunks >= w->chunks_used) return BROKEN_LISTS;
        if (w->chunks[c].prev != prev || w->chunks[c].bucket != bucket) return BROKEN_LISTS;
        int broken = check_chunk(w, c);
        if (broken) return broken;
        if (prev != WD_NIL && pair_too_thin(w, prev, c)) return BROKEN_FILL;
        *live += w->chunks[c].live;
        *chunks += 1;
        prev = c;
    }
    return w->tail[bucket] == prev ? 0 : BROKEN_LISTS;
}

static int check_bits(const wd_wheel *w)
{
    uint32_t levels = 0;
    for (uint32_t bucket = 0; bucket < BUCKET_COUNT; bucket++) {
        uint32_t filled = w->head[bucket] != WD_NIL;
        if ((w->occupied[bucket / DIGITS] >> (bucket % DIGITS) & 1U) != filled) return BROKEN_BITS;
        levels |= filled << (bucket / DIGITS);
    }
    return levels == w->nonempty ? 0 : BROKEN_BITS;
}

static int check_work(const wd_wheel *w)
{
    if (w->now_ms >= (uint64_t)WD_DUE_MS_END || w->cascading >= LEVEL_COUNT) return BROKEN_WORK;
    if (w->cascading == 0) return 0;
    uint32_t bucket = bucket_at_now(w, w->cascading);
    int at_start = start_of(w->now_ms, w->cascading, bucket % DIGITS) == w->now_ms;
    return at_start && w->head[bucket] != WD_NIL ? 0 : BROKEN_WORK;
}

static int check_free_list(const wd_wheel *w)
{
    if (w->chunks_made > w->chunks_reserved) return BROKEN_LISTS;
    uint32_t free_count = 0;
    uint32_t c = w->free_head;
    while (c < w->chunks_made && free_count < w->chunks_made) {
        c = w->chunks[c].next;
        free_count++;
    }
    return c == WD_NIL && free_count == w->chunks_made - w->chunks_used ? 0 : BROKEN_LISTS;
}

int wd_wheel_check(const wd_wheel *w)
{
    uint64_t live = 0;
    uint64_t chunks = 0;
    int broken = check_bits(w);
    if (!broken) broken = check_work(w);
    if (!broken) broken = check_free_list(w);
    for (uint32_t bucket = 0; bucket < BUCKET_COUNT && !broken; bucket++) {
        broken = check_bucket(w, bucket, &live, &chunks);
    }
    if (broken) return broken;
    if (chunks != w->chunks_used) return BROKEN_LISTS;
    return live == w->count ? 0 : BROKEN_CELLS;
}
