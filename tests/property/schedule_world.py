"""The engine and its schedules, with clocks, workers, crashes and a full disk moved by hand.

What must hold is asked after every step, of the engine's own facts where that is a question of
consistency, and of what the workers did where it is a promise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fed import TERM, Bench
from wheel.engine.core import Core, DiskRoom
from wheel.engine.dag import Judge, State
from wheel.engine.dates import Date, Dates, label_of
from wheel.engine.definition import Definition, Overlap
from wheel.engine.entries import Entry
from wheel.engine.records import State as JobState
from wheel.engine.runs import Run, Stands, parse_run_id, tag_parts
from wheel.engine.scheduler import Scheduler
from wheel.wire import ReplyReader

HANDLER = "h"
TURNS_MAX = 2_000


@dataclass(slots=True)
class Lease:
    """A run that a worker has."""

    receipt: bytes
    run_id: str


@dataclass(slots=True)
class Base:
    """Where a schedule's rule began to be in force, and its counters then."""

    since_ms: int
    decided: int
    forced: int = 0
    replacing: bool = False


@dataclass(slots=True)
class World:
    """One engine over any number of lives."""

    bench: Bench = field(default_factory=lambda: Bench(jobs_max=5_000))
    leases: list[Lease] = field(default_factory=list)
    # Schedule and nominal time: what became of each attempt.
    fates: dict[tuple[str, int], dict[int, str]] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)  # run id: its job
    backfilled: set[str] = field(default_factory=set)  # by number their runs tell nothing
    crowded: set[str] = field(default_factory=set)  # OVERLAP was allow when their runs began
    seen_active: set[str] = field(default_factory=set)
    bases: dict[str, Base] = field(default_factory=dict)
    rules: dict[str, tuple[object, ...]] = field(default_factory=dict)
    scheduler: Scheduler = field(init=False)
    conn: Any = field(init=False)
    term: int = TERM

    def __post_init__(self) -> None:
        self.load()

    def load(self) -> None:
        self.conn = self.bench.open()
        self.scheduler = Scheduler(self.bench.core, clock_ns=lambda: 0)
        for _ in self.scheduler.load():
            pass
        self.turn()

    # ---------------------------------------------------------------- what is there

    def entries(self) -> list[Entry]:
        return list(self.scheduler.planner.store.all())

    def entry(self, name: str) -> Entry:
        entry = self.scheduler.planner.store.get(name)
        assert entry is not None, name
        return entry

    def live(self) -> Iterator[tuple[Entry, Run]]:
        for entry in self.entries():
            for run in entry.all_live():
                yield entry, run

    # ---------------------------------------------------------------- what happens

    def turn(self) -> None:
        """Let the schedules do all that there is to do now."""
        for _ in range(TURNS_MAX):
            more = self.scheduler.turn().more
            self.bench.settle()
            if not more:
                return
        raise AssertionError("the turns do not come to an end")

    def advance(self, span_ms: int, step_ms: int = 0) -> None:
        """Let time pass, and set the wall clock."""
        self.bench.wall_ms += step_ms
        self.bench.advance(span_ms)
        self.bench.settle()
        self.turn()

    def set(self, definition: Definition) -> None:
        self.scheduler.set(definition)
        self.bench.settle()
        entry = self.entry(definition.name)
        rule = (definition.rule, definition.max_runs, entry.since_ms)
        if self.rules.get(definition.name) != rule:
            self.rules[definition.name] = rule
            self.bases[definition.name] = Base(entry.done_ms, self.decided(entry))
        replacing = definition.overlap is Overlap.CANCEL_RUNNING
        self.bases[definition.name].replacing |= replacing
        self.turn()

    def delete(self, name: str) -> None:
        self.scheduler.delete(name, force=True)
        self.bench.settle()
        for known in (self.rules, self.bases):
            known.pop(name, None)
        self.fates = {key: fate for key, fate in self.fates.items() if key[0] != name}
        self.turn()

    def trigger(self, name: str) -> None:
        self.scheduler.trigger(name, at_ms=None, force=True)
        self.bases[name].forced += 1
        self.turn()

    def lease(self, count: int) -> None:
        reader = ReplyReader()
        reader.feed(self.conn.ask(f"LEASE {HANDLER} COUNT {count}"))
        jobs = reader.gets()
        assert isinstance(jobs, list), jobs
        for job in jobs:
            run_id = job[11][0].decode()
            # One job for each run, whatever crashed: a second attempt is of the same job.
            assert self.jobs.setdefault(run_id, int(job[1])) == int(job[1]), run_id
            key, times = parse_run_id(run_id), self.bench.core.times()
            assert key.nominal_ms <= max(times.logical_ms, times.rel_ms), f"{run_id} is early"
            self.fate(run_id, "running")
            self.leases.append(Lease(job[0], run_id))
        self.turn()

    def fate(self, run_id: str, fate: str) -> None:
        name, nominal_ms, tag = parse_run_id(run_id)
        manual, attempt = tag_parts(tag)
        if not manual:
            self.fates.setdefault((name, nominal_ms), {})[attempt] = fate

    def succeeded(self, name: str, nominal_ms: int) -> bool:
        """Return whether the newest attempt at a run did."""
        attempts = self.fates.get((name, nominal_ms), {0: ""})
        return attempts[max(attempts)] == "succeeded"

    def end(self, pick: int, how: str, *, turn: bool = True) -> None:
        """A worker says how its run went; without a turn the schedules have not heard of it."""
        if self.leases:
            lease = self.leases.pop(pick % len(self.leases))
            words = {"ack": "ACK {}", "dead": "FAIL {} DEAD", "retry": "FAIL {} IN 1000"}[how]
            answer = self.conn.ask(words.format(lease.receipt.decode()))
            if b"OK" in answer or b"+DEAD" in answer:
                self.fate(lease.run_id, "succeeded" if how == "ack" else "dead")
            if turn:
                self.turn()

    def rerun(self, name: str, label: str, *, downstream: bool) -> None:
        ids = self.scheduler.rerun(name, label, downstream=downstream)
        for run_id in ids:
            self.fate(run_id, "made")
        self.turn()

    def mark(self, name: str, nominal_ms: int, *, succeeded: bool) -> None:
        run_id = Run(name, nominal_ms, "", nominal_ms, "").id
        self.scheduler.mark(run_id, succeeded=succeeded)
        self.fate(run_id, "succeeded" if succeeded else "dead")
        self.turn()

    def backfill(self, name: str, from_ms: int, to_ms: int, active: int) -> None:
        self.scheduler.backfill(name, from_ms, to_ms, active=active)
        self.backfilled.add(name)
        self.turn()

    def room(self, *, enough: bool) -> None:
        """Take jobs, or refuse them as a disk without room does."""
        self.bench.core.set_disk_room(DiskRoom.OK if enough else DiskRoom.TIGHT)
        self.bench.core.commit()

    def crash(self, down_ms: int, *, settled: bool = True) -> None:
        """Kill the server between any two of its steps; start it again later."""
        before = self.picture()
        self.bench.wall_ms += down_ms
        self.bench.boot_ms += down_ms
        old, self.term = self.bench.core, self.term + 1
        core = Core(self.bench.options)
        for frame in self.bench.frames:
            core.replay(frame, term=self.term)
        core.start(term=self.term, rel_ms=old.times().rel_ms + down_ms, clocks=self.bench.clocks())
        old.close()
        self.bench.core = core
        core.tick(self.bench.clocks())
        self.load()
        if settled and not down_ms:
            assert self.picture() == before

    def picture(self) -> dict[str, object]:
        """Return all that a restart at the same moment must not change."""
        return {
            entry.name: (
                entry.version,
                entry.next_ms,
                entry.paused,
                entry.done_ms,
                self.decided(entry),
                sorted((run.id, run.stands) for run in entry.all_live()),
            )
            for entry in self.entries()
        }

    # ---------------------------------------------------------------- what must hold

    @staticmethod
    def decided(entry: Entry) -> int:
        return entry.runs + entry.skipped + entry.missed

    def check(self) -> None:
        assert self.bench.core.check() == 0
        self.check_jobs()
        self.check_overlap()
        self.check_held()
        self.check_released()
        self.check_times()

    def check_jobs(self) -> None:
        """The runs in memory are the owned jobs of the core, each where memory says."""
        owned = {
            job.id: job for job in self.bench.core.owned() if job is not None and job.state <= 4
        }
        ids = {run.job_id: run for _entry, run in self.live()}
        orphans = {
            run.job_id: run
            for runs in self.scheduler.planner.store.orphans.values()
            for run in runs.values()
        }
        known = ids | orphans
        odd = {job_id: owned.get(job_id) or known[job_id] for job_id in owned.keys() ^ known.keys()}
        assert not odd, odd
        for job_id, run in ids.items():
            held = owned[job_id].state == JobState.HELD
            assert held == (run.stands is not Stands.ACTIVE), run

    def check_overlap(self) -> None:
        """At most one run of a schedule is active, and none waits for nothing."""
        for entry in self.entries():
            active = len(entry.standing(Stands.ACTIVE))
            waiting = len(entry.standing(Stands.WAITING))
            if entry.settings.overlap == "allow":
                self.crowded.add(entry.name)
            elif active <= 1:
                self.crowded.discard(entry.name)
            # A rule edited under a backfill ends that, and what of it was handed out counts then.
            assert active <= 1 or entry.name in self.crowded | self.backfilled, entry
            assert active or not waiting or entry.paused, entry

    def check_held(self) -> None:
        """What holds a run is what a judge says who sees it for the first time."""
        planner = self.scheduler.planner
        judge = Judge(planner.known, Dates(planner.known.schedule))
        for entry, run in self.live():
            if run.stands is Stands.HELD:
                own = run.label if entry.rule is None else ""
                verdict = judge.verdict(entry, run.nominal_ms, own)
                held = planner.dependencies.held_run(entry.name, run.nominal_ms)
                assert verdict.state is not State.RELEASE, run
                assert held is not None, (
                    f"{run}: nobody holds it; live {sorted(one.id for one in entry.all_live())}"
                )
                assert held.verdict == verdict, f"{run}: {held.verdict} should be {verdict}"

    def check_released(self) -> None:
        """A run that may start has upstreams whose runs of its date the workers have ended."""
        for entry, run in self.live():
            if run.stands is not Stands.ACTIVE or run.id in self.seen_active:
                continue
            self.seen_active.add(run.id)
            if entry.after and not run.tag:
                own = run.label if entry.rule is None else ""
                label = label_of(entry, run.nominal_ms, own, entry.date)
                for up in entry.after:
                    self.check_upstream(entry, run, self.entry(up), label)

    def check_upstream(self, entry: Entry, run: Run, up: Entry, label: str) -> None:
        known = {
            ms
            for name, ms in self.fates
            if name == up.name and up.zone.label(ms, Date(entry.date)) == label
        }
        by_rule = set() if up.rule is None else set(up.rule.on(label))
        if up.until_ms is not None:
            by_rule = {ms for ms in by_rule if ms < up.until_ms}
        times = sorted(ms for ms in known | by_rule if ms in known or ms >= up.since_ms)
        needed = [ms for ms in times if ms <= run.nominal_ms] or times[:1]
        if entry.after_rule == "all_success":
            assert needed, f"{run} was released without a run of {up}"
            # A run of a rule that it had before does not count.
            wrong = [ms for ms in needed if not self.succeeded(up.name, ms) and ms in by_rule]
            assert not wrong, f"{run} was released before {wrong} of {up}"

    def check_times(self) -> None:
        """Every nominal time that has passed was made a run of, skipped or missed, and once."""
        for entry in self.entries():
            base = self.bases.get(entry.name)
            if base is None or entry.rule is None or entry.name in self.backfilled:
                continue
            if base.replacing:  # a run that waited and was skipped for another counts as both
                continue
            until_ms = entry.done_ms
            expected = entry.rule.count(base.since_ms, until_ms)
            assert self.decided(entry) - base.decided - base.forced == expected, entry
            most = entry.settings.max_runs
            if entry.next_ms is not None and (most is None or entry.runs < most):
                assert entry.next_ms == entry.rule.next_ms(until_ms), entry
