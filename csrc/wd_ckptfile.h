/* wd_ckptfile.h -- the bytes of a checkpoint: header block, chunks, and the scan that verifies
 * them. FORMAT.md is the byte-exact page; a test compares its tables with the *_AT_* constants
 * below. What stands inside a chunk is wd_image.h's.
 */
#ifndef WD_CKPTFILE_H
#define WD_CKPTFILE_H

#include "wd_int.h"

/* cffi: begin */
enum {
    WD_CKPT_HEADER_BYTES = 4096,
    WD_CKPT_CHUNK_HEADER_BYTES = 40,
    WD_CKPT_CHUNK_BYTES = 262144, /* payload that a chunk is closed at */
    WD_CKPT_CHUNK_BYTES_MAX =
        4194304,                     /* header and padding included: one huge thing stands alone */
    WD_CKPT_CHUNK_MAGIC = 1263551575 /* bytes "WDPK" */
};

/* Byte offsets inside the header block. */
enum {
    WD_CKPT_AT_MAGIC = 0,
    WD_CKPT_AT_VERSION = 8,
    WD_CKPT_AT_READER_MIN = 12,
    WD_CKPT_AT_UUID = 16,
    WD_CKPT_AT_TERM = 32,
    WD_CKPT_AT_START_LSN = 40,
    WD_CKPT_AT_SALT = 48,
    WD_CKPT_AT_CREATED_WALL_MS = 56,
    WD_CKPT_AT_LOGICAL_MS = 64,
    WD_CKPT_AT_SLOTS = 72,
    WD_CKPT_AT_JOBS = 76,
    WD_CKPT_AT_KEYS = 80,
    WD_CKPT_AT_GENERATION = 84,
    WD_CKPT_AT_BLOB_BYTES = 88,
    WD_CKPT_AT_SIDES = 96,
    WD_CKPT_AT_RUNS = 100,
    WD_CKPT_AT_CRC = 4092
};

/* Byte offsets inside a chunk's header. */
enum {
    WD_CHUNK_AT_MAGIC = 0,
    WD_CHUNK_AT_HEADER_CRC = 4,
    WD_CHUNK_AT_PAYLOAD_CRC = 8,
    WD_CHUNK_AT_PAYLOAD_BYTES = 12,
    WD_CHUNK_AT_NUMBER = 16,
    WD_CHUNK_AT_COUNT = 20,
    WD_CHUNK_AT_FIRST = 24,
    WD_CHUNK_AT_KIND = 32,
    WD_CHUNK_AT_SALT = 36
};

/* What a chunk holds. On disk: append, never renumber; bit 7 = may be skipped by a reader that does
 * not know it. */
enum wd_chunk_kind {
    WD_CHUNK_HANDLERS = 1, /* FIRST = number of the first handler */
    WD_CHUNK_POLICIES = 2, /* FIRST = number of the first policy */
    WD_CHUNK_ROWS = 3,     /* FIRST = slot of the first row; COUNT slots, free ones included */
    WD_CHUNK_TABLE = 4,    /* PUT entries; FIRST = 0 */
    WD_CHUNK_ENDED = 5,    /* FIRST = number of the first entry of the ended ring */
    WD_CHUNK_ONCE = 6,     /* FIRST = number of the first ONCE token */
    WD_CHUNK_END = 7       /* the last chunk: wd_ckpt_end; COUNT = 1, FIRST = 0 */
};

/* The header block, decoded. */
typedef struct {
    uint8_t uuid[16];   /* of the store */
    uint64_t term;      /* of the server that wrote it */
    uint64_t start_lsn; /* S0: the log is needed from S0 + 1 on; the end of a frame */
    uint32_t salt;      /* random; seeds the crcs of the chunks */
    int64_t created_wall_ms;
    int64_t logical_ms;         /* logical now of the wall axis at S0 */
    uint32_t slots, jobs, keys; /* at S0: slots ever used, of them in use, live keys */
    uint32_t generation;        /* at S0: lowest of the ids to come, 0 = never raised */
    uint64_t blob_bytes;  /* at S0, a hint of what loading takes: bytes of all payloads, keys and
                             texts, ... */
    uint32_t sides, runs; /* ... side and run blocks */
} wd_ckpt_meta;

/* The last chunk's payload, decoded. */
typedef struct {
    uint64_t start_lsn; /* S0, as in the header */
    uint64_t end_lsn;   /* S1: the log must be replayed up to here before anything is served */
    int64_t wall_ms;    /* the clocks at S1 */
    int64_t rel_ms;
    uint64_t ended_next, ended_head; /* ended ring: number of the first entry made after S0, of the
                                        oldest one at S1 */
    uint64_t once_next, once_head;   /* ONCE ring: the same */
    uint64_t things;                 /* sum of the COUNTs of the chunks before this one */
    uint64_t jobs;                   /* rows in use in this file */
    uint32_t chunks;                 /* chunks before this one */
    uint32_t crc;                    /* crc32c of their PAYLOAD_CRCs, in order, from the salt on */
} wd_ckpt_end;

/* Why a scan stopped. */
enum wd_ckpt_stop {
    WD_CKPT_MORE = 0,   /* the buffer ends at a chunk's border or inside a chunk: read on */
    WD_CKPT_WHOLE = 1,  /* the last chunk verifies and the file ends behind it: it is whole */
    WD_CKPT_HEADER = 2, /* the header block does not verify */
    WD_CKPT_NEWER = 3,  /* a header that verifies, of a format that this build must not read */
    WD_CKPT_SHORT = 4,  /* the file ends before its last chunk */
    WD_CKPT_MAGIC = 5,  /* not a chunk */
    WD_CKPT_HEADER_CRC = 6,
    WD_CKPT_SALT = 7,   /* a chunk of another file */
    WD_CKPT_LENGTH = 8, /* longer than the limit, or of an unknown kind */
    WD_CKPT_ORDER = 9,  /* not the next chunk */
    WD_CKPT_PAYLOAD_CRC = 10,
    WD_CKPT_FOOTER = 11,  /* the last chunk does not agree with those before it */
    WD_CKPT_TRAILING = 12 /* bytes behind the last chunk */
};

/* A scan over one file, buffer by buffer. All zero at first. */
typedef struct {
    int stage;       /* 0 header block, 1 chunks, 2 behind the last one */
    uint32_t chunks; /* so far */
    uint32_t crc;    /* of their payload crcs */
    uint64_t things;
    wd_ckpt_meta meta; /* from stage 1 on */
    wd_ckpt_end end;   /* from stage 2 on */
    /* Results of one call. */
    uint64_t bytes;      /* header block and whole valid chunks at the front of the buffer */
    uint64_t need_bytes; /* MORE: length of what begins at `bytes`; 0 = not known yet */
    int stop;            /* enum wd_ckpt_stop */
} wd_ckpt_scan;

/* Scan n bytes from the file's front or a chunk's border on. room: bytes from p to the end of the
 * file, >= n. A pure function of its arguments. */
void wd_ckpt_scan_run(const uint8_t *p, size_t n, uint64_t room, wd_ckpt_scan *scan);
/* cffi: end */

/* A chunk's header, decoded. */
typedef struct {
    uint32_t payload_bytes, number, count;
    uint64_t first;
    uint8_t kind;
} wd_chunk_meta;

void wd_ckpt_header_encode(const wd_ckpt_meta *m, uint8_t *block);
/* WD_OK, WD_ECORRUPT, WD_EINVAL (a newer format). */
int wd_ckpt_header_decode(const uint8_t *block, wd_ckpt_meta *out);
/* Bytes of a chunk with its header and padding. */
size_t wd_chunk_whole(size_t payload_bytes);
/* Seal a chunk in place: chunk[0..40) is room for the header, the payload stands behind it, 7 more
 * bytes may be written behind the payload. Returns the whole length. */
size_t wd_chunk_seal(uint8_t *chunk, const wd_chunk_meta *m, uint32_t salt);
/* Decode the header of a chunk, whose crcs are not looked at; its whole length. */
size_t wd_chunk_header(const uint8_t *chunk, wd_chunk_meta *out);
/* The payload crc of a sealed chunk. */
uint32_t wd_chunk_crc(const uint8_t *chunk);
enum { WD_CKPT_END_BYTES = 88 };
void wd_ckpt_end_encode(const wd_ckpt_end *e, uint8_t *p);
void wd_ckpt_end_decode(const uint8_t *p, wd_ckpt_end *out);

#endif /* WD_CKPTFILE_H */
