/* network_fs.c -- LD_PRELOAD: every file system says that it is NFS.
 *
 * What no machine of a test has, for one process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/vfs.h>

enum { NFS_MAGIC = 0x6969 };

int statfs64(const char *path, struct statfs64 *found)
{
    int (*next)(const char *, struct statfs64 *) =
        (int (*)(const char *, struct statfs64 *))dlsym(RTLD_NEXT, "statfs64");
    int result = next(path, found);
    found->f_type = NFS_MAGIC;
    return result;
}

int statfs(const char *path, struct statfs *found)
{
    int (*next)(const char *, struct statfs *) =
        (int (*)(const char *, struct statfs *))dlsym(RTLD_NEXT, "statfs");
    int result = next(path, found);
    found->f_type = NFS_MAGIC;
    return result;
}
