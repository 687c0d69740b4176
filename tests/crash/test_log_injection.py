"""What outsiders name never forges a log line, never drives a terminal, and never gets out of it.

A real server is told hostile names wherever it takes one; then every line it wrote is looked at.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import socket

import pytest

from server.auth import TOKEN_BYTES, Role, add_token, mint
from tests.process import DEADLINE_S, Server
from wheel.wire import encode_command

pytestmark = pytest.mark.crash

FORGED = b'{"event": "forged"}'
HOSTILE = {
    "a line end": b"a\n" + FORGED + b"\n",
    "a carriage return": b"a\r" + FORGED,
    "an escape": b"a\x1b[2J\x1b]0;owned\x07",
    "no UTF-8": b"a\xff\xfe\x80",
    "a line separator": "a\u2028b\u2029c\u0085d".encode(),
    "text turned around": "a\u202eb\u2066c".encode(),
    "a NUL": b"a\x00b",
    "a quote": b'a", "event": "forged", "x": "',
    "length": b"a" * 100_000,
}
PAYLOAD = b"PAYLOAD-OF-A-CUSTOMER"
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def commands(name):
    """Yield commands that carry a hostile name in every place where one goes."""
    payload = PAYLOAD + name[:1000]
    yield (name,)
    yield ("SCHEDULE", name, "now", payload)
    yield ("SCHEDULE", "h", name, payload)
    for option in ("KEY", "GROUP", "META", "ONCE", name):
        yield ("SCHEDULE", "h", "now", payload, option, name)
    yield ("LEASE", name, "WORKER", name)
    yield ("LEASE", "h", "WORKER", name)
    yield ("HANDLER", name, "RETRIES", name)
    for verb in ("ACK", "FAIL", "RELEASE", "EXTEND", "CANCEL", "RUN", "JOB", "PURGE", "REQUEUE"):
        yield (verb, name)
    yield ("FAIL", "1.2.3", "ERROR", name)
    yield ("DONE", "1.2.3", payload)
    yield ("JOBS", "KEYPREFIX", name, "CURSOR", name)
    yield ("CLIENT", "SETNAME", name)
    yield ("CLIENT", "SETINFO", "LIB-NAME", name)
    yield ("CLIENT", "KILL", "USER", name)
    yield ("CLIENT", name)
    yield ("CONFIG", "GET", name)
    yield ("INFO", name)
    yield ("COMMAND", "DOCS", name)
    yield ("SELECT", name)
    yield ("CLOCK", name)
    yield ("AUTH", name, PAYLOAD)
    yield ("HELLO", "3", "AUTH", name, PAYLOAD)
    yield ("HELLO", "3", "SETNAME", name)
    yield ("PING", name)


def end(sock):
    """Send nothing more, and wait for the server's end, which may have come before."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass


def look_at(lines):
    """Fail unless each line is one event of the server's own."""
    assert lines
    for line in lines:
        assert CONTROL.search(line) is None, line
        event = json.loads(line)
        assert event["event"] != "forged"
        assert len(line) < 20_000
        assert PAYLOAD.decode() not in line
        assert "owned" not in line.replace("\\\\x1b", "").replace("]0;owned", "")


@pytest.fixture
def secret(tmp_path):
    secret, token = mint("root", Role.ADMIN, (), bytes(range(TOKEN_BYTES)))
    add_token(tmp_path / "tokens", token)
    return secret


def test_hostile_names_in_every_place_of_every_command_stay_out_of_the_log(
    server, secret, tmp_path
):
    server.start("--token-file", str(tmp_path / "tokens"))
    for name in HOSTILE.values():
        with server.connect() as connection:
            assert connection.call("AUTH", secret) == "OK"
            asked = [words for words in commands(name) if words[0] not in ("AUTH", "HELLO")]
            connection.send(*asked)
            for _ in asked:
                connection.read()
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(server.connect()) for _ in HOSTILE]
        for stranger, name in zip(strangers, HOSTILE.values(), strict=True):
            stranger.send(("HELLO", "3", "AUTH", name[:10_000], PAYLOAD))
        for stranger in strangers:
            end(stranger.socket)
    for first in (b"GET /", b"Host: ", b"\x16\x03"):
        for name in HOSTILE.values():
            with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as other:
                other.sendall(first + name + b"\r\n")
                end(other)
    server.wait_event("foreign_protocol_refused")
    server.terminate()
    look_at(server.lines)
    assert secret not in "".join(server.lines)


def test_hostile_name_of_the_data_directory_is_escaped(tmp_path):
    """In the lines of a start that works, and of one that is refused."""
    names = [name for what, name in HOSTILE.items() if what not in ("length", "a NUL")]
    server = Server(tmp_path / os.fsdecode(b"".join(names)))
    try:
        server.start()
        server.kill()
        (segment,) = (server.data / "wal").glob("*1.wal")
        segment.write_bytes(b"\xff" * 5000)
        server.spawn()
        assert server.wait() == 78
        look_at([line for line in server.lines if line])
        assert server.event("start_refused")
    finally:
        server.close()


def test_hostile_token_file_is_refused_in_one_line(server, secret, tmp_path):
    path = tmp_path / "tokens"
    server.start("--token-file", str(path))
    good = path.read_bytes()
    for name in HOSTILE.values():
        path.write_bytes(good + name.replace(b"\n", b" ") + b" admin x\n")
        server.signal(signal.SIGHUP)
        server.wait_event("tokens_refused")
    assert server.call("AUTH", secret) == "OK"
    server.terminate()
    look_at(server.lines)


def test_the_commands_of_this_test_name_every_command_that_takes_a_name():
    words = {words[0] for words in itertools.islice(commands(b"x"), 1, None)}
    assert len(words) > 20
    assert all(encode_command(words) for words in commands(b"x"))
