"""The token file and who may sign in with it."""

import hashlib
import os
import stat
import threading
from collections import Counter
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.auth import (
    TOKEN_BYTES,
    Role,
    TokenFileError,
    Tokens,
    add_token,
    mint,
    parse_role,
    parse_tokens,
    read_tokens,
    remove_token,
)

SECRET = "wd_" + "ab" * 32
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


def test_line_holds_name_role_globs_and_hash():
    (token,) = parse_tokens(f"# who\n\n  ann worker:mail.*,pay {DIGEST}  \n", "t").lines
    assert (token.name, token.role, token.globs) == ("ann", Role.WORKER, ("mail.*", "pay"))
    assert token.digest.hex() == DIGEST


def test_token_is_found_by_its_text_alone_or_with_its_name():
    tokens = parse_tokens(f"bob viewer {'0' * 64}\nann admin {DIGEST}\n", "t")
    for name in (None, "default", "ann"):
        found = tokens.find(name, SECRET.encode(), 0)
        assert found is not None
        assert found.name == "ann"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("bob", SECRET),
        ("", SECRET),
        (None, SECRET[:-1]),
        (None, SECRET + " "),
        (None, ""),
        (None, DIGEST),
        ("ann", SECRET.upper()),
    ],
)
def test_other_name_or_text_finds_nothing(name, secret):
    tokens = parse_tokens(f"bob viewer {'0' * 64}\nann admin {DIGEST}\n", "t")
    assert tokens.find(name, secret.encode(), 0) is None


def test_no_tokens_let_nobody_in():
    assert Tokens().find(None, b"", 0) is None


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("ann admin", "name role"),
        (f"ann admin {DIGEST} more", "created=T and expires=T"),
        (f"ann admin {DIGEST} expires=soon", "not a time"),
        (f"ann admin {DIGEST} expires=2026-12-24T09:00:00", "not a time"),
        (f"ann admin {DIGEST} expires=2026-12-24T09:00Z expires=2026-12-25T09:00Z", "alone"),
        (f"ann worker:{'a,' * 3000}a {DIGEST}", "at most 4096"),
        (f"ann root {DIGEST}", "'root' is not a role"),
        (f"ann ADMIN {DIGEST}", "'ADMIN' is not a role"),
        (f"ann worker: {DIGEST}", "handler name"),
        (f"ann worker:a*b {DIGEST}", "handler name"),
        (f"ann admin {DIGEST.upper()}", "64 hex digits"),
        (f"ann admin {DIGEST[1:]}", "64 hex digits"),
        (f"default admin {DIGEST}", "not a token name"),
        (f"a/b admin {DIGEST}", "not a token name"),
        (f"{'n' * 64} admin {DIGEST}", "not a token name"),
    ],
)
def test_wrong_line_is_refused_with_file_and_number(line, what):
    with pytest.raises(TokenFileError) as raised:
        parse_tokens(f"# first\n{line}\n", "/etc/tokens")
    assert "/etc/tokens, line 2" in str(raised.value)
    assert what in str(raised.value)


def test_error_about_a_line_does_not_show_its_hash():
    with pytest.raises(TokenFileError) as raised:
        parse_tokens(f"ann admin {DIGEST}x\n", "t")
    assert DIGEST not in str(raised.value)


def test_second_token_of_a_name_is_refused():
    with pytest.raises(TokenFileError, match="second token 'ann'"):
        parse_tokens(f"ann admin {DIGEST}\nann viewer {'0' * 64}\n", "t")


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_file_for_its_owner_alone_is_read(tmp_path, mode):
    path = write(tmp_path / "tokens", f"ann admin {DIGEST}\n", mode)
    assert len(read_tokens(path).lines) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o700, 0o610, 0o601])
def test_file_that_others_can_reach_is_refused(tmp_path, mode):
    path = write(tmp_path / "tokens", f"ann admin {DIGEST}\n", mode)
    with pytest.raises(TokenFileError, match="chmod 600"):
        read_tokens(path)


def test_missing_folder_and_binary_file_are_refused_by_name(tmp_path):
    with pytest.raises(TokenFileError, match="none"):
        read_tokens(tmp_path / "none")
    with pytest.raises(TokenFileError, match="regular file"):
        read_tokens(tmp_path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    binary.chmod(0o600)
    with pytest.raises(TokenFileError, match="binary"):
        read_tokens(binary)


def test_made_token_signs_in_and_its_text_is_not_in_the_file(tmp_path):
    path = tmp_path / "sub" / "tokens"
    secret, token = mint("ann", Role.WORKER, ("mail.*",), bytes(range(TOKEN_BYTES)))
    add_token(path, token)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in path.read_text()
    assert read_tokens(path).find("ann", secret.encode(), 0) == token


def test_added_line_leaves_the_others_and_their_comments(tmp_path):
    path = write(tmp_path / "tokens", f"# keep me\nann admin {DIGEST}")
    add_token(path, mint("bob", Role.VIEWER, (), bytes(TOKEN_BYTES))[1])
    assert path.read_text().startswith(f"# keep me\nann admin {DIGEST}\nbob viewer ")
    assert [token.name for token in read_tokens(path).lines] == ["ann", "bob"]


def test_name_that_is_there_is_not_added_and_the_file_stays(tmp_path):
    path = write(tmp_path / "tokens", f"ann admin {DIGEST}\n")
    with pytest.raises(TokenFileError, match="already"):
        add_token(path, mint("ann", Role.VIEWER, (), bytes(TOKEN_BYTES))[1])
    assert path.read_text() == f"ann admin {DIGEST}\n"


def test_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = write(tmp_path / "tokens", f"ann admin {DIGEST}\n")

    def fail(_fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        add_token(path, mint("bob", Role.VIEWER, (), bytes(TOKEN_BYTES))[1])
    assert path.read_text() == f"ann admin {DIGEST}\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokens"]


def test_tokens_added_at_once_are_all_there(tmp_path):
    path = tmp_path / "tokens"
    made = [mint(f"t{i}", Role.VIEWER, (), bytes([i] * TOKEN_BYTES))[1] for i in range(8)]
    threads = [threading.Thread(target=add_token, args=(path, token)) for token in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(token.name for token in read_tokens(path).lines) == [f"t{i}" for i in range(8)]


TIMES = st.none() | st.integers(0, 1 << 47)


@given(
    st.sampled_from(list(Role)),
    st.lists(st.from_regex(r"[a-z][a-z.]{0,20}\*?", fullmatch=True), max_size=4),
    TIMES,
    TIMES,
)
def test_line_that_was_written_reads_back(role, globs, created_ms, expires_ms):
    token = mint(
        "ann",
        role,
        tuple(globs) if role.takes_globs else (),
        bytes(TOKEN_BYTES),
        created_ms=created_ms,
        expires_ms=expires_ms,
    )[1]
    assert parse_tokens(token.line(), "t").lines == (token,)


def test_token_of_the_past_lets_nobody_in():
    at_ms = 1_798_102_800_000
    tokens = parse_tokens(f"ann admin {DIGEST} expires=2026-12-24T10:00:00+01:00", "t")
    assert tokens.find("ann", SECRET.encode(), at_ms - 1) is not None
    assert tokens.named("ann", at_ms - 1) is not None
    assert tokens.find("ann", SECRET.encode(), at_ms) is None
    assert tokens.named("ann", at_ms) is None


def test_certificate_line_has_no_secret_that_could_be_sent():
    tokens = parse_tokens("ann admin cert", "t")
    assert tokens.named("ann", 0) is not None
    for secret in (b"", b"cert"):
        assert tokens.find("ann", secret, 0) is None


def test_role_that_cannot_be_limited_takes_no_globs():
    for role in ("viewer", "operator", "admin"):
        with pytest.raises(ValueError, match="only producer and worker"):
            parse_role(f"{role}:mail.*")
    assert parse_role("producer:a,b*") == (Role.PRODUCER, ("a", "b*"))


def test_removed_line_leaves_the_others_and_their_comments(tmp_path):
    path = write(tmp_path / "tokens", f"# keep me\nann admin {DIGEST}\nbob viewer {'0' * 64}\n")
    remove_token(path, "ann")
    assert path.read_text() == f"# keep me\nbob viewer {'0' * 64}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(TokenFileError, match="no token 'ann'"):
        remove_token(path, "ann")


def test_role_without_globs_is_for_all_handlers():
    assert parse_role("worker") == (Role.WORKER, ())


def test_token_needs_all_its_random_bytes():
    with pytest.raises(ValueError, match="32 random bytes"):
        mint("ann", Role.ADMIN, (), bytes(16))


def test_every_flipped_bit_of_a_file_is_refused_or_changes_one_word_of_one_token():
    """The file is for people to edit, so no checksum covers it; what a bit can do is bounded.

    It never makes another role, nor a token more, nor a hash that anybody knows the secret of. It
    may change one of name, handlers, hash and times, or turn a line into a comment: harmless to
    what is stored, and shown by `wheeld token list`. (A time of expiry may become a later one.)
    """
    text = (
        "# who may do what\n"
        f"ann worker:mail.*,pay {DIGEST} created=2026-12-24T09:00:00Z\n"
        f"bob viewer {'0' * 64} expires=2027-01-01T00:00:00Z\n"
        "carol producer cert\n"
    ).encode()
    whole = parse_tokens(text.decode(), "t").lines
    seen: Counter[str] = Counter()
    for bit in range(8 * len(text)):
        changed = bytearray(text)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            lines = parse_tokens(changed.decode(), "t").lines
        except UnicodeDecodeError:
            seen["refused"] += 1  # read_tokens makes a TokenFileError of it
            continue
        except TokenFileError as error:
            assert "line " in str(error)
            seen["refused"] += 1
            continue
        if len(lines) < len(whole):
            assert set(lines) < set(whole)
            seen["a line less"] += 1
            continue
        changes = [
            one.name
            for old, new in zip(whole, lines, strict=True)
            for one in fields(old)
            if getattr(old, one.name) != getattr(new, one.name)
        ]
        assert len(changes) <= 1
        seen[changes[0] if changes else "the comment"] += 1
    assert seen["refused"] > seen.total() // 2
    assert seen["the comment"] <= 8 * text.index(b"\n")
    one_word = {"name", "globs", "digest", "created_ms", "expires_ms"}
    assert set(seen) == {"refused", "a line less", "the comment"} | one_word
