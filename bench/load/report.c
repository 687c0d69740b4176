/* report.c -- histograms, and the one line of JSON that a run ends with. */
#include "load.h"
#include <inttypes.h>
#include <stdio.h>

static size_t bucket_of(uint64_t value)
{
    if (value < (1u << HIST_SUB_BITS)) return (size_t)value;
    unsigned top = 63 - (unsigned)__builtin_clzll(value);
    unsigned shift = top - HIST_SUB_BITS;
    return ((size_t)(shift + 1) << HIST_SUB_BITS) + (size_t)((value >> shift) & 15);
}

static uint64_t upper_end(size_t bucket)
{
    if (bucket < (1u << HIST_SUB_BITS)) return bucket;
    unsigned shift = (unsigned)(bucket >> HIST_SUB_BITS) - 1;
    uint64_t low = (uint64_t)(16 + (bucket & 15)) << shift;
    return low + ((uint64_t)1 << shift) - 1;
}

void hist_add(histogram *h, uint64_t value)
{
    h->count++;
    if (value > h->max) h->max = value;
    h->bucket[bucket_of(value)]++;
}

uint64_t hist_at(const histogram *h, double part)
{
    uint64_t rank = (uint64_t)(part * (double)h->count), seen = 0;
    for (size_t i = 0; i < HIST_BUCKETS; i++) {
        seen += h->bucket[i];
        if (h->bucket[i] == 0 || seen <= rank) continue;
        uint64_t end = upper_end(i);
        return end < h->max ? end : h->max;
    }
    return h->max;
}

static void print_hist(const char *name, const histogram *h)
{
    (void)printf(", \"%s\": {\"count\": %" PRIu64 ", \"p50\": %" PRIu64 ", \"p99\": %" PRIu64
                 ", \"max\": %" PRIu64 "}",
                 name, h->count, hist_at(h, 0.5), hist_at(h, 0.99), h->max);
}

void report_print(const report *r)
{
    double seconds = (double)(r->last_ns - r->begin_ns) / 1e9;
    (void)printf("{\"dialect\": \"%s\", \"seed\": %" PRId64 ", \"sent\": %" PRIu64
                 ", \"stored\": %" PRIu64 ", \"leased\": %" PRIu64 ", \"done\": %" PRIu64
                 ", \"early\": %" PRIu64 ", \"duplicates\": %" PRIu64,
                 r->set->dialect, r->set->seed, r->sent, r->stored, r->leased, r->done, r->early,
                 r->duplicates);
    (void)printf(", \"seconds\": %.6f, \"own_cpu_s\": %.6f, \"begin_ns\": %" PRIu64
                 ", \"last_ns\": %" PRIu64,
                 seconds, r->own_cpu_s, r->begin_ns, r->last_ns);
    print_hist("store_us", r->store_us);
    print_hist("late_us", r->late_us);
    print_hist("ping_us", r->ping_us);
    (void)puts("}");
}
