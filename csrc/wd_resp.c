/* wd_resp.c -- the command parser and the reply writers.
 *
 * A command is either an inline line (what a person types) or a RESP array of bulk strings (what a
 * client library sends); its first byte tells which. Parsing is a pure function of a byte span:
 * no socket, no clock, no memory but the caller's scratch buffer. The grammar is the Redis
 * serialization protocol's (RESP2, section "Sending commands to a Redis server"), read strictly:
 * lengths are plain decimals without sign or leading zero, and every line end that is announced is
 * looked at.
 *
 * Invariants (tests/c/fuzz_resp.c and tests/unit/test_resp.py):
 *   1. No byte outside in[0..n) is read, and every argument lies in in[0..used_bytes) or in
 * scratch.
 *   2. A verdict other than MORE stands: bytes that come later never change it, nor its text. So
 *      the sequence of verdicts does not depend on how the bytes were cut into pieces.
 *   3. A call looks at bytes it has not seen yet, at the one header it stopped in (<= 22 bytes),
 *      and, once, when the command is whole, at the headers of all arguments: O(bytes) in total.
 *   4. argv pointers into scratch stay valid because scratch does not grow after the first of them.
 *
 * Not here: what a command means, how a connection keeps its bytes, numbers and times (wd_when.c).
 */
#include "wd_resp.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    LENGTH_DIGITS_MAX = 19, /* any such number fits an uint64_t; every limit is far below */
    ERROR_BYTES_MAX = 192,  /* the parser's texts, the end mark included */
    REPLY_TEXT_BYTES_MAX = 1024,
    CODE_BYTES_MAX = 32, /* an error code and the blank behind it */
    LINE_BYTES_MAX = CODE_BYTES_MAX + REPLY_TEXT_BYTES_MAX,
    U64_DIGITS_MAX = 20,
    HEADER_BYTES_MAX = 1 + U64_DIGITS_MAX + 2 /* mark, sign or digits, CRLF */
};

/* CR and LF as they lie in memory, read as one little-endian number. */
enum { CRLF = 0x0a0d };

/* The longest line with its CRLF: a line feed has come by then, or the line is too long. */
static const size_t INLINE_WINDOW_BYTES = WD_INLINE_BYTES_MAX + 2;

enum look {
    LOOK_MORE = 0, /* so far right, not whole */
    LOOK_OK = 1,
    LOOK_BAD = 2
};

typedef struct {
    uint64_t value;
    size_t end; /* offset behind the CRLF */
} length;

/* ---- verdicts ---- */

static wd_parsed need_more(void)
{
    return (wd_parsed){.verdict = WD_PARSE_MORE};
}

static wd_parsed whole(wd_span *argv, uint32_t argc, size_t used_bytes)
{
    return (wd_parsed){
        .verdict = WD_PARSE_COMMAND, .used_bytes = used_bytes, .argc = argc, .argv = argv};
}

static wd_parsed out_of_memory(void)
{
    return (wd_parsed){.verdict = WD_PARSE_BROKEN, .error = "out of memory"};
}

/* BROKEN with a text in scratch. */
__attribute__((format(printf, 2, 3))) static wd_parsed broken(wd_buf *scratch, const char *format,
                                                              ...)
{
    scratch->n = 0;
    if (wd_buf_need(scratch, ERROR_BYTES_MAX) != WD_OK) return out_of_memory();
    va_list args;
    va_start(args, format);
    int n = vsnprintf((char *)scratch->p, ERROR_BYTES_MAX, format, args);
    va_end(args);
    WD_ASSERT(n > 0);
    WD_ASSERT(n < ERROR_BYTES_MAX);
    return (wd_parsed){.verdict = WD_PARSE_BROKEN, .error = (const char *)scratch->p};
}

/* ---- RESP arrays of bulk strings ---- */

/* `<digits>CRLF` at in[at..n). Decided byte by byte from the left, so that a bad byte is bad
 * however little follows it. */
static inline int read_length(wd_span in, size_t at, length *out)
{
    uint64_t value = 0;
    size_t i = at;
    for (; i < in.n; i++) {
        uint32_t digit = (uint32_t)in.p[i] - '0';
        if (digit > 9) break;
        if (i - at >= LENGTH_DIGITS_MAX) return LOOK_BAD;
        if (i > at && value == 0) return LOOK_BAD; /* leading zero */
        value = value * 10 + digit;
    }
    if (i == in.n) return LOOK_MORE;
    if (i == at || in.p[i] != '\r') return LOOK_BAD;
    if (i + 1 == in.n) return LOOK_MORE;
    if (in.p[i + 1] != '\n') return LOOK_BAD;
    *out = (length){.value = value, .end = i + 2};
    return LOOK_OK;
}

/* Does the argument that this header announces keep within the limits? */
static inline int fits_limits(length head)
{
    return head.value <= WD_BULK_BYTES_MAX && head.end + head.value + 2 <= WD_COMMAND_BYTES_MAX;
}

/* `$<length>CRLF<bytes>CRLF` at in[at..n). Jumps over the bytes: O(1). */
static inline int read_bulk(wd_span in, size_t at, wd_span *arg, size_t *out_end)
{
    WD_ASSERT(at <= in.n);
    if (at == in.n) return LOOK_MORE;
    if (in.p[at] != '$') return LOOK_BAD;
    length head;
    int look = read_length(in, at + 1, &head);
    if (look != LOOK_OK) return look;
    if (!fits_limits(head)) return LOOK_BAD;
    size_t stop = head.end + (size_t)head.value;
    if (stop >= in.n) return LOOK_MORE;
    if (stop + 1 == in.n) return in.p[stop] == '\r' ? LOOK_MORE : LOOK_BAD;
    if (wd_get_u16(in.p + stop) != CRLF) return LOOK_BAD;
    *arg = (wd_span){.p = in.p + head.end, .n = (size_t)head.value};
    *out_end = stop + 2;
    return LOOK_OK;
}

/* Say why read_bulk() found in[at..n) bad. Off the hot path, so it looks again. */
static wd_parsed bulk_error(wd_span in, size_t at, wd_buf *scratch)
{
    WD_ASSERT(at < in.n);
    uint8_t mark = in.p[at];
    if (mark != '$') {
        return broken(scratch, "protocol error: expected '$' of a bulk string, got byte 0x%02x",
                      mark);
    }
    length head;
    int look = read_length(in, at + 1, &head);
    WD_ASSERT(look != LOOK_MORE);
    if (look == LOOK_BAD) {
        if (in.p[at + 1] == '-') {
            return broken(scratch, "protocol error: a null bulk string cannot be an argument");
        }
        return broken(scratch, "protocol error: the bulk length behind '$' is no plain number");
    }
    if (head.value > WD_BULK_BYTES_MAX) {
        return broken(scratch, "a bulk string of %llu bytes passes the limit of %d bytes",
                      (unsigned long long)head.value, WD_BULK_BYTES_MAX);
    }
    if (!fits_limits(head)) {
        unsigned long long so_far = head.end + head.value + 2;
        return broken(scratch, "a command of %llu bytes or more passes the limit of %d bytes",
                      so_far, WD_COMMAND_BYTES_MAX);
    }
    return broken(scratch, "protocol error: no CRLF behind a bulk string of %llu bytes",
                  (unsigned long long)head.value);
}

/* Say why the array header is bad. */
static wd_parsed array_error(wd_span in, wd_buf *scratch)
{
    WD_ASSERT(in.n >= 2);
    if (in.p[1] == '-') {
        return broken(scratch, "protocol error: a null or negative array is no command");
    }
    return broken(scratch, "protocol error: the array length behind '*' is no plain number");
}

/* Fill argv[0..count) from the front: what earlier calls saw when argv was another's. */
static void find_again(wd_span in, uint32_t count, wd_span *argv)
{
    length head;
    int look = read_length(in, 1, &head);
    WD_ASSERT(look == LOOK_OK); /* or the caller changed bytes it had shown before */
    size_t at = head.end;
    for (uint32_t i = 0; i < count; i++) {
        look = read_bulk(in, at, &argv[i], &at);
        WD_ASSERT(look == LOOK_OK);
    }
}

static wd_parsed parse_array(wd_parser *ps, wd_span in, wd_span *argv, wd_buf *scratch)
{
    if (ps->args_total == 0) {
        length head;
        int look = read_length(in, 1, &head);
        if (look == LOOK_MORE) return need_more();
        if (look == LOOK_BAD) return array_error(in, scratch);
        if (head.value > WD_ARGS_MAX) {
            return broken(scratch, "an array of %llu arguments passes the limit of %d",
                          (unsigned long long)head.value, WD_ARGS_MAX);
        }
        if (head.value == 0) return whole(argv, 0, head.end);
        ps->args_total = (uint32_t)head.value;
        ps->scanned_bytes = head.end;
    }
    WD_ASSERT(ps->args_done < ps->args_total);
    WD_ASSERT(ps->args_total <= WD_ARGS_MAX);
    uint32_t first = ps->args_done;
    uint32_t total = ps->args_total;
    size_t at = ps->scanned_bytes;
    for (uint32_t i = first; i < total; i++) {
        int look = read_bulk(in, at, &argv[i], &at);
        if (look == LOOK_OK) continue;
        ps->args_done = i;
        ps->scanned_bytes = at;
        return look == LOOK_MORE ? need_more() : bulk_error(in, at, scratch);
    }
    if (first > 0) find_again(in, first, argv);
    *ps = (wd_parser){0};
    WD_ASSERT(at <= in.n);
    return whole(argv, total, at);
}

/* ---- inline lines ---- */

/* What stands at a place in a line; the texts of SYNTAX. */
enum quoted {
    QUOTED_OK = 0,
    QUOTED_OPEN,   /* the line ends first */
    QUOTED_BEHIND, /* text directly behind the closing quote */
    QUOTED_ESCAPE, /* a backslash with something else behind it */
    QUOTED_MEMORY
};

static int is_blank(uint8_t c)
{
    return c == ' ' || c == '\t';
}

/* The value of a hexadecimal digit, or -1. */
static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The escape at s.p[0] == '\\' inside "...": write one byte; how many bytes it took, 0 = none such.
 */
static size_t read_escape(wd_span s, uint8_t *out)
{
    WD_ASSERT(s.n >= 1);
    WD_ASSERT(s.p[0] == '\\');
    if (s.n < 2) return 0;
    switch (s.p[1]) {
    case 'n':
        *out = '\n';
        return 2;
    case 'r':
        *out = '\r';
        return 2;
    case 't':
        *out = '\t';
        return 2;
    case '"':
    case '\\':
        *out = s.p[1];
        return 2;
    case 'x':
        if (s.n < 4 || hex_value(s.p[2]) < 0 || hex_value(s.p[3]) < 0) return 0;
        *out = (uint8_t)(hex_value(s.p[2]) * 16 + hex_value(s.p[3]));
        return 4;
    default:
        return 0;
    }
}

/* As read_escape(), inside '...': a backslash is itself unless a quote or a backslash follows. */
static size_t read_plain_escape(wd_span s, uint8_t *out)
{
    WD_ASSERT(s.n >= 1);
    WD_ASSERT(s.p[0] == '\\');
    int escapes = s.n >= 2 && (s.p[1] == '\'' || s.p[1] == '\\');
    *out = escapes ? s.p[1] : '\\';
    return escapes ? 2 : 1;
}

/* Copy line[*at..] up to the closing quote into scratch, escapes resolved. *at moves to that quote
 * or to the place of the error. */
static int unescape(wd_span line, size_t *at, wd_buf *scratch, wd_span *arg)
{
    WD_ASSERT(scratch->n <= line.n);
    /* All unescaped arguments of a line are shorter than the line: one growth, so the spans that
     * earlier arguments got into scratch stay valid. */
    if (wd_buf_need(scratch, line.n - scratch->n) != WD_OK) return QUOTED_MEMORY;
    uint8_t quote = line.p[*at - 1];
    uint8_t *first = scratch->p + scratch->n;
    uint8_t *out = first;
    while (*at < line.n && line.p[*at] != quote) {
        size_t took = 1;
        wd_span rest = {.p = line.p + *at, .n = line.n - *at};
        if (*rest.p != '\\') {
            *out = *rest.p;
        } else {
            took = quote == '"' ? read_escape(rest, out) : read_plain_escape(rest, out);
        }
        if (took == 0) return rest.n < 2 ? QUOTED_OPEN : QUOTED_ESCAPE;
        out++;
        *at += took;
    }
    *arg = (wd_span){.p = first, .n = (size_t)(out - first)};
    scratch->n += arg->n;
    WD_ASSERT(scratch->n <= line.n);
    return *at < line.n ? QUOTED_OK : QUOTED_OPEN;
}

/* The quoted argument whose quote stands at line[*at]; *at moves behind it. */
static int read_quoted(wd_span line, size_t *at, wd_buf *scratch, wd_span *arg)
{
    uint8_t quote = line.p[*at];
    WD_ASSERT(quote == '"' || quote == '\'');
    size_t first = *at + 1;
    size_t i = first;
    while (i < line.n && line.p[i] != quote && line.p[i] != '\\')
        i++;
    int found = QUOTED_OK;
    if (i == line.n) return QUOTED_OPEN;
    if (line.p[i] == quote) {
        *arg = (wd_span){.p = line.p + first, .n = i - first};
    } else {
        i = first;
        found = unescape(line, &i, scratch, arg);
    }
    if (found == QUOTED_OPEN) return found; /* *at stays at the quote that is not closed */
    *at = i;
    if (found != QUOTED_OK) return found;
    *at = i + 1;
    return *at == line.n || is_blank(line.p[*at]) ? QUOTED_OK : QUOTED_BEHIND;
}

/* SYNTAX for what read_quoted() found at line[at]; bytes count from 1. */
static wd_parsed quote_error(int found, size_t at, wd_buf *scratch)
{
    static const char *const TEXTS[] = {
        [QUOTED_OPEN] = "the quote at byte %zu of the line is not closed",
        [QUOTED_BEHIND] = "text directly behind a closing quote at byte %zu of the line: put a "
                          "blank between, or quote all of it",
        [QUOTED_ESCAPE] = "unknown escape at byte %zu of the line: inside \"...\" stand "
                          "\\n \\r \\t \\\" \\\\ \\xHH",
    };
    WD_ASSERT(found == QUOTED_OPEN || found == QUOTED_BEHIND || found == QUOTED_ESCAPE);
    scratch->n = 0;
    if (wd_buf_need(scratch, ERROR_BYTES_MAX) != WD_OK) return out_of_memory();
    int n = snprintf((char *)scratch->p, ERROR_BYTES_MAX, TEXTS[found], at + 1);
    WD_ASSERT(n > 0 && n < ERROR_BYTES_MAX);
    return (wd_parsed){.verdict = WD_PARSE_SYNTAX, .error = (const char *)scratch->p};
}

/* Cut a whole line at its blanks. used_bytes is left to the caller. */
static wd_parsed split_line(wd_span line, wd_span *argv, wd_buf *scratch)
{
    WD_ASSERT(line.n <= WD_INLINE_BYTES_MAX);
    uint32_t argc = 0;
    size_t at = 0;
    for (;;) {
        while (at < line.n && is_blank(line.p[at]))
            at++;
        if (at == line.n) return whole(argv, argc, 0);
        if (argc == WD_ARGS_MAX) {
            return broken(scratch, "a line of more than %d arguments passes the limit",
                          WD_ARGS_MAX);
        }
        if (line.p[at] == '"' || line.p[at] == '\'') {
            int found = read_quoted(line, &at, scratch, &argv[argc]);
            if (found == QUOTED_MEMORY) return out_of_memory();
            if (found != QUOTED_OK) return quote_error(found, at, scratch);
        } else {
            size_t first = at;
            while (at < line.n && !is_blank(line.p[at]))
                at++;
            argv[argc] = (wd_span){.p = line.p + first, .n = at - first};
        }
        argc++;
    }
}

static wd_parsed parse_inline(wd_parser *ps, wd_span in, wd_span *argv, wd_buf *scratch)
{
    WD_ASSERT(ps->args_total == 0);
    size_t window = in.n < INLINE_WINDOW_BYTES ? in.n : INLINE_WINDOW_BYTES;
    WD_ASSERT(ps->scanned_bytes <= window);
    const uint8_t *lf = memchr(in.p + ps->scanned_bytes, '\n', window - ps->scanned_bytes);
    if (!lf && window < INLINE_WINDOW_BYTES) {
        ps->scanned_bytes = window;
        return need_more();
    }
    wd_span line = {.p = in.p, .n = lf ? (size_t)(lf - in.p) : window};
    size_t used_bytes = line.n + 1;
    if (lf && line.n > 0 && line.p[line.n - 1] == '\r') line.n--;
    if (line.n > WD_INLINE_BYTES_MAX) {
        return broken(scratch, "a line of more than %d bytes passes the limit: send a RESP array",
                      WD_INLINE_BYTES_MAX);
    }
    wd_parsed parsed = split_line(line, argv, scratch);
    if (parsed.verdict == WD_PARSE_BROKEN) return parsed;
    *ps = (wd_parser){0};
    parsed.used_bytes = used_bytes;
    return parsed;
}

wd_parsed wd_parse_command(wd_parser *ps, const uint8_t *in, size_t n, wd_span *argv,
                           wd_buf *scratch)
{
    WD_ASSERT(ps->scanned_bytes <= n); /* the bytes of an unfinished command must be kept */
    WD_ASSERT(argv && scratch);
    scratch->n = 0;
    if (n == 0) return need_more();
    wd_span span = {.p = in, .n = n};
    return in[0] == '*' ? parse_array(ps, span, argv, scratch)
                        : parse_inline(ps, span, argv, scratch);
}

/* ---- replies ---- */

/* Write `<mark>[-]<digits>CRLF` at out; its length, at most HEADER_BYTES_MAX. */
static size_t put_header(uint8_t *out, uint8_t mark, int negative, uint64_t magnitude)
{
    uint8_t *p = out;
    *p++ = mark;
    if (negative) *p++ = '-';
    p += wd_put_digits(p, magnitude);
    wd_put_u16(p, CRLF);
    p += 2;
    WD_ASSERT(p - out <= HEADER_BYTES_MAX);
    return (size_t)(p - out);
}

static int put_count(wd_buf *b, uint8_t mark, uint64_t count)
{
    int status = wd_buf_need(b, HEADER_BYTES_MAX);
    if (status != WD_OK) return status;
    b->n += put_header(b->p + b->n, mark, 0, count);
    return WD_OK;
}

/* `<mark><text>CRLF`. */
static int put_line(wd_buf *b, uint8_t mark, wd_span text)
{
    WD_ASSERT(text.n <= LINE_BYTES_MAX);
    WD_ASSERT(!memchr(text.p, '\n', text.n));
    WD_ASSERT(!memchr(text.p, '\r', text.n));
    int status = wd_buf_need(b, text.n + 3);
    if (status != WD_OK) return status;
    uint8_t *p = b->p + b->n;
    *p = mark;
    memcpy(p + 1, text.p, text.n);
    wd_put_u16(p + 1 + text.n, CRLF);
    b->n += text.n + 3;
    return WD_OK;
}

int wd_reply_simple(wd_buf *b, const char *text)
{
    return put_line(b, '+', (wd_span){.p = (const uint8_t *)text, .n = strlen(text)});
}

/* Make text[0..n) fit for one line that every client can decode: control characters become blanks,
 * bytes that are no UTF-8 become '?'; a character that the cut went through is dropped. */
static size_t clean_text(uint8_t *text, size_t n, int was_cut)
{
    size_t at = 0;
    while (at < n) {
        size_t width = wd_utf8_width((wd_span){.p = text + at, .n = n - at});
        if (width == 0 && was_cut && n - at < 4 && text[at] >= 0xc2) return at;
        if (width == 0) {
            text[at] = '?';
            width = 1;
        } else if (wd_is_control(text + at)) {
            memset(text + at, ' ', width);
        }
        at += width;
    }
    return at;
}

int wd_reply_error(wd_buf *b, const char *code, const char *format, ...)
{
    char line[LINE_BYTES_MAX + 1];
    int code_n = snprintf(line, CODE_BYTES_MAX + 1, "%s ", code);
    WD_ASSERT(code_n >= 2 && code_n <= CODE_BYTES_MAX);
    char *text = line + code_n;
    va_list args;
    va_start(args, format);
    int printed = vsnprintf(text, REPLY_TEXT_BYTES_MAX + 1, format, args);
    va_end(args);
    WD_ASSERT(printed >= 0);
    int was_cut = printed > REPLY_TEXT_BYTES_MAX;
    size_t n = was_cut ? REPLY_TEXT_BYTES_MAX : (size_t)printed;
    n = clean_text((uint8_t *)text, n, was_cut);
    return put_line(b, '-', (wd_span){.p = (const uint8_t *)line, .n = (size_t)code_n + n});
}

int wd_reply_int(wd_buf *b, int64_t v)
{
    int status = wd_buf_need(b, HEADER_BYTES_MAX);
    if (status != WD_OK) return status;
    uint64_t magnitude = v < 0 ? -(uint64_t)v : (uint64_t)v;
    b->n += put_header(b->p + b->n, ':', v < 0, magnitude);
    return WD_OK;
}

int wd_reply_bulk(wd_buf *b, wd_span s)
{
    WD_ASSERT(s.n <= SIZE_MAX / 4);
    int status = wd_buf_need(b, HEADER_BYTES_MAX + s.n + 2);
    if (status != WD_OK) return status;
    uint8_t *p = b->p + b->n;
    p += put_header(p, '$', 0, s.n);
    if (s.n) memcpy(p, s.p, s.n);
    wd_put_u16(p + s.n, CRLF);
    b->n = (size_t)(p - b->p) + s.n + 2;
    WD_ASSERT(b->n <= b->cap);
    return WD_OK;
}

int wd_reply_bulk_u64(wd_buf *b, uint64_t v)
{
    uint8_t digits[U64_DIGITS_MAX];
    return wd_reply_bulk(b, (wd_span){.p = digits, .n = wd_put_digits(digits, v)});
}

int wd_reply_array(wd_buf *b, uint32_t n)
{
    return put_count(b, '*', n);
}

int wd_reply_map(wd_buf *b, uint32_t pairs, int resp)
{
    WD_ASSERT(resp == 2 || resp == 3);
    return resp == 3 ? put_count(b, '%', pairs) : put_count(b, '*', 2 * (uint64_t)pairs);
}

int wd_reply_nil(wd_buf *b, int resp)
{
    WD_ASSERT(resp == 2 || resp == 3);
    return resp == 3 ? wd_buf_put(b, "_\r\n", 3) : wd_buf_put(b, "$-1\r\n", 5);
}
