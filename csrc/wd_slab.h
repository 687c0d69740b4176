/* wd_slab.h -- the tables of jobs: rows (hot), side blocks (optional things), run blocks (leases).
 *
 * Rows lie in one reservation, so a slot is an index and an id is found without a hash. A side
 * block exists only for jobs that have something optional; a run block from the first grant on.
 */
#ifndef WD_SLAB_H
#define WD_SLAB_H

#include "wd_job.h"

enum { WD_ATTEMPTS_KEPT = 8, WD_GEN_MAX = (1 << 25) - 1 };

/* One finished attempt. */
typedef struct {
    int64_t started_ms, ended_ms; /* wall */
    uint32_t attempt;
    uint8_t reason; /* enum wd_reason */
} wd_attempt;

/* The newest grant and what came before it. */
typedef struct {
    uint64_t term, lsn;   /* the fence: lsn of the LEASED record and the term it was made in */
    uint64_t died_lsn;    /* DEAD: of the DIED record; the order of the list `dead` */
    int64_t due_ms;       /* LEASED: the job's due time, on the row's axis (row.due_ms is in use) */
    int64_t started_ms;   /* wall: when it was granted */
    int64_t lease_end_ms; /* LEASED: rel axis; not logged */
    int64_t timeout_end_ms; /* LEASED: rel axis, WD_NEVER_MS = none; not logged */
    uint32_t lease_ms;      /* the logged term of the lease */
    uint32_t worker;        /* arena reference of the worker's name */
    uint8_t worker_len;
    uint8_t fence;   /* enum wd_fence_state */
    uint8_t unheard; /* lived through a restart and no EXTEND came since; not logged */
    uint8_t attempts_count;
    wd_attempt attempts[WD_ATTEMPTS_KEPT]; /* oldest first */
} wd_run;

/* What most jobs do not have. References are into the arena, WD_NIL = absent. */
typedef struct {
    int64_t expire_ms; /* WD_NEVER_MS = never; axis by expire_rel */
    uint32_t slot;     /* of the row it belongs to */
    uint32_t run;      /* run block, WD_NIL = never granted */
    uint32_t key, meta, group, owner, text;
    uint32_t expiring_next, expiring_prev; /* READY with EXPIRE: the sweep's ring of side blocks */
    uint32_t ended_next, ended_prev;       /* on the list `ended`: side blocks */
    uint16_t meta_len, owner_len, text_len;
    uint8_t key_len, group_len;
    uint8_t expire_rel;
    uint8_t keyed; /* the key is in the key index (live); a dead job has freed it */
    uint8_t on_expiring, on_ended;
    uint8_t reason;     /* DEAD: why (enum wd_reason) */
    int64_t ended_ms;   /* DEAD, or ended and not closed: when, wall */
    uint64_t ended_lsn; /* on the list `ended`: of the record that put it there; its order */
} wd_side;

typedef struct wd_slab wd_slab;

/* A pool of equal blocks in reserved space; a free block's first u32 is the next free index + 1. */
typedef struct {
    uint8_t *base;
    size_t block_bytes;
    uint32_t capacity, top, used;
    uint32_t free; /* index + 1, 0 = none */
} wd_pool;

/* The fields are wd_slab.c's; they stand here for what is read at every step of every verb. */
struct wd_slab {
    wd_job *rows;
    uint32_t capacity, top, used;
    uint32_t free_head, free_tail; /* WD_NIL = empty */
    uint32_t free_count;
    uint32_t linked; /* 0 while replaying: the free list does not exist yet */
    uint32_t floor;  /* lowest generation of the ids to come */
    wd_pool sides, runs;
};

wd_slab *wd_slab_new(uint32_t capacity);
void wd_slab_free(wd_slab *s);

wd_job *wd_slab_rows(const wd_slab *s);
uint32_t wd_slab_top(const wd_slab *s); /* slots ever used: [0, top) */
uint32_t wd_slab_capacity(const wd_slab *s);

enum { WD_SLOT_BITS = 32 };
static inline uint64_t wd_id_of(uint32_t gen, uint32_t slot)
{
    return (uint64_t)gen << WD_SLOT_BITS | slot;
}

/* Id of the row in a slot; shard 0. */
static inline uint64_t wd_job_id(const wd_slab *s, uint32_t slot)
{
    WD_ASSERT(slot < s->top);
    return wd_id_of(s->rows[slot].gen, slot);
}

/* Slot of a live or ended-but-kept job; WD_NIL when the id names none now. O(1). */
static inline uint32_t wd_slab_find(const wd_slab *s, uint64_t id)
{
    uint32_t slot = (uint32_t)id;
    if (slot >= s->top || s->rows[slot].state == WD_FREE) return WD_NIL;
    return wd_job_id(s, slot) == id ? slot : WD_NIL;
}

/* The id that wd_slab_claim would use next: WD_OK, WD_EFULL (every slot in use or retired). */
int wd_slab_next_id(const wd_slab *s, uint64_t *out_id);
/* No id made from now on has a lower generation than this; never lowered. */
void wd_slab_raise(wd_slab *s, uint32_t generation);
uint32_t wd_slab_floor(const wd_slab *s);
/* The highest generation that any slot has had. O(top). */
uint32_t wd_slab_generation_max(const wd_slab *s);
/* How many more jobs have a slot. */
uint32_t wd_slab_room(const wd_slab *s);
/* Take the slot of `id` (from wd_slab_next_id, or a record at replay): its row is zeroed but for
 * the generation. WD_OK, WD_ECORRUPT (slot in use, or generation not newer), WD_EFULL. */
int wd_slab_claim(wd_slab *s, uint64_t id, uint32_t *out_slot);
/* Give the slot back; its generation stays behind. Side and run blocks must be gone. */
void wd_slab_give(wd_slab *s, uint32_t slot);
/* Before replay, from a checkpoint: the next slot, which must be the top, in use or free with the
 * generation that it had last (0 = none yet). Its row is zeroed but for the generation. WD_OK,
 * WD_ECORRUPT (not the top, or no such generation), WD_EFULL. */
int wd_slab_load(wd_slab *s, uint32_t slot, uint32_t gen, int used);
/* So many slots, side and run blocks are about to be taken. */
void wd_slab_expect(wd_slab *s, uint32_t slots, uint32_t sides, uint32_t runs);
/* After replay, which claims slots by id: make the FIFO list of free slots. Until then there is
 * none. O(top). */
void wd_slab_link_free(wd_slab *s);

/* Side and run blocks. */
uint32_t wd_side_new(wd_slab *s, uint32_t slot);
void wd_side_give(wd_slab *s, uint32_t side);
static inline wd_side *wd_side_at(const wd_slab *s, uint32_t side)
{
    WD_ASSERT(side < s->sides.top);
    return (wd_side *)(void *)(s->sides.base + (size_t)side * sizeof(wd_side));
}

uint32_t wd_run_new(wd_slab *s);
void wd_run_give(wd_slab *s, uint32_t run);
static inline wd_run *wd_run_at(const wd_slab *s, uint32_t run)
{
    WD_ASSERT(run < s->runs.top);
    return (wd_run *)(void *)(s->runs.base + (size_t)run * sizeof(wd_run));
}

/* The row's side / run block, NULL = none. */
static inline wd_side *wd_job_side(const wd_slab *s, const wd_job *row)
{
    return row->side == WD_NIL ? NULL : wd_side_at(s, row->side);
}

static inline wd_run *wd_job_run(const wd_slab *s, const wd_job *row)
{
    const wd_side *b = wd_job_side(s, row);
    return !b || b->run == WD_NIL ? NULL : wd_run_at(s, b->run);
}

typedef struct {
    uint32_t rows, sides, runs;
} wd_slab_counts;
wd_slab_counts wd_slab_count(const wd_slab *s);
/* Bytes of rows, side and run blocks in use. */
uint64_t wd_slab_bytes(const wd_slab *s);
/* Free list, counts and generations hold together? 1 = yes. O(top). */
int wd_slab_check(const wd_slab *s);

#endif /* WD_SLAB_H */
