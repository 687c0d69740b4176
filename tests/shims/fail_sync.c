/* fail_sync.c -- LD_PRELOAD: fdatasync says EIO once the file named by FAIL_SYNC_WHEN is there.
 *
 * The disk that stops taking data, for one process, without root and without a device mapper.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int fd)
{
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    const char *when = getenv("FAIL_SYNC_WHEN");
    if (when && access(when, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    return next(fd);
}
