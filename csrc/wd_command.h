/* wd_command.h -- commands: arguments -> engine calls -> reply bytes; waiting LEASE calls.
 *
 * Works on sessions, not on sockets: wd_conn embeds a wd_session and moves its bytes.
 */
#ifndef WD_COMMAND_H
#define WD_COMMAND_H

#include "wd_engine.h"
#include "wd_resp.h"

enum wd_disk_room { WD_DISK_OK = 0, WD_DISK_TIGHT = 1, WD_DISK_LOW = 2, WD_DISK_FULL = 3 };

/* What a connection may do: bits, because a row of the command table names several. */
enum wd_role {
    WD_ROLE_VIEWER = 1,   /* looks */
    WD_ROLE_PRODUCER = 2, /* makes jobs, and changes those that wait */
    WD_ROLE_WORKER = 4,   /* takes jobs and says how they ended */
    WD_ROLE_OPERATOR = 8, /* all of that but taking jobs; heals, pauses, closes connections */
    WD_ROLE_ADMIN = 16,   /* everything */
    WD_ROLES_ALL = 31
};

/* A job handed to this session whose reply has not left wholly yet, or that is bound to it. */
typedef struct {
    uint64_t id, lsn;   /* the grant: job and lsn of its LEASED record */
    uint64_t reply_end; /* stream offset (since connect) of the first byte behind the reply */
} wd_grant;

struct wd_wait; /* a parked LEASE (wd_wait.c) */

enum { WD_SESSION_TEXT_BYTES = 64 }; /* of what a session is called, its end included */

typedef struct wd_session {
    uint64_t handle;      /* index | generation << 32: what others hold instead of a pointer */
    uint64_t out_base;    /* stream offset of out.p[0]: bytes that left before it */
    wd_buf out;           /* replies in order; the gate (wd_conn) decides how far they may leave */
    wd_buf grants;        /* wd_grant[]: not wholly sent yet, in order of reply_end */
    wd_buf bound;         /* wd_grant[]: LEASE ... BOUND */
    uint32_t bound_kept;  /* of them when those that are over were dropped last */
    struct wd_wait *wait; /* the parked LEASE, NULL = none */
    struct wd_session *woken_next; /* on the woken list */
    uint8_t woken;
    uint8_t resp;                     /* 2 or 3 */
    uint8_t authed;                   /* may use commands behind AUTH */
    uint8_t blocked;                  /* the kernel refused bytes: no lease is given */
    uint8_t closing;                  /* no more commands are read */
    uint8_t roles;                    /* enum wd_role bits: which commands it may use */
    wd_buf globs;                     /* "mail.*,pay": only these handlers; empty = all */
    char name[WD_SESSION_TEXT_BYTES]; /* CLIENT SETNAME / HELLO SETNAME, "" = none */
    char user[WD_SESSION_TEXT_BYTES]; /* AUTH name, "" = none */
} wd_session;

enum wd_done {
    WD_DONE_GATED = 0,  /* replied; the reply depends on the state it saw */
    WD_DONE_FREE = 1,   /* replied; the reply depends on nothing (PING, syntax errors) */
    WD_DONE_WAIT = 2,   /* parked: a LEASE that waits; nothing behind it is run until it is woken */
    WD_DONE_PYTHON = 3, /* not C's: the connection parks until Python has answered */
    WD_DONE_LATER = 4 /* it changes something and the log is behind: nothing was done, ask again */
};

struct wd_commands; /* dispatch state: waiting list, woken list, limits */
typedef struct wd_commands wd_commands;

typedef struct {
    uint64_t payload_bytes_max; /* default 64 KiB, at most 1 MiB */
    int strict_handlers;        /* refuse SCHEDULE for a handler that nobody serves */
    int auth_required;          /* sessions start without rights */
} wd_command_limits;

wd_commands *wd_commands_new(wd_engine *e, const wd_command_limits *limits);
void wd_commands_free(wd_commands *c);
/* 1 while the log is replayed: only PING and what Python may answer then is run, else -LOADING. */
void wd_commands_set_loading(wd_commands *c, int loading);
/* Does anybody serve this handler: a LEASE since the start, one that waits, or defaults set? */
int wd_commands_serve_handler(const wd_commands *c, wd_span handler);
/* How little the disk has left (enum wd_disk_room): from TIGHT on no job is taken, from LOW on none
 * is handed out, at FULL nothing that makes a record is run; what reads goes on. */
void wd_commands_set_disk(wd_commands *c, int room);

/* 1: the log is behind, so what would add to it is put off (WD_DONE_LATER) and no job is handed
 * out; what reads goes on. */
void wd_commands_set_behind(wd_commands *c, int behind);
/* LEASE calls that wait. */
uint32_t wd_commands_waiting(const wd_commands *c);

/* Run argv[0..argc), argc >= 1, for s; replies are appended to s->out. enum wd_done, or WD_ENOMEM
 * (close the connection: its reply could not be kept). */
int wd_command_run(wd_commands *c, wd_session *s, const wd_span *argv, uint32_t argc);

/* After commands and ticks of one round: give ready jobs to waiting LEASE calls and end those whose
 * WAIT has passed. Each session answered or ended is put on the woken list with its reply in out.
 */
void wd_commands_serve(wd_commands *c);
/* Next woken session (then: gate its new bytes, run what is buffered behind), NULL = none. */
wd_session *wd_commands_next_woken(wd_commands *c);
/* Rel time at which the first waiting LEASE gives up; WD_NEVER_MS = none. */
int64_t wd_commands_next_wake_ms(const wd_commands *c);

/* Take a session off the woken list (it is about to go). */
void wd_session_unwake(wd_commands *c, wd_session *s);

/* End a parked LEASE with an empty array (half-close, SIGTERM). It goes onto the woken list. */
void wd_session_end_wait(wd_commands *c, wd_session *s);
/* Answer every parked LEASE with an empty array and park none from now on. */
void wd_commands_drain(wd_commands *c);

/* The connection is gone: drop its parked LEASE, give back grants whose reply had not left wholly
 * (reply_end > sent_offset), count bound leases as lost. Frees the session's buffers. */
void wd_session_close(wd_commands *c, wd_session *s, uint64_t sent_offset);

/* Commands run so far, refused ones included. */
uint64_t wd_commands_count(const wd_commands *c);

/* The i-th command of the table, for COMMAND and PROTOCOL.md's test; WD_EGONE behind the last. */
typedef struct {
    const char *name, *usage;    /* static text */
    uint32_t args_min, args_max; /* without the name */
} wd_command_facts;
int wd_command_info(uint32_t i, wd_command_facts *out);

/* The i-th right: first the rows of the table (form ""), then the forms of commands that differ
 * from their row: form is their first argument, or "*" = with any option. WD_EGONE behind them. */
typedef struct {
    const char *command, *form; /* static text */
    uint32_t roles;             /* enum wd_role bits that may use it */
    uint32_t limited;           /* 1: also when limited to some handlers */
} wd_right;
int wd_command_right(uint32_t i, wd_right *out);

/* Rights of a session that has signed in (roles != 0) or out (0): globs are handlers, "name" or
 * "prefix*", with commas between; none = all. WD_OK, WD_ENOMEM (nothing changed). */
int wd_session_set_rights(wd_session *s, uint32_t roles, wd_span globs);

#endif /* WD_COMMAND_H */
