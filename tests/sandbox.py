"""A process under the system call filter of the systemd unit, without systemd.

``python -m tests.sandbox COMMAND...`` reads ``SystemCallFilter=`` of the unit, asks systemd-analyze
what its sets stand for, and lets the kernel answer everything else with EPERM, as the unit says.
Execve is let through, for the command itself.
"""

import ctypes
import os
import re
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from tests.process import ROOT

UNIT: Final = ROOT / "packaging" / "systemd" / "wheeld.service"
NUMBERS: Final = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LD_NR, JEQ, RET = 0x20, 0x15, 0x06  # BPF: load the call's number, compare, answer
ALLOW, ERRNO, EPERM = 0x7FFF0000, 0x00050000, 1


@cache
def calls_of(group: str) -> frozenset[str]:
    """Return the system calls of a set, those of the sets in it included."""
    done = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", group],
        capture_output=True,
        text=True,
        check=True,
    )
    found: set[str] = set()
    for line in done.stdout.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            found |= calls_of(word)
        elif word and not word.startswith("#"):
            found.add(word)
    return frozenset(found)


def allowed() -> frozenset[str]:
    """Return the system calls that the unit leaves to the server."""
    lines = re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE)
    found: set[str] = set()
    for line in lines:
        groups = line.removeprefix("~").split()
        calls = frozenset[str]().union(*map(calls_of, groups))
        found = found - calls if line.startswith("~") else found | calls
    return frozenset(found)


def program(names: frozenset[str]) -> bytes:
    """Return a filter that allows these calls of this machine and no other."""
    known = dict(re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text()))
    numbers = sorted(int(known[name]) for name in names if name in known)
    code = [struct.pack("HBBI", LD_NR, 0, 0, 0)]
    for number in numbers:  # on the next instruction or over it
        code.append(struct.pack("HBBI", JEQ, 0, 1, number))
        code.append(struct.pack("HBBI", RET, 0, 0, ALLOW))
    return b"".join([*code, struct.pack("HBBI", RET, 0, 0, ERRNO | EPERM)])


def confine(code: bytes) -> None:
    """Put this process under a filter for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_ = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_
    ):
        raise OSError(ctypes.get_errno(), "no filter")


if __name__ == "__main__":
    confine(program(allowed() | {"execve"}))
    os.execv(sys.argv[1], sys.argv[1:])
