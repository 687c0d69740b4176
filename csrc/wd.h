/* wd.h -- status codes of the C core. Each module's public part stands in the module's own header
 * between "cffi: begin" and "cffi: end"; csrc/build_ffi.py hands those blocks to cffi as they are,
 * so each prototype is written once. Keep them free of the preprocessor.
 */
#ifndef WD_H
#define WD_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */
enum wd_status {
    WD_OK = 0,
    WD_ENOMEM = -1,   /* no memory; nothing changed */
    WD_EINVAL = -2,   /* an argument is outside its documented range */
    WD_EIO = -3,      /* a file call failed; see the log's error fields */
    WD_EFULL = -4,    /* a table or the disk has no room */
    WD_ECORRUPT = -5, /* bytes that cannot be what was written */
    WD_EAGAIN = -6,   /* not now */
    WD_EGONE = -7,    /* the thing named does not exist (any more) */
    WD_ELIMIT = -8    /* a named limit was passed */
};

/* One sentence fragment for a status, static storage. */
const char *wd_strerror(int status);

/* Tests only: let the n-th allocation from now fail once (0 = never). Returns how many
 * allocations the core made since the last call. */
uint64_t wd_alloc_fail_at(uint64_t n);
/* cffi: end */

#endif /* WD_H */
