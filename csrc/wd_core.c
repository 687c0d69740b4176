/* wd_core.c -- composition of a core and its public face. No rule lives here: each function checks
 * its arguments and hands on to the module that knows.
 *
 * Not here: the order of a round (wd_round.c).
 */
#include "wd_core.h"

#include "wd_ring.h"
#include "wd_round.h"

enum { GATHER_US_MAX = 10000, OWN_SYNC_US_MAX = 1000000, CONNS_MAX = 1000000, TICKS_MAX = 1000000 };
_Static_assert(sizeof(((wd_conn_info *)0)->addr) == WD_ADDR_BYTES, "addresses fit");
_Static_assert(sizeof(((wd_conn_info *)0)->name) == WD_SESSION_TEXT_BYTES, "names fit");
_Static_assert((int)WD_CONN_ASKS_PYTHON == (int)WD_PARKED_PYTHON, "parked values agree");

/* ---- life ---- */

static int options_are_valid(const wd_core_options *o)
{
    return o->jobs_max > 0 && o->conns_max > 0 && o->conns_max <= CONNS_MAX && o->dead_max > 0 &&
           o->dead_kept_ms > 0 && o->dead_kept_ms < WD_DUE_MS_END && o->ended_max > 0 &&
           o->ended_max <= WD_ENDED_MAX && o->once_max > 0 && o->once_max <= WD_ONCE_MAX &&
           o->payload_bytes_max <= WD_BULK_BYTES_MAX && o->gather_us <= GATHER_US_MAX &&
           o->own_sync_us <= OWN_SYNC_US_MAX && o->commit_mode >= WD_COMMIT_THREAD &&
           o->commit_mode <= WD_COMMIT_DRIVEN && o->fsync_mode >= WD_FSYNC_ALWAYS &&
           o->fsync_mode <= WD_FSYNC_OFF;
}

static int build(wd_core *c)
{
    const wd_core_options *o = &c->options;
    wd_engine_options eo = {.jobs_max = o->jobs_max,
                            .maxmemory_bytes = o->maxmemory_bytes,
                            .seed = o->seed,
                            .dead_max = o->dead_max,
                            .dead_kept_ms = o->dead_kept_ms,
                            .ended_max = o->ended_max,
                            .once_max = o->once_max};
    memcpy(eo.hash_key, o->store, sizeof eo.hash_key);
    wd_command_limits limits = {.payload_bytes_max = o->payload_bytes_max,
                                .strict_handlers = o->strict_handlers,
                                .auth_required = o->auth_required};
    c->engine = wd_engine_new(&eo);
    if (!c->engine) return WD_ENOMEM;
    c->commands = wd_commands_new(c->engine, &limits);
    if (!c->commands) return WD_ENOMEM;
    c->commit = wd_commit_new(c->engine, o->commit_mode, o->fsync_mode, o->own_sync_us);
    if (!c->commit) return WD_ENOMEM;
    c->conns = wd_conns_new(c->engine, c->commands, o->conns_max, o->auth_required);
    if (!c->conns) return WD_ENOMEM;
    if (!o->sockets) return WD_OK;
    c->net = wd_net_new(c->conns, wd_commit_wake_fd(c->commit));
    return c->net ? WD_OK : WD_ENOMEM;
}

wd_core *wd_core_new(const wd_core_options *o)
{
    if (!o || !options_are_valid(o)) return NULL;
    wd_core *c = wd_zalloc(sizeof *c);
    if (!c) return NULL;
    c->options = *o;
    c->alarm_wall_ms = c->alarm_rel_ms = WD_NEVER_MS;
    if (build(c) != WD_OK) {
        wd_core_free(c);
        return NULL;
    }
    wd_commands_set_loading(c->commands, 1);
    return c;
}

void wd_core_free(wd_core *c)
{
    if (!c) return;
    wd_save_free(c);
    if (c->net) wd_net_free(c->net);
    if (c->conns) wd_conns_free(c->conns);
    if (c->commands) wd_commands_free(c->commands);
    if (c->commit) wd_commit_free(c->commit);
    if (c->engine) wd_engine_free(c->engine);
    wd_buf_free(&c->ended);
    wd_release(c);
}

/* ---- start ---- */

int wd_core_replay(wd_core *c, const uint8_t *frames, size_t n, uint64_t term)
{
    if (c->started) return WD_EINVAL;
    size_t at = 0;
    while (at < n) { /* bounded: every frame has a header */
        wd_frame_meta m;
        if (n - at < WD_FRAME_HEADER_BYTES) return WD_ECORRUPT;
        size_t whole = wd_frame_header(frames + at, &m);
        if (whole < WD_FRAME_HEADER_BYTES || whole > n - at) return WD_ECORRUPT;
        if (m.payload_bytes > whole - WD_FRAME_HEADER_BYTES) return WD_ECORRUPT;
        wd_span payload = {frames + at + WD_FRAME_HEADER_BYTES, m.payload_bytes};
        int status = wd_engine_replay(c->engine, payload, &m, term);
        if (status != WD_OK) return status;
        at += whole;
    }
    WD_ASSERT(at == n);
    return WD_OK;
}

int wd_core_start(wd_core *c, uint64_t term, int64_t rel_ms, int64_t wall_ms, int64_t boot_ms,
                  int64_t mono_ms)
{
    if (c->started) return WD_EINVAL;
    wd_clocks now = {.wall_ms = wall_ms, .boot_ms = boot_ms, .mono_ms = mono_ms};
    int status = wd_engine_start(c->engine, term, rel_ms, &now);
    if (status != WD_OK) return status;
    c->now = now;
    wd_conns_begin_round(c->conns, mono_ms, 0);
    wd_commit_set_durable_lsn(c->commit, wd_engine_lsn(c->engine));
    wd_commands_set_loading(c->commands, 0);
    c->started = 1;
    return WD_OK;
}

int wd_core_attach_log(wd_core *c, wd_log *log)
{
    if (!log) return WD_EINVAL;
    return wd_commit_attach(c->commit, log);
}

/* ---- rounds ---- */

int wd_core_fd(const wd_core *c)
{
    return c->net ? wd_net_fd(c->net) : -1;
}

int wd_core_listen_fd(wd_core *c, int fd)
{
    return c->net ? wd_net_listen(c->net, fd) : WD_EINVAL;
}

int wd_core_poll(wd_core *c, int timeout_ms)
{
    return c->net ? wd_round_poll(c, timeout_ms) : WD_EINVAL;
}

int wd_core_stay(wd_core *c)
{
    return c->net ? wd_round_stay(c) : WD_EINVAL;
}

int wd_core_commit(wd_core *c)
{
    if (!c->options.hand_clock) wd_round_begin(c);
    return wd_round_finish(c);
}

int wd_core_tick(wd_core *c, int64_t wall_ms, int64_t boot_ms, int64_t mono_ms)
{
    if (!c->options.hand_clock || !c->started) return WD_EINVAL;
    c->now = (wd_clocks){.wall_ms = wall_ms, .boot_ms = boot_ms, .mono_ms = mono_ms};
    wd_round_begin(c);
    for (int i = 0; i < TICKS_MAX && c->tick_more; i++)
        wd_round_begin(c);
    return wd_round_finish(c);
}

void wd_core_stop_reading(wd_core *c)
{
    c->conns->stopping = 1;
    if (c->net) wd_net_stop_reading(c->net);
    wd_commands_drain(c->commands);
    wd_commit_kick(c->commit);
}

int wd_core_set_disk_room(wd_core *c, int room)
{
    if (room < WD_DISK_OK || room > WD_DISK_FULL) return WD_EINVAL;
    if (room != c->disk_room) wd_commit_kick(c->commit); /* waiting LEASE calls may go on */
    c->disk_room = room;
    return WD_OK;
}

uint32_t wd_core_conns(const wd_core *c)
{
    return wd_conns_count(c->conns);
}

uint32_t wd_core_unflushed(const wd_core *c)
{
    uint32_t n = 0;
    for (const wd_conn *k = c->conns->lists[WD_L_ALL].first; k; k = k->links[WD_L_ALL].next)
        if (!k->dead && (wd_conn_out_bytes(k) > 0 || k->parked != WD_PARKED_NOT)) n++;
    return n;
}

int wd_core_failure(const wd_core *c)
{
    return c->failure;
}

/* ---- driven commit ---- */

int wd_core_take_batch(wd_core *c, const uint8_t **out_frame, size_t *out_bytes, uint64_t *out_lsn)
{
    wd_span frame = {0};
    int status = wd_commit_take(c->commit, &frame, out_lsn);
    if (status != WD_OK) return status;
    *out_frame = frame.p;
    *out_bytes = frame.n;
    return WD_OK;
}

int wd_core_batch_durable(wd_core *c, uint64_t lsn)
{
    int status = wd_commit_driven_durable(c->commit, lsn);
    if (status != WD_OK) return status;
    (void)wd_conns_release(c->conns, wd_commit_durable_seq(c->commit));
    int queued = wd_round_finish(c);
    return queued < 0 ? queued : WD_OK;
}

/* ---- commands that Python answers ---- */

int wd_core_slow_next(wd_core *c, uint64_t *out_handle, const uint8_t **out_packed,
                      uint32_t *out_argc)
{
    wd_conn *k = wd_conns_next_python(c->conns);
    if (!k) return WD_EAGAIN;
    *out_handle = k->session.handle;
    *out_packed = k->kept.p;
    *out_argc = k->kept_argc;
    return WD_OK;
}

int wd_core_slow_reply(wd_core *c, uint64_t handle, const uint8_t *reply, size_t n, int gated)
{
    return wd_conns_answer(c->conns, handle, (wd_span){reply, n}, gated);
}

/* ---- fed connections ---- */

static wd_conn *find_fed(const wd_core *c, uint64_t handle)
{
    wd_conn *k = wd_conns_find(c->conns, handle);
    return k && k->fd < 0 ? k : NULL;
}

int wd_core_fed_open(wd_core *c, const char *addr, uint64_t *out_handle)
{
    if (wd_conns_count(c->conns) >= c->options.conns_max) return WD_EFULL;
    wd_conn *k = wd_conns_open(c->conns, -1);
    if (!k) return WD_ENOMEM;
    (void)strncpy(k->addr, addr, sizeof k->addr - 1);
    *out_handle = k->session.handle;
    return WD_OK;
}

int wd_core_fed_input(wd_core *c, uint64_t handle, const uint8_t *p, size_t n)
{
    wd_conn *k = find_fed(c, handle);
    if (!k || k->dead) return WD_EGONE;
    if (c->conns->stopping || n == 0) return WD_OK;
    if (!c->options.hand_clock) wd_round_begin(c); /* the last round may be long ago */
    wd_conns_input(c->conns, k, (wd_span){p, n});
    return WD_OK;
}

int wd_core_fed_eof(wd_core *c, uint64_t handle)
{
    wd_conn *k = find_fed(c, handle);
    if (!k) return WD_EGONE;
    if (!c->options.hand_clock) wd_round_begin(c);
    wd_conns_eof(c->conns, k);
    return WD_OK;
}

int wd_core_fed_wants_input(const wd_core *c, uint64_t handle)
{
    const wd_conn *k = find_fed(c, handle);
    return k && !c->conns->stopping && !k->session.blocked && wd_conn_wants_input(k);
}

int wd_core_fed_blocked(wd_core *c, uint64_t handle, int blocked)
{
    wd_conn *k = find_fed(c, handle);
    if (!k) return WD_EGONE;
    wd_conns_set_blocked(c->conns, k, blocked);
    return WD_OK;
}

int wd_core_fed_ready(wd_core *c, uint64_t *out_handle)
{
    wd_conn *k = wd_conns_pop(c->conns, WD_L_FED);
    if (!k) return WD_EAGAIN;
    *out_handle = k->session.handle;
    return WD_OK;
}

int wd_core_fed_output(wd_core *c, uint64_t handle, const uint8_t **out_p, size_t *out_n,
                       int *out_finished)
{
    const wd_conn *k = find_fed(c, handle);
    if (!k) return WD_EGONE;
    wd_span out = k->dead ? (wd_span){NULL, 0} : wd_conn_sendable(k);
    *out_p = out.p;
    *out_n = out.n;
    *out_finished = k->dead || (k->session.closing && k->parked == WD_PARKED_NOT &&
                                out.n == wd_conn_out_bytes(k));
    return WD_OK;
}

int wd_core_fed_taken(wd_core *c, uint64_t handle, size_t n)
{
    wd_conn *k = find_fed(c, handle);
    if (!k || k->dead) return WD_EGONE;
    if (n > wd_conn_sendable(k).n) return WD_EINVAL;
    int64_t now_us = c->options.hand_clock ? c->now.wall_ms * 1000 : wd_clock_wall_us();
    wd_conns_taken(c->conns, k, n, now_us);
    return WD_OK;
}

int wd_core_fed_close(wd_core *c, uint64_t handle)
{
    wd_conn *k = find_fed(c, handle);
    if (!k) return WD_EGONE;
    wd_conns_close(c->conns, k);
    return WD_OK;
}

/* ---- connections ---- */

static void describe(const wd_core *c, const wd_conn *k, wd_conn_info *out)
{
    const wd_session *s = &k->session;
    *out = (wd_conn_info){
        .handle = s->handle,
        .id = k->id,
        .age_ms = c->conns->mono_ms - k->opened_ms,
        .idle_ms = c->conns->mono_ms - k->input_ms,
        .in_bytes = k->in.n - k->in_used,
        .out_bytes = wd_conn_out_bytes(k),
        .commands = k->commands,
        .leases_unsent = (uint32_t)(s->grants.n / sizeof(wd_grant)),
        .leases_bound = (uint32_t)(s->bound.n / sizeof(wd_grant)),
        .resp = s->resp,
        .authed = s->authed,
        .blocked = s->blocked,
        .fed = k->fd < 0,
        .parked = k->parked,
        .roles = s->roles,
    };
    memcpy(out->addr, k->addr, sizeof out->addr);
    memcpy(out->local, k->local, sizeof out->local);
    memcpy(out->name, s->name, sizeof out->name);
    memcpy(out->user, s->user, sizeof out->user);
}

int wd_core_conn_info(const wd_core *c, uint64_t handle, wd_conn_info *out)
{
    const wd_conn *k = wd_conns_find(c->conns, handle);
    if (!k) return WD_EGONE;
    describe(c, k, out);
    return WD_OK;
}

int wd_core_conn_next(const wd_core *c, uint32_t *cursor, wd_conn_info *out)
{
    for (uint32_t i = *cursor; i < c->conns->capacity; i++) {
        if (!c->conns->table[i]) continue;
        describe(c, c->conns->table[i], out);
        *cursor = i + 1;
        return WD_OK;
    }
    return WD_EAGAIN;
}

int wd_core_conn_kill(wd_core *c, uint64_t handle)
{
    wd_conn *k = wd_conns_find(c->conns, handle);
    if (!k || k->dead) return WD_EGONE;
    c->conns->killed++;
    wd_conns_kill(c->conns, k);
    return WD_OK;
}

int wd_core_conn_set_resp(wd_core *c, uint64_t handle, int resp)
{
    wd_conn *k = wd_conns_find(c->conns, handle);
    if (!k) return WD_EGONE;
    if (resp != 2 && resp != 3) return WD_EINVAL;
    k->session.resp = (uint8_t)resp;
    return WD_OK;
}

static int set_text(char out[WD_SESSION_TEXT_BYTES], const char *text, size_t n)
{
    if (n >= WD_SESSION_TEXT_BYTES) return WD_EINVAL;
    memset(out, 0, WD_SESSION_TEXT_BYTES);
    memcpy(out, text, n);
    return WD_OK;
}

int wd_core_conn_set_name(wd_core *c, uint64_t handle, const char *name, size_t n)
{
    wd_conn *k = wd_conns_find(c->conns, handle);
    return k ? set_text(k->session.name, name, n) : WD_EGONE;
}

int wd_core_conn_set_user(wd_core *c, uint64_t handle, const char *user, size_t n)
{
    wd_conn *k = wd_conns_find(c->conns, handle);
    return k ? set_text(k->session.user, user, n) : WD_EGONE;
}

int wd_core_conn_set_rights(wd_core *c, uint64_t handle, uint32_t roles, const char *globs,
                            size_t n)
{
    wd_conn *k = wd_conns_find(c->conns, handle);
    if (!k) return WD_EGONE;
    if (roles > WD_ROLES_ALL) return WD_EINVAL;
    return wd_session_set_rights(&k->session, roles, (wd_span){(const uint8_t *)globs, n});
}

int wd_core_conn_set_closing(wd_core *c, uint64_t handle)
{
    wd_conn *k = wd_conns_find(c->conns, handle);
    if (!k) return WD_EGONE;
    k->session.closing = 1;
    if (k->parked == WD_PARKED_WAIT) wd_session_end_wait(c->commands, &k->session);
    wd_conns_put(c->conns, WD_L_READY, k);
    return WD_OK;
}

/* ---- figures ---- */

static const wd_hist *figure_of(const wd_core *c, int kind)
{
    const wd_commit_figures *f = wd_commit_figures_of(c->commit);
    switch ((enum wd_figure_kind)kind) {
    case WD_FIGURE_ROUND_CPU_NS:
        return &c->round_cpu_ns;
    case WD_FIGURE_SYNC_NS:
        return &f->sync_ns;
    case WD_FIGURE_LATENESS_US:
        return &c->conns->runner.lateness_us;
    case WD_FIGURE_BATCH_BYTES:
        return &f->batch_bytes;
    case WD_FIGURE_BATCH_RECORDS:
        return &f->batch_records;
    case WD_FIGURE_KINDS:
        break;
    }
    return NULL;
}

int wd_core_figure(const wd_core *c, int kind, wd_figure *out)
{
    const wd_hist *h = figure_of(c, kind);
    if (!h) return WD_EINVAL;
    *out = (wd_figure){.count = h->count,
                       .sum = h->sum,
                       .p50 = wd_hist_quantile(h, 500),
                       .p90 = wd_hist_quantile(h, 900),
                       .p99 = wd_hist_quantile(h, 990),
                       .p999 = wd_hist_quantile(h, 999),
                       .max = h->max};
    return WD_OK;
}

void wd_core_figures_reset(wd_core *c)
{
    *wd_commit_figures_of(c->commit) = (wd_commit_figures){0};
    c->round_cpu_ns = (wd_hist){0};
    c->conns->runner.lateness_us = (wd_hist){0};
}

static void fill_limits(wd_core_stats *out)
{
    out->out_stop_bytes = WD_OUT_STOP_BYTES;
    out->out_soft_bytes = WD_OUT_SOFT_BYTES;
    out->out_hard_bytes = WD_OUT_HARD_BYTES;
    out->out_soft_ms = WD_OUT_SOFT_MS;
    out->queue_pause_bytes = WD_QUEUE_PAUSE_BYTES;
    out->queue_pause_ms = WD_QUEUE_PAUSE_MS;
    out->queue_red_ms = WD_QUEUE_RED_MS;
    out->undurable_commands_max = WD_UNDURABLE_COMMANDS_MAX;
    out->undurable_bytes_max = WD_UNDURABLE_BYTES_MAX;
    out->input_bytes_max = WD_INPUT_BYTES_MAX;
    out->preauth_ms = WD_PREAUTH_MS;
    out->preauth_args_max = WD_PREAUTH_ARGS_MAX;
    out->preauth_bytes_max = WD_PREAUTH_BYTES_MAX;
    out->preauth_line_bytes_max = WD_PREAUTH_LINE_BYTES_MAX;
}

int wd_core_error_count(const wd_core *c, uint32_t i, const char **out_code, uint64_t *out_count)
{
    if (i >= WD_ERROR_CODES) return WD_EGONE;
    *out_code = wd_error_codes[i];
    *out_count = c->conns->runner.errors[i];
    return WD_OK;
}

void wd_core_stats_get(const wd_core *c, wd_core_stats *out)
{
    const wd_conns *s = c->conns;
    const wd_runner *r = &s->runner;
    wd_net_counts net = {0};
    if (c->net) net = *wd_net_counts_of(c->net);
    *out = (wd_core_stats){
        .conns = wd_conns_count(s),
        .conns_max = s->conns_max,
        .conns_gated = s->lists[WD_L_GATED].count,
        .conns_blocked = s->lists[WD_L_BLOCKED].count,
        .conns_waiting_python = s->lists[WD_L_PYTHON].count,
        .accepted = s->accepted,
        .refused_full = net.refused_full,
        .accept_failures = net.accept_failures,
        .socket_errors = net.socket_errors,
        .foreign = r->foreign,
        .killed = s->killed,
        .slow_consumers = s->slow_consumers,
        .preauth_timeouts = s->preauth_timeouts,
        .commands = r->commands_run,
        .commands_python = r->commands_python,
        .syntax_errors = r->syntax_errors,
        .broken = r->broken,
        .bytes_in = net.bytes_in,
        .bytes_out = net.bytes_out,
        .rounds = c->rounds,
        .ticks_cut = c->ticks_cut,
        .clock_sets = net.clock_sets,
        .gathers = c->gathers,
        .own_syncs = wd_commit_own_syncs(c->commit),
        .queue_bytes = wd_engine_queued_bytes(c->engine),
        .queue_pauses = s->pauses,
        .queue_age_ms = (uint64_t)wd_conns_queue_age_ms(s),
        .writes_paused = s->paused,
        .conns_waiting = wd_commands_waiting(c->commands),
        .conns_held = s->lists[WD_L_HELD].count,
        .awaited_syncs = wd_commit_awaited_syncs(c->commit),
        .commit_busy = wd_commit_busy(c->commit),
        .commit_stalled = wd_commit_is_stalled(c->commit),
        .loading = !c->started,
        .stopping = s->stopping,
        .lsn = wd_engine_lsn(c->engine),
        .durable_lsn = wd_commit_durable_lsn(c->commit),
        .memory_bytes = wd_engine_memory(c->engine),
    };
    fill_limits(out);
}

/* ---- state ---- */

uint64_t wd_core_lsn(const wd_core *c)
{
    return wd_engine_lsn(c->engine);
}

uint64_t wd_core_durable_lsn(const wd_core *c)
{
    return wd_commit_durable_lsn(c->commit);
}

uint64_t wd_core_memory(const wd_core *c)
{
    return wd_engine_memory(c->engine);
}

int wd_core_check(const wd_core *c)
{
    return wd_engine_check(c->engine);
}

uint64_t wd_core_hash(const wd_core *c)
{
    return wd_engine_hash(c->engine);
}
