/* wd_round.c -- the order of things in one round:
 *
 *  1. wait, read the clocks, tick
 *  2. accept, receive, parse, run
 *  3. what the commit thread finished: open the gate, send
 *  4. gather
 *  5. serve waiting LEASE calls, run what was behind them
 *  6. close the batch, commit, send; 5 again if that made work for it; arm the timers
 *  7. a slice of the checkpoint, if one is under way
 *
 * A call may make several rounds (wd_round_stay): what the outer loop does between two of them
 * costs as much as a command, and more when the CPU slept meanwhile and has forgotten it.
 *
 * The gather window: a commit releases a herd of connections at once, and starting the next commit
 * with the first of them to come back would split the herd in two for ever. So after a commit by
 * the commit thread the loop serves on for up to gather_us, or until as many connections wait again
 * as were released. (While it syncs by itself no thread takes a CPU from the herd, and the herd
 * comes back without.)
 */
#include "wd_round.h"

#include "wd_control.h"

enum {
    FINISH_PASSES_MAX = 8,
    NS_PER_US = 1000,
    STALL_LOOK_MS = 500,
    STAY_WAIT_MS = 1, /* who comes back within it is waited for */
    STAY_MS = 2       /* and no longer than this without the outer loop */
};

static int loading(const wd_core *c)
{
    return !c->started;
}

static int64_t wall_us(const wd_core *c)
{
    return c->options.hand_clock ? c->now.wall_ms * 1000 : wd_clock_wall_us();
}

static void flush(wd_core *c)
{
    if (c->conns->lists[WD_L_READY].count == 0) return;
    if (c->net) {
        wd_net_flush(c->net, wall_us(c));
        return;
    }
    wd_conn *socket = wd_conns_next_ready(c->conns); /* moves the fed ones to their list */
    WD_ASSERT(socket == NULL);
}

/* The log has failed: memory is ahead of it, so nothing more may be said to anybody. */
static int fail(wd_core *c)
{
    c->failure = wd_commit_failure(c->commit);
    WD_ASSERT(c->failure != WD_OK);
    wd_conns_kill_all(c->conns);
    if (c->net) wd_net_drop_all(c->net);
    flush(c);
    return WD_EIO;
}

int wd_core_disk_room(const wd_core *c)
{
    return wd_commit_is_stalled(c->commit) ? WD_DISK_FULL : c->disk_room;
}

void wd_round_begin(wd_core *c)
{
    if (!c->options.hand_clock) wd_clock_read(&c->now);
    c->rounds++;
    wd_commit_begin_round(c->commit, c->now.mono_ms);
    wd_commands_set_disk(c->commands, wd_core_disk_room(c));
    wd_conns_begin_round(c->conns, c->now.mono_ms, wd_commit_is_stalled(c->commit));
    c->tick_more = 0;
    if (loading(c)) return;
    int more = 0;
    /* Without memory a tick changes nothing; the next round tries again. */
    if (wd_engine_tick(c->engine, &c->now, &more) == WD_OK) c->tick_more = more;
    if (more) c->ticks_cut++;
    if (wd_engine_open_bytes(c->engine) >= WD_BATCH_CLOSE_BYTES) wd_engine_close_batch(c->engine);
}

static int64_t min_ms(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void wd_round_arm(wd_core *c)
{
    if (!c->net || c->options.hand_clock) return;
    const wd_clocks *now = &c->now;
    int64_t boot_ms = WD_NEVER_MS;
    int64_t wall_ms = WD_NEVER_MS;
    if (wd_commit_is_stalled(c->commit)) boot_ms = now->boot_ms + STALL_LOOK_MS;
    int64_t sweep_ms = wd_conns_next_sweep_ms(c->conns);
    if (sweep_ms != WD_NEVER_MS)
        boot_ms = min_ms(boot_ms, now->boot_ms + (sweep_ms - now->mono_ms));
    if (!loading(c)) {
        wall_ms = wd_engine_next_wall_ms(c->engine);
        int64_t rel_ms =
            min_ms(wd_engine_next_rel_ms(c->engine), wd_commands_next_wake_ms(c->commands));
        /* An alarm that has rung is Python's to set anew. While the wall clock is behind logical
         * now the alarm is behind both. */
        if (c->alarm_wall_ms > wd_engine_logical_ms(c->engine))
            wall_ms = min_ms(wall_ms, c->alarm_wall_ms);
        if (c->alarm_rel_ms > wd_engine_rel_ms(c->engine)) rel_ms = min_ms(rel_ms, c->alarm_rel_ms);
        if (rel_ms != WD_NEVER_MS) {
            int64_t left_ms = rel_ms - wd_engine_rel_ms(c->engine);
            boot_ms = min_ms(boot_ms, now->boot_ms + (left_ms > 0 ? left_ms : 0));
        }
    }
    wd_net_arm(c->net, wall_ms, boot_ms, now->wall_ms);
}

static uint32_t gated(const wd_core *c)
{
    return c->conns->lists[WD_L_GATED].count;
}

/* Commit what may be committed now, open the gate as far as that went, send. */
static int commit_and_send(wd_core *c)
{
    if (wd_commit_blocks(c->commit, gated(c))) flush(c);
    int all_wait = wd_conns_all_wait(c->conns), stalled = wd_commit_is_stalled(c->commit);
    uint64_t awaited = wd_commit_awaited_syncs(c->commit);
    if (wd_commit_submit(c->commit, gated(c), all_wait) != WD_OK) return fail(c);
    if (stalled && !wd_commit_is_stalled(c->commit)) { /* what waited for the disk may go on */
        wd_commands_set_disk(c->commands, wd_core_disk_room(c));
        c->conns->unsettled = 1;
    }
    uint32_t released = wd_conns_release(c->conns, wd_commit_durable_seq(c->commit));
    if (wd_commit_awaited_syncs(c->commit) != awaited) c->herd = released;
    flush(c);
    return WD_OK;
}

int wd_round_finish(wd_core *c)
{
    if (c->failure != WD_OK) return WD_EIO;
    int more = c->tick_more, settled = 0;
    for (int pass = 0; pass < FINISH_PASSES_MAX && !settled; pass++) {
        more = wd_conns_settle(c->conns, loading(c)) != WD_OK || c->tick_more;
        if (commit_and_send(c) != WD_OK) return WD_EIO;
        settled = wd_conns_is_settled(c->conns);
    }
    if (more || !settled) wd_commit_kick(c->commit);
    wd_round_arm(c);
    wd_save_round(c);
    return (int)c->conns->lists[WD_L_PYTHON].count;
}

/* What the commit thread finished leaves. WD_OK or WD_EIO; *out_herd connections got bytes, now or
 * at the end of the last round. */
static int collect(wd_core *c, uint32_t *out_herd)
{
    if (wd_commit_collect(c->commit) != WD_OK) return fail(c);
    uint32_t released = wd_conns_release(c->conns, wd_commit_durable_seq(c->commit));
    if (released > 0) flush(c);
    *out_herd = released > 0 ? released : c->herd;
    c->herd = 0;
    return WD_OK;
}

static void handle_events(wd_core *c)
{
    if (wd_net_handle(c->net)) wd_commit_unkick(c->commit);
}

static void gather(wd_core *c, uint32_t herd)
{
    /* A closed batch that waits already is work enough for the next commit. */
    uint64_t closed_bytes = wd_engine_queued_bytes(c->engine) - wd_engine_open_bytes(c->engine);
    int wanted = herd > 0 && c->options.gather_us > 0 &&
                 c->options.commit_mode == WD_COMMIT_THREAD &&
                 c->options.fsync_mode == WD_FSYNC_ALWAYS && closed_bytes == 0;
    if (!wanted) return;
    c->gathers++;
    uint64_t end_ns = wd_clock_mono_ns() + (uint64_t)c->options.gather_us * NS_PER_US;
    while (gated(c) < herd) {
        uint64_t now_ns = wd_clock_mono_ns();
        if (now_ns >= end_ns) return;
        if (wd_net_wait_ns(c->net, end_ns - now_ns) > 0) handle_events(c);
    }
}

/* The round behind a wait. *cpu_ns: what this thread had used before it, and then after it: a
 * system call, so the end of one round is the start of the next. */
static int run(wd_core *c, uint64_t *cpu_ns)
{
    wd_round_begin(c);
    handle_events(c);
    uint32_t herd = 0;
    if (collect(c, &herd) != WD_OK) return WD_EIO;
    gather(c, herd);
    int queued = wd_round_finish(c);
    uint64_t used_ns = wd_clock_thread_ns();
    wd_hist_add(&c->round_cpu_ns, used_ns - *cpu_ns);
    *cpu_ns = used_ns;
    return queued;
}

int wd_round_poll(wd_core *c, int timeout_ms)
{
    WD_ASSERT(c->net);
    if (c->failure != WD_OK) return WD_EIO;
    (void)wd_net_wait(c->net, timeout_ms);
    uint64_t cpu_ns = wd_clock_thread_ns();
    return run(c, &cpu_ns);
}

/* Is there nothing that the outer loop has to do between two rounds? */
static int may_stay(const wd_core *c)
{
    return !loading(c) && !c->options.hand_clock && c->options.commit_mode != WD_COMMIT_DRIVEN &&
           c->conns->fed_count == 0 && !wd_core_wants_python(c);
}

int wd_round_stay(wd_core *c)
{
    WD_ASSERT(c->net);
    if (c->failure != WD_OK) return WD_EIO;
    (void)wd_net_wait(c->net, 0);
    uint64_t cpu_ns = wd_clock_thread_ns();
    int queued = run(c, &cpu_ns);
    int64_t begin_ms = c->now.mono_ms;
    int busy = begin_ms - c->stayed_ms <= STAY_WAIT_MS;
    while (busy && queued == 0 && may_stay(c) && c->now.mono_ms - begin_ms < STAY_MS) {
        if (wd_net_wait(c->net, STAY_WAIT_MS) == 0) break;
        queued = run(c, &cpu_ns);
    }
    c->stayed_ms = c->now.mono_ms;
    return queued;
}
