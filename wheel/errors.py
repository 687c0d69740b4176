"""Every exception that wheeld raises on purpose: one tree under ``WheeldError``.

A message says what happened, which value it was about, and what to do. The first word of an error
on the wire is a contract (PROTOCOL.md), so ``BY_CODE`` here is the one place that turns it into a
class; ``code`` keeps the word itself for whoever wants to match it.

The engine and the server share the upper half. ``wal/`` has its own errors, because it knows
nothing of ``wheel/``.
"""

import re
from collections.abc import Mapping
from typing import Final


class WheeldError(Exception):
    """Base of all errors that wheeld raises; catch this to catch them all.

    Attributes:
        code: first word of the server's error reply; empty if the error was found on this side.
    """

    code: str = ""


class ProtocolError(WheeldError):
    """The peer sent what the protocol does not allow; the connection is of no further use."""


class CoreError(WheeldError):
    """The C core refused a call or found one of its own invariants broken."""


class CoreMemoryError(CoreError, MemoryError):
    """The C core could not allocate, or a table of it is full."""


class CoreDiskError(CoreMemoryError):
    """The disk has no room for what the C core would have to log."""


class ServerError(WheeldError):
    """The server refused, for a reason that has no class of its own; see ``code``."""


class ServerFullError(ServerError):
    """The server has no room, in memory (OOM) or on disk (DISKFULL), to take this on."""


class UnavailableError(WheeldError):
    """The server could not be asked or did not answer in time; the call may be repeated later.

    Attributes:
        confirmed: how many leading items of ``schedule_many`` or ``batch`` had been answered.
    """

    confirmed: int = 0


class ConnectError(UnavailableError):
    """No connection to the server could be made, or it kept breaking, until the deadline."""


class WheeldTimeout(UnavailableError, TimeoutError):  # noqa: N818  (a builtin TimeoutError too)
    """The server took the call but did not answer before the deadline."""


class BusyError(UnavailableError):
    """The server answered that it cannot take the call just now (BUSY, LOADING, TRYAGAIN)."""


class NotLeaderError(WheeldError):
    """This server does not take writes (READONLY), or another one serves this name (MOVED)."""


class AuthError(WheeldError):
    """The token is missing or wrong, or its role may not do this."""


class InvalidRequest(WheeldError, ValueError):  # noqa: N818  (reads better where it is caught)
    """What was asked for is malformed or outside a limit; repeating it will not help."""


class NaiveDatetimeError(InvalidRequest):
    """A date and time without a time zone: nobody can know which moment is meant."""


class CronSyntaxError(InvalidRequest):
    """A rule that cannot be read, or never fires.

    Attributes:
        position: byte of the rule at which it stumbled, from 0; None if that is not one place.
        reason: what is wrong; begins with ``never_fires`` where a readable rule has no time.
        hint: what to write.
    """

    position: int | None = None
    reason: str = ""
    hint: str = ""


class ZoneError(CronSyntaxError):
    """A time zone that the tz database does not know."""


class CycleError(InvalidRequest):
    """Schedules that would wait for each other in a circle.

    Attributes:
        path: their names; each waits for the next, and the last one is the first again.
    """

    path: tuple[str, ...] = ()


class ApplyError(InvalidRequest):
    """Some of the schedules that were to be applied are refused; nothing was changed.

    Attributes:
        errors: why, by the schedule's name.
    """

    errors: Mapping[str, WheeldError] = {}


class LimitError(InvalidRequest):
    """A value above a limit; the message names both."""


class PayloadTooLarge(LimitError):  # noqa: N818
    """A payload above the limit: store it elsewhere and send its key."""


class NotFound(WheeldError):  # noqa: N818
    """No job with this id or key is known."""


class Conflict(WheeldError):  # noqa: N818
    """The job is in a state that does not allow this, or its key is taken."""


class KeyExists(Conflict):
    """A job with this key exists, and ``on_conflict="error"`` was asked for."""


class LeaseLost(WheeldError):  # noqa: N818
    """The run is no longer this worker's: its lease or its time ran out, or it was taken over."""


class JobCancelled(WheeldError):  # noqa: N818
    """The job was cancelled while it ran."""


BY_CODE: Final[dict[str, type[WheeldError]]] = {
    "SYNTAX": InvalidRequest,
    "UNKNOWN_COMMAND": InvalidRequest,
    "CROSSSLOT": InvalidRequest,
    "NAIVE_TIME": NaiveDatetimeError,
    "CRON": CronSyntaxError,
    "CYCLE": CycleError,
    "LIMIT": LimitError,
    "OOM": ServerFullError,
    "DISKFULL": ServerFullError,
    "NOAUTH": AuthError,
    "NOPERM": AuthError,
    "WRONGPASS": AuthError,
    "DENIED": AuthError,
    "STALE": LeaseLost,
    "UNKNOWN": NotFound,
    "CANCELLED": JobCancelled,
    "EXISTS": KeyExists,
    "CONFLICT": Conflict,
    "BUSY": BusyError,
    "LOADING": BusyError,
    "TRYAGAIN": BusyError,
    "CLUSTERDOWN": BusyError,
    "READONLY": NotLeaderError,
    "MOVED": NotLeaderError,
}


# What of an error's text is told apart (PROTOCOL.md, Errors): where a rule stumbled, and who waits
# for whom.
_POSITION: Final = re.compile(r"\bat position ([0-9]{1,4})\b")
_CYCLE: Final = re.compile(r"(.+): each waits for the next\b")


def in_words(error: Exception) -> str:
    """Return an error's text for a person: a system's error as its file and what is wrong.

    ``[Errno 2] No such file or directory: 'x'`` becomes ``x: no such file or directory``.
    """
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    reason = error.strerror[:1].lower() + error.strerror[1:]
    return f"{error.filename}: {reason}" if error.filename else reason


def from_reply(code: str, text: str) -> WheeldError:
    """Return the exception for an error reply.

    Args:
        code: its first word. One that is not known becomes a ServerError.
        text: the rest of the line.
    """
    error = BY_CODE.get(code, ServerError)(f"{code} {text}" if text else code)
    error.code = code
    if isinstance(error, CronSyntaxError) and (found := _POSITION.search(text)):
        error.position = int(found[1])
    if isinstance(error, CycleError) and (found := _CYCLE.match(text)):
        error.path = tuple(found[1].split(" -> "))
    return error
