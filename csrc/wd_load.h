/* wd_load.h -- a checkpoint's bytes -> state, before the log is replayed. */
#ifndef WD_LOAD_H
#define WD_LOAD_H

#include "wd_ckptfile.h"

/* How far it is. */
enum wd_load_stage {
    WD_LOAD_NONE = 0,   /* no checkpoint: the log tells all */
    WD_LOAD_CHUNKS = 1, /* the header block was taken, END not yet */
    WD_LOAD_OVER = 2    /* all of it; the log from meta.start_lsn + 1 on comes next */
};

/* The checkpoint that a state began with; all zero = none. */
typedef struct {
    int stage; /* enum wd_load_stage */
    wd_ckpt_scan scan;
    wd_ckpt_meta meta;
    wd_ckpt_end end;
    uint64_t newest_lsn; /* that any row names */
    uint64_t jobs;       /* rows in use so far */
    int settled;         /* S1 was reached: the lists are in order */
} wd_load;

#endif /* WD_LOAD_H */
