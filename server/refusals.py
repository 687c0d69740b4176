"""Why a start was given up: exit status and what to tell, for each error that can end one.

The statuses follow sysexits.h: 78 = options, tokens or data directory do not let it start and
somebody must look; 74 = the disk failed; 1 = try again.
"""

import errno
from pathlib import Path
from typing import Final

from server.auth import TokenFileError
from server.listener import ListenError
from server.replay import LoadError, ReplayError
from server.settings import SettingsError
from wal.errors import LogFailedError, RefusedError, WalError
from wheel.errors import CoreError, in_words

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_IO: Final = 74
EXIT_CONFIG: Final = 78

ERRORS: Final = (
    SettingsError,
    TokenFileError,
    ListenError,
    LoadError,
    ReplayError,
    WalError,
    CoreError,
    OSError,
)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_DISK: Final = _FULL | {errno.EIO, errno.EROFS, errno.EFBIG}

Fields = dict[str, str | int | None]


def refusal(error: Exception, data: Path) -> tuple[int, Fields]:
    """Return the exit status for an error during the start, and the fields of its log line.

    Args:
        error: one of ERRORS.
        data: the data directory, to be named in what to do.
    """
    if isinstance(error, RefusedError):
        return EXIT_CONFIG, {
            "error": error.detail,
            "file": error.path,
            "offset_bytes": error.offset,
            "lsn": error.lsn,
            "rule": str(error.rule),
            "hint": error.advice.replace("DATA", str(data)),
        }
    if isinstance(error, ReplayError):
        return EXIT_CONFIG, {
            "error": str(error),
            "segment": error.segment,
            "offset_bytes": error.offset_bytes,
            "lsn": error.lsn,
            "hint": "raise --maxmemory, or start the build that wrote this log",
        }
    if isinstance(error, LoadError):
        return EXIT_CONFIG, {
            "error": str(error),
            "hint": "raise --maxmemory, or start the build that wrote this checkpoint",
        }
    if isinstance(error, LogFailedError):
        return EXIT_IO, {
            "error": str(error),
            "file": error.path,
            "offset_bytes": error.offset,
            "lsn": error.lsn,
            "hint": _hint(error.errno),
        }
    if isinstance(error, OSError):
        status = EXIT_IO if error.errno in _DISK else EXIT_CONFIG
        fields: Fields = {"error": in_words(error), "file": str(error.filename or data)}
        return status, fields | ({"hint": _hint(error.errno)} if status == EXIT_IO else {})
    status = EXIT_FAILED if isinstance(error, ListenError) else EXIT_CONFIG
    return status, {"error": str(error)}


def _hint(number: int | None) -> str:
    """Return what to do about an error of the disk."""
    if number in _FULL:
        return "make room where the data directory lies (a start needs two segments), then start"
    if number == errno.EFBIG:
        return "raise what this process may write into one file (ulimit -f, LimitFSIZE= of a unit)"
    if number == errno.EROFS:
        return "the file system is mounted read-only: see to the disk, then start again"
    return "see to the disk, then start again"
