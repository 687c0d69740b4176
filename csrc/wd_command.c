/* wd_command.c -- dispatch: one table of commands; arguments and their errors; sessions' ends.
 *
 * Every refused argument gets a named error that says what, which value, what to do; it changes
 * nothing. The table says which commands C runs and which it hands to Python.
 */
#include "wd_verbs.h"

#include <stdarg.h>
#include <stdio.h>

enum { ISO_DATE_BYTES = 10 };

enum wd_command_flag {
    BEFORE_AUTH = 1,   /* allowed without a token */
    WHILE_LOADING = 2, /* allowed while the log is replayed */
    TAKES_JOBS = 4,    /* refused from WD_DISK_TIGHT on */
    GIVES_JOBS = 8,    /* refused from WD_DISK_LOW on */
    WRITES = 16,       /* refused at WD_DISK_FULL */
    ANY_FREE = BEFORE_AUTH | WHILE_LOADING
};

/* Who may use a command (forms of it that differ: wd_rights.c). */
enum {
    MAKES = WD_ROLE_PRODUCER | WD_ROLE_OPERATOR | WD_ROLE_ADMIN,
    WORKS = WD_ROLE_WORKER | WD_ROLE_ADMIN,
    READS = WD_ROLE_VIEWER | MAKES,
    SEES = WD_ROLE_VIEWER | WD_ROLE_OPERATOR | WD_ROLE_ADMIN,
    HEALS = WD_ROLE_OPERATOR | WD_ROLE_ADMIN,
    RULES = WD_ROLE_ADMIN,
    EVERY = WD_ROLES_ALL
};

typedef struct {
    const char *name;
    int (*run)(wd_call *k);      /* NULL: Python's */
    uint16_t args_min, args_max; /* without the name */
    uint8_t flags;
    uint8_t roles; /* enum wd_role bits */
    uint8_t bound; /* enum wd_bound: what of it is held to a token's handlers */
    const char *usage;
} command;

static const command commands[] = {
    {"SCHEDULE", wd_verb_schedule, 3, WD_ARGS_MAX, TAKES_JOBS, MAKES, WD_BOUND_HANDLER,
     "handler when payload [options]"},
    {"LEASE", wd_verb_lease, 1, 16, GIVES_JOBS, WORKS, WD_BOUND_NAMES,
     "handler[,handler...] [COUNT n] [WAIT ms] [FOR ms] [WORKER name] [BOUND]"},
    {"ACK", wd_verb_ack, 1, WD_ARGS_MAX, WRITES, WORKS, WD_BOUND_RECEIPTS, "receipt [receipt ...]"},
    {"EXTEND", wd_verb_extend, 1, WD_ARGS_MAX, WRITES, WORKS, WD_BOUND_RECEIPTS,
     "receipt [receipt ...] [FOR ms]"},
    {"DONE", wd_verb_done, 2, 2, WRITES, WORKS, WD_BOUND_RECEIPT, "receipt result"},
    {"FAIL", wd_verb_fail, 1, 8, WRITES, WORKS, WD_BOUND_RECEIPT,
     "receipt [IN ms] [DEAD] [ERROR text] [RESULT bytes]"},
    {"RELEASE", wd_verb_release, 1, 3, WRITES, WORKS, WD_BOUND_RECEIPT, "receipt [IN ms]"},
    {"CANCEL", wd_verb_cancel, 1, WD_ARGS_MAX, WRITES, MAKES, WD_BOUND_JOBS, "job [job ...]"},
    {"RESCHEDULE", wd_verb_reschedule, 2, 2, WRITES, MAKES, WD_BOUND_JOB, "job when"},
    {"RUN", wd_verb_run, 1, 1, WRITES, MAKES, WD_BOUND_JOB, "job"},
    {"JOB", wd_verb_job, 1, 1, 0, READS, WD_BOUND_JOB, "job"},
    {"JOBS", wd_verb_jobs, 0, 16, 0, READS, WD_BOUND_OPTION,
     "[HANDLER h] [STATE s] [FROM when] [TO when] [KEYPREFIX p] [COUNT n] [CURSOR c]"},
    {"DEAD", wd_verb_dead, 0, 16, 0, READS, WD_BOUND_OPTION,
     "[HANDLER h] [FROM when] [TO when] [KEYPREFIX p] [COUNT n] [CURSOR c]"},
    {"COUNT", wd_verb_count, 0, 4, 0, READS, WD_BOUND_OPTION, "[HANDLER h] [STATE s]"},
    {"HANDLERS", wd_verb_handlers, 0, 0, 0, READS, WD_BOUND_REFUSED, ""},
    {"HANDLER", wd_verb_handler, 1, 24, 0, EVERY, WD_BOUND_HANDLER,
     "handler|* [PAUSE|RESUME] [CONCURRENCY n] [RETRIES n] [LOST n] [BACKOFF ...] [LEASE ms] "
     "[TIMEOUT ms]"},
    {"REQUEUE", wd_verb_requeue, 1, WD_ARGS_MAX, WRITES, HEALS, WD_BOUND_JOBS, "job [job ...]"},
    {"PURGE", wd_verb_purge, 1, WD_ARGS_MAX, WRITES, HEALS, WD_BOUND_JOBS, "job [job ...]"},
    {"CRON", NULL, 1, WD_ARGS_MAX, 0, HEALS, WD_BOUND_REFUSED,
     "SET|GET|DEL|PAUSE|RESUME|TRIGGER|LIST|NEXT|EXPLAIN|BACKFILL|RERUN|MARK|RUNS [name ...]"},
    {"PING", wd_verb_ping, 0, 1, ANY_FREE, EVERY, WD_BOUND_NOTHING, "[message]"},
    {"HELLO", NULL, 0, 7, ANY_FREE, EVERY, WD_BOUND_NOTHING,
     "[2|3] [AUTH user token] [SETNAME name]"},
    {"AUTH", NULL, 1, 2, ANY_FREE, EVERY, WD_BOUND_NOTHING, "[name] token"},
    {"QUIT", NULL, 0, 0, ANY_FREE, EVERY, WD_BOUND_NOTHING, ""},
    {"RESET", NULL, 0, 0, ANY_FREE, EVERY, WD_BOUND_NOTHING, ""},
    {"SELECT", NULL, 1, 1, WHILE_LOADING, EVERY, WD_BOUND_NOTHING, "0"},
    {"CLIENT", NULL, 1, 32, WHILE_LOADING, EVERY, WD_BOUND_NOTHING,
     "ID|SETNAME|GETNAME|SETINFO|LIST|KILL"},
    {"COMMAND", NULL, 0, WD_ARGS_MAX, WHILE_LOADING, EVERY, WD_BOUND_NOTHING, "[DOCS|COUNT|INFO]"},
    {"INFO", NULL, 0, 16, WHILE_LOADING, EVERY, WD_BOUND_NOTHING, "[section ...]"},
    {"CONFIG", NULL, 1, WD_ARGS_MAX, 0, SEES, WD_BOUND_REFUSED, "GET pattern [pattern ...]"},
    {"TIME", NULL, 0, 0, 0, EVERY, WD_BOUND_NOTHING, ""},
    {"CLOCK", NULL, 0, 1, 0, EVERY, WD_BOUND_NOTHING, "[ACCEPT]"},
    {"SHUTDOWN", NULL, 0, 4, 0, RULES, WD_BOUND_REFUSED, ""},
    {"SAVE", NULL, 0, 0, 0, HEALS, WD_BOUND_REFUSED, ""},
    {"BACKUP", NULL, 1, 1, 0, RULES, WD_BOUND_REFUSED, "START|END"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

/* ---- errors ---- */

int wd_refuse(wd_call *k, const char *code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return wd_reply_error(&k->s->out, code, "%s", text) == WD_OK ? WD_DONE_FREE : WD_ENOMEM;
}

int wd_unknown_option(wd_call *k, uint32_t i)
{
    return wd_refuse(k, "SYNTAX",
                     "unknown or repeated option \"%.*s\" of %.*s; see PROTOCOL.md for its options",
                     WD_SHOW(k->argv[i]), WD_SHOW(k->argv[0]));
}

int wd_option_once(wd_call *k, uint32_t i, uint32_t bit, uint32_t *given)
{
    WD_ASSERT(bit != 0);
    if (!(*given & bit)) {
        *given |= bit;
        return 1;
    }
    (void)wd_refuse(k, "SYNTAX", "option %.*s is given twice", WD_SHOW(k->argv[i]));
    return 0;
}

int wd_no_room(wd_call *k, const char *why)
{
    uint64_t used = wd_engine_memory(k->c->e) >> 20;
    if (why && strcmp(why, "maxmemory") != 0 && strcmp(why, "memory") != 0)
        return wd_refuse(k, "LIMIT", "the table of %s is full; end some, or raise its limit", why);
    return wd_refuse(k, "OOM",
                     "no room: %llu MB used; ack, cancel or purge jobs, or raise --maxmemory",
                     (unsigned long long)used);
}

/* ---- arguments ---- */

wd_span wd_cut(wd_span s, size_t most)
{
    return (wd_span){s.p, s.n < most ? s.n : most};
}

int wd_arg_number(wd_call *k, uint32_t i, const char *what, uint64_t least, uint64_t most,
                  uint64_t *out)
{
    if (i >= k->argc) {
        (void)wd_refuse(k, "SYNTAX", "%s needs a number behind it", what);
        return 0;
    }
    uint64_t v;
    if (wd_parse_u64(k->argv[i], UINT64_MAX, &v) != WD_OK) {
        (void)wd_refuse(k, "SYNTAX", "%s \"%.*s\" is not a whole number; write digits only", what,
                        WD_SHOW(k->argv[i]));
        return 0;
    }
    if (v < least || v > most) {
        (void)wd_refuse(k, "LIMIT", "%s %llu is outside %llu..%llu", what, (unsigned long long)v,
                        (unsigned long long)least, (unsigned long long)most);
        return 0;
    }
    *out = v;
    return 1;
}

int wd_arg_when(wd_call *k, uint32_t i, const char *what, wd_when *out)
{
    if (i >= k->argc) {
        (void)wd_refuse(k, "SYNTAX", "%s needs a time behind it", what);
        return 0;
    }
    wd_span s = k->argv[i];
    switch ((enum wd_when_error)wd_parse_when(s, out)) {
    case WD_WHEN_OK:
        return 1;
    case WD_WHEN_SYNTAX:
        (void)wd_refuse(k, "SYNTAX",
                        "%s \"%.*s\" is not a time; write now, +30s, unix milliseconds, or "
                        "2026-12-24T09:00:00+01:00",
                        what, WD_SHOW(s));
        break;
    case WD_WHEN_NAIVE:
        /* A date alone is advised to name its first minute: an offset behind a date is no time. */
        (void)wd_refuse(k, "NAIVE_TIME",
                        "%s \"%.*s\" has no time zone; write an offset behind it, as in %.*s%sZ or "
                        "%.*s%s+01:00",
                        what, WD_SHOW(s), WD_SHOW(s), s.n == ISO_DATE_BYTES ? "T00:00" : "",
                        WD_SHOW(s), s.n == ISO_DATE_BYTES ? "T00:00" : "");
        break;
    case WD_WHEN_SECONDS:
        (void)wd_refuse(
            k, "SYNTAX",
            "%s %.*s looks like seconds; absolute times are unix milliseconds (+%.*s is relative)",
            what, WD_SHOW(s), WD_SHOW(s));
        break;
    case WD_WHEN_RANGE:
        (void)wd_refuse(k, "LIMIT",
                        "%s \"%.*s\" is outside 1970 to 10889 (milliseconds below 2^48)", what,
                        WD_SHOW(s));
        break;
    }
    return 0;
}

int wd_arg_name(wd_call *k, uint32_t i, const char *what, wd_span *out)
{
    if (i >= k->argc || !wd_is_name(k->argv[i], WD_NAME_BYTES_MAX)) {
        wd_span s = i < k->argc ? k->argv[i] : WD_SPAN("");
        (void)wd_refuse(k, s.n > WD_NAME_BYTES_MAX ? "LIMIT" : "SYNTAX",
                        "%s \"%.*s\" (%zu bytes) is not a name; write 1 to %d bytes of UTF-8 "
                        "without control characters",
                        what, WD_SHOW(s), s.n, WD_NAME_BYTES_MAX);
        return 0;
    }
    *out = k->argv[i];
    return 1;
}

int wd_arg_handler(wd_call *k, uint32_t i, wd_span *out)
{
    if (!wd_arg_name(k, i, "handler", out)) return 0;
    int bad = memchr(out->p, ',', out->n) || memchr(out->p, '*', out->n) || out->p[0] == ' ' ||
              out->p[out->n - 1] == ' ';
    if (bad) {
        (void)wd_refuse(k, "SYNTAX",
                        "handler \"%.*s\" has a comma, a star or a blank at an end; leave them out",
                        WD_SHOW(*out));
    }
    return !bad;
}

int wd_arg_value(wd_call *k, uint32_t i, wd_span *out)
{
    if (i + 1 >= k->argc) {
        (void)wd_refuse(k, "SYNTAX", "option %.*s needs a value behind it", WD_SHOW(k->argv[i]));
        return 0;
    }
    *out = k->argv[i + 1];
    return 1;
}

int wd_arg_bytes(wd_call *k, uint32_t i, const char *what, size_t most, wd_span *out)
{
    if (!wd_arg_value(k, i, out)) return 0;
    if (out->n > 0 && out->n <= most) return 1;
    (void)wd_refuse(k, "LIMIT", "%s has %zu bytes, not 1..%zu", what, out->n, most);
    return 0;
}

int wd_arg_backoff(wd_call *k, uint32_t i, wd_policy *p, uint32_t *out_i)
{
    static const char *const kinds[] = {"FIXED", "LINEAR", "EXP"};
    uint64_t base, most;
    wd_span kind;
    int n = 0;
    if (!wd_arg_value(k, i, &kind)) return 0;
    while (n < 3 && !wd_word_is(kind, kinds[n]))
        n++;
    if (n == 3) {
        (void)wd_refuse(k, "SYNTAX", "BACKOFF \"%.*s\" is none of fixed, linear, exp",
                        WD_SHOW(kind));
        return 0;
    }
    if (!wd_arg_number(k, i + 2, "BACKOFF base", 0, WD_SPAN_MS_MAX, &base)) return 0;
    most = base > WD_POLICY_MAX_MS ? base : WD_POLICY_MAX_MS;
    *out_i = i + 2;
    if (i + 3 < k->argc && k->argv[i + 3].n && k->argv[i + 3].p[0] >= '0' &&
        k->argv[i + 3].p[0] <= '9') {
        if (!wd_arg_number(k, i + 3, "BACKOFF max", base, WD_SPAN_MS_MAX, &most)) return 0;
        *out_i = i + 3;
    }
    p->backoff = (uint8_t)n;
    p->base_ms = (uint32_t)base;
    p->max_ms = (uint32_t)most;
    return 1;
}

int wd_arg_policy(wd_call *k, uint32_t *i, wd_policy *p, uint8_t *set)
{
    wd_span word = k->argv[*i];
    uint64_t v;
    uint8_t bit;
    int ok;
    if (wd_word_is(word, "RETRIES")) {
        bit = WD_SET_RETRIES;
        ok = wd_arg_number(k, *i + 1, "RETRIES", 0, WD_RETRIES_MAX, &v);
        if (ok) p->retries = (uint16_t)v;
    } else if (wd_word_is(word, "LOST")) {
        bit = WD_SET_LOST;
        ok = wd_arg_number(k, *i + 1, "LOST", 0, WD_RETRIES_MAX, &v);
        if (ok) p->lost = (uint16_t)v;
    } else if (wd_word_is(word, "LEASE")) {
        bit = WD_SET_LEASE;
        ok = wd_arg_number(k, *i + 1, "LEASE", 1, WD_SPAN_MS_MAX, &v);
        if (ok) p->lease_ms = (uint32_t)v;
    } else if (wd_word_is(word, "TIMEOUT")) {
        bit = WD_SET_TIMEOUT;
        ok = wd_arg_number(k, *i + 1, "TIMEOUT", 0, WD_SPAN_MS_MAX, &v);
        if (ok) p->timeout_ms = (uint32_t)v;
    } else if (wd_word_is(word, "BACKOFF")) {
        uint32_t last;
        bit = WD_SET_BACKOFF;
        ok = wd_arg_backoff(k, *i, p, &last);
        if (ok) *i = last - 1;
    } else {
        return 0;
    }
    if (!ok) return -1;
    if (*set & bit) {
        (void)wd_refuse(k, "SYNTAX", "option %.*s is given twice", WD_SHOW(word));
        return -1;
    }
    *set |= bit;
    *i += 2;
    return 1;
}

/* The number up to `stop`, or up to the end where stop is 0; *at moves behind it. */
static int take_part(const uint8_t **at, const uint8_t *end, uint8_t stop, uint64_t *out)
{
    enum { SAFE_DIGITS = 19 }; /* so many never overflow 64 bits */
    const uint8_t *from = *at, *p = from;
    uint64_t v = 0;
    for (; p < end && (uint32_t)*p - '0' <= 9; p++)
        v = v * 10 + (*p - '0');
    if (p == from || (stop ? p == end || *p != stop : p != end)) return 0;
    *at = p + (stop != 0);
    *out = v;
    if (p - from <= SAFE_DIGITS) return 1;
    return wd_parse_u64((wd_span){from, (size_t)(p - from)}, UINT64_MAX, out) == WD_OK;
}

int wd_arg_receipt(wd_call *k, uint32_t i, wd_receipt *out)
{
    wd_span s = k->argv[i];
    wd_receipt r;
    const uint8_t *at = s.p, *end = s.p + s.n;
    if (take_part(&at, end, '.', &r.id) && take_part(&at, end, '.', &r.term) &&
        take_part(&at, end, 0, &r.lsn)) {
        *out = r;
        return 1;
    }
    (void)wd_refuse(k, "SYNTAX", "receipt \"%.*s\" is not id.term.lsn; send it as LEASE gave it",
                    WD_SHOW(s));
    return 0;
}

int wd_arg_job(wd_call *k, uint32_t i, uint64_t *out)
{
    wd_span s = k->argv[i];
    size_t digits = 0;
    while (digits < s.n && s.p[digits] >= '0' && s.p[digits] <= '9')
        digits++;
    if (s.n && digits == s.n) {
        if (wd_parse_u64(s, INT64_MAX, out) == WD_OK) return 1;
        (void)wd_refuse(k, "LIMIT", "job id %.*s is above 2^63 - 1", WD_SHOW(s));
        return 0;
    }
    wd_span key;
    if (!wd_arg_name(k, i, "job", &key)) return 0;
    *out = wd_engine_key_id(k->c->e, key);
    return 1;
}

/* ---- dispatch ---- */

int wd_verb_ping(wd_call *k)
{
    int status =
        k->argc > 1 ? wd_reply_bulk(&k->s->out, k->argv[1]) : wd_reply_simple(&k->s->out, "PONG");
    return status == WD_OK ? WD_DONE_FREE : WD_ENOMEM;
}

/* Is the disk too full for this command? Then it is refused and nothing changed. */
static int lacks_room(const wd_commands *c, const command *cmd)
{
    if (c->disk >= WD_DISK_TIGHT && (cmd->flags & TAKES_JOBS)) return 1;
    if (c->disk >= WD_DISK_LOW && (cmd->flags & GIVES_JOBS)) return 1;
    return c->disk >= WD_DISK_FULL && (cmd->flags & WRITES);
}

/* Does this command make records? Showing a handler does not, setting it does. */
static int makes_records(const command *cmd, uint32_t argc)
{
    if (cmd->run == wd_verb_handler) return argc > 2;
    return (cmd->flags & (TAKES_JOBS | GIVES_JOBS | WRITES)) != 0;
}

static const command *find(wd_span name)
{
    for (uint32_t i = 0; i < COMMANDS; i++)
        if (wd_word_is(name, commands[i].name)) return &commands[i];
    return NULL;
}

int wd_command_run(wd_commands *c, wd_session *s, const wd_span *argv, uint32_t argc)
{
    wd_call k = {c, s, argv, argc};
    WD_ASSERT(argc >= 1 && argc <= WD_ARGS_MAX);
    WD_ASSERT(!s->wait);
    const command *cmd = find(argv[0]);
    c->run_count++;
    if (c->limits.auth_required && !s->authed && !(cmd && cmd->flags & BEFORE_AUTH))
        return wd_refuse(&k, "NOAUTH", "%.*s needs a token; send AUTH token first",
                         WD_SHOW(argv[0]));
    if (!cmd)
        return wd_refuse(&k, "UNKNOWN_COMMAND", "\"%.*s\" is no command; COMMAND DOCS lists them",
                         WD_SHOW(argv[0]));
    if (!wd_rights_role(&k, cmd->name, cmd->roles)) return WD_DONE_FREE;
    if (c->loading && !(cmd->flags & WHILE_LOADING))
        return wd_refuse(&k, "LOADING",
                         "the log is being replayed; try again soon (INFO shows how far it is)");
    if (argc - 1 < cmd->args_min || argc - 1 > cmd->args_max)
        return wd_refuse(&k, "SYNTAX", "wrong number of arguments for %s; write %s%s%s", cmd->name,
                         cmd->name, cmd->usage[0] ? " " : "", cmd->usage);
    if (!wd_rights_bound(&k, cmd->name, cmd->bound)) return WD_DONE_GATED;
    if (lacks_room(c, cmd)) {
        return wd_refuse(&k, "DISKFULL",
                         "the disk has no room for %s; make room where the data directory lies, "
                         "the server looks again each second",
                         cmd->name);
    }
    if (c->behind && makes_records(cmd, argc)) return WD_DONE_LATER;
    return cmd->run ? cmd->run(&k) : WD_DONE_PYTHON;
}

int wd_command_info(uint32_t i, wd_command_facts *out)
{
    if (i >= COMMANDS) return WD_EGONE;
    *out = (wd_command_facts){.name = commands[i].name,
                              .usage = commands[i].usage,
                              .args_min = commands[i].args_min,
                              .args_max = commands[i].args_max};
    return WD_OK;
}

int wd_command_right(uint32_t i, wd_right *out)
{
    if (i >= COMMANDS) return wd_rights_form(i - COMMANDS, out);
    *out = (wd_right){.command = commands[i].name,
                      .form = "",
                      .roles = commands[i].roles,
                      .limited = commands[i].bound != WD_BOUND_REFUSED};
    return WD_OK;
}

/* ---- life ---- */

wd_commands *wd_commands_new(wd_engine *e, const wd_command_limits *limits)
{
    WD_ASSERT(limits->payload_bytes_max <= WD_BULK_BYTES_MAX);
    wd_commands *c = wd_zalloc(sizeof *c);
    if (!c) return NULL;
    c->e = e;
    c->names = wd_engine_names(e);
    c->limits = *limits;
    c->nodes_free = c->patterns = WD_NIL;
    c->numbers = wd_reserve(sizeof(uint32_t) * WD_HANDLERS_MAX);
    c->skipped = wd_reserve(sizeof(uint32_t) * WD_HANDLERS_MAX);
    if (c->numbers && c->skipped) return c;
    wd_commands_free(c);
    return NULL;
}

void wd_commands_free(wd_commands *c)
{
    if (!c) return;
    for (uint32_t i = 0; i < c->heap_count; i++)
        wd_release(c->heap[i]);
    wd_release(c->heap);
    wd_release(c->nodes);
    wd_buf_free(&c->scratch);
    wd_unreserve(c->numbers, sizeof(uint32_t) * WD_HANDLERS_MAX);
    wd_unreserve(c->skipped, sizeof(uint32_t) * WD_HANDLERS_MAX);
    wd_release(c);
}

void wd_commands_set_loading(wd_commands *c, int loading)
{
    c->loading = loading;
}

void wd_commands_set_behind(wd_commands *c, int behind)
{
    c->behind = behind;
}

uint32_t wd_commands_waiting(const wd_commands *c)
{
    return c->heap_count;
}

void wd_commands_set_disk(wd_commands *c, int room)
{
    WD_ASSERT(room >= WD_DISK_OK && room <= WD_DISK_FULL);
    c->disk = room;
}

uint64_t wd_commands_count(const wd_commands *c)
{
    return c->run_count;
}

void wd_session_close(wd_commands *c, wd_session *s, uint64_t sent_offset)
{
    if (s->wait) wd_wait_drop(c, s->wait);
    wd_session_unwake(c, s);
    const wd_grant *g = (const wd_grant *)(const void *)s->grants.p;
    for (size_t i = 0; i < s->grants.n / sizeof *g; i++)
        if (g[i].reply_end > sent_offset) wd_engine_unsent(c->e, g[i].id, g[i].lsn);
    g = (const wd_grant *)(const void *)s->bound.p;
    for (size_t i = 0; i < s->bound.n / sizeof *g; i++)
        wd_engine_unbound(c->e, g[i].id, g[i].lsn);
    wd_buf_free(&s->globs);
    wd_buf_free(&s->out);
    wd_buf_free(&s->grants);
    wd_buf_free(&s->bound);
}
