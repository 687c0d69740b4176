/* wd_hist.h -- a histogram with logarithmic buckets: eight to each power of two, so a quantile is
 * at most 12.5 % above the true value. Adding is a handful of instructions and never allocates.
 */
#ifndef WD_HIST_H
#define WD_HIST_H

#include "wd_int.h"

enum { WD_HIST_BUCKETS = 496 };

typedef struct {
    uint64_t count, sum, max;
    uint64_t bucket[WD_HIST_BUCKETS];
} wd_hist;

void wd_hist_add(wd_hist *h, uint64_t v);
/* Upper bound of the bucket in which the value of rank permille/1000 lies, at most max; 0 = empty.
 */
uint64_t wd_hist_quantile(const wd_hist *h, uint32_t permille);

#endif /* WD_HIST_H */
