/* wd_frame.h -- the bytes of the log: frame = one batch = what one commit writes; the header block
 * of a segment; the slot of the durable mark. FORMAT.md is the byte-exact page; a test
 * compares its tables with the *_AT_* constants below.
 */
#ifndef WD_FRAME_H
#define WD_FRAME_H

#include "wd_crc32c.h"

/* cffi: begin */
enum {
    WD_FORMAT_VERSION = 1,
    WD_FORMAT_READER_MIN = 1, /* the oldest reader that understands what this build writes */
    WD_SEGMENT_HEADER_BYTES = 4096,
    WD_FRAME_HEADER_BYTES = 64,
    WD_FRAME_BYTES_MAX = 16777216, /* 16 MiB, header and padding included */
    WD_FRAME_UNSYNCED = 1,         /* flag: written without a sync (--fsync interval, off) */
    WD_FRAME_MAGIC = 1380336727,   /* bytes "WDFR" */
    WD_MARK_SLOT_BYTES = 512,
    WD_MARK_SLOTS = 8,
    WD_MARK_CLEAN = 1 /* flag: an orderly stop, nothing was written behind it */
};

/* Byte offsets inside a frame header. */
enum {
    WD_FRAME_AT_MAGIC = 0,
    WD_FRAME_AT_HEADER_CRC = 4,
    WD_FRAME_AT_PAYLOAD_CRC = 8,
    WD_FRAME_AT_PAYLOAD_BYTES = 12,
    WD_FRAME_AT_RECORDS = 16,
    WD_FRAME_AT_FLAGS = 20,
    WD_FRAME_AT_FIRST_LSN = 24,
    WD_FRAME_AT_DURABLE_LSN = 32,
    WD_FRAME_AT_WALL_MS = 40,
    WD_FRAME_AT_REL_MS = 48,
    WD_FRAME_AT_PREV_CRC = 56,
    WD_FRAME_AT_SALT = 60
};

/* Byte offsets inside a segment's header block. */
enum {
    WD_SEGMENT_AT_MAGIC = 0,
    WD_SEGMENT_AT_VERSION = 8,
    WD_SEGMENT_AT_READER_MIN = 12,
    WD_SEGMENT_AT_UUID = 16,
    WD_SEGMENT_AT_TERM = 32,
    WD_SEGMENT_AT_SEQ = 40,
    WD_SEGMENT_AT_BASE_LSN = 48,
    WD_SEGMENT_AT_PREV_CRC = 56,
    WD_SEGMENT_AT_SALT = 60,
    WD_SEGMENT_AT_FSYNC_MODE = 64,
    WD_SEGMENT_AT_CREATED_WALL_MS = 72,
    WD_SEGMENT_AT_REL_MINUS_BOOT_MS = 80,
    WD_SEGMENT_AT_BOOT_ID = 88,
    WD_SEGMENT_AT_CRC = 4092
};

/* Byte offsets inside a slot of MARK. */
enum {
    WD_MARK_AT_MAGIC = 0,
    WD_MARK_AT_COUNT = 8,
    WD_MARK_AT_LSN = 16,
    WD_MARK_AT_SEQ = 24,
    WD_MARK_AT_OFFSET = 32,
    WD_MARK_AT_TERM = 40,
    WD_MARK_AT_WALL_MS = 48,
    WD_MARK_AT_FRAME_CRC = 56,
    WD_MARK_AT_FLAGS = 60,
    WD_MARK_AT_UUID = 64,
    WD_MARK_AT_CRC = 508
};

/* The header of a frame, decoded. */
typedef struct {
    uint32_t payload_bytes; /* without padding */
    uint32_t records;       /* >= 1 */
    uint32_t flags;
    uint64_t first_lsn;   /* lsn of its first record; records are numbered one by one */
    uint64_t durable_lsn; /* highest lsn known synced when it was written */
    int64_t wall_ms;      /* the batch's time on both axes: the time input of its records */
    int64_t rel_ms;
} wd_frame_meta;

/* The header of a segment, decoded. */
typedef struct {
    uint8_t uuid[16]; /* of the store, as in IDENT */
    uint64_t term;
    uint64_t seq;        /* number of the segment, 1.. */
    uint64_t base_lsn;   /* lsn of the first record that this segment may hold */
    uint32_t prev_crc;   /* payload crc of the frame before base_lsn, 0 = none */
    uint32_t salt;       /* random per segment; seeds every crc of its frames */
    uint32_t fsync_mode; /* enum wd_fsync it was opened under */
    int64_t created_wall_ms;
    int64_t rel_minus_boot_ms; /* rel now - CLOCK_BOOTTIME when opened */
    uint8_t boot_id[16];       /* the kernel's boot id when opened */
} wd_segment_meta;

/* One slot of MARK, decoded: "this frame, and all before it, is on the disk". */
typedef struct {
    uint64_t count; /* number of this write, 0..; it goes to slot count % WD_MARK_SLOTS */
    uint64_t lsn;   /* last lsn that a completed sync covers, 0 = none yet */
    uint64_t seq;   /* segment and offset of the frame that holds lsn */
    uint64_t offset;
    uint64_t term;      /* of the process that wrote the slot, 0 = before the first start */
    int64_t wall_ms;    /* that frame's */
    uint32_t frame_crc; /* that frame's payload crc */
    uint32_t flags;
    uint8_t uuid[16];
} wd_mark_meta;

enum wd_fsync { WD_FSYNC_ALWAYS = 0, WD_FSYNC_INTERVAL = 1, WD_FSYNC_OFF = 2 };

/* Encode / decode and verify a segment header block of WD_SEGMENT_HEADER_BYTES. Decode: WD_OK,
 * WD_ECORRUPT (bad crc or magic), WD_EINVAL (a newer format that this build must not read). */
void wd_segment_encode(const wd_segment_meta *m, uint8_t *block);
int wd_segment_decode(const uint8_t *block, wd_segment_meta *out);

/* Encode / decode and verify one slot of WD_MARK_SLOT_BYTES. Decode: WD_OK or WD_ECORRUPT. */
void wd_mark_encode(const wd_mark_meta *m, uint8_t *slot);
int wd_mark_decode(const uint8_t *slot, wd_mark_meta *out);

/* Why a scan stopped. */
enum wd_scan_stop {
    WD_SCAN_MORE = 0,  /* the buffer ends at a frame's border or inside a frame: read on */
    WD_SCAN_END = 1,   /* the segment ends, no room for another header */
    WD_SCAN_ZERO = 2,  /* where a header would stand all bytes are zero */
    WD_SCAN_MAGIC = 3, /* not a frame header */
    WD_SCAN_HEADER_CRC = 4,
    WD_SCAN_SALT = 5,     /* a header that verifies, of another segment */
    WD_SCAN_LENGTH = 6,   /* a header that verifies, longer than the limit or the segment */
    WD_SCAN_LSN = 7,      /* a header that verifies, not the next lsn, or of no records */
    WD_SCAN_PREV_CRC = 8, /* a header that verifies, of another history */
    WD_SCAN_PAYLOAD_CRC = 9
};

/* A scan over the frames of one segment. The first three fields are what the next frame must be;
 * they are moved on by each frame, so that a scan goes on in the next buffer. */
typedef struct {
    uint64_t next_lsn;
    uint32_t prev_crc;
    uint32_t salt;
    /* Results of one call. */
    uint64_t bytes; /* whole valid frames at the front of the buffer */
    uint64_t frames;
    uint64_t records;
    uint64_t need_bytes; /* MORE, PAYLOAD_CRC: length of the frame at `bytes`; 0 = not known */
    int stop;            /* enum wd_scan_stop */
    /* Of the frames so far, over all calls. */
    uint64_t durable_lsn; /* highest */
    uint64_t last_offset; /* of the last valid frame, from the front of this call's buffer */
    int64_t wall_ms;      /* the last valid frame's */
    int64_t rel_ms;
} wd_scan;

/* Scan n bytes from a frame's border on. room: bytes from p to the end of the segment, >= n. */
void wd_frame_scan(const uint8_t *p, size_t n, uint64_t room, wd_scan *scan);

/* A frame header found by search. */
typedef struct {
    uint64_t offset; /* from the front of the buffer */
    uint64_t frame_bytes;
    uint32_t salt;
    uint32_t prev_crc;
    uint32_t payload_crc;
    wd_frame_meta meta;
} wd_found;

/* Find the first place, in 8-byte steps from p, where a frame header verifies by its own salt and
 * (salt >= 0) that salt is this one. The payload is not looked at. 1 and *out, or 0: none. */
int wd_frame_find(const uint8_t *p, size_t n, int64_t salt, wd_found *out);

/* Number of zero bytes at the front. */
size_t wd_zero_prefix(const uint8_t *p, size_t n);

/* Bytes of as many whole frames at the front as stay within limit, at least one; the n bytes are
 * whole frames that are known to be valid. */
size_t wd_frame_split(const uint8_t *p, size_t n, size_t limit);

/* Seal a frame in place: frame[0..64) is room for the header, the payload stands behind it, and 7
 * more bytes may be written behind the payload (padding to 8). Returns the frame's whole length. */
size_t wd_frame_seal(uint8_t *frame, const wd_frame_meta *m, uint32_t salt, uint32_t prev_crc);
/* Decode the header of a frame that is already known to be valid. Returns its whole length. */
size_t wd_frame_header(const uint8_t *frame, wd_frame_meta *out);
/* cffi: end */

/* The payload crc of a sealed frame: the next frame's prev_crc. */
uint32_t wd_frame_crc(const uint8_t *frame);

#endif /* WD_FRAME_H */
