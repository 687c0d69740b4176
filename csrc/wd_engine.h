/* wd_engine.h -- the state machine: decide (command -> records), apply (record -> state), tick.
 *
 * Decide looks at the state, resolves everything (ids, due times, random draws) and logs records in
 * the open batch through one function, which also applies them; replay runs the same apply over
 * records read back. Apply reads nothing but the record, the state and the batch's time: no clock,
 * no option, no free memory, no randomness.
 *
 * READY is never logged: a scheduled job is ready iff its due time has come.
 */
#ifndef WD_ENGINE_H
#define WD_ENGINE_H

#include "wd_frame.h"
#include "wd_load.h"
#include "wd_policy.h"
#include "wd_record.h"
#include "wd_resp.h"
#include "wd_slab.h"
#include "wd_table.h"

typedef struct wd_engine wd_engine;

enum wd_fence_state {
    WD_FENCE_LIVE = 0,     /* the lease runs */
    WD_FENCE_OPEN = 1,     /* lease lost or timed out: ACK and DONE still count */
    WD_FENCE_FAILED = 2,   /* spent by FAIL */
    WD_FENCE_RELEASED = 3, /* spent by RELEASE */
    WD_FENCE_CLOSED = 4    /* spent by the server: cancelled, moved, given back */
};

/* Why a job went back or died; in records and shown by name. Append only. */
enum wd_reason {
    WD_BY_FAIL = 1,
    WD_BY_TIMEOUT = 2,
    WD_BY_LOSS = 3,
    WD_BY_RELEASE = 4,
    WD_BY_UNSENT = 5, /* the grant never reached the worker whole */
    WD_BY_SERVER = 6, /* lived through a restart and was never heard of again */
    WD_BY_DEAD = 7,   /* FAIL ... DEAD */
    WD_BY_CORRUPT = 8 /* its payload changed in memory: it was given to nobody */
};

/* A receipt: which grant of which job. Text: "id.term.lsn". */
typedef struct {
    uint64_t id, term, lsn;
} wd_receipt;

/* What a verb on a receipt or a job answers. ENDED, EXISTING, REPLACED and CREATED are on disk (the
 * words of ONCE tokens): append only. */
enum wd_answer {
    WD_A_OK = 0,
    WD_A_ALREADY,
    WD_A_STALE,
    WD_A_UNKNOWN,
    WD_A_CANCELLED,
    WD_A_MARKED,
    WD_A_ENDED,
    WD_A_RETRY,
    WD_A_DEAD,
    WD_A_CONFLICT,
    WD_A_EXISTING,
    WD_A_REPLACED,
    WD_A_CREATED,
    WD_A_EXISTS,
    WD_A_NO_ROOM /* maxmemory or a table limit: nothing changed */
};

/* What spends a fence; in ENDED records. Append only. */
enum wd_verb { WD_V_SERVER = 0, WD_V_ACK = 1, WD_V_DONE = 2, WD_V_FAIL = 3, WD_V_RELEASE = 4 };

/* ---- the open batch and the queue behind it (read by wd_commit) ----
 * A batch is one frame: header room, records, spare bytes for padding. seq numbers batches 1.. in
 * this process; the output gate compares seqs. */
typedef struct wd_batch {
    struct wd_batch *next;
    wd_buf bytes; /* [0..64) header room, then records; capacity always covers 8 more */
    wd_frame_meta meta;
    uint64_t seq;
} wd_batch;
enum { WD_BATCH_CLOSE_BYTES = 512 * 1024, WD_BATCH_BYTES_MAX = 2 * 1024 * 1024 };

/* Seq that a reply made now depends on: that of the open batch if it has records, else of the last
 * closed one. 0 = nothing was ever logged. O(1). */
uint64_t wd_engine_seq(const wd_engine *e);
/* Close the open batch if it has records and put it at the end of the queue. */
void wd_engine_close_batch(wd_engine *e);
/* Take the oldest closed batch (NULL: none); give it back with wd_engine_reuse_batch. */
wd_batch *wd_engine_take_batch(wd_engine *e);
void wd_engine_reuse_batch(wd_engine *e, wd_batch *b);
/* Bytes waiting in closed batches and the open one. */
uint64_t wd_engine_queued_bytes(const wd_engine *e);

/* ---- life ---- */
typedef struct {
    uint32_t jobs_max;        /* slots; address space is reserved for all of them */
    uint64_t maxmemory_bytes; /* SCHEDULE is refused above 85 % of it */
    uint64_t seed;            /* for backoff draws (results are logged) */
    /* What is kept of jobs that are over. Only deciding reads these: a drop is a record, so a
     * replay under other limits makes the same state. */
    uint64_t dead_max;
    int64_t dead_kept_ms;
    uint64_t ended_max, once_max; /* <= WD_ENDED_MAX, WD_ONCE_MAX */
    uint8_t hash_key[16];         /* keys the hashes of keys and ONCE tokens: the store's uuid */
} wd_engine_options;

wd_engine *wd_engine_new(const wd_engine_options *o);
void wd_engine_free(wd_engine *e);

/* Load a checkpoint before anything is replayed: its header block and whole chunks, in order, in
 * any number of calls. WD_OK; WD_ECORRUPT, WD_ENOMEM, WD_EFULL (more jobs than jobs_max): the
 * engine is good for nothing but to be freed; WD_EINVAL (records were replayed, or it is over). */
int wd_engine_load(wd_engine *e, wd_span bytes);
/* The checkpoint that it began with, and how far it is. */
const wd_load *wd_engine_loaded(const wd_engine *e);
/* Apply the records of one frame (payload without header) at replay; one that a loaded checkpoint
 * holds wholly is passed over. WD_OK, WD_ECORRUPT, WD_ENOMEM. */
int wd_engine_replay(wd_engine *e, wd_span payload, const wd_frame_meta *m, uint64_t term);

typedef struct {
    int64_t wall_ms, boot_ms, mono_ms; /* CLOCK_REALTIME, CLOCK_BOOTTIME, CLOCK_MONOTONIC, cut */
    int boot_part;                     /* 1: boot_ms was cut, 0: it is exact */
} wd_clocks;

/* Replay is over: begin to serve under `term`, the rel axis standing at rel_ms now. Live leases and
 * time-outs get a full fresh term. WD_OK, WD_ENOMEM, WD_ECORRUPT (a checkpoint was loaded, and the
 * log did not reach its S1). */
int wd_engine_start(wd_engine *e, uint64_t term, int64_t rel_ms, const wd_clocks *now);

/* Move time; make due jobs ready, end leases that ran out. Bounded work: *out_more = 1 asks for
 * another call soon. */
int wd_engine_tick(wd_engine *e, const wd_clocks *now, int *out_more);
/* Commands from now on came in at boot_ms (rounded up), which may be later than the last tick: what
 * they ask for from now on ("+5s") counts from there, so that it never comes early. */
void wd_engine_asked_at(wd_engine *e, int64_t boot_ms);
/* When tick has something to do next, on each axis; WD_NEVER_MS = never. */
int64_t wd_engine_next_wall_ms(const wd_engine *e);
int64_t wd_engine_next_rel_ms(const wd_engine *e);
int64_t wd_engine_wall_ms(const wd_engine *e);
int64_t wd_engine_rel_ms(const wd_engine *e);

uint64_t wd_engine_lsn(const wd_engine *e);    /* of the last record logged */
uint64_t wd_engine_memory(const wd_engine *e); /* bytes counted against maxmemory */
/* Memory that others hold on the engine's account: connection buffers. */
void wd_engine_add_memory(wd_engine *e, int64_t bytes);

/* ---- deciding; each logs what it did in the open batch ----
 * Answers are enum wd_answer; WD_A_NO_ROOM = nothing changed (*out_why of wd_new_result, or
 * memory). */

enum wd_ondup { WD_DUP_KEEP = 0, WD_DUP_REPLACE = 1, WD_DUP_ERROR = 2 };

typedef struct {
    wd_span handler, payload, key, once, meta, group, owner;
    wd_policy policy; /* members by policy_set override the handler's and the server's defaults */
    wd_when due, expire;
    int64_t window_ms;
    uint8_t policy_set; /* enum wd_setting */
    uint8_t ondup;      /* enum wd_ondup */
    uint8_t priority;
    uint8_t has_expire;
    uint8_t held; /* waits for UNHELD (core.batch only) */
} wd_new_job;

typedef struct {
    uint64_t id;
    int state;       /* enum wd_state, now */
    const char *why; /* WD_A_NO_ROOM: what was full */
} wd_new_result;

/* CREATED, EXISTING, ENDED, REPLACED with *out; EXISTS, CONFLICT with out->id; NO_ROOM. */
int wd_engine_schedule(wd_engine *e, const wd_new_job *job, wd_new_result *out);

typedef struct {
    const uint32_t *handlers; /* numbers; the least recently served with work is next */
    uint32_t handlers_count;
    uint32_t count;    /* jobs at most */
    uint32_t lease_ms; /* 0 = each job's own */
    wd_span worker;
} wd_lease_ask;

enum { WD_LEASE_COUNT_MAX = 1000, WD_LEASE_PAYLOAD_BYTES_MAX = 256 * 1024 };
/* Grant up to ask->count jobs; their slots go to out_slots. Returns how many; 0 = nothing there. */
uint32_t wd_engine_lease(wd_engine *e, const wd_lease_ask *ask, uint32_t *out_slots);
/* Has this handler a job that could be handed out now? */
int wd_engine_has_work(const wd_engine *e, uint32_t handler);

int wd_engine_ack(wd_engine *e, wd_receipt r, int verb, wd_span result);
typedef struct {
    int64_t in_ms; /* delay instead of the backoff, < 0 = not given */
    int dead;
    wd_span text;
} wd_failure;
int wd_engine_fail(wd_engine *e, wd_receipt r, const wd_failure *f, int64_t *out_due_wall_ms);
int wd_engine_release(wd_engine *e, wd_receipt r, int64_t in_ms);
/* OK with *out_lease_ms; CANCELLED, STALE, UNKNOWN. for_ms 0 = the term in force. */
int wd_engine_extend(wd_engine *e, wd_receipt r, uint32_t for_ms, uint32_t *out_lease_ms);
/* A grant whose reply never left whole: given back, counted as nothing. */
void wd_engine_unsent(wd_engine *e, uint64_t id, uint64_t lsn);
/* The connection that a lease was bound to is gone: lost at once, no grace. */
void wd_engine_unbound(wd_engine *e, uint64_t id, uint64_t lsn);

int wd_engine_cancel(wd_engine *e, uint64_t id);            /* CANCELLED MARKED ENDED UNKNOWN */
int wd_engine_move(wd_engine *e, uint64_t id, wd_when due); /* OK CONFLICT ENDED UNKNOWN */
int wd_engine_run(wd_engine *e, uint64_t id);               /* the same; a held job is released */
int wd_engine_requeue(wd_engine *e, uint64_t id);           /* OK CONFLICT UNKNOWN */
int wd_engine_purge(wd_engine *e, uint64_t id);             /* OK CONFLICT UNKNOWN */

/* Number of a handler, made (and logged) when absent; WD_NIL when there is no room. */
uint32_t wd_engine_handler(wd_engine *e, wd_span name);
/* Replace a handler's settings. WD_OK or a status. */
int wd_engine_set_handler(wd_engine *e, uint32_t handler, const wd_settings *s);

/* Set logical now to the wall clock. WD_OK or a status. */
int wd_engine_accept_clock(wd_engine *e);

/* No id made from now on has a lower generation. WD_OK or a status. */
int wd_engine_raise_generations(wd_engine *e, uint32_t generation);

/* The job that a key names: the live one, else the newest ended. 0 = none. */
uint64_t wd_engine_key_id(const wd_engine *e, wd_span key);

/* ---- seeing ---- */
/* A job as it stands; spans are valid until the next call that changes the state. */
typedef struct {
    uint64_t id, lsn;
    uint32_t slot;  /* WD_NIL: from the ended ring, most fields below are unknown */
    int state;      /* enum wd_state */
    int64_t due_ms; /* wall; REL times as due - rel now + wall */
    int64_t created_ms, started_ms, ended_ms; /* wall, 0 = not yet */
    int64_t expire_ms;                        /* wall, WD_NEVER_MS = never */
    int64_t lease_left_ms, timeout_left_ms;   /* LEASED; timeout WD_NEVER_MS = none */
    uint64_t term, lsn_fence;                 /* of the newest grant; 0 = never granted */
    uint32_t attempt, lease_ms;
    uint16_t failures, lost, handler_number;
    uint8_t priority, marked, reason, rel;
    wd_span handler, key, payload, meta, group, text, worker;
    wd_span run_id, nominal, date; /* of the job's owner: "run id[\nnominal ms\nlogical date]" */
    wd_policy policy;
    const wd_run *run; /* NULL = never granted */
} wd_view;

/* What a worker is told of a job that it was just granted. Spans as above; n = 0: it has none. */
typedef struct {
    uint64_t id, term, lsn; /* the receipt */
    int64_t due_ms;         /* wall */
    uint32_t attempt, lease_ms, timeout_ms;
    wd_span handler, key, payload, meta, run_id, nominal, date;
} wd_grant_view;
/* WD_OK, or WD_EGONE: neither a row nor in the ended ring. */
int wd_engine_view(const wd_engine *e, uint64_t id, wd_view *out);
void wd_engine_view_slot(const wd_engine *e, uint32_t slot, wd_view *out);
/* Of a LEASED job. */
void wd_engine_view_grant(const wd_engine *e, uint32_t slot, wd_grant_view *out);
const char *wd_state_name(int state);
const char *wd_reason_name(int reason);
wd_names *wd_engine_names(const wd_engine *e);
wd_slab *wd_engine_slab(const wd_engine *e);
uint64_t wd_engine_count(const wd_engine *e, int state);
/* Due time on the wall clock of a grant still held; WD_EGONE. */
int wd_engine_grant_due(const wd_engine *e, uint64_t id, uint64_t lsn, int64_t *out_due_wall_ms);
/* Handlers that got work, or room for work, since they were last taken; WD_NIL = no more. */
uint32_t wd_engine_next_dirty(wd_engine *e);
void wd_engine_mark_dirty(wd_engine *e, uint32_t handler);
/* Handlers that have ready jobs: number i of `working`. */
uint32_t wd_engine_working_count(const wd_engine *e);
uint32_t wd_engine_working_at(const wd_engine *e, uint32_t i);

typedef struct {
    int64_t logical_ms; /* logical now of the wall axis */
    int64_t held_ms;    /* logical now - wall, > 0 while the wall wheel stands still */
    uint64_t clock_steps, suspends;
    uint64_t created, fired, leased, acked, failed, timed_out, lost, released, unsent, cancelled,
        expired, died, dead_dropped, ring_dropped, once_dropped, texts_dropped;
    uint64_t payload_corrupt, corrupt_id; /* found at a grant; the newest one's job, 0 = none */
    uint32_t corrupt_handler;
    uint64_t ended_count, once_count, dead_count, owned_ended_count, expiring_count;
} wd_engine_stats;
void wd_engine_stats_get(const wd_engine *e, wd_engine_stats *out);
/* What steps of the wall clock and suspends jumped over since this was last asked: (from, to] on
 * each axis, from = to = 0: nothing. */
typedef struct {
    int64_t wall_from_ms, wall_to_ms, rel_from_ms, rel_to_ms;
} wd_jump;
wd_jump wd_engine_take_jump(wd_engine *e);
int64_t wd_engine_logical_ms(const wd_engine *e);

int wd_engine_check(const wd_engine *e); /* wd_check.c: number of the first broken invariant, 0 */
uint64_t wd_engine_hash(const wd_engine *e); /* wd_check.c: hash of the logged state */

/* Put the payload of a job that changed in memory back (wd_core_mend, wd_save.h). No record: the
 * log has it. WD_OK, WD_EGONE, WD_EINVAL. */
int wd_engine_mend(wd_engine *e, uint64_t id, wd_span payload);

/* ---- for the data plane ---- */

/* Bytes of records in the open batch, 0 = it is empty. O(1). */
uint64_t wd_engine_open_bytes(const wd_engine *e);
/* ---- for the control plane (wd_submit.c) ---- */

/* See wd_core_submit, wd_core_ended (wd_control.h). */
int wd_engine_submit(wd_engine *e, wd_span ops, int takes_jobs, uint64_t *out_ids, uint32_t ids_max,
                     uint32_t *out_count);
int wd_engine_ended(const wd_engine *e, uint32_t most, wd_buf *out);
int wd_engine_has_ended(const wd_engine *e); /* is anything on that list? */
const wd_table *wd_engine_table(const wd_engine *e);
/* A job that a schedule owns. */
typedef struct {
    uint64_t id;
    int64_t due_ms; /* on the row's axis */
    int state;      /* enum wd_state */
    wd_span owner;
} wd_owned;
/* The next one from *slot on, which is moved behind it. WD_OK; WD_EAGAIN: none among rows_max rows,
 * go on; WD_EGONE: no more. */
int wd_engine_owned_next(const wd_engine *e, uint32_t *slot, uint32_t rows_max, wd_owned *out);

#endif /* WD_ENGINE_H */
