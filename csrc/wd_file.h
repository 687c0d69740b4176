/* wd_file.h -- whole writes and files of zeros over a wd_io. */
#ifndef WD_FILE_H
#define WD_FILE_H

#include "wd_io.h"

/* A file call that failed. */
typedef struct {
    const char *call; /* static storage */
    const char *path; /* the caller's */
    int64_t offset;
    int64_t result; /* negative errno; 0: a write that made no progress */
} wd_file_fault;

/* Write all bytes at fault->offset, short writes continued. WD_OK, or WD_EIO with *fault filled
 * (fault->path is the caller's to set). */
int wd_file_write(const wd_io *io, int fd, wd_span bytes, wd_file_fault *fault);

/* Give a fresh file size_bytes of zeros on the disk and sync it; allocate_only: room that reads as
 * zero instead of written zeros. WD_OK, or WD_EIO with *fault filled. */
int wd_file_fill(const wd_io *io, int fd, uint64_t size_bytes, int allocate_only,
                 wd_file_fault *fault);

/* Make the file fault->path anew, filled as above, mode 0600; what stands there is removed. WD_OK
 * with its descriptor; or WD_EIO with *fault filled, and no file left. */
int wd_file_make(const wd_io *io, uint64_t size_bytes, int allocate_only, int *out_fd,
                 wd_file_fault *fault);

#endif /* WD_FILE_H */
