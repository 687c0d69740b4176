"""The load generator: what it counts is so, on every server, and what is wrong fails loudly."""

import json
import re
import shutil
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from bench import loader
from bench.contests import BEANSTALKD, HSET, OURS, ZADD, contenders
from bench.figures_schedule import FAR_MS, MANY_DEEP, SPAN_MS, schedule
from bench.harness import BenchError
from bench.loader import SOURCES, Report, compile_to, ended, finished, parse, run, running
from bench.peers import has_beanstalkd, has_redis
from tests.bench.fake_peer import PATIENCE_S, Fake, faking

JOBS = 5_000
STORED = b"$10\r\n4294967296\r\n"

redis_is_here = pytest.mark.skipif(not has_redis(), reason="not run: no redis-server here")
beanstalkd_is_here = pytest.mark.skipif(not has_beanstalkd(), reason="not run: no beanstalkd here")
SERVERS = [
    OURS,
    pytest.param(ZADD, marks=redis_is_here),
    pytest.param(HSET, marks=redis_is_here),
    pytest.param(BEANSTALKD, marks=beanstalkd_is_here),
]


# ---------------------------------------------------------------- real servers


@pytest.mark.crash
@pytest.mark.parametrize("name", SERVERS)
def test_what_the_generator_counts_is_what_the_server_holds(name, tmp_path):
    with contenders("off")[name](tmp_path / "s") as server:
        sample = schedule(server, MANY_DEEP, JOBS, 20)  # compares the counts itself
        assert server.jobs() == JOBS
        assert sample.rate > 0
        assert sample.cpu_us > 0
        words = {"jobs": JOBS, "first": JOBS, "expect": JOBS, "producers": 4, "workers": 4}
        for batch in (1, 50):
            report = run(server, seconds=30, depth=batch, batch=batch, backlog=500, **words)
            assert (report.stored, report.leased, report.done) == (JOBS, JOBS, JOBS)
            assert (report.early, report.duplicates) == (0, 0)
            assert report.late_us.count == JOBS
            assert server.jobs() == JOBS
        beside = run(server, seconds=0.1, pingers=2, ping_us=1000)
        assert beside.ping_us.count > 2
        assert beside.sent == beside.done == 0


@pytest.mark.crash
@pytest.mark.parametrize("name", [OURS, pytest.param(ZADD, marks=redis_is_here)])
def test_an_open_loop_sends_at_its_rate_and_no_job_comes_before_it_is_due(name, tmp_path):
    with contenders("off")[name](tmp_path / "s") as server:
        words = {"producers": 2, "rate": 2000, "lead_ms": 200, "jobs": 1000, "expect": 1000}
        report = run(server, seconds=30, workers=2, batch=100, **words)
        assert (report.sent, report.done, report.early, report.duplicates) == (1000, 1000, 0, 0)
        assert report.seconds >= 0.69  # 0.5 s of sending, and the last one waits for its lead


@pytest.mark.crash
def test_a_run_ends_with_its_time_and_at_a_signal_with_nothing_owed(tmp_path):
    with contenders("off")[OURS](tmp_path / "s") as server:
        far = {"at_ms": FAR_MS, "span_ms": SPAN_MS, "producers": 3, "depth": 10}
        report = run(server, seconds=0.1, jobs=10_000_000, **far)
        assert 0 < report.stored == report.sent == server.jobs() < 10_000_000
        with running(server, seconds=60, jobs=50_000_000, **far) as process:
            deadline = time.monotonic() + 20
            while server.jobs() == report.stored and time.monotonic() < deadline:
                pass
            more = ended(process)
        assert 0 < more.stored == more.sent == server.jobs() - report.stored


# ---------------------------------------------------------------- what it sends


def sent_by(seed: int, jobs: int = 50) -> list[tuple[bytes, bytes]]:
    fake = Fake([STORED * jobs])
    words = {"producers": 1, "jobs": jobs, "depth": jobs, "at_ms": FAR_MS, "span_ms": SPAN_MS}
    with faking(fake) as server:
        report = run(server, seconds=20, seed=seed, **words)
    assert report.seed == seed
    found: list[tuple[bytes, bytes]] = re.findall(
        rb"\r\n\$13\r\n(\d{13})\r\n\$100\r\n(\{.{98}\})\r\n", b"".join(fake.got)
    )
    return found


def test_due_times_are_random_and_the_same_for_the_same_seed():
    jobs = sent_by(7)
    assert len(jobs) == 50
    assert jobs == sent_by(7)
    assert jobs != sent_by(8)
    dues = [int(due) for due, _ in jobs]
    assert len(set(dues)) == 50
    assert all(FAR_MS <= due <= FAR_MS + SPAN_MS for due in dues)
    assert max(dues) - min(dues) > SPAN_MS // 2
    assert sorted(dues) != dues


def test_each_payload_is_json_that_carries_number_and_due_time():
    for number, (due, payload) in enumerate(sent_by(1)):
        fields = json.loads(payload)
        assert (int(fields["seq"]), fields["due"]) == (number, due.decode())


# ---------------------------------------------------------------- planted faults


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


def a_payload(due_ms: int = 1_700_000_000_000, number: int = 3) -> bytes:
    payload: bytes = sent_by(1)[0][1]
    numbered = re.sub(rb'"seq":"\d+"', b'"seq":"%010d"' % number, payload)
    return re.sub(rb'"due":"\d+"', b'"due":"%013d"' % due_ms, numbered)


def leased(*payloads: bytes) -> bytes:
    jobs = b""
    for payload in payloads:
        head = (
            b"*12\r\n" + bulk(b"4294967296.7.4") + bulk(b"4294967296") + b"$-1\r\n" + bulk(b"mail")
        )
        numbers = b":1\r\n:1700000000000\r\n:60000\r\n"
        jobs += head + numbers + bulk(payload) + b":300000\r\n$-1\r\n$-1\r\n$-1\r\n"
    return b"*%d\r\n%s" % (len(payloads), jobs)


@pytest.mark.parametrize(
    ("dialect", "reply", "told"),
    [
        ("wheeld", b"-OOM no memory\r\n", "-OOM no memory"),
        ("wheeld", b"$2\r\nab\r\n", "expected an id, the server answered: ab"),
        ("wheeld", b"+OK\r\n", "expected a bulk string, the server answered: +OK"),
        ("wheeld", STORED + STORED, "expected nothing"),
        ("wheeld", STORED[:-1] + b"x", "expected CRLF behind a string"),
        ("zadd", b":0\r\n", "expected :1, the server answered: :0"),
        ("zadd", b":10\r\n", "expected :1, the server answered: :10"),
        ("hset", b"-NOSCRIPT No matching script\r\n", "NOSCRIPT"),
        ("beanstalkd", b"BURIED 5\r\n", "expected INSERTED id, the server answered: BURIED 5"),
        ("beanstalkd", b"INSERTED\n", "CRLF"),
        ("beanstalkd", b"", "the server closed a connection"),
    ],
)
def test_a_wrong_reply_to_a_stored_job_fails_and_is_shown(dialect, reply, told):
    refused = pytest.raises(BenchError, match=re.escape(told))
    with faking(Fake([reply]), dialect) as server, refused:
        run(server, seconds=20, at_ms=FAR_MS, producers=1, jobs=1)


@pytest.mark.parametrize(
    ("dialect", "replies", "told"),
    [
        ("wheeld", [b"-SYNTAX what\r\n"], "expected an array of jobs"),
        ("wheeld", ["two"], "expected at most COUNT jobs"),
        ("wheeld", ["damaged"], "expected a payload that was sent"),
        ("wheeld", ["one", b"*1\r\n-STALE gone\r\n"], "expected +OK, the server answered: -STALE"),
        ("wheeld", ["one", b"*2\r\n+OK\r\n+OK\r\n"], "expected an outcome for each receipt"),
        ("zadd", [b"*1\r\n$1\r\nx\r\n"], "expected a payload that was sent"),
        ("zadd", ["member", b":0\r\n"], "expected all jobs acknowledged"),
        ("beanstalkd", [b"RESERVED 1\r\n"], "expected RESERVED id bytes"),
        ("beanstalkd", ["reserved", b"NOT_FOUND\r\n"], "expected DELETED"),
    ],
)
def test_a_wrong_reply_to_a_worker_fails_and_is_shown(dialect, replies, told):
    payload = a_payload()
    known = {
        "one": leased(payload),
        "two": leased(payload, payload),
        "damaged": leased(payload.replace(b"welcome", b"welcomf")),
        "member": b"*1\r\n" + bulk(payload),
        "reserved": b"RESERVED 1 100\r\n" + payload + b"\r\n",
    }
    fake = Fake([known.get(reply, reply) for reply in replies])
    with faking(fake, dialect) as server, pytest.raises(BenchError, match=re.escape(told)):
        run(server, seconds=20, workers=1, batch=1, expect=5)


def test_a_job_that_comes_early_and_one_that_comes_twice_are_counted():
    tomorrow_ms = int(time.time() + 86_400) * 1000
    early, once = a_payload(tomorrow_ms, 1), a_payload(number=2)
    replies = [leased(early), *[b"*1\r\n+OK\r\n" + leased(job) for job in (once, once, early)]]
    fake = Fake([*replies, b"*1\r\n+OK\r\n"])
    with faking(fake) as server:
        report = run(server, seconds=20, workers=1, batch=1, expect=4)
    assert (report.leased, report.done) == (4, 4)
    assert (report.early, report.duplicates) == (2, 2)


def test_replies_that_do_not_come_fail_the_run():
    with (
        faking(Fake([], hold=True)) as server,
        pytest.raises(BenchError, match="10 replies did not"),
    ):
        run(server, seconds=0.05, grace_ms=50, producers=1, depth=10, jobs=20)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"producers": 2000}, "--producers 2000: not a number from 0 to 1000"),
        ({"producers": "many"}, "not a number"),
        ({"nonsense": 1}, "unknown or without a value: --nonsense"),
        ({"rate": 10}, "nothing to do"),
        ({"workers": 1, "rate": 10}, "--rate needs --producers"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, told):
    server = SimpleNamespace(dialect="wheeld", port=1, words=())
    command = loader.command(server, seconds=1, **options)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr


# ---------------------------------------------------------------- what it prints

LINE = {
    "dialect": "wheeld",
    "seed": 1,
    **dict.fromkeys(("sent", "stored", "leased", "done", "early", "duplicates"), 5),
    "seconds": 2.0,
    "own_cpu_s": 0.5,
    "begin_ns": 1,
    "last_ns": 2_000_000_001,
    "store_us": {"count": 5, "p50": 1, "p99": 2, "max": 3},
    "late_us": {"count": 5, "p50": 1, "p99": 2, "max": 3},
    "ping_us": {"count": 5, "p50": 1, "p99": 2, "max": 3},
}


def parse_line(**changed: int) -> Report:
    return parse(json.dumps(LINE | changed))


def test_the_line_of_json_is_read_whole():
    report = parse(json.dumps(LINE))
    assert isinstance(report, Report)
    assert (report.done, report.late_us.p99, report.busy) == (5, 2, 0.25)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"dialect": "wheeld"',
        json.dumps({name: value for name, value in LINE.items() if name != "early"}),
        json.dumps(LINE | {"later": 1}),
        json.dumps(LINE | {"done": -1}),
        json.dumps(LINE | {"done": "5"}),
        json.dumps(LINE | {"done": True}),
        json.dumps(LINE | {"done": None}),
        json.dumps(LINE | {"ping_us": {"count": 1}}),
    ],
)
def test_another_line_is_refused(text):
    with pytest.raises(BenchError, match="the load generator printed"):
        parse(text)


# ---------------------------------------------------------------- compiled once


def test_it_is_compiled_once_and_again_when_a_source_has_changed(tmp_path, monkeypatch):
    sources = tmp_path / "sources"
    shutil.copytree(SOURCES, sources)
    monkeypatch.setattr(loader, "SOURCES", sources)
    monkeypatch.setattr(loader, "CFLAGS", ("-std=c11", "-O0"))
    first = compile_to(tmp_path / "made")
    made = first.stat().st_mtime_ns
    assert compile_to(tmp_path / "made") == first
    assert first.stat().st_mtime_ns == made
    (sources / "report.c").write_text("int broken(void) { return }\n")
    with pytest.raises(BenchError, match="does not compile"):
        compile_to(tmp_path / "made")
    monkeypatch.setenv("CC", "no-such-compiler-here")
    with pytest.raises(BenchError, match="no C compiler"):
        compile_to(tmp_path / "made")


def test_a_generator_that_dies_is_an_error_and_not_a_figure():
    fake = Fake([], hold=True)
    with faking(fake) as server:
        with running(server, seconds=60, producers=1, jobs=1) as process:
            assert fake.reached.wait(PATIENCE_S)
            process.send_signal(signal.SIGKILL)
            with pytest.raises(BenchError):
                finished(process, 1)
        with pytest.raises(BenchError, match="between 0 and 600 s"), running(server, seconds=601):
            pass
