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


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["serve", "--dead-kept", "5"], "'--dead-kept'"),
        (["serve", "--maxmemory", "5Q"], "'--maxmemory'"),
        (["serve", "--segment-size", "x"], "'--segment-size'"),
        (["serve", "--checkpoint-after", "x"], "'--checkpoint-after'"),
        (["serve", "--scrub", "x"], "'--scrub'"),
        (["work", "--shell", "--shell-any", "--drain", "x"], "'--drain'"),
        (["work", "--shell", "--shell-any", "--lease", "5"], "'--lease'"),
        (["work", "--shell", "--shell-any", "--lease", "0s"], "'--lease'"),
        (["schedule", "--in", "5", "h"], "'--in'"),
        (["schedule", "--in", "-5s", "h"], "'--in'"),
        (["schedule", "--at", "tomorrow", "h"], "'--at'"),
        (["schedule", "--at", "2027-01-01T09:00", "h"], "'--at'"),
        (["schedule", "--in", "5s", "h", "--window", "x"], "'--window'"),
        (["schedule", "--in", "5s", "h", "--timeout", "x"], "'--timeout'"),
        (["schedule", "--in", "5s", "h", "--retries", "1001"], "'--retries'"),
        (["cron", "add", "n", "@daily", "h", "--jitter", "x"], "'--jitter'"),
        (["cron", "add", "n", "@daily", "h", "--start", "2027-01-01"], "'--start'"),
        (["cron", "add", "n", "@daily", "h", "--end", "x"], "'--end'"),
        (["cron", "add", "n", "@daily", "h", "--catch-up-window", "x"], "'--catch-up-window'"),
        (["cron", "add", "n", "@daily", "h", "--backoff", "x"], "'--backoff'"),
        (["cron", "add", "n", "@daily", "h", "--backoff", "exp:x"], "'--backoff'"),
        (["cron", "add", "n", "@daily", "h", "--lease", "x"], "'--lease'"),
        (["cron", "add", "n", "@daily", "h", "--timeout", "x"], "'--timeout'"),
        (["cron", "add", "n", "@daily", "h", "--expire", "x"], "'--expire'"),
        (["cron", "explain", "@daily", "--from", "x"], "'--from'"),
        (["cron", "trigger", "n", "--at", "x"], "'--at'"),
        (["cron", "trigger", "n", "--in", "x"], "'--in'"),
        (["cron", "backfill", "n", "x", "now"], "'FROM'"),
        (["cron", "backfill", "n", "now", "x"], "'TO'"),
        (["dag", "backfill", "n", "x", "now"], "'FROM'"),
        (["dag", "backfill", "n", "now", "x"], "'TO'"),
    ],
)
def test_a_wrong_value_is_told_with_its_option(begun, monkeypatch, capsys, words, option):
    """Some commands have five durations, and `'x' is not a duration` was all that was said."""
    monkeypatch.setenv("WHEELD_URL", NOBODY)
    assert wheeld.main(words) == 2
    assert f"Invalid value for {option}: " in capsys.readouterr().err
    assert not begun


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--maxmemory", "1"], "--maxmemory is 1; it must be 16M to 1024T"),
        (["--segment-size", "3G"], "--segment-size is 3G; it must be 4M to 1G"),
        (["--checkpoint-after", "0"], "--checkpoint-after is 0; it must be 1M to 1024T"),
        (["--dead-kept", "0s"], "--dead-kept must be 1s to 36500d"),
        (["--keep-checkpoints", "9"], "--keep-checkpoints is 9; it must be 1 to 4"),
    ],
)
def test_a_range_is_told_in_the_units_that_are_written(begun, capsys, words, says):
    assert wheeld.main(["serve", *words]) == 2
    assert says in capsys.readouterr().err
    assert not begun


def test_a_token_that_has_ended_already_is_not_made(capsys, tmp_path):
    words = ["token", "create", "a", "viewer", "--token-file", str(tmp_path / "t")]
    assert wheeld.main([*words, "--expires", "2020-01-01T00:00Z"]) == 2
    assert "--expires 2020-01-01T00:00Z has passed" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


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


@pytest.mark.parametrize(("code", "said"), [("0", "status 0"), ("'no config'", "no config")])
def test_an_app_that_exits_while_it_is_imported_is_no_worker_that_stopped(tmp_path, code, said):
    """With sys.exit(0) in it, `wheeld work` ended with 0 and without a word."""
    (tmp_path / "leaves.py").write_text(f"import sys\nsys.exit({code})\n")
    done = run(["work", "leaves:app"], stdout=subprocess.PIPE, cwd=tmp_path)
    told = "Error: 'leaves' ended the program while it was imported"
    assert done.stderr.decode().startswith(told)
    assert said in done.stderr.decode()
    assert done.returncode == 1
