/* wd_save.h -- a core's checkpoints: begin one, ask how far it is; load one at a start.
 *
 * One at a time. A slice of it runs at the end of each round, and while there is something to write
 * the core wakes itself, so that it goes on when nothing else happens. Nothing here touches the
 * log: a checkpoint that fails costs nothing but itself.
 */
#ifndef WD_SAVE_H
#define WD_SAVE_H

#include "wd_ckptfile.h"
#include "wd_core.h"
#include "wd_io.h"

/* cffi: begin */
enum wd_checkpoint_phase {
    WD_CHECKPOINT_IDLE = 0,
    WD_CHECKPOINT_SCANS = 1,    /* slices are written */
    WD_CHECKPOINT_SYNCS = 2,    /* all is written; fdatasync */
    WD_CHECKPOINT_VERIFIES = 3, /* the file is read back from the device */
    WD_CHECKPOINT_WAITS = 4,    /* it is whole; the log is not durable up to end_lsn yet */
    WD_CHECKPOINT_DONE = 5, /* it may be published (modes interval, off: after a sync of the log) */
    WD_CHECKPOINT_FAILED = 6 /* its file is gone again */
};

typedef struct {
    const char *path;      /* of the file to make, at most 1023 bytes; what is there is removed */
    uint64_t rate_bytes;   /* written, or read back, a second; 0 = as fast as it goes */
    uint32_t salt;         /* randomness is an input */
    uint32_t slice_things; /* tests: so many things a round, without a clock; 0 = by time */
    int threaded;          /* 0: written within rounds (simulation) */
} wd_checkpoint_start;

typedef struct {
    int phase;                  /* enum wd_checkpoint_phase */
    uint64_t start_lsn;         /* S0: the log is needed behind it */
    uint64_t end_lsn;           /* S1: the log must be durable up to it; 0 = the scan goes on */
    uint64_t slots, slots_done; /* of the job table */
    uint64_t jobs, things, chunks;
    uint64_t size_bytes;     /* of the file, so far */
    uint64_t written_bytes;  /* by the writer */
    uint64_t verified_bytes; /* read back */
    uint64_t slices,
        slice_ns_max; /* the longest by the wall, which others may have held up; and of */
    uint64_t slice_cpu_ns_max, scan_ns; /* the loop thread's CPU: the longest one, all of them */
    uint64_t took_ns;                   /* from its start to DONE, WAITS or FAILED, or to now */
    uint32_t crc;                       /* of the chunks' crcs, as in the last one */
    int error;           /* FAILED: errno; 0 with call "verify": what was read back is not what was
                            written, and verdict says how */
    int verdict;         /* enum wd_ckpt_stop */
    char call[16];       /* FAILED: the call that failed */
    uint64_t corrupt_id; /* SCANS: the payload of this job changed in memory, and the scan stands
                            there until wd_core_checkpoint_go_on or _abort; else 0 */
} wd_checkpoint_state;

/* Begin one. io must outlive it. WD_OK; WD_EAGAIN: one is under way; WD_EINVAL: not started yet,
 * or the path is too long; WD_EIO: the log has failed; WD_ENOMEM. */
int wd_core_checkpoint_start(wd_core *c, const wd_io *io, const wd_checkpoint_start *o);
/* How far the last one is; phase IDLE when there was none. */
void wd_core_checkpoint_state(wd_core *c, wd_checkpoint_state *out);
/* Give up the one that is under way, its file with it; forget one that is over, whose file stays.
 */
void wd_core_checkpoint_abort(wd_core *c);
/* Let one that stands at a payload look at it again. */
void wd_core_checkpoint_go_on(wd_core *c);
/* Put the payload of a job that changed in memory back, from what wd_payload.h found on the disk.
 * WD_OK: it is intact, now or as before; WD_EGONE: there is no such job (any more); WD_EINVAL: this
 * is not what was scheduled, by its length and checksum, and nothing was done; or not started. */
int wd_core_mend(wd_core *c, uint64_t id, const uint8_t *p, size_t n);

/* Before any replay: header block and whole chunks, in order, in any number of calls. WD_OK;
 * WD_ECORRUPT, WD_ENOMEM, WD_EFULL (more jobs than jobs_max): free the core; WD_EINVAL: started, or
 * records were replayed, or all was loaded. */
int wd_core_load(wd_core *c, const uint8_t *bytes, size_t n);
typedef struct {
    uint64_t start_lsn, end_lsn; /* 0 0: nothing was loaded */
    int whole;                   /* the last chunk was loaded */
    int reached;                 /* the log was replayed up to end_lsn: wd_core_start may follow */
} wd_core_loaded;
void wd_core_loaded_get(const wd_core *c, wd_core_loaded *out);
/* cffi: end */

/* The last thing of a round. */
void wd_save_round(wd_core *c);
/* Stop what is under way. */
void wd_save_free(wd_core *c);

#endif /* WD_SAVE_H */
