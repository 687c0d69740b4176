"""`wheeld wal verify`, `backup` and `token`, as a shell sees them."""

import json
import socket
import stat

import pytest

import wheeld
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


@pytest.fixture
def nobody():
    """The URL of a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"wheeld://127.0.0.1:{taken.getsockname()[1]}"


def test_backup_of_a_named_server_that_is_not_there_copies_no_other_store(
    capsys, data, nobody, tmp_path, monkeypatch
):
    """It copied the default directory, another store, and said nothing of the server."""
    monkeypatch.setenv("STATE_DIRECTORY", str(data))
    target = tmp_path / "b"
    assert wheeld.main(["backup", str(target), "--url", nobody]) == 4
    said = capsys.readouterr().err
    assert nobody in said
    assert "--data" in said
    assert not target.exists()
    monkeypatch.setenv("WHEELD_URL", nobody)
    assert wheeld.main(["backup", str(target), "--data", str(data)]) == 0


def test_backup_into_a_folder_that_is_not_there_names_it_and_not_the_store(capsys, data, tmp_path):
    target = tmp_path / "none" / "b"
    assert wheeld.main(["backup", str(target), "--data", str(data)]) == 1
    assert capsys.readouterr().err == f"Error: {tmp_path}/none: no such file or directory\n"


def test_created_token_is_printed_once_and_only_its_hash_is_kept(capsys, tmp_path):
    path = tmp_path / "tokens"
    words = ["create", "mailer", "worker:mail.*", "--token-file", path]
    status, out, _ = shell(capsys, token_group, *words)
    secret = out.strip()
    assert status == 0
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = read_tokens(path).find("mailer", secret.encode(), 0)
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
    assert read_tokens(path).find("ann", made["token"].encode(), 0)


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


def test_token_may_have_an_end(capsys, tmp_path):
    path = tmp_path / "tokens"
    for name, when in (("a", "30d"), ("b", "2126-12-24T09:00:00+01:00")):
        words = ["create", name, "viewer", "--expires", when, "--token-file", path]
        assert shell(capsys, token_group, *words)[0] == 0
    first, second = read_tokens(path).lines
    assert first.expires_ms == first.created_ms + 30 * 86_400_000
    assert second.line().endswith("expires=2126-12-24T08:00:00.000Z")


@pytest.mark.parametrize("when", ["soon", "2126-12-24T09:00:00", "4000000d", "-1d"])
def test_token_with_an_end_that_is_none_is_refused(capsys, tmp_path, when):
    path = tmp_path / "tokens"
    words = ["create", "a", "viewer", "--expires", when, "--token-file", path]
    status, _, err = shell(capsys, token_group, *words)
    assert (status, path.exists()) == (2, False)
    assert when in err


def test_certificate_needs_no_secret_and_none_is_shown(capsys, tmp_path):
    path = tmp_path / "tokens"
    words = ["create", "mailer", "worker:mail.*", "--certificate", "--token-file", path]
    status, out, err = shell(capsys, token_group, *words)
    assert (status, out) == (0, "")
    assert "certificate" in err
    (token,) = read_tokens(path).lines
    assert (token.name, token.digest, token.globs) == ("mailer", b"", ("mail.*",))


def test_list_shows_everything_but_the_secret(capsys, tmp_path):
    path = tmp_path / "tokens"
    shell(capsys, token_group, "create", "mailer", "worker:mail.*,pay", "--token-file", path)
    with path.open("a") as file:
        file.write(f"old viewer {'a' * 64} expires=2020-01-01T00:00:00Z\nca admin cert\n")
    status, out, _ = shell(capsys, token_group, "list", "--token-file", path)
    first, second, third = [line.split("\t") for line in out.splitlines()]
    assert status == 0
    assert (first[:4], first[5:]) == (["mailer", "worker", "mail.*,pay", "token"], ["", ""])
    assert second == ["old", "viewer", "*", "token", "", "2020-01-01T00:00:00Z", "expired"]
    assert third == ["ca", "admin", "*", "certificate", "", "", ""]
    _, out, _ = shell(capsys, token_group, "list", "--token-file", path, "--json")
    rows = json.loads(out)["items"]
    assert [(row["name"], row["role"], row["expired"]) for row in rows] == [
        ("mailer", "worker:mail.*,pay", False),
        ("old", "viewer", True),
        ("ca", "admin", False),
    ]
    for token in read_tokens(path).lines:
        assert not token.digest or token.digest.hex() not in out


def test_revoked_token_is_gone_and_the_others_stay(capsys, tmp_path):
    path = tmp_path / "tokens"
    for name in ("a", "ab", "b"):
        shell(capsys, token_group, "create", name, "viewer", "--token-file", path)
    status, _, err = shell(capsys, token_group, "revoke", "a", "--token-file", path)
    assert status == 0
    assert "SIGHUP" in err
    assert [token.name for token in read_tokens(path).lines] == ["ab", "b"]
    status, _, err = shell(capsys, token_group, "revoke", "a", "--token-file", path)
    assert status == 1
    assert "no token 'a'" in err


def test_list_and_revoke_of_no_file_are_refused_and_make_none(capsys, tmp_path):
    path = tmp_path / "sub" / "tokens"
    for words in (("list",), ("revoke", "a")):
        status, _, err = shell(capsys, token_group, *words, "--token-file", path)
        assert (status, path.exists(), path.parent.exists()) == (1, False, False)
        assert "tokens" in err
