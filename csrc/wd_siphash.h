/* wd_siphash.h -- SipHash-2-4 with 128-bit output (Aumasson, Bernstein 2012): keyed, so that names
 * chosen by a client cannot be made to collide. */
#ifndef WD_SIPHASH_H
#define WD_SIPHASH_H

#include "wd_int.h"

typedef struct {
    uint64_t lo, hi;
} wd_hash128;

wd_hash128 wd_siphash(const uint8_t key[16], wd_span in);

#endif /* WD_SIPHASH_H */
