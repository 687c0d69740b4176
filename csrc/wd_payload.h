/* wd_payload.h -- finds the payload of a job in what the disk holds: frames, chunks. */
#ifndef WD_PAYLOAD_H
#define WD_PAYLOAD_H

#include "wd_int.h"

/* cffi: begin */
/* The payload that the n bytes at p give to job id, the last one if they give several, in place.
 * Pure functions of their arguments. WD_OK; WD_EGONE: they give none; WD_ECORRUPT: these bytes
 * verify, and cannot be what was written. */
/* Whole valid frames. */
int wd_frames_payload(const uint8_t *p, size_t n, uint64_t id, const uint8_t **out_p,
                      size_t *out_n);
/* Whole valid chunks of a checkpoint, without its header block. */
int wd_chunks_payload(const uint8_t *p, size_t n, uint64_t id, const uint8_t **out_p,
                      size_t *out_n);
/* cffi: end */

#endif /* WD_PAYLOAD_H */
