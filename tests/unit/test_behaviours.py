"""Behaviours that other schedulers' users had to report; the clock is moved by hand."""

import random
from datetime import UTC, datetime

import pytest

from tests.asking import (
    ask,
    code,
    codes,
    job,
    lease,
    leased,
    pass_time,
    replies,
    schedule,
    text,
)
from tests.fed import WALL_MS, Bench, Fed
from wheel.wire import Reply

HOUR_MS = 3_600_000
NO_JOBS = b"*0\r\n"


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.check()


def step_wall(bench: Bench, ms: int) -> None:
    """Set the wall clock by hand; nothing else moves."""
    bench.wall_ms += ms
    bench.core.tick(bench.clocks())
    bench.settle()


# ---------------------------------------------------------------- time


def test_o1_a_job_far_ahead_is_delivered_once_at_its_time_and_holds_nothing_until_then(
    bench: Bench,
) -> None:
    worker, other = bench.open(), bench.open()
    schedule(other, "h +60s x LEASE 10000")
    worker.feed(b"LEASE h WAIT 300000\r\n")
    for _ in range(59):
        pass_time(bench, 1000)
        assert worker.take() == b""
    assert ask(other, "COUNT STATE leased") == 0
    session = bench.core.session(worker.handle)
    assert session
    assert (session.leases_unsent, session.leases_bound) == (0, 0)
    pass_time(bench, 999)
    assert worker.take() == b""
    pass_time(bench, 1)
    [reply] = replies(worker.take())
    assert leased(reply)[4:6] == [1, WALL_MS + 60_000]
    pass_time(bench, 1)
    assert ask(other, "LEASE h") == []


def test_o2_timers_ahead_do_not_hold_up_what_is_due_and_a_second_worker_gets_its_share() -> None:
    bench = Bench(jobs_max=60_000)
    producer, first, second = bench.open(), bench.open(), bench.open()
    ahead = b"SCHEDULE h +1h x\r\n" * 500
    for _ in range(100):
        producer.feed(ahead)
        bench.settle()
        producer.take()
    assert ask(producer, "COUNT STATE scheduled") == 50_000
    first.feed(b"LEASE h COUNT 1 WAIT 300000\r\n")
    second.feed(b"LEASE h COUNT 1 WAIT 300000\r\n")
    got = {first: 0, second: 0}
    for _ in range(10):
        schedule(producer, "h now due")
        for worker in got:
            if data := worker.take():
                got[worker] += 1
                receipt = text(leased(replies(data)[0])[0])
                assert codes(ask(worker, f"ACK {receipt}")) == ["OK"]
                worker.feed(b"LEASE h COUNT 1 WAIT 300000\r\n")
                bench.settle()
    assert got == {first: 5, second: 5}
    session = bench.core.session(first.handle)
    assert session
    assert session.output_bytes == 0
    assert bench.core.check() == 0


def test_o4_a_new_timer_is_not_later_for_all_that_are_held() -> None:
    """Counted in rounds: the job is handed out in the very tick in which it is due."""
    bench = Bench(jobs_max=150_000)
    producer, worker = bench.open(), bench.open()
    chunk = b"".join(b"SCHEDULE far +%dh x\r\n" % (1 + i % 700) for i in range(1000))
    for _ in range(100):
        producer.feed(chunk)
        bench.settle()
        producer.take()
    assert ask(producer, "COUNT STATE scheduled") == 100_000
    for delay_ms in (2000, 200_000):
        schedule(producer, f"near +{delay_ms} x")
        worker.feed(b"LEASE near WAIT 300000\r\n")
        pass_time(bench, delay_ms - 1)
        assert worker.take() == b""
        before = bench.core.stats()
        bench.advance(1)
        bench.settle()
        after = bench.core.stats()
        [reply] = replies(worker.take())
        receipt = text(leased(reply)[0])
        assert after["ticks_cut"] == before["ticks_cut"], "done in the first slice of the tick"
        assert codes(ask(worker, f"ACK {receipt}")) == ["OK"]


def test_o5_a_wall_clock_set_back_holds_absolute_times_and_leaves_relative_ones_alone(
    bench: Bench,
) -> None:
    conn = bench.open()
    schedule(conn, f"absolute {WALL_MS + 60_000} x")
    schedule(conn, "relative +5s x")
    schedule(conn, "failing now x BACKOFF fixed 7000")
    receipt = lease(conn, "failing")
    assert code(ask(conn, f"FAIL {receipt}")) == f"RETRY {WALL_MS + 7000}"
    step_wall(bench, -2 * HOUR_MS)
    assert bench.core.engine_figures()["held_ms"] == 2 * HOUR_MS
    assert bench.core.engine_figures()["clock_steps"] == 1
    pass_time(bench, 4999)
    assert ask(conn, "LEASE relative") == []
    pass_time(bench, 1)
    lease(conn, "relative")
    pass_time(bench, 1999)
    assert ask(conn, "LEASE failing") == []
    pass_time(bench, 1)
    lease(conn, "failing")
    pass_time(bench, 60_000)
    assert ask(conn, "LEASE absolute") == []
    bench.core.accept_clock()
    bench.settle()
    assert bench.core.engine_figures()["held_ms"] == 0
    pass_time(bench, 2 * HOUR_MS - 60_000)
    assert ask(conn, "LEASE absolute") == [], "60 s after its time by the old clock"
    pass_time(bench, 60_000)
    lease(conn, "absolute")
    assert ask(conn, "LEASE absolute") == []


def test_o5_what_is_due_by_the_clock_that_was_set_back_is_ready_at_once(bench: Bench) -> None:
    conn = bench.open()
    step_wall(bench, -2 * HOUR_MS)
    schedule(conn, f"h {bench.wall_ms} x")
    lease(conn, "h")
    schedule(conn, f"h {bench.wall_ms + 1} x")
    pass_time(bench, 1000)
    assert ask(conn, "LEASE h") == [], "late, never early: held until the clock has caught up"
    pass_time(bench, 2 * HOUR_MS - 1000)
    lease(conn, "h")


def test_o5_a_wall_clock_set_forward_makes_absolute_jobs_due_once(bench: Bench) -> None:
    conn = bench.open()
    schedule(conn, f"h {WALL_MS + HOUR_MS} x")
    schedule(conn, "relative +1h x")
    step_wall(bench, 2 * HOUR_MS)
    lease(conn, "h")
    assert ask(conn, "LEASE h") == []
    assert ask(conn, "LEASE relative") == []
    step_wall(bench, -2 * HOUR_MS)
    step_wall(bench, 2 * HOUR_MS)
    assert ask(conn, "LEASE h") == []


def test_o5_after_the_clock_was_accepted_new_absolute_times_go_by_it(bench: Bench) -> None:
    conn = bench.open()
    step_wall(bench, -2 * HOUR_MS)
    bench.core.accept_clock()
    bench.settle()
    schedule(conn, f"h {bench.wall_ms + HOUR_MS} x")
    pass_time(bench, HOUR_MS - 1)
    assert ask(conn, "LEASE h") == [], "its time lies before what the old clock had reached"
    pass_time(bench, 1)
    lease(conn, "h")


@pytest.mark.parametrize("step_ms", [-2 * HOUR_MS, 2 * HOUR_MS])
def test_o6_no_lease_is_ended_or_stretched_by_a_step_of_the_wall_clock(
    bench: Bench, step_ms: int
) -> None:
    conn = bench.open()
    schedule(conn, "h now x LEASE 20000")
    receipt = lease(conn, "h")
    pass_time(bench, 10_000)
    step_wall(bench, step_ms)
    assert ask(conn, "COUNT STATE leased") == 1
    assert ask(conn, f"EXTEND {receipt}") == [20_000]
    pass_time(bench, 21_999)
    assert ask(conn, "COUNT STATE leased") == 1, "20 s and 10 % are not over"
    pass_time(bench, 1)
    assert ask(conn, "COUNT STATE ready") == 1


def test_o7_a_time_with_an_offset_is_that_instant_and_one_without_is_refused(bench: Bench) -> None:
    conn = bench.open()
    instant_ms = int(datetime(2027, 1, 15, 9, 30, tzinfo=UTC).timestamp() * 1000)
    schedule(conn, "h 2027-01-15T15:00:00+05:30 x")
    assert code(ask(conn, "SCHEDULE h 2027-01-15T15:00:00 x")) == "NAIVE_TIME"
    pass_time(bench, instant_ms - WALL_MS - 1)
    assert ask(conn, "LEASE h") == []
    pass_time(bench, 1)
    assert leased(ask(conn, "LEASE h"))[5] == instant_ms
    assert ask(conn, "LEASE h") == []


def test_o8_ten_thousand_one_shots_and_none_is_early(bench: Bench) -> None:
    seed = 20_270_115
    draw = random.Random(seed)
    producer, worker = bench.open(), bench.open()
    lines = [
        f"SCHEDULE h {f'+{ms}' if draw.random() < 0.5 else WALL_MS + ms} x"
        for ms in (draw.randrange(60_000) for _ in range(9000))
    ]
    producer.ask("\r\n".join(lines))
    seen = 0
    worker.feed(b"LEASE h COUNT 1000 WAIT 300000\r\n")
    while bench.wall_ms < WALL_MS + 61_000:
        pass_time(bench, draw.choice([1, 7, 64, 500]))
        for reply in replies(worker.take()):
            assert isinstance(reply, list)
            for item in reply:
                assert isinstance(item, list)
                assert isinstance(item[5], int)
                assert item[5] <= bench.wall_ms, f"early; seed {seed}"
            seen += len(reply)
            worker.feed(b"LEASE h COUNT 1000 WAIT 300000\r\n")
    bench.settle()
    for reply in replies(worker.take()):
        assert isinstance(reply, list)
        seen += len(reply)
    assert seen == 9000


# ---------------------------------------------------------------- identity


def test_o19_adding_under_a_known_key_says_what_stands_there_and_what_was_done(
    bench: Bench,
) -> None:
    conn = bench.open()
    job_id = schedule(conn, "h +1h x KEY order-1")
    words = [job_id.encode(), b"existing"]
    assert ask(conn, "SCHEDULE h now y KEY order-1") == [*words, b"scheduled"]
    assert code(ask(conn, "SCHEDULE h now y KEY order-1 ONDUP error")) == "EXISTS"
    assert code(ask(conn, f"RUN {job_id}")) == "OK"
    receipt = lease(conn, "h")
    assert ask(conn, "SCHEDULE h now y KEY order-1") == [*words, b"leased"]
    assert codes(ask(conn, f"ACK {receipt}")) == ["OK"]
    ended = [job_id.encode(), b"ended", b"succeeded"]
    assert ask(conn, "SCHEDULE h now y KEY order-1 WINDOW 60000") == ended
    assert code(ask(conn, "SCHEDULE h now y KEY order-1 WINDOW 60000 ONDUP error")) == "EXISTS"
    pass_time(bench, 59_999)
    assert ask(conn, "SCHEDULE h now y KEY order-1 WINDOW 60000") == ended
    pass_time(bench, 1)
    fresh = ask(conn, "SCHEDULE h now y KEY order-1 WINDOW 60000")
    assert isinstance(fresh, list)
    assert fresh[0] != job_id.encode()
    assert fresh[1:] == [b"created", b"ready"]
    assert codes(ask(conn, f"ACK {lease(conn, 'h')}")) == ["OK"]
    again = ask(conn, "SCHEDULE h now y KEY order-1")
    assert isinstance(again, list)
    assert again[1] == b"created", "the window is a parameter, not a side effect"


def test_o20_replace_gives_the_pending_job_a_new_time_payload_and_priority(bench: Bench) -> None:
    conn = bench.open()
    job_id = schedule(conn, "h +1h old KEY k PRIORITY 9 META m")
    reply = ask(conn, "SCHEDULE h now new KEY k ONDUP replace PRIORITY 3")
    assert reply == [job_id.encode(), b"replaced", b"ready"]
    shown = job(conn, job_id)
    assert (shown["payload"], shown["priority"], shown["meta"]) == (b"new", 3, None)
    receipt = lease(conn, "h")
    assert code(ask(conn, f"FAIL {receipt} IN 60000")).startswith("RETRY")
    assert job(conn, job_id)["failures"] == 1
    assert ask(conn, "SCHEDULE h now new KEY k ONDUP replace RETRIES 0") == reply
    shown = job(conn, job_id)
    assert (shown["failures"], shown["lost"], shown["attempt"]) == (0, 0, 1)
    assert code(ask(conn, f"FAIL {receipt}")) == "STALE", "it named the job that was"
    lease(conn, "h")
    before = bench.core.state_hash()
    assert code(ask(conn, "SCHEDULE h now newer KEY k ONDUP replace")) == "CONFLICT"
    assert bench.core.state_hash() == before


# ---------------------------------------------------------------- leases


def test_o25_a_killed_workers_job_and_its_slot_are_free_after_the_lease(bench: Bench) -> None:
    conn, worker = bench.open(), bench.open()
    ask(conn, "HANDLER h CONCURRENCY 1")
    job_id = schedule(conn, "h now x KEY k LEASE 5000")
    schedule(conn, "h now second")
    lease(worker, "h")
    worker.close()
    bench.settle()
    assert ask(conn, "LEASE h") == [], "the one slot is taken"
    assert ask(conn, "SCHEDULE h now y KEY k") == [job_id.encode(), b"existing", b"leased"]
    pass_time(bench, 5999)
    assert ask(conn, "LEASE h") == []
    pass_time(bench, 1)
    assert ask(conn, "SCHEDULE h now y KEY k") == [job_id.encode(), b"existing", b"ready"]
    assert job(conn, job_id)["lost"] == 1
    lease(conn, "h")
    assert ask(conn, "LEASE h") == [], "one slot, not two"


def test_o26_a_job_without_timeout_is_left_alone_while_heartbeats_come(bench: Bench) -> None:
    conn = bench.open()
    schedule(conn, "h now x TIMEOUT 0 LEASE 10000")
    receipt = lease(conn, "h")
    for _ in range(400):
        pass_time(bench, 9000)
        assert ask(conn, f"EXTEND {receipt}") == [10_000]
    assert ask(conn, "LEASE h") == []
    assert codes(ask(conn, f"ACK {receipt}")) == ["OK"]


def test_o27_the_ack_of_a_worker_that_lost_its_lease_does_not_count(bench: Bench) -> None:
    a, b = bench.open(), bench.open()
    job_id = schedule(a, "h now x LEASE 1000")
    stalled = lease(a, "h WORKER a")
    pass_time(bench, 2000)
    newer = lease(b, "h WORKER b")
    assert codes(ask(a, f"ACK {stalled}")) == ["STALE"]
    assert code(ask(a, f"DONE {stalled} result-of-a")) == "STALE"
    assert codes(ask(a, f"EXTEND {stalled}")) == ["STALE"]
    assert code(ask(a, f"FAIL {stalled}")) == "STALE"
    assert code(ask(a, f"RELEASE {stalled}")) == "STALE"
    assert code(ask(b, f"DONE {newer} result-of-b")) == "OK"
    assert job(b, job_id)["result"] == b"result-of-b"
    assert code(ask(b, f"DONE {newer} result-of-b")) == "ALREADY"


def test_a_receipt_of_another_term_is_stale(bench: Bench) -> None:
    """After a tail was cut from the log, numbers of records come again, under a new term."""
    conn = bench.open()
    schedule(conn, "h now x")
    job_id, term, lsn = lease(conn, "h").split(".")
    other = f"{job_id}.{int(term) - 1}.{lsn}"
    assert codes(ask(conn, f"ACK {other} {other}")) == ["STALE", "STALE"]
    assert codes(ask(conn, f"EXTEND {other}")) == ["STALE"]
    assert codes(ask(conn, f"ACK {job_id}.{term}.{lsn}")) == ["OK"]
    assert codes(ask(conn, f"ACK {other}")) == ["STALE"]


@pytest.mark.parametrize(
    ("verb", "first"),
    [("FAIL", "RETRY"), ("FAIL {} DEAD", "DEAD"), ("RELEASE", "OK"), ("ACK", "OK"), ("DONE", "OK")],
)
def test_the_same_verb_again_is_already_done_and_another_one_is_stale(
    bench: Bench, verb: str, first: str
) -> None:
    conn = bench.open()
    schedule(conn, "h now x BACKOFF fixed 60000")
    receipt = lease(conn, "h")
    lines = {one: f"{one} {receipt}" for one in ("ACK", "FAIL", "RELEASE", "EXTEND")}
    lines["DONE"] = f"DONE {receipt} r"
    line = verb.format(receipt) if "{}" in verb else lines[verb]

    def answer(line: str) -> str:
        reply = ask(conn, line)
        return code(reply[0] if isinstance(reply, list) else reply)

    assert answer(line).split()[0] == first
    before = bench.core.state_hash()
    for name, other in lines.items():
        done = {"ACK", "DONE"} if verb in ("ACK", "DONE") else {verb.split(maxsplit=1)[0]}
        assert answer(other) == ("ALREADY" if name in done else "STALE"), name
    assert answer(line) == "ALREADY"
    assert bench.core.state_hash() == before


def test_a_shorter_extend_is_the_lease_from_now_on(bench: Bench) -> None:
    conn = bench.open()
    schedule(conn, "h now x LEASE 600000 TIMEOUT 0")
    receipt = lease(conn, "h")
    assert ask(conn, f"EXTEND {receipt} FOR 1000") == [1000]
    pass_time(bench, 60_999)
    assert ask(conn, "LEASE h") == [], "1 s, and the grace of the term that was granted"
    pass_time(bench, 1)
    lease(conn, "h")


def test_a_late_ack_counts_as_long_as_nobody_else_was_given_the_job(bench: Bench) -> None:
    conn = bench.open()
    schedule(conn, "h now x LEASE 1000")
    receipt = lease(conn, "h")
    pass_time(bench, 2000)
    assert ask(conn, "COUNT STATE ready") == 1
    assert codes(ask(conn, f"EXTEND {receipt}")) == ["STALE"]
    assert codes(ask(conn, f"ACK {receipt}")) == ["OK"]
    assert ask(conn, "COUNT") == 0


def test_o28_a_job_that_kills_its_workers_is_dead_after_its_losses(bench: Bench) -> None:
    conn = bench.open()
    job_id = schedule(conn, "h now x LOST 3 BACKOFF fixed 1000")
    shown: dict[str, Reply] = {}
    for loss in range(1, 5):
        worker = bench.open()
        lease(worker, "h BOUND")
        worker.close()
        bench.settle()
        shown = job(conn, job_id)
        assert (shown["lost"], shown["failures"]) == (loss, 0)
        if loss == 1:
            assert shown["state"] == b"ready", "the first loss may be the worker's own"
        elif loss < 4:
            assert ask(conn, "LEASE h") == []
            pass_time(bench, 1000)
    assert (shown["state"], shown["reason"]) == (b"dead", b"worker_lost")


def test_losses_have_their_own_backoff_whose_first_is_free_whatever_failed_before(
    bench: Bench,
) -> None:
    """Failures and losses each count their own k: after two failures the second loss is a first."""
    conn = bench.open()
    job_id = schedule(conn, "h now x RETRIES 9 LOST 9 BACKOFF linear 1000 60000")
    for k in (1, 2):
        told = code(ask(conn, f"FAIL {lease(conn, 'h')}"))
        assert told == f"RETRY {bench.wall_ms + 1000 * k}"
        pass_time(bench, 1000 * k)
    delays: list[int] = []
    for _ in range(4):
        worker = bench.open()
        lease(worker, "h BOUND")
        worker.close()
        bench.settle()
        due_ms = job(conn, job_id)["due_ms"]
        assert isinstance(due_ms, int)
        delays.append(max(due_ms - bench.wall_ms, 0))
        pass_time(bench, delays[-1])
    assert delays == [0, 1000, 2000, 3000]
    told = code(ask(conn, f"FAIL {lease(conn, 'h')}"))
    assert told == f"RETRY {bench.wall_ms + 3000}", "the third failure, whatever was lost meanwhile"


def retry_delays_ms(bench: Bench, options: str, count: int) -> list[int]:
    """Return the delay after each of the first failures of a job."""
    conn = bench.open()
    own = f"h{bench.core.lsn()}"  # the jobs of earlier calls are in other queues
    schedule(conn, f"{own} now x RETRIES 1000 {options}")
    delays: list[int] = []
    for _ in range(count):
        word, due_ms = code(ask(conn, f"FAIL {lease(conn, own)}")).split()
        assert word == "RETRY"
        delays.append(int(due_ms) - bench.wall_ms)
        pass_time(bench, delays[-1])
    return delays


def test_the_delay_before_a_retry_grows_as_its_backoff_says_and_is_capped(bench: Bench) -> None:
    assert retry_delays_ms(bench, "BACKOFF fixed 700", 3) == [700, 700, 700]
    assert retry_delays_ms(bench, "BACKOFF linear 5000 12000", 4) == [5000, 10_000, 12_000, 12_000]


def test_the_exponential_delay_is_drawn_from_a_range_that_doubles_up_to_its_cap() -> None:
    bench = Bench(seed=1)
    draws = [retry_delays_ms(bench, "BACKOFF exp 1000 6000", 5) for _ in range(100)]
    for k, longest in enumerate([1000, 2000, 4000, 6000, 6000]):
        kth = [delays[k] for delays in draws]
        assert 0 <= min(kth) < longest // 10
        assert longest * 9 // 10 < max(kth) <= longest


def test_o29_a_job_that_hangs_but_heartbeats_is_timed_out(bench: Bench) -> None:
    conn = bench.open()
    job_id = schedule(conn, "h now x TIMEOUT 60000 LEASE 10000 RETRIES 1 BACKOFF fixed 500")
    receipt = lease(conn, "h")
    for _ in range(11):
        pass_time(bench, 5000)
        assert ask(conn, f"EXTEND {receipt}") == [10_000]
    pass_time(bench, 4999)
    assert ask(conn, "COUNT STATE leased") == 1
    pass_time(bench, 1)
    assert codes(ask(conn, f"EXTEND {receipt}")) == ["STALE"]
    shown = job(conn, job_id)
    assert (shown["failures"], shown["lost"]) == (1, 0)
    assert shown["due_ms"] == bench.wall_ms + 500
    pass_time(bench, 500)
    lease(conn, "h FOR 600000")
    pass_time(bench, 60_000)
    assert job(conn, job_id)["reason"] == b"timed_out"


def test_a_lease_that_ran_out_before_the_timeout_is_a_loss_however_late_it_is_noticed(
    bench: Bench,
) -> None:
    conn = bench.open()
    job_id = schedule(conn, "h now x LEASE 1000 TIMEOUT 60000")
    lease(conn, "h")
    pass_time(bench, 100_000)
    shown = job(conn, job_id)
    assert (shown["lost"], shown["failures"]) == (1, 0)


@pytest.mark.parametrize("tick_ms", [9, 1700, 2600, 4900])
def test_a_job_that_expires_unserved_is_found_within_ten_seconds(
    bench: Bench, tick_ms: int
) -> None:
    """However ticks and jobs divide: nothing of the sweep's time is rounded away."""
    conn = bench.open()
    for _ in range(11):
        schedule(conn, "h now x EXPIRE +20s")
    pass_time(bench, 19_999)
    assert ask(conn, "COUNT") == 11
    for _ in range(10_000 // tick_ms):
        pass_time(bench, tick_ms)
    assert ask(conn, "COUNT") == 0


def test_several_handlers_share_one_lease_evenly(bench: Bench) -> None:
    conn = bench.open()
    for name in ("a", "b", "c"):
        for _ in range(10):
            schedule(conn, f"{name} now x")
    reply = ask(conn, "LEASE a,b,c COUNT 12")
    assert isinstance(reply, list)
    handlers = [item[3] for item in reply if isinstance(item, list)]
    assert {name: handlers.count(name) for name in handlers} == {b"a": 4, b"b": 4, b"c": 4}


def test_equal_jobs_are_served_in_the_order_in_which_they_came(bench: Bench) -> None:
    conn = bench.open()
    ids = [schedule(conn, f"h {WALL_MS + 500} x") for _ in range(50)]
    pass_time(bench, 500)
    reply = ask(conn, "LEASE h COUNT 50")
    assert isinstance(reply, list)
    assert [text(item[1]) for item in reply if isinstance(item, list)] == ids


def test_the_worker_that_waits_longest_is_served_first(bench: Bench) -> None:
    producer, first, second = bench.open(), bench.open(), bench.open()
    second.feed(b"LEASE other,h* WAIT 60000\r\n")
    first.feed(b"LEASE h WAIT 60000\r\n")
    schedule(producer, "h now x")
    assert first.take() == b""
    assert b"x" in second.take()


def test_a_waiting_worker_gets_the_job_as_soon_as_there_is_room_for_it(bench: Bench) -> None:
    conn, worker = bench.open(), bench.open()
    ask(conn, "HANDLER h CONCURRENCY 1")
    schedule(conn, "h now first")
    schedule(conn, "h now second")
    receipt = lease(conn, "h")
    worker.feed(b"LEASE h WAIT 60000\r\n")
    bench.settle()
    assert worker.take() == b""
    assert codes(ask(conn, f"ACK {receipt}")) == ["OK"]
    assert b"second" in worker.take()
    schedule(conn, "h now third")
    worker.feed(b"LEASE h WAIT 60000\r\n")
    bench.settle()
    assert worker.take() == b""
    ask(conn, "HANDLER h CONCURRENCY 2")
    assert b"third" in worker.take()


def test_a_waiting_worker_gets_the_job_as_soon_as_its_handler_is_resumed(bench: Bench) -> None:
    conn, worker = bench.open(), bench.open()
    ask(conn, "HANDLER h PAUSE")
    schedule(conn, "h now x")
    worker.feed(b"LEASE h WAIT 60000\r\n")
    bench.settle()
    assert worker.take() == b""
    ask(conn, "HANDLER h RESUME")
    assert b"x" in worker.take()


@pytest.mark.parametrize("end", ["FAIL", "FAIL DEAD", "RELEASE", "loss", "time-out", "close"])
def test_a_leased_job_that_is_cancelled_ends_so_unless_it_is_acknowledged(
    bench: Bench, end: str
) -> None:
    conn, worker = bench.open(), bench.open()
    job_id = schedule(conn, "h now x LEASE 5000 TIMEOUT 60000")
    receipt = lease(worker, "h BOUND" if end == "close" else "h")
    assert codes(ask(conn, f"CANCEL {job_id} {job_id}")) == ["MARKED", "MARKED"]
    assert codes(ask(worker, f"EXTEND {receipt}")) == ["CANCELLED"]
    if end == "loss":
        pass_time(bench, 6000)
    elif end == "time-out":
        pass_time(bench, 60_000)
    elif end == "close":
        worker.close()
        bench.settle()
    else:
        verb, *dead = end.split()
        assert code(ask(worker, " ".join([verb, receipt, *dead]))) == "CANCELLED"
    assert job(conn, job_id)["state"] == b"cancelled"
    assert ask(conn, "COUNT") == 0
    assert codes(ask(conn, f"ACK {receipt}")) == ["STALE"]


def test_the_ack_of_a_cancelled_job_that_runs_wins(bench: Bench) -> None:
    conn = bench.open()
    job_id = schedule(conn, "h now x")
    receipt = lease(conn, "h")
    assert codes(ask(conn, f"CANCEL {job_id}")) == ["MARKED"]
    assert code(ask(conn, f"DONE {receipt} r")) == "OK"
    assert job(conn, job_id)["state"] == b"succeeded"
    assert codes(ask(conn, f"CANCEL {job_id}")) == ["ENDED"]


# ---------------------------------------------------------------- load


def test_o30_a_herd_of_one_handler_is_drained_in_slices_and_holds_no_other_up() -> None:
    bench = Bench(jobs_max=30_000)
    producer, other = bench.open(), bench.open()
    due_ms = WALL_MS + 60_000
    for _ in range(20):
        producer.feed(f"SCHEDULE herd {due_ms} x\r\n".encode() * 1000)
        bench.settle()
        producer.take()
    other.feed(b"LEASE other WAIT 300000\r\n")
    schedule(producer, f"other {due_ms} x")
    before = bench.core.stats()["ticks_cut"]
    bench.advance(60_000)
    slices = bench.core.stats()["ticks_cut"] - before
    assert slices <= 3 * (20_001 // 1024 + 1), "linear: each moves two levels down and fires"
    bench.settle()
    assert b"other" in other.take()
    other.feed(b"LEASE other WAIT 300000\r\n")
    schedule(producer, "other now x")
    assert b"other" in other.take(), "in its own round, beside 20,000 that are ready"
    assert ask(producer, "COUNT HANDLER herd STATE ready") == 20_000
    assert bench.core.check() == 0


def test_a_dead_job_is_found_by_its_key_as_long_as_it_is_dead(bench: Bench) -> None:
    """The ended ring forgets after an hour; the dead list keeps for 90 days what REQUEUE needs."""
    conn = bench.open()
    ids: list[str] = []
    for _ in range(2):
        ids.append(schedule(conn, "h now x KEY k RETRIES 0"))
        ask(conn, f"FAIL {lease(conn, 'h')}")
        pass_time(bench, 3 * HOUR_MS)
    assert shown_id(conn, "k") == ids[1]  # the newest
    assert ask(conn, "REQUEUE k") == ["OK"]
    assert shown_id(conn, "k") == ids[1]  # it lives again
    ask(conn, f"ACK {lease(conn, 'h')}")
    assert shown_id(conn, "k") == ids[1]  # it ended last
    pass_time(bench, 3 * HOUR_MS)
    schedule(conn, "other +1d x")  # the ring is aged by the next record
    assert shown_id(conn, "k") == ids[0]  # the ring has forgotten it; the other is still dead
    assert ask(conn, "PURGE k") == ["OK"]
    assert ask(conn, "JOB k") is None


@pytest.mark.parametrize("step_ms", [0, -2 * HOUR_MS])
def test_a_key_names_what_ended_last_and_not_what_the_wall_clock_dates_last(
    bench: Bench, step_ms: int
) -> None:
    """In one millisecond, and with a clock that was set back in between."""
    conn = bench.open()
    dead = schedule(conn, "h now x KEY k RETRIES 0")
    ask(conn, f"FAIL {lease(conn, 'h')}")
    step_wall(bench, step_ms)
    last = schedule(conn, "h now x KEY k")
    ask(conn, f"ACK {lease(conn, 'h')}")
    assert dead != last
    assert shown_id(conn, "k") == last
    assert codes(ask(conn, "PURGE k")) == ["CONFLICT"]
    assert ask(conn, f"PURGE {dead}") == ["OK"]


def shown_id(conn: Fed, name: str) -> str:
    """Return the id that JOB shows."""
    fields = ask(conn, f"JOB {name}")
    assert isinstance(fields, list)
    return text(fields[fields.index(b"id") + 1])
