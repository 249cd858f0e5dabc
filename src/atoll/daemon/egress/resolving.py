"""Questions for names inside a capsule: answered here, all of them, and none goes any further.

A name that may be reached gets an address that stands in for it; it is looked up on the host when
somebody connects. A name that may not is refused and written down.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from atoll.daemon.egress.name_limits import LimitError
from atoll.daemon.egress.reaching import Way
from atoll.daemon.egress.standins import StandIns
from atoll.daemon.egress.streams import Stream
from atoll.daemon.setbacks import SETBACKS
from atoll.drivers.network import names
from atoll.drivers.network.names import BadQuestionError, Question, UnansweredError
from atoll.model.egress import WEB_PORTS, Address, Destination, is_local

_TTL_S = 30
_STREAM_S = 15.0
_BREATH_S = 0.01
_LENGTH_BYTES = 2
_PORT = 53
_LOOPBACK: dict[int, Address] = {
    names.A: ipaddress.IPv4Address("127.0.0.1"),
    names.AAAA: ipaddress.IPv6Address("::1"),
}
_UNNAMED = "(no host name)"
_ANY = "(any)"


def answer(way: Way, stand_ins: StandIns, data: bytes, *, most: int = 65_535) -> bytes | None:
    """The answer to one message, if it gets any."""
    try:
        question = names.parse_question(data)
    except UnansweredError:
        return None
    except BadQuestionError as error:
        return error.answer
    if question.name is not None and is_local(question.name):
        loopback = _LOOPBACK.get(question.kind)
        return question.answer(names.GOOD, (loopback,) if loopback else (), ttl_s=_TTL_S)
    return _answer_name(way, stand_ins, question, most)


def _answer_name(way: Way, stand_ins: StandIns, question: Question, most: int) -> bytes:
    policy, name = way.policy(), question.name
    if name is None:
        return _refuse(way, question, _UNNAMED, "a question for no host name")
    if not policy.knows(name):
        verdict = policy.judge(Destination(name, WEB_PORTS[-1]))
        return _refuse(way, question, name, verdict.why, ask=verdict.ask)
    try:
        way.share.names.require_form(policy, name)
    except LimitError as error:
        return _refuse(way, question, error.rule, str(error))
    if question.kind != names.A:
        # There is such a name, but it has nothing of this kind: no IPv6, no keys for TLS.
        return question.answer(names.GOOD)
    return _stand_in(way, stand_ins, question, name, most)


def _stand_in(way: Way, stand_ins: StandIns, question: Question, name: str, most: int) -> bytes:
    if not stand_ins.knows(name) and not way.share.new_names.take():
        return _refuse(way, question, _ANY, "too many new names", names.FAILED)
    address = stand_ins.address_of(name)
    if address is None:
        return _refuse(way, question, _ANY, "no address could be assigned", names.FAILED)
    return question.answer(names.GOOD, (address,), ttl_s=_TTL_S, most=most)


def _refuse(
    way: Way,
    question: Question,
    place: str,
    why: str,
    code: int = names.REFUSED,
    *,
    ask: str = "",
) -> bytes:
    way.journal.note(via="dns", place=place, port=_PORT, allowed=False, why=why, ask=ask)
    return question.answer(code)


async def serve_datagrams(way: Way, stand_ins: StandIns, sock: socket.socket) -> None:
    """Until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await way.share.turns.wait()
        try:
            data, asker = await loop.sock_recvfrom(sock, names.MOST_BYTES + 1)
            said = answer(way, stand_ins, data, most=names.DATAGRAM_BYTES)
            if said is not None:
                await loop.sock_sendto(sock, said, asker)
        except SETBACKS:
            # Somebody who asked is gone already, or the kernel has no room: he asks again.
            await asyncio.sleep(_BREATH_S)
        # Questions come as fast as somebody can write them.
        await asyncio.sleep(0)


async def serve_stream(way: Way, stand_ins: StandIns, client: Stream) -> None:
    """Questions one after the other. Leaves the socket to the caller."""
    while await client.find_start(_STREAM_S):
        async with asyncio.timeout(_STREAM_S):
            await _fill(client, _LENGTH_BYTES)
            length = int.from_bytes(client.take(_LENGTH_BYTES), "big")
            if length > names.MOST_BYTES:
                return
            await _fill(client, length)
        await way.share.turns.wait()
        async with asyncio.timeout(_STREAM_S):
            said = answer(way, stand_ins, client.take(length))
            if said is None:
                return
            await client.send(len(said).to_bytes(_LENGTH_BYTES, "big") + said)


async def _fill(client: Stream, count: int) -> None:
    while len(client.buffer) < count:
        if not await client.fill():
            raise ConnectionError("ended in the middle of a question")
