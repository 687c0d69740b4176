/* wd_net.h -- sockets: one inner epoll for listeners, clients, two timers and the commit eventfd.
 *
 * The inner epoll's descriptor is itself readable when any of them is, so an outer event loop
 * watches one descriptor and makes one call per round (nested epoll).
 */
#ifndef WD_NET_H
#define WD_NET_H

#include "wd_conns.h"

enum { WD_LISTENERS_MAX = 8 };

typedef struct wd_net wd_net;

/* What sockets did. */
typedef struct {
    uint64_t bytes_in, bytes_out;
    uint64_t refused_full;    /* accepted only to be told that maxclients is reached */
    uint64_t accept_failures; /* EMFILE and the like */
    uint64_t socket_errors;   /* connections that ended with one */
    uint64_t clock_sets;      /* the wall clock was set while we waited on it */
} wd_net_counts;

/* Sockets for the connections of s; wake_fd belongs to the commit. NULL = no memory or descriptors.
 */
wd_net *wd_net_new(wd_conns *s, int wake_fd);
/* Closes every client and listener. */
void wd_net_free(wd_net *n);

/* Accept from fd, a listening socket; it is ours from now on. WD_OK, WD_EINVAL, WD_EFULL. */
int wd_net_listen(wd_net *n, int fd);
/* Close listeners; no client is read any more. */
void wd_net_stop_reading(wd_net *n);
/* The inner epoll. */
int wd_net_fd(const wd_net *n);

/* Wait at most timeout_ms (-1 = for ever) for events. Returns how many there are to handle. */
int wd_net_wait(wd_net *n, int timeout_ms);
/* Wait at most wait_ns, for the gather window. */
int wd_net_wait_ns(wd_net *n, uint64_t wait_ns);
/* Handle what the last wait found. Returns 1 if the wake fd was among it. */
int wd_net_handle(wd_net *n);
/* Send what may leave, close what is finished, ask epoll for what each connection can take.
 * now_us: wall time for the lateness of grants. */
void wd_net_flush(wd_net *n, int64_t now_us);
/* Wake at wall_ms (CLOCK_REALTIME) and boot_ms (CLOCK_BOOTTIME); WD_NEVER_MS = not. wall_now_ms
 * keeps the wall timer armed at least hourly, so that a set clock is always noticed. */
void wd_net_arm(wd_net *n, int64_t wall_ms, int64_t boot_ms, int64_t wall_now_ms);
/* The log has failed: close every connection without another byte. */
void wd_net_drop_all(wd_net *n);

const wd_net_counts *wd_net_counts_of(const wd_net *n);

#endif /* WD_NET_H */
