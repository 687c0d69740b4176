/* wd_file.c -- whole writes and files of zeros.
 *
 * Nothing here takes memory: a rotation must not fail for the lack of it. Filling goes in slices
 * with a sync every few of them, so that the sync of a commit that comes meanwhile never waits
 * behind a whole segment of dirty pages.
 */
#define _GNU_SOURCE
#include "wd_file.h"

#include <errno.h>
#include <fcntl.h>

enum { FILE_MODE = 0600 };
enum { SLICE_BYTES = 1 << 16, SLICES_PER_SYNC = 128 };

int wd_file_write(const wd_io *io, int fd, wd_span bytes, wd_file_fault *fault)
{
    WD_ASSERT(fd >= 0);
    WD_ASSERT(bytes.n > 0);
    int64_t offset = fault->offset;
    size_t done = 0;
    while (done < bytes.n) {
        int64_t at = offset + (int64_t)done;
        int64_t put = io->pwrite(io->disk, fd, bytes.p + done, bytes.n - done, at);
        if (put <= 0) {
            *fault = (wd_file_fault){"pwrite", fault->path, at, put};
            return WD_EIO;
        }
        WD_ASSERT((size_t)put <= bytes.n - done);
        done += (size_t)put;
    }
    return WD_OK;
}

static int sync_filled(const wd_io *io, int fd, wd_file_fault *fault)
{
    int result = io->datasync(io->disk, fd);
    if (result >= 0) return WD_OK;
    *fault = (wd_file_fault){"datasync", fault->path, 0, result};
    return WD_EIO;
}

static int write_zeros(const wd_io *io, int fd, uint64_t size_bytes, wd_file_fault *fault)
{
    static const uint8_t ZEROS[SLICE_BYTES];
    int status = WD_OK;
    unsigned slices = 0;
    for (uint64_t at = 0; at < size_bytes && status == WD_OK; at += SLICE_BYTES) {
        size_t k = size_bytes - at < SLICE_BYTES ? (size_t)(size_bytes - at) : SLICE_BYTES;
        fault->offset = (int64_t)at;
        status = wd_file_write(io, fd, (wd_span){ZEROS, k}, fault);
        int pause = ++slices % SLICES_PER_SYNC == 0 && at + k < size_bytes;
        if (status == WD_OK && pause) status = sync_filled(io, fd, fault);
    }
    return status;
}

int wd_file_fill(const wd_io *io, int fd, uint64_t size_bytes, int allocate_only,
                 wd_file_fault *fault)
{
    WD_ASSERT(fd >= 0);
    WD_ASSERT(size_bytes > 0);
    int status = WD_OK;
    if (allocate_only) {
        int result = io->allocate(io->disk, fd, (int64_t)size_bytes);
        if (result < 0) {
            *fault = (wd_file_fault){"allocate", fault->path, 0, result};
            status = WD_EIO;
        }
    } else {
        status = write_zeros(io, fd, size_bytes, fault);
    }
    return status == WD_OK ? sync_filled(io, fd, fault) : status;
}

int wd_file_make(const wd_io *io, uint64_t size_bytes, int allocate_only, int *out_fd,
                 wd_file_fault *fault)
{
    const char *path = fault->path;
    WD_ASSERT(path != NULL);
    int result = io->unlink(io->disk, path);
    if (result < 0 && result != -ENOENT) {
        *fault = (wd_file_fault){"unlink", path, 0, result};
        return WD_EIO;
    }
    int fd = io->open(io->disk, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
    if (fd < 0) {
        *fault = (wd_file_fault){"open", path, 0, fd};
        return WD_EIO;
    }
    int status = wd_file_fill(io, fd, size_bytes, allocate_only, fault);
    if (status == WD_OK) {
        *out_fd = fd;
        return WD_OK;
    }
    (void)io->close(io->disk, fd);
    (void)io->unlink(io->disk, path);
    return status;
}
