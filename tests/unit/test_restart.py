"""What has been durable is there after any number of restarts."""

from tests.asking import ask, code, codes, job, lease, pass_time, schedule
from tests.fed import TERM, WALL_MS, Bench, Fed
from wheel.engine.core import Core
from wheel.engine.facts import Clocks


def restarted(bench: Bench, term: int) -> Core:
    core = Core(bench.options)
    for frame in bench.frames:
        core.replay(frame, term=TERM)
    core.start(term=term, rel_ms=WALL_MS, clocks=Clocks(wall_ms=WALL_MS, boot_ms=1, mono_ms=1))
    return core


def test_slots_freed_out_of_order_are_claimed_again_at_the_next_replay() -> None:
    """A start makes the list of free slots anew, in another order than jobs ended in."""
    bench = Bench()
    conn = bench.open()
    ids = [conn.ask(f"SCHEDULE h +1h {i}").split()[1].decode() for i in range(3)]
    for job_id in reversed(ids):
        assert b"+CANCELLED" in conn.ask(f"CANCEL {job_id}")
    bench.settle()
    second = restarted(bench, TERM + 1)
    bench.core.close()
    bench.core = second
    conn = bench.open()
    for i in range(3):
        conn.ask(f"SCHEDULE h +1h again{i}")
    with restarted(bench, TERM + 2) as third:
        assert third.check() == 0
        assert third.state_hash() == second.state_hash()


def restart(bench: Bench) -> Fed:
    """Kill the core and start one from its frames, at the same moment; return a connection."""
    bench.settle()
    rel_ms = bench.core.engine_figures()["rel_ms"]
    core = Core(bench.options)
    for frame in bench.frames:
        core.replay(frame, term=TERM)
    core.start(term=TERM, rel_ms=rel_ms, clocks=bench.clocks())
    assert core.state_hash() == bench.core.state_hash()
    bench.core.close()
    bench.core = core
    core.tick(bench.clocks())
    return bench.open()


def test_a_lease_that_lived_through_a_restart_has_a_full_term_and_its_end_counts_as_nothing() -> (
    None
):
    bench = Bench()
    conn = bench.open()
    job_id = schedule(conn, "h now x LEASE 10000")
    receipt = lease(conn, "h")
    pass_time(bench, 9000)
    conn = restart(bench)
    pass_time(bench, 10_999)
    assert ask(conn, "COUNT STATE leased") == 1
    pass_time(bench, 1)
    shown = job(conn, job_id)
    assert (shown["state"], shown["lost"], shown["failures"]) == (b"ready", 0, 0)
    assert codes(ask(conn, f"ACK {receipt}")) == ["OK"], "nobody else was given it"
    bench.check()


def test_one_heartbeat_after_a_restart_makes_a_later_loss_count() -> None:
    bench = Bench()
    conn = bench.open()
    job_id = schedule(conn, "h now x LEASE 10000")
    receipt = lease(conn, "h")
    conn = restart(bench)
    assert ask(conn, f"EXTEND {receipt}") == [10_000]
    pass_time(bench, 11_000)
    shown = job(conn, job_id)
    assert (shown["state"], shown["lost"]) == (b"ready", 1)


def test_a_time_out_begins_anew_with_a_restart_and_still_counts() -> None:
    bench = Bench()
    conn = bench.open()
    job_id = schedule(conn, "h now x LEASE 60000 TIMEOUT 5000")
    lease(conn, "h")
    pass_time(bench, 4000)
    conn = restart(bench)
    pass_time(bench, 4999)
    assert ask(conn, "COUNT STATE leased") == 1
    pass_time(bench, 1)
    assert job(conn, job_id)["failures"] == 1


def test_a_suspend_gives_every_lease_a_full_term() -> None:
    bench = Bench()
    conn = bench.open()
    job_id = schedule(conn, "h now x LEASE 10000")
    lease(conn, "h")
    clocks = bench.clocks()
    bench.wall_ms += 3_600_000
    bench.boot_ms += 3_600_000
    bench.core.tick(Clocks(wall_ms=bench.wall_ms, boot_ms=bench.boot_ms, mono_ms=clocks.mono_ms))
    bench.settle()
    assert bench.core.engine_figures()["suspends"] == 1
    bench.core.tick(
        Clocks(
            wall_ms=bench.wall_ms + 10_999,
            boot_ms=bench.boot_ms + 10_999,
            mono_ms=clocks.mono_ms + 10_999,
        )
    )
    assert ask(conn, "COUNT STATE leased") == 1
    bench.core.tick(
        Clocks(
            wall_ms=bench.wall_ms + 11_000,
            boot_ms=bench.boot_ms + 11_000,
            mono_ms=clocks.mono_ms + 11_000,
        )
    )
    assert job(conn, job_id)["lost"] == 1


def test_a_clock_that_was_accepted_stays_accepted_and_one_that_is_held_stays_held() -> None:
    bench = Bench()
    conn = bench.open()
    schedule(conn, f"h {WALL_MS + 5000} x")
    bench.wall_ms -= 7_200_000
    bench.core.tick(bench.clocks())
    bench.settle()
    conn = restart(bench)
    assert bench.core.engine_figures()["held_ms"] == 7_200_000
    pass_time(bench, 60_000)
    assert ask(conn, "LEASE h") == []
    bench.core.accept_clock()
    conn = restart(bench)
    assert bench.core.engine_figures()["held_ms"] == 0
    pass_time(bench, 7_200_000 - 60_000 + 4999)
    assert ask(conn, "LEASE h") == []
    pass_time(bench, 1)
    lease(conn, "h")


def test_a_job_that_came_due_by_a_clock_that_nobody_logged_is_late_once_and_never_early() -> None:
    """The clock runs on over an idle log and is set back while nothing runs: a start knows less."""
    bench = Bench()
    conn = bench.open()
    schedule(conn, f"h {WALL_MS + 60_000} x")
    taken = schedule(conn, f"g {WALL_MS + 60_000} x")
    bench.settle()
    pass_time(bench, 3_600_000)
    ready = bench.core.engine_figures()
    assert (ready["jobs_ready"], ready["logical_ms"]) == (2, WALL_MS + 3_600_000)
    bench.wall_ms -= 3_590_000  # ten seconds after what was logged last
    conn = restart(bench)
    figures = bench.core.engine_figures()
    assert (figures["logical_ms"], figures["held_ms"]) == (WALL_MS + 10_000, 0)
    assert figures["jobs_ready"] == 0
    pass_time(bench, 49_999)
    assert ask(conn, "LEASE h,g COUNT 9") == []
    pass_time(bench, 1)
    assert len(ask(conn, "LEASE h,g COUNT 9")) == 2
    conn = restart(bench)
    pass_time(bench, 1)
    assert ask(conn, "LEASE h,g COUNT 9") == []
    assert job(conn, taken)["attempt"] == 1


def test_tokens_keys_and_ends_are_known_after_a_restart() -> None:
    bench = Bench()
    conn = bench.open()
    first = schedule(conn, "h now x ONCE t KEY k")
    receipt = lease(conn, "h")
    assert code(ask(conn, f"DONE {receipt} answer")) == "OK"
    conn = restart(bench)
    assert ask(conn, "SCHEDULE h now x ONCE t KEY k") == [first.encode(), b"created", b"succeeded"]
    window = "SCHEDULE h now x KEY k WINDOW 60000"
    assert ask(conn, window) == [first.encode(), b"ended", b"succeeded"]
    assert job(conn, "k")["result"] == b"answer"
    assert code(ask(conn, f"DONE {receipt} answer")) == "ALREADY"
    assert codes(ask(conn, f"CANCEL {first}")) == ["ENDED"]
    bench.check()


def test_a_dead_job_and_its_reason_are_there_after_a_restart() -> None:
    bench = Bench()
    conn = bench.open()
    job_id = schedule(conn, "h now x KEY k")
    receipt = lease(conn, "h WORKER w")
    assert code(ask(conn, f"FAIL {receipt} DEAD ERROR broken")) == "DEAD"
    conn = restart(bench)
    shown = job(conn, job_id)
    assert (shown["state"], shown["reason"], shown["error"]) == (b"dead", b"rejected", b"broken")
    assert schedule(conn, "h +1h x KEY k") != job_id, "it has freed its key"
    assert codes(ask(conn, f"REQUEUE {job_id}")) == ["CONFLICT"]
    assert codes(ask(conn, "CANCEL k")) == ["CANCELLED"]
    assert codes(ask(conn, f"REQUEUE {job_id}")) == ["OK"]
    assert job(conn, job_id)["failures"] == 0
    bench.check()


def test_who_serves_under_strict_handlers_is_known_over_a_restart() -> None:
    """A planned restart must refuse no job only because its worker has not come back yet."""
    bench = Bench(strict_handlers=True)
    conn = bench.open()
    assert code(ask(conn, "SCHEDULE mail now x")) == "DENIED"
    ask(conn, "LEASE mail")
    conn = restart(bench)
    assert schedule(conn, "mail +1h x")
    assert code(ask(conn, "SCHEDULE post now x")) == "DENIED"
