/* wd_wheel.h -- a hierarchical timing wheel over job rows ("P4").
 *
 * See wd_wheel.c for the structure and its invariants. Two instances run over one row table:
 * one on the wall axis, one on the rel axis; a row is on at most one of them, at row.where.
 */
#ifndef WD_WHEEL_H
#define WD_WHEEL_H

#include "wd_job.h"

typedef struct wd_wheel wd_wheel;

/* An empty wheel at now_ms over rows[0..capacity). The rows stay the caller's; every row that was
 * never armed must have where == WD_NIL. NULL when there is no memory. */
wd_wheel *wd_wheel_new(wd_job *rows, uint32_t capacity, int64_t now_ms);
void wd_wheel_free(wd_wheel *w);

/* Arm row `slot` at rows[slot].due_ms, in [0, WD_DUE_MS_END). The row must not be armed.
 * A due time at or before the wheel's now fires at the next advance, behind what is already due.
 * O(1). Never fails: chunk memory is reserved for the worst case. */
void wd_wheel_insert(wd_wheel *w, uint32_t slot);

/* Disarm row `slot`; 1 if it was armed, 0 if not. O(1). */
int wd_wheel_cancel(wd_wheel *w, uint32_t slot);

/* Move to target_ms (never back; < WD_DUE_MS_END) and write the slots that became due to out, in
 * order of (max(due, now at insert), insertion). At most max_out are written and max_moves (> 0)
 * cascade moves made; *out_more is 1 when due work is left (call again). Rows written are
 * disarmed. Between two calls any insert and cancel is legal. */
size_t wd_wheel_advance(wd_wheel *w, int64_t target_ms, uint32_t *out, size_t max_out,
                        size_t max_moves, int *out_more);

/* Lower bound of the next due time; WD_NEVER_MS when empty; now when due work is left. O(1). */
int64_t wd_wheel_next_due(const wd_wheel *w);
int64_t wd_wheel_now(const wd_wheel *w);
uint32_t wd_wheel_count(const wd_wheel *w);
/* Bytes of chunk memory in use (metadata + cells). */
uint64_t wd_wheel_bytes(const wd_wheel *w);

/* Put every armed row back as if inserted now, in the order in which they would have fired, with
 * the wheel standing at now_ms (which may lie before its old now). Never fails. O(armed). */
void wd_wheel_rebase(wd_wheel *w, int64_t now_ms);

/* Walk every invariant; 0, or the number (see wd_wheel.c) of the first that is broken. O(armed). */
int wd_wheel_check(const wd_wheel *w);

#endif /* WD_WHEEL_H */
