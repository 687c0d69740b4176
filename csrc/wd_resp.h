/* wd_resp.h -- the wire's grammar: a parser that is a pure function of a byte span, and reply
 * writers. PROTOCOL.md is the exact page. */
#ifndef WD_RESP_H
#define WD_RESP_H

#include "wd_int.h"

/* Limits of one command (PROTOCOL.md, Limits). */
enum {
    WD_ARGS_MAX = 1024,                    /* arguments of one command, its name included */
    WD_INLINE_BYTES_MAX = 64 * 1024,       /* an inline line without its line end */
    WD_BULK_BYTES_MAX = 1024 * 1024,       /* one bulk string */
    WD_COMMAND_BYTES_MAX = 4 * 1024 * 1024 /* all of one command */
};

enum wd_parse {
    WD_PARSE_MORE = 0,    /* not yet whole: give more bytes */
    WD_PARSE_COMMAND = 1, /* argv[0..argc) is a command; argc 0 = an empty line or empty array */
    WD_PARSE_SYNTAX = 2, /* this command is wrong, the framing is not: answer and go on behind it */
    WD_PARSE_BROKEN = 3  /* framing lost or a hard limit passed: answer and close */
};

/* Parser state that survives between calls, so that a command arriving in small pieces costs
 * O(its bytes), not O(pieces x bytes). Zero it at connect and after each whole command (the parser
 * does the latter). Offsets are relative to the start of the command. */
typedef struct {
    uint32_t args_total;  /* elements that the array header announced; 0 = header not read yet */
    uint32_t args_done;   /* elements wholly seen */
    size_t scanned_bytes; /* bytes at the front that need not be looked at again */
} wd_parser;

typedef struct {
    int verdict;       /* enum wd_parse */
    size_t used_bytes; /* COMMAND, SYNTAX: bytes to drop from the input */
    uint32_t argc;
    wd_span *argv;     /* COMMAND: spans into the input or into the scratch buffer */
    const char *error; /* SYNTAX, BROKEN: text for behind "-SYNTAX " / "-ERR ", no line end; static
                          or in scratch, so valid until the next call with the same scratch */
} wd_parsed;

/* Look for one command at the front of in[0..n). After MORE call again with the same bytes and more
 * behind them (the address may change). After BROKEN the answer stays BROKEN.
 * argv has room for WD_ARGS_MAX spans. scratch takes unescaped inline arguments (its bytes stay
 * valid until the next call with the same scratch). Fails with verdict BROKEN, never otherwise;
 * no memory = BROKEN with error "out of memory". */
wd_parsed wd_parse_command(wd_parser *ps, const uint8_t *in, size_t n, wd_span *argv,
                           wd_buf *scratch);

/* Scalars of the grammar. Each returns WD_OK or WD_EINVAL and writes *out only on WD_OK. */
/* One or more decimal digits and nothing else: no sign, no blanks. */
int wd_parse_u64(wd_span s, uint64_t max, uint64_t *out);

enum wd_when_kind {
    WD_WHEN_ABS = 0,
    WD_WHEN_REL = 1,
    WD_WHEN_AXIS = 2 /* ms on the rel axis: never parsed, the control plane's own */
};
typedef struct {
    int kind; /* ABS: ms unix time; REL: ms from now (`now` is REL 0) */
    int64_t ms;
} wd_when;
enum wd_when_error {
    WD_WHEN_OK = 0,
    WD_WHEN_SYNTAX = 1,  /* not a time at all */
    WD_WHEN_NAIVE = 2,   /* ISO 8601 without offset: NAIVE_TIME */
    WD_WHEN_SECONDS = 3, /* a number below 1e11: looks like seconds */
    WD_WHEN_RANGE = 4    /* outside [0, 2^48) */
};
/* `now` | unix ms | `+N[ms|s|m|h|d]` | ISO 8601 with an offset or Z (see PROTOCOL.md, Times). */
int wd_parse_when(wd_span s, wd_when *out); /* enum wd_when_error */

/* UTF-8 text of 1..max_bytes bytes without control characters (C0, DEL, C1)? */
int wd_is_name(wd_span s, size_t max_bytes);
/* Bytes of the character at the front of s (1..4), or 0: s is empty or does not begin with whole,
 * valid UTF-8 (RFC 3629). */
size_t wd_utf8_width(wd_span s);
/* Is the valid UTF-8 character at p a control character (C0, DEL, C1)? */
int wd_is_control(const uint8_t *p);
/* Case-insensitive (ASCII) equality with an upper-case word. */
int wd_word_is(wd_span s, const char *upper);

/* Write the digits of v at out; how many (1..20). */
size_t wd_put_digits(uint8_t *out, uint64_t v);

/* ---- replies, appended to b; WD_OK or WD_ENOMEM (then b is as before) ---- */
int wd_reply_simple(wd_buf *b, const char *text); /* +text */
/* -CODE text: control characters in text become blanks, bytes that are no UTF-8 become '?' (client
 * libraries decode errors strictly), cut at 1 KiB, never inside a character. */
int wd_reply_error(wd_buf *b, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int wd_reply_int(wd_buf *b, int64_t v);                /* :v */
int wd_reply_bulk(wd_buf *b, wd_span s);               /* $n ... */
int wd_reply_bulk_u64(wd_buf *b, uint64_t v);          /* $n digits: ids (JavaScript) */
int wd_reply_array(wd_buf *b, uint32_t n);             /* *n */
int wd_reply_map(wd_buf *b, uint32_t pairs, int resp); /* %n in RESP3, *2n in RESP2 */
int wd_reply_nil(wd_buf *b, int resp);                 /* _ in RESP3, $-1 in RESP2 */

#endif /* WD_RESP_H */
