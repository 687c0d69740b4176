"""What an answer is, and how arguments are read: shared by all commands that Python answers."""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from server.logs import escape
from wheel.wire import Answer, Simple

NAME_BYTES_MAX: Final = 63
OK: Final = Simple("OK")

# A reply in the making: a step for each next(), the reply as what the generator returns.
Work = Generator[None, None, Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What to do about a command.

    Attributes:
        value: the reply.
        work: makes the reply instead, step by step: each step is short, and others have their turn
            between them.
        later: becomes what to do instead, when something outside the loop is done.
        gated: the reply depends on the state it saw, so it leaves when that is durable.
        silent: send nothing.
        close: close the connection behind the reply.
        delay_s: wait so long before the reply leaves; what is pipelined behind waits too.
    """

    value: Answer = None
    work: Work | None = None
    later: "asyncio.Future[Outcome] | None" = None
    gated: bool = False
    silent: bool = False
    close: bool = False
    delay_s: float = 0.0


class RefusedError(Exception):
    """A command is refused; the text becomes the error reply.

    Attributes:
        code: its first word.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def show(argument: bytes) -> str:
    """Return an argument fit to be shown: cut, and without control characters."""
    return escape(argument[:64].decode("utf-8", "backslashreplace"))


def read_word(argument: bytes) -> str:
    """Return a command's or option's name in upper case."""
    return argument[:64].decode("latin-1").upper()


def read_number(argument: bytes, what: str, limit: int = 2**63 - 1) -> int:
    """Return a number in 0..limit.

    Raises:
        RefusedError: it is none.
    """
    if not argument.isdigit() or len(argument) > 19 or int(argument) > limit:
        raise RefusedError("SYNTAX", f"{what} is {show(argument)!r}, not a number in 0..{limit}")
    return int(argument)


def read_name(argument: bytes, what: str) -> str:
    """Return a connection's name: printable, no blanks, as Redis wants it for CLIENT LIST.

    Raises:
        RefusedError: it is too long or holds something else.
    """
    if len(argument) > NAME_BYTES_MAX:
        raise RefusedError("LIMIT", f"{what} has {len(argument)} bytes, at most {NAME_BYTES_MAX}")
    if any(not 0x21 <= byte <= 0x7E for byte in argument):
        raise RefusedError("ERR", f"{what} may hold printable ASCII without blanks only")
    return argument.decode("ascii")
