/* wd_engine.c -- life of the engine, time, counters.
 *
 * Two axes (ARCHITECTURE.md, Time). The wall wheel follows `logical now` = the highest wall time
 * ever seen: a wall clock that steps back makes it stand still, never fire early or twice. The rel
 * wheel follows the boot clock, which nobody steps.
 */
#include "wd_state.h"

enum {
    ARENA_PER_MEMORY = 4
}; /* address space reserved for each byte of maxmemory: size classes never
      give room back to each other */

static wd_list empty_list(void)
{
    return (wd_list){WD_NIL, WD_NIL, 0};
}

static int make_tables(wd_engine *e, const wd_engine_options *o)
{
    uint64_t arena_bytes = o->maxmemory_bytes * ARENA_PER_MEMORY;
    e->arena = wd_arena_new(arena_bytes > UINT64_C(1) << 30 ? arena_bytes : UINT64_C(1) << 30);
    e->slab = wd_slab_new(o->jobs_max);
    if (!e->arena || !e->slab) return WD_ENOMEM;
    e->rows = wd_slab_rows(e->slab);
    e->names = wd_names_new(o->hash_key, e->arena);
    e->ring = wd_ring_new(o->jobs_max, e->arena);
    e->table = wd_table_new(o->hash_key, e->arena);
    e->keys = wd_index_new(o->jobs_max);
    e->dead_keys = wd_index_new(o->jobs_max);
    e->working = wd_reserve(sizeof(uint32_t) * WD_HANDLERS_MAX);
    e->dirty = wd_reserve(sizeof(uint32_t) * WD_HANDLERS_MAX);
    return e->names && e->ring && e->table && e->keys && e->dead_keys && e->working && e->dirty
               ? WD_OK
               : WD_ENOMEM;
}

wd_engine *wd_engine_new(const wd_engine_options *o)
{
    WD_ASSERT(o->jobs_max > 0 && o->maxmemory_bytes > 0);
    wd_engine *e = wd_zalloc(sizeof *e);
    if (!e) return NULL;
    e->options = *o;
    e->random = o->seed;
    e->leased = e->dead = empty_list();
    e->ended_first = e->ended_last = e->expiring = WD_NIL;
    if (make_tables(e, o) == WD_OK) return e;
    wd_engine_free(e);
    return NULL;
}

void wd_engine_free(wd_engine *e)
{
    if (!e) return;
    wd_batches_free(e);
    wd_wheel_free(e->wall_wheel);
    wd_wheel_free(e->rel_wheel);
    wd_index_free(e->keys);
    wd_index_free(e->dead_keys);
    wd_table_free(e->table);
    wd_ring_free(e->ring);
    wd_names_free(e->names);
    wd_slab_free(e->slab);
    wd_arena_free(e->arena);
    wd_unreserve(e->working, sizeof(uint32_t) * WD_HANDLERS_MAX);
    wd_unreserve(e->dirty, sizeof(uint32_t) * WD_HANDLERS_MAX);
    wd_release(e);
}

/* ---- start ---- */

/* Put every row where it belongs: at replay rows stood nowhere. */
static void place_all(wd_engine *e)
{
    for (uint32_t slot = 0; slot < wd_slab_top(e->slab); slot++) {
        wd_job *row = &e->rows[slot];
        if (row->state == WD_SCHEDULED) wd_place(e, slot);
        if (row->state != WD_LEASED) continue;
        wd_job_run(e->slab, row)->unheard = 1;
        wd_arm_lease(e, slot);
    }
}

int wd_engine_start(wd_engine *e, uint64_t term, int64_t rel_ms, const wd_clocks *now)
{
    WD_ASSERT(!e->serving);
    WD_ASSERT(term > 0 && rel_ms >= 0);
    if (e->load.stage == WD_LOAD_CHUNKS || wd_is_fuzzy(e)) return WD_ECORRUPT;
    e->clocks = *now;
    e->rel_ms = e->swept_ms = rel_ms;
    e->rel_minus_boot_ms = rel_ms - now->boot_ms;
    /* The latest time logged, or now. The server before may have seen a later one: while nothing
     * was logged the clock ran on, and somebody has set it back since. That is no harm, so it costs
     * no record: a job that came due then and was not handed out waits again, late and not early;
     * one that was handed out, and a schedule that was decided, left a record at that time. Whoever
     * compares a time that was kept with logical now has to bear that it is lower. */
    if (now->wall_ms > e->logical_ms) e->logical_ms = now->wall_ms;
    uint32_t capacity = wd_slab_capacity(e->slab);
    e->wall_wheel = wd_wheel_new(e->rows, capacity, e->logical_ms);
    e->rel_wheel = wd_wheel_new(e->rows, capacity, rel_ms);
    if (!e->wall_wheel || !e->rel_wheel) return WD_ENOMEM;
    e->term = e->apply_term = term;
    wd_slab_link_free(e->slab);
    e->serving = 1;
    wd_leases_refresh(e);
    place_all(e);
    return WD_OK;
}

/* ---- time ---- */

static void log_step(wd_engine *e, int64_t step_ms)
{
    wd_record r = {.kind = WD_R_CLOCK,
                   .fields = WD_F_AT | WD_F_FLAGS | WD_F_NUMBER,
                   .at_ms = e->clocks.wall_ms,
                   .number = step_ms};
    e->stats.clock_steps++;
    (void)wd_log_record(e, &r); /* without memory for it the step is only counted */
}

/* Keep what an axis jumped over: where it stands now, and where it would without the jump. */
static void keep_jump(int64_t from_ms, int64_t to_ms, int64_t *kept_from_ms, int64_t *kept_to_ms)
{
    if (to_ms - from_ms <= WD_STEP_MS) return;
    if (*kept_to_ms == 0 || from_ms < *kept_from_ms) *kept_from_ms = from_ms;
    if (to_ms > *kept_to_ms) *kept_to_ms = to_ms;
}

/* Take the clocks in: tell steps and suspends, move both axes. */
static void move_clocks(wd_engine *e, const wd_clocks *now)
{
    wd_clocks old = e->clocks;
    int64_t boot_passed = now->boot_ms - old.boot_ms;
    int64_t mono_passed = now->mono_ms - old.mono_ms;
    int64_t step_ms = now->wall_ms - old.wall_ms - boot_passed;
    WD_ASSERT(now->wall_ms >= 0 && now->wall_ms < WD_DUE_MS_END);
    int64_t rel_ms = e->rel_ms;
    e->clocks = *now;
    if (now->boot_ms + e->rel_minus_boot_ms > e->rel_ms)
        e->rel_ms = now->boot_ms + e->rel_minus_boot_ms;
    if (boot_passed - mono_passed > WD_STEP_MS) {
        e->stats.suspends++;
        wd_leases_refresh(e);
    }
    if (step_ms > WD_STEP_MS || step_ms < -WD_STEP_MS) log_step(e, step_ms);
    keep_jump(old.wall_ms + mono_passed, now->wall_ms, &e->jump.wall_from_ms, &e->jump.wall_to_ms);
    keep_jump(rel_ms + mono_passed, e->rel_ms, &e->jump.rel_from_ms, &e->jump.rel_to_ms);
    if (now->wall_ms > e->logical_ms) e->logical_ms = now->wall_ms;
}

void wd_engine_asked_at(wd_engine *e, int64_t boot_ms)
{
    e->asked_ms = boot_ms + e->rel_minus_boot_ms;
}

int64_t wd_after(const wd_engine *e, int64_t delay_ms)
{
    WD_ASSERT(delay_ms >= 0);
    int64_t from_ms = delay_ms > 0 && e->asked_ms > e->rel_ms ? e->asked_ms : e->rel_ms;
    int64_t at_ms = from_ms + delay_ms;
    return at_ms < WD_DUE_MS_END ? at_ms : WD_DUE_MS_END - 1;
}

static int advance(wd_engine *e, wd_wheel *wheel, int64_t target_ms)
{
    uint32_t out[WD_TICK_OUT_MAX];
    int more;
    size_t n = wd_wheel_advance(wheel, target_ms, out, WD_TICK_OUT_MAX, WD_TICK_MOVES_MAX, &more);
    for (size_t i = 0; i < n; i++) {
        if (e->rows[out[i]].state == WD_LEASED) {
            wd_lease_due(e, out[i]);
        } else {
            wd_make_ready(e, out[i]);
            e->stats.fired++;
        }
    }
    return more;
}

/* Look at some of the READY jobs that can expire: all of them once in WD_SWEEP_MS. Those that have
 * expired do not count, or the walk would slow down with every one that it ends. */
static int sweep(wd_engine *e)
{
    uint64_t count = e->expiring_count, left, ends = 0;
    int64_t passed_ms = e->rel_ms - e->swept_ms;
    if (passed_ms > WD_SWEEP_MS) passed_ms = WD_SWEEP_MS;
    uint64_t n = count * (uint64_t)passed_ms / WD_SWEEP_MS;
    if (count && n == 0) return 0; /* let time gather until one is due to be looked at */
    if (n > WD_TICK_OUT_MAX) n = WD_TICK_OUT_MAX;
    for (left = n; left > 0 && ends < WD_TICK_OUT_MAX && e->expiring != WD_NIL;) {
        const wd_side *b = wd_side_at(e->slab, e->expiring);
        uint32_t slot = b->slot;
        int over = b->expire_ms <= (b->expire_rel ? e->rel_ms : e->clocks.wall_ms);
        e->expiring = b->expiring_next;
        if (!over) {
            left--;
            continue;
        }
        if (wd_end(e, slot, WD_EXPIRED, WD_V_SERVER, (wd_span){0}) != WD_OK) break;
        ends++;
        e->stats.expired++;
    }
    e->swept_ms = e->rel_ms;
    if (e->expiring_count) /* time whose jobs were not looked at counts at the next tick */
        e->swept_ms -= passed_ms - (int64_t)((n - left) * WD_SWEEP_MS / count);
    return e->expiring_count && (n == WD_TICK_OUT_MAX || ends == WD_TICK_OUT_MAX);
}

int wd_engine_tick(wd_engine *e, const wd_clocks *now, int *out_more)
{
    WD_ASSERT(e->serving);
    move_clocks(e, now);
    int more = 0;
    if (e->clocks.wall_ms >= e->logical_ms) more |= advance(e, e->wall_wheel, e->logical_ms);
    more |= advance(e, e->rel_wheel, e->rel_ms);
    more |= sweep(e);
    *out_more = more;
    return WD_OK;
}

int64_t wd_engine_next_wall_ms(const wd_engine *e)
{
    int64_t next = wd_wheel_next_due(e->wall_wheel);
    return next < e->logical_ms && e->clocks.wall_ms < e->logical_ms ? e->logical_ms : next;
}

int64_t wd_engine_next_rel_ms(const wd_engine *e)
{
    int64_t next = wd_wheel_next_due(e->rel_wheel);
    if (e->expiring_count) {
        int64_t step_ms = WD_SWEEP_MS / (int64_t)e->expiring_count;
        int64_t sweep_ms = e->swept_ms + (step_ms > WD_GRACE_MS_MIN ? step_ms : WD_GRACE_MS_MIN);
        if (sweep_ms < next) next = sweep_ms;
    }
    return next;
}

int64_t wd_engine_wall_ms(const wd_engine *e)
{
    return e->clocks.wall_ms;
}

int64_t wd_engine_rel_ms(const wd_engine *e)
{
    return e->rel_ms;
}

int64_t wd_engine_logical_ms(const wd_engine *e)
{
    return e->logical_ms;
}

wd_jump wd_engine_take_jump(wd_engine *e)
{
    wd_jump jump = e->jump;
    WD_ASSERT(jump.wall_to_ms >= jump.wall_from_ms && jump.rel_to_ms >= jump.rel_from_ms);
    e->jump = (wd_jump){0};
    return jump;
}

/* ---- counters ---- */

uint64_t wd_engine_lsn(const wd_engine *e)
{
    return e->lsn;
}

uint64_t wd_engine_memory(const wd_engine *e)
{
    uint64_t wheels = e->serving ? wd_wheel_bytes(e->wall_wheel) + wd_wheel_bytes(e->rel_wheel) : 0;
    return wd_arena_used(e->arena) + wd_slab_bytes(e->slab) + wd_ring_bytes(e->ring) +
           wd_names_bytes(e->names) + wd_table_bytes(e->table) + wheels + e->queued_bytes +
           (uint64_t)e->lent_bytes;
}

void wd_engine_add_memory(wd_engine *e, int64_t bytes)
{
    e->lent_bytes += bytes;
    WD_ASSERT(e->lent_bytes >= 0);
}

void wd_engine_stats_get(const wd_engine *e, wd_engine_stats *out)
{
    *out = e->stats;
    out->logical_ms = e->logical_ms;
    out->held_ms = e->logical_ms > e->clocks.wall_ms ? e->logical_ms - e->clocks.wall_ms : 0;
    out->ended_count = wd_ring_ended_count(e->ring);
    out->once_count = wd_ring_once_count(e->ring);
    out->dead_count = e->dead.count;
    out->owned_ended_count = e->ended_count;
    out->expiring_count = e->expiring_count;
}

int wd_engine_mend(wd_engine *e, uint64_t id, wd_span payload)
{
    uint32_t slot = wd_slab_find(e->slab, id);
    if (slot == WD_NIL) return WD_EGONE;
    const wd_job *row = &e->rows[slot];
    if (wd_payload_is_intact(e, slot)) return WD_OK;
    if (row->payload == WD_NIL || row->payload_len != payload.n) return WD_EINVAL;
    return wd_arena_mend(e->arena, row->payload, payload);
}

wd_names *wd_engine_names(const wd_engine *e)
{
    return e->names;
}

wd_slab *wd_engine_slab(const wd_engine *e)
{
    return e->slab;
}

uint64_t wd_engine_count(const wd_engine *e, int state)
{
    WD_ASSERT(state > WD_FREE && state <= WD_EXPIRED);
    return e->count[state];
}

uint32_t wd_engine_working_count(const wd_engine *e)
{
    return e->working_count;
}

uint32_t wd_engine_working_at(const wd_engine *e, uint32_t i)
{
    WD_ASSERT(i < e->working_count);
    return e->working[i];
}
