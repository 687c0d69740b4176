/* wd_batch.c -- one way into the log: keep a record in the open batch, apply it.
 *
 * Order in wd_log_record makes a failure harmless: the bytes first, behind the batch's end; then
 * apply, which either changes everything or nothing; only then the end of the batch moves. The
 * bytes come before apply because a record may point into what apply frees (a key, a text).
 */
#include "wd_state.h"

enum {
    SPARE_BYTES = 8, /* behind the records: padding */
    BATCH_ROOM_BYTES = WD_FRAME_HEADER_BYTES + WD_BATCH_CLOSE_BYTES / 8
};

static void batch_free(wd_batch *b)
{
    if (!b) return;
    wd_buf_free(&b->bytes);
    wd_release(b);
}

static wd_batch *batch_new(wd_engine *e)
{
    wd_batch *b = e->spare;
    if (b) {
        e->spare = b->next;
        b->next = NULL;
        return b;
    }
    b = wd_zalloc(sizeof *b);
    if (b && wd_buf_need(&b->bytes, BATCH_ROOM_BYTES) == WD_OK) return b;
    batch_free(b);
    return NULL;
}

static int open_batch(wd_engine *e)
{
    wd_batch *b = e->open ? e->open : batch_new(e);
    if (!b) return WD_ENOMEM;
    if (e->open && b->meta.records > 0) return WD_OK;
    if (!e->open) {
        memset(b->bytes.p, 0, WD_FRAME_HEADER_BYTES);
        b->bytes.n = WD_FRAME_HEADER_BYTES;
        b->seq = ++e->seq;
        e->open = b;
    }
    /* One without records may be old, if its first record failed: its time is now. */
    b->meta =
        (wd_frame_meta){.first_lsn = e->lsn + 1, .wall_ms = e->clocks.wall_ms, .rel_ms = e->rel_ms};
    e->frame_wall_ms = b->meta.wall_ms;
    e->frame_rel_ms = b->meta.rel_ms;
    e->apply_term = e->term;
    return WD_OK;
}

int wd_batch_reserve(wd_engine *e, size_t bytes)
{
    WD_ASSERT(e->serving);
    int status = open_batch(e);
    return status == WD_OK ? wd_buf_need(&e->open->bytes, bytes + SPARE_BYTES) : status;
}

int wd_log_record(wd_engine *e, wd_record *r)
{
    WD_ASSERT(e->serving);
    int status = open_batch(e);
    if (status != WD_OK) return status;
    wd_buf *bytes = &e->open->bytes;
    status = wd_buf_need(bytes, wd_record_bound(r) + SPARE_BYTES);
    if (status != WD_OK) return status;
    size_t size = wd_record_encode(r, bytes->p + bytes->n);
    status = wd_apply(e, r);
    if (status != WD_OK) return status;
    bytes->n += size;
    e->queued_bytes += size;
    e->open->meta.records++;
    e->lsn++;
    return WD_OK;
}

uint64_t wd_engine_seq(const wd_engine *e)
{
    /* An open batch without records (its first one failed) is written by nobody: what was logged
     * before it is what a reply can depend on. */
    return e->open && e->open->meta.records == 0 ? e->seq - 1 : e->seq;
}

void wd_engine_close_batch(wd_engine *e)
{
    wd_batch *b = e->open;
    if (!b || b->meta.records == 0) return;
    b->meta.payload_bytes = (uint32_t)(b->bytes.n - WD_FRAME_HEADER_BYTES);
    WD_ASSERT(b->bytes.n + SPARE_BYTES <= b->bytes.cap);
    WD_ASSERT(b->meta.first_lsn + b->meta.records == e->lsn + 1);
    /* Behind the last record, once a frame, as replay does it: a batch may be opened several times
     * before a record stands in it, and a call forgets so many entries at most. */
    wd_ring_age(e->ring, b->meta.rel_ms);
    if (e->queue_last)
        e->queue_last->next = b;
    else
        e->queue_first = b;
    e->queue_last = b;
    e->open = NULL;
}

wd_batch *wd_engine_take_batch(wd_engine *e)
{
    wd_batch *b = e->queue_first;
    if (!b) return NULL;
    e->queue_first = b->next;
    if (!e->queue_first) e->queue_last = NULL;
    b->next = NULL;
    WD_ASSERT(e->queued_bytes >= b->meta.payload_bytes);
    e->queued_bytes -= b->meta.payload_bytes;
    return b;
}

void wd_engine_reuse_batch(wd_engine *e, wd_batch *b)
{
    WD_ASSERT(b && b->next == NULL);
    b->next = e->spare;
    e->spare = b;
}

uint64_t wd_engine_queued_bytes(const wd_engine *e)
{
    return e->queued_bytes;
}

void wd_batches_free(wd_engine *e)
{
    batch_free(e->open);
    for (int i = 0; i < 2; i++) {
        wd_batch *b = i ? e->spare : e->queue_first;
        while (b) {
            wd_batch *next = b->next;
            batch_free(b);
            b = next;
        }
    }
    e->open = e->queue_first = e->queue_last = e->spare = NULL;
}

uint64_t wd_engine_open_bytes(const wd_engine *e)
{
    return e->open ? e->open->bytes.n - WD_FRAME_HEADER_BYTES : 0;
}
