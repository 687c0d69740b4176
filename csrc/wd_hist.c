/* wd_hist.c -- a histogram with logarithmic buckets (the HdrHistogram idea, three bits of
 * mantissa).
 *
 * Values below 8 have a bucket each; from there every power of two is cut into 8 equal parts:
 * bucket = 8 * (exponent - 2) + the three bits behind the leading one.
 */
#include "wd_hist.h"

enum { SUB_BITS = 3, SUB_BUCKETS = 1 << SUB_BITS };
_Static_assert(WD_HIST_BUCKETS == (63 - SUB_BITS + 2) * SUB_BUCKETS, "one bucket for every u64");

static uint32_t bucket_of(uint64_t v)
{
    if (v < SUB_BUCKETS) return (uint32_t)v;
    uint32_t exponent = 63 - (uint32_t)__builtin_clzll(v);
    uint32_t sub = (uint32_t)(v >> (exponent - SUB_BITS)) & (SUB_BUCKETS - 1);
    return (exponent - SUB_BITS + 1) * SUB_BUCKETS + sub;
}

static uint64_t bucket_end(uint32_t bucket)
{
    if (bucket < SUB_BUCKETS) return bucket;
    uint32_t exponent = bucket / SUB_BUCKETS + SUB_BITS - 1;
    uint64_t mantissa = SUB_BUCKETS + bucket % SUB_BUCKETS + 1;
    return (mantissa << (exponent - SUB_BITS)) - 1; /* wraps to UINT64_MAX in the last one */
}

void wd_hist_add(wd_hist *h, uint64_t v)
{
    uint32_t bucket = bucket_of(v);
    WD_ASSERT(bucket < WD_HIST_BUCKETS);
    h->bucket[bucket]++;
    h->count++;
    h->sum += v;
    if (v > h->max) h->max = v;
}

uint64_t wd_hist_quantile(const wd_hist *h, uint32_t permille)
{
    WD_ASSERT(permille <= 1000);
    if (h->count == 0) return 0;
    uint64_t rank = (h->count * permille + 999) / 1000;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < WD_HIST_BUCKETS; i++) {
        seen += h->bucket[i];
        if (seen >= rank && seen > 0) {
            uint64_t end = bucket_end(i);
            return end < h->max ? end : h->max;
        }
    }
    WD_ASSERT(seen == h->count);
    return h->max;
}
