/* wd_clock.c -- the only reader of clocks in the core. */
#define _GNU_SOURCE
#include "wd_clock.h"

enum { NS_PER_US = 1000, NS_PER_MS = 1000000, NS_PER_S = 1000000000 };

static struct timespec now_of(clockid_t clock)
{
    struct timespec t;
    int failed = clock_gettime(clock, &t);
    WD_ASSERT(failed == 0); /* fails only for a clock that the kernel does not have */
    WD_ASSERT(t.tv_nsec >= 0 && t.tv_nsec < NS_PER_S);
    return t;
}

static int64_t ms_of(clockid_t clock)
{
    struct timespec t = now_of(clock);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / NS_PER_MS;
}

static uint64_t ns_of(clockid_t clock)
{
    struct timespec t = now_of(clock);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

void wd_clock_read(wd_clocks *out)
{
    WD_ASSERT(out);
    out->wall_ms = ms_of(CLOCK_REALTIME);
    struct timespec boot = now_of(CLOCK_BOOTTIME);
    out->boot_ms = (int64_t)boot.tv_sec * 1000 + boot.tv_nsec / NS_PER_MS;
    out->boot_part = boot.tv_nsec % NS_PER_MS != 0;
    out->mono_ms = ms_of(CLOCK_MONOTONIC);
}

int64_t wd_clock_boot_ms_up(void)
{
    struct timespec t = now_of(CLOCK_BOOTTIME);
    return (int64_t)t.tv_sec * 1000 + (t.tv_nsec + NS_PER_MS - 1) / NS_PER_MS;
}

int64_t wd_clock_wall_us(void)
{
    struct timespec t = now_of(CLOCK_REALTIME);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / NS_PER_US;
}

uint64_t wd_clock_mono_ns(void)
{
    return ns_of(CLOCK_MONOTONIC);
}

uint64_t wd_clock_thread_ns(void)
{
    return ns_of(CLOCK_THREAD_CPUTIME_ID);
}

struct timespec wd_clock_deadline(uint64_t after_ns)
{
    uint64_t ns = wd_clock_mono_ns() + after_ns;
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}
