"""Jobs as PROTOCOL.md and ARCHITECTURE.md describe them, in plain Python.

Two kinds of methods. Those named after commands return the one right answer. Those named `check_`
and `saw_` take what the server chose where the protocol leaves it a choice (which of two equal
jobs, the draw of an exponential backoff, whether the sweep has been by), hold it against the rules,
and go on from there.

Times are ms. `rel` is the axis of relative times: the boot clock's pace, never stepped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import takewhile

from sortedcontainers import SortedKeyList

RETRIES, LOST, LEASE_MS, TIMEOUT_MS = 3, 3, 60_000, 300_000
BACKOFF = ("exp", 15_000, 3_600_000)
GRACE_MIN_MS = 1000
KEPT_ENDED_MS = 3_600_000
KEPT_ONCE_MS = 600_000
KEPT_DEAD_MS = 90 * 86_400_000
SWEEP_LATE_MAX_MS = 10_000
LEASE_BYTES_MAX = 256 * 1024
DUE_MS_END = 1 << 48

LIVE = ("scheduled", "ready", "leased")
Receipt = tuple[int, int, int]  # id, term, lsn


class Fence(Enum):
    """What a job's newest receipt is still good for."""

    HELD = "held"  # the lease runs
    OPEN = "open"  # lost or timed out: ACK and DONE count
    FAILED = "failed"
    RELEASED = "released"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """A time as a client wrote it: an offset from now, or a moment of the wall clock."""

    ms: int
    relative: bool

    def text(self) -> str:
        return f"+{self.ms}" if self.relative else str(self.ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a job lives under; None in an option = not given."""

    retries: int | None = None
    lost: int | None = None
    backoff: tuple[str, int, int] | None = None
    lease_ms: int | None = None
    timeout_ms: int | None = None

    def over(self, other: "Policy") -> "Policy":
        """Return other with what self gives put over it."""
        given = {name: getattr(self, name) for name in Policy.__slots__}
        return replace(other, **{name: v for name, v in given.items() if v is not None})


SERVER = Policy(
    retries=RETRIES, lost=LOST, backoff=BACKOFF, lease_ms=LEASE_MS, timeout_ms=TIMEOUT_MS
)


@dataclass(slots=True, kw_only=True)
class Handler:
    """A queue.

    Attributes:
        served: number of the last grant, 0 = none since the start, None = not known any more.
    """

    name: bytes
    policy: Policy = SERVER
    given: frozenset[str] = frozenset()
    paused: bool = False
    concurrency: int = 0
    leased: int = 0
    served: int | None = 0
    ready: "SortedKeyList[Job, tuple[int, int, int]]" = field(
        default_factory=lambda: SortedKeyList(key=lambda job: (job.priority, job.due_ms, job.id))
    )


@dataclass(slots=True, kw_only=True)
class Job:
    """A job that is not over, or dead."""

    id: int
    handler: bytes
    payload: bytes
    key: bytes
    meta: bytes
    group: bytes
    priority: int
    policy: Policy
    due_ms: int
    rel: bool
    expire: tuple[int, bool] | None
    created_ms: int
    state: str = "scheduled"
    attempt: int = 0
    failures: int = 0
    lost: int = 0
    marked: bool = False
    receipt: Receipt | None = None
    fence: Fence = Fence.CLOSED
    lease_ms: int = 0
    lease_end_ms: int = 0
    timeout_end_ms: int | None = None
    unheard: bool = False
    worker: bytes = b""
    reason: str = ""
    ended_ms: int = 0
    expired_since_ms: int | None = None  # rel, at a tick: ready, and its EXPIRE has passed

    def over_ms(self) -> int:
        """Return when a lease without another EXTEND is lost."""
        return self.lease_end_ms + max(GRACE_MIN_MS, self.lease_ms // 10)

    def moment_ms(self) -> int:
        """Return when something of a lease is over first."""
        over = self.over_ms()
        return over if self.timeout_end_ms is None else min(over, self.timeout_end_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What is remembered of a job that is over."""

    id: int
    key: bytes
    state: str
    verb: str
    receipt: Receipt | None
    rel_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    """A SCHEDULE."""

    handler: bytes
    when: When
    payload: bytes = b""
    key: bytes = b""
    window_ms: int = 0
    ondup: str = "keep"
    once: bytes = b""
    priority: int = 128
    policy: Policy = Policy()
    expire: When | None = None
    meta: bytes = b""
    group: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A LEASE."""

    names: tuple[bytes, ...]
    count: int = 1
    for_ms: int = 0
    worker: bytes = b""

    def takes(self, handler: bytes) -> bool:
        return any(
            handler.startswith(name[:-1]) if name.endswith(b"*") else handler == name
            for name in self.names
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One job of a LEASE reply, as it came."""

    receipt: Receipt
    id: int
    key: bytes | None
    handler: bytes
    attempt: int
    due_ms: int
    lease_ms: int
    payload: bytes
    timeout_ms: int
    meta: bytes | None


class Model:
    """All jobs, and the clocks."""

    def __init__(self, *, wall_ms: int, boot_ms: int) -> None:
        self.wall_ms, self.boot_ms, self.mono_ms = wall_ms, boot_ms, boot_ms
        self.rel_ms = self.logical_ms = self.logged_logical_ms = wall_ms
        self.rel_minus_boot_ms = wall_ms - boot_ms
        self.frame_wall_ms, self.frame_rel_ms = wall_ms, wall_ms
        self.jobs: dict[int, Job] = {}
        self.keys: dict[bytes, int] = {}
        self.handlers: dict[bytes, Handler] = {}
        self.waiting_wall: SortedKeyList[Job, tuple[int, int]] = SortedKeyList(key=_by_due)
        self.waiting_rel: SortedKeyList[Job, tuple[int, int]] = SortedKeyList(key=_by_due)
        self.leases: SortedKeyList[Job, tuple[int, int]] = SortedKeyList(key=_by_moment)
        self.dead: list[Job] = []
        self.ended: list[Ended] = []
        self.once: dict[bytes, tuple[int, str, int]] = {}
        self.newest: tuple[int, int] = (0, 0)  # term and lsn of the last grant
        self.turn = 0
        self.disturbed: set[bytes] = set()  # handlers of which a job was found to have expired
        self.made: set[int] = set()  # every id ever given out
        self.over: dict[int, str] = {}  # every id that reached a terminal state, and which

    # ---------------------------------------------------------------- records and time

    def log(self) -> None:
        """Something was logged just now."""
        self.frame_wall_ms, self.frame_rel_ms = self.wall_ms, self.rel_ms
        self.logged_logical_ms = max(self.logged_logical_ms, self.wall_ms)

    def end_frame(self) -> None:
        """What was logged is a frame: its time ages what is remembered, behind its last record."""
        old = self.frame_rel_ms - KEPT_ENDED_MS
        while self.ended and self.ended[0].rel_ms <= old:
            self.ended.pop(0)
        self.disturbed.clear()

    def to_wall(self, ms: int, *, rel: bool) -> int:
        return ms - self.rel_ms + self.wall_ms if rel else ms

    def resolve(self, when: When) -> tuple[int, bool]:
        ms = self.rel_ms + when.ms if when.relative else when.ms
        return min(ms, DUE_MS_END - 1), when.relative

    def _reached(self, ms: int, *, rel: bool) -> bool:
        return ms <= (self.rel_ms if rel else self.wall_ms)

    def is_expired(self, job: Job) -> bool:
        return job.expire is not None and self._reached(job.expire[0], rel=job.expire[1])

    def tick(self, *, wall_ms: int, boot_ms: int, mono_ms: int) -> list[tuple[Job, int]]:
        """Move the clocks; return jobs whose new due time the server drew, and k: see saw_due."""
        boot_passed = boot_ms - self.boot_ms
        suspended = boot_passed - (mono_ms - self.mono_ms) > 1000
        stepped = abs(wall_ms - self.wall_ms - boot_passed) > 1000
        self.wall_ms, self.boot_ms, self.mono_ms = wall_ms, boot_ms, mono_ms
        self.rel_ms = max(self.rel_ms, boot_ms + self.rel_minus_boot_ms)
        if suspended:
            self._refresh_leases()
        self.logical_ms = max(self.logical_ms, wall_ms)
        if stepped:
            self.log()
        if self.wall_ms >= self.logical_ms:
            self._fire(self.waiting_wall, self.logical_ms)
        self._fire(self.waiting_rel, self.rel_ms)
        return [(job, k) for job in self._due_leases() if (k := self._lease_over(job))]

    def _fire(self, waiting: "SortedKeyList[Job, tuple[int, int]]", now_ms: int) -> None:
        while waiting and waiting[0].due_ms <= now_ms:
            job = waiting.pop(0)
            self._ready(job)

    def _ready(self, job: Job) -> None:
        job.state = "ready"
        self.handlers[job.handler].ready.add(job)

    def check_sweep(self) -> None:
        """A ready job that has expired is found within 10 s."""
        for job in [job for handler in self.handlers.values() for job in handler.ready]:
            if not self.is_expired(job):
                job.expired_since_ms = None
            elif job.expired_since_ms is None:
                job.expired_since_ms = self.rel_ms
            late = self.rel_ms - (job.expired_since_ms or self.rel_ms)
            assert late <= SWEEP_LATE_MAX_MS, f"job {job.id}: the sweep is {late} ms late"

    def _refresh_leases(self) -> None:
        leased = list(self.leases)
        self.leases.clear()
        for job in leased:
            self._fresh_term(job)
            self.leases.add(job)

    def _fresh_term(self, job: Job) -> None:
        timeout_ms = job.policy.timeout_ms
        job.lease_end_ms = self.rel_ms + job.lease_ms
        job.timeout_end_ms = self.rel_ms + timeout_ms if timeout_ms else None

    def _due_leases(self) -> list[Job]:
        return list(takewhile(lambda job: job.moment_ms() <= self.rel_ms, self.leases))

    def _lease_over(self, job: Job) -> int:
        """A lease or its run is out of time; k > 0: the server draws the delay of retry k."""
        timed_out = job.timeout_end_ms is not None and job.timeout_end_ms <= job.over_ms()
        self.log()
        if job.marked:
            self._end(job, "cancelled", "")
            return 0
        if not timed_out and job.unheard:
            self._back(job, job.due_ms, rel=job.rel, fence=Fence.OPEN)
            return 0
        if timed_out:
            return self._fail(job, "timed_out", Fence.OPEN)
        return self._lose(job)

    def accept_clock(self) -> None:
        self.log()
        self.logical_ms = self.logged_logical_ms = self.wall_ms

    def restart(self, *, wall_ms: int, boot_ms: int, same_boot: bool) -> None:
        """The process died and was started again; everything durable is there."""
        if same_boot:
            rel_ms = max(self.frame_rel_ms, boot_ms + self.rel_minus_boot_ms)
        else:
            rel_ms = self.frame_rel_ms + max(0, wall_ms - self.frame_wall_ms)
        self.wall_ms, self.boot_ms, self.mono_ms = wall_ms, boot_ms, boot_ms
        self.rel_ms, self.rel_minus_boot_ms = rel_ms, rel_ms - boot_ms
        self.logical_ms = max(self.logged_logical_ms, wall_ms)
        for handler in self.handlers.values():
            handler.ready.clear()
            handler.served = 0
        self.waiting_wall.clear()
        self.waiting_rel.clear()
        self.turn = 0
        self._refresh_leases()
        for job in self.jobs.values():
            job.expired_since_ms = None
            job.unheard = job.state == "leased"
            if job.state in ("scheduled", "ready"):
                self._place(job)

    # ---------------------------------------------------------------- where a job stands

    def _place(self, job: Job) -> None:
        job.state = "scheduled"
        if self._reached(job.due_ms, rel=job.rel):
            self._ready(job)
        else:
            (self.waiting_rel if job.rel else self.waiting_wall).add(job)

    def _unplace(self, job: Job) -> None:
        if job.state == "scheduled":
            (self.waiting_rel if job.rel else self.waiting_wall).remove(job)
        elif job.state == "ready":
            self.handlers[job.handler].ready.remove(job)
            job.expired_since_ms = None
        elif job.state == "leased":
            self.leases.remove(job)
            self.handlers[job.handler].leased -= 1
        elif job.state == "dead":
            self.dead.remove(job)

    def _back(self, job: Job, due_ms: int, *, rel: bool, fence: Fence) -> None:
        """A leased job is offered again."""
        self._unplace(job)
        job.due_ms, job.rel, job.fence, job.marked = due_ms, rel, fence, False
        self._place(job)

    def _remember(self, job: Job, state: str, verb: str) -> None:
        self.ended.append(
            Ended(
                id=job.id,
                key=job.key,
                state=state,
                verb=verb,
                receipt=job.receipt,
                rel_ms=self.rel_ms,
            )
        )

    def _end(self, job: Job, state: str, verb: str) -> None:
        self.make_room()
        self.log()
        assert job.id not in self.over, f"job {job.id} ended as {self.over[job.id]} and {state}"
        self.over[job.id] = state
        self._remember(job, state, verb)
        self._unplace(job)
        if self.keys.get(job.key) == job.id:
            del self.keys[job.key]
        del self.jobs[job.id]

    def _die(self, job: Job, reason: str, fence: Fence) -> None:
        self.make_room()
        self.log()
        self._unplace(job)
        job.state, job.reason, job.ended_ms, job.marked = "dead", reason, self.wall_ms, False
        job.fence = fence if fence is Fence.FAILED else Fence.CLOSED
        self.dead.append(job)
        if job.key:
            del self.keys[job.key]
            self._remember(job, "dead", "")

    def _drop_dead(self, job: Job) -> None:
        self.log()
        self._unplace(job)
        self.over[job.id] = "purged"
        del self.jobs[job.id]

    def make_room(self) -> None:
        """The dead list keeps a job for 90 days."""
        while self.dead and self.dead[0].ended_ms + KEPT_DEAD_MS <= self.wall_ms:
            self._drop_dead(self.dead[0])

    # ---------------------------------------------------------------- retries

    def delay_range(self, policy: Policy, k: int) -> tuple[int, int]:
        """Return the least and the longest delay before retry k, k from 1."""
        assert policy.backoff
        kind, base, most = policy.backoff
        if kind == "fixed":
            return min(base, most), min(base, most)
        if kind == "linear":
            return min(base * k, most), min(base * k, most)
        return 0, min(base << (k - 1), most)

    def _retry(self, job: Job, k: int, fence: Fence) -> int:
        """Offer it again after backoff k (0 = none); return k if saw_due has to tell the draw."""
        least, most = self.delay_range(job.policy, k) if k else (0, 0)
        self._back(job, self.rel_ms + most, rel=True, fence=fence)
        return k if least != most else 0

    def _fail(self, job: Job, reason: str, fence: Fence) -> int:
        assert job.policy.retries is not None
        job.failures += 1
        if job.failures > job.policy.retries:
            self._die(job, reason, fence)
            return 0
        return self._retry(job, job.failures, fence)

    def _lose(self, job: Job) -> int:
        assert job.policy.lost is not None
        job.lost += 1
        if job.lost > job.policy.lost:
            self._die(job, "worker_lost", Fence.OPEN)
            return 0
        return self._retry(job, job.lost - 1, Fence.OPEN)

    def saw_due(self, job: Job, due_wall_ms: int, k: int) -> None:
        """The server drew this due time for retry k: is it one that it may draw?"""
        due_ms = due_wall_ms - self.wall_ms + self.rel_ms
        least, most = self.delay_range(job.policy, k)
        assert least <= due_ms - self.rel_ms <= most, f"job {job.id}: retry {k} outside its range"
        self._unplace(job)
        job.due_ms = due_ms
        self._place(job)

    # ---------------------------------------------------------------- looking things up

    def ended_of(self, job_id: int) -> Ended | None:
        return next((e for e in reversed(self.ended) if e.id == job_id), None)

    def id_of_key(self, key: bytes) -> int:
        """Return the live job that the key names, else the newest that ended, else 0.

        A dead job ended too, and is there for 90 days: also when its end is forgotten.
        """
        if key in self.keys:
            return self.keys[key]
        ended = (e.id for e in reversed(self.ended) if e.key == key)
        dead = (job.id for job in reversed(self.dead) if job.key == key)
        return next(ended, 0) or next(dead, 0)

    def state_of(self, job_id: int) -> str:
        if job_id in self.jobs:
            return self.jobs[job_id].state
        ended = self.ended_of(job_id)
        return ended.state if ended else "unknown"

    def handler(self, name: bytes) -> Handler:
        if name not in self.handlers:
            self.log()
            self.handlers[name] = Handler(name=name)
        return self.handlers[name]

    # ---------------------------------------------------------------- SCHEDULE

    def schedule(self, new: New) -> tuple[str, int]:
        """Return the word and the id it is about; id 0 = a fresh one: saw_created."""
        if new.once in self.once:
            job_id, word, rel_ms = self.once[new.once]
            if rel_ms + KEPT_ONCE_MS > self.rel_ms:
                return word, job_id
        self.make_room()
        if new.key:
            word, job_id = self._by_key(new)
            if word in ("existing", "ended"):
                self._remember_once(new, job_id, word)
            if word not in ("replaced", "created"):
                return word, job_id
            if word == "replaced":
                return word, self._replace(new, job_id)
        return "created", 0

    def _by_key(self, new: New) -> tuple[str, int]:
        if new.key in self.keys:
            job = self.jobs[self.keys[new.key]]
            if new.ondup == "error":
                return "EXISTS", job.id
            if new.ondup == "keep":
                return "existing", job.id
            return ("CONFLICT" if job.state == "leased" else "replaced"), job.id
        ended = next((e for e in reversed(self.ended) if e.key == new.key), None)
        if not new.window_ms or not ended or self.rel_ms - ended.rel_ms >= new.window_ms:
            return "created", 0
        return ("EXISTS" if new.ondup == "error" else "ended"), ended.id

    def _remember_once(self, new: New, job_id: int, word: str) -> None:
        if new.once:
            self.log()
            self.once[new.once] = (job_id, word, self.rel_ms)

    def _fresh(self, new: New, job_id: int) -> Job:
        due_ms, rel = self.resolve(new.when)
        return Job(
            id=job_id,
            handler=new.handler,
            payload=new.payload,
            key=new.key,
            meta=new.meta,
            group=new.group,
            priority=new.priority,
            policy=new.policy.over(self.handler(new.handler).policy),
            due_ms=due_ms,
            rel=rel,
            expire=self.resolve(new.expire) if new.expire else None,
            created_ms=self.wall_ms,
        )

    def _replace(self, new: New, job_id: int) -> int:
        old = self.jobs[job_id]
        job = self._fresh(new, job_id)
        self.log()
        self._unplace(old)
        job.attempt, job.receipt = old.attempt, old.receipt
        self.jobs[job_id] = job
        self._place(job)
        self._remember_once(new, job_id, "replaced")
        return job_id

    def saw_created(self, new: New, job_id: int) -> None:
        assert 0 < job_id < 1 << 63
        assert job_id not in self.made, f"id {job_id} was given out twice"
        self.made.add(job_id)
        job = self._fresh(new, job_id)
        self.log()
        self.jobs[job_id] = job
        if new.key:
            self.keys[new.key] = job_id
        self._remember_once(new, job_id, "created")
        self._place(job)

    # ---------------------------------------------------------------- LEASE

    def _has_room(self, handler: Handler) -> bool:
        full = 0 < handler.concurrency <= handler.leased
        return not handler.paused and not full

    def candidates(self, ask: Ask) -> Iterator[Job]:
        """Yield a job of each handler that could be granted: its first that has not expired."""
        for handler in self.handlers.values():
            if not ask.takes(handler.name) or not self._has_room(handler):
                continue
            job = next((job for job in handler.ready if not self.is_expired(job)), None)
            if job:
                yield job

    def has_expired(self, ask: Ask) -> bool:
        """Return whether the order of grants may be disturbed by expired jobs."""
        named = (handler for handler in self.handlers.values() if ask.takes(handler.name))
        return any(self.is_expired(job) for handler in named for job in handler.ready)

    def check_grant(self, ask: Ask, grant: Grant, *, first: bool) -> None:
        """Is this a job that may be handed out next? Then it is leased."""
        job = self.jobs.get(grant.id)
        assert job, f"job {grant.id} was granted and is over"
        assert job.state == "ready", f"job {grant.id} was granted in state {job.state}"
        assert self._reached(job.due_ms, rel=job.rel) or not job.rel, f"{grant.id} leased early"
        firsts = {first.handler: first for first in self.candidates(ask)}
        assert job.handler in firsts, f"handler {job.handler!r} must not be served"
        best = firsts[job.handler]
        assert (job.priority, job.due_ms) == (best.priority, best.due_ms), "not the first in order"
        assert not self.is_expired(job)
        if first and not self.has_expired(ask):
            turns = [self.handlers[name].served for name in firsts]
            if None not in turns:
                served = self.handlers[job.handler].served
                assert served == min(t for t in turns if t is not None), "not the longest unserved"
        self._lease(job, ask, grant)

    def _lease(self, job: Job, ask: Ask, grant: Grant) -> None:
        assert grant.receipt[0] == grant.id
        assert grant.receipt[1:] > self.newest, "fences must rise"
        self.newest = grant.receipt[1:]
        lease_ms = ask.for_ms or job.policy.lease_ms
        assert lease_ms is not None
        expected = Grant(
            receipt=grant.receipt,
            id=job.id,
            key=job.key or None,
            handler=job.handler,
            attempt=job.attempt + 1,
            due_ms=self.to_wall(job.due_ms, rel=job.rel),
            lease_ms=lease_ms,
            payload=job.payload,
            timeout_ms=job.policy.timeout_ms or 0,
            meta=job.meta or None,
        )
        assert grant == expected
        self.log()
        self._unplace(job)
        handler = self.handlers[job.handler]
        self.turn += 1
        # A job that had expired takes a turn too, before the grants or behind them.
        handler.served = None if job.handler in self.disturbed else self.turn
        handler.leased += 1
        job.state, job.attempt, job.receipt = "leased", job.attempt + 1, grant.receipt
        job.fence, job.lease_ms, job.unheard, job.worker = Fence.HELD, lease_ms, False, ask.worker
        self._fresh_term(job)
        self.leases.add(job)

    def check_leased(self, ask: Ask, grants: Sequence[Grant]) -> None:
        """Is this the whole answer that the call must get now?"""
        assert len(grants) <= ask.count
        total = 0
        for grant in sorted(grants, key=lambda grant: grant.receipt[1:]):
            assert total == 0 or total + len(grant.payload) <= LEASE_BYTES_MAX
            self.check_grant(ask, grant, first=total == 0 and grant is grants[0])
            total += len(grant.payload)
        if len(grants) == ask.count:
            return
        left = list(self.candidates(ask))
        full = total and any(total + len(job.payload) > LEASE_BYTES_MAX for job in left)
        assert not left or full or total >= LEASE_BYTES_MAX, "work was left lying"
        for job in left:  # one of them was looked at last and did not fit
            self.handlers[job.handler].served = None

    def saw_expired(self, job: Job) -> None:
        """The server found that a ready job had expired; may it?"""
        assert job.state == "ready", f"job {job.id} expired in state {job.state}"
        assert self.is_expired(job), f"job {job.id} expired too early"
        self.handlers[job.handler].served = None
        self.disturbed.add(job.handler)
        self._end(job, "expired", "")

    # ---------------------------------------------------------------- receipts

    def _spent(self, receipt: Receipt, verb: str) -> str:
        """Return the answer to a verb on a receipt that is good for nothing now."""
        ended = self.ended_of(receipt[0])
        if not ended:
            return "UNKNOWN"
        if ended.receipt != receipt:
            return "STALE"
        acks = ("ACK", "DONE")
        same = ended.verb in acks if verb in acks else ended.verb == verb != ""
        return "ALREADY" if same else "STALE"

    def _holder(self, receipt: Receipt, verb: str) -> Job | str:
        job = self.jobs.get(receipt[0])
        if not job:
            return self._spent(receipt, verb)
        if job.receipt != receipt:
            return "STALE"
        if job.fence is Fence.HELD or (job.fence is Fence.OPEN and verb in ("ACK", "DONE")):
            return job
        spent = {Fence.FAILED: "FAIL", Fence.RELEASED: "RELEASE"}.get(job.fence)
        return "ALREADY" if spent == verb else "STALE"

    def ack(self, receipt: Receipt, verb: str = "ACK") -> str:
        job = self._holder(receipt, verb)
        if isinstance(job, str):
            return job
        self._end(job, "succeeded", verb)
        return "OK"

    def fail(self, receipt: Receipt, *, in_ms: int | None, dead: bool) -> str | Job:
        """Return the answer, or the job: RETRY, and saw_due has to tell what was drawn."""
        job = self._holder(receipt, "FAIL")
        if isinstance(job, str):
            return job
        if job.marked:
            self._end(job, "cancelled", "FAIL")
            return "CANCELLED"
        self.log()
        if dead:
            job.failures += 1
            self._die(job, "rejected", Fence.FAILED)
            return "DEAD"
        drawn = self._fail(job, "failed", Fence.FAILED)
        if job.state == "dead":
            return "DEAD"
        if in_ms is not None:
            self._unplace(job)
            job.due_ms = min(self.rel_ms + in_ms, DUE_MS_END - 1)
            self._place(job)
            drawn = 0
        return job if drawn else f"RETRY {self.to_wall(job.due_ms, rel=True)}"

    def release(self, receipt: Receipt, in_ms: int | None) -> str:
        job = self._holder(receipt, "RELEASE")
        if isinstance(job, str):
            return job
        if job.marked:
            self._end(job, "cancelled", "RELEASE")
            return "CANCELLED"
        self.log()
        due_ms, rel = (job.due_ms, job.rel) if in_ms is None else (self.rel_ms + in_ms, True)
        self._back(job, due_ms, rel=rel, fence=Fence.RELEASED)
        return "OK"

    def extend(self, receipt: Receipt, for_ms: int) -> str | int:
        job = self._holder(receipt, "")
        if isinstance(job, str):
            return job
        if job.marked:
            return "CANCELLED"
        lease_ms = for_ms or job.lease_ms
        self.leases.remove(job)
        if lease_ms > job.lease_ms:
            self.log()
            job.lease_ms = lease_ms
        job.lease_end_ms = self.rel_ms + lease_ms
        job.unheard = False
        self.leases.add(job)
        return lease_ms

    def unsent(self, receipt: Receipt) -> None:
        """The reply of this grant never left wholly and its connection is gone."""
        job = self.jobs.get(receipt[0])
        if not job or job.state != "leased" or job.receipt != receipt:
            return
        self.log()
        if job.marked:
            self._end(job, "cancelled", "")
        else:
            self._back(job, job.due_ms, rel=job.rel, fence=Fence.CLOSED)

    def unbound(self, receipt: Receipt) -> list[tuple[Job, int]]:
        """The connection that this lease was bound to is gone; returns draws as tick does."""
        job = self.jobs.get(receipt[0])
        if not job or job.state != "leased" or job.receipt != receipt:
            return []
        self.log()
        if job.marked:
            self._end(job, "cancelled", "")
            return []
        k = self._lose(job)
        return [(job, k)] if k else []

    # ---------------------------------------------------------------- verbs on jobs

    def cancel(self, job_id: int) -> str:
        job = self.jobs.get(job_id)
        if not job or job.state == "dead":
            return "ENDED" if job or self.ended_of(job_id) else "UNKNOWN"
        if job.state == "leased":
            if not job.marked:
                self.log()
            job.marked = True
            return "MARKED"
        self._end(job, "cancelled", "")
        return "CANCELLED"

    def reschedule(self, job_id: int, when: When) -> str:
        job = self.jobs.get(job_id)
        if not job:
            return "CONFLICT" if self.ended_of(job_id) else "UNKNOWN"
        if job.state in ("leased", "dead"):
            return "CONFLICT"
        self.log()
        self._unplace(job)
        job.due_ms, job.rel = self.resolve(when)
        self._place(job)
        return "OK"

    def requeue(self, job_id: int) -> str:
        job = self.jobs.get(job_id)
        if not job:
            return "CONFLICT" if self.ended_of(job_id) else "UNKNOWN"
        if job.state != "dead" or (job.key and job.key in self.keys):
            return "CONFLICT"
        self.log()
        self._unplace(job)
        job.failures = job.lost = 0
        job.reason, job.ended_ms = "", 0
        if job.key:
            self.keys[job.key] = job_id
        job.due_ms, job.rel = self.rel_ms, True
        self._place(job)
        return "OK"

    def purge(self, job_id: int) -> str:
        job = self.jobs.get(job_id)
        if not job:
            return "CONFLICT" if self.ended_of(job_id) else "UNKNOWN"
        if job.state != "dead":
            return "CONFLICT"
        self._drop_dead(job)
        return "OK"

    # ---------------------------------------------------------------- settings

    def set_handler(
        self,
        name: bytes,
        *,
        paused: bool | None = None,
        concurrency: int | None = None,
        policy: Policy = Policy(),  # frozen
    ) -> None:
        handlers = list(self.handlers.values()) if name == b"*" else [self.handler(name)]
        given = {name for name in Policy.__slots__ if getattr(policy, name) is not None}
        for handler in handlers:
            before = replace(handler)
            handler.policy, handler.given = policy.over(handler.policy), handler.given | given
            handler.paused = handler.paused if paused is None else paused
            handler.concurrency = handler.concurrency if concurrency is None else concurrency
            if before != handler:
                self.log()

    # ---------------------------------------------------------------- figures

    def counts(self) -> dict[str, int]:
        states = dict.fromkeys(("scheduled", "ready", "leased", "dead"), 0)
        for job in self.jobs.values():
            states[job.state] += 1
        return states

    def check(self) -> None:
        """Every job stands in exactly one place, and every id given out is somewhere."""
        places = [
            *(job.id for handler in self.handlers.values() for job in handler.ready),
            *(job.id for job in self.waiting_wall),
            *(job.id for job in self.waiting_rel),
            *(job.id for job in self.leases),
            *(job.id for job in self.dead),
        ]
        assert sorted(places) == sorted(self.jobs)
        assert self.made == self.jobs.keys() | self.over.keys()
        assert not self.jobs.keys() & self.over.keys()


def _by_due(job: Job) -> tuple[int, int]:
    return job.due_ms, job.id


def _by_moment(job: Job) -> tuple[int, int]:
    return job.moment_ms(), job.id
