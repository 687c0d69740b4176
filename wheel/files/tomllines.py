"""At which line of a TOML file each key stands; what ``tomllib`` does not tell.

The text has been read by ``tomllib`` before, so it is known to be well formed: this only has to
tell keys at the beginning of a line from what looks like them inside strings and arrays.
"""

import re
import tomllib
from collections.abc import Iterator
from typing import Final, TypeAlias, cast

Path: TypeAlias = tuple[str, ...]

_TOKEN: Final = re.compile(
    r'''(?P<string>"""(?:\\.|[^\\])*?"""+|\'\'\'.*?\'\'\'+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')'''
    r"|(?P<comment>\#[^\n]*)|(?P<line>\n)|(?P<open>[\[{])|(?P<close>[\]}])|(?P<equals>=)",
    re.DOTALL,
)


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of each table header and each key of a well-formed TOML text.

    Keys inside inline tables are not listed; ask ``line_of`` for the nearest key around them.
    """
    lines: dict[Path, int] = {}
    table: Path = ()
    for number, statement, is_header in _statements(text):
        if is_header:
            table = _path(statement.strip("[] \t"))
            lines.setdefault(table, number)
        else:
            lines.setdefault(table + _path(statement), number)
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int:
    """Return the line of a key, or of the nearest one around it; 1 if there is none."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _path(key: str) -> Path:
    """Return the parts of a dotted key, quotes read."""
    found: object = tomllib.loads(f"{key} = 0")
    parts: list[str] = []
    while isinstance(found, dict):
        [(part, found)] = cast("dict[str, object]", found).items()
        parts.append(part)
    return tuple(parts)


def _statements(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, text of a key or a header, whether it is a header)."""
    text = text.replace("\r\n", "\n")
    number, begin, depth, seen_equals = 1, 0, 0, False
    for token in _TOKEN.finditer(f"{text}\n"):
        kind = token.lastgroup
        if kind == "string":
            number += token[0].count("\n")
        elif kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
        elif kind == "equals" and depth == 0 and not seen_equals:
            seen_equals = True
            yield number, text[begin : token.start()].strip(), False
        elif kind in {"line", "comment"}:
            statement = text[begin : token.start()].strip()
            if depth == 0 and not seen_equals and statement.startswith("["):
                yield number, statement, True
            if kind == "line":
                number += 1
            if depth == 0:
                begin, seen_equals = token.end(), False
