"""A payload that changed in memory is given to nobody, and reaches no disk."""

import pytest

from tests import narrow
from tests.fed import Bench
from tests.simdisk import SimDisk
from wheel.engine.facts import CheckpointPhase

FIRST = 1 << 32  # the id of the job in slot 0
REASON = b"reason\r\n$7\r\ncorrupt\r\n"
NONE = b"*0\r\n"
PATH = "/snap/one"


def small():
    return narrow.fed().Bench(jobs_max=100, ended_max=narrow.MOST, once_max=narrow.MOST)


def change(core):
    """Write into the payload of the job in slot 0; done twice, it is as it was."""
    lib = narrow.library()
    handle = lib.ffi.cast("wd_core *", core._core)
    assert lib.lib.wd_break(handle, b"a payload that changed") == 1


def restarted(bench):
    """Return a bench over a core that replayed what is on the disk."""
    other = small()
    other.core.close()
    other.core = narrow.fed().Core(other.options)
    for frame in bench.frames:
        other.core.replay(frame, term=7)
    other.wall_ms, other.boot_ms = bench.wall_ms, bench.boot_ms
    other.core.start(term=8, rel_ms=bench.wall_ms, clocks=other.clocks())
    other.core.tick(other.clocks())
    return other


def dead(conn):
    shown = conn.ask(f"JOB {FIRST}")
    return (
        b"state\r\n$4\r\ndead\r\n" in shown and REASON in shown and b"restart the server" in shown
    )


def test_a_payload_that_changed_is_given_to_nobody_and_the_others_are():
    bench = small()
    conn = bench.open()
    for word in ("payload-1", "payload-2", "payload-3"):
        conn.ask(f"SCHEDULE mail now {word} KEY key-of-{word}")
    change(bench.core)
    assert bench.core.check() == 15
    reply = conn.ask("LEASE mail COUNT 10")
    assert reply.startswith(b"*2\r\n")
    assert b"payload-1" not in reply
    assert b"payload-2" in reply
    assert b"payload-3" in reply
    assert dead(conn)
    assert b"%d" % FIRST in conn.ask("DEAD")
    figures = bench.core.engine_figures()
    assert (figures["payload_corrupt"], figures["corrupt_id"]) == (1, FIRST)
    assert bench.core.handler_name(figures["corrupt_handler"]) == "mail"
    assert (figures["died"], figures["jobs_dead"], figures["jobs_leased"]) == (1, 1, 2)
    change(bench.core)
    bench.check()


def test_what_is_behind_it_is_given_out_in_its_place():
    bench = small()
    conn = bench.open()
    conn.ask("SCHEDULE h now first")
    change(bench.core)
    assert conn.ask("LEASE h") == NONE
    assert dead(conn)
    conn.ask(f"REQUEUE {FIRST}")
    conn.ask("SCHEDULE h now second")
    assert b"second" in conn.ask("LEASE h COUNT 1")
    assert bench.core.engine_figures()["payload_corrupt"] == 2


def test_a_lease_that_waits_goes_on_waiting():
    bench = small()
    conn = bench.open()
    bench.open().ask("SCHEDULE h +5s first")
    change(bench.core)
    conn.feed(b"LEASE h WAIT 60000\r\n")
    bench.advance(5000)
    bench.settle()
    assert conn.take() == b""
    assert dead(bench.open())
    bench.open().ask("SCHEDULE h now second")
    assert b"second" in conn.take()


def test_a_limit_of_concurrency_has_its_place_back():
    bench = small()
    conn = bench.open()
    conn.ask("HANDLER h CONCURRENCY 1")
    conn.ask("SCHEDULE h now first")
    conn.ask("SCHEDULE h now second")
    change(bench.core)
    assert b"second" in conn.ask("LEASE h COUNT 2")


@pytest.mark.parametrize("how", ["FAIL {0}", "RELEASE {0}", ""])
def test_it_is_looked_at_each_time_that_it_is_given_out(how):
    bench = small()
    conn = bench.open()
    conn.ask("SCHEDULE h now first LEASE 1000 BACKOFF fixed 1")
    receipt = conn.ask("LEASE h").split(b"\r\n")[3].decode()
    change(bench.core)
    if how:
        conn.ask(how.format(receipt))
    bench.advance(5_000)
    assert conn.ask("LEASE h") == NONE
    assert dead(conn)
    change(bench.core)
    bench.check()


def test_a_restart_has_the_payload_again_and_a_requeue_gives_it_out():
    bench = small()
    conn = bench.open()
    conn.ask("SCHEDULE h now first RETRIES 0 KEY k")
    change(bench.core)
    assert conn.ask("LEASE h") == NONE
    other = restarted(bench)
    conn = other.open()
    assert dead(conn)
    conn.ask(f"REQUEUE {FIRST}")
    assert b"first" in conn.ask("LEASE h")
    assert other.core.engine_figures()["payload_corrupt"] == 0
    change(other.core)
    assert other.core.check() == 15  # what was replayed is looked at as well


def test_a_replaced_payload_is_sealed_anew():
    bench = small()
    conn = bench.open()
    conn.ask("SCHEDULE h now first KEY k")
    change(bench.core)
    conn.ask("SCHEDULE h now another KEY k ONDUP replace")
    assert bench.core.check() == 0
    assert b"another" in conn.ask("LEASE h")
    bench.check()


def begin(bench, disk):
    bench.core.checkpoint_start(PATH, salt=1, io=disk.io, threaded=False, slice_things=3)
    for _ in range(1000):
        state = bench.core.checkpoint_state()
        if state.phase in (CheckpointPhase.DONE, CheckpointPhase.FAILED):
            return state
        bench.settle()
    raise AssertionError(state)


def test_a_payload_that_changed_fails_the_checkpoint_and_nothing_else():
    bench, disk = small(), SimDisk()
    disk.make_folder("/snap")
    conn = bench.open()
    conn.ask("SCHEDULE h +1h first")
    conn.ask("SCHEDULE h now second")
    change(bench.core)
    state = begin(bench, disk)
    assert (state.phase, state.error, state.call) == (CheckpointPhase.FAILED, 0, "payload")
    assert state.corrupt_id == FIRST
    bench.core.checkpoint_abort()
    assert b"second" in conn.ask("LEASE h")
    change(bench.core)
    assert begin(bench, disk).phase == CheckpointPhase.DONE


def test_what_a_checkpoint_brought_is_looked_at_as_well():
    bench, disk = small(), SimDisk()
    disk.make_folder("/snap")
    bench.open().ask("SCHEDULE h now first")
    assert begin(bench, disk).phase == CheckpointPhase.DONE
    with narrow.fed().Core(bench.options) as core:
        core.load(disk.read(PATH))
        bench.core = core
        bench.wall_ms += 1000
        core.start(term=8, rel_ms=bench.wall_ms, clocks=bench.clocks())
        core.tick(bench.clocks())
        assert core.check() == 0
        change(core)
        conn = bench.open()
        assert conn.ask("LEASE h") == NONE
        assert dead(conn)


def test_payloads_of_every_length_near_a_size_class_come_whole():
    bench = Bench(payload_bytes_max=1 << 20)
    conn = bench.open()
    for n in [*range(36), *range(4080, 4101), 65_532, 65_536, (1 << 20) - 4, 1 << 20]:
        payload = bytes(i * 7 % 251 for i in range(n))
        conn.ask(b"*4\r\n$8\r\nSCHEDULE\r\n$1\r\nh\r\n$3\r\nnow\r\n$%d\r\n%b" % (n, payload))
        reply = conn.ask("LEASE h")
        assert b"$%d\r\n%b\r\n" % (n, payload) in reply
        assert bench.core.check() == 0
        if n % 2:
            conn.ask(b"ACK " + reply.split(b"\r\n")[3])
    bench.check()
