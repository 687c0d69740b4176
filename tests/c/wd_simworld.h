/* wd_simworld.h -- a simulated world around the shipped core: clients, workers, a network, two
 * clocks and a keeper of the log, all from one seed, over the simulated disk.
 *
 * The world is given a core that Python has just recovered (fed connections, hand clock) and runs
 * it until this life of the server ends: killed, power cut, log failed, stopped. Real wire bytes go
 * in and out. Everything that a client was told is kept (wd_simoracle.c) and must still be true
 * after any later crash. At last faults end, and whatever is due has to finish in bounded simulated
 * time.
 *
 * The same seed gives the same world, byte for byte: wd_world_stats.hash.
 */
#ifndef WD_SIMWORLD_H
#define WD_SIMWORLD_H

#include "wd_simfs.h"

/* cffi: begin */
typedef struct wd_world wd_world;
typedef struct wd_core wd_core;
typedef struct wd_log wd_log;

/* How a life ended. */
enum wd_world_end {
    WORLD_KILLED = 1,    /* the process is gone, the machine goes on */
    WORLD_CUT = 2,       /* the power is off */
    WORLD_FAILED = 3,    /* the log failed: exit 74 */
    WORLD_STOPPED = 4,   /* in order: synced, marked clean */
    WORLD_DONE = 5,      /* the quiet phase is over: everything due has ended */
    WORLD_VIOLATION = 6, /* a promise was broken: wd_world_violation */
    WORLD_ASKS = 7       /* not over: it is time to begin a checkpoint, or to look how far one is */
};

/* What the next life of the server begins with. */
typedef struct {
    int fsync_mode, commit_mode; /* enum wd_fsync, enum wd_commit_mode */
    uint64_t segment_bytes;
    uint32_t salt_seed;
    int64_t wall_ms, boot_ms, mono_ms;
    uint8_t boot_id[16];
    uint64_t
        power_off_steps; /* the power goes after so many steps of this start; 0 = it does not */
    int quiet;           /* 1: no faults any more */
} wd_world_plan;

typedef struct {
    uint64_t hash;
    uint64_t events; /* commands, replies, connections made and broken, faults, clock steps */
    uint64_t commands, replies, grants, completions, jobs, reads, checks, audits;
    uint64_t crashes, lies, rollbacks, saves;
    uint64_t true_ms; /* simulated time so far */
} wd_world_stats;

wd_world *wd_world_new(uint64_t seed, wd_simfs *fs);
void wd_world_free(wd_world *w);
/* One function of the core or the log that the world calls, by its name. 0 = no such name. */
int wd_world_bind(wd_world *w, const char *name, void *function);
/* 1 when every function is bound. */
int wd_world_is_bound(const wd_world *w);

/* Time passes while nothing runs; what the next life is to be. */
void wd_world_next_life(wd_world *w, wd_world_plan *out);
/* The start found records up to last_lsn, and the rel axis stands at rel_ms; what was told and lies
 * behind it is in doubt from now on, if it may be. 0, or -1: something that had to be there is not
 * (wd_world_violation). */
int wd_world_recovered(wd_world *w, uint64_t last_lsn, int64_t rel_ms);
/* The start refused the store. 0: it had reason to (a lying or misdirecting disk); -1: a violation.
 */
int wd_world_refused(wd_world *w, const char *rule);
/* Run until the life ends, or Python is asked for something; then it goes on without core and log
 * (NULL). enum wd_world_end. */
int wd_world_run(wd_world *w, wd_core *core, wd_log *log);
/* A checkpoint is being made (1), or is over (0). */
void wd_world_set_saving(wd_world *w, int saving);
/* The power is going to go in a few file calls: that is how this life ends. */
void wd_world_ends_by_cut(wd_world *w);
/* The power went while the server was starting: enum wd_world_end as of a run. */
void wd_world_start_cut(wd_world *w);
/* 1: all that the core had applied is written, so that the replay must give the same state. */
int wd_world_is_settled(const wd_world *w);
/* "" or "rule: what happened". */
const char *wd_world_violation(const wd_world *w);
/* Python has found one itself. */
void wd_world_violate(wd_world *w, const char *text);
/* A draw from the world's own randomness (seeds of crashes). */
uint64_t wd_world_draw(wd_world *w);
void wd_world_stats_get(const wd_world *w, wd_world_stats *out);
/* cffi: end */

#endif /* WD_SIMWORLD_H */
