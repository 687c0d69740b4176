/* load.h -- a load generator for job servers: what its files share.
 *
 * One process, one thread, one epoll. Three roles, any mix: *producers* schedule jobs, *workers*
 * take and finish them, *pingers* send what does nothing and time it. What is said to the server is
 * a dialect (dialects.c); what is done when is roles.c; load.c reads the words of the command line
 * and turns the loop; report.c has histograms and the one line of JSON at the end.
 *
 * Every job carries a sequence number and its due time in its payload, whatever the server: so that
 * a job that comes early, twice, or with another payload is seen on any of them. A reply that is
 * not the expected one ends the run with exit status 1 and says what came.
 *
 * Times: _ns of CLOCK_MONOTONIC; _us and _ms of CLOCK_REALTIME, since due times are wall times.
 */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PAYLOAD_BYTES = 100,
    BATCH_MAX = 1000, /* jobs in one lease, the most wheeld gives */
    CONNS_MAX = 1000,
    JOBS_MAX = 1 << 26, /* of a run; a bit each tells what was done already */
    HIST_SUB_BITS = 4,  /* 16 buckets in each power of two: 6 % wide */
    HIST_BUCKETS = 64 << HIST_SUB_BITS
};

typedef struct {
    const char *p; /* NULL = a nil */
    size_t n;
} span;

typedef struct {
    char *p;
    size_t n, room;
} buffer;

typedef struct {
    uint64_t count, max;
    uint64_t bucket[HIST_BUCKETS];
} histogram;

/* The words of the command line; load.c has the list with what they mean. */
typedef struct {
    const char *dialect, *handler, *put_sha, *claim_sha, *ack_sha;
    int64_t port;
    int64_t producers, depth, jobs, first, backlog, rate, lead_ms;
    int64_t workers, batch, expect, wait_ms, poll_us;
    int64_t pingers, ping_us;
    int64_t at_ms, span_ms; /* due: 0 = now, else random in [at_ms, at_ms + span_ms] */
    int64_t seconds_ms, grace_ms, begin_ns, seed;
} settings;

typedef struct {
    span receipt; /* what acknowledges it; valid until its connection receives again */
    uint64_t seq;
    int64_t due_ms;
} taken;

typedef struct {
    uint64_t seq;
    int64_t due_ms;
    int64_t now_us;
} job;

/* What one kind of server is told, and what it must answer. The take_ functions read one reply from
 * the beginning of `in` and return its length, 0 when it is not all there, and never return when
 * it is another one than expected. */
typedef struct {
    const char *name;
    int64_t waits_up_to; /* claims of so many jobs wait at the server when it has none */
    void (*job_text)(buffer *out, const settings *set); /* with holes, see dialects.c */
    size_t (*take_stored)(span in);                     /* the reply to it */
    const char *ping, *pong;                            /* pong without its line end */
    void (*ask_jobs)(buffer *out, const settings *set, int64_t now_ms);
    void (*ask_acks)(buffer *out, const settings *set, const taken *jobs, size_t n);
    size_t (*take_jobs)(span in, const settings *set, taken *jobs, size_t *n);
    size_t (*take_acks)(span in, size_t n);
} dialect;

/* ---- dialects.c ---- */

const dialect *dialect_named(const char *name);
void dialect_prepare(const dialect *d, const settings *set); /* once, before put_job */
void put_job(buffer *out, const job *j);
size_t take_pong(const dialect *d, span in);

/* ---- roles.c ---- */

/* Connect, wait for set->begin_ns, do everything, print the line of JSON. Returns when all of it is
 * done, time is over, or SIGTERM came. */
void load_run(const settings *set);

/* ---- report.c ---- */

typedef struct {
    const settings *set;
    uint64_t sent, stored, leased, done, early, duplicates;
    uint64_t begin_ns, last_ns; /* of the run; last_ns is the last reply that counted */
    double own_cpu_s;
    const histogram *store_us, *late_us, *ping_us;
} report;

void hist_add(histogram *h, uint64_t value);
uint64_t hist_at(const histogram *h, double part); /* a bucket's upper end; 0 when empty */
void report_print(const report *r);

/* ---- load.c ---- */

_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void refuse(const char *expected, span got); /* a reply is not the expected one */
uint64_t mono_ns(void);
int64_t wall_us(void);
extern volatile int stop_asked; /* SIGTERM came */

void buffer_need(buffer *b, size_t more);
void buffer_put(buffer *b, const void *p, size_t n);
void buffer_text(buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
