"""``shell.run``: commands with what they read and write, and how they are ended."""

import dataclasses
import json
import os
import pwd
import signal
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wheeld
from tests.fake_server import FakeServer
from wheel import shell as shells
from wheel.client import Client
from wheel.handlers import App, Fail, Retry, Run, Stopping
from wheel.shell import Allowed, Shell, read_allowed
from wheel.system import SYSTEM
from wheel.worker import RESULT_BYTES_MAX, Worker

WAIT_S = 20


def a_run(timeout_ms=0):
    return Run(
        id=1,
        run_id="backup@2026-11-01T06:00:00Z",
        handler="shell.run",
        key=None,
        attempt=1,
        due=datetime(2026, 11, 1, 6, tzinfo=UTC),
        receipt="1.1.1",
        payload=b"",
        lease_ms=60_000,
        timeout_ms=timeout_ms,
        meta=None,
        progress=None,
        stop=Stopping(),
        logical_date="2026-11-01",
    )


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(shells, "TERM_S", 0.2)
    monkeypatch.setattr(shells, "LINGER_S", 0.2)


def execute(command, *, allowed=None, run=None, system=SYSTEM, **payload):
    order = {"command": command, **payload}
    return Shell(allowed, system).execute(run or a_run(), json.dumps(order).encode())


def failure(kind, *arguments, **options):
    with pytest.raises(kind) as raised:
        execute(*arguments, **options)
    return str(raised.value)


# ------------------------------------------------------------------------------ results


def test_what_a_command_writes_to_both_streams_is_its_result():
    assert execute("echo out; echo err >&2") == {"exit": 0, "output": "out\nerr\n"}


def ended(*arguments, **options):
    """Return how a command failed: the text, and its output."""
    with pytest.raises(Retry) as raised:
        execute(*arguments, **options)
    return str(raised.value), raised.value.output


def test_a_failure_tells_the_code_and_the_end_of_the_output():
    assert ended("echo started; exit 3") == ("exit 3", b"started\n")
    assert ended("exit 3") == ("exit 3", b"")
    assert ended("kill -TERM $$") == ("killed by SIGTERM", b"")


def test_of_much_output_the_end_is_kept_within_the_limits_of_the_protocol():
    wrote = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done"
    kept = execute(wrote)
    assert kept["output"].endswith("line 2998\nline 2999\n")
    assert RESULT_BYTES_MAX - 20 < len(json.dumps(kept, separators=(",", ":"))) <= RESULT_BYTES_MAX
    why, output = ended(f"{wrote}; exit 1")
    assert why == "exit 1"
    assert output.endswith(b"line 2999\n")
    assert len(output) == RESULT_BYTES_MAX, "the last 4 KiB, to the byte"


@settings(max_examples=60)
@given(st.binary(max_size=300), st.integers(1, 40))
def test_any_output_fits_into_a_result(piece, times):
    output = (piece * times)[-shells.OUTPUT_BYTES_MAX :]
    result = json.dumps(shells._result(output), separators=(",", ":"), ensure_ascii=False)
    assert len(result.encode()) <= RESULT_BYTES_MAX
    text = output.decode("utf-8", "replace")
    assert text.endswith(json.loads(result)["output"])


def test_a_command_reads_what_stands_behind_the_percent_sign():
    assert execute("cat", stdin="line one\nété\n")["output"] == "line one\nété\n"
    assert execute("cat")["output"] == ""
    assert execute("head -c 3", stdin="abc" + "x" * 200_000)["output"] == "abc"
    large = "y" * 150_000 + "end"
    assert execute("cat | tail -c 3", stdin=large)["output"] == "end"


def test_a_command_gets_its_own_environment_and_nothing_of_the_workers(monkeypatch):
    monkeypatch.setenv("WHEELD_URL", "wheeld://:secret@host")
    text = execute("env", env={"A": "two words", "PATH": "/usr/bin:/bin:/opt"})["output"]
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert lines["A"] == "two words"
    assert lines["PATH"] == "/usr/bin:/bin:/opt"
    assert lines["WHEELD_RUN_ID"] == "backup@2026-11-01T06:00:00Z"
    assert lines["WHEELD_LOGICAL_DATE"] == "2026-11-01"
    assert lines["LOGNAME"] == pwd.getpwuid(os.geteuid()).pw_name
    assert not lines.keys() & {"WHEELD_URL", "PYTEST_CURRENT_TEST"}


def test_a_command_begins_at_home():
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert execute("pwd")["output"].strip() in {os.path.realpath(home), "/"}


def test_a_home_that_is_asked_for_is_where_it_begins(tmp_path):
    home = str(tmp_path)
    assert execute("pwd; echo $HOME", env={"HOME": home})["output"] == f"{home}\n{home}\n"
    assert execute("pwd", env={"HOME": home + "/none"})["output"] == "/\n"


def test_another_shell_is_taken_if_it_is_asked_for():
    assert execute("echo $0", shell="/bin/bash")["output"] == "/bin/bash\n"
    assert "cannot be run" in failure(Fail, "x", shell="/no/such/shell")


def test_what_goes_on_in_the_background_is_not_waited_for_and_lives_on(tmp_path):
    """As with cron: the command has ended when its shell has."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert execute(f"(cat {pipe}) & echo done $!")["output"].startswith("done ")
    with pipe.open("w") as opened:  # would wait for ever if nobody were reading
        opened.write("x")


# ------------------------------------------------------------------------------ ends


class Clock:
    """A clock that goes on by a step each time it is looked at."""

    def __init__(self, step_s):
        self.now_s = 0.0
        self.step_s = step_s

    def monotonic(self):
        self.now_s += self.step_s
        return self.now_s


def hurried(step_s):
    return dataclasses.replace(SYSTEM, monotonic=Clock(step_s).monotonic)


def gone(pid):
    """Whether a process has ended, be it waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition):
    for _ in range(WAIT_S * 100):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to that")


def test_a_time_out_kills_the_whole_group():
    error, output = ended(
        "sleep 1000 & echo child $!; sleep 1000", run=a_run(1000), system=hurried(0.3)
    )
    assert error == "killed, its time of 1 s is up"
    until(lambda: gone(int(output.split()[-1])))


def test_who_ignores_sigterm_is_killed():
    error, output = ended(
        "trap '' TERM; echo $$; while :; do sleep 1000; done", run=a_run(1000), system=hurried(0.3)
    )
    assert error == "killed, its time of 1 s is up"
    until(lambda: gone(int(output.split()[-1])))


def test_a_run_that_is_lost_is_killed(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    run = a_run()
    ended = []
    thread = threading.Thread(
        target=lambda: ended.append(
            failure(Retry, f"echo $$ >{pipe}; trap '' TERM; sleep 1000; sleep 1000", run=run)
        )
    )
    thread.start()
    with pipe.open() as opened:
        pid = int(opened.readline())
    run.lose("CANCELLED")
    thread.join(WAIT_S)
    assert ended == ["killed: the run was cancelled"]
    assert gone(pid)


def test_a_worker_that_ends_kills_what_still_runs(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    shell = Shell(None)
    ended = []

    order = json.dumps({"command": f"echo $$ >{pipe}; sleep 1000; sleep 1000"}).encode()

    def run():
        with pytest.raises(Retry) as raised:
            shell.execute(a_run(), order)
        ended.append(str(raised.value))

    thread = threading.Thread(target=run)
    thread.start()
    with pipe.open() as opened:
        pid = int(opened.readline())
    shell.kill_all()
    thread.join(WAIT_S)
    assert ended == [f"killed by {signal.SIGKILL.name}"]
    assert gone(pid)
    with pytest.raises(Retry, match="SIGKILL"):  # nor does one begin that was about to
        shell.execute(a_run(), b'{"command": "sleep 1000"}')


# ------------------------------------------------------------------------------ rights

LIST = """\
# what may be run
/opt/backup.sh --all

env: PATH=/usr/bin
user: backup
shell: /bin/bash
echo allowed
"""


def test_only_what_stands_in_the_allow_list_is_run():
    allowed = read_allowed(LIST, "commands")
    assert execute("echo allowed", allowed=allowed)["output"] == "allowed\n"
    assert execute("echo allowed", allowed=allowed, env={"PATH": "/usr/bin"}, shell="/bin/bash")
    for payload, line in (
        ({"command": "echo allowed; rm -rf /"}, "echo allowed; rm -rf /"),
        ({"command": "echo"}, "echo"),
        ({"command": "# what may be run"}, "# what may be run"),
        ({"command": "echo allowed", "env": {"LD_PRELOAD": "x"}}, "env: LD_PRELOAD=x"),
        ({"command": "echo allowed", "env": {"PATH": "/tmp"}}, "env: PATH=/tmp"),
        ({"command": "echo allowed", "shell": "/bin/dash"}, "shell: /bin/dash"),
        ({"command": "echo allowed", "user": "root"}, "user: root"),
    ):
        error = failure(Fail, **payload, allowed=allowed)
        assert f"is not in the allow-list commands; its line would be: {line}" in error


def test_an_empty_allow_list_allows_nothing():
    assert "not in the allow-list" in failure(Fail, "true", allowed=Allowed(file="f"))


def test_another_user_needs_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 65_534)
    assert "is root's, and this worker is run by nobody" in failure(Fail, "true", user="root")
    monkeypatch.undo()
    assert "there is no user" in failure(Fail, "true", user="no-such-user")
    own = pwd.getpwuid(os.geteuid()).pw_name
    assert execute("id -un", user=own)["output"].strip() == own


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "not an object"),
        (b"{}", "no command"),
        (b'{"command": " "}', "no command"),
        (b'{"command": 5}', "command is not text"),
        (b'{"command": "a\\u0000b"}', "without NUL"),
        (b'{"command": "x", "cmd": "y"}', "'cmd', which shell.run does not know"),
        (b'{"command": "x", "env": {"a=b": "c"}}', "'a=b'"),
        (b'{"command": "x", "env": {"a": 5}}', "'a'"),
        (b'{"command": "x", "env": 5}', "env"),
    ],
)
def test_a_payload_that_is_no_order_is_dead_at_once(payload, says):
    with pytest.raises(Fail, match=says):
        Shell(None).execute(a_run(), payload)


# ------------------------------------------------------------------------------ worker


def test_a_worker_runs_a_command_and_keeps_its_output():
    app = App()
    Shell(None).register(app)
    with FakeServer() as server, Client(server.url) as client:
        job = client.schedule_in(0, "shell.run", {"command": "echo 日報; cat", "stdin": "x\n"})
        worker = Worker(app, server.url, wait="1s")
        thread = threading.Thread(target=worker.run)
        thread.start()
        with server.changed:
            assert server.changed.wait_for(lambda: server.jobs[job.id].result, WAIT_S)
        worker.stop()
        thread.join(WAIT_S)
    assert json.loads(server.jobs[job.id].result) == {"exit": 0, "output": "日報\nx\n"}


def test_a_worker_tells_how_a_command_failed_and_what_it_wrote():
    app = App()
    Shell(None).register(app)
    with FakeServer() as server, Client(server.url) as client:
        job = client.schedule_in(0, "shell.run", {"command": "yes 日報 | head -c 9000; exit 7"})
        worker = Worker(app, server.url, wait="1s")
        thread = threading.Thread(target=worker.run)
        thread.start()
        with server.changed:
            assert server.changed.wait_for(lambda: server.jobs[job.id].result, WAIT_S)
        worker.stop()
        thread.join(WAIT_S)
    assert server.jobs[job.id].result == ("日報\n".encode() * 2000)[:9000][-4096:]


def test_no_worker_serves_it_unless_it_is_asked_for():
    assert "shell.run" not in App().handlers


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "MODULE:APP"),
        (["--shell"], "--shell-allow FILE, or --shell-any"),
        (["--shell", "--shell-any", "--shell-allow", "f"], "not both"),
        (["a:b", "--shell-any"], "belong to --shell"),
        (["--shell", "--shell-allow", "/no/such/file"], "No such file"),
    ],
)
def test_the_command_line_wants_to_know_what_may_be_run(argv, says, capsys):
    assert wheeld.main(["work", *argv]) == 2
    assert says in capsys.readouterr().err
