/* wd_crc32c.h -- crc32c (Castagnoli): of frames, of checkpoints, and of payloads in memory. */
#ifndef WD_CRC32C_H
#define WD_CRC32C_H

#include "wd_int.h"

/* cffi: begin */
/* crc32c of n bytes, continued from crc (0 at the start). SSE4.2, ARMv8 or table. */
uint32_t wd_crc32c(uint32_t crc, const void *p, size_t n);
/* Tests and callgrind: 1 = use the table whatever the CPU can do. */
void wd_crc32c_force_table(int on);
/* cffi: end */

#endif /* WD_CRC32C_H */
