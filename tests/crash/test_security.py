"""Signing in to a real server: roles, what is taken back, who guesses, what others feel of it."""

import contextlib
import re
import signal
import socket
import time

import pytest

from server.auth import TOKEN_BYTES, Role, add_token, mint, remove_token
from tests.pinger import Pinger
from wheel.client import Client
from wheel.errors import AuthError
from wheel.wire import ReplyError

pytestmark = pytest.mark.crash


class Keys:
    """A token file, and the secrets of who stands in it."""

    def __init__(self, path):
        self.path = path
        self.secrets = {}

    def add(self, name, role, globs=(), **times):
        secret, token = mint(name, role, globs, name.encode().ljust(TOKEN_BYTES, b"-"), **times)
        add_token(self.path, token)
        self.secrets[name] = secret
        return secret


@pytest.fixture
def keys(tmp_path):
    made = Keys(tmp_path / "tokens")
    for role in Role:
        made.add(str(role), role)
    made.add("mailer", Role.WORKER, ("mail.*",))
    return made


@pytest.fixture
def guarded(server, keys):
    server.start("--token-file", str(keys.path))
    return server


def signed_in(server, keys, name):
    connection = server.connect()
    assert connection.call("AUTH", name, keys.secrets[name]) == "OK"
    return connection


def code(reply):
    return reply.code if isinstance(reply, ReplyError) else None


def test_each_role_does_its_part_and_no_more(guarded, keys):
    with contextlib.ExitStack() as stack:
        as_ = {
            name: stack.enter_context(signed_in(guarded, keys, name)).call for name in keys.secrets
        }
        assert code(as_["viewer"]("SCHEDULE", "mail.a", "now", "x")) == "NOPERM"
        job = as_["producer"]("SCHEDULE", "mail.a", "now", "x")
        assert code(as_["producer"]("LEASE", "mail.a")) == "NOPERM"
        assert code(as_["mailer"]("LEASE", "pay")) == "NOPERM"
        ((receipt, *_),) = as_["mailer"]("LEASE", "mail.*")
        assert as_["viewer"]("COUNT", "STATE", "leased") == 1
        assert code(as_["operator"]("ACK", receipt)) == "NOPERM"
        assert as_["mailer"]("FAIL", receipt, "DEAD") == "DEAD"
        assert code(as_["producer"]("REQUEUE", job)) == "NOPERM"
        assert as_["operator"]("REQUEUE", job) == ["OK"]
        assert code(as_["operator"]("SHUTDOWN")) == "NOPERM"
        assert code(as_["viewer"]("CLIENT", "KILL", "ID", 1)) == "NOPERM"
    with signed_in(guarded, keys, "admin") as admin:
        admin.send(("SHUTDOWN",))
        assert admin.read_to_end() == b""
    assert guarded.wait() == 0


def test_client_tells_what_its_token_may_not_do(guarded, keys):
    url = f"wheeld://:{{}}@127.0.0.1:{guarded.port}"
    with Client(url.format(keys.secrets["viewer"])) as viewer:
        with pytest.raises(AuthError, match="needs the role producer"):
            viewer.schedule_in("1d", "mail.a")
        assert viewer.execute("COUNT") == 0
    with Client(url.format(keys.secrets["producer"])) as producer:
        assert producer.schedule_many([("+1d", "pay", b"x")] * 10).created == 10


def test_token_that_is_taken_back_closes_its_connections_at_sighup(guarded, keys):
    with signed_in(guarded, keys, "producer") as gone, signed_in(guarded, keys, "viewer") as kept:
        remove_token(keys.path, "producer")
        assert gone.call("PING") == "PONG"
        guarded.signal(signal.SIGHUP)
        assert gone.read_to_end() == b""
        assert kept.call("COUNT") == 0
        assert guarded.wait_event("tokens_revoked")["connections"] == 1
    with guarded.connect() as again:
        assert again.call("AUTH", keys.secrets["producer"]).code == "WRONGPASS"


def test_token_that_expires_closes_its_connections(guarded, keys):
    for brief, lives_ms in (("soon", 1_000), ("later", 10_000), ("last", 60_000)):
        keys.add(brief, Role.VIEWER, expires_ms=int(time.time() * 1000) + lives_ms)
        guarded.signal(signal.SIGHUP)
        guarded.wait_event("tokens_reloaded")
        connection = guarded.connect()
        if connection.call("AUTH", brief, keys.secrets[brief]) == "OK":
            break  # or it was over already: a machine that slow gets one that lives longer
        connection.close()
    with connection:
        assert connection.call("COUNT") == 0
        assert connection.read_to_end() == b""
    with guarded.connect() as again:
        assert again.call("AUTH", keys.secrets[brief]).code == "WRONGPASS"


def test_who_guesses_waits_and_nobody_else_does(guarded, keys):
    """Sixty wrong tokens at once: each answer takes a second, the loop takes none."""
    with contextlib.ExitStack() as stack:
        pinger = stack.enter_context(Pinger(guarded.port, guarded.process.pid))
        guessing = [stack.enter_context(guarded.connect()) for _ in range(60)]
        for number, guess in enumerate(guessing):
            guess.send(("AUTH", f"wd_{number}"))
        answers = [code(guess.read()) for guess in guessing]
    assert answers.count("WRONGPASS") <= 6
    assert answers.count("TRYAGAIN") >= 54
    pinger.check()
    with signed_in_patiently(guarded, keys) as admin:
        text = admin.call("INFO", "limits").decode()
    (wrong, put_off) = re.findall(r"wrong=([0-9]+),put_off=([0-9]+)", text)[0]
    assert (int(wrong), int(put_off)) == (answers.count("WRONGPASS"), answers.count("TRYAGAIN"))


def signed_in_patiently(server, keys):
    """A good token is looked at as soon as its address may try again."""
    with Client(f"wheeld://admin:{keys.secrets['admin']}@127.0.0.1:{server.port}") as client:
        assert client.execute("COUNT") == 0
    return signed_in(server, keys, "admin")


def has_ipv6():
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="not run: this machine has no IPv6")


@pytest.mark.parametrize("host", ["127.0.0.2", pytest.param("[::1]", marks=IPV6), "localhost"])
def test_every_address_of_this_machine_alone_needs_no_token(server, host):
    server.start("--listen", f"{host}:{server.port}")
    with socket.create_connection((host.strip("[]"), server.port)) as sock:
        sock.sendall(b"PING\r\n")
        assert sock.recv(100) == b"+PONG\r\n"


def test_limits_before_signing_in_close_a_real_connection(guarded):
    with guarded.connect() as stranger:
        stranger.socket.sendall(b"PING " + b"x" * 5000 + b"\r\n")
        assert b"before AUTH" in stranger.read_to_end()
