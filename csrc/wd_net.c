/* wd_net.c -- sockets under one inner epoll.
 *
 * Invariants:
 *  1. Every open client descriptor is in the epoll set with conn.interest; its event data is the
 *     connection's handle, so an event for a closed one finds nothing.
 *  2. A connection is closed only in flush and drop_all, never while events are handled.
 *  3. No input is asked for while bytes that may leave were refused by the kernel.
 * Not here: what bytes mean (wd_conn.c), when to commit (wd_round.c).
 */
#define _GNU_SOURCE
#include "wd_net.h"

#include "wd_clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    EVENTS_MAX = 256,
    ACCEPTS_MAX = 64, /* per round and listener */
    RECV_BYTES = 64 * 1024,
    LINGER_BYTES = 1024 *
        1024, /* unread input thrown away at close, so that it ends without reset */
    KEEPALIVE_IDLE_S = 5,
    KEEPALIVE_INTERVAL_S = 5,
    KEEPALIVE_PROBES = 2,
    USER_TIMEOUT_MS = 15 * 1000, /* a peer gone for longer holds no lease */
    HOUR_MS = 3600 * 1000
};

/* Event data of what is no client: the top bit, which no handle has, and which one. */
#define NOT_CLIENT (UINT64_C(1) << 63)
enum { SRC_WAKE = 0, SRC_WALL, SRC_BOOT, SRC_LISTENER };

struct wd_net {
    wd_conns *conns;
    int epoll_fd, wake_fd, wall_fd, boot_fd;
    int spare_fd; /* given up for a moment at EMFILE, so that a client can be told */
    int listeners[WD_LISTENERS_MAX];
    uint32_t listeners_count;
    int64_t wall_armed_ms, boot_armed_ms;
    wd_net_counts counts;
    int events_count;
    struct epoll_event events[EVENTS_MAX];
    uint8_t input[RECV_BYTES];
};

/* ---- life ---- */

static int watch(wd_net *n, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event e = {.events = events, .data.u64 = data};
    return epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, fd, &e);
}

static int open_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void close_fd(int *fd)
{
    if (*fd >= 0) (void)close(*fd);
    *fd = -1;
}

wd_net *wd_net_new(wd_conns *s, int wake_fd)
{
    WD_ASSERT(s && wake_fd >= 0);
    wd_net *n = wd_zalloc(sizeof *n);
    if (!n) return NULL;
    n->conns = s;
    n->wake_fd = wake_fd;
    n->wall_armed_ms = n->boot_armed_ms = WD_NEVER_MS;
    n->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    n->wall_fd = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK | TFD_CLOEXEC);
    n->boot_fd = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
    n->spare_fd = open_spare();
    int opened = n->epoll_fd >= 0 && n->wall_fd >= 0 && n->boot_fd >= 0 && n->spare_fd >= 0;
    if (opened && watch(n, wake_fd, EPOLLIN, NOT_CLIENT | SRC_WAKE) == 0 &&
        watch(n, n->wall_fd, EPOLLIN, NOT_CLIENT | SRC_WALL) == 0 &&
        watch(n, n->boot_fd, EPOLLIN, NOT_CLIENT | SRC_BOOT) == 0)
        return n;
    wd_net_free(n);
    return NULL;
}

static void close_listeners(wd_net *n)
{
    for (uint32_t i = 0; i < n->listeners_count; i++)
        close_fd(&n->listeners[i]);
    n->listeners_count = 0;
}

void wd_net_free(wd_net *n)
{
    if (!n) return;
    close_listeners(n);
    for (wd_conn *c = n->conns->lists[WD_L_ALL].first; c; c = c->links[WD_L_ALL].next)
        close_fd(&c->fd);
    close_fd(&n->spare_fd);
    close_fd(&n->boot_fd);
    close_fd(&n->wall_fd);
    close_fd(&n->epoll_fd);
    wd_release(n);
}

int wd_net_listen(wd_net *n, int fd)
{
    if (fd < 0) return WD_EINVAL;
    if (n->listeners_count == WD_LISTENERS_MAX) return WD_EFULL;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return WD_EINVAL;
    uint64_t data = NOT_CLIENT | (SRC_LISTENER + n->listeners_count);
    if (watch(n, fd, EPOLLIN, data) != 0) return WD_EINVAL;
    n->listeners[n->listeners_count++] = fd;
    return WD_OK;
}

void wd_net_stop_reading(wd_net *n)
{
    close_listeners(n);
    n->conns->stopping = 1;
    for (wd_conn *c = n->conns->lists[WD_L_ALL].first; c; c = c->links[WD_L_ALL].next)
        wd_conns_put(n->conns, WD_L_READY, c);
}

int wd_net_fd(const wd_net *n)
{
    return n->epoll_fd;
}

const wd_net_counts *wd_net_counts_of(const wd_net *n)
{
    return &n->counts;
}

/* ---- accept ---- */

static void set_options(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
        {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S},
        {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS},
    };
    /* A unix socket refuses the TCP ones, which does no harm. */
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof options[i].value);
    }
}

static void format_addr(const struct sockaddr_storage *a, char out[WD_ADDR_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)a;
        (void)inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        (void)snprintf(out, WD_ADDR_BYTES, "%s:%u", host, ntohs(in->sin_port));
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)a;
        (void)inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        (void)snprintf(out, WD_ADDR_BYTES, "[%s]:%u", host, ntohs(in->sin6_port));
    } else {
        (void)snprintf(out, WD_ADDR_BYTES, "unix");
    }
}

/* Empty what the peer sent already, so that close ends the connection instead of resetting it: a
 * reset may overtake the last reply. */
static void close_gently(wd_net *n, int fd)
{
    (void)shutdown(fd, SHUT_WR);
    for (size_t seen = 0; seen < LINGER_BYTES;) {
        ssize_t k = recv(fd, n->input, sizeof n->input, MSG_DONTWAIT);
        if (k <= 0) break;
        seen += (size_t)k;
    }
    (void)close(fd);
}

static void refuse_full(wd_net *n, int fd)
{
    char text[160];
    int len = snprintf(text, sizeof text,
                       "-ERR max number of clients reached (%u); close idle connections or raise "
                       "maxclients\r\n",
                       n->conns->conns_max);
    WD_ASSERT(len > 0 && (size_t)len < sizeof text);
    n->counts.refused_full++;
    (void)send(fd, text, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT);
    close_gently(n, fd);
}

static void open_client(wd_net *n, int fd, const struct sockaddr_storage *from)
{
    set_options(fd);
    if (wd_conns_count(n->conns) >= n->conns->conns_max) {
        refuse_full(n, fd);
        return;
    }
    wd_conn *c = wd_conns_open(n->conns, fd);
    if (!c) {
        n->counts.accept_failures++;
        (void)close(fd);
        return;
    }
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    format_addr(from, c->addr);
    if (getsockname(fd, (struct sockaddr *)&at, &len) == 0) format_addr(&at, c->local);
    c->interest = EPOLLIN | EPOLLRDHUP;
    if (watch(n, fd, c->interest, c->session.handle) != 0) {
        n->counts.accept_failures++;
        wd_conns_kill(n->conns, c);
    }
}

/* No descriptor is left: use the spare one to take the next client and close it at once, else the
 * listener stays readable and the loop spins. */
static void turn_away(wd_net *n, int listener)
{
    n->counts.accept_failures++;
    if (n->spare_fd < 0) return;
    close_fd(&n->spare_fd);
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) refuse_full(n, fd);
    n->spare_fd = open_spare();
}

static void accept_clients(wd_net *n, int listener)
{
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        struct sockaddr_storage from = {0};
        socklen_t len = sizeof from;
        int fd = accept4(listener, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            open_client(n, fd, &from);
        } else if (errno == EMFILE || errno == ENFILE) {
            turn_away(n, listener);
            return;
        } else if (errno != ECONNABORTED && errno != EINTR) {
            return; /* EAGAIN: all are taken */
        }
    }
}

/* ---- clients ---- */

static int wants_input(const wd_net *n, const wd_conn *c)
{
    return !n->conns->stopping && !c->session.blocked && wd_conn_wants_input(c);
}

static void fail_client(wd_net *n, wd_conn *c)
{
    n->counts.socket_errors++;
    wd_conns_kill(n->conns, c);
}

static void receive(wd_net *n, wd_conn *c)
{
    WD_ASSERT(c->fd >= 0);
    ssize_t k = recv(c->fd, n->input, sizeof n->input, MSG_DONTWAIT);
    if (k > 0) {
        n->counts.bytes_in += (uint64_t)k;
        wd_engine_asked_at(n->conns->runner.engine, wd_clock_boot_ms_up());
        wd_conns_input(n->conns, c, (wd_span){n->input, (size_t)k});
    } else if (k == 0) {
        wd_conns_eof(n->conns, c);
    } else if (errno != EAGAIN && errno != EINTR) {
        fail_client(n, c);
    }
}

static void on_client(wd_net *n, wd_conn *c, uint32_t events)
{
    wd_conns_put(n->conns, WD_L_READY, c); /* flush sends and asks for the right events */
    if (c->dead) return;
    if (events & EPOLLRDHUP) wd_conns_hung_up(n->conns, c);
    if ((events & EPOLLIN) && wants_input(n, c)) {
        receive(n, c);
    } else if (events & (EPOLLERR | EPOLLHUP)) {
        fail_client(n, c);
    }
}

static void on_timer(wd_net *n, int fd, int64_t *armed_ms)
{
    uint64_t fired;
    ssize_t k = read(fd, &fired, sizeof fired);
    if (k < 0 && errno == ECANCELED) n->counts.clock_sets++;
    *armed_ms = WD_NEVER_MS;
}

static int on_other(wd_net *n, uint64_t source)
{
    switch (source) {
    case SRC_WAKE:
        return 1;
    case SRC_WALL:
        on_timer(n, n->wall_fd, &n->wall_armed_ms);
        return 0;
    case SRC_BOOT:
        on_timer(n, n->boot_fd, &n->boot_armed_ms);
        return 0;
    default:
        source -= SRC_LISTENER;
        if (source < n->listeners_count) accept_clients(n, n->listeners[source]);
        return 0;
    }
}

int wd_net_wait(wd_net *n, int timeout_ms)
{
    int found = epoll_wait(n->epoll_fd, n->events, EVENTS_MAX, timeout_ms);
    WD_ASSERT(found >= 0 || errno == EINTR);
    n->events_count = found > 0 ? found : 0;
    return n->events_count;
}

int wd_net_wait_ns(wd_net *n, uint64_t wait_ns)
{
    WD_ASSERT(wait_ns < 1000000000);
    struct pollfd p = {.fd = n->epoll_fd, .events = POLLIN};
    struct timespec t = {.tv_nsec = (long)wait_ns};
    n->events_count = 0;
    if (ppoll(&p, 1, &t, NULL) <= 0) return 0;
    return wd_net_wait(n, 0);
}

int wd_net_handle(wd_net *n)
{
    int woken = 0;
    WD_ASSERT(n->events_count >= 0 && n->events_count <= EVENTS_MAX);
    for (int i = 0; i < n->events_count; i++) {
        uint64_t data = n->events[i].data.u64;
        if (data & NOT_CLIENT) {
            woken |= on_other(n, data & ~NOT_CLIENT);
            continue;
        }
        wd_conn *c = wd_conns_find(n->conns, data);
        if (c) on_client(n, c, n->events[i].events);
    }
    n->events_count = 0;
    return woken;
}

/* ---- the way out ---- */

static void send_out(wd_net *n, wd_conn *c, int64_t now_us)
{
    wd_span out = wd_conn_sendable(c);
    while (out.n > 0) { /* bounded: each turn sends, fails or is refused */
        ssize_t k = send(c->fd, out.p, out.n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno == EAGAIN) break;
        if (k < 0) {
            fail_client(n, c);
            return;
        }
        n->counts.bytes_out += (uint64_t)k;
        wd_conns_taken(n->conns, c, (size_t)k, now_us);
        out = wd_conn_sendable(c);
    }
    wd_conns_set_blocked(n->conns, c, out.n > 0);
}

/* Ask epoll for what c can take; a system call only when that changed. */
static void set_interest(wd_net *n, wd_conn *c)
{
    uint32_t want = c->hung_up ? 0 : EPOLLRDHUP;
    if (c->session.blocked) want |= EPOLLOUT;
    if (wants_input(n, c)) want |= EPOLLIN;
    if (want == c->interest) return;
    struct epoll_event e = {.events = want, .data.u64 = c->session.handle};
    if (epoll_ctl(n->epoll_fd, EPOLL_CTL_MOD, c->fd, &e) != 0) {
        fail_client(n, c);
        return;
    }
    c->interest = want;
}

static void close_client(wd_net *n, wd_conn *c)
{
    WD_ASSERT(c->fd >= 0);
    if (c->dead) {
        (void)close(c->fd);
    } else {
        close_gently(n, c->fd);
    }
    c->fd = -1;
    wd_conns_close(n->conns, c);
}

void wd_net_flush(wd_net *n, int64_t now_us)
{
    wd_conn *c = wd_conns_next_ready(n->conns);
    for (; c; c = wd_conns_next_ready(n->conns)) {
        if (!c->dead) send_out(n, c, now_us);
        if (!c->dead && !wd_conn_is_finished(c)) set_interest(n, c);
        if (wd_conn_is_finished(c)) close_client(n, c);
    }
}

void wd_net_drop_all(wd_net *n)
{
    close_listeners(n);
    wd_conns_kill_all(n->conns);
    wd_net_flush(n, 0); /* sends nothing to the dead */
}

/* ---- timers ---- */

static void arm(int fd, int flags, int64_t *armed_ms, int64_t at_ms)
{
    if (at_ms == *armed_ms) return;
    struct itimerspec t = {0}; /* all zero = disarmed */
    if (at_ms != WD_NEVER_MS) {
        if (at_ms < 1) at_ms = 1;
        t.it_value.tv_sec = at_ms / 1000;
        t.it_value.tv_nsec = at_ms % 1000 * 1000000;
    }
    int failed = timerfd_settime(fd, TFD_TIMER_ABSTIME | flags, &t, NULL);
    WD_ASSERT(failed == 0 || errno == ECANCELED);
    *armed_ms = at_ms;
}

void wd_net_arm(wd_net *n, int64_t wall_ms, int64_t boot_ms, int64_t wall_now_ms)
{
    /* Rounded up to whole hours, so that an idle server does not re-arm in every round. */
    int64_t latest_ms = (wall_now_ms / HOUR_MS + 1) * HOUR_MS;
    if (wall_ms > latest_ms) wall_ms = latest_ms;
    arm(n->wall_fd, TFD_TIMER_CANCEL_ON_SET, &n->wall_armed_ms, wall_ms);
    arm(n->boot_fd, 0, &n->boot_armed_ms, boot_ms);
}
