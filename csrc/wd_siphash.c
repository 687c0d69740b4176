/* wd_siphash.c -- SipHash-2-4-128 after the paper's description (2 rounds a word, 4 at the end). */
#include "wd_siphash.h"

typedef struct {
    uint64_t v0, v1, v2, v3;
} sip;

static inline uint64_t rotl(uint64_t x, int b)
{
    return x << b | x >> (64 - b);
}

static inline void rounds(sip *s, int n)
{
    for (; n > 0; n--) {
        s->v0 += s->v1;
        s->v1 = rotl(s->v1, 13) ^ s->v0;
        s->v0 = rotl(s->v0, 32);
        s->v2 += s->v3;
        s->v3 = rotl(s->v3, 16) ^ s->v2;
        s->v0 += s->v3;
        s->v3 = rotl(s->v3, 21) ^ s->v0;
        s->v2 += s->v1;
        s->v1 = rotl(s->v1, 17) ^ s->v2;
        s->v2 = rotl(s->v2, 32);
    }
}

static inline void absorb(sip *s, uint64_t word)
{
    s->v3 ^= word;
    rounds(s, 2);
    s->v0 ^= word;
}

wd_hash128 wd_siphash(const uint8_t key[16], wd_span in)
{
    uint64_t k0 = wd_get_u64(key), k1 = wd_get_u64(key + 8);
    sip s = {UINT64_C(0x736f6d6570736575) ^ k0, UINT64_C(0x646f72616e646f6d) ^ k1 ^ 0xee,
             UINT64_C(0x6c7967656e657261) ^ k0, UINT64_C(0x7465646279746573) ^ k1};
    size_t whole = in.n / 8 * 8;
    for (size_t i = 0; i < whole; i += 8)
        absorb(&s, wd_get_u64(in.p + i));
    uint64_t last = (uint64_t)in.n << 56;
    for (size_t i = whole; i < in.n; i++)
        last |= (uint64_t)in.p[i] << (8 * (i - whole));
    absorb(&s, last);
    s.v2 ^= 0xee;
    rounds(&s, 4);
    wd_hash128 h = {.lo = s.v0 ^ s.v1 ^ s.v2 ^ s.v3};
    s.v1 ^= 0xdd;
    rounds(&s, 4);
    h.hi = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    return h;
}
