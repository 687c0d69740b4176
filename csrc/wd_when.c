/* wd_when.c -- the grammar's scalars: numbers, words, names, times.
 *
 * Times come in four spellings (wd_resp.h, wd_parse_when). Calendar arithmetic is done here in
 * integers on the proleptic Gregorian calendar, with the offset that the text itself names: no
 * time zone data, no libc time call, no clock. ISO 8601 is taken in its extended calendar form as
 * RFC 3339 narrows it, and wider in three ways that people type: seconds may be left out, a comma
 * may stand before the fraction, the offset may be +hhmm or +hh.
 *
 * Invariants:
 *   1. A time is never early: a fraction finer than a millisecond is rounded up.
 *   2. What is accepted lies in [0, 2^48) ms; nothing overflows on the way there.
 *   3. Every span is read once, from left to right, inside its bounds.
 */
#include "wd_resp.h"

enum {
    MONTHS = 12,
    HOUR_MAX = 23,
    MINUTE_MAX = 59,
    SECOND_MAX = 59, /* no leap second: a unix time has no place for it */
    U64_DIGITS_MAX = 20,
    U64_SAFE_DIGITS = 19,        /* so many never overflow 64 bits */
    DAYS_TO_1970 = 719528,       /* from 0000-01-01, proleptic Gregorian */
    OFFSET_MINUTES_MAX = 24 * 60 /* exclusive */
};

static const int64_t SECOND_MS = 1000;
static const int64_t MINUTE_MS = INT64_C(60) * 1000;
static const int64_t HOUR_MS = INT64_C(60) * 60 * 1000;
static const int64_t DAY_MS = INT64_C(24) * 60 * 60 * 1000;

/* A number below this looks like seconds: as ms it would lie before 1973-03-03, as seconds it
 * reaches to the year 5138. */
static const uint64_t LOOKS_LIKE_SECONDS_END = UINT64_C(100000000000);

static int digit_at(const uint8_t *p)
{
    return *p >= '0' && *p <= '9' ? *p - '0' : -1;
}

/* Read digits from s.p[at] on; at the first other byte *at stops. The value stops growing at
 * WD_DUE_MS_END (no due time reaches it). */
static uint64_t read_saturated(wd_span s, size_t *at)
{
    const uint64_t end = (uint64_t)WD_DUE_MS_END;
    uint64_t v = 0;
    for (; *at < s.n && digit_at(s.p + *at) >= 0; ++*at) {
        v = v * 10 + (uint64_t)digit_at(s.p + *at);
        if (v > end) v = end;
    }
    WD_ASSERT(v <= end);
    return v;
}

int wd_parse_u64(wd_span s, uint64_t max, uint64_t *out)
{
    if (s.n == 0) return WD_EINVAL;
    uint64_t v = 0;
    size_t i = 0, safe = s.n < U64_SAFE_DIGITS ? s.n : U64_SAFE_DIGITS;
    for (; i < safe; i++) {
        uint32_t digit = (uint32_t)s.p[i] - '0';
        if (digit > 9) return WD_EINVAL;
        v = v * 10 + digit;
    }
    for (; i < s.n; i++) {
        uint32_t digit = (uint32_t)s.p[i] - '0';
        if (digit > 9 || v > (UINT64_MAX - digit) / 10) return WD_EINVAL;
        v = v * 10 + digit;
    }
    if (v > max) return WD_EINVAL;
    *out = v;
    return WD_OK;
}

/* How many digits a number has, found from its bits, so that they can be written where they stay.
 */
static size_t count_digits(uint64_t v)
{
    static const uint64_t POWERS[U64_DIGITS_MAX] = {0,
                                                    UINT64_C(10),
                                                    UINT64_C(100),
                                                    UINT64_C(1000),
                                                    UINT64_C(10000),
                                                    UINT64_C(100000),
                                                    UINT64_C(1000000),
                                                    UINT64_C(10000000),
                                                    UINT64_C(100000000),
                                                    UINT64_C(1000000000),
                                                    UINT64_C(10000000000),
                                                    UINT64_C(100000000000),
                                                    UINT64_C(1000000000000),
                                                    UINT64_C(10000000000000),
                                                    UINT64_C(100000000000000),
                                                    UINT64_C(1000000000000000),
                                                    UINT64_C(10000000000000000),
                                                    UINT64_C(100000000000000000),
                                                    UINT64_C(1000000000000000000),
                                                    UINT64_C(10000000000000000000)};
    /* 1233 / 4096 is log10(2) a little rounded up: right or one too low for any 64 bits. */
    uint32_t bits = 64 - (uint32_t)__builtin_clzll(v | 1), tens = bits * 1233 >> 12;
    return tens + (v >= POWERS[tens]);
}

/* Four digits a long division, from the last ones on. */
size_t wd_put_digits(uint8_t *out, uint64_t v)
{
    static const uint8_t PAIRS[] = "0001020304050607080910111213141516171819"
                                   "2021222324252627282930313233343536373839"
                                   "4041424344454647484950515253545556575859"
                                   "6061626364656667686970717273747576777879"
                                   "8081828384858687888990919293949596979899";
    if (v < 10) {
        *out = (uint8_t)('0' + v);
        return 1;
    }
    size_t count = count_digits(v);
    WD_ASSERT(count >= 2 && count <= U64_DIGITS_MAX);
    uint8_t *at = out + count;
    for (; v >= 10000; v /= 10000) {
        uint32_t four = (uint32_t)(v % 10000);
        at -= 4;
        memcpy(at, PAIRS + (size_t)2 * (four / 100), 2);
        memcpy(at + 2, PAIRS + (size_t)2 * (four % 100), 2);
    }
    if (v >= 100) {
        at -= 2;
        memcpy(at, PAIRS + 2 * (v % 100), 2);
        v /= 100;
    }
    if (v >= 10)
        memcpy(at - 2, PAIRS + 2 * v, 2);
    else
        at[-1] = (uint8_t)('0' + v);
    WD_ASSERT(at - out == (v >= 10 ? 2 : 1));
    return count;
}

int wd_word_is(wd_span s, const char *upper)
{
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = s.p[i];
        if (c >= 'a' && c <= 'z') c = (uint8_t)(c - 'a' + 'A');
        if (c == 0 || c != (uint8_t)upper[i]) return 0; /* also at the end mark of upper */
    }
    return upper[s.n] == '\0';
}

/* ---- names ---- */

size_t wd_utf8_width(wd_span s)
{
    if (s.n == 0) return 0;
    uint8_t lead = s.p[0];
    if (lead < 0x80) return 1;
    /* RFC 3629, section 4: the second byte's range shuts out overlong forms, surrogates and what
     * lies above U+10FFFF. */
    uint8_t low = 0x80;
    uint8_t high = 0xbf;
    size_t width = 0;
    if (lead >= 0xc2 && lead <= 0xdf) {
        width = 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        width = 3;
        if (lead == 0xe0) low = 0xa0;
        if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        width = 4;
        if (lead == 0xf0) low = 0x90;
        if (lead == 0xf4) high = 0x8f;
    }
    if (width == 0 || s.n < width) return 0;
    if (s.p[1] < low || s.p[1] > high) return 0;
    for (size_t i = 2; i < width; i++) {
        if (s.p[i] < 0x80 || s.p[i] > 0xbf) return 0;
    }
    return width;
}

int wd_is_control(const uint8_t *p)
{
    return p[0] < 0x20 || p[0] == 0x7f || (p[0] == 0xc2 && p[1] < 0xa0);
}

int wd_is_name(wd_span s, size_t max_bytes)
{
    if (s.n == 0 || s.n > max_bytes) return 0;
    size_t at = 0;
    while (at < s.n) {
        size_t width = wd_utf8_width((wd_span){.p = s.p + at, .n = s.n - at});
        if (width == 0 || wd_is_control(s.p + at)) return 0;
        at += width;
    }
    WD_ASSERT(at == s.n);
    return 1;
}

/* ---- times ---- */

static int is_leap(uint32_t year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static uint32_t days_in_month(uint32_t year, uint32_t month)
{
    static const uint8_t DAYS[MONTHS] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    WD_ASSERT(month >= 1 && month <= MONTHS);
    return DAYS[month - 1] + (month == 2 && is_leap(year) ? 1U : 0U);
}

/* Days from 1970-01-01 to a date that exists; negative before it. */
static int64_t days_from_1970(uint32_t year, uint32_t month, uint32_t day)
{
    static const uint16_t DAYS_BEFORE[MONTHS] = {0,   31,  59,  90,  120, 151,
                                                 181, 212, 243, 273, 304, 334};
    WD_ASSERT(year <= 9999);
    WD_ASSERT(day >= 1 && day <= days_in_month(year, month));
    int64_t days = (int64_t)year * 365 + DAYS_BEFORE[month - 1] + day - 1;
    if (year > 0) {
        uint32_t last = year - 1; /* leap days of the years 0000..last */
        days += last / 4 - last / 100 + last / 400 + 1;
    }
    if (month > 2 && is_leap(year)) days++;
    return days - DAYS_TO_1970;
}

/* What is left of an ISO 8601 text. */
typedef struct {
    const uint8_t *p;
    const uint8_t *end;
} reader;

/* Exactly count digits with a value of at most max; 0 = not there. */
static int take_number(reader *r, size_t count, uint32_t max, uint32_t *out)
{
    WD_ASSERT(count >= 1 && count <= 4);
    if ((size_t)(r->end - r->p) < count) return 0;
    uint32_t v = 0;
    for (size_t i = 0; i < count; i++) {
        int digit = digit_at(r->p + i);
        if (digit < 0) return 0;
        v = v * 10 + (uint32_t)digit;
    }
    if (v > max) return 0;
    r->p += count;
    *out = v;
    return 1;
}

static int take_any(reader *r, const char *chars)
{
    if (r->p == r->end || *r->p == '\0' || !strchr(chars, *r->p)) return 0;
    r->p++;
    return 1;
}

/* `YYYY-MM-DD`, as ms from 1970-01-01T00:00. */
static int take_date(reader *r, int64_t *out_ms)
{
    uint32_t year = 0;
    uint32_t month = 0;
    uint32_t day = 0;
    if (!take_number(r, 4, 9999, &year) || !take_any(r, "-")) return 0;
    if (!take_number(r, 2, MONTHS, &month) || month == 0 || !take_any(r, "-")) return 0;
    if (!take_number(r, 2, days_in_month(year, month), &day) || day == 0) return 0;
    *out_ms = days_from_1970(year, month, day) * DAY_MS;
    return 1;
}

/* Digits behind the decimal point, at least one, as ms rounded up (0..1000). */
static int take_fraction(reader *r, int64_t *out_ms)
{
    if (r->p == r->end || digit_at(r->p) < 0) return 0;
    int64_t ms = 0;
    int64_t unit_ms = SECOND_MS / 10;
    int is_finer = 0;
    for (; r->p < r->end && digit_at(r->p) >= 0; r->p++) {
        ms += digit_at(r->p) * unit_ms;
        if (unit_ms == 0 && *r->p != '0') is_finer = 1;
        unit_ms /= 10;
    }
    *out_ms = ms + is_finer;
    WD_ASSERT(*out_ms <= SECOND_MS);
    return 1;
}

/* `hh:mm[:ss[.fraction]]`, as ms of the day. */
static int take_time(reader *r, int64_t *out_ms)
{
    uint32_t hour = 0;
    uint32_t minute = 0;
    uint32_t second = 0;
    int64_t fraction_ms = 0;
    if (!take_number(r, 2, HOUR_MAX, &hour) || !take_any(r, ":")) return 0;
    if (!take_number(r, 2, MINUTE_MAX, &minute)) return 0;
    if (take_any(r, ":")) {
        if (!take_number(r, 2, SECOND_MAX, &second)) return 0;
        if (take_any(r, ".,") && !take_fraction(r, &fraction_ms)) return 0;
    }
    *out_ms = hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS + fraction_ms;
    return 1;
}

/* `Z`, `+hh:mm`, `+hhmm`, `+hh` (or -): how far local time is ahead of UTC. */
static int take_offset(reader *r, int64_t *out_ms)
{
    if (take_any(r, "Zz")) {
        *out_ms = 0;
        return 1;
    }
    int is_behind = r->p < r->end && *r->p == '-';
    uint32_t hours = 0;
    uint32_t minutes = 0;
    if (!take_any(r, "+-") || !take_number(r, 2, HOUR_MAX, &hours)) return 0;
    if (r->p < r->end) {
        (void)take_any(r, ":");
        if (!take_number(r, 2, MINUTE_MAX, &minutes)) return 0;
    }
    int64_t ahead_ms = hours * HOUR_MS + minutes * MINUTE_MS;
    WD_ASSERT(ahead_ms < OFFSET_MINUTES_MAX * MINUTE_MS);
    *out_ms = is_behind ? -ahead_ms : ahead_ms;
    return 1;
}

static int parse_iso(wd_span s, wd_when *out)
{
    reader r = {.p = s.p, .end = s.p + s.n};
    int64_t date_ms = 0;
    int64_t time_ms = 0;
    int64_t ahead_ms = 0;
    if (!take_date(&r, &date_ms)) return WD_WHEN_SYNTAX;
    if (r.p == r.end) return WD_WHEN_NAIVE;
    if (!take_any(&r, "Tt ") || !take_time(&r, &time_ms)) return WD_WHEN_SYNTAX;
    if (r.p == r.end) return WD_WHEN_NAIVE;
    if (!take_offset(&r, &ahead_ms) || r.p != r.end) return WD_WHEN_SYNTAX;
    int64_t ms = date_ms + time_ms - ahead_ms;
    WD_ASSERT(ms < WD_DUE_MS_END); /* the year 9999 lies below 2^48 ms */
    if (ms < 0) return WD_WHEN_RANGE;
    *out = (wd_when){.kind = WD_WHEN_ABS, .ms = ms};
    return WD_WHEN_OK;
}

/* The unit behind `+N` as ms; 0 = no such unit. Lower case only: an upper-case M reads as months.
 */
static int64_t unit_ms(wd_span unit)
{
    if (unit.n == 0 || wd_span_eq(unit, WD_SPAN("ms"))) return 1;
    if (unit.n != 1) return 0;
    switch (unit.p[0]) {
    case 's':
        return SECOND_MS;
    case 'm':
        return MINUTE_MS;
    case 'h':
        return HOUR_MS;
    case 'd':
        return DAY_MS;
    default:
        return 0;
    }
}

/* `+N[unit]`; s begins with '+'. */
static int parse_relative(wd_span s, wd_when *out)
{
    size_t at = 1;
    uint64_t count = read_saturated(s, &at);
    if (at == 1) return WD_WHEN_SYNTAX;
    int64_t unit = unit_ms((wd_span){.p = s.p + at, .n = s.n - at});
    if (unit == 0) return WD_WHEN_SYNTAX;
    WD_ASSERT(count <= (uint64_t)WD_DUE_MS_END);
    if (count > (uint64_t)((WD_DUE_MS_END - 1) / unit)) return WD_WHEN_RANGE;
    *out = (wd_when){.kind = WD_WHEN_REL, .ms = (int64_t)count * unit};
    return WD_WHEN_OK;
}

int wd_parse_when(wd_span s, wd_when *out)
{
    if (s.n == 0) return WD_WHEN_SYNTAX;
    if (s.p[0] == '+') return parse_relative(s, out);
    if (wd_word_is(s, "NOW")) {
        *out = (wd_when){.kind = WD_WHEN_REL, .ms = 0};
        return WD_WHEN_OK;
    }
    size_t at = 0;
    uint64_t ms = read_saturated(s, &at);
    if (at < s.n) return parse_iso(s, out);
    if (ms < LOOKS_LIKE_SECONDS_END) return WD_WHEN_SECONDS;
    if (ms >= (uint64_t)WD_DUE_MS_END) return WD_WHEN_RANGE;
    *out = (wd_when){.kind = WD_WHEN_ABS, .ms = (int64_t)ms};
    return WD_WHEN_OK;
}
