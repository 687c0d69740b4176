/* wd_verbs_job.c -- SCHEDULE and the verbs that name jobs. */
#include "wd_verbs.h"

static const wd_span words[] = {
    [WD_A_CREATED] = WD_SPAN_INIT("created"),
    [WD_A_EXISTING] = WD_SPAN_INIT("existing"),
    [WD_A_ENDED] = WD_SPAN_INIT("ended"),
    [WD_A_REPLACED] = WD_SPAN_INIT("replaced"),
};

static wd_span text(const char *s)
{
    return (wd_span){(const uint8_t *)s, strlen(s)};
}

/* ---- SCHEDULE ---- */

/* Options without a member that says whether they were given. */
enum {
    GIVEN_ONDUP = 1,
    GIVEN_WINDOW = 2,
    GIVEN_PRIORITY = 4,
    GIVEN_EXPIRE = 8,
    GIVEN_ONCE = 16,
    GIVEN_META = 32,
    GIVEN_GROUP = 64
};

static int take_key(wd_call *k, uint32_t *i, wd_new_job *job)
{
    if (job->key.n) return wd_unknown_option(k, *i), 0;
    if (!wd_arg_name(k, *i + 1, "KEY", &job->key)) return 0;
    size_t digits = 0;
    while (digits < job->key.n && job->key.p[digits] >= '0' && job->key.p[digits] <= '9')
        digits++;
    *i += 2;
    if (digits < job->key.n) return 1;
    (void)wd_refuse(k, "SYNTAX",
                    "KEY %.*s has digits only and would read as an id; add another character",
                    WD_SHOW(job->key));
    return 0;
}

static int take_ondup(wd_call *k, uint32_t *i, wd_new_job *job, uint32_t *given)
{
    static const char *const rules[] = {"KEEP", "REPLACE", "ERROR"};
    wd_span s;
    if (!wd_option_once(k, *i, GIVEN_ONDUP, given) || !wd_arg_value(k, *i, &s)) return 0;
    for (uint8_t n = 0; n < 3; n++) {
        if (wd_word_is(s, rules[n])) {
            job->ondup = n;
            *i += 2;
            return 1;
        }
    }
    (void)wd_refuse(k, "SYNTAX", "ONDUP \"%.*s\" is none of keep, replace, error", WD_SHOW(s));
    return 0;
}

/* Options that carry a number or a time. 1 taken, 0 not one of them, -1 refused. */
static int take_number(wd_call *k, uint32_t *i, wd_new_job *job, uint32_t *given)
{
    wd_span word = k->argv[*i];
    uint32_t at = *i, bit;
    uint64_t v;
    int ok;
    if (wd_word_is(word, "WINDOW")) {
        bit = GIVEN_WINDOW;
        ok = wd_arg_number(k, *i + 1, "WINDOW", 0, WD_WINDOW_MS_MAX, &v);
        if (ok) job->window_ms = (int64_t)v;
    } else if (wd_word_is(word, "PRIORITY")) {
        bit = GIVEN_PRIORITY;
        ok = wd_arg_number(k, *i + 1, "PRIORITY", 0, 255, &v);
        if (ok) job->priority = (uint8_t)v;
    } else if (wd_word_is(word, "EXPIRE")) {
        bit = GIVEN_EXPIRE;
        ok = wd_arg_when(k, *i + 1, "EXPIRE", &job->expire);
        job->has_expire = 1;
    } else {
        return 0;
    }
    *i += 2;
    return ok && wd_option_once(k, at, bit, given) ? 1 : -1;
}

static int take_bytes(wd_call *k, uint32_t *i, wd_new_job *job, uint32_t *given)
{
    wd_span word = k->argv[*i], *into = NULL;
    uint32_t at = *i, bit = 0;
    int ok = 0;
    if (wd_word_is(word, "ONCE")) {
        bit = GIVEN_ONCE;
        into = &job->once;
        ok = wd_arg_bytes(k, *i, "ONCE", WD_ONCE_BYTES_MAX, into);
    } else if (wd_word_is(word, "META")) {
        bit = GIVEN_META;
        into = &job->meta;
        ok = wd_arg_bytes(k, *i, "META", WD_META_BYTES_MAX, into);
    } else if (wd_word_is(word, "GROUP")) {
        bit = GIVEN_GROUP;
        into = &job->group;
        ok = wd_arg_name(k, *i + 1, "GROUP", into);
    }
    if (!into) return 0;
    *i += 2;
    return ok && wd_option_once(k, at, bit, given) ? 1 : -1;
}

static int take_options(wd_call *k, wd_new_job *job)
{
    uint32_t given = 0;
    for (uint32_t i = 4; i < k->argc;) {
        int took = 0;
        if (wd_word_is(k->argv[i], "KEY")) {
            took = take_key(k, &i, job) ? 1 : -1;
        } else if (wd_word_is(k->argv[i], "ONDUP")) {
            took = take_ondup(k, &i, job, &given) ? 1 : -1;
        } else {
            took = take_bytes(k, &i, job, &given);
            if (took == 0) took = take_number(k, &i, job, &given);
            if (took == 0) took = wd_arg_policy(k, &i, &job->policy, &job->policy_set);
        }
        if (took == 0) return wd_unknown_option(k, i), 0;
        if (took < 0) return 0;
    }
    if (job->key.n || !(given & (GIVEN_ONDUP | GIVEN_WINDOW))) return 1;
    (void)wd_refuse(k, "SYNTAX", "%s works with KEY alone; add KEY k",
                    given & GIVEN_ONDUP ? "ONDUP" : "WINDOW");
    return 0;
}

int wd_commands_serve_handler(const wd_commands *c, wd_span handler)
{
    WD_ASSERT(handler.n > 0);
    uint32_t number = wd_handler_find(c->names, handler);
    if (number != WD_NIL) {
        const wd_handler *h = wd_handler_at(c->names, number);
        if (h->served || h->settings.published) return 1;
    }
    return wd_wait_names(c, handler);
}

static int check_target(wd_call *k, const wd_new_job *job)
{
    wd_commands *c = k->c;
    if (job->payload.n > c->limits.payload_bytes_max) {
        (void)wd_refuse(
            k, "LIMIT",
            "the payload has %zu bytes, the limit is %llu; store it elsewhere and send its name",
            job->payload.n, (unsigned long long)c->limits.payload_bytes_max);
        return 0;
    }
    if (!c->limits.strict_handlers || wd_commands_serve_handler(c, job->handler)) return 1;
    (void)wd_refuse(k, "DENIED",
                    "handler \"%.*s\" is served by nobody and --strict-handlers is on; start its "
                    "worker first, or mind the spelling",
                    WD_SHOW(job->handler));
    return 0;
}

static int reply_scheduled(wd_call *k, const wd_new_job *job, int answer, const wd_new_result *r)
{
    wd_buf *out = &k->s->out;
    if (!job->key.n) return wd_reply_bulk_u64(out, r->id) == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
    int status = wd_reply_array(out, 3);
    if (status == WD_OK) status = wd_reply_bulk_u64(out, r->id);
    if (status == WD_OK) status = wd_reply_bulk(out, words[answer]);
    if (status == WD_OK) status = wd_reply_bulk(out, text(wd_state_name(r->state)));
    return status == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
}

static int gated(int done)
{
    return done == WD_DONE_FREE ? WD_DONE_GATED : done;
}

int wd_verb_schedule(wd_call *k)
{
    wd_new_job job = {.priority = 128, .payload = k->argv[3]};
    wd_new_result r;
    if (!wd_arg_handler(k, 1, &job.handler)) return WD_DONE_FREE;
    if (!wd_arg_when(k, 2, "time", &job.due)) return WD_DONE_FREE;
    if (!take_options(k, &job)) return WD_DONE_FREE;
    if (!check_target(k, &job)) return WD_DONE_FREE;
    if (k->s->globs.n && job.key.n && !wd_rights_job(k, wd_engine_key_id(k->c->e, job.key)))
        return WD_DONE_GATED; /* the key is held by a job of a handler that is not its */
    int answer = wd_engine_schedule(k->c->e, &job, &r);
    switch ((enum wd_answer)answer) {
    case WD_A_EXISTS:
        return gated(wd_refuse(
            k, "EXISTS",
            "key \"%.*s\" names job %llu, which is %s; use ONDUP keep or replace, or another key",
            WD_SHOW(job.key), (unsigned long long)r.id, wd_state_name(r.state)));
    case WD_A_CONFLICT:
        return gated(
            wd_refuse(k, "CONFLICT",
                      "key \"%.*s\" names job %llu, which is leased; replace it after it has ended",
                      WD_SHOW(job.key), (unsigned long long)r.id));
    case WD_A_NO_ROOM:
        return gated(wd_no_room(k, r.why));
    default:
        return reply_scheduled(k, &job, answer, &r);
    }
}

/* ---- verbs on jobs ---- */

/* One element of an array reply. */
static int reply_answer(wd_call *k, uint32_t i, int answer)
{
    wd_buf *out = &k->s->out;
    wd_span job = k->argv[i];
    switch ((enum wd_answer)answer) {
    case WD_A_OK:
        return wd_reply_simple(out, "OK");
    case WD_A_CANCELLED:
        return wd_reply_simple(out, "CANCELLED");
    case WD_A_MARKED:
        return wd_reply_simple(out, "MARKED");
    case WD_A_ENDED:
        return wd_reply_simple(out, "ENDED");
    case WD_A_CONFLICT:
        return wd_reply_error(out, "CONFLICT",
                              "job \"%.*s\" is not in a state that allows it; JOB shows its state",
                              WD_SHOW(job));
    case WD_A_NO_ROOM:
        return wd_reply_error(out, "OOM", "no memory to log it; nothing changed; try again");
    default:
        return wd_reply_error(
            out, "UNKNOWN",
            "no job \"%.*s\"; its id or key may be wrong, or it ended over an hour ago",
            WD_SHOW(job));
    }
}

/* CANCEL, REQUEUE, PURGE: an array, one element a job. Every name is looked at before any changes.
 */
static int each_job(wd_call *k, int (*verb)(wd_engine *e, uint64_t id))
{
    uint64_t id;
    for (uint32_t i = 1; i < k->argc; i++)
        if (!wd_arg_job(k, i, &id)) return WD_DONE_FREE;
    if (wd_reply_array(&k->s->out, k->argc - 1) != WD_OK) return WD_ENOMEM;
    for (uint32_t i = 1; i < k->argc; i++) {
        int ok = wd_arg_job(k, i, &id);
        WD_ASSERT(ok);
        int answer = id ? verb(k->c->e, id) : WD_A_UNKNOWN;
        if (reply_answer(k, i, answer) != WD_OK) return WD_ENOMEM;
    }
    return WD_DONE_GATED;
}

int wd_verb_cancel(wd_call *k)
{
    return each_job(k, wd_engine_cancel);
}

int wd_verb_requeue(wd_call *k)
{
    return each_job(k, wd_engine_requeue);
}

int wd_verb_purge(wd_call *k)
{
    return each_job(k, wd_engine_purge);
}

/* RESCHEDULE, RUN: an ended job cannot be moved any more. */
static int reply_moved(wd_call *k, int answer)
{
    if (answer == WD_A_ENDED) answer = WD_A_CONFLICT;
    return reply_answer(k, 1, answer) == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
}

int wd_verb_reschedule(wd_call *k)
{
    uint64_t id;
    wd_when due;
    if (!wd_arg_job(k, 1, &id) || !wd_arg_when(k, 2, "time", &due)) return WD_DONE_FREE;
    return reply_moved(k, id ? wd_engine_move(k->c->e, id, due) : WD_A_UNKNOWN);
}

int wd_verb_run(wd_call *k)
{
    uint64_t id;
    if (!wd_arg_job(k, 1, &id)) return WD_DONE_FREE;
    return reply_moved(k, id ? wd_engine_run(k->c->e, id) : WD_A_UNKNOWN);
}
