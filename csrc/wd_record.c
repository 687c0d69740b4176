/* wd_record.c -- encode and decode records by their field mask.
 *
 * One table gives each field's width (fixed fields) or the width of its length prefix (strings);
 * decoder and bound walk the mask from its lowest bit, and the encoder follows the same order.
 * Layout: wd_record.h, FORMAT.md.
 */
#include "wd_record.h"

enum { STRING_FIELD_FIRST = 14, FIELDS = 24, FIELDS_MASK = (1 << FIELDS) - 1 };

/* Length prefix of each string field, in bytes, from WD_F_WORKER on. */
static const uint8_t prefix_bytes[WD_STRINGS_MAX] = {1, 4, 1, 1, 2, 1, 2, 2, 2, 4};

_Static_assert(WD_F_WORKER == 1 << STRING_FIELD_FIRST, "strings begin at bit 14");
_Static_assert(WD_F_BLOB == 1 << (FIELDS - 1), "the mask has 24 bits");
_Static_assert(WD_STRINGS_MAX == FIELDS - STRING_FIELD_FIRST, "one member per string field");

void wd_record_set(wd_record *r, int string, wd_span s)
{
    WD_ASSERT(string >= 0 && string < WD_STRINGS_MAX);
    if (s.n == 0) return;
    WD_ASSERT(s.n < UINT64_C(1) << (8 * prefix_bytes[string]));
    r->text[string] = s;
    r->fields |= 1u << (STRING_FIELD_FIRST + string);
}

size_t wd_record_bound(const wd_record *r)
{
    size_t n = WD_RECORD_HEADER_BYTES + WD_RECORD_FIXED_BYTES_MAX;
    for (uint32_t m = r->fields >> STRING_FIELD_FIRST; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        n += prefix_bytes[i] + r->text[i].n;
    }
    return n;
}

/* A fixed field's place in a record and its width, for the decoder. */
typedef struct {
    uint8_t width;
    uint8_t member; /* offset in wd_record */
} fixed_field;

#define WD_AT(member) (uint8_t)offsetof(wd_record, member)
static const fixed_field fixed[STRING_FIELD_FIRST] = {
    {8, WD_AT(id)},      {8, WD_AT(due_ms)},      {8, WD_AT(at_ms)},    {1, WD_AT(flags)},
    {2, WD_AT(handler)}, {2, WD_AT(policy)},      {1, WD_AT(priority)}, {2, WD_AT(failures)},
    {2, WD_AT(lost)},    {16, WD_AT(fence_term)}, {4, WD_AT(lease_ms)}, {8, WD_AT(number)},
    {1, WD_AT(reason)},  {8, WD_AT(expire_ms)},
};
#undef WD_AT
_Static_assert(offsetof(wd_record, fence_lsn) == offsetof(wd_record, fence_term) + 8,
               "a fence is copied as one field of 16 bytes");
_Static_assert(offsetof(wd_record, lost) < 256, "member offsets fit one byte");

static inline uint8_t *put_u8(uint8_t *at, uint8_t v)
{
    *at = v;
    return at + 1;
}

static inline uint8_t *put_u16(uint8_t *at, uint16_t v)
{
    wd_put_u16(at, v);
    return at + 2;
}

static inline uint8_t *put_u64(uint8_t *at, uint64_t v)
{
    wd_put_u64(at, v);
    return at + 8;
}

/* The fixed fields, in the order of their bits. Not by the table: there the place of each field
 * waits for the width of the one before it, and every job that is scheduled, leased and ended
 * takes three records. */
static uint8_t *put_fixed(const wd_record *r, uint8_t *at)
{
    const uint32_t m = r->fields;
    if (m & WD_F_ID) at = put_u64(at, r->id);
    if (m & WD_F_DUE) at = put_u64(at, (uint64_t)r->due_ms);
    if (m & WD_F_AT) at = put_u64(at, (uint64_t)r->at_ms);
    if (m & WD_F_FLAGS) at = put_u8(at, r->flags);
    if (m & WD_F_HANDLER) at = put_u16(at, r->handler);
    if (m & WD_F_POLICY) at = put_u16(at, r->policy);
    if (m & WD_F_PRIORITY) at = put_u8(at, r->priority);
    if (m & WD_F_FAILURES) at = put_u16(at, r->failures);
    if (m & WD_F_LOST) at = put_u16(at, r->lost);
    if (m & WD_F_FENCE) at = put_u64(put_u64(at, r->fence_term), r->fence_lsn);
    if (m & WD_F_LEASE) {
        wd_put_u32(at, r->lease_ms);
        at += 4;
    }
    if (m & WD_F_NUMBER) at = put_u64(at, (uint64_t)r->number);
    if (m & WD_F_REASON) at = put_u8(at, r->reason);
    if (m & WD_F_EXPIRE) at = put_u64(at, (uint64_t)r->expire_ms);
    return at;
}

size_t wd_record_encode(const wd_record *r, uint8_t *p)
{
    WD_ASSERT(r->kind != 0);
    WD_ASSERT((r->fields & ~(uint32_t)FIELDS_MASK) == 0);
    uint8_t *at = put_fixed(r, p + WD_RECORD_HEADER_BYTES);
    uint32_t m = r->fields;
    for (m >>= STRING_FIELD_FIRST; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        uint32_t n = (uint32_t)r->text[i].n;
        switch (prefix_bytes[i]) {
        case 1:
            *at = (uint8_t)n;
            break;
        case 2:
            wd_put_u16(at, (uint16_t)n);
            break;
        default:
            wd_put_u32(at, n);
        }
        memcpy(at + prefix_bytes[i], r->text[i].p, n);
        at += prefix_bytes[i] + n;
    }
    size_t size = (size_t)(at - p);
    WD_ASSERT(size <= wd_record_bound(r));
    wd_put_u32(p, (uint32_t)size);
    wd_put_u32(p + 4, (uint32_t)r->kind | r->fields << 8);
    return size;
}

int wd_record_decode(wd_span s, wd_record *out, size_t *out_bytes)
{
    if (s.n < WD_RECORD_HEADER_BYTES) return WD_ECORRUPT;
    uint32_t size = wd_get_u32(s.p), head = wd_get_u32(s.p + 4);
    if (size < WD_RECORD_HEADER_BYTES || size > s.n) return WD_ECORRUPT;
    wd_record r = {.kind = (uint8_t)head, .fields = head >> 8};
    if (r.kind == 0) return WD_ECORRUPT;
    const uint8_t *at = s.p + WD_RECORD_HEADER_BYTES, *end = s.p + size;
    uint32_t m = r.fields;
    for (; m & (WD_F_WORKER - 1); m &= m - 1) {
        fixed_field f = fixed[__builtin_ctz(m)];
        if ((size_t)(end - at) < f.width) return WD_ECORRUPT;
        memcpy((uint8_t *)&r + f.member, at, f.width);
        at += f.width;
    }
    for (m >>= STRING_FIELD_FIRST; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        uint32_t n = 0;
        if ((size_t)(end - at) < prefix_bytes[i]) return WD_ECORRUPT;
        memcpy(&n, at, prefix_bytes[i]);
        at += prefix_bytes[i];
        if ((size_t)(end - at) < n || n == 0) return WD_ECORRUPT;
        r.text[i] = (wd_span){at, n};
        at += n;
    }
    if (at != end) return WD_ECORRUPT;
    *out = r;
    *out_bytes = size;
    return WD_OK;
}
