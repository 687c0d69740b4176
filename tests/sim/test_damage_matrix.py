"""Damage of every kind at every place of a small store with checkpoints: told, or refused.

What a start reads of a store decides everything after it. So each damaged copy is opened as a start
does it, and what it would give to the engine (the checkpoint's chunks, the frames behind it) is
compared, byte for byte, with what the whole store gives. Outcomes:

- refused: with the rule and the damaged file (durability.md T5: refused);
- healed: the same state, and the start tells what it did without;
- torn, cut: only of a store that was killed; of no more than what was not known durable;
- unread: a start needs none of it, and ``wheeld wal verify`` names it;
- behind MARK: a sector lost its frames, none of which MARK had yet vouched for. One bit cannot;
- harmless: see Matrix._check_harmless. No bit is.

Anything else fails: another state, an exception of another kind, or damage that nobody tells. What
the bits of each kind came to is printed.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

import pytest

from tests.logkit import DATA, open_
from tests.simdisk import SimDisk
from tests.store import UUID, Life
from wal.errors import RefusedError, Rule
from wal.frame import FsyncMode, crc32c, decode_mark, split_frames
from wal.recover import Ending
from wal.verify import verify
from wheel.engine.core import Commit, Core, CoreOptions, Sync

SECTOR = 512
SEGMENT_BYTES = 8192
# What holds nothing: LOCK is empty, of a segment made ahead only its name is looked at.
NOTHING_IN_IT = ("/LOCK", ".tmp")


def lived(fsync, how, uuid=UUID):
    """Return a disk: three lives, two checkpoints in force, log before and behind each of them."""
    disk = SimDisk()
    options = {"disk": disk, "fsync": fsync, "segment_bytes": SEGMENT_BYTES, "uuid": uuid}
    life = Life(DATA, **options)
    life.ask("HANDLER mail RETRIES 5 CONCURRENCY 9")
    for i in range(9):
        life.ask(f"SCHEDULE mail +{i + 1}s payload-{i} KEY k{i} ONCE token-{i}")
    life.save()
    life.advance(3_000)
    reply = life.ask("LEASE mail COUNT 3 WORKER w1").decode()
    first, second, _third = [line for line in reply.split("\r\n") if line.count(".") == 2]
    life.ask(f"ACK {first}")
    life.kill()
    life = Life(DATA, salt_seed=8, **options)
    life.ask(f"FAIL {second} DEAD ERROR broken")
    life.save(between=lambda: life.ask("SCHEDULE late +1h between"))
    life.ask("CANCEL k8")
    life.kill()
    life = Life(DATA, salt_seed=9, **options)
    life.log.checkpoints.trim()
    life.ask("SCHEDULE behind +1h first")
    life.log.sync()
    life.log.mark()
    for i in range(3):
        life.ask(f"SCHEDULE behind +1h {i}")
    life.log.prepare()
    life.stop() if how == "stopped" else life.kill()
    return disk


def core():
    return Core(
        CoreOptions(
            jobs_max=1_000,
            conns_max=4,
            store=UUID,
            commit=Commit.INLINE,
            sync=Sync.ALWAYS,
            sockets=False,
            hand_clock=True,
        )
    )


@dataclass(slots=True)
class Read:
    """What a start reads: all that decides the state, and what it would tell."""

    start_lsn: int
    chunks: bytes
    frames: bytes
    ends: tuple[int, ...]  # of each frame in frames
    fallen: tuple[str, ...]
    verdict: object

    def state_hash(self):
        with core() as engine:
            if self.chunks:
                engine.load(self.chunks)
            engine.replay(self.frames, term=1)
            assert engine.check() == 0
            return engine.state_hash()


def read(disk):
    store = open_(disk, uuid=UUID)
    try:
        chunks = b"".join(bytes(piece.data) for piece in store.load() if piece.data is not None)
        frames = b"".join(bytes(chunk.data) for chunk in store.replay())
        lengths = (len(one) for one in split_frames(memoryview(frames), 1))
        return Read(
            start_lsn=store.checkpoint.start_lsn if store.checkpoint else 0,
            chunks=chunks,
            frames=frames,
            ends=tuple(accumulate(lengths)),
            fallen=tuple(one.path for one in store.fallen),
            verdict=store.verdict,
        )
    finally:
        store.close()


@dataclass
class Matrix:
    """A store, what a start reads of it, and what damage of each kind of file came to."""

    disk: SimDisk
    clean: bool
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self):
        self.files = {path: self.disk.read(path) for path in self.disk.files()}
        self.whole = read(self.disk)
        assert (self.whole.verdict.ending, self.whole.fallen) == (Ending.CLEAN, ())
        self.state = self.whole.state_hash()
        self.older = self._older()
        self.last = max(path for path in self.files if path.endswith(".wal"))

    def _older(self):
        """Return what is read when the newest checkpoint is damaged; it makes the same state."""
        disk = self.disk.clone()
        disk.unlink(max(path for path in self.files if path.endswith(".snap")))
        older = read(disk)
        assert older.start_lsn < self.whole.start_lsn
        assert older.state_hash() == self.state
        return older

    def kind(self, path):
        """Return the name of a kind of file."""
        if path.endswith(".snap"):
            newest = path == max(one for one in self.files if one.endswith(".snap"))
            return "newest checkpoint" if newest else "older checkpoint"
        if path.endswith(".wal"):
            if path == self.last:
                return "last segment"
            behind = path == max(one for one in self.files if one < self.last)
            return "sealed segment" if behind else "segment of the older checkpoint"
        return path.rpartition("/")[2]

    def bit(self, path, bit):
        """Flip a bit, judge, flip it back."""
        at, byte = bit // 8, self.files[path][bit // 8]
        self.disk.poke(path, at, [byte ^ 1 << bit % 8])
        try:
            self.judge(self.disk, path, f"bit {bit}", at)
        finally:
            self.disk.poke(path, at, [byte])

    def judge(self, disk, path, what, at):
        try:
            outcome = self._outcome(disk, path, at)
        except AssertionError as error:
            raise AssertionError(f"{path}, {what}: {error}") from error
        self.seen[self.kind(path), outcome] += 1

    def _outcome(self, disk, path, at):
        try:
            found = read(disk)
        except RefusedError as refused:
            self._check_refusal(refused, path, at)
            return "refused"
        if found.fallen:
            assert found.fallen == (path,), "another file is blamed"
            assert (found.chunks, found.frames) == (self.older.chunks, self.older.frames)
            assert found.verdict.next_lsn == self.whole.verdict.next_lsn
            return "healed"
        assert found.chunks == self.whole.chunks, "another checkpoint was taken for it"
        assert self.whole.frames.startswith(found.frames), "other frames were taken for them"
        if found.frames != self.whole.frames:
            return self._lost_some(found, path, at)
        verdict = found.verdict
        if verdict.damaged_mark_slots:
            assert path.endswith("/MARK")
            return "healed"
        if verdict.ending is not Ending.CLEAN:
            assert verdict.path == path
            return str(verdict.ending)
        if path.endswith(NOTHING_IN_IT):
            return "nothing in it"
        report = verify(disk, DATA)
        named = {one.name for one in report.checkpoints if one.problem}
        named |= {one.name for one in report.segments if one.problems}
        if path.rpartition("/")[2] in named or report.spare_problem:
            return "unread"
        assert at is None, "nobody tells it"
        self._check_harmless(path, disk)
        return "harmless"

    def _check_harmless(self, path, disk):
        """Of sectors and files there are two harmless losses; of bits there is none.

        A start itself gives back the room behind the last frame of a segment. And a MARK whose
        newest write never came is what a crash may leave: it vouches for less, and the log, which
        is whole, for the rest.
        """
        data, now = self.files[path], disk.read(path)
        if path.endswith(".wal"):
            assert data.startswith(now), "nobody tells it"
            assert not any(data[len(now) :]), "nobody tells it"
            return
        assert path.endswith("/MARK"), "nobody tells it"
        slots = [data[i : i + SECTOR] for i in range(0, len(data), SECTOR)]
        marks = [decode_mark(slot) for slot in slots]
        newest = max((mark for mark in marks if mark), key=lambda mark: mark.count)
        slots[marks.index(newest)] = bytes(SECTOR)
        assert now == b"".join(slots), "nobody tells it"

    def _lost_some(self, found, path, at):
        verdict = found.verdict
        assert not self.clean, "lost behind an orderly stop"
        if verdict.ending is Ending.CLEAN:
            assert at is None, "silent loss"
            assert path == self.last
            assert verdict.next_lsn - 1 >= verdict.marked_lsn, "lost what was known durable"
            return "behind MARK"
        assert verdict.path == path
        if at is None:
            assert verdict.next_lsn - 1 >= verdict.marked_lsn, "lost what was known durable"
            return str(verdict.ending)
        assert verdict.offset <= at
        assert verdict.next_lsn - 1 >= verdict.marked_lsn, "lost what was known durable"
        if verdict.ending is Ending.TORN:
            assert len(found.frames) == self.whole.ends[-2], "more than the last frame"
        return str(verdict.ending)

    def _check_refusal(self, refused, path, at):
        """It names the file that is damaged, or a neighbour that it contradicts."""
        assert refused.rule in set(Rule)
        assert refused.detail
        told = {refused.path}
        if path.endswith(".wal") and refused.path != path:
            wal = sorted(one for one in self.files if one.endswith(".wal"))
            told |= {
                wal[i + step]
                for i, one in enumerate(wal)
                for step in (-1, 1)
                if one == refused.path and 0 <= i + step < len(wal)
            }
        if refused.rule in {Rule.MARK, Rule.LOST_TAIL, Rule.FOREIGN_UUID, Rule.NAME_MISMATCH}:
            return  # it is between two files that say different things
        assert path in told, f"refused about {refused.path}"

    def told(self):
        return "; ".join(
            f"{kind}: " + ", ".join(f"{n} {outcome}" for (one, outcome), n in counts if one == kind)
            for counts in [self.seen.most_common()]
            for kind in sorted({kind for kind, _ in self.seen})
        )


STORES = [
    (FsyncMode.ALWAYS, "killed"),
    (FsyncMode.ALWAYS, "stopped"),
    (FsyncMode.INTERVAL, "killed"),
]
KINDS = {
    "IDENT", "LOCK", "MANIFEST", "MARK", "newest checkpoint", "older checkpoint",
    "earlier segment", "last segment", "next.tmp", "reserve.tmp",
}  # fmt: skip


def bits_of(data, rng, *, every):
    """Return all bits, or all of each byte that is not zero and one of each that is."""
    for at, byte in enumerate(data):
        for bit in range(8) if byte or every else [rng.randrange(8)]:
            yield at * 8 + bit


@pytest.mark.parametrize(("fsync", "how"), STORES)
def test_a_flipped_bit_is_refused_or_told(fsync, how, figure):
    matrix = Matrix(lived(fsync, how), how == "stopped")
    rng = random.Random(4)
    for path, data in matrix.files.items():
        used = [at for at, byte in enumerate(data) if byte]
        for _ in range(24 if data else 0):
            matrix.bit(path, rng.choice(used) * 8 + rng.randrange(8) if used else 0)
            matrix.bit(path, rng.randrange(len(data) * 8))
    figure(f"bits of a store of mode {fsync.name}, {how}: {matrix.told()}")


def harmed(matrix, path, other):
    """Yield (what, disk) of a file missing, empty, shortened, with sectors lost or exchanged.

    other is the same store under another name.
    """
    data = matrix.files[path]

    def copy(content):
        disk = matrix.disk.clone()
        disk.resize(path, len(content))
        disk.poke(path, 0, content)
        return disk

    missing = matrix.disk.clone()
    missing.unlink(path)
    yield "missing", missing
    yield "another store's", copy(other.read(path))
    for one, content in matrix.files.items():
        if one != path and one.rpartition(".")[2] == path.rpartition(".")[2] and content != data:
            yield f"the bytes of {one}", copy(content)
    for at in range(0, len(data), SECTOR):
        yield f"{at} bytes", copy(data[:at])
        sector, following = data[at : at + SECTOR], data[at + SECTOR : at + 2 * SECTOR]
        changes = {bytes(len(sector)), b"\xff" * len(sector)}
        if len(following) == len(sector):
            changes.add(following)
        for change in changes - {sector}:
            yield f"sector at {at}", copy(data[:at] + change + data[at + SECTOR :])


@pytest.mark.parametrize(("fsync", "how"), STORES)
def test_a_lost_or_exchanged_sector_or_file_is_refused_or_told(fsync, how, figure):
    matrix = Matrix(lived(fsync, how), how == "stopped")
    other = lived(fsync, how, uuid=bytes(16))
    for path in matrix.files:
        if not path.endswith(NOTHING_IN_IT):
            for what, disk in harmed(matrix, path, other):
                matrix.judge(disk, path, what, None)
    figure(f"sectors and files of a store of mode {fsync.name}, {how}: {matrix.told()}")


ODD = (0, 1, 2, 0x7F, 0x80, 0xFF)
FORGERIES = 400  # of each file


def forged(rng, data, *, block_bytes):
    """Return a file with some bytes changed, and the checksum at the end of its blocks made right.

    So what is behind the checksum has to judge it: what the numbers in it say.
    """
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) // 8) * 8
        width = rng.choice((1, 4, 8))
        changed[at : at + width] = bytes(rng.choice(ODD) for _ in range(width))
    if rng.randrange(8) == 0:
        del changed[rng.randrange(len(changed)) :]
    step = block_bytes or len(data)
    for at in range(0, len(changed), step):
        block = changed[at : at + step]
        if len(block) > 4 and any(block):
            changed[at + len(block) - 4 : at + len(block)] = crc32c(bytes(block[:-4])).to_bytes(
                4, "little"
            )
    return bytes(changed)


@pytest.mark.parametrize(("name", "block_bytes"), [("MANIFEST", 0), ("IDENT", 0), ("MARK", SECTOR)])
def test_a_forged_file_is_taken_or_refused_and_breaks_nothing(name, block_bytes):
    """A fuzzer for the parsers that are Python; those in C have theirs, tests/c/fuzz_store.c."""
    whole = lived(FsyncMode.ALWAYS, "killed")
    path = f"{DATA}/{name}"
    data, rng = whole.read(path), random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    seen = Counter()
    for _ in range(FORGERIES):
        disk = whole.clone()
        content = forged(rng, data, block_bytes=block_bytes)
        disk.resize(path, len(content))
        disk.poke(path, 0, content)
        try:
            read(disk)
        except RefusedError:
            seen["refused"] += 1
        else:
            seen["taken"] += 1
        verify(disk, DATA)
    assert seen["refused"] > 0


@pytest.mark.long
@pytest.mark.parametrize(("fsync", "how"), STORES)
def test_every_bit_of_every_file(fsync, how, figure):
    """Of the first store every bit; of the others all of what is not zero, and one of each zero."""
    matrix = Matrix(lived(fsync, how), how == "stopped")
    rng = random.Random(9)
    for path, data in matrix.files.items():
        whole = (fsync, how) == STORES[0] and not path.endswith(NOTHING_IN_IT)
        for bit in bits_of(data, rng, every=whole):
            matrix.bit(path, bit)
    figure(f"every bit of a store of mode {fsync.name}, {how}: {matrix.told()}")
