"""The blocking client against a scripted server."""

import os
import threading
from datetime import UTC, datetime, timedelta

import pytest

from tests.fake_server import STORE, FakeServer
from tests.interpreter import assert_runs
from tests.ports import free_port
from wheel import client as client_module
from wheel.client import Client
from wheel.errors import (
    AuthError,
    BusyError,
    ConnectError,
    InvalidRequest,
    KeyExists,
    LimitError,
    NaiveDatetimeError,
    NotFound,
    PayloadTooLarge,
    ProtocolError,
    ServerError,
    ServerFullError,
    UnavailableError,
    WheeldTimeout,
    from_reply,
)
from wheel.link import Address, parse_url
from wheel.system import SYSTEM, System
from wheel.values import Item, backoff


class Clock:
    """A clock that only sleeping moves, and the longest pause each time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.on_sleep = lambda: None

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds
        self.on_sleep()

    def system(self) -> System:
        return System(
            wall_ms=lambda: 1_798_099_200_000,
            monotonic=lambda: self.now_s,
            sleep=self.sleep,
            uniform=lambda _low, high: high,
        )


@pytest.fixture
def server():
    with FakeServer() as started:
        yield started


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def client(server, clock):
    with Client(server.url, system=clock.system()) as made:
        yield made


# ---------------------------------------------------------------- one job


def test_schedule_at_sends_the_moment_and_returns_the_job(server, client):
    job = client.schedule_at("2026-12-24T09:00:00+01:00", "mail.greeting", {"user": 7, "n": "é"})
    assert (job.id, job.store, job.handler, job.created) == (1000, STORE, "mail.greeting", True)
    assert job.due == datetime(2026, 12, 24, 8, tzinfo=UTC)
    assert server.jobs[1000].when == "1798099200000"
    assert server.jobs[1000].payload == '{"user":7,"n":"é"}'.encode()


def test_schedule_in_is_from_now_on_the_servers_clock(server, client):
    job = client.schedule_in("24h", "mail", None)
    assert server.jobs[job.id].when == "+86400000"
    assert server.jobs[job.id].payload == b"{}"
    assert job.due == datetime(2026, 12, 25, 8, tzinfo=UTC)


def test_every_option_is_sent_under_its_word(server, client):
    client.schedule_in(
        1,
        "mail",
        b"\x00raw\r\n",
        key="order 7",
        window="1m",
        on_conflict="keep",
        priority=3,
        retries=5,
        lost=2,
        backoff=backoff("30s", "linear", max="1h"),
        lease="45s",
        timeout=0,
        expire=timedelta(hours=2),
        meta="é",
        group="tenant-1",
        once="token-1",
    )
    assert server.jobs[1000].payload == b"\x00raw\r\n"
    assert server.jobs[1000].options == {
        "ONCE": "token-1",
        "KEY": "order 7",
        "WINDOW": "60000",
        "ONDUP": "keep",
        "PRIORITY": "3",
        "RETRIES": "5",
        "LOST": "2",
        "BACKOFF": "linear 30000 3600000",
        "LEASE": "45000",
        "TIMEOUT": "0",
        "EXPIRE": "+7200000",
        "META": "é",
        "GROUP": "tenant-1",
    }


def test_every_schedule_call_carries_a_token_of_its_own(server, client):
    client.schedule_in(1, "mail")
    client.schedule_in(1, "mail")
    client.schedule_many([(timedelta(1), "mail", None)] * 2)
    tokens = [job.options["ONCE"] for job in server.jobs.values()]
    assert len(set(tokens)) == 4
    assert all(1 <= len(token) <= 64 for token in tokens)


def test_a_taken_key_is_answered_as_asked(server, client):
    first = client.schedule_in(1, "mail", {"n": 1}, key="k")
    kept = client.schedule_in(1, "mail", {"n": 2}, key="k")
    assert (kept.id, kept.word, kept.created, kept.due) == (first.id, "existing", False, None)
    replaced = client.schedule_in(2, "mail", {"n": 3}, key="k", on_conflict="replace")
    assert (replaced.id, replaced.word, server.jobs[first.id].when) == (
        first.id,
        "replaced",
        "+2000",
    )
    with pytest.raises(KeyExists) as caught:
        client.schedule_in(1, "mail", key="k", on_conflict="error")
    assert caught.value.code == "EXISTS"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"key": "123"}, "digits alone"),
        ({"key": ""}, "0 bytes"),
        ({"key": "k" * 201}, "201 bytes"),
        ({"key": "a\nb"}, "control character"),
        ({"key": 5}, "not a text"),
        ({"window": "1m"}, "give a key"),
        ({"on_conflict": "keep"}, "give a key"),
        ({"key": "k", "on_conflict": "drop"}, "'drop'"),
        ({"priority": 256}, "256"),
        ({"priority": True}, "True"),
        ({"retries": -1}, "-1"),
        ({"backoff": "30s"}, "wheel.backoff"),
        ({"lease": "soon"}, "'soon'"),
        ({"expire": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"meta": b"m" * 1025}, "1025 bytes"),
        ({"once": "t" * 65}, "65 bytes"),
    ],
)
def test_a_bad_option_is_refused_by_name_before_anything_is_sent(server, client, options, what):
    with pytest.raises(InvalidRequest, match=what):
        client.schedule_in(1, "mail", **options)
    assert server.commands == []


def test_an_unknown_option_is_a_type_error(client):
    with pytest.raises(TypeError, match="'prio'"):
        client.schedule_in(1, "mail", prio=3)


@pytest.mark.parametrize("handler", ["", "a,b", "a*", " a", "a ", "a\x00", "é" * 101])
def test_a_bad_handler_name_is_refused(client, handler):
    with pytest.raises(InvalidRequest):
        client.schedule_in(1, handler)


def test_a_naive_datetime_is_refused_before_anything_is_sent(server, client):
    with pytest.raises(NaiveDatetimeError):
        client.schedule_at(datetime(2026, 12, 24, 9), "mail")  # noqa: DTZ001
    assert server.commands == []


@pytest.mark.parametrize("payload", [[1], "text", 5, {"x": {1, 2}}, {"x": float("nan")}])
def test_a_payload_that_is_no_json_object_is_refused(client, payload):
    with pytest.raises(InvalidRequest, match="payload"):
        client.schedule_in(1, "mail", payload)


def test_a_payload_over_the_limit_is_refused_with_both_sizes(server, client):
    client.schedule_in(1, "mail", b"x" * 65_536)
    with pytest.raises(PayloadTooLarge, match=r"65537 bytes, the limit is 65536: store it else"):
        client.schedule_in(1, "mail", b"x" * 65_537)
    assert issubclass(PayloadTooLarge, LimitError)
    with Client(server.url, payload_max=70_000) as generous:
        generous.schedule_in(1, "mail", b"x" * 65_537)


def test_cancel_tells_whether_it_came_in_time(server, client):
    job = client.schedule_in(1, "mail", key="k")
    assert client.cancel(job) is True
    assert client.cancel(job.id) is False
    leased = server.add("mail")
    leased.state = "leased"
    assert client.cancel(leased.id) is False
    with pytest.raises(NotFound, match="'nobody'"):
        client.cancel("nobody")
    with pytest.raises(InvalidRequest, match="not a job"):
        client.cancel(None)


def test_get_returns_the_job_by_id_key_or_object(client):
    job = client.schedule_in(1, "mail", key="k")
    for reference in (job, job.id, "k", client.get(job)):
        info = client.get(reference)
        assert (info.id, info.key, info.state, info.attempt) == (job.id, "k", "ready", 0)
        assert info.due == datetime(2026, 12, 24, 8, tzinfo=UTC)
        assert info.fields["news"] == [1, 2]
    with pytest.raises(NotFound) as caught:
        client.get(999)
    assert caught.value.code == "UNKNOWN"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("OOM no room", ServerFullError),
        ("DISKFULL no room", ServerFullError),
        ("NOPERM not a producer", AuthError),
        ("LIMIT too much", LimitError),
        ("SYNTAX what", InvalidRequest),
        ("BUSY later", BusyError),
        ("ERR something", ServerError),
        ("NEVERHEARD of it", ServerError),
    ],
)
def test_an_error_reply_raises_its_class_with_code_and_text_and_is_not_repeated(
    server, client, reply, kind
):
    server.script("SCHEDULE", reply)
    with pytest.raises(kind, match=reply) as caught:
        client.schedule_in(1, "mail")
    assert caught.value.code == reply.split()[0]
    assert len(server.seen("SCHEDULE")) == 1


def test_an_error_leaves_the_connection_in_use(server, client):
    server.script("SCHEDULE", "OOM no room")
    with pytest.raises(ServerFullError):
        client.schedule_in(1, "mail")
    client.schedule_in(1, "mail")
    assert len(server.seen("HELLO")) == 1


# ---------------------------------------------------------------- again


def test_a_call_repeated_after_a_lost_reply_makes_no_second_job(server, client):
    server.script("SCHEDULE", "drop_after")
    job = client.schedule_in(1, "mail")
    assert list(server.jobs) == [job.id]
    first, second = server.seen("SCHEDULE")
    assert first == second


def test_a_call_whose_command_was_lost_is_repeated(server, client):
    server.script("SCHEDULE", "drop_before", "drop_before")
    client.schedule_in(1, "mail")
    assert len(server.jobs) == 1
    assert len(server.seen("SCHEDULE")) == 3


def test_loading_and_tryagain_are_waited_out_with_growing_pauses(server, client, clock):
    server.script("SCHEDULE", *["LOADING 40 %"] * 4, *["TRYAGAIN soon"] * 3)
    client.schedule_in(1, "mail")
    assert clock.pauses == [0.025, 0.05, 0.1, 0.2, 0.4, 0.4, 0.4]
    assert len(server.jobs) == 1


def test_pauses_are_drawn_from_nothing_up_to_their_cap(server):
    clock, drawn = Clock(), []

    def uniform(low, high):
        drawn.append((low, high))
        return 0.0

    system = System(monotonic=lambda: 0.0, sleep=clock.sleep, uniform=uniform)
    server.script("PING", "LOADING x", "LOADING x")
    with Client(server.url, system=system) as client:
        client.execute("PING")
    assert drawn == [(0.0, 0.025), (0.0, 0.05)]
    assert clock.pauses == [0.0, 0.0]


def test_loading_until_the_deadline_is_a_busy_error_with_the_servers_words(server, client, clock):
    server.script("SCHEDULE", *["LOADING 40 %"] * 100)
    with pytest.raises(BusyError, match="LOADING 40 %"):
        client.schedule_in(1, "mail")
    assert 4.5 < sum(clock.pauses) <= 5.0


def test_a_refused_connection_is_tried_until_the_deadline_and_no_longer(clock):
    port = free_port()
    with (
        Client(f"wheeld://127.0.0.1:{port}", system=clock.system()) as client,
        pytest.raises(ConnectError, match=f"127.0.0.1:{port}.*wheeld serve"),
    ):
        client.schedule_in(1, "mail")
    assert clock.pauses[:6] == [0.025, 0.05, 0.1, 0.2, 0.4, 0.4]
    assert 4.5 < sum(clock.pauses) <= 5.0


def test_a_server_that_comes_up_before_the_deadline_is_found(server, clock):
    server.stop()
    clock.on_sleep = lambda: server.start() if len(clock.pauses) == 3 else None
    with Client(server.url, system=clock.system()) as client:
        assert client.schedule_in(1, "mail").created
    assert len(clock.pauses) == 3


def test_a_restarted_server_is_found_again_by_an_idle_client(server, client):
    client.schedule_in(1, "mail")
    server.stop()
    server.start()
    client.schedule_in(1, "mail")
    assert len(server.jobs) == 2


def test_a_server_that_never_answers_is_a_time_out(server):
    server.script("SCHEDULE", "silent")
    with (
        Client(server.url, timeout=0.05) as client,
        pytest.raises(WheeldTimeout, match="whether it was done is unknown") as caught,
    ):
        client.schedule_in(1, "mail")
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, UnavailableError)


def test_after_a_time_out_the_late_reply_is_not_taken_for_the_next_ones(server):
    server.script("PING", "silent")
    client = Client(server.url, timeout=0.05)
    with pytest.raises(WheeldTimeout):
        client.execute("PING")
    client._timeout_s = 20.0
    assert client.schedule_in(1, "mail").id == 1000
    assert len({connection for connection, _ in server.commands}) == 2
    client.close()


def test_a_peer_that_speaks_another_protocol_is_said_to(server, client):
    server._do_ping = lambda *_: {}
    server._reply = lambda *_: b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with pytest.raises(ProtocolError, match="no wheeld server answers there"):
        client.execute("PING")


# ---------------------------------------------------------------- who may share


def test_the_token_of_the_url_is_sent_and_never_shown(server):
    server.token = "s3cr/t"
    host = server.url.removeprefix("wheeld://")
    with Client(f"wheeld://:s3cr%2Ft@{host}") as client:
        client.schedule_in(1, "mail")
        assert server.seen("HELLO") == [["HELLO", "2", "AUTH", "default", "s3cr/t"]]
        assert "s3cr" not in repr(client)
    with (
        Client(server.url.replace("//", "//:wrong@")) as client,
        pytest.raises(AuthError) as caught,
    ):
        client.schedule_in(1, "mail")
    assert "wrong" not in str(caught.value)
    assert len(server.seen("HELLO")) == 2, "a refused token is not tried again"


def test_a_server_that_only_speaks_the_same_protocol_is_told_apart(server):
    """Redis greets as well, and `unknown command 'SCHEDULE'` was all that was said."""
    server._do_hello = lambda *_: {"server": "redis", "version": "7.0.15", "proto": 2}
    with (
        Client(server.url) as client,
        pytest.raises(ProtocolError, match="that is not wheeld but 'redis'"),
    ):
        client.schedule_in(1, "mail")


def test_who_is_hung_up_on_before_hello_is_told_of_ports_and_tls(server):
    server.script("HELLO", *["drop_before"] * 100)
    with Client(server.url, timeout=0.2) as client, pytest.raises(ConnectError) as caught:
        client.schedule_in(1, "mail")
    assert "before it said hello; is it wheeld's port, and one without TLS?" in str(caught.value)


def test_who_has_no_token_is_told_where_to_put_it(server):
    """The server's text, `HELLO 3 AUTH name token`, is for a console."""
    server.script("HELLO", "NOAUTH sign in: HELLO 3 AUTH name token")
    with Client(server.url) as client, pytest.raises(AuthError) as caught:
        client.schedule_in(1, "mail")
    assert caught.value.code == "NOAUTH"
    assert server.url in str(caught.value)
    assert "wheeld://:TOKEN@host:port" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("wheeld://host", Address(host="host", port=8463)),
        ("wheeld://host:1/", Address(host="host", port=1)),
        ("wheeld://[::1]:8000", Address(host="::1", port=8000)),
        ("wheeld://bob:t@host", Address(host="host", port=8463, user="bob", token="t")),
    ],
)
def test_urls_name_host_port_user_and_token(url, address):
    assert parse_url(url) == address


@pytest.mark.parametrize(
    "url",
    ["redis://h", "h:8463", "wheeld://", "wheeld://h:0x", "wheeld://:tok@h:99999", "wheeld://h/3"],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_token(url):
    with pytest.raises(InvalidRequest) as caught:
        Client(url)
    assert "tok@" not in str(caught.value)


def test_threads_at_once_each_speak_on_a_connection_of_their_own(server):
    barrier = threading.Barrier(4)
    with Client(server.url) as client:

        def schedule() -> None:
            barrier.wait(20)
            for _ in range(20):
                client.schedule_in(1, "mail")

        threads = [threading.Thread(target=schedule) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(server.jobs) == 80
    assert len(server.seen("HELLO")) <= 4


def test_a_child_of_a_fork_opens_a_connection_of_its_own(server):
    """Two processes on one socket would read each other's replies."""
    with Client(server.url) as client:
        client.schedule_in(1, "parent")
        child = os.fork()
        if child == 0:
            try:
                client.schedule_in(1, "child")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        client.schedule_in(1, "parent")
    by_connection: dict[int, set[str]] = {}
    for connection, words in server.commands:
        if words[0] == "SCHEDULE":
            by_connection.setdefault(connection, set()).add(words[1])
    assert sorted(by_connection.values(), key=str) == [{"child"}, {"parent"}]


def test_a_closed_client_refuses(server):
    client = Client(server.url)
    client.schedule_in(1, "mail")
    client.close()
    client.close()
    with pytest.raises(InvalidRequest, match="closed"):
        client.schedule_in(1, "mail")
    with pytest.raises(InvalidRequest, match="closed"):
        client.schedule_many([])


def test_a_client_without_time_out_cannot_be_made():
    with pytest.raises(InvalidRequest):
        Client(timeout=0)
    with pytest.raises(InvalidRequest):
        Client(connect_timeout=float("nan"))


def test_module_functions_use_one_client_from_the_environment(server, monkeypatch):
    monkeypatch.setenv("WHEELD_URL", server.url)
    monkeypatch.setattr(client_module, "_clients", {})
    job = client_module.schedule_in("1s", "mail", {"n": 1}, key="k")
    client_module.schedule_at("now", "mail")
    assert list(client_module.schedule_many([("now", "mail", {})])) == [1002]
    with client_module.batch() as batch:
        batch.schedule_in("1s", "mail")
    assert client_module.get(job).key == "k"
    assert client_module.cancel("k")
    assert len(server.seen("HELLO")) == 1
    client_module.default_client().close()


def test_the_client_imports_no_event_loop_and_nothing_of_the_daemon():
    code = (
        "import sys, wheel.client; "
        "bad = {'asyncio', 'structlog', 'croniter', '_wheeld', 'wal', 'server', 'wheel.engine', "
        "'wheel.worker', 'click', 'random', 'ssl'} & set(sys.modules); "
        "sys.exit(f'{bad}' if bad else 0)"
    )
    assert_runs(code)


# ---------------------------------------------------------------- many


def rows(count, start=0):
    return [(timedelta(seconds=n), "mail", {"n": n}) for n in range(start, start + count)]


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 95])
def test_many_are_scheduled_in_order(server, client, count):
    result = client.schedule_many(iter(rows(count)), chunk=10)
    assert list(result) == list(range(1000, 1000 + count))
    assert [server.jobs[i].payload for i in result] == [b'{"n":%d}' % n for n in range(count)]
    assert (result.created, result.existing, result.failed) == (count, 0, 0)


def test_a_second_chunk_is_sent_before_the_first_is_answered(server, client):
    seen_at_send: list[int] = []

    def source():
        for n, row in enumerate(rows(30)):
            if n == 10:  # the first chunk is on its way while the second is made
                server.wait_until(lambda: len(server.jobs) == 10)
            if n == 20:  # the second too, before the third is
                server.wait_until(lambda: len(server.jobs) == 20)
            seen_at_send.append(n)
            yield row

    assert len(client.schedule_many(source(), chunk=10)) == 30
    assert seen_at_send == list(range(30))


def test_keys_and_words_are_counted(client):
    client.schedule_in(1, "mail", key="old")
    items = [
        Item("+1s", "mail", {"n": 0}, key="new"),
        Item("+1s", "mail", {"n": 1}, key="old"),
        Item("+1s", "mail", {"n": 2}, key="old", on_conflict="replace"),
        ("+1s", "mail", {"n": 3}),
        Item("+1s", "mail", {"n": 4}, key="old", on_conflict="error"),
    ]
    result = client.schedule_many(items, chunk=2)
    assert list(result) == [1001, 1000, 1000, 1002, None]
    assert (result.created, result.existing, result.replaced, result.failed) == (2, 1, 1, 1)
    assert isinstance(result.errors[4], KeyExists)


def test_a_bad_item_fails_alone_whichever_side_finds_it(server, client):
    server.script("SCHEDULE", "pass", "OOM no room")
    items = [
        ("+1s", "mail", {}),
        (datetime(2026, 1, 1), "mail", {}),  # noqa: DTZ001
        ("+1s", "mail", {}),
        ("+1s", "no,good", {}),
        ("+1s", "mail", b"x" * 65_537),
        ("+1s", "mail", {}),
    ]
    result = client.schedule_many(items, chunk=3)
    assert list(result) == [1000, None, None, None, None, 1001]
    assert [type(result.errors[at]) for at in (1, 2, 3, 4)] == [
        NaiveDatetimeError,
        ServerFullError,
        InvalidRequest,
        PayloadTooLarge,
    ]
    assert list(result.errors) == [1, 2, 3, 4]


def test_what_is_no_item_at_all_is_a_type_error(client):
    with pytest.raises(TypeError, match="neither"):
        client.schedule_many([("now", "mail")])
    with pytest.raises(InvalidRequest, match="chunk 0"):
        client.schedule_many([], chunk=0)


@pytest.mark.parametrize("action", ["drop_before", "drop_after", "LOADING x", "TRYAGAIN x"])
@pytest.mark.parametrize("at", [0, 1, 9, 10, 15, 34])
def test_a_chunk_that_breaks_midway_is_sent_again_and_no_job_doubles(server, client, action, at):
    server.script("SCHEDULE", *["pass"] * at, action, action)
    result = client.schedule_many(rows(35), chunk=10)
    assert len(server.jobs) == 35
    assert sorted(result) == sorted(server.jobs)
    assert [server.jobs[i].payload for i in result] == [b'{"n":%d}' % n for n in range(35)]
    assert (result.created, result.failed) == (35, 0)


def test_items_with_keys_survive_a_break_with_the_words_of_the_first_time(server, client):
    server.script("SCHEDULE", *["pass"] * 5, "drop_after")
    items = [Item("+1s", "mail", {"n": n}, key=f"k{n}") for n in range(8)]
    result = client.schedule_many(items, chunk=4)
    assert list(result) == list(range(1000, 1008))
    assert (result.created, result.existing) == (8, 0)


def test_a_server_that_stays_away_is_an_error_that_tells_how_far_it_came(server, client, clock):
    server.script("SCHEDULE", *["pass"] * 20, *["drop_before"] * 1000)
    with pytest.raises(ConnectError) as caught:
        client.schedule_many(rows(50), chunk=10)
    assert caught.value.confirmed == 20
    assert len(server.jobs) == 20
    assert sum(clock.pauses) <= 5.0


def test_progress_renews_the_deadline(server, client, clock):
    """Each chunk needs 4.4 s of pauses: more than one deadline in all."""
    stumble = ["LOADING x"] * 13
    server.script("SCHEDULE", *stumble, "pass", *stumble, "pass")
    result = client.schedule_many(rows(2), chunk=1)
    assert result.created == 2
    assert sum(clock.pauses) > 5.0


def test_a_slow_source_costs_no_deadline(client, clock):
    def source():
        for row in rows(4):
            clock.now_s += 60
            yield row

    assert client.schedule_many(source(), chunk=1).created == 4


def test_an_exception_of_the_source_passes_and_leaves_no_half_read_connection(server, client):
    def source():
        yield from rows(25)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        client.schedule_many(source(), chunk=10)
    assert client.schedule_in(1, "mail").handler == "mail"
    assert client.schedule_in(1, "mail").id == max(server.jobs)


def test_large_payloads_close_a_chunk_early(server, client):
    def source():
        for n in range(40):
            if n == 20:  # 17 of them are over 1 MiB
                server.wait_until(lambda: len(server.jobs) >= 17)
            yield "now", "mail", b"x" * 65_000

    assert client.schedule_many(source(), chunk=500).created == 40


def test_a_batch_is_sent_when_its_block_is_left(server, client):
    with client.batch() as batch:
        assert batch.schedule_in("30m", "session.expire", {"sid": "a"}, key="sess-a") == 0
        assert batch.schedule_at("now", "mail") == 1
        assert batch.schedule_in("1s", "bad,name") == 2
        assert server.commands == []
        with pytest.raises(InvalidRequest, match="block is left"):
            _ = batch.created
    assert (batch.created, batch.existing, batch.failed) == (2, 0, 1)
    assert list(batch.result) == [1000, 1001, None]
    assert isinstance(batch.errors[2], InvalidRequest)
    assert server.jobs[1000].when == "+1800000"


def test_a_batch_left_by_an_exception_sends_nothing(server, client):
    with pytest.raises(ZeroDivisionError), client.batch() as batch:
        batch.schedule_in("1s", "mail", {"n": 1 // len(server.commands)})
    assert server.commands == []


def test_a_batch_refuses_a_naive_datetime_where_it_is_written(client):
    with client.batch() as batch, pytest.raises(NaiveDatetimeError):
        batch.schedule_at(datetime(2026, 1, 1), "mail")  # noqa: DTZ001


# ---------------------------------------------------------------- the seams


def test_the_machines_adapter_draws_within_bounds_and_never_the_same_token():
    draws = [SYSTEM.uniform(2.0, 3.0) for _ in range(200)]
    assert all(2.0 <= draw < 3.0 for draw in draws)
    assert len(set(draws)) > 190
    assert len({SYSTEM.token() for _ in range(100)}) == 100
    assert len(SYSTEM.token()) == 32


def test_every_code_of_the_protocol_has_a_class():
    codes = (
        "SYNTAX UNKNOWN_COMMAND NAIVE_TIME CRON CYCLE LIMIT OOM DISKFULL NOAUTH NOPERM WRONGPASS "
        "DENIED STALE UNKNOWN CANCELLED EXISTS CONFLICT BUSY LOADING READONLY TRYAGAIN "
        "CLUSTERDOWN CROSSSLOT MOVED"
    )
    assert [code for code in codes.split() if type(from_reply(code, "")) is ServerError] == []
