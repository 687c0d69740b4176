/* wd_policy.h -- interned names: policies (how a job is retried and leased) and handlers. */
#ifndef WD_POLICY_H
#define WD_POLICY_H

#include "wd_arena.h"
#include "wd_index.h"
#include "wd_ready.h"
#include "wd_siphash.h"

enum wd_backoff { WD_BACKOFF_FIXED = 0, WD_BACKOFF_LINEAR = 1, WD_BACKOFF_EXP = 2 };

/* A policy: on disk as these 24 bytes. Times in ms. */
typedef struct {
    uint32_t base_ms, max_ms; /* backoff */
    uint32_t lease_ms;
    uint32_t timeout_ms; /* 0 = none */
    uint16_t retries, lost;
    uint8_t backoff; /* enum wd_backoff */
    uint8_t zero[3];
} wd_policy;
_Static_assert(sizeof(wd_policy) == 24, "on disk as it is");

enum {
    WD_POLICIES_MAX = 65000,
    WD_HANDLERS_MAX = 65000,
    WD_RETRIES_MAX = 1000,
    WD_NAME_BYTES_MAX = 200,
    WD_POLICY_RETRIES = 3, /* server defaults */
    WD_POLICY_LOST = 3,
    WD_POLICY_BASE_MS = 15 * 1000,
    WD_POLICY_MAX_MS = 3600 * 1000,
    WD_POLICY_LEASE_MS = 60 * 1000,
    WD_POLICY_TIMEOUT_MS = 300 * 1000
};
#define WD_SPAN_MS_MAX UINT32_C(2592000000) /* 30 days: longest lease, time-out, backoff */

extern const wd_policy wd_policy_default;

/* Which members of a handler's settings were set; the rest are the server's defaults. */
enum wd_setting {
    WD_SET_RETRIES = 1,
    WD_SET_LOST = 2,
    WD_SET_BACKOFF = 4,
    WD_SET_LEASE = 8,
    WD_SET_TIMEOUT = 16
};

/* A handler's settings: on disk as these 36 bytes. */
typedef struct {
    wd_policy policy;     /* members by `set`; the others hold the server's defaults */
    uint32_t concurrency; /* most leases at once, 0 = no limit */
    uint8_t set;          /* enum wd_setting */
    uint8_t paused;
    uint8_t published; /* a worker has said that it serves this handler */
    uint8_t zero[5];
} wd_settings;
_Static_assert(sizeof(wd_settings) == 36, "on disk as it is");

/* A handler: name, settings, counts, queue. */
typedef struct {
    uint32_t name; /* arena reference */
    uint8_t name_len;
    uint8_t dirty;      /* on the list of handlers to serve */
    uint8_t served;     /* leased from or waited for since the start; not logged */
    uint16_t policy;    /* number of its default policy; WD_NO_POLICY until first asked for */
    uint32_t count[9];  /* jobs by enum wd_state */
    uint32_t working;   /* place in the list of handlers with work + 1, 0 = not on it */
    uint64_t served_at; /* turn of the last grant, for least-recently-served */
    uint32_t waiters;   /* first waiting LEASE that names it (wd_command's), WD_NIL = none */
    wd_settings settings;
    wd_ready ready;
} wd_handler;
enum { WD_NO_POLICY = 0xffff };

/* Take over the members of `from` that `set` names (enum wd_setting); into->set grows. */
void wd_policy_merge(wd_policy *into, const wd_policy *from, uint8_t set);
void wd_settings_merge(wd_settings *into, const wd_policy *from, uint8_t set);

typedef struct wd_names wd_names;

/* The fields are wd_policy.c's; they stand here for what is read at every step of every verb. */
struct wd_names {
    uint8_t hash_key[16];
    wd_arena *arena;
    wd_policy *policies;
    wd_handler *handlers;
    uint32_t policies_count, handlers_count;
    wd_index *by_policy, *by_name;
    uint32_t found; /* by wd_handler_find the last time: commands name the same one many times */
};

wd_names *wd_names_new(const uint8_t hash_key[16], wd_arena *arena);
void wd_names_free(wd_names *n);

uint32_t wd_policies_count(const wd_names *n);
static inline const wd_policy *wd_policy_at(const wd_names *n, uint32_t number)
{
    WD_ASSERT(number < n->policies_count);
    return &n->policies[number];
}

/* Number of an equal policy; WD_NIL = none yet. */
uint32_t wd_policy_find(const wd_names *n, const wd_policy *p);
/* Add policy `number`, which must be the next. WD_OK, WD_ECORRUPT, WD_EFULL, WD_ENOMEM. */
int wd_policy_add(wd_names *n, uint32_t number, const wd_policy *p);

uint32_t wd_handlers_count(const wd_names *n);
static inline wd_handler *wd_handler_at(const wd_names *n, uint32_t number)
{
    WD_ASSERT(number < n->handlers_count);
    return &n->handlers[number];
}

uint32_t wd_handler_find(wd_names *n, wd_span name);
int wd_handler_add(wd_names *n, uint32_t number, wd_span name);
wd_span wd_handler_name(const wd_names *n, uint32_t number);

uint64_t wd_names_bytes(const wd_names *n);
int wd_names_check(const wd_names *n);

#endif /* WD_POLICY_H */
