/* wd_ckptwriter.h -- carries a checkpoint's chunks to its file, and proves that they are there.
 *
 * The loop thread takes an empty buffer, fills it, gives it back; buffers are written in the order
 * in which they were given. There are few of them: who is ahead of the disk gets none. Two ways to
 * be driven: by a thread of its own, paced, so that the log's syncs find the disk free; or by
 * steps, each of which does what can be done at once (simulation, tests).
 */
#ifndef WD_CKPTWRITER_H
#define WD_CKPTWRITER_H

#include "wd_ckptfile.h"
#include "wd_file.h"

enum { WD_CKPT_BUFFERS = 4, WD_CKPT_PATH_BYTES = 1024 };

enum wd_ckptwriter_stage {
    WD_WRITER_WRITES = 0,
    WD_WRITER_SYNCS = 1,
    WD_WRITER_VERIFIES = 2,
    WD_WRITER_DONE = 3, /* the file is whole, durable but for its name, and closed */
    WD_WRITER_FAILED = 4
};

typedef struct {
    const wd_io *io;
    const char *path;    /* removed if it is there, then made */
    uint64_t rate_bytes; /* written, or read back, a second; 0 = as fast as it goes */
    size_t piece_bytes;  /* that the disk is given, or asked for, at once; at most two under way */
    int threaded;
    int wake_fd; /* an eventfd to write to when the loop may go on; -1 = none */
} wd_ckptwriter_options;

typedef struct {
    int stage; /* enum wd_ckptwriter_stage */
    uint64_t written_bytes, verified_bytes;
    int error;   /* FAILED: errno, or 0: what was read back is not what was written */
    int verdict; /* FAILED by reading back: enum wd_ckpt_stop */
    char call[16];
} wd_ckptwriter_state;

typedef struct wd_ckptwriter wd_ckptwriter;

/* NULL: no memory or no thread. */
wd_ckptwriter *wd_ckptwriter_new(const wd_ckptwriter_options *o);
/* Stop, whatever it is at; the file goes unless the stage is DONE. */
void wd_ckptwriter_free(wd_ckptwriter *w);
/* An empty buffer, NULL: all are on their way. */
wd_buf *wd_ckptwriter_take(wd_ckptwriter *w);
/* A buffer from take, filled, is written next; an empty one is only given back. */
void wd_ckptwriter_give(wd_ckptwriter *w, wd_buf *b);
/* Nothing more comes: sync, read back, verify. */
void wd_ckptwriter_end(wd_ckptwriter *w);
/* Without a thread: do some of what there is to do. 1: there is more. */
int wd_ckptwriter_step(wd_ckptwriter *w);
void wd_ckptwriter_get(wd_ckptwriter *w, wd_ckptwriter_state *out);
/* Bytes of its buffers. */
uint64_t wd_ckptwriter_memory(const wd_ckptwriter *w);

#endif /* WD_CKPTWRITER_H */
