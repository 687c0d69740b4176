"""Sockets: real ones over loopback, one round at a time, commits made by hand."""

import contextlib
import errno
import os
import resource
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fed import TERM, WALL_MS
from wheel.engine.core import Commit, Core, CoreOptions
from wheel.engine.facts import Clocks

PATIENCE_S = 20.0
RECV_BYTES = 1 << 16


class Server:
    """A core with a listener; ``run`` makes rounds until a condition holds."""

    def __init__(self, **options: Any) -> None:
        self.core = Core(
            CoreOptions(
                commit=Commit.DRIVEN,
                hand_clock=True,
                jobs_max=100_000,
                **options,
            )
        )
        self.wall_ms = WALL_MS
        self.boot_ms = 1_000_000
        self.core.start(term=TERM, rel_ms=WALL_MS, clocks=self.clocks())
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: tuple[str, int] = listener.getsockname()
        self.core.listen(listener.detach())
        self.clients: list[Client] = []
        self.asked: list[tuple[bytes, ...]] = []
        self.parks = False  # True: commands for Python stay unanswered

    def clocks(self) -> Clocks:
        return Clocks(wall_ms=self.wall_ms, boot_ms=self.boot_ms, mono_ms=self.boot_ms)

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.boot_ms += ms
        self.core.tick(self.clocks())

    def connect(self) -> "Client":
        client = Client(self, socket.create_connection(self.address))
        self.clients.append(client)
        return client

    def round(self, timeout_ms: int = 5) -> None:
        self.core.poll(timeout_ms)
        if not self.parks:
            while (command := self.core.slow_next()) is not None:
                self.asked.append(command.arguments)
                reply = b"+" + b" ".join(command.arguments)[:100] + b"\r\n"
                self.core.slow_reply(command.handle, reply, gated=True)
            self.core.commit()
        while (batch := self.core.take_batch()) is not None:
            self.core.batch_durable(batch.lsn)

    def settle(self, rounds: int = 20) -> None:
        """Make rounds until the sockets are quiet."""
        for _ in range(rounds):
            if not select.select([self.core.fileno()], [], [], 0.02)[0]:
                self.round(0)
                return
            self.round(0)

    def stat(self, name: str) -> int:
        return self.core.stats()[name]

    def close(self) -> None:
        for client in self.clients:
            client.socket.close()
        self.core.close()


class Client:
    """The other end: bytes out, bytes in."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self.server = server
        self.socket = sock
        sock.setblocking(False)
        self.data = b""
        self.eof = False
        self.reset = False

    def send(self, data: bytes) -> None:
        """Hand data to the kernel, with rounds when it is full."""
        deadline = time.monotonic() + PATIENCE_S
        while data:
            assert time.monotonic() < deadline, f"{len(data)} bytes were never taken"
            try:
                data = data[self.socket.send(data) :]
            except BlockingIOError:
                self.server.round()

    def pull(self) -> None:
        """Take what is there."""
        try:
            data = self.socket.recv(RECV_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            self.eof = self.reset = True
            return
        self.eof = not data
        self.data += data

    def read(self, count: int) -> bytes:
        """Return exactly count bytes."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.data) < count and not self.eof:
            assert time.monotonic() < deadline, f"only {len(self.data)} of {count} bytes came"
            self.server.round(1)
            self.pull()
        found, self.data = self.data[:count], self.data[count:]
        return found

    def read_to_end(self) -> bytes:
        """Return everything up to the server's close."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.eof:
            assert time.monotonic() < deadline, f"no end after {self.data[-200:]!r}"
            self.server.round(1)
            self.pull()
        return self.data

    def be_owed(self, count: int, behind: bytes = b"") -> int:
        """Ask Python, with more behind it, and let the reply be so many bytes; return the handle.

        Commands for Python stay unanswered from then on.
        """
        core = self.server.core
        self.server.parks = True
        self.send(b"INFO\r\n" + behind)
        self.server.settle()
        command = core.slow_next()
        assert command is not None
        core.slow_reply(command.handle, b"x" * count, gated=False)
        core.commit()
        return command.handle

    def ask(self, data: bytes, expected: bytes) -> None:
        self.send(data)
        assert self.read(len(expected)) == expected


def open_descriptors() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def narrow(server: Server, client: Client) -> None:
    """Let the kernel keep next to nothing of what the server sends to this client."""
    server.settle()
    for fd in open_descriptors():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as end:
            if end.getpeername() == client.socket.getsockname():
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    assert server.core.check() == 0
    server.close()


def bulk(*arguments: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%s\r\n" % (len(argument), argument) for argument in arguments]
    return b"".join(parts)


def first_id(number: int = 0) -> bytes:
    """The id of the number-th job of a fresh core."""
    text = b"%d" % ((1 << 32) + number)
    return b"$%d\r\n%s\r\n" % (len(text), text)


# ---------------------------------------------------------------- bytes in, bytes out


def test_inline_and_resp_mix_on_one_connection(server: Server) -> None:
    client = server.connect()
    client.ask(
        b"PING\r\n" + bulk(b"PING", b"a b") + b"ping x\n", b"+PONG\r\n$3\r\na b\r\n$1\r\nx\r\n"
    )


def test_a_command_split_at_every_byte_is_answered_the_same(server: Server) -> None:
    data = bulk(b"SCHEDULE", b"mail", b"now", b"pay\r\nload") + b"PING 'a b'\r\nCOUNT\r\n"
    for at in range(1, len(data)):
        client = server.connect()
        count = server.clients.index(client) + 1
        expected = first_id(count - 1) + b"$3\r\na b\r\n:%d\r\n" % count
        client.send(data[:at])
        server.round()
        client.ask(data[at:], expected)
        client.socket.close()


def test_one_byte_at_a_time(server: Server) -> None:
    client = server.connect()
    for byte in bulk(b"SCHEDULE", b"mail", b"now", b"x" * 300):
        client.send(bytes([byte]))
        server.round(1)
    assert client.read(len(first_id())) == first_id()


def test_a_deep_pipeline_is_answered_in_order(server: Server) -> None:
    client = server.connect()
    count = 20_000
    client.send(b"".join(b"PING %d\r\n" % i for i in range(count)))
    expected = b"".join(b"$%d\r\n%d\r\n" % (len(str(i)), i) for i in range(count))
    assert client.read(len(expected)) == expected


def test_writes_of_many_connections_share_a_commit(server: Server) -> None:
    clients = [server.connect() for _ in range(50)]
    server.settle()
    for client in clients:
        client.send(b"SCHEDULE mail +1h x\r\n")
    for client in clients:
        client.read(len(first_id()))
    figures = server.core.stats()
    assert figures["lsn"] == figures["durable_lsn"]
    assert figures["commands"] == 50


def test_a_big_payload_goes_in_and_out_whole() -> None:
    server = Server(payload_bytes_max=1 << 20)
    client = server.connect()
    payload = os.urandom(1 << 20)
    client.ask(bulk(b"SCHEDULE", b"big", b"now", payload), first_id())
    client.send(b"LEASE big\r\n")
    reply = client.read(len(payload) + 100)
    assert payload in reply
    server.close()


def test_replies_larger_than_the_socket_buffer_arrive_whole(server: Server) -> None:
    client = server.connect()
    narrow(server, client)
    payload = b"y" * 60_000
    client.send(bulk(b"SCHEDULE", b"big", b"now", payload) * 50)
    client.read(len(first_id()) * 50)
    client.send(b"LEASE big COUNT 1000\r\n" * 30)
    client.socket.shutdown(socket.SHUT_WR)
    reply = client.read_to_end()
    assert reply.count(payload) == 50
    answers = [line for line in reply.split(b"\r\n") if line[:1] == b"*" and line != b"*12"]
    assert len(answers) == 30


def test_a_slow_reader_stops_being_read_and_goes_on_later(server: Server) -> None:
    client = server.connect()
    narrow(server, client)
    command = bulk(b"PING", b"z" * 50_000)
    whole, rest = 0, b""
    for _ in range(1000):  # until nobody takes anything any more
        rest = rest or command
        try:
            rest = rest[client.socket.send(rest) :]
        except BlockingIOError:
            server.settle()
            if not select.select([], [client.socket], [], 0)[1]:
                break
        else:
            whole += not rest
            server.round(0)
    assert server.stat("conns_blocked") == 1
    session = server.core.sessions()[0]
    assert session.output_bytes < 2 << 20, "parsing went on although nobody reads"
    reply = b"$50000\r\n" + b"z" * 50_000 + b"\r\n"
    assert client.read(len(reply) * (whole - 20)) == reply * (whole - 20)
    client.send(rest)
    assert client.read(len(reply) * 21) == reply * 21
    server.settle()
    assert server.stat("conns_blocked") == 0


# ---------------------------------------------------------------- ends


def test_half_close_answers_what_was_read_then_closes(server: Server) -> None:
    client = server.connect()
    client.send(b"SCHEDULE mail now x\r\nPING\r\nPING unfini")
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read_to_end() == first_id() + b"+PONG\r\n"
    assert not client.reset
    server.settle()
    assert server.stat("conns") == 0


def test_half_close_ends_a_waiting_lease_with_an_empty_array(server: Server) -> None:
    client = server.connect()
    client.send(b"LEASE mail WAIT 60000\r\nPING\r\n")
    server.settle()
    assert server.core.sessions()[0].waiting
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read_to_end() == b"*0\r\n+PONG\r\n"


def test_half_close_behind_more_than_is_read_ahead_ends_a_waiting_lease(server: Server) -> None:
    client = server.connect()
    client.send(b"LEASE mail WAIT 60000\r\n")
    server.settle()
    client.send(b"PING\r\n" * 20_000)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read_to_end() == b"*0\r\n" + b"+PONG\r\n" * 20_000


def test_a_vanished_worker_frees_its_waiting_place(server: Server) -> None:
    client = server.connect()
    client.send(b"LEASE mail WAIT 60000\r\n")
    server.settle()
    client.socket.close()
    server.settle()
    assert server.stat("conns") == 0
    other = server.connect()
    other.ask(b"SCHEDULE mail now x\r\n", first_id())
    other.send(b"LEASE mail\r\n")
    assert other.read(4) == b"*1\r\n"


def test_an_error_does_not_close_but_broken_framing_does(server: Server) -> None:
    client = server.connect()
    client.send(b"SCHEDULE mail\r\n*1\r\n$x\r\nPING\r\n")
    reply = client.read_to_end()
    assert reply.count(b"-") >= 2
    assert not client.reset
    assert b"PONG" not in reply
    assert server.stat("broken") == 1


def test_a_reset_connection_is_forgotten(server: Server) -> None:
    client = server.connect()
    client.send(b"PING\r\n")
    server.settle()
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # on, 0 s: close() resets
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.socket.close()
    server.settle()
    assert server.stat("conns") == 0


def test_kill_closes_without_another_byte(server: Server) -> None:
    client = server.connect()
    client.ask(b"PING\r\n", b"+PONG\r\n")
    assert server.core.kill_session(server.core.sessions()[0].handle)
    assert client.read_to_end() == b""
    assert server.stat("killed") == 1


# ---------------------------------------------------------------- commands that Python answers


def test_commands_behind_a_python_command_wait_for_its_answer(server: Server) -> None:
    client = server.connect()
    server.parks = True
    client.send(b"SCHEDULE mail now x\r\nINFO a\r\nPING\r\nLEASE mail\r\nCONFIG GET x\r\nPING\r\n")
    server.settle()
    client.pull()
    assert client.data == first_id()
    command = server.core.slow_next()
    assert command is not None
    assert command.arguments == (b"INFO", b"a")
    assert server.core.slow_next() is None
    server.parks = False
    server.core.slow_reply(command.handle, b"+info\r\n", gated=True)
    server.core.commit()
    end = b"+CONFIG GET x\r\n+PONG\r\n"
    reply = client.read(len(first_id()) + 7 + 7 + 4)
    assert reply == first_id() + b"+info\r\n+PONG\r\n*1\r\n"
    server.settle()
    client.pull()
    assert client.data.endswith(end)
    assert server.asked == [(b"CONFIG", b"GET", b"x")]


def test_poll_says_how_many_commands_wait_for_python(server: Server) -> None:
    server.parks = True
    clients = [server.connect() for _ in range(5)]
    server.settle()
    for client in clients:
        client.send(b"INFO\r\n")
    for _ in range(20):
        if server.core.poll(20) == 5:
            break
    assert server.stat("conns_waiting_python") == 5
    assert server.core.commit() == 5


# ---------------------------------------------------------------- limits and strangers


def test_the_client_above_maxclients_is_told_and_closed() -> None:
    server = Server(conns_max=2)
    clients = [server.connect() for _ in range(2)]
    for client in clients:
        client.ask(b"PING\r\n", b"+PONG\r\n")
    third = server.connect()
    assert third.read_to_end().startswith(b"-ERR max number of clients reached (2)")
    assert server.stat("refused_full") == 1
    clients[0].socket.close()
    server.settle()
    server.connect().ask(b"PING\r\n", b"+PONG\r\n")
    server.close()


def test_without_descriptors_a_client_is_turned_away_and_the_loop_does_not_spin(
    server: Server,
) -> None:
    client = server.connect()
    client.ask(b"PING\r\n", b"+PONG\r\n")
    late = socket.socket()
    late.setblocking(False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()) + 1, hard))
    fillers: list[int] = []
    try:
        with contextlib.suppress(OSError):  # until there is none left
            while True:
                fillers.append(os.dup(0))
        assert late.connect_ex(server.address) in (0, errno.EINPROGRESS)
        for _ in range(5):
            server.core.poll(20)
        assert server.stat("accept_failures") == 1
        assert server.core.poll(0) == 0
        client.ask(b"PING\r\n", b"+PONG\r\n")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)
    stranger = Client(server, late)
    assert b"max number of clients" in stranger.read_to_end()
    late.close()
    server.connect().ask(b"PING\r\n", b"+PONG\r\n")


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\n\r\nSCHEDULE mail now x\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"PING\r\nHost: localhost\r\nSCHEDULE mail now x\r\n",
    ],
)
def test_http_and_tls_are_closed_and_counted_and_run_nothing(server: Server, hello: bytes) -> None:
    for split in (1, 3, len(hello)):
        client = server.connect()
        client.send(hello[:split])
        server.settle()
        client.send(hello[split:])
        reply = client.read_to_end()
        assert reply in (b"", b"+PONG\r\n")
    assert server.stat("foreign") == 3
    assert server.stat("lsn") == 0


def test_before_auth_a_long_command_closes() -> None:
    server = Server(auth_required=True)
    for data in (bulk(*[b"x"] * 11), b"AUTH " + b"x" * 17_000 + b"\r\n", b"AUTH " + b"x" * 17_000):
        client = server.connect()
        client.send(data)
        assert b"before AUTH" in client.read_to_end()
    server.close()


def test_who_does_not_authenticate_in_ten_seconds_is_closed() -> None:
    server = Server(auth_required=True)
    client = server.connect()
    server.settle()
    server.advance(9_000)
    assert server.stat("conns") == 1
    server.advance(2_000)
    assert client.read_to_end() == b""
    assert server.stat("preauth_timeouts") == 1
    server.close()


def test_output_that_nobody_takes_is_cut_at_the_hard_limit(server: Server) -> None:
    client = server.connect()
    client.be_owed(33 << 20)
    client.read_to_end()
    assert server.stat("slow_consumers") == 1


def test_a_consumer_behind_the_soft_limit_has_thirty_seconds(server: Server) -> None:
    client = server.connect()
    narrow(server, client)
    client.be_owed(20 << 20)
    server.advance(29_000)
    assert server.stat("conns") == 1
    server.advance(2_000)
    assert server.stat("conns") == 0
    assert server.stat("slow_consumers") == 1


def test_no_lease_goes_to_a_connection_whose_bytes_the_kernel_refused(server: Server) -> None:
    slow, other = server.connect(), server.connect()
    narrow(server, slow)
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    handle = slow.be_owed(1 << 20, behind=b"LEASE mail WAIT 60000\r\n")
    session = server.core.session(handle)
    assert session is not None
    assert session.blocked
    assert session.waiting
    other.ask(b"SCHEDULE mail now x\r\n", first_id())
    assert other.server.core.session(handle).waiting  # type: ignore[union-attr]
    other.send(b"LEASE mail\r\n")
    assert other.read(4) == b"*1\r\n"
    other.send(b"SCHEDULE mail now y\r\n")
    assert slow.read((1 << 20) + 4).endswith(b"x*1\r\n"), "drained, it is served again"


def test_a_long_commit_queue_pauses_reading_until_it_is_short_again(server: Server) -> None:
    clients = [server.connect() for _ in range(24)]
    server.settle()
    line = bulk(b"SCHEDULE", b"mail", b"+1h", b"x" * 60_000)
    total = 60 * len(clients)
    left = [line * 60 for _ in clients]

    def send() -> None:
        for i, client in enumerate(clients):
            with contextlib.suppress(BlockingIOError):
                left[i] = left[i][client.socket.send(left[i]) :] if left[i] else b""

    rounds = 0
    while not server.stat("writes_paused"):
        rounds += 1
        assert rounds < 20_000
        send()
        server.core.poll(0)
    queue = server.stat("queue_bytes")
    assert queue > 64 << 20
    for _ in range(50):
        send()
        server.core.poll(0)
    assert server.stat("queue_bytes") == queue, "nothing is read meanwhile"
    assert server.stat("queue_pauses") == 1
    deadline = time.monotonic() + PATIENCE_S
    while sum(client.data.count(b"$") for client in clients) < total:
        assert time.monotonic() < deadline
        send()
        server.round(1)
        for client in clients:
            client.pull()
    assert not server.stat("writes_paused")


# ---------------------------------------------------------------- stop


def test_a_stop_answers_what_was_read_and_takes_nothing_more(server: Server) -> None:
    waiting, busy = server.connect(), server.connect()
    waiting.send(b"LEASE mail WAIT 60000\r\nPING\r\n")
    server.settle()
    server.core.stop_reading()
    server.settle()
    waiting.pull()
    assert waiting.data == b"*0\r\n+PONG\r\n"
    busy.send(b"PING\r\n")
    server.settle()
    busy.pull()
    assert busy.data == b""
    assert server.core.unflushed() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address)


def test_sessions_show_what_is_known(server: Server) -> None:
    client = server.connect()
    client.ask(b"PING\r\n", b"+PONG\r\n")
    server.advance(2_500)
    session = server.core.sessions()[0]
    host, port = client.socket.getsockname()
    assert session.peer == f"{host}:{port}"
    assert session.local == f"127.0.0.1:{server.address[1]}"
    assert (session.age_ms, session.idle_ms, session.commands) == (2_500, 2_500, 1)
    server.core.set_session(session.handle, name="me", user="root", resp=3)
    changed = server.core.session(session.handle)
    assert changed is not None
    assert (changed.name, changed.user, changed.resp) == ("me", "root", 3)
    with pytest.raises(ValueError, match="64 bytes"):
        server.core.set_session(session.handle, name="x" * 64)
