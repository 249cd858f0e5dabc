"""A capsule's own network: a loopback interface and, with egress, sockets for the daemon.

There is no interface to the outside. The daemon listens on sockets that were created here and
connects from the host: through the proxy's port for programs that use a proxy, and by redirection
for the others. DNS queries are answered with synthetic addresses, so that the daemon knows the name
behind each connection.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from atoll.keeper import netlink, wire

PROXY_PORT = 62_001
"""HTTP, CONNECT and SOCKS5."""
CAUGHT_PORT = 62_002
"""Connections of programs without a proxy; the kernel keeps their original destination."""
NAMES_PORT = 62_003
"""DNS queries, over UDP and TCP."""
BROWSER_PORT = 62_004
"""The DevTools port of the capsule's own browser, for the capsule's processes only."""
OWN_PORTS = (PROXY_PORT, CAUGHT_PORT, NAMES_PORT, BROWSER_PORT)
"""Never published on the host."""
STAND_INS = ("198.18.0.0", 15)
"""Synthetic addresses, for allowed names."""
NAME_SERVER = "198.18.0.1"
HOST = "host"
"""The mode of a view that has no network of its own."""

_SIOCSIFFLAGS = 0x8914
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_EVERYTHING = {socket.AF_INET: bytes(4), socket.AF_INET6: bytes(16)}
_LOOPBACK = {
    socket.AF_INET: (bytes([127, 0, 0, 0]), 8),
    socket.AF_INET6: (bytes(15) + b"\1", 128),
}
LOW_PORTS = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
IPV6 = "/proc/net/if_inet6"
LOOPBACK_ADDRESSES = {int(socket.AF_INET): "127.0.0.1", int(socket.AF_INET6): "::1"}
_DNS = 53
_MOST_SOCKETS = 8
_SOCK_DIAG = 4
_SOCKETS = {
    (int(socket.AF_INET), int(socket.SOCK_STREAM)): 0,
    (int(socket.AF_INET), int(socket.SOCK_DGRAM)): 0,
    (int(socket.AF_INET6), int(socket.SOCK_STREAM)): 0,
    (int(socket.AF_INET6), int(socket.SOCK_DGRAM)): 0,
    (int(socket.AF_NETLINK), int(socket.SOCK_RAW)): _SOCK_DIAG,
}
"""What is made for others, with its protocol."""


def bring_up(mode: str) -> None:
    """In a new network namespace. OSError when the kernel cannot do what `mode` needs.

    With egress, every outgoing connection is redirected to the daemon, which checks and logs it.
    """
    _bring_loopback_up()
    with open(LOW_PORTS, "w", encoding="ascii") as file:
        file.write("0")
    if mode == "none":
        return
    for family, everything in _EVERYTHING.items():
        if family == socket.AF_INET6 and not os.path.exists(IPV6):
            continue
        netlink.route_to_self(family, everything, 0)
        netlink.redirect(family, _redirections(family))


def _redirections(family: socket.AddressFamily) -> list[netlink.PacketMatch]:
    def leaving(protocol: int) -> netlink.PacketMatch:
        return netlink.PacketMatch().protocol(protocol).beyond(family, *_LOOPBACK[family])

    return [
        leaving(socket.IPPROTO_UDP).port(_DNS).redirect(NAMES_PORT),
        leaving(socket.IPPROTO_TCP).port(_DNS).redirect(NAMES_PORT),
        leaving(socket.IPPROTO_TCP).redirect(CAUGHT_PORT),
    ]


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING))


def make_sockets(wanted: list[list[int]]) -> list[socket.socket]:
    """Sockets of this network for a process outside: `[[FAMILY, TYPE], ...]`.

    WireError for anything but IP stream and datagram sockets and `sock_diag`.
    """
    if len(wanted) > _MOST_SOCKETS or any(tuple(pair) not in _SOCKETS for pair in wanted):
        raise wire.WireError("no such sockets")
    return [socket.socket(family, kind, _SOCKETS[family, kind]) for family, kind in wanted]
