"""What a start that is given up says, and its exit status."""

import errno
from pathlib import Path

import pytest

from server.auth import TokenFileError
from server.listener import ListenError
from server.refusals import ERRORS, refusal
from server.replay import ReplayError
from server.settings import SettingsError
from wal.errors import DiskFullError, LockedError, LogFailedError, RefusedError, Rule
from wheel.errors import CoreMemoryError

DATA = Path("/srv/wheeld")
DAMAGED = RefusedError(
    rule=Rule.NOT_TORN, path="/srv/wheeld/wal/1.wal", detail="it is damaged", offset=4096, lsn=7
)
FAILED = LogFailedError(
    call="pwrite", path="/srv/wheeld/wal/1.wal", offset=0, lsn=7, errno=5, reason="Input error"
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SettingsError("x"), 78),
        (TokenFileError("x"), 78),
        (LockedError(path="/srv/wheeld/LOCK", pid=12), 78),
        (DAMAGED, 78),
        (ReplayError(CoreMemoryError("x"), segment=1, offset_bytes=4096, lsn=7), 78),
        (CoreMemoryError("x"), 78),
        (PermissionError(errno.EACCES, "Permission denied", "/srv/wheeld"), 78),
        (OSError(errno.EROFS, "Read-only file system", "/srv/wheeld"), 74),
        (OSError(errno.EIO, "Input/output error", "/srv/wheeld/MARK"), 74),
        (OSError(errno.ENOSPC, "No space left on device"), 74),
        (OSError(errno.EFBIG, "File too large", "/srv/wheeld/MARK"), 74),
        (FAILED, 74),
        (DiskFullError("x"), 78),
        (ListenError("x"), 1),
    ],
)
def test_status_says_whether_to_look_to_mend_the_disk_or_to_try_again(error, status):
    assert isinstance(error, ERRORS)
    found, fields = refusal(error, DATA)
    assert found == status
    assert fields["error"]


def test_damage_is_told_with_file_offset_lsn_and_what_to_do():
    _, fields = refusal(DAMAGED, DATA)
    assert (fields["file"], fields["offset_bytes"], fields["lsn"]) == (
        "/srv/wheeld/wal/1.wal",
        4096,
        7,
    )
    assert "wheeld wal verify /srv/wheeld" in str(fields["hint"])


def test_locked_directory_names_the_process():
    _, fields = refusal(LockedError(path="/srv/wheeld/LOCK", pid=12), DATA)
    assert "12" in str(fields["error"])


def test_file_call_that_fails_names_its_file_or_else_the_data_directory():
    assert refusal(OSError(errno.EIO, "x", "/srv/wheeld/MARK"), DATA)[1]["file"] == (
        "/srv/wheeld/MARK"
    )
    assert refusal(OSError(errno.EIO, "x"), DATA)[1]["file"] == "/srv/wheeld"
