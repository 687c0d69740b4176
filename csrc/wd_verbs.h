/* wd_verbs.h -- private to the command files:
 *   wd_command.c      dispatch, arguments, errors, life
 *   wd_verbs_job.c    SCHEDULE, CANCEL, RESCHEDULE, RUN, REQUEUE, PURGE
 *   wd_verbs_lease.c  LEASE, ACK, DONE, FAIL, RELEASE, EXTEND
 *   wd_reply_grant.c  what LEASE tells of one job
 *   wd_verbs_show.c   JOB, JOBS, DEAD, COUNT, HANDLERS, HANDLER
 *   wd_wait.c         LEASE calls that wait
 *   wd_rights.c       which role may use which command, and for which handlers
 */
#ifndef WD_VERBS_H
#define WD_VERBS_H

#include "wd_command.h"

enum {
    WD_WAIT_MS_MAX = 5 * 60 * 1000,
    WD_META_BYTES_MAX = 1024,
    WD_RESULT_BYTES_MAX = 4096,
    WD_ERROR_BYTES_MAX = 1024,
    WD_ONCE_BYTES_MAX = 64,
    WD_WINDOW_MS_MAX = 3600 * 1000,
    WD_PAGE_MAX = 200,
    WD_PAGE_ROWS_MAX = 8192, /* rows that one JOBS call looks at */
    WD_SHOWN_BYTES = 64      /* of a wrong value, in an error */
};

/* A parked LEASE. */
typedef struct wd_wait {
    wd_session *session;
    uint64_t number;  /* of arrival */
    int64_t until_ms; /* rel: when it gives up */
    uint32_t heap_at; /* place in the heap by until_ms */
    uint32_t nodes;   /* first of its nodes, linked by `sibling` */
    uint32_t count, lease_ms;
    uint32_t names_len; /* of names[] */
    uint8_t bound, worker_len;
    uint8_t worker[WD_NAME_BYTES_MAX];
    uint8_t names[]; /* the handler argument as it came */
} wd_wait;

/* A wait in the list of one handler, or in the list of those with patterns. */
typedef struct {
    wd_wait *wait;
    uint32_t handler;    /* WD_NIL: the list of patterns */
    uint32_t next, prev; /* circular */
    uint32_t sibling;    /* next node of the same wait; free: next free node */
} wd_node;

struct wd_commands {
    wd_engine *e;
    wd_names *names;
    wd_command_limits limits;
    int loading, draining;
    int disk;           /* enum wd_disk_room */
    int behind;         /* the log is: nothing is added to it */
    uint64_t run_count; /* commands run */
    uint64_t waits_made;
    wd_node *nodes;
    uint32_t nodes_count, nodes_room, nodes_free, patterns;
    wd_wait **heap;
    uint32_t heap_count, heap_room;
    wd_session *woken_first, *woken_last;
    uint32_t *skipped; /* scratch: handlers that are looked at again in the next round */
    uint32_t *numbers; /* scratch: handlers of one LEASE (WD_HANDLERS_MAX) */
    uint32_t slots[WD_LEASE_COUNT_MAX];
    wd_receipt receipts[WD_ARGS_MAX]; /* scratch: of one ACK or EXTEND, by argument */
    wd_buf scratch;                   /* a map whose length is not known yet */
};

/* ---- wd_command.c: arguments and errors ---- */
typedef struct {
    wd_commands *c;
    wd_session *s;
    const wd_span *argv;
    uint32_t argc;
} wd_call;

/* Replies -CODE ...; WD_DONE_FREE. The message says what, which value, what to do. */
int wd_refuse(wd_call *k, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A wrong value, cut and quoted for an error: use with "%.*s", WD_SHOW(span). */
static inline int wd_shown_bytes(wd_span s)
{
    return (int)(s.n < WD_SHOWN_BYTES ? s.n : WD_SHOWN_BYTES);
}
#define WD_SHOW(s) wd_shown_bytes(s), (const char *)(s).p

/* Argument i as a number in [least, most]; 0 = replied with an error. */
int wd_arg_number(wd_call *k, uint32_t i, const char *what, uint64_t least, uint64_t most,
                  uint64_t *out);
int wd_arg_when(wd_call *k, uint32_t i, const char *what, wd_when *out);
int wd_arg_name(wd_call *k, uint32_t i, const char *what, wd_span *out);
int wd_arg_handler(wd_call *k, uint32_t i, wd_span *out);
/* The argument behind option i, or an error. */
int wd_arg_value(wd_call *k, uint32_t i, wd_span *out);
int wd_arg_bytes(wd_call *k, uint32_t i, const char *what, size_t most, wd_span *out);
/* BACKOFF kind base [max] at i: fills the policy; *out_i = the last argument used. */
int wd_arg_backoff(wd_call *k, uint32_t i, wd_policy *p, uint32_t *out_i);
/* RETRIES LOST BACKOFF LEASE TIMEOUT at *i: 1 = taken (i moved), 0 = not one of them, -1 = refused.
 */
int wd_arg_policy(wd_call *k, uint32_t *i, wd_policy *p, uint8_t *set);
int wd_arg_receipt(wd_call *k, uint32_t i, wd_receipt *out);
/* An id, or a key resolved to one: 0 in *out = no such key. */
int wd_arg_job(wd_call *k, uint32_t i, uint64_t *out);
int wd_unknown_option(wd_call *k, uint32_t i);
/* 1 and the bit set in *given, if option i was not given before; else 0, refused. */
int wd_option_once(wd_call *k, uint32_t i, uint32_t bit, uint32_t *given);
int wd_no_room(wd_call *k, const char *why);
wd_span wd_cut(wd_span s, size_t most);

/* ---- wd_rights.c ---- */
/* What of a command a token that is limited to some handlers is held to. */
enum wd_bound {
    WD_BOUND_NOTHING = 0, /* names no handler */
    WD_BOUND_NAMES,       /* argument 1: handlers and prefixes, with commas between */
    WD_BOUND_HANDLER,     /* argument 1: a handler */
    WD_BOUND_JOB,         /* argument 1: a job */
    WD_BOUND_JOBS,        /* all arguments: jobs */
    WD_BOUND_RECEIPT,     /* argument 1: a receipt */
    WD_BOUND_RECEIPTS,    /* all arguments: receipts */
    WD_BOUND_OPTION,      /* must have the option HANDLER h */
    WD_BOUND_REFUSED      /* shows or changes what is not one handler's: not at all */
};
/* May this call be made by these roles, bound like this? The forms table overrides both. Else it is
 * refused with NOPERM, and 0 returned. */
int wd_rights_role(wd_call *k, const char *name, uint32_t roles);
int wd_rights_bound(wd_call *k, const char *name, int bound);
/* Is this job, if there is one, within what the session is limited to? Else refused. */
int wd_rights_job(wd_call *k, uint64_t id);
/* The i-th form; WD_EGONE behind the last. */
int wd_rights_form(uint32_t i, wd_right *out);

/* ---- verbs: enum wd_done or WD_ENOMEM ---- */
int wd_verb_ping(wd_call *k);
int wd_verb_schedule(wd_call *k);
int wd_verb_cancel(wd_call *k);
int wd_verb_reschedule(wd_call *k);
int wd_verb_run(wd_call *k);
int wd_verb_requeue(wd_call *k);
int wd_verb_purge(wd_call *k);
int wd_verb_lease(wd_call *k);
int wd_verb_ack(wd_call *k);
int wd_verb_done(wd_call *k);
int wd_verb_fail(wd_call *k);
int wd_verb_release(wd_call *k);
int wd_verb_extend(wd_call *k);
int wd_verb_job(wd_call *k);
int wd_verb_jobs(wd_call *k);
int wd_verb_dead(wd_call *k);
int wd_verb_count(wd_call *k);
int wd_verb_handlers(wd_call *k);
int wd_verb_handler(wd_call *k);

/* ---- wd_wait.c ---- */
/* Handlers that a LEASE argument names and that exist, into c->numbers; how many. */
uint32_t wd_wait_numbers(wd_commands *c, wd_span names);
/* Under --strict-handlers: log, once for each handler named in full, that somebody serves it, so
 * that its jobs are taken while every worker is busy, and after a restart. */
void wd_wait_publish(wd_commands *c, wd_span names);
/* Park; WD_OK or WD_ENOMEM. names, worker are copied. */
int wd_wait_park(wd_commands *c, wd_session *s, wd_span names, const wd_lease_ask *ask, int bound,
                 int64_t until_ms);
void wd_wait_drop(wd_commands *c, wd_wait *w);
/* Does a waiting LEASE name this handler, by a pattern or before it exists? */
int wd_wait_names(const wd_commands *c, wd_span handler);
uint32_t wd_wait_count(const wd_commands *c, uint32_t handler);
/* Grant and write the reply of ask; WD_OK with *out_n jobs (0: nothing written), or WD_ENOMEM. */
int wd_lease_now(wd_commands *c, wd_session *s, const wd_lease_ask *ask, int bound,
                 uint32_t *out_n);

/* ---- wd_reply_grant.c ---- */
/* The element of one job in LEASE's array; WD_OK or WD_ENOMEM (then out is as before). */
int wd_reply_grant(wd_buf *out, const wd_grant_view *v, int resp);

#endif /* WD_VERBS_H */
