"""Which user has connected, and who listens, from the kernel's own tables."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import closing, contextmanager

import pytest

from atoll.host import tcp_diag
from atoll.host.listening_sockets import family_of
from atoll.host.tcp_diag import Diag, PeerUsers, find_listeners

RESET = struct.pack("ii", 1, 0)


@contextmanager
def connection(address="127.0.0.1", source=None):
    """(client, accepted), connected over the loopback."""
    family = family_of(address)
    with socket.socket(family) as server, socket.socket(family) as client:
        try:
            server.bind((address, 0))
        except OSError:
            pytest.skip(f"this host has no {address}")
        server.listen()
        if source is not None:
            client.bind((source, 0))
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


@pytest.fixture(params=["sock_diag", "proc"])
def peers(request):
    found = PeerUsers()
    if request.param == "proc":
        found.close()
        found._diag = None
    elif found._diag is None:
        pytest.skip("this kernel has no sock_diag for TCP")
    with closing(found):
        yield found


@pytest.mark.parametrize(
    ("address", "source"), [("127.0.0.1", None), ("127.0.0.1", "127.0.0.9"), ("::1", None)]
)
def test_user_of_a_peer(peers, address, source):
    with connection(address, source) as (client, accepted):
        assert peers.uid_of_peer(accepted) == os.geteuid()
        client.shutdown(socket.SHUT_WR)
        assert peers.uid_of_peer(accepted) == os.geteuid(), "it still waits for an answer"


def test_ordinary_user(ordinary_user):
    def story():
        with closing(PeerUsers()) as peers, connection() as (_, accepted):
            assert peers.uid_of_peer(accepted) == os.geteuid() != 0

    ordinary_user(story)


def test_closed_peer_is_not_taken_for_roots(ordinary_user):
    """Whoever sends something and closes at once must not pass for root."""

    def story():
        with closing(PeerUsers()) as peers, connection() as (client, accepted):
            place = (*client.getsockname(), *client.getpeername())
            client.sendall(b"FLUSHALL")
            client.close()
            shown = {one.inode for one in tcp_diag._read_tables() if one[1:5] == place}
            assert shown == {0}, "control: no process has it open"
            # What the kernel still knows depends on its version, and on the connection's state.
            assert peers.uid_of_peer(accepted) in (None, os.geteuid())

    ordinary_user(story)


def test_closed_peer_on_a_kernel_that_shows_root(peers, monkeypatch):
    with connection() as (client, accepted):
        (address, port), (peer, peer_port) = client.getsockname(), client.getpeername()
        for inode, uid in ((7, 0), (0, None)):
            shown = tcp_diag.TcpSocket(4, address, port, peer, peer_port, 0, inode)
            monkeypatch.setattr(peers, "_find", lambda *_, shown=shown: shown)
            assert peers.uid_of_peer(accepted) == uid


def test_peer_that_has_reset_is_unknown(peers):
    with connection() as (client, accepted):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        assert peers.uid_of_peer(accepted) is None


def test_listener_is_not_taken_for_a_connection():
    with closing(Diag()) as diag, socket.create_server(("127.0.0.1", 0)) as server:
        assert diag.listeners(server.getsockname()[1]) != [], "control"
        found = diag.find_connection(server.getsockname(), ("127.0.0.1", 9), socket.AF_INET)
        assert found is None


@pytest.mark.parametrize(
    ("bound", "asked"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1")]
)
def test_listener_that_accepts_connections_to_an_address(bound, asked):
    with closing(Diag()) as diag, socket.socket(family_of(bound)) as server:
        try:
            server.bind((bound, 0))
        except OSError:
            pytest.skip(f"this host has no {bound}")
        port = server.getsockname()[1]
        assert diag.find_listener(asked, port, family_of(asked)) is None
        server.listen()
        found = diag.find_listener(asked, port, family_of(asked))
        assert found is not None
        assert (found.uid, found.inode) == (os.geteuid(), os.fstat(server.fileno()).st_ino)


def test_listeners(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, inode = server.getsockname()[1], os.fstat(server.fileno()).st_ino
        found = find_listeners(port)
        assert [(one.address, one.uid, one.inode) for one in found] == [
            ("127.0.0.1", os.geteuid(), inode)
        ]

        def refuse(self):
            raise OSError

        monkeypatch.setattr(Diag, "__init__", refuse)
        assert find_listeners(port) == found
    assert find_listeners(port) == []
