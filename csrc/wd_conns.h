/* wd_conns.h -- the table of connections, the lists they stand on, and what a round does with them
 * besides sockets: run, wake, resume, release, and the queue of commands for Python.
 *
 * Others hold handles (index | generation << 32), never pointers, across rounds: a connection may
 * be gone, and its place taken by another, when they come back.
 */
#ifndef WD_CONNS_H
#define WD_CONNS_H

#include "wd_conn.h"

enum {
    WD_QUEUE_PAUSE_BYTES = 64 * 1024 * 1024,  /* commit queue: nothing is added to it above */
    WD_QUEUE_RESUME_BYTES = 32 * 1024 * 1024, /* and again below */
    WD_QUEUE_PAUSE_MS = 2 * 1000,             /* the same, when the oldest in it waits so long */
    WD_QUEUE_RED_MS = 10 * 1000,              /* and from here on somebody must look */
    WD_HERD_MS = 100, /* who asked for nothing else in this time waits for commits alone */
    WD_OUT_SOFT_BYTES = 8 * 1024 * 1024, /* not taken by the kernel for OUT_SOFT_MS: closed */
    WD_OUT_SOFT_MS = 30 * 1000,
    WD_OUT_HARD_BYTES = 32 * 1024 * 1024, /* made and not taken: closed at once */
    WD_PREAUTH_MS = 10 * 1000             /* to authenticate, where it is required */
};

typedef struct {
    wd_conn *first, *last;
    uint32_t count;
} wd_list;

typedef struct wd_conns {
    wd_runner runner;
    wd_conn **table; /* by index; NULL = free */
    uint32_t *gens;  /* generation of each index, from 1 */
    uint32_t *free;  /* free indices, a stack */
    uint32_t capacity, free_count, conns_max;
    uint32_t fed_count; /* of connections whose bytes Python moves */
    wd_list lists[WD_LISTS];
    uint64_t next_id;
    int paused;       /* the commit queue is full or old: no command adds to it */
    int64_t queue_ms; /* mono: since when the oldest in it waits; WD_NEVER_MS = it is empty */
    int stopping;     /* nothing is read any more */
    int unsettled;    /* since settle something made work for a LEASE that waits */
    int64_t mono_ms;  /* of this round */
    int64_t next_sweep_ms;
    uint64_t accepted, slow_consumers, preauth_timeouts, pauses, killed;
} wd_conns;

/* Room for conns_max connections of e and commands. NULL when there is no memory. */
wd_conns *wd_conns_new(wd_engine *e, wd_commands *commands, uint32_t conns_max, int auth_required);
/* Frees every connection without another record; descriptors must be closed before. */
void wd_conns_free(wd_conns *s);

/* A connection over fd (-1: fed). NULL: no memory or conns_max. */
wd_conn *wd_conns_open(wd_conns *s, int fd);
/* Give back its grants, forget it. Its descriptor must be closed. */
void wd_conns_close(wd_conns *s, wd_conn *c);
wd_conn *wd_conns_find(const wd_conns *s, uint64_t handle); /* NULL = gone */
uint32_t wd_conns_count(const wd_conns *s);

void wd_conns_put(wd_conns *s, int list, wd_conn *c);  /* at its end; nothing if it is on it */
void wd_conns_drop(wd_conns *s, int list, wd_conn *c); /* nothing if it is not on it */
wd_conn *wd_conns_pop(wd_conns *s, int list);          /* its first, NULL = empty */

/* Bytes came in, or their end did. */
void wd_conns_input(wd_conns *s, wd_conn *c, wd_span in);
void wd_conns_eof(wd_conns *s, wd_conn *c);
/* Serve waiting LEASE calls, run what is behind them and what may be resumed. Bounded; WD_OK, or
 * WD_EAGAIN: there is more to do, come again soon. loading: serve nobody. */
int wd_conns_settle(wd_conns *s, int loading);
/* Has settle nothing to do again, after what came behind it: bytes that left, connections that were
 * closed? */
static inline int wd_conns_is_settled(const wd_conns *s)
{
    return !s->unsettled && s->lists[WD_L_RESUME].count == 0;
}

/* Batches up to durable_seq are durable. Returns how many connections had bytes waiting for them.
 */
uint32_t wd_conns_release(wd_conns *s, uint64_t durable_seq);
/* The first k released bytes of c left at wall time now_us. */
void wd_conns_taken(wd_conns *s, wd_conn *c, size_t k, int64_t now_us);
/* The kernel refused (blocked = 1) or has taken all that is released (0). */
void wd_conns_set_blocked(wd_conns *s, wd_conn *c, int blocked);
/* The next socket that the outside must look at, NULL = none; fed ones go to WD_L_FED. */
wd_conn *wd_conns_next_ready(wd_conns *s);
/* Close c with nothing more: a kill, a failed socket. */
void wd_conns_kill(wd_conns *s, wd_conn *c);
void wd_conns_kill_all(wd_conns *s); /* the log has failed */
/* The peer has closed its side, although what it sent before may still stand unread. */
void wd_conns_hung_up(wd_conns *s, wd_conn *c);

/* At the start of each round: the time, and the limits that depend on it. stalled = 1: the disk is
 * full, which is told by refusals and is no reason to hold anybody back. */
void wd_conns_begin_round(wd_conns *s, int64_t mono_ms, int stalled);
/* How long the oldest in the commit queue has waited; 0 = it is empty. */
int64_t wd_conns_queue_age_ms(const wd_conns *s);
/* 1: every connection waits for the next commit, or has waited for the last one and asked for
 * nothing since. */
int wd_conns_all_wait(wd_conns *s);
/* mono time at which begin_round has something to do again, WD_NEVER_MS = never. */
int64_t wd_conns_next_sweep_ms(const wd_conns *s);

/* The next command for Python: its connection, with arguments in kept. NULL = none. */
wd_conn *wd_conns_next_python(wd_conns *s);
/* Its answer. gated = 1: it depends on the state seen. WD_OK, WD_EGONE (closed meanwhile, or
 * nothing is asked of Python there), WD_ENOMEM (the connection is being closed). */
int wd_conns_answer(wd_conns *s, uint64_t handle, wd_span reply, int gated);

#endif /* WD_CONNS_H */
