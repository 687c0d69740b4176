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


def change(core, what="a payload that changed"):
    """Write into the payload of the job in slot 0; done twice, it is as it was."""
    lib = narrow.library()
    handle = lib.ffi.cast("wd_core *", core._core)
    assert lib.lib.wd_break(handle, what.encode()) == 1


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
    return goes_on(bench)


def goes_on(bench):
    """Return its state when it is over or stands."""
    for _ in range(1000):
        state = bench.core.checkpoint_state()
        if state.corrupt_id or state.phase in (CheckpointPhase.DONE, CheckpointPhase.FAILED):
            return state
        bench.settle()
    raise AssertionError(state)


@pytest.fixture
def standing():
    """Return a bench whose checkpoint stands at a payload that changed, and its disk."""
    bench, disk = small(), SimDisk()
    disk.make_folder("/snap")
    conn = bench.open()
    conn.ask("SCHEDULE h +1h first KEY k")
    conn.ask("SCHEDULE h now second")
    change(bench.core)
    state = begin(bench, disk)
    assert (state.phase, state.corrupt_id) == (CheckpointPhase.SCANS, FIRST)
    return bench, disk


def loaded(bench, disk):
    """Return a core that began with the checkpoint, and has replayed the log behind it."""
    with narrow.fed().Core(bench.options) as core:
        core.load(disk.read(PATH))
        for frame in bench.frames:
            core.replay(frame, term=7)
        core.start(term=8, rel_ms=bench.wall_ms, clocks=bench.clocks())
        return core.check(), core.state_hash()


def test_a_checkpoint_stands_at_a_payload_that_changed_and_everything_else_goes_on(standing):
    bench, _ = standing
    conn = bench.open()
    conn.ask("SCHEDULE h now third")
    reply = conn.ask("LEASE h COUNT 5")
    assert b"second" in reply
    assert b"third" in reply
    assert goes_on(bench).corrupt_id == FIRST
    bench.core.checkpoint_go_on()  # nothing was put back
    bench.settle()
    assert goes_on(bench).corrupt_id == FIRST
    bench.core.checkpoint_abort()
    assert bench.core.checkpoint_state().phase == CheckpointPhase.IDLE


def test_a_payload_that_is_put_back_lets_the_checkpoint_go_on_and_be_whole(standing):
    bench, disk = standing
    conn = bench.open()
    for name in range(30):  # handlers that the rows behind name, and rows that were written
        conn.ask(f"SCHEDULE h{name % 5} now another-{name}")
    assert bench.core.mend(FIRST, b"first")
    assert bench.core.check() == 0
    bench.core.checkpoint_go_on()
    assert goes_on(bench).phase == CheckpointPhase.DONE
    assert loaded(bench, disk) == (0, bench.core.state_hash())
    bench.check()


@pytest.mark.parametrize("wrong", [b"firsT", b"fir", b"first-", b"", b"hirst"])
def test_only_what_was_scheduled_is_put_back(standing, wrong):
    bench, _ = standing
    assert not bench.core.mend(FIRST, wrong)
    assert bench.core.check() == 15
    assert bench.core.mend(FIRST, b"first")
    bench.check()


def test_a_checksum_that_changed_is_made_anew_of_bytes_that_the_disk_has_as_well():
    bench = small()
    conn = bench.open()
    conn.ask("SCHEDULE h now first")
    change(bench.core, "a checksum that changed")
    assert bench.core.check() == 15
    assert not bench.core.mend(FIRST, b"girst")
    assert bench.core.mend(FIRST, b"first")
    assert b"first" in conn.ask("LEASE h")
    bench.check()


def test_without_a_checkpoint_there_is_nothing_to_go_on_and_before_the_start_nothing_to_mend():
    bench = small()
    bench.core.checkpoint_go_on()
    assert bench.core.checkpoint_state().phase == CheckpointPhase.IDLE
    with narrow.fed().Core(bench.options) as fresh:
        assert not fresh.mend(FIRST, b"first")


def test_nothing_is_mended_that_is_whole_or_gone(standing):
    bench, disk = standing
    conn = bench.open()
    assert bench.core.mend(FIRST + 1, b"other")  # whole: it stays as it is
    assert b"second" in conn.ask("LEASE h")
    conn.ask("CANCEL k")
    assert bench.core.mend(FIRST, b"other")
    bench.core.checkpoint_go_on()
    assert goes_on(bench).phase == CheckpointPhase.DONE
    assert loaded(bench, disk) == (0, bench.core.state_hash())


def test_a_job_made_anew_meanwhile_lets_the_checkpoint_go_on(standing):
    bench, disk = standing
    bench.open().ask("SCHEDULE h +1h another KEY k ONDUP replace")
    assert bench.core.mend(FIRST, b"first")
    bench.core.checkpoint_go_on()
    assert goes_on(bench).phase == CheckpointPhase.DONE
    assert loaded(bench, disk) == (0, bench.core.state_hash())


def test_a_dead_job_whose_payload_was_put_back_is_requeued_without_a_restart(standing):
    bench, _ = standing
    conn = bench.open()
    conn.ask("RUN k")
    assert b"second" in conn.ask("LEASE h COUNT 2")
    assert dead(conn)
    assert bench.core.mend(FIRST, b"first")
    conn.ask(f"REQUEUE {FIRST}")
    assert b"first" in conn.ask("LEASE h")
    bench.check()


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


def test_what_is_ready_is_given_out_although_its_death_filled_the_frame():
    """A frame ends at 512 KiB; wherever that is, who waits has the job behind it at once."""
    line = b"SCHEDULE other +1h %b KEY k\r\nCANCEL k\r\n"
    ends = set()
    for last in range(1, 8_000, 100):
        bench = small()
        conn = bench.open()
        conn.ask("SCHEDULE h now first")
        conn.ask("SCHEDULE h now second")
        change(bench.core)
        frames = len(bench.frames)
        lines = line % (b"x" * 8_000) * 64 + line % (b"x" * last)
        conn.feed(lines + b"LEASE h WAIT 60000\r\n")
        bench.settle()
        assert b"\r\n$6\r\nsecond\r\n" in conn.take(), last
        assert dead(bench.open())
        ends.add(tuple(len(frame) > 500_000 for frame in bench.frames[frames:]))
    assert ends == {(True,), (True, False)}
