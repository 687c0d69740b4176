"""What is written down of runs: their records, in each schedule's history.

Nominal times that were dropped one after the other for one reason share a record, so a policy that
skips a thousand of them leaves one line and not a thousand.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from wheel.engine import history
from wheel.engine.catchup import Gap
from wheel.engine.change import TEXT, Change
from wheel.engine.definition import TIME_MS_END, CatchUp
from wheel.engine.entries import Entry
from wheel.engine.runs import DROPPED, Outcome, RunRecord


class Core(Protocol):
    """What reading texts needs of the core."""

    def table_get(self, kind: int, key: bytes) -> bytes | None:
        """Return the value of one entry."""
        ...


class Ledger:
    """Writes records.

    Args:
        core: has the texts.
        keep_from_ms: from which nominal time on somebody may still ask for a schedule's outcomes.
    """

    def __init__(self, core: Core, keep_from_ms: Callable[[str], int | None]) -> None:
        self._core = core
        self._keep_from_ms = keep_from_ms

    def drop(
        self,
        change: Change,
        entry: Entry,
        gap: Gap,
        outcome: Outcome,
        *,
        now_ms: int,
        tag: str = "",
        label: str = "",
    ) -> RunRecord:
        """Record nominal times that no run is made for; those in a row share a record."""
        change.edit(entry)
        items = change.history(entry.name)
        number = self._joins(entry, items, outcome, gap.reason) if not tag else None
        record = RunRecord(
            outcome=outcome,
            reason=gap.reason,
            first_ms=gap.first_ms,
            last_ms=gap.last_ms,
            count=gap.count,
            tag=tag,
            label=label or entry.label(gap.last_ms),
            ended_ms=now_ms,
        )
        if number is not None:
            old = items.pop(number)
            record = RunRecord(
                outcome=outcome,
                reason=gap.reason,
                first_ms=old.first_ms,
                last_ms=gap.last_ms,
                count=old.count + gap.count,
                label=record.label,
                ended_ms=now_ms,
            )
        else:
            change.events.append(
                (
                    "run_dropped",
                    {
                        "schedule": entry.name,
                        "outcome": outcome.value,
                        "reason": gap.reason,
                        "first_ms": gap.first_ms,
                        "last_ms": gap.last_ms,
                        "count": gap.count,
                    },
                )
            )
        items.append(history.encode(record))
        change.grown[entry] = None
        if not tag:
            entry.dropping = True
        if outcome is Outcome.SKIPPED:
            entry.skipped += gap.count
        else:
            entry.missed += gap.count
        return record

    @staticmethod
    def _joins(
        entry: Entry, items: list[history.Item], outcome: Outcome, reason: str
    ) -> int | None:
        """Return the number of the record that the next dropped time joins, if there is one."""
        if not entry.dropping or entry.rule is None:
            return None
        for number in range(len(items) - 1, -1, -1):
            item = items[number]
            if item.outcome in DROPPED and not history.tag_of(item):
                same = item.outcome is outcome and history.reason_of(item) == reason
                return number if same and not item.by_hand else None
        return None

    @staticmethod
    def missed(change: Change, entry: Entry, from_ms: int) -> list[history.Item]:
        """Return the records of dates that a schedule without a rule missed in pauses.

        Args:
            change: that asks.
            entry: the schedule; what it missed while it still had a rule is no date of its own.
            from_ms: logical wall time, since when.
        """
        from_ms = max(from_ms, entry.since_ms)
        return [
            item
            for item in change.seen_history(entry.name)
            if item.outcome is Outcome.MISSED
            and item.ended_ms >= from_ms
            and history.reason_of(item) == "paused"
        ]

    def missed_on(self, change: Change, entry: Entry, label: str) -> list[history.Item]:
        """Return the records that one date was missed."""
        return [
            item
            for item in self.missed(change, entry, 0)
            if entry.own(history.label_of(item), item.first_ms) == label
        ]

    @staticmethod
    def take_back(change: Change, entry: Entry, items: list[history.Item]) -> None:
        """Forget that dates were missed: runs make up for them."""
        if items:
            gone = {item.data for item in items}
            entry.missed -= len(items)
            left = change.history(entry.name)
            left[:] = [item for item in left if item.data not in gone]

    @staticmethod
    def take_out(change: Change, entry: Entry, nominal_ms: int, own: str = "") -> None:
        """Let no record say any more that one nominal time was dropped: it has a run, or a word.

        Of times in a row the others stay, in what is left of the record before and behind. Those of
        another rule than the one in force stay together: which they were is not known.

        Args:
            change: that it is part of.
            entry: the schedule.
            nominal_ms: the time.
            own: the label that it is for, if the schedule has no rule. What a rule of before
                dropped on that date was another run.
        """
        for number, item in enumerate(change.seen_history(entry.name)):
            own_date = own if item.ended_ms >= entry.since_ms else ""
            if item.outcome in DROPPED and (
                own_date or item.first_ms <= nominal_ms <= item.last_ms
            ):
                record = history.decode(item)
                parts = _without(entry, record, nominal_ms, own_date)
                if record.job_id or record.tag or parts is None:
                    continue
                change.edit(entry)
                items = change.history(entry.name)
                items[number : number + 1] = [history.encode(part) for part in parts]
                change.grown[entry] = None
                entry.dropping = entry.dropping and record.last_ms != nominal_ms
                if record.outcome is Outcome.SKIPPED:
                    entry.skipped -= 1
                else:
                    entry.missed -= 1
                return

    def write(self, change: Change, entry: Entry, record: RunRecord) -> None:
        """Record how a run ended; a record of the same run is replaced."""
        items = change.history(entry.name)
        for number, item in enumerate(items):
            if (
                item.first_ms == record.first_ms
                and item.count == 1
                and history.tag_of(item) == record.tag
            ):
                if item.text_apart:
                    change.drop(TEXT, _text_key(entry, item))
                del items[number]
                break
        item = history.encode(record)
        if item.text_apart:
            change.put(TEXT, _text_key(entry, item), record.text[: history.TEXT_BYTES_MAX])
        items.append(item)
        change.grown[entry] = None

    def trim(self, change: Change, now_ms: int) -> None:
        """Forget what the histories that grew need not keep; once, when all of it is decided."""
        for entry in change.grown:
            self._trim(change, entry, now_ms)

    def _trim(self, change: Change, entry: Entry, now_ms: int) -> None:
        items = change.history(entry.name)
        keep_from_ms = self._keep_from_ms(entry.name) if entry.linked else None
        # Who asks takes a decided time without a record for one that succeeded; only a rule has
        # such times, and only since it is in force.
        assumed_from_ms = TIME_MS_END if entry.rule is None else entry.since_ms
        stays, goes = history.trim(
            items,
            now_ms=now_ms,
            keep_from_ms=keep_from_ms,
            assumed_from_ms=assumed_from_ms,
            missed_from_ms=self._missed_from_ms(entry),
        )
        for old in goes:
            if old.text_apart:
                change.drop(TEXT, _text_key(entry, old))
        if goes:
            change.set_history(entry.name, stays)

    @staticmethod
    def _missed_from_ms(entry: Entry) -> int | None:
        """Return since when dates that were missed are still to be made up for; None: none are."""
        if entry.rule is not None or entry.settings.catch_up is not CatchUp.ALL:
            return None
        begins = (entry.extra.made_up_ms, entry.extra.paused_ms if entry.paused else 0)
        return min((ms for ms in begins if ms), default=None)

    def text_of(self, entry: Entry, item: history.Item) -> bytes:
        """Return a record's text, wherever it is kept."""
        if not item.text_apart:
            return history.decode(item).text
        return self._core.table_get(TEXT, _text_key(entry, item)) or b""

    def forget_texts(self, change: Change, entry: Entry) -> None:
        """Delete the texts of a schedule's records."""
        for item in change.seen_history(entry.name):
            if item.text_apart:
                change.drop(TEXT, _text_key(entry, item))


def _without(entry: Entry, record: RunRecord, nominal_ms: int, own: str) -> list[RunRecord] | None:
    """Return what is left of a record of dropped times without one; None: it is not one of them."""
    if record.count == 1:
        is_it = record.first_ms == nominal_ms or (own and own == record.label)
        return [] if is_it else None
    rule, parts = entry.rule, list[RunRecord]()
    if rule is None or any(
        rule.next_ms(ms - 1) != ms for ms in (record.first_ms, nominal_ms, record.last_ms)
    ):
        return None
    before_ms, after_ms = rule.latest_before(nominal_ms), rule.next_ms(nominal_ms)
    for first_ms, last_ms in ((record.first_ms, before_ms), (after_ms, record.last_ms)):
        if first_ms is not None and last_ms is not None and first_ms <= last_ms:
            count = rule.count(first_ms - 1, last_ms)
            label = entry.label(last_ms)
            parts.append(
                replace(record, first_ms=first_ms, last_ms=last_ms, count=count, label=label)
            )
    return parts if sum(part.count for part in parts) == record.count - 1 else None


def _text_key(entry: Entry, item: history.Item) -> bytes:
    return f"{entry.name}\n{item.first_ms}{history.tag_of(item)}".encode()
