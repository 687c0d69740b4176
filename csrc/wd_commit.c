/* wd_commit.c -- carries closed batches from the engine to the log.
 *
 * Invariants:
 *  1. At most one batch is in flight: `flight` is NULL, or it is with the thread or the driver.
 *  2. Batches are written in the order of their seq; durable_seq never goes back.
 *  3. The thread touches `flight` and the log only between GIVEN and DONE; the loop touches neither
 *     then (interval's 50 ms sync is the one call that overlaps the loop's writes).
 *  4. A frame for which the disk has no room stays in flight, stalled, and is tried again.
 *  5. After a failure nothing becomes durable any more.
 * Not here: the gather window (wd_round.c, it needs the sockets), preparing segments and MARK
 * (wal/).
 */
#define _GNU_SOURCE
#include "wd_commit.h"

#include "wd_clock.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    SYNC_INTERVAL_NS = 50 * 1000 * 1000, /* --fsync interval */
    NS_PER_US = 1000,
    /* One connection waits: the loop syncs by itself, or waits, while the last sync took less. */
    OWN_SYNC_NS_MAX = 2 * 1000 * 1000,
    AWAIT_NS = 2 * 1000 * 1000, /* what the loop waits for a sync that it expects to be quick */
    STALL_RETRY_MS = 1000
};

enum flight_state { IDLE = 0, GIVEN, DONE };

struct wd_commit {
    wd_engine *engine;
    wd_log *log; /* NULL = not attached */
    int mode, fsync_mode;
    int failure;
    uint64_t durable_seq, durable_lsn;
    wd_batch *flight;
    int64_t now_ms; /* of this round, monotonic */
    int stalled;    /* flight found no room on the disk and waits for retry_ms */
    int64_t retry_ms;
    uint32_t driven_crc; /* pcrc of the last frame that a driver took */
    uint64_t last_sync_ns;
    uint64_t herd_sync_ns; /* many wait: the loop syncs while the last sync took less */
    uint64_t own_syncs, awaited_syncs;
    wd_commit_figures figures;
    int wake_fd;

    pthread_t thread;
    int has_thread;
    cpu_set_t cpus;       /* where the thread may run */
    int cpu;              /* the one that it is held to, -1 = any of them */
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    pthread_cond_t done;
    int state;   /* enum flight_state */
    int awaited; /* the loop waits for `done`; else the wake fd tells it */
    int stop;
    int unsynced;      /* interval: written since the last sync */
    int thread_status; /* of the last append or sync by the thread */
    uint64_t thread_ns;
};

/* ---- the thread ---- */

static void wake(int fd)
{
    uint64_t one = 1;
    /* Only EAGAIN is possible, and then the counter is far from zero, which is as good. */
    ssize_t k = write(fd, &one, sizeof one);
    WD_ASSERT(k == (ssize_t)sizeof one || errno == EAGAIN || errno == EINTR);
}

static int append(wd_commit *c, wd_batch *b, uint64_t *out_ns)
{
    WD_ASSERT(c->log && b->bytes.n > WD_FRAME_HEADER_BYTES);
    WD_ASSERT(b->bytes.cap - b->bytes.n >= 8);
    uint64_t start = wd_clock_mono_ns();
    int status = wd_log_append(c->log, b->bytes.p, &b->meta);
    *out_ns = wd_clock_mono_ns() - start;
    return status;
}

/* Under the lock: write the batch that was given, without the lock meanwhile. */
static void write_given(wd_commit *c)
{
    WD_ASSERT(c->state == GIVEN && c->flight);
    wd_batch *b = c->flight;
    (void)pthread_mutex_unlock(&c->lock);
    uint64_t took_ns = 0;
    int status = append(c, b, &took_ns);
    (void)pthread_mutex_lock(&c->lock);
    WD_ASSERT(c->state == GIVEN && c->flight == b);
    c->thread_status = status;
    c->thread_ns = took_ns;
    c->state = DONE;
    int awaited = c->awaited;
    /* Told without the lock: who wakes finds it free. */
    (void)pthread_mutex_unlock(&c->lock);
    if (awaited) {
        (void)pthread_cond_signal(&c->done);
    } else {
        wake(c->wake_fd);
    }
    (void)pthread_mutex_lock(&c->lock);
}

/* Under the lock: interval's sync, without the lock meanwhile. */
static void sync_unsynced(wd_commit *c)
{
    if (!c->unsynced || c->thread_status != WD_OK) return;
    c->unsynced = 0;
    (void)pthread_mutex_unlock(&c->lock);
    int status = wd_log_sync(c->log);
    (void)pthread_mutex_lock(&c->lock);
    if (status == WD_OK) return;
    c->thread_status = status;
    wake(c->wake_fd);
}

static void *thread_main(void *arg)
{
    wd_commit *c = arg;
    struct timespec next_sync = wd_clock_deadline(SYNC_INTERVAL_NS);
    (void)pthread_mutex_lock(&c->lock);
    for (;;) {
        if (c->state == GIVEN) { /* also when it is to stop */
            write_given(c);
        } else if (c->stop) {
            break;
        } else if (c->fsync_mode != WD_FSYNC_INTERVAL) {
            (void)pthread_cond_wait(&c->changed, &c->lock);
        } else if (pthread_cond_timedwait(&c->changed, &c->lock, &next_sync) == ETIMEDOUT) {
            sync_unsynced(c);
            next_sync = wd_clock_deadline(SYNC_INTERVAL_NS);
        }
    }
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

static int start_thread(wd_commit *c)
{
    WD_ASSERT(!c->has_thread && c->log);
    if (pthread_create(&c->thread, NULL, thread_main, c) != 0) return WD_ENOMEM;
    c->has_thread = 1;
    c->cpu = -1;
    if (pthread_getaffinity_np(c->thread, sizeof c->cpus, &c->cpus) != 0) CPU_ZERO(&c->cpus);
    return WD_OK;
}

/* A sync that the loop waits for is done on the loop's CPU, which is free from now on: anywhere
 * else the thread would first have to get a CPU, often the one of a client that is being answered
 * (50 connections and an idle one: +10 % a second, -10 % of CPU). What nobody waits for runs
 * beside the loop. Where the kernel refuses, it goes without. */
static void place_thread(wd_commit *c, int awaited)
{
    int cpu = awaited ? sched_getcpu() : -1;
    if (cpu == c->cpu || cpu >= CPU_SETSIZE) return;
    cpu_set_t set = c->cpus;
    if (cpu >= 0) {
        CPU_ZERO(&set);
        CPU_SET((size_t)cpu, &set);
    }
    (void)pthread_setaffinity_np(c->thread, sizeof set, &set);
    c->cpu = cpu;
}

/* ---- life ---- */

static void init_sync(wd_commit *c)
{
    pthread_condattr_t attr;
    int error = pthread_condattr_init(&attr);
    error |= pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    error |= pthread_cond_init(&c->changed, &attr);
    error |= pthread_cond_init(&c->done, &attr);
    error |= pthread_mutex_init(&c->lock, NULL);
    error |= pthread_condattr_destroy(&attr);
    WD_ASSERT(error == 0); /* glibc and musl: cannot fail with these, they take no resources */
}

wd_commit *wd_commit_new(wd_engine *e, int mode, int fsync_mode, uint32_t own_sync_us)
{
    WD_ASSERT(e);
    WD_ASSERT(mode >= WD_COMMIT_THREAD && mode <= WD_COMMIT_DRIVEN);
    WD_ASSERT(fsync_mode >= WD_FSYNC_ALWAYS && fsync_mode <= WD_FSYNC_OFF);
    wd_commit *c = wd_zalloc(sizeof *c);
    if (!c) return NULL;
    c->engine = e;
    c->mode = mode;
    c->fsync_mode = fsync_mode;
    c->herd_sync_ns = (uint64_t)own_sync_us * NS_PER_US;
    c->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (c->wake_fd < 0) {
        wd_release(c);
        return NULL;
    }
    init_sync(c);
    return c;
}

void wd_commit_free(wd_commit *c)
{
    WD_ASSERT(c);
    if (c->has_thread) {
        (void)pthread_mutex_lock(&c->lock);
        c->stop = 1;
        (void)pthread_cond_signal(&c->changed);
        (void)pthread_mutex_unlock(&c->lock);
        (void)pthread_join(c->thread, NULL);
    }
    WD_ASSERT(c->state != GIVEN);
    if (c->flight) wd_engine_reuse_batch(c->engine, c->flight);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_cond_destroy(&c->done);
    (void)pthread_mutex_destroy(&c->lock);
    (void)close(c->wake_fd);
    wd_release(c);
}

int wd_commit_attach(wd_commit *c, wd_log *log)
{
    WD_ASSERT(c && log);
    if (c->mode == WD_COMMIT_DRIVEN || c->log) return WD_EINVAL;
    c->log = log;
    int wants_thread = c->mode == WD_COMMIT_THREAD && c->fsync_mode != WD_FSYNC_OFF;
    int status = wants_thread ? start_thread(c) : WD_OK;
    if (status != WD_OK) c->log = NULL;
    return status;
}

/* ---- the loop's side ---- */

int wd_commit_wake_fd(const wd_commit *c)
{
    return c->wake_fd;
}

void wd_commit_begin_round(wd_commit *c, int64_t mono_ms)
{
    c->now_ms = mono_ms;
}

void wd_commit_kick(wd_commit *c)
{
    wake(c->wake_fd);
}

void wd_commit_unkick(wd_commit *c)
{
    uint64_t count;
    ssize_t k = read(c->wake_fd, &count, sizeof count);
    WD_ASSERT(k == (ssize_t)sizeof count || errno == EAGAIN || errno == EINTR);
}

static uint64_t last_lsn(const wd_batch *b)
{
    WD_ASSERT(b->meta.records > 0);
    return b->meta.first_lsn + b->meta.records - 1;
}

/* b is durable: open the gate up to it and give the batch back. */
static void landed(wd_commit *c, wd_batch *b, uint64_t took_ns)
{
    WD_ASSERT(b->seq > c->durable_seq);
    WD_ASSERT(last_lsn(b) > c->durable_lsn || c->durable_lsn == 0);
    c->durable_seq = b->seq;
    c->durable_lsn = last_lsn(b);
    c->last_sync_ns = took_ns;
    wd_hist_add(&c->figures.sync_ns, took_ns);
    wd_hist_add(&c->figures.batch_bytes, b->bytes.n - WD_FRAME_HEADER_BYTES);
    wd_hist_add(&c->figures.batch_records, b->meta.records);
    wd_engine_reuse_batch(c->engine, b);
}

/* An append of b ended with status. WD_OK (durable, or stalled), WD_EIO (the log has failed). */
static int land_or_fail(wd_commit *c, wd_batch *b, int status, uint64_t took_ns)
{
    WD_ASSERT(!c->flight);
    if (status == WD_OK) {
        landed(c, b, took_ns);
        return WD_OK;
    }
    if (status == WD_EFULL) {
        c->flight = b;
        c->stalled = 1;
        c->retry_ms = c->now_ms + STALL_RETRY_MS;
        return WD_OK;
    }
    c->failure = status;
    wd_engine_reuse_batch(c->engine, b);
    return WD_EIO;
}

/* The stalled batch, if it is time to try it again. */
static wd_batch *retried_batch(wd_commit *c)
{
    if (!c->stalled || c->now_ms < c->retry_ms) return NULL;
    wd_batch *b = c->flight;
    WD_ASSERT(b);
    c->flight = NULL;
    c->stalled = 0;
    return b;
}

/* The oldest batch that holds records, closing the open one if there is no other; NULL while one is
 * in flight. */
static wd_batch *next_batch(wd_commit *c)
{
    wd_batch *b = retried_batch(c);
    if (b) return b;
    if (c->flight) return NULL;
    b = wd_engine_take_batch(c->engine);
    if (b) return b;
    wd_engine_close_batch(c->engine);
    return wd_engine_take_batch(c->engine);
}

static int write_one(wd_commit *c, wd_batch *b)
{
    uint64_t took_ns = 0;
    int status = append(c, b, &took_ns);
    return land_or_fail(c, b, status, took_ns);
}

static int write_all(wd_commit *c)
{
    wd_batch *b = next_batch(c);
    int wrote = 0;
    for (; b; b = next_batch(c)) {
        int status = write_one(c, b);
        if (status != WD_OK) return status;
        wrote = 1;
    }
    if (wrote && c->fsync_mode == WD_FSYNC_INTERVAL) {
        (void)pthread_mutex_lock(&c->lock);
        c->unsynced = 1;
        (void)pthread_mutex_unlock(&c->lock);
    }
    return WD_OK;
}

static void hand_over(wd_commit *c, wd_batch *b, int awaited)
{
    WD_ASSERT(c->has_thread && !c->flight);
    place_thread(c, awaited);
    (void)pthread_mutex_lock(&c->lock);
    WD_ASSERT(c->state == IDLE);
    c->flight = b;
    c->state = GIVEN;
    c->awaited = awaited;
    (void)pthread_mutex_unlock(&c->lock);
    (void)pthread_cond_signal(&c->changed);
}

/* Wait for the thread, but no longer than a quick sync may take: who does not wait for a slow one
 * must not be kept by it. WD_OK or WD_EIO. */
static int await(wd_commit *c)
{
    struct timespec until = wd_clock_deadline(AWAIT_NS);
    int timed_out = 0;
    (void)pthread_mutex_lock(&c->lock);
    while (c->state == GIVEN && !timed_out)
        timed_out = pthread_cond_timedwait(&c->done, &c->lock, &until) == ETIMEDOUT;
    c->awaited = 0;
    int done = c->state == DONE;
    (void)pthread_mutex_unlock(&c->lock);
    if (!done) return WD_OK;
    c->awaited_syncs++;
    return wd_commit_collect(c);
}

/* Should the loop sync by itself or wait for it: the disk is quick enough for those who wait. */
static int syncs_alone(const wd_commit *c, uint32_t waiting)
{
    if (c->mode == WD_COMMIT_INLINE) return 1;
    return c->last_sync_ns < (waiting == 1 ? OWN_SYNC_NS_MAX : c->herd_sync_ns);
}

int wd_commit_blocks(const wd_commit *c, uint32_t waiting)
{
    return c->log && c->fsync_mode == WD_FSYNC_ALWAYS && !c->flight && c->failure == WD_OK &&
           syncs_alone(c, waiting) && wd_engine_queued_bytes(c->engine) > 0;
}

int wd_commit_submit(wd_commit *c, uint32_t waiting, int all_wait)
{
    if (c->failure != WD_OK) return WD_EIO;
    if (c->mode == WD_COMMIT_DRIVEN || !c->log || (c->flight && !c->stalled)) return WD_OK;
    if (c->fsync_mode != WD_FSYNC_ALWAYS || c->mode == WD_COMMIT_INLINE) return write_all(c);
    wd_batch *b = next_batch(c);
    if (!b) return WD_OK;
    /* With more behind it the thread takes it, so that nothing stays queued without a wake-up. */
    int quick = syncs_alone(c, waiting) && wd_engine_queued_bytes(c->engine) == 0;
    if (quick && all_wait) { /* nobody else is kept, however long it takes */
        c->own_syncs++;
        return write_one(c, b);
    }
    hand_over(c, b, quick);
    return quick ? await(c) : WD_OK;
}

int wd_commit_collect(wd_commit *c)
{
    if (c->failure != WD_OK) return WD_EIO;
    if (!c->has_thread) return WD_OK;
    (void)pthread_mutex_lock(&c->lock);
    int status = c->thread_status;
    uint64_t took_ns = c->thread_ns;
    wd_batch *b = NULL;
    if (c->state == DONE) {
        b = c->flight;
        c->flight = NULL;
        c->state = IDLE;
    }
    if (status == WD_EFULL) c->thread_status = WD_OK; /* told once: the log has not failed */
    (void)pthread_mutex_unlock(&c->lock);
    if (b) return land_or_fail(c, b, status, took_ns);
    if (status == WD_OK) return WD_OK;
    c->failure = status;
    return WD_EIO;
}

int wd_commit_is_stalled(const wd_commit *c)
{
    return c->stalled;
}

int wd_commit_busy(const wd_commit *c)
{
    return c->flight != NULL;
}

uint64_t wd_commit_durable_seq(const wd_commit *c)
{
    return c->durable_seq;
}

uint64_t wd_commit_durable_lsn(const wd_commit *c)
{
    return c->durable_lsn;
}

void wd_commit_set_durable_lsn(wd_commit *c, uint64_t lsn)
{
    WD_ASSERT(c->durable_seq == 0 && !c->flight);
    c->durable_lsn = lsn;
}

int wd_commit_failure(const wd_commit *c)
{
    return c->failure;
}

wd_commit_figures *wd_commit_figures_of(wd_commit *c)
{
    return &c->figures;
}

uint64_t wd_commit_awaited_syncs(const wd_commit *c)
{
    return c->awaited_syncs;
}

uint64_t wd_commit_own_syncs(const wd_commit *c)
{
    return c->own_syncs;
}

/* ---- driven ---- */

int wd_commit_take(wd_commit *c, wd_span *out_frame, uint64_t *out_lsn)
{
    WD_ASSERT(out_frame && out_lsn);
    if (c->mode != WD_COMMIT_DRIVEN) return WD_EINVAL;
    wd_batch *b = next_batch(c);
    if (!b) return WD_EAGAIN;
    WD_ASSERT(b->bytes.cap - b->bytes.n >= 8);
    b->meta.durable_lsn = c->durable_lsn;
    size_t n = wd_frame_seal(b->bytes.p, &b->meta, 0, c->driven_crc);
    c->driven_crc = wd_frame_crc(b->bytes.p);
    c->flight = b;
    *out_frame = (wd_span){b->bytes.p, n};
    *out_lsn = last_lsn(b);
    return WD_OK;
}

int wd_commit_driven_durable(wd_commit *c, uint64_t lsn)
{
    if (c->mode != WD_COMMIT_DRIVEN) return WD_EINVAL;
    uint64_t known = c->flight ? last_lsn(c->flight) : c->durable_lsn;
    if (lsn > known) return WD_EINVAL;
    if (!c->flight || lsn < known) return WD_OK;
    wd_batch *b = c->flight;
    c->flight = NULL;
    landed(c, b, 0);
    return WD_OK;
}
