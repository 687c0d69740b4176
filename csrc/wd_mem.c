/* wd_mem.c -- assertion failure, memory with a failure switch, reservations, byte buffers. */
#define _GNU_SOURCE
#include "wd_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The only static state in the core, and only for tests: which allocation is to fail. The counters
 * are per thread so that the commit thread neither disturbs nor races with a test's count. */
static _Thread_local uint64_t alloc_count;
static _Thread_local uint64_t alloc_fail_at;

enum { HUGE_PAGE_BYTES = 2 << 20, PAGE_BYTES = 4096, BUF_BYTES_MIN = 256 };

_Noreturn void wd_assert_failed(const char *file, int line, const char *text)
{
    (void)fprintf(stderr, "wheeld: assertion failed at %s:%d: %s\n", file, line, text);
    abort();
}

const char *wd_strerror(int status)
{
    switch ((enum wd_status)status) {
    case WD_OK:
        return "ok";
    case WD_ENOMEM:
        return "out of memory";
    case WD_EINVAL:
        return "invalid argument";
    case WD_EIO:
        return "a file call failed";
    case WD_EFULL:
        return "no room left";
    case WD_ECORRUPT:
        return "damaged bytes";
    case WD_EAGAIN:
        return "not now";
    case WD_EGONE:
        return "no such thing";
    case WD_ELIMIT:
        return "limit passed";
    }
    return "unknown status";
}

uint64_t wd_alloc_fail_at(uint64_t n)
{
    uint64_t made = alloc_count;
    alloc_count = 0;
    alloc_fail_at = n;
    return made;
}

static int alloc_fails(void)
{
    alloc_count++;
    return alloc_fail_at != 0 && alloc_count == alloc_fail_at;
}

void *wd_alloc(size_t size)
{
    WD_ASSERT(size > 0);
    return alloc_fails() ? NULL : malloc(size);
}

void *wd_zalloc(size_t size)
{
    WD_ASSERT(size > 0);
    return alloc_fails() ? NULL : calloc(1, size);
}

void *wd_resize(void *p, size_t size)
{
    WD_ASSERT(size > 0);
    return alloc_fails() ? NULL : realloc(p, size);
}

void wd_release(void *p)
{
    free(p);
}

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

void *wd_reserve(size_t size_bytes)
{
    WD_ASSERT(size_bytes > 0);
    if (alloc_fails()) return NULL;
    size_t n = round_up(size_bytes, HUGE_PAGE_BYTES);
    /* Ask for one huge page more and give the unaligned ends back, so that the block can be backed
     * by huge pages from its first byte: 1.4x on expiry and cancel at 10 M timers. */
    uint8_t *p = mmap(NULL, n + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t head = round_up((size_t)(uintptr_t)p, HUGE_PAGE_BYTES) - (size_t)(uintptr_t)p;
    uint8_t *aligned = p + head;
    if (head) (void)munmap(p, head);
    if (HUGE_PAGE_BYTES - head) (void)munmap(aligned + n, HUGE_PAGE_BYTES - head);
    return aligned;
}

void wd_unreserve(void *p, size_t size_bytes)
{
    if (!p) return;
    (void)munmap(p, round_up(size_bytes, HUGE_PAGE_BYTES));
}

void wd_expect(void *p, size_t size_bytes)
{
    /* Whole huge pages only: what lies behind the range stays as it is. */
    size_t n = size_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if (n) (void)madvise(p, n, MADV_HUGEPAGE);
}

void wd_discard(void *p, size_t size_bytes)
{
    uintptr_t start = (uintptr_t)p;
    uintptr_t first = round_up((size_t)start, PAGE_BYTES);
    uintptr_t end = (start + size_bytes) / PAGE_BYTES * PAGE_BYTES;
    if (end > first) (void)madvise((uint8_t *)p + (first - start), end - first, MADV_DONTNEED);
}

int wd_buf_grow(wd_buf *b, size_t k)
{
    size_t cap = b->cap ? b->cap : BUF_BYTES_MIN;
    while (cap - b->n < k) {
        if (cap > SIZE_MAX / 2) return WD_ENOMEM;
        cap *= 2;
    }
    uint8_t *p = wd_resize(b->p, cap);
    if (!p) return WD_ENOMEM;
    b->p = p;
    b->cap = cap;
    return WD_OK;
}

int wd_buf_put(wd_buf *b, const void *p, size_t k)
{
    int status = wd_buf_need(b, k);
    if (status != WD_OK) return status;
    if (k) memcpy(b->p + b->n, p, k);
    b->n += k;
    return WD_OK;
}

void wd_buf_shift(wd_buf *b, size_t k)
{
    WD_ASSERT(k <= b->n);
    b->n -= k;
    if (k && b->n) memmove(b->p, b->p + k, b->n);
}

void wd_buf_free(wd_buf *b)
{
    wd_release(b->p);
    *b = (wd_buf){0};
}
