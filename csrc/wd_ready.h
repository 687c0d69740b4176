/* wd_ready.h -- the ready queue of one handler: order (priority, due), ties first come first out.
 *
 * A job enters and leaves through push, remove and first alone, so that fairness by group can come
 * behind the same three later. */
#ifndef WD_READY_H
#define WD_READY_H

#include "wd_job.h"

/* A FIFO of one priority, linked through the rows; due never falls along it. */
typedef struct {
    uint32_t head, tail;
    uint8_t priority;
} wd_fifo;

typedef struct {
    wd_fifo *fifos; /* ascending priority; only priorities ever used */
    uint32_t *heap; /* jobs due earlier than their FIFO's tail when they came */
    uint32_t count, heap_count, heap_room;
    uint16_t fifos_count, fifos_room;
} wd_ready;

/* Make it empty, with room for one priority. WD_OK or WD_ENOMEM. */
int wd_ready_init(wd_ready *q);
void wd_ready_free(wd_ready *q);
/* Make sure that pushing a job of this priority needs no memory. WD_OK or WD_ENOMEM. */
int wd_ready_reserve(wd_ready *q, uint8_t priority);
/* Enter a row of a reserved priority. O(1) in due order; else O(log heap). Where the heap cannot
 * grow the job stands at the FIFO's tail: order suffers, nothing else. */
void wd_ready_push(wd_ready *q, wd_job *rows, uint32_t slot);
void wd_ready_remove(wd_ready *q, wd_job *rows, uint32_t slot);
/* The first row; WD_NIL when empty. O(priorities in use). */
uint32_t wd_ready_first(const wd_ready *q, const wd_job *rows);
/* Order, links and counts hold? 1 = yes. O(count). */
int wd_ready_check(const wd_ready *q, const wd_job *rows);

#endif /* WD_READY_H */
