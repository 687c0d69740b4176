"""`wheeld serve` as a process: start, stop, kill, refusals, a disk that fails."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.process import DEADLINE_S, ROOT, Server, compiled, parse_event
from wheel.client import Client
from wheel.errors import WheeldError
from wheel.wire import ReplyError, encode_command

pytestmark = pytest.mark.crash

NOBODY = 65534


@pytest.fixture(scope="session")
def fail_sync(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("shim"), "fail_sync")


@pytest.fixture(scope="session")
def slow_read(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("shim"), "slow_read")


def scheduled(server):
    return server.call("COUNT", "STATE", "scheduled")


def schedule_many(connection, count, handler="h", when="+1d"):
    connection.send(*[("SCHEDULE", handler, when, f"p{i}") for i in range(count)])
    return [connection.read() for _ in range(count)]


def last_segment(server):
    return max((server.data / "wal").glob("*.wal"), key=lambda path: path.name)


def wait_for(server, condition):
    """Ask for INFO until it says so; each question waits for its answer."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if condition(server.info()):
            return
    raise AssertionError(server.info())


def is_loading(reply):
    return isinstance(reply, ReplyError) and reply.code == "LOADING"


# ---------------------------------------------------------------- start and stop


def test_start_says_where_it_listens_and_what_it_replayed(server):
    ready = server.start()
    assert ready["listen"] == f"127.0.0.1:{server.port}"
    assert ready["term"] == 1
    with server.connect() as connection:
        schedule_many(connection, 10)
    assert server.terminate() == 0
    assert server.start()["term"] == 2
    assert replayed(server)["jobs"] == 10
    assert replayed(server)["records"] >= 10


def replayed(server):
    """What the start of a running server said of its replay."""
    events = [parse_event(line) for line in server.lines]
    (found,) = [event for event in events if event.get("event") == "replay_finished"]
    return found


def test_port_0_is_a_free_port_named_in_the_ready_line(server):
    server.port = 0
    ready = server.start()
    server.port = int(str(ready["listen"]).rpartition(":")[2])
    assert server.port > 0
    assert server.call("PING") == "PONG"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_in_order_with_status_0(server, number):
    server.start()
    server.signal(number)
    assert server.wait() == 0
    assert server.event("server_stopped")


def test_shutdown_command_stops_in_order(server):
    server.start()
    with server.connect() as connection:
        connection.send(("SHUTDOWN",))
        assert connection.read_to_end() == b""
    assert server.wait() == 0


def test_orderly_stop_is_told_by_the_next_start(server):
    server.start()
    server.call("SCHEDULE", "h", "+1d", "p")
    server.terminate()
    server.start()
    assert server.call("COUNT", "STATE", "scheduled") == 1
    assert replayed(server)["after_clean_stop"] is True
    server.kill()
    server.start()
    assert replayed(server)["after_clean_stop"] is False


def test_waiting_lease_is_answered_empty_at_the_stop(server):
    server.start()
    with server.connect() as waiting, server.connect() as other:
        waiting.send(("LEASE", "h", "WAIT", 300_000))
        wait_for(server, lambda _: b"flags=b" in other.call("CLIENT", "LIST"))
        server.signal(signal.SIGTERM)
        assert waiting.read() == []
        assert waiting.read_to_end() == b""
    assert server.wait() == 0


def test_what_was_asked_before_the_stop_is_answered_or_not_done(server):
    server.start()
    with server.connect() as connection:
        connection.send(*[("SCHEDULE", "h", "+1d", "p")] * 2000)
        first = connection.read()
        assert isinstance(first, bytes)
        server.signal(signal.SIGTERM)
        answers = connection.read_to_end()
    assert server.wait() == 0
    server.start()
    confirmed = 1 + answers.count(b"$")
    assert confirmed <= scheduled(server) <= 2000


def test_planned_restart_under_load_fails_no_call(server):
    server.start()
    stop, failures, made = threading.Event(), [], []

    def produce(number):
        with Client(f"wheeld://127.0.0.1:{server.port}") as client:
            while not stop.is_set():
                try:
                    made.append(client.schedule_in("1d", f"h{number}", {"n": len(made)}).id)
                except WheeldError as error:
                    failures.append(error)
                    return

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        wanted = len(made) + 50
        while len(made) < wanted and not failures:
            server.call("PING")
        assert server.terminate() == 0
        server.start()
    stop.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert failures == []
    assert len(set(made)) == len(made) == scheduled(server)


# ---------------------------------------------------------------- kill -9


@pytest.mark.parametrize("fsync", ["always", "interval", "off"])
def test_kill_loses_no_confirmed_job(server, fsync):
    ids = set()
    for _ in range(3):
        server.start("--fsync", fsync)
        with server.connect() as connection:
            made = schedule_many(connection, 200)
        ids |= set(made)
        server.kill()
    server.start("--fsync", fsync)
    assert len(ids) == 600
    assert scheduled(server) == 600
    for job in sorted(ids)[::50]:
        assert server.call("JOB", job) is not None


def test_kill_in_the_middle_of_a_pipeline_keeps_what_was_answered(server):
    server.start()
    with server.connect() as connection:
        connection.send(*[("SCHEDULE", "h", "+1d", "p" * 100)] * 5000)
        confirmed = [connection.read() for _ in range(100)]
        server.kill()
    server.start()
    assert scheduled(server) >= len(confirmed)
    assert server.call("JOB", confirmed[-1]) is not None


def test_finished_jobs_stay_finished_after_a_kill(server):
    server.start()
    with server.connect() as connection:
        schedule_many(connection, 3, when="now")
        jobs = connection.call("LEASE", "h", "COUNT", 2, "WAIT", 5000)
        assert connection.call("ACK", jobs[0][0]) == ["OK"]
    server.kill()
    server.start()
    assert server.call("COUNT") == 2


def test_confirmed_records_that_vanish_from_the_end_of_the_log_are_missed(server):
    server.start()
    with server.connect() as connection:
        schedule_many(connection, 20)
    wait_for(server, lambda info: info["log_marked_lsn"] == info["lsn"])
    server.kill()
    segment = last_segment(server)
    content = segment.read_bytes()
    end = len(content.rstrip(b"\0"))
    segment.write_bytes(content[: end - 64] + bytes(len(content) - end + 64))
    server.spawn()
    assert server.wait() == 78
    assert server.event("start_refused")["file"] == str(segment)


# ---------------------------------------------------------------- refusals


def test_second_server_on_the_data_is_refused_with_the_first_ones_pid(server, tmp_path):
    server.start()
    second = Server(server.data)
    second.spawn()
    assert second.wait() == 78
    refused = second.event("start_refused")
    assert str(server.process.pid) in str(refused["error"])
    assert server.call("PING") == "PONG"


def test_damaged_log_is_refused_with_file_offset_lsn_and_advice(server):
    server.start()
    with server.connect() as connection:
        schedule_many(connection, 100)
    server.terminate()
    segment = last_segment(server)
    data = bytearray(segment.read_bytes())
    data[4096 + 70] ^= 0xFF
    segment.write_bytes(data)
    server.spawn()
    assert server.wait() == 78
    refused = server.event("start_refused")
    assert refused["file"] == str(segment)
    assert refused["offset_bytes"] == 4096
    assert refused["lsn"] == 1
    assert "wal verify" in str(refused["hint"])


@pytest.mark.skipif(os.geteuid() != 0, reason="not run: only root gives a folder away")
def test_data_of_another_user_is_refused_and_left_alone(server):
    server.start()
    server.call("SCHEDULE", "h", "+1d", "p")
    server.terminate()
    before = {path: path.read_bytes() for path in server.data.rglob("*") if path.is_file()}
    os.chown(server.data, NOBODY, NOBODY)
    server.spawn()
    assert server.wait() == 78
    refused = server.event("start_refused")
    assert (refused["rule"], refused["file"]) == ("permissions", str(server.data))
    assert "chown" in str(refused["hint"])
    assert {path: path.read_bytes() for path in before} == before
    os.chown(server.data, 0, 0)
    server.start()
    assert scheduled(server) == 1


def test_data_that_others_may_write_to_are_refused(server):
    server.start()
    server.terminate()
    server.data.chmod(0o770)
    server.spawn()
    assert server.wait() == 78
    refused = server.event("start_refused")
    assert refused["rule"] == "permissions"
    assert "chmod 0700" in str(refused["hint"])


def test_network_file_system_is_refused_and_served_by_the_option_that_is_named(server, tmp_path):
    env = {"LD_PRELOAD": str(compiled(tmp_path, "network_fs"))}
    server.spawn(env=env)
    assert server.wait() == 78
    refused = server.event("start_refused")
    assert refused["rule"] == "network_fs"
    assert "--allow-network-fs" in str(refused["hint"])
    server.start("--allow-network-fs", env=env)
    server.call("SCHEDULE", "h", "+1d", "p")
    assert scheduled(server) == 1


def test_port_that_is_taken_is_said(server):
    with socket.create_server(("127.0.0.1", server.port)):
        server.spawn()
        assert server.wait() == 1
    assert str(server.port) in str(server.event("start_refused")["error"])


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]"])
def test_other_addresses_than_loopback_need_a_token(server, address, tmp_path):
    listen = f"{address}:{server.port}"
    server.spawn("--listen", listen)
    assert server.wait() == 78
    error = str(server.event("start_refused")["error"])
    assert "--listen" in error
    assert "--token-file" in error
    assert not server.data.exists()


def make_token(path, *words):
    made = subprocess.run(
        [sys.executable, "-m", "wheeld", "token", "create", *words, "--token-file", path],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return made.stdout.strip()


def test_token_opens_other_addresses_and_is_asked_for(server, tmp_path):
    tokens = tmp_path / "tokens"
    secret = make_token(tokens, "ann", "admin")
    server.start("--listen", f"0.0.0.0:{server.port}", "--token-file", str(tokens))
    with server.connect() as connection:
        for words in (("COUNT",), ("SCHEDULE", "h", "now", "p"), ("INFO",), ("CLIENT", "LIST")):
            refused = connection.call(*words)
            assert isinstance(refused, ReplyError), words
            assert refused.code == "NOAUTH", words
        assert connection.call("PING") == "PONG"
        assert connection.call("AUTH", "wrong").code == "WRONGPASS"
        assert connection.call("AUTH", secret) == "OK"
        assert connection.call("COUNT") == 0
    assert secret not in "\n".join(server.lines)


def test_tokens_are_read_again_at_sighup(server, tmp_path):
    tokens = tmp_path / "tokens"
    make_token(tokens, "ann", "admin")
    server.start("--token-file", str(tokens))
    later = make_token(tokens, "bob", "admin")
    assert server.call("AUTH", later).code == "WRONGPASS"
    server.signal(signal.SIGHUP)
    assert server.wait_event("tokens_reloaded")["tokens_count"] == 2
    assert server.call("AUTH", later) == "OK"


@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_token_file_that_others_can_read_is_refused(server, tmp_path, mode):
    tokens = tmp_path / "tokens"
    make_token(tokens, "ann", "admin")
    tokens.chmod(mode)
    server.spawn("--token-file", str(tokens))
    assert server.wait() == 78
    assert "chmod 600" in str(server.event("start_refused")["error"])


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])
def test_token_file_without_a_token_is_refused(server, tmp_path, listen):
    tokens = tmp_path / "tokens"
    tokens.write_text("# nobody yet\n")
    tokens.chmod(0o600)
    server.spawn("--token-file", str(tokens), "--listen", f"{listen}:{server.port}")
    assert server.wait() == 78
    assert "--token-file" in str(server.event("start_refused")["error"])


def test_disk_that_fails_at_the_start_ends_it_with_74(server, fail_sync, tmp_path):
    server.start()
    server.terminate()
    when = tmp_path / "fail"
    when.touch()
    server.spawn(env={"LD_PRELOAD": str(fail_sync), "FAIL_SYNC_WHEN": str(when)})
    assert server.wait() == 74
    assert "input/output error" in str(server.event("start_refused")["error"])


# ---------------------------------------------------------------- options


def test_strict_server_refuses_a_handler_that_nobody_has_served(server):
    server.start("--strict-handlers")
    with server.connect() as connection, server.connect() as worker:
        assert connection.call("SCHEDULE", "mail", "now", "p").code == "DENIED"
        worker.send(("LEASE", "mail", "WAIT", 60_000))
        wait_for(server, lambda _: b"flags=b" in connection.call("CLIENT", "LIST"))
        assert isinstance(connection.call("SCHEDULE", "mail", "now", "p"), bytes)
        assert len(worker.read()) == 1
        assert connection.call("SCHEDULE", "post", "now", "p").code == "DENIED"


def test_connections_above_the_limit_are_refused_with_a_reason_and_one_line(server):
    server.start("--maxclients", "2")
    with server.connect() as first, server.connect() as second:
        assert (first.call("PING"), second.call("PING")) == ("PONG", "PONG")
        for _ in range(3):
            with server.connect() as third:
                assert third.read_to_end().startswith(b"-ERR max")
        assert server.wait_event("clients_refused")
        assert first.call("PING") == "PONG"
    assert server.terminate() == 0
    assert [event["event"] for event in server.log()].count("clients_refused") == 1


def test_memory_limit_refuses_jobs_and_keeps_the_rest_going(server):
    server.start("--maxmemory", "16M")
    with server.connect() as connection:
        made = []
        while isinstance(reply := connection.call("SCHEDULE", "h", "now", "x" * 60_000), bytes):
            made.append(reply)
        assert reply.code == "OOM"
        assert "--maxmemory" in reply.text
        assert 100 < len(made) < 300
        jobs = connection.call("LEASE", "h", "COUNT", 3)
        assert connection.call("ACK", *[job[0] for job in jobs]) == ["OK"] * len(jobs)
    server.kill()
    server.start("--maxmemory", "16M")
    assert server.call("COUNT") == len(made) - len(jobs)


def test_files_of_the_log_have_the_size_that_was_asked_for(server):
    server.start("--segment-size", "4M")
    server.call("SCHEDULE", "h", "+1d", "p")
    server.terminate()
    sizes = {path.stat().st_size for path in (server.data / "wal").glob("*.wal")}
    assert sizes == {4 << 20}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--segment-size", "1M"),
        ("--maxmemory", "5X"),
        ("--maxmemory", "1k"),
        ("--maxclients", "0"),
        ("--fsync", "never"),
        ("--listen", "127.0.0.1:http"),
    ],
)
def test_option_that_is_wrong_is_a_usage_error_with_its_name(server, option, value):
    server.spawn(option, value)
    assert server.wait() == 2
    assert any(value in line or option in line for line in server.lines)
    assert not server.data.exists()


# ---------------------------------------------------------------- a disk that fails


def test_failed_sync_sends_nothing_more_and_ends_with_74(server, fail_sync, tmp_path):
    when = tmp_path / "fail"
    env = {"LD_PRELOAD": str(fail_sync), "FAIL_SYNC_WHEN": str(when)}
    server.start(env=env)
    with server.connect() as writer, server.connect() as reader:
        confirmed = schedule_many(writer, 5)
        when.touch()
        writer.send(("SCHEDULE", "h", "+1d", "lost"), ("PING",))
        assert writer.read_to_end() == b""
        assert reader.read_to_end() == b""
    assert server.wait() == 74
    failed = server.event("log_failed")
    assert failed["call"] == "datasync"
    assert failed["lsn"]
    when.unlink()
    server.start()
    assert scheduled(server) >= len(confirmed)


def test_failed_sync_at_the_stop_is_not_called_clean(server, fail_sync, tmp_path):
    when = tmp_path / "fail"
    env = {"LD_PRELOAD": str(fail_sync), "FAIL_SYNC_WHEN": str(when)}
    server.start("--fsync", "off", env=env)
    server.call("SCHEDULE", "h", "+1d", "p")
    when.touch()
    assert server.terminate() == 74


# ---------------------------------------------------------------- replay


@pytest.mark.slow
def test_while_the_log_is_replayed_the_port_answers_what_needs_no_jobs(server, slow_read):
    server.start("--fsync", "off")
    with server.connect() as connection:
        for _ in range(40):
            schedule_many(connection, 5_000)
    server.kill()
    server.spawn(env={"LD_PRELOAD": str(slow_read), "SLOW_READ_MS": "80"})
    server.wait_event("server_started")
    seen_loading = False
    with server.connect() as connection:
        while is_loading(connection.call("COUNT")):
            assert connection.call("PING") == "PONG"
            info = connection.call("INFO", "persistence")
            if b"loading:1" not in info:  # it ended between the two
                assert not is_loading(connection.call("COUNT"))
                break
            seen_loading = True
            assert connection.call("CLIENT", "ID") > 0
            assert b"store" in connection.call("HELLO", 3)
            connection.call("HELLO", 2)
        assert connection.call("COUNT") == 200_000
        assert b"loading:0" in connection.call("INFO", "persistence")
    assert seen_loading


@pytest.mark.slow
def test_stop_during_the_replay_leaves_the_log_as_it_was(server):
    server.start("--fsync", "off")
    with server.connect() as connection:
        for _ in range(20):
            schedule_many(connection, 5_000)
    server.kill()
    server.spawn()
    server.wait_event("server_started")
    assert server.terminate() == 0
    server.start()
    assert scheduled(server) == 100_000


# ---------------------------------------------------------------- clients


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_connects_without_settings(server, protocol):
    server.start()
    with redis.Redis(port=server.port, protocol=protocol) as client:
        assert client.ping()
        assert client.execute_command("SCHEDULE", "h", "+1h", "p")
        assert client.execute_command("COUNT") == 1
        assert client.info()["loading"] == 0
        assert client.client_list()[0]["lib-name"].startswith("redis-py")
        assert client.config_get("save") == {"save": ""}
        assert client.command_count() > 10
        assert "schedule" in client.command()
        client.client_setname("billing")
        assert client.client_getname() in {"billing", b"billing"}  # by protocol
        assert client.time()[0] > 0


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_asyncio_connects_without_settings(server, protocol):
    server.start()

    async def use():
        async with redis.asyncio.Redis(port=server.port, protocol=protocol) as client:
            assert await client.ping()
            assert await client.execute_command("SCHEDULE", "h", "+1h", "p")
            assert (await client.info())["redis_version"]

    asyncio.run(use())


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_signs_in(server, tmp_path, protocol):
    tokens = tmp_path / "tokens"
    secret = make_token(tokens, "ann", "admin")
    server.start("--token-file", str(tokens))
    with redis.Redis(port=server.port, protocol=protocol, password=secret) as client:
        assert client.execute_command("COUNT") == 0
    with redis.Redis(
        port=server.port, protocol=protocol, username="ann", password=secret
    ) as client:
        assert client.execute_command("COUNT") == 0
    with (
        redis.Redis(
            port=server.port, protocol=protocol, password="wrong", retry=Retry(NoBackoff(), 0)
        ) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def redis_cli(port, *words, stdin=None):
    return subprocess.run(
        ["redis-cli", "-p", str(port), *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    ).stdout


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed")
@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_redis_cli_is_a_console(server, protocol):
    server.start()
    assert redis_cli(server.port, protocol, "PING") == "PONG\n"
    job = redis_cli(server.port, protocol, "SCHEDULE", "h", "+1h", "p").strip().strip('"')
    assert job.isdigit()
    assert "redis_version" in redis_cli(server.port, protocol, "INFO", "server")
    session = redis_cli(server.port, protocol, stdin="HELLO 3\nCOUNT\nQUIT\n")
    assert "wheeld" in session
    assert redis_cli(server.port, protocol, "COMMAND", "COUNT").strip().isdigit()


def test_nc_session_is_lines_in_and_lines_out(server):
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) as typed:
        typed.sendall(b'SCHEDULE mail +1h {"user":7}\r\nCOUNT\nnonsense\nQUIT\n')
        lines = b"".join(iter(lambda: typed.recv(1 << 16), b"")).split(b"\r\n")
    assert lines[0].startswith(b"$")
    assert lines[2] == b":1"
    assert lines[3].startswith(b"-UNKNOWN_COMMAND ")
    assert lines[4] == b"+OK"


IOREDIS = """
const Redis = require("ioredis");
const client = new Redis(+process.argv[1], "127.0.0.1");
client.call("SCHEDULE", "h", "+1h", "p").then(() => client.call("COUNT")).then((n) => {
  console.log("count", n);
  client.disconnect();
});
"""


def has_ioredis():
    if shutil.which("node") is None:
        return False
    asked = ["node", "-e", "require('ioredis')"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_ioredis(), reason="node has no ioredis")
def test_ioredis_connects_without_settings(server):
    server.start()
    told = subprocess.run(
        ["node", "-e", IOREDIS, str(server.port)],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert told.stdout == "count 1\n"


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"]
)
def test_http_and_tls_are_hung_up_on_with_one_line(server, first):
    server.start()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) as wrong:
            wrong.sendall(first)
            while wrong.recv(1 << 16):
                pass
    assert server.wait_event("foreign_protocol_refused")
    assert server.terminate() == 0
    names = [event.get("event") for event in server.log()]
    assert names.count("foreign_protocol_refused") == 1


def test_name_with_control_characters_does_not_reach_the_log(server):
    server.start()
    with server.connect() as connection:
        connection.socket.sendall(encode_command((b"\x1b[2J\r\nEVIL", b"\xff\x00\n")))
        assert isinstance(connection.read(), ReplyError)
    server.terminate()
    assert not any(
        ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0
        for line in server.lines
        for character in line
    )
