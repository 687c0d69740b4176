"""What is known of schedules and their runs, for those who decide about dependencies."""

from collections.abc import Iterator
from typing import Final

from wheel.engine.change import DEFINITION, HISTORY, Change, Core
from wheel.engine.dag import Phase, RunFact
from wheel.engine.dependencies import Dependencies
from wheel.engine.entries import Entry
from wheel.engine.history import Item, decode, split
from wheel.engine.runs import Run, Stands, tag_parts
from wheel.engine.store import Store

_LIVE_PHASE: Final = {Stands.ACTIVE: Phase.RUNNING, Stands.WAITING: Phase.RUNNING}
_MANUAL: Final = -1  # stands before every repeat: never the newest, unless alone


class Known:
    """The facts, as the change that is under way leaves them.

    Attributes:
        change: that change; None between two.
        dependencies: knows why a run is held.
    """

    def __init__(self, store: Store, core: Core) -> None:
        self.change: Change | None = None
        self.dependencies: Dependencies | None = None
        self._store = store
        self._core = core

    def schedule(self, name: str) -> Entry | None:
        """Return a schedule, None if there is none of that name."""
        return self._store.get(name)

    def size(self, name: str) -> int:
        """Return the bytes of a schedule's definition; 0 if there is none."""
        return len(self._core.table_get(DEFINITION, name.encode()) or b"")

    def history(self, name: str) -> list[Item]:
        """Return a schedule's history, not to be changed."""
        if self.change is not None:
            return self.change.seen_history(name)
        return split(self._core.table_get(HISTORY, name.encode()) or b"")

    def runs(self, name: str, from_ms: int, until_ms: int) -> Iterator[RunFact]:
        """Yield the runs with a nominal time in [from, until), those by TRIGGER left out.

        Of several attempts at one nominal time the newest one counts.
        """
        entry = self._store.get(name)
        if entry is None:
            return
        newest: dict[int, tuple[int, RunFact]] = {}
        for item in self.history(name):
            if item.last_ms < from_ms or item.first_ms >= until_ms:
                continue
            repeat, fact = _recorded(entry, item)
            if item.count > 1:
                yield fact
            elif newest.get(fact.first_ms, (-1, fact))[0] <= repeat:
                newest[fact.first_ms] = (repeat, fact)
        live = [run for run in entry.all_live() if from_ms <= run.nominal_ms < until_ms]
        going = self._store.going.get(name)
        if going is not None:
            live += [run for run in going.runs.values() if from_ms <= run.nominal_ms < until_ms]
        for repeat, fact in (self._live(entry, run) for run in live):
            if newest.get(fact.first_ms, (-1, fact))[0] <= repeat:
                newest[fact.first_ms] = (repeat, fact)
        yield from (fact for repeat, fact in newest.values() if repeat != _MANUAL)
        yield from self._planned(entry, from_ms, until_ms)

    def _live(self, entry: Entry, run: Run) -> tuple[int, RunFact]:
        manual, repeat = tag_parts(run.tag)
        phase, cause = _LIVE_PHASE.get(run.stands, Phase.HELD), ""
        if run.stands is Stands.HELD and self.dependencies is not None:
            held = self.dependencies.held_run(run.name, run.nominal_ms)
            if held is not None:
                phase, cause = held.verdict.phase, held.verdict.reason
        return _MANUAL if manual else repeat, RunFact(
            first_ms=run.nominal_ms,
            last_ms=run.nominal_ms,
            phase=phase,
            cause=cause,
            by_hand=repeat > 0,
            label=entry.own(run.label, run.nominal_ms),
            held=run.stands is Stands.HELD,
        )

    def _planned(self, entry: Entry, from_ms: int, until_ms: int) -> Iterator[RunFact]:
        plan = entry.extra.plan
        if plan is None:
            return
        for ms in plan.times[plan.done :]:
            if from_ms <= ms < until_ms:
                yield RunFact(first_ms=ms, last_ms=ms, phase=Phase.PENDING)


def _recorded(entry: Entry, item: Item) -> tuple[int, RunFact]:
    """Return which repeat a record is of, and what it says."""
    record = decode(item)
    manual, repeat = tag_parts(record.tag)
    return _MANUAL if manual else repeat, RunFact(
        first_ms=record.first_ms,
        last_ms=record.last_ms,
        phase=Phase(record.outcome.value),
        cause=record.reason,
        by_hand=record.by_hand or repeat > 0,
        label=entry.own(record.label, record.first_ms),
    )
