/* wd_checkpoint.c -- the fuzzy scan: what is written when, and what that is worth at replay.
 *
 * The loop thread writes the state down in slices of about a tenth of a millisecond between
 * commands: no fork, no copy, no lock. Order of the sections:
 *
 *   names, PUT table, rows by slot, ended ring, ONCE ring, END
 *
 * and new names before anything else in whichever section, so that a row or an entry never names a
 * handler or policy that a reader does not know yet. Rows are exact when they are written; each
 * carries the lsn of its last change, and wd_replay.c makes one state of them, with the log from
 * S0 on. What that needs of this file:
 *
 *   1. S0 and S1 are ends of frames: both close the open batch.
 *   2. Every slot below S0's top is written, once, in order; a free one with its generation, or ids
 *      would be used again. Slots above it are made by the log.
 *   3. Of the rings, only entries that stood there at S0 are written, under their numbers; those
 *      that are forgotten before they are come to is what END tells, as of S1.
 *   4. An entry of the PUT table keeps its place while it lives, so that none that stands there
 *      from S0 to S1 is missed.
 *   5. logical now and the lowest generation to come are S0's; the clocks in END are S1's.
 *
 * Not here: files (wd_ckptwriter.c), when to begin (the owner), when the file counts (S1 durable:
 * wd_save.c).
 */
#include "wd_checkpoint.h"

#include "wd_clock.h"
#include "wd_image.h"

enum {
    SLICE_NS = 100 * 1000,
    CLOCK_THINGS = 32,      /* things between two looks at the clock ... */
    CLOCK_BYTES = 32 * 1024 /* ... unless they are long */
};

enum section { TABLE = 0, ROWS, ENDED, ONCE, END, OVER };

struct wd_checkpoint {
    wd_engine *e;
    wd_ckptwriter *w;
    uint32_t salt, slice_things;
    enum section section;

    /* where the scan is */
    uint32_t handlers, policies; /* written so far */
    uint32_t entry, entries;     /* numbers in the PUT table: next, end */
    uint32_t slot, slots;
    wd_numbers ended, once; /* next to write, end */

    /* the chunk being filled */
    wd_buf *buf; /* NULL: none taken */
    wd_chunk_meta chunk;

    wd_checkpoint_figures f;
};

/* ---- chunks ---- */

static size_t payload_bytes(const wd_checkpoint *k)
{
    WD_ASSERT(k->buf->n >= WD_CKPT_CHUNK_HEADER_BYTES);
    return k->buf->n - WD_CKPT_CHUNK_HEADER_BYTES;
}

/* The chunk being filled goes to the writer. */
static void close_chunk(wd_checkpoint *k)
{
    uint8_t crc[4];
    if (k->chunk.count == 0) return;
    k->chunk.payload_bytes = (uint32_t)payload_bytes(k);
    k->chunk.number = k->f.chunks;
    k->buf->n = wd_chunk_seal(k->buf->p, &k->chunk, k->salt);
    wd_put_u32(crc, wd_chunk_crc(k->buf->p));
    if (k->chunk.kind != WD_CHUNK_END) {
        k->f.crc = wd_crc32c(k->f.crc, crc, sizeof crc);
        k->f.chunks++;
        k->f.things += k->chunk.count;
    }
    k->f.bytes += k->buf->n;
    wd_ckptwriter_give(k->w, k->buf);
    k->buf = NULL;
    k->chunk = (wd_chunk_meta){0};
}

enum room { ROOM, WAIT, NO_MEMORY, CORRUPT };

/* Room for the image of thing `first` of this kind, n bytes, in a chunk of its kind whose last
 * thing was the one before it. */
static enum room make_room(wd_checkpoint *k, int kind, uint64_t first, size_t n)
{
    wd_chunk_meta *c = &k->chunk;
    int fits = c->count > 0 && c->kind == kind && payload_bytes(k) + n <= WD_CKPT_CHUNK_BYTES &&
               (first == 0 || c->first + c->count == first);
    WD_ASSERT(wd_chunk_whole(n) <= WD_CKPT_CHUNK_BYTES_MAX);
    if (fits) return ROOM;
    close_chunk(k);
    WD_ASSERT(!k->buf);
    k->buf = wd_ckptwriter_take(k->w);
    if (!k->buf) return WAIT;
    if (wd_buf_need(k->buf, WD_CKPT_CHUNK_HEADER_BYTES + n + 8) != WD_OK) return NO_MEMORY;
    k->buf->n = WD_CKPT_CHUNK_HEADER_BYTES;
    *c = (wd_chunk_meta){.kind = (uint8_t)kind, .first = first};
    return ROOM;
}

/* Where the image goes; put() ends it. */
static uint8_t *place_of(const wd_checkpoint *k)
{
    return k->buf->p + k->buf->n;
}

static void put(wd_checkpoint *k, size_t n)
{
    k->buf->n += n;
    k->chunk.count++;
    WD_ASSERT(k->buf->n + 8 <= k->buf->cap);
    if (payload_bytes(k) >= WD_CKPT_CHUNK_BYTES) close_chunk(k);
}

/* ---- one thing each; ROOM: it was written, or there was none ---- */

static enum room write_name(wd_checkpoint *k)
{
    const wd_engine *e = k->e;
    if (k->handlers < wd_handlers_count(e->names)) {
        enum room room =
            make_room(k, WD_CHUNK_HANDLERS, k->handlers, wd_image_handler_bytes(e, k->handlers));
        if (room != ROOM) return room;
        put(k, wd_image_handler_put(e, k->handlers, place_of(k)));
        k->handlers++;
        return ROOM;
    }
    enum room room = make_room(k, WD_CHUNK_POLICIES, k->policies, WD_IMAGE_POLICY_BYTES);
    if (room != ROOM) return room;
    put(k, wd_image_policy_put(e, k->policies, place_of(k)));
    k->policies++;
    return ROOM;
}

static enum room write_entry(wd_checkpoint *k)
{
    wd_entry entry;
    if (k->entry == k->entries) {
        k->section = ROWS;
        return ROOM;
    }
    if (wd_table_at(k->e->table, k->entry, &entry) == WD_OK) {
        enum room room = make_room(k, WD_CHUNK_TABLE, 0, wd_image_entry_bytes(&entry));
        if (room != ROOM) return room;
        put(k, wd_image_entry_put(&entry, place_of(k)));
    }
    k->entry++;
    return ROOM;
}

static enum room write_row(wd_checkpoint *k)
{
    if (k->slot == k->slots) {
        k->section = ENDED;
        return ROOM;
    }
    /* A payload that changed in memory must not replace the true one, which is on the disk: in the
     * checkpoint in force or the log behind it. The scan stands here until it was put back. */
    if (k->e->rows[k->slot].state != WD_FREE && !wd_payload_is_intact(k->e, k->slot)) {
        k->f.corrupt_id = wd_job_id(k->e->slab, k->slot);
        return CORRUPT;
    }
    enum room room = make_room(k, WD_CHUNK_ROWS, k->slot, wd_image_row_bytes(k->e, k->slot));
    if (room != ROOM) return room;
    put(k, wd_image_row_put(k->e, k->slot, place_of(k)));
    k->f.jobs += k->e->rows[k->slot].state != WD_FREE;
    k->slot++;
    k->f.slots_done++;
    return ROOM;
}

static enum room write_ended(wd_checkpoint *k)
{
    wd_numbers have = wd_ring_ended_numbers(k->e->ring);
    if (k->ended.first < have.first) k->ended.first = have.first;
    if (k->ended.first >= k->ended.next) {
        k->section = ONCE;
        return ROOM;
    }
    const wd_ended *x = wd_ring_ended_at(k->e->ring, k->ended.first - have.first);
    enum room room = make_room(k, WD_CHUNK_ENDED, k->ended.first, wd_image_ended_bytes(x));
    if (room != ROOM) return room;
    put(k, wd_image_ended_put(k->e, x, place_of(k)));
    k->ended.first++;
    return ROOM;
}

static enum room write_once(wd_checkpoint *k)
{
    wd_numbers have = wd_ring_once_numbers(k->e->ring);
    if (k->once.first < have.first) k->once.first = have.first;
    if (k->once.first >= k->once.next) {
        k->section = END;
        return ROOM;
    }
    const wd_once *x = wd_ring_once_at(k->e->ring, k->once.first - have.first);
    enum room room = make_room(k, WD_CHUNK_ONCE, k->once.first, WD_IMAGE_ONCE_BYTES);
    if (room != ROOM) return room;
    put(k, wd_image_once_put(x, place_of(k)));
    k->once.first++;
    return ROOM;
}

/* S1 is now. */
static enum room write_end(wd_checkpoint *k)
{
    wd_engine *e = k->e;
    enum room room = make_room(k, WD_CHUNK_END, 0, WD_CKPT_END_BYTES);
    if (room != ROOM) return room;
    wd_engine_close_batch(e);
    wd_ckpt_end end = {.start_lsn = k->f.start_lsn,
                       .end_lsn = e->lsn,
                       .wall_ms = e->clocks.wall_ms,
                       .rel_ms = e->rel_ms,
                       .ended_next = k->ended.next,
                       .ended_head = wd_ring_ended_numbers(e->ring).first,
                       .once_next = k->once.next,
                       .once_head = wd_ring_once_numbers(e->ring).first,
                       .things = k->f.things,
                       .jobs = k->f.jobs,
                       .chunks = k->f.chunks,
                       .crc = k->f.crc};
    wd_ckpt_end_encode(&end, place_of(k));
    put(k, WD_CKPT_END_BYTES);
    close_chunk(k);
    wd_ckptwriter_end(k->w);
    k->f.end_lsn = end.end_lsn;
    k->f.over = 1;
    k->section = OVER;
    return ROOM;
}

static enum room write_thing(wd_checkpoint *k)
{
    int names_lack = k->handlers < wd_handlers_count(k->e->names) ||
                     k->policies < wd_policies_count(k->e->names);
    if (names_lack) return write_name(k);
    switch (k->section) {
    case TABLE:
        return write_entry(k);
    case ROWS:
        return write_row(k);
    case ENDED:
        return write_ended(k);
    case ONCE:
        return write_once(k);
    case END:
        return write_end(k);
    case OVER:
        break;
    }
    return WAIT;
}

/* ---- slices ---- */

/* By time: is the slice over? */
typedef struct {
    uint64_t end_ns;
    uint64_t bytes; /* in the file at the last look */
    uint32_t things;
} stopwatch;

static uint64_t bytes_so_far(const wd_checkpoint *k)
{
    return k->f.bytes + (k->buf ? k->buf->n : 0);
}

static int time_is_up(const wd_checkpoint *k, stopwatch *t)
{
    uint64_t bytes = bytes_so_far(k);
    if (++t->things < CLOCK_THINGS && bytes - t->bytes < CLOCK_BYTES) return 0;
    t->things = 0;
    t->bytes = bytes;
    return wd_clock_mono_ns() >= t->end_ns;
}

static int slice_by_number(wd_checkpoint *k)
{
    enum room room = ROOM;
    for (uint32_t i = 0; i < k->slice_things && room == ROOM; i++)
        room = write_thing(k);
    k->f.no_memory |= room == NO_MEMORY;
    return room == ROOM && !k->f.over;
}

static int slice_by_time(wd_checkpoint *k)
{
    enum room room = ROOM;
    uint64_t cpu_ns = wd_clock_thread_ns(), start_ns = wd_clock_mono_ns();
    stopwatch t = {.end_ns = start_ns + SLICE_NS, .bytes = bytes_so_far(k)};
    do
        room = write_thing(k);
    while (room == ROOM && !time_is_up(k, &t));
    k->f.no_memory |= room == NO_MEMORY;
    uint64_t took_ns = wd_clock_mono_ns() - start_ns;
    if (took_ns > k->f.slice_ns_max) k->f.slice_ns_max = took_ns;
    cpu_ns = wd_clock_thread_ns() - cpu_ns;
    k->f.scan_ns += cpu_ns;
    if (cpu_ns > k->f.slice_cpu_ns_max) k->f.slice_cpu_ns_max = cpu_ns;
    return room == ROOM;
}

int wd_checkpoint_slice(wd_checkpoint *k)
{
    WD_ASSERT(k->e->serving);
    WD_ASSERT(!k->f.no_memory); /* or its owner has not looked */
    if (k->f.over || k->f.corrupt_id) return 0;
    k->f.slices++;
    return k->slice_things ? slice_by_number(k) : slice_by_time(k);
}

void wd_checkpoint_go_on(wd_checkpoint *k)
{
    k->f.corrupt_id = 0;
}

/* ---- life ---- */

/* The header block is the first thing that the writer gets. */
static void write_header(wd_checkpoint *k, const uint8_t *uuid)
{
    const wd_engine *e = k->e;
    wd_slab_counts have = wd_slab_count(e->slab);
    wd_ckpt_meta m = {.term = e->term,
                      .start_lsn = k->f.start_lsn,
                      .salt = k->salt,
                      .created_wall_ms = e->clocks.wall_ms,
                      .logical_ms = e->logical_ms,
                      .slots = k->slots,
                      .jobs = have.rows,
                      .keys = wd_index_count(e->keys),
                      .generation = wd_slab_floor(e->slab),
                      .blob_bytes = wd_arena_used(e->arena),
                      .sides = have.sides,
                      .runs = have.runs};
    memcpy(m.uuid, uuid, sizeof m.uuid);
    wd_buf *b = wd_ckptwriter_take(k->w);
    WD_ASSERT(b && b->cap >= WD_CKPT_HEADER_BYTES); /* a fresh writer's buffers hold a chunk */
    wd_ckpt_header_encode(&m, b->p);
    b->n = WD_CKPT_HEADER_BYTES;
    k->f.bytes = b->n;
    wd_ckptwriter_give(k->w, b);
}

wd_checkpoint *wd_checkpoint_new(wd_engine *e, wd_ckptwriter *w, const wd_checkpoint_options *o)
{
    WD_ASSERT(e->serving);
    WD_ASSERT(w && o->uuid);
    wd_checkpoint *k = wd_zalloc(sizeof *k);
    if (!k) return NULL;
    wd_engine_close_batch(e);
    k->e = e;
    k->w = w;
    k->salt = k->f.crc = o->salt;
    k->slice_things = o->slice_things;
    k->entries = wd_table_top(e->table);
    k->slots = wd_slab_top(e->slab);
    k->ended = wd_ring_ended_numbers(e->ring);
    k->once = wd_ring_once_numbers(e->ring);
    k->f.start_lsn = e->lsn;
    k->f.slots = k->slots;
    write_header(k, o->uuid);
    return k;
}

void wd_checkpoint_free(wd_checkpoint *k)
{
    if (k->buf) {
        k->buf->n = 0;
        wd_ckptwriter_give(k->w, k->buf);
    }
    wd_release(k);
}

void wd_checkpoint_get(const wd_checkpoint *k, wd_checkpoint_figures *out)
{
    *out = k->f;
}
