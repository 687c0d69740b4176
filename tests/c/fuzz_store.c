/* fuzz_store.c -- any bytes at all as a segment, a MARK or a checkpoint.
 *
 * Each input goes, in a block of exactly its size,
 *   1. to the decoders: what they take lies inside the input, and does not depend on where a buffer
 *      ends;
 *   2. with its checksums made right again, to the engine: the loader of checkpoints, and replay.
 *      They take it or refuse it. Frames that are taken leave the invariants whole, because records
 *      are compared with the state. An image that somebody forged may contradict itself; loading it
 *      and starting from it touches no memory that is not the core's.
 *
 * Two builds, over all of csrc/ :
 *   clang -fsanitize=fuzzer,address,undefined -Icsrc tests/c/fuzz_store.c csrc/wd_*.c -o fuzz_store
 *       then: fuzz_store tests/c/corpus/store
 *   gcc -DWD_FUZZ_MAIN -fsanitize=address,undefined ... (the same files)
 *       then: fuzz_store COUNT SEED FILE...   replays the files, then runs COUNT mutations of them
 */
#include "wd_ckptfile.h"
#include "wd_control.h"
#include "wd_core.h"
#include "wd_frame.h"
#include "wd_save.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { INPUT_BYTES_MAX = 1 << 16, CHANGES_MAX = 6, JOBS_MAX = 4096, FILES_MAX = 64 };
enum { WD_RING_ORDER = 11 }; /* of wd_check: forged times may go back, which is no danger */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t *block_of(const uint8_t *data, size_t size)
{
    uint8_t *block = malloc(size ? size : 1);
    WD_ASSERT(block != NULL);
    if (size) memcpy(block, data, size);
    return block;
}

/* ---- decoders ---- */

static wd_scan scan_from(const wd_segment_meta *m)
{
    return (wd_scan){.next_lsn = m->base_lsn, .prev_crc = m->prev_crc, .salt = m->salt};
}

static void decode_segment(const uint8_t *data, size_t size)
{
    wd_segment_meta m = {.base_lsn = 1};
    if (size >= WD_SEGMENT_HEADER_BYTES) (void)wd_segment_decode(data, &m);
    if (m.base_lsn == 0 || size < WD_SEGMENT_HEADER_BYTES) return;
    const uint8_t *frames = data + WD_SEGMENT_HEADER_BYTES;
    size_t n = size - WD_SEGMENT_HEADER_BYTES;
    wd_scan whole = scan_from(&m);
    wd_frame_scan(frames, n, n, &whole);
    WD_ASSERT(whole.bytes <= n && whole.frames <= whole.records);
    size_t cut = n / 2;
    wd_scan part = scan_from(&m);
    uint8_t *first = block_of(frames, cut);
    wd_frame_scan(first, cut, n, &part);
    free(first);
    WD_ASSERT(part.bytes <= whole.bytes && part.frames <= whole.frames);
    size_t rest = n - (size_t)part.bytes;
    uint64_t bytes = part.bytes, records = part.records;
    wd_frame_scan(frames + part.bytes, rest, rest, &part);
    WD_ASSERT(bytes + part.bytes == whole.bytes && records + part.records == whole.records);
    WD_ASSERT(part.next_lsn == whole.next_lsn && part.stop == whole.stop);
    wd_found found;
    if (wd_frame_find(data, size, -1, &found)) WD_ASSERT(found.offset < size);
}

static void decode_marks(const uint8_t *data, size_t size)
{
    for (size_t at = 0; at + WD_MARK_SLOT_BYTES <= size; at += WD_MARK_SLOT_BYTES) {
        uint8_t *slot = block_of(data + at, WD_MARK_SLOT_BYTES);
        wd_mark_meta m;
        (void)wd_mark_decode(slot, &m);
        free(slot);
    }
}

static void decode_checkpoint(const uint8_t *data, size_t size)
{
    wd_ckpt_scan scan = {0};
    wd_ckpt_scan_run(data, size, size, &scan);
    WD_ASSERT(scan.bytes <= size);
    WD_ASSERT(scan.stop != WD_CKPT_WHOLE || scan.bytes == size);
}

/* ---- checksums made right ---- */

static size_t mend_segment(uint8_t *data, size_t size)
{
    size_t at = WD_SEGMENT_HEADER_BYTES;
    uint64_t lsn = 1;
    uint32_t crc = 0;
    while (at + WD_FRAME_HEADER_BYTES <= size) {
        wd_frame_meta m;
        wd_put_u32(data + at + WD_FRAME_AT_MAGIC, WD_FRAME_MAGIC);
        size_t whole = wd_frame_header(data + at, &m);
        if (m.records == 0 || m.records > 4096 || whole > size - at) break;
        m.first_lsn = lsn;
        (void)wd_frame_seal(data + at, &m, 7, crc);
        crc = wd_frame_crc(data + at);
        lsn += m.records;
        at += whole;
    }
    return at;
}

static size_t mend_checkpoint(uint8_t *data, size_t size)
{
    wd_ckpt_meta meta;
    memcpy(data, "WDCKPNT\n", 8);
    wd_put_u32(data + WD_CKPT_AT_CRC, wd_crc32c(0, data, WD_CKPT_AT_CRC));
    if (wd_ckpt_header_decode(data, &meta) != WD_OK) return 0;
    size_t at = WD_CKPT_HEADER_BYTES;
    uint32_t number = 0, crcs = meta.salt;
    uint64_t things = 0;
    while (at + WD_CKPT_CHUNK_HEADER_BYTES <= size) {
        wd_chunk_meta m;
        wd_put_u32(data + at + WD_CHUNK_AT_MAGIC, WD_CKPT_CHUNK_MAGIC);
        size_t whole = wd_chunk_header(data + at, &m);
        if (whole > size - at || m.payload_bytes > size || !m.kind || !m.count) break;
        m.number = number++;
        uint8_t *end = data + at + WD_CKPT_CHUNK_HEADER_BYTES;
        if (m.kind == WD_CHUNK_END && m.payload_bytes == WD_CKPT_END_BYTES) {
            wd_ckpt_end e;
            wd_ckpt_end_decode(end, &e);
            e.chunks = number - 1;
            e.things = things;
            e.crc = crcs;
            e.start_lsn = meta.start_lsn;
            if (e.end_lsn < e.start_lsn) e.end_lsn = e.start_lsn;
            wd_ckpt_end_encode(&e, end);
        }
        (void)wd_chunk_seal(data + at, &m, meta.salt);
        uint32_t crc = wd_chunk_crc(data + at);
        crcs = wd_crc32c(crcs, &crc, sizeof crc);
        things += m.count;
        at += whole;
        if (m.kind == WD_CHUNK_END) break;
    }
    return at;
}

/* ---- the engine ---- */

static void take(const uint8_t *checkpoint, size_t checkpoint_n, const uint8_t *frames, size_t n)
{
    wd_core_options o = {.jobs_max = JOBS_MAX,
                         .conns_max = 4,
                         .dead_max = 100,
                         .dead_kept_ms = 1000000,
                         .ended_max = 1000,
                         .once_max = 1000,
                         .maxmemory_bytes = 64 << 20,
                         .payload_bytes_max = 1 << 16,
                         .commit_mode = WD_COMMIT_DRIVEN,
                         .hand_clock = 1};
    wd_core *c = wd_core_new(&o);
    WD_ASSERT(c != NULL);
    int status = WD_OK;
    if (checkpoint_n) status = wd_core_load(c, checkpoint, checkpoint_n);
    if (status == WD_OK && n) status = wd_core_replay(c, frames, n, 1);
    const int64_t now_ms = INT64_C(1800000000000);
    if (status == WD_OK) status = wd_core_start(c, 9, now_ms, now_ms, 1000, 1000);
    int broken = status == WD_OK ? wd_core_check(c) : 0;
    WD_ASSERT(broken == 0 || broken == WD_RING_ORDER || checkpoint_n > 0);
    if (status == WD_OK && !broken) (void)wd_core_tick(c, now_ms + 1000, 2000, 2000);
    wd_core_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > INPUT_BYTES_MAX) return 0;
    uint8_t *block = block_of(data, size);
    decode_segment(block, size);
    decode_marks(block, size);
    decode_checkpoint(block, size);
    if (size > WD_CKPT_HEADER_BYTES && data[2] == 'C') {
        size_t n = mend_checkpoint(block, size);
        uint8_t *exact = block_of(block, n);
        if (n) take(exact, n, NULL, 0);
        free(exact);
    } else if (size > WD_SEGMENT_HEADER_BYTES) {
        size_t n = mend_segment(block, size) - WD_SEGMENT_HEADER_BYTES;
        uint8_t *exact = block_of(block + WD_SEGMENT_HEADER_BYTES, n);
        if (n) take(NULL, 0, exact, n);
        free(exact);
    }
    free(block);
    return 0;
}

#ifdef WD_FUZZ_MAIN

/* splitmix64. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static wd_buf load(const char *path)
{
    wd_buf b = {0};
    FILE *f = fopen(path, "rb");
    WD_ASSERT(f != NULL);
    int status = wd_buf_need(&b, INPUT_BYTES_MAX);
    WD_ASSERT(status == WD_OK);
    b.n = fread(b.p, 1, INPUT_BYTES_MAX, f);
    (void)fclose(f);
    return b;
}

/* Change some bytes behind the front block (a few in it), or cut the end. */
static void run_case(uint64_t seed, const wd_buf *file)
{
    static const uint8_t ODD[] = {0, 1, 0x7f, 0x80, 0xff};
    uint64_t state = seed;
    uint8_t *copy = block_of(file->p, file->n);
    size_t n = file->n;
    if (n == 0) return;
    for (uint64_t k = 1 + draw(&state) % CHANGES_MAX; k > 0; k--) {
        size_t front = draw(&state) % 5 == 0 || n <= 4096 ? 0 : 4096;
        size_t at = front + (size_t)(draw(&state) % (n - front));
        uint64_t how = draw(&state) % 3;
        if (how == 0) copy[at] ^= (uint8_t)(1U << draw(&state) % 8);
        if (how == 1) copy[at] = ODD[draw(&state) % sizeof ODD];
        if (how == 2) copy[at] = (uint8_t)draw(&state);
    }
    if (draw(&state) % 16 == 0) n = 1 + (size_t)(draw(&state) % n);
    (void)LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc - 3 > FILES_MAX) {
        (void)fprintf(stderr, "usage: fuzz_store COUNT SEED FILE...\n");
        return 2;
    }
    uint64_t count = strtoull(argv[1], NULL, 10), seed = strtoull(argv[2], NULL, 10);
    size_t files_n = (size_t)argc - 3;
    wd_buf files[FILES_MAX] = {{0}};
    for (size_t i = 0; i < files_n; i++) {
        files[i] = load(argv[3 + i]);
        (void)LLVMFuzzerTestOneInput(files[i].p, files[i].n);
    }
    for (uint64_t i = 0; i < count; i++) {
        (void)fprintf(stderr, "\rseed %" PRIu64 " case %" PRIu64, seed, i);
        run_case(seed * UINT64_C(0x2545f4914f6cdd1d) + i, &files[i % files_n]);
    }
    for (size_t i = 0; i < files_n; i++)
        wd_buf_free(&files[i]);
    printf("ran %" PRIu64 " cases\n", count);
    return 0;
}

#endif /* WD_FUZZ_MAIN */
