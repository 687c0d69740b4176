/* roles.c -- what producers, workers and pingers do, and the loop that serves them.
 *
 * A producer sends `depth` commands in one write and the next when all are answered. With --rate it
 * does not wait for answers: what is due to be sent by now is sent each millisecond, by the next
 * connection in turn (an open loop: a slow server meets the same load as a quick one).
 * A worker sends the acknowledgement of a batch and the next claim in one write, to any server.
 * A pinger sends one at a time, and the next one `ping_us` later.
 */
#define _GNU_SOURCE
#include "load.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
    EVENTS = 64,
    RECV_BYTES = 1 << 18,
    OUT_BYTES_MAX = 1 << 26, /* an open loop against a server that does not read */
    PACE_NS = 1000000,
    LOOK_NS = 10000000 /* when time is over: how often the clock is looked at */
};

enum role { PRODUCER, WORKER, PINGER };

typedef struct {
    int fd;
    enum role role;
    bool writes; /* EPOLLOUT is on */
    bool idle;   /* a producer that waits until the backlog is smaller */
    buffer out, in;
    size_t out_at, in_at;
    size_t owed;      /* replies to commands that store or ping */
    size_t acks;      /* jobs whose acknowledgement is on its way */
    bool claims;      /* a claim is on its way */
    uint64_t sent_ns; /* of the batch or ping */
    uint64_t wake_ns; /* when to claim or ping again; 0 = not waiting for time */
    taken *jobs;      /* a worker's batch */
} conn;

typedef struct {
    const settings *set;
    const dialect *dialect;
    int epoll, timer;
    conn *conns;
    size_t count, next; /* connections; whose turn it is in an open loop */
    uint64_t now_ns, begin_ns, end_ns, armed_ns, paced_ns;
    int64_t now_us, begin_us;
    bool stopping;
    report sum;
    histogram store_us, late_us, ping_us;
    uint64_t *seen; /* a bit for each sequence number that was acknowledged */
} load;

/* ---- connections ---- */

static void open_conn(load *l, conn *c, enum role role)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)l->set->port)};
    int one = 1;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->role = role;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to) != 0)
        die("cannot connect to port %" PRId64 ": %s", l->set->port, strerror(errno));
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &event) != 0) die("epoll: %s", strerror(errno));
    if (role != WORKER) return;
    c->jobs = calloc((size_t)l->set->batch, sizeof *c->jobs);
    if (!c->jobs) die("out of memory");
}

static void want_write(load *l, conn *c, bool want)
{
    if (c->writes == want) return;
    struct epoll_event event = {.events = EPOLLIN | (want ? EPOLLOUT : 0u), .data.ptr = c};
    (void)epoll_ctl(l->epoll, EPOLL_CTL_MOD, c->fd, &event);
    c->writes = want;
}

static void flush(load *l, conn *c)
{
    while (c->out_at < c->out.n) {
        ssize_t k = send(c->fd, c->out.p + c->out_at, c->out.n - c->out_at, MSG_NOSIGNAL);
        if (k < 0 && errno == EAGAIN) {
            if (c->out.n > OUT_BYTES_MAX) die("the server does not read what is sent");
            want_write(l, c, true);
            return;
        }
        if (k < 0) die("send: %s", strerror(errno));
        c->out_at += (size_t)k;
    }
    c->out.n = c->out_at = 0;
    want_write(l, c, false);
}

/* ---- producers ---- */

static bool may_send(const load *l)
{
    const settings *set = l->set;
    if (l->stopping || l->sum.sent >= (uint64_t)set->jobs) return false;
    return !set->backlog || l->sum.sent - l->sum.done < (uint64_t)set->backlog;
}

/* A number that looks random and depends on seed and sequence number alone (splitmix64's end). */
static uint64_t scattered(uint64_t seed, uint64_t seq)
{
    uint64_t x = (seed << 32) + (seq + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void put_next(load *l, conn *c)
{
    const settings *set = l->set;
    uint64_t sent = l->sum.sent++;
    job j = {.seq = (uint64_t)set->first + sent, .now_us = l->now_us, .due_ms = l->now_us / 1000};
    if (set->rate)
        j.due_ms = l->begin_us / 1000 + set->lead_ms + (int64_t)sent * 1000 / set->rate;
    else if (set->at_ms)
        j.due_ms = set->at_ms +
                   (int64_t)(scattered((uint64_t)set->seed, j.seq) % ((uint64_t)set->span_ms + 1));
    put_job(&c->out, &j);
    c->owed++;
}

static void produce(load *l, conn *c)
{
    for (int64_t i = 0; i < l->set->depth && may_send(l); i++)
        put_next(l, c);
    c->sent_ns = l->now_ns;
    c->idle = c->owed == 0;
    flush(l, c);
}

/* Send what is due to be sent by now. The first connections are the producers. */
static void pace(load *l)
{
    uint64_t since_ns = l->now_ns - l->begin_ns;
    uint64_t planned = (uint64_t)((double)since_ns * (double)l->set->rate / 1e9);
    conn *c = &l->conns[l->next++ % (uint64_t)l->set->producers];
    while (l->sum.sent < planned && may_send(l))
        put_next(l, c);
    flush(l, c);
    l->paced_ns = may_send(l) ? l->now_ns + PACE_NS : 0;
}

static size_t stored(load *l, conn *c, span in)
{
    size_t n = c->owed ? l->dialect->take_stored(in) : 0;
    if (!c->owed) refuse("nothing, nothing was asked", in);
    if (n == 0) return 0;
    l->sum.stored++;
    l->sum.last_ns = l->now_ns;
    if (--c->owed > 0 || l->set->rate) return n;
    hist_add(&l->store_us, (l->now_ns - c->sent_ns) / 1000);
    produce(l, c);
    return n;
}

/* ---- workers ---- */

static void claim(load *l, conn *c)
{
    c->wake_ns = 0;
    if (!l->stopping) {
        l->dialect->ask_jobs(&c->out, l->set, l->now_us / 1000);
        c->claims = true;
    }
    flush(l, c);
}

static void finished_job(load *l, uint64_t seq)
{
    uint64_t bit = (uint64_t)1 << (seq & 63);
    if (seq >= JOBS_MAX) die("sequence number %" PRIu64 " was never sent", seq);
    l->sum.duplicates += (l->seen[seq >> 6] & bit) != 0;
    l->seen[seq >> 6] |= bit;
    l->sum.done++;
}

static size_t acknowledged(load *l, conn *c, span in)
{
    size_t n = l->dialect->take_acks(in, c->acks);
    if (n == 0) return 0;
    for (size_t i = 0; i < c->acks; i++)
        finished_job(l, c->jobs[i].seq);
    c->acks = 0;
    l->sum.last_ns = l->now_ns;
    for (size_t i = 0; l->set->backlog && i < (size_t)l->set->producers; i++)
        if (l->conns[i].idle && may_send(l)) produce(l, &l->conns[i]);
    return n;
}

static size_t got_jobs(load *l, conn *c, span in)
{
    size_t jobs = 0;
    size_t n = l->dialect->take_jobs(in, l->set, c->jobs, &jobs);
    if (n == 0) return 0;
    c->claims = false;
    for (size_t i = 0; i < jobs; i++) {
        int64_t late_us = l->now_us - c->jobs[i].due_ms * 1000;
        l->sum.early += late_us < 0;
        hist_add(&l->late_us, late_us > 0 ? (uint64_t)late_us : 0);
    }
    l->sum.leased += jobs;
    c->acks = jobs;
    if (jobs > 0) l->dialect->ask_acks(&c->out, l->set, c->jobs, jobs);
    if (jobs > 0 || l->set->batch <= l->dialect->waits_up_to)
        claim(l, c);
    else
        c->wake_ns = l->now_ns + (uint64_t)l->set->poll_us * 1000;
    return n;
}

static size_t worked(load *l, conn *c, span in)
{
    if (c->acks > 0) return acknowledged(l, c, in);
    if (!c->claims) refuse("nothing, nothing was asked", in);
    return got_jobs(l, c, in);
}

/* ---- pingers ---- */

static void ping(load *l, conn *c)
{
    c->wake_ns = 0;
    if (l->stopping) return;
    buffer_put(&c->out, l->dialect->ping, strlen(l->dialect->ping));
    c->owed = 1;
    c->sent_ns = l->now_ns;
    flush(l, c);
}

static size_t ponged(load *l, conn *c, span in)
{
    if (!c->owed) refuse("nothing, nothing was asked", in);
    size_t n = take_pong(l->dialect, in);
    if (n == 0) return 0;
    c->owed = 0;
    hist_add(&l->ping_us, (l->now_ns - c->sent_ns) / 1000);
    l->sum.last_ns = l->now_ns;
    c->wake_ns = l->now_ns + (uint64_t)l->set->ping_us * 1000;
    return n;
}

/* ---- the loop ---- */

static void receive(load *l, conn *c)
{
    buffer_need(&c->in, RECV_BYTES);
    ssize_t k = recv(c->fd, c->in.p + c->in.n, RECV_BYTES, 0);
    if (k < 0 && errno == EAGAIN) return;
    if (k <= 0) die("the server closed a connection%s%s", k ? ": " : "", k ? strerror(errno) : "");
    c->in.n += (size_t)k;
    /* Anew: a job that arrived since the turn began would look as if it had come early. */
    l->now_ns = mono_ns();
    l->now_us = wall_us();
    while (c->in_at < c->in.n) {
        span in = {c->in.p + c->in_at, c->in.n - c->in_at};
        size_t n = c->role == PRODUCER ? stored(l, c, in)
                   : c->role == WORKER ? worked(l, c, in)
                                       : ponged(l, c, in);
        if (n == 0) break;
        c->in_at += n;
    }
    memmove(c->in.p, c->in.p + c->in_at, c->in.n - c->in_at);
    c->in.n -= c->in_at;
    c->in_at = 0;
}

static uint64_t owed_replies(const load *l)
{
    uint64_t owed = 0;
    for (size_t i = 0; i < l->count; i++)
        owed += l->conns[i].owed + l->conns[i].acks;
    return owed;
}

static bool all_done(const load *l)
{
    const settings *set = l->set;
    if (l->stopping) return owed_replies(l) == 0;
    bool produced =
        !set->producers || (l->sum.sent >= (uint64_t)set->jobs && l->sum.stored == l->sum.sent);
    bool worked_off = !set->workers || (set->expect && l->sum.done >= (uint64_t)set->expect);
    return produced && worked_off && (set->producers || set->workers);
}

static void look_at_clocks(load *l)
{
    l->now_ns = mono_ns();
    l->now_us = wall_us();
    if (l->stopping && l->now_ns > l->end_ns + (uint64_t)l->set->grace_ms * 1000000)
        die("%" PRIu64 " replies did not come within %" PRId64 " ms after the end", owed_replies(l),
            l->set->grace_ms);
    if (!l->stopping && (l->now_ns >= l->end_ns || stop_asked)) {
        l->stopping = true;
        l->end_ns = l->now_ns;
    }
}

/* Do what waits for time, and set the timer for what comes next. */
static void keep_time(load *l)
{
    uint64_t next_ns = l->stopping ? l->now_ns + LOOK_NS : l->end_ns;
    if (l->paced_ns && l->paced_ns <= l->now_ns) pace(l);
    if (l->paced_ns && l->paced_ns < next_ns) next_ns = l->paced_ns;
    for (size_t i = (size_t)l->set->producers; i < l->count; i++) {
        conn *c = &l->conns[i];
        if (c->wake_ns && c->wake_ns <= l->now_ns) (c->role == WORKER ? claim : ping)(l, c);
        if (c->wake_ns && c->wake_ns < next_ns) next_ns = c->wake_ns;
    }
    if (next_ns == l->armed_ns) return;
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(next_ns / 1000000000),
                                         .tv_nsec = (long)(next_ns % 1000000000)}};
    (void)timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &at, NULL);
    l->armed_ns = next_ns;
}

static void turn(load *l)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(l->epoll, events, EVENTS, -1);
    if (n < 0 && errno != EINTR) die("epoll_wait: %s", strerror(errno));
    look_at_clocks(l);
    for (int i = 0; i < n; i++) {
        conn *c = events[i].data.ptr;
        if (!c) {
            uint64_t times;
            (void)!read(l->timer, &times, sizeof times);
            l->armed_ns = 0;
            continue;
        }
        if (events[i].events & EPOLLOUT) flush(l, c);
        if (events[i].events & ~(uint32_t)EPOLLOUT) receive(l, c);
    }
    keep_time(l);
}

static void start(load *l)
{
    const settings *set = l->set;
    struct timespec at = {.tv_sec = (time_t)(set->begin_ns / 1000000000),
                          .tv_nsec = (long)(set->begin_ns % 1000000000)};
    if (set->begin_ns) (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    l->now_ns = l->begin_ns = l->sum.begin_ns = l->sum.last_ns = mono_ns();
    l->now_us = l->begin_us = wall_us();
    l->end_ns = l->begin_ns + (uint64_t)set->seconds_ms * 1000000;
    l->paced_ns = set->rate ? l->now_ns : 0;
    for (size_t i = 0; i < l->count; i++) {
        conn *c = &l->conns[i];
        if (c->role == WORKER) claim(l, c);
        if (c->role == PINGER) ping(l, c);
        if (c->role == PRODUCER && !set->rate) produce(l, c);
    }
    keep_time(l);
}

static double own_cpu_s(void)
{
    struct rusage used;
    (void)getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

void load_run(const settings *set)
{
    static load l;
    l.set = l.sum.set = set;
    l.dialect = dialect_named(set->dialect);
    dialect_prepare(l.dialect, set);
    l.epoll = epoll_create1(EPOLL_CLOEXEC);
    l.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    l.seen = calloc(JOBS_MAX / 64, sizeof *l.seen);
    l.count = (size_t)(set->producers + set->workers + set->pingers);
    l.conns = calloc(l.count, sizeof *l.conns);
    struct epoll_event event = {.events = EPOLLIN};
    if (l.epoll < 0 || l.timer < 0 || !l.seen || !l.conns ||
        epoll_ctl(l.epoll, EPOLL_CTL_ADD, l.timer, &event) != 0)
        die("cannot begin: %s", strerror(errno));
    for (size_t i = 0; i < l.count; i++) {
        int64_t k = (int64_t)i - set->producers;
        open_conn(&l, &l.conns[i], k < 0 ? PRODUCER : k < set->workers ? WORKER : PINGER);
    }
    start(&l);
    double before_s = own_cpu_s();
    while (!all_done(&l))
        turn(&l);
    l.sum.own_cpu_s = own_cpu_s() - before_s;
    l.sum.store_us = &l.store_us;
    l.sum.late_us = &l.late_us;
    l.sum.ping_us = &l.ping_us;
    report_print(&l.sum);
}
