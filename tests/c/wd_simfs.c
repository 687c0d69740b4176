/* wd_simfs.c -- the simulated disk. wd_simfs.h has the model.
 *
 * What it is strict about, because some file system is: a file's data and its name are durable
 * apart from each other; names in a folder reach the device in any order until the folder is
 * synced; a failed sync leaves pages that read back from the cache and are not on the device, and
 * the next sync reports success. What it grants: a sector of 512 bytes is written whole, and a
 * rename is one thing.
 */
#include "wd_simfs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    SECTOR = 512,
    INODES = 1024,
    NAMES = 256,
    OPS = 2048, /* at most; room for these and the trace is made as it is needed */
    FDS = 256,
    TRACES = 8192,
    FIRST_ROOM = 32,
    PATH = 96,
    FD_BASE = 100
};

typedef struct {
    int used, folder;
    uint8_t *now, *disk; /* cap bytes each */
    uint8_t *dirty;      /* one byte for each sector */
    size_t cap;
    int64_t now_size, disk_size;
} inode;

typedef struct {
    char path[PATH];
    int inode; /* -1 = free */
} name;

/* A name operation that is not durable: `from` goes away (if any), `to` names inode (if any). */
typedef struct {
    char from[PATH], to[PATH];
    int inode;
} operation;

/* What a log under test holds: it may outlive its disk (the garbage collector of the tests frees in
 * any order), so doors are few bytes and are never freed. Behind a closed one every call fails. */
typedef struct {
    wd_io io;
    wd_simfs *fs; /* NULL: closed */
} door;

struct wd_simfs {
    door *door;
    uint64_t rng;
    inode inodes[INODES];
    name now[NAMES], disk[NAMES];
    operation *ops;
    int ops_n, ops_room;
    int fds[FDS]; /* inode, -1 = free */
    uint64_t steps, power_off_after;
    int fault_call, fault_kind, fault_error, fault_done;
    uint64_t fault_nth;
    int full;
    int chosen; /* -1: a crash draws; else the number of the next effect that `mask` decides on */
    uint64_t mask;
    wd_sim_trace *trace;
    uint64_t calls, trace_room;
    wd_sim_hook hook; /* NULL = none */
};

static void *more_room(void *p, size_t bytes)
{
    void *more = realloc(p, bytes);
    WD_ASSERT(more != NULL);
    return more;
}

static uint64_t draw(wd_simfs *fs)
{
    uint64_t z = (fs->rng += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* ---- names ---- */

static int find_name(const name *table, const char *path)
{
    for (int i = 0; i < NAMES; i++) {
        if (table[i].inode >= 0 && strcmp(table[i].path, path) == 0) return i;
    }
    return -1;
}

static void set_name(name *table, const char *path, int node)
{
    int i = find_name(table, path);
    for (int k = 0; i < 0 && k < NAMES; k++) {
        if (table[k].inode < 0) i = k;
    }
    WD_ASSERT(i >= 0);
    (void)snprintf(table[i].path, PATH, "%s", path);
    table[i].inode = node;
}

static void drop_name(name *table, const char *path)
{
    int i = find_name(table, path);
    if (i >= 0) table[i].inode = -1;
}

static int in_folder(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    if (n == 1) n = 0; /* the root's own slash */
    return strncmp(path, folder, n) == 0 && path[n] == '/' && !strchr(path + n + 1, '/');
}

static int parent_exists(const name *table, const char *path)
{
    char folder[PATH];
    (void)snprintf(folder, PATH, "%s", path);
    char *slash = strrchr(folder, '/');
    WD_ASSERT(slash != NULL);
    if (slash == folder) return 1;
    *slash = 0;
    return find_name(table, folder) >= 0;
}

static void note_operation(wd_simfs *fs, const char *from, const char *to, int node)
{
    WD_ASSERT(fs->ops_n < OPS);
    if (fs->ops_n == fs->ops_room) {
        fs->ops_room = fs->ops_room ? fs->ops_room * 2 : FIRST_ROOM;
        fs->ops = more_room(fs->ops, (size_t)fs->ops_room * sizeof *fs->ops);
    }
    operation *o = &fs->ops[fs->ops_n++];
    (void)snprintf(o->from, PATH, "%s", from ? from : "");
    (void)snprintf(o->to, PATH, "%s", to ? to : "");
    o->inode = node;
}

static void apply_operation(wd_simfs *fs, const operation *o)
{
    if (o->from[0]) drop_name(fs->disk, o->from);
    if (o->to[0]) set_name(fs->disk, o->to, o->inode);
}

/* ---- contents ---- */

static void grow(inode *f, int64_t size)
{
    if ((size_t)size <= f->cap) return;
    size_t cap = f->cap ? f->cap : 4096;
    while (cap < (size_t)size) {
        cap *= 2;
    }
    uint8_t *now = calloc(1, cap), *disk = calloc(1, cap), *dirty = calloc(1, cap / SECTOR);
    WD_ASSERT(now && disk && dirty);
    if (f->cap) {
        memcpy(now, f->now, f->cap);
        memcpy(disk, f->disk, f->cap);
        memcpy(dirty, f->dirty, f->cap / SECTOR);
    }
    free(f->now);
    free(f->disk);
    free(f->dirty);
    f->now = now;
    f->disk = disk;
    f->dirty = dirty;
    f->cap = cap;
}

static int new_inode(wd_simfs *fs, int folder)
{
    for (int i = 0; i < INODES; i++) {
        if (fs->inodes[i].used) continue;
        fs->inodes[i] = (inode){.used = 1, .folder = folder};
        return i;
    }
    WD_ASSERT(!"the simulated disk has no inode left");
    return -1;
}

static void release_inode(inode *f)
{
    free(f->now);
    free(f->disk);
    free(f->dirty);
    *f = (inode){0};
}

static void write_back(inode *f, size_t sector)
{
    memcpy(f->disk + sector * SECTOR, f->now + sector * SECTOR, SECTOR);
}

/* The length as a process sees it reaches the device; what it cuts off is gone there too. */
static void set_device_size(inode *f)
{
    if (f->now_size < f->disk_size) {
        memset(f->disk + f->now_size, 0, f->cap - (size_t)f->now_size);
    }
    f->disk_size = f->now_size;
}

/* ---- each call's beginning and end ---- */

static int begin(wd_simfs *fs, int call, int step)
{
    if (step && fs->hook) fs->hook();
    if (step) fs->steps++;
    if (fs->power_off_after && fs->steps > fs->power_off_after) return -EIO;
    if (fs->fault_nth && (fs->fault_call == call || fs->fault_call == SIM_ANY)) {
        if (--fs->fault_nth == 0) {
            fs->fault_done = 1;
            if (fs->fault_kind == SIM_FAIL) return -fs->fault_error;
        }
    }
    return 0;
}

/* Whether this very call is to lie or to be short. */
static int struck(const wd_simfs *fs, int kind, uint64_t before)
{
    return fs->fault_kind == kind && before == 1 && fs->fault_nth == 0;
}

static int64_t end(wd_simfs *fs, wd_sim_trace t, const char *path)
{
    uint64_t at = fs->calls++;
    if (at < TRACES) {
        if (at == fs->trace_room) {
            fs->trace_room = at ? at * 2 : FIRST_ROOM;
            fs->trace = more_room(fs->trace, (size_t)fs->trace_room * sizeof *fs->trace);
        }
        (void)snprintf(t.path, sizeof t.path, "%s", path);
        fs->trace[at] = t;
    }
    return t.result;
}

static inode *file_of(wd_simfs *fs, int fd)
{
    if (fd < FD_BASE || fd >= FD_BASE + FDS || fs->fds[fd - FD_BASE] < 0) return NULL;
    return &fs->inodes[fs->fds[fd - FD_BASE]];
}

/* Any path of the file, for the trace. */
static const char *path_of(const wd_simfs *fs, int fd)
{
    for (int i = 0; i < NAMES; i++) {
        if (fs->now[i].inode >= 0 && fs->now[i].inode == fs->fds[fd - FD_BASE]) {
            return fs->now[i].path;
        }
    }
    return "(no name)";
}

/* ---- the calls ---- */

static int64_t open_file(wd_simfs *fs, const char *path, int flags)
{
    int i = find_name(fs->now, path);
    if (i >= 0 && (flags & O_CREAT) && (flags & O_EXCL)) return -EEXIST;
    if (i < 0 && !(flags & O_CREAT)) return -ENOENT;
    if (i < 0 && !parent_exists(fs->now, path)) return -ENOENT;
    if (i < 0) {
        int node = new_inode(fs, 0);
        set_name(fs->now, path, node);
        note_operation(fs, NULL, path, node);
        i = find_name(fs->now, path);
    }
    if (fs->inodes[fs->now[i].inode].folder) return -EISDIR;
    for (int k = 0; k < FDS; k++) {
        if (fs->fds[k] >= 0) continue;
        fs->fds[k] = fs->now[i].inode;
        return FD_BASE + k;
    }
    return -EMFILE;
}

int wd_simfs_open(wd_simfs *fs, const char *path, int flags)
{
    int makes = (flags & O_CREAT) && find_name(fs->now, path) < 0;
    int error = begin(fs, SIM_OPEN, makes);
    if (!error && makes && fs->full) error = -ENOSPC;
    int64_t result = error ? error : open_file(fs, path, flags);
    return (int)end(fs, (wd_sim_trace){.call = SIM_OPEN, .result = result}, path);
}

int wd_simfs_close(wd_simfs *fs, int fd)
{
    if (!file_of(fs, fd)) return -EBADF;
    fs->fds[fd - FD_BASE] = -1;
    return 0;
}

int64_t wd_simfs_size(wd_simfs *fs, int fd)
{
    inode *f = file_of(fs, fd);
    return f ? f->now_size : -EBADF;
}

int64_t wd_simfs_pread(wd_simfs *fs, int fd, void *p, size_t n, int64_t offset)
{
    int error = begin(fs, SIM_PREAD, 0);
    inode *f = file_of(fs, fd);
    if (error) return error;
    if (!f) return -EBADF;
    if (offset >= f->now_size) return 0;
    if ((int64_t)n > f->now_size - offset) n = (size_t)(f->now_size - offset);
    memcpy(p, f->now + offset, n);
    return (int64_t)n;
}

static void put(wd_simfs *fs, inode *f, const uint8_t *p, size_t n, int64_t offset)
{
    grow(f, offset + (int64_t)n);
    size_t first = (size_t)offset / SECTOR, last = ((size_t)offset + n - 1) / SECTOR;
    for (size_t s = first; s <= last; s++) {
        /* The kernel may have written an older state of a dirty sector meanwhile. */
        if (f->dirty[s] && draw(fs) % 4 == 0) write_back(f, s);
        f->dirty[s] = 1;
    }
    memcpy(f->now + offset, p, n);
    if (offset + (int64_t)n > f->now_size) f->now_size = offset + (int64_t)n;
}

/* A short write ends where a block does. */
static size_t short_bytes(size_t n, int64_t offset)
{
    int64_t end = (offset + (int64_t)n / 2 + SECTOR - 1) / SECTOR * SECTOR;
    return end > offset && end - offset < (int64_t)n ? (size_t)(end - offset) : n;
}

/* Where a write that goes astray lands: some sectors on, or back where the file ends. */
static int64_t astray(wd_simfs *fs, const inode *f, size_t n, int64_t offset)
{
    int64_t by = SECTOR * (int64_t)(1 + draw(fs) % 8);
    if (offset + by + (int64_t)n <= f->now_size) return offset + by;
    return offset > by ? offset - by : offset;
}

int64_t wd_simfs_pwrite(wd_simfs *fs, int fd, const void *p, size_t n, int64_t offset)
{
    uint64_t before = fs->fault_call == SIM_PWRITE ? fs->fault_nth : 0;
    int error = begin(fs, SIM_PWRITE, 1);
    inode *f = file_of(fs, fd);
    WD_ASSERT(n > 0);
    if (!f) return -EBADF;
    if (!error && struck(fs, SIM_SHORT, before)) n = short_bytes(n, offset);
    if (!error && fs->full && offset + (int64_t)n > f->now_size) error = -ENOSPC;
    int stray = !error && struck(fs, SIM_MISDIRECT, before);
    if (!error) put(fs, f, p, n, stray ? astray(fs, f, n, offset) : offset);
    wd_sim_trace t = {.call = SIM_PWRITE, .offset = offset, .bytes = (int64_t)n};
    t.result = error ? error : (int64_t)n;
    return end(fs, t, path_of(fs, fd));
}

/* One of the sectors that a sync is to write. */
static size_t some_dirty(wd_simfs *fs, const inode *f)
{
    size_t found = SIZE_MAX, seen = 0;
    for (size_t s = 0; s < f->cap / SECTOR; s++) {
        if (f->dirty[s] && draw(fs) % ++seen == 0) found = s;
    }
    return found;
}

/* The length is durable with the next sync, as sectors are; what was cut off reads as zero should
 * the file grow again. */
int wd_simfs_truncate(wd_simfs *fs, int fd, int64_t size_bytes)
{
    int error = begin(fs, SIM_TRUNCATE, 1);
    inode *f = file_of(fs, fd);
    if (!f) return -EBADF;
    if (!error) {
        grow(f, size_bytes);
        memset(f->now + size_bytes, 0, f->cap - (size_t)size_bytes);
        f->now_size = size_bytes;
    }
    wd_sim_trace t = {.call = SIM_TRUNCATE, .bytes = size_bytes, .result = error};
    return (int)end(fs, t, path_of(fs, fd));
}

int wd_simfs_datasync(wd_simfs *fs, int fd)
{
    uint64_t before = fs->fault_call == SIM_DATASYNC ? fs->fault_nth : 0;
    int error = begin(fs, SIM_DATASYNC, 1);
    inode *f = file_of(fs, fd);
    if (!f) return -EBADF;
    int off = fs->power_off_after && fs->steps > fs->power_off_after;
    int works = !error && !struck(fs, SIM_LIE, before);
    size_t left_out = struck(fs, SIM_DROP, before) ? some_dirty(fs, f) : SIZE_MAX;
    for (size_t s = 0; s < f->cap / SECTOR && !off; s++) {
        if (f->dirty[s] && works && s != left_out) write_back(f, s);
        f->dirty[s] = 0; /* of a failed sync too: that is what kernels do */
    }
    if (works) set_device_size(f);
    wd_sim_trace t = {.call = SIM_DATASYNC, .result = error};
    return (int)end(fs, t, path_of(fs, fd));
}

int wd_simfs_dirsync(wd_simfs *fs, const char *folder)
{
    int error = begin(fs, SIM_DIRSYNC, 1);
    int kept = 0;
    for (int i = 0; i < fs->ops_n && !error; i++) {
        const operation *o = &fs->ops[i];
        if (in_folder(o->to[0] ? o->to : o->from, folder)) {
            apply_operation(fs, o);
        } else {
            fs->ops[kept++] = *o;
        }
    }
    if (!error) fs->ops_n = kept;
    return (int)end(fs, (wd_sim_trace){.call = SIM_DIRSYNC, .result = error}, folder);
}

int wd_simfs_rename(wd_simfs *fs, const char *from, const char *to)
{
    int64_t result = begin(fs, SIM_RENAME, 1);
    int i = find_name(fs->now, from);
    if (!result && i < 0) result = -ENOENT;
    if (!result) {
        int node = fs->now[i].inode;
        drop_name(fs->now, from);
        set_name(fs->now, to, node);
        note_operation(fs, from, to, node);
    }
    return (int)end(fs, (wd_sim_trace){.call = SIM_RENAME, .result = result}, to);
}

int wd_simfs_unlink(wd_simfs *fs, const char *path)
{
    int there = find_name(fs->now, path) >= 0;
    int64_t result = begin(fs, SIM_UNLINK, there);
    if (!result && !there) result = -ENOENT;
    if (!result) {
        drop_name(fs->now, path);
        note_operation(fs, path, NULL, -1);
    }
    return (int)end(fs, (wd_sim_trace){.call = SIM_UNLINK, .result = result}, path);
}

int wd_simfs_mkdir(wd_simfs *fs, const char *path)
{
    int64_t result = begin(fs, SIM_MKDIR, 1);
    if (!result && find_name(fs->now, path) >= 0) result = -EEXIST;
    if (!result && !parent_exists(fs->now, path)) result = -ENOENT;
    if (!result) {
        int node = new_inode(fs, 1);
        set_name(fs->now, path, node);
        note_operation(fs, NULL, path, node);
    }
    return (int)end(fs, (wd_sim_trace){.call = SIM_MKDIR, .result = result}, path);
}

int wd_simfs_drop_cache(wd_simfs *fs, int fd)
{
    inode *f = file_of(fs, fd);
    if (!f) return -EBADF;
    for (size_t s = 0; s < f->cap / SECTOR; s++) {
        if (!f->dirty[s]) memcpy(f->now + s * SECTOR, f->disk + s * SECTOR, SECTOR);
    }
    return 0;
}

int wd_simfs_is_folder(wd_simfs *fs, const char *path)
{
    if (strcmp(path, "/") == 0) return 1;
    int i = find_name(fs->now, path);
    return i < 0 ? -ENOENT : fs->inodes[fs->now[i].inode].folder;
}

const char *wd_simfs_path(const wd_simfs *fs, int i)
{
    for (int k = 0; k < NAMES; k++) {
        if (fs->now[k].inode >= 0 && i-- == 0) return fs->now[k].path;
    }
    return NULL;
}

size_t wd_simfs_names(const wd_simfs *fs, const char *folder, char *out, size_t room)
{
    size_t used = 0;
    for (int k = 0; k < NAMES; k++) {
        if (fs->now[k].inode < 0 || !in_folder(fs->now[k].path, folder)) continue;
        const char *last = strrchr(fs->now[k].path, '/') + 1;
        size_t n = strlen(last);
        WD_ASSERT(used + n + 1 <= room);
        memcpy(out + used, last, n);
        out[used + n] = '/';
        used += n + 1;
    }
    return used;
}

/* ---- faults, crash, damage, trace ---- */

void wd_simfs_power_off_after(wd_simfs *fs, uint64_t steps)
{
    fs->power_off_after = steps ? fs->steps + steps : 0;
}

uint64_t wd_simfs_steps(const wd_simfs *fs)
{
    return fs->steps;
}

void wd_simfs_before_steps(wd_simfs *fs, wd_sim_hook hook)
{
    fs->hook = hook;
}

void wd_simfs_fault(wd_simfs *fs, int call, uint64_t nth, int fault, int error)
{
    fs->fault_call = call;
    fs->fault_nth = nth;
    fs->fault_kind = fault;
    fs->fault_error = error;
    fs->fault_done = 0;
}

void wd_simfs_set_full(wd_simfs *fs, int full)
{
    fs->full = full;
}

int wd_simfs_fault_done(const wd_simfs *fs)
{
    return fs->fault_done;
}

/* Does the next effect survive? */
static int keeps(wd_simfs *fs, unsigned keep_percent)
{
    if (fs->chosen < 0) return draw(fs) % 100 < keep_percent;
    int i = fs->chosen++;
    return i < 64 ? (int)(fs->mask >> i & 1) : (int)(draw(fs) & 1);
}

static void crash_file(wd_simfs *fs, inode *f, unsigned keep_percent)
{
    for (size_t s = 0; s < f->cap / SECTOR; s++) {
        if (f->dirty[s] && keeps(fs, keep_percent)) write_back(f, s);
        f->dirty[s] = 0;
    }
    if (f->now_size != f->disk_size && keeps(fs, keep_percent)) f->disk_size = f->now_size;
    if (f->cap) {
        size_t size = (size_t)f->disk_size;
        memset(f->disk + size, 0, f->cap - size);
        memcpy(f->now, f->disk, f->cap);
    }
    f->now_size = f->disk_size;
}

static void crash_names(wd_simfs *fs, unsigned keep_percent)
{
    for (int i = 0; i < fs->ops_n; i++) {
        if (keeps(fs, keep_percent)) apply_operation(fs, &fs->ops[i]);
    }
    fs->ops_n = 0;
    for (int went = 1; went;) { /* a folder that is gone takes what is below it */
        went = 0;
        for (int i = 0; i < NAMES; i++) {
            name *n = &fs->disk[i];
            if (n->inode < 0 || parent_exists(fs->disk, n->path)) continue;
            n->inode = -1;
            went = 1;
        }
    }
    memcpy(fs->now, fs->disk, sizeof fs->now);
    int named[INODES] = {0};
    for (int i = 0; i < NAMES; i++) {
        if (fs->now[i].inode >= 0) named[fs->now[i].inode] = 1;
    }
    for (int i = 0; i < INODES; i++) {
        if (fs->inodes[i].used && !named[i]) release_inode(&fs->inodes[i]);
    }
}

static void crash(wd_simfs *fs, uint64_t seed)
{
    static const unsigned DATA[4] = {0, 100, 100, 0}, DIRS[4] = {0, 100, 0, 100};
    fs->rng = seed;
    for (int i = 0; i < INODES; i++) {
        unsigned mixed = (unsigned)(draw(fs) % 101);
        if (fs->inodes[i].used) crash_file(fs, &fs->inodes[i], seed < 4 ? DATA[seed] : mixed);
    }
    crash_names(fs, seed < 4 ? DIRS[seed] : (unsigned)(draw(fs) % 101));
    for (int i = 0; i < FDS; i++) {
        fs->fds[i] = -1;
    }
    fs->power_off_after = fs->fault_nth = 0;
    fs->full = 0;
}

void wd_simfs_crash(wd_simfs *fs, uint64_t seed)
{
    fs->chosen = -1;
    crash(fs, seed);
}

int wd_simfs_pending(const wd_simfs *fs)
{
    int pending = fs->ops_n;
    for (int i = 0; i < INODES; i++) {
        const inode *f = &fs->inodes[i];
        pending += f->used && f->now_size != f->disk_size;
        for (size_t s = 0; f->used && s < f->cap / SECTOR; s++)
            pending += f->dirty[s];
    }
    return pending;
}

void wd_simfs_crash_with(wd_simfs *fs, uint64_t mask, uint64_t seed)
{
    fs->chosen = 0;
    fs->mask = mask;
    crash(fs, seed);
}

static uint64_t mix(uint64_t h, const uint8_t *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8)
        h = (h ^ wd_get_u64(p)) * UINT64_C(0x9e3779b97f4a7c15), h ^= h >> 29;
    for (; n > 0; n--, p++)
        h = (h ^ *p) * UINT64_C(0x100000001b3);
    return h;
}

uint64_t wd_simfs_digest(const wd_simfs *fs)
{
    uint64_t all = 0;
    for (int i = 0; i < NAMES; i++) {
        if (fs->now[i].inode < 0) continue;
        const inode *f = &fs->inodes[fs->now[i].inode];
        uint64_t h = mix(1, (const uint8_t *)fs->now[i].path, strlen(fs->now[i].path));
        h = mix(h ^ (uint64_t)f->now_size, f->now, (size_t)f->now_size);
        all += h ^ h >> 32;
    }
    return all;
}

int wd_simfs_poke(wd_simfs *fs, const char *path, const void *p, size_t n, int64_t offset)
{
    int i = find_name(fs->now, path);
    if (i < 0) return -ENOENT;
    inode *f = &fs->inodes[fs->now[i].inode];
    if (offset + (int64_t)n > f->now_size) return -EINVAL;
    memcpy(f->now + offset, p, n);
    memcpy(f->disk + offset, p, n);
    return 0;
}

int wd_simfs_resize(wd_simfs *fs, const char *path, int64_t size_bytes)
{
    int i = find_name(fs->now, path);
    if (i < 0) return -ENOENT;
    inode *f = &fs->inodes[fs->now[i].inode];
    grow(f, size_bytes);
    if (size_bytes < f->now_size) {
        memset(f->now + size_bytes, 0, f->cap - (size_t)size_bytes);
        memset(f->disk + size_bytes, 0, f->cap - (size_t)size_bytes);
    }
    f->now_size = f->disk_size = size_bytes;
    return 0;
}

int wd_simfs_trace(const wd_simfs *fs, uint64_t i, wd_sim_trace *out)
{
    if (i >= fs->calls || i >= TRACES) return 0;
    *out = fs->trace[i];
    return 1;
}

/* ---- the table, new, clone, free ---- */

static wd_simfs *behind(void *disk)
{
    return ((door *)disk)->fs;
}

static int io_open(void *disk, const char *path, int flags, int mode)
{
    (void)mode;
    return behind(disk) ? wd_simfs_open(behind(disk), path, flags) : -EBADF;
}

static int io_close(void *disk, int fd)
{
    return behind(disk) ? wd_simfs_close(behind(disk), fd) : -EBADF;
}

static int64_t io_pread(void *disk, int fd, void *p, size_t n, int64_t offset)
{
    return behind(disk) ? wd_simfs_pread(behind(disk), fd, p, n, offset) : -EBADF;
}

static int64_t io_pwrite(void *disk, int fd, const void *p, size_t n, int64_t offset)
{
    return behind(disk) ? wd_simfs_pwrite(behind(disk), fd, p, n, offset) : -EBADF;
}

static int io_datasync(void *disk, int fd)
{
    return behind(disk) ? wd_simfs_datasync(behind(disk), fd) : -EBADF;
}

static int io_dirsync(void *disk, const char *folder)
{
    return behind(disk) ? wd_simfs_dirsync(behind(disk), folder) : -EBADF;
}

static int io_rename(void *disk, const char *from, const char *to)
{
    return behind(disk) ? wd_simfs_rename(behind(disk), from, to) : -EBADF;
}

static int io_unlink(void *disk, const char *path)
{
    return behind(disk) ? wd_simfs_unlink(behind(disk), path) : -EBADF;
}

static int io_allocate(void *disk, int fd, int64_t size_bytes)
{
    wd_simfs *fs = behind(disk);
    if (!fs) return -EBADF;
    int error = begin(fs, SIM_ALLOCATE, 1);
    inode *f = file_of(fs, fd);
    if (!f) return -EBADF;
    if (!error && fs->full) error = -ENOSPC;
    if (!error) grow(f, size_bytes);
    if (!error) f->now_size = size_bytes;
    wd_sim_trace t = {.call = SIM_ALLOCATE, .bytes = size_bytes, .result = error};
    return (int)end(fs, t, path_of(fs, fd));
}

static int io_forget(void *disk, int fd)
{
    wd_simfs *fs = behind(disk);
    return fs ? wd_simfs_drop_cache(fs, fd) : -EIO;
}

static uint64_t io_now_ns(void *disk)
{
    return behind(disk) ? behind(disk)->steps * 1000 : 0;
}

wd_simfs *wd_simfs_new(uint64_t seed)
{
    wd_simfs *fs = calloc(1, sizeof *fs);
    WD_ASSERT(fs != NULL);
    fs->rng = seed;
    for (int i = 0; i < NAMES; i++) {
        fs->now[i].inode = fs->disk[i].inode = -1;
    }
    for (int i = 0; i < FDS; i++) {
        fs->fds[i] = -1;
    }
    fs->door = calloc(1, sizeof *fs->door);
    WD_ASSERT(fs->door != NULL);
    fs->door->fs = fs;
    fs->door->io = (wd_io){
        .disk = fs->door,
        .open = io_open,
        .close = io_close,
        .pread = io_pread,
        .pwrite = io_pwrite,
        .datasync = io_datasync,
        .dirsync = io_dirsync,
        .rename = io_rename,
        .unlink = io_unlink,
        .allocate = io_allocate,
        .now_ns = io_now_ns,
        .forget = io_forget,
    };
    return fs;
}

const wd_io *wd_simfs_io(wd_simfs *fs)
{
    return &fs->door->io;
}

wd_simfs *wd_simfs_clone(const wd_simfs *fs)
{
    wd_simfs *to = wd_simfs_new(fs->rng);
    memcpy(to->now, fs->now, sizeof to->now);
    memcpy(to->disk, fs->disk, sizeof to->disk);
    if (fs->ops_n) {
        to->ops = more_room(NULL, (size_t)fs->ops_n * sizeof *to->ops);
        memcpy(to->ops, fs->ops, (size_t)fs->ops_n * sizeof *to->ops);
    }
    to->ops_n = to->ops_room = fs->ops_n;
    for (int i = 0; i < INODES; i++) {
        const inode *from = &fs->inodes[i];
        if (!from->used) continue;
        inode *f = &to->inodes[i];
        *f = (inode){.used = 1, .folder = from->folder};
        grow(f, (int64_t)from->cap);
        if (from->cap) {
            memcpy(f->now, from->now, from->cap);
            memcpy(f->disk, from->disk, from->cap);
            memcpy(f->dirty, from->dirty, from->cap / SECTOR);
        }
        f->now_size = from->now_size;
        f->disk_size = from->disk_size;
    }
    return to;
}

void wd_simfs_free(wd_simfs *fs)
{
    if (!fs) return;
    for (int i = 0; i < INODES; i++) {
        if (fs->inodes[i].used) release_inode(&fs->inodes[i]);
    }
    fs->door->fs = NULL;
    free(fs->ops);
    free(fs->trace);
    free(fs);
}
