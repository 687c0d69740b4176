/* slow_sync.c -- LD_PRELOAD: fdatasync takes SLOW_SYNC_MS longer while the file named by
 * SLOW_SYNC_WHEN is there.
 *
 * A disk that stops for a while and goes on, for one process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int fdatasync(int fd)
{
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    const char *when = getenv("SLOW_SYNC_WHEN"), *ms = getenv("SLOW_SYNC_MS");
    if (when && ms && access(when, F_OK) == 0) {
        long wait_ms = strtol(ms, NULL, 10);
        struct timespec pause = {.tv_sec = wait_ms / 1000, .tv_nsec = wait_ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    return next(fd);
}
