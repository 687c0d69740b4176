"""At which line of a JSON text each value stands; what ``json`` does not tell.

The text has been read by ``json`` before, so it is known to be well formed.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

_TOKEN: Final = re.compile(
    r'(?P<string>"(?:\\.|[^"\\])*")|(?P<open>[{\[])|(?P<close>[}\]])|(?P<comma>,)|(?P<colon>:)'
    r'|(?P<line>\n)|(?P<scalar>[^\s{}\[\],:"]+)'
)


class _Level:
    """An object or a list that is being read."""

    __slots__ = ("at", "is_key_next", "is_list", "key", "path")

    def __init__(self, path: str, *, is_list: bool) -> None:
        self.path = path
        self.is_list = is_list
        self.at = 0
        self.key = ""
        self.is_key_next = not is_list

    def value_path(self) -> str:
        return f"{self.path}[{self.at}]" if self.is_list else joined(self.path, self.key)


def joined(path: str, key: str) -> str:
    """Return the path of an object's value: ``items[3].spec`` and ``schedule``."""
    return ".".join(part for part in (path, key) if part)


def json_lines(text: str) -> dict[str, int]:
    """Return the line, from 1, of each value of a well-formed JSON text, by its path."""
    lines: dict[str, int] = {}
    levels: list[_Level] = []
    number = 1
    for token in _TOKEN.finditer(text):
        kind, level = token.lastgroup, levels[-1] if levels else None
        if kind == "line":
            number += 1
        elif kind == "string" and level is not None and level.is_key_next:
            level.key = json.loads(token[0])
            lines.setdefault(level.value_path(), number)
        elif kind == "colon" and level is not None:
            level.is_key_next = False
        elif kind == "comma" and level is not None:
            level.at += 1
            level.is_key_next = not level.is_list
        elif kind == "close":
            levels.pop()
        else:
            path = "" if level is None else level.value_path()
            lines.setdefault(path, number)
            if kind == "open":
                levels.append(_Level(path, is_list=token[0] == "["))
    return lines


def line_of(lines: Mapping[str, int], path: str) -> int:
    """Return the line of a value, or of the nearest one around it."""
    while path not in lines and path:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path, 1)
