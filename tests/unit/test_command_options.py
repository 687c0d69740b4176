"""Wrong values of options: told with the option's name, before anything is begun."""

import subprocess
import sys
from pathlib import Path

import pytest

import server.daemon
import wheeld


NOBODY = "wheeld://127.0.0.1:1"


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """What `wheeld serve` would run with; nothing is run, and the current folder is empty."""
    monkeypatch.chdir(tmp_path)
    settings = []

    def serve(wanted, **_):
        settings.append(wanted)
        return 0

    monkeypatch.setattr(server.daemon, "serve", serve)
    return settings


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["serve", "--data", ""], "--data"),
        (["serve", "--token-file", ""], "--token-file"),
        (["serve", "--tls-cert", ""], "--tls-cert"),
        (["backup", ""], "TARGET"),
        (["backup", "x", "--data", ""], "--data"),
        (["restore", "", "--to", "x"], "FILE"),
        (["restore", "x", "--to", ""], "--to"),
        (["restore", "x", "--to", "y", "--compare-with", ""], "--compare-with"),
        (["wal", "verify", ""], "DATA"),
        (["wal", "inspect", ""], "PATH"),
        (["token", "list", "--token-file", ""], "--token-file"),
    ],
)
def test_an_empty_path_is_refused_and_not_the_current_folder(
    begun, tmp_path, capsys, words, option
):
    """`--data "$NOT_SET"` made a data directory of whatever folder one stood in."""
    assert wheeld.main(words) == 2
    said = capsys.readouterr().err
    assert option in said
    assert "it is empty" in said
    assert not begun
    assert list(tmp_path.iterdir()) == []


def run(words, **options):
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-P", wheeld.__file__, *words],
        env={"PYTHONPATH": str(Path(wheeld.__file__).parent), "WHEELD_URL": NOBODY},
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
        **options,
    )


def test_output_that_cannot_be_written_is_one_sentence():
    with Path("/dev/full").open("wb") as full:
        done = run(["version"], stdout=full)
    told = b"Error: the output cannot be written: no space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.parametrize(
    "words",
    [
        ["schedule", "--in", "1s", "h", b"\xff"],
        ["jobs", "list", b"key:\xff*"],
        ["cron", "add", b"\xff", "@daily", "h"],
        ["token", "create", b"\xff", "viewer", "--token-file", "none"],
    ],
)
def test_an_argument_that_is_not_utf8_is_one_sentence(words, tmp_path):
    done = run(words, stdout=subprocess.PIPE, cwd=tmp_path)
    assert b"Traceback" not in done.stderr
    assert b"Error: " in done.stderr
    assert done.returncode == 2
