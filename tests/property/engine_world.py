"""The engine behind fed connections and the model beside it: each call goes to both."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from tests.property.engine_model import Ask, Grant, Job, Model, New, Policy, Receipt, When
from wheel.engine.core import Commit, Core, CoreOptions
from wheel.engine.facts import Clocks
from wheel.wire import NotReady, Reply, ReplyError, ReplyReader, encode_command

WALL_MS = 1_800_000_000_000
BOOT_MS = 5_000_000
CHECKED_ROWS = 64  # up to so many rows every invariant is walked after each step
CHECKED_STEPS = 64  # above that, at every so-manieth step


def shown(reply: Reply) -> object:
    """Return a reply as the model says it: an error is its code."""
    if isinstance(reply, ReplyError):
        return reply.code
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, list):
        return [shown(item) for item in reply]
    return reply


def receipt_text(receipt: Receipt) -> str:
    return ".".join(map(str, receipt))


def policy_words(policy: Policy) -> list[str | int]:
    words: list[str | int] = []
    for word, value in (
        ("RETRIES", policy.retries),
        ("LOST", policy.lost),
        ("LEASE", policy.lease_ms),
        ("TIMEOUT", policy.timeout_ms),
    ):
        words += [] if value is None else [word, value]
    return words + (["BACKOFF", *policy.backoff] if policy.backoff else [])


def schedule_words(new: New) -> list[bytes | str | int]:
    words: list[bytes | str | int] = ["SCHEDULE", new.handler, new.when.text(), new.payload]
    if new.key:
        words += ["KEY", new.key, "ONDUP", new.ondup, "WINDOW", new.window_ms]
    if new.once:
        words += ["ONCE", new.once]
    if new.meta:
        words += ["META", new.meta]
    if new.group:
        words += ["GROUP", new.group]
    if new.expire:
        words += ["EXPIRE", new.expire.text()]
    if new.priority != 128:
        words += ["PRIORITY", new.priority]
    return words + policy_words(new.policy)


def lease_words(ask: Ask, wait_ms: int, *, bound: bool) -> list[bytes | str | int]:
    words: list[bytes | str | int] = ["LEASE", b",".join(ask.names), "COUNT", ask.count]
    words += ["FOR", ask.for_ms] if ask.for_ms else []
    words += ["WORKER", ask.worker] if ask.worker else []
    words += ["WAIT", wait_ms] if wait_ms else []
    return words + (["BOUND"] if bound else [])


def grant_of(item: Reply) -> Grant:
    assert isinstance(item, list)
    assert item[10] is None
    assert item[11] is None
    receipt, job_id = cast("bytes", item[0]), cast("bytes", item[1])
    first, term, lsn = receipt.split(b".")
    return Grant(
        receipt=(int(first), int(term), int(lsn)),
        id=int(job_id),
        key=cast("bytes | None", item[2]),
        handler=cast("bytes", item[3]),
        attempt=cast("int", item[4]),
        due_ms=cast("int", item[5]),
        lease_ms=cast("int", item[6]),
        payload=cast("bytes", item[7]),
        timeout_ms=cast("int", item[8]),
        meta=cast("bytes | None", item[9]),
    )


@dataclass(slots=True, kw_only=True)
class Wait:
    """A LEASE that waits."""

    ask: Ask
    until_ms: int
    bound: bool


@dataclass(slots=True, kw_only=True)
class Conn:
    """A fed connection."""

    handle: int
    wait: Wait | None = None
    bound: list[Receipt] = field(default_factory=list)


class World:
    """One engine over all its lives, and the model.

    Attributes:
        frames: what was made durable, each with the term that it was written in.
        receipts: every receipt that was ever handed out.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.options = CoreOptions(
            commit=Commit.DRIVEN, sockets=False, hand_clock=True, jobs_max=4096, seed=seed
        )
        self.frames: list[tuple[int, bytes]] = []
        self.receipts: list[Receipt] = []
        self.term = 1
        self.steps = 0
        self.model = Model(wall_ms=WALL_MS, boot_ms=BOOT_MS)
        self.core = Core(self.options)
        self._start()

    def close(self) -> None:
        self.core.close()

    def _clocks(self) -> Clocks:
        model = self.model
        return Clocks(wall_ms=model.wall_ms, boot_ms=model.boot_ms, mono_ms=model.mono_ms)

    def _start(self) -> None:
        self.core.start(term=self.term, rel_ms=self.model.rel_ms, clocks=self._clocks())
        self.conns = [Conn(handle=self.core.fed_open(f"c{i}")) for i in range(3)]
        self.probe = Conn(handle=self.core.fed_open("probe"))
        self._tick()

    # ---------------------------------------------------------------- bytes

    def settle(self) -> None:
        self.core.commit()
        while batch := self.core.take_batch():
            self.frames.append((self.term, batch.frame))
            self.core.batch_durable(batch.lsn)

    def take(self, conn: Conn, limit: int | None = None) -> list[Reply]:
        """Return the replies that may leave; the transport takes limit bytes of them."""
        data = self.core.fed_output(conn.handle).data
        self.core.fed_taken(conn.handle, len(data) if limit is None else min(limit, len(data)))
        self.core.commit()
        reader = ReplyReader()
        reader.feed(data)
        replies: list[Reply] = []
        while (reply := reader.gets()) is not NotReady.NOT_READY:
            replies.append(reply)
        return replies

    def ask(self, conn: Conn, *words: bytes | str | int) -> Reply:
        self.core.fed_input(conn.handle, encode_command(words))
        self.settle()
        [reply] = self.take(conn)
        return reply

    def free(self, index: int) -> Conn:
        """Return a connection that does not wait; closes one if all do."""
        conns = [conn for conn in self.conns if conn.wait is None]
        if not conns:
            self.close_conn(self.conns[0])
            conns = [self.conns[-1]]
        return conns[index % len(conns)]

    def close_conn(self, conn: Conn, unsent: Sequence[Receipt] = ()) -> None:
        self.core.fed_close(conn.handle)
        self.settle()
        self.conns.remove(conn)
        self.conns.append(Conn(handle=self.core.fed_open("again")))
        for receipt in unsent:
            self.model.unsent(receipt)
        drawn = [draw for receipt in conn.bound for draw in self.model.unbound(receipt)]
        self._saw_draws(drawn)

    # ---------------------------------------------------------------- what the model cannot know

    def job(self, job_id: int) -> dict[str, object]:
        """Return what JOB says; empty when unknown."""
        reply = self.ask(self.probe, "JOB", job_id)
        if reply is None:
            return {}
        assert isinstance(reply, list)
        names = [cast("bytes", name).decode() for name in reply[::2]]
        return dict(zip(names, map(shown, reply[1::2]), strict=True))

    def _saw_draws(self, draws: Sequence[tuple[Job, int]]) -> None:
        for job, k in draws:
            self.model.saw_due(job, cast("int", self.job(job.id)["due_ms"]), k)

    def _saw_expired(self) -> None:
        for handler in self.model.handlers.values():
            for job in [job for job in handler.ready if self.model.is_expired(job)]:
                if self.job(job.id).get("state") == "expired":
                    self.model.saw_expired(job)

    # ---------------------------------------------------------------- calls

    def after(self) -> None:
        """Hold what waiting connections got, the counts and the invariants against the model."""
        self._saw_expired()
        self.model.check_sweep()
        self._check_waits()
        self.model.end_frame()
        self.model.check()
        for state, count in self.model.counts().items():
            got = self.ask(self.probe, "COUNT", "STATE", state)
            assert got == count, f"{got!r} jobs are {state}, not {count}"
        self.steps += 1
        if len(self.model.jobs) <= CHECKED_ROWS or self.steps % CHECKED_STEPS == 0:
            assert self.core.check() == 0

    def _check_waits(self) -> None:
        served: list[tuple[Wait, Conn, list[Grant]]] = []
        empty: list[Ask] = []
        for conn in self.conns:
            for reply in self.take(conn) if conn.wait else []:
                wait, conn.wait = conn.wait, None
                assert wait
                assert isinstance(reply, list)
                grants = [grant_of(item) for item in reply]
                if not grants:
                    assert wait.until_ms <= self.model.rel_ms, "gave up too early"
                    empty.append(wait.ask)
                else:
                    served.append((wait, conn, grants))
        for wait, conn, grants in sorted(served, key=lambda one: one[2][0].receipt[1:]):
            self._granted(conn, wait.ask, grants, bound=wait.bound)
        for ask in empty:
            assert not list(self.model.candidates(ask)), "gave up beside work"
        for conn in self.conns:
            if conn.wait:
                assert conn.wait.until_ms > self.model.rel_ms, "waits too long"
                assert not list(self.model.candidates(conn.wait.ask)), "waits beside work"

    def _granted(self, conn: Conn, ask: Ask, grants: list[Grant], *, bound: bool) -> None:
        self.model.check_leased(ask, grants)
        self.receipts += [grant.receipt for grant in grants]
        if bound:
            conn.bound += [grant.receipt for grant in grants]

    def schedule(self, conn: Conn, new: New) -> None:
        word, job_id = self.model.schedule(new)
        reply = self.ask(conn, *schedule_words(new))
        if word in ("EXISTS", "CONFLICT"):
            assert shown(reply) == word
            return
        got = int(cast("bytes", reply[0] if isinstance(reply, list) else reply))
        if word == "created" and not job_id:
            self.model.saw_created(new, got)
            job_id = got
        state = self.model.state_of(job_id)
        assert shown(reply) == ([str(job_id), word, state] if new.key else str(job_id))

    def lease(self, conn: Conn, ask: Ask, *, wait_ms: int, bound: bool) -> None:
        """LEASE, and read its answer unless it waits."""
        self.core.fed_input(conn.handle, encode_command(lease_words(ask, wait_ms, bound=bound)))
        self.settle()
        self._saw_expired()
        replies = self.take(conn)
        if not replies:
            assert wait_ms
            conn.wait = Wait(ask=ask, until_ms=self.model.rel_ms + wait_ms, bound=bound)
            return
        [reply] = replies
        assert isinstance(reply, list)
        assert reply or not wait_ms
        self._granted(conn, ask, [grant_of(item) for item in reply], bound=bound)

    def lease_unsent(self, conn: Conn, ask: Ask, part: float, *, bound: bool) -> None:
        """LEASE; a part of the answer leaves, then the connection closes."""
        self.core.fed_input(conn.handle, encode_command(lease_words(ask, 0, bound=bound)))
        self.settle()
        self._saw_expired()
        size = len(self.core.fed_output(conn.handle).data)
        [reply] = self.take(conn, int(part * (size - 1)))
        assert isinstance(reply, list)
        grants = [grant_of(item) for item in reply]
        self._granted(conn, ask, grants, bound=bound)
        self.close_conn(conn, [grant.receipt for grant in grants])

    def ack(self, conn: Conn, receipts: Sequence[Receipt]) -> None:
        expected = [self.model.ack(receipt) for receipt in receipts]
        assert shown(self.ask(conn, "ACK", *map(receipt_text, receipts))) == expected

    def done(self, conn: Conn, receipt: Receipt, result: bytes) -> None:
        expected = self.model.ack(receipt, "DONE")
        assert shown(self.ask(conn, "DONE", receipt_text(receipt), result)) == expected

    def fail(self, conn: Conn, receipt: Receipt, *, in_ms: int | None, dead: bool) -> None:
        expected = self.model.fail(receipt, in_ms=in_ms, dead=dead)
        words: list[str | int] = ["FAIL", receipt_text(receipt), "ERROR", "no luck"]
        words += ["DEAD"] if dead else []
        words += ["IN", in_ms] if in_ms is not None else []
        reply = self.ask(conn, *words)
        if isinstance(expected, str):
            assert shown(reply) == expected
            return
        word, due_ms = str(reply).split()
        assert word == "RETRY"
        self.model.saw_due(expected, int(due_ms), expected.failures)

    def release(self, conn: Conn, receipt: Receipt, in_ms: int | None) -> None:
        expected = self.model.release(receipt, in_ms)
        words: list[str | int] = ["RELEASE", receipt_text(receipt)]
        words += ["IN", in_ms] if in_ms is not None else []
        assert shown(self.ask(conn, *words)) == expected

    def extend(self, conn: Conn, receipts: Sequence[Receipt], for_ms: int) -> None:
        expected = [self.model.extend(receipt, for_ms) for receipt in receipts]
        words: list[str | int] = ["EXTEND", *map(receipt_text, receipts)]
        words += ["FOR", for_ms] if for_ms else []
        assert shown(self.ask(conn, *words)) == expected

    def verb(self, conn: Conn, verb: str, jobs: Sequence[int | bytes]) -> None:
        """CANCEL, REQUEUE, PURGE."""
        answer = {"CANCEL": self.model.cancel, "REQUEUE": self.model.requeue}.get(
            verb, self.model.purge
        )
        expected: list[str] = [answer(self._id(job)) for job in jobs]
        assert shown(self.ask(conn, verb, *jobs)) == expected

    def _id(self, job: int | bytes) -> int:
        return self.model.id_of_key(job) if isinstance(job, bytes) else job

    def reschedule(self, conn: Conn, job: int | bytes, when: When) -> None:
        expected = self.model.reschedule(self._id(job), when)
        assert shown(self.ask(conn, "RESCHEDULE", job, when.text())) == expected

    def run(self, conn: Conn, job: int | bytes) -> None:
        expected = self.model.reschedule(self._id(job), When(ms=0, relative=True))
        assert shown(self.ask(conn, "RUN", job)) == expected

    def set_handler(
        self,
        conn: Conn,
        name: bytes,
        *,
        paused: bool | None = None,
        concurrency: int | None = None,
        policy: Policy,
    ) -> None:
        shows = paused is None and concurrency is None and policy == Policy()
        known = name == b"*" or name in self.model.handlers
        if not shows:
            self.model.set_handler(name, paused=paused, concurrency=concurrency, policy=policy)
        words: list[bytes | str | int] = ["HANDLER", name]
        words += [] if paused is None else ["PAUSE" if paused else "RESUME"]
        words += [] if concurrency is None else ["CONCURRENCY", concurrency]
        reply = self.ask(conn, *words, *policy_words(policy))
        if shows and not known:
            assert shown(reply) == "UNKNOWN", "a look makes no handler"
        else:
            assert not isinstance(reply, ReplyError)

    def look(self, job_id: int) -> None:
        """JOB: every field that the model knows."""
        got = self.job(job_id)
        job = self.model.jobs.get(job_id)
        if not job:
            ended = self.model.ended_of(job_id)
            assert got.get("state") == (ended.state if ended else None)
            return
        expected: dict[str, object] = {
            "id": str(job_id),
            "handler": job.handler.decode(),
            "state": job.state,
            "due_ms": self.model.to_wall(job.due_ms, rel=job.rel),
            "key": job.key.decode() or None,
            "priority": job.priority,
            "attempt": job.attempt,
            "failures": job.failures,
            "lost": job.lost,
            "created_ms": job.created_ms,
            "ended_ms": job.ended_ms or None,
            "payload": job.payload.decode(),
            "meta": job.meta.decode() or None,
            "group": job.group.decode() or None,
            "cancel_asked": int(job.marked),
            "reason": job.reason or None,
            "retries": job.policy.retries,
            "lost_max": job.policy.lost,
            "timeout_ms": job.policy.timeout_ms,
        }
        if job.expire:
            expected["expire_ms"] = self.model.to_wall(job.expire[0], rel=job.expire[1])
        if job.state == "leased":
            # Over, but not lost yet: in its grace nothing is left of it.
            expected["lease_left_ms"] = max(0, job.lease_end_ms - self.model.rel_ms)
            expected["worker"] = job.worker.decode() or None
        wrong = {
            name: (got[name], expected[name]) for name in expected if got[name] != expected[name]
        }
        assert not wrong, f"job {job_id}: got, expected: {wrong}"

    # ---------------------------------------------------------------- time and crashes

    def _tick(self) -> None:
        model = self.model
        drawn = model.tick(wall_ms=model.wall_ms, boot_ms=model.boot_ms, mono_ms=model.mono_ms)
        self.core.tick(self._clocks())
        self.settle()
        self._saw_draws(drawn)

    def advance(self, ms: int, *, wall_ms: int | None = None, suspended_ms: int = 0) -> None:
        """Let time pass: ms on all clocks, then wall_ms more on the wall clock alone (a step) and
        suspended_ms on all but the one that stops in a suspend."""
        model = self.model
        boot_ms = model.boot_ms + ms + suspended_ms
        wall = max(0, model.wall_ms + ms + suspended_ms + (wall_ms or 0))
        drawn = model.tick(wall_ms=wall, boot_ms=boot_ms, mono_ms=model.mono_ms + ms)
        self.core.tick(self._clocks())
        self.settle()
        self._saw_draws(drawn)

    def accept_clock(self) -> None:
        self.model.accept_clock()
        self.core.accept_clock()
        self.settle()
        self._tick()

    def replayed(self) -> Core:
        """Return another core that has read what was made durable."""
        other = Core(self.options)
        for term, frame in self.frames:
            other.replay(frame, term=term)
        assert other.check() == 0
        assert other.lsn() == self.core.durable_lsn()
        return other

    def crash(self, *, down_ms: int, same_boot: bool, lost: Sequence[Sequence[bytes | str | int]]):
        """Kill it with commands on the way that were not durable, and start it again."""
        hash_before = self.core.state_hash()
        lsn = self.core.lsn()
        for words in lost:
            self.core.fed_input(self.probe.handle, encode_command(words))
            self.core.commit()
            if self.core.lsn() == lsn:
                self.take(self.probe)
                continue
            for conn in (*self.conns, self.probe):
                assert not self.core.fed_output(conn.handle).data, "a reply left before its frame"
        other = self.replayed_at(lsn)
        self.core.close()
        self.core = other
        assert self.core.state_hash() == hash_before
        model = self.model
        boot_ms = model.boot_ms + down_ms if same_boot else 1000
        model.restart(wall_ms=model.wall_ms + down_ms, boot_ms=boot_ms, same_boot=same_boot)
        self.term += 1
        self._start()
        assert self.core.state_hash() == hash_before

    def replayed_at(self, lsn: int) -> Core:
        other = self.replayed()
        assert other.lsn() == lsn
        return other
