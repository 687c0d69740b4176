"""csrc/wd_resp.c and csrc/wd_when.c as a cffi module of their own, for the tests of the grammar.

Nothing else of the core is in it, and what is declared here is checked by the C compiler against
the header.
"""

import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from cffi import FFI

ROOT = Path(__file__).parents[2]
DUE_MS_END = 1 << 48
COUNTING = os.environ.get("WHEELD_COVERAGE", "").split()

DECLARATIONS = """
enum { WD_ARGS_MAX = ..., WD_INLINE_BYTES_MAX = ..., WD_BULK_BYTES_MAX = ...,
       WD_COMMAND_BYTES_MAX = ..., WD_OK = ..., WD_ENOMEM = ..., WD_EINVAL = ...,
       WD_PARSE_MORE = ..., WD_PARSE_COMMAND = ..., WD_PARSE_SYNTAX = ..., WD_PARSE_BROKEN = ...,
       WD_WHEN_ABS = ..., WD_WHEN_REL = ..., WD_WHEN_OK = ..., WD_WHEN_SYNTAX = ...,
       WD_WHEN_NAIVE = ..., WD_WHEN_SECONDS = ..., WD_WHEN_RANGE = ... };
typedef struct { const uint8_t *p; size_t n; } wd_span;
typedef struct { uint8_t *p; size_t n; size_t cap; } wd_buf;
typedef struct { uint32_t args_total; uint32_t args_done; size_t scanned_bytes; } wd_parser;
typedef struct { int verdict; size_t used_bytes; uint32_t argc; wd_span *argv; const char *error; }
    wd_parsed;
typedef struct { int kind; int64_t ms; } wd_when;
wd_parsed wd_parse_command(wd_parser *, const uint8_t *, size_t, wd_span *, wd_buf *);
int wd_parse_u64(wd_span, uint64_t, uint64_t *);
int wd_parse_when(wd_span, wd_when *);
int wd_is_name(wd_span, size_t);
size_t wd_utf8_width(wd_span);
int wd_is_control(const uint8_t *);
int wd_word_is(wd_span, const char *);
int wd_reply_simple(wd_buf *, const char *);
int wd_reply_error(wd_buf *, const char *, const char *, ...);
int wd_reply_int(wd_buf *, int64_t);
int wd_reply_bulk(wd_buf *, wd_span);
int wd_reply_bulk_u64(wd_buf *, uint64_t);
int wd_reply_array(wd_buf *, uint32_t);
int wd_reply_map(wd_buf *, uint32_t, int);
int wd_reply_nil(wd_buf *, int);
uint64_t wd_alloc_fail_at(uint64_t);
void wd_buf_free(wd_buf *);
"""


@cache
def build_resp(session_folder: Path) -> Any:
    """Return the module; compiled once into a session's folder, whoever asks."""
    folder = session_folder / "resp"
    builder = FFI()
    builder.cdef(DECLARATIONS)
    builder.set_source(
        "_resp_under_test",
        '#include "wd_resp.h"',
        sources=[str(ROOT / "csrc" / name) for name in ("wd_resp.c", "wd_when.c", "wd_mem.c")],
        include_dirs=[str(ROOT / "csrc")],
        extra_compile_args=["-std=c11", "-O1", "-UNDEBUG", "-Wall", "-Wextra", *COUNTING],
        extra_link_args=COUNTING,
    )
    path = builder.compile(tmpdir=str(folder))
    spec = importlib.util.spec_from_file_location("_resp_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def span(c: Any, data: bytes) -> tuple[Any, Any]:
    """Return a span, and the block that must be kept alive beside it."""
    block = c.ffi.new("uint8_t[]", data) if data else c.ffi.new("uint8_t[1]")
    return c.ffi.new("wd_span *", {"p": block, "n": len(data)})[0], block
