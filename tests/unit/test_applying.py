"""``Client.apply``: everything is checked before anything is changed."""

import pytest

from wheel.definitions import Definition
from wheel.errors import (
    ApplyError,
    ConnectError,
    CronSyntaxError,
    CycleError,
    InvalidRequest,
    NotFound,
    from_reply,
)
from wheel.recurring import Recurring


class Server(Recurring):
    """What the server would do, in a dict: SET, SET ... DRY and GET."""

    def __init__(self, **schedules):
        self.schedules = {
            name: {"after": after, "words": None} for name, after in schedules.items()
        }
        self.sets = []
        self.asked = 0
        self.breaks_at = None

    payload_max = 100

    def token(self):
        return "t"

    def execute(self, *words):
        self.asked += 1
        if self.asked == self.breaks_at:
            raise ConnectError("gone")
        verb, name = words[1], words[2]
        name = name.decode() if isinstance(name, bytes) else name
        if verb == "GET":
            found = self.schedules.get(name)
            return None if found is None else {"name": name, "after": found["after"]}
        rule, dry = words[3].decode(), words[-1] == b"DRY"
        if rule.startswith("61"):
            raise from_reply("CRON", f'rule "{rule}" at position 0: minute 61; write 0..59')
        known = self.schedules.get(name)
        said = [word for word in words if word != b"DRY"]
        word = "created" if known is None else "changed"
        if known is not None and known["words"] == said:
            word = "unchanged"
        if not dry:
            self.sets.append(name)
            self.schedules[name] = {"after": (), "words": said}
        return [1, word.encode(), None]


def define(name, *after, rule="@daily"):
    return Definition(name=name, rule="-" if after else rule, handler="h", options={"after": after})


def test_all_are_stored_upstreams_first_and_answered_in_the_order_given():
    server = Server()
    done = server.apply([define("c", "b"), define("b", "a"), define("a")])
    assert server.sets == ["a", "b", "c"]
    assert [(entry.name, entry.word) for entry in done] == [
        ("c", "created"),
        ("b", "created"),
        ("a", "created"),
    ]
    again = server.apply(define("c", "b"), define("b", "a"), define("a"))
    assert {entry.word for entry in again} == {"unchanged"}


def test_a_dry_run_changes_nothing():
    server = Server()
    assert [entry.word for entry in server.apply(define("a"), dry_run=True)] == ["created"]
    assert server.sets == []
    assert server.schedules == {}


def test_one_bad_rule_refuses_all_and_every_bad_one_is_named():
    server = Server()
    definitions = [define("a"), define("b", rule="61 * * * *"), define("c\n"), define("d", "zz")]
    with pytest.raises(ApplyError, match="3 of the schedules are refused") as refused:
        server.apply(definitions)
    assert server.sets == []
    errors = refused.value.errors
    assert set(errors) == {"b", "c\n", "d"}
    assert isinstance(errors["b"], CronSyntaxError)
    assert errors["b"].position == 0
    assert isinstance(errors["d"], NotFound)
    assert "'zz'" in str(errors["d"])


def test_a_cycle_is_refused_before_the_server_is_asked():
    server = Server()
    with pytest.raises(CycleError) as refused:
        server.apply(define("report", "verify"), define("verify", "report"))
    assert set(refused.value.path) == {"report", "verify"}
    assert server.asked == 0


def test_a_cycle_over_schedules_of_the_server_is_refused_and_changes_nothing():
    """old2 waits for old1, old1 for new: that new waits for old2 closes the circle."""
    server = Server(old1=["new"], old2=["old1"])
    with pytest.raises(CycleError) as refused:
        server.apply(define("other"), define("new", "old2"))
    assert set(refused.value.path) == {"old1", "old2", "new"}
    assert server.sets == []


def test_what_is_redefined_counts_as_it_will_be():
    """old waits for new on the server, but no longer in what is applied: no circle."""
    server = Server(old=["new"])
    server.apply(define("new", "old"), define("old"))
    assert server.sets == ["old", "new"]


def test_a_name_stands_once():
    with pytest.raises(InvalidRequest, match="'a' is defined twice"):
        Server().apply(define("a"), define("b"), define("a"))


def test_a_server_that_is_gone_while_checking_has_changed_nothing():
    server = Server()
    server.breaks_at = 2
    with pytest.raises(ConnectError):
        server.apply(define("a"), define("b"))
    assert server.sets == []


def test_a_server_that_is_gone_half_way_is_told_and_the_same_call_goes_on():
    server = Server()
    server.breaks_at = 4
    with pytest.raises(ConnectError):
        server.apply(define("a"), define("b"))
    assert server.sets == ["a"]
    assert [entry.word for entry in server.apply(define("a"), define("b"))] == [
        "unchanged",
        "created",
    ]


def test_the_servers_errors_keep_what_they_tell():
    error = from_reply("CYCLE", "a -> b -> a: each waits for the next; take out one of the edges")
    assert isinstance(error, CycleError)
    assert error.path == ("a", "b", "a")
    assert from_reply("CRON", "minute '61' at position 12: x; write 0..59").position == 12
    assert from_reply("CRON", "a zone that is not there").position is None
