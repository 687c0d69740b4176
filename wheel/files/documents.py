"""Looks into a JSON document: values by key with their type checked, faults with their place."""

import json
from collections.abc import Mapping, Sequence
from typing import cast

from wheel.files.found import Problem, refused
from wheel.files.jsonlines import joined, json_lines, line_of


class Node:
    """A JSON object and where it stands; asking it for a value never raises.

    What is wrong is added to ``problems``, which the nodes of one document share, and a value of
    the wrong type counts as absent.
    """

    __slots__ = ("lines", "place", "problems", "values")

    def __init__(
        self,
        values: Mapping[str, object],
        place: str,
        problems: list[Problem],
        lines: Mapping[str, int],
    ) -> None:
        self.values = values
        self.place = place
        self.problems = problems
        self.lines = lines

    def complain(self, text: str, key: str = "") -> None:
        """Note a fault of this object, or of one of its values; the same one once."""
        problem = Problem(self.path(key), text)
        if problem not in self.problems:
            self.problems.append(problem)

    def path(self, key: str = "") -> str:
        """Return where a value stands: ``line 12, items[3].spec.schedule``."""
        return self._place(joined(self.place, key))

    def _place(self, path: str) -> str:
        return f"line {line_of(self.lines, path)}, {path or 'the document'}"

    def _inner(self, value: object, path: str) -> "Node":
        values = cast("Mapping[str, object]", value)
        return Node(values, path, self.problems, self.lines)

    def text(self, key: str, absent: str = "", *, needed: bool = False) -> str:
        """Return a text."""
        value = self.values.get(key)
        if value is None:
            if needed:
                self.complain(f"{key} is missing", key)
            return absent
        if isinstance(value, str):
            return value
        self.complain(f"{_shown(value)} is not text", key)
        return absent

    def number(self, key: str) -> int | None:
        """Return a whole number from 0 on, None if it is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self.complain(f"{_shown(value)} is not a whole number from 0 on", key)
        return None

    def flag(self, key: str, *, absent: bool = False) -> bool:
        """Return true or false."""
        value = self.values.get(key)
        if isinstance(value, bool):
            return value
        if value is not None:
            self.complain(f"{_shown(value)} is neither true nor false", key)
        return absent

    def node(self, key: str) -> "Node":
        """Return an object; an empty one if it is absent."""
        value: object = self.values.get(key)
        path = joined(self.place, key)
        if isinstance(value, dict):
            return self._inner(cast("object", value), path)
        if value is not None:
            self.complain(f"{_shown(value)} is not an object", key)
        return self._inner({}, path)

    def nodes(self, key: str) -> list["Node"]:
        """Return the objects of a list; none if it is absent."""
        found: list[Node] = []
        for at, value in enumerate(self.items(key)):
            path = f"{joined(self.place, key)}[{at}]"
            if isinstance(value, dict):
                found.append(self._inner(cast("object", value), path))
            else:
                self.problems.append(
                    Problem(self._place(path), f"{_shown(value)} is not an object")
                )
        return found

    def items(self, key: str) -> Sequence[object]:
        """Return a list; an empty one if it is absent."""
        value = self.values.get(key)
        if isinstance(value, list):
            return cast("list[object]", value)
        if value is not None:
            self.complain(f"{_shown(value)} is not a list", key)
        return []


def read_json(text: str, file: str) -> Node:
    """Return the object that a JSON text holds.

    Raises:
        FileRefused: it is not JSON, or no object.
    """
    try:
        value: object = json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise refused(file, [Problem(f"line {line}", f"it is not JSON: {error}")]) from error
    except RecursionError as error:
        raise refused(file, [Problem("line 1", "it is nested too deeply")]) from error
    if not isinstance(value, dict):
        raise refused(file, [Problem("line 1", f"{_shown(value)} is not an object; write {{...}}")])
    return Node(cast("Mapping[str, object]", value), "", [], json_lines(text))


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is not a number in JSON")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}..."
