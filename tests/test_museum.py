"""The museum: bugs that users of other schedulers had to report, each as a promise of this one.

The number in a name is the exhibit's; the docstring names the public report. Most run the real core
and the real log over the simulated disk, so that a server is killed or loses its power in a line.

Exhibits 14, 16, 34, 35 and 37 are about recurring schedules and are not here.
"""

import threading

import pytest

from tests.asking import code, codes, replies, text
from tests.fake_server import FakeServer
from tests.fed import TERM, Bench
from tests.logkit import History, Server, read_all
from tests.simdisk import SimDisk
from tests.store import Life
from wal.errors import RefusedError
from wheel.engine.core import Core, LogStoppedError
from wheel.handlers import App
from wheel.worker import Worker

HOUR_MS = 3_600_000
WAIT_S = 20


class Shop:
    """A server whose clock, crashes and connections a test moves by hand."""

    def __init__(self):
        self.disk = SimDisk()
        self.life = Life("/data", disk=self.disk)

    # ---- connections ----

    def open(self):
        return self.life.core.fed_open("test")

    def feed(self, line, conn):
        self.life.core.fed_input(conn, line.encode() + b"\r\n")
        self.life.core.commit()

    def take(self, conn):
        """Return what the server has said to a connection since the last time."""
        output = self.life.core.fed_output(conn)
        self.life.core.fed_taken(conn, len(output.data))
        return replies(output.data)

    def hang_up(self, conn):
        self.life.core.fed_close(conn)
        self.life.core.commit()

    def ask(self, line, conn=None):
        conn = self.life.handle if conn is None else conn
        self.feed(line, conn)
        [reply] = self.take(conn)
        return reply

    # ---- time, crashes ----

    def pass_time(self, ms, step=None):
        """Let time pass, in steps as a loop that wakes up now and then would."""
        step = step or ms
        for _ in range(ms // step):
            self.life.advance(step)
        assert self.life.core.check() == 0

    def _again(self, wall_ms=None):
        self.life = Life("/data", disk=self.disk, wall_ms=wall_ms or self.life.wall_ms)
        assert self.life.core.check() == 0

    def kill(self, *, wall_ms=None):
        self.life.kill()
        self._again(wall_ms)

    def cut_power(self, seed=0):
        """All that no sync covered is gone (0), or any mixture of it (other seeds)."""
        self.life.kill()
        self.disk.crash(seed)
        self._again()

    # ---- words ----

    def schedule(self, line, conn=None):
        reply = self.ask(f"SCHEDULE {line}", conn)
        return text(reply[0] if isinstance(reply, list) else reply)

    def lease(self, line, conn=None):
        """Return the fields of the one job that is given, None for none."""
        found = self.ask(f"LEASE {line}", conn)
        assert len(found) <= 1
        return found[0] if found else None

    def receipt(self, line, conn=None):
        return text(self.lease(line, conn)[0])

    def job(self, name):
        reply = self.ask(f"JOB {name}")
        if reply is None:
            return {"state": None}
        shown = dict(zip(map(text, reply[::2]), reply[1::2], strict=True))
        return {**shown, "state": text(shown["state"])}

    def count(self, state):
        return self.ask(f"COUNT STATE {state}")

    def ack(self, receipt, conn=None):
        [answer] = codes(self.ask(f"ACK {receipt}", conn))
        return answer


@pytest.fixture
def shop():
    made = Shop()
    yield made
    made.life.kill()


# ---------------------------------------------------------------- delays and leases


def test_01_a_lease_begins_with_its_grant_and_not_with_the_schedule(shop):
    """celery/kombu #337: the visibility clock started at the fetch, long before the due time."""
    shop.schedule("h +60s x LEASE 1000 TIMEOUT 0")
    worker, other = shop.open(), shop.open()
    shop.feed("LEASE h WAIT 300000", worker)
    shop.pass_time(60_000, step=500)
    [[grant]] = shop.take(worker)
    assert grant[4] == 1
    assert shop.lease("h", other) is None
    assert shop.ack(text(grant[0]), worker) == "OK"


def test_02_a_job_that_waits_stays_one_job(shop):
    """celery #2481: each visibility timeout that passed before the due time made a copy."""
    job = shop.schedule("h +600s x LEASE 1000")
    shop.pass_time(600_000, step=1000)
    assert shop.ask("COUNT") == 1
    assert shop.job(job)["attempt"] == 0
    assert shop.lease("h COUNT 100")[4] == 1


def test_03_one_setting_of_the_lease_holds_for_every_worker(shop):
    """celery #2599: a long timeout that was set did not reach every worker, and jobs ran twice."""
    shop.ask("HANDLER h LEASE 600000 TIMEOUT 0")
    first, second = shop.open(), shop.open()
    for conn in (first, second):
        shop.schedule("h now x", conn)
        assert shop.lease("h WORKER w", conn)[6] == 600_000
    shop.pass_time(599_000, step=1000)
    assert shop.lease("h") is None
    assert shop.count("leased") == 2


def test_04_what_is_not_due_is_in_no_workers_hands(shop):
    """celery #1810, kombu #533: workers kept timers in memory and lost them when they ended."""
    job = shop.schedule("h +60s x")
    worker = shop.open()
    shop.feed("LEASE h COUNT 100 WAIT 50000", worker)
    shop.hang_up(worker)
    assert shop.job(job)["state"] == "scheduled"
    shop.pass_time(60_000)
    assert shop.lease("h")[4] == 1


def test_05_a_lost_connection_gives_back_what_it_held_after_the_lease(shop):
    """celery #1307: unacknowledged jobs were not restored when the broker's connection broke."""
    shop.schedule("h now x LEASE 5000")
    worker = shop.open()
    assert shop.lease("h", worker)[4] == 1
    shop.hang_up(worker)
    assert shop.lease("h") is None
    shop.pass_time(6000)
    assert shop.lease("h")[4] == 2


def test_06_a_job_whose_reply_never_left_goes_back_and_counts_as_nothing(shop):
    """celery #4354: a job popped at a warm shutdown was lost in the socket's buffer."""
    job = shop.schedule("h now x RETRIES 0 LOST 0")
    worker = shop.open()
    shop.feed("LEASE h", worker)
    shop.hang_up(worker)
    shown = shop.job(job)
    assert (shown["state"], shown["failures"], shown["lost"]) == ("ready", 0, 0)
    assert shop.lease("h")[4] == 2


def test_07_a_worker_that_stops_says_what_it_has_done():
    """celery #3802: a finished task ran again because a warm shutdown did not acknowledge it."""
    app, started, release = App(), threading.Event(), threading.Event()

    @app.handler("h")
    def handle() -> None:
        started.set()
        release.wait(WAIT_S)

    with FakeServer() as server:
        server.add("h")
        worker = Worker(app, server.url)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert started.wait(WAIT_S)
        worker.stop()
        release.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert server.states() == ["succeeded"]


def test_08_no_moment_between_due_and_running_loses_a_job(shop):
    """sidekiq #843: popped from one set and pushed to another, with a crash in between."""
    jobs = [shop.schedule(f"h {shop.life.wall_ms + i} x") for i in range(1, 50)]
    for _ in range(25):
        shop.pass_time(2)
        shop.kill()
    assert shop.count("ready") == len(jobs)
    assert len(shop.ask("LEASE h COUNT 100")) == len(jobs)


def test_09_a_worker_that_is_told_to_stop_gives_its_job_back_uncounted(shop):
    """sidekiq #621, #622: running jobs were lost at SIGTERM, because they were not pushed back."""
    job = shop.schedule("h now x RETRIES 0 LOST 0")
    receipt = shop.receipt("h")
    assert code(shop.ask(f"RELEASE {receipt}")) == "OK"
    shop.cut_power()
    assert shop.job(job)["state"] == "ready"
    assert shop.lease("h")[4] == 2


def test_10_a_retry_needs_no_memory():
    """sidekiq #5558: jobs were lost when Redis had no memory for their retry."""
    bench = Bench(maxmemory_bytes=1 << 20)
    conn = bench.open()
    conn.ask("SCHEDULE h now kept RETRIES 5")
    receipt = conn.ask("LEASE h").split(b"\r\n")[3].decode()
    filler = "x" * 20_000
    while not conn.ask(f"SCHEDULE other +1h {filler}").startswith(b"-OOM"):
        pass
    assert conn.ask(f"FAIL {receipt} ERROR {'e' * 900}").startswith(b"+RETRY")
    bench.check()


def test_11_jobs_of_one_moment_do_not_take_each_other_along(shop):
    """resque-scheduler #46: a list found empty was deleted, with an enqueue in between."""
    at_ms = shop.life.wall_ms + 1000
    for i in range(20):
        shop.schedule(f"h {at_ms} early-{i}")
    shop.pass_time(1000)
    leased = shop.ask("LEASE h COUNT 20")
    shop.schedule(f"h {at_ms} late")
    for grant in leased:
        assert shop.ack(text(grant[0])) == "OK"
    assert shop.lease("h")[7] == b"late"


def each_prefix(bench):
    """Yield (connection's ask) of a server that starts from the first n frames, for each n."""
    for n in range(len(bench.frames) + 1):
        again = Bench()
        again.core.close()
        again.core = Core(again.options)
        for frame in bench.frames[:n]:
            again.core.replay(frame, term=TERM)
        again.core.start(term=TERM + 1, rel_ms=bench.wall_ms, clocks=bench.clocks())
        assert again.core.check() == 0
        yield again.open()
        again.core.close()


def test_12_a_retry_is_one_step_that_no_crash_divides():
    """rq-scheduler #223: a job vanished when a kill came between removing and adding it again."""
    bench = Bench()
    conn = bench.open()
    job = conn.ask("SCHEDULE h now x RETRIES 9").split()[1].decode()
    made_at = len(bench.frames)
    for _ in range(4):
        receipt = conn.ask("LEASE h").split(b"\r\n")[3].decode()
        assert conn.ask(f"FAIL {receipt} IN 0").startswith(b"+RETRY")
    for n, again in enumerate(each_prefix(bench)):
        there = not again.ask(f"JOB {job}").startswith(b"$-1")
        assert there == (n >= made_at)


def test_13_a_claim_that_is_cut_short_orphans_nothing():
    """oxana PR 39: claimed by one call, and the second one, which was to push it, failed."""
    bench = Bench()
    conn = bench.open()
    for i in range(10):
        conn.ask(f"SCHEDULE h now {i}")
    made_at = len(bench.frames)
    conn.ask("LEASE h COUNT 7")
    for n, again in enumerate(each_prefix(bench)):
        if n >= made_at:
            ready = int(again.ask("COUNT STATE ready")[1:])
            leased = int(again.ask("COUNT STATE leased")[1:])
            assert ready + leased == 10


# ---------------------------------------------------------------- one run at a time


def test_15_only_the_newest_grant_completes_a_run(shop):
    """bull #308: a token for the queue, not for the run: a job was completed twice."""
    job = shop.schedule("h now x LEASE 1000 TIMEOUT 0")
    first, second = shop.open(), shop.open()
    old = shop.receipt("h WORKER a", first)
    shop.pass_time(2100, step=100)
    new = shop.receipt("h WORKER b", second)
    assert shop.ack(old, first) == "STALE"
    assert shop.ack(new, second) == "OK"
    assert shop.ack(old, first) == "STALE"
    assert shop.job(job)["state"] == "succeeded"


def test_17_a_dead_peer_that_waits_swallows_no_job(shop):
    """bullmq #1658: delayed jobs were hours late behind a blocked read on a dead connection."""
    dead, alive = shop.open(), shop.open()
    shop.feed("LEASE h WAIT 300000", dead)
    shop.feed("LEASE h WAIT 300000", alive)
    shop.life.core.fed_blocked(dead, blocked=True)
    shop.schedule("h +1s x")
    shop.pass_time(1000)
    [[grant]] = shop.take(alive)
    assert grant[4] == 1
    shop.hang_up(dead)


def test_18_a_state_that_comes_back_is_not_the_same_run(shop):
    """quartz #107, #280, #29: compared by the name of a state, which had come round again."""
    shop.schedule("h now x")
    first = shop.receipt("h WORKER same")
    shop.ask(f"RELEASE {first}")
    second = shop.receipt("h WORKER same")
    assert shop.ack(first) == "STALE"
    assert code(shop.ask(f"FAIL {first}")) == "STALE"
    assert codes(shop.ask(f"EXTEND {first}")) == ["STALE"]
    assert shop.ack(second) == "OK"


def test_19_a_clock_that_is_set_back_fires_nothing_again(shop):
    """quartz #463: triggers fired again when the server's clock was set back."""
    at_ms = shop.life.wall_ms + 1000
    job = shop.schedule(f"h {at_ms} x")
    shop.pass_time(1000)
    assert shop.ack(shop.receipt("h")) == "OK"
    shop.life.wall_ms -= 3600_000
    shop.pass_time(1000, step=10)
    assert shop.lease("h") is None
    shop.pass_time(3600_000, step=60_000)
    assert shop.lease("h") is None
    assert shop.job(job)["state"] == "succeeded"


def test_20_one_clock_decides_when_a_job_is_due(shop):
    """quartz #548, #106: nodes whose clocks differed fired two to four times."""
    at_ms = shop.life.wall_ms + 1000
    shop.schedule(f"h {at_ms} x")
    conns = [shop.open() for _ in range(3)]
    for _ in range(99):
        shop.pass_time(10)
        assert [shop.lease("h", conn) for conn in conns] == [None] * 3
    shop.pass_time(10)
    assert sum(shop.lease("h", conn) is not None for conn in conns) == 1


def test_21_one_bad_item_stops_no_other(shop):
    """quartz #48: one invalid trigger threw first, and 19 others were never recovered."""
    good = shop.schedule("h now x")
    receipt = shop.receipt("h")
    conn = shop.open()
    bad = ["SCHEDULE h 2027-01-15 x", "ACK nonsense", "NOSUCH", "SCHEDULE h,h now x", "LEASE"]
    for line in [*bad, f"ACK 1.2.3 {receipt}", "SCHEDULE h now y"]:
        shop.feed(line, conn)
    answers = shop.take(conn)
    assert codes(answers[len(bad)]) == ["UNKNOWN", "OK"]
    assert text(answers[-1]).isdigit()
    assert shop.job(good)["state"] == "succeeded"


def test_22_a_limit_of_one_is_never_two(shop):
    """solid_queue #761: a pruned worker's permit was released twice, and 11 jobs ran at once."""
    shop.ask("HANDLER h CONCURRENCY 1")
    for i in range(12):
        shop.schedule(f"h now {i} LEASE 1000 TIMEOUT 0 LOST 50")
    old = []
    for round_ in range(10):
        grant = shop.lease("h COUNT 10")
        old.append(text(grant[0]))
        assert shop.count("leased") == 1
        assert shop.lease("h COUNT 10") is None
        shop.pass_time(2100, step=300)
        for receipt in old[: round_ // 2]:
            shop.ask(f"RELEASE {receipt}")
        assert shop.count("leased") <= 1
    shop.kill()
    assert len(shop.ask("LEASE h COUNT 10")) + shop.count("leased") <= 2
    assert shop.count("leased") == 1


def test_23_a_run_ends_once_and_one_way(shop):
    """solid_queue #589: a prune and a finish were both committed: finished *and* failed."""
    job = shop.schedule("h now x LEASE 1000 TIMEOUT 0 LOST 0")
    receipt = shop.receipt("h")
    shop.life.wall_ms += 2000
    shop.life.boot_ms += 2000
    answer = shop.ack(receipt)  # in the very round in which the lease is over
    assert shop.job(job)["state"] == {"OK": "succeeded", "STALE": "dead"}[answer]
    assert code(shop.ask(f"FAIL {receipt}")) == "STALE"
    before = shop.job(job)["state"]
    shop.cut_power()
    assert shop.job(job)["state"] == before


def test_24_a_running_job_is_adopted_by_the_next_server(shop):
    """airflow #23520: after a restart of the scheduler a task that ran was started again."""
    shop.schedule("h now x LEASE 60000")
    receipt = shop.receipt("h")
    shop.pass_time(50_000)
    shop.cut_power()
    shop.pass_time(59_000, step=1000)
    assert shop.lease("h") is None
    assert shop.ack(receipt) == "OK"


def test_25_a_lost_run_is_recorded_once(shop):
    """airflow #51969, #25843, #32289: the same zombie was purged again and again."""
    job = shop.schedule("h now x LEASE 1000 TIMEOUT 0")
    shop.lease("h")
    shop.pass_time(60_000, step=100)
    assert shop.job(job)["lost"] == 1
    shop.kill()
    shop.pass_time(60_000, step=100)
    assert shop.job(job)["lost"] == 1


def test_26_no_job_is_active_for_ever(shop):
    """asynq #1144, #1158: the entry of a lease was missing, and nothing looked for its job."""
    for i in range(20):
        shop.schedule(f"h now {i} LEASE {1000 + 100 * i}")
    shop.ask("LEASE h COUNT 20")
    shop.kill()
    assert shop.count("leased") == 20
    shop.pass_time(5000, step=50)
    assert shop.count("ready") == 20


def test_27_a_job_that_kills_its_workers_stops_doing_so(shop):
    """faktory #99, #118: expiry was no attempt, and a poison job went round for ever."""
    job = shop.schedule("h now poison LEASE 1000 TIMEOUT 0 LOST 3 BACKOFF fixed 100")
    for _ in range(4):
        assert shop.lease("h") is not None
        shop.pass_time(3000, step=100)
    shown = shop.job(job)
    assert (shown["state"], shown["reason"]) == ("dead", b"worker_lost")
    assert shop.lease("h") is None


# ---------------------------------------------------------------- the log


def test_28_the_log_stays_in_proportion_to_what_lives(shop):
    """beanstalkd #622, #570, #573: 265 GB of log for ten thousand jobs."""
    shop.schedule("h +90d stays")
    most = 0
    for _ in range(30):
        for i in range(40):
            shop.schedule(f"h now {i}")
        receipts = [text(grant[0]) for grant in shop.ask("LEASE h COUNT 40")]
        shop.ask("ACK " + " ".join(receipts))
        shop.pass_time(2 * HOUR_MS)  # what has ended is forgotten
        shop.life.save()
        sizes = [len(shop.disk.read(path)) for path in shop.disk.files()]
        most = max(most, sum(sizes))
    assert most < 160_000
    shop.kill()
    assert shop.count("scheduled") == 1


def test_29_counts_and_order_are_the_same_after_a_restart(shop):
    """beanstalkd #668: the replay repeated side effects; counters and order had changed."""
    for i in range(30):
        shop.schedule(f"h now {i:02} PRIORITY {i % 3} RETRIES 1")
    for grant in shop.ask("LEASE h COUNT 6"):
        shop.ask(f"FAIL {text(grant[0])} IN 5000")
    states = ("scheduled", "ready", "leased", "dead")
    before = [shop.count(state) for state in states]
    hash_before = shop.life.core.state_hash()
    for _ in range(3):
        shop.kill()
        assert shop.life.core.state_hash() == hash_before
        assert [shop.count(state) for state in states] == before
    order = [(int(text(grant[7])) % 3, text(grant[7])) for grant in shop.ask("LEASE h COUNT 24")]
    assert [priority for priority, _ in order] == sorted(priority for priority, _ in order)


def test_30_a_log_with_a_piece_missing_is_refused(shop):
    """beanstalkd #364, #98: it started with files missing or bad, and went on after a warning."""
    for _ in range(40):
        shop.schedule(f"h +1h {'x' * 1000}")
    shop.life.kill()
    segments = [path for path in shop.disk.files() if path.endswith(".wal")]
    assert len(segments) > 2
    for path in segments[:-1]:
        copy = shop.disk.clone()
        copy.unlink(path)
        with pytest.raises(RefusedError):
            Life("/data", disk=copy)
    shop._again()


def test_31_the_time_left_of_a_lease_is_never_negative(shop):
    """beanstalkd #174, #380: reserved, with a time left below zero, and never handed out again."""
    job = shop.schedule("h now x LEASE 1000 TIMEOUT 3000")
    shop.lease("h")
    for _ in range(40):
        shown = shop.job(job)
        if shown["state"] != "leased":
            break
        assert 0 <= shown["lease_left_ms"] <= 1000
        assert 0 <= shown["timeout_left_ms"] <= 3000
        shop.pass_time(100)
    assert shop.job(job)["state"] == "ready"


@pytest.mark.parametrize(
    "line",
    [
        "SCHEDULE h +18000000000000s x",
        "SCHEDULE h 99999999999999999 x",
        "SCHEDULE h now x LEASE 18446744073709551615",
        "SCHEDULE h now x TIMEOUT 4294967296",
        "LEASE h FOR 18446744073709551616",
        "LEASE h WAIT 9223372036854775808",
    ],
)
def test_32_a_time_that_does_not_fit_is_refused_and_never_wraps(shop, line):
    """beanstalkd #72: an unsigned number wrapped: time left 1.8e13, and undeletable."""
    assert code(shop.ask(line)) in {"LIMIT", "SYNTAX"}
    assert shop.ask("COUNT") == 0


def test_33_what_was_delayed_before_a_restart_is_delivered_after_it(shop):
    """rabbitmq-delayed-message-exchange #133, #25, #85, #288: lost or stuck after a restart."""
    jobs = [shop.schedule(f"h{i} {shop.life.wall_ms + 1000 * i} x") for i in range(8)]
    shop.cut_power()
    shop.pass_time(10_000, step=500)  # nobody serves these handlers yet
    shop.cut_power()
    for i in range(8):
        assert shop.ack(shop.receipt(f"h{i}")) == "OK"
    assert [shop.job(job)["state"] for job in jobs] == ["succeeded"] * 8


def test_36_a_restart_makes_nothing_due_and_skips_nothing(shop):
    """pulsar #22716, #26230: after a restart delivered at once, or skipped for ever."""
    soon = shop.schedule(f"h {shop.life.wall_ms + 10_000} x")
    far = shop.schedule(f"h {shop.life.wall_ms + 30 * 24 * HOUR_MS} x")
    for _ in range(5):
        shop.pass_time(1000)
        shop.kill()
        assert shop.lease("h") is None
    shop.pass_time(5000)
    assert shop.ack(shop.receipt("h")) == "OK"
    assert shop.job(soon)["state"] == "succeeded"
    assert shop.job(far)["state"] == "scheduled"


def test_38_no_reply_leaves_before_what_it_says_is_on_the_disk():
    """etcd #14370: one node answered in parallel with its write, and lost what it had confirmed."""
    bench = Bench()
    conn, reader = bench.open(), bench.open()
    conn.feed(b"SCHEDULE h now x KEY k\r\n")
    reader.feed(b"JOB k\r\n")
    assert conn.take() == b""
    assert reader.take() == b""
    bench.settle()
    assert conn.take() != b""
    assert reader.take() != b""


def test_39_a_confirmed_frame_is_in_a_file_that_has_a_durable_name():
    """etcd #6368: acknowledged data in a file whose rename no sync of the directory covered."""
    disk, history = SimDisk(), History()
    server = Server(disk, history)
    server.start()
    for i in range(8):
        server.append(bytes([i]) * 3000)  # a new segment every second time
        for seed in range(4):
            history.check(read_all(disk.crashed(seed))[0])
    server.log.close()


def test_40_a_write_that_a_power_cut_tore_never_keeps_a_server_down(shop):
    """etcd #6378, #14098, #5230, #6515, #11488: tears and reordering were taken for corruption."""
    shop.schedule("h +1h kept")
    for seed in range(100):
        disk = shop.disk.clone()
        life = Life("/data", disk=disk)
        disk.power_off_after(1)  # the frame is written, and not synced
        life.core.fed_input(life.handle, b"SCHEDULE h now " + b"y" * 2000 + b"\r\n")
        with pytest.raises(LogStoppedError):
            life.core.commit()
        life.kill()
        disk.crash(seed)
        again = Life("/data", disk=disk)
        assert again.ask("COUNT STATE scheduled") == b":1\r\n"
        again.kill()


def test_41_zeros_behind_the_last_frame_are_its_end():
    """redis #5177, valkey #1148: a log with a tail of zeros was refused after a power cut."""
    disk, history = SimDisk(), History()
    server = Server(disk, history)
    server.start()
    server.append(b"x")
    server.log.close()
    path = next(path for path in disk.files() if path.endswith(".wal"))
    for size in (8192, 64 * 1024, 1 << 20):
        disk.resize(path, size)
        assert [frame[2] for frame in read_all(disk)[0]] == [b"x"]


def test_42_what_is_confirmed_survives_the_power_and_damage_deletes_nothing(shop):
    """nats #7564, #7549, #7556, #4410, #5382: a lazy sync, and streams deleted for damage."""
    jobs = [shop.schedule(f"h +1h {i}") for i in range(10)]
    shop.cut_power()
    assert [shop.job(job)["state"] for job in jobs] == ["scheduled"] * 10
    shop.life.kill()
    path = next(path for path in shop.disk.files() if path.endswith(".wal"))
    shop.disk.flip(path, (4096 + 200) * 8)
    before = {path: shop.disk.read(path) for path in shop.disk.files()}
    with pytest.raises(RefusedError) as refused:
        Life("/data", disk=shop.disk)
    assert refused.value.path == path
    assert {path: shop.disk.read(path) for path in before} == before
    shop.disk.flip(path, (4096 + 200) * 8)
    shop._again()


def test_43_nothing_is_deleted_by_a_clock_and_no_old_record_comes_back(shop):
    """RocksDB's history: stale records replayed, and logs deleted by a clock set back."""
    job = shop.schedule("h +1h x")
    shop.life.save()
    shop.ask(f"CANCEL {job}")
    shop.kill(wall_ms=shop.life.wall_ms - 400 * 24 * HOUR_MS)  # a year and more back
    assert shop.job(job)["state"] == "cancelled"
    shop.life.save()
    shop.kill()
    assert shop.job(job)["state"] == "cancelled"
    assert shop.ask("COUNT") == 0


def test_44_what_was_there_at_the_start_is_there_after_the_next_one(shop):
    """disque #92: jobs that were loaded at a start were not in the log that the start began."""
    job = shop.schedule("h +1h x")
    for _ in range(4):
        shop.kill()
        shop.cut_power(seed=9)
        assert shop.job(job)["state"] == "scheduled"
    shop.life.save()
    for _ in range(4):
        shop.cut_power()
        assert shop.job(job)["state"] == "scheduled"


def test_every_exhibit_but_those_of_recurring_schedules_is_here():
    """A promise that lost its test is no promise."""
    numbers = {int(name.split("_")[1]) for name in globals() if name[5:7].isdigit()}
    assert numbers == set(range(1, 45)) - {14, 16, 34, 35, 37}
