/* wd_ckptfile.c -- the codec of a checkpoint's blocks, and the scan that verifies a file.
 *
 * A file is whole if and only if (FORMAT.md has the same list)
 *   1. its header block has the magic and a crc that covers the rest of it;
 *   2. chunks follow, numbered from 0 without a gap, each with the header's salt;
 *   3. each chunk's header crc, and its payload crc over payload and padding, match;
 *   4. the last one is END, agrees with the header block and with the chunks before it in their
 *      number, in what they counted and in the crc of their crcs, and the file ends behind it.
 * Two crcs a chunk, as in a frame: a length is believed only when the header verifies. So each bit
 * of the file is under a crc whose extent does not depend on that bit.
 *
 * Not here: what the payloads say (wd_image.c, wd_load.c), which file is in force (wal/).
 */
#include "wd_ckptfile.h"

#include "wd_frame.h"

#define CKPT_MAGIC "WDCKPNT\n"

enum { MAGIC_BYTES = 8, ALIGN = 8, HEADER_CRC_FROM = 8, UUID_BYTES = 16, SKIPPABLE = 0x80 };
enum { STAGE_HEADER = 0, STAGE_CHUNKS = 1, STAGE_OVER = 2 };

_Static_assert(WD_CKPT_AT_CRC + 4 == WD_CKPT_HEADER_BYTES, "the crc ends the block");
_Static_assert(WD_CHUNK_AT_SALT + 4 == WD_CKPT_CHUNK_HEADER_BYTES, "no gap at the header's end");
_Static_assert(WD_CKPT_CHUNK_HEADER_BYTES % ALIGN == 0, "payloads stand at 8-byte steps");
_Static_assert(WD_CKPT_HEADER_BYTES % ALIGN == 0, "the first chunk stands at an 8-byte step");

/* ---- header block ---- */

void wd_ckpt_header_encode(const wd_ckpt_meta *m, uint8_t *block)
{
    WD_ASSERT(m->term > 0);
    WD_ASSERT(m->jobs <= m->slots);
    memset(block, 0, WD_CKPT_HEADER_BYTES);
    memcpy(block + WD_CKPT_AT_MAGIC, CKPT_MAGIC, MAGIC_BYTES);
    wd_put_u32(block + WD_CKPT_AT_VERSION, WD_FORMAT_VERSION);
    wd_put_u32(block + WD_CKPT_AT_READER_MIN, WD_FORMAT_READER_MIN);
    memcpy(block + WD_CKPT_AT_UUID, m->uuid, UUID_BYTES);
    wd_put_u64(block + WD_CKPT_AT_TERM, m->term);
    wd_put_u64(block + WD_CKPT_AT_START_LSN, m->start_lsn);
    wd_put_u32(block + WD_CKPT_AT_SALT, m->salt);
    wd_put_u64(block + WD_CKPT_AT_CREATED_WALL_MS, (uint64_t)m->created_wall_ms);
    wd_put_u64(block + WD_CKPT_AT_LOGICAL_MS, (uint64_t)m->logical_ms);
    wd_put_u32(block + WD_CKPT_AT_SLOTS, m->slots);
    wd_put_u32(block + WD_CKPT_AT_JOBS, m->jobs);
    wd_put_u32(block + WD_CKPT_AT_KEYS, m->keys);
    wd_put_u32(block + WD_CKPT_AT_GENERATION, m->generation);
    wd_put_u64(block + WD_CKPT_AT_BLOB_BYTES, m->blob_bytes);
    wd_put_u32(block + WD_CKPT_AT_SIDES, m->sides);
    wd_put_u32(block + WD_CKPT_AT_RUNS, m->runs);
    wd_put_u32(block + WD_CKPT_AT_CRC, wd_crc32c(0, block, WD_CKPT_AT_CRC));
}

int wd_ckpt_header_decode(const uint8_t *block, wd_ckpt_meta *out)
{
    WD_ASSERT(block != NULL);
    WD_ASSERT(out != NULL);
    if (memcmp(block + WD_CKPT_AT_MAGIC, CKPT_MAGIC, MAGIC_BYTES) != 0) return WD_ECORRUPT;
    if (wd_get_u32(block + WD_CKPT_AT_CRC) != wd_crc32c(0, block, WD_CKPT_AT_CRC))
        return WD_ECORRUPT;
    if (wd_get_u32(block + WD_CKPT_AT_READER_MIN) > WD_FORMAT_VERSION) return WD_EINVAL;
    wd_ckpt_meta m = {
        .term = wd_get_u64(block + WD_CKPT_AT_TERM),
        .start_lsn = wd_get_u64(block + WD_CKPT_AT_START_LSN),
        .salt = wd_get_u32(block + WD_CKPT_AT_SALT),
        .created_wall_ms = (int64_t)wd_get_u64(block + WD_CKPT_AT_CREATED_WALL_MS),
        .logical_ms = (int64_t)wd_get_u64(block + WD_CKPT_AT_LOGICAL_MS),
        .slots = wd_get_u32(block + WD_CKPT_AT_SLOTS),
        .jobs = wd_get_u32(block + WD_CKPT_AT_JOBS),
        .keys = wd_get_u32(block + WD_CKPT_AT_KEYS),
        .generation = wd_get_u32(block + WD_CKPT_AT_GENERATION),
        .blob_bytes = wd_get_u64(block + WD_CKPT_AT_BLOB_BYTES),
        .sides = wd_get_u32(block + WD_CKPT_AT_SIDES),
        .runs = wd_get_u32(block + WD_CKPT_AT_RUNS),
    };
    memcpy(m.uuid, block + WD_CKPT_AT_UUID, UUID_BYTES);
    *out = m;
    return WD_OK;
}

/* ---- chunk ---- */

size_t wd_chunk_whole(size_t payload_bytes)
{
    return WD_CKPT_CHUNK_HEADER_BYTES + (payload_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static uint32_t header_crc(const uint8_t *chunk, uint32_t salt)
{
    return wd_crc32c(salt, chunk + HEADER_CRC_FROM, WD_CKPT_CHUNK_HEADER_BYTES - HEADER_CRC_FROM);
}

static uint32_t payload_crc(const uint8_t *chunk, size_t whole, uint32_t salt)
{
    return wd_crc32c(salt, chunk + WD_CKPT_CHUNK_HEADER_BYTES, whole - WD_CKPT_CHUNK_HEADER_BYTES);
}

size_t wd_chunk_seal(uint8_t *chunk, const wd_chunk_meta *m, uint32_t salt)
{
    size_t whole = wd_chunk_whole(m->payload_bytes);
    size_t used = WD_CKPT_CHUNK_HEADER_BYTES + (size_t)m->payload_bytes;
    WD_ASSERT(whole <= WD_CKPT_CHUNK_BYTES_MAX);
    WD_ASSERT(m->kind != 0 && m->count > 0);
    memset(chunk + used, 0, whole - used);
    wd_put_u32(chunk + WD_CHUNK_AT_MAGIC, WD_CKPT_CHUNK_MAGIC);
    wd_put_u32(chunk + WD_CHUNK_AT_PAYLOAD_CRC, payload_crc(chunk, whole, salt));
    wd_put_u32(chunk + WD_CHUNK_AT_PAYLOAD_BYTES, m->payload_bytes);
    wd_put_u32(chunk + WD_CHUNK_AT_NUMBER, m->number);
    wd_put_u32(chunk + WD_CHUNK_AT_COUNT, m->count);
    wd_put_u64(chunk + WD_CHUNK_AT_FIRST, m->first);
    wd_put_u32(chunk + WD_CHUNK_AT_KIND, m->kind);
    wd_put_u32(chunk + WD_CHUNK_AT_SALT, salt);
    wd_put_u32(chunk + WD_CHUNK_AT_HEADER_CRC, header_crc(chunk, salt));
    return whole;
}

size_t wd_chunk_header(const uint8_t *chunk, wd_chunk_meta *out)
{
    WD_ASSERT(wd_get_u32(chunk + WD_CHUNK_AT_MAGIC) == WD_CKPT_CHUNK_MAGIC);
    WD_ASSERT(out != NULL);
    *out = (wd_chunk_meta){
        .payload_bytes = wd_get_u32(chunk + WD_CHUNK_AT_PAYLOAD_BYTES),
        .number = wd_get_u32(chunk + WD_CHUNK_AT_NUMBER),
        .count = wd_get_u32(chunk + WD_CHUNK_AT_COUNT),
        .first = wd_get_u64(chunk + WD_CHUNK_AT_FIRST),
        .kind = chunk[WD_CHUNK_AT_KIND],
    };
    return wd_chunk_whole(out->payload_bytes);
}

uint32_t wd_chunk_crc(const uint8_t *chunk)
{
    WD_ASSERT(wd_get_u32(chunk + WD_CHUNK_AT_MAGIC) == WD_CKPT_CHUNK_MAGIC);
    return wd_get_u32(chunk + WD_CHUNK_AT_PAYLOAD_CRC);
}

/* ---- the last chunk's payload ---- */

void wd_ckpt_end_encode(const wd_ckpt_end *e, uint8_t *p)
{
    WD_ASSERT(e->start_lsn <= e->end_lsn);
    const uint64_t words[] = {
        e->start_lsn,  e->end_lsn,   (uint64_t)e->wall_ms, (uint64_t)e->rel_ms, e->ended_next,
        e->ended_head, e->once_next, e->once_head,         e->things,           e->jobs};
    _Static_assert(sizeof words + 8 == WD_CKPT_END_BYTES, "ten words and two halves");
    memcpy(p, words, sizeof words);
    wd_put_u32(p + sizeof words, e->chunks);
    wd_put_u32(p + sizeof words + 4, e->crc);
}

void wd_ckpt_end_decode(const uint8_t *p, wd_ckpt_end *out)
{
    WD_ASSERT(p != NULL);
    WD_ASSERT(out != NULL);
    *out = (wd_ckpt_end){
        .start_lsn = wd_get_u64(p),
        .end_lsn = wd_get_u64(p + 8),
        .wall_ms = (int64_t)wd_get_u64(p + 16),
        .rel_ms = (int64_t)wd_get_u64(p + 24),
        .ended_next = wd_get_u64(p + 32),
        .ended_head = wd_get_u64(p + 40),
        .once_next = wd_get_u64(p + 48),
        .once_head = wd_get_u64(p + 56),
        .things = wd_get_u64(p + 64),
        .jobs = wd_get_u64(p + 72),
        .chunks = wd_get_u32(p + 80),
        .crc = wd_get_u32(p + 84),
    };
}

/* ---- scan ---- */

static int kind_is_known(uint8_t kind)
{
    return (kind >= WD_CHUNK_HANDLERS && kind <= WD_CHUNK_END) || kind & SKIPPABLE;
}

/* Judge the chunk at p; WD_CKPT_MORE with *whole > n when it is not wholly in the buffer, and with
 * *whole <= n when it is valid. */
static int judge_chunk(const uint8_t *p, size_t n, uint64_t room, const wd_ckpt_scan *scan,
                       uint64_t *whole)
{
    *whole = 0;
    if (room < WD_CKPT_CHUNK_HEADER_BYTES) return WD_CKPT_SHORT;
    if (n < WD_CKPT_CHUNK_HEADER_BYTES) {
        *whole = WD_CKPT_CHUNK_HEADER_BYTES;
        return WD_CKPT_MORE;
    }
    if (wd_get_u32(p + WD_CHUNK_AT_MAGIC) != WD_CKPT_CHUNK_MAGIC) return WD_CKPT_MAGIC;
    uint32_t salt = wd_get_u32(p + WD_CHUNK_AT_SALT);
    if (wd_get_u32(p + WD_CHUNK_AT_HEADER_CRC) != header_crc(p, salt)) return WD_CKPT_HEADER_CRC;
    if (salt != scan->meta.salt) return WD_CKPT_SALT;
    wd_chunk_meta m;
    uint64_t bytes = wd_chunk_header(p, &m);
    if (bytes > WD_CKPT_CHUNK_BYTES_MAX || m.count == 0 || !kind_is_known(m.kind))
        return WD_CKPT_LENGTH;
    if (m.number != scan->chunks) return WD_CKPT_ORDER;
    if (bytes > room) return WD_CKPT_SHORT;
    *whole = bytes;
    if (bytes > n) return WD_CKPT_MORE;
    return payload_crc(p, bytes, salt) == wd_chunk_crc(p) ? WD_CKPT_MORE : WD_CKPT_PAYLOAD_CRC;
}

/* The last chunk verifies: does what it says of the others hold? */
static int take_end(const uint8_t *p, uint64_t whole, uint64_t room, wd_ckpt_scan *scan)
{
    wd_chunk_meta m;
    wd_ckpt_end end;
    (void)wd_chunk_header(p, &m);
    if (m.payload_bytes != WD_CKPT_END_BYTES) return WD_CKPT_FOOTER;
    wd_ckpt_end_decode(p + WD_CKPT_CHUNK_HEADER_BYTES, &end);
    int agrees = end.start_lsn == scan->meta.start_lsn && end.end_lsn >= end.start_lsn &&
                 end.chunks == scan->chunks && end.things == scan->things && end.crc == scan->crc;
    if (!agrees) return WD_CKPT_FOOTER;
    scan->end = end;
    scan->stage = STAGE_OVER;
    scan->bytes += whole;
    return room == whole ? WD_CKPT_WHOLE : WD_CKPT_TRAILING;
}

static void take_chunk(const uint8_t *p, uint64_t whole, wd_ckpt_scan *scan)
{
    wd_chunk_meta m;
    (void)wd_chunk_header(p, &m);
    uint8_t crc[4];
    wd_put_u32(crc, wd_chunk_crc(p));
    scan->crc = wd_crc32c(scan->crc, crc, sizeof crc);
    scan->chunks++;
    scan->things += m.count;
    scan->bytes += whole;
}

/* The header block at the file's front. WD_CKPT_MORE with scan->bytes moved when it is good. */
static int take_header(const uint8_t *p, size_t n, uint64_t room, wd_ckpt_scan *scan)
{
    if (room < WD_CKPT_HEADER_BYTES) return WD_CKPT_SHORT;
    if (n < WD_CKPT_HEADER_BYTES) {
        scan->need_bytes = WD_CKPT_HEADER_BYTES;
        return WD_CKPT_MORE;
    }
    int status = wd_ckpt_header_decode(p, &scan->meta);
    if (status != WD_OK) return status == WD_EINVAL ? WD_CKPT_NEWER : WD_CKPT_HEADER;
    scan->stage = STAGE_CHUNKS;
    scan->crc = scan->meta.salt;
    scan->bytes = WD_CKPT_HEADER_BYTES;
    return WD_CKPT_MORE;
}

void wd_ckpt_scan_run(const uint8_t *p, size_t n, uint64_t room, wd_ckpt_scan *scan)
{
    WD_ASSERT(n <= room);
    WD_ASSERT(scan->stage >= STAGE_HEADER && scan->stage <= STAGE_OVER);
    scan->bytes = scan->need_bytes = 0;
    scan->stop = WD_CKPT_MORE;
    if (scan->stage == STAGE_OVER) {
        scan->stop = room == 0 ? WD_CKPT_WHOLE : WD_CKPT_TRAILING;
        return;
    }
    if (scan->stage == STAGE_HEADER) {
        scan->stop = take_header(p, n, room, scan);
        if (scan->stage == STAGE_HEADER) return;
    }
    for (;;) { /* ends: each turn takes at least one header's bytes or stops */
        const uint8_t *at = p + scan->bytes;
        size_t left = n - (size_t)scan->bytes;
        uint64_t whole = 0;
        scan->stop = judge_chunk(at, left, room - scan->bytes, scan, &whole);
        if (scan->stop != WD_CKPT_MORE || whole > left) {
            scan->need_bytes = whole;
            return;
        }
        if (at[WD_CHUNK_AT_KIND] == WD_CHUNK_END) {
            scan->stop = take_end(at, whole, room - scan->bytes, scan);
            return;
        }
        take_chunk(at, whole, scan);
    }
}
