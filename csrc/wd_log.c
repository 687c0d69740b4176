/* wd_log.c -- append, rotate, sync, MARK.
 *
 * One frame is in flight at a time: a frame k+1 on disk proves that frame k had been synced (mode
 * always), which makes the judgement of damage exact for all but the last frame; more in flight
 * would break the proof and gain nothing at these rates. Segments are filled with zeros ahead,
 * because fdatasync over blocks that were written before needs no journal commit (1.4-2 x faster on
 * ext4 and xfs), and never recycled, because old frames in new segments are how logs replay ghosts.
 * The file made ahead stands as wal/next.tmp (etcd's file pipeline has the same shape).
 *
 * Invariants
 *   1. Once any call on a segment or on MARK failed, `failed` stays set and nothing is confirmed:
 *      a second fdatasync would report success over pages that the kernel threw away.
 *   2. synced.lsn <= written.lsn; MARK never says more than synced.lsn.
 *   3. always: synced == written between two calls.
 *   4. A descriptor in `sealed` may hold what no completed sync covers; it is closed only after a
 *      sync of it, by the holder of sync_mutex.
 *   5. While next_fd >= 0, wal/next.tmp is that file, filled and synced; so with reserve_fd and
 *      wal/reserve.tmp, the room in which jobs that are there can end although the disk is full.
 *
 * Hand-over between threads, by mutexes in this order (a later one is never held when an earlier is
 * taken):
 *   prepare_mutex  next_fd and the name wal/next.tmp, for the whole of making or taking the next
 *                  segment: a rotation that comes while one is being made waits for the rest of it;
 *                  reserve_fd, which is made without it and handed over with it.
 *   sync_mutex     one sync of sealed segments at a time.
 *   mark_mutex     one write of MARK at a time.
 *   state_mutex    everything that two threads see (struct shared); never held over a file call.
 * The rest belongs to the appending thread.
 *
 * Not here: reading. wal/recover.py and wd_frame_scan do that.
 */
#define _GNU_SOURCE
#include "wd_log.h"

#include "wd_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum {
    PATH_BYTES = 1024,
    NAME_BYTES = 64, /* "/wal/" + 16 + "-" + 16 + ".wal" */
    FILE_MODE = 0600,
    SEALED_MAX = 32, /* sealed segments that may wait for a sync before rotation waits */
    SEGMENT_BYTES_MIN = 8192
};

/* A frame's end, as MARK describes it. */
typedef struct {
    uint64_t lsn, seq, offset;
    int64_t wall_ms;
    uint32_t frame_crc;
} position;

/* Seen by more than one thread: under state_mutex. */
typedef struct {
    position written, synced;
    int fd;       /* current segment */
    uint64_t seq; /* current segment */
    int64_t offset;
    int sealed[SEALED_MAX]; /* descriptors, oldest first */
    int sealed_n;
    wd_log_stats stats; /* the counters of it */
    wd_log_error error;
} shared;

struct wd_log {
    const wd_io *io;
    wd_log_start start; /* start.folder is NULL: see the paths */
    char wal_path[PATH_BYTES], next_path[PATH_BYTES], mark_path[PATH_BYTES];
    char reserve_path[PATH_BYTES];
    char segment_path[PATH_BYTES]; /* of the current segment, for the error */

    /* the appending thread's own */
    uint64_t next_lsn;
    uint32_t salt, prev_crc;

    pthread_mutex_t prepare_mutex;
    int next_fd, reserve_fd; /* -1: none */
    pthread_mutex_t sync_mutex;
    pthread_mutex_t mark_mutex;
    int mark_fd;
    uint64_t mark_count;

    pthread_mutex_t state_mutex;
    shared s;
    atomic_int failed;
    atomic_int prepared, reserved;
    atomic_int clean; /* a clean mark stands: no more appends */
};

static void lock(pthread_mutex_t *m)
{
    int error = pthread_mutex_lock(m);
    WD_ASSERT(error == 0);
}

static void unlock(pthread_mutex_t *m)
{
    int error = pthread_mutex_unlock(m);
    WD_ASSERT(error == 0);
}

/* ---- errors ---- */

/* Take the first failure as the log's end. Always WD_EIO. */
static int fail(wd_log *log, wd_file_fault f)
{
    lock(&log->state_mutex);
    if (log->s.error.error == 0) {
        wd_log_error *e = &log->s.error;
        e->error = f.result < 0 ? (int)-f.result : EIO;
        e->offset = f.offset;
        e->lsn = log->s.synced.lsn + 1;
        (void)snprintf(e->call, sizeof e->call, "%s", f.call);
        (void)snprintf(e->path, sizeof e->path, "%.*s", (int)sizeof e->path - 1, f.path);
    }
    atomic_store(&log->failed, 1);
    unlock(&log->state_mutex);
    return WD_EIO;
}

static int no_space(int64_t result)
{
    return result == -ENOSPC || result == -EDQUOT;
}

/* fdatasync, timed. WD_OK or the log has failed. */
static int sync_file(wd_log *log, int fd, const char *path)
{
    WD_ASSERT(fd >= 0);
    uint64_t t0 = log->io->now_ns(log->io->disk);
    int result = log->io->datasync(log->io->disk, fd);
    uint64_t took_ns = log->io->now_ns(log->io->disk) - t0;
    if (result < 0) return fail(log, (wd_file_fault){"datasync", path, 0, result});
    lock(&log->state_mutex);
    wd_log_stats *c = &log->s.stats;
    c->syncs++;
    c->sync_ns_sum += took_ns;
    c->sync_ns_last = took_ns;
    if (took_ns > c->sync_ns_max) c->sync_ns_max = took_ns;
    unlock(&log->state_mutex);
    return WD_OK;
}

/* ---- the segment made ahead ---- */

/* Make a file of a segment's size. WD_OK, WD_EFULL, or WD_EIO: failed. */
static int build(wd_log *log, const char *path, int *out_fd)
{
    wd_file_fault f = {.path = path};
    const wd_log_start *s = &log->start;
    if (wd_file_make(log->io, s->segment_bytes, s->allocate_only, out_fd, &f) == WD_OK) {
        return WD_OK;
    }
    /* No space is a state that passes, and nothing that was written is in doubt. */
    return no_space(f.result) ? WD_EFULL : fail(log, f);
}

/* Make wal/next.tmp, of the reserve when there is no room. As build; under prepare_mutex. */
static int build_next(wd_log *log)
{
    WD_ASSERT(log->next_fd < 0);
    int status = build(log, log->next_path, &log->next_fd);
    if (status == WD_EFULL && log->reserve_fd >= 0) {
        int result = log->io->rename(log->io->disk, log->reserve_path, log->next_path);
        if (result < 0) return fail(log, (wd_file_fault){"rename", log->next_path, 0, result});
        log->next_fd = log->reserve_fd;
        log->reserve_fd = -1;
        atomic_store(&log->reserved, 0);
        status = WD_OK;
    }
    if (status == WD_OK) atomic_store(&log->prepared, 1);
    return status;
}

/* Without the mutex: a rotation that comes meanwhile has its next segment, and need not wait. */
static int build_reserve(wd_log *log)
{
    int fd = -1;
    int status = build(log, log->reserve_path, &fd);
    if (status != WD_OK) return status;
    lock(&log->prepare_mutex);
    WD_ASSERT(log->reserve_fd < 0);
    log->reserve_fd = fd;
    unlock(&log->prepare_mutex);
    atomic_store(&log->reserved, 1);
    return WD_OK;
}

int wd_log_prepare(wd_log *log)
{
    WD_ASSERT(log != NULL);
    if (atomic_load(&log->failed)) return WD_EIO;
    lock(&log->prepare_mutex);
    int status = log->next_fd >= 0 ? WD_OK : build_next(log);
    unlock(&log->prepare_mutex);
    if (status == WD_OK && !atomic_load(&log->reserved)) status = build_reserve(log);
    lock(&log->state_mutex);
    int waiting = log->s.sealed_n;
    unlock(&log->state_mutex);
    if (status == WD_EIO || waiting == 0) return status;
    int synced = wd_log_sync(log);
    return synced == WD_OK ? status : synced;
}

/* ---- rotation ---- */

/* splitmix64 (Steele, Lea and Flood 2014): salts that differ for each seed, term and segment. */
static uint32_t salt_of(const wd_log_start *start, uint64_t seq)
{
    uint64_t z = ((uint64_t)start->salt_seed << 32) ^ (start->term << 20) ^ seq;
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ (z >> 31)) >> 16);
}

static void encode_header(const wd_log *log, uint64_t seq, int64_t wall_ms, uint8_t *block)
{
    wd_segment_meta m = {
        .term = log->start.term,
        .seq = seq,
        .base_lsn = log->next_lsn,
        .prev_crc = log->prev_crc,
        .salt = salt_of(&log->start, seq),
        .fsync_mode = log->start.fsync_mode,
        .created_wall_ms = wall_ms,
        .rel_minus_boot_ms = log->start.rel_minus_boot_ms,
    };
    memcpy(m.uuid, log->start.uuid, sizeof m.uuid);
    memcpy(m.boot_id, log->start.boot_id, sizeof m.boot_id);
    wd_segment_encode(&m, block);
}

/* Header into next.tmp and the file to its name; durable when asked for. Under prepare_mutex.
 * Writes the path of the segment to path. */
static int publish(wd_log *log, const uint8_t *block, int durable, char *path)
{
    const wd_io *io = log->io;
    wd_file_fault f = {"pwrite", log->next_path, 0, 0};
    if (wd_file_write(log->io, log->next_fd, (wd_span){block, WD_SEGMENT_HEADER_BYTES}, &f) !=
        WD_OK) {
        return fail(log, f);
    }
    if (durable && sync_file(log, log->next_fd, log->next_path) != WD_OK) return WD_EIO;
    int n =
        snprintf(path, PATH_BYTES, "%s/%016" PRIx64 "-%016" PRIx64 ".wal", log->wal_path,
                 wd_get_u64(block + WD_SEGMENT_AT_SEQ), wd_get_u64(block + WD_SEGMENT_AT_BASE_LSN));
    WD_ASSERT(n > 0 && n < PATH_BYTES); /* wd_log_open checked the folder's length */
    int result = io->rename(io->disk, log->next_path, path);
    if (result < 0) return fail(log, (wd_file_fault){"rename", path, 0, result});
    if (durable) {
        result = io->dirsync(io->disk, log->wal_path);
        if (result < 0) return fail(log, (wd_file_fault){"dirsync", log->wal_path, 0, result});
    }
    return WD_OK;
}

/* Make the fresh segment the current one. Under prepare_mutex; next_fd is taken. */
static void enter(wd_log *log, uint64_t seq)
{
    int old = log->s.fd;
    int always = log->start.fsync_mode == WD_FSYNC_ALWAYS;
    lock(&log->state_mutex);
    if (old >= 0 && !always) {
        WD_ASSERT(log->s.sealed_n < SEALED_MAX);
        log->s.sealed[log->s.sealed_n++] = old;
    }
    log->s.fd = log->next_fd;
    log->s.seq = seq;
    log->s.offset = WD_SEGMENT_HEADER_BYTES;
    unlock(&log->state_mutex);
    log->salt = salt_of(&log->start, seq);
    log->next_fd = -1;
    atomic_store(&log->prepared, 0);
    if (old >= 0 && always) (void)log->io->close(log->io->disk, old);
}

/* Open the segment seq. durable: header, name and directory are synced on return. */
static int rotate(wd_log *log, uint64_t seq, int64_t wall_ms, int durable)
{
    char path[PATH_BYTES];
    uint8_t block[WD_SEGMENT_HEADER_BYTES];
    WD_ASSERT(seq > log->s.seq);
    encode_header(log, seq, wall_ms, block);
    lock(&log->prepare_mutex);
    int status = log->next_fd >= 0 ? WD_OK : build_next(log);
    if (status == WD_OK) status = publish(log, block, durable, path);
    if (status == WD_OK) enter(log, seq);
    unlock(&log->prepare_mutex);
    if (status == WD_OK) memcpy(log->segment_path, path, sizeof path);
    return status;
}

static int next_segment(wd_log *log, int64_t wall_ms)
{
    int always = log->start.fsync_mode == WD_FSYNC_ALWAYS;
    lock(&log->state_mutex);
    int crowded = log->s.sealed_n == SEALED_MAX;
    uint64_t seq = log->s.seq + 1;
    unlock(&log->state_mutex);
    /* Only when the background thread fell 32 segments behind: descriptors are finite. */
    if (crowded && wd_log_sync(log) != WD_OK) return WD_EIO;
    int status = rotate(log, seq, wall_ms, always);
    if (status != WD_OK) return status;
    lock(&log->state_mutex);
    log->s.stats.rotations++;
    unlock(&log->state_mutex);
    return WD_OK;
}

/* ---- append ---- */

static int append_refused(const wd_log *log, const wd_frame_meta *m, uint64_t whole)
{
    return atomic_load(&log->clean) || m->first_lsn != log->next_lsn || m->records == 0 ||
           whole > WD_FRAME_BYTES_MAX || whole > log->start.segment_bytes - WD_SEGMENT_HEADER_BYTES;
}

/* The frame stands in the file (and, in mode always, on the disk): say so to all. */
static void appended(wd_log *log, const wd_frame_meta *m, uint32_t crc, size_t whole)
{
    log->next_lsn += m->records;
    log->prev_crc = crc;
    lock(&log->state_mutex);
    log->s.written = (position){
        .lsn = log->next_lsn - 1,
        .seq = log->s.seq,
        .offset = (uint64_t)log->s.offset,
        .wall_ms = m->wall_ms,
        .frame_crc = crc,
    };
    if (log->start.fsync_mode == WD_FSYNC_ALWAYS) log->s.synced = log->s.written;
    log->s.offset += (int64_t)whole;
    log->s.stats.frames++;
    log->s.stats.bytes += whole;
    unlock(&log->state_mutex);
}

int wd_log_append(wd_log *log, uint8_t *frame, const wd_frame_meta *m)
{
    WD_ASSERT(log != NULL);
    WD_ASSERT(frame != NULL);
    if (atomic_load(&log->failed)) return WD_EIO;
    uint64_t whole = WD_FRAME_HEADER_BYTES + ((uint64_t)m->payload_bytes + 7) / 8 * 8;
    if (append_refused(log, m, whole)) return WD_EINVAL;
    /* Written by this thread alone, so it may look without the mutex. */
    if ((uint64_t)log->s.offset + whole > log->start.segment_bytes) {
        int status = next_segment(log, m->wall_ms);
        if (status != WD_OK) return status;
    }
    int always = log->start.fsync_mode == WD_FSYNC_ALWAYS;
    wd_frame_meta sealed = *m;
    sealed.flags = always ? 0 : WD_FRAME_UNSYNCED;
    lock(&log->state_mutex);
    sealed.durable_lsn = log->s.synced.lsn;
    unlock(&log->state_mutex);
    size_t bytes = wd_frame_seal(frame, &sealed, log->salt, log->prev_crc);
    WD_ASSERT(bytes == whole);
    wd_file_fault f = {"pwrite", log->segment_path, log->s.offset, 0};
    if (wd_file_write(log->io, log->s.fd, (wd_span){frame, bytes}, &f) != WD_OK)
        return fail(log, f);
    if (always && sync_file(log, log->s.fd, log->segment_path) != WD_OK) return WD_EIO;
    if (atomic_load(&log->failed)) return WD_EIO; /* another thread's sync failed meanwhile */
    appended(log, m, wd_frame_crc(frame), bytes);
    return WD_OK;
}

/* ---- sync ---- */

/* A sync that covers all up to `upto` and the n oldest sealed segments is complete. */
static void synced(wd_log *log, const position *upto, int n)
{
    int fds[SEALED_MAX];
    lock(&log->state_mutex);
    WD_ASSERT(n <= log->s.sealed_n);
    memcpy(fds, log->s.sealed, (size_t)n * sizeof fds[0]);
    log->s.sealed_n -= n;
    memmove(log->s.sealed, log->s.sealed + n, (size_t)log->s.sealed_n * sizeof log->s.sealed[0]);
    if (upto->lsn > log->s.synced.lsn) log->s.synced = *upto;
    WD_ASSERT(log->s.synced.lsn <= log->s.written.lsn);
    unlock(&log->state_mutex);
    for (int i = 0; i < n; i++) {
        (void)log->io->close(log->io->disk, fds[i]);
    }
}

/* Under sync_mutex: no sealed descriptor is closed meanwhile, and the current one at most becomes
 * a sealed one. */
static int sync_all(wd_log *log)
{
    const wd_io *io = log->io;
    lock(&log->state_mutex);
    int n = log->s.sealed_n;
    int fd = log->s.fd;
    position upto = log->s.written;
    int idle = n == 0 && upto.lsn == log->s.synced.lsn;
    int sealed[SEALED_MAX];
    memcpy(sealed, log->s.sealed, (size_t)n * sizeof sealed[0]);
    unlock(&log->state_mutex);
    if (idle) return WD_OK;
    for (int i = 0; i < n; i++) {
        if (sync_file(log, sealed[i], log->wal_path) != WD_OK) return WD_EIO;
    }
    if (sync_file(log, fd, log->wal_path) != WD_OK) return WD_EIO;
    /* A segment was sealed by a rename that nothing synced yet. */
    int result = n > 0 ? io->dirsync(io->disk, log->wal_path) : 0;
    if (result < 0) return fail(log, (wd_file_fault){"dirsync", log->wal_path, 0, result});
    synced(log, &upto, n);
    return WD_OK;
}

int wd_log_sync(wd_log *log)
{
    WD_ASSERT(log != NULL);
    /* always: each append synced itself, and its descriptors are closed without sync_mutex. */
    if (log->start.fsync_mode == WD_FSYNC_ALWAYS) return atomic_load(&log->failed) ? WD_EIO : WD_OK;
    lock(&log->sync_mutex);
    /* Asked under the mutex: after a sync that failed while this thread waited for it, a second one
     * would succeed. */
    int status = atomic_load(&log->failed) ? WD_EIO : sync_all(log);
    unlock(&log->sync_mutex);
    return status;
}

/* ---- MARK ---- */

static int write_mark(wd_log *log, const position *at, uint32_t flags)
{
    uint8_t slot[WD_MARK_SLOT_BYTES];
    wd_mark_meta m = {
        .count = log->mark_count,
        .lsn = at->lsn,
        .seq = at->seq,
        .offset = at->offset,
        .term = log->start.term,
        .wall_ms = at->wall_ms,
        .frame_crc = at->frame_crc,
        .flags = flags,
    };
    memcpy(m.uuid, log->start.uuid, sizeof m.uuid);
    wd_mark_encode(&m, slot);
    int64_t offset = (int64_t)(m.count % WD_MARK_SLOTS) * WD_MARK_SLOT_BYTES;
    wd_file_fault f = {"pwrite", log->mark_path, offset, 0};
    if (wd_file_write(log->io, log->mark_fd, (wd_span){slot, sizeof slot}, &f) != WD_OK) {
        return fail(log, f);
    }
    int result = log->io->datasync(log->io->disk, log->mark_fd);
    if (result < 0) return fail(log, (wd_file_fault){"datasync", log->mark_path, offset, result});
    log->mark_count++;
    return WD_OK;
}

int wd_log_mark(wd_log *log, int clean)
{
    WD_ASSERT(log != NULL);
    if (atomic_load(&log->failed)) return WD_EIO;
    lock(&log->mark_mutex);
    lock(&log->state_mutex);
    position at = log->s.synced;
    int behind = at.lsn != log->s.written.lsn;
    if (clean && !behind) atomic_store(&log->clean, 1);
    unlock(&log->state_mutex);
    int status = clean && behind ? WD_EINVAL : write_mark(log, &at, clean ? WD_MARK_CLEAN : 0);
    if (status == WD_OK) {
        lock(&log->state_mutex);
        log->s.stats.marks++;
        log->s.stats.marked_lsn = at.lsn;
        unlock(&log->state_mutex);
    }
    unlock(&log->mark_mutex);
    return status;
}

/* ---- figures ---- */

void wd_log_stats_get(wd_log *log, wd_log_stats *out)
{
    WD_ASSERT(log != NULL);
    WD_ASSERT(out != NULL);
    lock(&log->state_mutex);
    *out = log->s.stats;
    out->written_lsn = log->s.written.lsn;
    out->synced_lsn = log->s.synced.lsn;
    out->seq = log->s.seq;
    out->offset = log->s.offset;
    out->unsynced_segments = log->s.sealed_n;
    unlock(&log->state_mutex);
    out->segment_bytes = log->start.segment_bytes;
    out->prepared = atomic_load(&log->prepared);
    out->reserved = atomic_load(&log->reserved);
}

void wd_log_error_get(wd_log *log, wd_log_error *out)
{
    WD_ASSERT(log != NULL);
    WD_ASSERT(out != NULL);
    lock(&log->state_mutex);
    *out = log->s.error;
    unlock(&log->state_mutex);
}

/* ---- open, free ---- */

static int start_is_valid(const wd_log_start *s)
{
    return s->folder && strlen(s->folder) < PATH_BYTES - NAME_BYTES &&
           s->segment_bytes >= SEGMENT_BYTES_MIN && s->segment_bytes % 4096 == 0 &&
           s->segment_bytes <= INT64_MAX && s->next_seq > 0 && s->next_lsn > 0 &&
           s->fsync_mode <= WD_FSYNC_OFF;
}

static wd_log *new_log(const wd_io *io, const wd_log_start *start)
{
    wd_log *log = wd_zalloc(sizeof *log);
    if (!log) return NULL;
    log->io = io;
    log->start = *start;
    log->start.folder = NULL;
    (void)snprintf(log->wal_path, PATH_BYTES, "%s/wal", start->folder);
    (void)snprintf(log->next_path, PATH_BYTES, "%s/wal/next.tmp", start->folder);
    (void)snprintf(log->reserve_path, PATH_BYTES, "%s/wal/reserve.tmp", start->folder);
    (void)snprintf(log->mark_path, PATH_BYTES, "%s/MARK", start->folder);
    log->next_lsn = start->next_lsn;
    log->prev_crc = start->prev_crc;
    log->next_fd = log->reserve_fd = log->mark_fd = log->s.fd = -1;
    log->mark_count = start->mark_count;
    log->s.written = (position){
        .lsn = start->next_lsn - 1,
        .seq = start->last_seq,
        .offset = start->last_offset,
        .wall_ms = start->last_wall_ms,
        .frame_crc = start->prev_crc,
    };
    log->s.synced = log->s.written;
    int error = pthread_mutex_init(&log->prepare_mutex, NULL);
    error |= pthread_mutex_init(&log->sync_mutex, NULL);
    error |= pthread_mutex_init(&log->mark_mutex, NULL);
    error |= pthread_mutex_init(&log->state_mutex, NULL);
    WD_ASSERT(error == 0); /* glibc and musl: cannot fail without attributes */
    return log;
}

wd_log *wd_log_open(const wd_io *io, const wd_log_start *start, wd_log_error *out_error)
{
    WD_ASSERT(io != NULL);
    WD_ASSERT(start != NULL);
    wd_log *log = start_is_valid(start) ? new_log(io, start) : NULL;
    if (!log) {
        *out_error = (wd_log_error){.error = start_is_valid(start) ? ENOMEM : EINVAL};
        (void)snprintf(out_error->call, sizeof out_error->call, "open");
        return NULL;
    }
    log->mark_fd = io->open(io->disk, log->mark_path, O_RDWR | O_CLOEXEC, FILE_MODE);
    int status = WD_OK;
    if (log->mark_fd < 0)
        status = fail(log, (wd_file_fault){"open", log->mark_path, 0, log->mark_fd});
    if (status == WD_OK) status = rotate(log, start->next_seq, start->wall_ms, 1);
    if (status == WD_OK) return log;
    if (status != WD_EIO) {
        (void)fail(log, (wd_file_fault){"prepare", log->next_path, 0, -ENOSPC});
    }
    wd_log_error_get(log, out_error);
    wd_log_free(log);
    return NULL;
}

void wd_log_free(wd_log *log)
{
    if (!log) return;
    const wd_io *io = log->io;
    for (int i = 0; i < log->s.sealed_n; i++) {
        (void)io->close(io->disk, log->s.sealed[i]);
    }
    if (log->s.fd >= 0) (void)io->close(io->disk, log->s.fd);
    if (log->next_fd >= 0) (void)io->close(io->disk, log->next_fd);
    if (log->reserve_fd >= 0) (void)io->close(io->disk, log->reserve_fd);
    if (log->mark_fd >= 0) (void)io->close(io->disk, log->mark_fd);
    (void)pthread_mutex_destroy(&log->prepare_mutex);
    (void)pthread_mutex_destroy(&log->sync_mutex);
    (void)pthread_mutex_destroy(&log->mark_mutex);
    (void)pthread_mutex_destroy(&log->state_mutex);
    wd_release(log);
}
