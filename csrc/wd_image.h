/* wd_image.h -- the image of one thing of the state, as it stands in a checkpoint: written from the
 * state, and read back into it. FORMAT.md has the layouts.
 *
 * Write: ..._bytes is the exact size, ..._put writes so many bytes and returns their number.
 * Load: the image at the front of s goes into the state; *out_bytes of s were used. WD_OK,
 * WD_ECORRUPT (it does not fit the state), WD_ENOMEM, WD_EFULL.
 */
#ifndef WD_IMAGE_H
#define WD_IMAGE_H

#include "wd_state.h"

/* Sizes of the fixed parts. */
enum {
    WD_IMAGE_FREE_BYTES = 4,
    WD_IMAGE_ROW_BYTES = 44,
    WD_IMAGE_SIDE_BYTES = 36,
    WD_IMAGE_RUN_BYTES = 40,
    WD_IMAGE_ATTEMPT_BYTES = 24,
    WD_IMAGE_HANDLER_BYTES = 37,
    WD_IMAGE_POLICY_BYTES = 24,
    WD_IMAGE_ENTRY_BYTES = 8,
    WD_IMAGE_ENDED_BYTES = 64,
    WD_IMAGE_ONCE_BYTES = 36
};

/* Flags in a side block's image. */
enum { WD_IMAGE_EXPIRE_REL = 1, WD_IMAGE_ON_ENDED = 2, WD_IMAGE_HAS_RUN = 4 };

/* A slot: a job with everything it has, or the generation of a free one. READY is written as
 * SCHEDULED, a leased row's due time is the job's. */
size_t wd_image_row_bytes(const wd_engine *e, uint32_t slot);
size_t wd_image_row_put(const wd_engine *e, uint32_t slot, uint8_t *p);
/* slot must be the slab's top. *out_lsn = the newest lsn that the image names. */
int wd_image_row_load(wd_engine *e, uint32_t slot, wd_span s, size_t *out_bytes, uint64_t *out_lsn);

/* What the image of a row says of the payload, without a state to load it into. */
typedef struct {
    uint32_t gen; /* of the job, or of the last one in a free slot */
    int used;
    wd_span payload; /* into the image */
} wd_image_row;
int wd_image_row_read(wd_span s, wd_image_row *out, size_t *out_bytes);

size_t wd_image_handler_bytes(const wd_engine *e, uint32_t number);
size_t wd_image_handler_put(const wd_engine *e, uint32_t number, uint8_t *p);
int wd_image_handler_load(wd_engine *e, uint32_t number, wd_span s, size_t *out_bytes);

size_t wd_image_policy_put(const wd_engine *e, uint32_t number, uint8_t *p);
int wd_image_policy_load(wd_engine *e, uint32_t number, wd_span s, size_t *out_bytes);

size_t wd_image_entry_bytes(const wd_entry *entry);
size_t wd_image_entry_put(const wd_entry *entry, uint8_t *p);
int wd_image_entry_load(wd_engine *e, wd_span s, size_t *out_bytes);

size_t wd_image_ended_bytes(const wd_ended *x);
size_t wd_image_ended_put(const wd_engine *e, const wd_ended *x, uint8_t *p);
int wd_image_ended_load(wd_engine *e, uint64_t number, wd_span s, size_t *out_bytes);

size_t wd_image_once_put(const wd_once *x, uint8_t *p);
int wd_image_once_load(wd_engine *e, uint64_t number, wd_span s, size_t *out_bytes);

#endif /* WD_IMAGE_H */
