"""Real clocks that count from somewhere else: each life of the server in a time namespace.

CLOCK_MONOTONIC and CLOCK_BOOTTIME of a namespace are ahead of the kernel's or behind it by offsets
that stand still while it lives; so a restart in another namespace is a jump of both, with the same
boot of the kernel and the same wall clock. Relative times, leases and WAIT have to be right by the
clock of somebody outside of all of them.
"""

import random
import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.crash.test_kill_cycles import play
from tests.history import now
from tests.load import fields_of
from tests.process import Server

DAY_S = 86_400
HOUR_MS = 3_600_000
SHORT_MS = 300
LEASE_MS = 1_000  # the shortest
GRACE_MS = 1_000  # behind a lease, before its job is somebody else's
STARTS = 3  # each rounds two clocks to the millisecond


def may_unshare() -> bool:
    """Return whether a process may be started in a time namespace of its own."""
    words = ["unshare", "-T", "--boottime", "1", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(words, check=False).returncode == 0


pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.skipif(not may_unshare(), reason="not run: no time namespaces for this user"),
]


def put_into(server: Server, mono_s: int, boot_s: int) -> None:
    """Let the next start be in a namespace with these offsets."""
    prefix(server, lambda: (mono_s, boot_s))


def prefix(server: Server, draw: Callable[[], tuple[int, int]]) -> None:
    """Let each start be in a namespace whose offsets are drawn."""
    serve = type(server).command

    def command(*options: str) -> list[str]:
        mono_s, boot_s = draw()
        offsets = ["--monotonic", str(mono_s), "--boottime", str(boot_s)]
        return ["unshare", "-T", *offsets, *serve(server, *options)]

    setattr(server, "command", command)  # noqa: B010 -- of this server alone


def due_ms(server, job):
    """Return the wall time of a job's due time as JOB tells it."""
    return fields_of(server.call("JOB", job))["due_ms"]


def test_delays_leases_and_waits_are_right_in_whatever_namespace_a_start_is(server):
    put_into(server, 3 * DAY_S, 400 * DAY_S)
    server.start()
    asked = now()
    far = server.call("SCHEDULE", "far", "+1h", "x")
    told = now()
    server.call("SCHEDULE", "h", "now", "x")
    [held] = server.call("LEASE", "h", "FOR", LEASE_MS)
    server.kill()

    put_into(server, 0, 0)  # back by 400 days
    server.start()
    server.kill()

    put_into(server, 40 * DAY_S, 4000 * DAY_S)
    server.start()
    back = now()
    assert server.call("COUNT", "STATE", "ready") == 0
    assert asked.wall_ms <= due_ms(server, far) - HOUR_MS + STARTS
    assert due_ms(server, far) - HOUR_MS <= told.wall_ms + STARTS
    with server.connect() as worker:
        for _ in range(2):
            begun = now().boot_ms
            assert worker.call("LEASE", "far", "WAIT", SHORT_MS) == []
            assert now().boot_ms - begun >= SHORT_MS
        begun = now().boot_ms
        worker.call("SCHEDULE", "soon", f"+{SHORT_MS}", "x")
        assert len(worker.call("LEASE", "soon", "WAIT", HOUR_MS // 12)) == 1
        assert now().boot_ms - begun >= SHORT_MS
        # The lease that lived through the starts has a full fresh term, and then it ends.
        [again] = worker.call("LEASE", "h", "WAIT", HOUR_MS // 12)
        assert now().boot_ms - back.boot_ms >= LEASE_MS
        assert again[1] == held[1]
    info = server.info()
    assert (info["suspends"], info["clock_steps"], info["clock_held"]) == ("0", "0", "0")


@pytest.mark.long
def test_kills_with_each_life_in_a_namespace_of_its_own_break_no_promise(server, seed):
    rng = random.Random(seed)

    def draw() -> tuple[int, int]:
        return rng.choice((0, 30, DAY_S)), rng.choice((0, 60, DAY_S, 400 * DAY_S, 10_000 * DAY_S))

    prefix(server, draw)
    play(server, rng, cycles=20, modes=("always", "interval", "off"), producers=3)
