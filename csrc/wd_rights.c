/* wd_rights.c -- what a connection's roles and handler globs let it do.
 *
 * Two questions, asked before a command runs. Its role: a row of the command table names the roles
 * that may use it, and a form (CLOCK ACCEPT, CRON DEL, HANDLER h PAUSE) may name others. Its bound:
 * a token that is limited to some handlers names those, their jobs or receipts of their jobs, and
 * nothing else.
 *
 * Invariants:
 *  1. A session without globs is held to no handler, and pays nothing for those that are.
 *  2. A prefix is within a token's globs only if everything that it will ever match is: so a
 *     waiting LEASE never has to be looked at again when a handler appears.
 *  3. What is refused has changed nothing.
 * A malformed argument is not looked at here: the verb refuses it with the better text.
 */
#include "wd_verbs.h"

#include <stdio.h>

enum { NAMES_BYTES_MAX = 64, GLOBS_SHOWN_BYTES = 200 };
enum {
    OPERATES = WD_ROLE_OPERATOR | WD_ROLE_ADMIN,
    PUBLISHES = WD_ROLE_WORKER | OPERATES,
    MAKES = WD_ROLE_PRODUCER | OPERATES,
    LOOKS = WD_ROLE_VIEWER | OPERATES,
    READS = LOOKS | MAKES,
    ANYONE = WD_ROLES_ALL
};

typedef struct {
    const char *command;
    const char *word; /* its first argument; for HANDLER any behind the name; "*" = anything */
    uint8_t roles, bound;
} form;

/* The last one that fits counts, instead of the row. */
static const form forms[] = {
    {"HANDLER", "*", PUBLISHES, WD_BOUND_HANDLER},
    {"HANDLER", "PAUSE", OPERATES, WD_BOUND_HANDLER},
    {"HANDLER", "RESUME", OPERATES, WD_BOUND_HANDLER},
    {"HANDLER", "CONCURRENCY", OPERATES, WD_BOUND_HANDLER},
    {"CLOCK", "ACCEPT", OPERATES, WD_BOUND_REFUSED},
    {"CLIENT", "LIST", LOOKS, WD_BOUND_REFUSED},
    {"CLIENT", "KILL", OPERATES, WD_BOUND_REFUSED},
    {"CRON", "SET", MAKES, WD_BOUND_REFUSED},
    {"CRON", "TRIGGER", MAKES, WD_BOUND_REFUSED},
    {"CRON", "GET", READS, WD_BOUND_REFUSED},
    {"CRON", "LIST", READS, WD_BOUND_REFUSED},
    {"CRON", "NEXT", READS, WD_BOUND_REFUSED},
    {"CRON", "RUNS", READS, WD_BOUND_REFUSED},
    {"CRON", "EXPLAIN", ANYONE, WD_BOUND_NOTHING},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

static const char *const role_names[] = {"viewer", "producer", "worker", "operator", "admin"};
enum { ROLES = sizeof role_names / sizeof role_names[0] };

/* ---- forms ---- */

static int fits(const wd_call *k, const char *name, const form *f)
{
    if (strcmp(name, f->command) != 0) return 0;
    uint32_t first = strcmp(name, "HANDLER") == 0 ? 2 : 1;
    uint32_t end = first == 1 && k->argc > 2 ? 2 : k->argc;
    for (uint32_t i = first; i < end; i++)
        if (f->word[0] == '*' || wd_word_is(k->argv[i], f->word)) return 1;
    return 0;
}

/* NULL: the row of the command counts. */
static const form *find(const wd_call *k, const char *name)
{
    const form *found = NULL;
    for (uint32_t i = 0; i < FORMS; i++)
        if (fits(k, name, &forms[i])) found = &forms[i];
    return found;
}

int wd_rights_form(uint32_t i, wd_right *out)
{
    if (i >= FORMS) return WD_EGONE;
    *out = (wd_right){.command = forms[i].command,
                      .form = forms[i].word,
                      .roles = forms[i].roles,
                      .limited = forms[i].bound != WD_BOUND_REFUSED};
    return WD_OK;
}

/* ---- roles ---- */

/* "operator or admin" of bits; "no role" of none. */
static void list_roles(uint32_t roles, char out[NAMES_BYTES_MAX])
{
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < ROLES; i++) {
        if (!(roles & (1U << i))) continue;
        int last = (roles >> (i + 1)) == 0;
        int k = snprintf(out + n, NAMES_BYTES_MAX - n, "%s%s", n == 0 ? "" : (last ? " or " : ", "),
                         role_names[i]);
        WD_ASSERT(k > 0 && (size_t)k < NAMES_BYTES_MAX - n);
        n += (size_t)k;
    }
    if (n == 0) (void)snprintf(out, NAMES_BYTES_MAX, "no role");
}

int wd_rights_role(wd_call *k, const char *name, uint32_t roles)
{
    if (k->s->roles == WD_ROLES_ALL) return 1; /* each row and form asks for some of them */
    const form *f = find(k, name);
    if (f) roles = f->roles;
    WD_ASSERT(roles != 0 && roles <= WD_ROLES_ALL);
    if (roles == WD_ROLES_ALL || (roles & k->s->roles)) return 1;
    char needed[NAMES_BYTES_MAX], has[NAMES_BYTES_MAX];
    list_roles(roles, needed);
    list_roles(k->s->roles, has);
    int named = f && f->word[0] != '*';
    (void)wd_refuse(k, "NOPERM",
                    "%s%s%s needs the role %s, this token has %s; sign in with another token", name,
                    named ? " " : "", named ? f->word : "", needed, has);
    return 0;
}

int wd_session_set_rights(wd_session *s, uint32_t roles, wd_span globs)
{
    WD_ASSERT(roles <= WD_ROLES_ALL);
    wd_buf fresh = {0};
    if (globs.n > 0 && wd_buf_put(&fresh, globs.p, globs.n) != WD_OK) return WD_ENOMEM;
    wd_buf_free(&s->globs);
    s->globs = fresh;
    s->roles = (uint8_t)roles;
    s->authed = roles != 0;
    return WD_OK;
}

/* ---- handlers ---- */

/* Cut the first name off a list with commas; a list "a," ends behind a. */
static wd_span cut_name(wd_span *rest)
{
    const uint8_t *comma = memchr(rest->p, ',', rest->n);
    wd_span name = {rest->p, comma ? (size_t)(comma - rest->p) : rest->n};
    size_t used = comma ? name.n + 1 : name.n;
    *rest = (wd_span){rest->p + used, rest->n - used};
    return name;
}

/* Is everything that name stands for, a handler or "prefix*", within one of the globs? */
static int is_within(wd_span globs, wd_span name)
{
    while (globs.n > 0) {
        wd_span glob = cut_name(&globs);
        WD_ASSERT(glob.n > 0);
        size_t n = glob.n - 1;
        int open = glob.p[n] == '*';
        if (open && name.n >= n && memcmp(name.p, glob.p, n) == 0) return 1;
        if (!open && wd_span_eq(glob, name)) return 1;
    }
    return 0;
}

static int check_handler(wd_call *k, wd_span name)
{
    wd_span globs = {k->s->globs.p, k->s->globs.n};
    if (is_within(globs, name)) return 1;
    int shown = (int)(globs.n < GLOBS_SHOWN_BYTES ? globs.n : GLOBS_SHOWN_BYTES);
    (void)wd_refuse(k, "NOPERM",
                    "handler \"%.*s\" is not within %.*s, which is all that this token is for; "
                    "name others, or sign in with another token",
                    WD_SHOW(name), shown, (const char *)globs.p);
    return 0;
}

static int check_names(wd_call *k, wd_span names)
{
    while (names.n > 0)
        if (!check_handler(k, cut_name(&names))) return 0;
    return 1;
}

int wd_rights_job(wd_call *k, uint64_t id)
{
    wd_view v;
    if (k->s->globs.n == 0 || id == 0 || wd_engine_view(k->c->e, id, &v) != WD_OK) return 1;
    return check_handler(k, v.handler);
}

/* A job's id or key in argument i; for a receipt what stands before its first dot. */
static int check_job(wd_call *k, uint32_t i, int is_receipt)
{
    wd_span s = k->argv[i];
    uint64_t id = 0;
    if (is_receipt) {
        const uint8_t *dot = memchr(s.p, '.', s.n);
        if (!dot) return 1;
        s.n = (size_t)(dot - s.p);
    }
    if (wd_parse_u64(s, INT64_MAX, &id) != WD_OK) {
        if (is_receipt || !wd_is_name(s, WD_NAME_BYTES_MAX)) return 1;
        id = wd_engine_key_id(k->c->e, s);
    }
    return wd_rights_job(k, id);
}

static int check_jobs(wd_call *k, uint32_t end, int are_receipts)
{
    for (uint32_t i = 1; i < end; i++)
        if (!check_job(k, i, are_receipts)) return 0;
    return 1;
}

/* JOBS, DEAD, COUNT: every option has one value. */
static int check_option(wd_call *k, const char *name)
{
    for (uint32_t i = 1; i + 1 < k->argc; i += 2)
        if (wd_word_is(k->argv[i], "HANDLER")) return check_handler(k, k->argv[i + 1]);
    (void)wd_refuse(k, "NOPERM", "%s of all handlers is not for this token; add HANDLER h", name);
    return 0;
}

int wd_rights_bound(wd_call *k, const char *name, int bound)
{
    if (k->s->globs.n == 0) return 1;
    const form *f = find(k, name);
    if (f) bound = f->bound;
    switch ((enum wd_bound)bound) {
    case WD_BOUND_NOTHING:
        return 1;
    case WD_BOUND_NAMES:
        return check_names(k, k->argv[1]);
    case WD_BOUND_HANDLER:
        return check_handler(k, k->argv[1]);
    case WD_BOUND_JOB:
    case WD_BOUND_RECEIPT:
        return check_jobs(k, 2, bound == WD_BOUND_RECEIPT);
    case WD_BOUND_JOBS:
    case WD_BOUND_RECEIPTS:
        return check_jobs(k, k->argc, bound == WD_BOUND_RECEIPTS);
    case WD_BOUND_OPTION:
        return check_option(k, name);
    case WD_BOUND_REFUSED:
        break;
    }
    (void)wd_refuse(k, "NOPERM",
                    "%s concerns more than the handlers that this token is for; sign in with "
                    "another token",
                    name);
    return 0;
}
