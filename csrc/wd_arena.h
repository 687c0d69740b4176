/* wd_arena.h -- byte blocks without headers: payloads, keys, metas, texts. A block is named by a
 * u32 in units of 16 bytes; its owner remembers its length. */
#ifndef WD_ARENA_H
#define WD_ARENA_H

#include "wd_int.h"

typedef struct wd_arena wd_arena;

/* Reserve room for at most size_bytes (up to 64 GiB). NULL when refused. */
wd_arena *wd_arena_new(uint64_t size_bytes);
void wd_arena_free(wd_arena *a);

/* So many bytes of blocks are about to be put. */
void wd_arena_expect(wd_arena *a, uint64_t bytes);
/* Copy s into a block. WD_OK with its reference (WD_NIL for an empty span), WD_EFULL. O(s.n). */
int wd_arena_put(wd_arena *a, wd_span s, uint32_t *out_ref);
/* Give the block of n bytes at ref back; WD_NIL is ignored. */
void wd_arena_drop(wd_arena *a, uint32_t ref, size_t n);
/* The bytes of a block; NULL for WD_NIL. Valid until the block is dropped. */
const uint8_t *wd_arena_at(const wd_arena *a, uint32_t ref);
/* What a block of n bytes really takes. */
uint64_t wd_arena_block_bytes(size_t n);
/* Sum of wd_arena_block_bytes over the blocks in use. */
uint64_t wd_arena_used(const wd_arena *a);

#endif /* WD_ARENA_H */
