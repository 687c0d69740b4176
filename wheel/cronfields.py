"""The grammar of cron expressions: five, six or seven fields to items, and items to bit masks.

Every plain item (a star, a value, a range, each with or without a step) is expanded by croniter,
field by field; what it read once it is not asked again. These forms our own code handles, because
croniter refuses them or reads them in another way than cron(8) does:

- ``L``, ``L-n``, ``LW``, ``nW`` as days of the month; ``dL``, ``Ld``, ``d#n`` as weekdays;
- an equal range (``5-5``) and a reversed one (``nov-feb``; months and weekdays only);
- ``H``, ``H(a-b)``, each with a step, and ``a~b``, which is ``H(a-b)``;
- ``?`` in a day field;
- years after 2099 or without an upper end, where croniter stops short of our horizon.

Also ours: the count of fields, the bounds of values and steps, and every error.
"""

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, NoReturn, TypeAlias

from wheel.cronmasks import YEAR_FIRST, YEAR_LAST, Days, Fields
from wheel.errors import CronSyntaxError, WheeldError

Kind: TypeAlias = Literal["range", "end", "last_weekday", "nearest", "last", "nth"]
Form: TypeAlias = Literal["star", "value", "range", "start", "hash"]

CRONITER_YEAR_LAST: Final = 2099

_MONTHS: Final = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_WEEKDAYS: Final = "sun mon tue wed thu fri sat".split()
_HASH_DAY_LAST: Final = 28  # every month has it
_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_HASH: Final = re.compile(r"h(?:\(([^()]*)-([^()]*)\))?")
_RANDOM: Final = re.compile(r"r(?:\(.*\))?")
_FROM_END: Final = re.compile(r"l-([0-9]{1,3})")
_NEAREST: Final = re.compile(r"([0-9]{1,3})w")
_NTH: Final = re.compile(r"([^#]*)#([^#]*)")
_LAST: Final = re.compile(r"l([0-9a-z]+)|([0-9a-z]+)l")
_SECONDS_OF_UNIT: Final = {"second": "s", "minute": "m", "hour": "h", "day of month": "d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One of the seven fields.

    Attributes:
        name: as errors call it.
        low: smallest value.
        high: largest value of a star.
        top: largest value that may be written; 7 is Sunday too.
        names: words for values.
        column: where croniter has the field, seconds first.
    """

    name: str
    low: int
    high: int
    top: int
    names: Mapping[str, int]
    column: int


SECOND: Final = Unit(name="second", low=0, high=59, top=59, names={}, column=0)
MINUTE: Final = Unit(name="minute", low=0, high=59, top=59, names={}, column=1)
HOUR: Final = Unit(name="hour", low=0, high=23, top=23, names={}, column=2)
DAY: Final = Unit(name="day of month", low=1, high=31, top=31, names={}, column=3)
MONTH: Final = Unit(
    name="month",
    low=1,
    high=12,
    top=12,
    names={name: at for at, name in enumerate(_MONTHS, 1)},
    column=4,
)
WEEKDAY: Final = Unit(
    name="weekday",
    low=0,
    high=6,
    top=7,
    names={name: at for at, name in enumerate(_WEEKDAYS)},
    column=5,
)
YEAR: Final = Unit(name="year", low=YEAR_FIRST, high=YEAR_LAST, top=YEAR_LAST, names={}, column=6)

_FIVE: Final = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)
_UNITS: Final = {5: _FIVE, 6: (SECOND, *_FIVE), 7: (SECOND, *_FIVE, YEAR)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One member of a field's list.

    Attributes:
        kind: ``range`` for everything that is a set of values by itself.
        form: how a range was written.
        low: first value; of the other kinds the day, the weekday, or the days before the end.
        high: last value, below ``low`` if reversed; of ``nth`` which one.
        step: distance of the values.
        plain: whether croniter expands it.
    """

    kind: Kind = "range"
    form: Form = "value"
    low: int
    high: int = 0
    step: int = 1
    plain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field that has been read.

    Attributes:
        unit: which one.
        items: its members in the order written.
        star: whether its text begins with a star or is ``?``.
    """

    unit: Unit
    items: tuple[Item, ...]
    star: bool


class Token(NamedTuple):
    """A word of the rule and where it stands."""

    text: str
    position: int


def refusal(
    reason: str, hint: str, position: int | None = None, what: str = "the rule"
) -> CronSyntaxError:
    """Return the error to raise: what, where, why, and what to write."""
    place = "" if position is None else f" at position {position}"
    error = CronSyntaxError(f"{what}{place}: {reason}; {hint}")
    error.position, error.reason, error.hint = position, reason, hint
    return error


# ------------------------------------------------------------------------------ reading


def read_fields(tokens: Sequence[Token], name: str, text: str) -> tuple[Field, ...]:
    """Return the fields of an expression in the order written, five, six or seven.

    Args:
        tokens: the words of the expression.
        name: the schedule's, from which H draws.
        text: the whole rule, for errors.

    Raises:
        CronSyntaxError: with the position in the rule.
    """
    units = _UNITS.get(len(tokens))
    if units is None:
        raise refusal(
            f"{len(tokens)} field{'s' if len(tokens) != 1 else ''} instead of 5, 6 or 7",
            "write minute, hour, day of month, month, weekday; six begin with the second, "
            "seven end with the year",
            tokens[-1].position if len(tokens) > 7 else None,
            f"the cron rule {text!r}",
        )
    return tuple(_read_field(unit, token, name) for unit, token in zip(units, tokens, strict=True))


def uses_hash(fields: Sequence[Field]) -> bool:
    """Return whether an H or a~b is among the items."""
    return any(item.form == "hash" for field in fields for item in field.items)


def _read_field(unit: Unit, token: Token, name: str) -> Field:
    if token.text == "?":
        if unit not in (DAY, WEEKDAY):
            _refuse(unit, token, "a question mark stands only in a day field", "write *")
        item = Item(form="star", low=unit.low, high=unit.high)
        return Field(unit=unit, items=(item,), star=True)
    items: list[Item] = []
    position = token.position
    for text in token.text.split(","):
        items.append(_Reader(unit, Token(text, position), name).item())
        position += len(text) + 1
    return Field(unit=unit, items=tuple(items), star=token.text.startswith("*"))


def _refuse(unit: Unit, token: Token, reason: str, hint: str) -> NoReturn:
    raise refusal(reason, hint, token.position, f"{unit.name} {token.text!r}")


class _Reader:
    """Reads one item of one field."""

    def __init__(self, unit: Unit, token: Token, name: str) -> None:
        self._unit = unit
        self._token = token
        self._name = name

    def item(self) -> Item:
        text = self._token.text.lower()
        if not text:
            self._refuse("an empty item in the list", "leave out the comma")
        if _RANDOM.fullmatch(text.partition("/")[0]):
            self._refuse(
                "R would draw anew each time it is read",
                "write H, which draws from the schedule's name and stays",
            )
        body, slash, step_text = text.partition("/")
        special = self._day(body) if self._unit is DAY else None
        if self._unit is WEEKDAY:
            special = self._weekday(body)
        if special is not None:
            if slash:
                self._refuse("a single day has no step", f"write {body}")
            return special
        step = self._step(step_text) if slash else None
        if body.startswith("h"):
            match = _HASH.fullmatch(body)
            if match is None:
                self._refuse("H draws from all values or from a range", "write H, H(1-7) or H/5")
            return self._hash(match[1], match[2], step)
        if "~" in body:
            low, _, high = body.partition("~")
            return self._hash(low, high, step)
        return self._range(body, step)

    # -------------------------------------------------------- plain forms and ranges

    def _range(self, body: str, step: int | None) -> Item:
        unit = self._unit
        if body == "*":
            plain = unit is not YEAR
            return Item(form="star", low=unit.low, high=unit.high, step=step or 1, plain=plain)
        if body.startswith("*"):
            self._refuse("a star takes only a step", f"write * or */{min(5, unit.high)}")
        low_text, dash, high_text = body.partition("-")
        if not dash:
            low = self._value(body)
            if step is None:
                return Item(low=low, high=low, plain=self._croniter_has(low))
            high = max(low, unit.high)
            plain = self._croniter_has(high)
            return Item(form="start", low=low, high=high, step=step, plain=plain)
        low, high = self._value(low_text), self._value(high_text)
        if low > high and unit not in (MONTH, WEEKDAY):
            self._refuse(
                f"the range runs backwards, from {low} to {high}",
                f"write {low}-{unit.high},{unit.low}-{high}",
            )
        plain = low < high and self._croniter_has(high)
        return Item(form="range", low=low, high=high, step=step or 1, plain=plain)

    def _croniter_has(self, high: int) -> bool:
        return self._unit is not YEAR or high <= CRONITER_YEAR_LAST

    def _value(self, text: str) -> int:
        unit = self._unit
        if text in unit.names:
            return unit.names[text]
        if not _NUMBER.fullmatch(text):
            if text.isdigit():
                self._refuse("the number is far too large", f"write {self._bounds()}")
            self._refuse(self._unreadable(text), f"write {self._example()}")
        value = int(text)
        if not unit.low <= value <= unit.top:
            hint = f"write {self._bounds()}"
            if value == unit.high + 1 and unit.low == 0:
                hint = f"write {unit.high} for the last one, 0 for the first"
            self._refuse(f"{value} is not {self._bounds()}", hint)
        return value

    def _unreadable(self, text: str) -> str:
        if not text:
            return "a value is missing"
        if text[:1] in "lw#" or text[-1:] in "lw" or "#" in text:
            return f"{text!r} is not a form of this field"
        return f"{text!r} is no {self._unit.name}"

    def _bounds(self) -> str:
        return f"{self._unit.low} to {self._unit.top}"

    def _example(self) -> str:
        extra = {
            "month": ", or jan to dec",
            "weekday": ", sun to sat, friL or fri#2",
            "day of month": ", L, L-3, LW or 15W",
        }
        return self._bounds() + extra.get(self._unit.name, "")

    def _step(self, text: str) -> int:
        unit = self._unit
        values = unit.high - unit.low + 1
        if not text:
            self._refuse("the step after / is missing", "write */5, or leave out the /")
        if not text.isdigit():
            self._refuse(f"the step {text!r} is not a whole number", "write */5")
        if len(text) > 12 or int(text) > values:
            shown = text if len(text) <= 12 else text[:12] + "..."
            suffix = _SECONDS_OF_UNIT.get(unit.name)
            other = f"write a step from 1 to {values}"
            if suffix and len(text) <= 4:
                other = f"write @every {int(text)}{suffix}"
            self._refuse(f"a step of {shown} is more than the {values} values of the field", other)
        if int(text) == 0:
            self._refuse("a step of 0 never ends", "write a step of 1 or more")
        return int(text)

    # -------------------------------------------------------- days

    def _day(self, body: str) -> Item | None:
        if body == "l":
            return Item(kind="end", low=0)
        if body == "lw":
            return Item(kind="last_weekday", low=0)
        if match := _FROM_END.fullmatch(body):
            back = int(match[1])
            if not 1 <= back <= 30:
                self._refuse(f"L-{back} is not L-1 to L-30", "write L for the last day, or L-1")
            return Item(kind="end", low=back)
        if match := _NEAREST.fullmatch(body):
            return Item(kind="nearest", low=self._value(str(int(match[1]))))
        if body.endswith("w"):
            self._refuse("W follows a single day", "write 15W, or LW for the last weekday")
        return None

    def _weekday(self, body: str) -> Item | None:
        if body == "l":
            self._refuse("L needs a weekday here", "write 6 for Saturday, 6L for the last one")
        if match := _NTH.fullmatch(body):
            if not match[2].isdigit() or not 1 <= int(match[2][:3]) <= 5:
                self._refuse("a month has the weekday once to five times", "write fri#1 to fri#5")
            return Item(kind="nth", low=self._value(match[1]) % 7, high=int(match[2]))
        if match := _LAST.fullmatch(body):
            return Item(kind="last", low=self._value(match[1] or match[2]) % 7)
        return None

    # -------------------------------------------------------- H

    def _hash(self, low_text: str | None, high_text: str | None, step: int | None) -> Item:
        unit = self._unit
        if unit is YEAR:
            self._refuse("H has no meaning for years", "write * or a year")
        if low_text is None or high_text is None:
            low, high = unit.low, _HASH_DAY_LAST if unit is DAY else unit.high
        else:
            low, high = self._value(low_text), self._value(high_text)
            if low > high:
                self._refuse("H draws from a range that runs forwards", f"write H({high}-{low})")
        draw = hash64(self._name, unit.name)
        if step is None:
            value = low + draw % (high - low + 1)
            return Item(form="hash", low=value, high=value)
        return Item(form="hash", low=low + draw % min(step, high - low + 1), high=high, step=step)

    def _refuse(self, reason: str, hint: str) -> NoReturn:
        _refuse(self._unit, self._token, reason, hint)


def hash64(*parts: str) -> int:
    """Return 64 bits drawn from texts: the same on every machine, in every version."""
    data = b"\0".join(part.encode() for part in parts)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


# ------------------------------------------------------------------------------ masks


def compile_fields(fields: Sequence[Field]) -> Fields:
    """Return the bit masks of fields that have been read."""
    masks = _masks(fields)
    by_unit = {field.unit.name: field for field in fields}
    day, weekday = by_unit[DAY.name], by_unit[WEEKDAY.name]
    year = by_unit.get(YEAR.name)
    years = None if year is None or _is_any(year) else masks[YEAR.name] >> YEAR_FIRST
    return Fields(
        seconds=masks.get(SECOND.name, 1),
        minutes=masks[MINUTE.name],
        hours=masks[HOUR.name],
        days=_days(day, weekday, masks),
        months=masks[MONTH.name],
        years=years,
        wild=by_unit[MINUTE.name].star or by_unit[HOUR.name].star,
    )


def _is_any(field: Field) -> bool:
    return any(item.form == "star" and item.step == 1 for item in field.items)


def _days(day: Field, weekday: Field, masks: Mapping[str, int]) -> Days:
    return _shared(
        Days(
            plain=masks[DAY.name],
            from_end=tuple(item.low for item in day.items if item.kind == "end"),
            last_weekday=any(item.kind == "last_weekday" for item in day.items),
            nearest=tuple(item.low for item in day.items if item.kind == "nearest"),
            weekdays=masks[WEEKDAY.name],
            last=tuple(item.low for item in weekday.items if item.kind == "last"),
            nth=tuple((item.low, item.high) for item in weekday.items if item.kind == "nth"),
            both=day.star or weekday.star,
        )
    )


@functools.lru_cache(maxsize=4096)
def _shared(days: Days) -> Days:
    """Return one object for equal days, so that the masks of their months are made once."""
    return days


def _masks(fields: Sequence[Field]) -> dict[str, int]:
    """Return the mask of each field: what croniter gives for its plain items, and our own part."""
    plain = {
        field.unit.column: ",".join(_plain_text(item) for item in field.items if item.plain)
        for field in fields
        if any(item.plain for item in field.items)
    }
    _ask_croniter({at: text for at, text in plain.items() if (at, text) not in _asked})
    masks: dict[str, int] = {}
    for field in fields:
        column = field.unit.column
        mask = _asked[column, plain[column]] if column in plain else 0
        for item in field.items:
            if item.kind == "range" and not item.plain:
                mask |= _own_mask(field.unit, item)
        masks[field.unit.name] = mask
    return masks


def _own_mask(unit: Unit, item: Item) -> int:
    period = unit.high - unit.low + 1
    high = item.high if item.high >= item.low else item.high + period
    mask = 0
    for value in range(item.low, high + 1, item.step):
        mask |= 1 << (value - unit.low) % period + unit.low
    return mask


def _plain_text(item: Item) -> str:
    """Return an item as croniter reads it rightly: numbers, and an end to every step."""
    if item.form == "star":
        return "*" if item.step == 1 else f"*/{item.step}"
    if item.low == item.high:
        return str(item.low)
    return f"{item.low}-{item.high}" + (f"/{item.step}" if item.step > 1 else "")


# What croniter said: (column, text of a plain field) to its mask. Most rules share their fields.
_asked: dict[tuple[int, str], int] = {}
_ASKED_MAX: Final = 8192


def _ask_croniter(wanted: Mapping[int, str]) -> None:
    """Let croniter expand plain fields, all in one expression, and keep what it says.

    Args:
        wanted: texts by column, 0 for the second to 6 for the year.

    Raises:
        WheeldError: croniter is not installed.
    """
    if not wanted:
        return
    try:
        from croniter import croniter  # noqa: PLC0415  (a client gets by without it)
    except ImportError:
        raise WheeldError(
            "cron rules need croniter, which is not installed: pip install 'wheeld[server]'"
        ) from None
    words = [wanted.get(column, "*") for column in range(7)]
    expanded, _ = croniter.expand(" ".join(words), second_at_beginning=True)
    if len(_asked) + len(wanted) > _ASKED_MAX:
        _asked.clear()
    for column, text in wanted.items():
        # croniter puts the second behind the weekday, whatever stood first.
        values = expanded[5 if column == 0 else 6 if column == 6 else column - 1]
        _asked[column, text] = _bits(column, values, text)


def _bits(column: int, values: Sequence[object], text: str) -> int:
    unit = _UNITS[7][column]
    if "*" in values:
        return ((1 << unit.high - unit.low + 1) - 1) << unit.low
    mask = 0
    for value in values:
        assert isinstance(value, int), f"{text!r} is not plain: {values}"
        mask |= 1 << value
    return mask
