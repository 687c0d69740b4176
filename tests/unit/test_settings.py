"""The options of `wheeld serve` and their defaults."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.settings import (
    CLIENTS_MAX_DEFAULT,
    DEFAULT_PORT,
    MEMORY_BYTES_MIN,
    Fsync,
    Settings,
    SettingsError,
    allowed_clients_max,
    default_data,
    default_memory_bytes_max,
    is_loopback,
    machine_memory_bytes,
    parse_listen,
    parse_size_bytes,
    resolve_listen,
    shown_size,
)

HOME = Path("/home/someone")


VALID = Settings(data=Path("/d"), memory_bytes_max=1 << 30, clients_max=10)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("64k", 64 << 10),
        ("64KB", 64 << 10),
        ("512M", 512 << 20),
        ("512MiB", 512 << 20),
        (" 2g ", 2 << 30),
        ("1T", 1 << 40),
        ("1024T", 1 << 50),
    ],
)
def test_size_is_read_in_powers_of_1024(text, size_bytes):
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "M", "-1", "1.5G", "5X", "1 0", "0x10", "٣M", "1e9", "1025T", "9" * 30, "12bb"]
)
def test_what_is_not_a_size_is_refused_with_its_text(text):
    with pytest.raises(SettingsError) as raised:
        parse_size_bytes(text)
    assert repr(text) in str(raised.value)


@given(st.integers(0, 1 << 50))
def test_every_number_of_bytes_is_a_size(size_bytes):
    assert parse_size_bytes(str(size_bytes)) == size_bytes
    assert parse_size_bytes(shown_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8463", "127.0.0.1", 8463),
        ("localhost:0", "localhost", 0),
        ("localhost", "localhost", DEFAULT_PORT),
        (":7000", "127.0.0.1", 7000),
        ("[::1]:7000", "::1", 7000),
        ("[::1]", "::1", DEFAULT_PORT),
        ("0.0.0.0:65535", "0.0.0.0", 65535),
    ],
)
def test_listen_address_is_taken_apart(text, host, port):
    assert parse_listen(text) == (host, port)


@pytest.mark.parametrize("text", ["host:", "host:http", "host:65536", "::1:8463", "host:-1", "h:²"])
def test_listen_address_that_is_wrong_is_refused(text):
    with pytest.raises(SettingsError, match="--listen"):
        parse_listen(text)


def test_data_is_where_systemd_says_first():
    environ = {"STATE_DIRECTORY": "/var/lib/wheeld:/var/lib/other", "XDG_STATE_HOME": "/xdg"}
    assert default_data(environ, HOME) == Path("/var/lib/wheeld")


def test_data_is_in_the_xdg_state_folder_else():
    assert default_data({"XDG_STATE_HOME": "/xdg"}, HOME) == Path("/xdg/wheeld")
    assert default_data({}, HOME) == HOME / ".local/state/wheeld"


def test_xdg_folder_that_is_not_absolute_is_ignored_as_its_specification_says():
    assert default_data({"XDG_STATE_HOME": "xdg"}, HOME) == HOME / ".local/state/wheeld"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"port": 65_536}, "--listen"),
        ({"clients_max": 0}, "--maxclients"),
        ({"clients_max": 1_000_001}, "--maxclients"),
        ({"memory_bytes_max": MEMORY_BYTES_MIN - 1}, "--maxmemory"),
        ({"segment_bytes": (4 << 20) - 4096}, "--segment-size"),
        ({"segment_bytes": (1 << 30) + 4096}, "--segment-size"),
        ({"segment_bytes": (4 << 20) + 1}, "--segment-size"),
        ({"host": ""}, "--listen"),
        ({"data": Path("d")}, "--data"),
    ],
)
def test_option_outside_its_range_is_refused_by_name(changes, named):
    with pytest.raises(SettingsError, match=named):
        replace(VALID, **changes)


def test_fsync_modes_have_the_numbers_of_the_log_format():
    assert [(mode.value, mode.code) for mode in Fsync] == [
        ("always", 0),
        ("interval", 1),
        ("off", 2),
    ]


def test_clients_leave_descriptors_for_the_log():
    assert allowed_clients_max(None, 1024) == 960
    assert allowed_clients_max(None, 1 << 20) == CLIENTS_MAX_DEFAULT
    assert allowed_clients_max(None, 10) == 1
    assert allowed_clients_max(5, 1024) == 5
    assert allowed_clients_max(50_000, 1 << 20) == 50_000
    assert allowed_clients_max(50_000, 1024) == 960


def test_memory_is_a_share_of_the_smallest_limit():
    assert default_memory_bytes_max([8 << 30, 1 << 30]) == int(0.7 * (1 << 30))
    assert default_memory_bytes_max([1 << 20]) == MEMORY_BYTES_MIN


def test_memory_limit_of_the_own_control_group_and_of_those_around_it_counts(tmp_path):
    group = tmp_path / "sys/fs/cgroup/system.slice/wheeld.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("300000000\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/wheeld.service\n")
    assert 300_000_000 in machine_memory_bytes(tmp_path)


def test_machine_without_control_groups_has_its_memory_alone(tmp_path):
    assert len(machine_memory_bytes(tmp_path)) == 1


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("128.0.0.1", False),
        ("192.168.1.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_loopback_is_127_slash_8_and_1(address, loopback):
    assert is_loopback(address) is loopback


def test_numeric_address_resolves_to_itself():
    assert [address for _, address in resolve_listen("127.0.0.1", 0)] == ["127.0.0.1"]
    assert [address for _, address in resolve_listen("0.0.0.0", 0)] == ["0.0.0.0"]


def test_name_that_does_not_resolve_is_refused_by_name():
    with pytest.raises(SettingsError, match=r"no-such-host\.invalid"):
        resolve_listen("no-such-host.invalid", 0)
