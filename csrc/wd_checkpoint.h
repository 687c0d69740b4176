/* wd_checkpoint.h -- writes the state down in slices, while it goes on changing. */
#ifndef WD_CHECKPOINT_H
#define WD_CHECKPOINT_H

#include "wd_ckptwriter.h"
#include "wd_engine.h"

typedef struct {
    const uint8_t *uuid; /* 16 bytes, of the store */
    uint32_t salt;
    uint32_t slice_things; /* tests: so many things a slice and no clock; 0 = by time */
} wd_checkpoint_options;

/* What the scan has done. */
typedef struct {
    uint64_t start_lsn, end_lsn;  /* S0; S1, 0 until the scan is over */
    uint64_t slots, slots_done;   /* to write, written; free ones included */
    uint64_t jobs, things, bytes; /* of the file, so far */
    uint32_t chunks, crc;
    uint64_t slices, slice_ns_max;      /* by the wall; and of the loop thread's CPU: */
    uint64_t slice_cpu_ns_max, scan_ns; /* the longest one, all of them */
    int over;                           /* all is with the writer */
    int no_memory;                      /* a thing did not find memory: the checkpoint has failed */
    uint64_t
        corrupt_id; /* the job whose payload changed in memory: the scan stands there; else 0 */
} wd_checkpoint_figures;

typedef struct wd_checkpoint wd_checkpoint;

/* Begin at the end of what is logged now: closes the open batch. The engine serves, and outlives
 * it; the writer outlives it. NULL: no memory. */
wd_checkpoint *wd_checkpoint_new(wd_engine *e, wd_ckptwriter *w, const wd_checkpoint_options *o);
void wd_checkpoint_free(wd_checkpoint *k);
/* One slice, between two commands. 1: another could follow at once; 0: the writer is behind, or it
 * is over, or it has failed, or it stands at a payload that changed. */
int wd_checkpoint_slice(wd_checkpoint *k);
/* Look again at the slot where it stands, if it does. */
void wd_checkpoint_go_on(wd_checkpoint *k);
void wd_checkpoint_get(const wd_checkpoint *k, wd_checkpoint_figures *out);

#endif /* WD_CHECKPOINT_H */
