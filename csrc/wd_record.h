/* wd_record.h -- records: the resolved effects that are logged, and that apply() turns into state.
 *
 * Layout (FORMAT.md): u32 length of the whole record, u8 kind, u24 mask of the fields that follow,
 * then the fields in the order of their bits. Fixed fields are little-endian scalars; byte strings
 * have a length prefix of 1, 2 or 4 bytes. A record describes itself, so a reader can skip kinds
 * with bit 7 set that it does not know; any other unknown kind or field is refused.
 */
#ifndef WD_RECORD_H
#define WD_RECORD_H

#include "wd_int.h"

/* Kinds are on disk: append, never renumber; a changed meaning needs a new format version. */
enum wd_kind {
    WD_R_HANDLER = 1,     /* HANDLER NAME: a handler's number */
    WD_R_POLICY = 2,      /* POLICY BLOB: a policy's number */
    WD_R_HANDLER_SET = 3, /* HANDLER BLOB: a handler's settings */
    WD_R_CREATED = 4,     /* a job: ID DUE AT FLAGS HANDLER POLICY PRIORITY + optional fields */
    WD_R_REPLACED = 5,    /* the same fields: a live job made anew under its id */
    WD_R_LEASED = 6,      /* ID AT LEASE NUMBER(attempt) [WORKER]; its own lsn is the fence */
    WD_R_RETRY = 7,       /* ID DUE AT FLAGS FAILURES LOST REASON FENCE [TEXT]: back to scheduled */
    WD_R_ENDED = 8,       /* ID AT HANDLER REASON(state) NUMBER(verb) [FENCE KEY TEXT] */
    WD_R_DIED = 9,      /* ID AT HANDLER FAILURES LOST REASON FENCE [KEY TEXT]: to the dead list */
    WD_R_EXTENDED = 10, /* ID LEASE: a longer lease term */
    WD_R_MARKED = 11,   /* ID: cancel asked while leased */
    WD_R_MOVED = 12,    /* ID DUE FLAGS: another due time */
    WD_R_REQUEUED = 13, /* ID DUE FLAGS: a dead job lives again */
    WD_R_PURGED = 14,   /* ID: a dead job is gone */
    WD_R_PUT = 15,      /* REASON(kind) NAME BLOB: an opaque after-image for Python */
    WD_R_DEL = 16,      /* REASON(kind) NAME */
    WD_R_CLOSED = 17,   /* ID: Python has seen the end of an owned job */
    WD_R_RING_DROPPED = 18, /* NUMBER: oldest entries of the ended ring, for room */
    WD_R_ONCE_DROPPED = 19, /* NUMBER: the oldest ONCE tokens, for room */
    WD_R_CLOCK = 20,        /* NUMBER AT FLAGS: logical now after a step or CLOCK ACCEPT */
    WD_R_UNHELD = 21,       /* ID DUE FLAGS [REASON]: a held job is scheduled */
    WD_R_ONCE = 22,       /* ID ONCE REASON(word): a token that found a job rather than made one */
    WD_R_GENERATIONS = 23 /* NUMBER: no id made from now on has a lower generation */
};

enum wd_field {
    WD_F_ID = 1 << 0,       /* u64 */
    WD_F_DUE = 1 << 1,      /* i64 ms, axis by FLAGS */
    WD_F_AT = 1 << 2,       /* i64 ms, wall */
    WD_F_FLAGS = 1 << 3,    /* u8, enum wd_record_flag */
    WD_F_HANDLER = 1 << 4,  /* u16 */
    WD_F_POLICY = 1 << 5,   /* u16 */
    WD_F_PRIORITY = 1 << 6, /* u8 */
    WD_F_FAILURES = 1 << 7, /* u16 */
    WD_F_LOST = 1 << 8,     /* u16 */
    WD_F_FENCE = 1 << 9,    /* u64 term, u64 lsn */
    WD_F_LEASE = 1 << 10,   /* u32 ms */
    WD_F_NUMBER = 1 << 11,  /* i64 */
    WD_F_REASON = 1 << 12,  /* u8 */
    WD_F_EXPIRE = 1 << 13,  /* i64 ms, axis by FLAGS */
    WD_F_WORKER = 1 << 14,  /* u8 length + bytes */
    WD_F_PAYLOAD = 1 << 15, /* u32 length + bytes */
    WD_F_KEY = 1 << 16,     /* u8 length + bytes */
    WD_F_ONCE = 1 << 17,    /* u8 length + bytes */
    WD_F_META = 1 << 18,    /* u16 length + bytes */
    WD_F_GROUP = 1 << 19,   /* u8 length + bytes */
    WD_F_OWNER = 1 << 20,   /* u16 length + bytes */
    WD_F_TEXT = 1 << 21,    /* u16 length + bytes */
    WD_F_NAME = 1 << 22,    /* u16 length + bytes */
    WD_F_BLOB = 1 << 23     /* u32 length + bytes */
};

enum wd_record_flag {
    WD_RF_REL = 1,        /* DUE is on the rel axis */
    WD_RF_EXPIRE_REL = 2, /* EXPIRE is on the rel axis */
    WD_RF_HELD = 4,       /* CREATED: held for upstreams */
    WD_RF_ACCEPT = 8      /* CLOCK: logical now is set to AT, the wall wheel re-based */
};

enum { WD_UNHELD_BY_USER = 1 }; /* REASON of UNHELD: by RUN, so the owner is told */

enum {
    WD_RECORD_SKIPPABLE = 0x80, /* bit 7 of the kind: older readers may skip it */
    WD_RECORD_HEADER_BYTES = 8,
    WD_RECORD_FIXED_BYTES_MAX = 8 + 8 + 8 + 1 + 2 + 2 + 1 + 2 + 2 + 16 + 4 + 8 + 1 + 8,
    WD_STRINGS_MAX = 10
};

/* A record, decoded. Spans point into whatever it was decoded from. */
typedef struct {
    uint8_t kind;
    uint8_t flags, priority, reason;
    uint32_t fields; /* mask of enum wd_field: which of the members below are set */
    uint64_t id;
    int64_t due_ms, at_ms, expire_ms, number;
    uint64_t fence_term, fence_lsn;
    uint32_t lease_ms;
    uint16_t handler, policy, failures, lost;
    wd_span text[WD_STRINGS_MAX]; /* by enum wd_string, = bit - 14 */
} wd_record;

enum wd_string {
    WD_S_WORKER = 0,
    WD_S_PAYLOAD,
    WD_S_KEY,
    WD_S_ONCE,
    WD_S_META,
    WD_S_GROUP,
    WD_S_OWNER,
    WD_S_TEXT,
    WD_S_NAME,
    WD_S_BLOB
};

/* Set a string field and its bit; an empty span leaves the field out. */
void wd_record_set(wd_record *r, int string, wd_span s);
/* Upper bound of the encoded size. O(strings). */
size_t wd_record_bound(const wd_record *r);
/* Encode at p, which has wd_record_bound(r) bytes of room; the encoded size. */
size_t wd_record_encode(const wd_record *r, uint8_t *p);
/* Decode the record at the front of s. WD_OK and its size, or WD_ECORRUPT. */
int wd_record_decode(wd_span s, wd_record *out, size_t *out_bytes);

#endif /* WD_RECORD_H */
