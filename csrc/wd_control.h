/* wd_control.h -- the control plane's way into the engine: what Python decides goes in as one
 * atomic batch, what it has to know comes out as records. No callback: Python asks.
 */
#ifndef WD_CONTROL_H
#define WD_CONTROL_H

#include "wd_core.h"

/* cffi: begin */
/* Carry out ops[0..n), whole or not at all: records as in wd_record.h, with these meanings.
 *   CREATED        a job: NAME = handler, DUE FLAGS PRIORITY, PAYLOAD META GROUP EXPIRE, KEY or
 *                  OWNER, BLOB (wd_policy, then one byte enum wd_setting: which of its members
 *                  count); its id is made here and written to out_ids, one for each CREATED in
 * order MARKED         ID: cancel it (a leased one is marked) UNHELD, MOVED  ID DUE FLAGS CLOSED
 * ID: the end of this owned job was seen PUT, DEL       REASON(kind) NAME [BLOB] No two may be
 * about one job, key or DEL'd entry, but CLOSED goes with any other. WD_OK with *out_count ids;
 * WD_EFULL or WD_ENOMEM (no room: nothing changed but names of handlers), WD_EGONE (a job named is
 * not there, or not in a state that allows it: nothing changed), WD_EINVAL (ops are not such
 * records, exclude each other, or are more than 2 MiB). */
int wd_core_submit(wd_core *c, const uint8_t *ops, size_t n, uint64_t *out_ids, uint32_t ids_max,
                   uint32_t *out_count);
/* Owned jobs that ended, or were moved, since Python last closed them, oldest first: at most `most`
 * records ENDED (ID, DUE = when the last attempt began or 0, AT, FAILURES, LOST, REASON = state,
 * NUMBER = why it died, OWNER, TEXT = its error or result) at *out_p until the next call. WD_OK or
 * WD_ENOMEM. */
int wd_core_ended(wd_core *c, uint32_t most, const uint8_t **out_p, size_t *out_n);
/* One entry of the PUT table; its bytes are the core's, valid until the next change. */
typedef struct {
    const uint8_t *key;
    size_t key_n;
    const uint8_t *blob;
    size_t blob_n;
    uint8_t kind;
} wd_core_entry;
/* Walk the PUT table: *cursor 0 at first. WD_OK; WD_EAGAIN: no more. */
int wd_core_table_next(const wd_core *c, uint32_t *cursor, wd_core_entry *out);
/* The blob of one entry, the core's own, valid until the next change. WD_OK or WD_EGONE. */
int wd_core_table_get(const wd_core *c, uint8_t kind, const uint8_t *key, size_t n,
                      const uint8_t **out_blob, size_t *out_n);
/* Walk the jobs with OWNER: *cursor 0 at first. WD_OK with *out; WD_EAGAIN: none among the next
 * rows, go on; WD_EGONE: no more. owner is the core's, valid until the next change. */
typedef struct {
    uint64_t id;
    int64_t due_ms;
    const uint8_t *owner;
    size_t owner_n;
    int state;
} wd_core_owned;
int wd_core_owned_next(const wd_core *c, uint32_t *cursor, wd_core_owned *out);
/* The state (enum wd_state) in which a job is, 0 = there is none of this id, or it has gone. */
int wd_core_job_state(const wd_core *c, uint64_t id);

/* Where the axes stand, and what they jumped over since this was last asked: (from, to], 0 and 0 =
 * nothing. */
typedef struct {
    int64_t wall_ms, logical_ms, rel_ms;
    int64_t wall_from_ms, wall_to_ms, rel_from_ms, rel_to_ms;
} wd_core_times;
void wd_core_times_get(wd_core *c, wd_core_times *out);
/* Python's alarms: a round begins when logical now or rel now comes to it. INT64_MAX = never; one
 * whose time has come rings once. */
void wd_core_set_alarms(wd_core *c, int64_t wall_ms, int64_t rel_ms);
/* 1: an alarm's time has come, or jobs with OWNER have ended and are not CLOSED. */
int wd_core_wants_python(const wd_core *c);
/* CLOCK ACCEPT: logical now = wall. WD_OK or a status. */
int wd_core_accept_clock(wd_core *c);
/* The highest generation that any job's id has had. O(slots). */
uint32_t wd_core_generation_max(const wd_core *c);
/* No id made from now on has a lower generation (a restored store: ids of the time behind its
 * backup stay unused). WD_OK; WD_EINVAL: not 1 .. 2^25 - 1, or not started; or a status. */
int wd_core_raise_generations(wd_core *c, uint32_t generation);

/* What the engine counts. Counters run from the start of the process. */
typedef struct {
    int64_t wall_ms, rel_ms, logical_ms;
    int64_t held_ms; /* logical now - wall: > 1000 is CLOCK_HELD */
    uint64_t clock_steps, suspends;
    uint64_t created, fired, leased, acked, failed, timed_out, lost, released, unsent, cancelled;
    uint64_t expired, died, dead_dropped, ring_dropped, once_dropped, texts_dropped;
    uint64_t payload_corrupt; /* grants that found one changed in memory; the newest one's job: */
    uint64_t corrupt_id, corrupt_handler;
    uint64_t ended_count, once_count, owned_ended_count, expiring_count, handlers_count,
        table_count, policies_count;
    uint64_t jobs_scheduled, jobs_held, jobs_ready, jobs_leased, jobs_dead;
} wd_engine_figures;
void wd_core_engine_figures(const wd_core *c, wd_engine_figures *out);

/* The name of a handler by its number. WD_OK; WD_EGONE: there is none. */
int wd_core_handler_name(const wd_core *c, uint32_t number, const uint8_t **out_name,
                         size_t *out_n);

/* One `when` of the protocol, for commands that Python reads. 0: *out_ms is unix time, 1: from now;
 * negative: -enum wd_when_error, nothing written. */
int wd_core_when(const uint8_t *text, size_t n, int64_t *out_ms);
/* Does anybody serve this handler: a LEASE since the start, one that waits, or defaults set? */
int wd_core_served(const wd_core *c, const uint8_t *name, size_t n);

/* The command table, for COMMAND: name, usage, argument counts without the name. WD_EGONE behind
 * it. */
int wd_core_command(uint32_t i, const char **out_name, const char **out_usage,
                    uint32_t *out_args_min, uint32_t *out_args_max);
/* Who may use what, for COMMAND and the tests: rows of the table (form ""), then forms that differ
 * (wd_command.h). roles: enum wd_role bits; limited: 1 = also with a token for some handlers only.
 * WD_EGONE behind them. */
int wd_core_right(uint32_t i, const char **out_command, const char **out_form, uint32_t *out_roles,
                  int *out_limited);
/* cffi: end */

#endif /* WD_CONTROL_H */
