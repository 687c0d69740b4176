/* wd_log.h -- the log's writing half as a step machine without a thread: append, rotate, MARK.
 * Python (wal/) owns the directory, names what is there at start and judges it; this file only ever
 * writes behind what was judged, into fresh segments.
 *
 * Threads. One thread appends (it may change, calls may not overlap). Beside it one other thread
 * may be inside each of wd_log_prepare, wd_log_sync, wd_log_mark, and any may read the figures.
 * Nothing runs beside wd_log_open and wd_log_free. wd_log.c says how the hand-over is guarded.
 */
#ifndef WD_LOG_H
#define WD_LOG_H

#include "wd_frame.h"
#include "wd_io.h"

/* cffi: begin */
typedef struct wd_log wd_log;

/* Everything a start decided, from wal/. */
typedef struct {
    const char *folder;     /* DATA, absolute; wal/ and MARK stand in it already. Copied. */
    uint64_t segment_bytes; /* size of a segment file: a multiple of 4096, >= 8192 */
    int allocate_only;      /* 1: no zeros ahead (copy-on-write file systems, off) */
    uint64_t next_seq;      /* seq of the fresh segment that this start opens */
    uint64_t next_lsn;      /* lsn of the next record; all before it is synced */
    uint64_t term;
    uint32_t fsync_mode; /* enum wd_fsync */
    uint32_t salt_seed;  /* randomness is an input: salts are derived from it */
    uint8_t uuid[16];
    uint8_t boot_id[16];
    int64_t wall_ms, rel_minus_boot_ms;
    /* The last frame on disk, for the chain and for MARK; all 0 when there is none. */
    uint32_t prev_crc; /* its payload crc */
    uint64_t last_seq, last_offset;
    int64_t last_wall_ms;
    uint64_t mark_count; /* number of the next MARK write: one more than any before */
} wd_log_start;

/* What went wrong, for the log line and exit 74. */
typedef struct {
    int error;      /* errno, 0 = nothing */
    char call[16];  /* "pwrite", "datasync", ... */
    char path[512]; /* cut off when longer */
    int64_t offset;
    uint64_t lsn; /* the first lsn that may not be on disk */
} wd_log_error;

/* Counters for INFO and metrics. */
typedef struct {
    uint64_t frames, bytes, syncs, rotations, marks;
    uint64_t sync_ns_sum, sync_ns_max, sync_ns_last;
    uint64_t written_lsn, synced_lsn, marked_lsn;
    uint64_t seq;   /* current segment */
    int64_t offset; /* where the next frame goes in it */
    uint64_t segment_bytes;
    int prepared;          /* 1: the next segment stands ready */
    int reserved;          /* 1: and the one to fall back on when the disk is full */
    int unsynced_segments; /* sealed segments that wait for a sync (interval, off) */
} wd_log_stats;

/* Open the fresh segment start->next_seq, header durable (file, name and directory), over io, and
 * the MARK file. io must outlive the log. NULL with *out_error filled on failure. */
wd_log *wd_log_open(const wd_io *io, const wd_log_start *start, wd_log_error *out_error);

void wd_log_free(wd_log *log); /* closes; writes nothing */

/* Make the next segment ready (zero-filled, synced) if it is not, and one in reserve, and sync
 * sealed segments that still wait for it. The reserve becomes the next segment when the disk has no
 * room for one. Called from one background thread at a time, while appends go on in another. WD_OK;
 * WD_EFULL: no space for both, nothing is broken, try again later; WD_EIO: the log has failed. */
int wd_log_prepare(wd_log *log);

/* Sync all that was written when it was called (interval mode's 50 ms, stop), sealed segments and
 * their names included. May run beside an append. WD_OK or WD_EIO: then the log has failed. */
int wd_log_sync(wd_log *log);

/* Write MARK: the highest synced lsn; clean != 0 at an orderly stop, when all that was written is
 * synced (else WD_EINVAL): no append is taken after it. WD_OK or WD_EIO: the log has failed. */
int wd_log_mark(wd_log *log, int clean);

void wd_log_stats_get(wd_log *log, wd_log_stats *out);
void wd_log_error_get(wd_log *log, wd_log_error *out);

/* Append one frame: frame[0..64) header room, payload behind it, 7 bytes to spare behind that;
 * m->first_lsn must be the next lsn; flags and durable_lsn are filled in here by the mode. Rotates
 * first when the frame does not fit. always: written and synced on return; interval, off: written.
 * Exactly one frame is in flight: callers do not overlap calls.
 * WD_OK. WD_EIO: the log has failed for good and every later call says WD_EIO. WD_EFULL: no space
 * for the next segment, nothing was written, the same call may be repeated. WD_EINVAL: not the next
 * lsn, no records, longer than a frame or a segment may be, or after a clean mark. */
int wd_log_append(wd_log *log, uint8_t *frame, const wd_frame_meta *m);
/* cffi: end */

#endif /* WD_LOG_H */
