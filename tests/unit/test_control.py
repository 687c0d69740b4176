"""The commands that Python answers, against a core that is a list of connections."""

from dataclasses import replace

import pytest

from server.auth import TOKEN_BYTES, Role, Tokens, mint
from server.control import Control, Identity
from server.signin import SignIn
from server.verbs import VERBS
from tests.fakes import StandingClock
from wheel.engine.core import Commit, Core, CoreOptions, command_table
from wheel.engine.facts import Clocks, Session
from wheel.wire import ReplyError, Simple, encode_command, encode_reply

SECRET, TOKEN = mint("ann", Role.WORKER, (), bytes(range(TOKEN_BYTES)))
IDENTITY = Identity(version="0.1.0", store="ab" * 16)


class FakeCore:
    """Connections in a dict."""

    def __init__(self, authed):
        self.all = {}
        self.closed = []
        self.killed = []
        self.accepted = 0
        for number in (1, 2, 3):
            self.all[number + 100] = Session(
                handle=number + 100,
                id=number,
                peer=f"127.0.0.1:{5000 + number}",
                local="127.0.0.1:8463",
                name="",
                user="",
                resp=2,
                authed=authed,
                age_ms=61_000,
                idle_ms=1_000,
                input_bytes=0,
                output_bytes=5,
                commands=0,
                leases_unsent=0,
                leases_bound=0,
                waiting=number == 3,
                blocked=False,
                fed=False,
            )

    def walk_sessions(self):
        yield from list(self.all.values())

    def session(self, handle):
        return self.all.get(handle)

    def set_session(self, handle, **changes):
        given = {name: value for name, value in changes.items() if value is not None}
        self.globs = given.pop("globs", "")
        if "roles" in given:
            given["authed"] = given["roles"] != 0
        self.all[handle] = replace(self.all[handle], **given)

    def close_session(self, handle):
        self.closed.append(handle)

    def kill_session(self, handle):
        self.killed.append(handle)
        return True

    def accept_clock(self):
        self.accepted += 1


class FakeServer:
    """The daemon's answers."""

    term = 7

    def __init__(self):
        self.asked = []
        self.stopped = []

    def info(self, sections):
        self.asked.append(sections)
        return "# Server\r\nredis_version:7.2.0\r\n"

    def config(self):
        return {"save": "", "appendonly": "yes", "maxmemory": "1"}

    def clock_state(self):
        return {"wall_ms": 1, "held": 0}

    def shut_down(self, reason):
        self.stopped.append(reason)


class Console:
    """Types commands into connection 1."""

    def __init__(self, tokens=None):
        self.core = FakeCore(authed=tokens is None)
        self.server = FakeServer()
        self.sign_in = SignIn(self.core, StandingClock(), tokens)
        self.control = Control(
            core=self.core,
            server=self.server,
            identity=IDENTITY,
            clock=StandingClock(),
            sign_in=self.sign_in,
        )

    def outcome(self, *words, handle=101):
        argv = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        outcome = self.control.answer(handle, argv)
        if outcome.work is not None:
            outcome = replace(outcome, work=None, value=self.finish(outcome.work))
        if not outcome.silent:
            for resp in (2, 3):
                assert encode_reply(outcome.value, resp)
        return outcome

    def finish(self, work):
        """Take the steps of a longer answer, and count them."""
        self.steps = 1
        try:
            while True:
                next(work)
                self.steps += 1
        except StopIteration as end:
            return end.value

    def __call__(self, *words, handle=101):
        return self.outcome(*words, handle=handle).value

    def code(self, *words):
        value = self(*words)
        assert isinstance(value, ReplyError), value
        return value.code

    @property
    def me(self):
        return self.core.all[101]


@pytest.fixture
def console():
    return Console()


@pytest.fixture
def guarded():
    return Console(Tokens((TOKEN,)))


# ---------------------------------------------------------------- signing in


def test_hello_tells_who_the_server_is(console):
    assert console("HELLO") == {
        "server": "wheeld",
        "version": "0.1.0",
        "proto": 2,
        "id": 1,
        "mode": "standalone",
        "role": "master",
        "modules": [],
        "store": "ab" * 16,
        "term": 7,
    }
    assert console.me.resp == 2


def test_hello_3_changes_the_protocol_and_hello_2_changes_it_back(console):
    assert console("hello", 3)["proto"] == 3
    assert console.me.resp == 3
    assert console("HELLO")["proto"] == 3
    assert console("HELLO", 2)["proto"] == 2


@pytest.mark.parametrize("version", ["1", "4", "x", "", "03"])
def test_hello_with_another_protocol_is_refused(console, version):
    assert console.code("HELLO", version) == "NOPROTO"


def test_hello_signs_in_and_names_the_connection(guarded):
    guarded("HELLO", 3, "AUTH", "ann", SECRET, "SETNAME", "billing")
    assert (guarded.me.authed, guarded.me.user, guarded.me.name) == (True, "ann", "billing")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((3, "AUTH", "ann", "wrong"), "WRONGPASS"),
        ((3, "AUTH", "bob", SECRET), "WRONGPASS"),
        ((3, "AUTH", "ann", SECRET, "SETNAME", "a b"), "ERR"),
        ((3, "AUTH", "ann", SECRET, "NONSENSE"), "SYNTAX"),
        ((3, "AUTH", "ann"), "SYNTAX"),
        ((3,), "NOAUTH"),
        ((), "NOAUTH"),
    ],
)
def test_hello_that_is_refused_changes_nothing(guarded, words, code):
    before = guarded.me
    assert guarded.code("HELLO", *words) == code
    assert guarded.me == before


@pytest.mark.parametrize("words", [(SECRET,), ("ann", SECRET), ("default", SECRET)])
def test_auth_signs_in(guarded, words):
    assert guarded("AUTH", *words) == "OK"
    assert (guarded.me.authed, guarded.me.user) == (True, "ann")


@pytest.mark.parametrize("words", [("wrong",), ("bob", SECRET), ("ann", ""), (b"\xff", SECRET)])
def test_wrong_token_is_refused_after_a_while(guarded, words):
    outcome = guarded.outcome("AUTH", *words)
    assert outcome.value.code == "WRONGPASS"
    assert outcome.delay_s == 1.0
    assert not guarded.me.authed


def test_answer_to_a_wrong_token_does_not_show_it(guarded):
    assert "hunter2" not in str(guarded("AUTH", "ann", "hunter2"))
    assert "hunter2" not in str(guarded("HELLO", 3, "AUTH", "ann", "hunter2"))


def test_auth_without_a_token_file_says_so(console):
    assert "--token-file" in str(console("AUTH", "x"))


def test_reset_signs_out_and_forgets_the_name(guarded):
    guarded("HELLO", 3, "AUTH", "ann", SECRET, "SETNAME", "billing")
    assert guarded("RESET") == "RESET"
    assert (guarded.me.authed, guarded.me.user, guarded.me.name, guarded.me.resp) == (
        False,
        "",
        "",
        2,
    )


def test_new_tokens_are_in_force_at_once(guarded):
    list(guarded.sign_in.replace(Tokens()))
    assert guarded.code("AUTH", SECRET) == "WRONGPASS"


# ---------------------------------------------------------------- the core's half


def test_every_command_that_the_core_leaves_to_python_is_answered(console):
    """The fed core parks a command exactly when it has no function for it."""
    with Core(CoreOptions(sockets=False, hand_clock=True, commit=Commit.DRIVEN)) as core:
        core.start(term=1, rel_ms=0, clocks=Clocks(wall_ms=0, boot_ms=0, mono_ms=0))
        parked = set()
        for syntax in command_table():
            handle = core.fed_open("test")
            words = [syntax.name, *["0"] * syntax.args_min]
            core.fed_input(handle, encode_command(words))
            if core.slow_next() is not None:
                parked.add(syntax.name)
            core.fed_close(handle)
    assert parked == console.control.names


def test_connection_that_is_gone_is_not_answered(console):
    assert console.outcome("TIME", handle=999).silent


# ---------------------------------------------------------------- CLIENT


def test_client_id_and_names(console):
    assert console("CLIENT", "ID") == 1
    assert console("CLIENT", "GETNAME") is None
    assert console("CLIENT", "SETNAME", "billing") == "OK"
    assert console("CLIENT", "GETNAME") == b"billing"
    assert console("CLIENT", "SETNAME", "") == "OK"
    assert console("CLIENT", "GETNAME") is None


@pytest.mark.parametrize("name", ["a b", "a\nb", "é", b"\xff"])
def test_client_name_with_what_breaks_a_list_is_refused(console, name):
    assert console.code("CLIENT", "SETNAME", name) == "ERR"


def test_client_name_that_is_too_long_is_refused(console):
    assert console("CLIENT", "SETNAME", "n" * 63) == "OK"
    assert console.code("CLIENT", "SETNAME", "n" * 64) == "LIMIT"


def test_client_list_shows_every_connection_on_a_line(console):
    console("CLIENT", "SETNAME", "billing")
    console("CLIENT", "SETINFO", "LIB-NAME", "redis-py")
    console("CLIENT", "SETINFO", "lib-ver", "8.1.0")
    first, second, third = console("CLIENT", "LIST").splitlines()
    assert first == (
        "id=1 addr=127.0.0.1:5001 laddr=127.0.0.1:8463 name=billing age=61 idle=1 flags=N db=0"
        " qbuf=0 omem=5 user=default resp=2 lib-name=redis-py lib-ver=8.1.0"
    )
    assert "id=2" in second
    assert "flags=b" in third
    assert console("CLIENT", "INFO") == first


def test_client_list_by_id_shows_those_alone(console):
    assert console("CLIENT", "LIST", "ID", 3, 2, 9).count("\n") == 2
    assert console("CLIENT", "LIST", "TYPE", "normal").count("\n") == 3
    assert console.code("CLIENT", "LIST", "ID", "x") == "SYNTAX"
    assert console.code("CLIENT", "LIST", "TYPE", "master") == "SYNTAX"


def test_client_kill_by_address(console):
    assert console("CLIENT", "KILL", "127.0.0.1:5002") == "OK"
    assert console("CLIENT", "KILL", "127.0.0.1:5001") == "OK"
    assert (console.core.killed, console.core.closed) == ([102], [101])
    assert console.code("CLIENT", "KILL", "127.0.0.1:1") == "ERR"


def test_client_kill_by_conditions_counts_and_leaves_the_asker_alone(console):
    assert console("CLIENT", "KILL", "LADDR", "127.0.0.1:8463") == 2
    assert console.core.killed == [102, 103]
    assert console("CLIENT", "KILL", "ID", 1) == 0
    assert console.core.closed == []
    assert console("CLIENT", "KILL", "ID", 1, "SKIPME", "no") == 1
    assert console.core.closed == [101]
    assert console("CLIENT", "KILL", "ID", 2, "ADDR", "127.0.0.1:5003") == 0
    assert console("CLIENT", "KILL", "USER", "nobody") == 0


@pytest.mark.parametrize("words", [(), ("SKIPME", "yes"), ("ID", 1, "ADDR"), ("AGE", 1)])
def test_client_kill_without_a_condition_kills_nobody(console, words):
    assert console.code("CLIENT", "KILL", *words) == "SYNTAX"
    assert console.core.closed == console.core.killed == []


def test_client_switches_that_mean_nothing_here_are_accepted(console):
    assert console("CLIENT", "NO-EVICT", "on") == "OK"
    assert console("CLIENT", "NO-TOUCH", "off") == "OK"
    assert console("CLIENT", "REPLY", "ON") == "OK"
    assert console.code("CLIENT", "REPLY", "SKIP") == "ERR"
    assert console.code("CLIENT", "NO-EVICT", "maybe") == "SYNTAX"


def test_unknown_client_subcommand_names_those_there_are(console):
    assert "SETNAME" in str(console("CLIENT", "TRACKING", "on"))


def test_what_gone_connections_said_of_themselves_is_forgotten(console):
    for number in range(2000):
        handle = 10_000 + number
        console.core.all[handle] = replace(console.me, handle=handle)
        console("CLIENT", "SETINFO", "LIB-NAME", "x", handle=handle)
        del console.core.all[handle]
    assert len(console.control._clients._libraries) <= 10


def test_what_open_connections_said_of_themselves_is_kept(console):
    for number in range(2000):
        handle = 10_000 + number
        console.core.all[handle] = replace(console.me, handle=handle, id=handle)
        console("CLIENT", "SETINFO", "LIB-NAME", "x", handle=handle)
    assert console("CLIENT", "LIST").count("lib-name=x ") == 2000


def test_long_list_of_connections_is_made_in_short_steps(console):
    for number in range(1000):
        handle = 10_000 + number
        console.core.all[handle] = replace(console.me, handle=handle, id=handle)
    assert console("CLIENT", "LIST").count("\n") == 1003
    assert console.steps >= 1003 // 32
    assert console("CLIENT", "KILL", "USER", "nobody") == 0
    assert console.steps >= 1003 // 32


# ---------------------------------------------------------------- the rest


def test_quit_answers_and_closes(console):
    outcome = console.outcome("QUIT")
    assert (outcome.value, outcome.close) == ("OK", True)


def test_database_0_is_the_only_one(console):
    assert console("SELECT", 0) == "OK"
    assert console.code("SELECT", 1) == "ERR"


def test_time_is_seconds_and_microseconds_as_text(console):
    assert console("TIME") == ["1782000000", "123000"]


def test_clock_shows_and_accept_accepts(console):
    assert console("CLOCK") == {"wall_ms": 1, "held": 0}
    assert console.core.accepted == 0
    assert console.outcome("CLOCK", "accept").gated
    assert console.core.accepted == 1
    assert console.code("CLOCK", "SET") == "SYNTAX"


def test_config_get_takes_patterns(console):
    assert console("CONFIG", "GET", "save") == {"save": ""}
    assert console("CONFIG", "GET", "APP*", "max*") == {"appendonly": "yes", "maxmemory": "1"}
    assert console("CONFIG", "GET", "nothing") == {}
    assert console.code("CONFIG", "SET", "save", "1") == "ERR"
    assert console.code("CONFIG", "GET", *["*"] * 33) == "LIMIT"


def test_config_pattern_made_to_be_slow_is_quick(console):
    assert console("CONFIG", "GET", "*a" * 100 + "b") == {}


def test_info_asks_for_its_sections(console):
    outcome = console.outcome("INFO", "Server", "jobs")
    assert outcome.gated
    assert console.server.asked == [frozenset({"server", "jobs"})]
    console("INFO")
    console("INFO", "all")
    assert console.server.asked[1:] == [frozenset(), frozenset()]


@pytest.mark.parametrize("words", ["server", "clients LOG", "Server clients log"])
def test_info_of_what_no_record_changes_waits_for_no_log(console, words):
    assert not console.outcome("INFO", *words.split()).gated


@pytest.mark.parametrize(
    "words", ["", "all", "server jobs", "limits", "server everything", "nosuch"]
)
def test_info_of_anything_else_waits_for_the_log(console, words):
    assert console.outcome("INFO", *words.split()).gated


def test_shutdown_stops_without_an_answer(console):
    assert console.outcome("SHUTDOWN", "NOSAVE").silent
    assert console.server.stopped == ["SHUTDOWN"]
    assert console.code("SHUTDOWN", "FORCE") == "SYNTAX"
    assert len(console.server.stopped) == 1


def test_command_describes_every_command(console):
    rows = console("COMMAND")
    assert console("COMMAND", "COUNT") == len(rows) == len(VERBS)
    assert console("COMMAND", "LIST") == [row[0] for row in rows]
    schedule = next(row for row in rows if row[0] == "schedule")
    assert schedule[1:6] == [-4, [Simple("write"), Simple("fast")], 1, 1, 1]


def test_command_info_of_an_unknown_name_is_nil(console):
    assert console("COMMAND", "INFO", "ping", "nope")[1] is None


def test_command_docs_has_a_summary_for_each(console):
    docs = console("COMMAND", "DOCS")
    assert set(docs) == {name.lower() for name in VERBS}
    assert all(entry["summary"].endswith(".") for entry in docs.values())
    assert list(console("COMMAND", "DOCS", "lease", "nope")) == ["lease"]
    # redis-cli shows the token, and for every other type the name behind it: "... syntax".
    (argument,) = docs["lease"]["arguments"]
    assert argument["type"] == "pure-token"
    assert argument["token"].startswith("handler[,handler...] ")


def test_what_depends_on_nothing_is_not_held_back(console):
    for words in (("HELLO",), ("CLIENT", "ID"), ("COMMAND", "COUNT"), ("TIME",), ("SELECT", 1)):
        assert not console.outcome(*words).gated
