"""Where a user's code failed, without the frames that are not the user's."""

import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

_HERE: Final = f"{Path(__file__).parent}{os.sep}"
# Through which a handler is called; what else of ours fails is a fault to be seen whole.
_CALLERS: Final = tuple(_HERE + name for name in ("worker.py", "handlers.py", "coroutines.py"))
_ASYNCIO: Final = f"{Path(os.__file__).parent / 'asyncio'}{os.sep}"


def user_trace(error: BaseException) -> TracebackType | None:
    """Return an error's trace from the first frame that is the handler's; None if none is."""
    trace = error.__traceback__
    while trace is not None and _is_caller(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def print_user_trace(error: BaseException, trace: TracebackType | None) -> None:
    """Print an error from ``trace`` on, without the frames of this package at its end."""
    shown = traceback.TracebackException.from_exception(error.with_traceback(trace))
    while shown.stack and shown.stack[-1].filename.startswith(_HERE):
        shown.stack.pop()
    sys.stderr.writelines(shown.format())


def _is_caller(file: str) -> bool:
    return file in _CALLERS or file.startswith(_ASYNCIO)
