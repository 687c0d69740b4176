/* wd_ckptwriter.c -- a checkpoint's chunks to its file, by a thread or by steps.
 *
 * Pace. Unpaced, a checkpoint of 1 GB beside the log makes its commits wait for 200 ms and more.
 * A sync of the log waits for what the disk has in hand, so this must be little at each moment: the
 * file goes to the disk piece by piece, two of them under way at most, with a rate on top, and is
 * read back in pieces too, without the kernel's reading ahead. The 99th percentile of a commit is
 * then 1.1 to 1.7 times that without a checkpoint; by MiB, with 4 of them under way, it is 3.3 to
 * 4.0 times, at twice the speed. And the last sync finds next to nothing to do.
 *
 * Proof. When all is written and synced the pages are dropped from the cache and the whole file is
 * read again and verified: what a checkpoint replaces is deleted on the word of this reading.
 *
 * Invariants
 *   1. A buffer has one owner: idle (state FREE), the loop (TAKEN), the queue (FULL), and only the
 *      writing side looks into a FULL one.
 *   2. FULL buffers are written in the order of their tickets.
 *   3. After a failure nothing is written any more, and no buffer comes back.
 * The lock guards struct shared; file calls are made without it.
 */
#define _GNU_SOURCE
#include "wd_ckptwriter.h"

#include "wd_clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { FILE_MODE = 0600, SLEEP_NS_MIN = 100 * 1000 };
#define NS_PER_S UINT64_C(1000000000)

enum { FREE = 0, TAKEN, FULL };

typedef struct {
    wd_buf buf;
    uint64_t ticket; /* FULL: the order of giving */
    int state;
} slot;

struct wd_ckptwriter {
    wd_ckptwriter_options o;
    char path[WD_CKPT_PATH_BYTES];

    /* the writing side's own */
    int fd; /* -1: not made yet, or closed */
    int64_t offset, started_bytes, waited_bytes;
    uint64_t free_at_ns; /* monotonic: the rate allows the next bytes from here on */
    wd_ckpt_scan scan;
    wd_buf reading; /* bytes of the file at scan_offset that are not scanned yet */
    int64_t read_offset;

    pthread_t thread;
    int has_thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    slot slots[WD_CKPT_BUFFERS];
    uint64_t tickets, next_ticket;
    int ended, stop;
    wd_ckptwriter_state state;
};

static void lock(wd_ckptwriter *w)
{
    int error = pthread_mutex_lock(&w->lock);
    WD_ASSERT(error == 0);
}

static void unlock(wd_ckptwriter *w)
{
    int error = pthread_mutex_unlock(&w->lock);
    WD_ASSERT(error == 0);
}

static void wake(const wd_ckptwriter *w)
{
    uint64_t one = 1;
    if (w->o.wake_fd < 0) return;
    ssize_t k = write(w->o.wake_fd, &one, sizeof one);
    WD_ASSERT(k == (ssize_t)sizeof one || errno == EAGAIN || errno == EINTR);
}

/* ---- the file, without the lock ---- */

static void set_stage(wd_ckptwriter *w, int stage)
{
    lock(w);
    WD_ASSERT(w->state.stage != WD_WRITER_FAILED);
    w->state.stage = stage;
    unlock(w);
    wake(w);
}

static void close_file(wd_ckptwriter *w)
{
    if (w->fd >= 0) (void)w->o.io->close(w->o.io->disk, w->fd);
    w->fd = -1;
}

/* The checkpoint has failed: its room on the disk is given back. Always WD_EIO. */
static int fail(wd_ckptwriter *w, const char *call, int64_t result, int verdict)
{
    int had_file = w->fd >= 0;
    close_file(w);
    if (had_file) (void)w->o.io->unlink(w->o.io->disk, w->path);
    lock(w);
    w->state.stage = WD_WRITER_FAILED;
    w->state.error = result < 0 ? (int)-result : verdict ? 0 : EIO;
    w->state.verdict = verdict;
    (void)snprintf(w->state.call, sizeof w->state.call, "%s", call);
    unlock(w);
    wake(w);
    return WD_EIO;
}

static int open_file(wd_ckptwriter *w)
{
    const wd_io *io = w->o.io;
    WD_ASSERT(w->fd < 0);
    int result = io->unlink(io->disk, w->path);
    if (result < 0 && result != -ENOENT) return fail(w, "unlink", result, 0);
    w->fd = io->open(io->disk, w->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
    return w->fd < 0 ? fail(w, "open", w->fd, 0) : WD_OK;
}

/* Let the kernel write what is new, and wait for what it was given before that. */
static int write_back(wd_ckptwriter *w)
{
    const wd_io *io = w->o.io;
    if (!io->writeback) return WD_OK;
    int64_t before = w->started_bytes - w->waited_bytes;
    int result = io->writeback(io->disk, w->fd, w->started_bytes, w->offset - w->started_bytes, 0);
    if (result == 0 && before > 0)
        result = io->writeback(io->disk, w->fd, w->waited_bytes, before, 1);
    if (result < 0) return fail(w, "writeback", result, 0);
    w->waited_bytes = w->started_bytes;
    w->started_bytes = w->offset;
    return WD_OK;
}

/* Under the lock: n bytes were moved; wait as long as the rate asks for, or until stopped. Within
 * rounds nobody waits. */
static void keep_pace(wd_ckptwriter *w, size_t n)
{
    WD_ASSERT(n > 0);
    if (w->o.rate_bytes == 0 || !w->has_thread) return;
    uint64_t now_ns = wd_clock_mono_ns();
    if (w->free_at_ns < now_ns)
        w->free_at_ns = now_ns; /* time that passed unused is not saved up */
    w->free_at_ns += (uint64_t)n * NS_PER_S / w->o.rate_bytes;
    if (w->free_at_ns < now_ns + SLEEP_NS_MIN) return;
    struct timespec until = wd_clock_deadline(w->free_at_ns - now_ns);
    int error = 0;
    while (!w->stop && error == 0)
        error = pthread_cond_timedwait(&w->changed, &w->lock, &until);
}

static int write_piece(wd_ckptwriter *w, wd_span piece)
{
    wd_file_fault f = {"pwrite", w->path, w->offset, 0};
    if (wd_file_write(w->o.io, w->fd, piece, &f) != WD_OK) return fail(w, f.call, f.result, 0);
    w->offset += (int64_t)piece.n;
    int status = write_back(w);
    lock(w);
    w->state.written_bytes = (uint64_t)w->offset;
    if (status == WD_OK) keep_pace(w, piece.n);
    unlock(w);
    return status;
}

static int write_bytes(wd_ckptwriter *w, wd_span bytes)
{
    int status = w->fd < 0 ? open_file(w) : WD_OK;
    for (size_t at = 0; at < bytes.n && status == WD_OK; at += w->o.piece_bytes) {
        size_t left = bytes.n - at;
        status = write_piece(
            w, (wd_span){bytes.p + at, left < w->o.piece_bytes ? left : w->o.piece_bytes});
    }
    return status;
}

static int sync_file(wd_ckptwriter *w)
{
    const wd_io *io = w->o.io;
    WD_ASSERT(w->fd >= 0);
    int result = io->datasync(io->disk, w->fd);
    if (result < 0) return fail(w, "datasync", result, 0);
    result = io->forget ? io->forget(io->disk, w->fd) : 0;
    if (result < 0) return fail(w, "forget", result, 0);
    set_stage(w, WD_WRITER_VERIFIES);
    return WD_OK;
}

/* Read and verify some more. */
static int verify_some(wd_ckptwriter *w)
{
    const wd_io *io = w->o.io;
    uint64_t room = (uint64_t)(w->offset - w->read_offset) + w->reading.n;
    size_t left = (size_t)(room - w->reading.n);
    size_t want = left < w->o.piece_bytes ? left : w->o.piece_bytes;
    if (wd_buf_need(&w->reading, want + 1) != WD_OK) return fail(w, "memory", -ENOMEM, 0);
    /* One byte more than there should be: the file must end where its bytes end. */
    int64_t got = io->pread(io->disk, w->fd, w->reading.p + w->reading.n, want + 1, w->read_offset);
    if (got < 0) return fail(w, "pread", got, 0);
    if (got > (int64_t)want && (uint64_t)w->read_offset + want == (uint64_t)w->offset)
        return fail(w, "verify", 0, WD_CKPT_TRAILING);
    if (got == 0) return fail(w, "verify", 0, WD_CKPT_SHORT);
    size_t fresh = (size_t)got < want ? (size_t)got : want;
    w->reading.n += fresh;
    w->read_offset += (int64_t)fresh;
    wd_ckpt_scan_run(w->reading.p, w->reading.n, room, &w->scan);
    wd_buf_shift(&w->reading, (size_t)w->scan.bytes);
    lock(w);
    w->state.verified_bytes = (uint64_t)w->read_offset - w->reading.n;
    if (w->scan.stop == WD_CKPT_MORE) keep_pace(w, fresh);
    unlock(w);
    if (w->scan.stop == WD_CKPT_MORE) return WD_OK;
    if (w->scan.stop != WD_CKPT_WHOLE) return fail(w, "verify", 0, w->scan.stop);
    /* The pages that were read go too: they are of no use to anybody but a restart. */
    if (io->forget) (void)io->forget(io->disk, w->fd);
    close_file(w);
    set_stage(w, WD_WRITER_DONE);
    return WD_OK;
}

/* ---- the queue, under the lock ---- */

static slot *next_full(wd_ckptwriter *w)
{
    for (int i = 0; i < WD_CKPT_BUFFERS; i++)
        if (w->slots[i].state == FULL && w->slots[i].ticket == w->next_ticket) return &w->slots[i];
    return NULL;
}

static void done_with(wd_ckptwriter *w, slot *s)
{
    s->buf.n = 0;
    s->state = FREE;
    w->next_ticket++;
}

static int has_work(wd_ckptwriter *w)
{
    return w->state.stage < WD_WRITER_DONE && (w->ended || next_full(w));
}

/* Do one thing of what there is to do; without the lock. */
static void work(wd_ckptwriter *w)
{
    lock(w);
    WD_ASSERT(has_work(w));
    int stage = w->state.stage;
    slot *s = next_full(w);
    unlock(w);
    if (s) {
        int status = write_bytes(w, (wd_span){s->buf.p, s->buf.n});
        lock(w);
        done_with(w, s);
        unlock(w);
        if (status == WD_OK) wake(w);
    } else if (stage == WD_WRITER_WRITES) {
        set_stage(w, WD_WRITER_SYNCS);
    } else {
        (void)(stage == WD_WRITER_SYNCS ? sync_file(w) : verify_some(w));
    }
}

/* ---- the thread ---- */

static void *thread_main(void *arg)
{
    wd_ckptwriter *w = arg;
    lock(w);
    while (!w->stop) {
        if (!has_work(w)) {
            (void)pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        unlock(w);
        work(w);
        lock(w);
    }
    unlock(w);
    return NULL;
}

/* ---- life ---- */

static void init_sync(wd_ckptwriter *w)
{
    pthread_condattr_t attr;
    int error = pthread_condattr_init(&attr);
    error |= pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    error |= pthread_cond_init(&w->changed, &attr);
    error |= pthread_condattr_destroy(&attr);
    error |= pthread_mutex_init(&w->lock, NULL);
    WD_ASSERT(error == 0); /* glibc and musl: cannot fail with these attributes */
}

wd_ckptwriter *wd_ckptwriter_new(const wd_ckptwriter_options *o)
{
    WD_ASSERT(o->io && o->path && o->piece_bytes > 0);
    WD_ASSERT(strlen(o->path) < WD_CKPT_PATH_BYTES);
    wd_ckptwriter *w = wd_zalloc(sizeof *w);
    if (!w) return NULL;
    w->o = *o;
    w->o.path = NULL;
    (void)snprintf(w->path, sizeof w->path, "%s", o->path);
    w->fd = -1;
    init_sync(w);
    int failed = 0;
    for (int i = 0; i < WD_CKPT_BUFFERS; i++)
        failed |= wd_buf_need(&w->slots[i].buf, WD_CKPT_CHUNK_HEADER_BYTES + WD_CKPT_CHUNK_BYTES +
                                                    WD_CKPT_HEADER_BYTES) != WD_OK;
    if (!failed && o->threaded) {
        w->has_thread = pthread_create(&w->thread, NULL, thread_main, w) == 0;
        failed = !w->has_thread;
    }
    if (!failed) return w;
    wd_ckptwriter_free(w);
    return NULL;
}

void wd_ckptwriter_free(wd_ckptwriter *w)
{
    if (!w) return;
    if (w->has_thread) {
        lock(w);
        w->stop = 1;
        (void)pthread_cond_signal(&w->changed);
        unlock(w);
        (void)pthread_join(w->thread, NULL);
    }
    if (w->fd >= 0) { /* neither DONE nor FAILED */
        close_file(w);
        (void)w->o.io->unlink(w->o.io->disk, w->path);
    }
    for (int i = 0; i < WD_CKPT_BUFFERS; i++)
        wd_buf_free(&w->slots[i].buf);
    wd_buf_free(&w->reading);
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
    wd_release(w);
}

/* ---- the loop's side ---- */

wd_buf *wd_ckptwriter_take(wd_ckptwriter *w)
{
    wd_buf *b = NULL;
    lock(w);
    for (int i = 0; i < WD_CKPT_BUFFERS && !b; i++) {
        if (w->slots[i].state != FREE) continue;
        w->slots[i].state = TAKEN;
        b = &w->slots[i].buf;
    }
    unlock(w);
    WD_ASSERT(!b || b->n == 0);
    return b;
}

void wd_ckptwriter_give(wd_ckptwriter *w, wd_buf *b)
{
    slot *s = (slot *)(void *)((uint8_t *)b - offsetof(slot, buf));
    WD_ASSERT(s >= w->slots && s < w->slots + WD_CKPT_BUFFERS);
    lock(w);
    WD_ASSERT(s->state == TAKEN && !w->ended);
    s->state = b->n ? FULL : FREE;
    if (b->n) s->ticket = w->tickets++;
    (void)pthread_cond_signal(&w->changed);
    unlock(w);
}

void wd_ckptwriter_end(wd_ckptwriter *w)
{
    lock(w);
    WD_ASSERT(!w->ended);
    w->ended = 1;
    (void)pthread_cond_signal(&w->changed);
    unlock(w);
}

int wd_ckptwriter_step(wd_ckptwriter *w)
{
    WD_ASSERT(!w->has_thread);
    if (!has_work(w)) return 0;
    work(w);
    return 1;
}

void wd_ckptwriter_get(wd_ckptwriter *w, wd_ckptwriter_state *out)
{
    lock(w);
    *out = w->state;
    unlock(w);
}

uint64_t wd_ckptwriter_memory(const wd_ckptwriter *w)
{
    uint64_t n = 0;
    for (int i = 0; i < WD_CKPT_BUFFERS; i++)
        n += w->slots[i].buf.cap;
    return n;
}
