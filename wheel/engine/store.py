"""All schedules in memory: a cache of the core's table, loaded once after replay.

By name for those who ask, and by the time when the next decision is due on either axis. A list of
names serves pages, so that none of them looks at all schedules.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, Protocol

from sortedcontainers import (  # pyright: ignore[reportMissingTypeStubs]
    SortedDict,
    SortedKeyList,
)

from wheel.engine import history
from wheel.engine.change import DEFINITION, GOING, HISTORY, ONCE, PLAN, STATE
from wheel.engine.definition import SettingsPool, read_kept
from wheel.engine.entries import Entry, Plan, read_plan
from wheel.engine.facts import Entry as TableEntry
from wheel.engine.facts import Owned
from wheel.engine.going import Going, read_going
from wheel.engine.records import Record, State
from wheel.engine.runs import Run, Stands, parse_owner

LOAD_SLICE: Final = 200  # entries between two yields
SHARDS: Final = 256
_ALL: Final = (1 << 32) - 1
Owner = tuple[Entry | None, Run]  # None: of a schedule that was deleted
_LIVE: Final = frozenset({State.SCHEDULED, State.HELD, State.READY, State.LEASED})


class Core(Protocol):
    """What loading needs of the core."""

    def table(self) -> Iterator[TableEntry]:
        """Yield every entry of the table."""
        ...

    def owned(self) -> Iterator[Owned | None]:
        """Yield every job with an owner."""
        ...

    def ended(self, most: int) -> list[Record]:
        """Return owned jobs that ended or were moved and are not closed."""
        ...

    def table_get(self, kind: int, key: bytes) -> bytes | None:
        """Return the value of one entry."""
        ...


class Names(Protocol):
    """A dict that is sorted by its keys, as far as it is used here."""

    def __len__(self) -> int: ...
    def __getitem__(self, name: str, /) -> Entry: ...
    def __setitem__(self, name: str, entry: Entry, /) -> None: ...
    def __delitem__(self, name: str, /) -> None: ...

    def get(self, name: str, /) -> Entry | None:
        """Return a value, None if there is none."""
        ...

    def values(self) -> Iterable[Entry]:
        """Return the values by key."""
        ...

    def update(self, more: Mapping[str, Entry], /) -> None:
        """Take in many at once."""
        ...

    def irange(self, first: str, last: None, /, inclusive: tuple[bool, bool]) -> Iterator[str]:
        """Yield the keys of a range."""
        ...


class Moments(Protocol):
    """A list of entries that is sorted by the time of each, as far as it is used here."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> Entry: ...
    def __delitem__(self, at: int, /) -> None: ...

    def add(self, entry: Entry, /) -> None:
        """Take one in."""
        ...

    def update(self, more: Iterable[Entry], /) -> None:
        """Take many in at once."""
        ...

    def pop(self, at: int, /) -> Entry:
        """Take one out."""
        ...

    def bisect_key_left(self, key: tuple[int, str], /) -> int:
        """Return where a key belongs, before its equals."""
        ...


class Jobs:
    """Live runs, each with its entry, by the ids of their jobs.

    In shards: a dict that doubles copies all it has, and with a million runs that would stop the
    loop for tens of milliseconds.
    """

    def __init__(self) -> None:
        self._shards: tuple[dict[int, Owner], ...] = tuple({} for _ in range(SHARDS))

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def __setitem__(self, job_id: int, owner: Owner) -> None:
        self._shards[job_id % SHARDS][job_id] = owner

    def get(self, job_id: int) -> Owner | None:
        """Return whose job it is, None if nobody's."""
        return self._shards[job_id % SHARDS].get(job_id)

    def pop(self, job_id: int) -> Owner | None:
        """Forget a job; return whose it was, None if nobody's."""
        return self._shards[job_id % SHARDS].pop(job_id, None)


class Damaged(Exception):  # noqa: N818 -- says what is
    """The table holds what no build has written."""


def _time_key(entry: Entry) -> tuple[int, str]:
    """Return where an entry belongs in its list of times."""
    assert entry.fire_ms is not None
    return entry.fire_ms, entry.name


class Store:
    """The schedules.

    Attributes:
        jobs: live runs by the ids of their jobs.
        orphans: live runs of deleted schedules, by name.
        settings: all settings in use.
        going: runs that are being taken back, by schedule; they stand in no ``live``.

    Invariants:
        1. An entry stands in the list of its axis iff it has a time, and is not paused; under
           ``(listed_ms, name)``.
        2. An entry stands among those of the graph that its settings name.
        3. ``jobs`` has exactly the live runs that were submitted, orphans included.
    """

    def __init__(self) -> None:
        self.jobs = Jobs()
        self.orphans: dict[str, dict[tuple[int, str], Run]] = {}
        self.settings = SettingsPool()
        self.going: dict[str, Going] = {}
        self._by_name: Names = SortedDict()
        self._by_dag: dict[str, Names] = {}
        self._times: tuple[Moments, Moments] = (
            SortedKeyList(key=_time_key),
            SortedKeyList(key=_time_key),
        )

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Entry | None:
        """Return a schedule, None if there is none of this name."""
        return self._by_name.get(name)

    def all(self) -> Iterator[Entry]:
        """Yield every schedule; for a restart and for tests."""
        return iter(self._by_name.values())

    def page(self, prefix: str, after: str, count: int, dag: str = "") -> list[Entry]:
        """Return the first schedules behind a name, by name.

        Args:
            prefix: of their names.
            after: the name behind which to begin; "" = at the beginning.
            count: at most; no more are looked at.
            dag: only those that are shown under this name; "" = all.
        """
        entries = self._by_dag.get(dag) if dag else self._by_name
        if entries is None:
            return []
        first = max(prefix, after)
        names = entries.irange(first, None, inclusive=(first != after, True))
        found = list(islice(names, count))
        return [entries[name] for name in found if name.startswith(prefix)]

    def group(self, entry: Entry, old: str, new: str) -> None:
        """Show a schedule under another name of a graph; "" = under none."""
        entries = self._by_dag.get(old)
        if old and entries is not None:
            del entries[entry.name]
            if not len(entries):
                del self._by_dag[old]
        if new:
            self._by_dag.setdefault(new, SortedDict())[entry.name] = entry

    # ---------------------------------------------------------------- changes

    def add(self, entry: Entry) -> None:
        """Take in a new schedule."""
        self._by_name[entry.name] = entry
        self.group(entry, "", entry.settings.dag)
        self.place(entry)

    def remove(self, entry: Entry) -> None:
        """Forget a schedule; its live runs are orphans."""
        self.unlist(entry)
        del self._by_name[entry.name]
        self.group(entry, entry.settings.dag, "")
        for run in entry.all_live():
            self.orphans.setdefault(run.name, {})[run.key] = run
            self.jobs[run.job_id] = (None, run)

    def restore(self, entry: Entry) -> None:
        """Take in a schedule again that was removed."""
        self.adopt(entry)
        self.add(entry)

    def adopt(self, entry: Entry) -> dict[tuple[int, str], Run] | None:
        """Return the live runs of a deleted schedule of the same name, which are now its."""
        runs = self.orphans.pop(entry.name, None)
        for run in (runs or {}).values():
            self.jobs[run.job_id] = (entry, run)
        return runs

    def forget(self, run: Run) -> None:
        """Forget an orphan that has ended."""
        runs = self.orphans.get(run.name, {})
        runs.pop(run.key, None)
        if not runs:
            self.orphans.pop(run.name, None)

    # ---------------------------------------------------------------- times

    def place(self, entry: Entry) -> None:
        """Let an entry stand where its time says."""
        wanted = None if entry.paused else entry.fire_ms
        if wanted == entry.listed_ms:
            return
        self.unlist(entry)
        if wanted is not None:
            entry.listed_ms = wanted
            self._times[entry.settings.rel].add(entry)

    def unlist(self, entry: Entry) -> None:
        """Take an entry off the lists of times, whatever axis its settings name now."""
        if entry.listed_ms is None:
            return
        key = entry.listed_ms, entry.name
        for times in self._times:
            at = times.bisect_key_left(key)
            if at < len(times) and times[at] is entry:
                del times[at]
                entry.listed_ms = None
                return
        raise AssertionError(f"{entry.name} is in no list at {entry.listed_ms}")

    def first_ms(self, *, rel: bool) -> int | None:
        """Return when the next decision is due on an axis."""
        times = self._times[rel]
        return times[0].listed_ms if times else None

    def take_due(self, now_ms: int, *, rel: bool) -> Entry | None:
        """Take the first entry whose time has come off its list; ``place`` puts it back."""
        times = self._times[rel]
        if not times:
            return None
        entry = times[0]
        if entry.listed_ms is None or entry.listed_ms > now_ms:
            return None
        times.pop(0)
        entry.listed_ms = None
        return entry

    def firing_at(self, at_ms: int, *, rel: bool = False) -> int:
        """Return how many schedules decide at a very moment; O(log n)."""
        times = self._times[rel]
        return times.bisect_key_left((at_ms + 1, "")) - times.bisect_key_left((at_ms, ""))

    # ---------------------------------------------------------------- loading

    def load(self, core: Core, tokens: list[tuple[bytes, bytes]]) -> Iterator[None]:
        """Read the table and the owned jobs; yields between slices.

        Args:
            core: replayed; nothing may change its table meanwhile.
            tokens: gets the ONCE tokens and what they remember.

        Raises:
            Damaged: the table holds what no build has written.
        """
        states: dict[str, bytes] = {}
        going: dict[str, bytes] = {}
        plans: dict[str, tuple[int, ...]] = {}
        entries: dict[str, Entry] = {}
        for number, item in enumerate(core.table()):
            if number % LOAD_SLICE == 0:
                yield
            if item.kind == ONCE:
                tokens.append((item.key, item.blob))
            elif item.kind == PLAN:
                plans[item.key.decode()] = read_plan(item.blob)
            elif item.kind == GOING:
                going[item.key.decode()] = item.blob
            elif item.kind == STATE:
                states[item.key.decode()] = item.blob
            elif item.kind == DEFINITION:
                name = item.key.decode()
                kept = read_kept(item.blob)
                entries[name] = Entry(
                    name,
                    self.settings.get(kept.settings),
                    version=kept.version,
                    since_ms=kept.since_ms,
                )
        yield from self._join(entries, states, plans)
        yield from self._load_runs(core)
        for name, blob in going.items():
            self._load_going(name, blob)

    def _load_going(self, name: str, blob: bytes) -> None:
        """Take runs off the live ones that a change before the start has taken back."""
        reason, ids = read_going(blob)
        found = [owner for owner in map(self.jobs.get, ids) if owner is not None]
        for entry, run in found:
            live = self.orphans.get(name) if entry is None else entry.live
            (live or {}).pop(run.key, None)
            if entry is not None and not entry.live:
                entry.live = None
        if not self.orphans.get(name):
            self.orphans.pop(name, None)
        self.going[name] = Going(reason, {run.key: run for _, run in found})

    def _join(
        self,
        entries: dict[str, Entry],
        states: dict[str, bytes],
        plans: dict[str, tuple[int, ...]],
    ) -> Iterator[None]:
        if entries.keys() != states.keys():
            odd = min(entries.keys() ^ states.keys())
            raise Damaged(f"schedule {odd!r} has a definition without a state, or the reverse")
        for number, (name, entry) in enumerate(entries.items()):
            if number % LOAD_SLICE == 0:
                yield
            entry.read_state(states.pop(name))
            plan = entry.extra.plan
            if plan is not None:
                entry.set_plan(Plan(times=plans[name], done=plan.done, active=plan.active))
        self._by_name.update(entries)
        for entry in entries.values():
            self.group(entry, "", entry.settings.dag)
        yield
        for rel in (False, True):
            due = [
                entry
                for entry in entries.values()
                if entry.fire_ms is not None and not entry.paused and entry.settings.rel is rel
            ]
            self._times[rel].update(due)
            for entry in due:
                entry.listed_ms = entry.fire_ms
            yield

    def _load_runs(self, core: Core) -> Iterator[None]:
        # A run whose end nobody has seen is not over: without a record of it, it would pass for
        # one that succeeded and is gone from the history.
        unseen = {record.id for record in core.ended(_ALL)}
        yield
        for number, job in enumerate(core.owned()):
            if job is None or number % LOAD_SLICE == 0:
                yield
            if job is None or (job.state not in _LIVE and job.id not in unseen):
                continue
            run = run_of(job)
            entry = self._by_name.get(run.name)
            if job.state not in _LIVE and _is_recorded(core, run):
                continue
            self.jobs[job.id] = (entry, run)
            if entry is None:
                self.orphans.setdefault(run.name, {})[run.key] = run
                continue
            if entry.live is None:
                entry.live = {}
            entry.live[run.key] = run
            run.alone = entry.is_alone(run)
            if not entry.settings.jitter_ms or run.tag.startswith("!"):
                run.due_ms = run.nominal_ms  # a retry has moved its job


def _is_recorded(core: Core, run: Run) -> bool:
    """Return whether a run is in its schedule's history already."""
    items = history.split(core.table_get(HISTORY, run.name.encode()) or b"")
    return any(
        item.first_ms == run.nominal_ms and item.count == 1 and history.tag_of(item) == run.tag
        for item in items
    )


def run_of(job: Owned) -> Run:
    """Return the live run whose job this is.

    Raises:
        Damaged: its owner is no run id.
    """
    try:
        name, nominal_ms, tag, label = parse_owner(job.owner)
    except ValueError as error:
        raise Damaged(f"job {job.id} is owned by {job.owner!r}, which is no run") from error
    stands = Stands.WAITING if job.state == State.HELD else Stands.ACTIVE
    return Run(name, nominal_ms, tag, job.due_ms, label, stands=stands, job_id=job.id)
