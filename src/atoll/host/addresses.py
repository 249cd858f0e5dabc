"""Which addresses this machine has itself, by asking its kernel."""

from __future__ import annotations

import ipaddress
import socket
import struct

from atoll.model.egress import Address

_LIST_ADDRESSES = 22
_REQUEST, _DUMP = 0x1, 0x300
_DONE, _ERROR = 3, 2
_HEAD = struct.Struct("=IHHII")
_ADDRESS_HEAD = 8
_ATTRIBUTE = struct.Struct("=HH")
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_ANSWER_BYTES = 1 << 18
_ANSWER_S = 5.0


def own_addresses() -> frozenset[Address]:
    """Of all interfaces in this network namespace, and the far ends of those that have one.

    OSError when the kernel does not tell.
    """
    found: set[Address] = set()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.settimeout(_ANSWER_S)
        sock.bind((0, 0))
        request = bytes([socket.AF_UNSPEC]) + bytes(_ADDRESS_HEAD - 1)
        size = _HEAD.size + len(request)
        sock.send(_HEAD.pack(size, _LIST_ADDRESSES, _REQUEST | _DUMP, 1, 0) + request)
        while not _read_answer(sock.recv(_ANSWER_BYTES), found):
            pass
    return frozenset(found)


def _read_answer(answer: bytes, found: set[Address]) -> bool:
    """Whether this was the last one."""
    at = 0
    while at + _HEAD.size <= len(answer):
        size, kind, *_ = _HEAD.unpack_from(answer, at)
        if kind == _ERROR:
            raise OSError("the kernel does not list its addresses")
        if kind == _DONE:
            return True
        found.update(_addresses(answer[at + _HEAD.size + _ADDRESS_HEAD : at + size]))
        at += max(_HEAD.size, (size + 3) & ~3)
    return False


def _addresses(attributes: bytes) -> list[Address]:
    found: list[Address] = []
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        size, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if kind in (_IFA_ADDRESS, _IFA_LOCAL):
            found.append(ipaddress.ip_address(attributes[at + _ATTRIBUTE.size : at + size]))
        at += max(_ATTRIBUTE.size, (size + 3) & ~3)
    return found
