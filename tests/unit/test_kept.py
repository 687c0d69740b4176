"""What is over leaves nothing behind: no cycles, no caches that grow, no pages of a ring."""

import gc
import signal
import socket
import ssl
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from server import collector
from tests.certificates import Authority
from tests.fed import WALL_MS, Bench
from tests.ports import free_port
from tests.process import Server
from tests.schedules import HOUR_MS, MINUTE_MS, Clockwork, Hand
from wheel.engine import runner, runs
from wheel.engine.dates import Date
from wheel.engine.definition import Overlap
from wheel.engine.entries import _label
from wheel.wire import ReplyError, encode_command

pytestmark = pytest.mark.slow

# Runs the server with no automatic collection. At SIGUSR2 it logs what a full one finds, and plants
# a cycle for the next time: a look that sees nothing is noticed.
LOOKING = """
import gc, json, signal, sys
from wheeld import main

def look(_number, _frame):
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    kinds = sorted({f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.garbage})
    line = {"event": "garbage_looked_at", "count": len(gc.garbage), "kinds": kinds}
    gc.garbage.clear()
    planted = []
    planted.append(planted)
    print(json.dumps(line), file=sys.stderr, flush=True)

gc.disable()
signal.signal(signal.SIGUSR2, look)
main()
"""
# Looks at its figures more often than once a second, and says when it tidies up.
TIDYING = """
import sys
from server import collector, daemon
from wheeld import main

def tell():
    tidy()
    print('{"event": "tidied"}', file=sys.stderr, flush=True)

daemon.WATCH_S, daemon.TIDY_LOOKS = 0.01, 3
tidy, collector.tidy = collector.tidy, tell
main()
"""
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(190))  # of TLS
GARBAGE = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"*3\r\n$8\r\nSCHEDULE\r\n$-1\r\n",
    encode_command(("SCHEDULE", "h", "now", "x" * 900))[:-300],
    HELLO,
    bytes(range(256)),
)


class Tidied(Server):
    """A server that says when it tidies up."""

    program = TIDYING

    def command(self, *options: str) -> list[str]:
        """Return the command line of a start."""
        _, _, _, *words = super().command(*options)
        return [sys.executable, "-c", self.program, *words]


class Looked(Tidied):
    """A server that says what a full collection finds."""

    program = LOOKING

    def look(self) -> tuple[object, object]:
        """Return how many objects were found, and of which kinds."""
        self.signal(signal.SIGUSR2)
        assert self.call("PING") == "PONG"
        event = self.wait_event("garbage_looked_at")
        return event["count"], event["kinds"]


def send(port: int, data: bytes) -> None:
    """Connect, send bytes and hang up."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(data)


def talk_tls(port: int, authority: Authority) -> None:
    """Shake hands, ask and read a part of the answer."""
    context = ssl.create_default_context(cafile=authority.pem)
    with (
        socket.create_connection(("127.0.0.1", port)) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(encode_command(("INFO",)) * 2)
        assert sock.recv(10)


def use_schedules(server: Server) -> None:
    """Make schedules, change and trigger them, end their runs, forget them; with mistakes."""
    with server.connect() as connection:
        for number in range(5):
            name = f"s{number}"
            connection.call("CRON", "SET", name, "@every 7s", "h", "{}", "OVERLAP", "queue_one")
            connection.call("CRON", "TRIGGER", name)
            connection.call("CRON", "SET", name, "* * * * *", "h", "{}", "OVERLAP", "allow")
            connection.call("CRON", "TRIGGER", name)
            jobs = connection.call("LEASE", "h", "COUNT", 10)
            assert isinstance(jobs, list)
            for job in jobs:
                assert isinstance(job, list)
                connection.call("ACK", job[0])
            connection.call("CRON", "PAUSE", name, "NOTE", "why")
            connection.call("CRON", "RUNS", name)
            connection.call("CRON", "NEXT", name)
            assert connection.call("CRON", "DEL", name, "FORCE") == "OK"
            for words in (("DEL", "nobody"), ("SET", "bad", "x y", "h", "{}"), ("NONSENSE",)):
                assert isinstance(connection.call("CRON", *words), ReplyError)


def test_nothing_that_is_over_is_left_for_a_full_collection(tmp_path: Path) -> None:
    """The collector never looks at old objects (server/collector.py): a cycle would stay."""
    authority, tls_port = Authority(tmp_path, "authority"), free_port()
    certificate = authority.issue("server", "IP:127.0.0.1")
    server = Looked(
        tmp_path / "data",
        options=(
            *("--tls-listen", f"127.0.0.1:{tls_port}"),
            *("--tls-cert", str(certificate.certificate), "--tls-key", str(certificate.key)),
        ),
    )
    try:
        server.start()
        server.look()
        for data in GARBAGE:
            send(server.port, data)
            send(tls_port, data)
        send(tls_port, HELLO[:50])
        for _ in range(3):
            talk_tls(tls_port, authority)
        use_schedules(server)
        server.call("SAVE")
        server.info()
        assert server.look() == (1, ["builtins.list"])
        assert server.terminate() == 0
    finally:
        server.close()


# ---------------------------------------------------------------- free lists


def test_dead_tuples_that_the_interpreter_keeps_are_given_back() -> None:
    """A full pass would look at a million runs; this one looks at nothing."""
    gc.collect()
    before = sys.getallocatedblocks()
    many = [tuple(range(length)) for length in (3, 5, 7) for _ in range(1_900)]
    del many
    kept = sys.getallocatedblocks() - before
    try:
        collector.tidy()
        assert kept > 4_000, "this interpreter keeps none: then what is it for?"
        assert sys.getallocatedblocks() - before < 200
    finally:
        gc.unfreeze()


def test_a_server_tidies_up_as_it_looks_at_its_figures(tmp_path: Path) -> None:
    server = Tidied(tmp_path / "data")
    try:
        server.start()
        server.wait_event("tidied")
        assert server.call("PING") == "PONG"
        assert server.terminate() == 0
    finally:
        server.close()


# ---------------------------------------------------------------- caches


@pytest.fixture
def world() -> Iterator[Clockwork]:
    world = Clockwork()
    yield world
    world.check()


def test_moments_that_never_come_again_are_not_remembered_by_the_thousand() -> None:
    """Of 4,000 moments, each with its run and its date, less than half a megabyte is kept."""
    tracemalloc.start()
    try:
        for number in range(4_000):
            at_ms = WALL_MS + 7 * number
            runs.parse_run_id(runs.run_id("nightly", at_ms))
            _label("UTC", at_ms, Date.EXACT)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 500_000


def test_the_dates_of_runs_without_a_rule_are_forgotten(
    world: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each minute adds a date; nobody edits a schedule, so nothing else forgets them."""
    monkeypatch.setattr(runner, "DATES_MIN", 10)
    hand = Hand(world)
    world.set("first", "* * * * *", "a", date=Date.EXACT, overlap=Overlap.ALLOW)
    world.set("second", "-", "b", after=("first",), date=Date.EXACT, overlap=Overlap.ALLOW)
    sizes = []
    for _ in range(60):
        world.go(MINUTE_MS)
        for run in hand.take_jobs("a") + hand.take_jobs("b"):
            hand.done(run)
        world.go(0)
        sizes.append(len(world.scheduler.planner.dates))
    assert [row.outcome for row in world.runs("second")].count("succeeded") > 15
    assert max(sizes) > 10, "none was remembered"
    assert max(sizes) < 20


# ---------------------------------------------------------------- pages


RING_STEP = 64_000 + 1_536  # entries in whole blocks of the ring (csrc/wd_ring.c)


def reserved_bytes() -> int:
    """Return what is resident of this process's large reservations, where rings and rows stand."""
    found = size_kb = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Size":
            size_kb = int(rest.split()[0])
        elif name == "Anonymous" and size_kb >= 64 * 1024:
            found += int(rest.split()[0]) * 1024
    return found


def test_a_ring_leaves_no_page_behind_when_it_moves_on() -> None:
    """Ended jobs and tokens come and are forgotten; where they stood nothing stays resident."""
    bench = Bench()
    conn, tokens = bench.open(), count()

    def end(jobs: int) -> None:
        lines = [b"SCHEDULE h now x EXPIRE now ONCE t%d\r\n" % next(tokens) for _ in range(jobs)]
        conn.feed(b"".join(lines))
        bench.advance(11_000)  # the sweep has been by
        bench.settle()
        conn.take()
        bench.frames.clear()

    kept = []
    for _ in range(3):
        for _ in range(64):
            end(1_000)
        for _ in range(RING_STEP - 64_000):  # each forgets at most 16,384
            bench.advance(HOUR_MS)
            end(1)
        kept.append(reserved_bytes())
    assert bench.core.check() == 0
    assert bench.core.engine_figures()["ended_count"] == 1
    assert kept[1] == kept[2]
    bench.core.close()
