"""`wheeld wal verify` and `wheeld token create`, as a shell sees them."""

import json
import stat

import pytest

from server.auth import read_tokens
from server.commands.token import token_group
from server.commands.wal import wal_group
from wal.disk import RealDisk
from wal.frame import FsyncMode
from wal.log import open_store
from wheel.commands.output import run


@pytest.fixture
def data(tmp_path):
    """A data directory with ten frames of one record, stopped in order."""
    path = tmp_path / "data"
    store = open_store(
        str(path),
        disk=RealDisk(),
        fsync=FsyncMode.ALWAYS,
        wall_ms=1,
        new_uuid=bytes(range(16)),
        segment_bytes=1 << 16,
    )
    list(store.replay())
    log = store.start(wall_ms=1, rel_minus_boot_ms=0, boot_id=bytes(16), salt_seed=7)
    for lsn in range(1, 11):
        log.append(b"record" * 10, first_lsn=lsn, records=1, wall_ms=1, rel_ms=1)
    log.mark(clean=True)
    log.close()
    return path


def damage(data):
    (segment,) = (data / "wal").glob("*.wal")
    content = bytearray(segment.read_bytes())
    content[4096 + 80] ^= 1
    segment.write_bytes(content)
    return segment


def shell(capsys, group, *words):
    status = run(group, [str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_verify_of_a_sound_log_says_so_with_status_0(capsys, data):
    status, out, _ = shell(capsys, wal_group, "verify", data)
    assert status == 0
    assert "10 records, no damage" in out
    assert out.splitlines()[0].split()[:2] == ["segment", "records"]


def test_verify_of_a_damaged_log_names_the_place_with_status_11(capsys, data):
    segment = damage(data)
    status, out, _ = shell(capsys, wal_group, "verify", data)
    assert status == 11
    assert f"{segment} at offset 4096" in out
    assert "lsn 1" in out


def test_verify_as_json_is_one_document(capsys, data):
    status, out, _ = shell(capsys, wal_group, "verify", data, "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["damaged"], found["records"], found["next_lsn"]) == (False, 10, 11)
    assert found["segments"][0]["last_lsn"] == 10
    segment = damage(data)
    status, out, _ = shell(capsys, wal_group, "verify", data, "--json")
    refused = json.loads(out)["refused"]
    assert status == 11
    assert (refused["file"], refused["offset_bytes"], refused["lsn"]) == (str(segment), 4096, 1)


def test_verify_changes_nothing(capsys, data):
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    shell(capsys, wal_group, "verify", data)
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_verify_of_no_folder_is_refused_and_makes_none(capsys, tmp_path):
    status, _, err = shell(capsys, wal_group, "verify", tmp_path / "none")
    assert status == 3
    assert "none" in err
    assert not (tmp_path / "none").exists()


def test_created_token_is_printed_once_and_only_its_hash_is_kept(capsys, tmp_path):
    path = tmp_path / "tokens"
    words = ["create", "mailer", "worker:mail.*", "--token-file", path]
    status, out, _ = shell(capsys, token_group, *words)
    secret = out.strip()
    assert status == 0
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = read_tokens(path).find("mailer", secret.encode())
    assert token is not None
    assert token.globs == ("mail.*",)


def test_two_tokens_are_never_the_same(capsys, tmp_path):
    path = tmp_path / "tokens"
    made = {
        shell(capsys, token_group, "create", name, "admin", "--token-file", path)[1]
        for name in ("a", "b", "c")
    }
    assert len(made) == 3


def test_created_token_as_json_is_one_document(capsys, tmp_path):
    path = tmp_path / "tokens"
    words = ["create", "ann", "admin", "--token-file", path, "--json"]
    _, out, _ = shell(capsys, token_group, *words)
    made = json.loads(out)
    assert made["name"] == "ann"
    assert read_tokens(path).find("ann", made["token"].encode())


@pytest.mark.parametrize(
    ("name", "role", "status", "told"),
    [
        ("ann", "root", 2, "role"),
        ("a b", "admin", 2, "token name"),
        ("default", "admin", 2, "token name"),
    ],
)
def test_token_that_cannot_be_is_refused(capsys, tmp_path, name, role, status, told):
    path = tmp_path / "tokens"
    found, _, err = shell(capsys, token_group, "create", name, role, "--token-file", path)
    assert (found, path.exists()) == (status, False)
    assert told in err


def test_second_token_of_a_name_is_refused(capsys, tmp_path):
    path = tmp_path / "tokens"
    words = ["create", "ann", "admin", "--token-file", path]
    shell(capsys, token_group, *words)
    before = path.read_text()
    status, out, err = shell(capsys, token_group, *words)
    assert (status, out) == (1, "")
    assert "already" in err
    assert path.read_text() == before
