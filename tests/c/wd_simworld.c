/* wd_simworld.c -- the lives of one server: time, its disk's faults, its keeper, its commits, its
 * ends.
 *
 * A step goes to the next moment at which anything happens, lets that happen, and ends the core's
 * round as the server's loop does. Commits are the shipped wd_commit's own (inline), or the world
 * carries each frame to wd_log itself, after a delay, as the commit thread does (driven).
 */
#include "wd_simworld_int.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    FAULTY_LIVES = 4,
    CRASHES_MIN = 3,
    LIFE_EVENTS = 520,
    QUIET_MS = 240 * 1000,
    KEEPER_LOOK_MS = 8,
    KEEPER_SLOW_MS = 1500, /* it hangs in a sync of its own */
    MARK_EVERY_MS = 1000,
    SYNC_EVERY_MS = 50,
    ASK_EVERY = 5,
    CHECK_EVERY = 16,
    ROUNDS_MAX = 64
};
#define START_MS INT64_C(1800000000000) /* 2027-01-15 */

/* ---- randomness, trace ---- */

uint64_t sim_draw(wd_world *w)
{
    uint64_t z = (w->rng += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t sim_below(wd_world *w, uint64_t n)
{
    WD_ASSERT(n > 0);
    return sim_draw(w) % n;
}

int sim_chance(wd_world *w, unsigned per_mille)
{
    return !w->quiet && sim_below(w, 1000) < per_mille;
}

void sim_mix(wd_world *w, const void *p, size_t n)
{
    uint64_t h = w->stats.hash ^ n;
    const uint8_t *at = p;
    for (; n >= 8; n -= 8, at += 8)
        h = (h ^ wd_get_u64(at)) * UINT64_C(0x100000001b3);
    for (; n > 0; n--, at++)
        h = (h ^ *at) * UINT64_C(0x100000001b3);
    w->stats.hash = h ^ (h >> 31);
}

void sim_event(wd_world *w, uint64_t what)
{
    uint64_t seen[2] = {what, (uint64_t)w->true_ms};
    w->stats.events++;
    sim_mix(w, seen, sizeof seen);
}

void sim_violate(wd_world *w, const char *format, ...)
{
    va_list args;
    if (w->violation[0]) return;
    va_start(args, format);
    (void)vsnprintf(w->violation, sizeof w->violation, format, args);
    va_end(args);
}

/* ---- time ---- */

int64_t sim_wall_ms(const wd_world *w)
{
    return w->true_ms + w->wall_offset_ms;
}

static int64_t boot_ms(const wd_world *w)
{
    return w->true_ms - w->boot_base_ms;
}

int64_t sim_rel_ms(const wd_world *w)
{
    return boot_ms(w) + w->rel_minus_boot_ms;
}

int64_t sim_wall_since_ms(const wd_world *w, uint32_t epoch)
{
    int64_t most_ms = 0;
    for (uint32_t i = epoch; i <= w->epoch; i++) {
        if (w->epoch_max_ms[i] > most_ms) most_ms = w->epoch_max_ms[i];
    }
    return most_ms;
}

static void see_wall(wd_world *w)
{
    if (sim_wall_ms(w) > w->wall_max_ms) w->wall_max_ms = sim_wall_ms(w);
    if (sim_wall_ms(w) > w->epoch_max_ms[w->epoch]) w->epoch_max_ms[w->epoch] = sim_wall_ms(w);
}

static void clock_faults(wd_world *w)
{
    if (w->steps_left > 0 && sim_chance(w, w->swarm.step)) {
        int64_t by_ms = (int64_t)sim_below(w, 120000) - 60000;
        w->steps_left--;
        w->wall_offset_ms += by_ms;
        w->epoch++;
        WD_ASSERT(w->epoch < SIM_EPOCHS);
        see_wall(w);
        sim_event(w, 10);
    }
    if (sim_chance(w, w->swarm.suspend)) {
        int64_t by_ms = 1500 + (int64_t)sim_below(w, 20000);
        int64_t before_ms = w->true_ms;
        w->true_ms += by_ms;
        w->suspended_ms += by_ms;
        see_wall(w);
        sim_fresh_terms(w, before_ms);
        sim_event(w, 11);
    }
}

/* ---- plans ---- */

static void choose_swarm(wd_world *w)
{
    sim_swarm *s = &w->swarm;
    unsigned *kinds[] = {&s->cut,  &s->worker_kill, &s->worker_pause, &s->block, &s->cancel,
                         &s->fail, &s->release,     &s->extend,       &s->hang,  &s->expire,
                         &s->keys, &s->no_once,     &s->poison,       &s->far,   &s->split,
                         &s->step, &s->suspend,     &s->slow};
    static const unsigned MOST[] = {20,  15,  25,  30, 90, 180, 90, 500, 60,
                                    100, 150, 150, 40, 80, 200, 8,  3,   300};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        *kinds[i] = sim_below(w, 3) == 0 ? 0 : 1 + (unsigned)sim_below(w, MOST[i]);
    s->absolute = (unsigned)sim_below(w, 700);
    s->save = sim_below(w, 4) ? (unsigned)sim_below(w, 25) : 0;
    s->full = sim_below(w, 2) ? 0 : 1 + (unsigned)sim_below(w, 30);
    s->pipelined = (unsigned)sim_below(w, 500);
    s->lag_ms = sim_below(w, 2) ? 0 : 1 + (unsigned)sim_below(w, 40);
    s->think_ms = 10 + (unsigned)sim_below(w, 150);
}

void wd_world_next_life(wd_world *w, wd_world_plan *out)
{
    /* A frame has to fit; what waits behind a slow disk makes one. */
    static const uint64_t SEGMENTS[][3] = {{16384, 32768, 131072}, {65536, 98304, 131072}};
    wd_world_plan *p = &w->plan;
    int reboot = w->life == 0 || w->ends_by == WORLD_CUT;
    w->quiet = ++w->life > FAULTY_LIVES && w->stats.crashes >= CRASHES_MIN;
    w->true_ms += w->life > 1 ? 1 + (int64_t)sim_below(w, sim_below(w, 4) ? 300 : 20000) : 0;
    if (reboot) {
        w->boot_base_ms = w->true_ms - 1 - (int64_t)sim_below(w, 30000);
        w->suspended_ms = 0;
        w->boot++;
    }
    if (w->quiet && sim_wall_ms(w) < w->wall_max_ms)
        w->wall_offset_ms += w->wall_max_ms - sim_wall_ms(w);
    see_wall(w);
    *p = (wd_world_plan){.fsync_mode =
                             sim_below(w, 5) > 1 ? WD_FSYNC_ALWAYS : 1 + (int)sim_below(w, 2),
                         .salt_seed = (uint32_t)sim_draw(w),
                         .wall_ms = sim_wall_ms(w),
                         .boot_ms = boot_ms(w),
                         .mono_ms = boot_ms(w) - w->suspended_ms,
                         .quiet = w->quiet};
    p->commit_mode =
        p->fsync_mode == WD_FSYNC_ALWAYS && sim_below(w, 2) ? WD_COMMIT_DRIVEN : WD_COMMIT_INLINE;
    p->segment_bytes = SEGMENTS[p->commit_mode == WD_COMMIT_DRIVEN][sim_below(w, 3)];
    wd_put_u64(p->boot_id, w->boot);
    if (!w->quiet && w->life > 1 && sim_below(w, 6) == 0) p->power_off_steps = 1 + sim_below(w, 40);
    *out = *p;
}

/* Which end this life is to have, and which fault of the disk before it. */
static void choose_end(wd_world *w)
{
    static const int HOW[] = {WORLD_KILLED, WORLD_CUT, WORLD_CUT, WORLD_FAILED, WORLD_STOPPED};
    w->ends_by = w->quiet ? WORLD_DONE : HOW[sim_below(w, 5)];
    w->budget = w->stats.events + LIFE_EVENTS / 2 + sim_below(w, LIFE_EVENTS);
    w->fault_kind = -1;
    w->may_fail = 0;
    int lies = w->life >= FAULTY_LIVES && sim_below(w, 2);
    if (w->quiet || (!lies && sim_below(w, 2))) return;
    uint64_t nth = 1 + sim_below(w, 60);
    if (lies) {
        static const int LIES[] = {SIM_LIE, SIM_LIE, SIM_DROP, SIM_MISDIRECT};
        w->fault_kind = LIES[sim_below(w, 4)];
        int call = w->fault_kind == SIM_MISDIRECT ? SIM_PWRITE : SIM_DATASYNC;
        wd_simfs_fault(w->fs, call, nth, w->fault_kind, 0);
    } else if (sim_below(w, 2)) {
        w->fault_kind = SIM_SHORT;
        wd_simfs_fault(w->fs, SIM_PWRITE, nth, SIM_SHORT, 0);
    } else {
        static const int CALLS[] = {SIM_PWRITE, SIM_OPEN, SIM_ALLOCATE};
        int call = CALLS[sim_below(w, 3)];
        w->fault_kind = SIM_FAIL;
        w->may_fail = call == SIM_PWRITE; /* where a segment is made it is a state that passes */
        if (call != SIM_PWRITE) nth = 1 + sim_below(w, 3);
        wd_simfs_fault(w->fs, call, nth, SIM_FAIL, ENOSPC);
    }
}

/* ---- life ---- */

wd_world *wd_world_new(uint64_t seed, wd_simfs *fs)
{
    wd_world *w = calloc(1, sizeof *w);
    WD_ASSERT(w != NULL);
    w->fs = fs;
    w->rng = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    w->jobs = calloc(SIM_JOBS, sizeof *w->jobs);
    w->frame = malloc(SIM_FRAME_BYTES + 8);
    WD_ASSERT(w->jobs && w->frame);
    w->wall_offset_ms = START_MS;
    w->wall_max_ms = START_MS;
    w->steps_left = 3;
    choose_swarm(w);
    sim_peers_new(w);
    return w;
}

void wd_world_free(wd_world *w)
{
    if (!w) return;
    sim_peers_free(w);
    free(w->jobs);
    free(w->frame);
    free(w);
}

int wd_world_bind(wd_world *w, const char *name, void *function)
{
    sim_api *a = &w->api;
    struct {
        const char *name;
        void **place;
    } places[] = {
        {"wd_core_tick", (void **)&a->wd_core_tick},
        {"wd_core_commit", (void **)&a->wd_core_commit},
        {"wd_core_fed_open", (void **)&a->wd_core_fed_open},
        {"wd_core_fed_input", (void **)&a->wd_core_fed_input},
        {"wd_core_fed_eof", (void **)&a->wd_core_fed_eof},
        {"wd_core_fed_ready", (void **)&a->wd_core_fed_ready},
        {"wd_core_fed_output", (void **)&a->wd_core_fed_output},
        {"wd_core_fed_taken", (void **)&a->wd_core_fed_taken},
        {"wd_core_fed_blocked", (void **)&a->wd_core_fed_blocked},
        {"wd_core_fed_close", (void **)&a->wd_core_fed_close},
        {"wd_core_take_batch", (void **)&a->wd_core_take_batch},
        {"wd_core_batch_durable", (void **)&a->wd_core_batch_durable},
        {"wd_core_set_disk_room", (void **)&a->wd_core_set_disk_room},
        {"wd_core_stop_reading", (void **)&a->wd_core_stop_reading},
        {"wd_core_check", (void **)&a->wd_core_check},
        {"wd_core_lsn", (void **)&a->wd_core_lsn},
        {"wd_core_durable_lsn", (void **)&a->wd_core_durable_lsn},
        {"wd_log_append", (void **)&a->wd_log_append},
        {"wd_log_prepare", (void **)&a->wd_log_prepare},
        {"wd_log_sync", (void **)&a->wd_log_sync},
        {"wd_log_mark", (void **)&a->wd_log_mark},
        {"wd_log_stats_get", (void **)&a->wd_log_stats_get},
    };
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (strcmp(places[i].name, name) != 0) continue;
        *places[i].place = function;
        return 1;
    }
    return 0;
}

int wd_world_is_bound(const wd_world *w)
{
    void *const *at = (void *const *)(const void *)&w->api;
    for (size_t i = 0; i < sizeof w->api / sizeof *at; i++) {
        if (!at[i]) return 0;
    }
    return 1;
}

/* ---- what a crash may take ---- */

/* Does the mode allow that this end of a life loses what no sync covered? */
static int may_lose_unsynced(const wd_world *w)
{
    return w->plan.fsync_mode != WD_FSYNC_ALWAYS &&
           (w->ends_by == WORLD_CUT || w->ends_by == WORLD_FAILED);
}

/* Has the disk lied since the last start? From then on only MARK proves anything. */
static int has_lied(wd_world *w)
{
    int lies =
        w->fault_kind == SIM_LIE || w->fault_kind == SIM_DROP || w->fault_kind == SIM_MISDIRECT;
    if (lies && !w->lied && wd_simfs_fault_done(w->fs)) {
        w->lied = 1;
        w->stats.lies++;
        w->ends_by = WORLD_CUT; /* soon: what matters is what the next start makes of it */
        w->budget = w->stats.events + sim_below(w, 24);
        sim_event(w, 14);
    }
    return w->lied;
}

/* The life is over: which records the next start has to find. */
static void settle_debts(wd_world *w)
{
    wd_log_stats s;
    w->api.wd_log_stats_get(w->log, &s);
    uint64_t told = w->api.wd_core_durable_lsn(w->core);
    w->ended_ms = w->true_ms;
    w->unsynced = w->plan.fsync_mode != WD_FSYNC_ALWAYS;
    w->synced_lsn = s.synced_lsn;
    if (may_lose_unsynced(w)) w->may_lose = 1;
    if (has_lied(w))
        w->must_lsn = w->proven_lsn;
    else if (w->may_lose)
        w->must_lsn = s.synced_lsn;
    else
        w->must_lsn = told;
    w->settled =
        !w->failed && !w->lied && w->flight_lsn == 0 && told == w->api.wd_core_lsn(w->core);
    if (w->ends_by != WORLD_STOPPED && w->ends_by != WORLD_DONE) w->stats.crashes++;
    wd_simfs_fault(w->fs, SIM_ANY, 0, SIM_FAIL, 0);
    wd_simfs_set_full(w->fs, 0);
    w->fault_kind = -1;
    sim_peers_cut(w);
}

void wd_world_start_cut(wd_world *w)
{
    w->ends_by = WORLD_CUT;
    if (w->unsynced && !w->may_lose) { /* it was killed; now its page cache is gone too */
        w->may_lose = 1;
        if (!w->lied) w->must_lsn = w->synced_lsn;
    }

    w->stats.crashes++;
    sim_event(w, 12);
}

int wd_world_recovered(wd_world *w, uint64_t last_lsn, int64_t rel_ms)
{
    int64_t rel_minus_boot_ms = rel_ms - w->plan.boot_ms;
    if (w->boot == w->rel_boot && rel_minus_boot_ms != w->rel_minus_boot_ms && !w->may_lose)
        sim_violate(w, "rel: the rel axis moved by %lld ms although the machine went on",
                    (long long)(rel_minus_boot_ms - w->rel_minus_boot_ms));
    w->rel_minus_boot_ms = rel_minus_boot_ms;
    w->rel_boot = w->boot;
    sim_event(w, 1000 + last_lsn);
    if (last_lsn < w->must_lsn) {
        sim_violate(w, "lost_records: lsn %llu was durable, and the log ends at %llu",
                    (unsigned long long)w->must_lsn, (unsigned long long)last_lsn);
        return -1;
    }
    if (w->lied || w->may_lose) {
        sim_roll_back(w, last_lsn);
        w->stats.rollbacks++;
    }
    sim_fresh_terms(w, w->ended_ms);
    w->must_lsn = last_lsn;
    w->lied = w->may_lose = w->unsynced = 0;
    return 0;
}

int wd_world_refused(wd_world *w, const char *rule)
{
    sim_event(w, 13);
    if (w->lied) return 0;
    sim_violate(w, "refused: the start refused a store that nobody damaged: %s", rule);
    return -1;
}

int wd_world_is_settled(const wd_world *w)
{
    return w->settled && !w->may_lose;
}

const char *wd_world_violation(const wd_world *w)
{
    return w->violation;
}

void wd_world_violate(wd_world *w, const char *text)
{
    sim_violate(w, "%s", text);
}

uint64_t wd_world_draw(wd_world *w)
{
    return sim_draw(w);
}

void wd_world_stats_get(const wd_world *w, wd_world_stats *out)
{
    *out = w->stats;
    out->true_ms = (uint64_t)w->true_ms;
}

/* ---- the keeper: server/keeper.py in simulated time ---- */

static int log_failed(wd_world *w, int status)
{
    if (status == WD_EIO) w->failed = 1;
    return status;
}

static void set_room(wd_world *w, int room)
{
    if (room != w->room) (void)w->api.wd_core_set_disk_room(w->core, room);
    w->room = room;
}

static void prepare(wd_world *w)
{
    int status = log_failed(w, w->api.wd_log_prepare(w->log));
    if (status != WD_EIO) set_room(w, status == WD_EFULL ? 1 : 0);
}

static void mark(wd_world *w, int clean)
{
    int lied = has_lied(w);
    wd_log_stats s;
    w->api.wd_log_stats_get(w->log, &s);
    if (log_failed(w, w->api.wd_log_mark(w->log, clean)) != WD_OK) return;
    w->marked_ms = w->true_ms;
    /* A MARK whose own sync lied proves nothing; one behind a lie about a frame does. */
    if (has_lied(w) == lied) w->proven_lsn = s.synced_lsn;
    /* MARK alone knows now: no frame stands behind the lie to tell of it. */
    if (lied && w->proven_lsn == s.written_lsn) w->budget = w->stats.events;
}

static void keep_log(wd_world *w)
{
    wd_log_stats s;
    w->api.wd_log_stats_get(w->log, &s);
    int rests = s.written_lsn == w->keeper_lsn;
    int rotated = s.rotations != w->keeper_rotations;
    int due = w->true_ms - w->marked_ms >= MARK_EVERY_MS;
    w->keeper_lsn = s.written_lsn;
    w->keeper_rotations = s.rotations;
    w->keeper_ms = rests && !w->room ? SIM_NEVER : w->true_ms + w->keeper_look_ms;
    if (!s.prepared) prepare(w);
    if (!w->failed && (rests || due || rotated) && s.synced_lsn != s.marked_lsn) mark(w, 0);
}

static void sync_interval(wd_world *w)
{
    w->synced_ms = w->true_ms;
    (void)log_failed(w, w->api.wd_log_sync(w->log));
}

/* ---- commits that the world drives ---- */

/* Give the frame on its way to the log; its replies may leave. */
static void land(wd_world *w)
{
    uint64_t n = wd_get_u32(w->frame + WD_FRAME_AT_PAYLOAD_BYTES);
    wd_frame_meta m = {.payload_bytes = (uint32_t)n,
                       .records = wd_get_u32(w->frame + WD_FRAME_AT_RECORDS),
                       .first_lsn = wd_get_u64(w->frame + WD_FRAME_AT_FIRST_LSN),
                       .wall_ms = (int64_t)wd_get_u64(w->frame + WD_FRAME_AT_WALL_MS),
                       .rel_ms = (int64_t)wd_get_u64(w->frame + WD_FRAME_AT_REL_MS)};
    int status = log_failed(w, w->api.wd_log_append(w->log, w->frame, &m));
    if (status == WD_EFULL) {
        w->flight_ms = w->true_ms + 1000;
        set_room(w, 3);
        return;
    }
    if (w->room == 3) set_room(w, 0);
    if (status != WD_OK) {
        if (!w->failed) sim_violate(w, "append: the log refused a frame with status %d", status);
        return;
    }
    uint64_t lsn = w->flight_lsn;
    w->flight_lsn = 0;
    (void)w->api.wd_core_batch_durable(w->core, lsn);
}

static int64_t disk_takes_ms(wd_world *w)
{
    if (w->quiet || !sim_chance(w, w->swarm.slow)) return 0;
    return 1 + (int64_t)sim_below(w, sim_below(w, 20) ? 30 : 3000);
}

static void fly(wd_world *w)
{
    const uint8_t *frame;
    size_t n;
    uint64_t lsn;
    for (int i = 0; i < ROUNDS_MAX && !w->failed && !w->violation[0]; i++) {
        if (w->flight_lsn && w->flight_ms > w->true_ms) {
            if (w->api.wd_core_take_batch(w->core, &frame, &n, &lsn) == WD_OK)
                sim_violate(w, "pipelined: a frame was given out while one is in flight");
            return;
        }
        if (w->flight_lsn) {
            land(w);
            if (w->flight_lsn || w->failed) return;
            if (w->api.wd_core_commit(w->core) < 0) w->failed = 1;
        }
        if (w->api.wd_core_take_batch(w->core, &frame, &n, &lsn) != WD_OK) return;
        WD_ASSERT(n <= SIM_FRAME_BYTES);
        memcpy(w->frame, frame, n);
        w->flight_lsn = lsn;
        w->flight_ms = w->true_ms + disk_takes_ms(w);
    }
}

/* ---- steps ---- */

static int64_t min_ms(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* End the round: what was fed is run, committed, released. */
static void end_round(wd_world *w)
{
    if (w->api.wd_core_commit(w->core) < 0) w->failed = 1;
    if (w->plan.commit_mode == WD_COMMIT_DRIVEN) fly(w);
    if (w->failed) return; /* nothing may be said any more */
    sim_peers_collect(w);
    if (w->keeper_ms == SIM_NEVER && w->api.wd_core_durable_lsn(w->core) != w->keeper_lsn)
        w->keeper_ms = w->true_ms + w->keeper_look_ms;
}

static void check(wd_world *w)
{
    if (w->checks_in-- > 0) return;
    w->checks_in = CHECK_EVERY;
    w->stats.checks++;
    int broken = w->api.wd_core_check(w->core);
    if (broken) sim_violate(w, "check: invariant %d", broken);
}

/* The disk fills up for a while, and has room again. */
static void fill_disk(wd_world *w)
{
    if (w->full_until_ms == SIM_NEVER && sim_chance(w, w->swarm.full)) {
        w->full_until_ms = w->true_ms + (int64_t)sim_below(w, 15000);
        wd_simfs_set_full(w->fs, 1);
        sim_event(w, 15);
    } else if (w->full_until_ms <= w->true_ms) {
        w->full_until_ms = SIM_NEVER;
        wd_simfs_set_full(w->fs, 0);
    }
}

static void step(wd_world *w)
{
    int64_t next_ms = min_ms(sim_peers_next_ms(w), w->keeper_ms);
    int interval = w->plan.fsync_mode == WD_FSYNC_INTERVAL;
    if (w->flight_lsn) next_ms = min_ms(next_ms, w->flight_ms);
    if (next_ms > w->true_ms) w->true_ms = next_ms;
    see_wall(w);
    clock_faults(w);
    fill_disk(w);
    int64_t boot = boot_ms(w);
    if (w->api.wd_core_tick(w->core, sim_wall_ms(w), boot, boot - w->suspended_ms) < 0)
        w->failed = 1;
    if (!w->failed && w->keeper_ms <= w->true_ms) keep_log(w);
    if (!w->failed && interval && w->true_ms - w->synced_ms >= SYNC_EVERY_MS) sync_interval(w);
    if (w->failed) return;
    (void)sim_peers_act(w);
    end_round(w);
    if (!w->failed) check(w);
}

static void begin_life(wd_world *w, wd_core *core, wd_log *log)
{
    w->core = core;
    w->log = log;
    w->failed = w->room = w->settled = 0;
    w->flight_lsn = 0;
    w->keeper_look_ms = sim_below(w, 4) || w->quiet ? KEEPER_LOOK_MS : KEEPER_SLOW_MS;
    w->keeper_ms = w->true_ms;
    w->marked_ms = w->synced_ms = w->true_ms;
    w->keeper_lsn = 0;
    w->keeper_rotations = 0;
    w->audit_at = 0;
    w->proven_lsn = w->must_lsn;
    w->saving = 0;
    w->ask_in = 0;
    w->full_until_ms = SIM_NEVER;
    w->quiet_until_ms = w->true_ms + QUIET_MS;
    choose_end(w);
}

static void stop(wd_world *w)
{
    w->api.wd_core_stop_reading(w->core);
    for (int i = 0; i < ROUNDS_MAX && !w->failed; i++) {
        if (w->flight_lsn) w->flight_ms = w->true_ms;
        end_round(w);
        if (w->api.wd_core_lsn(w->core) == w->api.wd_core_durable_lsn(w->core)) break;
    }
    if (w->failed || w->api.wd_core_lsn(w->core) != w->api.wd_core_durable_lsn(w->core)) return;
    if (log_failed(w, w->api.wd_log_sync(w->log)) == WD_OK) mark(w, 1);
}

/* The planned end has come: a cut in the middle of some file call, an error of one, or at once. */
static int reach_end(wd_world *w)
{
    if (w->ends_by == WORLD_CUT && sim_below(w, 3)) {
        wd_simfs_power_off_after(w->fs, 1 + sim_below(w, 12));
    } else if (w->ends_by == WORLD_FAILED) {
        static const int CALLS[] = {SIM_PWRITE, SIM_DATASYNC, SIM_ANY};
        (void)has_lied(w);
        wd_simfs_fault(w->fs, CALLS[sim_below(w, 3)], 1 + sim_below(w, 8), SIM_FAIL, EIO);
        w->fault_kind = SIM_FAIL;
        w->may_fail = 1;
    } else {
        if (w->ends_by == WORLD_STOPPED) stop(w);
        return 1;
    }
    for (int i = 0; i < 400 && !w->failed && !w->violation[0]; i++)
        step(w);
    return 1;
}

static int quiet_is_over(wd_world *w)
{
    if (w->audit_at < w->jobs_n) return 0;
    uint32_t token = sim_unended(w, 0);
    if (token == WD_NIL) return 1;
    if (w->true_ms < w->quiet_until_ms) return 0;
    sim_violate(w, "stuck: job %u has not ended %d s after the last fault", token, QUIET_MS / 1000);
    return 1;
}

/* Is it time to begin a checkpoint, or to look how far one is? */
static int wants_python(wd_world *w)
{
    if (!w->saving) return sim_chance(w, w->swarm.save);
    if (w->ask_in-- > 0) return 0;
    w->ask_in = ASK_EVERY;
    return 1;
}

void wd_world_set_saving(wd_world *w, int saving)
{
    w->saving = saving;
    w->stats.saves += (uint64_t)saving;
}

void wd_world_ends_by_cut(wd_world *w)
{
    w->ends_by = WORLD_CUT;
    w->may_fail = 1;
}

int wd_world_run(wd_world *w, wd_core *core, wd_log *log)
{
    WD_ASSERT(wd_world_is_bound(w));
    if (core) begin_life(w, core, log);
    for (;;) {
        step(w);
        if (w->violation[0] || w->failed) break;
        if (w->quiet && quiet_is_over(w)) break;
        if (!w->quiet && w->stats.events >= w->budget && reach_end(w)) break;
        if (wants_python(w)) return WORLD_ASKS;
    }
    if (w->failed && !w->may_fail && w->ends_by != WORLD_CUT)
        sim_violate(w, "failed: the log failed, and nothing had been done to the disk");
    if (w->failed && w->ends_by != WORLD_CUT) w->ends_by = WORLD_FAILED;
    settle_debts(w);
    sim_event(w, 20 + (uint64_t)w->ends_by);
    if (w->violation[0]) return WORLD_VIOLATION;
    return w->ends_by;
}
