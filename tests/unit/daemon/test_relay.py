from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import threading

import pytest

from atoll.daemon import relay as relay_module
from atoll.daemon.relay import CHUNK_BYTES, Counts, Tap, relay, relay_one_way
from present import present


def pair():
    """The two ends of a connection over the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return client, accepted


class Stretch:
    """client — [near | carried | far] — server, with both ends blocking and in our hands."""

    def __init__(self):
        self.client, self.near = pair()
        self.far, self.server = pair()
        for sock in (self.near, self.far):
            sock.settimeout(0)
        for sock in (self.client, self.server):
            sock.settimeout(20)

    def close(self):
        for sock in (self.client, self.near, self.far, self.server):
            sock.close()


@pytest.fixture
def stretch():
    made = Stretch()
    yield made
    made.close()


def carrying_while(stretch, story, **options):
    """Carries while `story` runs in a thread; returns what that returned."""

    async def run():
        async with asyncio.timeout(60):
            told, _ = await asyncio.gather(
                asyncio.to_thread(story), relay(stretch.near, stretch.far, **options)
            )
        return told

    return asyncio.run(run())


def read_all(sock):
    digest, count = hashlib.sha256(), 0
    while data := sock.recv(1 << 18):
        digest.update(data)
        count += len(data)
    return count, digest.hexdigest()


def test_half_closes_are_passed_on(stretch):
    def story():
        stretch.client.sendall(b"question")
        stretch.client.shutdown(socket.SHUT_WR)
        asked = stretch.server.recv(100), stretch.server.recv(100)
        stretch.server.sendall(b"answer")
        stretch.server.shutdown(socket.SHUT_WR)
        return asked, (stretch.client.recv(100), stretch.client.recv(100))

    counts = Counts()
    assert carrying_while(stretch, story, counts=counts) == (
        (b"question", b""), (b"answer", b"")
    )  # fmt: skip
    assert (counts.sent, counts.received) == (8, 6)


def test_first_goes_before_all_else(stretch):
    def story():
        stretch.client.sendall(b" and then")
        stretch.client.shutdown(socket.SHUT_WR)
        said = b""
        while data := stretch.server.recv(100):
            said += data
        stretch.server.close()
        return said

    counts = Counts()
    assert carrying_while(stretch, story, first=b"first", counts=counts) == b"first and then"
    assert counts.sent == 14


@pytest.mark.parametrize("most", [16, 0])
def test_much_goes_both_ways_at_once_unchanged(stretch, monkeypatch, most):
    """With pipes, and by copying when there are none left."""
    monkeypatch.setattr(relay_module.PIPES, "_most", most)
    data = os.urandom(1 << 20) * 24
    wanted = (len(data), hashlib.sha256(data).hexdigest())

    def send(sock):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)

    def story():
        senders = [
            threading.Thread(target=send, args=[s]) for s in (stretch.client, stretch.server)
        ]
        for sender in senders:
            sender.start()
        there: list[tuple[int, str]] = []
        reader = threading.Thread(target=lambda: there.append(read_all(stretch.server)))
        reader.start()
        back = read_all(stretch.client)
        for thread in (*senders, reader):
            thread.join()
        return there[0], back

    assert carrying_while(stretch, story) == (wanted, wanted)
    assert relay_module.PIPES.in_use == 0


def test_sizes_of_all_kinds_in_turn(stretch):
    """From copying to the pipe and back, in the middle of a connection."""
    sizes = [1, CHUNK_BYTES * 40, 3, *[10] * 100, CHUNK_BYTES * 8, 1]

    def story():
        def echo():
            while data := stretch.server.recv(1 << 18):
                stretch.server.sendall(data)
            stretch.server.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=echo)
        thread.start()
        good = []
        for number, size in enumerate(sizes):
            data = bytes([number % 256]) * size
            sender = threading.Thread(target=stretch.client.sendall, args=[data])
            sender.start()
            got = b""
            while len(got) < size:
                got += stretch.client.recv(size - len(got))
            sender.join()
            good.append(got == data)
        stretch.client.shutdown(socket.SHUT_WR)
        thread.join()
        return good

    assert all(carrying_while(stretch, story))


def test_slow_reader_holds_the_sender_back_without_work(stretch):
    """A side that is full is waited for: nothing spins, and nothing is heaped up here."""
    stretch.client.settimeout(0)

    async def run():
        task = asyncio.create_task(relay(stretch.near, stretch.far))
        sent, last = 0, -1
        while sent != last:
            last = sent
            while True:
                try:
                    sent += stretch.client.send(bytes(1 << 18))
                except BlockingIOError:
                    break
                await asyncio.sleep(0)
            await asyncio.sleep(0.2)
        turns = await turns_of(task, 0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return turns

    assert asyncio.run(run()) == 0


async def turns_of(task, period_s):
    """How often the ways of a carried connection were called within a period."""
    called = 0

    def counted(function):
        def call(way):
            nonlocal called
            called += 1
            return function(way)

        return call

    way = relay_module._Direction
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(way, "_go_on", counted(way._go_on))
        patch.setattr(way, "_turn", counted(way._turn))
        await asyncio.sleep(period_s)
    assert not task.done()
    return called


def test_reset_is_passed_on(stretch):
    def story():
        stretch.server.sendall(b"half of an ans")
        assert stretch.client.recv(14) == b"half of an ans"
        stretch.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, relay_module._RESET)
        stretch.server.close()
        with pytest.raises(ConnectionResetError):
            stretch.client.recv(100)
        return True

    assert carrying_while(stretch, story)


def test_answer_to_a_request_that_no_process_reads_to_its_end_arrives(stretch):
    """As a server that refuses an upload: it answers and closes before all of it has come."""

    def story():
        def upload():
            try:
                stretch.client.sendall(bytes(64 << 20))
            except OSError:
                return

        sender = threading.Thread(target=upload)
        sender.start()
        assert stretch.server.recv(10)
        stretch.server.sendall(b"413")
        stretch.server.close()
        said = stretch.client.recv(100)
        stretch.client.close()
        sender.join()
        return said

    assert carrying_while(stretch, story) == b"413"


def test_idle_connection_ends_and_a_busy_one_does_not(stretch):
    def story():
        for _ in range(8):
            stretch.client.sendall(b"x")
            stretch.server.recv(1)
            threading.Event().wait(0.1)
        return stretch.client.recv(1), stretch.server.recv(1)

    assert carrying_while(stretch, story, idle_s=0.4) == (b"", b"")


def test_cancelling_closes_everything(stretch, descriptors):
    async def run():
        task = asyncio.create_task(relay(stretch.near, stretch.far))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert stretch.near.fileno() == stretch.far.fileno() == -1
    assert (stretch.client.recv(1), stretch.server.recv(1)) == (b"", b"")


def test_pour_lets_another_process_listen(stretch):
    heard: list[bytes] = []
    glance = Tap()
    glance.on_data = heard.append

    async def run():
        stretch.client.sendall(b"aloud")
        stretch.client.shutdown(socket.SHUT_WR)
        return await relay_one_way(stretch.near, stretch.far, tap=glance, passes_end=False)

    assert asyncio.run(run()) == 5
    assert heard == [b"aloud", b""]
    stretch.far.sendall(b"!")
    assert stretch.server.recv(10) in (b"aloud", b"aloud!")


def test_pipes_are_few_and_come_back(descriptors):
    before = descriptors()
    pipes = relay_module.Pipes(most=2)
    lent = [present(pipes.find()), present(pipes.find())]
    assert pipes.find() is None
    for pipe in lent:
        pipes.take_back(pipe, is_empty=True)
    assert pipes.find() in lent
    pipes.take_back(lent[-1], is_empty=False)
    pipes.close()
    assert descriptors() == before
