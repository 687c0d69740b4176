/* wd_clock.h -- the only reader of clocks in the core. Everything else is handed times: rounds
 * carry a wd_clocks that was read once (or given by hand), measurements ask here for a monotonic
 * count.
 */
#ifndef WD_CLOCK_H
#define WD_CLOCK_H

#include "wd_engine.h"

#include <time.h>

/* The three clocks of a round. */
void wd_clock_read(wd_clocks *out);
int64_t wd_clock_boot_ms_up(void); /* CLOCK_BOOTTIME, rounded up to the next whole millisecond */
int64_t wd_clock_wall_us(void);    /* CLOCK_REALTIME */
uint64_t wd_clock_mono_ns(void);   /* CLOCK_MONOTONIC, for durations */
uint64_t wd_clock_thread_ns(void); /* CPU time of the calling thread */
/* CLOCK_MONOTONIC now + after_ns, as a condition variable's deadline. */
struct timespec wd_clock_deadline(uint64_t after_ns);

#endif /* WD_CLOCK_H */
