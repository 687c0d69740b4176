/* drain.c -- one worker: lease or claim up to 100 jobs, acknowledge them, until nothing is left.
 *
 *     drain wheeld PORT BEGIN_NS            drain redis PORT BEGIN_NS SCRIPT_SHA
 *
 * Begins at BEGIN_NS of CLOCK_MONOTONIC; prints jobs acknowledged, jobs that came before they were
 * due, and the time of the last acknowledgement. The acknowledgement of a batch and the next lease
 * are one write, with both servers. In C, so that what is measured is the server.
 *
 * wheeld: LEASE mail COUNT 100 WAIT 1000, ACK receipt...; ends when a whole second brought nothing.
 * Redis: EVALSHA of the claim script, ZREM leased member...; ends when a claim brings nothing.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 100, ROOM_BYTES = 1 << 20, JOB_FIELDS = 12, LEASE_MS = 60000 };
enum { FIELD_RECEIPT = 0, FIELD_DUE = 5 };

typedef struct {
    const char *p;
    size_t n;
} span;

typedef struct {
    int fd;
    char in[ROOM_BYTES], out[ROOM_BYTES];
    size_t in_n, at; /* bytes received; where the next reply begins */
    size_t out_n;
    span taken[BATCH]; /* receipts, or members */
    uint64_t jobs, early, last_ns;
} worker;

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "drain: %s\n", what);
    exit(1);
}

static uint64_t now_ns(clockid_t clock)
{
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int64_t wall_ms(void)
{
    return (int64_t)(now_ns(CLOCK_REALTIME) / 1000000);
}

static void connect_to(worker *w, const char *port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    int one = 1;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    w->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (w->fd < 0 || connect(w->fd, (struct sockaddr *)&to, sizeof to) != 0) die("connect failed");
    (void)setsockopt(w->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void send_out(worker *w)
{
    for (size_t sent = 0; sent < w->out_n;) {
        ssize_t k = send(w->fd, w->out + sent, w->out_n - sent, MSG_NOSIGNAL);
        if (k <= 0) die("send failed");
        sent += (size_t)k;
    }
    w->out_n = 0;
}

static void put(worker *w, const char *p, size_t n)
{
    if (n > sizeof w->out - w->out_n) die("a command is too long");
    memcpy(w->out + w->out_n, p, n);
    w->out_n += n;
}

static void receive(worker *w)
{
    if (w->in_n == sizeof w->in) die("a reply is too long");
    ssize_t k = recv(w->fd, w->in + w->in_n, sizeof w->in - w->in_n, 0);
    if (k <= 0) die("the server closed the connection");
    w->in_n += (size_t)k;
}

/* The next line, without its end; waits for it. Spans stay valid until start_reply. */
static span take_line(worker *w)
{
    size_t from = w->at;
    for (;;) {
        const char *end = memchr(w->in + from, '\n', w->in_n - from);
        if (end) {
            span line = {w->in + w->at, (size_t)(end - (w->in + w->at)) - 1};
            w->at += line.n + 2;
            return line;
        }
        from = w->in_n;
        receive(w);
    }
}

static long number_of(span line, char mark)
{
    if (line.n < 2 || line.p[0] != mark) {
        (void)fprintf(stderr, "drain: answered %.*s\n", (int)line.n, line.p);
        exit(1);
    }
    return strtol(line.p + 1, NULL, 10);
}

/* The next scalar: a number, a nil or a bulk string. */
static span take_value(worker *w)
{
    span line = take_line(w);
    if (line.n == 0 || line.p[0] != '$') return line;
    long n = number_of(line, '$');
    if (n < 0) return (span){NULL, 0};
    while (w->in_n - w->at < (size_t)n + 2)
        receive(w);
    span body = {w->in + w->at, (size_t)n};
    w->at += (size_t)n + 2;
    return body;
}

/* Begin the replies to one write: what was read before is done with. */
static void start_reply(worker *w)
{
    memmove(w->in, w->in + w->at, w->in_n - w->at);
    w->in_n -= w->at;
    w->at = 0;
}

static void acknowledged(worker *w, long jobs)
{
    w->jobs += (uint64_t)jobs;
    w->last_ns = now_ns(CLOCK_MONOTONIC);
}

/* ---- wheeld ---- */

static void ask_wheeld(worker *w, long acks)
{
    static const char lease[] = "LEASE mail COUNT 100 WAIT 1000\r\n";
    if (acks > 0) {
        put(w, "ACK", 3);
        for (long i = 0; i < acks; i++) {
            put(w, " ", 1);
            put(w, w->taken[i].p, w->taken[i].n);
        }
        put(w, "\r\n", 2);
    }
    put(w, lease, sizeof lease - 1);
    send_out(w);
}

static long take_wheeld(worker *w, long acks)
{
    start_reply(w);
    if (acks > 0) {
        if (number_of(take_line(w), '*') != acks) die("ACK answered another number");
        for (long i = 0; i < acks; i++)
            if (memcmp(take_line(w).p, "+OK", 3) != 0) die("ACK was refused");
        acknowledged(w, acks);
    }
    long jobs = number_of(take_line(w), '*');
    if (jobs > BATCH) die("more jobs than asked for");
    int64_t now_ms = wall_ms();
    for (long i = 0; i < jobs; i++) {
        if (number_of(take_line(w), '*') != JOB_FIELDS) die("a job has another number of fields");
        for (int field = 0; field < JOB_FIELDS; field++) {
            span value = take_value(w);
            if (field == FIELD_RECEIPT) w->taken[i] = value;
            if (field == FIELD_DUE) w->early += number_of(value, ':') > now_ms;
        }
    }
    return jobs;
}

/* ---- Redis ---- */

static void ask_redis(worker *w, long acks, const char *sha)
{
    char head[256];
    if (acks > 0) {
        put(w, head,
            (size_t)snprintf(head, sizeof head, "*%ld\r\n$4\r\nZREM\r\n$6\r\nleased\r\n",
                             acks + 2));
        for (long i = 0; i < acks; i++) {
            put(w, head, (size_t)snprintf(head, sizeof head, "$%zu\r\n", w->taken[i].n));
            put(w, w->taken[i].p, w->taken[i].n);
            put(w, "\r\n", 2);
        }
    }
    int64_t now_ms = wall_ms();
    put(w, head,
        (size_t)snprintf(head, sizeof head,
                         "EVALSHA %s 2 queue leased %" PRId64 " %" PRId64 " %d\r\n", sha, now_ms,
                         now_ms + LEASE_MS, BATCH));
    send_out(w);
}

static long take_redis(worker *w, long acks)
{
    start_reply(w);
    if (acks > 0) {
        if (number_of(take_line(w), ':') != acks) die("ZREM took another number");
        acknowledged(w, acks);
    }
    long jobs = number_of(take_line(w), '*');
    if (jobs > BATCH) die("more jobs than asked for");
    for (long i = 0; i < jobs; i++)
        w->taken[i] = take_value(w);
    return jobs;
}

/* Spans of the input move when more of it is received only by memmove in start_reply, and what is
 * asked is built before that: so `taken` is valid where it is used. */
static void work(worker *w, const char *sha)
{
    long acks = 0;
    do {
        if (sha)
            ask_redis(w, acks, sha);
        else
            ask_wheeld(w, acks);
        acks = sha ? take_redis(w, acks) : take_wheeld(w, acks);
    } while (acks > 0);
}

int main(int argc, char **argv)
{
    static worker w;
    int is_redis = argc == 5 && strcmp(argv[1], "redis") == 0;
    if (!is_redis && !(argc == 4 && strcmp(argv[1], "wheeld") == 0)) die("see the heading");
    connect_to(&w, argv[2]);
    uint64_t begin_ns = strtoull(argv[3], NULL, 10);
    struct timespec at = {.tv_sec = (time_t)(begin_ns / 1000000000),
                          .tv_nsec = (long)(begin_ns % 1000000000)};
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    work(&w, is_redis ? argv[4] : NULL);
    (void)close(w.fd);
    (void)printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", w.jobs, w.early, w.last_ns);
    return 0;
}
