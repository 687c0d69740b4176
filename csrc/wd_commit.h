/* wd_commit.h -- carries closed batches from the engine to the log: which thread writes, and when.
 *
 * - thread, always: a commit thread writes and syncs, one frame in flight, so a slow sync stops
 *   neither reads nor heartbeats. The hand-over and back wakes two threads and often wants a second
 *   CPU, so while syncs are quick there are two short cuts. If every connection waits for this very
 *   commit, the loop syncs by itself: nobody else is kept, however long it takes. Else it waits for
 *   the thread, for 2 ms at most, and lends it its CPU.
 * - thread, interval and off: the loop writes at once (handing a plain write to a thread costs
 *   twice the CPU); in interval mode the thread syncs every 50 ms.
 * - inline: as thread, but the loop always writes and syncs by itself; in interval mode its owner
 *   calls wd_log_sync.
 * - driven: nobody writes: the owner takes frames and says when they are durable.
 *
 * A batch stays open, and gathers records, while another is in flight: group commit needs no timer.
 */
#ifndef WD_COMMIT_H
#define WD_COMMIT_H

#include "wd_engine.h"
#include "wd_hist.h"
#include "wd_log.h"

/* cffi: begin */
enum wd_commit_mode { WD_COMMIT_THREAD = 0, WD_COMMIT_INLINE = 1, WD_COMMIT_DRIVEN = 2 };
/* cffi: end */

typedef struct wd_commit wd_commit;

/* What commits cost. Written by the loop thread only. */
typedef struct {
    wd_hist sync_ns;     /* append to durable, as the committing thread saw it */
    wd_hist batch_bytes; /* records of a frame, without header */
    wd_hist batch_records;
} wd_commit_figures;

/* For e's batches. mode: enum wd_commit_mode; fsync_mode: enum wd_fsync. NULL when there is no
 * memory or no eventfd. */
wd_commit *wd_commit_new(wd_engine *e, int mode, int fsync_mode, uint32_t own_sync_us);
/* Wait for the frame in flight, stop the thread, free. The log stays its owner's. */
void wd_commit_free(wd_commit *c);

/* Write to log from now on (not in driven mode). Starts the thread if the mode needs one. WD_OK,
 * WD_EINVAL (driven, or attached before), WD_ENOMEM (no thread). */
int wd_commit_attach(wd_commit *c, wd_log *log);

/* An eventfd that becomes readable when the commit thread has something to tell. */
int wd_commit_wake_fd(const wd_commit *c);
/* Make the wake fd readable: another round is wanted soon. */
void wd_commit_kick(wd_commit *c);
/* Make the wake fd unreadable. */
void wd_commit_unkick(wd_commit *c);

/* What time it is: a stalled frame is tried again by it. */
void wd_commit_begin_round(wd_commit *c, int64_t mono_ms);
/* Take what the thread has finished. WD_OK, or WD_EIO: the log has failed. */
int wd_commit_collect(wd_commit *c);

/* At the end of a round: write, or hand to the thread, what the engine holds, if nothing is in
 * flight. waiting = connections with replies at the gate; all_wait = 1: there are no others, or
 * none that would ask for something else. WD_OK or WD_EIO. */
int wd_commit_submit(wd_commit *c, uint32_t waiting, int all_wait);
/* Would submit sync in the calling thread? Then what need not wait should be sent first. */
int wd_commit_blocks(const wd_commit *c, uint32_t waiting);
/* 1: the disk has no room for the next frame. It is kept and tried again by submit, once a second;
 * what is durable stays durable. */
int wd_commit_is_stalled(const wd_commit *c);
/* 1 while a frame is with the thread or the driver, or stalled. */
int wd_commit_busy(const wd_commit *c);

/* The newest batch that is durable (interval, off: written), 0 = none yet; and its last lsn. */
uint64_t wd_commit_durable_seq(const wd_commit *c);
uint64_t wd_commit_durable_lsn(const wd_commit *c);
/* Everything up to lsn was read back from the log at start. */
void wd_commit_set_durable_lsn(wd_commit *c, uint64_t lsn);
/* WD_OK, or the status with which the log failed, for good. */
int wd_commit_failure(const wd_commit *c);

wd_commit_figures *wd_commit_figures_of(wd_commit *c);
/* Frames that the loop thread synced by itself although there is a commit thread. */
uint64_t wd_commit_own_syncs(const wd_commit *c);
/* Frames that the thread synced while the loop waited for it. */
uint64_t wd_commit_awaited_syncs(const wd_commit *c);

/* Driven: the next frame, sealed (salt 0, each frame's prev_crc that of the one before it), and the
 * lsn of its last record. It stays valid until it is durable. WD_OK, WD_EAGAIN (nothing to take, or
 * one is in flight), WD_EINVAL (not driven). */
int wd_commit_take(wd_commit *c, wd_span *out_frame, uint64_t *out_lsn);
/* Driven: everything up to lsn is durable. WD_OK; WD_EINVAL: not driven, or beyond what was taken.
 */
int wd_commit_driven_durable(wd_commit *c, uint64_t lsn);

#endif /* WD_COMMIT_H */
