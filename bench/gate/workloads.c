/* workloads.c -- fixed work for the core, whose instructions bench/instructions.py counts.
 *
 * Everything is by hand: clocks, commits, connections; no socket, no thread, no log file. So each
 * run carries out the very same instructions. Each work_*() is one workload, under its own name in
 * callgrind's output; the functions of this file are left out of the count, and so is what the C
 * library and the kernel do. What is prepared for a workload is done before it.
 *
 * A function work_*() is never inlined and never cloned: callgrind begins and ends to count at it.
 * Printed for each: its name without work_, and how many things it did, for figures a thing.
 */
#include "wd_control.h"
#include "wd_core.h"
#include "wd_frame.h"
#include "wd_record.h"
#include "wd_save.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define WORK __attribute__((noipa)) static void

enum {
    JOBS = 2000,
    BATCH = 100, /* commands a round, and jobs a LEASE */
    PAYLOAD_BYTES = 100,
    RUNS = 500, /* of schedules */
    LEASE_MS = 1000,
    RECEIPT_BYTES = 64,
    TERM = 7,
    SLICE_THINGS = 64,
    EMPTY_TICKS = 1000,
    EMPTY_YEARS = 50
};
static const int64_t BEGIN_MS = INT64_C(1800000000000);
static const int64_t SECOND_MS = 1000, MINUTE_MS = 60000, HOUR_MS = 3600000, DAY_MS = 86400000;

/* The driver's own buffer: what it does with the core's would be counted. */
typedef struct {
    uint8_t *p;
    size_t n, room;
} bytes;

typedef struct {
    wd_core *core;
    uint64_t conn;
    int64_t now_ms;
    bytes in;      /* commands to be sent */
    bytes out;     /* replies of the last round */
    bytes frames;  /* all that became durable */
    uint64_t *ids; /* of jobs, in the order in which they were made */
    uint32_t ids_n;
    char (*receipts)[RECEIPT_BYTES];
    uint32_t receipts_n;
    uint64_t random;
} world;

static _Noreturn void die(const char *what, int64_t value)
{
    (void)fprintf(stderr, "workloads: %s (%" PRId64 ")\n", what, value);
    exit(1);
}

static void need(int status, const char *what)
{
    if (status < 0) die(what, status);
}

static uint64_t draw(world *w) /* xorshift64 (Marsaglia 2003) */
{
    w->random ^= w->random << 13U;
    w->random ^= w->random >> 7U;
    w->random ^= w->random << 17U;
    return w->random;
}

/* ---- a core by hand ---- */

static wd_core *core_new(void)
{
    wd_core_options o = {.jobs_max = 16 * JOBS,
                         .conns_max = 4,
                         .dead_max = JOBS,
                         .dead_kept_ms = DAY_MS,
                         .ended_max = 2 * JOBS,
                         .once_max = JOBS,
                         .maxmemory_bytes = UINT64_C(1) << 30,
                         .payload_bytes_max = 1 << 16,
                         .seed = 1,
                         .commit_mode = WD_COMMIT_DRIVEN,
                         .hand_clock = 1};
    wd_core *c = wd_core_new(&o);
    if (!c) die("no core", 0);
    return c;
}

static world world_new(void)
{
    world w = {.core = core_new(), .now_ms = BEGIN_MS, .random = 88172645463325252U};
    w.ids = calloc(4 * JOBS, sizeof w.ids[0]);
    w.receipts = calloc(JOBS, sizeof w.receipts[0]);
    if (!w.ids || !w.receipts) die("no memory", 0);
    need(wd_core_start(w.core, TERM, w.now_ms, w.now_ms, w.now_ms, w.now_ms), "start");
    need(wd_core_fed_open(w.core, "gate", &w.conn), "open");
    return w;
}

static void world_free(world *w)
{
    wd_core_free(w->core);
    free(w->in.p);
    free(w->out.p);
    free(w->frames.p);
    free(w->ids);
    free(w->receipts);
}

static void put(bytes *b, const void *p, size_t n)
{
    if (b->n + n > b->room) {
        b->room = 2 * (b->n + n);
        b->p = realloc(b->p, b->room);
        if (!b->p) die("no memory", (int64_t)b->room);
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

/* Make everything durable, and keep its frames. */
static void settle(world *w)
{
    const uint8_t *frame = NULL;
    size_t n = 0;
    uint64_t lsn = 0;
    need(wd_core_commit(w->core), "commit");
    while (wd_core_take_batch(w->core, &frame, &n, &lsn) == WD_OK) {
        put(&w->frames, frame, n);
        need(wd_core_batch_durable(w->core, lsn), "durable");
        need(wd_core_commit(w->core), "commit");
    }
}

/* Send what stands in w->in as one piece, and take the replies into w->out. */
static void ask(world *w)
{
    const uint8_t *p = NULL;
    size_t n = 0;
    int finished = 0;
    need(wd_core_fed_input(w->core, w->conn, w->in.p, w->in.n), "input");
    w->in.n = 0;
    w->out.n = 0;
    settle(w);
    need(wd_core_fed_output(w->core, w->conn, &p, &n, &finished), "output");
    put(&w->out, p, n);
    need(wd_core_fed_taken(w->core, w->conn, n), "taken");
    if (w->out.n == 0 || w->out.p[0] == '-' || finished) die("refused", (int64_t)w->out.n);
}

static void move_to(world *w, int64_t now_ms)
{
    w->now_ms = now_ms;
    need(wd_core_tick(w->core, now_ms, now_ms, now_ms), "tick");
    settle(w);
}

static uint64_t ready_jobs(const world *w)
{
    wd_engine_figures f;
    wd_core_engine_figures(w->core, &f);
    return f.jobs_ready;
}

/* ---- words ---- */

static void word(world *w, const char *p, size_t n)
{
    char head[32];
    int k = snprintf(head, sizeof head, "$%zu\r\n", n);
    put(&w->in, head, (size_t)k);
    put(&w->in, p, n);
    put(&w->in, "\r\n", 2);
}

static void text(world *w, const char *p)
{
    word(w, p, strlen(p));
}

static void number(world *w, int64_t value)
{
    char digits[32];
    int k = snprintf(digits, sizeof digits, "%" PRId64, value);
    word(w, digits, (size_t)k);
}

static void begin(world *w, uint32_t words)
{
    char head[32];
    int k = snprintf(head, sizeof head, "*%" PRIu32 "\r\n", words);
    put(&w->in, head, (size_t)k);
}

/* SCHEDULE mail due payload [KEY key] */
static void say_schedule(world *w, int64_t due_ms, uint32_t key)
{
    static char payload[PAYLOAD_BYTES];
    char name[32];
    memset(payload, 'p', sizeof payload);
    begin(w, key ? 6 : 4);
    text(w, "SCHEDULE");
    text(w, "mail");
    number(w, due_ms);
    word(w, payload, sizeof payload);
    if (!key) return;
    int k = snprintf(name, sizeof name, "order-%014" PRIu32, key);
    text(w, "KEY");
    word(w, name, (size_t)k);
}

/* Half within a minute, a quarter within an hour, the rest within 30 days. */
static int64_t draw_due_ms(world *w)
{
    uint64_t kind = draw(w) % 4;
    uint64_t most = (uint64_t)(kind < 2 ? MINUTE_MS : kind == 2 ? HOUR_MS : 30 * DAY_MS);
    return w->now_ms + 1 + (int64_t)(draw(w) % most);
}

/* The bulk strings of the replies, one after another: *at moves behind the one that is returned.
 * n = 0: there is none. */
static wd_span next_bulk(const world *w, size_t *at)
{
    while (*at < w->out.n) {
        const uint8_t *line = w->out.p + *at;
        const uint8_t *end = memchr(line, '\n', w->out.n - *at);
        if (!end) break;
        *at += (size_t)(end - line) + 1;
        int64_t n = line[0] == '$' ? strtoll((const char *)line + 1, NULL, 10) : -1;
        if (n < 0) continue;
        wd_span s = {w->out.p + *at, (size_t)n};
        *at += (size_t)n + 2;
        return s;
    }
    return (wd_span){NULL, 0};
}

static void keep_ids(world *w)
{
    size_t at = 0;
    for (wd_span s = next_bulk(w, &at); s.n; s = next_bulk(w, &at)) {
        if (s.p[0] < '0' || s.p[0] > '9') continue; /* "created", "scheduled" */
        w->ids[w->ids_n++] = strtoull((const char *)s.p, NULL, 10);
    }
}

static void keep_receipts(world *w)
{
    size_t at = 0;
    for (wd_span s = next_bulk(w, &at); s.n; s = next_bulk(w, &at)) {
        if (s.n >= RECEIPT_BYTES || !memchr(s.p, '.', s.n)) continue;
        memcpy(w->receipts[w->receipts_n], s.p, s.n);
        w->receipts[w->receipts_n++][s.n] = 0;
    }
}

static void say_lease(world *w, const char *handler)
{
    begin(w, 6);
    text(w, "LEASE");
    text(w, handler);
    text(w, "COUNT");
    number(w, BATCH);
    text(w, "FOR");
    number(w, LEASE_MS);
}

static void lease_all(world *w, const char *handler, int acknowledge)
{
    w->receipts_n = 0;
    for (uint32_t first = 0;; first = w->receipts_n) {
        say_lease(w, handler);
        ask(w);
        keep_receipts(w);
        if (w->receipts_n == first) return;
        if (!acknowledge) continue;
        begin(w, 1 + w->receipts_n - first);
        text(w, "ACK");
        for (uint32_t i = first; i < w->receipts_n; i++)
            text(w, w->receipts[i]);
        ask(w);
        if (w->receipts_n == JOBS) return;
    }
}

/* ---- the workloads ---- */

WORK work_schedule(world *w)
{
    for (uint32_t i = 0; i < JOBS; i++) {
        say_schedule(w, draw_due_ms(w), 0);
        if ((i + 1) % BATCH) continue;
        ask(w);
        keep_ids(w);
    }
}

WORK work_schedule_keyed(world *w)
{
    for (uint32_t i = 0; i < JOBS; i++) {
        say_schedule(w, draw_due_ms(w), i + 1);
        if ((i + 1) % BATCH) continue;
        ask(w);
        keep_ids(w);
    }
}

/* Every second job, from places all over the table. */
WORK work_cancel(world *w)
{
    for (uint32_t i = 0; i < w->ids_n; i += 2) {
        begin(w, 2);
        text(w, "CANCEL");
        number(w, (int64_t)w->ids[(i * UINT64_C(7919)) % w->ids_n & ~UINT64_C(1)]);
        if ((i + 2) % (2 * BATCH) == 0) ask(w);
    }
}

/* Write a checkpoint of everything, so many things a round. */
WORK work_checkpoint(world *w, const char *path)
{
    wd_checkpoint_start o = {.path = path, .salt = 7, .slice_things = SLICE_THINGS};
    wd_checkpoint_state s;
    need(wd_core_checkpoint_start(w->core, wd_io_real(), &o), "checkpoint");
    do {
        settle(w);
        wd_core_checkpoint_state(w->core, &s);
    } while (s.phase < WD_CHECKPOINT_DONE);
    if (s.phase != WD_CHECKPOINT_DONE) die("the checkpoint failed", s.error);
}

/* Time passes until every job is ready: 100 ms at a time, then minutes, then days. */
WORK work_fire(world *w)
{
    int64_t begin_ms = w->now_ms;
    for (int64_t ms = 100; ms <= MINUTE_MS; ms += 100)
        move_to(w, begin_ms + ms);
    for (int64_t ms = 2 * MINUTE_MS; ms <= HOUR_MS; ms += MINUTE_MS)
        move_to(w, begin_ms + ms);
    for (int64_t ms = DAY_MS; ms <= 31 * DAY_MS; ms += DAY_MS)
        move_to(w, begin_ms + ms);
}

WORK work_lease_ack(world *w)
{
    lease_all(w, "mail", 1);
}

/* All are leased, all leases end, all are leased again. */
WORK work_lease_expires(world *w)
{
    lease_all(w, "mail", 0);
    for (int64_t ms = 100; ms <= 4 * SECOND_MS; ms += 100)
        move_to(w, w->now_ms + 100);
    lease_all(w, "mail", 0);
}

/* Runs of schedules: the run and its schedule's entry in one batch; leased, acknowledged, seen. */
WORK work_schedule_runs(world *w)
{
    static uint8_t ops[1 << 12];
    static const char entry[240] = "an entry of a schedule, as Python packs it";
    char owner[64], name[32];
    for (uint32_t i = 0; i < RUNS; i++) {
        uint64_t id = 0;
        uint32_t made = 0;
        wd_record run = {.kind = WD_R_CREATED,
                         .fields = WD_F_DUE | WD_F_FLAGS | WD_F_PRIORITY,
                         .due_ms = w->now_ms,
                         .priority = 128};
        wd_record after = {.kind = WD_R_PUT, .fields = WD_F_REASON, .reason = 1};
        int k = snprintf(name, sizeof name, "report-%06" PRIu32, i % 100);
        wd_record_set(&after, WD_S_NAME, (wd_span){(const uint8_t *)name, (size_t)k});
        wd_record_set(&after, WD_S_BLOB, (wd_span){(const uint8_t *)entry, sizeof entry});
        k = snprintf(owner, sizeof owner, "%s@2027-01-15T08:%02" PRIu32 ":00Z", name, i / 100);
        wd_record_set(&run, WD_S_OWNER, (wd_span){(const uint8_t *)owner, (size_t)k});
        wd_record_set(&run, WD_S_NAME, WD_SPAN("report"));
        wd_record_set(&run, WD_S_PAYLOAD, (wd_span){(const uint8_t *)entry, PAYLOAD_BYTES});
        size_t n = wd_record_encode(&run, ops);
        n += wd_record_encode(&after, ops + n);
        need(wd_core_submit(w->core, ops, n, &id, 1, &made), "submit");
        if ((i + 1) % BATCH == 0) move_to(w, w->now_ms + 1);
    }
    lease_all(w, "report", 1);
    for (uint32_t closed = 0; closed < RUNS;) {
        const uint8_t *p = NULL;
        size_t n = 0, ops_n = 0;
        need(wd_core_ended(w->core, 20, &p, &n), "ended");
        wd_span left = {p, n};
        while (left.n) {
            wd_record r;
            size_t bytes = 0;
            need(wd_record_decode(left, &r, &bytes), "decode");
            left = (wd_span){left.p + bytes, left.n - bytes};
            wd_record seen = {.kind = WD_R_CLOSED, .fields = WD_F_ID, .id = r.id};
            ops_n += wd_record_encode(&seen, ops + ops_n);
            closed++;
        }
        uint32_t made = 0;
        if (ops_n == 0) die("runs did not end", closed);
        need(wd_core_submit(w->core, ops, ops_n, NULL, 0, &made), "submit");
        settle(w);
    }
}

/* A new core reads all frames of the old one. */
WORK work_replay(const world *w, wd_core *fresh)
{
    need(wd_core_replay(fresh, w->frames.p, w->frames.n, TERM), "replay");
}

/* A new core loads the checkpoint. */
WORK work_load(wd_core *fresh, const uint8_t *p, size_t n)
{
    need(wd_core_load(fresh, p, n), "load");
}

/* One timer far away, and time: milliseconds, hours, years. */
WORK work_empty_time(world *w)
{
    for (int i = 0; i < EMPTY_TICKS; i++)
        move_to(w, w->now_ms + 1);
    for (int i = 0; i < EMPTY_TICKS; i++)
        move_to(w, w->now_ms + HOUR_MS);
    for (int i = 0; i < EMPTY_YEARS; i++)
        move_to(w, w->now_ms + 365 * DAY_MS);
}

/* ---- in order ---- */

static void expect(uint64_t found, uint64_t wanted, const char *what)
{
    if (found != wanted) die(what, (int64_t)found);
}

static bytes read_file(const char *path)
{
    static uint8_t block[1 << 16];
    bytes b = {0};
    FILE *f = fopen(path, "rb");
    if (!f) die("no checkpoint", 0);
    for (size_t got = sizeof block; got > 0; put(&b, block, got))
        got = fread(block, 1, sizeof block, f);
    (void)fclose(f);
    return b;
}

static void did(const char *work, uint64_t things)
{
    (void)printf("%s %" PRIu64 "\n", work, things);
}

static void run_jobs(world *w, const char *path)
{
    work_schedule(w);
    expect(w->ids_n, JOBS, "jobs were not made");
    work_schedule_keyed(w);
    expect(w->ids_n, 2 * JOBS, "jobs with keys were not made");
    work_checkpoint(w, path);
    work_cancel(w);
    work_fire(w);
    expect(ready_jobs(w), JOBS, "jobs are not ready");
    work_lease_ack(w);
    expect(ready_jobs(w), 0, "jobs are left");
    did("schedule", JOBS);
    did("schedule_keyed", JOBS);
    did("checkpoint", 2 * JOBS);
    did("cancel", JOBS);
    did("fire", JOBS);
    did("lease_ack", JOBS);
}

static void run_leases(world *w)
{
    for (uint32_t i = 0; i < JOBS / 2; i++) {
        say_schedule(w, w->now_ms, 0);
        if ((i + 1) % BATCH == 0) ask(w);
    }
    work_lease_expires(w);
    expect(w->receipts_n, JOBS / 2, "lost leases did not come back");
    did("lease_expires", JOBS / 2);
}

int main(int argc, char **argv)
{
    if (argc != 2) die("usage: workloads FILE, which a checkpoint is written to", argc);
    wd_crc32c_force_table(1); /* the same work on every CPU */
    world w = world_new();
    run_jobs(&w, argv[1]);
    run_leases(&w);
    work_schedule_runs(&w);
    did("schedule_runs", RUNS);
    uint64_t records = wd_core_lsn(w.core);
    wd_core *fresh = core_new();
    work_replay(&w, fresh);
    expect(wd_core_hash(fresh), wd_core_hash(w.core), "the replay gives another state");
    did("replay", records);
    wd_core_free(fresh);
    world_free(&w);

    bytes file = read_file(argv[1]);
    fresh = core_new();
    work_load(fresh, file.p, file.n);
    did("load", 2 * JOBS);
    wd_core_free(fresh);
    free(file.p);

    world empty = world_new();
    say_schedule(&empty, BEGIN_MS + 60 * 365 * DAY_MS, 0);
    ask(&empty);
    work_empty_time(&empty);
    expect(ready_jobs(&empty), 0, "the far timer has fired");
    did("empty_time", 2 * EMPTY_TICKS + EMPTY_YEARS);
    world_free(&empty);
    return 0;
}
