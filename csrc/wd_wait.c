/* wd_wait.c -- LEASE calls that wait for work.
 *
 * A wait is in the list of each handler that it names and that exists, and, if it has patterns or
 * names that do not exist yet, in one list of patterns. Lists are in order of arrival, so the
 * worker that waits longest is served first. A heap by `until` finds those whose time is over.
 */
#include "wd_verbs.h"

enum { ROOM_MIN = 16 };

/* ---- names ---- */

/* Cut the next name off a comma list; 0 at its end. */
static int next_name(wd_span *rest, wd_span *out)
{
    if (rest->n == 0) return 0;
    const uint8_t *comma = memchr(rest->p, ',', rest->n);
    size_t n = comma ? (size_t)(comma - rest->p) : rest->n;
    *out = (wd_span){rest->p, n};
    size_t used = comma ? n + 1 : n;
    *rest = (wd_span){rest->p + used, rest->n - used};
    return 1;
}

static int is_pattern(wd_span name)
{
    return name.n > 0 && name.p[name.n - 1] == '*';
}

static int matches(wd_span pattern, wd_span name)
{
    if (!is_pattern(pattern)) return wd_span_eq(pattern, name);
    size_t n = pattern.n - 1;
    return name.n >= n && memcmp(name.p, pattern.p, n) == 0;
}

static int any_matches(wd_span names, wd_span handler)
{
    wd_span name;
    while (next_name(&names, &name))
        if (matches(name, handler)) return 1;
    return 0;
}

uint32_t wd_wait_numbers(wd_commands *c, wd_span names)
{
    uint32_t n = 0;
    wd_span name, rest = names;
    int patterns = 0;
    while (next_name(&rest, &name)) {
        patterns |= is_pattern(name);
        uint32_t number = is_pattern(name) ? WD_NIL : wd_handler_find(c->names, name);
        if (number == WD_NIL) continue;
        wd_handler_at(c->names, number)->served = 1;
        uint32_t i = 0;
        while (i < n && c->numbers[i] != number)
            i++;
        if (i == n) c->numbers[n++] = number;
    }
    if (!patterns) return n;
    uint32_t named = n;
    for (uint32_t i = 0; i < wd_engine_working_count(c->e); i++) {
        uint32_t number = wd_engine_working_at(c->e, i), j = 0;
        if (!any_matches(names, wd_handler_name(c->names, number))) continue;
        while (j < named && c->numbers[j] != number)
            j++;
        wd_handler_at(c->names, number)->served = 1;
        if (j == named) c->numbers[n++] = number;
    }
    return n;
}

void wd_wait_publish(wd_commands *c, wd_span names)
{
    wd_span name;
    while (next_name(&names, &name)) {
        uint32_t number = is_pattern(name) ? WD_NIL : wd_engine_handler(c->e, name);
        if (number == WD_NIL) continue;
        wd_settings s = wd_handler_at(c->names, number)->settings;
        if (s.published) continue;
        s.published = 1;
        (void)wd_engine_set_handler(c->e, number, &s); /* without memory the next LEASE says it */
    }
}

/* ---- nodes: circular lists by handler, in order of arrival ---- */

static uint32_t *list_of(wd_commands *c, uint32_t handler)
{
    return handler == WD_NIL ? &c->patterns : &wd_handler_at(c->names, handler)->waiters;
}

static int node_room(wd_commands *c)
{
    if (c->nodes_free != WD_NIL || c->nodes_count < c->nodes_room) return WD_OK;
    uint32_t room = c->nodes_room ? c->nodes_room * 2 : ROOM_MIN;
    wd_node *nodes = wd_resize(c->nodes, room * sizeof *nodes);
    if (!nodes) return WD_ENOMEM;
    c->nodes = nodes;
    c->nodes_room = room;
    return WD_OK;
}

static int node_add(wd_commands *c, wd_wait *w, uint32_t handler)
{
    if (node_room(c) != WD_OK) return WD_ENOMEM;
    uint32_t i = c->nodes_free, *first = list_of(c, handler);
    if (i != WD_NIL)
        c->nodes_free = c->nodes[i].sibling;
    else
        i = c->nodes_count++;
    c->nodes[i] =
        (wd_node){.wait = w, .handler = handler, .next = i, .prev = i, .sibling = w->nodes};
    w->nodes = i;
    if (*first == WD_NIL) {
        *first = i;
        return WD_OK;
    }
    wd_node *head = &c->nodes[*first];
    c->nodes[i].next = *first;
    c->nodes[i].prev = head->prev;
    c->nodes[head->prev].next = i;
    head->prev = i;
    return WD_OK;
}

static void nodes_drop(wd_commands *c, wd_wait *w)
{
    while (w->nodes != WD_NIL) {
        uint32_t i = w->nodes;
        wd_node *node = &c->nodes[i];
        uint32_t *first = list_of(c, node->handler);
        w->nodes = node->sibling;
        if (node->next == i) {
            *first = WD_NIL;
        } else {
            c->nodes[node->prev].next = node->next;
            c->nodes[node->next].prev = node->prev;
            if (*first == i) *first = node->next;
        }
        node->wait = NULL;
        node->sibling = c->nodes_free;
        c->nodes_free = i;
    }
}

/* ---- the heap by `until` ---- */

static void heap_set(wd_commands *c, uint32_t i, wd_wait *w)
{
    c->heap[i] = w;
    w->heap_at = i;
}

static void heap_fix(wd_commands *c, uint32_t i, wd_wait *w)
{
    while (i > 0 && w->until_ms < c->heap[(i - 1) / 2]->until_ms) {
        heap_set(c, i, c->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= c->heap_count) break;
        if (child + 1 < c->heap_count && c->heap[child + 1]->until_ms < c->heap[child]->until_ms)
            child++;
        if (c->heap[child]->until_ms >= w->until_ms) break;
        heap_set(c, i, c->heap[child]);
        i = child;
    }
    heap_set(c, i, w);
}

static int heap_add(wd_commands *c, wd_wait *w)
{
    if (c->heap_count == c->heap_room) {
        uint32_t room = c->heap_room ? c->heap_room * 2 : ROOM_MIN;
        wd_wait **heap = wd_resize(c->heap, room * sizeof *heap);
        if (!heap) return WD_ENOMEM;
        c->heap = heap;
        c->heap_room = room;
    }
    heap_fix(c, c->heap_count++, w);
    return WD_OK;
}

static void heap_drop(wd_commands *c, wd_wait *w)
{
    wd_wait *last = c->heap[--c->heap_count];
    if (last != w) heap_fix(c, w->heap_at, last);
}

/* ---- park, drop, wake ---- */

static int add_all(wd_commands *c, wd_wait *w)
{
    wd_span rest = {w->names, w->names_len}, name;
    int open = 0; /* a pattern, or a name that does not exist yet */
    while (next_name(&rest, &name)) {
        uint32_t number = is_pattern(name) ? WD_NIL : wd_handler_find(c->names, name);
        if (number == WD_NIL)
            open = 1;
        else if (node_add(c, w, number) != WD_OK)
            return WD_ENOMEM;
    }
    return open ? node_add(c, w, WD_NIL) : WD_OK;
}

int wd_wait_park(wd_commands *c, wd_session *s, wd_span names, const wd_lease_ask *ask, int bound,
                 int64_t until_ms)
{
    WD_ASSERT(!s->wait);
    wd_wait *w = wd_alloc(sizeof *w + names.n);
    if (!w) return WD_ENOMEM;
    *w = (wd_wait){.session = s,
                   .number = ++c->waits_made,
                   .until_ms = until_ms,
                   .nodes = WD_NIL,
                   .count = ask->count,
                   .lease_ms = ask->lease_ms,
                   .names_len = (uint32_t)names.n,
                   .bound = (uint8_t)bound,
                   .worker_len = (uint8_t)ask->worker.n};
    if (ask->worker.n) memcpy(w->worker, ask->worker.p, ask->worker.n);
    memcpy(w->names, names.p, names.n);
    if (add_all(c, w) != WD_OK || heap_add(c, w) != WD_OK) {
        nodes_drop(c, w);
        wd_release(w);
        return WD_ENOMEM;
    }
    s->wait = w;
    /* Work that could not be granted just now, for want of memory, is tried again. */
    for (uint32_t i = 0; i < ask->handlers_count; i++)
        if (wd_engine_has_work(c->e, ask->handlers[i]))
            wd_engine_mark_dirty(c->e, ask->handlers[i]);
    return WD_OK;
}

void wd_wait_drop(wd_commands *c, wd_wait *w)
{
    WD_ASSERT(w->session->wait == w);
    nodes_drop(c, w);
    heap_drop(c, w);
    w->session->wait = NULL;
    wd_release(w);
}

int wd_wait_names(const wd_commands *c, wd_span handler)
{
    for (uint32_t i = c->patterns; i != WD_NIL;) {
        const wd_wait *w = c->nodes[i].wait;
        if (any_matches((wd_span){w->names, w->names_len}, handler)) return 1;
        i = c->nodes[i].next;
        if (i == c->patterns) i = WD_NIL;
    }
    return 0;
}

uint32_t wd_wait_count(const wd_commands *c, uint32_t handler)
{
    uint32_t first = wd_handler_at(c->names, handler)->waiters, n = 0;
    for (uint32_t i = first; i != WD_NIL; n++) {
        i = c->nodes[i].next;
        if (i == first) i = WD_NIL;
    }
    first = c->patterns;
    for (uint32_t i = first; i != WD_NIL;) {
        const wd_wait *w = c->nodes[i].wait;
        n += (uint32_t)any_matches((wd_span){w->names, w->names_len},
                                   wd_handler_name(c->names, handler));
        i = c->nodes[i].next;
        if (i == first) i = WD_NIL;
    }
    return n;
}

static void wake(wd_commands *c, wd_session *s)
{
    WD_ASSERT(!s->woken);
    s->woken = 1;
    s->woken_next = NULL;
    if (c->woken_last)
        c->woken_last->woken_next = s;
    else
        c->woken_first = s;
    c->woken_last = s;
}

wd_session *wd_commands_next_woken(wd_commands *c)
{
    wd_session *s = c->woken_first;
    if (!s) return NULL;
    c->woken_first = s->woken_next;
    if (!c->woken_first) c->woken_last = NULL;
    s->woken_next = NULL;
    s->woken = 0;
    return s;
}

void wd_session_unwake(wd_commands *c, wd_session *s)
{
    if (!s->woken) return;
    wd_session **link = &c->woken_first, *last = NULL;
    for (; *link != s; link = &(*link)->woken_next)
        last = *link;
    *link = s->woken_next;
    if (c->woken_last == s) c->woken_last = last;
    s->woken = 0;
}

/* End a wait with an empty array. A session whose reply finds no memory is closed by its owner. */
static void end_empty(wd_commands *c, wd_wait *w)
{
    wd_session *s = w->session;
    wd_wait_drop(c, w);
    if (wd_reply_array(&s->out, 0) != WD_OK) s->closing = 1;
    wake(c, s);
}

void wd_session_end_wait(wd_commands *c, wd_session *s)
{
    if (s->wait) end_empty(c, s->wait);
}

void wd_commands_drain(wd_commands *c)
{
    c->draining = 1;
    while (c->heap_count)
        end_empty(c, c->heap[0]);
}

int64_t wd_commands_next_wake_ms(const wd_commands *c)
{
    return c->heap_count ? c->heap[0]->until_ms : WD_NEVER_MS;
}

/* ---- serving ---- */

/* First wait of a list that may be served with this handler, from node `first`; *out_blocked is set
 * when one was passed over because its connection takes no bytes. */
static wd_wait *first_able(const wd_commands *c, uint32_t first, uint32_t handler, int *out_blocked)
{
    for (uint32_t i = first; i != WD_NIL;) {
        wd_wait *w = c->nodes[i].wait;
        int named = first != c->patterns || any_matches((wd_span){w->names, w->names_len},
                                                        wd_handler_name(c->names, handler));
        if (named && !w->session->blocked) return w;
        *out_blocked |= named;
        i = c->nodes[i].next;
        if (i == first) i = WD_NIL;
    }
    return NULL;
}

/* Give one waiting call what is ready for it; 0 = nobody could be served, and *out_blocked is set
 * when that may be another time: a connection takes no bytes, or there was no memory. */
static int serve_one(wd_commands *c, uint32_t handler, int *out_blocked)
{
    wd_wait *w = first_able(c, wd_handler_at(c->names, handler)->waiters, handler, out_blocked);
    wd_wait *p = first_able(c, c->patterns, handler, out_blocked);
    if (!w || (p && p->number < w->number)) w = p;
    if (!w) return 0;
    wd_lease_ask ask = {.handlers = c->numbers,
                        .handlers_count = wd_wait_numbers(c, (wd_span){w->names, w->names_len}),
                        .count = w->count,
                        .lease_ms = w->lease_ms,
                        .worker = {w->worker, w->worker_len}};
    uint32_t n;
    wd_session *s = w->session;
    if (wd_lease_now(c, s, &ask, w->bound, &n) != WD_OK) s->closing = 1;
    if (n == 0 && !s->closing) {
        *out_blocked |= wd_engine_has_work(c->e, handler);
        return 0;
    }
    wd_wait_drop(c, w);
    wake(c, s);
    return 1;
}

void wd_commands_serve(wd_commands *c)
{
    uint32_t skipped = 0;
    int gives = c->disk < WD_DISK_LOW && !c->behind;
    for (uint32_t handler = wd_engine_next_dirty(c->e); handler != WD_NIL;
         handler = wd_engine_next_dirty(c->e)) {
        int blocked = 0;
        int served = 1;
        while (c->heap_count && gives && served && wd_engine_has_work(c->e, handler)) {
            served = serve_one(c, handler, &blocked);
            /* Each grant is a command's worth of records: batches may end between two. */
            if (wd_engine_open_bytes(c->e) >= WD_BATCH_CLOSE_BYTES) wd_engine_close_batch(c->e);
        }
        if (!gives) blocked = 1;
        if (blocked) c->skipped[skipped++] = handler;
    }
    while (skipped > 0)
        wd_engine_mark_dirty(c->e, c->skipped[--skipped]); /* try again next round */
    int64_t now_ms = wd_engine_rel_ms(c->e);
    while (c->heap_count && c->heap[0]->until_ms <= now_ms)
        end_empty(c, c->heap[0]);
}
