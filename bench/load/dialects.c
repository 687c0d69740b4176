/* dialects.c -- what each kind of server is told, and what it must answer.
 *
 *   wheeld      SCHEDULE; LEASE ... WAIT; ACK
 *   zadd        Redis, a sorted set whose members are the payloads: ZADD; a claim by Lua; ZREM
 *   hset        Redis, a hash of payloads and a sorted set of ids: put, claim and ack by Lua
 *   beanstalkd  put; reserve; delete
 *
 * A job's command is a text with holes, made once, and filled in for each job: runs of # (sequence
 * number), @ (due time, unix ms) and ~ (delay in whole seconds, rounded up, since beanstalkd knows
 * no other).
 */
#define _GNU_SOURCE
#include "load.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQ      "##########"
#define DUE      "@@@@@@@@@@@@@"
#define DELAY    "~~~~~~~~"
#define BEFORE   "{\"seq\":\""
#define BETWEEN  "\",\"due\":\""
#define BEHIND   "\",\"mail\":\"welcome\",\"trace\":\"9f86d081884c7d659a2feaa0c55ad0\"}"
#define PAYLOAD  BEFORE SEQ BETWEEN DUE BEHIND
#define SHA_HEAD "\r\n$7\r\nEVALSHA\r\n$40\r\n%s\r\n"

enum {
    SEQ_DIGITS = sizeof SEQ - 1,
    SEQ_AT = sizeof BEFORE - 1,
    DUE_DIGITS = sizeof DUE - 1,
    DUE_AT = sizeof BEFORE SEQ BETWEEN - 1,
    BEHIND_AT = DUE_AT + DUE_DIGITS,
    HOLES_MAX = 8,
    LEASE_MS = 60000
};
_Static_assert(sizeof PAYLOAD - 1 == PAYLOAD_BYTES, "the payload has the size that is quoted");

/* ---- reading ---- */

typedef struct {
    span in;
    size_t at;
    bool missing; /* the reply is not all there; what was read means nothing then */
} cursor;

static span take_line(cursor *c)
{
    span none = {"", 0};
    if (c->missing) return none;
    const char *from = c->in.p + c->at;
    const char *end = memchr(from, '\n', c->in.n - c->at);
    if (!end) {
        c->missing = true;
        return none;
    }
    c->at = (size_t)(end - c->in.p) + 1;
    if (end == from || end[-1] != '\r') refuse("a line that ends with CRLF", (span){from, 1});
    return (span){from, (size_t)(end - from) - 1};
}

static span take_bytes(cursor *c, size_t n)
{
    if (c->missing || c->in.n - c->at < n + 2) {
        c->missing = true;
        return (span){"", 0};
    }
    span body = {c->in.p + c->at, n};
    if (memcmp(body.p + n, "\r\n", 2) != 0) refuse("CRLF behind a string", body);
    c->at += n + 2;
    return body;
}

static bool to_number(span text, int64_t *number)
{
    bool negative = text.n > 0 && text.p[0] == '-';
    size_t i = negative;
    *number = 0;
    for (; i < text.n && text.p[i] >= '0' && text.p[i] <= '9' && i < 19; i++)
        *number = *number * 10 + (text.p[i] - '0');
    if (negative) *number = -*number;
    return i == text.n && text.n > (size_t)negative;
}

static int64_t take_number(cursor *c, char mark, const char *expected)
{
    span line = take_line(c);
    int64_t number = 0;
    if (c->missing) return 0;
    if (line.n < 2 || line.p[0] != mark || !to_number((span){line.p + 1, line.n - 1}, &number))
        refuse(expected, line);
    return number;
}

static void take_exactly(cursor *c, const char *text)
{
    span line = take_line(c);
    if (!c->missing && (line.n != strlen(text) || memcmp(line.p, text, line.n) != 0))
        refuse(text, line);
}

static span take_bulk(cursor *c)
{
    int64_t n = take_number(c, '$', "a bulk string");
    return n < 0 ? (span){NULL, 0} : take_bytes(c, (size_t)n);
}

/* A scalar, whichever. */
static void skip_value(cursor *c)
{
    if (c->missing || c->at == c->in.n) {
        c->missing = true;
        return;
    }
    if (c->in.p[c->at] == '$')
        (void)take_bulk(c);
    else
        (void)take_number(c, ':', "a number, a bulk string or nil");
}

static size_t used(const cursor *c)
{
    return c->missing ? 0 : c->at;
}

/* What came must be what put_job made of some sequence number and due time. */
static void read_payload(span payload, taken *t)
{
    int64_t seq;
    if (payload.n != PAYLOAD_BYTES || memcmp(payload.p, BEFORE, SEQ_AT) != 0 ||
        memcmp(payload.p + SEQ_AT + SEQ_DIGITS, BETWEEN, sizeof BETWEEN - 1) != 0 ||
        memcmp(payload.p + BEHIND_AT, BEHIND, sizeof BEHIND - 1) != 0 ||
        !to_number((span){payload.p + SEQ_AT, SEQ_DIGITS}, &seq) ||
        !to_number((span){payload.p + DUE_AT, DUE_DIGITS}, &t->due_ms))
        refuse("a payload that was sent", payload);
    t->seq = (uint64_t)seq;
}

static int digits_of(int64_t number)
{
    int digits = 1;
    while (number /= 10)
        digits++;
    return digits;
}

/* ---- the command of one job ---- */

static struct {
    buffer text;
    struct {
        size_t at, digits;
        char mark;
    } hole[HOLES_MAX];
    size_t holes;
} made;

static void find_holes(void)
{
    for (size_t i = 0; i < made.text.n;) {
        char mark = made.text.p[i];
        size_t end = i + 1;
        while (end < made.text.n && made.text.p[end] == mark)
            end++;
        if ((mark == '#' || mark == '@' || mark == '~') && end - i >= sizeof DELAY - 1) {
            if (made.holes == HOLES_MAX) die("a job's command has too many holes");
            made.hole[made.holes].at = i;
            made.hole[made.holes].digits = end - i;
            made.hole[made.holes++].mark = mark;
        }
        i = end;
    }
}

void dialect_prepare(const dialect *d, const settings *set)
{
    d->job_text(&made.text, set);
    find_holes();
}

void put_job(buffer *out, const job *j)
{
    buffer_need(out, made.text.n);
    char *text = out->p + out->n;
    memcpy(text, made.text.p, made.text.n);
    out->n += made.text.n;
    int64_t delay_us = j->due_ms * 1000 - j->now_us;
    for (size_t i = 0; i < made.holes; i++) {
        uint64_t value = made.hole[i].mark == '#'   ? j->seq
                         : made.hole[i].mark == '@' ? (uint64_t)j->due_ms
                         : delay_us > 0             ? (uint64_t)(delay_us + 999999) / 1000000
                                                    : 0;
        for (size_t k = made.hole[i].digits; k-- > 0; value /= 10)
            text[made.hole[i].at + k] = (char)('0' + value % 10);
    }
}

size_t take_pong(const dialect *d, span in)
{
    cursor c = {.in = in};
    take_exactly(&c, d->pong);
    return used(&c);
}

/* ---- wheeld ---- */

static size_t wheeld_take_stored(span in)
{
    cursor c = {.in = in};
    span id = take_bulk(&c);
    int64_t number;
    if (!c.missing && !to_number(id, &number)) refuse("an id", id);
    return used(&c);
}

static void wheeld_job(buffer *out, const settings *set)
{
    const char *when = set->at_ms || set->rate ? "$13\r\n" DUE : "$3\r\nnow";
    buffer_text(out, "*4\r\n$8\r\nSCHEDULE\r\n$%zu\r\n%s\r\n%s\r\n$100\r\n" PAYLOAD "\r\n",
                strlen(set->handler), set->handler, when);
}

static void wheeld_ask_jobs(buffer *out, const settings *set, int64_t now_ms)
{
    static buffer text; /* the same each time */
    (void)now_ms;
    if (text.n == 0) {
        buffer_text(&text,
                    "*6\r\n$5\r\nLEASE\r\n$%zu\r\n%s\r\n$5\r\nCOUNT\r\n$%d\r\n%" PRId64
                    "\r\n$4\r\nWAIT\r\n$%d\r\n%" PRId64 "\r\n",
                    strlen(set->handler), set->handler, digits_of(set->batch), set->batch,
                    digits_of(set->wait_ms), set->wait_ms);
    }
    buffer_put(out, text.p, text.n);
}

static void put_receipts(buffer *out, const taken *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        buffer_text(out, "$%zu\r\n", jobs[i].receipt.n);
        buffer_put(out, jobs[i].receipt.p, jobs[i].receipt.n);
        buffer_put(out, "\r\n", 2);
    }
}

static void wheeld_ask_acks(buffer *out, const settings *set, const taken *jobs, size_t n)
{
    (void)set;
    buffer_text(out, "*%zu\r\n$3\r\nACK\r\n", n + 1);
    put_receipts(out, jobs, n);
}

static size_t wheeld_take_jobs(span in, const settings *set, taken *jobs, size_t *n)
{
    enum { FIELDS = 12, RECEIPT = 0, PAYLOAD_FIELD = 7 };
    cursor c = {.in = in};
    int64_t count = take_number(&c, '*', "an array of jobs");
    if (count > set->batch) refuse("at most COUNT jobs", (span){in.p, c.at});
    for (int64_t i = 0; i < count && !c.missing; i++) {
        int64_t fields = take_number(&c, '*', "a job");
        if (!c.missing && fields < FIELDS) refuse("a job of 12 fields", (span){in.p, c.at});
        for (int64_t field = 0; field < fields && !c.missing; field++) {
            if (field != RECEIPT && field != PAYLOAD_FIELD) {
                skip_value(&c);
                continue;
            }
            span value = take_bulk(&c);
            if (c.missing) break;
            if (field == RECEIPT) jobs[i].receipt = value;
            if (field == PAYLOAD_FIELD) read_payload(value, &jobs[i]);
        }
    }
    *n = (size_t)count;
    return used(&c);
}

static size_t wheeld_take_acks(span in, size_t n)
{
    cursor c = {.in = in};
    int64_t count = take_number(&c, '*', "an array of outcomes");
    if (!c.missing && count != (int64_t)n) refuse("an outcome for each receipt", in);
    for (size_t i = 0; i < n && !c.missing; i++)
        take_exactly(&c, "+OK");
    return used(&c);
}

/* ---- Redis ---- */

static size_t redis_take_stored(span in)
{
    cursor c = {.in = in};
    take_exactly(&c, ":1");
    return used(&c);
}

static void zadd_job(buffer *out, const settings *set)
{
    (void)set;
    buffer_text(out, "*4\r\n$4\r\nZADD\r\n$3\r\ndue\r\n$13\r\n" DUE "\r\n$100\r\n" PAYLOAD "\r\n");
}

static void hset_job(buffer *out, const settings *set)
{
    buffer_text(out,
                "*8" SHA_HEAD "$1\r\n2\r\n$3\r\ndue\r\n$4\r\njobs\r\n$10\r\n" SEQ "\r\n$13\r\n" DUE
                "\r\n$100\r\n" PAYLOAD "\r\n",
                set->put_sha);
}

/* Both claims have the same words; the script of `zadd` does not look at `jobs`. */
static void redis_ask_jobs(buffer *out, const settings *set, int64_t now_ms)
{
    buffer_text(out,
                "*9" SHA_HEAD "$1\r\n3\r\n$3\r\ndue\r\n$6\r\nleased\r\n$4\r\njobs\r\n"
                "$13\r\n%013" PRId64 "\r\n$13\r\n%013" PRId64 "\r\n$%d\r\n%" PRId64 "\r\n",
                set->claim_sha, now_ms, now_ms + LEASE_MS, digits_of(set->batch), set->batch);
}

static void zadd_ask_acks(buffer *out, const settings *set, const taken *jobs, size_t n)
{
    (void)set;
    buffer_text(out, "*%zu\r\n$4\r\nZREM\r\n$6\r\nleased\r\n", n + 2);
    put_receipts(out, jobs, n);
}

static void hset_ask_acks(buffer *out, const settings *set, const taken *jobs, size_t n)
{
    buffer_text(out, "*%zu" SHA_HEAD "$1\r\n2\r\n$6\r\nleased\r\n$4\r\njobs\r\n", n + 5,
                set->ack_sha);
    put_receipts(out, jobs, n);
}

static size_t redis_take_jobs(span in, const settings *set, taken *jobs, size_t *n, bool with_ids)
{
    cursor c = {.in = in};
    int64_t texts = take_number(&c, '*', "an array of jobs");
    int64_t count = with_ids ? texts / 2 : texts;
    if (count > set->batch || (with_ids && texts % 2 != 0))
        refuse("at most COUNT jobs", (span){in.p, c.at});
    for (int64_t i = 0; i < count && !c.missing; i++) {
        jobs[i].receipt = take_bulk(&c);
        span payload = with_ids ? take_bulk(&c) : jobs[i].receipt;
        if (!c.missing) read_payload(payload, &jobs[i]);
    }
    *n = (size_t)count;
    return used(&c);
}

static size_t zadd_take_jobs(span in, const settings *set, taken *jobs, size_t *n)
{
    return redis_take_jobs(in, set, jobs, n, false);
}

static size_t hset_take_jobs(span in, const settings *set, taken *jobs, size_t *n)
{
    return redis_take_jobs(in, set, jobs, n, true);
}

static size_t redis_take_acks(span in, size_t n)
{
    cursor c = {.in = in};
    int64_t count = take_number(&c, ':', "a number of acknowledged jobs");
    if (!c.missing && count != (int64_t)n) refuse("all jobs acknowledged", (span){in.p, c.at});
    return used(&c);
}

/* ---- beanstalkd: one command a job, always ---- */

static size_t beanstalkd_take_stored(span in)
{
    static const char inserted[] = "INSERTED ";
    cursor c = {.in = in};
    span line = take_line(&c);
    if (!c.missing &&
        (line.n < sizeof inserted || memcmp(line.p, inserted, sizeof inserted - 1) != 0))
        refuse("INSERTED id", line);
    return used(&c);
}

static void beanstalkd_job(buffer *out, const settings *set)
{
    (void)set;
    buffer_text(out, "put 1024 " DELAY " 60 100\r\n" PAYLOAD "\r\n");
}

/* Several at once must not wait: the first that waits would hold back what the others found. */
static void beanstalkd_ask_jobs(buffer *out, const settings *set, int64_t now_ms)
{
    (void)now_ms;
    int64_t wait_s = set->batch == 1 ? (set->wait_ms + 999) / 1000 : 0;
    for (int64_t i = 0; i < set->batch; i++)
        buffer_text(out, "reserve-with-timeout %" PRId64 "\r\n", wait_s);
}

static void beanstalkd_ask_acks(buffer *out, const settings *set, const taken *jobs, size_t n)
{
    (void)set;
    for (size_t i = 0; i < n; i++) {
        buffer_put(out, "delete ", 7);
        buffer_put(out, jobs[i].receipt.p, jobs[i].receipt.n);
        buffer_put(out, "\r\n", 2);
    }
}

static size_t beanstalkd_take_jobs(span in, const settings *set, taken *jobs, size_t *n)
{
    static const char reserved[] = "RESERVED ", timed_out[] = "TIMED_OUT";
    cursor c = {.in = in};
    *n = 0;
    for (int64_t i = 0; i < set->batch && !c.missing; i++) {
        span line = take_line(&c);
        if (c.missing || (line.n == sizeof timed_out - 1 && memcmp(line.p, timed_out, line.n) == 0))
            continue;
        const char *blank = line.n > sizeof reserved ? memrchr(line.p, ' ', line.n) : NULL;
        if (!blank || memcmp(line.p, reserved, sizeof reserved - 1) != 0 ||
            blank < line.p + sizeof reserved - 1)
            refuse("RESERVED id bytes", line);
        int64_t bytes;
        span digits = {blank + 1, (size_t)(line.p + line.n - blank - 1)};
        if (!to_number(digits, &bytes) || bytes < 0) refuse("RESERVED id bytes", line);
        jobs[*n].receipt.p = line.p + sizeof reserved - 1;
        jobs[*n].receipt.n = (size_t)(blank - jobs[*n].receipt.p);
        span payload = take_bytes(&c, (size_t)bytes);
        if (!c.missing) read_payload(payload, &jobs[(*n)++]);
    }
    return used(&c);
}

static size_t beanstalkd_take_acks(span in, size_t n)
{
    cursor c = {.in = in};
    for (size_t i = 0; i < n && !c.missing; i++)
        take_exactly(&c, "DELETED");
    return used(&c);
}

/* ---- all of them ---- */

static const dialect dialects[] = {
    {.name = "wheeld",
     .waits_up_to = BATCH_MAX,
     .job_text = wheeld_job,
     .take_stored = wheeld_take_stored,
     .ping = "*1\r\n$4\r\nPING\r\n",
     .pong = "+PONG",
     .ask_jobs = wheeld_ask_jobs,
     .ask_acks = wheeld_ask_acks,
     .take_jobs = wheeld_take_jobs,
     .take_acks = wheeld_take_acks},
    {.name = "zadd",
     .job_text = zadd_job,
     .take_stored = redis_take_stored,
     .ping = "*1\r\n$4\r\nPING\r\n",
     .pong = "+PONG",
     .ask_jobs = redis_ask_jobs,
     .ask_acks = zadd_ask_acks,
     .take_jobs = zadd_take_jobs,
     .take_acks = redis_take_acks},
    {.name = "hset",
     .job_text = hset_job,
     .take_stored = redis_take_stored,
     .ping = "*1\r\n$4\r\nPING\r\n",
     .pong = "+PONG",
     .ask_jobs = redis_ask_jobs,
     .ask_acks = hset_ask_acks,
     .take_jobs = hset_take_jobs,
     .take_acks = redis_take_acks},
    {.name = "beanstalkd",
     .waits_up_to = 1,
     .job_text = beanstalkd_job,
     .take_stored = beanstalkd_take_stored,
     .ping = "list-tube-used\r\n", /* it knows no PING; this reads one pointer */
     .pong = "USING default",
     .ask_jobs = beanstalkd_ask_jobs,
     .ask_acks = beanstalkd_ask_acks,
     .take_jobs = beanstalkd_take_jobs,
     .take_acks = beanstalkd_take_acks},
};

const dialect *dialect_named(const char *name)
{
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++)
        if (strcmp(dialects[i].name, name) == 0) return &dialects[i];
    return NULL;
}
