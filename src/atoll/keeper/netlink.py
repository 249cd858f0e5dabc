"""Netlink: message framing, and the routes and redirections of a capsule's own network."""

from __future__ import annotations

import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DUMP = 0x300
"""Flags of a request for all objects; the last message of the answer is of kind `DONE`."""
ERROR, DONE = 2, 3
_REQUEST, _ACK, _EXCLUSIVE, _CREATE, _APPEND = 0x1, 0x4, 0x200, 0x400, 0x800
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


def frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    """A request; `number` comes back with its answer."""
    return _HEAD.pack(_HEAD.size + len(payload), kind, flags | _REQUEST, number, 0) + payload


def _transact(protocol: int, data: bytes, wanted: int) -> None:
    """Send, and check that each of the `wanted` messages was accepted. OSError when one was not."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as sock:
        sock.settimeout(_ANSWER_S)
        sock.bind((0, 0))
        sock.send(data)
        while wanted > 0:
            answer = sock.recv(1 << 16)
            wanted -= sum(kind == ERROR for kind, _ in frames(answer))


def frames(answer: bytes, number: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The kind and payload of each message in a datagram, or only of answers to request `number`.

    Raises OSError for an error of the kernel. An acknowledgement is of kind `ERROR`, too.
    """
    at = 0
    while at + _HEAD.size <= len(answer):
        length, kind, _, answered, _ = _HEAD.unpack_from(answer, at)
        payload = answer[at + _HEAD.size : at + length]
        at += max(_HEAD.size, (length + 3) & ~3)
        if number not in (None, answered):
            continue
        if kind == ERROR and (code := struct.unpack_from("=i", payload)[0]):
            raise OSError(-code, os.strerror(-code))
        yield kind, payload


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The kind and value of each attribute in a payload."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)


def route_to_self(family: int, network: bytes, prefix: int) -> None:
    """Packets to these addresses are delivered locally, as if they were this machine's own."""
    table_local, by_hand, scope_host, kind_local = 255, 4, 254, 2
    head = struct.pack(
        "=BBBBBBBBI", family, prefix, 0, 0, table_local, by_hand, scope_host, kind_local, 0
    )
    fields = attribute(1, network) + attribute(4, struct.pack("=I", _LOOPBACK))
    flags = _CREATE | _EXCLUSIVE | _ACK
    _transact(socket.NETLINK_ROUTE, frame(_NEW_ROUTE, flags, 1, head + fields), 1)


class PacketMatch:
    """The steps of a rule, in order; all of them must fit."""

    def __init__(self) -> None:
        self.steps: list[bytes] = []

    def protocol(self, number: int) -> PacketMatch:
        self.steps.append(_step("meta", attribute(1, _FIRST), attribute(2, _word(_PROTOCOL))))
        return self._compare(bytes([number]))

    def port(self, number: int) -> PacketMatch:
        self._load(_TRANSPORT_HEADER, 2, 2)
        return self._compare(struct.pack(">H", number))

    def beyond(self, family: int, network: bytes, prefix: int) -> PacketMatch:
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

    def redirect(self, port: int) -> PacketMatch:
        """What fits goes to this port of the loopback instead."""
        value = nested(2, attribute(1, struct.pack(">H", port)))
        self.steps.append(_step("immediate", attribute(1, _FIRST), value))
        self.steps.append(_step("redir", attribute(1, _FIRST)))
        return self

    def _load(self, header: int, offset: int, length: int) -> None:
        words = enumerate((_REGISTER, header, offset, length), 1)
        self.steps.append(_step("payload", *(attribute(kind, _word(v)) for kind, v in words)))

    def _compare(self, value: bytes, how: int = _EQUAL) -> PacketMatch:
        held = nested(3, attribute(1, value))
        self.steps.append(_step("cmp", attribute(1, _FIRST), attribute(2, _word(how)), held))
        return self


def redirect(family: socket.AddressFamily, rules: Iterable[PacketMatch]) -> None:
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
    messages = [frame(_BATCH_BEGIN, 0, 0, edge)]
    messages += [
        frame(_TABLES << 8 | act, _CREATE | _ACK | flags, number, head + payload)
        for number, (act, flags, payload) in enumerate(acts, 1)
    ]
    messages.append(frame(_BATCH_END, 0, len(acts) + 1, edge))
    _transact(_NETFILTER, b"".join(messages), len(acts))


def _step(name: str, *data: bytes) -> bytes:
    return nested(1, attribute(1, name.encode() + b"\0"), nested(2, *data))


def _word(value: int) -> bytes:
    return struct.pack(">I", value)
