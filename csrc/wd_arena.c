/* wd_arena.c -- size classes over one reservation.
 *
 * Classes: every 16 bytes up to 4 KiB, then eight a doubling up to 2 MiB (waste <= 12.5 %). A free
 * block's first four bytes link to the next free one of its class; fresh blocks are cut from `top`.
 * Blocks are never merged: the sizes of a scheduler's payloads repeat. A freed block over 64 KiB
 * gives its inner pages back to the system.
 *
 * Invariant: used_bytes = sum of class sizes of the blocks handed out (wd_check compares it with
 * the sum over all owners).
 */
#include "wd_arena.h"

#include "wd_crc32c.h"

enum {
    UNIT = 16,
    SMALL_BYTES_MAX = 4096,
    SMALL_CLASSES = SMALL_BYTES_MAX / UNIT, /* class k holds (k + 1) units */
    LARGE_SHIFT_MIN = 12,                   /* 4096 = 2^12 */
    LARGE_SHIFT_END = 21,                   /* up to 2 MiB */
    STEPS = 8,                              /* large classes a doubling */
    CLASSES = SMALL_CLASSES + (LARGE_SHIFT_END - LARGE_SHIFT_MIN) * STEPS,
    DISCARD_BYTES_MIN = 64 * 1024
};
_Static_assert(WD_ARENA_BYTES_MAX == 1 << LARGE_SHIFT_END, "the largest class");

struct wd_arena {
    uint8_t *base;
    uint64_t size_bytes, top_bytes, used_bytes;
    uint32_t free[CLASSES]; /* first free block, WD_NIL = none */
};

static uint32_t class_of(size_t n)
{
    WD_ASSERT(n > 0);
    WD_ASSERT(n <= UINT64_C(1) << LARGE_SHIFT_END);
    if (n <= SMALL_BYTES_MAX) return (uint32_t)((n + UNIT - 1) / UNIT - 1);
    uint32_t shift = 63 - (uint32_t)__builtin_clzll((uint64_t)n - 1);
    uint64_t step = (UINT64_C(1) << shift) / STEPS;
    uint32_t k =
        (uint32_t)(((uint64_t)n - (UINT64_C(1) << shift) + step - 1) / step); /* 1..STEPS */
    return SMALL_CLASSES + (shift - LARGE_SHIFT_MIN) * STEPS + k - 1;
}

static uint64_t class_bytes(uint32_t c)
{
    if (c < SMALL_CLASSES) return (uint64_t)(c + 1) * UNIT;
    uint32_t shift = LARGE_SHIFT_MIN + (c - SMALL_CLASSES) / STEPS;
    return (UINT64_C(1) << shift) +
           ((c - SMALL_CLASSES) % STEPS + 1) * ((UINT64_C(1) << shift) / STEPS);
}

wd_arena *wd_arena_new(uint64_t size_bytes)
{
    WD_ASSERT(size_bytes > 0);
    uint64_t most = (uint64_t)WD_NIL * UNIT;
    wd_arena *a = wd_zalloc(sizeof *a);
    if (!a) return NULL;
    a->size_bytes = size_bytes < most ? size_bytes : most;
    a->base = wd_reserve(a->size_bytes);
    if (!a->base) {
        wd_release(a);
        return NULL;
    }
    memset(a->free, 0xff, sizeof a->free);
    return a;
}

void wd_arena_free(wd_arena *a)
{
    if (!a) return;
    wd_unreserve(a->base, a->size_bytes);
    wd_release(a);
}

void wd_arena_expect(wd_arena *a, uint64_t bytes)
{
    uint64_t room = a->size_bytes - a->top_bytes;
    wd_expect(a->base + a->top_bytes, bytes < room ? bytes : room);
}

/* A block of n > 0 bytes. WD_OK, WD_EFULL. */
static int take(wd_arena *a, size_t n, uint32_t *out_ref)
{
    uint32_t c = class_of(n), ref = a->free[c];
    uint64_t bytes = class_bytes(c);
    if (ref != WD_NIL) {
        a->free[c] = wd_get_u32(a->base + (uint64_t)ref * UNIT);
    } else {
        if (a->size_bytes - a->top_bytes < bytes) return WD_EFULL;
        ref = (uint32_t)(a->top_bytes / UNIT);
        a->top_bytes += bytes;
    }
    a->used_bytes += bytes;
    *out_ref = ref;
    return WD_OK;
}

int wd_arena_put(wd_arena *a, wd_span s, uint32_t *out_ref)
{
    *out_ref = WD_NIL;
    if (s.n == 0) return WD_OK;
    int status = take(a, s.n, out_ref);
    if (status == WD_OK) memcpy(a->base + (uint64_t)*out_ref * UNIT, s.p, s.n);
    return status;
}

int wd_arena_put_sealed(wd_arena *a, wd_span s, uint32_t *out_ref)
{
    *out_ref = WD_NIL;
    if (s.n == 0) return WD_OK;
    int status = take(a, s.n + WD_SEAL_BYTES, out_ref);
    if (status != WD_OK) return status;
    uint8_t *p = a->base + (uint64_t)*out_ref * UNIT;
    memcpy(p, s.p, s.n);
    wd_put_u32(p + s.n, wd_crc32c(0, s.p, s.n)); /* of what came, not of the copy */
    return WD_OK;
}

void wd_arena_drop(wd_arena *a, uint32_t ref, size_t n)
{
    if (ref == WD_NIL) return;
    uint32_t c = class_of(n);
    uint64_t bytes = class_bytes(c);
    uint8_t *p = a->base + (uint64_t)ref * UNIT;
    WD_ASSERT((uint64_t)ref * UNIT + bytes <= a->top_bytes);
    WD_ASSERT(a->used_bytes >= bytes);
    if (bytes >= DISCARD_BYTES_MIN) wd_discard(p + UNIT, bytes - UNIT);
    wd_put_u32(p, a->free[c]);
    a->free[c] = ref;
    a->used_bytes -= bytes;
}

void wd_arena_drop_sealed(wd_arena *a, uint32_t ref, size_t n)
{
    wd_arena_drop(a, ref, n + WD_SEAL_BYTES);
}

int wd_arena_is_intact(const wd_arena *a, uint32_t ref, size_t n)
{
    if (ref == WD_NIL) return n == 0;
    const uint8_t *p = wd_arena_at(a, ref);
    return wd_crc32c(0, p, n) == wd_get_u32(p + n);
}

int wd_arena_mend(wd_arena *a, uint32_t ref, wd_span s)
{
    WD_ASSERT((uint64_t)ref * UNIT + s.n + WD_SEAL_BYTES <= a->top_bytes);
    uint8_t *p = a->base + (uint64_t)ref * UNIT;
    uint32_t crc = wd_crc32c(0, s.p, s.n);
    if (wd_get_u32(p + s.n) != crc && memcmp(p, s.p, s.n) != 0) return WD_EINVAL;
    memcpy(p, s.p, s.n);
    wd_put_u32(p + s.n, crc);
    return WD_OK;
}

const uint8_t *wd_arena_at(const wd_arena *a, uint32_t ref)
{
    if (ref == WD_NIL) return NULL;
    WD_ASSERT((uint64_t)ref * UNIT < a->top_bytes);
    return a->base + (uint64_t)ref * UNIT;
}

uint64_t wd_arena_block_bytes(size_t n)
{
    return n == 0 ? 0 : class_bytes(class_of(n));
}

uint64_t wd_arena_sealed_bytes(size_t n)
{
    return n == 0 ? 0 : class_bytes(class_of(n + WD_SEAL_BYTES));
}

uint64_t wd_arena_used(const wd_arena *a)
{
    return a->used_bytes;
}
