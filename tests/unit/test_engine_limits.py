"""Each limit of the engine is met with a named error, and what must go on goes on."""

from dataclasses import replace

from tests.asking import ask, code, codes, job, lease, leased, pass_time, schedule
from tests.fed import TERM, Bench
from wheel.engine.core import Core
from wheel.wire import encode_command


def test_without_memory_for_jobs_new_ones_are_refused_and_old_ones_are_finished() -> None:
    bench = Bench(maxmemory_bytes=1 << 20)
    conn = bench.open()
    ids: list[str] = []
    line = f"SCHEDULE h now {'x' * 4000}"
    while code(reply := ask(conn, line)) != "OOM":
        assert isinstance(reply, bytes)
        ids.append(reply.decode())
    assert len(ids) > 50
    before = bench.core.state_hash()
    assert code(ask(conn, f"SCHEDULE unseen now {'x' * 4000} RETRIES 17")) == "OOM"
    assert bench.core.state_hash() == before, "not even a name was made"
    receipts = [lease(conn, "h") for _ in range(4)]
    assert codes(ask(conn, f"ACK {receipts[0]}")) == ["OK"]
    assert code(ask(conn, f"FAIL {receipts[1]} DEAD ERROR why")) == "DEAD"
    assert code(ask(conn, f"DONE {receipts[2]} {'r' * 4000}")) == "OK"
    assert ask(conn, f"EXTEND {receipts[3]} FOR 120000") == [120_000]
    assert codes(ask(conn, f"CANCEL {ids[10]}")) == ["CANCELLED"]
    for _ in range(20):
        assert codes(ask(conn, f"ACK {lease(conn, 'h')}")) == ["OK"]
    schedule(conn, "h now small")
    bench.check()


def test_a_full_table_of_jobs_is_named_and_has_room_again() -> None:
    bench = Bench(jobs_max=10)
    conn = bench.open()
    for _ in range(10):
        schedule(conn, "h now x")
    before = bench.core.state_hash()
    reply = conn.ask("SCHEDULE unseen now x")
    assert reply.startswith(b"-LIMIT ")
    assert b"jobs" in reply
    assert bench.core.state_hash() == before
    assert codes(ask(conn, f"ACK {lease(conn, 'h')}")) == ["OK"]
    schedule(conn, "h now x")
    bench.check()


def test_a_full_table_of_handlers_is_named_and_the_old_ones_work() -> None:
    bench = Bench(jobs_max=70_000)
    conn = bench.open()
    for first in range(0, 65_000, 1000):
        names = range(first, first + 1000)
        conn.feed(b"".join(b"HANDLER h%d CONCURRENCY 1\r\n" % i for i in names))
        bench.settle()
        conn.take()
    reply = conn.ask("SCHEDULE one-too-many now x")
    assert reply.startswith(b"-LIMIT ")
    assert b"handlers" in reply
    schedule(conn, "h64999 now x")
    lease(conn, "h6499*")
    assert ask(conn, "LEASE *") == []
    bench.check()


def test_a_full_table_of_policies_is_named_and_the_old_ones_work() -> None:
    bench = Bench(jobs_max=70_000)
    conn = bench.open()
    for lost in range(66):
        conn.feed(
            b"".join(b"SCHEDULE h +1h x RETRIES %d LOST %d\r\n" % (i, lost) for i in range(1000))
        )
        bench.settle()
        conn.take()
    before = bench.core.state_hash()
    reply = conn.ask("SCHEDULE h +1h x RETRIES 999 LOST 999")
    assert reply.startswith(b"-LIMIT ")
    assert b"policies" in reply
    assert bench.core.state_hash() == before
    assert bench.core.engine_figures()["policies_count"] == 65_000
    schedule(conn, "h now x RETRIES 5 LOST 5")


def test_one_lease_carries_at_most_256_kib_and_at_least_one_job() -> None:
    bench = Bench(payload_bytes_max=1 << 20)
    conn = bench.open()
    for size in (60_000, 60_000, 60_000, 60_000, 60_000, 600_000, 5):
        conn.feed(encode_command(["SCHEDULE", "h", "now", "x" * size]))
        bench.settle()
        conn.take()
    sizes = []
    while (reply := ask(conn, "LEASE h COUNT 100")) != []:
        assert isinstance(reply, list)
        payloads = [item[7] for item in reply if isinstance(item, list)]
        sizes.append([len(payload) for payload in payloads if isinstance(payload, bytes)])
    assert sizes == [[60_000] * 4, [60_000], [600_000], [5]]
    bench.check()


def test_times_at_the_end_of_the_axis_are_kept_and_none_overflows() -> None:
    bench = Bench()
    conn = bench.open()
    last_ms = (1 << 48) - 1
    far = schedule(conn, f"h {last_ms} x EXPIRE {last_ms}")
    assert job(conn, far)["due_ms"] == last_ms
    relative = schedule(conn, "h +3257812d x EXPIRE +3257812d")
    assert job(conn, relative)["due_ms"] == last_ms
    schedule(conn, "h now x LEASE 2592000000 TIMEOUT 2592000000")
    receipt = lease(conn, "h")
    assert ask(conn, f"EXTEND {receipt} FOR 2592000000") == [2_592_000_000]
    assert code(ask(conn, f"FAIL {receipt} IN 2592000000")).startswith("RETRY ")
    pass_time(bench, 2_592_000_000)
    assert leased(ask(conn, "LEASE h"))[4] == 2
    bench.check()


def test_a_long_error_text_is_cut() -> None:
    bench = Bench()
    conn = bench.open()
    job_id = schedule(conn, "h now x")
    assert code(ask(conn, f"FAIL {lease(conn, 'h')} DEAD ERROR {'e' * 5000}")) == "DEAD"
    assert job(conn, job_id)["error"] == b"e" * 1024
    bench.check()


def test_what_came_of_a_failed_attempt_is_kept_whole_behind_its_error_text() -> None:
    bench = Bench()
    conn = bench.open()
    job_id = schedule(conn, "h now x")
    receipt = lease(conn, "h")
    assert code(ask(conn, f"FAIL {receipt} DEAD RESULT {'r' * 4097}")) == "LIMIT"
    assert job(conn, job_id)["state"] == b"leased"
    words = f"DEAD ERROR {'e' * 5000} RESULT {'r' * 4096}"
    assert code(ask(conn, f"FAIL {receipt} {words}")) == "DEAD"
    assert job(conn, job_id)["error"] == b"e" * 1024 + b"\n" + b"r" * 4096
    other = schedule(conn, "h now x")
    assert code(ask(conn, f"FAIL {lease(conn, 'h')} DEAD RESULT alone")) == "DEAD"
    assert job(conn, other)["error"] == b"alone"
    bench.check()


def test_the_last_eight_attempts_are_kept() -> None:
    bench = Bench()
    conn = bench.open()
    job_id = schedule(conn, "h now x RETRIES 100")
    for _ in range(11):
        ask(conn, f"FAIL {lease(conn, 'h')} IN 0")
    attempts = job(conn, job_id)["attempts"]
    assert isinstance(attempts, list)
    assert [one[0] for one in attempts if isinstance(one, list)] == list(range(4, 12))
    bench.check()


def test_a_token_is_good_for_ten_minutes_and_a_result_for_an_hour() -> None:
    bench = Bench()
    conn = bench.open()
    first = schedule(conn, "h now x ONCE token")
    assert code(ask(conn, f"DONE {lease(conn, 'h')} answer")) == "OK"
    pass_time(bench, 599_999)
    assert schedule(conn, "h now x ONCE token") == first
    pass_time(bench, 1)
    assert schedule(conn, "h now x ONCE token") != first
    assert job(conn, first)["result"] == b"answer"
    pass_time(bench, 3_000_000)
    schedule(conn, "h now x")
    assert ask(conn, f"JOB {first}") is None
    bench.check()


def test_a_frame_forgets_as_many_ended_jobs_live_as_when_it_is_replayed() -> None:
    """At most 16 k, also when the batch was opened, for its memory, before it had a record."""
    count = 20_000
    bench = Bench(jobs_max=count + 1)
    conn = bench.open()
    for _ in range(20):
        conn.feed(b"SCHEDULE h +9h x\r\n" * (count // 20))
        bench.settle()
        conn.take()
    for first in range(0, count, 1000):
        ask(conn, "CANCEL " + " ".join(str(1 << 32 | slot) for slot in range(first, first + 1000)))
    bench.advance(3_600_001)
    schedule(conn, "h +9h one")
    assert bench.core.engine_figures()["ended_count"] == count - 16 * 1024
    bench.check()


def test_without_memory_time_goes_on_jobs_expire_and_leases_are_lost() -> None:
    bench = Bench(maxmemory_bytes=1 << 20)
    conn = bench.open()
    expiring = schedule(conn, f"e +1h {'x' * 1000} EXPIRE +2h")
    schedule(conn, f"l now {'x' * 1000} LEASE 1000 TIMEOUT 0")
    schedule(conn, f"t now {'x' * 1000} LEASE 60000 TIMEOUT 2000 RETRIES 0")
    lease(conn, "l")
    lease(conn, "t")
    while code(ask(conn, f"SCHEDULE h +1d {'x' * 4000}")) != "OOM":
        pass
    pass_time(bench, 5_000)
    assert ask(conn, "COUNT STATE leased") == 0
    assert ask(conn, "COUNT STATE dead") == 1, "its time was over, and it had no retry"
    assert ask(conn, "COUNT HANDLER l STATE ready") == 1
    pass_time(bench, 2 * 3_600_000 + 10_000)
    assert job(conn, expiring)["state"] == b"expired"
    bench.check()


def test_dead_list_keeps_the_newest_up_to_its_number_and_its_age() -> None:
    bench = Bench(dead_max=5, dead_kept_ms=60_000)
    conn = bench.open()
    ids = [schedule(conn, "h now x") for _ in range(9)]
    for _ in ids:
        assert code(ask(conn, f"FAIL {lease(conn, 'h')} DEAD")) == "DEAD"
    kept = ask(conn, "COUNT STATE dead")
    assert isinstance(kept, int)
    assert kept in (5, 6)
    assert [ask(conn, f"JOB {name}") is not None for name in ids] == [False] * (9 - kept) + [
        True
    ] * kept
    pass_time(bench, 60_001)
    schedule(conn, "h now x")
    assert ask(conn, "COUNT STATE dead") == 0
    assert bench.core.engine_figures()["dead_dropped"] == 9
    bench.check()


def test_full_ended_ring_forgets_the_oldest_and_counts_them() -> None:
    bench = Bench(ended_max=100)
    conn = bench.open()
    receipts = []
    for _ in range(300):
        schedule(conn, "h now x")
        receipts.append(lease(conn, "h"))
        assert codes(ask(conn, f"ACK {receipts[-1]}")) == ["OK"]
    figures = bench.core.engine_figures()
    assert figures["ended_count"] <= 100
    assert figures["ring_dropped"] == 300 - figures["ended_count"]
    assert codes(ask(conn, f"ACK {receipts[-1]}")) == ["ALREADY"]
    assert codes(ask(conn, f"ACK {receipts[0]}")) != ["ALREADY"], "forgotten before its hour"
    bench.check()


def test_full_ring_of_once_tokens_forgets_the_oldest_and_counts_them() -> None:
    bench = Bench(once_max=100)
    conn = bench.open()
    ids = [schedule(conn, f"h +1h x ONCE t{number}") for number in range(300)]
    figures = bench.core.engine_figures()
    assert figures["once_count"] <= 100
    assert figures["once_dropped"] == 300 - figures["once_count"]
    assert schedule(conn, "h +1h x ONCE t299") == ids[299]
    assert schedule(conn, "h +1h x ONCE t0") != ids[0]
    bench.check()


def test_lower_limits_after_a_restart_are_kept_from_the_next_change_on() -> None:
    """Apply reads no option: the replay under other limits makes the same state first."""
    bench = Bench()
    conn = bench.open()
    for number in range(300):
        schedule(conn, f"h now x ONCE t{number}")
        assert codes(ask(conn, f"ACK {lease(conn, 'h')}")) == ["OK"]
    for _ in range(20):
        schedule(conn, "h now x")
        assert code(ask(conn, f"FAIL {lease(conn, 'h')} DEAD")) == "DEAD"
    bench.options = replace(bench.options, dead_max=5, ended_max=64, once_max=64)
    bench.check()
    with Core(bench.options) as core:
        for frame in bench.frames:
            core.replay(frame, term=TERM)
        core.start(term=TERM + 1, rel_ms=bench.wall_ms, clocks=bench.clocks())
        bench.core = core
        conn = bench.open()
        schedule(conn, "h now x")
        figures = core.engine_figures()
        assert figures["jobs_dead"] <= 6
        assert figures["ended_count"] <= 64
        assert figures["once_count"] <= 65
        assert core.check() == 0
