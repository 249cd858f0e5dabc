from __future__ import annotations

import errno
import os
import socket

import pytest

from atoll.host.sockets import find_hold
from present import present

FAMILIES = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")]


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture
def port():
    """A number that is free now; below the range from which the kernel picks by itself."""
    for number in range(18_000, 19_000):
        holder = find_hold(number)
        if holder is not None:
            holder.close()
            return number
    return pytest.fail("no port is free")


def listen(family, address, port, *options):
    sock = socket.socket(family)
    for option in options:
        sock.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        sock.bind((address, port))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def test_held_port_is_held_once(port):
    first = find_hold(port)
    assert first is not None
    assert find_hold(port) is None
    first.close()
    second = find_hold(port)
    assert second is not None
    second.close()


@pytest.mark.parametrize(("family", "address"), FAMILIES)
def test_listener_on_any_address_has_the_port(port, family, address):
    if family is socket.AF_INET6 and not has_ipv6():
        pytest.skip("this host has no IPv6")
    with listen(family, address, port):
        assert find_hold(port) is None
    holder = find_hold(port)
    assert holder is not None
    holder.close()


@pytest.mark.parametrize(("family", "address"), FAMILIES)
@pytest.mark.parametrize(
    "options",
    [
        (),
        (socket.SO_REUSEADDR,),
        (socket.SO_REUSEPORT,),
        (socket.SO_REUSEADDR, socket.SO_REUSEPORT),
    ],
)
def test_no_process_can_take_a_held_port(port, family, address, options):
    if family is socket.AF_INET6 and not has_ipv6():
        pytest.skip("this host has no IPv6")
    holder = present(find_hold(port))
    with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        listen(family, address, port, *options)
    holder.close()


def test_no_process_can_connect_to_a_held_port(port):
    holder = present(find_hold(port))
    with socket.socket() as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(("127.0.0.1", port))
    holder.close()


def test_held_port_can_be_listened_on_at_once_after(port):
    present(find_hold(port)).close()
    with listen(socket.AF_INET, "127.0.0.1", port):
        socket.create_connection(("127.0.0.1", port)).close()
        assert find_hold(port) is None, "it is the listener's"


def test_port_that_is_not_for_us_is_not_ours(ordinary_user):
    def act():
        # In bytes: the child may not be able to read the interpreter's own encodings any more.
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "rb") as stream:
            lowest = int(stream.read())
        assert lowest <= 1 or find_hold(1) is None

    ordinary_user(act)


def test_failure_closes_what_was_opened(port):
    with listen(socket.AF_INET6 if has_ipv6() else socket.AF_INET, "", port):
        for _ in range(20):
            # An unclosed socket would be a ResourceWarning, which is an error here.
            assert find_hold(port) is None
