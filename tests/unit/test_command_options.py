"""Wrong values of options: told with the option's name, before anything is begun."""

import pytest

import server.daemon
import wheeld


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
