"""The systemd unit: what it promises, what systemd says of it, and that the server lives in it."""

import configparser
import ctypes
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process import ROOT
from tests.sandbox import NUMBERS, allowed
from wheel.wire import ReplyError

UNIT = ROOT / "packaging" / "systemd" / "wheeld.service"
EXPOSURE_MAX = 2.0
MDWE_PRCTL, MDWE_REFUSE_EXEC_GAIN = 65, 1


@pytest.fixture(scope="module")
def service():
    """The unit's [Service]; a key that stands twice has all its values."""
    values = {}
    section = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
    return values


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Type", "notify"),
        ("WatchdogSec", "30"),
        ("Restart", "on-failure"),
        ("RestartPreventExitStatus", "74 78"),
        ("ExecReload", "/bin/kill -HUP $MAINPID"),
        ("User", "wheeld"),
        ("StateDirectory", "wheeld"),
        ("StateDirectoryMode", "0700"),
        ("UMask", "0077"),
        ("LimitNOFILE", "65536"),
        ("LimitCORE", "0"),
        ("OOMScoreAdjust", "-500"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("ProtectKernelLogs", "yes"),
        ("ProtectKernelModules", "yes"),
        ("ProtectKernelTunables", "yes"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
        ("RestrictNamespaces", "yes"),
        ("MemoryDenyWriteExecute", "yes"),
        ("LockPersonality", "yes"),
        ("CapabilityBoundingSet", ""),
    ],
)
def test_unit_has_the_line(service, key, value):
    assert service[key] == [value]


def test_system_calls_are_those_of_a_service_without_privileges(service):
    assert service["SystemCallFilter"] == ["@system-service", "~@privileged @resources"]


def test_unit_is_one_that_a_parser_of_its_form_reads():
    parser = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    assert parser.sections() == ["Unit", "Service", "Install"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_finds_little_exposure():
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    (exposure,) = re.findall(r"Overall exposure level for wheeld\.service: ([0-9.]+)", done.stdout)
    assert float(exposure) <= EXPOSURE_MAX


@pytest.mark.crash
def test_server_tells_its_supervisor_when_it_serves_lives_and_stops(server, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(60)
        server.start(env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"})
        assert supervisor.recv(1000).startswith(b"READY=1\nSTATUS=serving on 127.0.0.1:")
        assert supervisor.recv(1000) == b"WATCHDOG=1"
        assert server.terminate() == 0
        said = supervisor.recv(1000)
        while said == b"WATCHDOG=1":
            said = supervisor.recv(1000)
        assert said.startswith(b"STOPPING=1")


def has_mdwe():
    """Return whether this kernel can refuse memory that is written and run (6.3)."""
    return tuple(map(int, re.findall(r"[0-9]+", os.uname().release)[:2])) >= (6, 3)


@pytest.mark.crash
@pytest.mark.skipif(not has_mdwe(), reason="not run: this kernel has no PR_SET_MDWE")
def test_server_needs_no_memory_that_is_written_and_run(server):
    """As with MemoryDenyWriteExecute=: the kernel refuses it to this process and its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            refused = libc.prctl(MDWE_PRCTL, MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
            if refused == 0:
                server.start()
                answered = server.call("SCHEDULE", "h", "now", "x"), server.call("LEASE", "h")
                status = 0 if len(answered[1]) == 1 and server.terminate() == 0 else 1
        finally:
            server.close()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def may_filter():
    """Return whether the unit's filter can be put in force here."""
    return (
        platform.machine() == "x86_64"
        and NUMBERS.exists()
        and shutil.which("systemd-analyze") is not None
    )


@pytest.mark.crash
@pytest.mark.skipif(not may_filter(), reason="not run: no systemd-analyze for this machine")
def test_server_lives_with_the_system_calls_that_the_unit_leaves_it(server):
    """Start, work, checkpoint, token file, stop and the next start; and the filter is in force."""
    serve = type(server).command
    confined = [sys.executable, "-P", "-m", "tests.sandbox"]
    setattr(server, "command", lambda *more: [*confined, *serve(server, *more)])  # noqa: B010
    server.env = {"PYTHONPATH": str(ROOT)}
    server.start("--segment-size", "4M")
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE)
    with server.connect() as connection:
        connection.send(*[("SCHEDULE", "h", "now", b"x" * 60_000)] * 150)  # over a rotation
        assert all(isinstance(connection.read(), bytes) for _ in range(150))
        [job, *_] = connection.call("LEASE", "h", "COUNT", 3)
        assert connection.call("ACK", job[0]) == ["OK"]
        assert connection.call("CRON", "SET", "n", "* * * * *", "h", "{}")[1] == b"created"
        assert not isinstance(connection.call("SAVE"), ReplyError)
    server.signal(signal.SIGHUP)
    assert server.terminate() == 0
    server.start("--segment-size", "4M")
    assert server.call("COUNT") == 149
    assert server.terminate() == 0


@pytest.mark.skipif(not may_filter(), reason="not run: no systemd-analyze for this machine")
def test_the_unit_leaves_no_call_with_privileges():
    names = allowed()
    assert {"read", "fdatasync", "accept4"} <= names
    assert not {"mount", "setrlimit", "ptrace", "reboot", "bpf", "chroot"} & names
