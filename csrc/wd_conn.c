/* wd_conn.c -- one connection without a socket.
 *
 * Invariants:
 *  1. out_base <= sent <= released <= noted = out_base + out.n, outside of a command.
 *  2. Marks have rising seq and rising end; the last end is noted, and released is the end of the
 *     last mark that passed. Without marks released = noted.
 *  3. While parked, nothing behind the parked command is looked at.
 *  4. in holds at most one incomplete command, or whole ones only while parked or full.
 * Not here: sockets (wd_net.c), the table of connections and their lists (wd_conns.c).
 */
#include "wd_conn.h"

enum { OUT_SHIFT_BYTES = 256 * 1024 };

static uint64_t out_end(const wd_conn *c)
{
    return c->session.out_base + c->session.out.n;
}

uint64_t wd_conn_out_bytes(const wd_conn *c)
{
    return out_end(c) - c->sent;
}

/* ---- the gate ---- */

static size_t marks_left(const wd_conn *c)
{
    return c->marks.n / sizeof(wd_mark) - c->marks_passed;
}

static wd_mark *mark_at(const wd_conn *c, size_t i)
{
    WD_ASSERT(c->marks_passed + i < c->marks.n / sizeof(wd_mark));
    return (wd_mark *)(void *)c->marks.p + c->marks_passed + i;
}

int wd_conn_is_gated(const wd_conn *c)
{
    return marks_left(c) > 0;
}

/* Add what lies between noted and `end` to mark m. */
static void extend_mark(wd_conn *c, wd_mark *m, uint64_t end, size_t input_bytes)
{
    WD_ASSERT(end >= m->end && input_bytes <= UINT32_MAX);
    m->end = end;
    m->commands++;
    m->bytes += (uint32_t)input_bytes;
    c->undurable_commands++;
    c->undurable_bytes += input_bytes;
    c->noted = end;
}

int wd_conn_gate(wd_conn *c, int done, uint64_t seq, uint64_t durable_seq, size_t input_bytes)
{
    WD_ASSERT(done == WD_DONE_GATED || done == WD_DONE_FREE);
    uint64_t end = out_end(c);
    WD_ASSERT(end >= c->noted);
    int waits = done == WD_DONE_GATED && seq > durable_seq;
    size_t left = marks_left(c);
    if (!waits && left == 0) {
        c->noted = end;
        c->released = end;
        return WD_OK;
    }
    if (left > 0 && (!waits || mark_at(c, left - 1)->seq == seq)) {
        extend_mark(c, mark_at(c, left - 1), end, input_bytes);
        return WD_OK;
    }
    WD_ASSERT(left == 0 || mark_at(c, left - 1)->seq < seq);
    wd_mark fresh = {.seq = seq, .end = c->noted};
    int status = wd_buf_put(&c->marks, &fresh, sizeof fresh);
    if (status != WD_OK) return status;
    extend_mark(c, mark_at(c, left), end, input_bytes);
    return WD_OK;
}

void wd_conn_release(wd_conn *c, uint64_t durable_seq)
{
    size_t left = marks_left(c);
    for (; left > 0 && mark_at(c, 0)->seq <= durable_seq; left--) {
        const wd_mark *m = mark_at(c, 0);
        WD_ASSERT(m->end >= c->released && m->commands <= c->undurable_commands);
        c->released = m->end;
        c->undurable_commands -= m->commands;
        c->undurable_bytes -= m->bytes;
        c->marks_passed++;
    }
    if (left > 0) return;
    WD_ASSERT(c->released == c->noted && c->undurable_commands == 0);
    c->marks.n = 0;
    c->marks_passed = 0;
}

wd_span wd_conn_sendable(const wd_conn *c)
{
    WD_ASSERT(c->session.out_base <= c->sent && c->sent <= c->released);
    if (c->sent == c->released) return (wd_span){NULL, 0}; /* the buffer may be gone */
    return (wd_span){c->session.out.p + (c->sent - c->session.out_base),
                     (size_t)(c->released - c->sent)};
}

/* Grants whose reply has left wholly are the worker's now. */
static void settle_grants(wd_conn *c, wd_runner *r, int64_t now_us)
{
    wd_buf *b = &c->session.grants;
    size_t n = b->n / sizeof(wd_grant);
    const wd_grant *g = (const wd_grant *)(const void *)b->p;
    size_t gone = 0;
    while (gone < n && g[gone].reply_end <= c->sent) {
        int64_t due_ms = 0;
        if (wd_engine_grant_due(r->engine, g[gone].id, g[gone].lsn, &due_ms) == WD_OK) {
            int64_t late_us = now_us - due_ms * 1000;
            wd_hist_add(&r->lateness_us, late_us > 0 ? (uint64_t)late_us : 0);
        }
        gone++;
    }
    wd_buf_shift(b, gone * sizeof(wd_grant));
}

/* Drop an empty buffer's memory if it has grown large. */
static void trim(wd_buf *b)
{
    if (b->n == 0 && b->cap > WD_BUF_KEPT_BYTES) wd_buf_free(b);
}

void wd_conn_taken(wd_conn *c, wd_runner *r, size_t k, int64_t now_us)
{
    WD_ASSERT(k <= c->released - c->sent);
    wd_session *s = &c->session;
    c->sent += k;
    if (s->grants.n > 0) settle_grants(c, r, now_us);
    size_t dropped = (size_t)(c->sent - s->out_base);
    WD_ASSERT(dropped <= s->out.n);
    if (dropped == s->out.n || (dropped > OUT_SHIFT_BYTES && dropped > s->out.n / 2)) {
        wd_buf_shift(&s->out, dropped);
        s->out_base = c->sent;
        trim(&s->out);
    }
}

/* ---- running what came in ---- */

/* Would the limits let another command run? Nothing runs for a peer that does not take its replies:
 * a LEASE would have to be answered with nothing, because no job is given to it. */
static int has_room(const wd_conn *c)
{
    return !c->session.blocked && wd_conn_out_bytes(c) <= WD_OUT_STOP_BYTES &&
           c->undurable_commands < WD_UNDURABLE_COMMANDS_MAX &&
           c->undurable_bytes < WD_UNDURABLE_BYTES_MAX;
}

static int may_run(const wd_conn *c)
{
    return !c->dead && !c->session.closing && c->parked == WD_PARKED_NOT;
}

int wd_conn_can_resume(const wd_conn *c)
{
    return may_run(c) && has_room(c) && !c->held && (c->full || c->eof);
}

void wd_conn_let_go(wd_conn *c)
{
    WD_ASSERT(c->held && c->full);
    c->held = 0;
}

int wd_conn_wants_input(const wd_conn *c)
{
    if (c->dead || c->eof || c->session.closing || c->full) return 0;
    size_t held = c->in.n - c->in_used;
    if (c->parked != WD_PARKED_NOT) return held < WD_PARKED_INPUT_BYTES;
    return held < WD_INPUT_BYTES_MAX && has_room(c);
}

int wd_conn_is_finished(const wd_conn *c)
{
    if (c->dead) return 1;
    return c->session.closing && c->parked == WD_PARKED_NOT && c->sent == out_end(c);
}

/* ---- errors ---- */

const char *const wd_error_codes[WD_ERROR_CODES] = {
    "ERR",    "SYNTAX",   "UNKNOWN_COMMAND", "NAIVE_TIME", "LIMIT",
    "OOM",    "DISKFULL", "NOAUTH",          "WRONGPASS",  "NOPERM",
    "DENIED", "NOPROTO",  "STALE",           "UNKNOWN",    "CANCELLED",
    "EXISTS", "CONFLICT", "LOADING",         "TRYAGAIN",   "BUSY",
    "CRON",   "CYCLE",    "READONLY",        "other"};

/* Count a reply if it is an error. Errors inside of an array are one item's, not the command's. */
static void count_error(wd_runner *r, wd_span reply)
{
    if (reply.n < 2 || reply.p[0] != '-') return;
    size_t n = 1;
    while (n < reply.n && (reply.p[n] == '_' || (reply.p[n] >= 'A' && reply.p[n] <= 'Z')))
        n++;
    wd_span code = {reply.p + 1, n - 1};
    int i = 0;
    while (i < WD_ERROR_CODES - 1 && !wd_word_is(code, wd_error_codes[i]))
        i++;
    r->errors[i]++;
}

/* What was appended to the replies since they had n bytes. */
static wd_span appended(const wd_conn *c, size_t n)
{
    const wd_buf *out = &c->session.out;
    WD_ASSERT(n <= out->n);
    return out->n > n ? (wd_span){out->p + n, out->n - n} : (wd_span){NULL, 0};
}

/* Answer with an error that depends on nothing. */
static void refuse(wd_conn *c, wd_runner *r, const char *code, const char *text, size_t used)
{
    size_t had = c->session.out.n;
    if (wd_reply_error(&c->session.out, code, "%s", text) != WD_OK ||
        wd_conn_gate(c, WD_DONE_FREE, 0, r->durable_seq, used) != WD_OK)
        c->dead = 1;
    count_error(r, appended(c, had));
}

/* The framing is lost or a hard limit passed: the last reply says so, then it closes. */
static void refuse_and_close(wd_conn *c, wd_runner *r, const char *text)
{
    r->broken++;
    c->commands++;
    refuse(c, r, "ERR", text, 0);
    c->session.closing = 1;
}

/* A line that a browser or an HTTP client sends and no user of ours: a request line as the first of
 * a connection, or a Host header anywhere (a page that posts to this port). */
static int is_http(const wd_conn *c, const wd_span *argv, uint32_t argc)
{
    static const char *const methods[] = {"GET",     "POST",  "HEAD",    "PUT",  "DELETE",
                                          "OPTIONS", "PATCH", "CONNECT", "TRACE"};
    static const wd_span version = {(const uint8_t *)"HTTP/", 5};
    wd_span last = argv[argc - 1];
    if (wd_word_is(argv[0], "HOST:")) return 1;
    int names_page = argc > 1 && argv[1].n > 0 && argv[1].p[0] == '/';
    int names_version = last.n >= version.n && memcmp(last.p, version.p, version.n) == 0;
    if (c->commands > 0 || argc < 2 || !(names_page || names_version)) return 0;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (wd_word_is(argv[0], methods[i])) return 1;
    return 0;
}

/* A TLS hello on this port? Only ever at the very start of a connection. */
static int is_tls(const wd_conn *c, const uint8_t *p, size_t n)
{
    return c->commands == 0 && n >= 2 && p[0] == 0x16 && p[1] == 0x03;
}

/* Copy the arguments for Python: their spans die with the input. */
static int keep_arguments(wd_conn *c, const wd_span *argv, uint32_t argc)
{
    WD_ASSERT(c->kept.n == 0 && argc > 0);
    int status = WD_OK;
    for (uint32_t i = 0; i < argc && status == WD_OK; i++) {
        uint32_t n = (uint32_t)argv[i].n;
        status = wd_buf_put(&c->kept, &n, sizeof n);
    }
    for (uint32_t i = 0; i < argc && status == WD_OK; i++)
        status = wd_buf_put(&c->kept, argv[i].p, argv[i].n);
    if (status == WD_OK) c->kept_argc = argc;
    return status;
}

/* 1: it was run; 0: it has to wait until the log has caught up, and nothing happened. */
static int run_one(wd_conn *c, wd_runner *r, uint32_t argc, size_t input_bytes)
{
    WD_ASSERT(argc > 0 && c->noted == out_end(c));
    size_t had = c->session.out.n;
    int done = wd_command_run(r->commands, &c->session, r->argv, argc);
    int status = WD_OK;
    if (done == WD_DONE_LATER) {
        c->full = c->held = 1;
        return 0;
    }
    c->commands++;
    r->commands_run++;
    count_error(r, appended(c, had));
    switch (done) {
    case WD_DONE_GATED:
    case WD_DONE_FREE:
        status = WD_ENOMEM; /* no reply: the next one would be taken for it */
        if (c->session.out.n > had)
            status = wd_conn_gate(c, done, wd_engine_seq(r->engine), r->durable_seq, input_bytes);
        break;
    case WD_DONE_WAIT:
        c->parked = WD_PARKED_WAIT;
        break;
    case WD_DONE_PYTHON:
        c->parked = WD_PARKED_PYTHON;
        r->commands_python++;
        status = keep_arguments(c, r->argv, argc);
        break;
    default:
        status = done;
    }
    if (status != WD_OK) c->dead = 1;
    if (wd_engine_open_bytes(r->engine) >= WD_BATCH_CLOSE_BYTES) wd_engine_close_batch(r->engine);
    return 1;
}

/* Stricter limits for who has not authenticated yet; a line is shorter than an array may be. */
static int passes_preauth(const wd_conn *c, const wd_runner *r, int is_line, uint32_t args,
                          size_t bytes)
{
    if (!r->auth_required || c->session.authed) return 1;
    size_t most = is_line ? WD_PREAUTH_LINE_BYTES_MAX : WD_PREAUTH_BYTES_MAX;
    return args <= WD_PREAUTH_ARGS_MAX && bytes <= most;
}

/* Look at one command in p[0..n). Bytes used; 0 = it is not whole. */
static size_t step(wd_conn *c, wd_runner *r, const uint8_t *p, size_t n)
{
    static const char too_much[] =
        "more than 10 arguments, 16 KiB, or 4 KiB in a line before AUTH, send AUTH first";
    int is_line = n > 0 && p[0] != '*';
    if (is_tls(c, p, n)) {
        r->foreign++;
        c->dead = 1;
        return n;
    }
    wd_parsed cmd = wd_parse_command(&c->parser, p, n, r->argv, &r->scratch);
    if (cmd.verdict == WD_PARSE_MORE) {
        if (passes_preauth(c, r, is_line, c->parser.args_total, n)) return 0;
        refuse_and_close(c, r, too_much);
        return n;
    }
    if (cmd.verdict == WD_PARSE_BROKEN) {
        refuse_and_close(c, r, cmd.error);
        return n;
    }
    WD_ASSERT(cmd.used_bytes > 0 && cmd.used_bytes <= n);
    if (cmd.verdict == WD_PARSE_SYNTAX) {
        r->syntax_errors++;
        c->commands++;
        refuse(c, r, "SYNTAX", cmd.error, cmd.used_bytes);
        return cmd.used_bytes;
    }
    WD_ASSERT(cmd.verdict == WD_PARSE_COMMAND && cmd.argc <= WD_ARGS_MAX);
    if (cmd.argc == 0) return cmd.used_bytes;
    if (is_line && is_http(c, r->argv, cmd.argc)) {
        r->foreign++;
        c->dead = 1;
    } else if (!passes_preauth(c, r, is_line, cmd.argc, cmd.used_bytes)) {
        refuse_and_close(c, r, too_much);
    } else if (!run_one(c, r, cmd.argc, cmd.used_bytes)) {
        return 0;
    }
    return cmd.used_bytes;
}

/* Run commands from p[0..n) until one is not whole or something stops it. Bytes used. Bounded: each
 * step uses at least one byte. */
static size_t run_span(wd_conn *c, wd_runner *r, const uint8_t *p, size_t n)
{
    WD_ASSERT(p || n == 0);
    size_t used = 0;
    c->full = c->held = 0;
    while (used < n && may_run(c)) {
        if (!has_room(c)) {
            c->full = 1;
            break;
        }
        size_t k = step(c, r, p + used, n - used);
        if (k == 0) break;
        used += k;
    }
    WD_ASSERT(used <= n);
    /* After a half-close an incomplete command will never be whole. */
    if (c->eof && may_run(c) && !c->full) c->session.closing = 1;
    if (c->dead || c->session.closing) return n;
    return used;
}

static void run_buffered(wd_conn *c, wd_runner *r)
{
    wd_buf *b = &c->in;
    const uint8_t *p = b->p ? b->p + c->in_used : NULL;
    c->in_used += run_span(c, r, p, b->n - c->in_used);
    WD_ASSERT(c->in_used <= b->n);
    if (c->in_used == b->n || c->in_used > b->n / 2) {
        wd_buf_shift(b, c->in_used);
        c->in_used = 0;
        trim(b);
    }
}

void wd_conn_input(wd_conn *c, wd_runner *r, wd_span in)
{
    if (c->dead || c->session.closing) return;
    if (in.n == 0) return;
    if (c->in.n == c->in_used && may_run(c)) { /* the common case: run from the caller's buffer */
        c->in.n = c->in_used = 0;
        size_t used = run_span(c, r, in.p, in.n);
        if (used < in.n && wd_buf_put(&c->in, in.p + used, in.n - used) != WD_OK) c->dead = 1;
        return;
    }
    int too_much = c->in.n - c->in_used + in.n > WD_INPUT_BYTES_HARD;
    if (too_much || wd_buf_put(&c->in, in.p, in.n) != WD_OK) {
        c->dead = 1;
    } else if (may_run(c)) {
        run_buffered(c, r);
    }
}

void wd_conn_resume(wd_conn *c, wd_runner *r)
{
    if (may_run(c)) run_buffered(c, r);
}

void wd_conn_eof(wd_conn *c, wd_runner *r)
{
    c->eof = 1;
    if (c->parked == WD_PARKED_WAIT) wd_session_end_wait(r->commands, &c->session);
    if (may_run(c)) run_buffered(c, r);
}

int wd_conn_answer(wd_conn *c, wd_runner *r, wd_span reply, int done)
{
    WD_ASSERT(c->parked == WD_PARKED_PYTHON);
    int status = wd_buf_put(&c->session.out, reply.p, reply.n);
    count_error(r, reply);
    if (status == WD_OK)
        status = wd_conn_gate(c, done, wd_engine_seq(r->engine), r->durable_seq, c->kept.n);
    if (status != WD_OK) return status;
    c->parked = WD_PARKED_NOT;
    c->fetched = 0;
    c->kept.n = 0;
    c->kept_argc = 0;
    trim(&c->kept);
    c->full = 1; /* look at what is buffered behind it */
    return WD_OK;
}

uint64_t wd_conn_memory(const wd_conn *c)
{
    const wd_session *s = &c->session;
    return sizeof *c + c->in.cap + c->marks.cap + c->kept.cap + s->out.cap + s->grants.cap +
           s->bound.cap + s->globs.cap;
}

void wd_conn_free_buffers(wd_conn *c)
{
    wd_buf_free(&c->in);
    wd_buf_free(&c->marks);
    wd_buf_free(&c->kept);
}
