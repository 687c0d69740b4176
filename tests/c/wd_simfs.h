/* wd_simfs.h -- a simulated disk behind the core's table of file calls (wd_io), for tests.
 *
 * Files live in memory twice: as a process sees them, and as they are on the device. A write goes
 * to the first; a sync copies the written 512-byte sectors to the second. A name that was made,
 * renamed or removed is on the device when its folder was synced. A crash keeps or loses each
 * sector and each name operation that was not synced, by a seed, in any combination; then the
 * device is what is left.
 */
#ifndef WD_SIMFS_H
#define WD_SIMFS_H

#include "wd_io.h"

/* cffi: begin */
typedef struct wd_simfs wd_simfs;

enum wd_sim_call {
    SIM_ANY = 0,
    SIM_OPEN = 1,
    SIM_PWRITE = 2,
    SIM_DATASYNC = 3,
    SIM_DIRSYNC = 4,
    SIM_RENAME = 5,
    SIM_UNLINK = 6,
    SIM_ALLOCATE = 7,
    SIM_MKDIR = 8,
    SIM_PREAD = 9,
    SIM_TRUNCATE = 10
};

enum wd_sim_fault {
    SIM_FAIL = 0,  /* the call returns the error; a failed sync leaves the pages clean and lost */
    SIM_LIE = 1,   /* a sync returns 0 and does nothing, now or later */
    SIM_SHORT = 2, /* a write takes half of its bytes */
    SIM_DROP = 3,  /* a sync returns 0 and leaves one sector out, for ever */
    SIM_MISDIRECT = 4 /* a write lands some sectors away, and returns what was asked for */
};

typedef struct {
    int call; /* enum wd_sim_call */
    char path[96];
    int64_t offset;
    int64_t bytes;
    int64_t result;
} wd_sim_trace;

typedef void (*wd_sim_hook)(void);

wd_simfs *wd_simfs_new(uint64_t seed);
wd_simfs *wd_simfs_clone(const wd_simfs *fs); /* without its open files, faults, hook and trace */
void wd_simfs_free(wd_simfs *fs);
const wd_io *wd_simfs_io(wd_simfs *fs);

/* The calls of wd_io, and those that only Python makes. Results as in wd_io. */
int wd_simfs_open(wd_simfs *fs, const char *path, int flags);
int wd_simfs_close(wd_simfs *fs, int fd);
int64_t wd_simfs_size(wd_simfs *fs, int fd);
int64_t wd_simfs_pread(wd_simfs *fs, int fd, void *p, size_t n, int64_t offset);
int64_t wd_simfs_pwrite(wd_simfs *fs, int fd, const void *p, size_t n, int64_t offset);
int wd_simfs_truncate(wd_simfs *fs, int fd, int64_t size_bytes);
int wd_simfs_datasync(wd_simfs *fs, int fd);
int wd_simfs_dirsync(wd_simfs *fs, const char *folder);
int wd_simfs_rename(wd_simfs *fs, const char *from, const char *to);
int wd_simfs_unlink(wd_simfs *fs, const char *path);
int wd_simfs_mkdir(wd_simfs *fs, const char *path);
int wd_simfs_drop_cache(wd_simfs *fs, int fd);
int wd_simfs_is_folder(wd_simfs *fs, const char *path); /* 1, 0 = a file, -ENOENT */
/* The i-th name of all, as a process sees them: its path, or NULL when i is too big. */
const char *wd_simfs_path(const wd_simfs *fs, int i);
/* The names in a folder, each with a '/' behind it; returns their bytes. room must do. */
size_t wd_simfs_names(const wd_simfs *fs, const char *folder, char *out, size_t room);

/* Steps are the calls that change something. After `steps` of them the power is off: each later
 * call fails and changes nothing. 0 = never. */
void wd_simfs_power_off_after(wd_simfs *fs, uint64_t steps);
uint64_t wd_simfs_steps(const wd_simfs *fs);
/* Before each step hook is called, which may clone the disk; NULL = none. */
void wd_simfs_before_steps(wd_simfs *fs, wd_sim_hook hook);
/* The nth call (1..) of this kind from now fails, lies or is short. */
void wd_simfs_fault(wd_simfs *fs, int call, uint64_t nth, int fault, int error);
/* No room: what makes or grows a file fails with ENOSPC until it is 0 again. */
void wd_simfs_set_full(wd_simfs *fs, int full);
/* 1 when the armed fault has happened. */
int wd_simfs_fault_done(const wd_simfs *fs);

/* Power cut: what was not synced is kept or lost by the seed (0: all lost, 1: all kept, 2: only
 * data kept, 3: only names kept, else any mixture). Power is on again, all descriptors are gone. */
void wd_simfs_crash(wd_simfs *fs, uint64_t seed);

/* How many effects no sync covers yet: dirty sectors, lengths, operations on names. */
int wd_simfs_pending(const wd_simfs *fs);
/* Power cut that keeps the i-th of them if bit i of mask is set; behind the 64th the seed decides.
 */
void wd_simfs_crash_with(wd_simfs *fs, uint64_t mask, uint64_t seed);
/* Of all names, lengths and contents, as a process sees them. */
uint64_t wd_simfs_digest(const wd_simfs *fs);

/* Damage, not traced: overwrite on the device and in the cache; set the length. */
int wd_simfs_poke(wd_simfs *fs, const char *path, const void *p, size_t n, int64_t offset);
int wd_simfs_resize(wd_simfs *fs, const char *path, int64_t size_bytes);

/* The calls so far: the i-th of them, 0 when i is too big (or more than the trace holds). */
int wd_simfs_trace(const wd_simfs *fs, uint64_t i, wd_sim_trace *out);
/* cffi: end */

#endif /* WD_SIMFS_H */
