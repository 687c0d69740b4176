"""Reading a command's arguments one after the other, with the errors that the C core gives.

Every refusal names the argument, shows its value, says what is wrong with it, and what to write
instead. Times are read by the core's own grammar, so that a ``when`` means the same everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from server.answers import RefusedError, read_word, show
from wheel.engine.core import WhenFault, parse_when

NAME_BYTES_MAX: Final = 200
SPAN_MS_MAX: Final = 30 * 86_400_000
NUMBER_MAX: Final = (1 << 53) - 1  # what every JSON reader can hold
TIME_MS_END: Final = 1 << 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A ``when`` as it was given.

    Attributes:
        ms: since 1970, or from now.
        from_now: which of the two.
    """

    ms: int
    from_now: bool

    def wall_ms(self, now_ms: int) -> int:
        """Return it as unix time; what is relative begins at ``now_ms``."""
        return min(now_ms + self.ms, TIME_MS_END - 1) if self.from_now else self.ms


class Words:
    """The arguments of one command, and how far they have been read.

    Args:
        command: as errors name it.
        arguments: behind the command's name.
        usage: what may stand behind it, for errors.
    """

    __slots__ = ("_at", "_given", "_words", "command", "usage")

    def __init__(self, command: str, arguments: Sequence[bytes], usage: str = "") -> None:
        self.command = command
        self.usage = usage
        self._words = arguments
        self._at = 0
        self._given: set[str] = set()

    def __bool__(self) -> bool:
        return self._at < len(self._words)

    def peek(self) -> str:
        """Return the next argument as a word in upper case; "" at the end."""
        return read_word(self._words[self._at]) if self else ""

    def raw(self, what: str) -> bytes:
        """Return the next argument as it is.

        Raises:
            RefusedError: there is none.
        """
        if not self:
            whole = f"{self.command} {self.usage}".rstrip()
            raise RefusedError(
                "SYNTAX", f"{self.command} needs {what}, and it is not there; write {whole}"
            )
        self._at += 1
        return self._words[self._at - 1]

    def option(self, allowed: Sequence[str]) -> str:
        """Return the next argument, which is to be an option's name not given before.

        Raises:
            RefusedError: it is none of ``allowed``, or was given before.
        """
        shown = self._words[self._at]
        word = read_word(self.raw("an option"))
        if word not in allowed:
            near = get_close_matches(word, allowed, 1)
            advice = f"do you mean {near[0]}?" if near else f"it takes {' '.join(allowed)}"
            raise RefusedError(
                "SYNTAX",
                f'unknown option "{show(shown)}" of {self.command}; '
                f"{advice if allowed else 'nothing stands there'}",
            )
        if word in self._given:
            raise RefusedError(
                "SYNTAX", f"option {word} of {self.command} is given twice; leave one out"
            )
        self._given.add(word)
        return word

    def end(self) -> None:
        """Make sure that nothing is left.

        Raises:
            RefusedError: something is.
        """
        if self:
            raise RefusedError(
                "SYNTAX",
                f'"{show(self._words[self._at])}" stands behind the arguments of {self.command}; '
                "leave it out",
            )

    def text(self, what: str, bytes_max: int = NAME_BYTES_MAX, *, allowed: str = "") -> str:
        """Return the next argument as text of 1 to ``bytes_max`` bytes without control characters.

        Args:
            what: it is, for errors.
            bytes_max: in UTF-8.
            allowed: control characters that may stand in it all the same.

        Raises:
            RefusedError: it is none.
        """
        data = self.raw(what)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise RefusedError(
                "SYNTAX", f'{what} "{show(data)}" is no UTF-8 at byte {error.start}; write UTF-8'
            ) from None
        if not 1 <= len(data) <= bytes_max:
            raise RefusedError(
                "LIMIT",
                f'{what} "{show(data)}" has {len(data)} bytes, not 1..{bytes_max}; '
                f"write {'something' if not data else 'a shorter one'}",
            )
        for at, character in enumerate(text):
            if (character < " " or "\x7f" <= character <= "\x9f") and character not in allowed:
                raise RefusedError(
                    "SYNTAX",
                    f'{what} "{show(data)}" has the control character U+{ord(character):04X} at '
                    f"character {at}; leave it out",
                )
        return text

    def number(self, what: str, least: int = 0, most: int = NUMBER_MAX) -> int:
        """Return the next argument as a number.

        Raises:
            RefusedError: it is none, or out of bounds.
        """
        data = self.raw(f"a number for {what}")
        if not data.isdigit():
            raise RefusedError(
                "SYNTAX", f'{what} "{show(data)}" is not a whole number; write digits only'
            )
        if len(data) > 19 or not least <= int(data) <= most:
            raise RefusedError(
                "LIMIT", f"{what} {show(data)} is outside {least}..{most}; write a number of these"
            )
        return int(data)

    def choice(self, what: str, allowed: Sequence[str]) -> str:
        """Return the next argument, which is one of some words, in lower case.

        Raises:
            RefusedError: it is none of them.
        """
        data = self.raw(what)
        word = read_word(data).lower()
        if word not in allowed:
            raise RefusedError(
                "SYNTAX", f'{what} "{show(data)}" is none of {", ".join(allowed)}; write one'
            )
        return word

    def moment(self, what: str) -> Moment:
        """Return the next argument as a ``when``.

        Raises:
            RefusedError: it is none.
        """
        data = self.raw(f"a time for {what}")
        found = parse_when(data)
        if isinstance(found, WhenFault):
            raise _no_time(what, data, found)
        return Moment(ms=found[0], from_now=found[1])


def _no_time(what: str, data: bytes, fault: WhenFault) -> RefusedError:
    """Return the error for what is no ``when``; the words are the core's."""
    value = show(data)
    if fault is WhenFault.NAIVE:
        whole = f"{value}T00:00" if len(data) == len("2026-12-24") else value
        return RefusedError(
            "NAIVE_TIME",
            f'{what} "{value}" has no time zone; write an offset behind it, as in {whole}Z or '
            f"{whole}+01:00",
        )
    if fault is WhenFault.SECONDS:
        return RefusedError(
            "SYNTAX",
            f"{what} {value} looks like seconds; absolute times are unix milliseconds "
            f"(+{value} is relative)",
        )
    if fault is WhenFault.RANGE:
        return RefusedError(
            "LIMIT", f'{what} "{value}" is outside 1970 to 10889 (milliseconds below 2^48)'
        )
    return RefusedError(
        "SYNTAX",
        f'{what} "{value}" is not a time; write now, +30s, unix milliseconds, or '
        "2026-12-24T09:00:00+01:00",
    )
