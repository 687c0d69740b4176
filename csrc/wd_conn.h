/* wd_conn.h -- one connection without a socket: bytes in, commands run, replies held at the gate,
 * bytes out. The output gate lives here and nowhere else.
 *
 * The gate: a reply depends on the newest batch that held records when it was made, whether it
 * wrote or only read, and leaves when that batch is durable. Replies stay in one buffer in order;
 * marks say up to which stream offset bytes wait for which batch. A reply that depends on nothing
 * waits only for those before it.
 */
#ifndef WD_CONN_H
#define WD_CONN_H

#include "wd_command.h"
#include "wd_hist.h"

enum {
    /* Parsing stops while a connection has so much not taken by the kernel; with the largest reply
     * of one command (256 KiB and one payload more) it stays far below the limits that close. */
    WD_OUT_STOP_BYTES = 1024 * 1024,
    WD_UNDURABLE_COMMANDS_MAX = 4096,         /* pipelined and not yet durable, then stop reading */
    WD_UNDURABLE_BYTES_MAX = 4 * 1024 * 1024, /* the same, as bytes of these commands */
    WD_PARKED_INPUT_BYTES = 64 * 1024,        /* read ahead behind a command that waits */
    WD_INPUT_BYTES_MAX = WD_COMMAND_BYTES_MAX + 64 * 1024, /* not run yet, then stop reading */
    WD_INPUT_BYTES_HARD = 2 * WD_INPUT_BYTES_MAX,          /* fed in spite of that: closed */
    WD_PREAUTH_ARGS_MAX = 10,                              /* before AUTH, where it is required */
    WD_PREAUTH_BYTES_MAX = 16 * 1024,
    WD_PREAUTH_LINE_BYTES_MAX = 4 * 1024,
    WD_BUF_KEPT_BYTES = 64 * 1024, /* an empty buffer above this size is given back */
    WD_ADDR_BYTES = 64
};

/* Replies up to stream offset `end` leave when batch `seq` is durable. */
typedef struct {
    uint64_t seq, end;
    uint32_t commands, bytes; /* of input: how much is answered in it */
} wd_mark;

/* The lists that a connection can be on; wd_conns.c keeps them. */
enum wd_list_name {
    WD_L_ALL = 0, /* every one, oldest first */
    WD_L_GATED,   /* replies wait at the gate */
    WD_L_READY,   /* the outside must look: bytes may leave, it is to be closed, interest changed */
    WD_L_FED,     /* as READY, for connections whose bytes Python moves */
    WD_L_RESUME,  /* buffered input may be run again */
    WD_L_PYTHON,  /* a command waits to be fetched by Python */
    WD_L_BLOCKED, /* the kernel refused bytes */
    WD_L_PREAUTH, /* has not authenticated, oldest first */
    WD_L_HELD,    /* stopped at a command that changes something: the log is behind */
    WD_L_HERD,    /* asked last for what waits, or waited, for a commit; by time of that */
    WD_LISTS
};

struct wd_conn;
typedef struct {
    struct wd_conn *prev, *next;
} wd_link;

enum wd_parked { WD_PARKED_NOT = 0, WD_PARKED_WAIT = 1, WD_PARKED_PYTHON = 2 };

typedef struct wd_conn {
    wd_session session; /* first: a woken session is its connection */
    wd_parser parser;
    wd_buf in; /* input not run yet stands in in.p[in_used..in.n) */
    size_t in_used;
    wd_buf marks; /* wd_mark[], of which the first marks_passed are done */
    size_t marks_passed;
    uint64_t released; /* stream offset: bytes before it may leave */
    uint64_t sent;     /* stream offset: bytes before it have left */
    uint64_t noted;    /* stream offset: bytes before it went through the gate */
    uint64_t undurable_commands, undurable_bytes; /* sums over marks */
    wd_buf kept; /* arguments of the command that Python answers: u32 lengths, then bytes */
    uint32_t kept_argc;
    uint64_t accounted;                      /* bytes of memory told to the engine */
    uint64_t id;                             /* 1.. in order of connecting: CLIENT ID */
    uint64_t commands;                       /* run so far, refused ones included */
    int64_t opened_ms, input_ms, blocked_ms; /* mono: connected; last input; refused since */
    wd_link links[WD_LISTS];
    uint32_t lists;    /* bit i: on list i */
    int fd;            /* -1: fed by Python */
    uint32_t interest; /* epoll events asked for */
    uint8_t parked;    /* enum wd_parked */
    uint8_t fetched;   /* parked for Python, and Python has taken the command */
    uint8_t full;      /* stopped at a limit with input left */
    uint8_t held;      /* the same, at a command that changes something, while the log is behind */
    uint8_t eof;       /* the peer has sent all it will */
    uint8_t hung_up;   /* the kernel told so, input may still stand unread */
    uint8_t dead;      /* close without another byte */
    uint8_t fed;       /* opened without a descriptor */
    char addr[WD_ADDR_BYTES], local[WD_ADDR_BYTES]; /* the peer's end and ours, as text */
} wd_conn;

/* Codes of error replies that are counted; the last one stands for every other. */
enum { WD_ERROR_CODES = 24 };
extern const char *const wd_error_codes[WD_ERROR_CODES];

/* What running commands needs, and what it counts. One per core. */
typedef struct {
    wd_engine *engine;
    wd_commands *commands;
    uint64_t durable_seq; /* newest durable batch */
    int auth_required;
    wd_span argv[WD_ARGS_MAX];
    wd_buf scratch;
    uint64_t commands_run, commands_python, syntax_errors, broken, foreign;
    uint64_t errors[WD_ERROR_CODES]; /* error replies by their code, wd_error_codes */
    wd_hist lateness_us;             /* due time to the last byte of the LEASE reply leaving */
} wd_runner;

/* Run what in[0..n) completes; what is left is kept. in is behind what was given before. A
 * connection without memory for it is marked dead. */
void wd_conn_input(wd_conn *c, wd_runner *r, wd_span in);
/* Run what is buffered, after whatever held it back has changed. */
void wd_conn_resume(wd_conn *c, wd_runner *r);
/* Held back no longer: look at it again. */
void wd_conn_let_go(wd_conn *c);
/* Is there buffered input that resume would look at? */
int wd_conn_can_resume(const wd_conn *c);
/* The peer has sent all it will: answer what was read, then close. */
void wd_conn_eof(wd_conn *c, wd_runner *r);

/* The gate: bytes appended to session.out since the last call depend on seq (enum wd_done: GATED)
 * or on nothing (FREE). input_bytes = length of the command they answer. WD_OK or WD_ENOMEM. */
int wd_conn_gate(wd_conn *c, int done, uint64_t seq, uint64_t durable_seq, size_t input_bytes);
/* Let pass what waits for a batch up to durable_seq. */
void wd_conn_release(wd_conn *c, uint64_t durable_seq);
int wd_conn_is_gated(const wd_conn *c);

/* Bytes that may leave now. */
wd_span wd_conn_sendable(const wd_conn *c);
/* The first k of them have left, at wall time now_us. */
void wd_conn_taken(wd_conn *c, wd_runner *r, size_t k, int64_t now_us);
/* Bytes made and not taken, gated ones included. */
uint64_t wd_conn_out_bytes(const wd_conn *c);
/* Nothing is left to do but to close. */
int wd_conn_is_finished(const wd_conn *c);
/* May more input be taken? */
int wd_conn_wants_input(const wd_conn *c);

/* Answer the command that Python was given: the next bytes in order. WD_OK or WD_ENOMEM. */
int wd_conn_answer(wd_conn *c, wd_runner *r, wd_span reply, int done);
/* Memory that its buffers take. */
uint64_t wd_conn_memory(const wd_conn *c);
void wd_conn_free_buffers(wd_conn *c); /* all but the session's */

#endif /* WD_CONN_H */
