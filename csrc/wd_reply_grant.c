/* wd_reply_grant.c -- what LEASE tells of one job.
 *
 * A worker asks for a hundred of them at once, so this is the reply that costs most. Room for the
 * whole of it is asked for once; behind that, fields are written one after another with no further
 * look at the buffer. The upper bound counts every header as if its number had all digits.
 */
#include "wd_verbs.h"

enum {
    FIELDS = 12,
    RUN_FIELDS = 3,
    DIGITS_MAX = 20,
    HEADER_BYTES_MAX = 1 + DIGITS_MAX + 2, /* mark, sign or digits, CRLF */
    RECEIPT_BYTES_MAX = 3 * DIGITS_MAX + 2,
    /* Headers of the array, of its fields, of the run and its fields; receipt and id; and a CRLF
     * behind each bulk string. */
    FIXED_BYTES_MAX = (1 + FIELDS + RUN_FIELDS) * (HEADER_BYTES_MAX + 2) + RECEIPT_BYTES_MAX +
        DIGITS_MAX
};

static uint8_t *put_end(uint8_t *p)
{
    p[0] = '\r';
    p[1] = '\n';
    return p + 2;
}

static uint8_t *put_number(uint8_t *p, uint8_t mark, uint64_t v)
{
    *p++ = mark;
    return put_end(p + wd_put_digits(p, v));
}

static uint8_t *put_int(uint8_t *p, int64_t v)
{
    if (v >= 0) return put_number(p, ':', (uint64_t)v);
    p[0] = ':';
    p[1] = '-';
    return put_end(p + 2 + wd_put_digits(p + 2, -(uint64_t)v));
}

static uint8_t *put_bulk(uint8_t *p, const uint8_t *from, size_t n)
{
    p = put_number(p, '$', n);
    memcpy(p, from, n);
    return put_end(p + n);
}

static uint8_t *put_nil(uint8_t *p, int resp)
{
    const size_t n = resp == 3 ? 3 : 5;
    memcpy(p, resp == 3 ? "_\r\n" : "$-1\r\n", n);
    return p + n;
}

static uint8_t *put_or_nil(uint8_t *p, wd_span s, int resp)
{
    return s.n ? put_bulk(p, s.p, s.n) : put_nil(p, resp);
}

/* The receipt and the id; the id's digits begin the receipt. */
static uint8_t *put_names(uint8_t *p, const wd_grant_view *v)
{
    uint8_t text[RECEIPT_BYTES_MAX];
    size_t id_n = wd_put_digits(text, v->id), n = id_n;
    text[n++] = '.';
    n += wd_put_digits(text + n, v->term);
    text[n++] = '.';
    n += wd_put_digits(text + n, v->lsn);
    p = put_bulk(p, text, n);
    return put_bulk(p, text, id_n);
}

/* run|nil: [run id, nominal ms|nil, logical date|nil]. */
static uint8_t *put_run(uint8_t *p, const wd_grant_view *v, int resp)
{
    uint64_t nominal_ms;
    if (v->run_id.n == 0) return put_nil(p, resp);
    p = put_number(p, '*', RUN_FIELDS);
    p = put_bulk(p, v->run_id.p, v->run_id.n);
    p = wd_parse_u64(v->nominal, INT64_MAX, &nominal_ms) == WD_OK ? put_int(p, (int64_t)nominal_ms)
                                                                  : put_nil(p, resp);
    return put_or_nil(p, v->date, resp);
}

/* receipt, id, key|nil, handler, attempt, due_ms, lease_ms, payload, timeout_ms, meta|nil,
 * progress|nil, run|nil. */
int wd_reply_grant(wd_buf *out, const wd_grant_view *v, int resp)
{
    WD_ASSERT(resp == 2 || resp == 3);
    size_t room = FIXED_BYTES_MAX + v->key.n + v->handler.n + v->payload.n + v->meta.n +
                  v->run_id.n + v->date.n;
    int status = wd_buf_need(out, room);
    if (status != WD_OK) return status;
    uint8_t *p = out->p + out->n;
    p = put_number(p, '*', FIELDS);
    p = put_names(p, v);
    p = put_or_nil(p, v->key, resp);
    p = put_bulk(p, v->handler.p, v->handler.n);
    p = put_int(p, v->attempt);
    p = put_int(p, v->due_ms);
    p = put_int(p, v->lease_ms);
    p = v->payload.n ? put_bulk(p, v->payload.p, v->payload.n) : put_end(put_number(p, '$', 0));
    p = put_int(p, v->timeout_ms);
    p = put_or_nil(p, v->meta, resp);
    p = put_nil(p, resp);
    p = put_run(p, v, resp);
    WD_ASSERT((size_t)(p - out->p) - out->n <= room);
    out->n = (size_t)(p - out->p);
    return WD_OK;
}
