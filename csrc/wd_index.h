/* wd_index.h -- hash index from 32-bit hashes to u32 items (linear hashing, Litwin 1980).
 *
 * The table grows by one bucket an insertion, so no insertion ever pays for moving it all. Items
 * are small integers that the caller owns (slots, numbers); equal hashes are told apart by the
 * caller. */
#ifndef WD_INDEX_H
#define WD_INDEX_H

#include "wd_int.h"

typedef struct wd_index wd_index;

/* For items in [0, items_max). NULL when there is no memory. */
wd_index *wd_index_new(uint32_t items_max);
void wd_index_free(wd_index *ix);

/* An empty index gets the size that it would grow to with so many items, which are below `end`:
 * none of them pays for growing. */
void wd_index_presize(wd_index *ix, uint32_t items, uint32_t end);
void wd_index_add(wd_index *ix, uint32_t item, uint32_t hash); /* item must not be in it. O(1) */
void wd_index_remove(wd_index *ix, uint32_t item);             /* item must be in it. O(chain) */
/* First / next item with this hash; WD_NIL = no more. */
uint32_t wd_index_first(const wd_index *ix, uint32_t hash);
uint32_t wd_index_next(const wd_index *ix, uint32_t item);
uint32_t wd_index_count(const wd_index *ix);
/* Every item is in the bucket of its hash, and the count is right? O(items). 1 = yes. */
int wd_index_check(const wd_index *ix);

#endif /* WD_INDEX_H */
