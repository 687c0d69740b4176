/* wd_ring.h -- what is remembered of things that are over, for a time and up to a number:
 * the ended ring (jobs) and the ONCE ring (tokens). Both forget the oldest first. */
#ifndef WD_RING_H
#define WD_RING_H

#include "wd_arena.h"
#include "wd_siphash.h"

enum {
    WD_ENDED_MAX = 4 * 1024 * 1024,
    WD_ENDED_KEPT_MS = 3600 * 1000,
    WD_ONCE_MAX = 4 * 1024 * 1024,
    WD_ONCE_KEPT_MS = 600 * 1000
};

/* An ended job. */
typedef struct {
    uint64_t id;
    uint64_t term, lsn; /* the fence of its last grant, 0 0 = never granted */
    wd_hash128 key;     /* hash of its key, 0 0 = none */
    int64_t ended_ms;   /* wall */
    int64_t rel_ms;     /* rel time of the frame: what ages it */
    uint32_t text;      /* result, kept by DONE */
    uint16_t text_len;
    uint16_t handler;
    uint8_t state; /* SUCCEEDED, CANCELLED, EXPIRED, DEAD */
    uint8_t verb;  /* enum wd_verb that ended it, 0 = the server */
} wd_ended;

/* A ONCE token. */
typedef struct {
    wd_hash128 token;
    uint64_t id;
    int64_t rel_ms;
    uint8_t word; /* enum wd_answer: CREATED, EXISTING, ENDED, REPLACED */
} wd_once;

typedef struct wd_ring wd_ring;

/* slots_max: slots of the job table, which entries of one slot are chained by. */
wd_ring *wd_ring_new(uint32_t slots_max, wd_arena *texts);
void wd_ring_free(wd_ring *r);

/* Append an ended job; its text is copied if the arena has room. WD_OK, WD_EFULL (drop first). */
int wd_ring_end(wd_ring *r, const wd_ended *e, wd_span text);
/* Newest entry of a job id / with a key hash; NULL = none. O(entries that share the chain). */
const wd_ended *wd_ring_find(const wd_ring *r, uint64_t id);
const wd_ended *wd_ring_find_key(const wd_ring *r, wd_hash128 key);

int wd_ring_once(wd_ring *r, const wd_once *o);
/* NULL = none younger than WD_ONCE_KEPT_MS at rel_ms. */
const wd_once *wd_ring_find_once(const wd_ring *r, wd_hash128 token, int64_t rel_ms);

/* Entries have numbers, counted from 1 for ever, that no entry changes. first: the oldest one's;
 * next: the next one's; equal = there is none. */
typedef struct {
    uint64_t first, next;
} wd_numbers;
wd_numbers wd_ring_ended_numbers(const wd_ring *r);
wd_numbers wd_ring_once_numbers(const wd_ring *r);

/* From a checkpoint: append under this number; where numbers are missing all before them are
 * forgotten. WD_OK, WD_ECORRUPT (not a newer number, or older than the last one), WD_EFULL. */
int wd_ring_load_ended(wd_ring *r, uint64_t number, const wd_ended *e, wd_span text);
int wd_ring_load_once(wd_ring *r, uint64_t number, const wd_once *o);
/* All was loaded: the next entry to come has the number n.next, and those below n.first are
 * forgotten, also those that are still to come. WD_OK, WD_ECORRUPT (that does not fit). */
int wd_ring_settle_ended(wd_ring *r, wd_numbers n);
int wd_ring_settle_once(wd_ring *r, wd_numbers n);

/* Forget what is older than its time at rel_ms (at most 16 k entries of each a call); whole pages
 * go back to the system. */
void wd_ring_age(wd_ring *r, int64_t rel_ms);
/* Forget the n oldest. n must not pass the count. */
void wd_ring_drop_ended(wd_ring *r, uint64_t n);
void wd_ring_drop_once(wd_ring *r, uint64_t n);

uint64_t wd_ring_ended_count(const wd_ring *r);
uint64_t wd_ring_once_count(const wd_ring *r);
/* Entry i from the oldest, i < count: for the state hash and checks. */
const wd_ended *wd_ring_ended_at(const wd_ring *r, uint64_t i);
const wd_once *wd_ring_once_at(const wd_ring *r, uint64_t i);
uint64_t wd_ring_bytes(const wd_ring *r); /* entries in use; texts are the arena's */

#endif /* WD_RING_H */
