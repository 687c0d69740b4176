/* slow_read.c -- LD_PRELOAD: reads of 64 KiB and more take SLOW_READ_MS longer.
 *
 * A slow disk, for one process: a replay that lasts long enough to be looked at.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LARGE_BYTES = 64 * 1024, NS_PER_MS = 1000000 };

static void be_slow(size_t size)
{
    const char *ms = getenv("SLOW_READ_MS");
    if (!ms || size < LARGE_BYTES) return;
    struct timespec pause = {.tv_nsec = strtol(ms, NULL, 10) * NS_PER_MS};
    nanosleep(&pause, NULL);
}

ssize_t pread64(int fd, void *p, size_t size, off64_t offset)
{
    ssize_t (*next)(int, void *, size_t, off64_t) =
        (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    be_slow(size);
    return next(fd, p, size, offset);
}

ssize_t pread(int fd, void *p, size_t size, off_t offset)
{
    return pread64(fd, p, size, offset);
}
