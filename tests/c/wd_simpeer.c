/* wd_simpeer.c -- clients and workers: what they send, over which network, and what they make of
 * it.
 *
 * A producer schedules, repeats calls whose reply was lost, cancels. A worker leases over one
 * connection and says outcomes over another, late or twice or never; it may stop for longer than
 * its leases, or die. A reader looks at jobs. Bytes travel with a delay and in pieces; a connection
 * that breaks loses what is on its way, in both directions.
 */
#include "wd_simworld_int.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINE_BYTES = 2048, WORDS_MAX = 40 };

/* ---- links ---- */

static void link_open(wd_world *w, sim_link *l)
{
    uint64_t handle = 0;
    if (w->api.wd_core_fed_open(w->core, "sim:1", &handle) != WD_OK) return;
    l->handle = handle;
    l->finished = 0;
    sim_event(w, 1);
}

/* The connection is gone for its peer. */
static void link_lost(wd_world *w, sim_link *l)
{
    for (uint32_t i = 0; i < l->count; i++)
        sim_in_doubt(w, &l->pending[(l->first + i) % SIM_PENDING]);
    l->handle = 0;
    l->up_n = l->down_n = 0;
    l->first = l->count = 0;
    l->up_ms = l->down_ms = l->blocked_ms = SIM_NEVER;
}

static void link_cut(wd_world *w, sim_link *l)
{
    if (!l->handle) return;
    if (sim_below(w, 4) == 0)
        (void)w->api.wd_core_fed_eof(w->core, l->handle);
    else
        (void)w->api.wd_core_fed_close(w->core, l->handle);
    sim_event(w, 2);
    link_lost(w, l);
}

static int64_t lag(wd_world *w)
{
    return w->quiet ? 0 : (int64_t)sim_below(w, w->swarm.lag_ms + 1);
}

/* ---- sending ---- */

typedef struct {
    char text[LINE_BYTES];
    size_t n;
    wd_span word[WORDS_MAX];
    uint32_t words;
} line;

static void say(line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(line *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(l->text + l->n, LINE_BYTES - l->n, format, args);
    va_end(args);
    WD_ASSERT(n >= 0 && l->n + (size_t)n < LINE_BYTES && l->words < WORDS_MAX);
    l->word[l->words++] = (wd_span){(const uint8_t *)l->text + l->n, (size_t)n};
    l->n += (size_t)n;
}

static void put(sim_link *l, const void *p, size_t n)
{
    WD_ASSERT(l->up_n + n <= SIM_PIPE_BYTES);
    memcpy(l->up + l->up_n, p, n);
    l->up_n += n;
}

static void put_text(sim_link *l, const char *text, size_t number)
{
    char head[32];
    int n = snprintf(head, sizeof head, "%s%zu\r\n", text, number);
    put(l, head, (size_t)n);
}

/* As an inline line or as a RESP array. */
static void put_line(wd_world *w, sim_link *l, const line *words)
{
    int array = sim_below(w, 2) == 0;
    if (array) put_text(l, "*", words->words);
    for (uint32_t i = 0; i < words->words; i++) {
        if (array) put_text(l, "$", words->word[i].n);
        if (!array && i > 0) put(l, " ", 1);
        put(l, words->word[i].p, words->word[i].n);
        if (array) put(l, "\r\n", 2);
    }
    if (!array) put(l, "\r\n", 2);
}

static int link_has_room(const sim_link *l)
{
    return l->handle && !l->finished && l->count < SIM_PENDING &&
           l->up_n + 2 * (size_t)LINE_BYTES < SIM_PIPE_BYTES;
}

static void send_line(wd_world *w, sim_link *l, const line *words, sim_request r)
{
    WD_ASSERT(link_has_room(l));
    r.called_ms = w->true_ms;
    r.newest = w->newest;
    put_line(w, l, words);
    int64_t at_ms = w->true_ms + lag(w);
    if (l->up_ms == SIM_NEVER || at_ms > l->up_ms) l->up_ms = at_ms;
    l->pending[(l->first + l->count++) % SIM_PENDING] = r;
    w->stats.commands++;
    sim_event(w, 3);
}

/* ---- producers ---- */

/* How the job of a token is asked for follows from the token and the job's fields alone, so that a
 * repetition asks for the same. */
static void say_options(line *l, uint32_t token, const sim_job *j)
{
    uint64_t x = token * UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 29;
    if (j->once) {
        say(l, "ONCE");
        say(l, "t%u", token);
    }
    if (j->key >= 0) {
        say(l, "KEY");
        say(l, "k%d", j->key);
    }
    if (x & 64) {
        say(l, "PRIORITY");
        say(l, "%u", (unsigned)(x >> 8) % 256);
    }
    say(l, "RETRIES");
    say(l, "%u", (unsigned)(x >> 16) % 4);
    say(l, "LOST");
    say(l, "%u", (unsigned)(x >> 18) % 3);
    say(l, "BACKOFF");
    say(l, "%s", (x >> 20) % 3 == 0 ? "fixed" : (x >> 20) % 3 == 1 ? "linear" : "exp");
    say(l, "%u", 50 + (unsigned)(x >> 24) % 1000);
    say(l, "2000");
    say(l, "LEASE");
    say(l, "%u", 1000 + (unsigned)(x >> 32) % 5000);
    say(l, "TIMEOUT");
    say(l, "%u", (x >> 46) % 3 == 0 ? 1500 + (unsigned)(x >> 48) % 8000 : 0);
    if (j->expires) {
        say(l, "EXPIRE");
        say(l, "+%u", 2000 + (unsigned)(x >> 40) % 9000);
    }
}

static void say_payload(line *l, uint32_t token)
{
    char fill[160];
    size_t n = token % 7 == 0 ? sizeof fill - 1 : token % 23;
    memset(fill, 'a' + (int)(token % 26), n);
    fill[n] = 0;
    say(l, "J%u:%s", token, fill);
}

static void send_schedule(wd_world *w, sim_link *l, uint32_t token)
{
    static const char *const HANDLERS[] = {"mail", "pay", "sms", "poison"};
    sim_job *j = &w->jobs[token];
    line words = {.n = 0};
    say(&words, "SCHEDULE");
    say(&words, "%s", HANDLERS[j->poison ? 3 : token % 3]);
    if (!j->rel)
        say(&words, "%" PRId64, j->due_ms);
    else if (j->delay_ms == 0)
        say(&words, "now");
    else
        say(&words, "+%" PRId64, j->delay_ms);
    /* A reboot may set the rel axis back, so the second call may be the earlier one. */
    if (j->rel && sim_rel_ms(w) + j->delay_ms < j->due_ms) j->due_ms = sim_rel_ms(w) + j->delay_ms;
    say_payload(&words, token);
    say_options(&words, token, j);
    j->asked++;
    send_line(w, l, &words, (sim_request){.kind = ASK_SCHEDULE, .job = token});
}

static void schedule_new(wd_world *w, sim_peer *peer)
{
    const sim_swarm *s = &w->swarm;
    uint32_t token;
    sim_job *j = sim_job_new(w, &token);
    if (!j) return;
    j->once = !sim_chance(w, s->no_once);
    j->key = sim_chance(w, s->keys) ? (int)sim_below(w, SIM_KEYS) : -1;
    j->epoch = w->epoch;
    j->asked_ms = w->true_ms;
    j->poison = sim_chance(w, s->poison);
    j->far = sim_chance(w, s->far);
    j->expires = sim_chance(w, s->expire);
    j->rel = !sim_chance(w, s->absolute);
    j->first_rel_ms = sim_rel_ms(w);
    int64_t delay_ms = sim_below(w, 3) == 0 ? 0 : (int64_t)sim_below(w, 12000);
    if (j->far) delay_ms += INT64_C(48) * 3600 * 1000;
    j->delay_ms = delay_ms;
    j->due_ms = (j->rel ? j->first_rel_ms : sim_wall_ms(w)) + delay_ms;
    send_schedule(w, &peer->link[0], token);
    if (j->once && peer->retry_n < SIM_PENDING) peer->retry[peer->retry_n++] = token;
}

/* A call without an answer is repeated while its ONCE token is remembered; now and then one that
 * was answered is, too. */
static void schedule_again(wd_world *w, sim_peer *peer)
{
    if (peer->retry_n == 0) return;
    uint32_t at = (uint32_t)sim_below(w, peer->retry_n);
    uint32_t token = peer->retry[at];
    const sim_job *j = &w->jobs[token];
    int old = sim_rel_ms(w) - j->first_rel_ms > 8 * 60 * 1000;
    int known = j->id_confirmed || j->refused > 0;
    if (old || known) peer->retry[at] = peer->retry[--peer->retry_n];
    if (old || (known && !sim_chance(w, 100))) return;
    send_schedule(w, &peer->link[0], token);
}

static uint32_t some_job(wd_world *w)
{
    for (int tries = 0; tries < 8 && w->jobs_n > 0; tries++) {
        uint32_t recent = w->jobs_n > 80 && sim_below(w, 3) ? w->jobs_n - 80 : 0;
        uint32_t token = recent + (uint32_t)sim_below(w, w->jobs_n - recent);
        if (w->jobs[token].id) return token;
    }
    return WD_NIL;
}

static void ask_about(wd_world *w, sim_link *l, int kind, uint32_t token)
{
    sim_job *j = &w->jobs[token];
    line words = {.n = 0};
    if (kind == ASK_CANCEL) j->maybe_cancelled = 1;
    say(&words, "%s", kind == ASK_CANCEL ? "CANCEL" : "JOB");
    say(&words, "%" PRIu64, j->id);
    send_line(w, l, &words, (sim_request){.kind = kind, .job = token, .live = j->end == SIM_LIVE});
}

static void produce(wd_world *w, sim_peer *peer)
{
    sim_link *l = &peer->link[0];
    unsigned n = sim_chance(w, w->swarm.pipelined) ? 1 + (unsigned)sim_below(w, 6) : 1;
    for (; n > 0 && link_has_room(l); n--) {
        uint32_t token;
        if (sim_chance(w, w->swarm.cancel) && (token = some_job(w)) != WD_NIL)
            ask_about(w, l, ASK_CANCEL, token);
        else if (w->quiet || sim_below(w, 4) == 0)
            schedule_again(w, peer);
        else
            schedule_new(w, peer);
    }
    if (w->quiet && peer->retry_n > 0) peer->next_ms = w->true_ms + 20;
}

/* ---- readers ---- */

/* In the quiet phase those are asked about that have to end; after a start all that were promised.
 */
static void read_something(wd_world *w, sim_peer *peer)
{
    sim_link *l = &peer->link[0];
    for (int n = 0; n < 8 && w->audit_at < w->jobs_n && link_has_room(l); w->audit_at++) {
        const sim_job *j = &w->jobs[w->audit_at];
        if (!j->id || !j->id_confirmed) continue;
        ask_about(w, l, ASK_JOB, w->audit_at);
        w->stats.audits++;
        n++;
    }
    if (w->audit_at < w->jobs_n) {
        peer->next_ms = w->true_ms + 1;
        return;
    }
    if (w->quiet) {
        for (uint32_t at = sim_unended(w, 0); at != WD_NIL && link_has_room(l);
             at = sim_unended(w, at + 1))
            ask_about(w, l, ASK_JOB, at);
        peer->next_ms = w->true_ms + 1000;
        return;
    }
    uint32_t token = some_job(w);
    if (token != WD_NIL && link_has_room(l)) ask_about(w, l, ASK_JOB, token);
    static const char *const LOOKS[] = {"PING", "HANDLERS", "COUNT", "DEAD", "JOBS"};
    if (sim_below(w, 8) == 0 && link_has_room(l)) {
        line words = {.n = 0};
        say(&words, "%s", LOOKS[sim_below(w, 5)]);
        send_line(w, l, &words, (sim_request){.kind = ASK_OTHER});
    }
}

/* ---- workers ---- */

static void send_lease(wd_world *w, sim_peer *peer)
{
    static const char *const ASKED[] = {"mail,pay,sms,poison", "mail", "pay,s*", "po*", "sms,mail"};
    sim_link *l = &peer->link[0];
    uint32_t room = SIM_HELD - peer->held_n;
    if (l->count > 0 || room == 0 || !link_has_room(l)) return;
    line words = {.n = 0};
    say(&words, "LEASE");
    say(&words, "%s", ASKED[w->quiet ? 0 : sim_below(w, 5)]);
    say(&words, "COUNT");
    say(&words, "%u", 1 + (unsigned)sim_below(w, room));
    if (sim_below(w, 4)) {
        say(&words, "WAIT");
        say(&words, "%u", 1 + (unsigned)sim_below(w, 3000));
    }
    if (sim_below(w, 3) == 0) {
        say(&words, "WORKER");
        say(&words, "w%u", peer->number);
    }
    send_line(w, l, &words, (sim_request){.kind = ASK_LEASE});
}

static const char *const VERBS[] = {"", "", "", "", "ACK", "DONE", "FAIL", "RELEASE", "EXTEND"};

static void say_verb(wd_world *w, sim_peer *peer, sim_held *h, int verb)
{
    sim_job *j = &w->jobs[h->job];
    line words = {.n = 0};
    say(&words, "%s", VERBS[verb]);
    say(&words, "%" PRIu64 ".%" PRIu64 ".%" PRIu64, h->id, h->fence.term, h->fence.lsn);
    if (verb == ASK_DONE) say(&words, "{\"ok\":%u}", h->job);
    if ((verb == ASK_FAIL || verb == ASK_RELEASE) && sim_below(w, 2)) {
        say(&words, "IN");
        say(&words, "%u", (unsigned)sim_below(w, 1500));
    }
    if (verb == ASK_FAIL && sim_below(w, 2)) {
        say(&words, "ERROR");
        say(&words, "no-%u", h->job);
    }
    if (verb == ASK_EXTEND && sim_below(w, 3) == 0) {
        say(&words, "FOR");
        say(&words, "%" PRId64, h->lease_ms * 2);
    }
    sim_request r = {.kind = verb,
                     .job = h->job,
                     .id = h->id,
                     .fence = h->fence,
                     .until_ms = h->until_ms,
                     .live = h->sure && h->until_ms > w->true_ms,
                     .again = h->said > 0};
    if (verb != ASK_EXTEND) {
        h->said++;
        if (sim_fence_cmp(j->fence, h->fence) == 0 && w->true_ms < j->valid_ms)
            j->valid_ms = w->true_ms; /* from here on it may be anybody's */
        if (verb == ASK_ACK || verb == ASK_DONE) j->maybe_acked = 1;
    }
    send_line(w, &peer->link[1], &words, r);
}

/* What a worker will do with a grant, and when. */
static void plan_held(wd_world *w, sim_held *h)
{
    const sim_swarm *s = &w->swarm;
    int64_t work_ms = (int64_t)sim_below(w, sim_below(w, 5) ? 200 : 4000);
    h->verb = sim_below(w, 2) ? ASK_ACK : ASK_DONE;
    if (sim_chance(w, s->fail)) h->verb = ASK_FAIL;
    if (sim_chance(w, s->release)) h->verb = ASK_RELEASE;
    if (w->jobs[h->job].poison || sim_chance(w, s->hang)) h->verb = -1;
    h->act_ms = w->true_ms + (w->quiet ? 0 : work_ms);
}

static void work(wd_world *w, sim_peer *peer)
{
    for (uint32_t i = 0; i < peer->held_n; i++) {
        sim_held *h = &peer->held[i];
        if (h->verb == ASK_OTHER) plan_held(w, h);
        if (h->act_ms > w->true_ms || !link_has_room(&peer->link[1])) continue;
        if (h->verb >= 0 && !h->said && sim_chance(w, w->swarm.extend)) {
            say_verb(w, peer, h, ASK_EXTEND);
            h->act_ms = w->true_ms + h->lease_ms / 4 + (int64_t)sim_below(w, (uint64_t)h->lease_ms);
            continue;
        }
        if (h->verb >= 0) say_verb(w, peer, h, h->verb);
        /* Once more now and then: the reply may have been lost. */
        if (h->verb >= 0 && h->said < 3 && sim_below(w, 6) == 0) {
            h->act_ms = w->true_ms + (int64_t)sim_below(w, 900);
            continue;
        }
        peer->held[i--] = peer->held[--peer->held_n];
    }
    send_lease(w, peer);
}

static void worker_dies(wd_world *w, sim_peer *peer)
{
    for (int i = 0; i < SIM_LINKS; i++)
        link_cut(w, &peer->link[i]);
    peer->held_n = 0;
    sim_event(w, 4);
}

/* ---- a peer's turn ---- */

static void think(wd_world *w, sim_peer *peer)
{
    const sim_swarm *s = &w->swarm;
    int links = peer->kind == SIM_WORKER ? SIM_LINKS : 1;
    peer->next_ms = w->true_ms + 1 + (int64_t)sim_below(w, w->quiet ? 20 : s->think_ms);
    for (int i = 0; i < links; i++) {
        sim_link *l = &peer->link[i];
        if (l->finished) link_lost(w, l);
        if (l->handle && sim_chance(w, s->cut)) link_cut(w, l);
        if (!l->handle) link_open(w, l);
    }
    if (peer->kind == SIM_WORKER && sim_chance(w, s->worker_kill)) {
        worker_dies(w, peer);
        return;
    }
    if (peer->kind == SIM_WORKER && sim_chance(w, s->worker_pause)) {
        peer->next_ms += (int64_t)sim_below(w, 9000);
        sim_event(w, 5);
        return;
    }
    if (peer->kind == SIM_PRODUCER) produce(w, peer);
    if (peer->kind == SIM_WORKER) work(w, peer);
    if (peer->kind == SIM_READER) read_something(w, peer);
}

/* ---- replies ---- */

/* Bytes of the first whole reply in p[0..n), 0 = it is not whole. */
static size_t reply_bytes(const uint8_t *p, size_t n)
{
    size_t at = 0;
    for (int64_t left = 1; left > 0; left--) { /* bounded: each turn takes a line */
        const uint8_t *end = at < n ? memchr(p + at, '\n', n - at) : NULL;
        if (!end) return 0;
        int64_t number = strtoll((const char *)p + at + 1, NULL, 10);
        if (p[at] == '*' && number > 0) left += number;
        size_t body = p[at] == '$' && number >= 0 ? (size_t)number + 2 : 0;
        at = (size_t)(end - p) + 1 + body;
        if (at > n) return 0;
    }
    return at;
}

static void read_replies(wd_world *w, sim_peer *peer, sim_link *l)
{
    size_t at = 0, n;
    while ((n = reply_bytes(l->down + at, l->down_n - at)) > 0) {
        if (l->count == 0) {
            sim_violate(w, "reply: one more than there were requests");
            return;
        }
        sim_request r = l->pending[l->first];
        l->first = (l->first + 1) % SIM_PENDING;
        l->count--;
        w->stats.replies++;
        sim_event(w, 6);
        sim_judge(w, peer, l, &r, (wd_span){l->down + at, n});
        at += n;
    }
    memmove(l->down, l->down + at, l->down_n - at);
    l->down_n -= at;
    l->down_ms = SIM_NEVER;
}

/* ---- the network ---- */

static void deliver_up(wd_world *w, sim_link *l)
{
    size_t n = l->up_n;
    if (n > 1 && sim_chance(w, w->swarm.split)) n = 1 + (size_t)sim_below(w, n - 1);
    sim_mix(w, l->up, n);
    (void)w->api.wd_core_fed_input(w->core, l->handle, l->up, n);
    memmove(l->up, l->up + n, l->up_n - n);
    l->up_n -= n;
    l->up_ms = l->up_n ? w->true_ms + lag(w) : SIM_NEVER;
}

static sim_link *link_of(wd_world *w, uint64_t handle)
{
    for (int p = 0; p < SIM_PEERS; p++) {
        for (int i = 0; i < SIM_LINKS; i++) {
            if (w->peers[p].link[i].handle == handle) return &w->peers[p].link[i];
        }
    }
    return NULL;
}

/* Take what may leave on one connection; sometimes only a part, until its peer reads on. */
static void take(wd_world *w, uint64_t handle)
{
    const uint8_t *p = NULL;
    size_t n = 0;
    int finished = 0;
    if (w->api.wd_core_fed_output(w->core, handle, &p, &n, &finished) != WD_OK) return;
    sim_link *l = link_of(w, handle);
    WD_ASSERT(!l || l->down_n + n <= SIM_DOWN_BYTES);
    int blocks = l && n > 1 && !finished && sim_chance(w, w->swarm.block);
    if (blocks) n = 1 + (size_t)sim_below(w, n - 1);
    if (l && n > 0) {
        memcpy(l->down + l->down_n, p, n);
        sim_mix(w, p, n);
        l->down_n += n;
        l->down_lsn = w->api.wd_core_durable_lsn(w->core);
        int64_t at_ms = w->true_ms + lag(w);
        if (l->down_ms == SIM_NEVER || at_ms > l->down_ms) l->down_ms = at_ms;
    }
    (void)w->api.wd_core_fed_taken(w->core, handle, n);
    if (blocks) {
        (void)w->api.wd_core_fed_blocked(w->core, handle, 1);
        l->blocked_ms = w->true_ms + 1 + (int64_t)sim_below(w, 500);
    }
    if (finished) {
        if (l) l->finished = 1;
        (void)w->api.wd_core_fed_close(w->core, handle);
    }
}

void sim_peers_collect(wd_world *w)
{
    uint64_t handle;
    while (w->api.wd_core_fed_ready(w->core, &handle) == WD_OK) {
        const sim_link *l = link_of(w, handle);
        if (!l || l->blocked_ms == SIM_NEVER) take(w, handle);
    }
}

int64_t sim_peers_next_ms(const wd_world *w)
{
    int64_t next_ms = SIM_NEVER;
    for (int p = 0; p < SIM_PEERS; p++) {
        const sim_peer *peer = &w->peers[p];
        if (peer->next_ms < next_ms) next_ms = peer->next_ms;
        for (int i = 0; i < SIM_LINKS; i++) {
            const sim_link *l = &peer->link[i];
            if (l->handle && l->up_ms < next_ms) next_ms = l->up_ms;
            if (l->handle && l->down_ms < next_ms) next_ms = l->down_ms;
            if (l->handle && l->blocked_ms < next_ms) next_ms = l->blocked_ms;
        }
    }
    return next_ms;
}

int sim_peers_act(wd_world *w)
{
    int fed = 0;
    for (int p = 0; p < SIM_PEERS && !w->violation[0]; p++) {
        sim_peer *peer = &w->peers[p];
        for (int i = 0; i < SIM_LINKS; i++) {
            sim_link *l = &peer->link[i];
            if (l->handle && l->down_n && l->down_ms <= w->true_ms) read_replies(w, peer, l);
            if (l->handle && l->blocked_ms <= w->true_ms) {
                l->blocked_ms = SIM_NEVER;
                (void)w->api.wd_core_fed_blocked(w->core, l->handle, 0);
                take(w, l->handle);
            }
            if (l->handle && l->up_n && l->up_ms <= w->true_ms) {
                deliver_up(w, l);
                fed = 1;
            }
        }
        if (peer->next_ms <= w->true_ms) think(w, peer);
    }
    return fed;
}

void sim_peers_cut(wd_world *w)
{
    for (int p = 0; p < SIM_PEERS; p++) {
        for (int i = 0; i < SIM_LINKS; i++)
            link_lost(w, &w->peers[p].link[i]);
        w->peers[p].next_ms = w->true_ms + 1 + (int64_t)sim_below(w, 50);
    }
}

void sim_peers_new(wd_world *w)
{
    for (uint32_t p = 0; p < SIM_PEERS; p++) {
        sim_peer *peer = &w->peers[p];
        peer->number = p;
        peer->kind = p < SIM_PRODUCERS ? SIM_PRODUCER : p < SIM_PEERS - 1 ? SIM_WORKER : SIM_READER;
        for (int i = 0; i < SIM_LINKS; i++) {
            peer->link[i].up = malloc(SIM_PIPE_BYTES);
            peer->link[i].down = malloc(SIM_DOWN_BYTES + 1);
            WD_ASSERT(peer->link[i].up && peer->link[i].down);
            link_lost(w, &peer->link[i]);
        }
    }
}

void sim_peers_free(wd_world *w)
{
    for (uint32_t p = 0; p < SIM_PEERS; p++) {
        for (int i = 0; i < SIM_LINKS; i++) {
            free(w->peers[p].link[i].up);
            free(w->peers[p].link[i].down);
        }
    }
}
