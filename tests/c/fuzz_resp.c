/* fuzz_resp.c -- any bytes at all into the command parser and the scalars behind it.
 *
 * For each input the bytes are parsed whole, in pieces whose lengths come from the input itself,
 * and (short inputs) byte by byte. What must hold:
 *   1. the sequence of verdicts, arguments and error texts is the same however the bytes came;
 *   2. used_bytes lies in 1..n, arguments lie in the used bytes or in scratch;
 *   3. a verdict BROKEN stands when asked again;
 *   4. times are in range, numbers read back as they were written, names hold no control
 *      characters, an error reply is one line of valid UTF-8 whatever is quoted in it;
 *   5. nothing outside a span is touched: each span is given as a block of exactly its size, so
 *      that AddressSanitizer sees the first byte too many.
 *
 * Two builds:
 *   clang -fsanitize=fuzzer,address,undefined -Icsrc tests/c/fuzz_resp.c csrc/wd_resp.c \
 *       csrc/wd_when.c csrc/wd_mem.c -o fuzz_resp       then: fuzz_resp tests/c/corpus/resp
 *   gcc -DWD_FUZZ_MAIN -fsanitize=address,undefined ... (the same files)
 *       then: fuzz_resp COUNT SEED FILE...   replays the files, then runs COUNT mutations of them
 */
#include "wd_resp.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    INPUT_BYTES_MAX = 4096,
    BYTEWISE_BYTES_MAX = 64, /* longer inputs are not fed byte by byte: it costs their square */
    NAME_BYTES_MAX = 200,
    REPLY_BYTES_MAX = 5 + 1024 + 2 /* -ERR, the text's limit, CRLF */
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* xorshift64*: state must not be 0. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D);
}

/* splitmix64's mixer: a well spread state, never 0, from any number. */
static uint64_t mix(uint64_t v)
{
    v += UINT64_C(0x9E3779B97F4A7C15);
    v = (v ^ v >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    v = (v ^ v >> 27) * UINT64_C(0x94D049BB133111EB);
    return (v ^ v >> 31) | 1;
}

static uint8_t *copy_exact(const uint8_t *p, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    WD_ASSERT(copy);
    if (n) memcpy(copy, p, n);
    return copy;
}

static void put(wd_buf *b, const void *p, size_t n)
{
    int status = wd_buf_put(b, p, n);
    WD_ASSERT(status == WD_OK);
}

/* ---- scalars ---- */

static void check_when(wd_span s)
{
    wd_when when = {.kind = -1, .ms = -1};
    int error = wd_parse_when(s, &when);
    if (error != WD_WHEN_OK) {
        WD_ASSERT(error >= WD_WHEN_SYNTAX && error <= WD_WHEN_RANGE);
        WD_ASSERT(when.kind == -1 && when.ms == -1); /* written only on success */
        return;
    }
    WD_ASSERT(when.kind == WD_WHEN_ABS || when.kind == WD_WHEN_REL);
    WD_ASSERT(when.ms >= 0 && when.ms < WD_DUE_MS_END);
}

/* What was read as a number is written as the same digits, but for leading zeros. */
static void check_number(wd_span s)
{
    uint64_t v = 77;
    if (wd_parse_u64(s, UINT64_MAX, &v) != WD_OK) {
        WD_ASSERT(v == 77);
        return;
    }
    size_t zeros = 0;
    while (zeros + 1 < s.n && s.p[zeros] == '0')
        zeros++;
    size_t digits = s.n - zeros;
    wd_buf written = {0};
    int status = wd_reply_bulk_u64(&written, v);
    WD_ASSERT(status == WD_OK);
    WD_ASSERT(written.n > digits + 3);
    const uint8_t *body = written.p + written.n - 2 - digits;
    WD_ASSERT(memcmp(body, s.p + zeros, digits) == 0);
    WD_ASSERT(body[-1] == '\n');
    wd_buf_free(&written);
}

static void check_name(wd_span s)
{
    if (!wd_is_name(s, NAME_BYTES_MAX)) return;
    WD_ASSERT(s.n >= 1 && s.n <= NAME_BYTES_MAX);
    for (size_t i = 0; i < s.n; i++)
        WD_ASSERT(s.p[i] >= 0x20 && s.p[i] != 0x7f);
}

static void check_error_reply(wd_span s)
{
    wd_buf reply = {0};
    int status = wd_reply_error(&reply, "ERR", "got %.*s", (int)s.n, (const char *)s.p);
    WD_ASSERT(status == WD_OK);
    WD_ASSERT(reply.n <= REPLY_BYTES_MAX);
    for (size_t at = 0; at < reply.n - 2;) {
        size_t width = wd_utf8_width((wd_span){.p = reply.p + at, .n = reply.n - 2 - at});
        WD_ASSERT(width > 0);
        WD_ASSERT(!wd_is_control(reply.p + at));
        at += width;
    }
    WD_ASSERT(memcmp(reply.p + reply.n - 2, "\r\n", 2) == 0);
    wd_buf_free(&reply);
}

static void check_scalars(wd_span arg)
{
    uint8_t *copy = copy_exact(arg.p, arg.n);
    wd_span s = {.p = copy, .n = arg.n};
    check_when(s);
    check_number(s);
    check_name(s);
    check_error_reply(s);
    (void)wd_word_is(s, "SCHEDULE");
    free(copy);
}

/* ---- commands ---- */

static int lies_in(wd_span arg, const uint8_t *p, size_t n)
{
    uintptr_t first = (uintptr_t)p;
    uintptr_t at = (uintptr_t)arg.p;
    return at >= first && at - first <= n && arg.n <= n - (at - first);
}

/* Append what the parser said to the record of this run. */
static void record(wd_buf *log, const wd_parsed *parsed)
{
    uint32_t head[2] = {(uint32_t)parsed->verdict, parsed->argc};
    put(log, head, sizeof head);
    if (parsed->verdict != WD_PARSE_COMMAND) {
        put(log, parsed->error, strlen(parsed->error) + 1);
        return;
    }
    for (uint32_t i = 0; i < parsed->argc; i++) {
        put(log, &parsed->argv[i].n, sizeof parsed->argv[i].n);
        put(log, parsed->argv[i].p, parsed->argv[i].n);
    }
}

static void check_parsed(const wd_parsed *parsed, wd_span in, const wd_buf *scratch)
{
    if (parsed->verdict != WD_PARSE_COMMAND) {
        WD_ASSERT(parsed->error && parsed->error[0] != '\0');
        WD_ASSERT(!strpbrk(parsed->error, "\r\n"));
    }
    if (parsed->verdict == WD_PARSE_BROKEN) return;
    WD_ASSERT(parsed->used_bytes >= 1 && parsed->used_bytes <= in.n);
    WD_ASSERT(parsed->argc <= WD_ARGS_MAX);
    for (uint32_t i = 0; i < parsed->argc; i++) {
        WD_ASSERT(lies_in(parsed->argv[i], in.p, parsed->used_bytes) ||
                  lies_in(parsed->argv[i], scratch->p, scratch->n));
    }
}

/* One connection: where its unparsed bytes begin, and whether it is to be closed. */
typedef struct {
    wd_parser parser;
    wd_buf scratch;
    wd_span *argv;
    size_t start;
    int is_broken;
} connection;

/* Parse one command of in; 0 = that was all for now. */
static int step(connection *c, wd_span in, wd_buf *log, int with_scalars)
{
    wd_parsed parsed = wd_parse_command(&c->parser, in.p, in.n, c->argv, &c->scratch);
    WD_ASSERT(parsed.verdict >= WD_PARSE_MORE && parsed.verdict <= WD_PARSE_BROKEN);
    if (parsed.verdict == WD_PARSE_MORE) return 0;
    check_parsed(&parsed, in, &c->scratch);
    record(log, &parsed);
    if (parsed.verdict == WD_PARSE_BROKEN) {
        c->is_broken = 1;
        parsed = wd_parse_command(&c->parser, in.p, in.n, c->argv, &c->scratch);
        WD_ASSERT(parsed.verdict == WD_PARSE_BROKEN);
        return 0;
    }
    for (uint32_t i = 0; with_scalars && i < parsed.argc; i++)
        check_scalars(parsed.argv[i]);
    c->start += parsed.used_bytes;
    return 1;
}

/* Feed all bytes in pieces of 1..piece_max bytes; return what the parser said. */
static wd_buf run(const uint8_t *data, size_t size, size_t piece_max, uint64_t state)
{
    wd_buf log = {0};
    connection c = {.argv = malloc(WD_ARGS_MAX * sizeof(wd_span))};
    WD_ASSERT(c.argv);
    for (size_t have = 0; have < size && !c.is_broken;) {
        size_t piece = piece_max >= size ? size : 1 + next_random(&state) % piece_max;
        have = piece < size - have ? have + piece : size;
        int is_more = 1;
        while (is_more) {
            uint8_t *copy = copy_exact(data + c.start, have - c.start);
            wd_span in = {.p = copy, .n = have - c.start};
            is_more = step(&c, in, &log, piece_max >= size);
            free(copy);
        }
    }
    put(&log, &c.start, sizeof c.start);
    free(c.argv);
    wd_buf_free(&c.scratch);
    return log;
}

static void expect_same(const wd_buf *whole, wd_buf pieces)
{
    WD_ASSERT(whole->n == pieces.n);
    WD_ASSERT(memcmp(whole->p, pieces.p, whole->n) == 0);
    wd_buf_free(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > INPUT_BYTES_MAX) return 0;
    uint64_t state = mix(size);
    for (size_t i = 0; i < size; i++)
        state = mix(state ^ data[i]);
    wd_buf whole = run(data, size, size, state);
    expect_same(&whole, run(data, size, 2 + state % 61, state));
    if (size <= BYTEWISE_BYTES_MAX) expect_same(&whole, run(data, size, 1, state));
    wd_buf_free(&whole);
    return 0;
}

#ifdef WD_FUZZ_MAIN

#include <inttypes.h>
#include <signal.h>
#include <unistd.h>

enum { FILES_MAX = 256, CHANGES_MAX = 6, SPLICE_BYTES_MAX = 256 };

/* What a failure must say to be replayed: read by the signal handler. */
static volatile uint64_t running_case;

/* Sanitizers stop by abort(), so that one handler names the case for them and for assertions. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "abort_on_error=1";
}

static void on_abort(int number)
{
    char text[] = "fuzz_resp: failed in case 00000000000000000000\n";
    size_t at = sizeof text - 3;
    for (uint64_t v = running_case; v; v /= 10)
        text[at--] = (char)('0' + v % 10);
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(number);
}

static const char *const TOKENS[] = {
    "\r\n",
    "\n",
    "\r",
    "*",
    "$",
    "*0\r\n",
    "*-1\r\n",
    "*1\r\n",
    "*2\r\n",
    "$0\r\n\r\n",
    "$-1\r\n",
    "$1048577\r\n",
    "*1025\r\n",
    "99999999999999999999",
    "\"",
    "'",
    "\\",
    "\\x4",
    "\\x00",
    "\\n",
    " ",
    "\t",
    "*1\r\n$4\r\nPING\r\n",
    "PING\r\n",
    "+5m",
    "now",
    "+281474976710656",
    "2026-12-24T09:00:00+01:00",
    "2024-02-29 23:59:59.9999Z",
    "2025-02-29T00:00:00Z",
    "Z",
    ":60",
    "100000000000",
    "18446744073709551615",
    "\xc3\xa9",
    "\xc2\x85",
    "\xed\xa0\x80",
    "\xf4\x90",
};

/* Put n bytes at data[at], moving the rest up, where there is room. */
static size_t insert(uint8_t *data, size_t size, size_t at, const void *p, size_t n)
{
    if (size + n > INPUT_BYTES_MAX) return size;
    memmove(data + at + n, data + at, size - at);
    memcpy(data + at, p, n);
    return size + n;
}

/* The next digit from data[at] on becomes another: lengths that do not fit. */
static void change_digit(uint8_t *data, size_t size, size_t at, uint64_t r)
{
    while (at < size && (data[at] < '0' || data[at] > '9'))
        at++;
    if (at < size) data[at] = (uint8_t)('0' + r % 10);
}

/* Change data[0..size) once; the new size. */
static size_t change(uint8_t *data, size_t size, const wd_buf *other, uint64_t *state)
{
    uint64_t r = next_random(state);
    size_t at = size ? (r >> 8) % size : 0;
    size_t n = 1 + (r >> 40) % 16;
    const char *token = TOKENS[(r >> 32) % (sizeof TOKENS / sizeof TOKENS[0])];
    switch (r % 7) {
    case 0: /* another byte */
        if (size) data[at] = (uint8_t)(r >> 56);
        return size;
    case 1: /* another bit */
        if (size) data[at] ^= (uint8_t)(1U << (r >> 56) % 8);
        return size;
    case 2: /* some bytes less */
        if (n > size - at) n = size - at;
        memmove(data + at, data + at + n, size - at - n);
        return size - n;
    case 3:
        change_digit(data, size, at, r >> 56);
        return size;
    case 4: /* another file's bytes */
        return insert(data, size, at, other->p,
                      other->n < SPLICE_BYTES_MAX ? other->n : SPLICE_BYTES_MAX);
    default:
        return insert(data, size, at, token, strlen(token));
    }
}

static wd_buf load(const char *path)
{
    wd_buf bytes = {0};
    FILE *file = fopen(path, "rb");
    if (!file) {
        (void)fprintf(stderr, "fuzz_resp: cannot open %s\n", path);
        exit(2);
    }
    int status = wd_buf_need(&bytes, INPUT_BYTES_MAX);
    WD_ASSERT(status == WD_OK);
    bytes.n = fread(bytes.p, 1, INPUT_BYTES_MAX, file);
    (void)fclose(file);
    return bytes;
}

/* One mutated input; the same case of the same seed and files is the same input. */
static void run_case(uint64_t number, uint64_t seed, const wd_buf *files, size_t files_count)
{
    uint8_t data[INPUT_BYTES_MAX];
    running_case = number;
    uint64_t state = mix(seed ^ mix(number));
    const wd_buf *file = &files[next_random(&state) % files_count];
    size_t size = file->n;
    memcpy(data, file->p, size);
    for (uint64_t k = 1 + next_random(&state) % CHANGES_MAX; k > 0; k--) {
        size = change(data, size, &files[next_random(&state) % files_count], &state);
    }
    (void)LLVMFuzzerTestOneInput(data, size);
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc - 3 > FILES_MAX) {
        (void)fprintf(stderr, "usage: fuzz_resp COUNT SEED FILE...\n");
        return 2;
    }
    uint64_t count = strtoull(argv[1], NULL, 10);
    uint64_t seed = strtoull(argv[2], NULL, 10);
    size_t files_count = (size_t)argc - 3;
    printf("seed %" PRIu64 ", %" PRIu64 " cases from %zu files\n", seed, count, files_count);
    (void)fflush(stdout);
    (void)signal(SIGABRT, on_abort);
    wd_buf files[FILES_MAX] = {{0}};
    for (size_t i = 0; i < files_count; i++) {
        files[i] = load(argv[3 + i]);
        (void)LLVMFuzzerTestOneInput(files[i].p, files[i].n);
    }
    for (uint64_t i = 0; i < count; i++)
        run_case(i, seed, files, files_count);
    for (size_t i = 0; i < files_count; i++)
        wd_buf_free(&files[i]);
    printf("ran %" PRIu64 " cases\n", count);
    return 0;
}

#endif /* WD_FUZZ_MAIN */
