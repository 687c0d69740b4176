/* wd_int.h -- what every module of the core shares: assertions, spans, buffers, memory.
 *
 * Internal: Python sees only the blocks between "cffi: begin" and "cffi: end" of the headers.
 *
 * Conventions (ARCHITECTURE.md):
 *   status   int, WD_OK (0) or a negative WD_E*; out-parameters are written only on success,
 *            and a call that failed changed nothing.
 *   times    int64_t milliseconds, suffix _ms; wall = CLOCK_REALTIME, rel = the rel axis
 *            (wall at the first start, then CLOCK_BOOTTIME's pace).
 *   indices  uint32_t into a table, WD_NIL = none; no pointers inside job rows.
 *   asserts  WD_ASSERT stays on in release builds: a server whose memory is wrong must not go
 *            on confirming writes.
 */
#ifndef WD_INT_H
#define WD_INT_H

#include "wd.h"

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WD_NIL      UINT32_MAX
#define WD_NEVER_MS INT64_MAX
#define WD_DUE_MS_END                                                                              \
    (INT64_C(1) << 48) /* due times lie in [0, 2^48): the wheel has 8 levels of 6 bits */

_Noreturn void wd_assert_failed(const char *file, int line, const char *text);
#define WD_ASSERT(cond)                                                                            \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0)) wd_assert_failed(__FILE__, __LINE__, #cond);             \
    } while (0)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "formats are little-endian byte images");

/* A read-only run of bytes that somebody else owns. */
typedef struct {
    const uint8_t *p;
    size_t n;
} wd_span;

#define WD_SPAN_INIT(text) {(const uint8_t *)(text), sizeof(text) - 1}
#define WD_SPAN(text)      ((wd_span)WD_SPAN_INIT(text))

static inline int wd_span_eq(wd_span a, wd_span b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

/* ---- memory (wd_mem.c) ---- */

/* malloc/realloc/free with one switch for tests: the n-th allocation from now fails. */
void *wd_alloc(size_t size);           /* NULL when there is no memory */
void *wd_zalloc(size_t size);          /* zeroed; NULL when there is no memory */
void *wd_resize(void *p, size_t size); /* as realloc: on NULL the old block stands */
void wd_release(void *p);

/* Reserve address space that reads as zero and costs memory only where it is touched (no copy
 * when a table grows, so no growth spike). NULL when refused. size_bytes is rounded up to 2 MiB. */
void *wd_reserve(size_t size_bytes);
void wd_unreserve(void *p, size_t size_bytes);
/* The whole of [p, p + size_bytes) is about to be written: with few big pages instead of many small
 * ones, where the system has them. */
void wd_expect(void *p, size_t size_bytes);
/* Give the whole pages inside [p, p + size_bytes) back to the system; they read as zero again. */
void wd_discard(void *p, size_t size_bytes);

/* ---- growable byte buffer (wd_mem.c) ---- */
typedef struct {
    uint8_t *p;
    size_t n;   /* bytes in use */
    size_t cap; /* bytes allocated */
} wd_buf;

int wd_buf_grow(wd_buf *b, size_t k); /* wd_buf_need when there is no room yet */

/* Make room for k more bytes at p + n. WD_OK or WD_ENOMEM. */
static inline int wd_buf_need(wd_buf *b, size_t k)
{
    WD_ASSERT(b->n <= b->cap);
    return k <= b->cap - b->n ? WD_OK : wd_buf_grow(b, k);
}

int wd_buf_put(wd_buf *b, const void *p, size_t k);
/* Drop the first k bytes. O(n - k). */
void wd_buf_shift(wd_buf *b, size_t k);
void wd_buf_free(wd_buf *b);

/* ---- little-endian scalars at any address ---- */
static inline uint16_t wd_get_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t wd_get_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint64_t wd_get_u64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void wd_put_u16(void *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}
static inline void wd_put_u32(void *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}
static inline void wd_put_u64(void *p, uint64_t v)
{
    memcpy(p, &v, sizeof v);
}

#endif /* WD_INT_H */
