/* wd_conns.c -- the table of connections and what a round does with them besides sockets.
 *
 * Invariants:
 *  1. table[i] != NULL iff i is not on the free stack; its session.handle is i | gens[i] << 32.
 *  2. Bit l of conn.lists is set iff the connection is on lists[l]; counts are right.
 *  3. A connection is on WD_L_GATED iff marks stand at its gate, and on WD_L_HELD iff it is held.
 *  4. A connection is on WD_L_PYTHON iff it is parked for Python, its command was not fetched yet
 *     and it is not dead.
 */
#include "wd_conns.h"

enum { SETTLE_PASSES_MAX = 16, SWEEP_MS = 1000 };

/* ---- lists ---- */

void wd_conns_put(wd_conns *s, int list, wd_conn *c)
{
    WD_ASSERT(list >= 0 && list < WD_LISTS);
    if (c->lists & (1U << list)) return;
    wd_list *l = &s->lists[list];
    WD_ASSERT((l->first == NULL) == (l->count == 0));
    c->links[list] = (wd_link){.prev = l->last, .next = NULL};
    if (l->last) {
        l->last->links[list].next = c;
    } else {
        l->first = c;
    }
    l->last = c;
    l->count++;
    c->lists |= 1U << list;
}

void wd_conns_drop(wd_conns *s, int list, wd_conn *c)
{
    WD_ASSERT(list >= 0 && list < WD_LISTS);
    if (!(c->lists & (1U << list))) return;
    wd_list *l = &s->lists[list];
    wd_link at = c->links[list];
    WD_ASSERT(l->count > 0);
    if (at.prev) {
        at.prev->links[list].next = at.next;
    } else {
        l->first = at.next;
    }
    if (at.next) {
        at.next->links[list].prev = at.prev;
    } else {
        l->last = at.prev;
    }
    l->count--;
    c->lists &= ~(1U << list);
}

wd_conn *wd_conns_pop(wd_conns *s, int list)
{
    WD_ASSERT(list >= 0 && list < WD_LISTS);
    wd_conn *c = s->lists[list].first;
    if (c) wd_conns_drop(s, list, c);
    return c;
}

/* ---- life ---- */

static void release(wd_conns *s)
{
    wd_buf_free(&s->runner.scratch);
    wd_release((void *)s->table);
    wd_release(s->gens);
    wd_release(s->free);
    wd_release(s);
}

wd_conns *wd_conns_new(wd_engine *e, wd_commands *commands, uint32_t conns_max, int auth_required)
{
    WD_ASSERT(e && commands && conns_max > 0);
    wd_conns *s = wd_zalloc(sizeof *s);
    if (!s) return NULL;
    s->runner.engine = e;
    s->runner.commands = commands;
    s->runner.auth_required = auth_required;
    s->conns_max = conns_max;
    s->next_id = 1;
    s->next_sweep_ms = s->queue_ms = WD_NEVER_MS;
    s->table = (wd_conn **)wd_zalloc(conns_max * sizeof *s->table);
    s->gens = wd_zalloc(conns_max * sizeof *s->gens);
    s->free = wd_alloc(conns_max * sizeof *s->free);
    if (s->table && s->gens && s->free) return s;
    release(s);
    return NULL;
}

void wd_conns_free(wd_conns *s)
{
    if (!s) return;
    for (wd_conn *c = s->lists[WD_L_ALL].first; c; c = s->lists[WD_L_ALL].first)
        wd_conns_close(s, c);
    release(s);
}

static void account(wd_conns *s, wd_conn *c)
{
    uint64_t now = wd_conn_memory(c);
    if (now == c->accounted) return;
    wd_engine_add_memory(s->runner.engine, (int64_t)now - (int64_t)c->accounted);
    c->accounted = now;
}

wd_conn *wd_conns_open(wd_conns *s, int fd)
{
    WD_ASSERT(fd >= -1);
    if (wd_conns_count(s) >= s->conns_max) return NULL;
    wd_conn *c = wd_zalloc(sizeof *c);
    if (!c) return NULL;
    uint32_t i = s->free_count > 0 ? s->free[--s->free_count] : s->capacity++;
    WD_ASSERT(i < s->conns_max && s->table[i] == NULL);
    s->table[i] = c;
    s->gens[i] = (s->gens[i] + 1) & INT32_MAX; /* a handle fits an int64 */
    c->session.handle = i | (uint64_t)s->gens[i] << 32;
    c->session.resp = 2;
    c->session.authed = !s->runner.auth_required;
    c->session.roles = c->session.authed ? WD_ROLES_ALL : 0;
    c->fd = fd;
    c->fed = fd < 0;
    s->fed_count += c->fed;
    c->id = s->next_id++;
    c->opened_ms = c->input_ms = s->mono_ms;
    s->accepted++;
    wd_conns_put(s, WD_L_ALL, c);
    if (!c->session.authed) {
        wd_conns_put(s, WD_L_PREAUTH, c);
        if (s->next_sweep_ms == WD_NEVER_MS) s->next_sweep_ms = s->mono_ms + SWEEP_MS;
    }
    account(s, c);
    return c;
}

void wd_conns_close(wd_conns *s, wd_conn *c)
{
    uint32_t i = (uint32_t)c->session.handle;
    WD_ASSERT(s->table && i < s->capacity && s->table[i] == c);
    for (int list = 0; list < WD_LISTS; list++)
        wd_conns_drop(s, list, c);
    WD_ASSERT(c->lists == 0);
    uint64_t lsn = wd_engine_lsn(s->runner.engine);
    wd_session_close(s->runner.commands, &c->session, c->sent);
    s->unsettled |= wd_engine_lsn(s->runner.engine) > lsn; /* its jobs are others' now */
    wd_engine_add_memory(s->runner.engine, -(int64_t)c->accounted);
    wd_conn_free_buffers(c);
    WD_ASSERT(s->fed_count >= c->fed);
    s->fed_count -= c->fed;
    s->table[i] = NULL;
    s->free[s->free_count++] = i;
    wd_release(c);
}

wd_conn *wd_conns_find(const wd_conns *s, uint64_t handle)
{
    uint32_t i = (uint32_t)handle;
    if (i >= s->capacity || !s->table[i]) return NULL;
    WD_ASSERT((uint32_t)s->table[i]->session.handle == i);
    return s->table[i]->session.handle == handle ? s->table[i] : NULL;
}

uint32_t wd_conns_count(const wd_conns *s)
{
    return s->lists[WD_L_ALL].count;
}

void wd_conns_kill(wd_conns *s, wd_conn *c)
{
    c->dead = 1;
    c->session.blocked = 1; /* until it is closed no waiting LEASE of it is served */
    wd_conns_drop(s, WD_L_PYTHON, c);
    wd_conns_put(s, WD_L_READY, c);
}

void wd_conns_kill_all(wd_conns *s)
{
    for (wd_conn *c = s->lists[WD_L_ALL].first; c; c = c->links[WD_L_ALL].next)
        wd_conns_kill(s, c);
}

/* ---- a round ---- */

/* The peer sends no more and what it sent cannot be read, because a LEASE waits in front of it. */
static void end_vain_wait(wd_conns *s, wd_conn *c)
{
    if (c->hung_up && c->parked == WD_PARKED_WAIT && !wd_conn_wants_input(c))
        wd_session_end_wait(s->runner.commands, &c->session);
}

void wd_conns_hung_up(wd_conns *s, wd_conn *c)
{
    c->hung_up = 1;
    end_vain_wait(s, c);
}

/* After c ran commands: bring its lists up to date. */
static void after_run(wd_conns *s, wd_conn *c)
{
    if (wd_conn_is_gated(c)) wd_conns_put(s, WD_L_GATED, c);
    wd_conns_drop(s, WD_L_HERD, c);
    if (wd_conn_is_gated(c)) wd_conns_put(s, WD_L_HERD, c);
    if (c->held)
        wd_conns_put(s, WD_L_HELD, c);
    else
        wd_conns_drop(s, WD_L_HELD, c);
    if (c->parked == WD_PARKED_PYTHON && !c->fetched && !c->dead) wd_conns_put(s, WD_L_PYTHON, c);
    if (wd_conn_out_bytes(c) > WD_OUT_HARD_BYTES && !c->dead) {
        s->slow_consumers++;
        c->dead = 1;
    }
    if (wd_conn_can_resume(c)) wd_conns_put(s, WD_L_RESUME, c);
    if (c->session.authed) wd_conns_drop(s, WD_L_PREAUTH, c);
    end_vain_wait(s, c);
    account(s, c);
    wd_conns_put(s, WD_L_READY, c);
}

void wd_conns_input(wd_conns *s, wd_conn *c, wd_span in)
{
    c->input_ms = s->mono_ms;
    wd_conn_input(c, &s->runner, in);
    after_run(s, c);
}

void wd_conns_eof(wd_conns *s, wd_conn *c)
{
    if (c->eof) return;
    wd_conn_eof(c, &s->runner);
    after_run(s, c);
}

/* A parked LEASE was answered. */
static void wake_session(wd_conns *s, wd_conn *c)
{
    wd_runner *r = &s->runner;
    WD_ASSERT(c->parked == WD_PARKED_WAIT);
    c->parked = WD_PARKED_NOT;
    c->full = 1; /* look at what is buffered behind it */
    if (wd_conn_gate(c, WD_DONE_GATED, wd_engine_seq(r->engine), r->durable_seq, 0) != WD_OK)
        c->dead = 1;
    after_run(s, c);
}

static void serve_waiting(wd_conns *s)
{
    wd_commands *commands = s->runner.commands;
    wd_commands_serve(commands);
    uint32_t woken = 0;
    for (wd_session *w = wd_commands_next_woken(commands); w;
         w = wd_commands_next_woken(commands)) {
        WD_ASSERT(woken < s->conns_max); /* each session waits at most once */
        woken++;
        wake_session(s, (wd_conn *)(void *)w);
    }
}

int wd_conns_settle(wd_conns *s, int loading)
{
    wd_engine *e = s->runner.engine;
    s->unsettled = 0;
    for (int pass = 0; pass < SETTLE_PASSES_MAX; pass++) {
        if (!loading) serve_waiting(s);
        uint32_t resumes = s->lists[WD_L_RESUME].count;
        if (resumes == 0) return WD_OK;
        for (uint32_t i = 0; i < resumes; i++) {
            wd_conn *c = wd_conns_pop(s, WD_L_RESUME);
            if (!c) break;
            wd_conn_resume(c, &s->runner);
            after_run(s, c);
        }
        if (wd_engine_open_bytes(e) >= WD_BATCH_CLOSE_BYTES) wd_engine_close_batch(e);
    }
    return WD_EAGAIN;
}

int64_t wd_conns_queue_age_ms(const wd_conns *s)
{
    return s->queue_ms == WD_NEVER_MS ? 0 : s->mono_ms - s->queue_ms;
}

/* The log is behind, or has caught up. */
static void set_paused(wd_conns *s, int paused)
{
    if (s->paused == paused) return;
    s->paused = paused;
    wd_commands_set_behind(s->runner.commands, paused);
    if (paused) {
        s->pauses++;
        return;
    }
    for (wd_conn *c = wd_conns_pop(s, WD_L_HELD); c; c = wd_conns_pop(s, WD_L_HELD)) {
        wd_conn_let_go(c);
        if (wd_conn_can_resume(c)) wd_conns_put(s, WD_L_RESUME, c);
        wd_conns_put(s, WD_L_READY, c);
    }
}

static void watch_queue(wd_conns *s, int stalled)
{
    wd_engine *e = s->runner.engine;
    uint64_t queued = wd_engine_queued_bytes(e);
    int waits = wd_engine_seq(e) > s->runner.durable_seq;
    if (!waits) s->queue_ms = WD_NEVER_MS;
    if (waits && s->queue_ms == WD_NEVER_MS) s->queue_ms = s->mono_ms;
    int old = wd_conns_queue_age_ms(s) >= WD_QUEUE_PAUSE_MS;
    uint64_t most = s->paused ? WD_QUEUE_RESUME_BYTES : WD_QUEUE_PAUSE_BYTES;
    set_paused(s, !stalled && (old || queued > most));
}

uint32_t wd_conns_release(wd_conns *s, uint64_t durable_seq)
{
    wd_runner *r = &s->runner;
    WD_ASSERT(durable_seq >= r->durable_seq);
    if (durable_seq == r->durable_seq) return 0;
    r->durable_seq = durable_seq;
    s->queue_ms = WD_NEVER_MS; /* what is oldest now has waited for one commit at most */
    watch_queue(s, 0);
    uint32_t released = 0;
    wd_conn *next = NULL;
    for (wd_conn *c = s->lists[WD_L_GATED].first; c; c = next) {
        next = c->links[WD_L_GATED].next;
        uint64_t before = c->released;
        wd_conn_release(c, durable_seq);
        if (!wd_conn_is_gated(c)) wd_conns_drop(s, WD_L_GATED, c);
        if (c->released > before) released++;
        if (wd_conn_can_resume(c)) wd_conns_put(s, WD_L_RESUME, c);
        wd_conns_put(s, WD_L_READY, c);
    }
    return released;
}

void wd_conns_taken(wd_conns *s, wd_conn *c, size_t k, int64_t now_us)
{
    wd_conn_taken(c, &s->runner, k, now_us);
    if (wd_conn_can_resume(c)) wd_conns_put(s, WD_L_RESUME, c);
    account(s, c);
}

void wd_conns_set_blocked(wd_conns *s, wd_conn *c, int blocked)
{
    if (c->session.blocked == (blocked != 0)) return;
    c->session.blocked = blocked != 0;
    if (!blocked) {
        wd_conns_drop(s, WD_L_BLOCKED, c);
        s->unsettled |= c->session.wait != NULL;
        if (wd_conn_can_resume(c)) wd_conns_put(s, WD_L_RESUME, c);
        return;
    }
    c->blocked_ms = s->mono_ms;
    wd_conns_put(s, WD_L_BLOCKED, c);
    if (s->next_sweep_ms == WD_NEVER_MS) s->next_sweep_ms = s->mono_ms + SWEEP_MS;
}

wd_conn *wd_conns_next_ready(wd_conns *s)
{
    wd_conn *c = wd_conns_pop(s, WD_L_READY);
    for (; c && c->fd < 0; c = wd_conns_pop(s, WD_L_READY)) {
        if (c->sent < c->released || wd_conn_is_finished(c)) wd_conns_put(s, WD_L_FED, c);
    }
    return c;
}

/* ---- limits in time ---- */

static void sweep(wd_conns *s)
{
    wd_conn *next = NULL;
    for (wd_conn *c = s->lists[WD_L_BLOCKED].first; c; c = next) {
        next = c->links[WD_L_BLOCKED].next;
        int slow = c->released - c->sent > WD_OUT_SOFT_BYTES &&
                   s->mono_ms - c->blocked_ms >= WD_OUT_SOFT_MS;
        if (!slow || c->dead) continue;
        s->slow_consumers++;
        wd_conns_kill(s, c);
    }
    for (wd_conn *c = s->lists[WD_L_PREAUTH].first; c; c = next) {
        next = c->links[WD_L_PREAUTH].next;
        if (c->session.authed || c->dead) {
            wd_conns_drop(s, WD_L_PREAUTH, c);
            continue;
        }
        if (s->mono_ms - c->opened_ms < WD_PREAUTH_MS) break; /* oldest first */
        s->preauth_timeouts++;
        wd_conns_kill(s, c);
        wd_conns_drop(s, WD_L_PREAUTH, c);
    }
}

int wd_conns_all_wait(wd_conns *s)
{
    wd_conn *c = s->lists[WD_L_HERD].first; /* whoever asked longest ago */
    for (; c && s->mono_ms - c->input_ms > WD_HERD_MS; c = s->lists[WD_L_HERD].first)
        wd_conns_drop(s, WD_L_HERD, c);
    return s->lists[WD_L_HERD].count == s->lists[WD_L_ALL].count;
}

void wd_conns_begin_round(wd_conns *s, int64_t mono_ms, int stalled)
{
    s->mono_ms = mono_ms;
    watch_queue(s, stalled);
    if (mono_ms < s->next_sweep_ms) return;
    sweep(s);
    int watched = s->lists[WD_L_BLOCKED].count > 0 || s->lists[WD_L_PREAUTH].count > 0;
    s->next_sweep_ms = watched ? mono_ms + SWEEP_MS : WD_NEVER_MS;
}

int64_t wd_conns_next_sweep_ms(const wd_conns *s)
{
    return s->next_sweep_ms;
}

/* ---- commands that Python answers ---- */

wd_conn *wd_conns_next_python(wd_conns *s)
{
    wd_conn *c = wd_conns_pop(s, WD_L_PYTHON);
    if (!c) return NULL;
    WD_ASSERT(c->parked == WD_PARKED_PYTHON && c->kept_argc > 0 && !c->fetched);
    c->fetched = 1;
    return c;
}

int wd_conns_answer(wd_conns *s, uint64_t handle, wd_span reply, int gated)
{
    wd_conn *c = wd_conns_find(s, handle);
    if (!c || c->dead || c->parked != WD_PARKED_PYTHON) return WD_EGONE;
    wd_conns_drop(s, WD_L_PYTHON, c);
    int status = wd_conn_answer(c, &s->runner, reply, gated ? WD_DONE_GATED : WD_DONE_FREE);
    if (status != WD_OK) c->dead = 1;
    after_run(s, c);
    return status;
}
