/* wd_arena.h -- byte blocks without headers: payloads, keys, metas, texts. A block is named by a
 * u32 in units of 16 bytes; its owner remembers its length.
 *
 * A sealed block (payloads) has a crc32c of its bytes behind them, in memory only: bad memory and
 * stray writes are found before the bytes are given to anybody. Four bytes, which most blocks have
 * to spare: a payload of 100 bytes takes 112 with and without. */
#ifndef WD_ARENA_H
#define WD_ARENA_H

#include "wd_int.h"

typedef struct wd_arena wd_arena;

enum {
    WD_ARENA_BYTES_MAX = 2 << 20, /* of one block */
    WD_SEAL_BYTES = 4,
    WD_SEALED_BYTES_MAX = WD_ARENA_BYTES_MAX - WD_SEAL_BYTES
};

/* Reserve room for at most size_bytes (up to 64 GiB). NULL when refused. */
wd_arena *wd_arena_new(uint64_t size_bytes);
void wd_arena_free(wd_arena *a);

/* So many bytes of blocks are about to be put. */
void wd_arena_expect(wd_arena *a, uint64_t bytes);
/* Copy s into a block. WD_OK with its reference (WD_NIL for an empty span), WD_EFULL. O(s.n). */
int wd_arena_put(wd_arena *a, wd_span s, uint32_t *out_ref);
/* Give the block of n bytes at ref back; WD_NIL is ignored. */
void wd_arena_drop(wd_arena *a, uint32_t ref, size_t n);
/* The same for a sealed block: n is the length of what was put, at most WD_SEALED_BYTES_MAX. */
int wd_arena_put_sealed(wd_arena *a, wd_span s, uint32_t *out_ref);
void wd_arena_drop_sealed(wd_arena *a, uint32_t ref, size_t n);
/* Are the n bytes of a sealed block still those that were put? WD_NIL with n = 0 is. O(n). */
int wd_arena_is_intact(const wd_arena *a, uint32_t ref, size_t n);
/* Put the bytes of a sealed block that changed back, from another copy. That is believed when the
 * seal is of it, or when the block holds the same bytes and the seal is what changed. WD_OK, or
 * WD_EINVAL: it is not what was put, and nothing was done. O(s.n). */
int wd_arena_mend(wd_arena *a, uint32_t ref, wd_span s);
/* The bytes of a block; NULL for WD_NIL. Valid until the block is dropped. */
const uint8_t *wd_arena_at(const wd_arena *a, uint32_t ref);
/* What a block of n bytes really takes; a sealed one. */
uint64_t wd_arena_block_bytes(size_t n);
uint64_t wd_arena_sealed_bytes(size_t n);
/* Sum of wd_arena_block_bytes over the blocks in use. */
uint64_t wd_arena_used(const wd_arena *a);

#endif /* WD_ARENA_H */
