/* wd_crc32c.c -- crc32c (Castagnoli): the CPU's own instruction, or slicing-by-8.
 *
 * Why crc32c: it finds every burst up to 32 bits and every odd number of flipped bits, and the two
 * CPU families that servers run on compute it at 8 bytes an instruction, so that a checksum is 0.1
 * % of a commit. The table is M. Kounavis and F. Berry, "A Systematic Approach to Building High
 * Performance, Software-based, CRC Generators" (2005).
 *
 * Which way is taken is asked for at each call: a look at a word that the C library filled at
 * start.
 */
#define _GNU_SOURCE
#include "wd_crc32c.h"
#include "wd_crc32c_table.h"

#include <stdatomic.h>

/* Tests only. An atomic, because a commit thread may be computing while a test switches. */
static atomic_int force_table;

void wd_crc32c_force_table(int on)
{
    atomic_store_explicit(&force_table, on != 0, memory_order_relaxed);
}

static uint32_t crc_table(uint32_t crc, const uint8_t *p, size_t n)
{
    while (n >= 8) {
        uint64_t v = wd_get_u64(p) ^ crc;
        crc = TABLE[7][v & 0xff] ^ TABLE[6][(v >> 8) & 0xff] ^ TABLE[5][(v >> 16) & 0xff] ^
              TABLE[4][(v >> 24) & 0xff] ^ TABLE[3][(v >> 32) & 0xff] ^ TABLE[2][(v >> 40) & 0xff] ^
              TABLE[1][(v >> 48) & 0xff] ^ TABLE[0][v >> 56];
        p += 8;
        n -= 8;
    }
    while (n--) {
        crc = (crc >> 8) ^ TABLE[0][(crc ^ *p++) & 0xff];
    }
    return crc;
}

#if defined(__x86_64__)

#include <nmmintrin.h>

static int cpu_has_crc(void)
{
    return __builtin_cpu_supports("sse4.2");
}

__attribute__((target("sse4.2"))) static uint32_t crc_cpu(uint32_t crc, const uint8_t *p, size_t n)
{
    uint64_t wide = crc;
    while (n >= 8) {
        wide = _mm_crc32_u64(wide, wd_get_u64(p));
        p += 8;
        n -= 8;
    }
    crc = (uint32_t)wide;
    while (n--) {
        crc = _mm_crc32_u8(crc, *p++);
    }
    return crc;
}

#elif defined(__aarch64__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

static int cpu_has_crc(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}

__attribute__((target("+crc"))) static uint32_t crc_cpu(uint32_t crc, const uint8_t *p, size_t n)
{
    while (n >= 8) {
        crc = __builtin_aarch64_crc32cx(crc, wd_get_u64(p));
        p += 8;
        n -= 8;
    }
    while (n--) {
        crc = __builtin_aarch64_crc32cb(crc, *p++);
    }
    return crc;
}

#else

static int cpu_has_crc(void)
{
    return 0;
}

static uint32_t crc_cpu(uint32_t crc, const uint8_t *p, size_t n)
{
    return crc_table(crc, p, n);
}

#endif

uint32_t wd_crc32c(uint32_t crc, const void *p, size_t n)
{
    WD_ASSERT(p != NULL || n == 0);
    int table = atomic_load_explicit(&force_table, memory_order_relaxed);
    crc = ~crc;
    crc = table || !cpu_has_crc() ? crc_table(crc, p, n) : crc_cpu(crc, p, n);
    return ~crc;
}
