"""Connections that are read piece by piece, when their peers send faster than they are read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import pytest

from atoll.daemon.broker.tls_streams import TlsStream, server_context
from atoll.daemon.streams import Stream
from atoll.engine.secret import broker_ca

HOST = "allowed.example"
READS = 50


@contextlib.contextmanager
def socket_pair():
    left, right = socket.socketpair()
    with left, right:
        for sock in (left, right):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        yield left, right


def play(story):
    async def whole():
        async with asyncio.timeout(60):
            await story

    asyncio.run(whole())


class Neighbour:
    """Counts the turns that it gets."""

    def __init__(self):
        self.turns = 0

    async def run(self):
        while True:
            self.turns += 1
            await asyncio.sleep(0)


async def turns_while(read):
    neighbour = Neighbour()
    task = asyncio.create_task(neighbour.run())
    for _ in range(READS):
        await read()
    task.cancel()
    return neighbour.turns


def test_each_read_gives_others_a_turn(monkeypatch):
    async def story():
        right.send(bytes(10 * READS))
        stream = Stream(left)
        assert await turns_while(stream.fill) >= READS
        assert len(stream.buffer) == 10 * READS

    monkeypatch.setattr("atoll.daemon.streams.CHUNK_BYTES", 10)
    with socket_pair() as (left, right):
        play(story())


def test_nothing_that_was_read_is_lost_when_a_read_is_cancelled():
    async def story():
        right.send(b"x")
        stream = Stream(left)
        task = asyncio.create_task(stream.fill())
        while not stream.buffer:  # noqa: ASYNC110 - in the same loop
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stream.take() == b"x"

    with socket_pair() as (left, right):
        play(story())


@pytest.fixture
def contexts(tmp_path):
    broker_ca.ensure_certificate(tmp_path, {HOST})
    leaf = broker_ca.issue_leaf(tmp_path, HOST)
    trusting = ssl.create_default_context(cafile=tmp_path / "broker" / "ca.pem")
    return server_context(leaf), trusting


def test_records_of_one_read_give_others_a_turn(contexts):
    async def story():
        served, trusting = contexts
        server = TlsStream(Stream(left), served, server_side=True)
        client = TlsStream(Stream(right), trusting, server_name=HOST)
        await asyncio.gather(server.shake_hands(), client.shake_hands())
        for _ in range(READS):
            await client.send(b"x")
        assert await turns_while(server.fill) >= READS
        assert len(server.buffer) == READS

    with socket_pair() as (left, right):
        play(story())
