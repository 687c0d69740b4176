/* load.c -- the words of the command line of the load generator, and what its files share.
 *
 *     load --dialect wheeld --port 8463 --producers 50 --depth 16 --jobs 1000000 \
 *          --at-ms 2000000000000 --span-ms 86400000 --seconds-ms 10000
 *
 * Every run is bounded by --seconds-ms, at most ten minutes, and by --jobs. SIGTERM ends it like
 * the end of its time: no more is sent, the replies that are owed are waited for, and the line of
 * JSON tells what was done. Exit status 0 with that line, or 1 with a sentence on standard error.
 */
#define _GNU_SOURCE
#include "load.h"
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

volatile int stop_asked;

void die(const char *format, ...)
{
    va_list words;
    va_start(words, format);
    (void)fputs("load: ", stderr);
    (void)vfprintf(stderr, format, words);
    (void)fputc('\n', stderr);
    va_end(words);
    exit(1);
}

void refuse(const char *expected, span got)
{
    enum { SHOWN = 200 };
    char text[SHOWN + 1];
    size_t n = got.n < SHOWN ? got.n : SHOWN;
    for (size_t i = 0; i < n; i++)
        text[i] = (char)(got.p[i] >= ' ' && got.p[i] < 127 ? got.p[i] : '.');
    text[n] = 0;
    die("expected %s, the server answered: %s", expected, text);
}

uint64_t mono_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int64_t wall_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

void buffer_need(buffer *b, size_t more)
{
    if (b->room - b->n >= more) return;
    size_t room = b->room ? b->room : 4096;
    while (room - b->n < more)
        room *= 2;
    char *p = realloc(b->p, room);
    if (!p) die("out of memory");
    b->p = p;
    b->room = room;
}

void buffer_put(buffer *b, const void *p, size_t n)
{
    buffer_need(b, n);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void buffer_text(buffer *b, const char *format, ...)
{
    enum { TEXT_MAX = 1024 };
    va_list words;
    buffer_need(b, TEXT_MAX);
    va_start(words, format);
    int n = vsnprintf(b->p + b->n, TEXT_MAX, format, words);
    va_end(words);
    if (n < 0 || n >= TEXT_MAX) die("a command is too long");
    b->n += (size_t)n;
}

/* ---- the command line ---- */

typedef struct {
    const char *word, *help;
    size_t at; /* in settings */
    int64_t low, high;
} option;

#define AT(field) offsetof(settings, field)

static const option texts[] = {
    {"--dialect", "wheeld, zadd, hset or beanstalkd", AT(dialect), 0, 0},
    {"--handler", "wheeld: of the jobs", AT(handler), 0, 0},
    {"--put-sha", "hset: of the script that stores a job", AT(put_sha), 0, 0},
    {"--claim-sha", "zadd, hset: of the script that claims", AT(claim_sha), 0, 0},
    {"--ack-sha", "hset: of the script that acknowledges", AT(ack_sha), 0, 0},
};

static const option numbers[] = {
    {"--port", "of 127.0.0.1", AT(port), 1, 65535},
    {"--producers", "connections that schedule", AT(producers), 0, CONNS_MAX},
    {"--depth", "commands in one write", AT(depth), 1, 10000},
    {"--jobs", "to schedule, if time is enough", AT(jobs), 0, JOBS_MAX},
    {"--first", "sequence number of the first of them", AT(first), 0, JOBS_MAX},
    {"--backlog", "jobs not yet done at which producers wait; 0 = never", AT(backlog), 0, JOBS_MAX},
    {"--rate", "jobs a second whatever the server does; 0 = as it answers", AT(rate), 0, 10000000},
    {"--lead-ms", "with --rate: from when a job is sent until it is due", AT(lead_ms), 0, 3600000},
    {"--at-ms", "when jobs are due, unix ms; 0 = now", AT(at_ms), 0, 9999999999999},
    {"--span-ms", "... or up to so much later, at random", AT(span_ms), 0, 100000000000},
    {"--workers", "connections that take and finish jobs", AT(workers), 0, CONNS_MAX},
    {"--batch", "jobs in one claim", AT(batch), 1, BATCH_MAX},
    {"--expect", "workers end when so many jobs are done; 0 = never", AT(expect), 0, JOBS_MAX},
    {"--wait-ms", "how long a claim waits at the server", AT(wait_ms), 0, 300000},
    {"--poll-us", "after a claim that found nothing and did not wait", AT(poll_us), 1, 60000000},
    {"--pingers", "connections that ping", AT(pingers), 0, CONNS_MAX},
    {"--ping-us", "between pong and next ping", AT(ping_us), 1, 60000000},
    {"--seconds-ms", "the run ends then at the latest", AT(seconds_ms), 1, 600000},
    {"--grace-ms", "... and replies to what was sent are waited for so long", AT(grace_ms), 1,
     60000},
    {"--begin-ns", "CLOCK_MONOTONIC of the first command; 0 = now", AT(begin_ns), 0, INT64_MAX},
    {"--seed", "of the random due times", AT(seed), 0, UINT32_MAX},
};

enum { TEXTS = sizeof texts / sizeof *texts, NUMBERS = sizeof numbers / sizeof *numbers };

static _Noreturn void usage(const char *word)
{
    (void)fprintf(stderr, "load: unknown or without a value: %s\n", word);
    for (size_t i = 0; i < TEXTS; i++)
        (void)fprintf(stderr, "  %-13s %s\n", texts[i].word, texts[i].help);
    for (size_t i = 0; i < NUMBERS; i++)
        (void)fprintf(stderr, "  %-13s %s\n", numbers[i].word, numbers[i].help);
    exit(1);
}

static void set_number(settings *set, const option *o, const char *text)
{
    char *end;
    errno = 0;
    int64_t value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < o->low || value > o->high)
        die("%s %s: not a number from %" PRId64 " to %" PRId64, o->word, text, o->low, o->high);
    memcpy((char *)set + o->at, &value, sizeof value);
}

static void set_option(settings *set, const char *word, const char *value)
{
    for (size_t i = 0; value && i < TEXTS; i++) {
        if (strcmp(texts[i].word, word) != 0) continue;
        memcpy((char *)set + texts[i].at, &value, sizeof value);
        return;
    }
    for (size_t i = 0; value && i < NUMBERS; i++) {
        if (strcmp(numbers[i].word, word) != 0) continue;
        set_number(set, &numbers[i], value);
        return;
    }
    usage(word);
}

static void check(const settings *set)
{
    if (!set->dialect || !dialect_named(set->dialect)) die("--dialect: see the list of --help");
    if (!set->port) die("--port is needed");
    if (set->producers + set->workers + set->pingers == 0) die("nothing to do");
    if (set->rate && !set->producers) die("--rate needs --producers");
    bool scripts = strcmp(set->dialect, "hset") == 0;
    if (scripts && !(set->put_sha && set->claim_sha && set->ack_sha)) die("hset needs its scripts");
    if (strcmp(set->dialect, "zadd") == 0 && set->workers && !set->claim_sha)
        die("--claim-sha is needed");
}

static void on_term(int number)
{
    (void)number;
    stop_asked = 1;
}

int main(int argc, char **argv)
{
    static settings set = {.handler = "mail",
                           .depth = 1,
                           .batch = 1,
                           .wait_ms = 1000,
                           .poll_us = 1000,
                           .ping_us = 1000,
                           .seconds_ms = 10000,
                           .grace_ms = 10000,
                           .seed = 1};
    struct sigaction action = {.sa_handler = on_term};
    for (int i = 1; i < argc; i += 2)
        set_option(&set, argv[i], argv[i + 1]);
    check(&set);
    (void)sigaction(SIGTERM, &action, NULL);
    load_run(&set);
    return 0;
}
