"""The loop that gives each capsule a share. Everything is counted in callbacks, not in seconds."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from atoll.daemon import fair_loop
from atoll.daemon.fair_loop import FairLoop, LoopShare, enter_share

BUSY = 400


def current_share():
    return fair_loop._SHARE.get(None)


def run(loop_factory, story):
    async def whole():
        async with asyncio.timeout(60):
            return await story()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(whole())


async def in_share(share, story):
    enter_share(share)
    return await story


class Flood:
    """Tasks that are always ready, as a capsule with many busy connections has them."""

    def __init__(self):
        self.turns = 0
        self.is_over = False

    async def one(self):
        while not self.is_over:
            self.turns += 1
            sum(range(1000))
            await asyncio.sleep(0)

    async def all(self):
        await asyncio.gather(*(self.one() for _ in range(BUSY)))


def turns_beside(loop_factory):
    """How many callbacks of a flood run while a neighbour passes ten messages to itself."""

    async def quiet(flood):
        left, right = socket.socketpair()
        with left, right:
            for sock in (left, right):
                sock.setblocking(False)
            while flood.turns < BUSY:  # noqa: ASYNC110
                await asyncio.sleep(0)
            before = flood.turns
            for _ in range(10):
                await asyncio.get_running_loop().sock_sendall(left, b"x")
                await asyncio.get_running_loop().sock_recv(right, 1)
                await asyncio.sleep(0)
            return flood.turns - before

    async def story():
        flood = Flood()
        busy = asyncio.create_task(in_share(LoopShare(), flood.all()))
        found = await asyncio.create_task(in_share(LoopShare(), quiet(flood)))
        flood.is_over = True
        await busy
        return found

    return run(loop_factory, story)


def test_flood_does_not_delay_a_neighbour():
    assert turns_beside(FairLoop) < BUSY
    # The control: each step of the neighbour waits for the whole flood.
    assert turns_beside(asyncio.SelectorEventLoop) >= 10 * BUSY


def test_idle_time_is_not_saved_up():
    """A share that did nothing for long does not displace the others when it wakes up."""

    async def story():
        floods = [Flood(), Flood()]
        shares = [LoopShare(), LoopShare()]
        first = asyncio.create_task(in_share(shares[0], floods[0].all()))
        while shares[0].used_s < 0.05:  # noqa: ASYNC110 - of things that tell nobody
            await asyncio.sleep(0)
        second = asyncio.create_task(in_share(shares[1], floods[1].all()))
        while not floods[1].turns:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert shares[1].used_s >= 0.05
        for flood in floods:
            flood.is_over = True
        await asyncio.gather(first, second)

    run(FairLoop, story)


def test_what_a_task_creates_belongs_to_its_share():
    async def story():
        share, seen = LoopShare(), []
        left, right = socket.socketpair()
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def read():
            seen.append(current_share())
            right.recv(1)
            loop.remove_reader(right)
            loop.call_soon(nested)

        def nested():
            seen.append(current_share())
            over.set()

        async def work():
            loop.add_reader(right, read)
            loop.call_later(0, lambda: seen.append(current_share()))

        await asyncio.create_task(in_share(share, work()))
        left.send(b"x")
        await over.wait()
        left.close()
        right.close()
        assert seen == [share, share, share]
        assert current_share() is None

    run(FairLoop, story)


def test_reader_is_called_once_for_what_is_there():
    """The kernel reports a descriptor in every round until it is read: with more ready descriptors
    than one round runs, each must still be queued only once.
    """

    async def story():
        loop = asyncio.get_running_loop()
        pairs = [socket.socketpair() for _ in range(100)]
        calls, surplus = [0] * len(pairs), []
        over = asyncio.Event()

        def read(number, sock):
            calls[number] += 1
            try:
                sock.recv(1)
            except BlockingIOError:
                surplus.append(number)
            if sum(calls) == 3 * len(pairs):
                over.set()

        for number, (left, right) in enumerate(pairs):
            right.setblocking(False)
            left.send(b"abc")
            loop.add_reader(right, read, number, right)
        await over.wait()
        await asyncio.sleep(0)
        assert (set(calls), surplus) == ({3}, [])
        for left, right in pairs:
            loop.remove_reader(right)
            left.close()
            right.close()

    run(FairLoop, story)


def test_other_threads_may_append():
    async def story():
        loop = asyncio.get_running_loop()
        seen, over = [], asyncio.Event()

        def note(thread, number):
            seen.append((thread, number))
            if len(seen) == 4000:
                over.set()

        def tell(thread):
            for number in range(1000):
                loop.call_soon_threadsafe(note, thread, number)

        threads = [threading.Thread(target=tell, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        await over.wait()
        for thread in threads:
            thread.join()
        for name in range(4):
            assert [n for thread, n in seen if thread == name] == list(range(1000))

    run(FairLoop, story)


def test_cancelled_and_failed_work_ends_as_usual():
    async def story():
        async def fail():
            raise ValueError("as expected")

        async def wait():
            await asyncio.Event().wait()

        with pytest.raises(ValueError, match="as expected"):
            await asyncio.create_task(in_share(LoopShare(), fail()))
        task = asyncio.create_task(in_share(LoopShare(), wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(FairLoop, story)
