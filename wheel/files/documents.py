"""Looks into a JSON document: values by key with their type checked, faults with their path."""

import json
from collections.abc import Mapping, Sequence
from typing import cast

from wheel.files.found import Problem, refused


class Node:
    """A JSON object and where it stands; asking it for a value never raises.

    What is wrong is added to ``problems``, which the nodes of one document share, and a value of
    the wrong type counts as absent.
    """

    __slots__ = ("place", "problems", "values")

    def __init__(self, values: Mapping[str, object], place: str, problems: list[Problem]) -> None:
        self.values = values
        self.place = place
        self.problems = problems

    def complain(self, text: str, key: str = "") -> None:
        """Note a fault of this object, or of one of its values."""
        self.problems.append(Problem(self.path(key), text))

    def path(self, key: str = "") -> str:
        """Return the path of a value: ``items[3].spec.schedule``."""
        return ".".join(part for part in (self.place, key) if part) or "the document"

    def text(self, key: str, absent: str = "", *, needed: bool = False) -> str:
        """Return a text."""
        value = self.values.get(key)
        if value is None:
            if needed:
                self.complain(f"{key} is missing", key)
            return absent
        if isinstance(value, str):
            return value
        self.complain(f"{_shown(value)} is no text", key)
        return absent

    def number(self, key: str) -> int | None:
        """Return a whole number from 0 on, None if it is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self.complain(f"{_shown(value)} is no whole number from 0 on", key)
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
        value = self.values.get(key)
        if isinstance(value, dict):
            return Node(cast("Mapping[str, object]", value), self.path(key), self.problems)
        if value is not None:
            self.complain(f"{_shown(value)} is no object", key)
        return Node({}, self.path(key), self.problems)

    def nodes(self, key: str) -> list["Node"]:
        """Return the objects of a list; none if it is absent."""
        found: list[Node] = []
        for at, value in enumerate(self.items(key)):
            place = f"{self.path(key)}[{at}]"
            if isinstance(value, dict):
                found.append(Node(cast("Mapping[str, object]", value), place, self.problems))
            else:
                self.problems.append(Problem(place, f"{_shown(value)} is no object"))
        return found

    def items(self, key: str) -> Sequence[object]:
        """Return a list; an empty one if it is absent."""
        value = self.values.get(key)
        if isinstance(value, list):
            return cast("list[object]", value)
        if value is not None:
            self.complain(f"{_shown(value)} is no list", key)
        return []


def read_json(text: str, file: str) -> Node:
    """Return the object that a JSON text holds.

    Raises:
        FileRefused: it is no JSON, or no object.
    """
    try:
        value: object = json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise refused(file, [Problem(f"line {line}", f"it is no JSON: {error}")]) from error
    except RecursionError as error:
        raise refused(file, [Problem("line 1", "it is nested too deeply")]) from error
    if not isinstance(value, dict):
        raise refused(file, [Problem("line 1", f"{_shown(value)} is no object; write {{...}}")])
    return Node(cast("Mapping[str, object]", value), "", [])


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is no number of JSON's")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}..."
