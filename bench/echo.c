/* echo.c -- the floor: a server that takes commands, does nothing, and answers.
 *
 *     echo PORT
 *
 * One thread, one epoll, one recv and one send a wake-up of a connection, as wheeld has it. It
 * finds the end of each RESP command, because it has to know how many there are, and answers an id
 * as SCHEDULE does, or +PONG to a line. What wheeld takes on top of this is what wheeld does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64, IN_BYTES = 1 << 18, OUT_BYTES = 1 << 18, CONNS_MAX = 1 << 12 };

static const char ID[] = "$10\r\n4294967296\r\n";
static const char PONG[] = "+PONG\r\n";

typedef struct {
    size_t n; /* bytes of a command that is not whole yet */
    char in[IN_BYTES];
} conn;

static conn *conns[CONNS_MAX]; /* by descriptor */
static char out[OUT_BYTES];

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "echo: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The number behind a mark, and *p behind its line; -1: the line is not whole. */
static long number(const char **p, const char *end)
{
    const char *line_end = memchr(*p, '\n', (size_t)(end - *p));
    if (!line_end) return -1;
    long value = 0;
    for (const char *digit = *p + 1; digit < line_end - 1; digit++)
        value = value * 10 + (*digit - '0');
    *p = line_end + 1;
    return value;
}

/* The end of the command at p, NULL when it is not whole. */
static const char *command_end(const char *p, const char *end)
{
    int is_array = *p == '*';
    long words = number(&p, end);
    if (!is_array) return words < 0 ? NULL : p;
    for (; words > 0; words--) {
        if (p >= end) return NULL;
        long bytes = number(&p, end);
        if (bytes < 0 || end - p < bytes + 2) return NULL;
        p += bytes + 2;
    }
    return words < 0 ? NULL : p;
}

static void answer(int fd, size_t n)
{
    for (size_t sent = 0; sent < n;) {
        ssize_t k = send(fd, out + sent, n - sent, MSG_NOSIGNAL);
        if (k < 0 && errno == EAGAIN) {
            struct pollfd wait = {.fd = fd, .events = POLLOUT};
            (void)poll(&wait, 1, -1);
            continue;
        }
        if (k < 0) return; /* it went away; the next recv says so */
        sent += (size_t)k;
    }
}

/* Take what is there, answer all that is whole. 0: the connection is over. */
static int serve(int fd)
{
    conn *c = conns[fd];
    ssize_t got = recv(fd, c->in + c->n, IN_BYTES - c->n, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 1;
    if (got <= 0) return 0;
    const char *p = c->in;
    const char *end = c->in + c->n + (size_t)got;
    size_t n = 0;
    for (const char *next; p < end && (next = command_end(p, end)) != NULL; p = next) {
        if (n + sizeof ID > OUT_BYTES) {
            answer(fd, n);
            n = 0;
        }
        size_t size = *p == '*' ? sizeof ID - 1 : sizeof PONG - 1;
        memcpy(out + n, *p == '*' ? ID : PONG, size);
        n += size;
    }
    answer(fd, n);
    c->n = (size_t)(end - p);
    if (c->n == IN_BYTES) return 0; /* no command is that long */
    memmove(c->in, p, c->n);
    return 1;
}

static void welcome(int epoll, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (fd >= CONNS_MAX || !(conns[fd] = calloc(1, sizeof(conn)))) die("too many connections");
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) != 0) die("epoll_ctl");
}

static void leave(int fd)
{
    free(conns[fd]);
    conns[fd] = NULL;
    (void)close(fd);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        (void)fprintf(stderr, "usage: echo PORT\n");
        return 2;
    }
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1;
    struct sockaddr_in here = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)atoi(argv[1])),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(listener, (struct sockaddr *)&here, sizeof here) != 0 || listen(listener, 511) != 0)
        die("listen");
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener};
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e) != 0) die("epoll");
    for (;;) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(epoll, events, EVENTS, -1);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                welcome(epoll, listener);
            } else if (!serve(fd)) {
                leave(fd);
            }
        }
    }
}
