/* wd_core.h -- the core's public face: one handle that everything hangs on.
 *
 * One thread uses a core; a commit thread of its own touches only the batch that was handed to it.
 * Input: sockets (listen_fd, poll), fed connections (fed_*), or both. Time: read once per round, or
 * given by hand. Commit: enum wd_commit_mode. There is no callback: Python asks for what is queued.
 */
#ifndef WD_CORE_H
#define WD_CORE_H

#include "wd_commit.h"
#include "wd_log.h"

/* cffi: begin */
typedef struct wd_core wd_core;

typedef struct {
    uint32_t jobs_max;  /* job slots */
    uint32_t conns_max; /* maxclients */
    uint64_t maxmemory_bytes;
    uint64_t payload_bytes_max; /* of one job */
    uint64_t seed;              /* for backoff draws */
    uint64_t dead_max;          /* dead jobs kept; the oldest goes first */
    int64_t dead_kept_ms;       /* and no longer than this */
    uint64_t ended_max;         /* ended jobs remembered, at most 4 Mi */
    uint64_t once_max;          /* ONCE tokens remembered, at most 4 Mi */
    uint8_t store[16];          /* the store's uuid: keys hashes */
    int strict_handlers;
    int auth_required;
    int commit_mode;    /* enum wd_commit_mode */
    int fsync_mode;     /* enum wd_fsync */
    uint32_t gather_us; /* longest gather window behind a commit, 0 = none */
    /* Commit by thread: while the last sync took less, the loop syncs by itself even when many
     * connections wait; 0 = the thread does it for them. */
    uint32_t own_sync_us;
    int sockets;    /* 0: no epoll and no timers, fed connections only */
    int hand_clock; /* 1: time moves by wd_core_tick only */
} wd_core_options;

/* Loading (replay may follow, commands are answered -LOADING) until wd_core_start. NULL: no memory
 * or no descriptors, or an option out of range. */
wd_core *wd_core_new(const wd_core_options *o);
/* Closes every connection and listener, waits for the frame in flight. Detaches from the log, which
 * stays its owner's. NULL is allowed. */
void wd_core_free(wd_core *c);

/* ---- start ---- */
/* Apply whole valid frames, header and padding included. WD_OK, WD_ECORRUPT, WD_ENOMEM, WD_EINVAL
 * (started already). */
int wd_core_replay(wd_core *c, const uint8_t *frames, size_t n, uint64_t term);
/* Replay is over: serve under term, the rel axis standing at rel_ms at these clocks. */
int wd_core_start(wd_core *c, uint64_t term, int64_t rel_ms, int64_t wall_ms, int64_t boot_ms,
                  int64_t mono_ms);
/* Write to log from now on; before anything is served. WD_OK, WD_EINVAL, WD_ENOMEM. */
int wd_core_attach_log(wd_core *c, wd_log *log);

/* ---- rounds ---- */
/* The inner epoll, -1 without sockets: readable when poll has something to do. */
int wd_core_fd(const wd_core *c);
/* Accept clients from a listening socket, which is the core's from now on. */
int wd_core_listen_fd(wd_core *c, int fd);
/* One round over sockets: wait at most timeout_ms, serve everything that is ready, commit. Returns
 * how many commands wait for Python (>= 0), or WD_EIO: the log has failed, every connection is
 * closed, the process must end. */
int wd_core_poll(wd_core *c, int timeout_ms);
/* As wd_core_poll(c, 0); then, when clients have come back within a millisecond, more rounds, for 2
 * to 3 ms at most. It comes back at once when there is something for the caller to do: a command,
 * an alarm, an end of an owned job, a frame to take; while a connection is fed it is one round. */
int wd_core_stay(wd_core *c);
/* End a round without events: after answers by Python, fed input, batches. As wd_core_poll. */
int wd_core_commit(wd_core *c);
/* By hand: time is now this. Runs everything that is due, then ends the round. As wd_core_poll. */
int wd_core_tick(wd_core *c, int64_t wall_ms, int64_t boot_ms, int64_t mono_ms);
/* Stop: no accept, no read, waiting LEASE calls end with an empty array; then poll until nothing is
 * unflushed. */
void wd_core_stop_reading(wd_core *c);
/* What is left on the disk for the log, as the owner sees it: 0 enough, 1 no segment ahead (no job
 * is taken), 2 little left in this one (none is handed out), 3 next to nothing (no record is made).
 * When a frame did not fit, it is 3 by itself until it does; the core tries each second. */
int wd_core_set_disk_room(wd_core *c, int room);
/* As it was told last; 3 while a frame does not fit, which says more than what the owner saw. */
int wd_core_disk_room(const wd_core *c);
/* Connections, fed ones included. */
uint32_t wd_core_conns(const wd_core *c);
/* Connections with bytes not taken by the kernel or a command not answered. */
uint32_t wd_core_unflushed(const wd_core *c);
/* WD_OK, or the status with which the log failed. */
int wd_core_failure(const wd_core *c);

/* ---- driven commit ---- */
/* The next frame, valid until it is durable, and its last lsn. WD_OK; WD_EAGAIN: nothing to take,
 * or one is taken and not durable yet; WD_EINVAL: not driven. */
int wd_core_take_batch(wd_core *c, const uint8_t **out_frame, size_t *out_bytes, uint64_t *out_lsn);
/* All up to lsn is durable: replies leave. WD_OK, WD_EINVAL (beyond what was taken). */
int wd_core_batch_durable(wd_core *c, uint64_t lsn);

/* ---- commands that Python answers ---- */
/* The next one: argc u32 lengths, then the arguments' bytes, at *out_packed until it is answered.
 * WD_OK or WD_EAGAIN (none). */
int wd_core_slow_next(wd_core *c, uint64_t *out_handle, const uint8_t **out_packed,
                      uint32_t *out_argc);
/* Its reply; the connection goes on at the next round. gated: it depends on the state seen.
 * WD_OK, WD_EGONE (the connection is), WD_ENOMEM (the connection is being closed). */
int wd_core_slow_reply(wd_core *c, uint64_t handle, const uint8_t *reply, size_t n, int gated);

/* ---- fed connections ---- */
/* WD_OK, WD_EFULL (maxclients), WD_ENOMEM. addr: text for CLIENT LIST. */
int wd_core_fed_open(wd_core *c, const char *addr, uint64_t *out_handle);
/* Bytes came in and are run; commit ends the round. WD_OK or WD_EGONE, as all of these. */
int wd_core_fed_input(wd_core *c, uint64_t handle, const uint8_t *p, size_t n);
int wd_core_fed_eof(wd_core *c, uint64_t handle);
/* 1: give more input; 0: pause the transport until a later round says 1 (or the connection is
 * gone). What is fed in spite of it is kept up to a hard limit, then the connection is closed. */
int wd_core_fed_wants_input(const wd_core *c, uint64_t handle);
/* The transport refuses bytes (1) or takes them again (0): no lease is given meanwhile. */
int wd_core_fed_blocked(wd_core *c, uint64_t handle, int blocked);
/* The next connection with released bytes or to be closed. WD_OK or WD_EAGAIN (none). */
int wd_core_fed_ready(wd_core *c, uint64_t *out_handle);
/* Its released bytes, until the next call with this handle; finished = 1: close it behind them. */
int wd_core_fed_output(wd_core *c, uint64_t handle, const uint8_t **out_p, size_t *out_n,
                       int *out_finished);
/* The transport took the first n of them. WD_EINVAL: more than there are. */
int wd_core_fed_taken(wd_core *c, uint64_t handle, size_t n);
int wd_core_fed_close(wd_core *c, uint64_t handle);

/* ---- connections, for CLIENT, HELLO, AUTH, QUIT, RESET ---- */
enum wd_conn_parked { WD_CONN_RUNS = 0, WD_CONN_WAITS = 1, WD_CONN_ASKS_PYTHON = 2 };

typedef struct {
    uint64_t handle, id;
    int64_t age_ms, idle_ms;
    uint64_t in_bytes, out_bytes; /* not run yet; not taken by the kernel yet */
    uint64_t commands;
    uint32_t leases_unsent, leases_bound;
    int resp, authed, blocked, fed, parked;       /* parked: enum wd_conn_parked */
    uint32_t roles;                               /* enum wd_role bits */
    char addr[64], local[64], name[64], user[64]; /* local: our end */
} wd_conn_info;

int wd_core_conn_info(const wd_core *c, uint64_t handle, wd_conn_info *out);
/* Walk all: *cursor = 0 at first. WD_OK, WD_EAGAIN (no more). */
int wd_core_conn_next(const wd_core *c, uint32_t *cursor, wd_conn_info *out);
int wd_core_conn_kill(wd_core *c, uint64_t handle); /* closed at the next round */
int wd_core_conn_set_resp(wd_core *c, uint64_t handle, int resp);
int wd_core_conn_set_name(wd_core *c, uint64_t handle, const char *name, size_t n); /* n < 64 */
int wd_core_conn_set_user(wd_core *c, uint64_t handle, const char *user, size_t n); /* n < 64 */
/* roles: enum wd_role bits, 0 = signed out; globs: "mail.*,pay", empty = every handler. WD_OK,
 * WD_EGONE, WD_EINVAL, WD_ENOMEM. */
int wd_core_conn_set_rights(wd_core *c, uint64_t handle, uint32_t roles, const char *globs,
                            size_t n);
/* Close when what it is owed has left: the reply being made, a waiting LEASE's empty array. */
int wd_core_conn_set_closing(wd_core *c, uint64_t handle);

/* ---- figures ---- */
enum wd_figure_kind {
    WD_FIGURE_ROUND_CPU_NS = 0, /* CPU of the loop thread per round */
    WD_FIGURE_SYNC_NS = 1,      /* append to durable */
    WD_FIGURE_LATENESS_US = 2,  /* due time to the LEASE reply having left */
    WD_FIGURE_BATCH_BYTES = 3,
    WD_FIGURE_BATCH_RECORDS = 4,
    WD_FIGURE_KINDS = 5
};
typedef struct {
    uint64_t count, sum, p50, p90, p99, p999,
        max; /* quantiles: at most 12.5 % above the true one */
} wd_figure;
int wd_core_figure(const wd_core *c, int kind, wd_figure *out);
void wd_core_figures_reset(wd_core *c);

typedef struct {
    /* connections */
    uint64_t conns, conns_max, conns_gated, conns_blocked, conns_waiting_python;
    uint64_t accepted, refused_full, accept_failures, socket_errors, foreign, killed;
    uint64_t slow_consumers, preauth_timeouts;
    /* traffic */
    uint64_t commands, commands_python, syntax_errors, broken, bytes_in, bytes_out;
    /* rounds and commits */
    uint64_t rounds, ticks_cut, clock_sets, gathers, own_syncs;
    uint64_t awaited_syncs; /* by the commit thread while the loop waited */
    uint64_t queue_bytes, queue_pauses, queue_age_ms;
    uint64_t conns_waiting, conns_held; /* LEASE calls that wait; stopped while the log is behind */
    int writes_paused, commit_busy, commit_stalled, loading, stopping;
    /* log positions and memory */
    uint64_t lsn, durable_lsn, memory_bytes;
    /* limits, as compiled in */
    uint64_t out_stop_bytes, out_soft_bytes, out_hard_bytes, out_soft_ms;
    uint64_t queue_pause_bytes, queue_pause_ms;
    uint64_t queue_red_ms;
    uint64_t undurable_commands_max, undurable_bytes_max, input_bytes_max, preauth_ms;
    uint64_t preauth_args_max, preauth_bytes_max, preauth_line_bytes_max;
} wd_core_stats;
void wd_core_stats_get(const wd_core *c, wd_core_stats *out);
/* Error replies so far by their code, the i-th of them, "other" last. WD_EGONE behind it. */
int wd_core_error_count(const wd_core *c, uint32_t i, const char **out_code, uint64_t *out_count);

/* ---- state ---- */
uint64_t wd_core_lsn(const wd_core *c);
uint64_t wd_core_durable_lsn(const wd_core *c);
uint64_t wd_core_memory(const wd_core *c);
int wd_core_check(const wd_core *c);     /* number of the first broken invariant, 0 = none */
uint64_t wd_core_hash(const wd_core *c); /* of the logged state */
/* cffi: end */

#endif /* WD_CORE_H */
