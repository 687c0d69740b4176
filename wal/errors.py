"""What can be wrong with a data directory, and what to do about it."""

from enum import StrEnum
from typing import Final

ADVICE: Final = "nothing was changed; look at it with: wheeld wal verify DATA"
MENDED: Final = (
    "what the other files tell of it: wheeld wal repair DATA --i-accept-losing 0-records"
)
GIVEN_UP: Final = (
    "to give up what follows: wheeld wal repair DATA --truncate-at {lsn}"
    " --i-accept-losing N-records, which says N"
)


class Rule(StrEnum):
    """The rule of FORMAT.md ("Verdicts at start") by which a start was refused."""

    LOST_TAIL = "lost_tail"
    DAMAGED_DURABLE = "damaged_durable"
    DAMAGED_SEALED = "damaged_sealed"
    FRAME_BEHIND = "frame_behind"
    NOT_TORN = "not_torn"
    AFTER_CLEAN_STOP = "after_clean_stop"
    SEGMENT_MISSING = "segment_missing"
    LSN_OVERLAP = "lsn_overlap"
    PREV_CRC = "prev_crc"
    TERM_ORDER = "term_order"
    FOREIGN_UUID = "foreign_uuid"
    NAME_MISMATCH = "name_mismatch"
    NEWER_FORMAT = "newer_format"
    IDENT = "ident"
    MARK = "mark"
    MANIFEST = "manifest"
    CHECKPOINT = "checkpoint"
    PERMISSIONS = "permissions"
    NETWORK_FS = "network_fs"


# What is made anew of the other files, and where an earlier end of the log mends it: wal/repair.py.
LOST: Final = frozenset({Rule.IDENT, Rule.MARK, Rule.MANIFEST})
ENDS: Final = frozenset(
    {
        Rule.LOST_TAIL,
        Rule.DAMAGED_DURABLE,
        Rule.DAMAGED_SEALED,
        Rule.FRAME_BEHIND,
        Rule.NOT_TORN,
        Rule.AFTER_CLEAN_STOP,
    }
)


class WalError(Exception):
    """The data directory cannot be used as it was asked."""


class RefusedError(WalError):
    """A start was refused, because going on could lose or invent confirmed records.

    Args:
        rule: which rule fired.
        path: the file or folder it is about.
        detail: what was found there, with numbers.
        offset: byte offset in the file, None when it is about the whole file.
        lsn: first lsn in doubt, None when none is.
        advice: what to do; empty = what the rule calls for.
    """

    def __init__(
        self,
        *,
        rule: Rule,
        path: str,
        detail: str,
        offset: int | None = None,
        lsn: int | None = None,
        advice: str = "",
    ) -> None:
        if not advice:
            advice = _advice(rule, offset, lsn)
        where = path if offset is None else f"{path} at offset {offset}"
        at_lsn = "" if lsn is None else f" (lsn {lsn})"
        super().__init__(f"{where}{at_lsn}: {detail} [rule {rule}]; {advice}")
        self.rule = rule
        self.path = path
        self.detail = detail
        self.offset = offset
        self.lsn = lsn
        self.advice = advice


def _advice(rule: Rule, offset: int | None, lsn: int | None) -> str:
    if rule in LOST and offset is None:
        return f"{ADVICE}; {MENDED}"
    if rule in ENDS and lsn is not None:
        return f"{ADVICE}; {GIVEN_UP.format(lsn=lsn)}"
    return ADVICE


class LockedError(WalError):
    """Another process holds the data directory.

    Args:
        path: the LOCK file.
        pid: what that process wrote into it, None when it cannot be read.
    """

    def __init__(self, *, path: str, pid: int | None) -> None:
        who = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{path} is held by {who}; stop it, or use another data directory")
        self.path = path
        self.pid = pid


class DiskFullError(WalError):
    """There is no room for the next segment; nothing is lost, ask again when there is."""


class LogFailedError(WalError):
    """A file call of the log failed: nothing more may be confirmed, the process has to end.

    Args:
        call: the call, such as ``datasync``.
        path: its file.
        offset: where in the file.
        lsn: the first lsn that may not be on the disk.
        errno: its error number.
        reason: that number in words.
    """

    def __init__(
        self, *, call: str, path: str, offset: int, lsn: int, errno: int, reason: str
    ) -> None:
        super().__init__(
            f"{call} on {path} at offset {offset} failed: {reason} (errno {errno}); "
            f"records from lsn {lsn} on may not be on the disk"
        )
        self.call = call
        self.path = path
        self.offset = offset
        self.lsn = lsn
        self.errno = errno
