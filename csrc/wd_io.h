/* wd_io.h -- the one table of file calls. Everything below it in the core reaches the disk through
 * such a table: the real one (wd_io_real), or the simulated disk of the tests (tests/c/wd_simfs.c).
 * Each call returns a result >= 0 or a negative errno; none sets errno for its caller.
 */
#ifndef WD_IO_H
#define WD_IO_H

#include "wd_int.h"

/* cffi: begin */
typedef struct wd_io wd_io;

/* The kernel's calls. */
const wd_io *wd_io_real(void);

/* What statfs() says a path lies on (f_type), or a negative errno. */
int64_t wd_io_fs_magic(const char *path);
/* cffi: end */

struct wd_io {
    void *disk; /* the implementation's own state; first argument of every call */
    int (*open)(void *disk, const char *path, int flags, int mode); /* descriptor */
    int (*close)(void *disk, int fd);
    int64_t (*pread)(void *disk, int fd, void *p, size_t n, int64_t offset);
    int64_t (*pwrite)(void *disk, int fd, const void *p, size_t n, int64_t offset);
    int (*datasync)(void *disk, int fd);            /* fdatasync */
    int (*dirsync)(void *disk, const char *folder); /* fsync of a directory */
    int (*rename)(void *disk, const char *from, const char *to);
    int (*unlink)(void *disk, const char *path);
    int (*allocate)(void *disk, int fd, int64_t size_bytes); /* room from 0, and the size */
    uint64_t (*now_ns)(void *disk);                          /* monotonic, for durations only */
    /* Two that a disk need not have (NULL). Begin to write pages back, or wait until they are: no
     * promise of durability, and an error of the disk may be told here instead of by a sync. */
    int (*writeback)(void *disk, int fd, int64_t offset, int64_t n, int wait);
    /* Let what is cached of it go: reads ask the device, for no more than they want. */
    int (*forget)(void *disk, int fd);
};

#endif /* WD_IO_H */
