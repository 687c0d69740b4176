/* wd_control.c -- wd_core's control face: hands bytes to the engine and takes bytes from it. */
#include "wd_control.h"

#include "wd_resp.h"
#include "wd_round.h"

int wd_core_submit(wd_core *c, const uint8_t *ops, size_t n, uint64_t *out_ids, uint32_t ids_max,
                   uint32_t *out_count)
{
    if (!c->started || n > WD_BATCH_BYTES_MAX) return WD_EINVAL;
    int room = wd_core_disk_room(c);
    if (room >= WD_DISK_FULL) return WD_EFULL;
    if (wd_engine_open_bytes(c->engine) + n > WD_BATCH_CLOSE_BYTES)
        wd_engine_close_batch(c->engine);
    return wd_engine_submit(c->engine, (wd_span){ops, n}, room < WD_DISK_TIGHT, out_ids, ids_max,
                            out_count);
}

int wd_core_ended(wd_core *c, uint32_t most, const uint8_t **out_p, size_t *out_n)
{
    c->ended.n = 0;
    int status = wd_engine_ended(c->engine, most, &c->ended);
    if (status != WD_OK) return status;
    *out_p = c->ended.p;
    *out_n = c->ended.n;
    return WD_OK;
}

int wd_core_table_next(const wd_core *c, uint32_t *cursor, wd_core_entry *out)
{
    wd_entry entry;
    const wd_table *table = wd_engine_table(c->engine);
    while (*cursor < wd_table_top(table)) {
        if (wd_table_at(table, (*cursor)++, &entry) != WD_OK) continue;
        *out = (wd_core_entry){.kind = entry.kind,
                               .key = entry.key.p,
                               .key_n = entry.key.n,
                               .blob = entry.blob.p,
                               .blob_n = entry.blob.n};
        return WD_OK;
    }
    return WD_EAGAIN;
}

int wd_core_table_get(const wd_core *c, uint8_t kind, const uint8_t *key, size_t n,
                      const uint8_t **out_blob, size_t *out_n)
{
    wd_span blob;
    int status = wd_table_get(wd_engine_table(c->engine), kind, (wd_span){key, n}, &blob);
    if (status != WD_OK) return status;
    *out_blob = blob.p;
    *out_n = blob.n;
    return WD_OK;
}

int wd_core_owned_next(const wd_core *c, uint32_t *cursor, wd_core_owned *out)
{
    enum { ROWS_MAX = 8192 }; /* looked at in one call */
    wd_owned job;
    int status = wd_engine_owned_next(c->engine, cursor, ROWS_MAX, &job);
    if (status != WD_OK) return status;
    *out = (wd_core_owned){.id = job.id,
                           .due_ms = job.due_ms,
                           .owner = job.owner.p,
                           .owner_n = job.owner.n,
                           .state = job.state};
    return WD_OK;
}

int wd_core_job_state(const wd_core *c, uint64_t id)
{
    const wd_slab *slab = wd_engine_slab(c->engine);
    uint32_t slot = wd_slab_find(slab, id);
    return slot == WD_NIL ? WD_FREE : (int)wd_slab_rows(slab)[slot].state;
}

void wd_core_times_get(wd_core *c, wd_core_times *out)
{
    wd_jump jump = wd_engine_take_jump(c->engine);
    *out = (wd_core_times){.wall_ms = wd_engine_wall_ms(c->engine),
                           .logical_ms = wd_engine_logical_ms(c->engine),
                           .rel_ms = wd_engine_rel_ms(c->engine),
                           .wall_from_ms = jump.wall_from_ms,
                           .wall_to_ms = jump.wall_to_ms,
                           .rel_from_ms = jump.rel_from_ms,
                           .rel_to_ms = jump.rel_to_ms};
}

void wd_core_set_alarms(wd_core *c, int64_t wall_ms, int64_t rel_ms)
{
    c->alarm_wall_ms = wall_ms;
    c->alarm_rel_ms = rel_ms;
    wd_round_arm(c);
}

int wd_core_wants_python(const wd_core *c)
{
    return c->started &&
           (wd_engine_logical_ms(c->engine) >= c->alarm_wall_ms ||
            wd_engine_rel_ms(c->engine) >= c->alarm_rel_ms || wd_engine_has_ended(c->engine));
}

int wd_core_accept_clock(wd_core *c)
{
    return c->started ? wd_engine_accept_clock(c->engine) : WD_EINVAL;
}

uint32_t wd_core_generation_max(const wd_core *c)
{
    return wd_slab_generation_max(wd_engine_slab(c->engine));
}

int wd_core_raise_generations(wd_core *c, uint32_t generation)
{
    if (!c->started || generation < 1 || generation > WD_GEN_MAX) return WD_EINVAL;
    return wd_engine_raise_generations(c->engine, generation);
}

void wd_core_engine_figures(const wd_core *c, wd_engine_figures *out)
{
    const wd_engine *e = c->engine;
    wd_engine_stats s;
    wd_engine_stats_get(e, &s);
    *out = (wd_engine_figures){.wall_ms = wd_engine_wall_ms(e),
                               .rel_ms = wd_engine_rel_ms(e),
                               .logical_ms = s.logical_ms,
                               .held_ms = s.held_ms,
                               .clock_steps = s.clock_steps,
                               .suspends = s.suspends,
                               .created = s.created,
                               .fired = s.fired,
                               .leased = s.leased,
                               .acked = s.acked,
                               .failed = s.failed,
                               .timed_out = s.timed_out,
                               .lost = s.lost,
                               .released = s.released,
                               .unsent = s.unsent,
                               .cancelled = s.cancelled,
                               .expired = s.expired,
                               .died = s.died,
                               .dead_dropped = s.dead_dropped,
                               .ring_dropped = s.ring_dropped,
                               .once_dropped = s.once_dropped,
                               .texts_dropped = s.texts_dropped,
                               .payload_corrupt = s.payload_corrupt,
                               .corrupt_id = s.corrupt_id,
                               .corrupt_handler = s.corrupt_handler,
                               .ended_count = s.ended_count,
                               .once_count = s.once_count,
                               .owned_ended_count = s.owned_ended_count,
                               .expiring_count = s.expiring_count,
                               .handlers_count = wd_handlers_count(wd_engine_names(e)),
                               .policies_count = wd_policies_count(wd_engine_names(e)),
                               .table_count = wd_table_count(wd_engine_table(e)),
                               .jobs_scheduled = wd_engine_count(e, WD_SCHEDULED),
                               .jobs_held = wd_engine_count(e, WD_HELD),
                               .jobs_ready = wd_engine_count(e, WD_READY),
                               .jobs_leased = wd_engine_count(e, WD_LEASED),
                               .jobs_dead = wd_engine_count(e, WD_DEAD)};
}

int wd_core_handler_name(const wd_core *c, uint32_t number, const uint8_t **out_name, size_t *out_n)
{
    const wd_names *names = wd_engine_names(c->engine);
    if (number >= wd_handlers_count(names)) return WD_EGONE;
    wd_span name = wd_handler_name(names, number);
    *out_name = name.p;
    *out_n = name.n;
    return WD_OK;
}

int wd_core_when(const uint8_t *text, size_t n, int64_t *out_ms)
{
    wd_when when;
    int error = wd_parse_when((wd_span){text, n}, &when);
    WD_ASSERT(error >= WD_WHEN_OK && error <= WD_WHEN_RANGE);
    if (error != WD_WHEN_OK) return -error;
    WD_ASSERT(when.kind == WD_WHEN_ABS || when.kind == WD_WHEN_REL);
    *out_ms = when.ms;
    return when.kind == WD_WHEN_REL;
}

int wd_core_served(const wd_core *c, const uint8_t *name, size_t n)
{
    return n > 0 && wd_commands_serve_handler(c->commands, (wd_span){name, n});
}

int wd_core_command(uint32_t i, const char **out_name, const char **out_usage,
                    uint32_t *out_args_min, uint32_t *out_args_max)
{
    wd_command_facts facts;
    int status = wd_command_info(i, &facts);
    if (status != WD_OK) return status;
    *out_name = facts.name;
    *out_usage = facts.usage;
    *out_args_min = facts.args_min;
    *out_args_max = facts.args_max;
    return WD_OK;
}

int wd_core_right(uint32_t i, const char **out_command, const char **out_form, uint32_t *out_roles,
                  int *out_limited)
{
    wd_right right;
    int status = wd_command_right(i, &right);
    if (status != WD_OK) return status;
    *out_command = right.command;
    *out_form = right.form;
    *out_roles = right.roles;
    *out_limited = (int)right.limited;
    return WD_OK;
}
