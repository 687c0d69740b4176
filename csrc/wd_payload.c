/* wd_payload.c -- finds the payload of a job in what the disk holds: frames, chunks.
 *
 * For one whose copy in memory has changed. The bytes have been verified by a scan; nothing here
 * looks at a state, and nothing is believed: who puts a payload back compares it with the checksum
 * that memory has of the true one (wd_arena_mend).
 */
#include "wd_payload.h"

#include "wd_ckptfile.h"
#include "wd_frame.h"
#include "wd_image.h"
#include "wd_record.h"

static int in_frame(wd_span s, uint32_t records, uint64_t id, wd_span *found)
{
    for (uint32_t i = 0; i < records; i++) {
        wd_record r;
        size_t size;
        int status = wd_record_decode(s, &r, &size);
        if (status != WD_OK) return status;
        int makes = r.kind == WD_R_CREATED || r.kind == WD_R_REPLACED;
        if (makes && r.id == id) *found = r.text[WD_S_PAYLOAD];
        s = (wd_span){s.p + size, s.n - size};
    }
    return WD_OK;
}

/* The row of slot number `slot` stands in this chunk: walk to it. */
static int in_rows(wd_span s, const wd_chunk_meta *m, uint64_t id, wd_span *found)
{
    wd_image_row row = {0};
    for (uint64_t slot = m->first; slot <= (uint32_t)id; slot++) {
        size_t size;
        int status = wd_image_row_read(s, &row, &size);
        if (status != WD_OK) return status;
        s = (wd_span){s.p + size, s.n - size};
    }
    if (row.used && row.gen == id >> 32) *found = row.payload;
    return WD_OK;
}

static int give(wd_span found, const uint8_t **out_p, size_t *out_n)
{
    *out_p = found.p;
    *out_n = found.n;
    return found.n ? WD_OK : WD_EGONE; /* an empty one cannot change */
}

int wd_frames_payload(const uint8_t *p, size_t n, uint64_t id, const uint8_t **out_p, size_t *out_n)
{
    wd_span found = {NULL, 0};
    for (size_t at = 0; at < n;) { /* bounded: each frame has a header */
        wd_frame_meta m;
        size_t whole = wd_frame_header(p + at, &m);
        WD_ASSERT(whole <= n - at);
        wd_span s = {p + at + WD_FRAME_HEADER_BYTES, m.payload_bytes};
        int status = in_frame(s, m.records, id, &found);
        if (status != WD_OK) return status;
        at += whole;
    }
    return give(found, out_p, out_n);
}

int wd_chunks_payload(const uint8_t *p, size_t n, uint64_t id, const uint8_t **out_p, size_t *out_n)
{
    wd_span found = {NULL, 0};
    uint32_t slot = (uint32_t)id;
    for (size_t at = 0; at < n;) { /* bounded: each chunk has a header */
        wd_chunk_meta m;
        size_t whole = wd_chunk_header(p + at, &m);
        WD_ASSERT(whole <= n - at);
        wd_span s = {p + at + WD_CKPT_CHUNK_HEADER_BYTES, m.payload_bytes};
        int holds = m.kind == WD_CHUNK_ROWS && m.first <= slot && slot - m.first < m.count;
        int status = holds ? in_rows(s, &m, id, &found) : WD_OK;
        if (status != WD_OK) return status;
        at += whole;
    }
    return give(found, out_p, out_n);
}
