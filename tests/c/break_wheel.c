/* break_wheel.c -- breaks one thing of a wheel, so that a test can ask whether its walk notices.
 *
 * Stands in for wd_wheel.c in the small core of tests/narrow.py: a wheel's parts are its own. Each
 * break has a name; the scene that it needs, a bucket of five chunks among others and no timer due
 * within 64 ms, stands in tests/unit/test_engine_check.py.
 */
#include "wd_wheel.c" /* NOLINT(bugprone-suspicious-include) */

int wd_break_wheel(wd_wheel *w, const char *what);

#define IS(text) strcmp(what, text) == 0

/* The first bucket, from 0 up, with that many chunks. */
static uint32_t bucket_of(const wd_wheel *w, uint32_t chunks)
{
    for (uint32_t bucket = 0; bucket < BUCKET_COUNT; bucket++) {
        uint32_t n = 0;
        for (uint32_t c = w->head[bucket]; c != WD_NIL; c = w->chunks[c].next)
            n++;
        if (n >= chunks) return bucket;
    }
    WD_ASSERT(0);
    return 0;
}

static uint32_t last_bucket(const wd_wheel *w)
{
    uint32_t bucket = BUCKET_COUNT - 1;
    while (w->head[bucket] == WD_NIL)
        bucket--;
    return bucket;
}

/* Leave so many timers of a chunk in it; the rest is forgotten. */
static void thin(wd_wheel *w, uint32_t c, uint8_t live)
{
    for (uint32_t i = live; i < w->chunks[c].used; i++)
        w->cells[c][i] = WD_NIL;
    w->chunks[c].live = live;
}

/* One more chunk that was made and belongs to nobody. */
static uint32_t make(wd_wheel *w)
{
    w->chunks[w->chunks_made] = (chunk){.next = WD_NIL};
    return w->chunks_made++;
}

static int break_cells(wd_wheel *w, const char *what)
{
    uint32_t bucket = bucket_of(w, 5), head = w->head[bucket];
    uint32_t *cell = &w->cells[head][0];
    WD_ASSERT(*cell != WD_NIL);
    wd_job *row = &w->rows[*cell];
    uint32_t level = bucket / DIGITS, first = bucket_of(w, 1);
    if (IS("a cell of a row that cannot be"))
        *cell = w->capacity;
    else if (IS("a row that names another cell"))
        row->where++;
    else if (IS("a chunk that uses more than its cells"))
        w->chunks[head].used = CHUNK_CAP + 1;
    else if (IS("a chunk that counts one more"))
        w->chunks[head].live++;
    else if (IS("a chunk of no timer"))
        thin(w, w->tail[bucket], 0);
    else if (IS("a wheel that counts one more"))
        w->count++;
    else if (IS("a timer due beyond its level"))
        row->due_ms ^= INT64_C(1) << (DIGIT_BITS * (level + 1));
    else if (IS("a timer due in the next bucket"))
        row->due_ms ^= INT64_C(1) << (DIGIT_BITS * level);
    else if (IS("a now that has come to a bucket, and nothing cascades"))
        w->now_ms = start_of(w->now_ms, first / DIGITS, first % DIGITS);
    else
        return 0;
    return 1;
}

static int break_work(wd_wheel *w, const char *what)
{
    WD_ASSERT(w->head[bucket_at_now(w, 1)] == WD_NIL && w->cascading == 0);
    if (IS("a bit of an empty bucket"))
        w->occupied[LEVEL_COUNT - 1] ^= 2;
    else if (IS("a bit of an empty level"))
        w->nonempty ^= UINT32_C(1) << (LEVEL_COUNT - 1);
    else if (IS("a now behind the end of time"))
        w->now_ms = (uint64_t)WD_DUE_MS_END;
    else if (IS("a cascade of no level"))
        w->cascading = LEVEL_COUNT;
    else if (IS("a cascade in the middle of its bucket"))
        w->now_ms |= 1, w->cascading = 1;
    else if (IS("a cascade of an empty bucket"))
        w->now_ms -= digit_of(w->now_ms, 0), w->cascading = 1;
    else
        return 0;
    return 1;
}

static int break_chunks(wd_wheel *w, const char *what)
{
    uint32_t bucket = bucket_of(w, 5), head = w->head[bucket], second = w->chunks[head].next;
    uint32_t third = w->chunks[second].next, tail = w->tail[bucket];
    if (IS("a thin head and the one behind it"))
        thin(w, head, 1), thin(w, second, 1);
    else if (IS("two thin neighbours"))
        thin(w, second, 1), thin(w, third, 1);
    else if (IS("two thin neighbours at the end, which may be, and lost timers"))
        thin(w, w->chunks[tail].prev, 1), thin(w, tail, 1);
    else if (IS("a link to a chunk that was not made"))
        w->chunks[head].next = w->chunks_made;
    else if (IS("a way back that leads elsewhere"))
        w->chunks[second].prev = third;
    else if (IS("a chunk of another bucket"))
        w->chunks[second].bucket ^= 1;
    else if (IS("an end that is not the last"))
        w->tail[bucket] = head;
    else
        return 0;
    return 1;
}

static int break_free_list(wd_wheel *w, const char *what)
{
    if (IS("more chunks than there is room for"))
        w->chunks_made = w->chunks_reserved + 1;
    else if (IS("a free list that leads out"))
        w->free_head = w->chunks_made;
    else if (IS("a free list in a circle")) {
        uint32_t c = make(w);
        w->chunks[c].next = w->free_head = c;
    } else if (IS("a free chunk that is not on the list"))
        (void)make(w);
    else if (IS("a chunk in use that is in no bucket"))
        (void)make(w), w->chunks_used++;
    else if (IS("a chunk in use that is free as well")) {
        uint32_t *end = &w->free_head;
        while (*end != WD_NIL)
            end = &w->chunks[*end].next;
        *end = w->tail[last_bucket(w)];
        w->chunks_used--;
    } else
        return 0;
    return 1;
}

/* 1: done; 0: there is no such break. */
int wd_break_wheel(wd_wheel *w, const char *what)
{
    return break_work(w, what) || break_free_list(w, what) || break_cells(w, what) ||
           break_chunks(w, what);
}
