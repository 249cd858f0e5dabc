"""The DNS server of a capsule: answers every query itself and forwards none.

An allowed name gets a synthetic address, and is looked up on the host when a program connects to
it. Any other name is refused and logged.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from atoll.daemon.egress.dialer import Dialer
from atoll.daemon.egress.limits import LimitError
from atoll.daemon.egress.synthetic_addresses import SyntheticAddresses
from atoll.daemon.resource_errors import TRANSIENT_ERRORS
from atoll.daemon.streams import Stream
from atoll.drivers.network import dns
from atoll.drivers.network.dns import BadQuestionError, DnsQuestion, UnansweredError
from atoll.model.egress import WEB_PORTS, Address, Destination, is_local

_TTL_S = 30
_STREAM_S = 15.0
_BREATH_S = 0.01
_LENGTH_BYTES = 2
_PORT = 53
_LOOPBACK: dict[int, Address] = {
    dns.A: ipaddress.IPv4Address("127.0.0.1"),
    dns.AAAA: ipaddress.IPv6Address("::1"),
}
_UNNAMED = "(no host name)"
_ANY = "(any)"


def answer(
    dialer: Dialer, synthetic: SyntheticAddresses, data: bytes, *, most: int = 65_535
) -> bytes | None:
    """The answer to one message, if it gets any."""
    try:
        question = dns.parse_question(data)
    except UnansweredError:
        return None
    except BadQuestionError as error:
        return error.answer
    if question.name is not None and is_local(question.name):
        loopback = _LOOPBACK.get(question.kind)
        return question.answer(dns.GOOD, (loopback,) if loopback else (), ttl_s=_TTL_S)
    return _answer_name(dialer, synthetic, question, most)


def _answer_name(
    dialer: Dialer, synthetic: SyntheticAddresses, question: DnsQuestion, most: int
) -> bytes:
    policy, name = dialer.policy(), question.name
    if name is None:
        return _refuse(dialer, question, _UNNAMED, "the query is not for a host name")
    if not policy.knows(name):
        verdict = policy.judge(Destination(name, WEB_PORTS[-1]))
        return _refuse(dialer, question, name, verdict.why, ask=verdict.ask)
    try:
        dialer.share.names.require_form(policy, name)
    except LimitError as error:
        return _refuse(dialer, question, error.rule, str(error))
    if question.kind != dns.A:
        # There is such a name, but it has nothing of this kind: no IPv6, no keys for TLS.
        return question.answer(dns.GOOD)
    return _answer_synthetic(dialer, synthetic, question, name, most)


def _answer_synthetic(
    dialer: Dialer, synthetic: SyntheticAddresses, question: DnsQuestion, name: str, most: int
) -> bytes:
    if not synthetic.knows(name) and not dialer.share.new_names.take():
        return _refuse(dialer, question, _ANY, "too many new names", dns.FAILED)
    address = synthetic.address_of(name)
    if address is None:
        return _refuse(dialer, question, _ANY, "no address could be assigned", dns.FAILED)
    return question.answer(dns.GOOD, (address,), ttl_s=_TTL_S, most=most)


def _refuse(
    dialer: Dialer,
    question: DnsQuestion,
    place: str,
    why: str,
    code: int = dns.REFUSED,
    *,
    ask: str = "",
) -> bytes:
    dialer.journal.note(via="dns", place=place, port=_PORT, allowed=False, why=why, ask=ask)
    return question.answer(code)


async def serve_datagrams(
    dialer: Dialer, synthetic: SyntheticAddresses, sock: socket.socket
) -> None:
    """Until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await dialer.share.turns.wait()
        try:
            data, asker = await loop.sock_recvfrom(sock, dns.MOST_BYTES + 1)
            said = answer(dialer, synthetic, data, most=dns.DATAGRAM_BYTES)
            if said is not None:
                await loop.sock_sendto(sock, said, asker)
        except TRANSIENT_ERRORS:
            # The client has gone, or the kernel has no memory: the client retries.
            await asyncio.sleep(_BREATH_S)
        # Queries come as fast as a program can write them.
        await asyncio.sleep(0)


async def serve_stream(dialer: Dialer, synthetic: SyntheticAddresses, client: Stream) -> None:
    """Questions one after the other. The caller closes the socket."""
    while await client.find_start(_STREAM_S):
        async with asyncio.timeout(_STREAM_S):
            await _fill(client, _LENGTH_BYTES)
            length = int.from_bytes(client.take(_LENGTH_BYTES), "big")
            if length > dns.MOST_BYTES:
                return
            await _fill(client, length)
        await dialer.share.turns.wait()
        async with asyncio.timeout(_STREAM_S):
            said = answer(dialer, synthetic, client.take(length))
            if said is None:
                return
            await client.send(len(said).to_bytes(_LENGTH_BYTES, "big") + said)


async def _fill(client: Stream, count: int) -> None:
    while len(client.buffer) < count:
        if not await client.fill():
            raise ConnectionError("the connection closed in the middle of a query")
