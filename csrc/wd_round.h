/* wd_round.h -- the order of things in one round, and the structure of a core. Internal: what is
 * not part of the core's own composition reaches it through wd_core.h.
 */
#ifndef WD_ROUND_H
#define WD_ROUND_H

#include "wd_clock.h"
#include "wd_core.h"
#include "wd_net.h"
#include "wd_save.h"

typedef struct wd_save wd_save;

struct wd_core {
    wd_core_options options;
    wd_engine *engine;
    wd_commands *commands;
    wd_commit *commit;
    wd_conns *conns;
    wd_net *net;   /* NULL without sockets */
    wd_clocks now; /* of this round */
    int started;   /* replay is over */
    int failure;   /* the log's, for good */
    int disk_room; /* enum wd_disk_room, as the owner told */
    int tick_more; /* the last tick left work */
    uint32_t herd; /* connections that the last round released, having waited for the thread */
    uint64_t rounds, ticks_cut, gathers;
    wd_hist round_cpu_ns;
    wd_buf ended;                        /* what wd_core_ended showed last */
    wd_save *save;                       /* the last checkpoint; NULL: there was none */
    int64_t alarm_wall_ms, alarm_rel_ms; /* when Python wants a round, WD_NEVER_MS = never */
    int64_t stayed_ms;                   /* mono: of the last round of the last wd_round_stay */
};

/* Read the clocks (unless they are moved by hand), apply limits in time, tick. */
void wd_round_begin(wd_core *c);
/* Serve, resume, commit, release, send; arm the timers. Returns commands waiting for Python or
 * WD_EIO. */
int wd_round_finish(wd_core *c);
/* Arm the timers for what the core has to do next, and for Python's alarms that are to come. */
void wd_round_arm(wd_core *c);
/* A whole round over sockets. */
int wd_round_poll(wd_core *c, int timeout_ms);
/* A round over what is ready, and more of them while the sockets alone have something to do, as
 * wd_core_stay tells. */
int wd_round_stay(wd_core *c);

#endif /* WD_ROUND_H */
