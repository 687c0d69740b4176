"""kill -9 at random moments, again and again, and a history that tells whether a promise broke.

The seed chooses the load, the moments, and where in a start a kill comes.
"""

import random
import subprocess
import time

import pytest

from tests.drop_record import drop
from tests.history import History
from tests.load import Load, ask_ends, find_jobs, make_load
from tests.process import DEADLINE_S, Server

pytestmark = [pytest.mark.crash, pytest.mark.slow]

MODES = ("always", "interval", "off")
EVENTS_MAX = 900  # noted between two kills
LATER_S = 0.03  # and so much later at most: in the middle of anything
START_S = 1.2  # about what a start takes
NEAR_MS = 3_600_000


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)


def pass_time(server: Server, seconds: float) -> None:
    """Let a moment pass while the process must not end."""
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(seconds)


def kill_in_start(server: Server, rng: random.Random, mode: str) -> None:
    """Start, and kill before it serves: at a random moment, or at a step of the start."""
    server.spawn("--fsync", mode)
    step = rng.choice(("", "server_started", "replay_finished"))
    if step:
        server.wait_event(step)
        pass_time(server, rng.uniform(0, LATER_S))
    else:
        pass_time(server, rng.uniform(0, START_S))
    server.kill()


def kill_cycles(server: Server, load: Load, rng: random.Random, cycles: int, modes) -> None:
    """Live and die so often, with checkpoints on the way; the last life goes on."""
    server.options = ("--segment-size", "4M", "--checkpoint-after", "1M")
    load.start()
    for _ in range(cycles):
        if rng.random() < 0.25:
            kill_in_start(server, rng, rng.choice(modes))
        server.start("--fsync", rng.choice(modes))
        load.life()
        load.stage.wait_events(rng.randrange(1, EVENTS_MAX))
        pass_time(server, rng.uniform(0, LATER_S))
        server.kill()
        load.stage.set_up(False)
    server.start("--fsync", rng.choice(modes))
    load.life()


def drain(server: Server, load: Load) -> History:
    """Let the workers end all that is due within the hour; return the history with all ends."""
    load.stage.draining = True
    deadline_s = time.monotonic() + DEADLINE_S
    while find_near(server):
        assert time.monotonic() < deadline_s, "jobs are due, and nobody is given them"
        assert not load.stage.faults, load.stage.faults
    load.stop()
    ask_ends(server, load.stage.history)
    return load.stage.history


def find_near(server: Server) -> list[int]:
    """Return the jobs that are to be done within the hour."""
    until_ms = int(time.time() * 1000) + NEAR_MS
    return [
        job
        for state in ("scheduled", "ready", "leased")
        for job in find_jobs(server, state=state, to=until_ms)
    ]


def hold(server: Server, history: History, term: int) -> None:
    """The history breaks no promise, the log has no damage, and INFO agrees."""
    assert history.check() == []
    info = server.info()
    states = list(history.states.values())
    for state in ("scheduled", "held", "ready", "leased", "dead"):
        assert int(info[f"jobs_{state}"]) == states.count(state), state
    assert int(info["term"]) >= term
    assert info["lsn"] == info["durable_lsn"]
    assert (info["loading"], info["disk_full"]) == ("0", "0")
    verified = verify(server)
    assert verified.returncode == 0, verified.stdout
    assert server.terminate() == 0
    verified = verify(server)
    assert verified.returncode == 0, verified.stdout
    assert "no damage" in verified.stdout


def verify(server: Server) -> subprocess.CompletedProcess[str]:
    command = server.command()
    words = [*command[: command.index("serve")], "wal", "verify", str(server.data)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


def play(server: Server, rng: random.Random, *, cycles: int, modes, producers: int = 2) -> History:
    server.options = ("--segment-size", "4M")
    load = make_load(server, rng.randrange(1 << 32), producers=producers)
    try:
        kill_cycles(server, load, rng, cycles, modes)
        history = drain(server, load)
    finally:
        load.stage.stop()
    hold(server, history, cycles + 1)
    return history


def test_kill_at_random_moments_breaks_no_promise(server, rng):
    play(server, rng, cycles=6, modes=("always",))


@pytest.mark.parametrize("mode", ["interval", "off"])
def test_kill_breaks_no_promise_without_a_sync_before_each_reply(server, rng, mode):
    play(server, rng, cycles=2, modes=(mode,))


def test_kill_breaks_no_promise_when_each_life_has_another_mode(server, rng):
    play(server, rng, cycles=2, modes=MODES, producers=3)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_kill_during_one_start_after_the_other_loses_nothing(server, rng, how):
    """No start comes to its end: what each has done to the directory is what the next one finds."""
    server.options = ("--segment-size", "4M")
    server.start()
    with server.connect() as connection:
        connection.send(*(("SCHEDULE", "h", "+1d", f"p{n}", "KEY", f"k{n}") for n in range(3000)))
        jobs = {connection.read()[0] for _ in range(3000)}
    assert len(jobs) == 3000
    if how == "killed":
        server.kill()
    else:
        assert server.terminate() == 0
    for _ in range(5):
        kill_in_start(server, rng, rng.choice(MODES))
    server.start()
    assert {b"%d" % job for job in find_jobs(server)} == jobs
    assert server.terminate() == 0
    assert verify(server).returncode == 0


def test_one_record_that_is_missing_from_the_log_is_noticed(server, rng):
    """Or the tests above would prove nothing."""
    load = make_load(server, rng.randrange(1 << 32))
    server.start()
    load.start()
    load.life()
    try:
        load.stage.wait_events(EVENTS_MAX)
        server.kill()
        load.stage.set_up(False)
        drop(max((server.data / "wal").glob("*.wal")))
        server.start()
        load.life()
        history = drain(server, load)
    finally:
        load.stage.stop()
    assert {violation.rule for violation in history.check()} & {"lost", "id_twice"}


@pytest.mark.long
@pytest.mark.parametrize("modes", [("always",), ("interval",), ("off",), MODES], ids=str)
def test_fifty_kills_break_no_promise(server, rng, modes):
    play(server, rng, cycles=50, modes=modes, producers=3)
