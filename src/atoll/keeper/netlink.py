"""What the kernel is told through netlink: routes and redirections in a network of one's own.

Only the few messages that a capsule's network needs, and the answer to each.
"""

from __future__ import annotations

import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_REQUEST, _ACK, _EXCLUSIVE, _CREATE, _APPEND = 0x1, 0x4, 0x200, 0x400, 0x800
_ERROR = 2
_NESTED = 0x8000
_HEAD = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_NETFILTER = 12
_ANSWER_S = 5.0

_NEW_ROUTE = 24
_LOOPBACK = 1

_TABLES = 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 3, 6
_HOOK_OUTPUT = 3
_PRIORITY_DESTINATION = -100
_REGISTER = 1
_FIRST = struct.pack(">I", _REGISTER)
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_PROTOCOL = 16
_EQUAL, _UNEQUAL = 0, 1


def attribute(kind: int, payload: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + bytes(-length % 4)


def nested(kind: int, *inner: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(inner))


def _message(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return _HEAD.pack(_HEAD.size + len(payload), kind, flags | _REQUEST, number, 0) + payload


def _tell(protocol: int, data: bytes, wanted: int) -> None:
    """Send, and see that each of the `wanted` messages was accepted. OSError when one was not."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as sock:
        sock.settimeout(_ANSWER_S)
        sock.bind((0, 0))
        sock.send(data)
        while wanted > 0:
            answer = sock.recv(1 << 16)
            for code in _errors(answer):
                if code:
                    raise OSError(-code, os.strerror(-code))
                wanted -= 1


def _errors(answer: bytes) -> Iterable[int]:
    at = 0
    while at + _HEAD.size <= len(answer):
        length, kind, *_ = _HEAD.unpack_from(answer, at)
        if kind == _ERROR:
            yield struct.unpack_from("=i", answer, at + _HEAD.size)[0]
        at += max(_HEAD.size, (length + 3) & ~3)


def route_to_self(family: int, network: bytes, prefix: int) -> None:
    """Whatever goes to these addresses arrives here, as if they were this machine's own."""
    table_local, by_hand, scope_host, kind_local = 255, 4, 254, 2
    head = struct.pack(
        "=BBBBBBBBI", family, prefix, 0, 0, table_local, by_hand, scope_host, kind_local, 0
    )
    attributes = attribute(1, network) + attribute(4, struct.pack("=I", _LOOPBACK))
    flags = _CREATE | _EXCLUSIVE | _ACK
    _tell(socket.NETLINK_ROUTE, _message(_NEW_ROUTE, flags, 1, head + attributes), 1)


class Match:
    """The steps of a rule, in order; all of them must fit."""

    def __init__(self) -> None:
        self.steps: list[bytes] = []

    def protocol(self, number: int) -> Match:
        self.steps.append(_step("meta", attribute(1, _FIRST), attribute(2, _word(_PROTOCOL))))
        return self._compare(bytes([number]))

    def port(self, number: int) -> Match:
        self._load(_TRANSPORT_HEADER, 2, 2)
        return self._compare(struct.pack(">H", number))

    def beyond(self, family: int, network: bytes, prefix: int) -> Match:
        """A destination outside of a network."""
        offset = 16 if family == socket.AF_INET else 24
        mask = ((1 << prefix) - 1) << (8 * len(network) - prefix)
        self._load(_NETWORK_HEADER, offset, len(network))
        self.steps.append(
            _step(
                "bitwise",
                attribute(1, _FIRST),
                attribute(2, _FIRST),
                attribute(3, _word(len(network))),
                nested(4, attribute(1, mask.to_bytes(len(network), "big"))),
                nested(5, attribute(1, bytes(len(network)))),
            )
        )
        return self._compare(network, _UNEQUAL)

    def redirect(self, port: int) -> Match:
        """What fits goes to this port of the loopback instead."""
        value = nested(2, attribute(1, struct.pack(">H", port)))
        self.steps.append(_step("immediate", attribute(1, _FIRST), value))
        self.steps.append(_step("redir", attribute(1, _FIRST)))
        return self

    def _load(self, header: int, offset: int, length: int) -> None:
        words = enumerate((_REGISTER, header, offset, length), 1)
        self.steps.append(_step("payload", *(attribute(kind, _word(v)) for kind, v in words)))

    def _compare(self, value: bytes, how: int = _EQUAL) -> Match:
        held = nested(3, attribute(1, value))
        self.steps.append(_step("cmp", attribute(1, _FIRST), attribute(2, _word(how)), held))
        return self


def redirect(family: socket.AddressFamily, rules: Iterable[Match]) -> None:
    """Set up redirections of what leaves this network; the first rule that fits counts."""
    protocol = 2 if family == socket.AF_INET else 10
    table, chain = attribute(1, b"atoll\0"), b"out\0"
    hook = nested(
        4,
        attribute(1, _word(_HOOK_OUTPUT)),
        attribute(2, struct.pack(">i", _PRIORITY_DESTINATION)),
    )
    acts = [
        (_NEW_TABLE, 0, table),
        (_NEW_CHAIN, 0, table + attribute(3, chain) + hook + attribute(7, b"nat\0")),
    ]
    acts += [
        (_NEW_RULE, _APPEND, table + attribute(2, chain) + nested(4, *rule.steps)) for rule in rules
    ]
    edge = struct.pack("=BBH", 0, 0, socket.htons(_TABLES))
    head = struct.pack("=BBH", protocol, 0, 0)
    messages = [_message(_BATCH_BEGIN, 0, 0, edge)]
    messages += [
        _message(_TABLES << 8 | act, _CREATE | _ACK | flags, number, head + payload)
        for number, (act, flags, payload) in enumerate(acts, 1)
    ]
    messages.append(_message(_BATCH_END, 0, len(acts) + 1, edge))
    _tell(_NETFILTER, b"".join(messages), len(acts))


def _step(name: str, *data: bytes) -> bytes:
    return nested(1, attribute(1, name.encode() + b"\0"), nested(2, *data))


def _word(value: int) -> bytes:
    return struct.pack(">I", value)
