from __future__ import annotations

import contextlib
import os
import socket
import sys

import pytest

from atoll.host import listening_sockets
from atoll.host.listening_sockets import Listening
from present import present

TABLE = b"""\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1
   1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4243 1
   2: 0100007F:0BB9 0100007F:0BB8 01 00000000:00000000 00:00000000 00000000  1000        0 4244 1
   3: short line
"""
TABLE6 = b"""\
  sl  local_address                         remote_address st ...
   0: 00000000000000000000000001000000:1538 00000000000000000000000000000000:0000 0A 0:0 0 0 7 0 1 1
   1: 00000000000000000000000000000000:1539 00000000000000000000000000000000:0000 0A 0:0 0 0 7 0 2 1
   2: 0000000000000000FFFF00000100007F:153A 00000000000000000000000000000000:0000 0A 0:0 0 0 7 0 3 1
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the table is printed in little-endian words")
def test_tables_are_understood():
    assert [entry[:2] for entry in listening_sockets.parse_table(TABLE)] == [
        ("127.0.0.1", 3000),
        ("0.0.0.0", 80),
    ]
    assert [entry[:2] for entry in listening_sockets.parse_table(TABLE6)] == [
        ("::1", 5432),
        ("::", 5433),
        ("127.0.0.1", 5434),
    ]


def test_listeners_of_a_process_are_seen_and_clients_are_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            found = present(listening_sockets.find_listening(os.getpid())).places
        assert Listening("127.0.0.1", port) in found
        assert [place.port for place in found].count(port) == 1
    assert Listening("127.0.0.1", port) not in listening_sockets.own_listeners()


def answer_of(query):
    while (found := query.read_part()) is None:
        continue
    return found


@pytest.mark.parametrize("limit", [0, 1, 40])
def test_listing_is_cut_at_its_limit(limit):
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as asking,
        contextlib.ExitStack() as servers,
    ):
        for _ in range(50):
            servers.enter_context(socket.create_server(("127.0.0.1", 0)))
        found = answer_of(listening_sockets.ListenerQuery(asking, limit))
        assert not found.is_complete
        assert len(found.places) <= limit


def test_listing_of_a_process_is_cut_at_its_limit(monkeypatch):
    with contextlib.ExitStack() as servers:
        ours = {
            Listening(*servers.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname())
            for _ in range(50)
        }
        assert ours <= present(listening_sockets.find_listening(os.getpid())).places
        monkeypatch.setattr(listening_sockets, "MAX_LISTENERS", 40)
        found = present(listening_sockets.find_listening(os.getpid()))
        assert not found.is_complete
        assert len(found.places) <= 40
        monkeypatch.setattr(listening_sockets, "MAX_LISTENERS", 100_000)
        monkeypatch.setattr(listening_sockets, "MAX_TABLE_BYTES", 200)
        assert not present(listening_sockets.find_listening(os.getpid())).is_complete


def test_kernel_tells_the_same_without_a_walk_over_all_connections():
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as asking,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("::", 0), family=socket.AF_INET6) as other,
    ):
        ours = {Listening("127.0.0.1", server.getsockname()[1])}
        ours.add(Listening("::", other.getsockname()[1]))
        with socket.create_connection(server.getsockname()) as client:
            told = answer_of(listening_sockets.ListenerQuery(asking)).places
            assert client.getsockname()[1] not in {place.port for place in told}
        # Others on this machine may begin and end to listen meanwhile.
        assert ours <= told
        assert ours <= listening_sockets.own_listeners()


def test_process_that_is_gone():
    assert listening_sockets.find_listening(2**22 + 1) is None


@pytest.mark.parametrize(
    ("addresses", "tried"),
    [
        (["127.0.0.1"], ["127.0.0.1"]),
        (["0.0.0.0"], ["127.0.0.1"]),
        (["::"], ["127.0.0.1", "::1"]),
        (["::1"], ["::1"]),
        (["::1", "127.0.0.1"], ["127.0.0.1", "::1"]),
        (["127.0.0.53"], ["127.0.0.53"]),
        ([], []),
        ([f"127.0.0.{n}" for n in range(11, 99)], [f"127.0.0.{n}" for n in range(11, 15)]),
    ],
)
def test_which_address_is_dialled(addresses, tried):
    assert listening_sockets.dial_order(addresses) == tried


def test_occupant_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (occupant,) = listening_sockets.find_occupants(port)
        assert occupant.pid == os.getpid()
        assert "python" in present(occupant.command)
        assert f"process {os.getpid()}" in occupant.render()
    assert listening_sockets.find_occupants(port) == []


def test_another_users_process_is_reported_as_such(ordinary_user):
    if os.geteuid() != 0:
        pytest.skip("only root can be another user here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def look():
            # The child's own copy would make it the child's.
            os.close(server.fileno())
            (occupant,) = listening_sockets.find_occupants(port)
            assert (occupant.user, occupant.pid) == ("root", None)
            assert occupant.render() == "a process of user `root`"

        ordinary_user(look)
