"""Who may be listened to, and where."""

import socket

import pytest

from server.auth import TOKEN_BYTES, Role, Tokens, mint
from server.listener import ListenError, check_exposure, open_sockets, shown_address
from server.settings import SettingsError

TOKENS = Tokens((mint("ann", Role.ADMIN, (), bytes(TOKEN_BYTES))[1],))
V4 = socket.AddressFamily.AF_INET


@pytest.mark.parametrize("tokens", [None, Tokens()])
@pytest.mark.parametrize("addresses", [["0.0.0.0"], ["127.0.0.1", "10.0.0.1"], ["::"]])
def test_address_that_others_reach_needs_a_token_and_the_refusal_names_both_options(
    tokens, addresses
):
    with pytest.raises(SettingsError) as raised:
        check_exposure("somehost", addresses, tokens)
    assert "--listen" in str(raised.value)
    assert "--token-file" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_address_that_others_reach_is_fine_with_a_token():
    check_exposure("0.0.0.0", ["0.0.0.0"], TOKENS)


def test_loopback_needs_no_token():
    check_exposure("localhost", ["127.0.0.1", "::1"], None)


def test_port_0_is_a_free_port_that_is_shown():
    (listener,) = open_sockets([(V4, "127.0.0.1")], 0)
    with listener:
        port = listener.getsockname()[1]
        assert port > 0
        assert shown_address(listener) == f"127.0.0.1:{port}"


def test_several_addresses_share_the_port():
    listeners = open_sockets([(V4, "127.0.0.1"), (V4, "127.0.0.2")], 0)
    ports = {listener.getsockname()[1] for listener in listeners}
    for listener in listeners:
        listener.close()
    assert len(ports) == 1


def test_address_of_another_machine_is_not_said_to_be_in_use():
    with pytest.raises(ListenError) as raised:
        open_sockets([(V4, "192.0.2.1")], 0)
    assert "this machine does not have that address" in str(raised.value)
    assert "another server" not in str(raised.value)


def test_port_in_use_is_refused_by_address_and_nothing_stays_open():
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ListenError) as raised:
            open_sockets([(V4, "127.0.0.1"), (V4, "127.0.0.2")], port)
        assert str(raised.value) == (
            f"cannot listen on 127.0.0.2 port {port}: address already in use; is another server"
            " running there? --listen and --tls-listen take another address"
        )
        with socket.create_server(("127.0.0.1", port)):
            pass
