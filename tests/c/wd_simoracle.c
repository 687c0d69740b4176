/* wd_simoracle.c -- what clients were told, and whether an honest server can have said it.
 *
 * Facts are kept, not a model of the engine: a confirmed job is somewhere until a cause for its end
 * is known; one end; a completion is taken once and only from the newest grant; fences rise; while
 * a lease is valid for certain nobody else is given the job; nothing begins before it is due. A
 * call whose reply was lost may have been carried out or not. (The checkers of Jepsen work so, and
 * tests/history.py does for the real process.)
 *
 * Each fact has the lsn behind which it depends on nothing. Where losing the unsynced tail is
 * allowed (interval and off at a power cut, a lying disk), facts behind the recovered lsn fall back
 * into doubt.
 */
#include "wd_simworld_int.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- reading replies ---- */

typedef struct {
    const uint8_t *p;
    size_t n, at;
    char type; /* of the token read last */
    int64_t number;
    wd_span text;
} cursor;

static int64_t number_of(wd_span s)
{
    int64_t v = 0;
    size_t i = s.n > 0 && s.p[0] == '-';
    for (; i < s.n && s.p[i] >= '0' && s.p[i] <= '9'; i++)
        v = v * 10 + (s.p[i] - '0');
    return s.n > 0 && s.p[0] == '-' ? -v : v;
}

static int next(cursor *c)
{
    const uint8_t *end = c->at < c->n ? memchr(c->p + c->at, '\n', c->n - c->at) : NULL;
    if (!end) return 0;
    c->type = (char)c->p[c->at];
    c->text = (wd_span){c->p + c->at + 1, (size_t)(end - c->p) - c->at - 2};
    c->number = number_of(c->text);
    c->at = (size_t)(end - c->p) + 1;
    if (c->type != '$' || c->number < 0) return 1;
    c->text = (wd_span){c->p + c->at, (size_t)c->number};
    c->at += (size_t)c->number + 2;
    return 1;
}

static int is(wd_span s, const char *word)
{
    size_t n = strlen(word);
    return s.n >= n && memcmp(s.p, word, n) == 0 && (s.n == n || s.p[n] == ' ');
}

/* id.term.lsn */
static sim_fence fence_of(wd_span receipt, uint64_t *out_id)
{
    uint64_t part[3] = {0};
    int k = 0;
    for (size_t i = 0; i < receipt.n && k < 3; i++) {
        if (receipt.p[i] == '.')
            k++;
        else
            part[k] = part[k] * 10 + (uint64_t)(receipt.p[i] - '0');
    }
    *out_id = part[0];
    return (sim_fence){part[1], part[2]};
}

int sim_fence_cmp(sim_fence a, sim_fence b)
{
    if (a.term != b.term) return a.term < b.term ? -1 : 1;
    return a.lsn < b.lsn ? -1 : a.lsn > b.lsn;
}

/* ---- jobs ---- */

sim_job *sim_job_new(wd_world *w, uint32_t *out_token)
{
    if (w->jobs_n == SIM_JOBS) return NULL;
    *out_token = w->jobs_n;
    sim_job *j = &w->jobs[w->jobs_n++];
    *j = (sim_job){0};
    w->stats.jobs++;
    return j;
}

static const char *const ENDS[] = {"live", "succeeded", "cancelled", "dead", "expired"};

/* The job has ended so: told by a reply that depends on nothing behind lsn. */
static void ended(wd_world *w, uint32_t token, int end, uint64_t lsn)
{
    sim_job *j = &w->jobs[token];
    if (j->end != SIM_LIVE && j->end != end)
        sim_violate(w, "two_ends: job %u was %s and is %s", token, ENDS[j->end], ENDS[end]);
    if (j->end != SIM_LIVE) return;
    j->end = end;
    j->end_lsn = lsn;
    j->ended_ms = w->true_ms;
}

static void named(wd_world *w, uint32_t token, uint64_t id, uint64_t lsn, int confirmed)
{
    sim_job *j = &w->jobs[token];
    if (j->id != 0 && j->id != id)
        sim_violate(w, "once: token %u is job %" PRIu64 " and job %" PRIu64, token, j->id, id);
    if (j->id == 0 || lsn < j->id_lsn) j->id_lsn = lsn;
    j->id = id;
    j->id_confirmed |= confirmed;
}

/* The token in a payload "J<token>:...", SIM_JOBS when it is none of ours. */
static uint32_t token_of(const wd_world *w, wd_span payload)
{
    if (payload.n < 2 || payload.p[0] != 'J') return SIM_JOBS;
    uint64_t v = 0;
    size_t i = 1;
    for (; i < payload.n && payload.p[i] != ':' && v < SIM_JOBS; i++)
        v = v * 10 + (uint64_t)(payload.p[i] - '0');
    for (i++; i < payload.n; i++) {
        if (payload.p[i] != 'a' + v % 26) return SIM_JOBS;
    }
    return v < w->jobs_n ? (uint32_t)v : SIM_JOBS;
}

/* ---- replies to clients ---- */

/* A job was made with a key: whoever was confirmed to hold it before has ended. */
static void lose_key(wd_world *w, const sim_request *r)
{
    for (uint32_t i = 0; i < w->jobs_n; i++) {
        sim_job *other = &w->jobs[i];
        if (i == r->job || other->key != w->jobs[r->job].key || !other->id_confirmed) continue;
        if (other->confirmed_ms < w->jobs[r->job].asked_ms && other->key_lost_ms == 0)
            other->key_lost_ms = w->true_ms;
    }
}

/* It was seen alive by a request that was sent after another job had been made with its key. */
static void check_key(wd_world *w, uint32_t token, const sim_request *r)
{
    const sim_job *j = &w->jobs[token];
    if (j->key_lost_ms > 0 && j->key_lost_ms < r->called_ms)
        sim_violate(w, "key: job %u is alive, and another was made with its key", token);
}

static void judge_schedule(wd_world *w, const sim_link *l, const sim_request *r, cursor *c)
{
    sim_job *j = &w->jobs[r->job];
    (void)next(c);
    if (c->type == '-') {
        j->refused++;
        if (!is(c->text, "DISKFULL"))
            sim_violate(w, "reply: token %u was refused: %.*s", r->job, (int)c->text.n,
                        (const char *)c->text.p);
        return;
    }
    if (c->type == '*') (void)next(c);
    uint64_t id = (uint64_t)c->number;
    if (c->type == '$') id = (uint64_t)number_of(c->text);
    if (id == 0) {
        sim_violate(w, "reply: SCHEDULE of token %u was answered without an id", r->job);
        return;
    }
    if (j->key >= 0) {
        (void)next(c);
        if (!is(c->text, "created")) { /* another job holds the key */
            j->refused++;
            return;
        }
    }
    if (j->key >= 0 && !j->id_confirmed) lose_key(w, r);
    named(w, r->job, id, l->down_lsn, 1);
    if (j->confirmed_ms == 0) j->confirmed_ms = w->true_ms;
}

static void judge_cancel(wd_world *w, const sim_link *l, const sim_request *r, cursor *c)
{
    sim_job *j = &w->jobs[r->job];
    (void)next(c);
    if (c->type != '*' || !next(c)) return; /* DISKFULL */
    if (is(c->text, "CANCELLED")) {
        j->maybe_cancelled = 1;
        ended(w, r->job, SIM_CANCELLED, l->down_lsn);
    }
    if (is(c->text, "MARKED")) j->maybe_cancelled = 1;
    if (c->type == '-' && r->live && j->id_confirmed && j->end == SIM_LIVE)
        sim_violate(w, "lost: job %u was confirmed, and CANCEL does not know it", r->job);
}

static int end_of_word(wd_span s)
{
    for (int end = SIM_SUCCEEDED; end <= SIM_EXPIRED; end++) {
        if (is(s, ENDS[end])) return end;
    }
    return SIM_LIVE;
}

static int has_reason(const sim_job *j, int end)
{
    if (end == SIM_SUCCEEDED) return j->maybe_acked;
    if (end == SIM_CANCELLED) return j->maybe_cancelled;
    if (end == SIM_EXPIRED) return j->expires;
    return 1; /* dead: leases may be lost whose grant nobody read */
}

static void judge_job(wd_world *w, const sim_link *l, const sim_request *r, cursor *c)
{
    sim_job *j = &w->jobs[r->job];
    w->stats.reads++;
    (void)next(c);
    if (c->type == '-') return;
    if (c->type == '$' && c->number < 0) {
        if (j->id_confirmed) sim_violate(w, "lost: job %u was confirmed and is not known", r->job);
        return;
    }
    while (next(c) && !is(c->text, "state")) {
    }
    if (!next(c)) {
        sim_violate(w, "reply: JOB of token %u has no state", r->job);
        return;
    }
    int end = end_of_word(c->text);
    if (end == SIM_LIVE && j->end != SIM_LIVE && !r->live)
        sim_violate(w, "resurrected: job %u was %s and is %.*s", r->job, ENDS[j->end],
                    (int)c->text.n, (const char *)c->text.p);
    if (end == SIM_LIVE) {
        check_key(w, r->job, r);
        return;
    }
    if (j->end == SIM_LIVE && !has_reason(j, end))
        sim_violate(w, "no_reason: job %u is %s, and nobody did that", r->job, ENDS[end]);
    ended(w, r->job, end, l->down_lsn);
}

/* ---- replies to workers ---- */

static void check_grant(wd_world *w, uint32_t token, const sim_request *r, sim_fence fence,
                        uint32_t attempt, int64_t lease_ms)
{
    const sim_job *j = &w->jobs[token];
    if (!j->asked || (j->refused > 0 && j->refused == j->asked && !j->in_doubt))
        sim_violate(w, "invented: token %u ran, and was never taken", token);
    if (j->end != SIM_LIVE && j->ended_ms < r->called_ms)
        sim_violate(w, "granted_after_end: job %u was %s before LEASE was sent", token,
                    ENDS[j->end]);
    check_key(w, token, r);
    int64_t now_ms = j->rel ? sim_rel_ms(w) : sim_wall_since_ms(w, j->epoch);
    if (now_ms < j->due_ms)
        sim_violate(w, "early: job %u began %" PRId64 " ms before it was due", token,
                    j->due_ms - now_ms);
    if (sim_fence_cmp(fence, r->newest) <= 0)
        sim_violate(w, "fence: job %u got a fence that is not above one read before", token);
    if (j->grants == 0) return;
    int later = sim_fence_cmp(fence, j->fence);
    if (later == 0 || (later > 0) != (attempt > j->attempt))
        sim_violate(w, "fence: job %u, attempt %u and attempt %u do not rise with their fences",
                    token, j->attempt, attempt);
    if (later > 0 && w->true_ms < j->valid_ms)
        sim_violate(w, "overlap: job %u was given %" PRId64 " ms before a valid lease ended", token,
                    j->valid_ms - w->true_ms);
    if (later < 0 && j->read_ms < r->called_ms + lease_ms)
        sim_violate(w, "overlap: job %u, an older grant was valid when the newer came", token);
}

/* Note the newest grant of a job. */
static void take_grant(wd_world *w, const sim_link *l, uint32_t token, sim_fence fence)
{
    sim_job *j = &w->jobs[token];
    if (sim_fence_cmp(fence, w->newest) > 0) w->newest = fence;
    j->grants++;
    if (j->grants > 1 && sim_fence_cmp(fence, j->fence) < 0) return;
    j->fence = fence;
    j->fence_lsn = l->down_lsn;
    j->read_ms = w->true_ms;
}

/* One job of a LEASE reply. */
static void judge_grant(wd_world *w, sim_peer *peer, const sim_link *l, const sim_request *asked,
                        cursor *c)
{
    wd_span word[9];
    int64_t number[9] = {0};
    (void)next(c);
    int64_t n = c->number;
    for (int64_t i = 0; i < n && next(c); i++) {
        if (i < 9) word[i] = c->text;
        if (i < 9) number[i] = c->number;
    }
    if (n < 9) {
        sim_violate(w, "reply: a grant has %" PRId64 " elements", n);
        return;
    }
    uint64_t id;
    sim_fence fence = fence_of(word[0], &id);
    uint32_t token = token_of(w, word[7]);
    if (token == SIM_JOBS) {
        sim_violate(w, "invented: job %" PRIu64 " has a payload that nobody sent", id);
        return;
    }
    w->stats.grants++;
    int64_t lease_ms = number[6], timeout_ms = number[8];
    named(w, token, id, l->down_lsn, 0);
    check_grant(w, token, asked, fence, (uint32_t)number[4], lease_ms);
    take_grant(w, l, token, fence);
    sim_job *j = &w->jobs[token];
    int64_t term_ms = timeout_ms > 0 && timeout_ms < lease_ms ? timeout_ms : lease_ms;
    int64_t until_ms = asked->called_ms + term_ms;
    if (sim_fence_cmp(fence, j->fence) == 0) {
        j->attempt = (uint32_t)number[4];
        j->valid_ms = until_ms;
        j->valid_lsn = l->down_lsn;
        j->term_ms = term_ms;
    }
    peer->held[peer->held_n++] = (sim_held){.job = token,
                                            .id = id,
                                            .fence = fence,
                                            .act_ms = w->true_ms,
                                            .until_ms = until_ms,
                                            .lease_ms = lease_ms,
                                            .term_ms = term_ms,
                                            .verb = ASK_OTHER,
                                            .sure = 1,
                                            .timeout = timeout_ms > 0};
}

static void judge_lease(wd_world *w, sim_peer *peer, const sim_link *l, const sim_request *r,
                        cursor *c)
{
    (void)next(c);
    if (c->type != '*') return; /* refused: DISKFULL, LIMIT */
    int64_t n = c->number;
    for (int64_t i = 0; i < n; i++) {
        if (peer->held_n == SIM_HELD) {
            sim_violate(w, "reply: LEASE gave more jobs than it was asked for");
            return;
        }
        judge_grant(w, peer, l, r, c);
    }
}

/* The lease was surely valid when the reply was read, and is not accepted. */
static void check_refused(wd_world *w, const sim_request *r, cursor *c)
{
    const sim_job *j = &w->jobs[r->job];
    if (is(c->text, "UNKNOWN") && j->id_confirmed && j->id == r->id)
        sim_violate(w, "forgotten: job %u was confirmed, and its receipt is unknown", r->job);
    if (!r->live || r->again || w->true_ms >= r->until_ms) return;
    sim_violate(w, "lease_broken: job %u, %.*s within a valid lease", r->job, (int)c->text.n,
                (const char *)c->text.p);
}

static void judge_ack(wd_world *w, const sim_link *l, const sim_request *r, cursor *c)
{
    sim_job *j = &w->jobs[r->job];
    (void)next(c);
    if (c->type == '*') (void)next(c);
    if (is(c->text, "DISKFULL") || is(c->text, "LOADING")) return;
    if (c->type == '-') {
        check_refused(w, r, c);
        return;
    }
    if (is(c->text, "ALREADY") && !r->again)
        sim_violate(w, "already: job %u, nobody had completed it by this fence", r->job);
    if (sim_fence_cmp(r->fence, r->newest) < 0 && sim_fence_cmp(r->fence, j->fence) < 0 &&
        sim_fence_cmp(j->fence, r->newest) <= 0 && j->end != SIM_SUCCEEDED)
        sim_violate(w, "stale_accepted: job %u, and somebody else had been given it", r->job);
    if (j->end == SIM_SUCCEEDED && j->completed.term != 0 &&
        sim_fence_cmp(j->completed, r->fence) != 0)
        sim_violate(w, "completed_twice: job %u by two fences", r->job);
    w->stats.completions++;
    j->completed = r->fence;
    ended(w, r->job, SIM_SUCCEEDED, l->down_lsn);
}

static void judge_fail(wd_world *w, const sim_link *l, const sim_request *r, cursor *c)
{
    (void)next(c);
    if (is(c->text, "DISKFULL")) return;
    if (c->type == '-') check_refused(w, r, c);
    if (is(c->text, "DEAD")) ended(w, r->job, SIM_DEAD, l->down_lsn);
    if (is(c->text, "CANCELLED") && c->type == '+') ended(w, r->job, SIM_CANCELLED, l->down_lsn);
    if (is(c->text, "ALREADY") && !r->again)
        sim_violate(w, "already: job %u, nobody had said that about this fence", r->job);
}

static void judge_extend(wd_world *w, sim_peer *peer, const sim_link *l, const sim_request *r,
                         cursor *c)
{
    sim_job *j = &w->jobs[r->job];
    (void)next(c);
    if (c->type == '*') (void)next(c);
    if (c->type == '-') {
        if (!is(c->text, "DISKFULL") && !is(c->text, "CANCELLED")) check_refused(w, r, c);
        return;
    }
    if (c->type != ':' || sim_fence_cmp(r->fence, j->fence) != 0) return;
    for (uint32_t i = 0; i < peer->held_n; i++) {
        sim_held *h = &peer->held[i];
        int64_t until_ms = r->called_ms + c->number;
        if (h->job != r->job || sim_fence_cmp(h->fence, r->fence) != 0 || h->timeout || h->said)
            continue;
        if (until_ms > h->until_ms) h->until_ms = until_ms;
        if (until_ms <= j->valid_ms) continue;
        j->valid_ms = until_ms;
        j->valid_lsn = l->down_lsn;
    }
}

void sim_judge(wd_world *w, sim_peer *peer, sim_link *link, const sim_request *r, wd_span reply)
{
    cursor c = {.p = reply.p, .n = reply.n};
    switch ((enum sim_request_kind)r->kind) {
    case ASK_SCHEDULE:
        judge_schedule(w, link, r, &c);
        break;
    case ASK_CANCEL:
        judge_cancel(w, link, r, &c);
        break;
    case ASK_JOB:
        judge_job(w, link, r, &c);
        break;
    case ASK_LEASE:
        judge_lease(w, peer, link, r, &c);
        break;
    case ASK_ACK:
    case ASK_DONE:
        judge_ack(w, link, r, &c);
        break;
    case ASK_FAIL:
    case ASK_RELEASE:
        judge_fail(w, link, r, &c);
        break;
    case ASK_EXTEND:
        judge_extend(w, peer, link, r, &c);
        break;
    case ASK_OTHER:
        break;
    }
}

/* ---- doubt ---- */

void sim_in_doubt(wd_world *w, const sim_request *r)
{
    if (r->kind == ASK_SCHEDULE) w->jobs[r->job].in_doubt++;
}

void sim_roll_back(wd_world *w, uint64_t last_lsn)
{
    for (uint32_t i = 0; i < w->jobs_n; i++) {
        sim_job *j = &w->jobs[i];
        if (j->id && j->id_lsn > last_lsn) {
            j->id = 0;
            j->id_confirmed = 0;
            j->confirmed_ms = 0;
            j->in_doubt++;
        }
        if (j->end != SIM_LIVE && j->end_lsn > last_lsn) {
            j->end = SIM_LIVE;
            j->completed = (sim_fence){0};
            j->maybe_failed = 1;
        }
        if (j->grants && j->fence_lsn > last_lsn) {
            j->grants = 0;
            j->fence = (sim_fence){0};
        }
        if (j->valid_lsn > last_lsn) j->valid_ms = 0;
        j->key_lost_ms = 0;
    }
    for (int p = 0; p < SIM_PEERS; p++) {
        for (uint32_t i = 0; i < w->peers[p].held_n; i++)
            w->peers[p].held[i].sure = 0;
    }
}

void sim_fresh_terms(wd_world *w, int64_t before_ms)
{
    for (uint32_t i = 0; i < w->jobs_n; i++) {
        sim_job *j = &w->jobs[i];
        if (j->grants && j->valid_ms > before_ms && w->true_ms + j->term_ms > j->valid_ms)
            j->valid_ms = w->true_ms + j->term_ms;
    }
    for (int p = 0; p < SIM_PEERS; p++) {
        for (uint32_t i = 0; i < w->peers[p].held_n; i++) {
            sim_held *h = &w->peers[p].held[i];
            if (h->sure && !h->said && h->until_ms > before_ms &&
                w->true_ms + h->term_ms > h->until_ms)
                h->until_ms = w->true_ms + h->term_ms;
        }
    }
}

uint32_t sim_unended(const wd_world *w, uint32_t from)
{
    for (uint32_t i = from; i < w->jobs_n; i++) {
        const sim_job *j = &w->jobs[i];
        if (j->id && j->id_confirmed && !j->far && j->end == SIM_LIVE) return i;
    }
    return WD_NIL;
}
