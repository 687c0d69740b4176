"""Single flipped bits in the files of a stopped server: refused with the place, or nothing is lost.

Most flips go through the code of a start in this process, over a copy in memory of a directory that
a real server left, and the engine's state is compared; some go through real starts.
"""

import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.load import ask_jobs, find_jobs
from tests.logkit import DATA, UUID, open_, start
from tests.process import Server, serving
from tests.simdisk import SimDisk
from wal import frame
from wal.errors import RefusedError, Rule
from wal.frame import FsyncMode, split_frames
from wal.recover import Ending, Verdict
from wal.verify import verify
from wheel.engine.core import Commit, Core, CoreOptions, Sync
from wheel.engine.facts import Clocks
from wheel.wire import encode_command

pytestmark = [pytest.mark.crash, pytest.mark.slow]

FLIPS = 50  # a store
FAR_MS = 86_400_000
BLOCK = frame.SEGMENT_HEADER_BYTES
FRAME = frame.FRAME_HEADER_BYTES
SLOT = 512
UNCOVERED = ("/LOCK", ".tmp")  # hold nothing that a start reads
IN_FRAMES = {
    Rule.DAMAGED_DURABLE,
    Rule.DAMAGED_SEALED,
    Rule.FRAME_BEHIND,
    Rule.NOT_TORN,
    Rule.AFTER_CLEAN_STOP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A stretch of a file that means one thing."""

    kind: str
    path: str
    begin: int
    end: int


@dataclass(slots=True, kw_only=True)
class Store:
    """A directory in memory, and the state that its log holds up to each frame."""

    disk: SimDisk
    hashes: dict[int, int]
    marked_lsn: int
    clean: bool

    @property
    def lsn(self) -> int:
        return max(self.hashes)


def core() -> Core:
    """Return a core without sockets; a server's options of the same meaning."""
    options = CoreOptions(
        commit=Commit.INLINE,
        sync=Sync.ALWAYS,
        sockets=False,
        hand_clock=True,
        store=UUID,
        jobs_max=1000,
        conns_max=4,
    )
    return Core(options)


def replay(disk: SimDisk) -> tuple[int, int, Verdict]:
    """Return (lsn, state hash, verdict) of a start that is not carried out."""
    store = open_(disk)
    try:
        with core() as read:
            for chunk in store.replay():
                read.replay(chunk.data, term=chunk.term)
            assert read.check() == 0
            return read.lsn(), read.state_hash(), store.verdict
    finally:
        store.close()


def load(disk: SimDisk) -> Store:
    """Return a whole store, with the hash behind each of its frames."""
    store = open_(disk)
    hashes = {}
    with core() as read:
        hashes[0] = read.state_hash()
        for chunk in store.replay():
            for one in split_frames(memoryview(bytes(chunk.data)), 1):
                read.replay(one, term=chunk.term)
                hashes[read.lsn()] = read.state_hash()
    verdict = store.verdict
    store.close()
    assert verdict.ending is Ending.CLEAN
    return Store(
        disk=disk,
        hashes=hashes,
        marked_lsn=verdict.marked_lsn,
        clean=verdict.after_clean_stop,
    )


# ---------------------------------------------------------------- where the bits are


def places(disk: SimDisk) -> Iterator[Place]:
    """Yield every stretch of every file; together they cover all bytes."""
    for path in disk.files():
        size = len(disk.read(path))
        if path.endswith("/MARK"):
            for at in range(0, size, SLOT):
                used = any(disk.read(path)[at : at + SLOT])
                kind = "slot of MARK" if used else "unused slot of MARK"
                yield Place(kind=kind, path=path, begin=at, end=at + SLOT)
        elif path.endswith(".wal"):
            yield Place(kind="header", path=path, begin=0, end=104)
            yield Place(kind="zeros of the header", path=path, begin=104, end=BLOCK)
            yield from frame_places(path, disk.read(path))
        else:
            yield Place(kind=path.rpartition("/")[2], path=path, begin=0, end=size)


def frame_places(path: str, segment: bytes) -> Iterator[Place]:
    """Yield the parts of each frame, and the zeros behind the last one."""
    at = BLOCK
    while segment[at : at + 4] == b"WDFR":
        payload = int.from_bytes(segment[at + 12 : at + 16], "little")
        end = at + FRAME + payload
        following = at + FRAME + (payload + 7) // 8 * 8
        last = "last " * (segment[following : following + 4] != b"WDFR")
        yield Place(kind=f"{last}frame header", path=path, begin=at, end=at + FRAME)
        yield Place(kind=f"{last}payload", path=path, begin=at + FRAME, end=end)
        if following > end:
            yield Place(kind=f"{last}padding", path=path, begin=end, end=following)
        at = following
    near = min(at + SLOT, len(segment))
    if near > at:
        yield Place(kind="zeros behind the frames", path=path, begin=at, end=near)
    if len(segment) > near:
        yield Place(kind="zeros far behind", path=path, begin=near, end=len(segment))


def sample(disk: SimDisk, rng: random.Random, count: int) -> list[tuple[Place, int]]:
    """Return so many (place, bit), each kind of place as often as the others."""
    kinds: dict[str, list[Place]] = {}
    for place in places(disk):
        if place.end > place.begin:
            kinds.setdefault(place.kind, []).append(place)
    names = sorted(kinds)
    chosen = [rng.choice(kinds[names[i % len(names)]]) for i in range(count)]
    return [(place, rng.randrange(place.begin * 8, place.end * 8)) for place in chosen]


# ---------------------------------------------------------------- what may come of it


def judge(store: Store, place: Place, bit: int) -> str:
    """Flip one bit, look what a start makes of it, flip it back; return the outcome's name."""
    disk = store.disk
    byte = disk.read(place.path)[bit // 8]
    disk.poke(place.path, bit // 8, [byte ^ 1 << bit % 8])
    try:
        return outcome(store, place, bit)
    except AssertionError as error:
        raise AssertionError(f"{place}, bit {bit}: {error}") from error
    finally:
        disk.poke(place.path, bit // 8, [byte])


def outcome(store: Store, place: Place, bit: int) -> str:
    looked = verify(store.disk, DATA)
    try:
        lsn, state, verdict = replay(store.disk)
    except RefusedError as error:
        assert looked.damaged, "verify sees no damage"
        check_refusal(error, place, bit)
        return f"refused: {error.rule}"
    assert not looked.damaged, "verify sees damage, and a start does not"
    assert state == store.hashes[lsn], "another state"
    if lsn == store.lsn:
        told = verdict.damaged_mark_slots == 1 or verdict.ending is not Ending.CLEAN
        assert told or place.path.endswith(UNCOVERED), "a byte that nothing covers"
        return "nothing lost"
    assert not store.clean, "lost behind an orderly stop"
    assert lsn >= store.marked_lsn, "lost what was known durable"
    assert verdict.path == place.path
    assert verdict.offset <= bit // 8
    if verdict.ending is Ending.TORN:
        assert lsn == sorted(store.hashes)[-2], "more than the last frame"
        return "torn"
    assert verdict.ending is Ending.CUT
    # A header that does not verify does not tell how many records its frame had.
    unknown = sorted(store.hashes)[-2] if place.kind == "last frame header" else store.lsn
    assert verdict.cut_records == unknown - lsn, "not counted right"
    return "cut"


def check_refusal(error: RefusedError, place: Place, bit: int) -> None:
    """The message names the file; a damaged frame's offset and lsn as well."""
    assert error.path in str(error)
    if error.rule in IN_FRAMES:
        assert error.path == place.path
        assert error.offset is not None
        assert error.offset <= bit // 8
        assert error.lsn is not None
        assert error.lsn > 0
    elif place.path.endswith(("/IDENT", "/MARK", "/MANIFEST")):
        assert error.path == place.path or error.rule is Rule.MARK


def started(disk: SimDisk) -> tuple[int, int]:
    """Carry a start out on a copy, and return (lsn, hash) of what the next start reads."""
    copy = disk.clone()
    store = open_(copy, segment_bytes=4 << 20)
    for _ in store.replay():
        pass
    start(store).close()
    lsn, state, _ = replay(copy)
    return lsn, state


# ---------------------------------------------------------------- stores that a server left


def fill(server):
    """Two lives, a sealed segment, jobs in every state."""
    far = "2040-01-01T00:00:00Z"
    with server.connect() as connection:
        big = [("SCHEDULE", "big", far, b"x" * 60_000) for _ in range(80)]
        connection.send(*big)
        ids = [connection.read() for _ in big]
        connection.send(*(("CANCEL", job) for job in ids[10:]))
        for _ in ids[10:]:
            assert connection.read() == ["CANCELLED"]
    server.kill()
    server.start()
    with server.connect() as connection:
        for n in range(150):
            connection.send(("SCHEDULE", "mail", far, f"p{n}", "KEY", f"k{n}", "ONCE", f"t{n}"))
            connection.send(("SCHEDULE", "sms", "now", b"y" * (n % 9), "RETRIES", n % 2))
            connection.read()
            connection.read()
            if n % 4 == 0:
                [item] = connection.call("LEASE", "sms", "FOR", 3_600_000)
                verb = ("ACK", "FAIL", "RELEASE", "EXTEND")[n // 4 % 4]
                later = ("IN", FAR_MS) if verb in {"FAIL", "RELEASE"} else ()
                connection.call(verb, item[0], *later)


@cache
def left_by_a_server(folder: Path, mode: str, how: str) -> Path:
    """Return a directory that a server has left, stopped in order or killed."""
    data = folder / f"{mode}-{how}"
    with serving(data, "--fsync", mode, "--segment-size", "4M") as server:
        fill(server)
        if how == "stopped":
            assert server.terminate() == 0
        else:
            server.kill()
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stores")


def in_memory(data: Path) -> SimDisk:
    """Return a simulated disk with a directory on it."""
    disk = SimDisk()
    disk.make_folder(DATA)
    disk.make_folder(f"{DATA}/wal")
    disk.make_folder(f"{DATA}/snap")
    for path in sorted(data.rglob("*")):
        if path.is_file():
            disk.write_file(f"{DATA}/{path.relative_to(data)}", path.read_bytes())
    return disk


@pytest.mark.parametrize(
    ("mode", "how"), [("always", "stopped"), ("always", "killed"), ("interval", "killed")]
)
def test_flipped_bit_is_refused_with_its_place_or_loses_nothing(folder, mode, how, seed):
    store = load(in_memory(left_by_a_server(folder, mode, how)))
    assert store.clean == (how == "stopped")
    assert started(store.disk) == (store.lsn, store.hashes[store.lsn])
    seen = Counter(
        judge(store, place, bit).partition(":")[0]
        for place, bit in sample(store.disk, random.Random(seed), FLIPS)
    )
    # How much of an unsynced log MARK covered by then decides between refused and cut.
    assert mode == "interval" or seen["cut"] == 0
    assert seen["refused"] + seen["cut"] > FLIPS // 2
    assert seen["nothing lost"] > 0


def test_the_flips_reach_every_kind_of_place(folder):
    disk = in_memory(left_by_a_server(folder, "always", "killed"))
    kinds = {place.kind for place, _ in sample(disk, random.Random(1), FLIPS)}
    assert kinds == {place.kind for place in places(disk) if place.end > place.begin}
    named = {"IDENT", "LOCK", "MANIFEST", "slot of MARK", "header", "last payload", "padding"}
    assert named <= kinds
    covered = Counter()
    for place in places(disk):
        covered[place.path] += place.end - place.begin
    assert covered == {path: len(disk.read(path)) for path in disk.files()}


def test_flipped_bit_and_the_real_server(folder, tmp_path, seed):
    """Refused with 78 and the place in its one line, or the same jobs as before."""
    data = left_by_a_server(folder, "always", "killed")
    with serving(shutil.copytree(data, tmp_path / "whole")) as server:
        jobs = told_jobs(server)
    assert len(jobs) > 200
    disk = in_memory(data)
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    for kind in (
        "IDENT",
        "LOCK",
        "MANIFEST",
        "slot of MARK",
        "header",
        "frame header",
        "last payload",
        "padding",
        "zeros behind the frames",
    ):
        place = rng.choice([place for place in places(disk) if place.kind == kind])
        bit = rng.randrange(place.begin * 8, place.end * 8)
        sys.stdout.write(f"{place}, bit {bit}\n")
        copy = shutil.copytree(data, tmp_path / f"flip{sum(seen.values())}")
        flip(copy / place.path.removeprefix(f"{DATA}/"), bit)
        seen[real_start(Server(copy, options=("--segment-size", "4M")), jobs, place)] += 1
    assert seen["refused"] >= 4
    assert seen["same"] >= 2


def real_start(server: Server, jobs: dict[int, object], place: Place) -> str:
    """Start a server; return whether it was refused, after checks of how, or had the same jobs."""
    server.spawn()
    try:
        try:
            server.wait_event("server_ready")
        except AssertionError:
            assert server.wait() == 78, server.lines
            refused = server.event("start_refused")
            name = place.path.rpartition("/")[2]
            assert str(refused["file"]).endswith(name)
            assert refused["rule"]
            assert str(server.data) in str(refused["hint"])
            if name.endswith(".wal"):
                assert isinstance(refused["offset_bytes"], int)
                assert isinstance(refused["lsn"], int)
            assert not any("Traceback" in line for line in server.lines), server.lines
            return "refused"
        assert told_jobs(server) == jobs
        return "same"
    finally:
        server.close()


def told_jobs(server: Server) -> dict[int, object]:
    """Return all jobs with what does not change by time."""
    names = ("handler", "state", "key", "payload", "attempt", "failures", "lost", "retries")
    told = ask_jobs(server, find_jobs(server))
    return {job: [fields[name] for name in names] for job, fields in told.items()}


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


# ---------------------------------------------------------------- every bit of a small store


def small_store(fsync: FsyncMode, *, clean: bool) -> Store:
    """Return a store of three small segments that an engine has filled."""
    disk = SimDisk()
    for life in range(2):
        opened = open_(disk, fsync=fsync)
        with core() as engine:
            for chunk in opened.replay():
                engine.replay(chunk.data, term=chunk.term)
            log = start(opened, salt_seed=life + 1)
            engine.attach_log(log.handle)
            clocks = Clocks(wall_ms=2_000, boot_ms=1_500, mono_ms=1_500)
            engine.start(term=log.term, rel_ms=2_000, clocks=clocks)
            client = engine.fed_open("c")
            for n in range(24):
                words = ("SCHEDULE", "h", "now", f"payload {n}", "KEY", f"k{life}-{n}")
                engine.fed_input(client, encode_command(words))
                engine.commit()
                if n % 5 == 0:
                    engine.fed_input(client, encode_command(("LEASE", "h")))
                    engine.commit()
                    log.sync()
                    log.mark()
                log.prepare()
        if clean:
            log.sync()
            log.mark(clean=True)
        log.close()
    return load(disk)


SMALL = [(FsyncMode.ALWAYS, True), (FsyncMode.ALWAYS, False), (FsyncMode.INTERVAL, False)]


@pytest.mark.parametrize(("fsync", "clean"), SMALL)
def test_flipped_bit_of_a_small_store(fsync, clean):
    store = small_store(fsync, clean=clean)
    rng = random.Random(5)
    seen = Counter(judge(store, place, bit) for place, bit in sample(store.disk, rng, 400))
    assert ("cut" in seen) == (fsync is FsyncMode.INTERVAL)


@pytest.mark.long
@pytest.mark.parametrize(("fsync", "clean"), SMALL)
def test_every_bit_of_a_small_store(fsync, clean, seed):
    """Every bit of all that was written, and one of each byte that is zero."""
    rng = random.Random(seed)
    store = small_store(fsync, clean=clean)
    flips = 0
    for place in places(store.disk):
        data = store.disk.read(place.path)
        for byte in range(place.begin, place.end):
            bits = range(8) if data[byte] else [rng.randrange(8)]
            for bit in bits:
                judge(store, place, byte * 8 + bit)
                flips += 1
    assert flips > 2 * BLOCK
