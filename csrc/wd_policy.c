/* wd_policy.c -- interned policies and handlers: numbers that rows and records hold.
 *
 * Both are only ever added, in the order of their numbers, by records; a handler or a policy is
 * never forgotten (65,000 of each; the limit is named when it is met).
 */
#include "wd_policy.h"

const wd_policy wd_policy_default = {
    .base_ms = WD_POLICY_BASE_MS,
    .max_ms = WD_POLICY_MAX_MS,
    .lease_ms = WD_POLICY_LEASE_MS,
    .timeout_ms = WD_POLICY_TIMEOUT_MS,
    .retries = WD_POLICY_RETRIES,
    .lost = WD_POLICY_LOST,
    .backoff = WD_BACKOFF_EXP,
};

void wd_policy_merge(wd_policy *into, const wd_policy *from, uint8_t set)
{
    if (set & WD_SET_RETRIES) into->retries = from->retries;
    if (set & WD_SET_LOST) into->lost = from->lost;
    if (set & WD_SET_LEASE) into->lease_ms = from->lease_ms;
    if (set & WD_SET_TIMEOUT) into->timeout_ms = from->timeout_ms;
    if (set & WD_SET_BACKOFF) {
        into->backoff = from->backoff;
        into->base_ms = from->base_ms;
        into->max_ms = from->max_ms;
    }
}

void wd_settings_merge(wd_settings *into, const wd_policy *from, uint8_t set)
{
    wd_policy_merge(&into->policy, from, set);
    into->set |= set;
}

wd_names *wd_names_new(const uint8_t hash_key[16], wd_arena *arena)
{
    wd_names *n = wd_zalloc(sizeof *n);
    if (!n) return NULL;
    memcpy(n->hash_key, hash_key, sizeof n->hash_key);
    n->arena = arena;
    n->policies = wd_reserve(sizeof(wd_policy) * WD_POLICIES_MAX);
    n->handlers = wd_reserve(sizeof(wd_handler) * WD_HANDLERS_MAX);
    n->by_policy = wd_index_new(WD_POLICIES_MAX);
    n->by_name = wd_index_new(WD_HANDLERS_MAX);
    if (n->policies && n->handlers && n->by_policy && n->by_name) return n;
    wd_names_free(n);
    return NULL;
}

void wd_names_free(wd_names *n)
{
    if (!n) return;
    for (uint32_t i = 0; n->handlers && i < n->handlers_count; i++)
        wd_ready_free(&n->handlers[i].ready);
    wd_unreserve(n->policies, sizeof(wd_policy) * WD_POLICIES_MAX);
    wd_unreserve(n->handlers, sizeof(wd_handler) * WD_HANDLERS_MAX);
    wd_index_free(n->by_policy);
    wd_index_free(n->by_name);
    wd_release(n);
}

static uint32_t hash_of(const wd_names *n, wd_span s)
{
    return (uint32_t)wd_siphash(n->hash_key, s).lo;
}

static wd_span policy_span(const wd_policy *p)
{
    return (wd_span){(const uint8_t *)p, sizeof *p};
}

uint32_t wd_policies_count(const wd_names *n)
{
    return n->policies_count;
}

uint32_t wd_policy_find(const wd_names *n, const wd_policy *p)
{
    uint32_t i = wd_index_first(n->by_policy, hash_of(n, policy_span(p)));
    while (i != WD_NIL && memcmp(&n->policies[i], p, sizeof *p) != 0)
        i = wd_index_next(n->by_policy, i);
    return i;
}

int wd_policy_add(wd_names *n, uint32_t number, const wd_policy *p)
{
    if (number != n->policies_count) return WD_ECORRUPT;
    if (number >= WD_POLICIES_MAX) return WD_EFULL;
    n->policies[number] = *p;
    n->policies_count++;
    wd_index_add(n->by_policy, number, hash_of(n, policy_span(p)));
    return WD_OK;
}

uint32_t wd_handlers_count(const wd_names *n)
{
    return n->handlers_count;
}

wd_span wd_handler_name(const wd_names *n, uint32_t number)
{
    const wd_handler *h = wd_handler_at(n, number);
    return (wd_span){wd_arena_at(n->arena, h->name), h->name_len};
}

uint32_t wd_handler_find(wd_names *n, wd_span name)
{
    if (n->found < n->handlers_count && wd_span_eq(wd_handler_name(n, n->found), name))
        return n->found;
    uint32_t i = wd_index_first(n->by_name, hash_of(n, name));
    while (i != WD_NIL && !wd_span_eq(wd_handler_name(n, i), name))
        i = wd_index_next(n->by_name, i);
    if (i != WD_NIL) n->found = i;
    return i;
}

int wd_handler_add(wd_names *n, uint32_t number, wd_span name)
{
    if (number != n->handlers_count || name.n == 0 || name.n > WD_NAME_BYTES_MAX)
        return WD_ECORRUPT;
    if (number >= WD_HANDLERS_MAX) return WD_EFULL;
    wd_handler *h = &n->handlers[number];
    *h = (wd_handler){.name_len = (uint8_t)name.n,
                      .policy = WD_NO_POLICY,
                      .waiters = WD_NIL,
                      .settings.policy = wd_policy_default};
    int status = wd_arena_put(n->arena, name, &h->name);
    if (status != WD_OK) return status;
    status = wd_ready_init(&h->ready);
    if (status != WD_OK) {
        wd_arena_drop(n->arena, h->name, name.n);
        return status;
    }
    n->handlers_count++;
    wd_index_add(n->by_name, number, hash_of(n, name));
    return WD_OK;
}

uint64_t wd_names_bytes(const wd_names *n)
{
    return n->policies_count * sizeof(wd_policy) + n->handlers_count * sizeof(wd_handler);
}

int wd_names_check(const wd_names *n)
{
    uint32_t counts = (wd_index_count(n->by_name) ^ n->handlers_count) |
                      (wd_index_count(n->by_policy) ^ n->policies_count);
    return wd_index_check(n->by_name) & wd_index_check(n->by_policy) & (counts == 0);
}
