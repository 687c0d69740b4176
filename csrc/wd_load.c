/* wd_load.c -- the loader of a checkpoint: whole chunks, in their order, into an empty state.
 *
 * Chunks go in as they come, so that a start can load in slices; nothing is kept of them. What
 * costs most at ten million rows is waiting for memory: rows come in the order of their slots and
 * are written once, payloads are cut from the arena's top one behind the other, the key index has
 * its final size before the first key comes, and all of it comes in big pages: the header block
 * says how much there will be.
 *
 * A load that failed leaves a state that is good for nothing: its owner throws it away. That is
 * why wal/ verifies a file before anything of it is loaded.
 *
 * Not here: the images (wd_image.c), the rules of the replay behind it (wd_replay.c).
 */
#include "wd_image.h"

/* ---- lists in order ---- */

typedef struct {
    uint64_t lsn;
    uint32_t item;
} place;

/* Sort by lsn: bottom-up merges, n log n whatever comes; spare has room for n. */
static void sort_places(place *a, place *spare, uint32_t n)
{
    for (uint64_t width = 1; width < n; width *= 2) {
        for (uint64_t from = 0; from < n; from += 2 * width) {
            uint64_t mid = from + width < n ? from + width : n;
            uint64_t end = mid + width < n ? mid + width : n, i = from, j = mid;
            for (uint64_t k = from; k < end; k++)
                spare[k] = i < mid && (j == end || a[i].lsn <= a[j].lsn) ? a[i++] : a[j++];
        }
        memcpy(a, spare, (size_t)n * sizeof *a);
    }
}

/* Let the list `dead` be in the order of deaths, whichever order its rows came in. */
static void relink_dead(wd_engine *e, const place *a, uint32_t n)
{
    WD_ASSERT(n == e->dead.count);
    e->dead = (wd_list){WD_NIL, WD_NIL, 0};
    for (uint32_t i = 0; i < n; i++)
        wd_list_add(e, &e->dead, a[i].item);
}

static void relink_ended(wd_engine *e, const place *a, uint32_t n)
{
    WD_ASSERT(n == e->ended_count);
    e->ended_first = e->ended_last = WD_NIL;
    e->ended_count = 0;
    for (uint32_t i = 0; i < n; i++) {
        wd_side_at(e->slab, a[i].item)->on_ended = 0;
        wd_ended_add(e, a[i].item);
        wd_side_at(e->slab, a[i].item)->ended_lsn = a[i].lsn;
    }
}

static void sort_lists(wd_engine *e, place *a, place *spare)
{
    uint32_t n = 0;
    for (uint32_t slot = e->dead.first; slot != WD_NIL; slot = e->rows[slot].next)
        a[n++] = (place){wd_job_run(e->slab, &e->rows[slot])->died_lsn, slot};
    sort_places(a, spare, n);
    relink_dead(e, a, n);
    n = 0;
    for (uint32_t i = e->ended_first; i != WD_NIL; i = wd_side_at(e->slab, i)->ended_next)
        a[n++] = (place){wd_side_at(e->slab, i)->ended_lsn, i};
    sort_places(a, spare, n);
    relink_ended(e, a, n);
}

/* In one go: a million dead jobs, the most that are kept by default, take 130 ms, once, before
 * anything is served. */
int wd_load_settle(wd_engine *e)
{
    WD_ASSERT(e->load.stage == WD_LOAD_OVER && !e->load.settled);
    WD_ASSERT(e->lsn == e->load.end.end_lsn);
    uint32_t n = e->dead.count > e->ended_count ? e->dead.count : e->ended_count;
    if (n > 1) {
        place *a = wd_alloc(2 * (size_t)n * sizeof *a);
        if (!a) return WD_ENOMEM;
        sort_lists(e, a, a + n);
        wd_release(a);
    }
    wd_table_set_loading(e->table, 0);
    e->load.settled = 1;
    return WD_OK;
}

/* ---- chunks ---- */

/* Thing number `i` of a chunk, at the front of s. */
static int load_thing(wd_engine *e, const wd_chunk_meta *m, uint32_t i, wd_span s,
                      size_t *out_bytes)
{
    uint64_t number = m->first + i, lsn = 0;
    int narrow = number <= UINT32_MAX;
    switch ((enum wd_chunk_kind)m->kind) {
    case WD_CHUNK_HANDLERS:
        return narrow ? wd_image_handler_load(e, (uint32_t)number, s, out_bytes) : WD_ECORRUPT;
    case WD_CHUNK_POLICIES:
        return narrow ? wd_image_policy_load(e, (uint32_t)number, s, out_bytes) : WD_ECORRUPT;
    case WD_CHUNK_ROWS: {
        int status =
            narrow ? wd_image_row_load(e, (uint32_t)number, s, out_bytes, &lsn) : WD_ECORRUPT;
        if (lsn > e->load.newest_lsn) e->load.newest_lsn = lsn;
        return status;
    }
    case WD_CHUNK_TABLE:
        return wd_image_entry_load(e, s, out_bytes);
    case WD_CHUNK_ENDED:
        return wd_image_ended_load(e, number, s, out_bytes);
    case WD_CHUNK_ONCE:
        return wd_image_once_load(e, number, s, out_bytes);
    case WD_CHUNK_END:
        break;
    }
    return WD_ECORRUPT;
}

static int load_chunk(wd_engine *e, const uint8_t *chunk)
{
    wd_chunk_meta m;
    (void)wd_chunk_header(chunk, &m);
    if (m.kind & WD_RECORD_SKIPPABLE) return WD_OK;
    wd_span s = {chunk + WD_CKPT_CHUNK_HEADER_BYTES, m.payload_bytes};
    for (uint32_t i = 0; i < m.count; i++) { /* each thing has bytes, so it ends */
        size_t used = 0;
        int status = load_thing(e, &m, i, s, &used);
        if (status != WD_OK) return status;
        WD_ASSERT(used > 0 && used <= s.n);
        s = (wd_span){s.p + used, s.n - used};
    }
    return s.n == 0 ? WD_OK : WD_ECORRUPT;
}

static int begin(wd_engine *e, const wd_ckpt_meta *m)
{
    e->load.meta = *m;
    e->load.stage = WD_LOAD_CHUNKS;
    if (m->slots > wd_slab_capacity(e->slab)) return WD_EFULL;
    if (m->keys > m->jobs || m->jobs > m->slots) return WD_ECORRUPT;
    if (m->generation > WD_GEN_MAX) return WD_ECORRUPT;
    if (m->logical_ms < 0 || m->logical_ms >= WD_DUE_MS_END) return WD_ECORRUPT;
    wd_index_presize(e->keys, m->keys, m->slots);
    wd_slab_expect(e->slab, m->slots, m->sides, m->runs);
    wd_arena_expect(e->arena, m->blob_bytes);
    wd_slab_raise(e->slab, m->generation);
    wd_table_set_loading(e->table, 1);
    e->lsn = m->start_lsn;
    e->apply_term = m->term;
    e->logical_ms = m->logical_ms;
    return WD_OK;
}

static int finish(wd_engine *e, const wd_ckpt_end *end)
{
    e->load.end = *end;
    e->load.stage = WD_LOAD_OVER;
    if (e->load.newest_lsn > end->end_lsn) return WD_ECORRUPT;
    if (wd_slab_top(e->slab) != e->load.meta.slots) return WD_ECORRUPT;
    if (wd_slab_count(e->slab).rows != end->jobs) return WD_ECORRUPT;
    int status = wd_ring_settle_ended(e->ring, (wd_numbers){end->ended_head, end->ended_next});
    if (status == WD_OK)
        status = wd_ring_settle_once(e->ring, (wd_numbers){end->once_head, end->once_next});
    if (status == WD_OK && !wd_is_fuzzy(e)) status = wd_load_settle(e);
    return status;
}

int wd_engine_load(wd_engine *e, wd_span bytes)
{
    WD_ASSERT(!e->serving);
    wd_load *l = &e->load;
    wd_ckpt_scan *scan = &l->scan;
    if (l->stage == WD_LOAD_OVER || (l->stage == WD_LOAD_NONE && e->lsn > 0)) return WD_EINVAL;
    int fresh = l->stage == WD_LOAD_NONE;
    /* The bytes may have been read twice: what is loaded is what these crcs cover. */
    wd_ckpt_scan_run(bytes.p, bytes.n, UINT64_MAX, scan);
    if (scan->stop == WD_CKPT_NEWER || scan->bytes != bytes.n) return WD_ECORRUPT;
    size_t at = fresh ? WD_CKPT_HEADER_BYTES : 0;
    int status = fresh ? begin(e, &scan->meta) : WD_OK;
    while (status == WD_OK && at < bytes.n) { /* bounded: each chunk has a header */
        wd_chunk_meta m;
        size_t whole = wd_chunk_header(bytes.p + at, &m);
        if (m.kind == WD_CHUNK_END)
            status = finish(e, &scan->end);
        else
            status = load_chunk(e, bytes.p + at);
        at += whole;
    }
    return status;
}

const wd_load *wd_engine_loaded(const wd_engine *e)
{
    return &e->load;
}
