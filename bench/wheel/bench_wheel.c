/* bench_wheel.c -- measure the wheel, and a heap beside it, in one process per run.
 *
 *     bench_wheel mix wheel|heap TIMERS SEED STEP_MS
 *     bench_wheel longest mix|herd TIMERS SEED
 *     bench_wheel empty
 *     bench_wheel memory TIMERS SEED
 *
 * Prints `name value` lines. Times are CPU time of the thread: the machine may be shared. The mix
 * is what a job server sees: 50 % leases (exponential, mean 30 s), 25 % retries (exponential, mean
 * 1 h), 15 % cron (the edge of a minute within the next day), 10 % jobs 1 to 30 days ahead. Rows
 * are inserted and cancelled in random order, as after long use, and prefaulted.
 */
#define _GNU_SOURCE
#include "heap4.h"
#include "wd_wheel.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_OUT = 4096, MAX_MOVES = 1024, MINUTE_MS = 60000, EMPTY_CALLS = 20000000, SAME_RUNS = 3 };

static const int64_t START_MS = 1790000012345;
static const int64_t DAY_MS = 86400000;

typedef struct {
    wd_job *rows;
    uint32_t *order; /* a permutation of the slots */
    uint32_t count;
    uint64_t random;
} bench;

/* Either queue behind one set of calls; exactly one of the two is not NULL. */
typedef struct {
    wd_wheel *wheel;
    heap4 *heap;
} queue;

static double cpu_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "bench_wheel: %s\n", what);
    exit(1);
}

static uint64_t draw(bench *b) /* xorshift64 (Marsaglia 2003) */
{
    b->random ^= b->random << 13U;
    b->random ^= b->random >> 7U;
    b->random ^= b->random << 17U;
    return b->random;
}

static double draw_unit(bench *b) /* (0, 1] */
{
    return ((double)(draw(b) >> 11U) + 1.0) / 9007199254740992.0;
}

static int64_t draw_exponential_ms(bench *b, double mean_ms)
{
    return 1 + (int64_t)(-log(draw_unit(b)) * mean_ms);
}

static int64_t draw_mix_due_ms(bench *b)
{
    uint64_t percent = draw(b) % 100;
    if (percent < 50) return START_MS + draw_exponential_ms(b, 30e3);
    if (percent < 75) return START_MS + draw_exponential_ms(b, 3600e3);
    if (percent < 90) return (START_MS / MINUTE_MS + 1 + (int64_t)(draw(b) % 1440)) * MINUTE_MS;
    return START_MS + DAY_MS + (int64_t)(draw_unit(b) * 29 * (double)DAY_MS);
}

static void shuffle(bench *b)
{
    for (uint32_t left = b->count; left > 1; left--) {
        uint32_t i = left - 1;
        uint32_t j = (uint32_t)(draw(b) % left);
        uint32_t slot = b->order[i];
        b->order[i] = b->order[j];
        b->order[j] = slot;
    }
}

static bench bench_new(uint32_t count, uint64_t seed)
{
    bench b = {.count = count, .random = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15) | 1U};
    if (count < 1) die("TIMERS must be positive");
    b.rows = wd_reserve(sizeof b.rows[0] * (size_t)count);
    b.order = wd_alloc(sizeof b.order[0] * count);
    if (!b.rows || !b.order) die("no memory");
    for (uint32_t slot = 0; slot < count; slot++) {
        b.rows[slot].where = WD_NIL; /* also faults the page in, before any clock runs */
        b.order[slot] = slot;
    }
    return b;
}

static void bench_free(bench *b)
{
    wd_unreserve(b->rows, sizeof b->rows[0] * (size_t)b->count);
    wd_release(b->order);
}

static queue queue_new(bench *b, int heap)
{
    queue q = {NULL, NULL};
    if (heap) {
        q.heap = heap4_new(b->rows, b->count);
    } else {
        q.wheel = wd_wheel_new(b->rows, b->count, START_MS);
    }
    if (!q.heap && !q.wheel) die("no memory");
    return q;
}

static void queue_free(queue *q)
{
    heap4_free(q->heap);
    wd_wheel_free(q->wheel);
}

static size_t queue_advance(queue *q, int64_t target_ms, uint32_t *out, int *more)
{
    if (q->wheel) return wd_wheel_advance(q->wheel, target_ms, out, MAX_OUT, MAX_MOVES, more);
    size_t got = heap4_advance(q->heap, target_ms, out, MAX_OUT);
    *more = got == MAX_OUT && heap4_next_due(q->heap) <= target_ms;
    return got;
}

static int64_t queue_next_due(const queue *q)
{
    return q->wheel ? wd_wheel_next_due(q->wheel) : heap4_next_due(q->heap);
}

/* Insert all rows in the order given; the due times are in the rows. */
static void insert_all(const bench *b, queue *q)
{
    if (q->wheel) {
        for (uint32_t i = 0; i < b->count; i++)
            wd_wheel_insert(q->wheel, b->order[i]);
    } else {
        for (uint32_t i = 0; i < b->count; i++)
            heap4_insert(q->heap, b->order[i]);
    }
}

static void cancel_first(const bench *b, queue *q, uint32_t count)
{
    if (q->wheel) {
        for (uint32_t i = 0; i < count; i++)
            (void)wd_wheel_cancel(q->wheel, b->order[i]);
    } else {
        for (uint32_t i = 0; i < count; i++)
            (void)heap4_cancel(q->heap, b->order[i]);
    }
}

/* Run time forward until all have fired, waking at least step_ms apart and only when something may
 * be due. Reads each fired row, as a server does, and checks the order. Returns the count fired. */
static uint32_t drain_all(const bench *b, queue *q, int64_t step_ms)
{
    static uint32_t out[MAX_OUT];
    uint32_t fired = 0;
    int64_t now_ms = START_MS;
    int64_t last_ms = 0;
    int64_t next_ms = queue_next_due(q);
    while (next_ms != WD_NEVER_MS) {
        now_ms = next_ms > now_ms + step_ms ? next_ms : now_ms + step_ms;
        int more = 1;
        while (more) {
            size_t got = queue_advance(q, now_ms, out, &more);
            for (size_t i = 0; i < got; i++) {
                int64_t due_ms = b->rows[out[i]].due_ms;
                if (due_ms < last_ms || due_ms > now_ms) die("fired out of order");
                last_ms = due_ms;
            }
            fired += (uint32_t)got;
        }
        next_ms = queue_next_due(q);
    }
    return fired;
}

static void fill_mix(bench *b)
{
    for (uint32_t slot = 0; slot < b->count; slot++)
        b->rows[slot].due_ms = draw_mix_due_ms(b);
}

static void run_mix(int heap, uint32_t count, uint64_t seed, int64_t step_ms)
{
    if (count < 2) die("the mix needs two timers or more");
    bench b = bench_new(count, seed);
    queue q = queue_new(&b, heap);
    fill_mix(&b);
    shuffle(&b);
    double t0 = cpu_ns();
    insert_all(&b, &q);
    double t1 = cpu_ns();
    uint64_t bytes = heap ? heap4_bytes(q.heap) : wd_wheel_bytes(q.wheel);
    shuffle(&b);
    double t2 = cpu_ns();
    uint32_t cancelled = count / 2;
    cancel_first(&b, &q, cancelled);
    double t3 = cpu_ns();
    uint32_t fired = drain_all(&b, &q, step_ms);
    double t4 = cpu_ns();
    if (fired == 0 || cancelled == 0 || fired + cancelled != count) die("timers were lost");
    (void)printf("insert_ns %.2f\ncancel_ns %.2f\nexpire_ns %.2f\nqueue_bytes_per_timer %.2f\n",
                 (t1 - t0) / count, (t3 - t2) / cancelled, (t4 - t3) / fired,
                 (double)bytes / count);
    queue_free(&q);
    bench_free(&b);
}

/* The time of each call, in order; the least over several runs that do exactly the same. */
typedef struct {
    double *least_ns;
    size_t count, capacity;
} call_times;

static void call_timed(call_times *times, size_t call, double took_ns)
{
    if (call == times->capacity) {
        times->capacity = times->capacity ? 2 * times->capacity : 4096;
        times->least_ns = wd_resize(times->least_ns, times->capacity * sizeof times->least_ns[0]);
        if (!times->least_ns) die("no memory");
    }
    if (call == times->count) {
        times->least_ns[times->count++] = took_ns;
    } else if (took_ns < times->least_ns[call]) {
        times->least_ns[call] = took_ns;
    }
}

/* Fire everything, timing each call of wd_wheel_advance; returns the longest. */
static double time_calls(const bench *b, queue *q, call_times *times)
{
    static uint32_t out[MAX_OUT];
    double longest_ns = 0;
    uint32_t fired = 0;
    size_t call = 0;
    while (fired < b->count) {
        int64_t target_ms = wd_wheel_next_due(q->wheel);
        int more = 1;
        while (more) {
            double t0 = cpu_ns();
            size_t got = wd_wheel_advance(q->wheel, target_ms, out, MAX_OUT, MAX_MOVES, &more);
            double took_ns = cpu_ns() - t0;
            if (took_ns > longest_ns) longest_ns = took_ns;
            call_timed(times, call, took_ns);
            fired += (uint32_t)got;
            call++;
        }
    }
    if (call != times->count) die("two runs of the same made different calls");
    return longest_ns;
}

/* The longest single call. What the machine adds to a call (an interrupt, a neighbour) does not
 * come again at the same call of an identical run, what the wheel does comes again: so each call
 * counts with the least time of SAME_RUNS. The plain longest is printed beside it. */
static void run_longest(int herd, uint32_t count, uint64_t seed)
{
    call_times times = {NULL, 0, 0};
    double plain_ns = 0;
    for (uint32_t i = 0; i < SAME_RUNS; i++) {
        bench b = bench_new(count, seed);
        queue q = queue_new(&b, 0);
        fill_mix(&b);
        for (uint32_t slot = 0; herd && slot < count; slot++) {
            b.rows[slot].due_ms = START_MS + DAY_MS;
        }
        shuffle(&b);
        insert_all(&b, &q);
        double longest_ns = time_calls(&b, &q, &times);
        if (longest_ns > plain_ns) plain_ns = longest_ns;
        queue_free(&q);
        bench_free(&b);
    }
    double longest_ns = 0;
    for (size_t call = 0; call < times.count; call++) {
        if (times.least_ns[call] > longest_ns) longest_ns = times.least_ns[call];
    }
    (void)printf("longest_us %.1f\nlongest_plain_us %.1f\ncalls %zu\n", longest_ns / 1e3,
                 plain_ns / 1e3, times.count);
    wd_release(times.least_ns);
}

/* An advance of one millisecond with one timer armed, far away. */
static void run_empty(void)
{
    uint32_t out[1];
    int more = 0;
    size_t got = 0;
    bench b = bench_new(1, 1);
    queue q = queue_new(&b, 0);
    b.rows[0].due_ms = START_MS + 365 * DAY_MS;
    wd_wheel_insert(q.wheel, 0);
    double t0 = cpu_ns();
    for (int64_t i = 1; i <= EMPTY_CALLS; i++) {
        got += wd_wheel_advance(q.wheel, START_MS + i, out, 1, MAX_MOVES, &more);
    }
    double t1 = cpu_ns();
    if (got != 0 || wd_wheel_now(q.wheel) != START_MS + EMPTY_CALLS) die("not an empty advance");
    (void)printf("empty_ns %.2f\n", (t1 - t0) / EMPTY_CALLS);
    queue_free(&q);
    bench_free(&b);
}

/* Bytes per live timer: the chunks in use and the 12 bytes of the row that are the wheel's. */
static void print_bytes(const char *name, const queue *q)
{
    const double row = sizeof(int64_t) + sizeof(uint32_t); /* due_ms, where */
    uint32_t live = wd_wheel_count(q->wheel);
    if (live == 0 || wd_wheel_check(q->wheel) != 0) die("the wheel is broken");
    (void)printf("%s %.2f\n", name, row + (double)wd_wheel_bytes(q->wheel) / live);
}

/* Cancel in random order until percent of all are gone. */
static void run_random_cancels(uint32_t count, uint64_t seed)
{
    static const uint32_t percents[] = {50, 75, 90, 99};
    char name[32];
    bench b = bench_new(count, seed);
    queue q = queue_new(&b, 0);
    fill_mix(&b);
    shuffle(&b);
    insert_all(&b, &q);
    print_bytes("bytes_fresh", &q);
    shuffle(&b);
    for (size_t i = 0; i < sizeof percents / sizeof percents[0]; i++) {
        cancel_first(&b, &q, (uint32_t)((uint64_t)count * percents[i] / 100));
        (void)snprintf(name, sizeof name, "bytes_cancel_%" PRIu32, percents[i]);
        print_bytes(name, &q);
    }
    queue_free(&q);
    bench_free(&b);
}

/* All of one bucket, in order, so that slot / chunk is the chunk; then keep `even` live in every
 * other chunk and `odd` in the rest. The even ones are thinned first, while their neighbours are
 * full: so no merge can help. Then the same again with what is free, until nothing is. */
static void run_adversary(const char *name, uint32_t count, uint32_t even, uint32_t odd)
{
    const uint32_t chunk = 64;
    bench b = bench_new(count, 1);
    queue q = queue_new(&b, 0);
    uint32_t *free_slots = b.order;
    uint32_t free_count = count;
    int64_t due_ms = START_MS + DAY_MS;
    while (free_count >= 2 * chunk) {
        for (uint32_t i = 0; i < free_count; i++) {
            b.rows[free_slots[i]].due_ms = due_ms;
            wd_wheel_insert(q.wheel, free_slots[i]);
        }
        for (uint32_t pass = 0; pass < 2; pass++) {
            for (uint32_t i = 0; i < free_count; i++) {
                uint32_t keep = pass == 0 ? even : odd;
                if (i / chunk % 2 == pass && i % chunk >= keep) {
                    (void)wd_wheel_cancel(q.wheel, free_slots[i]);
                }
            }
        }
        uint32_t left = 0;
        for (uint32_t i = 0; i < free_count; i++) {
            if (b.rows[free_slots[i]].where == WD_NIL) free_slots[left++] = free_slots[i];
        }
        free_count = left;
        due_ms += 30 * DAY_MS; /* another bucket */
    }
    print_bytes(name, &q);
    queue_free(&q);
    bench_free(&b);
}

static uint64_t number(int argc, char **argv, int i)
{
    if (i >= argc) die("usage: see the heading of bench_wheel.c");
    return strtoull(argv[i], NULL, 10);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    const char *what = argc > 2 ? argv[2] : "";
    if (strcmp(mode, "mix") == 0) {
        run_mix(strcmp(what, "heap") == 0, (uint32_t)number(argc, argv, 3), number(argc, argv, 4),
                (int64_t)number(argc, argv, 5));
    } else if (strcmp(mode, "longest") == 0) {
        run_longest(strcmp(what, "herd") == 0, (uint32_t)number(argc, argv, 3),
                    number(argc, argv, 4));
    } else if (strcmp(mode, "empty") == 0) {
        run_empty();
    } else if (strcmp(mode, "memory") == 0) {
        uint32_t count = (uint32_t)number(argc, argv, 2);
        run_random_cancels(count, number(argc, argv, 3));
        run_adversary("bytes_17_in_each", count, 17, 17);
        run_adversary("bytes_1_and_17", count, 1, 17);
    } else {
        die("usage: see the heading of bench_wheel.c");
    }
    return 0;
}
