"""Schedules in a simulated world: lives and recoveries of one store, from one seed.

The core, the log and its recovery, the scheduler and the CRON commands are the shipped ones; the
disk (tests/simdisk.py), both clocks and the network are simulated. Clients set, change, pause,
resume, trigger, backfill, rerun, mark and delete schedules, workers run what is due, clocks are
set, the machine sleeps, checkpoints are made; and each life ends: killed between any two steps, the
power gone at any file call, or stopped in order, in each of the three modes of fsync. What clients
were told is judged by tests/cronoracle.py, which knows nothing of the engine.

The same seed gives the same world, byte for byte: ``Outcome.trace``. A seed that fails is repeated
by ``python -P -m tests.cronworld SEED``.
"""

import hashlib
import random
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from server.replay import rel_now_ms
from tests.asking import replies
from tests.cronoracle import (
    CHILD,
    DAY_MS,
    EVERY,
    HOUR_MS,
    LONG_MS,
    MINUTE_MS,
    RULES,
    Asked,
    Oracle,
    Read,
    Row,
    Sent,
    ViolationError,
)
from tests.scheduled import Scheduling, plain
from tests.simdisk import SimDisk
from wal.checkpoint import Made
from wal.errors import LogFailedError, RefusedError, WalError
from wal.frame import FsyncMode
from wal.log import FileLog, open_store
from wheel.engine.core import Commit, Core, CoreOptions, LogStoppedError, Sync
from wheel.engine.facts import CheckpointPhase, Clocks
from wheel.errors import CoreError
from wheel.wire import ReplyError, encode_command

DATA: Final = "/d"
# Where a world begins: shortly before a change of the clocks in a zone, or on a plain day.
FIRST: Final = (
    (1_805_752_800_000, "UTC"),  # 2027-03-22T22:00Z
    (1_806_184_800_000, "Europe/Rome"),  # 2027-03-27T22:00Z: spring
    (1_824_933_600_000, "Europe/Rome"),  # 2027-10-30T22:00Z: autumn
    (1_804_996_800_000, "America/New_York"),  # 2027-03-14T04:00Z: spring
    (1_825_556_400_000, "America/New_York"),  # 2027-11-07T03:00Z: autumn
)
ZONES: Final = ("UTC", "Europe/Rome", "America/New_York")
NAMES: Final = ("a", "b", "c", "d", "e")
COUNTS: Final = (
    "version", "state", "running", "waiting", "held", "runs", "succeeded", "failed", "skipped",
    "missed", "changed_ms",
)  # fmt: skip
RELATIVE: Final = "e"  # on the clock that nobody sets
OVERLAPS: Final = ("skip", "queue_one", "queue_all", "allow", "cancel_running")
JITTERS: Final = (0, 0, 0, 0, 30_000, HOUR_MS)
LIVES: Final = 4  # with faults; one without follows
STEPS: Final = 40  # of a life at most
TURNS_MAX: Final = 5_000
FORWARD_MS_MAX: Final = LONG_MS - DAY_MS  # no step or pause goes beyond
LEASE_MS: Final = 60_000
JUMP_MS: Final = 1_000  # a clock that moved by more was set, or the machine slept


class LifeOverError(Exception):
    """The server is gone."""


@dataclass(slots=True)
class Outcome:
    """What became of one seed."""

    seed: int
    violation: str = ""
    ends: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    trace: str = ""


class World:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(seed)
        self.first_ms, self.zone = self.rng.choice(FIRST)
        self.wall_ms = self.first_ms
        self.boot_ms = self.mono_ms = 1_000_000
        self.boot = 1
        self.oracle = Oracle(self.first_ms)
        self.outcome = Outcome(seed)
        self.hash = hashlib.sha256()
        self.uuid = seed.to_bytes(8, "little") * 2
        self.marks = 0
        self.must_lsn = 0  # the next start has to find these records
        self.synced_lsn = 0  # and these, if the power goes before it is over
        self.before: tuple[int, int] | None = None  # lsn and state's hash at the end of a life
        self.held: dict[str, str] = {}  # run id -> receipt, of the worker
        self.quiet = False
        self.ended_ms = self.first_ms  # logical wall time at the end of the last life

    # ---------------------------------------------------------------- lives

    def run(self) -> Outcome:
        """Return the outcome."""
        try:
            for life in range(LIVES + 1):
                self.quiet = life == LIVES
                self._live()
        except ViolationError as broken:
            self.outcome.violation = str(broken)
        except (RefusedError, CoreError) as error:
            self.outcome.violation = f"refused: {error!r}"
        self.outcome.counts["facts"] = self.oracle.counted
        self.outcome.trace = self.hash.hexdigest()
        return self.outcome

    def _live(self) -> None:
        rng = self.rng
        self.mode = FsyncMode(0 if rng.random() < 0.5 else rng.randrange(1, 3))
        self.ends = "done" if self.quiet else rng.choice(["killed", "cut", "cut", "cut", "stopped"])
        self.log: FileLog | None = None
        self.turns_left = -1
        self.saving = False
        self.core = self._core()
        told = synced = 0
        try:
            self._start()
            self._play()
        except (LifeOverError, LogStoppedError, LogFailedError, OSError) as over:
            if not isinstance(over, LifeOverError) and self.ends != "cut":
                raise ViolationError(f"failed: {over!r} in a life that is {self.ends}") from over
        finally:
            if self.log is not None:
                told, synced = self.core.durable_lsn(), self.log.stats().synced_lsn
                self.ended_ms = max(self.ended_ms, self.core.times().logical_ms)
            whole = self.log is not None and told == self.core.lsn()
            self.before = None
            if whole and self.ends in {"killed", "stopped"}:
                self.before = told, self.core.state_hash()
            self.core.close()
            if self.log is not None:
                self.log.close()
        self._die(told, synced)

    def _die(self, told: int, synced: int) -> None:
        """The life is over: what stays of the disk, and for how long nothing runs."""
        if self.log is not None:  # or the start was cut: what the life before left is what there is
            self.must_lsn = told
            self.synced_lsn = told if self.mode == FsyncMode.ALWAYS else synced
        if self.ends == "cut":
            self.disk.power_off_after(0)
            self.disk.crash(self.rng.randrange(1, 1 << 40))
            self.must_lsn = min(self.must_lsn, self.synced_lsn)
            self.boot += 1
            self.boot_ms = self.mono_ms = 60_000
        self.outcome.ends.append(self.ends)
        self.hash.update(f"{self.ends} {told} {self.disk.digest}".encode())
        self.held.clear()
        down_ms = self.rng.choice([50, 3_000, MINUTE_MS, HOUR_MS, 5 * HOUR_MS])
        if self.rng.random() < 0.2:
            self._move(wall_ms=-self.rng.choice([2_000, HOUR_MS]))  # set while nothing ran
        self._move(down_ms, down_ms, down_ms)

    def _core(self) -> Core:
        return Core(
            CoreOptions(
                jobs_max=20_000,
                conns_max=16,
                maxmemory_bytes=64 << 20,
                seed=self.rng.randrange(1 << 32),
                store=self.uuid,
                commit=Commit.INLINE,
                sync=Sync(self.mode),
                gather_us=0,
                sockets=False,
                hand_clock=True,
            )
        )

    def _start(self) -> None:
        """Recover the store into the core, as the server does, and compare with what was told."""
        if self.ends == "cut" and self.rng.random() < 0.2:
            self.disk.power_off_after(self.rng.randrange(1, 40))
        boot_id = self.boot.to_bytes(16, "little")
        store = open_store(
            DATA,
            disk=self.disk,
            fsync=self.mode,
            wall_ms=self.wall_ms,
            new_uuid=self.uuid,
            segment_bytes=self.rng.choice([32_768, 131_072, 262_144]),
        )
        for piece in store.load():
            if piece.data is not None:
                self.core.load(piece.data)
        for chunk in store.replay():
            self.core.replay(chunk.data, term=chunk.term)
        last_lsn = store.verdict.next_lsn - 1
        if last_lsn < self.must_lsn:
            raise ViolationError(
                f"lost: lsn {self.must_lsn} was durable, the log ends at {last_lsn}"
            )
        rel_ms = rel_now_ms(
            store.last_times, wall_ms=self.wall_ms, boot_ms=self.boot_ms, boot_id=boot_id
        )
        self.log = store.start(
            wall_ms=self.wall_ms,
            rel_minus_boot_ms=rel_ms - self.boot_ms,
            boot_id=boot_id,
            salt_seed=self.rng.randrange(1 << 32),
        )
        self.core.attach_log(self.log.handle)
        self.core.start(term=self.log.term, rel_ms=rel_ms, clocks=self.clocks())
        if self.before is not None and self.before != (last_lsn, self.core.state_hash()):
            raise ViolationError("hash: the replay gives another state than was in memory")
        if broken := self.core.check():
            raise ViolationError(f"check: invariant {broken} after the start")
        self.must_lsn = last_lsn
        self.oracle.roll_back(last_lsn)
        self._attach(last_lsn)

    def _attach(self, lsn: int) -> None:
        """The scheduler is loaded; before its first turn the clocks are looked at."""
        self.core.tick(self.clocks())
        self.scheduling = Scheduling(self)
        for name in NAMES:
            row = None
            if self.scheduling.scheduler.exists(name):
                row = self.scheduling.scheduler.get(name)
            mark = None if row is None else row.definition.payload.decode()
            paused = row is not None and row.state == "paused"
            self.oracle.adopt(name, mark, paused=paused, lsn=lsn)
        self.oracle.started(lsn)
        self.conn = self.core.fed_open("world")
        self.counts: dict[str, list[object]] = {}
        self.rows: dict[str, list[Row]] = {}
        if self.ends == "cut":
            self.disk.power_off_after(self.rng.randrange(1, 400))
        if self.ends == "killed":
            self.turns_left = self.rng.randrange(1, 400)
        times = self.oracle.open_times()
        self._settle()
        self._read_all()
        self._judge_missed(times, self.ended_ms)

    def _judge_missed(self, open_times: dict[str, list[int]], after_ms: int) -> None:
        """What was open and passed while nobody could decide is missed: CATCHUP was asked."""
        now_ms = self.now_ms()
        for name, times in open_times.items():
            if self._is_judged(name):
                missed = [ms for ms in times if after_ms < ms <= now_ms]
                self.oracle.missed(name, missed, now_ms)
                self.outcome.counts["missed"] += len(missed)

    def _is_judged(self, name: str) -> bool:
        """Return whether a schedule's policies can be told from outside."""
        known = self.oracle.known[name]
        # Which times passed while it was down cannot be told where they are due later by jitter.
        is_plain = known.sent.rule not in {CHILD, EVERY} and not known.sent.jitter_ms
        return not known.paused and is_plain

    # ---------------------------------------------------------------- the machine

    def clocks(self) -> Clocks:
        return Clocks(wall_ms=self.wall_ms, boot_ms=self.boot_ms, mono_ms=self.mono_ms)

    def now_ms(self) -> int:
        """Return the logical wall time."""
        return self.core.times().logical_ms

    def _move(self, wall_ms: int = 0, boot_ms: int = 0, mono_ms: int = 0) -> None:
        if wall_ms > 0 and self.wall_ms + wall_ms > self.first_ms + FORWARD_MS_MAX:
            wall_ms = min(wall_ms, 50)
            boot_ms, mono_ms = min(boot_ms, 50), min(mono_ms, 50)
        self.wall_ms += wall_ms
        self.boot_ms += boot_ms
        self.mono_ms += mono_ms

    def settle(self) -> None:
        """Answer what waits for Python, and write what was decided (tests/scheduled.py asks)."""
        self._round()

    def _round(self) -> None:
        """One round of the loop: commands, their answers, the end of the round."""
        self.core.commit()
        while (command := self.core.slow_next()) is not None:
            reply = self.scheduling.answer(command.arguments)
            self.core.slow_reply(command.handle, reply, gated=True)
            self._tick_down()
            self.core.commit()

    def _tick_down(self) -> None:
        """A step of the server is done; the next one may never come."""
        self.turns_left -= 1
        if self.turns_left == 0:
            raise LifeOverError

    def _settle(self) -> None:
        """Let the scheduler go on until nothing is left to do."""
        for _ in range(TURNS_MAX):
            before = self.core.lsn()
            self._round()
            more = self.scheduling.scheduler.turn().more
            self._tick_down()
            self.core.commit()
            self.scheduling.scheduler.events()
            if not more and self.core.lsn() == before:
                return
        raise ViolationError("stuck: the scheduler comes to no end")

    def _ask(self, *words: str | int) -> Any:
        """Return the reply to a command, with text for bytes; what it called for is done."""
        self.core.fed_input(self.conn, encode_command([*words]))
        self._settle()
        output = self.core.fed_output(self.conn)
        self.core.fed_taken(self.conn, len(output.data))
        self.hash.update(output.data)
        [reply] = replies(output.data)
        self.outcome.counts["commands"] += 1
        return reply if isinstance(reply, ReplyError) else plain(reply)

    def _lsn(self) -> int:
        return self.core.durable_lsn()

    # ---------------------------------------------------------------- what happens

    def _play(self) -> None:
        rng = self.rng
        for _ in range(STEPS if self.quiet else rng.randrange(8, STEPS)):
            acts = {
                self._set: 5,
                self._delete: 1,
                self._pause: 2,
                self._resume: 3,
                self._trigger: 3,
                self._backfill: 2,
                self._rerun: 2,
                self._mark: 2,
                self._pass: 12,
                self._work: 10,
                self._jump: 2,
                self._suspend: 1,
                self._save: 4,
                self._keep_log: 4,
            }
            if self.quiet:
                acts = {self._resume: 1, self._pass: 2, self._work: 4, self._save: 1}
            rng.choices(list(acts), list(acts.values()))[0]()
            self._saved()
        if self.ends == "stopped":
            self.log.sync()
            self.log.mark(clean=True)
        elif self.ends == "done":
            self._rest()

    def _set(self) -> None:
        rng, name = self.rng, self.rng.choice(NAMES)
        ups = [one for one in NAMES if one < name and one in self.oracle.known]
        after = tuple(rng.sample(ups, 1)) if ups and rng.random() < 0.35 else ()
        rule = CHILD if after and rng.random() < 0.7 else rng.choice(RULES).text
        if name == RELATIVE:
            rule, after = EVERY, ()
        self.marks += 1
        sent = Sent(
            name=name,
            mark=f"m{self.marks}",
            rule=rule,
            zone="UTC" if rule in {CHILD, EVERY} else rng.choice([*ZONES, self.zone, self.zone]),
            literal=rng.random() < 0.3,
            overlap=rng.choice(OVERLAPS),
            catch_up=rng.choice(["skip", "latest", "all"]),
            window_ms=rng.choice([0, 0, HOUR_MS, 3 * HOUR_MS]),
            most=rng.choice([1, 3, 8]),
            after=after,
            at_ms=self.now_ms(),
            jitter_ms=rng.choice(JITTERS),
        )
        words: list[str | int] = ["CRON", "SET", name, rule, "h", sent.mark, "TZ", sent.zone]
        words += ["OVERLAP", sent.overlap, "CATCHUP", sent.catch_up]
        words += ["WINDOW", sent.window_ms] if sent.window_ms else []
        words += ["MAX", sent.most] if sent.catch_up == "all" else []
        words += ["AFTER", 1, *after] if after else []
        words += ["JITTER", sent.jitter_ms] if sent.jitter_ms else []
        words += ["DATE", "exact", "DST", "literal" if sent.literal else "cron"]
        words += [
            "LEASE",
            LEASE_MS,
            "TIMEOUT",
            0,
            "RETRIES",
            1000,
            "LOST",
            1000,
            "BACKOFF",
            "fixed",
            1000,
        ]
        self.oracle.sent[sent.mark] = sent
        reply = self._change(name, *words)
        if not isinstance(reply, ReplyError):
            self.oracle.confirm_set(sent, self._lsn(), reply[2])
        self._read_all(name)

    def _change(self, name: str, *words: str | int) -> Any:
        """Send a command that changes a schedule: until it is answered it is in doubt."""
        asked = Asked(name)
        self.oracle.asked.append(asked)
        reply = self._ask(*words)
        asked.lsn = self._lsn()
        if isinstance(reply, ReplyError):
            self.oracle.asked.remove(asked)
            self.outcome.counts[f"refused {reply.code}"] += 1
        return reply

    def _name(self) -> str | None:
        return self.rng.choice(sorted(self.oracle.known)) if self.oracle.known else None

    def _delete(self) -> None:
        if name := self._name():
            reply = self._change(name, "CRON", "DEL", name)
            if not isinstance(reply, ReplyError):
                self.oracle.confirm_delete(name, self._lsn())

    def _pause(self) -> None:
        if name := self._name():
            reply = self._change(name, "CRON", "PAUSE", name)
            if not isinstance(reply, ReplyError):
                self.oracle.confirm_paused(name, True, self._lsn())
            self._read_all(name)

    def _resume(self) -> None:
        name = self._name()
        if name is None or not self.oracle.known[name].paused:
            return
        times = self.oracle.open_times()
        reply = self._change(name, "CRON", "RESUME", name)
        assert not isinstance(reply, ReplyError), reply
        self.oracle.confirm_paused(name, False, self._lsn())
        self._read_all(name)
        self._judge_missed({name: times[name]}, 0)

    def _trigger(self) -> None:
        if name := self._name():
            words = ("FORCE",) if self.rng.random() < 0.8 else ()
            reply = self._ask("CRON", "TRIGGER", name, *words)
            if isinstance(reply, str):
                self.oracle.promised[reply] = self._lsn()
                self.oracle.forced |= {reply} if words else set()
                self.outcome.counts["by hand"] += 1
            self._read_all(name)

    def _backfill(self) -> None:
        """Make runs for times that passed; a dry run says the same as the one in earnest."""
        name, rng = self._name(), self.rng
        if name is None:
            return
        to_ms = self.now_ms() - rng.choice([0, HOUR_MS])
        from_ms = to_ms - rng.choice([HOUR_MS, 3 * HOUR_MS])
        words: list[str | int] = ["CRON", "BACKFILL", name, from_ms, to_ms]
        words += ["REVERSE"] if rng.random() < 0.3 else []
        plan = self._ask(*words, "DRY")
        self.oracle.fills(name, from_ms, to_ms)
        runs = self._ask(*words, "ACTIVE", rng.choice([1, 3]))
        if isinstance(runs, ReplyError):
            self.outcome.counts[f"refused {runs.code}"] += 1
            return
        if runs != plan:
            raise ViolationError(f"backfill: {name} was to make {plan}, and makes {runs}")
        self.oracle.confirm_filled(name, runs, self.now_ms(), self._lsn())
        self.outcome.counts["filled"] += len(runs)
        self._read_all()

    def _fact(self) -> str | None:
        """Return the id of a run, or of a time that was dropped."""
        name = self._name()
        if name is None or not self.oracle.known[name].facts:
            return None
        ms = self.rng.choice(sorted(self.oracle.known[name].facts))
        return f"{name}@{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}Z"

    def _rerun(self) -> None:
        """Run a moment anew, and what waits for it."""
        if run := self._fact():
            name, _, label = run.partition("@")
            down = ("DOWNSTREAM",) if self.rng.random() < 0.4 else ()
            runs = self._ask("CRON", "RERUN", name, label, *down)
            if isinstance(runs, ReplyError):
                self.outcome.counts[f"refused {runs.code}"] += 1
            else:
                anew = [one for one in runs if "~" in one]
                self.oracle.promised |= dict.fromkeys(anew, self._lsn())
                self.outcome.counts["anew"] += len(anew)
            self._read_all()

    def _mark(self) -> None:
        """Say how a run ended, or one that was dropped."""
        if run := self._fact():
            succeeded = self.rng.random() < 0.6
            self.counts.clear()  # it moves none of them
            self.oracle.marks(run)
            reply = self._ask("CRON", "MARK", run, "succeeded" if succeeded else "failed")
            if isinstance(reply, ReplyError):
                self.outcome.counts[f"refused {reply.code}"] += 1
            else:
                verdict = "succeeded" if succeeded else "dead"
                self.oracle.verdicts[run] = self._lsn(), verdict
                self.outcome.counts["marked"] += 1
            self._read_all()

    def _pass(self) -> None:
        """Let time pass: the loop wakes up when something is due, or late."""
        rng = self.rng
        span_ms = rng.choice([1_000, MINUTE_MS, 20 * MINUTE_MS, HOUR_MS, 2 * HOUR_MS])
        before_ms, open_times = self.now_ms(), self.oracle.open_times()
        active = {name: known.active for name, known in self.oracle.known.items()}
        is_late = rng.random() < 0.3
        end_ms = self.boot_ms + span_ms
        while self.boot_ms < end_ms:
            step_ms = end_ms - self.boot_ms
            if not is_late:
                wakes = self.scheduling.scheduler.wakes()
                if wakes.wall_ms is not None:
                    step_ms = min(step_ms, max(1, wakes.wall_ms - self.wall_ms))
                if wakes.rel_ms is not None:
                    step_ms = min(step_ms, max(1, wakes.rel_ms - self.core.times().rel_ms))
            at_ms = self.boot_ms
            self._move(step_ms, step_ms, step_ms)
            end_ms -= step_ms - (self.boot_ms - at_ms)  # the world's end came nearer
            self.core.tick(self.clocks())
            self._settle()
        self._read_all()
        for name in self.oracle.known:
            if self._is_judged(name):
                times = [ms for ms in open_times[name] if before_ms < ms <= self.now_ms()]
                self.oracle.in_time(name, times, active[name])
                self.outcome.counts["in time"] += len(times)

    def _jump(self) -> None:
        """Somebody sets the wall clock; a schedule's times that it jumps over are missed."""
        ms = self.rng.choice([900, 5_000, HOUR_MS, 6 * HOUR_MS])
        if self.rng.random() < 0.4:
            self._shift(-ms, 0)
        else:
            self._shift(ms, 0)

    def _suspend(self) -> None:
        """The machine sleeps."""
        ms = self.rng.choice([2_000, HOUR_MS])
        self._shift(ms, ms)

    def _shift(self, wall_ms: int, boot_ms: int) -> None:
        before_ms, wall_before_ms = self.now_ms(), self.wall_ms
        times = self.oracle.open_times()
        self._move(wall_ms, boot_ms)
        self.core.tick(self.clocks())
        self._settle()
        self._read_all()
        if abs(self.wall_ms - wall_before_ms) > JUMP_MS:
            self._judge_missed(times, before_ms)

    # ---------------------------------------------------------------- workers

    def _work(self) -> None:
        """Lease, and end some of what is held."""
        now_ms = self.now_ms()
        jobs = self._ask("LEASE", "h", "COUNT", 50 if self.quiet else self.rng.choice([1, 5, 50]))
        if isinstance(jobs, ReplyError):
            return
        for job in jobs:
            receipt, job_id, run = job[0], job[1], job[11]
            self.oracle.granted(run[0], job_id, self._lsn(), now_ms)
            self.held[run[0]] = receipt
        for run in sorted(self.held):
            if self.quiet or self.rng.random() < 0.6:
                self._end(run, self.held.pop(run))
        self._read_all()

    def _end(self, run: str, receipt: str) -> None:
        luck = 0.0 if self.quiet else self.rng.random()
        if luck < 0.8:
            self.oracle.tried[run] = self._lsn()
            if self._ask("ACK", receipt) == ["OK"]:
                self.oracle.ends[run] = self._lsn()
                self.outcome.counts["runs"] += 1
        elif luck < 0.9:
            self._ask("FAIL", receipt, "IN", 1000)
        else:
            self._ask("FAIL", receipt, "DEAD")

    # ---------------------------------------------------------------- looking

    def _read_all(self, *names: str) -> None:
        """Read what the server says of schedules, of all by default."""
        for name in names or sorted(self.oracle.known):
            if name in self.oracle.known:
                self.oracle.read(self._read(name), self._lsn(), self.now_ms())

    def _read(self, name: str) -> Read:
        got = self._ask("CRON", "GET", name)
        if got is None:
            raise ViolationError(f"lost: {name} was confirmed, and is not there")
        fields = dict(zip(got[::2], got[1::2], strict=True))
        # Where no count has moved the runs are read now and then only: they are most of the work.
        counts = [fields[name] for name in COUNTS]
        if self.counts.get(name) != counts or self.rng.random() < 0.1:
            self.rows[name] = self._rows(name)
            self.counts[name] = counts
        return Read(
            name=name,
            mark=fields["payload"],
            paused=fields["state"] == "paused",
            next_ms=fields["next_ms"],
            due_ms=fields["due_ms"],
            rows=tuple(self.rows[name]),
        )

    def _rows(self, name: str) -> list[Row]:
        rows: list[Row] = []
        cursor = "0"
        while True:
            reply = self._ask("CRON", "RUNS", name, "COUNT", 100, "CURSOR", cursor)
            cursor = reply[0]
            rows += [self._row(row) for row in reply[1]]
            if cursor == "0":
                return rows

    @staticmethod
    def _row(row: list[object]) -> Row:
        fields = dict(zip(row[::2], row[1::2], strict=True))
        return Row(
            run=fields["run"],
            first_ms=fields["nominal_ms"],
            last_ms=fields["last_ms"],
            count=fields["count"],
            outcome=fields["outcome"],
            job=fields["job"],
            due_ms=fields["due_ms"],
            failures=fields["failures"],
        )

    # ---------------------------------------------------------------- the log

    def _keep_log(self) -> None:
        """What the keeper's thread does now and then."""
        self.log.prepare()
        self.log.sync()
        self.log.mark()

    def _save(self) -> None:
        """Begin a checkpoint."""
        if self.core.checkpoint_state().phase == CheckpointPhase.IDLE:
            self.core.checkpoint_start(
                self.log.checkpoints.temporary_path(),
                salt=self.rng.randrange(1 << 32),
                io=self.disk.io,
                threaded=False,
                slice_things=1 + self.rng.randrange(40),
            )
            self.saving = True

    def _saved(self) -> None:
        """Put a checkpoint in force that is whole."""
        if not self.saving:
            return
        state = self.core.checkpoint_state()
        if state.phase == CheckpointPhase.DONE:
            with suppress(WalError, OSError):
                self._publish(state)
        if state.phase in {CheckpointPhase.DONE, CheckpointPhase.FAILED}:
            self.core.checkpoint_abort()
            self.saving = False

    def _publish(self, state) -> None:
        self.log.sync()
        if self.log.stats().synced_lsn < state.end_lsn:
            return
        made = Made(
            start_lsn=state.start_lsn,
            end_lsn=state.end_lsn,
            size_bytes=state.size_bytes,
            digest=state.crc,
            rows=state.jobs,
        )
        keep = 1 + self.rng.randrange(2)
        self.log.checkpoints.publish(made, keep=keep, wall_ms=self.wall_ms)
        self.log.checkpoints.drop()
        self.outcome.counts["checkpoints"] += 1

    # ---------------------------------------------------------------- the end

    def _rest(self) -> None:
        """Nothing fails any more: everything that is due has to come to its end."""
        for name, known in sorted(self.oracle.known.items()):
            if known.paused:
                self._change(name, "CRON", "RESUME", name)
                self.oracle.confirm_paused(name, False, self._lsn())
        self.wall_ms = max(self.wall_ms, self.now_ms())  # a clock that was set back holds runs
        for _ in range(400):
            self._move(3_000, 3_000, 3_000)
            self.core.tick(self.clocks())
            self._settle()
            self._work()
            if not self.oracle_running():
                break
        else:
            raise ViolationError(f"stuck: runs do not end: {self.oracle_running()}")
        self.counts.clear()
        self._read_all()
        if unfilled := self.oracle.unfilled():
            raise ViolationError(f"forgotten: backfills promised {unfilled}")
        if broken := self.core.check():
            raise ViolationError(f"check: invariant {broken} at the end")

    def oracle_running(self) -> dict[str, int]:
        """Return how many runs of each schedule are there that may run."""
        return {name: known.running for name, known in self.oracle.known.items() if known.running}


def run_seed(seed: int) -> Outcome:
    """Return the outcome of a seed."""
    return World(seed).run()


if __name__ == "__main__":
    for outcome in map(run_seed, map(int, sys.argv[1:])):
        print(outcome)
