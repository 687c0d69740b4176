/* heap4.h -- a 4-ary heap over job rows with cancel by position: what the wheel is measured
 * against.
 *
 * Same rows, same promises: order of (due, insertion), true cancel. row.where is the position.
 */
#ifndef HEAP4_H
#define HEAP4_H

#include "wd_job.h"

typedef struct heap4 heap4;

/* NULL when there is no memory. */
heap4 *heap4_new(wd_job *rows, uint32_t capacity);
void heap4_free(heap4 *h);
void heap4_insert(heap4 *h, uint32_t slot);
int heap4_cancel(heap4 *h, uint32_t slot);
/* Take out, in order, what is due by target_ms; at most max_out. */
size_t heap4_advance(heap4 *h, int64_t target_ms, uint32_t *out, size_t max_out);
int64_t heap4_next_due(const heap4 *h);
uint64_t heap4_bytes(const heap4 *h);

#endif /* HEAP4_H */
