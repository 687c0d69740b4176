"""Who may use which command: the core's table, PROTOCOL.md's table, and what really happens."""

import re

import pytest

from server.auth import TOKEN_BYTES, Role, Token, Tokens, mint
from server.signin import ATTEMPTS_PER_S, FORGIVEN_NS, Guesses, SignIn, address_of
from server.verbs import VERBS
from tests.docs import ROOT
from tests.fakes import StandingClock
from tests.fed import Bench
from wheel.engine.core import ROLES_ALL, command_table, rights_table
from wheel.wire import encode_command

ARITY = {syntax.name: syntax.args_min for syntax in command_table()}
RIGHTS = rights_table()


def words_of(right):
    """Return a call that is this form of the command, and as short as it may be."""
    words = [right.command, *["0"] * ARITY[right.command]]
    if right.form and right.command == "HANDLER":
        words += ["RETRIES" if right.form == "*" else right.form, "1"]
    elif right.form:
        words[1:2] = [right.form]
    return words


def answer(roles, words, globs=""):
    """Return what a connection with these roles is told; python = handed to Python."""
    bench = Bench(auth_required=True)
    fed = bench.open()
    bench.core.set_session(fed.handle, roles=roles, globs=globs)
    bench.python = lambda _: b"+python\r\n"
    fed.feed(encode_command(words))
    bench.settle()
    return fed.take()


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("right", RIGHTS, ids=lambda right: f"{right.command}-{right.form}")
def test_every_command_asks_for_its_role(right, role):
    refused = answer(role.bit, words_of(right)).startswith(b"-NOPERM")
    assert refused == (not role.bit & right.roles)


@pytest.mark.parametrize("right", RIGHTS, ids=lambda right: f"{right.command}-{right.form}")
def test_refusal_names_the_command_the_role_and_those_needed(right):
    for role in Role:
        text = answer(role.bit, words_of(right)).decode()
        if role.bit & right.roles:
            continue
        needed = [str(other) for other in Role if other.bit & right.roles]
        assert text.startswith(f"-NOPERM {right.command}")
        assert f"this token has {role};" in text
        assert re.split(r", | or ", re.search(r"role (.*), this", text)[1]) == needed


def test_admin_may_do_everything_and_nobody_else_may():
    assert all(right.roles & Role.ADMIN.bit for right in rights_table())
    for role in set(Role) - {Role.ADMIN}:
        assert not all(right.roles & role.bit for right in rights_table())


def test_viewer_may_change_nothing():
    changing = {"SCHEDULE", "LEASE", "ACK", "DONE", "FAIL", "RELEASE", "EXTEND", "CANCEL", "RUN"}
    changing |= {"RESCHEDULE", "REQUEUE", "PURGE", "SHUTDOWN"}
    forms = {("HANDLER", "*"), ("CLOCK", "ACCEPT"), ("CLIENT", "KILL"), ("CRON", "SET")}
    for right in rights_table():
        changes = right.command in changing and not right.form
        if changes or (right.command, right.form) in forms:
            assert not right.roles & Role.VIEWER.bit, right


def test_every_role_has_a_bit_of_its_own_and_together_they_are_all():
    assert sum(role.bit for role in Role) == ROLES_ALL


def test_every_form_is_one_of_a_command():
    assert {right.command for right in rights_table()} == ARITY.keys()


def test_before_signing_in_nothing_but_what_signs_in_is_answered():
    for syntax in command_table():
        bench = Bench(auth_required=True)
        fed = bench.open()
        fed.feed(encode_command([syntax.name, *["0"] * syntax.args_min]))
        bench.settle()
        before = syntax.name in {"PING", "HELLO", "AUTH", "QUIT", "RESET"}
        assert fed.take().startswith(b"-NOAUTH") == (not before), syntax.name


# ---------------------------------------------------------------- PROTOCOL.md


def documented():
    """Yield (command, form, roles) of the table under Roles."""
    text = (ROOT / "PROTOCOL.md").read_text().split("### Roles", 1)[1].split("\n## ", 1)[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 6 or set(cells[1:]) - {"x", ""}:
            continue
        roles = sum(role.bit for role, cell in zip(Role, cells[1:], strict=True) if cell)
        if cells[0].startswith("HANDLER h with defaults"):
            yield "HANDLER", "*", roles
        elif cells[0].startswith("HANDLER h with"):
            yield from (("HANDLER", form, roles) for form in cells[0].split()[3:])
        else:
            for word in cells[0].split():
                command, _, form = word.partition(":")
                yield command, form, roles


def test_the_page_has_the_table_of_the_core():
    table = sorted((right.command, right.form, right.roles) for right in rights_table())
    assert sorted(documented()) == table


def test_command_shows_roles_as_categories():
    for right in RIGHTS:
        verb = VERBS[right.command]
        names = tuple(role for role in Role if role.bit & right.roles)
        if not right.form:
            assert verb.roles == names
        elif right.form.isalpha():
            assert verb.forms[right.form] == names


# ---------------------------------------------------------------- limited to handlers


def test_token_without_globs_is_held_to_no_handler():
    assert not answer(Role.WORKER.bit, ["LEASE", "*"]).startswith(b"-")


@pytest.mark.parametrize("right", RIGHTS, ids=lambda right: f"{right.command}-{right.form}")
def test_limited_token_reaches_no_other_handler(right):
    """With a handler outside its globs wherever a command takes one."""
    words = words_of(right)
    told = answer(right.roles, words, globs="mail.*").split(b" ")[0]
    if not right.limited or words[0] in {"LEASE", "SCHEDULE", "HANDLER", "JOBS", "DEAD", "COUNT"}:
        assert told == b"-NOPERM"
    else:
        assert told != b"-NOPERM"


def test_limited_worker_is_never_woken_by_another_handler():
    bench = Bench(auth_required=True)
    worker, other = bench.open(), bench.open()
    bench.core.set_session(worker.handle, roles=Role.WORKER.bit, globs="mail.*")
    bench.core.set_session(other.handle, roles=ROLES_ALL)
    worker.feed(b"LEASE mail.* WAIT 1000\r\n")
    other.ask("SCHEDULE mail now x")
    other.ask("SCHEDULE pay now x")
    assert worker.take() == b""
    other.ask("SCHEDULE mail.a now x")
    assert b"mail.a" in worker.take()


# ---------------------------------------------------------------- signing in


def test_guesses_of_an_address_are_five_a_second_after_the_first_wrong_one():
    guesses = Guesses()
    assert all(guesses.may_try("a", 0) for _ in range(100))
    guesses.failed("a", 0)
    tried = sum(guesses.may_try("a", 0) for _ in range(100))
    assert tried == ATTEMPTS_PER_S - 1
    assert not guesses.may_try("a", 10**8)
    assert guesses.may_try("b", 0)
    later = sum(guesses.may_try("a", 10**9 + step * 10**7) for step in range(1000))
    assert ATTEMPTS_PER_S * 9 <= later <= ATTEMPTS_PER_S * 11


def test_address_is_forgiven_after_a_minute_without_a_wrong_token():
    guesses = Guesses()
    guesses.failed("a", 0)
    while guesses.may_try("a", 0):
        pass
    assert guesses.may_try("a", FORGIVEN_NS)
    assert len(guesses) == 0


def test_addresses_that_failed_take_bounded_memory_and_the_oldest_go():
    guesses = Guesses()
    for number in range(10_000):
        guesses.failed(str(number), 0)
    assert len(guesses) == 4096
    while guesses.may_try("9999", 0):
        pass
    assert guesses.may_try("0", 0)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("127.0.0.1:5000", "127.0.0.1"),
        ("[2001:db8::1]:5000", "2001:db8::/64"),
        ("[2001:db8:0:0:ffff::2]:5001", "2001:db8::/64"),
        ("[2001:db8:0:1::1]:5000", "2001:db8:0:1::/64"),
        ("[::ffff:192.0.2.1]:5000", "192.0.2.1"),
        ("[fe80::1%eth0]:5000", "fe80::/64"),
        ("unix", ""),
    ],
)
def test_address_is_what_one_customer_has(peer, address):
    assert address_of(peer) == address


class Desk:
    """A sign-in over a real core."""

    def __init__(self, *tokens):
        self.bench = Bench(auth_required=True)
        self.clock = StandingClock()
        self.desk = SignIn(self.bench.core, self.clock, Tokens(tokens))

    def enter(self, token):
        fed = self.bench.open()
        self.desk.enter(fed.handle, token)
        return fed

    def closed(self, closing):
        """Return how many were closed."""
        while True:
            try:
                next(closing)
            except StopIteration as end:
                self.bench.core.commit()
                return end.value

    def is_open(self, fed):
        self.bench.settle()
        return not self.bench.core.fed_output(fed.handle).finished


def token(name, role=Role.VIEWER, globs=(), expires_ms=None):
    return mint(name, role, globs, name.encode().ljust(TOKEN_BYTES), expires_ms=expires_ms)[1]


def test_signing_in_gives_the_rights_of_the_token():
    worker = token("w", Role.WORKER, ("mail.*", "pay"))
    desk = Desk(worker)
    fed = desk.enter(worker)
    assert desk.bench.core.session(fed.handle).roles == Role.WORKER.bit
    assert fed.ask("LEASE pay,mail.x") == b"*0\r\n"
    assert fed.ask("LEASE digest").startswith(b"-NOPERM")
    desk.desk.leave(fed.handle)
    assert fed.ask("LEASE pay").startswith(b"-NOAUTH")


def test_token_that_is_taken_off_the_list_closes_its_connections_and_no_others():
    ann, bob = token("ann"), token("bob")
    desk = Desk(ann, bob)
    feds = [desk.enter(ann) for _ in range(100)]
    other = desk.enter(bob)
    assert desk.closed(desk.desk.replace(Tokens((bob,)))) == 100
    assert not any(desk.is_open(fed) for fed in feds)
    assert desk.is_open(other)


@pytest.mark.parametrize(
    "changed",
    [
        token("ann", Role.PRODUCER),
        token("ann", Role.WORKER, ("mail.*",)),
        Token(name="ann", role=Role.VIEWER, digest=bytes(32)),
    ],
)
def test_token_that_is_another_now_closes_its_connections(changed):
    ann = token("ann")
    desk = Desk(ann)
    fed = desk.enter(ann)
    assert desk.closed(desk.desk.replace(Tokens((ann, token("new"))))) == 0
    assert desk.is_open(fed)
    assert desk.closed(desk.desk.replace(Tokens((changed,)))) == 1
    assert not desk.is_open(fed)


def test_token_that_expires_closes_its_connections_once():
    ann = token("ann", expires_ms=2_000_000_000_000)
    desk = Desk(ann, token("bob"))
    fed = desk.enter(ann)
    assert desk.closed(desk.desk.expire()) == 0
    desk.clock.now_wall_ms = 2_000_000_000_000
    assert desk.closed(desk.desk.expire()) == 1
    assert not desk.is_open(fed)
    assert list(desk.desk.expire()) == []


def test_many_connections_are_closed_step_by_step():
    ann = token("ann")
    desk = Desk(ann)
    for _ in range(1000):
        desk.enter(ann)
    assert len(list(desk.desk.replace(Tokens()))) >= 1000 // 32


def test_certificate_stands_for_the_token_of_its_first_known_name():
    ann, old = token("ann"), token("old", expires_ms=1)
    desk = Desk(ann, old).desk
    assert desk.by_certificate(["nobody", "ann"]) == ann
    assert desk.by_certificate(["old"]) is None
    assert desk.by_certificate([]) is None
