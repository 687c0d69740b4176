/* wd_verbs_show.c -- JOB, JOBS, DEAD, COUNT, HANDLERS, HANDLER: what stands where.
 *
 * Maps are built in a scratch buffer while their members are counted; the header comes first on the
 * wire. Nothing here scans more than WD_PAGE_ROWS_MAX rows in one call; counts come from counters.
 */
#include "wd_verbs.h"

/* A map under construction. The first failure (no memory) sticks. */
typedef struct {
    wd_buf *b;
    uint32_t pairs;
    int status;
    int resp;
} map;

static wd_span text(const char *s)
{
    return (wd_span){(const uint8_t *)s, strlen(s)};
}

static map map_begin(wd_call *k)
{
    k->c->scratch.n = 0;
    return (map){.b = &k->c->scratch, .resp = k->s->resp, .status = WD_OK};
}

static void name(map *m, const char *s)
{
    m->pairs++;
    if (m->status == WD_OK) m->status = wd_reply_bulk(m->b, text(s));
}

static void put_int(map *m, const char *field, int64_t v)
{
    name(m, field);
    if (m->status == WD_OK) m->status = wd_reply_int(m->b, v);
}

static void put_text(map *m, const char *field, wd_span s)
{
    name(m, field);
    if (m->status == WD_OK) m->status = wd_reply_bulk(m->b, s);
}

static void put_or_nil(map *m, const char *field, wd_span s)
{
    name(m, field);
    if (m->status == WD_OK) m->status = s.n ? wd_reply_bulk(m->b, s) : wd_reply_nil(m->b, m->resp);
}

static void put_time(map *m, const char *field, int64_t ms, int64_t none)
{
    name(m, field);
    if (m->status == WD_OK)
        m->status = ms == none ? wd_reply_nil(m->b, m->resp) : wd_reply_int(m->b, ms);
}

static void put_id(map *m, uint64_t id)
{
    name(m, "id");
    if (m->status == WD_OK) m->status = wd_reply_bulk_u64(m->b, id);
}

static int map_end(wd_call *k, const map *m)
{
    int status = m->status;
    if (status == WD_OK) status = wd_reply_map(&k->s->out, m->pairs, m->resp);
    if (status == WD_OK) status = wd_buf_put(&k->s->out, m->b->p, m->b->n);
    return status;
}

/* ---- JOB ---- */

static void put_attempts(map *m, const wd_run *run)
{
    name(m, "attempts");
    uint32_t n = run ? run->attempts_count : 0;
    if (m->status == WD_OK) m->status = wd_reply_array(m->b, n);
    for (uint32_t i = 0; i < n && m->status == WD_OK; i++) {
        const wd_attempt *a = &run->attempts[i];
        m->status = wd_reply_array(m->b, 4);
        if (m->status == WD_OK) m->status = wd_reply_int(m->b, a->attempt);
        if (m->status == WD_OK) m->status = wd_reply_int(m->b, a->started_ms);
        if (m->status == WD_OK) m->status = wd_reply_int(m->b, a->ended_ms);
        if (m->status == WD_OK) m->status = wd_reply_bulk(m->b, text(wd_reason_name(a->reason)));
    }
}

static void put_policy(map *m, const wd_policy *p)
{
    static const char *const kinds[] = {"fixed", "linear", "exp"};
    put_int(m, "retries", p->retries);
    put_int(m, "lost_max", p->lost);
    put_text(m, "backoff", text(kinds[p->backoff]));
    put_int(m, "backoff_base_ms", p->base_ms);
    put_int(m, "backoff_max_ms", p->max_ms);
    put_int(m, "lease_ms", p->lease_ms);
    put_int(m, "timeout_ms", p->timeout_ms);
}

static void put_summary(map *m, const wd_view *v)
{
    put_id(m, v->id);
    put_text(m, "handler", v->handler);
    put_text(m, "state", text(wd_state_name(v->state)));
    put_int(m, "due_ms", v->due_ms);
    put_or_nil(m, "key", v->key);
    put_int(m, "priority", v->priority);
    put_int(m, "attempt", v->attempt);
    put_int(m, "failures", v->failures);
    put_int(m, "lost", v->lost);
    put_int(m, "created_ms", v->created_ms);
    put_time(m, "ended_ms", v->ended_ms, 0);
    put_or_nil(m, "error", v->text);
}

static void put_live(map *m, const wd_view *v)
{
    put_summary(m, v);
    put_text(m, "payload", v->payload);
    put_or_nil(m, "meta", v->meta);
    put_or_nil(m, "group", v->group);
    put_or_nil(m, "run", v->run_id);
    put_or_nil(m, "date", v->date);
    put_time(m, "expire_ms", v->expire_ms, WD_NEVER_MS);
    put_policy(m, &v->policy);
    put_int(m, "cancel_asked", v->marked);
    put_time(m, "leased_ms", v->state == WD_LEASED ? v->started_ms : 0, 0);
    put_or_nil(m, "worker", v->worker);
    put_time(m, "lease_left_ms", v->state == WD_LEASED ? v->lease_left_ms : INT64_MIN, INT64_MIN);
    put_time(m, "timeout_left_ms", v->state == WD_LEASED ? v->timeout_left_ms : WD_NEVER_MS,
             WD_NEVER_MS);
    put_or_nil(m, "reason", v->state == WD_DEAD ? text(wd_reason_name(v->reason)) : WD_SPAN(""));
    put_attempts(m, v->run);
}

int wd_verb_job(wd_call *k)
{
    uint64_t id;
    wd_view v;
    if (!wd_arg_job(k, 1, &id)) return WD_DONE_FREE;
    if (!id || wd_engine_view(k->c->e, id, &v) != WD_OK)
        return wd_reply_nil(&k->s->out, k->s->resp) == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
    map m = map_begin(k);
    if (v.slot != WD_NIL) {
        put_live(&m, &v);
    } else { /* from the ended ring: what is still known */
        put_id(&m, v.id);
        put_text(&m, "handler", v.handler);
        put_text(&m, "state", text(wd_state_name(v.state)));
        put_int(&m, "ended_ms", v.ended_ms);
        put_or_nil(&m, "result", v.text);
    }
    return map_end(k, &m) == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
}

/* ---- JOBS, DEAD ---- */

typedef struct {
    uint32_t handler;       /* WD_NIL = any; WD_NIL - 1 = one that does not exist */
    int state;              /* WD_FREE = any */
    int64_t from_ms, to_ms; /* due on the wall clock, both inclusive */
    wd_span keyprefix;
    uint64_t count, cursor;
} filter;
enum { NO_SUCH_HANDLER = WD_NIL - 1 };

static int take_handler(wd_call *k, uint32_t i, uint32_t *out)
{
    wd_span handler;
    if (i >= k->argc) return (void)wd_refuse(k, "SYNTAX", "HANDLER needs a name behind it"), 0;
    if (!wd_arg_handler(k, i, &handler)) return 0;
    *out = wd_handler_find(k->c->names, handler);
    if (*out == WD_NIL) *out = NO_SUCH_HANDLER;
    return 1;
}

static int take_state(wd_call *k, uint32_t i, int *out)
{
    if (i >= k->argc) return (void)wd_refuse(k, "SYNTAX", "STATE needs a state behind it"), 0;
    wd_span s = k->argv[i];
    for (int state = WD_SCHEDULED; state <= WD_DEAD; state++) {
        const char *n = wd_state_name(state);
        size_t j = 0;
        while (j < s.n && n[j] && (s.p[j] | 0x20) == n[j])
            j++;
        if (j == s.n && !n[j]) {
            *out = state;
            return 1;
        }
    }
    (void)wd_refuse(k, "SYNTAX", "STATE \"%.*s\" is none of scheduled, held, ready, leased, dead",
                    WD_SHOW(s));
    return 0;
}

static int take_time(wd_call *k, uint32_t i, const char *what, int64_t *out)
{
    wd_when w;
    if (!wd_arg_when(k, i, what, &w)) return 0;
    *out = w.kind == WD_WHEN_REL ? wd_engine_wall_ms(k->c->e) + w.ms : w.ms;
    return 1;
}

/* Refused if the option at i stands before it too; all options here are pairs from 1 on. */
static int is_first(wd_call *k, uint32_t i)
{
    const wd_span *argv = k->argv;
    for (uint32_t j = 1; j < i; j += 2) {
        size_t at = 0;
        while (at < argv[i].n && argv[j].n == argv[i].n &&
               (argv[i].p[at] | 0x20) == (argv[j].p[at] | 0x20))
            at++;
        if (at == argv[i].n && argv[j].n == at) {
            (void)wd_refuse(k, "SYNTAX", "option %.*s is given twice", WD_SHOW(argv[i]));
            return 0;
        }
    }
    return 1;
}

static int take_filter(wd_call *k, filter *f, int with_state)
{
    for (uint32_t i = 1; i < k->argc; i += 2) {
        wd_span word = k->argv[i];
        int ok;
        if (wd_word_is(word, "HANDLER")) {
            ok = take_handler(k, i + 1, &f->handler);
        } else if (with_state && wd_word_is(word, "STATE")) {
            ok = take_state(k, i + 1, &f->state);
        } else if (wd_word_is(word, "FROM")) {
            ok = take_time(k, i + 1, "FROM", &f->from_ms);
        } else if (wd_word_is(word, "TO")) {
            ok = take_time(k, i + 1, "TO", &f->to_ms);
        } else if (wd_word_is(word, "KEYPREFIX")) {
            ok = wd_arg_bytes(k, i, "KEYPREFIX", WD_NAME_BYTES_MAX, &f->keyprefix);
        } else if (wd_word_is(word, "COUNT")) {
            ok = wd_arg_number(k, i + 1, "COUNT", 1, WD_PAGE_MAX, &f->count);
        } else if (wd_word_is(word, "CURSOR")) {
            ok = wd_arg_number(k, i + 1, "CURSOR", 0, UINT32_MAX, &f->cursor);
        } else {
            return wd_unknown_option(k, i), 0;
        }
        if (!ok || !is_first(k, i)) return 0;
    }
    return 1;
}

static int passes(const filter *f, const wd_job *row, const wd_view *v)
{
    if (f->handler != WD_NIL && f->handler != row->handler) return 0;
    if (v->due_ms < f->from_ms || v->due_ms > f->to_ms) return 0;
    if (f->keyprefix.n == 0) return 1;
    return v->key.n >= f->keyprefix.n && memcmp(v->key.p, f->keyprefix.p, f->keyprefix.n) == 0;
}

/* [next cursor, [job maps]]: rows in the order of their slots; cursor = next slot to look at. */
static int page(wd_call *k, const filter *f)
{
    wd_engine *e = k->c->e;
    const wd_slab *slab = wd_engine_slab(e);
    const wd_job *rows = wd_slab_rows(slab);
    uint64_t top = wd_slab_top(slab), slot = f->cursor, end = slot + WD_PAGE_ROWS_MAX;
    wd_buf *items = &k->c->scratch, one = {0};
    uint32_t n = 0;
    int status = WD_OK;
    items->n = 0;
    for (; slot < top && slot < end && n < f->count && status == WD_OK; slot++) {
        const wd_job *row = &rows[slot];
        wd_view v;
        if (row->state == WD_FREE || row->state > WD_DEAD) continue;
        if (f->state != WD_FREE && f->state != (int)row->state) continue;
        wd_engine_view_slot(e, (uint32_t)slot, &v);
        if (!passes(f, row, &v)) continue;
        map m = {.b = &one, .resp = k->s->resp, .status = WD_OK};
        one.n = 0;
        put_summary(&m, &v);
        status = m.status;
        if (status == WD_OK) status = wd_reply_map(items, m.pairs, m.resp);
        if (status == WD_OK) status = wd_buf_put(items, one.p, one.n);
        n++;
    }
    wd_buf_free(&one);
    if (status == WD_OK) status = wd_reply_array(&k->s->out, 2);
    if (status == WD_OK) status = wd_reply_bulk_u64(&k->s->out, slot < top ? slot : 0);
    if (status == WD_OK) status = wd_reply_array(&k->s->out, n);
    if (status == WD_OK) status = wd_buf_put(&k->s->out, items->p, items->n);
    return status == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
}

static filter any_job(void)
{
    return (filter){
        .handler = WD_NIL, .state = WD_FREE, .from_ms = INT64_MIN, .to_ms = INT64_MAX, .count = 50};
}

int wd_verb_jobs(wd_call *k)
{
    filter f = any_job();
    return take_filter(k, &f, 1) ? page(k, &f) : WD_DONE_FREE;
}

int wd_verb_dead(wd_call *k)
{
    filter f = any_job();
    f.state = WD_DEAD;
    return take_filter(k, &f, 0) ? page(k, &f) : WD_DONE_FREE;
}

int wd_verb_count(wd_call *k)
{
    filter f = any_job();
    for (uint32_t i = 1; i < k->argc; i += 2) {
        if (wd_word_is(k->argv[i], "HANDLER")) {
            if (!take_handler(k, i + 1, &f.handler)) return WD_DONE_FREE;
        } else if (wd_word_is(k->argv[i], "STATE")) {
            if (!take_state(k, i + 1, &f.state)) return WD_DONE_FREE;
        } else {
            return wd_unknown_option(k, i);
        }
        if (!is_first(k, i)) return WD_DONE_FREE;
    }
    uint64_t n = 0;
    for (int state = WD_SCHEDULED; state <= WD_DEAD; state++) {
        if (f.state != WD_FREE && f.state != state) continue;
        if (f.handler == WD_NIL)
            n += wd_engine_count(k->c->e, state);
        else if (f.handler != NO_SUCH_HANDLER)
            n += wd_handler_at(k->c->names, f.handler)->count[state];
    }
    return wd_reply_int(&k->s->out, (int64_t)n) == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
}

/* ---- HANDLERS, HANDLER ---- */

static void put_handler(wd_call *k, map *m, uint32_t number)
{
    const wd_handler *h = wd_handler_at(k->c->names, number);
    uint32_t workers = wd_wait_count(k->c, number);
    uint32_t first = wd_ready_first(&h->ready, wd_slab_rows(wd_engine_slab(k->c->e)));
    int64_t oldest_ms = 0;
    if (first != WD_NIL) {
        wd_view v;
        wd_engine_view_slot(k->c->e, first, &v);
        oldest_ms = v.due_ms;
    }
    put_text(m, "handler", wd_handler_name(k->c->names, number));
    put_int(m, "scheduled", h->count[WD_SCHEDULED]);
    put_int(m, "held", h->count[WD_HELD]);
    put_int(m, "ready", h->count[WD_READY]);
    put_int(m, "leased", h->count[WD_LEASED]);
    put_int(m, "dead", h->count[WD_DEAD]);
    put_time(m, "oldest_due_ms", oldest_ms, 0);
    put_int(m, "workers", workers);
    put_text(m, "served",
             h->served || h->settings.published || workers ? WD_SPAN("yes") : WD_SPAN("never"));
    put_int(m, "paused", h->settings.paused);
    put_int(m, "concurrency", h->settings.concurrency);
    put_policy(m, &h->settings.policy);
}

static int show(wd_call *k, uint32_t number)
{
    map m = map_begin(k);
    put_handler(k, &m, number);
    return map_end(k, &m);
}

int wd_verb_handlers(wd_call *k)
{
    uint32_t n = wd_handlers_count(k->c->names);
    int status = wd_reply_array(&k->s->out, n);
    for (uint32_t i = 0; i < n && status == WD_OK; i++)
        status = show(k, i);
    return status == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
}

/* What a HANDLER call asks to change; values by bits. */
typedef struct {
    wd_policy policy;
    uint64_t concurrency;
    uint8_t set;
    uint8_t has_pause, paused, has_concurrency;
} change;

static int take_change(wd_call *k, change *ch)
{
    for (uint32_t i = 2; i < k->argc;) {
        int pause = wd_word_is(k->argv[i], "PAUSE"), resume = wd_word_is(k->argv[i], "RESUME");
        if ((pause || resume) && !ch->has_pause) {
            ch->has_pause = 1;
            ch->paused = (uint8_t)pause;
            i++;
        } else if (wd_word_is(k->argv[i], "CONCURRENCY") && !ch->has_concurrency) {
            if (!wd_arg_number(k, i + 1, "CONCURRENCY", 0, UINT32_MAX, &ch->concurrency)) return 0;
            ch->has_concurrency = 1;
            i += 2;
        } else {
            int took = wd_arg_policy(k, &i, &ch->policy, &ch->set);
            if (took == 0) return wd_unknown_option(k, i), 0;
            if (took < 0) return 0;
        }
    }
    return 1;
}

static int apply_change(wd_call *k, uint32_t number, const change *ch)
{
    wd_settings s = wd_handler_at(k->c->names, number)->settings;
    wd_settings_merge(&s, &ch->policy, ch->set);
    if (ch->set) s.published = 1;
    if (ch->has_pause) s.paused = ch->paused;
    if (ch->has_concurrency) s.concurrency = (uint32_t)ch->concurrency;
    if (memcmp(&s, &wd_handler_at(k->c->names, number)->settings, sizeof s) == 0) return WD_OK;
    return wd_engine_set_handler(k->c->e, number, &s);
}

int wd_verb_handler(wd_call *k)
{
    change ch = {.set = 0};
    wd_span handler;
    int all = k->argv[1].n == 1 && k->argv[1].p[0] == '*';
    if (!all && !wd_arg_handler(k, 1, &handler)) return WD_DONE_FREE;
    if (!take_change(k, &ch)) return WD_DONE_FREE;
    uint32_t first = 0, end = wd_handlers_count(k->c->names);
    if (!all) {
        first = wd_handler_find(k->c->names, handler);
        if (first == WD_NIL && k->argc == 2)
            return wd_refuse(k, "UNKNOWN", "no handler \"%.*s\" yet; HANDLERS lists them",
                             WD_SHOW(handler));
        if (first == WD_NIL) first = wd_engine_handler(k->c->e, handler);
        if (first == WD_NIL) return wd_no_room(k, "handlers");
        end = first + 1;
    }
    for (uint32_t i = first; i < end; i++)
        if (apply_change(k, i, &ch) != WD_OK) return wd_no_room(k, "memory");
    int status = all ? wd_reply_array(&k->s->out, end - first) : WD_OK;
    for (uint32_t i = first; i < end && status == WD_OK; i++)
        status = show(k, i);
    return status == WD_OK ? WD_DONE_GATED : WD_ENOMEM;
}
