/* wd_frame.c -- the codec of frames, segment headers and MARK slots, and the scan over frames.
 *
 * A frame is valid if and only if (FORMAT.md has the same list)
 *   1. its magic, and a header crc that covers header bytes 8..64;
 *   2. its salt is its segment's;
 *   3. its length is within the limit and within the segment;
 *   4. its first lsn is the next one, and it holds at least one record;
 *   5. its prev_crc is the payload crc of the frame before it, over segment borders too;
 *   6. a payload crc that covers payload and padding.
 * Two crcs: a good header over a bad payload still tells how far the frame reached. Both are seeded
 * with the salt, so bytes of another segment never verify here. The chain of prev_crc and lsn
 * (etcd, SQLite and TigerBeetle chain in like ways) makes an exchanged, repeated or missing frame
 * visible.
 *
 * Not here: what a stop means for a start. That is judged in wal/recover.py.
 */
#include "wd_frame.h"

#define SEGMENT_MAGIC "WDSEGMT\n"
#define MARK_MAGIC    "WDMARKS\n"

enum { MAGIC_BYTES = 8, ALIGN = 8, HEADER_CRC_FROM = 8, UUID_BYTES = 16, ZERO_STEP = 4096 };

_Static_assert(WD_FRAME_AT_SALT + 4 == WD_FRAME_HEADER_BYTES, "the header has no gap at its end");
_Static_assert(WD_SEGMENT_AT_CRC + 4 == WD_SEGMENT_HEADER_BYTES, "the crc ends the block");
_Static_assert(WD_MARK_AT_CRC + 4 == WD_MARK_SLOT_BYTES, "the crc ends the slot");
_Static_assert(WD_FRAME_HEADER_BYTES % ALIGN == 0, "headers stand at 8-byte steps");
_Static_assert(WD_SEGMENT_HEADER_BYTES % ALIGN == 0, "the first frame stands at an 8-byte step");

static uint64_t whole_bytes(uint64_t payload_bytes)
{
    return WD_FRAME_HEADER_BYTES + (payload_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static uint32_t header_crc(const uint8_t *frame, uint32_t salt)
{
    return wd_crc32c(salt, frame + HEADER_CRC_FROM, WD_FRAME_HEADER_BYTES - HEADER_CRC_FROM);
}

/* ---- segment header ---- */

void wd_segment_encode(const wd_segment_meta *m, uint8_t *block)
{
    WD_ASSERT(m->seq > 0);
    WD_ASSERT(m->base_lsn > 0);
    memset(block, 0, WD_SEGMENT_HEADER_BYTES);
    memcpy(block + WD_SEGMENT_AT_MAGIC, SEGMENT_MAGIC, MAGIC_BYTES);
    wd_put_u32(block + WD_SEGMENT_AT_VERSION, WD_FORMAT_VERSION);
    wd_put_u32(block + WD_SEGMENT_AT_READER_MIN, WD_FORMAT_READER_MIN);
    memcpy(block + WD_SEGMENT_AT_UUID, m->uuid, UUID_BYTES);
    wd_put_u64(block + WD_SEGMENT_AT_TERM, m->term);
    wd_put_u64(block + WD_SEGMENT_AT_SEQ, m->seq);
    wd_put_u64(block + WD_SEGMENT_AT_BASE_LSN, m->base_lsn);
    wd_put_u32(block + WD_SEGMENT_AT_PREV_CRC, m->prev_crc);
    wd_put_u32(block + WD_SEGMENT_AT_SALT, m->salt);
    wd_put_u32(block + WD_SEGMENT_AT_FSYNC_MODE, m->fsync_mode);
    wd_put_u64(block + WD_SEGMENT_AT_CREATED_WALL_MS, (uint64_t)m->created_wall_ms);
    wd_put_u64(block + WD_SEGMENT_AT_REL_MINUS_BOOT_MS, (uint64_t)m->rel_minus_boot_ms);
    memcpy(block + WD_SEGMENT_AT_BOOT_ID, m->boot_id, UUID_BYTES);
    wd_put_u32(block + WD_SEGMENT_AT_CRC, wd_crc32c(0, block, WD_SEGMENT_AT_CRC));
}

int wd_segment_decode(const uint8_t *block, wd_segment_meta *out)
{
    WD_ASSERT(block != NULL);
    WD_ASSERT(out != NULL);
    if (memcmp(block + WD_SEGMENT_AT_MAGIC, SEGMENT_MAGIC, MAGIC_BYTES) != 0) return WD_ECORRUPT;
    if (wd_get_u32(block + WD_SEGMENT_AT_CRC) != wd_crc32c(0, block, WD_SEGMENT_AT_CRC)) {
        return WD_ECORRUPT;
    }
    if (wd_get_u32(block + WD_SEGMENT_AT_READER_MIN) > WD_FORMAT_VERSION) return WD_EINVAL;
    wd_segment_meta m = {
        .term = wd_get_u64(block + WD_SEGMENT_AT_TERM),
        .seq = wd_get_u64(block + WD_SEGMENT_AT_SEQ),
        .base_lsn = wd_get_u64(block + WD_SEGMENT_AT_BASE_LSN),
        .prev_crc = wd_get_u32(block + WD_SEGMENT_AT_PREV_CRC),
        .salt = wd_get_u32(block + WD_SEGMENT_AT_SALT),
        .fsync_mode = wd_get_u32(block + WD_SEGMENT_AT_FSYNC_MODE),
        .created_wall_ms = (int64_t)wd_get_u64(block + WD_SEGMENT_AT_CREATED_WALL_MS),
        .rel_minus_boot_ms = (int64_t)wd_get_u64(block + WD_SEGMENT_AT_REL_MINUS_BOOT_MS),
    };
    memcpy(m.uuid, block + WD_SEGMENT_AT_UUID, UUID_BYTES);
    memcpy(m.boot_id, block + WD_SEGMENT_AT_BOOT_ID, UUID_BYTES);
    *out = m;
    return WD_OK;
}

/* ---- MARK ---- */

void wd_mark_encode(const wd_mark_meta *m, uint8_t *slot)
{
    WD_ASSERT(m != NULL);
    WD_ASSERT(slot != NULL);
    memset(slot, 0, WD_MARK_SLOT_BYTES);
    memcpy(slot + WD_MARK_AT_MAGIC, MARK_MAGIC, MAGIC_BYTES);
    wd_put_u64(slot + WD_MARK_AT_COUNT, m->count);
    wd_put_u64(slot + WD_MARK_AT_LSN, m->lsn);
    wd_put_u64(slot + WD_MARK_AT_SEQ, m->seq);
    wd_put_u64(slot + WD_MARK_AT_OFFSET, m->offset);
    wd_put_u64(slot + WD_MARK_AT_TERM, m->term);
    wd_put_u64(slot + WD_MARK_AT_WALL_MS, (uint64_t)m->wall_ms);
    wd_put_u32(slot + WD_MARK_AT_FRAME_CRC, m->frame_crc);
    wd_put_u32(slot + WD_MARK_AT_FLAGS, m->flags);
    memcpy(slot + WD_MARK_AT_UUID, m->uuid, UUID_BYTES);
    wd_put_u32(slot + WD_MARK_AT_CRC, wd_crc32c(0, slot, WD_MARK_AT_CRC));
}

int wd_mark_decode(const uint8_t *slot, wd_mark_meta *out)
{
    WD_ASSERT(slot != NULL);
    WD_ASSERT(out != NULL);
    if (memcmp(slot + WD_MARK_AT_MAGIC, MARK_MAGIC, MAGIC_BYTES) != 0) return WD_ECORRUPT;
    if (wd_get_u32(slot + WD_MARK_AT_CRC) != wd_crc32c(0, slot, WD_MARK_AT_CRC)) {
        return WD_ECORRUPT;
    }
    wd_mark_meta m = {
        .count = wd_get_u64(slot + WD_MARK_AT_COUNT),
        .lsn = wd_get_u64(slot + WD_MARK_AT_LSN),
        .seq = wd_get_u64(slot + WD_MARK_AT_SEQ),
        .offset = wd_get_u64(slot + WD_MARK_AT_OFFSET),
        .term = wd_get_u64(slot + WD_MARK_AT_TERM),
        .wall_ms = (int64_t)wd_get_u64(slot + WD_MARK_AT_WALL_MS),
        .frame_crc = wd_get_u32(slot + WD_MARK_AT_FRAME_CRC),
        .flags = wd_get_u32(slot + WD_MARK_AT_FLAGS),
    };
    memcpy(m.uuid, slot + WD_MARK_AT_UUID, UUID_BYTES);
    *out = m;
    return WD_OK;
}

/* ---- frame ---- */

size_t wd_frame_seal(uint8_t *frame, const wd_frame_meta *m, uint32_t salt, uint32_t prev_crc)
{
    size_t whole = (size_t)whole_bytes(m->payload_bytes);
    size_t used = WD_FRAME_HEADER_BYTES + (size_t)m->payload_bytes;
    WD_ASSERT(whole <= WD_FRAME_BYTES_MAX);
    WD_ASSERT(m->records > 0);
    WD_ASSERT(m->first_lsn > 0);
    memset(frame + used, 0, whole - used);
    wd_put_u32(frame + WD_FRAME_AT_MAGIC, WD_FRAME_MAGIC);
    wd_put_u32(frame + WD_FRAME_AT_PAYLOAD_CRC,
               wd_crc32c(salt, frame + WD_FRAME_HEADER_BYTES, whole - WD_FRAME_HEADER_BYTES));
    wd_put_u32(frame + WD_FRAME_AT_PAYLOAD_BYTES, m->payload_bytes);
    wd_put_u32(frame + WD_FRAME_AT_RECORDS, m->records);
    wd_put_u32(frame + WD_FRAME_AT_FLAGS, m->flags);
    wd_put_u64(frame + WD_FRAME_AT_FIRST_LSN, m->first_lsn);
    wd_put_u64(frame + WD_FRAME_AT_DURABLE_LSN, m->durable_lsn);
    wd_put_u64(frame + WD_FRAME_AT_WALL_MS, (uint64_t)m->wall_ms);
    wd_put_u64(frame + WD_FRAME_AT_REL_MS, (uint64_t)m->rel_ms);
    wd_put_u32(frame + WD_FRAME_AT_PREV_CRC, prev_crc);
    wd_put_u32(frame + WD_FRAME_AT_SALT, salt);
    wd_put_u32(frame + WD_FRAME_AT_HEADER_CRC, header_crc(frame, salt));
    return whole;
}

uint32_t wd_frame_crc(const uint8_t *frame)
{
    WD_ASSERT(wd_get_u32(frame + WD_FRAME_AT_MAGIC) == WD_FRAME_MAGIC);
    return wd_get_u32(frame + WD_FRAME_AT_PAYLOAD_CRC);
}

size_t wd_frame_header(const uint8_t *frame, wd_frame_meta *out)
{
    WD_ASSERT(wd_get_u32(frame + WD_FRAME_AT_MAGIC) == WD_FRAME_MAGIC);
    WD_ASSERT(out != NULL);
    *out = (wd_frame_meta){
        .payload_bytes = wd_get_u32(frame + WD_FRAME_AT_PAYLOAD_BYTES),
        .records = wd_get_u32(frame + WD_FRAME_AT_RECORDS),
        .flags = wd_get_u32(frame + WD_FRAME_AT_FLAGS),
        .first_lsn = wd_get_u64(frame + WD_FRAME_AT_FIRST_LSN),
        .durable_lsn = wd_get_u64(frame + WD_FRAME_AT_DURABLE_LSN),
        .wall_ms = (int64_t)wd_get_u64(frame + WD_FRAME_AT_WALL_MS),
        .rel_ms = (int64_t)wd_get_u64(frame + WD_FRAME_AT_REL_MS),
    };
    return (size_t)whole_bytes(out->payload_bytes);
}

/* ---- scan ---- */

size_t wd_zero_prefix(const uint8_t *p, size_t n)
{
    static const uint8_t ZERO[ZERO_STEP];
    size_t at = 0;
    while (n - at >= ZERO_STEP && memcmp(p + at, ZERO, ZERO_STEP) == 0) {
        at += ZERO_STEP;
    }
    while (at < n && p[at] == 0) {
        at++;
    }
    WD_ASSERT(at <= n);
    return at;
}

/* No whole header stands in the n bytes at p: what that means with room bytes left in the segment.
 */
static int stop_without_header(const uint8_t *p, size_t n, uint64_t room)
{
    if (n < room) return WD_SCAN_MORE;
    if (n == 0) return WD_SCAN_END;
    return wd_zero_prefix(p, n) == n ? WD_SCAN_ZERO : WD_SCAN_MAGIC;
}

/* Judge the frame at p; WD_SCAN_MORE with *whole > n when its payload is not in the buffer, and
 * with *whole <= n when the frame is valid. */
static int judge_frame(const uint8_t *p, size_t n, uint64_t room, const wd_scan *scan,
                       uint64_t *whole)
{
    WD_ASSERT(n >= WD_FRAME_HEADER_BYTES);
    *whole = 0;
    if (wd_get_u32(p + WD_FRAME_AT_MAGIC) != WD_FRAME_MAGIC) {
        int zero = wd_zero_prefix(p, WD_FRAME_HEADER_BYTES) == WD_FRAME_HEADER_BYTES;
        return zero ? WD_SCAN_ZERO : WD_SCAN_MAGIC;
    }
    uint32_t salt = wd_get_u32(p + WD_FRAME_AT_SALT);
    if (wd_get_u32(p + WD_FRAME_AT_HEADER_CRC) != header_crc(p, salt)) return WD_SCAN_HEADER_CRC;
    if (salt != scan->salt) return WD_SCAN_SALT;
    wd_frame_meta m;
    uint64_t bytes = wd_frame_header(p, &m);
    if (bytes > WD_FRAME_BYTES_MAX || bytes > room) return WD_SCAN_LENGTH;
    if (m.first_lsn != scan->next_lsn || m.records == 0) return WD_SCAN_LSN;
    if (wd_get_u32(p + WD_FRAME_AT_PREV_CRC) != scan->prev_crc) return WD_SCAN_PREV_CRC;
    *whole = bytes;
    if (bytes > n) return WD_SCAN_MORE;
    uint32_t crc = wd_crc32c(salt, p + WD_FRAME_HEADER_BYTES, bytes - WD_FRAME_HEADER_BYTES);
    return crc == wd_frame_crc(p) ? WD_SCAN_MORE : WD_SCAN_PAYLOAD_CRC;
}

static void take_frame(const uint8_t *p, uint64_t whole, wd_scan *scan)
{
    wd_frame_meta m;
    (void)wd_frame_header(p, &m);
    scan->next_lsn = m.first_lsn + m.records;
    scan->prev_crc = wd_frame_crc(p);
    if (m.durable_lsn > scan->durable_lsn) scan->durable_lsn = m.durable_lsn;
    scan->wall_ms = m.wall_ms;
    scan->rel_ms = m.rel_ms;
    scan->last_offset = scan->bytes;
    scan->bytes += whole;
    scan->frames++;
    scan->records += m.records;
}

void wd_frame_scan(const uint8_t *p, size_t n, uint64_t room, wd_scan *scan)
{
    WD_ASSERT(n <= room);
    WD_ASSERT(scan->next_lsn > 0);
    scan->bytes = scan->frames = scan->records = scan->need_bytes = 0;
    for (;;) { /* ends: each turn takes at least one header's bytes or stops */
        size_t left = n - (size_t)scan->bytes;
        const uint8_t *at = p + scan->bytes;
        if (left < WD_FRAME_HEADER_BYTES) {
            scan->stop = stop_without_header(at, left, room - scan->bytes);
            return;
        }
        uint64_t whole = 0;
        scan->stop = judge_frame(at, left, room - scan->bytes, scan, &whole);
        if (scan->stop != WD_SCAN_MORE || whole > left) {
            scan->need_bytes = whole;
            return;
        }
        take_frame(at, whole, scan);
    }
}

size_t wd_frame_split(const uint8_t *p, size_t n, size_t limit)
{
    size_t at = 0;
    while (at < n) {
        wd_frame_meta m;
        WD_ASSERT(n - at >= WD_FRAME_HEADER_BYTES);
        size_t whole = wd_frame_header(p + at, &m);
        WD_ASSERT(whole <= n - at);
        if (at > 0 && at + whole > limit) break;
        at += whole;
    }
    return at;
}

int wd_frame_find(const uint8_t *p, size_t n, int64_t salt, wd_found *out)
{
    WD_ASSERT(salt >= -1);
    WD_ASSERT(out != NULL);
    for (size_t at = 0; at + WD_FRAME_HEADER_BYTES <= n; at += ALIGN) {
        const uint8_t *f = p + at;
        if (wd_get_u32(f + WD_FRAME_AT_MAGIC) != WD_FRAME_MAGIC) continue;
        uint32_t own = wd_get_u32(f + WD_FRAME_AT_SALT);
        if (salt >= 0 && own != (uint32_t)salt) continue;
        if (wd_get_u32(f + WD_FRAME_AT_HEADER_CRC) != header_crc(f, own)) continue;
        out->offset = at;
        out->frame_bytes = wd_frame_header(f, &out->meta);
        out->salt = own;
        out->prev_crc = wd_get_u32(f + WD_FRAME_AT_PREV_CRC);
        out->payload_crc = wd_frame_crc(f);
        return 1;
    }
    return 0;
}
