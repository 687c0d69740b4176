/* wd_io.c -- the real file calls: the only file of the core that makes any.
 *
 * Thin on purpose. Each function turns errno into a negative result and repeats a call that a
 * signal broke off; no retry of anything else, because a second fdatasync after a failed one
 * reports success over pages that were thrown away.
 */
#define _GNU_SOURCE
#include "wd_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

enum { EINTR_TRIES = 1000 };

/* A call failed: its errno, negative (never 0, whatever the C library left there). */
static int failure(void)
{
    return errno > 0 ? -errno : -EIO;
}

static int real_open(void *disk, const char *path, int flags, int mode)
{
    (void)disk;
    WD_ASSERT(path != NULL);
    int fd = -1;
    for (int i = 0; i < EINTR_TRIES; i++) {
        fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, (mode_t)mode);
        if (fd >= 0 || errno != EINTR) break;
    }
    return fd >= 0 ? fd : failure();
}

static int real_close(void *disk, int fd)
{
    (void)disk;
    return close(fd) == 0 ? 0 : failure();
}

static int64_t real_pread(void *disk, int fd, void *p, size_t n, int64_t offset)
{
    (void)disk;
    ssize_t got = -1;
    for (int i = 0; i < EINTR_TRIES; i++) {
        got = pread(fd, p, n, (off_t)offset);
        if (got >= 0 || errno != EINTR) break;
    }
    return got >= 0 ? got : failure();
}

static int64_t real_pwrite(void *disk, int fd, const void *p, size_t n, int64_t offset)
{
    (void)disk;
    ssize_t put = -1;
    for (int i = 0; i < EINTR_TRIES; i++) {
        put = pwrite(fd, p, n, (off_t)offset);
        if (put >= 0 || errno != EINTR) break;
    }
    return put >= 0 ? put : failure();
}

static int real_datasync(void *disk, int fd)
{
    (void)disk;
    return fdatasync(fd) == 0 ? 0 : failure();
}

static int real_dirsync(void *disk, const char *folder)
{
    (void)disk;
    WD_ASSERT(folder != NULL);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return failure();
    int result = fsync(fd) == 0 ? 0 : failure();
    (void)close(fd);
    return result;
}

static int real_rename(void *disk, const char *from, const char *to)
{
    (void)disk;
    return rename(from, to) == 0 ? 0 : failure();
}

static int real_unlink(void *disk, const char *path)
{
    (void)disk;
    return unlink(path) == 0 ? 0 : failure();
}

static int real_allocate(void *disk, int fd, int64_t size_bytes)
{
    (void)disk;
    WD_ASSERT(size_bytes > 0);
    return fallocate(fd, 0, 0, (off_t)size_bytes) == 0 ? 0 : failure();
}

static uint64_t real_now_ns(void *disk)
{
    (void)disk;
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static int real_writeback(void *disk, int fd, int64_t offset, int64_t n, int wait)
{
    (void)disk;
    WD_ASSERT(offset >= 0 && n > 0);
    unsigned flags =
        wait ? SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER
             : SYNC_FILE_RANGE_WRITE;
    if (sync_file_range(fd, (off_t)offset, (off_t)n, flags) == 0) return 0;
    /* Not every file system has it; it is a matter of pace only. */
    return errno == ENOSYS || errno == EINVAL || errno == ESPIPE ? 0 : failure();
}

static int real_forget(void *disk, int fd)
{
    (void)disk;
    int error = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (error == 0) error = posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    return error == 0 ? 0 : -error;
}

static const wd_io REAL = {
    .disk = NULL,
    .open = real_open,
    .close = real_close,
    .pread = real_pread,
    .pwrite = real_pwrite,
    .datasync = real_datasync,
    .dirsync = real_dirsync,
    .rename = real_rename,
    .unlink = real_unlink,
    .allocate = real_allocate,
    .now_ns = real_now_ns,
    .writeback = real_writeback,
    .forget = real_forget,
};

const wd_io *wd_io_real(void)
{
    return &REAL;
}

int64_t wd_io_fs_magic(const char *path)
{
    WD_ASSERT(path != NULL);
    struct statfs s;
    if (statfs(path, &s) != 0) return failure();
    /* The kernel's magic numbers are 32 bits; some C libraries sign-extend them. */
    return (int64_t)(uint32_t)s.f_type;
}
