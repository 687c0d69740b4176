"""Rules of schedules: cron expressions, @macros, ``@every``, ``@at``; when they fire, and in words.

``next_fires`` answers the plain question. Whoever asks again and again compiles the rule and keeps
asking the ``Rule``; compiled rules are shared, so a hundred thousand schedules with a few hundred
rules cost a few hundred. Times are Unix milliseconds, or aware datetimes in ``next_fires``.

A rule is one of

- a cron expression of 5 fields (minute, hour, day of month, month, weekday), of 6 (the second
  first) or of 7 (and the year last); see wheel/cronfields.py for the forms of a field. If a day
  field begins with a star or is ``?``, both day fields must match; else either will do;
- ``@yearly @annually @monthly @weekly @daily @midnight @hourly``, in any case;
- ``@every D`` or ``@every D/phase``: the multiples of D since 1970, plus the phase;
- ``@at TIME``: once;
- ``-``: none, for a schedule that only follows others.

``CRON_TZ=zone`` or ``TZ=zone`` may stand before it and wins over ``tz``. The text is ASCII of at
most 256 bytes. Nothing is looked for after the year 2199. What a change of the clocks does is
said in wheel/crondst.py.
"""

import difflib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias, get_args

from wheel.crondst import count_fires, next_fire, previous_fire
from wheel.cronfields import Field, Token, compile_fields, read_fields, refusal, uses_hash
from wheel.cronmasks import YEAR_FIRST, YEAR_LAST, Fields
from wheel.errors import CronSyntaxError, InvalidRequest, NaiveDatetimeError, ZoneError
from wheel.values import duration_ms
from wheel.zones import FIRST_S, LAST_S, Unit, Zone, label, label_span, label_unit, zone

__all__ = ["CronSyntaxError", "Rule", "ZoneError", "compile_rule", "next_fires", "parse_rule"]

Dst: TypeAlias = Literal["cron", "literal"]
RuleKind: TypeAlias = Literal["cron", "every", "at", "none"]
Axis: TypeAlias = Literal["wall", "rel"]

RULE_BYTES_MAX: Final = 256
EVERY_MS_MIN: Final = 1000
COUNT_MAX: Final = 100_000
MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BLANK: Final = " \t\r\n"
_WORD: Final = re.compile(r"[^ \t]+")
_PREFIX: Final = re.compile(r"(?:CRON_)?TZ=([^ \t]*)[ \t]*")
_END_S: Final = 7_258_118_400  # 2200 begins, by a local clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a rule's text says.

    Attributes:
        kind: which sort of rule.
        tz: the zone that the text names, None if it names none.
        fields: of a cron expression; a macro's are those it stands for.
        macro: the macro that was written, else empty.
        every_ms: of ``@every``.
        phase_ms: of ``@every``, below ``every_ms``.
        at_ms: of ``@at``.
    """

    kind: RuleKind
    tz: str | None = None
    fields: tuple[Field, ...] = ()
    macro: str = ""
    every_ms: int = 0
    phase_ms: int = 0
    at_ms: int = 0


class Rule:
    """A compiled rule in a zone; get it by ``compile_rule``.

    Two rules are equal if they fire at the same moments by their text, zone and DST rule.

    Attributes:
        text: as given.
        zone: in force; the prefix's if the text has one.
        dst: ``cron`` or ``literal``.
        kind: cron, every, at or none.
        name: the schedule's, if H draws from it, else empty.
    """

    __slots__ = ("_fields", "_fixed", "_known", "_numbers", "dst", "kind", "name", "text", "zone")

    def __init__(self, text: str, parsed: Parsed, where: Zone, dst: Dst, name: str) -> None:
        self.text = text
        self.zone = where
        self.dst: Dst = dst
        self.kind: RuleKind = parsed.kind
        self.name = name
        self._numbers = (parsed.every_ms, parsed.phase_ms, parsed.at_ms)
        self._fields = compile_fields(parsed.fields) if parsed.kind == "cron" else None
        self._fixed = dst == "cron" and self._fields is not None and not self._fields.wild
        # (low, high): high is the next fire after every second in [low, high). Many schedules
        # that share a rule ask the same question one after the other.
        self._known = (0, 0)

    @property
    def tz(self) -> str:
        """The name of the zone in force."""
        return self.zone.name

    @property
    def axis(self) -> Axis:
        """``rel`` if the rule counts on the relative axis, which no clock step moves."""
        return "rel" if self.kind == "every" else "wall"

    @property
    def fields(self) -> Fields:
        """The masks of a cron expression."""
        assert self._fields is not None, f"{self.text!r} is no cron expression"
        return self._fields

    @property
    def fixed(self) -> bool:
        """Whether it is a fixed rule in the sense of wheel/crondst.py."""
        return self._fixed

    def next_ms(self, after_ms: int) -> int | None:
        """Return the first time after ``after_ms``; None if there is none up to 2199."""
        if self._fields is None:
            return self._next_number(after_ms)
        after_s = after_ms // 1000
        low_s, high_s = self._known
        if low_s <= after_s < high_s:
            return high_s * 1000
        after_s = max(after_s, FIRST_S)
        found_s = next_fire(self._fields, self.zone, self._fixed, after_s)
        if found_s is None:
            return None
        self._known = (after_s, found_s)
        return found_s * 1000

    def latest_before(self, before_ms: int) -> int | None:
        """Return the last time before ``before_ms``; None if there is none."""
        if self._fields is None:
            return self._previous_number(before_ms)
        before_s = -(-before_ms // 1000)
        found_s = previous_fire(self._fields, self.zone, self._fixed, before_s)
        return None if found_s is None else found_s * 1000

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """Yield the times in (after_ms, until_ms], oldest first."""
        at_ms = self.next_ms(after_ms)
        while at_ms is not None and at_ms <= until_ms:
            yield at_ms
            at_ms = self.next_ms(at_ms)

    def newest(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """Return the last ``limit`` times in (after_ms, until_ms], oldest first."""
        found: list[int] = []
        at_ms = self.latest_before(until_ms + 1)
        while at_ms is not None and at_ms > after_ms and len(found) < limit:
            found.append(at_ms)
            at_ms = self.latest_before(at_ms)
        found.reverse()
        return found

    def count(self, after_ms: int, until_ms: int) -> int:
        """Return how many times lie in (after_ms, until_ms], without walking over them."""
        if after_ms >= until_ms:
            return 0
        if self._fields is not None:
            after_s = max(after_ms // 1000, FIRST_S)
            return count_fires(self._fields, self.zone, self._fixed, after_s, until_ms // 1000)
        every_ms, phase_ms, at_ms = self._numbers
        if self.kind == "every":
            return (until_ms - phase_ms) // every_ms - (after_ms - phase_ms) // every_ms
        return int(self.kind == "at" and after_ms < at_ms <= until_ms)

    def require_fire(self, after_ms: int) -> int:
        """Return the first time after ``after_ms``, for whoever makes a schedule.

        Raises:
            CronSyntaxError: there is none; ``reason`` begins with ``never_fires``.
        """
        found_ms = self.next_ms(after_ms)
        if found_ms is not None:
            return found_ms
        what = f"the rule {self.text!r}"
        if self.kind == "at":
            why = "never_fires: its moment has passed"
            raise refusal(why, "write a moment to come", None, what)
        if self.kind == "none":
            why = "never_fires: it has no times of its own"
            raise refusal(why, "write a rule, or let it follow others", None, what)
        raise _never_fires(self.text, after_ms)

    def label(self, nominal_ms: int, unit: Unit) -> str:
        """Return the logical date of a time in the rule's zone; see wheel/zones.py."""
        return label(self.zone, nominal_ms, unit)

    def on(self, text: str) -> Iterator[int]:
        """Yield the times whose label is ``text``, oldest first; its form tells the unit.

        Raises:
            ValueError: it is no label.
        """
        span = label_span(self.zone, text)
        unit = label_unit(text)
        if span is None:
            return
        start_ms, end_ms = span
        for at_ms in self.between(start_ms - 1, end_ms - 1):
            if label(self.zone, at_ms, unit) == text:
                yield at_ms

    def _end_ms(self) -> int:
        """Return when 2199 is over in the rule's zone, as for rules with fields."""
        return (_END_S - self.zone.offset_s(_END_S)) * 1000

    def _next_number(self, after_ms: int) -> int | None:
        every_ms, phase_ms, at_ms = self._numbers
        if self.kind == "every":
            found_ms = after_ms + every_ms - (after_ms - phase_ms) % every_ms
            return found_ms if found_ms < self._end_ms() else None
        return at_ms if self.kind == "at" and at_ms > after_ms else None

    def _previous_number(self, before_ms: int) -> int | None:
        every_ms, phase_ms, at_ms = self._numbers
        if self.kind == "every":
            last_ms = min(before_ms, self._end_ms()) - 1
            return last_ms - (last_ms - phase_ms) % every_ms
        return at_ms if self.kind == "at" and at_ms < before_ms else None

    def _key(self) -> tuple[str, str, str, str]:
        return self.text, self.zone.name, self.dst, self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"<Rule {self.text!r} {self.zone.name} {self.dst}>"


def next_fires(
    rule: str,
    *,
    tz: str = "UTC",
    after: datetime,
    count: int,
    dst: Dst = "cron",
    name: str = "",
) -> list[datetime]:
    """Return the first ``count`` times after a moment, in the rule's zone.

    Args:
        rule: its text, see above.
        tz: zone, if the rule names none.
        after: the moment, which must have a zone; a time equal to it does not count.
        count: how many, 0 to 100,000; fewer come back if the rule ends.
        dst: ``cron``, or ``literal``: a gap is skipped, both passes of a fold count.
        name: the schedule's, from which H draws.

    Raises:
        CronSyntaxError: the rule cannot be read, or it never fires after the moment.
        ZoneError: the zone is unknown; a CronSyntaxError.
        NaiveDatetimeError: the moment has no zone.
        InvalidRequest: the count or the DST rule is none.
    """
    if not 0 <= count <= COUNT_MAX:
        raise InvalidRequest(f"the count {count} is not between 0 and {COUNT_MAX}")
    if after.utcoffset() is None:
        raise NaiveDatetimeError(f"{after} has no time zone; write datetime(..., tzinfo=UTC)")
    compiled = compile_rule(rule, tz=tz, name=name, dst=dst)
    after_ms = max((after - _EPOCH) // timedelta(milliseconds=1), FIRST_S * 1000)
    at_ms: int | None = compiled.require_fire(after_ms)
    found: list[datetime] = []
    while at_ms is not None and len(found) < count:
        found.append((_EPOCH + timedelta(milliseconds=at_ms)).astimezone(compiled.zone.info))
        at_ms = compiled.next_ms(at_ms)
    return found


def compile_rule(text: str, *, tz: str = "UTC", name: str = "", dst: str = "cron") -> Rule:
    """Return the compiled rule; equal questions get the same object while it is in use.

    Args:
        text: the rule.
        tz: zone, if the rule names none.
        name: the schedule's, from which H draws.
        dst: ``cron`` or ``literal``.

    Raises:
        CronSyntaxError: it cannot be read, or matches no date at all.
        ZoneError: the zone is unknown; a CronSyntaxError.
        InvalidRequest: the DST rule is none.
    """
    shared = _compile(text, tz, "", dst)
    return shared if shared is not None else _compile_hashed(text, tz, name, dst)


@functools.lru_cache(maxsize=16_384)
def _compile(text: str, tz: str, name: str, dst: str) -> Rule | None:
    """Return a rule, or None if it depends on the schedule's name."""
    if dst not in get_args(Dst):
        raise InvalidRequest(f"the DST rule {dst!r} is not one of cron, literal")
    parsed = parse_rule(text, name)
    if uses_hash(parsed.fields):
        return None
    return _build(text, parsed, tz, dst, "")


@functools.lru_cache(maxsize=16_384)
def _compile_hashed(text: str, tz: str, name: str, dst: str) -> Rule:
    return _build(text, parse_rule(text, name), tz, dst, name)


def _build(text: str, parsed: Parsed, tz: str, dst: str, name: str) -> Rule:
    try:
        where = zone(parsed.tz if parsed.tz is not None else tz)
    except ZoneError as error:
        error.position = None if parsed.tz is None else text.index("=") + 1
        raise
    rule = Rule(text, parsed, where, "literal" if dst == "literal" else "cron", name)
    if parsed.kind == "cron" and not rule.fields.possible():
        raise _never_fires(text, 0)
    return rule


def without_zone(text: str) -> str:
    """Return a rule without the zone that its text names."""
    return _PREFIX.sub("", text.strip(_BLANK), count=1)


def _never_fires(text: str, after_ms: int) -> CronSyntaxError:
    since_s = min(max(after_ms // 1000, 0), LAST_S)
    since = f"after {(_EPOCH + timedelta(seconds=since_s)).date()} " if since_s else ""
    hint = "write days that its months have, and a year to come"
    if text.strip(_BLANK).lower().startswith("@every"):
        hint = "write a shorter length"
    return refusal(
        f"never_fires: it never fires {since}up to the year {YEAR_LAST}",
        hint,
        None,
        f"the rule {text!r}",
    )


# ------------------------------------------------------------------------------ reading


def parse_rule(text: str, name: str = "") -> Parsed:
    """Return what a rule's text says.

    Args:
        text: the rule.
        name: the schedule's, from which H draws.

    Raises:
        CronSyntaxError: it cannot be read.
    """
    _check_text(text)
    body = text.rstrip(_BLANK)
    start = len(body) - len(body.lstrip(_BLANK))
    prefix = _PREFIX.match(body, start)
    tz = None
    if prefix is not None:
        tz, start = prefix[1], prefix.end()
    tokens = [Token(word[0], word.start()) for word in _WORD.finditer(body, start)]
    if not tokens:
        raise refusal("it is empty", "write five fields such as '0 9 * * 1', or @daily", start)
    if tokens[0].text.startswith("@"):
        return _parse_macro(tokens, body, tz)
    if tokens[0].text == "-" and len(tokens) == 1:
        return Parsed(kind="none", tz=tz)
    if "=" in tokens[0].text:
        raise refusal(
            f"{tokens[0].text!r} is not a field; a zone goes in front, as CRON_TZ= in capitals",
            f"write CRON_TZ={tokens[0].text.rpartition('=')[2] or 'Europe/Rome'} and the fields",
            tokens[0].position,
            f"the rule {text!r}",
        )
    return Parsed(kind="cron", tz=tz, fields=read_fields(tokens, name, body))


def _check_text(text: str) -> None:
    if not text.isascii():
        at = next(at for at, letter in enumerate(text) if not letter.isascii())
        raise refusal(f"{text[at]!r} is not ASCII", "write digits and letters of ASCII", at)
    if len(text) > RULE_BYTES_MAX:
        raise refusal(
            f"{len(text)} bytes are more than {RULE_BYTES_MAX}",
            "write ranges instead of lists, or several schedules",
            RULE_BYTES_MAX,
        )
    for at, letter in enumerate(text.strip(_BLANK)):
        if (letter < " " and letter != "\t") or letter == "\x7f":
            start = len(text) - len(text.lstrip(_BLANK))
            raise refusal(f"{letter!r} is not a blank or a tab", "write one rule", start + at)


def _parse_macro(tokens: list[Token], text: str, tz: str | None) -> Parsed:
    word, position = tokens[0].text.lower(), tokens[0].position
    what = f"the rule {text!r}"
    if word == "@every":
        every_ms, phase_ms = _parse_every(tokens, text)
        return Parsed(kind="every", tz=tz, every_ms=every_ms, phase_ms=phase_ms)
    if word == "@at":
        return Parsed(kind="at", tz=tz, at_ms=_parse_at(tokens, text))
    if word == "@reboot":
        raise refusal(
            "@reboot is not a time: nothing here starts with the machine",
            "start it from the service manager, or write @hourly",
            position,
            what,
        )
    fields = MACROS.get(word)
    if fields is None:
        near = difflib.get_close_matches(word, [*MACROS, "@every", "@at"], n=1, cutoff=0.5)
        hint = f"write {near[0]}" if near else "write @daily, @hourly, @every 90m or five fields"
        raise refusal(f"{word} is unknown", hint, position, what)
    if len(tokens) > 1:
        raise refusal(f"{word} stands alone", f"write {word}", tokens[1].position, what)
    words = [Token(found[0], position) for found in _WORD.finditer(fields)]
    return Parsed(kind="cron", tz=tz, macro=word, fields=read_fields(words, "", text))


def _parse_every(tokens: list[Token], text: str) -> tuple[int, int]:
    what = f"the rule {text!r}"
    if len(tokens) != 2:
        place = tokens[min(len(tokens) - 1, 2)].position
        raise refusal("@every takes one duration", "write @every 90m or @every 1h/15m", place, what)
    position = tokens[1].position
    length, slash, phase = tokens[1].text.partition("/")
    every_ms = _parse_duration(length, position, what)
    if every_ms < EVERY_MS_MIN:
        raise refusal(f"{length} is less than a second", "write @every 1s or more", position, what)
    if not slash:
        return every_ms, 0
    position += len(length) + 1
    phase_ms = _parse_duration(phase, position, what)
    if phase_ms >= every_ms:
        hint = f"write @every {length}, or a phase below {length}"
        raise refusal(f"the phase {phase} is not shorter than {length}", hint, position, what)
    return every_ms, phase_ms


def _parse_duration(text: str, position: int, what: str) -> int:
    try:
        return duration_ms(text)
    except InvalidRequest:
        raise refusal(
            f"{text!r} is not a duration",
            "write a number with d, h, m, s or ms, 90m or 1h30m",
            position,
            what,
        ) from None


def _parse_at(tokens: list[Token], text: str) -> int:
    what = f"the rule {text!r}"
    hint = "write @at 2026-12-24T09:00:00+01:00, or with Z"
    position = tokens[min(1, len(tokens) - 1)].position
    words = " ".join(token.text for token in tokens[1:])
    try:
        moment = datetime.fromisoformat(words)
    except ValueError:
        raise refusal(f"{words!r} is not a time", hint, position, what) from None
    if moment.utcoffset() is None:
        raise refusal(f"the time {words} has no zone", hint, position, what)
    if not YEAR_FIRST <= moment.year <= YEAR_LAST:
        hint = f"write a year from {YEAR_FIRST} to {YEAR_LAST}"
        raise refusal(f"{words} is beyond the horizon", hint, position, what)
    return -((_EPOCH - moment) // timedelta(milliseconds=1))
