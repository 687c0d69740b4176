/* check_wheel.c -- the wheel against a sorted array, call by call.
 *
 *     check_wheel FIRST_SEED SEED_COUNT
 *
 * Every seed makes a wheel at a start time of its own and a random run of inserts, cancels,
 * advances in slices, rebases and look-ups. The model is an array sorted by (key, seq), with key =
 * max(due, the wheel's now) and seq = order of insertion; whatever the wheel answers must be what
 * the model says: the same rows in the same order, nothing early, nothing late. After every few
 * steps wd_wheel_check walks the invariants. Before the seeds, a few directed cases.
 *
 * Meant to be built with -DWD_CHUNK_CAP=8, so that merges and partly emptied chunks are common.
 * Prints the seed and the step of the first difference and exits with 1.
 */
#include "wd_wheel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef WD_CHUNK_CAP
#error "build with -DWD_CHUNK_CAP=8: the memory bound below needs the number"
#endif

enum {
    ROWS = 2000,
    BUCKETS = 8 * 64,
    STEPS = 1500,
    CHECK_EVERY = 3,    /* steps between two walks of the invariants */
    SLICES_MAX = 60000, /* advances for one target: more means that the wheel makes no progress */
    CHUNK_BYTES = 12 + 4 * WD_CHUNK_CAP,
    /* timers in two neighbouring chunks at the least, see invariant 7 of wd_wheel.c */
    PAIR_LIVE_MIN = WD_CHUNK_CAP / 4 + 2
};

static const int64_t WALL_2026_MS = 1790000000000;
static const int64_t LAST_MS = WD_DUE_MS_END - 1;

typedef struct {
    int64_t key_ms;
    uint64_t seq;
    uint32_t slot;
} entry;

typedef struct {
    uint64_t seed, random;
    uint32_t step;
    wd_wheel *wheel;
    wd_job rows[ROWS];
    entry model[ROWS]; /* sorted by (key, seq) */
    uint32_t count;
    uint64_t next_seq;
    int armed[ROWS];
    int64_t now_ms;    /* of the wheel, as of the last call */
    int64_t target_ms; /* of the last advance */
    int pending;       /* that advance said there is more */
    uint64_t fired_count;
} run;

static _Noreturn void fail(const run *r, const char *what, int64_t got, int64_t want)
{
    (void)printf("seed %" PRIu64 " step %" PRIu32 ": %s: got %" PRId64 ", want %" PRId64 "\n",
                 r->seed, r->step, what, got, want);
    exit(1);
}

static void expect(const run *r, const char *what, int64_t got, int64_t want)
{
    if (got != want) fail(r, what, got, want);
}

/* ---- random choices ---- */

static uint64_t draw(run *r) /* xorshift64 (Marsaglia 2003) */
{
    r->random ^= r->random << 13U;
    r->random ^= r->random >> 7U;
    r->random ^= r->random << 17U;
    return r->random;
}

static uint32_t below(run *r, uint32_t n)
{
    return (uint32_t)(draw(r) >> 33U) % n;
}

/* A number of 1 to 47 random bits: every magnitude is as likely as any other. */
static int64_t draw_magnitude(run *r)
{
    return (int64_t)(draw(r) >> (17 + below(r, 47)));
}

static int64_t clip(int64_t time_ms)
{
    if (time_ms < 0) return 0;
    return time_ms > LAST_MS ? LAST_MS : time_ms;
}

static int64_t power_of_64(uint32_t k)
{
    return INT64_C(1) << (6 * k);
}

/* Where digits change: now + 64^k, or the next multiple of 64^k; and one to each side. */
static int64_t draw_digit_edge(run *r)
{
    uint32_t k = below(r, 8);
    int64_t edge = r->now_ms + power_of_64(k);
    if (below(r, 2)) edge = (r->now_ms / power_of_64(k) + 1 + below(r, 3)) * power_of_64(k);
    return edge + (int64_t)below(r, 3) - 1;
}

static int64_t draw_due(run *r, int64_t herd_ms)
{
    switch (below(r, 12)) {
    case 0:
    case 1:
    case 2:
    case 3:
        return clip(herd_ms);
    case 4:
        return clip(r->now_ms - below(r, 5000)); /* late */
    case 5:
        return clip(r->now_ms + below(r, 9));
    case 6:
        return below(r, 8) ? clip(r->now_ms + draw_magnitude(r)) : LAST_MS;
    case 7:
    case 8:
        return clip(draw_digit_edge(r));
    default:
        return clip(r->now_ms + draw_magnitude(r) % 100000);
    }
}

/* ---- the model ---- */

static int before(const entry *a, const entry *b)
{
    return a->key_ms != b->key_ms ? a->key_ms < b->key_ms : a->seq < b->seq;
}

static int compare(const void *a, const void *b)
{
    return before(a, b) ? -1 : 1;
}

static void model_insert(run *r, uint32_t slot)
{
    int64_t due_ms = r->rows[slot].due_ms;
    entry e = {.key_ms = due_ms < r->now_ms ? r->now_ms : due_ms, .slot = slot};
    e.seq = r->next_seq++;
    uint32_t low = 0;
    uint32_t high = r->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (before(&r->model[middle], &e)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    memmove(&r->model[low + 1], &r->model[low], (r->count - low) * sizeof e);
    r->model[low] = e;
    r->count++;
    r->armed[slot] = 1;
}

static void model_remove(run *r, uint32_t slot)
{
    uint32_t i = 0;
    while (i < r->count && r->model[i].slot != slot)
        i++;
    if (i == r->count) fail(r, "the model lost a row", -1, slot);
    memmove(&r->model[i], &r->model[i + 1], (r->count - i - 1) * sizeof r->model[0]);
    r->count--;
    r->armed[slot] = 0;
}

static void model_rebase(run *r, int64_t now_ms)
{
    for (uint32_t i = 0; i < r->count; i++) {
        int64_t due_ms = r->rows[r->model[i].slot].due_ms;
        r->model[i].key_ms = due_ms < now_ms ? now_ms : due_ms;
        r->model[i].seq = r->next_seq++;
    }
    qsort(r->model, r->count, sizeof r->model[0], compare);
}

/* ---- steps, each checked against the model ---- */

static void insert(run *r, uint32_t slot, int64_t due_ms)
{
    r->rows[slot].due_ms = due_ms;
    wd_wheel_insert(r->wheel, slot);
    model_insert(r, slot);
}

static void step_insert(run *r, uint32_t burst_max)
{
    uint32_t burst = 1 + below(r, burst_max);
    int64_t herd_ms = r->now_ms + draw_magnitude(r);
    for (uint32_t i = 0; i < burst; i++) {
        uint32_t slot = below(r, ROWS);
        if (!r->armed[slot]) insert(r, slot, draw_due(r, herd_ms));
    }
}

static void cancel(run *r, uint32_t slot)
{
    int was_armed = r->armed[slot];
    expect(r, "cancel", wd_wheel_cancel(r->wheel, slot), was_armed);
    if (was_armed) model_remove(r, slot);
    if (below(r, 4) == 0) expect(r, "second cancel", wd_wheel_cancel(r->wheel, slot), 0);
}

/* Any row (armed or not), or one of the next to fire: there the chunks are partly emptied. */
static void step_cancel(run *r, uint32_t burst_max)
{
    uint32_t burst = 1 + below(r, burst_max);
    uint32_t near = 1 + below(r, 200);
    for (uint32_t i = 0; i < burst; i++) {
        uint32_t slot = below(r, ROWS);
        uint32_t among = near < r->count ? near : r->count;
        if (r->count && below(r, 3)) slot = r->model[below(r, among)].slot;
        cancel(r, slot);
    }
}

/* Keep one row in a few of a stretch of the model: chunks far below half, merges on both sides. */
static void step_thin(run *r)
{
    uint32_t first = r->count && below(r, 2) ? below(r, r->count) : 0;
    uint32_t keep_every = 2 + below(r, 12);
    uint32_t stretch = below(r, 200);
    for (uint32_t i = 0; i < stretch && first < r->count; i++) {
        if (i % keep_every == 0) {
            first++;
        } else {
            cancel(r, r->model[first].slot);
        }
    }
}

static void step_rebase(run *r)
{
    int64_t now_ms = r->now_ms;
    switch (below(r, 4)) {
    case 0:
        now_ms -= draw_magnitude(r);
        break;
    case 1:
        now_ms -= below(r, 9000);
        break;
    case 2:
        now_ms += below(r, 9000); /* over what is due: it keeps its order */
        break;
    default:
        break;
    }
    now_ms = clip(now_ms);
    wd_wheel_rebase(r->wheel, now_ms);
    model_rebase(r, now_ms);
    r->now_ms = now_ms;
    r->target_ms = now_ms;
    r->pending = 0;
    expect(r, "now after rebase", wd_wheel_now(r->wheel), now_ms);
}

static void check_fired(run *r, const uint32_t *out, size_t got, int64_t reached_ms)
{
    for (size_t i = 0; i < got; i++) {
        if (i >= r->count) fail(r, "fired, but nothing is armed", out[i], -1);
        if (r->model[i].key_ms > reached_ms) fail(r, "early", out[i], r->model[i].key_ms);
        expect(r, "order", out[i], r->model[i].slot);
        expect(r, "where of a fired row", r->rows[out[i]].where, WD_NIL);
        r->armed[out[i]] = 0;
    }
    memmove(r->model, r->model + got, (r->count - got) * sizeof r->model[0]);
    r->count -= (uint32_t)got;
    r->fired_count += got;
}

/* One call of advance to target_ms, with all that must hold after it. */
static void advance_slice(run *r)
{
    static uint32_t out[ROWS + 1];
    size_t max_out = below(r, 3) ? 1 + below(r, 40) : ROWS;
    size_t max_moves = below(r, 4) ? 1 + below(r, 20) : 100000;
    int more = -1;
    int64_t reached_ms = r->target_ms > r->now_ms ? r->target_ms : r->now_ms;
    if (below(r, 50) == 0) max_out = 0;
    out[max_out] = 4711;
    size_t got = wd_wheel_advance(r->wheel, r->target_ms, out, max_out, max_moves, &more);
    if (got > max_out) fail(r, "more than max_out", (int64_t)got, (int64_t)max_out);
    expect(r, "out beyond max_out", out[max_out], 4711);
    if (more != 0 && more != 1) fail(r, "more", more, 1);
    check_fired(r, out, got, reached_ms);
    int64_t now_ms = wd_wheel_now(r->wheel);
    if (now_ms < r->now_ms) fail(r, "time went back", now_ms, r->now_ms);
    if (now_ms > reached_ms) fail(r, "time ran ahead", now_ms, reached_ms);
    if (r->count && now_ms > r->model[0].key_ms) {
        fail(r, "time passed over a timer", now_ms, r->model[0].key_ms);
    }
    r->now_ms = now_ms;
    r->pending = more;
    if (more) {
        expect(r, "next_due while work is left", wd_wheel_next_due(r->wheel), now_ms);
        return;
    }
    expect(r, "now after the last slice", now_ms, reached_ms);
    if (r->count && r->model[0].key_ms <= reached_ms) {
        fail(r, "late", r->model[0].slot, r->model[0].key_ms);
    }
}

static int64_t draw_target(run *r)
{
    int64_t first_ms = r->count ? r->model[0].key_ms : r->now_ms;
    switch (below(r, 9)) {
    case 0:
        return r->now_ms + 1;
    case 1:
        return r->now_ms + below(r, 64);
    case 2:
        return first_ms;
    case 3:
        return first_ms - 1;
    case 4:
        return first_ms + 1;
    case 5:
        return r->now_ms - below(r, 9000); /* the clock steps back */
    case 6:
        return draw_digit_edge(r);
    case 7:
        return r->now_ms + draw_magnitude(r) / 64;
    default:
        return r->now_ms + below(r, 5000);
    }
}

/* Slices of one advance, with inserts and cancels near the head between them; sometimes left
 * unfinished, so that the next step meets a bucket in work. */
static void step_advance(run *r)
{
    if (!r->pending || below(r, 2)) r->target_ms = draw_target(r);
    if (r->target_ms > LAST_MS) r->target_ms = LAST_MS;
    uint32_t slices = below(r, 2) ? 1 : 1 + below(r, 60);
    for (uint32_t i = 0; i < slices; i++) {
        advance_slice(r);
        if (!r->pending) return;
        for (uint32_t k = below(r, 5); k > 0; k--) {
            if (below(r, 2)) {
                step_cancel(r, 3);
            } else {
                step_insert(r, 3);
            }
        }
    }
}

static void check_state(run *r)
{
    int64_t next_ms = wd_wheel_next_due(r->wheel);
    expect(r, "count", wd_wheel_count(r->wheel), r->count);
    if (r->count == 0) {
        expect(r, "next_due of an empty wheel", next_ms, WD_NEVER_MS);
        expect(r, "bytes of an empty wheel", (int64_t)wd_wheel_bytes(r->wheel), 0);
    } else {
        if (next_ms > r->model[0].key_ms) fail(r, "next_due", next_ms, r->model[0].key_ms);
        if (next_ms < r->now_ms) fail(r, "next_due before now", next_ms, r->now_ms);
    }
    int64_t chunks_max = (int64_t)r->count * 2 / PAIR_LIVE_MIN + INT64_C(2) * BUCKETS + 1;
    if (r->count < BUCKETS) chunks_max = (int64_t)r->count;
    if ((int64_t)wd_wheel_bytes(r->wheel) > chunks_max * CHUNK_BYTES) {
        fail(r, "bytes", (int64_t)wd_wheel_bytes(r->wheel), chunks_max * CHUNK_BYTES);
    }
    if (r->step % CHECK_EVERY == 0) expect(r, "wd_wheel_check", wd_wheel_check(r->wheel), 0);
}

/* ---- a run ---- */

static uint64_t scramble(uint64_t seed)
{
    return (seed + 1) * UINT64_C(0x9E3779B97F4A7C15) | 1U;
}

static void run_begin(run *r, uint64_t seed, int64_t start_ms)
{
    memset(r, 0, sizeof *r);
    r->seed = seed;
    r->random = scramble(seed);
    for (uint32_t i = 0; i < ROWS; i++)
        r->rows[i].where = WD_NIL;
    r->now_ms = r->target_ms = start_ms;
    r->wheel = wd_wheel_new(r->rows, ROWS, start_ms);
    if (!r->wheel) fail(r, "wd_wheel_new: no memory", 0, 1);
}

/* Fire all that is left, then the wheel must be as new. */
static void run_end(run *r)
{
    r->target_ms = LAST_MS;
    uint32_t slices = 0;
    do {
        advance_slice(r);
        if (++slices > SLICES_MAX) fail(r, "no progress", slices, SLICES_MAX);
    } while (r->pending);
    expect(r, "rows left at the end of time", r->count, 0);
    check_state(r);
    expect(r, "wd_wheel_check at the end", wd_wheel_check(r->wheel), 0);
    wd_wheel_free(r->wheel);
}

static int64_t start_for(uint64_t seed)
{
    uint64_t random_ms = scramble(scramble(seed)) >> 17U;
    switch (seed % 6) {
    case 0:
        return 0;
    case 1:
        return WALL_2026_MS;
    case 2:
        return power_of_64(1 + (uint32_t)(seed / 6 % 7)) - 1;
    case 3:
        return INT64_C(1) << 47;
    case 4:
        return power_of_64(6) - 1 - (int64_t)(random_ms % 5000);
    default:
        return (int64_t)(random_ms >> (seed / 6 % 40));
    }
}

static void check_seed(run *r, uint64_t seed)
{
    run_begin(r, seed, start_for(seed));
    for (r->step = 0; r->step < STEPS; r->step++) {
        uint32_t kind = below(r, 64);
        if (kind < 30) {
            step_insert(r, kind < 3 ? 200 : 6);
        } else if (kind < 41) {
            step_cancel(r, kind < 32 ? 100 : 6);
        } else if (kind < 42) {
            step_thin(r);
        } else if (kind < 63 || below(r, 2)) {
            step_advance(r);
        } else {
            step_rebase(r);
        }
        check_state(r);
    }
    run_end(r);
    if (r->fired_count < 100) fail(r, "weak run: rows fired", (int64_t)r->fired_count, 100);
}

/* ---- directed cases ---- */

/* One timer around every digit boundary: not fired a millisecond early, fired on time. */
static void check_digits(run *r, int64_t start_ms)
{
    for (uint32_t k = 0; k < 8; k++) {
        for (int64_t side = -1; side <= 1; side++) {
            int64_t due_ms = clip(start_ms + power_of_64(k) + side);
            if (due_ms <= start_ms) continue;
            run_begin(r, k, start_ms);
            insert(r, 0, due_ms);
            expect(r, "wd_wheel_check", wd_wheel_check(r->wheel), 0);
            r->target_ms = due_ms - 1;
            do {
                advance_slice(r);
            } while (r->pending);
            expect(r, "fired before its time", r->count, 1);
            run_end(r);
        }
    }
}

static void check_all_digits(run *r)
{
    check_digits(r, 0);
    check_digits(r, WALL_2026_MS);
    check_digits(r, INT64_C(1) << 47);
    check_digits(r, LAST_MS - 1);
    for (uint32_t k = 1; k < 8; k++) {
        check_digits(r, power_of_64(k) - 1);
        check_digits(r, power_of_64(k));
    }
}

/* A herd in one far instant needs one move per timer and level: max_moves bounds each call. */
static void check_budget(run *r, uint32_t level)
{
    const size_t max_moves = 7;
    uint32_t out[ROWS];
    uint32_t calls = 0;
    size_t got = 0;
    int more = 0;
    run_begin(r, level, 0);
    for (uint32_t slot = 0; slot < ROWS; slot++)
        insert(r, slot, power_of_64(level));
    do {
        got = wd_wheel_advance(r->wheel, power_of_64(level), out, ROWS, max_moves, &more);
        if (++calls > SLICES_MAX) fail(r, "no progress", calls, SLICES_MAX);
    } while (got == 0);
    /* due == the start of its bucket: it goes to level 0 in one move */
    expect(r, "calls until the herd fires", calls, (ROWS + 6) / 7);
    expect(r, "herd fired", (int64_t)got, ROWS);
    wd_wheel_free(r->wheel);
    run_begin(r, level, 0);
    for (uint32_t slot = 0; slot < ROWS; slot++)
        insert(r, slot, power_of_64(level + 1) - 1);
    calls = 0;
    do {
        got = wd_wheel_advance(r->wheel, power_of_64(level + 1), out, ROWS, max_moves, &more);
        if (++calls > SLICES_MAX) fail(r, "no progress", calls, SLICES_MAX);
    } while (got == 0);
    expect(r, "calls until the herd fires", calls, (ROWS * level + 6) / 7);
    wd_wheel_free(r->wheel);
}

/* Two wheels over one table of rows: a row stands on one of them at most. */
static void check_two_wheels(run *r)
{
    uint32_t out[ROWS];
    int more = 0;
    run_begin(r, 0, 0);
    wd_wheel *other = wd_wheel_new(r->rows, ROWS, WALL_2026_MS);
    if (!other) fail(r, "wd_wheel_new: no memory", 0, 1);
    for (uint32_t slot = 0; slot < ROWS; slot++) {
        r->rows[slot].due_ms = (slot % 2 ? WALL_2026_MS : 0) + slot;
        wd_wheel_insert(slot % 2 ? other : r->wheel, slot);
    }
    expect(r, "check, first wheel", wd_wheel_check(r->wheel), 0);
    expect(r, "check, second wheel", wd_wheel_check(other), 0);
    for (uint32_t slot = 0; slot < ROWS; slot += 4) {
        expect(r, "cancel", wd_wheel_cancel(r->wheel, slot), 1);
    }
    size_t got = wd_wheel_advance(r->wheel, LAST_MS, out, ROWS, ROWS, &more);
    expect(r, "fired on the first wheel", (int64_t)got, ROWS / 4);
    for (size_t i = 0; i < got; i++)
        expect(r, "slot", out[i], (int64_t)(4 * i + 2));
    got = wd_wheel_advance(other, LAST_MS, out, ROWS, 8 * (size_t)ROWS, &more);
    expect(r, "fired on the second wheel", (int64_t)got, ROWS / 2);
    for (size_t i = 0; i < got; i++)
        expect(r, "slot", out[i], (int64_t)(2 * i + 1));
    wd_wheel_free(other);
    wd_wheel_free(r->wheel);
}

/* wd_wheel_new gives NULL, and leaks nothing, whichever of its allocations fails. */
static void check_no_memory(run *r)
{
    (void)wd_alloc_fail_at(0);
    wd_wheel_free(wd_wheel_new(r->rows, ROWS, 0));
    uint64_t allocations = wd_alloc_fail_at(0);
    if (allocations < 1) fail(r, "allocations counted", (int64_t)allocations, 1);
    for (uint64_t n = 1; n <= allocations; n++) {
        (void)wd_alloc_fail_at(n);
        if (wd_wheel_new(r->rows, ROWS, 0)) fail(r, "a failed allocation", 1, 0);
    }
    (void)wd_alloc_fail_at(0);
    wd_wheel_free(NULL);
}

int main(int argc, char **argv)
{
    static run r;
    if (argc != 3) {
        (void)fprintf(stderr, "usage: check_wheel FIRST_SEED SEED_COUNT\n");
        return 2;
    }
    uint64_t first = strtoull(argv[1], NULL, 10);
    uint64_t count = strtoull(argv[2], NULL, 10);
    check_all_digits(&r);
    for (uint32_t level = 1; level < 7; level++)
        check_budget(&r, level);
    check_two_wheels(&r);
    check_no_memory(&r);
    for (uint64_t seed = first; seed < first + count; seed++)
        check_seed(&r, seed);
    (void)printf("ok: %" PRIu64 " seeds from %" PRIu64 "\n", count, first);
    return 0;
}
