/* wd_job.h -- the job row: what is hot, in one cache line. */
#ifndef WD_JOB_H
#define WD_JOB_H

#include "wd_int.h"

/* States. FREE..LEASED live in a row; the last three only in records and in the ended ring. The
 * values are on disk: append, never renumber. */
enum wd_state {
    WD_FREE = 0,
    WD_SCHEDULED = 1,
    WD_HELD = 2,
    WD_READY = 3, /* derived from time, never logged: see wd_engine.h */
    WD_LEASED = 4,
    WD_DEAD = 5,
    WD_SUCCEEDED = 6,
    WD_CANCELLED = 7,
    WD_EXPIRED = 8
};

typedef struct {
    int64_t due_ms; /* wall or (rel = 1) rel axis; leased: when the lease is next looked at */
    uint64_t lsn;   /* of the last record applied to this job */
    uint64_t created_ms : 48; /* wall */
    uint64_t lost : 16;       /* leases that expired since creation or REQUEUE */
    uint32_t where;           /* the wheel's back-pointer; WD_NIL = on no wheel */
    uint32_t next,
        prev;         /* ready: FIFO links; free: next free row; leased, dead, ended: list links */
    uint32_t payload; /* arena reference of a sealed block, WD_NIL when payload_len == 0 */
    uint32_t payload_len : 24;
    uint32_t priority : 8; /* 0 first */
    uint32_t gen : 25;     /* generation of the slot: makes ids unique */
    uint32_t state : 4;    /* enum wd_state */
    uint32_t rel : 1;      /* due_ms is on the rel axis */
    uint32_t marked : 1;   /* cancel asked while leased */
    uint32_t heaped : 1;   /* ready: in the side heap, prev is its position there */
    uint32_t side;         /* side block, WD_NIL = none */
    uint32_t attempt;      /* grants, never reset */
    uint16_t handler;      /* interned name */
    uint16_t policy;       /* interned retries, lost, backoff, lease, timeout */
    uint16_t failures;     /* FAIL and time-outs since creation or REQUEUE */
    uint16_t reserved;
} wd_job;
_Static_assert(sizeof(wd_job) == 64, "one job row is one cache line");

#endif /* WD_JOB_H */
