"""TLS: a real server, real certificates, peers that behave and peers that do not."""

import contextlib
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import warnings

import pytest
import redis

from server.auth import TOKEN_BYTES, Role, Token, add_token, mint
from tests.certificates import Authority
from tests.crash.test_serve import schedule_many, wait_for
from tests.pinger import Pinger
from tests.ports import free_port
from tests.process import DEADLINE_S, Connection, Server, compiled
from wheel.client import Client
from wheel.errors import AuthError, ConnectError, InvalidRequest, UnavailableError
from wheel.handlers import App
from wheel.wire import NOT_READY, encode_command
from wheel.worker import Worker

pytestmark = pytest.mark.crash


class World:
    """An authority, another one, and what they vouch for."""

    def __init__(self, folder):
        self.authority = Authority(folder, "authority")
        self.stranger = Authority(folder, "stranger")
        self.server = self.authority.issue("server", "IP:127.0.0.1", "DNS:localhost")
        self.other = self.authority.issue("other", "DNS:elsewhere.example")
        self.ann = self.authority.issue("ann")
        self.bob = self.authority.issue("client-7", "DNS:bob")
        self.nobody = self.authority.issue("nobody")
        self.forged = self.stranger.issue("ann")


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("certificates"))


class TlsPeer(Connection):
    """A connection over TLS; by default with every check of a client."""

    def __init__(self, port, world, *, shown=None, version=None):
        super().__init__(port)
        context = ssl.create_default_context(cafile=world.authority.pem)
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        raw = self.socket
        try:
            self.socket = context.wrap_socket(raw, server_hostname="127.0.0.1")
        except BaseException:
            raw.close()
            raise

    def exchange(self, commands):
        """Send commands while their replies are read: in one thread, an SSL object is not for two.

        With two, one of them now and then wrote what the other was about to, and the server closed
        the connection for a damaged record.
        """
        left = memoryview(b"".join(map(encode_command, commands)))
        replies = []
        not_yet = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self.socket.setblocking(False)
        while len(replies) < len(commands):
            writers = [self.socket] if left else []
            assert any(select.select([self.socket], writers, [], DEADLINE_S)), len(replies)
            with contextlib.suppress(*not_yet):
                while left:
                    left = left[self.socket.send(left[: 1 << 14]) :]
            with contextlib.suppress(*not_yet):
                while data := self.socket.recv(1 << 16):
                    self._reader.feed(data)
                raise ConnectionError("the server closed the connection")
            while (reply := self._reader.gets()) is not NOT_READY:
                replies.append(reply)
        self.socket.settimeout(DEADLINE_S)
        return replies

    def end_input(self):
        """Send no goodbye of TLS, only the end of the stream."""
        socket.socket.shutdown(self.socket, socket.SHUT_WR)


def with_tls(server, world, folder):
    """Return a server that will speak TLS too, with copies of files that a test may replace."""
    server.tls_port = free_port()
    server.certificate, server.key = folder / "cert.pem", folder / "key.pem"
    shutil.copy(world.server.certificate, server.certificate)
    shutil.copy(world.server.key, server.key)
    server.options = (
        *("--tls-listen", f"127.0.0.1:{server.tls_port}"),
        *("--tls-cert", str(server.certificate), "--tls-key", str(server.key)),
    )
    return server


@pytest.fixture
def tls(server, world, tmp_path):
    """A server with TLS, not started."""
    return with_tls(server, world, tmp_path)


@pytest.fixture(scope="module")
def shared(world, tmp_path_factory):
    """A server with TLS that runs, for tests that leave it as they found it."""
    folder = tmp_path_factory.mktemp("shared")
    server = with_tls(Server(folder / "data"), world, folder)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def tokens(tmp_path):
    """A token file: ann and bob by certificate, carl by a secret."""
    path = tmp_path / "tokens"
    add_token(path, Token(name="ann", role=Role.WORKER, globs=("mail.*",)))
    add_token(path, Token(name="bob", role=Role.VIEWER))
    secret, carl = mint("carl", Role.ADMIN, (), bytes(TOKEN_BYTES))
    add_token(path, carl)
    return path, secret


def url(server, world, *, host="127.0.0.1", rest=""):
    return f"wheelds://{host}:{server.tls_port}?ca={world.authority.pem}{rest}"


def refused(server, world, **options):
    """Fail unless a peer is hung up on, in its handshake or at its first word."""
    with pytest.raises((ssl.SSLError, ConnectionError)):  # noqa: SIM117
        with TlsPeer(server.tls_port, world, **options) as peer:
            peer.call("PING")


def limit(server, name):
    """Return the numbers of a line of INFO's limits."""
    fields = dict(pair.split("=") for pair in server.info()[f"limit_{name}"].split(","))
    return {key: int(value) for key, value in fields.items()}


# ---------------------------------------------------------------- what works


def test_ready_line_names_both_ports(tls):
    ready = tls.start()
    assert ready["listen"] == f"127.0.0.1:{tls.port}"
    assert ready["listen_tls"] == f"127.0.0.1:{tls.tls_port}"


def test_client_works_over_tls_as_without(shared, world, monkeypatch):
    with Client(url(shared, world)) as client:
        job = client.schedule_in("1d", "mail", {"a": 1}, key="k")
        assert client.get("k").id == job.id
        result = client.schedule_many([("+1d", "mail", b"x" * 1000)] * 5000)
        assert result.created == 5000
        assert client.cancel(job)
    assert shared.call("COUNT", "HANDLER", "mail", "STATE", "scheduled") == 5000
    monkeypatch.setenv("WHEELD_CA", str(world.authority.pem))
    with Client(f"wheelds://localhost:{shared.tls_port}") as client:
        assert client.execute("PING") == "PONG"


def test_redis_client_works_over_tls(shared, world):
    with redis.Redis(
        port=shared.tls_port, host="127.0.0.1", ssl=True, ssl_ca_certs=str(world.authority.pem)
    ) as client:
        assert client.ping()
        assert client.execute_command("COUNT", "HANDLER", "nobody") == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_long_pipeline_is_answered_in_order_and_whole(shared, world, version):
    with TlsPeer(shared.tls_port, world, version=version) as peer:
        count = 30_000
        replies = peer.exchange([("PING", f"{number:0100}") for number in range(count)])
        assert all(int(reply) == number for number, reply in enumerate(replies))
        assert len(replies) == count


def test_what_was_sent_before_the_end_is_answered(shared, world):
    with TlsPeer(shared.tls_port, world) as peer:
        peer.send(("SCHEDULE", "h", "+1d", "x"), ("LEASE", "h", "WAIT", 60_000))
        peer.end_input()
        assert isinstance(peer.read(), bytes)
        assert peer.read() == []
        assert peer.socket.recv(1) == b""


def test_stop_answers_those_who_wait_and_says_goodbye(tls, world):
    tls.start()
    with TlsPeer(tls.tls_port, world) as peer, tls.connect() as other:
        peer.send(("LEASE", "h", "WAIT", 60_000))
        wait_for(tls, lambda _: b"flags=b" in other.call("CLIENT", "LIST"))
        tls.signal(signal.SIGTERM)
        assert peer.read() == []
        peer.socket.suppress_ragged_eofs = False
        assert peer.socket.recv(1) == b""
    assert tls.wait() == 0


def test_peer_is_listed_and_can_be_closed(shared, world):
    with TlsPeer(shared.tls_port, world) as peer:
        number = peer.call("CLIENT", "ID")
        address = "{}:{}".format(*peer.socket.getsockname())
        assert f"id={number} addr={address}".encode() in shared.call("CLIENT", "LIST")
        assert shared.call("CLIENT", "KILL", "ID", number) == 1
        assert peer.read_to_end() == b""


# ---------------------------------------------------------------- who is believed


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_client_believes_nobody_whom_its_authority_does_not_vouch_for(shared, world, host):
    for rest in (f"?ca={world.stranger.pem}", ""):
        client = Client(f"wheelds://{host}:{shared.tls_port}{rest}")
        with client, pytest.raises(AuthError, match="not accepted"):
            client.execute("PING")


def test_client_believes_no_certificate_of_another_host(tls, world):
    shutil.copy(world.other.certificate, tls.certificate)
    shutil.copy(world.other.key, tls.key)
    tls.start()
    with Client(url(tls, world)) as client, pytest.raises(AuthError, match=r"127\.0\.0\.1"):
        client.execute("PING")


def test_certificate_signs_in_as_the_token_of_its_name_and_no_further(tls, world, tokens):
    tls.start("--tls-client-ca", str(world.authority.pem), "--token-file", str(tokens[0]))
    with TlsPeer(tls.tls_port, world, shown=world.ann) as peer:
        assert peer.call("LEASE", "mail.send") == []
        assert peer.call("LEASE", "pay").code == "NOPERM"
        assert peer.call("COUNT").code == "NOPERM"
    with TlsPeer(tls.tls_port, world, shown=world.bob) as peer:
        assert peer.call("COUNT") == 0
        assert b"user=bob" in peer.call("CLIENT", "INFO")
    rest = f"&cert={world.bob.certificate}&key={world.bob.key}"
    with Client(url(tls, world, rest=rest)) as client:
        assert client.execute("COUNT") == 0


def test_certificate_without_a_token_of_its_name_must_sign_in(tls, world, tokens):
    path, secret = tokens
    tls.start("--tls-client-ca", str(world.authority.pem), "--token-file", str(path))
    for shown in (world.nobody, None):
        with TlsPeer(tls.tls_port, world, shown=shown) as peer:
            assert peer.call("COUNT").code == "NOAUTH"
            assert peer.call("AUTH", secret) == "OK"
            assert peer.call("COUNT") == 0


def test_certificate_that_nobody_here_vouches_for_is_refused(tls, world, tokens):
    tls.start("--tls-client-ca", str(world.authority.pem), "--token-file", str(tokens[0]))
    refused(tls, world, shown=world.forged)


def test_required_certificate_is_required(tls, world):
    tls.start("--tls-client-ca", str(world.authority.pem), "--tls-client-auth", "required")
    refused(tls, world)
    with TlsPeer(tls.tls_port, world, shown=world.nobody) as peer:
        assert peer.call("PING") == "PONG"


def test_older_tls_is_refused(shared, world):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", shared.tls_port)) as raw,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(raw)


# ---------------------------------------------------------------- reload


def test_sighup_serves_the_new_certificate_and_leaves_open_connections(tls, world):
    tls.start()
    with TlsPeer(tls.tls_port, world) as old:
        shutil.copy(world.other.certificate, tls.certificate)
        shutil.copy(world.other.key, tls.key)
        tls.signal(signal.SIGHUP)
        tls.wait_event("certificates_reloaded")
        with pytest.raises(ssl.SSLCertVerificationError):
            TlsPeer(tls.tls_port, world)
        assert old.call("PING") == "PONG"


def test_sighup_with_files_that_are_no_good_keeps_the_old_ones(tls, world):
    tls.start()
    tls.certificate.write_text("nonsense")
    tls.signal(signal.SIGHUP)
    assert str(tls.certificate) in str(tls.wait_event("certificates_refused")["error"])
    with TlsPeer(tls.tls_port, world) as peer:
        assert peer.call("PING") == "PONG"


# ---------------------------------------------------------------- starts that are refused


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda tls, _: tls.key.chmod(0o644), "chmod 600"),
        (lambda tls, _: tls.key.unlink(), "--tls-key"),
        (lambda tls, world: shutil.copy(world.other.key, tls.key), "key"),
        (lambda tls, _: tls.certificate.write_text(""), "--tls-cert"),
    ],
)
def test_files_that_are_no_good_refuse_the_start_by_name(tls, world, spoil, told):
    spoil(tls, world)
    tls.spawn()
    assert tls.wait() == 78
    error = str(tls.event("start_refused")["error"])
    assert told in error
    assert str(tls.certificate) in error or str(tls.key) in error


def test_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(tls, world):
    words = ["openssl", "ec", "-in", world.server.key, "-aes256", "-passout", "pass:x"]
    subprocess.run([*words, "-out", tls.key], check=True, capture_output=True)
    tls.key.chmod(0o600)
    tls.spawn()
    assert tls.wait() == 78
    assert "encrypted" in str(tls.event("start_refused")["error"])


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_tls_that_others_reach_needs_a_token_too(tls, host):
    tls.spawn("--tls-listen", f"{host}:{tls.tls_port}")
    assert tls.wait() == 78
    error = str(tls.event("start_refused")["error"])
    assert "--tls-listen" in error
    assert "--token-file" in error


# ---------------------------------------------------------------- peers that do not behave


@pytest.mark.parametrize("first", [b"PING\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02"])
def test_what_is_no_tls_is_closed_and_counted(shared, first):
    before = limit(shared, "tls_handshakes")["failed"]
    with socket.create_connection(("127.0.0.1", shared.tls_port), timeout=DEADLINE_S) as wrong:
        wrong.sendall(first + b"x" * 1000)
        with contextlib.suppress(ConnectionResetError):
            while wrong.recv(1 << 16):
                pass
    wait_for(shared, lambda _: limit(shared, "tls_handshakes")["failed"] == before + 1)


def test_peers_that_fail_are_told_of_once_a_minute(tls):
    tls.start()
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", tls.tls_port)) as wrong:
            wrong.sendall(b"PING\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert wrong.recv(100)[:1] in (b"", b"\x15")
    assert "TLS 1.2" in str(tls.wait_event("handshakes_failed")["hint"])


def test_client_on_the_other_port_says_so(shared, world):
    wrong = f"wheelds://127.0.0.1:{shared.port}?ca={world.authority.pem}"
    with Client(wrong, timeout=0.2) as client, pytest.raises(ConnectError, match="--tls-listen"):
        client.execute("PING")
    wrong = f"wheeld://127.0.0.1:{shared.tls_port}"
    with Client(wrong, timeout=0.2) as client, pytest.raises(UnavailableError):
        client.execute("PING")


def test_silent_peers_of_one_address_do_not_keep_others_out(shared, world):
    """32 handshakes of an address at once; what comes above is closed, and the rest is served."""
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", shared.tls_port)))
            for _ in range(40)
        ]
        wait_for(shared, lambda _: limit(shared, "tls_handshakes")["refused"] == 8)
        assert limit(shared, "tls_handshakes")["now"] == 32
        for closed in silent[32:]:
            assert closed.recv(1) == b""
        raw = stack.enter_context(socket.socket())
        raw.bind(("127.0.0.2", 0))
        raw.connect(("127.0.0.1", shared.tls_port))
        context = ssl.create_default_context(cafile=world.authority.pem)
        peer = stack.enter_context(context.wrap_socket(raw, server_hostname="127.0.0.1"))
        peer.sendall(b"PING\r\n")
        assert peer.recv(16) == b"+PONG\r\n"


def test_connections_of_both_kinds_count_against_maxclients(tls, world):
    tls.start("--maxclients", "3")
    with tls.connect() as first, TlsPeer(tls.tls_port, world), TlsPeer(tls.tls_port, world):
        assert first.call("PING") == "PONG"
        refused(tls, world)
        with tls.connect() as fourth:
            assert b"max number of clients" in fourth.read_to_end()


def test_peer_that_does_not_read_is_given_no_job_and_others_are_served(tls, world):
    tls.start()
    with TlsPeer(tls.tls_port, world) as slow, tls.connect() as other:
        schedule_many(other, 400, when="now", handler="big")
        big = b"x" * 65_000
        other.send(*[("SCHEDULE", "big", "now", big)] * 200)
        assert all(isinstance(other.read(), bytes) for _ in range(200))
        slow.send(*[("LEASE", "big", "COUNT", 1)] * 600)
        wait_for(tls, lambda info: info["clients_slow"] == "1")
        assert other.call("PING") == "PONG"
        leased = other.call("COUNT", "STATE", "leased")
        assert 0 < leased < 600
        assert len(other.call("LEASE", "big", "COUNT", 1)) == 1
    # What did not reach it whole goes back, counted as nothing.
    wait_for(tls, lambda _: tls.call("COUNT", "STATE", "leased") < leased)
    assert int(tls.info()["jobs_unsent_total"]) > 0


def test_log_that_fails_ends_tls_connections_without_a_reply(tls, world, tmp_path):
    shim = compiled(tmp_path, "fail_sync")
    when = tmp_path / "now"
    tls.start(env={"LD_PRELOAD": str(shim), "FAIL_SYNC_WHEN": str(when)})
    with TlsPeer(tls.tls_port, world) as peer:
        assert isinstance(peer.call("SCHEDULE", "h", "+1d", "x"), bytes)
        when.touch()
        peer.send(("SCHEDULE", "h", "+1d", "y"), ("PING",))
        assert peer.read_to_end() == b""
    assert tls.wait() == 74


def test_garbage_behind_the_handshake_ends_that_connection_alone(shared, world):
    with TlsPeer(shared.tls_port, world) as good, TlsPeer(shared.tls_port, world) as bad:
        socket.socket.send(bad.socket, b"\x17\x03\x03\x00\x05garbage" * 100)
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            while bad.socket.recv(1 << 16):
                pass
        assert good.call("PING") == "PONG"
    wait_for(shared, lambda info: info["connected_clients"] == "1")


@pytest.mark.parametrize(
    "wrong",
    [
        "wheelds://h?ca=/nonexistent",
        "wheelds://h?insecure=1",
        "wheelds://h?ca",
        "wheeld://h?ca=x",
        "https://h",
    ],
)
def test_url_that_cannot_be_is_refused_before_anything_is_sent(wrong):
    with pytest.raises(InvalidRequest), Client(wrong, timeout=0.1) as client:
        client.execute("PING")


def test_replies_over_tls_are_those_of_a_plain_connection(shared, world):
    words = [("PING",), ("NONSENSE",), ("JOB", "nobody"), ("HANDLERS",), ("COMMAND",)]
    with TlsPeer(shared.tls_port, world) as peer, shared.connect() as plain:
        for word in words:
            assert str(peer.call(*word)) == str(plain.call(*word))


@pytest.mark.long
def test_handshake_that_takes_too_long_is_given_up(shared):
    with socket.create_connection(("127.0.0.1", shared.tls_port), timeout=DEADLINE_S) as silent:
        assert silent.recv(1) == b""
    assert limit(shared, "tls_handshakes")["timed_out"] == 1


def test_worker_works_over_tls_with_its_certificate_and_stops_at_once(tls, world, tokens):
    """Its stop ends a waiting LEASE by half-closing a TLS connection that another thread reads."""
    tls.start("--tls-client-ca", str(world.authority.pem), "--token-file", str(tokens[0]))
    done = threading.Semaphore(0)
    app = App()

    @app.handler("mail.send", lease="2s")
    def send(n: int) -> None:
        done.release(n)

    rest = f"&cert={world.ann.certificate}&key={world.ann.key}"
    worker = Worker(app, url(tls, world, rest=rest))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        admin = f"wheelds://carl:{tokens[1]}@127.0.0.1:{tls.tls_port}?ca={world.authority.pem}"
        with Client(admin) as client:
            client.schedule_many([("now", "mail.send", {"n": 1})] * 50)
            assert all(done.acquire(timeout=DEADLINE_S) for _ in range(50))
    finally:
        begin = time.monotonic()
        worker.stop()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert time.monotonic() - begin < 20, "its LEASE would have waited for half a minute"


def test_storm_of_handshakes_keeps_no_old_connection_waiting(shared, world):
    """A handshake is a millisecond of the loop's: they take turns."""
    context = ssl.create_default_context(cafile=world.authority.pem)

    def shake() -> None:
        for _ in range(15):
            raw = socket.create_connection(("127.0.0.1", shared.tls_port))
            with raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as peer:
                peer.sendall(b"PING\r\n")
                assert peer.recv(100) == b"+PONG\r\n"

    before = limit(shared, "tls_handshakes")["done"]
    with Pinger(shared.port, shared.process.pid) as pinger:
        threads = [threading.Thread(target=shake) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert limit(shared, "tls_handshakes")["done"] == before + 16 * 15
    pinger.check()
