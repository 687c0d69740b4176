/* wd_state.h -- the engine's state, private to its files:
 *   wd_batch.c   log a record: apply it, keep it for the frame
 *   wd_apply.c   record -> state, live and at replay
 *   wd_replay.c  frames read back -> state; the rules behind a checkpoint
 *   wd_load.c    a checkpoint -> state; wd_image.c its things
 *   wd_place.c   which structure a row stands in: wheels, ready queue, lists
 *   wd_decide.c  SCHEDULE, CANCEL and the other verbs on jobs
 *   wd_lease.c   grants and the verbs on receipts; leases that run out
 *   wd_engine.c  life, time, counters
 *   wd_view.c    reading
 *   wd_check.c   invariants and the state hash
 */
#ifndef WD_STATE_H
#define WD_STATE_H

#include "wd_engine.h"
#include "wd_ring.h"
#include "wd_table.h"
#include "wd_wheel.h"

enum {
    WD_GRACE_MS_MIN = 1000,   /* a lease is over at its end + max(1 s, 10 %) */
    WD_STEP_MS = 1000,        /* a clock that moved by more than this was stepped or suspended */
    WD_SWEEP_MS = 5000,       /* every READY job with EXPIRE is looked at once in this time */
    WD_TICK_OUT_MAX = 1024,   /* jobs that one tick takes from each wheel */
    WD_TICK_MOVES_MAX = 1024, /* cascade moves of one tick and wheel */
    WD_MEMORY_PERCENT = 85    /* SCHEDULE is refused above this share of maxmemory */
};

/* A list through rows (next, prev). */
typedef struct {
    uint32_t first, last, count;
} wd_list;

struct wd_engine {
    wd_engine_options options;
    wd_arena *arena;
    wd_slab *slab;
    wd_names *names;
    wd_ring *ring;
    wd_table *table;
    wd_index *keys;      /* live keys: item = slot */
    wd_index *dead_keys; /* keys of the dead list: item = slot; several may share one */
    wd_wheel *wall_wheel, *rel_wheel;
    wd_job *rows; /* the slab's */

    /* time */
    wd_clocks clocks;
    int64_t rel_ms, logical_ms;
    int64_t rel_minus_boot_ms;
    int64_t asked_ms; /* rel: when the command being run came in, if later than rel_ms */
    wd_jump jump;     /* not yet taken */
    int serving;      /* 0 while replaying: rows are in no wheel and no queue */
    wd_load load;     /* the checkpoint that this state began with */

    /* log: the batch's time is the time input of every record in it */
    uint64_t term, lsn;
    uint64_t apply_term;
    int64_t frame_wall_ms, frame_rel_ms;
    wd_batch *open, *queue_first, *queue_last, *spare;
    uint64_t seq; /* of the open batch, or of the next one to open */
    uint64_t queued_bytes;

    wd_list leased, dead;
    uint32_t ended_first, ended_last, ended_count; /* side blocks of owned jobs that changed */
    uint32_t expiring, expiring_count;             /* ring of side blocks; the sweep's next one */
    int64_t swept_ms;                              /* rel: when the sweep last looked */
    uint32_t *working, working_count;              /* handlers with READY jobs */
    uint32_t *dirty, dirty_count;                  /* handlers to serve */
    uint64_t turn;                                 /* grants so far: least recently served */
    uint64_t count[WD_EXPIRED + 1];                /* jobs by state */
    uint64_t random;                               /* splitmix64 state */
    int64_t lent_bytes;                            /* what others hold on the engine's account */
    wd_engine_stats stats;
};

static inline wd_span wd_text(const wd_engine *e, uint32_t ref, size_t n)
{
    return (wd_span){wd_arena_at(e->arena, ref), ref == WD_NIL ? 0 : n};
}

/* Is the payload what the record or the image said, or has it changed in memory since? O(its
 * length). */
static inline int wd_payload_is_intact(const wd_engine *e, uint32_t slot)
{
    return wd_arena_is_intact(e->arena, e->rows[slot].payload, e->rows[slot].payload_len);
}

static inline wd_hash128 wd_key_hash(const wd_engine *e, wd_span key)
{
    return wd_siphash(e->options.hash_key, key);
}

/* Is the next record one that the loaded checkpoint may have seen (wd_replay.c)? */
static inline int wd_is_fuzzy(const wd_engine *e)
{
    return e->lsn < e->load.end.end_lsn;
}

/* ---- wd_batch.c ---- */
/* Apply r and keep it in the open batch under the next lsn. On failure nothing changed. */
int wd_log_record(wd_engine *e, wd_record *r);
/* Make room in the open batch, so that records of so many bytes find memory. WD_OK, WD_ENOMEM. */
int wd_batch_reserve(wd_engine *e, size_t bytes);
void wd_batches_free(wd_engine *e);

/* ---- wd_apply.c ---- */
/* Apply r as record e->lsn + 1 of term e->apply_term. WD_OK, WD_ECORRUPT (replay), WD_ENOMEM,
 * WD_EFULL. */
int wd_apply(wd_engine *e, const wd_record *r);
/* What r does beside its job or thing, which has seen it already: entries of the rings. */
int wd_apply_beside(wd_engine *e, const wd_record *r);

/* ---- wd_load.c ---- */
/* The log was replayed up to the checkpoint's S1. WD_OK, WD_ENOMEM. */
int wd_load_settle(wd_engine *e);

/* ---- wd_place.c ---- */
/* Move a row from where it stands to nowhere (its state stays for the caller to change). A leased
 * row gets its due time back. */
void wd_unplace(wd_engine *e, uint32_t slot);
/* Change the state and every counter of it. */
void wd_set_state(wd_engine *e, uint32_t slot, int state);
/* SCHEDULED row with its due time set: onto its wheel, or ready if that has come. Replay: nothing.
 */
void wd_place(wd_engine *e, uint32_t slot);
/* A SCHEDULED row whose time has come: into the ready queue. */
void wd_make_ready(wd_engine *e, uint32_t slot);
/* LEASED row: onto the rel wheel at the first moment at which something may be over. */
void wd_arm_lease(wd_engine *e, uint32_t slot);
int64_t wd_grace_ms(uint32_t lease_ms);
/* Owned job: onto / off the list `ended`. */
void wd_ended_add(wd_engine *e, uint32_t side);
void wd_ended_remove(wd_engine *e, uint32_t side);
/* Free everything a row holds, and its slot. It must stand nowhere. */
void wd_job_free(wd_engine *e, uint32_t slot);
void wd_list_add(wd_engine *e, wd_list *list, uint32_t slot);
void wd_list_remove(wd_engine *e, wd_list *list, uint32_t slot);
/* Live row with this key, WD_NIL = none. */
uint32_t wd_key_find(const wd_engine *e, wd_span key);
void wd_key_add(wd_engine *e, uint32_t slot);
void wd_key_remove(wd_engine *e, uint32_t slot);
/* Onto the dead list, which its key still finds. */
void wd_dead_add(wd_engine *e, uint32_t slot);
/* The newest dead row with this key, WD_NIL = none. O(dead jobs that share the key). */
uint32_t wd_dead_find(const wd_engine *e, wd_span key);

/* ---- wd_engine.c ---- */
/* Rel time delay_ms after the command being run came in; 0 is now. */
int64_t wd_after(const wd_engine *e, int64_t delay_ms);

/* ---- wd_lease.c ---- */
/* Look at a leased row whose moment came: lost, timed out, or armed again. */
void wd_lease_due(wd_engine *e, uint32_t slot);
/* Every live lease and time-out gets a full fresh term (restart, suspend). */
void wd_leases_refresh(wd_engine *e);

/* ---- wd_decide.c ---- */
/* End a job that is leased, or READY and expired. state: SUCCEEDED, CANCELLED, EXPIRED. */
int wd_end(wd_engine *e, uint32_t slot, int state, int verb, wd_span text);
/* Drop what is over a limit of number or age (dead list, rings), by records. */
void wd_make_room(wd_engine *e);
int64_t wd_random_below(wd_engine *e, int64_t end); /* uniform in [0, end] */

/* A time on the wall clock. The two clocks are cut to ms at different phases: rounded down here, so
 * that nobody who compares with the wall clock sees a job begin before its due time. */
static inline int64_t wd_to_wall(const wd_engine *e, int64_t ms, int rel)
{
    return rel ? ms - e->rel_ms - e->clocks.boot_part + e->clocks.wall_ms : ms;
}

#endif /* WD_STATE_H */
