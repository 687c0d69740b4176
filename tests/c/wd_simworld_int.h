/* wd_simworld_int.h -- what the parts of the simulated world share.
 *
 *   wd_simworld.c   the life of a server: time, disk faults, keeper, commits, crashes
 *   wd_simpeer.c    clients and workers, their connections, what they send and understand
 *   wd_simoracle.c  what was told to them, and whether it can be true
 *
 * Times: `true_ms` is the world's own clock, which nothing steps; the core sees wall, boot, mono.
 */
#ifndef WD_SIMWORLD_INT_H
#define WD_SIMWORLD_INT_H

#include "wd_core.h"
#include "wd_simworld.h"

enum {
    SIM_PRODUCERS = 2,
    SIM_WORKERS = 3,
    SIM_PEERS = SIM_PRODUCERS + SIM_WORKERS + 1, /* the last one reads */
    SIM_LINKS = 2,                               /* of a worker: one leases, one says outcomes */
    SIM_PENDING = 64,
    SIM_HELD = 12,
    SIM_JOBS = 2048,
    SIM_PIPE_BYTES = 1 << 17, /* of commands on their way */
    SIM_DOWN_BYTES = 1 << 20, /* of replies: of more than one pipe of commands */
    SIM_KEYS = 6,
    SIM_EPOCHS = 16,
    SIM_FRAME_BYTES = 1 << 20
};
#define SIM_NEVER INT64_MAX

/* The shipped functions; bound by name, so that the world drives whichever build Python has loaded.
 */
typedef struct {
    int (*wd_core_tick)(wd_core *, int64_t, int64_t, int64_t);
    int (*wd_core_commit)(wd_core *);
    int (*wd_core_fed_open)(wd_core *, const char *, uint64_t *);
    int (*wd_core_fed_input)(wd_core *, uint64_t, const uint8_t *, size_t);
    int (*wd_core_fed_eof)(wd_core *, uint64_t);
    int (*wd_core_fed_ready)(wd_core *, uint64_t *);
    int (*wd_core_fed_output)(wd_core *, uint64_t, const uint8_t **, size_t *, int *);
    int (*wd_core_fed_taken)(wd_core *, uint64_t, size_t);
    int (*wd_core_fed_blocked)(wd_core *, uint64_t, int);
    int (*wd_core_fed_close)(wd_core *, uint64_t);
    int (*wd_core_take_batch)(wd_core *, const uint8_t **, size_t *, uint64_t *);
    int (*wd_core_batch_durable)(wd_core *, uint64_t);
    int (*wd_core_set_disk_room)(wd_core *, int);
    void (*wd_core_stop_reading)(wd_core *);
    int (*wd_core_check)(const wd_core *);
    uint64_t (*wd_core_lsn)(const wd_core *);
    uint64_t (*wd_core_durable_lsn)(const wd_core *);
    int (*wd_log_append)(wd_log *, uint8_t *, const wd_frame_meta *);
    int (*wd_log_prepare)(wd_log *);
    int (*wd_log_sync)(wd_log *);
    int (*wd_log_mark)(wd_log *, int);
    void (*wd_log_stats_get)(wd_log *, wd_log_stats *);
} sim_api;

typedef struct {
    uint64_t term, lsn;
} sim_fence;

/* ---- what was told about one job (one token) ---- */

enum sim_end { SIM_LIVE = 0, SIM_SUCCEEDED, SIM_CANCELLED, SIM_DEAD, SIM_EXPIRED };

typedef struct {
    int asked;       /* SCHEDULE was sent at least once */
    int refused;     /* answers that made nothing: errors, or another job holds the key */
    int in_doubt;    /* calls whose reply was lost */
    uint64_t id;     /* 0 = not known */
    uint64_t id_lsn; /* as of every *_lsn: the reply depended on no record behind this one */
    int id_confirmed;
    int64_t asked_ms;     /* when it was first asked for */
    int64_t confirmed_ms; /* when its id was first read */
    int once, poison, far, expires;
    int key;             /* which of the SIM_KEYS; -1 = none */
    int64_t key_lost_ms; /* another job was read to have been made with its key; 0 = none */
    int rel;             /* due_ms is on the rel axis, else on the wall's */
    uint32_t epoch;      /* of the wall clock, when it was first asked for */
    int64_t due_ms;      /* no run may begin before it */
    int64_t delay_ms, first_rel_ms;
    int end; /* enum sim_end */
    uint64_t end_lsn;
    int64_t ended_ms; /* when that was read */
    sim_fence completed;
    int maybe_acked, maybe_cancelled, maybe_failed;
    uint32_t grants;
    sim_fence fence; /* newest known grant */
    uint64_t fence_lsn;
    uint32_t attempt;
    int64_t read_ms;  /* when it was read */
    int64_t valid_ms; /* until then it is held for certain */
    uint64_t valid_lsn;
    int64_t term_ms; /* of the lease, or of the timeout where that is shorter */
} sim_job;

/* ---- peers ---- */

enum sim_request_kind {
    ASK_SCHEDULE,
    ASK_CANCEL,
    ASK_JOB,
    ASK_LEASE,
    ASK_ACK,
    ASK_DONE,
    ASK_FAIL,
    ASK_RELEASE,
    ASK_EXTEND,
    ASK_OTHER
};

typedef struct {
    int kind;
    uint32_t job;
    uint64_t id;      /* of the receipt */
    sim_fence fence;  /* of the receipt */
    sim_fence newest; /* the highest fence that anybody had read when it was sent */
    int64_t called_ms;
    int64_t until_ms; /* a verb: until then the lease was surely valid */
    int live;  /* JOB, CANCEL: the job was not known to have ended; a verb: the grant is sure */
    int again; /* this verb was said about this fence before */
} sim_request;

typedef struct {
    uint64_t handle; /* 0 = no connection */
    int finished;    /* the server has closed it */
    uint8_t *up, *down;
    size_t up_n, down_n;
    int64_t up_ms, down_ms; /* when the bytes arrive */
    int64_t blocked_ms;     /* the peer reads on then */
    uint64_t down_lsn;
    sim_request pending[SIM_PENDING];
    uint32_t first, count;
} sim_link;

/* A grant that a worker works on. */
typedef struct {
    uint32_t job;
    uint64_t id;
    sim_fence fence;
    int64_t act_ms, until_ms; /* next act; until then the lease is surely valid (true time) */
    int64_t lease_ms, term_ms;
    int verb;       /* what it will say; -1 = it hangs */
    int said, sure; /* said: verbs sent; sure: no crash has put the grant in doubt */
    int timeout;
} sim_held;

enum sim_peer_kind { SIM_PRODUCER, SIM_WORKER, SIM_READER };

typedef struct {
    int kind;
    uint32_t number;
    sim_link link[SIM_LINKS];
    int64_t next_ms;
    sim_held held[SIM_HELD];
    uint32_t held_n;
    uint32_t retry[SIM_PENDING]; /* jobs whose SCHEDULE to repeat */
    uint32_t retry_n;
} sim_peer;

/* Which faults this seed has, and how often: in 1/1000 of the occasions. */
typedef struct {
    unsigned lag_ms, cut, worker_kill, worker_pause, block, cancel, fail, release, extend, hang;
    unsigned expire, keys, no_once, poison, far, absolute, split, pipelined, step, suspend, slow;
    unsigned full, save, think_ms;
} sim_swarm;

struct wd_world {
    sim_api api;
    wd_simfs *fs;
    uint64_t rng;
    sim_swarm swarm;
    char violation[256];
    wd_world_stats stats;

    int64_t true_ms, boot_base_ms, suspended_ms, wall_offset_ms, wall_max_ms;
    int64_t rel_minus_boot_ms; /* as Python's start computed it */
    int steps_left;
    int64_t epoch_max_ms[SIM_EPOCHS]; /* highest wall time between two steps back */
    uint32_t epoch;
    uint64_t boot, rel_boot;
    int64_t ended_ms; /* when the last life ended */

    /* this life */
    uint32_t life;
    wd_world_plan plan;
    wd_core *core;
    wd_log *log;
    int quiet, failed, stopping;
    int64_t quiet_until_ms;
    uint64_t budget; /* events at which this life ends */
    int ends_by;     /* enum wd_world_end */
    int fault_kind;  /* -1 none, else enum wd_sim_fault */
    int may_fail;    /* what was done to the disk may end the log */
    int lied;        /* a sync or a write has lied since the last proof */
    int unsynced;    /* the last life was one of mode interval or off */
    uint64_t synced_lsn;
    int may_lose;      /* the last life's mode and end allow the loss of what no sync covered */
    uint64_t must_lsn; /* the next start has to find all up to it */
    int settled;
    uint32_t checks_in;

    /* keeper */
    int64_t keeper_ms, keeper_look_ms, marked_ms, synced_ms;
    uint64_t keeper_lsn, keeper_rotations;
    int room;
    int saving;            /* a checkpoint is being made */
    uint32_t ask_in;       /* steps until Python is asked about it */
    int64_t full_until_ms; /* the disk is full until then; SIM_NEVER = it is not */
    uint64_t proven_lsn;   /* marked while no lie had been told, or after it by an honest MARK */

    /* a frame on its way to the disk (driven commits) */
    uint8_t *frame;
    uint64_t flight_lsn; /* 0 = none */
    int64_t flight_ms;

    sim_peer peers[SIM_PEERS];
    sim_job *jobs; /* index = token */
    uint32_t jobs_n;
    sim_fence newest;
    uint32_t audit_at;
};

/* ---- wd_simworld.c ---- */
uint64_t sim_draw(wd_world *w);
uint64_t sim_below(wd_world *w, uint64_t n);        /* 0 .. n-1 */
int sim_chance(wd_world *w, unsigned per_mille);    /* never in the quiet phase */
void sim_mix(wd_world *w, const void *p, size_t n); /* into the trace hash */
void sim_event(wd_world *w, uint64_t what);         /* counts, and goes into the hash */
int64_t sim_wall_ms(const wd_world *w);
int64_t sim_rel_ms(const wd_world *w);
/* The highest wall time since an epoch of it began. */
int64_t sim_wall_since_ms(const wd_world *w, uint32_t epoch);
void sim_violate(wd_world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- wd_simpeer.c ---- */
void sim_peers_new(wd_world *w);
void sim_peers_free(wd_world *w);
/* The server is gone: what was on its way is lost. */
void sim_peers_cut(wd_world *w);
int64_t sim_peers_next_ms(const wd_world *w);
/* Do what is due by now: deliver, think, send. 1 when bytes were given to the core. */
int sim_peers_act(wd_world *w);
/* Take what the core releases. */
void sim_peers_collect(wd_world *w);

/* ---- wd_simoracle.c ---- */
sim_job *sim_job_new(wd_world *w, uint32_t *out_token);
/* A reply was read. arrived: the record behind which it does not depend on anything. */
void sim_judge(wd_world *w, sim_peer *peer, sim_link *link, const sim_request *r, wd_span reply);
/* The reply of a request will never come. */
void sim_in_doubt(wd_world *w, const sim_request *r);
/* Records behind last_lsn are gone: forget what depended on them. */
void sim_roll_back(wd_world *w, uint64_t last_lsn);
/* Every lease that was surely valid at before_ms has got a full fresh term just now. */
void sim_fresh_terms(wd_world *w, int64_t before_ms);
/* A job that has to end and is not known to have; WD_NIL = none. Looks from token `from` on. */
uint32_t sim_unended(const wd_world *w, uint32_t from);

int sim_fence_cmp(sim_fence a, sim_fence b);

#endif /* WD_SIMWORLD_INT_H */
