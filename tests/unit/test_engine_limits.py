"""Each limit of the engine is met with a named error, and what must go on goes on."""

from tests.asking import ask, code, codes, job, lease, leased, pass_time, schedule
from tests.fed import Bench
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
