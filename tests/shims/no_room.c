/* no_room.c -- LD_PRELOAD: while the file named by NO_ROOM_WHEN is there, a file that is being made
 * (*.tmp) gets no room: pwrite and fallocate say ENOSPC. What is written into files that have their
 * room already goes on, as on a full disk. NO_ROOM_ERROR is another error number, such as EROFS.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int refused(int fd, off_t end)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && end <= st.st_blocks * 512) return 0; /* it has that room */
    const char *when = getenv("NO_ROOM_WHEN"), *error = getenv("NO_ROOM_ERROR");
    if (!when || access(when, F_OK) != 0) return 0;
    char link[64], path[1024];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 4 || strncmp(path + n - 4, ".tmp", 4) != 0) return 0;
    errno = error ? atoi(error) : ENOSPC;
    return 1;
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t offset)
{
    ssize_t (*next)(int, const void *, size_t, off_t) =
        (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    return refused(fd, offset + (off_t)n) ? -1 : next(fd, p, n, offset);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t offset)
{
    ssize_t (*next)(int, const void *, size_t, off64_t) =
        (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    return refused(fd, offset + (off_t)n) ? -1 : next(fd, p, n, offset);
}

int fallocate(int fd, int mode, off_t offset, off_t n)
{
    int (*next)(int, int, off_t, off_t) =
        (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, "fallocate");
    return refused(fd, offset + n) ? -1 : next(fd, mode, offset, n);
}
