/* wd_verbs_lease.c -- LEASE and the verbs on receipts. */
#include "wd_verbs.h"

enum { BOUND_COMPACT_MIN = 1024 };

/* ---- grants ---- */

/* Bound grants that are over are only found when the list gets long: twice as long as it was after
 * the last look, which is O(1) a grant. */
static void compact_bound(wd_commands *c, wd_session *s)
{
    wd_grant *g = (wd_grant *)(void *)s->bound.p;
    size_t n = s->bound.n / sizeof *g, kept = 0;
    int64_t due_ms;
    if (n < BOUND_COMPACT_MIN || n < (size_t)2 * s->bound_kept) return;
    for (size_t i = 0; i < n; i++)
        if (wd_engine_grant_due(c->e, g[i].id, g[i].lsn, &due_ms) == WD_OK) g[kept++] = g[i];
    s->bound.n = kept * sizeof *g;
    s->bound_kept = (uint32_t)kept;
}

int wd_lease_now(wd_commands *c, wd_session *s, const wd_lease_ask *ask, int bound, uint32_t *out_n)
{
    size_t room = ask->count * sizeof(wd_grant);
    *out_n = 0;
    if (bound) compact_bound(c, s);
    if (wd_buf_need(&s->grants, room) != WD_OK || (bound && wd_buf_need(&s->bound, room) != WD_OK))
        return WD_ENOMEM;
    uint32_t n = wd_engine_lease(c->e, ask, c->slots);
    if (n == 0) return WD_OK;
    int status = wd_reply_array(&s->out, n);
    wd_grant *grants = (wd_grant *)(void *)(s->grants.p + s->grants.n);
    for (uint32_t i = 0; i < n; i++) {
        wd_grant_view v;
        wd_engine_view_grant(c->e, c->slots[i], &v);
        /* Not sent until the whole reply is: without memory for it, they go back at the close. */
        grants[i] = (wd_grant){.id = v.id, .lsn = v.lsn, .reply_end = UINT64_MAX};
        if (status == WD_OK) status = wd_reply_grant(&s->out, &v, s->resp);
    }
    s->grants.n += n * sizeof *grants;
    if (bound) (void)wd_buf_put(&s->bound, grants, n * sizeof *grants);
    if (status != WD_OK) return status;
    for (uint32_t i = 0; i < n; i++)
        grants[i].reply_end = s->out_base + s->out.n;
    *out_n = n;
    return WD_OK;
}

/* ---- LEASE ---- */

static int check_names(wd_call *k, wd_span names)
{
    wd_span rest = names;
    for (;;) {
        const uint8_t *comma = memchr(rest.p, ',', rest.n);
        wd_span name = {rest.p, comma ? (size_t)(comma - rest.p) : rest.n};
        const uint8_t *star = name.n ? memchr(name.p, '*', name.n) : NULL;
        int ok = wd_is_name(name, WD_NAME_BYTES_MAX) && name.p[0] != ' ' &&
                 name.p[name.n - 1] != ' ' && (!star || star == name.p + name.n - 1);
        if (!ok) {
            (void)wd_refuse(k, "SYNTAX",
                            "handler \"%.*s\" is not a name; write names with commas between, a "
                            "star only at an end",
                            WD_SHOW(name));
            return 0;
        }
        if (!comma) return 1;
        rest = (wd_span){comma + 1, rest.n - name.n - 1};
    }
}

enum { GIVEN_COUNT = 1, GIVEN_WAIT = 2, GIVEN_FOR = 4, GIVEN_WORKER = 8 };

typedef struct {
    uint64_t count, wait_ms, for_ms;
    wd_span worker;
    int bound;
} lease_options;

static int take_lease_options(wd_call *k, lease_options *o)
{
    uint32_t given = 0;
    for (uint32_t i = 2; i < k->argc; i += 2) {
        wd_span word = k->argv[i];
        uint32_t bit;
        int ok;
        if (wd_word_is(word, "COUNT")) {
            bit = GIVEN_COUNT;
            ok = wd_arg_number(k, i + 1, "COUNT", 1, WD_LEASE_COUNT_MAX, &o->count);
        } else if (wd_word_is(word, "WAIT")) {
            bit = GIVEN_WAIT;
            ok = wd_arg_number(k, i + 1, "WAIT", 0, WD_WAIT_MS_MAX, &o->wait_ms);
        } else if (wd_word_is(word, "FOR")) {
            bit = GIVEN_FOR;
            ok = wd_arg_number(k, i + 1, "FOR", 1, WD_SPAN_MS_MAX, &o->for_ms);
        } else if (wd_word_is(word, "WORKER")) {
            bit = GIVEN_WORKER;
            ok = wd_arg_name(k, i + 1, "WORKER", &o->worker);
        } else if (wd_word_is(word, "BOUND") && !o->bound) {
            o->bound = 1;
            i--;
            continue;
        } else {
            (void)wd_unknown_option(k, i);
            return 0;
        }
        if (!ok || !wd_option_once(k, i, bit, &given)) return 0;
    }
    return 1;
}

int wd_verb_lease(wd_call *k)
{
    wd_commands *c = k->c;
    lease_options o = {.count = 1};
    uint32_t n;
    if (!check_names(k, k->argv[1]) || !take_lease_options(k, &o)) return WD_DONE_FREE;
    if (c->limits.strict_handlers) wd_wait_publish(c, k->argv[1]);
    wd_lease_ask ask = {.handlers = c->numbers,
                        .handlers_count = wd_wait_numbers(c, k->argv[1]),
                        .count = (uint32_t)o.count,
                        .lease_ms = (uint32_t)o.for_ms,
                        .worker = o.worker};
    if (!k->s->blocked && wd_lease_now(c, k->s, &ask, o.bound, &n) != WD_OK) return WD_ENOMEM;
    if (!k->s->blocked && n > 0) return WD_DONE_GATED;
    if (o.wait_ms == 0 || c->draining)
        return wd_reply_array(&k->s->out, 0) == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
    int64_t until_ms = wd_engine_rel_ms(c->e) + (int64_t)o.wait_ms;
    int status = wd_wait_park(c, k->s, k->argv[1], &ask, o.bound, until_ms);
    return status == WD_OK ? WD_DONE_WAIT : WD_ENOMEM;
}

/* ---- answers ---- */

static int reply_answer(wd_call *k, wd_span receipt, int answer)
{
    wd_buf *out = &k->s->out;
    switch ((enum wd_answer)answer) {
    case WD_A_OK: /* a batch has a hundred of them */
        return wd_buf_put(out, "+OK\r\n", 5);
    case WD_A_ALREADY:
        return wd_reply_simple(out, "ALREADY");
    case WD_A_CANCELLED:
        return wd_reply_simple(out, "CANCELLED");
    case WD_A_DEAD:
        return wd_reply_simple(out, "DEAD");
    case WD_A_STALE:
        return wd_reply_error(out, "STALE",
                              "receipt %.*s: its lease is over, and the job was given to another "
                              "or has ended; drop the result",
                              WD_SHOW(receipt));
    case WD_A_NO_ROOM:
        return wd_reply_error(out, "OOM", "no memory to log it; nothing changed; try again");
    default:
        return wd_reply_error(out, "UNKNOWN",
                              "receipt %.*s: no such job; it may have ended over an hour ago",
                              WD_SHOW(receipt));
    }
}

/* Every receipt of argv[1..end) into c->receipts, before anything is done for one of them: with a
 * wrong one among them the command is refused whole. 1, or 0 and refused. */
static int take_receipts(wd_call *k, uint32_t end)
{
    WD_ASSERT(end <= WD_ARGS_MAX);
    for (uint32_t i = 1; i < end; i++)
        if (!wd_arg_receipt(k, i, &k->c->receipts[i])) return 0;
    return 1;
}

int wd_verb_ack(wd_call *k)
{
    if (!take_receipts(k, k->argc)) return WD_DONE_FREE;
    if (wd_reply_array(&k->s->out, k->argc - 1) != WD_OK) return WD_ENOMEM;
    for (uint32_t i = 1; i < k->argc; i++) {
        int answer = wd_engine_ack(k->c->e, k->c->receipts[i], WD_V_ACK, (wd_span){0});
        if (reply_answer(k, k->argv[i], answer) != WD_OK) return WD_ENOMEM;
    }
    return WD_DONE_GATED;
}

static int reply_one(wd_call *k, int answer)
{
    return reply_answer(k, k->argv[1], answer) == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
}

/* 1, or 0 and refused. */
static int fits_result(wd_call *k, wd_span result)
{
    if (result.n <= WD_RESULT_BYTES_MAX) return 1;
    (void)wd_refuse(
        k, "LIMIT",
        "the result has %zu bytes, the limit is %d; store it elsewhere and send its name", result.n,
        WD_RESULT_BYTES_MAX);
    return 0;
}

int wd_verb_done(wd_call *k)
{
    wd_receipt r;
    if (!wd_arg_receipt(k, 1, &r)) return WD_DONE_FREE;
    if (!fits_result(k, k->argv[2])) return WD_DONE_FREE;
    return reply_one(k, wd_engine_ack(k->c->e, r, WD_V_DONE, k->argv[2]));
}

/* The text that is kept of a failure: the error, and what came of the attempt on lines of its own.
 * WD_OK, or WD_ENOMEM. */
static int join_result(wd_call *k, wd_failure *f, wd_span result)
{
    if (result.n == 0) return WD_OK;
    wd_buf *b = &k->c->scratch;
    b->n = 0;
    if (wd_buf_need(b, f->text.n + 1 + result.n) != WD_OK) return WD_ENOMEM;
    (void)wd_buf_put(b, f->text.p, f->text.n);
    if (f->text.n) (void)wd_buf_put(b, "\n", 1);
    (void)wd_buf_put(b, result.p, result.n);
    f->text = (wd_span){b->p, b->n};
    return WD_OK;
}

int wd_verb_fail(wd_call *k)
{
    wd_receipt r;
    wd_failure f = {.in_ms = -1};
    wd_span result = {0};
    if (!wd_arg_receipt(k, 1, &r)) return WD_DONE_FREE;
    for (uint32_t i = 2; i < k->argc; i++) {
        uint64_t v;
        if (wd_word_is(k->argv[i], "DEAD") && !f.dead) {
            f.dead = 1;
        } else if (wd_word_is(k->argv[i], "IN") && f.in_ms < 0) {
            if (!wd_arg_number(k, ++i, "IN", 0, WD_SPAN_MS_MAX, &v)) return WD_DONE_FREE;
            f.in_ms = (int64_t)v;
        } else if (wd_word_is(k->argv[i], "ERROR") && f.text.n == 0) {
            if (!wd_arg_value(k, i++, &f.text)) return WD_DONE_FREE;
            f.text = wd_cut(f.text, WD_ERROR_BYTES_MAX);
        } else if (wd_word_is(k->argv[i], "RESULT") && result.n == 0) {
            if (!wd_arg_value(k, i++, &result)) return WD_DONE_FREE;
            if (!fits_result(k, result)) return WD_DONE_FREE;
        } else {
            return wd_unknown_option(k, i);
        }
    }
    if (f.dead && f.in_ms >= 0)
        return wd_refuse(k, "SYNTAX", "IN and DEAD exclude each other; leave one out");
    if (join_result(k, &f, result) != WD_OK) return WD_ENOMEM;
    int64_t due_ms = 0;
    int answer = wd_engine_fail(k->c->e, r, &f, &due_ms);
    if (answer != WD_A_RETRY) return reply_one(k, answer);
    char text[32] = "RETRY ";
    text[6 + wd_put_digits((uint8_t *)text + 6, (uint64_t)due_ms)] = '\0';
    return wd_reply_simple(&k->s->out, text) == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
}

int wd_verb_release(wd_call *k)
{
    wd_receipt r;
    uint64_t in_ms = 0;
    if (!wd_arg_receipt(k, 1, &r)) return WD_DONE_FREE;
    if (k->argc > 2 && !wd_word_is(k->argv[2], "IN")) return wd_unknown_option(k, 2);
    if (k->argc > 2 && !wd_arg_number(k, 3, "IN", 0, WD_SPAN_MS_MAX, &in_ms)) return WD_DONE_FREE;
    return reply_one(k, wd_engine_release(k->c->e, r, k->argc > 2 ? (int64_t)in_ms : -1));
}

int wd_verb_extend(wd_call *k)
{
    uint64_t for_ms = 0;
    uint32_t end = k->argc;
    if (k->argc >= 3 && wd_word_is(k->argv[k->argc - 2], "FOR")) {
        end -= 2;
        if (!wd_arg_number(k, k->argc - 1, "FOR", 1, WD_SPAN_MS_MAX, &for_ms)) return WD_DONE_FREE;
    }
    if (end < 2)
        return wd_refuse(k, "SYNTAX",
                         "EXTEND needs a receipt; write EXTEND receipt [receipt ...] [FOR ms]");
    if (!take_receipts(k, end)) return WD_DONE_FREE;
    if (wd_reply_array(&k->s->out, end - 1) != WD_OK) return WD_ENOMEM;
    for (uint32_t i = 1; i < end; i++) {
        uint32_t lease_ms = 0;
        int status;
        int answer = wd_engine_extend(k->c->e, k->c->receipts[i], (uint32_t)for_ms, &lease_ms);
        if (answer == WD_A_OK) {
            status = wd_reply_int(&k->s->out, lease_ms);
        } else if (answer == WD_A_CANCELLED) {
            status =
                wd_reply_error(&k->s->out, "CANCELLED", "receipt %.*s: the job was cancelled; stop",
                               WD_SHOW(k->argv[i]));
        } else {
            status = reply_answer(k, k->argv[i], answer);
        }
        if (status != WD_OK) return WD_ENOMEM;
    }
    return WD_DONE_GATED;
}
