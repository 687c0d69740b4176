"""What clients of schedules were told, and whether a server that keeps its word can have said it.

It knows nothing of the engine. Times of a rule come from the brute-force oracle of the property
tests (every minute is looked at, on the zone's own clock); what the server decided is read from
GET and RUNS, and what ran from what workers were given. Each fact carries the lsn at which it was
read: a power cut that took the records behind a lsn takes the facts behind it too, where the mode
of fsync allows that, and no other.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

from tests.property.cron_oracle import Meaning, fires

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
BEFORE_MS: Final = 6 * HOUR_MS  # of the world's first moment
LONG_MS: Final = 3 * DAY_MS  # that a world lasts at most
EVERY_MS: Final = 7 * MINUTE_MS
EVERY: Final = "@every 7m"
CHILD: Final = "-"
LIVE: Final = frozenset({"running", "waiting", "held"})


def _rule(text: str, minutes: Iterable[int], hours: Iterable[int], *, fixed: bool) -> Meaning:
    minute, hour = frozenset(minutes), frozenset(hours)
    return Meaning(
        text, lambda h, m, s: h in hour and m in minute and not s, lambda _d: True, fixed
    )


RULES: Final = [
    _rule("*/20 * * * *", (0, 20, 40), range(24), fixed=False),
    _rule("15 * * * *", (15,), range(24), fixed=False),
    _rule("30 2 * * *", (30,), (2,), fixed=True),
    _rule("0,30 1-3 * * *", (0, 30), (1, 2, 3), fixed=True),
    _rule("*/30 1,2 * * *", (0, 30), (1, 2), fixed=False),
]
BY_TEXT: Final = {rule.text: rule for rule in RULES}


@cache
def _times(text: str, zone: str, literal: bool, first_ms: int) -> tuple[int, ...]:
    rule = BY_TEXT[text]
    if literal:
        rule = Meaning(rule.text, rule.times, rule.day, fixed=False)
    start = datetime.fromtimestamp((first_ms - BEFORE_MS) / 1000, UTC)
    end = datetime.fromtimestamp((first_ms + LONG_MS) / 1000, UTC)
    return tuple(1000 * s for s in fires(rule, ZoneInfo(zone), start, end, 60))


class ViolationError(AssertionError):
    """A promise was broken: its name, and the case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One CRON SET.

    Attributes:
        mark: the payload, by which it is known again.
        at_ms: logical wall time at which it was sent: its rule counts from there if it is another.
    """

    name: str
    mark: str
    rule: str
    zone: str
    literal: bool
    overlap: str
    catch_up: str
    window_ms: int
    most: int
    after: tuple[str, ...]
    at_ms: int
    jitter_ms: int = 0

    @property
    def same_rule(self) -> tuple[str, str, bool]:
        return self.rule, self.zone, self.literal

    def kept(self, missed: list[int], now_ms: int) -> set[int]:
        """Return which of missed times CATCHUP makes up for."""
        young = [ms for ms in missed if not self.window_ms or ms >= now_ms - self.window_ms]
        if self.catch_up == "skip" or not young:
            return set()
        if self.catch_up == "latest":
            return {missed[-1]}
        return set(young[-self.most :])


@dataclass(frozen=True, slots=True)
class Fact:
    """What became of a nominal time when it was first seen."""

    lsn: int
    outcome: str
    job: str | None


@dataclass(slots=True)
class Known:
    """A schedule, as far as it was confirmed."""

    sent: Sent
    lsn: int  # at which it was confirmed
    since_ms: int  # its rule's first time is later
    paused: bool = False
    facts: dict[int, Fact] = field(default_factory=dict)
    running: int = 0  # runs that are active, when it was last read
    active: int = 0  # of these, that OVERLAP sees; -1: it cannot be told from outside

    def begin(self, sent: Sent) -> int:
        """Return from where on another rule counts: nothing is decided a second time.

        A start does not know of the latest time that the clock has shown when nothing was logged
        then, so now may be earlier than what was decided.
        """
        return max(self.since_ms, sent.at_ms, *self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of RUNS."""

    run: str
    first_ms: int
    last_ms: int
    count: int
    outcome: str
    job: str | None
    due_ms: int | None = None
    failures: int = 0

    @property
    def tagged(self) -> bool:
        return "!" in self.run or "~" in self.run


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What GET and RUNS said of a schedule, in one moment."""

    name: str
    mark: str
    paused: bool
    next_ms: int | None
    due_ms: int | None
    rows: tuple[Row, ...]


@dataclass(slots=True)
class Asked:
    """A command that changes a schedule; in doubt until it is known where its answer stands.

    Attributes:
        name: of the schedule.
        lsn: behind which nothing of it stands; None = it was not answered.
    """

    name: str
    lsn: int | None = None


class Oracle:
    """Everything that was confirmed."""

    def __init__(self, first_ms: int) -> None:
        self.first_ms = first_ms
        self.known: dict[str, Known] = {}
        self.history: list[tuple[int, dict[str, Known]]] = []  # lsn: as it was confirmed then
        self.sent: dict[str, Sent] = {}  # by mark, whatever became of it
        self.asked: list[Asked] = []  # what changes schedules, since the last start
        self.gone: dict[str, dict[int, Fact]] = {}  # of schedules that were deleted
        self.jobs: dict[str, tuple[int, str]] = {}  # run id -> lsn, job
        self.ends: dict[str, int] = {}  # run id -> lsn
        self.tried: dict[str, int] = {}  # run id -> lsn before its ACK was sent
        self.promised: dict[str, int] = {}  # run by hand -> lsn
        self.forced: set[str] = set()  # of these, that OVERLAP leaves alone
        self.seen: set[str] = set()  # runs by hand that were seen
        self.filled: dict[str, list[tuple[int, int]]] = {}  # name: backfills asked for, from and to
        self.to_fill: dict[str, tuple[int, tuple[str, str, bool]]] = {}  # run -> lsn, of which rule
        self.marked: set[str] = set()  # runs that somebody has asked to be marked
        self.verdicts: dict[str, tuple[int, str]] = {}  # of these, run -> lsn, outcome confirmed
        self.dues: dict[str, int] = {}  # run -> when it is due, as it was first seen
        self.spread: dict[tuple[str, int, int, tuple[str, str, bool]], int] = {}
        self.counted = 0

    # ---------------------------------------------------------------- times

    def open_times(self) -> dict[str, list[int]]:
        """Return of each schedule the times that nothing is known of, from its rule's begin on."""
        return {
            name: [
                ms
                for ms in self.times(known, known.since_ms, self.first_ms + LONG_MS)
                if ms not in known.facts
            ]
            for name, known in self.known.items()
        }

    def rule_times(self, known: Known) -> frozenset[int]:
        """Return all nominal times of a schedule's rule, also of before it was set."""
        sent = known.sent
        return frozenset(_times(sent.rule, sent.zone, sent.literal, self.first_ms))

    def times(self, known: Known, after_ms: int, until_ms: int) -> list[int]:
        """Return the nominal times in (after, until] of a schedule's rule."""
        sent = known.sent
        if sent.rule not in BY_TEXT:
            return []
        every = _times(sent.rule, sent.zone, sent.literal, self.first_ms)
        return [ms for ms in every if max(after_ms, known.since_ms) < ms <= until_ms]

    # ---------------------------------------------------------------- what was confirmed

    def confirm_set(self, sent: Sent, lsn: int, next_ms: int | None) -> None:
        """SET was answered, with the next time."""
        before = self.known.get(sent.name)
        if before is None:
            # On which moment of its axis that was, a rule on the other one does not tell.
            is_rel = sent.rule == EVERY and next_ms is not None
            self.known[sent.name] = Known(sent, lsn, next_ms - 1 if is_rel else sent.at_ms)
        else:
            if before.sent.same_rule != sent.same_rule:
                before.since_ms = before.begin(sent)
                self._unfill(sent.name)
            before.sent, before.lsn = sent, lsn
        self._keep(lsn)

    def confirm_delete(self, name: str, lsn: int) -> None:
        """DEL was answered."""
        self.gone[name] = self.known.pop(name).facts
        self._unfill(name)
        for facts in (self.jobs, self.ends, self.verdicts, self.dues):
            for run in [run for run in facts if run.startswith(f"{name}@")]:
                del facts[run]
        self.promised = {
            run: at for run, at in self.promised.items() if not run.startswith(f"{name}@")
        }
        self._keep(lsn)

    def confirm_paused(self, name: str, paused: bool, lsn: int) -> None:
        """PAUSE or RESUME was answered."""
        self.known[name].paused = paused
        self._keep(lsn)

    def _keep(self, lsn: int) -> None:
        self.history.append((lsn, {name: copy(known) for name, known in self.known.items()}))

    # ---------------------------------------------------------------- by hand

    def fills(self, name: str, from_ms: int, to_ms: int) -> None:
        """BACKFILL is sent: what was dropped there may get a run from now on."""
        self.filled.setdefault(name, []).append((from_ms, to_ms))

    def confirm_filled(self, name: str, runs: list[str], now_ms: int, lsn: int) -> None:
        """BACKFILL was answered: each of these will have a run, and had none."""
        known = self.known[name]
        for run in runs:
            ms = moment(run.partition("@")[2])
            inside = any(first <= ms <= last for first, last in self.filled[name])
            if not inside or ms > now_ms:
                raise ViolationError(f"invented: backfill of {name} is to make {run}")
            if known.sent.rule in BY_TEXT and ms not in self.rule_times(known):
                raise ViolationError(f"invented: {name} {known.sent.same_rule} has no {run}")
            fact = known.facts.get(ms)
            if fact is not None and fact.job:
                raise ViolationError(f"doubled: backfill is to make {run}, which is job {fact.job}")
            self.to_fill[run] = lsn, known.sent.same_rule

    def _unfill(self, name: str) -> None:
        """Another rule: what the backfill has not made yet is not made any more."""
        self.to_fill = {
            run: at for run, at in self.to_fill.items() if not run.startswith(f"{name}@")
        }

    def unfilled(self) -> list[str]:
        """Return the runs that a backfill promised, and that never came to be."""
        found: list[str] = []
        for run, (_, rule) in self.to_fill.items():
            name, _, rest = run.partition("@")
            known = self.known.get(name)
            fact = None if known is None else known.facts.get(moment(rest))
            if known is None or known.sent.same_rule != rule or known.sent.after:
                continue  # one that waits for an upstream for ever takes its room
            if fact is None or not fact.job:
                found.append(f"{run}: {fact}")
        return found

    def marks(self, run: str) -> None:
        """MARK is sent: how the run ended is somebody's word from now on, and that of its end."""
        self.marked.add(run)
        self.to_fill.pop(run, None)  # a backfill that is under way leaves it out
        self.ends.pop(run, None)
        self.verdicts.pop(run, None)

    # ---------------------------------------------------------------- what workers are given

    def granted(self, run: str, job: str, lsn: int, now_ms: int) -> None:
        """A worker was given a run."""
        if run in self.ends:
            raise ViolationError(f"again: {run} was given out behind its end")
        is_first = run not in self.jobs
        was = self.jobs.setdefault(run, (lsn, job))
        if was[1] != job:
            raise ViolationError(f"doubled: {run} is job {was[1]} and job {job}")
        name, _, rest = run.partition("@")
        nominal_ms = moment(rest)
        if nominal_ms > now_ms and self._is_on_wall(name):
            raise ViolationError(f"early: {run} was given out at {now_ms}")
        if is_first and now_ms < self.dues.get(run, 0) and self._is_on_wall(name):
            raise ViolationError(f"early: {run} was given out at {now_ms}, due {self.dues[run]}")
        known = self.known.get(name)
        if (
            known is None
            or "!" in run
            or "~" in run
            or not is_first
            or nominal_ms <= known.sent.at_ms
        ):
            return  # it may have been let go before AFTER was what it is
        for up in known.sent.after:
            is_free = f"{up}@{rest}" in self.tried or f"{up}@{rest}" in self.marked
            is_free |= any(one.startswith(f"{up}@{rest}~") for one in self.tried)
            if known.sent.rule == CHILD and not is_free:
                raise ViolationError(f"released: {run} was given out before {up}@{rest} had ended")

    def _is_on_wall(self, name: str) -> bool:
        return name in self.known and self.known[name].sent.rule != EVERY

    # ---------------------------------------------------------------- what is read

    def read(self, read: Read, lsn: int, now_ms: int) -> None:
        """Look at what the server says of a schedule, with nothing left for it to do."""
        known = self.known[read.name]
        if read.mark != known.sent.mark or read.paused != known.paused:
            raise ViolationError(f"lost: {known.sent} was confirmed, the server has {read.mark}")
        seen = self._rows(known, read, lsn)
        running = [row.run for row in read.rows if row.outcome == "running"]
        known.running = len(running)
        known.active = sum("!" not in run for run in running)
        by_hand = any("!" in run and run not in self.forced for run in running)
        if by_hand or any(
            self._is_filled(read.name, moment(run[len(read.name) + 1 :])) for run in running
        ):
            known.active = -1
        for run in self.promised:
            if run.startswith(f"{read.name}@") and run not in self.seen and run not in seen:
                raise ViolationError(f"forgotten: {run} was promised, and is nowhere")
        self.seen |= seen
        if known.sent.rule in BY_TEXT:
            self._complete(known, read, now_ms)
        elif known.sent.rule == EVERY:
            self._regular(known, read)

    def _rows(self, known: Known, read: Read, lsn: int) -> set[str]:
        """Take in the rows; return the ids of the runs by hand among them."""
        here: set[int] = set()
        for row in read.rows:
            if row.tagged:
                continue
            for ms in self._expand(known, row):
                if ms in here and not self._is_of_before(known, read, ms):
                    both = [one for one in read.rows if one.first_ms <= ms <= one.last_ms]
                    raise ViolationError(f"doubled: {read.name} has two records for {ms}: {both}")
                here.add(ms)
                self._take(known, ms, row, lsn)
        return {row.run for row in read.rows if row.tagged}

    def _is_of_before(self, known: Known, read: Read, ms: int) -> bool:
        """Return whether a time that has a word is also in a record of a rule of before.

        Which times such a record stands for, but its first and its last, nobody knows any more.
        """
        has_word = self._is_filled(read.name, ms) or any(
            run.startswith(f"{read.name}@") and moment(run[len(read.name) + 1 :]) == ms
            for run in self.marked
        )
        rows = [one for one in read.rows if one.count > 1 and one.first_ms <= ms <= one.last_ms]
        return has_word and any(one.first_ms <= known.since_ms for one in rows)

    def _is_filled(self, name: str, ms: int) -> bool:
        return any(first <= ms <= last for first, last in self.filled.get(name, ()))

    def _take(self, known: Known, ms: int, row: Row, lsn: int) -> None:
        was = known.facts.get(ms)
        if was is None:
            known.facts[ms] = Fact(lsn, row.outcome, row.job)
            self.counted += 1
            self._due(known, ms, row)
        elif was.job and row.job and was.job != row.job:
            raise ViolationError(f"doubled: {row.run} was job {was.job}, and is job {row.job}")
        elif was.job is None and row.job:
            if known.sent.rule != CHILD and not self._is_filled(known.sent.name, ms):
                raise ViolationError(f"doubled: {row.run} was {was.outcome}, and is a run")
            known.facts[ms] = Fact(lsn, row.outcome, row.job)  # RESUME has made up for it
        said = self.verdicts.get(row.run)
        if said is not None and row.count == 1 and row.outcome != said[1]:
            raise ViolationError(f"lost: {row.run} was marked {said[1]}, and it is {row.outcome}")
        ended = self.ends.get(row.run)
        if ended is not None and row.outcome != "succeeded":
            raise ViolationError(
                f"lost: the end of {row.run} was confirmed, and it is {row.outcome}"
            )

    def _due(self, known: Known, ms: int, row: Row) -> None:
        """A run is due within its jitter, and always at the same moment, whatever happened."""
        sent = known.sent
        if row.due_ms is None or row.failures or not row.job or sent.rule not in BY_TEXT:
            return
        if ms <= known.since_ms:  # it may be of a schedule of that name that was deleted
            return
        if not 0 <= row.due_ms - ms <= sent.jitter_ms:
            raise ViolationError(f"jitter: {row.run} is due {row.due_ms - ms} ms late: {sent}")
        self.dues[row.run] = row.due_ms
        key = sent.name, ms, sent.jitter_ms, sent.same_rule
        was = self.spread.setdefault(key, row.due_ms)
        if was != row.due_ms:
            raise ViolationError(f"jitter: {row.run} was due at {was}, and is at {row.due_ms}")

    def _expand(self, known: Known, row: Row) -> list[int]:
        if row.count == 1 and row.first_ms == row.last_ms:
            return [row.first_ms]
        rule = known.sent.rule
        if rule == EVERY:
            every = list(range(row.first_ms, row.last_ms + 1, EVERY_MS))
        elif rule in BY_TEXT and row.first_ms > known.since_ms:
            every = self.times(known, row.first_ms - 1, row.last_ms)
        else:
            return [row.first_ms, row.last_ms]
        if len(every) != row.count:
            raise ViolationError(f"counted: {row} stands for {len(every)} times of {rule!r}")
        return every

    def _complete(self, known: Known, read: Read, now_ms: int) -> None:
        """Every time of the rule that was decided has a fact, and no other time has."""
        times = set(self.times(known, known.since_ms, self.first_ms + LONG_MS))
        invented = sorted(ms for ms in known.facts if ms > known.since_ms and ms not in times)
        if invented:
            raise ViolationError(f"invented: {read.name} {known.sent.same_rule}: {invented[:3]}")
        if read.next_ms is not None:
            late = sorted(ms for ms in times if ms < read.next_ms and ms not in known.facts)
            if late:
                raise ViolationError(f"forgotten: {read.name} {known.sent.same_rule}: {late[:3]}")
            if not known.paused and read.due_ms is not None and read.due_ms <= now_ms:
                raise ViolationError(f"stuck: {read.name} was due at {read.due_ms}, it is {now_ms}")

    def _regular(self, known: Known, read: Read) -> None:
        """Each multiple of the period has a fact, from the first one on."""
        if self.filled.get(read.name):
            return  # from where on it is the rule's own cannot be told
        facts = sorted(ms for ms in known.facts if ms > known.since_ms)
        for before, after in itertools.pairwise(facts):
            if (after - before) != EVERY_MS:
                raise ViolationError(
                    f"forgotten: {read.name} has nothing between {before} and {after}"
                )
        if facts and facts[-1] % EVERY_MS:
            raise ViolationError(f"invented: {read.name} at {facts[-1]}")

    # ---------------------------------------------------------------- policies

    def missed(self, name: str, missed: list[int], now_ms: int) -> None:
        """Times that nobody could decide on: CATCHUP says which of them have a run."""
        known = self.known[name]
        kept = known.sent.kept(missed, now_ms)
        for ms in missed:
            fact = known.facts.get(ms)
            if fact is None or (fact.outcome == "missed") != (ms not in kept):
                raise ViolationError(f"catch-up: {name} {known.sent.catch_up} at {ms}: {fact}")

    def in_time(self, name: str, times: list[int], active: int) -> None:
        """Times that passed while the server was up: none is missed, and OVERLAP decides."""
        known = self.known[name]
        for ms in times:
            fact = known.facts.get(ms)
            if fact is None or fact.outcome == "missed":
                raise ViolationError(f"missed: {name} at {ms} in a server that was up: {fact}")
            skipped = fact.outcome == "skipped"
            if known.sent.after:
                continue
            if known.sent.overlap == "allow" and skipped:
                raise ViolationError(f"overlap: {name} at {ms} was skipped, and may overlap")
            if known.sent.overlap == "skip" and active >= 0:
                if skipped != (active > 0):
                    raise ViolationError(f"overlap: {name} at {ms} with {active} active: {fact}")
                active += not skipped

    # ---------------------------------------------------------------- crashes

    def roll_back(self, lsn: int) -> None:
        """The log ends at a lsn: what was read or confirmed behind it is in doubt."""
        state: dict[str, Known] = {}
        for at, confirmed in self.history:
            if at <= lsn:
                state = confirmed
        facts = self.gone | {name: known.facts for name, known in self.known.items()}
        self.known = {name: copy(known) for name, known in state.items()}
        for name, known in self.known.items():
            known.facts |= facts.get(name, {})
            known.facts = {ms: fact for ms, fact in known.facts.items() if fact.lsn <= lsn}
        self.history = [(at, confirmed) for at, confirmed in self.history if at <= lsn]
        self.jobs = {run: fact for run, fact in self.jobs.items() if fact[0] <= lsn}
        self.ends = {run: at for run, at in self.ends.items() if at <= lsn}
        self.tried = {run: at for run, at in self.tried.items() if at < lsn}
        self.promised = {run: at for run, at in self.promised.items() if at <= lsn}
        self.seen &= set(self.promised)
        self.to_fill = {run: at for run, at in self.to_fill.items() if at[0] <= lsn}
        self.verdicts = {run: at for run, at in self.verdicts.items() if at[0] <= lsn}
        self.dues = {run: due_ms for run, due_ms in self.dues.items() if run in self.jobs}

    def adopt(self, name: str, mark: str | None, *, paused: bool, lsn: int) -> None:
        """Take what the server has of a name after a crash: what was confirmed, or what was asked.

        Args:
            name: of the schedule.
            mark: of its definition; None = there is none.
            paused: whether it is.
            lsn: where the log ends.
        """
        known = self.known.get(name)
        doubted = sum(
            asked.name == name and (asked.lsn is None or asked.lsn > lsn) for asked in self.asked
        )
        if not doubted:
            if (known is None) != (mark is None):
                raise ViolationError(f"lost: {name} is {mark}, confirmed was {known}")
            if known is not None and (known.sent.mark, known.paused) != (mark, paused):
                raise ViolationError(f"lost: {name} is {mark} {paused}, confirmed was {known}")
        elif mark is None:
            self._unfill(name)
            if known is not None:
                self.gone[name] = self.known.pop(name).facts
        else:
            self._adopt(known, self.sent[mark], doubted, lsn)
            self.known[name].paused = paused

    def _adopt(self, known: Known | None, sent: Sent, doubted: int, lsn: int) -> None:
        if doubted > 1 or known is None:
            self._unfill(sent.name)  # it may have been deleted in between
        if known is None:
            self.known[sent.name] = Known(sent, lsn, sent.at_ms)
        elif known.sent.mark != sent.mark:
            # Others may have come between: what they did cannot be told from here.
            if known.sent.same_rule != sent.same_rule or doubted > 1:
                known.since_ms = known.begin(sent)
                self._unfill(sent.name)
            known.sent = sent

    def started(self, lsn: int) -> None:
        """All names were adopted: this is what is known from now on."""
        self.asked.clear()
        self._keep(lsn)


def copy(known: Known) -> Known:
    """Return a copy that changes by itself."""
    return Known(
        known.sent,
        known.lsn,
        known.since_ms,
        known.paused,
        dict(known.facts),
        known.running,
        known.active,
    )


def moment(text: str) -> int:
    """Return the ms of a run id's moment."""
    text = text.partition("!")[0].partition("~")[0]
    return int(datetime.fromisoformat(text).timestamp() * 1000)
