"""The IP addresses of this machine, from the kernel."""

from __future__ import annotations

import ipaddress
import socket

from atoll.keeper import netlink
from atoll.model.egress import Address

_LIST_ADDRESSES = 22
_ADDRESS_HEAD = 8
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_ANSWER_BYTES = 1 << 18
_ANSWER_S = 5.0


def own_addresses() -> frozenset[Address]:
    """The addresses of all interfaces in this network namespace, and of their peers.

    OSError when the kernel does not list them.
    """
    found: set[Address] = set()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.settimeout(_ANSWER_S)
        sock.bind((0, 0))
        request = bytes([socket.AF_UNSPEC]) + bytes(_ADDRESS_HEAD - 1)
        sock.send(netlink.frame(_LIST_ADDRESSES, netlink.DUMP, 1, request))
        while not _read_answer(sock.recv(_ANSWER_BYTES), found):
            pass
    return frozenset(found)


def _read_answer(answer: bytes, found: set[Address]) -> bool:
    """Adds the addresses of one datagram; returns whether it was the last one."""
    for kind, payload in netlink.frames(answer):
        if kind == netlink.DONE:
            return True
        for name, value in netlink.attributes(payload[_ADDRESS_HEAD:]):
            if name in (_IFA_ADDRESS, _IFA_LOCAL):
                found.add(ipaddress.ip_address(value))
    return False
