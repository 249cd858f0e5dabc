"""A holder that does not answer: it is given up, and asked again on another connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest

from atoll.daemon.holder_network import STREAM, V4, HolderNetwork
from atoll.drivers.contracts import NetworkGone, NetworkSilent
from atoll.keeper import requests, wire


@pytest.fixture
def listener(tmp_path):
    with wire.listen(tmp_path, requests.SOCKET, socket.SOCK_SEQPACKET) as made:
        made.settimeout(60)
        yield made


def test_answer_that_comes_too_late_is_not_taken_for_another(tmp_path, listener):
    gave_up = threading.Event()

    def hold():
        watching, _ = listener.accept()
        first, _ = listener.accept()
        with watching, first, socket.socket() as sock:
            requests.receive(first)
            requests.send(first, {"pid": 1})
            requests.receive(first)
            assert gave_up.wait(60)
            with contextlib.suppress(OSError):
                # One socket is the answer that comes too late, two are the right one.
                requests.send(first, {}, (sock.fileno(),))
            second, _ = listener.accept()
            with second:
                requests.receive(second)
                requests.send(second, {}, (sock.fileno(),) * 2)

    async def story():
        holder = HolderNetwork(str(tmp_path), answer_s=60)
        await holder.connect()
        holder.answer_s = 0.01
        with pytest.raises(NetworkSilent):
            await holder.sockets((V4, STREAM))
        gave_up.set()
        holder.answer_s = 60
        made = await holder.sockets((V4, STREAM), (V4, STREAM))
        assert len(made) == 2
        for sock in made:
            sock.close()
        holder.close()

    thread = threading.Thread(target=hold)
    thread.start()
    asyncio.run(story())
    thread.join()


def test_holder_whose_queue_is_full_does_not_block_the_loop(tmp_path, listener):
    """Nobody accepts here, as with a holder that was stopped."""
    listener.listen(0)

    async def story():
        for _ in range(5):
            with pytest.raises(NetworkSilent):
                await HolderNetwork(str(tmp_path), answer_s=0.01).connect()

    asyncio.run(story())


def test_no_holder_is_gone(tmp_path):
    async def story():
        with pytest.raises(NetworkGone) as caught:
            await HolderNetwork(str(tmp_path)).connect()
        assert not isinstance(caught.value, NetworkSilent)

    asyncio.run(story())
