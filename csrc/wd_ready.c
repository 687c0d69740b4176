/* wd_ready.c -- FIFOs by priority plus one heap for those that came out of order.
 *
 * Timers fire in due order, so nearly every job belongs at the tail of its FIFO: O(1), two links in
 * the row. A job that is due before the tail (a retry, an old job added late) goes to a binary heap
 * ordered by (priority, due, lsn); row.prev holds its place there. The first job is the better of
 * the first FIFO's head and the heap's top.
 *
 * Invariants: (1) row.heaped tells heap from FIFO; (2) heap[row.prev] == slot; (3) due never falls
 * along a FIFO unless the heap could not grow; (4) count = FIFO members + heap members.
 */
#include "wd_ready.h"

enum { HEAP_ROOM_MIN = 64, PRIORITIES = 256 };

void wd_ready_free(wd_ready *q)
{
    wd_release(q->fifos);
    wd_release(q->heap);
    *q = (wd_ready){0};
}

int wd_ready_init(wd_ready *q)
{
    *q = (wd_ready){.fifos = wd_alloc(sizeof *q->fifos)};
    if (!q->fifos) return WD_ENOMEM;
    q->fifos_room = 1;
    return WD_OK;
}

static wd_fifo *find_fifo(const wd_ready *q, uint8_t priority)
{
    for (uint32_t i = 0; i < q->fifos_count; i++)
        if (q->fifos[i].priority == priority) return &q->fifos[i];
    return NULL;
}

int wd_ready_reserve(wd_ready *q, uint8_t priority)
{
    if (find_fifo(q, priority)) return WD_OK;
    WD_ASSERT(q->fifos_count < PRIORITIES);
    if (q->fifos_count == q->fifos_room) {
        uint16_t room = (uint16_t)(q->fifos_room * 2);
        wd_fifo *fifos = wd_resize(q->fifos, room * sizeof *fifos);
        if (!fifos) return WD_ENOMEM;
        q->fifos = fifos;
        q->fifos_room = room;
    }
    uint32_t i = q->fifos_count++;
    for (; i > 0 && q->fifos[i - 1].priority > priority; i--)
        q->fifos[i] = q->fifos[i - 1];
    q->fifos[i] = (wd_fifo){.head = WD_NIL, .tail = WD_NIL, .priority = priority};
    return WD_OK;
}

static int before(const wd_job *a, const wd_job *b)
{
    if (a->priority != b->priority) return a->priority < b->priority;
    if (a->due_ms != b->due_ms) return a->due_ms < b->due_ms;
    return a->lsn < b->lsn;
}

static void heap_set(wd_ready *q, wd_job *rows, uint32_t i, uint32_t slot)
{
    q->heap[i] = slot;
    rows[slot].prev = i;
}

static void sift_up(wd_ready *q, wd_job *rows, uint32_t i, uint32_t slot)
{
    while (i > 0 && before(&rows[slot], &rows[q->heap[(i - 1) / 2]])) {
        heap_set(q, rows, i, q->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_set(q, rows, i, slot);
}

static void sift_down(wd_ready *q, wd_job *rows, uint32_t i, uint32_t slot)
{
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= q->heap_count) break;
        if (child + 1 < q->heap_count && before(&rows[q->heap[child + 1]], &rows[q->heap[child]]))
            child++;
        if (!before(&rows[q->heap[child]], &rows[slot])) break;
        heap_set(q, rows, i, q->heap[child]);
        i = child;
    }
    heap_set(q, rows, i, slot);
}

static int heap_grow(wd_ready *q)
{
    if (q->heap_count < q->heap_room) return WD_OK;
    uint32_t room = q->heap_room ? q->heap_room * 2 : HEAP_ROOM_MIN;
    uint32_t *heap = wd_resize(q->heap, room * sizeof *heap);
    if (!heap) return WD_ENOMEM;
    q->heap = heap;
    q->heap_room = room;
    return WD_OK;
}

void wd_ready_push(wd_ready *q, wd_job *rows, uint32_t slot)
{
    wd_job *row = &rows[slot];
    wd_fifo *f = find_fifo(q, (uint8_t)row->priority);
    WD_ASSERT(f);
    WD_ASSERT(row->where == WD_NIL && !row->heaped);
    q->count++;
    if (f->tail != WD_NIL && row->due_ms < rows[f->tail].due_ms && heap_grow(q) == WD_OK) {
        row->heaped = 1;
        row->next = WD_NIL;
        sift_up(q, rows, q->heap_count++, slot);
        return;
    }
    row->next = WD_NIL;
    row->prev = f->tail;
    if (f->tail == WD_NIL)
        f->head = slot;
    else
        rows[f->tail].next = slot;
    f->tail = slot;
}

static void heap_remove(wd_ready *q, wd_job *rows, uint32_t slot)
{
    uint32_t i = rows[slot].prev, last = q->heap[--q->heap_count];
    WD_ASSERT(i <= q->heap_count);
    rows[slot].heaped = 0;
    if (last == slot) return;
    if (i > 0 && before(&rows[last], &rows[q->heap[(i - 1) / 2]]))
        sift_up(q, rows, i, last);
    else
        sift_down(q, rows, i, last);
}

void wd_ready_remove(wd_ready *q, wd_job *rows, uint32_t slot)
{
    wd_job *row = &rows[slot];
    WD_ASSERT(q->count > 0);
    q->count--;
    if (row->heaped) {
        heap_remove(q, rows, slot);
    } else {
        wd_fifo *f = find_fifo(q, (uint8_t)row->priority);
        WD_ASSERT(f);
        if (row->prev == WD_NIL)
            f->head = row->next;
        else
            rows[row->prev].next = row->next;
        if (row->next == WD_NIL)
            f->tail = row->prev;
        else
            rows[row->next].prev = row->prev;
    }
    row->next = row->prev = WD_NIL;
}

uint32_t wd_ready_first(const wd_ready *q, const wd_job *rows)
{
    if (q->count == 0) return WD_NIL;
    uint32_t best = q->heap_count ? q->heap[0] : WD_NIL;
    for (uint32_t i = 0; i < q->fifos_count; i++) {
        uint32_t head = q->fifos[i].head;
        if (head == WD_NIL) continue;
        if (best == WD_NIL || before(&rows[head], &rows[best])) best = head;
        break;
    }
    WD_ASSERT(best != WD_NIL);
    return best;
}

int wd_ready_check(const wd_ready *q, const wd_job *rows)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < q->heap_count; i++) {
        const wd_job *row = &rows[q->heap[i]];
        if (!row->heaped || row->prev != i) return 0;
        if (i > 0 && before(row, &rows[q->heap[(i - 1) / 2]])) return 0;
        seen++;
    }
    for (uint32_t i = 0; i < q->fifos_count; i++) {
        const wd_fifo *f = &q->fifos[i];
        uint32_t prev = WD_NIL;
        if (i > 0 && q->fifos[i - 1].priority >= f->priority) return 0;
        for (uint32_t slot = f->head; slot != WD_NIL; slot = rows[slot].next) {
            if (rows[slot].heaped || rows[slot].priority != f->priority) return 0;
            if (rows[slot].prev != prev || ++seen > q->count) return 0;
            prev = slot;
        }
        if (f->tail != prev) return 0;
    }
    return seen == q->count;
}
