"""Random histories of one store, over many lives, with checkpoints taken in slices between calls.

There is no model here: the log is the truth. A state that was loaded from a checkpoint and the log
behind it must be the state that the whole log makes, and the state that was in memory.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from tests.fed import WALL_MS
from tests.simdisk import SimDisk
from wal.facts import CheckpointStop
from wal.frame import CheckpointScanner
from wheel.engine.core import Commit, Core, CoreOptions
from wheel.engine.facts import CheckpointPhase, Clocks
from wheel.engine.records import Flag, Kind, Record, encode
from wheel.errors import CoreError
from wheel.wire import NotReady, Reply, ReplyReader, encode_command

PATH = "/snap/next.tmp"
HOUR_MS = 3_600_000
KEYS = [b"ka", b"kb", b"kc", b"kd"]
NAMES = [b"alpha", b"beta", b"gamma", b"delta", b"epsilon"]
OVER = (CheckpointPhase.WAITS, CheckpointPhase.DONE)

Frames = list[tuple[int, bytes]]  # each with the term that it was written in
Word = bytes | str | int


def first_lsn(frame: bytes) -> int:
    return int.from_bytes(frame[24:32], "little")


def last_lsn(frame: bytes) -> int:
    return first_lsn(frame) + int.from_bytes(frame[16:20], "little") - 1


def whole(data: bytes) -> bool:
    return CheckpointScanner().feed(data, room=len(data)).stop is CheckpointStop.WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A finished one."""

    data: bytes
    start_lsn: int
    end_lsn: int


class World:
    """One store, its present life, and every frame that it ever wrote.

    Attributes:
        frames: all of them, in order.
        checkpoints: all that were finished, in order.
        done: how often each kind of call did something.
    """

    def __init__(self, seed: int, *, jobs_max: int = 4096) -> None:
        self.rng = random.Random(seed)
        small = self.rng.random() < 0.5  # so that what is over is dropped for room too
        self.options = CoreOptions(
            commit=Commit.DRIVEN,
            sockets=False,
            hand_clock=True,
            jobs_max=jobs_max,
            seed=seed,
            payload_bytes_max=1 << 20,
            dead_max=3 if small else 1000,
            ended_max=5 if small else 1000,
            once_max=3 if small else 1000,
        )
        self.wall_ms, self.boot_ms, self.rel_ms = WALL_MS, 1_000_000, WALL_MS
        self.term = 1
        self.frames: Frames = []
        self.checkpoints: list[Checkpoint] = []
        self.receipts: list[bytes] = []
        self.owned: list[int] = []
        self.disk = SimDisk()
        self.disk.make_folder("/snap")
        self.core = Core(self.options)
        self._serve()

    def close(self) -> None:
        self.core.close()

    def clocks(self) -> Clocks:
        return Clocks(wall_ms=self.wall_ms, boot_ms=self.boot_ms, mono_ms=self.boot_ms)

    def _serve(self) -> None:
        self.core.start(term=self.term, rel_ms=self.rel_ms, clocks=self.clocks())
        self.handle = self.core.fed_open("world")
        self.reader = ReplyReader()
        self.core.tick(self.clocks())

    # ---------------------------------------------------------------- bytes

    def settle(self) -> None:
        """Make everything durable that was said so far; rounds pass."""
        self.core.commit()
        while batch := self.core.take_batch():
            self.frames.append((self.term, batch.frame))
            self.core.batch_durable(batch.lsn)

    def say(self, *words: Word) -> None:
        """Say a command; no round passes."""
        self.core.fed_input(self.handle, encode_command(words))

    def replies(self) -> list[Reply]:
        output = self.core.fed_output(self.handle)
        self.core.fed_taken(self.handle, len(output.data))
        self.reader.feed(output.data)
        found: list[Reply] = []
        while (reply := self.reader.gets()) is not NotReady.NOT_READY:
            found.append(reply)
        return found

    def ask(self, *words: Word) -> Reply:
        self.say(*words)
        self.settle()
        return self.replies()[-1]

    def submit(self, *records: Record) -> list[int]:
        try:
            return self.core.submit(b"".join(map(encode, records)))
        except CoreError:  # what it named is gone
            return []

    # ---------------------------------------------------------------- what may happen

    def schedule(self) -> None:
        rng = self.rng
        when = rng.choice(["now", "+1", "+500", "+2s", "+1h", str(self.wall_ms + 3_000)])
        payload = rng.randbytes(rng.choice([0, 1, 7, 16, 100, 400]))
        words: list[Word] = ["SCHEDULE", rng.choice(NAMES), when, payload]
        if rng.random() < 0.6:
            words += ["KEY", rng.choice(KEYS), "ONDUP", rng.choice(["keep", "replace", "error"])]
            words += ["WINDOW", rng.choice([0, 1000, 60_000])]
        words += ["ONCE", b"t%d" % rng.randrange(20)] if rng.random() < 0.2 else []
        words += ["META", b"m" * rng.randrange(1, 9)] if rng.random() < 0.2 else []
        words += ["GROUP", b"g"] if rng.random() < 0.1 else []
        words += ["EXPIRE", rng.choice(["+1s", "+1h"])] if rng.random() < 0.2 else []
        words += ["PRIORITY", rng.randrange(3)] if rng.random() < 0.2 else []
        words += ["RETRIES", rng.randrange(3), "BACKOFF", "fixed", 50] if rng.random() < 0.4 else []
        words += ["TIMEOUT", rng.choice([0, 700])] if rng.random() < 0.2 else []
        self.say(*words)

    def turn_over(self) -> None:
        """Let a key pass from job to job while no slice comes between."""
        key = self.rng.choice(KEYS)
        for _ in range(self.rng.randrange(1, 3)):
            self.say("SCHEDULE", self.rng.choice(NAMES), "+1h", b"", "KEY", key)
            self.say("CANCEL", key)
        self.say("SCHEDULE", self.rng.choice(NAMES), "+1h", b"", "KEY", key)

    def own(self) -> None:
        rng = self.rng
        flags = rng.choice([Flag(0), Flag.REL, Flag.HELD, Flag.HELD | Flag.REL])
        self.owned += self.submit(
            *(
                Record(
                    kind=Kind.CREATED,
                    name=rng.choice(NAMES),
                    owner=b"daily@%d" % rng.randrange(99),
                    due_ms=self.wall_ms + rng.choice([0, 900]),
                    flags=flags,
                    priority=128,
                    payload=rng.randbytes(rng.choice([0, 30])),
                )
                for _ in range(rng.randrange(1, 3))
            )
        )
        del self.owned[:-12]

    def lease(self) -> None:
        words: list[Word] = ["LEASE", b",".join(NAMES), "COUNT", self.rng.randrange(1, 4)]
        words += ["FOR", self.rng.choice([300, 5_000])] if self.rng.random() < 0.4 else []
        words += ["WORKER", b"w" * self.rng.randrange(1, 20)] if self.rng.random() < 0.5 else []
        for item in self.ask(*words):
            self.receipts.append(item[0])
        del self.receipts[:-12]

    def receipt(self) -> bytes:
        return self.rng.choice(self.receipts) if self.receipts else b"1.1.1"

    def finish(self) -> None:
        rng, receipt = self.rng, self.receipt()
        self.say(
            *rng.choice(
                [
                    ("ACK", receipt),
                    ("ACK", receipt, self.receipt()),
                    ("DONE", receipt, b"r" * rng.randrange(1, 40)),
                    ("FAIL", receipt, "ERROR", b"e" * rng.randrange(1, 40)),
                    ("FAIL", receipt, "IN", 0),
                    ("FAIL", receipt, "DEAD"),
                    ("FAIL", receipt, "DEAD", "ERROR", "no"),
                    ("RELEASE", receipt),
                    ("RELEASE", receipt, "IN", 100),
                    ("EXTEND", receipt, "FOR", rng.choice([9_000, 90_000])),
                    ("EXTEND", receipt),
                ]
            )
        )

    def job(self) -> Word:
        """Return a key, or the id of a slot that is probably in use."""
        if self.rng.random() < 0.3:
            return self.rng.choice(KEYS)
        return self.rng.randrange(1, 4) << 32 | self.rng.randrange(24)

    def change(self) -> None:
        job = self.job()
        self.say(
            *self.rng.choice(
                [
                    ("CANCEL", job),
                    ("CANCEL", job, self.job()),
                    ("RUN", job),
                    ("RESCHEDULE", job, "+1s"),
                    ("RESCHEDULE", job, self.wall_ms + 700),
                    ("REQUEUE", job),
                    ("PURGE", job),
                ]
            )
        )

    def dead(self) -> None:
        """Requeue or purge one that is dead."""
        listed = self.ask("DEAD", "COUNT", 200)
        ids = [word for word in flat(listed) if isinstance(word, bytes) and word.isdigit()]
        ids = [word for word in ids if int(word) >> 32]
        if ids:
            self.say(self.rng.choice(["REQUEUE", "PURGE"]), self.rng.choice(ids))

    def settings(self) -> None:
        name = self.rng.choice(NAMES)
        self.say(
            *self.rng.choice(
                [
                    ("HANDLER", name, "RETRIES", self.rng.randrange(4)),
                    ("HANDLER", name, "CONCURRENCY", self.rng.choice([0, 0, 5])),
                    ("HANDLER", name, "LEASE", self.rng.choice([400, 60_000])),
                    ("HANDLER", b"new%d" % self.rng.randrange(30), "TIMEOUT", 0),
                ]
            )
        )

    def table(self) -> None:
        key = b"e%d" % self.rng.randrange(12)
        blob = self.rng.randbytes(self.rng.choice([0, 5, 300]))
        put = Record(kind=Kind.PUT, reason=self.rng.randrange(2), name=key, blob=blob)
        there = list(self.core.table())
        if there and self.rng.random() < 0.4:
            entry = self.rng.choice(there)
            put = Record(kind=Kind.DEL, reason=entry.kind, name=entry.key)
        self.submit(put)

    def close_owned(self) -> None:
        ended = self.core.ended(self.rng.randrange(1, 4))
        self.submit(*(Record(kind=Kind.CLOSED, id=record.id) for record in ended))

    def release_held(self) -> None:
        """Let the owner do something to its jobs, to each that is in the right state."""
        for job_id in self.rng.sample(self.owned, min(4, len(self.owned))):
            kind = self.rng.choice([Kind.UNHELD, Kind.UNHELD, Kind.MOVED, Kind.MARKED])
            self.submit(Record(kind=kind, id=job_id, due_ms=self.wall_ms, flags=0))

    def pass_time(self) -> None:
        ms = self.rng.choice([1, 1, 400, 1_100, 6_000, 70_000])
        if self.rng.random() < 0.03:
            ms = self.rng.choice([11 * 60_000, HOUR_MS + 1])
        self.wall_ms += ms
        self.boot_ms += ms
        self.rel_ms += ms
        self.core.tick(self.clocks())

    def step_clock(self) -> None:
        self.wall_ms += self.rng.choice([-20_000, 20_000])
        self.core.tick(self.clocks())
        if self.rng.random() < 0.5:
            self.core.accept_clock()

    def raise_generations(self) -> None:
        self.core.raise_generations(self.core.generation_max() + self.rng.randrange(1, 3))

    # ---------------------------------------------------------------- checkpoints and lives

    def begin_checkpoint(self, things: int | None = None) -> None:
        if self.core.checkpoint_state().phase in (CheckpointPhase.IDLE, CheckpointPhase.DONE):
            self.core.checkpoint_abort()
            self.core.checkpoint_start(
                PATH,
                salt=self.rng.getrandbits(32),
                io=self.disk.io,
                threaded=False,
                slice_things=things or self.rng.choice([1, 1, 1, 2, 5]),
            )

    def look_at_checkpoint(self) -> None:
        """Keep the file of one that is over, and durable with its log."""
        state = self.core.checkpoint_state()
        assert state.phase is not CheckpointPhase.FAILED, state
        if state.phase in OVER:
            self.settle()
            state = self.core.checkpoint_state()
            assert state.phase == CheckpointPhase.DONE
            data = self.disk.read(PATH)
            assert whole(data)
            assert len(data) == state.size_bytes == state.verified_bytes
            self.checkpoints.append(
                Checkpoint(data=data, start_lsn=state.start_lsn, end_lsn=state.end_lsn)
            )
            self.core.checkpoint_abort()

    def finish_checkpoint(self) -> None:
        """Let rounds pass until the one under way is over."""
        while self.core.checkpoint_state().phase != CheckpointPhase.IDLE:
            self.settle()
            self.look_at_checkpoint()

    def crash(self) -> None:
        """Another life: from the log alone, or from a checkpoint."""
        self.core.close()
        found = self.checkpoints[-1] if self.checkpoints and self.rng.random() < 0.7 else None
        self.core = self.rebuilt(found)
        self.term += 1
        self._serve()

    def rebuilt(self, checkpoint: Checkpoint | None, frames: Frames | None = None) -> Core:
        """Return a core with what the frames say, not started."""
        core = Core(self.options)
        if checkpoint:
            core.load(checkpoint.data)
        for term, frame in self.frames if frames is None else frames:
            core.replay(frame, term=term)
        return core

    def started(self, checkpoint: Checkpoint | None, frames: Frames | None = None) -> Core:
        core = self.rebuilt(checkpoint, frames)
        core.start(term=self.term + 1, rel_ms=self.rel_ms, clocks=self.clocks())
        return core

    # ---------------------------------------------------------------- histories

    def calls(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            (24, self.schedule),
            (4, self.turn_over),
            (8, self.own),
            (16, self.lease),
            (22, self.finish),
            (12, self.change),
            (4, self.dead),
            (4, self.settings),
            (6, self.table),
            (5, self.close_owned),
            (3, self.release_held),
            (12, self.pass_time),
            (1, self.step_clock),
            (1, self.raise_generations),
            (6, self.begin_checkpoint),
            (1, self.crash),
        ]

    def play(self, steps: int) -> Iterator[None]:
        """Let so many things happen; yields after each."""
        weights, calls = zip(*self.calls(), strict=True)
        for call in self.rng.choices(calls, weights, k=steps):
            call()
            if self.rng.random() < 0.3:  # else several calls between two slices
                self.settle()
                self.replies()
            self.look_at_checkpoint()
            yield
        self.settle()

    def run(self, steps: int) -> None:
        for number in range(self.rng.choice([0, 0, 60])):  # so that a scan lasts for many calls
            self.say("SCHEDULE", self.rng.choice(NAMES), "+2h", b"%d" % number)
        for _ in self.play(steps):
            pass
        self.finish_checkpoint()


def flat(reply: Reply) -> Iterator[Reply]:
    if isinstance(reply, list):
        for item in reply:
            yield from flat(item)
    else:
        yield reply


def next_ids(core: Core, count: int = 40) -> list[Reply]:
    """Return ids of jobs made now: they tell the generations of the free slots."""
    handle, reader = core.fed_open("ids"), ReplyReader()
    for _ in range(count):
        core.fed_input(handle, encode_command(["SCHEDULE", b"ids", "+1h", b""]))
    core.commit()
    while batch := core.take_batch():
        core.batch_durable(batch.lsn)
    reader.feed(core.fed_output(handle).data)
    return list(islice(iter(reader.gets, NotReady.NOT_READY), count))
