/* wd_statehash.c -- the hash of the logged state: equal before and after any restart.
 *
 * An order-free sum of one 64-bit hash per thing: rows (READY counts as SCHEDULED: it is derived),
 * ended jobs, tokens, PUT entries, names, settings. Not in it: links, lease ends, the free list,
 * and whatever else a restart makes anew.
 */
#include "wd_state.h"

typedef struct {
    uint64_t h;
} mixer;

static void mix(mixer *m, uint64_t v)
{
    m->h = (m->h ^ v) * UINT64_C(0x9fb21c651e98df25);
    m->h ^= m->h >> 32;
}

static void mix_span(mixer *m, wd_span s)
{
    mix(m, s.n);
    while (s.n >= 8) {
        mix(m, wd_get_u64(s.p));
        s = (wd_span){s.p + 8, s.n - 8};
    }
    uint64_t last = 0;
    if (s.n) memcpy(&last, s.p, s.n);
    mix(m, last);
}

static uint64_t finish(mixer m)
{
    mix(&m, UINT64_C(0xa0761d6478bd642f));
    return m.h;
}

static void mix_run(const wd_engine *e, const wd_run *run, mixer *m)
{
    mix(m, run->term);
    mix(m, run->lsn);
    mix(m, (uint64_t)run->started_ms);
    mix(m, run->lease_ms);
    mix(m, run->fence);
    mix_span(m, wd_text(e, run->worker, run->worker_len));
    for (uint32_t i = 0; i < run->attempts_count; i++) {
        mix(m, (uint64_t)run->attempts[i].started_ms);
        mix(m, (uint64_t)run->attempts[i].ended_ms);
        mix(m, (uint64_t)run->attempts[i].attempt << 8 | run->attempts[i].reason);
    }
}

static void mix_side(const wd_engine *e, const wd_side *b, mixer *m)
{
    mix(m, (uint64_t)b->expire_ms);
    mix(m, (uint64_t)b->expire_rel << 2 | (uint64_t)b->keyed << 1 | b->on_ended);
    mix(m, b->reason);
    mix(m, (uint64_t)b->ended_ms);
    mix(m, b->on_ended ? b->ended_lsn : 0);
    mix_span(m, wd_text(e, b->key, b->key_len));
    mix_span(m, wd_text(e, b->meta, b->meta_len));
    mix_span(m, wd_text(e, b->group, b->group_len));
    mix_span(m, wd_text(e, b->owner, b->owner_len));
    mix_span(m, wd_text(e, b->text, b->text_len));
    if (b->run != WD_NIL) mix_run(e, wd_run_at(e->slab, b->run), m);
}

static uint64_t hash_row(const wd_engine *e, uint32_t slot)
{
    const wd_job *row = &e->rows[slot];
    const wd_run *run = wd_job_run(e->slab, row);
    mixer m = {1};
    mix(&m, wd_job_id(e->slab, slot));
    mix(&m, row->state == WD_READY ? WD_SCHEDULED : row->state);
    mix(&m, (uint64_t)(row->state == WD_LEASED ? run->due_ms : row->due_ms));
    mix(&m, (uint64_t)row->rel << 1 | row->marked);
    mix(&m, row->lsn);
    mix(&m, row->created_ms);
    mix(&m, (uint64_t)row->lost << 32 | row->failures);
    mix(&m, (uint64_t)row->attempt << 32 | (uint64_t)row->priority << 24);
    mix(&m, (uint64_t)row->handler << 16 | row->policy);
    mix(&m, row->state == WD_DEAD ? run->died_lsn : 0);
    mix_span(&m, wd_text(e, row->payload, row->payload_len));
    const wd_side *b = wd_job_side(e->slab, row);
    if (b) mix_side(e, b, &m);
    return finish(m);
}

static uint64_t hash_ended(const wd_engine *e, const wd_ended *x)
{
    mixer m = {2};
    mix(&m, x->id);
    mix(&m, x->term);
    mix(&m, x->lsn);
    mix(&m, x->key.lo ^ x->key.hi);
    mix(&m, (uint64_t)x->ended_ms);
    mix(&m, (uint64_t)x->rel_ms);
    mix(&m, (uint64_t)x->handler << 16 | (uint64_t)x->state << 8 | x->verb);
    mix_span(&m, wd_text(e, x->text, x->text_len));
    return finish(m);
}

static uint64_t hash_once(const wd_once *x)
{
    mixer m = {3};
    mix(&m, x->token.lo);
    mix(&m, x->token.hi);
    mix(&m, x->id);
    mix(&m, (uint64_t)x->rel_ms);
    mix(&m, x->word);
    return finish(m);
}

static uint64_t hash_names(const wd_engine *e)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < wd_handlers_count(e->names); i++) {
        const wd_settings *s = &wd_handler_at(e->names, i)->settings;
        mixer m = {4};
        mix(&m, i);
        mix_span(&m, wd_handler_name(e->names, i));
        mix_span(&m, (wd_span){(const uint8_t *)s, sizeof *s});
        sum += finish(m);
    }
    for (uint32_t i = 0; i < wd_policies_count(e->names); i++) {
        mixer m = {5};
        mix(&m, i);
        mix_span(&m, (wd_span){(const uint8_t *)wd_policy_at(e->names, i), sizeof(wd_policy)});
        sum += finish(m);
    }
    return sum;
}

static uint64_t hash_table(const wd_engine *e)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < wd_table_top(e->table); i++) {
        wd_entry entry;
        if (wd_table_at(e->table, i, &entry) != WD_OK) continue;
        mixer m = {6};
        mix(&m, entry.kind);
        mix_span(&m, entry.key);
        mix_span(&m, entry.blob);
        sum += finish(m);
    }
    return sum;
}

uint64_t wd_engine_hash(const wd_engine *e)
{
    uint64_t sum = hash_names(e) + hash_table(e) + e->lsn;
    mixer m = {7};
    mix(&m, wd_slab_floor(e->slab));
    sum += finish(m);
    for (uint32_t slot = 0; slot < wd_slab_top(e->slab); slot++)
        if (e->rows[slot].state != WD_FREE) sum += hash_row(e, slot);
    for (uint64_t i = 0; i < wd_ring_ended_count(e->ring); i++)
        sum += hash_ended(e, wd_ring_ended_at(e->ring, i));
    for (uint64_t i = 0; i < wd_ring_once_count(e->ring); i++)
        sum += hash_once(wd_ring_once_at(e->ring, i));
    return sum;
}
